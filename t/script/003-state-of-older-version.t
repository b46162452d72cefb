# State in Redis that version 0.4 has written, or finds: a bucket of the other
# version counts as gone, and no version takes the other's numbers for its own.
#
# 0.4 kept a token bucket as a string.  Its script, as it was published, stands
# for a machine of that version.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp);

my $OLD = slurp('t/lib/token_bucket-0.4.lua');

my $redis = RateLimit::Redis->start;
my $shards = $redis->addr;

my $nginx = RateLimit::Nginx->start(
    log  => 'notice',
    conf => <<"EOC",
    ratelimit_shards $shards;
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_on_error closed;
    ratelimit_deny_cache off;

    ratelimit_limit fast  key=\$arg_k capacity=5 rate=1r/m;
    ratelimit_limit slow  key=\$arg_k capacity=5 rate=1r/d;
    ratelimit_limit other key=\$arg_k capacity=100 rate=1r/h;
    ratelimit_limit step  key=\$arg_k capacity=5 rate=1r/h refill_interval=60s;
    ratelimit_limit gcra  key=\$arg_k capacity=5 rate=1r/h algorithm=gcra;
    ratelimit_limit log   key=\$arg_k capacity=5 window=1h
                    algorithm=sliding_window_log;
EOC
    server => <<'EOC',
        location = /fast { ratelimit fast; empty_gif; }
        location = /slow { ratelimit slow; empty_gif; }
        location = /both { ratelimit slow other; empty_gif; }
        location = /step { ratelimit step; empty_gif; }
        location = /gcra { ratelimit gcra; empty_gif; }
        location = /log  { ratelimit log; empty_gif; }
        location = /new  { ratelimit slow; ratelimit_prefix new; empty_gif; }
EOC
);


# "200 4": status, and how many remain.

sub ask {
    my ($path) = @_;

    my $r = $nginx->get($path);

    return "$r->{status} " . ($r->{headers}{'x-ratelimit-remaining'} // '-');
}


# A machine of 0.4 takes 1 of 5, 1r/d: whole tokens left, -1 if it denies.

sub ask_old {
    my ($key) = @_;

    my $t = $redis->cmd('EVAL', $OLD, 1, $key, 5, 1, 86_400, 1, 432_001_000);

    return $t < 0 ? -1 : int $t / 1_000_000;
}


my %limit = (fast => 'fast', slow => 'slow', both => 'slow', step => 'step',
             gcra => 'gcra', log => 'log');
my %type = (gcra => 'string', log => 'zset');

for my $place (sort keys %limit) {
    subtest "/$place finds a bucket of 0.4 that is used up" => sub {
        my $key = "ratelimit:$limit{$place}:{$place}";

        ask_old($key) for 1 .. 6;
        like $redis->cmd('GET', $key), qr/^tokens +0\.\d+ lastRefill \d+/,
             'a string';

        is_deeply [map { ask("/$place?k=$place") } 1 .. 6],
                  ['200 4', '200 3', '200 2', '200 1', '200 0', '429 0'],
                  'it counts as full, and the limit holds from then on';
        is $redis->cmd('TYPE', $key), $type{$place} // 'hash',
           'in its own format';
        cmp_ok $redis->cmd('PTTL', $key), '>', 0, 'with a time to live';
    };
}


# That is why the two must not share keys.

subtest 'both versions on one key: each starts anew after the other' => sub {
    my $key = 'ratelimit:slow:{mixed}';

    for my $round (1 .. 2) {
        is_deeply [map { ask('/slow?k=mixed') } 1, 2], ['200 4', '200 3'],
                  'this version finds it full';
        is_deeply [map { ask_old($key) } 1, 2], [4, 3], 'and so does 0.4';
    }
};


subtest 'both versions, with a prefix each: both keep the limit' => sub {
    my (@new, @old);

    for (1 .. 7) {
        push @new, ask('/new?k=apart');
        push @old, ask_old('ratelimit:slow:{apart}');
    }

    is_deeply \@new, ['200 4', '200 3', '200 2', '200 1', '200 0',
                      ('429 0') x 2], 'this one';
    is_deeply \@old, [4, 3, 2, 1, 0, -1, -1], '0.4';
};


$nginx->finish;

done_testing;
