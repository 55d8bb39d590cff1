#!/usr/bin/env bash
# An API server and its etcd, and nothing else: no kubelet, no controllers. What the control plane talks to, for
# measuring it and for taking the API server away. Needs the programs that e2e/cluster/build.sh makes.
#
#   e2e/scale/api.sh up|down|restart|stop-api|start-api    state in $SLUICE_API (/tmp/sluice-api)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${SLUICE_CLUSTER_BIN:-$HOME/.cache/sluice/cluster/bin}
state=${SLUICE_API:-/tmp/sluice-api}
port=${SLUICE_API_PORT:-16443}
etcd=${SLUICE_ETCD_PORT:-12379}
export KUBECONFIG=$state/admin.conf

fail() { echo "api.sh: $*" >&2; exit 1; }
run() { # name, command…
  local name=$1; shift
  nohup "$@" >"$state/$name.log" 2>&1 &
  echo $! >"$state/$name.pid"
}
stop() { # name
  local pid
  pid=$(cat "$state/$1.pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm -f "$state/$1.pid"
}
ready() {
  for _ in $(seq 300); do
    "$bin/kubectl" get --raw /readyz >/dev/null 2>&1 && return 0
    sleep 0.2
  done
  fail "the API server is not ready: $state/kube-apiserver.log"
}
start_api() {
  run kube-apiserver "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd" --secure-port "$port" \
    --bind-address 127.0.0.1 --advertise-address 10.254.254.1 --service-cluster-ip-range 10.254.0.0/16 \
    --cert-dir "$state/certs" --token-auth-file "$state/tokens" --authorization-mode RBAC \
    --endpoint-reconciler-type none --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$state/sa.pub" --service-account-signing-key-file "$state/sa.key" \
    --disable-admission-plugins ServiceAccount,TaintNodesByCondition,DefaultTolerationSeconds,Priority
  ready
}

case ${1:-} in
up)
  [ -x "$bin/kube-apiserver" ] || fail "no kube-apiserver in $bin: run e2e/cluster/build.sh"
  mkdir -p "$state"
  openssl genrsa -out "$state/sa.key" 2048 2>/dev/null
  openssl rsa -in "$state/sa.key" -pubout -out "$state/sa.pub" 2>/dev/null
  token=$(openssl rand -hex 16)
  echo "$token,admin,admin,system:masters" >"$state/tokens"
  cat >"$KUBECONFIG" <<Y
apiVersion: v1
kind: Config
clusters: [{name: api, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: api, context: {cluster: api, user: admin}}]
current-context: api
Y
  run etcd "$bin/etcd" --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
    --listen-peer-urls "http://127.0.0.1:$((etcd + 1))" --quota-backend-bytes 4294967296
  start_api
  "$bin/kubectl" apply --server-side -f "$root/crds" >/dev/null
  "$bin/kubectl" wait --for condition=Established crd --all --timeout 30s >/dev/null
  echo "KUBECONFIG=$KUBECONFIG"
  ;;
down) stop kube-apiserver; stop etcd; rm -rf "$state" ;;
stop-api) stop kube-apiserver ;;
start-api) start_api ;;
restart) stop kube-apiserver; start_api ;;
*) fail "up, down, restart, stop-api or start-api" ;;
esac
