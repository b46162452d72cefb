# docs/directives.md against the command table and the behaviour of the module:
# syntax, default and context of each directive, values that nginx rejects,
# defaults that take a request to see, variables, and numbers.

use strict;
use warnings;
use feature 'state';

use lib 't/lib';
use Test::More;

use Digest::SHA ();

use RateLimit::Docs 'docs/directives.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp wait_until);

my @entries = grep { /^ratelimit(?:_\w+)?$/ } keys %section;

# a section on one line
my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;


subtest 'each directive is described as it is' => sub {
    cmp_ok scalar keys %directive, '>=', 50, 'the directives of the module';
    is_deeply [sort @entries], [sort keys %directive],
              'each directive has an entry, each entry is a directive';

    # those whose default no merge function has are tried below

    my %special = (
        ratelimit_shards => 'none', ratelimit_key => '$ratelimit_client_net',
        ratelimit_log_key =>
            'plain for addresses and constants, hash for all else',
        ratelimit_rate => 'none', ratelimit_cost => '1',
        ratelimit_capacity => 'the number in the rate',
        ratelimit_redis_password_file => 'none',
        ratelimit_limit => 'none', ratelimit => 'none',
        ratelimit_period => 'none', ratelimit_timezone => 'UTC',
        ratelimit_anchor => '1',
        ratelimit_window => '60s', ratelimit_refill_interval => '0',
        ratelimit_local_share => '1', ratelimit_metrics => 'none',
        ratelimit_api => 'none', ratelimit_console => 'none',
        ratelimit_overrides => 'on (32m) with '
            . '[ratelimit_api write](#ratelimit_api), otherwise off',
        ratelimit_breaker => breaker_default(), ratelimit_lease => 'off',
        ratelimit_sentinel_password_file => 'none',
        ratelimit_silence => 'none',
        ratelimit_redis_ssl => 'off',
        ratelimit_redis_ssl_verify => 'on',
        ratelimit_redis_ssl_verify_depth => '1',
        ratelimit_redis_ssl_trusted_certificate =>
            'the certificates of the system',
        ratelimit_redis_ssl_crl => 'none',
        ratelimit_redis_ssl_name => 'the host of the address',
        ratelimit_redis_ssl_server_name => 'on',
        ratelimit_redis_ssl_certificate => 'none',
        ratelimit_redis_ssl_certificate_key => 'none',
        ratelimit_redis_ssl_password_file => 'none',
        ratelimit_redis_ssl_protocols => 'TLSv1.2 TLSv1.3',
        ratelimit_redis_ssl_ciphers => 'DEFAULT',
        ratelimit_redis_ssl_session_reuse => 'on',
    );

    is microseconds($special{ratelimit_window}), define('WINDOW_DEFAULT'),
       'the length of a window';

    for my $name (sort grep { $directive{$_} } @entries) {
        my $entry = entry_of($name);
        my $real = $directive{$name};

        ok $entry, "$name: a table" or next;

        # a tail in brackets, or no arguments at all

        like $_, $real->{arguments} eq 'NOARGS' ? qr/^\Q$name\E;$/
                                                : qr/^\Q$name\E .+;$/,
             "$name: syntax" for @{ $entry->{syntax} };
        is $entry->{syntax}[0], "$name $real->{words};", "$name: words"
            if defined $real->{words};
        is $entry->{default}, $real->{default} // $special{$name},
           "$name: default";
        is $entry->{context}, $real->{context}, "$name: context";
        like $entry->{text}, qr/\A\n[A-Z]/, "$name: text";
        unlike $entry->{text}, qr/\brefused:/i,
               "$name: no list of values that nginx rejects";

        # nothing of the code is missing from the text: a word of an enum has
        # a row or a sentence

        for my $word (split / \| | \.\.\./, $real->{words} // '') {
            next if $word =~ /^(?:on|off|debug|info|notice|warn|error|TLS.*)$/;

            like $text{$name} =~ s/.*?\| Context \|[^|]*\|//r,
                 qr/`\Q$word\E\b/, "$name: says what $word is";
        }
    }

    # parameters of a named limit

    my ($message) = source('limit.c') =~ /there are "\s*"(key=.*?)",\s*word/s;

    $message //= (source('limit.c') =~ /((?:"[^"]*"\s*)*"[^"]*\bkey=[^;]*)/s)[0];

    my @real = ($message =~ s/"\s*"//gr) =~ /\b(\w+=|dry_run|advise)/g;
    my @rows = grep { $_->[0] =~ /^`\w+=?`$/ } table_of($section{ratelimit_limit});

    is_deeply [sort map { code_in($_->[0]) } @rows], [sort @real],
              'parameters of ratelimit_limit';

    for (@rows) {
        my ($name) = code_in($_->[0]);
        my ($as) = code_in($_->[2]);

        is $as, 'ratelimit_' . ($name =~ s/=$//r), "$name is $as";
        is((code_in($_->[1]))[0], $directive{$as}{default} // $special{$as},
           "$name: default")
            if $_->[1] =~ /^`[^`]+`$/;
    }

    # names of warnings have a row each

    my @silences = map { code_in($_->[0]) }
                   grep { $_->[0] =~ /^`\w+`$/ } table_of($section{ratelimit_silence});

    is_deeply [sort @silences],
              [sort +($directive{ratelimit_silence}{words} =~ s/ \.\.\.//r)
                    =~ /\w+/g],
              'each warning has a row, each row is a warning';

    # the table of contents

    my ($contents) = $page =~ /\A(.*?)^## /ms;
    my @linked = $contents =~ /\[(ratelimit\w*)\]\(#\g1\)/g;
    my @order = $page =~ /^### (ratelimit\w*)$/mg;

    is_deeply \@linked, \@order, 'the table of contents has them in order';
};


# ---- values that nginx rejects

# A directive; then, indented, its values, or whole directives.

my %rejected;

for (split /\n/, <<'EOT') {
ratelimit_shards
    hash=modulo
    127.0.0.1 127.0.0.1:6379
    127.0.0.1:99999
    127.0.0.1 hash=crc
    redis://user@127.0.0.1
    redis://127.0.0.1/x
    user:password@127.0.0.1
    rediss://127.0.0.1/x
    cluster
    cluster unix:/redis.sock
    cluster redis://127.0.0.1/1
    cluster 127.0.0.1 hash=modulo
    sentinel=mymaster
    sentinel= 127.0.0.1
    sentinel=a,a 127.0.0.1
    sentinel=mymaster redis://user:password@127.0.0.1
    sentinel=mymaster redis://127.0.0.1/1
    sentinel=mymaster unix:/sentinel.sock
ratelimit_limit
    a
    a/b rate=1r/s
    off rate=1r/s
    a capacity=5
    a rate=1r/s size=5
    a rate=1r/s rate=2r/s
    a rate=1r/s algorithm=leaky
    a rate=1r/s window=5m
    a rate=1r/s algorithm=gcra refill_interval=1s
    ratelimit_limit a rate=1r/s; ratelimit_limit a rate=1r/s;
ratelimit
    nobody
    first first
    first off
    ratelimit first; ratelimit off;
ratelimit_rate
    10
    10r/y
    -1r/s
    0.1234567r/s
    1000000001r/s
    0r/s
    ratelimit_rate 1001r/s; ratelimit_capacity 1;
    ratelimit_algorithm gcra; ratelimit_rate 100001r/s;
    ratelimit_algorithm gcra; ratelimit_rate 1r/d; ratelimit_capacity 366;
ratelimit_capacity
    0
    -1
    1.5
    1000000001
ratelimit_cost
    0
    -1
    1.5
    100001
    ratelimit_rate 5r/s; ratelimit_cost 6;
    ratelimit_limit a rate=5r/s cost=6;
ratelimit_algorithm
    leaky_bucket
    tumbling_window
ratelimit_window
    0
    366d
    soon
ratelimit_period
    year
    60s
ratelimit_timezone
    Europe/Berlin
    +1
    -12:01
    +14:01
ratelimit_anchor
    0
    29
    monday
ratelimit_refill_interval
    -1s
    2d
    soon
ratelimit_preview
    yes
ratelimit_preview_cache
    61s
    soon
ratelimit_deny_cache
    61s
    soon
ratelimit_lease
    0
    101%
    10 ttl=2m
    10 ttl=9ms
ratelimit_zone
    4k
    63k
    x
ratelimit_overrides
    4k
    63k
    yes
ratelimit_api
    read
ratelimit_phase
    content
ratelimit_clock
    local
ratelimit_ipv6_prefix
    0
    129
    x
ratelimit_status
    200
    399
    401
    403
    407
    600
ratelimit_headers
    on
    legacy legacy
    legacy off
    dry_run
    off dry_run
ratelimit_body
    html
ratelimit_dry_run
    yes
ratelimit_advise
    yes
ratelimit_log_level
    crit
ratelimit_silence
    everything
ratelimit_log_key
    on
    sha1
ratelimit_top
    0
    9
    1001
    on
ratelimit_prefix
    ""
    "a b"
    "a{b"
ratelimit_on_error
    redis
ratelimit_local_share
    0
    2
    1.5
    1/0
    3/2
    1/1001
    0.0001
    25%
ratelimit_breaker
    failures=0
    failures=101
    window=99ms
    probe=2h
    size=5
    5
    failures=5 failures=6
ratelimit_metrics
    on
ratelimit_api
    on
ratelimit_console
    on
    api=ratelimit/
    b=http://b/
ratelimit_error_retry_after
    0
    999ms
    86401s
    off
ratelimit_retry_jitter
    20
    101%
    -1%
    1.5%
    %
    on
ratelimit_error_status
    200
    401
    403
    407
    600
ratelimit_redis_timeout
    0
    61s
    soon
ratelimit_redis_connect_timeout
    0
    61s
    soon
ratelimit_redis_user
    nginx
ratelimit_redis_password_file
    no-such-file
ratelimit_redis_database
    -1
    65536
    x
    ratelimit_shards cluster 127.0.0.1; ratelimit_redis_database 1;
ratelimit_redis_networks
    10.0.0.0/33
    example.com
    unix:
ratelimit_redis_ssl
    yes
ratelimit_redis_ssl_verify
    yes
ratelimit_redis_ssl_verify_depth
    -1
    101
    x
ratelimit_redis_ssl_trusted_certificate
    ratelimit_redis_ssl on; ratelimit_redis_ssl_trusted_certificate no-such-file;
ratelimit_redis_ssl_crl
    ratelimit_redis_ssl on; ratelimit_redis_ssl_crl no-such-file;
ratelimit_redis_ssl_name
    redis.test
ratelimit_redis_ssl_server_name
    yes
ratelimit_redis_ssl_certificate
    client.crt
ratelimit_redis_ssl_certificate_key
    client.key
ratelimit_redis_ssl_password_file
    no-such-file
ratelimit_redis_ssl_protocols
    TLSv1.4
    SSLv3
    TLSv1.2 TLSv1.2
ratelimit_redis_ssl_ciphers
    ratelimit_redis_ssl on; ratelimit_redis_ssl_ciphers none-of-these;
ratelimit_redis_ssl_session_reuse
    yes
ratelimit_sentinel_user
    nginx
ratelimit_sentinel_password_file
    no-such-file
EOT
    state $name;

    if (/^(\S+)$/) {
        $name = $1;

    } else {
        push @{ $rejected{$name} }, s/^ +//r;
    }
}


subtest 'wrong values are rejected' => sub {
    is_deeply [grep { !$directive{$_} } sort keys %rejected], [],
              'values of directives that exist';

    for my $name (sort keys %directive) {

        if (!$rejected{$name}) {
            like $name, qr/^ratelimit_(?:key|(?:redis|sentinel)_password)$/,
                 "$name takes anything";
            next;
        }

        for my $value (@{ $rejected{$name} }) {
            my $text = $value =~ /^ratelimit(?:_\w+)? .*;$/ ? $value
                                                          : "$name $value;";
            my ($first) = $text =~ /^(\w+)/;
            my $http = $directive{$first}{context} eq 'http';

            my ($code, $output) = RateLimit::Nginx->test_config(
                conf   => 'ratelimit_shards 127.0.0.1:1; ratelimit_rate 1r/s;'
                          . 'ratelimit_limit first rate=1r/s;'
                          . ($http ? $text : ''),
                server => 'location / { ' . ($http ? '' : $text) . ' }');

            is $code, 1, $text;
            like $output, qr/\[emerg\].*\b\Q$name\E\b/, 'the message names it';
        }
    }

    for my $text ('ratelimit_key $uri;', 'ratelimit_capacity 1;') {
        my ($code, $output) = RateLimit::Nginx->test_config(
            conf => 'ratelimit_shards 127.0.0.1:1;',
            server => "location / { $text }");

        is $code, 1, "$text alone in a location";
        like $output, qr/"ratelimit_rate"/, 'the message says why';
    }

    my ($code, $output) = RateLimit::Nginx->test_config(
        server => 'location / { ratelimit_rate 1r/s; }');

    is $code, 0, 'a limit needs no shards' or diag $output;

    for my $text ('user', 'password', 'database 1', 'ssl on') {
        my ($word, $value) = split / /, $text;

        ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "ratelimit_redis_$word " . ($value // 'x') . ';'
                      . ($word eq 'user' ? 'ratelimit_redis_password x;' : ''),
            server => 'location / { ratelimit_rate 1r/s; }');

        is $code, 1, "without shards: no $word";
        like $output, qr/\[emerg\].*ratelimit_redis_/, 'the message names it';
    }

    # the most limits of a request

    for my $n (define('CLAIMS'), define('CLAIMS') + 1) {
        my $limits = join ' ', map { "ratelimit_limit l$_ rate=1r/s;" } 2 .. $n;
        my $names = join ' ', map { "l$_" } 2 .. $n;

        ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "ratelimit_shards 127.0.0.1:1; $limits",
            server => "location / { ratelimit_rate 1r/s; ratelimit $names; }");

        is $code, $n > define('CLAIMS') ? 1 : 0, "$n limits" or diag $output;
    }

    # names

    for my $length (define('LIMIT_NAME_MAX'), define('LIMIT_NAME_MAX') + 1) {
        my $name = 'x' x $length;

        ($code, $output) = RateLimit::Nginx->test_config(
            conf => "ratelimit_limit $name rate=1r/s;");

        is $code, $length > define('LIMIT_NAME_MAX') ? 1 : 0, "a name of $length";
    }
};


# ---- defaults that take a request to see, and variables

subtest 'defaults and variables are those of the sources' => sub {
    my $redis = RateLimit::Redis->start;

    my $headers = join '', map { "add_header X-$_ \$ratelimit_$_ always;\n" }
                           map { s/^\$ratelimit_//r } @variables;

    my $nginx = RateLimit::Nginx->start(
        conf => "$patient$headers\n"
                . "ratelimit_shards ${\ $redis->addr};\n" . <<"EOC");
ratelimit_rate 1000r/s;

server {
    listen 127.0.0.1:%%PORT%%;
    server_name defaults;

    location /address { ratelimit_rate 7r/h; }
    location /half    { ratelimit_key any; ratelimit_rate 0.5r/s; }
    location /minute  { ratelimit_key any; ratelimit_rate 10r/m; }
    location /lifted  { ratelimit_key ""; }
    location /two     { ratelimit_rate 2r/h; ratelimit_key \$remote_addr; }
    location /dry     { ratelimit_key any; ratelimit_rate 1r/h;
                        ratelimit_dry_run on; }
    location /cost    { ratelimit_rate 3r/h; ratelimit_cost \$arg_cost; }
    location /window  { ratelimit_algorithm sliding_window_log;
                        ratelimit_capacity 3; }
}
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };

    # defaults

    is $get->('/minute')->{'x-ratelimit-limit'}, 10, 'capacity: of 10r/m';
    is $get->('/minute')->{'x-ratelimit-remaining'}, 8, 'cost: 1';
    is $get->('/half')->{'x-ratelimit-limit'}, 1, 'capacity: of 0.5r/s';
    is_deeply [grep { /ratelimit/ } keys %{ $get->('/lifted') }], [],
              'an empty key: the limit does not apply';

    $get->('/address');
    ok $redis->cmd('EXISTS', 'ratelimit:defaults/address:{127.0.0.1}'),
       'key: $ratelimit_client_net; prefix: ratelimit';

    $get->('/window');

    my $ttl = $redis->cmd('PTTL', 'ratelimit:defaults/window:{127.0.0.1}');

    ok $ttl > 30_000 && $ttl <= 61_000, 'window: 60s' or diag $ttl;

    # variables

    my @rows = map { code_in($_->[0]) } grep { $_->[0] =~ /^`\$/ }
               table_of($section{Variables});

    is_deeply [sort @rows], [sort @variables, @per_limit],
              'each variable has a row, each row is a variable';

    my @sources = map { code_in($_->[0]) } grep { $_->[0] =~ /^`[a-z]+`$/ }
                  table_of($section{Variables});

    is_deeply [sort @sources],
              [sort grep { $_ ne 'none' } strings('ngx_rl_source_names')],
              'the sources';

    my ($statuses) = map { $_->[1] } grep { $_->[0] eq '`$ratelimit_status`' }
                     table_of($section{Variables});
    my @statuses = code_in($statuses);

    is scalar @statuses, 6, 'statuses';
    like $all, qr/"$_"/, $_ for @statuses;

    my $now = time;
    my $h = $get->('/two');

    is $h->{'x-status'}, 'PASSED', '$ratelimit_status';
    is $h->{'x-name'}, 'defaults/two', '$ratelimit_name';
    is $h->{'x-limit'}, 2, '$ratelimit_limit';
    is $h->{'x-remaining'}, 1, '$ratelimit_remaining';
    cmp_ok abs($h->{'x-reset'} - $now - 1800), '<', 60, '$ratelimit_reset';
    is $h->{'x-retry_after'}, undef, '$ratelimit_retry_after';
    is $h->{'x-source'}, 'redis', '$ratelimit_source';
    is $h->{'x-shard'}, $redis->addr, '$ratelimit_shard';
    like $h->{'x-latency'}, qr/^\d+\.\d{6}$/, '$ratelimit_latency';
    is $h->{'x-client_net'}, '127.0.0.1', '$ratelimit_client_net';

    $get->('/two');
    $h = $get->('/two');
    is $h->{'x-status'}, 'REJECTED', 'rejected';
    is $h->{'x-retry_after'}, $h->{'retry-after'}, 'with a time';
    is $h->{'x-source'}, 'denied', 'from an earlier denial';
    is $h->{'x-shard'}, undef, 'no shard was called';
    is $h->{'x-latency'}, undef, 'so it took no time';

    $get->('/dry');
    $h = $get->('/dry');
    is $h->{'x-status'}, 'REJECTED_DRY_RUN', 'dry run';
    like $h->{'x-retry_after'}, qr/^\d+$/, 'with a time as well';
    is $h->{'retry-after'}, undef, 'but no header';

    $h = $get->('/cost?cost=4');
    is $h->{'x-source'}, 'local', 'a cost above the capacity';
    is $h->{'retry-after'}, undef, 'no Retry-After, it can never pass';
    ok $nginx->log_like(qr/\[warn\].*\bcost 4 .*capacity 3 of limit "defaults\/cost"/),
       'logged';

    $h = $get->('/cost?cost=no');
    is $h->{'x-status'}, 'REJECTED', 'a cost that is no number';
    is $h->{'x-ratelimit-degraded'}, undef, 'is the highest';

    is $get->('/lifted')->{'x-status'}, 'SKIPPED', 'skipped';
    is $get->('/nothing')->{'x-status'}, 'PASSED', 'limit of the http level';
    is $get->('/nothing')->{'x-name'}, 'http', 'its name';

    $nginx->finish;
};


# ---- examples

subtest 'examples of directives do what is described' => sub {
    my $redis = RateLimit::Redis->start;

    load_ok($_) for @{ $block{nginx} };

    # two locations share the bucket of a named limit

    my $nginx = nginx_of('ratelimit_limit', [$redis]);

    is join(' ', map { $nginx->get('/login')->{status} } 1 .. 6),
       '404 404 404 404 404 429', 'login: five';
    is $nginx->get('/')->{headers}{'x-ratelimit-remaining'}, 94,
       'the same bucket elsewhere, which the rejected one has not charged';

    $nginx->finish;

    # metrics

    $nginx = RateLimit::Nginx->start(conf => http_of(block_of('ratelimit_metrics')));

    my $response = $nginx->get('/metrics');

    is $response->{status}, 200, 'metrics';
    like $response->{body}, qr/^nginx_ratelimit_\w+/m, 'are shown';
    is RateLimit::Load::request($nginx->port, 'POST', '/metrics', {}, '')->{status},
       405, 'to GET and HEAD only';

    $nginx->finish;

    # the API

    $nginx = RateLimit::Nginx->start(conf => http_of(block_of('ratelimit_api')));

    is $nginx->get('/ratelimit/limits')->{body}, qq({"limits":[]}\n), 'the API';

    $nginx->finish;

    # the console

    $nginx = RateLimit::Nginx->start(conf => http_of(block_of('ratelimit_console')));

    is $nginx->get('/console/config.json')->{body},
       qq({"api":"/ratelimit/","machines":[]}\n), 'the console, before its API';

    $nginx->finish;

    # the line of a log

    $nginx = RateLimit::Nginx->start(
        conf   => block_of('Variables') . "$patient"
                  . "ratelimit_shards ${\ $redis->addr};\n",
        server => 'access_log %%DIR%%/limits.log limits;
                   location /x { ratelimit_key any; ratelimit_rate 9r/h; }');

    $nginx->get('/x');

    my $line = sub { slurp($nginx->dir . '/limits.log') };

    ok wait_until(sub { -s $nginx->dir . '/limits.log' }), 'a log';
    like $line->(), qr{^127\.0\.0\.1\ "GET\ /x\ HTTP/1\.1"\ 404\ PASSED
                       \ localhost/x\ 8/9\ redis\ \Q${\ $redis->addr}\E
                       \ \d+\.\d{6}$}x, 'its line';

    $nginx->finish;
};


subtest 'the log shows keys as described' => sub {
    my $nginx = RateLimit::Nginx->start(
        server => 'ratelimit_rate 1r/d;
                   location /default { ratelimit_key $arg_k; }
                   location /address { ratelimit_key "a $remote_addr"; }
                   location /plain   { ratelimit_key $arg_k;
                                       ratelimit_log_key plain; }
                   location /off     { ratelimit_key $arg_k;
                                       ratelimit_log_key off; }');

    $nginx->get($_) for ('/default?k=secret', '/address', '/plain?k=secret',
                         '/off?k=secret') x 2;

    # the command of the page, with this key

    my $command = block_of('ratelimit_log_key', 'sh');

    $command =~ s/the key/secret/ or die "no key in $command\n";
    chomp(my $digest = `$command`);

    is $digest, substr(Digest::SHA::sha1_hex('secret'), 0, 16), 'the digest';

    my %key = map { m{limit: "localhost/(\w+)"(?:, key: "([^"]*)")?}
                    ? ($1 => $2) : () }
              grep { /REJECTED/ } split /\n/, $nginx->error_log;

    is_deeply \%key, { default => "sha1:$digest", address => 'a 127.0.0.1',
                       plain => 'secret', off => undef }, 'in the log';

    # variables whose values are shown

    my ($list) = $text{ratelimit_log_key} =~ /these variables only: (.*?)\. /;
    my @shown = map { s/^\$//r } grep { /^\$/ } code_in($list);

    cmp_ok scalar @shown, '>=', 5, 'variables that are shown';
    like $all, qr/"$_"/, $_ for @shown;

    $nginx->finish;
};


# ---- the zone

subtest 'as many keys fit into the zone as is said' => sub {
    my ($fit) = $text{ratelimit_zone} =~ /about (\d+) buckets/;

    my $nginx = RateLimit::Nginx->start(
        workers => 1, log => 'error',
        conf    => 'ratelimit_zone 512k;',
        server  => 'ratelimit_log_level info;
                    location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d;
                                  empty_gif; }
                    location /metrics { ratelimit_metrics; }');

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                    requests => 9000, timeout => 60,
                                    path => sub { "/t?k=$_[0]" });

    is $load->count(200), 9000, 'more than fit';

    my %zone = $nginx->get('/metrics')->{body}
               =~ /^nginx_ratelimit_zone_(\S+) (\d+)$/mg;

    cmp_ok $zone{'evictions_total{held="much"}'}, '>', 0, 'some were evicted';
    cmp_ok abs($zone{keys} / ($fit / 2) - 1), '<', 0.1, "half of $fit are left"
        or diag $zone{keys};

    $nginx->finish;
};


# ---- numbers

subtest 'numbers are those of the sources' => sub {
    my @numbers = (
        ['How to read this page', THROTTLE_MINUTE => 'once a minute', 1, 60],
        ['ratelimit_limit', LIMIT_NAME_MAX => '1 to %d letters'],
        ['ratelimit', CLAIMS => 'up to %d,'],
        ['ratelimit_key', KEY_MAX => 'longer than %d bytes'],
        ['ratelimit_rate', MAX_RATE => 'at most %d and'],
        ['ratelimit_capacity', MAX_CAPACITY => '1 to %d.'],
        ['ratelimit_cost', MAX_COST => '1 to %d.'],
        ['ratelimit_cost', MAX_COST => 'counts as %d.'],
        ['ratelimit_window', WINDOW_MAX => '1ms to %dd', 86400000],
        ['ratelimit_refill_interval', INTERVAL_MAX => 'up to %dd', 86400000],
        ['ratelimit_shards', REDIS_PORT => 'default port is %d'],
        ['ratelimit_shards', SENTINEL_PORT => 'that of a sentinel %d'],
        ['ratelimit_preview_cache', TIMEOUT_MAX => 'up to %ds', 1000],
        ['ratelimit_deny_cache', DENY_CACHE => '`on` is %ds', 1000],
        ['ratelimit_deny_cache', TIMEOUT_MAX => '(up to %ds)', 1000],
        ['ratelimit_lease', LEASE_TTL => '%ds by default', 1000],
        ['ratelimit_lease', TIMEOUT_MAX => '10ms to %ds', 1000],
        ['ratelimit_lease', MAX_CAPACITY => '1 to %d tokens'],
        ['ratelimit_lease', LEASES_MAX => 'at most %d leases'],
        ['ratelimit_local_share', MAX_SHARE => 'denominator of %d'],
        ['ratelimit_breaker', BREAKER_MAX => '(1 to %d)'],
        ['ratelimit_breaker', BACKOFF_MIN => 'after %d ms'],
        ['ratelimit_redis_timeout', TIMEOUT_MAX => '1ms to %ds', 1000],
        ['ratelimit_redis_connect_timeout', TIMEOUT_MAX => '1ms to %ds', 1000],
        ['ratelimit_redis_database', REDIS_DATABASES => '0 to %d.'],
        ['ratelimit_zone', CELLS_SWEEP => 'next %d keys'],
        ['ratelimit_zone', CELLS_SEARCH => '%d more if'],
        ['ratelimit_zone', WEIGHT_KNOWN => 'counts %d times'],
        ['ratelimit_zone', CHUNK => 'for each four requests', 1, 4],
    );

    for (@numbers) {
        my ($section, $name, $format, $scale, $value) = @$_;

        is define($name), $value, $name if defined $value;

        my $words = $format =~ s{%d}{define($name) / ($scale || 1)}er;
        ok index($text{$section}, $words) >= 0, "$section: $words";
    }

    # 64 bytes a key, and as many for a chunk of a window

    my $chunks = define('ENTRIES') / define('CHUNK');

    like $text{ratelimit_zone}, qr/up to ${\ ($chunks + 1)} times 64 bytes/,
         'ratelimit_zone: the largest window';
    ok index($text{ratelimit_zone}, 'counts four times') >= 0
       && define('WEIGHT_LITTLE') == 4 * define('WEIGHT_MUCH'),
       'ratelimit_zone: a key that little was taken of';

    my $bits = $directive{ratelimit_ipv6_prefix}{default};

    like $text{Variables}, qr{its /$bits network}, "Variables: /$bits";
};


done_testing();
