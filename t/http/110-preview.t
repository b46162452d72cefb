# ratelimit_preview: reports what is left, takes nothing and rejects nobody; and
# the cache that spares Redis, which no request that consumes ever sees.
#
# The rate of all limits is too slow to refill during a test, so "Remaining"
# counts what was taken.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

our $redis = start_redis();
our $other = start_redis(name => 'B');

our $degraded = "X-Status: DEGRADED\nX-RateLimit-Degraded: true\n!Retry-After\n";


# Nothing is cached unless a block says so.

patient_blocks(<<'EOC');
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;
    add_header X-Source $ratelimit_source always;
EOC

add_block_preprocessor(sub {
    my ($block) = @_;
    my $http = $block->http_config // '';

    $redis->reset_calls;

    $block->set_value('http_config', 'ratelimit_preview_cache off;'
                                     . $http)
        unless ($http . $block->config) =~ /preview_cache/;
});


no_root_location();
run_tests();


# ---- what takes more than one process, or a Redis that stops

my $PATIENT = 'ratelimit_redis_timeout 10s; ratelimit_redis_connect_timeout 10s;';

sub start {
    my ($server, %opt) = @_;

    my $shards = delete $opt{shards} // $redis->addr;
    my $http = delete $opt{http} // '';

    return RateLimit::Nginx->start(
        workers => 2,
        %opt,
        conf    => "ratelimit_shards $shards; $PATIENT $http"
                   . 'add_header X-Status $ratelimit_status always;'
                   . 'add_header X-Source $ratelimit_source always;'
                   . 'add_header X-Pid $pid always;',
        server  => "$server location / { empty_gif; }",
    );
}


# "200 redis 7": what became of a request.

sub ask {
    my ($nginx, $path) = @_;

    my $r = $nginx->get($path);

    return join ' ', $r->{status} || $r->{error},
                     $r->{headers}{'x-source'} // '-',
                     $r->{headers}{'x-ratelimit-remaining'} // '-';
}


my $BOTH = <<'EOC';
    ratelimit_key      $arg_k;
    ratelimit_capacity 10;
    ratelimit_rate     1r/d;
    ratelimit_preview_cache 60s;

    location /quota { ratelimit_preview on; empty_gif; }
EOC


subtest 'all workers share the cache' => sub {
    my $nginx = start($BOTH);
    my %pids;

    $redis->cmd('FLUSHALL');
    $redis->reset_calls;

    is ask($nginx, '/quota?k=a'), '200 redis 10', 'the first one asks';

    # as many at once as it takes to keep both busy

    ok wait_until(sub {
        my $load = RateLimit::Load::run(port => $nginx->port, keep => 1,
                                        connections => 20, requests => 100,
                                        path => '/quota?k=a', timeout => 30);

        $pids{ $_->{headers}{'x-pid'} }++ for $load->responses;
        keys %pids == 2;
    }, 30), 'both workers have answered';

    is $redis->calls, 1, 'and none of them asked again';

    $nginx->finish;
};


subtest 'a reload keeps what is cached, a zone of another size does not' => sub {
    my $nginx = start($BOTH, http => 'ratelimit_zone 1m;');

    $redis->cmd('FLUSHALL');

    is ask($nginx, '/quota?k=a'), '200 redis 10', 'asked';
    is ask($nginx, '/quota?k=a'), '200 cache 10', 'cached';

    ok $nginx->reload, 'reload';
    ok $nginx->old_workers_gone(10), 'the old workers left';
    is ask($nginx, '/quota?k=a'), '200 cache 10', 'still cached';

    ok $nginx->kill_worker('KILL'), 'a worker is killed';
    is ask($nginx, '/quota?k=a'), '200 cache 10', 'still cached';

    ok $nginx->reload(conf => $nginx->{opt}{http} =~ s/zone 1m/zone 2m/r),
       'reload, with a larger zone';
    ok $nginx->old_workers_gone(10), 'the old workers left';
    is ask($nginx, '/quota?k=a'), '200 redis 10', 'asked again';
    is ask($nginx, '/quota?k=a'), '200 cache 10', 'and cached';

    ok $nginx->reload(server => 'location / { empty_gif; }'),
       'reload, nothing is limited any more';
    ok $nginx->old_workers_gone(10), 'the old workers left';
    is ask($nginx, '/quota?k=a'), '200 - -', 'not limited';

    $nginx->finish(except => qr/exited on signal 9/);
};


subtest 'a tiny zone forgets, and nobody notices' => sub {
    my $nginx = start($BOTH, http => 'ratelimit_zone 64k;');
    my $n = 600;

    $redis->cmd('FLUSHALL');
    $redis->reset_calls;

    # nodes of many sizes

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 4, requests => $n, keep => 1,
        path => sub { "/quota?k=$_[0]" . 'x' x (37 * $_[0] % 250) },
        timeout => 60);

    is_deeply $load->statuses, { 200 => $n }, 'all are answered';
    is scalar(grep { $_->{headers}{'x-ratelimit-remaining'} != 10 }
              $load->responses), 0, 'with the right number';
    is scalar(grep { $_->{headers}{'x-source'} eq 'redis' }
              $load->responses), $n, 'by Redis';
    cmp_ok $redis->calls, '<=', $n, 'in a call each, or fewer';
    cmp_ok $redis->calls, '>=', $n / 4, 'as no more than four came together';

    is ask($nginx, '/quota?k=1' . 'x' x 37), '200 redis 10',
       'the first one was forgotten';
    is ask($nginx, '/quota?k=1' . 'x' x 37), '200 cache 10',
       'and is remembered now';
    is $nginx->log_count(qr/no memory|\[(?:error|warn)\]/), 0,
       'nothing in the log';

    $nginx->finish;
};


subtest 'a full zone forgets those first that nobody asks for' => sub {
    my $nginx = start($BOTH, http => 'ratelimit_zone 64k;', workers => 1);
    my $often = 0;

    $redis->cmd('FLUSHALL');

    is ask($nginx, '/quota?k=often'), '200 redis 10', 'one that is asked for';

    for my $i (1 .. 1000) {
        ask($nginx, "/quota?k=rare$i");
        $often++ if $i % 10 == 0
                    && ask($nginx, '/quota?k=often') eq '200 cache 10';
    }

    is $often, 100, 'stays';
    is ask($nginx, '/quota?k=rare1'), '200 redis 10', 'the others go';

    $nginx->finish;
};


subtest 'no Redis: a preview passes, whatever ratelimit_on_error says' => sub {
    my $mine = RateLimit::Redis->start;
    my $nginx = start("$BOTH location /closed { ratelimit_preview on;
                       ratelimit_on_error closed; empty_gif; }",
                      http   => 'ratelimit_on_error open;',
                      shards => $mine->addr);

    is ask($nginx, '/quota?k=a'), '200 redis 10', 'asked';

    $mine->stop;

    is ask($nginx, '/quota?k=a'), '200 cache 10', 'what is cached is shown';

    for my $path ('/quota?k=b', '/closed?k=b') {
        my $r = $nginx->get($path);

        is $r->{status}, 200, "$path passes";
        is $r->{headers}{'x-status'}, 'DEGRADED', 'and says that nothing';
        is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'is known';
        is $r->{headers}{$_}, undef, "no $_"
            for qw(x-ratelimit-limit x-ratelimit-remaining retry-after);
    }

    $mine->start;
    ok wait_until(sub { ask($nginx, '/quota?k=b') eq '200 redis 10' }, 20),
       'a failure is not cached';

    $nginx->finish;
};


subtest 'no Redis, local: a preview shows what this machine would grant' => sub {
    my $mine = RateLimit::Redis->start;
    my $nginx = start($BOTH, http => 'ratelimit_local_share 1/2;',
                      shards => $mine->addr);

    is ask($nginx, '/quota?k=a'), '200 redis 10', 'asked';

    $mine->stop;

    is ask($nginx, '/quota?k=a'), '200 cache 10', 'what is cached is shown';

    for my $left (5, 4) {
        for (1, 2) {
            my $r = $nginx->get('/quota?k=b');
            my $h = $r->{headers};

            is $r->{status}, 200, 'passes';
            is $h->{'x-status'}, 'DEGRADED', 'degraded';
            is $h->{'x-ratelimit-degraded'}, 'true', 'and says so';
            is "$h->{'x-source'} $h->{'x-ratelimit-remaining'} of "
               . $h->{'x-ratelimit-limit'}, "local $left of 5", 'the share';
            is $h->{'retry-after'}, undef, 'nobody is told to wait';
        }

        is ask($nginx, '/t?k=b'), '200 local ' . ($left - 1), 'one is taken';
    }

    ask($nginx, '/t?k=b') for 1 .. 3;
    is ask($nginx, '/t?k=b'), '429 local 0', 'nothing is left';
    is ask($nginx, '/quota?k=b'), '200 local 0', 'which a preview shows';

    $mine->start;
    ok wait_until(sub { ask($nginx, '/quota?k=b') eq '200 redis 10' }, 20),
       'what this machine said is not cached';

    $nginx->finish;
};


# ---- sizes of the zone

{
    my $zone = sub {
        my ($text, $http) = @_;

        return RateLimit::Nginx->test_config(
            conf   => "ratelimit_shards 127.0.0.1:6379; $text",
            server => 'location /t { ratelimit_rate 1r/s; '
                      . 'ratelimit_preview on; }');
    };

    for my $size (qw(0 1k 63k -1 abc 1x 10mb 1g), "''") {
        my ($code, $output) = $zone->("ratelimit_zone $size;");
        my $value = $size =~ s/'//gr;

        is($code, 1, "ratelimit_zone $size: nginx -t fails");
        like($output, qr/\[emerg\].* invalid value "\Q$value\E" in "ratelimit_zone": it must be a size of at least \d+k, for example "10m"/,
             'and says why');
    }

    for my $size (qw(64k 1m 10M 100m)) {
        my ($code, $output) = $zone->("ratelimit_zone $size;");

        is($code, 0, "ratelimit_zone $size") or diag($output);
    }

    my ($code, $output) = $zone->('ratelimit_zone 1m; ratelimit_zone 1m;');

    is($code, 1, 'ratelimit_zone twice');
    like($output, qr/"ratelimit_zone" directive is duplicate/, 'says so');

    ($code, $output) = RateLimit::Nginx->test_config(
        server => 'ratelimit_zone 1m;');

    is($code, 1, 'ratelimit_zone in a server');
    like($output, qr/"ratelimit_zone" directive is not allowed here/,
         'says so');
}

__DATA__

=== TEST 1: a preview of what nobody has used makes no bucket
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota", "GET /quota"]
--- response_headers eval
["X-Status: PASSED\nX-Source: redis\nX-RateLimit-Limit: 5\n"
 . "X-RateLimit-Remaining: 5\n!Retry-After",
 "X-Status: PASSED\nX-Source: redis\nX-RateLimit-Limit: 5\n"
 . "X-RateLimit-Remaining: 5\n!Retry-After"]
--- after
::is_deeply($::redis->contents, {}, 'Redis is empty');



=== TEST 2: a preview tells what is left, and takes nothing
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 3;
location /api { empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /api", "GET /quota", "GET /quota", "GET /api", "GET /quota", "GET /api",
 "GET /quota", "GET /api", "GET /quota"]
--- error_code eval
[200, 200, 200, 200, 200, 200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 2",
 "X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED_PREVIEW\n!Retry-After\n"
 . "!X-RateLimit-Retry-After",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED_PREVIEW\n!Retry-After\n"
 . "!X-RateLimit-Retry-After"]
--- after
::is_deeply($::redis->contents, { 'localhost:{127.0.0.1}' => 0 }, 'the bucket');
::is(scalar(() = ::slurp($Test::Nginx::Util::ErrLogFile)
                 =~ /ratelimit REJECTED,/g), 1, 'the log tells of one rejection');



=== TEST 3: a preview leaves the time to live of a bucket as it is
--- config
location /quota { ratelimit_rate 1r/h; ratelimit_capacity 10;
                  ratelimit_preview on; empty_gif; }
--- init
my $key = 'ratelimit:localhost/quota:{127.0.0.1}';
my ($s, $us) = @{ $::redis->cmd('TIME') };
$::redis->bucket_set($key, tokens => '4',
                     lastRefill => $s * 1_000_000 + $us);
$::redis->cmd('PEXPIRE', $key, 100_000);
$::before = $::redis->cmd('DUMP', $key);
--- request
GET /quota
--- response_headers
X-RateLimit-Remaining: 4
--- after
my $key = 'ratelimit:localhost/quota:{127.0.0.1}';
::is($::redis->cmd('DUMP', $key), $::before, 'the bucket');
::cmp_ok($::redis->cmd('PTTL', $key), '<=', 100_000, 'its time to live');



=== TEST 4: a quota page in JSON
--- http_config
ratelimit_limit api key=$arg_user rate=1r/h capacity=100;
--- config
location /api { ratelimit api; empty_gif; }
location = /quota {
    ratelimit api;
    ratelimit_preview on;
    default_type application/json;
    try_files /none @quota;
}
location @quota {
    default_type application/json;
    return 200 '{"limit":$ratelimit_limit,"remaining":$ratelimit_remaining,"reset":$ratelimit_reset}';
}
--- request eval
["GET /quota?user=a", "GET /api?user=a", "GET /quota?user=a",
 "GET /quota?user=b"]
--- response_headers eval
["Content-Type: application/json\nX-RateLimit-Remaining: 100",
 "X-RateLimit-Remaining: 99",
 "Content-Type: application/json\nX-RateLimit-Remaining: 99\nX-Name: api",
 "Content-Type: application/json\nX-RateLimit-Remaining: 100"]
--- response_body_like eval
['^\{"limit":100,"remaining":100,"reset":\d{10}\}$', '^GIF',
 '^\{"limit":100,"remaining":99,"reset":\d{10}\}$',
 '^\{"limit":100,"remaining":100,"reset":\d{10}\}$']
--- after
::is_deeply($::redis->contents, { 'api:{a}' => 99 }, 'nothing was taken');



=== TEST 5: the reset of a preview is when the bucket will be full
--- config
ratelimit_rate 1r/h;
ratelimit_capacity 10;
location /api { ratelimit_cost 4; empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota", "GET /api"]
--- response_headers eval
["X-RateLimit-Remaining: 10", "X-RateLimit-Remaining: 6"]
--- after
my $r = RateLimit::Load::get(Test::Nginx::Util::server_port(), '/quota');
::is($r->{headers}{'x-ratelimit-remaining'}, 6, 'four are missing');
::cmp_ok(abs($r->{headers}{'x-ratelimit-reset'} - time - 4 * 3600), '<', 600,
         'and will be back in four hours');



=== TEST 6: a window log: what is left, and when the oldest entry leaves
--- config
ratelimit_algorithm sliding_window_log;
ratelimit_capacity 3;
ratelimit_window 1h;
location /api { empty_gif; }
location /quota { ratelimit_preview on; ratelimit_headers draft-8; empty_gif; }
--- request eval
["GET /quota", "GET /api", "GET /api", "GET /quota", "GET /api", "GET /quota",
 "GET /api", "GET /quota"]
--- error_code eval
[200, 200, 200, 200, 200, 200, 429, 200]
--- response_headers_like eval
['RateLimit: "localhost";r=3;t=0', "", "", 'RateLimit: "localhost";r=1;t=3[56]\d\d',
 "", 'RateLimit: "localhost";r=0;t=3[56]\d\d', "X-Status: REJECTED",
 'RateLimit: "localhost";r=0;t=3[56]\d\d']
--- after
::is_deeply($::redis->contents, { 'localhost:{127.0.0.1}' => '3 entries' },
            'the window');



=== TEST 7: a preview of several limits: the tightest speaks, all are listed
--- http_config
ratelimit_limit user key=$arg_u rate=1r/d capacity=10;
ratelimit_limit all  key=all capacity=100 window=1h
                     algorithm=sliding_window_log;
--- config
ratelimit user all;
location /api { empty_gif; }
location /quota { ratelimit_preview on; ratelimit_headers draft-8; empty_gif; }
--- request eval
["GET /quota?u=1", "GET /api?u=1", "GET /quota?u=1", "GET /quota?u=2"]
--- response_headers_like eval
['RateLimit-Policy: "user";q=10;w=864000, "all";q=100;w=3600', "X-Name: user",
 'RateLimit: "user";r=9;t=86[34]\d\d', 'RateLimit: "all";r=99;t=3[56]\d\d']
--- after
::is_deeply($::redis->contents, { 'user:{1}' => 9, 'all:{all}' => '1 entries' },
            'nothing else was taken');
::is($::redis->calls, 4, 'one call each');



=== TEST 8: a cost is no matter to a preview, also one that can never pass
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
ratelimit_cost $arg_c;
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota?c=1", "GET /quota?c=5", "GET /quota?c=6"]
--- response_headers eval
[("X-Status: PASSED\nX-RateLimit-Limit: 5\nX-RateLimit-Remaining: 5") x 3]
--- after
::is_deeply($::redis->contents, {}, 'nothing was taken');



=== TEST 9: a place below may take again
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
ratelimit_preview on;
location /quota { empty_gif; }
location /api { ratelimit_preview off; empty_gif; }
--- request eval
["GET /quota", "GET /api", "GET /quota"]
--- response_headers eval
["X-RateLimit-Remaining: 5", "X-RateLimit-Remaining: 4",
 "X-RateLimit-Remaining: 4"]



=== TEST 10: an illegal value is shown, and turns nobody away
--- http_config
ratelimit_limit bad  rate=1r/d capacity=$arg_c;
ratelimit_limit good rate=1r/d capacity=5;
--- config
ratelimit_on_error closed;
ratelimit_preview on;
location /bad { ratelimit bad; empty_gif; }
location /both { ratelimit bad good; empty_gif; }
--- request eval
["GET /bad?c=x", "GET /both?c=x"]
--- response_headers eval
["${main::degraded}X-RateLimit-Degraded-Reason: invalid_limit\n"
 . "!X-RateLimit-Limit",
 "${main::degraded}X-Name: good\nX-RateLimit-Limit: 5\n"
 . "X-RateLimit-Remaining: 5"]
--- after
::is_deeply($::redis->contents, {}, 'nothing was taken');



=== TEST 11: an empty key is not limited, and so has no preview
--- config
location /quota { ratelimit_key $arg_k; ratelimit_rate 1r/d;
                  ratelimit_preview on; empty_gif; }
--- request
GET /quota
--- response_headers
X-Status: SKIPPED
!X-RateLimit-Limit
--- after
::is($::redis->calls, 0, 'nobody was asked');



=== TEST 12: a preview in a dry run is a preview
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 1;
ratelimit_dry_run on;
ratelimit_headers legacy dry_run;
location /api { empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /api", "GET /quota", "GET /api"]
--- response_headers eval
["X-Status: PASSED", "X-Status: REJECTED_PREVIEW\nX-RateLimit-Remaining: 0",
 "X-Status: REJECTED_DRY_RUN"]



=== TEST 13: by default Redis is asked once for many previews
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
ratelimit_preview_cache 60s;
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota", "GET /quota", "GET /quota", "GET /quota"]
--- response_headers eval
["X-Source: redis\nX-RateLimit-Remaining: 5",
 ("X-Source: cache\nX-Status: PASSED\nX-RateLimit-Limit: 5\n"
  . "X-RateLimit-Remaining: 5") x 3]
--- after
::is($::redis->calls, 1, 'Redis was asked once');



=== TEST 14: off and 0 ask every time
--- config
ratelimit_rate 1r/d;
ratelimit_preview on;
location /off { ratelimit_preview_cache off; empty_gif; }
location /zero { ratelimit_preview_cache 0; empty_gif; }
--- request eval
["GET /off", "GET /off", "GET /zero", "GET /zero"]
--- response_headers eval
[("X-Source: redis") x 4]
--- after
::is($::redis->calls, 4, 'Redis was asked every time');



=== TEST 15: a place without a cache takes nothing from the cache of others
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /api { empty_gif; }
location /long { ratelimit_preview on; ratelimit_preview_cache 60s; empty_gif; }
location /off { ratelimit_preview on; ratelimit_preview_cache off; empty_gif; }
--- request eval
["GET /long", "GET /api", "GET /off", "GET /long"]
--- response_headers eval
["X-Source: redis\nX-RateLimit-Remaining: 5",
 "X-Source: redis\nX-RateLimit-Remaining: 4",
 "X-Source: redis\nX-RateLimit-Remaining: 4",
 "X-Source: cache\nX-RateLimit-Remaining: 5"]



=== TEST 16: each place says how old an answer may be
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /api { empty_gif; }
location /long { ratelimit_preview on; ratelimit_preview_cache 60s; empty_gif; }
location /short { ratelimit_preview on; ratelimit_preview_cache 20ms;
                  empty_gif; }
--- request eval
["GET /long", "GET /api"]
--- response_headers eval
["X-RateLimit-Remaining: 5", "X-RateLimit-Remaining: 4"]
--- after
my $port = Test::Nginx::Util::server_port();
my $left = sub {
    RateLimit::Load::get($port, $_[0])->{headers}{'x-ratelimit-remaining'}
};
::is($left->('/long'), 5, 'long: as it was');
::ok(::wait_until(sub { $left->('/short') == 4 }), 'short: as it is, soon');



=== TEST 17: at the end of the time of one place an answer is too old for another
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 5;
location /api { empty_gif; }
location /long { ratelimit_preview on; ratelimit_preview_cache 4s; empty_gif; }
location /short { ratelimit_preview on; ratelimit_preview_cache 2s;
                  empty_gif; }
--- request eval
["GET /long", "GET /api"]
--- response_headers eval
["X-RateLimit-Remaining: 5", "X-RateLimit-Remaining: 4"]
--- after
my $port = Test::Nginx::Util::server_port();

select undef, undef, undef, 2.5;

::is(RateLimit::Load::get($port, '/short')->{headers}{'x-ratelimit-remaining'},
     4, 'it is asked for anew');



=== TEST 18: requests that consume never see the cache
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 1;
ratelimit_preview_cache 60s;
location /api { ratelimit_deny_cache off; empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota", "GET /api", "GET /quota", "GET /api", "GET /quota"]
--- error_code eval
[200, 200, 200, 429, 200]
--- response_headers eval
["X-Source: redis\nX-RateLimit-Remaining: 1",
 "X-Source: redis\nX-RateLimit-Remaining: 0",
 "X-Source: cache\nX-RateLimit-Remaining: 1",
 "X-Source: redis\nX-RateLimit-Remaining: 0",
 "X-Source: cache\nX-RateLimit-Remaining: 1"]



=== TEST 19: a cached emptiness rejects nobody
--- config
ratelimit_rate 1r/d;
ratelimit_capacity 1;
ratelimit_preview_cache 60s;
location /api { ratelimit_deny_cache off; empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /api", "GET /quota", "GET /quota"]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-Source: redis\nX-RateLimit-Remaining: 0",
 "X-Source: cache\nX-Status: REJECTED_PREVIEW\nX-RateLimit-Remaining: 0\n!Retry-After"]
--- after
$::redis->cmd('FLUSHALL');
my $r = RateLimit::Load::get(Test::Nginx::Util::server_port(), '/api');
::is($r->{status}, 200, 'passed');
::is($r->{headers}{'x-ratelimit-remaining'}, 0, 'and taken');



=== TEST 20: every key, limit, prefix and server has a cache entry of its own
--- http_config
ratelimit_limit a key=$arg_k rate=1r/d capacity=5;
ratelimit_limit b key=$arg_k rate=1r/d capacity=6;
ratelimit_preview_cache 60s;
--- config
ratelimit a;
location /api { empty_gif; }
location /quota {
    ratelimit_preview on;
    location /quota/b { ratelimit b; empty_gif; }
    location /quota/prefix { ratelimit_prefix other; empty_gif; }
    location /quota/server { ratelimit_shards $TEST_NGINX_REDIS_B_ADDR;
                             empty_gif; }
    location /quota/database { ratelimit_redis_database 1; empty_gif; }
    empty_gif;
}
--- request eval
["GET /api?k=1", "GET /quota?k=1", "GET /quota?k=2", "GET /quota/b?k=1",
 "GET /quota/prefix?k=1", "GET /quota/server?k=1", "GET /quota/database?k=1",
 "GET /quota?k=1"]
--- response_headers eval
["X-RateLimit-Remaining: 4",
 "X-Source: redis\nX-RateLimit-Remaining: 4",
 "X-Source: redis\nX-RateLimit-Remaining: 5",
 "X-Source: redis\nX-RateLimit-Remaining: 6",
 "X-Source: redis\nX-RateLimit-Remaining: 5",
 "X-Source: redis\nX-RateLimit-Remaining: 5",
 "X-Source: redis\nX-RateLimit-Remaining: 5",
 "X-Source: cache\nX-RateLimit-Remaining: 4"]



=== TEST 21: what is not cached is asked for, beside what is
--- http_config
ratelimit_limit all  key=all rate=1r/d capacity=10;
ratelimit_limit user key=$arg_u rate=1r/d capacity=10;
ratelimit_preview_cache 60s;
--- config
ratelimit all user;
ratelimit_cost 5;
location /api { ratelimit_cost $arg_c; empty_gif; }
location /user { ratelimit user; ratelimit_cost $arg_c; empty_gif; }
location /quota { ratelimit_preview on; empty_gif; }
--- request eval
["GET /api?u=1&c=7", "GET /user?u=2&c=10", "GET /quota?u=3", "GET /quota?u=2",
 "GET /quota?u=2"]
--- response_headers eval
["X-Name: all\nX-RateLimit-Remaining: 3",
 "X-Name: user\nX-RateLimit-Remaining: 0",
 "X-Name: all\nX-Source: redis\nX-RateLimit-Remaining: 3",
 "X-Name: user\nX-Source: redis\nX-RateLimit-Remaining: 0",
 "X-Name: user\nX-Source: cache\nX-RateLimit-Remaining: 0"]



=== TEST 22: a change of plan shows in what is cached
--- http_config
ratelimit_limit plan key=$arg_k rate=1r/d capacity=$arg_c;
ratelimit_preview_cache 60s;
--- config
location /quota { ratelimit plan; ratelimit_preview on; empty_gif; }
--- request eval
["GET /quota?k=1&c=10", "GET /quota?k=1&c=5", "GET /quota?k=1&c=20"]
--- response_headers eval
["X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 10",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 5",
 "X-RateLimit-Limit: 20"]
