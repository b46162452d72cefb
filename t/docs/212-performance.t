# docs/performance.md: calls that are spared, and the arithmetic of its tables.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min);

use RateLimit::Docs 'docs/performance.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(find_program slurp temp_dir wait_until write_file);


subtest 'Redis is called as seldom as is said' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $text = block_of('Leases');
    my ($most) = $text =~ /# up to (\d+) tokens at a time/;
    my ($capacity) = $text =~ /ratelimit_capacity (\d+);/;
    my ($percent) = $text =~ /ratelimit_lease +(\d+)%/;

    is $most, $capacity * $percent / 100, 'the lease of the text';

    # a lease that lives as long as this test, and one of the usual length

    my $list = join ' ', map { $_->addr } @redis;
    my $nginx = nginx_of('Leases', [$redis[0]],
        replace => { 'ttl=1s' => 'ttl=60s' }, more => <<"EOC");
ratelimit_limit one   key=\$arg_one   capacity=1 rate=1r/d;
ratelimit_limit two   key=\$arg_two   capacity=9 rate=1r/d;
ratelimit_limit trial key=\$arg_two   capacity=1 rate=1r/d dry_run;
ratelimit_log_key plain;
ratelimit_limit fast  key=fast        capacity=1 rate=10r/s;

server {
    listen     127.0.0.1:%%PORT2%%;
    add_header X-Source \$ratelimit_source always;

    location /short  { ratelimit_key \$arg_k; ratelimit_rate 1r/d;
                       ratelimit_capacity 100; ratelimit_lease 10; }
    location /window { ratelimit_key \$arg_k; ratelimit_window 1h;
                       ratelimit_capacity 100; ratelimit_lease 10;
                       ratelimit_algorithm sliding_window_log; }
    location /one    { ratelimit one; }
    location /fast   { ratelimit fast; }
    location /both   { ratelimit one two trial; ratelimit_lease 10; }
    location /shards { ratelimit one two; ratelimit_shards $list; }
    location /off    { ratelimit one; ratelimit_deny_cache off; }
}
EOC

    my $get = sub { RateLimit::Load::get($nginx->port(2), $_[0]) };
    my $sources = sub {
        my ($n, $path) = @_;

        return join ' ', map { $get->($path)->{headers}{'x-source'} } 1 .. $n;
    };

    # how leases grow

    my ($growth) = $section{Leases} =~ /requests ([\d, ]+) and so on call Redis/;
    my ($then) = $section{Leases} =~ /one request of (\d+) calls Redis/;

    is $then, $most + 1, 'one that calls, and a full lease';

    my @asked;
    my $calls = calls_of(@redis);

    for my $n (1 .. 3 * $then) {
        $nginx->get('/api/', 'X-Api-Key' => 'a');

        my $now = calls_of(@redis);

        push @asked, $n if $now > $calls;
        $calls = $now;
    }

    my @growth = split /, /, $growth;

    is "@asked[0 .. $#growth]", "@growth", "requests @growth call Redis";
    is $asked[-1] - $asked[-2], $then, "then one of $then" or diag "@asked";

    cmp_ok state_of("ratelimit:_/api/:{a}", @redis), '<',
           $capacity - 3 * $then, 'more is taken than was spent';

    # Remaining counts what is held

    is $nginx->get('/api/', 'X-Api-Key' => 'a')
       ->{headers}{'x-ratelimit-remaining'}, $capacity - 3 * $then - 1,
       'Remaining: what is held as well';

    # the ttl

    is $sources->(4, '/short?k=a'), 'redis redis lease redis', 'a lease';
    cmp_ok state_of('ratelimit:_/short:{a}', @redis), '<', 94, 'three are held';
    ok wait_until(sub {
        abs(state_of('ratelimit:_/short:{a}', @redis) - 96) < 0.1
    }), 'and are returned';

    # windows and several limits have none

    is $sources->(5, '/window?k=a'), 'redis redis redis redis redis',
       'a window has no leases';
    is $sources->(3, '/both?two=b'), 'redis redis redis', 'nor have several limits';

    # denials

    is $sources->(3, '/one?one=a'), 'redis denied denied', 'an empty bucket';
    is $sources->(2, '/off?one=a'), 'redis redis', 'off: Redis is called';

    $_->reset_calls for @redis;
    is $get->('/both?one=a&two=a')->{headers}{'x-source'}, 'denied',
       'one of several';
    is calls_of(@redis), 0, 'the others are not queried';
    is $nginx->log_count(qr/REJECTED_DRY_RUN, limit: "trial", key: "a"/), 0,
       'not even those of a dry run';

    $redis[0]->cmd('DEL', 'ratelimit:one:{a}');
    is $get->('/one?one=a')->{status}, 429, 'a bucket that was reset';

    my $since = time;

    ok wait_until(sub { $get->('/one?one=a')->{status} == 404 }), 'is used';
    cmp_ok time - $since, '<=', 3, 'after a second';

    # several limits that reject, on one shard or on two

    is $sources->(3, '/both?one=c&two=c'), 'redis redis denied', 'one shard';

    my %key;

    for my $k (map { "k$_" } 1 .. 100) {
        $get->("/shards?two=$k");

        my ($home) = grep { $redis[$_]->cmd('EXISTS', "ratelimit:two:{$k}") }
                     0 .. 2;
        $key{$home} //= $k;
        last if keys %key == 2;
    }

    my ($here, $there) = values %key;

    is $sources->(2, "/shards?one=$here&two=$there"), 'redis redis',
       'two shards';
    ok wait_until(sub {
        $sources->(1, "/shards?one=$here&two=$there") eq 'denied'
    }), 'remembered as well';

    # a flood: a bucket of one token each 100 ms

    $_->reset_calls for @redis;

    my $load = RateLimit::Load::run(
        port => $nginx->port(2), connections => 16, duration => 2,
        path => '/fast');

    cmp_ok calls_of(@redis), '<=', 8 + 4 * $load->count(404),
           'a flood costs a few calls for each token';
    cmp_ok calls_of(@redis), '<', $load->count / 2,
           'not one for each request' or diag $load->count;

    # what is held is returned when a worker exits

    my $api = 'ratelimit:_/api/:{b}';

    $nginx->get('/api/', 'X-Api-Key' => 'b') for 1 .. 4;
    cmp_ok state_of($api, @redis), '<', $capacity - 6, 'three are held';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    ok wait_until(sub { abs(state_of($api, @redis) - $capacity + 4) < 0.1 }),
       'returns them';

    $nginx->get('/api/', 'X-Api-Key' => 'b') for 1 .. 2;

    my $left = state_of($api, @redis);

    ok $nginx->stop, 'stopped';
    ok wait_until(sub { abs(state_of($api, @redis) - $capacity + 6) < 0.1 }),
       'so does the end' or diag $left, ' ', state_of($api, @redis);
    $nginx->no_alerts;
};


# Concurrent requests: for one key, and for many.

subtest 'calls are combined, and share commands' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server  => <<'EOC');
location /one  { ratelimit_key k; ratelimit_rate 1r/d; ratelimit_capacity 100000;
                 empty_gif; }
location /many { ratelimit_key $request_id; ratelimit_rate 1r/d;
                 ratelimit_capacity 9; empty_gif; }
EOC

    for my $path ('/one', '/many') {
        $nginx->get($path);
        $redis->reset_calls;

        my $load = RateLimit::Load::run(
            port => $nginx->port, connections => 32, requests => 2000,
            path => $path, timeout => 60);

        is $load->count(200), 2000, "$path: all pass";
        cmp_ok calls_of($redis), '<', 1500, 'by fewer commands';
        note calls_of($redis);
    }

    my ($one) = @{ $redis->cmd('KEYS', '*/one:{k}') };

    is sprintf('%.0f', state_of($one, $redis)), 100000 - 2001, 'all of them counted';
    $nginx->finish;
};


# ---- tables

my %bench = map { $_->[0] => $_ } grep { @$_ == 7 } table_of($section{Benchmark});

# The picture: case => nginx, Redis, ratio.  Lines of text in one row have the
# same y; a group is a heading.

my %picture;

{
    my ($svg) = $page =~ /!\[[^\]]*\]\(([\w.]+)\)/;
    my $group = '';
    my $name;

    for (slurp("docs/$svg") =~ /<text ([^>]*>[^<]*)/g) {
        my ($attributes, $text) = split />/, $_, 2;

        if ($attributes =~ /class="group"/) {
            $group = $text;

        } elsif ($attributes !~ /class=/) {
            $name = $group =~ /^Three/ && $text eq 'exact' ? lcfirst $group
                  : $group =~ /^All/ && $text =~ /^exact/
                    ? 'all denied' . ($text =~ /no/ ? ', no headers' : '')
                  : $text eq 'limit_req' ? "`limit_req`, $group"
                  : "$text, $group";
            $name =~ s/Hot key/hot key/;

        } elsif (defined $name && $attributes =~ /class="dim figure"/) {
            $picture{$name} //= [split / \+ /, $text];

        } elsif (defined $name && $text =~ /^([\d.]+) \x{d7}|^([\d.]+) \xc3\x97/) {
            $picture{$name}[2] //= $1 // $2;
        }
    }
}


subtest 'the figures are those of the picture' => sub {
    my @cases = grep { $bench{$_}[1] =~ /^[\d.]+$/ } sort keys %bench;

    cmp_ok scalar @cases, '>=', 15, 'cases';

    for my $case (@cases) {
        my ($us, $redis, $ratio) = @{ $picture{$case} || [] };

        # it was run again
        next if $case eq 'lease, 100,000 keys';

        is $bench{$case}[1], $us, "$case: nginx";
        is $bench{$case}[2], $redis // '', "$case: Redis";
        is $bench{$case}[3], $ratio // 1, "$case: ratio";
    }

    for my $case (grep { $bench{$_}[4] =~ / to / } @cases) {
        my ($from, $to) = split / to /, $bench{$case}[4];

        ok $from <= $bench{$case}[3] && $bench{$case}[3] <= $to,
           "$case: the median is within the rounds";
    }

    my ($first) = $section{Benchmark} =~ s/\s+/ /gr =~ /its ratio was ([\d.]+),/;

    is $first, $picture{'lease, 100,000 keys'}[2], 'the lease of the first run';
};


sub rounded {
    my ($n) = @_;

    my $text = sprintf '%.0f', $n / 1000;

    1 while $text =~ s/^(\d+)(\d{3})/$1,$2/;

    return "$text,000";
}


subtest 'capacity follows from the measured times' => sub {
    my $text = $section{'Capacity planning'} =~ s/\s+/ /gr;
    my ($table) = $section{'Capacity planning'}
                  =~ /^(\| configuration .*?)^$/ms or die;
    my (undef, @rows) = table_of($table);
    my ($percent) = $text =~ /utilisation of (\d+) %/;
    my ($wake, $call) = $text
                        =~ /(\d+) us to wake Redis up, and (\d+) us for the call/;
    my $times = $section{'Where the time is spent'};

    like $times, qr/for a single `GET` \| $wake \|/, 'to wake it up: as measured';
    like $times, qr/about $call more/, 'the call: as measured';

    cmp_ok scalar @rows, '>=', 12, 'configurations';

    for my $row (@rows) {
        my ($case, $us, $most, $plan) = @$row;

        if ($bench{$case}) {
            is $us, $bench{$case}[2], "$case: as measured";

        } elsif ($picture{$case}) {
            is $us, $picture{$case}[1], "$case: as in the picture";

        } else {
            is $us, $wake + $call, "$case: the sum";
        }

        if ($us == 0) {
            is $most, 'nginx is the bound', 'no work for Redis';
            next;
        }

        is $most, rounded(1e6 / $us), "$case: $most";
        is $plan, rounded(1e6 / $us * $percent / 100), "$percent %: $plan";
    }

    # every case of the benchmark that uses Redis

    my %row = map { $_->[0] => 1 } @rows;

    is_deeply [grep { ($bench{$_}[2] // '') =~ /^[\d.]+$/ && !$row{$_}
                      && $_ ne 'all denied, no headers' } sort keys %bench], [],
              'no case is left out';

    # requests of a command

    my @calls = grep { /^0\.0[1-9]\d*$/ } map { $_->[6] // '' }
                map { $bench{$_} } grep { !/lease/ } keys %bench;
    my ($from, $to) = $text
                      =~ /command carries (\d+) to (\d+) requests/;

    is $from, sprintf('%.0f', 1 / max(@calls)), "$from requests a command";
    is $to, sprintf('%.0f', 1 / min(@calls)), "to $to";

    # the example, and a worker

    my ($need) = $text =~ /\| requests a second \| ([\d,]+)/;
    my ($one) = $text =~ /\| one server carries[^|]* \| ([\d,]+)/;
    my ($shards) = $text =~ /rounded up: (\d+)/;
    my ($exact) = grep { $_->[0] eq 'exact, TCP, 100,000 keys' } @rows;

    is $one, $exact->[3], 'the example: one server';
    s/,//g for $need, $one;
    ok $shards >= $need / $one && $shards < $need / $one + 1, "$shards shards";

    my ($us, $worker) = $text
                        =~ /With ([\d.]+) us that is ([\d,]+)\./;

    is $us, $bench{'exact, 100,000 keys'}[1], 'a worker: as measured';
    is $worker, rounded(1e6 / $us), "$worker requests a second";

    is(RateLimit::Redis->start->cmd('CONFIG', 'GET', 'maxclients')->[1],
       ($text =~ /`maxclients` of Redis, by default (\d+)/)[0],
       'maxclients');
};


subtest 'the commands and the query of the page work' => sub {
    my $redis = RateLimit::Redis->start;

    $redis->cmd('EVALSHA', $redis->cmd('SCRIPT', 'LOAD', 'return 1'), 0);

    my @steps = steps_of('Capacity planning');

    cmp_ok scalar @steps, '>=', 2, 'commands';
    RateLimit::Transcript::check($_->{command}, $_,
                                 '-h 10.0.0.1' => '-p ' . $redis->port) for @steps;

    SKIP: {
        skip 'no promtool', 1 unless find_program('promtool');

        my $file = temp_dir('docs-promql') . '/rules.yml';
        my $query = block_of('Capacity planning', 'promql') =~ s/^/        /mgr;

        write_file($file, "groups:\n- name: docs\n  rules:\n  - record: us\n"
                          . "    expr: |\n$query");

        my $printed = `promtool check rules '$file' 2>&1`;

        is $?, 0, 'promtool takes the query' or diag $printed;
    }
};


subtest 'the options of the benchmark exist' => sub {
    my $bench = slurp('bench/bench.pl');
    my $makefile = slurp('Makefile');
    my @options = map { map { /\b([A-Z]+)=/g } code_in($_->[0]) }
                  table_of($section{'Run the benchmark'});

    cmp_ok scalar @options, '>=', 8, 'options';

    for my $name (@options) {
        like $bench, qr/^#.*\b$name=/m, "$name: described";
        like $makefile, qr/foreach\ name,[^,]*\b$name\b|\$\(if\ \$\($name\)/x,
             'make knows it';
    }

    is_deeply [@{ $block{sh} }], ["make bench\n"], 'make bench';
    like $makefile, qr/^bench:/m, 'is there';
};


subtest 'numbers are those of the sources' => sub {
    my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

    for (['Shared commands', EVAL_CALLS => 'up to %d calls'],
         ['Shared commands', COMMAND_WAIT => 'for %d ms at most'])
    {
        my ($section, $name, $format) = @$_;
        my $words = $format =~ s/%d/define($name)/er;

        ok index($text{$section}, $words) >= 0, "$section: $words";
    }

    like source('combine.c'), qr/timer, waiter->timeout \/ 4 \+ 1\)/,
         'a queued request waits for a quarter of the timeout';
    like $text{'Combined calls'}, qr/at most a quarter of/, 'as the page says';
};


done_testing();
