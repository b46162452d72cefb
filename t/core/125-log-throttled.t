# A minute of outage at full load, with a log level that shows what an operator
# wants to see: one server is killed, one hangs, one comes and goes all the
# time.  What is told is when it began, what fails, that it still does, and when
# it is over; never as many lines as there are requests, workers or attempts.
#
# May be run twice: servers are killed and stopped for a minute.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes qw(sleep time);

use RateLimit::Fault;
use RateLimit::Flood;
use RateLimit::Util qw(wait_until);

my $LINES = 100;        # in all, at most
my $MINUTE = 60;

my $fault = RateLimit::Fault->start(
    redis   => 3,
    workers => 4,
    http    => 'keepalive_requests 100000000;',
);
my $nginx = $fault->nginx;
my @workers = $nginx->workers;

my ($killed, $stopped, $flapping) = map { $fault->redis($_)->addr } 0 .. 2;


# How many lines say that about a shard.

sub lines {
    my ($shard, $text) = @_;

    return $nginx->log_count(qr/\[error\] .*ratelimit: redis \Q$shard\E $text/);
}


ok $fault->works, 'all workers are connected to all shards';

my $before = $nginx->log_count(qr/./);
my $flood = RateLimit::Flood::start(
    port => $nginx->port, connections => 16, batch => 50, timeout => 300,
    mark => 'X-Source',
    path => sub { '/?c=1000000&k=' . $_[0] % 100 },
);

my $requests = $fault->metric('decisions_total');

wait_until(sub { $fault->metric('decisions_total') > $requests + 1000 }, 20);

my $start = time;
my $flaps = 0;

$fault->redis(0)->kill9;
$fault->redis(1)->pause;

wait_until(sub {
    $fault->redis(2)->kill9;
    $fault->wait_state('circuit_open', 5, $flapping);
    $fault->redis(2)->start;
    $fault->wait_state('distributed', 15, $flapping);
    $flaps++;
    sleep 0.2;

    # also when the machine is slow: it is told once a minute

    return time > $start + $MINUTE
           && !grep { !lines($_, 'is still unavailable') } $killed, $stopped;
}, $MINUTE + 30);

my $states = join ' ', map { $fault->state($_) } $killed, $stopped;
my $outage = time - $start;

$fault->redis(0)->start;
$fault->redis(1)->resume;

for my $shard ($killed, $stopped, $flapping) {
    ok $fault->wait_state('distributed', 30, $shard),
       'the breaker of a shard is closed when it is back';
}

my $result = $flood->stop;
my $log = $nginx->error_log;
my $lines = $nginx->log_count(qr/./);
my $answers = sum0 values %{ $result->{marks} };

note sprintf '%.0f s, %d flaps, %d answers, %d lines', $outage, $flaps,
             $answers, $lines - $before;

is_deeply $result->{errors}, {}, 'every request got a complete answer';
is $answers, $result->{sent}, 'as many as were sent';
is_deeply [grep { !/^(?:200|429) (?:redis|local)$/ }
           keys %{ $result->{marks} }],
   [], 'by Redis or from memory';
cmp_ok $result->{marks}{'200 local'}, '>', 10_000, 'many from memory';
is_deeply [$nginx->workers], \@workers, 'the workers are the same';

is $states, 'circuit_open circuit_open', 'two breakers were open to the end';
cmp_ok $flaps, '>', 5, 'the third one opened and closed';
cmp_ok $lines, '<', $LINES, 'the log has less than a hundred lines in all'
    or diag $log;

for my $shard ($killed, $stopped) {
    my $failure = $shard eq $killed ? '(?:closed|refused)' : 'timeout';

    is lines($shard, 'is unavailable \(' . $failure . '\), limits of its keys '
                     . 'are local until it answers'), 1,
       'one line says that the breaker opened, and why';
    is lines($shard, 'is still unavailable after [6-9]\d s \(\w+\)$'), 1,
       'one that it still is, a minute later';

    # at its beginning some calls may still succeed

    my ($last) = reverse grep { /(?:shard|redis) \Q$shard\E is / }
                         split /\n/, $log;

    like $last, qr/\[error\] .* is available again after [6-9]\d s$/,
         'the last that it closed';
    cmp_ok lines($shard, 'is '), '<=', 8, 'and not many others';
}

like $log, qr/\[error\].* connect\(\) to \Q$killed\E failed \(111: /,
     'what is wrong with one of them is told';
like $log, qr/\[error\].* no answer from redis \Q$stopped\E: timeout/,
     'and with the other one';

# ten a minute; it may be the beginning of a third one

cmp_ok lines($flapping, 'is '), '<=', 10 * (1 + int 1 + $outage / $MINUTE),
       'of the changes of the third one a few are told';
cmp_ok $fault->metric('breaker_transitions_total', shard => $flapping), '>',
       lines($flapping, 'is '), 'while all are counted';

if ($fault->metric('breaker_transitions_total', shard => $flapping) > 20) {
    like $log, qr/\Q$flapping\E is .*, unlogged changes before this one: \d+$/m,
         'and the next line says how many are not';
}

$fault->finish;

done_testing;
