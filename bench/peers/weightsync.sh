#!/usr/bin/env bash
# Weight sync beside torch.distributed's Gloo broadcast and a reload through safetensors on disk: the
# same bytes, the same receivers, in one run.
#
#   bench/peers/weightsync.sh [--quick] [--json FILE]
#
# Prints millrace-bench's table; status 0 when every bar that could be measured holds. The Python
# packages go into a virtual environment beside Millrace's other caches (MILLRACE_PEERS names another
# place).
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly venv=${MILLRACE_PEERS:-$cache/peers}/weightsync
readonly bench=${MILLRACE_BENCH:-$here/../../build/release/bin/millrace-bench}

[[ -x $bench ]] || { echo "$bench is missing: ./quickstart build" >&2; exit 2; }
"$here/torch_venv.sh" "$venv" safetensors packaging >&2
export MILLRACE_WEIGHTSYNC_PEER="$venv/bin/python $here/weightsync_peer.py"
exec "$bench" weightsync "$@"
