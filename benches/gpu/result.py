#!/usr/bin/env python3
"""Makes a dated result of what benches/gpu/run.sh has left in a folder, whole or not:

    benches/gpu/result.py FOLDER [--to benches/results/DATE-gpu.md [--readme README.md]]

Prints the result, or writes it with --to. --readme puts a sentence with its first figures in the place of what stands between
`<!-- gpu -->` and `<!-- /gpu -->` in that file, which leaves the number of its lines as it is.
"""
import argparse, json, re, sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--to", type=Path)
parser.add_argument("--readme", type=Path)
args = parser.parse_args()


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


machine = (args.folder / "machine.txt").read_text() if (args.folder / "machine.txt").exists() else ""
if not machine:
    sys.exit(f"error: {args.folder} holds no machine.txt: it is no folder of benches/gpu/run.sh")
date = machine.split("T")[0].strip()
smoke = read_jsonl(args.folder / "smoke.jsonl")
errors = (args.folder / "errors.txt").read_text() if (args.folder / "errors.txt").exists() else ""
reports = [(name, json.loads(path.read_text())) for name in ["models", "largest", "others"]
           if (path := args.folder / f"bench-{name}.json").exists()]

out = [f"# Kiln and PyTorch on a GPU, {date}", "", "By `benches/gpu/run.sh`, one contestant after the other on the device, in milliseconds of a step: median (10th to 90th percentile).", "",
       "```text", *[line for line in machine.splitlines()[:20] if line.strip()], "```", ""]
failed = re.findall(r"smoke: FAILED: (.*)", errors)
if failed:
    out += [f"**The smoke test failed, and nothing was measured: {failed[-1]}**", ""]
elif smoke:
    worst = max(smoke, key=lambda row: float(row["difference"]) / float(row["bound"]))
    out += [f"Smoke test: {len(smoke)} runs of single operators and of every task in f32, bf16 and f16, all within their bounds of the CPU's native mode; "
            f"nearest to its bound: {worst['run']}, {worst['difference']} of {worst['bound']}.", ""]
else:
    out += ["The smoke test was not run.", ""]


def number(value, digits=1):
    return "-" if value is None else f"{value:,.{digits}f}"


short = ["| case | " + " | ".join(["Kiln native", "Kiln compiled", "PyTorch eager", "torch.compile"]) + " |", "| --- | ---: | ---: | ---: | ---: |"]
for part, report in reports:
    out += [f"## {part}", ""]
    if not report.get("complete", True):
        out += ["This part did not end; these are the cases that did.", ""]
    for case in report["cases"]:
        out += [f"**{case['name']}**: {case['about']}", "", "| contestant | batch | step, ms | tokens/s | peak MiB | first step, s | |", "| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
        cells = {}
        for it in case["contestants"]:
            step = it.get("step_ms")
            time = f"{step['median']:.2f} ({step['p10']:.2f} to {step['p90']:.2f})" if step else "-"
            out.append(f"| {it['name']} | {it.get('batch') or '-'} | {time} | {number(it.get('tokens_per_s'), 0)} | {number(it.get('peak_mib'), 0)} | "
                       f"{number(it.get('first_step_seconds'))} | {(it.get('failure') or '').splitlines()[0] if it.get('failure') else ''} |")
            if it.get("tokens_per_s"):
                cells[it["name"]] = f"{it['tokens_per_s']:,.0f}" + (f" (batch {it['batch']})" if "-max-" in case["name"] else "")
        short.append(f"| {case['name']} | " + " | ".join(cells.get(name, "-") for name in ["native", "compiled", "eager", "compile"]) + " |")
        out.append("")
        for loss in case.get("losses", []):
            out.append(f"- losses of {loss['of']} against {loss['against']}: {loss['relative']:.1e} apart over {loss['losses']}, {loss['limit']:.0e} allowed"
                       + ("" if loss["passed"] else ": **failed**"))
        for ratio in case.get("ratios", []):
            spread = "" if None in (ratio["low"], ratio["high"]) else f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
            out.append(f"- {ratio['against']} is {ratio['ratio']:.2f} times as fast as {ratio['of']}{spread}")
        out.append("")
if not reports:
    out += ["No part of the bench was begun.", ""]
if reports:
    out[out.index("```") + 1:out.index("```") + 1] = ["", "Tokens a second:", "", *short]
text = "\n".join(out).rstrip() + "\n"
if args.to:
    args.to.write_text(text)
    print(f"wrote {args.to}")
else:
    print(text)
if args.readme:
    figures = [f"{name} {it['tokens_per_s']:,.0f} tokens/s" for _, report in reports[:1] for case in report["cases"][:1]
               for name in ["native", "compiled", "eager", "compile"] for it in case["contestants"] if it["name"] == name and it.get("tokens_per_s")]
    if not args.to or not figures:
        sys.exit("error: --readme: expected a result with figures that --to writes, for the sentence to name")
    device = re.search(r"^cuda +0 +(.+?)(?:  |$)", machine, re.M)
    sentence = (f"On {device[1].strip() if device else 'a GPU'} ([result](benches/results/{args.to.name})), {reports[0][1]['cases'][0]['name']}: {', '.join(figures)}.")
    changed, found = re.subn(r"(<!-- gpu -->).*?(<!-- /gpu -->)", lambda match: f"{match[1]}{sentence}{match[2]}", args.readme.read_text(), flags=re.S)
    if not found:
        sys.exit(f"error: {args.readme} has no <!-- gpu --> and <!-- /gpu -->")
    args.readme.write_text(changed)
    print(f"wrote into {args.readme}: {sentence}")
