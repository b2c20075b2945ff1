#!/bin/sh
# Builds the image's root file system without a container engine, and runs programs in it as the image would.
#
#     clean-root.sh build WORK             a fresh Debian in WORK/debian, the image's root in WORK/debian/image
#     clean-root.sh run WORK COMMAND …     COMMAND as user 65532 (USER_ID=0 for a node's exporter), root read-only,
#                                          /data and /tmp in WORK, the image's environment
#
# Needs Linux, root (for debootstrap, chroot and mount in a mount namespace of its own) and debootstrap ≥ 1.0.128. The
# steps are those of the Dockerfile: both call install.sh, and the environment is read from the Dockerfile. BUILD_CA
# names certificates to trust besides; UV_CACHE a folder that keeps downloads between builds.
set -eu

HERE=$(cd "$(dirname "$0")" && pwd)
SOURCES=$(cd "$HERE/../.." && pwd)
MIRROR=${MIRROR:-http://deb.debian.org/debian}
SUITE=trixie
ROOMS="fleet wire exporter pipeline analyzer recommender enforcer dashboards gputide"

usage() {
    echo "usage: clean-root.sh build WORK | clean-root.sh run WORK COMMAND ..." >&2
    exit 2
}

build() {
    debian=$1/debian
    command -v debootstrap > /dev/null || { echo "clean-root.sh: install debootstrap first" >&2; exit 5; }
    rm -rf "$debian"
    mkdir -p "$debian"
    debootstrap --variant=minbase "$SUITE" "$debian" "$MIRROR"
    mkdir -p "$debian/src" "$debian/run/secrets" "$debian/root/.cache/uv"
    # shellcheck disable=SC2086  # one word each
    tar -C "$SOURCES" -c --exclude=__pycache__ pyproject.toml uv.lock README.md LICENSE deploy/image $ROOMS |
        tar -C "$debian/src" -x --no-same-owner
    [ -z "${BUILD_CA:-}" ] || cp "$BUILD_CA" "$debian/run/secrets/ca"
    cp /etc/resolv.conf "$debian/etc/resolv.conf"
    for step in tools "system /image" "program /image"; do
        # shellcheck disable=SC2016,SC2086  # the inner shell's words; a step and its argument
        unshare --mount --propagation private sh -eu -c '
            mount -t proc proc "$1/proc"
            [ -z "$2" ] || { mkdir -p "$2"; mount --bind "$2" "$1/root/.cache/uv"; }
            root=$1
            shift 2
            exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/root BUILD_CA=/run/secrets/ca \
                SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-}" /src/deploy/image/install.sh "$@"
        ' sh "$debian" "${UV_CACHE:-}" $step
    done
    rm -f "$debian/run/secrets/ca"
}

# The variables of the Dockerfile's last stage, one NAME=VALUE a line.
environment() {
    sed -n '/^FROM scratch/,$ p' "$HERE/Dockerfile" | sed -n '/^ENV /,/[^\\]$/ p' |
        sed -e 's/^ENV //' -e 's/^ *//' -e 's/ *\\$//'
}

run() {
    work=$1
    shift
    id=${USER_ID:-65532}
    mkdir -p "$work/data" "$work/tmp"
    chown "$id" "$work/data"
    chmod 1777 "$work/tmp"
    # shellcheck disable=SC2016  # the inner shell's words
    exec unshare --mount --propagation private sh -eu -c '
        work=$1 id=$2 variables=$3 root=$1/debian/image
        shift 3
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --bind "$work/data" "$root/data"
        mount --bind "$work/tmp" "$root/tmp"
        mount --bind /dev "$root/dev"
        mount -o remount,bind,ro "$root"
        chroot=$(command -v chroot) setpriv=$(command -v setpriv)
        exec env -i $variables "$setpriv" --bounding-set=-all,+sys_chroot,+setuid,+setgid --inh-caps=-all --no-new-privs \
            "$chroot" --userspec="$id:$id" --groups= "$root" "$@"
    ' sh "$work" "$id" "$(environment)" "$@"
}

[ $# -ge 2 ] || usage
[ "$(id -u)" = 0 ] || { echo "clean-root.sh: needs root, for chroot and mount" >&2; exit 2; }
verb=$1
work=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
case $verb in
    build) build "$work" ;;
    run) [ $# -ge 1 ] || usage; run "$work" "$@" ;;
    *) usage ;;
esac
