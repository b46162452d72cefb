# The test harness itself, against a real redis-server and a plain nginx: a
# test that stands on a broken harness proves nothing.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Background;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Resp;
use RateLimit::Util qw(alive free_port slurp wait_until);

use Time::HiRes qw(time);

# a plain nginx, whatever the suite is run with

local $ENV{RATELIMIT_MODULE} = '';


subtest 'redis: commands are sent and replies of all types are read' => sub {
    my $redis = RateLimit::Redis->start;

    is $redis->cmd('SET', 'a', "x\r\n\0y"), 'OK', 'status';
    is $redis->cmd('GET', 'a'), "x\r\n\0y", 'binary string';
    is $redis->cmd('GET', 'none'), undef, 'nil';
    is $redis->cmd('INCR', 'n'), 1, 'integer';
    is_deeply $redis->cmd('EVAL', 'return {1, {"a", false}}', 0),
              [1, ['a', undef]], 'nested arrays';

    my $error = $redis->try('INCR', 'a');
    isa_ok $error, 'RateLimit::Redis::Error';
    like "$error", qr/^ERR value is not an integer/, 'its text';
    ok !eval { $redis->cmd('INCR', 'a') }, 'cmd dies on an error';

    ok $redis->info('server')->{redis_version}, 'info';
    is(RateLimit::Redis::Client->connect(['127.0.0.1', $redis->port])
       ->call('PING'), 'PONG', 'by TCP too');
};


subtest 'redis: stop, pause, kill, restart, end' => sub {
    my $redis = RateLimit::Redis->start(
        config => { requirepass => 'secret', user => ['bob on >pw +@all ~*'] });
    my ($port, $dir, $pid) = ($redis->port, $redis->dir, $redis->pid);

    is $redis->cmd('PING'), 'PONG', 'authenticated by requirepass';
    is(RateLimit::Redis::Client->connect($redis->socket)
       ->call('AUTH', 'bob', 'pw'), 'OK', 'two lines of one name');

    ok $redis->pause, 'paused';
    ok $redis->resume, 'resumed';
    is $redis->cmd('PING'), 'PONG', 'answers again';

    $redis->kill9;
    ok !alive($pid), 'killed';
    ok !eval { $redis->cmd('PING') }, 'no answer';

    $redis->start;
    is $redis->port, $port, 'the same port';
    is $redis->cmd('PING'), 'PONG', 'answers after the start';

    $redis->pause;
    $redis->restart;
    is $redis->cmd('PING'), 'PONG', 'a paused one can be restarted';

    if (fork() // die) { wait }
    else { undef $redis; POSIX::_exit(0) }
    is $redis->cmd('PING'), 'PONG', 'a forked child does not end it';

    $pid = $redis->pid;
    undef $redis;
    ok !alive($pid), 'ended with the object';
    ok !-e $dir, 'and its folder';

    my $late = RateLimit::Redis->new;
    is RateLimit::Load::get($late->port, '/')->{error}, 'refused',
       'new starts nothing';
    is $late->start->cmd('PING'), 'PONG', 'start does';

    my @many = RateLimit::Redis->start_many(2);
    isnt $many[0]->port, $many[1]->port, 'many';
};


# Reads what a fake sends until it has been silent for a while, closed, or
# n bytes came; the pieces as they came.

sub pieces {
    my ($socket, $n) = @_;

    my @pieces;
    my $total = 0;

    while ($total < $n) {
        my $read = '';
        vec($read, fileno $socket, 1) = 1;

        last unless select $read, undef, undef, 2;
        my $got = sysread $socket, my $piece, 65536;
        last unless $got;

        push @pieces, $piece;
        $total += $got;
    }

    return @pieces;
}


sub dial {
    my ($fake) = @_;

    return IO::Socket::INET->new(PeerAddr => $fake->addr) || die "dial: $!";
}


my $CALL = "*3\r\n\$7\r\nEVALSHA\r\n\$1\r\ns\r\n\$1\r\n0\r\n";


subtest 'background: code runs elsewhere, is told to stop, gives its result'
    => sub
{
    my $task = RateLimit::Background->start(sub {
        my ($told) = @_;
        my $n = 0;

        $n++ until $told->();

        return { pid => $$, n => $n };
    });

    my $result = $task->stop;

    isnt $result->{pid}, $$, 'another process';
    cmp_ok $result->{n}, '>=', 0, 'which has ended when it was told';

    is(RateLimit::Background->start(sub { 5 })->wait, 5, 'by itself');
    ok !eval { RateLimit::Background->start(sub { die "no\n" })->wait; 1 },
       'one that dies';
    is $@, "no\n", 'says why';

    $task = RateLimit::Background->start(sub { sleep 60 });
    $task->kill('TERM');
    is $task->{pid}, undef, 'or it is killed';
};


subtest 'replies are the bytes that servers send' => sub {
    is bulk("a\r\n"), "\$3\r\na\r\n\r\n", 'a string';
    is array('a', ''), "*2\r\n\$1\r\na\r\n\$0\r\n\r\n", 'a list';
    is array(), "*0\r\n", 'an empty one';

    my $id = "\$40\r\n" . 'e' x 40 . "\r\n";
    my $node = "*3\r\n\$1\r\nh\r\n:1\r\n$id";

    is slots_reply([0, 5, 'h', 1], [6, 9, 'h', 1, 'h', 1]),
       "*2\r\n*3\r\n:0\r\n:5\r\n${node}*4\r\n:6\r\n:9\r\n$node$node",
       'ranges of slots, with a replica';
    is all_slots('h', 1), slots_reply([0, 16383, 'h', 1]), 'all slots';
    is sentinel_policy('127.0.0.1:5')
           ->{handshake}{'SENTINEL GET-MASTER-ADDR-BY-NAME'},
       array('127.0.0.1', 5), 'the address of a master';
    is switch_event('m', 'a', 1), array('message', '+switch-master', 'm a 1'),
       'a switch';
};


subtest 'fake redis: handshake, log, errors' => sub {
    my $fake = RateLimit::FakeRedis->start(unix => 1, policy => {
        handshake => { AUTH => "-WRONGPASS no\r\n" },
        evalsha   => "-NOSCRIPT none\r\n",
        eval      => sub { my ($args, $n) = @_; "+$args->[3] $n\r\n" },
    });

    my $client = RateLimit::Redis::Client->connect($fake->socket);

    is $client->call('SELECT', 1), 'OK', 'SELECT';
    is $client->call('SCRIPT', 'LOAD', 'return 1'),
       'e0e1f9fabfc9d4800c877a703b823ac0578ff8db', 'SCRIPT LOAD';
    like $client->call('AUTH', 'x'), qr/^WRONGPASS/, 'AUTH refused';
    like $client->call('EVALSHA', 's', 0), qr/^NOSCRIPT/, 'EVALSHA';
    is $client->call('EVAL', 's', 1, 'k'), 'k 0', 'EVAL by code';

    $fake->policy({ eval => [":1\r\n", ":2\r\n"] });
    is_deeply [map { $client->call('EVALSHA', 's', 0) } 1 .. 3], [1, 2, 2],
              'a list, its last one repeated';
    ok !eval { $fake->policy({ eval => sub { } }) }, 'no code at run time';

    is scalar $fake->commands('evalsha'), 4, 'commands by name';
    is_deeply [($fake->commands)[0]], [['SELECT', 1]], 'in order';
    is_deeply $fake->connections, { accepted => 1, open => 1, peak => 1 },
              'connections';

    $fake->clear;
    is scalar $fake->commands, 0, 'cleared';

    $fake->refuse;
    is RateLimit::Load::get($fake->port, '/')->{error}, 'refused', 'refuse';
    $fake->listen;
    ok dial($fake), 'listen';
    ok wait_until(sub { $fake->connections->{accepted} == 2 }), 'accepted';
};


subtest 'fake redis: replies as no real server sends them' => sub {
    my $fake = RateLimit::FakeRedis->start;
    my $socket = dial($fake);
    my $reply = "*2\r\n:5\r\n:77\r\n";
    my $length = length $reply;

    for my $at (1 .. $length - 1) {
        $fake->policy({ eval => { reply => $reply, split => $at } });
        syswrite $socket, $CALL;
        is_deeply [pieces($socket, $length)],
                  [substr($reply, 0, $at), substr($reply, $at)],
                  "split at $at";
    }

    $fake->policy({ eval => { reply => $reply, split => 'every' } });
    syswrite $socket, $CALL;
    is scalar(pieces($socket, $length)), $length, 'every byte alone';

    $fake->policy({ eval => { reply => ":1\r\n", hold => 3 } });
    syswrite $socket, $CALL x 3;
    is_deeply [pieces($socket, 12)], [":1\r\n" x 3], 'three in one segment';

    # a late reply holds back its own connection only

    $fake->policy({ eval => [{ reply => ":1\r\n", delay => 60_000 },
                             ":2\r\n"] });
    my $other = dial($fake);
    syswrite $socket, $CALL;
    $fake->wait_commands('EVALSHA', $length + 4);
    syswrite $other, $CALL;
    is join('', pieces($other, 4)), ":2\r\n", 'the other one answers meanwhile';

    $fake->policy({ eval => [{ reply => ":1\r\n", delay => 50 }, ":2\r\n"] });
    $socket = dial($fake);
    my $start = time;
    syswrite $socket, $CALL x 2;
    is join('', pieces($socket, 8)), ":1\r\n:2\r\n", 'late, in order';
    cmp_ok time - $start, '>=', 0.05, 'so late';

    $fake->policy({ eval => [{}, ":2\r\n"] });
    syswrite $socket, $CALL x 2;
    is join('', pieces($socket, 4)), ":2\r\n", 'one without a reply';

    $fake->push("+extra\r\n");
    is join('', pieces($_, 8)), "+extra\r\n", 'unsolicited'
        for $socket, $other;

    $fake->policy({ eval => { reply => "*2\r\n:1", then => 'close' } });
    syswrite $socket, $CALL;
    is join('', pieces($socket, 100)), "*2\r\n:1", 'closed in the middle';

    $fake->policy({ eval => { reply => '*', then => 'reset' } });
    syswrite $other, $CALL;
    is join('', pieces($other, 1)), '*', 'reset: what came before';
    ok wait_until(sub { !defined sysread($other, my $x, 1) && $!{ECONNRESET} }),
       'reset';

    $fake->policy({ eval => { reply => "\$5000000\r\n",
                              stream => 5_000_000 } });
    $socket = dial($fake);
    syswrite $socket, $CALL;
    is length(join '', pieces($socket, 5_000_010)), 5_000_010, 'a flood';

    $fake->policy({ accept => { reply => "-ERR max number of clients\r\n",
                                then => 'close' } });
    is join('', pieces(dial($fake), 100)), "-ERR max number of clients\r\n",
       'refused on accept';

    my $pid = $fake->pid;
    undef $fake;
    ok !alive($pid), 'ended with the object';
};


subtest 'nginx starts, is asked in all ways, and leaves' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf   => 'keepalive_requests 100;',
        server => <<'EOC',
            location / { add_header X-A 1; add_header X-A 2; return 200 ok; }
            location /429 { return 429; }
            location /drop { return 444; }
            location /chunked/ { alias html/; ssi on; }
            location /body { proxy_pass http://127.0.0.1:%%PORT%%/; }
EOC
    );
    my $port = $nginx->port;

    open my $out, '>', $nginx->dir . '/html/x.html';
    print $out 'a' x 10000, '<!--# echo var="x" default="b" -->';
    close $out;

    my $r = RateLimit::Load::get($port, '/');
    is $r->{status}, 200, 'status';
    is_deeply $r->{headers}{'x-a'}, [1, 2], 'a repeated header';
    is $r->{body}, 'ok', 'body';
    is RateLimit::Load::get($port, '/429')->{status}, 429, 'another status';
    is RateLimit::Load::get($port, '/drop')->{error}, 'empty', 'no response';
    is(RateLimit::Load::request($port, 'HEAD', '/')->{status}, 200, 'HEAD');
    is(RateLimit::Load::request($port, 'POST', '/body', {}, 'x' x 100_000)
       ->{status}, 200, 'POST');

    my $c = RateLimit::Load::connection($port);
    $c->write("GET /chunked/x.html HTTP/1.1\r\nHost: a\r\n\r\n");
    is $c->response->{body}, 'a' x 10000 . 'b', 'chunked';
    $c->write("GET /429 HTTP/1.1\r\n");
    $c->write("Host: a\r\n\r\n");
    is $c->response->{status}, 429, 'a second request, in two parts';
    $c->close;

    my @r = RateLimit::Load::pipeline($port, [
        map { my $path = $_ % 3 ? '/' : '/429';
              "GET $path HTTP/1.1\r\nHost: a\r\n\r\n" } 0 .. 49 ]);
    is_deeply [map { $_->{status} } @r], [map { $_ % 3 ? 200 : 429 } 0 .. 49],
              'a pipeline, in order';

    my $load = RateLimit::Load::run(
        targets     => [$port, ['127.0.0.1', $port]],
        connections => 20,
        requests    => 1000,
        keep        => 1,
        path        => sub { my ($n) = @_;
                             return $n % 4 ? "/n/$n" : { path => '/429',
                                                       method => 'HEAD' } },
    );
    is_deeply $load->statuses, { 200 => 750, 429 => 250 }, 'load: statuses';
    is $load->error_text, '', 'no errors';
    is_deeply [map { $_->{n} } sort { $a->{n} <=> $b->{n} } $load->responses],
              [0 .. 999], 'every request once';

    $load = RateLimit::Load::run(port => $port, connections => 20, path => '/',
                                 requests => 500, abort => 0.5);
    is $load->count(200) + $load->aborted, 500, 'aborted or answered';
    cmp_ok $load->aborted, '>', 100, 'many aborted';

    $load = RateLimit::Load::run(
        port => $port, connections => 1, requests => 3,
        path => sub { ('/', '/drop', '/')[$_[0]] });
    is_deeply [$load->count(200), $load->error_text], [2, 'empty: 1'],
              'a request dropped on a reused connection is an error';

    $load = RateLimit::Load::run(port => free_port(), path => '/',
                                 requests => 3);
    is $load->error_text, 'refused: 3', 'nobody there';

    # no request fails while nginx is told to reload

    my @workers = $nginx->workers;
    is scalar @workers, 2, 'two workers';

    my $pid = fork() // die;
    if (!$pid) {
        for (1 .. 5) { $nginx->reload }
        POSIX::_exit(0);
    }

    $load = RateLimit::Load::run(port => $port, connections => 10,
                                 duration => 1, path => '/');
    waitpid $pid, 0;
    is $load->error_text, '', 'no error during reloads';
    cmp_ok $load->count(200), '>', 100, 'answers during reloads';

    ok wait_until(sub { !grep { alive($_) } @workers }), 'old workers left';
    ok $nginx->reload(server => 'location / { return 204; }'), 'another config';
    ok $nginx->old_workers_gone, 'old workers left';
    is RateLimit::Load::get($port, '/')->{status}, 204, 'and it is used';
    ok !$nginx->reload(server => 'no_such;'), 'a wrong config is refused';
    is RateLimit::Load::get($port, '/')->{status}, 204, 'nothing changed';

    ok $nginx->kill_worker('KILL'), 'a killed worker is replaced';
    is $nginx->log_count(qr/exited on signal 9/), 1, 'log_count';
    is scalar($nginx->alerts), 2, 'alerts';
    $nginx->no_alerts('none besides', except => qr/signal 9|no_such/);

    my $master = $nginx->pid;
    my $dir = $nginx->dir;
    ok $nginx->stop, 'stopped';
    ok !alive($master), 'gone';
    $nginx->start;
    is $nginx->port, $port, 'started again on its port';
    undef $nginx;
    ok !-e $dir, 'nothing left';
};


subtest 'nginx: single process, configuration check' => sub {
    my $nginx = RateLimit::Nginx->start(master => 0,
                                        server => 'return 204;');
    is_deeply [$nginx->workers], [$nginx->pid], 'one process';
    is RateLimit::Load::get($nginx->port, '/')->{status}, 204, 'answers';
    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;

    my ($code, $output) = RateLimit::Nginx->test_config(conf => 'no_such 1;');
    is $code, 1, 'a wrong configuration';
    like $output, qr/\[emerg\] unknown directive "no_such"/, 'its message';

    ($code, $output) = RateLimit::Nginx->test_config(server => 'return 204;');
    is $code, 0, 'a good configuration';
    like $output, qr/test is successful/, 'its message';

    ok !eval { RateLimit::Nginx->start(conf => 'no_such 1;') }, 'start dies';
    like $@, qr/unknown directive "no_such"/, 'and says why';
};


done_testing();
