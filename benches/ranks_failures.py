#!/usr/bin/env python3
"""Failures of a run of two ranks on the CPU under Open MPI, and their consequences:

    benches/ranks_failures.py [--kills 100] [--only kills,signals,memory,data,disk,link] [--repeats 5] [--out FILE.json]

kills a rank with SIGKILL at random moments of the run, sends SIGTERM to the launcher, lets memory run out on a rank, gives a rank
bad data, fills the disk of rank 0 (a tmpfs), and takes down the link between two network namespaces in which the ranks are
(`disk` and `link` need root). After each failure it measures how long it takes until every process is gone, and notes the exit
code and what was said. Then the run is continued, and weights, moments and losses are compared with those of an undisturbed run of
one process, bit by bit. Ends with 1 where a rule is broken: gone within 10 seconds (a link: the watchdog's time and 5 seconds), the
exit code of the cause, an equal run. Needs kiln ($KILN, else target/release/kiln), mpirun and Python 3.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

KILN = pathlib.Path(os.environ.get("KILN", pathlib.Path(__file__).resolve().parents[1] / "target/release/kiln")).resolve()
WATCHDOG = 5
CONFIG = """[run]
output_dir = "run"
on_existing = "resume"
[model]
kind = "bert"
num_hidden_layers = 2
num_attention_heads = 2
hidden_size = 16
intermediate_size = 32
max_position_embeddings = 8
vocab_size = 32
[data]
task = "sequence-classification"
format = "tokenized"
train = "data.jsonl"
validation = "20%"
sampler = "random"
[batch]
global_batch_size = 6
[trainer]
per_device_train_batch_size = 3
learning_rate = 1e-3
max_steps = {steps}
warmup_steps = 3
logging_steps = 1
eval_strategy = "steps"
eval_steps = 5
save_steps = {save}
{limit}
[device]
kind = "cpu"
"""


def write(folder, steps, save=2, limit=3):
    rows = []
    for i in range(25):
        ids = [(i * 7 + j * 3) % 29 + 1 for j in range(3 + i % 4)]
        rows.append(json.dumps({"input_ids": ids, "labels": i % 3}))
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    limit = f"save_total_limit = {limit}" if limit else ""
    (folder / "config.toml").write_text(CONFIG.format(steps=steps, save=save, limit=limit))


def environment():
    return {
        **os.environ,
        "RAYON_NUM_THREADS": "1",
        "KILN_CACHE": str(ROOT / "cache"),
        "KILN_MPI_TIMEOUT": str(WATCHDOG),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def start(command, folder, name="said"):
    with open(folder / name, "wb") as said:
        return subprocess.Popen(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def launch(folder, *more, ranks=2):
    return start([KILN, "launch", "-n", str(ranks), "--", "train", "config.toml", *more], folder)


def below(folder):
    """The ranks that work in `folder` or below it: process ids by rank; `None` is that of other processes of this failure."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            cwd = pathlib.Path(os.readlink(entry / "cwd"))
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if cwd == folder or folder in cwd.parents:
            rank = [v.split(b"=")[1] for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            found[int(entry.name)] = int(rank[0]) if rank else None
    return found


def until(ready, what, seconds=60):
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > seconds:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.01)
    return time.monotonic() - began


def end(child, folder, seconds=30):
    """Exit code and seconds until every process is gone."""
    began = time.monotonic()
    while child.poll() is None or below(folder):
        if time.monotonic() - began > seconds:
            left = below(folder)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            child.kill()
            child.wait()
            return None, seconds, left
        time.sleep(0.02)
    return child.returncode, time.monotonic() - began, {}


MEASURED = ("_ms", "runtime", "per_s", "_mib", "data_wait", "per_second", "seconds")


def figures(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(m in k for m in MEASURED)} for row in rows]


def differences(a, b):
    found = []
    if figures(a) != figures(b):
        found.append("rows")
    newest = max(p.name for p in (a / "checkpoints").iterdir())
    for file in ["model/model.safetensors", f"checkpoints/{newest}/optimizer.safetensors"]:
        if (a / file).read_bytes() != (b / file).read_bytes():
            found.append(file)
    return found


class Failures:
    def __init__(self):
        self.rows = []
        self.broken = []

    def note(self, kind, folder, code, seconds, left, expected, limit=10, **more):
        said = (folder / "said").read_text(errors="replace")
        errors = [line for line in said.splitlines() if "error:" in line]
        row = {"kind": kind, "code": code, "seconds": round(seconds, 2), "errors": errors, **more}
        self.rows.append(row)
        if left or code not in expected or seconds > limit:
            self.broken.append(row)
            print("BROKEN", row, "left:", left, "said:", said[-1500:], flush=True)
        return said

    def equal(self, kind, straight, run):
        found = differences(straight, run)
        row = {"kind": kind, "equal": not found}
        self.rows.append(row)
        if found:
            self.broken.append({**row, "differences": found})
        print(f"{kind}: continued to the end; equal to the undisturbed run: {'yes' if not found else found}", flush=True)

    def told(self, kind):
        rows = [row for row in self.rows if row["kind"] == kind and "seconds" in row]
        if rows:
            seconds = [row["seconds"] for row in rows]
            codes = {str(code): sum(row["code"] == code for row in rows) for code in {row["code"] for row in rows}}
            print(
                f"{kind}: {len(rows)} times, exit codes {codes}, gone after {statistics.median(seconds):.1f} s (median), "
                f"{max(seconds):.1f} s at most; last words: {rows[-1]['errors'][-2:]}",
                flush=True,
            )


def finish(failures, kind, folder, straight):
    child = launch(folder)
    code, _, _ = end(child, folder, 300)
    if code != 0:
        sys.exit(f"{kind}: the run cannot be continued: {(folder / 'said').read_text()}")
    failures.equal(kind, straight, folder / "run")


def undisturbed(place, name, **config):
    folder = place / f"{name}-straight"
    folder.mkdir()
    write(folder, **config)
    subprocess.run([KILN, "train", "config.toml"], cwd=folder, env=environment(), check=True, capture_output=True)
    return folder / "run"


def kills(failures, place, args):
    steps = 12 * args.kills + 40
    straight = undisturbed(place, "kills", steps=steps)
    folder = place / "kills"
    folder.mkdir()
    write(folder, steps=steps)
    for kill in range(args.kills):
        child = launch(folder)
        # From the first moment of the ranks on; a start takes most of the first second.
        until(lambda: sum(rank is not None for rank in below(folder).values()) == 2, "ranks")
        moment = random.uniform(0, args.within)
        time.sleep(moment)
        victim = [pid for pid, rank in below(folder).items() if rank == kill % 2]
        if victim:
            os.kill(victim[0], signal.SIGKILL)
        code, seconds, left = end(child, folder)
        expected = (137,) if victim else (137, 0)
        said = failures.note("kills", folder, code, seconds, left, expected, moment=round(moment, 3), rank=kill % 2)
        if code == 137 and f"rank {kill % 2} was ended by SIGKILL" not in said:
            failures.broken.append({"kind": "kills", "said": said})
    failures.told("kills")
    finish(failures, "kills", folder, straight)


def signals(failures, place, args):
    straight = undisturbed(place, "signals", steps=40 * args.repeats)
    folder = place / "signals"
    folder.mkdir()
    write(folder, steps=40 * args.repeats)
    for _ in range(args.repeats):
        child = launch(folder)
        until(lambda: sum(rank is not None for rank in below(folder).values()) == 2, "ranks")
        time.sleep(random.uniform(0, args.within))
        child.send_signal(signal.SIGTERM)
        code, seconds, left = end(child, folder)
        failures.note("signals", folder, code, seconds, left, (143, 0))
    failures.told("signals")
    finish(failures, "signals", folder, straight)


def on_machines(folder, script):
    """The command of two ranks, each of which runs `script` first."""
    (folder / "on-machine.sh").write_text(script + '\nexec "$@"\n')
    return ["mpirun", "-np", "2", "--bind-to", "none", "sh", "on-machine.sh", KILN, "train", "config.toml"]


def memory(failures, place, args):
    straight = undisturbed(place, "memory", steps=60)
    folder = place / "memory"
    folder.mkdir()
    write(folder, steps=60)
    for _ in range(args.repeats):
        script = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && (sleep {random.uniform(0.5, 2):.2f}; prlimit --pid $$ --as=1000000) &'
        child = start(on_machines(folder, script), folder)
        code, seconds, left = end(child, folder)
        # What runs out first may also be a thread or a map of a file.
        failures.note("memory", folder, code, 0.0 if code == 0 else seconds, left, (4, 0))
        if code == 0:
            shutil.rmtree(folder / "run")
    failures.told("memory")
    finish(failures, "memory", folder, straight)


def data(failures, place, args):
    folder = place / "data"
    folder.mkdir()
    for rank in range(2):
        machine = folder / f"machine-{rank}"
        machine.mkdir()
        write(machine, steps=20)
    bad = folder / "machine-1/data.jsonl"
    bad.write_text(bad.read_text().replace("[1,", "[oops,", 1))
    for _ in range(args.repeats):
        child = start(on_machines(folder, "cd machine-$OMPI_COMM_WORLD_RANK"), folder)
        code, seconds, left = end(child, folder)
        failures.note("data", folder, code, seconds, left, (3,))
    failures.told("data")


def disk(failures, place, args):
    config = {"steps": 120, "save": 1, "limit": None}
    straight = undisturbed(place, "disk", **config)
    folder = place / "disk"
    (folder / "run").mkdir(parents=True)
    write(folder, **config)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder / "run"], check=True)
    try:
        for size in range(2, 2 + args.repeats):
            subprocess.run(["mount", "-o", f"remount,size={size}m", folder / "run"], check=True)
            began = time.monotonic()
            child = launch(folder)
            code, _, left = end(child, folder, 120)
            status = json.loads((folder / "run/status.json").read_text()) if (folder / "run/status.json").is_file() else {}
            gone = time.monotonic() - began
            failures.note("disk", folder, code, gone, left, (1,), limit=60, step=status.get("step"))
        subprocess.run(["mount", "-o", "remount,size=512m", folder / "run"], check=True)
        failures.told("disk")
        finish(failures, "disk", folder, straight)
    finally:
        subprocess.run(["umount", folder / "run"], check=True)


def link(failures, place, args):
    straight = undisturbed(place, "link", steps=60 * args.repeats)
    folder = place / "link"
    folder.mkdir()
    write(folder, steps=60 * args.repeats)
    ip = lambda *parts: subprocess.run(["ip", *parts], check=True)
    names = [f"kiln{os.getpid()}{letter}" for letter in "ab"]
    for name in names:
        ip("netns", "add", name)
    try:
        ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.99.0.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")
        agent = folder / "agent.sh"
        agent.write_text(
            f'#!/bin/sh\nshift\nexec ip netns exec {names[1]} unshare -u sh -c "hostname kiln-b; cd {folder}; $*"\n'
        )
        agent.chmod(0o755)
        mca = {
            "plm_rsh_agent": agent,
            "btl": "tcp,self",
            "btl_tcp_if_include": "veth0",
            "oob_tcp_if_include": "veth0",
        }
        variables = " ".join(f"OMPI_MCA_{name}={value}" for name, value in mca.items())
        inner = f"hostname kiln-a; {variables} exec {KILN} launch -n 2 --hosts 10.99.0.1,10.99.0.2 -- train config.toml"
        for _ in range(args.repeats):
            rows = lambda: len((folder / "run/metrics.jsonl").read_text().splitlines()) if (folder / "run/metrics.jsonl").exists() else 0
            before = rows()
            child = start(["ip", "netns", "exec", names[0], "unshare", "-u", "sh", "-c", inner], folder)
            until(lambda: rows() > before + 3 or child.poll() is not None, "steps")
            time.sleep(random.uniform(0, 0.5))
            ip("-n", names[0], "link", "set", "veth0", "down")
            code, seconds, left = end(child, folder, 60)
            failures.note("link", folder, code, seconds, left, (7,), limit=WATCHDOG + 5)
            ip("-n", names[0], "link", "set", "veth0", "up")
        failures.told("link")
        finish(failures, "link", folder, straight)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--within", type=float, default=2.0, help="seconds after the start in which a failure comes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="kills,signals,memory,data,disk,link")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    failures = Failures()
    global ROOT
    with tempfile.TemporaryDirectory() as place:
        ROOT = pathlib.Path(place).resolve()
        for kind in args.only.split(","):
            {"kills": kills, "signals": signals, "memory": memory, "data": data, "disk": disk, "link": link}[kind](
                failures, ROOT, args
            )
    if args.out:
        args.out.write_text(json.dumps(failures.rows, indent=1) + "\n")
    sys.exit(1 if failures.broken else 0)


if __name__ == "__main__":
    main()
