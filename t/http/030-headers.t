# What clients are told: X-RateLimit-Limit, -Remaining and -Reset on every
# decision, Retry-After and X-RateLimit-Retry-After on a rejection,
# X-RateLimit-Degraded and -Degraded-Reason when the failure policy decided.
# Each once, and never mixed with those of a backend.
#
# Test::Nginx shows a header that came twice as "1, 2", so its checks also
# count.  The rate of the limits is too slow to refill during a test.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

our $redis = start_redis();

# one that is asleep, and one that says what it is told

our $mute = start_fake(name => 'MUTE', policy => { eval => {} });
our $told = start_fake(name => 'TOLD');

our $passed = "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\n"
              . "!Retry-After\n!X-RateLimit-Retry-After\n"
              . "!X-RateLimit-Degraded\n!X-RateLimit-Degraded-Reason\n";
our $none = "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n!X-RateLimit-Reset\n"
            . "!X-RateLimit-Retry-After\n!X-RateLimit-Degraded\n"
            . "!X-RateLimit-Degraded-Reason\n";
our $rejected = "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n"
                . "X-RateLimit-Reset: \\d{10}\nRetry-After: 86[34]\\d\\d\n"
                . "X-RateLimit-Retry-After: 86[34]\\d\\d\n";


# The backend has much to say about limits itself.

patient_blocks(<<'EOC');
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;

        location / { return 200 "backend\n"; }
        location /404 { return 404; }
        location /500 { return 500; }
        location /slow { add_header Retry-After 77 always; return 503; }
        location /redirect { return 302 /elsewhere; }

        location /chatty {
            add_header X-RateLimit-Limit 901 always;
            add_header X-RateLimit-Limit 902 always;
            add_header x-ratelimit-remaining 903 always;
            add_header X-RATELIMIT-RESET 904 always;
            add_header X-RateLimit-Retry-After 905 always;
            add_header X-RateLimit-Degraded maybe always;
            add_header X-RateLimit-Degraded-Reason whim always;
            add_header X-RateLimit-Other mine always;
            add_header RateLimit mine always;
            return 200 "backend\n";
        }

        location /accel { add_header X-Accel-Redirect /inside; return 200; }
    }
EOC


no_root_location();
run_tests();


# What the script replies is one number; all others come of it.  Only a server
# that says what it is told can give them to the microtoken.

my @CASES = (
    # reply, rate, capacity, cost => status, remaining, full in, retry after
    [  9_000_000, '1r/s',    10, 1 => 200,  9,    1, undef],
    [  8_999_999, '1r/s',    10, 1 => 200,  8,    2, undef],
    [  9_000_001, '1r/s',    10, 1 => 200,  9,    1, undef],
    [  9_999_999, '1r/s',    10, 1 => 200,  9,    1, undef],
    [ 10_000_000, '1r/s',    10, 1 => 200, 10,    0, undef],
    [  4_500_000, '1r/s',    10, 1 => 200,  4,    6, undef],
    [          0, '1r/s',    10, 1 => 200,  0,   10, undef],
    [          0, '3r/s',    10, 1 => 200,  0,    4, undef],
    [          0, '0.3r/s',  10, 1 => 200,  0,   34, undef],
    [         -1, '1r/s',    10, 1 => 429,  0,   10,  1],
    [   -500_001, '1r/s',    10, 1 => 429,  0,   10,  1],
    [ -1_000_000, '1r/s',    10, 1 => 429,  0,   10,  1],
    [         -1, '1000r/s',  1, 1 => 429,  0,    1,  1],
    [         -1, '0.5r/s',  10, 1 => 429,  0,   20,  2],
    [         -2, '0.5r/s',  10, 1 => 429,  0,   20,  2],
    [   -500_002, '0.5r/s',  10, 1 => 429,  0,   19,  1],
    [   -499_999, '0.5r/s',  10, 1 => 429,  0,   20,  2],
    [         -1, '0.3r/s',  10, 1 => 429,  0,   34,  4],
    [         -1, '1r/m',     2, 1 => 429,  0,  120, 60],
    [ -1_000_001, '1r/m',     5, 3 => 429,  1,  240, 120],
    [ -2_999_999, '1r/m',     5, 3 => 429,  2,  121, 1],
);

subtest 'numbers are exact, times are rounded up' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => 'ratelimit_shards ' . $told->addr . ';'
                   . 'ratelimit_redis_timeout 10s;'
                   . 'ratelimit_redis_connect_timeout 10s;'
                   . 'ratelimit_deny_cache off;',
        server  => <<'EOC',
            location /t {
                ratelimit_rate     $arg_rate;
                ratelimit_capacity $arg_capacity;
                ratelimit_cost     $arg_cost;
                add_header X-Now   $msec always;
                empty_gif;
            }
EOC
    );

    for my $case (@CASES) {
        my ($reply, $rate, $capacity, $cost, $status, $left, $full, $retry)
            = @$case;

        $told->policy({ eval => ":$reply\r\n" });

        my $r = $nginx->get("/t?rate=$rate&capacity=$capacity&cost=$cost");
        my $h = $r->{headers};

        subtest "$reply at $rate, capacity $capacity, cost $cost" => sub {
            is $r->{status}, $status, 'status';
            is $h->{'x-ratelimit-limit'}, $capacity, 'limit';
            is $h->{'x-ratelimit-remaining'}, $left, 'remaining';
            is $h->{'retry-after'}, $retry, 'Retry-After';
            is $h->{'x-ratelimit-retry-after'}, $retry,
               'X-RateLimit-Retry-After';

            # a second may end between the decision and the header

            my $in = $h->{'x-ratelimit-reset'} - int $h->{'x-now'};
            ok $in == $full || $in == $full - 1, 'reset'
                or diag "in $in s, not $full";
        };
    }

    $nginx->finish;
};


subtest 'the time of reset is the time of day' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => 'ratelimit_shards ' . $redis->addr . ';'
                   . 'ratelimit_redis_timeout 10s;'
                   . 'ratelimit_redis_connect_timeout 10s;',
        server  => 'location /t { ratelimit_rate 1r/h; empty_gif; }',
    );

    my $before = time;
    my $r = $nginx->get('/t');
    my $after = time;

    is $r->{status}, 200, 'passed';
    cmp_ok $r->{headers}{'x-ratelimit-reset'}, '>=', $before + 3600,
           'an hour from now';
    cmp_ok $r->{headers}{'x-ratelimit-reset'}, '<=', $after + 3600, 'no later';

    $nginx->finish;
};


subtest 'a status that closes the connection' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => 'ratelimit_shards ' . $redis->addr . ';'
                   . 'ratelimit_redis_timeout 10s;'
                   . 'ratelimit_redis_connect_timeout 10s;',
        server  => 'location /t444 { ratelimit_rate 1r/h; ratelimit_status 444;'
                   . 'empty_gif; }',
    );

    is $nginx->get('/t444')->{status}, 200, 'passed';
    is $nginx->get('/t444')->{error}, 'empty',
       'rejected without a word';

    $nginx->finish;
};


__DATA__

=== TEST 1: a request that passes is told limit, remaining and reset
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 5; empty_gif; }
--- request
GET /t
--- response_headers eval
$::passed
--- raw_response_headers_like eval
qr/\r\nX-RateLimit-Reset: \d{10}\r\n/



=== TEST 2: a request that is rejected is told when to come back
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nRetry-After: ",
 $::rejected]



=== TEST 3: any status of a rejection has the headers
--- config
ratelimit_rate 1r/d;
location /t { empty_gif; }
location /t/400 { ratelimit_status 400; empty_gif; }
location /t/404 { ratelimit_status 404; empty_gif; }
location /t/420 { ratelimit_status 420; empty_gif; }
location /t/503 { ratelimit_status 503; empty_gif; }
location /t/599 { ratelimit_status 599; empty_gif; }
--- request eval
["GET /t", map { "GET /t/$_" } 400, 404, 420, 503, 599]
--- error_code eval
[200, 400, 404, 420, 503, 599]
--- response_headers_like eval
["Retry-After: ", ($::rejected) x 5]



=== TEST 4: a backend's headers of the same names are replaced, however spelt
--- config
location / {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request
GET /chatty
--- response_headers eval
"${main::passed}X-RateLimit-Other: mine\nRateLimit: mine"
--- raw_response_headers_unlike eval
qr/: 90\d\b/
--- response_body
backend



=== TEST 5: where there is no reset, that of a backend does not stand in
--- config
location / {
    ratelimit_rate 0r/s;
    ratelimit_capacity 5;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request
GET /chatty
--- response_headers eval
"$::passed!X-RateLimit-Reset\n!X-RATELIMIT-RESET"
--- raw_response_headers_unlike eval
qr/: 90\d\b/



=== TEST 6: a degraded answer does not show a backend's numbers as ours
--- config
location / {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_on_error open;
    ratelimit_rate 1r/d;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request
GET /chatty
--- response_headers
X-RateLimit-Degraded: true
X-RateLimit-Degraded-Reason: storage_unavailable
X-RateLimit-Other: mine
!X-RateLimit-Limit
!x-ratelimit-remaining
!X-RATELIMIT-RESET
!X-RateLimit-Retry-After



=== TEST 7: with headers off, a backend's own pass through
--- config
location / {
    ratelimit_headers off;
    ratelimit_rate 1r/d;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request eval
["GET /chatty", "GET /chatty"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Limit: 901, 902\nX-RateLimit-Remaining: 903\n"
 . "X-RateLimit-Reset: 904\nX-RateLimit-Retry-After: 905\n"
 . "X-RateLimit-Degraded: maybe",
 "$::none!Retry-After"]



=== TEST 8: where nothing is limited, a backend's own pass through
--- config
location / { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
location /chatty/skipped {
    ratelimit_key $arg_key;
    ratelimit_rate 1r/d;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request eval
["GET /chatty", "GET /chatty/skipped"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Limit: 901, 902\nX-RateLimit-Remaining: 903\n"
  . "X-RateLimit-Reset: 904\nX-RateLimit-Degraded: maybe") x 2]



=== TEST 9: a backend's Retry-After is its own affair when the request passed
--- config
location / {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request
GET /slow
--- error_code: 503
--- response_headers
Retry-After: 77
X-RateLimit-Remaining: 4
!X-RateLimit-Retry-After



=== TEST 10: whatever a backend answers, the headers are there
--- config
location / {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request eval
["GET /404", "GET /500", "GET /redirect"]
--- error_code eval
[404, 500, 302]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 2"]



=== TEST 11: also when there is no backend, and no file
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /gone { proxy_pass http://127.0.0.1:$TEST_NGINX_DEAD_PORT; }
location /file { root html; }
location /denied { deny all; }
location /dir { root html; }
--- user_files
>>> dir/x
x
--- request eval
["GET /gone", "GET /file", "GET /denied", "GET /dir"]
--- error_code eval
[502, 404, 403, 301]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3", "",
 "X-RateLimit-Limit: 5"]



=== TEST 12: headers of a rejection survive error_page to a page
--- config
error_page 429 /429.html;
location /t { ratelimit_rate 1r/d; empty_gif; }
location = /429.html { internal; }
--- user_files
>>> 429.html
slow down
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_body eval
[qr/^GIF/, "slow down\n"]
--- response_headers_like eval
["Retry-After: ", $::rejected]



=== TEST 13: and to a named location, with another status
--- config
ratelimit_rate 1r/d;
location /t { error_page 429 = @slow; empty_gif; }
location /t/200 { error_page 429 =200 @slow; empty_gif; }
location /t/503 { error_page 429 =503 /page; empty_gif; }
location @slow { default_type application/json; return 418 '{"slow":1}'; }
location /page { internal; return 200 "page\n"; }
--- request eval
["GET /t", "GET /t", "GET /t/200", "GET /t/503"]
--- error_code eval
[200, 418, 200, 503]
--- response_headers_like eval
["Retry-After: ", ($::rejected) x 3]



=== TEST 14: and to a backend that has headers of its own
--- config
ratelimit_rate 1r/d;
location /t { error_page 429 = /chatty; empty_gif; }
location /chatty {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
location /t/slow { error_page 429 = /slow; empty_gif; }
location /slow {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request eval
["GET /t", "GET /t", "GET /t/slow"]
--- error_code eval
[200, 200, 503]
--- response_headers_like eval
["Retry-After: ", $::rejected, $::rejected]



=== TEST 15: a redirect to another site has the headers
--- config
error_page 429 https://example.com/slow;
location /t { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 302]
--- response_headers_like eval
["Retry-After: ", "${main::rejected}Location: https://example.com/slow"]



=== TEST 16: headers of a pass survive error_page
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    error_page 404 =200 @fallback;
    proxy_intercept_errors on;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/404;
}
location @fallback { return 200 "fallback\n"; }
--- request
GET /t
--- response_headers eval
$::passed
--- response_body
fallback



=== TEST 17: other internal redirects have the headers
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /accel { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
location /inside { internal; empty_gif; }
location /dir/ { root html; index x; }
location /try { try_files /no /dir/x; }
--- user_files
>>> dir/x
x
--- request eval
["GET /accel", "GET /dir/", "GET /try"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
[map { "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: $_" } 4, 3, 2]



=== TEST 18: HEAD has the headers of GET
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["HEAD /t", "HEAD /t"]
--- error_code eval
[200, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nRetry-After: ",
 $::rejected]



=== TEST 19: an answer 304 and a part of a file have the headers
--- config
location /file { root html; ratelimit_rate 1r/d; ratelimit_capacity 5; }
--- user_files
>>> file
0123456789
--- request eval
["GET /file", "GET /file"]
--- more_headers eval
["If-None-Match: *", "Range: bytes=2-3"]
--- error_code eval
[304, 206]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3"]
--- response_body eval
["", "23"]



=== TEST 20: each request of a connection has its own
--- config
location /a { ratelimit_rate 1r/d; ratelimit_capacity 5; empty_gif; }
location /b { ratelimit_rate 1r/d; empty_gif; }
location /c { empty_gif; }
--- pipelined_requests eval
["GET /a", "GET /b", "GET /b", "GET /c", "GET /a"]
--- error_code eval
[200, 200, 429, 200, 200]
--- response_headers_like eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nRetry-After: ",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nRetry-After: ",
 $::rejected,
 "X-RateLimit-Limit: \nX-RateLimit-Remaining: \nX-RateLimit-Reset: \n"
 . "Retry-After: ",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3\nRetry-After: "]



=== TEST 21: subrequests add nothing
--- config
location /page {
    ssi on;
    ssi_types *;
    root html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /part { ratelimit_rate 1r/d; proxy_pass
                 http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/chatty; }
--- user_files
>>> page
<!--# include virtual="/part" --><!--# include virtual="/part" -->.
--- request
GET /page
--- response_headers eval
$::passed
--- raw_response_headers_unlike eval
qr/: 90\d\b/
--- response_body
backend
backend
.



=== TEST 22: a dry run tells nobody to wait
--- config
location /t { ratelimit_rate 1r/d; ratelimit_dry_run on;
              ratelimit_headers legacy dry_run; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n!Retry-After\n"
  . "!X-RateLimit-Retry-After") x 2]



=== TEST 23: no answer from Redis, open: degraded, and why
--- config
ratelimit_rate 1r/d;
ratelimit_on_error open;
location /dead {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    empty_gif;
}
location /mute {
    ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
    ratelimit_redis_timeout 20ms;
    empty_gif;
}
--- request eval
["GET /dead", "GET /mute"]
--- error_code eval
[200, 200]
--- response_headers eval
[map { "X-RateLimit-Degraded: true\nX-RateLimit-Degraded-Reason: $_\n"
       . "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n!X-RateLimit-Reset\n"
       . "!Retry-After\n!X-RateLimit-Retry-After" }
     'storage_unavailable', 'timeout']



=== TEST 24: no answer from Redis, closed: degraded, and when to come back
--- config
ratelimit_rate 1r/d;
ratelimit_on_error closed;
error_page 503 /sorry;
location /sorry { internal; return 503 "sorry\n"; }
location /dead {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    empty_gif;
}
location /mute {
    ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
    ratelimit_redis_timeout 20ms;
    empty_gif;
}
--- request eval
["GET /dead", "GET /mute"]
--- error_code eval
[503, 503]
--- response_headers eval
[map { "X-RateLimit-Degraded: true\nX-RateLimit-Degraded-Reason: $_\n"
       . "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n!X-RateLimit-Reset\n"
       . "Retry-After: 1\nX-RateLimit-Retry-After: 1" }
     'storage_unavailable', 'timeout']
--- response_body eval
["sorry\n", "sorry\n"]



=== TEST 25: headers off are off in an outage too
--- config
location /t {
    ratelimit_headers off;
    ratelimit_on_error closed;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_rate 1r/d;
    empty_gif;
}
--- request
GET /t
--- error_code: 503
--- response_headers eval
"$::none!Retry-After"



=== TEST 26: headers of one's own can be made of the variables
--- config
location /t {
    ratelimit_headers off;
    ratelimit_rate 1r/d;
    add_header X-Quota $ratelimit_remaining/$ratelimit_limit always;
    add_header X-Wait $ratelimit_retry_after always;
    add_header RateLimit-Reset $ratelimit_reset always;
    empty_gif;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers_like eval
["X-Quota: 0/1\nX-Wait: \nRateLimit-Reset: \\d{10}\nX-RateLimit-Limit: ",
 "X-Quota: 0/1\nX-Wait: 86[34]\\d\\d\nRateLimit-Reset: \\d{10}\n"
 . "X-RateLimit-Limit: \nRetry-After: "]



=== TEST 27: an answer from nginx's cache has the headers of its own request
--- http_config
proxy_cache_path $TEST_NGINX_SERVER_ROOT/cache keys_zone=c:1m;
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    proxy_cache c;
    proxy_cache_valid 1h;
    add_header X-Cache $upstream_cache_status;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/chatty;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-Cache: MISS\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-Cache: HIT\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3"]



=== TEST 28: a response that is too early for the limiter has no headers
--- config
ratelimit_rate 1r/d;
location /return { return 200 "returned\n"; }
--- request
GET /return
--- response_headers eval
"$::none!Retry-After"
--- response_body
returned



=== TEST 29: no answer from Redis, local: degraded, and what this machine grants
--- http_config
ratelimit_local_share 1/2;
ratelimit_breaker failures=100;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 4;
location /dead {
    ratelimit_key dead;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    empty_gif;
}
location /mute {
    ratelimit_key mute;
    ratelimit_shards $TEST_NGINX_FAKE_MUTE_ADDR;
    ratelimit_redis_timeout 20ms;
    empty_gif;
}
--- request eval
[("GET /dead") x 3, ("GET /mute") x 3]
--- error_code eval
[(200, 200, 429) x 2]
--- response_headers_like eval
[map { my $reason = $_;
       map { "X-RateLimit-Degraded: true\n"
             . "X-RateLimit-Degraded-Reason: $reason\n"
             . "X-RateLimit-Limit: 2\nX-RateLimit-Reset: \\d{10}\n$_" }
           ("X-RateLimit-Remaining: 1\nRetry-After: \n"
            . "X-RateLimit-Retry-After: ",
            "X-RateLimit-Remaining: 0\nRetry-After: \n"
            . "X-RateLimit-Retry-After: ",
            # half of the rate
            "X-RateLimit-Remaining: 0\nRetry-After: 172[78]\\d\\d\n"
            . "X-RateLimit-Retry-After: 172[78]\\d\\d") }
     'storage_unavailable', 'timeout']



=== TEST 30: the breaker is open, local: the same, and why
--- http_config
ratelimit_breaker failures=1 probe=1h;
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 3;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT2;
    empty_gif;
}
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Degraded: true\nX-RateLimit-Remaining: 2",
 (map { "X-RateLimit-Degraded: true\nX-RateLimit-Limit: 3\n"
        . "X-RateLimit-Degraded-Reason: circuit_open\n"
        . "X-RateLimit-Remaining: $_" } 1, 0, 0)]



=== TEST 31: a degraded answer of this machine has no number of a backend
--- config
location / {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_breaker failures=100;
    ratelimit_rate 1r/d;
    proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
}
--- request
GET /chatty
--- response_headers_like eval
"X-RateLimit-Degraded: true\n"
. "X-RateLimit-Degraded-Reason: storage_unavailable\n"
. "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n"
. "X-RateLimit-Reset: \\d{10}\nX-RateLimit-Retry-After: \n"
. "X-RateLimit-Other: mine"



=== TEST 32: headers off are off for this machine's decisions too
--- config
location /t {
    ratelimit_headers off;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_rate 1r/d;
    empty_gif;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
[("$::none!Retry-After") x 2]



=== TEST 33: an invalid limit passes by whatever policy but closed, without numbers
--- config
location /local { ratelimit_rate $arg_r; empty_gif; }
location /open { ratelimit_on_error open; ratelimit_rate $arg_r; empty_gif; }
location /closed { ratelimit_on_error closed; ratelimit_rate $arg_r;
                   empty_gif; }
--- request eval
["GET /local?r=x", "GET /open?r=x", "GET /closed?r=x"]
--- error_code eval
[200, 200, 503]
--- response_headers eval
[("X-RateLimit-Degraded: true\nX-RateLimit-Degraded-Reason: invalid_limit\n"
  . "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n!X-RateLimit-Reset") x 3]



=== TEST 34: no_degraded: clients don't see what the state of Redis is
--- config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
location /local  { ratelimit_rate 1r/d; ratelimit_headers legacy no_degraded;
                   empty_gif; }
location /closed { ratelimit_rate 1r/d; ratelimit_on_error closed;
                   ratelimit_headers draft-8 no_degraded; empty_gif; }
location /both   { ratelimit_rate 1r/d; ratelimit_headers legacy; empty_gif; }
--- request eval
["GET /local", "GET /local", "GET /closed", "GET /both"]
--- error_code eval
[200, 429, 503, 200]
--- response_headers eval
["X-RateLimit-Limit: 1\n!X-RateLimit-Degraded\n!X-RateLimit-Degraded-Reason",
 "X-RateLimit-Limit: 1\n!X-RateLimit-Degraded\n!X-RateLimit-Degraded-Reason",
 "Retry-After: 1\n!X-RateLimit-Degraded\n!X-RateLimit-Degraded-Reason",
 "X-RateLimit-Limit: 1\nX-RateLimit-Degraded: true"]



=== TEST 35: expose: the headers that are sent, for scripts of other origins
--- config
location /legacy { ratelimit_rate 1r/d; ratelimit_headers legacy expose;
                   empty_gif; }
location /draft  { ratelimit_rate 1r/d; ratelimit_headers draft-8 expose;
                   empty_gif; }
location /none   { ratelimit_rate 1r/d; ratelimit_headers legacy; empty_gif; }
location /skip   { ratelimit_rate 1r/d; ratelimit_headers legacy expose;
                   ratelimit_key ""; empty_gif; }
location /dry    { ratelimit_rate 1r/d; ratelimit_headers legacy expose;
                   ratelimit_dry_run on; empty_gif; }
location /down   { ratelimit_rate 1r/d; ratelimit_headers legacy expose;
                   ratelimit_on_error closed;
                   ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
                   empty_gif; }
--- request eval
["GET /legacy", "GET /legacy", "GET /draft", "GET /draft", "GET /none",
 "GET /skip", "GET /dry", "GET /down"]
--- error_code eval
[200, 429, 200, 429, 200, 200, 200, 503]
--- response_headers eval
[map { $_ ? "Access-Control-Expose-Headers: $_"
          : '!Access-Control-Expose-Headers' }
     'X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset',
     'X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, '
     . 'X-RateLimit-Retry-After, Retry-After',
     'RateLimit-Policy, RateLimit',
     'RateLimit-Policy, RateLimit, Retry-After',
     '', '', '',
     'X-RateLimit-Retry-After, X-RateLimit-Degraded, '
     . 'X-RateLimit-Degraded-Reason, Retry-After']



=== TEST 36: expose: the list of a backend goes on, that of add_header is another
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
    location /one   { add_header access-control-expose-headers "X-Page, X-Size";
                      return 204; }
}
--- config
ratelimit_headers draft-8 expose;
location /one   { ratelimit_rate 1r/d;
                  proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_2; }
location /added { ratelimit_rate 1r/d; empty_gif;
                  add_header Access-Control-Expose-Headers X-Page; }
--- request eval
["GET /one", "GET /added"]
--- error_code eval
[204, 200]
--- response_headers eval
["Access-Control-Expose-Headers: X-Page, X-Size, RateLimit-Policy, RateLimit",
 "Access-Control-Expose-Headers: RateLimit-Policy, RateLimit, X-Page"]
