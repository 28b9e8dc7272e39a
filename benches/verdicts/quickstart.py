"""Holds `kiln compare configs/quickstart.toml` against two trainings by hand; see run.sh."""

import argparse
import json
import pathlib
import sys
import tempfile
import time

from common import destination, heading, kiln, machine, write

CONFIG = "configs/quickstart.toml"
LIMIT = 0.05


def by_hand(mode, folder):
    """The run's own summary and its largest memory."""
    began = time.perf_counter()
    kiln("train", CONFIG, "--compiler", mode, "--set", f"run.output_dir={folder}")
    seconds = time.perf_counter() - began
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = next(row for row in rows if "train_runtime" in row)
    return {
        "step ms": summary["steady_step_ms"],
        "tokens/s": summary["steady_tokens_per_second"],
        "peak MiB": max(row["peak_mib"] for row in rows if "peak_mib" in row and "loss" in row),
        "billable s": seconds,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out")
    args = parser.parse_args()
    result = {"schema": "kiln.verdicts-quickstart/1", "machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        hand = {mode: by_hand(mode, folder / mode) for mode in ("native", "compiled")}
        began = time.perf_counter()
        kiln("compare", CONFIG, "--steps", args.steps, "--repeats", args.repeats, "--out", folder / "compare")
        result["compare_seconds"] = time.perf_counter() - began
        report = json.loads((folder / "compare/report.json").read_text(encoding="utf-8"))
    names = {"step ms": "step_ms_p50", "tokens/s": "tokens_per_s", "peak MiB": "peak_mib", "billable s": "billable_seconds"}
    arms = {arm["name"]: {name: arm[key] for name, key in names.items()} for arm in report["arms"]}
    hand_speedup = hand["native"]["step ms"] / hand["compiled"]["step ms"]
    speedup = report["comparisons"][0]["speedup"]
    result |= {"by_hand": hand, "compare": arms, "speedup": speedup, "speedup_by_hand": hand_speedup,
               "load_average_after": machine()["load_average"]}

    lines = heading("kiln compare configs/quickstart.toml against two trainings by hand", result["machine"])
    lines += [f"`benches/verdicts/run.sh quickstart`: {args.repeats} runs of {args.steps} steps an arm, "
              f"{result['compare_seconds']:.0f} s in all; by hand all 300 steps. A hand-run figure is that of the run's summary "
              "(medians over log windows", "of 10 steps); its billable seconds are those of the whole process.", "",
              "| | by hand | kiln compare | difference |", "| --- | ---: | ---: | ---: |"]
    worst = 0.0

    def row(name, by_hand, compared, counts):
        nonlocal worst
        difference = compared / by_hand - 1
        worst = max(worst, abs(difference)) if counts else worst
        lines.append(f"| {name} | {by_hand:.3f} | {compared:.3f} | {difference:+.1%} |")

    for mode, figures in hand.items():
        for name, value in figures.items():
            # Memory includes that of evaluation and checkpoints, which a comparison has in its first repeat only, and billable
            # seconds are extrapolated: shown, not promised.
            row(f"{mode}, {name}", value, arms[mode][name], name in ("step ms", "tokens/s"))
    row("speed-up", hand_speedup, speedup["ratio"] if speedup else float("nan"), speedup is not None)
    kept = worst <= LIMIT and speedup is not None
    lines += ["", f"Step times, tokens per second and speed-up differ by {worst:.1%} at most; promised are {LIMIT:.0%}."]
    write(destination(args.out, "verdicts-quickstart"), result, lines)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
