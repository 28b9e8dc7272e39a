#!/usr/bin/env python3
"""The kernels of a training step, by NVIDIA's compiler, on the emulated device, on which nothing is computed here:

    . FOLDER/env; tests/fake-cuda/kernels.py ptxas KILN OUT        # registers, spills, shared memory, occupancy of Kiln's own kernels
    . FOLDER/env; tests/fake-cuda/kernels.py steps KILN OUT --native KILN_NATIVE    # launches and bytes of a step, and a roofline
    . FOLDER/env; tests/fake-cuda/kernels.py bounds KILN OUT       # fails where a step has more of them than BOUNDS says
    . FOLDER/env; tests/fake-cuda/kernels.py registers OUT         # fails where a kernel in OUT (FAKE_CUDA_DIR of tests) has more than MOST says

`ptxas` and `steps` print the Markdown of a dated result, and no kernel computes; `steps` does not have them compiled either. `ptxas`
compiles for capabilities 8.0 and 9.0 at the sizes of GPT-2 small and BERT base, with one block of layers. `steps` runs the cases of
`kiln bench --suite gpu`, whole models, and takes a step that is not logged. `bounds` has its kernels compiled by NVRTC, since it also looks
at every instruction for tensor cores, which must add up in f32, and holds recordings of captured steps against their rehearsals. Autotune takes the first candidate that compiles (FAKE_CUDA_TUNE=first),
which need not be the one that wins on a GPU.

Bytes are modelled: those that a launch has to move between the GPU's memory and its caches, by the lengths of its buffers, which CubeCL
passes to every kernel (`static_meta` in the struct of scalars).
- A buffer counts once, read and written each; a product counts its factors once, whose caches it needs for that.
- An element-wise kernel, a copy, a cast and a lookup read no more elements of a buffer than they write in all, so a view counts by its
  extent and not by that of the buffer that it lies in; a concatenation writes as much as it reads.
- Causal attention reads the scores up to the diagonal, and writes all of them.
- Flash attention reads its query, key and value once, and each as a part of what holds all three: blocks that run at a time take tiles
  of few heads, whose other operands lie in the cache. With a causal mask every key is still read, by the last queries.
- The gradient of a lookup that is added to one of the table (ROWS) reads and writes as many rows of it as there are tokens, at most.
- A kernel that passes over its row more than once (PASSES) reads it as often from memory where the rows of all blocks that run at a
  time are larger than the cache of an H100.
"""
import argparse, ctypes, json, math, os, re, shutil, subprocess, sys, time, tomllib
from collections import defaultdict
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["ptxas", "steps", "bounds", "registers"])
parser.add_argument("kiln", type=Path, nargs="?")
parser.add_argument("out", type=Path)
parser.add_argument("--native", type=Path)
parser.add_argument("--launch-us", type=float, default=5.0, help="the host's time for one launch, in microseconds")
parser.add_argument("--again", action="store_true", help="count the runs of OUT again, without running them")
parser.add_argument("--newer", type=Path, help="registers of the kernels alone that were loaded after this file was written")
parser.add_argument("--cases", default="", help="cases whose name matches this regular expression")
parser.add_argument("--engines", default="", help="engines whose name matches this regular expression")
args = parser.parse_args()
if args.kiln is None and args.what != "registers":
    parser.error("expected KILN and OUT")
args.kiln, args.out = args.kiln and args.kiln.resolve(), args.out.resolve()
args.native = args.native and args.native.resolve()
root = Path(__file__).resolve().parents[2]

# The defaults of the families, without any dropout.
MODELS = {
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             "attn_pdrop": 0.0},
    "bert": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
             "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    # `size = "smollm2-135m"`
    "llama": {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
              "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True},
}
# The cases of `kiln bench --suite gpu`, but for those whose batch is looked for on the device.
SUITE = [case for case in tomllib.loads((root / "crates/measure/src/bench/suites.toml").read_text())["suite"]["gpu"]["case"] if case["batch"] != "max"]

# Most launches and most GB, read and written, of a step: what has been reached, and a little for another choice of autotune's.
BOUNDS = {"gpt2-small-b8-bf16": (328, 27.0), "bert-base-128-bf16": (490, 14.7), "smollm2-135m-b8-bf16": (1390, 31.5)}


# Most registers of a thread, and most bytes that ptxas spills at 8.0 and at 9.0, in Kiln's kernels whose name begins so. Attention
# holds tiles in registers; its blocks are two a multiprocessor at least, and ptxas spills a few bytes of some variants to have three or
# four. So it does with the backward of a norm, which it gives 75 to 111 registers and no spill where two blocks are asked for
# (`__launch_bounds__(256, 2)`, which CubeCL cannot write). It keeps `add_parts` at 56 registers by a spill.
MOST = {"flash_": (255, 24, 24), "norm_backward": (128, 8, 8), "add_parts": (64, 0, 8), "": (128, 0, 0)}


def model_of(case):
    return {**MODELS[case["kind"]], **case.get("model", {})}


def zipf(at, count):
    """`kiln_core::random::zipf`: ids are as frequent as those of a text."""
    return min(int((count + 1) ** at), count) - 1


# A step that is not logged is one of those between two rows.
LOGGING_STEPS = 10


def run(name, case, capability, steps, program, settings, compiles):
    """The driver's log of a run of `case`, and the folder of its kernels. `compiles` are the compilers of NVIDIA's: nvrtc, ptxas."""
    model, task, batch, length = model_of(case), case["task"], case["batch"], case["length"]
    work, kernels = args.out / name, args.out / f"kernels-{capability}"
    if args.again and (work / "log").exists():
        return (work / "log").read_text(), kernels
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    first = 2 if task == "mlm" else 1 # 1 stands for the mask
    ids = lambda i: [zipf(0.618033988749895 * (i * length + j) % 1, model["vocab_size"] - first) + first for j in range(length)]

    def row(i):
        if task == "mlm":
            return {"input_ids": [id_ if j % 7 else 1 for j, id_ in enumerate(ids(i))], "labels": [-100 if j % 7 else id_ for j, id_ in enumerate(ids(i))]}
        return {"input_ids": ids(i)} | ({"labels": i % 2} if task == "sequence-classification" else {})

    rows = [row(i) for i in range(2 * batch)]
    (work / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {"kind": case["kind"], **model}.items())
    (work / "config.toml").write_text(f"""precision = "{case.get("precision", "f32")}"
[run]
output_dir = "run"
[model]
{fields}
[data]
task = "{task}"
format = "tokenized"
train = "data.jsonl"
[trainer]
max_steps = {steps}
per_device_train_batch_size = {batch}
learning_rate = 1e-4
logging_steps = {min(steps, LOGGING_STEPS)}
logging_nan_inf_filter = false
eval_strategy = "no"
save_strategy = "no"
[device]
kind = "cuda"
""")
    log = work / "log"
    environment = {
        **os.environ, "FAKE_CUDA_RUN": "0", "FAKE_CUDA_POISON": "0", "FAKE_CUDA_TRACE": "1", "FAKE_CUDA_LOG": str(log), "NO_COLOR": "1",
        "FAKE_CUDA_CC": str(capability), "FAKE_CUDA_DIR": str(kernels), "KILN_CACHE": str(args.out / "-".join(["cache", str(capability), *compiles])),
        "FAKE_CUDA_TUNE": "first", "CUBECL_AUTOTUNE_LEVEL": "minimal",
    }
    environment |= {f"FAKE_CUDA_{compiler}": "" for compiler in ["NVRTC", "PTXAS"] if compiler.lower() not in compiles}
    if args.native:
        environment["KILN_NATIVE"] = str(args.native)
    command = [str(program), "train", "config.toml"] + [word for setting in settings for word in ("--set", setting)]
    errors = work / "errors"
    with open(errors, "w") as stderr:
        child = subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        # Nothing was computed, so the model that the end of a run writes is of no use: it ends with its last step.
        metrics = work / "run/metrics.jsonl"
        while child.poll() is None:
            time.sleep(0.5)
            if "ptxas" not in compiles and metrics.exists() and metrics.read_text().count('"grad_norm"') >= steps // LOGGING_STEPS:
                child.kill()
                child.wait()
                return log.read_text(), kernels
    if child.returncode != 0:
        sys.exit(f"kernels.py: {name}: {errors.read_text()[-2000:]}")
    return log.read_text(), kernels


LAUNCH = re.compile(r"launch (\S+) (\S+) grid (\d+) (\d+) (\d+) block (\d+) (\d+) (\d+) shared (\d+):(.*) info(.*)")


def launches(log):
    for line in log.splitlines():
        if found := LAUNCH.search(line):
            name, hash_, *numbers = found.groups()[:9]
            yield name, hash_, [int(number) for number in numbers], [int(word) for word in found.group(11).split()]


def own_kernels():
    """The kernels in Kiln's operators: the operator of each by its name."""
    names = {}
    for path in (root / "models/ops").rglob("*.rs"):
        found = re.findall(r"#\[cube\(launch[^\]]*\)\](?:\s*#\[[^\]]*\])*\s*(?:pub(?:\([a-z]+\))? )?fn (\w+)", path.read_text())
        names |= {name: "rows" if path.parent.name == "cube" else path.parent.name for name in found}
    return names


def own_name(kernel, names):
    found = [name for name in names if kernel.startswith(name)]
    return max(found, key=len) if found else None


def occupancy(registers, threads, shared, capability):
    """Resident threads of 2048 of a multiprocessor, as NVIDIA's occupancy calculator counts them for 8.0 and 9.0."""
    warps = math.ceil(threads / 32)
    per_warp = math.ceil(registers * 32 / 256) * 256
    by_registers = (65536 // per_warp // 4 * 4) // warps if registers else 32
    memory = {80: 164, 90: 228}[capability] << 10
    by_shared = memory // (math.ceil((shared + 1024) / 128) * 128)
    blocks = min(32, 64 // warps, by_registers, by_shared)
    return blocks * warps / 64


def compiled(precisions):
    """Of every own kernel of a step with one block of layers and dropout: its operator's name, type, capability, blocks a multiprocessor
    as a share of its threads, and (registers, spilled bytes, bytes of stack, bytes of shared memory, threads)."""
    names = own_kernels()
    for capability in [80, 90]:
        for precision in precisions:
            for kind, task, length in [("gpt2", "clm", 1024), ("bert", "sequence-classification", 128)]:
                # The models' own dropout, whose numbers the kernels draw.
                changed = {key: 0.1 if "drop" in key else 1 for key in MODELS[kind] if re.search("drop|n_layer|num_hidden_layers", key)}
                case = {"kind": kind, "model": changed, "task": task, "batch": 4, "length": length, "precision": precision}
                settings = ["compiler.enabled=compiled", "compiler.fused_ops=on"]
                log, kernels = run(f"ptxas-{task}-{precision}-{capability}", case, capability, 2, args.kiln, settings, ["nvrtc", "ptxas"])
                for kernel, hash_, (_, _, _, x, y, z, dynamic), _ in launches(log):
                    name = own_name(kernel, names)
                    if name is None:
                        continue
                    report = (kernels / "ptx" / f"{hash_}.txt").read_text()
                    number = lambda words: int((re.search(rf"(\d+) {words}", report) or [0, 0])[1])
                    registers, shared = number("registers"), number("bytes smem") + dynamic
                    types = "bf16" if "__nv_bfloat16" in (kernels / "src" / f"{hash_}.cu").read_text() else "f32"
                    row = (registers, number("bytes spill stores"), number("bytes stack frame"), shared, x * y * z)
                    yield name, types, capability, occupancy(registers, x * y * z, shared, capability), row


def ptxas():
    rows = {(name, types, capability, row): share for name, types, capability, share, row in compiled(["f32", "bf16"])}
    print("| kernel | type | threads | sm_80: registers | spilled bytes | stack | shared bytes | occupancy | sm_90: registers | spilled bytes | stack | shared bytes | occupancy |")
    print("| --- | --- | ---: |" + " ---: |" * 10)
    table = defaultdict(dict)
    for (name, types, capability, row), share in rows.items():
        # Of several variants of a kernel, the one with the most registers.
        cell = table[(name, types, row[4])]
        if capability not in cell or row > cell[capability][0]:
            cell[capability] = (row, share)
    for (name, types, threads), cell in sorted(table.items()):
        cells = []
        for capability in [80, 90]:
            if capability in cell:
                (registers, spills, stack, shared, _), share = cell[capability]
                cells += [registers, spills, stack, shared, f"{share:.0%}"]
            else:
                cells += ["-"] * 5
        print(f"| `{name}` | {types} | {threads} | " + " | ".join(str(cell) for cell in cells) + " |")
    missing = sorted(set(own_kernels()) - {name for name, *_ in table})
    print(f"\nNot launched by these runs: {', '.join(missing) or 'none'}.")


def ptx_of(source, capability):
    """NVRTC's PTX of a kernel's source."""
    nvrtc, program, size = ctypes.CDLL(os.environ["FAKE_CUDA_NVRTC"]), ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture=compute_{capability}", f"--include-path={os.environ['CUDA_PATH']}/include", "-lineinfo"]
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
    words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = status or nvrtc.nvrtcCompileProgram(program, len(options), words) or nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    status = status or nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if status:
        sys.exit(f"kernels.py: NVRTC fails with {status} for capability {capability}: {source[:500]}")
    return ptx.value.decode()


def registers():
    names, wrong, checked = own_kernels(), [], defaultdict(lambda: [0, 0])
    since = args.newer.stat().st_mtime if args.newer else 0
    for path in sorted((args.out / "src").glob("*.cu")):
        if path.stat().st_mtime < since:
            continue
        source = path.read_text()
        entry = re.search(r"__launch_bounds__\((\d+)\)\s*(\w+)\s*\(", source)
        name = entry and own_name(entry[2], names)
        if name is None:
            continue
        threads = int(entry[1])
        most, *spills = MOST[max((prefix for prefix in MOST if name.startswith(prefix)), key=len)]
        for capability, spill in zip([80, 90], spills):
            ptx = args.out / "registers.ptx"
            ptx.write_text(ptx_of(source, capability))
            done = subprocess.run([os.environ["FAKE_CUDA_PTXAS"], "-v", f"-arch=sm_{capability}", ptx, "-o", "/dev/null"], capture_output=True, text=True)
            ptx.unlink()
            if done.returncode != 0:
                wrong.append(f"{entry[2]} ({path.name}) is not assembled for {capability}: {done.stderr[:500]}")
                continue
            number = lambda words: int((re.search(rf"(\d+) {words}", done.stderr) or [0, 0])[1])
            count, spilled, shared = number("registers"), number("bytes spill stores"), number("bytes smem")
            blocks = occupancy(count, threads, shared, capability) * 2048 / threads
            checked[name] = [max(pair) for pair in zip(checked[name], [count, spilled])]
            if count > most or spilled > spill or (most > 128 and blocks < 2):
                wrong.append(f"{entry[2]} ({path.name}) has {count} registers, {spilled} bytes spilled and {blocks:.0f} blocks of {threads} "
                             f"threads a multiprocessor at {capability}; expected at most {most} and {spill}, and at least 2")
    for name, (count, spilled) in sorted(checked.items()):
        print(f"{name}: at most {count} registers, {spilled} bytes spilled")
    missing = [prefix for prefix in MOST if not any(name.startswith(prefix) for name in checked)]
    if missing:
        wrong.append(f"no kernel of {missing} is in {args.out}")
    if wrong:
        sys.exit("kernels.py: " + "\n".join(wrong))


SIZES = {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
         "uint8_t": 1, "int8_t": 1, "bool": 1, "uint16_t": 2, "int16_t": 2, "half": 2, "__half2": 4, "__nv_bfloat162": 4}
signatures = {}


def buffers(kernels, hash_):
    """(bytes of an element, its lanes, is read, is written) of every buffer of a kernel, and where the lengths begin in its struct."""
    if hash_ not in signatures:
        source = (kernels / "src" / f"{hash_}.cu").read_text()
        parameters = re.search(r"__launch_bounds__\(\d+\)[^(]*\((.*?)\)\s*\{", source, re.S).group(1).split(",")
        vectors = {name: (width * size, width) for name, width, size in aligned(source)}
        list_ = []
        for parameter in parameters:
            if "dynamic_meta" in parameter or "*" not in parameter:
                continue
            type_, name = parameter.strip().split("*")[0].replace("const", "").strip(), parameter.split()[-1]
            # A generated kernel reads and writes through pointers into a buffer; through one that is not constant it may do both.
            at = re.findall(rf"\* const (\w+) = &{name}\[", source)
            read = any(re.search(rf"= \*{pointer}\b", source) for pointer in at) or bool(re.search(rf"= {name}\[", source))
            written = any(re.search(rf"^\s*\*{pointer} =", source, re.M) for pointer in at) or bool(re.search(rf"^\s*{name}\[", source, re.M))
            if not read and not written and len(re.findall(rf"\b{name}\b", source)) > 1:  # passed on as a whole
                read = "const*" in parameter.replace(" ", "")
                written = not read
            list_.append((*vectors.get(type_, (SIZES.get(type_, 4), 1)), read, written))
        struct = re.search(r"struct info_st \{(.*?)\};", source, re.S)
        offset, found = 0, None
        for type_, name, count in re.findall(r"(\w+) (\w+)\[(\d+)\];", struct.group(1) if struct else ""):
            size = SIZES.get(type_, 4)
            offset = (offset + size - 1) // size * size
            if name == "static_meta":
                found = offset // 4
            offset += int(count) * size
        signatures[hash_] = (list_, found)
    return signatures[hash_]


def aligned(source):
    """Vectors that the source declares: name, width, bytes of an element."""
    for name, body in re.findall(r"struct (?:__align__|alignas)\(\d+\) (\w+) \{(.*?)\};", source, re.S):
        fields = re.findall(r"(\w+) \w+;", body)
        if fields:
            yield name, len(fields), SIZES.get(fields[0], 4)


# How often a kernel passes over its row.
PASSES = {"loss_rows": 2, "weigh_rows": 3, "weigh_backward_rows": 2}
# Of the kernels of flash attention the buffer that is as long as the queries: any other is longer only as a part of a packed one.
FLASH = {"flash_rows": 5, "flash_backward_queries": 4, "flash_backward_keys": 3}
# Of a kernel that adds to some rows of a table the table, and the buffer that has a row for each of them.
ROWS = {"add_to_rows": (4, 0)}
# Multiprocessors, and bytes of the cache that they share, of an H100.
H100 = (132, 50 << 20)


def moved(kernel, grid, threads, buffers_, is_causal, own):
    """Bytes read and written by a launch with `buffers_`: (bytes of an element, its lanes, is read, is written, length)."""
    name = own_name(kernel, own)
    # Of one kernel's buffers some are of vectors and some of scalars: lengths compare in scalars.
    buffers_ = [(size / lanes, is_read, is_written, length * lanes) for size, lanes, is_read, is_written, length in buffers_]
    if name in FLASH:
        longest = buffers_[FLASH[name]][3]
        buffers_ = [(size, is_read, is_written, min(length, longest)) for size, is_read, is_written, length in buffers_]
    if name in ROWS:
        table, rows = ROWS[name]
        buffers_[table] = (*buffers_[table][:3], min(buffers_[table][3], buffers_[rows][3]))
    written = max((length for _, _, written, length in buffers_ if written), default=0)
    part = min((length for _, read, written, length in buffers_ if read and not written), default=0)
    read_bytes = written_bytes = 0
    for size, is_read, is_written, length in buffers_:
        read, write = length, length
        if name is None and not re.search("matmul|gemm|vecmat|reduce", kernel):
            read = min(length, written)
            if re.search("assign|cat", kernel) and part:
                write = min(length, part)
                read = 0 if is_written else read
        read_bytes += is_read * size * read
        written_bytes += is_written * size * write
    if is_causal and name in ("weigh_rows", "weigh_backward_rows"):
        read_bytes /= 2
    multiprocessors, cache = H100
    blocks = max(1, math.prod(grid))
    under_way = min(blocks, multiprocessors * min(32, 2048 // max(32, threads)))
    if read_bytes / blocks * under_way > cache:
        read_bytes *= PASSES.get(name, 1)
    return read_bytes, written_bytes


def of_step(case, program, settings, name, compiles=()):
    """By kernel of a step that is not logged: launches, bytes read, bytes written; and the folder of the kernels with their hashes."""
    own = own_kernels()
    log, kernels = run(name, case, 90, 2 * LOGGING_STEPS, program, settings, compiles)
    # The device is read where a step is logged; between the last two of them are steps with the same launches.
    parts = [[]]
    for line in log.splitlines():
        if found := LAUNCH.search(line):
            parts[-1].append(found)
        elif "] dtoh " in line:
            parts.append([])
    between = next((part for part in reversed(parts[:-1]) if len(part) > 20 * LOGGING_STEPS), [])
    key = lambda launch: launch.group(1, 3, 4, 5)
    keys = [key(launch) for launch in between]
    # Layers are alike too, so no period counts but that of a step. A tensor that the driver's thread still holds is copied where it would
    # be overwritten, which makes a few steps longer: two steps one after the other with the same launches are those without.
    # The norm of the gradients has one root a step.
    steps_ = sum("root_of_sum" in launch.group(1) for launch in between)
    if steps_ < LOGGING_STEPS - 1:
        sys.exit(f"kernels.py: {name}: {steps_} steps between two that are logged; expected {LOGGING_STEPS - 1} or {LOGGING_STEPS}")
    about = len(keys) // steps_
    places = ((n, i) for n in range(about * 9 // 10, about * 11 // 10) for i in range(0, len(keys) - 2 * n, 20))
    period, first = next(((n, i) for n, i in places if keys[i:i + n] == keys[i + n:i + 2 * n]), (None, None))
    if period is None:
        sys.exit(f"kernels.py: {name}: no two steps have the same launches: {[len(part) for part in parts]}")
    found, hashes = defaultdict(lambda: [0, 0, 0]), set()
    for launch in between[first:first + period]:
        kernel, hash_, info = launch.group(1), launch.group(2), [int(word) for word in launch.group(11).split()]
        grid, block = [[int(number) for number in launch.group(*these)] for these in [(3, 4, 5), (6, 7, 8)]]
        list_, at = buffers(kernels, hash_)
        list_ = [(*buffer, info[at + index]) for index, buffer in enumerate(list_) if at is not None and at + index < len(info)]
        read, written = moved(kernel, grid, math.prod(block), list_, case["task"] == "clm", own)
        entry = found[re.sub(r"_[0-9a-f]{8}$", "", kernel)]
        entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + read, entry[2] + written
        hashes.add(hash_)
    return found, kernels, hashes


def totals(found):
    return [sum(entry[i] for entry in found.values()) for i in range(3)]


def flops(case):
    """Of the products of a step, forward and backward: 6 per weight and token, and attention's."""
    model, tokens = model_of(case), case["batch"] * case["length"]
    layers, width = [model.get(key) or model[other] for key, other in [("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size")]]
    vocabulary = model["vocab_size"] if case["task"] in ("clm", "mlm") else 0
    layer = 12 * width * width
    if "num_key_value_heads" in model:
        shared = 2 + 2 * model["num_key_value_heads"] / model["num_attention_heads"]
        layer = shared * width * width + 3 * width * model["intermediate_size"]
    weights = layers * layer + width * vocabulary
    return 6 * weights * tokens + 12 * layers * tokens * case["length"] * width


# Name, bytes a second, products a second in bf16 and in TF32 (dense), by NVIDIA's data sheets.
GPUS = [("H100", 3.35e12, 989e12, 494e12), ("H200", 4.8e12, 989e12, 494e12), ("A100 80 GB", 2.0e12, 312e12, 156e12)]

ENGINES = [
    ("native", ["compiler.enabled=native"]), ("compiled, plain operators", ["compiler.enabled=compiled", "compiler.fused_ops=off", "compiler.graph=off"]),
    ("compiled", ["compiler.enabled=compiled", "compiler.fused_ops=on", "compiler.graph=off"]),
]


def operator_of(kernel, own):
    if name := own_name(kernel, own):
        return own[name]
    for name, pattern in [("products", "matmul|gemm|vecmat"), ("casts", "cast"), ("copies and transposes", "contiguous|copy|permute|slice|cat_"),
                          ("reductions", "reduce"), ("Burn's fused blocks", "fuse")]:
        if re.search(pattern, kernel):
            return name
    return "single operations"


def steps():
    rows, own = [], own_kernels()
    print("| case | engine | launches | kernels | GB read | GB written | " + " | ".join(f"{name}: modelled ms of memory, products, launches" for name, *_ in GPUS) + " |")
    print("| --- | --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(GPUS))
    for case in SUITE:
        if not re.search(args.cases, case["name"]):
            continue
        for engine, settings in ENGINES:
            if not re.search(args.engines, engine) or (engine == "native" and not args.native):
                continue
            found, _, _ = of_step(case, args.kiln, settings, f"steps-{case['name']}-{engine.replace(', ', '-').replace(' ', '-')}")
            count, read, written = totals(found)
            cells = []
            for _, bandwidth, bf16, tf32 in GPUS:
                peak = bf16 if case.get("precision") == "bf16" else tf32
                cells.append(f"{(read + written) / bandwidth * 1e3:.1f}, {flops(case) / peak * 1e3:.1f}, {count * args.launch_us / 1e3:.1f}")
            print(f"| {case['name']} | {engine} | {count} | {len(found)} | {read / 1e9:.2f} | {written / 1e9:.2f} | {' | '.join(cells)} |", flush=True)
            rows.append({"case": case["name"], "engine": engine, "kernels": found})
            (args.out / "steps.json").write_text(json.dumps(rows, indent=1))
    print("\nBy operator, launches and GB read and written:\n\n| case | engine | operator | launches | GB read | GB written |\n| --- | --- | --- | ---: | ---: | ---: |")
    for row in rows:
        operators = defaultdict(lambda: [0, 0, 0])
        for kernel, entry in row["kernels"].items():
            operator = operator_of(kernel, own)
            operators[operator] = [a + b for a, b in zip(operators[operator], entry)]
        for operator, (count, read, written) in sorted(operators.items(), key=lambda item: -(item[1][1] + item[1][2])):
            print(f"| {row['case']} | {row['engine']} | {operator} | {count} | {read / 1e9:.2f} | {written / 1e9:.2f} |")
    print("\nThe kernels with the most bytes:\n\n| case | engine | kernel | launches | GB read | GB written |\n| --- | --- | --- | ---: | ---: | ---: |")
    for row in rows:
        for kernel, (count, read, written) in sorted(row["kernels"].items(), key=lambda item: -(item[1][1] + item[1][2]))[:6]:
            print(f"| {row['case']} | {row['engine']} | `{kernel}` | {count} | {read / 1e9:.2f} | {written / 1e9:.2f} |")


def sums_of(ptx):
    """The types of the sums of the instructions for tensor cores: of what is added to, and of the result."""
    for types in re.findall(r"\bmma\.sync\.aligned\.([\w.]+)", ptx):
        words = [word for word in types.split(".") if re.fullmatch(r"(b|t|s|u)?f(16|32|64)|s32|(s|u)8|e\dm\d", word)]
        yield {words[0], words[-1]}


def recordings(log):
    """Of each recording of a run: the launches of the rehearsal before it, and its own, both in order."""
    launched, begin = [], 0
    for line in log.splitlines():
        if found := LAUNCH.search(line):
            launched.append(found)
        elif "recording begins" in line:
            begin = len(launched)
        elif "] GRAPH of " in line:
            recorded = launched[begin:]
            yield launched[begin - len(recorded):begin], recorded


def memory_of(launch, kernels):
    """First and last byte of every buffer of a launch."""
    list_, at = buffers(kernels, launch.group(2))
    info = [int(word) for word in launch.group(11).split()]
    pointers = [int(word, 16) for word in launch.group(10).split()]
    lengths = [] if at is None else info[at:]
    return [(pointer, pointer + size * length) for pointer, (size, _, _, _), length in zip(pointers, list_, lengths)]


def captured():
    """What is wrong with the recordings of captured steps."""
    suite = tomllib.loads((root / "crates/measure/src/bench/suites.toml").read_text())["suite"]["gpu-tiny"]
    for case in [case for case in suite["case"] if case["batch"] != "max"]:
        settings = ["compiler.enabled=compiled", "compiler.fused_ops=on", "compiler.graph=on"]
        log, kernels = run(f"captured-{case['name']}", case, 90, 2 * LOGGING_STEPS, args.kiln, settings, [])
        made = list(recordings(log))
        for rehearsed, recorded in made:
            # The lengths of buffers too; that no recording gets new memory depends on it.
            lists = [[launch.group(*range(1, 10), 11) for launch in part] for part in (rehearsed, recorded)]
            if lists[0] != lists[1]:
                at = next(i for i in range(len(recorded)) if lists[0][i:i + 1] != lists[1][i:i + 1])
                yield f"{case['name']}: launch {at} of {len(recorded)} of a recording is {lists[1][at]}, in the rehearsal {lists[0][at:at + 1]}"
            # An update is in place, so whatever reads a weight of before has to come before it.
            updates = [at for at, launch in enumerate(recorded) if launch.group(1).startswith("update_each")]
            for at in updates:
                memory = memory_of(recorded[at], kernels)
                # Weights, and their copies where they have any; then two moments and gradients; scale and factors.
                copied = not recorded[at].group(1).endswith("_f32")
                weights = memory[:(len(memory) - 2) // 5 * 2] if copied else memory[:(len(memory) - 2) // 4]
                if not weights:
                    yield f"{case['name']}: the weights of an update are not found"
                for first, end in weights:
                    late = [later.group(1) for later in recorded[at + 1:] if any(a < end and b > first for a, b in memory_of(later, kernels))]
                    if late:
                        yield f"{case['name']}: {late[0]} uses a weight after its update, which is launch {at} of {len(recorded)}"
            print(f"{case['name']}: a recording of {len(recorded)} launches, {len(updates)} of them updates, is held against its rehearsal")
            if not updates:
                yield f"{case['name']}: a recording without an update"
        if not made:
            yield f"{case['name']}: nothing was recorded"


def bounds():
    wrong, instructions = list(captured()), 0
    for case in SUITE:
        if case["name"] not in BOUNDS or not re.search(args.cases, case["name"]):
            continue
        (_, settings), (most, most_gb) = ENGINES[-1], BOUNDS[case["name"]]
        found, kernels, hashes = of_step(case, args.kiln, settings, f"bounds-{case['name']}", ["nvrtc"])
        count, read, written = totals(found)
        gb = (read + written) / 1e9
        print(f"{case['name']}: {count} launches of at most {most}, {gb:.1f} GB of at most {most_gb}")
        if count > most or gb > most_gb:
            wrong.append(f"{case['name']}: a step has {count} launches and moves {gb:.1f} GB; expected at most {most} and {most_gb}")
        if count < 0.9 * most or gb < 0.9 * most_gb:
            wrong.append(f"{case['name']}: a step has {count} launches and moves {gb:.1f} GB: lower its bounds of {most} and {most_gb}")
        for hash_ in sorted(hashes):
            sums = list(sums_of((kernels / "ptx" / f"{hash_}.ptx").read_text()))
            instructions += len(sums)
            wrong += [f"{case['name']}: a product of kernel {hash_} sums in {sum_}; expected f32" for sum_ in sums if sum_ != {"f32"}]
    print(f"{instructions} instructions for tensor cores, which sum in f32")
    if not instructions:
        wrong.append("no kernel has an instruction for tensor cores")
    if wrong:
        sys.exit("kernels.py: " + "\n".join(wrong))


args.out.mkdir(parents=True, exist_ok=True)
{"ptxas": ptxas, "steps": steps, "bounds": bounds, "registers": registers}[args.what]()
