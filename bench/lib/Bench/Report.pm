package Bench::Report;

# From the results of all rounds to figures, targets, and a table.
#
#   my $report = Bench::Report->new($meta, \@cases, \@lone);
#   $report->table;  $report->targets;  $report->notes;     # text
#   $report->data;                                          # for JSON
#   $report->cases;                                         # with figures
#
# A case brings "results", one a round.  A figure is the median of its rounds.
# A ratio is the median of the ratios that each round has for itself, to the
# "base" of its result: limit_req right before and after it, so that what a
# machine does to both cancels out.

use strict;
use warnings;

my @FIGURES = qw(rps nginx redis sum calls p50 p99 mean passed degraded errors
                 others);


sub new {
    my ($class, $meta, $cases, $lone) = @_;

    my $self = bless {
        meta => $meta, cases => $cases, lone => $lone,
        by_id => { map { $_->{id} => $_ } @$cases },
    }, $class;

    for my $case (@$cases) {
        for my $name (@FIGURES) {
            $case->{median}{$name} = median(map { $_->{$name} }
                                            @{ $case->{results} });
        }

        $case->{ratio} = ratio($case, 'sum', 'nginx');
    }

    return $self;
}


sub cases { @{ $_[0]{cases} } }


# { value, low, high }: the median over the rounds, and between what it was.

sub ratio {
    my ($case, $name, $base_name) = @_;

    return spread(map { $_->{$name} / ($_->{base}{$base_name} || 1) }
                  grep { $_->{base} } @{ $case->{results} });
}


sub spread {
    my @sorted = sort { $a <=> $b } @_;

    return undef unless @sorted;
    return { value => median(@sorted), low => $sorted[0],
             high => $sorted[-1] };
}


sub median {
    my @sorted = sort { $a <=> $b } @_;

    return undef unless @sorted;
    return ($sorted[$#sorted / 2] + $sorted[@sorted / 2]) / 2;
}


# What is wanted.

sub goals {
    my ($self) = @_;

    my @goals;
    my $case = $self->{by_id};
    my $cpu = 'CPU of nginx + Redis / limit_req';

    for (['exact-hot', 1.25], ['exact-keys', 1.7],
         ['slow-keys', 1.87], ['gcra-keys', 1.5],
         ['denied', 1.15], ['denied-plain', 1.05],
         ['lease-hot', 1.1], ['lease-keys', 1.4],
         ['local-hot', 1.1], ['local-keys', 1.1])
    {
        my ($id, $most) = @$_;

        push @goals, { what => $case->{$id} ? $case->{$id}{title} : $id,
                       measure => $cpu, most => $most, id => $id,
                       got => $case->{$id} && $case->{$id}{ratio} };
    }

    my $exact = $case->{'exact-hot'};
    my $title = $exact ? $exact->{title} : 'exact-hot';

    push @goals, { what => $title, measure => 'requests/s / limit_req',
                   least => 0.8, id => 'exact-hot',
                   got => $exact && ratio($exact, 'rps', 'rps') };

    push @goals, { what => $title, measure => 'Redis calls a request',
                   most => 0.1, id => 'exact-hot',
                   got => $exact && spread(map { $_->{calls} }
                                           @{ $exact->{results} }) };

    push @goals, { what => 'a lone request', most => 1.5, id => 'lone',
                   measure => 'added latency / EVALSHA of redis-benchmark',
                   got => spread(map { $_->{ratio} } @{ $self->{lone} }) };

    for my $goal (@goals) {
        $goal->{family} = $goal->{id} =~ s/-.*//r;

        # as it is shown
        my $value = $goal->{got} ? sprintf('%.2f', $goal->{got}{value})
                                 : undef;

        $goal->{reached} = !defined $value ? undef
            : defined $goal->{most} ? $value <= $goal->{most}
            :                         $value >= $goal->{least};
    }

    return @goals;
}


sub targets {
    my ($self, $paint) = @_;

    my $absent = $self->{meta}{absent};
    my @goals = grep { $_->{got} || $absent->{ $_->{family} } } $self->goals;

    return '' unless @goals;

    my $text = "\n" . $paint->('Targets', 'bold')
               . " (1 worker, unix socket; in brackets the rounds)\n\n";

    my ($width) = sort { $b <=> $a } map { length $_->{what} } @goals;

    for my $goal (@goals) {
        my $word = !defined $goal->{reached} ? 'not measured'
                 : $goal->{reached} ? 'reached' : 'not reached';
        my $colour = !defined $goal->{reached} ? 'plain'
                   : $goal->{reached} ? 'green' : 'red';
        my $got = $goal->{got};

        $text .= '  ' . $paint->(sprintf('%-12s', $word), $colour)
            . sprintf("  %-*s  %-8s %-22s %s\n", $width, $goal->{what},
                      defined $goal->{most}
                          ? sprintf('<= %s', $goal->{most})
                          : sprintf('>= %s', $goal->{least}),
                      $got ? sprintf('%.2f  (%.2f to %.2f)',
                                     @$got{qw(value low high)})
                           : 'not in this build',
                      $goal->{measure});
    }

    if (my $lone = $self->lone) {
        $text .= sprintf "\n  A lone request: %.0f us without a limiter, "
            . "%.0f us with \"exact\";\n  the same EVALSHA takes "
            . "redis-benchmark %.0f us (medians).\n",
            @$lone{qw(none exact evalsha)};
    }

    return $text;
}


# The medians of the lone requests, or undef.

sub lone {
    my ($self) = @_;

    my @rounds = @{ $self->{lone} };

    return undef unless @rounds;

    my %lone;

    for my $name (qw(none exact evalsha ratio none_mean exact_mean
                     evalsha_mean))
    {
        $lone{$name} = median(map { $_->{$name} } @rounds);
    }

    return \%lone;
}


sub table {
    my ($self, $paint) = @_;

    return '' unless $self->cases;

    my @head = ('case', 'workers', 'redis by', 'req/s', 'nginx us', 'redis us',
                'sum us', 'ratio', 'p50 us', 'p99 us', 'calls/req', 'passed');
    my @rows;
    my @groups = map { $_->{workers} . ($_->{family} eq 'contest') }
                 $self->cases;

    for my $case ($self->cases) {
        my $m = $case->{median};

        push @rows, [
            $case->{title}, $case->{workers},
            $case->{transport} eq 'none' ? '-' : $case->{transport},
            sprintf('%.0f', $m->{rps}),
            sprintf('%.1f', $m->{nginx}),
            $case->{store} ? sprintf('%.1f', $m->{redis}) : '-',
            sprintf('%.1f', $m->{sum}),
            $case->{ratio} ? sprintf('%.2f', $case->{ratio}{value})
                : $case->{family} eq 'limit_req' ? '1' : '-',
            sprintf('%.0f', $m->{p50}), sprintf('%.0f', $m->{p99}),
            $case->{store} ? sprintf('%.3f', $m->{calls}) : '-',
            sprintf('%.0f%%', 100 * $m->{passed}) . $self->mark($case),
        ];
    }

    my @width = map { my $i = $_;
                      (sort { $b <=> $a } map { length $_->[$i] } \@head, @rows)
                      [0] } 0 .. $#head;

    my $line = sub {
        my @cell = @_;

        return join('  ', map { sprintf($_ ? "%$width[$_]s" : "%-$width[$_]s",
                                        $cell[$_]) } 0 .. $#cell) . "\n";
    };

    my $text = $paint->($line->(@head), 'bold');

    for my $i (0 .. $#rows) {
        $text .= "\n" if $i && $groups[$i] ne $groups[$i - 1];
        $text .= $line->(@{ $rows[$i] });
    }

    return $text . "\n  us: CPU microseconds a request, of all nginx workers "
        . "and of redis-server.\n  ratio: their sum to nginx of limit_req "
        . "with such keys and as many workers.\n";
}


# A case that did not do what it is there for: its figures say nothing.

sub doubts {
    my ($self, $case) = @_;

    my $m = $case->{median};
    my $expected = $case->{expect} == 200 ? $m->{passed} : 1 - $m->{passed};
    my @doubts;

    push @doubts, sprintf('%.1f%% were not answered with %d',
                          100 * (1 - $expected), $case->{expect})
        if $expected < 0.999;
    push @doubts, sprintf('%.0f requests without an answer', $m->{errors})
        if $m->{errors} > 0;
    push @doubts, sprintf('%.0f requests were decided without Redis',
                          $m->{degraded})
        if $case->{store} && $m->{degraded} > 0;

    return @doubts;
}


sub mark { $_[0]->doubts($_[1]) ? '!' : ' ' }


sub notes {
    my ($self) = @_;

    my @notes;
    my $others = median(map { $_->{median}{others} } $self->cases) // 0;

    for my $case ($self->cases) {
        push @notes, map { "! $case->{id}: $_" } $self->doubts($case);
    }

    push @notes, sprintf('! other processes took %.0f%% of the CPUs meanwhile: '
                         . 'these figures are noise', 100 * $others)
        if $others > 0.05;

    push @notes, map { "not in this build: $_ ($self->{meta}{absent}{$_})" }
                 sort keys %{ $self->{meta}{absent} };

    return join '', map { "  $_\n" } @notes;
}


sub data {
    my ($self) = @_;

    my @cases;

    for my $case ($self->cases) {
        push @cases, {
            (map { $_ => $case->{$_} }
                 qw(id title family kind transport conf median ratio)),
            workers => 0 + $case->{workers},
            rounds  => $case->{results},
            doubts  => [$self->doubts($case)],
        };
    }

    return {
        meta    => $self->{meta},
        cases   => \@cases,
        lone    => { median => $self->lone, rounds => $self->{lone} },
        targets => [map { +{ %$_, reached => !defined $_->{reached} ? undef
                                 : $_->{reached} ? \1 : \0 } } $self->goals],
    };
}


1;
