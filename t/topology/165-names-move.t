# Names that move: a shard by host name is looked up again and again while
# nginx runs, by its TTL, and followed to where it is.  Nobody waits for DNS, and
# what was known last stays when DNS fails.
#
# The name is "localhost", which the system knows as 127.0.0.1 when nginx starts;
# the DNS server of the test says something else then.  Redis servers listen on
# several addresses at the same port.
#
# May be run twice: names expire after seconds.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Socket::IP ();
use List::Util qw(sum0);
use Time::HiRes qw(sleep);

use RateLimit::Dns;
use RateLimit::Fault;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(free_port wait_until);

my $WORKERS = 2;

my $port = free_port();
my %redis = map { $_ => RateLimit::Redis->start(port => $port, bind => $_) }
            '127.0.0.1', '127.0.0.2';

my $dns = RateLimit::Dns->start(names => {
    localhost => { a => ['127.0.0.1'] },
});


sub start {
    my (%opt) = @_;

    my $resolver = delete $opt{resolver}
                   // 'resolver ' . $dns->addr . ' valid=1s;'
                      . 'resolver_timeout 2s;';

    return RateLimit::Fault->start(
        redis   => [@redis{'127.0.0.1', '127.0.0.2'}],
        shards  => "localhost:$port",
        timeout => 3000,
        connect => 3000,
        workers => $WORKERS,
        http    => $resolver,
        breaker => 'probe=1s',
        %opt,
    );
}


# Connections of nginx: those of the test come by the unix socket.

sub connections {
    my ($address) = @_;

    return scalar grep { length && !/ flags=\S*U/ }
           split /\n/, $redis{$address}->cmd('CLIENT', 'LIST');
}


# All workers are here, and none is elsewhere any more.

sub at {
    my ($address, $n) = @_;

    return wait_until(sub {
        my $others = sum0 map { $_ ne $address && $redis{$_}->pid
                                ? connections($_) : 0 } keys %redis;

        return connections($address) == ($n // $WORKERS) && $others == 0;
    }, 30);
}


# How many tokens clients of the load have taken, wherever.

sub taken {
    my $taken = 0;

    for my $redis (values %redis) {
        for my $name (@{ $redis->cmd('KEYS', '*{*}') }) {
            my ($key) = $name =~ /\{(\d+)\}$/ or next;

            $taken += RateLimit::Fault::apart($key)
                      - $redis->tokens($name);
        }
    }

    return $taken;
}


sub forget {
    $_->cmd('FLUSHALL') for values %redis;
}


sub events {
    my ($fault, $event) = @_;

    return $fault->metric('topology_events_total', event => $event);
}


# Lookups that fail from now on, by the workers together.

sub failures {
    my ($fault, $n) = @_;

    my $from = events($fault, 'resolve_failed');

    return wait_until(sub { events($fault, 'resolve_failed') >= $from + $n },
                      40);
}


# The lines of the log that tell about addresses, since it was so long.

sub told {
    my ($fault, $from) = @_;

    my $log = substr $fault->nginx->error_log, $from // 0;

    return $log =~ /ratelimit shard localhost:$port: (addresses are now .*)/g;
}


subtest 'a name that nobody knows is an error at the start' => sub {
    for my $case (["ratelimit_shards no-such-host.invalid:6379;",
                   'no-such-host.invalid:6379'],
                  ["ratelimit_shards redis://no-such-host.invalid;",
                   'no-such-host.invalid'])
    {
        my ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "resolver @{[ $dns->addr ]}; $case->[0]",
            server => 'return 204;');

        is $code, 1, "nginx -t: $case->[0]";
        like $output, qr/\[emerg\] .*host not found in "\Q$case->[1]\E/,
             'says which';
    }
};


subtest 'without a resolver a name is looked up once' => sub {
    my $fault = start(resolver => '');

    ok $fault->works, 'the system is asked at the start';
    ok at('127.0.0.1'), 'and knows where it is';

    sleep 1.5;
    is $dns->queries, 0, 'nobody asks again';

    $fault->finish;
};


my $fault = start();
my $nginx = $fault->nginx;


subtest 'a name that stays where it is disturbs nobody' => sub {
    ok $fault->works, 'all workers are connected';
    ok at('127.0.0.1'), 'where the system says';

    ok $dns->wait_queries(3 * $WORKERS, 20, 'localhost', 'A'),
       'it is looked up again and again';
    is_deeply [told($fault)], [], 'nothing is said about it';
    is events($fault, 'resolved'), 0, 'or counted';
    is connections('127.0.0.1'), $WORKERS, 'connections stay';
    is $fault->metric('redis_reconnects_total'), 0, 'they are the same';
};


subtest 'another address is followed, and no request notices' => sub {
    forget();

    my $there;
    my $load = $fault->during(sub {
        $fault->wait_decisions(200, source => 'redis');
        $dns->name('localhost', a => ['127.0.0.2']);
        $there = at('127.0.0.2');
        $fault->wait_decisions(200, source => 'redis');
    });

    ok $there, 'all workers have moved';

    $fault->check($load);

    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'no request had to do without Redis';
    is $load->count(sub { $_->{status} != 200 }), 0, 'or was rejected';
    is taken(), $load->count, 'what was taken is what was given, no less';
    is scalar $load->mixed_up - at_both($load), 0,
       'every answer is that of its own request';

    my @told = told($fault);
    is $told[0], 'addresses are now 127.0.0.2', 'the log says where it is';
    cmp_ok scalar @told, '<=', $WORKERS, 'each worker once, at most';
    cmp_ok $load->metric('topology_events_total', event => 'resolved'), '>=',
           1, 'it is counted';

    is_deeply [map { $_->{node} }
               @{ $fault->metrics->{nginx_ratelimit_shard_node} }],
              ["127.0.0.2:$port"], 'metrics say where it is';
};


# A key that was at both servers got the same number from both.

sub at_both {
    my ($load) = @_;

    my %numbers;

    $numbers{"$_->{key} $_->{remaining}"}++ for $load->requests;

    return sum0 map { $_ - 1 } grep { $_ == 2 } values %numbers;
}


subtest 'of several addresses one that works is used' => sub {
    my $from = length $nginx->error_log;
    my $reconnects = $fault->metric('redis_reconnects_total');

    $dns->name('localhost', a => ['127.0.0.3', '127.0.0.2']);

    ok wait_until(sub { told($fault, $from) }, 20), 'one more';
    is((told($fault, $from))[0], 'addresses are now 127.0.0.2, 127.0.0.3',
       'the log names both');

    wait_until(sub { events($fault, 'resolved') >= 2 * $WORKERS }, 20);
    is $fault->metric('redis_reconnects_total'), $reconnects,
       'connections to one of them stay';
    ok at('127.0.0.2'), 'where they are';

    $from = length $nginx->error_log;

    for my $order (['127.0.0.2', '127.0.0.3'],
                   ['127.0.0.3', '127.0.0.2', '127.0.0.3'])
    {
        $dns->name('localhost', a => $order);
        $dns->wait_queries(2 * $WORKERS, 20, 'localhost', 'A');
    }

    is_deeply [told($fault, $from)], [], 'in another order they are the same';

    # of 127.0.0.1 and 127.0.0.2 one is dead, then the other

    $dns->name('localhost', a => ['127.0.0.1', '127.0.0.2']);
    ok wait_until(sub { told($fault, $from) }, 20), 'others';

    my ($first, $second);
    my $load = $fault->during(sub {
        $fault->wait_decisions(100, source => 'redis');
        $redis{'127.0.0.2'}->kill9;
        $first = at('127.0.0.1');
        $fault->wait_decisions(100, source => 'redis');

        $redis{'127.0.0.2'}->start;
        $redis{'127.0.0.1'}->kill9;
        $second = at('127.0.0.2');
        $fault->wait_decisions(100, source => 'redis');
    });

    ok $first, 'one is dead: the other one serves';
    ok $second, 'and the other way round';
    $fault->check($load);

    $redis{'127.0.0.1'}->start;
    ok $fault->wait_state('distributed', 20), 'all is well';
};


# ---- DNS fails

my $WARNING = qr/^name "localhost" could not be resolved \(\d+: \D+\), keeping/;

for my $case (['NXDOMAIN', { code => 'NXDOMAIN' }, '3: Host not found'],
              ['SERVFAIL', { code => 'SERVFAIL' }, '2: Server failure'],
              ['no answer', { silent => 1 }, '110: Operation timed out'])
{
    my ($name, $record, $text) = @$case;

    subtest "DNS fails: $name" => sub {
        $dns->name('localhost', a => ['127.0.0.2']);
        ok at('127.0.0.2'), 'known last';
        ok $fault->works, 'all workers are connected';
        $dns->wait_queries(2 * $WORKERS, 30, 'localhost', 'A');

        forget();

        my ($failed, $again);
        my $from = length $nginx->error_log;

        my $load = $fault->during(sub {
            $dns->name('localhost', %$record);
            $failed = failures($fault, $WORKERS);
            $fault->wait_decisions(200, source => 'redis');
        });

        ok $failed, 'lookups fail';
        $fault->check($load);
        is $load->count(sub { $_->{source} ne 'redis' }), 0,
           'the last address stays';
        is taken(), $load->count, 'no request is lost';

        # connections that are lost are made again, where they were

        $redis{'127.0.0.2'}->cmd('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME',
                                 'yes');
        ok $fault->works(20), 'also for new connections';
        ok at('127.0.0.2'), 'to the last address';

        my $log = substr $nginx->error_log, $from;
        my @warned = $log =~ /\[warn\] .*?ratelimit shard localhost:$port: (.*)/g;

        # an earlier case may have warned less than a minute ago

        cmp_ok scalar @warned, '<=', 2 * $WORKERS, 'hardly a word in the log';
        like $_, $WARNING, 'in clear words' for @warned;
        like $warned[0] // '', qr/\($text\)/, 'with the reason'
            if $name eq 'NXDOMAIN';

        $dns->name('localhost', a => ['127.0.0.1']);
        ok at('127.0.0.1'), 'when DNS is back, it is believed again';
    };
}


subtest 'nobody waits for a slow DNS server' => sub {
    my $there;
    my $load = $fault->during(sub {
        $dns->name('localhost', a => ['127.0.0.2'], delay => 1000);
        $there = at('127.0.0.2');
        $fault->wait_decisions(100, source => 'redis');
    });

    ok $there, 'its answer comes in the end';
    $fault->check($load);
    is $load->count(sub { $_->{source} ne 'redis' }), 0, 'nobody waits for it';
};


subtest 'without a DNS server all stays as it was' => sub {
    my ($failed, $there);
    my $load = $fault->during(sub {
        my $at = $dns->port;

        $dns->stop;
        $failed = failures($fault, $WORKERS);
        $fault->wait_decisions(100, source => 'redis');

        $dns = RateLimit::Dns->start(port => $at, names => {
            localhost => { a => ['127.0.0.1'] },
        });
        $there = at('127.0.0.1');
    });

    ok $failed, 'lookups fail';
    ok $there, 'until it is back';
    $fault->check($load);
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'requests do not notice';
};


subtest 'the server has gone where DNS says' => sub {
    my $there;
    my $load = $fault->during(sub {
        $fault->wait_decisions(100, source => 'redis');
        $redis{'127.0.0.1'}->kill9;
        $dns->name('localhost', a => ['127.0.0.2']);
        $there = at('127.0.0.2') && $fault->wait_state('distributed', 20);
        $fault->wait_decisions(100, source => 'redis');
    });

    ok $there, 'so do we';
    $fault->check($load);

    $redis{'127.0.0.1'}->start;
};


subtest 'a reload in the middle of a lookup is noticed by nobody' => sub {

    # a lookup that nobody answers does not hold up the end of a worker

    ok $fault->works, 'all is well';
    $dns->name('localhost', silent => 1);
    $dns->wait_queries(1, 20, 'localhost', 'A');

    my $patient = $nginx->{opt}{http} =~ s/resolver_timeout \K\d+s/60s/r;
    my ($gone, $there, $from);
    my $load = $fault->during(sub {
        $from = length $nginx->error_log;
        $nginx->reload(http => $patient);
        $fault->wait_decisions(50, source => 'redis');
        $dns->wait_queries(1, 20, 'localhost', 'A');

        $nginx->reload;
        $gone = $nginx->old_workers_gone(20);

        $dns->name('localhost', a => ['127.0.0.2']);
        $there = at('127.0.0.2');
        $fault->wait_decisions(50, source => 'redis');
    });

    ok $gone, 'old workers leave in the middle of a lookup';
    ok $there, 'new ones begin with what the system says, and ask DNS';
    is((told($fault, $from))[0], 'addresses are now 127.0.0.2',
       'which the log says');

    $fault->check($load, workers => 0);
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'no request had to do without Redis';

    $fault->finish;
};


subtest 'names are looked up by the TTL of the answer' => sub {
    $dns->name('localhost', a => ['127.0.0.1'], ttl => 1);

    my $fault = start(resolver => 'resolver ' . $dns->addr . ';');

    ok $fault->works, 'all workers are connected';
    ok $dns->wait_queries(2 * $WORKERS, 20, 'localhost', 'A'),
       'a second: it is looked up again and again';

    $dns->name('localhost', a => ['127.0.0.2'], ttl => 300);
    ok at('127.0.0.2'), 'another address';

    # both workers have that answer, so nobody has a reason to ask

    my $asked = $dns->queries('localhost', 'A');

    $dns->name('localhost', a => ['127.0.0.1']);
    sleep 3;
    is $dns->queries('localhost', 'A'), $asked, 'five minutes: it is not';
    is connections('127.0.0.2'), $WORKERS, 'and does not move';

    $fault->finish;
};


subtest 'addresses of IPv6 are used, and those of IPv4 again' => sub {
    my $probe = IO::Socket::IP->new(LocalHost => '::1', LocalPort => $port,
                                    Listen => 1);

    plan skip_all => 'no IPv6 here' unless $probe;

    close $probe;
    local $redis{'::1'} = RateLimit::Redis->start(port => $port, bind => '::1');

    $dns->name('localhost', a => ['127.0.0.1'], aaaa => ['::1']);

    my $fault = start();

    ok $fault->works, 'all workers are connected';
    ok at('127.0.0.1'), 'by IPv4, which is known';

    $dns->name('localhost', aaaa => ['::1']);
    ok at('::1'), 'then by IPv6';
    is((told($fault))[-1], 'addresses are now ::1', 'says the log');
    is_deeply [map { $_->{node} }
               @{ $fault->metrics->{nginx_ratelimit_shard_node} }],
              ["[::1]:$port"], 'say the metrics';

    $dns->name('localhost', a => ['127.0.0.2']);
    ok at('127.0.0.2'), 'and back';

    $fault->finish;
};


# Each of the databases is a shard, with a connection and a name of its own.

subtest 'a hundred changes leave nothing behind' => sub {
    my $shards = 9;
    my $rounds = 6;

    $dns->name('localhost', a => ['127.0.0.1']);

    my $fault = start(shards => join ' ', map { "redis://localhost:$port/$_" }
                                          0 .. $shards - 1);

    ok $fault->works(30), 'all workers are connected';
    ok at('127.0.0.1', $shards * $WORKERS), 'where the system says';

    my $turn = sub {
        my ($n) = @_;

        my $address = '127.0.0.' . ($n % 2 ? 2 : 1);

        $dns->name('localhost', a => [$address]);

        return at($address, $shards * $WORKERS);
    };

    # connections and buffers of all kinds have been there once

    $turn->(1);
    $turn->(2);

    my $moved = 0;
    my $load = $fault->during(sub {
        for my $n (1 .. $rounds) {
            $moved += $turn->($n) ? 1 : 0;
            $fault->wait_decisions(100, source => 'redis');
        }
    });

    is $moved, $rounds, 'all of them move each time';
    cmp_ok $load->metric('topology_events_total', event => 'resolved'), '>=',
           100, 'more than a hundred changes';

    $fault->check($load, lines => $shards * $WORKERS * $rounds + 50);
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'no request had to do without Redis';

    $fault->finish;
};


done_testing;
