#!/usr/bin/env bash
# Try samepath under a real Slurm: four nodes on this host, for as long as this script runs.
# Needs root and Debian's packages: apt-get install slurm-wlm munge
# Usage: scripts/try_slurm.sh [PYTHON]   prints the digests of examples/own_loop.py, then runs the tests
# that need a cluster (a worker is killed under srun, on one node and on two), then compares a study whose runs
# are jobs (--on dask:slurm; needs the extra dask) with one of this machine; exit 0 if all is well
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
place=$(mktemp -d)
mkdir -p "$place/spool" "$place/state" /run/munge
chown munge /run/munge
cat > "$place/slurm.conf" <<CONF
ClusterName=samepath
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd-%n.pid
SlurmdSpoolDir=$place/spool/%n
StateSaveLocation=$place/state
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd-%n.log
SlurmctldPort=16817
NodeName=n[0-3] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[17001-17004] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
export SLURM_CONF=$place/slurm.conf
stop() {
  for file in "$place"/*.pid; do
    [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null
  done
  [ -n "${munged:-}" ] && kill "$munged" 2>/dev/null
  sleep 1
  rm -rf "$place"
}
trap stop EXIT
munged=
if [ ! -S /run/munge/munge.socket.2 ]; then
  su -s /bin/sh munge -c "/usr/sbin/munged --pid-file=/run/munge/samepath.pid"
  sleep 1
  munged=$(cat /run/munge/samepath.pid)
fi
slurmctld -f "$SLURM_CONF"
for node in n0 n1 n2 n3; do slurmd -N "$node" -f "$SLURM_CONF"; done
until [ "$(sinfo --noheader --states=idle --format=%D)" = 4 ]; do sleep 0.5; done
alone=$("$python" examples/own_loop.py | tail -n 1)
echo "alone             $alone"
status=0
for layout in "-N 1 -n 3" "-N 2 -n 2" "-N 4 -n 4"; do
  # shellcheck disable=SC2086 # two words each
  found=$(timeout 120 srun $layout "$python" examples/own_loop.py | tail -n 1)
  echo "srun $layout    $found"
  [ "$found" = "$alone" ] || status=1
done
"$python" -m pytest -q -k srun tests/parity/test_launchers.py tests/parity/test_elastic_launchers.py || status=1
digests() {
  "$python" - "$1" <<'CODE'
import json, pathlib, sys
for file in sorted(pathlib.Path(sys.argv[1]).glob("runs/*/run.json")):
    print(file.parent.name, json.loads(file.read_text())["result"]["digest"])
CODE
}
study=("$(dirname "$python")/samepath" study tests/parity/tiny_recipe.py --batch-sizes 10,20,22 --max-epochs 3)
export DASK_JOBQUEUE__SLURM__SCHEDULER_OPTIONS__HOST=127.0.0.1
export DASK_JOBQUEUE__SLURM__WORKER_EXTRA_ARGS='["--host", "127.0.0.1"]'
export DASK_JOBQUEUE__SLURM__JOB_DIRECTIVES_SKIP='["--mem="]' # these nodes do not say what they have
export DASK_JOBQUEUE__SLURM__LOG_DIRECTORY=$place
"${study[@]}" --out "$place/local" >/dev/null || status=1
timeout 240 "${study[@]}" --out "$place/slurm" --on dask:slurm,cores=1,memory=1GB,jobs=3 >/dev/null || status=1
digests "$place/slurm"
[ "$(digests "$place/slurm")" = "$(digests "$place/local")" ] || status=1
exit $status
