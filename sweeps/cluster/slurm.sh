#!/usr/bin/env bash
# A sweep on Slurm: Ray's head on the first node of the allocation, a worker on each other one, then `hpxfer run`.
#   sbatch --nodes=3 --time=04:00:00 sweeps/cluster/slurm.sh SWEEP [RESULTS [OPTION...]]
# The options are those of `hpxfer run`, e.g. --set training.steps=30. Submit it again after a time limit, a preemption, a
# lost node or a crash: it trains what is missing. The sweep, its data, the results and the Python environment must lie on
# a disk that all nodes share.
#
# What one trial takes, from `resources` of the sweep, goes to sbatch or here (an option of sbatch wins):
#   --nodes            at least `nodes`; with more, trials run side by side
#   --cpus-per-task    CPUs of a node: `cpus_per_stack` for each stack on it
#   --gpus-per-node    GPUs of a node: `gpus_per_node` of your own trainer, else as many as stacks shall run on it
# Your site may want --partition and --account too. Slurm warns the job 120 s before its time limit, so that trials leave
# a checkpoint and the driver stores what it has: take 60 s more than `trainer.timeouts.grace_s` if that is longer.
#SBATCH --job-name=hpxfer
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append

set -euo pipefail

sweep=${1:?usage: sbatch sweeps/cluster/slurm.sh SWEEP [RESULTS [OPTION...]]}
results=${2:-results}
environment=${HPXFER_ENV:-"$PWD/.venv"}    # where hpxfer is installed
port=${HPXFER_RAY_PORT:-$((20000 + SLURM_JOB_ID % 20000))}
cpus=${SLURM_CPUS_PER_TASK:-1}

export PATH="$environment/bin:$PATH"
export RAY_USAGE_STATS_ENABLED=0
export SRUN_CPUS_PER_TASK=$cpus  # since Slurm 22.05 a step has one CPU unless srun is told

# A token of this job's own, which only its user can read: whoever reaches a port of this Ray needs it.
secrets=$(mktemp -d "${HPXFER_SHARED:-$HOME}/.hpxfer-$SLURM_JOB_ID.XXXXXX")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$secrets/auth_token"
(umask 077; python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH")

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
scratch=/tmp/hpxfer-ray-$SLURM_JOB_ID  # short, as Unix sockets stand below it; on each node's own disk

started=()
# shellcheck disable=SC2317  # the trap calls it
stop() {
    trap - EXIT TERM INT
    if ((${#started[@]})); then
        kill -TERM "${started[@]}" 2>/dev/null || true
        wait "${started[@]}" 2>/dev/null || true
    fi
    rm -rf -- "$secrets"
}
trap stop EXIT
# Slurm's own warning before the time limit: the driver stores what it has, then the job ends.
trap '[[ -z "${driver:-}" ]] || kill -TERM "$driver"' TERM INT

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --block --node-ip-address="$address" --port="$port" --num-cpus="$cpus" \
    --dashboard-host=127.0.0.1 --temp-dir="$scratch" &
started+=("$!")

# The head is there when its port answers.
python - "$address" "$port" <<'PYTHON'
import socket, sys, time

deadline = time.monotonic() + 120
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
        break
    except OSError:
        if time.monotonic() > deadline:
            sys.exit("Ray's head does not answer; see this job's output")
        time.sleep(1)
PYTHON

for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap \
        ray start --block --address="$address:$port" --num-cpus="$cpus" --temp-dir="$scratch" &
    started+=("$!")
done

hpxfer run "$sweep" --address "$address:$port" --yes --results "$results" "${@:3}" &
driver=$!
code=0
wait "$driver" || code=$?
# A signal ends `wait` early, not the driver: it is still storing.
while kill -0 "$driver" 2>/dev/null; do
    code=0
    wait "$driver" || code=$?
done
exit "$code"
