#!/usr/bin/env python3
"""Stands in for an engine of `kiln compare` (--compiled-program): the real binary ($KILN) in native mode, slowed down from
outside. With $SLOWDOWN = 0.1 the process is stopped (SIGSTOP) for a tenth of the time that it computes, every few
milliseconds, so whatever it does takes 10 % longer. While it is stopped, all processors are kept busy: on a machine whose
host hands out processor time, an idle moment would be given back, and the loss with it. While it waits for its turn it is not
stopped. With $SLOWDOWN = 0 it is never stopped. Each process adds a line to $SLOWDOWN_LOG: the seconds that it computed and the
seconds that it was stopped. Kiln itself has no code for this."""

import ctypes
import os
import signal
import subprocess
import sys
import time

SLICE = 0.004  # seconds that it runs between two stops: several in a step of 20 ms
LEAST = 0.0002  # a stop that is shorter lasts longer than it should: it is left to the next one


def die_with_parent():
    """`kiln compare` kills its engines when it is interrupted: nothing stopped may stay behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def spinners():
    """Processes that do nothing but compute, stopped for now: one for every processor but the one of this process."""
    pids = []
    for _ in range(len(os.sched_getaffinity(0)) - 1):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            while True:
                pass
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)
    return pids


def computed(pid):
    """Seconds of processor time of all threads, to the nanosecond: the process's clock (clock_getcpuclockid)."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # it has just ended


def main():
    share = float(os.environ.get("SLOWDOWN", "0"))
    command = [os.environ["KILN"], *sys.argv[1:]]
    if sys.argv[1:2] == ["worker"]:
        command += ["--set", "compiler.enabled=false"]
    child = subprocess.Popen(command, preexec_fn=die_with_parent)
    others = spinners() if share > 0 else []
    ran = stopped = 0.0
    last, before = time.perf_counter(), 0.0
    while share > 0 and child.poll() is None:
        time.sleep(SLICE)
        now, work = time.perf_counter(), computed(child.pid)
        if work - before >= (now - last) / 2:  # else it waits for its turn
            ran += now - last
        last, before = now, work
        # An error in the length of this stop is made good by the next stop.
        owed = ran * share - stopped
        if owed >= LEAST:
            child.send_signal(signal.SIGSTOP)
            for pid in others:
                os.kill(pid, signal.SIGCONT)
            while time.perf_counter() - now < owed:
                pass
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            child.send_signal(signal.SIGCONT)
            done = time.perf_counter()
            stopped += done - now
            last += done - now
    code = child.wait()
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    log = os.environ.get("SLOWDOWN_LOG")
    if log and share > 0:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{ran} {stopped}\n")
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
