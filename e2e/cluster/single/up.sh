#!/usr/bin/env bash
# A one-node Kubernetes from plain processes, without kind or Docker: etcd, the
# control plane, containerd, kubelet, kube-proxy and CoreDNS. All of it lives in
# one network namespace, so the machine's own rules and ports stay as they are
# and down.sh has nothing to hunt for. Needs root; run build.sh and images.sh
# first. Running it again brings back what is missing.
set -euo pipefail
. "$(dirname "$0")/env.sh"
for c in containerd runc kubelet kube-proxy etcd conntrack iptables jq; do command -v "$c" >/dev/null || die "no $c"; done
# What a restart of the machine left is of no use: the pods are gone.
[ -e "$CLUSTER_NODE" ] && ! ip netns list | grep -qw "$CLUSTER_NS" && "$CLUSTER_HOME/single/down.sh"
save_sysctls
mkdir -p "$CLUSTER_NODE"/{log,pid,cni,etcd,kubelet}
t0=$SECONDS

start() { # NAME COMMAND...: in the namespace, unless it runs already
  local name=$1 pid; shift
  if alive "$CLUSTER_NODE/pid/$name"; then return 0; fi
  # Not `ip netns exec`: it mounts a new /sys, and kubelet finds no cgroups.
  # nsenter becomes the program, so the id is the program's.
  setsid nohup nsenter --net="/run/netns/$CLUSTER_NS" -- "$@" >>"$CLUSTER_NODE/log/$name.log" 2>&1 </dev/null &
  save_pid $! "$CLUSTER_NODE/pid/$name"
}

# The same, and again when it has ended, as kubelet does elsewhere.
keep() { # NAME COMMAND...
  start "$1" bash -c 'while :; do "$0" "$@"; sleep 0.5; done' "$@"
}

# --- the namespace ---------------------------------------------------------
if ! ip netns list | grep -qw "$CLUSTER_NS"; then
  ip netns add "$CLUSTER_NS"
  ip link add "${CLUSTER_NS:0:11}-h" type veth peer name node0 netns "$CLUSTER_NS"
  ip addr add "$CLUSTER_HOST_IP/30" dev "${CLUSTER_NS:0:11}-h"
  ip link set "${CLUSTER_NS:0:11}-h" up
  in_ns ip link set lo up
  in_ns ip addr add "$CLUSTER_NODE_IP/30" dev node0
  in_ns ip link set node0 up
  # A service's address needs some route before kube-proxy's rules rewrite it:
  # a bridge without ports, so that an address which no service has goes nowhere.
  # All else has no route on purpose: nothing leaves this machine.
  in_ns ip link add svc0 type bridge
  in_ns ip link set svc0 up
  in_ns ip route add "$CLUSTER_SVC_CIDR" dev svc0 src "$CLUSTER_NODE_IP"
  in_ns ip route add unreachable default metric 4000000
  in_ns sysctl -qw net.ipv4.ip_forward=1
  # Pods of one bridge that meet through a service need its rules on the bridge.
  in_ns sysctl -qw net.bridge.bridge-nf-call-iptables=1 || true
fi
: >"$CLUSTER_NODE/resolv.conf"   # no name server outside

# --- certificates and kubeconfigs, by kubeadm ------------------------------
cat >"$CLUSTER_NODE/kubeadm.yaml" <<Y
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: $CLUSTER_NODE_IP, bindPort: 6443}
nodeRegistration: {name: $CLUSTER_NODE_NAME, criSocket: "$CLUSTER_CRI"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $KUBERNETES_VERSION
certificatesDir: $CLUSTER_NODE/pki
controlPlaneEndpoint: $CLUSTER_NODE_IP:6443
networking: {podSubnet: $CLUSTER_POD_CIDR, serviceSubnet: $CLUSTER_SVC_CIDR, dnsDomain: cluster.local}
apiServer: {certSANs: [127.0.0.1, localhost, $CLUSTER_NODE_IP]}
Y
if [ ! -s "$CLUSTER_NODE/admin.conf" ]; then
  in_ns kubeadm init phase certs all --config "$CLUSTER_NODE/kubeadm.yaml" >>"$CLUSTER_NODE/log/kubeadm.log" 2>&1
  # admin.conf's group is bound to cluster-admin by a later phase of kubeadm;
  # super-admin.conf's (system:masters) is bound from the start.
  for c in super-admin controller-manager scheduler kubelet; do
    in_ns kubeadm init phase kubeconfig $c --config "$CLUSTER_NODE/kubeadm.yaml" --kubeconfig-dir "$CLUSTER_NODE" >>"$CLUSTER_NODE/log/kubeadm.log" 2>&1
  done
  in_ns kubeadm kubeconfig user --config "$CLUSTER_NODE/kubeadm.yaml" --client-name system:kube-proxy >"$CLUSTER_NODE/proxy.conf" 2>>"$CLUSTER_NODE/log/kubeadm.log"
  cp "$CLUSTER_NODE/super-admin.conf" "$CLUSTER_NODE/admin.conf"
fi
P=$CLUSTER_NODE/pki

# --- containerd ------------------------------------------------------------
pause=$(grep /pause: "$CLUSTER_IMAGES/list")
cat >"$CLUSTER_NODE/containerd.toml" <<T
version = 2
root = "$CLUSTER_NODE/containerd"
state = "$CLUSTER_NODE/containerd-run"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "$CLUSTER_NODE/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause"
  # Our root may lack CAP_SYS_RESOURCE and then can't lower an oom score.
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  # Pods' network namespaces go away with the state folder.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${CLUSTER_CNI_BIN:-/usr/lib/cni}"
    conf_dir = "$CLUSTER_NODE/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
T
cat >"$CLUSTER_NODE/cni/10-bridge.conflist" <<J
{"cniVersion":"0.4.0","name":"pods","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"$CLUSTER_NODE/ipam","ranges":[[{"subnet":"$CLUSTER_POD_CIDR"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
J
start containerd containerd -c "$CLUSTER_NODE/containerd.toml"
ctr() { command ctr --address "$CLUSTER_NODE/containerd.sock" --namespace k8s.io "$@"; }
wait_for 30 containerd ctr version
have=$(ctr images ls -q)
for t in pause coredns; do
  # An archive that changed since is loaded again.
  if [ "$CLUSTER_IMAGES/$t.tar" -nt "$CLUSTER_NODE/.loaded-$t" ] || ! grep -q "/$t:" <<<"$have"; then
    ctr images import "$CLUSTER_IMAGES/$t.tar" >/dev/null; touch "$CLUSTER_NODE/.loaded-$t"
  fi
done

# --- control plane ---------------------------------------------------------
start etcd etcd --data-dir "$CLUSTER_NODE/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380
keep kube-apiserver --etcd-servers http://127.0.0.1:2379 \
  --advertise-address "$CLUSTER_NODE_IP" --secure-port 6443 --service-cluster-ip-range "$CLUSTER_SVC_CIDR" \
  --tls-cert-file $P/apiserver.crt --tls-private-key-file $P/apiserver.key --client-ca-file $P/ca.crt \
  --kubelet-client-certificate $P/apiserver-kubelet-client.crt --kubelet-client-key $P/apiserver-kubelet-client.key \
  --kubelet-preferred-address-types InternalIP \
  --service-account-key-file $P/sa.pub --service-account-signing-key-file $P/sa.key \
  --service-account-issuer https://kubernetes.default.svc.cluster.local \
  --requestheader-client-ca-file $P/front-proxy-ca.crt --requestheader-allowed-names front-proxy-client \
  --requestheader-extra-headers-prefix X-Remote-Extra- --requestheader-group-headers X-Remote-Group \
  --requestheader-username-headers X-Remote-User \
  --proxy-client-cert-file $P/front-proxy-client.crt --proxy-client-key-file $P/front-proxy-client.key \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged=true
wait_for 90 "API" k get --raw /readyz
# The API server's own user at kubelet (logs, exec, port-forward); kubeadm binds
# it in a phase that isn't run here.
k create clusterrolebinding kubeadm:apiserver-kubelet-client --clusterrole system:kubelet-api-admin --user kube-apiserver-kubelet-client >/dev/null 2>&1 || true
start kube-controller-manager kube-controller-manager --kubeconfig "$CLUSTER_NODE/controller-manager.conf" \
  --authentication-kubeconfig "$CLUSTER_NODE/controller-manager.conf" --authorization-kubeconfig "$CLUSTER_NODE/controller-manager.conf" \
  --bind-address 127.0.0.1 --client-ca-file $P/ca.crt --requestheader-client-ca-file $P/front-proxy-ca.crt \
  --cluster-signing-cert-file $P/ca.crt --cluster-signing-key-file $P/ca.key --root-ca-file $P/ca.crt \
  --service-account-private-key-file $P/sa.key --use-service-account-credentials \
  --cluster-cidr "$CLUSTER_POD_CIDR" --allocate-node-cidrs=false --leader-elect=false --controllers '*,bootstrapsigner,tokencleaner'
start kube-scheduler kube-scheduler --kubeconfig "$CLUSTER_NODE/scheduler.conf" --bind-address 127.0.0.1 --leader-elect=false \
  --authentication-kubeconfig "$CLUSTER_NODE/scheduler.conf" --authorization-kubeconfig "$CLUSTER_NODE/scheduler.conf"

# --- kubelet and kube-proxy ------------------------------------------------
cat >"$CLUSTER_NODE/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# Kubernetes refuses cgroup v1 since 1.35 unless told so.
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$CLUSTER_CGROUP
containerRuntimeEndpoint: $CLUSTER_CRI
# Paths under the state folder instead of /etc and /var.
podLogsDir: $CLUSTER_NODE/pod-logs
staticPodPath: ""
volumePluginDir: $CLUSTER_NODE/volume-plugins
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [$CLUSTER_DNS_IP]
resolvConf: $CLUSTER_NODE/resolv.conf
address: $CLUSTER_NODE_IP
healthzBindAddress: 127.0.0.1
oomScoreAdj: 0
failSwapOn: false
# The machine's disk is shared with other work: never evict or collect for it.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
# Faster for tests; the defaults spare large clusters.
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
registryPullQPS: 0
eventRecordQPS: 0
shutdownGracePeriod: 0s
Y
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then # cgroup v2 (not tried)
  mkdir -p "/sys/fs/cgroup/$CLUSTER_CGROUP"
  sed 's/^/+/; s/ / +/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control || true
fi
for d in /sys/fs/cgroup/{cpu,cpuacct,cpuset,memory,devices,freezer,blkio,pids,systemd}; do
  [ -e $d/cgroup.procs ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ] || continue
  mkdir -p $d/"$CLUSTER_CGROUP"
  # All pods together would count as much as one process of the machine.
  [ "${d##*/}" != cpu ] || echo 4096 >$d/"$CLUSTER_CGROUP"/cpu.shares
  # A cpuset group is unusable until it names its CPUs and memory nodes.
  if [ "${d##*/}" = cpuset ]; then
    cat $d/cpuset.cpus >$d/"$CLUSTER_CGROUP"/cpuset.cpus; cat $d/cpuset.mems >$d/"$CLUSTER_CGROUP"/cpuset.mems
  fi
done
start kubelet kubelet --config "$CLUSTER_NODE/kubelet.yaml" --kubeconfig "$CLUSTER_NODE/kubelet.conf" \
  --root-dir "$CLUSTER_NODE/kubelet" --cert-dir "$CLUSTER_NODE/kubelet/pki" \
  --hostname-override "$CLUSTER_NODE_NAME" --node-ip "$CLUSTER_NODE_IP"
cat >"$CLUSTER_NODE/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $CLUSTER_POD_CIDR
hostnameOverride: $CLUSTER_NODE_NAME
bindAddress: $CLUSTER_NODE_IP
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $CLUSTER_NODE/proxy.conf}
# The table's size is the machine's, not a namespace's: leave it.
conntrack: {maxPerCore: 0, min: 0}
iptables: {minSyncPeriod: 0s}
Y
start kube-proxy kube-proxy --config "$CLUSTER_NODE/proxy.yaml"

wait_for 60 "node object" k get node "$CLUSTER_NODE_NAME"
# --- CoreDNS, by kubeadm ---------------------------------------------------
if ! k -n kube-system get deployment coredns >/dev/null 2>&1; then
  in_ns kubeadm init phase addon coredns --config "$CLUSTER_NODE/kubeadm.yaml" --kubeconfig "$CLUSTER_KUBECONFIG" >>"$CLUSTER_NODE/log/kubeadm.log" 2>&1
  # No server outside to forward to: such names get a plain "no".
  k -n kube-system get configmap coredns -o json \
    | jq '.data.Corefile |= gsub("forward [^\n]*\\{[^}]*\\}\n"; "") | .data.Corefile |= gsub("loop\n"; "")' | k apply -f - >/dev/null 2>&1
  k -n kube-system scale deployment coredns --replicas 1 >/dev/null
fi
wait_for 60 "node Ready" sh -c "kubectl --kubeconfig '$CLUSTER_KUBECONFIG' get node '$CLUSTER_NODE_NAME' -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}' | grep -q True"
k -n kube-system rollout status deployment/coredns --timeout 120s >&2
log "cluster up in $((SECONDS - t0)) s; KUBECONFIG=$CLUSTER_KUBECONFIG"
