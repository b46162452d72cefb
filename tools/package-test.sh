#!/bin/bash

# Builds the Debian package in a release of Debian and tests it there:
#
#     tools/package-test.sh RELEASE
#
# RELEASE is bookworm, trixie, testing, ...  The sources are those of the last
# commit.  They are built twice, as two revisions, in a copy of the release that
# has the tools for it, and lintian looks at the result.  Then the packages are
# installed, upgraded, removed and purged in a clean copy of the release that is
# thrown away: packaging/debian-test.sh says what is checked.
#
# The release and the copy for building are kept in /var/tmp for the next run:
# ratelimit-clean-RELEASE and ratelimit-build-RELEASE.  The packages are left in
# build/packages/RELEASE.
#
# Root only.  All mounts and processes end with this script.

set -euo pipefail

tools=$(cd "$(dirname "$0")" && pwd)

. "$tools/apt-private.sh"
. "$tools/chroot.sh"


die()
{
    echo "package-test: $*" >&2
    exit 1
}


if [ $# -ne 1 ]; then
    die "usage: tools/package-test.sh RELEASE"
fi

if [ "$(id -u)" -ne 0 ]; then
    die "only root can install another release"
fi

release=$1
clean=/var/tmp/ratelimit-clean-$release
build=/var/tmp/ratelimit-build-$release
test=

cd "$tools/.."

packages=build/packages/$release


cleanup()
{
    if [ -n "$test" ]; then
        rm -rf --one-file-system "$test"
    fi
}

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM


if [ ! -d "$clean" ]; then
    chroot_install "$release" "$clean" || die "$release is not installed"
fi

if [ ! -d "$build" ]; then
    rm -rf "$build.part"
    cp -a "$clean" "$build.part"
    mv "$build.part" "$build"
fi


# The first revision is the older one for the test of upgrades.

tools/package.sh dist

rm -rf "$build/ratelimit" "$packages"
mkdir -p "$build/ratelimit" "$packages"
tar -x -z -f build/dist/*.tar.gz -C "$build/ratelimit" --strip-components=1

chroot_run "$build" sh -euc '
    cd /ratelimit
    tools/setup.sh build deb
    make deb REVISION=1~old QUICK=1
    mkdir build/packages
    mv build/deb/libnginx-mod-http-ratelimit_*.deb build/packages
    make deb
    mv build/deb/libnginx-mod-http-ratelimit_*.deb build/packages'

cp "$build"/ratelimit/build/packages/*.deb "$packages"


# What the test needs is installed and fetched first: the rest has no network.

test=$(mktemp -d "/var/tmp/ratelimit-test-$release.XXXXXX")
cp -a "$clean/." "$test"
mkdir "$test/packages"
cp "$packages"/*.deb packaging/debian-test.sh "$test/packages"

chroot_run "$test" sh -eu /packages/debian-test.sh prepare
chroot_net=no
chroot_run "$test" sh -eu /packages/debian-test.sh run

echo "package-test: $release: passed"
