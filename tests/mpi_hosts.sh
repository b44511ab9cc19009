#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
# mpi_hosts.sh openmpi|mpich PROGRAM ARGUMENTS...
#
# Two ranks under mpirun, each on a host of its own: a network namespace, joined by a pair of
# virtual interfaces, with its own host name, /tmp and no /proc that shows the other's processes.
# mpirun runs on the first and reaches the second through an agent in place of ssh. Ends with 77
# where this machine allows no namespaces.
set -euo pipefail
mpi=$1
shift
name=perseid-mpi-$$
remove() {
  ip netns del "$name-0" 2>/dev/null || true
  ip netns del "$name-1" 2>/dev/null || true
  rm -rf "$folder"
}
folder=$(mktemp -d /var/tmp/perseid-mpi.XXXXXX)
trap remove EXIT
make_hosts() {
  ip netns add "$name-0" && ip netns add "$name-1" &&
    ip link add mpi0 netns "$name-0" type veth peer name mpi1 netns "$name-1" || return
  local host
  for host in 0 1; do
    ip -n "$name-$host" addr add "10.213.8.$((host + 1))/24" dev "mpi$host" &&
      ip -n "$name-$host" link set "mpi$host" up && ip -n "$name-$host" link set lo up || return
  done
  # The kernel may take a second to say that a link runs.
  for host in 0 1; do
    timeout 5 sh -c "until ip -n '$name-$host' link show 'mpi$host' | grep -q 'state UP'; do
      sleep 0.1; done" || return
  done
  ip netns exec "$name-0" unshare --mount --uts --pid --fork true
}
if ! make_hosts 2>/dev/null; then
  echo "this machine allows no network namespaces"
  exit 77
fi
printf '127.0.0.1 localhost\n10.213.8.1 host0\n10.213.8.2 host1\n' >"$folder/hosts"
# on HOST COMMAND...: in the namespaces of the host.
cat >"$folder/on" <<ON
#!/usr/bin/env bash
exec ip netns exec "$name-\$1" unshare --mount --uts --pid --fork --mount-proc bash -c '
  hostname "host\$0" && mount -t tmpfs none /tmp && mount --bind "$folder/hosts" /etc/hosts &&
    exec "\$@"' "\$@"
ON
# What mpirun calls as it would call ssh: HOST COMMAND...; the command is for a shell.
cat >"$folder/agent" <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec "$folder/on" "\${host#host}" sh -c "\$*"
AGENT
chmod +x "$folder/on" "$folder/agent"
case $mpi in
  openmpi)
    command=(mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent "$folder/agent"
      --mca orte_keep_fqdn_hostnames 1 --host 'host0:1,host1:1' -n 2 -x PERSEID_RENDEZVOUS)
    ;;
  mpich)
    # UCX takes namespaces of one kernel for one host.
    export UCX_TLS='tcp,self'
    command=(mpirun.mpich -launcher ssh -launcher-exec "$folder/agent" -hosts 'host0,host1' -n 2)
    ;;
esac
export PERSEID_RENDEZVOUS=mpi:$mpi
timeout 60 "$folder/on" 0 "${command[@]}" "$@"
