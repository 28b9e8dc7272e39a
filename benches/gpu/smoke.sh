#!/usr/bin/env bash
# Every fused operator and every task on the device, a few steps each, against the CPU's native mode in the same precision:
#
#     benches/gpu/smoke.sh OUT [TASK...]       # without a task: all of them
#
# KILN is the compiled engine, and KILN_NATIVE the native one, without which its runs are left out. KILN_GPU is the kind of device, cuda where it is not set. A line of
# OUT/smoke.jsonl for every run, as it ends. The first run that fails, or whose losses differ from the CPU's by more than their bound,
# ends the script with 1, and the last line names it. Kernels are kept in OUT/cache.
set -Eeuo pipefail
out="${1:?usage: benches/gpu/smoke.sh OUT [TASK...]}"
shift
asked=" $* "
kiln="$(realpath "${KILN:?KILN names the compiled engine}")"
export KILN_CACHE="${KILN_CACHE:-$(realpath -m "$out")/cache}" NO_COLOR=1
gpu="${KILN_GPU:-cuda}"
mkdir -p "$out/smoke"
out="$(cd "$out" && pwd)"
: >"$out/smoke.jsonl"
cd "$out/smoke"

# 24 rows of 16 tokens with the labels of a task.
data() {
    local i j ids labels rest
    for i in {0..23}; do
        ids="" labels=""
        for j in {0..15}; do
            ids+=",$(((i * 7 + j * 3 + j * j) % 59 + 5))"
            labels+=",$([ $((j % 3)) = 0 ] && echo $(((i + j) % 3)) || echo -100)"
        done
        case "$1" in
        clm) rest="" ;;
        mlm | token-classification) rest=",\"labels\":[${labels:1}]" ;;
        sequence-classification) rest=",\"labels\":$((i % 3))" ;;
        regression) rest=",\"labels\":$((i / 4)).5" ;;
        question-answering) rest=",\"start_positions\":$((i % 5)),\"end_positions\":$((5 + i % 4))" ;;
        multi-label-classification) rest=",\"labels\":[$((i % 2)),$((i / 2 % 2)),1]" ;;
        multiple-choice) rest=",\"labels\":$((i % 2))" && ids=",[${ids:1}],[5,6,7]" ;;
        esac
        echo "{\"input_ids\":[${ids:1}]$rest}"
    done
}

# A config for a task, with weights that every device starts from.
prepare() {
    local task="$1" model
    case "$task" in
    clm) model='kind = "gpt2"
n_layer = 2
n_head = 2
n_embd = 48
n_positions = 16
vocab_size = 64
resid_pdrop = 0.0
embd_pdrop = 0.0
attn_pdrop = 0.0' ;;
    *) model='kind = "bert"
num_hidden_layers = 2
num_attention_heads = 2
hidden_size = 48
intermediate_size = 96
max_position_embeddings = 16
vocab_size = 64
hidden_dropout_prob = 0.0
attention_probs_dropout_prob = 0.0' ;;
    esac
    mkdir -p "$task"
    data "$task" >"$task/data.jsonl"
    config "$task" "$model" >"$task/config.toml"
    (cd "$task" && "$kiln" train config.toml --set run.output_dir=start --set trainer.max_steps=1 --set trainer.learning_rate=1e-30 \
        --compiler native >log 2>&1) || failed "$task: the CPU" "$(tail -n 3 "$task/log")"
    config "$task" 'from = "start/model"' >"$task/config.toml"
}

config() {
    cat <<EOF
[run]
output_dir = "run"
on_existing = "overwrite"
[model]
$2
[data]
task = "$1"
format = "tokenized"
train = "data.jsonl"
[trainer]
max_steps = 4
per_device_train_batch_size = 4
learning_rate = 1e-3
logging_steps = 1
eval_strategy = "no"
save_strategy = "no"
[device]
kind = "cpu"
EOF
}

failed() { # RUN WHY
    echo "smoke: FAILED: $1: $2" | tee -a "$out/errors.txt"
    exit 1
}

losses() { grep -oE '"loss": ?[-+0-9.e]+' "$1/metrics.jsonl" | grep -oE '[-+0-9.e]+$'; }

# TASK PRECISION SETTING...: trains on the device, and on the CPU if that has not been done, and holds the losses against each other.
compared() {
    local task="$1" precision="$2" name bound by started=$SECONDS setting settings=()
    [ "$asked" = "  " ] || [[ "$asked" = *" $task "* ]] || return 0
    shift 2
    name="$task $precision $*"
    if [ -z "${KILN_NATIVE:-}" ] && [[ " $* " = *" compiler.enabled=native "* ]]; then
        echo "smoke: $name: left out, since KILN_NATIVE names no native engine"
        return
    fi
    for setting in "$@"; do settings+=(--set "$setting"); done
    case "$precision" in f32) bound=2e-3 ;; bf16) bound=4e-2 ;; *) bound=1e-2 ;; esac
    [ -d "$task" ] || prepare "$task"
    cd "$task"
    if [ ! -d "cpu-$precision" ]; then
        "$kiln" train config.toml --set "run.output_dir=cpu-$precision" --set "precision=$precision" --compiler native >log 2>&1 ||
            failed "$name: the CPU" "$(tail -n 3 log)"
    fi
    "$kiln" train config.toml --set run.output_dir=device --set "device.kind=$gpu" --set "precision=$precision" \
        --set compiler.autotune=minimal "${settings[@]}" >log 2>&1 || failed "$name" "ended with $?: $(grep -A2 '^error' log || tail -n 3 log)"
    by="$(paste <(losses device) <(losses "cpu-$precision") |
        awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (d > m) m = d; n++ } END { if (n < 4) print "none"; else printf "%.1e", m }')"
    cd ..
    echo "{\"run\":\"${name//\"/}\",\"difference\":\"$by\",\"bound\":\"$bound\",\"seconds\":$((SECONDS - started))}" >>"$out/smoke.jsonl"
    awk -v by="$by" -v bound="$bound" 'BEGIN { exit !(by != "none" && by + 0 <= bound + 0) }' ||
        failed "$name" "losses differ from the CPU's by $by, and $bound is allowed"
    echo "smoke: $name: $by"
}

compiled=(compiler.enabled=compiled compiler.fused_ops=on)
compared clm f32 compiler.enabled=native
for operator in embedding dropout layer_norm linear attention gelu cross_entropy adamw; do
    compared clm f32 compiler.enabled=compiled "compiler.fused_ops=[\"$operator\"]" compiler.graph=off
done
compared clm f32 "${compiled[@]}" compiler.graph=off
compared clm f32 "${compiled[@]}" compiler.graph=on
for precision in bf16 f16; do
    compared clm "$precision" compiler.enabled=native
    compared clm "$precision" "${compiled[@]}"
done
for task in mlm sequence-classification regression question-answering token-classification multi-label-classification multiple-choice; do
    compared "$task" f32 "${compiled[@]}"
    compared "$task" bf16 "${compiled[@]}"
    compared "$task" bf16 compiler.enabled=native
done
echo "smoke: every operator and task passed, in $SECONDS s"
