package RateLimit::Background;

# Code of a test that runs in another process, and what it returns.
#
#   my $task = RateLimit::Background->start(sub {
#       my ($told) = @_;
#       1 until $told->();              # true from when "stop" was called
#       return { some => 'result' };    # anything that Storable takes
#   });
#   ...
#   my $result = $task->stop;           # tells it, waits, gives the result; dies
#                                       # as the code has died
#   my $result = $task->wait;           # without telling it
#   $task->kill('TERM');                # ends it; there is no result
#
# A process whose object is gone is killed; never by a forked child.

use strict;
use warnings;

use POSIX ();
use Storable ();

use RateLimit::Util qw(reap);


sub start {
    my ($class, $code) = @_;

    pipe my $told, my $teller or die "pipe() failed: $!\n";
    pipe my $answer, my $answerer or die "pipe() failed: $!\n";

    my $pid = fork() // die "fork() failed: $!\n";

    if (!$pid) {
        close $_ for $teller, $answer;
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);

        my $select = '';
        vec($select, fileno $told, 1) = 1;

        my $result = eval {
            [scalar $code->(sub { select my $ready = $select, undef, undef, 0 })]
        };

        print $answerer Storable::freeze([$result, $@]);
        close $answerer;
        POSIX::_exit(0);
    }

    close $_ for $told, $answerer;

    return bless { pid => $pid, owner => $$, teller => $teller,
                   answer => $answer }, $class;
}


# Not by closing alone: programs that were started meanwhile may have that end,
# too.

sub stop {
    my ($self) = @_;

    local $SIG{PIPE} = 'IGNORE';

    syswrite $self->{teller}, '.';

    return $self->wait;
}


sub wait {
    my ($self) = @_;

    my $answer = $self->{answer};
    my $frozen = do { local $/; <$answer> };

    close $self->{teller};
    reap(delete $self->{pid}, 5);

    die "a process in the background has ended\n" unless length $frozen;

    my ($result, $error) = @{ Storable::thaw($frozen) };

    die $error unless $result;

    return $result->[0];
}


sub kill {
    my ($self, $signal) = @_;

    CORE::kill($signal // 'KILL', $self->{pid});
    reap(delete $self->{pid}, 5);
}


sub DESTROY {
    my ($self) = @_;

    return unless $self->{pid} && $self->{owner} == $$;

    local ($?, $!, $@);

    $self->kill;
}


1;
