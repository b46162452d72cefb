# Redis is down, dies, hangs, or comes back: every request is answered in time,
# from this machine's own limits unless another policy is set, nobody waits once
# the circuit is open, and nginx finds back by itself.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Socket::INET ();
use Time::HiRes qw(time);

use RateLimit::Answer;
use RateLimit::Background;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(free_port patience slurp wait_until);


# Of the limits of /own each may have another size: calls for these share no
# command.

sub start {
    my ($shards, %opt) = @_;

    my $timeout = delete $opt{timeout} // '20s';

    return RateLimit::Nginx->start(
        workers => 1,
        %opt,
        conf    => <<"EOC",
            ratelimit_shards $shards;
            ratelimit_redis_timeout $timeout;
            ratelimit_redis_connect_timeout $timeout;
EOC
        server  => <<"EOC",
            listen unix:%%DIR%%/nginx.sock;

            ratelimit_key      \$arg_k;
            ratelimit_capacity 1000000;
            ratelimit_rate     0r/s;
            add_header         X-Source \$ratelimit_source always;
            add_header         X-Status \$ratelimit_status always;
            add_header         X-Shard \$ratelimit_shard always;
            add_header         X-Latency \$ratelimit_latency always;

            location /       { empty_gif; }
            location /few    { ratelimit_capacity 10; empty_gif; }
            location /own    { ratelimit_capacity \$arg_c;
                               ratelimit_rate 1000r/s; empty_gif; }
            location /open   { ratelimit_on_error open; empty_gif; }
            location /closed { ratelimit_on_error closed; empty_gif; }
            location /other  { ratelimit_on_error closed;
                               ratelimit_error_status 500; empty_gif; }
EOC
    );
}


# Until the circuit is open for this nginx.

sub opens {
    my ($nginx, $seconds) = @_;

    return wait_until(sub { ask($nginx, '/?k=w') eq '200 local circuit_open' },
                      $seconds // 20);
}


# How many responses of a load came from where, and for what reason if they were
# degraded.

sub sources {
    my ($load) = @_;

    my %sources;
    $sources{$_->{headers}{'x-source'} // '-'}++ for $load->responses;

    return \%sources;
}


sub reasons {
    my ($load) = @_;

    my %reasons;
    $reasons{$_->{headers}{'x-ratelimit-degraded-reason'} // '-'}++
        for $load->responses;

    return \%reasons;
}


sub load {
    my ($nginx, %opt) = @_;

    return RateLimit::Load::run(
        port => $nginx->port, connections => 20, keep => 1, timeout => 60,
        path => sub { '/?k=' . $_[0] % 100 }, %opt,
    );
}


# Another limit for each of those that come together.

sub own {
    my ($n) = @_;

    return "/own?k=$n&c=" . (1_000_000 + $n);
}


subtest 'Redis is down at the start: this machine decides until it is up'
    => sub
{
    my $redis = RateLimit::Redis->new;

    for my $shards ($redis->addr, 'unix:' . $redis->socket) {
        my $start = time;
        my $nginx = start($shards);

        like ask($nginx, '/?k=a'),
             qr/^200 local (?:storage_unavailable|circuit_open)$/,
             "$shards: this machine's own limit from the first request on";
        ok opens($nginx), 'the circuit opens';
        is_deeply $nginx->state_names($shards),
                  ['fallback, failure: refused',
                   'circuit_open, failure: refused'], 'both states are told';

        my $r = $nginx->get('/few?k=a');

        is verdict($r), '200 local circuit_open', 'local passes';
        is $r->{headers}{'x-status'}, 'DEGRADED', 'with its status';
        is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded';
        is $r->{headers}{'x-ratelimit-limit'}, 10, 'and numbers:';
        is $r->{headers}{'x-ratelimit-remaining'}, 9, 'what is left here';

        is_deeply [map { ask($nginx, '/few?k=a') } 1 .. 12],
                  [('200 local circuit_open') x 9,
                   ('429 local circuit_open') x 3], 'and rejects';

        $r = $nginx->get('/few?k=a');

        is $r->{headers}{'x-status'}, 'REJECTED', 'with its status';
        is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded, too';

        $r = $nginx->get('/open?k=a');

        is verdict($r), '200 open circuit_open', 'open passes';
        is $r->{headers}{'x-ratelimit-limit'}, undef, 'no numbers';

        $r = $nginx->get('/closed?k=a');

        is verdict($r), '503 closed circuit_open', 'closed does not';
        is $r->{headers}{'retry-after'}, 1, 'Retry-After';
        is $r->{headers}{'x-ratelimit-retry-after'}, 1, 'the same as X-';
        is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded';
        is $r->{headers}{'x-ratelimit-limit'}, undef, 'no numbers';

        is ask($nginx, '/other?k=a'), '500 closed circuit_open',
           'ratelimit_error_status';

        # a timeout of 20 s, and yet nobody waits

        my $load = load($nginx, requests => 300);

        is_deeply [$load->statuses, $load->error_text], [{ 200 => 300 }, ''],
                  'all pass';
        is_deeply reasons($load), { circuit_open => 300 }, 'all as they should';
        cmp_ok time - $start, '<', patience(10), 'without waiting';
        is $nginx->log_count(qr/DEGRADED.* failure: (?!refused|circuit_open)/),
           0, 'their classes';
        is $nginx->log_count(qr/\[(?:error|crit)\].*connect\(\) to .*failed/),
           1, 'logged once';

        $redis->start;
        ok works($nginx), 'up: works by itself';
        is_deeply [splice @{ $nginx->state_names($shards) }, 2],
                  ['distributed again'], 'and says so';
        is_deeply sources(load($nginx, requests => 300)), { redis => 300 },
                  'for all';
        is ask($nginx, '/few?k=a'), '200 redis 9',
           'what was taken meanwhile is this machine\'s own affair';

        $redis->stop;

        # a unix socket that is not there is a crit of nginx itself

        $nginx->finish(except => qr/connect\(\) to unix:/);
    }
};


subtest 'Redis is killed and restarted under load: every request is answered'
    => sub
{
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, workers => 2, log => 'notice');

    ok works($nginx), 'works';

    my $before = $nginx->descriptors;

    my $killer = RateLimit::Background->start(sub {
        wait_until(sub { $redis->calls > 500 }, 20) or die "no load\n";
        kill 'KILL', $redis->pid;
    });

    my $load = load($nginx, duration => 2);

    is $killer->wait, 1, 'killed';
    $redis->kill9;

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    cmp_ok sources($load)->{redis}, '>', 400, 'by Redis before';
    cmp_ok sources($load)->{local}, '>', 100, 'by this machine afterwards';
    ok opens($nginx), 'the circuit is open';

    # a longer outage

    $load = load($nginx, duration => 5);

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    is_deeply [keys %{ sources($load) }], ['local'], 'by this machine';
    is_deeply [keys %{ reasons($load) }], ['circuit_open'],
              'for both workers the circuit is open all the time';

    $load = load($nginx, requests => 200, path => '/few?k=a');
    is_deeply $load->statuses, { 200 => 10, 429 => 190 },
              'and both together admit what the limit says';

    my @lines = split /\n/, $nginx->error_log;

    cmp_ok scalar(grep { !/ ratelimit REJECTED/ } @lines), '<', 20,
           'few lines in the log';

    # two workers write them, in any order

    my @states = sort @{ $nginx->state_names($redis->addr) };

    like $states[0], qr/^circuit_open, failure: (?:closed|refused)$/,
         'among them: circuit_open';
    like $states[1], qr/^fallback, failure: (?:closed|refused)$/,
         'and fallback';
    is scalar @states, 2, 'once';

    $load = load($nginx, duration => 1, path => '/closed?k=a');
    is_deeply [keys %{ $load->statuses }], [503], 'closed: none pass';

    $redis->start;
    ok wait_until(sub { $redis->clients == 2 }, 20), 'both workers are back';
    ok works($nginx), 'restarted: works';
    is_deeply sources(load($nginx, requests => 500)), { redis => 500 },
              'Redis decides again';
    is_deeply [splice @{ $nginx->state_names($redis->addr) }, 2],
              ['distributed again'], 'which is told once';
    ok wait_until(sub { $nginx->descriptors == $before }, 10),
       'as many descriptors as before';

    $nginx->finish;
};


subtest 'Redis is frozen: nobody waits for long' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, timeout => '100ms', log => 'notice');

    ok works($nginx), 'works';

    my $before = $nginx->descriptors;
    my ($old) = $redis->client_list;

    $redis->pause;

    my $load = load($nginx, connections => 50, duration => 3);

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    is_deeply [keys %{ sources($load) }], ['local'], 'by this machine';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';

    # a command that fails may be for all of them, and five open the circuit

    my $reasons = reasons($load);

    is_deeply [sort keys %$reasons], ['circuit_open', 'timeout'],
              'for two reasons';
    cmp_ok $reasons->{timeout}, '<=', 5 * 50,
           'only those waited who came before the circuit was open';

    is ask($nginx, '/closed?k=a'), '503 closed circuit_open', 'closed';

    is_deeply $nginx->state_names($redis->addr),
              ['fallback, failure: timeout', 'circuit_open, failure: timeout'],
              'both states are told';
    ok $nginx->log_like(qr/\[error\].*no answer from redis .*: timeout/),
       'logged';
    ok $nginx->log_like(qr/\[error\].*redis stopped answering/),
       'that the connection was given up';
    cmp_ok scalar(split /\n/, $nginx->error_log), '<', 50,
           'few lines in the log';

    $redis->resume;

    ok works($nginx), 'resumed: works';
    my ($new) = $redis->client_list;
    isnt $new->{id}, $old->{id}, 'on a new connection';
    ok wait_until(sub { $redis->clients == 1 }, 5), 'the only one';
    is_deeply sources(load($nginx, requests => 100)), { redis => 100 },
              'Redis decides again';
    is_deeply [splice @{ $nginx->state_names($redis->addr) }, 2],
              ['distributed again'], 'which is told';
    ok wait_until(sub { $nginx->descriptors == $before }, 10),
       'as many descriptors as before';

    $nginx->finish;
};


subtest 'a server that accepts and says nothing' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => {} },
        eval      => ":7000000\r\n",
    });
    my $nginx = start($fake->addr, timeout => '100ms');

    like ask($nginx, '/?k=a'), qr/^200 local (?:timeout|circuit_open)$/,
         'the policy decides';

    my $load = load($nginx, duration => 1);

    is $load->error_text, '', 'every request is answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';
    is scalar $fake->commands('EVALSHA'), 0, 'no call was sent';
    ok $nginx->log_like(qr/\[error\].*does not answer on a new connection/),
       'logged';
    is $nginx->log_count(qr/DEGRADED.* failure: (?!timeout|circuit_open)/), 0,
       'as timeouts';
    is_deeply $nginx->state_names($fake->addr),
              ['fallback, failure: timeout', 'circuit_open, failure: timeout'],
              'that open the circuit';

    $fake->policy({ eval => ":7000000\r\n" });
    ok works($nginx), 'works when it answers';
    is_deeply [splice @{ $nginx->state_names($fake->addr) }, 2],
              ['distributed again'], 'which is told';

    $nginx->finish;
};


# A port whose connections are never accepted: with a full queue the kernel
# drops further ones in silence.

sub black_hole {
    my $listener = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => free_port(), Listen => 1,
        ReuseAddr => 1
    ) or die "listen() failed: $!\n";

    my @clients;

    for (1 .. 20) {
        my $client = IO::Socket::INET->new(
            PeerAddr => '127.0.0.1', PeerPort => $listener->sockport,
            Timeout => 0.2
        ) or return ($listener, @clients);

        push @clients, $client;
    }

    die "the queue does not fill up\n";
}


subtest 'an address that swallows all packets costs nobody much time' => sub {
    my ($listener, @clients) = black_hole();
    my $port = $listener->sockport;
    my $nginx = start("127.0.0.1:$port", timeout => '100ms');

    my $load = load($nginx, duration => 1);

    is $load->error_text, '', 'every request is answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';
    ok $nginx->log_like(qr/\[error\].*connect\(\) timed out/), 'logged';
    ok opens($nginx), 'the circuit is open';
    is ask($nginx, '/closed?k=a'), '503 closed circuit_open', 'closed';

    close $_ for $listener, @clients;

    my $fake = RateLimit::FakeRedis->start(
        port => $port, policy => { eval => ":7000000\r\n" });

    ok works($nginx), 'works when somebody is there';
    is_deeply $nginx->state_names("127.0.0.1:$port"),
              ['fallback, failure: timeout', 'circuit_open, failure: timeout',
               'distributed again'], 'all of that is told';

    $nginx->finish;
};


subtest 'one of three shards is dead: only its own keys are limited here'
    => sub
{
    my @redis = RateLimit::Redis->start_many(3);
    my $nginx = start(join(' ', map { $_->addr } @redis));
    my $dead = $redis[1];

    my $all = sub {
        my $load = load($nginx, requests => 300, path => sub { "/?k=k$_[0]" });
        my %responses = map { $_->{n} => $_ } $load->responses;

        return [map { $_->{headers}{'x-shard'} } @responses{0 .. 299}],
               [map { verdict($_) } @responses{0 .. 299}];
    };

    my ($shards, $verdicts) = $all->();
    my @lost = grep { $shards->[$_] eq $dead->addr } 0 .. 299;
    my %lost = map { $_ => 1 } @lost;

    is_deeply $verdicts, [('200 redis 999999') x 300], 'all shards work';
    cmp_ok scalar @lost, '>', 50, 'each has its part of the keys';

    $dead->kill9;

    my ($same, $now) = $all->();

    is_deeply $same, $shards, 'no key moves';
    is_deeply [map { s/(local) \w+$/$1/r } @$now],
              [map { $lost{$_} ? '200 local' : '200 redis 999998' } 0 .. 299],
              'only its own keys are limited by this machine';
    is $nginx->log_count(qr/DEGRADED.* failure: /), scalar @lost,
       'not one failure more';
    ok wait_until(sub {
        ask($nginx, "/?k=k$lost[0]") eq '200 local circuit_open'
    }, 20), 'its circuit is open';
    is_deeply [map { scalar @{ $nginx->state_names($_->addr) } } @redis], [0, 2, 0],
              'the others\' are not';

    my @errors = grep { /\[error\]/ } split /\n/, $nginx->error_log;
    my $addr = $dead->addr;

    is scalar(grep { !/\Q$addr\E/ } @errors), 0, 'the log names the dead one';

    $dead->start;
    ok wait_until(sub { ask($nginx, "/?k=k$lost[0]") =~ / redis / }, 20),
       'it comes back';
    ($same) = $all->();
    is_deeply $same, $shards, 'with the same keys';

    $nginx->finish;
};


# The worker's memory, in kB.

sub memory {
    my ($nginx) = @_;

    my ($pid) = $nginx->workers;

    return slurp("/proc/$pid/status") =~ /^VmRSS:\s+(\d+) kB/m ? $1 : undef;
}


# Calls of clients that left are still under way as long as no reply comes, so
# a frozen server can be owed any number.

subtest 'calls under way are bounded' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, timeout => '60s', log => 'notice');

    ok works($nginx), 'works';

    my $before = memory($nginx);

    $redis->pause;

    # by a unix socket: so many TCP ones would linger for a minute

    my $load = RateLimit::Load::run(
        port => $nginx->dir . '/nginx.sock', connections => 50,
        requests => 17_000, path => \&own, abort => 1, timeout => 100,
    );

    is $load->aborted, 17_000, 'many clients came and left';
    ok wait_until(sub {
        (() = $nginx->access_log =~ /^unix:/mg) >= 17_000
    }, 60), 'nginx has seen them all';
    ok wait_until(sub {
        ask($nginx, '/?k=a') eq '200 local storage_unavailable'
    }, 30), 'no more is taken in';
    is_deeply [map { ask($nginx, '/closed?k=a') } 1 .. 10],
              [('503 closed storage_unavailable') x 10],
              'the policy decides at once';
    is_deeply $nginx->state_names($redis->addr), [],
              'which says nothing about the server: the circuit is closed';
    is $nginx->log_count(qr/\[error\].*no answer from redis .*: overload/), 1,
       'logged once';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};
        cmp_ok memory($nginx) - $before, '<', 45_000, 'memory is bounded (kB)';
    }

    $redis->resume;

    ok works($nginx), 'resumed: works';
    is $redis->cmd('DBSIZE'), 16384 + 1, 'so many calls were under way';
    is $redis->clients, 1, 'on the same connection';

    $nginx->finish;
};


# Ends the request of a connection that has sent half of one, and sends half of
# the next one.

sub ask_on {
    my ($client, $half) = @_;

    $client->write("\r\n$half");

    return verdict($client->response);
}


subtest 'nginx has no connection left for Redis: the failure policy decides'
    => sub
{
    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => ":7000000\r\n" });
    my $nginx = start($fake->addr, events => 'worker_connections 11;',
                      log => 'notice');

    ok works($nginx), 'works';

    # eleven: two to listen, one to the master, eight for clients and Redis.
    # A client that has sent one request and a half can't be closed by nginx.

    my @clients;
    my $half = "GET /?k=a HTTP/1.1\r\nHost: a\r\n";

    my $busy = sub {
        my $client = RateLimit::Load::connection($nginx->port);

        push @clients, $client;
        $client->write("$half\r\n$half");

        return verdict($client->response);
    };

    is_deeply [map { $busy->() } 1 .. 7], [('200 redis 7') x 7],
              'seven clients';

    $fake->refuse;
    $fake->drop;
    ok wait_until(sub {
        ask_on($clients[0], $half) eq '200 local circuit_open'
    }, 10), 'Redis has gone';
    is $busy->(), '200 local circuit_open', 'an eighth takes its place';

    $fake->listen;
    ok $nginx->wait_log(qr/worker_connections are not enough.*redis/, 30),
       'there is none for Redis';
    is ask_on($clients[0], $half), '200 local circuit_open',
       'the failure policy decides';

    # an attempt that found none is over, and the next one is soon

    $_->close for @clients;
    ok works($nginx), 'works when there are some again';

    $nginx->finish(except => qr/worker_connections are not enough/);
};


# The delays before probes double from 50 ms up to 10 s, less a random part of
# at most one half.

sub most_probes {
    my ($seconds) = @_;

    my ($n, $delay) = (1, 0.025);

    while (($seconds -= $delay) >= 0) {
        $n++;
        $delay = $delay >= 2.5 ? 5 : $delay * 2;
    }

    return $n;
}


subtest 'one worker at a time probes' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => "-LOADING x\r\n" },
        eval      => ":7000000\r\n",
    });
    my $nginx = start($fake->addr, workers => 6, log => 'notice');

    ok opens($nginx), 'open';
    $fake->clear;

    my $accepted = $fake->connections->{accepted};
    my $start = time;
    my $load = load($nginx, duration => 3);
    my $most = most_probes(time - $start);

    is_deeply reasons($load), { circuit_open => $load->count },
              'open for all six';

    my $probes = $fake->connections->{accepted} - $accepted;

    cmp_ok $probes, '>=', 2, "probes ($probes)";
    cmp_ok $probes, '<=', $most, "no more than one worker makes ($most)";

    $fake->policy({ eval => ":7000000\r\n" });
    ok works($nginx), 'a success';
    is_deeply sources(load($nginx, requests => 500,
                           path => sub { own($_[0] % 100) })),
              { redis => 500 }, 'is one for all';
    is_deeply [sort @{ $nginx->state_names($fake->addr) }],
              ['circuit_open, failure: loading', 'distributed again',
               'fallback, failure: loading'], 'and told once';

    $nginx->finish;
};


subtest 'an idle connection that the server closes' => sub {
    my $redis = RateLimit::Redis->start(config => { timeout => 1 });
    my $nginx = start($redis->addr);

    ok works($nginx), 'works';

    for my $how ('by its timeout', 'by CLIENT KILL') {
        my ($old) = $redis->client_list;

        if ($how =~ /KILL/) {
            $redis->cmd('CONFIG', 'SET', 'timeout', 0);
            ok wait_until(sub { ($redis->client_list)[0]{age} >= 2 }, 20), 'idle';
            ($old) = $redis->client_list;
            $redis->cmd('CLIENT', 'KILL', 'ID', $old->{id});
        }

        ok wait_until(sub {
            my ($new) = $redis->client_list;
            return $new && $new->{id} != $old->{id};
        }, 20), "closed $how: a new connection is made";

        like ask($nginx, '/?k=a'), qr/^200 redis /, 'the next request is fine';
    }

    is $nginx->log_count(qr/DEGRADED/), 0, 'nobody noticed';
    is $nginx->log_count(qr/\[error\]/), 0, 'not even the log';

    $nginx->finish;
};


subtest 'an outage long ago does not count' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => "-LOADING x\r\n" },
        eval      => ":7000000\r\n",
    });
    my $nginx = start($fake->addr, log => 'notice');

    ok wait_until(sub { $fake->connections->{accepted} >= 7 }, 30),
       'seven attempts: the next one is far away';

    $fake->policy({ eval => ":7000000\r\n" });
    ok works($nginx), 'works';

    # a connection that has been good for more than a second

    is_deeply [keys %{ sources(load($nginx, duration => 1.5,
                                    path => sub { own($_[0] % 100) })) }],
              ['redis'], 'stable';

    # the eighth delay would be 3.2 s at least, the first one is 50 ms

    my $start = time;
    $fake->push("+OK\r\n");
    ok wait_until(sub { $nginx->log_like(qr/unexpected reply from redis/) }, 5),
       'then one fault';
    ok works($nginx), 'works again';
    cmp_ok time - $start, '<', patience(2.5), 'as soon as after a first fault';

    $nginx->finish;
};


done_testing();
