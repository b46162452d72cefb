package RateLimit::Parked;

# Requests that wait in nginx, for tests that say when the answer comes: clients
# whose requests nginx has read, one after another or all in one turn of its
# event loop.
#
#   use RateLimit::Parked;              # exports all of these
#
#   my $c = client($nginx);             # a connection that nginx has accepted
#   parked($nginx);                     # so many requests are read and not
#                                       # answered
#   my @c = park($nginx, @paths);       # sends each when the one before has been
#                                       # read: their connections
#   my @c = one_turn($nginx, @paths);   # all at once: the one worker finds them
#                                       # in one turn of its loop
#   leave($nginx, @c);                  # they go, and nginx has seen it
#   answer($c);                         # "200 5": status, and what remains
#
# The nginx has one worker, and $PARKED_SERVER in its server: "/free" without a
# limit, and "/status", by which nginx counts requests that are being answered.

use strict;
use warnings;

use Exporter 'import';

use RateLimit::Answer ();
use RateLimit::Load ();
use RateLimit::Util qw(slurp wait_until);

our @EXPORT = qw(
    client parked park one_turn leave answer $PARKED_SERVER
);

our $PARKED_SERVER = <<'EOC';
        location = /status { ratelimit off; stub_status; }
        location = /free { ratelimit off; empty_gif; }
EOC


sub client {
    my ($nginx) = @_;

    my $c = $nginx->begin('/free');

    $c->response->{status} == 200 or die "no answer from /free\n";

    return $c;
}


# The one that asks is among them.

sub parked {
    my ($nginx) = @_;

    my $r = $nginx->get('/status');

    return $r->{body} =~ /Writing: (\d+)/ ? $1 - 1 : -1;
}


sub park {
    my ($nginx, @paths) = @_;

    my $n = parked($nginx);
    my @clients;

    for my $path (@paths) {
        push @clients, client($nginx)->send($path);

        wait_until(sub { parked($nginx) == $n + @clients })
            or die "not parked: $path\n";
    }

    return @clients;
}


sub one_turn {
    my ($nginx, @paths) = @_;

    my ($worker) = $nginx->workers;
    my @clients = map { client($nginx) } @paths;

    kill 'STOP', $worker;
    wait_until(sub { slurp("/proc/$worker/stat") =~ /^\d+ \(.*\) T /s })
        or die "the worker does not stop\n";

    $clients[$_]->send($paths[$_]) for 0 .. $#paths;

    kill 'CONT', $worker;

    return @clients;
}


# One by one, so that each leaves by itself.

sub leave {
    my ($nginx, @clients) = @_;

    for my $c (@clients) {
        my $n = parked($nginx);

        $c->close;
        wait_until(sub { parked($nginx) == $n - 1 }) or die "still there\n";
    }
}


sub answer {
    my ($c) = @_;

    return RateLimit::Answer::seen($c->response(20), 'remaining');
}


1;
