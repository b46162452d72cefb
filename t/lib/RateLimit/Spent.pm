package RateLimit::Spent;

# What was taken from limits, as the servers have it: for tests that compare it
# with what has passed.
#
#   use RateLimit::Spent;               # exports both
#
#   spent($limit, @servers);            # in tokens, 0 where there is no state;
#                                       # a limit is a hash:
#       kind => 'bucket',               # or gcra, window
#       name => 'user', key => 'a',     # as in "ratelimit:user:{a}"
#       capacity => 10,                 # of a bucket;
#       refills => 1,                   # which gets some meanwhile
#       period => 86_400                # of gcra: seconds in which a token comes
#
#   is_spent($name, $code, @wanted);    # a test: after some time the code gives,
#                                       # for each [@which] of @wanted, the number
#                                       # behind it

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max sum0);
use Test::Builder ();

use RateLimit::Util qw(wait_until);

our @EXPORT = qw(spent is_spent);

# gcra.lua keeps the time at which a bucket is full, in 16ths of a microsecond
# since then
my $EPOCH = 1_700_000_000;
my $TICKS = 16_000_000;


sub spent {
    my ($limit, @servers) = @_;

    my $name = "ratelimit:$limit->{name}:{$limit->{key}}";

    return sum0 map { _spent($limit, $name, $_) } @servers;
}


sub _spent {
    my ($limit, $name, $server) = @_;

    if ($limit->{kind} eq 'window') {
        return sum0 map { (split /:/, $_)[1] }
                    @{ $server->cmd('ZRANGE', $name, 0, -1) };
    }

    if ($limit->{kind} eq 'gcra') {
        my $full_at = $server->cmd('GET', $name) // return 0;
        my $lacks = $full_at / $TICKS - ($server->time - $EPOCH);

        return sprintf '%.0f', max(0, $lacks) / $limit->{period};
    }

    my $tokens = $server->tokens($name) // return 0;

    my $spent = $limit->{capacity} - $tokens;

    # what comes meanwhile is much less than half a token

    return $limit->{refills} ? sprintf('%.0f', $spent) : $spent;
}


sub is_spent {
    my ($name, $spent, @wanted) = @_;

    my ($got, $wanted);

    wait_until(sub {
        ($got, $wanted) = ('', '');

        for (my $n = 0; $n < @wanted; $n += 2) {
            my @which = @{ $wanted[$n] };

            $wanted .= "$which[0] $which[1]: $wanted[$n + 1]\n";
            $got .= "$which[0] $which[1]: " . $spent->(@which) . "\n";
        }

        return $got eq $wanted;
    }, 10);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return Test::Builder->new->is_eq($got, $wanted, $name);
}


1;
