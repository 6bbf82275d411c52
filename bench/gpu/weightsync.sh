#!/usr/bin/env bash
# Weight sync between GPU memories of two processes: every value checked, and the time against a copy
# inside the GPU. Needs a GPU, the CUDA toolkit, and a UCX with CUDA: where UCX_ROOT names none, the
# PyPI package libucx-cu13 is installed into build/gpu/ucx.
# Usage: bench/gpu/weightsync.sh [tensors of 64 MiB, default 16]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

command -v nvidia-smi > /dev/null && nvidia-smi -L || { echo "weightsync.sh: no GPU here" >&2; exit 2; }

build=build/gpu
mkdir -p $build
ucx=${UCX_ROOT:-}
if [ -z "$ucx" ]; then
  if ! ls $build/ucx/libucx/lib/libucp.so* > /dev/null 2>&1; then
    echo "installing libucx-cu13 into $build/ucx"
    python3 -m pip install --quiet --no-deps --target $build/ucx libucx-cu13
  fi
  ucx=$PWD/$build/ucx/libucx
fi
[ -d "$ucx/lib" ] || { echo "weightsync.sh: $ucx/lib isn't there; set UCX_ROOT to a UCX with CUDA" >&2; exit 2; }

cmake -G Ninja -B $build -DCMAKE_BUILD_TYPE=Release -DMILLRACE_CUDA=ON -DMILLRACE_TESTS=OFF > $build/configure.log 2>&1 \
  || { tail -20 $build/configure.log; exit 2; }
ninja -C $build millrace-bench-gpu-weightsync

export LD_LIBRARY_PATH=$ucx/lib:${LD_LIBRARY_PATH:-}
export UCX_MODULE_DIR=${UCX_MODULE_DIR:-$ucx/lib/ucx}
exec $build/bin/millrace-bench-gpu-weightsync "${1:-16}"
