#!/bin/bash

# Builds the module and runs tests in another release of Debian:
#
#     tools/chroot-test.sh RELEASE [TEST...]
#
# RELEASE is trixie, testing, ...; TEST is as tools/test.sh takes it, by default
# those that walk the whole path.  The release is installed once by debootstrap,
# from the archive that this machine uses, into CHROOT, by default
# /var/tmp/ratelimit-RELEASE.  What git knows of this tree is copied there, with
# its changes; the module is built for that release's nginx with that release's
# compiler, and what was used is printed.
#
# Root only.  All mounts and processes are in name spaces of their own and end
# with this script.  Remove the folder when it is no longer of use.

set -euo pipefail

tools=$(cd "$(dirname "$0")" && pwd)

. "$tools/apt-private.sh"


die()
{
    echo "chroot-test: $*" >&2
    exit 1
}


if [ $# -eq 0 ]; then
    die "usage: tools/chroot-test.sh RELEASE [TEST...]"
fi

if [ "$(id -u)" -ne 0 ]; then
    die "only root can install another release"
fi

release=$1
shift

root=${CHROOT:-/var/tmp/ratelimit-$release}
tests=("$@")

cd "$tools/.."

if [ ${#tests[@]} -eq 0 ]; then
    shopt -s globstar
    tests=(t/unit/**/*.c t/*/{001,002,010,020,021,030,060,070,100,140}-*.t)
fi


# inside COMMAND...: runs it there, with a /proc and a /dev

inside()
{
    unshare --mount --pid --fork --kill-child sh -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
             HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
    ' inside "$root" "$@" < /dev/null
}


if [ ! -d "$root" ]; then
    command -v debootstrap > /dev/null || die "debootstrap is not installed"

    echo "chroot-test: installing $release into $root"

    archive=$(debian_archive)

    rm -rf "$root.part"

    if ! debootstrap --variant=minbase --include=ca-certificates \
             "$release" "$root.part" "$archive" > "$root.log" 2>&1
    then
        tail -n 5 "$root.log" >&2
        die "debootstrap failed, see $root.log"
    fi

    # as private_apt does: a mirror may lag behind
    echo 'Acquire::Check-Valid-Until "false";' \
        > "$root.part/etc/apt/apt.conf.d/99mirror"

    mv "$root.part" "$root"
fi

mkdir -p "$root/ratelimit"

# what git does not know, the objects of the last run for one, stays
git ls-files -z --cached --others --exclude-standard \
| xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' sh \
| tar -c --null -T - | tar -x -C "$root/ratelimit" --no-same-owner

inside sh -euc 'cd /ratelimit
                tools/setup.sh build run test valkey
                make all
                . /etc/os-release
                echo "$PRETTY_NAME: $(gcc --version | head -n 1)"
                ldd --version | head -n 1
                nginx -v
                redis-server --version
                pkg-config --modversion hiredis
                make prove TESTS="$*"' sh "${tests[@]}"
