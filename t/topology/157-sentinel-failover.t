# Masters that sentinels replace, under load: clients see degraded answers at
# most, for as long as there is no master; the new one is asked as soon as its
# sentinel says so, and the old one never again, even if it wakes up.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max);
use Time::HiRes qw(sleep time);

use RateLimit::FakeRedis;
use RateLimit::Fault;
use RateLimit::Sentinel;
use RateLimit::Util qw(patience wait_until);

my $WORKERS = 2;
my $SLACK = 1;          # s, for the scheduling of a busy machine
my $SWITCHES = $ENV{RATELIMIT_FAILOVERS} || 30;


# ---- what all parts use

sub connected {
    my ($fault, $server) = @_;

    return $fault->during(sub {
        wait_until(sub { $server->clients >= $WORKERS }, 20);
    })->count(sub { $_->{source} ne 'redis' }) == 0;
}


# By how much of a key more passed than may, at worst.

sub most_passed {
    my ($load, $which) = @_;

    my %passed;

    $passed{ $_->{key} }++
        for $load->requests(sub { $_->{status} == 200 && $which->() });

    return max(0, values %passed);
}


# After the switch: when all was well, by the last sentinel's word, as workers
# listen to different ones.

sub check_times {
    my ($all, $load, $back) = @_;

    my @switched = $all->switched;
    my @degraded = $load->requests(sub { $_->{source} ne 'redis' });
    my $last = max(0, map { $_->{started} } @degraded);

    is scalar @switched, 3, 'all sentinels have switched';

    diag sprintf 'the last degraded answer: %.2f s after the first event, '
                 . '%.2f s after the last', $last - $switched[0],
                 $last - $switched[-1];

    cmp_ok $last - $switched[-1], '<=', patience(1) + $SLACK,
           'Redis decides within 1 s of the event';
    is scalar(grep { $_->{started} > $back } @degraded), 0,
       'and goes on doing so';
}


subtest 'the master is killed: the next one is asked as soon as there is one'
    => sub
{
    my $capacity = 60;
    my $keys = 50;

    my $all = RateLimit::Sentinel->start(down_after => 1000);
    my $fault = RateLimit::Fault->start(
        redis  => [$all->servers],
        shards => 'sentinel=mymaster ' . $all->addrs,
        http   => 'ratelimit_deny_cache off;',
    );

    my $old = $all->master;

    ok connected($fault, $old), 'all workers are connected';

    my ($killed, $new, $back);

    my $load = $fault->during(sub {
        sleep 0.5;
        $old->kill9;
        $killed = time;
        $new = $all->wait_switch($old, undef, 60) or return;

        # all sentinels, as workers may listen to the last one that hears of it

        wait_until(sub { 3 == (() = $all->switched) }, 30);

        $back = $fault->distributed(30) && time;
        sleep 1;
    }, keys => $keys, capacity => $capacity);

    ok $new, 'another one takes over';
    ok $back, 'and is asked';
    check_times($all, $load, $back);

    cmp_ok $load->by('local'), '>', 50,
           'meanwhile limits went on here';

    # what the new one did not have yet may be given once more, and no more

    cmp_ok most_passed($load, sub { $_->{source} eq 'redis' }), '<=',
           2 * $capacity, 'Redis gave at most one bucket more to a key';
    cmp_ok most_passed($load, sub { $_->{source} eq 'local' }), '<=',
           $capacity / 4, 'and nginx its share';

    my $log = $fault->nginx->error_log;
    my ($was, $is) = map { quotemeta $_->addr } $old, $new;

    is scalar(() = $log =~ /ratelimit shard mymaster: the master is now $is \(was $was\), reported by sentinel/g),
       1, 'the log says so, once';
    is $load->metric('topology_events_total', event => 'failover'), 1,
       'and so do the metrics';

    $fault->check($load, lines => 100);
    is $new->clients, $WORKERS, 'connections: one per worker';

    # back, and on its way to be a replica: nobody asks it

    $old->start;

    my $more = $fault->during(sub { sleep 1.5 });

    is $more->count(sub { $_->{source} ne 'redis' }), 0, 'Redis decides';
    is $old->calls('evalsha') + $old->calls('eval'), 0,
       'the old one, which is back, gets no calls';
    $fault->finish;
};


# A master that has been stopped does not know that it is none any more when it
# wakes up.  What it was sent before it was stopped it runs then; what was asked
# for after the switch must not be there.

subtest 'the master is stopped, and wakes up' => sub {
    my $all = RateLimit::Sentinel->start(down_after => 1000);
    my $fault = RateLimit::Fault->start(
        redis   => [$all->servers],
        shards  => 'sentinel=mymaster ' . $all->addrs,
    );

    my $old = $all->master;

    ok connected($fault, $old), 'all workers are connected';

    my ($new, $back, $role, $woken, $later, $clients, @names);

    my $load = $fault->during(sub {
        sleep 0.5;
        $old->pause;
        $new = $all->wait_switch($old, undef, 60) or return;
        wait_until(sub { 3 == (() = $all->switched) }, 30);
        $back = $fault->distributed(30) && time;

        # keys that did not exist before

        $fault->ask("after$_", 10) for 1 .. 30;

        $old->resume;
        $woken = $old->calls('evalsha') + $old->calls('eval');

        $fault->ask("awake$_", 10) for 1 .. 30;
        sleep 1;

        # within some seconds sentinels make a replica of it, which has the
        # keys of the new one

        $clients = $old->clients;
        @names = @{ $old->cmd('KEYS', '*') };
        $role = $old->role;
        sleep 1;
        $later = $old->calls('evalsha') + $old->calls('eval');
    });

    ok $new, 'another one takes over';
    ok $back, 'and is asked';
    check_times($all, $load, $back);

    is $clients, 0, 'the old one has no connection of ours';
    is $later, $woken, 'and got no call after it was awake';

    SKIP: {
        skip 'it is a replica by now', 2 if $role ne 'master';

        is scalar(grep { /\{(?:after|awake)\d+\}/ } @names), 0,
           'nothing that was asked for after the switch is there';
        cmp_ok scalar(grep { /\{\d+\}/ } @names), '>', 0,
               'as opposed to what was asked for before';
    }

    is scalar(grep { $new->cmd('EXISTS', "ratelimit:localhost/:{awake$_}") }
              1 .. 30), 30, 'which is at the new one';

    $fault->check($load, lines => 100);
    $fault->finish;
};


# Both servers are there and work; the sentinel changes its mind, by an event,
# again and again.

subtest 'many switches leave nothing behind' => sub {
    my @servers = RateLimit::Sentinel::Server->start_many(2);

    my $bulk = sub { '$' . length($_[0]) . "\r\n$_[0]\r\n" };
    my $policy = sub {
        my ($server) = @_;

        my ($host, $port) = split /:/, $server->addr;

        return { handshake => {
            'SENTINEL GET-MASTER-ADDR-BY-NAME' =>
                "*2\r\n" . $bulk->($host) . $bulk->($port),
            SUBSCRIBE => "*3\r\n" . $bulk->('subscribe')
                         . $bulk->('+switch-master') . ":1\r\n",
            PING      => "*2\r\n" . $bulk->('pong') . $bulk->(''),
        } };
    };

    my $fake = RateLimit::FakeRedis->start(policy => $policy->($servers[0]));
    my $fault = RateLimit::Fault->start(
        redis  => \@servers,
        shards => 'sentinel=mymaster ' . $fake->addr,
    );

    ok connected($fault, $servers[0]), 'all workers are connected';
    ok wait_until(sub { $fake->connections->{open} == $WORKERS }),
       'and listen';

    my $done = 0;
    my @late;

    my $load = $fault->during(sub {
        for my $n (1 .. $SWITCHES) {
            my ($old, $new) = @servers[($n - 1) % 2, $n % 2];
            my $message = join ' ', 'mymaster', map { split /:/, $_->addr }
                                                $old, $new;

            $fake->policy($policy->($new));
            $fake->push("*3\r\n" . $bulk->('message')
                        . $bulk->('+switch-master') . $bulk->($message));

            my $start = time;

            wait_until(sub { $new->clients == $WORKERS && $old->clients == 0 },
                       20) or last;

            push @late, time - $start;
            $done++;
        }
    });

    is $done, $SWITCHES, "$SWITCHES switches";
    note sprintf 'the slowest took %.3f s', max(0, @late);

    is $load->metric('topology_events_total', event => 'failover'), $SWITCHES,
       'each is counted, once';
    is $load->metric('breaker_transitions_total', to => 'circuit_open'), 0,
       'and opens no breaker';

    # calls that were under way at a switch end as failures

    cmp_ok $load->by('local'), '<=', 25 * $SWITCHES,
           'only those under way are decided here';
    cmp_ok $load->by('redis'), '>', $load->by('local'),
           'Redis decides about most';
    is $load->count(sub { $_->{reason} eq 'timeout' }), 0,
       'nobody waits for a timeout';

    $fault->check($load, lines => 20 + 4 * $SWITCHES);
    is $fake->connections->{open}, $WORKERS, 'sentinels: one per worker';
    $fault->finish;
};


done_testing;
