# What the error log says: each decision at info, a rejection at its own level,
# an outage in a few lines however long it lasts, and its beginning and end;
# keys escaped and cut, and never a password.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Clock;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest', 'diag'];

use Digest::SHA qw(sha1_hex);

our $redis = start_redis();
our $locked = start_redis(name => 'LOCKED', config => {
    requirepass => 'right-secret',
    user        => ['bob on >bobs-secret ~* +@all'],
});
our $old = start_redis(name => 'OLD', config => {
    'rename-command' => 'AUTH ""',
});


patient_blocks(<<'EOC');
    ratelimit_log_key plain;
EOC


# The decisions in the log, each as its level and its text up to what nginx
# adds about the request.

sub decisions {
    return map { /\[(\w+)\] \S+ \*\d+ (ratelimit [A-Z].*?)(?:, client: |$)/
                 ? "$1: $2" : () }
           split /\n/, slurp($Test::Nginx::Util::ErrLogFile);
}


no_root_location();
run_tests();


# ---- outages, which need more than one step

sub start {
    my ($addr, $more, %opt) = @_;

    return RateLimit::Nginx->start(
        workers => 1,
        log     => 'notice',
        server  => 'location /t { ratelimit_rate 1000000r/s; empty_gif; }',
        %opt,
        conf    => "ratelimit_shards $addr;"
                   . 'ratelimit_redis_connect_timeout 10s;'
                   . ($more // '')
                   . (($more // '') =~ /redis_timeout/
                      ? '' : 'ratelimit_redis_timeout 10s;'),
    );
}


# So many requests, all of which are let in by the failure policy, and why: a
# regex.

sub degraded {
    my ($nginx, $requests, $reason) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $load = RateLimit::Load::run(port => $nginx->port, path => '/t',
                                    requests => $requests, connections => 10,
                                    keep => 1);

    is($load->count(200), $requests, 'all pass');
    is(scalar(grep {
           ($_->{headers}{'x-ratelimit-degraded-reason'} // '')
               =~ /^(?:$reason)$/
       } $load->responses), $requests, "degraded: $reason");
}


# Whether Redis decides.

sub works {
    my ($nginx) = @_;

    my $r = $nginx->get('/t');

    return $r->{headers}{'x-ratelimit-limit'}
           && !$r->{headers}{'x-ratelimit-degraded'};
}


# The changes of a shard's state in the log: "LEVEL TEXT".

sub changes {
    my ($nginx, $addr) = @_;

    return $nginx->states($addr);
}


# Lines above notice, besides those about an outage: the number of them, and that
# some match.

sub complaints {
    my ($nginx, $max, @like) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @lines = grep { /\[(?:warn|error|crit|alert|emerg)\]/
                       && !/ ratelimit: redis \S+ is / }
                     split /\n/, $nginx->error_log;

    cmp_ok(scalar @lines, '<=', $max, "$max lines at most") or diag @lines;

    for my $like (@like) {
        is(scalar(grep { $_ =~ $like } @lines), 1, "one is $like")
            or diag @lines;
    }
}


sub stopped {
    my ($nginx, @except) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    ok($nginx->stop, 'stopped');
    $nginx->no_alerts('nothing alarming', @except);
}


for my $workers (1, 4) {
    subtest "nobody listens: one line, until somebody does; workers: $workers"
        => sub
    {
        my $late = RateLimit::Redis->new;
        my $addr = $late->addr;
        my $nginx = start($addr, undef, workers => $workers);

        degraded($nginx, 200, 'storage_unavailable|circuit_open');
        complaints($nginx, 1,
                   qr/\[error\].* connect\(\) to \Q$addr\E failed \(111: .*/
                   . ", redis: \Q$addr\E\$");
        ok $nginx->wait_log(qr/is unavailable/, 20), 'given up';
        is_deeply([changes($nginx, $addr)],
                  ['notice fallback, failure: refused',
                   'error circuit_open, failure: refused'],
                  'what it did to the shard');

        $late->start;
        ok $nginx->wait_log(qr/ratelimit: redis \Q$addr\E is available again after/,
                            20), 'its end';
        is((changes($nginx, $addr))[2], 'error distributed again',
           'one line as well');
        ok wait_until(sub { works($nginx) }), 'in use';
        complaints($nginx, 1);

        stopped($nginx);
    };
}


# At the level that people run, and in words that fit what they have written.

for my $case (
    ['local', '', 'limits of its keys are local'],
    ['open', '', 'its keys are not limited'],
    ['closed', '', 'requests for its keys are rejected'],
    ['open', 'location /u { ratelimit_on_error closed; ratelimit_rate 1r/s; '
             . 'empty_gif; }',
     'limits of its keys follow "ratelimit_on_error"'],
) {
    my ($policy, $more, $words) = @$case;

    subtest "the beginning and the end of an outage are errors: $words" => sub {
        my $late = RateLimit::Redis->new;
        my $addr = $late->addr;
        my $nginx = start($addr, "ratelimit_on_error $policy;",
            log    => 'error',
            server => "location /t { ratelimit_rate 1000000r/s; empty_gif; } $more");

        my $ask = sub { $nginx->get('/t') };

        ok wait_until(sub { $ask->(); $nginx->log_like(qr/is unavailable/) },
                      20), 'it begins';

        $late->start;

        ok wait_until(sub { $ask->(); $nginx->log_like(qr/available again/) },
                      20), 'and ends';

        my @lines = map { /\[error\] [^ ]+ (ratelimit: .*)/ ? $1 : () }
                    split /\n/, $nginx->error_log;

        is scalar @lines, 2, 'a line each' or diag $nginx->error_log;
        is $lines[0], "ratelimit: redis $addr is unavailable (refused), $words "
                      . 'until it answers', 'what it means';
        like $lines[1], qr/^ratelimit: redis \Q$addr\E is available again after [1-9]\d* s$/,
             'how long it was';

        stopped($nginx);
    };
}


subtest 'the clock is set during an outage: no line for that' => sub {
    my $clock = RateLimit::Clock->new;
    my $late = RateLimit::Redis->new;
    my $addr = $late->addr;
    my $nginx = $clock->run(sub { start($addr) });

    degraded($nginx, 20, 'storage_unavailable|circuit_open');
    ok $nginx->wait_log(qr/is unavailable/, 20), 'an outage';

    my $lines = $nginx->log_count(qr/./);

    for my $hours (-5, 9) {
        $clock->add($hours * 3600);
        degraded($nginx, 100, 'circuit_open');
    }

    is $nginx->log_count(qr/./), $lines, 'back and forth: nothing to say'
        or diag $nginx->error_log;

    $late->start;
    ok $nginx->wait_log(qr/ratelimit: redis \Q$addr\E is available again after/,
                        20), 'its end is told';

    # hours later by the clock of nginx

    my ($first, $last) = ($nginx->error_log =~ /^\S+ (\d\d):.* ratelimit:? /mg)
                         [0, -1];

    like(($last - $first) % 24, qr/^[45]$/, 'and nginx did see the clock');

    stopped($nginx);
};


subtest 'a socket that is not there is one line in the log' => sub {
    my $path = "$ENV{TEST_NGINX_DEAD_SOCK}";
    my $nginx = start("unix:$path");

    degraded($nginx, 200, 'storage_unavailable|circuit_open');
    complaints($nginx, 1, qr/ connect\(\) to unix:\Q$path\E failed \(2: /);

    stopped($nginx, except => qr/ connect\(\) to unix:/);
};


subtest 'no answers: one line for the calls, one for the connection' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => {} });
    my $addr = $fake->addr;
    my $nginx = start($addr, 'ratelimit_redis_timeout 10ms;'
                                   . 'ratelimit_breaker failures=100;');

    degraded($nginx, 50, 'timeout');
    ok $nginx->wait_log(qr/redis stopped answering/, 20), 'given up';
    complaints($nginx, 2,
               qr/\[error\].* no answer from redis \Q$addr\E: timeout$/,
               qr/\[error\].* redis stopped answering, /
               . 'connection closed \(110: ');

    stopped($nginx);
};


subtest 'error replies: one line for each class' => sub {
    my $fake = RateLimit::FakeRedis->start;
    my $addr = $fake->addr;
    my $nginx = start($addr, 'ratelimit_breaker failures=100;');

    $fake->policy({ eval => "-OOM command not allowed\x1b[1m \"now\".\r\n" });
    degraded($nginx, 30, 'storage_unavailable');
    $fake->policy({ eval => "-READONLY You can't write.\r\n" });
    degraded($nginx, 30, 'storage_unavailable');
    $fake->policy({ eval => '-OOM ' . 'x' x 5000 . "\r\n" });
    degraded($nginx, 30, 'storage_unavailable');

    complaints($nginx, 2,
               qr/\[error\].* redis \Q$addr\E answered /
               . '"OOM command not allowed\\\\x1B\[1m \\\\x22now\\\\x22\."$',
               qr/\[error\].* redis \Q$addr\E answered /
               . '"READONLY You can\'t write\."$');
    is_deeply([changes($nginx, $addr)],
              ['notice fallback, failure: oom'],
              'only the first one changed the state');

    # one more class of failure when the breaker opens: each call is counted,

    $fake->policy({ eval => "-BUSY a script runs\r\n",
                    handshake => { PROBE => "-BUSY a script runs\r\n" } });
    # and a call may be for as many requests as there are clients

    degraded($nginx, 1100, 'storage_unavailable|circuit_open');
    complaints($nginx, 3, qr/ redis \Q$addr\E answered "BUSY a script runs"$/);
    is((changes($nginx, $addr))[1],
       'error circuit_open, failure: busy', 'and what opened it');

    stopped($nginx);
};


subtest 'a long error reply is cut' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => '-OOM ' . 'x' x 5000 . "\r\n",
    });
    my $nginx = start($fake->addr);

    degraded($nginx, 1, 'storage_unavailable');
    complaints($nginx, 1, qr/answered "OOM x{150,160}"$/);

    stopped($nginx);
};


subtest 'a server that closes its connection for good: a few lines' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval      => { then => 'close' },
        handshake => { PROBE => [":1\r\n", "-ERR not again\r\n"] },
    });
    my $addr = $fake->addr;
    my $nginx = start($addr);

    degraded($nginx, 100, 'storage_unavailable|circuit_open') for 1 .. 3;
    complaints($nginx, 2,
               qr/\[error\].* redis closed the connection, calls lost: \d/);
    ok $nginx->wait_log(qr/is unavailable/, 20), 'given up';
    like(join("; ", changes($nginx, $addr)),
         qr/^notice fallback, failure: closed; error circuit_open, failure: (?:closed|error)$/,
         'each state once');

    stopped($nginx);
};


subtest 'a server that closes each connection: ten changes, then silence' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => { then => 'close' },
    });
    my $addr = $fake->addr;
    my $nginx = start($addr, 'ratelimit_breaker failures=3 probe=100ms;');

    ok wait_until(sub {
        $nginx->get('/t');
        $fake->connections->{accepted} >= 30;
    }, 60), '30 connections';

    my @changes = changes($nginx, $addr);

    for my $level (qw(notice error)) {
        is(scalar(grep { /^$level / } @changes), 10,
           "ten lines at level $level, for more changes than that");
    }

    is(scalar(grep { !/^(?:notice fallback|error circuit_open), failure: (?:closed|refused)$|^(?:notice|error) distributed again$/ }
                   @changes), 0, 'on changes of all kinds')
        or diag(join "\n", @changes);

    # what failed is told again after each of those that say it is over

    complaints($nginx, 2 * (1 + grep { /again/ } @changes));
    ok($nginx->log_count(qr/\[error\].* redis closed the connection, calls lost/)
       > 1, 'so that the next outage has its line, too');

    stopped($nginx);
};


subtest 'no RESP: one line, and one for the next connection' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval      => "HTTP/1.1 400 Bad Request\r\n\r\n",
        handshake => { PROBE => [":1\r\n", "-ERR not again\r\n"] },
    });
    my $nginx = start($fake->addr);

    degraded($nginx, 100, 'storage_unavailable|circuit_open');
    complaints($nginx, 2, qr/\[error\].* invalid or too large reply from redis/);

    stopped($nginx);
};


subtest 'a second outage is told as the first one was' => sub {
    my $server = RateLimit::Redis->start;
    my $addr = $server->addr;
    my $nginx = start($addr);
    my $works = sub { wait_until(sub { works($nginx) }, 20) };

    # a connection that has lived for a second is no mere attempt

    my $settled = sub {
        wait_until(sub { $server->cmd('CLIENT', 'LIST')
                             =~ /name=nginx-ratelimit\S* age=[2-9]/ }, 20)
    };

    ok $works->(), 'works';

    for my $n (1, 2) {
        ok $settled->(), 'for a while';
        $server->stop;
        ok wait_until(sub {
            $nginx->get('/t');
            $nginx->log_count(qr/\[error\].*redis: \Q$addr\E$/) >= $n;
        }, 10), "outage $n is told";

        $server->start;
        ok $works->(), 'works again';
        ok wait_until(sub { $nginx->log_count(qr/distributed again|available again/) >= $n },
                      10), "end of outage $n is told";
    }

    complaints($nginx, 6);
    stopped($nginx);
};


__DATA__

=== TEST 1: a pass is logged at info
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 5; ratelimit_cost 2;
              empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 3
--- error_log eval
['ratelimit PASSED, limit: "localhost/t", key: "127.0.0.1", cost: 2, '
 . 'remaining: 3 of 5, retry after: 0, source: redis, client: 127.0.0.1, '
 . 'server: localhost, request: "GET /t HTTP/1.1"',
 qr/\[info\] .* ratelimit PASSED/]
--- no_error_log
[error]
[alert]



=== TEST 2: a rejection is logged at error
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d;
              ratelimit_deny_cache off; empty_gif; }
--- request eval
["GET /t?k=me", "GET /t?k=me"]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 2]
--- after
my @lines = ::decisions();
::is(scalar @lines, 2, 'one line each');
::is($lines[0], 'info: ratelimit PASSED, limit: "localhost/t", key: "me", '
     . 'cost: 1, remaining: 0 of 1, retry after: 0, source: redis', 'passed');
::like($lines[1], qr/^error: ratelimit REJECTED, limit: "localhost\/t", /,
       'rejected');
::like($lines[1], qr/, key: "me", cost: 1, remaining: 0 of 1, /, 'who');
::like($lines[1], qr/, retry after: 86[34]\d\d, source: redis$/, 'how long');



=== TEST 3: a rejection is logged at the level that is asked for
--- log_level: debug
--- config
ratelimit_rate 1r/d;
location /first { empty_gif; }
location /debug { ratelimit_log_level debug; empty_gif; }
location /info { ratelimit_log_level info; empty_gif; }
location /notice { ratelimit_log_level notice; empty_gif; }
location /warn { ratelimit_log_level warn; empty_gif; }
location /error { ratelimit_log_level error; empty_gif; }
--- request eval
[map { "GET /$_" } qw(first debug info notice warn error)]
--- error_code eval
[200, (429) x 5]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 6]
--- after
::is_deeply([map { /^(\w+): ratelimit (\w+)/ } ::decisions()],
            ['info', 'PASSED', map { $_ => 'REJECTED' }
                                   qw(debug info notice warn error)],
            'the levels');



=== TEST 4: what is below the level of the log is not in it
--- log_level: warn
--- config
ratelimit_rate 1r/d;
location /first { empty_gif; }
location /notice { ratelimit_log_level notice; empty_gif; }
location /warn { ratelimit_log_level warn; empty_gif; }
--- request eval
["GET /first", "GET /notice", "GET /warn"]
--- error_code eval
[200, 429, 429]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 3]
--- after
::is_deeply([map { /^(\w+): ratelimit (\w+)/ } ::decisions()],
            ['warn', 'REJECTED'], 'the lines');



=== TEST 5: a dry run is logged as a rejection, and as what it is
--- config
location /t { ratelimit_dry_run on; ratelimit_headers legacy dry_run;
              ratelimit_log_level warn;
              ratelimit_rate 1r/d; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 2]
--- after
my $line = (::decisions())[1];
::like($line, qr/^warn: ratelimit REJECTED_DRY_RUN, limit: "localhost\/t", /,
       'the line');
::like($line, qr/, cost: 1, remaining: 0 of 1, retry after: 86[34]\d\d, /,
       'its numbers');



=== TEST 6: skipped and degraded requests are logged at info
--- config
location /skip { ratelimit_key ""; ratelimit_rate 1r/d; empty_gif; }
location /dead { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
                 ratelimit_on_error open; ratelimit_breaker failures=100;
                 ratelimit_rate 1r/d; empty_gif; }
location /closed { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
                   ratelimit_on_error closed; ratelimit_breaker failures=100;
                   ratelimit_rate 1r/d; empty_gif; }
location /bad { ratelimit_rate $arg_r; empty_gif; }
--- request eval
["GET /skip", "GET /dead", "GET /closed", "GET /bad"]
--- error_code eval
[200, 200, 503, 200]
--- response_headers eval
["!X-RateLimit-Degraded", ("X-RateLimit-Degraded: true") x 3]
--- after
::is_deeply([::decisions()], [
    'info: ratelimit SKIPPED, limit: "localhost/skip", the key is empty',
    'info: ratelimit DEGRADED, limit: "localhost/dead", key: "127.0.0.1", '
    . 'source: open, failure: refused',
    'info: ratelimit DEGRADED, limit: "localhost/closed", key: "127.0.0.1", '
    . 'source: closed, failure: refused',
    'info: ratelimit DEGRADED, limit: "localhost/bad", key: "127.0.0.1", '
    . 'source: open, failure: config' ], 'the lines');



=== TEST 7: where no token ever comes, the log says so
--- config
location /t { ratelimit_rate 0r/s; ratelimit_capacity 1; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Remaining: 0") x 2]
--- after
::is((::decisions())[1], 'error: ratelimit REJECTED, limit: "localhost/t", '
     . 'key: "127.0.0.1", cost: 1, remaining: 0 of 1, retry after: -1, '
     . 'source: denied', 'the line');



=== TEST 8: a key can't forge a line, end a quote or send a control character
--- config
location / { ratelimit_key $uri; ratelimit_rate 1r/d; empty_gif; }
--- request eval
[("GET /a%0d%0a2026%20forged%20%22b%22%5c%1b%7f%c3%a9%ff%01%09.") x 2]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Limit: 1") x 2]
--- no_error_log eval
[qr/^2026 /, qr/[^\x20-\x7e\n]/, "[alert]"]
--- after
::is(scalar(grep { index($_, 'key: "/a\\x0D\\x0A2026 forged \\x22b\\x22\\x5C'
                             . '\\x1B\\x7F\\xC3\\xA9\\xFF\\x01\\x09.", cost: ')
                   >= 0 } ::decisions()), 2, 'escaped in both lines');



=== TEST 9: a binary key is logged as hexadecimal, unless it is an address
--- config
location /address { ratelimit_key $binary_remote_addr; ratelimit_rate 1r/d;
                    empty_gif; }
location /braces  { ratelimit_key ${binary_remote_addr}; ratelimit_rate 1r/d;
                    empty_gif; }
location /bytes   { ratelimit_key x$binary_remote_addr; ratelimit_rate 1r/d;
                    empty_gif; }
--- request eval
["GET /address", "GET /braces", "GET /bytes"]
--- response_headers eval
[("X-RateLimit-Limit: 1") x 3]
--- after
::is_deeply([map { /key: "([^"]*)"/ } ::decisions()],
            ['127.0.0.1', '127.0.0.1', 'x\\x7F\\x00\\x00\\x01'], 'the keys');
--- no_error_log
[alert]



=== TEST 10: of a long key the beginning is logged, of a very long one its SHA-1
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; empty_gif; }
location /uri { ratelimit_key $uri; ratelimit_rate 1r/d;
                try_files /none @ok; }
location @ok { return 200; }
--- request eval
["GET /t?k=" . 'a' x 64, "GET /t?k=" . 'b' x 65, "GET /t?k=" . 'c' x 256,
 "GET /t?k=" . 'd' x 257, "GET /uri" . '%ff' x 200]
--- error_code eval
[(200) x 5]
--- response_headers eval
[("X-RateLimit-Limit: 1") x 5]
--- after
::is_deeply([map { /key: "([^"]*)"/ } ::decisions()],
            ['a' x 64, 'b' x 64, 'c' x 64,
             'sha1:' . Digest::SHA::sha1_hex('d' x 257),
             '/uri' . '\\xFF' x 60], 'the keys');



=== TEST 11: no password is logged, whether it is right or wrong
--- config
ratelimit_shards $TEST_NGINX_REDIS_LOCKED_ADDR;
ratelimit_redis_password right-secret;
ratelimit_rate 1r/d;
ratelimit_capacity 9;
location /right { empty_gif; }

# each in a database of its own, and so with lines of its own

location /wrong { ratelimit_redis_password wrong-secret;
                  ratelimit_redis_database 2; empty_gif; }
location /bob { ratelimit_redis_user bob; ratelimit_redis_password bobs-secret;
                empty_gif; }
location /bad { ratelimit_redis_user bob; ratelimit_redis_password bad-secret;
                ratelimit_redis_database 2; empty_gif; }
location /url {
    ratelimit_shards redis://bob:url-secret@$TEST_NGINX_REDIS_LOCKED_ADDR/1;
    empty_gif;
}
location /none { ratelimit_redis_password ""; ratelimit_redis_database 3;
                 empty_gif; }
--- request eval
[map { "GET /$_" } qw(right wrong bob bad url none)]
--- error_code eval
[(200) x 6]
--- response_headers eval
["X-RateLimit-Remaining: 8", "X-RateLimit-Degraded: true",
 "X-RateLimit-Remaining: 7", ("X-RateLimit-Degraded: true") x 3]
--- no_error_log
secret
[alert]
--- after
my $log = ::slurp($Test::Nginx::Util::ErrLogFile);
::unlike($log, qr/secret/, 'no secret');
my $addr = $::locked->addr;
::is(() = $log =~ /\[error\].* redis refused AUTH: "WRONGPASS [^"]*", /g, 3,
     'one line for each wrong password');
::is(() = $log =~ /"WRONGPASS [^"]*", redis: \Q$addr\E(?:\/1)?\n/g, 3,
     'which name the server');
::is(() = $log =~ /\[error\].* redis refused SELECT: "NOAUTH /g, 1,
     'one line for the missing one');



=== TEST 12: nor by a server that knows no AUTH and repeats what it got
--- log_level: debug
--- config
location /t { ratelimit_shards $TEST_NGINX_REDIS_OLD_ADDR;
              ratelimit_redis_password top-secret; ratelimit_rate 1r/d;
              empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Degraded: true
--- error_log eval
qr/\[error\].* redis refused AUTH/
--- no_error_log
secret
[alert]



=== TEST 13: a password in the configuration is not in the debug log either
--- log_level: debug
--- config
location /t {
    ratelimit_shards redis://bob:bobs-secret@$TEST_NGINX_REDIS_LOCKED_ADDR;
    ratelimit_rate 1r/d;
    empty_gif;
}
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 0
--- no_error_log
secret
[alert]



=== TEST 14: a server that is there from the start is not worth a line
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
--- request
GET /t
--- response_headers
X-RateLimit-Remaining: 0
--- no_error_log
ratelimit shard
[error]
[warn]
[alert]



=== TEST 15: what this machine decides in an outage is logged like any decision
--- config
location /t { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
              ratelimit_breaker failures=100; ratelimit_local_share 1/2;
              ratelimit_log_level warn;
              ratelimit_rate 1r/d; ratelimit_capacity 2; empty_gif; }
location /open { ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT2;
                 ratelimit_breaker failures=1 probe=1h;
                 ratelimit_rate 1r/d; ratelimit_capacity 5; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /open", "GET /open"]
--- error_code eval
[200, 429, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 3"]
--- after
my @lines = ::decisions();
::is($lines[0], 'info: ratelimit DEGRADED, limit: "localhost/t", '
     . 'key: "127.0.0.1", source: local, failure: refused', 'passed');
::like($lines[1], qr{^warn: ratelimit REJECTED, limit: "localhost/t", key: },
       'rejected, at its level');
::like($lines[1], qr/, cost: 1, remaining: 0 of 1, retry after: 172[78]\d\d, source: local, failure: (?:refused|circuit_open)$/,
       'by the share');
::is($lines[3], 'info: ratelimit DEGRADED, limit: "localhost/open", '
     . 'key: "127.0.0.1", source: local, failure: circuit_open',
     'passed without asking');
