# Where nodes of a cluster and masters may be: what is announced elsewhere gets no
# connection and no password, whoever says so, by whichever way.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Nginx;
use RateLimit::Resp;
use RateLimit::Util qw(wait_until);

my $PASSED = ":99000000\r\n";

# no breaker is in the way for long, nothing is remembered
my @EAGER = (breaker => 'failures=100 window=100ms probe=100ms',
             deny_cache => 'off');


# May be at these networks, all that there are if none is named.

sub start {
    my ($shards, $networks, $http) = @_;

    $networks = $networks ? "ratelimit_redis_networks $networks;" : '';

    return start_nginx($shards, timeout => '2s', @EAGER, capacity => 100,
                       conf => "ratelimit_redis_password secret; $networks"
                               . ($http // ''));
}


# True: after a while something was.

sub refused {
    my ($nginx) = @_;

    return wait_until(sub { $nginx->get('/?k=a');
                            $nginx->topology_events('refused') > 0 }, 15);
}


sub start_fake {
    my (%policy) = @_;

    return RateLimit::FakeRedis->start(policy => { eval => $PASSED, %policy },
        bind => ['127.0.0.1', '127.0.0.3', '127.0.0.9']);
}


my $slot = RateLimit::Cluster::slot('a');

for my $way (['a map', sub { cluster_policy(all_slots(@_[0, 1])) }],
             ['MOVED', sub { cluster_policy($_[2],
                                 eval => "-MOVED $slot $_[0]:$_[1]\r\n") }],
             ['ASK', sub { cluster_policy($_[2],
                               eval => "-ASK $slot $_[0]:$_[1]\r\n") }])
{
    my ($name, $policy) = @$way;

    subtest "a node by $name" => sub {
        my $node = start_fake();
        my $seed = start_fake();
        my $port = $node->port;

        for my $case (['', '127.0.0.1', 1],
                      ['127.0.0.0/8', '127.0.0.1', 1],
                      ['10.0.0.0/8 127.0.0.1', '127.0.0.1', 1],
                      ['::ffff:127.0.0.0/104', '127.0.0.1', 1],
                      ['127.0.0.0/8', '::ffff:127.0.0.1', 1],
                      ['10.0.0.0/8', '127.0.0.1', 0],
                      ['10.0.0.0/8', '::ffff:127.0.0.1', 0],
                      ['10.0.0.0/8 fd00::/8', '::1', 0],
                      ['10.0.0.0/8', '', 0])
        {
            my ($networks, $host, $allowed) = @$case;
            my $what = sprintf '"%s" with "%s"', $host, $networks;
            my $own = all_slots('127.0.0.1', $seed->port);

            $node->policy(cluster_policy(all_slots($host, $port),
                                         eval => $PASSED));
            $seed->policy($policy->($host, $port, $own));
            $node->clear;

            my $before = $node->connections->{accepted};
            my $nginx = start('cluster ' . $seed->addr, $networks);

            if ($allowed) {
                ok works($nginx, 15, '/?k=a'),
                   "$what: is followed";
                is $nginx->topology_events('refused'), 0, 'nothing is refused';
                isnt scalar($node->commands('AUTH')), 0, 'and it is trusted';

            } else {
                ok refused($nginx),
                   "$what: is refused";
                is $node->connections->{accepted}, $before,
                   'no connection, so no password';
                is $nginx->log_count(
                       qr/announces \S+, which is not in /), 1,
                   'one line says why';
            }

            $nginx->finish;
        }
    };
}


subtest 'addresses that the configuration names are always right' => sub {
    my $node = start_fake();
    my $seed = start_fake();
    my $map = all_slots('127.0.0.1', $node->port);

    $_->policy(cluster_policy($map, eval => $PASSED)) for $node, $seed;

    my $nginx = start('cluster ' . $seed->addr . ' ' . $node->addr,
                            '10.0.0.0/8');

    ok works($nginx, 15, '/?k=a'), 'passed';
    is $nginx->topology_events('refused'), 0, 'nothing is refused';
    $nginx->finish;
};


subtest 'a name is where DNS says' => sub {
    my $dns = RateLimit::Dns->start(names => {
        'near.test' => { a => ['127.0.0.3'] },
        'far.test'  => { a => ['127.0.0.9'] },
        'both.test' => { a => ['127.0.0.3', '127.0.0.9'] } });
    my $resolver = 'resolver ' . $dns->addr . ' valid=1s ipv6=off;';
    my $node = start_fake();
    my $seed = start_fake();

    for my $case (['near.test', 1], ['both.test', 1], ['far.test', 0]) {
        my ($host, $allowed) = @$case;
        my $map = all_slots($host, $node->port);

        $_->policy(cluster_policy($map, eval => $PASSED)) for $node, $seed;

        my $before = $node->connections->{accepted};
        my $nginx = start('cluster ' . $seed->addr, '127.0.0.3',
                                $resolver);

        if ($allowed) {
            ok works($nginx, 15, '/?k=a'),
               "$host: is followed";

        } else {
            ok refused($nginx),
               "$host: is refused";
            is $node->connections->{accepted}, $before, 'no connection';
        }

        $nginx->finish;
    }
};


subtest 'a master that sentinels name is refused as well' => sub {
    my $master = start_fake(handshake => {
        ROLE => "*3\r\n" . bulk('master') . ":0\r\n*0\r\n" });
    my $sentinel = start_fake();

    for my $case (['', 1], ['127.0.0.0/8', 1], ['10.0.0.0/8', 0]) {
        my ($networks, $allowed) = @$case;

        $sentinel->policy(sentinel_policy($master->addr));

        my $before = $master->connections->{accepted};
        my $nginx = start('sentinel=m ' . $sentinel->addr, $networks);

        if ($allowed) {
            ok works($nginx, 15, '/?k=a'),
               "with \"$networks\": is followed";

        } else {
            ok refused($nginx),
               "with \"$networks\": is refused";
            is $master->connections->{accepted}, $before, 'no connection';
        }

        $nginx->finish;
    }
};


subtest 'networks that are none are errors of nginx -t' => sub {
    for my $wrong ('10.0.0.0/33', 'example.com', 'unix:', '10.0.0.0/8 off') {
        my ($code, $output) = RateLimit::Nginx->test_config(conf => <<"EOC");
    ratelimit_shards cluster 127.0.0.1:1;
    ratelimit_redis_networks $wrong;
EOC
        isnt $code, 0, "\"$wrong\" is refused";
        like $output, qr/invalid network "\S+" in "ratelimit_redis_networks"/,
             'by name';
    }
};


done_testing;
