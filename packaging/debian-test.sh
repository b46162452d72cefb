# Installs, upgrades, removes and purges the packages in /packages, under load.
# tools/package-test.sh runs it, with "sh -eu", in a clean copy of a release of
# Debian: first "prepare", which fetches what the other part needs, then "run",
# which has a loopback interface of its own.
#
# Clients send requests from the beginning to the end, each on a connection of
# its own.  Every one of them has to be answered, by 200 or 429.

package=libnginx-mod-http-ratelimit
module=/usr/lib/nginx/modules/ngx_http_ratelimit_module.so
link=/etc/nginx/modules-enabled/50-mod-http-ratelimit.conf
site=/etc/nginx/sites-enabled/default
log=/packages/log

old=$(echo /packages/*~old_*.deb)
new=$(ls /packages/*.deb | grep -v '~old_')

# as metrics show it: 0.6.0-1 is 0.6.0+deb1
old_version=$(dpkg-deb -f "$old" Version | sed 's/-/+deb/')
new_version=$(dpkg-deb -f "$new" Version | sed 's/-/+deb/')


# what apt and dpkg print is shown only if something fails

die()
{
    echo "not ok - $*"
    tail -n 40 "$log"
    tail -n 10 /var/log/nginx/error.log
    exit 1
}


ok()
{
    name=$1
    shift

    "$@" || die "$name"
    echo "ok - $name"
}


quiet()
{
    "$@" >> "$log" 2>&1
}


install()
{
    quiet apt-get -y --allow-downgrades --reinstall install "$@"
}


# is the file that is installed now a part of the running nginx?

is_loaded()
{
    grep -q "$module\$" "/proc/$(cat /run/nginx.pid)/maps"
}


not()
{
    ! "$@"
}


await()
{
    for i in $(seq 100); do
        if "$@" 2> /dev/null; then
            return 0
        fi

        sleep 0.1
    done

    return 1
}


# "200 200 429": the answers to so many requests of a client of its own

answers()
{
    for i in $(seq "$2"); do
        curl -s -o /dev/null -w '%{http_code}\n' --interface "$1" \
             http://127.0.0.1/
    done | paste -s -d ' '
}


version()
{
    curl -s http://127.0.0.1/metrics \
    | sed -n 's/^nginx_ratelimit_build_info{version="\([^"]*\)".*/\1/p'
}


is_unlimited()
{
    is "$(answers 127.0.0.3 2)" '200 200'
}


has_version()
{
    test "$(version)" = "$1"
}


is()
{
    test "$1" = "$2" || {
        echo "\"$1\" instead of \"$2\"" >> "$log"
        return 1
    }
}


reload()
{
    quiet nginx -t -q && quiet nginx -s reload
}


# site_with LINE...: the only server, with these lines in it

site_with()
{
    {
        echo 'server {'
        echo '    listen 80;'
        echo '    root /var/www/html;'
        printf '    %s\n' "$@"
        echo '}'
    } > "$site"
}


# Four clients, until the file "stop" is there, and for five minutes at most.
# Prints how many requests got which answer.

load()
{
    perl -MHTTP::Tiny -MTime::HiRes=sleep,time -e '
        my $until = time + 300;
        my @files = map { "/packages/load.$_" } 1 .. 4;

        for my $file (@files) {
            next if fork;

            my $http = HTTP::Tiny->new(keep_alive => 0, timeout => 20);
            my %count;

            while (!-e "/packages/stop" && time < $until) {
                my $answer = $http->get("http://127.0.0.1/");

                $count{$answer->{status}}++;
                warn $answer->{content} if $answer->{status} == 599;
                sleep 0.005;
            }

            open my $out, ">", $file or die "$file: $!\n";
            print $out "$_ $count{$_}\n" for keys %count;
            close $out;
            exit 0;
        }

        1 while wait != -1;
    ' 2> /packages/load.log

    cat /packages/load.[1-4] | awk '{ n[$1] += $2 }
                                    END { for (s in n) print s, n[s] }'
}


prepare()
{
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d

    if ! {
        apt-get -q update
        apt-get -q -y --no-install-recommends install nginx redis-server curl perl
        apt-get -q -y --no-install-recommends --download-only install "$new"
    } > "$log" 2>&1
    then
        tail -n 20 "$log"
        exit 1
    fi

    # without an init system, nginx is only reloaded if there is a policy
    printf '#!/bin/sh\nexit 0\n' > /usr/sbin/policy-rc.d
}


run()
{
    . /etc/os-release
    echo "# $PRETTY_NAME, $(nginx -v 2>&1), $(dpkg --print-architecture)"
    dpkg-deb -f "$new" Version Depends Installed-Size | sed 's/^/# /'

    find / -xdev -name '*ratelimit*' -not -path '/packages/*' > /packages/before

    redis-server --daemonize yes --save '' --dir /tmp > /dev/null
    echo hello > /var/www/html/index.html
    site_with
    /usr/sbin/nginx
    load > /packages/answers &
    load=$!

    # install

    ok 'installs' install "$old"
    ok 'enabled, as other modules are' \
        is "$(readlink $link)" /usr/share/nginx/modules-available/mod-http-ratelimit.conf
    ok 'loaded by the reload that the package triggers' await is_loaded
    ok 'all files are whole' is "$(dpkg --verify $package)" ''

    # three lines

    site_with 'location /metrics { ratelimit_metrics; ratelimit off; }' \
              'location /ratelimit/ { ratelimit_api write; ratelimit off; }' \
              'ratelimit_shards   127.0.0.1:6379;' \
              'ratelimit_capacity 5;' \
              'ratelimit_rate     1r/h;'
    ok 'a reload with three lines in a server' reload
    ok 'metrics name the version' await has_version "$old_version"
    ok 'it limits' is "$(answers 127.0.0.2 7)" '200 200 200 200 200 429 429'
    ok 'in Redis' is "$(redis-cli --scan --pattern '*127.0.0.2*' | wc -l)" 1

    # the tool

    api=http://127.0.0.1/ratelimit/
    limit=$(ratelimitctl --machine $api limits --names)
    ok 'ratelimitctl names the limit' test -n "$limit"
    ok 'ratelimitctl resets a key' \
        quiet ratelimitctl --machine $api reset "$limit" 127.0.0.2
    ok 'the client starts anew' is "$(answers 127.0.0.2 6)" '200 200 200 200 200 429'
    ok 'a completion for bash' bash -n /usr/share/bash-completion/completions/ratelimitctl

    for page in man1/ratelimitctl.1 man5/ngx_http_ratelimit_module.5; do
        ok "a man page: $page" gzip -t "/usr/share/man/$page.gz"
    done

    for file in README.md docs/directives.md index.html \
                conf-examples/simple.conf \
                examples/monitoring/alerts.yml \
                examples/monitoring/grafana-dashboard.json
    do
        ok "a document: $file" test -s "/usr/share/doc/$package/$file"
    done

    # upgrade

    master=$(cat /run/nginx.pid)
    ok 'upgrades' install "$new"
    ok 'by a new master' not is "$(cat /run/nginx.pid)" "$master" 2> /dev/null
    ok 'the new module answers' await has_version "$new_version"
    ok 'the old master leaves' await not test -d "/proc/$master"
    ok 'limits in Redis continue' is "$(answers 127.0.0.2 2)" '429 429'
    ok 'still enabled' test -L $link
    ok 'a reload' reload
    ok 'it limits after that' is "$(answers 127.0.0.3 6)" '200 200 200 200 200 429'

    # a configuration that is broken while the package is upgraded

    cp "$site" /packages/site
    echo 'broken' >> "$site"
    ok 'installs with a broken configuration' install "$old"
    ok 'and says so' grep -q 'nginx keeps the old module' "$log"
    ok 'nginx serves on' has_version "$new_version"
    cp /packages/site "$site"
    ok 'upgrades again' install "$new"

    # the administrator has disabled it

    site_with
    rm $link
    ok 'a reload without it' reload
    ok 'unloaded' await not is_loaded
    ok 'installs again' install "$new"
    ok 'and it stays disabled' not test -L $link
    ln -s /usr/share/nginx/modules-available/mod-http-ratelimit.conf $link
    cp /packages/site "$site"
    ok 'enabled by hand' reload
    ok 'loaded' await has_version "$new_version"

    # remove, with directives in the configuration

    ok 'removes' quiet apt-get -y remove $package
    ok 'and says what is left to do' grep -q 'remove the directives ratelimit' "$log"
    ok 'no module' not test -e $module
    ok 'not enabled' not test -L $link
    ok 'nginx serves on' has_version "$new_version"
    site_with
    ok 'a reload without the directives' reload
    ok 'unloaded' await not grep -q "$module" "/proc/$(cat /run/nginx.pid)/maps"
    ok 'no limit, when the old workers have left' await is_unlimited

    # install again, purge

    ok 'installs after a removal' install "$new"
    ok 'enabled again' test -L $link
    ok 'loaded' await is_loaded
    ok 'purges' quiet apt-get -y purge $package
    ok 'unloaded' await not grep -q "$module" "/proc/$(cat /run/nginx.pid)/maps"
    find / -xdev -name '*ratelimit*' -not -path '/packages/*' \
         -not -path '/proc/*' > /packages/after
    ok 'nothing is left' cmp /packages/before /packages/after

    # all requests of all this time

    touch /packages/stop
    wait $load

    echo "# answers to the clients: $(paste -s -d , /packages/answers)"
    ok 'clients were answered' grep -q '^200 ' /packages/answers
    ok 'some of them limited' grep -q '^429 ' /packages/answers
    ok 'no request failed' not grep -qv -e '^200 ' -e '^429 ' /packages/answers
    ok 'no process of nginx died' not grep -q -e 'exited on signal' -e '\[alert\]' \
        /var/log/nginx/error.log

    nginx -s quit
    redis-cli shutdown nosave
}


case $1 in
    prepare|run) "$1" ;;
esac
