# Masters of a cluster that go: killed, and handed over on purpose, under load.
# Clients see degraded answers at most, and when a replica has taken over all
# are asked for in Redis again.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min);
use Time::HiRes qw(sleep time);

use RateLimit::Cluster;
use RateLimit::Fault;
use RateLimit::Util qw(patience wait_until);

my $WORKERS = 2;
my $SLACK = 1;          # s, for the scheduling of a busy machine
my $FAILOVERS = $ENV{RATELIMIT_FAILOVERS} || 8;


# ---- what all parts use

subtest 'a master is killed: its replica is asked within seconds' => sub {
    my $keys = 100;
    my $capacity = 5000;

    my $cluster = RateLimit::Cluster->start(replicas => 3, timeout => 1500);
    my $fault = RateLimit::Fault->start(
        redis  => [$cluster->masters],
        shards => 'cluster ' . $cluster->addrs,
    );

    ok $fault->distributed, 'all nodes are used';

    # some load first, so that all workers have all of their connections

    $fault->during(sub {
        wait_until(sub {
            !grep { $_->clients < $WORKERS } $cluster->masters
        }, 20);
    });

    my @masters = $cluster->masters;
    my $victim = $masters[1];
    my $addr = $victim->addr;
    my %dead = map { $_ => 1 }
               grep { $cluster->node_of("$_") == $victim } 0 .. $keys - 1;
    my ($f, $back, $end);

    my $load = $fault->during(sub {
        sleep 0.5;
        $f = $cluster->kill_master($victim, 60) or return;

        $back = $fault->distributed(30, 30) && time;
        sleep 1;
        $end = time;
    }, keys => $keys, capacity => $capacity);

    ok $f, 'a replica takes over';
    ok $back, 'all keys are in Redis again';

    diag sprintf 'promoted after %.2f s, all distributed %.2f s later',
                 $f->{promoted} - $f->{killed}, $back - $f->{promoted};
    cmp_ok $back - $f->{promoted}, '<=', patience(2) + $SLACK, 'within 2 s';

    # the last degraded answer of all

    my @degraded = $load->requests(sub { $_->{source} ne 'redis' });
    my $last = max map { $_->{started} } @degraded;

    diag sprintf 'the last degraded answer came %.2f s after the promotion',
                 $last - $f->{promoted};
    cmp_ok $last - $f->{promoted}, '<=', patience(2) + $SLACK,
           'none later';
    is scalar(grep { $_->{started} > $back } @degraded), 0,
       'from then on Redis decides';

    # the cluster as a whole is down for a moment while one of its masters is
    # known to be dead, so others may be degraded, too; not for long

    my @others = grep { !$dead{ $_->{key} } } @degraded;

    note scalar(@degraded) . ' degraded, of which ' . scalar(@others)
         . ' of other nodes';
    cmp_ok scalar(grep { $dead{ $_->{key} } } @degraded), '>', 0,
           'keys of the dead one were decided here meanwhile';

    # what is lost with a master is at most what its replica did not have yet

    my %passed;

    $passed{ $_->{key} }++
        for $load->requests(sub { $_->{source} eq 'redis'
                                  && $_->{status} == 200 });

    is scalar(grep { $_ > 2 * $capacity } values %passed), 0,
       'no key got more than twice its limit';

    $fault->check($load, lines => 300);

    cmp_ok max(map { $_->clients } $cluster->nodes), '<=', $WORKERS,
           'connections stay workers x nodes';
    cmp_ok $load->metric('topology_events_total', event => 'map_refresh'),
           '<=', $WORKERS * ($load->result->{elapsed} + 10),
           'no storm of maps';

    my %nodes = map { $_->{node} => 1 } grep { $_->{value} }
                @{ $fault->metrics->{nginx_ratelimit_shard_node} };

    ok $nodes{ $f->{master}->addr }, 'the new master is one of the nodes';
    ok wait_until(sub {
        !grep { $_->{value} && $_->{node} eq $addr }
         @{ $fault->metrics->{nginx_ratelimit_shard_node} }
    }, 10), 'the old one is none any more';

    # back, as a replica: nobody asks it

    $victim->start;
    ok $cluster->wait_ok && wait_until(sub { !$victim->is_master }, 20),
       'it comes back as a replica';

    my $calls = $victim->calls('evalsha');
    my $more = $fault->during(sub { sleep 1 });

    is $more->count(sub { $_->{source} ne 'redis' }), 0, 'Redis decides';
    is $victim->calls('evalsha'), $calls, 'and a replica gets no calls';
    $fault->check($more);

    $fault->finish;
};


# Nothing is lost when a master hands over: it waits for its replica, and no
# write comes in between.  So limits stay exact.  Redis 7 sometimes forgets for
# seconds to tell clients that it has made wait that they should go elsewhere.

subtest 'masters hand over, again and again' => sub {
    my $keys = 300;
    my $capacity = 20;

    my $cluster = RateLimit::Cluster->start(replicas => 3);
    my $fault = RateLimit::Fault->start(
        redis   => [$cluster->masters],
        shards  => 'cluster ' . ($cluster->masters)[0]->addr,
        timeout => 60_000,
        connect => 60_000,
        http    => 'ratelimit_on_error closed; ratelimit_deny_cache off;',
    );

    ok $fault->distributed, 'all nodes are used';

    $fault->during(sub {
        wait_until(sub {
            !grep { $_->clients < $WORKERS } $cluster->masters
        }, 20);
    });

    my $done = 0;

    my $load = $fault->during(sub {
        for my $n (1 .. $FAILOVERS) {
            my ($master) = ($cluster->masters)[$n % 3];
            my ($replica) = $cluster->replicas_of($master);

            $cluster->failover($replica) or last;
            $cluster->wait_ok or last;
            $done++;
        }

        wait_until(sub {
            $fault->metric('requests_total') > 1.5 * $keys * $capacity
        }, 30);
    }, keys => $keys, capacity => $capacity, pause => 10);

    is $done, $FAILOVERS, "$FAILOVERS times";

    my (%asked, %passed);

    for my $r ($load->requests) {
        $asked{ $r->{key} }++;
        $passed{ $r->{key} } += $r->{status} == 200;
    }

    is_deeply $load->result->{errors}, {}, 'no client saw an error';
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'nor a degraded answer';
    is scalar(grep { $passed{$_} != min $asked{$_}, $capacity } keys %asked),
       0, 'exactly as many pass as may';
    note sprintf '%d requests, the slowest took %.0f ms',
                 scalar($load->requests), $load->result->{max_latency} * 1000;

    # a pause of the cluster is one of the clients

    $fault->check($load, lines => 20 + 10 * $FAILOVERS);

    cmp_ok max(map { $_->clients } $cluster->nodes), '<=', $WORKERS,
           'connections stay workers x nodes';
    $fault->finish;
};


# A replica that takes over while nobody asks: the next request finds it.

subtest 'nobody was there when it happened' => sub {
    my $cluster = RateLimit::Cluster->start(replicas => 3);
    my $fault = RateLimit::Fault->start(
        redis   => [$cluster->masters],
        shards  => 'cluster ' . $cluster->addrs,
        timeout => 20_000,
        connect => 20_000,
        workers => 1,
    );

    ok $fault->distributed, 'all nodes are used';

    my $owners = $cluster->owners;
    my ($master) = $cluster->masters;
    my ($replica) = $cluster->replicas_of($master);
    my $n = 0;

    $n++ while $owners->[RateLimit::Cluster::slot("n$n")] != $master;

    my $before = $fault->ask("n$n", 10);

    is $before->{shard}, $master->addr, 'at the master';

    $cluster->failover($replica);
    ok $cluster->wait_ok, 'handed over';

    my $after = $fault->ask("n$n", 10);

    is $after->{source}, 'redis', 'the next one is decided by Redis';
    is $after->{remaining}, 8, 'from the same bucket';
    is $fault->ask("n$n", 10)->{shard}, $replica->addr, 'at the new master';

    $fault->finish;
};


done_testing;
