#!/usr/bin/env python3
"""Stands in for an engine of `kiln compare` ($KILN_COMPILED): the real binary ($KILN) in native mode, slowed down from
outside. With $SLOWDOWN = 0.1 the process is stopped (SIGSTOP) for a tenth of the time that it has run, every few
milliseconds, so whatever it does takes 10 % longer. With 0 nothing happens to it. What was planted is added as a line to
$SLOWDOWN_LOG: seconds run, seconds stopped. The product knows nothing of this."""

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


def main():
    share = float(os.environ.get("SLOWDOWN", "0"))
    command = [os.environ["KILN"], *sys.argv[1:]]
    if sys.argv[1:2] == ["worker"]:
        command += ["--set", "compiler.enabled=false"]
    child = subprocess.Popen(command, preexec_fn=die_with_parent)
    ran = stopped = 0.0
    last = time.perf_counter()
    while share > 0 and child.poll() is None:
        time.sleep(SLICE)
        now = time.perf_counter()
        ran += now - last
        last = now
        # What sleeping has taken too long or too short is made good the next time.
        owed = ran * share - stopped
        if owed >= LEAST:
            child.send_signal(signal.SIGSTOP)
            time.sleep(owed)
            child.send_signal(signal.SIGCONT)
            last = time.perf_counter()
            stopped += last - now
    code = child.wait()
    log = os.environ.get("SLOWDOWN_LOG")
    if log and share > 0:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{ran} {stopped}\n")
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
