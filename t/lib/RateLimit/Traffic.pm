package RateLimit::Traffic;

# Random traffic, and what no window of it may exceed.
#
#   use RateLimit::Traffic;             # exports both
#
#   any_up_to($most);                   # an integer from 0, small ones as likely
#                                       # as large ones
#   fullest($length, [$time, $cost], ...);      # the most that any window of this
#                                       # length holds; an entry of time t counts
#                                       # until t + length, that moment excluded

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max);

our @EXPORT = qw(any_up_to fullest);


sub any_up_to {
    my ($most) = @_;

    return $most < 1 ? 0 : int(exp(rand log($most + 1))) - 1;
}


# The entries are in the order of their times.

sub fullest {
    my ($length, @log) = @_;

    my ($sum, $most, $first) = (0, 0, 0);

    for my $entry (@log) {
        $sum += $entry->[1];

        while ($log[$first][0] <= $entry->[0] - $length) {
            $sum -= $log[$first++][1];
        }

        $most = max($most, $sum);
    }

    return $most;
}


1;
