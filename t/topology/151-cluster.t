# Limits in a Redis Cluster: each bucket is on the node that owns its slot, and
# as many requests pass as the limit says, wherever slots go meanwhile.
#
# Timeouts are long and errors close, so that a slow machine can't turn a
# request that Redis did not answer into one that passed: it would be a 503, and
# fail.  What needs short timeouts has locations of its own.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use List::Util qw(max sum0 uniq);
use Time::HiRes qw(sleep time);

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Spent;
use RateLimit::Util qw(wait_until);

my $WORKERS = 2;        # of each nginx

my $cluster = RateLimit::Cluster->start;
my ($red, $green, $blue) = $cluster->masters;
my @nodes = ($red, $green, $blue);

my $LIMITS = <<'EOC';
    map $arg_uc $user_capacity { "" 1000; default $arg_uc; }
    map $arg_ic $ip_capacity { "" 1000; default $arg_ic; }
    map $arg_gc $global_capacity { "" 1000; default $arg_gc; }

    ratelimit_limit user   key=$arg_u capacity=$user_capacity rate=0r/s;
    ratelimit_limit ip     key=$arg_i capacity=$ip_capacity window=1h
                           algorithm=sliding_window_log;
    ratelimit_limit global key=$arg_g capacity=$global_capacity rate=1r/h
                           algorithm=gcra;
EOC

my $SERVER = <<'EOC';
        ratelimit_key $arg_k;

        location /t { ratelimit_capacity 100; ratelimit_rate 0r/s; empty_gif; }
        location /five { ratelimit_capacity 5; ratelimit_rate 0r/s; empty_gif; }
        location /other { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          empty_gif; }
        location /gcra { ratelimit_capacity 100; ratelimit_rate 1r/d;
                         ratelimit_algorithm gcra; empty_gif; }
        location /window { ratelimit_capacity 100; ratelimit_window 1h;
                           ratelimit_algorithm sliding_window_log;
                           empty_gif; }
        location /lease { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                          ratelimit_lease 50 ttl=300ms; empty_gif; }
        location /asks { ratelimit_capacity 100; ratelimit_rate 0r/s;
                         ratelimit_deny_cache off; empty_gif; }

        location /h { ratelimit_key $http_x_key; ratelimit_capacity 100;
                      ratelimit_rate 0r/s; empty_gif; }

        location ~ "^/r{1,2}$" { ratelimit_capacity 100; ratelimit_rate 0r/s;
                                 empty_gif; }

        location /all { ratelimit user ip global; empty_gif; }
        location /each { ratelimit user ip global; ratelimit_deny_cache off;
                         empty_gif; }
        location /two { ratelimit user global; empty_gif; }

        location /short { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          ratelimit_redis_timeout 300ms; empty_gif; }
        location /shorttwo { ratelimit user global;
                             ratelimit_redis_timeout 300ms; empty_gif; }
        location /local { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          ratelimit_redis_timeout 300ms;
                          ratelimit_on_error local; empty_gif; }
EOC

my @nginx = map { start() } 1 .. 2;
my @ports = map { $_->port } @nginx;


# All that a test asks for; one seed is enough, unless it is told otherwise.

sub start {
    my (%opt) = @_;

    my $shards = delete $opt{shards} // 'cluster ' . $red->addr;
    my $conf = delete $opt{conf} // '';

    return start_nginx($shards, workers => $WORKERS, reuseport => 1, %opt,
                       conf => $LIMITS . $conf, server => $SERVER);
}


# ---- what all parts use

# A key that no test had before, on this node.

my $keys = 0;

sub key_on {
    my ($node) = @_;

    my $owners = $cluster->owners;

    while (1) {
        my $key = 'k' . ++$keys;
        return $key if $owners->[RateLimit::Cluster::slot($key)] == $node;
    }
}


# The nodes that have this key.

sub places_of {
    my ($name) = @_;

    return grep { grep { $_ eq $name } @{ $_->cmd('KEYS', '*') } } @nodes;
}


# What was taken from the limits "user", "ip" and "global".

sub taken {
    my ($limit, $key, $capacity) = @_;

    my %kind = (user => 'bucket', ip => 'window', global => 'gcra');

    return spent({ kind => $kind{$limit}, name => $limit, key => $key,
                   capacity => $capacity, period => 3600 },
                 $cluster->node_of("ratelimit:$limit:{$key}"));
}


# A test: after some time so much and no more or less was, [which] => number.

sub is_taken {
    my ($name, @wanted) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is_spent($name, \&taken, @wanted);
}


# ---- where buckets are

# nginx has only just been started: who asks first does not know the map.

subtest 'before the map is known: exact from the first request on' => sub {
    my $load = RateLimit::Load::run(targets => \@ports, path => '/five?k=first',
                                    connections => 100, requests => 100,
                                    timeout => 60);

    is_deeply $load->statuses, { 200 => 5, 429 => 95 }, '5 and 95';
    is $load->error_text, '', 'no errors';
};


subtest 'each key is on the node of its slot' => sub {
    my $owners = $cluster->owners;
    my (%expected, %used);
    my ($wrong, $lied) = (0, 0);

    $cluster->flush;

    for my $n (1 .. 150) {
        my $key = "10.1.$n.7";
        my $node = $owners->[RateLimit::Cluster::slot($key)];
        my $r = $nginx[$n % 2]->get("/t?k=$key");

        $wrong++ if verdict($r) ne '200 redis 99';
        $lied++ if $r->{headers}{'x-shard'} ne $node->addr;

        $expected{ $node->addr }{"ratelimit:localhost/t:{$key}"} = 1;
    }

    is $wrong, 0, 'all passed';
    is $lied, 0, '$ratelimit_shard is the node';

    for my $node (@nodes) {
        is_deeply { map { $_ => 1 } @{ $node->cmd('KEYS', '*') } },
                  $expected{ $node->addr }, 'a node has its keys, and no other';
    }

    is scalar keys %expected, 3, 'all nodes have some';
};


subtest '2 nginx x 2 workers x 3 nodes: exactly so many pass' => sub {
    my @seen;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 2000, keep => 1,
        timeout => 60,
        path => sub {
            my ($n) = @_;

            # while all 50 clients wait for their answers
            push @seen, map { $_->clients } @nodes if $n % 400 == 399;

            return '/t?k=a';
        });

    is_deeply $load->statuses, { 200 => 100, 429 => 1900 }, '100 and 1900';
    is $load->error_text, '', 'no errors';

    my %workers = map { $_->{headers}{'x-worker'} => 1 } $load->responses;

    is scalar keys %workers, 2 * $WORKERS, 'by all workers';
    is scalar(places_of('ratelimit:localhost/t:{a}')), 1, 'from one bucket';

    # many keys

    $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 4000, keep => 1,
        timeout => 120,
        path => sub {
            my ($n) = @_;

            push @seen, map { $_->clients } @nodes if $n % 1000 == 999;

            return '/five?k=user' . ($n * 173 % 400);
        });

    my %passed;

    $passed{ $_->{n} * 173 % 400 } += $_->{status} == 200
        for $load->responses;

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 2000, 429 => 2000 }, 'half of all';
    is scalar(grep { $_ == 5 } values %passed), 400, 'five of each key';

    is scalar @seen, 27, 'nodes were looked at meanwhile';
    cmp_ok max(@seen), '<=', 2 * $WORKERS,
           'a worker has one connection to a node';
    is_deeply [map { $_->clients } @nodes], [(2 * $WORKERS) x 3],
              'and so after it';
};


subtest 'the log and the metrics name the cluster and its nodes' => sub {
    for my $nginx (@nginx) {
        ok $nginx->log_like(qr/\[notice\] .*
                               ratelimit\ cluster:\ 3\ nodes\ serve\ 16384\ of
                               \ 16384\ slots,\ reported\ by\ redis\ 127\.0\.0\.1:\d+/x),
           'the cluster is told';

        my $nodes = $nginx->metrics->{nginx_ratelimit_shard_node};

        is_deeply { map { $_->{node} => "$_->{role} $_->{shard} $_->{value}" }
                        grep { $_->{value} } @$nodes },
                  { map { $_->addr => 'node ' . $_->addr . ' 1' } @nodes },
                  'nodes are those of the cluster';

        cmp_ok $nginx->topology_events('map_refresh'), '>=', 1, 'maps are counted';
        is $nginx->metric('redis_calls_in_flight'), 0, 'no call is under way';
    }

    is $nginx[0]->metric('redis_connections'), 3 * $WORKERS, 'connections';
};


# ---- keys that try to be clever

subtest 'braces in a key do not steer' => sub {
    $cluster->flush;

    my (%expected, %nodes);
    my $wrong = 0;

    my @keys = ('{', '}', '{}', '}{', 'a}b{c', 'x{y}', '{x}', 'a{b', 'a}b',
                map { "{same}$_" } 1 .. 30);

    for my $key (@keys) {
        my $name = 'ratelimit:localhost/h:{sha1:' . sha1_hex($key) . '}';
        my $node = $cluster->node_of($name);
        my $r = $nginx[0]->get('/h', 'X-Key' => $key);

        $wrong++ if verdict($r) ne '200 redis 99'
                    || $r->{headers}{'x-shard'} ne $node->addr;

        $expected{$name} = 1;
        $nodes{ $node->addr } = 1 if $key =~ /same/;
    }

    is $wrong, 0, 'all passed, each at the node of its SHA-1';
    is_deeply { map { $_ => 1 } $cluster->keys }, \%expected, 'their buckets';
    is scalar keys %nodes, 3, 'the same in braces is not the same slot';
    is verdict($nginx[0]->get('/h', 'X-Key' => '{}')), '200 redis 98',
       'and the same again';

    # as they come

    for my $key (':', "it's", "\xc3\xa9\xff", 'a b', 'k' x 256) {
        my $r = $nginx[0]->get('/h', 'X-Key' => $key);

        $wrong++ if $r->{headers}{'x-shard'} ne $cluster->node_of($key)->addr;
    }

    is $wrong, 0, 'other keys are themselves';
};


subtest 'braces in the name of a location are none' => sub {
    $cluster->flush;

    my $key = key_on($green);

    is verdict($nginx[0]->get("/r?k=$key")), '200 redis 99', 'passed';
    is verdict($nginx[0]->get("/rr?k=$key")), '200 redis 98', 'and again';
    is_deeply [$cluster->keys], ["ratelimit:localhost~^/r(1,2)\$:{$key}"],
              'its bucket';
    is scalar(@{ $green->cmd('KEYS', '*') }), 1, 'is where its key says';
};


# ---- slots that move

subtest 'MOVED: a slot has moved behind our back' => sub {
    my $nginx = start(workers => 1);
    my $port = $nginx->port;
    my $key = key_on($red);
    my $path = "/t?k=$key";

    is verdict($nginx->get($path)), '200 redis 99', 'before';
    $nginx->get("/t?k=" . key_on($_)) for $green, $blue;

    $cluster->move_slot(RateLimit::Cluster::slot($key), $green);
    ok $cluster->wait_ok, 'the slot is at another node';

    my $moved = $red->errors('MOVED');
    my $r = $nginx->get($path);

    is verdict($r), '200 redis 98', 'the bucket came along, nobody noticed';
    is $red->errors('MOVED'), $moved + 1, 'the old one was asked';
    is $nginx->topology_events('moved'), 1, 'metrics say so';

    for my $left (reverse 88 .. 97) {
        $r = $nginx->get($path);
        is verdict($r), "200 redis $left", 'again';
    }

    is $r->{headers}{'x-shard'}, $green->addr, 'at its new node';
    is $red->errors('MOVED'), $moved + 1, 'the old one is not asked any more';

    # the whole map is asked for, once

    ok wait_until(sub { $nginx->topology_events('map_refresh') >= 2 }), 'a new map';

    $cluster->move_slot(RateLimit::Cluster::slot($key), $red);
    ok $cluster->wait_ok, 'back';
    is verdict($nginx->get($path)), '200 redis 87', 'the same';

    $nginx->finish;
};


subtest 'many slots move at once: few maps are asked for' => sub {
    my @keys = map { key_on($red) } 1 .. 40;
    my @slots = uniq map { RateLimit::Cluster::slot($_) } @keys;

    $nginx[0]->get("/t?k=$_") for @keys;

    $cluster->move_slot($_, $green, $red) for @slots;
    ok $cluster->wait_ok, 'moved';

    my $maps = $cluster->calls('cluster|slots');
    my $start = time;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 40, requests => 800, timeout => 60,
        path => sub { "/t?k=$keys[$_[0] % 40]" });

    sleep 0.5;          # for all that might still come

    my $seconds = time - $start;

    is_deeply $load->statuses, { 200 => 800 }, 'all passed';

    cmp_ok $cluster->calls('cluster|slots') - $maps, '<=',
           2 * $WORKERS * (1 + int $seconds), 'one a second and worker at most';

    my $wrong = 0;

    for (@keys) {
        my $name = "ratelimit:localhost/t:{$_}";
        $wrong++ if $cluster->tokens($name) != 79;
    }

    is $wrong, 0, 'each bucket is right';

    $cluster->move_slot($_, $red, $green) for @slots;
    ok $cluster->wait_ok, 'and back';
};


# Two locations have two buckets of one slot, as they have the same key.

subtest 'ASK: a slot is in the middle of its move' => sub {
    my $nginx = start(workers => 1);
    my $port = $nginx->port;
    my $key = key_on($red);
    my $slot = RateLimit::Cluster::slot($key);
    my ($old, $new) = map { "ratelimit:localhost/$_:{$key}" } 't', 'other';
    my $ask = sub { verdict($nginx->get("/$_[0]?k=$key")) };

    is $ask->('t'), '200 redis 99', 'before';

    $cluster->begin_move($slot, $green);

    is $ask->('t'), '200 redis 98', 'what is there is there';
    is $nginx->topology_events('ask'), 0, 'without a redirect';

    is $ask->('other'), '200 redis 99', 'what is new is at the other end';
    is $nginx->topology_events('ask'), 1, 'by a redirect';
    is_deeply [places_of($new)], [$green], 'there it is';
    is_deeply [places_of($old)], [$red], 'the old one where it was';
    is $ask->('t'), '200 redis 97', 'a redirect changes no map';
    is $ask->('other'), '200 redis 98', 'and again';
    is $nginx->topology_events('moved'), 0, 'nothing has moved yet';

    is $cluster->move_keys($slot), 1, 'the old one moves';
    is $ask->('t'), '200 redis 96', 'now it is found at the other end, too';
    is $ask->('other'), '200 redis 97', 'as before';

    # each of these redirects has asked for a map, which comes a second later at
    # most: one that came after the end of the move would be all that tells it

    my $maps = $nginx->topology_events('map_refresh');

    wait_until(sub { $nginx->topology_events('map_refresh') > $maps }, 2);

    $cluster->end_move($slot);
    ok $cluster->wait_ok, 'the move is over';
    is $ask->('t'), '200 redis 95', 'and all is there';
    is $ask->('other'), '200 redis 96', 'all';
    is $nginx->topology_events('moved'), 1, 'which was told once';

    # many at a time, each with an ASKING of its own

    $cluster->begin_move($slot, $red);

    my $load = RateLimit::Load::run(
        port => $port, connections => 30, requests => 300, timeout => 60,
        path => sub { ('/t', '/other', '/asks')[$_[0] % 3] . "?k=$key" });

    is_deeply $load->statuses, { 200 => 291, 429 => 9 },
              'all three buckets, at both ends, under load';

    $cluster->move_keys($slot);
    $cluster->end_move($slot);
    ok $cluster->wait_ok, 'back';
    $nginx->finish;
};


subtest 'TRYAGAIN: the keys of a call are at both ends' => sub {
    my $nginx = start(workers => 1);
    my $port = $nginx->port;
    my $key = key_on($blue);
    my $slot = RateLimit::Cluster::slot($key);
    my $query = "u=$key&g=$key";
    my $user = "ratelimit:user:{$key}";

    is $nginx->get("/two?$query")->{status}, 200, 'before';

    $cluster->begin_move($slot, $red);
    $cluster->move_keys($slot, $user);

    # somebody waits for the rest

    my $connection = $nginx->begin("/two?$query");

    ok wait_until(sub { $nginx->topology_events('tryagain') >= 2 }), 'it is tried again';

    $cluster->move_keys($slot);
    is $connection->response(20)->{status}, 200, 'and passes in the end';

    $cluster->end_move($slot);
    is_taken 'once', [user => $key, 1000], 2, [global => $key, 1000], 2;

    # in vain, but not for longer than its timeout, nor in a storm

    ok $cluster->wait_ok, 'the move is over';
    $cluster->begin_move($slot, $blue);
    $cluster->move_keys($slot, $user);

    my $before = $nginx->topology_events('tryagain');
    my $r = $nginx->get("/shorttwo?$query");

    is $r->{status}, 503, 'it ends with its time';

    my $tried = $nginx->topology_events('tryagain') - $before;

    cmp_ok $tried, '>=', 2, 'it was tried several times';
    cmp_ok $tried, '<=', 100, 'but not too often';

    $cluster->move_keys($slot);
    $cluster->end_move($slot);
    ok $cluster->wait_ok, 'the rest moves';
    is $nginx->get("/two?$query")->{status}, 200, 'all is well';
    is_taken 'nothing was taken in vain', [user => $key, 1000], 3,
             [global => $key, 1000], 3;

    $nginx->finish;
};


# ---- several limits

subtest 'several limits in several slots: all or nothing' => sub {
    for my $case ([40, 60, 1000], [1000, 40, 60], [60, 1000, 40]) {
        my ($uc, $ic, $gc) = @$case;
        my ($u, $i, $g) = map { key_on($_) } @nodes;
        my $query = "u=$u&uc=$uc&i=$i&ic=$ic&g=$g&gc=$gc";

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 50, requests => 400,
            path => "/all?$query", timeout => 60);

        my $passed = $load->count(200);

        is $load->error_text, '', 'no errors';
        is $passed + $load->count(429), 400, 'passed or rejected';
        cmp_ok $passed, '<=', 40, "limits @$case: $passed passed at once";

        is_taken 'what was rejected has taken nothing', [user => $u, $uc],
                 $passed, [ip => $i, $ic], $passed, [global => $g, $gc],
                 $passed;

        # who was denied because of a token that came back may try again

        $passed++ while $nginx[0]->get("/each?$query")->{status} == 200
                        && $passed < 100;

        is $passed, 40, 'one after the other: up to the limit';
        is_taken 'and so for each of them', [user => $u, $uc], 40,
                 [ip => $i, $ic], 40, [global => $g, $gc], 40;
    }
};


subtest 'limits of one slot are one call, others one for each node' => sub {
    my $calls = sub { [map { $_->calls('evalsha') } @nodes] };
    my $count = sub {
        my ($query, $n) = @_;

        my $before = $calls->();
        $nginx[0]->get("/all?$query") for 1 .. $n;
        my $after = $calls->();

        return join ' ', map { $after->[$_] - $before->[$_] } 0 .. $#nodes;
    };

    my ($u, $i, $g) = map { key_on($_) } @nodes;
    my $same = key_on($green);

    $nginx[0]->get("/all?u=$u&i=$i&g=$g");       # there is a connection to each

    is $count->("u=$u&i=$i&g=$g", 10), '10 10 10', 'three nodes';
    is $count->("u=$same&i=$same&g=$same", 10), '0 10 0',
       'one key for all limits: one slot, one call';

    # one node, but not one slot: a call may have keys of one slot only

    my @apart = map { key_on($blue) } 1 .. 3;

    is $count->("u=$apart[0]&i=$apart[1]&g=$apart[2]", 10), '0 0 30',
       'three slots of one node';
    is_taken 'each of which has its own', [user => $apart[0], 1000], 10,
             [ip => $apart[1], 1000], 10, [global => $apart[2], 1000], 10;

    # a refund is a call more, to each that has taken something

    ($u, $i, $g) = map { key_on($_) } @nodes;

    is $nginx[0]->get("/all?u=$u&uc=1&i=$i&g=$g")->{status}, 200, 'the only one';
    is $nginx[0]->get("/all?u=$u&uc=1&i=$i&g=$g")->{status}, 429, 'one too many';
    is_taken 'the others got theirs back', [user => $u, 1], 1,
             [ip => $i, 1000], 1, [global => $g, 1000], 1;
};


# One slot in which two limits have two keys that are not the same.

subtest 'two keys of one slot by chance are limits of their own' => sub {
    my %keys;
    my ($one, $two);

    for my $n (1 .. 100_000) {
        my $slot = RateLimit::Cluster::slot("c$n");

        if (defined $keys{$slot}) {
            ($one, $two) = ($keys{$slot}, "c$n");
            last;
        }

        $keys{$slot} = "c$n";
    }

    is RateLimit::Cluster::slot($one), RateLimit::Cluster::slot($two), 'a pair';

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 20, requests => 100, timeout => 60,
        path => "/two?u=$one&uc=30&g=$two&gc=40");

    is $load->error_text, '', 'no errors';
    cmp_ok $load->count(200), '<=', 30, 'never more than the limit';
    is_taken 'what passed', [user => $one, 30], $load->count(200),
             [global => $two, 40], $load->count(200);
};


# ---- few calls for many requests

subtest 'calls are combined and batched, and denials remembered, as elsewhere'
    => sub
{
    my $key = key_on($red);

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 60, requests => 2000, timeout => 60,
        path => "/asks?k=$key");

    is_deeply $load->statuses, { 200 => 100, 429 => 1900 }, 'exactly 100';

    # requests that come in one turn of a worker

    my $worker = start(workers => 1);
    my $pid = ($worker->workers)[0];
    my @parked = map { $worker->begin("/t?k=warm$_") } 1 .. 60;

    $_->response(20) for @parked;

    my $turn = sub {
        my ($path) = @_;

        my $calls = $cluster->calls('evalsha');

        kill 'STOP', $pid;
        $parked[$_]->send($path->($_)) for 0 .. $#parked;
        kill 'CONT', $pid;

        my @seen = map { verdict($_->response(20)) } @parked;

        return ($cluster->calls('evalsha') - $calls, @seen);
    };

    my ($calls, @seen) = $turn->(sub { "/t?k=turn$_[0]" });

    is_deeply [uniq @seen], ['200 redis 99'], '60 keys of many slots';
    is scalar(grep { /\{turn\d+\}/ } $cluster->keys), 60, 'each has a bucket';

    ($calls, @seen) = $turn->(sub { "/asks?k=same" });

    is scalar(grep { /^200/ } @seen), 60, '60 requests for one key';
    cmp_ok $calls, '<', 10, 'need few calls';
    $worker->finish;

    # who was denied is denied without a call

    is verdict($nginx[0]->get("/t?k=$key")), '200 redis 99', 'a fresh bucket';
    RateLimit::Load::run(port => $ports[0], requests => 110, connections => 5,
                         path => "/t?k=$key", timeout => 60);

    my %sources;

    $calls = $cluster->calls('evalsha');

    $sources{ $nginx[0]->get("/t?k=$key")->{headers}{'x-source'} }++ for 1 .. 20;

    cmp_ok $sources{denied} // 0, '>=', 15, 'denials are remembered';
    cmp_ok $cluster->calls('evalsha') - $calls, '<=', 5, 'without calls';
};


subtest 'gcra and windows work as elsewhere' => sub {
    for my $place ('gcra', 'window') {
        my $key = key_on($green);

        my $load = RateLimit::Load::run(
            targets => \@ports, connections => 50, requests => 600,
            path => "/$place?k=$key", timeout => 60);

        is_deeply $load->statuses, { 200 => 100, 429 => 500 },
                  "$place: exactly 100";
        is_deeply [places_of("ratelimit:localhost/$place:{$key}")], [$green],
                  'from one bucket';
    }
};


subtest 'leases: taken where the key is, and given back there' => sub {
    my @keys = map { key_on($_) } @nodes;
    my $tokens = sub {
        my ($key) = @_;
        my $name = "ratelimit:localhost/lease:{$key}";
        return $cluster->tokens($name) // 1000;
    };

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 20, requests => 1800, keep => 1,
        timeout => 60, path => sub { '/lease?k=' . $keys[$_[0] % 3] });

    my (%passed, %sources);

    for my $r ($load->responses) {
        $passed{ $keys[$r->{n} % 3] } += $r->{status} == 200;
        $sources{ $r->{headers}{'x-source'} }++;
    }

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 1800 }, 'all passed';
    cmp_ok $sources{lease} // 0, '>', 500, 'many of them from leases';

    ok wait_until(sub {
        !grep { $tokens->($_) + $passed{$_} != 1000 } @keys
    }, 10), 'what was not used is back';

    # also when the slot is elsewhere by then

    my $key = key_on($red);

    my $nginx = start(workers => 1);

    RateLimit::Load::run(port => $nginx->port, requests => 100, timeout => 60,
                         connections => 5, path => "/lease?k=$key");
    $cluster->move_slot(RateLimit::Cluster::slot($key), $blue);
    $cluster->wait_ok;

    ok wait_until(sub { $tokens->($key) == 900 }, 10),
       'a lease is returned to where the key is now';

    $cluster->move_slot(RateLimit::Cluster::slot($key), $red);
    ok $cluster->wait_ok, 'back';
    $nginx->finish;
};


# ---- nodes in trouble

subtest 'a node that has forgotten its scripts gets them, and nobody notices'
    => sub
{
    my @keys = map { key_on($_) } @nodes;

    $nginx[0]->get("/t?k=$_") for @keys;
    $green->cmd('SCRIPT', 'FLUSH');

    is join(', ', map { verdict($nginx[0]->get("/t?k=$_")) } @keys),
       join(', ', ('200 redis 98') x 3), 'nobody notices';

    $_->cmd('SCRIPT', 'FLUSH') for @nodes;

    my $load = RateLimit::Load::run(
        targets => \@ports, connections => 50, requests => 600, timeout => 60,
        path => sub { "/t?k=$keys[$_[0] % 3]" });

    is_deeply $load->statuses, { 200 => 294, 429 => 306 },
              'all nodes, under load: exact';
};


subtest 'CLUSTERDOWN: a slot without a node' => sub {
    my ($key, $other) = (key_on($red), key_on($green));
    my $slot = RateLimit::Cluster::slot($key);

    is verdict($nginx[0]->get("/$_?k=$key")), '200 redis 99', 'before'
        for 't', 'short';
    $nginx[0]->get("/local?k=$key");

    $cluster->drop_slot($slot);
    ok wait_until(sub {
        3 == grep { $_->cmd('CLUSTER', 'INFO') =~ /cluster_state:fail/ } @nodes
    }), 'the cluster is down';

    is $nginx[0]->get("/short?k=$key")->{status}, 503, 'closed: none passes';

    my $r = $nginx[0]->get("/local?k=$key");

    is $r->{status}, 200, 'local: this machine decides';
    is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'and says so';
    cmp_ok $nginx[0]->topology_events('clusterdown'), '>=', 1, 'metrics, too';

    # who has the time waits until it is over

    my @parked = map { $nginx[0]->begin("/t?k=$_") } $key, $other;

    sleep 0.3;
    $cluster->give_slot($slot, $red);

    is join(' ', map { $_->response(20)->{status} } @parked), '200 200',
       'those who can wait pass';

    ok $cluster->wait_ok, 'the cluster is well';
    ok wait_until(sub {
        $nginx[0]->get("/local?k=$key")
            ->{headers}{'x-source'} eq 'redis'
    }, 15), 'and decides again';
    is $nginx[0]->log_count(qr/\[(?:alert|crit)\]/), 0, 'nothing alarming';
};


# ---- nginx comes and goes

subtest 'a reload makes one connection for each worker and node' => sub {
    my $key = key_on($blue);

    is verdict($nginx[0]->get("/t?k=$key")), '200 redis 99', 'before';
    ok $nginx[0]->reload && $nginx[0]->old_workers_gone(20), 'reloaded';

    my $load = RateLimit::Load::run(
        port => $ports[0], connections => 50, requests => 300,
        path => "/t?k=$key", timeout => 60);

    is_deeply $load->statuses, { 200 => 99, 429 => 201 }, 'exact';

    # on demand, so there may be fewer

    cmp_ok max(map { $_->clients } @nodes), '<=', 2 * $WORKERS,
           'connections: one per worker and node';
};


subtest 'seeds: any of them will do' => sub {
    my $dead = RateLimit::Redis->new;

    for my $case (['the last node', $blue->addr],
                  ['all nodes', $cluster->addrs],
                  ['a dead one first', $dead->addr . ' ' . $green->addr],
                  ['a dead one last', $green->addr . ' ' . $dead->addr],
                  ['names', 'localhost:' . $green->port],
                  ['as an URL', 'redis://' . $blue->addr])
    {
        my ($name, $seeds) = @$case;
        my $nginx = start(shards => "cluster $seeds");
        my @keys = map { key_on($_) } @nodes;

        my $load = RateLimit::Load::run(
            port => $nginx->port, connections => 20, requests => 330,
            timeout => 60, path => sub { "/t?k=$keys[$_[0] % 3]" });

        is_deeply $load->statuses, { 200 => 300, 429 => 30 }, "$name: exact";

        ok wait_until(sub {
            3 == grep { $_->{role} eq 'node' && $_->{value}
                        && $cluster->node($_->{node}) }
                 @{ $nginx->metrics->{nginx_ratelimit_shard_node} }
        }, 5), 'and knows the nodes';

        $nginx->finish;
    }
};


# ---- what is not as it was configured

subtest 'a node of a cluster as a plain shard, and the other way round' => sub {
    my $nginx = start(shards => $red->addr);

    $nginx->get("/local?k=$_") for 1 .. 20;

    my $addr = $red->addr;

    ok $nginx->wait_log(qr/\[error\] .*redis \Q$addr\E is a node of a cluster: write "ratelimit_shards cluster \.\.\."/, 10),
       'the log says what to write';
    cmp_ok $nginx->log_count(qr/is a node of a cluster/), '<=', 2 * $WORKERS,
           'not for each request';
    $nginx->stop;
    $nginx->no_alerts;

    my $plain = RateLimit::Redis->start;

    $addr = $plain->addr;
    $nginx = start(shards => "cluster $addr");

    $nginx->get("/local?k=$_") for 1 .. 20;

    ok $nginx->wait_log(qr/\[error\] .*redis \Q$addr\E is not in cluster mode: write "ratelimit_shards" without "cluster"/, 10),
       'the other way round as well';
    cmp_ok $nginx->log_count(qr/is not in cluster mode/), '<=', 2 * $WORKERS,
           'not for each request';
    is_deeply $plain->cmd('KEYS', '*'), [], 'nothing is written there';
    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'what a cluster can not have is refused by nginx -t' => sub {
    my $refused = sub {
        my ($name, $regex, $conf) = @_;

        my ($code, $output) = RateLimit::Nginx->test_config(
            conf => "$conf server { listen 127.0.0.1:%%PORT%%; location / { "
                    . 'ratelimit_rate 1r/s; } }');

        isnt $code, 0, "$name: refused";
        like $output, qr/\[emerg\] .*$regex/, 'and why';
    };

    my $addr = $red->addr;

    $refused->('a database', qr/database/,
               "ratelimit_shards cluster redis://$addr/1;");
    $refused->('ratelimit_redis_database', qr/database/,
               "ratelimit_shards cluster $addr; ratelimit_redis_database 1;");
    $refused->('a unix socket', qr/unix:/,
               'ratelimit_shards cluster unix:/tmp/redis.sock;');
    $refused->('no seeds', qr/ratelimit_shards/, 'ratelimit_shards cluster;');

    # database 0 is the only one that there is

    my ($code) = RateLimit::Nginx->test_config(
        conf => "ratelimit_shards cluster redis://$addr/0; "
                . 'server { listen 127.0.0.1:%%PORT%%; '
                . 'location / { ratelimit_rate 1r/s; } }');

    is $code, 0, 'database 0 is fine';
};


# ---- clusters of another kind

subtest 'a password, and a user who may not ask for the map' => sub {
    my $cluster = RateLimit::Cluster->start(
        masters => 2,
        config  => { requirepass => 'secret-sauce',
                     user => ['limiter on >limiter-pw ~ratelimit:* +@all',
                              'blind on >blind-pw ~ratelimit:* +@all -cluster'] },
    );
    my ($one, $two) = $cluster->masters;
    my $owners = $cluster->owners;

    my $first = sub {
        my ($node, $prefix) = @_;
        my $n = 0;
        $n++ while $owners->[RateLimit::Cluster::slot("$prefix$n")] != $node;
        return "$prefix$n";
    };

    my $check = sub {
        my ($name, $nginx) = @_;

        my @got;

        for my $node ($one, $two) {
            my $key = $first->($node, "p$keys" . $name =~ s/\W//gr);
            push @got, verdict($nginx->get("/t?k=$key"));
        }

        is "@got", '200 redis 99 200 redis 99', "$name: at all nodes";
        unlike $nginx->error_log, qr/secret-sauce|limiter-pw|blind-pw/,
               'and nothing secret in the log';

        $nginx->finish;
    };

    $check->('a directive', start(
        shards => 'cluster ' . $one->addr,
        conf   => 'ratelimit_redis_password secret-sauce;'));
    $check->('an URL', start(
        shards => 'cluster redis://:secret-sauce@' . $two->addr));
    $check->('a user', start(
        shards => 'cluster redis://limiter:limiter-pw@' . $one->addr));

    # it says what is missing, and limits go on, from here at least

    my $nginx = start(
        shards => 'cluster redis://blind:blind-pw@' . $one->addr);
    my %statuses;

    for my $n (1 .. 10) {
        $statuses{ $nginx->get("/local?k=$n")
                   ->{status} }++;
    }

    is_deeply \%statuses, { 200 => 10 }, 'blind: requests are answered';
    ok $nginx->wait_log(qr/\[error\] .*CLUSTER.*NOPERM|\[error\] .*NOPERM.*cluster/, 10),
       'the log names the command that is missing'
        or diag $nginx->error_log;
    cmp_ok $nginx->log_count(qr/NOPERM/), '<=', 20, 'not for each request';
    $nginx->finish;
};


# Redis 7 can leave the host out: it is the one that was asked.

subtest 'nodes that do not say where they are' => sub {
    my $cluster = eval {
        RateLimit::Cluster->start(masters => 2, config => {
            'cluster-preferred-endpoint-type' => 'unknown-endpoint' });
    };

    plan skip_all => 'this server has no unknown-endpoint' unless $cluster;

    my ($one, $two) = $cluster->masters;
    my $nginx = start(shards => 'cluster ' . $one->addr, workers => 1);
    my $port = $nginx->port;

    my $load = RateLimit::Load::run(
        port => $port, connections => 20, requests => 600, keep => 1,
        timeout => 60, path => sub { '/five?k=e' . $_[0] % 60 });

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 300, 429 => 300 }, 'exact';
    cmp_ok scalar(@{ $_->cmd('KEYS', '*') }), '>', 10, 'at both nodes'
        for $one, $two;

    # and in a redirect

    my $owners = $cluster->owners;
    my $n = 0;
    $n++ while $owners->[RateLimit::Cluster::slot("m$n")] != $one;

    is verdict($nginx->get("/t?k=m$n")), '200 redis 99', 'before';
    $cluster->move_slot(RateLimit::Cluster::slot("m$n"), $two);
    $cluster->wait_ok;
    like $one->try('GET', "m$n") . '', qr/^MOVED \d+ :\d+$/, 'MOVED :port';
    is verdict($nginx->get("/t?k=m$n")), '200 redis 98', 'after';

    $nginx->finish;
};


subtest 'a cluster at IPv6 addresses works' => sub {
    my $cluster = eval {
        RateLimit::Cluster->start(masters => 2, bind => '127.0.0.1 ::1',
            config => { 'cluster-announce-ip' => '::1' });
    };

    plan skip_all => 'no IPv6 here' unless $cluster;

    my ($one, $two) = $cluster->masters;
    my $nginx = start(shards => 'cluster ' . $one->addr, workers => 1);
    my $port = $nginx->port;

    my $load = RateLimit::Load::run(
        port => $port, connections => 20, requests => 600, keep => 1,
        timeout => 60, path => sub { '/five?k=e' . $_[0] % 60 });

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 300, 429 => 300 }, 'exact';

    my %shards = map { $_->{headers}{'x-shard'} => 1 }
                 grep { $_->{headers}{'x-source'} eq 'redis' } $load->responses;
    my @v6 = map { "[::1]:" . $_->port } $one, $two;

    ok exists $shards{$_}, "the node is $_" for @v6;

    my $owners = $cluster->owners;
    my $n = 0;
    $n++ while $owners->[RateLimit::Cluster::slot("m$n")] != $one;

    is verdict($nginx->get("/t?k=m$n")), '200 redis 99', 'before';
    $cluster->move_slot(RateLimit::Cluster::slot("m$n"), $two);
    $cluster->wait_ok;
    like $one->try('GET', "m$n") . '', qr/^MOVED \d+ ::1:\d+$/,
         'MOVED ::1:port';
    is verdict($nginx->get("/t?k=m$n")), '200 redis 98', 'after';

    $nginx->finish;
};


subtest 'after all of that no connection is left' => sub {
    cmp_ok max(map { $_->clients } @nodes), '<=', 2 * $WORKERS,
           'connections are what they were';

    ok $_->stop, 'nginx leaves by itself' for @nginx;
    $_->no_alerts for @nginx;

    ok wait_until(sub { !grep { $_->clients } @nodes }),
       'and takes its connections along';
};


done_testing;
