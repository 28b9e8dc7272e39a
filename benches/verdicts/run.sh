#!/usr/bin/env bash
# Whether the verdicts of `kiln compare` are right, with the real binary on this machine:
#
#     benches/verdicts/run.sh [--runs 20] [--slowdown 0.1] [--out FILE.json]
#
# makes 20 comparisons of native with itself and 20 with an arm that is really 10 % slower (slow.py: its process is stopped
# for a tenth of the time that it computes), and counts what was said. On 2 cores a comparison takes 70 to 120 s; what an
# earlier call has counted with the same binary is kept.
#
#     benches/verdicts/run.sh quickstart [--steps 16] [--repeats 10] [--out FILE.json]
#
# trains configs/quickstart.toml by hand in both modes, runs `kiln compare` on it, and prints by how much the figures differ:
# 14 minutes on 2 cores.
#
# Both write benches/results/DATE-verdicts[-quickstart].json and .md unless --out says otherwise, and end with 1 when the
# promise (19 and 18 of 20; 5 %) is not kept. Needs a release build of kiln (or $KILN) and Python 3; the machine must do
# nothing else.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$(dirname "$here")")"
export KILN="${KILN:-$root/target/release/kiln}"
[ -x "$KILN" ] || { echo "error: no $KILN: build it with 'cargo build --release', or name one in KILN" >&2; exit 1; }
what=verdicts
[ "${1:-}" = quickstart ] && what=quickstart && shift
exec python3 "$here/$what.py" "$@"
