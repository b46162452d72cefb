# Copies of a table of overrides stay right whatever happens while it is read:
# another worker reads it too, the API changes it, an override is renewed when
# its time is over, Redis sends what it never should.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();
use Time::HiRes qw(sleep time);

use RateLimit::Clock;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Proxy;
use RateLimit::Redis;
use RateLimit::Util qw(free_port wait_until);

my $JSON = JSON::PP->new->utf8;

my $CONF = <<'EOC';
    ratelimit_silence client_value unused_limit no_shards;
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 5s;
    ratelimit_limit user key=$arg_key capacity=5 rate=5r/d;
EOC

my $SERVER = <<'EOC';
    location /user { ratelimit user; try_files /none @ok; }
    location @ok   { return 200 ok; }
    location /api/ { ratelimit_api write; }
    location = /metrics { ratelimit_metrics; }
EOC

my $TABLE = 'ratelimit:{user}:overrides';


sub start {
    my ($addr, %opt) = @_;

    return RateLimit::Nginx->start(
        conf => "ratelimit_shards $addr;\n$CONF" . ($opt{conf} // ''),
        server => $SERVER . ($opt{server} // ''), workers => $opt{workers} // 2,
        log => 'notice');
}


sub change {
    my ($nginx, $method, $path, $body) = @_;

    return RateLimit::Load::request(
        $nginx->port, $method, "/api/$path",
        { 'X-RateLimit-Write' => 1, 'Content-Type' => 'application/json' },
        $body ? $JSON->encode($body) : '');
}


sub ban {
    my ($nginx, $key) = @_;

    return change($nginx, 'PUT', "limits/user/keys/$key/override",
                  { ban => JSON::PP::true })->{status};
}


sub keys_of {
    my ($nginx, $limit) = @_;

    my $list = $JSON->decode($nginx->get("/api/overrides?limit=$limit")->{body});

    return join ' ', sort map { $_->{key} } @{ $list->{overrides} };
}


sub bulk { return join '', map { sprintf "\$%d\r\n%s\r\n", length, $_ } @_ }

sub page {
    my ($cursor, @fields) = @_;

    return "*2\r\n" . bulk($cursor)
           . sprintf("*%d\r\n", scalar @fields) . bulk(@fields);
}


# A worker that waits for a page is held up, so the other one reads the table,
# too, and waits for its second page.  Each finds what the other has marked.

subtest 'two workers read the same table' => sub {
    my %delay = (0 => 4000, 2 => 5000);

    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => {
            HGET  => bulk('v1'),
            HLEN  => ":3\r\n",
            HSCAN => sub {
                my ($args, $n) = @_;

                return { reply => $args->[2] eq '0' ? page(7, 'a', 'ban')
                                                    : page(0, 'b', 'ban'),
                         delay => $delay{$n} };
            },
        },
    });

    my $nginx = start($fake->addr);

    ok $fake->wait_commands('HSCAN', 1, 10), 'one begins';

    for my $pid ($nginx->workers) {
        kill STOP => $pid;
        my $done = $fake->wait_commands('HSCAN', 3, 1.5);
        kill CONT => $pid;
        last if $done;
    }

    ok $fake->wait_commands('HSCAN', 4, 10), 'two pages for each of them';
    sleep 5;
    is keys_of($nginx, 'user'), 'a b', 'nothing is lost';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'the API changes a table that is being read' => sub {
    my $redis = RateLimit::Redis->start;
    my $proxy = RateLimit::Proxy->start(to => ['127.0.0.1', $redis->port]);

    $redis->cmd('HSET', $TABLE, map { ("old-$_" => 'ban') } 1 .. 1000);

    my $nginx = start($proxy->addr);

    ok wait_until(sub { $nginx->get('/user?key=old-7')->{status} == 429 }, 10),
       'it is known';

    $proxy->set(delay => 150);
    $redis->cmd('HSET', $TABLE, '', time);
    sleep 0.6;

    is ban($nginx, "new-$_"), 200, "$_ is banned" for 1 .. 6;

    my ($end, $gaps) = (time + 4, 0);

    while (time < $end) {
        $gaps++ if keys_of($nginx, 'user') !~ /new-1 .*new-2 .*new-3 .*new-4/;
        sleep 0.05;
    }

    is $gaps, 0, 'which holds from then on';

    $nginx->stop;
    $nginx->no_alerts;
};


# Its time is over for a minute when it is removed from Redis.

subtest 'an override that was renewed meanwhile' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, conf => "ratelimit_overrides 64k;\n");
    my $now = int time;

    $redis->cmd('HSET', $TABLE, 'renewed', 'ban until=' . ($now - 61),
                'over', 'ban until=' . ($now - 61), 'mark', 'ban', '', 1);
    ok wait_until(sub { keys_of($nginx, 'user') eq 'mark' }, 10), 'it is read';

    # by somebody who forgets the version, so this machine does not know it

    my $text = 'ban until=' . ($now + 3600);
    $redis->cmd('HSET', $TABLE, 'renewed', $text);

    ok wait_until(sub { !$redis->cmd('HEXISTS', $TABLE, 'over') }, 15),
       'one that is over is removed';
    sleep 1;
    is $redis->cmd('HGET', $TABLE, 'renewed'), $text, 'not the renewed one';
    ok wait_until(sub { keys_of($nginx, 'user') eq 'mark renewed' }, 10),
       'which holds';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a machine whose clock is wrong' => sub {
    my $clock = RateLimit::Clock->new;
    my $redis = RateLimit::Redis->start;
    my $nginx = $clock->run(sub {
        start($redis->addr, conf => "ratelimit_overrides 64k;\n");
    });

    $redis->cmd('HSET', $TABLE, 'a', 'ban until=' . (int(time) + 3600), '', 1);
    ok wait_until(sub { keys_of($nginx, 'user') eq 'a' }, 10), 'it is read';

    $clock->set(86400);
    ok wait_until(sub { keys_of($nginx, 'user') eq '' }, 10), 'over here';
    sleep 2;
    ok $redis->cmd('HEXISTS', $TABLE, 'a'), 'and not for others';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a scan without an end' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => {
            HGET  => sub { bulk($_[0][1] =~ /user/ ? 1 : int($_[1] / 6)) },
            HLEN  => ":2\r\n",
            HSCAN => sub {
                my ($args, $n) = @_;

                return $args->[1] =~ /user/ ? page(7, 'a', 'ban')
                                            : page(0, "x$n", 'ban');
            },
        },
    });

    my $nginx = start($fake->addr,
        conf => "ratelimit_limit other key=\$arg_key rate=5r/d;\n",
        server => 'location /other { ratelimit other; }');

    ok wait_until(sub { keys_of($nginx, 'other') =~ /x\d\d/ }, 15),
       'other tables are still read';
    ok $nginx->wait_log(qr/\[error\].*overrides of limit "user" cannot be read: HSCAN of "\Q$TABLE\E" has not ended after 10002 pages/, 30),
       'it is given up';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a version of any length' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start($redis->addr, workers => 1);
    my $long = 'v' x 100_000;

    $redis->cmd('HSET', $TABLE, 'a', 'ban', '', $long);
    ok wait_until(sub { keys_of($nginx, 'user') eq 'a' }, 10), 'it is read';
    ok !$nginx->log_like(qr/too large/), 'by a connection that stays';

    $redis->cmd('HSET', $TABLE, 'a', 'exempt', '', $long . 'w');
    ok wait_until(sub { $nginx->get('/user?key=a')->{status} == 200 }, 10),
       'a change at its end is seen';

    $redis->cmd('HSET', $TABLE, 'a', 'x' x 100_000, '', 1);
    is change($nginx, 'DELETE', 'limits/user/keys/a')->{status}, 200,
       'a text that is much too long is replaced';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'overrides that were never read get older' => sub {
    my $nginx = start('127.0.0.1:' . free_port());
    ok wait_until(sub {
        $nginx->metric('overrides_age_seconds', limit => 'user') >= 2
    }, 15), 'and older';

    $nginx->stop;
};


done_testing;
