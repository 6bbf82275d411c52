#!/usr/bin/env bash
# Generation on a GPU: decoded tokens per second at batch 1, 8, 32 and 128 in bf16 and fp8, beside
# transformers' generate (bf16) where that is installed, alternating, medians; greedy continuations
# beside the CPU's, and the pause for new weights. Needs a GPU, and Millrace built on that machine.
#
#   bench/gpu/generate.sh [MODEL] [--quick] [--json FILE]
#
# MODEL is a Hugging Face folder; left out: SmolLM2-135M, which is fetched. PEER_PYTHON names a Python
# that has torch with CUDA and transformers; left out: that of bench/peers, and without one the
# comparison is left out. MILLRACE_PROBE names a probe built elsewhere.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly probe=${MILLRACE_PROBE:-$here/../../build/release/bin/millrace-generate-probe}

command -v nvidia-smi > /dev/null && nvidia-smi -L >&2 || { echo "generate.sh: no GPU here" >&2; exit 2; }
[[ -x $probe ]] || { echo "generate.sh: $probe is missing: ./quickstart build" >&2; exit 2; }

if [[ $# -gt 0 && $1 != --* ]]; then
  model=$1
  shift
else
  model=${SMOLLM2:-$cache/smollm2}
  "$here/../peers/smollm2.sh" "$model" >&2
fi
python=${PEER_PYTHON:-${MILLRACE_PEERS:-$cache/peers}/transformers/bin/python}
[[ -x $python ]] || python=python3
exec "$python" "$here/generate_gpu.py" --model "$model" --probe "$probe" "$@"
