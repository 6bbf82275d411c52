#!/usr/bin/env bash
# A cluster under SLURM: one task per node of the configuration, the first one the trainer's.
#   sbatch --nodes=4 --ntasks-per-node=1 conf/deploy/slurm.sh conf/cluster.json
# The file's hosts are replaced by those that SLURM gave, in the order of cluster.nodes, so put the
# trainer's node first. The folder of this file must be visible on all hosts, as must the data.
#SBATCH --job-name=millrace
#SBATCH --output=millrace-%j.log
set -euo pipefail

config=${1:?"usage: sbatch --nodes=N --ntasks-per-node=1 $0 CONFIG.json [--set path=value ...]"}
shift
millrace=${MILLRACE:-build/release/bin/millrace}
run_dir=runs/slurm-$SLURM_JOB_ID

# `check --nodes` prints name and host of each node, one a line.
mapfile -t names < <("$millrace" check "$config" --nodes | cut -f1)
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if ((${#names[@]} > ${#hosts[@]})); then
  echo "the configuration has ${#names[@]} nodes, the job ${#hosts[@]}" >&2
  exit 2
fi
sets=()
for i in "${!names[@]}"; do
  sets+=(--set "cluster.nodes.$i.host=${hosts[i]}")
done

for i in "${!names[@]}"; do
  extra=()
  [[ $i == 0 ]] && extra=(--run-dir "$run_dir")
  srun --nodes=1 --ntasks=1 --nodelist="${hosts[i]}" --exact \
    "$millrace" node "$config" --name "${names[i]}" "${extra[@]}" "${sets[@]}" "$@" &
done
wait
