# Where nodes of a cluster and masters may be: what is announced elsewhere gets no
# connection and no password, whoever says so, by whichever way.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Fault;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Util qw(free_port wait_until);

my $MAX = 2 ** 14 - 1;
my $PASSED = ":99000000\r\n";


sub bulk { return '$' . length($_[0]) . "\r\n$_[0]\r\n" }

sub map_of {
    my ($host, $port) = @_;

    return "*1\r\n*3\r\n:0\r\n:$MAX\r\n*3\r\n" . bulk($host) . ":$port\r\n"
           . bulk('e' x 40);
}


sub start_nginx {
    my ($shards, $networks, $http) = @_;

    $networks = $networks ? "ratelimit_redis_networks $networks;" : '';
    $http //= '';

    return RateLimit::Nginx->start(workers => 1, log => 'notice',
                                   conf => <<"EOC");
    $http
    ratelimit_shards $shards;
    $networks
    ratelimit_redis_password secret;
    ratelimit_redis_timeout 2s;
    ratelimit_redis_connect_timeout 2s;
    ratelimit_on_error closed;
    ratelimit_breaker failures=100 window=100ms probe=100ms;
    ratelimit_deny_cache off;

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name localhost;

        add_header X-Source \$ratelimit_source always;

        ratelimit_key \$arg_k;
        ratelimit_capacity 100;
        ratelimit_rate 120r/h;

        location = /metrics { ratelimit off; ratelimit_metrics; }
        location / { empty_gif; }
    }
EOC
}


sub seen {
    my ($nginx) = @_;

    my $r = RateLimit::Load::get($nginx->port, '/?k=a');

    return join ' ', $r->{status}, $r->{headers}{'x-source'} // '-';
}


sub refused {
    my ($nginx) = @_;

    return RateLimit::Fault::_sum(
        RateLimit::Fault::metrics({ nginx => $nginx }),
        'topology_events_total', event => 'refused');
}


sub finish {
    my ($nginx) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts;
}


sub start_fake {
    my (%policy) = @_;

    return RateLimit::FakeRedis->start(policy => { eval => $PASSED, %policy },
        bind => ['127.0.0.1', '127.0.0.3', '127.0.0.9']);
}


my $slot = RateLimit::Cluster::slot('a');

for my $way (['a map', sub { handshake => { 'CLUSTER SLOTS' => map_of(@_) } }],
             ['MOVED', sub { handshake => { 'CLUSTER SLOTS' => $_[2] },
                             eval => "-MOVED $slot $_[0]:$_[1]\r\n" }],
             ['ASK', sub { handshake => { 'CLUSTER SLOTS' => $_[2] },
                           eval => "-ASK $slot $_[0]:$_[1]\r\n" }])
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
            my $own = map_of('127.0.0.1', $seed->port);

            $node->policy({ eval => $PASSED, handshake =>
                { 'CLUSTER SLOTS' => map_of($host, $port) } });
            $seed->policy({ $policy->($host, $port, $own) });
            $node->clear;

            my $before = $node->connections->{accepted};
            my $nginx = start_nginx('cluster ' . $seed->addr, $networks);

            if ($allowed) {
                ok wait_until(sub { seen($nginx) eq '200 redis' }, 15),
                   "$what: is followed";
                is refused($nginx), 0, 'nothing is refused';
                isnt scalar($node->commands('AUTH')), 0, 'and it is trusted';

            } else {
                ok wait_until(sub { seen($nginx); refused($nginx) > 0 }, 15),
                   "$what: is refused";
                is $node->connections->{accepted}, $before,
                   'no connection, so no password';
                is $nginx->log_count(
                       qr/announces \S+, which is in none of /), 1,
                   'one line says why';
            }

            finish($nginx);
        }
    };
}


subtest 'addresses that the configuration names are always right' => sub {
    my $node = start_fake();
    my $seed = start_fake();
    my $map = { 'CLUSTER SLOTS' => map_of('127.0.0.1', $node->port) };

    $_->policy({ eval => $PASSED, handshake => $map }) for $node, $seed;

    my $nginx = start_nginx('cluster ' . $seed->addr . ' ' . $node->addr,
                            '10.0.0.0/8');

    ok wait_until(sub { seen($nginx) eq '200 redis' }, 15), 'passed';
    is refused($nginx), 0, 'nothing is refused';
    finish($nginx);
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
        my $map = map_of($host, $node->port);

        $_->policy({ eval => $PASSED,
                     handshake => { 'CLUSTER SLOTS' => $map } })
            for $node, $seed;

        my $before = $node->connections->{accepted};
        my $nginx = start_nginx('cluster ' . $seed->addr, '127.0.0.3',
                                $resolver);

        if ($allowed) {
            ok wait_until(sub { seen($nginx) eq '200 redis' }, 15),
               "$host: is followed";

        } else {
            ok wait_until(sub { seen($nginx); refused($nginx) > 0 }, 15),
               "$host: is refused";
            is $node->connections->{accepted}, $before, 'no connection';
        }

        finish($nginx);
    }
};


subtest 'a master by sentinels' => sub {
    my $master = start_fake(handshake => {
        ROLE => "*3\r\n" . bulk('master') . ":0\r\n*0\r\n" });
    my $says = sub {
        my ($host) = @_;

        return { handshake => { 'SENTINEL GET-MASTER-ADDR-BY-NAME' =>
                     "*2\r\n" . bulk($host) . bulk($master->port) } };
    };
    my $sentinel = start_fake();

    for my $case (['', 1], ['127.0.0.0/8', 1], ['10.0.0.0/8', 0]) {
        my ($networks, $allowed) = @$case;

        $sentinel->policy($says->('127.0.0.1'));

        my $before = $master->connections->{accepted};
        my $nginx = start_nginx('sentinel=m ' . $sentinel->addr, $networks);

        if ($allowed) {
            ok wait_until(sub { seen($nginx) eq '200 redis' }, 15),
               "with \"$networks\": is followed";

        } else {
            ok wait_until(sub { seen($nginx); refused($nginx) > 0 }, 15),
               "with \"$networks\": is refused";
            is $master->connections->{accepted}, $before, 'no connection';
        }

        finish($nginx);
    }
};


subtest 'networks that are none' => sub {
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
