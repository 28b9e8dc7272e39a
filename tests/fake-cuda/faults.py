#!/usr/bin/env python3
"""Faults of a CUDA driver, one run of kiln for each, on the emulated device:

    . FOLDER/env; tests/fake-cuda/faults.py KILN OUT [--only PATTERN] [--native KILN_NATIVE]

A run without a fault tells how often each call of the driver is made; then the calls that matter fail at their first, their middle
and their last call, and every allocation fails in turn. Each run must end by itself, with the exit code of its fault and one error
message, or recover and end with 0. Prints a table, writes it to OUT/faults.json, and exits with 1 where a run did something else.
OUT keeps compiled kernels, so that a second call is quick.
"""
import argparse, json, os, re, shutil, subprocess, sys, time
from pathlib import Path

CONFIG = """
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "gpt2"
n_layer = 1
n_head = 2
n_embd = 48
n_positions = 16
vocab_size = 48
[data]
task = "clm"
format = "tokenized"
train = "data.jsonl"
[trainer]
max_steps = 6
per_device_train_batch_size = 4
learning_rate = 1e-3
logging_steps = 2
eval_strategy = "no"
save_strategy = "no"
[device]
kind = "cuda"
[compiler]
fused_ops = "on"
"""

parser = argparse.ArgumentParser()
parser.add_argument("kiln", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--only", default="", help="faults whose name matches this regular expression")
parser.add_argument("--native", type=Path, help="the native engine, of which a few faults are tried as well")
parser.add_argument("--quick", action="store_true", help="only what fails before the first step: seconds")
parser.add_argument("--timeout", type=float, default=120, help="seconds after which a run counts as hung")
args = parser.parse_args()
if "FAKE_CUDA_RUN" not in os.environ:
    sys.exit("faults.py: not on the emulated device; . FOLDER/env (see README.md)")
# Made absolute before the runs, which have folders of their own.
args.kiln, args.out = args.kiln.resolve(), args.out.resolve()
native = args.native and args.native.resolve()

DEVICE = {
    "KILN_CACHE": str(args.out / "cache"), "FAKE_CUDA_DIR": str(args.out / "kernels"), "FAKE_CUDA_TUNE": "first",
    "CUBECL_AUTOTUNE_LEVEL": "minimal", "RUST_BACKTRACE": "0", "NO_COLOR": "1",
}
# A capability without tensor cores, and no compiler of NVIDIA's: kernels are ready soonest.
PLAIN = {"FAKE_CUDA_CC": "61", "FAKE_CUDA_NVRTC": "", "FAKE_CUDA_PTXAS": ""}

work = args.out / "work"
work.mkdir(parents=True, exist_ok=True)
(work / "config.toml").write_text(CONFIG)
rows_of = lambda name, lengths: (work / name).write_text("".join(
    json.dumps({"input_ids": [(i * 7 + j * 3 + j * j) % 48 for j in range(length)]}) + "\n" for i, length in enumerate(lengths)))
rows_of("data.jsonl", [13] * 24)
rows_of("growing.jsonl", [13] * 12 + [250] * 12) # the fourth step is the first of long rows


def run(name, variables, settings=(), program=args.kiln, plain=True, timeout=args.timeout, keeps=False):
    """Exit code (none: it hung), seconds, stderr, stdout and the driver's log of a run with `variables`."""
    log = work / f"{name}.log"
    log.unlink(missing_ok=True)
    environment = {**os.environ, **DEVICE, **(PLAIN if plain else {}), "FAKE_CUDA_LOG": str(log), **variables}
    if native:
        environment["KILN_NATIVE"] = str(native)
    command = [str(program), "train", "config.toml", "--set", f"run.output_dir={name}"]
    for setting in settings:
        command += ["--set", setting]
    shutil.rmtree(work / name, ignore_errors=True)
    started = time.monotonic()
    try:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=timeout)
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = None, (late.stdout or b"").decode(), (late.stderr or b"").decode()
    (work / f"{name}.out").write_text(out)
    (work / f"{name}.err").write_text(err)
    if not keeps:
        shutil.rmtree(work / name, ignore_errors=True)
    return code, time.monotonic() - started, err, out, log.read_text() if log.exists() else ""


rows = []


def fault(name, expected, variables, says="", **more):
    """Runs with a fault; `expected` are the exit codes that are right, and `says` a regular expression of the message."""
    if args.only and not re.search(args.only, name):
        return
    code, seconds, err, out, log = run(name, variables, **more)
    lines = [line for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    injected = "FAKE_CUDA_FAIL" not in variables or "INJECTED" in log
    wrong = []
    if code is None:
        wrong.append("hung")
    elif code not in expected:
        wrong.append(f"exit code {code}")
    if code not in (0, None) and len(errors) != 1:
        wrong.append(f"{len(errors)} error messages")
    if "panicked" in err:
        wrong.append(f"{err.count('panicked')} panics")
    if len(lines) > 8:
        wrong.append(f"{len(lines)} lines on stderr")
    if code not in (0, None) and says and not re.search(says, err):
        wrong.append("another message")
    if code == 0 and not injected:
        wrong.append("the fault did not occur")
    halved = "half the micro-batch" in out
    message = (errors or [""])[-1] if code else "halved the micro-batch" if halved else "ended as usual"
    row = {"fault": name, "exit_code": code, "seconds": round(seconds, 1), "message": message, "wrong": wrong}
    rows.append(row)
    print(f"{'WRONG ' + ', '.join(wrong) if wrong else 'ok':30} {name:34} {code!s:>4} {seconds:5.1f} s  {message[:160]}", flush=True)


def calls(settings=()):
    """How often each call of the driver is made by a run without faults."""
    code, _, err, _, log = run("plain", {}, settings, timeout=900)
    if code != 0:
        sys.exit(f"faults.py: a run without a fault ends with {code}: {err}")
    return {name: int(count) for count, name in re.findall(r"CALLS +(\d+) (\w+)", log)}


def figures(name):
    """The losses of a run that was kept."""
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if isinstance(line.get("loss"), float)]


def memory_in_the_middle(name, settings, where):
    """Rows that grow in the middle of a run, in memory for half a micro-batch of them: the run halves it and computes what it would have.
    Compiled, the warm-up meets the longest rows before the first step; natively there is no warm-up, and that is the fourth step. `where` is how
    the message begins.
    Not for captured steps: with so small a model pages of 8 MiB take as much for half a micro-batch."""
    if args.only and not re.search(args.only, name):
        return
    settings = [*settings, 'data.train="growing.jsonl"', 'data.sampler="sequential"', "model.n_positions=256", "trainer.logging_steps=1",
                *(f"model.{part}_pdrop=0.0" for part in ["resid", "embd", "attn"])]
    wrong = []
    code, seconds, err, out, log = run(f"{name}-enough", {}, settings, timeout=900, keeps=True)
    pools = [json.loads(line).get("reserved_mib") for line in (work / f"{name}-enough/metrics.jsonl").read_text().splitlines()] if code == 0 else []
    most = max((size for size in pools if isinstance(size, (int, float))), default=0)
    if code != 0 or not most:
        wrong.append(f"with enough memory it ends with {code}")
    else:
        expected = figures(f"{name}-enough")
        code, seconds, err, out, log = run(name, {"FAKE_CUDA_MEMORY": f"{int(most * 0.8)}M"}, settings, timeout=900, keeps=True)
        halved = re.search(f"out of memory: {where}.*half the micro-batch", out + err)
        apart = max((abs(a / b - 1) for a, b in zip(figures(name), expected)), default=1.0) if code == 0 else None
        if code != 0:
            wrong.append(f"exit code {code}")
        elif not halved:
            wrong.append("the micro-batch was not halved where it was expected")
        elif len(figures(name)) != len(expected) or apart > 1e-4:
            wrong.append(f"losses {apart:.1e} apart")
        if "panicked" in err:
            wrong.append(f"{err.count('panicked')} panics")
    message = next((line for line in (out + err).splitlines() if "half the micro-batch" in line), (err.splitlines() or [""])[-1])
    rows.append({"fault": name, "exit_code": code, "seconds": round(seconds, 1), "message": message, "wrong": wrong})
    print(f"{'WRONG ' + ', '.join(wrong) if wrong else 'ok':30} {name:34} {code!s:>4} {seconds:5.1f} s  {message[:160]}", flush=True)


def finish():
    (args.out / "faults.json").write_text(json.dumps(rows, indent=1))
    bad = [row for row in rows if row["wrong"]]
    print(f"{len(rows)} faults, {len(bad)} of them end otherwise than they should")
    sys.exit(1 if bad else 0)


compiled = ["compiler.graph=off"]

# Before the first step.
fault("no-device", [2], {"FAKE_CUDA_DEVICES": "0"}, "no such device|CUDA_ERROR_NO_DEVICE")
fault("init-999", [2], {"FAKE_CUDA_FAIL": ",".join(f"cuInit:{n}:999" for n in range(1, 9))}, "CUDA_ERROR_UNKNOWN")
empty = work / "no-library"
empty.mkdir(exist_ok=True)
fault("no-driver", [2], {"LD_LIBRARY_PATH": str(empty)}, "libcuda")
library = Path(next(part for part in os.environ["LD_LIBRARY_PATH"].split(":") if Path(part, "libcuda.so.1").exists()))
(empty / "driver").mkdir(exist_ok=True)
(empty / "driver/libcuda.so.1").unlink(missing_ok=True)
(empty / "driver/libcuda.so.1").symlink_to(library / "libcuda.so.1")
fault("no-nvrtc", [2], {"LD_LIBRARY_PATH": str(empty / "driver")}, "NVRTC")
fault("no-headers", [2], {"CUDA_PATH": str(empty)}, "headers|cuda_fp16.h")
fault("capability-below-nvrtc", [2], {"FAKE_CUDA_CC": "61"}, "capability 6.1", plain=False)
fault("old-driver", [2], {"FAKE_CUDA_DRIVER": "11040"}, "11.4")
fault("driver-older-than-nvrtc", [2], {"FAKE_CUDA_DRIVER": "12080", "FAKE_CUDA_CC": "90"}, "12.8", plain=False)
fault("third-of-two-devices", [2], {"FAKE_CUDA_DEVICES": "2"}, "2 cuda device", settings=["device.index=2"])
fault("no-kernel-loads", [7], {"FAKE_CUDA_FAIL": ",".join(f"cuModuleLoadData:{n}:222" for n in range(1, 400))}, settings=compiled)
fault("bf16-below-8.0", [2], {}, "does not compute in bf16", settings=["precision=bf16"])
fault("memory-3M", [4], {"FAKE_CUDA_MEMORY": "3M"}, "out of memory", settings=compiled)
fault("no-pinned-memory", [4], {"FAKE_CUDA_FAIL": "cuMemAllocHost:1:2"}, "out of memory", settings=compiled)
fault("first-launch-700", [7], {"FAKE_CUDA_FAIL": "cuLaunchKernel:1:700"}, "CUDA_ERROR_ILLEGAL_ADDRESS|status 700", settings=compiled)
if args.quick:
    finish()

calls(compiled)  # kernels are compiled, and the counts of the next run are those of every later one
counts = calls(compiled)
fault("second-of-two-devices", [0], {"FAKE_CUDA_DEVICES": "2"}, settings=["device.index=1"])

# Memory.
for size in ["1M", "5M", "9M", "12M", "16M"]:
    fault(f"memory-{size}", [4] if size in ("1M", "5M") else [0, 4], {"FAKE_CUDA_MEMORY": size}, "out of memory", settings=compiled)
for call in ["cuMemAlloc", "cuMemAllocAsync", "cuMemAllocHost"]:
    for nth in range(1, counts.get(call, 0) + 1):
        fault(f"{call}-{nth}-oom", [0, 4], {"FAKE_CUDA_FAIL": f"{call}:{nth}:2"}, "out of memory", settings=compiled)
memory_in_the_middle("memory-in-the-middle", compiled, "warm-up")

# Faults of calls: sticky ones (700, 719), launches, copies, a device that vanishes (46: unavailable; 101: no such device).
for call, code in [
    ("cuLaunchKernel", 700), ("cuLaunchKernel", 719), ("cuLaunchKernel", 701), ("cuMemcpyDtoHAsync", 700), ("cuMemcpyHtoDAsync", 719),
    ("cuMemcpyDtoHAsync", 46), ("cuEventSynchronize", 700), ("cuEventRecord", 999), ("cuModuleLoadData", 700), ("cuCtxSetCurrent", 101),
    ("cuMemcpy2DAsync", 1), ("cuLaunchKernel", 101),
]:
    n = counts.get(call, 0)
    for place, nth in sorted({1: "first", (n + 1) // 2: "middle", n: "last"}.items()):
        if place > 0:
            # One launch that fails may be a candidate of autotune's, which takes another; the last may be after the last value; events
            # that are not recorded are those of measurements.
            recovers = code in (701, 1) or call == "cuEventRecord" or (code not in (700, 719) and nth == "last")
            fault(f"{call}-{code}-{nth}", [7, 0] if recovers else [7], {"FAKE_CUDA_FAIL": f"{call}:{place}:{code}"}, settings=compiled)

# Captured steps.
captured = ["compiler.graph=on"]
for name, variables, codes in [
    ("capture-invalidated", {"FAKE_CUDA_FAIL": "cuStreamEndCapture:1:901"}, [0, 7]),
    ("capture-refused", {"FAKE_CUDA_FAIL": "cuStreamBeginCapture:1:901"}, [0, 7]),
    ("no-graphs", {"FAKE_CUDA_GRAPHS": "0"}, [0, 7]),
    ("capture-mode-refused", {"FAKE_CUDA_FAIL": "cuThreadExchangeStreamCaptureMode:1:999"}, [7]),
    ("graph-not-made", {"FAKE_CUDA_FAIL": "cuGraphInstantiate:1:2"}, [0, 4, 7]),
    ("graph-launch-700", {"FAKE_CUDA_FAIL": "cuGraphLaunch:2:700"}, [7]),
    ("graph-launch-719", {"FAKE_CUDA_FAIL": "cuGraphLaunch:3:719"}, [7]),
]:
    fault(name, codes, variables, settings=captured)

if native:
    for name, variables, codes in [
        ("native-launch-700", {"FAKE_CUDA_FAIL": "cuLaunchKernel:300:700"}, [7]),
        ("native-memory-3M", {"FAKE_CUDA_MEMORY": "3M"}, [4]),
        ("native-copy-719", {"FAKE_CUDA_FAIL": "cuMemcpyDtoHAsync:2:719"}, [7]),
    ]:
        fault(name, codes, variables, settings=["compiler.enabled=native"])
    memory_in_the_middle("native-memory-in-the-middle", ["compiler.enabled=native"], "(?!warm-up)")

finish()
