# Error replies, of a fake server and of real ones.  None of them means "over
# the limit": the failure policy decides, the log says once what it was, and
# the next call tries again, unless there were so many that the circuit breaker
# spares the server.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes qw(time);

use RateLimit::Answer;
use RateLimit::Background;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until write_file);


# "http" are the lines that name the shards.  Where the circuit breaker is not
# what a test is about, it is out of the way.

sub start {
    my ($http, %opt) = @_;

    my $server = delete $opt{server} // '';
    my $breaker = delete $opt{breaker} // 'failures=100 window=100ms';

    return RateLimit::Nginx->start(
        workers => 1,
        %opt,
        conf    => <<"EOC",
            ratelimit_redis_timeout 20s;
            ratelimit_redis_connect_timeout 20s;
            ratelimit_breaker $breaker;
            ratelimit_deny_cache off;
            $http
EOC
        server  => <<"EOC",
            ratelimit_key      \$arg_k;
            ratelimit_capacity 1000000;
            ratelimit_rate     0r/s;
            add_header         X-Source \$ratelimit_source always;

            location /       { empty_gif; }
            location /open   { ratelimit_on_error open; empty_gif; }
            location /closed { ratelimit_on_error closed; empty_gif; }
            $server
EOC
    );
}


# All policies, and that the class of the failure is in the decision's line.

sub fails {
    my ($nginx, $class, $name) = @_;

    my $reason = $class eq 'circuit_open' ? $class : 'storage_unavailable';
    my $from = length $nginx->error_log;
    my ($local, $open, $closed) = map {
        $nginx->get("$_?k=f")
    } '/', '/open', '/closed';
    my $log = substr $nginx->error_log, $from;

    subtest $name => sub {
        is verdict($local), "200 local $reason", 'local';
        is $local->{headers}{'x-ratelimit-limit'}, 1_000_000, 'its own limit';
        is verdict($open), "200 open $reason", 'open';
        is $open->{headers}{'x-ratelimit-limit'}, undef, 'no limit';
        is verdict($closed), "503 closed $reason", 'closed';
        is $closed->{headers}{'retry-after'}, 1, 'Retry-After';
        is $_->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded'
            for $local, $open, $closed;
        is_deeply [$log =~ /DEGRADED.* failure: (\w+)/g], [($class) x 3],
                  'its class in the line of the decision';
    };
}


subtest 'every class of error reply is told in the log and left to the policy'
    => sub
{
    my $sha = 'c3d8ef73d8b4a5e1a9a8b1b1d3b8a2d7d1a5c4e0';
    my @cases = (
        [oom        => "OOM command not allowed when used memory > "
                       . "'maxmemory'."],
        [oom        => "OOM command not allowed when used memory > "
                       . "'maxmemory'. script: $sha, on \@user_script:68."],
        [oom        => "ERR Error running script (call to f_$sha): "
                       . "\@user_script:68: \@user_script: 68: -OOM command "
                       . "not allowed when used memory > 'maxmemory'."],
        [readonly   => "READONLY You can't write against a read only replica."],
        [loading    => 'LOADING Redis is loading the dataset in memory'],
        [busy       => 'BUSY Redis is busy running a script. You can only call '
                       . 'SCRIPT KILL or SHUTDOWN NOSAVE.'],
        [busy       => 'TRYAGAIN Multiple keys request during rehashing'],
        [masterdown => 'MASTERDOWN Link with MASTER is down and '
                       . "replica-serve-stale-data is set to 'no'."],
        [masterdown => 'NOREPLICAS Not enough good replicas to write.'],
        [misconf    => 'MISCONF Redis is configured to save RDB snapshots, but '
                       . "it's currently unable to persist to disk."],
        [auth       => 'NOAUTH Authentication required.'],
        [auth       => 'WRONGPASS invalid username-password pair or user is '
                       . 'disabled.'],
        [auth       => "NOPERM this user has no permissions to run the "
                       . "'evalsha' command"],
        [auth       => "ERR The user executing the script can't run this "
                       . "command or subcommand script: $sha"],
        [clients    => 'ERR max number of clients reached'],
        [moved      => 'MOVED 3999 127.0.0.1:6381'],
        [moved      => 'ASK 3999 127.0.0.1:6381'],
        [moved      => 'CLUSTERDOWN Hash slot not served'],
        [moved      => "CROSSSLOT Keys in request don't hash to the same slot"],
        [wrongtype  => 'WRONGTYPE Operation against a key holding the wrong '
                       . 'kind of value'],
        [error      => 'ERR something else'],
        [error      => 'ERR'],
        [error      => ''],
        [error      => 'OOMPH is another word'],
        [error      => 'ERR an error of many words: ' . 'x' x 10_000],
    );

    # a place of each, with a database of its own: each logs for itself

    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => sub {
            my ($args) = @_;
            return $args->[3] =~ /\{case(\d+)\}/ ? "-$cases[$1][1]\r\n"
                                                 : ":7000000\r\n";
        },
    });

    my $places = join '', map {
        my $case = $_;
        map {
            "location /$_$case/ { ratelimit_redis_database " . ($case + 1)
            . "; ratelimit_on_error $_; empty_gif; }\n"
        } 'local', 'open', 'closed';
    } 0 .. $#cases;

    my $nginx = start('ratelimit_shards ' . $fake->addr . ';',
                      server => $places);

    for my $i (0 .. $#cases) {
        my ($class, $text) = @{ $cases[$i] };

        my $from = length $nginx->error_log;
        my @got = map { ask($nginx, "/$_$i/?k=case$i") }
                  ('local', 'open', 'closed') x 2;
        my $log = substr $nginx->error_log, $from;

        subtest "$class: " . substr($text, 0, 40) => sub {
            is_deeply \@got, [('200 local storage_unavailable',
                               '200 open storage_unavailable',
                               '503 closed storage_unavailable') x 2],
                      'the failure policy decides';
            is_deeply [$log =~ /DEGRADED.* failure: (\w+)/g], [($class) x 6],
                      'the class is in each line of a decision';

            my @errors = $log =~ /\[error\] (.*)/g;
            my $start = quotemeta substr $text, 0, 80;

            is scalar @errors, 1, 'one line is an error';
            like $errors[0], $class eq 'moved'
                             ? qr/ redis \S+ is a node of a cluster: write /
                             : qr/ redis \S+ answered "$start/,
                 'with the text, or with what is to be done';
            cmp_ok length $errors[0], '<', 400, 'of bearable length';

            is ask($nginx, "/local$i/?k=7"), '200 redis 7',
               'the next call is as good as any';
        };
    }

    is $fake->connections->{accepted}, 1 + @cases, 'no connection was closed';

    $nginx->finish;
};


subtest 'the classes of failures of a server open the circuit, others do not'
    => sub
{
    my %counts = (
        oom        => 'OOM x',        readonly  => 'READONLY x',
        loading    => 'LOADING x',    busy      => 'BUSY x',
        masterdown => 'MASTERDOWN x', misconf   => 'MISCONF x',
        auth       => 'NOPERM x',     noscript  => 'NOSCRIPT x',
        moved      => 'MOVED x',
        clients    => 'ERR max number of clients reached',
    );

    # of one key, as far as is known

    my %not = (wrongtype => 'WRONGTYPE x', clock => 'CLOCK x', error => 'ERR x');

    # a place of each, with a database of its own: the breakers are apart

    my @classes = sort keys %counts, keys %not;
    my %place = map { $classes[$_] => $_ + 1 } 0 .. $#classes;
    my $good = { eval => ":7000000\r\n" };
    my $fake = RateLimit::FakeRedis->start(policy => $good);
    my $nginx = start(
        'ratelimit_shards ' . $fake->addr . ';',
        breaker => 'failures=5 window=1h probe=100ms',
        server  => join '', map {
            "location /db$_/ { ratelimit_redis_database $_; empty_gif; }\n"
        } values %place);

    for my $class (@classes) {
        my $text = $counts{$class} // $not{$class};
        my $label = $fake->addr . "/$place{$class}";
        my $ask = sub { ask($nginx, "/db$place{$class}/?k=a") };

        subtest "$class: " . ($counts{$class} ? 'yes' : 'no') => sub {
            is $ask->(), '200 redis 7', 'all is well';
            is_deeply $nginx->state_names($label), [], 'so there is nothing to say';

            $fake->policy({ eval => "-$text\r\n",
                            handshake => { PROBE => "-$text\r\n" } });

            my $from = length $nginx->error_log;

            is_deeply [map { $ask->() } 1 .. 5],
                      [('200 local storage_unavailable') x 5], 'five failures';
            is_deeply [substr($nginx->error_log, $from)
                       =~ /DEGRADED.* failure: (\w+)/g], [($class) x 5],
                      'of this class';

            my $sent = $fake->commands('EVALSHA');

            if ($not{$class}) {
                is_deeply [map { $ask->() } 1 .. 5],
                          [('200 local storage_unavailable') x 5],
                          'and five more';
                is scalar $fake->commands('EVALSHA'), $sent + 5, 'were sent';
                is_deeply $nginx->state_names($label), [], 'without any state';

                $fake->policy($good);
                is $ask->(), '200 redis 7', 'the next one is fine';
                return;
            }

            is_deeply [map { $ask->() } 1 .. 5],
                      [('200 local circuit_open') x 5], 'then it is open';
            is scalar $fake->commands('EVALSHA'), $sent, 'and none is sent';
            is_deeply $nginx->state_names($label),
                      ["fallback, failure: $class",
                       "circuit_open, failure: $class"], 'both states are told';

            my $accepted = $fake->connections->{accepted};

            $fake->policy($good);
            ok wait_until(sub { $ask->() eq '200 redis 7' }, 10),
               'closed when a probe succeeds';

            # behind the address of a replica there may be another server soon

            cmp_ok $fake->connections->{accepted} - $accepted, '<=',
                   $class eq 'readonly' ? 1 : 0, 'on the same connection';
            is_deeply $nginx->state_names($label),
                      ["fallback, failure: $class",
                       "circuit_open, failure: $class", 'distributed again'],
                      'which is told';
        };
    }

    $nginx->finish;
};


# Not what the server says about itself, but what it says at all.

subtest 'a wrong reply and the connection that it ends are one failure' => sub {
    my $good = { eval => ":7000000\r\n" };

    for my $reply ("+OK\r\n", "hello\r\n") {
        my $fake = RateLimit::FakeRedis->start(policy => $good);
        my $nginx = start('ratelimit_shards ' . $fake->addr . ';',
                          breaker => 'failures=2 window=1h probe=100ms');

        is ask($nginx, '/?k=a'), '200 redis 7', 'all is well';

        # it takes two

        for my $states (['fallback, failure: protocol', 'distributed again'],
                        ['fallback, failure: protocol', 'distributed again',
                         'circuit_open, failure: protocol',
                         'distributed again'])
        {
            $fake->policy({ eval => $reply });
            is ask($nginx, '/?k=a'), '200 local storage_unavailable',
               'no reply';

            $fake->policy($good);
            ok wait_until(sub { @{ $nginx->state_names($fake->addr) } == @$states },
                          10), 'a new connection';
            is_deeply $nginx->state_names($fake->addr), $states, 'all is told';
        }

        $nginx->finish;
    }
};


subtest 'what a server says can not forge the log' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => [ qq{-ERR "evil" 2026/01/01 [alert] }
                  . qq{\t\\ \x01\x7f\xe2\x80\xae\r\n},
                  qq{-OOM evil\n2026/01/01 [alert] evil\r\n} ],
    });
    my $nginx = start('ratelimit_shards ' . $fake->addr . ';');

    is ask($nginx, '/?k=a'), '200 local storage_unavailable', 'a failure';
    ok $nginx->log_like(qr/answered "ERR \\x22evil\\x22 2026\/01\/01 /),
       'quotes are escaped';
    ok $nginx->log_like(qr/\\x09\\x5C \\x01\\x7F\\xE2\\x80\\xAE"/),
       'so are all other odd bytes';

    # hiredis takes a line feed in an error for what it is since 1.1
    is ask($nginx, '/?k=b'), '200 local storage_unavailable', 'another one';
    ok $nginx->log_like(qr/answered "OOM evil\\x0A2026|invalid or too large reply/),
       'a line feed is escaped, or no reply at all';
    ok !$nginx->log_like(qr/^2026\/01\/01 \[alert\]/m), 'no line is forged';

    $nginx->finish(except => qr/answered/);
};


subtest 'passwords are sent, and never logged' => sub {
    my $secret = 'pa ss:w@rd/%41$#"x';
    my $redis = RateLimit::Redis->start;

    # by ACL, as no quoting is needed

    $redis->cmd('ACL', 'SETUSER', 'web', 'on', ">$secret", '~*', '+@all');
    $redis->cmd('ACL', 'SETUSER', 'default', ">$secret", 'resetkeys', '~*');
    $redis->{auth} = [$secret];

    my $addr = $redis->addr;
    my $encoded = $secret =~ s/([^A-Za-z])/sprintf '%%%02X', ord $1/ger;
    my $quoted = $secret =~ s/(["\\])/\\$1/gr;

    my %good = (
        directive     => qq{ratelimit_redis_password "$quoted";
                            ratelimit_shards $addr;},
        file          => 'ratelimit_redis_password_file %%FILE%%;'
                         . "ratelimit_shards $addr;",
        URL           => "ratelimit_shards redis://:$encoded\@$addr;",
        'user by URL' => "ratelimit_shards redis://web:$encoded\@$addr;",
        user          => qq{ratelimit_redis_user web;
                            ratelimit_redis_password "$quoted";
                            ratelimit_shards $addr;},
        'URL before directive'
                      => qq{ratelimit_redis_password wrong;
                            ratelimit_redis_user nobody;
                            ratelimit_shards redis://:$encoded\@$addr;},
    );

    my $file = $redis->dir . '/password';

    write_file($file, "$secret\r\nanother line\n");

    for my $how (sort keys %good) {
        $redis->cmd('FLUSHALL');

        my $nginx = start($good{$how} =~ s/%%FILE%%/$file/r, log => 'debug');

        is ask($nginx, '/?k=a'), '200 redis 999999', "by $how";
        is $redis->cmd('DBSIZE'), 1, 'in Redis';

        my ($client) = $redis->client_list;
        is $client->{user}, $how =~ /user/ ? 'web' : 'default', 'the user';

        ok index($nginx->error_log, $secret) < 0
           && index($nginx->error_log, $encoded) < 0,
           'not in the log';

        $nginx->finish;
    }

    # wrong, missing, or for nobody

    my %bad = (
        missing => "ratelimit_shards $addr;",
        wrong   => "ratelimit_redis_password wr0ng; ratelimit_shards $addr;",
        url     => "ratelimit_shards redis://:wr0ng\@$addr;",
        nobody  => "ratelimit_redis_user nobody; "
                   . "ratelimit_redis_password wr0ng; "
                   . "ratelimit_shards $addr;",
    );

    for my $how (sort keys %bad) {
        my $nginx = start($bad{$how}, log => 'debug');

        fails($nginx, 'auth', "password: $how");
        fails($nginx, 'auth', 'and again');

        my $words = $how eq 'missing' ? 'CLIENT SETNAME: "NOAUTH'
                                      : 'AUTH: "WRONGPASS';

        ok $nginx->log_like(qr/\[error\].*redis refused $words .*\Q$addr\E/),
           'logged';
        is $nginx->log_count(qr/\[error\](?!.* ratelimit: )/), 1, 'once';
        ok !$nginx->log_like(qr/wr0ng/), 'without the password';

        $nginx->finish;
    }

    # a password that the server does not want

    my $open = RateLimit::Redis->start;
    my $nginx = start('ratelimit_redis_password some; ratelimit_shards '
                      . $open->addr . ';');

    fails($nginx, 'auth', 'a password too many');

    # it is put right on the server while nginx runs

    $open->cmd('CONFIG', 'SET', 'requirepass', 'some');
    ok works($nginx), 'set on the server: works';

    $nginx->finish;
};


subtest 'an ACL user needs the documented commands and no others' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my @needed = qw(evalsha eval hmget hget hset exists pexpire pttl time type
                    del mget set setrange zadd zcard zcount zrange
                    zremrangebyrank);

    my $user = sub {
        $redis->cmd('ACL', 'SETUSER', 'web', 'reset', 'on', '>pw',
                    '~ratelimit:*', @_);
    };

    # CLIENT SETNAME and SCRIPT LOAD are a service, not needed

    $user->(map { "+$_" } @needed);

    my $nginx = start("ratelimit_shards redis://web:pw\@$addr;",
                      server => <<'EOC');
        location /one    { ratelimit_rate 1r/h; ratelimit_capacity 1;
                           empty_gif; }
        location /quick  { ratelimit_rate 1r/m; ratelimit_capacity 1;
                           empty_gif; }
        location /slow   { ratelimit_capacity 1; empty_gif; }
        location /window { ratelimit_algorithm sliding_window_log;
                           ratelimit_window 1s; ratelimit_capacity 1;
                           empty_gif; }
        location /gcra   { ratelimit_algorithm gcra; ratelimit_rate 1r/h;
                           ratelimit_capacity 1; empty_gif; }
EOC

    is ask($nginx, '/?k=a'), '200 redis 999999', 'these commands are enough';
    is ask($nginx, '/?k=a'), '200 redis 999998', 'every time';

    for my $path (qw(/one /quick /slow /window /gcra)) {
        is ask($nginx, "$path?k=a"), '200 redis 0', "to pass in $path";
        is ask($nginx, "$path?k=a"), '429 redis 0', 'and to be denied';
    }

    ok wait_until(sub { ask($nginx, '/window?k=a') eq '200 redis 0' }, 10),
       'and to pass when the window has moved on';
    is $nginx->log_count(qr/\[info\].*refused CLIENT SETNAME, which is optional/),
       1, 'CLIENT SETNAME was refused';
    is $nginx->log_count(qr/\[info\].*refused SCRIPT LOAD, which is optional/),
       6, 'so was SCRIPT LOAD, of six scripts';
    is $nginx->log_count(qr/\[error\](?!.* ratelimit REJECTED)/), 0,
       'no error';

    # one after the other is taken away; within a script it is an ERR

    for my $lost (qw(evalsha eval hmget time hset pexpire type del)) {
        my $from = length $nginx->error_log;

        $redis->cmd('FLUSHALL');
        $user->(map { "+$_" } grep { $_ ne $lost } @needed);

        # what the calls of a connection need, and what a new one needs

        if ($lost !~ /^(?:eval|type|del)$/) {
            ok wait_until(sub {
                ask($nginx, '/?k=a');
                substr($nginx->error_log, $from) =~ /failure: auth\b/
            }, 10), "without $lost";
        }

        $nginx->reload;
        ok $nginx->old_workers_gone(10), 'reloaded';
        fails($nginx, 'auth', "without $lost");

        $user->(map { "+$_" } @needed);
        ok works($nginx), 'given back: works';
    }

    # a key that it may not touch

    $redis->cmd('ACL', 'SETUSER', 'web', 'resetkeys', '~other:*');
    $nginx->reload;
    fails($nginx, 'auth', 'no permission for the key');

    ok $nginx->old_workers_gone(10), 'old workers left';
    $nginx->finish;

    # SELECT, where one is asked for, is needed

    $user->(map { "+$_" } @needed);
    $nginx = start("ratelimit_shards redis://web:pw\@$addr/1;");

    fails($nginx, 'auth', 'SELECT is refused');
    ok $nginx->log_like(qr/\[error\].*redis refused SELECT: "NOPERM/), 'logged';

    $nginx->finish;
};


subtest 'each database is selected, a wrong one is a failure' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;

    my %where = (
        "ratelimit_shards $addr;"                                  => 0,
        "ratelimit_shards redis://$addr;"                          => 0,
        "ratelimit_shards redis://$addr/0;"                        => 0,
        "ratelimit_redis_database 3; ratelimit_shards $addr;"      => 3,
        "ratelimit_shards redis://$addr/5;"                        => 5,
        "ratelimit_redis_database 3; ratelimit_shards redis://$addr/6;" => 6,
        "ratelimit_redis_database 3; ratelimit_shards redis://$addr/0;" => 0,
        'ratelimit_redis_database 4; '
        . 'ratelimit_shards unix:' . $redis->socket . ';'          => 4,
    );

    for my $http (sort keys %where) {
        $redis->cmd('FLUSHALL');

        my $nginx = start($http);

        is ask($nginx, '/?k=a'), '200 redis 999999', 'answered';
        is_deeply [$redis->cmd('INFO', 'keyspace') =~ /^db(\d+):/mg],
                  [$where{$http}], "database $where{$http}";

        $nginx->finish;
    }

    my $nginx = start("ratelimit_shards redis://$addr/99;");

    fails($nginx, 'error', 'a database that does not exist');
    ok $nginx->log_like(qr/\[error\].*redis refused SELECT: "ERR DB index/),
       'logged';
    is $nginx->log_count(qr/\[error\](?!.* ratelimit: )/), 1, 'once';

    $nginx->finish;
};


subtest 'a real replica, out of memory, busy, ...' => sub {
    my $redis = RateLimit::Redis->start(
        config => { 'lua-time-limit' => 20, dbfilename => 'folder' });
    my $addr = $redis->addr;
    my $nginx = start("ratelimit_shards $addr;");
    my ($connection) = do { works($nginx); map { $_->{id} } $redis->client_list };

    $redis->cmd('CONFIG', 'SET', 'maxmemory', 1);
    fails($nginx, 'oom', 'out of memory');
    $redis->cmd('CONFIG', 'SET', 'maxmemory', 0);
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'works again at once';

    $redis->cmd('CONFIG', 'SET', 'min-replicas-to-write', 1);
    fails($nginx, 'masterdown', 'not enough replicas');
    $redis->cmd('CONFIG', 'SET', 'min-replicas-to-write', 0);
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'works again at once';

    # a snapshot can't be renamed to the name of a folder

    mkdir $redis->dir . '/folder';
    $redis->cmd('CONFIG', 'SET', 'save', '3600 1');
    $redis->cmd('BGSAVE');
    ok wait_until(sub {
        $redis->info('persistence')->{rdb_last_bgsave_status} eq 'err'
    }, 10), 'a failed snapshot';
    fails($nginx, 'misconf', 'can not persist');
    $redis->cmd('CONFIG', 'SET', 'save', '');
    rmdir $redis->dir . '/folder';
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'works again at once';

    # somebody else's data under our key

    $redis->cmd('SET', 'ratelimit:localhost:{f}', 'x');
    fails($nginx, 'wrongtype', 'a key of another type');
    $redis->cmd('DEL', 'ratelimit:localhost:{f}');
    is ask($nginx, '/?k=f'), '200 redis 999999', 'works again at once';

    # a replica, with and without its master

    my $master = RateLimit::Redis->start;

    $redis->cmd('REPLICAOF', '127.0.0.1', $master->port);
    ok wait_until(sub {
        $redis->info('replication')->{master_link_status} eq 'up'
    }, 15), 'a replica';
    fails($nginx, 'readonly', 'read only');

    $redis->cmd('CONFIG', 'SET', 'replica-serve-stale-data', 'no');
    $master->stop;
    ok wait_until(sub {
        $redis->try('GET', 'x') =~ /^MASTERDOWN/
    }, 15), 'master down';
    fails($nginx, 'masterdown', 'a replica without a master');

    $redis->cmd('REPLICAOF', 'NO', 'ONE');
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'promoted: works at once';

    is_deeply [map { $_->{id} } $redis->client_list], [$connection],
              'on one and the same connection';

    # a script without end: BUSY after 20 ms, until it is killed

    my $busy = IO::Socket::UNIX->new(Peer => $redis->socket) or die;
    my $script = 'while true do end';
    syswrite $busy, "*3\r\n\$4\r\nEVAL\r\n\$" . length($script)
                    . "\r\n$script\r\n\$1\r\n0\r\n";

    ok wait_until(sub { $redis->try('PING') =~ /^BUSY/ }, 10), 'busy';
    fails($nginx, 'busy', 'a script that never ends');

    my $second = start("ratelimit_shards $addr;");
    fails($second, 'busy', 'a new connection');
    ok $second->log_like(qr/\[error\].*redis refused CLIENT SETNAME: "BUSY/),
       'logged';

    $redis->cmd('SCRIPT', 'KILL');
    ok wait_until(sub { $redis->try('PING') !~ /^BUSY/ }, 10), 'killed';
    like ask($nginx, '/?k=a'), qr/^200 redis /, 'killed: works at once';
    ok works($second), 'so does the new connection, soon';
    is_deeply $second->state_names($addr),
              ['fallback, failure: busy', 'distributed again'],
              'which is logged';

    $_->finish for $nginx, $second;
};


subtest 'a real server that can not write: the circuit opens' => sub {
    my $redis = RateLimit::Redis->start(config => { 'lua-time-limit' => 20 });
    my $addr = $redis->addr;
    my $master = RateLimit::Redis->start;

    my $calls = sub {
        return $redis->cmd('INFO', 'commandstats')
               =~ /^cmdstat_evalsha:calls=(\d+)/m ? $1 : 0;
    };

    my %cases = (
        oom      => [sub { $redis->cmd('CONFIG', 'SET', 'maxmemory', 1) },
                     sub { $redis->cmd('CONFIG', 'SET', 'maxmemory', 0) }],
        readonly => [sub {
                         $redis->cmd('REPLICAOF', '127.0.0.1', $master->port);
                         wait_until(sub {
                             $redis->info('replication')->{master_link_status}
                             eq 'up'
                         }, 15) or die "no replica\n";
                     },
                     sub { $redis->cmd('REPLICAOF', 'NO', 'ONE') }],
    );

    for my $class (sort keys %cases) {
        my ($break, $mend) = @{ $cases{$class} };
        my $nginx = start("ratelimit_shards $addr;", breaker => 'failures=5');

        like ask($nginx, '/?k=a'), qr/^200 redis /, "$class: works before";
        my ($connection) = map { $_->{id} } $redis->client_list;

        $break->();
        is_deeply [map { ask($nginx, '/?k=a') } 1 .. 5],
                  [('200 local storage_unavailable') x 5], 'five failures';

        my $before = $calls->();
        fails($nginx, 'circuit_open', 'then the circuit is open') for 1 .. 2;
        is $calls->(), $before, 'and no call is made';

        # probes go on meanwhile, in vain, each as good as a call

        ok wait_until(sub {
            $redis->cmd('INFO', 'commandstats')
                =~ /^cmdstat_eval:calls=(\d+)/m && $1 >= 5
        }, 10), 'but probes are';
        fails($nginx, 'circuit_open', 'still open');

        $mend->();
        ok works($nginx), 'mended: works';
        is scalar(grep { $_->{id} == $connection } $redis->client_list),
           $class eq 'readonly' ? 0 : 1,
           'on the same connection, if it was not a replica\'s';
        is_deeply $nginx->state_names($addr),
                  ["fallback, failure: $class",
                   "circuit_open, failure: $class", 'distributed again'],
                  'all of that is told';
        is $nginx->log_count(qr/\[error\](?!.* ratelimit: )/), 1, 'the error once';

        $nginx->finish;
        $redis->reset_calls;
    }
};


subtest 'a real server that takes no more clients' => sub {
    my $redis = RateLimit::Redis->start;

    $redis->cmd('CONFIG', 'SET', 'maxclients', 1);

    my $nginx = start('ratelimit_shards ' . $redis->addr . ';');

    fails($nginx, 'clients', 'no room');
    is $nginx->log_count(qr/\[error\](?!.* ratelimit: )/), 1, 'logged once';
    ok $nginx->log_like(qr/\[error\].*"ERR max number of clients/), 'as such';

    $redis->cmd('CONFIG', 'SET', 'maxclients', 100);
    ok works($nginx), 'room again';

    $nginx->finish;
};


subtest 'a real cluster node is no shard' => sub {
    my $redis = RateLimit::Redis->start(
        config => { 'cluster-enabled' => 'yes' });
    my $nginx = start('ratelimit_shards ' . $redis->addr . ';');

    fails($nginx, 'moved', 'without slots');
    ok $nginx->log_like(qr/\[error\].*is\ a\ node\ of\ a\ cluster:\ write
                           \ "ratelimit_shards\ cluster/x), 'logged';

    $nginx->finish;
};


subtest 'a handshake that is refused sends no call' => sub {
    my %cases = (
        'LOADING Redis is loading the dataset in memory' => 'loading',
        'MASTERDOWN Link with MASTER is down'            => 'masterdown',
        'NOAUTH Authentication required.'                => 'auth',
    );

    for my $text (sort keys %cases) {
        my $fake = RateLimit::FakeRedis->start(policy => {
            handshake => { '*' => "-$text\r\n" },
            eval      => ":7000000\r\n",
        });
        my $nginx = start('ratelimit_shards ' . $fake->addr . ';');

        fails($nginx, $cases{$text}, $text);
        is scalar $fake->commands('EVALSHA'), 0, 'no call was sent';

        $fake->policy({ eval => ":7000000\r\n" });
        ok works($nginx), 'recovers';

        $nginx->finish;
    }

    # commands that an old or a small server does not know

    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { '*' => "-ERR unknown command\r\n",
                       PROBE => ":1\r\n" },
        eval      => ":7000000\r\n",
    });
    my $nginx = start('ratelimit_shards ' . $fake->addr . ';');

    is ask($nginx, '/?k=a'), '200 redis 7', 'unknown commands do no harm';
    is $nginx->log_count(qr/\[error\]/), 0, 'no error';

    $nginx->finish;
};


# The delays before the attempts to connect double from 50 ms up to 10 s, less
# a random part of at most one half.

sub most_attempts {
    my ($seconds) = @_;

    my ($n, $delay) = (1, 0.025);

    while (($seconds -= $delay) >= 0) {
        $n++;
        $delay = $delay >= 2.5 ? 5 : $delay * 2;
    }

    return $n;
}


subtest 'a refused password makes no storm' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        handshake => { AUTH => "-WRONGPASS invalid password\r\n" },
        eval      => ":7000000\r\n",
    });
    my $start = time;
    my $nginx = start('ratelimit_redis_password wr0ng; '
                      . 'ratelimit_shards ' . $fake->addr . ';',
                      breaker => 'failures=5', log => 'notice');

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, path => '/?k=a',
        duration => 3,
    );
    my $attempts = $fake->connections->{accepted};
    my $seconds = time - $start;

    is $load->error_text, '', 'every request is answered';
    is_deeply [keys %{ $load->statuses }], [200], 'by the failure policy';
    cmp_ok $load->count, '>', 500, 'many requests';
    cmp_ok $attempts, '>=', 3, 'it tries again';

    # four before the one that opens the breaker, whose pauses begin anew

    cmp_ok $attempts, '<=', 4 + most_attempts($seconds),
           'ever more slowly, however many requests there are';
    is $nginx->log_count(qr/\[error\](?!.* ratelimit: )/), 1, 'one error is logged';
    is_deeply $nginx->state_names($fake->addr),
              ['fallback, failure: auth', 'circuit_open, failure: auth'],
              'and that the circuit is open';

    $fake->policy({ eval => ":7000000\r\n" });
    ok works($nginx), 'recovers when the password is right';
    is_deeply [splice @{ $nginx->state_names($fake->addr) }, 2],
              ['distributed again'], 'which is told';

    $nginx->finish;
};


subtest 'SCRIPT FLUSH under load: nobody notices' => sub {
    my @redis = RateLimit::Redis->start_many(2);
    my $nginx = start("ratelimit_shards @{[map { $_->addr } @redis]};",
                      breaker => 'failures=5', workers => 2, log => 'notice');

    my $flusher = RateLimit::Background->start(sub {
        while (1) {
            $_->cmd('SCRIPT', 'FLUSH') for @redis;
        }
    });

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 20, duration => 2, keep => 1,
        path => sub { '/closed?k=' . $_[0] % 50 },
    );
    $flusher->kill('TERM');

    my $calls = sub {
        my ($command) = @_;

        return sum0 map {
            $_->cmd('INFO', 'commandstats') =~ /^cmdstat_$command:calls=(\d+)/m
                ? $1 : 0
        } @redis;
    };

    # before Redis 7 all of SCRIPT are counted as one

    my $flushes = $calls->('script(?:\|flush)?');

    cmp_ok $flushes, '>', 50, "many flushes ($flushes)";
    cmp_ok $calls->('eval'), '>', 10, 'the script was missed again and again';

    is $load->error_text, '', 'no error';
    is_deeply $load->statuses, { 200 => $load->count }, 'only 200';
    is_deeply [grep { $_->{headers}{'x-source'} ne 'redis' } $load->responses],
              [], 'all decided by Redis';

    my $taken = sum0 map {
        my $redis = $_;
        map { 1_000_000 - $redis->tokens($_) }
            @{ $redis->cmd('KEYS', '*') };
    } @redis;

    is $taken, $load->count, 'and each request was charged once';

    $nginx->finish;
};


subtest 'CLIENT KILL under load' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start('ratelimit_shards ' . $redis->addr . ';', workers => 2,
                      breaker => 'failures=5', log => 'notice');

    # connections that have lived for a while are made anew at once

    my $killer = RateLimit::Background->start(sub {
        my @old;

        wait_until(sub {
            @old = $redis->client_list;
            return @old == 2 && !grep { $_->{age} < 2 } @old;
        }, 20) or die "no connections\n";

        $redis->cmd('CLIENT', 'KILL', 'ID', $_->{id}) for @old;

        my %old = map { $_->{id} => 1 } @old;

        wait_until(sub {
            (grep { !$old{$_->{id}} } $redis->client_list) == 2
        }, 20) or die "no new connections\n";
    });

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, duration => 4,
        path => '/closed?k=a',
    );

    is $killer->wait, 1, 'two connections were killed';
    is $load->error_text, '', 'every request is answered';
    cmp_ok $load->count(503), '<=', 10,
           'no more than those under way could fail';
    is $load->count(200) + $load->count(503), $load->count, 'nothing else';

    # again and again: it always comes back

    $killer = RateLimit::Background->start(sub {
        for (1 .. 20) {
            my @clients;
            wait_until(sub { @clients = $redis->client_list }, 20);
            $redis->try('CLIENT', 'KILL', 'ID', $_->{id}) for @clients;
        }
    });

    $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, duration => 2, path => '/?k=a',
    );

    $killer->kill('TERM');
    is $load->error_text, '', 'killed twenty times: all are answered';
    is_deeply [keys %{ $load->statuses }], [200], 'local: all pass';
    ok works($nginx), 'works again';
    ok wait_until(sub { $redis->clients == 2 }, 15),
       'one connection for each worker';

    # in a minute: ten lines of outages, and what failed first and after each of
    # five recoveries from those and from other changes

    cmp_ok $nginx->log_count(qr/\[error\]/), '<=', 21, 'a short log'
        or diag $nginx->error_log;

    $nginx->finish;
};


done_testing();
