# Dry runs, of a place and of a named limit: everything is evaluated, logged and
# taken, nobody is rejected, and enforced limits beside them never notice.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts what was taken.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

our $redis = start_redis();

our $silent = "!Retry-After\n!X-RateLimit-Retry-After\n";


patient_blocks(<<'EOC');
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;
    add_header X-Source $ratelimit_source always;
EOC

add_block_preprocessor(sub {
    my ($block) = @_;
    my $http = $block->http_config // '';

    $block->set_value('http_config', 'ratelimit_headers legacy dry_run; '
                                     . $http)
        unless $http =~ /ratelimit_headers/;
});


# The decisions in the log, each with its level and the name of its limit.

sub decisions {
    return [map { /\[(\w+)\].* ratelimit ([A-Z_]+), limit: "([^"]*)"/
                  ? "$1 $2 $3" : () }
            split /\n/, slurp($Test::Nginx::Util::ErrLogFile)];
}


no_root_location();
run_tests();


subtest 'on several shards: what a shadow took is given back' => sub {
    my @shards = start_shards(3);
    my ($one, $two);

    # two keys that live apart

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
            ratelimit_shards $ENV{TEST_NGINX_SHARDS};
            ratelimit_deny_cache off;
            ratelimit_redis_timeout 10s;
            ratelimit_silence long_timeout;
            ratelimit_redis_connect_timeout 10s;
            ratelimit_limit enforced key=\$arg_e rate=1r/d capacity=2;
            ratelimit_limit shadow   key=\$arg_s rate=1r/d capacity=\$arg_c
                                     dry_run;
            add_header X-Shard \$ratelimit_shard always;
            add_header X-Status \$ratelimit_status always;
EOC
        server  => <<'EOC',
            location /both { ratelimit shadow enforced; empty_gif; }
            location /one  { ratelimit enforced; ratelimit_preview on;
                             empty_gif; }
EOC
    );

    my $get = sub { $nginx->get($_[0]) };
    my %shard = map {
        $_ => $get->("/one?e=$_")->{headers}{'x-shard'}
    } 'a' .. 'z';

    ($one) = 'a';
    ($two) = grep { $shard{$_} ne $shard{a} } 'b' .. 'z';
    ok defined $two, 'keys on two shards';

    my $both = "/both?e=$one&s=$two";

    is_deeply [map { $get->("$both&c=9")->{status} } 1 .. 3], [200, 200, 429],
              'the enforced limit passes two and rejects the third';
    ok wait_until(sub {
        my $state = { map { %{ $_->contents } } @shards };
        return $state->{"shadow:{$two}"} == 7
               && $state->{"enforced:{$one}"} == 0;
    }, 10), 'of which the shadow keeps nothing';

    # the other way round: the shadow denies

    my $r = $get->("/both?e=x&s=$two&c=1");
    is $r->{status}, 200, 'the second limit has a client of its own';
    $_->cmd('FLUSHALL') for @shards;

    my @r = map { $get->("$both&c=1") } 1, 2;
    is_deeply [map { $_->{status} } @r], [200, 200],
              'a shadow that denies rejects nobody';
    is_deeply [map { $_->{headers}{'x-ratelimit-remaining'} } @r], [1, 0],
              'and takes nothing back from the others';
    is_deeply { map { %{ $_->contents } } @shards },
              { "shadow:{$two}" => 0, "enforced:{$one}" => 0 }, 'the buckets';

    $nginx->finish;
};

__DATA__

=== TEST 1: a place in a dry run takes, logs and rejects nobody
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 2; ratelimit_dry_run on;
              ratelimit_log_level notice; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\n$::silent",
 "X-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n$::silent",
 ("X-Status: REJECTED_DRY_RUN\nX-Name: localhost/t\nX-RateLimit-Limit: 2\n"
  . "X-RateLimit-Remaining: 0\n$::silent") x 2]
--- after
::is_deeply($::redis->contents, { 'localhost/t:{127.0.0.1}' => 0 }, 'the bucket');
::is_deeply(::decisions(), ['info PASSED localhost/t',
                            'info PASSED localhost/t',
                            'notice REJECTED_DRY_RUN localhost/t',
                            'notice REJECTED_DRY_RUN localhost/t'], 'the log');



=== TEST 2: a place in a dry run has no limit that is enforced
--- http_config
ratelimit_limit a rate=1r/d capacity=1;
ratelimit_limit b rate=1r/d capacity=9;
--- config
ratelimit_dry_run on;
location /t { ratelimit a b; empty_gif; }
location /enforced { ratelimit a; ratelimit_dry_run off; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /enforced"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Name: a\nX-RateLimit-Remaining: 0",
 "X-Status: REJECTED_DRY_RUN\nX-Name: a\nX-RateLimit-Remaining: 0\n$::silent",
 "X-Status: REJECTED\nX-Name: a"]
--- after
::is_deeply($::redis->contents, { 'a:{127.0.0.1}' => 0, 'b:{127.0.0.1}' => 7 },
            'each of them counts for itself');



=== TEST 3: a shadow limit alone is a dry run
--- http_config
ratelimit_limit shadow rate=1r/d capacity=1 dry_run;
--- config
location /t { ratelimit shadow; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["X-Status: PASSED\nX-Name: shadow\nX-RateLimit-Remaining: 0\n$::silent",
 "X-Status: REJECTED_DRY_RUN\nX-Name: shadow\nX-RateLimit-Remaining: 0\n"
 . $::silent]
--- after
::is_deeply(::decisions(), ['info PASSED shadow',
                            'error REJECTED_DRY_RUN shadow'], 'the log');



=== TEST 4: a shadow that denies disturbs no enforced limit
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced rate=1r/d capacity=4;
ratelimit_limit window   algorithm=sliding_window_log capacity=9 window=1h;
--- config
location /first { ratelimit shadow enforced window; empty_gif; }
location /last  { ratelimit enforced window shadow; empty_gif; }
--- request eval
["GET /first", "GET /first", "GET /last", "GET /last", "GET /last"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Name: enforced\nX-RateLimit-Remaining: 3",
 "X-Status: PASSED\nX-Name: enforced\nX-RateLimit-Remaining: 2",
 "X-Status: PASSED\nX-Name: enforced\nX-RateLimit-Remaining: 1",
 "X-Status: PASSED\nX-Name: enforced\nX-RateLimit-Remaining: 0",
 "X-Status: REJECTED\nX-Name: enforced\nX-RateLimit-Remaining: 0"]
--- after
::is_deeply($::redis->contents, { 'shadow:{127.0.0.1}' => 0,
                                'enforced:{127.0.0.1}' => 0,
                                'window:{127.0.0.1}' => '4 entries' },
            'what was taken');
::is_deeply([grep { /shadow/ } @{ ::decisions() }],
            ['info PASSED shadow', ('error REJECTED_DRY_RUN shadow') x 4],
            'the log tells what it would have done');



=== TEST 5: a shadow takes nothing when an enforced limit rejects
--- http_config
ratelimit_limit shadow rate=1r/d capacity=9 dry_run;
ratelimit_limit log    algorithm=sliding_window_log capacity=9 window=1h
                       dry_run;
ratelimit_limit enforced rate=1r/d capacity=2;
--- config
location /t { ratelimit shadow log enforced; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429, 429]
--- response_headers eval
["X-Name: enforced\nX-RateLimit-Remaining: 1",
 "X-Name: enforced\nX-RateLimit-Remaining: 0",
 ("X-Name: enforced\nX-Status: REJECTED\nX-RateLimit-Limit: 2") x 2]
--- after
::is_deeply($::redis->contents, { 'shadow:{127.0.0.1}' => 7,
                                'log:{127.0.0.1}' => '2 entries',
                                'enforced:{127.0.0.1}' => 0 }, 'what was taken');



=== TEST 6: beside enforced limits a shadow speaks in no header and no variable
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced rate=1r/d capacity=4;
--- config
location /t { ratelimit shadow enforced; ratelimit_headers legacy draft-8;
              empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
[("X-Name: enforced\nX-RateLimit-Limit: 4\n"
  . "RateLimit-Policy: \"enforced\";q=4;w=345600") x 2]
--- raw_response_headers_unlike eval
["shadow", "shadow"]



=== TEST 7: where enforced limits are skipped, a shadow speaks
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced key=$arg_k rate=1r/d capacity=4;
--- config
location /t { ratelimit enforced shadow; ratelimit_headers draft-8 dry_run;
              empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t?k=1"]
--- response_headers eval
["X-Name: shadow\nX-Status: PASSED\n"
 . "RateLimit-Policy: \"shadow\";q=1;w=86400",
 "X-Name: shadow\nX-Status: REJECTED_DRY_RUN\n"
 . "RateLimit-Policy: \"shadow\";q=1;w=86400\n$::silent",
 "X-Name: enforced\nX-Status: PASSED\n"
 . "RateLimit-Policy: \"enforced\";q=4;w=345600"]



=== TEST 8: of several shadows, one that would reject speaks, whatever the others
--- http_config
ratelimit_limit poor key=$arg_p rate=1r/d capacity=10 cost=1 dry_run;
ratelimit_limit rich rate=1r/h capacity=10 cost=$arg_c dry_run;
--- config
location /before { ratelimit poor rich; empty_gif; }
location /after  { ratelimit rich poor; empty_gif; }
location /poor   { ratelimit poor; ratelimit_dry_run off; empty_gif; }
--- init
my ($s, $us) = @{ $::redis->cmd('TIME') };
$::redis->bucket_set("ratelimit:poor:{$_}", tokens => '1',
                     lastRefill => $s * 1_000_000 + $us) for 1, 2;
$::redis->cmd('PEXPIRE', "ratelimit:poor:{$_}", 800_000_000) for 1, 2;
--- request eval
["GET /before?c=7", "GET /before?c=4&p=1", "GET /after?c=4&p=2"]
--- response_headers eval
["X-Name: rich\nX-Status: PASSED\nX-RateLimit-Remaining: 3",
 "X-Name: rich\nX-Status: REJECTED_DRY_RUN\nX-RateLimit-Remaining: 3",
 "X-Name: rich\nX-Status: REJECTED_DRY_RUN\nX-RateLimit-Remaining: 3"]



=== TEST 9: of several shadows that would reject, the longest wait speaks
--- http_config
ratelimit_limit hour rate=1r/h capacity=1 dry_run;
ratelimit_limit day  rate=1r/d capacity=1 dry_run;
ratelimit_limit min  rate=1r/m capacity=1 dry_run;
--- config
location /t { ratelimit hour day min; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["X-Status: PASSED", "X-Name: day\nX-Status: REJECTED_DRY_RUN\n$::silent"]



=== TEST 10: variables tell how long a dry run would have had the client wait
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 1; ratelimit_dry_run on;
              add_header X-Wait "$ratelimit_status $ratelimit_retry_after";
              empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers_like eval
["X-Wait: PASSED\\s*", "X-Wait: REJECTED_DRY_RUN 3[56]\\d\\d"]
--- raw_response_headers_unlike eval
["Retry-After", "Retry-After"]



=== TEST 11: a shadow with a cost above its capacity rejects nobody
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=5 cost=$arg_c dry_run;
ratelimit_limit enforced rate=1r/d capacity=9;
--- config
location /alone { ratelimit shadow; empty_gif; }
location /both  { ratelimit shadow enforced; empty_gif; }
--- request eval
["GET /alone?c=6", "GET /both?c=6", "GET /both?c=5"]
--- response_headers eval
["X-Name: shadow\nX-Status: REJECTED_DRY_RUN\n$::silent",
 "X-Name: enforced\nX-Status: PASSED\nX-RateLimit-Remaining: 8\n$::silent",
 "X-Name: enforced\nX-Status: PASSED\nX-RateLimit-Remaining: 7\n$::silent"]
--- after
::is_deeply($::redis->contents, { 'shadow:{127.0.0.1}' => 0,
                                'enforced:{127.0.0.1}' => 7 },
            'what was taken');



=== TEST 12: an illegal value of a shadow is logged, and no matter to the others
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=$arg_c dry_run;
ratelimit_limit enforced rate=1r/d capacity=9;
--- config
ratelimit_on_error closed;
location /both  { ratelimit shadow enforced; empty_gif; }
location /alone { ratelimit shadow; empty_gif; }
location /place { ratelimit_rate 1r/d; ratelimit_capacity $arg_c;
                  ratelimit_dry_run on; empty_gif; }
--- request eval
["GET /both?c=x", "GET /alone?c=x", "GET /place?c=x"]
--- response_headers eval
["X-Name: enforced\nX-Status: PASSED\nX-RateLimit-Remaining: 8\n"
 . "!X-RateLimit-Degraded",
 "X-Name: shadow\nX-Status: DEGRADED\nX-RateLimit-Degraded: true\n"
 . "X-Source: open\n!X-RateLimit-Limit\n$::silent",
 "X-Status: DEGRADED\nX-RateLimit-Degraded: true\nX-Source: open\n$::silent"]
--- after
my $log = ::slurp($Test::Nginx::Util::ErrLogFile);
::like($log, qr/\[error\].* invalid value "x" of "ratelimit_capacity" for limit "shadow"/,
       'the log');



=== TEST 13: closed: no Redis is no reason to reject for a dry run
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=9 dry_run;
ratelimit_limit enforced rate=1r/d capacity=9;
--- config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
ratelimit_on_error closed;
location /shadow { ratelimit shadow; empty_gif; }
location /place  { ratelimit enforced; ratelimit_dry_run on; empty_gif; }
location /both   { ratelimit shadow enforced; empty_gif; }
--- request eval
["GET /shadow", "GET /place", "GET /both"]
--- error_code eval
[200, 200, 503]
--- response_headers eval
["X-Name: shadow\nX-Status: DEGRADED\nX-RateLimit-Degraded: true\n$::silent",
 "X-Name: enforced\nX-Status: DEGRADED\nX-RateLimit-Degraded: true\n$::silent",
 "X-Name: enforced\nX-Status: DEGRADED\nX-RateLimit-Degraded: true\n"
 . "Retry-After: 1"]
--- after
::is_deeply([grep { !/^info DEGRADED/ } @{ ::decisions() }], [],
            'nothing but failures in the log');



=== TEST 14: where enforced limits are skipped, the failure of a shadow is told
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=9 dry_run;
ratelimit_limit enforced rate=1r/d capacity=9 key=$arg_k;
--- config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
location /both   { ratelimit enforced shadow; empty_gif; }
location /closed { ratelimit enforced shadow; ratelimit_on_error closed;
                   empty_gif; }
--- request eval
["GET /both", "GET /both?k=a", "GET /closed", "GET /closed?k=a"]
--- error_code eval
[200, 200, 200, 503]
--- response_headers eval
["X-Name: shadow\nX-Status: DEGRADED\nX-Source: local\n"
 . "X-RateLimit-Degraded: true\n$::silent",
 "X-Name: enforced\nX-Status: DEGRADED\nX-Source: local\n"
 . "X-RateLimit-Degraded: true\n$::silent",
 "X-Name: shadow\nX-Status: DEGRADED\nX-Source: open\n"
 . "X-RateLimit-Degraded: true\n$::silent",
 "X-Name: enforced\nX-Status: DEGRADED\nX-Source: closed\n"
 . "X-RateLimit-Degraded: true\nRetry-After: 1"]



=== TEST 15: a shadow has no part in the body of a rejection
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced rate=1r/h capacity=1;
--- config
location /json    { ratelimit shadow enforced; ratelimit_body json;
                    empty_gif; }
location /problem { ratelimit shadow enforced; ratelimit_body problem;
                    empty_gif; }
--- request eval
["GET /json", "GET /json", "GET /problem"]
--- error_code eval
[200, 429, 429]
--- response_headers eval
["X-Name: enforced", "X-Name: enforced", "X-Name: enforced"]
--- response_body_like eval
["^GIF", '^\{"error":"rate_limit_exceeded","blocking_limit":"enforced",',
 '"violated-policies":\["enforced"\]\}$']



=== TEST 16: a roll-out begins with a shadow
--- http_config
ratelimit_limit new rate=1r/d capacity=2 dry_run;
ratelimit_limit old rate=1r/d capacity=9;
--- config
location /t { ratelimit old new; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["X-Name: old\nX-RateLimit-Remaining: 8",
 "X-Name: old\nX-RateLimit-Remaining: 7"]



=== TEST 17: enforced, the limit goes on where its shadow was
--- keep_redis
--- http_config
ratelimit_limit new rate=1r/d capacity=2;
ratelimit_limit old rate=1r/d capacity=9;
--- config
location /t { ratelimit old new; empty_gif; }
--- request
GET /t
--- error_code: 429
--- response_headers
X-Name: new
X-RateLimit-Limit: 2



=== TEST 18: a place whose limits are all in a dry run tells clients nothing
--- http_config
ratelimit_headers legacy;
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced key=$arg_k rate=1r/d capacity=4;
--- config
location /place   { ratelimit enforced; ratelimit_key x; ratelimit_rate 1r/d;
                    ratelimit_dry_run on; empty_gif; }
location /shadow  { ratelimit shadow; empty_gif; }
location /skipped { ratelimit enforced shadow;
                    ratelimit_headers legacy draft-8; empty_gif; }
--- request eval
["GET /place", "GET /place", "GET /shadow", "GET /skipped",
 "GET /skipped?k=1"]
--- response_headers eval
["X-Status: PASSED", "X-Status: REJECTED_DRY_RUN", "X-Status: PASSED",
 "X-Status: REJECTED_DRY_RUN",
 "X-Status: PASSED\nX-RateLimit-Limit: 4"]
--- raw_response_headers_unlike eval
[("(?i)ratelimit-|retry-after") x 4, "shadow"]



=== TEST 19: nor of a failure
--- http_config
ratelimit_headers legacy;
--- config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
location /t { ratelimit_rate 1r/d; ratelimit_dry_run on; empty_gif; }
--- request
GET /t
--- response_headers
X-Status: DEGRADED
--- raw_response_headers_unlike: (?i)ratelimit-|retry-after
