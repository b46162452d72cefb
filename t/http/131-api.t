# "ratelimit_api": limits, keys and servers as JSON.  It reads only: what it says
# is what limits and Redis hold, and asking changes neither.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();
use Time::HiRes ();

use RateLimit::Cluster;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(dead_port wait_until);

my @redis = map { RateLimit::Redis->start } 1 .. 2;

my $PATIENT = "ratelimit_redis_timeout 20s;\n"
              . "ratelimit_redis_connect_timeout 20s;\n";

my $SERVER = <<'EOC';
    location /user   { ratelimit user; try_files /none @ok; }
    location /window { ratelimit window; try_files /none @ok; }
    location /plan   { ratelimit plan; try_files /none @ok; }
    location /both   { ratelimit user window; ratelimit_phase precontent;
                       try_files /none @ok; }
    location /own    { ratelimit_rate 7r/m; ratelimit_key $arg_key;
                       try_files /none @ok; }
    location @ok     { return 200 ok; }

    location /ops/ratelimit/ { ratelimit_api; }
    location /moved { rewrite ^ /ops/ratelimit/limits/user last; }

    location /page   { ssi on; ssi_types *; }
    location /auth   { auth_request /ops/ratelimit/keys/h; empty_gif; }
    location /mirror { mirror /ops/ratelimit/keys/h; empty_gif; }
EOC

my $LIMITS = <<'EOC';
    ratelimit_silence client_value unused_limit no_shards;
    ratelimit_limit user   key=$arg_key capacity=5 rate=5r/h;
    ratelimit_limit window key=$arg_key capacity=3 window=1h cost=2
                           algorithm=sliding_window_log;
    ratelimit_limit plan   key=$arg_key capacity=$arg_capacity rate=1r/h;
    ratelimit_limit unused rate=1r/s dry_run;
EOC


sub start {
    my ($conf, %opt) = @_;

    return RateLimit::Nginx->start(conf => "$conf$LIMITS", server => $SERVER,
                                   %opt);
}


sub api {
    my ($nginx, $path, @headers) = @_;

    return $nginx->get("/ops/ratelimit/$path", @headers);
}


sub json {
    my ($response) = @_;

    return JSON::PP->new->utf8->decode($response->{body});
}


sub answer { return json(api(@_)) }


sub limit {
    my ($nginx, $name) = @_;

    my ($limit) = grep { $_->{name} eq $name }
                       @{ answer($nginx, 'limits')->{limits} };
    return $limit;
}


my $nginx = start($PATIENT . 'ratelimit_shards '
                  . join(' ', map { $_->addr } @redis) . ";\n");


subtest 'the index names what there is' => sub {
    my $r = api($nginx, '');

    is $r->{status}, 200, 'status';
    is $r->{headers}{'content-type'}, 'application/json', 'type';
    is $r->{headers}{'cache-control'}, 'no-store', 'nobody may keep it';

    my %paths = map { $_ => 1 } @{ json($r)->{paths} };
    ok $paths{$_}, "path: $_"
        for 'limits', 'limits/NAME', 'limits/NAME/keys/KEY',
            'limits/NAME/keys/KEY/override', 'keys/KEY', 'overrides', 'servers',
            'top';
    is_deeply [@{ json($r) }{qw(write overrides)}], [JSON::PP::false, 'off'],
        'what it may do';
    like json($r)->{version}, qr/^\d+\.\d+\.\d+/, 'version';
};


subtest 'limits are shown as they are written, with their use' => sub {
    my $user = limit($nginx, 'user');

    is_deeply [@$user{qw(algorithm key capacity rate window cost)}],
        ['token_bucket', '$arg_key', 5, '5r/h', undef, undef], 'definition';
    is_deeply $user->{used},
        [map { {
            server => 'localhost', location => $_->[0], phase => $_->[1],
            mode => 'enforced', state => 'redis', on_error => 'local'
         } } ['/user', 'access'], ['/both', 'precontent']],
        'where it is used';

    my $window = limit($nginx, 'window');
    is_deeply [@$window{qw(algorithm window cost)}],
        ['sliding_window_log', '1h', 2], 'a window';

    is limit($nginx, 'plan')->{capacity}, '$arg_capacity', 'a variable';
    is limit($nginx, 'localhost/own')->{rate}, '7r/m', 'without a name';

    my $unused = limit($nginx, 'unused');
    is_deeply $unused->{used}, [], 'used nowhere';
    is $unused->{key}, '$ratelimit_client_net', 'the default key';
    ok $unused->{dry_run}, 'in a dry run';

    is_deeply answer($nginx, 'limits/localhost%2Fown'),
              limit($nginx, 'localhost/own'), 'one alone, by its name';
    is_deeply json($nginx->get('/moved')), limit($nginx, 'user'),
              'behind an internal redirect';
};


subtest 'counters are those of the limit' => sub {
    $nginx->get('/user?key=counted') for 1 .. 7;
    $nginx->get('/user');

    my $user = limit($nginx, 'user');

    is_deeply $user->{requests},
        { passed => 5, rejected => 2, dry_run_rejected => 0, skipped => 1 },
        'requests';
    is $user->{tokens}, 5, 'tokens';
    is $user->{sources}{redis} + ($user->{sources}{denied} // 0), 7, 'sources';
};


subtest 'a key has the state that a request would meet' => sub {
    my $first = answer($nginx, 'limits/user/keys/alice');

    is_deeply [@$first{qw(limit key redis_key state capacity cost remaining)}],
        ['user', 'alice', 'ratelimit:user:{alice}', 'redis', 5, 1, 5],
        'unused';
    ok $first->{passes}, 'it would pass';
    is $first->{retry_after}, undef, 'without a wait';

    is $nginx->get('/user?key=alice')->{status}, 200, "request $_" for 1 .. 5;

    my $empty = answer($nginx, 'limits/user/keys/alice');

    ok !$empty->{passes}, 'it would be rejected now';
    is $empty->{remaining}, 0, 'nothing is left';
    cmp_ok $empty->{retry_after}, '>', 600, 'a token comes each 12 minutes';
    cmp_ok $empty->{reset}, '>', time + 3000, 'an hour until it is full';

    my ($home) = grep { $_->cmd('EXISTS', 'ratelimit:user:{alice}') } @redis;
    is $empty->{server}, $home->addr, 'the server is where the key is';
    ok $empty->{here}{denied}, 'this machine knows that it is empty';
    ok !$first->{here}{denied}, 'and did not before';

    my $r = $nginx->get('/user?key=alice');
    is $r->{status}, 429, 'rejected';
    cmp_ok abs($r->{headers}{'retry-after'} - $empty->{retry_after}), '<=', 2,
        'after the wait that was shown';

    answer($nginx, 'limits/user/keys/nobody');
    is_deeply [map { $_->cmd('EXISTS', 'ratelimit:user:{nobody}') } @redis],
        [0, 0], 'a look makes no key';
};


subtest 'a look takes nothing and is not counted' => sub {
    my $before = limit($nginx, 'user');
    answer($nginx, 'limits/user/keys/bob') for 1 .. 10;
    answer($nginx, 'keys/bob') for 1 .. 10;

    is_deeply limit($nginx, 'user'), $before, 'counters';
    is $nginx->get('/user?key=bob')->{headers}{'x-ratelimit-remaining'}, 4,
        'the bucket was full';
};


subtest 'a window, a cost, a parameter from a variable' => sub {
    my $window = answer($nginx, 'limits/window/keys/carol');
    is_deeply [@$window{qw(capacity cost remaining)}], [3, 2, 3], 'a window';

    $nginx->get('/window?key=carol');
    $window = answer($nginx, 'limits/window/keys/carol');
    ok !$window->{passes}, 'one is left, and two are wanted';
    ok answer($nginx, 'limits/window/keys/carol?cost=1')->{passes},
        'one would pass';

    my $r = api($nginx, 'limits/plan/keys/carol');
    is $r->{status}, 400, 'which capacity?';
    like json($r)->{detail}, qr/^"capacity" of limit "plan": it comes from/,
        'it names the field';

    is answer($nginx, 'limits/plan/keys/carol?capacity=9')->{remaining}, 9,
        'given';
    is api($nginx, "limits/plan/keys/carol?$_")->{status}, 400, $_
        for 'capacity=', 'capacity=x', 'capacity=0', 'capacity=1000000001',
            'capacity=9&cost=100001', 'capacity=9&cost=x', 'capacity=%00';
};


subtest 'a key in all limits' => sub {
    my $all = answer($nginx, 'keys/dave');

    is_deeply [map { "$_->{limit} " . ($_->{remaining} // $_->{error}) }
                   @{ $all->{limits} }],
        ['user 5', 'window 3', 'plan it comes from a variable, so it must be '
         . 'an argument of this request', 'localhost/own 7'],
        'those that are used';
};


subtest 'keys may hold any byte' => sub {
    my %keys = (
        'a/b'            => 'a%2Fb',
        'a b?c#d&e'      => 'a%20b%3Fc%23d%26e',
        "\xc3\xa9\xff"   => '%C3%A9%FF',
        '<b>"x"</b>'     => '%3Cb%3E%22x%22%3C%2Fb%3E',
        '100%'           => '100%25',
        "a\r\nX: y"      => 'a%0D%0AX%3A%20y',
        '{slot}'         => '%7Bslot%7D',
    );

    for my $key (sort keys %keys) {
        $nginx->get("/plan?capacity=4&key=$keys{$key}");

        # the argument of the request is not decoded, as nginx does not
        my $seen = $keys{$key} =~ s/%/%25/gr;
        my $state = answer($nginx, "limits/plan/keys/$seen?capacity=4");

        is $state->{remaining}, 3, $keys{$key};

        my $raw = api($nginx, "limits/user/keys/$keys{$key}");
        is $raw->{status}, 200, "$keys{$key} itself";
        unlike $raw->{body}, qr/[^\x20-\x7e\n]/, 'nothing raw in the answer';
        (my $unescaped = json($raw)->{key}) =~ s/%(..)/chr hex $1/ge;
        is $unescaped, $key, 'the key can be read back';
    }

    my $long = 'k' x 300;
    $nginx->get("/user?key=$long");
    my $state = answer($nginx, "limits/user/keys/$long");
    like $state->{redis_key}, qr/^ratelimit:user:\{sha1:[0-9a-f]{40}\}$/,
        'a long key is a digest';
    is $state->{remaining}, 4, 'and is found';
};


subtest 'subrequests are answered' => sub {
    my $include = '<!--# include virtual="/ops/ratelimit/%s" -->';

    open my $page, '>', $nginx->dir . '/html/page' or die $!;
    print $page '[', join(',', map { sprintf $include, $_ }
                                   'keys/h', 'limits/user/keys/i', 'servers'),
                ']';
    close $page;

    my $r = $nginx->get('/page');
    is $r->{status}, 200, 'SSI';

    my $all = eval { json($r) } || [];
    is_deeply [map { $_->{key} } @$all], ['h', 'i', undef],
        'each has its own answer, in order';
    is scalar(@{ $all->[0]{limits} || [] }), 4, 'with all limits';

    is $nginx->get('/auth')->{status}, 200, 'auth_request';

    # a connection that is still busy would be found by finish()

    is $nginx->get('/mirror')->{status}, 200, 'mirror';
};


subtest 'servers are shown with breaker and latency' => sub {
    my $servers = answer($nginx, 'servers')->{servers};

    is_deeply [map { $_->{name} } @$servers], [map { $_->addr } @redis], 'names';

    for my $server (@$servers) {
        is_deeply [@$server{qw(role breaker last_failure calls_in_flight)}],
            ['shard', 'distributed', undef, 0], "$server->{name} is well";
        is $server->{address}, $server->{name}, 'its address';
        is_deeply $server->{failures}, {}, 'no failures';
        cmp_ok $server->{calls}, '>', 0, 'it was called';
        cmp_ok $server->{latency}{p50}, '>', 0, 'p50';
        cmp_ok $server->{latency}{p99}, '>=', $server->{latency}{p50}, 'p99';
    }
};


subtest 'foreign data in one key is a failure of that key' => sub {
    $_->cmd('LPUSH', 'ratelimit:user:{foreign}', 'x') for @redis;

    my $all = answer($nginx, 'keys/foreign')->{limits} || [];

    is_deeply [map { "$_->{limit} " . ($_->{remaining} // $_->{failure} // '') }
                   @$all],
        ['user wrongtype', 'window 3', 'plan ', 'localhost/own 7'],
        'other limits on this server are shown';
};


subtest 'errors say what to do' => sub {
    for (['nothing', 404, qr/the location itself lists all paths/],
         ['limits/nobody', 404, qr/no limit of this name: "limits" lists/],
         ['limits/user/keys', 404, qr/no such path/],
         ['limits/user/other/x', 404, qr/no such path/],
         ['limits/user/keys/a/b', 404, qr/percent-encode/],
         ['limits/unused/keys/a', 404, qr/no location uses limit "unused"/])
    {
        my ($path, $status, $detail) = @$_;
        my $r = api($nginx, $path);

        is $r->{status}, $status, $path;
        is $r->{headers}{'content-type'}, 'application/problem+json', 'type';
        is json($r)->{status}, $status, 'status in the body';
        like json($r)->{detail}, $detail, 'detail';
    }

    for my $method (qw(POST PUT DELETE PATCH)) {
        my $r = RateLimit::Load::request($nginx->port, $method,
                                         '/ops/ratelimit/limits/user');
        is $r->{status}, 405, $method;
        is $r->{headers}{allow}, 'GET, HEAD', 'Allow';
    }

    my $r = RateLimit::Load::request($nginx->port, 'HEAD',
                                     '/ops/ratelimit/limits');
    is $r->{status}, 200, 'HEAD';
};


subtest 'nginx -t says where it may stand' => sub {
    for (['location = /x', qr/needs a location that is a prefix and ends/],
         ['location /x', qr/needs a location that is a prefix and ends/],
         ['location ~ ^/x/', qr/needs a location that is a prefix and ends/])
    {
        my ($code, $output) = RateLimit::Nginx->test_config(
            server => "$_->[0] { ratelimit_api; }");
        isnt $code, 0, "$_->[0] is refused";
        like $output, qr/"ratelimit_api" directive $_->[1].* in .*:\d+/, 'why';
    }

    my ($code, $output) = RateLimit::Nginx->test_config(
        server => 'location /x/ { ratelimit_api; ratelimit_metrics; }');
    isnt $code, 0, 'two answers are refused';
    like $output, qr/conflicts with another directive that generates/, 'why';

    ($code) = RateLimit::Nginx->test_config(
        server => 'location /x/ { ratelimit_api; }');
    is $code, 0, 'without any limit it is fine';
};

$nginx->finish;


subtest 'a machine without Redis' => sub {
    my $local = start('');

    is $local->get('/user?key=eve')->{status}, 200, 'a request';

    my $state = answer($local, 'limits/user/keys/eve');
    is_deeply [@$state{qw(state remaining)}], ['memory', 4], 'its state';
    ok !exists $state->{server} && !exists $state->{here}, 'no server';
    is_deeply answer($local, 'servers'), { servers => [] }, 'no servers';
    $local->finish;
};


subtest 'Redis that does not answer' => sub {
    my $other = start("ratelimit_redis_timeout 100ms;\n"
                      . "ratelimit_redis_connect_timeout 100ms;\n"
                      . 'ratelimit_shards ' . $redis[0]->addr . ";\n");

    is api($other, 'limits/user/keys/f')->{status}, 200, 'it answers';

    $redis[0]->pause;

    my $r = api($other, 'limits/user/keys/f');
    is $r->{status}, 503, 'stopped: 503';
    like json($r)->{detail}, qr/no answer from redis \S+: timeout/, 'and why';
    is api($other, 'keys/f')->{status}, 503, 'in all limits';
    is api($other, 'limits')->{status}, 200, 'limits need no Redis';

    ok wait_until(sub {
        api($other, 'limits/user/keys/f');
        answer($other, 'servers')->{servers}[0]{breaker} eq 'circuit_open';
    }, 10), 'the breaker opens';

    my $server = answer($other, 'servers')->{servers}[0];
    is $server->{last_failure}, 'timeout', 'the last failure';
    cmp_ok $server->{failures}{timeout}, '>', 0, 'is counted';
    like json(api($other, 'limits/user/keys/f'))->{detail},
        qr/circuit_open/, 'nothing is sent';

    $redis[0]->resume;

    ok wait_until(sub {
        api($other, 'limits/user/keys/f')->{status} == 200;
    }, 20), 'it answers again';
    $other->finish;
};


subtest 'clients leave while Redis is asked' => sub {
    my $waiting = start($PATIENT . 'ratelimit_shards ' . $redis[0]->addr
                        . ";\n", workers => 1);

    is api($waiting, 'keys/g')->{status}, 200, 'it answers';

    $redis[0]->pause;

    for my $path ('limits/user/keys/g', 'keys/g') {
        my $connection = RateLimit::Load::connection($waiting->port);
        $connection->send("/ops/ratelimit/$path");
        Time::HiRes::sleep(0.1);
        $connection->close;
    }

    my $stays = $waiting->begin('/ops/ratelimit/keys/g');
    $redis[0]->resume;

    my $r = $stays->response;
    is $r->{status}, 200, 'one that stays is answered';
    is scalar(@{ json($r)->{limits} }), 4, 'with all limits';

    is api($waiting, 'limits/user/keys/g')->{status}, 200, 'and so is the next';
    $waiting->finish;
};


subtest 'a slot that moves' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 2);
    my $nodes = start($PATIENT . 'ratelimit_shards cluster ' . $cluster->addrs
                      . ";\n", workers => 1);

    $nodes->get('/user?key=moves');

    my $from = $cluster->node_of('moves');
    my ($to) = grep { $_ != $from } $cluster->masters;

    is answer($nodes, 'limits/user/keys/moves')->{server}, $from->addr,
        'the node that has the key';

    $cluster->move_slot(RateLimit::Cluster::slot('moves'), $to, $from);

    my $state = answer($nodes, 'limits/user/keys/moves');
    is $state->{remaining}, 4, 'its state has moved with it';
    is $state->{server}, $to->addr, 'the node that answered';

    $nodes->finish;
    $cluster->stop;
};


done_testing();
