#!/bin/sh

# Fetches Debian's source package of nginx, patches applied, and prints the
# path of the tree:
#
#     tools/nginx-source.sh [SUITE [DIR]]
#
# SUITE is a release of Debian (bookworm, testing, ...), by default the one
# that this machine runs; DIR is by default build/source/SUITE.  A tree that
# is there already is used again.

set -eu

tools=$(cd "$(dirname "$0")" && pwd)

. "$tools/apt-private.sh"

suite=${1:-$(. /etc/os-release && echo "${VERSION_CODENAME:-testing}")}
dir=${2:-$tools/../build/source/$suite}


# the tree in a folder, if it is there

tree_of()
{
    for header in "$1"/nginx-*/src/core/nginx.h; do
        if [ -f "$header" ]; then
            (cd "$(dirname "$header")/../.." && pwd)
            return
        fi
    done
}


tree=$(tree_of "$dir")

if [ -n "$tree" ]; then
    echo "$tree"
    exit 0
fi

temp=$(mktemp -d)

trap 'rm -rf "$temp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$temp/private" "$temp/source"

fetch()
{
    private_apt_open "$temp/private" deb-src "$suite" || return 1

    if [ "$(id -u)" -eq 0 ] && getent passwd _apt > /dev/null; then
        chown _apt "$temp/source"
    fi

    cd "$temp/source" && private_apt source --only-source nginx
}

if ! (fetch) > "$temp/log" 2>&1
then
    cat "$temp/log" >&2
    echo "cannot get the nginx source package of Debian $suite" >&2
    exit 1
fi

tree=$(tree_of "$temp/source")

mkdir -p "$dir"
mv "$tree" "$dir/"
tree_of "$dir"
