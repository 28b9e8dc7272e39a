#!/usr/bin/env bash
# Packs what benches/gpu/run.sh needs on a machine with a GPU and neither a network nor a toolchain:
#
#     benches/gpu/pack.sh FILE.tar.xz [--with-nvrtc]
#
# Both engines, stripped (KILN_COMPILED and KILN_NATIVE, or what `cargo cuda-compiled` and `cargo cuda-native` have built), the scripts of
# benches/, and with --with-nvrtc NVIDIA's run-time compiler and headers, which tests/fake-cuda/build.sh fetches into the folder that
# FAKE_CUDA names. On the machine:
#
#     tar xJf FILE.tar.xz && kiln-gpu/benches/gpu/run.sh --out results
set -Eeuo pipefail
file="$(realpath -m "${1:?usage: benches/gpu/pack.sh FILE.tar.xz [--with-nvrtc]}")"
root="$(cd "$(dirname "$0")/../.." && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
into="$scratch/kiln-gpu"
mkdir -p "$into/benches"
install --strip "${KILN_COMPILED:-$root/target-compiled/release/kiln}" "$into/kiln"
install --strip "${KILN_NATIVE:-$root/target-native/release/kiln}" "$into/kiln-native"
cp -r "$root/benches/gpu" "$root/benches/pytorch" "$into/benches/"
git -C "$root" log -1 --format='commit %H' >"$into/commit"
if [ "${2:-}" = --with-nvrtc ]; then
    cuda="${FAKE_CUDA:?FAKE_CUDA names the folder of tests/fake-cuda/build.sh}/nvidia/cu13"
    mkdir -p "$into/nvidia/cu13/lib"
    cp -r "$cuda/include" "$into/nvidia/cu13/"
    cp "$cuda"/lib/libnvrtc*.so* "$into/nvidia/cu13/lib/"
    ln -sf libnvrtc.so.13 "$into/nvidia/cu13/lib/libnvrtc.so"
fi
tar -C "$scratch" -cJf "$file" kiln-gpu
echo "$file: $(du -h "$file" | cut -f 1), of which kiln $(du -h "$into/kiln" | cut -f 1) and kiln-native $(du -h "$into/kiln-native" | cut -f 1) unpacked"
