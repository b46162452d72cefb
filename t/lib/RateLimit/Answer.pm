package RateLimit::Answer;

# What became of a request, in a few words that a test can compare.
#
#   use RateLimit::Answer;              # exports all of these
#
#   seen($r);                           # "200 redis": status, and who decided
#   seen($r, qw(source remaining));     # "429 denied 0": status, and these; "-"
#                                       # for what the answer does not tell
#   verdict($r);                        # the same, but why Redis did not decide
#                                       # instead of what remains:
#                                       # "200 local timeout"
#   ask($nginx, $path, $timeout);       # the verdict about one request
#   works($nginx, $timeout, $path);     # true: after a while Redis lets a request
#                                       # pass; default: 20 s, "/?k=w"
#
# $r is a response of RateLimit::Load; in place of a status that there is not,
# its error is told.  "limit", "remaining", "reset" and "retry-after" are the
# headers X-RateLimit-...; all else are those that tests add, X-Source for one.

use strict;
use warnings;

use Exporter 'import';

use RateLimit::Load ();
use RateLimit::Util qw(wait_until);

our @EXPORT = qw(seen verdict ask works);


sub seen {
    my ($r, @names) = @_;

    return join ' ', $r->{status} || $r->{error},
           map { $r->{headers}{ /^(?:limit|remaining|reset|retry-after)$/
                                ? "x-ratelimit-$_" : "x-$_" } // '-' }
           @names ? @names : 'source';
}


sub verdict {
    my ($r) = @_;

    my $why = $r->{headers}{'x-ratelimit-degraded-reason'};

    return defined $why ? seen($r) . " $why" : seen($r, qw(source remaining));
}


sub ask {
    my ($nginx, $path, $timeout) = @_;

    return verdict(RateLimit::Load::request($nginx->port, 'GET', $path, {},
                                            undef, $timeout));
}


sub works {
    my ($nginx, $timeout, $path) = @_;

    return wait_until(sub { seen($nginx->get($path // '/?k=w')) eq '200 redis' },
                      $timeout // 20);
}


1;
