#!/bin/sh

# Installs the packages of one or more groups, as far as they are missing:
#
#     tools/setup.sh build run test valkey browser lint docs source deb asan valgrind bench fuzz model
#
# Debian and its relatives only.  No service is started, and an nginx, a Redis
# or a Prometheus that this machine has already is neither upgraded nor
# restarted.
#
# Only tests want Valkey and a browser, and they can do without: where these
# can't be had, this says so and goes on.

set -eu

tools=$(cd "$(dirname "$0")" && pwd)

. "$tools/apt-private.sh"


die()
{
    echo "setup: $*" >&2
    exit 1
}


# the packages of a group

packages_of()
{
    case $1 in

    build)
        echo gcc libc6-dev make pkgconf nginx nginx-dev libhiredis-dev
        ;;

    source)
        echo gcc libc6-dev make pkgconf libhiredis-dev \
             libpcre2-dev libssl-dev zlib1g-dev
        ;;

    run)
        echo redis-server redis-tools curl openssl
        ;;

    test)
        echo perl libtest-nginx-perl redis-server redis-tools curl \
             nghttp2-client openssl procps psmisc prometheus jq python3 \
             python3-grpcio python3-protobuf
        ;;

    bench)
        echo perl wrk redis-server redis-tools
        ;;

    valkey)
        command -v valkey-server > /dev/null || echo valkey-server
        ;;

    browser)
        command -v chromedriver > /dev/null || echo chromium chromium-driver
        ;;

    lint)
        echo perl binutils cppcheck lua-check
        ;;

    docs)
        echo perl pandoc
        ;;

    model)
        echo spin gcc libc6-dev
        ;;

    fuzz)
        echo clang libclang-rt-dev libc6-dev make pkgconf libhiredis-dev
        ;;

    deb)
        echo build-essential debhelper lintian pandoc perl
        ;;

    asan)
        packages_of source
        echo dpkg-dev
        ;;

    valgrind)
        packages_of source
        echo dpkg-dev valgrind libc6-dbg
        ;;

    *)
        die "unknown group \"$1\": use build, source, run, test, valkey, browser,
       bench, lint, docs, deb, asan, valgrind, fuzz, model"
        ;;
    esac
}


# prints those of its arguments that are not installed

missing_of()
{
    dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null \
    | awk -v wanted="$*" '
        $2 == "installed" { have[$1] = 1 }

        END {
            n = split(wanted, name, " ")

            for (i = 1; i <= n; i++) {
                if (!have[name[i]]) {
                    have[name[i]] = 1
                    printf "%s ", name[i]
                }
            }
        }'
}


# what of it has to be there

needed_of()
{
    for name in "$@"; do
        case $name in
            valkey-server | chromium | chromium-driver) ;;
            *) printf '%s ' "$name" ;;
        esac
    done
}


# lacks PACKAGE: it is wanted, and not there yet

lacks()
{
    case " $missing " in
        *" $1 "*) return 0 ;;
        *)        return 1 ;;
    esac
}


# skipped PACKAGE WHY: what that means

skipped()
{
    case $1 in
        valkey-server) echo "setup: tests against Valkey are skipped: $2" ;;
        *)             echo "setup: tests in a browser are skipped: $2" ;;
    esac >&2
}


# apt-get with all its output in a log that is shown only when it fails

apt()
{
    if ! apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 "$@" \
             < /dev/null > "$temp/log" 2>&1
    then
        cat "$temp/log" >&2
        die "apt-get $1 failed"
    fi
}


# apt-get install, unless it would change a server that is in use

apt_install()
{
    apt install --simulate --no-install-recommends --no-remove "$@"

    changed=$(awk '$1 == "Inst" && $3 ~ /^\[/ \
                   && $2 ~ /^(nginx|libnginx|redis|valkey|prometheus)/ {
                       print $2
                   }' "$temp/log")

    if [ -n "$changed" ]; then
        die "installing $* would also upgrade packages that this machine uses:
       $(echo $changed)
       Upgrade that yourself when it suits you, or build against a source
       tree of nginx with NGINX_SRC=..."
    fi

    apt install -y --no-install-recommends --no-remove "$@"
}


# apt_install_from SUITE PACKAGE...: these packages come from another suite of
# Debian, what they depend on from the system's own sources

apt_install_from()
{
    suite=$1
    shift

    mkdir -p "$temp/$suite/deb"

    private_apt_open "$temp/$suite" deb "$suite" || return 1

    if getent passwd _apt > /dev/null; then
        chown _apt "$temp/$suite/deb"
    fi

    cd "$temp/$suite/deb"
    private_apt download "$@" > /dev/null || return 1
    apt_install ./*.deb
    cd "$tools"
}


# Debian 12 has no libtest-nginx-perl, Debian testing has

test_nginx_install()
{
    if [ -n "$(apt-cache madison libtest-nginx-perl)" ]; then
        apt_install libtest-nginx-perl
        return
    fi

    apt_install_from testing libtest-nginx-perl \
    || die "cannot get it from Debian testing;
       install Test::Nginx by hand: cpan Test::Nginx"
}


# Ubuntu has no such package, only a snap

browser_install()
{
    apt_install chromium chromium-driver
}


# Debian 12 has Valkey in its backports only

valkey_install()
{
    if [ -n "$(apt-cache madison valkey-server)" ]; then
        apt_install valkey-server
        return
    fi

    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-testing}")

    apt_install_from "$codename-backports" valkey-server valkey-tools \
    || die "neither this system nor $codename-backports has it"
}


# What came with this run is a tool here, not a service to start at boot.

services=

services_disable()
{
    for name in $services; do

        if [ -n "$(missing_of $name)" ]; then
            continue
        fi

        if command -v systemctl > /dev/null; then
            systemctl --quiet disable "$name" || true

        else
            deb-systemd-helper disable "$name.service" || true
            update-rc.d "$name" disable || true
        fi > /dev/null 2>&1
    done
}


# packages that start a service when they are installed ask policy-rc.d first

policy=/usr/sbin/policy-rc.d
policy_ours=
temp=

cleanup()
{
    services_disable

    if [ -n "$policy_ours" ]; then
        rm -f "$policy"
    fi

    if [ -n "$temp" ]; then
        rm -rf "$temp"
    fi
}


if [ $# -eq 0 ]; then
    die "usage: tools/setup.sh GROUP..."
fi

wanted=$(for group in "$@"; do packages_of "$group"; done)

if [ -z "$wanted" ]; then
    exit 0
fi

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    die "this system has no apt; install the equivalents of:" $wanted
fi

missing=$(missing_of $wanted)

if [ -z "$missing" ]; then
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    needed=$(needed_of $missing)

    if [ -n "$needed" ]; then
        die "these packages are missing, and only root can install them:
       $needed"
    fi

    for name in valkey-server chromium-driver; do
        if lacks "$name"; then
            skipped "$name" "only root can install $name"
        fi
    done

    exit 0
fi


trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

temp=$(mktemp -d)

# one at a time: the policy file of one run must outlive nobody else's install
exec 9< /var/lib/dpkg
flock 9

missing=$(missing_of $missing)
needed=$(needed_of $missing)

if [ -z "$missing" ]; then
    exit 0
fi

echo "setup: installing $missing"

export DEBIAN_FRONTEND=noninteractive
export NEEDRESTART_SUSPEND=1

if [ -n "$needed" ]; then
    apt update
fi

if [ ! -e "$policy" ]; then
    policy_ours=yes
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi

services=$(missing_of nginx redis-server valkey-server prometheus)

others=
test_nginx=

for name in $needed; do
    case $name in
        libtest-nginx-perl) test_nginx=yes ;;
        *)                  others="$others $name" ;;
    esac
done

if [ -n "$others" ]; then
    apt_install $others
fi

if [ -n "$test_nginx" ]; then
    test_nginx_install
fi

# optional PACKAGE FUNCTION: installs it, or says what that means

optional()
{
    if lacks "$1" \
       && ! ([ -n "$needed" ] || apt update; "$2") > "$temp/optional" 2>&1
    then
        skipped "$1" "$1 can't be installed"
        tail -n 5 "$temp/optional" | sed 's/^/       /' >&2
    fi
}

optional valkey-server valkey_install
optional chromium-driver browser_install
