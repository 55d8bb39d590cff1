#!/usr/bin/env bash
# From nothing to a cluster: up.sh single|kind. Every step is skipped or short
# when its result is there. Prints the KUBECONFIG to use as the last line.
set -euo pipefail
cd "$(dirname "$0")"; kind_of=${1:-}
case $kind_of in
  single) need="containerd runc conntrack jq gcc" ;;
  kind) need="dockerd mmdebstrap jq gcc" ;;
  *) echo "usage: up.sh single|kind" >&2; exit 2 ;;
esac
for c in $need; do command -v $c >/dev/null || { ./apt.sh $kind_of; break; }; done
if [ $kind_of = single ]; then
  ./build.sh pause mkimage etcd coredns k8s helm
  ./images.sh pause coredns
  ./single/up.sh
  . single/env.sh
else
  ./build.sh
  ./images.sh
  ./kind/rootfs.sh
  ./kind/dockerd-up.sh
  . kind/env.sh
  docker image inspect "$CLUSTER_NODE_IMAGE" >/dev/null 2>&1 || ./kind/node-image.sh
  ./kind/up.sh
fi
echo "KUBECONFIG=$CLUSTER_KUBECONFIG"
