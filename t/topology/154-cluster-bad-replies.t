# Nodes of a cluster that say what no node should: redirects without end or
# sense, and maps of all kinds.  No request waits for longer than its time, no
# worker ends, and all is well when they come to their senses.
#
# May be run twice: deadlines of tens of milliseconds are at work.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max);
use Time::HiRes qw(time);

use RateLimit::Answer;
use RateLimit::Cluster;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Resp;
use RateLimit::Util qw(dead_port free_port patience slurp wait_until);

my $MAX = 2 ** 14 - 1;  # the last slot
my $HOPS = 5;           # at most, after the first try
my $PASSED = ":99000000\r\n";

# no breaker is in the way for long, nothing is remembered
my @EAGER = (breaker => 'failures=100 window=100ms probe=100ms',
             deny_cache => 'off');


# ---- what all parts use

# Fakes that are all there is of a cluster: the first one has all slots.

sub start_fakes {
    my ($n, %policy) = @_;

    my @ports = map { free_port() } 1 .. $n;

    return map {
        my $own = $_;

        RateLimit::FakeRedis->start(port => $own, policy =>
            cluster_policy(all_slots('127.0.0.1', $ports[0]),
                           eval => $policy{eval}->($own, @ports)));
    } @ports;
}


sub calls {
    my (@fakes) = @_;

    return map { $_->commands('EVALSHA'), $_->commands('EVAL') } @fakes;
}


# ---- redirects

subtest 'a good one, to see that this works at all' => sub {
    my ($one, $two) = start_fakes(2, eval => sub {
        my ($own, $first, $second) = @_;

        return $PASSED if $own == $second;

        return sub {
            my $slot = RateLimit::Cluster::slot($_[0][3]);
            return "-MOVED $slot 127.0.0.1:$second\r\n";
        };
    });
    my $nginx = start_nginx('cluster ' . $one->addr, @EAGER);

    is seen($nginx->get('/?k=a')), '200 redis', 'passed';
    is scalar(() = calls($one)), 1, 'the one that was asked';
    is scalar(() = calls($two)), 1, 'and the one that it named';

    $nginx->finish(same_workers => 1, printable => 1);
};


for my $way ('MOVED', 'ASK') {
    subtest "$way without end" => sub {
        my @loops = (
            ['to itself', 1, sub {
                my ($own) = @_;
                return sub { "-$way " . RateLimit::Cluster::slot($_[0][3])
                             . " 127.0.0.1:$own\r\n" };
            }],
            ['to and fro', 2, sub {
                my ($own, @ports) = @_;
                my ($other) = grep { $_ != $own } @ports;
                return sub { "-$way " . RateLimit::Cluster::slot($_[0][3])
                             . " 127.0.0.1:$other\r\n" };
            }],
            ['by an empty host', 1, sub {
                my ($own) = @_;
                return sub { "-$way " . RateLimit::Cluster::slot($_[0][3])
                             . " :$own\r\n" };
            }],
        );

        for my $loop (@loops) {
            my ($name, $n, $eval) = @$loop;
            my @fakes = start_fakes($n, eval => $eval);
            my $nginx = start_nginx('cluster ' . $fakes[0]->addr, @EAGER);

            # by the number of hops, not by the time of 20 s

            my $start = time;
            is seen($nginx->get('/?k=a')), '503 closed', "$name: no answer";
            cmp_ok time - $start, '<', patience(10), 'which is found out soon';

            my $calls = () = calls(@fakes);

            cmp_ok $calls, '>', 1, 'it was followed';
            cmp_ok $calls, '<=', 1 + $HOPS, 'but not for ever';
            cmp_ok $nginx->topology_events(lc $way), '>=', 1, 'metrics say so';

            $nginx->get("/?k=$_") for 1 .. 20;

            cmp_ok max(map { $_->connections->{peak} } @fakes), '<=', 1,
                   'by one connection to each';
            cmp_ok scalar(() = map { $_->commands('CLUSTER') } @fakes), '<=',
                   3 * @fakes + time - $start, 'and no storm of maps';

            $nginx->finish(same_workers => 1, printable => 1);
        }
    };
}


subtest 'ASK is followed with an ASKING before each call' => sub {
    my ($one, $two) = start_fakes(2, eval => sub {
        my ($own, $first, $second) = @_;

        return $PASSED if $own == $second;

        return sub {
            my $slot = RateLimit::Cluster::slot($_[0][3]);
            return "-ASK $slot 127.0.0.1:$second\r\n";
        };
    });
    my $nginx = start_nginx('cluster ' . $one->addr, @EAGER);

    for my $n (1 .. 5) {
        is seen($nginx->get("/?k=$n")), '200 redis', 'passed';
    }

    my @commands = map { uc $_->[0] } grep { uc $_->[0] =~ /^(?:ASKING|EVAL)/ }
                   $two->commands;

    is "@commands", join(' ', ('ASKING EVALSHA') x 5), 'one for each';
    is scalar(() = calls($one)), 5, 'the map has not changed';

    # a server without the script needs another one for its text

    # it may be asked for the map meanwhile

    $two->policy(cluster_policy(all_slots('127.0.0.1', $one->port),
                                evalsha => "-NOSCRIPT No matching script.\r\n",
                                eval    => $PASSED));
    $two->clear;
    is seen($nginx->get('/?k=x')), '200 redis', 'passed';

    @commands = map { uc $_->[0] } grep { uc $_->[0] =~ /^(?:ASKING|EVAL)/ }
                $two->commands;
    is "@commands", 'ASKING EVALSHA ASKING EVAL', 'the script, too';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'redirects without sense are no answer, and nothing else happens'
    => sub
{
    my ($fake) = start_fakes(1, eval => sub { $PASSED });
    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER);
    my $good = all_slots('127.0.0.1', $fake->port);
    my $slot = RateLimit::Cluster::slot('a');
    my $dead = dead_port();
    my @wrong;

    is seen($nginx->get('/?k=a')), '200 redis', 'before';

    for my $way ('MOVED', 'ASK') {
        for my $rest ('', ' ', ' x', " $slot", " $slot ", " $slot :",
                      " $slot 127.0.0.1", " $slot 127.0.0.1:",
                      " $slot 127.0.0.1:0", " $slot 127.0.0.1:70000",
                      " $slot 127.0.0.1:-1", " $slot 127.0.0.1:6379x",
                      " $slot 127.0.0.1:99999999999999999999",
                      " $slot 127.0.0.1:$dead", " -1 127.0.0.1:$dead",
                      " 16384 127.0.0.1:$dead", " x 127.0.0.1:$dead",
                      " 99999999999999999999 127.0.0.1:$dead",
                      " $slot [::1", " $slot ]:1", " $slot ::", " $slot \x01:1",
                      " $slot unix:/tmp/x", " $slot ?:$dead",
                      " $slot " . 'h' x 300 . ":$dead",
                      " $slot " . 'h' x 60_000 . ":1",
                      " $slot no.such.host.invalid:$dead",
                      " $slot 127.0.0.1:$dead more", "\t$slot\t127.0.0.1:1")
        {
            $fake->policy(cluster_policy($good, eval => "-$way$rest\r\n"));

            # some may be tried until their time is over

            my $got = seen($nginx->get('/short?k=a'));

            $fake->policy(cluster_policy($good, eval => $PASSED));

            push @wrong, substr "$way$rest: $got", 0, 80
                if $got ne '503 closed';

            # a map may have to come first, at most one a second

            works($nginx, 15, '/short?k=a')
                or push @wrong, substr "$way$rest: does not recover", 0, 80;
        }
    }

    is_deeply \@wrong, [], 'no answer, and one afterwards';
    cmp_ok $fake->connections->{peak}, '<=', 1, 'one connection';
    $nginx->finish(same_workers => 1, printable => 1);
};


# ---- maps

subtest 'maps of all kinds leave all well' => sub {
    my ($fake, $other) = start_fakes(2, eval => sub { $PASSED });
    my $port = $fake->port;
    my @me = ('127.0.0.1', $port);
    my $dead = dead_port();
    my $node = "*3\r\n" . bulk('127.0.0.1') . ":$port\r\n" . bulk('e' x 40);

    # 503: none of these can be used; 200: where there is a way; any: as it
    # likes

    my @maps = (
        ['an error', 'any', "-ERR what\r\n"],
        ['a text', 'any', "+OK\r\n"],
        ['a number', 'any', ":1\r\n"],
        ['nil', 'any', "*-1\r\n"],
        ['a string', 'any', bulk('0-16383')],
        ['no ranges', 'any', "*0\r\n"],
        ['a range that is none', 'any', "*1\r\n:1\r\n"],
        ['an empty range', 'any', "*1\r\n*0\r\n"],
        ['without a node', 'any', "*1\r\n*2\r\n:0\r\n:$MAX\r\n"],
        ['a node that is none', 'any', "*1\r\n*3\r\n:0\r\n:$MAX\r\n:1\r\n"],
        ['an empty node', 'any', "*1\r\n*3\r\n:0\r\n:$MAX\r\n*0\r\n"],
        ['a node without a port', 'any',
         "*1\r\n*3\r\n:0\r\n:$MAX\r\n*1\r\n" . bulk('127.0.0.1')],
        ['a port that is a text', 'any',
         "*1\r\n*3\r\n:0\r\n:$MAX\r\n*2\r\n" . bulk('127.0.0.1') . bulk($port)],
        ['slots that are texts', 'any',
         "*1\r\n*3\r\n" . bulk('0') . bulk($MAX) . $node],
        ['port 0', 'any', all_slots('127.0.0.1', 0)],
        ['port -1', 'any', all_slots('127.0.0.1', -1)],
        ['port 70000', 'any', all_slots('127.0.0.1', 70000)],
        ['slots below zero', 'any', slots_reply([-5, $MAX, @me])],
        ['slots that are too high', 'any', slots_reply([0, 99999, @me])],
        ['more than fits', 'any',
         slots_reply([0, '9223372036854775807', @me])],
        ['backwards', 'any', slots_reply([$MAX, 0, @me])],
        ['the whole, three times', 200, slots_reply(([0, $MAX, @me]) x 3)],
        ['ranges of one', 200, slots_reply(map { [$_, $_, @me] } 0 .. $MAX)],
        ['an empty host', 200, all_slots('', $port)],
        ['no host', 200, "*1\r\n*3\r\n:0\r\n:$MAX\r\n*3\r\n\$-1\r\n:$port\r\n"
                         . bulk('e' x 40)],
        ['more about nodes', 200,
         "*1\r\n*3\r\n:0\r\n:$MAX\r\n*4\r\n" . bulk('127.0.0.1')
         . ":$port\r\n" . bulk('e' x 40) . "*2\r\n" . bulk('hostname')
         . bulk('a.example')],
        ['many replicas', 200,
         all_slots(@me, map { ('127.0.0.1', $_) } 1 .. 50)],
        ['a dead node', 503, all_slots('127.0.0.1', $dead)],
        ['a host with odd bytes', 'any',
         all_slots("a\r\n\"\x01\xff b", $port)],
        ['a long host', 'any', all_slots('h' x 5000, $port)],
        ['a host that nobody knows', 'any',
         all_slots('no.such.host.invalid', $port)],
        ['too many nodes', 'any',
         slots_reply(map { [$_, $_, join('.', 127, 0, $_ >> 8, $_ & 255), $dead]
                         } 0 .. $MAX)],
        ['a giant', 'any', "*2147483647\r\n"],
        ['a giant string', 'any', "*1\r\n\$500000000\r\n"],
        ['deep', 'any', "*1\r\n" x 500 . ":1\r\n"],
        ['no reply', 'any', { }],
        ['a reply and the end', 'any',
         { reply => all_slots(@me), then => 'close' }],
        ['in pieces', 200,
         { reply => all_slots(@me), split => 'every' }],
    );

    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER);
    my ($worker) = $nginx->workers;
    my $good = cluster_policy(all_slots(@me), eval => $PASSED);
    my $memory = sub {
        slurp("/proc/$worker/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0
    };
    my @wrong;

    is seen($nginx->get('/?k=a')), '200 redis', 'before';

    my $before = $memory->();

    for my $case (@maps) {
        my ($name, $status, $reply) = @$case;
        note $name;

        $fake->policy(cluster_policy($reply, eval => $PASSED));
        $fake->drop;

        # a connection may be on its way, the map of the last one in use

        my $got;
        my $ok = wait_until(sub {
            $got = seen($nginx->get('/short?k=a'));
            return $status eq 'any' ? $got =~ /^(?:200 redis|503 closed)$/
                                    : $got =~ /^$status/;
        }, $status eq 'any' ? 0 : 15);

        push @wrong, "$name: $got" unless $ok;

        $fake->policy($good);
        $fake->drop;

        works($nginx, 15, '/short?k=a')
            or push @wrong, "$name: does not recover";
    }

    is_deeply \@wrong, [], 'each as it should be';

    # what the metrics have of it

    my $metrics = $nginx->get('/metrics')->{body};

    unlike $metrics, qr/[^\x20-\x7e\n]/, 'nothing raw in the metrics';
    cmp_ok length $metrics, '<', 5_000_000, 'nor too much';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

        cmp_ok $memory->() - $before, '<', 65536,
               'a worker has no more memory than it can use (kB)';
    }

    cmp_ok $fake->connections->{peak}, '<=', 1, 'one connection';
    is $other->connections->{accepted}, 0,
       'who is in no map gets no connection';

    $nginx->finish(same_workers => 1, printable => 1);
};


# Nodes whose slots are all taken by the range at the end of the map: nothing is
# searched for them, as nothing can be found.

subtest 'nodes without slots cost no more than nodes with some' => sub {
    my ($fake) = start_fakes(1, eval => sub { $PASSED });
    my @me = ('127.0.0.1', $fake->port);
    my $dead = dead_port();
    my @nodes = map { [$_, $_, join('.', 127, 1, $_ >> 8, $_ & 255), $dead] }
                    0 .. 999;

    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER);
    my ($worker) = $nginx->workers;

    # until a map with them was read, by the worker's clock ticks

    my $cost = sub {
        my ($reply) = @_;

        my $maps = $nginx->topology_events('map_refresh');
        my $ticks = sub {
            my @stat = split ' ', slurp("/proc/$worker/stat") =~ s/.*\)//sr;
            return $stat[11] + $stat[12];
        };
        my $before = $ticks->();

        $fake->policy(cluster_policy($reply, eval => $PASSED));
        $fake->drop;

        wait_until(sub { $nginx->topology_events('map_refresh') > $maps }, 30)
            or diag 'no map was read';

        return $ticks->() - $before;
    };

    is seen($nginx->get('/?k=a')), '200 redis', 'before';

    my $with = $cost->(slots_reply([0, $MAX, @me], @nodes));
    my $without = $cost->(slots_reply(@nodes, [0, $MAX, @me]));

    cmp_ok $without, '<', 10 * $with + 100,
           "a map of 1000 nodes: $with ticks, without slots $without";
    ok works($nginx, 15, '/?k=a'),
       'and it is used';

    $nginx->finish(same_workers => 1, printable => 1);
};


# A call has a few numbers for an answer: what is larger is none.

subtest 'only a map may be large' => sub {
    my ($fake) = start_fakes(1, eval => sub { $PASSED });
    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER);
    my $good = cluster_policy(
        slots_reply(map { [$_, $_, '127.0.0.1', $fake->port] } 0 .. $MAX));

    $fake->policy({ %$good, eval => $PASSED });
    $fake->drop;
    ok wait_until(sub { $nginx->topology_events('map_refresh') >= 2 }, 15),
       'a map of a megabyte';
    ok works($nginx, 15, '/?k=a'),
       'passed';

    $fake->policy({ %$good, eval => "*100000\r\n" . ":1\r\n" x 100_000 });
    is seen($nginx->get('/short?k=a')), '503 closed', 'a call: no answer';
    ok $nginx->wait_log(qr/invalid or too large reply from redis/,
                        15), 'and the log says why';

    $fake->policy({ %$good, eval => $PASSED });
    ok works($nginx, 15, '/?k=a'),
       'all is well when it is over';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'a map with nodes that nobody needs: no connections to them' => sub {
    my @fakes = start_fakes(4, eval => sub { $PASSED });
    my $slot = RateLimit::Cluster::slot('a');

    # all of the slots but one are of others

    my $map = slots_reply(
        ($slot > 0 ? [0, $slot - 1, '127.0.0.1', $fakes[1]->port] : ()),
        [$slot, $slot, map { ('127.0.0.1', $_->port) } @fakes[2, 3]],
        ($slot < $MAX ? [$slot + 1, $MAX, '127.0.0.1', $fakes[1]->port]
                      : ()));

    $_->policy(cluster_policy($map, eval => $PASSED)) for @fakes;

    my $nginx = start_nginx('cluster ' . $fakes[0]->addr, @EAGER);

    ok wait_until(sub { seen($nginx->get('/?k=a')) eq '200 redis'
                        && calls($fakes[2]) }), 'the node of the slot is used';
    is scalar(() = calls($fakes[1])), 0, 'another one is not';
    is $fakes[3]->connections->{accepted}, 0, 'nor is a replica';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'CLUSTERDOWN and TRYAGAIN for ever are no storm and no answer' => sub {
    my ($fake) = start_fakes(1, eval => sub { $PASSED });
    my $nginx = start_nginx('cluster ' . $fake->addr, @EAGER);
    my $good = cluster_policy(all_slots('127.0.0.1', $fake->port),
                              eval => $PASSED);

    is seen($nginx->get('/?k=a')), '200 redis', 'before';

    for my $error ('CLUSTERDOWN The cluster is down',
                   'CLUSTERDOWN Hash slot not served', 'CLUSTERDOWN',
                   'TRYAGAIN Multiple keys request during rehashing of slot')
    {
        $fake->clear;
        $fake->policy({ %$good, eval => "-$error\r\n" });

        is seen($nginx->get('/short?k=a')), '503 closed', $error;

        my $calls = () = calls($fake);

        cmp_ok $calls, '>=', 1, "tried $calls times";
        cmp_ok $calls, '<=', 100, 'which is not too often';

        $fake->policy($good);
        ok works($nginx, 15, '/short?k=a'), 'all is well when it is over';
    }

    $nginx->finish(same_workers => 1, printable => 1);
};


done_testing;
