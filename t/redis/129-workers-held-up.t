# What is this machine's own trouble must not be blamed on Redis: a
# configuration that takes long to load, workers that are held up, reloads on a
# busy machine, many calls in one command.  And a process that leaves waits for
# all servers together.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Time::HiRes qw(sleep time);

use RateLimit::Fault;
use RateLimit::Flood;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(patience reap spawn wait_until);


# No request was decided without Redis, and no failure was counted.

sub well {
    my ($fault, $load) = @_;

    my %failures = map { ("$_->{class}" => $_->{value}) }
                   grep { $_->{value} }
                   @{ $fault->metrics->{nginx_ratelimit_redis_failures_total} };

    is_deeply \%failures, {}, 'Redis has not failed';
    is $fault->metric('breaker_transitions_total'), 0,
       'the breaker has not moved';
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis decided about each request of ' . $load->count if $load;
}


# As many lines of geo as take a while to read.

sub many_lines {
    my ($n) = @_;

    my $text = '';

    for my $i (0 .. $n - 1) {
        $text .= join('.', 10, $i >> 16 & 255, $i >> 8 & 255, $i & 255)
                 . "/32 x;\n";
    }

    return $text;
}


subtest 'a configuration that takes longer to load than a connection may' =>
sub {
    my $fault = RateLimit::Fault->start(
        workers => 4,
        timeout => 400,
        connect => 400,
        http    => "geo \$where {\n" . many_lines(300_000) . '}',
    );

    ok $fault->works, 'all workers are connected';
    well($fault);

    my $load = $fault->during(sub {
        for (1 .. 3) {

            # the master is stopped while it reads

            my $slow = spawn([$^X, '-MTime::HiRes=sleep', '-e',
                'sleep 0.03; kill STOP => @ARGV; sleep 0.9; kill CONT => @ARGV',
                $fault->nginx->pid], out => '/dev/null');

            ok $fault->nginx->reload, 'reloaded';
            reap($slow, 10);
            ok $fault->works(20), 'all workers are connected';
        }
    });

    well($fault, $load);
    $fault->check($load, workers => 0, lines => 200);
    $fault->finish;
};


subtest 'workers that are stopped for longer than a call may take' => sub {
    my $fault = RateLimit::Fault->start(timeout => 150, connect => 150);

    ok $fault->works, 'all workers are connected';

    my @workers = $fault->nginx->workers;

    my $load = $fault->during(sub {
        for (1 .. 12) {
            kill 'STOP', @workers;
            sleep 0.25;
            kill 'CONT', @workers;
            sleep 0.02 + rand 0.05;
        }
    }, connections => 40, pause => 0);

    well($fault, $load);
    $fault->check($load, wait => 1000);

    # that is no excuse for a server that does not answer

    my $hung = $fault->during(sub {
        $fault->redis->pause;

        for (1 .. 3) {
            kill 'STOP', @workers;
            sleep 0.25;
            kill 'CONT', @workers;
            sleep 0.2;
        }

        ok $fault->wait_state('circuit_open', 20), 'the breaker opens';
        $fault->redis->resume;
        ok $fault->wait_state('distributed', 10), 'and closes';
    });

    cmp_ok $hung->metric('redis_failures_total', class => 'timeout'), '>', 0,
           'timeouts of a server that hangs are counted';
    $fault->check($hung, wait => 1000);
    $fault->finish;
};


subtest 'and while they connect' => sub {
    my $fault = RateLimit::Fault->start(timeout => 400, connect => 150);

    ok $fault->works, 'all workers are connected';

    # each worker is stopped as soon as it is there: it connects meanwhile

    my $load = $fault->during(sub {
        for (1 .. 5) {
            my %old = map { $_ => 1 } $fault->nginx->workers;

            kill 'HUP', $fault->nginx->pid;

            my @new;

            wait_until(sub {
                @new = grep { !$old{$_} } $fault->nginx->workers;
                kill 'STOP', @new;
                return @new >= 2;
            }, 10);

            sleep 0.25;
            kill 'CONT', @new;

            ok wait_until(sub { !grep { kill 0, $_ } keys %old }, 20),
               'workers were replaced';
        }

        ok $fault->works, 'all workers are connected';
    });

    well($fault, $load);
    $fault->finish;
};


# nginx clears the key of a timer that was the only one: an idle worker is not
# held up, so a call gets no more time than configured.

subtest 'an idle worker does not wait longer than the timeout' => sub {
    my $fault = RateLimit::Fault->start(
        workers => 1, timeout => 100, connect => 400,
        breaker => 'failures=100 probe=100ms');
    my $quickest = 1;

    # a busy machine may be late, but not each time

    for my $try (1 .. 10) {
        ok $fault->works(20), 'the worker is connected';

        $fault->redis->pause;
        my $waited = $fault->ask("k$try", 5)->{waited};
        $fault->redis->resume;

        $quickest = $waited if $waited < $quickest;
        last if $quickest < 0.13;
    }

    cmp_ok $quickest, '>', 0.09, 'a call has its time';
    cmp_ok $quickest, '<', 0.13, 'and no more';

    $fault->finish;
};


subtest 'a command with many calls that fails is one failure' => sub {
    my $fault = RateLimit::Fault->start(workers => 1);
    my $redis = $fault->redis;
    my ($worker) = $fault->nginx->workers;

    ok $fault->works, 'the worker is connected';

    my $calls = $fault->metric('redis_calls_total');
    my $timeouts = $fault->metric('redis_failures_total', class => 'timeout');
    my @clients = map { RateLimit::Load::connection($fault->nginx->port) }
                  1 .. 8;

    # their requests are there when it goes on, so that they go together

    kill 'STOP', $worker;
    $redis->pause;

    $clients[$_]->write("GET /?k=k$_&c=5 HTTP/1.1\r\nHost: a\r\n\r\n")
        for 0 .. $#clients;

    kill 'CONT', $worker;

    my @answers = map { $_->response(patience(10)) } @clients;

    $redis->resume;

    is_deeply [map { $_->{headers}{'x-ratelimit-degraded-reason'} } @answers],
              [('timeout') x @clients], 'all of them waited in vain';
    is $fault->metric('redis_calls_total') - $calls, 1, 'for one command';
    is $fault->metric('redis_failures_total', class => 'timeout') - $timeouts,
       1, 'it is counted once';
    is $fault->state, 'fallback', 'the breaker is not open';
    is $fault->metric('breaker_transitions_total', to => 'circuit_open'), 0,
       'nor was it';

    $fault->finish;
};


subtest 'reloads one after the other, on a busy machine' => sub {
    my $fault = RateLimit::Fault->start(
        workers => 4,
        http    => 'ratelimit_on_error closed;',
    );

    ok $fault->works, 'all workers are connected';

    my @busy = map { spawn([$^X, '-e', 'alarm 60; 1 while 1'],
                           out => '/dev/null') } 1 .. 6;

    my $load = $fault->during(sub {
        for (1 .. 15) {
            kill 'HUP', $fault->nginx->pid;
            sleep 0.3;
        }
    });

    kill 'KILL', @busy;
    reap($_, 5) for @busy;

    well($fault, $load);
    $fault->check($load, workers => 0, lines => 1000, metrics => 0);
    $fault->finish;
};


subtest 'a worker that leaves waits for all servers together' => sub {
    my @redis = RateLimit::Redis->start_many(6);

    # a lease for each of them is held when the worker leaves

    my $leave = sub {
        my (@stopped) = @_;

        my $nginx = RateLimit::Nginx->start(workers => 1, conf => <<"EOC",
            ratelimit_redis_timeout          10s;
            ratelimit_redis_connect_timeout  10s;
            ratelimit_on_error               closed;
            ratelimit_lease                  100 ttl=60s;
            ratelimit_capacity               1000;
            ratelimit_rate                   0r/s;
            ratelimit_key                    \$arg_k;
EOC
            server => join '', map {
                my $addr = $redis[$_]->addr;
                "location /$_ { ratelimit_shards $addr; empty_gif; }\n"
            } 0 .. $#redis);

        for my $i (0 .. $#redis) {
            $redis[$i]->cmd('FLUSHALL');

            is $nginx->get("/$i?k=a")->{status}, 200,
               'passed' for 1 .. 20;
        }

        $_->pause for @stopped;

        my $start = time;
        ok $nginx->stop(20), 'nginx leaves by itself';
        my $time = time - $start;

        $_->resume for @stopped;
        $nginx->no_alerts;

        for my $redis (@redis) {
            my ($key) = @{ $redis->cmd('KEYS', '*') };

            ok wait_until(sub { $redis->tokens($key) == 980 }, 5),
               'what was held is in the bucket again';
        }

        return $time;
    };

    my $one = $leave->($redis[0]);
    my $all = $leave->(@redis);

    note sprintf '%.2f s for one, %.2f s for all', $one, $all;
    cmp_ok $all, '<', 3 * $one, 'six that hang take no longer than one';
};


done_testing;
