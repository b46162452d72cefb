# The sliding window counter of sliding_window_counter.lua, take.lua and
# refund.lua, against a real redis-server, a model of two counts, and the exact
# log: how far it may be from the log is stated in docs/algorithms.md.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use POSIX qw(ceil floor);

use RateLimit::Redis;
use RateLimit::Script;

my $SECOND = 1_000_000;
my $MINUTE = 60 * $SECOND;
my $DAY = 86400 * $SECOND;
my $NOON = 1_800_000_000 * $SECOND;     # some day in 2027

my $redis = RateLimit::Redis->start;
my $script = RateLimit::Script->new($redis);
my $start = $NOON - $NOON % $MINUTE;


sub short { return join ' ', @{ $script->short(@_) } }
sub one { return join ' ', @{ $script->one(@_) } }
sub state_of { return $redis->cmd('GET', $_[0]{key}) }


# Two counts, and what the scripts should reply.

sub expected {
    my ($m, $limit, $at, $times) = @_;

    my ($capacity, $length) = @$limit{qw(capacity length)};
    my $cost = $limit->{cost} // 1;
    my $period = floor($at / $length);

    $m->{period} //= $period;
    ($m->{before}, $m->{now}) = $period == $m->{period} + 1 ? ($m->{now}, 0)
                                                            : (0, 0)
        if $period != $m->{period};
    $m->{period} = $period;

    my $rest = ($period + 1) * $length - $at;
    my $left = max(0, $capacity - $m->{now} - ceil($m->{before} * $rest / $length));
    my $n = min($times, floor($left / $cost));

    $m->{now} += $n * $cost;
    $left -= $n * $cost;

    # as slowly as can be: the first moment at which it fits
    my $wait = 0;
    my $room = $capacity - $cost;

    if ($m->{now} > $room) {
        $wait = $rest + $length - floor($room * $length / $m->{now});
    } elsif ($m->{before}) {
        $wait = max(0, $rest - floor(($room - $m->{now}) * $length
                                     / $m->{before}));
    }

    my $reset = $m->{now} ? $rest + $length : $m->{before} ? $rest : 0;

    return ($n, $n ? $left : -1 - $left, $reset, $wait,
            $period * $length / 1000);
}


for my $by (\&short, \&one) {
    my $name = $by == \&short ? 'sliding_window_counter.lua' : 'take.lua';

    subtest "$name: what counts of the period before" => sub {
        my $limit = $script->counter(capacity => 10, length => $MINUTE,
                                     cost => 5);
        my $ms = $start / 1000;

        is $by->($limit, at => $start), "5 120000000 0 $ms", 'the first';
        is $by->($limit, at => $start), "0 120000000 90000000 $ms", 'the last';
        is $by->($limit, at => $start + 1), "-1 119999999 89999999 $ms",
           'one too many';
        is $by->($limit, at => $start + 90 * $SECOND - 1),
           '-5 30000001 1 ' . ($ms + 60_000), 'until half of it is gone';
        is $by->($limit, at => $start + 90 * $SECOND),
           '0 90000000 30000000 ' . ($ms + 60_000), 'then it fits';
        is state_of($limit), sprintf('%013d:%013d:10:%010d', $ms + 60_000,
                                     $ms + 120_000, 5), 'two counts';
        is $by->($limit, at => $start + 240 * $SECOND),
           '5 120000000 0 ' . ($ms + 240_000), 'nothing of it after two';
    };

    subtest "$name: clocks" => sub {
        my $limit = $script->counter(capacity => 2, length => $MINUTE);

        $by->($limit, at => $start) for 1 .. 2;
        like $by->($limit, at => $start - 10), qr/^-1 /,
             'a little behind: waits';
        like $by->($limit, at => $start - $DAY), qr/^-1 120000000 /,
             'set back: takes the count along';
        like $by->($limit, at => $start - $DAY + 2 * $MINUTE), qr/^1 /,
             'nobody is locked out';
    };
}


subtest 'times to live, several keys, a hierarchy' => sub {
    my @limits = map { $script->counter(capacity => 5, cost => 2) } 1 .. 3;

    is join(' ', @{ $script->short(\@limits, at => $start,
                                   times => [1, 2, 3]) }),
       join(' ', map { "$_ " . $start / 1000 } '1 3 120000000 0',
            '2 1 120000000 75000000', '2 1 120000000 75000000'),
       'as many as fit';

    my $ttl = $script->pttl($limits[0]);

    cmp_ok $ttl, '>', 119_000, 'it is kept until nothing counts';
    cmp_ok $ttl, '<', 128_500, 'and a part of its length more';

    my $log = $script->window(capacity => 1, length => $MINUTE);

    $script->take([$limits[0], $log], at => $start) for 1 .. 2;
    like state_of($limits[0]), qr/:0000000004\z/, 'all or nothing';

    my $before = $script->bytes_of(@limits);

    $script->take(\@limits, at => $start, peek => 1);
    is_deeply $script->bytes_of(@limits), $before, 'a preview changes nothing';
};


subtest 'refunds' => sub {
    my $limit = $script->counter(capacity => 10, cost => 2);

    $script->take([$limit], at => $start) for 1 .. 3;
    is $script->refund([$limit], id => $start / 1000), 1, 'the current period';
    like state_of($limit), qr/:0:0000000004\z/, 'two less';

    $script->take([$limit], at => $start + $MINUTE);
    is $script->refund([$limit], id => $start / 1000), 1, 'the one before';
    like state_of($limit), qr/:2:0000000002\z/, 'two less';
    cmp_ok $script->pttl($limit), '>', 0, 'its time to live stays';

    $script->take([$limit], at => $start + 2 * $MINUTE);
    is $script->refund([$limit], id => $start / 1000), 0, 'no other';
};


subtest 'keys that hold something else' => sub {
    for my $t (['SET', 'x'], ['SET', '12:30:45'], ['HSET', 'a', 'b']) {
        my $limit = $script->counter;
        my ($command, @value) = @$t;

        $redis->cmd($command, $limit->{key}, @value);
        like $script->short($limit, at => $start), qr/WRONGTYPE/, $command;
        like $script->take([$limit], at => $start), qr/WRONGTYPE/, 'take.lua';
    }

    for my $kind (qw(bucket gcra window fixed)) {
        my $limit = $script->counter(capacity => 3);
        my $other = $script->$kind(key => $limit->{key});

        for my $by (\&short, \&one) {
            $script->take([$other], at => $start);
            like $by->($limit, at => $start), qr/^2 /,
                 "state of a $kind is replaced";
        }

        ok !grep { /WRONGTYPE/ } $script->take([$other], at => $start),
           'and back';
    }
};


# Against the model, and the exact log: in no window more than
# capacity * (1 + the part of the current period that has passed).

for my $seed (1 .. 5) {
    srand $seed;

    subtest "a random walk, $seed" => sub {
        my $limit = $script->counter(capacity => 2 + int rand 20,
                                     length => 1000 * (10 + int rand 100_000));
        my $length = $limit->{length};
        my $at = $NOON + int rand $DAY;
        my $mean = $length / $limit->{capacity};
        my %model = (before => 0, now => 0);
        my ($wrong, $lenient, $most, @log) = (0, 0, 0);

        for (1 .. 1500) {
            my $own = { %$limit, cost => 1 + int rand min(3, $limit->{capacity}) };
            my $times = 1 + int rand 3;
            my ($n, @wanted) = expected(\%model, $own, $at, $times);

            unshift @wanted, $n if $times > 1;

            my $got = rand() < 0.5
                ? $script->short($own, at => $at,
                                 $times > 1 ? (times => $times) : ())
                : $script->take([$own], at => $at, times => $times);

            if ("@$got" ne "@wanted") {
                diag "at $at: @$got, not @wanted" if !$wrong++;
            }

            if ($n) {
                push @log, [$at, $n * $own->{cost}];
                shift @log while $log[0][0] <= $at - $length;

                my $used = sum0(map { $_->[1] } @log);

                $most = max($most, $used / $limit->{capacity});
                $lenient++ if $used > $limit->{capacity}
                                      * (1 + $at % $length / $length) + 1e-6;
            }

            $at += rand() < 0.05 ? int rand 2 * $length : int rand 1.5 * $mean;
        }

        is $wrong, 0, "$limit->{capacity} in $length us: as expected";
        is $lenient, 0, 'within the bound';
        cmp_ok $most, '<', 2, sprintf 'at most %.2f times the capacity', $most;
    };
}


subtest 'even traffic: as the log' => sub {
    my $counter = $script->counter(capacity => 60, length => $MINUTE);
    my $log = $script->window(capacity => 60, length => $MINUTE);
    my %passed;

    # two a second, a little out of step
    for my $i (0 .. 1200) {
        my $at = $start + 100_000 + $i * 500_000;

        $passed{counter}++ if $script->one($counter, at => $at)->[0] >= 0;
        $passed{log}++ if $script->one($log, at => $at)->[0] >= 0;
    }

    cmp_ok abs($passed{counter} / $passed{log} - 1), '<', 0.1,
           "$passed{counter} and $passed{log} in ten minutes";
};


done_testing();
