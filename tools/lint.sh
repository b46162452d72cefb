#!/bin/sh

# What "make lint" runs once the module is built:
#
#     tools/lint.sh MODULE.so DIR
#
# DIR is the folder that tools/configure.sh made.  All checks run, whatever
# the ones before them found; the exit code is 1 if any found something.

set -eu

so=$1
dir=$2

status=0


check()
{
    echo "lint: $1"
    shift

    if ! "$@"; then
        status=1
    fi
}


# nginx loads modules into one name space: all that we export has our prefix,
# apart from the three tables by which nginx finds a module

symbols()
{
    nm -D --defined-only --extern-only "$so" | awk '
        $3 !~ /^ngx_http_ratelimit_/ \
        && $3 !~ /^ngx_(modules|module_names|module_order)$/ {
            print "exported without the prefix ngx_http_ratelimit_: " $3
            bad = 1
        }

        END { exit bad }'
}


# Without nginx's headers: quick, and quiet about them.  Variables stand at the
# top of a function here, and NULL is a pointer wherever nginx runs.

cpp_check()
{
    cppcheck --quiet --language=c --std=c99 --error-exitcode=1 \
             --enable=warning,style,performance,portability --inline-suppr \
             --suppress=missingInclude --suppress=missingIncludeSystem \
             --suppress=variableScope --suppress=unusedStructMember \
             --suppress=varFuncNullUB --suppress=constParameter \
             -I src -I "$dir/objs/addon/ratelimit" src
}


# gcc's walk along all paths, with the flags of the build

analyzer()
{
    flags=$(make -s -C "$dir" -f objs/Makefile --no-print-directory \
                --eval='flags: ; @echo $(CFLAGS) $(ALL_INCS)' flags)

    for source in "$PWD"/src/*.c; do
        (cd "$dir" && gcc $flags -fanalyzer -c -o /dev/null "$source")
    done > "$dir/analyzer.log" 2>&1

    cat "$dir/analyzer.log"
    test ! -s "$dir/analyzer.log"
}


# the scripts see what Redis gives them, and nothing else

lua_check()
{
    luacheck --quiet --no-color --no-config --std lua51 \
             --read-globals redis KEYS ARGV cjson cmsgpack bit struct \
                            table.unpack \
             --max-line-length 80 -- lua > "$dir/luacheck.log" \
    || { cat "$dir/luacheck.log"; return 1; }
}


check "style, layers"  tools/check-style.pl
check "symbols"        symbols
check "cppcheck"       cpp_check
check "gcc -fanalyzer" analyzer
check "luacheck"       lua_check

if [ $status -eq 0 ]; then
    echo "lint: nothing found"
fi

exit $status
