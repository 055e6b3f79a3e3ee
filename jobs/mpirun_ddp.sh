#!/usr/bin/env bash
# Checks the hosts, then trains on all of them (jobs/train_ddp.py), without a batch system:
#
#     HOSTS=node1:2,node2:2 bash jobs/mpirun_ddp.sh
#     RUN=mine HOSTS=node1:8,node2:8 bash jobs/mpirun_ddp.sh -- --epochs 50    # what follows -- goes to the program
#
# With RUN=NAME, the same command again goes on from the newest checkpoint of that name. USR1, TERM, Ctrl-C and the time
# limit save first; the status is 75 then. The hosts need the same files at the same paths, and ssh among them without
# a password.

# ---- settings: edit here, or set them in the environment

# module load openmpi             # the site's MPI, if hpccoll uses it
# . /shared/venv/bin/activate     # an environment that every host sees
PYTHON=${PYTHON:-python3}
RANK_PYTHON=${RANK_PYTHON:-$PYTHON} # what the ranks run; a script that enters a container, for example
PROGRAM=${PROGRAM:-}              # the training; empty: train_ddp.py beside this file
HOSTS=${HOSTS:-}                  # host:ranks,host:ranks ...; empty: this host alone
RANKS=${RANKS:-}                  # empty: as many as HOSTS take; 2 on this host alone
CPUS=${CPUS:-1}                   # cores per rank
RESULTS=${RESULTS:-$PWD/hpccoll-results}
RUN=${RUN:-}                      # name of the run; empty: a new one
TIME_LIMIT=${TIME_LIMIT:-86400}   # seconds after which it saves and stops
OVERSUBSCRIBE=${OVERSUBSCRIBE:-0} # 1: more ranks than cores, for tests

# ---- the job

set -euo pipefail
case ${1:-} in
    -h | --help)
        sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --) shift ;;
esac

hosts=0 slots=0
for entry in ${HOSTS//,/ }; do
    [[ $entry == *:* ]] || entry+=:1
    hosts=$((hosts + 1)) slots=$((slots + ${entry##*:}))
done
RANKS=${RANKS:-$((slots > 0 ? slots : 2))}
PROGRAM=${PROGRAM:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)/train_ddp.py}
[[ -e $PROGRAM ]] || { echo "mpirun_ddp: there is no $PROGRAM; set PROGRAM=/path/to/train_ddp.py" >&2; exit 2; }
RUN=${RUN:-$(date +%Y%m%d-%H%M%S)-$$}
DIR=$RESULTS/$RUN
export OMP_NUM_THREADS=$CPUS
mkdir -p -- "$DIR"
ln -sfn -- "$RUN" "$RESULTS/LATEST"
rm -f -- "$DIR/PARTIAL" "$DIR/COMPLETE"

LAUNCH=("$PYTHON" -m hpccoll.launch -n "$RANKS" --launcher mpirun --cpus-per-rank "$CPUS")
((hosts == 0)) || LAUNCH+=(--hosts "$HOSTS")
((OVERSUBSCRIBE)) && LAUNCH+=(--oversubscribe)

# A trap runs while the shell waits, not while a command is in front. The ranks save on USR1.
child='' reason=''
end() { reason=$1; [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null || true; }
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
        summarise || echo "mpirun_ddp: the summary failed" >&2
    fi
    echo "mpirun_ddp: ${reason:+$reason: }$2 (status $1); what there is lies in $DIR" >&2
    exit "$1"
}

status=0
if ((hosts > 1)); then
    "$PYTHON" -m hpccoll.doctor --hosts "$(tr , '\n' <<<"$HOSTS" | cut -d: -f1 | paste -sd,)" >"$DIR/doctor.txt" || status=$?
    ((status < 2)) || { cat -- "$DIR/doctor.txt"; fail "$status" "the hosts cannot be used from here"; }
    status=0
fi
run "${LAUNCH[@]}" --timeout 300 -- "$RANK_PYTHON" -m hpccoll.doctor --preflight "$RANKS" --hosts $((hosts > 0 ? hosts : 1)) || status=$?
((status == 0)) || fail "$status" "the preflight failed"
[[ -z $reason ]] || fail 75 "nothing was trained"

# At the limit the ranks have USR1, and two minutes to save.
run timeout --preserve-status --signal=USR1 --kill-after=120 "$TIME_LIMIT" \
    "${LAUNCH[@]}" -- "$RANK_PYTHON" "$PROGRAM" --checkpoint-dir "$DIR/checkpoints" --log-dir "$DIR/records" \
    --json "$DIR/result.json" "$@" || status=$?
((status != 75)) || fail 75 "saved before the end; RUN=$RUN and the same command go on"
((status == 0)) || fail "$status" "the training failed"

summarise || fail "$?" "the summary failed"
touch -- "$DIR/COMPLETE"
echo "mpirun_ddp: complete; results in $DIR"
