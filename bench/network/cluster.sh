#!/usr/bin/env bash
# conf/cluster.json over four network namespaces with addresses of their own, TLS between the nodes,
# and a delay on every frame.
#
#   bench/network/cluster.sh [DELAY_MS] [millrace up's options …]
#
# Prints the round trip that was measured, and what the run came to. Needs root (namespaces), iproute2
# and Python; the delay (default: 1 ms each way) is made by delayed_switch.py beside this.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly millrace=${MILLRACE_PROGRAM:-$here/../../build/release/bin/millrace}
readonly delay=${1:-1}
shift || true
readonly nodes=(trainer generators-a generators-b judge)
work=$(mktemp -d)

cleanup() {
  for i in "${!nodes[@]}"; do
    ip netns pids "mr$i" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "mr$i" 2>/dev/null || true
  done
  [[ -z ${switch:-} ]] || kill "$switch" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

ends=()
for i in "${!nodes[@]}"; do
  ip netns add "mr$i"
  ends+=("mr$i=10.77.0.$((i + 1))/24")
done
python3 "$here/delayed_switch.py" "$delay" "${ends[@]}" > "$work/switch" &
switch=$!
until grep -q ready "$work/switch"; do
  kill -0 "$switch" || exit 1
  sleep 0.1
done
ip netns exec mr1 python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 7))
for _ in range(21): s.sendto(*s.recvfrom(64))' &
echo=$!
ip netns exec mr0 python3 -c 'import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); time.sleep(0.5); took = []
for i in range(21):
    began = time.monotonic(); s.sendto(b"ping", ("10.77.0.2", 7)); s.recv(64)
    took.append(time.monotonic() - began)
print(f"round trip between two nodes: {1e3 * sorted(took)[10]:.2f} ms")'
wait "$echo"

"$millrace" certs "$work/certs" > /dev/null
python3 - "$here/../../conf/cluster.json" "$work" << 'PY'
import json, re, sys
text = re.sub(r"^\s*//.*$", "", open(sys.argv[1]).read(), flags=re.M)
config, work = json.loads(text), sys.argv[2]
for i, node in enumerate(config["cluster"]["nodes"]):
    node["host"] = f"10.77.0.{i + 1}"
config["cluster"]["tls"] = {"ca": f"{work}/certs/ca.pem", "certificate": f"{work}/certs/node.pem",
                            "key": f"{work}/certs/node.key"}
json.dump(config, open(f"{work}/cluster.json", "w"))
PY
cd "$work"
others=()
for i in 1 2 3; do
  ip netns exec "mr$i" "$millrace" up cluster.json "$@" > "node$i.log" 2>&1 &
  others+=($!)
done
status=0
ip netns exec mr0 "$millrace" up cluster.json --run-dir run "$@" > node0.log 2>&1 || status=$?
if [[ $status != 0 ]]; then
  tail -n 20 node*.log
  exit "$status"
fi
wait "${others[@]}"
tail -n 3 node0.log
python3 -c 'import json; s = json.load(open("run/summary.json")); print({k: s[k] for k in
  ("accuracy_before", "accuracy_after", "staleness_max", "steps", "wall_s")})'
