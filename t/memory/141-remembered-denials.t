# Remembered denials: who is denied by Redis is denied by nginx itself until the
# time that Redis gave, at most for "ratelimit_deny_cache".  Nobody is denied
# who would have passed, and nobody passes who would have been denied.
#
# Where calls are counted, Redis counts them.  What is remembered for a minute
# stays so while a test runs.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use Time::HiRes qw(time sleep);

use RateLimit::Answer qw(seen);
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until patience);

my ($redis, $second, @shards) = RateLimit::Redis->start_many(4);
my $spread = join ' ', map { $_->addr } @shards;
my $two = $second->addr;

my %CONFIG = (conf => <<"EOC", server => <<"EOS");
    ratelimit_key \$arg_k;
    ratelimit_rate 1r/h;

    ratelimit_limit ip key=\$arg_ip capacity=2 rate=1r/h;
    ratelimit_limit user key=\$arg_user capacity=5 rate=1r/h;
    ratelimit_limit all key=all capacity=100 window=1h
                    algorithm=sliding_window_log;
    ratelimit_limit trial key=\$arg_user capacity=1 rate=1r/h dry_run;

    map \$arg_plan \$plan { default 3; silver 5; gold 10; }
    map \$arg_c \$cost { default 1; ~. \$arg_c; }

    add_header X-Source \$ratelimit_source always;
    add_header X-Status \$ratelimit_status always;
    add_header X-Name \$ratelimit_name always;
    add_header X-Worker \$pid always;

    server {
        listen 127.0.0.1:%%PORT2%%;
        ratelimit_shards $two;

        location /ip { ratelimit ip; empty_gif; }
    }
EOC
        location /two { ratelimit_capacity 2; empty_gif; }
        location /other { ratelimit_capacity 2; empty_gif; }
        location /gcra { ratelimit_capacity 2; ratelimit_algorithm gcra;
                         empty_gif; }
        location /never { ratelimit_capacity 2; ratelimit_rate 0r/s;
                          empty_gif; }
        location /step { ratelimit_capacity 2; ratelimit_rate 1r/s;
                         ratelimit_refill_interval 2s; empty_gif; }
        location /minute { ratelimit_capacity 2; ratelimit_rate 1r/s;
                           ratelimit_refill_interval 60s;
                           ratelimit_deny_cache 10s; empty_gif; }
        location /daily { ratelimit_capacity 2; ratelimit_rate 1000r/d;
                          ratelimit_refill_interval 1d;
                          ratelimit_deny_cache 300ms; empty_gif; }
        location /off { ratelimit_capacity 2; ratelimit_deny_cache off;
                        empty_gif; }
        location /short { ratelimit_capacity 2; ratelimit_deny_cache 300ms;
                          empty_gif; }
        location /default { ratelimit_capacity 2; ratelimit_deny_cache on;
                            empty_gif; }
        location /fill { ratelimit_capacity 2; ratelimit_rate 2r/s;
                         empty_gif; }
        location /cost { ratelimit_capacity 10; ratelimit_rate 1r/s;
                         ratelimit_cost \$cost; empty_gif; }
        location /hour { ratelimit_capacity 10; ratelimit_cost \$cost;
                         empty_gif; }
        location /plan { ratelimit_capacity \$plan; empty_gif; }
        location /window { ratelimit_capacity 10; ratelimit_window 1h;
                           ratelimit_algorithm sliding_window_log;
                           ratelimit_cost \$cost; empty_gif; }
        location /slide { ratelimit_capacity 3; ratelimit_window 2s;
                          ratelimit_algorithm sliding_window_log; empty_gif; }
        location /dry { ratelimit_capacity 2; ratelimit_dry_run on;
                        empty_gif; }
        location /ip { ratelimit ip; empty_gif; }
        location /peek { ratelimit ip; ratelimit_preview on;
                         ratelimit_preview_cache off; empty_gif; }
        location /three { ratelimit ip user all; empty_gif; }
        location /trial { ratelimit user trial; empty_gif; }
        location /spread { ratelimit_shards $spread; ratelimit ip user;
                           empty_gif; }
        location /clock { ratelimit_capacity 2; ratelimit_clock nginx;
                          empty_gif; }

        location /on/bucket { ratelimit_capacity 20; ratelimit_rate 50r/s;
                              ratelimit_deny_cache on; empty_gif; }
        location /off/bucket { ratelimit_capacity 20; ratelimit_rate 50r/s;
                               ratelimit_deny_cache off; empty_gif; }
        location /on/gcra { ratelimit_capacity 20; ratelimit_rate 50r/s;
                            ratelimit_algorithm gcra;
                            ratelimit_deny_cache on; empty_gif; }
        location /off/gcra { ratelimit_capacity 20; ratelimit_rate 50r/s;
                             ratelimit_algorithm gcra;
                             ratelimit_deny_cache off; empty_gif; }
        location /on/window { ratelimit_capacity 50; ratelimit_window 1s;
                              ratelimit_algorithm sliding_window_log;
                              ratelimit_deny_cache on; empty_gif; }
        location /off/window { ratelimit_capacity 50; ratelimit_window 1s;
                               ratelimit_algorithm sliding_window_log;
                               ratelimit_deny_cache off; empty_gif; }
EOS

my @nginx = map { start_nginx($redis->addr, workers => 2, reuseport => 1,
                              deny_cache => '60s', %CONFIG) } 1, 2;
my $port = $nginx[0]->port;


# Who decided about each of these, and how: ["200 redis", "429 denied"].

sub ask { return [map { seen($nginx[0]->get($_)) } @_] }


subtest 'who is denied is denied here, and Redis is not asked' => sub {
    for my $place (qw(/two /gcra /never /clock)) {
        is_deeply ask(("$place?k=a") x 2), [('200 redis') x 2],
                  "$place: two pass";

        # the last one that passed said that nothing is left

        is $redis->calls_during(sub {
            is_deeply ask(("$place?k=a") x 20), [('429 denied') x 20],
                      'the others are denied here';
        }), 0, 'without a call';
    }

    is_deeply ask(('/window?k=a&c=5') x 4),
              [('200 redis') x 2, ('429 denied') x 2], 'windows alike';
    is_deeply ask('/two?k=b', '/other?k=a'), ['200 redis', '200 redis'],
              'another key or place is not concerned';
};


subtest 'all workers know a denial' => sub {
    my %workers;

    ask(('/two?k=all') x 2);

    is $redis->calls_during(sub {
        my $load = RateLimit::Load::run(
            port => $port, connections => 40, requests => 200, timeout => 60,
            keep => 1, path => '/two?k=all');

        is_deeply $load->statuses, { 429 => 200 }, 'all are denied';
        $workers{$_->{headers}{'x-worker'}} = 1 for $load->responses;
    }), 0, 'without a call';

    is scalar keys %workers, 2, 'by both workers';

    # another machine asks once for itself

    is $redis->calls_during(sub {
        is_deeply [map { seen(RateLimit::Load::get($nginx[1]->port,
                                                   '/two?k=all')) } 1 .. 3],
                  ['429 redis', ('429 denied') x 2], 'another nginx';
    }), 1, 'asks for itself';
};


subtest 'off: Redis is asked each time' => sub {
    is $redis->calls_during(sub {
        is_deeply ask(('/off?k=a') x 6),
                  [('200 redis') x 2, ('429 redis') x 4], 'by Redis';
    }), 6, 'six calls';
};


# Redis takes its time to get a call, so that one that is made a moment too
# early is denied once more.

subtest 'denied until there is a token, and no longer' => sub {
    my ($asked, $passed, $here) = (0, 0, 0);
    my $end = time + 4;
    my $start = $redis->time;

    my $calls = $redis->calls_during(sub {
        while (time < $end) {
            my $seen = seen($nginx[0]->get('/fill?k=a'));

            $asked++;
            $passed++ if $seen =~ /^200/;
            $here++ if $seen eq '429 denied';

            sleep 0.01;
        }
    });

    my $most = 2 + 2 * ($redis->time - $start);

    note "$asked requests, $passed passed, $calls calls";
    cmp_ok $passed, '<=', $most, 'never more than there were tokens';
    cmp_ok $passed, '>=', $most - 2, 'and none was missed';
    cmp_ok $here, '>', 50, 'most were denied here';
    cmp_ok $calls, '<=', 3 * $passed + 3, 'a call or two for a token';
};


subtest 'a window: denied until the oldest entry leaves' => sub {
    my ($passed, $here) = (0, 0);
    my @at;
    my $end = time + 5;

    my $calls = $redis->calls_during(sub {
        while (time < $end) {
            my $before = $redis->time;
            my $seen = seen($nginx[0]->get('/slide?k=a'));

            if ($seen =~ /^200/) {
                push @at, [$before, $redis->time];
            }

            $here++ if $seen eq '429 denied';
            sleep 0.01;
        }
    });

    $passed = @at;

    # the last one that passed and the third before it

    my $wrong = grep { $at[$_][1] - $at[$_ - 3][0] < 2 } 3 .. $#at;

    is $wrong, 0, 'never more than three in two seconds';
    cmp_ok $passed, '>=', 7, "$passed passed: as soon as they could";
    cmp_ok $here, '>', 50, 'most were denied here';
    cmp_ok $calls, '<=', 3 * $passed + 3, 'by few calls';
};


subtest 'a refill in steps: denied until the step is over' => sub {
    my @passed;
    my $end = time + 5;

    my $calls = $redis->calls_during(sub {
        while (time < $end) {
            my $r = $nginx[0]->get('/step?k=a');

            push @passed, $redis->time if $r->{status} == 200;
            sleep 0.01;
        }
    });

    # two at once, and two more every two seconds

    cmp_ok scalar @passed, '>=', 5, 'tokens come';
    cmp_ok scalar @passed, '<=', 7, 'in steps';
    cmp_ok $passed[2] - $passed[0], '>', 1.9, 'two seconds between two pairs';
    cmp_ok $passed[3] - $passed[2], '<', 1, 'of which both come at once';
    cmp_ok $calls, '<=', 3 * @passed + 6, 'by few calls';
};


# The step may have begun long before the bucket was asked, so that its age
# says nothing about how old the answer is.

sub step_began {
    my ($place, $key, $tokens, $ago) = @_;

    my $name = "ratelimit:localhost$place:{$key}";

    $redis->cmd('HSET', $name, 'tokens', $tokens, 'lastRefill',
                sprintf '%.0f', 1e6 * ($redis->time - $ago));
    $redis->cmd('PEXPIRE', $name, 100_000_000);
}


subtest 'a long step: a denied flood is denied here' => sub {
    step_began('/minute', 'a', 1, 20);

    my $calls = $redis->calls_during(sub {
        my $load = RateLimit::Load::run(
            targets => [$port], connections => 10, requests => 2000,
            timeout => 60, path => '/minute?k=a');

        is_deeply $load->statuses, { 200 => 1, 429 => 1999 },
                  'one passes, the others do not';
    });

    # the first ones are on their way at the same time

    cmp_ok $calls, '<=', 12, 'by few calls';

    is $redis->calls_during(sub {
        is_deeply ask(('/minute?k=a') x 100), [('429 denied') x 100],
                  'a hundred more';
    }), 0, 'by none';

    my $r = $nginx[0]->get('/minute?k=a');
    my $wait = $r->{headers}{'retry-after'};

    cmp_ok $wait, '<=', 40, 'the step ends in less than 40 seconds';
    cmp_ok $wait, '>', 40 - patience(10), 'and not before';
};


subtest 'a long step: asked again after the time of the directive' => sub {
    step_began('/daily', 'a', 0, 80_000);

    my $sources = '';
    my $end = time + 1.2;

    while (time < $end) {
        my $seen = seen($nginx[0]->get('/daily?k=a'));

        $sources .= $seen eq '429 denied' ? 'd'
                    : $seen eq '429 redis' ? 'r' : '?';
        sleep 0.01;
    }

    like $sources, qr/^rd+(rd+)+r?\z/, 'now and then';
};


# The token comes when the step ends: no request before that passes, and no
# request that begins after it is denied.

subtest 'a long step: denied until it ends, and no longer' => sub {
    for my $case (['/minute', 60], ['/daily', 86_400]) {
        my ($place, $step) = @$case;
        my @late;

        step_began($place, 'end', 0, $step - 1.5);

        my $state = $redis->bucket("ratelimit:localhost$place:{end}");
        my $ends = $state->{lastRefill} / 1e6 + $step;
        my $passed = 0;
        my $here = 0;

        while ($passed == 0 && $redis->time < $ends + 20) {
            my $before = $redis->time;
            my $seen = seen($nginx[0]->get("$place?k=end"));

            $here++ if $seen eq '429 denied';

            if ($seen eq '200 redis') {
                $passed = $redis->time;
            } elsif ($before > $ends) {
                push @late, $before - $ends;
            }
        }

        cmp_ok $passed, '>=', $ends, "$place: passes after its end";
        is "@late", '', 'and nobody is denied after it';
        cmp_ok $here, '>', 20, 'before, all are denied here';
    }
};


subtest 'never for longer than the directive says' => sub {
    for my $case (['/short', 0.3], ['/default', 1]) {
        my ($place, $time) = @$case;

        ask(("$place?k=a") x 2);

        my ($sources, $asked) = ('', 0);
        my $end = time + 3 * $time + 0.2;

        while (time < $end) {
            my $seen = seen($nginx[0]->get("$place?k=a"));

            $sources .= $seen eq '429 denied' ? 'd'
                        : $seen eq '429 redis' ? 'r' : '?';
            sleep 0.01;
        }

        my $r = $sources =~ tr/r//;

        like $sources, qr/^d+(rd+)+r?\z/, "$place: asks now and then";
        cmp_ok $r, '>=', 2, 'again and again';
        cmp_ok $r, '<=', 4, 'and not more often than it has to';
    }
};


subtest 'a bucket that is reset passes at the latest after that time' => sub {
    ask(('/short?k=reset') x 2);
    is_deeply ask('/short?k=reset'), ['429 denied'], 'denied';

    $redis->cmd('DEL', 'ratelimit:localhost/short:{reset}');

    my $start = time;

    ok wait_until(sub { seen($nginx[0]->get('/short?k=reset')) eq '200 redis' }, 10),
       'passes';
    cmp_ok time - $start, '<', 0.3 + patience(1), 'after less than a third of '
                                                  . 'a second';

    # the same with a minute

    ask(('/two?k=reset') x 2);
    $redis->cmd('DEL', 'ratelimit:localhost/two:{reset}');
    is_deeply ask(('/two?k=reset') x 3), [('429 denied') x 3],
              'with a minute it would be long';
};


subtest 'what the client is told stays right' => sub {
    my $key = 'ratelimit:localhost/cost:{told}';

    is_deeply ask('/cost?k=told&c=10'), ['200 redis'], 'all ten taken';

    my ($tokens, $last) = @{ $redis->bucket($key) }{qw(tokens lastRefill)};
    my $begin = $last / 1e6 - $tokens;
    my ($wrong, $n) = (0, 0);

    my $calls = $redis->calls_during(sub {
        while ($redis->time - $begin < 4.8) {
            my $before = $redis->time - $begin;
            my $r = $nginx[0]->get('/cost?k=told&c=5');
            my $after = $redis->time - $begin;

            last if $after > 4.9;

            my %h = %{ $r->{headers} };
            my $ok = seen($r) eq '429 denied'
                     && $h{'x-ratelimit-limit'} == 10
                     && $h{'x-ratelimit-remaining'} >= int($before)
                     && $h{'x-ratelimit-remaining'} <= int($after + 0.05)
                     && $h{'retry-after'} >= 5 - $after - 0.05
                     && $h{'retry-after'} < 5 - $before + 1.01
                     && $h{'x-ratelimit-reset'} >= int($begin + 10 - 1)
                     && $h{'x-ratelimit-reset'} <= $begin + 10 + 1.01;

            $n++;

            if (!$ok) {
                $wrong++;
                diag sprintf '%.2f s: %s, remaining %s, retry after %s, '
                             . 'reset %s', $before, seen($r),
                             map { $_ // '-' } @h{qw(x-ratelimit-remaining
                             retry-after x-ratelimit-reset)};
            }

            sleep 0.05;
        }
    });

    cmp_ok $n, '>', 20, "$n denials in five seconds";
    is $wrong, 0, 'remaining, reset and Retry-After are right in all of them';
    is $calls, 0, 'and Redis was not asked';

    ok wait_until(sub { $redis->time - $begin > 5 }), 'five seconds are over';
    is_deeply ask('/cost?k=told&c=5'), ['200 redis'], 'then it passes';
};


subtest 'what a client of a window is told stays right' => sub {
    ask('/slide?k=told');

    my $begin = $redis->time;

    ask(('/slide?k=told') x 2);

    my ($n, $wrong) = (0, 0);

    while ($redis->time - $begin < 1.8) {
        my $before = $redis->time - $begin;
        my $r = $nginx[0]->get('/slide?k=told');
        my $after = $redis->time - $begin;

        last if $after > 1.9;

        my %h = %{ $r->{headers} };

        # it left a moment before $begin

        my $ok = seen($r) eq '429 denied' && $h{'x-ratelimit-remaining'} == 0
                 && $h{'retry-after'} >= 1.5 - $after
                 && $h{'retry-after'} < 2 - $before + 1.01
                 && $h{'x-ratelimit-reset'} >= int($begin + 1.5 - 1)
                 && $h{'x-ratelimit-reset'} <= $begin + 2 + 1.01;

        $n++;
        $wrong++ if !$ok;
        sleep 0.05;
    }

    cmp_ok $n, '>', 2, "$n denials";
    is $wrong, 0, 'all of them right';
};


subtest 'another limit for the same key counts at once' => sub {
    is_deeply ask(('/plan?k=a') x 4), [('200 redis') x 3, '429 denied'],
              'three of three';
    is_deeply ask('/plan?k=a&plan=gold'), ['429 redis'],
              'in another plan Redis decides: the bucket is empty';

    $redis->cmd('DEL', 'ratelimit:localhost/plan:{a}');

    is_deeply ask('/plan?k=a&plan=silver', '/plan?k=a'),
              ['200 redis', '429 denied'],
              'what is known of one plan says nothing about another';
};


subtest 'costs: at least as much is denied, less is asked for' => sub {
    is_deeply ask('/hour?k=a&c=7'), ['200 redis'], 'seven of ten';

    is $redis->calls_during(sub {
        is_deeply ask('/hour?k=a&c=5', '/hour?k=a&c=6', '/hour?k=a&c=4',
                      '/hour?k=a&c=10'),
                  [('429 denied') x 4], 'three are left: not more passes';
    }), 0, 'without a call';

    is_deeply ask('/hour?k=a&c=2', '/hour?k=a&c=1'),
              ['200 redis', '200 redis'], 'what fits passes';
    is_deeply ask('/hour?k=a&c=1'), ['429 denied'], 'until there is nothing';

    is_deeply ask('/window?k=cost&c=7', '/window?k=cost&c=5'),
              ['200 redis', '429 redis'], 'a window: three are left';
    is $redis->calls_during(sub {
        is_deeply ask('/window?k=cost&c=5', '/window?k=cost&c=6'),
                  [('429 denied') x 2], 'at least the same cost';
    }), 0, 'without a call';
    is_deeply ask('/window?k=cost&c=4'), ['429 redis'], 'less is asked for';
    is_deeply ask('/window?k=cost&c=4', '/window?k=cost&c=5'),
              [('429 denied') x 2], 'and remembered then';
    is_deeply ask('/window?k=cost&c=3'), ['200 redis'], 'what fits passes';
};


subtest 'several limits: the one that blocks is remembered, alone' => sub {
    is_deeply ask(('/three?ip=a&user=u') x 2), [('200 redis') x 2],
              'two pass';
    is_deeply ask('/three?ip=a&user=u'), ['429 redis'], 'the third does not';

    is $redis->calls_during(sub {
        my @r = map { $nginx[0]->get('/three?ip=a&user=u') } 1 .. 10;

        is_deeply [map { seen($_) } @r], [('429 denied') x 10],
                  'ten more neither';
        is $r[9]{headers}{'x-name'}, 'ip', 'for the address';
        is $r[9]{headers}{'x-ratelimit-limit'}, 2, 'with its numbers';
        cmp_ok abs($r[9]{headers}{'retry-after'} - 3600), '<', 60,
               'and its time';
    }), 0, 'without a call';

    is int $redis->tokens('ratelimit:user:{u}'), 3,
       'the user was not charged';
    is $redis->cmd('ZCARD', 'ratelimit:all:{all}'), 2, 'nor were all';

    is_deeply ask(('/three?ip=b&user=u') x 2), [('200 redis') x 2],
              'another address passes';
    is_deeply ask('/three?ip=b&user=v'), ['429 redis'], 'twice';
    is_deeply ask('/three?ip=c&user=u'), ['200 redis'],
              'the user\'s last one';
    is_deeply ask('/three?ip=c&user=u'), ['429 redis'], 'is the last';
    is_deeply ask('/three?ip=d&user=u'), ['429 denied'],
              'with whatever address';
    is_deeply ask('/three?ip=d&user=w'), ['200 redis'],
              'which has not been charged';

    # the same limit elsewhere

    is_deeply ask('/ip?ip=a'), ['429 denied'], 'remembered at all places';
};


subtest 'previews look for themselves' => sub {
    ask(('/ip?ip=peek') x 3);

    my $r = $nginx[0]->get('/peek?ip=peek');

    is seen($r), '200 redis', 'a preview asks';
    is $r->{headers}{'x-ratelimit-remaining'}, 0, 'nothing is left';

    $redis->cmd('DEL', 'ratelimit:ip:{peek}');
    is $nginx[0]->get('/peek?ip=peek')->{headers}{'x-ratelimit-remaining'}, 2,
       'and sees a reset at once';
    is_deeply ask('/ip?ip=peek'), ['429 denied'], 'which others do not';
};


subtest 'a dry run remembers denials and denies nobody' => sub {
    my @r = map { $nginx[0]->get('/dry?k=a') } 1 .. 4;

    is_deeply [map { seen($_) . " $_->{headers}{'x-status'}" } @r],
              [('200 redis PASSED') x 2, ('200 denied REJECTED_DRY_RUN') x 2],
              'what would have been denied is known here as well';

    # of several, one that denies nobody is asked each time, as the others are

    is_deeply ask(('/trial?user=t') x 5), [('200 redis') x 5],
              'a trial limit does not keep others from being asked';
    cmp_ok $redis->tokens('ratelimit:user:{t}'), '<', 0.01,
           'all five were counted';
    is_deeply ask(('/trial?user=t') x 2), ['429 redis', '429 denied'],
              'and then the enforced one denies';
};


subtest 'other shards are other buckets' => sub {
    my $other = $nginx[0]->port(2);

    ask(('/ip?ip=shard') x 2);
    is_deeply ask('/ip?ip=shard'), ['429 denied'], 'denied';
    is RateLimit::Load::get($other, '/ip?ip=shard')->{status}, 200,
       'the same limit of another Redis is not concerned';

    my $calls = 0;

    for my $n (1 .. 20) {
        ask(("/spread?ip=s$n&user=s$n") x 2);

        for (1 .. 2) {
            my $r = $nginx[0]->get("/spread?ip=s$n&user=s$n");

            $calls++ if $r->{status} != 429 || $r->{headers}{'x-name'} ne 'ip';
        }
    }

    is $calls, 0, 'limits on several shards deny as ever';

    my $wrong = 0;

    for my $n (1 .. 20) {
        my ($user) = grep { $_->cmd('EXISTS', "ratelimit:user:{s$n}") }
                     @shards;

        wait_until(sub {
            $user->tokens("ratelimit:user:{s$n}") >= 3
        }, 2) or $wrong++;
    }

    is $wrong, 0, 'and who is denied by one is not charged by the other';
};


subtest 'a reload forgets nothing' => sub {
    ask(('/two?k=reload') x 2);
    ok $nginx[0]->reload, 'reloaded';
    ok $nginx[0]->old_workers_gone, 'old workers are gone';
    is_deeply ask(('/two?k=reload') x 3), [('429 denied') x 3], 'still denied';
};


# ---- what goes back

# The fake Redis answers when the test says so.

subtest 'what goes back to the bucket can be had' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => {} });
    my $n = RateLimit::Nginx->start(workers => 1, conf => <<"EOC",
    ratelimit_shards ${\ $fake->addr};
    ratelimit_redis_timeout 60s;
    ratelimit_on_error closed;
    ratelimit_deny_cache 60s;
EOC
        server => <<'EOC');
        add_header X-Source $ratelimit_source always;
        location = /status { ratelimit off; stub_status; }
        location /b { ratelimit_key $arg_k; ratelimit_capacity 10;
                      ratelimit_rate 1r/h; empty_gif; }
        location /w { ratelimit_key $arg_k; ratelimit_capacity 10;
                      ratelimit_algorithm sliding_window_log;
                      ratelimit_window 1h; empty_gif; }
EOC

    wait_until(sub { $fake->connections->{open} == 1 }) or die;

    my $parked = sub {
        my ($want) = @_;

        wait_until(sub {
            $n->get('/status')->{body}
                =~ /Writing: (\d+)/ && $1 - 1 == $want
        }) or die "not $want parked\n";
    };

    for my $place ('/b', '/w') {
        my @c;
        my @states = $place eq '/b' ? () : (3_600_000_000, 0);

        $fake->clear;

        for (1 .. 4) {
            push @c, RateLimit::Load::connection($n->port);
            $c[-1]->send("$place?k=a");
            $parked->(scalar @c);
        }

        # the first one has the reply: three left; and three are wanted

        $fake->push($place eq '/b' ? ":3000000\r\n"
                                   : "*3\r\n:3\r\n:3600000000\r\n:0\r\n");
        $fake->wait_commands('EVALSHA', 2) or die;
        is shift(@c)->response->{status}, 200, "$place: the first passes";

        # two of the three go, and so two of the last three tokens are free

        $_->close for @c[0, 1];
        $parked->(1);

        $fake->push($place eq '/b'
                    ? "*2\r\n:3\r\n:0\r\n"
                    : "*4\r\n:3\r\n:0\r\n:3600000000\r\n:0\r\n");
        is $c[2]->response->{status}, 200, 'one of three stays and passes';
        ok $fake->wait_commands('EVALSHA', 3), 'the others are given back';
        $fake->push(":1\r\n");

        my $next = RateLimit::Load::connection($n->port);
        $next->send("$place?k=a");
        ok $fake->wait_commands('EVALSHA', 4), 'so that Redis is asked again';
        $fake->push($place eq '/b' ? ":1000000\r\n"
                                   : "*3\r\n:1\r\n:3600000000\r\n:0\r\n");
        is $next->response(5)->{status}, 200, 'and the next one passes';
    }

    $n->finish;
};


# ---- many clients

# For three seconds as many requests as can be.  The first take and the last
# answer are known between two times.

sub crowd {
    my ($path) = @_;

    my ($start, $load, $took);

    my $calls = $redis->calls_during(sub {
        $start = $redis->time;
        $load = RateLimit::Load::run(
            targets => [map { $_->port } @nginx], connections => 20,
            duration => 3, timeout => 60, path => $path);
        $took = $redis->time - $start;
    });

    return { passed => $load->count(200), all => $load->count,
             errors => $load->error_text, took => $took, calls => $calls };
}


for my $kind (qw(bucket gcra window)) {
    subtest "many clients, $kind: as many pass with it as without" => sub {
        my %crowd = map { $_ => crowd("/$_/$kind?k=a") } qw(off on);

        for my $how (qw(off on)) {
            my $c = $crowd{$how};
            my $most = $kind eq 'window'
                ? 50 * (1 + int $c->{took}) : 20 + 50 * $c->{took};

            note sprintf '%s: %d of %d passed in %.3f s, at most %.1f; '
                         . '%d calls', $how, @$c{qw(passed all took)}, $most,
                         $c->{calls};

            is $c->{errors}, '', "$how: no errors";
            cmp_ok $c->{passed}, '<=', $most, 'never more than the limit';
            cmp_ok $c->{passed}, '>=', ($kind eq 'window' ? 150 : 170) * 0.9,
                   'and not much less';
            cmp_ok $c->{all}, '>', 2 * $most, 'of many more';
        }

        my $rate = sub {
            my ($c) = @_;

            return $kind eq 'window' ? $c->{passed} / (1 + int $c->{took})
                                     : ($c->{passed} - 20) / $c->{took};
        };

        cmp_ok abs($rate->($crowd{on}) - $rate->($crowd{off})), '<=', 3,
               'both admit at the same rate';
        cmp_ok $crowd{on}{calls} / $crowd{on}{all}, '<',
               $crowd{off}{calls} / $crowd{off}{all} / 2,
               'but one with far fewer calls';
    };
}


subtest 'when Redis is gone, who was denied still is' => sub {
    ask(('/two?k=gone') x 2);
    $redis->stop;

    is_deeply ask(('/two?k=gone') x 3), [('429 denied') x 3], 'denied';
    is $nginx[0]->get('/two?k=new')->{status}, 503, 'others fail';

    $redis->start;
    is_deeply ask(('/two?k=gone') x 3), [('429 denied') x 3],
              'and is when it is back, for as long as was said';
};


for my $n (@nginx) {
    $n->finish;
}


done_testing();
