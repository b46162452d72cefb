# Sourced by setup.sh, nginx-source.sh, chroot-test.sh and package-test.sh.
#
# An apt of our own beside the system's: its sources list, its package lists
# and its cache live in one temporary folder.  It reads packages of another
# Debian release from the mirror that this machine already uses, and leaves
# the system's own sources as they are.


# prints the address of the main archive that this machine uses, neither its
# security suite nor a third party's

debian_archive()
{
    archive=$(apt-get indextargets \
                  --format '$(LABEL) $(COMPONENT) $(REPO_URI)' \
                  'Created-By: Packages' \
              | awk '$1 == "Debian" && $2 == "main" { print $3; exit }')

    if [ -z "$archive" ]; then
        echo "no Debian archive among the sources of apt" >&2
        return 1
    fi

    echo "$archive"
}


# private_apt_open DIR TYPE SUITE
#
# TYPE is deb or deb-src.  DIR must exist and is removed by the caller.

private_apt_open()
{
    private_apt_dir=$1

    private_apt_uri=$(debian_archive) || return 1

    private_apt_key=/usr/share/keyrings/debian-archive-keyring.gpg

    if [ -r "$private_apt_key" ]; then
        private_apt_key="[signed-by=$private_apt_key] "
    else
        private_apt_key=
    fi

    # readable by the user that apt downloads as
    chmod 755 "$private_apt_dir" "$(dirname "$private_apt_dir")"
    mkdir -p "$private_apt_dir/lists" "$private_apt_dir/cache"

    echo "$2 $private_apt_key$private_apt_uri $3 main" \
        > "$private_apt_dir/sources.list"

    private_apt update
}


# A mirror that stands still or lags behind is good enough here; that what it
# has is Debian's own is checked as ever.

private_apt()
{
    apt-get -qq \
        -o Dir::Etc::sourcelist="$private_apt_dir/sources.list" \
        -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$private_apt_dir/lists" \
        -o Dir::Cache="$private_apt_dir/cache" \
        -o Acquire::Languages=none \
        -o Acquire::Check-Valid-Until=false \
        -o Acquire::Retries=3 \
        "$@"
}
