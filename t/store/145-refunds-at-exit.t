# What goes back when a worker leaves: everything it holds, in portions, also to
# a cluster, also where the script is gone; and what can't go back is counted.
#
# Limits never refill here: of each bucket as much is missing as passed, once
# all has come back.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Cluster;
use RateLimit::Flood;
use RateLimit::Limiter;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    ratelimit_limit lease key=$arg_k capacity=100000 rate=0r/s;
    ratelimit_limit small key=$arg_k capacity=100000 rate=0r/s;
EOC
        location /lease { ratelimit lease; ratelimit_lease 10 ttl=60s; empty_gif; }
        location /small { ratelimit small; ratelimit_lease 2 ttl=60s; empty_gif; }
EOS

my $redis = RateLimit::Redis->start;


# Each key is asked for twice: the second time one more token is taken, which
# nobody spends, unless both go with one call.  Returns how many keys hold one,
# by what Redis says.

sub hold {
    my ($nginx, $server, $keys, $prefix) = @_;

    my $flood = RateLimit::Flood::run(
        port => $nginx->port, requests => 2 * $keys, timeout => 120,
        mark => 'X-Source',
        path => sub { "/lease?k=$prefix" . int($_[0] / 2) });

    is_deeply [keys %{ $flood->{marks} }], ['200 redis'],
              2 * $keys . ' requests pass';

    return scalar grep { $_ == 99_997 } left($server, $keys, $prefix);
}


sub left {
    my ($server, $keys, $prefix) = @_;

    return map { int($server->tokens("ratelimit:lease:{$prefix$_}") // -1) }
           0 .. $keys - 1;
}


# A test: all is there but for what has passed.

sub is_back {
    my ($name, $server, $keys, $prefix) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is scalar(grep { $_ != 99_998 } left($server, $keys, $prefix)), 0,
              $name;
}


subtest 'after SCRIPT FLUSH all goes back' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 1);

    for my $case ([$redis->addr, $redis],
                  ['cluster ' . $cluster->addrs, $cluster->nodes])
    {
        my ($shards, $server) = @$case;
        my $nginx = start_nginx($shards, %CONFIG);

        cmp_ok hold($nginx, $server, 300, 'flush'), '>', 250, "$shards: held";

        $_->cmd('SCRIPT', 'FLUSH') for $redis, $cluster->nodes;

        ok $nginx->stop, 'nginx leaves';
        is_back 'all tokens are back', $server, 300, 'flush';
        is $nginx->log_count(qr/were lost/), 0, 'none is called lost';
        $nginx->no_alerts;
    }

    $cluster->stop;
};


# More than a connection has room for at a time.

subtest 'a cluster: more than fits goes back in portions' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 1);
    my $nginx = start_nginx('cluster ' . $cluster->addrs, %CONFIG);
    my ($node) = $cluster->nodes;
    my $keys = 18_000;

    cmp_ok hold($nginx, $node, $keys, 'many'), '>', 16_384, 'many leases';
    is $nginx->metric('leases_refused_total'), 0, 'none was refused';

    ok $nginx->stop, 'nginx leaves';
    is_back 'all tokens are back', $node, $keys, 'many';
    is $nginx->log_count(qr/were lost/), 0, 'none is called lost';
    $nginx->no_alerts;

    $cluster->stop;
};


# The node that a lease came from is no more: its keys are another one's now.

subtest 'a cluster: to the node that has the key by then' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 1);
    my ($stays) = $cluster->nodes;
    my $leaves = $cluster->add_node;
    my $slot = RateLimit::Cluster::slot('left');

    $cluster->move_slot($slot, $leaves);

    my $nginx = start_nginx('cluster ' . $stays->addr, %CONFIG);
    my $get = sub { $nginx->get($_[0])->{status} };

    is $get->('/lease?k=left'), 200, 'passed' for 1 .. 2;
    is int $leaves->tokens('ratelimit:lease:{left}'), 99_997, 'one is held';

    $cluster->move_slot($slot, $stays);

    is $get->('/small?k=left'), 200, 'a key of the same slot';
    ok wait_until(sub { $get->('/small?k=left') == 200 && !$leaves->clients }),
       'the node has left';

    $cluster->remove_node($leaves);

    ok $nginx->stop, 'nginx leaves';
    is int $stays->tokens('ratelimit:lease:{left}'), 99_998,
       'what was held is back';
    is $nginx->log_count(qr/were lost|unavailable/), 0, 'nobody was missing';
    $nginx->no_alerts;

    $cluster->stop;
};


subtest 'what does not go back is counted and logged' => sub {
    my $nginx = start_nginx($redis->addr, %CONFIG);

    my $held = hold($nginx, $redis, 100, 'lost');

    cmp_ok $held, '>', 80, 'held';

    $redis->pause;
    ok $nginx->reload, 'reloaded while Redis does not answer';
    ok $nginx->old_workers_gone(20), 'the old worker leaves';
    $redis->resume;

    is $nginx->log_count(
           qr/\[error\] .*: $held refunds of $held tokens were lost when /),
       1, 'with a line, for those who log errors alone';
    is $nginx->metric('redis_refunds_lost_total'), $held, 'and a count';
    $nginx->finish;
};


subtest 'told to leave at once, a worker gives back as well' => sub {
    my $nginx = start_nginx($redis->addr, %CONFIG);

    cmp_ok hold($nginx, $redis, 100, 'term'), '>', 80, 'held';

    my ($worker) = $nginx->workers;

    $nginx->kill_worker('TERM');
    ok wait_until(sub { !grep { $_ == $worker } $nginx->workers }), 'it leaves';
    is_back 'all tokens are back', $redis, 100, 'term';
    $nginx->finish;
};


# ---- how many

subtest 'no more leases than the zone has room for' => sub {
    my $nginx = start_nginx($redis->addr, %CONFIG,
                            conf => "ratelimit_zone 1m; $CONFIG{conf}");
    my $keys = 12_000;
    my $held = hold($nginx, $redis, $keys, 'bound');
    my $refused = $nginx->metric('leases_refused_total');

    cmp_ok $refused, '>', 0, "$refused leases were refused";
    cmp_ok $held + $refused, '>', 11_000, 'the others were taken';
    cmp_ok $held, '<', $nginx->metric('zone_keys'),
           "$held leases, fewer than there are keys";

    ok $nginx->stop, 'nginx leaves';
    is_back 'what was taken is back', $redis, $keys, 'bound';
    $nginx->no_alerts;
};


subtest 'a lease that was spent does not count any more' => sub {
    my $nginx = start_nginx($redis->addr, %CONFIG,
                            conf => "ratelimit_zone 64k; $CONFIG{conf}");

    my $flood = RateLimit::Flood::run(
        port => $nginx->port, requests => 6000, timeout => 120,
        connections => 1, mark => 'X-Source', path => sub { '/small?k=busy' });

    cmp_ok $flood->{marks}{'200 lease'}, '>', 3000, 'served from leases';
    cmp_ok $flood->{marks}{'200 redis'}, '>', 1000, 'of which there were many';
    is $nginx->metric('leases_refused_total'), 0, 'none was refused';
    ok $nginx->stop, 'stopped';
    is int $redis->tokens('ratelimit:small:{busy}'), 94_000,
       'all tokens are back but those that passed';
    $nginx->no_alerts;
};


done_testing();
