#!/usr/bin/env bash
# Makes the images of the end-to-end tests from built programs and Debian packages, without a registry or a daemon:
#
#   sluice        controller, agent and command line: what the Dockerfile makes
#   sluice-e2e    Python with the OpenAI and Anthropic SDKs, and the scripted provider
#   sluice-redis  redis-server and redis-cli
#
# Usage: PROFILE=dev|release build.sh [NAME...]. Archives are in SLUICE_IMAGES (the user's cache folder, sluice/images),
# tagged NAME:dev or NAME:release, and are made anew when what is in them changed. Packages are fetched once; delete the
# folder `debian` there to get newer ones.
set -euo pipefail
. "$(dirname "$0")/../cluster/env.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
images=${SLUICE_IMAGES:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/images}
profile=${PROFILE:-dev}
case $profile in
  dev) target=${CARGO_TARGET_DIR:-$root/target}/debug ;;
  release) target=${CARGO_TARGET_DIR:-$root/target}/release ;;
  *) die "PROFILE=$profile: dev or release" ;;
esac
user=65532
mkdir -p "$images"
# No two at a time: both would write the same files.
exec 9>"$images/.lock"
flock 9

# The least that a program finds: the C library and what says that hosts are looked up by name service.
base="libc6 libgcc-s1"
redis="redis-server redis-tools libatomic1 liblzf1 libjemalloc2 libsystemd0 libssl3 libstdc++6 libcap2 libgcrypt20 libgpg-error0
  liblzma5 libzstd1 liblz4-1"
python="python3.11-minimal libpython3.11-minimal libpython3.11-stdlib media-types libexpat1 zlib1g libssl3 libffi8 libbz2-1.0
  liblzma5 libuuid1"

# packages FOLDER NAME...: unpacks packages into a folder, once, without what no program reads.
packages() {
  local folder=$1 pool=$images/debian/pool name; shift
  [ -e "$folder/.complete" ] && [ "$(cat "$folder/.complete")" = "$*" ] && return
  rm -rf "$folder"; mkdir -p "$folder" "$pool"
  for name; do
    ls "$pool/${name}"_*.deb >/dev/null 2>&1 || fetch "$pool" "$name" || die "no package $name: are Debian's bookworm archives reachable?"
    dpkg-deb -x "$(ls -t "$pool/${name}"_*.deb | head -1)" "$folder"
  done
  rm -rf "$folder"/usr/share/{doc,man,locale,lintian,info,bash-completion} "$folder"/usr/lib/systemd "$folder"/lib/systemd "$folder"/etc
  echo "$*" >"$folder/.complete"
}

updated=
fetch() { # POOL NAME
  (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "$2" >/dev/null 2>&1) && return
  [ "$updated" ] && return 1
  apt-get update -qq && updated=1
  (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "$2" >/dev/null)
}

# authorities FILE: those that Debian ships, and not those that this machine trusts besides.
authorities() {
  [ -s "$1" ] && return
  packages "$images/debian/ca" ca-certificates
  cat "$images"/debian/ca/usr/share/ca-certificates/mozilla/*.crt >"$1.tmp"
  mv "$1.tmp" "$1"
}

# program NAME: one of ours, without its debug information.
program() {
  local from=$target/$1 to=$images/bin/$profile/$1
  [ -x "$from" ] || die "$from is not there: run e2e/bin/images, which builds it"
  mkdir -p "${to%/*}"
  [ "$to" -nt "$from" ] || { strip -o "$to.tmp" "$from" && mv "$to.tmp" "$to"; }
  echo "$to"
}

# skeleton FOLDER: what every image has besides its programs.
skeleton() {
  mkdir -p "$1/etc/ssl/certs" "$1/usr/local/bin"
  printf 'root:x:0:0::/:/sbin/nologin\nnonroot:x:%s:%s::/:/sbin/nologin\n' $user $user >"$1/etc/passwd"
  printf 'root:x:0:\nnonroot:x:%s:\n' $user >"$1/etc/group"
  printf 'hosts: files dns\n' >"$1/etc/nsswitch.conf"
  authorities "$images/debian/ca-certificates.crt"
  cp "$images/debian/ca-certificates.crt" "$1/etc/ssl/certs/"
}

# image NAME PROGRAM PACKAGES-FOLDER... -- FILE...: writes the archive, when one of these is newer.
image() {
  local name=$1 proof=$2 stage sources=() file out; shift 2
  out=$images/$name.tar
  while [ "$1" != -- ]; do sources+=("$1"); shift; done
  shift
  local made="$profile $(cat "$0" "${sources[@]/%//.complete}" | sha256sum) $(stat -c '%n %s %Y' /dev/null "$@")"
  [ -s "$out" ] && [ "$(cat "$out.made" 2>/dev/null)" = "$made" ] && { log "$name:$profile is up to date"; return; }
  stage=$(mktemp -d "$images/stage.XXXXXX")
  for file in "${sources[@]}"; do cp -a "$file/." "$stage/"; done
  rm -f "$stage/.complete"
  skeleton "$stage"
  for file; do cp "$file" "$stage/usr/local/bin/"; done
  chmod -R u+rwX,go+rX,go-w "$stage"
  # Python would compile its libraries at each start of a container, for it can keep nothing.
  if [ -x "$stage/usr/bin/python3" ]; then
    chroot "$stage" /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 /usr/local/lib/python3.11 >/dev/null || true
  fi
  # Whatever it needs and lacks shows here, and not in a pod.
  chroot "$stage" $proof >/dev/null || die "$name: '$proof' does not run in it"
  mkimage -o "$out" -t "$name:$profile" -u "$user" -e SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt -c "" "$stage=/"
  rm -rf "$stage"
  echo "$made" >"$out.made"
}

sdks() { # FOLDER: the SDKs, as the tests on this machine have them
  local pins=$root/e2e/sdk/requirements.txt pip
  [ -e "$1/.complete" ] && cmp -s "$pins" "$1/.complete" && return
  packages "$images/debian/pip" python3-pip-whl
  pip=$(echo "$images"/debian/pip/usr/share/python-wheels/pip-*.whl)
  rm -rf "$1"; mkdir -p "$1"
  # -S: what else this Python has is no concern of theirs.
  PIP_ROOT_USER_ACTION=ignore python3 -S "$pip/pip" install --quiet --no-compile --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform "manylinux_2_28_$(uname -m)" --platform "manylinux2014_$(uname -m)" --platform any \
    --target "$1/usr/local/lib/python3.11/dist-packages" --requirement "$pins" || die "the SDKs could not be fetched"
  cp "$pins" "$1/.complete"
}

"$CLUSTER_HOME/build.sh" mkimage
packages "$images/debian/base" $base
for name in ${*:-sluice sluice-e2e sluice-redis}; do
  case $name in
    sluice)
      image sluice "/usr/local/bin/sluice --version" "$images/debian/base" -- \
        "$(program sluice)" "$(program sluice-agent)" "$(program sluice-controller)" ;;
    sluice-e2e)
      packages "$images/debian/python" $python
      ln -sfn python3.11 "$images/debian/python/usr/bin/python3"
      sdks "$images/debian/sdk"
      image sluice-e2e "/usr/bin/python3 -c __import__('openai'),__import__('anthropic')" \
        "$images/debian/base" "$images/debian/python" "$images/debian/sdk" -- "$(program sluice-provider)" ;;
    sluice-redis)
      packages "$images/debian/redis" $redis
      image sluice-redis "/usr/bin/redis-server --version" "$images/debian/base" "$images/debian/redis" -- ;;
    *) die "no image $name: sluice, sluice-e2e, sluice-redis" ;;
  esac
done
