# What becomes of calls, breakers and leases while the place of a server
# changes: a call goes where its server is, a failure is that of the server that
# failed, and nothing is left of a place that is no more.
#
# The name is "localhost", which the system knows as 127.0.0.1 when nginx
# starts; the DNS server of the test says something else then.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(first sum0);

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Redis;
use RateLimit::Resp;
use RateLimit::Sentinel;
use RateLimit::Util qw(free_port wait_until);

my $ROUNDS = 100;
my $PASSED = ":99000000\r\n";

my $dns = RateLimit::Dns->start;

my @OPTIONS = (breaker => 'failures=5 window=600s probe=200ms',
               conf => 'resolver ' . $dns->addr . ' valid=1s;');


# ---- what all parts use

sub state {
    my ($nginx, $shard) = @_;

    my $state = first { $_->{shard} eq $shard && $_->{value} }
                @{ $nginx->metrics->{nginx_ratelimit_breaker_state} };

    return $state ? $state->{state} : 'unknown';
}


# How often the breaker of a shard has got into this state.

sub got {
    my ($nginx, $shard, $state) = @_;

    return $nginx->metric('breaker_transitions_total', shard => $shard,
                          to => $state);
}


sub move {
    my ($nginx, $address) = @_;

    my $from = length $nginx->error_log;

    $dns->name('localhost', a => [$address]);

    return wait_until(sub {
        substr($nginx->error_log, $from) =~ /addresses are now \Q$address\E$/m
    }, 20);
}


sub finish {
    my ($nginx) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    ok wait_until(sub { $nginx->metric('redis_calls_in_flight') == 0 }, 10),
       'no call is under way';
    $nginx->finish(same_workers => 1);
}


# Nodes that share all slots, each at an address of its own and the same port,
# as those behind one name do.

sub start_nodes {
    my ($port, @addresses) = @_;

    my @nodes = map {
        RateLimit::Cluster::Node->start(
            port => $port, bind => $_,
            config => {
                'cluster-enabled'      => 'yes',
                'cluster-config-file'  => 'nodes.conf',
                'cluster-node-timeout' => 15000,
                'cluster-announce-ip'  => $_,
            })
    } @addresses;

    for my $n (0 .. $#nodes) {
        my ($from, $to) = map { int $_ * 16384 / @nodes } $n, $n + 1;

        $nodes[$n]->cmd('CLUSTER', 'SET-CONFIG-EPOCH', $n + 1);
        $nodes[$n]->cmd('CLUSTER', 'ADDSLOTS', $from .. $to - 1);
        $nodes[$n]->cmd('CLUSTER', 'MEET', $_, $port)
            for @addresses[$n + 1 .. $#nodes];
    }

    wait_until(sub {
        !grep { $_->cmd('CLUSTER', 'INFO') !~ /^cluster_state:ok/m
                || @{ $_->cmd('CLUSTER', 'SLOTS') } != @nodes } @nodes
    }, 30) or die "the cluster is not ok:\n"
                  . join "\n", map { $_->log } @nodes;

    return @nodes;
}


# ---- calls

# A node that can't serve a slot for a moment, under a name.

sub start_down {
    my ($port) = @_;

    $dns->name('localhost', a => ['127.0.0.1']);

    return RateLimit::FakeRedis->start(port => $port, policy =>
        cluster_policy(all_slots('localhost', $port),
                       eval => "-CLUSTERDOWN Hash slot not served\r\n"));
}


subtest 'a call that is tried again goes where its node is by then' => sub {
    my $port = RateLimit::Cluster::port_pair();
    my $old = start_down($port);
    my ($new) = start_nodes($port, '127.0.0.2');
    my $nginx = start_nginx("cluster localhost:$port", @OPTIONS);
    my @requests = map { $nginx->begin("/?k=$_") } 1 .. 5;

    ok $old->wait_commands('EVALSHA', 20, 20), 'calls are tried many times';
    ok move($nginx, '127.0.0.2'), 'meanwhile their node has gone elsewhere';

    is_deeply [map { seen($_->response(20)) } @requests],
              [('200 redis') x @requests], 'which answers them';
    cmp_ok $new->calls('evalsha') + $new->calls('eval'), '>=', @requests,
           'as they have got there';
    ok wait_until(sub { $old->connections->{open} == 0 }, 20),
       'nothing is left of the old place';

    finish($nginx);
};


subtest 'calls to a node that is nowhere fail in the end' => sub {
    my $port = free_port();
    my $old = start_down($port);
    my $nginx = start_nginx("cluster localhost:$port", @OPTIONS);
    my @requests = map { $nginx->begin("/?k=$_") } 1 .. 5;

    ok $old->wait_commands('EVALSHA', 20, 20), 'calls are tried many times';
    ok move($nginx, '127.0.0.2'), 'meanwhile their node is nowhere';

    is_deeply [map { seen($_->response(20)) } @requests],
              [('503 closed') x @requests], 'so they fail';
    ok wait_until(sub { $old->connections->{open} == 0 }, 20),
       'nothing is left of the old place';

    # a name may come back

    $old->policy(cluster_policy(all_slots('localhost', $port),
                                eval => $PASSED));
    ok move($nginx, '127.0.0.1'), 'it is back';
    ok works($nginx, 20, '/?k=a'),
       'and is asked';

    finish($nginx);
};


# ---- a cluster behind a name

my $port = RateLimit::Cluster::port_pair();
my @nodes = start_nodes($port, '127.0.0.1', '127.0.0.2');
my @addrs = map { "127.0.0.$_:$port" } 1, 2;


sub name_of { return "ratelimit:localhost:{$_[0]}" }


# Keys, half of which each node has.

sub keys_of {
    my ($n) = @_;

    return grep { int(RateLimit::Cluster::slot(name_of($_)) / 8192) == $n }
           1 .. 60;
}


subtest 'the name of a seed moves to another node: slots stay' => sub {
    $dns->name('localhost', a => ['127.0.0.1']);

    my $nginx = start_nginx("cluster localhost:$port", @OPTIONS);
    my @keys = map { keys_of($_) } 0, 1;

    is_deeply [grep { seen($nginx->get("/?k=$_")) ne '200 redis' } @keys], [],
              'before';

    ok move($nginx, '127.0.0.2'), 'it moves';

    is_deeply [grep { seen($nginx->get("/?k=$_")) ne '200 redis' } @keys], [],
              'Redis decides about all keys';

    my $moved = $nginx->topology_events('moved');

    is_deeply [grep { seen($nginx->get("/?k=$_")) ne '200 redis' } @keys], [],
              'also later';
    is $nginx->topology_events('moved'), $moved,
       'without a redirect';

    for my $n (0, 1) {
        my $left = sub { $nodes[$n]->tokens(name_of($_[0])) };

        is_deeply [grep { $left->($_) != 997 } keys_of($n)], [],
                  "all was taken at $addrs[$n]";
    }

    finish($nginx);
};


# Whether limits can be kept there a node says about its own slots alone.

subtest 'a node without memory stays out until it has some' => sub {
    my $nginx = start_nginx(join(' ', 'cluster', @addrs), @OPTIONS);

    for my $n (0, 1) {
        my ($node, $addr) = ($nodes[$n], $addrs[$n]);
        my @own = keys_of($n);
        my @others = keys_of(1 - $n);
        my $asked = sub { $node->errors('OOM') + $node->errors('MOVED') };

        is seen($nginx->get("/?k=$own[0]")), '200 redis', "$addr: before";

        $node->cmd('CONFIG', 'SET', 'maxmemory', 1);
        seen($nginx->get("/?k=$_")) for @own[0 .. 9];
        is state($nginx, $addr), 'circuit_open', 'its breaker opens';

        my $before = got($nginx, $addr, 'distributed');
        my $from = $asked->();

        ok wait_until(sub { $asked->() >= $from + 3
                            || got($nginx, $addr, 'distributed') > $before },
                      20), 'it is asked whether it has memory';
        is got($nginx, $addr, 'distributed'), $before, 'which it has not';
        is seen($nginx->get("/?k=$own[0]")), '503 closed',
           'nobody asks it for more';
        is_deeply [grep { seen($nginx->get("/?k=$_")) ne '200 redis' } @others], [],
                  'the other one works';

        $node->cmd('CONFIG', 'SET', 'maxmemory', 0);
        ok wait_until(sub { state($nginx, $addr) eq 'distributed' }, 20),
           'until it has';
        is seen($nginx->get("/?k=$own[0]")), '200 redis', 'then it is asked';
        is got($nginx, $addr, 'circuit_open'), 1, 'its breaker has opened once';
    }

    finish($nginx);
};


# ---- whose failure it is

subtest 'ASK to a node that is silent is a failure of that one' => sub {
    my ($here, $there) = map { free_port() } 1, 2;
    my $map = all_slots('127.0.0.1', $here);

    my $asks = RateLimit::FakeRedis->start(port => $here, policy =>
        cluster_policy($map, eval => sub {
            '-ASK ' . RateLimit::Cluster::slot($_[0][3])
            . " 127.0.0.1:$there\r\n" }));
    my $silent = RateLimit::FakeRedis->start(port => $there, policy =>
        cluster_policy($map, eval => { then => 'stall' }));

    my $nginx = start_nginx("cluster 127.0.0.1:$here", @OPTIONS,
                            breaker => 'failures=3 window=60s probe=200ms');
    my $opened = sub {
        $nginx->log_count(qr/redis 127.0.0.1:$_[0] is unavailable/)
    };

    # who is not in the map is not in the metrics

    ok wait_until(sub { seen($nginx->get('/short?k=' . rand));
                        return $opened->($here) || $opened->($there) }, 20),
       'a breaker opens';

    cmp_ok $opened->($there), '>', 0, 'that of the silent one';
    is $opened->($here), 0, 'not that of the one that has sent us there';
    cmp_ok scalar($asks->commands('EVALSHA')), '>=', 3, 'which was asked';

    finish($nginx);
};


subtest 'a node that answers a probe is well, also by MOVED' => sub {
    my ($here, $dead) = map { free_port() } 1, 2;
    my $moved = "-MOVED 9000 127.0.0.1:$dead\r\n";

    my $node = RateLimit::FakeRedis->start(port => $here, policy => {
        handshake => {
            'CLUSTER SLOTS' => slots_reply([0, 8191, '127.0.0.1', $here],
                                           [8192, 16383, '127.0.0.1', $dead]),
            PROBE => $moved,
        },
        eval => sub {
            my $key = $_[0][3];

            return $moved if $key =~ /\{probe[\@A-O]+\}\z/;
            return "-OOM command not allowed when used memory > 'maxmemory'\r\n"
                if $key =~ /\{bad/;
            return $PASSED;
        },
    });

    my $slot = sub { RateLimit::Cluster::slot("{$_[0]}") };
    my @bad = grep { $slot->($_) < 8192 } map { "bad$_" } 1 .. 40;
    my ($good) = grep { $slot->($_) < 8192 } 1 .. 40;

    my $nginx = start_nginx("cluster 127.0.0.1:$here", @OPTIONS);

    is seen($nginx->get("/?k=$good")), '200 redis', 'before';
    seen($nginx->get("/?k=$_")) for @bad[0 .. 5];
    is got($nginx, "127.0.0.1:$here", 'circuit_open'), 1, 'its breaker opens';

    ok wait_until(sub { state($nginx, "127.0.0.1:$here") eq 'distributed' },
                  20), 'and closes';
    is seen($nginx->get("/?k=$good")), '200 redis', 'as it works';

    finish($nginx);
};


subtest 'calls that an old place loses are no failures of the new one' => sub {
    my $port = free_port();
    my $old = RateLimit::FakeRedis->start(port => $port,
                                          policy => { eval => {} });
    my $new = RateLimit::Redis->start(port => $port, bind => '127.0.0.2');

    $dns->name('localhost', a => ['127.0.0.1']);

    my $nginx = start_nginx("localhost:$port", @OPTIONS);
    my @requests = map { $nginx->begin("/?k=$_") } 1 .. 12;

    # some of them may share a command

    ok wait_until(sub { 12 == sum0(map { $_->[2] } $old->commands('EVALSHA')) },
                  20), 'calls wait for their answers';
    ok move($nginx, '127.0.0.2'), 'meanwhile the name has moved';
    is seen($nginx->get('/?k=a')), '200 redis', 'new ones go there';
    is $old->connections->{open}, 1, 'the others wait on';

    $old->drop('reset');

    is_deeply [map { seen($_->response(20)) } @requests],
              [('503 closed') x @requests], 'and are lost with the old place';
    is seen($nginx->get('/?k=b')), '200 redis', 'the new one works';
    is got($nginx, "localhost:$port", $_), 0, "it was never in state $_"
        for 'fallback', 'circuit_open';
    is $old->connections->{open}, 0, 'nothing is left of the old one';

    finish($nginx);
};


# ---- leases

# One server with two addresses, so that it is known what was taken and what is
# given back.

subtest 'a lease is given back after a move, also at the end' => sub {
    my $port = free_port();
    my $redis = RateLimit::Redis->start(port => $port,
                                        bind => '127.0.0.1 127.0.0.2');
    my $left = sub { $redis->tokens(name_of('a')) };

    $dns->name('localhost', a => ['127.0.0.1']);

    my $nginx = start_nginx("localhost:$port", @OPTIONS);
    my $passed = 0;

    ok wait_until(sub {
        $passed += seen($nginx->get('/lease?k=a')) =~ /^200/;
        return $left->() < 1000 - $passed - 10;
    }, 20), 'more is taken than has passed';

    ok move($nginx, '127.0.0.2'), 'the name has moved';
    is seen($nginx->get('/?k=b')), '200 redis', 'connected to the new address';

    finish($nginx);
    cmp_ok $left->(), '==', 1000 - $passed, 'what was not used is back';
};


# ---- sentinels

subtest 'back to the old master while nobody listened: it is found' => sub {
    my @servers = RateLimit::Sentinel::Server->start_many(2);
    my $sentinel = RateLimit::FakeRedis->start(
        policy => sentinel_policy($servers[0]->addr));
    my $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr, @OPTIONS);

    ok wait_until(sub { $servers[0]->clients == 1
                        && $sentinel->commands('SUBSCRIBE') }, 20), 'at one';

    $sentinel->policy(sentinel_policy($servers[1]->addr));
    $sentinel->push(switch_event('mymaster', @servers));
    ok wait_until(sub { $servers[1]->clients == 1 }, 20), 'at the other one';

    # an answer that names the old one so soon may be out of date

    $sentinel->policy(sentinel_policy($servers[0]->addr));
    $sentinel->clear;
    $sentinel->drop;

    ok $sentinel->wait_commands('SENTINEL', 1, 20), 'a sentinel is asked';
    ok wait_until(sub { $servers[0]->clients == 1
                        && $servers[1]->clients == 0 }, 30),
       'and believed in the end';
    is seen($nginx->get('/?k=a')), '200 redis', 'Redis decides';
    is $servers[0]->cmd('EXISTS', name_of('a')), 1, 'there';

    finish($nginx);
};


# ---- what is left

# Names that change so often are in 165-names-move.t.

subtest "$ROUNDS failovers and redirects leave nothing behind" => sub {
    my @servers = RateLimit::Sentinel::Server->start_many(2);
    my $sentinel = RateLimit::FakeRedis->start(
        policy => sentinel_policy($servers[0]->addr));

    my @ports = map { free_port() } 1 .. 3;

    # all slots are of one node, others send calls there

    my $policy = sub {
        my ($port, $owner, $way) = @_;

        return cluster_policy(all_slots('127.0.0.1', $owner),
            eval => $port == $owner ? $PASSED
                                    : "-$way 1 127.0.0.1:$owner\r\n");
    };
    my @fakes = map { RateLimit::FakeRedis->start(
                          port => $_,
                          policy => $policy->($_, $ports[0], 'MOVED')) }
                @ports;

    my $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr, @OPTIONS,
                            breaker => 'failures=100 window=100ms probe=100ms',
                            server  => <<"EOC");
        ratelimit_key      \$arg_k;
        ratelimit_capacity 1000;
        ratelimit_rate     0r/s;

        location / { empty_gif; }
        location /cluster { ratelimit_shards cluster 127.0.0.1:$ports[0];
                            empty_gif; }
EOC

    # another master by an event

    my $failover = sub {
        my ($n) = @_;

        my ($old, $new) = @servers[($n - 1) % 2, $n % 2];

        $sentinel->policy(sentinel_policy($new->addr));
        $sentinel->push(switch_event('mymaster', $old, $new));

        return wait_until(sub { $new->clients == 1 && $old->clients == 0 }, 20)
               && seen($nginx->get("/?k=$n")) eq '200 redis';
    };

    # another node has all slots, as redirects say, and the map that comes with
    # a new connection

    my $redirects = 0;
    my $redirect = sub {
        my ($n) = @_;

        my ($old, $new) = @fakes[($n - 1) % 3, $n % 3];
        my $way = $n % 2 ? 'MOVED' : 'ASK';

        $_->clear for @fakes;
        $_->policy($policy->($_->port, $new->port, $way)) for @fakes;

        my $passed = grep {
            my $key = "$n-$_";
            works($nginx, 20, "/cluster?k=$key")
        } 1 .. 5;

        $redirects += $_->commands('EVALSHA') for grep { $_ != $new } @fakes;
        $old->drop;

        return $passed == 5;
    };

    my $rounds = sub {
        my ($from, $to) = @_;

        return scalar grep { $failover->($_) && $redirect->($_) } $from .. $to;
    };

    ok wait_until(sub { $servers[0]->clients == 1
                        && $sentinel->commands('SUBSCRIBE') }, 20), 'connected';

    # connections and buffers of all kinds have been there once

    is $rounds->(1, 6), 6, 'the first ones';

    my $before = $nginx->memory;
    my $open = sub {
        my $n = $nginx->descriptors;
        $n -= $_->connections->{open} for @fakes, $sentinel;
        $n -= $_->clients for @servers;
        return $n;
    };

    # both ends of a connection don't close in the same instant: what there is
    # besides is known when it stays the same

    my ($others, $same) = ($open->(), 0);

    ok wait_until(sub {
        my $now = $open->();

        $same = $now == $others ? $same + 1 : 0;
        $others = $now;

        return $same >= 20;
    }, 20), 'all is quiet';

    is $rounds->(7, 6 + $ROUNDS), $ROUNDS, 'and a hundred more';
    cmp_ok $redirects, '>', $ROUNDS, 'with redirects';

    ok wait_until(sub { $open->() == $others }, 20),
       'descriptors: those of connections that the servers have, and no more';
    cmp_ok $_->connections->{open}, '<=', 1, 'one connection to each, at most'
        for @fakes, $sentinel;
    is $servers[0]->clients + $servers[1]->clients, 1, 'and one to the master';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

        cmp_ok $nginx->memory - $before, '<', 1024, 'no more memory (kB)';
    }

    is $nginx->topology_events('failover'),
       6 + $ROUNDS, 'each switch is counted, once';

    finish($nginx);
};


done_testing;
