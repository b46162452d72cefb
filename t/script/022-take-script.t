# take.lua with buckets, against a real redis-server: several limits pass
# together or not at all, refill in steps, clocks that are not right, and
# several requests in one call.
#
# Clocks are the test's own: that of Redis ("at") and that of nginx ("nginx").

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use POSIX qw(ceil floor);

use RateLimit::Redis;
use RateLimit::Script;
use RateLimit::Traffic;

my $NOON = 1_800_000_000_000_000;       # us, some day in 2027
my $SECOND = 1_000_000;
my $MINUTE = 60 * $SECOND;
my $HOUR = 3600 * $SECOND;
my $DAY = 24 * $HOUR;

my $redis = RateLimit::Redis->start;
my $script = RateLimit::Script->new($redis);


# What this call would find, without making it: the numbers of one limit.

sub peek {
    my ($limit, %opt) = @_;

    return $script->one($limit, %opt, peek => 1);
}


# How long the bucket needs to be full, in us, by this limit at this time.

sub needs {
    my ($limit, $state, $now) = @_;

    my ($num, $den) = @{ $limit->{rate} };
    my $step = $limit->{step} // 0;
    my $gone = max(0, $now - $state->{lastRefill});
    my $counts = $step ? $gone - $gone % $step : $gone;
    my $missing = $limit->{capacity} * $SECOND - $state->{tokens} * $SECOND
                  - $counts * $num / $den;

    return 0 if $missing <= 0;
    return 9e15 if $num == 0;
    return $missing * $den / $num if !$step;
    return ceil($missing * $den / $num / $step) * $step - ($gone - $counts);
}


subtest 'replies: one integer, or one flat array of integers' => sub {
    my $bucket = $script->bucket(rate => [1, 3600]);
    my $steps = $script->bucket(rate => [1, 3600], step => 5 * $SECOND);
    my $window = $script->window;

    is $script->take([$bucket], at => $NOON), 9_000_000, 'a bucket';
    is_deeply $script->take([$steps], at => $NOON), [9_000_000, 0],
              'a bucket with steps';
    is_deeply $script->take([$window], at => $NOON), [9, $MINUTE, 0],
              'a window';
    is_deeply $script->take([$window, $steps, $bucket],
                            at => $NOON + $SECOND),
              [8, 59 * $SECOND, 0, 8_000_000, $SECOND, 8_000_277],
              'all of them, in the order of the call';
    is_deeply $script->take([$bucket, $window], at => $NOON + $SECOND),
              [7_000_277, 7, 59 * $SECOND, 0], 'two of them';

    my $other = $script->bucket(rate => [1, 3600]);
    is_deeply $script->take([$bucket, $other], at => $NOON + $SECOND),
              [6_000_277, 9_000_000], 'two buckets';
};


# The same calls to both scripts: whatever the limits and the times are, one
# can't be told from the other.

subtest 'one bucket: the same as token_bucket.lua, call by call' => sub {
    srand 7;

    for my $case (['3r/s', 3, 1, 50], ['7r/m', 7, 60, 20],
                  ['2.5r/s', 5, 2, 10], ['100000r/s', 100_000, 1, 1000],
                  ['13r/h', 13, 3600, 100], ['11r/d', 11, 86_400, 3],
                  ['0r/s', 0, 1, 500])
    {
        my ($name, $num, $den, $capacity) = @$case;

        # an hour: not yet a slow bucket, which token_bucket.lua knows not

        my %limit = (capacity => $capacity, rate => [$num, $den],
                     ttl => 3_600_000);
        my $long = $script->bucket(%limit);
        my $short = $script->bucket(%limit);
        my $now = $NOON;
        my ($replies, $states, $ttls, $passed) = (0, 0, 0, 0);

        for my $n (1 .. 700) {
            $now += any_up_to(3 * $SECOND * $den / ($num || 1));

            # the clock is set back, the limit is changed, a field is lost

            $now -= any_up_to(10 * $SECOND) if rand > 0.97;

            my %change;

            $change{capacity} = 1 + int rand 2 * $capacity if rand > 0.97;
            $change{rate} = [1 + int rand 10, 1 + int rand 100]
                if rand > 0.97 && $num;

            if (rand > 0.99) {
                $redis->bucket_set($_->{key}, lastRefill => undef)
                    for $long, $short;
            }

            # time went by, and the key is nearer to its end

            if (rand > 0.9) {
                my $ttl = any_up_to(3_600_000);

                $redis->bucket_set($_->{key},
                                   expires => floor($now / 1000) + $ttl)
                    for $long, $short;
            }

            my $cost = rand > 0.8 ? 1 + any_up_to($capacity) : 1;
            my @call = (cost => $cost, %change);

            my $a = $script->take([{ %$long, @call }], at => $now);
            my $b = $script->short({ %$short, @call }, at => $now);

            $passed++ if $a >= 0;
            $replies++ if $a != $b;

            my ($x, $y) = map { $script->fields_of($_) } $long, $short;
            $states++ if join(' ', map { $_ // 'none' }
                                       @$x{qw(tokens lastRefill)})
                         ne join(' ', map { $_ // 'none' }
                                          @$y{qw(tokens lastRefill)});

            # they need not live equally long, but both until they are full;
            # no longer than the call has said, nor than half of that where no
            # token comes

            for my $state ($x, $y) {
                next if !defined $state->{lastRefill};

                my $most = ($num ? 1 : 0.5) * 3_600_000_000;
                my $need = min($most, needs({ %$long, @call }, $state, $now));

                $ttls++ if $need && $state->{expires} * 1000 < $now + $need
                                                               - 1000;
            }
        }

        is "$replies, $states, $ttls", '0, 0, 0',
           "$name: the same replies and states, and both live long enough";
        cmp_ok $passed, '>', 50, 'some passed';
    }
};


# Of one limit, several requests: as so many single calls in a row.

subtest 'several requests at once: as so many single ones' => sub {
    srand 31;

    for my $case (['a fast bucket', 'bucket', [3, 1], 50],
                  ['a slow one', 'bucket', [7, 3600], 20],
                  ['with steps', 'bucket', [5, 2], 10, step => 700_000],
                  ['by nginx\'s clock', 'bucket', [100, 1], 30,
                   clock => 'nginx'],
                  ['gcra', 'gcra', [3, 1], 50],
                  ['gcra by nginx\'s clock', 'gcra', [7, 60], 20,
                   clock => 'nginx'])
    {
        my ($name, $kind, $rate, $capacity, %more) = @$case;
        my @opt = (clock => delete $more{clock} // 'redis');
        my ($one, $many) = map { $script->$kind(capacity => $capacity,
                                                rate => $rate, %more) } 1, 2;
        my ($now, $passed, $partly) = ($NOON, 0, 0);
        my @wrong;

        for my $n (1 .. 200) {
            $now += any_up_to(20 * $SECOND * $rate->[1] / $rate->[0]);

            my $times = 2 + int rand 8;
            my @call = (cost => 1 + int rand 3);

            my @single = map { $script->one({ %$one, @call }, at => $now,
                                            @opt) } 1 .. $times;
            my $all = grep { $_->[0] >= 0 } @single;
            my $last = $all ? $single[$all - 1] : $single[0];

            my $got = $script->one({ %$many, @call }, at => $now, @opt,
                                   times => $times);

            push @wrong, "$n: @$got instead of $all @$last"
                if "@$got" ne "$all @$last";
            $passed += $all;
            $partly++ if $all && $all < $times;
        }

        is "@wrong[0 .. min(3, $#wrong)]", '', "$name: $passed passed";
        cmp_ok $partly, '>', 10, 'more than once a part of them';
        is_deeply $script->bytes_of($many), $script->bytes_of($one),
                  'and the same state';
    }
};


subtest 'several requests at once: a look at it takes nothing' => sub {
    for my $limit ($script->bucket(capacity => 10),
                   $script->gcra(capacity => 10))
    {
        my $tick = $limit->{kind} eq 'gcra' ? 16_000_000 : 1_000_000;

        $script->one({ %$limit, cost => 7 }, at => $NOON);

        my $bytes = $script->bytes_of($limit);

        is_deeply $script->one($limit, at => $NOON, times => 5, peek => 1),
                  [3, 3 * $tick], "$limit->{kind}: three of five would pass";
        is_deeply $script->one({ %$limit, cost => 4 }, at => $NOON, times => 5,
                               peek => 1),
                  [0, -1 - 3 * $tick], 'none of five with a cost of four';
        is_deeply $script->bytes_of($limit), $bytes, 'nothing was taken';

        is_deeply $script->one({ %$limit, shadow => 1, cost => 2 },
                               at => $NOON, times => 5), [1, $tick],
                  'a shadow limit counts like any other';
        is_deeply $script->one({ %$limit, shadow => 1, cost => 2 },
                               at => $NOON, times => 5), [0, -1 - $tick],
                  'and takes nothing if it would deny';
    }
};


# As one bucket and token_bucket.lua above.

subtest 'gcra: the same as gcra.lua, call by call' => sub {
    srand 8;

    for my $case (['3r/s', 3, 1, 50], ['7r/m', 7, 60, 20],
                  ['2.5r/s', 5, 2, 10], ['100000r/s', 100_000, 1, 1000],
                  ['11r/d', 11, 86_400, 3])
    {
        my ($name, $num, $den, $capacity) = @$case;
        my %limit = (capacity => $capacity, rate => [$num, $den]);
        my ($long, $short) = map { $script->gcra(%limit) } 1, 2;
        my ($now, $passed, $wrong, $states) = ($NOON, 0, 0, 0);

        for my $n (1 .. 500) {
            $now += any_up_to(3 * $SECOND * $den / $num);
            $now -= any_up_to(10 * $SECOND) if rand > 0.97;

            my @call = (cost => rand > 0.8 ? 1 + any_up_to($capacity) : 1);
            my @opt = (at => $now);

            push @call, capacity => 1 + int rand 2 * $capacity if rand > 0.97;
            push @call, rate => [1 + int rand 10, 1 + int rand 100]
                if rand > 0.97;
            push @opt, times => 2 + int rand 3 if rand > 0.8;

            my $a = $script->take([{ %$long, @call }], @opt);
            my $b = $script->short({ %$short, @call }, @opt);

            ($a, $b) = map { ref $_ ? "@$_" : $_ } $a, $b;

            $passed++ if $a !~ /-/;
            $wrong++ if $a ne $b;
            $states++ if "@{ $script->bytes_of($long) }"
                         ne "@{ $script->bytes_of($short) }";
        }

        is $wrong, 0, "$name: the same replies ($passed passed)";
        is $states, 0, 'and the same state';
    }
};


subtest 'a slow bucket, too, as long as clocks go right' => sub {
    srand 8;

    for my $case (['11r/d', 11, 86_400, 3], ['1r/h', 1, 3600, 10],
                  ['100r/d', 1, 864, 50])
    {
        my ($name, $num, $den, $capacity) = @$case;
        my $long = $script->bucket(capacity => $capacity,
                                   rate => [$num, $den]);
        my $short = $script->bucket(capacity => $capacity,
                                    rate => [$num, $den]);
        my $now = $NOON;
        my $wrong = 0;

        for (1 .. 500) {
            $now += any_up_to(10 * $SECOND * $den / $num);

            # nginx's clock is a bit before and a bit behind

            my $a = $script->take([$long], at => $now,
                                  nginx => $now + int rand 2000);
            my $b = $script->short($short, at => $now);

            my ($x, $y) = map { $script->fields_of($_) } $long, $short;

            $wrong++ if $a != $b || $x->{tokens} ne $y->{tokens}
                        || $x->{lastRefill} ne $y->{lastRefill};
        }

        is $wrong, 0, $name;
        is_deeply [sort keys %{ $script->fields_of($long) }],
                  ['expires', 'lastRefill', 'seen', 'tokens'],
                  'with a field for the other clock';
    }
};


# Many calls of up to four limits of all kinds; what each of them says alone,
# one moment before, is what all of them together must follow.

subtest 'all pass and take, or none takes anything' => sub {
    srand 9;

    my @limits = (
        $script->bucket(capacity => 20, rate => [2, 1]),
        $script->bucket(capacity => 5, rate => [1, 3]),
        $script->bucket(capacity => 30, rate => [3, 1], step => 2 * $SECOND),
        $script->bucket(capacity => 10, rate => [1, 300]),
        $script->window(capacity => 15, length => 10 * $SECOND),
        $script->window(capacity => 40, length => 30 * $SECOND),
    );

    $_->{ttl} = 3_600_000 for @limits;

    my $now = $NOON;
    my ($passed, $denied, $shadows) = (0, 0, 0);
    my (@kept, @taken, @replies);

    for my $n (1 .. 2500) {
        $now += any_up_to(2 * $SECOND);

        my @rest = sort { $a->[0] <=> $b->[0] } map { [rand, $_] } @limits;
        my @call = map { { %{ $_->[1] }, cost => 1 + any_up_to(7),
                           shadow => rand > 0.8 } }
                   @rest[0 .. int rand 4];

        my @before = map { peek($_, at => $now) } @call;
        my $bytes = $script->bytes_of(@call);
        my @fits = map { $_->[0] >= 0 } @before;
        my $all = !grep { !$fits[$_] && !$call[$_]{shadow} } 0 .. $#call;

        my $reply = $script->take(\@call, at => $now);
        my @reply = ref $reply ? @$reply : $reply;
        my $after = $script->bytes_of(@call);

        $all ? $passed++ : $denied++;

        for my $i (0 .. $#call) {
            my $takes = $all && $fits[$i];
            my $same = ($after->[$i] // '') eq ($bytes->[$i] // '');
            my @state = splice @reply, 0, scalar @{ $before[$i] };
            my $left = $before[$i][0];

            $shadows++ if $all && !$fits[$i];

            if ($takes) {
                $left -= $call[$i]{cost}
                         * ($call[$i]{kind} eq 'window' ? 1 : $SECOND);
            }

            push @taken, $n if $takes && $same;
            push @kept, $n if !$takes && !$same;
            push @replies, $n if $state[0] != $left;
        }

        push @replies, $n if @reply;
    }

    is "@kept", '', 'what is not taken from is left as it was, to the byte';
    is "@taken", '', 'what is taken from is not';
    is "@replies", '', 'and each limit says what is left of it';
    cmp_ok min($passed, $denied, $shadows), '>', 100,
           "$passed calls passed, $denied did not, $shadows shadows denied";
};


subtest 'sixteen limits at once all pass or none is taken from' => sub {
    my @limits = map { $script->bucket(capacity => $_, rate => [1, 3600]) }
                 1 .. 16;

    is_deeply $script->take(\@limits, at => $NOON),
              [map { $_ * $SECOND } 0 .. 15], 'all pass';
    my $bytes = $script->bytes_of(@limits);
    is_deeply $script->take(\@limits, at => $NOON),
              [-1, map { $_ * $SECOND } 1 .. 15], 'the smallest denies';
    is_deeply $script->bytes_of(@limits), $bytes, 'none was taken from';
};


subtest 'a shadow limit denies nobody, and is not taken from alone' => sub {
    my $shadow = $script->bucket(capacity => 1, rate => [1, 3600],
                                 shadow => 1);
    my $limit = $script->bucket(capacity => 3, rate => [1, 3600]);

    is_deeply $script->take([$shadow, $limit], at => $NOON), [0, 2_000_000],
              'both pass';
    is_deeply $script->take([$shadow, $limit], at => $NOON), [-1, 1_000_000],
              'the shadow denies: the other one is taken from';
    is_deeply $script->take([$limit, $shadow], at => $NOON), [0, -1],
              'in any order';

    $redis->cmd('DEL', $shadow->{key});
    is_deeply $script->take([$shadow, $limit], at => $NOON),
              [1_000_000, -1], 'the other one denies';
    is $redis->cmd('EXISTS', $shadow->{key}), 0,
       'the shadow is not taken from';

    is_deeply $script->take([{ %$limit, shadow => 1 }, $shadow], at => $NOON),
              [-1, 0], 'two shadows: each for itself';
};


subtest 'peek changes nothing, whatever there is' => sub {
    my @states = (
        ['nothing', sub { }],
        ['some tokens', sub { $script->take([$_[0]], at => $NOON) }],
        ['none', sub { $script->take([{ %{ $_[0] }, cost => 10 }],
                                     at => $NOON) }],
        ['a time to live that is too short',
         sub { $script->take([{ %{ $_[0] }, cost => 10 }], at => $NOON);
               $redis->cmd('PEXPIRE', $_[0]{key}, 50_000) }],
        ['none at all',
         sub { $script->take([{ %{ $_[0] }, cost => 10 }], at => $NOON);
               $redis->cmd('PERSIST', $_[0]{key}) }],
    );

    for my $new (sub { $script->bucket(rate => [1, 300]) },
                 sub { $script->bucket(rate => [1, 3600]) },
                 sub { $script->bucket(rate => [1, 3600], step => $MINUTE) },
                 sub { $script->window(length => 20 * $MINUTE) },
                 sub { $script->window(length => 3 * $HOUR) })
    {
        for my $state (@states) {
            my ($name, $make) = @$state;
            my $limit = $new->();
            my $wrong = 0;

            $make->($limit);

            my $bytes = $script->bytes_of($limit);
            my $pttl = $script->pttl($limit);

            # the present, the past, the far future, by either clock

            for my $by ([0, 0], [-5, -5], [-$HOUR, 0], [30 * $DAY, 0],
                        [30 * $DAY, 30 * $DAY], [0, -50 * $SECOND])
            {
                for my $clock ('redis', 'nginx') {
                    for my $cost (1, 3, 11) {
                        peek({ %$limit, cost => $cost }, clock => $clock,
                             at => $NOON + $by->[0], nginx => $NOON + $by->[1]);
                    }
                }

                $wrong++ if ($script->bytes_of($limit)->[0] // '')
                            ne ($bytes->[0] // '');
                $wrong++ if $pttl < 0 ? $script->pttl($limit) != $pttl
                                      : $script->pttl($limit) > $pttl;
            }

            is $wrong, 0, "$limit->{kind}: $name";
        }
    }
};


subtest 'peek says what a take would find' => sub {
    my $limit = $script->bucket(rate => [1, 10]);

    is_deeply peek($limit, at => $NOON), [10_000_000], 'full, without a key';
    is_deeply peek({ %$limit, cost => 10 }, at => $NOON), [10_000_000],
              'whatever the cost is';
    $script->take([{ %$limit, cost => 9 }], at => $NOON);
    is_deeply peek({ %$limit, cost => 2 }, at => $NOON), [-1_000_001],
              'too little for this cost';
    is_deeply peek({ %$limit, cost => 2 }, at => $NOON + 10 * $SECOND),
              [2_000_000], 'enough ten seconds later';
    is_deeply peek({ %$limit, cost => 11 }, at => $NOON), [-1_000_001],
              'a cost that never fits';
};


subtest 'steps: nothing comes within one, all of it at its end' => sub {
    for my $case ([5 * $SECOND, [1, 1], 10], [$SECOND, [3, 1], 100],
                  [10_000, [1000, 1], 500], [$MINUTE, [7, 60], 20],
                  [700_000, [1, 1], 10], [$HOUR, [10, 86_400], 10])
    {
        my ($step, $rate, $capacity) = @$case;
        my ($num, $den) = @$rate;
        my $limit = $script->bucket(capacity => $capacity, rate => $rate,
                                    step => $step);
        my $name = "$step us at $num/$den";

        $script->take([{ %$limit, cost => $capacity }], at => $NOON);

        my $one = floor($step * $num / $den);

        is_deeply peek($limit, at => $NOON + $step - 1), [-1, $step - 1],
                  "$name: nothing a microsecond before";
        is_deeply peek({ %$limit, cost => $capacity }, at => $NOON + $step),
                  [-1 - $one, 0], 'a step\'s worth at its end';
        is_deeply peek({ %$limit, cost => $capacity },
                       at => $NOON + 2 * $step - 1),
                  [-1 - $one, $step - 1], 'no more during the next one';

        # the number of whole steps that bring all of it

        my $steps = ceil(ceil($capacity * $SECOND * $den / $num) / $step);

        is_deeply $script->one({ %$limit, cost => $capacity },
                               at => $NOON + $steps * $step - 1),
                  [-1 - floor(($steps - 1) * $step * $num / $den),
                   $step - 1], "not full after $steps steps less a microsecond";
        is_deeply $script->one({ %$limit, cost => $capacity },
                               at => $NOON + $steps * $step), [0, 0],
                  'but then';
    }
};


subtest 'steps begin with the first take of a full bucket' => sub {
    my $limit = $script->bucket(capacity => 4, rate => [1, 1],
                                step => 3 * $SECOND);

    is_deeply $script->one($limit, at => $NOON), [3_000_000, 0], 'the first';
    is_deeply $script->one($limit, at => $NOON + 2 * $SECOND),
              [2_000_000, 2 * $SECOND], 'the second is in the same step';
    is_deeply $script->one($limit, at => $NOON + 4 * $SECOND),
              [3_000_000, 0], 'the third found it full again';
    is $script->fields_of($limit)->{lastRefill}, $NOON + 4 * $SECOND,
       'and so began a step';

    $script->take([{ %$limit, cost => 3 }], at => $NOON + 4 * $SECOND);
    is_deeply $script->one({ %$limit, cost => 3 },
                           at => $NOON + 8 * $SECOND), [0, $SECOND],
              'a step\'s worth, one second into the next';
    is $script->fields_of($limit)->{lastRefill}, $NOON + 7 * $SECOND,
       'which began when the last one ended';
};


# A model of rational numbers that counts whole steps; what the script denies it
# must deny, what it passes must be there.

subtest 'refill in steps is exact with random traffic' => sub {
    srand 10;

    for my $case ([5 * $SECOND, 1, 1, 20], [$SECOND, 7, 60, 10],
                  [300_000, 5, 2, 30], [7 * $SECOND, 3, 1, 40])
    {
        my ($step, $num, $den, $capacity) = @$case;
        my $limit = $script->bucket(capacity => $capacity, step => $step,
                                    rate => [$num, $den], ttl => 3_600_000);
        my $full = $capacity * $SECOND * $den;
        my ($tokens, $last, $now) = ($full, $NOON, $NOON);
        my ($early, $lost, $taken, $wait) = (0, 0, 0, 0);

        for (1 .. 800) {
            $now += any_up_to(2 * $SECOND * $den / $num);

            my $steps = floor(($now - $last) / $step);

            $tokens += $steps * $step * $num;
            $last += $steps * $step;
            ($tokens, $last) = ($full, $now) if $tokens >= $full;

            my $cost = 1 + any_up_to(5);
            my $price = $cost * $SECOND * $den;
            my ($t, $gone) = @{ $script->one({ %$limit, cost => $cost },
                                             at => $now) };

            # each take may lose the part of a microtoken

            $early++ if $t >= 0 && $tokens < $price;
            $lost++ if $t < 0 && $tokens >= $price + $taken * $den;

            if ($t >= 0) {
                $tokens -= $price;
                $taken++;

            } else {

                # what nginx tells the client: whole steps, less what is gone

                my $missing = $cost * $SECOND - (-1 - $t);
                my $due = ceil(ceil($missing * $den / $num) / $step) * $step
                          - $gone;

                $wait++ if peek({ %$limit, cost => $cost },
                                at => $now + $due)->[0] < 0;
                $wait++ if peek({ %$limit, cost => $cost },
                                at => $now + $due - 1)->[0] >= 0;
            }
        }

        is "$early, $lost, $wait", '0, 0, 0',
           "$step us at $num/$den: never early, nothing lost, waits are "
           . "exact ($taken taken)";
    }
};


# A refill that is due every day must come although somebody takes a token now
# and then.

subtest 'a step longer than an hour ends under steady traffic' => sub {
    for my $clock ('redis', 'nginx') {
        my $limit = $script->bucket(capacity => 1000, rate => [1000, 86_400],
                                    step => $DAY);
        my $now = $NOON;

        $script->take([{ %$limit, cost => 500 }], at => $now,
                      clock => $clock);

        for (1 .. 143) {
            $now += 10 * $MINUTE;
            $script->take([$limit], at => $now, clock => $clock);
        }

        is_deeply peek($limit, at => $NOON + $DAY - 1, clock => $clock),
                  [357_000_000, $DAY - 1],
                  "clock $clock: 357 left before the day is over";
        is_deeply peek($limit, at => $NOON + $DAY, clock => $clock),
                  [1_000_000_000, 0], 'all of it afterwards';
    }

    # nor is time lost where a microtoken takes longer than an hour

    my $limit = $script->bucket(capacity => 1_000_000_000,
                                rate => [1, 86_400_000_000]);
    my $now = $NOON;

    $script->take([{ %$limit, cost => 100_000 }], at => $now);
    my ($before) = @{ $script->one($limit, at => $now) };

    for (1 .. 150) {
        $now += 10 * $MINUTE;
        ($before) = @{ $script->one($limit, at => $now) };
    }

    is $before, (1_000_000_000 - 100_151) * $SECOND + 1,
       'one microtoken a day';
};


# --- clocks ------------------------------------------------------------------

subtest 'clock nginx: its time counts, whatever Redis\'s is' => sub {
    my $limit = $script->bucket(rate => [1, 1]);
    my %opt = (clock => 'nginx');

    for my $redis_time ($NOON, $NOON - $DAY, $NOON + 365 * $DAY) {
        $redis->cmd('DEL', $limit->{key});

        is $script->take([{ %$limit, cost => 10 }], %opt, nginx => $NOON,
                         at => $redis_time), 0, 'emptied';
        is $script->fields_of($limit)->{lastRefill}, $NOON, 'nginx\'s time';
        is $script->take([$limit], %opt, nginx => $NOON + 999_999,
                         at => $redis_time + $DAY), -1_000_000,
           'not before a second has passed';
        is $script->take([$limit], %opt, nginx => $NOON + $SECOND,
                         at => $redis_time), 0, 'but then';
    }
};


subtest 'clock nginx: when a bucket goes is Redis\'s affair' => sub {
    for my $rate ([1, 1], [1, 3600]) {
        my $limit = $script->bucket(rate => $rate);
        my $ttl = $script->ttl_of($limit);
        my %opt = (clock => 'nginx', nginx => $NOON);
        my $expires = sub { $script->fields_of($limit)->{expires} };

        # an hour after nginx, then a day before it

        $script->take([$limit], %opt, at => $NOON + $HOUR);
        is $expires->(), ($NOON + $HOUR) / 1000 + $ttl, 'by its clock';

        $redis->bucket_set($limit->{key}, expires => ($NOON - $DAY) / 1000);
        $script->take([$limit], %opt, at => $NOON - $DAY);
        is $expires->(), ($NOON - $DAY) / 1000 + 2 * $ttl, 'used again';

        $redis->bucket_set($limit->{key}, expires => ($NOON - $DAY) / 1000);
        $script->take([{ %$limit, cost => 10 }], %opt, at => $NOON - $DAY);
        is $expires->(), ($NOON - $DAY) / 1000 + 2 * $ttl, 'denied';
    }
};


subtest 'clock nginx: a clock that is behind waits' => sub {
    my $limit = $script->bucket(rate => [1, 1]);
    my %opt = (clock => 'nginx', at => $NOON);

    $script->take([{ %$limit, cost => 7 }], %opt, nginx => $NOON);

    my $left = 3_000_000;

    for my $behind (1, $SECOND, 59 * $SECOND, $MINUTE) {
        $redis->bucket_set($limit->{key}, tokens => 3);

        is $script->take([$limit], %opt, nginx => $NOON - $behind), 2_000_000,
           "$behind us behind: taken from what is there";
        is_deeply [@{ $script->fields_of($limit) }{qw(tokens lastRefill)}],
                  ['2', $NOON], 'the time is that of the one ahead';

        is $script->take([{ %$limit, cost => 3 }], %opt,
                         nginx => $NOON - $behind), -2_000_001,
           'no token comes';
    }

    # it goes on when the clock has caught up, not before

    is $script->take([{ %$limit, cost => 3 }], %opt,
                     nginx => $NOON + $SECOND - 1), -2_999_999 - 1,
       'a microsecond is missing';
    is $script->take([{ %$limit, cost => 3 }], %opt,
                     nginx => $NOON + $SECOND), 0, 'a second after the other';

    # a full bucket keeps the time of the one ahead, too

    my $full = $script->bucket(capacity => 1000, rate => [1, 1]);

    $script->take([$full], %opt, nginx => $NOON);
    $redis->bucket_set($full->{key}, tokens => 1000);
    $script->take([$full], %opt, nginx => $NOON - 30 * $SECOND);
    is $script->fields_of($full)->{lastRefill}, $NOON, 'of a full bucket';
};


subtest 'clock nginx: more than a minute behind is an error' => sub {
    my @limits = ($script->bucket(rate => [1, 1]),
                  $script->bucket(rate => [1, 3600]),
                  $script->bucket(rate => [1, 1], step => $SECOND),
                  $script->window,
                  $script->window(length => 3 * $HOUR));
    my %opt = (clock => 'nginx', at => $NOON);

    $script->take(\@limits, %opt, nginx => $NOON);

    my $bytes = $script->bytes_of(@limits);

    for my $limit (@limits) {
        for my $peek (0, 1) {
            my $reply = $script->take([$limit], %opt, peek => $peek,
                                      nginx => $NOON - $MINUTE - 1);

            isa_ok $reply, 'RateLimit::Redis::Error';
            like "$reply", qr/^CLOCK /, "$limit->{kind}: CLOCK";
        }

        is_deeply $script->bytes_of(@limits), $bytes, 'nothing is changed';
    }

    # one that is not right makes the call fail, and none is taken from

    my @new = ($script->bucket, $script->window);

    for my $limit (@limits) {
        my $reply = $script->take([$new[0], $limit, $new[1]], %opt,
                                  nginx => $NOON - $MINUTE - 1);

        like "$reply", qr/^CLOCK /, 'one of three: CLOCK';
        is $redis->cmd('EXISTS', map { $_->{key} } @new), 0, 'none is taken';
    }

    like $script->take([{ %{ $limits[0] }, shadow => 1 }], %opt,
                       nginx => $NOON - $DAY), qr/^CLOCK /, 'a shadow, too';

    is_deeply $script->bytes_of(@limits), $bytes, 'nothing is changed';
    ok !ref $script->take([$limits[0]], %opt, nginx => $NOON - $MINUTE),
       'a minute is none';
};


# Machines whose clocks differ by up to a minute.  The one that is furthest
# ahead refills; the others must add nothing to that, and lose nothing of it.

subtest 'clock nginx: skewed machines never refill more than one would' => sub {
    srand 11;

    for my $case ([1, 1, 20], [5, 1, 50], [7, 60, 10], [1, 3600, 30]) {
        my ($num, $den, $capacity) = @$case;

        for my $machines ([0, 10], [0, 30, 60], [-30, 30], [0, 0.5, 1, 59]) {
            my $limit = $script->bucket(capacity => $capacity,
                                        rate => [$num, $den]);
            my $full = $capacity * $SECOND * $den;
            my $true = $NOON;
            my ($tokens, $ahead) = ($full, 0);
            my ($passed, $early, $lost, $denied) = (0, 0, 0, 0);

            for (1 .. 400) {
                $true += any_up_to(2 * $SECOND * $den / $num);

                my $skew = $machines->[rand @$machines] * $SECOND;
                my $now = $true + $skew;

                $ahead = $now if $ahead == 0;

                if ($now > $ahead) {
                    $tokens += ($now - $ahead) * $num;
                    $tokens = $full if $tokens > $full;
                    $ahead = $now;
                }

                my $t = $script->take([$limit], clock => 'nginx',
                                      nginx => $now, at => $true);

                $early++ if $t >= 0 && $tokens < $SECOND * $den;
                $lost++ if $t < 0 && $tokens >= $SECOND * $den
                                                + $passed * min($num, $den);

                if ($t >= 0) {
                    $passed++;
                    $tokens -= $SECOND * $den;

                } else {
                    $denied++;
                }
            }

            # and so in true time, but for the minute that the clocks differ

            my $most = $capacity + ($true - $NOON + $MINUTE)
                                   / $SECOND * $num / $den;

            is "$early, $lost", '0, 0',
               "$num/$den, machines at @$machines s: as with one clock";
            cmp_ok $passed, '<=', $most, "$passed passed, $denied did not";
        }
    }
};


subtest 'clock redis: set back, it goes on from there' => sub {
    for my $rate ([1, 1], [1, 3600]) {
        my ($num, $den) = @$rate;
        my $token = $den * $SECOND;

        for my $back (1, $SECOND, $HOUR, 365 * $DAY) {
            for my $spent (7, 10) {
                my $limit = $script->bucket(rate => $rate);
                my $now = $NOON - $back;
                my $left = (10 - $spent) * $SECOND;

                $script->take([{ %$limit, cost => $spent }], at => $NOON);

                is $script->take([{ %$limit, cost => 4 }], at => $now),
                   -1 - $left, "$back us back at $num/$den: nothing came";
                is $script->fields_of($limit)->{lastRefill}, $now,
                   'a denied call follows the clock';
                is $script->take([{ %$limit, cost => 4 }],
                                 at => $now + $token - 1),
                   -1 - $left - floor(($token - 1) * $num / $den),
                   'no token before its time';
                is $script->take([{ %$limit, cost => 11 - $spent }],
                                 at => $now + $token), 0,
                   'nobody is locked out: there it is';
            }
        }
    }

    # where another limit denies, the clock is followed all the same

    my $limit = $script->bucket(rate => [1, 1]);
    my $empty = $script->bucket(rate => [1, 3600], capacity => 1);

    $script->take([{ %$limit, cost => 10 }], at => $NOON);
    $script->take([$empty], at => $NOON - $DAY);

    is_deeply $script->take([{ %$limit, shadow => 1 }, $empty],
                            at => $NOON - $DAY), [-1, -1], 'both deny';
    is $script->take([{ %$limit, cost => 5 }],
                     at => $NOON - $DAY + 5 * $SECOND), 0,
       'five seconds later five have come';

    # with steps

    my $steps = $script->bucket(rate => [1, 1], step => 5 * $SECOND);

    $script->take([{ %$steps, cost => 10 }], at => $NOON);
    is_deeply $script->one($steps, at => $NOON - $HOUR), [-1, 0],
              'a step begins with the clock';
    is_deeply $script->one({ %$steps, cost => 5 },
                           at => $NOON - $HOUR + 5 * $SECOND), [0, 0],
              'and ends after its time';
};


# What came since the last take is lost when the clock is set back to before it;
# what the clock has not shown as time must not come.

subtest 'random steps back: never more than time has brought' => sub {
    srand 12;

    for my $case ([1, 1, 20], [1, 3600, 20]) {
        my ($num, $den, $capacity) = @$case;
        my $limit = $script->bucket(capacity => $capacity,
                                    rate => [$num, $den]);
        my $full = $capacity * $SECOND * $den;
        my ($most, $stored, $last, $now) = ($full, $full, $NOON, $NOON);
        my ($passed, $early, $lost, $set_back) = (0, 0, 0, 0);

        for (1 .. 1000) {
            my $step = any_up_to(3 * $SECOND * $den / $num);

            if (rand > 0.95) {
                $now -= any_up_to($DAY);

            } else {
                $now += $step;
                $most = min($full, $most + $step * $num);
            }

            # the bucket as it was at the last write

            if ($now < $last) {
                $last = $now;
                $set_back++;
            }

            my $tokens = min($full, $stored + ($now - $last) * $num);
            my $t = $script->take([$limit], at => $now);

            $early++ if $t >= 0 && $most < $SECOND * $den;
            $lost++ if $t < 0 && $tokens >= $SECOND * $den
                                           + $passed * min($num, $den);

            if ($t >= 0) {
                $passed++;
                $most -= $SECOND * $den;
                $stored = $tokens - $SECOND * $den;
                $last = $now;
            }
        }

        is $early, 0, "$num/$den: never more than what came";
        is $lost, 0, "and what was seen to come is there ($passed passed, "
                     . "$set_back times back)";
    }
};


# By the other clock nothing special has happened: then it was a leap.

subtest 'a leap forward counts for an hour at most' => sub {
    my $rate = [1, 60];                 # an hour brings 60 tokens
    my $capacity = 10_000;              # full after a week

    for my $clock ('redis', 'nginx') {
        my $other = $clock eq 'redis' ? 'nginx' : 'at';
        my $own = $clock eq 'redis' ? 'at' : 'nginx';

        my $take = sub {
            my ($limit, $time, $other_time, %opt) = @_;

            return $script->take([$limit], clock => $clock, $own => $time,
                                 $other => $other_time, %opt);
        };

        for my $case (
            [0, 0, 0], [30 * $MINUTE, 0, 30], [$HOUR, 0, 60],
            [$HOUR + $MINUTE, 0, 60], [$DAY, 0, 60], [30 * $DAY, 0, 60],
            [10 * $MINUTE, 10 * $MINUTE, 10], [$HOUR, $HOUR, 60],
            [5 * $HOUR, 5 * $HOUR, 300], [$DAY, $DAY, 1440],
            [30 * $DAY, 30 * $DAY, 10_000],
            [$DAY, 5 * $HOUR, 360], [$DAY, 23 * $HOUR, 1440],
            [$DAY, 22 * $HOUR, 1380], [$DAY, 30 * $DAY, 1440],

            # the other clock is set back by less than an hour, or it is that
            # of another machine; by more, and it tells nothing

            [$DAY, -30 * $MINUTE, 60], [$DAY, -$HOUR, 1440],
            [10 * $HOUR, -$DAY, 600])
        {
            my ($by, $other_by, $tokens) = @$case;
            my $limit = $script->bucket(capacity => $capacity, rate => $rate);

            $take->({ %$limit, cost => $capacity }, $NOON, $NOON);

            is $take->({ %$limit, cost => $capacity + 1 }, $NOON + $by,
                       $NOON + $other_by), -1 - $tokens * $SECOND,
               "clock $clock: $by us, by the other clock $other_by: $tokens";
        }

        # once only, and then time goes on

        my $limit = $script->bucket(capacity => $capacity, rate => $rate);
        my $leap = 3 * $DAY;

        $take->({ %$limit, cost => $capacity }, $NOON, $NOON);

        for my $minutes (0 .. 3) {
            my $time = $minutes * $MINUTE;

            is $take->({ %$limit, cost => 5000 }, $NOON + $leap + $time,
                       $NOON + $time), -1 - (60 + $minutes) * $SECOND,
               "denied calls: an hour, and $minutes minutes";
        }

        my $time = 10 * $MINUTE;

        is $take->({ %$limit, cost => 70 }, $NOON + $leap + $time,
                   $NOON + $time), 0, 'all of it is taken';
        is $take->({ %$limit, cost => 2 }, $NOON + $leap + $time + $MINUTE,
                   $NOON + $time + $MINUTE), -1_000_001,
           'and no second hour comes';
        is $take->({ %$limit, cost => 300 },
                   $NOON + $leap + $time + 5 * $HOUR,
                   $NOON + $time + 5 * $HOUR), 0, 'but what time brings';
    }
};


subtest 'a leap with steps; a leap in the middle of traffic' => sub {
    my $limit = $script->bucket(capacity => 1000, rate => [1, 60],
                                step => 30 * $MINUTE);

    $script->take([{ %$limit, cost => 1000 }], at => $NOON);
    is_deeply $script->one({ %$limit, cost => 500 }, at => $NOON + 3 * $DAY,
                           nginx => $NOON + 40 * $MINUTE),
              [-90_000_001, 10 * $MINUTE],
              'an hour and forty minutes: three steps';

    # one token a minute taken from a slow bucket, whose clock leaps by a day
    # after an hour

    $limit = $script->bucket(capacity => 500, rate => [1, 60]);

    my ($passed, $leap) = (0, 0);

    for my $minute (1 .. 700) {
        $leap = $DAY if $minute == 60;

        for (1 .. 3) {
            my $t = $script->take([$limit], nginx => $NOON + $minute * $MINUTE,
                                  at => $NOON + $minute * $MINUTE + $leap);
            $passed++ if $t >= 0;
        }
    }

    is $passed, 500 + 699 + 60, 'capacity, rate, and an hour';
};


subtest 'a leap of a fast bucket fills it, and no more' => sub {
    my $limit = $script->bucket(capacity => 100, rate => [1, 30]);

    $script->take([{ %$limit, cost => 100 }], at => $NOON);
    is $script->take([$limit], at => $NOON + 365 * $DAY, nginx => $NOON),
       99_000_000, 'full';
    is_deeply [sort keys %{ $script->fields_of($limit) }],
              ['expires', 'lastRefill', 'tokens'], 'its state has three fields';
};


subtest 'a bucket without the other clock\'s time counts in full' => sub {
    my $fast = $script->bucket(capacity => 100, rate => [1, 30]);

    $script->short({ %$fast, cost => 100 }, at => $NOON);

    my $slow = { %$fast, rate => [1, 60] };

    is $script->take([$slow], at => $NOON + 90 * $MINUTE, nginx => $NOON),
       89_000_000, 'one that token_bucket.lua made';
    is $script->take([{ %$slow, cost => 89 }], at => $NOON + 90 * $MINUTE,
                     nginx => $NOON), 0, 'emptied';
    is $script->take([{ %$slow, cost => 100 }], at => $NOON + $DAY,
                     nginx => $NOON + $MINUTE), -61_000_001,
       'from the first take on it has one';
};


# --- the rest ----------------------------------------------------------------

# Of a bucket, a field tells when it goes; of a window, Redis.

subtest 'times to live: made longer where too short, by each that passes or not'
    => sub
{
    my @limits = ($script->bucket(rate => [1, 100]),
                  $script->bucket(rate => [1, 1000]),
                  $script->bucket(rate => [0, 1]),
                  $script->bucket(rate => [1, 100], step => $HOUR),
                  $script->window(length => 10 * $MINUTE),
                  $script->window(length => 10 * $HOUR));
    my $ms = $NOON / 1000;

    for my $limit (@limits) {
        my $ttl = $script->ttl_of($limit);
        my $bucket = $limit->{kind} eq 'bucket';

        # so many times its time to live, to the millisecond by the field

        my $near = sub {
            my $wanted = $bucket ? $_[0] * $ttl : $ttl;

            return abs($script->pttl($limit) - $wanted) < 30_000
                   && (!$bucket || $script->fields_of($limit)->{expires}
                                   == $ms + $wanted);
        };

        my $lose = sub {
            my ($left) = @_;

            $redis->bucket_set($limit->{key}, expires => $ms + $left)
                if $bucket;
            $left > 0 ? $redis->cmd('PEXPIRE', $limit->{key}, $left)
                      : $redis->cmd('PERSIST', $limit->{key});
        };

        # the state but for that

        my $state = sub {
            my $hash = $bucket ? $script->fields_of($limit)
                               : $script->bytes_of($limit)->[0];

            delete $hash->{expires} if $bucket;

            return $hash;
        };

        $script->take([{ %$limit, cost => 5 }], at => $NOON);
        ok $near->(1), "$limit->{kind} of $ttl ms: set by the first";

        $lose->(100_000);
        $script->take([$limit], at => $NOON);
        ok $near->(2), 'and the next, twice as long for a bucket';

        for my $left (100_000, 0) {
            $lose->($left);

            my $before = $state->();

            cmp_ok $script->one({ %$limit, cost => 9 }, at => $NOON)->[0],
                   '<', 0, "$left ms left: denied";
            ok $near->(2), 'set by that';
            is_deeply $state->(), $before, 'and nothing else';

            # by one that another limit denies

            my $full = $script->bucket(capacity => 1, rate => [1, 3600]);

            $script->take([$full], at => $NOON);
            $lose->($left);

            my $t = $script->take([$limit, $full], at => $NOON);

            cmp_ok $t->[0], '>=', 0, 'this limit would pass';
            is $t->[-1], -1, 'another one denies';
            ok $near->(2), 'set by that';
            is_deeply $state->(), $before, 'and nothing else';
        }

        next if !$bucket;

        my $half = int($ttl * 0.8);

        $lose->($half);
        $script->take([{ %$limit, cost => 9 }], at => $NOON);
        cmp_ok $script->pttl($limit), '<=', $half,
               'denied: one that is long enough is left alone';

        $lose->($ttl - 1);
        $script->take([$limit], at => $NOON);
        ok $near->(2), 'passed: one that is shorter than a new one is not';

        $lose->($ttl);
        $script->take([$limit], at => $NOON);
        cmp_ok $script->pttl($limit), '<=', $ttl, 'as long as a new one';

        # what somebody else does to the key is not seen before its time

        $lose->(2 * $ttl);
        $redis->cmd('PERSIST', $limit->{key});
        $script->take([{ %$limit, cost => $_ }], at => $NOON) for 1, 9;
        is $script->pttl($limit), -1, 'one that was lost is not missed';
    }

    # nothing has to be kept of one that is full

    for my $limit (@limits) {
        my $full = $script->bucket(capacity => 1, rate => [1, 3600]);
        my $name = $limit->{kind} eq 'bucket'
                   ? "at $limit->{rate}[0]/$limit->{rate}[1]" : 'of a window';

        $redis->cmd('DEL', $limit->{key});
        $script->take([$full], at => $NOON);
        $script->take([{ %$limit, cost => 11 }], at => $NOON);
        is $redis->cmd('EXISTS', $limit->{key}), 0,
           "$name: a denied call makes no key";
        $script->take([$limit, $full], at => $NOON);
        is $redis->cmd('EXISTS', $limit->{key}), 0,
           'nor does one that another limit denies';
    }
};


# A bucket with steps needs its time to refill, and the rest of a step.

subtest 'a bucket with steps is not forgotten before its last step' => sub {
    my $limit = $script->bucket(rate => [1, 10], step => $HOUR);

    $script->take([{ %$limit, cost => 10 }], at => $NOON);

    # full in an hour, although 100 s would do

    $script->expires_in($limit, 1_000_000, at => $NOON + $SECOND);
    $script->take([$limit], at => $NOON + $SECOND);
    cmp_ok $script->pttl($limit), '>=', 3_599_000, 'made longer';

    $script->expires_in($limit, 1_000_000, at => $NOON + 50 * $MINUTE);
    $script->take([$limit], at => $NOON + 50 * $MINUTE);
    cmp_ok $script->pttl($limit), '<=', 1_000_000, 'near its end it is enough';
};


# By Redis's own clock, and with a key that somebody makes older.  Both scripts
# round to the millisecond, and Redis counts from when it began the call.

subtest 'no bucket is forgotten before it is full, whichever script is used'
    => sub
{
    srand 71;

    my ($calls, $passed, $gone, %by) = (0, 0, 0);
    my (@early, @apart);
    my $empty = $script->bucket(capacity => 1, rate => [1, 86_400]);

    $script->take([$empty]);

    for my $run (1 .. 80) {
        my $bucket = $script->bucket;

        for (1 .. 40) {
            my $capacity = 1 + any_up_to(300);
            my $limit = { %$bucket, capacity => $capacity,
                          cost => 1 + any_up_to(1.2 * $capacity),
                          rate => ([1, 1], [1, 10], [3, 60], [20, 1],
                                   [1, 600], [1, 3600], [7, 86400],
                                   [1000, 1], [0, 1])[rand 9] };
            my $by = (qw(short take with step many))[rand 5];

            $limit->{step} = $SECOND * (1, 7, 600)[rand 3] if $by eq 'step';

            my $reply = $by eq 'short' ? $script->short($limit)
                      : $by eq 'with' ? $script->take([$limit, $empty])
                      : $by eq 'many' ? $script->take_many([([$limit]) x 3])
                                        ->[0]
                      : $script->take([$limit]);

            die "$reply\n" if ref $reply eq 'RateLimit::Redis::Error';

            $reply = $reply->[0] if ref $reply;
            $calls++;
            $by{$by}++;
            $passed++ if $reply >= 0 && $by ne 'with';

            # some time goes by, now and then most of what it has left

            for my $part (0, rand 0.2, rand 1.3) {
                my $life = $script->life_of($bucket) or last;

                if ($part) {
                    $script->age($bucket, int($part * min($life->{pttl},
                                                          1e12) / 1000));
                    $life = $script->life_of($bucket);

                    if (!$life) {
                        $gone++;
                        last;
                    }
                }

                # one that is full need not be kept

                last if !defined $life->{tokens};

                my $need = min(needs($limit, $life, $life->{now}),
                               $limit->{rate}[0] ? 9e15
                               : $script->ttl_of($limit) * 500);
                my $name = "run $run by $by: $life->{pttl}";

                push @early, "$name instead of $need"
                    if $life->{pttl} < $need - 100_000
                       && ($limit->{rate}[0] || !$part);
                push @apart, "$name, but $life->{expires} at $life->{now}"
                    if abs($life->{expires} - $life->{now} - $life->{pttl})
                       > 200_000;

                last if rand() < 0.5;
            }
        }
    }

    is join('; ', @early[0 .. min(3, $#early)]), '',
       "as long as it needs, after $calls calls";
    is join('; ', @apart[0 .. min(3, $#apart)]), '',
       'and the field says when it goes';
    cmp_ok min($passed, $calls - $passed, values %by), '>', 300,
           "$passed of $calls passed";
    cmp_ok $gone, '>', 10, "$gone times it had gone by itself";
};


subtest 'calls in a row do not make it longer each time' => sub {
    my $renewals = sub {
        my $stats = $redis->info('commandstats');

        return sum0(map { ($stats->{"cmdstat_$_"} // '') =~ /^calls=(\d+)/ }
                        qw(set pexpire));
    };

    for my $case ([1000, [1, 1], [1]], [50, [1, 10], [1]],
                  [50, [1, 3600], [1]],
                  [50, [1, 10], [0, 1]], [1000, [1, 10], [0, 1]],
                  [100, [1, 1], [1], step => 10 * $SECOND],
                  [100, [0, 1], [1]])
    {
        my ($capacity, $rate, $scripts, @more) = @$case;
        my $limit = $script->bucket(capacity => $capacity, rate => $rate,
                                    @more);
        my $before = $renewals->();

        for my $n (1 .. 400) {
            $scripts->[$n % @$scripts] ? $script->take([$limit])
                                       : $script->short($limit);
        }

        # one that is new, and one that is used

        my $n = $renewals->() - $before;

        cmp_ok $n, '<=', 3, "$capacity at $rate->[0]/$rate->[1]: $n times in "
                            . '400 calls';
        cmp_ok $n, '>=', 1, 'but once at least';
    }
};


subtest 'a key of another type fails the call, and none is taken from' => sub {
    my $bucket = $script->bucket;
    my $window = $script->window;

    for my $make (['SET', 'x'], ['LPUSH', 'x'], ['SADD', 'x'],
                  ['HSET', 'other', 1])
    {
        for my $kind ('bucket', 'window') {
            my ($command, @value) = @$make;
            my $odd = $script->$kind;

            $redis->cmd($command, $odd->{key}, @value);

            my $reply = $script->take([$bucket, $odd, $window]);

            isa_ok $reply, 'RateLimit::Redis::Error';
            like "$reply", qr/\bWRONGTYPE\b/, "$command, $kind: WRONGTYPE";
            is $script->pttl($odd), -1, 'no TTL was given to it';
        }
    }

    is $redis->cmd('EXISTS', $bucket->{key}, $window->{key}), 0,
       'nothing was taken beside them';
};


subtest 'what another algorithm has left counts as gone' => sub {
    my ($hash, $set) = ($script->bucket(capacity => 5),
                        $script->window(capacity => 5));

    $script->take([$hash, $set], at => $NOON);

    my $as_bucket = { %$set, kind => 'bucket', rate => [1, 1] };
    my $as_window = { %$hash, kind => 'window', length => $SECOND };
    my $before = $script->bytes_of($hash, $set);

    is $script->one($as_bucket, at => $NOON, peek => 1)->[0], 5_000_000,
       'a full bucket';
    is $script->one($as_window, at => $NOON, peek => 1)->[0], 5,
       'an empty window';
    is_deeply $script->bytes_of($hash, $set), $before, 'a look changes nothing';

    is $script->one($as_bucket, at => $NOON)->[0], 4_000_000, 'a new bucket';
    is $script->one($as_window, at => $NOON)->[0], 4, 'a new window';
    is $redis->cmd('TYPE', $set->{key}), 'hash', 'in place of the window';
    is $redis->cmd('TYPE', $hash->{key}), 'zset', 'in place of the bucket';
};


# Whatever is in the hash: the reply is one that a bucket of ten can give, and
# a client is served again after the time that a bucket needs to fill.

subtest 'odd fields: no reply is wrong, nobody is locked out' => sub {
    my @odd = ('', ' ', 'abc', 'nan', '-nan', 'inf', '-inf', '1e300', '-1e300',
               '-5', '-0.000001', '0x5', '5 ', '1e3', "5\0",
               '18446744073709551616', '99999999999999999999999',
               '-99999999999999999999999');

    for my $limit ($script->bucket(rate => [1, 1]),
                   $script->bucket(rate => [1, 3600]),
                   $script->bucket(rate => [1, 1], step => 5 * $SECOND))
    {
        my $full = 10 * $limit->{rate}[1] * $SECOND;
        my (@wrong, @locked);

        for my $case ((map { [tokens => $_, lastRefill => $NOON] } @odd),
                      (map { [tokens => 3, lastRefill => $_] } @odd),
                      (map { [tokens => $_, lastRefill => $_] } @odd),
                      (map { [tokens => 0, lastRefill => $NOON, seen => $_] }
                           @odd),
                      (map { [tokens => 3, lastRefill => $NOON,
                              expires => $_] } @odd),
                      [tokens => 5], [lastRefill => $NOON])
        {
            my $name = "{@$case}" =~ s/\0/\\0/r;

            $redis->cmd('DEL', $limit->{key});
            $redis->bucket_set($limit->{key}, @$case);

            my $t = $script->one($limit, at => $NOON);

            push @wrong, "$name: $t->[0]"
                unless $t->[0] >= -1_000_000 && $t->[0] <= 9_000_000;

            # twice, as the first one may only repair

            $script->take([{ %$limit, cost => 10 }], at => $NOON);
            $t = $script->one({ %$limit, cost => 10 }, at => $NOON + $full);
            push @locked, "$name: $t->[0]" if $t->[0] != 0;
        }

        is "@wrong", '', "$limit->{rate}[0]/$limit->{rate}[1]: the replies";
        is "@locked", '', 'full after its time';
    }
};


subtest 'the greatest numbers keep their last digit' => sub {
    my $limit = $script->bucket(capacity => 1_000_000_000,
                                rate => [999_999_999_999_999, 1_000_000]);

    is $script->take([{ %$limit, cost => 100_000 }], at => $NOON),
       999_900_000_000_000, 'the greatest cost of the greatest bucket';
    is $script->fields_of($limit)->{tokens}, '999900000',
       'and so it is kept';
    is $script->take([$limit], at => $NOON + 1),
       999_900_999_999_999 - $SECOND, 'a microsecond\'s refill';
};


# --- several requests in one call --------------------------------------------

subtest 'several requests: one after the other, in one flat reply' => sub {
    my $ip = $script->bucket(capacity => 3, rate => [1, 3600]);
    my $user = $script->gcra(capacity => 5, rate => [1, 3600]);
    my $steps = $script->bucket(rate => [1, 1], step => 5 * $SECOND);
    my $window = $script->window(capacity => 4);
    my $tick = 16 * $HOUR;

    is_deeply $script->flat([[$ip], [$ip, $user], [$window, $ip], [$steps],
                             [$ip, $user, $window], [$user]], at => $NOON),
              [2 * $SECOND,
               $SECOND, 4 * $tick,
               3, $MINUTE, 0, 0,
               9 * $SECOND, 0,
               -1, 4 * $tick, 3, $MINUTE, 0,
               3 * $tick],
              'the fifth is denied, and takes nothing from the others';
    is_deeply [map { $script->fields_of($_)->{tokens} } $ip, $steps],
              ['0', '9'], 'what buckets have kept';
    is_deeply $script->log_of($window), [[$NOON, 1, 'id-' . $script->{ids}]],
              'what the window has';

    is_deeply $script->take_many([[$user], [$ip], [$user], [$user]],
                                 at => $NOON, times => [2, 3, 1, 4]),
              [[2, $tick], [0, -1], [0], [0, -1]],
              'some several times: as many as fit, each in its turn';
    is_deeply $script->take_many([[$user], [$user]], at => $NOON + 2 * $HOUR,
                                 times => [5, 5]), [[2, 0], [0, -1]],
              'two that come several times';

    # a list with one request is no list

    is $script->flat([[$ip]], at => $NOON + $HOUR), 0, 'one integer';
    is_deeply $script->flat([[$ip]], at => $NOON + $HOUR, times => [3]),
              [0, -1], 'two of one that comes several times';
    is_deeply $script->flat([[$ip, $window]], at => $NOON + $HOUR),
              [-1, 4, 0, 0], 'one of several limits';
};


subtest 'several requests: shadows deny nobody, each in its turn' => sub {
    my $shadow = $script->bucket(capacity => 2, rate => [1, 3600],
                                 shadow => 1);
    my $limit = $script->bucket(capacity => 4, rate => [1, 3600]);

    is_deeply $script->flat([([$shadow, $limit]) x 5], at => $NOON),
              [1_000_000, 3_000_000, 0, 2_000_000, -1, 1_000_000, -1, 0,
               -1, -1], 'it has two, the other one four';
    is_deeply [map { $script->fields_of($_)->{tokens} } $shadow, $limit],
              ['0', '0'], 'both are empty';

    $redis->cmd('DEL', $shadow->{key});
    is_deeply $script->flat([[$shadow, $limit], [$shadow], [$shadow],
                             [$shadow], [$limit, $shadow]], at => $NOON),
              [2_000_000, -1, 1_000_000, 0, -1, -1, -1],
              'alone it takes; not from one whose other limit denies';
};


subtest 'several requests: thirty-two of them, and as many limits' => sub {
    my @limits = map { $script->bucket(capacity => $_, rate => [1, 3600]) }
                 1 .. 32;

    is_deeply $script->flat([map { [$_] } @limits], at => $NOON),
              [map { $_ * $SECOND } 0 .. 31], 'one each';
    is_deeply $script->flat([([$limits[30]]) x 32], at => $NOON),
              [(map { $_ * $SECOND } reverse 0 .. 29), -1, -1],
              'all from the same';
};


subtest 'several requests: what fails, fails for those who have it' => sub {
    my %opt = (clock => 'nginx', at => $NOON, nginx => $NOON);
    my $odd = sub {
        my ($kind, $command) = @_;
        my $limit = $script->$kind;

        $redis->cmd($command, $limit->{key}, 'x');
        return $limit;
    };

    for my $bad ($odd->('bucket', 'SET'), $odd->('bucket', 'LPUSH'),
                 $odd->('window', 'SET'), $odd->('window', 'SADD'),
                 $odd->('gcra', 'LPUSH'))
    {
        for my $shadow (0, 1) {
            my $fails = { %$bad, shadow => $shadow };
            my ($bucket, $other) = map { $script->bucket } 1, 2;
            my $window = $script->window;
            my $name = "$bad->{kind}, " . $redis->cmd('TYPE', $bad->{key})
                       . ($shadow ? ', a shadow' : '');
            my $n = $bad->{kind} eq 'window' ? 3 : 1;
            my $bytes = $script->bytes_of($bad);

            my $reply = $script->take_many(
                [[$bucket], [$bucket, $fails], [$fails], [$bucket, $window],
                 [$fails, $window, $other], [$bucket], [$fails]],
                times => [1, 1, 1, 1, 1, 3, 2], at => $NOON);

            like $reply->[$_][0], qr/^WRONGTYPE /, "$name: request $_ fails"
                for 1, 2, 4, 6;
            isa_ok $reply->[1][0], 'RateLimit::Redis::Error';

            is_deeply [map { [@$_[1 .. $#$_]] } @$reply[1, 2, 4, 6]],
                      [[(0) x $n], [(0) x ($n - 1)], [(0) x ($n + 3)],
                       [(0) x $n]], 'what else they have is zero';
            is_deeply [@$reply[0, 3, 5]],
                      [[9_000_000], [8_000_000, 9, $MINUTE, 0],
                       [3, 5_000_000]], 'the others pass and take';
            is $script->fields_of($bucket)->{tokens}, '5',
               'and so it is kept';
            is_deeply [map { $_->[1] } @{ $script->log_of($window) }], [1],
                      'one entry in the window';
            is $redis->cmd('EXISTS', $other->{key}), 0,
               'of those that failed none has taken';
            is_deeply $script->bytes_of($bad), $bytes,
                      'what is somebody else\'s stays';
            is $script->pttl($bad), -1, 'without a TTL';
        }
    }

    # one key that is ahead of this clock, the others are new

    for my $kind (qw(bucket window)) {
        my $ahead = $script->$kind;
        my $new = $script->gcra(capacity => 5, rate => [1, 60]);

        $script->take([$ahead], %opt);

        my $bytes = $script->bytes_of($ahead);
        my $reply = $script->take_many([[$new], [$new, $ahead], [$new],
                                        [$ahead]], %opt,
                                       nginx => $NOON - $MINUTE - 1);

        like $reply->[$_][0], qr/^CLOCK /, "$kind: request $_: CLOCK"
            for 1, 3;
        is_deeply [map { $reply->[$_][0] } 0, 2],
                  [4 * 16 * $MINUTE, 3 * 16 * $MINUTE],
                  'the others pass and take';
        is_deeply $script->bytes_of($ahead), $bytes, 'it is left as it was';

        # of two that fail the first one speaks

        my $other = $odd->('bucket', 'SET');

        $reply = $script->take_many([[$ahead, $other], [$other, $ahead]],
                                    %opt, nginx => $NOON - $MINUTE - 1);
        like $reply->[0][0], qr/^CLOCK /, 'CLOCK comes first';
        like $reply->[1][0], qr/^WRONGTYPE /, 'WRONGTYPE comes first';
    }

    # on the wire: an error is an element

    my ($bucket, $bad) = ($script->bucket, $odd->('bucket', 'SET'));
    my $reply = $script->flat([[$bucket], [$bad], [$bucket]], at => $NOON);

    is scalar(@$reply), 3, 'three elements';
    is_deeply [@$reply[0, 2]], [9_000_000, 8_000_000], 'two integers';
    isa_ok $reply->[1], 'RateLimit::Redis::Error';
    isa_ok $script->flat([[$bad]], at => $NOON), 'RateLimit::Redis::Error';
    isa_ok $script->flat([[$bad], [$bad]], at => $NOON), 'ARRAY';
};


# A handful of limits, each of them twice and with the same history: one is for
# all requests in one call, the other one for single calls at the same time.

sub random_limits {
    my $n = 2 + int rand 5;
    my (@together, @alone);

    while (@together < $n) {
        my $capacity = 1 + any_up_to(20);
        my %limit = (capacity => $capacity, shadow => rand > 0.8,
                     cost => 1 + any_up_to(min(4, $capacity)));
        my $kind = (qw(bucket bucket gcra window window))[rand 5];

        if ($kind eq 'window') {
            $limit{length} = $SECOND * (1, 10, 60, 3600, 36_000)[rand 5];

        } else {
            $limit{rate} = ([1, 1], [5, 2], [7, 60], [1, 3600], [100, 1],
                            $kind eq 'bucket' ? [0, 1] : [3, 7])[rand 6];
        }

        $limit{step} = $SECOND * (1, 3, 60)[rand 3]
            if $kind eq 'bucket' && rand > 0.7;
        $limit{varies} = 1 if $kind eq 'gcra' && rand > 0.7;

        push @together, $script->$kind(%limit);
        push @alone, $script->$kind(%limit);
    }

    return (\@together, \@alone);
}


# What was before the call: some takes, somebody else's data, what another
# algorithm has left.

sub random_history {
    my ($together, $alone, $now, @opt) = @_;

    my $time = $now;

    for (1 .. int rand 6) {
        my $gap = any_up_to(20 * $SECOND);
        my $i = int rand @$together;
        my $cost = 1 + int rand $together->[$i]{capacity};

        $script->take([{ %{ $_->[$i] }, cost => $cost }], at => $time,
                      id => "before-$time-$cost", @opt) for $together, $alone;
        $time += $gap;
    }

    for my $i (0 .. $#$together) {
        my @keys = map { $_->[$i]{key} } $together, $alone;

        if (rand > 0.96) {
            $redis->cmd('DEL', $_), $redis->cmd('LPUSH', $_, 'x') for @keys;

        } elsif (rand > 0.97) {
            $redis->cmd('DEL', $_), $redis->cmd('SET', $_, -5) for @keys;
        }
    }

    return $time;
}


# The state of all, so that it can be compared: a window has an entry for each
# call, so that requests of one call are in one, and of single calls in several.

sub states_of {
    my ($limits) = @_;

    my @states;

    for my $limit (@$limits) {
        my $type = $redis->cmd('TYPE', $limit->{key});

        if ($type eq 'hash' && $limit->{kind} eq 'bucket') {
            my $bucket = $script->fields_of($limit);

            push @states, join ' ', map { "$_=$bucket->{$_}" }
                                        sort keys %$bucket;

        } elsif ($type eq 'zset') {
            my %at;
            my $sum = 0;

            my @all = @{ $redis->cmd('ZRANGE', $limit->{key}, 0, -1,
                                     'WITHSCORES') };

            while (my ($member, $score) = splice @all, 0, 2) {
                my ($total, $cost, $seen) = split /:/, $member;

                # totals go up by the costs, beginning anywhere

                $sum = $total - $cost if !%at;
                $sum += $cost;
                push @states, "total $total instead of $sum" if $sum != $total;

                $at{"$score/$seen"} += $cost;
            }

            push @states, join ' ', "sum=$sum",
                                    map { "$_=$at{$_}" } sort keys %at;

        } elsif ($type eq 'string') {
            push @states, $redis->cmd('GET', $limit->{key});

        } else {
            push @states, $type;
        }
    }

    return @states;
}


# The numbers of a request's reply; of an error, which one it is.

sub numbers {
    my ($reply) = @_;

    my @all = ref $reply eq 'ARRAY' ? @$reply : $reply;

    return map { "$_" =~ /^(WRONGTYPE|CLOCK)\b/ ? $1 : $_ } @all;
}


subtest 'several requests in one call: as so many single calls' => sub {
    srand 81;

    my %seen = map { $_ => 0 } qw(requests passed denied errors times bounds
                                  exact back);
    my (@replies, @states, @ttls);

    for my $batch (1 .. 700) {
        my ($together, $alone) = random_limits();
        my @opt = (clock => rand > 0.7 ? 'nginx' : 'redis');
        my $now = random_history($together, $alone, $NOON, @opt);

        # time goes on, by one clock or both, or stands still, or goes back

        my $kind = rand;

        $now += $kind < 0.2 ? 0
              : $kind < 0.7 ? any_up_to(30 * $SECOND)
              : $kind < 0.8 ? any_up_to($DAY)
              : $kind < 0.95 ? -any_up_to(50 * $SECOND)
              : -any_up_to(3 * $MINUTE);

        push @opt, at => $now, nginx => $now + (rand > 0.2 ? 0 :
                                                any_up_to(5 * $HOUR)
                                                - any_up_to(2 * $MINUTE));

        $seen{back}++ if $kind >= 0.8;

        my (@requests, @times);

        for (1 .. 2 + int rand 9) {
            my @order = sort { $a->[0] <=> $b->[0] }
                        map { [rand, $_] } 0 .. $#$together;
            my $n = min(1 + int rand 3, scalar @order);

            push @requests, [map { $_->[1] } @order[0 .. $n - 1]];
            push @times, $n == 1 && rand > 0.5 ? 2 + int rand 4 : 1;
        }

        # a limit that nobody has is not sent

        my @used = grep { my $i = $_;
                          grep { grep { $_ == $i } @$_ } @requests
                        } 0 .. $#$together;

        my $got = $script->take_many([map { [@$together[@$_]] } @requests],
                                     times => \@times, @opt);

        my %took;                       # windows that earlier ones took from

        for my $i (0 .. $#requests) {
            my @limits = @$alone[@{ $requests[$i] }];
            my @wanted = numbers($script->take(\@limits, @opt,
                                               times => $times[$i]));
            my @got = numbers($got->[$i]);
            my $failed = $wanted[0] =~ /[A-Z]/;
            my $name = "batch $batch, request $i";

            $seen{requests}++;
            $seen{times}++ if $times[$i] > 1;

            if ($failed) {
                $seen{errors}++;
                push @wanted, (0) x (@got - 1);
            }

            # a window that was filled by this call: how long until the oldest
            # leaves, and so a lower bound only, as that may not be enough

            my $at = $times[$i] > 1 ? 1 : 0;
            my $denied = 0;

            for my $limit ($failed ? () : @limits) {
                my $window = $limit->{kind} eq 'window';
                my $wait = $at + 2;

                $denied++ if $wanted[$at] < 0
                             && (!$limit->{shadow} || @limits == 1);

                if ($window && $wanted[$at] < 0) {
                    if (!$took{ $limit->{key} }) {
                        $seen{exact}++;

                    } elsif ($got[$wait] > 0 && $got[$wait] <= $wanted[$wait]
                             && $got[$wait] == $wanted[$at + 1])
                    {
                        $seen{bounds}++ if $got[$wait] < $wanted[$wait];
                        $got[$wait] = $wanted[$wait];
                    }
                }

                $at += $window ? 3 : $limit->{kind} eq 'bucket'
                                     && $limit->{step} ? 2 : 1;
            }

            if (!$failed && !$denied) {
                $took{ $_->{key} } = 1 for @limits;
            }

            $denied ? $seen{denied}++ : $seen{passed}++ if !$failed;

            push @replies, "$name: @got instead of @wanted"
                if "@got" ne "@wanted";
        }

        my @a = states_of([@$together[@used]]);
        my @b = states_of([@$alone[@used]]);

        for my $i (0 .. $#used) {
            push @states, "batch $batch: $a[$i] instead of $b[$i]"
                if $a[$i] ne $b[$i];

            my ($x, $y) = map { $script->pttl($_->[$used[$i]]) } $together,
                                                                 $alone;
            push @ttls, "batch $batch: $x instead of $y"
                if abs($x - $y) > 5000 || ($x < 0) != ($y < 0);
        }

        push @states, "batch $batch: totals" if @a != @used || @b != @used;

        $redis->cmd('DEL', map { $_->{key} } @$together, @$alone);
    }

    is join('; ', @replies[0 .. min(3, $#replies)]), '',
       "the same replies to $seen{requests} requests";
    is join('; ', @states[0 .. min(3, $#states)]), '', 'the same states';
    is join('; ', @ttls[0 .. min(3, $#ttls)]), '', 'which live equally long';
    cmp_ok min(values %seen), '>', 15,
           join ', ', map { "$seen{$_} $_" } sort keys %seen;
};


subtest 'several requests: looks change nothing, and see what each would'
    => sub
{
    srand 82;

    my ($looks, $denied, $errors) = (0, 0, 0);
    my (@replies, @changed);

    for my $batch (1 .. 250) {
        my ($limits, $same) = random_limits();
        my @opt = (clock => rand > 0.7 ? 'nginx' : 'redis');
        my $now = random_history($limits, $same, $NOON, @opt)
                  + any_up_to(30 * $SECOND) - any_up_to(2 * $MINUTE);

        push @opt, at => $now, peek => 1;

        my (@requests, @times);

        for (1 .. 2 + int rand 5) {
            my @order = sort { $a->[0] <=> $b->[0] }
                        map { [rand, $_] } @$limits;
            my $n = min(1 + int rand 3, scalar @order);

            push @requests, [map { $_->[1] } @order[0 .. $n - 1]];
            push @times, $n == 1 && rand > 0.5 ? 2 + int rand 4 : 1;
        }

        my $bytes = $script->bytes_of(@$limits);
        my @pttl = map { $script->pttl($_) } @$limits;
        my $got = $script->take_many(\@requests, times => \@times, @opt);
        my @after = map { $script->pttl($_) } @$limits;

        push @changed, $batch
            if grep { ($_->[0] // '') ne ($_->[1] // '') }
               map { [$bytes->[$_], $script->bytes_of($limits->[$_])->[0]] }
               0 .. $#$limits;
        push @changed, "TTL in $batch"
            if grep { $after[$_] > $pttl[$_] } 0 .. $#pttl;

        for my $i (0 .. $#requests) {
            my @wanted = numbers($script->take($requests[$i], @opt,
                                               times => $times[$i]));
            my @got = numbers($got->[$i]);

            $looks++;
            $denied++ if "@wanted" =~ /-/;

            if ($wanted[0] =~ /[A-Z]/) {
                $errors++;
                push @wanted, (0) x (@got - 1);
            }

            push @replies, "batch $batch: @got instead of @wanted"
                if "@got" ne "@wanted";
        }

        $redis->cmd('DEL', map { $_->{key} } @$limits, @$same);
    }

    is join('; ', @replies[0 .. min(3, $#replies)]), '',
       "what each would see alone: $looks looks";
    is "@changed", '', 'and nothing is changed';
    cmp_ok min($denied, $errors), '>', 30, "$denied denied, $errors errors";
};


done_testing();
