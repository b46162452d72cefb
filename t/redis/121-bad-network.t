# The way to Redis is bad, or what is at its end: answers that are late, halved
# or missing, connections that are open and dead, handshakes that are refused.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Time::HiRes qw(sleep time);

use RateLimit::FakeRedis;
use RateLimit::Fault;
use RateLimit::Proxy;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my $CONNECTIONS = 20;   # of the clients, each with one request at a time
my $FAILURES = 5;       # commands that open a breaker
my $WORKERS = 2;

# each of these commands may be for all clients
my $MOST = $FAILURES * $CONNECTIONS;

my $KEYS = 100;


# A Redis behind a bad network.

sub start {
    my (%opt) = @_;

    my $redis = RateLimit::Redis->start;
    my $proxy = RateLimit::Proxy->start(to => $redis->socket,
                                        %{ delete $opt{proxy} || {} });
    my $fault = RateLimit::Fault->start(redis => [$redis],
                                        shards => $proxy->addr, %opt);

    return ($fault, $proxy, $redis);
}


sub reason {
    my ($load, $reason) = @_;

    return $load->count(sub { $_->{reason} eq $reason });
}


# Keys of which Redis has not counted what clients say: all that it granted,
# and of those that got no answer from it between "least" and all.

sub miscounted {
    my ($redis, $load, $reason, $least) = @_;

    my (%granted, %lost);

    for my $r ($load->requests) {
        $granted{ $r->{key} }++ if $r->{source} eq 'redis';
        $lost{ $r->{key} }++ if $r->{reason} eq $reason;
    }

    return grep {
        my ($name) = @{ $redis->cmd('KEYS', "*{$_}*") };
        my $taken = defined $name ? RateLimit::Fault::apart($_)
                                    - $redis->tokens($name) : 0;
        my $more = $taken - ($granted{$_} // 0);

        $more < $least * ($lost{$_} // 0) || $more > ($lost{$_} // 0);
    } 0 .. $KEYS - 1;
}


subtest 'replies around the timeout' => sub {

    # so many failures that the breaker stays out of it

    my ($fault, $proxy, $redis) = start(timeout => 200, connect => 2000,
                                        breaker => 'failures=100 window=500ms');

    ok $fault->works, 'all workers are connected';

    my $load = $fault->during(sub {
        $proxy->set(delay => 200, swing => 80);
        sleep 3.5;
        $proxy->set(delay => 0, swing => 0);
        sleep 0.5;
    });

    $fault->check($load);

    cmp_ok reason($load, 'timeout'), '>', 50, 'many replies were late';
    cmp_ok $load->count(sub { $_->{source} eq 'redis' && $_->{waited} > 0.1 }),
           '>', 50, 'many just in time';
    is reason($load, 'storage_unavailable') + reason($load, 'circuit_open'), 0,
       'nothing else happened';
    is $load->metric('redis_reconnects_total'), 0,
       'no connection was given up';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';
    is join(' ', miscounted($redis, $load, 'timeout', 1)), '',
       'all late ones were counted, too';

    $fault->finish;

    # all too late: what tries the server is late as well

    my ($open, $still, $closed);

    ($fault, $proxy) = start(timeout => 200, connect => 2000);

    ok $fault->works, 'all workers are connected';

    $proxy->set(delay => 2300);

    $load = $fault->during(sub {
        $open = $fault->wait_state('circuit_open', 10);
        sleep 0.5;
        $still = $fault->state;
        $proxy->set(delay => 0);
        $closed = $fault->wait_state('distributed', 20) && time;
        sleep 0.3;
    }, connections => 60);

    $fault->check($load);

    ok $open, 'the breaker opens when all are late';
    is $still, 'circuit_open', 'and stays so';
    ok $closed, 'it closes when none is late';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    $fault->finish;
};


# Connections can be made, as these have more time: that makes no server of use.

subtest 'a server slower than calls may take' => sub {
    my $timeout = 100;
    my ($fault, $proxy) = start(timeout => $timeout, connect => 5000);

    ok $fault->works, 'all workers are connected';

    my ($open, $left, $closed);

    my $load = $fault->during(sub {
        $proxy->set(delay => 3 * $timeout);
        $open = $fault->wait_state('circuit_open', 10);

        # the breaker stays open; looked at often, as it could be closed for
        # a moment

        my $end = time + 4;

        while (time < $end) {
            $left++ if $fault->state ne 'circuit_open';
            sleep 0.01;
        }

        $proxy->set(delay => 0);
        $closed = $fault->wait_state('distributed', 20) && time;
        $fault->works(20);
        sleep 0.3;
    });

    $fault->check($load);

    ok $open, 'the breaker opens';
    is $left, undef, 'and stays open';
    cmp_ok $load->metric('breaker_transitions_total', to => 'circuit_open'),
           '<=', 2, 'so it seldom opens';
    is $load->metric('redis_reconnects_total'), 0,
       'no connection was given up';
    cmp_ok $load->count(sub { $_->{waited} >= 0.9 * $timeout / 1000 }), '<=',
           2 * ($MOST + $WORKERS),
           'only those under way have waited';
    cmp_ok reason($load, 'circuit_open'), '>', 500, 'many others came';
    ok $closed, 'it closes when the server is fast again';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    $fault->finish;
};


subtest 'connections that are half-open' => sub {
    my ($fault, $proxy, $redis) = start(timeout => 200);

    ok $fault->works, 'all workers are connected';

    my ($open, $closed);

    my $load = $fault->during(sub {
        sleep 0.3;
        $proxy->stall;
        $open = $fault->wait_state('circuit_open', 5);
        $closed = $fault->works(10) && time;
        sleep 0.5;
    });

    $fault->check($load);

    ok $open, 'the breaker opens';
    ok $closed, 'all workers make new connections by themselves';
    cmp_ok $proxy->connections->{accepted}, '<=', 4 * $WORKERS,
           'not many';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';

    # a worker may notice a moment after another one has closed the breaker

    cmp_ok $load->count(sub { $_->{waited} > 0.15 }), '<=',
           $MOST + $CONNECTIONS + $WORKERS,
           'only those under way have waited';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';
    is join(' ', miscounted($redis, $load, 'timeout', 0)), '',
       'Redis has counted what it granted';

    $fault->finish;
};


subtest 'connections reset in the middle of a reply' => sub {
    my ($fault, $proxy, $redis) = start();

    ok $fault->works, 'all workers are connected';

    my ($asked, $cuts) = (0, 0);
    my $closed;

    my $load = $fault->during(sub {
        for (1 .. 6) {
            my $resets = $proxy->connections->{resets};

            $proxy->cut;

            # on a busy machine one worker may have all clients: the other one
            # needs a reply as well

            $cuts++ if wait_until(sub {
                $fault->ask('cut' . $asked++, 1);
                $proxy->connections->{resets} >= $resets + $WORKERS
            }, 5);

            $fault->works or last;
        }

        $closed = time;
        sleep 0.5;
    });

    $fault->check($load);

    is $cuts, 6, 'cut six times, for each worker';
    is $load->degraded_since($closed), 0, 'Redis decides after the last one';
    cmp_ok reason($load, 'storage_unavailable'), '>=', 6,
           'requests whose replies were cut are decided here';
    # a client may meet the reset of each worker

    cmp_ok $load->count(sub { $_->{reason} eq 'storage_unavailable'
                              && $_->{waited} > 0 }), '<=',
           6 * $CONNECTIONS * $WORKERS, 'only those have waited';
    is reason($load, 'timeout'), 0, 'and for no timeout';
    is scalar($load->mixed_up), 0, 'half a number is none';
    is join(' ', miscounted($redis, $load, 'storage_unavailable', 0)), '',
       'Redis has counted each that it granted, '
       . 'and none but those whose replies were cut';

    $fault->finish;
};


subtest 'a server that accepts and never answers' => sub {
    my $timeout = 200;
    my ($fault, $proxy) = start(timeout => $timeout, breaker => 'probe=500ms',
                                proxy => { mute => 1 });

    # from the start

    my ($open, $tries, $closed);
    my $together = 0;

    my $load = $fault->during(sub {
        $open = $fault->wait_state('circuit_open', 10);

        # tries that began before it was open end

        sleep 0.5;

        my $from = $proxy->connections->{accepted};
        my $end = time + 1.5;

        while (time < $end) {
            my $now = $proxy->connections;

            $tries = $now->{accepted} - $from;
            $together = $now->{open} if $now->{open} > $together;
            sleep 0.01;
        }

        $proxy->set(mute => 0);
        $closed = $fault->works(20) && time;
        sleep 0.3;
    });

    $fault->check($load, descriptors => 1);

    ok $open, 'the breaker opens';
    ok $closed, 'and closes when there is an answer';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    cmp_ok $tries, '>=', 1, 'it is tried meanwhile';
    is $together, 1, 'by one worker at a time';
    cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open'
                              && $_->{waited} > 0 }), '<=', $CONNECTIONS,
           'nobody waits while it is open, but whose call was to leave';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    # and later, when there was one: no packet gets through any more

    $load = $fault->during(sub {
        sleep 0.3;
        $proxy->set(mute => 1);
        $proxy->stall;
        $open = $fault->wait_state('circuit_open', 10);
        sleep 1.2;

        $proxy->set(mute => 0);
        $closed = $fault->works(20) && time;
        sleep 0.3;
    });

    $fault->check($load);

    ok $open, 'the breaker opens again';
    ok $closed, 'and closes when there is an answer';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    cmp_ok $load->count(sub { $_->{waited} >= 0.9 * $timeout / 1000 }), '<=',
           $MOST + $WORKERS,
           'only those under way have waited';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    $fault->finish;
};


subtest 'a handshake that is answered with errors' => sub {
    my $say = sub { { handshake => { '*' => "-$_[0]\r\n" } } };
    my $probe = sub { { handshake => { PROBE => "-$_[0]\r\n" } } };

    my @cases = (
        loading    => $say->('LOADING Redis is loading the dataset in memory'),
        masterdown => $say->("MASTERDOWN Link with MASTER is down and "
                             . "replica-serve-stale-data is set to 'no'."),
        auth       => $say->('NOAUTH Authentication required.'),
        busy       => $say->('BUSY Redis is busy running a script.'),
        clients    => { accept => {
            reply => "-ERR max number of clients reached\r\n",
            then  => 'close',
        } },
        readonly   => $probe->("READONLY You can't write against a read only "
                               . "replica."),
        oom        => $probe->("OOM command not allowed when used memory > "
                               . "'maxmemory'."),
        misconf    => $probe->('MISCONF Redis is configured to save RDB '
                               . 'snapshots'),
        error      => $probe->('ERR unknown command'),
        protocol   => { accept => { reply => "HTTP/1.1 400 Bad Request\r\n" } },
        closed     => { accept => { then => 'close' } },
    );

    my $fake = RateLimit::FakeRedis->start(policy => $cases[1]);
    my $redis = RateLimit::Redis->new(port => $fake->port);
    my $fault = RateLimit::Fault->start(redis => [$redis],
                                        breaker => 'probe=100ms');

    my (@unseen, @wrong, $accepted, $calls, $closed);
    my $began = time;

    my $load = $fault->during(sub {
        for (my $i = 0; $i < @cases; $i += 2) {
            my ($class, $policy) = @cases[$i, $i + 1];

            my $n = $fault->metric('redis_failures_total', class => $class);

            $fake->policy($policy);

            wait_until(sub {
                $fault->metric('redis_failures_total', class => $class) > $n
            }, 10) or push @unseen, $class;

            push @wrong, $class if $fault->state eq 'distributed';
        }

        $accepted = $fake->connections->{accepted};
        $began = time - $began;
        $calls = $fake->commands('EVALSHA');

        $fake->stop;
        $redis->start;
        $closed = $fault->works(20) && time;
        sleep 0.3;
    });

    $fault->check($load, descriptors => 1);

    is "@unseen", '', 'each error counts as what it is';
    is "@wrong", '', 'and makes no working server';
    is $calls, 0, 'none of them was sent a call';

    # pauses of 50 ms at least, when they don't grow any more

    cmp_ok $accepted, '<=', 20 + $began / 0.05, 'nor was tried in a storm';
    ok $closed, 'a real server is used at once';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    $fault->finish;
};


subtest 'a wrong password, corrected by a reload' => sub {
    my ($right, $wrong) = ('Rose-and-Crown', 'Hare-and-Hounds');

    my $redis = RateLimit::Redis->start(config => { requirepass => $right });
    my $fault = RateLimit::Fault->start(
        redis   => [$redis],
        shards  => "redis://:$wrong\@" . $redis->addr,
        breaker => 'probe=200ms',
    );
    my $nginx = $fault->nginx;

    my ($open, $tries, $until, $reloaded, $closed);

    my $load = $fault->during(sub {
        $open = $fault->wait_state('circuit_open', 10);
        sleep 1;
        $until = time;
        $tries = $redis->info('stats')->{total_connections_received};

        $reloaded = $fault->reload("redis://:$right\@" . $redis->addr);

        # old workers go on with the old password

        $closed = $nginx->old_workers_gone(20) && $fault->works(20) && time;
        sleep 0.3;
    });

    $fault->check($load, workers => 0);

    ok $open, 'wrong: the breaker opens';
    cmp_ok $load->metric('redis_failures_total', class => 'auth'), '>', 0,
           'the failure is that of the password';
    cmp_ok $tries, '<=', 40, 'Redis is not stormed';
    is $load->count(sub { $_->{started} < $until
                          && $_->{source} ne 'local' }),
       0, 'limits go on here';

    ok $reloaded, 'reloaded with the right one';
    ok $closed, 'the breaker closes';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';
    cmp_ok $load->by('redis'), '>', 50, 'about many requests';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';

    like $nginx->error_log, qr/\[error\] .* redis refused AUTH: "WRONGPASS/,
         'the log says what is wrong';

    my $told = $nginx->error_log
               . $nginx->get('/metrics')->{body};

    unlike $told, qr/\Q$right\E|\Q$wrong\E/,
           'but no password, nor do the metrics';

    $fault->finish;
};


done_testing;
