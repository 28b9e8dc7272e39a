#!/usr/bin/env python3
"""Every test that wgpu has, on the emulated CUDA device, and runs through the binary at several capabilities:

    . FOLDER/env; tests/fake-cuda/checks.py OUT --compiled KILN [--native KILN_NATIVE] [--device TEST] [--oracle TEST] [--ops TEST] [--only PATTERN]

KILN is the compiled engine and KILN_NATIVE the native one, without which native mode on the device is left out; TEST are the binaries that `cargo test --no-run` names. Kernels are compiled for
the CPU alone unless --nvrtc is given: NVIDIA's compiler takes most of the time. Each check has --timeout seconds. A check that did not end
is said to have not ended. Appends to OUT/checks.jsonl as it goes, prints the Markdown table of a dated result, and exits with 1 where a
check failed.
"""
import argparse, json, os, re, shutil, subprocess, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--compiled", type=Path, required=True)
parser.add_argument("--native", type=Path)
parser.add_argument("--device", type=Path)
parser.add_argument("--oracle", type=Path)
parser.add_argument("--ops", type=Path)
parser.add_argument("--only", default="", help="checks whose name matches this regular expression")
parser.add_argument("--timeout", type=float, default=600)
parser.add_argument("--nvrtc", action="store_true", help="NVIDIA's compiler compiles every kernel too")
args = parser.parse_args()
if "FAKE_CUDA_RUN" not in os.environ:
    sys.exit("checks.py: not on the emulated device; . FOLDER/env (see README.md)")
for name in ["out", "compiled", "native", "device", "oracle", "ops"]:
    setattr(args, name, getattr(args, name) and getattr(args, name).resolve())
root = Path(__file__).resolve().parents[2]
work = args.out / "work"
work.mkdir(parents=True, exist_ok=True)
rows = []


def environment(capability):
    return {
        **os.environ, **({} if args.nvrtc else {"FAKE_CUDA_NVRTC": "", "FAKE_CUDA_PTXAS": ""}), "FAKE_CUDA_CC": str(capability),
        "FAKE_CUDA_DIR": str(args.out / "kernels"), "FAKE_CUDA_LOG": str(args.out / f"log-{capability}"), "FAKE_CUDA_TUNE": "first",
        "CUBECL_AUTOTUNE_LEVEL": "minimal", **({"KILN_NATIVE": str(args.native)} if args.native else {}), "KILN_CACHE": str(args.out / f"cache-{capability}"),
        "RUST_BACKTRACE": "0", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1",
    }


class Wrong(Exception):
    pass


def check(name, capability=90, native=False):
    """Runs the decorated function at once, and keeps what it returns as the check's figures."""
    def run(function):
        if not re.search(args.only, name) or (native and not args.native):
            return
        started = time.monotonic()
        try:
            state, figures = "passed", function(environment(capability)) or ""
        except Wrong as wrong:
            state, figures = "FAILED", str(wrong)
        except subprocess.TimeoutExpired:
            state, figures = "did not end", f"{args.timeout:.0f} s"
        row = {"check": name, "capability": capability / 10, "state": state, "figures": figures, "seconds": round(time.monotonic() - started, 1)}
        rows.append(row)
        with open(args.out / "checks.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{state:12} {row['seconds']:6.1f} s  {name} ({row['capability']}): {figures[:300]}", file=sys.stderr, flush=True)
    return run


def execute(command, env, cwd=work, codes=(0,)):
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode not in codes:
        raise Wrong(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout, done.stderr


# ---------------------------------------------------------------------------------------------------- the tests of the project

def tests(binary, kind, names, folder):
    for name in names:
        # Products of f32 on tensor cores are in TF32, for which most bounds of these tests are too narrow. 6.1 has no tensor cores.
        @check(f"{kind} {name}", 61 if kind in ("ops", "oracle") and not re.search("narrow|bf16", name) else 90)
        def _(env):
            # The tests keep kernels in cargo's target folder, TARGET/tmp/kernels; sources and kernels for the CPU go with them, as in .ci/run.
            kernels = binary.parents[2] / "tmp/kernels/emulated"
            if kind != "ops" and not kernels.is_dir():
                shutil.rmtree(kernels.parent, ignore_errors=True)
                kernels.mkdir(parents=True)
            if kind != "ops":
                env["FAKE_CUDA_DIR"] = str(kernels)
            env |= {"KILN_TEST_DEVICE": "cuda", "CARGO_MANIFEST_DIR": str(folder)}
            out, _ = execute([binary, name, "--exact", "--nocapture", "--test-threads", "1"], env, folder)
            if "1 passed" not in out:
                raise Wrong(f"no such test: {out[-300:]}")
            figures = re.findall(r"^(?:test \S+ \.\.\. )?(.+?): (\d\.?\d*e-?\d+)$", out, re.M)
            launched = re.findall(r"(\w+, \d micro-batches: \d+ launches a step)", out)
            return "; ".join([f"{what} {figure}" for what, figure in figures] + launched)


def named(binary):
    out = subprocess.run([str(binary), "--list"], capture_output=True, text=True).stdout
    return re.findall(r"^(\S+): test$", out, re.M)


if args.ops:
    tests(args.ops, "ops", named(args.ops), root / "models")
if args.oracle:
    tests(args.oracle, "oracle", named(args.oracle), root)
if args.device:
    tests(args.device, "device", named(args.device), root)

# ---------------------------------------------------------------------------------------------------- through the binary

TASKS = ["clm", "mlm", "sequence-classification", "regression", "question-answering", "token-classification", "multi-label-classification",
         "multiple-choice"]
GPT2 = 'kind = "gpt2"\nn_layer = 2\nn_head = 2\nn_embd = {width}\nn_positions = 64\nvocab_size = 64\nresid_pdrop = {dropout}\nembd_pdrop = {dropout}\nattn_pdrop = {dropout}\n'
BERT = ('kind = "bert"\nnum_hidden_layers = 2\nnum_attention_heads = 2\nhidden_size = {width}\nintermediate_size = 80\nmax_position_embeddings = 64\n'
        'vocab_size = 64\nhidden_dropout_prob = {dropout}\nattention_probs_dropout_prob = {dropout}\n')


def row_of(task, i, length):
    ids = [(i * 7 + j * 3 + j * j) % 59 + 5 for j in range(length - i % 3)]
    row = {"input_ids": ids}
    if task == "mlm":
        row["labels"] = [token if j % 3 == 0 else -100 for j, token in enumerate(ids)]
    elif task == "sequence-classification":
        row["labels"] = i % 3
    elif task == "regression":
        row["labels"] = i / 7
    elif task == "question-answering":
        row |= {"start_positions": i % 5, "end_positions": 5 + i % 4}
    elif task == "token-classification":
        row["labels"] = [token % 3 if j % 2 == 0 else -100 for j, token in enumerate(ids)]
    elif task == "multi-label-classification":
        row["labels"] = [i % 2, i // 2 % 2, 1]
    elif task == "multiple-choice":
        row = {"input_ids": [ids, ids[::-1], ids[:4]], "labels": i % 3}
    return row


def config(name, task, width=48, length=31, dropout=0.0, steps=6, padding="max_length"):
    """A folder with a config, and with weights that every device starts from."""
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "data.jsonl").write_text("".join(json.dumps(row_of(task, i, length)) + "\n" for i in range(24)))
    model = (GPT2 if task == "clm" else BERT).format(width=width, dropout=dropout)
    text = f"""[run]
output_dir = "run"
on_existing = "overwrite"
[model]
{{model}}
[data]
task = "{task}"
format = "tokenized"
train = "data.jsonl"
padding = "{padding}"
[trainer]
max_steps = {steps}
per_device_train_batch_size = 2
learning_rate = 1e-3
logging_steps = 1
eval_strategy = "no"
save_strategy = "no"
[device]
kind = "{{kind}}"
"""
    (folder / "config.toml").write_text(text.format(model=model, kind="cpu"))
    execute([args.compiled, "train", "config.toml", "--set", "run.output_dir=start", "--set", "trainer.max_steps=1", "--set",
             "trainer.learning_rate=1e-30", "--compiler", "native"], environment(90), folder)
    (folder / "config.toml").write_text(text.format(model='from = "start/model"', kind="cuda"))
    return folder


def figures(folder):
    """Losses and gradient norms of a run's steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines for key in ("loss", "grad_norm") if isinstance(line.get(key), float)]


def apart(a, b):
    if len(a) != len(b) or not a:
        raise Wrong(f"{len(a)} and {len(b)} figures")
    return max(abs(x - y) / max(abs(y), 1e-6) for x, y in zip(a, b))


def train(folder, env, name, *settings, codes=(0,)):
    words = [word for setting in settings for word in ("--set", setting)]
    return execute([args.compiled, "train", "config.toml", "--set", f"run.output_dir={name}", *words], env, folder, codes)


BOUNDS = {"f32": 1e-3, "bf16": 3e-2, "f16": 5e-3}
WAYS = [("native", ["compiler.enabled=native"]), ("compiled", ["compiler.enabled=compiled", "compiler.fused_ops=on", "compiler.graph=off"]),
        ("captured", ["compiler.enabled=compiled", "compiler.fused_ops=on", "compiler.graph=auto"])][0 if args.native else 1:]


def against_cpu(env, name, task, precisions, accumulation=(1,), **model):
    """Every way of the device against the CPU's native mode in the same precision."""
    folder, found = config(name, task, **model), []
    for precision in precisions:
        for steps in accumulation:
            same = [f"precision={precision}", f"trainer.gradient_accumulation_steps={steps}"]
            train(folder, env, "cpu", "device.kind=cpu", "compiler.enabled=native", *same)
            expected = figures(folder / "cpu")
            for way, settings in WAYS:
                out, _ = train(folder, env, "there", *settings, *same)
                captured = "is captured (" in out
                if way == "captured" and not captured:
                    raise Wrong(f"{precision}{f' x{steps}' if steps > 1 else ''}: no step was captured; before: {', '.join(found)}")
                by = apart(figures(folder / "there"), expected)
                found.append(f"{way} {precision}{f' x{steps}' if steps > 1 else ''} {by:.1e}")
                if by > BOUNDS[precision]:
                    raise Wrong(f"{found[-1]}, bound {BOUNDS[precision]:.0e}; before: {', '.join(found[:-1])}")
    return ", ".join(found)


for capability in [80, 90]:
    for width, length in [(32, 31), (48, 48), (96, 31)]:
        @check(f"language model, width {width}, rows of {length}", capability)
        def _(env):
            return against_cpu(env, f"clm-{width}-{capability}", "clm", ["f32", "bf16", "f16"], (1, 2), width=width, length=length)
for task in TASKS:
    @check(f"{task}, width 48, rows of 31", 80)
    def _(env):
        return against_cpu(env, f"task-{task}", task, ["f32", "bf16", "f16"])


@check("language model at capability 7.5, bf16 refused", 75)
def _(env):
    found = against_cpu(env, "turing", "clm", ["f32", "f16"])
    _, err = train(work / "turing", env, "bf16", "precision=bf16", codes=(2,))
    if "bf16" not in err or err.count("error:") != 1:
        raise Wrong(err)
    return found + "; bf16: " + next(line for line in err.splitlines() if "error:" in line)


@check("language model at capability 6.1, without tensor cores", 61)
def _(env):
    return against_cpu(env, "pascal", "clm", ["f32"])


for precision in ["f32", "bf16"]:
    @check(f"parity, {precision}", native=True)
    def _(env):
        folder = config(f"parity-{precision}", "clm")
        out, _ = execute([args.compiled, "parity", "config.toml", "--steps", "3", "--set", f"precision={precision}", "--set", "compiler.fused_ops=on"], env, folder)
        return next((line.strip() for line in out.splitlines()[::-1] if line.strip()), "")


@check("bisect", native=True)
def _(env):
    folder = config("bisect", "clm")
    out, _ = execute([args.compiled, "bisect", "config.toml", "--steps", "2", "--set", "compiler.fused_ops=on"], env, folder)
    return next((line.strip() for line in out.splitlines()[::-1] if line.strip()), "")


@check("verify-resume across modes", native=True)
def _(env):
    folder = config("resume", "clm", dropout=0.1)
    out, _ = execute([args.compiled, "verify-resume", "config.toml", "--modes", "--set", "compiler.fused_ops=on"], env, folder)
    return next((line.strip() for line in out.splitlines()[::-1] if line.strip()), "")


@check("soak: 200 captured steps with dropout, rows of two lengths")
def _(env):
    folder = config("soak", "clm", dropout=0.1, steps=200, width=32, length=13, padding="longest")
    out, _ = train(folder, env, "soak", "compiler.fused_ops=on", "trainer.logging_steps=10")
    lines = [json.loads(line) for line in (folder / "soak/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if isinstance(line.get("loss"), float)]
    memory = [line["reserved_mib"] for line in lines if isinstance(line.get("reserved_mib"), float)]
    if not losses[-1] < losses[0] - 0.5:
        raise Wrong(f"the loss does not fall: {losses}")
    if memory[-1] > memory[len(memory) // 2]:
        raise Wrong(f"memory grows: {memory}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}; pools {memory[0]:.0f} to {memory[-1]:.0f} MiB"


print("| check | capability | | seconds | figures |\n| --- | ---: | --- | ---: | --- |")
for row in rows:
    print(f"| {row['check']} | {row['capability']} | {row['state']} | {row['seconds']:.0f} | {row['figures'].splitlines()[0][:300] if row['figures'] else ''} |")
sys.exit(1 if any(row["state"] == "FAILED" for row in rows) else 0)
