#!/usr/bin/env bash
# Prints a Python that has torch, transformers and peft: KILN_PYTHON; python3; or one of its own below ${XDG_CACHE_HOME:-~/.cache}/kiln-bench, into
# which it installs them (without an NVIDIA driver torch's build for the CPU, or that of PyPI where the index of the former is not
# reached). Fails, with the reason as its last line, where there is none.
set -Eeuo pipefail
has() { "$1" -c 'import torch, transformers, peft' 2>/dev/null; }
if [ -n "${KILN_PYTHON:-}" ]; then
    has "$KILN_PYTHON" || { echo "error: $KILN_PYTHON has no torch, transformers and peft" >&2; exit 1; }
    echo "$KILN_PYTHON"
    exit
fi
command -v python3 >/dev/null || { echo "error: no python3" >&2; exit 1; }
if has python3; then
    command -v python3
    exit
fi
venv="${XDG_CACHE_HOME:-$HOME/.cache}/kiln-bench"
if ! has "$venv/bin/python"; then
    install() { "$venv/bin/pip" install --quiet "$@"; }
    for_cpu() { ! command -v nvidia-smi >/dev/null && install torch==2.15.0 --index-url https://download.pytorch.org/whl/cpu; }
    { python3 -m venv "$venv" && { for_cpu || install torch==2.15.0; } && install transformers==5.23.0 peft==0.21.0; } >&2 ||
        { echo "error: no Python with torch, transformers and peft (KILN_PYTHON names one), and they cannot be installed here" >&2; exit 1; }
fi
echo "$venv/bin/python"
