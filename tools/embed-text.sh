#!/bin/sh

# Turns text files into a C header:
#
#     tools/embed-text.sh HEADER FILE...
#
# Each file becomes a string macro with its exact text.  The name of the macro is
# NGX_RL_FILE_ and the name of the file in upper case, with "_" for all else:
# index.html becomes NGX_RL_FILE_INDEX_HTML.

set -eu

LC_ALL=C
export LC_ALL

if [ $# -lt 2 ]; then
    sed -n 's/^#  *\(tools.*\)/usage: \1/p' "$0" >&2
    exit 2
fi

out=$1
shift

# text of one byte per character and whole lines, so that a browser gets the
# bytes that are in the file

for file in "$@"; do
    if [ ! -f "$file" ]; then
        echo "$file: no such file" >&2
        exit 1
    fi

    if [ -n "$(tr -d '\n -~' < "$file" | head -c 1)" ] \
       || [ -n "$(tail -c 1 "$file")" ]
    then
        echo "$file: only printable ASCII without tabs, ended by a" \
             "newline, can be embedded" >&2
        exit 1
    fi
done

trap 'rm -f "$out.tmp"' EXIT

{
    echo
    echo "/* made by tools/embed-text.sh, do not edit */"
    echo
    echo
    echo "#ifndef _NGX_RL_EMBEDDED_H_INCLUDED_"
    echo "#define _NGX_RL_EMBEDDED_H_INCLUDED_"
    echo

    for file in "$@"; do
        name=$(basename "$file" | tr -c 'A-Za-z0-9\n' _ | tr a-z A-Z)

        echo
        echo "#define NGX_RL_FILE_$name \\"

        sed -e 's/[\\"?]/\\&/g' -e 's/.*/    "&\\n" \\/' "$file"

        echo
    done

    echo
    echo "#endif /* _NGX_RL_EMBEDDED_H_INCLUDED_ */"
} > "$out.tmp"

mv "$out.tmp" "$out"
