#!/bin/sh

# Makes what is given to others:
#
#     tools/package.sh dist           build/dist/NAME-VERSION.tar.gz
#     tools/package.sh check          the same, and builds the module from it
#     tools/package.sh deb            a package of Debian, in build/deb/
#
# The tarball has what the last commit has, with the time of that commit, so its
# bytes depend on nothing else.  In a tree without git, such as an unpacked
# tarball, it has all files apart from build/.
#
# The package is built from that tarball and packaging/debian, for the nginx of
# this release of Debian.  These variables change it:
#
#     REVISION=2~acme1                what follows 0.6.0- in its version
#     DEBFULLNAME=, DEBEMAIL=         who maintains it, both or none
#     QUICK=1                         no source package, no lintian

set -eu

cd "$(dirname "$0")/.."

name=ngx_http_ratelimit_module
package=libnginx-mod-http-ratelimit
version=$(sed -n 's/^#define NGX_RL_RELEASE  *"\(.*\)".*/\1/p' \
              src/core/ngx_rl_version.h)
tarball=build/dist/$name-$version.tar.gz


die()
{
    echo "package: $*" >&2
    exit 1
}


# is this the top folder of a git work tree?

has_git()
{
    test -e .git && command -v git > /dev/null
}


# the tar of all files, which is not compressed

archive()
{
    if has_git; then
        git -c tar.umask=022 archive --format=tar --prefix="$name-$version/" HEAD
        return
    fi

    tar -c --sort=name --owner=0 --group=0 --numeric-owner --mode=go+rX,go-w \
        --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}" \
        --exclude=./build --exclude='./t/servroot*' \
        --transform="s,^\.,$name-$version," .
}


dist()
{
    if has_git && [ -n "$(git status --porcelain)" ]; then
        echo "package: changes that are not committed are left out" >&2
    fi

    mkdir -p build/dist

    archive > "$tarball.tar"
    gzip -9n < "$tarball.tar" > "$tarball.new"
    rm "$tarball.tar"
    mv "$tarball.new" "$tarball"

    echo "wrote $tarball ($(stat -c %s "$tarball") bytes)"
}


# The tarball is whole: the module can be built, installed and loaded.

check()
{
    dist

    dir=build/dist/check

    rm -rf "$dir"
    mkdir -p "$dir/root"
    tar -x -z -f "$tarball" -C "$dir"

    top=$PWD

    (
        unset MAKEFLAGS MFLAGS MAKELEVEL

        cd "$dir/$name-$version"
        make --no-print-directory all
        make --no-print-directory install \
             DESTDIR="$top/$dir/root" MODULESDIR=/modules
    )

    printf '%s\n' "load_module $top/$dir/root/modules/$name.so;" \
                  'error_log stderr;' 'pid nginx.pid;' 'events {}' \
                  'http {' 'ratelimit_silence no_shards;' \
                  'server { listen unix:http; ratelimit_rate 1r/s; } }' \
        > "$dir/nginx.conf"

    PATH=$PATH:/usr/sbin nginx -t -q -p "$top/$dir" -c nginx.conf \
        -g 'daemon off;' || die "nginx refuses the module of the tarball"

    rm -rf "$dir"
    echo "the module of $tarball builds, and nginx loads it"
}


deb()
{
    dist

    dir=build/deb
    source=$dir/$package-$version

    rm -rf "$dir"
    mkdir -p "$source"
    cp "$tarball" "$dir/${package}_$version.orig.tar.gz"
    tar -x -z -f "$tarball" -C "$source" --strip-components=1
    cp -R "$source/packaging/debian" "$source/debian"

    (
        unset MAKEFLAGS MFLAGS MAKELEVEL CFLAGS LDFLAGS

        cd "$source"

        if [ -n "${REVISION:-}" ]; then
            sed -i "1s|([^)]*)|($version-$REVISION)|" debian/changelog
        fi

        if [ -n "${DEBFULLNAME:-}" ] && [ -n "${DEBEMAIL:-}" ]; then
            sed -i "s|^Maintainer: .*|Maintainer: $DEBFULLNAME <$DEBEMAIL>|" \
                debian/control
            sed -i "s|^ -- .*>  | -- $DEBFULLNAME <$DEBEMAIL>  |" debian/changelog
        fi

        dpkg-buildpackage --no-sign ${QUICK:+--build=binary} > ../build.log 2>&1
    ) || {
        tail -n 30 "$dir/build.log" >&2
        die "dpkg-buildpackage failed, see $dir/build.log"
    }

    rm -rf "$source"

    for file in "$dir"/*.deb; do
        echo "wrote $file ($(stat -c %s "$file") bytes)"
    done

    if [ -z "${QUICK:-}" ] && command -v lintian > /dev/null; then
        lintian --allow-root --fail-on error "$dir"/*.changes
        echo "lintian found no error"
    fi
}


case ${1:-} in
    dist|check|deb) "$1" ;;
    *)              die "usage: tools/package.sh dist|check|deb" ;;
esac
