# The sentinels of the tests: real ones, that know each other when they say so,
# and that put a replica in the place of a master which is gone.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use POSIX ();
use Time::HiRes qw(time);

use RateLimit::Sentinel;
use RateLimit::Util qw(alive wait_until);


subtest 'sentinels watch two masters, with passwords' => sub {
    my $all = RateLimit::Sentinel->start(
        names           => ['one', 'two'],
        config          => { requirepass => 'server' },
        sentinel_config => { requirepass => 'sentinel' },
    );

    is scalar(() = $all->sentinels), 3, 'three sentinels';
    is scalar(split / /, $all->addrs), 3, 'their addresses';
    isnt $all->master_addr('one'), $all->master_addr('two'),
         'each name has its master';

    for my $name ('one', 'two') {
        my $master = $all->master($name);
        my ($replica) = $all->replicas($name);

        is $master->role, 'master', "$name: a master";
        is $replica->role, 'slave', 'a replica';

        $master->cmd('SET', 'name', $name);
        ok wait_until(sub { ($replica->cmd('GET', 'name') // '') eq $name }),
           'which has the same keys';
    }

    my ($sentinel) = $all->sentinels;
    my $client = RateLimit::Redis::Client->connect($sentinel->target);

    like $client->call('SENTINEL', 'MASTERS') . '', qr/^NOAUTH/,
         'sentinels want a password';

    is $all->wait_switch($all->master('one'), 'one', 0.1), undef,
       'nobody switches';
    is scalar(() = $all->switched('one')), 0, 'as their logs say';
};


subtest 'a switch on demand, and a server that is demoted by hand' => sub {
    my $all = RateLimit::Sentinel->start;
    my $old = $all->master;
    my $before = time;
    my $new = $all->failover;

    ok $new, 'switched';
    is $new->role, 'master', 'the replica is the master';
    is $all->master, $new, 'say the sentinels';

    my @times = $all->switched;

    is scalar @times, 3, 'all of them had the event';
    cmp_ok $times[0], '>=', $before - 1, 'after it was asked for';
    cmp_ok $times[-1], '<=', time + 1, 'and before now';

    $old->replicate($new);
    is $old->role, 'slave', 'REPLICAOF';
    $old->try('SET', 'a', 1);
    is $old->errors('READONLY'), 1, 'errors are counted';

    # sentinels remember

    $all->stop_sentinels;
    is scalar(() = $all->sentinels), 0, 'no sentinels';
    $all->start_sentinels;
    is $all->master, $new, 'they know what they knew';
};


subtest 'a master is killed, another one stopped' => sub {
    my $all = RateLimit::Sentinel->start(replicas => 2, down_after => 1000);
    my $first = $all->master;
    my @pids = map { $_->pid } $all->servers, $all->sentinels;
    my $start = time;

    $first->kill9;

    my $second = $all->wait_switch($first);

    ok $second, 'killed: another one takes over';
    is $second->role, 'master', 'as it says itself';
    note sprintf '%.1f s', time - $start;

    # the last replica has to be known to the sentinels as one of this master

    ok wait_until(sub {
        my ($last) = $all->replicas;
        $last->info('replication')->{master_port} == $second->port
    }, 30), 'the other replica follows it';

    ok $second->pause, 'stopped';
    $start = time;

    my $third = $all->wait_switch($second, undef, 60);

    ok $third, 'another one takes over';
    note sprintf '%.1f s', time - $start;

    ok $second->resume, 'and on';
    is $second->role, 'master', 'it thinks that it is still the master';

    if (my $child = fork() // die) {
        waitpid $child, 0;

    } else {
        undef $all;
        POSIX::_exit(0);
    }

    is $third->role, 'master', 'a forked child does not end it';

    undef $_ for $all, $first, $second, $third;
    ok !(grep { alive($_) } @pids), 'nothing is left of it';
};


done_testing;
