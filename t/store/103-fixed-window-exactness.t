# The fixed window, end to end: however many clients, workers, machines and
# shards there are, a period admits exactly its limit, also over a reload, when
# Redis forgets its scripts, and when clients leave.
#
# Periods are a year long where nothing else is said, so that none ends during a
# test.  Timeouts are long and errors close, so that a slow machine can't turn a
# request that Redis did not answer into one that passed.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max sum0);
use POSIX qw(strftime);
use Time::HiRes qw(time);

use RateLimit::Calendar;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my @shards = RateLimit::Redis->start_many(3);

my %CONFIG = (conf => <<'EOC', server => <<'EOS');
    ratelimit_algorithm fixed_window;
    ratelimit_window 365d;

    ratelimit_limit user algorithm=fixed_window key=$arg_u capacity=40
                         window=365d;
    ratelimit_limit all  algorithm=fixed_window key=all capacity=60
                         window=365d;
    ratelimit_limit pool key=$arg_p capacity=50 rate=0r/s;
EOC
        ratelimit_key $arg_k;

        location /100 { ratelimit_capacity 100; empty_gif; }
        location /five { ratelimit_capacity 5; empty_gif; }
        location /second { ratelimit_capacity 20; ratelimit_window 1s;
                           empty_gif; }
        location /cost { ratelimit_capacity 100; ratelimit_cost $arg_c;
                         empty_gif; }
        location /several { ratelimit user all pool; empty_gif; }
        location /calls { ratelimit_capacity 30; ratelimit_deny_cache off;
                          empty_gif; }
        location /look { ratelimit user; ratelimit_preview on; empty_gif; }
        location /dry { ratelimit_capacity 3; ratelimit_dry_run on;
                        empty_gif; }
        location /month { ratelimit_capacity 3; ratelimit_period month;
                          ratelimit_timezone +05:30; ratelimit_anchor 15;
                          empty_gif; }
EOS

my @nginx = map { start_nginx(\@shards, workers => 2, reuseport => 1,
                              %CONFIG) } 1 .. 2;
my @ports = map { $_->port } @nginx;


sub flush { $_->cmd('FLUSHALL') for @shards }


# What was counted for this key, on all shards.

sub count_of {
    my ($key) = @_;

    return sum0(map { (split /:/, $_->cmd('GET', $key) // '0:0:0')[2] }
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

    my $length = 365 * 86400;
    my $end = time - time % $length + $length;
    my @waits = map { $_->{headers}{'retry-after'} }
                grep { $_->{status} == 429 } $load->responses;

    cmp_ok max(map { abs($_ - ($end - time)) } @waits), '<', 60,
           'the others wait for the end of the period';

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


# By Redis's clock: a second admits 20, and each second does.

subtest 'many periods: no second has more than its limit' => sub {
    my %seconds;
    my $looked = 0;

    my $load = run(sub {
        if (time - $looked > 0.1) {
            $looked = time;

            for (grep { defined } map { $_->cmd('GET',
                     'ratelimit:localhost/second:{a}') } @shards)
            {
                my ($start, undef, $count) = split /:/;
                $seconds{$start} = $count if $count > ($seconds{$start} // 0);
            }
        }

        return '/second?k=a';
    }, requests => undef, duration => 5, connections => 16);

    is $load->error_text, '', 'no errors';
    cmp_ok scalar keys %seconds, '>=', 5, 'several seconds';
    is 0 + max(values %seconds), 20, 'the limit of each';
    cmp_ok $load->count(200), '<=', 20 * 7, 'no more passed';
    cmp_ok $load->count(200), '>=', 20 * 5, 'and no less';
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
    ok $r->{headers}{'x-ratelimit-reset'}, 'and when the period ends';
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


subtest 'a period of the calendar' => sub {
    my $calendar = RateLimit::Calendar->new('month', zone => 19800,
                                            anchor => 15);
    my ($start, $end) = map { $_ / 1e6 } $calendar->at(time * 1e6);
    my $r = RateLimit::Load::get($ports[0], '/month?k=a');

    is $r->{headers}{'x-ratelimit-remaining'}, 2, 'one of three';
    cmp_ok abs($r->{headers}{'x-ratelimit-reset'} - $end), '<=', 2,
           'resets with the period: '
           . strftime('%Y-%m-%d %H:%M', gmtime $r->{headers}{'x-ratelimit-reset'});

    RateLimit::Load::get($ports[1], '/month?k=a') for 1 .. 2;
    $r = RateLimit::Load::get($ports[1], '/month?k=a');

    is $r->{status}, 429, 'after three';
    cmp_ok abs($r->{headers}{'retry-after'} - ($end - time)), '<=', 2,
           'come back when it is over';
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
    is RateLimit::Load::get($own->port, '/month?k=a')
           ->{headers}{'x-ratelimit-remaining'}, 2, 'a month';
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
