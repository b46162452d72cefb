package RateLimit::Calendar;

# Periods of the calendar by Perl's own time functions, to compare with those of
# the module.
#
#   my $month = RateLimit::Calendar->new('month', zone => -18000, anchor => 15);
#   my ($start, $end) = $month->at($us);    # us since the epoch, both
#   $month->length, $month->shift           # as the scripts want them
#
# zone: seconds ahead of UTC.  anchor: the first day of a month, or of a week,
# whose days count from 1, Monday.

use strict;
use warnings;

use POSIX qw(floor);
use Time::Local qw(timegm);

my %SECONDS = (minute => 60, hour => 3600, day => 86400, week => 7 * 86400);


sub new {
    my ($class, $unit, %opt) = @_;

    return bless { unit => $unit, zone => 0, anchor => 1, %opt }, $class;
}


sub length { return ($SECONDS{ $_[0]{unit} } // 0) * 1_000_000 }


sub shift {
    my ($self) = @_;

    my ($unit, $zone, $anchor) = @$self{qw(unit zone anchor)};

    # from March 1 of the year 0 to 1970
    return (719_468 - ($anchor - 1)) * 86400 + $zone if $unit eq 'month';

    $zone -= (3 + $anchor) * 86400 if $unit eq 'week';

    return $zone % $SECONDS{$unit};
}


sub at {
    my ($self, $us) = @_;

    my ($unit, $zone, $anchor) = @$self{qw(unit zone anchor)};
    my $s = floor($us / 1_000_000) + $zone;
    my ($start, $end);

    my (undef, $min, $hour, $day, $month, $year, $weekday) = gmtime $s;

    if ($unit eq 'month') {
        ($month, $year) = _before($month, $year) if $day < $anchor;

        $start = timegm(0, 0, 0, $anchor, $month, $year + 1900);
        ($month, $year) = $month == 11 ? (0, $year + 1) : ($month + 1, $year);
        $end = timegm(0, 0, 0, $anchor, $month, $year + 1900);

    } else {
        $hour = 0 if $unit eq 'day' || $unit eq 'week';
        $min = 0 if $unit ne 'minute';
        $start = timegm(0, $min, $hour, $day, $month, $year + 1900);
        $start -= ($weekday - $anchor) % 7 * 86400 if $unit eq 'week';
        $end = $start + $SECONDS{$unit};
    }

    return map { ($_ - $zone) * 1_000_000 } $start, $end;
}


sub _before {
    my ($month, $year) = @_;

    return $month == 0 ? (11, $year - 1) : ($month - 1, $year);
}


1;
