#!/bin/bash

# Checks t/model/limits.pml with Spin, in all its states:
#
#     tools/model.sh [-DNAME[=VALUE]...]
#
# for example -DREQUESTS=2, or -DBUG_LEASE_TWICE, which must be found.  Exits
# with 0 if nothing was found, with 1 if an assertion can fail, and with 2 if
# the search was not exhaustive.

set -euo pipefail

cd "$(dirname "$0")/.."

model=$PWD/t/model/limits.pml
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cd "$dir"

spin "$@" -a "$model" > spin.log || { cat spin.log >&2; exit 2; }
${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -o pan pan.c
./pan -m1000000 -w26 > pan.log 2>&1 || true

errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)

if [ -z "$errors" ] || grep -q 'max search depth too small\|out of memory' pan.log
then
    cat pan.log >&2
    exit 2
fi

if [ "$errors" -ne 0 ]; then
    grep -m 1 'assertion violated\|invalid end state' pan.log
    spin -k limits.pml.trail -t "$@" "$model" 2> /dev/null | tail -n 5 || true
    exit 1
fi

echo "model: $states states, nothing found"
