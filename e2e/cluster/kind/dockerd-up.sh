#!/usr/bin/env bash
# Starts a Docker engine by hand (no systemd here). Needs root and the Debian
# package docker.io. Does nothing when one answers already.
set -euo pipefail
. "$(dirname "$0")/env.sh"
if ! docker info >/dev/null 2>&1; then
  command -v dockerd >/dev/null || die "no dockerd: apt-get install --no-install-recommends docker.io"
  [ -x "$CLUSTER_BIN/runc-clamp" ] || die "no runc-clamp: run build.sh"
  mkdir -p "$CLUSTER_DOCKER" "$CLUSTER_DOCKER_DATA"
  rm -f "$CLUSTER_DOCKER/docker.pid"
  # --default-runtime: see tools/runc-clamp. --dns: names outside get a "no" at
  # once. The address ranges can't meet those of pods and services.
  setsid nohup dockerd \
    --host "$DOCKER_HOST" --data-root "$CLUSTER_DOCKER_DATA" --exec-root "$CLUSTER_DOCKER/exec" \
    --pidfile "$CLUSTER_DOCKER/docker.pid" --storage-driver overlay2 \
    --add-runtime clamp="$CLUSTER_BIN/runc-clamp" --default-runtime clamp \
    --bip 172.28.0.1/24 --default-address-pool base=172.29.0.0/16,size=24 --dns 127.0.0.1 \
    --log-level warn >"$CLUSTER_DOCKER/dockerd.log" 2>&1 </dev/null &
  save_pid $! "$CLUSTER_DOCKER/engine.pid"
  wait_for 60 "docker engine" docker info
fi
# The nodes' network: reached from this machine, with no way out of it.
net=$KIND_EXPERIMENTAL_DOCKER_NETWORK
docker network inspect "$net" >/dev/null 2>&1 ||
  docker network create -d bridge -o com.docker.network.bridge.name=slkind0 "$net" >/dev/null
iptables -C DOCKER-USER -i slkind0 ! -o slkind0 -j REJECT 2>/dev/null ||
  iptables -I DOCKER-USER -i slkind0 ! -o slkind0 -j REJECT
log "docker at $DOCKER_HOST"
