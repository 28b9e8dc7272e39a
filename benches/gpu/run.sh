#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in one go:
#
#     benches/gpu/run.sh [--suite gpu|gpu-tiny|smoke] [--parts PART,...] [--time-limit 25m] [--out FOLDER] [options of `kiln bench`]
#
# The engines are KILN_NATIVE and KILN_COMPILED, else `kiln-native` and `kiln` beside the folder `benches` (pack.sh puts them there),
# else they are built (KILN_GPU=cuda, the default, or wgpu). Neither a network nor a toolchain is needed where they are. NVRTC and
# CUDA's headers may lie in `nvidia/cu13` beside `benches`, too.
#
# The parts, one after the other; what was measured when the time is over, or when something fails, is in OUT:
#
#     smoke     smoke.jsonl          every operator and task against the CPU; the first failure ends everything
#     models    bench-models.json    GPT-2 small and BERT base: native, compiled, PyTorch eager and compiled
#     largest   bench-largest.json   the largest batches
#     others    bench-others.json    the other cases of the suite
#
# PyTorch is left out, and said to be, where no Python with torch and transformers is found (KILN_PYTHON names one). `result.py OUT`
# makes a dated result of it. `--suite gpu-tiny` rehearses all of it with tiny models, PyTorch on the CPU, and `--suite smoke` is the
# bench alone, on the CPU, in a minute.
set -Eeuo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(dirname "$(dirname "$here")")"
suite=gpu limit=25m out="" parts="" more=() peers=1 compiles=1
while [ $# -gt 0 ]; do
    case "$1" in
    --suite) suite="$2" && shift ;;
    --parts) parts="$2" && shift ;;
    --time-limit) limit="$2" && shift ;;
    --out) out="$2" && shift ;;
    --no-pytorch) peers=0 ;;
    --no-compile) compiles=0 ;;
    *) more+=("$1") ;;
    esac
    shift
done
out="${out:-$root/benches/results/$(date -u +%F)-$suite}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
: >"$out/errors.txt"

if [ "$suite" != smoke ] && { [ -z "${KILN_NATIVE:-}" ] || [ -z "${KILN_COMPILED:-}" ]; }; then
    if [ -x "$root/kiln" ] && [ -x "$root/kiln-native" ]; then
        export KILN_NATIVE="$root/kiln-native" KILN_COMPILED="$root/kiln"
    else
        (cd "$root" && cargo "${KILN_GPU:-cuda}-native" && cargo "${KILN_GPU:-cuda}-compiled")
        export KILN_NATIVE="$root/target-native/release/kiln" KILN_COMPILED="$root/target-compiled/release/kiln"
    fi
fi
export KILN="${KILN_COMPILED:-${KILN:-$root/target/release/kiln}}"
if [ -z "${CUDA_PATH:-}" ] && [ -d "$root/nvidia/cu13" ]; then
    export CUDA_PATH="$root/nvidia/cu13" LD_LIBRARY_PATH="$root/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
# What this run compiles and tunes is its own: its times begin cold, and it does not find what another device was tuned for.
[ "$suite" = smoke ] || export KILN_CACHE="${KILN_CACHE:-$out/cache}"

{
    date -u +%FT%TZ
    cat "$root/commit" 2>/dev/null || git -C "$root" log -1 --format='commit %H' 2>/dev/null || true
    "$KILN" devices
    if command -v nvidia-smi >/dev/null; then nvidia-smi -q -d MEMORY,CLOCK,POWER,TEMPERATURE; fi
    if command -v lscpu >/dev/null; then lscpu; fi
} >"$out/machine.txt"

variants=(--variant "plain=compiler.fused_ops=off") # Burn's compiler without Kiln's own operators
contestants=()
if [ "$peers" = 1 ]; then
    if python="$("$here/../pytorch/python.sh" 2>>"$out/errors.txt")"; then
        [ "$suite" != gpu-tiny ] || export KILN_BENCH_TORCH_DEVICE=cpu
        worker="$here/../pytorch/worker.py"
        contestants=(--peer "eager=$python $worker --mode eager")
        [ "$compiles" = 0 ] || contestants+=(--peer "compile=$python $worker --mode compile")
    else
        echo "PyTorch is left out: $(tail -n 1 "$out/errors.txt")" | tee -a "$out/machine.txt"
    fi
fi

# NAME [OPTION...]: measures a part. Losses that differ and contestants that fail end the bench with their exit code; the report is
# written all the same, and the next part is measured.
status=0
bench() {
    local name="$1" ended=0
    shift
    "$KILN" bench --suite "$suite" "${variants[@]}" ${contestants[@]+"${contestants[@]}"} --time-limit "$limit" \
        --out "$out/$name.json" "$@" ${more[@]+"${more[@]}"} 2>"$out/$name.err" | tee "$out/$name.txt" || ended=$?
    cat "$out/$name.err" >>"$out/errors.txt"
    [ "$ended" = 0 ] || { tail -n 20 "$out/$name.err" >&2; echo "$name ended with $ended; what was measured is in $out" >&2; status=$ended; }
}
cases() { for name in "$@"; do echo --case "$name"; done; }

case "$suite" in
gpu)
    models=(gpt2-small-b8-bf16 bert-base-128-bf16 gpt2-small-b32-bf16 bert-base-512-bf16 gpt2-small-b8-f32 bert-base-128-f32)
    largest=(gpt2-small-max-bf16 gpt2-small-max-f32)
    others=(smollm2-135m-b8-bf16 bert-base-mlm-128-bf16 bert-base-mlm-512-bf16 gpt2-medium-b8-bf16 gpt2-small-b32-f32 bert-base-mlm-128-f32 bert-base-512-f32)
    ;;
gpu-tiny) models=(gpt2-tiny-bf16 bert-tiny-bf16) largest=(gpt2-tiny-max-bf16) others=(gpt2-tiny-f32) ;;
*)
    bench bench
    exit "$status"
    ;;
esac
for part in $(echo "${parts:-smoke,models,largest,others}" | tr , ' '); do
    echo "== $part"
    case "$part" in
    smoke) "$here/smoke.sh" "$out" ;;
    models) bench bench-models $(cases "${models[@]}") ;;
    largest) bench bench-largest $(cases "${largest[@]}") ;;
    others) bench bench-others $(cases "${others[@]}") ;;
    *) echo "error: --parts: expected some of smoke, models, largest and others, got $part" >&2 && exit 2 ;;
    esac
done
echo "== all: $SECONDS s; benches/gpu/result.py $out"
exit "$status"
