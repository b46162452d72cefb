package RateLimit::FakeRedis;

# A scripted server that speaks just enough of the Redis protocol, for what a
# real Redis can't be made to do: replies that are split, late, missing, extra,
# oversized or garbage.  It runs in a child process, serves any number of
# connections, and does what its policy says.
#
#   my $fake = RateLimit::FakeRedis->start(policy => {
#       eval => [ { reply => ":5\r\n" },                # first call
#                 { reply => ":4\r\n", split => 1 },    # second call
#                 { reply => ":3\r\n", delay => 80 } ], # third and all later
#   });
#   $fake->port;  $fake->addr;  $fake->socket (with unix => 1);  $fake->pid;
#
# It listens on 127.0.0.1, or on all of bind => [addresses].
#
#   RateLimit::FakeRedis->start_by_key(...);    # with a policy by which a reply
#                                # says whose it is: key "7" has 7 tokens left,
#                                # and so has "h5-7", whose reply is held until
#                                # five such calls have come
#
# POLICY, a hash; every part is optional:
#   accept    => action          done when a connection is accepted
#   handshake => { NAME => actions }  for other commands than EVALSHA and EVAL;
#                NAME is 'AUTH', 'SELECT', 'SCRIPT LOAD' (before 'SCRIPT'), '*'
#   evalsha   => actions         for EVALSHA alone
#   eval      => actions         for EVAL, and for EVALSHA without "evalsha"
# Without a word in the policy: AUTH, SELECT, CLIENT, HELLO and other commands
# get +OK, PING +PONG, SCRIPT LOAD the SHA-1 of the script, and EVAL(SHA) an
# error.  The call with which a greeting ends, or a breaker probes (EVAL with
# the key "...:{probe}"), is a handshake command "PROBE", answered and not
# recorded by default.
#
# ACTIONS: one action, or a list that is used up one by one, over all
# connections, whose last one repeats.  An action is a string (the reply), a
# code ref (given to "start" only; called with the command's array ref, the
# number of calls before, and the connection's number; returns an action), or a
# hash:
#   reply  => bytes              missing: no reply to this command
#   split  => n | [n, m] | 'every'    cut the reply there into separate segments
#   delay  => ms                 before the reply's first byte; later replies
#                                of this connection wait behind it, others don't
#   gap    => ms                 between segments, default 2
#   hold   => n                  keep n replies back, then send them as one
#                                segment
#   stream => n                  n more bytes ("x") after the reply
#   then   => 'close'            after the reply was read by the peer: close
#           | 'reset'            ... close by RST
#           | 'stall'            ... never write on this connection again
# Segments are really apart: the next one waits until the peer has read the one
# before (TCP only, as long as /proc/net/tcp tells; at most 0.5 s).
#
#   $fake->policy({ eval => ... });     # a new one, its lists from their start
#   $fake->commands;             # the commands received, as array refs
#   $fake->commands('EVALSHA');  # those with this first word (any case)
#   $fake->entries;              # hashes: args, conn (1, 2, ...), time
#   $fake->wait_commands('EVALSHA', 3, $timeout);      # true: 3 or more came
#   $fake->clear;                # forget the commands
#   $fake->connections;          # hash ref: accepted, open, peak
#   $fake->push($bytes);         # unsolicited, now, to all open connections
#   $fake->drop('close'|'reset');       # all open connections
#   $fake->refuse;               # stop listening     $fake->listen;  # again
#   $fake->stop;
#
# A RateLimit::Child, which see about its end.

use strict;
use warnings;

use parent 'RateLimit::Child';

use Digest::SHA ();
use File::Path ();
use IO::Handle ();
use IO::Socket::INET ();
use IO::Socket::UNIX ();
use Time::HiRes ();

use RateLimit::Util qw(free_port wait_until temp_dir);


sub start {
    my ($class, %opt) = @_;

    my $dir = temp_dir('fake');

    my $server = RateLimit::FakeRedis::Server->new(
        port    => $opt{port} // free_port(),
        socket  => $opt{unix} ? "$dir/fake.sock" : undef,
        bind    => $opt{bind} // ['127.0.0.1'],
        policy  => $opt{policy} || {},
    );

    return $class->start_child('fake redis', $server, dir => $dir,
                               port => $server->{port},
                               socket => $server->{socket});
}


sub start_by_key {
    my ($class, %opt) = @_;

    return $class->start(%opt, policy => {
        eval => sub {
            my ($args) = @_;
            my ($hold, $n) = $args->[3] =~ /\{(?:h(\d+)-)?(\d+)\}$/;

            return { reply => ":${n}000000\r\n", hold => $hold };
        },
    });
}


sub socket { $_[0]{socket} }


sub policy {
    my ($self, $policy) = @_;

    $self->ask(policy => $policy);
}


sub entries     { @{ $_[0]->ask('entries') } }
sub clear       { $_[0]->ask('clear') }
sub connections { $_[0]->ask('connections') }
sub push        { $_[0]->ask(push => $_[1]) }
sub drop        { $_[0]->ask(drop => $_[1] // 'close') }
sub refuse      { $_[0]->ask('refuse') }
sub listen      { $_[0]->ask('listen') }


sub commands {
    my ($self, $name) = @_;

    return grep { !defined $name || uc $_->[0] eq uc $name }
           map { $_->{args} } $self->entries;
}


sub wait_commands {
    my ($self, $name, $n, $timeout) = @_;

    return wait_until(sub { $self->commands($name) >= $n }, $timeout // 5);
}


sub stop {
    my ($self) = @_;

    local ($?, $!, $@);

    File::Path::remove_tree($self->{dir}) if $self->SUPER::stop;
}


package RateLimit::FakeRedis::Server;

# The child: a select loop.  A connection's output is a queue of segments:
#   data   bytes left to write          stream  filler bytes left after them
#   at     not before this time         gap     seconds after the last write,
#   then   what to do when all is out           and not before the peer drained
# Segments leave strictly in order, so a late one holds back those behind it.

use strict;
use warnings;

use parent -norequire, 'RateLimit::Child::Server';

use Socket qw(IPPROTO_TCP TCP_NODELAY SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

my $FILLER = 'x' x 65536;
my $MAX_ENTRIES = 200_000;


sub new {
    my ($class, %opt) = @_;

    my $self = bless {
        %opt,
        conns     => {},        # by file number
        listeners => {},
        entries   => [],
        used      => {},        # how far each list of actions has been used
        accepted  => 0,
        peak      => 0,
    }, $class;

    $self->open_listeners;

    return $self;
}


sub open_listeners {
    my ($self) = @_;

    return if %{ $self->{listeners} };

    my @listeners = map {
        scalar IO::Socket::INET->new(
            LocalAddr => $_, LocalPort => $self->{port},
            Proto => 'tcp', Listen => 128, ReuseAddr => 1)
    } @{ $self->{bind} };

    if ($self->{socket}) {
        unlink $self->{socket};
        push @listeners, IO::Socket::UNIX->new(Local => $self->{socket},
                                               Listen => 128);
        chmod 0777, $self->{socket};
        chmod 0755, $self->{socket} =~ m{^(.*)/};
    }

    for my $listener (@listeners) {
        die "fake redis can't listen on port $self->{port}: $!\n"
            unless $listener;

        $listener->blocking(0);
        $self->{listeners}{fileno $listener} = $listener;
    }
}


sub close_listeners {
    my ($self) = @_;

    close $_ for values %{ $self->{listeners} };
    $self->{listeners} = {};
}


sub run {
    my ($self) = @_;

    my $control = fileno $self->{control};

    while (1) {
        my ($read, $write) = ('', '');
        my $timeout;

        vec($read, $_, 1) = 1 for $control, keys %{ $self->{listeners} };

        for my $c (values %{ $self->{conns} }) {
            vec($read, $c->{fd}, 1) = 1;

            my $wait = $self->wait_of($c) // next;

            if ($wait <= 0) {
                vec($write, $c->{fd}, 1) = 1;

            } elsif (!defined $timeout || $wait < $timeout) {
                $timeout = $wait;
            }
        }

        next if select($read, $write, undef, $timeout) < 0;

        if (vec $read, $control, 1) {
            $self->answer_control or return;
        }

        for my $fd (keys %{ $self->{listeners} }) {
            $self->accept_from($self->{listeners}{$fd}) if vec $read, $fd, 1;
        }

        # copies: both may close connections

        for my $c (my @conns = values %{ $self->{conns} }) {
            $self->read_from($c) if vec $read, $c->{fd}, 1;
        }

        for my $c (my @conns = values %{ $self->{conns} }) {
            $self->write_to($c);
        }
    }
}


sub answer {
    my ($self, $what, $value) = @_;

    my @conns = values %{ $self->{conns} };

    return $self->{entries} if $what eq 'entries';

    if ($what eq 'connections') {
        return {
            accepted => $self->{accepted},
            peak     => $self->{peak},
            open     => scalar @conns,
        };
    }

    if ($what eq 'policy') {
        $self->{policy} = $value;
        $self->{used} = {};

    } elsif ($what eq 'clear') {
        $self->{entries} = [];

    } elsif ($what eq 'push') {
        push @{ $_->{out} }, { data => $value } for @conns;

    } elsif ($what eq 'drop') {
        $self->close_conn($_, $value) for @conns;

    } elsif ($what eq 'refuse') {
        $self->close_listeners;

    } elsif ($what eq 'listen') {
        $self->open_listeners;
    }

    return 1;
}


# ---- connections

sub accept_from {
    my ($self, $listener) = @_;

    while (my $socket = $listener->accept) {
        $socket->blocking(0);

        my $tcp = $socket->isa('IO::Socket::INET');
        setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1 if $tcp;

        my $c = {
            socket => $socket,
            fd     => fileno $socket,
            id     => ++$self->{accepted},
            tcp    => $tcp,
            in     => '',
            out    => [],
            held   => [],
            last   => 0,
        };

        $self->{conns}{$c->{fd}} = $c;

        my $open = keys %{ $self->{conns} };
        $self->{peak} = $open if $open > $self->{peak};

        if (defined $self->{policy}{accept}) {
            $self->act($c, $self->{policy}{accept}, 'accept', []);
        }
    }
}


sub close_conn {
    my ($self, $c, $how) = @_;

    if ($how eq 'reset') {
        setsockopt $c->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0);
    }

    delete $self->{conns}{$c->{fd}};
    close $c->{socket};
}


sub read_from {
    my ($self, $c) = @_;

    my $n = sysread $c->{socket}, $c->{in}, 65536, length $c->{in};

    if (!$n) {
        return if !defined $n && ($!{EAGAIN} || $!{EINTR});
        return $self->close_conn($c, 'close');
    }

    while (my $args = take_command(\$c->{in})) {
        my $seen = !is_probe($args) || $self->{policy}{handshake}{PROBE};

        if ($seen && @{ $self->{entries} } < $MAX_ENTRIES) {
            push @{ $self->{entries} },
                 { args => $args, conn => $c->{id}, time => time };
        }

        $self->obey($c, $args);
    }
}


# The first whole command of the buffer, cut off from it.

sub take_command {
    my ($in) = @_;

    return undef unless $$in =~ /^\*(\d+)\r\n/;

    my ($n, $at) = ($1, $+[0]);
    my @args;

    for (1 .. $n) {
        pos($$in) = $at;
        return undef unless $$in =~ /\G\$(\d+)\r\n/g;

        my ($length, $start) = ($1, $+[0]);
        return undef if length $$in < $start + $length + 2;

        push @args, substr $$in, $start, $length;
        $at = $start + $length + 2;
    }

    substr $$in, 0, $at, '';

    return \@args;
}


sub obey {
    my ($self, $c, $args) = @_;

    my $policy = $self->{policy};
    my $name = uc $args->[0];

    if (is_probe($args)) {
        $name = 'PROBE';

    } elsif ($name eq 'EVALSHA' || $name eq 'EVAL') {
        my $list = $name eq 'EVALSHA' && exists $policy->{evalsha}
                   ? 'evalsha' : 'eval';

        return $self->act($c, $policy->{$list} // "-ERR no policy\r\n",
                          $list, $args);
    }

    my $handshake = $policy->{handshake} || {};

    for my $key ("$name " . uc($args->[1] // ''), $name, '*') {
        next unless exists $handshake->{$key};
        return $self->act($c, $handshake->{$key}, $key, $args);
    }

    my $reply = "+OK\r\n";

    if ($name eq 'PING') {
        $reply = "+PONG\r\n";

    } elsif ($name eq 'PROBE') {
        $reply = ":1\r\n";

    } elsif ($name eq 'SCRIPT' && uc($args->[1] // '') eq 'LOAD') {
        $reply = "\$40\r\n" . Digest::SHA::sha1_hex($args->[2]) . "\r\n";
    }

    $self->act($c, $reply, '', $args);
}


sub is_probe {
    my ($args) = @_;

    return uc $args->[0] eq 'EVAL' && ($args->[3] // '') =~ /:\{probe[\@A-O]*\}\z/;
}


# Turns the next action of a list into segments of the connection's output.

sub act {
    my ($self, $c, $actions, $list, $args) = @_;

    my $used = $self->{used}{$list}++ // 0;
    my $action = ref $actions eq 'ARRAY'
                 ? $actions->[$used > $#$actions ? -1 : $used] : $actions;

    $action = $action->($args, $used, $c->{id}) if ref $action eq 'CODE';
    $action = { reply => $action } unless ref $action;

    my $reply = $action->{reply} // '';

    if ($action->{hold}) {
        push @{ $c->{held} }, $reply;
        return if @{ $c->{held} } < $action->{hold};
        $reply = join '', splice @{ $c->{held} };
    }

    my @segments = map { { data => $_, gap => ($action->{gap} // 2) / 1000 } }
                   cut($reply, $action->{split});

    delete $segments[0]{gap};

    $segments[0]{at} = time + $action->{delay} / 1000 if $action->{delay};
    $segments[-1]{stream} = $action->{stream} if $action->{stream};

    if ($action->{then}) {
        push @segments, { data => '', gap => 0, then => $action->{then} };
    }

    push @{ $c->{out} }, @segments;
}


sub cut {
    my ($bytes, $split) = @_;

    return $bytes unless defined $split && length $bytes;
    return split //, $bytes if $split eq 'every';

    my @pieces;
    my $at = 0;

    for my $cut (ref $split ? @$split : $split) {
        next if $cut <= $at || $cut >= length $bytes;
        push @pieces, substr $bytes, $at, $cut - $at;
        $at = $cut;
    }

    return @pieces, substr $bytes, $at;
}


# ---- output

# Seconds until the head of the queue may be written; undef: nothing to write.

sub wait_of {
    my ($self, $c) = @_;

    my $segment = $c->{out}[0];

    return undef if !$segment || $c->{stalled};

    my $now = time;

    if ($segment->{at}) {
        return $segment->{at} - $now if $segment->{at} > $now;
    }

    if (defined $segment->{gap}) {
        my $wait = $c->{last} + $segment->{gap} - $now;

        return $wait if $wait > 0;

        if ($now < $c->{last} + 0.5 && !peer_drained($c)) {
            return 0.001;
        }

        delete $segment->{gap};
    }

    return 0;
}


sub write_to {
    my ($self, $c) = @_;

    while (defined(my $wait = $self->wait_of($c))) {
        return if $wait > 0;

        my $segment = $c->{out}[0];

        if (length $segment->{data}) {
            my $n = syswrite $c->{socket}, $segment->{data};

            return $self->write_failed($c) unless defined $n;

            substr $segment->{data}, 0, $n, '';
            $c->{last} = time;
            next if length $segment->{data};
        }

        if ($segment->{stream}) {
            my $most = $segment->{stream};
            $most = length $FILLER if $most > length $FILLER;

            my $n = syswrite $c->{socket}, $FILLER, $most;

            return $self->write_failed($c) unless defined $n;

            $segment->{stream} -= $n;
            $c->{last} = time;
            return if $segment->{stream};       # others have their turn
        }

        shift @{ $c->{out} };

        if (my $then = $segment->{then}) {
            if ($then eq 'stall') {
                $c->{stalled} = 1;

            } else {
                $self->close_conn($c, $then);
            }

            return;
        }
    }
}


sub write_failed {
    my ($self, $c) = @_;

    return if $!{EAGAIN} || $!{EINTR};

    $self->close_conn($c, 'close');
}


# Whether the peer, a process of this machine, has read all that was sent: its
# socket is the line of /proc/net/tcp with our two ports the other way round,
# its unread bytes the second number of tx_queue:rx_queue.

sub peer_drained {
    my ($c) = @_;

    return 1 unless $c->{tcp};

    my $ports = sprintf '(?:[0-9A-F]{8}):%04X (?:[0-9A-F]{8}):%04X',
                        $c->{socket}->peerport // 0, $c->{socket}->sockport;

    return 1 unless RateLimit::Util::slurp('/proc/net/tcp')
                    =~ /: $ports [0-9A-F]{2} [0-9A-F]{8}:([0-9A-F]{8}) /;

    return hex $1 == 0;
}


1;
