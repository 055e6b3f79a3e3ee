#!/usr/bin/env bash
# Checks the hosts, then measures the main collectives on them, without a batch system:
#
#     HOSTS=node1:2,node2:2 bash jobs/mpirun_bench.sh
#     HOSTS=node1:8,node2:8 bash jobs/mpirun_bench.sh -- -e 64M    # what follows -- goes to the programs
#
# The hosts need the same files at the same paths, and ssh among them without a password.

# ---- settings: edit here, or set them in the environment

# module load openmpi             # the site's MPI, if hpccoll uses it
# . /shared/venv/bin/activate     # an environment that every host sees
PYTHON=${PYTHON:-python3}
RANK_PYTHON=${RANK_PYTHON:-$PYTHON} # what the ranks run; a script that enters a container, for example
HOSTS=${HOSTS:-}                  # host:ranks,host:ranks ...; empty: this host alone
RANKS=${RANKS:-}                  # empty: as many as HOSTS take; 2 on this host alone
CPUS=${CPUS:-1}                   # cores per rank
RESULTS=${RESULTS:-$PWD/hpccoll-results}
COLLECTIVES=${COLLECTIVES:-allreduce broadcast reduce allgather reduce_scatter alltoall}
TIME_LIMIT=${TIME_LIMIT:-1800}    # seconds for each collective
OVERSUBSCRIBE=${OVERSUBSCRIBE:-0} # 1: more ranks than cores, for tests

# ---- the job

set -euo pipefail
[[ ${1:-} != -- ]] || shift

hosts=0 slots=0
for entry in ${HOSTS//,/ }; do
    [[ $entry == *:* ]] || entry+=:1
    hosts=$((hosts + 1)) slots=$((slots + ${entry##*:}))
done
RANKS=${RANKS:-$((slots > 0 ? slots : 2))}
JOB=$(date +%Y%m%d-%H%M%S)-$$
DIR=$RESULTS/$JOB
export OMP_NUM_THREADS=$CPUS
mkdir -p -- "$DIR"
ln -sfn -- "$JOB" "$RESULTS/LATEST"

LAUNCH=("$PYTHON" -m hpccoll.launch -n "$RANKS" --launcher mpirun --cpus-per-rank "$CPUS" --timeout "$TIME_LIMIT")
((hosts == 0)) || LAUNCH+=(--hosts "$HOSTS")
((OVERSUBSCRIBE)) && LAUNCH+=(--oversubscribe)

# A trap runs while the shell waits, not while a command is in front.
child='' reason=''
end() { reason=$1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true; }
trap 'end "interrupted"' INT TERM USR1
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
    echo "mpirun_bench: ${reason:-$2} (status $1); what was measured is in $DIR" >&2
    exit "$1"
}

status=0
if ((hosts > 1)); then
    "$PYTHON" -m hpccoll.doctor --hosts "$(tr , '\n' <<<"$HOSTS" | cut -d: -f1 | paste -sd,)" >"$DIR/doctor.txt" || status=$?
    ((status < 2)) || { cat -- "$DIR/doctor.txt"; fail "$status" "the hosts cannot be used from here"; }
    status=0
fi
run "${LAUNCH[@]}" -- "$RANK_PYTHON" -m hpccoll.doctor --preflight "$RANKS" --hosts $((hosts > 0 ? hosts : 1)) || status=$?
((status == 0)) || fail "$status" "the preflight failed"

for name in $COLLECTIVES; do
    [[ -z $reason ]] || fail 143 "$reason"
    run "${LAUNCH[@]}" -- "$RANK_PYTHON" -m "hpccoll.$name" --no-progress --log-dir "$DIR/$name" "$@" >>"$DIR/$name.txt" || status=$?
    cat -- "$DIR/$name.txt"
    ((status == 0)) || fail "$status" "$name failed"
done

if "$PYTHON" -c 'import duckdb' 2>/dev/null; then
    run "$PYTHON" -m hpccoll.collect "$DIR" >"$DIR/summary.txt" || fail "$?" "the summary failed"
    cat -- "$DIR/summary.txt"
else
    echo "no summary: pip install duckdb matplotlib rich, then python -m hpccoll.collect $DIR"
fi
touch -- "$DIR/COMPLETE"
echo "mpirun_bench: complete; results in $DIR"
