# ratelimit_phase precontent: limits that come after authentication, so that
# they may count by what it found out, and charge nobody whom it turned away.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts the charges.  /auth asks a server of its own, over HTTP, about the
# token; /sink is limited to count the requests that reach it.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Load;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

our $redis = start_redis();
our $slow = start_fake(name => 'SLOW', policy => {
    eval => { reply => ":4000000\r\n", delay => 100 },
});

$ENV{TEST_NGINX_AUTH_PORT} = free_port();


patient_blocks(<<'EOC');
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;

    map $http_authorization $who {
        "Bearer a1"  alice;
        "Bearer a2"  alice;
        "Bearer b1"  bob;
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_AUTH_PORT;

        location / {
            if ($who = "") { return 401; }
            add_header X-User $who;
            return 204;
        }
    }
EOC

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value('config', <<'EOC' . $block->config);
    location = /auth {
        internal;
        proxy_pass http://127.0.0.1:$TEST_NGINX_AUTH_PORT;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
    }

    location = /sink { ratelimit off; ratelimit_key sink; ratelimit_rate 1r/d;
                       ratelimit_capacity 1000; ratelimit_phase access;
                       empty_gif; }
EOC

    $block->set_value('user_files', <<'EOF' . ($block->user_files // ''));
>>> users
bob:{PLAIN}secret
>>> t
ok
>>> folder/index.html
index
EOF
});


# The tokens that are left, by limit and key; /sink apart.

sub buckets {
    return { map { my $key = $_;
                   (s/^ratelimit://r
                    => int(0.5 + $redis->tokens($key))) }
             grep { !/sink/ } @{ $redis->cmd('KEYS', '*') } };
}


# How many requests have come to /sink.

sub sunk {
    my $left = $redis->tokens('ratelimit:localhost=/sink:{sink}');

    return defined $left ? 1000 - int(0.5 + $left) : 0;
}


no_root_location();
run_tests();

__DATA__

=== TEST 1: a key that auth_request_set has set: each user has a bucket
--- http_config
ratelimit_limit user key=$user rate=1r/d capacity=2;
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit user;
    ratelimit_phase precontent;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- more_headers eval
["Authorization: Bearer a1", "Authorization: Bearer a2",
 "Authorization: Bearer a1", "Authorization: Bearer b1"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-Name: user\nX-Status: PASSED\nX-RateLimit-Remaining: 1",
 "X-Name: user\nX-Status: PASSED\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-Status: REJECTED\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-Status: PASSED\nX-RateLimit-Remaining: 1"]
--- after
::is_deeply(::buckets(), { 'user:{alice}' => 0, 'user:{bob}' => 1 },
            'two users, whatever their tokens');



=== TEST 2: who is not authenticated is not charged
--- http_config
ratelimit_limit user key=$user rate=1r/d capacity=2;
ratelimit_limit ip rate=1r/d capacity=5;
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit user ip;
    ratelimit_phase precontent;
}
--- request eval
["GET /t", "GET /t", "GET /t"]
--- more_headers eval
["", "Authorization: Bearer stolen", "Authorization: Bearer a1"]
--- error_code eval
[401, 401, 200]
--- response_headers eval
["X-Status: \n!X-RateLimit-Limit", "X-Status: \n!X-RateLimit-Limit",
 "X-Status: PASSED\nX-RateLimit-Remaining: 1"]
--- after
::is_deeply(::buckets(), { 'user:{alice}' => 1, 'ip:{127.0.0.1}' => 4 },
            'one request was charged');



=== TEST 3: in the access phase the key is not there yet, and failures count
--- http_config
ratelimit_limit user key=$user rate=1r/d capacity=2;
ratelimit_limit ip rate=1r/d capacity=2;
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit user;
}
location /guess { auth_request /auth; ratelimit ip; }
--- request eval
["GET /t", "GET /guess", "GET /guess", "GET /guess"]
--- more_headers eval
["Authorization: Bearer a1", "Authorization: Bearer x",
 "Authorization: Bearer y", "Authorization: Bearer a1"]
--- error_code eval
[200, 401, 401, 429]
--- response_headers eval
["X-Status: SKIPPED", "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-Status: REJECTED"]
--- user_files
>>> guess
ok



=== TEST 4: auth_basic and deny come first as well
--- config
ratelimit_phase precontent;
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /t {
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_key $remote_user;
}
location /denied { deny all; }
--- request eval
["GET /t", "GET /denied", "GET /t"]
--- more_headers eval
["", "", "Authorization: Basic Ym9iOnNlY3JldA=="]
--- error_code eval
[401, 403, 200]
--- response_headers eval
["!X-RateLimit-Limit", "!X-RateLimit-Limit", "X-RateLimit-Remaining: 4"]
--- after
::is_deeply(::buckets(), { 'localhost/t:{bob}' => 4 }, 'one was charged');



=== TEST 5: whatever is satisfied, the limit holds
--- config
ratelimit_phase precontent;
ratelimit_capacity 1;
location /any {
    satisfy any;
    allow all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    alias $TEST_NGINX_SERVER_ROOT/html/t;
}
location /none {
    satisfy any;
    deny all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    alias $TEST_NGINX_SERVER_ROOT/html/t;
}
location /all {
    satisfy all;
    allow all;
    auth_request /auth;
    ratelimit_rate 1r/d;
    alias $TEST_NGINX_SERVER_ROOT/html/t;
}
--- request eval
["GET /any", "GET /any", "GET /none", "GET /all", "GET /all", "GET /all"]
--- more_headers eval
["", "", "", "", "Authorization: Bearer a1", "Authorization: Bearer a1"]
--- error_code eval
[200, 429, 401, 401, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-Status: REJECTED", "!X-RateLimit-Limit",
 "!X-RateLimit-Limit", "X-RateLimit-Remaining: 0", "X-Status: REJECTED"]
--- after
::is_deeply(::buckets(), { 'localhost/any:{127.0.0.1}' => 0,
                           'localhost/all:{127.0.0.1}' => 0 }, 'the charges');



=== TEST 6: a request that is rejected is not mirrored, one that passes is
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    ratelimit_phase precontent;
    mirror /mirror;
}
location = /mirror {
    internal;
    ratelimit_rate 1r/d;
    ratelimit_phase precontent;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/sink;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-Status: REJECTED", "X-Status: REJECTED"]
--- after
::ok(::wait_until(sub { ::sunk() == 2 }), 'two were mirrored');
::is_deeply(::buckets(), { 'localhost/t:{127.0.0.1}' => 0 },
            'and none of these charged again');



=== TEST 7: a rejection comes before try_files, and both are in one place
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    ratelimit_phase precontent;
    try_files /none /t =404;
}
location /missing {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    ratelimit_phase precontent;
    try_files /none =404;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /missing", "GET /missing"]
--- error_code eval
[200, 200, 429, 404, 429]
--- response_body_like eval
["^ok\n\$", "^ok\n\$", "429 Too Many", "404 Not Found", "429 Too Many"]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0", "X-Status: REJECTED",
 "X-RateLimit-Remaining: 0", "X-Status: REJECTED"]



=== TEST 8: internal redirects charge once
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 100;
ratelimit_phase precontent;
location /try { try_files /none @named; }
location @named { empty_gif; }
location /folder/ { index index.html; }
location /error { error_page 404 /t; }
location /t { }
--- request eval
["GET /try", "GET /folder/", "GET /error", "GET /t"]
--- error_code eval
[200, 200, 404, 200]
--- response_headers eval
["X-RateLimit-Remaining: 99", "X-RateLimit-Remaining: 98",
 "X-RateLimit-Remaining: 97", "X-RateLimit-Remaining: 96"]
--- response_body_like eval
["^GIF", "^index\n\$", "^ok\n\$", "^ok\n\$"]
--- after
::is_deeply(::buckets(), { 'localhost:{127.0.0.1}' => 96 }, 'the charges');



=== TEST 9: a redirect from one phase to the other charges once
--- config
ratelimit_rate 1r/d;
location /a { ratelimit_capacity 10; error_page 404 /b; }
location /b { ratelimit_capacity 20; ratelimit_phase precontent;
              error_page 404 /a; }
--- request eval
["GET /a", "GET /b"]
--- error_code eval
[404, 404]
--- response_headers eval
["X-Name: localhost/a\nX-RateLimit-Remaining: 9",
 "X-Name: localhost/b\nX-RateLimit-Remaining: 19"]
--- after
::is_deeply(::buckets(), { 'localhost/a:{127.0.0.1}' => 9,
                           'localhost/b:{127.0.0.1}' => 19 }, 'the charges');



=== TEST 10: a limit that was skipped leaves the decision to the next place
--- config
ratelimit_rate 1r/d;
location /a { ratelimit_key $arg_k; ratelimit_capacity 10; error_page 404 /b; }
location /b { ratelimit_capacity 20; ratelimit_phase precontent; }
--- request eval
["GET /a", "GET /a?k=1"]
--- error_code eval
[404, 404]
--- response_headers eval
["X-Name: localhost/b\nX-RateLimit-Remaining: 19",
 "X-Name: localhost/a\nX-RateLimit-Remaining: 9"]



=== TEST 11: X-Accel-Redirect charges once
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 10;
ratelimit_phase precontent;
location /proxy { proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/accel; }
location /accel { ratelimit off; add_header X-Accel-Redirect /t; return 200; }
location /t { }
--- request
GET /proxy
--- response_headers
X-RateLimit-Remaining: 9
--- response_body
ok
--- after
::is_deeply(::buckets(), { 'localhost:{127.0.0.1}' => 9 }, 'the charge');



=== TEST 12: the page for those who are not authenticated has a limit of its own
--- http_config
ratelimit_limit user  key=$user rate=1r/d capacity=5;
ratelimit_limit login key=$remote_addr rate=1r/d capacity=2;
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit user;
    ratelimit_phase precontent;
    error_page 401 = @login;
}
location @login {
    ratelimit login;
    ratelimit_phase precontent;
    try_files /none @form;
}
location @form { return 401 "log in\n"; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- more_headers eval
["", "", "", "Authorization: Bearer a1"]
--- error_code eval
[401, 401, 429, 200]
--- response_headers eval
["X-Name: login\nX-RateLimit-Remaining: 1",
 "X-Name: login\nX-RateLimit-Remaining: 0",
 "X-Name: login\nX-Status: REJECTED",
 "X-Name: user\nX-RateLimit-Remaining: 4"]
--- after
::is_deeply(::buckets(), { 'login:{127.0.0.1}' => 0, 'user:{alice}' => 4 },
            'the charges');



=== TEST 13: the subrequest that authenticates is never charged
--- http_config
ratelimit_limit all rate=1r/d capacity=10;
ratelimit all;
ratelimit_phase precontent;
--- config
location /t { auth_request /auth; }
--- request
GET /t
--- more_headers
Authorization: Bearer a1
--- response_headers
X-RateLimit-Remaining: 9
--- after
::is_deeply(::buckets(), { 'all:{127.0.0.1}' => 9 }, 'one charge');



=== TEST 14: the phase is inherited, and replaced
--- config
ratelimit_rate 1r/d;
ratelimit_phase precontent;
deny all;
location /late { }
location /early { ratelimit_phase access; }
--- request eval
["GET /late", "GET /early"]
--- error_code eval
[403, 403]
--- response_headers eval
["X-Status: \n!X-RateLimit-Limit", "X-Status: PASSED\nX-RateLimit-Limit: 1"]
--- after
::is_deeply(::buckets(), { 'localhost:{127.0.0.1}' => 0 }, 'one was charged');



=== TEST 15: a request that has to wait for Redis goes on where it was
--- http_config
ratelimit_limit user key=$user rate=1r/s capacity=10;
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit user;
    ratelimit_phase precontent;
    ratelimit_shards $TEST_NGINX_FAKE_SLOW_ADDR;
    mirror /mirror;
    try_files /none /t =404;
}
location = /mirror {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/sink;
}
--- request eval
["GET /t", "POST /t\nhello"]
--- more_headers
Authorization: Bearer a1
--- error_code eval
[200, 405]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Remaining: 4",
 "X-Status: PASSED\nX-RateLimit-Remaining: 4"]
--- after
::is(scalar $::slow->commands('EVALSHA'), 2, 'one call each');
::ok(::wait_until(sub { ::sunk() == 2 }), 'and one mirrored request each');



=== TEST 16: the limiter is asked once, however long the content takes
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
    ratelimit_phase precontent;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/sink;
}
--- request eval
["GET /t", "POST /t\nhello"]
--- error_code eval
[200, 405]
--- response_headers eval
["X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 8"]
--- after
::is(::sunk(), 2, 'both came through');
::is_deeply(::buckets(), { 'localhost/t:{127.0.0.1}' => 8 }, 'the charges');



=== TEST 17: error_page takes a rejection of this phase too
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_phase precontent;
    ratelimit_status 503;
    error_page 503 =200 /busy;
}
location /busy { return 200 "busy: $ratelimit_status\n"; }
--- request eval
["GET /t", "GET /t"]
--- response_body eval
["ok\n", "busy: REJECTED\n"]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 18: closed: a failure of this phase turns away
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_phase precontent;
    ratelimit_on_error closed;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
}
--- request
GET /t
--- error_code: 503
--- response_headers
X-Status: DEGRADED
Retry-After: 1
