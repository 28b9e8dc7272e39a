#!/usr/bin/env bash
# Kiln beside PyTorch, in turn, on the same models, weights, data, optimizer and precision:
#
#     benches/pytorch/run.sh [cpu|llama|gpu|smoke] [options of `kiln bench`]
#
# Needs a release build of kiln (or $KILN) and a Python with torch, transformers and peft, which python.sh finds or makes. The suites cpu and
# llama are measured in f32 and then in bf16, PyTorch by autocast, unless --precision names one type. The result is
# benches/results/DATE-pytorch-SUITE.json, in bf16 DATE-pytorch-SUITE-bf16.json, unless --out says otherwise.
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
more=() out="" precisions=()
case "$suite" in cpu | llama) precisions=(f32 bf16) ;; esac
while [ $# -gt 0 ]; do
    case "$1" in
    --no-compile) peers=("${peers[@]:0:2}") ;;
    --out) out="$2" && shift ;;
    --precision) precisions=("$2") && shift ;;
    *) more+=("$1") ;;
    esac
    shift
done
[ -z "$out" ] || [ "${#precisions[@]}" -lt 2 ] || { echo "error: --out names one file: name one --precision too" >&2; exit 2; }

# A measurement that fails ends the script with its exit code.
for precision in "${precisions[@]:-}"; do
    case "$precision" in "" | f32) name="$suite" ;; *) name="$suite-$precision" ;; esac
    "$kiln" bench --suite "$suite" ${precision:+--precision "$precision"} "${peers[@]}" \
        --out "${out:-$root/benches/results/$(date -u +%F)-pytorch-$name.json}" "${more[@]}"
done
