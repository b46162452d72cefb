#!/bin/bash

# Starts nginx with the module and three Redis shards to play with:
#
#     tools/run.sh NGINX MODULE.so
#
# EXAMPLE names a file of conf-examples/, PORT the port of nginx (by default
# 8080, or a free one).  The ports that the file names are replaced by free
# ones, so nothing that runs on this machine is in the way.  The comment in it
# that starts with "Try it" is shown with these ports.  Metrics have a port of
# their own.
#
# All files are in one temporary folder.  Stays until a signal (Ctrl-C), then
# ends what it started and removes the folder.

set -euo pipefail

cd "$(dirname "$0")/.."

nginx=$1
module=$2
example=conf-examples/$(basename "${EXAMPLE:-simple}" .conf).conf
shards=(6379 6380 6381)

dir=
pids=()
stopping=


die()
{
    echo "run: $*" >&2
    exit 1
}


cleanup()
{
    trap '' HUP INT TERM

    # nginx, started last, goes first
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        kill "${pids[i]}" 2>/dev/null || true
        kill -CONT "${pids[i]}" 2>/dev/null || true
        wait "${pids[i]}" 2>/dev/null || true
    done

    if [ -n "$dir" ]; then
        rm -rf "$dir"
    fi
}

trap cleanup EXIT
trap 'stopping=yes; exit 0' INT TERM
trap 'stopping=yes; exit 129' HUP


# free_ports N: N ports that nobody listens on, outside of the range from
# which the kernel takes the ports of clients

free_ports()
{
    perl -MIO::Socket::INET -e '
        my ($n, %given) = @ARGV;

        while ($n > 0) {
            my $port = 10000 + int rand 20000;

            next if $given{$port}++;
            next if !IO::Socket::INET->new(LocalPort => $port, Listen => 1);

            print "$port\n";
            $n--;
        }' "$1"
}


is_free()
{
    perl -MIO::Socket::INET -e '
        exit !IO::Socket::INET->new(LocalPort => $ARGV[0], Listen => 1,
                                    ReuseAddr => 1)' "$1"
}


# wait_for NAME PID LOG COMMAND...: until the command succeeds

wait_for()
{
    local name=$1 pid=$2 log=$3 i
    shift 3

    for ((i = 0; i < 100; i++)); do

        if ! kill -0 "$pid" 2>/dev/null; then
            break
        fi

        if "$@" > /dev/null 2>&1; then
            return
        fi

        sleep 0.1
    done

    tail -n 20 "$log" >&2 || true
    die "$name did not start"
}


[ -f "$example" ] || die "no $example; there are:" \
    $(cd conf-examples && echo *.conf)


# the ports in the file => those to use

mapfile -t listen < <(sed -nE \
    's/^[^#]*\blisten +([^ ;]*:)?([0-9]{2,5})\b.*/\2/p' "$example" | sort -nu)

mapfile -t free < <(free_ports $((${#shards[@]} + ${#listen[@]} + 1)))

metrics=${free[-1]}

substitute=()
redis=()

for port in "${shards[@]}"; do
    redis+=("${free[0]}")
    substitute+=(-e "s/\b$port\b/${free[0]}/g")
    free=("${free[@]:1}")
done

for port in "${listen[@]}"; do
    new=${free[0]}
    free=("${free[@]:1}")

    if [ "$port" = 8080 ]; then
        if [ -n "${PORT:-}" ]; then
            is_free "$PORT" || die "port $PORT is in use"
            new=$PORT

        elif is_free 8080; then
            new=8080
        fi

        http=$new
    fi

    substitute+=(-e "s/\b$port\b/$new/g")
done

# nobody but this machine is served
substitute+=(-e 's/^\([^#]*\blisten  *\)\([0-9]\{2,5\};\)/\1127.0.0.1:\2/')


# the folder; workers run as another user when this is root

dir=$(mktemp -d "${TMPDIR:-/tmp}/ratelimit.XXXXXX")
chmod 711 "$dir"
mkdir "$dir/logs" "$dir/temp" "$dir/html"

sed "${substitute[@]}" "$example" > "$dir/example.conf"

cat > "$dir/nginx.conf" << END
load_module $module;

daemon            off;
worker_processes  2;
pid               nginx.pid;
lock_file         nginx.lock;
error_log         logs/error.log info;

events {
    worker_connections  1024;
}

http {
    access_log             logs/access.log;
    client_body_temp_path  temp/body;
    proxy_temp_path        temp/proxy;
    fastcgi_temp_path      temp/fastcgi;
    uwsgi_temp_path        temp/uwsgi;
    scgi_temp_path         temp/scgi;

    include                example.conf;

    server {
        listen      127.0.0.1:$metrics;
        access_log  off;

        location = /metrics {
            ratelimit  off;
            ratelimit_metrics;
        }
    }
}
END

for i in "${!redis[@]}"; do
    mkdir "$dir/redis-$i"

    redis-server --bind 127.0.0.1 --port "${redis[i]}" --dir "$dir/redis-$i" \
                 --save '' --appendonly no --daemonize no \
                 > "$dir/logs/redis-$i.log" 2>&1 < /dev/null &
    pids+=($!)
done

for i in "${!redis[@]}"; do
    wait_for "redis-server" "${pids[i]}" "$dir/logs/redis-$i.log" \
             redis-cli -p "${redis[i]}" ping
done

"$nginx" -p "$dir/" -c nginx.conf > "$dir/logs/start.log" 2>&1 < /dev/null &
pids+=($!)

wait_for nginx $! "$dir/logs/start.log" test -s "$dir/nginx.pid"


bold=
plain=

if [ -t 1 ]; then
    bold=$(printf '\033[1m')
    plain=$(printf '\033[0m')
fi

cat << END

${bold}nginx with ngx_http_ratelimit_module, configured by $example${plain}

  nginx      http://127.0.0.1:${http:-}/  (2 workers, pid ${pids[-1]})
  redis      $(for i in "${!redis[@]}"; do
                   printf '127.0.0.1:%s (pid %s)  ' "${redis[i]}" "${pids[i]}"
               done)
  metrics    http://127.0.0.1:$metrics/metrics  (?format=json)
  config     $dir/example.conf
  error log  $dir/logs/error.log

END

# the comment "Try it", without its marks

sed -n '/^# *Try it/,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$dir/example.conf" \
| sed -E "s/^( *)((curl|for|redis-cli|kill)( ?[^ ])*)/\1$bold\2$plain/"

if grep -q '^ratelimit_shards' "$example"; then
    cat << END

To see what happens while Redis is away, stop the shards, and let them go on:

    ${bold}kill -STOP ${pids[*]:0:${#redis[@]}}${plain}
    ${bold}kill -CONT ${pids[*]:0:${#redis[@]}}${plain}
END
fi

echo
echo "Ctrl-C ends it all and leaves nothing behind."

if wait "${pids[-1]}"; then
    status=0
else
    status=$?
fi

if [ -z "$stopping" ]; then
    tail -n 20 "$dir/logs/error.log" >&2
    die "nginx has ended by itself, exit code $status"
fi
