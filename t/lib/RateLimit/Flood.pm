package RateLimit::Flood;

# As many requests as an nginx can take: a few keepalive connections, each with
# a batch of requests in the pipe.  For what is about numbers, a million keys
# or a minute at full load; for times and for reasons see RateLimit::Load.
#
#   use RateLimit::Flood;                 # exports nothing; call by full name
#
#   my $flood = RateLimit::Flood::run(
#       port        => $port,
#       connections => 8,                 # default as shown
#       batch       => 100,               # requests in a pipe, default as shown
#       requests    => 100_000,           # or: until => code: asked before each
#                                         # batch, true ends the flood
#       path        => sub { "/?k=$_[0]" },   # called with 0, 1, 2, ...
#       mark        => 'X-Source',        # a header of all responses
#       timeout     => 60,                # of everything
#   );
#   $flood->{sent};                       # requests
#   $flood->{marks};                      # { '200 redis' => 9, '429 -' => 3 },
#                                         # or { 200 => 9 } without a mark
#   $flood->{errors};                     # connections that failed or were
#                                         # closed, by class: { reset => 1 };
#   $flood->{lost};                       # and requests in their pipes
#
#   my $flood = RateLimit::Flood::start(%same_options);   # in another process,
#   ...                                   # without "requests": until told
#   my $result = $flood->stop;            # the hash from above
#
# Every response must be whole: head, and as many bytes of a body as it says.
# A connection that breaks is replaced.

use strict;
use warnings;

use IO::Select ();
use Time::HiRes qw(time sleep);

use RateLimit::Background ();
use RateLimit::Load ();
use RateLimit::Util qw(patience);


sub run {
    my (%opt) = @_;

    my $until = $opt{until} // sub { 0 };
    my $requests = $opt{requests};
    my $end = time + patience($opt{timeout} // 60);
    my $n = 0;
    my %result = (sent => 0, lost => 0, marks => {}, errors => {});

    local $SIG{PIPE} = 'IGNORE';

    my $batch = sub {
        my $size = $opt{batch} // 100;

        return 0 if time >= $end || $until->();

        if (defined $requests) {
            $size = $requests - $n if $size > $requests - $n;
        }

        return $size;
    };

    # a connection is a hash: socket, in, due (responses)

    my %connections;
    my $select = IO::Select->new;

    my $close = sub {
        my ($c, $error) = @_;

        if ($error) {
            $result{errors}{$error}++;
            $result{lost} += $c->{due};
        }

        $select->remove($c->{socket});
        delete $connections{fileno $c->{socket}};
        close $c->{socket};
    };

    my $send = sub {
        my ($c) = @_;

        my $size = $batch->() or return $close->($c);
        my $bytes = join '', map {
            'GET ' . $opt{path}->($_) . " HTTP/1.1\r\nHost: localhost\r\n\r\n"
        } $n .. $n + $size - 1;

        $n += $size;
        $result{sent} += $size;
        $c->{due} = $size;

        # blocking: nginx reads on until its buffers for answers are full

        while (length $bytes) {
            my $written = syswrite $c->{socket}, $bytes;
            return $close->($c, 'reset') unless defined $written;
            substr $bytes, 0, $written, '';
        }
    };

    my $open = sub {
        my ($socket, $address) = RateLimit::Load::_socket($opt{port});

        if (!connect $socket, $address) {
            $result{errors}{refused}++;
            sleep 0.01;
            return;
        }

        my $c = { socket => $socket, in => '', due => 0 };

        $connections{fileno $socket} = $c;
        $select->add($socket);
        $send->($c);
    };

    while (1) {
        while (keys %connections < ($opt{connections} // 8) && $batch->()) {
            $open->();
        }

        last unless %connections;

        for my $socket ($select->can_read(0.5)) {
            my $c = $connections{fileno $socket};
            my $got = sysread $socket, $c->{in}, 262_144, length $c->{in};

            if (!$got) {
                $close->($c, !defined $got ? 'reset'
                             : length $c->{in} ? 'incomplete' : 'empty');
                next;
            }

            if (!_take($c, \%result, $opt{mark})) {
                $close->($c, 'malformed');

            } elsif ($c->{due} == 0) {
                length $c->{in} ? $close->($c, 'malformed') : $send->($c);
            }
        }

        if (time >= $end + 5) {
            $close->($_, 'timeout') for values %connections;
        }
    }

    return \%result;
}


# Counts the responses that are whole and takes them off; false: malformed.

sub _take {
    my ($c, $result, $mark) = @_;

    my $at = 0;

    pos($c->{in}) = 0;

    while ($c->{due}
           && $c->{in} =~ m{\GHTTP/1\.1 (\d{3}) (.*?)\r\n\r\n}gcs)
    {
        my ($status, $head, $end) = ($1, $2, pos $c->{in});

        return 0 unless $head =~ /^Content-Length: (\d+)/mi;

        $end += $1;

        last if $end > length $c->{in};

        if ($mark) {
            $status .= $head =~ /^\Q$mark\E: ([^\r\n]*)/mi ? " $1" : ' -';
        }

        $result->{marks}{$status}++;
        $c->{due}--;
        $at = pos($c->{in}) = $end;
    }

    substr $c->{in}, 0, $at, '';

    return length $c->{in} < 5 || $c->{in} =~ m{^HTTP/} || !$c->{due};
}


# A RateLimit::Background.

sub start {
    my (%opt) = @_;

    return RateLimit::Background->start(sub { run(%opt, until => $_[0]) });
}


1;
