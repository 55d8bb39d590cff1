#!/usr/bin/env bash
# A minimal Debian root with all that a kind node needs, by mmdebstrap from the
# machine's own package sources (so no host is named here). ~2 minutes.
set -euo pipefail
. "$(dirname "$0")/env.sh"
out=$CLUSTER_CACHE/rootfs-$DEBIAN_SUITE.tar
[ -s "$out" ] && { log "have $out"; exit 0; }
command -v mmdebstrap >/dev/null || die "no mmdebstrap: apt-get install mmdebstrap"
sources=()
for f in ${CLUSTER_APT_SOURCES:-/etc/apt/sources.list /etc/apt/sources.list.d/debian.sources}; do [ -s "$f" ] && sources+=("$f"); done
# systemd of Debian 12 still knows cgroup v1; the one of Debian 13 refuses it.
nice -n "${CLUSTER_NICE:-5}" mmdebstrap --mode=root --variant=minbase --skip=check/empty \
  --include=systemd,conntrack,iptables,nftables,iproute2,ethtool,mount,kmod,pigz,e2fsprogs,ca-certificates,curl,jq,procps,socat,containerd,runc,containernetworking-plugins,iputils-ping \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/auth.conf.d "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*' \
  "$DEBIAN_SUITE" "$out.tmp.tar" "${sources[@]}"
mv "$out.tmp.tar" "$out"
log "made $out, $(du -m "$out" | cut -f1) MB"
