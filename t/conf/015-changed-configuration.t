use strict;
use warnings;

# Configurations that change, and what must not come of it.

use lib 't/lib';
use Test::More;

use RateLimit::Nginx;
use RateLimit::Redis;

my $redis = RateLimit::Redis->start;
my $shard = $redis->addr;

my $answer = 'try_files /none @ok;';
my $ok = 'location @ok { return 200 ok; }';


sub statuses {
    my ($nginx, $path, $n) = @_;

    return join ' ', map { $nginx->get($path)->{status} }
                         1 .. $n;
}


sub nginx {
    my ($http, $server) = @_;

    return RateLimit::Nginx->start(
        conf   => "ratelimit_shards $shard; ratelimit_redis_timeout 5s;"
                  . " ratelimit_on_error closed; $http",
        server => "$server $ok",
    );
}


subtest 'a limit may change its algorithm and goes on as new' => sub {
    my $bucket = 'ratelimit_capacity 2; ratelimit_rate 1r/d;';
    my $quick = 'ratelimit_capacity 2; ratelimit_rate 1r/m;';
    my $window = 'ratelimit_capacity 2; '
                 . 'ratelimit_algorithm sliding_window_log;';

    for my $terms ([$bucket, $window], [$window, $bucket], [$window, $quick]) {
        $redis->cmd('FLUSHALL');

        for my $t (@$terms) {
            my $nginx = nginx('', "location / { $t $answer }");

            is statuses($nginx, '/x', 3), '200 200 429', $t;
            $nginx->finish;
        }

        is $redis->cmd('DBSIZE'), 1, 'in one and the same key';
    }
};


subtest 'a shadow limit of another algorithm leaves the others alone' => sub {
    $redis->cmd('FLUSHALL');

    for my $shadow ('capacity=9 rate=1r/d',
                    'capacity=9 algorithm=sliding_window_log',
                    'capacity=9 rate=1r/d')
    {
        my $nginx = nginx("ratelimit_limit enf capacity=2 rate=1r/d;"
                          . " ratelimit_limit sh $shadow dry_run;",
                          "location / { ratelimit enf sh; $answer }");

        like statuses($nginx, '/x', 3), qr/429$/, $shadow;
        ok !$nginx->log_like(qr/DEGRADED/), 'all of it decided by Redis';
        $nginx->finish;
    }

    is $redis->tokens('ratelimit:enf:{127.0.0.1}') >= 0, 1,
       'the enforced one was kept';
};


subtest 'what is neither bucket nor window is somebody else\'s' => sub {
    $redis->cmd('FLUSHALL');
    $redis->cmd('SET', 'ratelimit:a:{127.0.0.1}', 'mine');

    my $nginx = nginx('ratelimit_limit a capacity=2 rate=1r/d;',
                      "location / { ratelimit a; $answer }");

    is statuses($nginx, '/x', 1), '503', 'a failure';
    ok $nginx->log_like(qr/failure: wrongtype/), 'of its own class';
    is $redis->cmd('GET', 'ratelimit:a:{127.0.0.1}'), 'mine', 'left alone';
    $nginx->finish;
};


subtest 'a server can not lose the limit of http by a half change' => sub {
    my ($code, $out) = RateLimit::Nginx->test_config(
        conf   => "ratelimit_shards $shard;"
                  . ' ratelimit_algorithm sliding_window_log;'
                  . ' ratelimit_capacity 2;',
        server => "ratelimit_algorithm token_bucket;"
                  . " location / { $answer } $ok",
    );

    isnt $code, 0, 'refused';
    like $out, qr/"ratelimit_capacity" without "ratelimit_rate" in server /,
         'with a reason';
};


subtest 'a window without a capacity is refused' => sub {
    my ($code, $out) = RateLimit::Nginx->test_config(
        conf => "ratelimit_shards $shard;"
                . ' ratelimit_limit a algorithm=sliding_window_log;',
        server => "location / { ratelimit a; $answer } $ok",
    );

    isnt $code, 0, 'refused';
    like $out, qr/no "capacity=" in "ratelimit_limit" "a"/, 'with a reason';
};


subtest 'a zone of the user may have any name' => sub {
    my ($code, $out) = RateLimit::Nginx->test_config(
        conf   => "ratelimit_shards $shard;"
                  . ' limit_req_zone $remote_addr zone=ratelimit:1m rate=1r/s;'
                  . ' ratelimit_limit a rate=10r/s;',
        server => "location / { ratelimit a; ratelimit_preview on; $answer }"
                  . " $ok",
    );

    is $code, 0, 'also that of this module' or diag $out;
};


subtest 'an enforced limit that fails open is not spoken for by a shadow' => sub {
    $redis->cmd('FLUSHALL');


    my $nginx = RateLimit::Nginx->start(
        conf   => "ratelimit_shards $shard; ratelimit_redis_timeout 5s;"
                  . ' ratelimit_headers legacy draft-8;'
                  . ' ratelimit_limit a capacity=$arg_c rate=1r/s;'
                  . ' ratelimit_limit b capacity=1 rate=1r/m dry_run;',
        server => "location / { ratelimit a b; $answer } $ok",
    );

    my $r;
    $r = $nginx->get('/?c=12x') for 1, 2;

    is $r->{status}, 200, 'passed';
    is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'and told so';

    for my $name (qw(retry-after x-ratelimit-retry-after x-ratelimit-limit
                     x-ratelimit-remaining ratelimit))
    {
        is $r->{headers}{$name}, undef, "no $name";
    }

    unlike $r->{headers}{'ratelimit-policy'} // '', qr/"a"/,
           'no policy with a number that is none';
    $nginx->finish;
};


subtest 'refunds survive SCRIPT FLUSH' => sub {
    my $other = RateLimit::Redis->start;
    my %shard = map { $_->addr => $_ } $redis, $other;

    $_->cmd('FLUSHALL') for values %shard;

    my $nginx = RateLimit::Nginx->start(
        conf   => "ratelimit_shards @{[sort keys %shard]};"
                  . ' ratelimit_redis_timeout 5s; ratelimit_on_error closed;'
                  . ' ratelimit_limit all key=$arg_a capacity=1000 rate=1r/d;'
                  . ' ratelimit_limit one key=$arg_b capacity=1 rate=1r/d;',
        server => "location / { ratelimit all one;"
                  . ' add_header X-Shard $ratelimit_shard always;'
                  . " $answer }"
                  . " location /all { ratelimit all;"
                  . ' add_header X-Shard $ratelimit_shard always;'
                  . " try_files /none =404; } $ok",
    );

    # two keys on different shards
    my %key;

    for my $i (1 .. 50) {
        my $r = $nginx->get("/all?a=k$i");
        $key{$r->{headers}{'x-shard'}} //= "k$i";
    }

    my ($a, $b) = sort keys %key;
    my $path = "/?a=$key{$a}&b=$key{$b}";
    my $tokens = sub {
        sprintf '%.0f', $shard{$a}->tokens("ratelimit:all:{$key{$a}}")
    };

    is statuses($nginx, $path, 1), 200, 'the only one that passes';

    my $before = $tokens->();

    for my $round (1 .. 3) {
        $_->cmd('SCRIPT', 'FLUSH') for values %shard;
        is statuses($nginx, $path, 5), '429 429 429 429 429', 'rejected';
    }

    ok RateLimit::Util::wait_until(sub { $tokens->() == $before }, 5),
       'nothing is missing' or diag $tokens->() . " of $before";

    $nginx->finish;
};

done_testing;
