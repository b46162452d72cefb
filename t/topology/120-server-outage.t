# Redis servers that die or hang under load: no client is hurt, the limits go on
# from this machine's share, and Redis decides again as soon as it can.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min);
use Time::HiRes qw(sleep time);

use RateLimit::Fault;
use RateLimit::Redis;
use RateLimit::Util qw(patience wait_until);

my $CONNECTIONS = 20;   # of the clients, each with one request at a time
my $FAILURES = 5;       # commands that open a breaker
my $WORKERS = 2;


sub median {
    my @sorted = sort { $a <=> $b } @_;

    return @sorted ? $sorted[@sorted / 2] : undef;
}


# How often each key was asked for and how often it passed.

sub by_key {
    my (@requests) = @_;

    my (%asked, %passed);

    for my $r (@requests) {
        $asked{ $r->{key} }++;
        $passed{ $r->{key} } += $r->{status} == 200;
    }

    return (\%asked, \%passed);
}


# Tokens that were taken from a key's bucket.

sub taken {
    my ($redis, $key, $capacity) = @_;

    my ($name) = grep { /\{\Q$key\E\}/ } @{ $redis->cmd('KEYS', "*{$key}*") };

    return defined $name ? $capacity - $redis->tokens($name)
                         : 0;
}


# Requests decided here, though the breaker was not open: those that were under
# way, and all that came while there was no connection.

sub tried {
    my ($load, $which) = @_;

    return $load->count(sub { $_->{source} eq 'local'
                              && $_->{reason} ne 'circuit_open'
                              && (!$which || $which->()) });
}


for my $way ('TCP', 'a unix socket') {
    subtest "killed and started again, over $way" => sub {
        my $capacity = 40;
        my $keys = 50;

        my $redis = RateLimit::Redis->start;
        my $fault = RateLimit::Fault->start(
            redis  => [$redis],
            shards => $way eq 'TCP' ? $redis->addr
                                    : 'unix:' . $redis->socket,
        );

        ok $fault->works, 'all workers are connected';

        my ($killed, $open, $back, $closed);

        my $load = $fault->during(sub {
            sleep 0.5;

            $redis->kill9;
            $killed = time;

            $open = $fault->wait_state('circuit_open', 5) && time;
            sleep max 0, $killed + 1 - time;

            $redis->start;
            $back = time;

            $closed = $fault->wait_state('distributed', 10) && time;
            sleep 0.5;

        }, keys => $keys, capacity => $capacity);

        $fault->check($load);

        ok $open, 'the breaker opens';
        is $load->metric('breaker_transitions_total', to => 'circuit_open'), 1,
           'once';
        is $fault->nginx->log_count(qr/\[error\] .* is unavailable/),
           1, 'and says so';
        cmp_ok $open - $killed, '<=', patience(2),
               'after as many failed connections as it takes';
        cmp_ok tried($load, sub { $_->{waited} > 0 }), '<=', $CONNECTIONS,
               'those under way may have waited, and nobody else';
        is $load->count(sub { $_->{reason} eq 'timeout' }), 0,
           'nobody waited for a timeout';
        cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open'
                                  && $_->{waited} > 0 }), '<=', $CONNECTIONS,
               'nobody waited while it was open, but whose call was to leave';

        ok $closed, 'the breaker closes';
        cmp_ok $closed - $back, '<=', patience(2), 'within 2 s';
        is $load->degraded_since($closed), 0, 'from then on Redis decides';

        # what this machine granted, over all of the outage

        my ($asked, $passed) = by_key(
            $load->requests(sub { $_->{source} eq 'local' }));

        is scalar(grep { $passed->{$_} > $capacity / 4 } keys %$passed), 0,
           'no key got more than the share here';
        is scalar(grep { $passed->{$_} != min $asked->{$_}, $capacity / 4 }
                  keys %$passed),
           0, 'nor less, if it was asked for';
        cmp_ok scalar(grep { $asked->{$_} > $capacity / 4 } keys %$asked), '>',
               $keys / 2, 'which many were';
        is $load->count(sub { $_->{source} eq 'local'
                              && $_->{limit} != $capacity / 4 }),
           0, 'and were told the share as their limit';

        # what Redis granted in each of its lives

        my $between = ($killed + $back) / 2;

        for my $life ('before', 'after') {
            ($asked, $passed) = by_key($load->requests(sub {
                $_->{source} eq 'redis'
                && ($_->{started} < $between) == ($life eq 'before')
            }));

            is scalar(grep { $passed->{$_} > $capacity } keys %$passed), 0,
               "no key got more than the limit from Redis $life";
        }

        is scalar(grep { $passed->{$_} != taken($redis, $_, $capacity) }
                  0 .. $keys - 1),
           0, 'Redis has counted what it granted since it was back';

        $fault->finish;
    };
}


subtest 'a Redis that stops for five seconds costs few clients a timeout'
    => sub
{
    my $keys = 100;
    my $timeout = 300;

    my $fault = RateLimit::Fault->start(timeout => $timeout,
                                        breaker => 'probe=1s');
    my $redis = $fault->redis;

    ok $fault->works, 'all workers are connected';

    my ($stopped, $open, $closed);

    my $load = $fault->during(sub {
        sleep 0.5;

        $redis->pause;
        $stopped = time;

        $open = $fault->wait_state('circuit_open', 5) && time;
        sleep max 0, $stopped + 5 - time;

        $redis->resume;

        $closed = $fault->wait_state('distributed', 10) && time;
        sleep 0.5;

    }, keys => $keys);

    $fault->check($load);

    ok $open, 'the breaker opens';
    is $load->metric('breaker_transitions_total', to => 'circuit_open'), 1,
       'once';
    ok $closed, 'and closes when Redis goes on';
    is $load->degraded_since($closed), 0, 'from then on Redis decides';

    # each of the commands that open it may be for all clients

    my $most = $FAILURES * $CONNECTIONS + $WORKERS;

    cmp_ok tried($load), '>=', $FAILURES, 'some waited for a timeout';
    cmp_ok tried($load), '<=', $most, 'but not more than were under way';
    cmp_ok $load->count(sub { $_->{waited} >= 0.9 * $timeout / 1000 }), '<=',
           $most, 'nobody else waited';
    cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open'
                              && $_->{waited} > 0 }), '<=', $CONNECTIONS,
           'nobody waited while it was open, but whose call was to leave';
    cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open' }), '>',
           10 * $most, 'which were most';

    # what was under way when it stopped ran when it went on, for nobody

    is scalar($load->mixed_up), 0, 'no answer is that of another request';

    my (undef, $passed) = by_key(
        $load->requests(sub { $_->{source} eq 'redis' }));
    my ($lost) = by_key($load->requests(sub { $_->{reason} eq 'timeout' }));

    my @wrong = grep {
        my $more = taken($redis, $_, RateLimit::Fault::apart($_))
                   - ($passed->{$_} // 0);
        $more < 0 || $more > ($lost->{$_} // 0);
    } 0 .. $keys - 1;

    is "@wrong", '', 'Redis has counted each that it granted, '
                     . 'and none but those whose answers got lost';

    $fault->finish;
};


# Here calls go on while late replies come: a breaker that stays out of it, and
# stops that are too short to give the connection up.

subtest 'stopped for a moment, again and again' => sub {
    my $keys = 100;
    my $fault = RateLimit::Fault->start(timeout => 200,
                                        breaker => 'failures=100 window=100ms');
    my $redis = $fault->redis;

    ok $fault->works, 'all workers are connected';

    my $stops = 0;

    my $load = $fault->during(sub {
        for (1 .. 5) {
            my @late = (redis_failures_total => class => 'timeout');
            my $n = $fault->metric(@late);

            # who was late asks again, and is behind its own late reply; a
            # server may owe one for 500 ms more, and nobody looks meanwhile,
            # as that takes its time on a busy machine

            $redis->pause;
            sleep 0.35;
            $redis->resume;

            $stops++ if $fault->metric(@late) > $n;

            $n = $fault->metric('redis_calls_total');

            wait_until(sub {
                $fault->metric('redis_calls_total') > $n + 10 * $CONNECTIONS
            }, 5);
        }
    }, keys => $keys);

    $fault->check($load);

    is $stops, 5, 'stopped five times, until replies were late';
    is $load->metric('redis_reconnects_total'), 0,
       'connections were kept';
    is $load->count(sub { $_->{reason} !~ /^(?:timeout)?$/ }), 0,
       'nothing else happened';
    is scalar($load->mixed_up), 0, 'no answer is that of another request';

    my ($granted) = by_key($load->requests(sub { $_->{source} eq 'redis' }));
    my ($late) = by_key($load->requests(sub { $_->{reason} eq 'timeout' }));

    my @wrong = grep {
        taken($redis, $_, RateLimit::Fault::apart($_))
        != ($granted->{$_} // 0) + ($late->{$_} // 0)
    } 0 .. $keys - 1;

    is "@wrong", '', 'Redis has counted each request, late or not';

    $fault->finish;
};


subtest 'one of three shards is dead: the others do not notice' => sub {
    my $fault = RateLimit::Fault->start(redis => 3);
    my ($dead, @alive) = map { $fault->redis($_)->addr } 0 .. 2;

    ok $fault->works, 'all workers are connected';

    my $healthy = $fault->during(sub { sleep 1 });

    my %shard = map { $_->{key} => $_->{shard} } $healthy->requests;
    my @median = median(map { $_->{time} }
                        $healthy->requests(sub { $_->{shard} ne $dead }));

    is $healthy->count(sub { $_->{source} ne 'redis' }), 0,
       'three shards: Redis decides';
    is scalar(keys %{ { map { $_ => 1 } values %shard } }), 3,
       'each has some of the keys';

    my $load = $fault->during(sub {
        $fault->redis(0)->kill9;
        $fault->wait_state('circuit_open', 5, $dead);
        sleep 1.5;
    });

    $fault->check($load);

    is $fault->state($dead), 'circuit_open', 'its breaker is open';

    for my $shard (@alive) {
        is $fault->state($shard), 'distributed', "that of another is not";
        is $load->metric('breaker_transitions_total', shard => $shard), 0,
           'and was not meanwhile';
        is $load->metric('redis_failures_total', shard => $shard), 0,
           'as nothing failed there';
    }

    my $others = sub { $shard{ $_->{key} } ne $dead };
    my $n = $load->count($others);

    cmp_ok $n, '>', $load->count / 3, 'many keys are on other shards';
    is $load->count(sub { $others->() && $_->{source} ne 'redis' }), 0,
       'Redis decides about all of these';
    cmp_ok $load->count(sub { !$others->() && $_->{source} eq 'local' }), '>',
           0, 'this machine about the rest';

    push @median, median(map { $_->{time} } $load->requests($others));

    cmp_ok $median[1], '<=', 3 * $median[0] + patience(0.005),
           'these took as long as before';
    note sprintf 'median %.2f ms, then %.2f ms', map { $_ * 1000 } @median;

    $fault->redis(0)->start;

    ok $fault->works(patience(15)), 'the dead one is back';

    $load = $fault->during(sub { sleep 0.3 });

    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis decides about all keys';

    $fault->finish;
};


done_testing;
