package RateLimit::Cluster;

# A real Redis Cluster for tests: redis-server processes in cluster mode, whose
# slots can be moved step by step, and whose masters can be killed.
#
#   my $cluster = RateLimit::Cluster->start(
#       masters  => 3,              # default as shown; they share the slots
#       replicas => 0,              # in all; the first of the first master, the
#                                   # next of the second, ...; default as shown
#       timeout  => 15000,          # cluster-node-timeout, ms; default shown,
#                                   # so that a slow machine fails nobody over
#       config   => { ... },        # and all else that RateLimit::Redis takes
#   );
#
#   $cluster->nodes;                # all that run, each a RateLimit::Redis with
#                                   # some more methods (below)
#   $cluster->masters;  $cluster->replicas;     # as they see themselves now
#   $cluster->addrs;                # "127.0.0.1:7001 127.0.0.1:7002 ..." of the
#                                   # masters
#   $cluster->node($addr);          # the one with this address
#
#   RateLimit::Cluster::slot('a{b}c');          # of a key, 0 .. 16383
#   RateLimit::Cluster::port_pair();    # a port whose bus has a free one, too
#   $cluster->owners;               # array ref: slot => node, undef where none
#   $cluster->node_of($key);        # the node that owns its slot;
#   $cluster->node_of(\$slot);      # or a slot, as a reference to its number
#   $cluster->replicas_of($node);
#
#   $cluster->move_slot($slot, $to);            # with all of its keys; or:
#   $cluster->begin_move($slot, $to);           # new keys are at $to from then
#                                   # both: ..., $from), which saves a question
#   $cluster->move_keys($slot, @keys);          # these, or all that are left
#   $cluster->end_move($slot);                  # the slot is $to's
#   $cluster->cancel_move($slot);               # keys that moved stay there
#   $cluster->add_node;             # a master without slots, known to all
#   $cluster->add_replica($master);
#   $cluster->remove_node($node);   # has no slots any more; ends it
#   $cluster->drop_slot($slot);     # nobody's, from now on
#   $cluster->give_slot($slot, $node);          # the opposite
#
#   my $f = $cluster->kill_master($node, $timeout);     # signal 9; waits for a
#                                   # promotion: { killed, promoted (times, s),
#                                   # master (the new one) }, undef: none came
#   $cluster->failover($replica);   # its master hands over; awaited
#   $cluster->wait_ok($timeout);    # true: all agree on nodes and slots, all
#                                   # slots are served, replicas are in sync
#   $cluster->calls('evalsha');     # sum of all nodes
#   $cluster->flush;  $cluster->keys;           # of all masters
#   $cluster->tokens($key);         # of a bucket, at the node that has it
#   $cluster->get($key, @command);  # $cluster->get('k', 'PTTL'), at
#                                   # the node of the key
#   $cluster->stop;
#
# Of a node, besides what RateLimit::Redis has:
#   $node->id;  $node->flags;       # as in CLUSTER NODES
#   $node->is_master;
#   $node->slots;                   # numbers of all that it owns
#
# Slots are moved as redis-cli does it, by SETSLOT IMPORTING and MIGRATING,
# MIGRATE, and SETSLOT NODE at all masters.  Many of them are moved from one
# node to another, then "wait_ok", then others: nodes that give and take at the
# same time may come to believe in different owners.
#
# All processes end with the object, or with the Perl process that made it.

use strict;
use warnings;

use IO::Socket::INET ();
use List::Util qw(first sum0);
use Time::HiRes qw(time);

use RateLimit::Redis ();
use RateLimit::Util qw(free_port patience wait_until);

my $SLOTS = 16384;


sub start {
    my ($class, %opt) = @_;

    my $masters = delete $opt{masters} // 3;
    my $replicas = delete $opt{replicas} // 0;
    my $timeout = delete $opt{timeout} // 15000;

    $opt{config} = {
        'cluster-enabled'                 => 'yes',
        'cluster-config-file'             => 'nodes.conf',
        'cluster-node-timeout'            => $timeout,

        # a replica may take over however late it is, and stays with its master
        'cluster-replica-validity-factor' => 0,
        'cluster-migration-barrier'       => 1000,

        # replication without waiting for more replicas
        'repl-diskless-sync-delay'        => 0,
        %{ $opt{config} || {} },
    };

    # replicas log in where clients do

    if (defined $opt{config}{requirepass}) {
        $opt{config}{masterauth} //= $opt{config}{requirepass};
    }

    my $self = bless {
        opt     => \%opt,
        timeout => $timeout,
        nodes   => [],
        moves   => {},          # slot => [from, to]
    }, $class;

    my @nodes = map { $self->_start_node } 1 .. $masters + $replicas;
    my @masters = @nodes[0 .. $masters - 1];

    $nodes[$_]->cmd('CLUSTER', 'SET-CONFIG-EPOCH', $_ + 1) for 0 .. $#nodes;

    # each is told about each, which is faster than gossip

    for my $i (0 .. $#nodes) {
        for my $j ($i + 1 .. $#nodes) {
            $nodes[$i]->cmd('CLUSTER', 'MEET', '127.0.0.1', $nodes[$j]->port);
        }
    }

    for my $i (0 .. $#masters) {
        my $from = int $i * $SLOTS / @masters;
        my $to = int(($i + 1) * $SLOTS / @masters) - 1;

        $masters[$i]->cmd('CLUSTER', 'ADDSLOTS', $from .. $to);
    }

    for my $i ($masters .. $#nodes) {
        $self->_replicate($nodes[$i], $masters[($i - $masters) % $masters]);
    }

    $self->wait_ok(30) or die "the cluster is not ok:\n" . $self->_report;

    return $self;
}


# ---- who there is

sub nodes    { grep { $_->pid } @{ $_[0]{nodes} } }
sub masters  { grep { $_->is_master } $_[0]->nodes }
sub replicas { grep { !$_->is_master } $_[0]->nodes }
sub addrs    { join ' ', map { $_->addr } $_[0]->masters }


sub node {
    my ($self, $addr) = @_;

    return first { $_->addr eq $addr } @{ $self->{nodes} };
}


sub replicas_of {
    my ($self, $master) = @_;

    my $id = $master->id;

    return grep { ($_->_myself)[3] eq $id } $self->nodes;
}


# ---- where keys are

# CRC16 as XMODEM has it, of what is between the first "{" and the next "}", if
# there is something.

my @crc16 = map {
    my $crc = $_ << 8;
    $crc = $crc & 0x8000 ? ($crc << 1 ^ 0x1021) & 0xffff : $crc << 1 for 1 .. 8;
    $crc
} 0 .. 255;

sub slot {
    my ($key) = @_;

    $key = $1 if $key =~ /\{(.*?)\}/s && length $1;

    my $crc = 0;

    for my $byte (unpack 'C*', $key) {
        $crc = ($crc << 8 & 0xffff) ^ $crc16[$crc >> 8 ^ $byte];
    }

    return $crc % $SLOTS;
}


sub owners {
    my ($self) = @_;

    my @owners = (undef) x $SLOTS;

    for my $node ($self->masters) {
        $owners[$_] = $node for $node->slots;
    }

    return \@owners;
}


sub node_of {
    my ($self, $what) = @_;

    return $self->owners->[ref $what ? $$what : slot($what)];
}


sub get {
    my ($self, $key, $command, @args) = @_;

    return $self->node_of($key)->cmd($command, $key, @args);
}


sub tokens {
    my ($self, $key) = @_;

    return $self->node_of($key)->tokens($key);
}


sub keys {
    my ($self) = @_;

    return sort map { @{ $_->cmd('KEYS', '*') } } $self->masters;
}


sub flush {
    my ($self) = @_;

    $_->cmd('FLUSHALL') for $self->masters;
}


sub calls {
    my ($self, @name) = @_;

    return sum0 map { $_->calls(@name) } $self->nodes;
}


# ---- slots that move

sub move_slot {
    my ($self, $slot, $to, $from) = @_;

    $self->begin_move($slot, $to, $from);
    $self->move_keys($slot);
    $self->end_move($slot);
}


sub begin_move {
    my ($self, $slot, $to, $from) = @_;

    $from //= $self->node_of(\$slot) // die "slot $slot is nobody's\n";

    die "slot $slot is there already\n" if $from == $to;

    $to->set_slot($slot, 'IMPORTING', $from->id);
    $from->set_slot($slot, 'MIGRATING', $to->id);

    $self->{moves}{$slot} = [$from, $to];
}


# The number of keys that were moved.

sub move_keys {
    my ($self, $slot, @keys) = @_;

    my ($from, $to) = @{ $self->{moves}{$slot} || die "slot $slot is still\n" };
    my $auth = $to->{auth};
    my @auth = !$auth ? () : @$auth > 1 ? ('AUTH2', @$auth) : ('AUTH', @$auth);
    my $all = !@keys;
    my $moved = 0;

    while (1) {
        @keys = @{ $from->cmd('CLUSTER', 'GETKEYSINSLOT', $slot, 100) } if $all;

        last unless @keys;

        # NOKEY: they have expired

        $from->cmd('MIGRATE', '127.0.0.1', $to->port, '', 0,
                   int patience(5000), @auth, 'KEYS', @keys);

        $moved += @keys;

        last unless $all;
    }

    return $moved;
}


# The new owner first, so that there is always one; other masters as well, as
# who believes in the old owner may talk the new one out of it.  A node that has
# lost its last slot may have become a replica of the new owner already.

sub end_move {
    my ($self, $slot) = @_;

    my ($from, $to) = @{ delete $self->{moves}{$slot}
                         || die "slot $slot is still\n" };

    $to->set_slot($slot, 'NODE', $to->id);

    for my $node ($from, grep { $_ != $from && $_ != $to } $self->nodes) {
        eval { $node->set_slot($slot, 'NODE', $to->id) };
        die $@ if $@ && $@ !~ /only with masters/;
    }
}


sub cancel_move {
    my ($self, $slot) = @_;

    my $move = delete $self->{moves}{$slot} || die "slot $slot is still\n";

    $_->set_slot($slot, 'STABLE') for @$move;
}


# Nodes forget about the owner of a slot when they are told so, each of them,
# and the owner last, or it would tell them again.

sub drop_slot {
    my ($self, $slot) = @_;

    my $owner = $self->node_of(\$slot) // die "slot $slot is nobody's\n";

    for my $node ($owner, grep { $_ != $owner } $self->nodes) {
        $node->try('CLUSTER', 'DELSLOTS', $slot);
    }
}


sub give_slot {
    my ($self, $slot, $node) = @_;

    $node->cmd('CLUSTER', 'ADDSLOTS', $slot);
}


# ---- nodes that come and go

sub add_node {
    my ($self) = @_;

    my ($other) = $self->masters;
    my $node = $self->_start_node;

    $node->cmd('CLUSTER', 'MEET', '127.0.0.1', $other->port);

    $self->wait_ok(30) or die "the new node is not known:\n" . $self->_report;

    return $node;
}


sub add_replica {
    my ($self, $master) = @_;

    my $node = $self->add_node;

    $self->_replicate($node, $master);
    $self->wait_ok(30) or die "the replica is not known:\n" . $self->_report;

    return $node;
}


sub remove_node {
    my ($self, $node) = @_;

    my $id = $node->id;

    $node->stop;
    @{ $self->{nodes} } = grep { $_ != $node } @{ $self->{nodes} };

    # for a minute none of them hears of it from others

    $_->try('CLUSTER', 'FORGET', $id) for $self->nodes;
}


sub kill_master {
    my ($self, $node, $timeout) = @_;

    my @replicas = $self->replicas_of($node);
    my $killed = time;

    $node->kill9;

    my $master;

    wait_until(sub {
        $master = first { $_->is_master && $_->slots } @replicas
    }, $timeout // 30) or return undef;

    return { killed => $killed, promoted => time, master => $master };
}


# One that does not come about in five seconds is given up by the nodes.  They
# vote once in two timeouts about a master, so that is short meanwhile.

sub failover {
    my ($self, $replica, $timeout) = @_;

    my $next = 0;

    $self->_hurry(1);

    my $done = wait_until(sub {
        return 1 if $replica->is_master && $replica->slots;

        if (time >= $next) {
            $replica->try('CLUSTER', 'FAILOVER');
            $next = time + 6;
        }

        return 0;
    }, $timeout // 40);

    $self->_hurry(0);

    return $done;
}


# ---- whether all is well

sub wait_ok {
    my ($self, $timeout) = @_;

    return 1 if $self->_is_ok;

    $self->_hurry(1);

    my $ok = wait_until(sub { $self->_is_ok }, $timeout // 30);

    $self->_hurry(0);

    return $ok;
}


# Nodes gossip as often as they have to find out that one is gone: news travel
# faster while that is short.  Nobody takes over meanwhile.

sub _hurry {
    my ($self, $yes) = @_;

    return if $self->{timeout} <= 1000;

    for my $node ($self->nodes) {
        $node->cmd('CONFIG', 'SET', 'cluster-replica-no-failover',
                   $yes ? 'yes' : 'no');
        $node->cmd('CONFIG', 'SET', 'cluster-node-timeout',
                   $yes ? 1000 : $self->{timeout});
    }
}


sub _is_ok {
    my ($self) = @_;

    my @nodes = $self->nodes;
    my $first;

    for my $node (@nodes) {
        my %info = $node->cmd('CLUSTER', 'INFO') =~ /^(\w+):(\S+)/mg;

        return 0 if $info{cluster_state} ne 'ok'
                    || $info{cluster_slots_ok} != $SLOTS
                    || $info{cluster_known_nodes} < @nodes;

        my $map = $node->_map;

        $first //= $map;
        return 0 if $map ne $first;
    }

    for my $node (grep { !$_->is_master } @nodes) {
        return 0 if $node->info('replication')->{master_link_status} ne 'up';
    }

    return 1;
}


sub _report {
    my ($self) = @_;

    return join "\n", map { $_->addr, $_->cmd('CLUSTER', 'INFO'),
                            $_->cmd('CLUSTER', 'NODES'), $_->log }
                      $self->nodes;
}


# A node knows only in a moment whose replica it is to be.

sub _replicate {
    my ($self, $node, $master) = @_;

    my $reply;

    wait_until(sub {
        $reply = $node->try('CLUSTER', 'REPLICATE', $master->id);
        return $reply eq 'OK';
    }, 10) or die "CLUSTER REPLICATE: $reply\n";
}


# The port and that of the cluster bus, 10000 above, have to be free, and below
# those of clients.

sub _start_node {
    my ($self) = @_;

    for my $try (1 .. 10) {
        my $port = port_pair();
        my $node = RateLimit::Cluster::Node->new(%{ $self->{opt} },
                                                 port => $port);

        if (eval { $node->start }) {
            push @{ $self->{nodes} }, $node;
            return $node;
        }

        die $@ unless $@ =~ /in use|failed listening/i;
    }

    die "no free ports for a node of a cluster\n";
}


sub port_pair {
    for (1 .. 1000) {
        my $port = free_port();

        next if $port + 10000 > 32000;

        my $bus = IO::Socket::INET->new(
            LocalAddr => '0.0.0.0', LocalPort => $port + 10000,
            Proto => 'tcp', Listen => 1
        ) or next;

        close $bus;

        return $port;
    }

    die "no free pair of ports found\n";
}


sub stop {
    my ($self) = @_;

    $_->stop for $self->nodes;
}


package RateLimit::Cluster::Node;

use strict;
use warnings;

use parent -norequire, 'RateLimit::Redis';

use List::Util qw(first);

use RateLimit::Util qw(wait_until);


sub id        { $_[0]{id} //= $_[0]->cmd('CLUSTER', 'MYID') }
sub flags     { ($_[0]->_myself)[2] }
sub is_master { $_[0]->flags =~ /\bmaster\b/ }


# The fields of its own line: id, address, flags, master, ping, pong, epoch,
# link, slots ...

sub _myself {
    my ($self) = @_;

    my $line = first { /\bmyself\b/ }
               split /\n/, $self->cmd('CLUSTER', 'NODES');

    return split / /, $line;
}


sub slots {
    my ($self) = @_;

    my (undef, undef, undef, undef, undef, undef, undef, undef, @slots)
        = $self->_myself;

    return map { /^(\d+)-(\d+)$/ ? $1 .. $2 : $_ } grep { !/^\[/ } @slots;
}


# Valkey waits for replicas to have it as well, two seconds.

sub set_slot {
    my ($self, @args) = @_;

    my $reply;

    wait_until(sub {
        $reply = $self->try('CLUSTER', 'SETSLOT', @args);
        return $reply !~ /^NOREPLICAS /;
    }, 30);

    die "CLUSTER SETSLOT: $reply\n" unless $reply eq 'OK';
}


# Which ranges whom, as this node tells its clients, in a text to compare.

sub _map {
    my ($self) = @_;

    my @ranges;

    for my $range (@{ $self->cmd('CLUSTER', 'SLOTS') }) {
        my ($from, $to, $master, @replicas) = @$range;

        push @ranges, sprintf '%05d-%d %s %s', $from, $to, $master->[2],
                              join ',', sort map { $_->[2] } @replicas;
    }

    # A replica without data is not in there.  Who is one is what others have
    # to know before they vote for it.

    my @roles = map { my ($id, undef, $flags, $master) = split / /;
                      $flags =~ /fail|handshake|noaddr/
                          ? () : "$id is " . ($flags =~ /master/ || $master) }
                split /\n/, $self->cmd('CLUSTER', 'NODES');

    return join "\n", sort(@ranges), sort @roles;
}


1;
