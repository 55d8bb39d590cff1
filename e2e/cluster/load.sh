#!/usr/bin/env bash
# Loads image archives (docker-archive tars, as mkimage or `docker save` write
# them) into the cluster. Usage: load.sh single|kind FILE.tar...
set -euo pipefail
kind_of=${1:-}; shift || true
case $kind_of in
  single) . "$(dirname "$0")/single/env.sh"
    for f; do ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io images import "$f" >/dev/null; done ;;
  kind) . "$(dirname "$0")/kind/env.sh"
    for f; do kind load image-archive --name "$CLUSTER_NAME" "$f"; done ;;
  *) echo "usage: load.sh single|kind FILE.tar..." >&2; exit 2 ;;
esac
