package Bench::Picture;

# The figures as a picture: CPU time a request, a bar a case, what nginx used
# and what Redis used one behind the other, and limit_req as a line through
# each group.  SVG, no library; by itself light or dark as the reader's system
# is, with a background of its own, so that it is readable on any page.
#
#   my $svg = Bench::Picture::svg($report);

use strict;
use warnings;

my $WIDTH  = 860;
my $LEFT   = 200;       # of the bars
my $RIGHT  = 690;       # their end, the figures follow
my $ROW    = 24;
my $BAR    = 15;
my $MARGIN = 20;

my $STYLE = <<'EOC';
  <style>
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif;
           fill: #24292f; }
    .title { font-size: 16px; font-weight: 600; }
    .group { font-weight: 600; }
    .dim { fill: #57606a; font-size: 12px; }
    .figure { font-variant-numeric: tabular-nums; }
    .back { fill: #ffffff; stroke: #d0d7de; }
    .nginx { fill: #2da06b; }
    .redis { fill: #d9583f; }
    .line { stroke: #24292f; stroke-width: 1.5; stroke-dasharray: 4 3; }
    .grid { stroke: #eaeef2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .dim { fill: #9198a1; }
      .back { fill: #0d1117; stroke: #30363d; }
      .nginx { fill: #2f9e6b; }
      .redis { fill: #e0654c; }
      .line { stroke: #e6edf3; }
      .grid { stroke: #21262d; }
    }
  </style>
EOC


sub svg {
    my ($report) = @_;

    my @groups = groups($report);
    my ($max) = sort { $b <=> $a } map { $_->{median}{sum} }
                map { @{ $_->{cases} } } @groups;

    return '' unless $max;

    my $scale = ($RIGHT - $LEFT) / $max;
    my $meta = $report->{meta};
    my $y = $MARGIN + 18;
    my @out;

    push @out, text($MARGIN, $y, 'CPU time of a request, microseconds',
                    'title');
    $y += 20;
    push @out, text($MARGIN, $y, "$meta->{connections} connections, nginx "
                    . "$meta->{nginx}, Redis $meta->{redis}, medians over "
                    . "$meta->{rounds} x $meta->{seconds} s", 'dim');

    push @out, legend($y - 20);

    $y += 14;
    my $top = $y;
    my @bars;

    for my $group (@groups) {
        $y += 24;
        push @bars, text($MARGIN, $y, $group->{title}, 'group');
        $y += 9;

        my $start = $y;
        my $base = $group->{base} && $group->{base}{median}{nginx} * $scale;

        for my $case (@{ $group->{cases} }) {
            my $m = $case->{median};
            my $nginx = $m->{nginx} * $scale;
            my $redis = $m->{redis} * $scale;
            my $middle = $y + $ROW / 2;

            push @bars, text($LEFT - 10, $middle + 4, label($case), '', 'end');
            push @bars, bar($LEFT, $middle, $nginx, 'nginx');
            push @bars, bar($LEFT + $nginx, $middle, $redis, 'redis')
                if $case->{store};

            my $figure = $case->{store}
                ? sprintf('%.1f + %.1f', $m->{nginx}, $m->{redis})
                : sprintf('%.1f', $m->{nginx});

            # behind the bar, but not on the line
            my $end = $nginx + $redis;
            $end = $base if $base && $base > $end;

            push @bars, text($LEFT + $end + 8, $middle + 4, $figure,
                             'dim figure');

            push @bars, text($WIDTH - $MARGIN, $middle + 4,
                             sprintf("%.2f \x{d7}", $case->{ratio}{value}),
                             'figure', 'end')
                if $case->{ratio};

            $y += $ROW;
        }

        push @bars, line($LEFT + $base, $start, $y, 'line') if $base;
    }

    # a line each 10 microseconds, or wider

    my $step = 10;
    $step *= 2 while $max / $step > 10;

    for (my $at = 0; $at <= $max; $at += $step) {
        push @out, line($LEFT + $at * $scale, $top + 10, $y, 'grid');
        push @out, text($LEFT + $at * $scale, $y + 17, $at, 'dim', 'middle');
    }

    push @out, text($WIDTH - $MARGIN, $y + 17, "\x{d7} limit_req", 'dim',
                    'end');

    my $height = $y + 17 + $MARGIN;

    return join '', <<"EOC", $STYLE, back($height), @out, @bars, "</svg>\n";
<svg xmlns="http://www.w3.org/2000/svg" width="$WIDTH" height="$height"
     viewBox="0 0 $WIDTH $height" role="img"
     aria-label="CPU time of a request by kind of limit">
EOC
}


# By keys, with one worker if there is any such case.

sub groups {
    my ($report) = @_;

    my @cases = $report->cases;
    my ($workers) = sort { $a <=> $b } map { $_->{workers} } @cases;
    my ($none) = grep { $_->{family} eq 'none' && $_->{workers} == $workers }
                 @cases;
    my @groups;

    for (['hot', 'Hot key'],
         ['keys', Bench::Cases::commas($report->{meta}{keys}) . ' keys'],
         ['denied', 'All denied'],
         ['three', 'Three limits, hot key'],
         ['three-keys', 'Three limits, '
                        . Bench::Cases::commas($report->{meta}{keys})
                        . ' keys'])
    {
        my ($kind, $title) = @$_;
        my @members = grep { $_->{kind} eq $kind
                             && $_->{workers} == $workers } @cases;

        next unless @members;

        unshift @members, $none if $none && $kind eq 'hot';

        my ($base) = grep { $_->{family} eq 'limit_req' } @members;

        push @groups, { title => $title, cases => \@members, base => $base };
    }

    return @groups;
}


# The group says which keys.

sub label {
    my ($case) = @_;

    my $label = $case->{title};

    if ($case->{family} ne 'contest') {
        $label =~ s/, (?:hot key|[\d,]+ keys|three limits|all denied)//g;
        $label =~ s/^all denied$/exact, with headers/;
        $label =~ s/^all denied, (?=no headers)/exact, /;
        $label =~ s/^three limits$/exact/;
    }

    $label .= ', TCP' if $case->{transport} eq 'tcp';

    return $label;
}


sub legend {
    my ($y) = @_;

    my $x = $RIGHT - 70;

    return (
        bar($x, $y - 5, 12, 'nginx'), text($x + 18, $y, 'nginx', 'dim'),
        bar($x + 66, $y - 5, 12, 'redis'), text($x + 84, $y, 'Redis', 'dim'),
        line($x + 138, $y - 12, $y + 3, 'line'),
        text($x + 146, $y, 'limit_req', 'dim'),
    );
}


sub back {
    my ($height) = @_;

    return sprintf qq(  <rect class="back" x="0.5" y="0.5" width="%d" )
                   . qq(height="%d" rx="6"/>\n), $WIDTH - 1, $height - 1;
}


sub bar {
    my ($x, $middle, $width, $class) = @_;

    return sprintf qq(  <rect class="%s" x="%.1f" y="%.1f" width="%.1f" )
                   . qq(height="%d"/>\n),
                   $class, $x, $middle - $BAR / 2, $width, $BAR;
}


sub line {
    my ($x, $from, $to, $class) = @_;

    return sprintf qq(  <line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" )
                   . qq(y2="%.1f"/>\n), $class, $x, $from, $x, $to;
}


sub text {
    my ($x, $y, $text, $class, $anchor) = @_;

    $text =~ s/&/&amp;/g;
    $text =~ s/</&lt;/g;
    $text =~ s/>/&gt;/g;

    return sprintf qq(  <text x="%.1f" y="%.1f"%s%s>%s</text>\n), $x, $y,
                   $class ? qq( class="$class") : '',
                   $anchor ? qq( text-anchor="$anchor") : '', $text;
}


1;
