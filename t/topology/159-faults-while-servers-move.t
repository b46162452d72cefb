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

use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Fault;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Sentinel;
use RateLimit::Util qw(free_port slurp wait_until);

my $ROUNDS = 100;
my $PASSED = ":99000000\r\n";

my $dns = RateLimit::Dns->start;


# ---- what all parts use

sub start_nginx {
    my ($shards, %opt) = @_;

    my $breaker = delete $opt{breaker} // 'failures=5 window=600s probe=200ms';
    my $server = delete $opt{server} // '';
    my $resolver = 'resolver ' . $dns->addr . ' valid=1s;';

    return RateLimit::Nginx->start(workers => 1, log => 'notice',
                                   conf => <<"EOC", %opt);
    $resolver
    ratelimit_shards $shards;
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_on_error closed;
    ratelimit_breaker $breaker;
    ratelimit_log_level info;

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name localhost;

        add_header X-Source \$ratelimit_source always;

        ratelimit_key \$arg_k;
        ratelimit_capacity 1000;
        ratelimit_rate 0r/s;

        location = /metrics { ratelimit off; ratelimit_metrics; }
        location /short { ratelimit_redis_timeout 300ms; empty_gif; }
        location /lease { ratelimit_lease 100 ttl=60s; empty_gif; }
        $server
        location / { empty_gif; }
    }
EOC
}


sub bulk  { return '$' . length($_[0]) . "\r\n$_[0]\r\n" }
sub array { return '*' . @_ . "\r\n" . join '', map { bulk($_) } @_ }


# The reply to CLUSTER SLOTS: [from, to, host, port], ...

sub map_of {
    my (@ranges) = @_;

    return '*' . @ranges . "\r\n" . join '', map {
        my ($from, $to, $host, $port) = @$_;

        "*3\r\n:$from\r\n:$to\r\n*3\r\n" . bulk($host) . ":$port\r\n"
        . bulk('e' x 40)
    } @ranges;
}


# What a sentinel has to say, and tells about a switch.

sub says {
    my ($master) = @_;

    return { handshake => {
        'SENTINEL GET-MASTER-ADDR-BY-NAME' => array(split /:/, $master->addr),
        SUBSCRIBE => "*3\r\n" . bulk('subscribe') . bulk('+switch-master')
                     . ":1\r\n",
        PING      => array('pong', ''),
    } };
}


sub event {
    my ($old, $new) = @_;

    return array('message', '+switch-master',
                 join ' ', 'mymaster', map { split /:/, $_->addr } $old, $new);
}


sub seen {
    my ($r) = @_;

    return join ' ', $r->{status}, $r->{headers}{'x-source'} // '-';
}


sub get { return seen(RateLimit::Load::get($_[0]->port, $_[1])) }


# A request whose answer is read later.

sub begin {
    my ($nginx, $path) = @_;

    my $c = RateLimit::Load::connection($nginx->port);

    $c->write(RateLimit::Load::format_request({ path => $path }));

    return $c;
}


sub metric {
    my ($nginx, $name, %labels) = @_;

    return RateLimit::Fault::_sum(
        RateLimit::Fault::metrics({ nginx => $nginx }), $name, %labels);
}


sub state {
    my ($nginx, $shard) = @_;

    my $state = first { $_->{shard} eq $shard && $_->{value} }
                @{ RateLimit::Fault::metrics({ nginx => $nginx })
                   ->{nginx_ratelimit_breaker_state} };

    return $state ? $state->{state} : 'unknown';
}


# How often the breaker of a shard has got into this state.

sub got {
    my ($nginx, $shard, $state) = @_;

    return metric($nginx, 'breaker_transitions_total', shard => $shard,
                  to => $state);
}


sub move {
    my ($nginx, $address) = @_;

    my $from = length $nginx->error_log;

    $dns->name('localhost', a => [$address]);

    return wait_until(sub {
        substr($nginx->error_log, $from) =~ /addresses are \Q$address\E now/
    }, 20);
}


sub descriptors { return scalar(() = glob "/proc/$_[0]/fd/*") }


# kB that are the worker's own.

sub memory {
    return slurp("/proc/$_[0]/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0;
}


sub finish {
    my ($nginx, @workers) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is_deeply [$nginx->workers], \@workers, 'the worker is the same';
    ok wait_until(sub { metric($nginx, 'redis_calls_in_flight') == 0 }, 10),
       'no call is under way';
    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts;
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

    return RateLimit::FakeRedis->start(port => $port, policy => {
        handshake => {
            'CLUSTER SLOTS' => map_of([0, 16383, 'localhost', $port]),
        },
        eval => "-CLUSTERDOWN Hash slot not served\r\n",
    });
}


subtest 'a call that is tried again goes where its node is by then' => sub {
    my $port = RateLimit::Cluster::_port_pair();
    my $old = start_down($port);
    my ($new) = start_nodes($port, '127.0.0.2');
    my $nginx = start_nginx("cluster localhost:$port");
    my @workers = $nginx->workers;
    my @requests = map { begin($nginx, "/?k=$_") } 1 .. 5;

    ok $old->wait_commands('EVALSHA', 20, 20), 'calls are tried many times';
    ok move($nginx, '127.0.0.2'), 'meanwhile their node has gone elsewhere';

    is_deeply [map { seen($_->response(20)) } @requests],
              [('200 redis') x @requests], 'which answers them';
    cmp_ok $new->calls('evalsha') + $new->calls('eval'), '>=', @requests,
           'as they have got there';
    ok wait_until(sub { $old->connections->{open} == 0 }, 20),
       'nothing is left of the old place';

    finish($nginx, @workers);
};


subtest 'it ends if nobody is there' => sub {
    my $port = free_port();
    my $old = start_down($port);
    my $nginx = start_nginx("cluster localhost:$port");
    my @workers = $nginx->workers;
    my @requests = map { begin($nginx, "/?k=$_") } 1 .. 5;

    ok $old->wait_commands('EVALSHA', 20, 20), 'calls are tried many times';
    ok move($nginx, '127.0.0.2'), 'meanwhile their node is nowhere';

    is_deeply [map { seen($_->response(20)) } @requests],
              [('503 closed') x @requests], 'so they fail';
    ok wait_until(sub { $old->connections->{open} == 0 }, 20),
       'nothing is left of the old place';

    # a name may come back

    $old->policy({
        handshake => {
            'CLUSTER SLOTS' => map_of([0, 16383, 'localhost', $port]),
        },
        eval => $PASSED,
    });
    ok move($nginx, '127.0.0.1'), 'it is back';
    ok wait_until(sub { get($nginx, '/?k=a') eq '200 redis' }, 20),
       'and is asked';

    finish($nginx, @workers);
};


# ---- a cluster behind a name

my $port = RateLimit::Cluster::_port_pair();
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

    my $nginx = start_nginx("cluster localhost:$port");
    my @workers = $nginx->workers;
    my @keys = map { keys_of($_) } 0, 1;

    is_deeply [grep { get($nginx, "/?k=$_") ne '200 redis' } @keys], [],
              'before';

    ok move($nginx, '127.0.0.2'), 'it moves';

    is_deeply [grep { get($nginx, "/?k=$_") ne '200 redis' } @keys], [],
              'Redis decides about all keys';

    my $moved = metric($nginx, 'topology_events_total', event => 'moved');

    is_deeply [grep { get($nginx, "/?k=$_") ne '200 redis' } @keys], [],
              'also later';
    is metric($nginx, 'topology_events_total', event => 'moved'), $moved,
       'without a redirect';

    for my $n (0, 1) {
        my $left = sub { $nodes[$n]->tokens(name_of($_[0])) };

        is_deeply [grep { $left->($_) != 997 } keys_of($n)], [],
                  "all was taken at $addrs[$n]";
    }

    finish($nginx, @workers);
};


# Whether limits can be kept there a node says about its own slots alone.

subtest 'a node without memory stays out until it has some' => sub {
    my $nginx = start_nginx('cluster ' . join ' ', @addrs);
    my @workers = $nginx->workers;

    for my $n (0, 1) {
        my ($node, $addr) = ($nodes[$n], $addrs[$n]);
        my @own = keys_of($n);
        my @others = keys_of(1 - $n);
        my $asked = sub { $node->errors('OOM') + $node->errors('MOVED') };

        is get($nginx, "/?k=$own[0]"), '200 redis', "$addr: before";

        $node->cmd('CONFIG', 'SET', 'maxmemory', 1);
        get($nginx, "/?k=$_") for @own[0 .. 9];
        is state($nginx, $addr), 'circuit_open', 'its breaker opens';

        my $before = got($nginx, $addr, 'distributed');
        my $from = $asked->();

        ok wait_until(sub { $asked->() >= $from + 3
                            || got($nginx, $addr, 'distributed') > $before },
                      20), 'it is asked whether it has memory';
        is got($nginx, $addr, 'distributed'), $before, 'which it has not';
        is get($nginx, "/?k=$own[0]"), '503 closed', 'nobody asks it for more';
        is_deeply [grep { get($nginx, "/?k=$_") ne '200 redis' } @others], [],
                  'the other one works';

        $node->cmd('CONFIG', 'SET', 'maxmemory', 0);
        ok wait_until(sub { state($nginx, $addr) eq 'distributed' }, 20),
           'until it has';
        is get($nginx, "/?k=$own[0]"), '200 redis', 'then it is asked';
        is got($nginx, $addr, 'circuit_open'), 1, 'its breaker has opened once';
    }

    finish($nginx, @workers);
};


# ---- whose failure it is

subtest 'ASK to a node that is silent is a failure of that one' => sub {
    my ($here, $there) = map { free_port() } 1, 2;
    my $map = map_of([0, 16383, '127.0.0.1', $here]);

    my $asks = RateLimit::FakeRedis->start(port => $here, policy => {
        handshake => { 'CLUSTER SLOTS' => $map },
        eval => sub { '-ASK ' . RateLimit::Cluster::slot($_[0][3])
                      . " 127.0.0.1:$there\r\n" },
    });
    my $silent = RateLimit::FakeRedis->start(port => $there, policy => {
        handshake => { 'CLUSTER SLOTS' => $map },
        eval      => { then => 'stall' },
    });

    my $nginx = start_nginx("cluster 127.0.0.1:$here",
                            breaker => 'failures=3 window=60s probe=200ms');
    my @workers = $nginx->workers;
    my $opened = sub {
        $nginx->log_count(qr/redis 127.0.0.1:$_[0] is unavailable/)
    };

    # who is not in the map is not in the metrics

    ok wait_until(sub { get($nginx, '/short?k=' . rand);
                        return $opened->($here) || $opened->($there) }, 20),
       'a breaker opens';

    cmp_ok $opened->($there), '>', 0, 'that of the silent one';
    is $opened->($here), 0, 'not that of the one that has sent us there';
    cmp_ok scalar($asks->commands('EVALSHA')), '>=', 3, 'which was asked';

    finish($nginx, @workers);
};


subtest 'a node that answers a probe is well, also by MOVED' => sub {
    my ($here, $dead) = map { free_port() } 1, 2;
    my $moved = "-MOVED 9000 127.0.0.1:$dead\r\n";

    my $node = RateLimit::FakeRedis->start(port => $here, policy => {
        handshake => {
            'CLUSTER SLOTS' => map_of([0, 8191, '127.0.0.1', $here],
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

    my $nginx = start_nginx("cluster 127.0.0.1:$here");
    my @workers = $nginx->workers;

    is get($nginx, "/?k=$good"), '200 redis', 'before';
    get($nginx, "/?k=$_") for @bad[0 .. 5];
    is got($nginx, "127.0.0.1:$here", 'circuit_open'), 1, 'its breaker opens';

    ok wait_until(sub { state($nginx, "127.0.0.1:$here") eq 'distributed' },
                  20), 'and closes';
    is get($nginx, "/?k=$good"), '200 redis', 'as it works';

    finish($nginx, @workers);
};


subtest 'calls that an old place loses are no failures of the new one' => sub {
    my $port = free_port();
    my $old = RateLimit::FakeRedis->start(port => $port,
                                          policy => { eval => {} });
    my $new = RateLimit::Redis->start(port => $port, bind => '127.0.0.2');

    $dns->name('localhost', a => ['127.0.0.1']);

    my $nginx = start_nginx("localhost:$port");
    my @workers = $nginx->workers;
    my @requests = map { begin($nginx, "/?k=$_") } 1 .. 12;

    # some of them may share a command

    ok wait_until(sub { 12 == sum0(map { $_->[2] } $old->commands('EVALSHA')) },
                  20), 'calls wait for their answers';
    ok move($nginx, '127.0.0.2'), 'meanwhile the name has moved';
    is get($nginx, '/?k=a'), '200 redis', 'new ones go there';
    is $old->connections->{open}, 1, 'the others wait on';

    $old->drop('reset');

    is_deeply [map { seen($_->response(20)) } @requests],
              [('503 closed') x @requests], 'and are lost with the old place';
    is get($nginx, '/?k=b'), '200 redis', 'the new one works';
    is got($nginx, "localhost:$port", $_), 0, "it was never in state $_"
        for 'fallback', 'circuit_open';
    is $old->connections->{open}, 0, 'nothing is left of the old one';

    finish($nginx, @workers);
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

    my $nginx = start_nginx("localhost:$port");
    my @workers = $nginx->workers;
    my $passed = 0;

    ok wait_until(sub {
        $passed += get($nginx, '/lease?k=a') =~ /^200/;
        return $left->() < 1000 - $passed - 10;
    }, 20), 'more is taken than has passed';

    ok move($nginx, '127.0.0.2'), 'the name has moved';
    is get($nginx, '/?k=b'), '200 redis', 'connected to the new address';

    finish($nginx, @workers);
    cmp_ok $left->(), '==', 1000 - $passed, 'what was not used is back';
};


# ---- sentinels

subtest 'back to the old master while nobody listened: it is found' => sub {
    my @servers = RateLimit::Sentinel::Server->start_many(2);
    my $sentinel = RateLimit::FakeRedis->start(policy => says($servers[0]));
    my $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr);
    my @workers = $nginx->workers;

    ok wait_until(sub { $servers[0]->clients == 1
                        && $sentinel->commands('SUBSCRIBE') }, 20), 'at one';

    $sentinel->policy(says($servers[1]));
    $sentinel->push(event(@servers));
    ok wait_until(sub { $servers[1]->clients == 1 }, 20), 'at the other one';

    # an answer that names the old one so soon may be out of date

    $sentinel->policy(says($servers[0]));
    $sentinel->clear;
    $sentinel->drop;

    ok $sentinel->wait_commands('SENTINEL', 1, 20), 'a sentinel is asked';
    ok wait_until(sub { $servers[0]->clients == 1
                        && $servers[1]->clients == 0 }, 30),
       'and believed in the end';
    is get($nginx, '/?k=a'), '200 redis', 'Redis decides';
    is $servers[0]->cmd('EXISTS', name_of('a')), 1, 'there';

    finish($nginx, @workers);
};


# ---- what is left

# Names that change so often are in 165-names-move.t.

subtest "$ROUNDS failovers and redirects leave nothing behind" => sub {
    my @servers = RateLimit::Sentinel::Server->start_many(2);
    my $sentinel = RateLimit::FakeRedis->start(policy => says($servers[0]));

    my @ports = map { free_port() } 1 .. 3;

    # all slots are of one node, others send calls there

    my $policy = sub {
        my ($port, $owner, $way) = @_;

        return {
            handshake => { 'CLUSTER SLOTS' =>
                               map_of([0, 16383, '127.0.0.1', $owner]) },
            eval      => $port == $owner
                         ? $PASSED : "-$way 1 127.0.0.1:$owner\r\n",
        };
    };
    my @fakes = map { RateLimit::FakeRedis->start(
                          port => $_,
                          policy => $policy->($_, $ports[0], 'MOVED')) }
                @ports;

    my $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr,
                            breaker => 'failures=100 window=100ms probe=100ms',
                            server  => <<"EOC");
        location /cluster {
            ratelimit_shards    cluster 127.0.0.1:$ports[0];
            ratelimit_key       \$arg_k;
            ratelimit_capacity  1000;
            ratelimit_rate      0r/s;
            add_header          X-Source \$ratelimit_source always;
            empty_gif;
        }
EOC
    my ($worker) = $nginx->workers;

    # another master by an event

    my $failover = sub {
        my ($n) = @_;

        my ($old, $new) = @servers[($n - 1) % 2, $n % 2];

        $sentinel->policy(says($new));
        $sentinel->push(event($old, $new));

        return wait_until(sub { $new->clients == 1 && $old->clients == 0 }, 20)
               && get($nginx, "/?k=$n") eq '200 redis';
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
            wait_until(sub { get($nginx, "/cluster?k=$key") eq '200 redis' },
                       20)
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

    my $before = memory($worker);
    my $open = sub {
        my $n = descriptors($worker);
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

        cmp_ok memory($worker) - $before, '<', 1024, 'no more memory (kB)';
    }

    is metric($nginx, 'topology_events_total', event => 'failover'),
       6 + $ROUNDS, 'each switch is counted, once';

    finish($nginx, $worker);
};


done_testing;
