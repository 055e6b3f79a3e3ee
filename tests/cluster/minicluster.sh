#!/usr/bin/env bash
# Several real hosts on one machine, with a real Slurm and real sshds; needs root, Slurm, munge and OpenSSH.
#
# Each host (head, node1 .. nodeN) is one set of Linux namespaces (net, uts, ipc, mount, pid): its own host name,
# eth0 (a veth pair on a bridge), loopback, /etc/hosts, /tmp, /dev/shm, /run and process tree. The rest of the file
# system is shared, as on a cluster with NFS; of /tmp only MC_DIR and the directories in MC_SHARED are. Nothing is
# made in the machine's own network namespace; when a host's init dies, everything in that host dies with it.
#
#   minicluster.sh up                 start all; MC_DIR MC_NODES MC_CPUS, MC_SHARED (one directory a line),
#                                     MC_OWNER (a process with which the cluster ends)
#   minicluster.sh exec HOST CMD...   run CMD in HOST; head is the login node: sbatch, srun, mpirun ...
#   minicluster.sh status | down
#   minicluster.sh kill-node NODE     power off: SIGKILL to everything in it
#   minicluster.sh start-node NODE    power on again
#   minicluster.sh link NODE down|up  pull the network cable, put it back
#   minicluster.sh resume NODE        let Slurm use it again after such a failure
#   minicluster.sh delay NODE MS|off  add MS to NODE's link, each way
#   minicluster.sh tbf NODE RATE|off  limit NODE's link, both ways: tbf node1 100mbit
set -euo pipefail

MC_DIR=${MC_DIR:-/tmp/minicluster}
MC_NODES=${MC_NODES:-2}
MC_CPUS=${MC_CPUS:-2}
MC_SHARED=${MC_SHARED:-$PWD}
D=$MC_DIR
SELF=$(readlink -f "$0")
NET=10.77.0
# shellcheck source=/dev/null
if [ -f "$D/etc/settings" ] && [ "${1:-}" != up ]; then . "$D/etc/settings"; fi
PATH=$PATH:/usr/sbin:/sbin

nodes() { seq -f 'node%g' 1 "$MC_NODES"; }
die() { echo "minicluster: $*" >&2; exit 1; }
init_pid() { # pid (here) of HOST's init, empty when it is off
    local u; u=$(cat "$D/run/$1.unshare" 2>/dev/null) || return 0
    # never a recycled pid: it must be the unshare that we started
    { tr '\0' ' ' < "/proc/$u/cmdline"; } 2>/dev/null | grep -q "^unshare .* _init $1 $D \$" || return 0
    { tr -d ' ' < "/proc/$u/task/$u/children"; } 2>/dev/null || true
}
in_host() { local p; p=$(init_pid "$1"); [ -n "$p" ] || die "$1 is off"; shift; nsenter -t "$p" -n -u -i -m -p --wdns="$PWD" -- "$@"; }

write_config() {
    [ "$(id -u)" = 0 ] || die "needs root, for the namespaces"
    [ ${#D} -le 50 ] || die "MC_DIR is too long: $D (Unix sockets below it have 108 characters in all)"
    case $D in /run/*|/dev/shm/*|/proc/*) die "MC_DIR must not lie on what each host has of its own" ;; esac
    rm -rf "$D"/{run,state,spool,log} # a new cluster: job ids from 1
    mkdir -p "$D"/{etc,run,log,state,spool,munge,ssh}
    chmod 755 "$D" "$D/munge"
    cat > "$D/etc/settings" <<E
MC_NODES=$MC_NODES
MC_CPUS=$MC_CPUS
MC_SHARED=$(printf %q "$MC_SHARED")
E
    { echo "127.0.0.1 localhost"; echo "$NET.254 head"
      for n in $(nodes); do echo "$NET.${n#node} $n"; done; } > "$D/etc/hosts"
    [ -f "$D/etc/munge.key" ] || { head -c 1024 /dev/urandom > "$D/etc/munge.key"; chmod 400 "$D/etc/munge.key"; }
    cat > "$D/etc/slurm.conf" <<E
ClusterName=test
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/munge.socket
CredType=cred/munge
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd.%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.%n.log
# no cgroups, no systemd, no database
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
SwitchType=switch/none
MpiDefault=pmix
MailProg=/bin/true
# $MC_CPUS CPUs a node, however many the machine has
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
# quick: schedule at once, short waits, failures seen early
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdTimeout=5
SlurmctldTimeout=10
InactiveLimit=0
KillWait=2
WaitTime=0
KillOnBadExit=1
MinJobAge=600
ReturnToService=2
UnkillableStepTimeout=10
PropagateResourceLimits=NONE
EnforcePartLimits=ALL
NodeName=node[1-$MC_NODES] CPUs=$MC_CPUS RealMemory=2000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=01:00:00 DefaultTime=5 State=UP OverSubscribe=FORCE:2
E
    [ -f "$D/ssh/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C mc-host -f "$D/ssh/host_key"
    [ -f "$D/ssh/id" ] || ssh-keygen -q -t ed25519 -N '' -C mc-user -f "$D/ssh/id"
    cp "$D/ssh/id.pub" "$D/ssh/authorized_keys"
    cat > "$D/ssh/sshd_config" <<E
Port 22
HostKey $D/ssh/host_key
AuthorizedKeysFile $D/ssh/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
AcceptEnv OMPI_* PRTE_* PMIX_*
MaxStartups 100
UseDNS no
E
    { for h in head $(nodes); do echo "$h $(cut -d' ' -f1,2 "$D/ssh/host_key.pub")"; done; } > "$D/ssh/known_hosts"
    cat > "$D/ssh/config" <<E
Host *
    User root
    IdentityFile $D/ssh/id
    IdentitiesOnly yes
    UserKnownHostsFile $D/ssh/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 5
    SendEnv OMPI_* PRTE_* PMIX_*
    LogLevel ERROR
E
}

host_init() { # runs as pid 1 of the host
    local h=$1 n
    exec < /dev/null > "$D/log/init.$h.log" 2>&1
    hostname "$h"
    mount --bind "$D/etc/hosts" /etc/hosts
    mount -t tmpfs -o mode=1777,size=2g tmpfs /dev/shm
    mount -t tmpfs -o mode=755 tmpfs /run
    # /tmp of its own: pids are each host's own too, and PRRTE's /tmp/prted.PID of two hosts would be one
    mkdir -p /run/tmp; mount -t tmpfs -o mode=1777,size=4g tmpfs /run/tmp
    printf '%s\n' "$D" "${SELF%/*}" "$MC_SHARED" | while IFS= read -r s; do
        case $s in /tmp/?*) mkdir -p "/run$s"; mount --bind "$s" "/run$s" ;; esac
    done
    mount --move /run/tmp /tmp
    mount --bind "$D/ssh/config" /etc/ssh/ssh_config
    rm -rf "$D/spool/$h" # what a killed slurmd left (pmix sockets) would fail the same step's next run
    mkdir -p /run/sshd "$D/spool/$h"
    ip link set lo up
    echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 # one address a host
    if [ "$h" = head ]; then
        ip link add br0 type bridge && ip addr add "$NET.254/24" dev br0 && ip link set br0 up
    else
        for n in $(seq 200); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.02; done
        echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6
        ip addr add "$NET.${h#node}/24" dev eth0; ip link set eth0 up
    fi
    export SLURM_CONF=$D/etc/slurm.conf
    /usr/sbin/sshd -f "$D/ssh/sshd_config" -E "$D/log/sshd.$h.log"
    if [ "$h" = head ]; then
        # one munged, here: a Unix socket is found by its path across network namespaces.  Not at the default
        # path, or Slurm's PMIx offers munge and Open MPI's wheel, built without, warns (PMIX_MCA_psec=native mutes it)
        rm -f "$D/munge/"*
        munged --key-file="$D/etc/munge.key" --socket="$D/munge/munge.socket" --pid-file=/run/munged.pid \
               --log-file="$D/log/munged.log" --seed-file=/run/munged.seed
        slurmctld
    else
        slurmd -N "$h"
    fi
    touch "$D/run/$h.ready"
    while :; do sleep 3600 & wait $!; done # bash reaps what is orphaned here
}

start_host() {
    local h=$1 p
    [ -z "$(init_pid "$h")" ] || die "$h is already on"
    rm -f "$D/run/$h.ready"
    MC_DIR=$D setsid unshare --net --uts --ipc --mount --pid --fork --mount-proc --kill-child -- \
        bash "$SELF" _init "$h" "$D" > /dev/null 2>&1 < /dev/null &
    echo $! > "$D/run/$h.unshare"
    for _ in $(seq 250); do p=$(init_pid "$h"); [ -n "$p" ] && break; sleep 0.02; done
    [ -n "$p" ] || die "$h did not start"
    if [ "$h" != head ]; then
        local v=v$h
        nsenter -t "$(init_pid head)" -n sh -c "ip link del $v 2>/dev/null; ip link add $v type veth peer name eth0 netns $p && ip link set $v master br0 up"
    fi
    for _ in $(seq 1500); do [ -e "$D/run/$h.ready" ] && return; sleep 0.02; done
    cat "$D/log/init.$h.log" >&2; die "$h is not ready"
}

stop_host() {
    local u p; u=$(cat "$D/run/$1.unshare" 2>/dev/null) || return 0
    p=$(init_pid "$1")
    if [ -n "$p" ]; then kill -9 "$p" 2>/dev/null || true; fi
    for _ in $(seq 250); do { kill -0 "$u" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$u/status" 2>/dev/null; } || break; sleep 0.02; done
    rm -f "$D/run/$1.unshare" "$D/run/$1.ready" "$D/run/slurmd.$1.pid" "$D/run/delay.$1.pid"
}

wait_idle() { # until every node is idle
    for _ in $(seq 300); do [ "$(in_host head env SLURM_CONF="$D/etc/slurm.conf" sinfo -h -t idle -o %D 2>/dev/null)" = "$MC_NODES" ] && return; sleep 0.1; done
    tail -n 20 "$D/log/"*.log >&2; die "nodes are not idle after 30 s"
}

resume() { # a node that Slurm has marked down or drained ("Kill task failed") takes jobs again
    for _ in $(seq 100); do
        case $(in_host head env SLURM_CONF="$D/etc/slurm.conf" sinfo -h -n "$1" -o %T) in
        idle|mixed|allocated|completing) return ;;
        *) in_host head env SLURM_CONF="$D/etc/slurm.conf" scontrol update NodeName="$1" State=RESUME 2>/dev/null || true ;;
        esac; sleep 0.2
    done
}

case ${1:-} in
up) [ -z "$(init_pid head)" ] || die "already up in $D"
    trap 'for h in $(nodes) head; do stop_host "$h"; done' EXIT
    write_config
    for h in head $(nodes); do start_host "$h"; done
    # However the process ends for which the cluster was made, the cluster ends too.
    if [ -n "${MC_OWNER:-}" ]; then setsid bash "$SELF" _guard "$MC_OWNER" > /dev/null 2>&1 < /dev/null & fi
    wait_idle
    trap - EXIT ;;
_guard) while [ -d "/proc/$2" ] && [ -n "$(init_pid head)" ]; do sleep 1; done
    for h in $(nodes) head; do stop_host "$h"; done ;;
_init) host_init "$2" ;;
exec) h=$2; shift 2; in_host "$h" env SLURM_CONF="$D/etc/slurm.conf" "$@" ;;
kill-node) stop_host "$2" ;;
start-node) start_host "$2"; resume "$2"; wait_idle ;;
link) in_host head ip link set "v$2" "$3" ;;
resume) resume "$2"; wait_idle ;; # after 'link NODE up': Slurm may have drained or downed it
tbf) for dev in "$2:eth0" "head:v$2"; do
        if [ "$3" = off ]; then in_host "${dev%:*}" tc qdisc del dev "${dev#*:}" root
        else in_host "${dev%:*}" tc qdisc replace dev "${dev#*:}" root tbf rate "$3" burst 256kb latency 50ms; fi; done ;;
delay) n=$2
    if [ -s "$D/run/delay.$n.pid" ]; then
        in_host head sh -c "kill \$(cat $D/run/delay.$n.pid) 2>/dev/null; ip link del d$n 2>/dev/null; ip link set v$n master br0" || true
        rm -f "$D/run/delay.$n.pid"
    fi
    [ "$3" != off ] || exit 0
    in_host head sh -c "ip link add d$n type veth peer name p$n && ip link set d$n master br0 && ip link set v$n nomaster &&
        for i in d$n p$n v$n; do echo 1 > /proc/sys/net/ipv6/conf/\$i/disable_ipv6; ip link set \$i up; done
        setsid python3 '${SELF%/*}/delay_relay.py' v$n p$n $3 > $D/log/delay.$n.log 2>&1 < /dev/null & echo \$! > $D/run/delay.$n.pid"
    for _ in $(seq 100); do grep -q ready "$D/log/delay.$n.log" && exit 0; sleep 0.02; done; die "no relay: $(cat "$D/log/delay.$n.log")" ;;
status) for h in head $(nodes); do p=$(init_pid "$h"); echo "$h ${p:-off}"; done
    in_host head env SLURM_CONF="$D/etc/slurm.conf" sinfo -N -l ;;
down) for h in $(nodes) head; do stop_host "$h"; done ;;
*) sed -n '2,19s/^# \{0,1\}//p' "$SELF"; exit 2 ;;
esac
