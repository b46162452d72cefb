#!/bin/bash

# Runs the tests with prove:
#
#     tools/test.sh plain|asan|valgrind [TEST...]
#
# TEST is a t/*.t or a t/unit/*.c, by default all of them; for valgrind, which
# makes nginx some thirty times slower, those that walk the whole path.  The
# environment names the nginx to test, TEST_NGINX_BINARY, and the module to load
# into it, RATELIMIT_MODULE, which is empty when the module is compiled in.
#
# Each report of a sanitizer goes to a file of its own; any report fails the
# run, whatever the tests say.

set -euo pipefail

cd "$(dirname "$0")/.."

mode=$1
shift

tests=("$@")
reports=

shopt -s nullglob

if [ ${#tests[@]} -eq 0 ]; then
    if [ "$mode" = valgrind ]; then
        tests=(t/{020,030,041,050,060,081,101,110,112}-*.t)
    else
        tests=(t/unit/*.c t/*.t)
    fi
fi

# a unit test is named by its source, run as a program
tests=("${tests[@]/#t\/unit\//build/unit/}")
tests=("${tests[@]/%.c/}")

case $mode in

asan)
    reports=$PWD/build/asan-reports
    # commas: Test::Nginx puts the name of the test into log_path
    export ASAN_OPTIONS=detect_stack_use_after_return=1,log_path=$reports/report
    export UBSAN_OPTIONS=print_stacktrace=1,log_path=$reports/report
    export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.suppress,print_suppressions=0
    export RATELIMIT_PATIENCE=${RATELIMIT_PATIENCE:-5}
    ;;

valgrind)
    # the tests themselves look at what it reports
    export TEST_NGINX_USE_VALGRIND=1
    export VALGRIND_OPTS="--suppressions=$PWD/tools/valgrind.suppress \
--show-leak-kinds=definite --errors-for-leak-kinds=definite"
    ;;
esac

if [ -n "$reports" ]; then
    rm -rf "$reports"
    mkdir -p "$reports"
fi

status=0

run=(prove -I t/lib ${PROVEFLAGS:-} "${tests[@]}")

if [ "$mode" = valgrind ]; then

    # nginx starts slowly, and Test::Nginx says so each time
    "${run[@]}" < /dev/null 2> >(grep --line-buffered -vE \
                                     -e '^t/\S+ TEST [0-9]+: ' \
                                     -e '^\s*Retry connecting after ' >&2) \
    || status=1

else
    "${run[@]}" < /dev/null || status=1
fi

if [ -n "$reports" ]; then
    mapfile -t found < <(find "$reports" -type f -size +0)

    if [ ${#found[@]} -gt 0 ]; then
        head -n 60 "${found[@]}" >&2
        echo "$mode: ${#found[@]} reports in ${reports#"$PWD"/}" >&2
        status=1

    elif [ $status -eq 0 ]; then
        echo "$mode: nothing found"
    fi
fi

exit $status
