# Clusters and sentinels that announce host names: nginx's resolver says where
# they are, again and again.  Names are input: any bytes, any number.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Redis;
use RateLimit::Resp;
use RateLimit::Sentinel;
use RateLimit::Util qw(dead_port slurp wait_until);

my $MAX = 2 ** 14 - 1;
my $PASSED = ":99000000\r\n";

# no breaker is in the way for long, nothing is remembered
my @EAGER = (breaker => 'failures=100 window=100ms probe=100ms',
             deny_cache => 'off', timeout => '5s', capacity => 5);

my $dns = RateLimit::Dns->start;
my $RESOLVER = 'resolver ' . $dns->addr . ' valid=1s ipv6=off;'
               . 'resolver_timeout 2s;';


sub nodes {
    my ($nginx) = @_;

    return { $nginx->get('/metrics')->{body} =~
                 /^nginx_ratelimit_shard_node\{shard="([^"]+)",node="([^"]+)"/mg
           };
}


# ---- clusters

subtest 'a real cluster that announces names is followed by its names' => sub {
    my $cluster = eval {
        RateLimit::Cluster->start(masters => 2, bind => '127.0.0.1 127.0.0.2',
            config => { 'cluster-preferred-endpoint-type' => 'hostname',
                        'cluster-announce-hostname' => 'any.test',
                        'cluster-announce-ip' => '127.0.0.1' });
    };

    plan skip_all => 'this server has no host names' unless $cluster;

    my ($one, $two) = $cluster->masters;

    # addresses are what the nodes tell each other, names are elsewhere

    $one->cmd('CONFIG', 'SET', 'cluster-announce-hostname', 'one.test');
    $two->cmd('CONFIG', 'SET', 'cluster-announce-hostname', 'two.test');
    $dns->name($_, a => ['127.0.0.2']) for 'one.test', 'two.test';

    ok wait_until(sub {
        my $n = 0;

        for my $node ($one, $two) {
            my %names = map { $_->[2][0] => 1 } @{ $node->cmd('CLUSTER',
                                                              'SLOTS') };
            $n += $names{'one.test'} && $names{'two.test'} ? 1 : 0;
        }

        return $n == 2;
    }, 30), 'both know both names';

    my $nginx = start_nginx('cluster ' . $one->addr, @EAGER,
                           conf => $RESOLVER);

    # one of them is the seed, which is where the configuration says

    ok wait_until(sub {
        seen($nginx->get("/?k=warm$_")) for 1 .. 10;
        return (nodes($nginx)->{'two.test:' . $two->port} // '')
               eq '127.0.0.2:' . $two->port;
    }, 30), 'a node has its name, and is where DNS says';

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 20, requests => 600, keep => 1,
        timeout => 60, path => sub { '/?k=e' . $_[0] % 60 });

    is $load->error_text, '', 'no errors';
    is_deeply $load->statuses, { 200 => 300, 429 => 300 }, 'exact';

    # redirects have the names as well

    my $owners = $cluster->owners;
    my $n = 0;
    $n++ while $owners->[RateLimit::Cluster::slot("m$n")] != $one;

    is seen($nginx->get("/?k=m$n")), '200 redis', 'before';
    $cluster->move_slot(RateLimit::Cluster::slot("m$n"), $two);
    like $one->try('GET', "m$n") . '', qr/^MOVED \d+ two\.test:/, 'MOVED';
    is seen($nginx->get("/?k=m$n")), '200 redis', 'is followed';
    $nginx->finish(printable => 1);

    # as before, addresses that come with names will do

    $nginx = start_nginx('cluster ' . $one->addr, @EAGER);
    ok works($nginx, 15, '/?k=other'),
       'without a resolver: by the addresses that come along';
    $nginx->finish(printable => 1);
};


subtest 'a name without an address needs a resolver' => sub {
    my @fakes = map { RateLimit::FakeRedis->start(
                          bind => ['127.0.0.1', '127.0.0.2']) } 1 .. 2;
    my ($seed, $node) = @fakes;
    my $slot = RateLimit::Cluster::slot('a');
    my $own = all_slots('127.0.0.1', $seed->port);
    my $map = all_slots('node.test', $node->port);
    my %ways = (
        'in a map' => cluster_policy($map),
        map { ("by $_" => cluster_policy($own,
                   eval => "-$_ $slot Node.TEST:" . $node->port . "\r\n"))
            } 'MOVED', 'ASK');

    for my $way (sort keys %ways) {
        $seed->policy($ways{$way});
        $node->policy(cluster_policy($way =~ /map/ ? $map : $own,
                                     eval => $PASSED));
        $dns->name('node.test', a => ['127.0.0.1']);

        my $nginx = start_nginx('cluster ' . $seed->addr, @EAGER);

        ok $nginx->wait_log(qr/announces cluster node "(?i:node\.test)" by name, /,
                            1) || (seen($nginx->get('/short?k=a')) && $nginx->wait_log(
               qr/without an address: set "resolver" in nginx, or make the cluster/,
               15)), "$way, and no resolver: the log says what to do";
        is seen($nginx->get('/short?k=a')), '503 closed', 'and it is not used';
        $nginx->finish(printable => 1);

        $nginx = start_nginx('cluster ' . $seed->addr, @EAGER,
                           conf => $RESOLVER);
        ok works($nginx, 15, '/short?k=a'),
           "$way, with a resolver: is followed";

        if ($way =~ /map/) {
            $dns->name('node.test', a => ['127.0.0.2']);
            ok wait_until(sub {
                seen($nginx->get('/short?k=a'));
                (nodes($nginx)->{'node.test:' . $node->port} // '')
                    eq '127.0.0.2:' . $node->port
            }, 15), 'and when it moves';
            is seen($nginx->get('/short?k=a')), '200 redis', 'passed';
        }

        $nginx->finish(printable => 1);
    }
};


subtest 'names of all kinds, and many of them, leave all well' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => $PASSED });
    my $port = $fake->port;
    my $dead = dead_port();
    my $good = all_slots('127.0.0.1', $port);
    my @maps = (
        (map { [$_, all_slots($_, $port)] }
             'no.such.test', 'a..b', '.', '.a', '-', 'a/b', 'unix:/tmp/x', '%s',
             'a' x 64, join('.', ('a' x 60) x 4), 'x' x 255, '1.2.3', '::zz',
             '_a.test'),
        ['thousands', slots_reply(map { [$_, $_, "n$_.many.test", $dead] }
                                 0 .. $MAX)],
        ['others', slots_reply(map { [$_, $_, "m$_.many.test", $dead] }
                              0 .. $MAX)],
    );

    $fake->policy(cluster_policy($good, eval => $PASSED));

    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER,
                           conf => $RESOLVER);
    my ($worker) = $nginx->workers;
    my $memory = sub {
        slurp("/proc/$worker/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0
    };
    my @wrong;

    ok works($nginx, 15, '/short?k=a'), 'before';

    my $before = $memory->();

    for my $case (@maps) {
        my ($name, $map) = @$case;

        $fake->policy(cluster_policy($map, eval => $PASSED));
        $fake->drop;
        seen($nginx->get('/short?k=a')) for 1 .. 3;

        $fake->policy(cluster_policy($good, eval => $PASSED));
        $fake->drop;

        works($nginx, 20, '/short?k=a')
            or push @wrong, $name;
    }

    is_deeply \@wrong, [], 'all is well after each of them';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

        cmp_ok $memory->() - $before, '<', 65536,
               'a worker has no more memory than it can use (kB)';
    }

    $nginx->finish(same_workers => 1, printable => 1);
};


# ---- sentinels

subtest 'real sentinels that announce names are followed by their names'
    => sub
{
    my @servers = map {
        RateLimit::Sentinel::Server->start(config => {
            'replica-announce-ip' => 'localhost',
            'repl-diskless-sync-delay' => 0 })
    } 1 .. 2;
    my ($one, $two) = @servers;

    $two->replicate($one);

    my $sentinel = RateLimit::Sentinel::Node->new(unix => 0, config => {});

    $sentinel->{lines} = [
        'sentinel resolve-hostnames yes', 'sentinel announce-hostnames yes',
        'sentinel monitor mymaster localhost ' . $one->port . ' 1',
        'sentinel down-after-milliseconds mymaster 60000',
        'sentinel failover-timeout mymaster 3000',
    ];

    eval { $sentinel->start } or plan skip_all => 'no host names here';

    my $says = sub {
        join ':', @{ $sentinel->cmd('SENTINEL', 'GET-MASTER-ADDR-BY-NAME',
                                    'mymaster') || [] }
    };

    ok wait_until(sub {
        my %info = @{ $sentinel->cmd('SENTINEL', 'MASTER', 'mymaster') };
        return $info{'num-slaves'} == 1;
    }, 60), 'the sentinel knows the replica';
    is $says->(), 'localhost:' . $one->port, 'and the master by its name';

    $dns->name('localhost', a => ['127.0.0.1']);

    my $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr, @EAGER);

    ok $nginx->wait_log(qr/at "localhost", which is not an address: set "resolver" /
                        . '', 15)
       || $nginx->wait_log(qr/set "resolver" in nginx/, 1),
       'no resolver: the log says what to do';
    is seen($nginx->get('/short?k=a')), '503 closed', 'and it is not used';
    $nginx->finish(printable => 1);

    $nginx = start_nginx('sentinel=mymaster ' . $sentinel->addr, @EAGER,
                           conf => $RESOLVER);

    ok works($nginx, 15, '/short?k=s'),
       'with one: it is followed';
    ok $nginx->log_like(qr/the master is localhost:\d+, reported by sentinel/),
       'the log has its name';

    # the same name, another port

    wait_until(sub { ($sentinel->try('SENTINEL', 'FAILOVER', 'mymaster') // '')
                     eq 'OK' }, 60);
    ok wait_until(sub { $says->() eq 'localhost:' . $two->port }, 60),
       'a failover';
    ok $nginx->wait_log(qr/the master is now localhost:@{[$two->port]} /
                        . qr/\(was localhost:@{[$one->port]}\)/, 15),
       'which is heard of';

    my $calls = $two->calls('evalsha');
    ok wait_until(sub { seen($nginx->get('/short?k=t' . rand)) eq '200 redis'
                        && $two->calls('evalsha') > $calls }, 15),
       'the new one is used';

    # new workers begin with what was known last

    ok $nginx->reload, 'a reload';
    ok wait_until(sub { seen($nginx->get('/short?k=u' . rand)) eq '200 redis' }, 15),
       'and it is still used';

    $nginx->finish(printable => 1);
};


subtest 'a master whose name moves is followed' => sub {
    my @servers = map { RateLimit::FakeRedis->start(
        bind => ['127.0.0.1', '127.0.0.2'], policy => {
            eval => $PASSED, handshake => {
                ROLE => "*3\r\n" . bulk('master') . ":0\r\n*0\r\n" } }) } 1 .. 2;
    my ($one, $two) = @servers;
    my $sentinel = RateLimit::FakeRedis->start(
        policy => sentinel_policy(array('Master.Test', $one->port)));

    $dns->name('master.test', a => ['127.0.0.1']);

    my $nginx = start_nginx('sentinel=m ' . $sentinel->addr, @EAGER,
                           conf => $RESOLVER);

    ok works($nginx, 15, '/short?k=a'), 'before';
    $dns->name('master.test', a => ['127.0.0.2']);
    ok $nginx->wait_log(qr/ratelimit shard m: addresses are now 127\.0\.0\.2$/m,
                        15), 'DNS says that it is elsewhere';
    ok works($nginx, 15, '/short?k=a'), 'after';

    # a switch to another name: nothing more goes to the old one

    $dns->name('next.test', a => ['127.0.0.1'], delay => 300);
    $one->clear;
    $sentinel->push(switch_event('m', 'master.test', $one->port,
                                 'next.test', $two->port));
    ok $nginx->wait_log(qr/the master is now next\.test:\d+ \(was master/,
                        15), 'a switch';
    my $calls = () = $one->commands('EVALSHA');
    is seen($nginx->get('/?k=b')), '200 redis', 'a request waits for the name';
    is scalar(() = $one->commands('EVALSHA')), $calls,
       'and does not go to the old one';
    cmp_ok scalar(() = $two->commands('EVALSHA')), '>', 0, 'but to the new one';

    # names without sense leave all as it is

    for my $name ('a b', 'a..b', "x\x01y", 'y' x 300, '') {
        $sentinel->push(switch_event("m next.test 1 $name " . $two->port));
    }

    is seen($nginx->get('/?k=c')), '200 redis', 'others are not followed';
    $nginx->finish(printable => 1);
};


done_testing;
