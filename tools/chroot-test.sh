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
# Root only.  All mounts and processes end with this script.  Remove the folder
# when it is no longer of use.

set -euo pipefail

tools=$(cd "$(dirname "$0")" && pwd)

. "$tools/apt-private.sh"
. "$tools/chroot.sh"


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


if [ ! -d "$root" ]; then
    chroot_install "$release" "$root" || die "$release is not installed"
fi

mkdir -p "$root/ratelimit"

# what git does not know, the objects of the last run for one, stays
git ls-files -z --cached --others --exclude-standard \
| xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' sh \
| tar -c --null -T - | tar -x -C "$root/ratelimit" --no-same-owner

chroot_run "$root" sh -euc '
    cd /ratelimit
    tools/setup.sh build run test valkey
    make all
    . /etc/os-release
    echo "$PRETTY_NAME: $(gcc --version | head -n 1)"
    ldd --version | head -n 1
    nginx -v
    redis-server --version
    pkg-config --modversion hiredis
    make prove TESTS="$*"' sh "${tests[@]}"
