#!/usr/bin/env bash
# A training step beside PyTorch in Python, on this machine, in one run.
#
#   bench/peers/trainer.sh [--quick] [--json FILE]
#
# The same model (4 layers, width 256), the same long-tailed batch, the same loss and AdamW: here,
# packed; in Python packed (sequences end to end, attention by sequence), and padded as the Trainer
# of transformers does, with its LlamaForCausalLM. Alternating, medians, one thread each. Prints
# millrace-bench's JSON; status 0 when every bar that could be measured holds. The virtual environment
# is made from PyPI beside Millrace's other caches (MILLRACE_PEERS names another place, MILLRACE_PYTHON
# a Python that has torch and transformers).
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly peers=${MILLRACE_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/millrace/peers}
readonly bench=${MILLRACE_BENCH_PROGRAM:-$here/../../build/release/bin/millrace-bench}
python=${MILLRACE_PYTHON:-$peers/transformers/bin/python}

[[ -x $bench ]] || { echo "$bench is missing: ./quickstart build" >&2; exit 2; }
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  echo "installing torch and transformers into $peers/transformers (once)" >&2
  python3 -m venv "$peers/transformers"
  "$peers/transformers/bin/python" -m pip --disable-pip-version-check --quiet install \
    torch==2.11.0 transformers==4.57.1
  python=$peers/transformers/bin/python
fi
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$here/trainer_peer.py" --bench "$bench" "$@"
