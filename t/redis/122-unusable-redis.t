# A Redis that runs and can't be used, or is disturbed at work: one server goes
# through all such states under load, and one nginx with the same workers from
# the first to the last sees it through.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes qw(sleep time);

use RateLimit::Clock;
use RateLimit::Fault;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(free_port wait_until);

my $HOUR = 3600;

my $clock = RateLimit::Clock->new;
my $redis = $clock->run(sub {
    RateLimit::Redis->start(config => {
        'enable-debug-command' => 'yes',
        'lua-time-limit'       => 100,      # ms, until it says BUSY
        'maxmemory-policy'     => 'noeviction',
    });
});

my $fault = RateLimit::Fault->start(
    redis   => [$redis],
    breaker => 'probe=1s',
    server  => <<'EOC',
            location /hourly {
                ratelimit_key       $arg_k;
                ratelimit_capacity  10;
                ratelimit_rate      10r/h;
                ratelimit_deny_cache off;
                empty_gif;
            }
EOC
);

my @workers = $fault->nginx->workers;


# Sends a command whose reply will come late, or never, and which nobody else
# shall wait for.  Gives the connection.

sub begin {
    my ($command) = @_;

    my $client = RateLimit::Redis::Client->connect($redis->target);

    syswrite $client->{socket}, "$command\r\n";

    return $client;
}


sub failures {
    my ($load, @classes) = @_;

    return sum0 map { $load->metric('redis_failures_total', class => $_) }
                @classes;
}


# A state that opens the breaker, as long as it lasts.
#   break, mend  => code
#   class        => of the failures
#   beside       => [others that may come with it]
#   told         => what the log says

sub unusable {
    my ($name, %state) = @_;

    subtest $name => sub {
        my ($open, $still, $closed);

        ok $fault->works, 'all workers are connected';

        my $from = length $fault->nginx->error_log;

        my $load = $fault->during(sub {
            $fault->wait_decisions(200, source => 'redis');

            $state{break}->();
            $open = $fault->wait_state('circuit_open', 10);
            $fault->wait_decisions(300, source => 'local');
            $still = $fault->state;

            $state{mend}->();
            $closed = $fault->wait_state('distributed', 15) && time;
            $fault->wait_decisions(200, source => 'redis');
        });

        $fault->check($load, %{ $state{except} || {} });

        ok $open, 'the breaker opens';
        is $load->metric('breaker_transitions_total', to => 'circuit_open'), 1,
           'once';
        is $still, 'circuit_open', 'it is open as long as that lasts';
        ok $closed, 'and closes afterwards';

        # commands: each of the calls that one is made for counts for the breaker

        cmp_ok failures($load, $state{class}), '>=', 1,
               "failures are of the class \"$state{class}\"";
        is failures($load, $state{class}, @{ $state{beside} || [] }),
           $load->metric('redis_failures_total'), 'and of no other'
            or diag explain [grep { $_->{value} } @{ $fault->metrics
                                 ->{nginx_ratelimit_redis_failures_total} }];

        cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open' }), '>', 200,
               'meanwhile limits are kept here';
        # a call that was about to leave finds it open in the next turn

        cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open'
                                  && $_->{waited} > 0.1 }), '<=', 2,
               'and nobody waits';
        is $load->count(sub { $_->{started} > $closed
                              && $_->{source} ne 'redis' }),
           0, 'when it is over Redis decides about all';

        like substr($fault->nginx->error_log, $from), $state{told},
             'the log tells what was wrong';
    };
}


subtest 'scripts are flushed all the time' => sub {
    ok $fault->works, 'all workers are connected';

    my $flushed = 0;

    my $load = $fault->during(sub {
        my $from = $fault->metric('decisions_total');

        wait_until(sub {
            $redis->cmd('SCRIPT', 'FLUSH');
            $flushed++;

            return $flushed % 20 == 0
                   && $fault->metric('decisions_total') > $from + 1000;
        }, 30);
    });

    $fault->check($load);

    note "$flushed flushes";

    cmp_ok $load->metric('redis_script_reloads_total'), '>', 5,
           'scripts were missing';
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis decides about all requests';
    is $load->metric('redis_failures_total'), 0, 'nothing failed';
    is $load->metric('breaker_transitions_total'), 0,
       'the breaker did not move';
    is scalar($load->mixed_up), 0, 'each request was counted once';
};


unusable 'out of memory, and nothing may be evicted' =>
    class => 'oom',
    told  => qr/redis \S+ answered "OOM /,
    break => sub { $redis->cmd(qw(CONFIG SET maxmemory 1)) },
    mend  => sub { $redis->cmd(qw(CONFIG SET maxmemory 0)) };


{
    my $primary = RateLimit::Redis->start;

    unusable 'a replica' =>
        class  => 'readonly',
        beside => ['loading'],          # what it gets from the primary
        told   => qr/redis \S+ answered "READONLY /,
        break  => sub { $redis->cmd('REPLICAOF', '127.0.0.1', $primary->port) },
        mend   => sub { $redis->cmd(qw(REPLICAOF NO ONE)) };
}


unusable 'a replica without its primary, that may not serve what is old' =>
    class => 'masterdown',
    told  => qr/redis \S+ answered "MASTERDOWN /,
    break => sub {
        $redis->cmd(qw(CONFIG SET replica-serve-stale-data no));
        $redis->cmd('REPLICAOF', '127.0.0.1', free_port());
    },
    mend  => sub { $redis->cmd(qw(REPLICAOF NO ONE)) };


# The dump is renamed to its place at last: not if a folder is there.

unusable 'can not persist' =>
    class => 'misconf',
    told  => qr/redis \S+ answered "MISCONF /,
    break => sub {
        mkdir $redis->dir . '/dump.rdb' or die "mkdir failed: $!\n";
        $redis->cmd('CONFIG', 'SET', 'save', '3600 1000000');
        $redis->cmd('BGSAVE');
    },
    mend  => sub {
        rmdir $redis->dir . '/dump.rdb' or die "rmdir failed: $!\n";
        wait_until(sub {
            $redis->try('BGSAVE');
            $redis->info('persistence')->{rdb_last_bgsave_status} eq 'ok';
        }, 10);
        $redis->cmd('CONFIG', 'SET', 'save', '');
    };


# Each key takes a while to be loaded, until the test says that it does not; in
# between the server answers.

$redis->cmd(qw(DEBUG POPULATE 20000 junk 100));

unusable 'loads its data' =>
    class  => 'loading',
    beside => ['timeout'],              # while it saves them
    told   => qr/redis \S+ answered "LOADING /,
    break  => sub {
        $redis->cmd(qw(CONFIG SET loading-process-events-interval-bytes 1024));
        $redis->cmd(qw(CONFIG SET key-load-delay 1000));        # us
        begin('DEBUG RELOAD');
    },
    mend   => sub { $redis->cmd(qw(CONFIG SET key-load-delay 0)) };


unusable 'busy with a script that does not end' =>
    class  => 'busy',
    beside => ['timeout'],              # until it says so
    told   => qr/redis \S+ answered "BUSY /,
    break  => sub { begin("EVAL 'while true do end' 0") },
    mend   => sub { $redis->cmd(qw(SCRIPT KILL)) };


# Clients that were there before the limit was lowered stay: all but ours.

{
    my @others;

    unusable 'others took all connections' =>
        class  => 'clients',
        beside => ['closed'],           # those that we had
        told   => qr/"ERR max number of clients reached"/,
        break  => sub {
            my $self = $redis->cmd(qw(CLIENT ID));
            my @ours = grep { $_ != $self }
                       $redis->cmd(qw(CLIENT LIST)) =~ /^id=(\d+)/mg;

            push @others, begin('PING') for 1 .. 10;
            $_->_line for @others;

            $redis->cmd(qw(CONFIG SET maxclients), 1 + @others);
            $redis->cmd(qw(CLIENT KILL ID), $_) for @ours;
        },
        mend   => sub { @others = () };

    $redis->cmd(qw(CONFIG SET maxclients 1000));
}


# The place of one of two workers is taken; the other one keeps its connection.

subtest 'others took the connection of one worker' => sub {
    ok $fault->works, 'all workers are connected';

    my (@others, $began, $ended, %state, $back);

    my $load = $fault->during(sub {
        $fault->wait_decisions(200, source => 'redis');

        my $self = $redis->cmd(qw(CLIENT ID));
        my ($ours) = grep { $_ != $self }
                     $redis->cmd(qw(CLIENT LIST)) =~ /^id=(\d+)/mg;

        push @others, begin('PING') for 1 .. 10;
        $_->_line for @others;

        # this one, the others, and one worker

        $redis->cmd(qw(CONFIG SET maxclients), 2 + @others);
        $redis->cmd(qw(CLIENT KILL ID), $ours);

        # more attempts than would open the breaker

        my $tries = $redis->info('stats')->{rejected_connections};

        $fault->wait_decisions(100, source => 'local');
        $began = time;

        wait_until(sub {
            $state{ $fault->state }++;
            $redis->info('stats')->{rejected_connections} >= $tries + 7
        }, 30);

        $fault->wait_decisions(300, source => 'redis');
        $ended = time;

        @others = ();
        $redis->cmd(qw(CONFIG SET maxclients 1000));
        $back = $fault->works(20) && time;
        $fault->wait_decisions(200, source => 'redis');
    });

    $fault->check($load);

    is $load->metric('breaker_transitions_total', to => 'circuit_open'), 0,
       'the breaker does not open';
    is_deeply [keys %state], ['distributed'], 'nor is it on the way to that';
    cmp_ok failures($load, 'clients'), '>', 7, 'failures are counted';

    my %source;

    $source{ $_->{pid} }{ $_->{source} }++
        for $load->requests(sub { $_->{started} > $began
                                  && $_->{started} < $ended });

    is_deeply [sort map { join ' ', sort keys %$_ } values %source],
              ['local', 'redis'],
              'Redis decides for the worker that has a connection, the share '
              . 'for the other one'
        or diag explain \%source;

    # at most for the attempt that is under way, which ends at once

    is $load->count(sub { $_->{source} eq 'local' && $_->{started} > $began
                          && $_->{waited} > 0.1 }),
       0, 'where nobody waits for a timeout';
    ok $back, 'and connects when there is room';
    is $load->count(sub { $_->{started} > $back && $_->{source} ne 'redis' }),
       0, 'then Redis decides about all';
};


subtest 'connections are killed all the time' => sub {
    ok $fault->works, 'all workers are connected';

    my ($killed, $closed) = (0);

    my $load = $fault->during(sub {
        $fault->wait_decisions(200, source => 'redis');

        my $end = time + 2;

        wait_until(sub {
            $killed += $redis->cmd(qw(CLIENT KILL TYPE normal));
            return time > $end && $killed > 10;
        }, 20);

        $closed = $fault->wait_state('distributed', 15)
                  && $fault->works(15) && time;
        $fault->wait_decisions(200, source => 'redis');
    });

    $fault->check($load);

    note "$killed connections killed";

    cmp_ok $killed, '>', 10, 'many were killed';
    cmp_ok $load->metric('redis_reconnects_total'), '>', 5,
           'workers connected again';
    cmp_ok failures($load, 'closed'), '>', 0, 'calls were lost';
    is failures($load, 'closed', 'refused'),
       $load->metric('redis_failures_total'), 'nothing else happened';
    ok $closed, 'the breaker is closed when it is over';
    is $load->count(sub { $_->{started} > $closed
                          && $_->{source} ne 'redis' }),
       0, 'and Redis decides about all';
};


subtest 'its clock is set an hour forward and back' => sub {
    my %passed;

    my $take = sub {
        my ($when) = @_;

        $passed{$when} = grep {
            RateLimit::Load::get($fault->nginx->port, '/hourly?k=a')->{status}
                == 200
        } 1 .. 15;
    };

    ok $fault->works, 'all workers are connected';

    my $load = $fault->during(sub {
        $fault->wait_decisions(200, source => 'redis');
        $take->('first');

        $clock->add($HOUR);
        $fault->wait_decisions(200, source => 'redis');
        $take->('an hour later');

        $clock->add(-$HOUR);
        $fault->wait_decisions(200, source => 'redis');
        $take->('back');

        $clock->add($HOUR / 5);
        $fault->wait_decisions(200, source => 'redis');
        $take->('twelve minutes later');
    });

    $fault->check($load, metrics => 0);     # others were here besides the load

    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis decides about all requests';
    is $load->metric('redis_failures_total'), 0, 'nothing failed';
    is $load->metric('breaker_transitions_total'), 0,
       'the breaker did not move';
    is scalar($load->mixed_up), 0, 'each request was counted once';

    is_deeply \%passed, {
        'first'                => 10,
        'an hour later'        => 10,
        'back'                 => 0,
        'twelve minutes later' => 2,
    }, 'a limit of ten an hour takes the hour, and gives nothing for the '
       . 'way back, which locks nobody out';
};


is_deeply [$fault->nginx->workers], \@workers,
   'the workers are still those of the beginning';

$fault->finish;

done_testing;
