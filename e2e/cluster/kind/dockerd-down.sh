#!/usr/bin/env bash
# Ends the Docker engine that dockerd-up.sh started and takes away what it left
# in the machine's network. With --purge also deletes its images.
set -euo pipefail
. "$(dirname "$0")/env.sh"
docker network rm "$KIND_EXPERIMENTAL_DOCKER_NETWORK" >/dev/null 2>&1 || true
stop_pid "$CLUSTER_DOCKER/engine.pid"
# What docker leaves: bridges and iptables chains.
for l in docker0 slkind0; do ip link delete $l 2>/dev/null || true; done
for t in nat filter; do
  iptables-save -t $t 2>/dev/null | sed -n -E 's/^-A (.*(DOCKER|docker0|slkind0|172\.2[89]\.[0-9.]+\/).*)$/\1/p' | while read -r rule; do
    eval "iptables -t $t -D $rule" 2>/dev/null || true
  done
  iptables-save -t $t 2>/dev/null | sed -n 's/^:\(DOCKER[^ ]*\) .*/\1/p' | while read -r chain; do
    iptables -t $t -F "$chain" 2>/dev/null || true
    iptables -t $t -X "$chain" 2>/dev/null || true
  done
done
for d in /sys/fs/cgroup/*/docker; do rmdir "$d" 2>/dev/null || true; done
rm -rf "$CLUSTER_DOCKER"
[ "${1:-}" = --purge ] && rm -rf "$CLUSTER_DOCKER_DATA"
exit 0
