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

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until patience alive);

my $redis = RateLimit::Redis->start;


sub start_nginx {
    my (%opt) = @_;

    my $conf = delete $opt{conf} // '';
    my $shards = delete $opt{shards} // 'unix:' . $redis->socket;

    return RateLimit::Nginx->start(workers => 2, log => 'notice',
                                   conf => <<"EOC", %opt);
    ratelimit_shards $shards;
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_on_error closed;
    ratelimit_deny_cache off;
    ratelimit_key \$arg_k;
    keepalive_requests 100000;
    $conf

    ratelimit_limit ip key=\$arg_k capacity=1000 rate=0r/s;
    ratelimit_limit user key=\$arg_k capacity=1000 rate=0r/s;

    map \$arg_c \$cost { default 1; ~. \$arg_c; }

    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name localhost;

        add_header X-Source \$ratelimit_source always;
        add_header X-Worker \$pid always;
        ratelimit_cost \$cost;

        location = /metrics { ratelimit off; ratelimit_metrics; }

        location /none { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                         empty_gif; }
        location /off { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                        ratelimit_lease off; empty_gif; }
        location /short { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                          ratelimit_lease 100 ttl=300ms; empty_gif; }
        location /long { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                         ratelimit_lease 100 ttl=60s; empty_gif; }
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
        location /gcra { ratelimit_capacity 1000; ratelimit_algorithm gcra;
                         ratelimit_rate 1r/h; ratelimit_lease 100 ttl=300ms;
                         empty_gif; }
        location /window { ratelimit_capacity 1000;
                           ratelimit_algorithm sliding_window_log;
                           ratelimit_window 1h; ratelimit_lease 100 ttl=60s;
                           empty_gif; }
        location /two { ratelimit ip user; ratelimit_lease 100 ttl=60s;
                        empty_gif; }
        location /dry { ratelimit_dry_run on; ratelimit_rate 0r/s;
                        ratelimit_capacity 20; ratelimit_lease 10 ttl=60s;
                        empty_gif; }
    }
EOC
}


sub key { return "ratelimit:localhost$_[0]:{$_[1]}" }


# Tokens in the bucket; full if there is none.

sub tokens {
    my ($place, $key, $capacity) = @_;

    my $name = key($place, $key);

    if ($redis->cmd('TYPE', $name) eq 'string') {

        # a token an hour

        my ($s, $us) = @{ $redis->cmd('TIME') };
        my $lacks = $redis->cmd('GET', $name) / 16_000_000
                    - ($s - 1_700_000_000 + $us / 1e6);

        return 1000 - POSIX::ceil(max(0, $lacks) / 3600);
    }

    return 0 + ($redis->cmd('HGET', $name, 'tokens') // $capacity // 1000);
}


# So many requests one after the other, in one connection; their statuses and
# sources: { '200 lease' => 5 }.

sub serial {
    my ($nginx, $path, $n) = @_;

    my $c = RateLimit::Load::connection($nginx->port);
    my %seen;

    for (1 .. $n) {
        $c->write(RateLimit::Load::format_request({ path => $path }));

        my $r = $c->response(20);

        $seen{"$r->{status} $r->{headers}{'x-source'}"}++;
    }

    return \%seen;
}


sub passed { return sum0(map { /^200/ ? $_[0]{$_} : 0 } keys %{ $_[0] }) }


sub calls {
    my ($code) = @_;

    $redis->cmd('CONFIG', 'RESETSTAT');
    $code->();

    return $redis->cmd('INFO', 'commandstats')
           =~ /cmdstat_evalsha:calls=(\d+)/ ? $1 : 0;
}


my @nginx = map { start_nginx() } 1 .. 3;
my @ports = map { $_->port } @nginx;
my $n = $nginx[0];


# ---- what it saves

subtest 'one call serves many requests' => sub {
    my $seen;
    my $calls = calls(sub { $seen = serial($n, '/large?k=a', 2000) });

    note "$calls calls for 2000 requests";
    is passed($seen), 2000, '2000 pass';
    is $seen->{'200 redis'}, $calls, 'some by a call';
    cmp_ok $calls, '<=', 25, 'few';
    cmp_ok $seen->{'200 lease'}, '>=', 1975, 'the others by leases';

    # of all workers

    my %workers;
    my $load;

    $calls = calls(sub {
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


subtest 'several costs of one key' => sub {
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
    is $redis->cmd('HGET', "ratelimit:$_:{a}", 'tokens'), '970.000000', $_
        for qw(ip user);
};


subtest 'a dry run: as many as would have passed' => sub {
    my $seen = serial($n, '/dry?k=a', 40);

    is passed($seen), 40, 'all pass';
    is $redis->cmd('HGET', key('/dry', 'a'), 'tokens'), '0.000000',
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
    my $own = start_nginx();
    my $passed = held_by($own, 'quit', 30);
    my $start = time;

    ok $own->stop(20), 'nginx left by itself';
    cmp_ok time - $start, '<', 15, 'long before the leases are over';

    ok wait_until(sub { tokens('/long', 'quit') == 1000 - $passed }),
       'all are in the bucket again' or diag tokens('/long', 'quit');
    $own->no_alerts;
};


subtest 'on a fast one as well' => sub {
    my $own = start_nginx();
    my $passed = held_by($own, 'term', 30);

    kill 'TERM', $own->pid;
    ok wait_until(sub { !alive($own->pid) }, 10), 'nginx ended';

    ok wait_until(sub { tokens('/long', 'term') == 1000 - $passed }),
       'all are in the bucket again' or diag tokens('/long', 'term');
    $own->stop;
    $own->no_alerts;
};


subtest 'and on a reload' => sub {
    my $own = start_nginx();
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

        my $own = start_nginx(shards => $way);
        my $keys = 2000;

        my $load = RateLimit::Load::run(
            port => $own->port, connections => 8, requests => 6 * $keys,
            timeout => 120, path => sub { '/long?k=many' . ($_[0] % $keys) });

        is_deeply $load->statuses, { 200 => 6 * $keys }, 'six of each pass';

        my $sum = sub {
            return sum0(map { tokens('/long', "many$_") } 0 .. $keys - 1);
        };

        cmp_ok $sum->(), '<', $keys * 994, 'many tokens are held';

        ok $own->stop(20), 'nginx left by itself';
        ok wait_until(sub { $sum->() == $keys * 994 }, 10),
           'all of them are in the buckets again'
            or diag $sum->(), ' of ', $keys * 994;
        $own->no_alerts;
    };
}


subtest 'a worker that is killed costs tokens, and gives none for free' => sub {
    my $own = start_nginx();
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

    ok $own->stop, 'nginx left';
    $own->no_alerts(undef, except => qr/exited on signal 9/);
};


# ---- failures

subtest 'Redis dies: what is held is spent, then the failure policy' => sub {
    my $mortal = RateLimit::Redis->start;
    my $own = start_nginx(shards => $mortal->addr);

    my $passed = passed(serial($own, '/long?k=a', 40));
    my $held = 1000 - $passed
               - $mortal->cmd('HGET', key('/long', 'a'), 'tokens');

    cmp_ok $held, '>', 5, "$held tokens are held";
    $mortal->stop;

    my $c = RateLimit::Load::connection($own->port);
    my @seen;

    for (1 .. $held + 3) {
        $c->write(RateLimit::Load::format_request({ path => '/long?k=a' }));

        my $r = $c->response(20);

        push @seen, "$r->{status} $r->{headers}{'x-source'}";
    }

    is_deeply \@seen, [('200 lease') x $held, ('503 closed') x 3],
              'exactly those pass, and then nobody';

    ok $own->stop(20), 'nginx left';
    $own->no_alerts;
};


subtest 'a zone that is too small: never more than the limit' => sub {
    my $own = start_nginx(conf => 'ratelimit_zone 96k;');
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

    my $metrics = RateLimit::Load::get($own->port, '/metrics')->{body};

    like $metrics, qr/^nginx_ratelimit_zone_evictions_total [1-9]/m,
         'keys had to make room';
    cmp_ok max(values %passed), '<=', 10, 'not more than ten of each key';
    cmp_ok scalar keys %passed, '>=', $keys / 2, 'of many keys';

    my $wrong = grep {
        $passed{$_} + ($redis->cmd('HGET', key('/small', "s$_"), 'tokens')
                       // 10) > 10
    } keys %passed;

    is $wrong, 0, 'and the buckets know of all of them';

    ok $own->stop(20), 'nginx left';
    $own->no_alerts;
};


for my $nginx (@nginx) {
    ok $nginx->stop(20), 'nginx left by itself';
    $nginx->no_alerts;
}


done_testing();
