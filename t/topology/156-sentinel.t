# Masters that sentinels know: they are found, by name, whichever sentinel is
# there to tell, and when none is they are where they were.
#
# Timeouts are long and errors close where nothing goes wrong, so that a slow
# machine can't turn a request that Redis did not answer into one that passed.
#
# May be run twice: sentinels take seconds to agree.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes qw(sleep time);

use RateLimit::Answer;
use RateLimit::FakeRedis;
use RateLimit::Fault;
use RateLimit::Limiter;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Resp;
use RateLimit::Sentinel;
use RateLimit::Util qw(wait_until write_file);

my $WORKERS = 2;

my $all = RateLimit::Sentinel->start;


my $SERVER = <<'EOC';
        ratelimit_key $arg_k;

        location /t { ratelimit_capacity 100; ratelimit_rate 0r/s; empty_gif; }
        location /five { ratelimit_capacity 5; ratelimit_rate 0r/s; empty_gif; }
        location /lease { ratelimit_capacity 1000; ratelimit_rate 0r/s;
                          ratelimit_lease 50 ttl=300ms; empty_gif; }
        location /local { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          ratelimit_redis_timeout 300ms;
                          ratelimit_on_error local; empty_gif; }
EOC

my @OPTIONS = (workers => $WORKERS, reuseport => 1, server => $SERVER);


# ---- what all parts use

# { "role shard" => node }

sub nodes_of {
    my ($nginx) = @_;

    return { map { ("$_->{role} $_->{shard}" => $_->{node}) }
             grep { $_->{value} }
             @{ $nginx->metrics->{nginx_ratelimit_shard_node} } };
}


# Connections of ours to sentinels, over all of them.

sub listeners {
    my ($all) = @_;

    return sum0 map {
        scalar grep { /\bname=nginx-ratelimit/ }
                    split /\n/, $_->cmd('CLIENT', 'LIST')
    } $all->sentinels;
}

# ---- tests

subtest 'the master is found' => sub {
    my $master = $all->master;
    my ($replica) = $all->replicas;
    my $nginx = start_nginx('sentinel=mymaster ' . $all->addrs, @OPTIONS);

    # from the first request on

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 50, requests => 200, keep => 1,
        timeout => 60, path => '/t?k=a');

    is_deeply $load->statuses, { 200 => 100, 429 => 100 }, 'exact at once';
    is $load->error_text, '', 'no errors';

    my ($r) = grep { $_->{headers}{'x-source'} eq 'redis' } $load->responses;

    is $r->{headers}{'x-shard'}, 'mymaster', '$ratelimit_shard is the name';
    is $master->tokens('ratelimit:localhost/t:{a}') + 0, 0,
       'the bucket is at the master';
    is $replica->calls('evalsha'), 0, 'the replica was not asked';

    my ($addr, @sentinels) = ($master->addr, map { $_->addr } $all->sentinels);
    my $any = join '|', map { quotemeta } @sentinels;

    like $nginx->error_log,
         qr/\[notice\] .*ratelimit shard mymaster: the master is \Q$addr\E, reported by sentinel (?:$any)/,
         'the log says who is it';
    is $nginx->log_count(qr/the master is/), 1, 'once';

    my $nodes = nodes_of($nginx);

    is $nodes->{'master mymaster'}, $addr, 'so do the metrics';
    like $nodes->{'sentinel sentinel=mymaster'}, qr/^(?:$any)$/,
         'and where from';

    # one connection per worker, of each kind

    ok wait_until(sub { listeners($all) == $WORKERS }),
       'workers listen to one sentinel each';
    cmp_ok $master->clients, '<=', $WORKERS, 'and ask one master';
    is $replica->clients, 0, 'no replica';

    # nothing is asked over and over

    my $asked = sub {
        sum0 map { $_->cmd('INFO', 'commandstats')
                   =~ /cmdstat_sentinel\S*get-master-addr-by-name:calls=(\d+)/
                   ? $1 : 0 } $all->sentinels
    };
    my $before = $asked->();

    $nginx->get("/t?k=$_") for 1 .. 100;
    is $asked->(), $before, 'sentinels are asked once';

    $nginx->finish;
    ok wait_until(sub { listeners($all) == 0 && $master->clients == 0 }),
       'nothing is left';
};


subtest 'sentinels that are dead, silent or no sentinels' => sub {
    my $master = $all->master;
    my ($addr) = split / /, $all->addrs;
    my $dead = RateLimit::Redis->new;
    my $silent = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => {} } });
    my $plain = RateLimit::Redis->start;

    for my $case (['a dead one first', $dead->addr],
                  ['a silent one first', $silent->addr],
                  ['a plain Redis first', $plain->addr],
                  ['all of them', join ' ', map { $_->addr } $dead, $silent,
                                                             $plain],
                  ['a name', 'localhost:' . ($all->sentinels)[1]->port])
    {
        my ($name, $others) = @$case;

        # the short one ends the wait for the silent one

        my $nginx = start_nginx("sentinel=mymaster $others $addr",
                                connect => '1s', @OPTIONS);
        my $r;

        ok wait_until(sub {
            $r = $nginx->get('/t?k=' . $name =~ s/ /_/gr);
            $r->{status} == 200
        }, 20), "$name: the master is found";
        is $r->{headers}{'x-source'}, 'redis', 'and asked';

        # the silent one is given up: all workers come to the right one

        my %workers;

        ok wait_until(sub {
            my $r = $nginx->get('/t?k=' . rand);
            $workers{ $r->{headers}{'x-worker'} } = 1 if $r->{status} == 200;
            keys %workers == $WORKERS
        }, 20), 'by all workers';

        $nginx->finish;
    }

    is_deeply $plain->cmd('KEYS', '*'), [], 'nothing is written to others';
};


subtest 'several names: each is a shard' => sub {
    my $pair = RateLimit::Sentinel->start(names => ['one', 'two'],
                                          replicas => 0, sentinels => 1);
    my @nginx = map { start_nginx("sentinel=$_ " . $pair->addrs, @OPTIONS) }
                'one,two', 'two,one';
    my (%shards, %wrong);

    for my $n (1 .. 60) {
        my ($first, $second) = map { $_->get("/t?k=$n") } @nginx;
        my $shard = $first->{headers}{'x-shard'};

        $shards{$shard}++;

        $wrong{$n} = verdict($first) . ', ' . verdict($second)
            if verdict($first) ne '200 redis 99'
               || verdict($second) ne '200 redis 98'
               || $second->{headers}{'x-shard'} ne $shard
               || !$pair->master($shard)
                        ->cmd('EXISTS', "ratelimit:localhost/t:{$n}");
    }

    is_deeply \%wrong, {}, 'each key has one bucket for both, on its shard';
    is_deeply [sort keys %shards], ['one', 'two'], 'both have some';

    my $nodes = nodes_of($nginx[0]);

    is $nodes->{"master $_"}, $pair->master_addr($_), "$_ is found"
        for 'one', 'two';
    ok exists $nodes->{'sentinel sentinel=one,two'}, 'by one connection';
    is listeners($pair), 2 * $WORKERS, 'per worker';

    # one of them is not known

    my $half = start_nginx('sentinel=one,three ' . $pair->addrs, @OPTIONS);

    $half->get("/local?k=$_") for 1 .. 20;

    my ($addr) = $pair->addrs;

    ok $half->wait_log(qr/\[error\] .*sentinel \Q$addr\E does not know master "three": check the name in "ratelimit_shards sentinel=\.\.\."/, 10),
       'an unknown name is told';
    cmp_ok $half->log_count(qr/does not know master/), '<=', 2 * $WORKERS,
           'not for each request';
    unlike $half->error_log, qr/no master "one"/, 'only that';

    $_->finish for @nginx, $half;
};


subtest 'a name that no sentinel knows: limits go on here' => sub {
    my $nginx = start_nginx('sentinel=nosuch ' . $all->addrs, @OPTIONS);
    my %statuses;

    $statuses{ $nginx->get("/local?k=$_")->{status} }++ for 1 .. 20;

    is_deeply \%statuses, { 200 => 20 }, 'limits go on here';
    ok $nginx->wait_log(qr/\[error\] .*does not know master "nosuch"/, 10),
       'the log says why';

    sleep 1;
    cmp_ok $nginx->log_count(qr/./), '<', 60, 'in not many words';
    $nginx->finish;
};


subtest "a database is a part of the shard's name" => sub {
    my $master = $all->master;
    my $nginx = start_nginx('sentinel=mymaster ' . $all->addrs,
                            conf => 'ratelimit_redis_database 3;', @OPTIONS);
    my $r = $nginx->get('/t?k=db');

    is verdict($r), '200 redis 99', 'passed';
    is $r->{headers}{'x-shard'}, 'mymaster/3', 'it is part of the name';

    $master->cmd('SELECT', 3);
    is $master->cmd('EXISTS', 'ratelimit:localhost/t:{db}'), 1, 'the bucket';
    $master->cmd('SELECT', 0);
    $nginx->finish;
};


subtest 'credentials go to sentinels and masters, and not into the log' => sub {
    my $locked = RateLimit::Sentinel->start(
        config          => { requirepass => 'server-secret' },
        sentinel_config => {
            requirepass => 'sentinel-secret',
            user => 'watcher on >watcher-secret allchannels -@all +auth +ping '
                    . '+hello +client +sentinel|get-master-addr-by-name '
                    . '+subscribe',
        },
    );
    my $shards = 'sentinel=mymaster ' . $locked->addrs;
    my $server = 'ratelimit_redis_password server-secret;';
    my $file = $locked->master->dir . '/password';

    write_file($file, "sentinel-secret\n");

    for my $case (['a password', 'ratelimit_sentinel_password sentinel-secret;'],
                  ['a file', "ratelimit_sentinel_password_file $file;"],
                  ['a user', 'ratelimit_sentinel_user watcher;
                              ratelimit_sentinel_password watcher-secret;'])
    {
        my ($name, $conf) = @$case;
        my $nginx = start_nginx($shards, conf => "$server $conf", @OPTIONS);

        is verdict($nginx->get('/t?k=' . $name =~ s/ /_/r)), '200 redis 99',
           "$name: passed" or diag $nginx->error_log;
        unlike $nginx->error_log, qr/secret/, 'nothing secret in the log';
        $nginx->finish;
    }

    # wrong ones, on either side

    for my $case (['none for the sentinels', $server, 'NOAUTH'],
                  ['a wrong one for the sentinels',
                   "$server ratelimit_sentinel_password wrong-secret;",
                   'WRONGPASS'],
                  ['a wrong one for the master',
                   'ratelimit_sentinel_password sentinel-secret;
                    ratelimit_redis_password wrong-secret;', 'WRONGPASS'])
    {
        my ($name, $conf, $error) = @$case;
        my $nginx = start_nginx($shards, conf => $conf, @OPTIONS);

        is $nginx->get('/local?k=a')->{headers}{'x-source'}, 'local',
           "$name: limits go on here";
        ok $nginx->wait_log(qr/\[error\] .*$error/, 10), 'the log says why'
            or diag $nginx->error_log;
        unlike $nginx->error_log, qr/secret/, 'nothing secret in it';
        cmp_ok $nginx->log_count(qr/./), '<', 60, 'in not many words';
        $nginx->finish;
    }
};


# The address is kept in shared memory, so that a reload finds it.

subtest 'all sentinels are gone: the master is where it was' => sub {
    my $fault = RateLimit::Fault->start(
        redis   => [$all->servers],
        shards  => 'sentinel=mymaster ' . $all->addrs,
        timeout => 20_000,
        connect => 20_000,
    );
    my $nginx = $fault->nginx;

    # all of them have connections

    my $load = $fault->during(sub {
        wait_until(sub { $all->master->clients >= $WORKERS }, 20);
    });

    is $load->count(sub { $_->{source} ne 'redis' }), 0, 'Redis decides';

    my $master = $all->master;
    my ($reloaded, $after);

    $load = $fault->during(sub {
        sleep 0.3;
        $_->kill9 for $all->sentinels;
        sleep 3;                        # longer than they are believed in
        $reloaded = $nginx->reload && $nginx->old_workers_gone(20);
        $after = time;
        sleep 1;
    });

    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'nothing changes when sentinels die';
    ok $reloaded, 'reloaded';
    cmp_ok $load->count(sub { $_->{started} > $after }), '>', 50,
           'nor for new workers';
    is scalar($load->mixed_up), 0, 'no reply was taken for another';
    $fault->check($load, workers => 0, lines => 100);

    # back again

    $all->start_sentinels;
    is $all->master, $master, 'sentinels are back';
    ok wait_until(sub { listeners($all) == $WORKERS }, 20),
       'and are listened to';

    # a master that goes while they are there is followed: nothing is stuck

    is $fault->ask('back', 1)->{source}, 'redis', 'Redis decides';
    $fault->finish;
};


subtest 'one sentinel after the other goes' => sub {
    my $nginx = start_nginx('sentinel=mymaster ' . $all->addrs, @OPTIONS);
    my @sentinels = $all->sentinels;

    $nginx->get("/t?k=$_") for 1 .. 10;
    ok wait_until(sub { listeners($all) == $WORKERS }), 'listening';

    $sentinels[0]->kill9;
    ok wait_until(sub { listeners($all) == $WORKERS }, 20),
       'killed: to another one';

    # that of a sentinel which hangs stays open

    $sentinels[1]->pause;
    ok wait_until(sub {
        my $last = $sentinels[2];
        $WORKERS <= grep { /\bname=nginx-ratelimit/ }
                    split /\n/, $last->cmd('CLIENT', 'LIST')
    }, 30), 'stopped: to the last one';

    is $nginx->get('/t?k=x')->{headers}{'x-source'}, 'redis',
       'nobody was disturbed';

    $sentinels[1]->resume;
    $sentinels[0]->start;
    $nginx->finish;
};


# What a sentinel says is true for itself, not for the server.

subtest 'ROLE: a replica is no master, whoever says so' => sub {
    my $master = $all->master;
    my ($replica) = $all->replicas;
    my $fake = RateLimit::FakeRedis->start(
        policy => sentinel_policy($replica->addr));
    my $addr = $replica->addr;
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);
    my $calls = $replica->calls('evalsha');

    for my $n (1 .. 20) {
        my $r = $nginx->get("/local?k=role$n");
        is $r->{headers}{'x-source'}, 'local', 'limits go on here' if $n == 20;
    }

    ok $nginx->wait_log(qr/\[error\] .*redis \Q$addr\E, the master of "mymaster", reports a ROLE other than master/, 10),
       'the log says why';
    is $replica->calls('evalsha'), $calls, 'it got no call';
    cmp_ok $nginx->log_count(qr/./), '<', 60, 'in not many words';

    # it is asked again and again, until it says the right one

    $fake->policy(sentinel_policy($master->addr));
    ok wait_until(sub { seen($nginx->get('/local?k=' . rand)) eq '200 redis' },
                  30), 'the right one is used when it is named';

    $nginx->finish;
};


subtest 'READONLY: a master that is demoted by hand' => sub {
    my ($one, $two) = RateLimit::Sentinel::Server->start_many(2);
    my $fake = RateLimit::FakeRedis->start(
        policy => sentinel_policy($one->addr));
    my $fault = RateLimit::Fault->start(
        redis  => [$one, $two],
        shards => 'sentinel=mymaster ' . $fake->addr,
    );

    $two->replicate($one);

    my ($demoted, $back);

    my $load = $fault->during(sub {
        wait_until(sub { $one->clients >= $WORKERS }, 20);
        sleep 0.3;

        # nobody tells: it is found out

        $fake->policy(sentinel_policy($two->addr));
        $two->replicate(undef);
        $one->replicate($two);
        $demoted = time;

        $back = wait_until(sub {
            $two->clients >= $WORKERS
            && !grep { $fault->ask("r$_" . rand, 1)->{source} ne 'redis' }
                     1 .. 6
        }, 30) && time;

        sleep 0.5;
    });

    ok $back, 'the new one is found';
    diag sprintf 'after %.2f s', $back - $demoted;
    is $load->count(sub { $_->{started} > $back && $_->{source} ne 'redis' }),
       0, 'from then on Redis decides';
    cmp_ok $load->metric('redis_failures_total', class => 'readonly'), '>', 0,
           'because the old one said READONLY';
    is $one->clients, 0, 'which has no connection any more';
    is nodes_of($fault->nginx)->{'master mymaster'}, $two->addr, 'metrics';
    like $fault->nginx->error_log,
         qr/ratelimit shard mymaster: the master is now \Q@{[ $two->addr ]}\E \(was \Q@{[ $one->addr ]}\E\), reported by sentinel/,
         'and the log say so';

    $fault->check($load);
    $fault->finish;
};


subtest 'leases, denials and reloads work as elsewhere' => sub {
    my $nginx = start_nginx('sentinel=mymaster ' . $all->addrs, @OPTIONS);
    my $name = 'ratelimit:localhost/lease:{l}';

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, requests => 500,
        timeout => 60, path => '/lease?k=l');

    is_deeply $load->statuses, { 200 => 500 }, 'all pass';
    ok wait_until(sub {
        ($all->master->tokens($name) // 0) == 500
    }, 10), 'and what was not used is back';

    $nginx->get('/five?k=d') for 1 .. 10;
    ok wait_until(sub {
        $nginx->get('/five?k=d')->{headers}{'x-source'} eq 'denied'
    }), 'denials are remembered';

    for (1 .. 3) {
        ok $nginx->reload && $nginx->old_workers_gone(20), 'reloaded';
        is $nginx->get('/t?k=r')->{headers}{'x-source'}, 'redis',
           'Redis decides at once';
    }

    ok wait_until(sub { listeners($all) == $WORKERS }), 'connections stay';
    $nginx->finish;
};


subtest 'what sentinels can not have is refused by nginx -t' => sub {
    my $refused = sub {
        my ($name, $regex, $conf) = @_;

        my ($code, $output) = RateLimit::Nginx->test_config(
            conf => "$conf server { listen 127.0.0.1:%%PORT%%; location / { "
                    . 'ratelimit_rate 1r/s; } }');

        isnt $code, 0, "$name: refused";
        like $output, qr/\[emerg\] .*$regex/, 'and why';
    };

    my $host = '127.0.0.1:26379';

    $refused->('no name', qr/sentinel/, "ratelimit_shards sentinel= $host;");
    $refused->('no sentinels', qr/ratelimit_shards/,
               'ratelimit_shards sentinel=mymaster;');
    $refused->('an empty name', qr/sentinel/,
               "ratelimit_shards sentinel=a,,b $host;");
    $refused->('a name twice', qr/twice|duplicate|"a"/,
               "ratelimit_shards sentinel=a,a $host;");
    $refused->('a user in an URL', qr/ratelimit_sentinel_/,
               "ratelimit_shards sentinel=a redis://u:p\@$host;");
    $refused->('a database in an URL', qr/database|redis:/,
               "ratelimit_shards sentinel=a redis://$host/1;");
    $refused->('a unix socket', qr/unix:/,
               'ratelimit_shards sentinel=a unix:/tmp/s.sock;');
    $refused->('a password and a file', qr/ratelimit_sentinel_password/,
               "ratelimit_shards sentinel=a $host; "
               . 'ratelimit_sentinel_password a; '
               . 'ratelimit_sentinel_password_file /dev/null;');

    # the port has a default

    my ($code, $output) = RateLimit::Nginx->test_config(
        conf => 'ratelimit_shards sentinel=a 127.0.0.1; server { listen '
                . '127.0.0.1:%%PORT%%; location / { ratelimit_rate 1r/s; } }');

    is $code, 0, 'a sentinel without a port' or diag $output;
};


done_testing;
