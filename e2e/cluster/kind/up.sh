#!/usr/bin/env bash
# `kind create cluster` with our node image. Run dockerd-up.sh and
# node-image.sh first.
set -euo pipefail
. "$(dirname "$0")/env.sh"
save_sysctls
t0=$SECONDS
if kind get clusters 2>/dev/null | grep -qx "$CLUSTER_NAME"; then
  kind get kubeconfig --name "$CLUSTER_NAME" >"$CLUSTER_KUBECONFIG"
else
  kind create cluster --name "$CLUSTER_NAME" --image "$CLUSTER_NODE_IMAGE" --config "$CLUSTER_HOME/kind/cluster.yaml" \
    --kubeconfig "$CLUSTER_KUBECONFIG" --wait "${CLUSTER_WAIT:-180s}" ${CLUSTER_KIND_FLAGS:-}
fi
# All of it together would count as much as one process of the machine.
docker update --cpu-shares 4096 "$CLUSTER_NAME-control-plane" >/dev/null
kubectl --kubeconfig "$CLUSTER_KUBECONFIG" -n kube-system rollout status deployment/coredns --timeout 120s >&2
log "cluster up in $((SECONDS - t0)) s; KUBECONFIG=$CLUSTER_KUBECONFIG"
