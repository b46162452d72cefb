# Leases: tokens that are taken in advance by one call, and spent from shared
# memory by all workers of a machine.  They are tokens of the bucket, so that
# however many machines there are, never more pass than the limit says; and
# what is not used goes back.
#
# Most limits here never refill: then all tokens there ever were are those that
# passed, those in the bucket, and those that are held.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use POSIX ();
use Time::HiRes qw(time sleep);

use RateLimit::Flood;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until patience alive);

my $redis = RateLimit::Redis->start;

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    ratelimit_key $arg_k;

    ratelimit_limit ip key=$arg_k capacity=1000 rate=0r/s;
    ratelimit_limit user key=$arg_k capacity=1000 rate=0r/s;
    ratelimit_limit shared key=$arg_k capacity=1000 rate=0r/s;

    map $arg_c $cost { default 1; ~. $arg_c; }
EOC
        ratelimit_cost $cost;

        location /none { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                         empty_gif; }
        location /off { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                        ratelimit_lease off; empty_gif; }
        location /short { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                          ratelimit_lease 100 ttl=300ms; empty_gif; }
        location /long { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                         ratelimit_lease 100 ttl=60s; empty_gif; }
        location /steady { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                           ratelimit_lease 100 ttl=2s; empty_gif; }
        location /second { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                           ratelimit_lease 100; empty_gif; }
        location /percent { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                            ratelimit_lease 5% ttl=60s; empty_gif; }
        location /all { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                        ratelimit_lease 100% ttl=500ms; empty_gif; }
        location /remember { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                             ratelimit_lease 100 ttl=300ms;
                             ratelimit_deny_cache 100ms; empty_gif; }
        location /small { ratelimit_capacity 10; ratelimit_rate 0r/s;
                          ratelimit_lease 5 ttl=60s; empty_gif; }
        location /large { ratelimit_capacity 1000000; ratelimit_rate 1000r/d;
                          ratelimit_lease 1000 ttl=60s; empty_gif; }
        location /fill { ratelimit_capacity 100; ratelimit_rate 200r/s;
                         ratelimit_lease 50 ttl=300ms;
                         ratelimit_deny_cache on; empty_gif; }
        location /step { ratelimit_capacity 1000000; ratelimit_rate 1000r/d;
                         ratelimit_refill_interval 1h;
                         ratelimit_lease 1000 ttl=60s; empty_gif; }
        location /brief { ratelimit_capacity 1000; ratelimit_rate 1r/h;
                          ratelimit_refill_interval 1h;
                          ratelimit_lease 100 ttl=300ms; empty_gif; }
        location /gcra { ratelimit_capacity 1000; ratelimit_algorithm gcra;
                         ratelimit_rate 1r/h; ratelimit_lease 100 ttl=300ms;
                         empty_gif; }
        location /window { ratelimit_capacity 1000;
                           ratelimit_algorithm sliding_window_log;
                           ratelimit_window 1h; ratelimit_lease 100 ttl=60s;
                           empty_gif; }
        location /two { ratelimit ip user; ratelimit_lease 100 ttl=60s;
                        empty_gif; }
        location /far { ratelimit shared; ratelimit_lease 100 ttl=60s;
                        empty_gif; }
        location /near { ratelimit shared; ratelimit_lease 100 ttl=500ms;
                         empty_gif; }
        location /dry { ratelimit_dry_run on; ratelimit_rate 0r/s;
                        ratelimit_capacity 20; ratelimit_lease 10 ttl=60s;
                        empty_gif; }
EOS


sub start {
    my (%opt) = @_;

    my $shards = delete $opt{shards} // 'unix:' . $redis->socket;
    my $conf = delete $opt{conf} // '';

    return start_nginx($shards, workers => 2, reuseport => 1,
                       deny_cache => 'off', %CONFIG, %opt,
                       conf => $conf . $CONFIG{conf});
}


sub key { return "ratelimit:localhost$_[0]:{$_[1]}" }


# Tokens in the bucket; full if there is none.

sub tokens {
    my ($place, $key, $capacity) = @_;

    my $name = key($place, $key);

    if ($redis->cmd('TYPE', $name) eq 'string') {
        my $state = $redis->cmd('GET', $name);

        # a token an hour

        my ($s, $us) = @{ $redis->cmd('TIME') };
        my $lacks = $state / 16_000_000 - ($s - 1_700_000_000 + $us / 1e6);

        return 1000 - POSIX::ceil(max(0, $lacks) / 3600);
    }

    return 0 + ($redis->tokens($name) // $capacity // 1000);
}


# So many requests one after the other, in one connection; their statuses and
# sources: { '200 lease' => 5 }.

sub serial {
    my ($nginx, $path, $n) = @_;

    my $c = RateLimit::Load::connection($nginx->port);
    my %seen;

    for (1 .. $n) {
        $c->send($path);

        my $r = $c->response(20);

        $seen{"$r->{status} $r->{headers}{'x-source'}"}++;
    }

    return \%seen;
}


# So many requests at full speed, by 64 clients; the same.

sub flood {
    my ($nginx, $n, $path) = @_;

    my $flood = RateLimit::Flood::run(
        port => $nginx->port, connections => 64, batch => 10, requests => $n,
        timeout => 120, path => $path, mark => 'X-Source');

    die 'no answers: ', join(', ', %{ $flood->{errors} }), "\n"
        if %{ $flood->{errors} };

    return $flood->{marks};
}


# What is in the buckets of many keys, "k0" and on, of a place without a refill.

sub sum_of_tokens {
    my ($place, $keys) = @_;

    return sum0(map { $redis->tokens(key($place, "k$_"))
                      // 1000 } 0 .. $keys - 1);
}


sub passed { return sum0(map { /^200/ ? $_[0]{$_} : 0 } keys %{ $_[0] }) }


my @nginx = map { start() } 1 .. 3;
my @ports = map { $_->port } @nginx;
my $n = $nginx[0];


# ---- what it saves

subtest 'one call serves many requests' => sub {
    my $seen;
    my $calls = $redis->calls_during(sub { $seen = serial($n, '/large?k=a', 2000) });

    note "$calls calls for 2000 requests";
    is passed($seen), 2000, '2000 pass';
    is $seen->{'200 redis'}, $calls, 'some by a call';
    cmp_ok $calls, '<=', 25, 'few';
    cmp_ok $seen->{'200 lease'}, '>=', 1975, 'the others by leases';

    # of all workers

    my %workers;
    my $load;

    $calls = $redis->calls_during(sub {
        $load = RateLimit::Load::run(
            port => $n->port, connections => 40, requests => 4000,
            timeout => 60, path => '/large?k=a', keep => 1);
    });

    $workers{$_->{headers}{'x-worker'}}{$_->{headers}{'x-source'}}++
        for $load->responses;

    note "$calls calls for 4000 requests";
    is_deeply $load->statuses, { 200 => 4000 }, '4000 more';
    cmp_ok $calls, '<=', 40, 'by few calls';
    is scalar keys %workers, 2, 'by two workers';
    cmp_ok min(map { $_->{lease} // 0 } values %workers), '>', 100,
           'who both spend what one of them took';
};


# A step that began half an hour ago does not make a lease half an hour old.

subtest 'a refill in steps: one call serves many requests' => sub {
    for my $place ('/step', '/brief') {
        my ($s) = @{ $redis->cmd('TIME') };

        $redis->cmd('HSET', key($place, 'a'), 'tokens', 900, 'lastRefill',
                    ($s - 1800) . '000000');
        $redis->cmd('PEXPIRE', key($place, 'a'), 100_000_000);

        my $seen;
        my $calls = $redis->calls_during(sub { $seen = serial($n, "$place?k=a", 500) });

        note "$calls calls for 500 requests";
        is passed($seen), 500, "$place: 500 pass";
        cmp_ok $calls, '<=', 50, 'by few calls';
        cmp_ok $seen->{'200 lease'} // 0, '>=', 450,
               'most of them by leases';
    }

    ok wait_until(sub { tokens('/brief', 'a') == 400 }, 10),
       'what was not used goes back'
        or diag tokens('/brief', 'a');
};


subtest 'many keys with a steady demand: few calls, and all comes back' => sub {
    my ($keys, $each) = (300, 60);
    my $path = sub { '/steady?k=k' . $_[0] % $keys };
    my $seen;

    my $calls = $redis->calls_during(sub { $seen = flood($n, $keys * $each, $path) });

    note "$calls commands for ", $keys * $each, ' requests, ',
         $seen->{'200 lease'} // 0, ' served by leases';
    is passed($seen), $keys * $each, 'all pass';
    is scalar(grep { !/^200 (?:redis|lease)$/ } keys %$seen), 0,
       'by Redis or by a lease';
    cmp_ok $seen->{'200 lease'}, '>', $keys * $each / 2, 'most by a lease';
    cmp_ok $calls, '<', $keys * $each / 10, 'few commands';

    # what each key has given is what passed and what is held, of which nothing
    # is left when the time is over

    cmp_ok sum_of_tokens('/steady', $keys), '<=', $keys * (1000 - $each),
           'nobody passed without a token';
    ok wait_until(sub {
        sum_of_tokens('/steady', $keys) == $keys * (1000 - $each)
    }, 15), 'all that was not spent comes back';

    my @wrong = grep { tokens('/steady', "k$_") != 1000 - $each }
                0 .. $keys - 1;

    is "@wrong", '', 'to the key where it was taken';
};


# The workers are stopped until the time of all leases is over: then these end
# at once, however slow the machine is.

subtest 'leases that end at the same time go back by few commands' => sub {
    $redis->cmd('FLUSHALL');

    my ($keys, $each) = (300, 12);
    my @workers = $n->workers;

    is passed(flood($n, $keys * $each, sub { '/steady?k=k' . $_[0] % $keys })),
       $keys * $each, 'all pass';

    kill 'STOP', @workers;

    my $held = grep { tokens('/steady', "k$_") < 1000 - $each } 0 .. $keys - 1;

    sleep 2.1;

    my $calls = $redis->calls_during(sub {
        kill 'CONT', @workers;
        ok wait_until(sub {
            sum_of_tokens('/steady', $keys) == $keys * (1000 - $each)
        }, 15), "$held keys have all of their tokens again";
    });

    note "$calls commands";
    cmp_ok $held, '>', 100, 'which is many';
    cmp_ok $calls, '>', 0, 'by commands';
    cmp_ok $calls, '<', $held / 3, 'that are much fewer';
};


subtest 'without a lease nothing is taken in advance' => sub {
    for my $place ('/none', '/off') {
        is_deeply serial($n, "$place?k=a", 20), { '200 redis' => 20 },
                  "$place: each asks";
        is tokens($place, 'a'), 980, 'and takes its own';
    }
};


# ---- how much is taken

subtest 'a rare key takes nothing in advance' => sub {
    my $wrong = 0;

    for my $k (1 .. 50) {
        serial($n, "/long?k=rare$k", 1);
        $wrong++ if tokens('/long', "rare$k") != 999;
    }

    is $wrong, 0, 'each of 50 keys has given one token';

    # nor one that comes again after a while

    for my $i (1 .. 4) {
        is_deeply serial($n, '/short?k=rare', 1), { '200 redis' => 1 },
                  "request $i asks";
        is tokens('/short', 'rare'), 1000 - $i, 'for itself';

        # the lease of 300 ms would be over
        sleep 0.4;
    }
};


subtest 'many keys that are used once hold nothing' => sub {
    $redis->cmd('FLUSHALL');

    my $own = start();
    my $keys = 1000;

    is_deeply flood($own, $keys, sub { "/long?k=k$_[0]" }),
              { '200 redis' => $keys }, "each of $keys keys asks";
    is scalar(grep { tokens('/long', "k$_") != 999 } 0 .. $keys - 1), 0,
       'and gives one token';
    is $redis->calls_during(sub { ok $own->stop, 'nginx left' }), 0,
       'who has nothing to give back';
    $own->no_alerts;
};


# A lease that is over is no reason to take one, unless it was a moment ago.

subtest 'a key that was idle for two ttls begins anew' => sub {
    is passed(serial($n, '/short?k=idle', 60)), 60, '60 pass';
    ok wait_until(sub { tokens('/short', 'idle') == 940 }, 10),
       'what was left is back';

    # from the last call on, which was before
    sleep 0.7;

    is_deeply serial($n, '/short?k=idle', 1), { '200 redis' => 1 },
              'the next one asks';
    is tokens('/short', 'idle'), 939, 'for itself';
};


subtest 'a hot key takes more and more, up to what was said' => sub {
    for my $case (['/long', 100], ['/percent', 50]) {
        my ($place, $most) = @$case;
        my @held;

        for my $i (1 .. 600) {
            serial($n, "$place?k=hot", 1);
            push @held, 1000 - $i - tokens($place, 'hot');
        }

        is $held[0], 0, "$place: nothing at first";
        cmp_ok max(@held[0 .. 5]), '<', 10, 'little then';
        cmp_ok max(@held), '<=', $most, "never more than $most";
        cmp_ok max(@held), '>=', $most - 1, 'but that';
        cmp_ok min(@held), '>=', 0, 'none was made of nothing';
    }
};


# ---- what goes back

subtest 'what is not used goes back after the ttl' => sub {
    for my $place (qw(/short /second /gcra /all)) {
        for my $cost (1, 3) {
            my $seen = serial($n, "$place?k=back$cost&c=$cost", 30);

            is passed($seen), 30, "$place, cost $cost: 30 pass";
            cmp_ok $seen->{'200 lease'}, '>', 10, 'most by leases';

            ok wait_until(sub {
                tokens($place, "back$cost") == 1000 - 30 * $cost
            }, 10), 'all others are in the bucket again'
                or diag tokens($place, "back$cost");
        }
    }
};


# A second lease is taken when the first one is half over: what is left of it
# stays for its own time.

subtest 'the rest goes back when the last of several leases is over' => sub {
    my $passed = passed(serial($n, '/second?k=last', 60));
    my ($sent, $held);

    sleep 0.5;

    ok wait_until(sub {
        $sent = time;

        my $seen = serial($n, '/second?k=last', 1);

        $passed += passed($seen);
        $held = 1000 - $passed - tokens('/second', 'last');

        return $seen->{'200 redis'} && $held > 0;
    }), 'another lease';

    ok wait_until(sub { tokens('/second', 'last') == 1000 - $passed }, 10),
       "the $held that are held go back";
    cmp_ok time - $sent, '>=', 0.95, 'a second later, not earlier';
};


subtest 'who comes when a lease ends does not make it grow' => sub {
    my $passed = passed(serial($n, '/second?k=poll', 60));
    my $most = 0;

    # of no use but to be late by less than the lease

    for (1 .. 4) {
        sleep 1.006;
        $passed += passed(serial($n, '/second?k=poll', 1));
        $most = max($most, 1000 - $passed - tokens('/second', 'poll'));
    }

    cmp_ok $most, '<=', 100, "$most are held, not more and more";
    ok wait_until(sub { tokens('/second', 'poll') == 1000 - $passed }, 10),
       'and go back';
};


subtest 'two places with one limit, one of which holds for longer' => sub {
    my $seen = serial($n, '/far?k=s', 4);
    my $passed = passed($seen);
    my $left = sub {
        $redis->tokens('ratelimit:shared:{s}')
    };

    for (1 .. 10) {
        $seen = serial($n, '/near?k=s', 20);
        $passed += passed($seen);
    }

    is $passed, 204, 'nobody is locked out';
    cmp_ok 1000 - $passed - $left->(), '<=', 200, 'a lease of each is held';

    # the one that ends soon has been spent, or goes back

    ok wait_until(sub { 1000 - $passed - $left->() <= 100 }, 10),
       'then that of one';
};


subtest 'a reply that takes longer than a lease' => sub {
    my $c = RateLimit::Load::connection($n->port);
    my $passed = 0;

    my $held = sub { return 1000 - $passed - tokens('/short', 'stall') };

    ok wait_until(sub {
        $passed += passed(serial($n, '/short?k=stall', 1));
        return $passed > 20 && $held->() == 0;
    }), 'a key in use, of which nothing is held';

    $redis->pause;
    $c->send('/short?k=stall');
    sleep 1.6;
    $redis->resume;

    is $c->response(20)->{status}, 200, 'the next one has to wait';
    $passed++;

    $passed += passed(serial($n, '/short?k=stall', 2));
    ok wait_until(sub { $held->() == 0 }, 10), 'nothing of it gets lost';
};


subtest 'held tokens can be taken again when they are back' => sub {
    my ($passed, $n1, $n2) = (0, @nginx[0, 1]);

    # one machine holds a part, the other one takes what is there

    $passed += passed(serial($n1, '/short?k=both', 40));
    $passed += passed(serial($n2, '/short?k=both', 1000));

    cmp_ok $passed, '<=', 1000, 'not more than there are';

    ok wait_until(sub {
        $passed += passed(serial($n2, '/short?k=both', 100));
        return $passed >= 1000;
    }, 20), 'but all of them';
    is $passed, 1000, 'exactly';
    is_deeply serial($n1, '/short?k=both', 2), { '429 redis' => 2 },
              'and then nobody passes';
};


# ---- never more than the limit

subtest '3 nginx x 2 workers: all that there is, and not one more' => sub {
    for my $case (['/short', 1], ['/all', 1], ['/remember', 1], ['/short', 7],
                  ['/gcra', 3])
    {
        my ($place, $cost) = @$case;
        my $path = "$place?k=never$cost&c=$cost";
        my $passes = int(1000 / $cost);

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 30, requests => 3000,
            timeout => 60, path => $path);

        my $passed = $load->count(200);

        is $load->error_text, '', "$place, cost $cost: no errors";
        cmp_ok $passed, '<=', $passes, "$passed of $passes pass at first";

        # what the others hold comes back

        ok wait_until(sub {
            $passed += RateLimit::Load::run(
                targets => \@ports, connections => 6, requests => 60,
                timeout => 60, path => $path)->count(200);

            return $passed >= $passes;
        }, 20), 'then the rest';

        is $passed, $passes, 'exactly all of them';

        sleep 0.7;

        is RateLimit::Load::run(
            targets => \@ports, connections => 6, requests => 60,
            timeout => 60, path => $path)->count(200), 0, 'and no more';
    }
};


# Both at full speed, each with as much in advance as there is.

subtest '2 nginx at full speed, one key: all that there is, no more' => sub {
    for my $place (qw(/short /all)) {
        my $path = "$place?k=rush";
        my $passed = 0;

        my @floods = map {
            RateLimit::Flood::start(port => $_->port, connections => 16,
                                    batch => 20, timeout => 60,
                                    path => sub { $path })
        } @nginx[0, 1];

        # there is nothing left, and what one of them held has come back

        ok wait_until(sub { tokens($place, 'rush') == 0 }, 20),
           "$place: the bucket is empty";

        for my $result (map { $_->stop } @floods) {
            is_deeply $result->{errors}, {}, 'no errors';
            $passed += $result->{marks}{200} // 0;
        }

        cmp_ok $passed, '<=', 1000, "$passed passed, not more than there are";

        ok wait_until(sub {
            $passed += passed(serial($nginx[1], $path, 20));
            return $passed >= 1000;
        }, 20), 'then what was held';
        is $passed, 1000, 'exactly all of them';
        is passed(serial($_, $path, 20)), 0, 'and no more' for @nginx[0, 1];
    }
};


subtest '3 nginx, a rate: at most capacity + rate x time' => sub {
    my $start = time;
    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 12, duration => 4, timeout => 60,
        path => '/fill?k=a');
    my $took = time - $start;

    my $most = 100 + 200 * $took;

    note sprintf '%d passed of %d in %.2f s, at most %.1f',
                 $load->count(200), $load->count, $took, $most;
    is $load->error_text, '', 'no errors';
    cmp_ok $load->count(200), '<=', $most, 'never more';
    cmp_ok $load->count(200), '>=', 0.7 * $most, 'and not much less';
    cmp_ok $load->count(429), '>', 100, 'of more';
};


subtest 'several costs of one key share a lease' => sub {
    my @costs = (1, 2, 5, 3);
    my $spent = 0;

    my $round = sub {
        my ($requests) = @_;

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 12, requests => $requests,
            timeout => 60, keep => 1,
            path => sub { "/short?k=mixed&c=$costs[$_[0] % 4]" });

        $spent += sum0(map { $costs[$_->{n} % 4] }
                       grep { $_->{status} == 200 } $load->responses);
    };

    $round->(1200);
    cmp_ok $spent, '<=', 1000, "$spent tokens at first";

    ok wait_until(sub { $round->(60); $spent >= 1000 }, 20), 'then the rest';
    is $spent, 1000, 'exactly a thousand';
};


# ---- where there is none

subtest 'windows and several limits take nothing in advance' => sub {
    is_deeply serial($n, '/window?k=a', 30), { '200 redis' => 30 },
              'a window';
    is $redis->cmd('ZCARD', key('/window', 'a')), 30, 'has 30 entries';

    is_deeply serial($n, '/two?k=a', 30), { '200 redis' => 30 },
              'two limits';
    is $redis->tokens("ratelimit:$_:{a}"), '970', $_
        for qw(ip user);
};


subtest 'a dry run: as many as would have passed' => sub {
    my $seen = serial($n, '/dry?k=a', 40);

    is passed($seen), 40, 'all pass';
    is $redis->tokens(key('/dry', 'a')), '0',
       'the bucket is empty';
    is +($seen->{'200 lease'} // 0) > 0, 1, 'some by leases';
};


# ---- the end of a process

# With a ttl of a minute, nothing comes back by itself while a test runs.

sub held_by {
    my ($nginx, $key, $requests) = @_;

    my $passed = passed(serial($nginx, "/long?k=$key", $requests));
    my $held = 1000 - $passed - tokens('/long', $key);

    cmp_ok $held, '>', 0, "$key: $passed passed, $held are held";

    return $passed;
}


subtest 'on a graceful exit the rest goes back, and nobody waits' => sub {
    my $own = start();
    my $passed = held_by($own, 'quit', 30);
    my $start = time;

    ok $own->stop(20), 'nginx left by itself';
    cmp_ok time - $start, '<', 15, 'long before the leases are over';

    ok wait_until(sub { tokens('/long', 'quit') == 1000 - $passed }),
       'all are in the bucket again' or diag tokens('/long', 'quit');
    $own->no_alerts;
};


subtest 'a fast end gives leases back as well' => sub {
    my $own = start();
    my $passed = held_by($own, 'term', 30);

    kill 'TERM', $own->pid;
    ok wait_until(sub { !alive($own->pid) }, 10), 'nginx ended';

    ok wait_until(sub { tokens('/long', 'term') == 1000 - $passed }),
       'all are in the bucket again' or diag tokens('/long', 'term');
    $own->stop;
    $own->no_alerts;
};


subtest 'a reload gives leases back as well' => sub {
    my $own = start();
    my $passed = held_by($own, 'reload', 30);

    ok $own->reload, 'reloaded';
    ok $own->old_workers_gone(15), 'the old workers have left';

    ok wait_until(sub { tokens('/long', 'reload') == 1000 - $passed }),
       'all are in the bucket again' or diag tokens('/long', 'reload');

    $passed += passed(serial($own, '/long?k=reload', 20));
    ok $own->stop(20), 'nginx left by itself';
    ok wait_until(sub { tokens('/long', 'reload') == 1000 - $passed }),
       'and so after the new ones';
    $own->no_alerts;
};


for my $way ('unix:' . $redis->socket, $redis->addr) {
    subtest "of many keys, by $way" => sub {
        $redis->cmd('FLUSHALL');

        my $own = start(shards => $way);
        my $keys = 2000;

        my $load = RateLimit::Load::run(
            port => $own->port, connections => 8, requests => 6 * $keys,
            timeout => 120, path => sub { '/long?k=many' . ($_[0] % $keys) });

        is_deeply $load->statuses, { 200 => 6 * $keys }, 'six of each pass';

        my $sum = sub {
            return sum0(map { tokens('/long', "many$_") } 0 .. $keys - 1);
        };

        my $held = grep { tokens('/long', "many$_") < 994 } 0 .. $keys - 1;

        cmp_ok $held, '>', $keys / 2, "$held keys have given more";

        # on a reload

        my $calls = $redis->calls_during(sub {
            ok $own->reload, 'reloaded';
            ok $own->old_workers_gone(15), 'the old workers have left';
            ok wait_until(sub { $sum->() == $keys * 994 }, 10),
               'all of it is in the buckets again'
                or diag $sum->(), ' of ', $keys * 994;
        });

        note "$calls commands";
        cmp_ok $calls, '<', $held / 10, 'by few commands';

        # and on an exit

        is passed(flood($own, 4 * $keys,
                        sub { '/long?k=many' . $_[0] % $keys })),
           4 * $keys, 'four more of each';

        $held = grep { tokens('/long', "many$_") < 990 } 0 .. $keys - 1;
        cmp_ok $held, '>', $keys / 2, "$held keys have given more";

        $calls = $redis->calls_during(sub {
            ok $own->stop(20), 'nginx left by itself';
            ok wait_until(sub { $sum->() == $keys * 990 }, 10),
               'all of it is in the buckets again'
                or diag $sum->(), ' of ', $keys * 990;
        });

        note "$calls commands";
        cmp_ok $calls, '<', $held / 10, 'by few commands';
        $own->no_alerts;
    };
}


subtest 'a worker that is killed costs tokens, and gives none for free' => sub {
    my $own = start();
    my $passed = 0;

    for my $round (1 .. 4) {
        my $killed = 0;

        my $load = RateLimit::Load::run(
            port => $own->port, connections => 10, requests => 100,
            timeout => 60, path => sub {
                if ($_[0] == 50) {
                    kill 'KILL', ($own->workers)[0];
                    $killed = 1;
                }

                return '/short?k=killed';
            });

        $passed += $load->count(200);

        ok wait_until(sub { $own->workers == 2 }, 10), 'two workers again';
        cmp_ok $passed + tokens('/short', 'killed'), '<=', 1000,
               "round $round: $passed passed, the others are where they were";
    }

    cmp_ok $passed, '>', 100, 'requests passed all the time';

    # what was held for the dead is not lost for those who still live

    $passed += passed(serial($own, '/short?k=killed', 1200));
    cmp_ok $passed, '<=', 1000, "$passed in all, not more than the capacity";

    $own->finish(except => qr/exited on signal 9/);
};


# ---- failures

subtest 'Redis dies: what is held is spent, then the failure policy' => sub {
    my $mortal = RateLimit::Redis->start;
    my $own = start(shards => $mortal->addr);

    my $passed = passed(serial($own, '/long?k=a', 40));
    my $held = 1000 - $passed
               - $mortal->tokens(key('/long', 'a'));

    cmp_ok $held, '>', 5, "$held tokens are held";
    $mortal->stop;

    my $c = RateLimit::Load::connection($own->port);
    my @seen;

    for (1 .. $held + 3) {
        $c->send('/long?k=a');

        my $r = $c->response(20);

        push @seen, "$r->{status} $r->{headers}{'x-source'}";
    }

    is_deeply \@seen, [('200 lease') x $held, ('503 closed') x 3],
              'exactly those pass, and then nobody';

    $own->finish(timeout => 20);
};


subtest 'a zone that is too small: never more than the limit' => sub {
    my $own = start(conf => 'ratelimit_zone 96k;');
    my $keys = 3000;
    my %passed;

    for my $round (1 .. 2) {
        my $load = RateLimit::Load::run(
            port => $own->port, connections => 16, requests => 10 * $keys,
            timeout => 120, keep => sub { [@{ $_[0] }{qw(n status)}] },

            # now and then many keys between two requests for one
            path => sub {
                my ($i) = @_;
                my $k = $i % 2 ? int($i / 10) : $i * 7919 % $keys;

                return "/small?k=s$k";
            });

        is $load->error_text, '', 'no errors';

        for my $r ($load->responses) {
            my ($i, $status) = @$r;
            my $k = $i % 2 ? int($i / 10) : $i * 7919 % $keys;

            $passed{$k}++ if $status == 200;
        }
    }

    my $metrics = $own->get('/metrics')->{body};

    like $metrics, qr/^nginx_ratelimit_zone_evictions_total\{held="\w+"\} [1-9]/m,
         'keys had to make room';
    cmp_ok max(values %passed), '<=', 10, 'not more than ten of each key';
    cmp_ok scalar keys %passed, '>=', $keys / 2, 'of many keys';

    my $wrong = grep {
        $passed{$_} + ($redis->tokens(key('/small', "s$_"))
                       // 10) > 10
    } keys %passed;

    is $wrong, 0, 'and the buckets know of all of them';

    $own->finish(timeout => 20);
};


for my $nginx (@nginx) {
    $nginx->finish(timeout => 20);
}


done_testing();
