# The limiter among nginx's other phases: it never lets anybody in, nobody gets
# round it, and one request is charged once, however many subrequests it has.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts the charges.  A limited location behind proxy_pass counts the requests
# that reach it.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

our $redis = start_redis();

# Each request of each block has one verdict, unless the block says otherwise.

patient_blocks('');

add_block_preprocessor(sub {
    my ($block) = @_;

    if (!defined $block->grep_error_log) {
        $block->set_value('grep_error_log', qr/ratelimit [A-Z_]+(?=, limit)/);
        $block->set_value('grep_error_log_out',
                          qr/\Aratelimit (?:PASSED|REJECTED)\n\z/);
    }

    $block->set_value('user_files', <<'EOF' . ($block->user_files // ''));
>>> users
bob:{PLAIN}secret
>>> t
ok
EOF
});

run_tests();

__DATA__

=== TEST 1: satisfy any: a passing limiter lets nobody in whom "deny" keeps out
--- config
location /t {
    satisfy any;
    deny all;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[403, 403, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 2: satisfy any: a passing limiter stands for no credentials
--- config
location /t {
    satisfy any;
    deny all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[401, 401, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1\nWWW-Authenticate: Basic realm=\"closed\"",
 "X-RateLimit-Remaining: 0\nWWW-Authenticate: Basic realm=\"closed\"",
 "X-RateLimit-Remaining: 0\n!WWW-Authenticate"]
--- no_error_log
[alert]



=== TEST 3: satisfy any: an allowed address does not get round the limiter
--- config
location /t {
    satisfy any;
    allow all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 4: satisfy any: valid credentials do not get round the limiter
--- config
location /t {
    satisfy any;
    deny all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- more_headers
Authorization: Basic Ym9iOnNlY3JldA==
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1\n!WWW-Authenticate",
 "X-RateLimit-Remaining: 0\n!WWW-Authenticate",
 "X-RateLimit-Remaining: 0\n!WWW-Authenticate"]
--- no_error_log
[alert]



=== TEST 5: satisfy any: an auth_request that grants does not get round it
--- config
location /t {
    satisfy any;
    deny all;
    auth_request /auth;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location /auth { return 204; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 6: satisfy any: a passing limiter does not overrule auth_request
--- config
location /t {
    satisfy any;
    deny all;
    auth_request /auth;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location /auth { return 403; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[403, 403, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 7: satisfy any: an empty key is no way in
--- config
location /t {
    satisfy any;
    deny all;
    ratelimit_key $arg_none;
    ratelimit_rate 1r/d;
}
--- request
GET /t
--- error_code: 403
--- response_headers
!X-RateLimit-Limit
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit SKIPPED
--- no_error_log
[alert]



=== TEST 8: satisfy any: a dry run is no way in
--- config
location /t {
    satisfy any;
    deny all;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    ratelimit_dry_run on;
    ratelimit_headers legacy dry_run;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[403, 403]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\Aratelimit (?:PASSED|REJECTED_DRY_RUN)\n\z/
--- no_error_log
[alert]



=== TEST 9: satisfy any: a Redis that is away is no way in
--- config
location /t {
    satisfy any;
    deny all;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_rate 1r/d;
}
--- request
GET /t
--- error_code: 403
--- response_headers
X-RateLimit-Degraded: true
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit DEGRADED
--- no_error_log
[alert]



=== TEST 10: satisfy any: nor do "allow" and credentials help when it is closed
--- config
location /t {
    satisfy any;
    allow all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_on_error closed;
    ratelimit_rate 1r/d;
}
--- more_headers
Authorization: Basic Ym9iOnNlY3JldA==
--- request
GET /t
--- error_code: 503
--- response_headers
X-RateLimit-Degraded: true
Retry-After: 1
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit DEGRADED
--- no_error_log
[alert]



=== TEST 11: satisfy all: address, credentials and limiter must all agree
--- config
location /t {
    satisfy all;
    allow all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- more_headers eval
["", "Authorization: Basic Ym9iOnNlY3JldA==",
 "Authorization: Basic Ym9iOnNlY3JldA=="]
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[401, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 12: satisfy all: "deny" holds with valid credentials, and is charged
--- config
location /t {
    deny all;
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- more_headers
Authorization: Basic Ym9iOnNlY3JldA==
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[403, 403, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 13: guessing passwords is limited: the right one comes too late
--- config
location /t {
    auth_basic closed;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/users;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- more_headers eval
["Authorization: Basic Ym9iOmE=", "Authorization: Basic Ym9iOmI=",
 "Authorization: Basic Ym9iOnNlY3JldA=="]
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[401, 401, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 14: a rejected request asks no auth_request
--- config
location /t {
    auth_request /ask;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location /ask {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/count/t;
}
location /count/ {
    alias $TEST_NGINX_SERVER_ROOT/html/;
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /count/t"]
--- error_code eval
[200, 200, 429, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 7"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit: "localhost\/t")/
--- grep_error_log_out eval
qr/\A(?:ratelimit (?:PASSED|REJECTED)\n)?\z/
--- no_error_log
[alert]



=== TEST 15: auth_request denies: charged once, and the headers arrive
--- config
location /t {
    auth_request /auth;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location /auth { return 401; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[401, 401, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 16: a limit on the auth location is not for subrequests
--- config
location /t { auth_request /auth; }
location /auth {
    alias $TEST_NGINX_SERVER_ROOT/html/t;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
--- request eval
["GET /t", "GET /t", "GET /auth"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["!X-RateLimit-Limit", "!X-RateLimit-Limit", "X-RateLimit-Remaining: 4"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\A(?:ratelimit PASSED\n)?\z/
--- no_error_log
[alert]



=== TEST 17: one limit over the location and its auth location: charged once
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /t { auth_request /auth; }
location /auth { alias $TEST_NGINX_SERVER_ROOT/html/t; }
--- request eval
["GET /t", "GET /t", "GET /auth"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 3",
 "X-RateLimit-Remaining: 2"]
--- no_error_log
[alert]



=== TEST 18: what auth_request finds out comes too late to be a key
--- config
location /t {
    auth_request /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit_key $user;
    ratelimit_rate 1r/d;
    add_header X-User $user;
}
location /auth { proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/users; }
location /users { add_header X-User bob; return 204; }
--- request
GET /t
--- error_code: 200
--- response_headers
X-User: bob
!X-RateLimit-Limit
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit SKIPPED
--- no_error_log
[alert]



=== TEST 19: limit_req rejects in an earlier phase: nothing is charged
--- http_config
limit_req_zone $server_name zone=one:1m rate=1r/m;
--- config
location /t {
    limit_req zone=one;
    limit_req_status 503;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;

    location /t/free {
        alias $TEST_NGINX_SERVER_ROOT/html/t;
        limit_req zone=one burst=10 nodelay;
    }
}
--- request eval
["GET /t", "GET /t", "GET /t/free"]
--- error_code eval
[200, 503, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4", "!X-RateLimit-Limit", "X-RateLimit-Remaining: 3"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\A(?:ratelimit PASSED\n)?\z/
--- no_error_log
[alert]



=== TEST 20: "return" answers before any limiter runs
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    return 200;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
["!X-RateLimit-Limit", "!X-RateLimit-Limit"]
--- grep_error_log: ratelimit
--- grep_error_log_out
--- no_error_log
[alert]



=== TEST 21: "limit_except" and "if" share the limit of their location
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    if ($arg_a) { expires 1m; }
    limit_except GET { deny all; }
}
--- request eval
["GET /t", "GET /t?a=1", "DELETE /t", "GET /t"]
--- error_code eval
[200, 200, 403, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4",
 "X-RateLimit-Remaining: 3\nCache-Control: max-age=60",
 "X-RateLimit-Remaining: 2",
 "X-RateLimit-Remaining: 1"]
--- no_error_log
[alert]



=== TEST 22: SSI: a page with three limited parts is charged once
--- user_files
>>> page.html
<!--# include virtual="/part?1" -->
<!--# include virtual="/part?2" wait="yes" -->
<!--# include virtual="/part?3" -->
>>> part.html
x
--- config
location /page.html {
    ssi on;
    ssi_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /part {
    alias $TEST_NGINX_SERVER_ROOT/html/part.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request eval
["GET /page.html", "GET /page.html", "GET /part"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 49"]
--- response_body eval
["x\n\nx\n\nx\n\n", "x\n\nx\n\nx\n\n", "x\n"]
--- no_error_log
[alert]



=== TEST 23: SSI: page and parts under one limit: a request, not a part, counts
--- user_files
>>> page.html
<!--# include virtual="/part.html" --><!--# include virtual="/part.html" -->
>>> part.html
x
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 2;
location ~ \.html$ { ssi on; ssi_types *; }
--- request eval
["GET /page.html", "GET /page.html", "GET /page.html"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- response_body_like eval
["x\nx\n", "x\nx\n", "429 Too Many"]
--- no_error_log
[alert]



=== TEST 24: SSI: a limited part of a page that is not limited is not charged
--- user_files
>>> page.html
<!--# include virtual="/part" --><!--# include virtual="/part" -->
>>> part.html
x
--- config
location /page.html { ssi on; ssi_types *; }
location /part {
    alias $TEST_NGINX_SERVER_ROOT/html/part.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request
GET /page.html
--- error_code: 200
--- response_headers
!X-RateLimit-Limit
--- response_body eval
"x\nx\n\n"
--- grep_error_log: ratelimit PASSED
--- grep_error_log_out
--- no_error_log
[alert]



=== TEST 25: SSI: a part sees what was decided about its page
--- user_files
>>> page.html
<!--# include virtual="/part.html" -->
>>> part.html
<!--# echo var="ratelimit_status" -->
<!--# echo var="ratelimit_remaining" --> of <!--# echo var="ratelimit_limit" -->
<!--# echo var="ratelimit_name" -->
--- config
location /page.html {
    ssi on;
    ssi_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /part.html {
    ssi on;
    ssi_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request
GET /page.html
--- error_code: 200
--- response_headers
X-RateLimit-Limit: 5
--- response_body eval
"PASSED\n4 of 5\nlocalhost/page.html\n\n"
--- no_error_log
[alert]



=== TEST 26: SSI: what the backend of a part says about its limits stays inside
--- user_files
>>> page.html
<!--# include virtual="/part" -->
--- config
location /page.html {
    ssi on;
    ssi_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /part { proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend; }
location /backend {
    add_header X-RateLimit-Limit 77;
    add_header X-RateLimit-Remaining 76;
    return 200 part;
}
--- request eval
["GET /page.html", "GET /part"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 77\nX-RateLimit-Remaining: 76"]
--- response_body eval
["part\n", "part"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\A(?:ratelimit PASSED\n)?\z/
--- no_error_log
[alert]



=== TEST 27: mirror: charged once, the copy goes out, but not of a rejected one
--- config
location /t {
    mirror /copy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location /copy {
    internal;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/count/t;
}
location /count/ {
    alias $TEST_NGINX_SERVER_ROOT/html/;
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /count/t"]
--- error_code eval
[200, 200, 429, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 7"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit: "localhost\/(?:t|copy)")/
--- grep_error_log_out eval
qr/\A(?:ratelimit (?:PASSED|REJECTED)\n)?\z/
--- no_error_log
[alert]



=== TEST 28: mirror: location and copy under one limit; a body goes to both
--- config
location /t {
    mirror /t/copy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;

    location /t/copy {
        internal;
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/count;
    }
}
location /backend { return 200 "got $http_content_length\n"; }
location /count {
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
    ratelimit_cost $http_content_length;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;
}
--- request eval
["POST /t\nfour", "POST /t\nfour", "POST /t\nfour", "POST /count\n1"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 1"]
--- response_body_like eval
["^got 4\n\$", "^got 4\n\$", "429 Too Many", "^got 1\n\$"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit: "localhost\/t")/
--- grep_error_log_out eval
qr/\A(?:ratelimit (?:PASSED|REJECTED)\n)?\z/
--- no_error_log
[alert]



=== TEST 29: addition: text before and after from limited locations
--- user_files
>>> extra
x
--- config
location /t {
    add_before_body /before;
    add_after_body /after;
    addition_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /before {
    alias $TEST_NGINX_SERVER_ROOT/html/extra;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
location /after {
    alias $TEST_NGINX_SERVER_ROOT/html/extra;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request eval
["GET /t", "GET /t", "GET /before"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- response_body eval
["x\nok\nx\n", "x\nok\nx\n", "x\n"]
--- no_error_log
[alert]



=== TEST 30: sub_filter, gzip and the like leave the headers alone
--- config
location /t {
    sub_filter ok fine;
    sub_filter_types *;
    gzip on;
    gzip_min_length 1;
    gzip_types *;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
--- request eval
["GET /t", "GET /t"]
--- more_headers eval
["", "Accept-Encoding: gzip"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3\nContent-Encoding: gzip"]
--- response_body_like eval
["^fine\n\$", "."]
--- no_error_log
[alert]



=== TEST 31: satisfy any: a rejecting limiter is final, whatever its status
--- config
location /t {
    satisfy any;
    allow all;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    ratelimit_status 503;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 503]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]
