#!/bin/sh

# Puts the Lua scripts together and turns them into a C header:
#
#     tools/embed-lua.sh HEADER LUA...
#     tools/embed-lua.sh --expand LUA
#
# A line "--@ include NAME" of a script stands for the text of lib/NAME.lua in
# the folder of the script, indented as this line is; parts in a row get a blank
# line between them.  A part includes no other part, and no script has a part
# twice.
#
# The first form writes each script, put together, next to the header as
# NAME.lua: these are the scripts as Redis gets them.  In the header each is two
# string macros, its exact text and the SHA-1 of its bytes, by which EVALSHA
# knows it:
#
#     NGX_RL_LUA_<NAME>
#     NGX_RL_LUA_<NAME>_SHA1
#
# The second form prints one script, put together.

set -eu

LC_ALL=C
export LC_ALL


sha1()
{
    if command -v sha1sum > /dev/null; then
        sha1sum < "$1"

    elif command -v shasum > /dev/null; then
        shasum -a 1 < "$1"

    else
        openssl dgst -sha1 -r < "$1"
    fi | cut -c 1-40
}


# text of one byte per character and whole lines, so that awk, C and Redis see
# the same bytes

check()
{
    if [ ! -f "$1" ]; then
        echo "$1: no such file" >&2
        return 1
    fi

    if [ -n "$(tr -d '\n -~' < "$1" | head -c 1)" ] \
       || [ -n "$(tail -c 1 "$1")" ]
    then
        echo "$1: only printable ASCII without tabs, ended by a" \
             "newline, can be embedded" >&2
        return 1
    fi
}


# prints nothing but the message if there is something wrong

expand()
{
    check "$1" || return 1

    for part in $(sed -n 's/^ *--@ include \([a-z0-9_]*\)$/\1/p' "$1"); do
        part=$(dirname "$1")/lib/$part.lua

        if [ -f "$part" ]; then
            check "$part" || return 1
        fi
    done

    awk -v lib="$(dirname "$1")/lib" '
        function fail(file, line, message)
        {
            print file ":" line ": " message > "/dev/stderr"
            failed = 1
            exit
        }

        function add(line)
        {
            text[++lines] = line
        }

        function include(name, indent,    file, line, n, rc)
        {
            if (name in included) {
                fail(FILENAME, FNR, "\"" name "\" is included twice")
            }

            included[name] = 1
            file = lib "/" name ".lua"

            while ((rc = (getline line < file)) > 0) {
                n++

                if (line ~ /^[ \t]*--@/) {
                    fail(file, n, "a part can not include another part")
                }

                add(line == "" ? "" : indent line)
            }

            if (rc < 0 || n == 0) {
                fail(FILENAME, FNR, "no part \"" name "\" to include in " file)
            }

            close(file)
        }

        /^ *--@ include [a-z0-9_]+$/ {
            if (last && FNR == last + 1) {
                add("")
            }

            include($3, substr($0, 1, index($0, "-") - 1))
            last = FNR
            next
        }

        /^[ \t]*--@/ {
            fail(FILENAME, FNR, "\"" $0 "\" is not \"--@ include NAME\"")
        }

        { add($0) }

        END {
            if (failed) {
                exit 1
            }

            for (i = 1; i <= lines; i++) {
                print text[i]
            }
        }
    ' "$1"
}


if [ $# -eq 2 ] && [ "$1" = --expand ]; then
    expand "$2"
    exit
fi

if [ $# -lt 2 ]; then
    sed -n 's/^#  *\(tools.*\)/usage: \1/p' "$0" >&2
    exit 2
fi

out=$1
shift

dir=$(dirname "$out")

trap 'rm -f "$out.tmp" "$out.lua"' EXIT

for lua in "$@"; do
    script=$dir/$(basename "$lua")

    if [ "$script" -ef "$lua" ]; then
        echo "$out: $lua would be overwritten" >&2
        exit 1
    fi

    expand "$lua" > "$out.lua"
    mv "$out.lua" "$script"
done

{
    echo
    echo "/* made from lua/ by tools/embed-lua.sh, do not edit */"
    echo
    echo
    echo "#ifndef _NGX_RL_LUA_H_INCLUDED_"
    echo "#define _NGX_RL_LUA_H_INCLUDED_"
    echo

    for lua in "$@"; do
        script=$dir/$(basename "$lua")
        name=$(basename "$lua" .lua | tr -c 'A-Za-z0-9\n' _ | tr a-z A-Z)

        echo
        echo "#define NGX_RL_LUA_${name}_SHA1" \
             "\"$(sha1 "$script")\""
        echo
        echo "#define NGX_RL_LUA_$name \\"

        sed -e 's/[\\"?]/\\&/g' -e 's/.*/    "&\\n" \\/' "$script"

        echo
    done

    echo
    echo "#endif /* _NGX_RL_LUA_H_INCLUDED_ */"
} > "$out.tmp"

mv "$out.tmp" "$out"
