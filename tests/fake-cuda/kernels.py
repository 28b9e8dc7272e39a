#!/usr/bin/env python3
"""The kernels of a training step, by NVIDIA's compiler, on the emulated device, on which nothing is computed here:

    . FOLDER/env; tests/fake-cuda/kernels.py ptxas KILN OUT        # registers, spills, shared memory, occupancy of Kiln's own kernels
    . FOLDER/env; tests/fake-cuda/kernels.py steps KILN OUT --native KILN_NATIVE    # launches and bytes of a step, and a roofline

Both print the Markdown of a dated result, and no kernel computes; `steps` does not have them compiled either. `ptxas` compiles for capabilities 8.0 and 9.0 at the sizes of GPT-2 small and BERT base, with
one block of layers. `steps` runs whole models. Autotune takes the first candidate that compiles (FAKE_CUDA_TUNE=first), which need not be
the one that wins on a GPU.

Bytes are those of the buffers that a launch has as arguments, each counted once: an embedding reads less, and a product without a cache
reads more. Their lengths are what CubeCL passes to every kernel (`static_meta` in the struct of scalars).
"""
import argparse, json, math, os, re, shutil, subprocess, sys, time
from collections import defaultdict
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["ptxas", "steps"])
parser.add_argument("kiln", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--native", type=Path)
parser.add_argument("--launch-us", type=float, default=5.0, help="the host's time for one launch, in microseconds")
parser.add_argument("--cases", default="", help="cases whose name matches this regular expression")
args = parser.parse_args()
args.kiln, args.out = args.kiln.resolve(), args.out.resolve()
args.native = args.native and args.native.resolve()
root = Path(__file__).resolve().parents[2]

GPT2 = ('kind = "gpt2"\nn_embd = 768\nn_head = 12\nn_positions = 1024\nvocab_size = 50257\nresid_pdrop = 0.0\nembd_pdrop = 0.0\n'
        'attn_pdrop = 0.0\n')
BERT = ('kind = "bert"\nhidden_size = 768\nnum_attention_heads = 12\nintermediate_size = 3072\nvocab_size = 30522\nhidden_dropout_prob = 0.0\n'
        'attention_probs_dropout_prob = 0.0\n')
# Name, model, task, batch, length, layers, precision: those of `kiln bench --suite gpu`, without the largest batches.
SUITE = [(f"{name}-{precision}", model, task, batch, length, 12, precision) for precision in ["bf16", "f32"] for name, model, task, batch, length in [
    ("gpt2-small-b8", GPT2, "clm", 8, 1024), ("gpt2-small-b32", GPT2, "clm", 32, 1024),
    ("bert-base-128", BERT, "sequence-classification", 32, 128), ("bert-base-512", BERT, "sequence-classification", 32, 512),
    ("bert-base-mlm-128", BERT, "mlm", 32, 128),
]]


def run(name, case, capability, steps, program, settings, compiles=True):
    """The driver's log of a run of `case`, and the folder of its kernels."""
    _, model, task, batch, length, layers, precision = case
    work, kernels = args.out / name, args.out / f"kernels-{capability}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    key = "n_layer" if "gpt2" in model else "num_hidden_layers"
    rows = [{"input_ids": [(i * 7919 + j * 31) % 30000 + 200 for j in range(length)]} | ({"labels": i % 2} if task == "sequence-classification" else {})
            for i in range(batch * (steps + 1))]
    (work / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    special = 'mask_token_id = 103\nspecial_token_ids = [0, 101, 102, 103]\n' if task == "mlm" else ""
    (work / "config.toml").write_text(f"""precision = "{precision}"
[run]
output_dir = "run"
[model]
{model}{key} = {layers}
[data]
task = "{task}"
format = "tokenized"
train = "data.jsonl"
{special}
[trainer]
max_steps = {steps}
per_device_train_batch_size = {batch}
learning_rate = 1e-4
logging_steps = 1
logging_nan_inf_filter = false
eval_strategy = "no"
save_strategy = "no"
[device]
kind = "cuda"
""")
    log = work / "log"
    environment = {
        **os.environ, "FAKE_CUDA_RUN": "0", "FAKE_CUDA_POISON": "0", "FAKE_CUDA_TRACE": "1", "FAKE_CUDA_LOG": str(log), "NO_COLOR": "1",
        "FAKE_CUDA_CC": str(capability), "FAKE_CUDA_DIR": str(kernels), "KILN_CACHE": str(args.out / f"cache-{capability}"),
        "FAKE_CUDA_TUNE": "first", "CUBECL_AUTOTUNE_LEVEL": "minimal",
    }
    if not compiles:
        environment |= {"FAKE_CUDA_NVRTC": "", "FAKE_CUDA_PTXAS": ""}
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
            if not compiles and metrics.exists() and metrics.read_text().count('"grad_norm"') >= steps:
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
    """Names of the kernels in Kiln's operators."""
    names = set()
    for path in (root / "models/ops").rglob("*.rs"):
        names |= set(re.findall(r"#\[cube\(launch[^\]]*\)\](?:\s*#\[[^\]]*\])*\s*(?:pub(?:\([a-z]+\))? )?fn (\w+)", path.read_text()))
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


def ptxas():
    names, rows = own_kernels(), {}
    for capability in [80, 90]:
        for precision in ["f32", "bf16"]:
            for model, task, length in [(GPT2, "clm", 1024), (BERT, "sequence-classification", 128)]:
                # With the models' own dropout, whose numbers the kernels draw.
                case = ("", re.sub(r"(pdrop|prob) = 0\.0", r"\1 = 0.1", model), task, 4, length, 1, precision)
                settings = ["compiler.enabled=compiled", "compiler.fused_ops=on"]
                log, kernels = run(f"ptxas-{task}-{precision}-{capability}", case, capability, 2, args.kiln, settings)
                for kernel, hash_, (_, _, _, x, y, z, dynamic), _ in launches(log):
                    name = own_name(kernel, names)
                    if name is None:
                        continue
                    report = (kernels / "ptx" / f"{hash_}.txt").read_text()
                    number = lambda words: int((re.search(rf"(\d+) {words}", report) or [0, 0])[1])
                    registers, shared = number("registers"), number("bytes smem") + dynamic
                    types = "bf16" if "__nv_bfloat16" in (kernels / "src" / f"{hash_}.cu").read_text() else "f32"
                    row = (registers, number("bytes spill stores"), number("bytes stack frame"), shared, x * y * z)
                    rows[(name, types, capability, row)] = occupancy(registers, x * y * z, shared, capability)
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
    missing = sorted(names - {name for name, *_ in table})
    print(f"\nNot launched by these runs: {', '.join(missing) or 'none'}.")


SIZES = {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
         "uint8_t": 1, "int8_t": 1, "bool": 1, "uint16_t": 2, "int16_t": 2, "half": 2, "__half2": 4, "__nv_bfloat162": 4}
signatures = {}


def buffers(kernels, hash_):
    """(bytes of an element, is read, is written) of every buffer of a kernel, and where the lengths begin in its struct."""
    if hash_ not in signatures:
        source = (kernels / "src" / f"{hash_}.cu").read_text()
        parameters = re.search(r"__launch_bounds__\(\d+\)[^(]*\((.*?)\)\s*\{", source, re.S).group(1).split(",")
        sizes = {**SIZES, **{name: width * size for name, width, size in aligned(source)}}
        list_ = []
        for parameter in parameters:
            if "dynamic_meta" in parameter or "*" not in parameter:
                continue
            type_, name = parameter.strip().split("*")[0].replace("const", "").strip(), parameter.split()[-1]
            # A generated kernel reads and writes through pointers into a buffer; through one that is not constant it may do both.
            at = re.findall(rf"\* const (\w+) = &{name}\[", source)
            read = any(re.search(rf"= \*{pointer}\b", source) for pointer in at) or bool(re.search(rf"= {name}\[", source))
            written = any(re.search(rf"^\s*\*{pointer} =", source, re.M) for pointer in at) or bool(re.search(rf"^\s*{name}\[", source, re.M))
            if not read and not written:  # passed on as a whole
                read = "const*" in parameter.replace(" ", "")
                written = not read
            list_.append((sizes.get(type_, 4), read, written))
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


def of_step(case, program, settings, name):
    """By kernel of a step: launches, bytes read, bytes written."""
    log, kernels = run(name, case, 90, 3, program, settings, compiles=False)
    # Every step reads the same values, which cut its launches into parts: the last parts that are as many launches each as those before them.
    parts = [[]]
    for line in log.splitlines():
        if found := LAUNCH.search(line):
            parts[-1].append(found)
        elif "] dtoh " in line:
            parts.append([])
    parts = [part for part in parts[:-1] if part]
    alike = lambda a, b: abs(len(a) - len(b)) <= max(len(a), len(b)) / 50
    reads = next((n for n in range(1, len(parts) // 2 + 1) if all(map(alike, parts[-n:], parts[-2 * n:-n])) and max(map(len, parts[-n:])) > 20), None)
    if reads is None:
        sys.exit(f"kernels.py: {name}: no two steps have the same launches: {[len(part) for part in parts]}")
    step = sum(parts[-reads:], [])
    found = defaultdict(lambda: [0, 0, 0])
    for launch in step:
        kernel, hash_, info = launch.group(1), launch.group(2), [int(word) for word in launch.group(11).split()]
        list_, at = buffers(kernels, hash_)
        entry = found[re.sub(r"_[0-9a-f]{8}$", "", kernel)]
        entry[0] += 1
        for index, (size, read, written) in enumerate(list_):
            if at is not None and at + index < len(info):
                entry[1] += read * size * info[at + index]
                entry[2] += written * size * info[at + index]
    return found


def flops(case):
    """Of the products of a step, forward and backward: 6 per weight and token, and attention's."""
    _, model, _, batch, length, layers, _ = case
    width, vocabulary = 768, (50257 if "gpt2" in model else 0)
    weights = layers * 12 * width * width + width * vocabulary
    return 6 * weights * batch * length + 12 * layers * batch * length * length * width


# Name, bytes a second, products a second in bf16 and in TF32 (dense), by NVIDIA's data sheets.
GPUS = [("H200", 4.8e12, 989e12, 494e12), ("A100 80 GB", 2.0e12, 312e12, 156e12)]


def kind_of(kernel, own):
    if own_name(kernel, own):
        return "Kiln's operators"
    for name, pattern in [("products", "matmul|gemm|vecmat"), ("casts", "cast"), ("copies and transposes", "contiguous|copy|permute|slice|cat_"),
                          ("reductions", "reduce"), ("Burn's fused blocks", "fuse")]:
        if re.search(pattern, kernel):
            return name
    return "single operations"


def steps():
    rows, own = [], own_kernels()
    print("| case | engine | launches | kernels | GB read | GB written | " + " | ".join(f"{name}: ms of memory, products, launches" for name, *_ in GPUS) + " |")
    print("| --- | --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(GPUS))
    for case in SUITE:
        if not re.search(args.cases, case[0]):
            continue
        for engine, settings in [
            ("native", ["compiler.enabled=native"]), ("compiled, plain operators", ["compiler.enabled=compiled", "compiler.fused_ops=off", "compiler.graph=off"]),
            ("compiled", ["compiler.enabled=compiled", "compiler.fused_ops=on", "compiler.graph=off"]),
        ]:
            if engine == "native" and not args.native:
                continue
            found = of_step(case, args.kiln, settings, f"steps-{case[0]}")
            count, read, written = (sum(entry[i] for entry in found.values()) for i in range(3))
            cells = []
            for _, bandwidth, bf16, tf32 in GPUS:
                peak = bf16 if case[6] == "bf16" else tf32
                cells.append(f"{(read + written) / bandwidth * 1e3:.1f}, {flops(case) / peak * 1e3:.1f}, {count * args.launch_us / 1e3:.1f}")
            print(f"| {case[0]} | {engine} | {count} | {len(found)} | {read / 1e9:.2f} | {written / 1e9:.2f} | {' | '.join(cells)} |", flush=True)
            rows.append({"case": case[0], "engine": engine, "kernels": found})
            (args.out / "steps.json").write_text(json.dumps(rows, indent=1))
    print("\nBy kind, launches and GB read and written:\n\n| case | engine | kind | launches | GB read | GB written |\n| --- | --- | --- | ---: | ---: | ---: |")
    for row in rows:
        kinds = defaultdict(lambda: [0, 0, 0])
        for kernel, entry in row["kernels"].items():
            kinds[kind_of(kernel, own)] = [a + b for a, b in zip(kinds[kind_of(kernel, own)], entry)]
        for kind, (count, read, written) in sorted(kinds.items(), key=lambda item: -(item[1][1] + item[1][2])):
            print(f"| {row['case']} | {row['engine']} | {kind} | {count} | {read / 1e9:.2f} | {written / 1e9:.2f} |")
    print("\nThe kernels with the most bytes:\n\n| case | engine | kernel | launches | GB read | GB written |\n| --- | --- | --- | ---: | ---: | ---: |")
    for row in rows:
        for kernel, (count, read, written) in sorted(row["kernels"].items(), key=lambda item: -(item[1][1] + item[1][2]))[:6]:
            print(f"| {row['case']} | {row['engine']} | `{kernel}` | {count} | {read / 1e9:.2f} | {written / 1e9:.2f} |")


args.out.mkdir(parents=True, exist_ok=True)
{"ptxas": ptxas, "steps": steps}[args.what]()
