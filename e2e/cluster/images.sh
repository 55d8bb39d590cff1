#!/usr/bin/env bash
# Makes the image archives: the control plane under the very names that kubeadm
# asks for (so nothing is ever pulled). Run build.sh first.
# Usage: images.sh [NAME...]; without names: all. The node of single/ needs only
# pause and coredns.
set -euo pipefail
. "$(dirname "$0")/env.sh"
want=" ${*:-all} "

img() { # FILE NAME ENTRYPOINT SRC=DST...
  local s file=$CLUSTER_IMAGES/$1.tar name=$2 entry=$3
  case $want in *" all "*|*" $1 "*) ;; *) return 0 ;; esac
  shift 3
  for s; do # only when a source is newer
    [ "${s%%=*}" -nt "$file" ] && { mkimage -o "$file" -t "$name" -c "$entry" "$@"; return; }
  done
  return 0
}

# elf FOLDER FILE...: copies programs with the libraries that they load.
elf() {
  local root=$1 f lib; shift
  for f; do
    cp -L --parents "$f" "$root"
    ldd "$f" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do [ -e "$root$lib" ] || cp -L --parents "$lib" "$root"; done
  done
}

# kube-proxy calls iptables or nft; both come from this machine's packages.
proxy_root() {
  local root=$CLUSTER_CACHE/stage/kube-proxy n
  [ -x "$root/usr/sbin/nft" ] && { echo "$root"; return; }
  rm -rf "$root"; mkdir -p "$root/usr/sbin" "$root/run" "$root/etc"
  elf "$root" /usr/sbin/xtables-nft-multi /usr/lib/"$(gcc -print-multiarch)"/xtables/*.so
  for n in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -s xtables-nft-multi "$root/usr/sbin/$n"
  done
  : >"$root/etc/nsswitch.conf"
  elf "$root" /usr/sbin/nft
  echo "$root"
}

# kubeadm names the images; here they only get their content. Its list is the
# one of this kubeadm's version when it is asked with a version (without one it
# asks the network first).
kubeadm config images list --kubernetes-version "$KUBERNETES_VERSION" >"$CLUSTER_IMAGES/list.tmp" 2>/dev/null
mv "$CLUSTER_IMAGES/list.tmp" "$CLUSTER_IMAGES/list"
while read -r name; do
  base=${name##*/}; base=${base%%:*}
  case $base in
    kube-proxy) img kube-proxy "$name" "" "$CLUSTER_BIN/kube-proxy=/usr/local/bin/kube-proxy" "$(proxy_root)=/" ;;
    kube-*)  img "$base" "$name" "" "$CLUSTER_BIN/$base=/usr/local/bin/$base" ;;
    etcd)    img etcd "$name" "" "$CLUSTER_BIN/etcd=/usr/local/bin/etcd" ;;
    coredns) img coredns "$name" /coredns "$CLUSTER_BIN/coredns=/coredns" ;;
    pause)   img pause "$name" /pause "$CLUSTER_BIN/pause=/pause" ;;
    *) die "kubeadm asks for an image that we don't make: $name" ;;
  esac
done <"$CLUSTER_IMAGES/list"
