package RateLimit::Sentinel;

# Real sentinels for tests, with the masters and replicas that they watch.
#
#   my $sentinel = RateLimit::Sentinel->start(
#       names      => ['mymaster'], # default as shown; each has servers of its
#                                   # own
#       replicas   => 1,            # of each master; default as shown
#       sentinels  => 3,            # quorum: more than half of them
#       down_after => 30000,        # ms; default as shown, so that a slow
#                                   # machine fails nobody over
#       failover_timeout => 3000,   # ms; the next failover of a master starts
#                                   # twice that after the last one
#       config     => { ... },      # of servers, and all else that
#                                   # RateLimit::Redis takes
#       watch      => ['user', 'password'],     # whom sentinels log in as, or
#                                   # [password]; default: requirepass of config
#       sentinel_config => { requirepass => 's' },      # of sentinels
#       sentinel_auth => ['user', 'password'],  # whom this test and sentinels
#                                   # log in as there; default: requirepass
#   );
#
#   $sentinel->sentinels;           # each a RateLimit::Redis; all that run
#   $sentinel->addrs;               # "127.0.0.1:26379 ...", of all
#   $sentinel->servers($name);      # of this master's name; default the first
#   $sentinel->master($name);       # the server that is it, as sentinels say
#   $sentinel->replicas($name);     # all others that run
#   $sentinel->server($addr);       # the one with this address
#   $sentinel->master_addr($name);  # "127.0.0.1:6379", undef as long as they
#                                   # disagree
#
#   $sentinel->wait_ok($timeout);   # true: all sentinels know each other, the
#                                   # master and its replicas
#   $sentinel->wait_switch($old, $name, $timeout);  # until all say another one
#                                   # than this server: that one
#   $sentinel->failover($name);     # tells them to switch, and waits: the new
#                                   # master
#   $sentinel->switched($name);     # times of the last +switch-master, by the
#                                   # logs of all that had it, in order
#   $sentinel->stop_sentinels;  $sentinel->start_sentinels;
#
# Servers and sentinels have the methods of RateLimit::Redis: pause, resume,
# kill9, stop, start, ...; servers also:
#   $server->role;                  # master or slave, as it says itself
#   $server->replicate($other);     # REPLICAOF, or of nobody
#
# A sentinel that is started again knows what it knew.  All processes end with
# the object, or with the Perl process that made it.

use strict;
use warnings;

use Digest::SHA ();
use List::Util qw(first);

use RateLimit::Redis ();
use RateLimit::Util qw(wait_until);


sub start {
    my ($class, %opt) = @_;

    my $names = delete $opt{names} // ['mymaster'];
    my $replicas = delete $opt{replicas} // 1;
    my $sentinels = delete $opt{sentinels} // 3;
    my $sentinel_config = delete $opt{sentinel_config} // {};
    my $sentinel_auth = delete $opt{sentinel_auth};

    my $self = bless {
        names            => $names,
        down_after       => delete $opt{down_after} // 30000,
        failover_timeout => delete $opt{failover_timeout} // 3000,
        watch            => delete $opt{watch},
        servers          => {},
        sentinels        => [],
    }, $class;

    $opt{config} = {
        'repl-diskless-sync-delay' => 0,
        %{ $opt{config} || {} },
    };

    # replicas log in where clients do

    my $password = $opt{config}{requirepass};

    if (defined $password) {
        $opt{config}{masterauth} //= $password;
        $self->{watch} //= [$password];
    }

    for my $name (@$names) {
        my ($master, @replicas)
            = map { RateLimit::Sentinel::Server->start(%opt) } 0 .. $replicas;

        $_->replicate($master) for @replicas;
        $self->{servers}{$name} = [$master, @replicas];
    }

    for my $n (1 .. $sentinels) {
        push @{ $self->{sentinels} }, RateLimit::Sentinel::Node->new(
            unix   => 0,
            config => $sentinel_config,
            auth   => $sentinel_auth,
        );
    }

    $_->monitor($self, $sentinel_config) for @{ $self->{sentinels} };
    $_->start for @{ $self->{sentinels} };

    $self->wait_ok(30) or die "the sentinels are not ready:\n"
                              . join "\n", map { $_->log } $self->sentinels;

    return $self;
}


# ---- who there is

sub sentinels { grep { $_->pid } @{ $_[0]{sentinels} } }
sub addrs     { join ' ', map { $_->addr } @{ $_[0]{sentinels} } }


sub servers {
    my ($self, $name) = @_;

    return @{ $self->{servers}{ $name // $self->{names}[0] } };
}


sub server {
    my ($self, $addr) = @_;

    return first { $_->addr eq $addr } map { @$_ } values %{ $self->{servers} };
}


sub master_addr {
    my ($self, $name) = @_;

    my %addrs = map { ($_->master_addr($name // $self->{names}[0]) // '') => 1 }
                $self->sentinels;
    my ($addr, @others) = keys %addrs;

    return @others ? undef : $addr;
}


sub master {
    my ($self, $name) = @_;

    return $self->server($self->master_addr($name) // '');
}


sub replicas {
    my ($self, $name) = @_;

    my $master = $self->master($name);

    return grep { $_->pid && $_ != $master } $self->servers($name);
}


# ---- what happens

sub wait_ok {
    my ($self, $timeout) = @_;

    return wait_until(sub { $self->_is_ok }, $timeout // 30);
}


sub _is_ok {
    my ($self) = @_;

    my @sentinels = $self->sentinels;

    for my $name (@{ $self->{names} }) {
        my $master = $self->master($name) // return 0;
        my @replicas = $self->replicas($name);

        return 0 if $master->role ne 'master';

        for my $replica (@replicas) {
            my $info = $replica->info('replication');

            return 0 if $info->{role} ne 'slave'
                        || $info->{master_port} != $master->port
                        || $info->{master_link_status} ne 'up';
        }

        for my $sentinel (@sentinels) {
            my %is = @{ $sentinel->cmd('SENTINEL', 'MASTER', $name) };

            return 0 if $is{flags} ne 'master'
                        || $is{'num-other-sentinels'} < @sentinels - 1
                        || $is{'num-slaves'} < @replicas;

            # a replica can take over when the sentinel has talked to it

            my $known = $sentinel->cmd('SENTINEL', 'REPLICAS', $name);

            for my $replica (@replicas) {
                return 0 unless grep {
                    my %one = @$_;
                    $one{port} == $replica->port && $one{flags} eq 'slave'
                    && $one{'master-link-status'} eq 'ok'
                    && $one{'last-ok-ping-reply'} < 5000
                } @$known;
            }

            # and other sentinels agree when they can be asked

            return 0 if grep { my %one = @$_; $one{flags} ne 'sentinel' }
                        @{ $sentinel->cmd('SENTINEL', 'SENTINELS', $name) };
        }
    }

    return 1;
}


sub wait_switch {
    my ($self, $old, $name, $timeout) = @_;

    my $addr = $old->addr;
    my $new;

    wait_until(sub {
        $new = $self->master_addr($name);
        return defined $new && $new ne $addr;
    }, $timeout // 30) or return undef;

    return $self->server($new);
}


# Refused while the last one is not over.

sub failover {
    my ($self, $name) = @_;

    my $old = $self->master($name);
    my ($sentinel) = $self->sentinels;

    wait_until(sub {
        $sentinel->try('SENTINEL', 'FAILOVER', $name // $self->{names}[0])
            eq 'OK'
    }, 30) or return undef;

    return $self->wait_switch($old, $name);
}


# The one that leads is the first to know, others hear of it within seconds;
# each tells its subscribers at once.

sub switched {
    my ($self, $name) = @_;

    return sort { $a <=> $b } grep { defined }
           map { scalar $_->switched($name // $self->{names}[0]) }
           @{ $self->{sentinels} };
}


sub stop_sentinels  { $_->stop for $_[0]->sentinels }
sub start_sentinels { $_->start for grep { !$_->pid } @{ $_[0]{sentinels} } }


package RateLimit::Sentinel::Server;

use strict;
use warnings;

use parent -norequire, 'RateLimit::Redis';


# Sentinels end the connections of a server whose role they change.

sub try {
    my ($self, @args) = @_;

    my $reply = eval { $self->SUPER::try(@args) };

    return $reply unless $@;
    die $@ unless $@ =~ /closed the connection|redis write/;

    return $self->SUPER::try(@args);
}


sub role { $_[0]->cmd('ROLE')->[0] }


sub replicate {
    my ($self, $master) = @_;

    $self->cmd('REPLICAOF', $master ? ('127.0.0.1', $master->port)
                                    : ('NO', 'ONE'));
}


package RateLimit::Sentinel::Node;

# A sentinel.  Its file is its memory, so that is written once; what others
# would tell each other within seconds is in it from the start.

use strict;
use warnings;

use Time::Local ();

use parent -norequire, 'RateLimit::Redis';

use RateLimit::Util qw(find_program);


sub new {
    my ($class, %opt) = @_;

    my $self = $class->SUPER::new(%opt);

    # by this name a server is a sentinel

    my $server = find_program($self->{server})
                 // die "$self->{server} is not installed\n";
    my $sentinel = "$self->{dir}/redis-sentinel";

    symlink $server, $sentinel or die "$sentinel: $!\n";

    $self->{server} = $sentinel;
    $self->{fixed} = 1;                 # others know the port

    return $self;
}


sub myid { Digest::SHA::sha1_hex($_[0]{dir}) }


sub monitor {
    my ($self, $all, $config) = @_;

    my @others = grep { $_ != $self } @{ $all->{sentinels} };
    my $quorum = 1 + int(@{ $all->{sentinels} } / 2);
    my @lines = ('sentinel myid ' . $self->myid);

    for my $name (@{ $all->{names} }) {
        my ($master, @replicas) = @{ $all->{servers}{$name} };

        push @lines, "sentinel monitor $name 127.0.0.1 "
                     . $master->port . " $quorum",
             "sentinel down-after-milliseconds $name $all->{down_after}",
             "sentinel failover-timeout $name $all->{failover_timeout}";

        if (my $watch = $all->{watch}) {
            my ($user, $password) = @$watch > 1 ? @$watch : (undef, @$watch);

            push @lines, "sentinel auth-user $name $user" if defined $user;
            push @lines, "sentinel auth-pass $name $password";
        }

        push @lines, map { "sentinel known-replica $name 127.0.0.1 "
                           . $_->port } @replicas;
        push @lines, map { "sentinel known-sentinel $name 127.0.0.1 "
                           . $_->port . ' ' . $_->myid } @others;
    }

    if (my $auth = $self->{auth}) {
        my ($user, $password) = @$auth > 1 ? @$auth : (undef, @$auth);

        push @lines, "sentinel sentinel-user $user" if defined $user;
        push @lines, "sentinel sentinel-pass $password";
    }

    $self->{lines} = \@lines;
}


sub _write_config {
    my ($self) = @_;

    my $dir = $self->{dir};

    return if -e "$dir/redis.conf";

    my %config = (
        bind             => $self->{bind},
        port             => $self->{port},
        'protected-mode' => 'no',
        daemonize        => 'no',
        dir              => $dir,
        %{ $self->{config} },
    );

    open my $out, '>', "$dir/redis.conf" or die "$dir/redis.conf: $!\n";

    for my $name (sort keys %config) {
        my $value = $config{$name};
        print $out "$name $_\n" for ref $value ? @$value : $value;
    }

    print $out "$_\n" for @{ $self->{lines} };

    close $out or die "$dir/redis.conf: $!\n";
}


sub master_addr {
    my ($self, $name) = @_;

    my $reply = $self->cmd('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $name)
                // return undef;

    return join ':', @$reply;
}


# The log has "12 Mar 2025 10:11:12.123", in local time.

my %MONTHS = do { my $n = 0; map { $_ => $n++ }
                  qw(Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec) };

sub switched {
    my ($self, $name) = @_;

    my ($day, $month, $year, $h, $m, $s, $ms)
        = ($self->log =~ /(\d+)\ (\w+)\ (\d+)\ (\d+):(\d+):(\d+)\.(\d+)\ \#
                          \ \+switch-master\ \Q$name\E\ /xg)[-7 .. -1]
        or return undef;

    return Time::Local::timelocal($s, $m, $h, $day, $MONTHS{$month}, $year)
           + $ms / 1000;
}


1;
