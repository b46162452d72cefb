package RateLimit::Load;

# HTTP/1.1 clients for tests: one request, a pipeline, a connection by hand, and
# bounded load over many keepalive connections in one process.
#
#   use RateLimit::Load;                  # exports nothing; call by full name
#
#   my $r = RateLimit::Load::get($port, '/x', 'X-Api-Key' => 'a');
#   my $r = RateLimit::Load::request($port, 'POST', '/x', { A => 1 }, $body);
#   $r->{status}; $r->{headers}{'retry-after'}; $r->{body};
#
# A response: status, reason, headers (names in lower case; a repeated one is an
# array ref), body, time (seconds).  Where there is none, status is 0 and error
# says why.  $port is a port of 127.0.0.1, or [host, port], or the path of a
# unix socket.
#
#   my @r = RateLimit::Load::pipeline($port, [$raw1, $raw2], timeout => 10);
#   my $c = RateLimit::Load::connection($port);
#   $c->write($bytes);  $c->response($timeout, $method);  $c->close;
#   $c->send($path, %headers);            # writes a request; gives $c
#
#   my $res = RateLimit::Load::run(
#       port        => $port,             # or: targets => [$port1, $port2],
#       connections => 50,                #     connections spread over them
#       requests    => 2000,              # or: duration => seconds
#                                         # or: until => code: asked before
#                                         # each request, true ends the load
#       path        => '/x',              # or code: called with 0, 1, 2, ...,
#                                         # returns a path, or a hash: path,
#                                         # method, headers (hash), body
#       headers     => { 'X-A' => 1 },
#       keep        => 1,                 # keep all responses, or code: called
#                                         # with each, returns what is kept
#       pause       => 5,                 # ms that a client rests after each
#                                         # answer; default 0
#       timeout     => 20,                # of everything; nothing waits longer
#       close       => 1,                 # a new connection per request
#       abort       => 0.2,               # part of the requests whose client
#       abort_after => 5,                 # leaves, so many ms after sending
#   );
#   $res->count(200);  $res->count;       # responses with a status, or all
#   $res->statuses;                       # { 200 => 10, 429 => 90 }
#   $res->errors;                         # number of requests without answer
#   $res->error_text;                     # "reset: 2, timeout: 1", "" if none
#   $res->responses;                      # keep => 1: with "n", the request's
#   $res->max_latency;  $res->elapsed;    # number, "target", and "started"
#   $res->aborted;  $res->retried;  $res->sent;
#
#   my $task = RateLimit::Load::start(%same);   # in another process, until told:
#   my $hash = $task->stop;               # what came of it, see "start" below
#
# Errors are counted by class: refused, reset, empty (closed without a byte of
# the response), incomplete, malformed, timeout, unsent (time was up before).
#
# A server may close an idle connection at the moment a client sends on it: a
# client that finds its request unread sends it again, and so do we (retried).
# A request that the server has read and then dropped is an error, never sent
# again.  The kernel tells the two apart: closing a socket that has unread data,
# or data arriving after the close, makes a reset; after a plain close of a
# socket whose data were read there is none.

use strict;
use warnings;

use Errno qw(EINPROGRESS EAGAIN EINTR ECONNREFUSED ENOENT);
use IO::Handle ();
use List::Util ();
use Socket qw(
    AF_UNIX AF_INET SOCK_STREAM SOL_SOCKET SO_ERROR IPPROTO_TCP TCP_NODELAY
    pack_sockaddr_in pack_sockaddr_un inet_aton
);
use Time::HiRes qw(time sleep);

use RateLimit::Background ();
use RateLimit::Util qw(patience);


sub get {
    my ($target, $path, %headers) = @_;

    return request($target, 'GET', $path, \%headers);
}


sub request {
    my ($target, $method, $path, $headers, $body, $timeout) = @_;

    my $c = eval { connection($target) };

    return _nothing($@ =~ s/\n//r) unless $c;

    $c->write(format_request({
        method  => $method,
        path    => $path,
        headers => { Connection => 'close', %{ $headers || {} } },
        body    => $body,
    }));

    return $c->response($timeout, $method);
}


# The responses in order; the first that fails is the last one.

sub pipeline {
    my ($target, $requests, %opt) = @_;

    my $c = connection($target);
    my $end = time + patience($opt{timeout} // 10);
    my @responses;

    $c->{patient} = 1;                  # $end counts, not each response
    $c->write(join '', @$requests);

    for my $raw (@$requests) {
        my ($method) = $raw =~ /^(\S+)/;
        my $response = $c->response($end - time, $method);

        push @responses, $response;
        last unless $response->{status};
    }

    return @responses;
}


sub connection {
    my ($target) = @_;

    return RateLimit::Load::Connection->new($target);
}


sub run {
    my (%opt) = @_;

    return RateLimit::Load::Run->new(%opt)->run;
}


# A RateLimit::Background.  "begun" are the requests that were: those that a
# server did not even read are not counted twice.

sub start {
    my (%opt) = @_;

    return RateLimit::Background->start(sub {
        my ($told) = @_;

        my $load = run(%opt, until => $told);
        my %result = map { $_ => $load->{$_} }
                     qw(responses errors statuses sent retried aborted
                        max_latency held_up elapsed);

        return { %result, begun => $load->{next} };
    });
}


# ---- what all clients share

# A request, without Connection: keepalive is HTTP/1.1's default.

sub format_request {
    my ($request) = @_;

    my $method = $request->{method} // 'GET';
    my $body = $request->{body};
    my %headers = (Host => 'localhost', %{ $request->{headers} || {} });

    if (defined $body && !grep { /^(?:content-length|transfer-encoding)$/i }
                              keys %headers)
    {
        $headers{'Content-Length'} = length $body;
    }

    return "$method $request->{path} HTTP/1.1\r\n"
           . join('', map { my $name = $_;
                            map { "$name: $_\r\n" }
                            ref $headers{$name} ? @{ $headers{$name} }
                                                : $headers{$name} }
                      sort keys %headers)
           . "\r\n" . ($body // '');
}


# Cuts the first whole response off the buffer; undef: not whole yet.  At the
# end of the connection a body without a length is whole.

sub take_response {
    my ($in, $method, $eof) = @_;

    my ($head, $response);

    while (1) {
        return undef unless $$in =~ /^(.*?)\r\n\r\n/s;

        $head = $1;
        my $end = $+[0];

        if ($head !~ m{^HTTP/1\.(\d) (\d{3})(?: ([^\r\n]*))?(?:\r\n|$)}) {
            return _nothing('malformed');
        }

        $response = { minor => $1, status => $2, reason => $3 // '' };

        if ($2 >= 100 && $2 < 200 && $2 != 101) {
            substr $$in, 0, $end, '';           # 100, 103: another follows
            next;
        }

        last;
    }

    my %headers;
    my (undef, @lines) = split /\r\n/, $head;

    for my $line (@lines) {
        my ($name, $value) = $line =~ /^([^:\s]+):[ \t]*(.*?)[ \t]*$/
            or return _nothing('malformed');

        $name = lc $name;

        if (!exists $headers{$name}) {
            $headers{$name} = $value;

        } elsif (ref $headers{$name}) {
            push @{ $headers{$name} }, $value;

        } else {
            $headers{$name} = [$headers{$name}, $value];
        }
    }

    $response->{headers} = \%headers;

    my $start = 4 + length $head;
    my ($body, $end);

    if ($method eq 'HEAD' || $response->{status} =~ /^(?:101|204|304)$/) {
        ($body, $end) = ('', $start);

    } elsif (($headers{'transfer-encoding'} // '') =~ /chunked/i) {
        ($body, $end) = _chunks($in, $start);

    } elsif (defined $headers{'content-length'}) {
        my $length = $headers{'content-length'};
        $end = $start + $length;
        $body = substr $$in, $start, $length if length $$in >= $end;

    } elsif ($eof) {
        ($body, $end) = (substr($$in, $start), length $$in);
    }

    return $end if ref $end;            # malformed chunks
    return undef unless defined $body;

    substr $$in, 0, $end, '';
    $response->{body} = $body;

    $response->{close} = $eof || $response->{minor} == 0
                         || ($headers{connection} // '') =~ /\bclose\b/i;

    return $response;
}


# (body, end), or (undef) while the last chunk has not come.

sub _chunks {
    my ($in, $at) = @_;

    my $body = '';

    while (1) {
        pos($$in) = $at;

        if ($$in !~ /\G([0-9A-Fa-f]+)[^\r\n]*\r\n/g) {
            my $rest = substr $$in, $at, 32;
            return undef if $rest =~ /^[0-9A-Fa-f]*[^\n]*$/;
            return (undef, _nothing('malformed'));
        }

        my $size = hex $1;
        my $start = pos $$in;

        if ($size == 0) {
            return undef unless $$in =~ /\G(?:[^\r\n]+\r\n)*\r\n/g;
            return ($body, pos $$in);
        }

        return undef if length $$in < $start + $size + 2;

        $body .= substr $$in, $start, $size;
        $at = $start + $size + 2;
    }
}


sub _nothing {
    my ($error) = @_;

    return { status => 0, reason => '', headers => {}, body => '',
             error => $error, close => 1 };
}


# A socket and the address to connect it to.

sub _socket {
    my ($target) = @_;

    my ($socket, $address);

    if (!ref $target && $target =~ m{/}) {
        socket $socket, AF_UNIX, SOCK_STREAM, 0 or die "socket() failed: $!\n";
        $address = pack_sockaddr_un($target);

    } else {
        my ($host, $port) = ref $target ? @$target : ('127.0.0.1', $target);

        socket $socket, AF_INET, SOCK_STREAM, 0 or die "socket() failed: $!\n";
        setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
        $address = pack_sockaddr_in($port, inet_aton($host));
    }

    return ($socket, $address);
}


package RateLimit::Load::Connection;

# One blocking connection, driven by hand.

use strict;
use warnings;

use Time::HiRes qw(time);

use RateLimit::Util qw(patience);


sub new {
    my ($class, $target) = @_;

    my ($socket, $address) = RateLimit::Load::_socket($target);

    connect $socket, $address
        or die(($!{ECONNREFUSED} || $!{ENOENT} ? 'refused' : "$!") . "\n");

    return bless { socket => $socket, in => '' }, $class;
}


# A server may answer and close before it has read all: what it sent counts.

sub write {
    my ($self, $bytes) = @_;

    local $SIG{PIPE} = 'IGNORE';

    while (length $bytes) {
        my $n = syswrite $self->{socket}, $bytes;
        return 0 unless defined $n;
        substr $bytes, 0, $n, '';
    }

    return 1;
}


sub send {
    my ($self, $path, %headers) = @_;

    $self->write(RateLimit::Load::format_request({ path => $path,
                                                   headers => \%headers }));

    return $self;
}


sub response {
    my ($self, $timeout, $method) = @_;

    my $start = time;
    my $end = $start + ($self->{patient} ? $timeout
                                         : patience($timeout // 10));
    my $eof = 0;

    $method //= 'GET';

    while (1) {
        my $response = RateLimit::Load::take_response(\$self->{in}, $method,
                                                      $eof);
        if ($response) {
            $response->{time} = time - $start;
            return $response;
        }

        if ($eof) {
            return RateLimit::Load::_nothing(
                length $self->{in} ? 'incomplete' : 'empty');
        }

        my $read = '';
        vec($read, fileno $self->{socket}, 1) = 1;

        my $left = $end - time;

        if ($left <= 0 || select($read, undef, undef, $left) == 0) {
            return RateLimit::Load::_nothing('timeout');
        }

        my $n = sysread $self->{socket}, $self->{in}, 65536,
                        length $self->{in};

        if (!defined $n) {
            next if $!{EINTR};
            return RateLimit::Load::_nothing('reset');
        }

        $eof = 1 if $n == 0;
    }
}


# With "reset": the server sees a RST.

sub close {
    my ($self, $how) = @_;

    if (($how // '') eq 'reset') {
        setsockopt $self->{socket}, Socket::SOL_SOCKET(), Socket::SO_LINGER(),
                   pack('ii', 1, 0);
    }

    CORE::close $self->{socket};
}


package RateLimit::Load::Run;

# The load loop.  A slot is a client: it has at most one connection and one
# request at a time, and takes the next request when it is done with the last.
#   socket, fd   undef while not connected
#   state        connecting, writing, reading, waiting (to look again),
#                resting (between two requests)
#   served       responses that this connection has delivered
#   request      number n, method, bytes, started

use strict;
use warnings;

use Errno qw(EINPROGRESS EAGAIN EINTR EPIPE ECONNRESET);
use IO::Handle ();
use Socket qw(SOL_SOCKET SO_ERROR);
use Time::HiRes qw(time);

use RateLimit::Util qw(patience);


sub new {
    my ($class, %opt) = @_;

    my @targets = $opt{targets} ? @{ $opt{targets} } : ($opt{port});

    if (!grep { defined } @opt{qw(requests duration until)}) {
        die "load: none of requests, duration and until given\n";
    }

    return bless {
        opt       => \%opt,
        targets   => \@targets,
        next      => 0,
        again     => [],                # requests to be sent once more
        slots     => [],
        sent      => 0,
        aborted   => 0,
        held_up   => 0,
        retried   => 0,
        statuses  => {},
        errors    => {},
        responses => [],
        max_latency => 0,
    }, $class;
}


sub run {
    my ($self) = @_;

    my $opt = $self->{opt};
    my $start = time;
    my $timeout = patience($opt->{timeout} // 20);

    local $SIG{PIPE} = 'IGNORE';

    $self->{read} = '';
    $self->{write} = '';
    $self->{stop_at} = $start + $opt->{duration} if defined $opt->{duration};

    for my $i (0 .. ($opt->{connections} // 1) - 1) {
        my $target = $self->{targets}[$i % @{ $self->{targets} }];
        push @{ $self->{slots} }, { target => $target };
    }

    $self->begin($_) for @{ $self->{slots} };

    while (my @busy = grep { $_->{request} || defined $_->{wake} }
                      @{ $self->{slots} })
    {
        my $now = time;

        if ($now >= $start + $timeout) {
            $self->failed($_, 'timeout') for grep { $_->{request} } @busy;
            $self->{errors}{unsent} = $opt->{requests} - $self->{next}
                if defined $opt->{requests} && $opt->{requests} > $self->{next};
            last;
        }

        my $wait = $start + $timeout - $now;

        for my $slot (@busy) {
            next unless defined $slot->{wake};

            if ($slot->{wake} <= $now) {
                delete $slot->{wake};
                $self->woken($slot);
                $wait = 0;

            } elsif ($slot->{wake} - $now < $wait) {
                $wait = $slot->{wake} - $now;
            }
        }

        my ($read, $write) = ($self->{read}, $self->{write});

        # the time since this turn began, and what it wakes up too late, is
        # the machine's, not the server's

        my $asleep = time;
        my $n = select $read, $write, undef, $wait;
        my $late = $asleep - $now + ($n <= 0 ? time - $asleep - $wait : 0);

        $self->{held_up} = $late if $late > $self->{held_up};

        next if $n <= 0;

        for my $slot (@busy) {
            my $fd = $slot->{fd} // next;

            if (vec $write, $fd, 1) {
                $self->writable($slot);

            } elsif (vec $read, $fd, 1) {
                $self->readable($slot);
            }
        }
    }

    $self->disconnect($_) for @{ $self->{slots} };
    $self->{elapsed} = time - $start;

    return bless $self, 'RateLimit::Load::Result';
}


# ---- the life of a slot

sub next_request {
    my ($self) = @_;

    if (@{ $self->{again} }) {
        return shift @{ $self->{again} };
    }

    my $opt = $self->{opt};

    return undef if defined $opt->{requests}
                    && $self->{next} >= $opt->{requests};
    return undef if $self->{stop_at} && time >= $self->{stop_at};

    if ($opt->{until}) {
        $self->{over} ||= $opt->{until}->();
        return undef if $self->{over};
    }

    my $n = $self->{next}++;
    my $what = ref $opt->{path} eq 'CODE' ? $opt->{path}->($n)
                                          : $opt->{path} // '/';
    my %request = ref $what ? %$what : (path => $what);

    $request{headers} = { %{ $opt->{headers} || {} },
                          ($opt->{close} ? (Connection => 'close') : ()),
                          %{ $request{headers} || {} } };

    return {
        n       => $n,
        method  => $request{method} // 'GET',
        bytes   => RateLimit::Load::format_request(\%request),
        abort   => $opt->{abort} && rand() < $opt->{abort},
        started => time,
    };
}


# Takes the next request, if there is one, and sends it.

sub begin {
    my ($self, $slot) = @_;

    my $request = $self->next_request;

    if (!$request) {
        undef $slot->{request};
        $self->disconnect($slot);
        return;
    }

    $slot->{request} = $request;
    $slot->{out} = $request->{bytes};
    $slot->{in} = '';

    if (defined $slot->{fd} && $self->is_stale($slot)) {
        $self->disconnect($slot);
    }

    if (defined $slot->{fd}) {
        $self->state($slot, 'writing');
        return $self->writable($slot);
    }

    my ($socket, $address) = RateLimit::Load::_socket($slot->{target});

    IO::Handle::blocking($socket, 0);

    $slot->{socket} = $socket;
    $slot->{fd} = fileno $socket;
    $slot->{served} = 0;

    if (connect $socket, $address) {
        $self->state($slot, 'writing');
        return $self->writable($slot);
    }

    if ($! == EINPROGRESS) {
        return $self->state($slot, 'connecting');
    }

    # a unix socket with a full backlog says EAGAIN

    if ($! == EAGAIN) {
        $self->disconnect($slot);
        push @{ $self->{again} }, $request;
        return $self->done($slot, 0.005);
    }

    $self->failed($slot, 'refused');
}


# An idle connection on which something can be read: the server closed it.

sub is_stale {
    my ($self, $slot) = @_;

    my $read = '';
    vec($read, $slot->{fd}, 1) = 1;

    return select($read, undef, undef, 0) > 0;
}


sub writable {
    my ($self, $slot) = @_;

    if ($slot->{state} eq 'connecting') {
        my $error = $self->socket_error($slot);

        return $self->failed($slot, 'refused') if $error;

        $self->state($slot, 'writing');
    }

    if ($slot->{state} eq 'waiting') {
        return;
    }

    while (length $slot->{out}) {
        my $n = syswrite $slot->{socket}, $slot->{out};

        if (!defined $n) {
            return if $! == EAGAIN || $! == EINTR;
            last;                               # reading tells why
        }

        substr $slot->{out}, 0, $n, '';
    }

    $self->{sent}++;
    $self->state($slot, 'reading');

    if ($slot->{request}{abort}) {
        my $after = $self->{opt}{abort_after};

        return $self->leave($slot) unless $after;
        $self->pause($slot, $after / 1000, 'leave');
    }
}


sub readable {
    my ($self, $slot) = @_;

    # an early answer to a request that is still being written

    $self->state($slot, 'reading') if $slot->{state} eq 'writing';

    my $n = sysread $slot->{socket}, $slot->{in}, 65536, length $slot->{in};

    if (!defined $n) {
        return if $! == EAGAIN || $! == EINTR;

        return $self->again($slot) if $slot->{served} && $slot->{in} eq '';
        return $self->failed($slot, 'reset');
    }

    my $response = RateLimit::Load::take_response(
        \$slot->{in}, $slot->{request}{method}, $n == 0);

    if ($response) {
        return $self->answered($slot, $response);
    }

    return if $n > 0;

    if ($slot->{in} ne '') {
        return $self->failed($slot, 'incomplete');
    }

    # closed without a byte: the reset that tells why may be on its way

    if ($slot->{served}) {
        return $self->again($slot) if $self->socket_error($slot);

        $self->state($slot, 'waiting');
        return $self->pause($slot, 0.02, 'look');
    }

    $self->failed($slot, 'empty');
}


sub woken {
    my ($self, $slot) = @_;

    my $why = delete $slot->{why};

    if ($why eq 'begin') {
        $self->begin($slot);

    } elsif ($why eq 'look') {
        return $self->again($slot) if $self->socket_error($slot);
        $self->failed($slot, 'empty');

    } elsif ($why eq 'leave') {
        $self->leave($slot);
    }
}


sub answered {
    my ($self, $slot, $response) = @_;

    if ($response->{error}) {
        return $self->failed($slot, $response->{error});
    }

    if ($slot->{in} ne '') {
        return $self->failed($slot, 'malformed');       # more than was asked
    }

    my $time = time - $slot->{request}{started};

    $self->{statuses}{$response->{status}}++;
    $self->{max_latency} = $time if $time > $self->{max_latency};

    if (my $keep = $self->{opt}{keep}) {
        my $kept = {
            %$response,
            n       => $slot->{request}{n},
            target  => $slot->{target},
            started => $slot->{request}{started},
            time    => $time,
        };

        push @{ $self->{responses} },
             ref $keep eq 'CODE' ? $keep->($kept) : $kept;
    }

    $slot->{served}++;
    $self->disconnect($slot) if $response->{close} || $self->{opt}{close};

    # a server that closes now is noticed before the next request

    $self->state($slot, 'resting') if defined $slot->{fd};
    $self->done($slot, ($self->{opt}{pause} // 0) / 1000);
}


sub failed {
    my ($self, $slot, $error) = @_;

    $self->{errors}{$error}++;
    $self->disconnect($slot);
    $self->done($slot, $error eq 'refused' ? 0.01 : 0);
}


# The client goes away without its answer.

sub leave {
    my ($self, $slot) = @_;

    $self->{aborted}++;
    $self->disconnect($slot);
    $self->done($slot);
}


# The server closed before it read this request.

sub again {
    my ($self, $slot) = @_;

    $self->{retried}++;
    unshift @{ $self->{again} }, $slot->{request};
    $self->disconnect($slot);
    $self->begin($slot);
}


# The next request begins in the loop, not here, so that nothing recurses.

sub done {
    my ($self, $slot, $seconds) = @_;

    undef $slot->{request};
    $self->pause($slot, $seconds // 0, 'begin');
}


# ---- sockets

sub pause {
    my ($self, $slot, $seconds, $why) = @_;

    $slot->{wake} = time + $seconds;
    $slot->{why} = $why;
}


sub state {
    my ($self, $slot, $state) = @_;

    my $fd = $slot->{fd};

    $slot->{state} = $state;

    vec($self->{read}, $fd, 1) = $state =~ /^(?:reading|writing)$/ ? 1 : 0;
    vec($self->{write}, $fd, 1) = $state =~ /^(?:connecting|writing)$/ ? 1 : 0;
}


sub socket_error {
    my ($self, $slot) = @_;

    my $packed = getsockopt $slot->{socket}, SOL_SOCKET, SO_ERROR;

    return $packed ? unpack('i', $packed) : 0;
}


sub disconnect {
    my ($self, $slot) = @_;

    return unless defined $slot->{fd};

    vec($self->{$_}, $slot->{fd}, 1) = 0 for qw(read write);
    close $slot->{socket};

    delete @$slot{qw(socket fd state)};
}


package RateLimit::Load::Result;

use strict;
use warnings;


sub count {
    my ($self, $status) = @_;

    return $self->{statuses}{$status} // 0 if defined $status;
    return List::Util::sum0(values %{ $self->{statuses} });
}


sub errors {
    my ($self, $error) = @_;

    return $self->{errors}{$error} // 0 if defined $error;
    return List::Util::sum0(values %{ $self->{errors} });
}


sub error_text {
    my ($self) = @_;

    return join ', ', map { "$_: $self->{errors}{$_}" }
                      sort keys %{ $self->{errors} };
}


sub statuses    { $_[0]{statuses} }
sub responses   { @{ $_[0]{responses} } }
sub max_latency { $_[0]{max_latency} }
sub elapsed     { $_[0]{elapsed} }
sub sent        { $_[0]{sent} }
sub aborted     { $_[0]{aborted} }
sub retried     { $_[0]{retried} }


1;
