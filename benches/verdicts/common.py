"""Shared code of the scripts that check `kiln compare`: running kiln, and the two files of a result."""

import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KILN = os.environ["KILN"]
# The part of a config that all models of these scripts share; it follows the other keys of [model].
NO_DROPOUT_AND_DATA = """resid_pdrop = 0.0
embd_pdrop = 0.0
attn_pdrop = 0.0
[data]
task = "clm"
format = "tokenized"
train = "data.jsonl"
"""


def kiln(*arguments, env=None, accept=(0,)):
    """Runs kiln in the checkout; its stdout. Ends the script where kiln fails."""
    done = subprocess.run([KILN, *map(str, arguments)], cwd=ROOT, env={**os.environ, **(env or {})},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in accept:
        sys.exit(f"error: kiln {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def machine():
    """Date, commit, processor and load, for the head of a result."""
    def first(path, key):
        try:
            lines = open(path, encoding="utf-8").read().splitlines()
        except OSError:
            return "unknown"
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "unknown")

    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git.stdout.strip() or "unknown",
        "processor": first("/proc/cpuinfo", "model name"),
        "threads": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def destination(out, name):
    date = datetime.datetime.now(datetime.timezone.utc).date()
    return pathlib.Path(out) if out else ROOT / f"benches/results/{date}-{name}.json"


def write(path, result, lines):
    """The result as JSON, and `lines` beside it as Markdown."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    print(f"\nwritten: {path} and {path.with_suffix('.md')}")


def heading(title, machine):
    return [f"# {title}, {machine['date'][:10]}", "",
            f"{machine['processor']}, {machine['threads']} threads; load average at the start {machine['load_average']:.2f}; "
            f"commit {machine['commit']}.", ""]
