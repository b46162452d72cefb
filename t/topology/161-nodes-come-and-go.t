# Nodes of a cluster that come and go, for ever: what is shared about one that has
# left is given to the next.  Limits have room of their own in the zone, and no
# two nodes ever share a breaker.
#
# The nodes that come and go are addresses in a map: nobody listens there, and
# nobody has to, as no key of the test is theirs.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Resp;
use RateLimit::Util qw(dead_port wait_until);

my $MAX = 2 ** 14 - 1;
my $PASSED = ":99000000\r\n";

# no breaker is in the way for long, nothing is remembered
my @EAGER = (breaker => 'failures=100 window=100ms probe=100ms',
             deny_cache => 'off');


# With so many limits besides, ten in a location.

sub conf {
    my ($seed, %opt) = @_;

    my $n = delete $opt{limits} // 0;
    my $zone = delete $opt{zone} // '4m';

    my $limits = join '', map { "ratelimit_limit extra$_ key=\$arg_k "
                                . "capacity=10 rate=1r/s;\n" } 1 .. $n;
    my $locations = join '', map {
        my $tens = 10 * $_;
        "location /extra$_ { ratelimit "
        . join(' ', map { "extra$_" } $tens + 1 .. $tens + 10)
        . "; empty_gif; }\n"
    } 0 .. $n / 10 - 1;

    return limiter_conf("cluster $seed", timeout => '5s', @EAGER, %opt,
                        conf => "ratelimit_zone $zone;\n$limits",
                        server => <<"EOC");
        ratelimit_key      \$arg_k;
        ratelimit_capacity 100;
        ratelimit_rate     120r/h;

        $locations
        location / { empty_gif; }
EOC
}


# The labels of all nodes that metrics know.

sub nodes {
    my ($nginx) = @_;

    my %seen = map { $_ => 1 }
               $nginx->get('/metrics')->{body} =~
                   /^nginx_ratelimit_redis_calls_total\{shard="([^"]+)"/mg;

    return sort keys %seen;
}


# All workers have read a map that has these nodes, and no others beside them.

my $round = 0;

sub new_map {
    my ($nginx, $fake, $n) = @_;

    my $dead = dead_port();
    my @nodes = map { sprintf '127.%d.%d.%d', 1 + ($round >> 8), $round & 255,
                              $_ } 1 .. $n;
    $round++;

    my $slot = RateLimit::Cluster::slot('a');
    my @others = grep { $_ != $slot } 0 .. $n;

    $fake->policy(cluster_policy(
        slots_reply([0, $MAX, '127.0.0.1', $fake->port],
                    map { [$others[$_], $others[$_], $nodes[$_], $dead] }
                        0 .. $#nodes),
        eval => $PASSED));
    $fake->drop;

    my $expected = join ' ', sort $fake->addr, map { "$_:$dead" } @nodes;

    return wait_until(sub {
        seen($nginx->get('/?k=a')) eq '200 redis'
        && join(' ', nodes($nginx)) eq $expected
    }, 30);
}


subtest 'more nodes than there is memory for, one after another' => sub {
    my $fake = RateLimit::FakeRedis->start(
        policy => cluster_policy("*0\r\n", eval => $PASSED));
    my $nginx = RateLimit::Nginx->start(
        conf($fake->addr, workers => 1, log => 'warn'));
    my ($worker) = $nginx->workers;
    my $n = 0;

    # 4 MB have room for some 45 of them

    for (1 .. 60) {
        last unless new_map($nginx, $fake, 20);
        $n += 20;
    }

    is $n, 1200, 'each is known as long as it is there, and no longer';
    is_deeply [$nginx->workers], [$worker], 'by the same worker';
    ok !$nginx->log_like(qr/no room for cluster node|nodes at once/),
       'there is always room for the next';

    ok $nginx->reload(conf($fake->addr, limits => 40,
                                  log => 'warn')),
       'and room for more limits';
    # those of a worker that was killed are free as well

    ok new_map($nginx, $fake, 20), 'after a reload';
    $nginx->kill_worker('KILL');
    ok new_map($nginx, $fake, 20), 'after a worker has died' for 1 .. 4;

    ok !$nginx->log_like(qr/no room for cluster node/), 'still room';
    $nginx->finish(except => qr/exited on signal 9/);
};


subtest 'old and new workers have the same records' => sub {
    my $fake = RateLimit::FakeRedis->start(
        policy => cluster_policy("*0\r\n", eval => $PASSED));
    my $nginx = RateLimit::Nginx->start(
        conf($fake->addr, workers => 2, log => 'warn'));
    my $n = 0;

    for (1 .. 6) {
        $n += new_map($nginx, $fake, 20) ? 1 : 0;
        $n += $nginx->reload ? 1 : 0;
    }

    is $n, 12, 'reloads in between';
    ok !$nginx->log_like(qr/no room for cluster node/), 'all have room';
    $nginx->finish;
};


# More nodes at the same time than the zone has room for: then each worker knows
# by itself which of them is away, and does not confuse it with the others.

subtest 'a node that is away takes no other one with it' => sub {
    my @fakes = map { RateLimit::FakeRedis->start(policy => {
                          eval => $PASSED }) } 1 .. 2;
    my ($seed, $well) = @fakes;
    my $dead = dead_port();
    my ($a, $b) = map { RateLimit::Cluster::slot($_) } 'a', 'b';
    my $map = slots_reply([0, $MAX, '127.0.0.1', $seed->port],
                          (map { [$_, $_, "127.9.9.$_", $dead] } 1 .. 60),
                          [$a, $a, '127.9.8.1', $dead],
                          [$b, $b, '127.0.0.1', $well->port]);

    $_->policy(cluster_policy($map, eval => $PASSED)) for @fakes;

    my $nginx = RateLimit::Nginx->start(
        conf($seed->addr, zone => '200k',
             breaker => 'failures=3 window=600s probe=1h'));

    ok works($nginx, 15, '/?k=b'),
       'one node is well';
    is $nginx->log_count(qr/"ratelimit_zone" has no room for cluster node/), 1,
       'the log says once that the zone is full';

    is seen($nginx->get('/?k=a')), '503 closed', 'the other one is away'
        for 1 .. 10;
    is seen($nginx->get('/?k=b')), '200 redis', 'the first one is well still'
        for 1 .. 10;

    $nginx->finish;
};


# A request waits to be sent to a node at the very moment in which that leaves.

subtest 'a node that has left is not connected to for good' => sub {
    my @fakes = map { RateLimit::FakeRedis->start(policy => {
                          eval => $PASSED }) } 1 .. 2;
    my ($seed, $leaves) = @fakes;
    my $slot = RateLimit::Cluster::slot('a');
    my $before = slots_reply([0, $MAX, '127.0.0.1', $seed->port],
                             [$slot, $slot, '127.0.0.1', $leaves->port]);
    my $after = all_slots('127.0.0.1', $seed->port);

    $_->policy(cluster_policy($before, eval => $PASSED)) for @fakes;

    my $nginx = RateLimit::Nginx->start(conf($seed->addr));
    my ($worker) = $nginx->workers;
    my $client = RateLimit::Load::connection($nginx->port);

    ok wait_until(sub { seen($nginx->get('/?k=a')) eq '200 redis'
                        && $leaves->commands('EVALSHA') }, 15), 'it is there';
    $client->send('/?k=a');
    is seen($client->response(10)), '200 redis', 'one client stays';

    # the request, then the map, are there when the worker goes on

    $seed->policy(cluster_policy({ reply => $after, delay => 1000 },
                                 eval => $PASSED));
    $leaves->policy(cluster_policy($after, eval => $PASSED));
    $seed->clear;
    $seed->drop;
    ok $seed->wait_commands('CLUSTER', 1), 'the map is asked for';

    kill 'STOP', $worker;
    $client->send('/?k=a');
    sleep 2;
    kill 'CONT', $worker;

    is seen($client->response(10)), '200 redis', 'the client is answered';
    ok wait_until(sub { $leaves->connections->{open} == 0 }, 30),
       'and the node is left alone';

    $nginx->finish;
};


done_testing;
