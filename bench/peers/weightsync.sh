#!/usr/bin/env bash
# Weight sync beside torch.distributed's Gloo broadcast and a reload through safetensors on disk: the
# same bytes, the same receivers, in one run.
#
#   bench/peers/weightsync.sh [--quick] [--json FILE]
#
# Prints millrace-bench's table; status 0 when every bar that could be measured holds. The Python
# packages go into a virtual environment beside Millrace's other caches (MILLRACE_PEERS names another
# place); PyTorch is the one that Millrace itself is built with, where ./quickstart installed it.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly venv=${MILLRACE_PEERS:-$cache/peers}/weightsync
readonly bench=${MILLRACE_BENCH:-$here/../../build/release/bin/millrace-bench}

[[ -x $bench ]] || { echo "$bench is missing: ./quickstart build" >&2; exit 2; }
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
libtorch=$(ls -d "$cache"/libtorch-*/ 2>/dev/null | tail -n 1 || true)
if [[ -n $libtorch ]]; then
  export PYTHONPATH=$libtorch
  packages=(numpy safetensors packaging typing_extensions filelock sympy networkx jinja2 fsspec)
else
  packages=(numpy safetensors packaging torch)
fi
"$venv/bin/python" -c 'import torch, safetensors.torch' 2>/dev/null \
  || "${pip[@]}" install "${packages[@]}"
export MILLRACE_WEIGHTSYNC_PEER="$venv/bin/python $here/weightsync_peer.py"
exec "$bench" weightsync "$@"
