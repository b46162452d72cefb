# Key, capacity, rate and cost that come from variables, at run time: what is
# legal applies at once, what is not is logged once and decided by
# ratelimit_on_error, never by accident. A cost is legal whatever it is.
#
# The rate of the limits is too slow to refill during a test, unless said.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

our $redis = start_redis();

our @bad_capacity = ('', qw(0 -1 +1 abc 1x 1.5 0x1 1000000001
                            18446744073709551617), '9' x 2000);
our @bad_rate = ('', qw(1 abc r/s 1r 1r/ 1r/x -1r/s +1r/s 1.r/s .1r/s
                        1.1234567r/s 1000000001r/s 18446744073709551617r/s
                        1r/s1), '1r/s' x 500);
our @bad_cost = qw(100001 18446744073709551617 -1 x 1.5 1e2 0x1);

our $degraded = "X-RateLimit-Degraded: true\n"
                . "X-RateLimit-Degraded-Reason: invalid_limit\n"
                . "X-Status: DEGRADED\n"
                . "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n"
                . "!X-RateLimit-Reset\n";


patient_blocks(<<'EOC');
    add_header X-Status $ratelimit_status always;
EOC


sub says {
    my ($line, $text) = @_;

    like($line, qr/\Q$text\E/, 'the line');
}


run_tests();

__DATA__

=== TEST 1: a map makes tiers of capacity, rate and cost
--- http_config
map $arg_plan $burst { default 1; basic 5; pro 50; }
map $arg_plan $refill { default 1r/d; basic 1r/h; pro 1r/m; }
map $arg_kind $price { default 1; search 5; }
--- config
location /t {
    ratelimit_key $arg_plan;
    ratelimit_capacity $burst;
    ratelimit_rate $refill;
    ratelimit_cost $price;
    empty_gif;
}
--- request eval
["GET /t?plan=free", "GET /t?plan=free", "GET /t?plan=basic",
 "GET /t?plan=basic&kind=search", "GET /t?plan=pro&kind=search"]
--- error_code eval
[200, 429, 200, 429, 200]
--- response_headers_like eval
["X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nRetry-After: 86[34]\\d\\d",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nRetry-After: 3[56]\\d\\d",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 45"]



=== TEST 2: a value may be put together from text and variables
--- config
location /t {
    ratelimit_key $arg_a:$arg_b;
    ratelimit_capacity ${arg_n}0;
    ratelimit_rate ${arg_n}r/d;
    ratelimit_cost 1$arg_n;
    empty_gif;
}
--- request
GET /t?a=x&b=y&n=3
--- response_headers
X-RateLimit-Limit: 30
X-RateLimit-Remaining: 17
--- after
::is_deeply($::redis->cmd('KEYS', '*'), ['ratelimit:localhost/t:{x:y}'],
            'the bucket');



=== TEST 3: without a capacity, it is the number in the rate, rounded up
--- config
location /7    { ratelimit_rate 7r/d;        empty_gif; }
location /2.5  { ratelimit_rate 2.5r/d;      empty_gif; }
location /0.5  { ratelimit_rate 0.5r/d;      empty_gif; }
location /tiny { ratelimit_rate 0.000001r/d; empty_gif; }
location /4.0  { ratelimit_rate 4.000000r/d; empty_gif; }
location /var  { ratelimit_rate $arg_r;      empty_gif; }
--- request eval
["GET /7", "GET /2.5", "GET /0.5", "GET /tiny", "GET /4.0", "GET /var?r=1.2r/d"]
--- error_code eval
[(200) x 6]
--- response_headers eval
["X-RateLimit-Limit: 7\nX-RateLimit-Remaining: 6",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 4\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1"]



=== TEST 4: a smaller capacity clamps a live bucket, a larger one gives nothing
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity $arg_c;
    empty_gif;
}
--- request eval
["GET /t?c=10", "GET /t?c=10", "GET /t?c=5", "GET /t?c=10", "GET /t?c=1000",
 "GET /t?c=2", "GET /t?c=2", "GET /t?c=1000"]
--- error_code eval
[200, 200, 200, 200, 200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 8",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 1000\nX-RateLimit-Remaining: 2",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1000\nX-RateLimit-Remaining: 0"]



=== TEST 5: a changed rate applies to a live bucket
--- config
location /t {
    ratelimit_rate $arg_r;
    ratelimit_capacity 1;
    empty_gif;
}
--- request eval
["GET /t?r=1r/d", "GET /t?r=1r/d", "GET /t?r=1000r/s", "GET /t?r=0r/s"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0") x 4]



=== TEST 6: an invalid capacity, open: the request passes and says so
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity $arg_v;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } @::bad_capacity]
--- error_code eval
[(200) x @::bad_capacity]
--- response_headers eval
[("$::degraded!Retry-After") x @::bad_capacity]
--- after
::is_deeply($::redis->cmd('KEYS', '*'), [], 'redis is not asked');
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], '[error]');
::says($lines[0], 'invalid value "" of "ratelimit_capacity" for limit '
                  . '"localhost/t": it must be a whole number from 1 to '
                  . '1000000000, client:');



=== TEST 7: an invalid capacity, closed: the request is refused
--- config
location /t {
    ratelimit_on_error closed;
    ratelimit_rate 1r/d;
    ratelimit_capacity $arg_v;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } CORE::reverse @::bad_capacity]
--- error_code eval
[(503) x @::bad_capacity]
--- response_headers eval
[("${main::degraded}Retry-After: 1\nX-RateLimit-Retry-After: 1")
    x @::bad_capacity]
--- after
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::like($lines[0], qr/ invalid value "9{64}" of "ratelimit_capacity" /,
       'a long value is cut');



=== TEST 8: an invalid rate, open: the request passes and says so
--- config
location /t {
    ratelimit_rate $arg_v;
    ratelimit_capacity 10;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } CORE::reverse @::bad_rate]
--- error_code eval
[(200) x @::bad_rate]
--- response_headers eval
[("$::degraded!Retry-After") x @::bad_rate]
--- after
::is_deeply($::redis->cmd('KEYS', '*'), [], 'redis is not asked');
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], 'invalid value "' . '1r/s' x 16 . '" of "ratelimit_rate" '
                  . 'for limit "localhost/t": it must be a number followed by');



=== TEST 9: an invalid rate, closed: the request is refused
--- config
location /t {
    ratelimit_on_error closed;
    ratelimit_error_status 500;
    ratelimit_rate $arg_v;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } @::bad_rate]
--- error_code eval
[(500) x @::bad_rate]
--- response_headers eval
[("${main::degraded}Retry-After: 1\nX-RateLimit-Retry-After: 1")
    x @::bad_rate]



=== TEST 10: whatever a client makes of a cost, the limit applies
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 1000000;
    ratelimit_cost $arg_v;
    ratelimit_on_error open;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } @::bad_cost, '', 0, '00000']
--- error_code eval
[(200) x (@::bad_cost + 3)]
--- response_headers eval
[map { "X-Status: PASSED\nX-RateLimit-Remaining: $_" }
     900000, 800000, 700000, 600000, 500000, 400000, 300000,
     299999, 299998, 299997]
--- after
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], 'invalid value "100001" of "ratelimit_cost" for limit '
                  . '"localhost/t": it must be a whole number from 1 to '
                  . '100000; the request is charged 100000, client:');



=== TEST 11: such a cost never passes a capacity that is below it
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5000;
    ratelimit_cost $arg_v;
    ratelimit_on_error open;
    empty_gif;
}
--- request eval
[map { "GET /t?v=$_" } 5001, @::bad_cost]
--- error_code eval
[(429) x (1 + @::bad_cost)]
--- response_headers eval
[("X-Status: REJECTED\n!Retry-After\n!X-RateLimit-Degraded")
    x (1 + @::bad_cost)]
--- after
::is_deeply($::redis->cmd('KEYS', '*'), [], 'nothing is taken');
::is(scalar ::log_lines(qr/is above capacity/), 1,
     'the warning comes once a minute');
::is(scalar ::log_lines(qr/ratelimit REJECTED/), 1 + @::bad_cost,
     'and each rejection has its line');



=== TEST 12: a rate and a capacity that don't fit each other
--- config
location /t {
    ratelimit_on_error closed;
    ratelimit_rate $arg_r;
    ratelimit_capacity $arg_c;
    empty_gif;
}
--- request eval
["GET /t?r=1001r/s&c=1", "GET /t?r=1000r/s&c=1", "GET /t?r=60001r/m&c=1"]
--- error_code eval
[503, 200, 503]
--- response_headers eval
[$::degraded, "X-RateLimit-Limit: 1\nX-Status: PASSED", $::degraded]
--- after
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], 'invalid value "1" of "ratelimit_capacity" for '
                  . 'limit "localhost/t": the rate per second must be at '
                  . 'most 1000 times the capacity');



=== TEST 13: a variable rate that does not fit a fixed capacity
--- config
location /t {
    ratelimit_rate $arg_r;
    ratelimit_capacity 1;
    empty_gif;
}
--- request
GET /t?r=1001r/s
--- response_headers eval
$::degraded
--- error_log eval
qr/invalid value "1001r\/s" of "ratelimit_rate" for limit "localhost\/t": the /
--- no_error_log
[alert]



=== TEST 14: a variable rate of zero needs a capacity
--- config
location /none {
    ratelimit_on_error closed;
    ratelimit_rate $arg_r;
    empty_gif;
}
location /two {
    ratelimit_rate $arg_r;
    ratelimit_capacity 2;
    empty_gif;
}
--- request eval
["GET /none?r=0r/s", "GET /two?r=0r/s", "GET /two?r=0r/s", "GET /two?r=0r/s"]
--- error_code eval
[503, 200, 200, 429]
--- response_headers eval
[$::degraded, "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0\n!Retry-After\n!X-RateLimit-Retry-After"]
--- after
my @lines = ::log_lines(qr/invalid value/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], 'invalid value "0r/s" of "ratelimit_rate" for limit '
                  . '"localhost/none": a bucket that never refills needs '
                  . 'a capacity');



=== TEST 15: what is logged of a value is escaped
--- http_config
map $arg_x $bad { default "a\nnext \"b\"\\\t"; }
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity $bad$http_x_bytes;
    empty_gif;
}
--- request
GET /t
--- more_headers eval
"X-Bytes: \xff\x7f\xc3\xa9"
--- response_headers eval
$::degraded
--- error_log eval
qr/ invalid value "a\\x0Anext \\x22b\\x22\\x5C\\x09\\xFF\\x7F\\xC3\\xA9" of /
--- no_error_log eval
[qr/^next/, qr/[^\x20-\x7e\n]/, "[alert]"]



=== TEST 16: a dry run refuses nobody, whatever the values
--- config
location /t {
    ratelimit_dry_run on;
    ratelimit_headers legacy dry_run;
    ratelimit_on_error closed;
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    ratelimit_cost $arg_v;
    empty_gif;
}
--- request eval
["GET /t?v=x", "GET /t?v=6"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-Status: REJECTED_DRY_RUN\nX-RateLimit-Limit: 5\n!Retry-After") x 2]



=== TEST 17: after an invalid value, valid ones are decided as ever
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity $arg_c;
    empty_gif;
}
--- request eval
["GET /t?c=2", "GET /t?c=x", "GET /t?c=2", "GET /t?c=2"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1\nX-Status: PASSED", $::degraded,
 "X-RateLimit-Remaining: 0\nX-Status: PASSED",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED"]



=== TEST 18: an empty key is not limited and costs nothing
--- config
location /t {
    ratelimit_key $arg_key;
    ratelimit_on_error closed;
    ratelimit_rate 1r/d;
    ratelimit_cost $arg_cost;
    empty_gif;
}
--- request eval
["GET /t", "GET /t?key=", "GET /t?cost=x", "GET /t?key=a&cost=1",
 "GET /t?key=a&cost=1"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
[("X-Status: SKIPPED\n!X-RateLimit-Limit\n!X-RateLimit-Remaining\n"
  . "!X-RateLimit-Reset\n!X-RateLimit-Degraded\n!Retry-After") x 3,
 "X-Status: PASSED\nX-RateLimit-Limit: 1",
 "X-Status: REJECTED\nX-RateLimit-Limit: 1"]
--- after
::is_deeply($::redis->cmd('KEYS', '*'), ['ratelimit:localhost/t:{a}'],
            'the only bucket');



=== TEST 19: a cost above the capacity is refused for good, and nothing is taken
--- config
location /t {
    ratelimit_rate 1r/d;
    ratelimit_capacity 5;
    ratelimit_cost $arg_cost;
    empty_gif;
}
--- request eval
["GET /t?cost=6", "GET /t?cost=100000", "GET /t?cost=5", "GET /t?cost=5"]
--- error_code eval
[429, 429, 200, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 5\nRetry-After: \nX-RateLimit-Retry-After: ",
 "X-RateLimit-Limit: 5\nRetry-After: \nX-RateLimit-Retry-After: ",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-Status: PASSED",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nRetry-After: 43\\d{4}"]
--- after
my @lines = ::log_lines(qr/never pass/);
::is(scalar @lines, 1, 'a line a minute');
::says($lines[0], '[warn]');
::says($lines[0], 'cost 6 is above capacity 5 of limit "localhost/t": '
                  . 'this request can never pass, client:');



=== TEST 20: the default key is the client's address
--- config
ratelimit_rate 1r/d;
location /default { ratelimit_prefix x; empty_gif; }
location /explicit { ratelimit_prefix y; ratelimit_key $remote_addr;
                     empty_gif; }
--- request eval
["GET /default", "GET /explicit"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 2]
--- after
::is_deeply([sort @{ $::redis->cmd('KEYS', '*') }],
            ['x:localhost:{127.0.0.1}', 'y:localhost/explicit:{127.0.0.1}'],
            'the buckets');



=== TEST 21: a value is read where the request is, after a rewrite too
--- config
set $cap 2;
location /old { set $cap 7; rewrite ^ /new last; }
location /new {
    ratelimit_rate 1r/d;
    ratelimit_key $uri;
    ratelimit_capacity $cap;
    empty_gif;
}
--- request eval
["GET /old", "GET /new"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 7\nX-RateLimit-Remaining: 6",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1"]



=== TEST 22: gcra: values that it can't have are invalid ones
--- config
location /t {
    ratelimit_algorithm gcra;
    ratelimit_key $arg_k;
    ratelimit_rate $arg_rate;
    ratelimit_capacity $arg_cap;
    ratelimit_on_error closed;
    empty_gif;
}
--- request eval
["GET /t?k=a&rate=1r/d&cap=365", "GET /t?k=a&rate=1r/d&cap=366",
 "GET /t?k=a&rate=0r/s&cap=5", "GET /t?k=b&rate=100000r/s&cap=1000",
 "GET /t?k=b&rate=100001r/s&cap=1000", "GET /t?k=a&rate=1r/d&cap=365"]
--- error_code eval
[200, 503, 503, 200, 503, 200]
--- response_headers eval
["X-RateLimit-Remaining: 364", ("X-RateLimit-Degraded: true") x 2,
 "X-RateLimit-Limit: 1000", "X-RateLimit-Degraded: true",
 "X-RateLimit-Remaining: 363"]
--- after
my @lines = ::log_lines(qr/"gcra" needs/);
::is(scalar @lines, 1, 'logged once');
::says($lines[0], '"gcra" needs a rate above zero and at most 100000r/s that '
                  . 'refills the capacity within a year');
