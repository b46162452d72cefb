# Combining: while a call for a bucket is under way, further requests of this
# worker for the same bucket and cost wait, and leave as one call "up to n
# times", first come, first served.  Batching: calls for different buckets that
# are made in one turn of the event loop share a command.
#
# The fake Redis never answers by itself: a test sees a call, and says when the
# reply comes and what it is.  That a request waits is known from nginx's
# stub_status, which counts those that are being answered.  Requests of one turn
# are those that come while the worker is stopped.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use List::Util qw(sum0 max);
use Time::HiRes qw(time sleep);

use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Parked;
use RateLimit::Redis;
use RateLimit::Util qw(slurp wait_until patience);

my %SHA = map { $_ => sha1_hex(slurp("build/lua/$_.lua")) }
          qw(token_bucket gcra take refund);
my %NAME = reverse %SHA;


# ---- what all parts use

# Locations with a limit each, and some that share one.

my $LIMITS = <<'EOC';
    keepalive_timeout 600s;

    ratelimit_limit shared key=$arg_k capacity=100 rate=1r/d;
    ratelimit_limit other key=$arg_k capacity=100 rate=1r/d;

    map $arg_c $cost { default 1; ~. $arg_c; }
    map $arg_plan $plan { default 100; gold 200; }
EOC

my $SERVER = <<"EOC";
        ratelimit_key \$arg_k;

$PARKED_SERVER
EOC

$SERVER .= <<'EOC';
        location /b { ratelimit_capacity 100; ratelimit_rate 120r/h;
                      ratelimit_cost $cost; empty_gif; }
        location /never { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          ratelimit_cost $cost; empty_gif; }
        location /clock { ratelimit_capacity 100; ratelimit_rate 120r/h;
                          ratelimit_clock nginx; empty_gif; }
        location /again { ratelimit_capacity 100; ratelimit_rate 120r/h;
                          ratelimit_cost $cost; empty_gif; }
        location /gcra { ratelimit_capacity 100; ratelimit_rate 100r/d;
                         ratelimit_algorithm gcra;
                         ratelimit_cost $cost; empty_gif; }
        location /window { ratelimit_capacity 100;
                           ratelimit_algorithm sliding_window_log;
                           ratelimit_window 1h;
                           ratelimit_cost $cost; empty_gif; }
        location /plan { ratelimit_capacity $plan; ratelimit_rate 120r/h;
                         empty_gif; }
        location /small { ratelimit_capacity 7; ratelimit_rate 120r/h;
                          empty_gif; }
        location /quick { ratelimit_capacity 100; ratelimit_rate 120r/h;
                          ratelimit_redis_timeout 300ms; empty_gif; }
        location /open { ratelimit_capacity 100; ratelimit_rate 120r/h;
                         ratelimit_on_error open; empty_gif; }
        location /local { ratelimit_capacity 3; ratelimit_rate 3r/h;
                          ratelimit_on_error local; empty_gif; }
        location /peek { ratelimit_capacity 100; ratelimit_rate 120r/h;
                         ratelimit_preview on; empty_gif; }
        location /named1 { ratelimit shared; empty_gif; }
        location /named2 { ratelimit shared; empty_gif; }
        location /named3 { ratelimit shared; ratelimit_redis_timeout 50s;
                           empty_gif; }
        location /both { ratelimit shared other; empty_gif; }
EOC

sub start {
    my ($shards, %opt) = @_;

    my $conf = delete $opt{conf} // '';

    return start_nginx($shards, timeout => '60s', connect => '60s',
                       deny_cache => 'off', log => 'info', reuseport => 1, %opt,
                       conf => $conf . $LIMITS, server => $SERVER);
}


# The calls that the fake has got: script, keys and the other arguments.

sub calls {
    my ($fake) = @_;

    my @calls;

    for my $args ($fake->commands('EVALSHA')) {
        my (undef, $sha, $n, @rest) = @$args;
        my @keys = map { /\{(.*)\}/ ? $1 : $_ } splice @rest, 0, $n;

        push @calls, { script => $NAME{$sha} // $sha, keys => \@keys,
                       args => \@rest };
    }

    return @calls;
}


# For how many requests each key of a call is asked, in their order, or the
# first of them.  Those of take.lua have but one limit each here.

sub times_of {
    my ($call) = @_;

    my @args = @{ $call->{args} };
    my $n = @{ $call->{keys} };
    my @times = (1) x $n;

    if ($call->{script} eq 'take') {
        $times[0] = (splice @args, 0, 5 + 8 * $n)[4];

        while (my ($several, $limits, $number) = splice @args, 0, 3) {
            $limits == 1 or die "a request with $limits limits\n";
            $times[$number - 1] = $several;
        }

    } else {
        splice @args, 0, $call->{script} eq 'token_bucket' ? 6 : 3;
        @times = @args if @args;
    }

    return wantarray ? @times : $times[0];
}


sub wait_calls {
    my ($fake, $n) = @_;

    $fake->wait_commands('EVALSHA', $n, 10) or die "no call $n\n";

    return (calls($fake))[$n - 1];
}


# How many there are, once there are as many as expected: the server may be a
# moment behind.

sub count_calls {
    my ($fake, $n) = @_;

    $fake->wait_commands('EVALSHA', $n, 10);

    return scalar(my @calls = calls($fake));
}


sub one   { ":$_[0]\r\n" }
sub many  { '*' . @_ . "\r\n" . join '', map { ":$_\r\n" } @_ }
sub micro { $_[0] * 1_000_000 }


my $fake = RateLimit::FakeRedis->start(policy => { eval => {} });
my $nginx = start($fake->addr);

wait_until(sub { $fake->connections->{open} == 1 }) or die 'no connection';


# ---- who waits, and how the reply is shared

subtest 'a lone request goes at once' => sub {
    $fake->clear;

    my ($c) = park($nginx, '/b?k=lone');
    my $call = wait_calls($fake, 1);

    is $call->{script}, 'token_bucket', 'a call';
    is_deeply $call->{keys}, ['lone'], 'for its key';
    is scalar @{ $call->{args} }, 5, 'and for no more than one request';

    $fake->push(one(micro(42)));
    is answer($c), '200 42', 'whose reply is its own';
};


subtest 'those that come while a call is under way wait for one call' => sub {
    $fake->clear;

    my ($first, @others) = park($nginx, ('/b?k=a') x 6);

    is count_calls($fake, 1), 1, 'one call for the first of six';

    $fake->push(one(micro(90)));
    is answer($first), '200 90', 'which has its own reply';

    my $call = wait_calls($fake, 2);

    is_deeply $call->{keys}, ['a'], 'a call for the others';
    is times_of($call), 5, 'up to five times';
    is $call->{args}[3], 1, 'the cost of one';
    is parked($nginx), 5, 'all five wait for it';

    $fake->push(many(3, 0));
    is_deeply [map { answer($_) } @others],
              ['200 2', '200 1', '200 0', '429 0', '429 0'],
              'the first three pass, each with what is left after it';
    is count_calls($fake, 2), 2, 'two calls in all';
};


subtest 'all pass, or none' => sub {
    $fake->clear;

    my ($first, @others) = park($nginx, ('/b?k=a') x 4);

    $fake->push(one(micro(90)));
    wait_calls($fake, 2);
    $fake->push(many(3, micro(87)));

    is answer($first), '200 90', 'the first';
    is_deeply [map { answer($_) } @others], ['200 89', '200 88', '200 87'],
              'three of three, in order';

    $fake->clear;
    ($first, @others) = park($nginx, ('/b?k=a&c=4') x 4);

    $fake->push(one(-1 - micro(3)));
    wait_calls($fake, 2);
    $fake->push(many(0, -1 - micro(3)));

    is_deeply [map { answer($_) } $first, @others], [('429 3') x 4],
              'none of four';
};


subtest 'costs count as often as requests pass' => sub {
    $fake->clear;

    my ($first, @others) = park($nginx, ('/b?k=a&c=10') x 4);

    $fake->push(one(micro(35)));
    my $call = wait_calls($fake, 2);
    is $call->{args}[3], 10, 'cost 10';
    is times_of($call), 3, 'three times';

    $fake->push(many(2, micro(5)));
    is_deeply [map { answer($_) } $first, @others],
              ['200 35', '200 15', '200 5', '429 5'], 'what remains is right';
};


subtest 'windows and gcra combine as well' => sub {
    $fake->clear;

    my ($first, @others) = park($nginx, ('/window?k=a') x 4);

    is wait_calls($fake, 1)->{script}, 'take', 'a window';
    $fake->push(many(9, 3_600_000_000, 0));

    my $call = wait_calls($fake, 2);
    is times_of($call), 3, 'three at once';

    $fake->push(many(2, 0, 1_800_000_000, 0));
    is_deeply [map { answer($_) } $first, @others],
              ['200 9', '200 1', '200 0', '429 0'], 'two pass';

    $fake->clear;
    ($first, @others) = park($nginx, ('/gcra?k=a') x 3);

    $call = wait_calls($fake, 1);
    is $call->{script}, 'gcra', 'gcra';

    my $tick = $call->{args}[1];
    $fake->push(one(9 * $tick));

    is times_of(wait_calls($fake, 2)), 2, 'two at once';
    $fake->push(many(1, 0.5 * $tick));
    is_deeply [map { answer($_) } $first, @others],
              ['200 9', '200 0', '429 0'], 'one passes';
};


subtest 'the third group goes when the second has its reply' => sub {
    $fake->clear;

    my ($c1, $c2) = park($nginx, ('/b?k=a') x 2);

    $fake->push(one(micro(9)));
    wait_calls($fake, 2);

    my ($c3, $c4) = park($nginx, ('/b?k=a') x 2);

    is count_calls($fake, 2), 2, 'the third and fourth wait';
    is times_of((calls($fake))[1]), 1, 'the second had gone alone';

    $fake->push(one(micro(8)));
    is times_of(wait_calls($fake, 3)), 2, 'and go together';
    $fake->push(many(2, micro(6)));

    is_deeply [map { answer($_) } $c1, $c2, $c3, $c4],
              ['200 9', '200 8', '200 7', '200 6'], 'all in order';
};


# Each of these has something to itself that the first has not.

subtest 'what differs does not mix' => sub {
    for my $case (['/b?k=y', 'another key'], ['/b?k=x&c=2', 'another cost'],
                  ['/again?k=x', 'another place'],
                  ['/plan?k=x', 'another place with the same limit'])
    {
        my ($path, $name) = @$case;

        $fake->clear;

        my ($c1, $c2) = park($nginx, '/b?k=x', $path);

        is times_of(wait_calls($fake, 2)), 1, "$name: goes at once";

        $fake->push(one(micro(5)) . one(micro(4)));
        is_deeply [map { answer($_) } $c1, $c2], ['200 5', '200 4'],
                  'each has its reply';
    }

    $fake->clear;

    my ($c1, $c2, $c3) = park($nginx, '/plan?k=x', '/plan?k=x&plan=gold',
                              '/plan?k=x');
    is count_calls($fake, 2), 2, 'another plan of the same key goes at once';
    $fake->push(one(micro(5)) . one(micro(4)));
    is times_of(wait_calls($fake, 3)), 1, 'the same plan had to wait';
    $fake->push(one(micro(3)));
    is_deeply [map { answer($_) } $c1, $c2, $c3], ['200 5', '200 4', '200 3'],
              'each has its reply';
};


subtest 'places that share a limit share the calls' => sub {
    $fake->clear;

    # a bucket of a hundred days is not for the short script

    my @c = park($nginx, '/named1?k=x', '/named2?k=x', '/named1?k=x');

    is count_calls($fake, 1), 1, 'one call';
    $fake->push(one(micro(9)));
    is times_of(wait_calls($fake, 2)), 2, 'and one for the others';
    $fake->push(many(2, micro(7)));
    is_deeply [map { answer($_) } @c], ['200 9', '200 8', '200 7'], 'in order';

    $fake->clear;
    @c = park($nginx, '/named1?k=x', '/named3?k=x', '/both?k=x', '/peek?k=x');
    is count_calls($fake, 4), 4,
       'not with another timeout, nor of several limits, nor a preview';

    $fake->push(one(micro(9)) . one(micro(8)) . many(micro(7), micro(6))
                . one(micro(5)));
    is_deeply [map { answer($_) } @c], ['200 9', '200 8', '200 6', '200 5'],
              'each has its reply';
};


# ---- failures

subtest 'a combined call that the server does not know is made by its text'
    => sub
{
    $fake->clear;

    my ($first, @others) = park($nginx, ('/b?k=a') x 4);

    $fake->push(one(micro(90)));
    wait_calls($fake, 2);
    $fake->push("-NOSCRIPT No matching script.\r\n");

    ok $fake->wait_commands('EVAL', 1), 'EVAL';

    my ($eval) = $fake->commands('EVAL');

    is sha1_hex($eval->[1]), $SHA{token_bucket}, 'with the text';
    is $eval->[-1], 3, 'for three';

    $fake->push(many(2, micro(1)));
    is_deeply [map { answer($_) } $first, @others],
              ['200 90', '200 2', '200 1', '429 1'], 'and counts';
};


subtest 'a combined call that fails, fails for all of them by the policy'
    => sub
{
    for my $case (['/b?k=a', 503], ['/open?k=a', 200]) {
        my ($path, $status) = @$case;

        $fake->clear;

        my ($first, @others) = park($nginx, ($path) x 4);

        $fake->push(one(micro(90)));
        wait_calls($fake, 2);
        $fake->push("-WRONGTYPE of somebody else\r\n");

        is answer($first), '200 90', "$path: the first has its reply";
        is_deeply [map { $_->response(20)->{status} } @others],
                  [($status) x 3], "the others: $status";
    }

    $fake->clear;

    my ($first, @others) = park($nginx, ('/local?k=a') x 5);

    $fake->push(one(micro(2)));
    wait_calls($fake, 2);
    $fake->push("-WRONGTYPE of somebody else\r\n");

    my @r = map { $_->response(20) } @others;

    is_deeply [map { "$_->{status} $_->{headers}{'x-status'}" } @r],
              [('200 DEGRADED') x 3, '429 REJECTED'],
              'local: each takes from the memory of the machine';

    # a reply of the wrong form, or for more than were asked

    for my $reply (one(5), many(4, micro(5)), many(-1, 0), many(1, 2, 3)) {
        $fake->clear;
        ($first, @others) = park($nginx, ('/b?k=a') x 4);

        $fake->push(one(micro(90)));
        wait_calls($fake, 2);
        $fake->push($reply);

        is_deeply [map { $_->response(20)->{status} } @others], [(503) x 3],
                  ($reply =~ s/\r\n/ /gr) . 'is no reply for three';

        answer($first);
        wait_until(sub { $fake->connections->{accepted} > 1
                         && $fake->connections->{open} == 1 })
            or die 'no connection';
    }
};


subtest 'a connection that is lost fails those that wait as well' => sub {
    $fake->clear;

    my @c = park($nginx, ('/b?k=a') x 3);
    my $n = $fake->connections->{accepted};

    $fake->drop;

    is_deeply [map { $_->response(20)->{status} } @c], [(503) x 3],
              'all three';

    ok wait_until(sub { $fake->connections->{accepted} > $n }), 'connected';

    my $c = client($nginx)->send('/b?k=a');
    ok wait_until(sub {
        return 1 if calls($fake) > 1;
        $c->response(5), $c = client($nginx)->send('/b?k=a');
        return 0;
    }, 10), 'the next one is sent again';

    $fake->push(one(micro(5)));
    is answer($c), '200 5', 'and answered';
};


# ---- clients that go

subtest 'who goes while he waits is not asked for' => sub {
    $fake->clear;

    my ($first, @others) = park($nginx, ('/b?k=a') x 5);

    leave($nginx, $others[1], $others[2]);
    $fake->push(one(micro(9)));

    is times_of(wait_calls($fake, 2)), 2, 'two of four are left';
    $fake->push(many(2, micro(7)));
    is_deeply [map { answer($_) } $first, @others[0, 3]],
              ['200 9', '200 8', '200 7'], 'and have their replies';

    $fake->clear;
    ($first, @others) = park($nginx, ('/b?k=a') x 3);
    leave($nginx, @others);
    $fake->push(one(micro(9)));
    is answer($first), '200 9', 'all who wait go';

    ($first) = park($nginx, '/b?k=a');
    is times_of(wait_calls($fake, 2)), 1, 'no call for them: the next is new';
    $fake->push(one(micro(8)));
    is answer($first), '200 8', 'with its reply';
};


subtest 'what a call got for one who went goes to the next' => sub {
    $fake->clear;

    my ($c1, $c2, $c3) = park($nginx, ('/b?k=a') x 3);

    leave($nginx, $c1);
    $fake->push(one(micro(9)));
    is answer($c2), '200 9', 'to the first one that waits';
    is times_of(wait_calls($fake, 2)), 1, 'the other one asks';
    $fake->push(one(micro(8)));
    is answer($c3), '200 8', 'and gets its own';

    # of a call for three, one goes and two come

    $fake->clear;

    my ($first, @ride) = park($nginx, ('/b?k=a') x 4);

    $fake->push(one(micro(20)));
    wait_calls($fake, 2);
    leave($nginx, $ride[1]);

    my @late = park($nginx, ('/b?k=a') x 2);

    $fake->push(many(3, micro(17)));
    is_deeply [map { answer($_) } $first, @ride[0, 2], $late[0]],
              ['200 20', '200 19', '200 18', '200 17'],
              'three pass, the third one was not asked for';
    is times_of(wait_calls($fake, 3)), 1, 'the last one asks for itself';
    $fake->push(one(micro(16)));
    is answer($late[1]), '200 16', 'and passes';
    is count_calls($fake, 3), 3, 'nothing was given back';
};


subtest 'the grant of one who went is not lost when not all pass' => sub {
    $fake->clear;

    my ($first, @ride) = park($nginx, ('/b?k=a') x 4);

    $fake->push(one(micro(20)));
    wait_calls($fake, 2);
    leave($nginx, $ride[0]);
    $fake->push(many(2, 0));

    is_deeply [map { answer($_) } $first, @ride[1, 2]],
              ['200 20', '200 1', '200 0'],
              'two of three were granted: the two that are left pass';
    is count_calls($fake, 2), 2, 'and nothing is given back';
};


subtest 'what nobody needs goes back' => sub {
    for my $case (['/b?k=a&c=3', 'bucket', 1], ['/window?k=a&c=3', 'window', 3],
                  ['/gcra?k=a&c=3', 'gcra', 1])
    {
        my ($path, $kind, $states) = @$case;

        $fake->clear;

        my ($first, @ride) = park($nginx, ($path) x 4);
        my $call = wait_calls($fake, 1);
        my $unit = $kind eq 'window' ? 1
                   : $kind eq 'gcra' ? $call->{args}[1] / 3 : 1_000_000;

        $fake->push($states == 1 ? one(97 * $unit)
                                 : many(97 * $unit, 3_600_000_000, 0));
        $call = wait_calls($fake, 2);
        leave($nginx, @ride[0, 2]);
        $fake->push(many(3, 88 * $unit,
                         $states == 1 ? () : (3_600_000_000, 0)));

        is answer($first), '200 97', "$kind: the first";
        is answer($ride[1]), '200 94', 'the one of three that stayed';

        my $refund = wait_calls($fake, 3);

        is $refund->{script}, 'refund', 'a refund';
        is_deeply $refund->{keys}, $call->{keys}, 'for the key';
        is scalar @{ $refund->{args} }, 4, 'alone';
        is $refund->{args}[0], $kind, 'of its kind';
        is $refund->{args}[1], 100, 'and its capacity';
        is $refund->{args}[2], 6 * ($kind eq 'gcra' ? $unit : 1),
           'of two times the cost';
        is $refund->{args}[3], $kind eq 'window' ? $call->{args}[3] : '',
           'by the id of the call, if it had one';

        $fake->push(one(1));
    }

    $fake->clear;
    my ($c) = park($nginx, '/b?k=a');
    wait_calls($fake, 1);
    leave($nginx, $c);
    $fake->push(one(micro(9)));

    ($c) = park($nginx, '/b?k=a');
    is wait_calls($fake, 2)->{script}, 'token_bucket',
       'a call that was made for one alone is not given back';
    $fake->push(one(micro(8)));
    is answer($c), '200 8', 'it was charged';
};


# ---- time

# With a timeout of 8 s, who waits goes after 2.

subtest 'who waits goes without the reply after a quarter of the timeout'
    => sub
{
    my $slow = RateLimit::FakeRedis->start(policy => { eval => {} });
    my $n = start($slow->addr, timeout => '8s');

    wait_until(sub { $slow->connections->{open} == 1 }) or die;

    my ($first, @others) = park($n, ('/b?k=a') x 3);

    is count_calls($slow, 1), 1, 'one call';
    is times_of(wait_calls($slow, 2)), 2, 'a second one, without a reply';

    my @at = map { $_->{time} } grep { $_->{args}[0] eq 'EVALSHA' }
                                $slow->entries;
    my $after = $at[1] - $at[0];

    cmp_ok $after, '>', 1.5, 'not before a quarter of 8 s';
    cmp_ok $after, '<', 6, 'and not much after it';

    my @late = park($n, ('/b?k=a') x 2);

    is count_calls($slow, 2), 2, 'the next ones wait again';

    $slow->push(one(micro(9)));
    is answer($first), '200 9', 'the first reply is for the first';
    is times_of(wait_calls($slow, 3)), 2, 'and lets those go that wait';

    $slow->push(many(1, micro(8)) . many(2, micro(6)));
    is_deeply [map { answer($_) } @others, @late],
              ['200 8', '429 8', '200 7', '200 6'],
              'the others have theirs, in order';

    $n->finish;
};


subtest 'nobody waits longer than his timeout' => sub {
    my $dead = RateLimit::FakeRedis->start(policy => { eval => {} });
    my $n = start($dead->addr, timeout => '1s',
                        conf => 'ratelimit_breaker failures=100;');

    wait_until(sub { $dead->connections->{open} == 1 }) or die;

    my @sent;
    my @clients = map { client($n) } 1 .. 12;

    for my $c (@clients) {
        push @sent, time;
        $c->send('/b?k=a');
        sleep 0.06;
    }

    my @waited;

    for my $i (0 .. $#clients) {
        is $clients[$i]->response(20)->{status}, 503, "request $i failed";
        push @waited, time - $sent[$i];
    }

    cmp_ok max(@waited), '<', 1 + patience(1.5), 'in time';

    $n->finish;
};


subtest 'a worker that is told to end at once leaves its calls' => sub {
    my $dead = RateLimit::FakeRedis->start(policy => { eval => {} });
    my $n = start($dead->addr);

    wait_until(sub { $dead->connections->{open} == 1 }) or die;

    # three calls under way, and two requests that wait for the end of the first

    my @c = park($n, map { "/b?k=$_" } qw(a b c a a));

    ok kill('TERM', $n->pid), 'TERM';
    $n->finish;
};


# ---- batching

subtest 'calls of one turn with the same limit share a command' => sub {
    $fake->clear;

    my @c = one_turn($nginx, map { "/b?k=$_" } 'a' .. 'e');
    my $call = wait_calls($fake, 1);

    is $call->{script}, 'token_bucket', 'one call';
    is_deeply [sort @{ $call->{keys} }], ['a' .. 'e'], 'with five keys';
    is scalar @{ $call->{args} }, 5, 'and the limit once';

    # 'a' has 1 left, 'b' 2, and so on; 'd' is denied

    my %left = map { $_ => ord($_) - ord('a') + 1 } 'a' .. 'e';

    $fake->push(many(map { $_ eq 'd' ? -1 - micro(0.5) : micro($left{$_}) }
                     @{ $call->{keys} }));
    is_deeply [map { answer($_) } @c],
              ['200 1', '200 2', '200 3', '429 0', '200 5'],
              'each request has the reply of its key';
    is count_calls($fake, 1), 1, 'one call in all';
};


subtest 'gcra shares as well' => sub {
    $fake->clear;

    my @c = one_turn($nginx, map { "/gcra?k=$_" } 'a' .. 'c');
    my $call = wait_calls($fake, 1);
    my $tick = $call->{args}[1];

    is_deeply [sort @{ $call->{keys} }], ['a' .. 'c'], 'three keys';
    is $call->{script}, 'gcra', 'of gcra.lua';

    $fake->push(many(map { (ord($_) - ord('a') + 7) * $tick }
                     @{ $call->{keys} }));
    is_deeply [map { answer($_) } @c], ['200 7', '200 8', '200 9'],
              'each has its own';
};


subtest 'a command has at most 32 keys' => sub {
    $fake->clear;

    my @c = one_turn($nginx, map { "/b?k=$_" } 1 .. 40);

    wait_calls($fake, 2);
    my @calls = calls($fake);

    is_deeply [map { scalar @{ $_->{keys} } } @calls], [32, 8], '32 and 8';

    $fake->push(many(map { micro($_) } @{ $calls[0]{keys} })
                . many(map { micro($_) } @{ $calls[1]{keys} }));
    is_deeply [map { answer($_) } @c], [map { "200 $_" } 1 .. 40],
              'each has its own reply';
};


subtest 'other limits, costs and kinds go by themselves' => sub {
    $fake->clear;

    my @paths = ('/b?k=a', '/small?k=b', '/b?k=c', '/b?k=d&c=2', '/gcra?k=e',
                 '/small?k=f', '/window?k=g', '/window?k=h', '/never?k=i',
                 '/plan?k=j&plan=gold', '/again?k=k');
    my @c = one_turn($nginx, @paths);

    $fake->wait_commands('EVALSHA', 7, 10);
    my @calls = calls($fake);

    is_deeply [sort map { join '', sort @{ $_->{keys} } } @calls],
              [sort qw(ack bf d e gh i j)],
              'of the short scripts only the same limit and cost share, at '
              . 'whatever place; all that is not for them does';

    my %left = map { ('a' .. 'k')[$_] => $_ + 1 } 0 .. 10;
    my $reply = '';

    for my $call (@calls) {
        my @left = map {
            $call->{script} eq 'gcra' ? $left{$_} * $call->{args}[1]
            : /[gh]/                  ? ($left{$_}, 1_000_000, 0)
                                      : micro($left{$_})
        } @{ $call->{keys} };

        $reply .= @left > 1 ? many(@left) : one(@left);
    }

    $fake->push($reply);

    is_deeply [map { answer($_) } @c], [map { "200 $_" } 1 .. 11],
              'each has its own reply';
    is count_calls($fake, 7), 7, 'seven calls in all';
};


subtest 'several of one key in a turn go as one call from the start' => sub {
    for my $case (['/b', 'token_bucket', 1_000_000], ['/gcra', 'gcra'],
                  ['/never', 'token_bucket', 1_000_000],
                  ['/clock', 'take', 1_000_000])
    {
        my ($place, $script, $unit) = @$case;

        $fake->clear;

        my @c = one_turn($nginx, map { "$place?k=$_" } qw(a b a c a));
        my $call = wait_calls($fake, 1);
        my @keys = @{ $call->{keys} };
        my %times;

        @times{@keys} = times_of($call);

        is $call->{script}, $script, "$place: a call";
        is_deeply \%times, { a => 3, b => 1, c => 1 },
                  'for three requests of one key, and one of two others';

        # of take.lua only those that are several are told how many pass

        $unit //= $call->{args}[1];

        my %reply = (a => [2, 0], b => [1, 20 * $unit], c => [1, 30 * $unit]);

        if ($script eq 'take') {
            shift @{ $reply{$_} } for qw(b c);
        }

        $fake->push(many(map { @{ $reply{$_} } } @keys));

        is_deeply [map { answer($_) } @c],
                  ['200 1', '200 20', '200 0', '200 30', '429 0'],
                  'each has its own reply, first come, first served';
        is count_calls($fake, 1), 1, 'and nobody asks again';
    }
};


subtest 'an error of one key is of that key alone' => sub {
    $fake->clear;

    my @c = one_turn($nginx, map { "/b?k=$_" } 'a' .. 'c');
    my $call = wait_calls($fake, 1);

    $fake->push("*3\r\n" . join '', map {
        $_ eq 'b' ? "-WRONGTYPE Operation against a key\r\n"
                  : one(micro(ord($_) - ord('a') + 1))
    } @{ $call->{keys} });

    is_deeply [map { answer($_) } @c], ['200 1', '503 -', '200 3'],
              'the others have their replies';

    # and one of the whole command is of all

    $fake->clear;
    @c = one_turn($nginx, map { "/b?k=$_" } 'a' .. 'c');
    wait_calls($fake, 1);
    $fake->push("-OOM command not allowed\r\n");
    is_deeply [map { $_->response(20)->{status} } @c], [(503) x 3],
              'an error of the command fails all of them';

    $fake->clear;
    @c = one_turn($nginx, map { "/b?k=$_" } 'a' .. 'c');
    wait_calls($fake, 1);
    $fake->push("-NOSCRIPT No matching script.\r\n");
    ok $fake->wait_commands('EVAL', 1), 'NOSCRIPT: made again by its text';

    my ($eval) = $fake->commands('EVAL');
    is $eval->[2], 3, 'with three keys';
    $fake->push(many(map { /\{(.)\}/; micro(ord($1) - ord('a') + 1) }
                     @$eval[3 .. 5]));
    is_deeply [map { answer($_) } @c], ['200 1', '200 2', '200 3'],
              'and each has its reply';
};


subtest 'a reply of the wrong length is none' => sub {
    for my $reply (many(1, 2), many(1, 2, 3, 4), one(1),
                   "*3\r\n:1\r\n+OK\r\n:3\r\n")
    {
        my $n = $fake->connections->{accepted};

        $fake->clear;
        my @c = one_turn($nginx, map { "/b?k=$_" } 'a' .. 'c');
        wait_calls($fake, 1);
        $fake->push($reply);
        is_deeply [map { $_->response(20)->{status} } @c], [(503) x 3],
                  $reply =~ s/\r\n/ /gr;
        wait_until(sub { $fake->connections->{accepted} > $n
                         && $fake->connections->{open} == 1 })
            or die 'no connection';
    }
};


subtest 'a short timeout of one place is not that of another' => sub {
    $fake->clear;

    my @c = one_turn($nginx, '/quick?k=a', '/b?k=b', '/quick?k=c');

    wait_calls($fake, 2);
    is_deeply [sort map { join '', sort @{ $_->{keys} } } calls($fake)],
              ['ac', 'b'], 'they don\'t share a command';

    is_deeply [map { $_->response(20)->{status} } @c[0, 2]], [503, 503],
              'those in a hurry have waited long enough';
    is parked($nginx), 1, 'the other one waits on';

    my $first = (calls($fake))[0]{keys}[0];
    my ($quick, $slow) = (many(micro(1), micro(1)), one(micro(2)));

    $fake->push($first eq 'b' ? $slow . $quick : $quick . $slow);
    is answer($c[1]), '200 2', 'and has its reply';
};


$nginx->finish;


# ---- a real Redis

my $redis = RateLimit::Redis->start;


sub evalsha_calls {
    return 0 unless $redis->cmd('INFO', 'commandstats')
                    =~ /cmdstat_evalsha:calls=(\d+)/;
    return $1;
}


sub left_in {
    my ($place, $key) = @_;

    my $name = "ratelimit:localhost$place:{$key}";
    my $type = $redis->cmd('TYPE', $name);

    if ($type eq 'zset') {
        return 100 - sum0(map { (split /:/)[1] }
                          @{ $redis->cmd('ZRANGE', $name, 0, -1) });

    } elsif ($type eq 'hash') {
        return 0 + $redis->tokens($name);

    } elsif ($type eq 'string') {

        # a token is worth 864 s

        my ($s, $us) = @{ $redis->cmd('TIME') };
        my $now = ($s - 1_700_000_000) * 16_000_000 + $us * 16;

        return 100 - ($redis->cmd('GET', $name) - $now) / (864 * 16_000_000);
    }

    return 100;
}


subtest 'a hot key under many connections needs few calls' => sub {
    my $n = start('unix:' . $redis->socket,
                        conf => 'access_log off;', log => 'notice');

    # all at once, while Redis is stopped

    $redis->cmd('CONFIG', 'RESETSTAT');
    $redis->pause;

    my @c = park($n, ('/b?k=paused') x 64);

    $redis->resume;
    is_deeply [sort map { answer($_) } @c], [sort map { "200 $_" } 36 .. 99],
              '64 requests pass';
    is evalsha_calls(), 2, 'by two calls';

    # how many come at once depends on what else the machine does

    my $each;

    for my $try (1 .. 5) {
        $redis->cmd('CONFIG', 'RESETSTAT');

        my $load = RateLimit::Load::run(
            port => $n->port, path => "/b?k=hot$try", connections => 64,
            requests => 6000, timeout => 60);

        is_deeply $load->statuses, { 200 => 100, 429 => 5900 }, 'exactly 100';
        is $load->error_text, '', 'no errors';

        $each = evalsha_calls() / 6000;
        note sprintf '%.3f calls a request', $each;

        last if $each <= 0.3;
    }

    cmp_ok $each, '<=', 0.3, 'at most 0.3 calls a request';

    $n->finish;
};


subtest '2 nginx x 2 workers: exactly so many pass, at any cost' => sub {
    my @n = map { start('unix:' . $redis->socket, workers => 2,
                              log => 'notice') } 1, 2;

    for my $place (qw(/b /never /gcra /window)) {
        for my $cost (1, 3, 7) {
            my $load = RateLimit::Load::run(
                targets => [map { $_->port } @n], connections => 40,
                requests => 400, timeout => 60,
                path => "$place?k=x$cost&c=$cost");

            my $passes = int(100 / $cost);

            is_deeply $load->statuses,
                      { 200 => $passes, 429 => 400 - $passes },
                      "$place, cost $cost: $passes";
        }
    }

    # several costs of one key in the same groups of clients

    for my $place (qw(/b /gcra /window)) {
        my @costs = (1, 2, 5);
        my $load = RateLimit::Load::run(
            targets => [map { $_->port } @n], connections => 40,
            requests => 600, timeout => 60, keep => 1,
            path => sub { "$place?k=mixed&c=$costs[$_[0] % 3]" });

        is sum0(map { $costs[$_->{n} % 3] }
                grep { $_->{status} == 200 } $load->responses), 100,
           "$place: costs 1, 2 and 5 add up to 100";
    }

    $_->finish for @n;
};


# Redis stands still: the first goes at once, those behind it after a second,
# and the last ones wait when it runs again.

subtest 'clients that go: the bucket and those who passed make the capacity'
    => sub
{
    my $n = start('unix:' . $redis->socket, timeout => '8s');

    for my $place (qw(/b /gcra /window /never)) {
        for my $cost (1, 3) {
            my $path = "$place?k=gone$cost&c=$cost";
            my $calls = $n->metric('redis_calls_total');

            $redis->pause;

            my ($first, @ride) = park($n, ($path) x 11);

            ok wait_until(sub {
                $n->metric('redis_calls_total') == $calls + 2
            }, 15), "$place, cost $cost: two calls are under way";

            leave($n, @ride[2, 3, 4, 9]);
            my @late = park($n, ($path) x 2);
            leave($n, $late[0]) if $cost == 3;

            $redis->resume;

            my @stay = ($first, @ride[0, 1, 5 .. 8],
                        $cost == 3 ? $late[1] : @late);
            my @status = map { $_->response(20)->{status} } @stay;

            is_deeply \@status, [(200) x @stay], 'all who stayed pass';

            my $left = 100 - $cost * @stay;

            ok wait_until(sub {
                abs(left_in($place, "gone$cost") - $left) < 0.5
            }), 'all else is in the bucket again'
                or diag left_in($place, "gone$cost"), " instead of $left";
        }
    }

    $n->finish;
};


subtest 'of many clients many go, and nothing is lost' => sub {
    my $n = start('unix:' . $redis->socket, workers => 2,
                        log => 'notice');

    for my $place (qw(/never /window)) {
        my $load = RateLimit::Load::run(
            port => $n->port, connections => 40, requests => 600,
            timeout => 60, abort => 0.4, abort_after => 0,
            path => "$place?k=aborted");

        cmp_ok $load->aborted, '>', 20, "$place: many went";
        cmp_ok $load->count(200), '<=', 100, 'not too many passed';

        # whoever comes now finds the rest

        my $more = RateLimit::Load::run(
            port => $n->port, connections => 10, requests => 200,
            timeout => 60, path => "$place?k=aborted");

        cmp_ok $load->count(200) + $more->count(200), '<=', 100,
               'nor with those that came later';
        cmp_ok left_in($place, 'aborted'), '<', 1, 'nothing is left';
    }

    $n->finish;
};


subtest 'scripts that are forgotten cost nobody anything' => sub {
    my $n = start('unix:' . $redis->socket, timeout => '8s');

    for my $place (qw(/b /gcra /window)) {
        my $calls = $n->metric('redis_calls_total');

        $redis->cmd('SCRIPT', 'FLUSH');
        $redis->pause;

        my @c = park($n, ("$place?k=flush") x 8);

        ok wait_until(sub {
            $n->metric('redis_calls_total') == $calls + 2
        }, 15), "$place: two calls are under way";
        $redis->resume;

        is_deeply [map { answer($_) } @c], [map { "200 $_" } reverse 92 .. 99],
                  'eight pass, in order';
    }

    $n->finish;
};


subtest 'a key of somebody else spoils no batch' => sub {
    my $n = start('unix:' . $redis->socket);

    for my $place (qw(/b /gcra)) {
        $redis->cmd('RPUSH', "ratelimit:localhost$place:{k3}", 'not ours');
        $redis->cmd('CONFIG', 'RESETSTAT');

        my @c = one_turn($n, map { "$place?k=k$_" } 1 .. 5);

        is_deeply [map { answer($_) } @c],
                  ['200 99', '200 99', '503 -', '200 99', '200 99'],
                  "$place: its request fails, and no other";
        is evalsha_calls(), 1, 'by one call';
        is_deeply $redis->cmd('LRANGE', "ratelimit:localhost$place:{k3}",
                                 0, -1), ['not ours'], 'the key is left alone';
    }

    $n->finish;
};


done_testing();
