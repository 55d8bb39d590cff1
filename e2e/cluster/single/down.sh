#!/usr/bin/env bash
# Ends the cluster of up.sh and deletes all it left: processes, pods, mounts,
# cgroups, the namespace and the state folder.
set -uo pipefail
. "$(dirname "$0")/env.sh"
# kubelet first, or it would start again what is ended.
for p in kubelet kube-proxy kube-scheduler kube-controller-manager kube-apiserver etcd; do
  stop_pid "$CLUSTER_NODE/pid/$p" KILL   # their state goes too: no graceful end
done
if [ -S "$CLUSTER_NODE/containerd.sock" ]; then
  # Pods end by force: nobody waits for their grace periods.
  for t in $(ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io tasks ls -q 2>/dev/null); do
    ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io tasks kill -s KILL -a "$t" >/dev/null 2>&1
  done
  for t in $(ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io containers ls -q 2>/dev/null); do
    ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io tasks delete -f "$t" >/dev/null 2>&1
    ctr --address "$CLUSTER_NODE/containerd.sock" -n k8s.io containers delete "$t" >/dev/null 2>&1
  done
fi
# The shims of pods whose task is gone end by themselves; what is left in the
# namespace is ours alone.
stop_pid "$CLUSTER_NODE/pid/containerd"
for p in $(ip netns pids "$CLUSTER_NS" 2>/dev/null); do kill -9 "$p" 2>/dev/null; done
# Mounts of pods (tokens, secrets, roots), deepest first.
awk -v p="$CLUSTER_NODE/" 'index($5, p) == 1 {print $5}' /proc/self/mountinfo | sort -r | while read -r m; do umount -l "$m" 2>/dev/null; done
ip netns delete "$CLUSTER_NS" 2>/dev/null
ip link delete "${CLUSTER_NS:0:11}-h" 2>/dev/null
for d in /sys/fs/cgroup/*/"$CLUSTER_CGROUP" /sys/fs/cgroup/"$CLUSTER_CGROUP"; do
  [ -d "$d" ] && find "$d" -depth -type d -exec rmdir {} \; 2>/dev/null
done
rm -rf "$CLUSTER_NODE"
restore_sysctls
log "cluster is down"
