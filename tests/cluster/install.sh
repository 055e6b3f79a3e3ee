#!/usr/bin/env bash
# Installs what the cluster tests need, on Debian or Ubuntu, as root; says in one line why it cannot.
set -euo pipefail
die() { echo "$*"; exit 1; }
((EUID == 0)) || die "needs root, for namespaces and to install Slurm"
# libpmix-dev: Slurm's mpi/pmix loads libpmix.so, a name that only this package has.
need=(slurmctld slurmd slurm-client munge libpmix-dev openssh-server openssh-client iproute2 openmpi-bin libopenmpi3)
if ! dpkg -s "${need[@]}" >/dev/null 2>&1; then
    command -v apt-get >/dev/null || die "Slurm, munge, PMIx, OpenSSH and Open MPI 4 are missing, and there is no apt-get"
    export DEBIAN_FRONTEND=noninteractive
    # No daemon of the host itself is to start.
    { apt-get update -q && RUNLEVEL=1 apt-get install -y -q --no-install-recommends "${need[@]}"; } >&2 ||
        die "apt-get could not install ${need[*]}"
fi
unshare --net --uts --ipc --mount --pid --fork true || die "the system grants no namespaces"
