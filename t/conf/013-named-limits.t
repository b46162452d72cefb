# Named limits: what nginx -t says of wrong ones, which of them guard a place,
# and that each of them counts for itself, whatever key value they share.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts what was taken.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Config;
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

our $redis = start_redis();

our $invalid = "X-RateLimit-Degraded: true\n"
               . "X-RateLimit-Degraded-Reason: invalid_limit\n";


patient_blocks(<<'EOC');
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;
EOC


# The decisions in the log, each with the name of its limit.

sub decisions {
    return [map { /ratelimit ([A-Z_]+), limit: "([^"]*)"/ ? "$1 $2" : () }
            split /\n/, slurp($Test::Nginx::Util::ErrLogFile)];
}


my $SHARDS = 'ratelimit_shards 127.0.0.1:6379;';


# ---- names

my $NAME = 'it must be 1 to 64 letters, digits, "_", "-" or "." and not "off"';

refused("the name \"$_\"", "$SHARDS ratelimit_limit '$_' rate=1r/s;", '',
        'ratelimit_limit', "invalid name \"$_\"", $NAME)
    for 'off', '', 'a b', 'a/b', 'a:b', 'a,b', 'a"b', 'a\\b', 'a{b', 'a}b',
        'a#2', '$arg_a', "caf\xc3\xa9", "a\tb", 'x' x 65;

accepted("the name \"$_\"", "$SHARDS ratelimit_limit $_ rate=1r/s;",
         "ratelimit $_;")
    for qw(a 1 - . _ on OFF offline free-tier_2.0), 'x' x 64;

refused('a name twice', "$SHARDS ratelimit_limit a rate=1r/s; "
        . 'ratelimit_limit a rate=1r/s;', '',
        'ratelimit_limit', 'duplicate name "a"');
accepted('names that differ in case only', "$SHARDS ratelimit_limit a "
         . 'rate=1r/s; ratelimit_limit A rate=1r/s;', 'ratelimit a A;');


# ---- parameters

my $ALLOWED = 'it must be key=, capacity=, rate=, cost=, algorithm=, window=, '
              . 'period=, timezone=, anchor=, refill_interval=, dry_run or '
              . 'advise';

refused("the parameter \"$_\"", "$SHARDS ratelimit_limit a rate=1r/s '$_';",
        '', 'ratelimit_limit', "invalid parameter \"$_\"", $ALLOWED)
    for qw(foo foo=1 rate capacity key =1 Rate=1r/s dry_run=on dry_runs
           status=503 burst=5), '';

refused("\"$_\" twice", "$SHARDS ratelimit_limit a capacity=5 rate=1r/s "
        . 'key=x cost=1 window=60s refill_interval=1s '
        . "algorithm=token_bucket dry_run $_;", '',
        'ratelimit_limit', "duplicate parameter \"$_\"")
    for qw(capacity=6 rate=1r/s key=y cost=1 window=1s refill_interval=1s
           algorithm=sliding_window_log dry_run);

my @WRONG = (
    [capacity => 'it must be a whole number from 1 to 1000000000',
                 qw(0 -1 1k), ''],
    [rate     => 'it must be a number followed by "r/s"', qw(10 -1r/s 1r/x),
                 ''],
    [cost     => 'it must be a whole number from 1 to 100000', qw(0 100001),
                 ''],
    [window   => 'it must be a time from 1ms to 365d', qw(0 366d x), ''],
    [refill_interval => 'it must be a time from 0 to 1d', qw(2d -1 x), ''],
);

for my $case (@WRONG) {
    my ($parameter, $allowed, @values) = @$case;
    my $rate = $parameter eq 'rate' ? '' : 'rate=1r/s';

    refused("$parameter=$_", "$SHARDS ratelimit_limit a $rate $parameter=$_;",
            '', "\"ratelimit_limit $parameter\"", "invalid value \"$_\"",
            $allowed)
        for @values;
}

refused("algorithm=$_", "$SHARDS ratelimit_limit a rate=1r/s algorithm=$_;",
        '', 'ratelimit_limit', "\"algorithm=$_\"",
        'it must be "token_bucket", "sliding_window_log", "gcra", "fixed_window" or "sliding_window_counter"')
    for qw(foo sliding_window sliding_window_logs), '';

refused('an empty key', "$SHARDS ratelimit_limit a key= rate=1r/s;", '',
        'no key in "key=" of "ratelimit_limit"', 'limits nothing');
refused('a variable that nobody knows',
        "$SHARDS ratelimit_limit a rate=1r/s $_=\$no_such;", '',
        'unknown "no_such" variable')
    for qw(key capacity cost refill_interval);

refused('nothing but a name', "$SHARDS ratelimit_limit a;", '',
        'invalid number of arguments in "ratelimit_limit"');
refused('no rate', "$SHARDS ratelimit_limit a key=x capacity=5;", '',
        'ratelimit_limit', '"a"', 'no "rate="');
refused('no capacity of a window log',
        "$SHARDS ratelimit_limit a algorithm=sliding_window_log window=1s;",
        '', 'ratelimit_limit', '"a"', 'no "capacity="');
accepted('a window log without a rate', "$SHARDS ratelimit_limit a "
         . 'algorithm=sliding_window_log capacity=5;', 'ratelimit a;');
refused('0r/s without a capacity', "$SHARDS ratelimit_limit a rate=0r/s;", '',
        '"0r/s"', 'limit "a"', 'never refills');
refused('a rate that does not fit',
        "$SHARDS ratelimit_limit a rate=1001r/s capacity=1;", '',
        '"1001r/s"', 'limit "a"', 'capacity 1', 'at most 1000 times');
refused('a cost above the capacity',
        "$SHARDS ratelimit_limit a rate=1r/s capacity=5 cost=6;", '',
        '"6"', 'limit "a"', 'capacity 5', 'no request could ever pass');
refused('a cost above the number in the rate',
        "$SHARDS ratelimit_limit a rate=5r/s cost=6;", '',
        '"6"', 'limit "a"', 'capacity 5', 'no request could ever pass');
refused('a cost above the limit of a window',
        "$SHARDS ratelimit_limit a algorithm=sliding_window_log capacity=5 "
        . 'cost=6;', '', '"6"', 'limit "a"', 'capacity 5');
refused('the cost of the location above the capacity of a named limit',
        "$SHARDS ratelimit_limit a rate=1r/s capacity=5;",
        'ratelimit a; ratelimit_cost 6;',
        '"ratelimit_cost" "6"', 'limit "a"', 'capacity 5');
accepted('the cost of the location, where the limit has one of its own',
         "$SHARDS ratelimit_limit a rate=1r/s capacity=5 cost=5;",
         'ratelimit a; ratelimit_cost 6;');
accepted('everything from variables', "$SHARDS ratelimit_limit a key=\$arg_k "
         . 'capacity=$arg_c rate=${arg_r}r/s cost=$arg_p '
         . 'refill_interval=$arg_i; ratelimit_limit b capacity=$arg_c '
         . 'window=$arg_w algorithm=sliding_window_log;', 'ratelimit a b;');
refused('a window of a bucket', "$SHARDS ratelimit_limit a rate=1r/s "
        . 'window=5m;', '', '"window=" has no meaning in "ratelimit_limit" "a"',
        'add "algorithm=sliding_window_log"');
refused("\"$_\" of a window", "$SHARDS ratelimit_limit a capacity=5 $_ "
        . 'algorithm=sliding_window_log;', '', 'have no meaning')
    for qw(rate=1r/s refill_interval=1s);

refused('an interval of gcra', "$SHARDS ratelimit_limit a rate=1r/s "
        . 'algorithm=gcra refill_interval=1s;', '',
        '"refill_interval=" has no meaning in "ratelimit_limit" "a"',
        'algorithm=gcra');
refused('a window of gcra', "$SHARDS ratelimit_limit a rate=1r/s "
        . 'algorithm=gcra window=5m;', '',
        '"window=" has no meaning in "ratelimit_limit" "a"',
        'add "algorithm=sliding_window_log"');
refused('gcra without a rate', "$SHARDS ratelimit_limit a capacity=5 "
        . 'algorithm=gcra;', '', 'ratelimit_limit', '"a"', 'no "rate="');
refused('a rate that gcra can\'t have', "$SHARDS ratelimit_limit a "
        . 'rate=0r/s capacity=5 algorithm=gcra;', '', '"0r/s"', 'limit "a"',
        '"gcra" needs a rate above zero');
accepted('gcra', "$SHARDS ratelimit_limit a rate=1r/s capacity=5 cost=2 "
         . 'algorithm=gcra; ratelimit_limit b rate=$arg_r algorithm=gcra;',
         'ratelimit a b;');


# ---- places

my $A = "$SHARDS ratelimit_limit a rate=1r/s; ratelimit_limit b rate=1r/s;";

refused('an unknown limit', $A, 'ratelimit a c;',
        'unknown limit "c" in "ratelimit"', 'add "ratelimit_limit c ...;"');
refused('an unknown limit in http', "$A ratelimit c;", '',
        'unknown limit "c" in "ratelimit"');
refused('a limit of directives, by the name it got', "$A ratelimit_rate 1r/s;",
        'ratelimit http;', 'unknown limit "http"');
refused('off beside limits', $A, "ratelimit $_;",
        '"off" can\'t be combined with limits', '"ratelimit"')
    for 'off a', 'a off', 'a off b';
refused('a limit twice', $A, 'ratelimit a b a;', 'duplicate limit "a"',
        '"ratelimit"');
refused('two lists', $A, 'ratelimit a; ratelimit b;',
        'list all limits in one directive, write "ratelimit a b;" in ');
refused('a list and off', $A, 'ratelimit a; ratelimit off;',
        'duplicate "ratelimit" with "off"', 'either a list of limits or "off"');
refused('off and a list', $A, 'ratelimit off; ratelimit a;',
        'duplicate "ratelimit" with "off"', 'either a list of limits or "off"');
refused('an empty list', $A, 'ratelimit;',
        'invalid number of arguments in "ratelimit"');
refused('a list in if', $A, 'if ($args) { ratelimit a; }',
        '"ratelimit" directive is not allowed here');
refused('a named limit in a location', $A, 'ratelimit_limit c rate=1r/s;',
        '"ratelimit_limit" directive is not allowed here');
accepted('no shards', 'ratelimit_limit a rate=1r/s;', 'ratelimit a;');
accepted('no shards, where nobody uses the limit',
         'ratelimit_limit a rate=1r/s; ratelimit_silence unused_limit;', '');

my $many = join ' ', map { "ratelimit_limit l$_ rate=1r/s;" } 1 .. 17;
my $list = join ' ', map { "l$_" } 1 .. 16;

accepted('16 limits', "$SHARDS $many ratelimit_silence unused_limit;",
         "ratelimit $list;");
refused('17 limits', "$SHARDS $many", "ratelimit $list l17;",
        '17 limits in one location', 'at most 16');
refused('16 limits and one of the place itself', "$SHARDS $many",
        "ratelimit $list; ratelimit_rate 1r/s;",
        '17 limits in one location', 'at most 16');


run_tests();

__DATA__

=== TEST 1: a named limit guards a location and is called by its name
--- http_config
ratelimit_limit ip rate=1r/d capacity=2;
--- config
location /t { ratelimit ip; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Name: ip\nX-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-Name: ip\nX-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Name: ip\nX-Status: REJECTED\nX-RateLimit-Limit: 2\n"
 . "X-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'ip:{127.0.0.1}' => 0 }, 'its key');
::is_deeply(::decisions(), ['PASSED ip', 'PASSED ip', 'REJECTED ip'], 'the log');



=== TEST 2: limits with the same key value have a Redis key each
--- http_config
ratelimit_limit user   key=$arg_k rate=1r/d capacity=9;
ratelimit_limit ip     key=$arg_k rate=1r/d capacity=8;
ratelimit_limit global key=$arg_k capacity=7 algorithm=sliding_window_log;
--- config
location /t { ratelimit user ip global; empty_gif; }
--- init
$::redis->cmd('CONFIG', 'RESETSTAT');
--- request eval
["GET /t?k=same", "GET /t?k=same"]
--- response_headers eval
["X-Name: global\nX-RateLimit-Limit: 7\nX-RateLimit-Remaining: 6",
 "X-Name: global\nX-RateLimit-Limit: 7\nX-RateLimit-Remaining: 5"]
--- after
::is_deeply($::redis->contents, { 'user:{same}' => 7, 'ip:{same}' => 6,
                                'global:{same}' => '2 entries' }, 'the keys');
::like($::redis->cmd('INFO', 'commandstats'), qr/cmdstat_evalsha:calls=2,/,
       'one call a request');



=== TEST 3: a limit may be defined after the place that it guards
--- config
location /t { ratelimit late; empty_gif; }
--- http_config
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    location / { ratelimit late; empty_gif; }
}
ratelimit_limit late rate=1r/d capacity=1;
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-Name: late", "X-Name: late"]



=== TEST 4: one limit in many places is one bucket
--- http_config
ratelimit_limit all rate=1r/d capacity=3;
server {
    listen $TEST_NGINX_SERVER_PORT;
    server_name other;
    ratelimit all;
    location / { empty_gif; }
}
--- config
location /a { ratelimit all; empty_gif; }
location /b { ratelimit all; empty_gif; }
--- request eval
["GET /a", "GET /b", "GET /c", "GET /a"]
--- more_headers eval
["", "", "Host: other", ""]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'all:{127.0.0.1}' => 0 }, 'one bucket');



=== TEST 5: a place without a list has its parent's, one with a list only that
--- http_config
ratelimit_limit a rate=1r/d capacity=50;
ratelimit_limit b rate=1r/d capacity=40;
ratelimit_limit c rate=1r/d capacity=30;
ratelimit a;
--- config
location /http { empty_gif; }
location /own {
    ratelimit b c;
    location /own/same { empty_gif; }
    location /own/less { ratelimit c; empty_gif; }
    empty_gif;
}
--- request eval
["GET /http", "GET /own", "GET /own/same", "GET /own/less"]
--- response_headers eval
["X-Name: a\nX-RateLimit-Remaining: 49",
 "X-Name: c\nX-RateLimit-Remaining: 29",
 "X-Name: c\nX-RateLimit-Remaining: 28",
 "X-Name: c\nX-RateLimit-Remaining: 27"]
--- after
::is_deeply($::redis->contents, { 'a:{127.0.0.1}' => 49, 'b:{127.0.0.1}' => 38,
                                'c:{127.0.0.1}' => 27 }, 'the buckets');



=== TEST 6: off takes over nothing from the parent, of either form
--- http_config
ratelimit_limit named rate=1r/d capacity=50;
--- config
ratelimit named;
ratelimit_rate 1r/d;
ratelimit_capacity 40;
ratelimit_key $arg_k;
location /both { empty_gif; }
location /off {
    ratelimit off;
    location /off/below { empty_gif; }
    location /off/again { ratelimit named; empty_gif; }
    empty_gif;
}
location /fresh { ratelimit off; ratelimit_rate 5r/d; empty_gif; }
--- request eval
["GET /both?k=x", "GET /off?k=x", "GET /off/below?k=x", "GET /off/again?k=x",
 "GET /fresh?k=x"]
--- response_headers eval
["X-Name: localhost\nX-RateLimit-Remaining: 39",
 "X-Status: \n!X-RateLimit-Limit",
 "X-Status: \n!X-RateLimit-Limit",
 "X-Name: named\nX-RateLimit-Remaining: 48",
 "X-Name: localhost/fresh\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4"]
--- after
::is_deeply($::redis->contents, { 'named:{127.0.0.1}' => 48,
                                'localhost:{x}' => 39,
                                'localhost/fresh:{127.0.0.1}' => 4 },
            'neither key nor capacity of the parent');



=== TEST 7: the simple and the named form stand together
--- http_config
ratelimit_limit a rate=1r/d capacity=3;
--- config
location /t { ratelimit a; ratelimit_rate 1r/d; ratelimit_capacity 2;
              empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Name: localhost/t\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-Name: localhost/t\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Name: localhost/t\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'a:{127.0.0.1}' => 1,
                                'localhost/t:{127.0.0.1}' => 0 },
            'the rejected request took from neither');



=== TEST 8: a place that names limits keeps the simple one of its parent
--- http_config
ratelimit_limit a rate=1r/d capacity=50;
ratelimit_limit b rate=1r/d capacity=40;
--- config
ratelimit a;
ratelimit_rate 1r/d;
ratelimit_capacity 60;
location /b { ratelimit b; empty_gif; }
location /own { ratelimit_capacity 5; empty_gif; }
--- request eval
["GET /b", "GET /own"]
--- response_headers eval
["X-Name: b\nX-RateLimit-Remaining: 39",
 "X-Name: localhost/own\nX-RateLimit-Remaining: 4"]
--- after
::is_deeply($::redis->contents, { 'localhost:{127.0.0.1}' => 59,
                                'b:{127.0.0.1}' => 39,
                                'localhost/own:{127.0.0.1}' => 4,
                                'a:{127.0.0.1}' => 49 }, 'the buckets');



=== TEST 9: a named limit never shares a key with a simple one
--- http_config
ratelimit_limit localhost rate=1r/d capacity=50;
ratelimit_limit http      rate=1r/d capacity=40;
ratelimit_rate 1r/d;
ratelimit_capacity 30;
--- config
ratelimit_capacity 20;
location /t { ratelimit localhost http; empty_gif; }
--- request
GET /t
--- response_headers
X-Name: localhost#2
X-RateLimit-Remaining: 19
--- after
::is_deeply($::redis->contents, { 'localhost:{127.0.0.1}' => 49,
                                'http:{127.0.0.1}' => 39,
                                'localhost#2:{127.0.0.1}' => 19 }, 'the keys');



=== TEST 10: a prefix of the place makes other keys of the same limits
--- http_config
ratelimit_limit a rate=1r/d capacity=5;
ratelimit_limit b rate=1r/d capacity=6;
--- config
ratelimit a b;
location /a { empty_gif; }
location /b { ratelimit_prefix ratelimit:test; empty_gif; }
--- request eval
["GET /a", "GET /b"]
--- response_headers eval
["X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 4"]
--- after
::is_deeply($::redis->contents, { 'a:{127.0.0.1}' => 4, 'b:{127.0.0.1}' => 5,
                                'test:a:{127.0.0.1}' => 4,
                                'test:b:{127.0.0.1}' => 5 }, 'the keys');



=== TEST 11: a bucket and a window: whichever denies, neither is taken from
--- http_config
ratelimit_limit bucket key=$arg_b rate=1r/d capacity=$arg_bc;
ratelimit_limit window key=$arg_w capacity=2 window=1h
                       algorithm=sliding_window_log;
--- config
location /t { ratelimit bucket window; empty_gif; }
--- request eval
["GET /t?b=1&bc=9&w=1", "GET /t?b=1&bc=9&w=1", "GET /t?b=1&bc=9&w=1",
 "GET /t?b=2&bc=1&w=2", "GET /t?b=2&bc=1&w=2"]
--- error_code eval
[200, 200, 429, 200, 429]
--- response_headers eval
["X-Name: window\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-Name: window\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Name: window\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Name: bucket\nX-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0",
 "X-Name: bucket\nX-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'bucket:{1}' => 7, 'window:{1}' => '2 entries',
                                'bucket:{2}' => 0, 'window:{2}' => '1 entries'
                              }, 'what was taken');



=== TEST 12: an empty key skips its own limit and no other
--- http_config
ratelimit_limit user key=$arg_u rate=1r/d capacity=1;
ratelimit_limit ip   key=$arg_i rate=1r/d capacity=5;
--- config
location /t { ratelimit user ip; empty_gif; }
--- request eval
["GET /t?i=1", "GET /t?i=1", "GET /t?u=1", "GET /t?u=1&i=1", "GET /t",
 "GET /t?i=1"]
--- error_code eval
[200, 200, 200, 429, 200, 200]
--- response_headers eval
["X-Name: ip\nX-Status: PASSED\nX-RateLimit-Remaining: 4",
 "X-Name: ip\nX-Status: PASSED\nX-RateLimit-Remaining: 3",
 "X-Name: user\nX-Status: PASSED\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-Status: REJECTED\nX-RateLimit-Remaining: 0",
 "X-Status: SKIPPED\n!X-RateLimit-Limit",
 "X-Name: ip\nX-Status: PASSED\nX-RateLimit-Remaining: 2"]
--- after
::is_deeply($::redis->contents, { 'user:{1}' => 0, 'ip:{1}' => 2 }, 'the keys');
::is_deeply(::decisions(), ['SKIPPED user', 'PASSED ip', 'SKIPPED user',
                            'PASSED ip', 'PASSED user', 'SKIPPED ip',
                            'REJECTED user', 'SKIPPED user', 'SKIPPED ip',
                            'SKIPPED user', 'PASSED ip'], 'the log');



=== TEST 13: plans: capacity, rate, window and cost from maps
--- http_config
map $arg_plan $burst  { default 1;    basic 5;    pro 50; }
map $arg_plan $refill { default 1r/d; basic 1r/h; pro 1r/m; }
map $arg_plan $quota  { default 10;   basic 20;   pro 1000; }
map $arg_plan $span   { default 1d;   basic 1h;   pro 1m; }
map $arg_kind $price  { default 1;    search 5; }
ratelimit_limit burst key=$arg_plan capacity=$burst rate=$refill cost=$price;
ratelimit_limit quota key=$arg_plan capacity=$quota window=$span
                      algorithm=sliding_window_log;
--- config
location /t { ratelimit burst quota; ratelimit_headers draft-8; empty_gif; }
--- request eval
["GET /t?plan=free", "GET /t?plan=free", "GET /t?plan=basic",
 "GET /t?plan=basic&kind=search", "GET /t?plan=pro&kind=search"]
--- error_code eval
[200, 429, 200, 429, 200]
--- response_headers eval
["RateLimit-Policy: \"burst\";q=1;w=86400, \"quota\";q=10;w=86400\n"
 . "X-Name: burst",
 "X-Name: burst\nX-Status: REJECTED",
 "RateLimit-Policy: \"burst\";q=5;w=18000, \"quota\";q=20;w=3600\n"
 . "X-Name: burst",
 "X-Name: burst\nX-Status: REJECTED",
 "RateLimit-Policy: \"burst\";q=50;w=3000, \"quota\";q=1000;w=60\n"
 . "X-Name: burst"]
--- after
::is_deeply($::redis->contents, {
    'burst:{free}'  => 0,  'quota:{free}'  => '1 entries',
    'burst:{basic}' => 4,  'quota:{basic}' => '1 entries',
    'burst:{pro}'   => 45, 'quota:{pro}'   => '1 entries',
}, 'what was taken');



=== TEST 14: an unknown plan is what the map says: its default, or an error
--- http_config
map $arg_plan $burst  { default 1; pro 50; }
map $arg_plan $strict { pro 50; }
ratelimit_limit known  key=$arg_u capacity=$burst  rate=1r/d;
ratelimit_limit strict key=$arg_u capacity=$strict rate=1r/d;
ratelimit_silence map_default;
--- config
location /known  { ratelimit known; empty_gif; }
location /open   { ratelimit strict; empty_gif; }
location /closed { ratelimit strict; ratelimit_on_error closed; empty_gif; }
--- request eval
["GET /known?u=1&plan=gold", "GET /known?u=1&plan=gold",
 "GET /open?u=1&plan=gold", "GET /closed?u=1&plan=gold",
 "GET /closed?u=1&plan=pro"]
--- error_code eval
[200, 429, 200, 503, 200]
--- response_headers eval
["X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1",
 "$::invalid!X-RateLimit-Limit\nX-Name: strict\nX-Status: DEGRADED",
 "$::invalid!X-RateLimit-Limit\nX-Name: strict\nX-Status: DEGRADED",
 "X-RateLimit-Limit: 50\nX-RateLimit-Remaining: 49"]
--- after
my $log = ::slurp($Test::Nginx::Util::ErrLogFile);
::like($log, qr/\[error\] .* invalid value "" of "ratelimit_capacity" for limit "strict": it must be a whole number/,
       'the log says what is wrong');



=== TEST 15: a change of plan applies to the live bucket and gives no fresh one
--- http_config
ratelimit_limit a key=$arg_k capacity=$arg_c rate=$arg_r;
ratelimit_limit b key=other rate=1r/d capacity=1000000;
--- config
location /one { ratelimit a; empty_gif; }
location /two { ratelimit a b; empty_gif; }
--- request eval
["GET /one?k=1&c=10&r=1r/d", "GET /one?k=1&c=10&r=1r/d",
 "GET /one?k=1&c=5&r=1r/d",  "GET /one?k=1&c=100&r=1r/h",
 "GET /two?k=2&c=10&r=1r/d", "GET /two?k=2&c=10&r=1r/d",
 "GET /two?k=2&c=5&r=1r/d",  "GET /two?k=2&c=100&r=1r/h"]
--- response_headers eval
["X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 8",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 3",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9",
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 8",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 3"]
--- after
::is_deeply($::redis->contents, { 'a:{1}' => 3, 'a:{2}' => 3,
                                'b:{other}' => 999996 }, 'the buckets');



=== TEST 16: a change of plan applies to the live window
--- http_config
ratelimit_limit a key=$arg_k capacity=$arg_c window=$arg_w
                  algorithm=sliding_window_log;
--- config
location /t { ratelimit a; empty_gif; }
--- request eval
["GET /t?k=1&c=2&w=1h", "GET /t?k=1&c=2&w=1h", "GET /t?k=1&c=2&w=1h",
 "GET /t?k=1&c=4&w=1d", "GET /t?k=1&c=4&w=1d", "GET /t?k=1&c=4&w=1d",
 "GET /t?k=1&c=1&w=1h"]
--- error_code eval
[200, 200, 429, 200, 200, 429, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 4\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 4\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 4\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'a:{1}' => '4 entries' }, 'the window');



=== TEST 17: the location's cost counts for limits that have none of their own
--- http_config
ratelimit_limit plain rate=1r/d capacity=100;
ratelimit_limit own   rate=1r/d capacity=100 cost=2;
ratelimit_limit by    rate=1r/d capacity=100 cost=$arg_c;
--- config
ratelimit plain own by;
location /none { empty_gif; }
location /ten  { ratelimit_cost 10; empty_gif; }
location /arg  { ratelimit_cost $arg_n; empty_gif; }
--- request eval
["GET /none?c=1", "GET /ten?c=3", "GET /arg?c=5&n=20"]
--- response_headers eval
["X-Name: own\nX-RateLimit-Remaining: 98",
 "X-Name: plain\nX-RateLimit-Remaining: 89",
 "X-Name: plain\nX-RateLimit-Remaining: 69"]
--- after
::is_deeply($::redis->contents, { 'plain:{127.0.0.1}' => 69,
                                'own:{127.0.0.1}' => 94,
                                'by:{127.0.0.1}' => 91 }, 'the buckets');



=== TEST 18: open: a limit without a legal value leaves the others in force
--- http_config
ratelimit_limit bad  rate=1r/d capacity=$arg_c;
ratelimit_limit good rate=1r/d capacity=2;
--- config
location /t { ratelimit bad good; empty_gif; }
--- request eval
["GET /t?c=x", "GET /t?c=x", "GET /t?c=x"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["${main::invalid}X-Name: good\nX-Status: DEGRADED\nX-RateLimit-Limit: 2\n"
 . "X-RateLimit-Remaining: 1",
 "${main::invalid}X-Name: good\nX-Status: DEGRADED\nX-RateLimit-Limit: 2\n"
 . "X-RateLimit-Remaining: 0",
 "!X-RateLimit-Degraded\nX-Name: good\nX-Status: REJECTED\n"
 . "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'good:{127.0.0.1}' => 0 }, 'the buckets');



=== TEST 19: closed: such a request takes nothing from the others
--- http_config
ratelimit_limit bad  rate=1r/d capacity=$arg_c;
ratelimit_limit good rate=1r/d capacity=2;
--- config
ratelimit_on_error closed;
location /first { ratelimit bad good; empty_gif; }
location /last  { ratelimit good bad; empty_gif; }
--- request eval
["GET /first?c=x", "GET /last?c=x", "GET /last?c=5"]
--- error_code eval
[503, 503, 200]
--- response_headers eval
["${main::invalid}X-Name: bad\nX-Status: DEGRADED\nRetry-After: 1\n"
 . "!X-RateLimit-Limit",
 "${main::invalid}X-Name: bad\nX-Status: DEGRADED\nRetry-After: 1\n"
 . "!X-RateLimit-Limit",
 "X-Name: good\nX-Status: PASSED\nX-RateLimit-Remaining: 1"]
--- after
::is_deeply($::redis->contents, { 'good:{127.0.0.1}' => 1,
                                'bad:{127.0.0.1}' => 4 }, 'the buckets');



=== TEST 20: an illegal value is no matter where the key is empty
--- http_config
ratelimit_limit bad key=$arg_k rate=1r/d capacity=$arg_c;
--- config
location /t { ratelimit bad; ratelimit_on_error closed; empty_gif; }
--- request eval
["GET /t?c=x", "GET /t?c=x&k=1"]
--- error_code eval
[200, 503]
--- response_headers eval
["X-Status: SKIPPED\n!X-RateLimit-Degraded", "X-Status: DEGRADED"]



=== TEST 21: when passed, the limit with the smallest part left speaks
--- http_config
ratelimit_limit big   rate=1r/d capacity=1000 cost=$arg_big;
ratelimit_limit small rate=1r/d capacity=10 cost=$arg_small;
--- config
location /t { ratelimit big small; empty_gif; }
--- request eval
["GET /t?big=1&small=1", "GET /t?big=599&small=1", "GET /t?big=1&small=8"]
--- response_headers eval
["X-Name: small\nX-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9",
 "X-Name: big\nX-RateLimit-Limit: 1000\nX-RateLimit-Remaining: 400",
 "X-Name: small\nX-RateLimit-Limit: 10\nX-RateLimit-Remaining: 0"]



=== TEST 22: when several reject, the one with the longest wait speaks
--- http_config
ratelimit_limit hour rate=1r/h capacity=1;
ratelimit_limit day  rate=1r/d capacity=1;
ratelimit_limit min  rate=1r/m capacity=1;
--- config
location /t { ratelimit hour day min; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers_like eval
["X-Status: PASSED", "X-Name: day\nRetry-After: 8\\d{4}"]



=== TEST 23: sixteen limits guard one place with one call
--- http_config eval
CORE::join '', map { "ratelimit_limit l$_ rate=1r/d capacity=${\(100 - $_)};\n" }
         1 .. 16
--- config eval
'location /t { ratelimit ' . CORE::join(' ', map { "l$_" } 1 .. 16) . '; empty_gif; }'
--- request
GET /t
--- response_headers
X-Name: l16
X-RateLimit-Limit: 84
X-RateLimit-Remaining: 83
--- after
::is_deeply($::redis->contents,
            { map { ("l$_:{127.0.0.1}" => 99 - $_) } 1 .. 16 }, 'the buckets');



=== TEST 24: what an algorithm has no use for may have any value
--- config
ratelimit_on_error closed;
ratelimit_rate $arg_r;
ratelimit_window $arg_w;
ratelimit_refill_interval $arg_i;
location /window { ratelimit_algorithm sliding_window_log;
                   ratelimit_capacity 5; empty_gif; }
location /bucket { ratelimit_capacity 5; empty_gif; }
location /gcra { ratelimit_algorithm gcra; ratelimit_capacity 5; empty_gif; }
--- request eval
["GET /window?w=1h", "GET /window", "GET /bucket?r=1r/d&i=1s",
 "GET /bucket?r=1r/d&w=1h", "GET /bucket?i=1s", "GET /gcra?r=1r/d",
 "GET /gcra?i=1s"]
--- error_code eval
[200, 503, 200, 503, 503, 200, 503]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Remaining: 4",
 "${main::invalid}X-Status: DEGRADED",
 "X-Status: PASSED\nX-RateLimit-Remaining: 4",
 "${main::invalid}X-Status: DEGRADED", "${main::invalid}X-Status: DEGRADED",
 "X-Status: PASSED\nX-RateLimit-Remaining: 4",
 "${main::invalid}X-Status: DEGRADED"]



=== TEST 25: gcra beside other limits: all are taken, or none
--- http_config
ratelimit_limit user   key=$arg_u rate=1r/d capacity=3 algorithm=gcra;
ratelimit_limit ip     key=$arg_i rate=1r/d capacity=2;
ratelimit_limit global key=$arg_g capacity=9 algorithm=sliding_window_log;
--- config
location /t { ratelimit user ip global; empty_gif; }
--- request eval
["GET /t?u=a&i=a&g=a", "GET /t?u=a&i=a&g=a", "GET /t?u=a&i=a&g=a",
 "GET /t?u=a&i=b&g=a", "GET /t?u=a&i=b&g=a", "GET /t?i=b&g=a"]
--- error_code eval
[200, 200, 429, 200, 429, 200]
--- response_headers eval
["X-Name: ip\nX-RateLimit-Remaining: 1", "X-Name: ip\nX-RateLimit-Remaining: 0",
 "X-Name: ip\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-RateLimit-Remaining: 0",
 "X-Name: ip\nX-RateLimit-Remaining: 0"]
--- after
::is($::redis->cmd('TYPE', 'ratelimit:user:{a}'), 'string', 'one number');
::is($::redis->cmd('ZCARD', 'ratelimit:global:{a}'), 4, 'four have passed');
