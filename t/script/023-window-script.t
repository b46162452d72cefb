# The sliding window log of take.lua, and refund.lua, against a real
# redis-server: no window anywhere holds more than the limit, nobody is denied
# without need, and what was given back leaves no trace.
#
# An entry of time t counts until t + length, that moment excluded.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use POSIX qw(floor);

use RateLimit::Redis;
use RateLimit::Script;
use RateLimit::Traffic;
use RateLimit::Util qw(wait_until);

my $NOON = 1_800_000_000_000_000;       # us, some day in 2027
my $SECOND = 1_000_000;
my $MINUTE = 60 * $SECOND;
my $HOUR = 3600 * $SECOND;
my $DAY = 24 * $HOUR;

my $redis = RateLimit::Redis->start;
my $script = RateLimit::Script->new($redis);


# A plain list that does what the script should: what it replies for this cost
# at this time, [t, until the oldest leaves, until the cost fits].

sub expected {
    my ($limit, $now, $log) = @_;

    my ($capacity, $length) = @$limit{qw(capacity length)};
    my $cost = $limit->{cost} // 1;
    my @inside = grep { $_->[0] > $now - $length } @$log;
    my $used = sum0(map { $_->[1] } @inside);
    my $left = max(0, $capacity - $used);
    my $oldest = @inside ? $inside[0][0] + $length - $now : 0;

    if ($used + $cost <= $capacity) {
        return [$left, $oldest, 0];
    }

    my $wait = 0;

    for my $entry (@inside) {
        $used -= $entry->[1];
        $wait = $entry->[0] + $length - $now;
        last if $used + $cost <= $capacity;
    }

    return [-1 - $left, $oldest, $wait];
}


# Takes, and says what the list expects of that; adds to the list what passes.

sub take_both {
    my ($limit, $now, $log, %opt) = @_;

    my $wanted = expected($limit, $now, $log);
    my $cost = $limit->{cost} // 1;

    if ($wanted->[0] >= 0) {
        push @$log, [$now, $cost];
        $wanted->[0] -= $cost;
        $wanted->[1] ||= $limit->{length};
    }

    my $got = $script->one($limit, at => $now, %opt);

    return ("@$got", "@$wanted");
}


subtest 'the first, the last, one too many, and the next' => sub {
    my $limit = $script->window(capacity => 3, length => $MINUTE);
    my $take = sub { $script->one($limit, at => $NOON + $_[0] * $SECOND) };

    is_deeply $take->(0), [2, $MINUTE, 0], 'two left, for a minute';
    is_deeply $take->(10), [1, 50 * $SECOND, 0], 'one left';
    is_deeply $take->(20), [0, 40 * $SECOND, 0], 'none left';
    is_deeply $take->(30), [-1, 30 * $SECOND, 30 * $SECOND],
              'denied, until the oldest leaves';
    is_deeply $take->(59.999999), [-1, 1, 1], 'a microsecond before';
    is_deeply $take->(60), [0, 10 * $SECOND, 0],
              'passed; now the second is the oldest';
    is_deeply $take->(60), [-1, 10 * $SECOND, 10 * $SECOND], 'denied';
    is_deeply $take->(200), [2, $MINUTE, 0], 'all have left';
};


subtest 'the state is readable' => sub {
    my $limit = $script->window(capacity => 10, length => $MINUTE);

    $script->take([{ %$limit, cost => 2 }], at => $NOON, nginx => $NOON + 5,
                  id => 'a');
    $script->take([{ %$limit, cost => 3 }], at => $NOON + 1, id => 'b:c');

    is $redis->cmd('TYPE', $limit->{key}), 'zset', 'a sorted set';
    is_deeply $redis->cmd('ZRANGE', $limit->{key}, 0, -1, 'WITHSCORES'),
              ["0000000000000002:2:@{[$NOON + 5]}:a", $NOON,
               "0000000000000005:3:@{[$NOON + 1]}:b:c", $NOON + 1],
              'total, cost, the other clock\'s time, id; by time';
};


# The heart of it.  Arrivals in bursts and pauses, costs small and large, limits
# from one to thousands.

subtest 'random arrivals: the limit holds in every window, all else passes'
    => sub
{
    srand 21;

    my $arrivals = 0;

    for my $case ([1, 10 * $SECOND, 1, 600], [10, $SECOND, 1, 1200],
                  [10, $MINUTE, 4, 1500], [100, $MINUTE, 9, 2500],
                  [5, 1000, 2, 600], [1000, $HOUR, 300, 1500],
                  [2000, 3 * $HOUR, 100, 1500],
                  [300_000, $DAY, 100_000, 800])
    {
        my ($capacity, $length, $costs, $n) = @$case;
        my $limit = $script->window(capacity => $capacity, length => $length,
                                    ttl => 1_000_000_000);
        my $now = $NOON;
        my ($passed, $denied) = (0, 0);
        my (@log, @wrong, @waits, @ttls, @added);

        # such that several times the limit is asked for

        my $pause = $length / $capacity * $costs / log($costs + 1);

        for (1 .. $n) {
            my $kind = rand;

            $now += $kind < 0.3 ? 0
                  : $kind < 0.5 ? any_up_to(50)
                  : $kind < 0.99 ? int rand $pause
                  : any_up_to(2 * $length);

            # to the very microsecond at which one of the oldest leaves

            if (rand > 0.9) {
                my @inside = grep { $_->[0] > $now - $length } @log;
                my $leaves = @inside ? $inside[rand min(3, scalar @inside)][0]
                                       + $length - int rand 2 : 0;
                $now = $leaves if $leaves > $now;
            }

            my $call = { %$limit, cost => 1 + any_up_to($costs - 1) };
            my $entries = @log;
            my ($got, $wanted) = take_both($call, $now, \@log);

            push @wrong, "$got instead of $wanted" if $got ne $wanted;

            my ($t, undef, $wait) = split / /, $got;

            if ($t >= 0) {
                $passed++;
                push @ttls, $now if $script->pttl($limit) < 900_000_000;
                next;
            }

            $denied++;

            # waiting so long passes, a microsecond less does not

            my ($then) = @{ $script->one($call, at => $now + $wait,
                                         peek => 1) };
            my ($before) = @{ $script->one($call, at => $now + $wait - 1,
                                           peek => 1) };

            push @waits, $wait if $then < 0 || $before >= 0;
        }

        $arrivals += $n;

        my $name = "$capacity in $length us";

        is "@wrong[0 .. min(2, $#wrong)]", '', "$name: as a plain list does";
        is "@waits", '', "waits are exact ($denied denied)";
        cmp_ok fullest($length, @log), '<=', $capacity,
               "no window of $passed admitted holds more than the limit";
        cmp_ok fullest($length, @log), '>', $capacity * 0.8,
               'and some are full';
        is "@ttls", '', 'each set a time to live';

        # what Redis has is what is left of the log

        my $left = $script->log_of($limit);
        my $cut = $log[-1][0] - $length;

        is_deeply [map { "$_->[0] $_->[1]" } @$left],
                  [map { "$_->[0] $_->[1]" } grep { $_->[0] > $cut } @log],
                  scalar(@$left) . ' entries are left';
    }

    cmp_ok $arrivals, '>=', 9000, "$arrivals arrivals";
};


# Several requests in one call: as many entries' worth as fit, in one entry.

subtest 'several requests at once: as many as fit' => sub {
    my $limit = $script->window(capacity => 10);
    my @call = (%$limit, cost => 3);

    is_deeply $script->one({ @call }, at => $NOON, times => 2, id => 'a'),
              [2, 4, $MINUTE, 0], 'two of two';
    is_deeply $script->log_of($limit), [[$NOON, 6, 'a']], 'one entry of both';
    is_deeply $script->one({ @call }, at => $NOON + $SECOND, times => 5,
                           id => 'b'), [1, 1, 59 * $SECOND, 0], 'one of five';

    my $bytes = $script->bytes_of($limit);

    is_deeply $script->one({ @call }, at => $NOON + 2 * $SECOND, times => 5),
              [0, -2, 58 * $SECOND, 58 * $SECOND],
              'none of five, until the first two leave';
    is_deeply $script->bytes_of($limit), $bytes, 'which changes nothing';

    is_deeply $script->one({ @call }, at => $NOON + $MINUTE, times => 5,
                           peek => 1), [2, 7, $SECOND, 0],
              'a look: two would pass';
    is_deeply $script->one({ @call }, at => $NOON + $MINUTE, times => 5),
              [2, 1, $SECOND, 0], 'and they do';
};


subtest 'several requests at once: as so many single ones' => sub {
    srand 51;

    for my $length (10 * $SECOND, 3 * $HOUR) {
        my ($one, $many) = map { $script->window(capacity => 30,
                                                 length => $length) } 1, 2;
        my ($now, $passed, $partly) = ($NOON, 0, 0);
        my @wrong;

        for my $n (1 .. 300) {
            $now += int rand $length / 2;

            my $times = 2 + int rand 8;
            my @call = (cost => 1 + int rand 3);

            my @single = map { $script->one({ %$one, @call }, at => $now) }
                         1 .. $times;
            my $all = grep { $_->[0] >= 0 } @single;
            my $last = $all ? $single[$all - 1] : $single[0];

            my $got = $script->one({ %$many, @call }, at => $now,
                                   times => $times);

            push @wrong, "$n: @$got instead of $all @$last"
                if "@$got" ne "$all @$last";
            $passed += $all;
            $partly++ if $all && $all < $times;
        }

        is "@wrong[0 .. min(3, $#wrong)]", '', "$passed passed";
        cmp_ok $partly, '>', 10, 'more than once a part of them';
    }
};


# Several requests in one call, each in its turn.  All that pass are one entry.

subtest 'requests of one call: one after the other, in one entry' => sub {
    my $limit = $script->window(capacity => 4, cost => 1);
    my $other = $script->bucket(capacity => 1, rate => [1, 3600]);

    is_deeply $script->take_many([[$limit], [$limit, $other], [$limit, $other],
                                  [$limit], [$limit], [$limit]], at => $NOON,
                                 id => 'a'),
              [[3, $MINUTE, 0], [2, $MINUTE, 0, 0], [2, $MINUTE, 0, -1],
               [1, $MINUTE, 0], [0, $MINUTE, 0], [-1, $MINUTE, $MINUTE]],
              'four pass, one is denied by the other limit, one by this';
    is_deeply $script->log_of($limit), [[$NOON, 4, 'a']], 'one entry of four';

    my $bytes = $script->bytes_of($limit);

    is_deeply $script->take_many([[$limit], [$limit]],
                                 at => $NOON + 10 * $SECOND, times => [1, 3]),
              [[-1, 50 * $SECOND, 50 * $SECOND],
               [0, -1, 50 * $SECOND, 50 * $SECOND]], 'none of the next';
    is_deeply $script->bytes_of($limit), $bytes, 'which changes nothing';

    is_deeply $script->take_many([[$limit], [$limit], [$limit]],
                                 at => $NOON + $MINUTE, times => [1, 5, 2],
                                 id => 'b'),
              [[3, $MINUTE, 0], [3, 0, $MINUTE, 0],
               [0, -1, $MINUTE, $MINUTE]],
              'some several times: as many as fit';
    is_deeply $script->log_of($limit), [[$NOON + $MINUTE, 4, 'b']],
              'one entry again, and the old one is cleared away';
    cmp_ok abs($script->pttl($limit) - 61_000), '<', 30_000,
           'with a time to live';
};


# Until the oldest entry leaves nobody else can pass.  That this is enough is
# known of a window that was full before; one that was filled by other requests
# of the same call has to be asked again.

subtest 'requests of one call: waits of a window that they fill' => sub {
    my $new = sub {
        my $limit = $script->window(capacity => 5);

        $script->take([{ %$limit, cost => $_->[1] }], at => $NOON + $_->[0])
            for @_;

        return { %$limit, cost => 2 };
    };

    my $limit = $new->([0, 1]);

    is_deeply $script->take_many([([$limit]) x 3], at => $NOON + 20 * $SECOND),
              [[2, 40 * $SECOND, 0], [0, 40 * $SECOND, 0],
               [-1, 40 * $SECOND, 40 * $SECOND]],
              'the oldest one is too small: no sooner than that';
    is_deeply $script->one($limit, at => $NOON + 20 * $SECOND),
              [-1, 40 * $SECOND, $MINUTE], 'asked again, it is later';
    is_deeply $script->one($limit, at => $NOON + $MINUTE),
              [-2, 20 * $SECOND, 20 * $SECOND], 'and so it is';

    $limit = $new->([0, 3]);

    is_deeply $script->take_many([([$limit]) x 2], at => $NOON + 20 * $SECOND),
              [[0, 40 * $SECOND, 0], [-1, 40 * $SECOND, 40 * $SECOND]],
              'the oldest one is large enough';
    is_deeply $script->one($limit, at => $NOON + 20 * $SECOND),
              [-1, 40 * $SECOND, 40 * $SECOND], 'asked again, the same';

    $limit = $new->([0, 1], [10 * $SECOND, 4]);

    is_deeply $script->take_many([([$limit]) x 2], at => $NOON + 20 * $SECOND),
              [([-1, 40 * $SECOND, 50 * $SECOND]) x 2],
              'full before: to the microsecond, for each of them';

    # what can never fit

    $limit = { %{ $script->window(capacity => 5) }, cost => 6 };
    is_deeply $script->take_many([([$limit]) x 2], at => $NOON),
              [([-6, 0, 0]) x 2], 'a cost above the limit';
};


subtest 'requests of one call: random ones, as a plain list does' => sub {
    srand 52;

    my ($passed, $denied, $bounds, $waits) = (0, 0, 0, 0);
    my (@wrong, @logs);

    for my $case ([10, $SECOND, 3], [30, $MINUTE, 7], [5, 2 * $HOUR, 1],
                  [1, 10 * $SECOND, 1])
    {
        my ($capacity, $length, $costs) = @$case;
        my $limit = $script->window(capacity => $capacity, length => $length,
                                    ttl => 1_000_000_000);
        my $now = $NOON;
        my @log;

        for my $n (1 .. 250) {
            $now += 1 + (rand > 0.2 ? int rand $length / 3 : any_up_to(50));

            my $cost = 1 + any_up_to($costs - 1);
            my $call = { %$limit, cost => $cost };
            my @times = map { rand > 0.7 ? 2 + int rand 3 : 1 }
                        1 .. 2 + int rand 5;
            my $got = $script->take_many([([$call]) x @times], at => $now,
                                         times => \@times);
            my $taken = 0;

            for my $i (0 .. $#times) {
                my @got = @{ $got->[$i] };
                my $passes = 0;
                my $wanted;

                # so many times, until it is denied

                while ($passes < $times[$i]) {
                    my $state = expected($call, $now, \@log);

                    $wanted ||= $state;
                    last if $state->[0] < 0;

                    push @log, [$now, $cost];
                    $passes++;
                    $wanted = [$state->[0] - $cost, $state->[1] || $length, 0];
                }

                if ($times[$i] > 1) {
                    push @wrong, "$n: $got[0] of $times[$i], not $passes"
                        if $got[0] != $passes;
                    shift @got;
                }

                if (!$passes && $taken) {
                    $waits++;
                    $bounds++ if $wanted->[2] > $wanted->[1];
                    $wanted->[2] = $wanted->[1];
                }

                push @wrong, "$n: @got instead of @$wanted"
                    if "@got" ne "@$wanted";

                $passes ? $passed++ : $denied++;
                $taken ||= $passes;
            }
        }

        cmp_ok fullest($length, @log), '<=', $capacity,
               "$capacity in $length us: the limit holds in every window";

        # an entry a call

        my %at;
        my $cut = $log[-1][0] - $length;

        $at{ $_->[0] } += $_->[1] for grep { $_->[0] > $cut } @log;
        is_deeply [map { "$_->[0] $_->[1]" } @{ $script->log_of($limit) }],
                  [map { "$_ $at{$_}" } sort { $a <=> $b } keys %at],
                  'as much is kept as was taken';
    }

    is join('; ', @wrong[0 .. min(3, $#wrong)]), '',
       "$passed passed, $denied denied";
    cmp_ok min($passed, $denied, $waits, $bounds), '>', 10,
           "$waits in a window that the call has filled, $bounds of their "
           . 'waits are lower bounds';
};


subtest 'a denied call adds nothing and changes nothing' => sub {
    my $limit = $script->window(capacity => 5, length => 10 * $MINUTE);

    $script->take([{ %$limit, cost => 2 }], at => $NOON + $_) for 0, 1;

    my $bytes = $script->bytes_of($limit);
    $redis->cmd('PEXPIRE', $limit->{key}, 605_000);

    for my $at (1, 2, $MINUTE, 10 * $MINUTE - 1) {
        is $script->one({ %$limit, cost => 3 }, at => $NOON + $at)->[0], -2,
           'denied, one left';
        is_deeply $script->bytes_of($limit), $bytes, 'the same to the byte';
    }

    cmp_ok $script->pttl($limit), '<=', 605_000, 'the time to live as well';

    # entries that have left are cleared away by the next that passes

    is_deeply $script->one({ %$limit, cost => 6 }, at => $NOON + $DAY),
              [-6, 0, 0], 'a cost above the limit: denied';
    is_deeply $script->one({ %$limit, cost => 6 }, at => $NOON + 1),
              [-2, 10 * $MINUTE - 1, 10 * $MINUTE],
              'with entries, until the last of them leaves';
    is_deeply $script->bytes_of($limit), $bytes, 'nothing is cleared away';
    is_deeply $script->one({ %$limit, cost => 6 }, at => $NOON + $DAY,
                           peek => 1), [-6, 0, 0], 'a peek finds the same';
    $script->take([$limit], at => $NOON + $DAY);
    is $redis->cmd('ZCARD', $limit->{key}), 1, 'the next one does';

    my $none = $script->window(capacity => 5);
    is_deeply $script->one({ %$none, cost => 6 }, at => $NOON), [-6, 0, 0],
              'above the limit of a window without entries';
    is $redis->cmd('EXISTS', $none->{key}), 0, 'no key is made';
};


# A million at once would hold Redis up, so each call that passes clears a
# portion away.  What is still there does not count.

subtest 'entries that have left are cleared away in portions' => sub {
    my $limit = $script->window(capacity => 1000, length => $MINUTE);
    my $entries = sub { $redis->cmd('ZCARD', $limit->{key}) };
    my @log;

    take_both($limit, $NOON + $_, \@log) for 1 .. 1000;
    is $entries->(), 1000, 'a thousand';

    my $now = $NOON + 2 * $MINUTE;
    my $bytes = $script->bytes_of($limit);

    is_deeply $script->one($limit, at => $now, peek => 1), [1000, 0, 0],
              'they have left: a look finds an empty window';
    is_deeply $script->one({ %$limit, cost => 1001 }, at => $now),
              [-1001, 0, 0], 'and so does what never fits';
    is_deeply $script->bytes_of($limit), $bytes, 'both change nothing';

    my ($most, @wrong) = 0;

    for my $n (1 .. 50) {
        my $before = $entries->();
        my ($got, $wanted) = take_both($limit, $now + $n * $SECOND, \@log);

        push @wrong, "$n: $got instead of $wanted" if $got ne $wanted;

        my $cleared = $before + 1 - $entries->();

        $most = max($most, $cleared);
        push @wrong, "$n: the set has grown" if $cleared < 2
                                                && $before >= $n;
    }

    is "@wrong[0 .. min(3, $#wrong)]", '',
       '50 more: as a plain list does, and the set shrinks';
    cmp_ok $most, '<=', 200, 'never more than 200 at once';
    is_deeply [map { $_->[0] } @{ $script->log_of($limit) }],
              [map { $now + $_ * $SECOND } 1 .. 50], 'in the end all are away';
};


subtest 'with entries that have left: random arrivals, as a plain list does'
    => sub
{
    srand 53;

    my ($left, $denied) = (0, 0);
    my @wrong;

    for my $round (1 .. 6) {
        my $limit = $script->window(capacity => 700, length => $MINUTE,
                                    ttl => 1_000_000_000);
        my $now = $NOON;
        my (@log, @ids);

        for my $burst (1 .. 4) {
            for my $n (1 .. 650) {
                $now += any_up_to($SECOND / 100);

                my $call = { %$limit, cost => 1 + int rand 2 };
                my $id = "$round-$burst-$n";
                my $passed = @log;
                my ($got, $wanted) = take_both($call, $now, \@log, id => $id);

                push @wrong, "$id: $got instead of $wanted" if $got ne $wanted;
                $denied++ if $got =~ /^-/;

                $left++ if $n < 650
                           && $redis->cmd('ZCOUNT', $limit->{key}, '-inf',
                                          $now - $MINUTE) > 0;

                # some give back what they took

                if (@log > $passed && rand > 0.9) {
                    $script->refund([$call], id => $id);
                    pop @log;
                }
            }

            $now += int($MINUTE * (0.7 + rand));
        }
    }

    is "@wrong[0 .. min(3, $#wrong)]", '', 'with takes and refunds';
    cmp_ok $left, '>', 10, "$left times some that had left were there";
    cmp_ok $denied, '>', 100, "$denied denied";
};


# They count again where the window has become longer, as they should.

subtest 'with entries that have left: a window that becomes longer' => sub {
    my $limit = $script->window(capacity => 1000, length => $HOUR,
                                ttl => 1_000_000_000);
    my $short = { %$limit, length => $SECOND };

    $script->one($limit, at => $NOON + $_) for 1 .. 500;

    is_deeply $script->one($short, at => $NOON + $MINUTE), [999, $SECOND, 0],
              'a shorter one is empty';
    is_deeply $script->one($limit, at => $NOON + $MINUTE + 1)->[0],
              1000 - 300 - 1 - 1, 'the long one has what is still there';
};


subtest 'many in one microsecond are as many entries' => sub {
    my $limit = $script->window(capacity => 1000, length => $MINUTE);
    my $wrong = 0;

    for my $n (1 .. 1000) {
        my $t = $script->one($limit, at => $NOON, id => "worker-$n");
        $wrong++ if $t->[0] != 1000 - $n;
    }

    is $wrong, 0, 'each counts';
    is $redis->cmd('ZCARD', $limit->{key}), 1000, 'a thousand entries';
    is_deeply $script->one($limit, at => $NOON), [-1, $MINUTE, $MINUTE],
              'and no more';

    # from several clients at once, by Redis's own clock

    my $real = $script->window(capacity => 500, length => $HOUR);
    my @clients;

    for (1 .. 4) {
        pipe my $in, my $out or die "pipe() failed: $!\n";
        my $pid = fork // die "fork() failed: $!\n";

        if ($pid == 0) {
            my $passed = eval {
                my $own = RateLimit::Script->new($redis);
                grep { $own->one($real, id => "$$-$_")->[0] >= 0 } 1 .. 200;
            };

            syswrite $out, ($passed // $@) . "\n";
            POSIX::_exit(0);
        }

        push @clients, [$pid, $in];
    }

    my @passed = map { my ($pid, $in) = @$_;
                       chomp(my $line = readline $in);
                       waitpid $pid, 0;
                       $line } @clients;

    is sum0(@passed), 500, 'four clients, 800 calls: 500 pass';
    is $redis->cmd('ZCARD', $real->{key}), 500, '500 entries';
};


subtest 'times to live: set by each that passes, never below the length'
    => sub
{
    for my $length (2 * $MINUTE, $HOUR, 30 * $DAY) {
        my $limit = $script->window(capacity => 3, length => $length);
        my $ttl = $length / 1000 + 1000;
        my $left = sub { my $pttl = $script->pttl($limit);
                         $pttl <= $ttl && $pttl > $ttl - 60_000 };

        $script->take([$limit], at => $NOON);
        ok $left->(), "$length us: set by the first";

        $redis->cmd('PEXPIRE', $limit->{key}, 60_000);
        $script->take([$limit], at => $NOON);
        ok $left->(), 'set again by the second';

        $redis->cmd('PERSIST', $limit->{key});
        $script->take([$limit], at => $NOON);
        ok $left->(), 'set again where it was lost';

        $redis->cmd('PERSIST', $limit->{key});
        is $script->one($limit, at => $NOON)->[0], -1, 'denied';
        ok $left->(), 'set again by that, too';
    }

    my $short = $script->window(capacity => 1, length => 1000, ttl => 1);

    $script->take([$short]);
    ok wait_until(sub {
           $redis->cmd('EXISTS', $short->{key}) == 0 }), 'and then it goes';
};


# --- limits that change ------------------------------------------------------

subtest 'a limit that shrinks or grows counts what is there' => sub {
    my $limit = $script->window(capacity => 10, length => $MINUTE);
    my @log;

    for (0 .. 6) {
        take_both($limit, $NOON + $_ * $SECOND, \@log);
    }

    my $now = $NOON + 10 * $SECOND;

    for my $case ([3, 1], [7, 1], [8, 1], [1, 1], [3, 2], [3, 4], [7, 7],
                  [20, 13], [20, 14])
    {
        my ($capacity, $cost) = @$case;
        my $call = { %$limit, capacity => $capacity, cost => $cost };
        my $reply = $script->one($call, at => $now, peek => 1);

        is "@$reply", "@{ expected($call, $now, \@log) }",
           "now $capacity, cost $cost";

        next if $reply->[0] >= 0 || $cost > $capacity;

        is $script->one($call, at => $now + $reply->[2], peek => 1)->[0],
           expected($call, $now + $reply->[2], \@log)->[0],
           "passes after $reply->[2] us";
        cmp_ok $script->one($call, at => $now + $reply->[2] - 1,
                            peek => 1)->[0], '<', 0, 'not before';
    }

    my ($got, $wanted) = take_both({ %$limit, capacity => 3 }, $now, \@log);
    is $got, $wanted, 'denied by three';

    ($got, $wanted) = take_both({ %$limit, capacity => 20, cost => 13 }, $now,
                                \@log);
    is $got, $wanted, 'thirteen pass by twenty';
    is $redis->cmd('ZCARD', $limit->{key}), 8, 'no entry was lost';
};


subtest 'a window that becomes shorter lets go, a longer one keeps' => sub {
    my $limit = $script->window(capacity => 5, length => 10 * $MINUTE);

    $script->take([$limit], at => $NOON + $_ * $MINUTE) for 0 .. 4;

    my $at = $NOON + 5 * $MINUTE;
    my $length = sub { return { %$limit, length => $_[0] * $MINUTE } };

    is_deeply $script->one($length->(10), at => $at),
              [-1, 5 * $MINUTE, 5 * $MINUTE], 'ten minutes: five inside';
    is_deeply $script->one($length->(3), at => $at, peek => 1),
              [3, $MINUTE, 0], 'three minutes: two inside';
    is_deeply $script->one($length->(20), at => $at),
              [-1, 15 * $MINUTE, 15 * $MINUTE], 'twenty minutes: five inside';
    cmp_ok $script->pttl($limit), '>', 1_100_000,
           'and so the key has to live longer';

    is_deeply $script->one($length->(3), at => $at), [2, $MINUTE, 0],
              'taken with three minutes';
    is_deeply $script->one($length->(10), at => $at), [1, 8 * $MINUTE, 0],
              'what has left by then does not come back';

    # one key, two lengths in turns, as in the middle of a deployment

    srand 22;

    my $key = $script->window(capacity => 20, length => $MINUTE);
    my $now = $NOON;
    my @log;

    for (1 .. 600) {
        $now += int rand 4 * $SECOND;

        my $call = { %$key, length => (rand > 0.5 ? 1 : 2) * $MINUTE };
        my $t = $script->one($call, at => $now)->[0];

        push @log, [$now, 1] if $t >= 0;
    }

    cmp_ok fullest($MINUTE, @log), '<=', 20,
           'the shorter one holds whatever happens';
    cmp_ok scalar(@log), '>', 100, scalar(@log) . ' passed';
};


# --- clocks ------------------------------------------------------------------

subtest 'clock redis: set back, the whole window goes with it' => sub {
    for my $back (1, 5 * $SECOND, $MINUTE, $HOUR, 365 * $DAY) {
        my $limit = $script->window(capacity => 3, length => $MINUTE);

        $script->take([$limit], at => $NOON + $_ * $SECOND) for 0, 10, 20;

        my $now = $NOON + 20 * $SECOND - $back;

        is_deeply $script->one($limit, at => $now, peek => 1),
                  [-1, 40 * $SECOND, 40 * $SECOND],
                  "$back us back: a peek finds it as it was";
        is_deeply $script->one($limit, at => $now),
                  [-1, 40 * $SECOND, 40 * $SECOND], 'and so does a take';
        is_deeply [map { $_->[0] - $now } @{ $script->log_of($limit) }],
                  [-20 * $SECOND, -10 * $SECOND, 0],
                  'which lets the entries follow';
        is_deeply $script->one($limit, at => $now + 40 * $SECOND - 1),
                  [-1, 1, 1], 'nobody passes early';
        is_deeply $script->one($limit, at => $now + 40 * $SECOND),
                  [0, 10 * $SECOND, 0], 'nor too late';
    }

    # less than the time since the last entry: nobody can tell

    my $limit = $script->window(capacity => 1, length => $MINUTE);

    $script->take([$limit], at => $NOON);
    is_deeply $script->one($limit, at => $NOON + 5 * $SECOND),
              [-1, 55 * $SECOND, 55 * $SECOND], 'time has passed';
    is_deeply $script->one($limit, at => $NOON + 3 * $SECOND),
              [-1, 57 * $SECOND, 57 * $SECOND], 'two seconds back';
};


# True time goes on while the clock is set back, again and again.

subtest 'clock redis: random steps back never admit too much' => sub {
    srand 23;

    for my $case ([20, $MINUTE], [50, 3 * $HOUR]) {
        my ($capacity, $length) = @$case;
        my $limit = $script->window(capacity => $capacity, length => $length,
                                    ttl => 1_000_000_000);
        my ($true, $offset) = ($NOON, 0);
        my ($locked, $back) = (0, 0);
        my @log;

        for (1 .. 1500) {
            $true += int rand $length / $capacity;

            if (rand > 0.97) {
                $offset += any_up_to(2 * $length);
                $back++;
            }

            my $reply = $script->one($limit, at => $true - $offset,
                                     nginx => $true);

            if ($reply->[0] >= 0) {
                push @log, [$true, 1];
                next;
            }

            # each step back makes a client wait again, for no longer than the
            # window

            $locked++ if $reply->[2] > $length || $reply->[2] <= 0;
        }

        cmp_ok fullest($length, @log), '<=', $capacity,
               "$capacity in $length us, $back times back: the limit holds";
        cmp_ok scalar(@log), '>', $capacity * 5, scalar(@log) . ' passed';
        is $locked, 0, 'nobody waits longer than a window';
    }
};


subtest 'a leap forward counts for an hour at most, idleness in full' => sub {
    my $length = 10 * $HOUR;

    for my $clock ('redis', 'nginx') {
        my ($own, $other) = $clock eq 'redis' ? ('at', 'nginx')
                                              : ('nginx', 'at');
        my $call = sub {
            my ($limit, $by, $other_by, %opt) = @_;

            return $script->one($limit, clock => $clock, $own => $NOON + $by,
                                $other => $NOON + $other_by, %opt);
        };

        for my $case ([0, 0, 0], [30 * $MINUTE, 0, 30 * $MINUTE],
                      [$HOUR, 0, $HOUR], [$HOUR + 1, 0, $HOUR],
                      [5 * $HOUR, 0, $HOUR], [30 * $DAY, 0, $HOUR],
                      [5 * $HOUR, 2 * $HOUR, 3 * $HOUR],
                      [5 * $HOUR, 4 * $HOUR, 5 * $HOUR],
                      [5 * $HOUR, 5 * $HOUR, 5 * $HOUR],
                      [9 * $HOUR, 9 * $HOUR, 9 * $HOUR],
                      [30 * $DAY, 8 * $HOUR, 9 * $HOUR],
                      [5 * $HOUR, -30 * $DAY, 5 * $HOUR])
        {
            my ($by, $other_by, $counts) = @$case;
            my $limit = $script->window(capacity => 2, length => $length);
            my $name = "clock $clock: $by us, by the other clock $other_by";

            $call->($limit, 0, 0);
            $call->($limit, 0, 0);

            my $left = $length - $counts;

            is_deeply $call->($limit, $by, $other_by, peek => 1),
                      [-1, $left, $left], "$name: $counts count for a peek";
            is_deeply $call->($limit, $by, $other_by), [-1, $left, $left],
                      'for a take';
            is_deeply $call->($limit, $by, $other_by), [-1, $left, $left],
                      'and once only';
            is_deeply $call->($limit, $by + $left - 1, $other_by + $left - 1),
                      [-1, 1, 1], 'then time goes on';
            is_deeply $call->($limit, $by + $left, $other_by + $left),
                      [1, $length, 0], 'until they leave';
        }

        # the other clock is that of another machine, and a bit behind, or it
        # was set back by so much that it tells nothing

        for my $case ([-30 * $MINUTE, $HOUR], [-$HOUR, 5 * $HOUR]) {
            my ($other_by, $counts) = @$case;
            my $limit = $script->window(capacity => 1, length => $length);

            $call->($limit, 0, 0);
            is $call->($limit, 5 * $HOUR, $other_by)->[2], $length - $counts,
               "clock $clock, the other one by $other_by: $counts";
        }

        my $limit = $script->window(capacity => 1, length => $length);

        $call->($limit, 0, 0);
        is_deeply $call->($limit, 10 * $HOUR, 10 * $HOUR), [0, $length, 0],
                  "clock $clock: ten hours of idleness are ten hours";
    }

    # an hour or less is gone with any leap

    my $short = $script->window(capacity => 1, length => $HOUR);

    $script->take([$short], at => $NOON);
    is_deeply $script->one($short, at => $NOON + $DAY, nginx => $NOON),
              [0, $HOUR, 0], 'a window of an hour is empty after a leap';
};


subtest 'a leap in the middle of traffic: an hour too early at most' => sub {
    srand 24;

    my ($length, $capacity) = (5 * $HOUR, 100);
    my $limit = $script->window(capacity => $capacity, length => $length);
    my ($true, $leap) = ($NOON, 0);
    my @log;

    for my $n (1 .. 2000) {
        $true += int rand 3 * $MINUTE;
        $leap = 7 * $DAY if $n == 1000;

        my $reply = $script->one($limit, at => $true + $leap, nginx => $true);

        push @log, [$true, 1] if $reply->[0] >= 0;
    }

    cmp_ok fullest($length - $HOUR, @log), '<=', $capacity,
           'the limit holds in any window that is an hour shorter';

    my @before = grep { $_->[0] < $NOON + 1000 * $MINUTE } @log;
    cmp_ok fullest($length, @before), '<=', $capacity,
           'and in all of them before the leap';
    cmp_ok scalar(@log), '>', 5 * $capacity, scalar(@log) . ' passed';
};


subtest 'clock nginx: a clock that is behind waits for the one ahead' => sub {
    my $limit = $script->window(capacity => 4, length => $MINUTE);
    my $call = sub { $script->one($limit, clock => 'nginx', at => $NOON,
                                  nginx => $NOON + $_[0] * $SECOND, @_[1..$#_])
                   };

    is_deeply $call->(0), [3, $MINUTE, 0], 'the first';
    is_deeply $call->(-30), [2, $MINUTE, 0], 'half a minute behind';
    is_deeply $call->(-60), [1, $MINUTE, 0], 'a minute behind';
    is_deeply [map { $_->[0] } @{ $script->log_of($limit) }], [($NOON) x 3],
              'all at the time of the one ahead';

    my $bytes = $script->bytes_of($limit);

    like $script->take([$limit], clock => 'nginx', at => $NOON,
                       nginx => $NOON - $MINUTE - 1), qr/^CLOCK /,
         'more than a minute is an error';
    is_deeply $script->bytes_of($limit), $bytes, 'and changes nothing';

    is_deeply $call->(30), [0, 30 * $SECOND, 0], 'ahead again';
    is_deeply $call->(-10), [-1, 30 * $SECOND, 30 * $SECOND], 'denied';
    is_deeply $call->(60), [2, 30 * $SECOND, 0], 'three have left';
};


# By the clock that is furthest ahead, which is the one that counts.

subtest 'clock nginx: skewed machines keep to the limit' => sub {
    srand 25;

    for my $machines ([0, 10], [0, 30, 60], [-30, 30], [0, 0.5, 1, 59]) {
        my $limit = $script->window(capacity => 30, length => 5 * $MINUTE);
        my ($true, $ahead) = ($NOON, 0);
        my (@log, @wrong, @true);

        for (1 .. 600) {
            $true += int rand 10 * $SECOND;

            my $now = $true + $machines->[rand @$machines] * $SECOND;

            $ahead = max($ahead, $now);

            my ($got, $wanted) = take_both($limit, $ahead, \@log,
                                           clock => 'nginx', at => $true,
                                           nginx => $now);

            push @wrong, "$got instead of $wanted"
                if (split / /, $got)[0] != (split / /, $wanted)[0];
            push @true, [$true, 1] if $got !~ /^-/;
        }

        is "@wrong[0 .. min(2, $#wrong)]", '',
           "machines at @$machines s: as with one clock";
        cmp_ok fullest(5 * $MINUTE, @log), '<=', 30, 'the limit holds';
        cmp_ok fullest(4 * $MINUTE, @true), '<=', 30,
               'in true time, too, but for the minute they differ';
    }
};


# --- refunds -----------------------------------------------------------------

subtest 'a refund leaves no trace' => sub {
    my @limits = ($script->bucket(capacity => 10, rate => [1, 60]),
                  $script->bucket(capacity => 10, rate => [1, 3600]),
                  $script->bucket(capacity => 10, rate => [1, 60],
                                  step => $SECOND),
                  $script->window(capacity => 10),
                  $script->window(capacity => 10, length => 3 * $HOUR));

    $script->take(\@limits, at => $NOON, id => 'first');

    my $bytes = $script->bytes_of(@limits);
    my @call = map { { %$_, cost => 3 } } @limits;

    $script->take(\@call, at => $NOON, id => 'second');
    $redis->cmd('PEXPIRE', $_->{key}, 100_000) for @limits;

    is $script->refund(\@call, id => 'second'), 5, 'five limits got it back';
    is_deeply $script->bytes_of(@limits), $bytes, 'the same to the byte';
    is scalar(grep { my $pttl = $script->pttl($_);
                     $pttl > 100_000 || $pttl < 30_000 } @limits), 0,
       'times to live are not touched';

    # what the short script took

    my $short = $script->bucket(rate => [1, 60]);

    $script->short($short, at => $NOON);
    $bytes = $script->bytes_of($short);
    $script->short({ %$short, cost => 5 }, at => $NOON);
    is $script->refund([{ %$short, cost => 5 }], id => 'x'), 1, 'one bucket';
    is_deeply $script->bytes_of($short), $bytes, 'the same to the byte';
};


# With and without a request that is given back later: afterwards nobody can
# tell one from the other.

subtest 'a refund between later takes, at any place' => sub {
    for my $at (0 .. 5) {
        for my $same_time (0, 1) {
            my ($with, $without) = map { $script->window(capacity => 100) }
                                   1, 2;

            for my $n (0 .. 5) {
                my $now = $NOON + ($same_time ? 0 : $n * $SECOND);
                my @opt = (at => $now, id => "call-$n");

                $script->take([{ %$with, cost => $n + 1 }], @opt);
                $script->take([{ %$without, cost => $n + 1 }], @opt)
                    if $n != $at;
            }

            is $script->refund([{ %$with, cost => $at + 1 }],
                               id => "call-$at"), 1, "number $at of six";
            is_deeply [@{ $redis->cmd('ZRANGE', $with->{key}, 0, -1,
                                      'WITHSCORES') }],
                      [@{ $redis->cmd('ZRANGE', $without->{key}, 0, -1,
                                      'WITHSCORES') }],
                      'as if it had never been';
        }
    }
};


subtest 'random takes and refunds: as a plain list does' => sub {
    srand 26;

    my $limit = $script->window(capacity => 50, length => 5 * $MINUTE);
    my $now = $NOON;
    my ($given, $passed, $denied) = (0, 0, 0);
    my (@log, @wrong);

    for my $n (1 .. 3000) {
        $now += any_up_to(30 * $SECOND);

        if (@log && rand > 0.7) {
            my $i = max(0, $#log - any_up_to(60));
            my ($entry) = splice @log, $i, 1;
            my $got = $script->refund([{ %$limit, cost => $entry->[1] }],
                                      id => $entry->[2]);

            # one that has left may have been cleared away

            push @wrong, "refund $n: $got"
                if $got != 1 && $entry->[0] > $now - $limit->{length};
            $given++;
            next;
        }

        my $call = { %$limit, cost => 1 + any_up_to(9) };
        my ($got, $wanted) = take_both($call, $now, \@log, id => "call-$n");

        push @wrong, "$n: $got instead of $wanted" if $got ne $wanted;

        if ($wanted !~ /^-/) {
            $log[-1][2] = "call-$n";
            $passed++;

        } else {
            $denied++;
        }
    }

    is "@wrong[0 .. min(3, $#wrong)]", '',
       "$passed passed, $denied denied, $given given back";
    cmp_ok min($passed, $denied, $given), '>', 200, 'many of each';
};


# A part goes back: what is left of the entry stays where it is.

subtest 'a part of what was taken is given back' => sub {
    my $window = $script->window(capacity => 20);

    is_deeply $script->one({ %$window, cost => 2 }, at => $NOON, id => 'a',
                           times => 4), [4, 12, $MINUTE, 0], 'four passed';
    $script->one({ %$window, cost => 3 }, at => $NOON + $SECOND, id => 'b');

    is $script->refund([{ %$window, cost => 2 }], id => 'a', times => 3), 1,
       'three of them go back';
    is_deeply $script->log_of($window), [[$NOON, 2, 'a'],
                                         [$NOON + $SECOND, 3, 'b']],
              'one is kept, at its time and under its name';
    is_deeply $script->one($window, at => $NOON + $SECOND, peek => 1),
              [15, 59 * $SECOND, 0], 'the rest is free';

    is $script->refund([{ %$window, cost => 2 }], id => 'a'), 1,
       'the last one goes back';
    is_deeply $script->log_of($window), [[$NOON + $SECOND, 3, 'b']],
              'and with it the entry';
    is_deeply $script->one($window, at => $NOON + 2 * $SECOND, peek => 1),
              [17, 59 * $SECOND, 0], 'what is left counts as it did';

    # buckets, as many tokens

    my $bucket = $script->bucket(capacity => 20);
    my $gcra = $script->gcra(capacity => 20);

    is_deeply $script->short({ %$bucket, cost => 2 }, at => $NOON,
                             times => 5), [5, 10_000_000], 'a bucket';
    $script->refund([{ %$bucket, cost => 2 }], id => '', times => 3);
    is $script->fields_of($bucket)->{tokens}, '16', 'six came back';

    is_deeply $script->short({ %$gcra, cost => 2 }, at => $NOON, times => 5),
              [5, 160_000_000], 'gcra';
    my $pttl = $script->pttl($gcra);
    is $script->refund([{ %$gcra, cost => 2 }], id => '', times => 3), 1,
       'got it back';
    is $script->short($gcra, at => $NOON), 15 * 16_000_000,
       'six came back, one was taken';

    # more than there was: full, and no more

    $script->refund([$gcra], id => '', times => 100);
    is $script->short({ %$gcra, cost => 20 }, at => $NOON), 0,
       'gcra never has more than its capacity';
    is $script->short($gcra, at => $NOON), -1, 'and is empty then';

    my $none = $script->gcra;
    is $script->refund([$none], id => ''), 0, 'one that is gone is full';
    is $redis->cmd('EXISTS', $none->{key}), 0, 'and is not made';

    $redis->cmd('SET', $none->{key}, 'x');
    is $script->refund([$none], id => ''), 0, 'what is no number';
    is $redis->cmd('GET', $none->{key}), 'x', 'stays as it is';
};


subtest 'random parts given back: as if they had never been taken' => sub {
    srand 41;

    for my $same_time (0, 1) {
        my ($with, $without) = map { $script->window(capacity => 1000) } 1, 2;
        my @calls;

        for my $n (0 .. 19) {
            my $now = $NOON + ($same_time ? 0 : $n * $SECOND);
            my $cost = 1 + int rand 3;
            my $times = 1 + int rand 5;
            my $back = int rand $times + 1;

            $script->one({ %$with, cost => $cost }, at => $now,
                         id => "call-$n", times => $times);
            $script->one({ %$without, cost => $cost * ($times - $back) },
                         at => $now, id => "call-$n") if $back < $times;
            push @calls, ["call-$n", $cost, $back] if $back;
        }

        is $script->refund([{ %$with, cost => $_->[1] }], id => $_->[0],
                           times => $_->[2]), 1, "$_->[2] of $_->[0]"
            for sort { $a->[0] cmp $b->[0] } @calls;

        is_deeply $redis->cmd('ZRANGE', $with->{key}, 0, -1, 'WITHSCORES'),
                  $redis->cmd('ZRANGE', $without->{key}, 0, -1, 'WITHSCORES'),
                  'nobody can tell';
    }
};


# Requests of one call share an entry: what one of them gives back is a part of
# it.

subtest 'one of several requests of a call gives back' => sub {
    my $window = $script->window(capacity => 20, cost => 3);
    my $bucket = $script->bucket(capacity => 20, cost => 2, rate => [1, 3600]);
    my $gcra = $script->gcra(capacity => 20, cost => 4, rate => [1, 3600]);
    my @all = ($window, $bucket, $gcra);

    $script->take([map { { %$_, cost => 1 } } @all], at => $NOON, id => 'a');

    my $begin = $script->bytes_of(@all);

    $script->take_many([[@all], [$window], [$window, $bucket], [$gcra]],
                       at => $NOON + $SECOND, id => 'b');
    $script->take([{ %$window, cost => 5 }], at => $NOON + 2 * $SECOND,
                  id => 'c');

    is_deeply $script->log_of($window),
              [[$NOON, 1, 'a'], [$NOON + $SECOND, 9, 'b'],
               [$NOON + 2 * $SECOND, 5, 'c']], 'nine of three requests';

    is $script->refund([$window, $bucket], id => 'b'), 2, 'the third one';
    is_deeply $script->log_of($window),
              [[$NOON, 1, 'a'], [$NOON + $SECOND, 6, 'b'],
               [$NOON + 2 * $SECOND, 5, 'c']], 'six are left';
    is $script->one($window, at => $NOON + 2 * $SECOND, peek => 1)->[0],
       20 - 12, 'three more are free';

    is $script->refund([@all], id => 'b'), 3, 'the first one';
    is $script->refund([$gcra], id => 'b'), 1, 'the fourth one';
    is_deeply $script->log_of($window)->[1], [$NOON + $SECOND, 3, 'b'],
              'three are left';

    is $script->refund([$window], id => 'b'), 1, 'the last one of them';
    is $script->refund([{ %$window, cost => 5 }], id => 'c'), 1, 'the later';
    is $script->refund([$window], id => 'b'), 0, 'no more of them';

    is_deeply [@{ $script->bytes_of(@all) }[0, 2]], [@$begin[0, 2]],
              'window and gcra: the same to the byte as before';
    is $script->fields_of($bucket)->{tokens},
       sprintf('%.6f', 19 + floor($SECOND / 3600) / $SECOND),
       'the bucket has what it had, and what came';
};


subtest 'what several calls took goes back in one, each by its id' => sub {
    my ($x, $y) = map { $script->window(capacity => 50) } 1, 2;
    my ($bucket, $gcra) = ($script->bucket, $script->gcra);
    my @zset = map { $_->{key} } $x, $y;

    $script->take([$x, $y, $bucket, $gcra], at => $NOON, id => 'a');
    $script->take_many([[$x, $bucket], [$x], [$y, $gcra]],
                       at => $NOON + $SECOND, id => 'b');
    $script->take([{ %$y, cost => 4 }], at => $NOON + 2 * $SECOND, id => 'c');

    # of one window two calls, of which one twice; and one that nobody knows

    is $script->refund([{ %$x, id => 'b' }, { %$y, cost => 3, id => 'c' },
                        { %$x, id => 'a' }, $bucket, { %$y, id => 'b' },
                        { %$x, id => 'b' }, $gcra, { %$y, id => 'x' }]), 7,
       'seven of eight';
    is $redis->cmd('EXISTS', $x->{key}), 0, 'one window is empty';
    is_deeply $script->log_of($y), [[$NOON, 1, 'a'],
                                    [$NOON + 2 * $SECOND, 1, 'c']],
              'the other one has what is left';
    is_deeply $script->one($y, at => $NOON + 2 * $SECOND, peek => 1),
              [48, 58 * $SECOND, 0], 'and it counts as much';
    is $script->fields_of($bucket)->{tokens}, '10', 'the bucket is full';

    # the id of a bucket is nobody's

    $script->take([$bucket, $x], at => $NOON + 2 * $SECOND, id => 'd');
    is $script->refund([{ %$bucket, id => 'what' }, { %$x, id => 'd' }]), 2,
       'a bucket needs no id';
};


subtest 'random requests of calls given back: as if never taken' => sub {
    srand 53;

    for my $run (1 .. 12) {
        my ($with, $without) = map { $script->window(capacity => 10_000) }
                               1, 2;
        my ($now, @back) = $NOON;
        my $n = 0;

        for my $call (1 .. 25) {
            $now += rand > 0.3 ? $SECOND : 0;

            my $cost = 1 + int rand 4;
            my $id = "call-$call";
            my @times = map { rand > 0.7 ? 2 + int rand 3 : 1 }
                        1 .. 2 + int rand 4;
            my @kept = map { int rand $_ + 1 } @times;

            $script->take_many([([{ %$with, cost => $cost }]) x @times],
                               times => \@times, at => $now, id => $id);

            if (my $rest = sum0(@kept)) {
                $script->take([{ %$without, cost => $cost * $rest }],
                              at => $now, id => $id);
            }

            push @back, map { $kept[$_] == $times[$_] ? ()
                              : { %$with, id => $id,
                                  cost => $cost * ($times[$_] - $kept[$_]) } }
                        0 .. $#times;
        }

        # in any order, some of them together

        @back = map { $_->[1] } sort { $a->[0] <=> $b->[0] }
                map { [rand, $_] } @back;
        $n = @back;

        my $given = 0;

        while (@back) {
            $given += $script->refund([splice @back, 0, 1 + int rand 6]);
        }

        is $given, $n, "run $run: $n requests got it back";
        is_deeply $redis->cmd('ZRANGE', $with->{key}, 0, -1, 'WITHSCORES'),
                  $redis->cmd('ZRANGE', $without->{key}, 0, -1, 'WITHSCORES'),
                  'nobody can tell';
    }
};


subtest 'a refund of a bucket never exceeds its capacity' => sub {
    for my $case ([10, 10, 3, '10'], [10, 9, 3, '10'],
                  [10, 7, 3, '10'], [10, 6.5, 3, '9.500000'],
                  [10, 0, 3, '3'], [5, 4, 3, '5'],
                  [5, 8, 3, '8'],
                  [1_000_000_000, '999900000', 100_000,
                   '1000000000'])
    {
        my ($capacity, $tokens, $cost, $then) = @$case;
        my $limit = $script->bucket(capacity => $capacity, cost => $cost);

        $redis->bucket_set($limit->{key}, tokens => $tokens,
                           lastRefill => $NOON);
        is $script->refund([$limit], id => 'x'), 1,
           "$cost to $tokens of $capacity";
        is_deeply $script->fields_of($limit),
                  { tokens => $then, lastRefill => $NOON }, "$then are there";
    }

    # the time since the last take still counts, up to the capacity

    my $limit = $script->bucket(capacity => 10, rate => [1, 1]);

    $script->take([{ %$limit, cost => 5 }], at => $NOON);
    $script->refund([{ %$limit, cost => 5 }], id => 'x');
    is $script->take([{ %$limit, cost => 10 }], at => $NOON + $SECOND), 0,
       'ten, and not eleven';
};


subtest 'a refund of what is not there does no harm' => sub {
    my $bucket = $script->bucket;
    my $window = $script->window;

    is $script->refund([$bucket, $window], id => 'x'), 0, 'no keys';
    is $redis->cmd('EXISTS', $bucket->{key}, $window->{key}), 0,
       'none are made';

    $script->take([$window], at => $NOON + $_, id => "call-$_") for 1 .. 3;

    my $bytes = $script->bytes_of($window);

    for my $id ('x', 'call', 'call-', 'call-11', 'all-1', '', '1',
                '^call%-1', 'call-.')
    {
        is $script->refund([$window], id => $id), 0, "no id \"$id\"";
    }

    is_deeply $script->bytes_of($window), $bytes, 'nothing is changed';

    is $script->refund([$window], id => 'call-2'), 1, 'a known one';
    $bytes = $script->bytes_of($window);
    is $script->refund([$window], id => 'call-2'), 0, 'a second time';
    is_deeply $script->bytes_of($window), $bytes, 'changes nothing';

    $script->refund([$window], id => "call-$_") for 1, 3;
    is $redis->cmd('EXISTS', $window->{key}), 0, 'the last entry is gone';
    is_deeply $script->one($window, at => $NOON), [9, $MINUTE, 0],
              'and the window is empty';

    # no number, or too large a one: what it is, its takers know

    for my $tokens ('nan', '-nan', 'inf', '1e300', '10000000000') {
        $redis->bucket_set($bucket->{key}, tokens => $tokens,
                           lastRefill => $NOON);
        is $script->refund([$bucket], id => 'x'), 0, "$tokens tokens";
        is_deeply $script->fields_of($bucket),
                  { tokens => $tokens, lastRefill => $NOON }, 'stay as they are';
    }

    # a string without tokens

    $redis->bucket_set($bucket->{key}, tokens => undef);
    is $script->refund([$bucket], id => 'x'), 0, 'no tokens in the string';
    is_deeply $script->fields_of($bucket), { lastRefill => $NOON },
              'and none are made';

    # of several, those that are there

    my $other = $script->bucket;

    $redis->cmd('DEL', $window->{key});
    $script->take([$other, $window], at => $NOON, id => 'y');
    is $script->refund([$bucket, $other, $window], id => 'y'), 2,
       'two of three';
    is $script->fields_of($other)->{tokens}, '10', 'the bucket is full';
    is $redis->cmd('EXISTS', $window->{key}), 0, 'the window is empty';
};


subtest 'a refund finds one of many entries' => sub {
    my $limit = $script->window(capacity => 5000);

    $script->take([$limit], at => $NOON + $_, id => "call-$_")
        for 1 .. 1002;

    is $script->refund([$limit], id => 'call-3'), 1, '999 entries later';
    is_deeply $script->one($limit, at => $NOON + 1002, peek => 1)->[0],
              5000 - 1001, 'one more is left';

    # further back nobody looks: it leaves by itself

    is $script->refund([$limit], id => 'call-1'), 0, '1000 entries later';
    is $script->one($limit, at => $NOON + 1002, peek => 1)->[0], 5000 - 1001,
       'it stays';
    is $script->one($limit, at => $NOON + 1 + $MINUTE, peek => 1)->[0],
       5000 - 1000, 'until its time has come';
};


done_testing();
