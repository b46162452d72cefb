package RateLimit::Transcript;

# Shell commands with their output, as examples and the README show them: runs
# the commands and compares.
#
#   my @steps = RateLimit::Transcript::parse($text);
#   RateLimit::Transcript::check($name, $step, %replace) for @steps;
#
# TEXT: a command is a line that starts with "$ ", or, without any such line, the
# first line of a paragraph that starts with curl, for or redis-cli.  A command
# goes on while its lines end in a backslash.  What follows, up to the next
# command or paragraph, is output.  A step is a hash: command, output (lines).
#
# CHECK is one test: each line of the output is a line of the real one, in this
# order; there may be others between them.  "..." stands for any text, and two or
# more blanks, as between the columns of a table, for any two or more.  A time to
# wait (Retry-After, "retry_after" in JSON, t= in RateLimit, "again in 30 s" of
# ratelimitctl) may be less than shown, as time goes on.  %replace: text => text, in
# the command before it is run, and in the output.

use strict;
use warnings;

use Test::Builder ();

use RateLimit::Util qw(patience);


sub parse {
    my ($text) = @_;

    my $marked = $text =~ /^\$ /m;
    my $start = $marked ? qr/^\$ (.*)/ : qr/^((?:curl|for|redis-cli) .*)/;
    my $more = 0;               # the command goes on
    my $fresh = 1;              # a paragraph starts
    my @steps;

    for my $line (split /\n/, $text) {

        if ($more) {
            $steps[-1]{command} .= "\n$line";
            $more = $line =~ /\\$/;

        } elsif (($marked || $fresh) && $line =~ $start) {
            push @steps, { command => $1, output => [] };
            $more = $line =~ /\\$/;
            $fresh = 0;

        } elsif ($line =~ /\S/) {
            push @{ $steps[-1]{output} }, $line if @steps && !$fresh;

        } else {
            $fresh = 1;
        }
    }

    return @steps;
}


sub check {
    my ($name, $step, %replace) = @_;

    my $any = join '|', map { quotemeta } sort { length $b <=> length $a }
                        keys %replace;
    my $command = $step->{command};
    my @expected = @{ $step->{output} };

    if (length $any) {
        s/($any)/$replace{$1}/g for $command, @expected;
    }

    my @real = map { s/\s+$//r } _run($command);
    my @left = @real;
    my $test = Test::Builder->new;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for my $line (@expected) {
        shift @left while @left && !_same($left[0], $line);

        if (!@left) {
            $test->ok(0, $name);
            $test->diag("\$ $command\nhas no line: $line\n",
                        map { "    $_\n" } @real);
            return 0;
        }

        shift @left;
    }

    return $test->ok(@expected > 0, $name);
}


# The lines that it prints; it ends, one way or another.

sub _run {
    my ($command) = @_;

    open my $in, '-|', 'timeout', patience(30), 'sh', '-c',
         "exec 2>&1\n$command" or die "timeout: $!\n";
    my @lines = <$in>;
    close $in;

    return @lines;
}


sub _same {
    my ($real, $line) = @_;

    my @most;
    my $regex = '';

    for (split /(\.\.\.|(?:Retry-After: |"retry_after":|;t=|again in )\d+)/, $line, -1) {

        if (/^\.\.\.$/) {
            $regex .= '.*';

        } elsif (/^(Retry-After: |"retry_after":|;t=|again in )(\d+)$/) {
            $regex .= quotemeta($1) . '(\d+)';
            push @most, $2;

        } else {
            $regex .= quotemeta =~ s/(?:\\ ){2,}/ {2,}/gr;
        }
    }

    my @seconds = $real =~ /^$regex\s*$/ or return 0;

    for my $i (0 .. $#most) {
        return 0 if $seconds[$i] < 1 || $seconds[$i] > $most[$i];
    }

    return 1;
}


1;
