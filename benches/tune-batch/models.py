"""The largest batches of known model shapes in a given memory, on the CPU, with random weights and random tokens:

    benches/tune-batch/models.py [--models gpt2,...] [--blocks 128,512] [--modes native,compiled] [--budgets 2GiB,4GiB]
                                 [--time-limit 10m] [--skip-found] [--no-next] [--table]

runs `kiln tune-batch` for each shape, block, mode and budget, the smallest first, beginning at the estimate of `kiln plan`, corrected
by what a batch of this shape (or of another one, where none was measured) took; adds what it found, every trial included, to
configs/measured/sizes.json (a search of the same machine, version and budget replaces an older one); and writes the table
configs/measured/README.md from that file. A cell that was not searched holds the estimate of `kiln plan`, marked as such. --table only
writes the table. --skip-found leaves out the cells whose batch and the next one the file has, --no-next the trial of a batch
beyond the one that is expected to be the largest, which halves the time. Needs a release build of kiln ($KILN, else
target/release/kiln) and Python 3.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = ROOT / "configs/measured/sizes.json"
TABLE = ROOT / "configs/measured/README.md"
KILN = os.environ.get("KILN", str(ROOT / "target/release/kiln"))
COLUMNS_GIB = [2, 4, 8, 16]
CACHE = tempfile.TemporaryDirectory() # the user's own is not touched
# The published shapes as [model] has them, and the task of the models' own training.
SHAPES = {
    "gpt2": ("clm", {"kind": "gpt2", "size": "small"}),
    "distilgpt2": ("clm", {"kind": "gpt2", "size": "distil"}),
    "bert-base-uncased": ("mlm", {"kind": "bert", "vocab_size": 30522}),
    "bert-base-cased": ("mlm", {"kind": "bert", "vocab_size": 28996}),
    "roberta-base": ("mlm", {"kind": "roberta", "vocab_size": 50265, "max_position_embeddings": 514,
                             "type_vocab_size": 1}),
    "distilbert-base-uncased": ("mlm", {"kind": "distilbert", "vocab_size": 30522}),
}


def config(name, block):
    task, model = SHAPES[name]
    fields = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    return f"""[run]
output_dir = "run"
on_existing = "overwrite"
[model]
{fields}
[data]
task = "{task}"
format = "tokenized"
train = ["data.jsonl"]
block_size = {block}
[trainer]
max_steps = 1000
per_device_train_batch_size = 2
per_device_eval_batch_size = 1
learning_rate = 5e-5
save_strategy = "no"
[device]
kind = "cpu"
"""


def write_data(path, task, block):
    """Random ids: what they are changes neither memory nor time. Of an MLM row 15 % carry labels, as masking has it."""
    draw = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(1024): # more than any of the batches
            ids = [draw.randrange(1000, 28000) for _ in range(block)]
            row = {"input_ids": ids}
            if task == "mlm":
                row["labels"] = [token if draw.random() < 0.15 else -100 for token in ids]
            file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def inputs(name, block):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_data(folder / "data.jsonl", SHAPES[name][0], block)
        (folder / "config.toml").write_text(config(name, block), encoding="utf-8")
        yield folder


def kiln(folder, *arguments, **more):
    return subprocess.run([KILN, *map(str, arguments)], cwd=folder, env={**os.environ, "KILN_CACHE": CACHE.name},
                          text=True, stderr=subprocess.PIPE, **more)


@functools.cache
def planned(name, block, mode, batch):
    """The peak that `kiln plan` estimates, in MiB."""
    with inputs(name, block) as folder:
        done = kiln(folder, "plan", "config.toml", "--set", f"compiler.enabled={json.dumps(mode == 'compiled')}", "--set",
                    f"trainer.per_device_train_batch_size={batch}", stdout=subprocess.PIPE)
    found = re.search(r"^memory +about (\d+) MiB", done.stdout, re.MULTILINE)
    return float(found[1]) if found else sys.exit(f"error: kiln plan: {done.stderr or done.stdout}")


def estimate(name, block, mode, budget):
    """The largest batch that `kiln plan` estimates to need no more than `budget` MiB, from 0."""
    fits, fails = 0, 1
    while planned(name, block, mode, fails) <= budget:
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if planned(name, block, mode, middle) <= budget else (fits, middle)
    return fits


def corrected(name, block, mode, rows, budget):
    """The largest batch that is expected to need no more than `budget` MiB, at least 1."""
    for shape in (name, *SHAPES):
        if fits := trials(rows_of(rows, shape, block, mode))[0]:
            batch, peak = max(fits.items())
            return max(1, estimate(name, block, mode, budget * planned(shape, block, mode, batch) / peak))
    return max(1, estimate(name, block, mode, budget))


def search(name, block, mode, rows, budget, args):
    """The result of `kiln tune-batch`, and whether not even one sequence fits; no result then, nor where the time was too short."""
    start = corrected(name, block, mode, rows, budget * 1024)
    print(f"== {name}, {block} tokens, {mode}, {budget:g} GiB, from {start}", flush=True)
    with inputs(name, block) as folder:
        done = kiln(folder, "tune-batch", "config.toml", "--mode", mode, "--memory-budget", f"{budget:g}GiB", "--start", start,
                    "--steps-per-trial", 2, "--time-limit", args.time_limit, "--out", "found.json",
                    *(["--max", start] if args.no_next else []))
        if done.returncode == 0:
            return json.loads((folder / "found.json").read_text(encoding="utf-8")) | {"shape": name}, False
    print(done.stderr, end="", flush=True)
    if done.returncode != 4 and "time limit" not in done.stderr:
        sys.exit(f"error: kiln tune-batch ended with {done.returncode}")
    return None, done.returncode == 4


def rows_of(rows, name, block, mode):
    return [row for row in rows if row.get("shape") == name and (row["key"]["block_size"], row["key"]["mode"]) == (block, mode)]


def trials(rows):
    """Batch -> peak in MiB of every trial that ran; and batch -> budget in MiB of every one that was over it."""
    fits, over = {}, {}
    for row in rows:
        if too_small := row.get("too_small_mib"):
            over[1] = max(over.get(1, 0), too_small)
        for trial in row["trials"]:
            match trial["outcome"]:
                case {"fits": figures}:
                    fits[trial["batch"]] = max(fits.get(trial["batch"], 0), figures["peak_mib"])
                case {"too_large": _}:
                    over[trial["batch"]] = max(over.get(trial["batch"], 0), row["budget_mib"])
    return fits, over


def known(rows, budget):
    """The largest batch that ran within `budget` MiB, 0 if none did, and those that did not."""
    fits, over = trials(rows)
    held = max((batch for batch, peak in fits.items() if peak <= budget), default=0)
    return held, [batch for batch, peak in fits.items() if peak > budget] + [batch for batch, limit in over.items() if limit >= budget]


def exact(rows, budget):
    """The largest batch within `budget` MiB where one machine ran it and not the next one, 0 if none fits; else None."""
    for device in sorted({row["key"]["device"] for row in rows}):
        held, failed = known([row for row in rows if row["key"]["device"] == device], budget)
        if failed and min(failed) == held + 1:
            return held
    return None


def cell(name, block, mode, rows, gib):
    """The largest batch in `gib`, marked by how it is known."""
    budget = gib * 1024
    largest = exact(rows, budget)
    if largest is not None:
        return str(largest or "none")
    held, failed = known(rows, budget)
    # Between what ran and what did not, the plan's estimate.
    batch = max(held, min([estimate(name, block, mode, budget), *(size - 1 for size in failed)]))
    return f"{held}+" if batch == held > 0 else f"~{batch or 'none'}"


def table(rows, devices):
    for name in SHAPES:
        for block in sorted({row["key"]["block_size"] for row in rows if row["shape"] == name}):
            for mode in ("native", "compiled"):
                if own := rows_of(rows, name, block, mode):
                    cells = " | ".join(cell(name, block, mode, own, gib) for gib in COLUMNS_GIB)
                    batch, peak = max(trials(own)[0].items())
                    off = f"{planned(name, block, mode, batch) / peak - 1:+.0%}"
                    machines = ", ".join(str(devices.index(device) + 1) for device in sorted({row["key"]["device"] for row in own}))
                    yield f"| {name} | {block} | {mode} | {cells} | {peak:.0f} MiB at {batch} | {off} | {machines} |"


def write_table(sizes):
    rows = [row for row in sizes if row.get("shape")]
    devices = sorted({row["key"]["device"] for row in rows})
    dates = sorted(row["date"][:10] for row in rows)
    searched = {row["budget_mib"] for row in rows} | {row["too_small_mib"] for row in rows if "too_small_mib" in row}
    budgets = sorted(budget / 1024 for budget in searched)
    have = {(row["shape"], row["key"]["block_size"], row["key"]["mode"]) for row in rows}
    left = [f"{name} ({block}, {mode})" for name in SHAPES for block in (128, 512) for mode in ("native", "compiled")
            if (name, block, mode) not in have]
    columns = [f"{gib} GiB" for gib in COLUMNS_GIB]
    text = ["<!-- Written by benches/tune-batch/models.py from sizes.json. -->", "# Largest batches of known model shapes, CPU", "",
            "Random weights of the published shapes and random tokens, f32, AdamW, no checkpoints. GPT-2 shapes train `clm`, the "
            "others `mlm` with labels at 15 % of the tokens. `kiln tune-batch` measures the peak of the whole process.", "",
            f"Machines: {'; '.join(f'{number}. {device}' for number, device in enumerate(devices, 1))}. Dates: {dates[0]} to {dates[-1]}. Budgets that were searched: "
            f"{', '.join(f'{budget:g} GiB' for budget in budgets)}.", "",
            "A number without a mark was measured: that batch ran within the memory and the next one did not. `+`: that batch ran, "
            "and the next one was not tried on the same machine. `none`: one sequence was tried and does not fit. `~`: nothing was run at this size; it is "
            "the estimate of `kiln plan`. The column plan has "
            "that estimate against the largest measured peak. `src/guide/batch_and_learning_rate.md` has SageMaker's figures for these "
            "shapes, which are of a GPU and in mixed precision.", "",
            f"| shape | tokens | mode | {' | '.join(columns)} | largest peak that was measured | plan | machine |",
            f"| --- | ---: | --- |{' ---: |' * len(columns)} ---: | ---: | ---: |", *table(rows, devices), "",
            f"Not measured, or not within the time of the search: {', '.join(left) or 'nothing'}.", ""]
    TABLE.write_text("\n".join(text), encoding="utf-8")


def gibibytes(text):
    found = re.fullmatch(r"([0-9.]+)GiB", text)
    return float(found[1]) if found else sys.exit(f"error: --budgets: expected such as 2GiB,4GiB, got {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--blocks", default="128,512")
    parser.add_argument("--modes", default="native,compiled")
    parser.add_argument("--budgets", default="2GiB,4GiB")
    parser.add_argument("--time-limit", default="10m")
    parser.add_argument("--skip-found", action="store_true")
    parser.add_argument("--no-next", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.models.split(",")) - set(SHAPES):
        sys.exit(f"error: --models: unknown {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    budgets = sorted(gibibytes(budget) for budget in args.budgets.split(","))
    points = itertools.product(args.models.split(","), map(int, args.blocks.split(",")), args.modes.split(","), budgets)
    too_small = 0.0  # MiB in which not even one sequence of the present point fits; the point's results have it
    for name, block, mode, budget in [] if args.table else points:
        sizes = json.loads(SIZES.read_text(encoding="utf-8"))
        too_small = 0.0 if budget == budgets[0] else too_small
        own = rows_of(sizes, name, block, mode)
        if args.skip_found and exact(own, budget * 1024) is not None:
            continue
        found, none_fits = search(name, block, mode, sizes, budget, args)
        if none_fits:
            too_small = budget * 1024
            for row in own:
                row["too_small_mib"] = too_small
            SIZES.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
        if found:
            too_small = max([too_small, *(row.get("too_small_mib", 0) for row in own if row["key"] == found["key"])])
            if too_small:
                found["too_small_mib"] = too_small
            same = [(row["key"], row["budget_mib"]) == (found["key"], found["budget_mib"]) for row in sizes]
            sizes = [row for row, replaced in zip(sizes, same) if not replaced] + [found]
            SIZES.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
    write_table(json.loads(SIZES.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
