#!/bin/bash

# Configures nginx and the module in a folder of their own:
#
#     tools/configure.sh DIR TREE ARGUMENT...
#
# TREE is a source tree of nginx or the one of Debian's nginx-dev; DIR gets
# links to what is in it, so nothing is ever written there.  The objects are
# in DIR/objs, what configure says in DIR/configure.log.  The flags that
# nginx-dev's nginx was configured with are added by themselves.

set -eu

dir=$1
tree=$2
shift 2

NGX_CONF_FLAGS=()

if [ -f "$tree/conf_flags" ]; then
    . "$tree/conf_flags"
fi

mkdir -p "$dir"

for entry in "$tree"/*; do
    case ${entry##*/} in
        objs | Makefile | conf_flags) ;;
        *) ln -sfn "$entry" "$dir/" ;;
    esac
done

cd "$dir"

# a checkout of nginx's repository keeps it in auto/
configure=./configure

if [ ! -f configure ]; then
    configure=auto/configure
fi

if ! "$configure" "${NGX_CONF_FLAGS[@]}" "$@" > configure.log 2>&1; then
    rm -f objs/Makefile
    tail -n 15 configure.log >&2
    echo "configure failed, see $dir/configure.log and objs/autoconf.err" >&2
    exit 1
fi
