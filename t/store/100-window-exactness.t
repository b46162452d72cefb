# The sliding window log, end to end: however many clients, workers, machines
# and shards there are, no window holds more than the limit, and what fits
# passes.
#
# Timeouts are long and errors close, so that a slow machine can't turn a
# request that Redis did not answer into one that passed: it would be a 503, and
# fail.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min sum0);
use Time::HiRes qw(time);

use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Traffic;
use RateLimit::Util qw(wait_until);

my @shards = RateLimit::Redis->start_many(3);
my $WORKERS = 2;

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    ratelimit_algorithm sliding_window_log;
    ratelimit_window 1h;

    map $http_x_plan $plan_limit { default 3; silver 10; gold 40; }
EOC
        ratelimit_key $arg_k;

        location /ten { ratelimit_capacity 10; empty_gif; }
        location /100 { ratelimit_capacity 100; empty_gif; }
        location /five { ratelimit_capacity 5; empty_gif; }
        location /slide { ratelimit_capacity 20; ratelimit_window 3s;
                          empty_gif; }
        location /tier { ratelimit_capacity $plan_limit; empty_gif; }
        location /cost { ratelimit_capacity 100; ratelimit_cost $arg_c;
                         empty_gif; }
EOS

my @nginx = map { start_nginx(\@shards, workers => $WORKERS, reuseport => 1,
                              %CONFIG) } 1 .. 2;
my @ports = map { $_->port } @nginx;


sub flush { $_->cmd('FLUSHALL') for @shards }


# The shards that have this key; an index for each.

sub places_of {
    my ($key) = @_;

    return grep { $shards[$_]->cmd('EXISTS', $key) } 0 .. $#shards;
}


# The entries of a log: hashes with time (us), cost and member.

sub log_of {
    my ($key) = @_;

    my @log;

    for my $place (places_of($key)) {
        my @all = @{ $shards[$place]->cmd('ZRANGE', $key, 0, -1,
                                          'WITHSCORES') };

        while (my ($member, $time) = splice @all, 0, 2) {
            push @log, { time => $time, member => $member,
                         cost => (split /:/, $member)[1] };
        }
    }

    return @log;
}


subtest 'a hundred at once, limit 10: exactly 10 pass' => sub {
    my $load = RateLimit::Load::run(port => $ports[0], path => '/ten?k=a',
                                    connections => 100, requests => 100,
                                    timeout => 60);

    is_deeply $load->statuses, { 200 => 10, 429 => 90 }, '10 and 90';
    is $load->error_text, '', 'no errors';
    is sum0(map { $_->{cost} } log_of('ratelimit:localhost/ten:{a}')), 10,
       'which are in the log';
};


subtest '2 nginx x 2 workers x 3 shards, one key: exactly 100 pass' => sub {
    my $key = 'ratelimit:localhost/100:{a}';
    my @seen;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 2000, keep => 1,
        timeout => 60,
        path => sub {
            my ($n) = @_;

            # while all 50 clients wait for their answers
            push @seen, map { $_->clients } @shards if $n % 400 == 399;

            return '/100?k=a';
        });

    is_deeply $load->statuses, { 200 => 100, 429 => 1900 }, '100 and 1900';
    is $load->error_text, '', 'no errors';

    my %workers = map { $_->{headers}{'x-worker'} => 1 } $load->responses;
    is scalar keys %workers, 4, 'by all four workers';

    my %targets = map { $_->{target} => 1 } $load->responses;
    is scalar keys %targets, 2, 'of both nginx';

    is scalar @seen, 15, 'Redis was looked at during the run';
    is max(@seen), 2 * $WORKERS, 'connections to a shard: one per worker';

    my @log = log_of($key);

    is scalar(places_of($key)), 1, 'one log on one shard';
    is sum0(map { $_->{cost} } @log), 100, 'of 100 requests';
    cmp_ok scalar @log, '<=', 100, 'several may have one entry';

    # PROCESS-NUMBER: no two calls have the same, whoever made them

    my %ids = map { (split /:/, $_->{member}, 4)[3] => 1 } @log;
    my %processes = map { s/-\w+\z//r => 1 } keys %ids;

    is scalar keys %ids, scalar @log, 'each of a call of its own';
    cmp_ok scalar keys %processes, '<=', 4, 'of four processes at most';

    my ($place) = places_of($key);
    my $pttl = $shards[$place]->cmd('PTTL', $key);

    cmp_ok abs($pttl - 3_601_000), '<', 300_000, 'with a time to live';

    # what was told: each number once to those that passed, then 0

    is_deeply [sort { $a <=> $b } map { $_->{headers}{'x-ratelimit-remaining'} }
               grep { $_->{status} == 200 } $load->responses], [0 .. 99],
              'each of them had another number left';

    my @waits = map { $_->{headers}{'retry-after'} }
                grep { $_->{status} == 429 } $load->responses;

    cmp_ok min(@waits), '>', 3000, 'the others wait for the oldest to leave';
    cmp_ok max(@waits), '<=', 3600, 'and never longer';
};


subtest '500 keys at once, limit 5: exactly 5 each' => sub {
    flush();

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 5000, keep => 1,
        timeout => 120,

        # every key ten times, the next one as far away as can be
        path => sub { '/five?k=user' . ($_[0] * 173 % 500) });

    my %passed;
    my %asked;

    for my $r ($load->responses) {
        my $key = $r->{n} * 173 % 500;
        $asked{$key}++;
        $passed{$key} += $r->{status} == 200;
    }

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 2500, 429 => 2500 }, 'half of all';
    is scalar(grep { $_ == 10 } values %asked), 500, 'ten tries for each key';
    is scalar(grep { $_ == 5 } values %passed), 500, 'five of them passed';

    my @here = map { [@{ $_->cmd('KEYS', '*') }] } @shards;
    my %all = map { $_ => 1 } map { @$_ } @here;

    is scalar keys %all, 500, '500 logs';
    is sum0(map { scalar @$_ } @here), 500, 'each on one shard';
    cmp_ok min(map { scalar @$_ } @here), '>', 100, 'and many on each shard';

    my $odd = 0;

    for my $i (0 .. $#shards) {
        for my $key (@{ $here[$i] }) {
            my @costs = map { (split /:/, $_)[1] }
                        @{ $shards[$i]->cmd('ZRANGE', $key, 0, -1) };

            $odd++ if sum0(@costs) != 5
                      || $shards[$i]->cmd('PTTL', $key) <= 0;
        }
    }

    is $odd, 0, 'five requests and a time to live for each';
};


subtest 'both nginx write to the same log' => sub {
    flush();

    my $wrong = 0;

    for my $n (1 .. 40) {
        for my $i (0, 1) {
            my $r = RateLimit::Load::get($ports[$i], "/five?k=both$n");
            $wrong++ if $r->{headers}{'x-ratelimit-remaining'} != 4 - $i;
        }

        $wrong++ if places_of("ratelimit:localhost/five:{both$n}") != 1;
    }

    is $wrong, 0, 'the second one sees what the first one took';
};


# An entry is in Redis for three seconds: looking there several times a second
# finds all that there ever were, with the time at which they passed.

subtest 'a window that slides: never more than 20 in any three seconds' => sub {
    flush();

    my $key = 'ratelimit:localhost/slide:{a}';
    my $looked = 0;
    my %entries;

    my $look = sub {
        $entries{$_->{member}} = $_ for log_of($key);
        $looked = time;
    };

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 16, duration => 8, timeout => 60,
        path => sub {
            $look->() if time - $looked > 0.3;
            return '/slide?k=a';
        });

    $look->();

    my @log = values %entries;
    my $span = max(map { $_->{time} } @log) - min(map { $_->{time} } @log);

    is $load->error_text, '', 'no errors';
    is $load->count(200) + $load->count(429), $load->count,
       'passed or rejected';
    is sum0(map { $_->{cost} } @log), $load->count(200),
       'all that passed are known';
    is fullest(3_000_000, sort { $a->[0] <=> $b->[0] }
                          map { [@$_{qw(time cost)}] } @log), 20, 'the fullest window holds 20';
    cmp_ok $span, '>', 5_000_000, 'and there were several in a row';
    cmp_ok $load->count(429), '>', $load->count(200),
           'more was asked for than fits';
};


subtest 'tiers by map: each plan has its own limit, one log' => sub {
    flush();

    my @plans = ('none', 'silver', 'gold');

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 30, requests => 600, keep => 1,
        timeout => 60,
        path => sub {
            my $plan = $plans[$_[0] % 3];

            return { path    => "/tier?k=$plan",
                     headers => { 'X-Plan' => $plan } };
        });

    my %passed;

    for my $r ($load->responses) {
        $passed{$plans[$r->{n} % 3]} += $r->{status} == 200;
    }

    is $load->error_text, '', 'no errors';
    is_deeply \%passed, { none => 3, silver => 10, gold => 40 },
              'exactly so many';

    my $get = sub {
        my ($key, $plan) = @_;

        return RateLimit::Load::get($ports[0], "/tier?k=$key",
                                    'X-Plan' => $plan);
    };

    is $get->('gold', 'silver')->{status}, 429,
       'whoever changes to a smaller plan takes the log along';

    my $r = $get->('none', 'gold');

    is $r->{status}, 200, 'and so who changes to a larger one';
    is $r->{headers}{'x-ratelimit-remaining'}, 36, 'three had passed before';
};


subtest 'costs: what passed adds up to the limit' => sub {
    flush();

    my @costs = (3, 1, 2, 5);

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 40, requests => 400, keep => 1,
        timeout => 60,
        path => sub { '/cost?k=a&c=' . $costs[$_[0] % 4] });

    my @passed = map { $costs[$_->{n} % 4] }
                 grep { $_->{status} == 200 } $load->responses;

    is $load->error_text, '', 'no errors';
    is $load->count(200) + $load->count(429), 400, 'passed or rejected';
    is sum0(@passed), 100, 'a hundred, not one more or less';

    is sum0(map { $_->{cost} } log_of('ratelimit:localhost/cost:{a}')), 100,
       'and so does the log';
};


subtest 'after all of that: as many connections as at the start' => sub {
    is_deeply [map { $_->clients } @shards], [(2 * $WORKERS) x 3],
              'one per worker and shard';

    $_->finish for @nginx;

    ok wait_until(sub { !grep { $_->clients } @shards }),
       'and took its connections along';
};


done_testing();
