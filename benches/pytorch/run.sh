#!/usr/bin/env bash
# Kiln beside PyTorch, in turn, on the same models, weights, data, optimizer and precision:
#
#     benches/pytorch/run.sh [cpu|gpu|smoke] [options of `kiln bench`]
#
# Needs a release build of kiln (or $KILN) and a Python with torch and transformers, which python.sh finds or makes. The result is
# benches/results/DATE-pytorch-SUITE.json unless --out says otherwise.
# Without --no-compile there are two peers: eager, and torch.compile.
set -Eeuo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$(dirname "$here")")"
kiln="${KILN:-$root/target/release/kiln}"
[ -x "$kiln" ] || { echo "error: no $kiln: build it with 'cargo build --release', or name one in KILN" >&2; exit 1; }

suite=cpu
case "${1:-}" in "" | -*) ;; *) suite="$1" && shift ;; esac

python="$("$here/python.sh")"

peers=(--peer "eager=$python $here/worker.py --mode eager" --peer "compile=$python $here/worker.py --mode compile")
more=() out=()
while [ $# -gt 0 ]; do
    case "$1" in
    --no-compile) peers=("${peers[@]:0:2}") ;;
    --out) out=(--out "$2") && shift ;;
    *) more+=("$1") ;;
    esac
    shift
done
[ "${#out[@]}" -gt 0 ] || out=(--out "$root/benches/results/$(date -u +%F)-pytorch-$suite.json")
exec "$kiln" bench --suite "$suite" "${peers[@]}" "${out[@]}" "${more[@]}"
