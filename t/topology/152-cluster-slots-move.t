# A cluster whose slots move all the time while limits are enforced: no client
# sees it, and each bucket gives exactly what it has.
#
# A thousand keys, each with a bucket in four places: a token bucket, one kept
# as gcra, a window, and two limits in one call.  All of a key are in one slot,
# so that a slot that moves has keys at both ends for a while.  Nothing is ever
# refilled; timeouts are long and errors close: a request that Redis did not
# answer would be a 503.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(max min uniq);
use Time::HiRes qw(sleep time);

use RateLimit::Cluster;
use RateLimit::Fault;
use RateLimit::Nginx;
use RateLimit::Util qw(wait_until);

my $KEYS = 1000;
my $CAPACITY = 2;
my $WORKERS = 2;
my @PLACES = ('/bucket', '/gcra', '/window', '/two');

my $cluster = RateLimit::Cluster->start(replicas => 3);
my @nodes = $cluster->masters;
my $seed = $nodes[0]->addr;

my $nginx = RateLimit::Nginx->start(workers => $WORKERS, log => 'notice',
                                    conf => <<"EOC");
    ratelimit_shards cluster $seed;
    ratelimit_redis_timeout 30s;
    ratelimit_redis_connect_timeout 30s;
    ratelimit_on_error closed;
    ratelimit_log_level info;
    ratelimit_deny_cache off;
    ratelimit_key \$arg_k;
    ratelimit_capacity $CAPACITY;
    keepalive_requests 1000000;

    ratelimit_limit one key=\$arg_k capacity=$CAPACITY rate=0r/s;
    ratelimit_limit two key=\$arg_k capacity=1000 rate=1r/h algorithm=gcra;

    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name localhost;
        access_log off;

        add_header X-Key    \$arg_k always;
        add_header X-Source \$ratelimit_source always;
        add_header X-Shard  \$ratelimit_shard always;
        add_header X-Waited \$request_time always;
        add_header X-Pid    \$pid always;

        location = /metrics { ratelimit off; ratelimit_metrics; }

        location /bucket { ratelimit_rate 0r/s; empty_gif; }
        location /gcra { ratelimit_rate 1r/d; ratelimit_algorithm gcra;
                         empty_gif; }
        location /window { ratelimit_algorithm sliding_window_log;
                           ratelimit_window 1h; empty_gif; }
        location /two { ratelimit one two; empty_gif; }
    }
EOC

# the load and the looks of RateLimit::Fault, with an nginx of our own
my $fault = bless { nginx => $nginx, redis => [@nodes] }, 'RateLimit::Fault';


# ---- what all parts use

# Places and keys in an order that has neighbours far apart; each part has keys
# of its own by their names.

sub path_of {
    my ($n, $round) = @_;

    my $i = $n * 1237 % (@PLACES * $KEYS);

    return $PLACES[$i % @PLACES] . "?k=key" . int($i / @PLACES) . $round;
}


sub slots_of {
    my ($round) = @_;

    return uniq map { RateLimit::Cluster::slot("key$_$round") } 0 .. $KEYS - 1;
}


# Moves one key of a slot, if it has any.

sub move_one {
    my ($node, $slot) = @_;

    my ($key) = @{ $node->cmd('CLUSTER', 'GETKEYSINSLOT', $slot, 1) };

    $cluster->move_keys($slot, $key) if defined $key;
}


# Each bucket has given what it had.

sub check_load {
    my ($load, $round) = @_;

    my (%asked, %passed);

    for my $r ($load->requests) {
        my $path = path_of($r->{n}, $round);

        $asked{$path}++;
        $passed{$path} += $r->{status} == 200;
    }

    my $result = $load->result;

    is_deeply $result->{errors}, {}, 'no client saw an error';
    is_deeply [grep { !/^(?:200|429)$/ } sort keys %{ $result->{statuses} }],
              [], 'each request passed or was rejected';
    is $load->count(sub { $_->{source} ne 'redis' }), 0, 'by Redis';

    my @wrong = grep { $passed{$_} != min $asked{$_}, $CAPACITY } keys %asked;

    is "@wrong[0 .. min 5, $#wrong]", '', 'exactly as often as it may'
        or diag explain { map { $_ => "$passed{$_} of $asked{$_}" }
                          @wrong[0 .. min 20, $#wrong] };

    my $empty = grep { $_ > $CAPACITY } values %asked;

    cmp_ok $empty, '>', 0.9 * @PLACES * $KEYS, 'most buckets were asked for '
                                               . 'more than they have';

    note sprintf '%d requests in %.1f s, the slowest took %.0f ms',
                 scalar($load->requests), $result->{elapsed},
                 $result->{max_latency} * 1000;
}


# Keeps asking until the code is done and each bucket has been asked often
# enough.

sub during {
    my ($round, $code, %opt) = @_;

    return $fault->during(sub {
        # two limits count twice

        my $limits = @PLACES + 1;
        my $start = $fault->metric('requests_total');

        $code->();

        wait_until(sub {
            $fault->metric('requests_total') - $start
                >= ($CAPACITY + 1) * $limits * $KEYS * 1.1
        }, 60);
    }, connections => 12, pause => 8,
       path => sub { path_of($_[0], $round) }, %opt);
}


# ---- tests

subtest 'a thousand keys move, and move back' => sub {
    my @slots = slots_of('');
    my $moves = 0;
    my $start;

    my $load = during('', sub {
        $start = time;

        my $owners = $cluster->owners;

        for my $i (0 .. 2) {
            my ($home, $away) = @nodes[$i, ($i + 1) % 3];
            my @here = grep { $owners->[$_] == $home } @slots;

            for my $way ([$home, $away], [$away, $home]) {
                my ($from, $to) = @$way;

                # a few slots at a time, which are on their way for a moment:
                # first without keys, then with one at either end

                for (my $n = 0; $n < @here; $n += 20) {
                    my @some = @here[$n .. min $n + 19, $#here];

                    $cluster->begin_move($_, $to, $from) for @some;
                    sleep 0.01;
                    move_one($from, $_) for @some;
                    sleep 0.01;
                    $cluster->move_keys($_) for @some;
                    $cluster->end_move($_) for @some;

                    $moves += @some;
                }

                $cluster->wait_ok or die "the cluster is not well\n";
            }
        }

        note sprintf '%d moves in %.1f s', $moves, time - $start;
    });

    is $moves, 2 * @slots, 'all slots, twice';
    check_load($load, '');

    cmp_ok $load->metric('topology_events_total', event => $_), '>', 0,
           "$_: there were such" for qw(moved ask tryagain);
    note join ', ', map { sprintf '%s %d', $_,
                          $load->metric('topology_events_total', event => $_) }
                    qw(moved ask tryagain clusterdown map_refresh);

    my $seconds = $load->result->{elapsed};

    cmp_ok $load->metric('topology_events_total', event => 'map_refresh'),
           '<=', $WORKERS * ($seconds + 2 + @nodes), 'and no storm of maps';
    cmp_ok max(map { $_->clients } $cluster->nodes), '<=', $WORKERS,
           'connections stay';
    ok $cluster->wait_ok, 'the cluster is well';
};


subtest 'a node comes and takes slots, and goes' => sub {
    my $owners = $cluster->owners;
    my @some = (grep { $owners->[$_] == $nodes[0] } slots_of('x'))[0 .. 199];
    my ($new, $addr, $there, $clients, $free, @left);

    my $load = during('x', sub {
        $new = $cluster->add_node;
        $addr = $new->addr;

        $cluster->move_slot($_, $new, $nodes[0]) for @some;
        $cluster->wait_ok or die "the cluster is not well\n";

        $there = $new->calls('evalsha');
        $clients = $new->clients;

        $cluster->move_slot($_, $nodes[0], $new) for @some;

        # who has no slots has no connections, as soon as that is known

        $free = wait_until(sub { $new->clients == 0 }, 20);
        $cluster->remove_node($new);
    });

    check_load($load, 'x');

    cmp_ok $there, '>', 0, 'the new node was used';
    cmp_ok $clients, '>', 0, 'it had connections';
    cmp_ok $clients, '<=', $WORKERS, 'one per worker';
    cmp_ok $load->count(sub { $_->{shard} eq $addr }), '>', 0,
           'and $ratelimit_shard says so';

    ok $free, 'its connections are closed when it has no slots any more';

    # a map that is asked for knows

    ok wait_until(sub {
        @left = grep { $_->{value} && $_->{node} eq $addr }
                @{ $fault->metrics->{nginx_ratelimit_shard_node} };
        $nginx->get('/bucket?k=' . rand);
        !@left
    }, 20), 'and is forgotten';

    ok $cluster->wait_ok, 'the cluster is well';

    my $more = $fault->during(sub { sleep 0.5 },
                              path => sub { path_of($_[0], 'y') });

    is $more->count(sub { $_->{source} ne 'redis' }), 0,
       'nothing of it is missed';
};


subtest 'nothing is left when slots have moved all the time' => sub {
    is $fault->metric('redis_calls_in_flight'), 0, 'no call';
    cmp_ok max(map { $_->clients } @nodes), '<=', $WORKERS, 'connections';
    $nginx->finish;
    cmp_ok $nginx->log_count(qr/./), '<', 200, 'not many lines in the log'
        or diag substr $nginx->error_log, 0, 3000;
};


done_testing;
