# Reload and the end of workers: no client notices, no worker stays, and no
# socket is left behind.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);

use RateLimit::Answer;
use RateLimit::Background;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);


sub http {
    my ($shards, $timeout) = @_;

    $timeout //= '20s';

    return <<"EOC";
        ratelimit_shards $shards;
        ratelimit_redis_timeout $timeout;
        ratelimit_redis_connect_timeout $timeout;
EOC
}


sub start {
    my ($http, %opt) = @_;

    return RateLimit::Nginx->start(
        log    => 'notice',
        %opt,
        conf   => $http,
        server => <<'EOC',
            ratelimit_key      $arg_k;
            ratelimit_capacity 1000000;
            ratelimit_rate     0r/s;
            add_header         X-Source $ratelimit_source always;

            location /    { empty_gif; }
            location /few { ratelimit_capacity 5; empty_gif; }

            # calls that differ by the rate are commands of their own
            location /own { ratelimit_rate 1000${arg_r}r/s; empty_gif; }

            location /lease { ratelimit_capacity 1000;
                              ratelimit_lease 100 ttl=60s; empty_gif; }
EOC
    );
}


# A key that no other test has, should its nginx look for a Redis that has left
# its port to one of ours.

my $mine = $$;

sub key {
    my ($n) = @_;

    return "$mine-$n";
}


# Load in another process, in rounds, until it is stopped; what came of it are
# counts of statuses, sources and errors.

sub load {
    my ($nginx, %opt) = @_;

    return RateLimit::Background->start(sub {
        my ($told) = @_;

        my %total = map { $_ => {} } qw(statuses sources errors);

        do {
            my $load = RateLimit::Load::run(
                port => $nginx->port, connections => 20, requests => 1000,
                keep => 1, timeout => 60,
                path => sub { '/?k=' . key($_[0] % 100) },
                %opt,
            );

            $total{statuses}{$_->{status}}++ for $load->responses;
            $total{sources}{$_->{headers}{'x-source'} // '-'}++
                for $load->responses;
            $total{errors}{$_} += $load->{errors}{$_}
                for keys %{ $load->{errors} };
            $total{retried} += $load->retried;

        } until $told->();

        return \%total;
    });
}


# Tokens that were taken from the buckets of "/", by their keys.

sub taken_by_key {
    my (@redis) = @_;

    my $keys = 'ratelimit:localhost:{' . key('*') . '}';

    return map {
        my $redis = $_;
        map { ($_ => 1_000_000 - $redis->tokens($_)) }
            @{ $redis->cmd('KEYS', $keys) };
    } @redis;
}


sub taken {
    my (@redis) = @_;

    my %taken = taken_by_key(@redis);

    return sum0 values %taken;
}


subtest 'twenty reloads under load cost no request' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $nginx = start(http(join ' ', map { $_->addr } @redis));
    my $load = load($nginx);

    is_deeply [map { $nginx->reload } 1 .. 20], [(1) x 20], 'reloaded';

    my $total = $load->stop;
    my ($all) = values %{ $total->{statuses} };

    note "$all requests, $total->{retried} of them on a second connection";

    is_deeply $total->{errors}, {}, 'no request failed';
    is_deeply $total->{statuses}, { 200 => $all }, 'all passed';
    is_deeply $total->{sources}, { redis => $all }, 'Redis decided about all';

    # a hundred keys in turn

    my %taken = taken_by_key(@redis);

    is_deeply \%taken,
              { map { +'ratelimit:localhost:{' . key($_) . '}' => $all / 100 }
                0 .. 99 }, 'and charged each once';

    ok $nginx->old_workers_gone(20), 'old workers left';
    ok wait_until(sub { !grep { $_->clients != 2 } @redis }, 10),
       'with their connections: two workers, two connections a shard';

    $nginx->finish;
    is sum0(map { $_->clients } @redis), 0, 'no connection is left';
};


subtest 'limits go on over a reload' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start(http($redis->addr));

    for my $left (4, 3, 2, 1, 0) {
        is ask($nginx, '/few?k=a'), "200 redis $left", "$left left";
        ok $nginx->reload, 'reload';
    }

    # the last one was told so by the worker before, on this machine

    is ask($nginx, '/few?k=a'), '429 denied 0', 'none left';

    ok $nginx->old_workers_gone(10), 'old workers left';
    $nginx->finish;
};


subtest 'a lease is given back by a worker that leaves, and does not keep it'
    => sub
{
    my $redis = RateLimit::Redis->start;
    my $nginx = start(http($redis->addr), workers => 1);
    my $tokens = sub { $redis->tokens('ratelimit:localhost/lease:{a}') };

    my @got = map { ask($nginx, '/lease?k=a') } 1 .. 20;

    is_deeply [@got[0, 2]], ['200 redis 999', '200 lease 997'],
              'tokens are taken in advance';
    is $got[19] =~ s/\w+ (?=\d+$)//r, '200 980', 'twenty are spent';
    cmp_ok $tokens->(), '<', 980, 'and more than that are taken';

    ok $nginx->reload, 'reload';
    ok $nginx->old_workers_gone(20), 'the old worker left, before a minute';
    ok wait_until(sub { $tokens->() == 980 }, 10), 'what it held is back';

    $nginx->finish;
};


subtest 'old workers leave, whatever Redis does' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start(http($redis->addr, '200ms'));

    # each reload ends workers that are in the state that was just described

    my $leave = sub {
        my ($name) = @_;

        ok $nginx->reload, "$name: reload";
        ok $nginx->old_workers_gone(10), 'old workers left';
    };

    ok works($nginx), 'works';
    $leave->('idle connections');
    ok wait_until(sub { $redis->clients == 2 }, 10), 'closed with them';

    $redis->kill9;
    like ask($nginx, '/?k=a'),
         qr/^200 local (?:storage_unavailable|circuit_open)$/, 'Redis is down';
    $leave->('between attempts to connect');
    $leave->('right after the start');
    RateLimit::Load::run(port => $nginx->port, connections => 10,
                         requests => 500, path => '/?k=a');
    is ask($nginx, '/?k=a'), '200 local circuit_open', 'the circuit is open';
    $leave->('after many failures');
    is ask($nginx, '/?k=a'), '200 local circuit_open',
       'and is so for the new workers from their start';

    $redis->start;
    ok works($nginx), 'Redis is up';
    ok wait_until(sub { $redis->clients == 2 }, 20), 'for both workers';

    $redis->pause;
    $leave->('frozen, idle connections');

    like ask($nginx, '/?k=a'), qr/^200 local (?:timeout|circuit_open)$/,
         'frozen';
    $leave->('in the middle of a greeting');

    $redis->resume;
    ok works($nginx), 'works';
    ok wait_until(sub { $redis->clients == 2 }, 20), 'for both workers';
    $redis->pause;

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, requests => 20,
        path => '/?k=a', abort => 0.5);
    is $load->error_text, '', 'frozen, calls given up';
    $leave->('with replies still due');

    $redis->resume;
    ok works($nginx), 'works';

    # timers of a connection, however long, hold nobody up

    my $fake = RateLimit::FakeRedis->start(policy => { handshake => {
        '*' => {} } });

    ok $nginx->reload(http => http($fake->addr, '60s')), 'a silent server';
    ok wait_until(sub { $fake->connections->{open} == 2 }, 10), 'connected';
    $leave->('with a minute left for the greeting');

    ok $nginx->reload(http => http($redis->addr)), 'the first one again';
    ok $nginx->old_workers_gone(10), 'old workers left';
    ok works($nginx), 'works';

    $nginx->finish;
};


subtest 'requests that wait for Redis at the moment of reload' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => sub {
            my ($args, $n) = @_;
            return { reply => ':' . ($n + 1) . "000000\r\n",
                     delay => $n ? 0 : 1500 };
        },
    });
    my $nginx = start(http($fake->addr), workers => 1);
    my $get = sub {
        my ($key) = @_;

        return "GET /own?k=$key&r=" . ord($key)
               . " HTTP/1.1\r\nHost: a\r\n\r\n";
    };

    # the first reply is late, the others wait behind it

    my @clients = map { RateLimit::Load::connection($nginx->port) } 0 .. 9;

    for my $i (0 .. 9) {
        $clients[$i]->write($get->($i));
        $fake->wait_commands('EVALSHA', $i + 1, 20);
    }

    ok $nginx->reload, 'reload with ten requests under way';
    is_deeply [map { verdict($_->response(20)) } @clients],
              [map { "200 redis $_" } 1 .. 10], 'all get their answers';
    ok $nginx->old_workers_gone(10), 'then the old worker leaves';
    $nginx->finish;

    # the server never answers

    $fake->policy({ eval => {} });
    $nginx = start(http($fake->addr, '1s'), workers => 1);
    $fake->clear;

    @clients = map { RateLimit::Load::connection($nginx->port) } 0 .. 9;
    $clients[$_]->write($get->($_)) for 0 .. 9;
    ok $fake->wait_commands('EVALSHA', 10, 20), 'ten more under way';

    ok $nginx->reload, 'reload';
    is_deeply [map { verdict($_->response(20)) } @clients],
              [('200 local timeout') x 10], 'the failure policy answers them';
    ok $nginx->old_workers_gone(10), 'then the old worker leaves';
    $nginx->finish;

    # nor to the first of ten that ask the same

    $nginx = start(http($fake->addr, '4s'), workers => 1);
    $fake->clear;

    @clients = map { RateLimit::Load::connection($nginx->port) } 0 .. 10;
    $clients[0]->write($get->('a'));
    ok $fake->wait_commands('EVALSHA', 1, 20), 'one under way';
    $clients[$_]->write($get->('a')) for 1 .. 9;
    $clients[10]->write($get->('b'));
    ok $fake->wait_commands('EVALSHA', 2, 20), 'nine wait for it, and another '
                                               . 'one goes after them';

    ok $nginx->reload, 'reload';
    is_deeply [map { verdict($_->response(20)) } @clients],
              [('200 local timeout') x 11], 'the failure policy answers them';
    ok $nginx->old_workers_gone(10), 'then the old worker leaves';
    is scalar $fake->commands('EVALSHA'), 3,
       'nine went together, when the first had waited too long';
    $nginx->finish;

    # the old worker has no connection yet

    $fake->policy({
        handshake => { CLIENT => { reply => "+OK\r\n", delay => 1000 } },
        eval      => ":7000000\r\n",
    });
    $nginx = start(http($fake->addr), workers => 1);

    @clients = map { RateLimit::Load::connection($nginx->port) } 0 .. 9;
    $clients[$_]->write($get->($_)) for 0 .. 9;
    ok $nginx->reload, 'reload with ten that wait for a connection';
    is_deeply [map { verdict($_->response(20)) } @clients],
              [('200 redis 7') x 10], 'all get their answers';
    ok $nginx->old_workers_gone(10), 'then the old worker leaves';
    $nginx->finish;
};


subtest 'a request that an old worker reads after it closed its connections'
=> sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start(http($redis->addr), workers => 1);
    my $half = "GET /?k=a HTTP/1.1\r\nHost: a\r\n";

    # half a request behind a whole one: nginx has surely read it

    my $half_a_request = sub {
        my $client = RateLimit::Load::connection($nginx->port);
        $client->write("$half\r\n$half");
        like verdict($client->response), qr/^200 redis /, 'a request';

        ok $nginx->reload, 'reload amid the next one';
        ok wait_until(sub { $redis->clients == 1 }, 10),
           'the old worker closed its connection to Redis';

        return $client;
    };

    my $client = $half_a_request->();
    $client->write("\r\n");
    is verdict($client->response), '200 redis 999998',
       'it connects again for the rest of the request';
    $client->close;
    ok $nginx->old_workers_gone(10), 'and leaves';

    $client = $half_a_request->();
    $redis->kill9;
    $client->write("\r\n");
    like verdict($client->response),
         qr/^200 local (?:storage_unavailable|circuit_open)$/,
         'or finds Redis gone';
    $client->close;
    ok $nginx->old_workers_gone(10), 'and leaves';

    $nginx->finish;
};


subtest 'a reload that changes the shards uses the new ones' => sub {
    my ($a, $b) = RateLimit::Redis->start_many(2);
    my $nginx = start(http($a->addr));

    is ask($nginx, '/few?k=a'), '200 redis 4', 'the first shard';

    my $load = load($nginx);

    ok $nginx->reload(http => http($b->addr)), 'another one';
    ok $nginx->old_workers_gone(20), 'old workers left';
    my $total = $load->stop;

    is_deeply [$total->{errors}, keys %{ $total->{sources} }], [{}, 'redis'],
              'not one request failed';
    is ask($nginx, '/few?k=a'), '200 redis 4', 'is used';
    is $a->clients, 0, 'the first one is not';

    # three instead of one; a wrong configuration changes nothing

    my $c = RateLimit::Redis->start;

    ok $nginx->reload(http => http(join ' ', map { $_->addr } $a, $b, $c)),
       'three shards';
    ok $nginx->old_workers_gone(20), 'old workers left';
    ok wait_until(sub { !grep { $_->clients != 2 } $a, $b, $c }, 10),
       'two workers at each';
    ok !$nginx->reload(http => http('no-port:0')), 'a wrong configuration';
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'changes nothing';

    # a password, set on the server first

    $b->cmd('CONFIG', 'SET', 'requirepass', 'new');
    ok $nginx->reload(http => 'ratelimit_redis_password new;'
                              . http($b->addr)), 'a password';
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'is used';
    ok $nginx->old_workers_gone(20), 'old workers left';

    $nginx->finish(except => qr/no-port:0/);
};


subtest 'an end under load cuts no answer off' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $nginx = start(http(join ' ', map { $_->addr } @redis));
    my $load = load($nginx, requests => undef, duration => 1,
                    path => sub { '/?k=' . key($_[0]) });

    ok wait_until(sub { taken(@redis) > 500 }, 20), 'load';
    $nginx->finish;

    my $total = $load->stop;
    my ($all) = values %{ $total->{statuses} };

    # connections that nginx had not accepted yet are refused or reset

    delete @{ $total->{errors} }{qw(refused reset)};

    is_deeply $total->{errors}, {}, 'no answer was cut off';
    is_deeply $total->{statuses}, { 200 => $all }, 'all passed';
    is_deeply $total->{sources}, { redis => $all }, 'Redis decided about all';
    is taken(@redis), $all, 'whoever was charged has got an answer';
};


subtest 'workers connect to Redis, and no other process' => sub {
    my @redis = RateLimit::Redis->start_many(2);
    my $nginx = start(
        'proxy_cache_path %%DIR%%/cache keys_zone=c:1m;'
        . http(join ' ', map { $_->addr } @redis),
        workers => 3);

    my $helpers = sub {
        return scalar grep { /cache (?:manager|loader)/ }
                      map { RateLimit::Util::slurp("/proc/$_/cmdline") }
                      RateLimit::Nginx::_children($nginx->pid);
    };

    SKIP: {
        skip 'no titles under valgrind', 1 if $ENV{TEST_NGINX_USE_VALGRIND};
        ok wait_until(sub { $helpers->() == 2 }, 10),
           'a manager and a loader of the cache';
    }

    RateLimit::Load::run(port => $nginx->port, connections => 100,
                         requests => 1000, path => sub { "/?k=$_[0]" });

    ok wait_until(sub { !grep { $_->clients != 3 } @redis }, 10),
       'three workers: three connections, whatever the load';

    my @names = $redis[0]->cmd('CLIENT', 'LIST')
                =~ /name=(nginx-ratelimit@\S+)/g;
    is scalar @names, 3, 'with a name for CLIENT LIST';

    # a worker that dies is replaced, and so is its connection

    ok $nginx->kill_worker('KILL'), 'a killed worker is replaced';
    ok wait_until(sub { !grep { $_->clients != 3 } @redis }, 10),
       'and so are its connections';
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'works';

    $nginx->finish(except => qr/exited on signal 9/);
};


done_testing();
