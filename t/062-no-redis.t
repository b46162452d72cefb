# Redis is down, dies, hangs, or comes back: every request is answered in time,
# and nginx finds back by itself.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Socket::INET ();
use POSIX ();
use Time::HiRes qw(time);

use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(free_port patience slurp wait_until);


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
            add_header         X-Shard \$ratelimit_shard always;
            add_header         X-Latency \$ratelimit_latency always;

            location /       { empty_gif; }
            location /closed { ratelimit_on_error closed; empty_gif; }
            location /other  { ratelimit_on_error closed;
                               ratelimit_error_status 500; empty_gif; }
EOC
    );
}


# What became of a request, in three words: "200 redis 7", "429 redis 0",
# "200 open timeout", "503 closed storage_unavailable".

sub verdict {
    my ($r) = @_;

    my $h = $r->{headers};

    return join ' ', $r->{status} || $r->{error}, $h->{'x-source'} // '-',
                     $h->{'x-ratelimit-remaining'}
                     // $h->{'x-ratelimit-degraded-reason'} // '-';
}


sub ask {
    my ($nginx, $path) = @_;

    return verdict(RateLimit::Load::get($nginx->port, $path));
}


sub works {
    my ($nginx, $seconds) = @_;

    return wait_until(sub { ask($nginx, '/?k=w') =~ /^200 redis / },
                      $seconds // 20);
}


# How many responses of a load came from where.

sub sources {
    my ($load) = @_;

    my %sources;
    $sources{$_->{headers}{'x-source'} // '-'}++ for $load->responses;

    return \%sources;
}


sub load {
    my ($nginx, %opt) = @_;

    return RateLimit::Load::run(
        port => $nginx->port, connections => 20, keep => 1, timeout => 60,
        path => sub { '/?k=' . $_[0] % 100 }, %opt,
    );
}


sub background {
    my ($code) = @_;

    my $pid = fork() // die "fork() failed: $!\n";

    if (!$pid) {
        eval { $code->() };
        print STDERR "# background: $@" if $@;
        POSIX::_exit($@ ? 1 : 0);
    }

    return sub {
        waitpid $pid, 0;
        return $?;
    };
}


# Our connections, as a server lists them.

sub clients {
    my ($redis) = @_;

    return map { { /(\w+)=(\S*)/g } }
           grep { /name=nginx-ratelimit@/ }
           split /\n/, $redis->cmd('CLIENT', 'LIST');
}


# The descriptors that the workers have open.

sub descriptors {
    my ($nginx) = @_;

    return join ' ', map { scalar(() = glob "/proc/$_/fd/*") } $nginx->workers;
}


sub finish {
    my ($nginx, @except) = @_;

    ok $nginx->stop, 'nginx left by itself';
    $nginx->no_alerts(undef, @except);
}


subtest 'down at the start, then up' => sub {
    my $redis = RateLimit::Redis->new;

    for my $shards ($redis->addr, 'unix:' . $redis->socket) {
        my $start = time;
        my $nginx = start($shards);

        is ask($nginx, '/?k=a'), '200 open storage_unavailable',
           "$shards: open passes";

        my $r = RateLimit::Load::get($nginx->port, '/closed?k=a');

        is verdict($r), '503 closed storage_unavailable', 'closed does not';
        is $r->{headers}{'retry-after'}, 1, 'Retry-After';
        is $r->{headers}{'x-ratelimit-retry-after'}, 1, 'the same as X-';
        is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded';
        is $r->{headers}{'x-ratelimit-limit'}, undef, 'no numbers';

        is ask($nginx, '/other?k=a'), '500 closed storage_unavailable',
           'ratelimit_error_status';

        # a timeout of 20 s, and yet nobody waits

        my $load = load($nginx, requests => 300);

        is_deeply [$load->statuses, $load->error_text], [{ 200 => 300 }, ''],
                  'all pass';
        cmp_ok time - $start, '<', patience(10), 'without waiting';
        is $nginx->log_count(qr/failure: refused/), 303, 'their class';
        is $nginx->log_count(qr/\[(?:error|crit)\].*connect\(\) to .*failed/),
           1, 'logged once';

        $redis->start;
        ok works($nginx), 'up: works by itself';
        ok $nginx->log_like(qr/\[notice\].*redis is back/), 'and says so';
        is_deeply sources(load($nginx, requests => 300)), { redis => 300 },
                  'for all';

        $redis->stop;

        # a unix socket that is not there is a crit of nginx itself

        finish($nginx, except => qr/connect\(\) to unix:/);
    }
};


subtest 'killed and restarted under load' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, workers => 2, log => 'notice');

    ok works($nginx), 'works';

    my $before = descriptors($nginx);

    my $killer = background(sub {
        wait_until(sub {
            $redis->cmd('INFO', 'commandstats')
                =~ /cmdstat_evalsha:calls=(\d+)/ && $1 > 500
        }, 20) or die "no load\n";

        kill 'KILL', $redis->pid;
    });

    my $load = load($nginx, duration => 2);

    is $killer->(), 0, 'killed';
    $redis->kill9;

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'open: all pass';
    cmp_ok sources($load)->{redis}, '>', 400, 'by Redis before';
    cmp_ok sources($load)->{open}, '>', 100, 'by the policy afterwards';

    # a longer outage

    $load = load($nginx, duration => 5);

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'open: all pass';
    is_deeply [keys %{ sources($load) }], ['open'], 'by the policy';

    my @lines = split /\n/, $nginx->error_log;

    cmp_ok scalar @lines, '<', 100, 'few lines in the log (' . @lines . ')';

    $load = load($nginx, duration => 1, path => '/closed?k=a');
    is_deeply [keys %{ $load->statuses }], [503], 'closed: none pass';

    $redis->start;
    ok wait_until(sub { clients($redis) == 2 }, 20), 'both workers are back';
    ok works($nginx), 'restarted: works';
    is_deeply sources(load($nginx, requests => 500)), { redis => 500 },
              'Redis decides again';
    ok wait_until(sub { descriptors($nginx) eq $before }, 10),
       'as many descriptors as before';

    finish($nginx);
};


subtest 'frozen' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, timeout => '100ms', log => 'notice');

    ok works($nginx), 'works';

    my $before = descriptors($nginx);
    my ($old) = clients($redis);

    $redis->pause;

    my $load = load($nginx, connections => 50, duration => 3);

    is $load->error_text, '', 'every request was answered';
    is_deeply [keys %{ $load->statuses }], [200], 'open: all pass';
    is_deeply [keys %{ sources($load) }], ['open'], 'by the policy';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';

    my $waited = grep { $_->{headers}{'x-latency'} >= 0.09 } $load->responses;

    cmp_ok $waited, '<', $load->count / 2, 'and most not at all';

    is ask($nginx, '/closed?k=a') =~ s/ \w+$//r, '503 closed', 'closed';

    ok $nginx->log_like(qr/\[error\].*no answer from redis .*: timeout/),
       'logged';
    ok $nginx->log_like(qr/\[error\].*does not answer any more/),
       'that the connection was given up';
    cmp_ok scalar(split /\n/, $nginx->error_log), '<', 50,
           'few lines in the log';

    $redis->resume;

    ok works($nginx), 'resumed: works';
    my ($new) = clients($redis);
    isnt $new->{id}, $old->{id}, 'on a new connection';
    ok wait_until(sub { clients($redis) == 1 }, 5), 'the only one';
    is_deeply sources(load($nginx, requests => 100)), { redis => 100 },
              'Redis decides again';
    ok wait_until(sub { descriptors($nginx) eq $before }, 10),
       'as many descriptors as before';

    finish($nginx);
};


subtest 'a server that accepts and says nothing' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => {} },
        eval      => ":7000000\r\n",
    });
    my $nginx = start($fake->addr, timeout => '100ms');

    is ask($nginx, '/?k=a') =~ s/ \w+$//r, '200 open', 'the policy decides';

    my $load = load($nginx, duration => 1);

    is $load->error_text, '', 'every request is answered';
    is_deeply [keys %{ $load->statuses }], [200], 'open: all pass';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';
    is scalar $fake->commands('EVALSHA'), 0, 'no call was sent';
    ok $nginx->log_like(qr/\[error\].*does not answer a new connection/),
       'logged';
    is $nginx->log_count(qr/failure: (?!timeout)/), 0, 'as timeouts';

    $fake->policy({ eval => ":7000000\r\n" });
    ok works($nginx), 'works when it answers';

    finish($nginx);
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


subtest 'a black hole' => sub {
    my ($listener, @clients) = black_hole();
    my $port = $listener->sockport;
    my $nginx = start("127.0.0.1:$port", timeout => '100ms');

    my $load = load($nginx, duration => 1);

    is $load->error_text, '', 'every request is answered';
    is_deeply [keys %{ $load->statuses }], [200], 'open: all pass';
    cmp_ok $load->max_latency, '<', patience(3), 'nobody waits for long';
    ok $nginx->log_like(qr/\[error\].*connect\(\) timed out/), 'logged';
    is ask($nginx, '/closed?k=a') =~ s/ \w+$//r, '503 closed', 'closed';

    close $_ for $listener, @clients;

    my $fake = RateLimit::FakeRedis->start(
        port => $port, policy => { eval => ":7000000\r\n" });

    ok works($nginx), 'works when somebody is there';

    finish($nginx);
};


subtest 'one of three shards is dead' => sub {
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
    is_deeply $now, [map { $lost{$_} ? '200 open storage_unavailable'
                                     : '200 redis 999998' } 0 .. 299],
              'only its own keys lose their limit';
    is $nginx->log_count(qr/failure: /), scalar @lost,
       'not one failure more';

    my @errors = grep { /\[error\]/ } split /\n/, $nginx->error_log;
    my $addr = $dead->addr;

    is scalar(grep { !/\Q$addr\E/ } @errors), 0, 'the log names the dead one';

    $dead->start;
    ok wait_until(sub { ask($nginx, "/?k=k$lost[0]") =~ / redis / }, 20),
       'it comes back';
    ($same) = $all->();
    is_deeply $same, $shards, 'with the same keys';

    finish($nginx);
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
        requests => 17_000,
        path => sub { "/?k=$_[0]" }, abort => 1, timeout => 100,
    );

    is $load->aborted, 17_000, 'many clients came and left';
    ok wait_until(sub {
        (() = $nginx->access_log =~ /^unix:/mg) >= 17_000
    }, 60), 'nginx has seen them all';
    ok wait_until(sub {
        ask($nginx, '/?k=a') eq '200 open storage_unavailable'
    }, 30), 'no more is taken in';
    is ask($nginx, '/closed?k=a'), '503 closed storage_unavailable',
       'the policy decides at once';
    is $nginx->log_count(qr/\[error\].*no answer from redis .*: overload/), 1,
       'logged once';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};
        cmp_ok memory($nginx) - $before, '<', 30_000, 'memory is bounded (kB)';
    }

    $redis->resume;

    ok works($nginx), 'resumed: works';
    is $redis->cmd('DBSIZE'), 16384 + 1, 'so many calls were under way';
    is clients($redis), 1, 'on the same connection';

    finish($nginx);
};


# Ends the request of a connection that has sent half of one, and sends half of
# the next one.

sub ask_on {
    my ($client, $half) = @_;

    $client->write("\r\n$half");

    return verdict($client->response);
}


subtest 'no connection left for Redis' => sub {
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
    ok wait_until(sub { ask_on($clients[0], $half) =~ /^200 open/ }, 10),
       'Redis has gone';
    is $busy->(), '200 open storage_unavailable', 'an eighth takes its place';

    $fake->listen;
    ok $nginx->wait_log(qr/worker_connections are not enough.*redis/, 30),
       'there is none for Redis';
    is ask_on($clients[0], $half), '200 open storage_unavailable',
       'the failure policy decides';

    $_->close for @clients;
    ok works($nginx), 'works when there are some again';

    finish($nginx, except => qr/worker_connections are not enough/);
};


subtest 'an idle connection that the server closes' => sub {
    my $redis = RateLimit::Redis->start(config => { timeout => 1 });
    my $nginx = start($redis->addr);

    ok works($nginx), 'works';

    for my $how ('by its timeout', 'by CLIENT KILL') {
        my ($old) = clients($redis);

        if ($how =~ /KILL/) {
            $redis->cmd('CONFIG', 'SET', 'timeout', 0);
            ok wait_until(sub { (clients($redis))[0]{age} >= 2 }, 20), 'idle';
            ($old) = clients($redis);
            $redis->cmd('CLIENT', 'KILL', 'ID', $old->{id});
        }

        ok wait_until(sub {
            my ($new) = clients($redis);
            return $new && $new->{id} != $old->{id};
        }, 20), "closed $how: a new connection is made";

        like ask($nginx, '/?k=a'), qr/^200 redis /, 'the next request is fine';
    }

    is $nginx->log_count(qr/DEGRADED/), 0, 'nobody noticed';
    is $nginx->log_count(qr/\[error\]/), 0, 'not even the log';

    finish($nginx);
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

    is_deeply sources(load($nginx, duration => 1.5))->{open}, undef, 'stable';

    # the eighth delay would be 3.2 s at least, the first one is 50 ms

    my $start = time;
    $fake->push("+OK\r\n");
    ok wait_until(sub { $nginx->log_like(qr/a reply that nobody asked/) }, 5),
       'then one fault';
    ok works($nginx), 'works again';
    cmp_ok time - $start, '<', patience(2.5), 'as soon as after a first fault';

    finish($nginx);
};


done_testing();
