#!/bin/bash

# Starts nginx with the module and Redis servers in a sandbox:
#
#     tools/run.sh NGINX MODULE.so
#
# TOPOLOGY says which servers: shards (the default), cluster, sentinel or tls.
# EXAMPLE names a file of conf-examples/, by default that of the topology; one
# that is made for another topology gets the servers of this one.  PORT is the
# port of nginx, by default 8080, or a free one.
#
# The ports that the file names are replaced by free ones, so nothing that runs
# on this machine is in the way.  The comment in it that starts with "Try it" is
# shown with these ports.  Metrics, API and console have a port of their own.
#
# All files are in one temporary folder.  Stays until a signal (Ctrl-C), then
# ends what it started and removes the folder.

set -euo pipefail

cd "$(dirname "$0")/.."

nginx=$1
module=$2
example=${EXAMPLE:-}
topology=${TOPOLOGY:-}

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
# which the kernel takes the ports of clients; 10000 above each is free as
# well, for the bus of a cluster

free_ports()
{
    perl -MIO::Socket::INET -e '
        my ($n, %given) = @ARGV;

        while ($n > 0) {
            my $port = 10000 + int rand 10000;

            next if $given{$port}++;
            next if grep { !IO::Socket::INET->new(LocalPort => $_,
                                                  Listen => 1) }
                         $port, $port + 10000;

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


# --- what is to be started -------------------------------------------------

if [ -z "$topology" ]; then
    case $(basename "$example" .conf) in
        cluster | sentinel | tls) topology=$(basename "$example" .conf) ;;
        managed)                  topology=tls ;;
        *)                        topology=shards ;;
    esac
fi

# the ports that the servers have in the example of the topology

case $topology in

shards)
    names=(6379 6380 6381)
    : "${example:=simple}"
    ;;

cluster)
    names=(7001 7002 7003 7004 7005 7006)
    : "${example:=cluster}"
    ;;

sentinel)
    names=(6379 6380 26379 26380 26381)
    : "${example:=sentinel}"
    ;;

tls)
    names=(6379 6380 6381)
    : "${example:=tls}"
    ;;

*)
    die "unknown topology \"$topology\": use shards, cluster, sentinel or tls"
    ;;
esac

example=$(basename "$example" .conf)
file=conf-examples/$example.conf

[ -f "$file" ] || die "there is no $file; choose one of:" $(cd conf-examples && echo *.conf)


# the ports in the file => those to use

mapfile -t listen < <(sed -nE \
    's/^[^#]*\blisten +([^ ;]*:)?([0-9]{2,5})\b.*/\2/p' "$file" | sort -nu)

mapfile -t free < <(free_ports $((${#names[@]} + ${#listen[@]} + 1)))

metrics=${free[-1]}

substitute=()
redis=()

for name in "${names[@]}"; do
    redis+=("${free[0]}")
    substitute+=(-e "s/\b$name\b/${free[0]}/g")
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
substitute+=(-e 's/^\([^#]*\blisten  *\)\([0-9]\{2,5\}[ ;]\)/\1127.0.0.1:\2/')


# the folder; workers run as another user when this is root

dir=$(mktemp -d "${TMPDIR:-/tmp}/ratelimit.XXXXXX")
chmod 711 "$dir"
mkdir "$dir/logs" "$dir/temp" "$dir/html"


# --- servers ---------------------------------------------------------------

# start_redis I [OPTION...]: the one with this index

start_redis()
{
    local i=$1
    shift

    mkdir "$dir/redis-$i"

    redis-server --bind 127.0.0.1 --port "${redis[i]}" --dir "$dir/redis-$i" \
                 --save '' --appendonly no --daemonize no "$@" \
                 > "$dir/logs/redis-$i.log" 2>&1 < /dev/null &
    pids[i]=$!
}


# cli I COMMAND...: asks it

cli()
{
    local i=$1
    shift

    if [ "$topology" = tls ]; then
        set -- --tls --cacert "$dir/redis-ca.crt" --cert "$dir/nginx.crt" \
               --key "$dir/nginx.key" "$@"
    fi

    redis-cli -h 127.0.0.1 -p "${redis[i]}" "$@"
}


wait_for_redis()
{
    local i

    for i in "$@"; do
        wait_for redis-server "${pids[i]}" "$dir/logs/redis-$i.log" \
                 cli "$i" ping
    done
}


# its reply has a line like this

says()
{
    local pattern=$1
    shift

    cli "$@" | grep -q "$pattern"
}


is_ok()
{
    [ "$(cli "$@")" = OK ]
}


start_shards()
{
    local i

    for i in "${!redis[@]}"; do
        start_redis "$i"
    done

    wait_for_redis "${!redis[@]}"
}


# three masters, then their replicas, each of the same number

start_cluster()
{
    local i j

    for i in "${!redis[@]}"; do
        start_redis "$i" --cluster-enabled yes --cluster-node-timeout 2000
    done

    wait_for_redis "${!redis[@]}"

    for i in "${!redis[@]}"; do
        cli "$i" cluster set-config-epoch $((i + 1)) > /dev/null
    done

    for i in "${!redis[@]}"; do
        for ((j = i + 1; j < ${#redis[@]}; j++)); do
            cli "$i" cluster meet 127.0.0.1 "${redis[j]}" > /dev/null
        done
    done

    for i in 0 1 2; do
        cli "$i" cluster addslots \
            $(seq $((16384 * i / 3)) $((16384 * (i + 1) / 3 - 1))) > /dev/null
    done

    for i in 3 4 5; do
        wait_for "a replica" "${pids[i]}" "$dir/logs/redis-$i.log" \
                 is_ok "$i" cluster replicate "$(cli $((i - 3)) cluster myid)"
    done

    for i in "${!redis[@]}"; do
        wait_for "the cluster" "${pids[i]}" "$dir/logs/redis-$i.log" \
                 says cluster_state:ok "$i" cluster info
    done

    for i in 3 4 5; do
        wait_for "a replica" "${pids[i]}" "$dir/logs/redis-$i.log" \
                 says master_link_status:up "$i" info replication
    done
}


# a master, its replica, and those who watch them

start_sentinel()
{
    local i

    start_redis 0 --repl-diskless-sync-delay 0
    start_redis 1 --replicaof "127.0.0.1 ${redis[0]}"
    wait_for_redis 0 1

    wait_for "the replica" "${pids[1]}" "$dir/logs/redis-1.log" \
             says master_link_status:up 1 info replication

    for i in 2 3 4; do
        mkdir "$dir/redis-$i"

        cat > "$dir/redis-$i/sentinel.conf" << END
bind 127.0.0.1
port ${redis[i]}
dir $dir/redis-$i
sentinel monitor mymaster 127.0.0.1 ${redis[0]} 2
sentinel down-after-milliseconds mymaster 2000
sentinel failover-timeout mymaster 5000
END

        redis-server "$dir/redis-$i/sentinel.conf" --sentinel \
                     > "$dir/logs/redis-$i.log" 2>&1 < /dev/null &
        pids[i]=$!
    done

    wait_for_redis 2 3 4

    # they hear of each other from the master

    for i in 2 3 4; do
        wait_for "a sentinel" "${pids[i]}" "$dir/logs/redis-$i.log" \
                 says 'slaves=1,sentinels=3' "$i" info sentinel
    done
}


# certificate NAME SUBJECT EXTENSIONS: signed by our own authority

certificate()
{
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
                -keyout "$dir/$1.key" -subj "/CN=$2" -out "$dir/$1.csr"

    openssl x509 -req -in "$dir/$1.csr" -out "$dir/$1.crt" -days 2 \
                 -CA "$dir/redis-ca.crt" -CAkey "$dir/redis-ca.key" \
                 -CAcreateserial -extfile <(echo "$3")
}


start_tls()
{
    local i auth=yes

    command -v openssl > /dev/null || die "openssl is not installed"

    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
                    -nodes -keyout "$dir/redis-ca.key" -days 2 \
                    -subj "/CN=CA of make run" -out "$dir/redis-ca.crt"

        certificate redis redis.internal \
                    "subjectAltName=DNS:redis.internal,DNS:localhost"
        certificate nginx nginx "extendedKeyUsage=clientAuth"

    } > "$dir/logs/openssl.log" 2>&1 || {
        cat "$dir/logs/openssl.log" >&2
        die "openssl failed"
    }

    # a managed one knows its users by passwords

    if [ "$example" = managed ]; then
        auth=no
    fi

    echo wonderland > "$dir/redis-password"

    for i in "${!redis[@]}"; do
        start_redis "$i" --port 0 --tls-port "${redis[i]}" \
                    --tls-cert-file "$dir/redis.crt" \
                    --tls-key-file "$dir/redis.key" \
                    --tls-ca-cert-file "$dir/redis-ca.crt" \
                    --tls-auth-clients "$auth" \
                    --user limiter on '>wonderland' '~ratelimit:*' +@all
    done

    wait_for_redis "${!redis[@]}"
}


"start_$topology"


# --- nginx -----------------------------------------------------------------

# an example for shards gets what there is instead; its commands that look into
# them find the first ones

if grep -q '^ratelimit_shards 127' "$file"; then
    case $topology in

    cluster)
        shards="ratelimit_shards cluster 127.0.0.1:${redis[0]};"
        substitute+=(-e "s/\b6379\b/${redis[0]}/g" -e "s/\b6380\b/${redis[1]}/g"
                     -e "s/\b6381\b/${redis[2]}/g")
        ;;

    sentinel)
        shards="ratelimit_shards sentinel=mymaster 127.0.0.1:${redis[2]}"
        shards+=" 127.0.0.1:${redis[3]} 127.0.0.1:${redis[4]};"
        ;;

    tls)
        shards="ratelimit_shards $(printf 'rediss://127.0.0.1:%s ' \
                                          "${redis[@]}");"
        shards+="\nratelimit_redis_ssl_trusted_certificate redis-ca.crt;"
        shards+="\nratelimit_redis_ssl_name redis.internal;"
        shards+="\nratelimit_redis_ssl_certificate nginx.crt;"
        shards+="\nratelimit_redis_ssl_certificate_key nginx.key;"
        ;;
    esac

    if [ -n "${shards:-}" ]; then
        substitute=(-e "s|^ratelimit_shards 127.*|$shards|"
                    "${substitute[@]}")
    fi

elif [ "$topology" != shards ] && ! grep -q '^ratelimit_shards' "$file"; then
    die "$file uses no Redis: run it without TOPOLOGY"
fi

sed "${substitute[@]}" "$file" > "$dir/example.conf"

# the console shows top keys, unless the example sets this itself

top="ratelimit_top          100;"

if grep -q '^ *ratelimit_top ' "$file"; then
    top=
fi

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

    $top
    include                example.conf;

    server {
        listen      127.0.0.1:$metrics;
        access_log  off;

        location = /metrics {
            ratelimit  off;
            ratelimit_metrics;
        }

        location /ratelimit/ {
            ratelimit  off;
            ratelimit_api write;
        }

        location /console/ {
            ratelimit  off;
            ratelimit_console;
        }
    }
}
END

"$nginx" -p "$dir/" -c nginx.conf > "$dir/logs/start.log" 2>&1 < /dev/null &
pids+=($!)

wait_for nginx $! "$dir/logs/start.log" test -s "$dir/nginx.pid"


# --- what to try -----------------------------------------------------------

bold=
plain=

if [ -t 1 ]; then
    bold=$(printf '\033[1m')
    plain=$(printf '\033[0m')
fi


# of the servers with these indexes

list()
{
    local i

    for i in "$@"; do
        printf '127.0.0.1:%s (pid %s)  ' "${redis[i]}" "${pids[i]}"
    done
}


cat << END

${bold}nginx with ngx_http_ratelimit_module, configured by $file${plain}

  nginx      http://127.0.0.1:${http:-}/  (2 workers, pid ${pids[-1]})
END

case $topology in

cluster)
    echo "  masters    $(list 0 1 2)"
    echo "  replicas   $(list 3 4 5)"
    ;;

sentinel)
    echo "  master     $(list 0)"
    echo "  replica    $(list 1)"
    echo "  sentinels  $(list 2 3 4)"
    ;;

*)
    echo "  redis      $(list "${!redis[@]}")"
    ;;
esac

cat << END
  console    ${bold}http://127.0.0.1:$metrics/console/${plain}
  metrics    http://127.0.0.1:$metrics/metrics  (?format=json)
  API        http://127.0.0.1:$metrics/ratelimit/limits  (keys/KEY, servers)
  shell      tools/ratelimitctl -m 127.0.0.1:$metrics limits  (show KEY, top, servers)
  config     $dir/example.conf
  error log  $dir/logs/error.log

END

# the comment "Try it", without its marks

sed -n '/^# *Try it/,/^\([^#]\|$\)/s/^# \{0,1\}//p' "$dir/example.conf" \
| sed -E "s/^( *)((curl|for|redis-cli|kill)( ?[^ ])*)/\1$bold\2$plain/"


# a terminal in which one sees what happens; the path that is tried first

path=$(sed -nE 's|^# *curl .*http://127\.0\.0\.1:8080(/[^ ?]*).*|\1|p' "$file" \
       | sed 1q)
watch="while sleep 0.2; do curl -s -o /dev/null -w"
watch+=" '%{http_code} %header{x-ratelimit-remaining}"
watch+=" %header{x-ratelimit-degraded-reason}\\n'"
watch+=" http://127.0.0.1:${http:-}$path; done"

if ! grep -q '^ratelimit_shards' "$dir/example.conf"; then
    :

elif [ "$topology" = cluster ] || [ "$topology" = sentinel ]; then
    cat << END

To see a failover, let one terminal ask all the time, let another one show what
nginx says, and kill a master; seconds later its replica has taken over:

    ${bold}$watch${plain}
    ${bold}tail -f $dir/logs/error.log | grep -E 'ratelimit (shard|cluster)'${plain}
END

    case $topology in

    cluster)
        cat << END
    ${bold}kill -9 ${pids[2]}${plain}
    ${bold}redis-cli -p ${redis[0]} cluster nodes${plain}
END
        ;;

    sentinel)
        cat << END
    ${bold}kill -9 ${pids[0]}${plain}
    ${bold}redis-cli -p ${redis[2]} sentinel get-master-addr-by-name mymaster${plain}
END
        ;;
    esac

    cat << END

One that hangs instead of being dead is stopped, and wakes up later:

    ${bold}kill -STOP ${pids[1]}${plain}
    ${bold}kill -CONT ${pids[1]}${plain}
END

else
    if [ "$topology" = tls ]; then
        cat << END

To look into a server, which answers to nothing but TLS:

    ${bold}redis-cli --tls --cacert $dir/redis-ca.crt --cert $dir/nginx.crt --key $dir/nginx.key -p ${redis[0]} --scan${plain}
END
    fi

    cat << END

To see what happens while Redis is unavailable, stop the shards, and let them go on:

    ${bold}kill -STOP ${pids[*]:0:${#redis[@]}}${plain}
    ${bold}kill -CONT ${pids[*]:0:${#redis[@]}}${plain}
END
fi

echo
echo "Press Ctrl-C to stop everything. Nothing is left behind."

# that a server was killed is no news to who did it
exec 3>&2 2>/dev/null

if wait "${pids[-1]}"; then
    status=0
else
    status=$?
fi

exec 2>&3

if [ -z "$stopping" ]; then
    tail -n 20 "$dir/logs/error.log" >&2
    die "nginx exited unexpectedly, exit code $status"
fi
