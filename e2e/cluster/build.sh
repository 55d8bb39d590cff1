#!/usr/bin/env bash
# Builds every program of the cluster from Go modules. Usage: build.sh [NAME...]
# Without names: all. Re-running costs only the links (Go's build cache).
set -euo pipefail
. "$(dirname "$0")/env.sh"

# Static programs, so that they run in images which hold nothing else.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath"
# Nothing here may fetch another Go toolchain.
export GOTOOLCHAIN=local
NICE="nice -n ${CLUSTER_NICE:-5}"

k8s_ldflags() {
  # Without this stamp the programs call themselves v0.0.0-master and kubeadm
  # and the version skew checks refuse to work.
  local minor=${KUBERNETES_VERSION#v1.} p
  minor=${minor%%.*}
  printf -- '-s -w'
  for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- ' -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s' "$p" "$KUBERNETES_VERSION" "$p" "$p" "$minor"
    printf -- ' -X %s.gitCommit=%s -X %s.gitTreeState=archive -X %s.buildDate=%s' "$p" "${CLUSTER_COMMIT:-0000000000000000000000000000000000000000}" "$p" "$p" "${CLUSTER_BUILD_DATE:-1970-01-01T00:00:00Z}"
  done
}

build() { # NAME PACKAGE LDFLAGS
  local start=$SECONDS
  (cd "$CLUSTER_HOME/tools/k8s" && $NICE go build -o "$CLUSTER_BIN/$1" -ldflags "$3" "$2")
  log "built $1 in $((SECONDS - start)) s"
}

install() { # MODULE-PACKAGE VERSION LDFLAGS: a program with its own pins
  local start=$SECONDS
  (cd / && GOBIN="$CLUSTER_BIN" $NICE go install -ldflags "$3" "$1@$2")
  log "installed $1@$2 in $((SECONDS - start)) s"
}

local_go() { # NAME: one of our own programs, which uses only Go's library
  (cd "$CLUSTER_HOME/tools/$1" && $NICE go build -o "$CLUSTER_BIN/$1" -ldflags '-s -w' .)
  log "built $1"
}

all="pause mkimage runc-clamp etcd coredns k8s crictl kind helm"
k8s="kubectl kubeadm kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet"
mkdir -p "$CLUSTER_BIN/.made"
made=$(key versions.env build.sh tools)
for name in ${*:-$all}; do
  # Go would find out by itself that nothing changed, in some seconds each.
  [ "$(cat "$CLUSTER_BIN/.made/$name" 2>/dev/null)" = "$made" ] && continue
  case $name in
    pause)   gcc -Os -s -static -o "$CLUSTER_BIN/pause" "$CLUSTER_HOME/tools/pause/pause.c"; log "built pause" ;;
    mkimage|runc-clamp) local_go "$name" ;;
    etcd)    build etcd go.etcd.io/etcd/server/v3 '-s -w' ;;
    coredns) build coredns ./cmd/coredns '-s -w' ;;
    crictl)  build crictl sigs.k8s.io/cri-tools/cmd/crictl "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=${CRICTL_VERSION#v}" ;;
    k8s) # in one go: the links, which use one core each, overlap
      start=$SECONDS
      (cd "$CLUSTER_HOME/tools/k8s" && $NICE go build -o "$CLUSTER_BIN/" -ldflags "$(k8s_ldflags)" $(printf 'k8s.io/kubernetes/cmd/%s ' $k8s))
      log "built $k8s in $((SECONDS - start)) s" ;;
    kube*)   build "$name" "k8s.io/kubernetes/cmd/$name" "$(k8s_ldflags)" ;;
    kind)    install sigs.k8s.io/kind "$KIND_VERSION" '-s -w' ;;
    helm)    install helm.sh/helm/v4/cmd/helm "$HELM_VERSION" "-s -w -X helm.sh/helm/v4/internal/version.version=$HELM_VERSION" ;;
    *) die "unknown program $name" ;;
  esac
  echo "$made" >"$CLUSTER_BIN/.made/$name"
done
