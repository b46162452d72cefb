# The variables $ratelimit_... in every outcome, in headers, in the access log,
# towards backends and in subrequests; and $ratelimit_client_net.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

use IO::Socket::IP ();

our $redis = start_redis();
our $mute = start_fake(name => 'MUTE', policy => { eval => {} });
our $slow = start_fake(name => 'SLOW', policy => {
    eval => { reply => ":4000000\r\n", delay => 150 },
});

our $ADDR = quotemeta $redis->addr;
our $DEAD = "127\\.0\\.0\\.1:$ENV{TEST_NGINX_DEAD_PORT}";
our $US = '\d+\.\d{6}';
our $FORMAT = join ' ', map { "$_=\$ratelimit_$_" }
              qw(status name limit remaining reset retry_after source shard
                 latency);

# a machine may have no IPv6

our $NO_IPV6 = !IO::Socket::IP->new(LocalHost => '::1', Listen => 1);


# What all variables should be, as a regex; unnamed ones are not set, which a
# log shows as "-" and a header as nothing.

sub all {
    my ($none, %value) = @_;

    return join ' ', map { "$_=" . ($value{$_} // $none) }
                     qw(status name limit remaining reset retry_after source
                        shard latency);
}


# Sections "headers" and "log" are lists of hashes, one for each request: what
# the variables are.  A section "after" is Perl that runs when the last response
# of its block has come.

patient_blocks('');

add_block_preprocessor(sub {
    my ($block) = @_;
    my $http = $block->http_config // '';

    $block->set_value('http_config', $http
                      . "log_format vars '$FORMAT';\n"
                      . "access_log logs/vars.log vars;\n"
                      . "add_header X-Vars '$FORMAT' always;\n");

    if (defined $block->vars) {
        my @vars = @{ $block->vars };
        my @headers = map { 'X-Vars: ' . all('', %$_) } @vars;

        $block->set_value('response_headers_like',
                          @headers > 1 ? \@headers : $headers[0]);
    }
});

add_response_body_check(sub {
    my ($block, $body, $n) = @_;

    my $last = ref $block->request ? $#{ $block->request } : 0;

    return if $n < $last;

    if (defined $block->vars) {
        my @lines;

        wait_until(sub {
            @lines = split /\n/, slurp("$Test::Nginx::Util::ServRoot/logs/"
                                       . 'vars.log');
            @lines > $last;
        });

        is(scalar @lines, $last + 1, 'lines of the log');

        for my $i (0 .. $last) {
            my $regex = all('-', %{ $block->vars->[$i] });
            like($lines[$i], qr/^$regex$/, 'the log');
        }
    }
});


no_root_location();
run_tests();


subtest 'the shard is the one where the bucket lives' => sub {
    my @shards = start_shards(3);
    my %shard = map { $_->addr => $_ } @shards;
    my %seen;

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "ratelimit_shards $ENV{TEST_NGINX_SHARDS};"
                   . 'ratelimit_redis_timeout 10s;'
                   . 'ratelimit_redis_connect_timeout 10s;',
        server  => 'location /t { ratelimit_rate 1r/d; ratelimit_key $arg_k;'
                   . 'ratelimit_deny_cache off;'
                   . 'add_header X-Shard $ratelimit_shard always; empty_gif; }',
    );

    for my $key (1 .. 40) {
        for my $status (200, 429) {
            my $r = $nginx->get("/t?k=$key");
            my $addr = $r->{headers}{'x-shard'} // '';

            $seen{$addr}++;
            is $r->{status}, $status, "key $key: $status";
            ok $shard{$addr} && $shard{$addr}->cmd('EXISTS',
                                    "ratelimit:localhost/t:{$key}"), $addr;
        }
    }

    is_deeply [sort keys %seen], [sort keys %shard], 'all shards have keys';

    $nginx->finish;
};


subtest 'the latency is the time of the decision' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => 'ratelimit_shards ' . $slow->addr . ';'
                   . 'ratelimit_redis_timeout 10s;'
                   . 'ratelimit_redis_connect_timeout 10s;',
        server  => 'location /t { ratelimit_rate 10r/s;'
                   . 'add_header X-Latency $ratelimit_latency; empty_gif; }',
    );

    my $r = $nginx->get('/t');
    my $latency = $r->{headers}{'x-latency'};

    is $r->{status}, 200, 'passed';
    is $r->{headers}{'x-ratelimit-remaining'}, 4, 'remaining';
    cmp_ok $latency, '>=', 0.15, 'as long as the server took';
    # two clocks, one of them this test's
    cmp_ok $latency, '<=', $r->{time} + 0.01, 'within the request';

    $nginx->finish;
};


__DATA__

=== TEST 1: the variables of a request that passed
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 5; empty_gif; }
--- request
GET /t
--- vars eval
[{ status => 'PASSED', name => 'localhost/t', limit => 5, remaining => 4,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US }]



=== TEST 2: the variables of a rejected request
--- config
location /t { ratelimit_rate 1r/d; ratelimit_deny_cache off; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- vars eval
[{ status => 'PASSED', name => 'localhost/t', limit => 1, remaining => 0,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US },
 { status => 'REJECTED', name => 'localhost/t', limit => 1, remaining => 0,
   reset => '\d{10}', retry_after => '86[34]\d\d', source => 'redis',
   shard => $::ADDR, latency => $::US }]



=== TEST 3: REJECTED_DRY_RUN knows when the client would have had to come back
--- config
location /t { ratelimit_dry_run on; ratelimit_rate 1r/d; ratelimit_capacity 2;
              ratelimit_cost 2; ratelimit_deny_cache off; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- vars eval
[{ status => 'PASSED', name => 'localhost/t', limit => 2, remaining => 0,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US },
 { status => 'REJECTED_DRY_RUN', name => 'localhost/t', limit => 2,
   remaining => 0, reset => '\d{10}', retry_after => '17[23]\d\d\d',
   source => 'redis', shard => $::ADDR, latency => $::US }]



=== TEST 4: a limit that never refills has no reset and no retry-after
--- config
location /t { ratelimit_rate 0r/s; ratelimit_capacity 1;
              ratelimit_deny_cache off; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- vars eval
[map { { status => $_, name => 'localhost/t', limit => 1, remaining => 0,
         source => 'redis', shard => $::ADDR, latency => $::US } }
     'PASSED', 'REJECTED']



=== TEST 5: the variables of a request that passed without an answer of Redis
--- config
ratelimit_rate 1r/d;
ratelimit_on_error open;
location /dead { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT; empty_gif; }
location /mute { ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
                 ratelimit_redis_timeout 20ms; empty_gif; }
--- request eval
["GET /dead", "GET /mute"]
--- error_code eval
[200, 200]
--- vars eval
[map { { status => 'DEGRADED', name => 'localhost', source => 'open',
         shard => $_, latency => $::US } }
     $::DEAD, quotemeta $::mute->addr]



=== TEST 6: the variables of a request that was closed without an answer of Redis
--- config
ratelimit_rate 1r/d;
ratelimit_on_error closed;
location /dead { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT; empty_gif; }
location /mute { ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
                 ratelimit_redis_timeout 20ms; empty_gif; }
--- request eval
["GET /dead", "GET /mute"]
--- error_code eval
[503, 503]
--- vars eval
[map { { status => 'DEGRADED', name => 'localhost', source => 'closed',
         retry_after => 1, shard => $_, latency => $::US } }
     $::DEAD, quotemeta $::mute->addr]



=== TEST 7: DEGRADED by an invalid value: no server was asked
--- config
location /open { ratelimit_rate $arg_rate; empty_gif; }
location /closed { ratelimit_on_error closed; ratelimit_rate $arg_rate;
                   empty_gif; }
--- request eval
["GET /open", "GET /closed"]
--- error_code eval
[200, 503]
--- vars eval
[{ status => 'DEGRADED', name => 'localhost/open', source => 'open' },
 { status => 'DEGRADED', name => 'localhost/closed', source => 'closed',
   retry_after => 1 }]



=== TEST 8: REJECTED for a cost above the capacity: no server was asked
--- config
location /t { ratelimit_rate 1r/d; ratelimit_cost $arg_cost; empty_gif; }
--- request
GET /t?cost=2
--- error_code: 429
--- vars eval
[{ status => 'REJECTED', name => 'localhost/t', limit => 1, remaining => 1,
   reset => '\d{10}', source => 'local' }]



=== TEST 9: the variables of a request with an empty key
--- config
location /t { ratelimit_key $arg_key; ratelimit_rate 1r/d; empty_gif; }
--- request
GET /t
--- vars eval
[{ status => 'SKIPPED', name => 'localhost/t' }]



=== TEST 10: the variables of a request without a limit are empty
--- config
location /t { empty_gif; }
location /early { ratelimit_rate 1r/d; return 200; }
--- request eval
["GET /t", "GET /early", "GET /none"]
--- error_code eval
[200, 200, 404]
--- vars eval
[{}, {}, {}]



=== TEST 11: headers off don't touch the variables
--- config
location /t { ratelimit_headers off; ratelimit_rate 1r/d; empty_gif; }
--- request
GET /t
--- vars eval
[{ status => 'PASSED', name => 'localhost/t', limit => 1, remaining => 0,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US }]



=== TEST 12: they survive internal redirects, and tell of what was decided
--- config
location /t { ratelimit_rate 1r/d; ratelimit_deny_cache off;
              error_page 429 = @slow; empty_gif; }
location @slow {
    ratelimit_rate 100r/d;
    return 429 "$ratelimit_status $ratelimit_name $ratelimit_limit\n";
}
location /other { ratelimit_rate 2r/d; try_files /none /last; }
location /last { ratelimit_rate 300r/d; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /other"]
--- error_code eval
[200, 429, 200]
--- response_body eval
[qr/^GIF/, "REJECTED localhost/t 1\n", qr/^GIF/]
--- vars eval
[{ status => 'PASSED', name => 'localhost/t', limit => 1, remaining => 0,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US },
 { status => 'REJECTED', name => 'localhost/t', limit => 1, remaining => 0,
   reset => '\d{10}', retry_after => '86[34]\d\d', source => 'redis',
   shard => $::ADDR, latency => $::US },
 { status => 'PASSED', name => 'localhost/other', limit => 2, remaining => 1,
   reset => '\d{10}', source => 'redis', shard => $::ADDR,
   latency => $::US }]



=== TEST 13: a subrequest sees what was decided about its main request
--- config
location /page {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    ssi on;
    ssi_types *;
    root html;
}
location /part {
    ratelimit_rate 1r/d;
    return 200 "$ratelimit_status $ratelimit_name $ratelimit_remaining ";
}
location /plain { ssi on; ssi_types *; root html; }
--- user_files
>>> page
<!--# include virtual="/part" --><!--# include virtual="/part" -->
<!--# echo var="ratelimit_limit" -->
>>> plain
<!--# include virtual="/part" -->.
--- request eval
["GET /page", "GET /plain"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4", "!X-RateLimit-Remaining"]
--- response_body eval
["PASSED localhost/page 4 PASSED localhost/page 4 \n5\n", "   .\n"]



=== TEST 14: a backend is told, on the request it belongs to
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    location / {
        return 200 "[$http_x_status][$http_x_remaining][$http_x_wait]\n";
    }
}
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity $arg_c;
    ratelimit_dry_run on;
    ratelimit_headers legacy dry_run;
    proxy_set_header X-Status $ratelimit_status;
    proxy_set_header X-Remaining $ratelimit_remaining;
    proxy_set_header X-Wait $ratelimit_retry_after;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- pipelined_requests eval
["GET /t?c=2", "GET /t?c=2", "GET /t?c=2", "GET /t?c=x"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Degraded: true"]
--- response_body_like eval
[qr/^\[PASSED\]\[1\]\[\]$/, qr/^\[PASSED\]\[0\]\[\]$/,
 qr/^\[REJECTED_DRY_RUN\]\[0\]\[86[34]\d\d\]$/, qr/^\[DEGRADED\]\[\]\[\]$/]



=== TEST 15: a log may have rejections alone
--- http_config
map $ratelimit_status $rejected { REJECTED 1; default 0; }
log_format short '$ratelimit_status $ratelimit_name';
--- config
location /t {
    ratelimit_rate 1r/d;
    access_log logs/rejected.log short if=$rejected;
    empty_gif;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Limit: 1") x 2]
--- after
::is(::slurp("$Test::Nginx::Util::ServRoot/logs/rejected.log"),
     "REJECTED localhost/t\n", 'the log');



=== TEST 16: before the decision there is none; what was read early is read anew
--- config
location /t {
    set $early "[$ratelimit_status$ratelimit_limit]";
    ratelimit_rate 1r/d;
    add_header X-Early $early;
    add_header X-Late $ratelimit_status;
    empty_gif;
}
--- request
GET /t
--- response_headers
X-Early: []
X-Late: PASSED



=== TEST 17: the client's network: IPv4 as it is, IPv6 cut to its /64
--- config
set_real_ip_from 127.0.0.1;
real_ip_header X-Real-IP;
location /t {
    ratelimit_key $ratelimit_client_net;
    ratelimit_rate 1r/d;
    ratelimit_capacity 9;
    add_header X-Net $ratelimit_client_net;
    empty_gif;
}
--- request eval
[("GET /t") x 10]
--- more_headers eval
["", map { "X-Real-IP: $_" } qw(192.0.2.77 2001:db8:1:2:3:4:5:6
    2001:db8:1:2:ffff:ffff:ffff:ffff 2001:db8:1:3:3:4:5:6 2001:db8::1
    2001:DB8:0:1::5 fe80::1 ::1 ::ffff:192.0.2.77)]
--- error_code eval
[(200) x 10]
--- response_headers eval
[map { "X-Net: $_->[0]\nX-RateLimit-Remaining: $_->[1]" }
     ['127.0.0.1', 8], ['192.0.2.77', 8], ['2001:db8:1:2::', 8],
     ['2001:db8:1:2::', 7], ['2001:db8:1:3::', 8], ['2001:db8::', 8],
     ['2001:db8:0:1::', 8], ['fe80::', 8], ['::', 8], ['192.0.2.77', 7]]



=== TEST 18: the client's network on a unix socket, before and after realip
--- http_config
server {
    listen unix:$TEST_NGINX_SERVER_ROOT/net.sock;
    location /t { ratelimit_key $ratelimit_client_net; ratelimit_rate 1r/d;
                  add_header X-Net $ratelimit_client_net; empty_gif; }
    location /real { set_real_ip_from unix:; real_ip_header X-Real-IP;
                     add_header X-Net $ratelimit_client_net; empty_gif; }
}
--- config
location / {
    proxy_set_header X-Real-IP 2001:db8:1:2:3:4:5:6;
    proxy_pass http://unix:$TEST_NGINX_SERVER_ROOT/net.sock:;
}
--- request eval
["GET /t", "GET /real"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-Net: unix:\nX-RateLimit-Remaining: 0", "X-Net: 2001:db8:1:2::"]



=== TEST 19: the client's network on IPv6 sockets
--- skip_eval: 10: $::NO_IPV6
--- http_config
server {
    listen [::1]:$TEST_NGINX_RAND_PORT_1;
    location /t { add_header X-Net $ratelimit_client_net; empty_gif; }
}
server {
    listen [::]:$TEST_NGINX_RAND_PORT_2 ipv6only=off;
    location /t { add_header X-Net $ratelimit_client_net; empty_gif; }
}
--- config
location /v6/ { proxy_pass http://[::1]:$TEST_NGINX_RAND_PORT_1/; }
location /both6/ { proxy_pass http://[::1]:$TEST_NGINX_RAND_PORT_2/; }
location /both4/ { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_2/; }
--- request eval
["GET /v6/t", "GET /both6/t", "GET /both4/t"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-Net: ::", "X-Net: ::", "X-Net: 127.0.0.1"]



=== TEST 20: DEGRADED and REJECTED, local: the numbers of this machine's share
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 4;
ratelimit_local_share 0.25;
location /dead { ratelimit_key dead;
                 ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT; empty_gif; }
location /mute { ratelimit_key mute;
                 ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
                 ratelimit_redis_timeout 20ms; empty_gif; }
--- request eval
["GET /dead", "GET /dead", "GET /mute", "GET /mute"]
--- error_code eval
[200, 429, 200, 429]
--- vars eval
[map { my %all = (name => $_->[0], limit => 1, remaining => 0,
                  reset => '\\d{10}', source => 'local', shard => $_->[1],
                  latency => $::US);
       +{ %all, status => 'DEGRADED' },
       +{ %all, status => 'REJECTED', retry_after => '345[56]\\d\\d' } }
     ['localhost/dead', $::DEAD],
     ['localhost/mute', quotemeta $::mute->addr]]



=== TEST 21: PASSED and REJECTED where there are no shards: no server was asked
--- no_shards
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- vars eval
[map { { name => 'localhost/t', limit => 1, remaining => 0,
         reset => '\\d{10}', source => 'local', %$_ } }
     { status => 'PASSED' },
     { status => 'REJECTED', retry_after => '86[34]\\d\\d' }]



=== TEST 22: REJECTED from memory: no server was asked
--- config
location /t { ratelimit_rate 1r/d; ratelimit_deny_cache 60s; empty_gif; }
location /never { ratelimit_rate 0r/s; ratelimit_capacity 1;
                  ratelimit_deny_cache 60s; empty_gif; }
location /dry { ratelimit_rate 1r/d; ratelimit_deny_cache 60s;
                ratelimit_dry_run on; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /never", "GET /never", "GET /dry", "GET /dry"]
--- error_code eval
[200, 429, 200, 429, 200, 200]
--- vars eval
[map { my %all = (name => "localhost/$_->[0]", limit => 1, remaining => 0,
                  reset => $_->[1]);
       +{ %all, status => 'PASSED', source => 'redis', shard => $::ADDR,
          latency => $::US },
       +{ %all, status => $_->[3], retry_after => $_->[2],
          source => 'denied' } }
     ['t', '\\d{10}', '86[34]\\d\\d', 'REJECTED'],
     ['never', undef, undef, 'REJECTED'],
     ['dry', '\\d{10}', '86[34]\\d\\d', 'REJECTED_DRY_RUN']]



=== TEST 23: PASSED by a token that was taken before: no server was asked
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 9;
              ratelimit_lease 5 ttl=60s; empty_gif; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[(200) x 3]
--- vars eval
[map { { status => 'PASSED', name => 'localhost/t', limit => 9,
         reset => '\\d{10}', %$_ } }
     { remaining => 8, source => 'redis', shard => $::ADDR,
       latency => $::US },
     { remaining => 7, source => 'redis', shard => $::ADDR,
       latency => $::US },
     { remaining => 6, source => 'lease' }]
