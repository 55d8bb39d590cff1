#!/usr/bin/env bash
# Makes the kind node image. Needs build.sh, images.sh, rootfs.sh and a Docker
# engine (dockerd-up.sh) first. kind's own `kind build node-image` can't do it:
# it pulls what it finds missing.
set -euo pipefail
. "$(dirname "$0")/env.sh"
rootfs=sluice/rootfs:$DEBIAN_SUITE
base=sluice/node-base:$KIND_VERSION
ctx=$CLUSTER_CACHE/stage/node

docker image inspect "$rootfs" >/dev/null 2>&1 || docker import "$CLUSTER_CACHE/rootfs-$DEBIAN_SUITE.tar" "$rootfs" >/dev/null

# kind's files come with kind's module. A module carries no file modes.
kind_dir=$(cd / && go mod download -json "sigs.k8s.io/kind@$KIND_VERSION" | jq -r .Dir)
rm -rf "$ctx"; mkdir -p "$ctx"
cp -r --no-preserve=mode "$kind_dir/images/base/files" "$ctx/files"
rm -f "$ctx/files/usr/local/bin/clean-install" "$ctx/files/etc/systemd/system/containerd-fuse-overlayfs.service"
find "$ctx/files" -type d -exec chmod 755 {} + ; find "$ctx/files" -type f -exec chmod 644 {} +
chmod 755 "$ctx"/files/usr/local/bin/* "$ctx"/files/kind/bin/*

mkdir -p "$ctx"/files/usr/bin "$ctx"/files/kind/manifests "$ctx"/files/etc/cni/net.d
for b in kubeadm kubelet kubectl; do cp "$CLUSTER_BIN/$b" "$ctx/files/usr/bin/"; done
cp "$CLUSTER_BIN/crictl" "$ctx/files/usr/local/bin/"
printf %s "$KUBERNETES_VERSION" >"$ctx/files/kind/version"

pause=$(grep /pause: "$CLUSTER_IMAGES/list")
sed -i -e "s|sandbox_image = .*|sandbox_image = \"$pause\"|" \
  -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$ctx/files/etc/containerd/config.toml"
# The plug-in that isn't installed would only make containerd complain.
sed -i '/^\[proxy_plugins/,/address/d' "$ctx/files/etc/containerd/config.toml"
# A lower oom score and higher limits need CAP_SYS_RESOURCE.
sed -i -e '/^OOMScoreAdjust/d' -e '/^Limit/d' "$ctx/files/etc/systemd/system/containerd.service"

# Instead of kindnetd, which is only to be had as an image: the plain bridge
# plugin with the pod range that kind gives the first node. One node only.
cat >"$ctx/files/etc/cni/net.d/10-bridge.conflist" <<'J'
{"cniVersion":"0.4.0","name":"pods","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","ranges":[[{"subnet":"10.244.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
J
cat >"$ctx/files/kind/manifests/default-cni.yaml" <<'Y'
# The network is a file of the node image (/etc/cni/net.d): nothing to install.
apiVersion: v1
kind: ConfigMap
metadata: {name: node-network, namespace: kube-system}
data: {plugin: bridge}
Y
cat >"$ctx/files/kind/manifests/default-storage.yaml" <<'Y'
# No provisioner: a claim needs a volume made by hand.
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
Y
cp "$CLUSTER_HOME/kind/node/Dockerfile" "$ctx/"
# The classic builder: BuildKit is a plug-in that Debian's package lacks.
DOCKER_BUILDKIT=0 docker build -q --build-arg ROOTFS="$rootfs" -t "$base" "$ctx" >/dev/null
log "node base is built"

# The control plane's images go into the node's containerd store, as kind's own
# builder does: not unpacked (that is done at first use) and pinned.
c=sluice-build-$$
docker run -d --name "$c" --security-opt seccomp=unconfined --entrypoint sleep "$base" infinity >/dev/null
trap 'docker rm -f -v "$c" >/dev/null 2>&1' EXIT
docker exec -d "$c" containerd
wait_for 30 "containerd in the build container" docker exec "$c" ctr version
while read -r name; do
  b=${name##*/}; b=${b%%:*}
  docker exec -i "$c" ctr -n k8s.io images import --all-platforms --no-unpack --digests - <"$CLUSTER_IMAGES/$b.tar" >/dev/null
  docker exec "$c" ctr -n k8s.io images label "$name" io.cri-containerd.pinned=pinned >/dev/null
done <"$CLUSTER_IMAGES/list"
docker exec "$c" ctr -n k8s.io images ls -q | grep -v '^import-' >&2
docker exec "$c" pkill -x containerd || true
for i in $(seq 50); do docker exec "$c" pgrep -x containerd >/dev/null || break; sleep 0.1; done
docker commit --change 'ENTRYPOINT [ "/usr/local/bin/entrypoint", "/sbin/init" ]' "$c" "$CLUSTER_NODE_IMAGE" >/dev/null
log "made $CLUSTER_NODE_IMAGE"
# Earlier ones only take space.
docker images sluice/node --format '{{.Repository}}:{{.Tag}}' | grep -vxF "$CLUSTER_NODE_IMAGE" | xargs -r docker rmi >/dev/null 2>&1 || true
