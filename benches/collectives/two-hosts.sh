#!/bin/bash
# Runs a command as on one of two machines, kiln-a and kiln-b, between which a link has the given rate: two network namespaces with
# names of their own (UTS), joined by a pair of virtual interfaces that a token bucket filter limits in both directions. mpirun
# "logs in" on kiln-b by entering its namespace. Needs root, iproute2 and a kernel with these namespaces and tbf.
#
#   benches/collectives/two-hosts.sh 1gbit kiln launch -n 2 --hosts kiln-a,kiln-b -- bench --collectives
#   benches/collectives/two-hosts.sh 200mbit kiln compare run.toml --world 1,2 --hosts kiln-a,kiln-b --collectives bench-collectives.json
set -euo pipefail
rate=$1
shift
program=$(readlink -f "$0")

if [ "${KILN_TWO_HOSTS:-}" = agent ]; then
    # Called by mpirun as ssh would be: HOST COMMAND.
    exec ip netns exec "$rate" unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$rate" "$@"
fi

clear() {
    ip netns del kiln-a 2>/dev/null || true
    ip netns del kiln-b 2>/dev/null || true
    rm -rf /etc/netns/kiln-a /etc/netns/kiln-b
}
clear
trap clear EXIT
ip netns add kiln-a
ip netns add kiln-b
ip link add kiln-a0 netns kiln-a type veth peer name kiln-b0 netns kiln-b
number=1
for host in kiln-a kiln-b; do
    mkdir -p "/etc/netns/$host"
    printf '127.0.0.1 localhost\n10.77.0.1 kiln-a\n10.77.0.2 kiln-b\n' >"/etc/netns/$host/hosts"
    ip -n "$host" link set lo up
    ip -n "$host" address add "10.77.0.$number/24" dev "${host}0"
    ip -n "$host" link set "${host}0" up
    tc -n "$host" qdisc add dev "${host}0" root tbf rate "$rate" burst 64kb latency 50ms
    number=2
done
export KILN_TWO_HOSTS=agent OMPI_MCA_plm_rsh_agent=$program
export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
ip netns exec kiln-a unshare --uts sh -c 'hostname kiln-a && exec "$@"' sh "$@"
