# Sourced by the scripts of this folder.
. "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/env.sh"

# Our own Docker engine: its socket, data and rules are apart from any other.
CLUSTER_DOCKER="${CLUSTER_DOCKER:-$CLUSTER_RUN/docker}"
# Images and layers survive dockerd-down.sh; they are the bulk of the disk use.
CLUSTER_DOCKER_DATA="${CLUSTER_DOCKER_DATA:-$CLUSTER_CACHE/docker-data}"
if [ -z "${DOCKER_HOST:-}" ]; then
  export DOCKER_HOST="unix://$CLUSTER_DOCKER/docker.sock"
fi
# The tag follows what the image is made of: a change makes a new one.
CLUSTER_NODE_IMAGE="${CLUSTER_NODE_IMAGE:-sluice/node:$KUBERNETES_VERSION-$(key versions.env build.sh images.sh tools kind/rootfs.sh kind/node-image.sh kind/node)}"
CLUSTER_NAME="${CLUSTER_NAME:-sluice}"
CLUSTER_KUBECONFIG="${CLUSTER_KUBECONFIG:-$CLUSTER_RUN/kind-$CLUSTER_NAME.conf}"
# kind's network is made by dockerd-up.sh, without a way out.
export KIND_EXPERIMENTAL_DOCKER_NETWORK="${KIND_EXPERIMENTAL_DOCKER_NETWORK:-slkind}"
# One client for all: that of the engine's package.
[ -x /usr/bin/docker ] && ln -sfn /usr/bin/docker "$CLUSTER_BIN/docker"
