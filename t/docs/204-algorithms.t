# docs/algorithms.md against the module: what the algorithms promise, what they
# need in Redis, and what they do when clocks are wrong.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs 'docs/algorithms.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;

# a section on one line
my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;


# Microseconds since the epoch, some seconds from now.

sub at { return sprintf '%.0f', (time + $_[0]) * 1e6 }


subtest 'nginx loads each configuration' => sub {
    load_ok($_) for @{ $block{nginx} };
};


# The time in Redis can't be set, but the times in buckets and windows can.

subtest 'a bucket and a window promise what the table says' => sub {
    my ($head, @rows) = grep { @$_ == 3 }
                        table_of($text{'Which one to choose'}
                                 =~ s/.*(?=\| time \|)//r =~ s/\| \|/|\n|/gr);
    my ($bucket, $window) = map { code_in($_) } @$head[1, 2];
    my %row = map { $_->[0] => $_ } @rows;

    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n"
                  . "ratelimit_limit bucket key=x $bucket;\n"
                  . "ratelimit_limit window key=x $window"
                  . " algorithm=sliding_window_log;\n",
        server => 'ratelimit_deny_cache off;
                   location /bucket { ratelimit bucket; }
                   location /window { ratelimit window; }');

    my $passed = sub {
        return RateLimit::Load::run(port => $nginx->port, connections => 1,
                                    requests => 150, path => $_[0])->count(404);
    };

    # a test takes a moment: a few tokens may arrive

    my $near = sub { $_[0] >= $_[1] && $_[0] <= $_[1] + 20 };

    my %taken = map { $_ => $passed->("/$_") } qw(bucket window);

    ok $near->($taken{bucket}, 100), 'bucket: 100 at once' or diag $taken{bucket};
    is $taken{window}, 100, 'window: 100 at once';
    like $row{'at once'}[$_], qr/^100 /, 'as the table says' for 1, 2;

    # almost a minute later

    $redis->bucket_set('ratelimit:bucket:{x}', tokens => 0, lastRefill => at(-58));

    my $members = $redis->cmd('ZRANGE', 'ratelimit:window:{x}', 0, -1, 'WITHSCORES');

    while (my ($member, $score) = splice @$members, 0, 2) {
        $redis->cmd('ZADD', 'ratelimit:window:{x}', sprintf('%.0f', $score - 30e6),
                    $member);
    }

    my $more = $passed->('/bucket');

    ok $near->($more, 96), 'bucket: 100 more within the minute' or diag $more;
    is $passed->('/window'), 0, 'window: none';

    like $row{'during the next minute'}[1], qr/^100 more/, 'says the table';
    is $row{'during the next minute'}[2], 'none', 'says the table';
    is $row{'within the first minute'}[1], 'up to 200', 'says the table';
    is $row{'within the first minute'}[2], '100', 'says the table';

    $nginx->finish;
};


subtest 'rejected requests take nothing' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server => 'ratelimit_deny_cache off; ratelimit_key x;
                   location /token_bucket { ratelimit_rate 1r/h; }
                   location /gcra { ratelimit_rate 1r/h;
                                    ratelimit_algorithm gcra; }
                   location /sliding_window_log {
                       ratelimit_algorithm sliding_window_log;
                       ratelimit_capacity 1; ratelimit_window 1h; }
                   location /fixed_window {
                       ratelimit_algorithm fixed_window;
                       ratelimit_capacity 1; ratelimit_window 365d; }
                   location /sliding_window_counter {
                       ratelimit_algorithm sliding_window_counter;
                       ratelimit_capacity 1; ratelimit_window 1h; }');

    my @algorithms = $directive{ratelimit_algorithm}{words} =~ /\w+/g;
    my ($columns) = grep { $_->[0] eq '' && @$_ >= 4 }
                    table_of($section{'Which one to choose'});

    is_deeply [sort map { code_in($_) } @$columns], [sort @algorithms],
              'the algorithms of the module';

    for my $path (map { "/$_" } @algorithms) {
        my @wait = map { $nginx->get($path)->{headers}{'retry-after'} } 1 .. 10;

        is $wait[0], undef, "$path: passes";
        ok $wait[9] <= $wait[1] && $wait[9] > 3500, 'no longer wait';
    }

    $nginx->finish;
};


subtest 'a token bucket does what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Token bucket', [$redis]);

    my @headers = map { $nginx->get('/api/')->{headers} } 1 .. 21;

    is $headers[0]{'x-ratelimit-remaining'}, 19, '20 at once';
    is $headers[19]{'x-ratelimit-remaining'}, 0, 'all of them';

    # 5r/d instead of 5r/s: a token takes 17280 s

    my $h = $headers[20];

    cmp_ok abs($h->{'retry-after'} - 17280), '<', 60, 'until the next token';
    cmp_ok abs($h->{'x-ratelimit-reset'} - time - 20 * 17280), '<', 60,
           'until it is full';

    $nginx->finish;

    # in steps

    my $text = http_of(block_of('Token bucket', 'nginx', 1),
                       '10.0.0.1:6379' => $redis->addr);

    $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_deny_cache off;\n$text");

    my $key = 'ratelimit:_/report:{127.0.0.1}';

    like $text{'Token bucket'}, qr/grants ten requests every ten seconds/,
         'the steps of the text';

    for ([4 => 0], [14 => 10], [16 => 10]) {
        my ($ago, $tokens) = @$_;

        $redis->cmd('DEL', $key);
        $redis->bucket_set($key, tokens => 0, lastRefill => at(-$ago));

        my $response = $nginx->get('/report');

        is $response->{status}, $tokens ? 404 : 429, "after $ago s";
        is $response->{headers}{'x-ratelimit-remaining'},
           $tokens ? $tokens - 1 : 0, 'tokens left';
    }

    $nginx->finish;

    # steps that add up, for a larger bucket

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server => 'location / { ratelimit_key x; ratelimit_capacity 100;
                                ratelimit_rate 60r/m;
                                ratelimit_refill_interval 10s; }');

    for ([4 => 5], [14 => 15], [24 => 25]) {
        my ($ago, $tokens) = @$_;

        $redis->bucket_set('ratelimit:localhost/:{x}', tokens => 6,
                           lastRefill => at(-$ago));
        is $nginx->get('/x')->{headers}{'x-ratelimit-remaining'}, $tokens,
           "$tokens after $ago s";
    }

    $nginx->finish;
};


subtest 'gcra does what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('GCRA', [$redis]);

    is join(' ', map { $nginx->get('/api/')->{status} } 1 .. 21),
       join(' ', (404) x 20, 429), 'the same requests as a bucket';
    is $redis->cmd('TYPE', 'ratelimit:_/api/:{127.0.0.1}'), 'string',
       'one number';

    $nginx->finish;

    # a token is a whole number of sixteenths of a microsecond

    for (grep { $_->[0] =~ /^\d+r\/s$/ } table_of($section{GCRA})) {
        my ($rate) = $_->[0] =~ /(\d+)/;

        is $_->[1], 'one request in ' . 16e6 / $rate, $_->[0];
    }

    my $most = 100000;

    like $text{GCRA}, qr/at most ${most}r\/s/, 'the highest rate';

    for my $rate ($most, $most + 1) {
        my ($code) = RateLimit::Nginx->test_config(
            server => "location / { ratelimit_algorithm gcra;
                                    ratelimit_rate ${rate}r/s; }");

        is $code, $rate > $most ? 1 : 0, "${rate}r/s";
    }

    my ($code) = RateLimit::Nginx->test_config(
        server => 'location / { ratelimit_algorithm gcra; ratelimit_capacity 9;
                                ratelimit_rate 0r/s; }');

    is $code, 1, 'no 0r/s';
};


# The rows about leases and 0r/s.

subtest 'leases and empty rates are as the table says' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server => <<'EOC');
ratelimit_lease    50% ttl=30s;
ratelimit_silence  useless_lease;
ratelimit_key      x;
ratelimit_capacity 1000;
add_header         X-Source $ratelimit_source always;

location /token_bucket { ratelimit_rate 1r/s; }
location /gcra { ratelimit_rate 1r/s; ratelimit_algorithm gcra; }
location /sliding_window_log { ratelimit_algorithm sliding_window_log; }
location /fixed_window { ratelimit_algorithm fixed_window; }
location /sliding_window_counter { ratelimit_algorithm sliding_window_counter; }
location /zero { ratelimit_lease off; ratelimit_rate 0r/s; ratelimit_capacity 1; }
EOC

    my ($columns) = grep { $_->[0] eq '' && @$_ >= 4 }
                    table_of($section{'Which one to choose'});
    my ($row) = grep { $_->[0] =~ /leases/ } table_of($section{'Which one to choose'});

    for my $i (1 .. $#$columns) {
        my ($algorithm) = code_in($columns->[$i]);
        my %source = map { $nginx->get("/$algorithm")->{headers}{'x-source'} => 1 }
                     1 .. 40;

        is $row->[$i], $source{lease} ? 'yes' : 'no', "leases: $algorithm";
    }

    is join(' ', map { $nginx->get('/zero')->{status} } 1 .. 2), '404 429', '0r/s';

    $nginx->finish;
};


subtest 'a sliding window log does what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Sliding window log', [$redis], more => <<"EOC");
server {
    listen 127.0.0.1:%%PORT2%%;
    ratelimit_algorithm sliding_window_log;
    ratelimit_capacity  1000000;
    ratelimit_window    1h;

    location /cost/     { ratelimit_key x; ratelimit_capacity 5; ratelimit_cost 2; }
    location /together  { ratelimit_key x; }
}
EOC

    my @response = map { $nginx->get('/login') } 1 .. 7;
    my $window = 'ratelimit:_=/login:{127.0.0.1}';

    is join(' ', map { $_->{status} } @response),
       '404 404 404 404 404 429 429', 'five';
    is state_of($window, $redis), 5, 'what is rejected leaves no entry';
    cmp_ok $redis->cmd('PTTL', $window), '>', 290_000, 'a time to live';

    my ($h) = $response[6]{headers};

    ok $h->{'retry-after'} > 290 && $h->{'retry-after'} <= 300, 'Retry-After';
    cmp_ok abs($h->{'x-ratelimit-reset'} - time - $h->{'retry-after'}), '<=', 2,
           'Reset: when the oldest leaves, and this is it';

    # a cost is one entry

    RateLimit::Load::get($nginx->port(2), '/cost/') for 1 .. 3;
    is state_of('ratelimit:_/cost/:{x}', $redis), 2, 'two entries of cost 2';
    is RateLimit::Load::get($nginx->port(2), '/cost/')
       ->{headers}{'x-ratelimit-remaining'}, 1, '1 of 5 is left';

    # requests that pass together share entries

    my $together = RateLimit::Load::run(
        port => $nginx->port(2), connections => 20, requests => 1000,
        path => '/together', timeout => 60);

    is $together->count(404), 1000, '1000 requests at once';
    cmp_ok state_of('ratelimit:_/together:{x}', $redis), '<', 900,
           'fewer entries';

    # entries that have left are deleted in portions

    my ($portion) = $text{'Sliding window log'} =~ /deletes up to (\d+) entries/;

    like $lua{'take.lua'}, qr/^local PORTION = $portion$/m, "$portion entries";

    for ($text{'Sliding window log'} =~ /`(lazyfree-[\w-]+) yes`/g) {
        is $redis->cmd('CONFIG', 'SET', $_, 'yes'), 'OK', $_;
    }

    $nginx->finish;

    my $entries = define('ENTRIES');

    like $text{'Sliding window log'}, qr/window of up to $entries requests/,
         'in memory';
};


subtest 'Redis needs as much memory as is said' => sub {
    my $redis = RateLimit::Redis->start;
    my ($version) = $section{Memory} =~ /Redis (\d+\.\d+) needs/;

    plan skip_all => "not Redis $version"
        if $redis->info('server')->{redis_version} !~ /^\Q$version\E\./;

    # keys are as long as those that were measured

    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC');
server {
    listen             127.0.0.1:%%PORT%%;
    ratelimit_key      203.0.113.7;
    ratelimit_capacity 1000000;

    location /fast { ratelimit_rate 1000r/s; }
    location /slow { ratelimit_rate 100r/s; }
    location /gcra { ratelimit_rate 100r/s; ratelimit_algorithm gcra; }
    location /n/   { ratelimit_key $uri; ratelimit_window 1h;
                     ratelimit_algorithm sliding_window_log; }
    location /fixed { ratelimit_period month;
                      ratelimit_algorithm fixed_window; }
    location /counter { ratelimit_algorithm sliding_window_counter; }
}
EOC

    for my $row (table_of($section{Memory})) {
        my ($what, $bytes, $each) = @$row;

        if ($what =~ /^window with (\d+) entries$/) {
            my $n = $1;

            # one after the other: an entry each
            my $load = RateLimit::Load::run(
                port => $nginx->port, connections => 1, requests => $n,
                path => "/n/$n", timeout => 60);
            my $real = $redis->cmd('MEMORY', 'USAGE',
                                   "ratelimit:_/n/:{/n/$n}");

            is $load->count(404), $n, "$n requests";
            cmp_ok abs($real / $bytes - 1), '<', 0.15, "$bytes bytes"
                or diag $real;
            cmp_ok abs($bytes / $n - $each), '<=', 1, "$each each";

        } elsif ($what =~ /bucket|gcra|fixed|counter/) {
            my $path = $what =~ /gcra|fixed|counter/ ? $&
                      : $what =~ /slower/ ? 'slow' : 'fast';

            # as it is in use, not as it was made
            RateLimit::Load::get($nginx->port, "/$path") for 1 .. 2;

            my $real = $redis->cmd('MEMORY', 'USAGE',
                                   "ratelimit:_/$path:{203.0.113.7}");

            cmp_ok abs($real / $bytes - 1), '<', 0.15, "$bytes bytes"
                or diag $real;
        }
    }

    my ($packed) = $section{Memory} =~ /up to (\d+) entries/;

    is $redis->cmd('CONFIG', 'GET', 'zset-max-listpack-entries')->[1],
       $packed, 'packed entries';

    $nginx->finish;
};


subtest 'a limit that is changed does what is described' => sub {
    my $redis = RateLimit::Redis->start;

    my $conf = sub {
        my (%opt) = (capacity => 10, rate => '10r/d', algorithm => 'token_bucket',
                     key => 'x', prefix => 'ratelimit', @_);

        return "${patient}ratelimit_shards ${\ $redis->addr};\n"
               . "ratelimit_prefix $opt{prefix};\n"
               . "ratelimit_limit limit key=$opt{key} capacity=$opt{capacity}"
               . " rate=$opt{rate} algorithm=$opt{algorithm};\n"
               . "server { listen 127.0.0.1:%%PORT%%; ratelimit limit; }\n";
    };

    my $nginx = RateLimit::Nginx->start(conf => $conf->());

    my $left = sub {
        my (@change) = @_;

        $redis->cmd('FLUSHALL');
        ok $nginx->reload(conf => $conf->()) && $nginx->old_workers_gone(10),
           'as it was';
        $nginx->get('/x') for 1 .. 6;
        ok $nginx->reload(conf => $conf->(@change)) && $nginx->old_workers_gone(10),
           "@change";

        return $nginx->get('/x')->{headers}{'x-ratelimit-remaining'};
    };

    is $left->(), 3, 'no change';
    is $left->(capacity => 1000), 3, 'no fresh bucket';
    is $left->(capacity => 2), 1, 'tokens above the capacity are dropped';
    is $left->(rate => '20r/d'), 3, 'another rate';
    is $left->(algorithm => 'gcra'), 9, 'another algorithm: a full bucket';
    is $left->(key => 'y'), 9, 'another key';
    is $left->(prefix => 'other'), 9, 'another prefix';

    $nginx->finish;
};


# Clocks can't be set here, but the times in Redis can.

subtest 'clocks are taken as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC',
ratelimit_limit slow   key=x capacity=1000000 rate=1r/s;
ratelimit_limit window key=x capacity=2 window=2h algorithm=sliding_window_log;
ratelimit_limit gcra   key=x capacity=10000 rate=1r/s algorithm=gcra;

add_header X-Status $ratelimit_status always;
EOC
        server => <<'EOC');
location /redis  { ratelimit slow; }
location /nginx  { ratelimit slow; ratelimit_clock nginx; }
location /window { ratelimit window; }
location /gcra   { ratelimit gcra; ratelimit_deny_cache off; }
location /gcra-nginx { ratelimit gcra; ratelimit_deny_cache off;
                       ratelimit_clock nginx; }
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };

    my $set = sub {
        my ($last, $seen) = @_;

        my @at = map { sprintf '%.0f', (time + $_) * 1e6 } $last, $seen;

        $redis->cmd('DEL', 'ratelimit:slow:{x}');
        $redis->bucket_set('ratelimit:slow:{x}', tokens => '100',
                           lastRefill => $at[0], seen => $at[1]);
    };

    my $left = sub { $get->($_[0])->{'x-ratelimit-remaining'} };
    my $near = sub { abs($_[0] - $_[1]) < 60 };

    my $day = 86400;

    for my $clock ('/redis', '/nginx') {
        $set->(-10000, -10000);
        ok $near->($left->($clock), 100 + 10000), "$clock: time goes on";

        $set->(-3 * $day, -3 * $day);
        ok $near->($left->($clock), 100 + 3 * $day), "$clock: so does idleness";

        $set->(-3 * $day, 0);
        ok $near->($left->($clock), 100 + 3600), "$clock: a leap is an hour";

        $set->(30, 0);
        is $left->($clock), 99, "$clock: back by half a minute, no refill";
        is $left->($clock), 98, "$clock: nobody is locked out";
    }

    $set->(90, 0);
    is $left->('/redis'), 99, '/redis: back by more';
    cmp_ok $redis->bucket('ratelimit:slow:{x}')->{lastRefill}, '<',
           (time + 60) * 1e6, 'it goes on from there';

    $set->(90, 0);
    is $get->('/nginx')->{'x-status'}, 'DEGRADED', '/nginx: a failure';
    ok $nginx->wait_log(qr/ratelimit DEGRADED, limit: "slow", .* failure: clock/),
       'called "clock"';

    # gcra has no second clock: a leap refills, and time that runs back takes
    # away, but not more than all

    my $full_at = sub {
        $redis->cmd('SET', 'ratelimit:gcra:{x}',
                    sprintf '%.0f', (time + $_[0] - 1_700_000_000) * 16e6);
    };

    for my $clock ('/gcra', '/gcra-nginx') {
        $full_at->(1000);
        ok $near->($left->($clock), 9000), "$clock: a thousand lack";
        $full_at->(1000 - 3 * $day);
        is $left->($clock), 9999, "$clock: three days later, a leap or not";
        $full_at->(1000 + 4000);
        ok $near->($left->($clock), 5000), "$clock: back by so many seconds";
        $full_at->(3 * $day);
        is $get->($clock)->{'x-ratelimit-remaining'}, 0,
           "$clock: back by more than all";
        is $get->($clock)->{'x-status'}, 'REJECTED', 'is no failure';
    }

    # entries of a window move with the clock

    $get->('/window') for 1 .. 2;
    is $get->('/window')->{'x-ratelimit-remaining'}, 0, 'a full window';

    for my $member (@{ $redis->cmd('ZRANGE', 'ratelimit:window:{x}', 0, -1) }) {
        $redis->cmd('ZADD', 'ratelimit:window:{x}', (time + 3600) * 1e6, $member);
    }

    my $wait = $get->('/window')->{'retry-after'};

    ok $wait > 7000 && $wait <= 7200, 'back by an hour: it leaves as it would'
        or diag $wait;

    $nginx->finish;

    my ($behind) = $lua{'take.lua'} =~ /^local BEHIND = (\d+)$/m;
    my ($hour) = $lua{'take.lua'} =~ /^local HOUR = (\d+)$/m;

    like $text{Clocks}, qr/more than ${\ ($behind \/ 1e6)} s behind/,
         'how far a machine may be behind';
    is $hour, 3600e6, 'an hour';
    is define('HOUR') * 1000, $hour, 'the same for the short script';
};


done_testing();
