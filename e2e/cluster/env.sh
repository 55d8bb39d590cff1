# Sourced by every script here. Each location can be set from outside; none is
# tied to a machine.
CLUSTER_HOME="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$CLUSTER_HOME/versions.env"

# Built programs and images: kept between runs (a cache; safe to delete).
CLUSTER_CACHE="${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/cluster}"
CLUSTER_BIN="${CLUSTER_BIN:-$CLUSTER_CACHE/bin}"
CLUSTER_IMAGES="${CLUSTER_IMAGES:-$CLUSTER_CACHE/images}"
# State of running clusters: deleted by the down scripts.
CLUSTER_RUN="${CLUSTER_RUN:-${TMPDIR:-/tmp}/sluice-cluster}"

PATH="$CLUSTER_BIN:$PATH"
export PATH
mkdir -p "$CLUSTER_BIN" "$CLUSTER_IMAGES" "$CLUSTER_RUN"

# key FILE...: a short name for the content of files and folders (and Go's
# version), to see whether what was made from them is still good.
key() {
  (cd "$CLUSTER_HOME" && { go env GOVERSION; find "$@" -type f | LC_ALL=C sort | xargs cat; } | sha256sum | cut -c1-12)
}

log() { printf '%s %s\n' "$(date +%H:%M:%S)" "$*" >&2; }
die() { log "error: $*"; exit 1; }

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local limit=$1 what=$2 start=$SECONDS; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((SECONDS - start)) -lt "$limit" ] || die "no $what after $limit s"
    sleep 0.5
  done
  log "$what after $((SECONDS - start)) s"
}

# A process is named by its id and its start time: after a restart of the
# machine the id may be another's. A pid file holds both.
# (A zombie counts as gone: process 1 of a sandbox may be slow to collect it.)
pid_start() { awk '{sub(/.*\) /, "")} $1 != "Z" {print $20}' "/proc/$1/stat" 2>/dev/null; }
save_pid() { echo "$1 $(pid_start "$1")" >"$2"; }
alive() { # FILE
  local pid at
  [ -s "$1" ] && read -r pid at <"$1" && [ -n "$at" ] && [ "$(pid_start "$pid")" = "$at" ]
}
# stop_pid FILE [SIGNAL]: ends the process that we started, and no other.
stop_pid() {
  local pid at i
  if alive "$1"; then
    read -r pid at <"$1"
    kill "-${2:-TERM}" "$pid" 2>/dev/null
    for i in $(seq 100); do alive "$1" || break; sleep 0.1; done
    alive "$1" && kill -9 "$pid" 2>/dev/null
  fi
  rm -f "$1"
}

# kubelet changes settings of the whole machine (on an oops it would restart).
# The up scripts note them, the last down script puts them back.
CLUSTER_SYSCTLS="vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops"
save_sysctls() { [ -s "$CLUSTER_RUN/sysctl.saved" ] || sysctl $CLUSTER_SYSCTLS >"$CLUSTER_RUN/sysctl.saved"; }
restore_sysctls() {
  [ -s "$CLUSTER_RUN/sysctl.saved" ] || return 0
  [ -e "$CLUSTER_RUN/single" ] || ls "$CLUSTER_RUN"/kind-*.conf >/dev/null 2>&1 && return 0
  sysctl -qp "$CLUSTER_RUN/sysctl.saved" && rm -f "$CLUSTER_RUN/sysctl.saved"
}
