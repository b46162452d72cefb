# The sliding window counter, end to end: however many clients, workers, machines and
# shards there are, a window admits exactly its limit, also over a reload, when
# Redis forgets its scripts, and when clients leave.
#
# Windows are a year long where nothing else is said, so that nothing comes back during a
# test.  Timeouts are long and errors close, so that a slow machine can't turn a
# request that Redis did not answer into one that passed.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);

use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my @shards = RateLimit::Redis->start_many(3);

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    ratelimit_algorithm sliding_window_counter;
    ratelimit_window 365d;

    ratelimit_limit user algorithm=sliding_window_counter key=$arg_u capacity=40
                         window=365d;
    ratelimit_limit all  algorithm=sliding_window_counter key=all capacity=60
                         window=365d;
    ratelimit_limit pool key=$arg_p capacity=50 rate=0r/s;
EOC
        ratelimit_key $arg_k;

        location /100 { ratelimit_capacity 100; empty_gif; }
        location /five { ratelimit_capacity 5; empty_gif; }
        location /cost { ratelimit_capacity 100; ratelimit_cost $arg_c;
                         empty_gif; }
        location /several { ratelimit user all pool; empty_gif; }
        location /calls { ratelimit_capacity 30; ratelimit_deny_cache off;
                          empty_gif; }
        location /look { ratelimit user; ratelimit_preview on; empty_gif; }
        location /dry { ratelimit_capacity 3; ratelimit_dry_run on;
                        empty_gif; }
EOS

my @nginx = map { start_nginx(\@shards, workers => 2, reuseport => 1,
                              %CONFIG) } 1 .. 2;
my @ports = map { $_->port } @nginx;


sub flush { $_->cmd('FLUSHALL') for @shards }


# What was counted for this key, on all shards.

sub count_of {
    my ($key) = @_;

    return sum0(map { (split /:/, $_->cmd('GET', $key) // '0:0:0')[-1] }
                @shards);
}


sub run {
    my ($path, %opt) = @_;

    return RateLimit::Load::run(targets => \@ports, connections => 50,
                                requests => 2000, keep => 1, timeout => 60,
                                path => $path, %opt);
}


subtest '2 nginx x 2 workers x 3 shards, one key: exactly 100 pass' => sub {
    my $load = run('/100?k=a');

    is_deeply $load->statuses, { 200 => 100, 429 => 1900 }, '100 and 1900';
    is $load->error_text, '', 'no errors';

    my %workers = map { $_->{headers}{'x-worker'} => 1 } $load->responses;
    is scalar keys %workers, 4, 'by all four workers';

    is count_of('ratelimit:localhost/100:{a}'), 100, 'as Redis has counted';
    is_deeply [sort { $a <=> $b } map { $_->{headers}{'x-ratelimit-remaining'} }
               grep { $_->{status} == 200 } $load->responses], [0 .. 99],
              'each of them had another number left';

    my %sources = map { $_->{headers}{'x-source'} => 1 } $load->responses;

    ok $sources{denied}, 'many by a remembered denial';
};


subtest '500 keys at once, limit 5: exactly 5 each' => sub {
    flush();

    my $load = run(sub { '/five?k=user' . ($_[0] * 173 % 500) },
                   requests => 5000);
    my %passed;

    $passed{$_->{n} * 173 % 500} += $_->{status} == 200 for $load->responses;

    is $load->error_text, '', 'no errors';
    is scalar(grep { $_ == 5 } values %passed), 500, 'five for each key';

    my @here = map { @{ $_->cmd('KEYS', '*') } } @shards;

    is scalar @here, 500, '500 keys';
    is scalar(grep { count_of($_) == 5 } @here), 500, 'each of which has 5';
};


subtest 'costs: what passed adds up to the limit' => sub {
    my @costs = (3, 1, 2, 5);
    my $load = run(sub { '/cost?k=a&c=' . $costs[$_[0] % 4] },
                   requests => 400);

    is sum0(map { $costs[$_->{n} % 4] } grep { $_->{status} == 200 }
            $load->responses), 100, 'a hundred, not one more or less';
    is count_of('ratelimit:localhost/cost:{a}'), 100, 'and so in Redis';
};


subtest 'several limits on several shards: all or nothing' => sub {
    flush();

    my $load = run(sub { '/several?u=' . $_[0] % 7 . '&p=' . $_[0] % 3 },
                   requests => 700);
    my $passed = $load->count(200);

    is $load->error_text, '', 'no errors';
    is $passed, 60, 'the tightest limit';

    ok wait_until(sub { count_of('ratelimit:all:{all}') == 60 }),
       'which was charged for these alone';
    ok wait_until(sub {
        60 == sum0(map { count_of("ratelimit:user:{$_}") } 0 .. 6)
    }), 'what others had taken from their users went back';

    my $r = RateLimit::Load::get($ports[0], '/look?u=1');

    is $r->{headers}{'x-ratelimit-remaining'},
       40 - count_of('ratelimit:user:{1}'), 'a preview says so';
    ok $r->{headers}{'x-ratelimit-reset'}, 'and when all of it is over';
};


subtest 'a reload, SCRIPT FLUSH and clients that leave' => sub {
    flush();

    my $load = run('/calls?k=reload', requests => 10);

    ok $_->reload, 'reload' for @nginx;
    $_->cmd('SCRIPT', 'FLUSH') for @shards;
    $load = run('/calls?k=reload', requests => 100);

    is $load->count(200), 20, 'the rest of the limit';
    is $load->error_text, '', 'no errors';

    $load = run('/calls?k=left', requests => 400, keep => 0,
                abort => 0.5, abort_after => 0);
    cmp_ok $load->aborted, '>', 20, $load->aborted . ' clients left';
    cmp_ok $load->count(200), '<=', 30, 'no more than the limit passed';

    run('/calls?k=left', requests => 100);
    is count_of('ratelimit:localhost/calls:{left}'), 30,
       'and nothing is lost for others';
};


subtest 'a dry run denies nobody' => sub {
    my $load = run('/dry?k=a', requests => 20);
    my %status = map { $_->{headers}{'x-status'} => 1 } $load->responses;

    is_deeply $load->statuses, { 200 => 20 }, 'all pass';
    ok $status{REJECTED_DRY_RUN}, 'some would not have';
};


subtest 'in memory of one machine' => sub {
    my $own = start_nginx(undef, workers => 4, reuseport => 1, %CONFIG);
    my $load = RateLimit::Load::run(port => $own->port, connections => 50,
                                    requests => 1000, keep => 1,
                                    path => '/100?k=a', timeout => 60);

    is_deeply $load->statuses, { 200 => 100, 429 => 900 }, '100 and 900';

    ok $own->reload, 'reload';
    is RateLimit::Load::get($own->port, '/100?k=a')->{status}, 429,
       'the count goes on';

    $load = RateLimit::Load::run(port => $own->port, connections => 20,
                                 requests => 400, keep => 1, timeout => 60,
                                 path => sub { '/several?u=' . $_[0] % 7 });

    is $load->count(200), 60, 'several limits';
    is RateLimit::Load::get($own->port, '/look?u=1')->{status}, 200,
       'a preview';
};


subtest 'the share of a machine while Redis is away' => sub {
    my $redis = RateLimit::Redis->start;
    my $own = start_nginx([$redis], on_error => 'local', timeout => '1s',
                          conf => 'ratelimit_local_share 1/4;'
                                  . $CONFIG{conf},
                          server => $CONFIG{server});

    $redis->stop;

    my $load = RateLimit::Load::run(port => $own->port, connections => 4,
                                    requests => 100, keep => 1, timeout => 60,
                                    path => '/100?k=a');

    is $load->count(200), 25, 'a quarter';
    is_deeply [map { $_->{headers}{'x-ratelimit-limit'} }
               ($load->responses)[-1]], [25], 'and says so';
};


done_testing();
