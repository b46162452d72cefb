# Clocks that are wrong, end to end: those of Redis and those of nginx machines
# are set while the servers run (t/lib/RateLimit/Clock.pm).  Time that runs back
# brings nothing and locks nobody out, a leap brings an hour at most, and where
# nginx's time counts, a machine that is more than a minute behind is a failure.
#
# A test takes seconds, tokens come once a minute or less often, and clocks are
# set by more than that: no result depends on how fast the machine is.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Clock;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my $MINUTE = 60;
my $HOUR = 3600;
my $DAY = 86_400;

my $redis_clock = RateLimit::Clock->new;
my @clocks = map { RateLimit::Clock->new } 0, 1;

my @shards = $redis_clock->run(sub { RateLimit::Redis->start_many(2) });
my $limits = <<'EOC';
            location %/minute { ratelimit_capacity 10; ratelimit_rate 1r/m;
                                empty_gif; }
            location %/slow { ratelimit_capacity 10000; ratelimit_rate 60r/h;
                              ratelimit_cost $cost; empty_gif; }
            location %/window { ratelimit_algorithm sliding_window_log;
                                ratelimit_capacity 3; ratelimit_window 10m;
                                empty_gif; }
            location %/day { ratelimit_algorithm sliding_window_log;
                             ratelimit_capacity 3; ratelimit_window 1d;
                             empty_gif; }
            location %/step { ratelimit_capacity 10; ratelimit_rate 1r/m;
                              ratelimit_refill_interval 5m; empty_gif; }
EOC

my $by_redis = $limits =~ s/%//gr;
my $by_nginx = $limits =~ s{%}{/n}gr;
my $by_nginx_open = $limits =~ s{%}{/open}gr;

my %CONFIG = (conf => <<'EOC', server => <<"EOS");
    ratelimit_log_key plain;

    map $arg_c $cost { "" 1; default $arg_c; }

    ratelimit_limit user key=$arg_k capacity=10 rate=1r/m;
    ratelimit_limit ip   key=$arg_i capacity=10 window=1h
                         algorithm=sliding_window_log;
EOC
        add_header X-Time \$msec always;

        ratelimit_key \$arg_k;

$by_redis

        location /n/ {
            ratelimit_clock nginx;
$by_nginx
        }

        location /open/ {
            ratelimit_clock nginx;
            ratelimit_on_error open;
$by_nginx_open
        }

        location /both { ratelimit_clock nginx; ratelimit user ip;
                         empty_gif; }
        location /both-open { ratelimit_clock nginx; ratelimit user ip;
                              ratelimit_on_error open; empty_gif; }
        location /user { ratelimit user; ratelimit_clock nginx; empty_gif; }
        location /ip { ratelimit ip; ratelimit_clock nginx; empty_gif; }
        location /quota { ratelimit user; ratelimit_clock nginx;
                          ratelimit_preview on; ratelimit_preview_cache 0;
                          empty_gif; }
EOS

my @nginx = map { $_->run(sub { start_nginx(\@shards, deny_cache => 'off',
                                            log => 'info', %CONFIG) }) } @clocks;
my @ports = map { $_->port } @nginx;


sub reset_clocks { $_->set(0) for $redis_clock, @clocks }


my $keys = 0;

sub new_key { return 'k' . ++$keys }


# A request to the machine with this number.

sub get {
    my ($machine, $path) = @_;

    return RateLimit::Load::get($ports[$machine], $path);
}


sub status { return get(@_)->{status} }


# What a request that passed left, or the status of one that did not.

sub left {
    my $r = get(@_);

    return $r->{status} == 200 ? $r->{headers}{'x-ratelimit-remaining'}
                               : "status $r->{status}";
}


# So many requests pass, and no more.

sub passes {
    my ($machine, $path, $most) = @_;

    my $passed = 0;

    $passed++ while $passed <= $most && status($machine, $path) == 200;

    return $passed;
}


subtest 'the clocks can be set' => sub {
    for my $offset (0, -$DAY, 10 * $DAY) {
        $redis_clock->set($offset);
        $clocks[1]->set(2 * $offset);

        cmp_ok abs($shards[0]->cmd('TIME')->[0] - $redis_clock->time), '<',
               $MINUTE, "Redis: $offset s";
        cmp_ok abs(get(1, '/minute?k=')->{headers}{'x-time'}
                   - $clocks[1]->time), '<', $MINUTE, 'one nginx';
        cmp_ok abs(get(0, '/minute?k=')->{headers}{'x-time'}
                   - $clocks[0]->time), '<', $MINUTE, 'another one';
    }

    reset_clocks();
};


# --- Redis's time counts, the default ----------------------------------------

subtest 'clock redis: nginx\'s time does not matter' => sub {
    for my $path ('/minute', '/step') {
        my $key = new_key();

        reset_clocks();
        is passes(0, "$path?k=$key", 20), 10, "$path: ten pass";

        for my $offset (-$DAY, $DAY, -30 * $MINUTE, 365 * $DAY) {
            $clocks[0]->set($offset);
            is status(0, "$path?k=$key"), 429, "$offset s: no more";
            is status(1, "$path?k=$key"), 429, 'by the other machine either';
        }
    }

    my $key = new_key();

    $clocks[0]->set(-$DAY);
    $clocks[1]->set($DAY);

    is join(' ', map { left($_ % 2, "/window?k=$key") } 0 .. 3),
       '2 1 0 status 429', 'a window: three pass';

    # told in the time of the machine that tells

    my $h = get(1, "/window?k=$key")->{headers};

    cmp_ok abs($h->{'x-ratelimit-reset'} - $clocks[1]->time - 600), '<',
           $MINUTE, 'the reset is told by the machine\'s own clock';
    cmp_ok abs($h->{'retry-after'} - 600), '<', $MINUTE, 'the wait by none';
};


subtest 'clock redis: set back, it brings nothing and locks nobody out' => sub {
    for my $back ($MINUTE, $HOUR, 30 * $DAY) {
        reset_clocks();

        my $bucket = '/minute?k=' . new_key();
        my $window = '/window?k=' . new_key();
        my $step = '/step?k=' . new_key();

        is passes(0, $bucket, 20), 10, 'ten pass';
        is passes(0, $window, 20), 3, 'three in a window';
        is passes(0, $step, 20), 10, 'ten of one with steps';

        $redis_clock->set(-$back);

        for my $machine (0, 1) {
            is status($machine, $_), 429, "$back s back: none"
                for $bucket, $window, $step;
        }

        cmp_ok get(0, $bucket)->{headers}{'retry-after'}, '<=', 60,
               'a token comes within a minute';
        cmp_ok get(0, $window)->{headers}{'retry-after'}, '<=', 600,
               'the oldest leaves after its ten minutes';

        $redis_clock->add(61);
        is passes(0, $bucket, 20), 1, 'a minute later: one token';
        is status(0, $window), 429, 'the window is still full';
        is status(1, $step), 429, 'no step has ended';

        $redis_clock->add(240);
        is passes(1, $bucket, 20), 4, 'four more minutes: four tokens';
        is passes(1, $step, 20), 5, 'the step brings five';

        $redis_clock->add(300);
        is passes(1, $window, 20), 3, 'ten minutes: three pass';
    }
};


subtest 'clock redis: a leap brings an hour, idleness brings all' => sub {
    reset_clocks();

    my $key = '/slow?k=' . new_key();

    # sixty tokens an hour; 10000 of them take a week, so the key stays

    is left(0, "$key&c=10000"), 0, 'emptied';
    $redis_clock->set($DAY);
    is left(0, "$key&c=50"), 10, 'a leap of a day brought sixty';
    is status(1, "$key&c=20"), 429, 'and no more';

    # time goes on by all clocks

    $_->add($DAY) for $redis_clock, @clocks;
    is left(1, "$key&c=1400"), 50, 'a day without requests brings 1440';

    # a window of a day

    my $window = '/day?k=' . new_key();

    is passes(0, $window, 10), 3, 'three pass';
    $redis_clock->add(5 * $HOUR);

    my $r = get(0, $window);

    is $r->{status}, 429, 'a leap of five hours';
    cmp_ok abs($r->{headers}{'retry-after'} - 23 * $HOUR), '<', $MINUTE,
           'counts for one';

    $_->add(22 * $HOUR) for $redis_clock, @clocks;
    is status(1, $window), 429, 'twenty-two hours are not enough';
    $_->add($HOUR + $MINUTE) for $redis_clock, @clocks;
    is passes(1, $window, 10), 3, 'twenty-three are';
};


# --- nginx's time counts -----------------------------------------------------

subtest 'clock nginx: Redis\'s time does not matter' => sub {
    reset_clocks();

    my $bucket = '/n/minute?k=' . new_key();
    my $window = '/n/window?k=' . new_key();

    is passes(0, $bucket, 20), 10, 'ten pass';
    is passes(0, $window, 20), 3, 'three in a window';

    # less than a key lives, as that is by Redis's clock

    for my $offset (5 * $MINUTE, -5 * $MINUTE, -$DAY, -30 * $DAY) {
        $redis_clock->set($offset);
        is status($_, $bucket), 429, "Redis by $offset s: none" for 0, 1;
        is status($_, $window), 429, 'nor of the window' for 0, 1;
    }

    $_->add(5 * $MINUTE + 1) for @clocks;
    is passes(1, $bucket, 20), 5, 'five minutes by nginx: five tokens';
    $_->add(5 * $MINUTE) for @clocks;
    is passes(0, $window, 20), 3, 'ten minutes: three pass';
};


subtest 'clock nginx: a machine that is behind waits for the other' => sub {
    reset_clocks();

    my $bucket = '/n/minute?k=' . new_key();
    my $window = '/n/window?k=' . new_key();

    $clocks[0]->set(40);

    is left(0, $bucket), 9, 'one by the machine that is ahead';
    is left(1, $bucket), 8, 'one by the one that is behind';
    is left(0, $bucket), 7, 'and again';
    is passes(1, $bucket, 20), 7, 'the rest';

    is join(' ', map { left($_ % 2, $window) } 0 .. 3), '2 1 0 status 429',
       'a window: three by both';

    # in turns, over ten minutes: a token a minute, whoever asks

    my $passed = 0;

    for (1 .. 40) {
        $_->add(15) for @clocks;
        $passed += status($_, $bucket) == 200 for 1, 0;
    }

    cmp_ok $passed, '<=', 11, "ten minutes brought $passed";
    cmp_ok $passed, '>=', 10, 'not less';

    # when the one ahead is gone, the other goes on by itself

    $clocks[1]->add(40 + 61);
    is passes(1, $bucket, 20), 1, 'a minute after the other\'s time';
};


# The state is by then from the future.

sub is_failure {
    my ($r, $status, $source, $name) = @_;

    my $h = $r->{headers};

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is $r->{status}, $status, "$name: $status";
    is $h->{'x-status'}, 'DEGRADED', 'DEGRADED';
    is $h->{'x-source'}, $source, "by the policy: $source";
    is $h->{'x-ratelimit-degraded'}, 'true', 'the client is told so';
    is $h->{'x-ratelimit-degraded-reason'}, 'storage_unavailable',
       'and why, in general';
}


subtest 'clock nginx: more than a minute behind is a failure' => sub {
    for my $limit ('minute', 'slow', 'window', 'day', 'step') {
        reset_clocks();

        my $key = new_key();
        my $path = "/n/$limit?k=$key";

        $clocks[0]->set(90);
        is status(0, $path), 200, "$limit: the first, 90 s ahead";

        is_failure get(1, $path), 503, 'closed', 'another one';
        ok $nginx[1]->wait_log(qr/ratelimit \s DEGRADED, .* key: \s "$key", .*
                                  source: \s closed, \s failure: \s clock/x),
           'the class of the failure is in the log';

        $key = new_key();
        is status(0, "/open/$limit?k=$key"), 200, 'the same, but open';
        is_failure get(1, "/open/$limit?k=$key"), 200, 'open', 'another one';

        # nothing was taken, and it goes on when the clock is right

        my $before = get(0, $path)->{headers}{'x-ratelimit-remaining'};

        get(1, $path) for 1 .. 2;
        $clocks[1]->set(60);
        is left(1, $path), $before - 1, 'half a minute behind is none';
    }

    # a preview knows as little, and rejects nobody

    reset_clocks();

    my $key = new_key();

    $clocks[0]->set(90);
    is status(0, "/user?k=$key"), 200, 'one more, 90 s ahead';
    is left(0, "/quota?k=$key"), 9, 'a preview by the one ahead';
    is_failure get(1, "/quota?k=$key"), 200, 'open', 'by the other';

    # what Redis says is logged, but not for each request

    my $line = qr/\[error\] .* redis \s 127\.0\.0\.1:\d+ \s answered
                  \s "CLOCK \s [^"]+"/x;

    ok $nginx[1]->log_like($line), 'what Redis said';

    my $lines = $nginx[1]->log_count($line);

    get(1, "/user?k=$key") for 1 .. 20;
    cmp_ok $nginx[1]->log_count($line) - $lines, '<=', 1, 'once a minute';
    is $nginx[0]->log_count(qr/CLOCK/), 0, 'the one ahead knows nothing of it';
};


subtest 'clock nginx: the machine\'s own clock is set back' => sub {
    reset_clocks();

    my $path = '/n/minute?k=' . new_key();

    is passes(0, $path, 20), 10, 'ten pass';

    $clocks[0]->set(-50);
    is status(0, $path), 429, 'back by 50 s: waits';
    $clocks[0]->set(-90);
    is_failure get(0, $path), 503, 'closed', 'back by 90 s';

    # until the old time comes round again, not longer

    $clocks[0]->set(-30);
    is status(0, $path), 429, 'half a minute before the old time';
    $clocks[0]->set(61);
    is passes(0, $path, 20), 1, 'a minute after it: one token';
};


subtest 'clock nginx: a leap brings an hour, idleness brings all' => sub {
    reset_clocks();

    my $key = '/n/slow?k=' . new_key();

    is left(0, "$key&c=10000"), 0, 'emptied';
    $clocks[0]->set($DAY);
    is left(0, "$key&c=50"), 10, 'a leap of a day brought sixty';
    is status(0, "$key&c=20"), 429, 'and no more';
    is_failure get(1, $key), 503, 'closed', 'a machine without the leap';

    $clocks[1]->set($DAY);
    $_->add($DAY) for $redis_clock, @clocks;
    is left(1, "$key&c=1400"), 50, 'a day without requests brings 1440';
};


# Two limits, one of which can't be asked.

subtest 'clock nginx: a hierarchy is all or nothing here, too' => sub {
    reset_clocks();

    # keys on one shard and on two

    my %place;

    for (1 .. 100) {
        my $key = new_key();

        status(0, "/n/minute?k=$key");

        my $name = "ratelimit:localhost/n/minute:{$key}";
        my ($at) = grep { $shards[$_]->cmd('EXISTS', $name) } 0, 1;

        push @{ $place{$at} }, $key;
        last if @{ $place{0} || [] } > 5 && @{ $place{1} || [] } > 5;
    }

    my $tokens = sub {
        my ($key) = @_;

        my @found = grep { defined }
                    map { $_->tokens("ratelimit:user:{$key}") }
                    @shards;

        return @found ? int $found[0] + 0.5 : 10;
    };

    for my $at (0, 1) {
        my $user = shift @{ $place{0} };
        my $ip = shift @{ $place{$at} };
        my $query = "k=$user&i=$ip";

        # the window of the address is written by the machine that is ahead

        $clocks[0]->set(90);
        is status(0, "/ip?i=$ip"), 200, 'the address, 90 s ahead';

        my $r = get(1, "/both?$query");

        is_failure $r, 503, 'closed',
                   $at ? 'on two shards' : 'on one shard';
        is $r->{headers}{'x-name'}, $at ? 'ip' : 'user', 'the limit';
        ok wait_until(sub { $tokens->($user) == 10 }),
           'the user gets back what was taken';

        $r = get(1, "/both-open?$query");
        is $r->{status}, 200, 'open: passed';
        is $r->{headers}{'x-status'}, 'DEGRADED', 'DEGRADED';
        is $tokens->($user), $at ? 9 : 10,
           $at ? 'the user is charged, who could be asked'
               : 'nobody is charged: one call for both';

        $clocks[1]->set(90);
        is status(1, "/both?$query"), 200, 'with the right time: passed';
        $clocks[1]->set(0);
    }
};


subtest 'nothing alarming is in the logs' => sub {
    reset_clocks();

    $_->finish for @nginx;
};


done_testing();
