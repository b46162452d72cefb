#!/bin/sh

# What "make lint" runs once the module is built:
#
#     tools/lint.sh MODULE.so DIR [CHECK [FILE...]]
#
# DIR is the folder that tools/configure.sh made.  All checks run, whatever
# the ones before them found; the exit code is 1 if any found something.  Or
# one of them alone, by the name of its function, and of warnings() a few files
# of src/.

set -eu

so=$1
dir=$2
shift 2

status=0


check()
{
    echo "lint: $1"
    shift

    if ! "$@"; then
        status=1
    fi
}


# nginx loads modules into one name space, where a new build of this one must
# not find the functions of an old one: nothing is exported apart from the three
# tables by which nginx finds a module

symbols()
{
    nm -D --defined-only --extern-only "$so" | awk '
        { found[$3] = 1 }

        $3 !~ /^ngx_(modules|module_names|module_order)$/ {
            print "exported: " $3
            bad = 1
        }

        END {
            if (!("ngx_modules" in found)) {
                print "not exported: ngx_modules"
                bad = 1
            }

            exit bad
        }'
}


# flags_of DIR: those that the module's sources are compiled with

flags_of()
{
    make -s -C "$1" -f objs/Makefile --no-print-directory \
         --eval='flags: ; @echo $(CFLAGS) $(ALL_INCS)' flags
}


# What the build leaves to its user is an error here: any warning, with what
# newer C libraries will warn of.

warnings()
{
    test $# -gt 0 || set -- src/*.c src/*/*.c t/unit/*/*.c

    flags="$(flags_of "$dir") ${WARNINGS:--Wall -Wextra} -Werror"
    flags="$flags -include $PWD/tools/const-strings.h"
    unit=$(pkg-config --cflags hiredis)
    bad=0

    for compiler in gcc clang; do

        if ! command -v $compiler > /dev/null; then
            echo "$compiler is not installed: not tried"
            continue
        fi

        for file; do
            case $file in

            src/*)
                (cd "$dir" && $compiler $flags -c -o /dev/null "$OLDPWD/$file")
                ;;

            *)
                $compiler -O1 ${WARNINGS:--Wall -Wextra} -Werror $unit \
                    -I src -I t/unit -I "$dir/objs/addon/ratelimit" \
                    -c -o /dev/null "$file"
                ;;
            esac || bad=1
        done
    done

    return $bad
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
    flags=$(flags_of "$dir")

    for source in "$PWD"/src/*.c "$PWD"/src/*/*.c; do
        (cd "$dir" && gcc $flags -fanalyzer -c -o /dev/null "$source")
    done > "$dir/analyzer.log" 2>&1

    cat "$dir/analyzer.log"
    test ! -s "$dir/analyzer.log"
}


# the scripts, put together, see what Redis gives them, and nothing else

lua_check()
{
    luacheck --quiet --no-color --no-config --std lua51 \
             --read-globals redis KEYS ARGV cjson cmsgpack bit struct \
                            table.unpack \
             --max-line-length 80 -- build/lua > "$dir/luacheck.log" \
    || { cat "$dir/luacheck.log"; return 1; }
}


if [ $# -gt 0 ]; then
    "$@"
    exit
fi

check "style, layers"  tools/check-style.pl
check "symbols"        symbols
check "warnings"       warnings
check "cppcheck"       cpp_check
check "gcc -fanalyzer" analyzer
check "luacheck"       lua_check

if [ $status -eq 0 ]; then
    echo "lint: nothing found"
fi

exit $status
