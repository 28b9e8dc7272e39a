#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in one go:
#
#     benches/gpu/run.sh [--suite smoke] [--time-limit 25m] [--out FOLDER] [options of `kiln bench`]
#
# Builds both engines (KILN_GPU=cuda, the default, or wgpu) unless KILN_NATIVE and KILN_COMPILED name them, writes down the
# machine, and runs the suite: native, compiled, compiled with Kiln's own operators (experimental on CUDA), PyTorch eager
# and compiled, one after the other on the device. The report is written after every case, so what was measured when the
# time is over, or when something fails, is there. `--suite smoke` tries all of it on a CPU in a minute.
set -Eeuo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$(dirname "$here")")"
suite=gpu limit=25m out="" more=()
while [ $# -gt 0 ]; do
    case "$1" in
    --suite) suite="$2" && shift ;;
    --time-limit) limit="$2" && shift ;;
    --out) out="$2" && shift ;;
    *) more+=("$1") ;;
    esac
    shift
done
out="${out:-$root/benches/results/$(date -u +%F)-$suite}"
mkdir -p "$out"

if [ "$suite" = gpu ] && { [ -z "${KILN_NATIVE:-}" ] || [ -z "${KILN_COMPILED:-}" ]; }; then
    gpu="${KILN_GPU:-cuda}"
    (cd "$root" && cargo "$gpu-native" && cargo "$gpu-compiled")
    export KILN_NATIVE="$root/target-native/release/kiln" KILN_COMPILED="$root/target-compiled/release/kiln"
fi
export KILN="${KILN_COMPILED:-${KILN:-$root/target/release/kiln}}"

{
    date -u +%FT%TZ
    git -C "$root" log -1 --format='commit %H' 2>/dev/null || true
    "$KILN" devices
    if command -v nvidia-smi >/dev/null; then nvidia-smi -q -d MEMORY,CLOCK,POWER,TEMPERATURE; fi
    if command -v lscpu >/dev/null; then lscpu; fi
} >"$out/machine.txt"

# Losses that differ and contestants that fail end the bench with their exit code; the report is written all the same.
status=0
"$here/../pytorch/run.sh" "$suite" --variant "fused=compiler.fused_ops=on" --time-limit "$limit" \
    --out "$out/bench.json" ${more[@]+"${more[@]}"} 2>"$out/errors.txt" | tee "$out/bench.txt" || status=$?
[ "$status" = 0 ] || { cat "$out/errors.txt" >&2; echo "ended with $status; what was measured is in $out" >&2; }
exit "$status"
