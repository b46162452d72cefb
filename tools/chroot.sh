# Sourced by chroot-test.sh and package-test.sh, after apt-private.sh.
#
# Other releases of Debian, each in a folder.  Root only.


# chroot_install RELEASE ROOT: installs the smallest system of that release from
# the archive that this machine uses

chroot_install()
{
    command -v debootstrap > /dev/null || {
        echo "debootstrap is not installed" >&2
        return 1
    }

    echo "installing $1 into $2"

    chroot_archive=$(debian_archive) || return 1

    rm -rf "$2.part"

    if ! debootstrap --variant=minbase --include=ca-certificates \
             "$1" "$2.part" "$chroot_archive" > "$2.log" 2>&1
    then
        tail -n 5 "$2.log" >&2
        echo "debootstrap failed, see $2.log" >&2
        return 1
    fi

    # as private_apt does: a mirror may lag behind
    echo 'Acquire::Check-Valid-Until "false";' \
        > "$2.part/etc/apt/apt.conf.d/99mirror"

    mv "$2.part" "$2"
}


# chroot_run ROOT COMMAND...: runs it there, with a /proc and a /dev.  Mounts and
# processes are in name spaces of their own and end with it.  With chroot_net=no
# it has a loopback interface of its own, and no other.

chroot_net=yes

chroot_run()
{
    chroot_spaces='--mount --pid --fork --kill-child'

    if [ "$chroot_net" = no ]; then
        chroot_spaces="$chroot_spaces --net"
    fi

    unshare $chroot_spaces sh -euc '
        root=$1
        test "$2" = yes || ip link set lo up
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
             HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
    ' chroot_run "$1" "$chroot_net" "${@:2}" < /dev/null
}
