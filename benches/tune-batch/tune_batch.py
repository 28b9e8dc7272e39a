"""Searches the batch for a GPT-2 at block 512 in both modes and trains at what was found and at the next size; see run.sh."""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

from common import KILN, NO_DROPOUT_AND_DATA, ROOT, destination, heading, machine, write

# Small enough that 50 steps at the batches that fill the budget take minutes.
CONFIG = """[run]
output_dir = "run"
on_existing = "overwrite"
[model]
kind = "gpt2"
n_layer = 12
n_head = 1
n_embd = 64
n_positions = 512
vocab_size = 1024
""" + NO_DROPOUT_AND_DATA + """[trainer]
max_steps = 1000
per_device_train_batch_size = 8
learning_rate = 1e-3
logging_steps = 1
save_strategy = "no"
[device]
kind = "cpu"
"""
BLOCK = 512
EXAMPLES = 2048


def write_inputs(folder):
    """Random token ids: what they are changes neither memory nor time."""
    draw = random.Random(0)
    rows = ([draw.randrange(1, 1024) for _ in range(BLOCK)] for _ in range(EXAMPLES))
    with open(folder / "data.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"input_ids": row}) + "\n" for row in rows)
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")


def train(folder, mode, batch, steps):
    """Trains and measures the peak of the process from outside: the kernel's, of a child that has ended, in MiB."""
    code = ("import resource,subprocess,sys;c=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL).returncode;"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(c)")
    command = [KILN, "train", "config.toml", "--compiler", mode, "--stop-after", str(steps), "--set",
               f"trainer.per_device_train_batch_size={batch}"]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=folder, env=environment(folder), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"error: {mode} at batch {batch} ended with {done.returncode}:\n{done.stderr}")
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    trained = [row for row in rows if "loss" in row]
    whole = range(min(steps, EXAMPLES // batch))  # an epoch may end with a smaller batch
    assert len(trained) == steps and all(trained[i]["samples"] == (i + 1) * batch for i in whole), trained[-1]
    return {"batch": batch, "steps": steps, "peak_mib": int(done.stdout) / 1024, "own_peak_mib": trained[-1]["peak_mib"],
            "first_loss": trained[0]["loss"], "last_loss": trained[-1]["loss"], "seconds": time.perf_counter() - began}


def environment(folder):
    return {**os.environ, "KILN_CACHE": str(folder / "cache")}


def search(folder, mode, budget, more):
    command = [KILN, "tune-batch", "config.toml", "--mode", mode, "--memory-budget", budget, *more]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment(folder), text=True, stdout=subprocess.PIPE)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        sys.exit(f"error: kiln tune-batch ended with {done.returncode}")
    found = re.search(rf"^{mode}: (\d+) fit, (\d+) do not$", done.stdout, re.MULTILINE)
    if not found:
        sys.exit("error: the search did not come to a size that fails")
    return {"output": done.stdout.splitlines(), "seconds": time.perf_counter() - began,
            "batch": int(found[1]), "next": int(found[2])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", default="2GiB")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out")
    args, more = parser.parse_known_args()
    amount = re.fullmatch(r"([0-9.]+)(GiB|MiB)", args.budget) or sys.exit("error: --budget: expected 2GiB or 512MiB")
    budget = float(amount[1]) * {"GiB": 1024, "MiB": 1}[amount[2]]
    result = {"schema": "kiln.tune-batch/1", "machine": machine(), "config": CONFIG, "budget_mib": budget}
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_inputs(folder)
        # Where to begin: near what 2 GiB hold, so that few trials are made. It decides nothing but the time.
        for mode, start in [("native", 16), ("compiled", 64)]:
            begin = [] if "--start" in more else ["--start", str(start)]
            found = search(folder, mode, args.budget, [*begin, *more])
            found["trained"] = train(folder, mode, found["batch"], args.steps)
            found["trained_next"] = train(folder, mode, found["next"], 3)
            found["holds"] = found["trained"]["peak_mib"] <= budget < found["trained_next"]["peak_mib"]
            kept &= found["holds"]
            result[mode] = found
            print(f"{mode}: {args.steps} steps at {found['batch']} took {found['trained']['peak_mib']:.0f} MiB, 3 steps at "
                  f"{found['next']} {found['trained_next']['peak_mib']:.0f} MiB", flush=True)
    native, compiled = result["native"], result["compiled"]
    kept &= compiled["batch"] > native["batch"]
    result["seconds"] = sum(part["seconds"] for of in (native, compiled) for part in (of, of["trained"], of["trained_next"]))

    lines = heading(f"kiln tune-batch within {args.budget}: GPT-2, 512 tokens", result["machine"])
    lines += ["`benches/tune-batch/run.sh`: 12 layers x 64 wide, 1 head, vocabulary 1024, f32, AdamW, no dropout, release build.",
              "Peaks are the kernel's figures for the process (ru_maxrss).", "",
              "| | native | compiled |", "| --- | ---: | ---: |"]
    line = {mode: next((line for line in result[mode]["output"] if line.startswith("memory = ")), "-") for mode in
            ("native", "compiled")}
    rows = [("found", lambda of: str(of["batch"])),
            ("seconds of the search", lambda of: f"{of['seconds']:.0f}"),
            (f"peak of {args.steps} steps at it, MiB (budget {budget:.0f})", lambda of: f"{of['trained']['peak_mib']:.0f}"),
            ("seconds of them", lambda of: f"{of['trained']['seconds']:.0f}"),
            ("loss, first and last step", lambda of: f"{of['trained']['first_loss']:.3f}, {of['trained']['last_loss']:.3f}"),
            ("peak of 3 steps at the next size, MiB", lambda of: f"{of['trained_next']['peak_mib']:.0f} (batch {of['next']})"),
            ("holds", lambda of: "yes" if of["holds"] else "NO")]
    lines += [f"| {name} | {of(native)} | {of(compiled)} |" for name, of in rows]
    lines += ["", *(f"- {mode}: {text}" for mode, text in line.items()),
              f"- compiled finds {compiled['batch'] / native['batch']:.2f} times native's size; all of it took "
              f"{result['seconds'] / 60:.1f} minutes"]
    write(destination(args.out, "tune-batch"), result, lines)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
