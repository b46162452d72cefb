# Overrides and resets are made on one of two machines while both are under load.
# They hold on both within a second, and what is admitted stays exact: on three
# shards, in a cluster, with sentinels through a failover, and on one machine
# without Redis.  100,000 overrides fit into 32m.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();
use Time::HiRes qw(sleep time);

use RateLimit::Cluster;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Sentinel;
use RateLimit::Util qw(patience wait_until);

my $JSON = JSON::PP->new->utf8;

my $CONF = <<'EOC';
    ratelimit_silence client_value unused_limit no_shards;
    ratelimit_redis_timeout 5s;
    ratelimit_redis_connect_timeout 5s;
    ratelimit_on_error closed;
    ratelimit_deny_cache 60s;
    ratelimit_log_level info;
    ratelimit_limit bucket key=$arg_key capacity=100 rate=1r/d;
    ratelimit_limit window key=$arg_key capacity=100 window=1h
                           algorithm=sliding_window_log;
EOC

my $SERVER = <<'EOC';
    location /bucket { ratelimit bucket; try_files /none @ok; }
    location /window { ratelimit window; try_files /none @ok; }
    location @ok     { return 200 ok; }
    location /api/   { ratelimit_api write; }
EOC


sub start {
    my ($shards) = @_;

    return RateLimit::Nginx->start(
        conf => ($shards ? "ratelimit_shards $shards;\n" : '') . $CONF,
        server => $SERVER, workers => 2, log => 'notice');
}


sub change {
    my ($nginx, $method, $path, $body) = @_;

    return RateLimit::Load::request(
        $nginx->port, $method, "/api/limits/$path",
        { 'X-RateLimit-Write' => 1, 'Content-Type' => 'application/json' },
        $body ? $JSON->encode($body) : '')->{status};
}


# How many of 400 requests to all machines pass, of eight clients at once.

sub admitted {
    my ($machines, $limit, $key, $n) = @_;

    my $load = RateLimit::Load::run(
        targets => [map { $_->port } @$machines], connections => 8,
        requests => $n // 400, path => "/$limit?key=$key", timeout => 60);

    is $load->errors, 0, 'every request is answered' or diag $load->error_text;

    return $load->count(200);
}


# Seconds until a machine treats a key in the way that is wanted.

sub holds {
    my ($nginx, $path, $status) = @_;

    my $start = time;

    wait_until(sub { $nginx->get($path)->{status} == $status }, 20)
        or return 99;

    return time - $start;
}


# The whole list on these machines, with other keys under load all the time.

sub check {
    my ($name, $limit, @machines) = @_;

    my $other = RateLimit::Load::start(
        targets => [map { $_->port } @machines], connections => 4, pause => 2,
        path => sub { "/$limit?key=other-" . $_[0] % 50 }, timeout => 300,
        duration => 240);
    my $last = $machines[-1];
    my $key = "$name-$limit";
    my $within = patience(1);

    is admitted(\@machines, $limit, $key), 100, "$name, $limit: 100 pass";

    # a reset

    is change($machines[0], 'DELETE', "$limit/keys/$key"), 200, 'reset';
    sleep $within;
    is admitted(\@machines, $limit, $key), 100, '100 pass again, of all machines';

    # a larger capacity, with a reset

    is change($machines[0], 'PUT', "$limit/keys/$key/override",
              { capacity => 150 }), 200, 'a capacity of 150';
    is change($last, 'DELETE', "$limit/keys/$key"), 200, 'and a reset there';
    sleep $within;
    is admitted(\@machines, $limit, $key), 150, '150 pass';

    # a ban, while the key has tokens

    is change($machines[0], 'DELETE', "$limit/keys/$key"), 200, 'reset';
    is change($machines[0], 'PUT', "$limit/keys/$key/override",
              { ban => JSON::PP::true }), 200, 'a ban';
    cmp_ok holds($last, "/$limit?key=$key", 429), '<=', $within,
           'holds on the other machine within a second';
    is admitted(\@machines, $limit, $key), 0, 'none pass';

    # an exemption

    is change($last, 'PUT', "$limit/keys/$key/override",
              { exempt => JSON::PP::true }), 200, 'an exemption';
    cmp_ok holds($machines[0], "/$limit?key=$key", 200), '<=', $within,
           'holds on the first machine within a second';
    is admitted(\@machines, $limit, $key), 400, 'all pass';

    # its end

    is change($last, 'DELETE', "$limit/keys/$key/override"), 200, 'removed';
    is change($machines[0], 'DELETE', "$limit/keys/$key"), 200, 'reset';
    sleep $within;
    is admitted(\@machines, $limit, $key), 100, '100 pass';

    my $result = $other->stop;
    is_deeply [grep { !/^(?:200|429)$/ } keys %{ $result->{statuses} }], [],
              'the other keys were answered';
}


subtest 'three shards' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my @nginx = map { start(join ' ', map { $_->addr } @redis) } 1, 2;

    check('shards', $_, @nginx) for qw(bucket window);
    $_->finish for @nginx;
};


subtest 'a cluster' => sub {
    my $cluster = RateLimit::Cluster->start;
    my @nginx = map { start('cluster ' . $cluster->addrs) } 1, 2;

    ok wait_until(sub { !grep { $_->get('/bucket?key=warm')->{status} != 200 }
                              @nginx }, 20), 'it works';
    check('cluster', $_, @nginx) for qw(bucket window);
    $_->finish for @nginx;
};


subtest 'one machine without Redis' => sub {
    my $nginx = start('');

    check('memory', $_, $nginx) for qw(bucket window);
    $nginx->finish;
};


subtest 'sentinels, through a failover' => sub {
    my $sentinel = RateLimit::Sentinel->start;
    my @nginx = map {
        start('sentinel=mymaster ' . $sentinel->addrs);
    } 1, 2;

    ok wait_until(sub { !grep { $_->get('/bucket?key=warm')->{status} != 200 }
                              @nginx }, 20), 'it works';

    is change($nginx[0], 'PUT', 'bucket/keys/bad/override',
              { ban => JSON::PP::true }), 200, 'a ban';
    is change($nginx[0], 'PUT', 'bucket/keys/good/override',
              { exempt => JSON::PP::true }), 200, 'an exemption';
    cmp_ok holds($nginx[1], '/bucket?key=bad', 429), '<=', patience(1), 'holds';

    my $master = $sentinel->master;
    ok wait_until(sub {
        my ($replica) = $sentinel->replicas;
        ($replica->cmd('HGET', 'ratelimit:{bucket}:overrides', 'good') // '')
            eq 'exempt';
    }), 'the replica has it';

    ok $sentinel->failover, 'another master';
    ok wait_until(sub { !grep { $_->get('/bucket?key=new')->{status} != 200 }
                              @nginx }, 30), 'it works again';

    for my $nginx (@nginx) {
        is $nginx->get('/bucket?key=bad')->{status}, 429, 'the ban holds';
        is $nginx->get('/bucket?key=good')->{status}, 200, 'the exemption, too';
    }

    ok wait_until(sub {
        change($nginx[1], 'DELETE', 'bucket/keys/bad/override') == 200;
    }, 20), 'removed, on the new master';
    cmp_ok holds($nginx[0], '/bucket?key=bad', 200), '<=', patience(1),
           'which the other machine knows within a second';
    is $nginx[0]->get('/bucket?key=good')->{status}, 200, 'the other one stays';

    check('sentinel', 'bucket', @nginx);
    $_->finish for @nginx;
};


subtest '100,000 overrides' => sub {
    my $redis = RateLimit::Redis->start;
    my $table = 'ratelimit:{bucket}:overrides';

    for my $i (0 .. 99) {
        $redis->cmd('HSET', $table,
                    map { ("203.0.113.$_", "capacity=$_ rate=50r/s reason=plan $i") }
                        map { $i * 1000 + $_ } 1 .. 1000);
    }

    $redis->cmd('HSET', $table, '', 1);

    my $nginx = start($redis->addr);
    my $live = sub {
        $JSON->decode($nginx->get('/api/limits/bucket')->{body})->{overrides};
    };

    ok wait_until(sub { $live->() == 100_000 }, 60), 'are all there'
        or diag $live->();
    is $nginx->log_count(qr/are not applied/), 0, 'they fit into 32m';
    is $nginx->get('/bucket?key=203.0.113.777')
             ->{headers}{'x-ratelimit-limit'}, 777, 'one of them';
    is $nginx->get('/bucket?key=203.0.113.0')
             ->{headers}{'x-ratelimit-limit'}, 100, 'another key';

    is change($nginx, 'PUT', 'bucket/keys/203.0.113.777/override',
              { capacity => 5 }), 200, 'one is changed';
    is $nginx->get('/bucket?key=203.0.113.777')
             ->{headers}{'x-ratelimit-limit'}, 5, 'at once';

    $redis->cmd('DEL', $table);
    ok wait_until(sub { $live->() == 0 }, 60), 'all end';
    is $nginx->get('/bucket?key=203.0.113.5')
             ->{headers}{'x-ratelimit-limit'}, 100, 'and hold no more';

    $nginx->finish;
};


done_testing;
