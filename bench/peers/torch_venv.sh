#!/usr/bin/env bash
# A virtual environment with PyTorch, without the half of the CUDA wheels that a CPU never loads.
#   bench/peers/torch_venv.sh FOLDER [PACKAGE...]
set -euo pipefail

readonly venv=$1
shift
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  pip install numpy typing_extensions filelock sympy networkx jinja2 fsspec packaging
  pip install --no-deps torch==2.11.0
  # What it links against it names one at a time; the small ones suffice to import it.
  for _ in 1 2 3 4 5 6; do
    said=$("$venv/bin/python" -c 'import torch' 2>&1) && break
    case $said in
      *libcusparseLt*) pip install --no-deps nvidia-cusparselt-cu13 ;;
      *libnvshmem*) pip install --no-deps nvidia-nvshmem-cu13 ;;
      *libcufile*) pip install --no-deps nvidia-cufile ;;
      *libcupti*) pip install --no-deps nvidia-cuda-cupti ;;
      *) pip install torch==2.11.0 ;;
    esac
  done
fi
(($#)) && pip install "$@"
"$venv/bin/python" -c 'import torch'
