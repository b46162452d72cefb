# How http, server, location, nested location and "if" hand directives down.
# A place that sets none of key, capacity and rate shares the bucket of where
# they were set; one that sets any of them has a limit of its own.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts what was taken from a bucket.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

our $redis = start_redis();
our $other = start_redis(name => 'B');
our $locked = start_redis(name => 'LOCKED', config => {
    requirepass => 'top-secret',
    user        => ['bob on >bobs-secret ~ratelimit:* +@all'],
});
our $slow = start_fake(policy => {
    eval => { reply => ":7000000\r\n", delay => 200 },
});


patient_blocks('add_header X-Name $ratelimit_name always;');


# The buckets of a server, without the common prefix.

sub buckets {
    my ($server) = @_;

    return [sort map { s/^ratelimit://r } @{ $server->cmd('KEYS', '*') }];
}


run_tests();

__DATA__

=== TEST 1: a limit in http guards all locations of all servers as one bucket
--- http_config
ratelimit_rate 1r/d;
ratelimit_capacity 3;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    location / { empty_gif; }
}
--- config
location /a { empty_gif; }
location /b { empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /c", "GET /a"]
--- more_headers eval
["", "", "Host: other", ""]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2\nX-Name: http",
 "X-RateLimit-Remaining: 1\nX-Name: http",
 "X-RateLimit-Remaining: 0\nX-Name: http",
 "X-RateLimit-Remaining: 0\nX-Name: http"]
--- after
::is_deeply(::buckets($::redis), ['http:{127.0.0.1}'], 'one bucket');
::is($::redis->clients, 1, 'one connection');



=== TEST 2: a limit in a server guards all kinds of its locations as one bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 8;

location /prefix { empty_gif; }
location = /exact { empty_gif; }
location ^~ /first { empty_gif; }
location ~ ^/regex\d { empty_gif; }
location ~* ^/RegEx\D { empty_gif; }
location /outer { location /outer/inner { empty_gif; } }
location /named { try_files /nothing @named; }
location @named { return 200; }
--- request eval
["GET /prefix", "GET /exact", "GET /first", "GET /regex1", "GET /regexx",
 "GET /outer/inner", "GET /named", "GET /index.html", "GET /prefix"]
--- error_code eval
[200, 200, 200, 200, 200, 200, 200, 200, 429]
--- response_headers eval
[(map { "X-RateLimit-Remaining: $_\nX-Name: localhost" }
      7, 6, 5, 4, 3, 2, 1, 0),
 "X-RateLimit-Remaining: 0\nX-Name: localhost"]
--- after
::is_deeply(::buckets($::redis), ['localhost:{127.0.0.1}'], 'one bucket');



=== TEST 3: a server may go without what another one sets
--- http_config
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    ratelimit_rate 1r/d;
    location / { empty_gif; }
}
--- config
location /a { empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /a", "GET /a"]
--- more_headers eval
["Host: other", "Host: other", "", ""]
--- error_code eval
[200, 429, 200, 200]
--- response_headers eval
["X-Name: other", "X-Name: other", "!X-RateLimit-Limit\n!X-Name",
 "!X-RateLimit-Limit\n!X-Name"]



=== TEST 4: a child that sets the capacity alone has its own bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 2;
ratelimit_key $arg_key;

location /a { empty_gif; }
location /b { ratelimit_capacity 7; empty_gif; }
--- request eval
["GET /a?key=x", "GET /b?key=x", "GET /b?key=y"]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-Name: localhost",
 "X-RateLimit-Limit: 7\nX-RateLimit-Remaining: 6\nX-Name: localhost/b",
 "X-RateLimit-Limit: 7\nX-RateLimit-Remaining: 6\nX-Name: localhost/b"]
--- error_code eval
[200, 200, 200]
--- after
::is_deeply(::buckets($::redis),
            ['localhost/b:{x}', 'localhost/b:{y}', 'localhost:{x}'],
            'the key is inherited');
::is($::redis->cmd('PTTL', 'ratelimit:localhost/b:{x}') > 6 * 86400e3, 1,
     'and the rate');



=== TEST 5: a child that sets the rate alone has its own bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 2;
ratelimit_key $arg_key;

location /a { empty_gif; }
location /b { ratelimit_rate 1r/h; empty_gif; }
--- request eval
["GET /a?key=x", "GET /b?key=x", "GET /b?key=x", "GET /b?key=x"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers_like eval
["X-RateLimit-Remaining: 1\nX-Name: localhost",
 "X-RateLimit-Remaining: 1\nX-Name: localhost/b",
 "X-RateLimit-Remaining: 0\nX-Name: localhost/b",
 "X-RateLimit-Limit: 2\nX-Name: localhost/b\nRetry-After: 3[56]\\d\\d"]



=== TEST 6: a child that sets the key alone has its own bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 2;

location /a { empty_gif; }
location /b { ratelimit_key $arg_key; empty_gif; }
--- request eval
["GET /a?key=x", "GET /b?key=x", "GET /b?key=y", "GET /a?key=z"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-Name: localhost",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-Name: localhost/b",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-Name: localhost/b",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-Name: localhost"]



=== TEST 7: a child that sets an equal value has its own bucket all the same
--- config
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b", "GET /b"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
["X-Name: localhost", "X-Name: localhost", "X-Name: localhost/b",
 "X-Name: localhost/b"]



=== TEST 8: an empty key in a child turns an inherited limit off
--- config
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /health { ratelimit_key ""; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /health", "GET /health"]
--- error_code eval
[200, 429, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1", "!X-RateLimit-Limit",
 "!X-RateLimit-Limit"]
--- after
::is_deeply(::buckets($::redis), ['localhost:{127.0.0.1}'], 'one bucket');



=== TEST 9: nested locations share what the outer one sets
--- config
location /a {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    empty_gif;

    location /a/b {
        empty_gif;
        location /a/b/c { empty_gif; }
    }
}
--- request eval
["GET /a", "GET /a/b/c", "GET /a/b"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1\nX-Name: localhost/a",
 "X-RateLimit-Remaining: 0\nX-Name: localhost/a",
 "X-RateLimit-Remaining: 0\nX-Name: localhost/a"]



=== TEST 10: values come down from every level, the nearest one counts
--- http_config
ratelimit_capacity 5;
ratelimit_key http;
--- config
ratelimit_key server;
ratelimit_rate 1r/d;

location /a {
    ratelimit_capacity 4;
    empty_gif;

    location /a/b {
        ratelimit_key inner;
        empty_gif;
        location /a/b/c { ratelimit_rate 2r/d; empty_gif; }
    }
}
location /b { empty_gif; }
--- request eval
["GET /a", "GET /a/b", "GET /a/b/c", "GET /b"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 4\nX-Name: localhost/a",
 "X-RateLimit-Limit: 4\nX-Name: localhost/a/b",
 "X-RateLimit-Limit: 4\nX-Name: localhost/a/b/c",
 "X-RateLimit-Limit: 5\nX-Name: localhost"]
--- after
::is_deeply(::buckets($::redis),
            ['localhost/a/b/c:{inner}', 'localhost/a/b:{inner}',
             'localhost/a:{server}', 'localhost:{server}'],
            'the keys');



=== TEST 11: a nested location that sets one of the three is on its own
--- config
location /a {
    ratelimit_rate 1r/d;
    empty_gif;
    location /a/b { ratelimit_capacity 2; empty_gif; }
}
--- request eval
["GET /a", "GET /a", "GET /a/b", "GET /a/b", "GET /a/b"]
--- error_code eval
[200, 429, 200, 200, 429]
--- response_headers eval
["X-Name: localhost/a", "X-Name: localhost/a", "X-Name: localhost/a/b",
 "X-Name: localhost/a/b", "X-Name: localhost/a/b"]



=== TEST 12: an "if" block inherits the limit and its bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;

location /a {
    ratelimit_capacity 3;
    if ($arg_x) { add_header X-If yes; add_header X-Name $ratelimit_name; }
    empty_gif;
}
--- request eval
["GET /a", "GET /a?x=1", "GET /a?x=1", "GET /a?x=1", "GET /a"]
--- error_code eval
[200, 200, 200, 429, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2\n!X-If",
 "X-RateLimit-Remaining: 1\nX-If: yes\nX-Name: localhost/a",
 "X-RateLimit-Remaining: 0\nX-If: yes\nX-Name: localhost/a",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\n!X-If"]



=== TEST 13: an "if" block of a server and limit_except inherit the limit
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 3;

if ($arg_x) { set $x 1; }

location /a {
    limit_except GET { allow all; }
    empty_gif;
}
--- request eval
["GET /a", "GET /a?x=1", "HEAD /a", "HEAD /a"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\nX-Name: localhost"]



=== TEST 14: locations of one text and different kinds have different buckets
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
location = /t { ratelimit_rate 1r/d; empty_gif; }
location ~ /t/r { ratelimit_rate 1r/d; empty_gif; }
location /t/r/ { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /tt", "GET /tt", "GET /t/r", "GET /t/r/"]
--- error_code eval
[200, 429, 200, 429, 200, 429]
--- response_headers eval
["X-Name: localhost=/t", "X-Name: localhost=/t", "X-Name: localhost/t",
 "X-Name: localhost/t", "X-Name: localhost~/t/r", "X-Name: localhost~/t/r"]



=== TEST 15: servers of one name have different buckets
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    server_name localhost;
    location /t { ratelimit_rate 1r/d; empty_gif; }
}
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
location /p/ { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/; }
--- request eval
["GET /t", "GET /t", "GET /p/t", "GET /p/t"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
["X-Name: localhost/t#2", "X-Name: localhost/t#2", "X-Name: localhost/t",
 "X-Name: localhost/t"]



=== TEST 16: a server without a name has a name for its limit
--- http_config
server {
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    location /t { ratelimit_rate 1r/d; empty_gif; }
}
--- config
location /p/ { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/; }
--- request
GET /p/t
--- response_headers
X-Name: _/t
--- after
::is_deeply(::buckets($::redis), ['_/t:{127.0.0.1}'], 'the bucket');



=== TEST 17: the braces of a regex don't move the hash tag, which is the key
--- config
location ~ "^/a{2}$" { ratelimit_rate 1r/d; empty_gif; }
--- request
GET /aa
--- response_headers
X-Name: localhost~^/a(2)$
--- after
::is_deeply(::buckets($::redis), ['localhost~^/a(2)$:{127.0.0.1}'],
            'the bucket');



=== TEST 18: each level has its own status
--- http_config
ratelimit_status 420;
ratelimit_rate 1r/d;
--- config
location /a { empty_gif; }
location /b {
    ratelimit_status 503;
    empty_gif;
    location /b/c { ratelimit_status 509; empty_gif; }
    location /b/d { empty_gif; }
}
--- request eval
["GET /a", "GET /a", "GET /b", "GET /b/c", "GET /b/d"]
--- error_code eval
[200, 420, 503, 509, 503]
--- response_headers eval
[("X-RateLimit-Remaining: 0\nX-Name: http") x 5]



=== TEST 19: each level has its own dry run
--- config
ratelimit_dry_run on;
ratelimit_headers legacy dry_run;
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b { ratelimit_dry_run off; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0\n!Retry-After",
 "X-RateLimit-Remaining: 0\n!Retry-After", "X-RateLimit-Remaining: 0"]



=== TEST 20: each level has its own headers
--- config
ratelimit_headers off;
ratelimit_rate 1r/d;
ratelimit_capacity 3;
location /a { empty_gif; }
location /b { ratelimit_headers legacy; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["!X-RateLimit-Limit", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 "!X-RateLimit-Limit", "!X-RateLimit-Limit\n!Retry-After"]



=== TEST 21: each level has its own log level
--- config
ratelimit_log_level notice;
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b { ratelimit_log_level warn; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- error_code eval
[200, 429, 429]
--- response_headers eval
[("X-Name: localhost") x 3]
--- after
my $log = ::slurp($Test::Nginx::Util::ErrLogFile);
::like($log, qr/\[notice\].*ratelimit REJECTED.*GET \/a/, 'the server\'s');
::like($log, qr/\[warn\].*ratelimit REJECTED.*GET \/b/, 'the location\'s');
--- no_error_log
[error]
[alert]



=== TEST 22: a prefix is a place of its own for the same limit
--- config
ratelimit_prefix app1;
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b { ratelimit_prefix app2:x; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b", "GET /b"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
[("X-Name: localhost") x 4]
--- after
::is_deeply(::buckets($::redis),
            ['app1:localhost:{127.0.0.1}', 'app2:x:localhost:{127.0.0.1}'],
            'the buckets');



=== TEST 23: a cost is taken from the common bucket
--- http_config
ratelimit_cost 2;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 10;
location /a { empty_gif; }
location /b { ratelimit_cost 5; empty_gif; }
location /c { ratelimit_cost $arg_cost; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /c?cost=3", "GET /a"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 8", "X-RateLimit-Remaining: 3",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\nX-Name: localhost"]



=== TEST 24: each level has its own policy for an outage, and its status
--- no_shards
--- http_config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
ratelimit_on_error closed;
--- config
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b { ratelimit_error_status 500; empty_gif; }
location /c {
    ratelimit_on_error open;
    empty_gif;
    location /c/d { empty_gif; }
    location /c/e { ratelimit_on_error local; empty_gif; }
}
--- request eval
[map { "GET /$_" } qw(a b c c/d c/e c/e)]
--- error_code eval
[503, 500, 200, 200, 200, 429]
--- response_headers eval
[("X-RateLimit-Degraded: true\nRetry-After: 1\n!X-RateLimit-Limit") x 2,
 ("X-RateLimit-Degraded: true\n!Retry-After\n!X-RateLimit-Limit") x 2,
 ("X-RateLimit-Degraded: true\nX-RateLimit-Limit: 1") x 2]



=== TEST 25: each level has its own timeout
--- no_shards
--- http_config
ratelimit_shards $TEST_NGINX_FAKE_ADDR;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 9;
location /a { ratelimit_redis_timeout 10ms; empty_gif; }
location /b { empty_gif; }
--- request eval
["GET /a", "GET /b"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Degraded-Reason: timeout",
 "X-RateLimit-Remaining: 7\n!X-RateLimit-Degraded"]



=== TEST 26: each level has its own shards
--- http_config
ratelimit_rate 1r/d;
--- config
location /a { empty_gif; }
location /b { ratelimit_shards $TEST_NGINX_REDIS_B_ADDR; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /b"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[("X-Name: http") x 3]
--- after
::is_deeply(::buckets($_), ['http:{127.0.0.1}'], 'a bucket on each')
    for $::redis, $::other;
::is_deeply([map { $_->clients } $::redis, $::other], [1, 1],
            'a connection to each');



=== TEST 27: each level has its own database
--- http_config
ratelimit_rate 1r/d;
ratelimit_redis_database 3;
--- config
location /a { empty_gif; }
location /b { ratelimit_redis_database 5; empty_gif; }
location /c { ratelimit_shards redis://$TEST_NGINX_REDIS_ADDR/0; empty_gif; }
location /d { ratelimit_shards $TEST_NGINX_REDIS_ADDR; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /c", "GET /d"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
[("X-Name: http") x 4]
--- after
my $info = $::redis->info('keyspace');
::is_deeply([map { s/,.*//sr } @$info{qw(db0 db3 db5)}],
            [('keys=1') x 3], 'one bucket in each');
::is($::redis->clients, 3, 'a connection for each');



=== TEST 28: credentials stand in the location, in a file, in the URL, or above
--- no_shards
--- http_config
ratelimit_shards $TEST_NGINX_REDIS_LOCKED_ADDR;
ratelimit_redis_password top-secret;
ratelimit_on_error closed;
ratelimit_breaker failures=100;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 9;

location /above { empty_gif; }
location /file { ratelimit_redis_password_file ../html/password; empty_gif; }
location /crlf { ratelimit_redis_password_file ../html/crlf; empty_gif; }
location /user {
    ratelimit_redis_user bob;
    ratelimit_redis_password bobs-secret;
    empty_gif;
}
location /url {
    ratelimit_shards redis://bob:bobs%2Dsecret@$TEST_NGINX_REDIS_LOCKED_ADDR;
    empty_gif;
}
location /default {
    ratelimit_shards redis://:top-secret@$TEST_NGINX_REDIS_LOCKED_ADDR/0;
    ratelimit_redis_password wrong-but-not-used;
    empty_gif;
}

# in databases of their own, so that their outage is theirs

location /wrong {
    ratelimit_redis_password wrong-secret;
    ratelimit_redis_database 1;
    empty_gif;
}
location /none {
    ratelimit_redis_password "";
    ratelimit_redis_database 2;
    empty_gif;
}
--- user_files eval
[["password", "top-secret\n"], ["crlf", "top-secret\r\nsecond line\n"]]
--- request eval
[map { "GET /$_" } qw(above file crlf user url default wrong none)]
--- error_code eval
[200, 200, 200, 200, 200, 200, 503, 503]
--- response_headers eval
[(map { "X-RateLimit-Remaining: $_" } 8, 7, 6, 5, 4, 3),
 ("X-RateLimit-Degraded: true\nX-RateLimit-Degraded-Reason: "
  . "storage_unavailable") x 2]
--- no_error_log
secret
[alert]



=== TEST 29: nobody connects to a server that no limit uses
--- no_shards
--- http_config
ratelimit_shards $TEST_NGINX_REDIS_LOCKED_ADDR;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    ratelimit_shards $TEST_NGINX_REDIS_B_ADDR;
    location / { empty_gif; }
}
--- config
ratelimit_redis_user bob;
location /a {
    ratelimit_redis_password bobs-secret;
    ratelimit_rate 1r/d;
    empty_gif;
}
--- request
GET /a
--- response_headers
X-RateLimit-Remaining: 0
X-Name: localhost/a
--- after
::is_deeply([map { $_->clients } $::locked, $::other], [1, 0],
            'connections');
--- no_error_log
NOAUTH
WRONGPASS
[error]
[alert]



=== TEST 30: a limit of http lives on the shards of each server
--- no_shards
--- http_config
ratelimit_rate 1r/d;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    ratelimit_shards $TEST_NGINX_REDIS_B_ADDR;
    location / { empty_gif; }
}
--- config
ratelimit_shards $TEST_NGINX_REDIS_ADDR;
location /a { empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- more_headers eval
["", "Host: other", ""]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[("X-Name: http") x 3]
--- after
::is_deeply(::buckets($_), ['http:{127.0.0.1}'], 'a bucket on each')
    for $::redis, $::other;



=== TEST 31: places that differ in anything but the server share its connection
--- http_config
ratelimit_rate 1r/d;
--- config
location /a { ratelimit_capacity 3; empty_gif; }
location /b { ratelimit_prefix b; ratelimit_redis_timeout 5s; empty_gif; }
location /c { ratelimit_shards $TEST_NGINX_REDIS_ADDR; empty_gif; }
location /d { ratelimit_shards redis://$TEST_NGINX_REDIS_ADDR; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /c", "GET /d"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-Name: localhost/a", ("X-Name: http") x 3]
--- after
::is($::redis->clients, 1, 'one connection');



=== TEST 32: without a rate nothing is limited
--- http_config
ratelimit_capacity 1;
ratelimit_key all;
--- config
ratelimit_status 503;
location /a { ratelimit_cost 1; empty_gif; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 200]
--- response_headers eval
["!X-RateLimit-Limit\n!X-Name", "!X-RateLimit-Limit\n!X-Name"]
--- after
::is_deeply(::buckets($::redis), [], 'no bucket');
::is($::redis->clients, 0, 'no connection');



=== TEST 33: each level has its own share of a limit
--- no_shards
--- http_config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
ratelimit_local_share 1/2;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    ratelimit_local_share 1;
    ratelimit_rate 1r/d;
    ratelimit_capacity 8;
    location / { empty_gif; }
}
--- config
ratelimit_key $uri;
ratelimit_rate 1r/d;
ratelimit_capacity 8;
location /a { empty_gif; }
location /b {
    ratelimit_local_share 0.25;
    empty_gif;
    location /b/c { empty_gif; }
    location /b/d { ratelimit_local_share 0.75; empty_gif; }
}
--- request eval
[map { "GET /$_" } qw(a b b/c b/d x)]
--- more_headers eval
[("") x 4, "Host: other"]
--- error_code eval
[200, 200, 200, 200, 200]
--- response_headers eval
[map { "X-RateLimit-Degraded: true\nX-RateLimit-Limit: $_\n"
       . 'X-RateLimit-Remaining: ' . ($_ - 1) } 4, 2, 2, 6, 8]



=== TEST 34: unless told otherwise, an outage is this machine's, all of the limit
--- no_shards
--- http_config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 2;
location /t { empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Degraded: true\nX-RateLimit-Limit: 2\n"
       . "X-RateLimit-Remaining: $_" } 1, 0, 0]



=== TEST 35: each level has its own breaker, and all of it
--- no_shards
--- http_config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
ratelimit_breaker failures=1 probe=1h;
ratelimit_on_error open;
--- config
ratelimit_rate 1r/d;
location /a { empty_gif; }
location /b {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT2;
    ratelimit_breaker failures=100;
    empty_gif;
    location /b/c { empty_gif; }
}
location /d {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT3;
    ratelimit_breaker probe=1h;
    empty_gif;
}
--- request eval
["GET /a", "GET /a", ("GET /b", "GET /b/c") x 3, ("GET /d") x 12]
--- error_code eval
[(200) x 20]
--- response_headers eval
["X-RateLimit-Degraded: true", "X-RateLimit-Degraded-Reason: circuit_open",
 ("X-RateLimit-Degraded-Reason: storage_unavailable") x 6,
 ("X-RateLimit-Degraded: true") x 11,
 "X-RateLimit-Degraded-Reason: circuit_open"]



=== TEST 36: each level has its own algorithm, and a bucket of its own with it
--- http_config
ratelimit_rate 1r/d;
ratelimit_capacity 3;
ratelimit_algorithm gcra;
--- config
location /a { empty_gif; location /a/b { empty_gif; } }
location /c { ratelimit_algorithm token_bucket; empty_gif; }
location /d { ratelimit_algorithm sliding_window_log; empty_gif;
              location /d/e { ratelimit_algorithm gcra; empty_gif; } }
--- request eval
[map { "GET /$_" } qw(a a/b c d d/e)]
--- error_code eval
[(200) x 5]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 2, 1, 2, 2, 2]
--- after
::is_deeply([sort map { /:(.*):/; "$1 " . $::redis->cmd('TYPE', $_) }
                  @{ $::redis->cmd('KEYS', '*') }],
            ['http string', 'localhost/c hash', 'localhost/d zset',
             'localhost/d/e string'], 'what they are kept in');



=== TEST 37: denials are remembered unless told otherwise, at each level
--- http_config
ratelimit_rate 0r/s;
ratelimit_capacity 1;
ratelimit_key $uri;
add_header X-Source $ratelimit_source always;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name off;
    ratelimit_deny_cache off;
    location / { empty_gif; }
    location /on { ratelimit_deny_cache on; empty_gif;
                   location /on/no { ratelimit_deny_cache 0; empty_gif; } }
}
--- config
location /a { empty_gif; }
location /off { ratelimit_deny_cache off; empty_gif;
                location /off/long { ratelimit_deny_cache 60s; empty_gif; } }
--- request eval
[map { ("GET $_") x 2 } qw(/a /off /off/x /off/long /b /on /on/x /on/no)]
--- more_headers eval
[("") x 8, ("Host: off") x 8]
--- error_code eval
[(200, 429) x 8]
--- response_headers eval
[map { ("X-Source: redis", "X-Source: $_") }
 qw(denied redis redis denied redis denied denied redis)]



=== TEST 38: tokens are taken in advance where told so, at each level
--- http_config
ratelimit_rate 0r/s;
ratelimit_capacity 100;
ratelimit_key $uri;
add_header X-Source $ratelimit_source always;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name lease;
    ratelimit_lease 50% ttl=60s;
    location / { empty_gif; }
    location /off { ratelimit_lease off; empty_gif;
                    location /off/one { ratelimit_lease 1 ttl=60s;
                                        empty_gif; } }
}
--- config
location /a { empty_gif; }
location /l { ratelimit_lease 5 ttl=60s; empty_gif;
              location /l/m { empty_gif; } }
--- request eval
[map { ("GET $_") x 6 } qw(/a /l /l/m /b /off /off/one)]
--- more_headers eval
[("") x 18, ("Host: lease") x 18]
--- error_code eval
[(200) x 36]
--- response_headers eval
[map { my $of = $_;
       map { "X-RateLimit-Remaining: " . (99 - $_)
             . "\nX-Source: "
             . (substr($of, $_, 1) eq 'l' ? 'lease' : 'redis') }
       0 .. 5 }
 qw(rrrrrr rrlrll rrlrll rrlrll rrrrrr rrlrlr)]
