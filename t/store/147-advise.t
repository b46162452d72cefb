# "advise": a limit in a dry run tells which capacity its requests needed.
# Recorded arrivals are replayed and simulated, and both give the same curve:
# over Redis and in memory, by all scripts, with two workers and at once.
# Enforced limits never notice.
#
# The rate of most limits is too slow to refill during a test, so what a request
# needs is what all requests for its key have taken, it included.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();
use List::Util qw(max shuffle sum0);
use POSIX qw(ceil);

use RateLimit::Clock;
use RateLimit::Cluster;
use RateLimit::Config;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Util qw(dead_port wait_until);

my $redis = RateLimit::Redis->start;

my $CONF = <<'EOC';
    ratelimit_headers legacy dry_run;
    ratelimit_silence client_value unused_limit no_shards;

    ratelimit_limit bucket key=$arg_k rate=1r/d capacity=20 cost=$arg_c
                           dry_run advise;
    ratelimit_limit gcra   key=$arg_k rate=1r/h capacity=20 cost=$arg_c
                           algorithm=gcra dry_run advise;
    ratelimit_limit steps  key=$arg_k rate=1r/d capacity=20 cost=$arg_c
                           refill_interval=1h dry_run advise;
    ratelimit_limit never  key=$arg_k rate=0r/s capacity=20 cost=$arg_c
                           dry_run advise;
    ratelimit_limit small  key=$arg_k rate=1r/d capacity=1 cost=$arg_c
                           dry_run advise;
    ratelimit_limit plan   key=$arg_k rate=1r/d capacity=$arg_n
                           dry_run advise;
    ratelimit_limit plain  key=$arg_k rate=1r/d capacity=20 dry_run;
    ratelimit_limit strict key=$arg_e rate=1r/d capacity=3;
EOC

my $SERVER = <<'EOC';
        location /api/ { ratelimit off; ratelimit_api; }

        location /bucket { ratelimit bucket; empty_gif; }
        location /gcra   { ratelimit gcra; empty_gif; }
        location /steps  { ratelimit steps; empty_gif; }
        location /never  { ratelimit never; empty_gif; }
        location /small  { ratelimit small; empty_gif; }
        location /plan   { ratelimit plan; empty_gif; }
        location /clock  { ratelimit bucket; ratelimit_clock nginx;
                           ratelimit_prefix clock; empty_gif; }
        location /both   { ratelimit bucket strict; empty_gif; }
        location /lease  { ratelimit bucket; ratelimit_lease 100 ttl=60s;
                           empty_gif; }
        location /peek   { ratelimit bucket; ratelimit_preview on;
                           ratelimit_preview_cache off; empty_gif; }

        location /own { ratelimit_key $arg_k; ratelimit_rate 1r/d;
                        ratelimit_capacity 5;

                        location /own/dry { ratelimit_dry_run on;
                                            ratelimit_advise on; empty_gif; }
                        location /own/on  { empty_gif; } }
EOC


sub start { return start_nginx($_[0], conf => $CONF, server => $SERVER,
                               workers => 2, reuseport => 1, @_[1 .. $#_]) }


sub limit {
    my ($nginx, $name) = @_;

    return JSON::PP::decode_json($nginx->get("/api/limits/$name")->{body});
}


# The bounds of the histogram; the text tells them for any limit with advise.

sub bounds {
    my ($nginx) = @_;

    my %le = map { $_->{le} => 1 }
             @{ $nginx->metrics->{nginx_ratelimit_needed_capacity_bucket} };

    return sort { $a <=> $b } grep { $_ ne '+Inf' } keys %le;
}


# A test: curve and metrics of a limit are those of these needs.

sub is_curve {
    my ($nginx, $name, $needs, $test) = @_;

    my @bounds = bounds($nginx);
    my @curve;

    for my $bound (@bounds) {
        my $above = grep { $_ > $bound } @$needs;

        push @curve, { capacity => $bound,
                       rejected => sprintf '%.6f', $above / @$needs };
        last if $above == 0;
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    subtest $test => sub {
        my $advise = limit($nginx, $name)->{advise};

        $_->{rejected} = sprintf '%.6f', $_->{rejected}
            for @{ $advise->{curve} };

        is_deeply $advise, { requests => scalar @$needs, curve => \@curve },
                  'the curve';

        my $metrics = $nginx->metrics;
        my %got = map { $_->{le} => $_->{value} }
                  grep { $_->{limit} eq $name }
                  @{ $metrics->{nginx_ratelimit_needed_capacity_bucket} };

        is_deeply \%got, { '+Inf' => scalar @$needs,
                           map { my $le = $_;
                                 $le => scalar grep { $_ <= $le } @$needs }
                           @bounds }, 'the histogram';
        is RateLimit::Metrics::sum($metrics, 'needed_capacity_sum',
                                   limit => $name), sum0(@$needs), 'its sum';
        is RateLimit::Metrics::sum($metrics, 'needed_capacity_count',
                                   limit => $name), @$needs, 'its count';
    };
}


# ---- recorded arrivals: a key and a cost each; some keys are busier

srand 7;

my @ARRIVALS = map { { key => 'k' . int(rand() ** 3 * 40),
                       cost => rand() < 0.9 ? 1 : 1 + int rand 9 } } 1 .. 700;

my (%taken, @NEEDS);
push @NEEDS, $taken{ $_->{key} } += $_->{cost} for @ARRIVALS;


sub replay {
    my ($nginx, $path) = @_;

    my $c = RateLimit::Load::connection($nginx->port);

    return map {
        $c->send("$path?k=$_->{key}&c=$_->{cost}");
        $c->response
    } @ARRIVALS;
}


for my $shards ([$redis], undef) {
    my $where = $shards ? 'redis' : 'memory';
    my $nginx = start($shards);

    for my $name (qw(bucket gcra steps never)) {
        my @r = replay($nginx, "/$name");
        my $wrong = 0;

        for my $i (0 .. $#r) {
            my $h = $r[$i]{headers};

            $wrong++
                if $r[$i]{status} != 200
                   || $h->{'x-status'} ne ($NEEDS[$i] > 20 ? 'REJECTED_DRY_RUN'
                                                           : 'PASSED')
                   || $h->{'x-ratelimit-limit'} != 20
                   || $h->{'x-ratelimit-remaining'} != max(0, 20 - $NEEDS[$i])
                   || $h->{'x-source'} ne ($shards ? 'redis' : 'local');
        }

        is $wrong, 0, "$where, $name: each request is told the right numbers";
        is_curve($nginx, $name, \@NEEDS, "$where, $name: its curve");

        my $over = grep { $_ > 20 } @NEEDS;
        is limit($nginx, $name)->{requests}{dry_run_rejected}, $over,
           "$where, $name: the dry run rejects as many";
    }

    # at once: whatever the order, the requests of a key need 1, 2, 3, ...

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 60, requests => 3000,
        path => sub { '/small?k=' . ($_[0] % 10 ? 'hot' : "cold$_[0]") },
        timeout => 60);

    is_deeply $load->statuses, { 200 => 3000 }, "$where: many at once pass";

    # a thousand times the capacity is as far as a bucket of one token goes

    my $advise = limit($nginx, 'small')->{advise};

    is $advise->{requests}, 3000, "$where: all are counted";
    is_deeply [map { sprintf '%.0f', $_->{rejected} * 3000 }
               grep { $_->{capacity} =~ /^(?:1|10|100|1000)$/ }
                    @{ $advise->{curve} }],
              [map { 2700 - $_ } 1, 10, 100, 1000],
              "$where: the curve up to a thousand times the capacity";
    is $advise->{curve}[-1]{capacity}, 1000, "$where: and no further";

    $nginx->finish;
}


subtest 'the clock of nginx, and calls of several limits' => sub {
    $redis->cmd('FLUSHALL');

    my $nginx = start([$redis]);

    replay($nginx, '/clock');
    is_curve($nginx, 'bucket', \@NEEDS, 'by take.lua');

    # the same limit beside one that is enforced: what that one rejects is
    # neither taken nor counted

    my @r = map { $nginx->get("/both?k=x&c=30&e=e") } 1 .. 5;

    is_deeply [map { $_->{status} } @r], [200, 200, 200, 429, 429],
              'the enforced limit decides';
    is_deeply [map { $_->{headers}{'x-name'} } @r], [('strict') x 5],
              'and is shown';
    is $redis->tokens('ratelimit:bucket:{x}:advise:20000'), 20000 - 90,
       'what it let pass was taken';
    is $redis->tokens('ratelimit:strict:{e}'), 0, 'its own bucket';
    is_curve($nginx, 'bucket', [@NEEDS, 30, 60, 90], 'they are counted');

    $nginx->finish;
};


subtest 'on several shards, what was taken for nothing goes back' => sub {
    my @shards = RateLimit::Redis->start_many(3);
    my $nginx = start(\@shards);
    my $shard = sub { $nginx->get("/peek?k=$_[0]")->{headers}{'x-shard'} };
    my ($apart) = grep { $shard->($_) ne $shard->('a') } 'b' .. 'z';

    $nginx->get("/both?k=a&e=$apart") for 1 .. 9;

    ok wait_until(sub {
        my ($tokens) = grep { defined } map {
            $_->tokens('ratelimit:bucket:{a}:advise:20000') } @shards;
        return $tokens == 20000 - 3;
    }, 10), 'six of nine are refunded';
    is_curve($nginx, 'bucket', [1, 2, 3], 'three are counted');

    $nginx->finish;
};


subtest 'keys: apart from those of the limit, and as long as the debt' => sub {
    $redis->cmd('FLUSHALL');

    my $nginx = start([$redis]);

    is $nginx->get("/own/on?k=a")->{status}, 200, 'enforced';
    $nginx->get("/own/dry?k=a") for 1 .. 7;
    is_deeply $redis->contents, { 'localhost/own:{a}' => 4,
                                  'localhost/own:{a}:advise:5000' => 4993 },
              'two buckets of one limit';
    is $nginx->get("/own/on?k=a")->{headers}{'x-ratelimit-remaining'}, 3,
       'the enforced one does not notice';

    is $nginx->get('/peek?k=a')->{headers}{'x-ratelimit-remaining'}, 20,
       'a preview of a bucket that was not used';
    $nginx->get('/bucket?k=a&c=21');
    is $nginx->get('/peek?k=a')->{headers}{'x-ratelimit-remaining'}, 0,
       'of one in debt';
    is limit($nginx, 'bucket/keys/a')->{remaining}, 0, 'the same by the API';
    is limit($nginx, 'bucket')->{advise}{requests}, 1,
       'neither of them counts';

    # seconds: what was taken, and a second more

    my $DAY = 86400;
    my $ttl = sub { $redis->cmd('PTTL', "ratelimit:$_[0]") / 1000 };

    $redis->cmd('FLUSHALL');
    $nginx->get("/$_?k=a&c=30") for qw(bucket steps gcra);
    cmp_ok abs($ttl->('bucket:{a}:advise:20000') - 30 * $DAY), '<', 60,
           'a bucket in debt lives until it is full';
    cmp_ok abs($ttl->('steps:{a}:advise:20000') - 30 * $DAY - 3600), '<', 60,
           'by the long script';
    cmp_ok abs($ttl->('gcra:{a}:advise:8760') - 30 * 3600), '<', 60, 'gcra';

    $nginx->get("/$_?k=a&c=9000") for qw(bucket steps);
    cmp_ok $ttl->("$_:{a}:advise:20000"), '<=', 2 * 9031 * $DAY,
           "$_: at most twice that if it is used again" for qw(bucket steps);
    cmp_ok $ttl->("$_:{a}:advise:20000"), '>=', 9029 * $DAY,
           "$_: and long enough" for qw(bucket steps);

    $redis->cmd('FLUSHALL');
    $nginx->get("/$_?k=a") for qw(bucket steps);
    cmp_ok $ttl->("$_:{a}:advise:20000"), '<=', 21 * $DAY,
           "$_: one within its capacity lives as any other"
        for qw(bucket steps);

    $nginx->finish;
};


subtest 'a refill, by the clock of Redis' => sub {
    my $clock = RateLimit::Clock->new;
    my $server = $clock->run(sub { RateLimit::Redis->start });
    my $conf = <<'EOC';
    ratelimit_limit bucket key=$arg_k rate=6r/m capacity=8 dry_run advise;
    ratelimit_limit gcra   key=$arg_k rate=6r/m capacity=8 algorithm=gcra
                           dry_run advise;
    ratelimit_silence client_value;
EOC
    my $nginx = start_nginx([$server], conf => $conf, workers => 2,
                            reuseport => 1, server => <<'EOC');
        location /api/   { ratelimit off; ratelimit_api; }
        location /bucket { ratelimit bucket; empty_gif; }
        location /gcra   { ratelimit gcra; empty_gif; }
EOC
    my (%lacks, %last, @needs);
    my $now = 0;
    my $c = RateLimit::Load::connection($nginx->port);

    # A token comes every ten seconds, and nothing arrives between: what the
    # test itself takes is a small part of a token, and rounded up.

    for (1 .. 400) {
        my $key = 'k' . int rand 5;
        my $pause = rand() < 0.85 ? 0 : 10 * int rand 9;

        $clock->add($pause);
        $now += $pause;

        $lacks{$key} = max(0, ($lacks{$key} // 0)
                              - ($now - ($last{$key} // 0)) / 10) + 1;
        $last{$key} = $now;
        push @needs, $lacks{$key};

        for my $name (qw(bucket gcra)) {
            $c->send("/$name?k=$key");
            $c->response;
        }
    }

    cmp_ok max(@needs), '>', 12, 'some would have been rejected';
    is_curve($nginx, $_, \@needs, $_) for qw(bucket gcra);

    $nginx->finish;
};


subtest 'nothing is leased or remembered' => sub {
    $redis->cmd('FLUSHALL');

    my $nginx = start([$redis], workers => 1);

    $nginx->get('/lease?k=a') for 1 .. 50;
    is_curve($nginx, 'bucket', [1 .. 50], 'all are counted');
    is $redis->tokens('ratelimit:bucket:{a}:advise:20000'), 20000 - 50,
       'nothing is taken in advance';

    # a bucket that is as deep in debt as it can be is still asked

    my $calls = $redis->calls_during(sub {
        $nginx->get('/small?k=a&c=600') for 1 .. 6;
    });

    is $calls, 6, 'each request asks';
    is limit($nginx, 'small')->{advise}{curve}[-1]{rejected}, 0.833333,
       'five needed more than can be told';

    $nginx->finish;
};


subtest 'a reload keeps the figures, another capacity starts anew' => sub {
    $redis->cmd('FLUSHALL');

    my $nginx = start([$redis]);

    $nginx->get('/bucket?k=a') for 1 .. 30;
    ok $nginx->reload, 'a reload';
    is_curve($nginx, 'bucket', [1 .. 30], 'the histogram is still there');
    $nginx->get('/bucket?k=a');
    is_curve($nginx, 'bucket', [1 .. 31], 'and goes on');

    my $conf = $CONF =~ s/(bucket .*capacity=)20/${1}50/r;
    my %same = limiter_conf([$redis], conf => $conf, server => $SERVER,
                            workers => 2, reuseport => 1);

    ok $nginx->reload(%same) && $nginx->old_workers_gone(20),
       'with another capacity';

    my $r = $nginx->get('/bucket?k=a');
    is_deeply [@{ $r->{headers} }{qw(x-status x-ratelimit-remaining)}],
              ['PASSED', 49], 'it is no debt of the new bucket';

    # capacities from a variable

    my @r = map { $nginx->get("/plan?k=a&n=$_") } 5, 50, 5, 50;

    is_deeply [map { $_->{headers}{'x-ratelimit-remaining'} } @r],
              [4, 49, 3, 48], 'a bucket for each capacity';

    $nginx->finish;
};


subtest 'overrides and resets of a key' => sub {
    $redis->cmd('FLUSHALL');

    my $nginx = start([$redis], server => $SERVER . <<'EOC');
        location /w/ { ratelimit off; ratelimit_api write; }
EOC
    my $write = sub {
        my ($method, $path, $body) = @_;

        return RateLimit::Load::request(
            $nginx->port, $method, "/w/limits/$path",
            { 'X-RateLimit-Write' => 1, 'Content-Type' => 'application/json' },
            $body)->{status};
    };
    my $keys = sub { [sort grep { /advise/ } @{ $redis->cmd('KEYS', '*') }] };
    my $left = sub { $nginx->get($_[0])->{headers}{'x-ratelimit-remaining'} };

    is $left->('/bucket?k=a&c=30'), 0, 'in debt';
    is $write->('PUT', 'bucket/keys/a/override', '{"capacity":50}'), 200,
       'an override';
    is $left->('/bucket?k=a'), 49, 'its capacity counts, in another bucket';
    is_deeply $keys->(), [map { "ratelimit:bucket:{a}:advise:$_" } 20000, 50000],
              'both buckets';

    is $write->('DELETE', 'bucket/keys/a'), 200, 'a reset';
    is $left->('/bucket?k=a'), 49, 'the bucket was full again';

    # which capacity?

    $nginx->get('/plan?k=a&n=7') for 1 .. 3;
    is $write->('DELETE', 'plan/keys/a'), 400, 'a capacity from a variable';
    is $write->('DELETE', 'plan/keys/a?capacity=7'), 200, 'is an argument';
    is $left->('/plan?k=a&n=7'), 6, 'its bucket was full again';

    $nginx->finish;
};


subtest 'during an outage nothing is counted' => sub {
    my $nginx = start('127.0.0.1:' . dead_port(), on_error => 'local');
    my @r = map { $nginx->get('/bucket?k=a') } 1 .. 22;

    is_deeply [map { $_->{status} } @r], [(200) x 22], 'all pass';
    is $r[0]{headers}{'x-status'}, 'DEGRADED', 'this machine decides';
    is $r[21]{headers}{'x-status'}, 'REJECTED_DRY_RUN',
       'and would have rejected';
    is_deeply limit($nginx, 'bucket')->{advise}, { requests => 0, curve => [] },
              'no advice';

    $nginx->finish;
};


subtest 'in a cluster' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 2);
    my $nginx = start('cluster ' . $cluster->addrs);

    my @r = replay($nginx, '/bucket');

    is scalar(grep { $_->{headers}{'x-source'} ne 'redis' } @r), 0,
       'Redis decides';
    is_curve($nginx, 'bucket', \@NEEDS, 'its curve');

    $nginx->finish;
};


subtest 'who gives no advice' => sub {
    my $nginx = start([$redis]);

    is limit($nginx, 'plain')->{advise}, undef, 'null without "advise"';
    is_deeply limit($nginx, 'bucket')->{advise}, { requests => 0, curve => [] },
              'before the first request';
    is_deeply [sort grep { /needed/ } keys %{ $nginx->metrics }],
              [map { "nginx_ratelimit_needed_capacity_$_" }
                   qw(bucket count sum)], 'the metrics';

    $nginx->finish;

    $nginx = start_nginx([$redis]);
    is_deeply [grep { /needed/ } keys %{ $nginx->metrics }], [],
              'none without a limit that advises';
    $nginx->finish;
};


# ---- configurations

my $SHARDS = 'ratelimit_shards 127.0.0.1:6379;';

accepted('advise', "$SHARDS ratelimit_limit a rate=1r/s dry_run advise;",
         'ratelimit a;');
accepted('gcra', "$SHARDS ratelimit_limit a rate=1r/s algorithm=gcra advise "
         . 'dry_run;', 'ratelimit a;');
accepted('a preview', "$SHARDS ratelimit_advise on;",
         'ratelimit_rate 1r/s; ratelimit_preview on;');
accepted('the directive, and named limits', "$SHARDS ratelimit_limit a "
         . 'rate=1r/s;', 'ratelimit a; ratelimit_dry_run on; '
         . 'ratelimit_advise on;');
accepted('off where it is enforced', "$SHARDS ratelimit_advise on; "
         . 'ratelimit_dry_run on;', 'ratelimit_rate 1r/s; '
         . 'ratelimit_dry_run off; ratelimit_advise off;');

refused('twice', "$SHARDS ratelimit_limit a rate=1r/s dry_run advise advise;",
        '', 'duplicate parameter "advise"');
refused('no dry run', "$SHARDS\nratelimit_limit a rate=1r/s advise;", '',
        '"advise" in "ratelimit_limit" "a", which is enforced', 'add "dry_run"',
        qr/nginx\.conf:\d+$/);
refused('a window', "$SHARDS\nratelimit_limit a algorithm=sliding_window_log "
        . 'capacity=5 dry_run advise;', '',
        '"advise" has no meaning in "ratelimit_limit" "a", which is a sliding '
        . 'window log', 'remove it', qr/nginx\.conf:\d+$/);
refused('the directive without a dry run', $SHARDS,
        "ratelimit_rate 1r/s;\nratelimit_advise on;",
        '"ratelimit_advise" applies to limit "localhost/t", which is enforced',
        'add "ratelimit_dry_run on"', qr/nginx\.conf:\d+$/);
refused('a window by directives', "$SHARDS ratelimit_advise on;",
        'ratelimit_algorithm sliding_window_log; ratelimit_capacity 5; '
        . 'ratelimit_dry_run on;', 'which is a sliding window log',
        'write "ratelimit_advise off"', qr/nginx\.conf:\d+$/);
refused('neither on nor off', $SHARDS, 'ratelimit_advise yes;',
        'it must be "on" or "off"');

done_testing;
