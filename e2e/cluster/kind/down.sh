#!/usr/bin/env bash
# `kind delete cluster`. The engine and its images stay.
set -euo pipefail
. "$(dirname "$0")/env.sh"
kind delete cluster --name "$CLUSTER_NAME" --kubeconfig "$CLUSTER_KUBECONFIG"
rm -f "$CLUSTER_KUBECONFIG"
restore_sysctls
