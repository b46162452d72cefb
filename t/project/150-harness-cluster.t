# The clusters of the tests: real ones, that are ready when they say so, and
# whose slots and masters do what a test tells them.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use POSIX ();
use Time::HiRes qw(time);

use RateLimit::Cluster;
use RateLimit::Util qw(alive wait_until);


# A key of this slot, or of one of this node's.

sub key_of {
    my ($cluster, $node) = @_;

    my $owners = $cluster->owners;
    my $n = 0;

    while (1) {
        my $key = '{k' . ++$n . '}';
        return $key if $owners->[RateLimit::Cluster::slot($key)] == $node;
    }
}


subtest 'keys have the slots that Redis says' => sub {

    # 0x31c3 is the published one of CRC16/XMODEM

    is RateLimit::Cluster::slot('123456789'), 0x31c3, 'the check value';

    my %same = ('{user1000}.following' => 'user1000', 'foo{bar}{zap}' => 'bar',
                'foo{{bar}}zap' => '{bar', 'foo}{bar}' => 'bar');

    is RateLimit::Cluster::slot($_), RateLimit::Cluster::slot($same{$_}), $_
        for sort keys %same;

    isnt RateLimit::Cluster::slot('foo{}{bar}'),
         RateLimit::Cluster::slot('bar'), 'an empty tag is none';
};


my $cluster = RateLimit::Cluster->start(replicas => 3);
my ($red, $green, $blue) = $cluster->masters;


subtest 'three masters and three replicas share all slots' => sub {
    is scalar(() = $cluster->masters), 3, 'masters';
    is scalar(() = $cluster->replicas), 3, 'replicas';
    is scalar(() = $cluster->replicas_of($_)), 1, 'one each'
        for $red, $green, $blue;

    my @wrong;

    for my $key ('', 'a', '{', '}', '{}', 'a{b}c', "\0\xff{\n}",
                 map { "key $_" } 1 .. 50)
    {
        push @wrong, $key if $red->cmd('CLUSTER', 'KEYSLOT', $key)
                             != RateLimit::Cluster::slot($key);
    }

    is_deeply \@wrong, [], 'slots are what Redis says';

    my $owners = $cluster->owners;

    is scalar(grep { defined } @$owners), 16384, 'all slots have an owner';

    for my $n (1 .. 20) {
        my $node = $cluster->node_of("k$n");
        push @wrong, $n if $node->cmd('SET', "k$n", $n) ne 'OK'
                           || $cluster->get("k$n", 'GET') != $n;
    }

    is_deeply \@wrong, [], 'keys are where the map says';
    is scalar(() = $cluster->keys), 20, 'all keys';
    cmp_ok $cluster->calls('set'), '>=', 20, 'counters';

    my $key = key_of($cluster, $green);
    my $moved = $red->try('GET', $key);

    is "$moved", 'MOVED ' . RateLimit::Cluster::slot($key) . ' ' . $green->addr,
       'other nodes say where a key is';
    is $red->errors('MOVED'), 1, 'and count that';

    $cluster->flush;
    is scalar(() = $cluster->keys), 0, 'flushed';
};


subtest 'a slot in the middle of its move is served by both ends' => sub {
    my $key = key_of($cluster, $red);
    my $slot = RateLimit::Cluster::slot($key);
    my @keys = map { "$key$_" } 1 .. 4;

    $red->cmd('SET', $_, 1) for @keys;
    $cluster->begin_move($slot, $green);

    is $cluster->node_of(\$slot), $red, 'still of its old owner';
    is $red->cmd('GET', $keys[0]), 1, 'which serves what it has';

    my $ask = $red->try('GET', "$key new");
    is "$ask", "ASK $slot " . $green->addr, 'for the rest it names the other';

    is $cluster->move_keys($slot, @keys[0, 1]), 2, 'two keys';

    my $again = $red->try('MGET', @keys[1, 2]);
    like "$again", qr/^(?:ASK|TRYAGAIN)/, 'keys of both ends: not here';

    $green->cmd('ASKING');
    $again = $green->try('MGET', @keys[1, 2]);
    like "$again", qr/^TRYAGAIN/, 'nor there';

    is $cluster->move_keys($slot), 2, 'the other two';

    $green->cmd('ASKING');
    is_deeply $green->cmd('MGET', @keys), [1, 1, 1, 1], 'now all are there';

    $cluster->end_move($slot);
    is $cluster->node_of(\$slot), $green, 'the new owner';
    is_deeply $green->cmd('MGET', @keys), [1, 1, 1, 1], 'has all keys';
    like $red->try('GET', $keys[0]) . '', qr/^MOVED/, 'the old one has none';
    ok $cluster->wait_ok, 'all know';

    # and back at once, or not at all

    $cluster->move_slot($slot, $red);
    is $cluster->node_of(\$slot), $red, 'back';
    is_deeply $red->cmd('MGET', @keys), [1, 1, 1, 1], 'with all keys';

    $cluster->begin_move($slot, $green);
    $cluster->cancel_move($slot);
    is $red->try('GET', "$key new"), undef, 'a move can be called off';
    ok $cluster->wait_ok, 'all agree';

    $cluster->flush;
};


subtest 'a slot can be taken from all nodes and given back' => sub {
    my $slot = ($red->slots)[0];

    $cluster->drop_slot($slot);
    is $cluster->node_of(\$slot), undef, 'nobody has it';
    ok wait_until(sub {
        $blue->try('GET', key_of($cluster, $blue)) =~ /^CLUSTERDOWN/
    }), 'so nobody serves anything';

    $cluster->give_slot($slot, $red);
    ok $cluster->wait_ok, 'and all is well when it is given back';
};


subtest 'a node comes and goes' => sub {
    my $key = key_of($cluster, $blue);
    my $slot = RateLimit::Cluster::slot($key);
    my $new = $cluster->add_node;

    is scalar(() = $cluster->masters), 4, 'four masters';
    is scalar($new->slots), 0, 'one without slots';

    $blue->cmd('SET', $key, 'x');
    $cluster->move_slot($slot, $new);
    is $new->cmd('GET', $key), 'x', 'a slot moves to it';

    $cluster->move_slot($slot, $blue);

    my ($pid, $id) = ($new->pid, $new->id);

    $cluster->remove_node($new);
    ok !alive($pid), 'it has ended';
    ok $cluster->wait_ok, 'and the others are well';
    is scalar(() = $cluster->nodes), 6, 'without it';
    unlike $red->cmd('CLUSTER', 'NODES'), qr/$id/, 'and forget it';
};


subtest 'a master hands over' => sub {
    my ($replica) = $cluster->replicas_of($red);
    my $slots = () = $red->slots;

    ok $cluster->failover($replica), 'to its replica';
    is scalar(() = $replica->slots), $slots, 'all slots';
    ok wait_until(sub { !$red->is_master }), 'and is its replica';
    ok $cluster->wait_ok, 'all agree';
};


subtest 'a cluster with a password works' => sub {
    my $cluster = RateLimit::Cluster->start(
        masters => 2, replicas => 1, config => { requirepass => 'secret' });
    my ($red, $green) = $cluster->masters;
    my $key = key_of($cluster, $red);

    $red->cmd('SET', $key, 1);
    $cluster->move_slot(RateLimit::Cluster::slot($key), $green);
    is $green->cmd('GET', $key), 1, 'keys can be moved';
    is scalar(() = $cluster->replicas), 1, 'and replicas are in sync';
};


subtest 'a master is killed' => sub {
    my $cluster = RateLimit::Cluster->start(replicas => 3, timeout => 1000);
    my ($master) = $cluster->masters;
    my $slots = () = $master->slots;
    my ($pid, @pids) = map { $_->pid } $master, $cluster->nodes;

    my $f = $cluster->kill_master($master);

    ok $f, 'another one takes over';
    ok !alive($pid), 'the old one is dead';

    # with more than one, should the machine have been asleep

    cmp_ok scalar(() = $f->{master}->slots), '>=', $slots, 'with all slots';
    cmp_ok $f->{promoted}, '>', $f->{killed}, 'in some time';
    note sprintf 'after %.1f s', $f->{promoted} - $f->{killed};
    ok $cluster->wait_ok, 'all is well without it';

    $master->start;
    ok $cluster->wait_ok && wait_until(sub { !$master->is_master }),
       'it comes back as a replica';

    # a child that ends does not end the cluster, its owner does

    if (my $child = fork() // die) {
        waitpid $child, 0;

    } else {
        undef $cluster;
        POSIX::_exit(0);
    }

    ok $cluster->wait_ok, 'a forked child does not end it';

    undef $cluster;
    undef $f;
    undef $master;
    ok !(grep { alive($_) } @pids), 'nothing is left of it';
};


done_testing;
