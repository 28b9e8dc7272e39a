#!/usr/bin/env bash
# Builds the emulated CUDA device in FOLDER and fetches NVIDIA's compiler and headers into it from PyPI (130 MB, once):
#
#     tests/fake-cuda/build.sh FOLDER
#     . FOLDER/env                    # then programs find the device
#
# It needs g++ on x86-64 Linux and a Python with pip. Exit code 3 means that one of them, or the network, is missing, which it has
# said. A module of CUDA's version 13.0 is fetched in the versions that the device was checked with.
set -euo pipefail
into="${1:?usage: tests/fake-cuda/build.sh FOLDER}"
mkdir -p "$into"
into="$(cd "$into" && pwd)"
cd "$(dirname "$0")"
python="${KILN_PYTHON:-python3}"
wheels=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-crt==13.0.88
    nvidia-cuda-nvcc==13.0.88)

skip() {
    echo "skipped: $*"
    exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the emulated CUDA device is for x86-64 Linux"
command -v g++ >/dev/null || skip "no g++ (Debian's package g++)"

cuda="$into/nvidia/cu13"
if [ ! -e "$into/fetched" ]; then
    "$python" -m pip --version >/dev/null 2>&1 || skip "$python has no pip (KILN_PYTHON names another Python)"
    rm -rf "$into/wheels" "$into/nvidia"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --dest "$into/wheels" "${wheels[@]}" \
        >"$into/pip.log" 2>&1 || skip "NVIDIA's compiler cannot be fetched from PyPI: $(tail -n 1 "$into/pip.log")"
    for wheel in "$into"/wheels/*.whl; do
        "$python" -m zipfile -e "$wheel" "$into"
    done
    chmod +x "$cuda/bin/ptxas"
    rm -rf "$into/wheels" "$into"/*.dist-info
    touch "$into/fetched"
fi

lib="$into/lib"
mkdir -p "$lib"
cp -r device thread.h "$lib/" # kernels are compiled with them
built() { # LIBRARY SOURCE...: whether it is newer than its sources
    local library="$1" source
    shift
    for source in "$@"; do [ "$library" -nt "$source" ] || return 1; done
}
flags=(-std=c++17 -O2 -g -Wall -Werror -fPIC -shared -fvisibility=hidden)
driver=(cuda.cpp run.cpp ptx.cpp)
built "$lib/libcuda.so.1" "${driver[@]}" fake.h thread.h build.sh ||
    g++ "${flags[@]}" -Wl,-soname,libcuda.so.1 "${driver[@]}" -o "$lib/libcuda.so.1" -ldl -lpthread
ln -sf libcuda.so.1 "$lib/libcuda.so"
built "$lib/device/device.h.gch" device/device.h thread.h build.sh || # as run.cpp compiles kernels
    g++ -std=c++17 -O1 -fPIC -w -fno-strict-aliasing -ffp-contract=off -x c++-header "$lib/device/device.h" -o "$lib/device/device.h.gch"
built "$lib/libnvrtc.so" nvrtc.cpp build.sh || g++ "${flags[@]}" nvrtc.cpp -o "$lib/libnvrtc.so" -ldl
built "$lib/libnvidia-ml.so.1" nvml.cpp build.sh ||
    g++ "${flags[@]}" -Wl,-soname,libnvidia-ml.so.1 nvml.cpp -o "$lib/libnvidia-ml.so.1"
mkdir -p "$into/nccl" # where no program finds it by itself
built "$into/nccl/libnccl.so.2" nccl.cpp build.sh ||
    g++ "${flags[@]}" -Wl,-soname,libnccl.so.2 -Wl,--no-undefined nccl.cpp -o "$into/nccl/libnccl.so.2" -L"$lib" -lcuda -lrt

cat >"$into/env" <<EOF
export CUDA_PATH="$cuda"
export LD_LIBRARY_PATH="$lib:$cuda/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export FAKE_CUDA_NVRTC="$cuda/lib/libnvrtc.so.13" FAKE_CUDA_PTXAS="$cuda/bin/ptxas" FAKE_CUDA_RUN=1
export FAKE_CUDA_DIR="$into/kernels" FAKE_CUDA_LOG="$into/log" FAKE_NCCL="$into/nccl/libnccl.so.2"
EOF
(
    . "$into/env"
    export FAKE_CUDA_DIR="$into/selftest"
    "$python" selftest.py "$lib" "$cuda/include"
)
echo "the emulated device: . $into/env"
echo "NVIDIA's compiler and headers: $cuda"
echo "generated kernels and ptxas's reports: $into/kernels; notes of the driver: $into/log"
