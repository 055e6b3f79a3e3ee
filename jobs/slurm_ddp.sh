#!/usr/bin/env bash
# Checks the allocation, then trains on all of it (jobs/train_ddp.py), from one time limit to the next:
#
#     sbatch jobs/slurm_ddp.sh
#     sbatch -N 4 --ntasks-per-node=8 jobs/slurm_ddp.sh -- --epochs 50    # what follows -- goes to the program
#
# Before the time limit it saves and queues itself again. A job with RUN=NAME goes on from the newest checkpoint of that
# name, whichever job wrote it.
#
#SBATCH --job-name=hpccoll-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
# Tells this shell 120 s before the end: the ranks finish their step and save.
#SBATCH --signal=B:USR1@120
# Queued again it goes on in the same file.
#SBATCH --requeue
#SBATCH --open-mode=append

# ---- settings: edit here, or set them with sbatch --export=ALL,NAME=VALUE

# module load openmpi             # the site's MPI, if hpccoll uses it
# . /shared/venv/bin/activate     # an environment that every node sees
PYTHON=${PYTHON:-python3}
RANK_PYTHON=${RANK_PYTHON:-$PYTHON} # what the ranks run; a script that enters a container, for example
PROGRAM=${PROGRAM:-}              # the training; empty: train_ddp.py, or jobs/train_ddp.py, where sbatch was called
RESULTS=${RESULTS:-${SLURM_SUBMIT_DIR:-$PWD}/hpccoll-results}
RUN=${RUN:-}                      # name of the run; empty: the job's number
REQUEUE=${REQUEUE:-100}           # how often it queues itself again; 0: never
LAUNCHER=${LAUNCHER:-auto}        # srun, mpirun, or auto: srun if it can start this MPI
OVERSUBSCRIBE=${OVERSUBSCRIBE:-0} # 1: more ranks than cores, for tests

# ---- the job

set -euo pipefail
case ${1:-} in
    -h | --help)
        sed -n '2,/^#SBATCH/{/^#SBATCH/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --) shift ;;
esac
[[ -n ${SLURM_JOB_ID:-} ]] || { echo "slurm_ddp: start it with sbatch; without Slurm: jobs/mpirun_ddp.sh" >&2; exit 2; }

# sbatch runs a copy of this file, so where it lay is not known.
for candidate in "$PROGRAM" "${SLURM_SUBMIT_DIR:-$PWD}"/{jobs/,}train_ddp.py; do
    [[ ! -f $candidate ]] || { PROGRAM=$candidate; break; }
done
[[ -f $PROGRAM ]] || { echo "slurm_ddp: no train_ddp.py at ${PROGRAM:-$SLURM_SUBMIT_DIR}; set PROGRAM=/path/to/train_ddp.py" >&2; exit 2; }

# The tasks of an array share a job number.
JOB=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
RUN=${RUN:-$JOB}
DIR=$RESULTS/$RUN
RANKS=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${SLURM_NTASKS_PER_NODE:-1}))}
CPUS=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$CPUS
mkdir -p -- "$DIR"
ln -sfn -- "$RUN" "$RESULTS/LATEST" || true # tasks of an array race for it
rm -f -- "$DIR/PARTIAL" "$DIR/COMPLETE"

LAUNCH=("$PYTHON" -m hpccoll.launch -n "$RANKS" --launcher "$LAUNCHER" --cpus-per-rank "$CPUS")
((RANKS % SLURM_JOB_NUM_NODES)) || LAUNCH+=(--per-host $((RANKS / SLURM_JOB_NUM_NODES)))
((OVERSUBSCRIBE)) && LAUNCH+=(--oversubscribe)

# A trap runs while the shell waits, not while a command is in front. The ranks save on USR1.
child='' reason='' near_limit=0
end() { reason=$1; [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null || true; }
trap 'near_limit=1; end "the time limit is near"' USR1
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
summarise() {
    if "$PYTHON" -c 'import duckdb' 2>/dev/null; then
        run "$PYTHON" -m hpccoll.collect "$DIR/records" >"$DIR/summary.txt" || return
        cat -- "$DIR/summary.txt"
    else
        echo "no summary: pip install duckdb matplotlib rich, then python -m hpccoll.collect $DIR/records"
    fi
}
fail() { # STATUS TEXT
    echo "${reason:+$reason: }$2" >"$DIR/PARTIAL"
    if (($1 == 75)) && [[ -d $DIR/records ]]; then
        summarise || echo "slurm_ddp: the summary failed" >&2
    fi
    echo "slurm_ddp: ${reason:+$reason: }$2 (status $1); what there is lies in $DIR" >&2
    exit "$1"
}

status=0
run "${LAUNCH[@]}" -- "$RANK_PYTHON" -m hpccoll.doctor --preflight "$RANKS" --hosts "$SLURM_JOB_NUM_NODES" || status=$?
((status == 0)) || fail "$status" "the preflight failed"
[[ -z $reason ]] || fail 75 "nothing was trained"

run "${LAUNCH[@]}" -- "$RANK_PYTHON" "$PROGRAM" --checkpoint-dir "$DIR/checkpoints" --log-dir "$DIR/records" \
    --json "$DIR/result.json" "$@" || status=$?
if ((status == 75 && near_limit && ${SLURM_RESTART_COUNT:-0} < REQUEUE)); then
    echo "slurm_ddp: saved before the time limit; queued again, number $((${SLURM_RESTART_COUNT:-0} + 1)) of $REQUEUE at most"
    echo "$reason; queued again" >"$DIR/PARTIAL"
    scontrol requeue "$JOB" || fail 75 "it cannot be queued again; RUN=$RUN in another job goes on"
    exit 75 # Slurm ends this shell if it has not by then
fi
((status != 75)) || fail 75 "saved before the end; RUN=$RUN in another job goes on"
((status == 0)) || fail "$status" "the training failed"

summarise || fail "$?" "the summary failed"
touch -- "$DIR/COMPLETE"
echo "slurm_ddp: complete; results in $DIR"
