#!/usr/bin/env python3
"""The time from SIGTERM to a whole checkpoint, by the size of the model, in both modes, on the CPU:

    benches/signal_to_checkpoint.py [--models tiny,6x384,12x768] [--modes native,compiled] [--repeats 5] [--out FILE.json]

trains a GPT-2 with random weights on random tokens, sends SIGTERM at a random moment of a step after the third one, and
measures until the folder of the checkpoint has its name, which it gets when it is whole, and until the process has ended.
That time holds the rest of the step, the save and fsync; what it may be at most is a step and a save. Writes
benches/results/DATE-signal-to-checkpoint.json and .md unless --out says otherwise. Needs a release build of kiln ($KILN, else
target/release/kiln) and Python 3.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("KILN", str(pathlib.Path(__file__).resolve().parents[1] / "target/release/kiln"))
sys.path.insert(0, str(pathlib.Path(__file__).parent / "verdicts"))
from common import KILN, destination, machine, write  # noqa: E402

# The commit and the build of the kiln that is measured, as its runs say.
BUILD = {}
# Name: layers, width, heads, vocabulary, tokens of a sequence, micro-batch.
SHAPES = {
    "tiny": (2, 64, 2, 1024, 64, 4),
    "6x384": (6, 384, 6, 8192, 128, 4),
    "12x768": (12, 768, 12, 50257, 128, 1),
}


def config(shape):
    layers, width, heads, vocabulary, tokens, batch = SHAPES[shape]
    return f"""[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "gpt2"
n_layer = {layers}
n_embd = {width}
n_head = {heads}
n_positions = {tokens}
vocab_size = {vocabulary}
[data]
task = "clm"
format = "tokenized"
train = ["data.jsonl"]
block_size = {tokens}
[trainer]
max_steps = 100000
per_device_train_batch_size = {batch}
learning_rate = 1e-4
lr_scheduler_type = "constant"
logging_steps = 1
save_strategy = "no"
[device]
kind = "cpu"
"""


def write_inputs(folder, shape):
    draw = random.Random(0)
    vocabulary, tokens = SHAPES[shape][3:5]
    with open(folder / "data.jsonl", "w", encoding="utf-8") as file:
        for _ in range(256):
            file.write(json.dumps({"input_ids": [draw.randrange(1, vocabulary) for _ in range(tokens)]}) + "\n")
    (folder / "config.toml").write_text(config(shape), encoding="utf-8")


def stop(folder, mode, draw):
    """Trains, sends SIGTERM, and returns the times in seconds and the size of the checkpoint in bytes."""
    command = [KILN, "train", "config.toml", "--compiler", mode]
    environment = {**os.environ, "KILN_CACHE": str(folder / "cache")}
    child = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    rows = []
    for line in child.stdout:
        if "'loss'" in line:
            rows.append(time.perf_counter())
            if len(rows) == 4:
                break
    else:
        sys.exit(f"error: kiln ended before its fourth row:\n{child.stderr.read()}")
    step = statistics.median(b - a for a, b in zip(rows, rows[1:]))
    time.sleep(draw.random() * step)
    sent = time.perf_counter()
    child.send_signal(signal.SIGTERM)
    # A pipe that nobody reads would stop it.
    threading.Thread(target=child.stdout.read, daemon=True).start()
    checkpoints = folder / "run/checkpoints"
    found = None
    while found is None:
        found = next(iter(checkpoints.glob("step-*")), None) if checkpoints.is_dir() else None
        if found is None and child.poll() is not None:
            sys.exit(f"error: kiln ended with {child.returncode} and no checkpoint")
        time.sleep(0.001)
    whole = time.perf_counter() - sent
    code = child.wait()
    ended = time.perf_counter() - sent
    if code != 143:
        sys.exit(f"error: expected exit code 143, got {code}:\n{child.stderr.read()}")
    size = sum(file.stat().st_size for file in found.rglob("*") if file.is_file())
    made = json.loads((folder / "run/provenance.json").read_text(encoding="utf-8"))
    BUILD.update({"kiln_commit": made["commit"], "kiln_build": made["build"]})
    return {"step_s": step, "whole_s": whole, "ended_s": ended, "checkpoint_bytes": size}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--modes", default="native,compiled")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    result = {"schema": "kiln.signal-to-checkpoint/1", "machine": machine(), "cases": []}
    flags = next((line for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("flags")), ": ").split(": ")[1].split()
    result["machine"]["flags"] = [flag for flag in flags if flag.startswith(("avx", "amx", "fma"))]
    result["machine"]["kernel"] = platform.release()
    draw = random.Random(0)
    for shape in args.models.split(","):
        for mode in args.modes.split(","):
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                write_inputs(folder, shape)
                runs = [stop(folder, mode, draw) for _ in range(args.repeats)]
            result["cases"].append({"model": shape, "mode": mode, "runs": runs})
            print(shape, mode, [round(run["whole_s"], 3) for run in runs], flush=True)
    result["machine"].update(BUILD)
    result["machine"]["load_average_at_end"] = os.getloadavg()[0]
    lines = [f"# From SIGTERM to a whole checkpoint, {result['machine']['processor']}, {result['machine']['date'][:10]}", "",
             f"`benches/signal_to_checkpoint.py`, a {result['machine']['kiln_build']} build of commit "
             f"{result['machine']['kiln_commit']}, {result['machine']['threads']} threads, "
             f"{' '.join(result['machine']['flags'])}. Load average {result['machine']['load_average']:.1f} at the start and "
             f"{result['machine']['load_average_at_end']:.1f} at the end.", "",
             "GPT-2 with random weights, f32, AdamW. A checkpoint holds weights and both moments. SIGTERM comes at a random moment of a "
             f"step; median and maximum of {args.repeats} runs each, in milliseconds.", "",
             "| model | tokens x batch | mode | checkpoint, MiB | step | signal to whole checkpoint | maximum | to the end of the process |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for case in result["cases"]:
        def figure(name, of):
            return 1000 * of(run[name] for run in case["runs"])
        tokens, batch = SHAPES[case["model"]][4:]
        lines.append(f"| {case['model']} | {tokens} x {batch} | {case['mode']} | {case['runs'][0]['checkpoint_bytes'] / 2**20:.1f} | "
                     f"{figure('step_s', statistics.median):.0f} | {figure('whole_s', statistics.median):.0f} | "
                     f"{figure('whole_s', max):.0f} | {figure('ended_s', statistics.median):.0f} |")
    write(destination(args.out, "signal-to-checkpoint"), result, lines)


if __name__ == "__main__":
    main()
