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

use RateLimit::Cluster;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Util qw(dead_port wait_until);

my $MAX = 2 ** 14 - 1;
my $PASSED = ":99000000\r\n";


sub bulk { return '$' . length($_[0]) . "\r\n$_[0]\r\n" }

sub map_of {
    my (@ranges) = @_;

    return '*' . @ranges . "\r\n" . join '', map {
        my ($from, $to, $host, $port) = @$_;

        "*3\r\n:$from\r\n:$to\r\n*3\r\n" . bulk($host) . ":$port\r\n"
        . bulk('e' x 40)
    } @ranges;
}


sub conf {
    my ($seed, %opt) = @_;

    my $limits = join '', map { "ratelimit_limit extra$_ key=\$arg_k "
                                . "capacity=10 rate=1r/s;\n" }
                          1 .. $opt{limits} // 0;
    my $location = join '', map {
        my $n = $_;
        "location /extra$n { ratelimit "
        . join(' ', map { "extra$_" } 10 * $n + 1 .. 10 * $n + 10)
        . "; empty_gif; }\n"
    } 0 .. ($opt{limits} // 0) / 10 - 1;
    my $zone = $opt{zone} // '4m';
    my $breaker = $opt{breaker} // 'failures=100 window=100ms probe=100ms';

    return <<"EOC";
    ratelimit_zone $zone;
    ratelimit_shards cluster $seed;
    ratelimit_redis_timeout 5s;
    ratelimit_redis_connect_timeout 5s;
    ratelimit_on_error closed;
    ratelimit_deny_cache off;
    ratelimit_breaker $breaker;
    $limits

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name localhost;

        add_header X-Source \$ratelimit_source always;

        ratelimit_key \$arg_k;
        ratelimit_capacity 100;
        ratelimit_rate 120r/h;

        location = /metrics { ratelimit off; ratelimit_metrics; }
        $location
        location / { empty_gif; }
    }
EOC
}


sub get { return RateLimit::Load::get($_[0]->port, $_[1]) }


sub seen {
    my ($r) = @_;

    return join ' ', $r->{status}, $r->{headers}{'x-source'} // '-';
}


# The labels of all nodes that metrics know.

sub nodes {
    my ($nginx) = @_;

    my %seen = map { $_ => 1 }
               get($nginx, '/metrics')->{body} =~
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

    $fake->policy({
        handshake => { 'CLUSTER SLOTS' =>
            map_of([0, $MAX, '127.0.0.1', $fake->port],
                   map { [$others[$_], $others[$_], $nodes[$_], $dead] }
                       0 .. $#nodes) },
        eval      => $PASSED });
    $fake->drop;

    my $expected = join ' ', sort $fake->addr, map { "$_:$dead" } @nodes;

    return wait_until(sub {
        seen(get($nginx, '/?k=a')) eq '200 redis'
        && join(' ', nodes($nginx)) eq $expected
    }, 30);
}


subtest 'more nodes than there is memory for, one after another' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => $PASSED,
        handshake => { 'CLUSTER SLOTS' => "*0\r\n" } });
    my $nginx = RateLimit::Nginx->start(workers => 1, log => 'warn',
                                        conf => conf($fake->addr));
    my ($worker) = $nginx->workers;
    my $n = 0;

    # 4 MB have room for some 45 of them

    for (1 .. 60) {
        last unless new_map($nginx, $fake, 20);
        $n += 20;
    }

    is $n, 1200, 'each is known as long as it is there, and no longer';
    is_deeply [$nginx->workers], [$worker], 'by the same worker';
    ok !$nginx->log_like(qr/no room for node|nodes at a time/),
       'there is always room for the next';

    ok $nginx->reload(conf => conf($fake->addr, limits => 40)),
       'and room for more limits';
    # those of a worker that was killed are free as well

    ok new_map($nginx, $fake, 20), 'after a reload';
    $nginx->kill_worker('KILL');
    ok new_map($nginx, $fake, 20), 'after a worker has died' for 1 .. 4;

    ok !$nginx->log_like(qr/no room for node/), 'still room';
    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts('no alerts', except => qr/exited on signal 9/);
};


subtest 'old and new workers have the same records' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => $PASSED,
        handshake => { 'CLUSTER SLOTS' => "*0\r\n" } });
    my $nginx = RateLimit::Nginx->start(workers => 2, log => 'warn',
                                        conf => conf($fake->addr));
    my $n = 0;

    for (1 .. 6) {
        $n += new_map($nginx, $fake, 20) ? 1 : 0;
        $n += $nginx->reload ? 1 : 0;
    }

    is $n, 12, 'reloads in between';
    ok !$nginx->log_like(qr/no room for node/), 'all have room';
    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts;
};


# More nodes at the same time than the zone has room for: then each worker knows
# by itself which of them is away, and does not confuse it with the others.

subtest 'a node that is away takes no other one with it' => sub {
    my @fakes = map { RateLimit::FakeRedis->start(policy => {
                          eval => $PASSED }) } 1 .. 2;
    my ($seed, $well) = @fakes;
    my $dead = dead_port();
    my ($a, $b) = map { RateLimit::Cluster::slot($_) } 'a', 'b';
    my $map = map_of([0, $MAX, '127.0.0.1', $seed->port],
                     (map { [$_, $_, "127.9.9.$_", $dead] } 1 .. 60),
                     [$a, $a, '127.9.8.1', $dead],
                     [$b, $b, '127.0.0.1', $well->port]);

    $_->policy({ eval => $PASSED, handshake => { 'CLUSTER SLOTS' => $map } })
        for @fakes;

    my $nginx = RateLimit::Nginx->start(workers => 1, log => 'notice',
                                        conf => conf($seed->addr,
        zone => '200k', breaker => 'failures=3 window=600s probe=1h'));

    ok wait_until(sub { seen(get($nginx, '/?k=b')) eq '200 redis' }, 15),
       'one node is well';
    is $nginx->log_count(qr/"ratelimit_zone" has no room for node/), 1,
       'the log says once that the zone is full';

    is seen(get($nginx, '/?k=a')), '503 closed', 'the other one is away'
        for 1 .. 10;
    is seen(get($nginx, '/?k=b')), '200 redis', 'the first one is well still'
        for 1 .. 10;

    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts;
};


# A request waits to be sent to a node at the very moment in which that leaves.

subtest 'a node that has left is not connected to for good' => sub {
    my @fakes = map { RateLimit::FakeRedis->start(policy => {
                          eval => $PASSED }) } 1 .. 2;
    my ($seed, $leaves) = @fakes;
    my $slot = RateLimit::Cluster::slot('a');
    my $before = map_of([0, $MAX, '127.0.0.1', $seed->port],
                        [$slot, $slot, '127.0.0.1', $leaves->port]);
    my $after = map_of([0, $MAX, '127.0.0.1', $seed->port]);

    $_->policy({ eval => $PASSED, handshake => { 'CLUSTER SLOTS' => $before } })
        for @fakes;

    my $nginx = RateLimit::Nginx->start(workers => 1, log => 'notice',
                                        conf => conf($seed->addr));
    my ($worker) = $nginx->workers;
    my $client = RateLimit::Load::connection($nginx->port);
    my $ask = sub {
        $client->write("GET /?k=a HTTP/1.1\r\nHost: a\r\n\r\n");
    };

    ok wait_until(sub { seen(get($nginx, '/?k=a')) eq '200 redis'
                        && $leaves->commands('EVALSHA') }, 15), 'it is there';
    $ask->();
    is seen($client->response(10)), '200 redis', 'one client stays';

    # the request, then the map, are there when the worker goes on

    $seed->policy({ eval => $PASSED, handshake => {
        'CLUSTER SLOTS' => { reply => $after, delay => 1000 } } });
    $leaves->policy({ eval => $PASSED, handshake => {
        'CLUSTER SLOTS' => $after } });
    $seed->clear;
    $seed->drop;
    ok $seed->wait_commands('CLUSTER', 1), 'the map is asked for';

    kill 'STOP', $worker;
    $ask->();
    sleep 2;
    kill 'CONT', $worker;

    is seen($client->response(10)), '200 redis', 'the client is answered';
    ok wait_until(sub { $leaves->connections->{open} == 0 }, 30),
       'and the node is left alone';

    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts;
};


done_testing;
