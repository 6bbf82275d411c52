#!/usr/bin/env bash
# The trainer on GPUs: that it computes what the CPU does, and its tokens per second in fp32 and bf16, with
# an offloaded optimiser, and over NCCL ranks on as many GPUs as there are. Needs a GPU, its driver and
# the CUDA toolkit; libtorch's CUDA half comes from ./quickstart.
# Usage: bench/gpu/trainer.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command -v nvidia-smi > /dev/null && nvidia-smi -L || { echo "trainer.sh: no GPU here" >&2; exit 2; }

build=build/release
MILLRACE_CUDA=ON MILLRACE_GPU=ON ./quickstart build
exec $build/bin/millrace-bench-gpu-trainer
