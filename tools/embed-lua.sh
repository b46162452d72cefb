#!/bin/sh

# Turns Lua scripts into a C header:
#
#     tools/embed-lua.sh OUT LUA...
#
# Each script NAME.lua becomes two string macros, its exact text and the SHA-1
# of its bytes, by which EVALSHA knows it:
#
#     NGX_RL_LUA_<NAME>
#     NGX_RL_LUA_<NAME>_SHA1

set -eu

LC_ALL=C
export LC_ALL

out=$1
shift


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


trap 'rm -f "$out.tmp"' EXIT

{
    echo
    echo "/* made from lua/ by tools/embed-lua.sh, do not edit */"
    echo
    echo
    echo "#ifndef _NGX_RL_LUA_H_INCLUDED_"
    echo "#define _NGX_RL_LUA_H_INCLUDED_"
    echo

    for lua in "$@"; do

        # text of one byte per character and whole lines, so that awk, C and
        # Redis see the same bytes

        if [ -n "$(tr -d '\n -~' < "$lua" | head -c 1)" ] \
           || [ -n "$(tail -c 1 "$lua")" ]
        then
            echo "$lua: only printable ASCII without tabs, ended by a" \
                 "newline, can be embedded" >&2
            exit 1
        fi

        name=$(basename "$lua" .lua | tr -c 'A-Za-z0-9\n' _ | tr a-z A-Z)

        echo
        echo "#define NGX_RL_LUA_${name}_SHA1" \
             "\"$(sha1 "$lua")\""
        echo
        echo "#define NGX_RL_LUA_$name \\"

        sed -e 's/[\\"?]/\\&/g' -e 's/.*/    "&\\n" \\/' "$lua"

        echo
    done

    echo
    echo "#endif /* _NGX_RL_LUA_H_INCLUDED_ */"
} > "$out.tmp"

mv "$out.tmp" "$out"
