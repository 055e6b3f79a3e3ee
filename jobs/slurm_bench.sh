#!/usr/bin/env bash
# Checks the allocation, then measures the main collectives on it:
#
#     sbatch jobs/slurm_bench.sh
#     sbatch -N 4 --ntasks-per-node=8 jobs/slurm_bench.sh -- -e 64M    # what follows -- goes to the programs
#
#SBATCH --job-name=hpccoll
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
# Tells this shell 60 s before the end, so that what was measured is marked as partial.
#SBATCH --signal=B:USR1@60
# A requeued job goes on in the same file.
#SBATCH --open-mode=append

# ---- settings: edit here, or set them with sbatch --export=ALL,NAME=VALUE

# module load openmpi             # the site's MPI, if hpccoll uses it
# . /shared/venv/bin/activate     # an environment that every node sees
PYTHON=${PYTHON:-python3}
RANK_PYTHON=${RANK_PYTHON:-$PYTHON} # what the ranks run; a script that enters a container, for example
RESULTS=${RESULTS:-${SLURM_SUBMIT_DIR:-$PWD}/hpccoll-results}
COLLECTIVES=${COLLECTIVES:-allreduce broadcast reduce allgather reduce_scatter alltoall}
LAUNCHER=${LAUNCHER:-auto}        # srun, mpirun, or auto: srun if it can start this MPI
OVERSUBSCRIBE=${OVERSUBSCRIBE:-0} # 1: more ranks than cores, for tests

# ---- the job

set -euo pipefail
[[ ${1:-} != -- ]] || shift
[[ -n ${SLURM_JOB_ID:-} ]] || { echo "slurm_bench: start it with sbatch; without Slurm: jobs/mpirun_bench.sh" >&2; exit 2; }

# The tasks of an array share a job number.
JOB=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
DIR=$RESULTS/$JOB
RANKS=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${SLURM_NTASKS_PER_NODE:-1}))}
CPUS=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$CPUS
mkdir -p -- "$DIR"
ln -sfn -- "$JOB" "$RESULTS/LATEST" || true # tasks of an array race for it
rm -f -- "$DIR/PARTIAL" "$DIR/COMPLETE"

LAUNCH=("$PYTHON" -m hpccoll.launch -n "$RANKS" --launcher "$LAUNCHER" --cpus-per-rank "$CPUS")
((RANKS % SLURM_JOB_NUM_NODES)) || LAUNCH+=(--per-host $((RANKS / SLURM_JOB_NUM_NODES)))
((OVERSUBSCRIBE)) && LAUNCH+=(--oversubscribe)

# A trap runs while the shell waits, not while a command is in front.
child='' reason=''
end() { reason=$1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true; }
trap 'end "the time limit is near"' USR1
trap 'end "the job was cancelled"' TERM
run() { # COMMAND...: its exit status
    local status
    "$@" &
    child=$!
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=''
    return "$status"
}
fail() { # STATUS TEXT
    echo "${reason:-$2}" >"$DIR/PARTIAL"
    echo "slurm_bench: ${reason:-$2} (status $1); what was measured is in $DIR" >&2
    exit "$1"
}

status=0
run "${LAUNCH[@]}" -- "$RANK_PYTHON" -m hpccoll.doctor --preflight "$RANKS" --hosts "$SLURM_JOB_NUM_NODES" || status=$?
((status == 0)) || fail "$status" "the preflight failed"

for name in $COLLECTIVES; do
    [[ ! -e $DIR/$name.done ]] || continue # measured before the job was requeued
    [[ -z $reason ]] || fail 143 "$reason"
    run "${LAUNCH[@]}" -- "$RANK_PYTHON" -m "hpccoll.$name" --no-progress --log-dir "$DIR/$name" "$@" >>"$DIR/$name.txt" || status=$?
    cat -- "$DIR/$name.txt"
    ((status == 0)) || fail "$status" "$name failed"
    touch -- "$DIR/$name.done"
done

if "$PYTHON" -c 'import duckdb' 2>/dev/null; then
    run "$PYTHON" -m hpccoll.collect "$DIR" >"$DIR/summary.txt" || fail "$?" "the summary failed"
    cat -- "$DIR/summary.txt"
else
    echo "no summary: pip install duckdb matplotlib rich, then python -m hpccoll.collect $DIR"
fi
touch -- "$DIR/COMPLETE"
echo "slurm_bench: complete; results in $DIR"
