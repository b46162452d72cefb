#!/bin/bash

# Runs the tests with prove:
#
#     tools/test.sh plain|asan|valgrind [TEST...]
#
# TEST is a t/FOLDER/NNN-*.t, its number alone, or the source of a unit test in
# t/unit/; by default all of them.  For valgrind, which makes nginx some thirty
# times slower, those that walk the whole path.  With QUICK=1 the default is a
# part of them that is done in two minutes.  Folders are those of src/, by what a
# test is about; t/docs/ has a file for each page of the docs, and t/project/ is
# about what is around them.  The environment names the nginx to test,
# TEST_NGINX_BINARY, and the module to load into it, RATELIMIT_MODULE, which is
# empty when the module is compiled in.
# REDIS is the server to test with: redis (the default), valkey, or a program.
#
# Files run in parallel, one more than there are cores, since most of them wait
# most of the time; a -j in PROVEFLAGS overrides it.
#
# Each report of a sanitizer goes to a file of its own; any report fails the
# run, whatever the tests say.
#
# A machine that stands still for a second at the wrong moment can fail a test of
# a fault.  A file of such tests may have a line "# May be run twice: WHY" in its
# head: when it fails it is run once more, alone, and that counts.  It is named
# at the end, and more than two of them fail the run.  A file that counts what a
# limit admits never has that line: it has to pass the first time.

set -euo pipefail

cd "$(dirname "$0")/.."

mode=$1
shift

tests=("$@")
reports=

shopt -s nullglob globstar

if [ ${#tests[@]} -eq 0 ]; then
    if [ "$mode" = valgrind ]; then
        tests=(t/*/{020,030,041,050,060,081,101,110,112}-*.t)
    else
        tests=(t/unit/**/*.c t/*/*.t)
    fi

    if [ -n "${QUICK:-}" ]; then
        tests=(t/unit/**/*.c
               t/*/{000,010,012,013,020,021,022,023,030,040,041}-*.t
               t/*/{050,060,070,071,100,101,110,144,200}-*.t)
    fi
fi

# a number stands for the file that begins with it
for i in "${!tests[@]}"; do
    if [[ ${tests[i]} =~ ^[0-9]{3}$ ]]; then
        found=(t/*/"${tests[i]}"-*.t)

        if [ ${#found[@]} -ne 1 ]; then
            echo "test: no test has the number ${tests[i]}" >&2
            exit 1
        fi

        tests[i]=${found[0]}
    fi
done

# a unit test is named by its source, run as a program
tests=("${tests[@]/#t\/unit\//build/unit/}")
tests=("${tests[@]/%.c/}")

case ${REDIS:-} in
    "")             server=${RATELIMIT_REDIS_SERVER:-redis-server} ;;
    redis | valkey) server=$REDIS-server ;;
    *)              server=$REDIS ;;
esac

if ! command -v "$server" > /dev/null; then
    echo "test: $server is not installed" >&2
    exit 1
fi

export RATELIMIT_REDIS_SERVER=$server

# Test::Nginx names the error log by "-e FILE", which nginx takes since 1.19.5
if [[ $("$TEST_NGINX_BINARY" -h 2>&1) != *' -e '* ]]; then
    cat > build/nginx-without-e << END
#!/bin/bash
# $TEST_NGINX_BINARY, which has no "-e FILE"
for word; do
    shift
    case \$word in
        -e) skip=1 ;;
        *)  [ -n "\${skip-}" ] || set -- "\$@" "\$word"; skip= ;;
    esac
done
exec "$TEST_NGINX_BINARY" "\$@"
END
    chmod +x build/nginx-without-e
    export TEST_NGINX_BINARY=$PWD/build/nginx-without-e
fi

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


# again: runs the files once more that failed, if all of them may be and they
# are few, and sets status

again()
{
    local failed=() file most=2

    # the state of prove is YAML: "  FILE:", and below "    last_result: N"
    mapfile -t failed < <(awk '/^  [^ ].*:$/ { sub(/:$/, ""); file = $1 }
                               /last_result: [^0]/ { print file }' .prove)

    if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt $most ]; then
        return
    fi

    for file in "${failed[@]}"; do
        grep -q '^# May be run twice: ' "$file" || return 0
    done

    echo "test: running again, alone: ${failed[*]}" >&2

    if prove -I t/lib ${PROVEFLAGS:-} -j1 "${failed[@]}" < /dev/null; then
        echo "test: failed the first time, passed the second: ${failed[*]}" >&2
        status=0
    fi
}


status=0

# the file that runs others is the longest: the end does not wait for it
for i in "${!tests[@]}"; do
    if [[ ${tests[i]} == t/*/170-* ]]; then
        tests=("${tests[i]}" "${tests[@]:0:i}" "${tests[@]:i+1}")
    fi
done

jobs=$(($(nproc) + 1))

# what valgrind slows down thirty times is the processor's alone
[ "$mode" = valgrind ] && jobs=$(nproc)

run=(prove -I t/lib "-j$jobs" ${PROVEFLAGS:-} "${tests[@]}")

if [ "$mode" = valgrind ]; then

    # nginx starts slowly, and Test::Nginx says so each time
    "${run[@]}" < /dev/null 2> >(grep --line-buffered -vE \
                                     -e '^t/\S+ TEST [0-9]+: ' \
                                     -e '^\s*Retry connecting after ' >&2) \
    || status=1

else
    rm -f .prove
    "${run[@]}" --state=save < /dev/null || status=1

    if [ $status -ne 0 ]; then
        again
    fi

    rm -f .prove
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
