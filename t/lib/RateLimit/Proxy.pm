package RateLimit::Proxy;

# A network that can be made bad: a TCP proxy in a child process, between nginx
# and a real server.
#
#   my $proxy = RateLimit::Proxy->start(
#       to   => [$host, $port],         # or the path of a unix socket
#       port => 12345,                  # default: a free one
#       ...                             # settings, see below
#   );
#   $proxy->port;  $proxy->addr;  $proxy->pid;
#
#   $proxy->set(delay => 200);          # settings, from now on; others stay:
#       delay => ms                     # that replies are late, default 0; they
#                                       # stay in order
#       swing => ms                     # which goes so much up and down, once a
#                                       # second, default 0
#       mute  => 1                      # new connections are accepted, and that
#                                       # is all that happens to them, ever
#   $proxy->stall;          # connections that there are stay open, but nothing
#                           # goes through them any more: half-open, for both
#   $proxy->cut;            # the next reply on each connection that there is
#                           # ends after half of its bytes, with a reset
#   $proxy->connections;    # hash ref: accepted, open (not closed by nginx,
#                           # whether anything goes through or not), resets
#   $proxy->stop;
#
# A RateLimit::Child, which see about its end.

use strict;
use warnings;

use parent 'RateLimit::Child';

use IO::Socket::INET ();
use IO::Socket::UNIX ();

use RateLimit::Util qw(free_port);


sub start {
    my ($class, %opt) = @_;

    my $to = delete $opt{to};
    my $port = delete $opt{port} // free_port();
    my $server = RateLimit::Proxy::Server->new(port => $port, to => $to,
                                               settings => \%opt);

    return $class->start_child('proxy', $server, port => $port);
}


sub set         { my ($self, %settings) = @_; $self->ask(set => \%settings) }
sub stall       { $_[0]->ask('stall') }
sub cut         { $_[0]->ask('cut') }
sub connections { $_[0]->ask('connections') }


package RateLimit::Proxy::Server;

# The child: a select loop.  A connection is a pair of ends, each with the bytes
# that it still has to write:
#   client, server   socket, fd, out: a list of [not before, bytes]
#   stalled          what the client sends is lost, only its end is noticed
#   cut              the next reply is cut
#   reset            its half is out; when the reset follows

use strict;
use warnings;

use parent -norequire, 'RateLimit::Child::Server';

use Socket qw(IPPROTO_TCP TCP_NODELAY SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

# seconds in which nginx will have read what a reset would take away
my $READ = 0.01;


sub new {
    my ($class, %opt) = @_;

    my $listener = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $opt{port},
        Proto => 'tcp', Listen => 128, ReuseAddr => 1
    ) or die "proxy can't listen on port $opt{port}: $!\n";

    $listener->blocking(0);

    return bless {
        %opt,
        listener => $listener,
        pairs    => {},
        accepted => 0,
        resets   => 0,
    }, $class;
}


sub close_listeners { close $_[0]{listener} }


sub run {
    my ($self) = @_;

    while (1) {
        my ($read, $write) = ('', '');
        my $now = time;
        my $timeout;

        vec($read, fileno $_, 1) = 1 for $self->{control}, $self->{listener};

        for my $pair (values %{ $self->{pairs} }) {
            if ($pair->{stalled}) {
                vec($read, $pair->{client}{fd}, 1) = 1;
                next;
            }

            if ($pair->{reset}) {
                my $wait = $pair->{reset} - $now;

                $wait = 0 if $wait < 0;
                $timeout = $wait if !defined $timeout || $wait < $timeout;
                next;
            }

            for my $end (ends($pair)) {
                vec($read, $end->{fd}, 1) = 1;

                my $first = $end->{out}[0] // next;
                my $wait = $first->[0] - $now;

                if ($wait <= 0) {
                    vec($write, $end->{fd}, 1) = 1;

                } elsif (!defined $timeout || $wait < $timeout) {
                    $timeout = $wait;
                }
            }
        }

        next if select($read, $write, undef, $timeout) < 0;

        # what has ended is told as ended

        for my $pair (my @pairs = values %{ $self->{pairs} }) {
            $self->serve($pair, $read);
        }

        if (vec $read, fileno $self->{control}, 1) {
            $self->answer_control or return;
        }

        $self->accept if vec $read, fileno $self->{listener}, 1;
    }
}


sub ends { return grep { defined } @{ $_[0] }{qw(client server)} }


sub answer {
    my ($self, $what, $value) = @_;

    my @pairs = values %{ $self->{pairs} };

    if ($what eq 'connections') {
        return {
            accepted => $self->{accepted},
            open     => scalar @pairs,
            resets   => $self->{resets},
        };
    }

    if ($what eq 'set') {
        $self->{settings}{$_} = $value->{$_} for keys %$value;

    } elsif ($what eq 'stall') {
        $_->{stalled} = 1 for @pairs;

    } elsif ($what eq 'cut') {
        $_->{cut} = 1 for @pairs;
    }

    return 1;
}


sub accept {
    my ($self) = @_;

    while (my $socket = $self->{listener}->accept) {
        my $pair = { id => ++$self->{accepted}, client => end($socket) };

        $self->{pairs}{ $pair->{id} } = $pair;

        if ($self->{settings}{mute}) {
            $pair->{stalled} = 1;
            next;
        }

        my $to = $self->{to};
        my $server = ref $to
            ? IO::Socket::INET->new(PeerAddr => $to->[0], PeerPort => $to->[1])
            : IO::Socket::UNIX->new(Peer => $to);

        if ($server) {
            $pair->{server} = end($server);

        } else {
            $self->close_pair($pair);
        }
    }
}


sub end {
    my ($socket) = @_;

    $socket->blocking(0);
    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1
        if $socket->isa('IO::Socket::INET');

    return { socket => $socket, fd => fileno $socket, out => [] };
}


sub serve {
    my ($self, $pair, $read) = @_;

    my ($client, $server) = @$pair{qw(client server)};

    if ($pair->{stalled}) {
        $self->take($pair, $client) if vec $read, $client->{fd}, 1;
        return;
    }

    if ($pair->{reset}) {
        return if time < $pair->{reset};

        setsockopt $client->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0);
        $self->{resets}++;

        return $self->close_pair($pair);
    }

    if (vec $read, $client->{fd}, 1) {
        my $bytes = $self->take($pair, $client) // return;
        push @{ $server->{out} }, [0, $bytes] if length $bytes;
    }

    if (vec $read, $server->{fd}, 1) {
        my $bytes = $self->take($pair, $server) // return;
        push @{ $client->{out} }, [$self->due, $bytes] if length $bytes;
    }

    $self->give($pair, $server, 0) or return;
    $self->give($pair, $client, $pair->{cut});
}


# When a reply that has come now may leave.

sub due {
    my ($self) = @_;

    my $now = time;
    my $delay = ($self->{settings}{delay} // 0)
                + ($self->{settings}{swing} // 0)
                  * sin(2 * 3.14159265 * $now);

    return $delay > 0 ? $now + $delay / 1000 : 0;
}


sub take {
    my ($self, $pair, $end) = @_;

    my $n = sysread $end->{socket}, my $bytes, 65536;

    return $bytes if $n;
    return '' if !defined $n && ($!{EAGAIN} || $!{EINTR});

    $self->close_pair($pair);

    return undef;
}


# False: the connection is gone, or the end of it is near.

sub give {
    my ($self, $pair, $end, $cut) = @_;

    while (my $first = $end->{out}[0]) {
        last if $first->[0] > time;

        if ($cut) {
            $first->[1] = substr $first->[1], 0, length($first->[1]) / 2;
        }

        my $n = syswrite $end->{socket}, $first->[1];

        if (!defined $n) {
            return 1 if $!{EAGAIN} || $!{EINTR};

            $self->close_pair($pair);
            return 0;
        }

        if ($cut) {
            $pair->{reset} = time + $READ;
            return 0;
        }

        substr $first->[1], 0, $n, '';
        shift @{ $end->{out} } unless length $first->[1];
    }

    return 1;
}


sub close_pair {
    my ($self, $pair) = @_;

    delete $self->{pairs}{ $pair->{id} };
    close $_->{socket} for ends($pair);
}


1;
