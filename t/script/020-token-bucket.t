# The token bucket from end to end: nginx, the script, and the state that it
# leaves in Redis.
#
# Time is not waited for: what a bucket looks like after an hour is written
# into Redis with a time of one hour ago.  Rates are slow enough that the
# duration of a test does not matter.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Load;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';

use Digest::SHA qw(sha1_hex);
use Time::HiRes ();

our $redis = start_redis();
our $NAME = 'ratelimit:localhost/t:';


patient_blocks(<<'EOC');
    add_header X-Status $ratelimit_status always;
EOC


# Redis's clock, in microseconds.

sub now {
    my ($seconds, $us) = @{ $redis->cmd('TIME') };

    return $seconds * 1_000_000 + $us;
}


# A bucket that had so many tokens so many seconds ago.

sub seed {
    my ($key, $tokens, $ago) = @_;

    $redis->bucket_set("$NAME\{$key}", tokens => $tokens,
                       lastRefill => sprintf '%.0f', now() - $ago * 1_000_000);
}


# It goes in so many milliseconds, and says so.

sub expire {
    my ($key, $ms) = @_;

    $redis->cmd('PEXPIRE', "$NAME\{$key}", $ms);
    $redis->bucket_set("$NAME\{$key}", expires => goes($key));
}


# When it goes, in milliseconds.

sub goes {
    my ($key) = @_;

    return sprintf '%.0f', now() / 1000 + $redis->cmd('PTTL', "$NAME\{$key}");
}


sub bucket {
    my ($key) = @_;

    return $redis->bucket("$NAME\{$key}") // {};
}


run_tests();

__DATA__

=== TEST 1: as many requests pass as the bucket holds, the next is rejected
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 3; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 200, 429, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2\nX-Status: PASSED",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1\nX-Status: PASSED",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0\nX-Status: PASSED",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0\nX-Status: REJECTED\n"
  . "Retry-After: 86[34]\\d\\d") x 2]



=== TEST 2: the state can be read in redis-cli, and expires
--- config
location /t { ratelimit_rate 1r/m; ratelimit_capacity 5; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 4
--- after
my $key = "$::NAME\{127.0.0.1}";
my $bucket = ::bucket('127.0.0.1');
::is_deeply($::redis->cmd('KEYS', '*'), [$key], 'one key');
::is($::redis->cmd('TYPE', $key), 'hash', 'a hash');
::is(join(' ', sort keys %$bucket), 'expires lastRefill tokens',
     'its fields');
::is($bucket->{tokens}, '4', 'the tokens');
::like($bucket->{lastRefill}, qr/^\d{16}$/, 'the time, in microseconds');
::cmp_ok(abs(::now() - $bucket->{lastRefill}), '<', 60e6, 'is now');
::cmp_ok($::redis->cmd('PTTL', $key), '>', 240_000, 'kept until it is full');
::cmp_ok($::redis->cmd('PTTL', $key), '<=', 301_000, 'and not for ever');
::like($bucket->{expires}, qr/^\d{13}$/, 'when it goes, in milliseconds');
::cmp_ok(abs(::goes('127.0.0.1') - $bucket->{expires}), '<', 10_000,
         'is right');



=== TEST 3: a denied request takes nothing and changes nothing
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 5; ratelimit_cost 3;
              empty_gif; }
--- init
::seed('127.0.0.1', '2.500000', 60);
::expire('127.0.0.1', 10_000_000);
$::before = ::bucket('127.0.0.1');
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[429, 429, 429]
--- response_headers_like eval
[("X-RateLimit-Remaining: 2\nRetry-After: 17\\d\\d") x 3]
--- after
::is_deeply(::bucket('127.0.0.1'), $::before, 'the bucket');
::cmp_ok($::redis->cmd('PTTL', "$::NAME\{127.0.0.1}"), '<=', 10_000_000,
         'its time to live');



=== TEST 4: a bucket refills with time
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 100; empty_gif; }
--- init
::seed('127.0.0.1', '0.250000', 36000);
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 9", "X-RateLimit-Remaining: 8"]
--- after
::like(::bucket('127.0.0.1')->{tokens}, qr/^8\.[2-9]/, 'fractions are kept');



=== TEST 5: a bucket never holds more than its capacity
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 3; empty_gif; }
--- init
::seed('127.0.0.1', '1', 86400);
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 6: a token is there when its time has passed, not before
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; empty_gif; }
--- init
::seed('early', '0', 86400 - 100);
::seed('late', '0', 86400);
::seed('half', '0.500000', 43200);
--- request eval
["GET /t?k=early", "GET /t?k=late", "GET /t?k=half"]
--- error_code eval
[429, 200, 200]
--- response_headers_like eval
["X-RateLimit-Remaining: 0\nRetry-After: (?:\\d\\d|10[01])",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 7: fractions of a rate are exact
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate $arg_r;
              ratelimit_capacity 10; empty_gif; }
--- init
::seed($_, '0', 7200) for qw(a b c d);
--- request eval
["GET /t?k=a&r=0.5r/h", "GET /t?k=b&r=0.75r/h", "GET /t?k=c&r=0.49r/h",
 "GET /t?k=d&r=0.041667r/m"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 4"]
--- after
::like(::bucket('a')->{tokens}, qr/^0(?:\.0|$)/, 'half a token an hour');
::like(::bucket('b')->{tokens}, qr/^0\.5/, 'three quarters of a token');
::like(::bucket('d')->{tokens}, qr/^4\.0/, 'a 24th of a token a minute');



=== TEST 8: 0r/s never refills, and promises nothing
--- config
location /t { ratelimit_rate 0r/s; ratelimit_capacity 2; empty_gif; }
--- init
::seed('127.0.0.1', '1.999999', 86400 * 365);
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n!X-RateLimit-Reset",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n!X-RateLimit-Reset\n"
 . "!Retry-After\n!X-RateLimit-Retry-After"]
--- after
::is(::bucket('127.0.0.1')->{tokens}, '0.999999', 'what is left');
::cmp_ok($::redis->cmd('TTL', "$::NAME\{127.0.0.1}"), '>', 364 * 86400,
         'kept for a year');



=== TEST 9: a slow bucket is kept until it is full
--- config
location /t { ratelimit_rate 0.000001r/d; ratelimit_capacity 9; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 8
--- after
::cmp_ok($::redis->cmd('TTL', "$::NAME\{127.0.0.1}"), '>', 99 * 365 * 86400,
         'time to live');



=== TEST 10: the fastest rate and the largest bucket
--- config
location /t { ratelimit_rate 1000000000r/s; ratelimit_capacity 1000000000;
              ratelimit_cost 100000; empty_gif; }
location /slow { ratelimit_rate 1r/d; ratelimit_capacity 1000000000;
                 ratelimit_cost 100000; empty_gif; }
--- request eval
["GET /slow", "GET /slow", "GET /t"]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-RateLimit-Limit: 1000000000\nX-RateLimit-Remaining: 999900000",
 "X-RateLimit-Limit: 1000000000\nX-RateLimit-Remaining: 999800000",
 "X-RateLimit-Limit: 1000000000\nX-RateLimit-Remaining: 999900000"]
--- after
::is(::bucket('127.0.0.1')->{tokens}, '999900000', 'the tokens');
::cmp_ok($::redis->cmd('PTTL', "$::NAME\{127.0.0.1}"), '>', 0, 'it expires');



=== TEST 11: a request costs what it costs, and a cheaper one may still pass
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 10;
              ratelimit_cost $arg_c; empty_gif; }
--- request eval
["GET /t?c=3", "GET /t?c=3", "GET /t?c=3", "GET /t?c=3", "GET /t?c=1",
 "GET /t?c=1"]
--- error_code eval
[200, 200, 200, 429, 200, 429]
--- response_headers_like eval
["X-RateLimit-Remaining: 7", "X-RateLimit-Remaining: 4",
 "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 1\nRetry-After: 17[0-2]\\d{3}",
 "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0\nRetry-After: 86[34]\\d\\d"]



=== TEST 12: a rejected client passes again when a token has come
--- config
location /t { ratelimit_rate 4r/s; ratelimit_capacity 1; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 0
--- after
my $port = $Test::Nginx::Util::ServerPort;
my $start;
::ok(::wait_until(sub {
    $start = Time::HiRes::time();
    RateLimit::Load::get($port, '/t')->{status} == 200;
}, 10), 'a token is taken');
::ok(::wait_until(sub {
    RateLimit::Load::get($port, '/t')->{status} == 200;
}, 10), 'and the next one');
::cmp_ok(Time::HiRes::time() - $start, '>=', 0.25, 'not before it is there');



=== TEST 13: methods don't matter
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 3;
              try_files /none @ok; }
location @ok { return 204; }
--- request eval
["GET /t", "HEAD /t", "POST /t\r\nbody", "DELETE /t"]
--- error_code eval
[204, 204, 204, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 14: keys may hold any byte
--- config
location /t { ratelimit_key $uri$http_x_key; ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t%0d%0a%20%22%27%5c%7b%7d%2a%3a%01%7f%ff",
 "GET /t%0d%0a%20%22%27%5c%7b%7d%2a%3a%01%7f%ff",
 "GET /t%0d%0a%20%22%27%5c%7b%7d%2a%3a%01%7f%fe", "GET /t"]
--- more_headers eval
["", "", "", "X-Key: \t\xc3\xa9\x80 \$9\r\n"]
--- error_code eval
[200, 429, 200, 200]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0") x 4]
--- after
my $odd = "/t\r\n \"'\\{}*:\x01\x7f";
::is_deeply([sort @{ $::redis->cmd('KEYS', '*') }],
            [sort map { "$::NAME\{$_}" } "$odd\xff", "$odd\xfe",
                                         "/t\xc3\xa9\x80 \$9"], 'the keys');



=== TEST 15: a binary key
--- config
location /t { ratelimit_key $binary_remote_addr; ratelimit_rate 1r/d;
              empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 2]
--- after
::is_deeply($::redis->cmd('KEYS', '*'), ["$::NAME\{\x7f\0\0\x01}"], 'the key');



=== TEST 16: a key of more than 256 bytes is replaced by its SHA-1
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; empty_gif; }
--- request eval
[map { "GET /t?k=$_" } 'a' x 256, 'a' x 257, 'a' x 257, 'a' x 256 . 'b',
                       'a' x 3000]
--- error_code eval
[200, 200, 429, 200, 200]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 5]
--- after
::is_deeply([sort @{ $::redis->cmd('KEYS', '*') }],
            [sort map { "$::NAME\{$_}" }
                  'a' x 256, map { 'sha1:' . Digest::SHA::sha1_hex($_) }
                                 'a' x 257, 'a' x 256 . 'b', 'a' x 3000],
            'the keys');



=== TEST 17: nobody can send the digest of another one's key as a key
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; empty_gif; }
--- request eval
[map { "GET /t?k=$_" }
     'a' x 257, Digest::SHA::sha1_hex('a' x 257),
     'sha1:' . Digest::SHA::sha1_hex('a' x 257), 'sha1:', 'SHA1:x']
--- error_code eval
[(200) x 5]
--- after
my $digest = 'sha1:' . Digest::SHA::sha1_hex('a' x 257);
::is_deeply([sort @{ $::redis->cmd('KEYS', '*') }],
            [sort map { "$::NAME\{$_}" }
                  $digest, substr($digest, 5), 'SHA1:x',
                  map { 'sha1:' . Digest::SHA::sha1_hex($_) }
                      $digest, 'sha1:'], 'the keys');



=== TEST 18: two locations never share a bucket by accident
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
location /t/2 { ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t/2", "GET /t/2"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 4]
--- after
::is_deeply([sort @{ $::redis->cmd('KEYS', '*') }],
            ['ratelimit:localhost/t/2:{127.0.0.1}',
             'ratelimit:localhost/t:{127.0.0.1}'], 'the keys');



=== TEST 19: a dry run takes and records, but never rejects
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 2; ratelimit_dry_run on;
              ratelimit_headers legacy dry_run;
              empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 1\nX-Status: PASSED",
 "X-RateLimit-Remaining: 0\nX-Status: PASSED",
 ("X-RateLimit-Remaining: 0\nX-Status: REJECTED_DRY_RUN\n!Retry-After\n"
  . "!X-RateLimit-Retry-After") x 2]
--- after
::is(int ::bucket('127.0.0.1')->{tokens}, 0, 'the tokens are taken');



=== TEST 20: the prefix comes first in every key
--- config
location /t { ratelimit_prefix app:prod; ratelimit_rate 1r/d; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 0
--- after
::is_deeply($::redis->cmd('KEYS', '*'), ['app:prod:localhost/t:{127.0.0.1}'],
            'the key');



=== TEST 21: a take leaves no bucket less time to live than it may need
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 2; empty_gif; }
--- init
::seed('127.0.0.1', '2', 0);
::expire('127.0.0.1', 60_000);
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 1
--- after
::cmp_ok($::redis->cmd('PTTL', "$::NAME\{127.0.0.1}"), '>', 7_000_000,
         'time to live');
::cmp_ok(abs(::goes('127.0.0.1') - ::bucket('127.0.0.1')->{expires}),
         '<', 10_000, 'and it says so');



=== TEST 22: a bucket from the future neither locks out nor refills
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/h; ratelimit_capacity 5;
              empty_gif; }
--- init
::seed('some', '2', -86400);
::seed('none', '0.500000', -86400);
--- request eval
["GET /t?k=some", "GET /t?k=none"]
--- error_code eval
[200, 429]
--- response_headers_like eval
["X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0\nRetry-After: 1[78]\\d\\d"]
--- after
for my $key (qw(some none)) {
    ::cmp_ok(::bucket($key)->{lastRefill}, '<=', ::now(),
             "$key: goes on from now");
    ::cmp_ok($::redis->cmd('PTTL', "$::NAME\{$key}"), '>', 0, 'and expires');
}



=== TEST 23: a bucket that can't be read counts as full
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; ratelimit_capacity 3;
              empty_gif; }
--- init
$::redis->bucket_set("$::NAME\{a}", tokens => 'many', lastRefill => 'never');
$::redis->bucket_set("$::NAME\{b}", tokens => '0');
--- request eval
["GET /t?k=a", "GET /t?k=b"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Remaining: 2") x 2]
--- after
::is(::bucket($_)->{tokens}, '2', 'in order again') for qw(a b);



=== TEST 24: somebody else's data under the key are left alone
--- config
location /t { ratelimit_rate 1r/d; ratelimit_on_error closed; empty_gif; }
--- init
$::redis->cmd('SET', "$::NAME\{127.0.0.1}", 'mine');
--- request
GET /t
--- error_code: 503
--- response_headers
X-RateLimit-Degraded: true
X-RateLimit-Degraded-Reason: storage_unavailable
Retry-After: 1
--- error_log
answered "WRONGTYPE
--- no_error_log
[alert]
--- after
::is($::redis->cmd('GET', "$::NAME\{127.0.0.1}"), 'mine', 'the data');



=== TEST 25: over a unix socket
--- config
location /t { ratelimit_shards unix:$TEST_NGINX_REDIS_SOCK;
              ratelimit_rate 1r/d; ratelimit_capacity 2; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]
--- after
::like($::redis->cmd('CLIENT', 'LIST'),
       qr/\Q$ENV{TEST_NGINX_REDIS_SOCK}\E:0.* name=nginx-ratelimit\@/,
       'the connection');



=== TEST 26: a bucket that Redis lost is full again
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 2; ratelimit_cost 2;
              ratelimit_deny_cache off; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 0
--- after
my $port = $Test::Nginx::Util::ServerPort;
::is(RateLimit::Load::get($port, '/t')->{status}, 429, 'empty');
$::redis->cmd('FLUSHALL');
::is(RateLimit::Load::get($port, '/t')->{status}, 200, 'full');



=== TEST 27: a bucket of an older version says not when it goes, and may not go
--- config
location /t { ratelimit_key $arg_k$arg_r; ratelimit_rate $arg_r;
              ratelimit_capacity 5; ratelimit_cost 3; empty_gif; }
--- init
for my $rate ('1r/h', '1r/m') {
    ::seed("denied$rate", '2.500000', 0);
    ::seed("passed$rate", '4.500000', 0);
    $::redis->cmd('PEXPIRE', "$::NAME\{$_$rate}", 60_000) for qw(denied passed);
}
--- request eval
[map { ("GET /t?k=denied&r=$_", "GET /t?k=passed&r=$_") } '1r/h', '1r/m']
--- error_code eval
[429, 200, 429, 200]
--- response_headers eval
[("X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1") x 2]
--- after
for my $case (['1r/h', 18_000_000], ['1r/m', 300_000]) {
    my ($rate, $full) = @$case;
    for my $key ("denied$rate", "passed$rate") {
        ::cmp_ok($::redis->cmd('PTTL', "$::NAME\{$key}"), '>', $full - 60_000,
                 "$key: kept until it is full");
        ::cmp_ok(abs(::goes($key) - ::bucket($key)->{expires}), '<', 10_000,
                 'and says so');
    }
    ::is(::bucket("denied$rate")->{tokens}, '2.500000', 'nothing was taken');
}
