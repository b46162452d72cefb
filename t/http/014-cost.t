# What a request costs: fixed, or by method, header, length or anything else
# that a variable tells; and what becomes of a cost that is above the capacity.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts what was taken.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

our $redis = start_redis();

our $never = "X-Status: REJECTED\nX-Source: local\n"
             . "!Retry-After\n!X-RateLimit-Retry-After\n";


patient_blocks(<<'EOC');
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;
    add_header X-Source $ratelimit_source always;
EOC


sub tokens {
    my ($name) = @_;

    return int(0.5 + ($redis->tokens("ratelimit:$name:{127.0.0.1}")
                      // return 'none'));
}


# ---- a fixed cost that can never pass, wherever it comes from

my $LIMITS = <<'EOC';
    ratelimit_shards 127.0.0.1:6379;
    ratelimit_limit bucket rate=1r/s capacity=5;
    ratelimit_limit window algorithm=sliding_window_log capacity=4;
    ratelimit_limit cheap  rate=1r/s capacity=3 cost=1;
EOC

for my $case (
    ['the limit of the location', 'localhost/t', 5,
     'ratelimit_rate 5r/s; ratelimit_cost 6;'],
    ['the window of the location', 'localhost/t', 5,
     'ratelimit_algorithm sliding_window_log; ratelimit_capacity 5; '
     . 'ratelimit_cost 6;'],
    ['a named bucket', 'bucket', 5, 'ratelimit bucket; ratelimit_cost 6;'],
    ['a named window', 'window', 4, 'ratelimit window; ratelimit_cost 6;'],
    ['the second of two', 'bucket', 5,
     'ratelimit cheap bucket; ratelimit_cost 6;'],
    ['a limit in a dry run', 'localhost/t', 5,
     'ratelimit_rate 5r/s; ratelimit_dry_run on; ratelimit_cost 6;'])
{
    my ($name, $limit, $capacity, $location) = @$case;
    my ($code, $output) = RateLimit::Nginx->test_config(
        conf => $LIMITS, server => "location /t { $location }");

    is($code, 1, "above the capacity of $name: nginx -t fails");
    like($output, qr/\[emerg\].* "ratelimit_cost" "6" is above capacity $capacity of limit "\Q$limit\E": no request could ever pass/,
         'and says why');
}

for my $location ('ratelimit_capacity 100000; ratelimit_rate 1r/s; '
                  . 'ratelimit_cost 100000;',
                  'ratelimit cheap; ratelimit_cost 6;',
                  'ratelimit bucket; ratelimit_cost 5;',
                  'ratelimit bucket; ratelimit_cost $arg_cost;')
{
    my ($code, $output) = RateLimit::Nginx->test_config(
        conf => $LIMITS, server => "location /t { $location }");

    is($code, 0, "accepted: $location") or diag($output);
}


run_tests();

__DATA__

=== TEST 1: a fixed cost is taken from the bucket as a whole, or not at all
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 10; ratelimit_cost 4;
              empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 6", "X-RateLimit-Remaining: 2",
 "X-RateLimit-Remaining: 2"]
--- after
::is(::tokens('localhost/t'), 2, 'the denied request took nothing');



=== TEST 2: who can't pay the price passes with a smaller one
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 10;
              ratelimit_cost $arg_c; empty_gif; }
--- request eval
["GET /t?c=7", "GET /t?c=5", "GET /t?c=4", "GET /t?c=3", "GET /t?c=1"]
--- error_code eval
[200, 429, 429, 200, 429]
--- response_headers_like eval
["X-RateLimit-Remaining: 3",
 "X-RateLimit-Remaining: 3\nRetry-After: 7[12]\\d\\d",
 "X-RateLimit-Remaining: 3\nRetry-After: 3[56]\\d\\d",
 "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0\nRetry-After: 3[56]\\d\\d"]



=== TEST 3: the method says what a request costs
--- http_config
map $request_method $price { default 1; POST 5; PUT 5; DELETE 10; }
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 20;
    ratelimit_cost $price;
    error_page 405 =200 @done;
    try_files /none @done;
}
location @done { return 200 "done\n"; }
--- request eval
["GET /t", "POST /t\nbody", "DELETE /t", "POST /t\nbody", "GET /t"]
--- error_code eval
[200, 200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 19", "X-RateLimit-Remaining: 14",
 "X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 4",
 "X-RateLimit-Remaining: 3"]



=== TEST 4: by a header, as a gateway computes it for GraphQL
--- http_config
map $http_x_query_cost $price {
    default             1;
    "~^[1-9]\d{0,2}$"   $http_x_query_cost;
}
ratelimit_limit points key=$remote_addr rate=1r/d capacity=1000 cost=$price;
--- config
location /graphql { ratelimit points; empty_gif; }
--- request eval
["GET /graphql", "GET /graphql", "GET /graphql", "GET /graphql"]
--- more_headers eval
["", "X-Query-Cost: 250", "X-Query-Cost: a lot", "X-Query-Cost: 900"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 999", "X-RateLimit-Remaining: 749",
 "X-RateLimit-Remaining: 748",
 "X-Name: points\nX-RateLimit-Remaining: 748"]



=== TEST 5: the length of a request says what it costs
--- http_config
map $content_length $price {
    default        1;
    ~^\d\d\d$      2;
    ~^\d\d\d\d$    5;
    "~^\d{5,}$"    50;
}
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 60;
    ratelimit_cost $price;
    try_files /none @done;
}
location @done { return 200 "done\n"; }
--- request eval
["GET /t", "POST /t\n" . "x" x 99, "POST /t\n" . "x" x 100,
 "POST /t\n" . "x" x 1000, "POST /t\n" . "x" x 10000,
 "POST /t\n" . "x" x 1000]
--- error_code eval
[200, 200, 200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 59", "X-RateLimit-Remaining: 58",
 "X-RateLimit-Remaining: 56", "X-RateLimit-Remaining: 51",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 1"]



=== TEST 6: $request_length can be a cost as it is
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 100000;
              ratelimit_cost $request_length; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Limit: 100000
--- after
my ($line) = ::log_lines(qr/ratelimit PASSED/);
my ($cost, $left) = $line =~ /cost: (\d+), remaining: (\d+) of 100000/;
::cmp_ok($cost, '>', 20, 'a request line has a length');
::is($cost + $left, 100000, 'which was taken');
::is(::tokens('localhost/t'), $left, 'from the bucket');



=== TEST 7: from 1 to 100000, whatever the variable says
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 700000;
              ratelimit_cost $arg_c; ratelimit_on_error closed; empty_gif; }
--- request eval
["GET /t?c=1", "GET /t?c=100000", "GET /t?c=100001", "GET /t?c=0",
 "GET /t?c=-1", "GET /t?c=1.5", "GET /t?c=", "GET /t?c=007"]
--- error_code eval
[(200) x 8]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_\n!X-RateLimit-Degraded" }
     699999, 599999, 499999, 499998, 399998, 299998, 299997, 299990]
--- after
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::like($lines[0], qr/\[error\].* "100001" of "ratelimit_cost" for limit "localhost\/t": it must be a whole number from 1 to 100000; the request is charged 100000/,
       'what is wrong');



=== TEST 8: a variable cost above the capacity is rejected, and the log is clear
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 5;
              ratelimit_cost $arg_c; empty_gif; }
--- init
$::redis->cmd('CONFIG', 'RESETSTAT');
--- request eval
["GET /t?c=6", "GET /t?c=5", "GET /t?c=6"]
--- error_code eval
[429, 200, 429]
--- response_headers eval
["${main::never}X-RateLimit-Limit: 5",
 "X-Status: PASSED\nX-Source: redis\nX-RateLimit-Remaining: 0",
 "${main::never}X-RateLimit-Limit: 5"]
--- after
my @lines = ::log_lines(qr/ is above capacity /);
::is(scalar @lines, 1, 'a line a minute');
::like($lines[0], qr/\[warn\].* cost 6 is above capacity 5 of limit "localhost\/t": this request can never pass, client: /,
       'that says why');
::like($::redis->cmd('INFO', 'commandstats'), qr/cmdstat_evalsha:calls=1,/,
       'and Redis is not asked');



=== TEST 9: a cost above one capacity takes nothing from the other limits
--- http_config
ratelimit_limit small rate=1r/d capacity=5;
ratelimit_limit large rate=1r/d capacity=500;
ratelimit_limit other rate=1r/d capacity=50 cost=1;
--- config
ratelimit_cost $arg_c;
location /first { ratelimit small large other; empty_gif; }
location /last  { ratelimit other large small; empty_gif; }
--- request eval
["GET /first?c=6", "GET /last?c=6", "GET /first?c=501", "GET /first?c=5"]
--- error_code eval
[429, 429, 429, 200]
--- response_headers eval
["${main::never}X-Name: small", "${main::never}X-Name: small",
 "${main::never}X-Name: small\nX-RateLimit-Limit: 5",
 "X-Name: small\nX-Status: PASSED\nX-RateLimit-Remaining: 0"]
--- after
::is(::tokens('small'), 0, 'the small one');
::is(::tokens('large'), 495, 'the large one');
::is(::tokens('other'), 49, 'the other one');



=== TEST 10: a cost above a capacity that a plan gives
--- http_config
map $arg_plan $burst { default 5; pro 50; }
ratelimit_limit plan key=$arg_k rate=1r/d capacity=$burst cost=10;
--- config
location /t { ratelimit plan; empty_gif; }
--- request eval
["GET /t?k=1", "GET /t?k=1&plan=pro", "GET /t?k=1"]
--- error_code eval
[429, 200, 429]
--- response_headers eval
["${main::never}X-RateLimit-Limit: 5",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 40",
 "${main::never}X-RateLimit-Limit: 5"]
--- after
::is(scalar ::log_lines(qr/cost 10 is above capacity 5 of limit "plan"/), 1,
     'the log');



=== TEST 11: a window log counts the costs, and waits for as many to leave
--- http_config
ratelimit_limit log algorithm=sliding_window_log capacity=10 window=1h;
--- config
location /t { ratelimit log; ratelimit_cost $arg_c; empty_gif; }
--- request eval
["GET /t?c=6", "GET /t?c=5", "GET /t?c=4", "GET /t?c=1", "GET /t?c=11"]
--- error_code eval
[200, 429, 200, 429, 429]
--- response_headers_like eval
["X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 4\nRetry-After: 3[56]\\d\\d",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\nRetry-After: 3[56]\\d\\d",
 "X-Source: local"]
--- after
::is($::redis->cmd('ZCARD', 'ratelimit:log:{127.0.0.1}'), 2,
     'an entry each of those that passed');
::is(scalar ::log_lines(qr/cost 11 is above capacity 10 of limit "log"/), 1,
     'the log');



=== TEST 12: by the length of the body: what is longer never costs less
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5000;
    ratelimit_cost $content_length;
    client_max_body_size 10m;
    try_files /none @done;
}
location @done { return 200 "done\n"; }
--- request eval
[map { "POST /t\n" . "x" x $_ } 5001, 100000, 100001, 1000000, 4000, 1001]
--- error_code eval
[429, 429, 429, 429, 200, 429]



=== TEST 13: a body without a length has an empty $content_length, and costs 1
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 10;
    ratelimit_cost $content_length;
    try_files /none @done;
}
location @done { return 200 "done\n"; }
--- request eval
["POST /t\n", "POST /t\n2\r\nab\r\n0\r\n\r\n", "GET /t"]
--- more_headers eval
["", "Transfer-Encoding: chunked", ""]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 9", "X-RateLimit-Remaining: 8",
 "X-RateLimit-Remaining: 7"]



=== TEST 14: a map may say what a long body costs
--- http_config
map $content_length $price {
    default  $content_length;
    ""       $price_unknown;
}
map "$server_protocol $http_transfer_encoding" $price_unknown {
    default      5000;
    "HTTP/1.1 "  1;
}
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 6000;
    ratelimit_cost $price;
    try_files /none @done;
}
location @done { return 200 "done\n"; }
--- request eval
["GET /t", "POST /t\nabc", "POST /t\n2\r\nab\r\n0\r\n\r\n",
 "POST /t\n2\r\nab\r\n0\r\n\r\n"]
--- more_headers eval
["", "", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 5999", "X-RateLimit-Remaining: 5996",
 "X-RateLimit-Remaining: 996", "X-RateLimit-Remaining: 996"]
