package RateLimit::Metrics;

# What "ratelimit_metrics" says, for tests that compare it with what they did.
#
#   my $metrics = RateLimit::Metrics::fetch($port);     # at "/metrics": a hash,
#                       # name => list of samples: hashes of labels, and "value"
#   RateLimit::Metrics::sum($metrics, 'redis_calls_total', shard => $addr);
#                       # the sum of all samples that have these labels; the
#                       # name without "nginx_ratelimit_"
#
# Most tests have an nginx to ask: $nginx->metric('redis_calls_total').

use strict;
use warnings;

use Carp ();
use JSON::PP ();
use List::Util qw(sum0);

use RateLimit::Load ();


sub fetch {
    my ($port) = @_;

    my $response = RateLimit::Load::get($port, '/metrics?format=json');

    Carp::croak("no metrics: $response->{status}")
        unless $response->{status} == 200;

    return JSON::PP::decode_json($response->{body});
}


# A name that does not exist would be a test that can't fail.

sub sum {
    my ($metrics, $name, %labels) = @_;

    my $samples = $metrics->{"nginx_ratelimit_$name"}
                  // Carp::croak("no metric \"$name\"");

    return sum0 map { $_->{value} }
           grep { my $sample = $_;
                  !grep { ($sample->{$_} // '') ne $labels{$_} } keys %labels }
           @$samples;
}


1;
