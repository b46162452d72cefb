# GCRA: the limits of a token bucket, kept as one integer.  On the same arrivals
# it admits the same requests; with real servers it does what the token bucket
# does wherever a limit can stand.
#
# The first half calls the scripts with a clock of the test's choice.  As Redis
# itself forgets keys by its own clock, those calls make them stay.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use POSIX ();
use Time::HiRes qw(time sleep);

use RateLimit::Answer qw(seen);
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Script;
use RateLimit::Util qw(wait_until);

my $NOON = 1_800_000_000_000_000;       # us, some day in 2027
my $SEED = $ENV{RATELIMIT_SEED} // time ^ $$;

my ($redis, @shards) = RateLimit::Redis->start_many(3);
my $script = RateLimit::Script->new($redis);

srand $SEED;
note "RATELIMIT_SEED=$SEED";


# ---- the scripts

# Takes by the short script, or by take.lua; the key stays.  What comes back is
# how many pass, and what is left, in microtokens.

sub take {
    my ($limit, %opt) = @_;

    my $by = delete $opt{by} // 'short';
    my $reply = $by eq 'take' ? $script->take([$limit], %opt)
                              : $script->short($limit, %opt);

    $redis->cmd('PERSIST', $limit->{key});

    die "$reply\n" if ref $reply && ref $reply ne 'ARRAY';

    my ($passed, $left) = ref $reply ? @$reply : ($reply >= 0, $reply);

    $left = -1 - $left if $left < 0;
    $left = $left * 1_000_000 / $script->tick_of($limit)
        if $limit->{kind} eq 'gcra';

    return (0 + $passed, $left);
}


# The pair of limits that ought to be alike.

sub pair {
    my (%limit) = @_;

    return ($script->bucket(%limit), $script->gcra(%limit));
}


# Times between arrivals: none, a few microseconds, parts of the time for a
# token, some tokens, exactly so many tokens, and now and then a full bucket.

sub gap {
    my ($limit) = @_;

    my ($num, $den) = @{ $limit->{rate} };
    my $token = 1_000_000 * $den / $num;
    my $kind = rand;

    return 0                                         if $kind < 0.2;
    return int rand 20                               if $kind < 0.3;
    return int rand $token                           if $kind < 0.6;
    return POSIX::ceil($token * (1 + int rand 4))    if $kind < 0.8;
    return int rand 3 * $token                       if $kind < 0.97;
    return int(rand(1.2) * $token * $limit->{capacity});
}


# A token bucket counts whole microtokens, and GCRA whole ticks for a token:
# where the rate makes neither exact, each call or token may lose a part of one.

sub exact {
    my ($limit) = @_;

    my ($num, $den) = @{ $limit->{rate} };

    return 16_000_000 * $den % $num == 0;
}


sub slack {
    my ($limit, $calls, $tokens) = @_;

    return 1 if exact($limit);
    return 2 + $calls * min(1, $limit->{rate}[0] / $limit->{rate}[1])
           + $tokens * 1_000_000 / $script->tick_of({ %$limit,
                                                      kind => 'gcra' });
}


subtest 'admits the same requests as a token bucket on the same arrivals'
    => sub
{
    my %rates = ('10r/s' => [10, 1], '100r/s' => [100, 1], '1r/m' => [1, 60],
                 '7r/m' => [7, 60], '3r/s' => [3, 1], '1000r/s' => [1000, 1],
                 '1r/h' => [1, 3600], '0.3r/s' => [3, 10]);

    for my $rate (sort keys %rates) {
        my ($arrivals, $other, $near, $off, $passes) = (0, 0, 0, 0, 0);

        for my $capacity (1, 2, 5, 1 + int rand 30, 1000) {
            my ($bucket, $gcra) = pair(capacity => $capacity,
                                       rate => $rates{$rate});
            my $at = $NOON + int rand 1_000_000_000;
            my ($calls, $tokens) = (0, 0);

            for (1 .. 150) {
                my $cost = rand() < 0.6 ? 1 : 1 + int rand min($capacity, 8);
                my $times = rand() < 0.7 ? 1 : 2 + int rand 6;
                my %opt = (at => $at, times => $times,
                           by => rand() < 0.3 ? 'take' : 'short');

                my ($want, $there) = take({ %$bucket, cost => $cost }, %opt);
                my ($got, $left) = take({ %$gcra, cost => $cost }, %opt);

                my $slack = slack($bucket, ++$calls, $tokens += $want * $cost);

                $arrivals++;
                $passes += $want;

                if ($got != $want) {

                    # so near to a token that rounding decides?

                    if (abs($got - $want) == 1 && !exact($bucket)
                        && min(abs($there - $cost * 1_000_000),
                               abs($left - $cost * 1_000_000),
                               $there, $left) <= $slack)
                    {
                        $near++;
                        last;
                    }

                    $other++;
                    diag "$rate, capacity $capacity, $times x $cost: $got "
                         . "instead of $want ($there, $left)";
                    last;
                }

                if (abs($left - $there) > $slack) {
                    $off++;
                    diag "$rate, capacity $capacity: $left, not $there";
                }

                $at += gap($bucket);
            }
        }

        is $other, 0, "$rate: the same decisions, $arrivals arrivals";
        is $off, 0, 'and as many tokens left, to a millionth';
        cmp_ok $near, '<=', 3, 'rounding decides hardly ever';
        cmp_ok $passes, '>', 100, 'many pass';
    }
};


subtest 'both scripts keep the same number' => sub {
    my $short = $script->gcra(capacity => 20, rate => [7, 60]);
    my $long = $script->gcra(capacity => 20, rate => [7, 60]);
    my $wrong = 0;
    my $at = $NOON;

    for (1 .. 200) {
        my %opt = (at => $at, times => 1 + int rand 3);
        my $cost = 1 + int rand 3;
        my @a = take({ %$short, cost => $cost }, %opt);
        my @b = take({ %$long, cost => $cost }, %opt, by => 'take');

        $wrong++ if "@a" ne "@b"
                    || $redis->cmd('GET', $short->{key})
                       != $redis->cmd('GET', $long->{key});

        $at += gap($short);
    }

    is $wrong, 0, 'after each of 200 calls';
};


subtest 'the state is an integer, and leaves when the bucket is full, or later'
    => sub
{
    my $limit = $script->gcra(capacity => 10, rate => [1, 10]);

    is $script->short({ %$limit, cost => 3 }), 7 * 160_000_000, 'three of ten';
    is $redis->cmd('TYPE', $limit->{key}), 'string', 'a string';
    is $redis->cmd('OBJECT', 'ENCODING', $limit->{key}), 'int',
       'that Redis keeps as an integer';

    my ($s, $us) = @{ $redis->cmd('TIME') };
    my $now = ($s - 1_700_000_000) * 16_000_000 + $us * 16;

    cmp_ok abs($redis->cmd('GET', $limit->{key}) - $now - 30 * 16_000_000),
           '<', 16_000_000, 'when it will be full: in thirty seconds';

    my $ttl = $script->pttl($limit);

    ok $ttl > 39_000 && $ttl <= 50_000, 'it goes ten to twenty seconds later'
        or diag $ttl;

    my $state = $redis->cmd('GET', $limit->{key});

    cmp_ok $script->short({ %$limit, cost => 8 }), '<', 0, 'a denied call';
    is $redis->cmd('GET', $limit->{key}), $state, 'changes nothing';
    cmp_ok $script->pttl($limit), '<=', $ttl, 'nor does the key live longer';

    is $script->short({ %$limit, cost => 11, key => 'none' }),
       -1 - 10 * 160_000_000, 'above the capacity: denied';
    is $redis->cmd('EXISTS', 'none'), 0, 'and nothing is kept';

    # so does the other script

    $script->take([$limit]);
    $ttl = $script->pttl($limit);
    ok $ttl > 49_000 && $ttl <= 60_000, 'by take.lua as well' or diag $ttl;

    # but by nginx's clock it may be wrong, and goes a second later

    my $other = $script->gcra(capacity => 10, rate => [1, 10]);

    $script->take([{ %$other, cost => 3 }], clock => 'nginx');
    cmp_ok abs($script->pttl($other) - 31_000), '<', 1000, 'by nginx\'s clock';
};


# Two tokens a second, and a key that goes at the end of the ten seconds after
# those in which its bucket would be full.

subtest 'the key is told when to go as seldom as can be' => sub {
    my $gcra = $script->gcra(capacity => 50, rate => [2, 1]);
    my $from = 200_000_000 * 16_000_000;
    my $second = 1_000_000;
    my (@ends, $short);

    my $sets = sub {
        my ($calls) = ($redis->info('commandstats')->{cmdstat_set} // '')
                      =~ /^calls=(\d+)/;
        return $calls // 0;
    };

    my $before = $sets->();

    for my $n (0 .. 249) {
        my $at = 1_900_000_000 * $second + $n * $second / 5;

        $script->short($gcra, at => $at);

        my $now = $from + $n * 3_200_000;
        my $full_at = $redis->cmd('GET', $gcra->{key});

        # by the clock of the script, as Redis's own does not move

        my $ends = $redis->cmd('PTTL', $gcra->{key}) / 1000;

        if (!@ends || $sets->() - $before > @ends) {
            push @ends, ($now / 16_000_000 + $ends);
        }

        $short++ if $ends[-1] < $full_at / 16_000_000 + 9.5;
    }

    is scalar @ends, $sets->() - $before, 'every time it was another end';
    cmp_ok scalar @ends, '<', 10, scalar(@ends) . ' times in 250 calls';
    is $short, undef, 'and never too late';
    is scalar(grep { abs($_ - 10 * int($_ / 10 + 0.5)) > 0.5 } @ends), 0,
       'which is that of ten seconds' or diag "@ends";
};


# By Redis's own clock: of whichever script and limit the last call was.  Time
# goes by in that somebody makes the key older.

subtest 'no key is forgotten before its bucket is full' => sub {
    my ($calls, $passed) = (0, 0);
    my @early;

    for my $run (1 .. 40) {
        my $gcra = $script->gcra;
        my $varies = int rand 2;

        for (1 .. 30) {
            my $capacity = 1 + int exp rand log 300;
            my $limit = { %$gcra, capacity => $capacity, varies => $varies,
                          cost => 1 + int exp rand log 1.2 * $capacity,
                          rate => ([1, 1], [1, 10], [3, 60], [20, 1],
                                   [1, 600], [1, 3600], [7, 86400])[rand 7] };
            my %opt = rand() < 0.3 ? (times => 1 + int rand 4) : ();
            my $reply = rand() < 0.5 ? $script->short($limit, %opt)
                                     : $script->take([$limit], %opt);

            $calls++;
            $passed++ if (ref $reply ? $reply->[1] : $reply) >= 0;

            my ($s, $us) = @{ $redis->cmd('TIME') };
            my $pttl = $script->pttl($gcra);

            next if $pttl == -2;

            my $now = ($s - 1_700_000_000) * 16_000_000 + $us * 16;
            my $full_at = $redis->cmd('GET', $gcra->{key}) // next;

            push @early, "run $run: $pttl ms, and " . ($full_at - $now) / 16000
                if $pttl < ($full_at - $now) / 16_000;

            if (rand() < 0.3 && $pttl > 1000) {
                my $ms = int rand $pttl - 1000;

                $redis->cmd('SET', $gcra->{key}, $full_at - $ms * 16_000,
                            'PX', $pttl - $ms);
            }
        }
    }

    is join('; ', @early[0 .. min(3, $#early)]), '',
       "as long as it needs, after $calls calls, of which $passed passed";
    cmp_ok min($passed, $calls - $passed), '>', 100, 'many of each';
};


subtest 'several keys: each for itself' => sub {
    my @limits = map { $script->gcra(capacity => 5, rate => [1, 60]) } 1 .. 4;
    my $tick = 960_000_000;

    $script->short({ %{ $limits[1] }, cost => 5 }, at => $NOON);
    $redis->cmd('RPUSH', $limits[2]{key}, 'not ours');

    my $reply = $script->short(\@limits, at => $NOON);

    is $reply->[0], 4 * $tick, 'a full one';
    is $reply->[1], -1, 'an empty one';
    like $reply->[2], qr/^WRONGTYPE/, 'one of somebody else';
    is $reply->[3], 4 * $tick, 'another full one';

    # so many requests for each

    is_deeply $script->short([@limits[0, 1, 3]], at => $NOON,
                             times => [2, 3, 9]),
              [2, 2 * $tick, 0, -1, 4, 0], 'some, none, as many as there are';

    $reply = $script->short(\@limits, at => $NOON + 60_000_000,
                            times => [1, 1, 1, 1]);

    is_deeply [@$reply[0 .. 4, 6, 7]],
              [1, 2 * $tick, 1, 0, 0, 1, 0], 'and each refills';
    like $reply->[5], qr/^WRONGTYPE/, 'an error stands where the ticks would';
    is $redis->cmd('TYPE', $limits[2]{key}), 'list', 'and it is left alone';
    is $script->pttl($limits[2]), -1, 'without a TTL';

    # of a single key it is the whole reply

    like $script->short($limits[2], at => $NOON), qr/^WRONGTYPE/, 'alone';
    like $script->short($limits[2], at => $NOON, times => 2), qr/^WRONGTYPE/,
         'several times';
    is_deeply $script->short($limits[3], at => $NOON + 120_000_000,
                             times => 1), [1, 0],
              'once, if it says so: two integers all the same';
};


subtest 'several keys, so many requests for each: as calls for each' => sub {
    my ($wrong, $states, $passed, $partly) = (0, 0, 0, 0);

    for my $n (1 .. 100) {
        my %limit = (capacity => 5 + int rand 20, rate => [1 + int rand 9, 7],
                     varies => int rand 2);
        my $keys = 2 + int rand 5;
        my @one = map { $script->gcra(%limit) } 1 .. $keys;
        my @many = map { $script->gcra(%limit) } 1 .. $keys;
        my $now = $NOON;

        for my $call (1 .. 4) {
            my @times = map { 1 + int rand 6 } 1 .. $keys;
            my @cost = (cost => 1 + int rand 4);
            my @single = map { @{ $script->short({ %{ $one[$_] }, @cost },
                                                 at => $now,
                                                 times => $times[$_]) }
                             } 0 .. $#one;
            my $got = $script->short([map { { %$_, @cost } } @many],
                                     at => $now, times => \@times);

            $wrong++ if "@$got" ne "@single";
            $states++ if "@{ $redis->cmd('MGET', map { $_->{key} } @one) }"
                         ne "@{ $redis->cmd('MGET', map { $_->{key} }
                                                    @many) }";

            for my $i (0 .. $#times) {
                $passed += $single[2 * $i];
                $partly++ if $single[2 * $i] && $single[2 * $i] < $times[$i];
            }

            $now += int rand 3_000_000;
            $now -= int rand 60_000_000 if rand() < 0.1;
        }
    }

    is "$wrong, $states", '0, 0', "the same replies and states, $passed passed";
    cmp_ok $partly, '>', 20, 'some of them a part';
};


# A server whose clock was wrong: what it wrote then must not hold up anybody
# for longer than an empty bucket takes to fill.

subtest 'a clock that steps back or forward locks nobody out' => sub {
    for my $by (qw(short take)) {
        for my $leap (1_000_000, 3_600_000_000, 86_400_000_000 * 400) {
            my ($bucket, $gcra) = pair(capacity => 10, rate => [1, 1]);

            for my $limit ($bucket, $gcra) {
                my @call = ($limit, by => $by);

                # emptied while the clock is ahead, and one denied then

                take(@call, at => $NOON + $leap) for 1 .. 11;

                my $first;

                for my $second (0 .. 20) {
                    my ($passed) = take(@call, at => $NOON
                                                     + $second * 1_000_000);
                    $first //= $second if $passed;
                }

                is $first, 1, "$limit->{kind} by $by, set back by "
                              . $leap / 1e6 . ' s: empty, and then it fills';
            }
        }

        for my $leap (5_000_000, 86_400_000_000) {
            my $limit = $script->gcra(capacity => 10, rate => [1, 1]);
            my $passed = 0;

            take($limit, at => $NOON, by => $by) for 1 .. 10;
            $passed += (take($limit, at => $NOON + $leap, by => $by))[0]
                for 1 .. 20;

            is $passed, min(10, $leap / 1_000_000),
               "by $by, set forward by " . $leap / 1e6
               . ' s: never more than the capacity';
        }
    }
};


subtest 'a limit that becomes smaller holds up nobody either' => sub {
    for my $by (qw(short take)) {
        my ($bucket, $gcra) = pair(capacity => 100, rate => [1, 1]);

        for my $limit ($bucket, $gcra) {
            take({ %$limit, cost => 100 }, at => $NOON, by => $by);

            my $small = { %$limit, capacity => 5 };
            my @passed = map {
                (take($small, at => $NOON + $_ * 1_000_000, by => $by))[0]
            } 0 .. 8;

            is "@passed", '0 1 1 1 1 1 1 1 1',
               "$limit->{kind} by $by: a token a second, as it should be";
        }
    }
};


# Whether a limit may be another one for the same key is what the call says.

subtest 'a smaller limit sets right what a larger one has left, if it may'
    => sub
{
    for my $by (qw(short take)) {
        for my $varies (0, 1) {
            my $limit = $script->gcra(capacity => 100, rate => [1, 1],
                                      varies => $varies);

            take({ %$limit, cost => 100 }, at => $NOON, by => $by);
            take({ %$limit, capacity => 5 }, at => $NOON, by => $by);

            is_deeply [take({ %$limit, cost => 2 }, at => $NOON, by => $by)],
                      $varies ? [0, 0] : [1, 93_000_000],
                      $varies ? "by $by: one that varies: still empty"
                              : "by $by: else it lacks five";
        }
    }
};


# Of a limit that a variable gives, requests for the same key may have several.
# One that is denied by a small one must not fill the bucket of a large one.

subtest 'a smaller limit of the same key fills nothing' => sub {
    $redis->cmd('FLUSHALL');

    my $n = RateLimit::Nginx->start(workers => 1, conf => <<"EOC",
    ratelimit_shards ${\ $redis->addr};
    ratelimit_redis_timeout 20s;
    ratelimit_on_error closed;
    ratelimit_algorithm gcra;
    ratelimit_deny_cache off;
    map \$arg_plan \$plan { default 5; gold 20; }
    ratelimit_limit other key=other capacity=1000 rate=1000r/d algorithm=gcra;
    ratelimit_limit plan key=\$arg_k capacity=\$plan rate=1r/h algorithm=gcra;
EOC
        server => <<'EOC');
        location /one { ratelimit plan; empty_gif; }
        location /two { ratelimit plan other; empty_gif; }
EOC

    for my $place (qw(/one /two)) {
        my $gold = 0;

        for (1 .. 40) {
            $gold++ if $n->get("$place?k=$place&plan=gold")->{status} == 200;
            $n->get("$place?k=$place");
        }

        cmp_ok $gold, '<=', 20, "$place: $gold of 40 pass, not more than 20";
        cmp_ok $gold, '>=', 15, 'and not fewer than a small one leaves';
    }

    $n->finish;
};


# nginx's clocks are many, and the one that is behind must not set back what
# another one wrote: that would be tokens for free.

subtest 'by the clocks of several nginx none gets more' => sub {
    my ($bucket, $gcra) = pair(capacity => 10, rate => [1, 1]);

    for my $limit ($bucket, $gcra) {
        my $passed = 0;
        my $last = 0;

        for my $second (0 .. 30) {
            for my $behind (0, 0.2, 5, 0.7, 0) {
                $last = $NOON + int(1_000_000 * ($second - $behind));

                my ($n) = take($limit, by => 'take', clock => 'nginx',
                               at => $NOON, nginx => $last);
                $passed += $n;
            }
        }

        is $passed, 40, "$limit->{kind}: ten, and one a second";
    }
};


subtest 'refunds give back what was taken, and no more' => sub {
    my $limit = $script->gcra(capacity => 10, rate => [1, 60]);

    take({ %$limit, cost => 3 }, at => $NOON);
    is $script->refund([{ %$limit, cost => 2 }], id => 'x'), 1, 'two of three';
    is +(take($limit, at => $NOON))[1], 8_000_000, 'nine, and one is taken';

    $script->refund([{ %$limit, cost => 9 }], id => 'x');
    is +(take($limit, at => $NOON))[1], 9_000_000, 'never above the capacity';

    my $gone = $script->gcra;
    is $script->refund([$gone], id => 'x'), 0, 'one that is gone is full';
    is $redis->cmd('EXISTS', $gone->{key}), 0, 'and stays so';

    $redis->cmd('SET', $gone->{key}, 'not ours');
    is $script->refund([$gone], id => 'x'), 0, 'what is not ours';
    is $redis->cmd('GET', $gone->{key}), 'not ours', 'is left alone';
};


subtest 'an algorithm that changes begins anew, in either direction' => sub {
    my @make = (sub { $script->bucket(@_) }, sub { $script->gcra(@_) },
                sub { $script->window(@_) });

    for my $by (qw(short take)) {
        for my $from (@make) {
            for my $to (@make) {
                next if $from == $to;

                my $old = $from->(capacity => 5, rate => [1, 60]);
                my $new = { %{ $to->(capacity => 5, rate => [1, 60]) },
                            key => $old->{key} };

                my $way = $new->{kind} eq 'window' ? 'take' : $by;

                $script->take([{ %$old, cost => 5 }]);

                my $reply = $way eq 'take' ? $script->one($new)
                                           : [$script->short($new)];
                my $left = $reply->[0] / ($new->{kind} eq 'window' ? 1
                           : $new->{kind} eq 'gcra' ? 960_000_000
                           : 1_000_000);

                is $left, 4, "$old->{kind} to $new->{kind} by $way: full";
            }
        }
    }
};


subtest 'with others in one call: all or nothing' => sub {
    my $gcra = $script->gcra(capacity => 3, rate => [1, 60]);
    my $bucket = $script->bucket(capacity => 5, rate => [1, 60]);
    my $window = $script->window(capacity => 4);
    my $tick = 960_000_000;
    my @all = ($gcra, $bucket, $window);

    for my $n (1 .. 3) {
        my $reply = $script->take(\@all, at => $NOON);

        is_deeply [@$reply[0, 1, 2]],
                  [(3 - $n) * $tick, (5 - $n) * 1_000_000, 4 - $n],
                  "request $n takes from all three";
    }

    my $before = $script->bytes_of(@all);
    my $reply = $script->take(\@all, at => $NOON);

    is $reply->[0], -1, 'gcra denies the fourth';
    cmp_ok $reply->[1], '>=', 0, 'the bucket does not';
    is_deeply $script->bytes_of(@all), $before, 'and nothing was taken';

    my $peek = $script->take(\@all, at => $NOON, peek => 1);
    is_deeply $peek, $reply, 'a look sees the same';
    is_deeply $script->bytes_of(@all), $before, 'and changes nothing';

    # in the shadow it denies nobody

    $reply = $script->take([{ %$gcra, shadow => 1 }, $bucket, $window],
                           at => $NOON);
    is_deeply [@$reply[0, 1, 2]], [-1, 1_000_000, 0],
              'a shadow limit lets the others take';

    # and is not taken from when another one denies

    my $other = $script->gcra(capacity => 10, rate => [1, 60]);
    $reply = $script->take([$other, $window], at => $NOON);
    is $reply->[0], 10 * $tick, 'full, as the window denies';
    is $redis->cmd('EXISTS', $other->{key}), 0, 'nothing was kept';
};


# ---- nginx

my $one = $redis->addr;
my $spread = join ' ', map { $_->addr } @shards;

my %CONFIG = (conf => <<'EOC', server => <<"EOS");
    ratelimit_algorithm gcra;
    ratelimit_key $arg_k;

    ratelimit_limit ip key=$arg_ip capacity=3 rate=1r/h algorithm=gcra;
    ratelimit_limit user key=$arg_user capacity=5 rate=1r/h
                    algorithm=token_bucket;
    ratelimit_limit all key=all$arg_all capacity=7 window=1h
                    algorithm=sliding_window_log;

    map $arg_c $cost { default 1; ~. $arg_c; }

    server {
        listen 127.0.0.1:%%PORT2%%;

        add_header X-Source $ratelimit_source always;
        add_header X-Status $ratelimit_status always;

        location /here { ratelimit_capacity 4; ratelimit_rate 1r/h;
                         empty_gif; }
    }

    server {
        listen 127.0.0.1:%%PORT3%%;
        ratelimit_shards 127.0.0.1:%%PORT4%%;
        ratelimit_on_error local;

        add_header X-Source $ratelimit_source always;
        add_header X-Status $ratelimit_status always;

        location /lost { ratelimit_capacity 4; ratelimit_rate 1r/h;
                         empty_gif; }
    }
EOC
        ratelimit_shards $one;

        add_header X-Vars "\$ratelimit_limit \$ratelimit_remaining" always;

        location /ten { ratelimit_capacity 10; ratelimit_rate 10r/d;
                        ratelimit_cost \$cost; empty_gif; }
        location /bucket { ratelimit_capacity 10; ratelimit_rate 10r/d;
                           ratelimit_algorithm token_bucket;
                           ratelimit_cost \$cost; empty_gif; }
        location /refill { ratelimit_capacity 20; ratelimit_rate 50r/s;
                           empty_gif; }
        location /dry { ratelimit_capacity 2; ratelimit_rate 1r/h;
                        ratelimit_dry_run on; empty_gif; }
        location /peek { ratelimit ip; ratelimit_preview on;
                         ratelimit_preview_cache off; empty_gif; }
        location /ip { ratelimit ip; empty_gif; }
        location /user { ratelimit user; empty_gif; }
        location /three { ratelimit ip user all; empty_gif; }
        location /clock { ratelimit_capacity 4; ratelimit_rate 1r/h;
                          ratelimit_clock nginx; empty_gif; }
        location /remembered { ratelimit_capacity 2; ratelimit_rate 1r/h;
                               ratelimit_deny_cache 60s; empty_gif; }
        location /spread { ratelimit_shards $spread;
                           ratelimit ip user; empty_gif; }
EOS

my @nginx = map { start_nginx(undef, workers => 2, reuseport => 1,
                              deny_cache => 'off', %CONFIG) } 1, 2;
my ($port, $other_port) = map { $_->port } @nginx;


subtest 'exactly the capacity passes, over all nginx and workers' => sub {
    for my $cost (1, 3) {
        my $load = RateLimit::Load::run(
            targets => [$port, $other_port], connections => 30,
            requests => 300, timeout => 60, path => "/ten?k=x$cost&c=$cost");

        my $passes = int(10 / $cost);

        is_deeply $load->statuses, { 200 => $passes, 429 => 300 - $passes },
                  "cost $cost: $passes";
        is $load->error_text, '', 'no errors';
    }
};


subtest 'refills as fast as a token bucket does' => sub {
    my $start = time;
    my $load = RateLimit::Load::run(
        targets => [$port, $other_port], connections => 8, duration => 3,
        timeout => 60, path => '/refill?k=a');
    my $took = time - $start;

    my $most = 20 + 50 * $took;

    note $load->count(200), sprintf ' passed in %.2f s', $took;
    cmp_ok $load->count(200), '<=', $most, 'capacity + rate x time';
    cmp_ok $load->count(200), '>=', 0.8 * (20 + 50 * 3), 'and not much less';
    cmp_ok $load->count(429), '>', 100, 'there were more requests';
};


subtest 'headers and variables are those of a token bucket' => sub {
    for my $request ([1], [3], [7], [6], [10], [11]) {
        my ($cost) = @$request;
        my @r = map { $nginx[0]->get("$_?k=headers&c=$cost") } '/ten', '/bucket';
        my @h = map { $_->{headers} } @r;

        is $r[0]{status}, $r[1]{status}, "cost $cost: $r[1]{status}";

        for my $name (qw(x-ratelimit-limit x-ratelimit-remaining x-source
                         x-status x-ratelimit-policy ratelimit-policy))
        {
            is $h[0]{$name}, $h[1]{$name}, $name;
        }

        for my $name (qw(x-ratelimit-reset retry-after)) {
            if (!defined $h[1]{$name} || $h[1]{$name} !~ /^\d+\z/) {
                is $h[0]{$name}, $h[1]{$name}, "no $name";
                next;
            }

            # both have been called one after the other

            cmp_ok abs($h[0]{$name} - $h[1]{$name}), '<=', 3, $name;
        }

        my @vars = map { [split ' ', $_->{'x-vars'}] } @h;

        is "@{ $vars[0] }[0, 1]", "@{ $vars[1] }[0, 1]", 'variables';
    }
};


subtest 'with a bucket and a window: the one that blocks speaks' => sub {
    $redis->cmd('FLUSHALL');

    for my $n (1 .. 3) {
        my $r = $nginx[0]->get('/three?ip=a&user=u&all=x');

        is $r->{status}, 200, "request $n";
        is $r->{headers}{'x-ratelimit-remaining'}, 3 - $n,
           'what remains of the tightest';
    }

    my $r = $nginx[0]->get('/three?ip=a&user=u&all=x');

    is $r->{status}, 429, 'the fourth';
    is $r->{headers}{'x-name'}, 'ip', 'denied by gcra';
    cmp_ok abs($r->{headers}{'retry-after'} - 3600), '<', 60, 'for an hour';

    is int $redis->tokens('ratelimit:user:{u}'), 2,
       'the bucket was not charged for it';
    is $redis->cmd('ZCARD', 'ratelimit:all:{allx}'), 3, 'nor the window';

    is $nginx[0]->get('/three?ip=b&user=u&all=x')->{status}, 200, 'another address';
    is $nginx[0]->get('/three?ip=b&user=u&all=x')->{status}, 200, 'and again';

    $r = $nginx[0]->get('/three?ip=b&user=u&all=x');
    is "$r->{status} $r->{headers}{'x-name'}", '429 user', 'then the user';

    is $nginx[0]->get('/ip?ip=b')->{status}, 200, 'gcra was not charged for that';
    is $nginx[0]->get('/ip?ip=b')->{status}, 429, 'it had one left';
};


subtest 'previews, dry runs, nginx\'s clock' => sub {
    $redis->cmd('FLUSHALL');

    is $nginx[0]->get('/peek?ip=a')->{headers}{'x-ratelimit-remaining'}, 3,
       'a preview of a new key';
    is $redis->cmd('DBSIZE'), 0, 'takes nothing';

    $nginx[0]->get('/ip?ip=a') for 1 .. 4;

    my $r = $nginx[0]->get('/peek?ip=a');

    is $r->{status}, 200, 'a preview of an empty one passes';
    is $r->{headers}{'x-ratelimit-remaining'}, 0, 'and says so';

    is_deeply [map { seen($_, qw(source status)) }
               map { $nginx[0]->get('/dry?k=a') } 1 .. 4],
              [('200 redis PASSED') x 2, ('200 redis REJECTED_DRY_RUN') x 2],
              'a dry run tells and denies nobody';

    is_deeply [map { $nginx[0]->get('/clock?k=a')->{status} } 1 .. 5],
              [(200) x 4, 429], 'by the clock of nginx';
    is $redis->cmd('TYPE', 'ratelimit:localhost/clock:{a}'), 'string',
       'the same state';
    is $nginx[0]->get('/clock?k=a')->{status}, 429, 'and again';
};


subtest 'a denial is remembered' => sub {
    is_deeply [map { seen($_, qw(source status)) }
               map { $nginx[0]->get('/remembered?k=a') } 1 .. 4],
              [('200 redis PASSED') x 2, ('429 denied REJECTED') x 2],
              'Redis need not be asked about an empty bucket';
};


# A limit on one shard and one on the other: whoever is denied by one of them
# gets back what the other one took.

subtest 'between shards a request that is denied gives back' => sub {
    my $wrong = 0;
    my $apart = 0;

    for my $n (1 .. 20) {
        $_->cmd('FLUSHALL') for @shards;

        $nginx[0]->get("/spread?ip=i$n&user=u$n") for 1 .. 3;

        my $denied = $nginx[0]->get("/spread?ip=i$n&user=u$n");

        $wrong++ if $denied->{status} != 429
                    || $denied->{headers}{'x-name'} ne 'ip';

        my ($user) = grep { $_->cmd('EXISTS', "ratelimit:user:{u$n}") } @shards;
        my ($ip) = grep { $_->cmd('EXISTS', "ratelimit:ip:{i$n}") } @shards;

        $apart++ if $user != $ip;

        wait_until(sub {
            $user->tokens("ratelimit:user:{u$n}") >= 2
        }, 2) or $wrong++;

        # and the other way round: the user has none left, the address one

        $user->bucket_set("ratelimit:user:{u$n}", tokens => 0);
        $ip->cmd('DEL', "ratelimit:ip:{i$n}");

        $wrong++ if $nginx[0]->get("/spread?ip=i$n&user=u$n")->{status} != 429;

        wait_until(sub {
            my $full_at = $ip->cmd('GET', "ratelimit:ip:{i$n}") // return 1;
            my ($s) = @{ $ip->cmd('TIME') };

            return $full_at / 16_000_000 <= $s - 1_700_000_000 + 1;
        }, 2) or $wrong++;
    }

    cmp_ok $apart, '>', 0, 'pairs live apart';
    is $wrong, 0, 'and each got back what it took';
};


subtest 'without shards, and without a shard that answers' => sub {
    is_deeply [map { seen($_, qw(source status)) }
               map { RateLimit::Load::get($nginx[0]->port(2), '/here?k=a') } 1 .. 5],
              [('200 local PASSED') x 4, '429 local REJECTED'],
              'in this machine\'s memory';
    is_deeply [map { seen($_, qw(source status)) }
               map { RateLimit::Load::get($nginx[0]->port(3), '/lost?k=a') } 1 .. 5],
              [('200 local DEGRADED') x 4, '429 local REJECTED'],
              'and when Redis does not answer';
};


subtest 'a limit changes its algorithm by a reload and back' => sub {
    my $n = RateLimit::Nginx->start(workers => 1, conf => <<"EOC",
    ratelimit_shards ${\ $redis->addr};
    ratelimit_redis_timeout 20s;
    ratelimit_on_error closed;

    # of each algorithm a denial is known for a second, whatever comes between
    ratelimit_deny_cache off;
EOC
        server => change('token_bucket'));

    my $requests = sub {
        return [map { $n->get('/?k=c')->{status} }
                1 .. 4];
    };

    is_deeply $requests->(), [200, 200, 200, 429], 'a token bucket';

    for my $algorithm (qw(gcra sliding_window_log gcra token_bucket)) {
        ok $n->reload(server => change($algorithm)), "to $algorithm";
        ok $n->old_workers_gone, 'old workers are gone';
        is_deeply $requests->(), [200, 200, 200, 429], 'begins anew';
    }

    $n->finish;
};


sub change {
    return <<"EOC";
        ratelimit_key \$arg_k;
        location / { ratelimit_algorithm $_[0]; ratelimit_capacity 3;
                     ratelimit_rate 1r/m; ratelimit_window 1h; empty_gif; }
EOC
}


for my $n (@nginx) {
    $n->finish;
}


done_testing();
