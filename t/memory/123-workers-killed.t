# Workers that are killed at any moment, reloads while Redis comes and goes, and
# a binary upgrade, all under load: nginx goes on, and so do the limits.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes qw(sleep);

use RateLimit::Fault;
use RateLimit::Flood;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(alive slurp wait_until);

# what nginx says about a worker that was killed
my $KILLED = qr/exited on signal 9|was locked by/;

my $CLIENTS = 20;       # connections of the load of RateLimit::Fault


# Limits in the memory of this machine: "/" for as many keys as there are, of
# several kinds and with much to change at each request, "/few" for 5 requests.

sub start_local {
    return RateLimit::Nginx->start(
        log    => 'notice',
        conf   => <<'EOC',
    ratelimit_zone 256k;
    ratelimit_log_level info;
    access_log off;
    keepalive_requests 100000000;

    ratelimit_limit bucket key=$arg_k capacity=1000000000 rate=1r/h;
    ratelimit_limit window key=$arg_k capacity=1000000000 window=1h
                    algorithm=sliding_window_log;
    ratelimit_limit other  key=other$arg_k capacity=1000000000 window=1h
                    algorithm=sliding_window_log;
EOC
        server => <<'EOC',
            add_header X-Pid $pid always;

            location / { ratelimit bucket window other; empty_gif; }

            location /few {
                ratelimit_key $arg_k;
                ratelimit_capacity 5;
                ratelimit_rate 0r/s;
                empty_gif;
            }

            location = /metrics { ratelimit_metrics; }
EOC
    );
}


sub passed {
    my ($nginx, $path, $n) = @_;

    return scalar grep {
        $nginx->get($path)->{status} == 200
    } 1 .. $n // 10;
}


sub flood {
    my ($nginx) = @_;

    return RateLimit::Flood::start(
        port => $nginx->port, timeout => 300,
        path => sub { '/?k=' . $_[0] % 300 },
    );
}


for my $way ('with Redis', 'without Redis') {
    subtest "workers are killed, $way" => sub {
        my $kills = 10;
        my $source = $way eq 'with Redis' ? 'redis' : 'local';
        my $fault = RateLimit::Fault->start(breaker => 'probe=1s');

        ok $fault->works, 'all workers are connected';

        if ($source eq 'local') {
            $fault->redis->kill9;
            wait_until(sub {
                $fault->ask('x', 1);
                $fault->state eq 'circuit_open';
            }, 10);
        }

        my $replaced = 0;

        my $load = $fault->during(sub {
            for (1 .. $kills) {
                $fault->wait_decisions(50);
                $replaced += $fault->nginx->kill_worker('KILL') ? 1 : 0;
            }

            $fault->wait_decisions(500, source => $source);
        });

        # those that a killed worker had in its hands are lost

        $fault->check($load, workers => 0, metrics => 0, alerts => $KILLED,
                      errors => $kills * $CLIENTS);

        is $replaced, $kills, 'each worker is replaced';
        is $load->count(sub { $_->{source} ne $source
                              && $_->{source} ne 'local' }),
           0, 'decisions come from where they should';
        cmp_ok $load->count(sub { $_->{source} eq $source }), '>', 500,
               'many of them';

        if ($source eq 'local') {
            is $fault->state, 'circuit_open', 'the breaker is still open';

            # a worker that probed may be among the dead

            $fault->redis->start;
            ok $fault->works(20), 'it closes when Redis is back';
        }

        $load = $fault->during(sub { $fault->wait_decisions(300) });

        $fault->check($load, alerts => $KILLED);
        is $load->count(sub { $_->{source} ne 'redis' }), 0,
           'then Redis decides about all';
        is $fault->metric('redis_connections'), 2,
           'connections of the dead are not counted';

        $fault->finish(alerts => $KILLED);
    };
}


# A worker that is stopped while the other one waits for the zone has it locked.
# The other one may also be slow for another reason; then the next try counts.

subtest 'a worker is killed while it changes the zone' => sub {
    my $nginx = start_local();
    my $wanted = 3;
    my ($tries, $killed, $answered, $resets) = (0) x 4;

    is passed($nginx, '/few?k=before'), 5, 'a limit of five';

    my $flood = flood($nginx);

    wait_until(sub {
        my ($victim, $other) = $nginx->workers;
        my $witness;

        # a connection to the other one

        wait_until(sub {
            $witness = RateLimit::Load::connection($nginx->port);
            $witness->write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            ($witness->response(5)->{headers}{'x-pid'} // '') == $other;
        }, 10) or return 0;

        for (1 .. 500) {
            $tries++;

            sleep rand 0.005;           # somewhere in its work
            kill 'STOP', $victim;
            wait_until(sub { slurp("/proc/$victim/stat") =~ /\) T / }, 5);

            $witness->write("GET /?k=witness HTTP/1.1\r\nHost: a\r\n\r\n");

            if ($witness->response(0.3)->{status}) {
                kill 'CONT', $victim;
                next;
            }

            $killed++;
            $nginx->kill_worker('KILL', $victim);
            $answered++ if $witness->response(10)->{status};
            $resets = $nginx->metric('zone_resets_total');

            last;
        }

        return $resets >= $wanted;
    }, 180);                            # it is rarely caught at the right moment

    my $result = $flood->stop;

    note "$tries stops, $killed kills, $resets resets, "
         . sum0(values %{ $result->{marks} }) . ' answers';

    cmp_ok $resets, '>=', $wanted, 'keys were forgotten, which is counted';
    is $answered, $killed, 'who waited for the zone goes on each time';
    is $nginx->log_count(qr/\[warn\].*died while it was changing the ratelimit/),
       $resets, 'and told each time';
    is_deeply [keys %{ $result->{marks} }], [200], 'all that was answered '
       . 'passed';

    is passed($nginx, '/few?k=before'), 5, 'the limit of five begins anew';
    is passed($nginx, '/few?k=before'), 0, 'and works';

    $nginx->finish(except => $KILLED);
};


subtest 'workers are killed all the time, limits are here' => sub {
    my $nginx = start_local();
    my $kills = 60;
    my $replaced = 0;
    my $flood = flood($nginx);

    for my $n (1 .. $kills) {
        my @workers = $nginx->workers;

        $replaced += $nginx->kill_worker('KILL', $workers[$n % 2]) ? 1 : 0;
    }

    my $now = $nginx->metric('decisions_total', decision => 'passed',
                             source => 'local');
    ok wait_until(sub {
        $nginx->metric('decisions_total', decision => 'passed', source => 'local')
            > $now + 5000
    }, 20), 'requests go on';

    my $result = $flood->stop;
    my $resets = $nginx->metric('zone_resets_total');

    note "$resets resets, $result->{marks}{200} answers, "
         . "$result->{lost} lost";

    is $replaced, $kills, 'each worker is replaced';
    is_deeply [keys %{ $result->{marks} }], [200], 'all that was answered '
       . 'passed';
    is $nginx->log_count(qr/died while it was changing the ratelimit zone/),
       $resets, 'each time that keys were forgotten is told';

    is passed($nginx, '/few?k=a'), 5, 'five pass';
    is passed($nginx, '/few?k=a'), 0, 'and no more';

    ok $nginx->reload, 'a reload finds the zone usable';
    is passed($nginx, '/few?k=a'), 0, 'the limit is still used up';
    is $nginx->metric('zone_resets_total'), $resets,
       'counters are kept';

    ok $nginx->old_workers_gone(10), 'old workers leave';
    $nginx->finish(except => $KILLED);
};


subtest 'fifty reloads while Redis comes and goes' => sub {
    my $fault = RateLimit::Fault->start(breaker => 'probe=1s', log => 'warn');
    my ($reloads, $outages) = (0, 0);

    ok $fault->works, 'all workers are connected';

    my $load = $fault->during(sub {
        for my $n (1 .. 50) {
            if ($n % 10 == 4) {
                $fault->redis->kill9;
                $outages++;

            } elsif ($n % 10 == 9) {
                $fault->redis->start;
            }

            $reloads += $fault->nginx->reload;
        }

        $fault->nginx->old_workers_gone(20);
        $fault->works(20);
        $fault->wait_decisions(200, source => 'redis');
    });

    # counters are compared with what clients saw: all of them are kept

    $fault->check($load, workers => 0);

    note $load->count . ' requests';

    is $reloads, 50, 'all reloads worked';
    is $outages, 5, 'Redis was away five times';
    cmp_ok $load->count(sub { $_->{source} eq 'redis' }), '>', 100,
           'many decisions by Redis';
    cmp_ok $load->count(sub { $_->{source} eq 'local' }), '>', 100,
           'and many here';
    cmp_ok $load->metric('breaker_transitions_total', to => 'circuit_open'),
           '>=', 1, 'the breaker opened meanwhile';
    is $fault->metric('zone_resets_total'), 0, 'no key was forgotten';
    is $fault->state, 'distributed', 'the breaker is closed at the end';
    is $fault->metric('redis_connections'), 2,
       'connections are those of the last two workers';
    ok $fault->nginx->old_workers_gone(10), 'all others have left';

    $fault->finish;
};


subtest 'what is known here is kept over a reload' => sub {
    my $nginx = start_local();

    is passed($nginx, '/few?k=a', 3), 3, 'three pass';
    ok $nginx->reload, 'reload';
    is passed($nginx, '/few?k=a'), 2, 'two more pass';
    is passed($nginx, '/few?k=b'), 5, 'five of another key';
    is $nginx->metric('decisions_total', decision => 'passed', source => 'local'), 10,
       'all are counted';

    $nginx->finish;
};


subtest 'a binary upgrade under load: no request is lost and limits go on'
    => sub
{
    plan skip_all => 'the new binary would not run under valgrind'
        if $ENV{TEST_NGINX_USE_VALGRIND};

    my $redis = RateLimit::Redis->start;
    my $shards = $redis->addr;

    my $servers = join '', map { <<"EOC" }
        server {
            listen 127.0.0.1:$_->[0];
            $_->[1]

            ratelimit_key \$arg_k;
            ratelimit_capacity 1000000;
            ratelimit_rate 0r/s;
            add_header X-Source \$ratelimit_source always;

            location / { empty_gif; }
            location /few { ratelimit_capacity 5; empty_gif; }
        }
EOC
        ['%%PORT%%',
         "ratelimit_shards $shards; ratelimit_redis_timeout 20s;"],
        ['%%PORT2%%', ''];

    my $nginx = RateLimit::Nginx->new(
        log => 'notice', conf => "ratelimit_log_level info;\n$servers");
    my $master = $nginx->start_daemon;
    my @ports = ($nginx->port, $nginx->port(2));

    # how often "/few" passes at each of the two

    my $few = sub {
        my ($n) = @_;

        return [map {
            my $port = $_;
            scalar grep { RateLimit::Load::get($port, '/few?k=a')->{status}
                          == 200 } 1 .. $n
        } @ports];
    };

    is_deeply $few->(3), [3, 3], 'three pass';

    my @load = map { RateLimit::Load::start(
        port => $_, connections => 10, timeout => 120, pause => 2,
        path => sub { '/?k=' . $_[0] % 50 },
        keep => sub { { source => $_[0]{headers}{'x-source'} } },
    ) } @ports;

    kill 'USR2', $master;

    my $new = wait_until(sub {
        my $pid = $nginx->daemon;
        $pid && $pid != $master && $pid;
    }, 20);

    ok $new, 'there is a new master, with workers' or return;
    ok alive($master), 'beside the old one';

    my $both = $redis->calls + 500;
    ok wait_until(sub { $redis->calls > $both }, 20), 'they work together';

    kill 'QUIT', $master;
    ok wait_until(sub { !alive($master) }, 20), 'the old one leaves';

    my $alone = $redis->calls + 500;
    ok wait_until(sub { $redis->calls > $alone }, 20), 'the new one goes on';

    my @result = map { $_->stop } @load;

    for my $n (0, 1) {
        my $source = $n ? 'local' : 'redis';
        my $all = @{ $result[$n]{responses} };

        is_deeply $result[$n]{errors}, {}, "every request is answered ($all)";
        is_deeply $result[$n]{statuses}, { 200 => $all }, 'all pass';
        is scalar(grep { $_->{source} ne $source }
                  @{ $result[$n]{responses} }),
           0, "by $source";
    }

    is_deeply $few->(6), [2, 5],
       'limits go on in Redis, and begin anew where they are in memory';

    kill 'QUIT', $new;
    ok wait_until(sub { !alive($new) }, 20), 'the new one leaves';

    $nginx->no_alerts;
};


done_testing;
