#!/usr/bin/env bash
# Whether the sizes that `kiln tune-batch` finds hold, with the real binary, for a GPT-2 on sequences of 512 tokens:
#
#     benches/tune-batch/run.sh [--budget 2GiB] [--steps 50] [--out FILE.json] [options of `kiln tune-batch`]
#
# searches in both modes, trains --steps steps at each size that was found and measures from outside that the process stays
# within the budget, then trains the next size without a budget and measures that it does not. The options that tune-batch
# takes are passed on. Writes benches/results/DATE-tune-batch.json and .md unless --out says otherwise; ends with 1 when a size
# does not hold, or when compiled finds no larger one than native. Needs a release build of kiln (or $KILN) and Python 3.
# 2 cores that had other work took about 20 minutes.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$(dirname "$here")")"
export KILN="${KILN:-$root/target/release/kiln}"
[ -x "$KILN" ] || { echo "error: no $KILN: build it with 'cargo build --release', or name one in KILN" >&2; exit 1; }
PYTHONPATH="$here/../verdicts" exec python3 "$here/tune_batch.py" "$@"
