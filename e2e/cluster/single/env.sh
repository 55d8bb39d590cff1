# Sourced by the scripts of this folder.
. "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/env.sh"

CLUSTER_NS="${CLUSTER_NS:-slsingle}"                 # network namespace of the whole node
CLUSTER_NODE="${CLUSTER_NODE:-$CLUSTER_RUN/single}"       # state: etcd, certificates, containers
CLUSTER_NODE_NAME="${CLUSTER_NODE_NAME:-sluice-single}"
CLUSTER_HOST_IP="${CLUSTER_HOST_IP:-10.246.0.1}"     # our end of the veth pair
CLUSTER_NODE_IP="${CLUSTER_NODE_IP:-10.246.0.2}"     # the node's end: where the API is
CLUSTER_POD_CIDR="${CLUSTER_POD_CIDR:-10.244.0.0/24}"
CLUSTER_SVC_CIDR="${CLUSTER_SVC_CIDR:-10.96.0.0/16}"
CLUSTER_DNS_IP="${CLUSTER_DNS_IP:-10.96.0.10}"
CLUSTER_KUBECONFIG="${CLUSTER_KUBECONFIG:-$CLUSTER_NODE/admin.conf}"
CLUSTER_CRI="unix://$CLUSTER_NODE/containerd.sock"
# Pods' limits and kubelet's are under this cgroup, apart from all else.
CLUSTER_CGROUP="${CLUSTER_CGROUP:-slsingle}"

in_ns() { nsenter --net="/run/netns/$CLUSTER_NS" -- "$@"; }
k() { kubectl --kubeconfig "$CLUSTER_KUBECONFIG" "$@"; }
