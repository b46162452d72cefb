package RateLimit::Child;

# A server of the tests in a child process, which a test tells what to do over a
# control socket: what RateLimit::FakeRedis, RateLimit::Dns and RateLimit::Proxy
# have in common.
#
#   package RateLimit::Echo;
#   use parent -norequire, 'RateLimit::Child';
#
#   sub start {
#       my ($class, %opt) = @_;
#       my $server = RateLimit::Echo::Server->new(port => free_port());
#       return $class->start_child('echo', $server, port => $server->{port});
#   }
#
#   sub count { $_[0]->ask('count') }
#
#   package RateLimit::Echo::Server;
#   use parent -norequire, 'RateLimit::Child::Server';
#
#   sub run             { ... }         # a loop; where $self->{control} can be
#                                       # read: $self->answer_control or return
#   sub answer          { my ($self, $what, @args) = @_; return $self->{$what} }
#   sub close_listeners { ... }         # in the test, which does not listen
#
# "ask" gives what the method "answer" returned in the child; both are anything
# that Storable takes.  A child that does not answer in ten seconds, or has
# ended, is an exception.
#
#   $server->port;  $server->addr;  $server->pid;  $server->stop;
#
# Ownership: the test holds the other end of the control socket; when that
# closes, for whatever reason, the child ends.  A test ends its children with
# the object, or when it ends itself; never in a forked process.

use strict;
use warnings;

use Carp ();
use POSIX ();
use Scalar::Util ();
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC);
use Storable ();

use RateLimit::Util qw(reap patience);

my %all;


# The server listens already; "fields" are those of the object.

sub start_child {
    my ($class, $name, $server, %fields) = @_;

    my $self = bless { %fields, name => $name, owner => $$ }, $class;

    socketpair my $mine, my $its, AF_UNIX, SOCK_STREAM, PF_UNSPEC
        or die "socketpair() failed: $!\n";

    $self->{pid} = fork() // die "fork() failed: $!\n";

    if ($self->{pid} == 0) {
        close $mine;
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        $SIG{PIPE} = 'IGNORE';
        $server->{control} = $its;
        eval { $server->run };
        print STDERR "# $name: $@" if $@;
        POSIX::_exit($@ ? 1 : 0);
    }

    close $its;
    $server->close_listeners;

    $self->{control} = $mine;

    $all{Scalar::Util::refaddr($self)} = $self;
    Scalar::Util::weaken($all{Scalar::Util::refaddr($self)});

    return $self;
}


sub port { $_[0]{port} }
sub addr { "127.0.0.1:$_[0]{port}" }
sub pid  { $_[0]{pid} }


# Code refs don't travel: Storable would die with a less helpful message.

sub ask {
    my ($self, @question) = @_;

    die "the $self->{name} is stopped\n" unless $self->{pid};

    my $frame = eval { Storable::freeze(\@question) };

    Carp::croak("what the $self->{name} is told can't hold code")
        unless $frame;

    local $SIG{PIPE} = 'IGNORE';
    local $SIG{ALRM} = sub { die "the $self->{name} does not answer\n" };

    alarm int patience(10);
    _write_frame($self->{control}, $frame);
    my $answer = _read_frame($self->{control});
    alarm 0;

    die "the $self->{name} has ended\n" unless defined $answer;

    return Storable::thaw($answer)->[0];
}


# True if the child was there, and ours.

sub stop {
    my ($self) = @_;

    return 0 unless $self->{pid} && $self->{owner} == $$;

    local ($?, $!, $@);

    close $self->{control};

    if (!defined reap($self->{pid}, 2)) {
        kill 'KILL', $self->{pid};
        reap($self->{pid}, 5);
    }

    undef $self->{pid};
    delete $all{Scalar::Util::refaddr($self)};

    return 1;
}


sub DESTROY { $_[0]->stop }


END {
    $_->stop for grep { defined } values %all;
}


# ---- what goes over the control socket: a length, and so many bytes

sub _write_frame {
    my ($socket, $bytes) = @_;

    $bytes = pack('N', length $bytes) . $bytes;

    while (length $bytes) {
        my $n = syswrite $socket, $bytes;
        return unless defined $n;
        substr $bytes, 0, $n, '';
    }
}


sub _read_frame {
    my ($socket) = @_;

    my $bytes = '';

    while (1) {
        if (length $bytes >= 4) {
            my $length = unpack 'N', $bytes;

            if (length $bytes >= 4 + $length) {
                return substr $bytes, 4, $length;
            }
        }

        sysread $socket, $bytes, 65536, length $bytes or return undef;
    }
}


package RateLimit::Child::Server;

# The child's side.

use strict;
use warnings;


# False: the test has gone.

sub answer_control {
    my ($self) = @_;

    my $frame = RateLimit::Child::_read_frame($self->{control}) // return 0;
    my $answer = $self->answer(@{ Storable::thaw($frame) });

    RateLimit::Child::_write_frame($self->{control},
                                   Storable::freeze([$answer]));

    return 1;
}


1;
