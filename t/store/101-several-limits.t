# Several limits for one request, on several shards: no limit is ever exceeded,
# a request that any of them rejects takes from none, and the answer names the
# one that matters.
#
# The keys of the limits, their capacities and the cost come with the request:
# /h?u=KEY&uc=CAPACITY&i=..&ic=..&g=..&gc=..&c=COST.  Timeouts are long and
# errors close, so that no request passes because of a slow machine.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min shuffle sum0);

use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Spent;
use RateLimit::Util qw(wait_until);

my @shards = RateLimit::Redis->start_many(3);
my $one = $shards[0]->addr;

my %CONFIG = (conf => <<"EOC", server => <<"EOS");
    map \$arg_c \$cost { "" 1; default \$arg_c; }
    map \$arg_uc \$user_capacity { "" 1000; default \$arg_uc; }
    map \$arg_ic \$ip_capacity { "" 1000; default \$arg_ic; }
    map \$arg_gc \$global_capacity { "" 1000; default \$arg_gc; }

    ratelimit_limit user   key=\$arg_u capacity=\$user_capacity rate=1r/d
                           cost=\$cost;
    ratelimit_limit ip     key=\$arg_i capacity=\$ip_capacity window=1h
                           algorithm=sliding_window_log cost=\$cost;
    ratelimit_limit global key=\$arg_g capacity=\$global_capacity rate=1r/d
                           refill_interval=1h cost=\$cost;
    ratelimit_limit shadow key=\$arg_s capacity=1 rate=1r/d dry_run;
    ratelimit_log_key plain;

    ratelimit_limit day    key=\$arg_d capacity=1 rate=1r/d;
    ratelimit_limit hour   key=\$arg_h capacity=1 window=1h
                           algorithm=sliding_window_log;
    ratelimit_limit minute key=\$arg_m capacity=1 rate=1r/m;
EOC
        location /place { ratelimit_key \$arg_k; ratelimit_rate 1r/d;
                          ratelimit_capacity 10; empty_gif; }

        location /h { ratelimit user ip global; empty_gif; }
        location /asks { ratelimit user ip global;
                         ratelimit_deny_cache off; empty_gif; }
        location /gui { ratelimit global user ip; empty_gif; }
        location /shadow { ratelimit user shadow; empty_gif; }
        location /sui { ratelimit shadow user ip; empty_gif; }
        location /log { ratelimit user ip global;
                        ratelimit_log_level error;
                        ratelimit_body json; empty_gif; }

        location /one { ratelimit_shards $one; ratelimit user ip global;
                        ratelimit_log_level error;
                        ratelimit_body json; empty_gif; }

        location /all { ratelimit_shards $one; ratelimit user ip global;
                        ratelimit_deny_cache off; empty_gif; }

        location /dhm { ratelimit day hour minute; ratelimit_body problem;
                        ratelimit_deny_cache off; empty_gif; }
        location /mhd { ratelimit minute hour day; ratelimit_body json;
                        ratelimit_deny_cache off; empty_gif; }
        location /minute { ratelimit user ip global;
                           ratelimit_deny_cache 60s; empty_gif; }
        location /single { ratelimit_shards $one; ratelimit user ip global;
                           ratelimit_deny_cache 60s; empty_gif; }

        location /cached { ratelimit day hour minute;
                           ratelimit_deny_cache 60s; empty_gif; }
        location /d { ratelimit day; empty_gif; }
        location /e { ratelimit hour; empty_gif; }
        location /m { ratelimit minute; empty_gif; }

        location /open { ratelimit user ip global;
                         ratelimit_redis_timeout 500ms;
                         ratelimit_on_error open; empty_gif; }
        location /closed { ratelimit user ip global;
                           ratelimit_redis_timeout 500ms;
                           ratelimit_on_error closed; empty_gif; }
EOS

my @nginx = map { start_nginx(\@shards, workers => 2, reuseport => 1,
                              log => 'error', %CONFIG) } 1 .. 2;
my @ports = map { $_->port } @nginx;
my %place_of = map { $shards[$_]->addr => $_ } 0 .. $#shards;

# the limits, by the letter of their key: kind and name

my %LIMITS = (u => ['bucket', 'user'], i => ['window', 'ip'],
              g => ['bucket', 'global'], s => ['bucket', 'shadow']);


sub flush { $_->cmd('FLUSHALL') for @shards }


# A key that no test had before, on the shard with this index.

my $keys = 0;

sub key_on {
    my ($place) = @_;

    while (1) {
        my $key = 'k' . ++$keys;
        my $shard = RateLimit::Load::get($ports[0], "/place?k=$key")
                    ->{headers}{'x-shard'};

        return $key if $place_of{$shard} == $place;

        die "no key for shard $place\n" if $keys > 10_000;
    }
}


# Keys for all three limits, each on a shard of its own.

sub three_keys { return map { key_on($_) } 0 .. 2 }


sub get {
    my ($path, @headers) = @_;

    return RateLimit::Load::get($ports[$keys++ % 2], $path, @headers);
}


# What was taken from a limit, by the letter of its key, on the shards that run.

sub taken {
    my ($letter, $key, $capacity) = @_;

    my ($kind, $name) = @{ $LIMITS{$letter} };

    return spent({ kind => $kind, name => $name, key => $key,
                   capacity => $capacity, refills => 1 },
                 grep { $_->pid } @shards);
}


# A test: after some time so much and no more or less was, [which] => number.

sub is_taken {
    my ($name, @wanted) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is_spent($name, \&taken, @wanted);
}


# True when all four workers are connected to all shards.

sub connected {
    return wait_until(sub {
        RateLimit::Load::get($_, '/place?k=a') for (@ports) x 4;

        return !grep { $_->clients != 4 } @shards;
    }, 20);
}


# --- what passes -------------------------------------------------------------

# Whichever limit is the smallest; the others hold tokens of requests that it
# denies, but for a moment only.

subtest 'one key each, three shards: the smallest limit, and nothing is missing'
    => sub
{
    for my $case ([40, 60, 1000], [1000, 40, 60], [60, 1000, 40],
                  [40, 40, 40])
    {
        my ($uc, $ic, $gc) = @$case;
        my ($u, $i, $g) = three_keys();
        my $query = "u=$u&uc=$uc&i=$i&ic=$ic&g=$g&gc=$gc";

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 50, requests => 800,
            path => sub { ($_[0] % 2 ? '/h?' : '/gui?') . $query },
            timeout => 60);

        my $passed = $load->count(200);

        is $load->error_text, '', 'no errors';
        is $passed + $load->count(429), 800, 'passed or rejected';
        cmp_ok $passed, '<=', 40, "limits @$case: $passed passed at once";

        is_taken "exactly $passed was taken from each",
                 [u => $u, $uc], $passed, [i => $i, $ic], $passed,
                 [g => $g, $gc], $passed;

        # who was denied because of a token that came back may try again; a
        # denial that is remembered may be one of before

        $passed++ while get("/asks?$query")->{status} == 200 && $passed < 100;

        is $passed, 40, 'one after the other: up to the limit';
        is_taken 'and so for each of them', [u => $u, $uc], 40,
                 [i => $i, $ic], 40, [g => $g, $gc], 40;
    }
};


# Users, addresses and costs in all combinations.

subtest 'many keys, mixed costs: no limit is exceeded, no token is missing'
    => sub
{
    flush();
    srand 31;

    # such that each of them has something to deny

    my %capacity = (u => 15, i => 40, g => 380);
    my @users = map { "user$_" } 1 .. 30;
    my @ips = map { "ip$_" } 1 .. 10;
    my @global = ('all');

    my @requests = map {
        { u => $users[rand @users], i => $ips[rand @ips], g => 'all',
          c => 1 + int rand 4 }
    } 1 .. 1500;

    my $path = sub {
        my ($r, $place) = @_;

        return ($place // '/h')
               . "?u=$r->{u}&uc=15&i=$r->{i}&ic=40&g=all&gc=380&c=$r->{c}";
    };

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 1500, keep => 1,
        timeout => 120, path => sub { $path->($requests[$_[0]]) });

    my %taken;
    my %named;

    for my $response ($load->responses) {
        my $request = $requests[$response->{n}];

        $named{$response->{headers}{'x-name'}}++
            if $response->{status} == 429;

        next if $response->{status} != 200;

        $taken{$_}{$request->{$_}} += $request->{c} for qw(u i g);
    }

    is $load->error_text, '', 'no errors';
    is $load->count(200) + $load->count(429), 1500, 'passed or rejected';
    note join ', ', map { "$named{$_} denied by $_" } sort keys %named;

    for my $letter (qw(u i g)) {
        my @sums = values %{ $taken{$letter} };

        cmp_ok max(@sums), '<=', $capacity{$letter},
               "$LIMITS{$letter}[1]: never more than the limit";
    }

    my @wanted = map { my $letter = $_;
                       map { ([$letter, $_, $capacity{$letter}],
                              $taken{$letter}{$_} // 0) }
                       @{ { u => \@users, i => \@ips,
                            g => \@global }->{$letter} } } qw(u i g);

    is_taken 'what passed was taken, and nothing else', @wanted;

    # nothing is missing: what fits everywhere passes, what does not is denied,
    # now that nobody else is there and each refund is awaited; a denial that is
    # remembered may be one of before

    my ($early, $lost, $passed) = ('', '', 0);

    for my $n (1 .. 300) {
        my $r = { u => $users[rand @users], i => $ips[rand @ips], g => 'all',
                  c => 1 + int rand 4 };
        my @blocking = map { $LIMITS{$_}[1] }
                       grep { ($taken{$_}{$r->{$_}} // 0) + $r->{c}
                              > $capacity{$_} } qw(u i g);
        my $response = get($path->($r, '/asks'));
        my $name = $response->{headers}{'x-name'};

        if ($response->{status} == 200) {
            $early = "number $n passed, not by @blocking" if @blocking;
            $taken{$_}{$r->{$_}} += $r->{c} for qw(u i g);
            $passed++;

        } elsif (!grep { $_ eq $name } @blocking) {
            $lost = "number $n denied by $name, not by @blocking";
        }

        wait_until(sub {
            !grep { taken($_, $r->{$_}, $capacity{$_})
                    != ($taken{$_}{$r->{$_}} // 0) } qw(u i g)
        }) or $lost ||= "number $n took something";

        last if $early || $lost;
    }

    is $early, '', 'one after the other: none passes that does not fit';
    is $lost, '', "none is denied that does ($passed passed)";

    # how many calls there were of each: one a shard for those at least that
    # were made one after the other

    cmp_ok sum0(map { $_->calls } @shards), '>', 300,
           'with calls to all shards';
};


subtest 'one shard: exactly the smallest limit, at once' => sub {
    flush();

    for my $case ([40, 60, 1000], [1000, 40, 60], [60, 1000, 40]) {
        my ($uc, $ic, $gc) = @$case;
        my $n = ++$keys;

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 50, requests => 500,
            path => "/one?u=u$n&uc=$uc&i=i$n&ic=$ic&g=g$n&gc=$gc",
            timeout => 60);

        is_deeply $load->statuses, { 200 => 40, 429 => 460 },
                  "limits @$case: 40 and 460";
        is_taken '40 of each', [u => "u$n", $uc], 40, [i => "i$n", $ic], 40,
                 [g => "g$n", $gc], 40;
    }
};


# --- what it costs -----------------------------------------------------------

subtest 'one shard: one call per request, by the server\'s own count' => sub {
    my ($redis) = @shards;
    my $n = ++$keys;

    # one after the other

    $redis->reset_calls;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 1, requests => 40,
        path => "/all?u=u$n&uc=10&i=i$n&g=g$n", timeout => 60);

    is_deeply $load->statuses, { 200 => 10, 429 => 30 },
              'three limits, 40 requests: 10 pass';
    is $redis->calls, 40, '40 calls of EVALSHA';
    is $redis->calls('eval'), 0, 'none of EVAL';
    is_taken 'no call came after them', [u => "u$n", 10], 10;
    is $redis->calls, 40, 'nor a refund';

    # those that come together share one

    $n = ++$keys;
    $redis->reset_calls;

    $load = RateLimit::Load::run(
        targets => \@ports, connections => 20, requests => 400,
        path => "/all?u=u$n&uc=100&i=i$n&g=g$n", timeout => 60);

    my $calls = $redis->calls;

    is_deeply $load->statuses, { 200 => 100, 429 => 300 },
              'three limits, 400 requests: 100 pass';
    cmp_ok $calls, '<=', 400, '400 calls of EVALSHA, or fewer';
    cmp_ok $calls, '>=', 400 / 20, 'as no more than 20 came together';
    is $redis->calls('eval'), 0, 'none of EVAL';
    is_taken 'no call came after them', [u => "u$n", 100], 100,
             [i => "i$n", 1000], 100, [g => "g$n", 1000], 100;
    is $redis->calls, $calls, 'nor a refund';

    # those that are denied because one was before need no call

    $n = ++$keys;
    $redis->reset_calls;

    $load = RateLimit::Load::run(
        targets => \@ports, connections => 20, requests => 400,
        path => "/one?u=u$n&uc=100&i=i$n&g=g$n", timeout => 60);

    is_deeply $load->statuses, { 200 => 100, 429 => 300 },
              'the same with denials that are remembered';
    cmp_ok $redis->calls, '<', 250, 'of which most cost nothing';
    is_taken 'and take nothing', [u => "u$n", 100], 100, [i => "i$n", 1000],
             100, [g => "g$n", 1000], 100;
};


subtest 'several shards: one call for each that is concerned' => sub {
    my ($u, $i, $g) = three_keys();
    my $calls = sub { [map { $_->calls } @shards] };
    my $reset = sub { $_->reset_calls for @shards };

    $reset->();
    get("/h?u=$u&i=$i&g=$g") for 1 .. 10;
    is_deeply $calls->(), [10, 10, 10], 'three keys on three shards';

    my @same = map { key_on(1) } 1 .. 2;

    $reset->();
    get("/h?u=$same[0]&i=$same[1]&g=$g") for 1 .. 10;
    is_deeply $calls->(), [0, 10, 10], 'two of them on one shard';

    $reset->();
    get("/h?u=$same[0]&i=$same[0]&g=$same[0]") for 1 .. 10;
    is_deeply $calls->(), [0, 10, 0], 'one key value for all limits';
    is_taken 'which are limits of their own', [u => $same[0], 1000], 20,
             [i => $same[0], 1000], 10, [g => $same[0], 1000], 10;

    # an empty key is not limited

    $reset->();
    get("/h?u=$u&i=&g=") for 1 .. 10;
    is_deeply $calls->(), [10, 0, 0], 'an empty key asks nobody';

    # a denied one is given back where it was taken

    ($u, $i, $g) = three_keys();
    is get("/h?u=$u&uc=1&i=$i&g=$g")->{status}, 200, 'the only one';

    $reset->();
    is get("/h?u=$u&uc=1&i=$i&g=$g")->{status}, 429, 'one too many';
    is_taken 'nothing was taken', [u => $u, 1], 1, [i => $i, 1000], 1,
             [g => $g, 1000], 1;
    is_deeply $calls->(), [1, 2, 2], 'one call for each, and two refunds';
};


# A flood of one user who is denied: his denial is known, whichever shard it
# came from, so neither his nor the other shards are asked.

subtest 'several shards: who is denied is denied here, and nobody is asked'
    => sub
{
    my $calls = sub { [map { $_->calls } @shards] };

    for my $letter (qw(u i g)) {
        my ($u, $i, $g) = three_keys();
        my $query = "u=$u&i=$i&g=$g&${letter}c=3";

        is get("/minute?$query")->{status}, 200, "$letter: number $_"
            for 1 .. 3;

        # twice by Redis, at different moments: then it is believed in full

        for my $port (@ports) {
            my $asked = 0;

            ok wait_until(sub {
                my $h = RateLimit::Load::get($port, "/minute?$query")
                        ->{headers};
                $asked++ if $h->{'x-source'} eq 'redis';
                return $asked == 2;
            }), 'denied by Redis, then here, then by Redis';
        }

        is_taken 'nothing was taken', [u => $u, $letter eq 'u' ? 3 : 1000], 3,
                 [i => $i, 1000], 3, [g => $g, $letter eq 'g' ? 3 : 1000], 3;

        $_->reset_calls for @shards;

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 20, requests => 1000, keep => 1,
            path => "/minute?$query", timeout => 60);

        is_deeply $load->statuses, { 429 => 1000 }, 'a flood is denied';
        is_deeply [grep { $_->{headers}{'x-source'} ne 'denied' }
                   $load->responses], [], 'here';
        is_deeply $calls->(), [0, 0, 0], 'without a call to any shard';

        # as with one shard

        my %one = (u => "1$u", i => "1$i", g => "1$g");
        my $single = join '&', "${letter}c=3", map { "$_=$one{$_}" } keys %one;

        RateLimit::Load::get($ports[0], "/single?$single") for 1 .. 4;

        my ($here, $there) =
            map { RateLimit::Load::get($ports[0], $_)->{headers} }
            "/minute?$query", "/single?$single";

        is_deeply [sort keys %$here], [sort keys %$there],
                  'the headers are those of one shard';
        is $here->{$_}, $there->{$_}, $_
            for qw(x-source x-name x-status x-ratelimit-limit
                   x-ratelimit-remaining);
        cmp_ok abs($here->{'retry-after'} - $there->{'retry-after'}), '<', 60,
               'retry-after';

        # others are asked for as ever, and not charged for the flood

        my %other = (u => $u, i => $i, g => $g, $letter => key_on(0));

        $_->reset_calls for @shards;
        is get('/minute?' . join '&', map { "$_=$other{$_}" } keys %other)
           ->{status}, 200, 'another one passes';
        cmp_ok sum0(@{ $calls->() }), '<=', 3, 'with a call to each shard';
    }
};


# What the limit lacks may be held by a request that another machine is about to
# give back, as a shard denies it.

subtest 'several shards: a single denial is believed for a moment' => sub {
    my ($u, $i, $g) = three_keys();
    my $ask = sub {
        RateLimit::Load::get($ports[0], "/minute?u=$u&i=$i&g=$g&gc=1")
    };

    is $ask->()->{status}, 200, 'the only one';
    is $ask->()->{headers}{'x-source'}, 'redis', 'one too many';
    $shards[2]->cmd('DEL', "ratelimit:global:{$g}");

    ok wait_until(sub { $ask->()->{status} == 200 }, 20),
       'what came back can be had long before the minute is over';
};


# --- what is said ------------------------------------------------------------

subtest 'the limit that blocks is named: headers, variable, log, body' => sub {
    for my $path ('/log', '/one') {
        for my $case (['u', 'user', 86_400], ['i', 'ip', 3600],
                      ['g', 'global', 86_400])
        {
            my ($letter, $name, $wait) = @$case;
            my ($u, $i, $g) = three_keys();
            my $key = { u => $u, i => $i, g => $g }->{$letter};
            my $query = "$path?u=$u&i=$i&g=$g&${letter}c=1";

            is get($query)->{status}, 200, "$path: one passes";

            my $r = get($query);
            my $h = $r->{headers};

            is $r->{status}, 429, "$name blocks";
            is $h->{'x-name'}, $name, 'by its name in $ratelimit_name';
            is $h->{'x-status'}, 'REJECTED', 'REJECTED';
            is $h->{'x-ratelimit-limit'}, 1, 'its capacity';
            is $h->{'x-ratelimit-remaining'}, 0, 'nothing is left';
            cmp_ok abs($h->{'retry-after'} - $wait), '<', 300, 'its wait';
            is $h->{'x-ratelimit-retry-after'}, $h->{'retry-after'}, 'twice';
            like $h->{'x-shard'}, qr/^127\.0\.0\.1:\d+\z/, 'where it lives';
            is $r->{body}, '{"error":"rate_limit_exceeded",'
                           . "\"blocking_limit\":\"$name\",\"limit\":1,"
                           . "\"remaining\":0,\"retry_after\":"
                           . "$h->{'retry-after'}}", 'its name in the body';

            my $line = qr/\[error\] .* ratelimit \s REJECTED,
                          \s limit: \s "$name", \s key: \s "$key"/x;

            ok((grep { $_->log_like($line) } @nginx), 'and in the log');

            my %capacity = (u => 1000, i => 1000, g => 1000, $letter => 1);

            is_taken 'it took nothing', [u => $u, $capacity{u}], 1,
                     [i => $i, $capacity{i}], 1, [g => $g, $capacity{g}], 1;
        }
    }

    # only the one that blocks is logged

    my ($u, $i, $g) = three_keys();

    get("/log?u=$u&i=$i&g=$g&uc=1") for 1 .. 2;
    is sum0(map { $_->log_count(qr/key: "$u"/) } @nginx), 1, 'one line for it';
    is sum0(map { $_->log_count(qr/key: "(?:$i|$g)"/) } @nginx), 0,
       'none for the others';
};


subtest 'several block: the one with the longest wait speaks' => sub {
    for my $places ([0, 0, 0], [0, 1, 2], [2, 1, 0]) {
        my ($d, $h, $m) = map { key_on($_) } @$places;

        is get("/d?d=$d")->{status}, 200, 'the day\'s';
        is get("/e?h=$h")->{status}, 200, 'the hour\'s';
        is get("/m?m=$m")->{status}, 200, 'the minute\'s';

        for my $path ('/dhm', '/mhd') {
            my $query = "$path?d=$d&h=$h&m=$m";
            my $r = get($query);

            is $r->{status}, 429, "on shards @$places, $path: all block";
            is $r->{headers}{'x-name'}, 'day', 'the day speaks';
            cmp_ok abs($r->{headers}{'retry-after'} - 86_400), '<', 300,
                   'a day';

            if ($path eq '/dhm') {
                like $r->{body}, qr/"violated-policies":\[
                                    "day","hour","minute"\]/x,
                     'all of them are listed in the body';
            } else {
                like $r->{body}, qr/"blocking_limit":"day"/, 'in the body';
            }

            $query =~ s/\bd=\w+/d=/;
            $r = get($query);
            is $r->{headers}{'x-name'}, 'hour', 'without it the hour';
            cmp_ok abs($r->{headers}{'retry-after'} - 3600), '<', 300,
                   'an hour';

            $query =~ s/\bh=\w+/h=/;
            $r = get($query);
            is $r->{headers}{'x-name'}, 'minute', 'and then the minute';
            cmp_ok $r->{headers}{'retry-after'}, '<=', 60, 'a minute';
        }
    }

    # those on one shard are remembered together, and the same one speaks

    my ($d, $h, $m) = map { key_on(1) } 1 .. 3;

    RateLimit::Load::get($ports[1], "/$_")
        for "d?d=$d", "e?h=$h", "m?m=$m";

    my @answers = map { join ' ', $_->{status}, @{ $_->{headers} }
                        {qw(x-name x-source)} }
                  map { RateLimit::Load::get($ports[0],
                                             "/cached?d=$d&h=$h&m=$m") }
                  1 .. 8;

    is $answers[0], '429 day redis', 'all block';
    is_deeply [@answers[1 .. 7]], [('429 day denied') x 7],
              'and are remembered: the day speaks';
};


subtest 'all pass: the one that leaves the least part speaks' => sub {
    for my $path ('/h', '/gui', '/one') {
        for my $case (['uc=10&ic=20&gc=30', 'user: 9 of 10'],
                      ['uc=40&ic=20&gc=30', 'ip: 19 of 20'],
                      ['uc=40&ic=40&gc=30', 'global: 29 of 30'],

                      # the least part, not the least number

                      ['uc=1000&ic=1001&gc=1000000&c=500',
                       'user: 500 of 1000'],
                      ['uc=7&ic=10&gc=1000&c=6', 'user: 1 of 7'],
                      ['uc=10&ic=100&gc=9&c=9', 'global: 0 of 9'])
        {
            my ($query, $wanted) = @$case;
            my ($u, $i, $g) = three_keys();
            my $h = get("$path?u=$u&i=$i&g=$g&$query")->{headers};

            is "$h->{'x-name'}: $h->{'x-ratelimit-remaining'} of "
               . $h->{'x-ratelimit-limit'}, $wanted, "$path: $wanted";
        }
    }

    # and after some traffic the one that has become scarce

    my ($u, $i, $g) = three_keys();

    get("/h?u=&i=$i&ic=20&g=") for 1 .. 12;
    is get("/h?u=$u&uc=10&i=$i&ic=20&g=$g&gc=50")->{headers}{'x-name'}, 'ip',
       'seven of twenty are less than nine of ten';
};


# --- limits that are only tried out ------------------------------------------

subtest 'a shadow limit on another shard disturbs nobody' => sub {
    my $u = key_on(0);
    my $s = key_on(2);
    my $query = "/shadow?u=$u&uc=3&s=$s";

    for my $n (1 .. 3) {
        my $r = get($query);

        is $r->{status}, 200, "number $n passes";
        is $r->{headers}{'x-name'}, 'user', 'the enforced limit speaks';
        is_taken 'it is charged, the shadow until it is empty',
                 [u => $u, 3], $n, [s => $s, 1], 1;
    }

    is get($query)->{status}, 429, 'the enforced one denies';

    # a shadow that has something left gets it back then

    $s = key_on(1);
    is get("/shadow?u=$u&uc=3&s=$s")->{status}, 429, 'denied again';
    is_taken 'nothing was taken from another shadow', [s => $s, 1], 0;

    # one that has denied gets nothing back: it took nothing

    $u = key_on(0);
    $s = key_on(0);

    my $i = key_on(2);

    is get("/sui?s=$s&u=$u&i=$i&ic=2")->{status}, 200, "number $_ passes"
        for 1 .. 2;
    is get("/sui?s=$s&u=$u&i=$i&ic=2")->{status}, 429,
       'a limit on another shard denies';
    is_taken 'only what was taken comes back', [s => $s, 1], 1,
             [u => $u, 1000], 2, [i => $i, 2], 2;
};


# --- clients that leave ------------------------------------------------------

subtest 'clients that leave: the limits hold all the same' => sub {
    my ($u, $i, $g) = three_keys();

    my ($left, $passed) = (0, 0);

    # at once, which all do that want to, and when a reply may be there

    for my $after (0, 1) {
        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 40, requests => 500,
            path => "/asks?u=$u&uc=50&i=$i&ic=60&g=$g&gc=70", timeout => 60,
            abort => 0.5, abort_after => $after);

        $left += $load->aborted;
        $passed += $load->count(200);
    }

    cmp_ok $left, '>', 100, "$left clients left";
    cmp_ok $passed, '<=', 50, "$passed passed";

    # who left may have been charged: by all limits, or by none

    my @spent;

    wait_until(sub {
        @spent = (taken(u => $u, 50), taken(i => $i, 60), taken(g => $g, 70));
        return $spent[0] == $spent[1] && $spent[1] == $spent[2];
    }, 10);

    is "@spent", "@spent[0, 0, 0]", 'all limits agree about who was charged';
    cmp_ok $spent[0], '>=', $passed, 'all that passed were';
    cmp_ok $spent[0], '<=', 50, 'and not more than there is';
};


# Else one client, whose own limit is used up, could empty the limits of all
# others.

subtest 'clients that leave before they are denied take nothing' => sub {
    for my $places ([0, 1, 2], [1, 0, 1], [2, 1, 1]) {
        my ($u, $i, $g) = map { key_on($_) } @$places;
        my $query = "/asks?u=$u&uc=1&i=$i&ic=10000&g=$g&gc=10000";

        is get($query)->{status}, 200, "on shards @$places: the only one";

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 20, requests => 400,
            path => $query, timeout => 60, abort => 1, abort_after => 0);

        cmp_ok $load->aborted, '>', 300, $load->aborted . ' clients left';
        is_taken 'and nothing was taken', [u => $u, 1], 1,
                 [i => $i, 10_000], 1, [g => $g, 10_000], 1;
    }
};


# --- a shard that is down ----------------------------------------------------

subtest 'a shard down: open passes and charges the others' => sub {
    my ($u, $i, $g) = three_keys();
    my $query = "u=$u&uc=3&i=$i&g=$g";

    is get("/open?$query")->{status}, 200, 'all are up';
    $shards[1]->kill9;

    for my $n (2 .. 3) {
        my $r = get("/open?$query");
        my $h = $r->{headers};

        is $r->{status}, 200, 'the shard of one limit is down: passed';
        is $h->{'x-status'}, 'DEGRADED', 'DEGRADED';
        is $h->{'x-ratelimit-degraded'}, 'true', 'as the client is told';
        is $h->{'x-name'}, 'user', 'a limit that is known speaks';
        is $h->{'x-ratelimit-remaining'}, 3 - $n, 'with its numbers';
        is_taken 'the others are charged', [u => $u, 3], $n,
                 [g => $g, 1000], $n;
    }

    # and still reject

    my $r = get("/open?$query");

    is $r->{status}, 429, 'one that is up rejects';
    is $r->{headers}{'x-status'}, 'REJECTED', 'REJECTED';
    is $r->{headers}{'x-name'}, 'user', 'by its name';
    is $r->{headers}{'x-ratelimit-degraded'}, undef, 'nothing of the failure';
    is_taken 'and the third one gets its token back', [u => $u, 3], 3,
             [g => $g, 1000], 3;

    # none is known

    $shards[0]->kill9;
    $shards[2]->kill9;
    $r = get("/open?$query");
    is $r->{status}, 200, 'all shards are down: passed';
    is $r->{headers}{'x-source'}, 'open', 'by the policy alone';
    is $r->{headers}{'x-ratelimit-limit'}, undef, 'no numbers are told';

    $_->start for @shards;
};


subtest 'a shard down: closed rejects, and the others are not asked' => sub {
    ok connected(), 'the shards are up again';

    my ($u, $i, $g) = three_keys();
    my $query = "/closed?u=$u&uc=3&i=$i&g=$g";

    is get($query)->{status}, 200, 'all are up';
    $shards[1]->kill9;

    for (1 .. 3) {
        $_->reset_calls for @shards[0, 2];

        my $r = get($query);
        my $h = $r->{headers};

        is $r->{status}, 503, 'the shard of one limit is down: 503';
        is $h->{'x-status'}, 'DEGRADED', 'DEGRADED';
        is $h->{'x-source'}, 'closed', 'closed';
        is $h->{'x-name'}, 'ip', 'the limit that is not known is named';
        is $h->{'x-ratelimit-limit'}, undef, 'it has no numbers';
        is_taken 'the others keep their tokens', [u => $u, 3], 1,
                 [g => $g, 1000], 1;
        is_deeply [map { $_->calls } @shards[0, 2]], [0, 0],
                  'as they were not asked';
    }

    # a limit in a dry run does not end the request

    my ($user, $shadow) = (key_on(0), key_on(1));

    is get("/shadow?u=$user&s=$shadow")->{status}, 200,
       'a dry run whose shard is down does not reject';
    is_taken 'and the limit is charged', [u => $user, 1000], 1;

    # requests that are rejected at once don't keep the shard from being tried

    $shards[1]->start;
    ok wait_until(sub {
        !grep { RateLimit::Load::get($_, $query)->{status} == 503 } @ports;
    }, 20), 'up again';
    ok connected(), 'for all workers';
};


# A call that was sent may have run: it is not given back, and must not be.

subtest 'a shard that does not answer in time: closed gives the others back'
    => sub
{
    my ($u, $i, $g) = three_keys();
    my $query = "/closed?u=$u&uc=900&i=$i&g=$g";
    my $passed = 0;

    ok wait_until(sub {
        my @r = map { RateLimit::Load::get($_, $query) } (@ports) x 4;
        $passed += grep { $_->{status} == 200 } @r;
        return !grep { $_->{status} != 200 } @r;
    }), 'all are up';

    $shards[1]->pause;

    my $r = get($query);

    is $r->{status}, 503, 'no answer: 503';
    is $r->{headers}{'x-ratelimit-degraded-reason'}, 'timeout', 'a timeout';
    is_taken 'the others have their tokens back', [u => $u, 900], $passed,
             [g => $g, 1000], $passed
        if $shards[1]->resume;

    my $spent = taken('i', $i, 1000);

    cmp_ok $spent, '>=', $passed, 'that one';
    cmp_ok $spent, '<=', $passed + 1, 'may have taken it';
};


subtest 'clients that leave while a shard does not answer take nothing' => sub {
    ok connected(), 'all are up';

    my ($u, $i, $g) = three_keys();
    my $query = "/closed?u=$u&uc=100&i=$i&g=$g";

    $shards[1]->pause;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 10, requests => 20,
        path => $query, timeout => 60, abort => 1, abort_after => 0);

    is $load->aborted, 20, '20 clients left';

    # taken() must not ask the one that sleeps

    my $tokens = sub {
        my ($redis, $key) = @_;
        return $redis->tokens($key) // '';
    };

    ok wait_until(sub {
        $tokens->($shards[0], "ratelimit:user:{$u}") =~ /^100\b/
        && $tokens->($shards[2], "ratelimit:global:{$g}") =~ /^1000\b/
    }, 10), 'what was taken comes back when nobody waits any longer';

    $shards[1]->resume;
};


subtest 'nothing alarming is in the logs' => sub {
    $_->finish for @nginx;
};


done_testing();
