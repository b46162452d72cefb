package RateLimit::FakeApi;

# A server that answers as "ratelimit_api" could, with whatever a test says: for
# tools/ratelimitctl, and what no nginx can be made to answer.
#
#   my $api = RateLimit::FakeApi->start(answers => {
#       'GET limits' => { limits => [] },               # status 200, JSON
#       'PUT limits/a/keys/b/override' => [503, { detail => 'no' }],
#       'GET servers' => [200, 'text', 'text/plain'],
#       'GET keys/x' => [0],                            # closes without an answer
#   });
#   $api->url;              # http://127.0.0.1:PORT/ratelimit/
#   $api->answers({ ... }); # others from now on; what is not there is a 404
#   $api->requests;         # hashes since the last call: line ("GET limits"),
#                           # headers (lower case), body
#
# The path of an answer is as the client sends it, with its arguments.  A server
# answers one connection after the other.

use strict;
use warnings;

use parent 'RateLimit::Child';

use IO::Socket::INET ();


sub start {
    my ($class, %opt) = @_;

    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64)
                   or die "listen: $!\n";

    return $class->start_child('fake API',
        bless({ listener => $listener, answers => $opt{answers} || {},
                requests => [] }, 'RateLimit::FakeApi::Server'),
        port => $listener->sockport);
}


sub url      { return "http://127.0.0.1:$_[0]{port}/ratelimit/" }
sub answers  { my ($self, $answers) = @_; return $self->ask('answers', $answers) }
sub requests { return @{ $_[0]->ask('requests') } }


package RateLimit::FakeApi::Server;

use strict;
use warnings;

use parent -norequire, 'RateLimit::Child::Server';

use IO::Select ();
use JSON::PP ();


sub close_listeners { close $_[0]{listener} }


sub answer {
    my ($self, $what, $answers) = @_;

    if ($what eq 'answers') {
        $self->{answers} = $answers;
        return 1;
    }

    my $requests = $self->{requests};
    $self->{requests} = [];

    return $requests;
}


sub run {
    my ($self) = @_;

    my $select = IO::Select->new($self->{listener}, $self->{control});

    while (my @ready = $select->can_read) {
        for my $handle (@ready) {

            if ($handle == $self->{control}) {
                $self->answer_control or return;
                next;
            }

            my $client = $handle->accept or next;

            local $SIG{ALRM} = sub { die "a client that sends nothing\n" };

            alarm 10;
            eval { $self->_serve($client) };
            alarm 0;
            close $client;
        }
    }
}


sub _serve {
    my ($self, $client) = @_;

    my $text = '';

    until ($text =~ /\r\n\r\n/) {
        sysread $client, $text, 65536, length $text or return;
    }

    my ($head, $body) = split /\r\n\r\n/, $text, 2;
    my ($line, @headers) = split /\r\n/, $head;
    my ($method, $path) = $line =~ m{^(\w+) /ratelimit/(\S*)} or return;
    my %header = map { /^([^:]+):\s*(.*)/ ? (lc $1 => $2) : () } @headers;

    while (length $body < ($header{'content-length'} // 0)) {
        sysread $client, $body, 65536, length $body or return;
    }

    push @{ $self->{requests} },
         { line => "$method $path", headers => \%header, body => $body };

    my $answer = $self->{answers}{"$method $path"}
                 // [404, { detail => "no such path: $path" }];

    $answer = [200, $answer] if ref $answer ne 'ARRAY';

    my ($status, $content, $type) = @$answer;

    return if $status == 0;

    if (ref $content) {
        $content = JSON::PP->new->canonical->ascii->encode($content);
        $type //= $status < 400 ? 'application/json' : 'application/problem+json';
    }

    $content //= '';
    $type //= 'text/plain';

    syswrite $client, "HTTP/1.1 $status Status\r\nContent-Type: $type\r\n"
                      . 'Content-Length: ' . length($content)
                      . "\r\nConnection: close\r\n\r\n$content";
}


1;
