# Sentinels that say what no sentinel should.  What they say about the master is
# believed if it makes sense, and a server that has to be one; all else leaves
# things as they are.
#
# May be run twice: sentinels take seconds to agree.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Path ();
use Time::HiRes qw(sleep);

use RateLimit::Answer;
use RateLimit::FakeRedis;
use RateLimit::Limiter;
use RateLimit::Resp;
use RateLimit::Sentinel;
use RateLimit::Util qw(dead_port slurp temp_dir wait_until);

my @OPTIONS = (connect => '1s',
               breaker => 'failures=100 window=100ms probe=100ms');

my ($one, $two) = map {
    RateLimit::Sentinel::Server->start(bind => '127.0.0.1 -::1')
} 1 .. 2;


# ---- what all parts use

sub start_sentinel { RateLimit::FakeRedis->start(policy => sentinel_policy(@_)) }


# Where calls go.

sub used {
    my ($nginx, $server) = @_;

    my $calls = $server->calls('evalsha');

    return 0 if seen($nginx->get('/short?k=a')) ne '200 redis';
    return $server->calls('evalsha') > $calls;
}


# ---- tests

# Where a master is counts as known when it was moved to, not before.

subtest 'without memory for a moment the master stays, and is followed later'
    => sub
{
    plan skip_all => 'another malloc() is in use'
        if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

    my $dir = temp_dir('nomem');
    my $cc = $ENV{CC} || 'cc';

    chmod 0755, $dir;
    system("$cc -O1 -Wall -Wextra -Werror -fPIC -shared -o $dir/nomem.so "
           . 't/lib/nomem.c') == 0
        or plan skip_all => 'no C compiler';

    # that of one address and its text

    local $ENV{RATELIMIT_NOMEM} = "$dir/now";
    local $ENV{RATELIMIT_NOMEM_SIZE} = 64;
    local $ENV{LD_PRELOAD} = "$dir/nomem.so";

    my $fake = start_sentinel($one->addr);
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);

    delete local $ENV{LD_PRELOAD};

    ok wait_until(sub { used($nginx, $one) }, 20), 'before';

    open my $now, '>', "$dir/now" or die "$dir/now: $!\n";

    $fake->policy(sentinel_policy($two->addr));
    $fake->push(switch_event('mymaster', $one, $two));

    ok $nginx->wait_log(qr/not enough memory to switch to master /
                        . '127\.0\.0\.1', 15), 'the log says so';
    ok used($nginx, $one), 'it is where it was';

    unlink "$dir/now";
    ok wait_until(sub { used($nginx, $two) }, 20), 'then it is followed';

    ok $nginx->stop, 'nginx leaves by itself';
    $nginx->no_alerts('no alerts', except => qr/malloc\(64\) failed/);
    File::Path::remove_tree($dir);
};


subtest 'only a reply that makes sense moves the master' => sub {
    my $fake = start_sentinel($one->addr);
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);
    my $port = $one->port;
    my $dead = dead_port();

    my @replies = (
        ['an error', "-ERR what\r\n"],
        ['NOAUTH', "-NOAUTH Authentication required.\r\n"],
        ['a text', "+OK\r\n"],
        ['a number', ":1\r\n"],
        ['nil', "*-1\r\n"],
        ['another nil', "\$-1\r\n"],
        ['nothing', "*0\r\n"],
        ['one word', array('127.0.0.1')],
        ['three words', array('127.0.0.1', $port, 'x')],
        ['numbers', "*2\r\n:1\r\n:2\r\n"],
        ['no port', array('127.0.0.1', '')],
        ['port 0', array('127.0.0.1', 0)],
        ['port 70000', array('127.0.0.1', 70000)],
        ['port -1', array('127.0.0.1', -1)],
        ['port x', array('127.0.0.1', '6379x')],
        ['no host', array('', $port)],
        ['a host with odd bytes', array("a\r\n\"\x01\xff", $port)],
        ['a long host', array('h' x 5000, $port)],
        ['a host without an address', array('no.such.host.invalid', $port)],
        ['a giant', "*2147483647\r\n"],
        ['a giant string', "*2\r\n\$500000000\r\n"],
        ['deep', "*1\r\n" x 100 . ":1\r\n"],
        ['no reply', {}],
        ['half a reply', { reply => "*2\r\n\$9\r\n127", then => 'close' }],
    );

    my @wrong;

    ok wait_until(sub { used($nginx, $one) }, 20), 'before';

    for my $case (@replies) {
        my ($name, $reply) = @$case;

        # whoever knows a master keeps it

        $fake->policy(sentinel_policy($reply));
        $fake->clear;
        $fake->drop;
        $fake->wait_commands('SENTINEL', 1, 10)
            or push @wrong, "$name: is not asked";

        sleep 0.05;
        push @wrong, "$name: not where it was" unless used($nginx, $one);

        $fake->clear;
        $fake->policy(sentinel_policy($one->addr));
        $fake->wait_commands('SUBSCRIBE', 1, 20)
            or push @wrong, "$name: is not asked again";
    }

    is_deeply \@wrong, [], 'the master stays where it was';

    # and this is no reason not to believe what is right

    $fake->policy(sentinel_policy($two->addr));
    $fake->drop;
    ok wait_until(sub { used($nginx, $two) }, 20), 'another one is used';
    $fake->policy(sentinel_policy($one->addr));
    $fake->drop;

    # who was the master a moment ago is not, unless an event says so

    sleep 0.5;
    ok used($nginx, $two), 'an old one is not believed in for a while';

    $fake->push(switch_event('mymaster', $two, $one));
    ok wait_until(sub { used($nginx, $one) }, 20), 'but an event is';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'only an event that makes sense moves the master' => sub {
    my $fake = start_sentinel($one->addr);
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);
    my ($from, $to) = map { join ' ', split /:/, $_->addr } $one, $two;

    ok wait_until(sub { used($nginx, $one) }, 20), 'before';

    my @events = (
        (map { switch_event($_) }
             '', ' ', 'mymaster', 'mymaster ' x 5, "other $from $to",
             "mymaster2 $from $to", "mymaste $from $to",
             "mymaster $from 127.0.0.1", "mymaster $from 127.0.0.1 0",
             "mymaster $from 127.0.0.1 70000", "mymaster $from 127.0.0.1 x",
             "mymaster $from host 1", "mymaster $from \x01\xff 1", 'x' x 4000),
        array('message', '+sdown', "mymaster $from $to"),
        array('message', '+switch-master'), array('message'), array(),
        array('subscribe', '+switch-master', '1'), "+OK\r\n", ":1\r\n",
        "\$-1\r\n", "-ERR what\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*3\r\n" . bulk('message') . bulk('+switch-master') . ":1\r\n",
    );

    my @wrong;

    for my $n (0 .. $#events) {

        # one that closes its connection asks again, and gets the same

        $fake->push($events[$n]);
        sleep 0.02;
        push @wrong, $n unless used($nginx, $one);
        wait_until(sub { $fake->connections->{open} == 1 }, 10)
            or push @wrong, "$n: no connection";
    }

    is_deeply \@wrong, [], 'nothing is made of what is no event';

    my $accepted = $fake->connections->{accepted};

    $fake->push("not even Redis\r\n");
    ok wait_until(sub {
        $fake->connections->{accepted} > $accepted
        && $fake->connections->{open} == 1 && used($nginx, $one)
    }, 20), 'nor of what is none at all';

    $fake->push(switch_event("mymaster $from $to"));
    ok wait_until(sub { used($nginx, $two) }, 20), 'a real one counts';
    is $one->clients, 0, 'and nothing is left of the old one';

    # many at once

    my $many = join '', map { (switch_event("mymaster $to $from"),
                               switch_event("mymaster $from $to")) } 1 .. 50;

    $fake->push($many);
    ok wait_until(sub { used($nginx, $two) && $one->clients == 0 }, 20),
       'the last of many counts';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'a master at an IPv6 address is found and followed' => sub {
    my $listens = eval {
        RateLimit::Redis::Client->connect(['127.0.0.1', $one->port]);
        slurp('/proc/net/if_inet6') =~ /^0{31}1 /m
    };

    plan skip_all => 'no IPv6 here' unless $listens;

    my $fake = start_sentinel(array('::1', $one->port));
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);

    ok wait_until(sub { used($nginx, $one) }, 20), 'the master is ::1';

    my ($node) = map { $_->{node} } grep { $_->{role} eq 'master' }
                 @{ $nginx->metrics->{nginx_ratelimit_shard_node} };

    is $node, '[::1]:' . $one->port, 'as metrics say';

    $fake->policy(sentinel_policy(array('::1', $two->port)));
    $fake->push(switch_event('mymaster ::1', $one->port, '::1', $two->port));
    ok wait_until(sub { used($nginx, $two) }, 20), 'and another one';

    # a new worker has it from the zone, in this form

    ok $nginx->reload && $nginx->old_workers_gone(20), 'a reload';
    $fake->refuse;
    $fake->drop;
    ok wait_until(sub { used($nginx, $two) }, 20), 'knows it';
    ok $nginx->reload && $nginx->old_workers_gone(20), 'and another reload';
    ok wait_until(sub { used($nginx, $two) }, 20), 'without a sentinel, too';

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'a subscription that is refused is told, without a storm' => sub {
    my $fake = start_sentinel($one->addr,
        SUBSCRIBE => "-NOPERM this user has no permissions to run the "
                     . "'subscribe' command\r\n");
    my $nginx = start_nginx('sentinel=mymaster ' . $fake->addr, @OPTIONS);

    # better than nothing

    my $got;

    ok wait_until(sub { $got = seen($nginx->get('/short?k=a'));
                        $got =~ /^(?:200 redis|503 closed)$/ }, 5),
       'requests are answered';
    ok $nginx->wait_log(qr/SUBSCRIBE.*NOPERM|NOPERM.*subscribe/i, 10),
       'the log names what is missing' or diag $nginx->error_log;
    sleep 1;
    cmp_ok $nginx->log_count(qr/./), '<', 40, 'in not many words';
    cmp_ok $fake->connections->{accepted}, '<', 30, 'without a storm';
    note $got;

    $nginx->finish(same_workers => 1, printable => 1);
};


subtest 'a sentinel that falls silent is replaced by the next' => sub {
    my $silent = start_sentinel($one->addr, PING => {});
    my $other = start_sentinel($one->addr);
    my $nginx = start_nginx(join(' ', 'sentinel=mymaster', $silent->addr,
                                 $other->addr), @OPTIONS);

    ok wait_until(sub { used($nginx, $one) }, 20), 'the master is known';
    ok wait_until(sub { $other->connections->{open} == 1
                        && $silent->connections->{open} == 0 }, 20),
       'the next one is listened to';

    $other->push(switch_event('mymaster', $one, $two));
    ok wait_until(sub { used($nginx, $two) }, 20), 'and believed';

    $nginx->finish(same_workers => 1, printable => 1);
};


done_testing;
