# Calls of one worker that are made in the same turns of its event loop share
# commands, whatever they ask for: several limits, windows, previews, shadows.
# That must not be seen in any answer, nor in any limit: each request is decided
# as if it had come alone, and is charged exactly once.
#
# Where a limit is a bucket, it never refills: what was taken from it is what
# those took that passed.  Timeouts are long and errors close, so that no
# request passes because of a slow machine.
#
# The keys of the limits, their capacities and the cost come with the request:
# /three?u=KEY&uc=CAPACITY&i=..&ic=..&g=..&gc=..&w=..&wc=..&s=..&c=COST.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use List::Util qw(sum0 uniq);

use RateLimit::Background;
use RateLimit::FakeRedis;
use RateLimit::Flood;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Parked;
use RateLimit::Redis;
use RateLimit::Spent;
use RateLimit::Util qw(slurp wait_until);

my $TAKE = sha1_hex(slurp('build/lua/take.lua'));

my @shards = RateLimit::Redis->start_many(2);
my $redis = $shards[0];

# the limits, by the letter of their key: kind and name

my %LIMITS = (u => ['bucket', 'user'], i => ['bucket', 'ip'],
              g => ['bucket', 'global'], w => ['window', 'window'],
              s => ['bucket', 'shadow'], t => ['gcra', 'ticks']);

# of those that have no capacity from the request

my %FIXED = (s => 5, t => 20);


# ---- what all parts use

my $LIMITS = <<"EOC";
    keepalive_timeout 600s;
    access_log off;

    map \$arg_c \$cost { "" 1; default \$arg_c; }
    map \$arg_uc \$user_capacity { "" 100000; default \$arg_uc; }
    map \$arg_ic \$ip_capacity { "" 100000; default \$arg_ic; }
    map \$arg_gc \$global_capacity { "" 100000; default \$arg_gc; }
    map \$arg_wc \$window_capacity { "" 100000; default \$arg_wc; }

    ratelimit_limit user   key=\$arg_u capacity=\$user_capacity rate=0r/s
                           cost=\$cost;
    ratelimit_limit ip     key=\$arg_i capacity=\$ip_capacity rate=0r/s
                           cost=\$cost;
    ratelimit_limit global key=\$arg_g capacity=\$global_capacity rate=0r/s
                           cost=\$cost;
    ratelimit_limit window key=\$arg_w capacity=\$window_capacity window=1d
                           algorithm=sliding_window_log cost=\$cost;
    ratelimit_limit second key=\$arg_w capacity=100 window=12h
                           algorithm=sliding_window_log;
    ratelimit_limit third  key=\$arg_w capacity=200 window=1h
                           algorithm=sliding_window_log;
    ratelimit_limit shadow key=\$arg_s capacity=$FIXED{s} rate=0r/s dry_run
                           cost=1;
    ratelimit_limit ticks  key=\$arg_t capacity=$FIXED{t} rate=1r/d
                           algorithm=gcra cost=\$cost;
EOC

my $SERVER = <<"EOC";
        add_header X-Left \$ratelimit_remaining always;
        add_header X-Mark "\$ratelimit_name \$request_uri" always;

$PARKED_SERVER
        location = /user { ratelimit user; empty_gif; }
        location = /window { ratelimit window; empty_gif; }
        location = /shadow { ratelimit shadow; empty_gif; }
        location = /ticks { ratelimit ticks; empty_gif; }
        location = /three { ratelimit user ip global; empty_gif; }
        location = /open { ratelimit user ip global;
                           ratelimit_on_error open; empty_gif; }
        location = /peek { ratelimit user ip global; ratelimit_preview on;
                           empty_gif; }
        location = /log { ratelimit user window global; empty_gif; }
        location = /dry { ratelimit user shadow global; empty_gif; }
        location = /logs { ratelimit window second third; empty_gif; }
        location = /all { ratelimit global window user ticks shadow ip;
                          empty_gif; }
EOC

sub start {
    my ($shards, %opt) = @_;

    my $conf = delete $opt{conf} // '';

    return start_nginx($shards, timeout => '30s', deny_cache => 'off',
                       workers => 2, reuseport => 1, %opt,
                       conf => $conf . $LIMITS, server => $SERVER);
}


# The same, when nobody answers: all of them wait.

sub parked_turn {
    my ($nginx, @paths) = @_;

    my @clients = one_turn($nginx, @paths);

    wait_until(sub { parked($nginx) == @paths }) or die "not parked\n";

    return @clients;
}


# Commands that the servers have run since then.

sub reset_calls { $_->reset_calls for @shards }
sub calls_of { my ($name) = @_; return sum0(map { $_->calls($name) } @shards) }
sub flush { $_->cmd('FLUSHALL') for @shards }


# What was taken from a limit, by the letter of its key.

sub taken {
    my ($letter, $key, $capacity) = @_;

    my ($kind, $name) = @{ $LIMITS{$letter} };

    return spent({ kind => $kind, name => $name, key => $key,
                   capacity => $capacity, period => 86_400 }, @shards);
}


# A test: after some time so much and no more or less was, [which] => number.

sub is_taken {
    my ($name, @wanted) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is_spent($name, \&taken, @wanted);
}


# So many requests over all of these nginx, 64 connections in all, by a process
# for each; how often each status was seen, with a header if one is named, and
# all that went wrong.

sub flood {
    my ($ports, $requests, $path, $mark) = @_;

    my @floods = map {
        my $i = $_;

        RateLimit::Background->start(sub {
            RateLimit::Flood::run(
                port => $ports->[$i], connections => 64 / @$ports,
                batch => 10, requests => $requests / @$ports,
                timeout => 60, mark => $mark,
                path => sub { $path->($_[0] * @$ports + $i) })
        })
    } 0 .. $#$ports;

    my %seen;

    for my $flood (map { $_->wait } @floods) {
        $seen{$_} += $flood->{marks}{$_} for keys %{ $flood->{marks} };
        $seen{$_} += $flood->{errors}{$_} for keys %{ $flood->{errors} };
    }

    return \%seen;
}


# What those took that passed, by the marks of a flood: { u => { KEY => 5 } };
# and who was denied: [name, { letter => key }, cost].

sub charges {
    my ($seen) = @_;

    my (%taken, @denied, %odd);

    for my $mark (keys %$seen) {
        my ($status, $name, $place, $query) =
            $mark =~ m{^(\d+) (\S*) (/\w+)\?(\S+)$};

        if (!$query || $status !~ /^(?:200|429)$/) {
            $odd{$mark} = $seen->{$mark};
            next;
        }

        my %args = map { split /=/ } split /&/, $query;
        my %keys = map { $_ => $args{$_} } grep { $LIMITS{$_} } keys %args;
        my $cost = $args{c} // 1;

        if ($status == 429) {
            push @denied, [$name, \%keys, $cost];
            next;
        }

        next if $place eq '/peek';

        # of a shadow, until it is empty

        for my $letter (keys %keys) {
            my $sum = \$taken{$letter}{ $keys{$letter} };

            $$sum += $seen->{$mark} * ($letter eq 's' ? 1 : $cost);
            $$sum = $FIXED{s} if $letter eq 's' && $$sum > $FIXED{s};
        }
    }

    return (\%taken, \@denied, \%odd);
}


# As is_taken() takes it.

sub all_charges {
    my ($taken, $capacity) = @_;

    return map { my $letter = $_;
                 map { ([$letter, $_, $capacity->{$letter}],
                        $taken->{$letter}{$_}) }
                 sort keys %{ $taken->{$letter} } } sort keys %$taken;
}


my @nginx = map { start($redis->addr) } 1, 2;
my @ports = map { $_->port } @nginx;

my $single = start($redis->addr, workers => 1);


# ---- three limits

# How many calls share a command depends on how many requests come at once, and
# so on the machine: with the worker stopped, that is known.

subtest 'requests of one turn with three limits share their commands' => sub {
    reset_calls();

    my @c = one_turn($single, ('/three?u=turn&uc=50&i=turn&g=turn') x 64);
    my @answers = map { answer($_) } @c;

    is_deeply [sort { $a cmp $b } @answers],
              [sort { $a cmp $b } ('429 0') x 14, map { "200 $_" } 0 .. 49],
              '50 of 64 pass, and each has a number of its own';
    is calls_of('evalsha'), 2, 'by two commands for 32 requests each';
    is_taken 'each limit was charged by those that passed',
             [u => 'turn', 50], 50, [i => 'turn', 100_000], 50,
             [g => 'turn', 100_000], 50;
};


subtest 'three limits, 64 connections: exactly as many as the tightest allows'
    => sub
{
    my $n = 0;

    for my $targets ([$ports[0]], \@ports) {
        for my $case ([700, 900, 100_000], [100_000, 700, 900],
                      [900, 100_000, 700], [700, 700, 700])
        {
            my ($uc, $ic, $gc) = @$case;
            my $k = 'tight' . ++$n;
            my $path = "/three?u=$k&uc=$uc&i=$k&ic=$ic&g=$k&gc=$gc";

            reset_calls();

            my $seen = flood($targets, 2000, sub { $path });
            my $calls = calls_of('evalsha');

            note "$calls commands for 2000 requests";
            is_deeply $seen, { 200 => 700, 429 => 1300 },
                      @$targets . " nginx, limits @$case: 700 pass";
            is_taken 'and all three limits were charged for them alone',
                     [u => $k, $uc], 700, [i => $k, $ic], 700,
                     [g => $k, $gc], 700;
            cmp_ok $calls, '<', 1000, 'by far fewer commands';
        }
    }
};



# ---- limits of all kinds

# Users with limits of their own, and limits that all of them share, at all
# kinds of places.  As nothing comes back, whoever was denied would be denied
# now.

my %CAPACITY = (u => 60, i => 2000, g => 3000, w => 40, %FIXED);

sub mixed_path {
    my ($n) = @_;

    my $k = 'user' . ($n * 17 % 40);
    my $c = 1 + int($n / 9) % 3;
    my ($u, $i, $g, $w) = ("u=$k&uc=60", 'i=all&ic=2000', 'g=all&gc=3000',
                           "w=$k&wc=40");

    return ("/three?$u&$i&$g", "/user?$u", "/window?$w", "/log?$u&$w&$g",
            "/dry?$u&s=$k&$g", "/shadow?s=$k", "/ticks?t=$k",
            "/all?$g&$w&$u&t=$k&s=$k&$i", "/peek?$u&$i&$g")[$n % 9] . "&c=$c";
}


subtest 'all kinds of limits at once: each is charged exactly' => sub {
    flush();
    reset_calls();

    my $seen = flood(\@ports, 7200, \&mixed_path, 'X-Mark');
    my ($taken, $denied, $odd) = charges($seen);
    my $calls = calls_of('evalsha');

    note "$calls commands for 7200 requests";
    is sum0(values %$seen), 7200, 'all were answered';
    is_deeply $odd, {}, 'by a pass or a denial';
    cmp_ok $calls, '<', 5400, 'of fewer commands';

    is_taken 'what passed was taken, and nothing else',
             all_charges($taken, \%CAPACITY);

    my %letter = map { $LIMITS{$_}[1] => $_ } keys %LIMITS;
    my (%by, @wrong);

    for my $case (@$denied) {
        my ($name, $keys, $cost) = @$case;
        my $letter = $letter{$name} // '?';
        my $left = $CAPACITY{$letter} - ($taken->{$letter}{ $keys->{$letter} }
                                         // 0);

        $by{$name}++;
        push @wrong, "$name of $keys->{$letter}: $left, $cost asked for"
            if $left >= $cost;
    }

    is join("\n", @wrong), '', 'nobody was denied by a limit that has enough';
    is_deeply [sort keys %by], [qw(ticks user window)],
              'but many were by those of their own';

    # then those that all share are the tight ones

    flush();
    $seen = flood(\@ports, 3600,
                  sub { mixed_path($_[0]) =~ s/(?<=c=)[23]000/100/gr
                                          =~ s/u=user\d+/u=user$_[0]/r },
                  'X-Mark');
    ($taken, $denied, $odd) = charges($seen);

    is_deeply $odd, {}, 'others are tight: all passed or were denied';
    is_taken 'what passed was taken',
             all_charges($taken, { %CAPACITY, i => 100, g => 100 });

    my $left = 100 - $taken->{g}{all};
    my @by_global = grep { $_->[0] eq 'global' } @$denied;

    cmp_ok scalar @by_global, '>', 0, 'the limit that all share has denied';
    is_deeply [grep { $_->[2] <= $left } @by_global], [],
              'nobody for whom it has enough';
};


subtest 'all kinds of limits in one turn share a command' => sub {
    flush();
    reset_calls();

    # what a ticks limit alone asks for is another script's

    my @places = qw(/three /user /window /log /dry /shadow /all);
    my @c = one_turn($single, map {
        my $k = 'k' . ($_ % 3);
        "$places[$_ % 7]?u=$k&uc=50&w=$k&wc=60&s=$k&t=$k&i=all&g=all"
    } 0 .. 41);

    is_deeply [map { $_->response(20)->{status} } @c], [(200) x 42],
              '42 pass';

    # 32 requests are the most; those for one limit alone, of the same key, are
    # one; one bucket alone is for the short script

    cmp_ok calls_of('evalsha'), '<=', 3, 'by three commands at most';

    # of 42, six at each place, two for each of three keys

    is_taken 'and each limit was charged for its own',
             [i => 'all', 100_000], 12, [g => 'all', 100_000], 24,
             map { ([u => "k$_", 50], 10, [w => "k$_", 60], 6, [s => "k$_", 5],
                    5, [t => "k$_", 20], 2) } 0 .. 2;
};


subtest 'a thousand windows: each lets exactly so many pass' => sub {
    reset_calls();

    # the next request for a key comes when all others had theirs

    my $seen = flood(\@ports, 6000, sub {
        '/window?wc=4&w=key' . $_[0] % 1000
    });
    my $calls = calls_of('evalsha');

    note "$calls commands for 6000 requests";
    is_deeply $seen, { 200 => 4000, 429 => 2000 }, 'four of six pass';
    cmp_ok $calls, '<', 3000, 'by far fewer commands than requests';

    my @wrong = grep { taken(w => "key$_", 4) != 4 } 0 .. 999;

    is "@wrong", '', 'four entries in each of the windows';

    # in a turn

    reset_calls();

    my @c = one_turn($single, map { "/window?wc=$_&w=turn$_" } 1 .. 40);

    is_deeply [map { answer($_) } @c], [map { '200 ' . ($_ - 1) } 1 .. 40],
              'windows of one turn: each tells what it has';
    is calls_of('evalsha'), 2, 'by two commands';

    # the longest reply that there is: three numbers for each of 96 windows

    reset_calls();
    @c = one_turn($single, ('/logs?w=long&wc=50') x 64);

    is_deeply [sort map { answer($_) } @c],
              [sort +('429 0') x 14, map { "200 $_" } 0 .. 49],
              'three windows for each of 64: as many as the first one allows';
    is calls_of('evalsha'), 2, 'by two commands';
    is sum0(map { (split /:/)[1] }
            @{ $redis->cmd('ZRANGE', "ratelimit:$_:{long}", 0, -1) }), 50,
       "$_ was charged for those" for qw(window second third);
};


# ---- what is said

subtest 'each request of a command is told what was left after it' => sub {
    for my $case (['/three', 'user', 'u=X&uc=30&i=X&g=X'],
                  ['/three', 'ip', 'u=X&i=X&ic=30&g=X'],
                  ['/three', 'global', 'u=X&i=X&g=X&gc=30'],
                  ['/log', 'window', 'u=X&w=X&wc=30&g=X'],
                  ['/user', 'user', 'u=X&uc=30'],
                  ['/window', 'window', 'w=X&wc=30'])
    {
        my ($place, $name, $query) = @$case;
        my $key = 'told' . $place =~ tr{/}{}dr . $name;
        my $path = "$place?" . $query =~ s/X/$key/gr;

        reset_calls();

        my @r = map { $_->response(20) } one_turn($single, ($path) x 20);

        is_deeply [sort { $a <=> $b }
                   map { $_->{headers}{'x-ratelimit-remaining'} } @r],
                  [10 .. 29], "$place, $name: 20 numbers";
        is_deeply [grep { $_->{headers}{'x-left'}
                          != $_->{headers}{'x-ratelimit-remaining'} } @r], [],
                  'the variable has the same';
        is_deeply [uniq(map { join ' ', $_->{status},
                              @{ $_->{headers} }{qw(x-name x-status x-source
                                                    x-ratelimit-limit)} } @r)],
                  ["200 $name PASSED redis 30"], 'all else is the same';
        is calls_of('evalsha'), 1, 'one command';

        @r = map { $_->response(20) } one_turn($single, ($path) x 15);

        is_deeply [sort map { "$_->{status} "
                              . $_->{headers}{'x-ratelimit-remaining'} } @r],
                  [sort +('429 0') x 5, map { "200 $_" } 0 .. 9],
                  'then ten more, and those that came too late';
    }

    # each has limits of its own

    my @r = map { $_->response(20) } one_turn($single, map {
        my $capacity = 10 + $_;
        "/three?u=own$_&uc=$capacity&i=own&ic=1000&g=own&gc=1000"
    } 1 .. 20);

    is_deeply [map { join ' of ', @{ $_->{headers} }
                     {qw(x-ratelimit-remaining x-ratelimit-limit)} } @r],
              [map { 9 + $_ . ' of ' . (10 + $_) } 1 .. 20],
              'of several users, each has the numbers of its own limit';

    # the limit that denies is not the one that others are told about

    @r = map { $_->response(20) } one_turn($single, map {
        '/three?u=named' . ($_ % 2) . '&uc=' . ($_ % 2 ? 3 : 100)
        . '&i=named&ic=1000&g=named&gc=1000'
    } 1 .. 20);

    is_deeply [map { $_->{status} } @r[grep { $_ % 2 } 0 .. 19]], [(200) x 10],
              'who has enough passes';
    is scalar(grep { $_->{status} == 429 && $_->{headers}{'x-name'} eq 'user' }
              @r), 7, 'who has not is denied by his own limit';
    is_taken 'which charges the others nothing', [i => 'named', 1000], 13,
             [g => 'named', 1000], 13;
};


subtest 'previews take nothing from those they travel with' => sub {
    reset_calls();

    my $limits = 'u=look&uc=40&i=look&g=look';
    my @r = map { $_->response(20) }
            one_turn($single, map { ($_ % 2 ? '/three?' : '/peek?') . $limits }
                              1 .. 40);

    is calls_of('evalsha'), 2, 'one command takes, and one looks';
    is_deeply [sort { $a <=> $b } map { $_->{headers}{'x-left'} }
               @r[grep { $_ % 2 == 0 } 0 .. 39]], [20 .. 39],
              'those that take have a number each';

    my @looks = uniq(map { $_->{headers}{'x-left'} }
                     @r[grep { $_ % 2 } 0 .. 39]);

    is scalar(@looks), 1, 'those that look see the same';
    like $looks[0], qr/^(?:20|40)$/, 'of before or after';
    is_taken 'twenty were taken', [u => 'look', 40], 20,
             [i => 'look', 100_000], 20, [g => 'look', 100_000], 20;
};


# ---- clients that go

# Redis stands still, so that the commands of a turn are under way.

subtest 'clients that go while their commands are under way' => sub {
    my $n = 0;

    for my $case (['the first', sub { $_ == 0 }],
                  ['every third', sub { $_ % 3 == 0 }],
                  ['the last of a command', sub { $_ >= 20 && $_ < 30 }],
                  ['a whole command', sub { $_ < 30 }],
                  ['all but one', sub { $_ != 35 }], ['all', sub { 1 }])
    {
        my ($name, $goes) = @$case;
        my $k = 'gone' . ++$n;
        my $calls = $single->metric('redis_calls_total');

        $redis->pause;

        my @c = parked_turn($single, map {
            "/three?u=$k-$_&uc=" . (10 + $_) . "&i=$k&g=$k"
        } 0 .. 39);

        # one has room for 32 limits, two of which are shared

        is $single->metric('redis_calls_total') - $calls, 2,
           "$name: two commands are under way";

        my @gone = grep { $goes->() } 0 .. 39;
        my %gone = map { $_ => 1 } @gone;
        my @stay = grep { !$gone{$_} } 0 .. 39;

        leave($single, @c[@gone]);
        $redis->resume;

        is_deeply [map { answer($c[$_]) } @stay],
                  [map { '200 ' . (9 + $_) } @stay],
                  'whoever stayed has an answer of his own';
        is_taken 'and all were charged once', [i => $k, 100_000], 40,
                 [g => $k, 100_000], 40,
                 map { ([u => "$k-$_", 10 + $_], 1) } 0 .. 39;
        is answer((one_turn($single, "/three?u=$k&uc=7&i=$k&g=$k"))[0]),
           '200 6', 'the next one is answered as well';
    }
};


subtest 'many clients of whom many go: all limits agree about them' => sub {
    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 40, requests => 1500,
        timeout => 60, abort => 0.4, abort_after => 0,
        path => '/three?u=left&uc=700&i=left&ic=900&g=left&gc=1100');

    my $passed = $load->count(200);

    cmp_ok $load->aborted, '>', 100, 'many went';
    is $load->error_text, '', 'the others had no errors';

    my $seen = flood(\@ports, 1000, sub {
        '/three?u=left&uc=700&i=left&ic=900&g=left&gc=1100'
    });

    $passed += $seen->{200} // 0;
    cmp_ok $passed, '<=', 700, "$passed passed, not more than the tightest";
    cmp_ok $passed + $load->aborted, '>=', 700,
           'nor fewer, with those who went';
    is_taken 'each limit has charged the same', [u => 'left', 700], 700,
             [i => 'left', 900], 700, [g => 'left', 1100], 700;
};


# The fake Redis never answers by itself: a test sees a call, and says when the
# reply comes and what it is.

my $fake = RateLimit::FakeRedis->start(policy => { eval => {} });
my $other = start($fake->addr, workers => 1);

wait_until(sub { $fake->connections->{open} == 1 }) or die 'no connection';


# The requests of a command, each a list of the values of its keys.

sub requests_in {
    my ($args) = @_;

    my (undef, undef, $n, @rest) = @$args;
    my @keys = map { /\{(.*)\}/ ? $1 : $_ } splice @rest, 0, $n;
    my @requests;

    splice @rest, 0, 5 + 8 * $n;

    return [@keys] unless @rest;

    while (@rest) {
        my (undef, $of) = splice @rest, 0, 2;

        push @requests, [map { $keys[$_ - 1] } splice @rest, 0, $of];
    }

    return @requests;
}


# User "7" has 7 left, and the others much more.

sub reply_to {
    my ($args) = @_;

    my @states = map { my ($user) = @$_;
                       ($user * 1_000_000, 90_000_000_000, 90_000_000_000) }
                 requests_in($args);

    return '*' . @states . "\r\n" . join '', map { ":$_\r\n" } @states;
}


subtest 'a gap in a command is nobody\'s answer' => sub {
    for my $gone ([0], [0, 1, 2], [2, 4], [5], [0, 5]) {
        $fake->clear;

        my @c = parked_turn($other, map { "/three?u=$_&i=a&g=b" } 1 .. 6);

        $fake->wait_commands('EVALSHA', 1) or die 'no command';

        my ($call) = $fake->commands('EVALSHA');

        is_deeply [sort map { join ' ', @$_ } requests_in($call)],
                  [map { "$_ a b" } 1 .. 6], 'six requests in a command';
        is $call->[1], $TAKE, 'of take.lua';
        is $call->[2], 8, 'with eight keys';

        leave($other, @c[@$gone]);
        $fake->push(reply_to($call));

        my @stay = grep { my $i = $_; !grep { $_ == $i } @$gone } 0 .. 5;

        is_deeply [map { answer($c[$_]) } @stay],
                  [map { '200 ' . ($_ + 1) } @stay],
                  "without @$gone: each has its own";
    }

    # nobody is left: the reply is not that of the next one

    $fake->clear;

    my @c = parked_turn($other, map { "/three?u=$_&i=a&g=b" } 1 .. 6);

    $fake->wait_commands('EVALSHA', 1) or die 'no command';
    leave($other, @c);

    my ($next) = parked_turn($other, '/three?u=50&i=a&g=b');

    $fake->wait_commands('EVALSHA', 2) or die 'no command';
    $fake->push(join '', map { reply_to($_) } $fake->commands('EVALSHA'));
    is answer($next), '200 50', 'all went: the next one has its own';
};


subtest 'a script that is not known: once more, for those who are left' => sub {
    for my $gone ([], [0], [1, 3], [0, 1, 2, 3, 4], [5]) {
        $fake->clear;

        my @c = parked_turn($other, map { "/three?u=$_&i=a&g=b" } 1 .. 6);
        my @stay = grep { my $i = $_; !grep { $_ == $i } @$gone } 0 .. 5;

        $fake->wait_commands('EVALSHA', 1) or die 'no command';
        leave($other, @c[@$gone]);
        $fake->push("-NOSCRIPT No matching script.\r\n");

        ok $fake->wait_commands('EVAL', 1), 'EVAL';

        my ($eval) = $fake->commands('EVAL');

        is sha1_hex($eval->[1]), $TAKE, 'with the text';
        is_deeply [sort map { $_->[0] } requests_in($eval)],
                  [map { $_ + 1 } @stay], 'for those who have not gone';

        $fake->push(reply_to($eval));
        is_deeply [map { answer($c[$_]) } @stay],
                  [map { '200 ' . ($_ + 1) } @stay], 'each has its own answer';
        is scalar(my @all = $fake->commands('EVALSHA')), 1,
           'no other call was made';
    }

    # a server that does not know EVAL either

    $fake->clear;

    my @c = parked_turn($other, map { "/three?u=$_&i=a&g=b" } 1 .. 3);

    $fake->wait_commands('EVALSHA', 1) or die 'no command';
    $fake->push("-NOSCRIPT No matching script.\r\n");
    $fake->wait_commands('EVAL', 1) or die 'no command';
    $fake->push("-NOSCRIPT No matching script.\r\n");
    is_deeply [map { $_->response(20)->{status} } @c], [(503) x 3],
              'twice: the requests fail, and nobody asks for ever';
};


$other->finish;


subtest 'a script that is not known: not once more to a server that failed' =>
sub {
    my $n = start($fake->addr, workers => 1,
                  conf => "ratelimit_breaker failures=1;\n");

    wait_until(sub { $fake->connections->{open} == 1 }) or die 'no connection';
    $fake->clear;

    my @c;

    for my $i (1, 2) {
        push @c, one_turn($n, "/three?u=$i&i=$i&g=$i");
        $fake->wait_commands('EVALSHA', $i) or die 'no command';
    }

    $fake->push("-LOADING Redis is loading the dataset in memory\r\n"
                . "-NOSCRIPT No matching script.\r\n");

    is_deeply [map { $_->response(20)->{status} } @c], [(503) x 2],
              'both requests fail';
    is scalar(grep { sha1_hex($_->[1]) eq $TAKE } $fake->commands('EVAL')), 0,
       'nothing is sent while the breaker is open';
    ok $n->log_like(qr/redis \S+ is unavailable \(loading\)/), 'it has opened';
    ok !$n->log_like(qr/no answer from redis/),
       'that a command was not sent is no failure of the server';

    $n->finish;
};


# ---- failures

subtest 'scripts that are forgotten under load cost nobody anything' => sub {
    flush();
    reset_calls();

    my $path = '?u=flush&uc=1000&i=flush&g=flush&w=flush&wc=100000';
    my @floods = map {
        RateLimit::Flood::start(port => $_, connections => 32, batch => 10,
                                timeout => 120, path => sub {
            (qw(/three /log /user /window))[$_[0] % 4] . $path
        })
    } @ports;

    my $stuck = 0;

    for (1 .. 50) {
        my $calls = calls_of('evalsha');

        $redis->cmd('SCRIPT', 'FLUSH');
        wait_until(sub { calls_of('evalsha') > $calls + 5 }, 20) or $stuck++;
    }

    my @results = map { $_->stop } @floods;
    my %seen;

    for my $result (@results) {
        $seen{$_} += $result->{marks}{$_} for keys %{ $result->{marks} };
    }

    is $stuck, 0, 'requests were answered all the time';
    is_deeply [map { $_->{errors} } @results], [{}, {}], 'no errors';
    is_deeply [sort keys %seen], [200, 429], 'all passed or were denied';
    cmp_ok calls_of('eval'), '>', 0, 'some by the text of the script';

    # three of four take from the user

    my $windows = taken(w => 'flush', 100_000);
    my $log = $windows - ($seen{200} - 1000);

    is taken(u => 'flush', 1000), 1000, 'the tightest limit is used up';
    cmp_ok $log, '>', 0, 'those with a window are among them';
    is taken(g => 'flush', 100_000) - taken(i => 'flush', 100_000), $log,
       'and every limit was charged by those that passed';
};


subtest 'a key of somebody else fails those who have it, and nobody else'
    => sub
{
    flush();
    $redis->cmd('RPUSH', 'ratelimit:user:{u7}', 'not ours');

    for my $case (['/three', '503 DEGRADED closed'],
                  ['/open', '200 DEGRADED open'])
    {
        my ($place, $failed) = @$case;

        reset_calls();

        my @c = one_turn($single, map { "$place?u=u$_&i=them&g=them" } 1 .. 20);
        my @answers = map { my $r = $_->response(20);
                            join ' ', $r->{status}, @{ $r->{headers} }
                            {qw(x-status x-source)} } @c;

        is_deeply \@answers, [('200 PASSED redis') x 6, $failed,
                              ('200 PASSED redis') x 13],
                  "$place: one of 20 fails";
        is calls_of('evalsha'), 1, 'one command';
    }

    is_taken 'the others were charged', [i => 'them', 100_000], 38,
             [g => 'them', 100_000], 38,
             map { ([u => "u$_", 100_000], 2) } 1 .. 6, 8 .. 20;

    # more often than a breaker would stand

    my $seen = flood(\@ports, 4000,
                     sub { '/three?u=u' . (1 + $_[0] % 20) . '&i=them&g=them' },
                     'X-Source');

    is_deeply $seen, { '200 redis' => 3800, '503 closed' => 200 },
              'one in 20 fails, the others are decided by Redis';
    is_taken 'and charged', [i => 'them', 100_000], 3838,
             [g => 'them', 100_000], 3838,
             map { ([u => "u$_", 100_000], 202) } 1 .. 6, 8 .. 20;
    is_deeply $redis->cmd('LRANGE', 'ratelimit:user:{u7}', 0, -1),
              ['not ours'], 'the key is left alone';

    # one that many share

    $redis->cmd('RPUSH', 'ratelimit:global:{bad}', 'not ours');
    reset_calls();

    my @c = one_turn($single, map {
        '/three?u=s' . $_ . '&i=share&g=' . ($_ % 2 ? 'bad' : 'good')
    } 1 .. 20);

    is_deeply [map { $_->response(20)->{status} } @c], [(503, 200) x 10],
              'a shared one: half of them fail';
    is calls_of('evalsha'), 1, 'one command';
    is_taken 'those who failed took nothing', [i => 'share', 100_000], 10,
             [g => 'good', 100_000], 10,
             map { ([u => "s$_", 100_000], $_ % 2 ? 0 : 1) } 1 .. 20;

    # as long as a reply with errors can be

    $redis->cmd('RPUSH', 'ratelimit:third:{bad}', 'not ours');
    reset_calls();

    @c = one_turn($single, map { '/logs?w=' . ($_ == 20 ? 'good' : 'bad') }
                           1 .. 32);

    is_deeply [map { $_->response(20)->{status} } @c],
              [(503) x 19, 200, (503) x 12], 'one passes where 31 fail';
    is calls_of('evalsha'), 1, 'one command';

    # and one of a limit that denies nobody

    $redis->cmd('RPUSH', 'ratelimit:shadow:{bad}', 'not ours');

    @c = one_turn($single, map {
        '/dry?u=d' . $_ . '&g=dry&s=' . ($_ % 2 ? 'bad' : 'good')
    } 1 .. 10);

    is_deeply [map { $_->response(20)->{status} } @c], [(503, 200) x 5],
              'that of a shadow: half of them fail';
    is_taken 'those who failed took nothing', [g => 'dry', 100_000], 5,
             [s => 'good', $FIXED{s}], 5,
             map { ([u => "d$_", 100_000], $_ % 2 ? 0 : 1) } 1 .. 10;
};


# ---- several shards

my $both = join ' ', map { $_->addr } @shards;
my @pair = map { start($both) } 1, 2;
my @pair_ports = map { $_->port } @pair;
my $lone = start($both, workers => 1);


# A key that no test had before, on the shard with this index.

my $keys = 0;

sub key_on {
    my ($place) = @_;

    while (1) {
        my $key = 'k' . ++$keys;
        my $shard = RateLimit::Load::get($pair_ports[0], "/peek?u=$key")
                    ->{headers}{'x-shard'};

        return $key if $shard eq $shards[$place]->addr;

        die "no key for shard $place\n" if $keys > 1000;
    }
}


subtest 'two shards, one denies: all comes back to the other' => sub {
    flush();

    for my $case ([0, 0, 1, 'g', 'uc=90000&wc=90000&gc=200'],
                  [0, 1, 1, 'u', 'uc=200&wc=90000&gc=90000'],
                  [0, 1, 0, 'w', 'uc=90000&wc=200&gc=90000'])
    {
        my ($on_u, $on_w, $on_g, $tight, $capacities) = @$case;
        my ($u, $w, $g) = map { key_on($_) } $on_u, $on_w, $on_g;
        my $path = "/log?u=$u&w=$w&g=$g&$capacities";
        my %capacity = $capacities =~ /(.)c=(\d+)/g;
        my $refunds = sum0(map { $_->metric('redis_refunds_total') } @pair);

        my @limits = ([u => $u, $capacity{u}], [w => $w, $capacity{w}],
                      [g => $g, $capacity{g}]);

        reset_calls();

        my $seen = flood(\@pair_ports, 2000, sub { $path });
        my $passed = $seen->{200};
        my $denied = $seen->{429};

        is $passed + $denied, 2000, "$tight is tight: passed or denied";
        is_taken "$passed passed, so many were taken from each",
                 map { ($_, $passed) } @limits;

        my $calls = calls_of('evalsha');

        $refunds = sum0(map { $_->metric('redis_refunds_total') } @pair)
                   - $refunds;
        note "$calls commands, $refunds of them refunds";
        cmp_ok $refunds, '>', 0, 'after refunds';
        cmp_ok $refunds, '<', $denied / 2, 'that shared commands';
        cmp_ok $calls, '<', 2000, 'as the calls did';

        # who was denied because of a token that came back may try again

        my $c = RateLimit::Load::connection($pair_ports[1]);

        for (1 .. 201 - $passed) {
            $c->send($path);
            $passed++ if $c->response(20)->{status} == 200;
        }

        is $passed, 200, 'one after the other: up to the limit';
        is_taken 'and so for each of them', map { ($_, 200) } @limits;
    }
};


subtest 'two shards, limits of all kinds: nothing is missing' => sub {
    flush();

    my $seen = flood(\@pair_ports, 5400, \&mixed_path, 'X-Mark');
    my ($taken, $denied, $odd) = charges($seen);

    is_deeply $odd, {}, 'all passed or were denied';
    cmp_ok scalar @$denied, '>', 20, 'many of them';

    # a shadow may have held what another one, which was not denied, asked for

    my %shadows = %{ delete $taken->{s} };

    is_taken 'what passed was taken, and nothing else',
             all_charges($taken, \%CAPACITY);
    is scalar(grep { taken(s => $_, $FIXED{s}) > $FIXED{s} } keys %shadows), 0,
       'shadows gave no more than they have';
};


# The clients of one command to each of two shards.  What the first one has
# given for those who are denied by the second goes back, whether they wait for
# it or not.

subtest 'two shards: clients that go while one stands still' => sub {
    for my $leave ([], [0], [1, 3, 5, 7, 9], [0 .. 9]) {
        my ($u, $w, $g) = map { key_on($_) } 0, 0, 1;
        my $path = "/log?u=$u&w=$w&g=$g&gc=4";

        $shards[1]->pause;

        my @c = parked_turn($lone, ($path) x 10);
        my %gone = map { $_ => 1 } @$leave;

        leave($lone, @c[@$leave]);
        $shards[1]->resume;

        my @answers = map { $_->response(20)->{status} }
                      @c[grep { !$gone{$_} } 0 .. 9];
        my $passed = grep { $_ == 200 } @answers;

        cmp_ok $passed, '<=', 4, @$leave . " of ten went, $passed passed";
        is scalar(grep { $_ == 200 || $_ == 429 } @answers), 10 - @$leave,
           'all others were answered';
        is_taken 'four were charged, by each limit', [u => $u, 100_000], 4,
                 [w => $w, 100_000], 4, [g => $g, 4], 4;
    }
};


for my $nginx (@nginx, $single, @pair, $lone) {
    $nginx->finish(timeout => 20);
}


done_testing();
