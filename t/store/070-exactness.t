# What the module is for: however many clients, workers, machines and shards
# there are, exactly as many requests pass as the limit says.
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
use RateLimit::Util qw(wait_until);

my @shards = RateLimit::Redis->start_many(3);
my $WORKERS = 2;

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    map $http_x_plan $plan_capacity { default 3; silver 10; gold 40; }
    map $http_x_plan $plan_rate { default 1r/d; silver 2r/d; gold 5r/d; }
EOC
        ratelimit_key $arg_k;

        location /ten { ratelimit_capacity 10; ratelimit_rate 1r/d; empty_gif; }
        location /100 { ratelimit_capacity 100; ratelimit_rate 1r/d;
                        empty_gif; }
        location /five { ratelimit_capacity 5; ratelimit_rate 1r/d;
                         empty_gif; }
        location /refill { ratelimit_capacity 100; ratelimit_rate 50r/s;
                           empty_gif; }
        location /tier { ratelimit_capacity $plan_capacity;
                         ratelimit_rate $plan_rate; empty_gif; }
        location /cost { ratelimit_capacity 100; ratelimit_rate 1r/d;
                         ratelimit_cost $arg_c; empty_gif; }
        location /slow { ratelimit_capacity 10; ratelimit_rate 1r/d;
                         ratelimit_deny_cache off; empty_gif; }
        location /never { ratelimit_capacity 7; ratelimit_rate 0r/s;
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


subtest 'a hundred at once, capacity 10: exactly 10 pass' => sub {
    my $load = RateLimit::Load::run(port => $ports[0], path => '/ten?k=a',
                                    connections => 100, requests => 100,
                                    timeout => 60);

    is_deeply $load->statuses, { 200 => 10, 429 => 90 }, '10 and 90';
    is $load->error_text, '', 'no errors';
};


subtest '2 nginx x 2 workers x 3 shards, one key: exactly 100 pass' => sub {
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

    # workers of two nginx, one connection each

    is scalar @seen, 15, 'Redis was looked at during the run';
    is max(@seen), 2 * $WORKERS, 'connections to a shard: one per worker';
    is_deeply [map { $_->clients } @shards], [(2 * $WORKERS) x 3],
              'and so after it';

    is scalar(places_of('ratelimit:localhost/100:{a}')), 1,
       'one bucket on one shard';
};


subtest '500 keys at once, capacity 5: exactly 5 each' => sub {
    flush();

    my @seen;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 5000, keep => 1,
        timeout => 120,
        path => sub {
            my ($n) = @_;

            push @seen, map { $_->clients } @shards if $n % 1000 == 999;

            # every key ten times, the next one as far away as can be
            return '/five?k=user' . ($n * 173 % 500);
        });

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
    is max(@seen), 2 * $WORKERS, 'connections to a shard: one per worker';

    # where they live

    my @here = map { [@{ $_->cmd('KEYS', '*') }] } @shards;
    my %all = map { $_ => 1 } map { @$_ } @here;

    is scalar keys %all, 500, '500 buckets';
    is sum0(map { scalar @$_ } @here), 500, 'each on one shard';
    cmp_ok min(map { scalar @$_ } @here), '>', 100, 'and many on each shard';
    is scalar(grep { !/^ratelimit:localhost\/five:\{user\d+\}\z/ } keys %all),
       0, 'under their names';
};


subtest 'both nginx take from the same bucket' => sub {
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


# From the first take on, a bucket of 100 gives 100 and 50 a second until a
# request is denied.  When Redis served the first and the last request is known
# only between two times: the least and the greatest number follow from those.
# A pause of the machine is harmless below the two seconds that fill a bucket.

subtest 'refill: capacity + rate x time, within 1 %' => sub {
    flush();

    my ($redis) = @shards;
    my ($asked, $passed, $denied) = (0, 0, 0);

    my $one = sub {
        my $status = RateLimit::Load::get($ports[0], '/refill?k=a')->{status};

        $asked++;
        $passed++ if $status == 200;
        $denied++ if $status == 429;

        return $status;
    };

    # the clock of one Redis will do: all are on this machine

    my $first_sent = $redis->time;
    $one->();
    my $first_answered = $redis->time;

    my $load = RateLimit::Load::run(targets => \@ports, connections => 8,
                                    duration => 5, path => '/refill?k=a',
                                    timeout => 60);

    $asked += $load->count;
    $passed += $load->count(200);
    $denied += $load->count(429);

    my ($last_sent, $last_answered);

    for (1 .. 1000) {
        $last_sent = $redis->time;
        my $status = $one->();
        $last_answered = $redis->time;

        last if $status == 429;
    }

    my $most = 100 + 50 * ($last_answered - $first_sent);
    my $least = 100 + 50 * ($last_sent - $first_answered);

    note sprintf '%d passed, between %.1f and %.1f expected', $passed, $least,
                 $most;

    is $load->error_text, '', 'no errors';
    is $passed + $denied, $asked, 'each request passed or was denied';
    cmp_ok $denied, '>', 100, 'there were more requests than tokens';
    cmp_ok $last_answered - $first_sent, '>', 4, 'for several seconds';
    cmp_ok $passed, '<=', $most, 'never more';
    cmp_ok $passed, '>=', $least * 0.99, 'and not 1 % less';
};


subtest 'tiers by map: each plan has its own capacity' => sub {
    flush();

    my @plans = ('none', 'silver', 'gold');

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 30, requests => 600, keep => 1,
        timeout => 60,
        path => sub {
            my ($n) = @_;
            my $plan = $plans[$n % 3];

            return { path    => "/tier?k=$plan",
                     headers => { 'X-Plan' => $plan } };
        });

    my (%passed, %limit);

    for my $r ($load->responses) {
        my $plan = $plans[$r->{n} % 3];

        $passed{$plan} += $r->{status} == 200;
        $limit{$plan}{$r->{headers}{'x-ratelimit-limit'}} = 1;
    }

    is $load->error_text, '', 'no errors';
    is_deeply \%passed, { none => 3, silver => 10, gold => 40 },
              'exactly so many';
    is_deeply \%limit, { none => { 3 => 1 }, silver => { 10 => 1 },
                         gold => { 40 => 1 } }, 'and told so';

    # whoever changes plans takes the bucket along

    my $gold = RateLimit::Load::get($ports[0], '/tier?k=gold',
                                    'X-Plan' => 'silver');
    is $gold->{status}, 429, 'an empty bucket stays empty in a smaller plan';

    my $none = RateLimit::Load::get($ports[0], '/tier?k=none',
                                    'X-Plan' => 'gold');
    is $none->{status}, 429, 'and in a larger one';
};


subtest 'costs: what passed adds up to the capacity' => sub {
    flush();

    my @costs = (3, 1, 2, 5);

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 40, requests => 400, keep => 1,
        timeout => 60,
        path => sub { '/cost?k=a&c=' . $costs[$_[0] % 4] });

    my $spent = sum0(map { $costs[$_->{n} % 4] }
                     grep { $_->{status} == 200 } $load->responses);

    is $load->error_text, '', 'no errors';
    is $load->count(200) + $load->count(429), 400, 'passed or rejected';
    is $spent, 100, 'a hundred tokens, not one more or less';

    my ($place) = places_of('ratelimit:localhost/cost:{a}');
    like $shards[$place]->tokens('ratelimit:localhost/cost:{a}'), qr/^0(?:\.0|$)/,
         'none is left';
};


subtest 'a rate of zero: so many, and never again' => sub {
    flush();

    my $load = RateLimit::Load::run(targets => \@ports, connections => 20,
                                    requests => 200, path => '/never?k=a',
                                    timeout => 60);

    is_deeply $load->statuses, { 200 => 7, 429 => 193 }, '7 and 193';
};


# A token a day: the bucket is moved a day into the past, instead of waiting.

subtest 'a slow rate gives its token when the day is over' => sub {
    flush();

    my $key = 'ratelimit:localhost/slow:{slow}';
    my $path = '/slow?k=slow';

    RateLimit::Load::run(port => $ports[0], path => $path, connections => 10,
                         requests => 10, timeout => 60);

    my ($place) = places_of($key);
    my $redis = $shards[$place];
    my ($last, $seen) = @{ $redis->bucket($key) }{qw(lastRefill seen)};

    # by both clocks, or it would be a leap of one of them

    my $ago = sub {
        my ($us) = map { $_ * 3_600_000_000 } @_;

        $redis->bucket_set($key, lastRefill => $last - $us,
                                 seen => $seen - $us);
    };

    # an hour is left, much more than this takes

    $ago->(23);
    my $r = RateLimit::Load::get($ports[1], $path);
    is $r->{status}, 429, 'not an hour before';
    cmp_ok abs($r->{headers}{'retry-after'} - 3600), '<', 120,
           'but in an hour, as the client is told';

    $ago->(24);
    is RateLimit::Load::get($ports[1], $path)->{status}, 200, 'one passes';
    is RateLimit::Load::get($ports[0], $path)->{status}, 429, 'and no other';
};


subtest 'after all of that: as many connections as at the start' => sub {
    is_deeply [map { $_->clients } @shards], [(2 * $WORKERS) x 3],
              'one per worker and shard';

    $_->finish for @nginx;

    ok wait_until(sub { !grep { $_->clients } @shards }),
       'and took its connections along';
};


done_testing();
