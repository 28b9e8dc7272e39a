"""Counts the verdicts of `kiln compare` on arms whose difference is known; see run.sh."""

import argparse
import hashlib
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from common import KILN, NO_DROPOUT_AND_DATA, ROOT, destination, heading, kiln, machine, write

HERE = pathlib.Path(__file__).resolve().parent
# A small GPT-2 on the bytes of Kiln's own source, tokenised here so that runs start at once; a step takes some 20 ms.
CONFIG = """[model]
kind = "gpt2"
n_layer = 2
n_head = 2
n_embd = 64
n_positions = 64
vocab_size = 256
""" + NO_DROPOUT_AND_DATA + """[trainer]
max_steps = 400
per_device_train_batch_size = 8
learning_rate = 1e-3
save_strategy = "no"
[compiler]
enabled = false
verify = "off"            # the arm that stands in for compiled is native: there is nothing to verify
[device]
kind = "cpu"
"""
BLOCK = 64


def write_inputs(folder):
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "src").rglob("*.rs")))
    rows = [list(text[at:at + BLOCK]) for at in range(0, min(len(text), 4000 * BLOCK) - BLOCK, BLOCK)]
    with open(folder / "data.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"input_ids": row}) + "\n" for row in rows)
    (folder / "config.toml").write_text(f"[run]\noutput_dir = \"{folder / 'run'}\"\n" + CONFIG.replace(
        '"data.jsonl"', f'"{folder / "data.jsonl"}"'), encoding="utf-8")


def trial(folder, slowdown):
    """One comparison of native with itself, slowed down: what was said of the pair, and of native with itself."""
    log, out = folder / "planted", folder / "compare"
    shutil.rmtree(out, ignore_errors=True)
    log.unlink(missing_ok=True)
    env = {"SLOWDOWN": str(slowdown), "SLOWDOWN_LOG": str(log)}
    began = time.perf_counter()
    kiln("compare", folder / "config.toml", "--out", out, "--compiled-program", HERE / "slow.py", env=env)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    comparison, noise = report["comparisons"][0], report["noise"]
    planted = [list(map(float, line.split())) for line in log.read_text().splitlines()] if log.exists() else []
    ran, stopped = (sum(row[i] for row in planted) for i in (0, 1))
    return {
        "verdict": comparison["verdict"], "reason": comparison["reason"], "speedup": comparison["speedup"],
        "steps": report["arms"][0]["windows"] // report["arms"][0]["repeats"], "noise_verdict": noise["verdict"], "noise": noise["speedup"],
        "planted": stopped / ran if ran else 0.0,
        "step_ms": [arm["step_ms_p50"] for arm in report["arms"]],
        "seconds": time.perf_counter() - began,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=0.1)
    parser.add_argument("--out")
    args = parser.parse_args()
    out = destination(args.out, "verdicts")
    result = {"schema": "kiln.verdicts/2", "machine": machine(), "config": CONFIG, "slowdown": args.slowdown,
              "binary": hashlib.sha256(pathlib.Path(KILN).read_bytes()).hexdigest()}
    # The counts of an earlier call with this binary are kept, so the machine need not be free for the whole time at once.
    if out.exists():
        before = json.loads(out.read_text(encoding="utf-8"))
        if any(before[key] != result[key] for key in ("schema", "config", "slowdown", "binary")):
            sys.exit(f"error: {out} is of another binary or of other settings: remove it, or name another file with --out")
        result = before
    same = "no measurable difference"
    cases = [("equal", 0.0, same, 0.95), ("slower", args.slowdown, "slower", 0.9)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_inputs(folder)
        # In turn, so that what happens to the machine happens to both.
        for index in range(len(result.get("equal", [])), args.runs):
            for name, slowdown, *_ in cases:
                one = trial(folder, slowdown)
                result.setdefault(name, []).append(one)
                ratio = one["speedup"] or {"ratio": float("nan"), "low": float("nan"), "high": float("nan")}
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                print(f"{name} {index + 1}/{args.runs}: {one['verdict']} {ratio['ratio']:.3f} ({ratio['low']:.3f} to "
                      f"{ratio['high']:.3f}); native again: {one['noise_verdict']}; {one['seconds']:.1f} s", flush=True)
    result["load_average_after"] = machine()["load_average"]

    steps = sorted(one["steps"] for name, *_ in cases for one in result[name])
    lengths = f"{steps[0]} to {steps[-1]}"
    lines = heading("The verdicts of kiln compare on arms whose difference is known", result["machine"])
    lines += [f"`benches/verdicts/run.sh`: real comparisons (release build, compare's defaults: 10 repeats of {lengths} steady steps) of native",
              "with itself, and with itself slowed down from outside by stopping its process.", "",
              "| arms | comparisons | said as it is | wanted | native again: no difference | medians of the ratios |",
              "| --- | ---: | ---: | ---: | ---: | --- |"]
    kept = True
    for name, slowdown, wanted, share in cases:
        trials = result[name]
        right = sum(one["verdict"] == wanted for one in trials)
        noise = sum(one["noise_verdict"] == same for one in trials)
        ratios = [one["speedup"]["ratio"] for one in trials if one["speedup"]]
        planted = statistics.mean(one["planted"] for one in trials)
        text = "equal" if slowdown == 0 else f"stopped for {planted:.1%} of the time it ran"
        shown = f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})" if ratios else "-"
        least = share * len(trials)
        kept &= right >= least
        lines.append(f"| {text} | {len(trials)} | {right} | {least:g} | {noise} | {shown} |")
    seconds = sum(one["seconds"] for name, *_ in cases for one in result[name])
    steps = [ms for name, *_ in cases for one in result[name] for ms in one["step_ms"][:1] if ms]
    lines += ["", f"A native step takes {statistics.median(steps):.1f} ms (median); all of it took {seconds / 60:.1f} minutes. "
              "The ratio is native's time over the other's."]
    write(out, result, lines)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
