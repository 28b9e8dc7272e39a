# Kiln as the container of a training job; `kiln help jobs` tells its contract.
#
#   docker build --target cpu  -t kiln:cpu  .
#   docker build --target cuda -t kiln:cuda .     # both engines, for NVIDIA's GPUs
#
# A kiln that is built already is taken from an image that has it as /out/kiln: `--build-arg KILN_CPU=IMAGE`. The container's user is
# not root. A platform that mounts /opt/ml for root alone needs `--build-arg USER=root`.
ARG RUST=rust:1.95-slim-bookworm
ARG DEBIAN=debian:bookworm-slim
ARG CUDA=nvidia/cuda:12.8.1-base-ubuntu24.04
ARG KILN_CPU=build-cpu

FROM ${RUST} AS source
WORKDIR /kiln
# Git is what tells a build its commit; g++ links LLVM in the build for CUDA.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
COPY . .

FROM source AS build-cpu
RUN cargo build --locked --release --package kiln-cli --features push --target-dir /target && install -D /target/release/kiln /out/kiln

FROM source AS build-cuda
# CUDA is loaded when Kiln runs, so it is built without CUDA, for this version. Burn downloads the LLVM that it links.
ENV CUDARC_CUDA_VERSION=12080
RUN CARGO_TARGET_DIR=/target .cargo/install-engines cuda /out

FROM ${CUDA} AS cuda
# NVRTC compiles kernels when they are first used, with the headers of CUDA. The driver is the host's. `kiln push` takes the
# certificates of the system.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates cuda-nvrtc-12-8 cuda-cudart-dev-12-8 cuda-crt-12-8 libstdc++6 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 kiln && install -d -o kiln -g kiln /opt/ml
COPY --from=build-cuda /out/kiln /out/kiln-native /usr/local/bin/
ENV CUDA_PATH=/usr/local/cuda KILN_CACHE=/tmp/kiln HF_HOME=/tmp/huggingface
ARG USER=kiln
USER ${USER}
WORKDIR /opt/ml
ENTRYPOINT ["kiln", "job"]

FROM ${KILN_CPU} AS built-cpu

FROM ${DEBIAN} AS cpu
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 kiln && install -d -o kiln -g kiln /opt/ml
COPY --from=built-cpu /out/kiln /usr/local/bin/
ENV KILN_CACHE=/tmp/kiln HF_HOME=/tmp/huggingface
ARG USER=kiln
USER ${USER}
WORKDIR /opt/ml
ENTRYPOINT ["kiln", "job"]
