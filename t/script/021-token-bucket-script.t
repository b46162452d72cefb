# The Lua scripts alone, against a real redis-server: what they reply, what they
# store, and that tokens come exactly when they are due.
#
# Time is Redis's own in the first half.  Where a microsecond matters, the same
# script runs behind a line that answers TIME with a time of the test's choice.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use IO::Socket::UNIX ();
use List::Util qw(min sum0);
use POSIX qw(ceil floor);

use RateLimit::FakeRedis;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Script;
use RateLimit::Util qw(slurp wait_until);

my $SCRIPT = slurp('build/lua/token_bucket.lua');
my $SHA1 = sha1_hex($SCRIPT);

my $CLOCKED = 'local us, s = table.remove(ARGV), table.remove(ARGV); '
              . 'local real = redis; '
              . 'local redis = { call = function(name, ...) '
              . 'if name == "TIME" then return { s, us } end '
              . 'return real.call(name, ...) end, pcall = real.pcall }; '
              . $SCRIPT;

my $NOON = 1_800_000_000_000_000;       # us, some day in 2027
my $DAY = 86_400_000_000;

my $redis = RateLimit::Redis->start;
my $keys = 0;


sub new_key { return 'ratelimit:script:{' . $keys++ . '}' }


# Takes from the bucket "key", or from each of a list; "rate" is [numerator,
# denominator], "at" the time in microseconds, Redis's own if missing, "nginx"
# that of the caller, "times" how many requests, or a list of that for each
# bucket.

sub take {
    my ($key, %opt) = @_;

    my ($num, $den) = @{ $opt{rate} || [1, 3600] };
    my $capacity = $opt{capacity} // 10;
    my @keys = ref $key ? @$key : $key;
    my @args = (scalar @keys, @keys, $capacity, $num, $den, $opt{cost} // 1,
                $opt{ttl} // ttl($capacity, $num, $den),
                $opt{times} || $opt{nginx} ? $opt{nginx} // 0 : (),
                ref $opt{times} ? @{ $opt{times} } : $opt{times} // ());

    if (!defined $opt{at}) {
        return $redis->try('EVAL', $SCRIPT, @args);
    }

    return $redis->try('EVAL', $CLOCKED, @args,
                       int($opt{at} / 1_000_000), $opt{at} % 1_000_000);
}


# As the module computes it: the time to refill and a second.

sub ttl {
    my ($capacity, $num, $den) = @_;

    return 365 * 86_400_000 if $num == 0;
    return ceil($capacity * 1000 * $den / $num) + 1000;
}


sub state_of { return $redis->bucket($_[0]) // {} }


# The same without the field that says when it goes.

sub tokens_of {
    my $state = state_of($_[0]);

    delete $state->{expires};

    return $state;
}


# The bucket goes in so many milliseconds, which are counted from "at" in its
# field.  A call looks at that field alone.

sub expires_in {
    my ($key, $ms, $at) = @_;

    $redis->bucket_set($key, expires => $at / 1000 + $ms);
    $redis->cmd('PEXPIRE', $key, $ms);
}


# How often a key was told when to go.

sub renewals {
    my $stats = $redis->info('commandstats');

    return sum0(map { ($stats->{"cmdstat_$_"} // '') =~ /^calls=(\d+)/ }
                    qw(set pexpire));
}


sub redis_time {
    my ($s, $us) = @{ $redis->cmd('TIME') };

    return $s * 1_000_000 + $us;
}


subtest 'a reply is one integer: what is left, or below zero what is there'
    => sub
{
    my $key = new_key();
    my $socket = IO::Socket::UNIX->new(Peer => $redis->socket);

    my @call = ('EVAL', $SCRIPT, 1, $key, 3, 1, 86400, 2, 259201000);
    my $bytes = '*' . @call . "\r\n"
                . join '', map { '$' . length($_) . "\r\n$_\r\n" } @call;

    syswrite $socket, $bytes x 2;
    like scalar(<$socket>), qr/^:1000000\r\n\z/, 'two of three: one is left';
    like scalar(<$socket>), qr/^:-10000\d\d\r\n\z/,
         'two more: denied, one token is there';
};


subtest 'a new bucket is full, and is emptied token by token' => sub {
    my $key = new_key();

    for my $left (reverse 0 .. 9) {
        cmp_ok abs(take($key) - $left * 1_000_000), '<', 1000, "$left left";
    }

    cmp_ok take($key), '<', 0, 'denied';
    cmp_ok take($key), '>', -1_000_000, 'less than a token there';
};


subtest 'the state is readable, and other servers need nothing else' => sub {
    my $key = new_key();
    my $before = redis_time();
    take($key, capacity => 10, cost => 3);
    my $after = redis_time();
    my $state = state_of($key);

    is $redis->cmd('TYPE', $key), 'hash', 'a hash';
    is_deeply [sort keys %$state], ['expires', 'lastRefill', 'tokens'],
              'of three fields';
    is $state->{tokens}, '7', 'tokens, a number';
    like $state->{lastRefill}, qr/^\d{16}\z/, 'lastRefill, microseconds';
    cmp_ok $state->{lastRefill}, '>=', $before, 'not before the call';
    cmp_ok $state->{lastRefill}, '<=', $after, 'nor after it';
    like $state->{expires}, qr/^\d{13}\z/, 'expires, milliseconds';
    cmp_ok abs($state->{expires} - $before / 1000 - 36_001_000), '<',
           ($after - $before) / 1000 + 2, 'a time to live after the call';

    my $other = new_key();
    $redis->bucket_set($other, tokens => '4.5', lastRefill => redis_time());
    cmp_ok abs(take($other) - 3_500_000), '<', 1000,
           'a state written by hand is taken as it is';
    cmp_ok $redis->cmd('PTTL', $other), '>', 36_000_000,
           'and gets a time to live';
};


subtest 'a denied call takes nothing and changes nothing' => sub {
    my $key = new_key();

    take($key, cost => 8);

    # two tokens there: to be full takes eight hours

    expires_in($key, 29_000_000, 1000 * int(redis_time() / 1000));
    my $state = state_of($key);

    for (1 .. 5) {
        my $reply = take($key, cost => 3);

        cmp_ok $reply, '<=', -2_000_001, 'denied: two tokens there';
        cmp_ok $reply, '>', -2_001_000, 'and not much more';
        is_deeply state_of($key), $state, 'the hash is untouched';
    }

    cmp_ok $redis->cmd('PTTL', $key), '<=', 29_000_000, 'and so is its TTL';
    cmp_ok take($key, cost => 2), '>=', 0, 'a smaller cost passes';

    my $none = new_key();
    is take($none, cost => 11), -10_000_001, 'above capacity: denied';
    is $redis->cmd('EXISTS', $none), 0, 'and no bucket is made';
};


# A limit that is made slower or larger finds the TTL of what it was before:
# a bucket that is forgotten then would be full at once.

subtest 'a denied call makes a TTL longer that has become too short' => sub {
    my $key = new_key();
    my %opt = (capacity => 10, rate => [1, 100], at => $NOON);

    take($key, %opt, cost => 8);
    my $state = tokens_of($key);

    # eight tokens are missing: 800 s at one in a hundred, and a second

    for my $case ([830_000, [1, 100], 0], [801_000, [1, 100], 0],
                  [800_999, [1, 100], 1_001_000],
                  [770_000, [1, 100], 1_001_000],
                  [830_000, [1, 200], 2_001_000],
                  [1_570_000, [1, 200], 2_001_000],
                  [1_630_000, [1, 200], 0], [770_000, [1, 50], 0],
                  [830_000, [1, 300], 3_001_000], [0, [1, 100], 1_001_000],
                  [-1000, [1, 100], 1_001_000])
    {
        my ($left, $rate, $ttl) = @$case;

        expires_in($key, $left, $NOON) if $left > 0;
        $redis->bucket_set($key, expires => $NOON / 1000 + $left);
        is take($key, %opt, rate => $rate, cost => 3), -2_000_001, 'denied';

        my $pttl = $redis->cmd('PTTL', $key);
        my $expires = state_of($key)->{expires} - $NOON / 1000;
        my $name = "$left ms left at @$rate";

        # it is used again, and so gets twice as much

        if ($ttl) {
            is $expires, 2 * $ttl, "$name: made longer";
            cmp_ok abs($pttl - 2 * $ttl), '<', 30_000, "to twice $ttl ms";

        } else {
            is $expires, $left, "$name: left as it was";
            cmp_ok $pttl, '<=', $left, 'the TTL as well';
        }
    }

    expires_in($key, 1_001_000, $NOON);
    take($key, %opt, capacity => 30, cost => 20);
    cmp_ok abs($redis->cmd('PTTL', $key) - 6_002_000), '<', 30_000,
           'larger: made longer';

    # what somebody else has done to the TTL is not seen before it would end

    expires_in($key, 1_001_000, $NOON);
    $redis->cmd('PERSIST', $key);
    take($key, %opt, cost => 3);
    is $redis->cmd('PTTL', $key), -1, 'a TTL that was lost is not missed';
    take($key, %opt, cost => 3, rate => [1, 200]);
    cmp_ok abs($redis->cmd('PTTL', $key) - 4_002_000), '<', 30_000,
           'until it would be too short';

    is_deeply tokens_of($key), $state, 'and the tokens were never touched';

    # a full bucket needs none

    $key = new_key();
    take($key, %opt);
    expires_in($key, 5000, $NOON + 200_000_000);
    is take($key, %opt, at => $NOON + 200_000_000, cost => 11), -10_000_001,
       'one that is full again denies';
    cmp_ok $redis->cmd('PTTL', $key), '<=', 5000, 'it may go';
};


subtest 'a cost is taken as a whole or not at all' => sub {
    my $key = new_key();

    is take($key, at => $NOON, cost => 10), 0, 'all of a full bucket';
    is take($key, at => $NOON, cost => 1), -1, 'nothing is left';

    $key = new_key();
    is take($key, at => $NOON, cost => 4), 6_000_000, 'four';
    is take($key, at => $NOON, cost => 7), -6_000_001, 'seven of six: denied';
    is take($key, at => $NOON, cost => 6), 0, 'six of six';

    $key = new_key();
    is take($key, at => $NOON, cost => 100_000, capacity => 1_000_000_000,
            rate => [1_000_000_000, 1]), 999_900_000_000_000,
       'the greatest cost of the greatest bucket';
    is state_of($key)->{tokens}, '999900000', 'no digit is lost';
};


subtest 'a take makes the TTL longer, if it is below the time to refill'
    => sub
{
    for my $limit ([10, 1, 1], [1, 1, 86400], [100000, 100000, 1],
                   [1000, 7, 60], [5, 0, 1])
    {
        my ($capacity, $num, $den) = @$limit;
        my %opt = (capacity => $capacity, rate => [$num, $den], at => $NOON);
        my $ttl = ttl($capacity, $num, $den);
        my $key = new_key();

        my $left = sub {
            my ($pttl, $wanted) = ($redis->cmd('PTTL', $key), $_[0] * $ttl);

            return $pttl <= $wanted && $pttl > $wanted - 1000
                   && state_of($key)->{expires} == $NOON / 1000 + $wanted;
        };

        take($key, %opt);
        ok $left->(1), "$capacity tokens at $num/$den: set by the first take";

        next if $capacity == 1;

        # so much is left by the field; in truth it has none, which shows
        # whether it gets one

        my $expires = sub {
            $redis->bucket_set($key, expires => $NOON / 1000 + $_[0]);
            $redis->cmd('PERSIST', $key);
        };

        $expires->(999);
        take($key, %opt, cost => 2);
        ok $left->(2), 'used again: twice as much';

        if ($num) {
            # four tokens are missing, and then six

            my $need = ceil(4 * 1_000 * $den / $num) + 1000;

            $expires->($need);
            take($key, %opt);
            is $redis->cmd('PTTL', $key), -1,
               'one that is long enough is left alone';

            $expires->($need - 1);
            take($key, %opt, cost => 2);
            ok $left->(2), 'one that is too short by then is not';

        } else {
            $expires->($ttl / 2 + 1000);
            take($key, %opt);
            is $redis->cmd('PTTL', $key), -1,
               'one that never refills has it for half of that';

            $expires->($ttl / 2);
            take($key, %opt);
            ok $left->(2), 'at least';
        }
    }

    # a clock set back is repaired by a denied call as well

    my $key = new_key();
    $redis->bucket_set($key, tokens => 0, lastRefill => redis_time() + $DAY);
    cmp_ok take($key), '<', 0, 'denied';
    cmp_ok $redis->cmd('PTTL', $key), '>', 36_000_000, 'that write has one too';
};


subtest 'calls in a row do not make it longer each time' => sub {
    for my $case (['passed', 1000, [1, 1]], ['denied', 50, [1, 10]],
                  ['mixed', 50, [1, 1]])
    {
        my ($name, $capacity, $rate) = @$case;
        my $key = new_key();
        my $before = renewals();

        take($key, capacity => $capacity, rate => $rate) for 1 .. 400;

        my $renewed = renewals() - $before;

        # the first, and one more when it is almost empty

        cmp_ok $renewed, '<=', 2, "$name: $renewed times in 400 calls";
        cmp_ok $renewed, '>=', 1, 'but once at least';
    }

    # steadily for ten times its TTL, which is 11 s

    my $key = new_key();
    my %opt = (capacity => 10, rate => [1, 1]);
    my $before = renewals();
    my $short = 0;

    for my $n (0 .. 1100) {
        my $now = $NOON + $n * 100_000;

        take($key, %opt, at => $now);

        my ($tokens, $expires) = @{ state_of($key) }{qw(tokens expires)};

        $short++ if $expires < $now / 1000 + (10 - $tokens) * 1000;
    }

    my $renewed = renewals() - $before;

    cmp_ok $renewed, '<=', 12, "an empty one: $renewed times in 1101 calls";
    is $short, 0, 'and never too late';
};


# The real clock, and a bucket that somebody makes older: whatever the limit has
# become by a call, the key lives until the bucket is full by that limit.

subtest 'random limits: no bucket is forgotten before it is full' => sub {
    srand 61;

    my $script = RateLimit::Script->new($redis);
    my ($calls, $denied, $gone) = (0, 0, 0);
    my (@early, @apart);

    for my $run (1 .. 60) {
        my $bucket = $script->bucket(key => new_key());
        my $name = "run $run";

        for (1 .. 40) {
            my ($num, $den) = @{ ([1, 1], [1, 10], [3, 60], [20, 1], [1, 600],
                                  [1, 3600], [7, 86400], [1000, 1])[rand 8] };
            my $capacity = 1 + int exp rand log 300;
            my $limit = { %$bucket, rate => [$num, $den],
                          capacity => $capacity,
                          cost => 1 + int exp rand log 1.2 * $capacity };

            $calls++;
            $denied++ if $script->short($limit) < 0;

            # some time goes by, now and then most of what it has left

            for my $part (0, rand() < 0.5 ? 0 : rand 0.2, rand 1.1) {
                my $life = $script->life_of($bucket) or last;

                $script->age($bucket, int($part * $life->{pttl} / 1000))
                    if $part;
                $life = $script->life_of($bucket);

                if (!$life) {
                    $gone++;
                    last;
                }

                my $elapsed = $life->{now} - $life->{lastRefill};
                my $need = ($capacity - $life->{tokens}) * 1_000_000
                           * $den / $num - $elapsed;

                push @early, "$name: $life->{pttl} instead of $need"
                    if $life->{pttl} < $need;
                push @apart, "$name: $life->{expires} - $life->{now}, "
                             . "$life->{pttl}"
                    if abs($life->{expires} - $life->{now} - $life->{pttl})
                       > 200_000;

                last if rand() < 0.7;
            }
        }
    }

    is "@early[0 .. min(3, $#early)]", '',
       "as long as it needs, after $calls calls";
    is "@apart[0 .. min(3, $#apart)]", '', 'and the field says when it goes';
    cmp_ok min($denied, $gone), '>', 10,
           "$denied of them denied, $gone times it had gone";
};


subtest 'a bucket that is gone is full again, not before its TTL' => sub {
    my $key = new_key();
    my %opt = (capacity => 100, rate => [100_000, 1], ttl => 1);

    take($key, %opt, cost => 100);
    ok wait_until(sub { $redis->cmd('EXISTS', $key) == 0 }), 'it goes';
    is take($key, %opt), 99_000_000, 'and comes back full';
};


subtest 'a capacity that shrinks clamps, one that grows gives nothing' => sub {
    my $key = new_key();

    is take($key, at => $NOON, capacity => 100), 99_000_000, '99 of 100';
    is take($key, at => $NOON, capacity => 10), 9_000_000, 'now 10: 9 left';
    is state_of($key)->{tokens}, '9', 'the rest is gone for good';
    is take($key, at => $NOON, capacity => 100), 8_000_000,
       'and does not come back with the capacity';

    is take($key, at => $NOON, capacity => 100, cost => 8), 0, 'emptied';
    is take($key, at => $NOON, capacity => 1000), -1, 'larger, still empty';
    is take($key, at => $NOON + 3_600_000_000, capacity => 1000), 0,
       'filled by time alone';

    $key = new_key();
    take($key, at => $NOON, capacity => 100, cost => 50);
    is take($key, at => $NOON, capacity => 10, cost => 11), -10_000_001,
       'a denied call sees the clamped bucket';
    is state_of($key)->{tokens}, '50', 'and leaves it as it was';
};


subtest 'a changed rate counts from the last take on' => sub {
    my $key = new_key();

    take($key, at => $NOON, cost => 10, rate => [1, 1]);
    is take($key, at => $NOON + 4_000_000, rate => [2, 1], cost => 8), 0,
       'twice as fast: eight after four seconds';
    is take($key, at => $NOON + 8_000_000, rate => [0, 1]), -1,
       'none at a rate of zero';
    is take($key, at => $NOON + 8_000_000, rate => [1, 1], cost => 4), 0,
       'what came meanwhile is there when it refills again';
};


subtest 'a token comes when it is due, and not a microsecond early' => sub {
    for my $case (['1r/d', 1, 86400], ['11r/d', 11, 86400],
                  ['100000r/d', 125, 108], ['1r/h', 1, 3600],
                  ['7r/m', 7, 60], ['0.5r/s', 1, 2], ['1r/s', 1, 1],
                  ['3r/s', 3, 1], ['2.5r/s', 5, 2], ['999r/s', 999, 1],
                  ['100000r/s', 100_000, 1])
    {
        my ($name, $num, $den) = @$case;

        for my $cost (1, 3) {
            my %opt = (rate => [$num, $den], capacity => 5, cost => $cost);
            my $due = ceil($cost * 1_000_000 * $den / $num);
            my $key = new_key();

            take($key, %opt, at => $NOON, cost => 5);

            my $there = floor(($due - 1) * $num / $den);
            is take($key, %opt, at => $NOON + $due - 1), -1 - $there,
               "$name, cost $cost: not $due us - 1 after the last";
            is take($key, %opt, at => $NOON + $due),
               floor($due * $num / $den) - $cost * 1_000_000,
               'but the next microsecond';
        }

        # the whole bucket, and never more than it

        my %opt = (rate => [$num, $den], capacity => 5);
        my $full = ceil(5_000_000 * $den / $num);
        my $key = new_key();

        take($key, %opt, at => $NOON, cost => 5);
        is take($key, %opt, at => $NOON + $full, cost => 5), 0,
           "$name: full after $full us";
        is take($key, %opt, at => $NOON + $full), -1, 'and empty again';
        is take($key, %opt, at => $NOON + 10 * $full), 4_000_000,
           'never more than full';
    }
};


subtest 'a bucket that stood full keeps no credit of that time' => sub {
    my $key = new_key();
    my %opt = (capacity => 2, rate => [1, 86400]);

    take($key, %opt, at => $NOON);

    # full since noon + 1 day; emptied 86399 us after a whole microtoken

    my $empty = $NOON + $DAY + 86_399;

    is take($key, %opt, at => $empty, cost => 2), 0, 'emptied';
    cmp_ok take($key, %opt, at => $empty + $DAY - 1), '<', 0,
           'the next token comes a day after that, not before';
    is take($key, %opt, at => $empty + $DAY), 0, 'and then it does';
};


# The same calls as a bucket of rational numbers, which never rounds: the script
# may not pass what that one denies, and each take may lose it a microsecond or
# a microtoken, whichever is less.

subtest 'random traffic: never early, and no time is lost' => sub {
    srand 42;

    for my $case (['3r/s', 3, 1, 50], ['7r/m', 7, 60, 20],
                  ['11r/d', 11, 86400, 3], ['2.5r/s', 5, 2, 10],
                  ['100000r/s', 100_000, 1, 1000], ['13r/h', 13, 3600, 100])
    {
        my ($name, $num, $den, $capacity) = @$case;
        my $full = $capacity * 1_000_000 * $den;       # microtokens * den
        my $tokens = $full;
        my $now = $NOON;
        my $key = new_key();
        my $grain = $num < $den ? $num : $den;
        my ($taken, $early, $lost) = (0, 0, 0);

        for (1 .. 1500) {
            my $step = int exp rand log 3 * 1_000_000 * $den / $num;
            my $cost = rand > 0.8 ? 1 + int rand 3 : 1;

            $now += $step;
            $tokens += $step * $num;
            $tokens = $full if $tokens > $full;

            my $reply = take($key, capacity => $capacity, cost => $cost,
                             rate => [$num, $den], at => $now,
                             ttl => 1_000_000);
            my $price = $cost * 1_000_000 * $den;
            my $passed = $reply >= 0;

            $early++ if $passed && $tokens < $price;
            $lost++ if !$passed && $tokens >= $price + $taken * $grain;

            if ($passed) {
                $tokens -= $price;
                $taken++;
            }

            my $there = ($passed ? $reply : -1 - $reply) * $den;
            $early++ if $there > $tokens;
            $lost++ if $there < $tokens - $taken * $grain - $den;
        }

        is $early, 0, "$name: never more than there is ($taken taken)";
        is $lost, 0, 'and hardly less';
    }
};


subtest 'refills of less than a microtoken add up' => sub {
    my $key = new_key();
    my %opt = (capacity => 1000, rate => [1, 86400], ttl => 1_000_000);

    # a thousand takes within one microtoken's time: its clock stands still

    take($key, %opt, at => $NOON + 80 * $_) for 0 .. 999;
    is state_of($key)->{lastRefill}, $NOON, 'the time is kept';
    is take($key, %opt, at => $NOON + 86_399), -1, 'a microsecond before';
    is take($key, %opt, at => $NOON + 86_400), -2, 'a microtoken has come';
    is take($key, %opt, at => $NOON + $DAY), 0, 'the token comes in time';

    # a steady client at exactly its rate is never denied

    for my $case ([3, 1, 333_334], [7, 60, 8_571_430], [100_000, 1, 10]) {
        my ($num, $den, $step) = @$case;
        my $denied = 0;

        $key = new_key();
        %opt = (capacity => 1, rate => [$num, $den], ttl => 1_000_000);

        for (0 .. 999) {
            $denied++ if take($key, %opt, at => $NOON + $_ * $step) < 0;
        }

        is $denied, 0, "$num/$den: a thousand tokens in a thousand periods";
    }
};


subtest 'a clock that is set back neither refills nor locks out' => sub {
    my %opt = (capacity => 10, rate => [1, 1]);

    # by Redis's own clock: the state is from the future

    my $key = new_key();
    $redis->bucket_set($key, tokens => 5, lastRefill => redis_time() + $DAY);
    is take($key, %opt), 4_000_000, 'taken from what is there, no refill';
    cmp_ok state_of($key)->{lastRefill}, '<=', redis_time(), 'repaired';

    # to the microsecond, for a passed and for a denied call

    for my $case ([3, 2_000_000], [0, -1]) {
        my ($tokens, $reply) = @$case;

        $key = new_key();
        $redis->bucket_set($key, tokens => $tokens,
                           lastRefill => $NOON + 3_600_000_000);

        is take($key, %opt, at => $NOON), $reply, "$tokens tokens: no refill";
        is state_of($key)->{lastRefill}, $NOON, 'it goes on from here';

        my $left = $reply < 0 ? 0 : $reply;
        is take($key, %opt, at => $NOON + 1_000_000), $left,
           'a second later there is one more';
    }

    # back and forth again: the time between counts once

    $key = new_key();
    take($key, %opt, at => $NOON, cost => 10);
    is take($key, %opt, at => $NOON - 5_000_000), -1, 'five seconds back';
    is take($key, %opt, at => $NOON), 4_000_000, 'and forth: five came';

    # the same microsecond twice

    $key = new_key();
    is take($key, %opt, at => $NOON), 9_000_000, 'one';
    is take($key, %opt, at => $NOON), 8_000_000, 'two in one microsecond';
};


subtest 'a leap of the clock fills the bucket and no more' => sub {
    for my $case ([10, 1, 1], [1_000_000_000, 1_000_000_000, 1],
                  [1_000_000_000, 999_999_999, 86_400], [1, 1, 86_400])
    {
        my ($capacity, $num, $den) = @$case;
        my %opt = (capacity => $capacity, rate => [$num, $den],
                   ttl => 1_000_000);
        my $key = new_key();

        $redis->bucket_set($key, tokens => 0, lastRefill => 0);
        is take($key, %opt), ($capacity - 1) * 1_000_000,
           "$capacity at $num/$den: full after fifty years";
        cmp_ok abs(redis_time() - state_of($key)->{lastRefill}), '<',
               60_000_000, 'it goes on from now';
    }
};


# By the caller's clock, which is asked if an hour or more has gone by.

subtest 'a leap of the clock refills for an hour, if the caller tells' => sub {
    my %opt = (capacity => 5000, rate => [5000, 86_400], cost => 5000);
    my $hour = 5000 * 3600 / 86_400;

    for my $case ([1, 1, 1], [2, 2, 2], [48, 0, 1], [48, 3, 4], [48, 47, 48],
                  [48, 48, 48], [48, 100, 48], [3, -0.5, 1], [3, -2, 3],
                  [0.9, 0, 0.9])
    {
        my ($gone, $by_caller, $counts) = @$case;
        my $key = new_key();

        take($key, %opt, at => $NOON, nginx => $NOON);
        is state_of($key)->{seen}, $NOON, "$gone hours: seen at noon";

        my $left = min(5000, $counts * $hour);
        my $reply = take($key, %opt, at => $NOON + $gone * 3_600_000_000,
                         nginx => $NOON + $by_caller * 3_600_000_000);

        $reply = 5_000_000_000 if $reply == 0;
        $reply = -1 - $reply if $reply < 0;
        cmp_ok abs($reply - $left * 1_000_000), '<=', 1,
               "$by_caller by the caller: $counts count";

        $key = new_key();
        take($key, %opt, at => $NOON);
        ok !exists state_of($key)->{seen}, 'not told';
        $reply = take($key, %opt, at => $NOON + 48 * 3_600_000_000);
        is $reply, 0, 'and so it all counts';
    }
};


# Whatever is in the hash: the reply is one that a bucket of ten can give, and
# a client is served again after the time that a bucket needs to fill.

subtest 'odd fields: no reply is wrong, nobody is locked out' => sub {
    my @odd = ('', ' ', 'abc', 'nan', '-nan', 'inf', '-inf', '1e300', '-1e300',
               '-5', '-0.000001', '0x5', '5 ', '1e3', "5\0",
               '18446744073709551616', '99999999999999999999999',
               '-99999999999999999999999');

    my %opt = (capacity => 10, rate => [1, 1]);

    for my $case ((map { [tokens => $_, lastRefill => $NOON] } @odd),
                  (map { [tokens => 3, lastRefill => $_] } @odd),
                  (map { [tokens => 0, lastRefill => $_] } @odd),
                  (map { [tokens => $_, lastRefill => $_] } @odd),
                  (map { [tokens => 5, lastRefill => $NOON, expires => $_] }
                       @odd),
                  [tokens => 5], [lastRefill => $NOON])
    {
        my $key = new_key();
        my $name = "@$case" =~ s/\0/\\0/r;

        $redis->bucket_set($key, @$case);

        my $reply = take($key, %opt, at => $NOON);
        ok $reply >= -1_000_000 && $reply <= 9_000_000, "{$name}"
            or diag "replied $reply";

        # twice, as the first one may only repair

        take($key, %opt, at => $NOON, cost => 10);
        $reply = take($key, %opt, at => $NOON + 10_000_000, cost => 10);
        is $reply, 0, 'full ten seconds later';
    }

    # a debt is no credit

    my $key = new_key();
    $redis->bucket_set($key, tokens => -5, lastRefill => $NOON);
    is take($key, %opt, at => $NOON), -1, 'tokens below zero: denied';
};


subtest 'a key of another type is an error, and stays as it is' => sub {
    my $alike = sprintf 'foreign%17d lastRefill %16d', 5, 7;

    for my $make (['SET', 'x'], ['SET', $alike], ['LPUSH', 'x'],
                  ['SADD', 'x'], ['HSET', 'other', 1], ['HSET', 'expires', 1])
    {
        my ($command, @value) = @$make;
        my $key = new_key();

        $redis->cmd($command, $key, @value);
        my $reply = take($key);

        isa_ok $reply, 'RateLimit::Redis::Error';
        like "$reply", qr/\bWRONGTYPE\b/, "$command: WRONGTYPE";
        is $redis->cmd('PTTL', $key), -1, 'no TTL was given to it';
    }
};


subtest 'what another algorithm has left counts as gone' => sub {
    for my $left (['ZADD', 1, 'x'], ['SET', 1_600_000_000_000_000],
                  ['SET', '-17'],
                  ['SET', 'tokens          3.000000 lastRefill 1763400000123456'
                          . ' expires 1763400012345'])
    {
        my ($command, @value) = @$left;
        my $key = new_key();

        $redis->cmd($command, $key, @value);
        is take($key, capacity => 10), 9_000_000, "$command: a new bucket";
        is $redis->cmd('TYPE', $key), 'hash', 'in its place';
        cmp_ok $redis->cmd('PTTL', $key), '>', 0, 'with a TTL';
    }
};


# What the same number of single calls in the same microsecond would do.

subtest 'several requests at once: as many pass as have tokens' => sub {
    my $key = new_key();
    my %opt = (capacity => 10, rate => [1, 1]);

    is_deeply take($key, %opt, at => $NOON, times => 4), [4, 6_000_000],
              'all of four; six are left';
    is_deeply take($key, %opt, at => $NOON, times => 9), [6, 0],
              'six of nine';

    my $state = state_of($key);

    is_deeply take($key, %opt, at => $NOON + 400_000, times => 3),
              [0, -400_001], 'none of three; what is there';
    is_deeply state_of($key), $state, 'which changes nothing';
    is_deeply take($key, %opt, at => $NOON + 2_400_000, times => 3),
              [2, 400_000], 'two of three, when two have come';

    $key = new_key();
    is_deeply take($key, %opt, at => $NOON, times => 9, cost => 3),
              [3, 1_000_000], 'each with its cost: three of nine';
    is_deeply take($key, %opt, at => $NOON, times => 9, cost => 3),
              [0, -1_000_001], 'what is left is less than one of them needs';
    is_deeply take($key, %opt, at => $NOON, times => 1, cost => 1), [1, 0],
              'once, if it says so: two integers all the same';
    is_deeply take($key, %opt, at => $NOON, times => 1, cost => 1), [0, -1],
              'denied';

    is_deeply take(new_key(), %opt, at => $NOON, times => 9, cost => 11),
              [0, -10_000_001], 'none, if one costs more than there can be';

    # all that can be asked for

    is_deeply take(new_key(), at => $NOON, times => 4_294_967_295,
                   capacity => 1_000_000_000, rate => [1_000_000_000, 1]),
              [1_000_000_000, 0], 'the greatest bucket, emptied at once';

    $key = new_key();
    $redis->bucket_set($key, tokens => 5, lastRefill => $NOON + $DAY);
    is_deeply take($key, %opt, at => $NOON, times => 2), [2, 3_000_000],
              'a clock that was set back';
    is state_of($key)->{lastRefill}, $NOON, 'goes on from here';

    $key = new_key();
    $redis->cmd('SET', $key, 'x');
    like take($key, %opt, times => 2), qr/\bWRONGTYPE\b/,
         'a key of another type is an error';
};


subtest 'several requests at once: as so many single ones' => sub {
    srand 11;

    for my $case ([3, 1, 50], [7, 60, 20], [100_000, 1, 1000], [5, 2, 10]) {
        my ($num, $den, $capacity) = @$case;
        my ($one, $many) = (new_key(), new_key());
        my ($now, $wrong, $passed) = ($NOON, 0, 0);

        for (1 .. 200) {
            $now += int exp rand log 20 * 1_000_000 * $den / $num;

            my $times = 2 + int rand 8;
            my %opt = (capacity => $capacity, rate => [$num, $den],
                       at => $now, cost => 1 + int rand 3, ttl => 1_000_000);

            my @single = map { take($one, %opt) } 1 .. $times;
            my $all = grep { $_ >= 0 } @single;
            my $last = $all ? $single[$all - 1] : $single[0];

            my $got = take($many, %opt, times => $times);

            $wrong++ if "@$got" ne "$all $last";
            $passed += $all;
        }

        is $wrong, 0, "$num/$den: the same replies ($passed passed)";
        is_deeply state_of($many), state_of($one), 'and the same bucket';
    }
};


subtest 'several buckets at once: each by itself' => sub {
    my @keys = map { new_key() } 1 .. 4;
    my %opt = (capacity => 10, rate => [1, 1], cost => 3);

    take($keys[1], %opt, at => $NOON, cost => 5);
    take($keys[2], %opt, at => $NOON, cost => 8);

    my $denied = state_of($keys[2]);

    is_deeply take(\@keys, %opt, at => $NOON),
              [7_000_000, 2_000_000, -2_000_001, 7_000_000],
              'full ones, one that has enough, one that has not';
    is_deeply state_of($keys[2]), $denied, 'which is left as it was';
    is state_of($_)->{tokens}, '7', 'others have been taken from'
        for @keys[0, 3];
    cmp_ok $redis->cmd('PTTL', $_), '>', 9000, 'a TTL for each' for @keys;

    is_deeply take(\@keys, %opt, at => $NOON + 1_000_000),
              [5_000_000, 0, 0, 5_000_000], 'and each refills';

    # thirty-two are what the module sends at most

    is_deeply take([map { new_key() } 1 .. 32], %opt, at => $NOON),
              [(7_000_000) x 32], 'thirty-two';
};


subtest 'several buckets at once: so many requests for each' => sub {
    my @keys = map { new_key() } 1 .. 4;
    my %opt = (capacity => 10, rate => [1, 1], cost => 3);

    take($keys[1], %opt, at => $NOON, cost => 5);
    take($keys[2], %opt, at => $NOON, cost => 8);

    my $denied = state_of($keys[2]);

    is_deeply take(\@keys, %opt, at => $NOON, times => [2, 4, 3, 1]),
              [2, 4_000_000, 1, 2_000_000, 0, -2_000_001, 1, 7_000_000],
              'all, a part, none, and one of one';
    is_deeply state_of($keys[2]), $denied, 'none: left as it was';
    is_deeply [map { state_of($_)->{tokens} } @keys],
              ['4', '2', '2', '7'],
              'each has what is left';
    is_deeply take(\@keys, %opt, at => $NOON + 1_000_000,
                   times => [1, 1, 1, 1]),
              [1, 2_000_000, 1, 0, 1, 0, 1, 5_000_000], 'and each refills';

    # as calls for each of them

    srand 62;

    my ($wrong, $states, $passed, $partly) = (0, 0, 0, 0);

    for my $n (1 .. 150) {
        my $buckets = 2 + int rand 5;
        my @one = map { new_key() } 1 .. $buckets;
        my @many = map { new_key() } 1 .. $buckets;
        my %limit = (capacity => 5 + int rand 20, rate => [1 + int rand 9, 7]);
        my $now = $NOON + $n * 1_000_000;

        for my $call (1 .. 4) {
            my %each = (%limit, cost => 1 + int rand 4, at => $now);
            my @times = map { 1 + int rand 6 } 1 .. $buckets;
            my @single = map { @{ take($one[$_], %each, times => $times[$_]) }
                             } 0 .. $#one;
            my $got = take(\@many, %each, times => \@times);

            $wrong++ if "@$got" ne "@single";
            $states++ if join(' ', map { %{ state_of($_) }{qw(tokens lastRefill
                                         expires)} } @one)
                         ne join(' ', map { %{ state_of($_) }{qw(tokens
                                            lastRefill expires)} } @many);

            for my $i (0 .. $#times) {
                $passed += $single[2 * $i];
                $partly++ if $single[2 * $i] && $single[2 * $i] < $times[$i];
            }

            $now += int rand 3_000_000;
        }
    }

    is "$wrong, $states", '0, 0',
       "random ones: the same replies and states ($passed passed)";
    cmp_ok $partly, '>', 50, 'some of them a part';
};


subtest 'several buckets at once: one of another type fails alone' => sub {
    my @keys = map { new_key() } 1 .. 3;

    $redis->cmd('SET', $keys[1], 'x');

    my $socket = IO::Socket::UNIX->new(Peer => $redis->socket);
    my @call = ('EVAL', $SCRIPT, 3, @keys, 10, 1, 3600, 1, 36_001_000);

    syswrite $socket, '*' . @call . "\r\n"
                      . join '', map { '$' . length($_) . "\r\n$_\r\n" } @call;

    is scalar(<$socket>), "*3\r\n", 'three replies';
    is scalar(<$socket>), ":9000000\r\n", 'the first took';
    like scalar(<$socket>), qr/^-WRONGTYPE /, 'the second is an error';
    is scalar(<$socket>), ":9000000\r\n", 'the third took';
    is $redis->cmd('GET', $keys[1]), 'x', 'what is somebody else\'s stays';

    # with numbers: the error stands where the tokens would

    push @call, 0, 2, 3, 1;

    syswrite $socket, '*' . @call . "\r\n"
                      . join '', map { '$' . length($_) . "\r\n$_\r\n" } @call;

    is scalar(<$socket>), "*6\r\n", 'three pairs';
    is scalar(<$socket>), ":2\r\n", 'two of two';
    like scalar(<$socket>), qr/^:7000\d{3}\r\n\z/, 'seven are left';
    is scalar(<$socket>), ":0\r\n", 'none';
    like scalar(<$socket>), qr/^-WRONGTYPE /, 'an error';
    is scalar(<$socket>), ":1\r\n", 'one of one';
    like scalar(<$socket>), qr/^:8000\d{3}\r\n\z/, 'eight are left';
    is $redis->cmd('PTTL', $keys[1]), -1, 'no TTL was given to it';
};


subtest 'EVALSHA by the SHA-1 of the file is the module\'s call' => sub {
    my $key = new_key();

    $redis->cmd('SCRIPT', 'FLUSH');
    like $redis->try('EVALSHA', $SHA1, 1, $key, 10, 1, 1, 1, 11000),
         qr/^NOSCRIPT/, 'unknown at first';
    is $redis->cmd('SCRIPT', 'LOAD', $SCRIPT), $SHA1, 'Redis computes the same';
    is $redis->cmd('EVALSHA', $SHA1, 1, $key, 10, 1, 1, 1, 11000), 9_000_000,
       'and knows it from then on';

    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => ":9000000\r\n" });
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => 'ratelimit_shards ' . $fake->addr . ';',
        server  => 'location /t { ratelimit_key k; ratelimit_capacity 10;
                    ratelimit_rate 7r/m; ratelimit_cost 3; }');

    is $nginx->get('/t')->{headers}
       {'x-ratelimit-remaining'}, 9, 'nginx got its answer';

    my ($load) = grep { uc $_->[1] eq 'LOAD' } $fake->commands('SCRIPT');
    is $load->[2], $SCRIPT, 'nginx loads this file';
    is_deeply [$fake->commands('EVALSHA')],
              [['EVALSHA', $SHA1, 1, 'ratelimit:localhost/t:{k}', 10, 7, 60, 3,
                86_714]], 'and calls it by its SHA-1';

    $nginx->finish;
};


done_testing();
