# The fixed window of fixed_window.lua, take.lua and refund.lua, against a real
# redis-server and a plain count: a period never has more than the limit, the
# next one begins on time, over leap days and the ends of years, in all time
# zones; and no clock that is set locks anybody out.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min);
use Time::Local qw(timegm);

use RateLimit::Calendar;
use RateLimit::Redis;
use RateLimit::Script;

my $SECOND = 1_000_000;
my $MINUTE = 60 * $SECOND;
my $HOUR = 60 * $MINUTE;
my $DAY = 24 * $HOUR;
my $NOON = 1_800_000_000 * $SECOND;     # some day in 2027

my $redis = RateLimit::Redis->start;
my $script = RateLimit::Script->new($redis);


sub utc { return timegm(reverse(@_[3 .. 5]), $_[2], $_[1] - 1, $_[0]) * $SECOND }


# A limit of a period of the calendar.

sub calendar {
    my ($unit, %opt) = @_;

    my %own = map { $_ => delete $opt{$_} } grep { exists $opt{$_} }
              qw(zone anchor);
    my $calendar = RateLimit::Calendar->new($unit, %own);

    return $script->fixed(length => $calendar->length,
                          shift => $calendar->shift, calendar => $calendar,
                          %opt);
}


sub period_of {
    my ($limit, $at) = @_;

    return $limit->{calendar}->at($at) if $limit->{calendar};

    my $start = $at - $at % $limit->{length};

    return ($start, $start + $limit->{length});
}


sub short { return join ' ', @{ $script->short(@_) } }
sub one { return join ' ', @{ $script->one(@_) } }
sub state_of { return $redis->cmd('GET', $_[0]{key}) }


for my $by (\&short, \&one) {
    my $name = $by == \&short ? 'fixed_window.lua' : 'take.lua';

    subtest "$name: the first, the last, one too many, the next" => sub {
        my $limit = $script->fixed(capacity => 3, length => $MINUTE);
        my $start = $NOON - $NOON % $MINUTE;
        my $ms = $start / 1000;

        is $by->($limit, at => $start + 1), '2 ' . ($MINUTE - 1) . " $ms",
           'the first';
        is $by->($limit, at => $start + $SECOND), "1 59000000 $ms", 'another';
        is $by->($limit, at => $start + $MINUTE - 2), "0 2 $ms", 'the last';
        is $by->($limit, at => $start + $MINUTE - 1), "-1 1 $ms",
           'one too many';
        is $by->($limit, at => $start + $MINUTE),
           "2 $MINUTE " . ($ms + 60_000), 'the next period';
        is state_of($limit), sprintf('%013d:%013d:%010d', $ms + 60_000,
                                     $ms + 120_000, 1), 'its state';
    };

    subtest "$name: months, over leap days and ends of years" => sub {
        for my $t (['2024-02', [2024, 2, 29, 23, 59, 59], [2024, 3, 1]],
                   ['2023-12', [2023, 12, 31, 23, 59, 59], [2024, 1, 1]],
                   ['2100-02', [2100, 2, 28, 23, 59, 59], [2100, 3, 1]],
                   ['2025-04', [2025, 4, 30, 23, 59, 59], [2025, 5, 1]])
        {
            my ($month, $now, $next) = @$t;
            my $limit = calendar('month', capacity => 1);
            my $end = utc(@$next, 0, 0, 0);

            like $by->($limit, at => utc(@$now)), qr/^0 1000000 /,
                 "$month: a second is left";
            like $by->($limit, at => $end - 1), qr/^-1 1 /,
                 'denied to the last microsecond';
            like $by->($limit, at => $end), qr/^0 \d+ @{[$end \/ 1000]}\z/,
                 'and the next month has begun';
        }
    };

    subtest "$name: a clock that is a little behind waits" => sub {
        my $limit = $script->fixed(capacity => 2, length => $MINUTE);
        my $start = $NOON - $NOON % $MINUTE;

        $by->($limit, at => $start - 5) for 1 .. 2;
        like $by->($limit, at => $start + 5), qr/^1 /, 'the next period';
        like $by->($limit, at => $start - 10), qr/^0 60000010 /,
             'a clock set back by an instant counts in the next period';
        like $by->($limit, at => $start - 10), qr/^-1 60000010 /,
             'not again in the last one';
        like $by->($limit, at => $start + $MINUTE), qr/^1 /, 'then all is well';
    };

    subtest "$name: a clock that is set back locks nobody out" => sub {
        my $limit = $script->fixed(capacity => 2, length => $MINUTE);
        my $start = $NOON - $NOON % $MINUTE;

        $by->($limit, at => $start) for 1 .. 2;
        like $by->($limit, at => $start - $DAY), qr/^-1 60000000 /,
             'what was taken is taken along';
        like $by->($limit, at => $start - $DAY + $MINUTE), qr/^1 /,
             'until the end of that period';
    };

    subtest "$name: a period that is changed" => sub {
        my $limit = calendar('day', capacity => 5);

        $by->($limit, at => $NOON) for 1 .. 3;

        my $month = calendar('month', capacity => 5, key => $limit->{key});
        my ($start, $end) = period_of($month, $NOON);

        like $by->($month, at => $NOON), qr/^1 /,
             'a day counts in its month';
        cmp_ok $script->pttl($limit), '>=', ($end - $NOON) / 1000,
               'and is kept for as long';
        like $by->($limit, at => $NOON), qr/^4 /,
             'what was taken in a month is not what was taken today';
    };
}


subtest 'times to live: until the end, and spread after it' => sub {
    my @ttls;
    my $start = $NOON - $NOON % $DAY;
    my $limit = $script->fixed(length => $DAY);

    for (1 .. 200) {
        my $key = $script->fixed(length => $DAY);

        $script->short($key, at => $start + 1000);
        push @ttls, $script->pttl($key);
    }

    cmp_ok min(@ttls), '>', 86_390_000, 'none ends before the period';
    cmp_ok max(@ttls), '<', 86_400_000 + 3_600_000, 'nor lives much longer';

    my %minutes = map { int(($_ - 86_390_000) / 60_000) => 1 } @ttls;

    cmp_ok scalar keys %minutes, '>', 45, 'and there is no minute for all';

    $script->short($limit, at => $start);
    my $ttl = $script->pttl($limit);
    $script->short($limit, at => $start + $HOUR);
    $script->take([$limit], at => $start + $HOUR);
    cmp_ok abs($script->pttl($limit) - $ttl), '<', 10_000,
           'it is set once a period';
};


subtest 'several keys, several requests' => sub {
    my @limits = map { $script->fixed(capacity => 5, cost => 2) } 1 .. 3;
    my $at = $NOON - $NOON % $MINUTE;
    my $ms = $at / 1000;

    is join(' ', @{ $script->short(\@limits, at => $at, times => [1, 2, 3]) }),
       "1 3 $MINUTE $ms 2 1 $MINUTE $ms 2 1 $MINUTE $ms", 'as many as fit';
    is join(' ', @{ $script->short(\@limits, at => $at) }),
       "1 $MINUTE $ms -2 $MINUTE $ms -2 $MINUTE $ms", 'and again';
    is join(' ', @{ $script->take([$limits[0]], at => $at, times => 4) }),
       "0 -2 $MINUTE $ms", 'by take.lua';
};


subtest 'a hierarchy: all or nothing' => sub {
    my $day = calendar('day', capacity => 10);
    my $month = calendar('month', capacity => 2);
    my $bucket = $script->bucket(capacity => 5);
    my $at = $NOON;

    for (1 .. 3) {
        $script->take([$day, $month, $bucket], at => $at);
    }

    like state_of($day), qr/:0000000002\z/, 'the day';
    like state_of($month), qr/:0000000002\z/, 'the month';
    is $script->fields_of($bucket)->{tokens}, 3, 'the bucket';

    my $before = $script->bytes_of($day, $month);

    $script->take([$day, $month], at => $at, peek => 1);
    is_deeply $script->bytes_of($day, $month), $before,
              'a preview changes nothing';

    my $shadow = { %$month, shadow => 1 };
    my $r = $script->take([$day, $shadow], at => $at);

    cmp_ok $r->[0], '==', 7, 'a limit in a dry run denies nobody';
    is $r->[3], -1, 'and says that it would';
};


subtest 'refunds: to the period that was taken from, and to no other' => sub {
    my $limit = $script->fixed(capacity => 5, cost => 2);
    my $start = $NOON - $NOON % $MINUTE;

    $script->take([$limit], at => $start) for 1 .. 2;
    is $script->refund([$limit], id => $start / 1000), 1, 'given back';
    like state_of($limit), qr/:0000000002\z/, 'two less';
    is $script->refund([$limit, $limit], id => $start / 1000), 2, 'and again';
    like state_of($limit), qr/:0000000000\z/, 'never below zero';

    $script->take([$limit], at => $start + $MINUTE);
    is $script->refund([$limit], id => $start / 1000), 0,
       'a period that has ended gets nothing';
    like state_of($limit), qr/:0000000002\z/, 'nor does the next one';

    $redis->cmd('DEL', $limit->{key});
    is $script->refund([$limit], id => $start / 1000), 0, 'a missing key';
    $redis->cmd('SET', $limit->{key}, 'x');
    is $script->refund([$limit], id => $start / 1000), 0, 'a foreign one';
    is state_of($limit), 'x', 'which stays';
};


subtest 'keys that hold something else' => sub {
    my @foreign = (['SET', 'x'], ['SET', '12:30:45'], ['SADD', 'x'],
                   ['HSET', 'a', 'b']);
    my $at = $NOON;

    for my $t (@foreign) {
        my $limit = $script->fixed;
        my ($command, @value) = @$t;

        $redis->cmd($command, $limit->{key}, @value);
        my $before = $script->bytes_of($limit);

        like $script->short($limit, at => $at), qr/WRONGTYPE/, "$command";
        like $script->take([$limit], at => $at), qr/WRONGTYPE/, 'take.lua';
        is_deeply $script->bytes_of($limit), $before, 'is left alone';
    }

    for my $kind (qw(bucket gcra window)) {
        my $limit = $script->fixed(capacity => 3);
        my $other = $script->$kind(key => $limit->{key});

        $script->take([$other], at => $at);
        like short($limit, at => $at), qr/^2 /, "state of a $kind is replaced";

        $script->take([$other], at => $at);
        like one($limit, at => $at), qr/^2 /, 'by take.lua as well';

        ok !ref $script->short($other, at => $at), 'and back'
            if $kind ne 'window';
    }
};


subtest 'by the clocks of nginx' => sub {
    my $limit = $script->fixed(capacity => 2);
    my $start = $NOON - $NOON % $MINUTE;
    my %opt = (clock => 'nginx', at => $NOON + $DAY);

    like one($limit, %opt, nginx => $start), qr/^1 /, 'a machine';
    like one($limit, %opt, nginx => $start - 1000), qr/^0 /,
         'one that is behind waits for the first';
    like one($limit, %opt, nginx => $start - 1000), qr/^-1 /, 'and both count';
    like $script->take([$limit], %opt, nginx => $start - 2 * $MINUTE),
         qr/CLOCK/, 'one that is far behind is told';
};


# Both scripts, all kinds of periods, random times and costs, and a clock that
# now and then jumps, against a count for each period.

for my $seed (1 .. 6) {
    srand $seed;

    subtest "a random walk, $seed" => sub {
        my $calendar = $seed % 2;
        my @units = qw(minute hour day week month);
        my $unit = $units[rand @units];
        my $limit = $calendar
            ? calendar($unit, zone => 900 * int(rand(100) - 48),
                       anchor => 1 + int rand($unit eq 'week' ? 7 : 28))
            : $script->fixed(length => 1000 * (1 + int rand 100_000));

        $limit->{capacity} = 1 + int rand 20;

        my $at = utc(2023 + int rand 3, 1 + int rand 12, 1, 0, 0, 0);
        my ($start, $end) = period_of($limit, $at);
        my $mean = ($end - $start) / $limit->{capacity};
        my ($used, $since, $wrong, $passed) = (0, -1, 0, 0);

        for (1 .. 1500) {
            my $cost = 1 + int rand min(3, $limit->{capacity});
            my $own = { %$limit, cost => $cost };
            my $times = 1 + int rand 3;

            ($start, $end) = period_of($limit, $at);

            if ($start != $since) {
                $used = 0;
                $since = $start;
            }

            my $fit = int(($limit->{capacity} - $used) / $cost);
            my $n = min($times, $fit);

            $used += $n * $cost;
            $passed += $n;

            my $left = $limit->{capacity} - $used;
            my @wanted = ($n ? $left : -1 - $left, $end - $at, $start / 1000);

            unshift @wanted, $n if $times > 1;

            my $got = rand() < 0.5
                ? $script->short($own, at => $at,
                                 $times > 1 ? (times => $times) : ())
                : $script->take([$own], at => $at, times => $times);

            if ("@$got" ne "@wanted") {
                diag "at $at: @$got, not @wanted" if !$wrong++;
            }

            # to the very end of a period, or anywhere
            $at = rand() < 0.1 ? $end - int(rand 2) : $at + int rand $mean;
        }

        is $wrong, 0, "$unit, $limit->{capacity}: 1500 calls as expected";
        cmp_ok $passed, '>', 100, 'many passed';
    };
}


done_testing();
