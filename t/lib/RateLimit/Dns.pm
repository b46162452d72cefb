package RateLimit::Dns;

# A DNS server in a child process, by UDP and TCP, whose answers the test can
# change at any time.
#
#   my $dns = RateLimit::Dns->start(
#       port  => 12345,                 # default: a free one
#       names => { 'redis.test' => { a => ['127.0.0.2'], ttl => 1 } },
#   );
#   $dns->port;  $dns->addr;  $dns->pid;
#
#   $dns->name('redis.test', ...);      # from now on, nothing stays of before:
#       a      => ['127.0.0.2', ...],   # addresses, in this order;
#       aaaa   => ['::1', ...],         # default: none
#       cname  => 'other.test',         # instead; its addresses come with it
#       ttl    => seconds,              # default 1
#       code   => 'NXDOMAIN',           # or SERVFAIL, REFUSED, FORMERR, NOTIMP;
#                                       # default NOERROR
#       delay  => ms,                   # before the answer, default 0
#       silent => 1                     # no answer at all
#   $dns->forget('redis.test');         # NXDOMAIN, as all that it does not know
#
#   $dns->queries;                      # how many came: all,
#   $dns->queries('redis.test');        # for a name (lower case),
#   $dns->queries('redis.test', 'A');   # for a name and a type (A, AAAA, TYPEn)
#   $dns->tcp;                          # those by TCP
#   $dns->wait_queries($n, $timeout, @which);   # true: so many more came
#   $dns->stop;
#
# An answer by UDP of more than 512 bytes is truncated: a client asks again by
# TCP.
#
# A RateLimit::Child, which see about its end.

use strict;
use warnings;

use parent 'RateLimit::Child';

use IO::Socket::INET ();

use RateLimit::Util qw(free_port wait_until);


sub start {
    my ($class, %opt) = @_;

    my $server;

    # a port that is free for TCP may not be so for UDP

    for (1 .. 10) {
        my $port = $opt{port} // free_port();

        $server = RateLimit::Dns::Server->new($port);
        last if $server || $opt{port};
    }

    die "dns: no port to listen on: $!\n" unless $server;

    my $self = $class->start_child('dns server', $server,
                                   port => $server->{port});

    $self->name($_, %{ $opt{names}{$_} }) for sort keys %{ $opt{names} || {} };

    return $self;
}


sub name    { my ($self, @name) = @_;  $self->ask(name => @name) }
sub forget  { my ($self, $name) = @_;  $self->ask(forget => $name) }
sub queries { my ($self, @which) = @_; $self->ask(queries => @which) }
sub tcp     { my ($self) = @_;         $self->ask('tcp') }


sub wait_queries {
    my ($self, $n, $timeout, @which) = @_;

    my $from = $self->queries(@which);

    return wait_until(sub { $self->queries(@which) >= $from + $n }, $timeout);
}


package RateLimit::Dns::Server;

# The child: a select loop.
#   names     what is known
#   queries   name => type => number of queries
#   clients   of TCP: descriptor => socket, in (bytes that are no query yet)
#   late      answers to be given: [not before, code]

use strict;
use warnings;

use parent -norequire, 'RateLimit::Child::Server';

use Socket qw(AF_INET AF_INET6 inet_pton);
use Time::HiRes qw(time);

my %TYPES = (1 => 'A', 28 => 'AAAA');
my %CODES = (NOERROR => 0, FORMERR => 1, SERVFAIL => 2, NXDOMAIN => 3,
             NOTIMP => 4, REFUSED => 5);


# Undef if the port is in use.

sub new {
    my ($class, $port) = @_;

    my %at = (LocalAddr => '127.0.0.1', LocalPort => $port);

    my $udp = IO::Socket::INET->new(%at, Proto => 'udp') or return undef;
    my $listener = IO::Socket::INET->new(%at, Proto => 'tcp', Listen => 16,
                                         ReuseAddr => 1) or return undef;

    $_->blocking(0) for $udp, $listener;

    return bless {
        port     => $port,
        udp      => $udp,
        listener => $listener,
        names    => {},
        queries  => {},
        tcp      => 0,
        clients  => {},
        late     => [],
    }, $class;
}


sub close_listeners { close $_ for @{ $_[0] }{qw(udp listener)} }


sub run {
    my ($self) = @_;

    while (1) {
        my $read = '';
        my $timeout;

        vec($read, fileno $_, 1) = 1
            for @$self{qw(control udp listener)},
                map { $_->{socket} } values %{ $self->{clients} };

        for my $late (@{ $self->{late} }) {
            my $wait = $late->[0] - time;

            $wait = 0 if $wait < 0;
            $timeout = $wait if !defined $timeout || $wait < $timeout;
        }

        next if select($read, undef, undef, $timeout) < 0;

        $self->give_late;

        # what the test has set counts for all queries that come afterwards

        if (vec $read, fileno $self->{control}, 1) {
            $self->answer_control or return;
        }

        $self->receive if vec $read, fileno $self->{udp}, 1;

        for my $client (my @clients = values %{ $self->{clients} }) {
            $self->read_client($client)
                if vec $read, fileno $client->{socket}, 1;
        }

        if (vec $read, fileno $self->{listener}, 1) {
            my $socket = $self->{listener}->accept or next;

            $socket->blocking(0);
            $self->{clients}{ fileno $socket } = { socket => $socket, in => '' };
        }
    }
}


sub answer {
    my ($self, $what, @args) = @_;

    if ($what eq 'name') {
        my ($name, %record) = @args;
        $self->{names}{ lc $name } = { ttl => 1, %record };

    } elsif ($what eq 'forget') {
        delete $self->{names}{ lc $args[0] };

    } elsif ($what eq 'tcp') {
        return $self->{tcp};

    } elsif ($what eq 'queries') {
        my ($name, $type) = @args;
        my $n = 0;

        for my $name (defined $name ? $name : keys %{ $self->{queries} }) {
            my $types = $self->{queries}{$name} || {};
            $n += $types->{$_} // 0 for defined $type ? $type : keys %$types;
        }

        return $n;
    }

    return 1;
}


sub receive {
    my ($self) = @_;

    while (defined(my $from = recv $self->{udp}, my $query, 4096, 0)) {
        $self->query($query, sub {
            my ($answer) = @_;

            if (length $answer > 512) {
                $answer = truncated($answer);
            }

            send $self->{udp}, $answer, 0, $from;
        });
    }
}


# A client may have gone when a late answer is due.

sub read_client {
    my ($self, $client) = @_;

    my $socket = $client->{socket};
    my $n = sysread $socket, $client->{in}, 65536, length $client->{in};

    if (!$n) {
        return if !defined $n && $!{EAGAIN};

        delete $self->{clients}{ fileno $socket };
        close $socket;
        return;
    }

    while (length $client->{in} >= 2) {
        my $length = unpack 'n', $client->{in};

        last if length $client->{in} < 2 + $length;

        $self->{tcp}++;
        $self->query(substr($client->{in}, 2, $length), sub {
            my ($answer) = @_;

            syswrite $socket, pack('n', length $answer) . $answer
                if defined fileno $socket;
        });

        substr $client->{in}, 0, 2 + $length, '';
    }
}


sub query {
    my ($self, $query, $give) = @_;

    return if length $query < 12;

    my ($name, $type, $end) = question($query);

    if (!defined $name) {
        return $give->(message($query, '', 'FORMERR'));
    }

    $type = $TYPES{$type} // "TYPE$type";
    $self->{queries}{$name}{$type}++;

    my $record = $self->{names}{$name} // { code => 'NXDOMAIN' };

    return if $record->{silent};

    my $answer = message($query, substr($query, 12, $end - 12),
                         $record->{code} // 'NOERROR',
                         $self->answers($name, $record, $type));

    if ($record->{delay}) {
        push @{ $self->{late} }, [time + $record->{delay} / 1000,
                                  sub { $give->($answer) }];
    } else {
        $give->($answer);
    }
}


sub give_late {
    my ($self) = @_;

    my $now = time;
    my @due = grep { $_->[0] <= $now } @{ $self->{late} };

    $self->{late} = [grep { $_->[0] > $now } @{ $self->{late} }];

    $_->[1]->() for @due;
}


# The first question of a query: its name, its type, where it ends.

sub question {
    my ($query) = @_;

    my $at = 12;
    my @labels;

    return if unpack('x4 n', $query) == 0;

    while (1) {
        return if $at >= length $query;

        my $length = ord substr $query, $at++, 1;

        last if $length == 0;
        return if $length > 63 || $at + $length > length $query;

        push @labels, substr $query, $at, $length;
        $at += $length;
    }

    return if $at + 4 > length $query;

    return (lc join('.', @labels), unpack("x$at n", $query), $at + 4);
}


# The records of an answer, and those of another name that it leads to.

sub answers {
    my ($self, $name, $record, $type) = @_;

    my @answers;

    return if ($record->{code} // 'NOERROR') ne 'NOERROR';

    if (defined $record->{cname}) {
        my $other = $self->{names}{ lc $record->{cname} } // {};

        return (
            record($name, 5, $record->{ttl}, encode($record->{cname})),
            $self->answers($record->{cname}, { %$other, cname => undef },
                           $type),
        );
    }

    if ($type eq 'A') {
        push @answers, record($name, 1, $record->{ttl}, inet_pton(AF_INET, $_))
            for @{ $record->{a} || [] };

    } elsif ($type eq 'AAAA') {
        push @answers, record($name, 28, $record->{ttl},
                              inet_pton(AF_INET6, $_))
            for @{ $record->{aaaa} || [] };
    }

    return @answers;
}


sub record {
    my ($name, $type, $ttl, $data) = @_;

    return encode($name) . pack('n n N n/a*', $type, 1, $ttl // 1, $data);
}


sub encode {
    my ($name) = @_;

    return pack('(C/a*)*', split /\./, $name) . "\0";
}


# A response: it has come, recursion is available.

sub message {
    my ($query, $question, $code, @answers) = @_;

    return pack('n n n n n n', unpack('n', $query), 0x8180 | $CODES{$code},
                length $question ? 1 : 0, scalar @answers, 0, 0)
           . $question . join '', @answers;
}


# The question alone.

sub truncated {
    my ($answer) = @_;

    my ($name, $type, $end) = question($answer);
    my ($id, $flags) = unpack 'n n', $answer;

    return pack('n n n n n n', $id, $flags | 0x0200, 1, 0, 0, 0)
           . substr $answer, 12, $end - 12;
}


1;
