#!/usr/bin/env python3
"""A step by kernels, from what kernel_times.c has recorded: the device's time of each kernel, and the time between them.

    benches/gpu/kernel_times.py FILE.tsv[.gz] [--last N] [--top N]

A step ends with the last launch of AdamW's kernel (`update_each`) or, where that is not fused, with that of --ends. The median over the
last N steps is printed of everything, as Markdown.
"""
import argparse, gzip, re, statistics
from collections import defaultdict

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--last", type=int, default=10)
parser.add_argument("--top", type=int, default=40)
parser.add_argument("--ends", default="update_each")
args = parser.parse_args()

rows = []
with (gzip.open if args.file.endswith(".gz") else open)(args.file, "rt") as lines:
    for line in lines:
        start, ns, registers, shared, grid, block, graph, name = line.rstrip("\n").split("\t")
        rows.append((int(start), int(ns), int(registers), int(shared), grid, block, int(graph), name))
rows.sort()
for call in ["module_load", "graph_instantiate"]:
    found = [row[1] for row in rows if row[7] == call]
    if found:
        print(f"{call}: {len(found)} times, {sum(found) / 1e9:.1f} s in all, at most {max(found) / 1e9:.2f} s\n")
rows = [row for row in rows if row[7] not in ("module_load", "graph_instantiate")]


def short(name):
    """The kernel's name without what tells its variants apart: a hash, numbers of tuning."""
    return re.sub(r"_?[0-9a-f]{8,}(?=_|$)", "", name)[:70]


ends = [at for at, row in enumerate(rows) if args.ends in row[7]]
# Several launches of it in a row are one update.
ends = [at for at, following in zip(ends, ends[1:] + [None]) if following is None or following - at > 20]
steps = [rows[begin + 1:end + 1] for begin, end in zip(ends, ends[1:])][-args.last:]
if not steps:
    raise SystemExit(f"{args.file}: no step ends with {args.ends}: {len(rows)} records")
median = statistics.median


def wall(step):
    return step[-1][0] + step[-1][1] - step[0][0]


by_name = [defaultdict(lambda: [0, 0]) for _ in steps]
for sums, step in zip(by_name, steps):
    for row in step:
        entry = sums[short(row[7])]
        entry[0] += 1
        entry[1] += row[1]
names = sorted({name for sums in by_name for name in sums}, key=lambda name: -median(sums[name][1] for sums in by_name))
busy = median(sum(row[1] for row in step) for step in steps)
print(f"{len(steps)} steps: {median(map(len, steps)):.0f} launches, {busy / 1e6:.3f} ms in kernels, {median(map(wall, steps)) / 1e6:.3f} ms from "
      f"the first to the end of the last, {sum(row[6] != 0 for row in steps[-1])} of the last step's launches by a graph\n")
print("| kernel | launches | ms | share | us each | registers | grid, block |\n| --- | ---: | ---: | ---: | ---: | ---: | --- |")
for name in names[:args.top]:
    count, ns = (median(sums[name][part] for sums in by_name) for part in (0, 1))
    example = next(row for step in steps for row in step if short(row[7]) == name)
    print(f"| `{name}` | {count:.0f} | {ns / 1e6:.3f} | {ns / busy:.1%} | {ns / 1e3 / max(count, 1):.1f} | {example[2]} | {example[4]} x {example[5]} |")
