#!/bin/sh
# Makes the root file system of the image: `install.sh tools`, `install.sh system ROOT`, `install.sh program ROOT`.
#
# The Dockerfile and clean-root.sh run these three steps, in this order, as root of a fresh Debian (trixie, minbase)
# in a folder that holds the sources. Needs Debian's package mirror and the Python package index; BUILD_CA names a file
# of certificates to trust besides, where both are reached through a company's proxy.
set -eu

HERE=$(cd "$(dirname "$0")" && pwd)
SOURCES=$(cd "$HERE/../.." && pwd)
UV=/opt/uv
PROGRAM=/opt/gputide
USER_ID=65532
# Timestamps of what is made; 2026-01-01 unless given.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}
export SOURCE_DATE_EPOCH DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
if [ -s "${BUILD_CA:-}" ]; then
    export PIP_CERT="$BUILD_CA" SSL_CERT_FILE="$BUILD_CA"
fi

# What the build itself needs; none of it is in the image. uv comes by hash.
tools() {
    apt-get update -q
    apt-get install -qy --no-install-recommends binutils ca-certificates python3 python3-venv
    python3 -m venv "$UV"
    "$UV/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$HERE/uv.txt"
}

# The system: files of the listed Debian packages, whose signatures apt checked, and no package manager.
system() {
    root=$1
    packages=$(mktemp -d)
    chmod 755 "$packages"
    mkdir -p "$root/var/lib/dpkg/status.d"
    names=$(grep -v '^#' "$HERE/system-packages.txt")
    # shellcheck disable=SC2086  # one word each
    (cd "$packages" && apt-get -q -o APT::Sandbox::User=root download $names)
    # base-files brings the links from /bin and /lib into /usr, so it goes first.
    for package in "$packages"/base-files_*.deb "$packages"/*.deb; do
        dpkg-deb --extract "$package" "$root"
        # Scanners read what a system without dpkg is made of from status.d.
        dpkg-deb --field "$package" > "$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
    done
    rm -rf "$packages" "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/lintian" "$root/usr/share/bug"
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    find "$root/usr/share/doc" -type d -empty -delete
    # Modules of the standard library for terminals and dbm, whose libraries nothing here needs.
    for module in readline _curses _curses_panel _dbm _gdbm; do
        rm -f "$root"/usr/lib/python3.13/lib-dynload/"$module".*.so
    done
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/root:/nonexistent\ngputide:x:%s:%s:gputide:/data:/nonexistent\n' \
        "$USER_ID" "$USER_ID" > "$root/etc/passwd"
    printf 'root:x:0:\ngputide:x:%s:\n' "$USER_ID" > "$root/etc/group"
    mkdir -p "$root/data" "$root/tmp" "$root/proc" "$root/sys" "$root/dev"
    chmod 1777 "$root/tmp"
    chown "$USER_ID:$USER_ID" "$root/data"
    ldconfig -r "$root"
    python3 -W ignore -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$root/usr/lib/python3.13"
}

# The program: what uv.lock names, each package by hash, its byte code, and the machine code of its kernels.
program() {
    root=$1
    cd "$SOURCES"
    export UV_PROJECT_ENVIRONMENT="$PROGRAM" UV_PYTHON=/usr/bin/python3 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
    sync="$UV/bin/uv sync --frozen --no-progress --no-default-groups --no-build-isolation --no-editable"
    # What builds sources is locked too: it is installed first, used for them, and taken away again.
    $sync --only-group build
    $sync --inexact --all-extras
    $sync --all-extras
    site=$("$PROGRAM/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Other projects' tests and headers run nowhere; Arrow's network services and numba's OpenMP and TBB are not used.
    find "$site" -depth -type d \( -path '*/pandas/tests' -o -path '*/numpy/*/tests' -o -path '*/pyarrow/tests' \
        -o -path '*/pyarrow/include' -o -path '*/numba/tests' \) -exec rm -rf {} +
    rm -f "$site"/pyarrow/*flight*.so* "$site"/numba/np/ufunc/omppool*.so \
        "$site"/numba/np/ufunc/tbbpool*.so
    # Maps of browser code serve its own authors.
    find "$site" -name '*.js.map' -delete
    strip --strip-unneeded "$site/llvmlite/binding/libllvmlite.so" "$site"/typst/_typst*.so
    python3 -W ignore -m compileall -q --invalidation-mode unchecked-hash "$site"
    # One machine code for every processor of the architecture: the image's environment names the same.
    (cd / && NUMBA_CPU_NAME=generic PYTHONDONTWRITEBYTECODE=1 "$PROGRAM/bin/python" -m gputide.kernels.compile)
    rm -f "$PROGRAM/.lock" "$PROGRAM"/bin/activate* "$PROGRAM/.gitignore"
    mkdir -p "$root/opt"
    cp -a "$PROGRAM" "$root/opt/"
    missing=$(find "$root/opt" "$root/usr/lib" -name '*.so*' -type f -exec env LD_LIBRARY_PATH= ldd {} + 2>/dev/null \
        | awk '/not found/ {print $1}' | sort -u)
    for library in $missing; do
        # A wheel's own libraries find each other by a path relative to the module that loads them.
        [ -n "$(find "$root" -name "$library" -print -quit)" ] && continue
        echo "install.sh: no package of system-packages.txt holds $library" >&2
        exit 1
    done
    find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

case ${1:-} in
    tools) tools ;;
    system | program)
        [ -n "${2:-}" ] || { echo "usage: install.sh $1 ROOT" >&2; exit 2; }
        "$1" "$2"
        ;;
    *) echo "usage: install.sh tools | system ROOT | program ROOT" >&2; exit 2 ;;
esac
