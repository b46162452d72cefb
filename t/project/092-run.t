# "make run" with each topology: the servers are real, what it tells one to try
# answers as it says, and nothing is left when it ends.
#
# May be run twice: it starts whole fleets and waits for them.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Load;
use RateLimit::Transcript;
use RateLimit::Util qw(find_program free_port patience slurp wait_until);

my $module = $ENV{RATELIMIT_MODULE};
my $binary = $ENV{TEST_NGINX_BINARY} || 'nginx';

plan skip_all => 'the module is compiled in' if !length($module // '');


# Starts it and reads until it has said everything; returns its pid, the text,
# and the end of the pipe that it writes to.

sub run {
    my (%env) = @_;

    local @ENV{keys %env} = values %env;
    local $ENV{PORT} = free_port();

    my $nginx = $binary =~ m{/} ? $binary : find_program($binary);
    my $pid = open my $out, '-|', "exec tools/run.sh $nginx $module 2>&1"
        or die "run.sh: $!\n";

    my $text = '';

    local $SIG{ALRM} = sub { die "it says no more than:\n$text\n" };
    alarm patience(60);

    while (defined(my $line = <$out>)) {
        $text .= $line;
        last if $line =~ /Press Ctrl-C to stop everything/;
    }

    alarm 0;

    return ($pid, $text, $out);
}


# Those of its processes, as it names them, that live.

sub alive {
    my ($text) = @_;

    return grep { kill 0, $_ } $text =~ /\bpid (\d+)/g;
}


my %CASES = (
    shards   => {},
    cluster  => { TOPOLOGY => 'cluster' },
    sentinel => { TOPOLOGY => 'sentinel' },
    tls      => { TOPOLOGY => 'tls' },
    managed  => { TOPOLOGY => 'tls', EXAMPLE => 'managed' },
);

for my $name (sort keys %CASES) {
    subtest $name => sub {
        my ($pid, $text, $out) = run(%{ $CASES{$name} });
        my ($dir) = $text =~ m{config\s+(\S+)/example\.conf};

        ok $dir && -d $dir, 'it is there' or diag $text;
        cmp_ok scalar(alive($text)), '>', 1, 'with its processes';

        my ($port) = $text =~ m{^\s+console\s+http://127\.0\.0\.1:(\d+)/console/$}m;
        my $page = RateLimit::Load::get($port // 0, '/console/');

        is $page->{status}, 200, 'the console';
        like RateLimit::Load::get($port // 0, '/ratelimit/')->{body} // '',
             qr/"write":true/, 'can write';

        my ($try) = $text =~ /^Try it[^\n]*\n(.*?)^To see /ms;
        my @steps = RateLimit::Transcript::parse(($try // '') =~ s/^ {4}//mgr);

        cmp_ok scalar @steps, '>=', 2, 'there is something to try';

        for my $step (grep { @{ $_->{output} } } @steps) {
            my ($first) = $step->{command} =~ /^([^\n]{1,60})/;
            RateLimit::Transcript::check($first, $step);
        }

        my $log = slurp("$dir/logs/error.log");

        unlike $log, qr/\[(?:alert|emerg)\]/, 'nothing alarming in the log';

        kill 'INT', $pid;

        ok wait_until(sub { !alive($text) }, 30), 'Ctrl-C ends it all';
        close $out;
        ok !-e $dir, 'and leaves nothing behind';
    };
}


done_testing();
