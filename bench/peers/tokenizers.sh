#!/usr/bin/env bash
# Tokenizers beside the `tokenizers` package: the same ids and the same text on thousands of strings.
#
#   bench/peers/tokenizers.sh [--strings N] [--golden FILE] [FOLDER...]
#
# Small tokenizers with each family's configuration (GPT-2, Llama 3, Qwen, SmolLM, GPT-4o, Llama 2
# with byte fallback) are trained by the package; each FOLDER adds a real one (see smollm2.sh).
# Strings of many scripts, code, white space and emoji go through both, both ways, in one run. Prints
# millrace-bench's JSON; status 0 when every string agrees. --golden writes test/golden's file anew.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly venv=${MILLRACE_PEERS:-$cache/peers}/tokenizers
readonly program=${TOKENIZER_LINES:-$here/../../build/release/bin/tokenizer_lines}

[[ -x $program ]] || { echo "$program is missing: ./quickstart build" >&2; exit 2; }
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import tokenizers, jinja2' 2>/dev/null \
  || "$venv/bin/python" -m pip install --disable-pip-version-check --quiet 'tokenizers>=0.21' jinja2
# Its threads have been seen to hang; one is enough.
export TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1
exec "$venv/bin/python" "$here/tokenizers_peer.py" --program "$program" "$@"
