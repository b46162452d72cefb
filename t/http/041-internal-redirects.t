# Internal redirects wipe what modules know about a request and run the phases
# again.  A request is charged once all the same, by the first limit that had a
# say, and its headers and variables come from there.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts the charges.

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
>>> t
ok
>>> busy.html
come back later
>>> dir/index.html
index
EOF
});

run_tests();

__DATA__

=== TEST 1: try_files: to another location under the same limit
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /a { try_files /none /t; }
location = /t { }
--- request eval
["GET /a", "GET /a", "GET /t"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 3",
 "X-RateLimit-Remaining: 2"]
--- response_body eval
["ok\n", "ok\n", "ok\n"]
--- no_error_log
[alert]



=== TEST 2: try_files: to a named location with a limit of its own
--- config
location /a {
    try_files /none @b;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location @b {
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /t break;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    add_header X-Name $ratelimit_name always;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-Name: localhost/a",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-Name: localhost/a",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 3: try_files: what is not found has been charged
--- config
location /a {
    try_files /none =404;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[404, 404, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 4: a limited target of a location without a limit is charged, once
--- config
location /a { try_files /none /b; }
location /b {
    try_files /none @c;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location @c {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    rewrite ^ /backend break;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT;
}
location /backend { return 200 "backend\n"; }
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 5: a limit that was skipped had no say: the target's limit counts
--- config
location /a {
    try_files /none @b;
    ratelimit_key $arg_none;
    ratelimit_rate 1r/d;
}
location @b {
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /t break;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\Aratelimit SKIPPED\nratelimit (?:PASSED|REJECTED)\n\z/
--- no_error_log
[alert]



=== TEST 6: skipped by one limit, and the target has none
--- config
location /a {
    try_files /none @b;
    ratelimit_key $arg_none;
    ratelimit_rate 1r/d;
}
location @b {
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /t break;
    add_header X-Status $ratelimit_status;
}
--- request
GET /a
--- error_code: 200
--- response_headers
X-Status: SKIPPED
!X-RateLimit-Limit
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit SKIPPED
--- no_error_log
[alert]



=== TEST 7: error_page 429: to a named location
--- config
location /t {
    error_page 429 @busy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
location @busy {
    default_type application/json;
    return 429 '{"retry":$ratelimit_retry_after,"status":"$ratelimit_status"}';
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n!Retry-After",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n"
 . "Content-Type: application/json"]
--- response_body_like eval
["^ok\n\$", '^{"retry":8\d{4},"status":"REJECTED"}$']
--- raw_response_headers_like eval
["", '(?=.*\r\nRetry-After: (8\d{4})(?:\r\n|$))'
     . '.*\r\nX-RateLimit-Retry-After: \1(?:\r\n|$)']
--- no_error_log
[alert]



=== TEST 8: error_page 429: to a page under the same limit
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 1;
error_page 429 /busy.html;
location /t { }
location = /busy.html { }
--- request eval
["GET /t", "GET /t", "GET /busy.html"]
--- error_code eval
[200, 429, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- response_body eval
["ok\n", "come back later\n", "come back later\n"]
--- raw_response_headers_like eval
["", '\r\nRetry-After: \d+\r\n', '\r\nRetry-After: \d+\r\n']
--- no_error_log
[alert]



=== TEST 9: error_page 429: to a page with a limit of its own
--- config
location /t {
    error_page 429 /busy.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
location = /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request eval
["GET /t", "GET /t", "GET /busy.html"]
--- error_code eval
[200, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 49\n!Retry-After"]
--- response_body eval
["ok\n", "come back later\n", "come back later\n"]
--- no_error_log
[alert]



=== TEST 10: error_page 429 =200: the status changes, the headers stay
--- config
location /t {
    error_page 429 =200 /busy.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
location = /busy.html { }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n!Retry-After",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- response_body eval
["ok\n", "come back later\n"]
--- raw_response_headers_like eval
["", '\r\nRetry-After: \d+\r\n']
--- no_error_log
[alert]



=== TEST 11: error_page 429 =: the status of a backend, the headers of the limit
--- config
location /t {
    error_page 429 = @busy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
location @busy {
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT;
    rewrite ^ /backend break;
}
location /backend {
    add_header X-RateLimit-Limit 77 always;
    add_header X-RateLimit-Remaining 76 always;
    add_header Retry-After 3 always;
    add_header Retry-After 4 always;
    add_header X-Other yes always;
    return 402 "pay\n";
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 402]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n!Retry-After",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nX-Other: yes"]
--- response_body eval
["ok\n", "pay\n"]
--- raw_response_headers_unlike eval
["Retry-After", "Retry-After: [34]\r\n"]
--- no_error_log
[alert]



=== TEST 12: error_page 429: to another site
--- config
location /t {
    error_page 429 http://example.com/busy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 302]
--- response_headers eval
["X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0\nLocation: http://example.com/busy"]
--- no_error_log
[alert]



=== TEST 13: error_page with another status of ours
--- config
location /t {
    ratelimit_status 503;
    error_page 503 /busy.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 503]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]
--- response_body eval
["ok\n", "come back later\n"]
--- no_error_log
[alert]



=== TEST 14: error_page for a Redis that is away: its headers arrive too
--- config
location /t {
    ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
    ratelimit_on_error closed;
    error_page 503 /busy.html;
    ratelimit_rate 1r/d;
}
location /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request
GET /t
--- error_code: 503
--- response_headers
X-RateLimit-Degraded: true
Retry-After: 1
!X-RateLimit-Limit
--- response_body
come back later
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out
ratelimit DEGRADED
--- no_error_log
[alert]



=== TEST 15: error_page 404: from a free location to a limited one
--- config
location /a { error_page 404 /busy.html; }
location /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[404, 404, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- response_body_like eval
["^come back later\n\$", "^come back later\n\$", "429 Too Many"]
--- no_error_log
[alert]



=== TEST 16: error_page 404: from a limited location to another limited one
--- config
location /a {
    error_page 404 @b;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location @b {
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /busy.html break;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[404, 404, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 17: a chain of named locations, with recursive_error_pages
--- config
recursive_error_pages on;
location /a {
    error_page 404 = @b;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    error_page 429 = @limited;
}
location @b {
    error_page 502 = @c;
    ratelimit_rate 1r/d;
    proxy_pass http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
}
location @c {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /t break;
}
location @limited {
    error_page 418 = @c;
    return 418;
}
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\n!Retry-After",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- raw_response_headers_like eval
["", '\r\nRetry-After: \d+\r\n']
--- response_body eval
["ok\n", "ok\n"]
--- no_error_log
[alert]



=== TEST 18: X-Accel-Redirect: from a limited location to a free one
--- config
location /a {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;
}
location /backend {
    add_header X-Accel-Redirect /files/t;
    add_header X-RateLimit-Limit 77;
    return 200;
}
location /files/ { internal; alias $TEST_NGINX_SERVER_ROOT/html/; }
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- response_body_like eval
["^ok\n\$", "^ok\n\$", "429 Too Many"]
--- no_error_log
[alert]



=== TEST 19: X-Accel-Redirect: to a limited location, with and without a body
--- config
location /a { proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend; }
location /backend { add_header X-Accel-Redirect /files/t; return 200; }
location /files/ {
    internal;
    alias $TEST_NGINX_SERVER_ROOT/html/;
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
--- request eval
["GET /a", "POST /a\n" . "x" x 100000, "POST /a\nhello", "GET /a"]
--- error_code eval
[200, 200, 429, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- response_body_like eval
["^ok\n\$", "^ok\n\$", "429 Too Many", "429 Too Many"]
--- no_error_log
[alert]



=== TEST 20: X-Accel-Redirect: to a named location with another limit
--- config
location /a {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;
}
location /backend { add_header X-Accel-Redirect @file; return 200; }
location @file {
    root $TEST_NGINX_SERVER_ROOT/html;
    rewrite ^ /t break;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
}
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 21: rewrite: the limit is that of the location where it ends
--- config
location /a {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    rewrite ^ /b last;
}
location /b { rewrite ^ /c last; }
location /c {
    ratelimit_rate 1r/d;
    ratelimit_capacity 3;
    rewrite ^ /t break;
}
--- request eval
["GET /a", "GET /b", "GET /c", "GET /a"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0"]
--- no_error_log
[alert]



=== TEST 22: index: the redirect to the index file is no second request
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /dir/ { }
location = /dir/index.html { add_header X-Here yes; }
--- request eval
["GET /dir/", "GET /dir/"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 4\nX-Here: yes",
 "X-RateLimit-Remaining: 3\nX-Here: yes"]
--- response_body eval
["index\n", "index\n"]
--- no_error_log
[alert]



=== TEST 23: index: the folder's limit stays, the file's counts for itself only
--- config
location /dir/ {
    ratelimit_rate 1r/d;
    ratelimit_capacity 2;
}
location = /dir/index.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request eval
["GET /dir/", "GET /dir/", "GET /dir/", "GET /dir/index.html"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 49"]
--- no_error_log
[alert]



=== TEST 24: proxy_intercept_errors: a backend's 429 is not ours
--- config
location /a {
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;
    proxy_intercept_errors on;
    error_page 429 /busy.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /backend {
    add_header X-RateLimit-Limit 77 always;
    add_header X-RateLimit-Remaining 0 always;
    add_header Retry-After 3 always;
    return 429;
}
location /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
    add_header X-Status $ratelimit_status always;
}
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[429, 429]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nX-Status: PASSED",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3\nX-Status: PASSED"]
--- response_body eval
["come back later\n", "come back later\n"]
--- no_error_log
[alert]



=== TEST 25: a backend's 429 passes through with its Retry-After, our numbers
--- config
location /a {
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/backend;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /backend {
    add_header X-RateLimit-Limit 77 always;
    add_header x-ratelimit-remaining 0 always;
    add_header Retry-After 3 always;
    return 429;
}
--- request
GET /a
--- error_code: 429
--- response_headers
X-RateLimit-Limit: 5
X-RateLimit-Remaining: 4
Retry-After: 3
--- no_error_log
[alert]



=== TEST 26: headers are those of the location that decided: off at the target
--- config
location /a {
    try_files /none /t;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    error_page 429 /t;
}
location = /t { ratelimit_headers off; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- raw_response_headers_like eval
["", '\r\nRetry-After: \d+\r\n']
--- no_error_log
[alert]



=== TEST 27: headers are those of the location that decided: off at the start
--- config
location /a {
    try_files /none /t;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    ratelimit_headers off;
    error_page 429 /t;
}
location = /t {
    ratelimit_headers legacy;
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 429]
--- response_headers eval
["!X-RateLimit-Limit\n!Retry-After", "!X-RateLimit-Limit\n!Retry-After"]
--- no_error_log
[alert]



=== TEST 28: so are status and dry run: a shadow limit that redirects
--- config
location /a {
    try_files /none /t;
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    ratelimit_dry_run on;
    ratelimit_headers legacy dry_run;
}
location = /t { add_header X-Status $ratelimit_status; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 0\nX-Status: PASSED",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED_DRY_RUN\n!Retry-After"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\Aratelimit (?:PASSED|REJECTED_DRY_RUN)\n\z/
--- no_error_log
[alert]



=== TEST 29: an error of a filter, which forgets the request's contexts too
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
--- more_headers
If-Unmodified-Since: Thu, 01 Jan 1970 00:00:01 GMT
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[412, 412]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3"]
--- no_error_log
[alert]



=== TEST 30: an error of a filter that has a page
--- config
location /t {
    error_page 412 /busy.html;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- more_headers
If-Unmodified-Since: Thu, 01 Jan 1970 00:00:01 GMT
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[412, 412]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3"]
--- response_body eval
["come back later\n", "come back later\n"]
--- no_error_log
[alert]



=== TEST 31: not modified: the headers arrive with a 304
--- config
location /t {
    if_modified_since before;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
--- more_headers
If-Modified-Since: Fri, 31 Dec 2100 00:00:00 GMT
--- request
GET /t
--- error_code: 304
--- response_headers
X-RateLimit-Limit: 5
X-RateLimit-Remaining: 4
--- no_error_log
[alert]



=== TEST 32: a request that nginx can't parse, with a limited error page
--- config
error_page 400 /busy.html;
location /busy.html {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
--- raw_request eval
"GET /t HTTP/1.1\r\nConnection: close\r\n\r\n"
--- error_code: 400
--- response_headers
X-RateLimit-Limit: 5
X-RateLimit-Remaining: 4
--- response_body
come back later
--- no_error_log
[alert]



=== TEST 33: a body that is too large is refused before it is charged
--- config
location /a {
    client_max_body_size 10;
    error_page 413 /t;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 50;
}
--- request
POST /a
more than ten bytes
--- error_code: 413
--- response_headers
X-RateLimit-Limit: 50
X-RateLimit-Remaining: 49
--- response_body
ok
--- no_error_log
[alert]



=== TEST 34: post_action: what follows a request is no second one
--- config
location /t {
    post_action /after;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
}
location /after {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/count;
}
location /count {
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
    alias $TEST_NGINX_SERVER_ROOT/html/t;
}
--- request eval
["GET /t", "GET /t", "GET /count"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 7"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit: "localhost\/(?:t|after)")/
--- grep_error_log_out eval
qr/\A(?:ratelimit PASSED\n)?\z/
--- no_error_log
[alert]



=== TEST 35: a dry run on the way does not end the search
--- http_config
ratelimit_limit trial rate=1r/d capacity=2 dry_run;
ratelimit_limit app   rate=1r/d capacity=3;
add_header X-Name $ratelimit_name always;
add_header X-Status $ratelimit_status always;
--- config
location /place { ratelimit app; ratelimit_cost 2; ratelimit_dry_run on;
                  try_files /none @enforced; }
location /trial { ratelimit trial; try_files /none @app; }
location @enforced { ratelimit_rate 1r/d; ratelimit_capacity 1;
                     rewrite ^ /t break; }
location @app { ratelimit app; rewrite ^ /t break; }
--- request eval
["GET /trial", "GET /trial", "GET /trial", "GET /trial", "GET /place",
 "GET /place"]
--- error_code eval
[200, 200, 200, 429, 200, 429]
--- response_headers eval
[(map { "X-Name: app\nX-Status: PASSED\nX-RateLimit-Remaining: $_" } 2, 1, 0),
 "X-Name: app\nX-Status: REJECTED\nX-RateLimit-Remaining: 0",
 "X-Name: localhost\@enforced\nX-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-Name: localhost\@enforced\nX-Status: REJECTED\nX-RateLimit-Limit: 1"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+, limit: "[^"]*"/
--- grep_error_log_out eval
qr/\Aratelimit (?:PASSED|REJECTED_DRY_RUN), limit: "(?:trial|app)"
ratelimit (?:PASSED|REJECTED), limit: "(?:app|localhost\@enforced)"
\z/
--- no_error_log
[alert]



=== TEST 36: nor does a preview
--- http_config
ratelimit_limit app rate=1r/d capacity=2;
add_header X-Status $ratelimit_status always;
--- config
location /look { ratelimit app; ratelimit_preview on; try_files /none @app; }
location @app  { ratelimit app; rewrite ^ /t break; }
--- request eval
["GET /look", "GET /look", "GET /look"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Remaining: 1",
 "X-Status: PASSED\nX-RateLimit-Remaining: 0", "X-Status: REJECTED"]
--- grep_error_log_out eval
qr/\Aratelimit (?:PASSED|REJECTED_PREVIEW)\nratelimit (?:PASSED|REJECTED)\n\z/
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- no_error_log
[alert]



=== TEST 37: what a dry run has taken of a limit is not taken again
--- http_config
ratelimit_limit a rate=1r/d capacity=2;
ratelimit_limit b rate=1r/d capacity=9 dry_run;
add_header X-Name $ratelimit_name always;
--- config
location /t  { }
location /a  { ratelimit a b; ratelimit_dry_run on; try_files /none @a; }
location @a  { ratelimit a b; rewrite ^ /t break; }
--- request eval
["GET /a", "GET /a", "GET /a"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Name: a\nX-RateLimit-Remaining: 1", "X-Name: a\nX-RateLimit-Remaining: 0",
 "X-Name: a\nX-RateLimit-Remaining: 0"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+, limit: "[^"]*"/
--- grep_error_log_out eval
qr/\Aratelimit (?:PASSED|REJECTED_DRY_RUN), limit: "a"
ratelimit PASSED, limit: "b"
(?:ratelimit REJECTED, limit: "a"\n)?\z/
--- no_error_log
[alert]



=== TEST 38: for another cost it is asked again
--- http_config
ratelimit_limit a rate=1r/d capacity=9;
--- config
location /a  { ratelimit a; ratelimit_dry_run on; try_files /none @a; }
location @a  { ratelimit a; ratelimit_cost 4; rewrite ^ /t break; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 3"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\Aratelimit PASSED\nratelimit (?:PASSED|REJECTED)\n\z/
--- no_error_log
[alert]



=== TEST 39: where no enforced limit has a say, the first dry run speaks
--- http_config
ratelimit_headers legacy dry_run;
ratelimit_limit one   rate=1r/d capacity=5 dry_run;
ratelimit_limit two   rate=1r/d capacity=6 dry_run;
ratelimit_limit empty key=$arg_k rate=1r/d capacity=7;
add_header X-Name $ratelimit_name always;
add_header X-Status $ratelimit_status always;
--- config
location /a  { ratelimit one; try_files /none @a; }
location @a  { ratelimit two; try_files /none @b; }
location @b  { ratelimit empty; try_files /none @c; }
location @c  { ratelimit empty two; try_files /none @d; }
location @d  { ratelimit two empty; ratelimit_preview on; rewrite ^ /t break; }
--- request eval
["GET /a", "GET /a?k=1"]
--- response_headers eval
["X-Name: one\nX-Status: PASSED\nX-RateLimit-Remaining: 4",
 "X-Name: empty\nX-Status: PASSED\nX-RateLimit-Remaining: 6"]
--- grep_error_log eval
qr/ratelimit [A-Z_]+, limit: "[^"]*"/
--- grep_error_log_out eval
qr/\Aratelimit PASSED, limit: "one"
(?:ratelimit SKIPPED, limit: "empty"
ratelimit SKIPPED, limit: "empty"
ratelimit PASSED, limit: "two"
|ratelimit PASSED, limit: "empty"
)\z/
--- no_error_log
[alert]



=== TEST 40: index and error_page: a dry run of the whole server is charged once
--- http_config
ratelimit_headers legacy dry_run;
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 3;
ratelimit_dry_run on;
location /dir/ { index index.html; }
location /gone { error_page 404 =200 /busy.html; }
--- request eval
["GET /dir/", "GET /gone"]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1"]
--- no_error_log
[alert]



=== TEST 41: what a dry run took by other numbers does not count where it is enforced
--- http_config
ratelimit_limit a rate=1r/d capacity=$capacity;
--- config
location /a { set $capacity 1000; ratelimit a; ratelimit_dry_run on;
              try_files /none @a; }
location @a { set $capacity 2; ratelimit a; rewrite ^ /t break; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 429]
--- grep_error_log eval
qr/ratelimit [A-Z_]+(?=, limit)/
--- grep_error_log_out eval
qr/\Aratelimit PASSED\nratelimit (?:PASSED|REJECTED)\n\z/
--- no_error_log
[alert]
