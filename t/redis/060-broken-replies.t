# Replies as a broken, slow or hostile server sends them.  Whatever comes, a
# request gets its own answer or none, and none means the failure policy.  The
# circuit breaker is out of the way: it would spare the server what this tests.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use POSIX ();

use RateLimit::Answer qw(verdict);
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Util qw(patience slurp wait_until);


# The client's key says what the server replies: a number is as many tokens, a
# word one of the replies below; what follows are options of the action, as in
# "7,delay=300".

my %REPLY = (
    deny     => ":-1\r\n",
    denied5  => ":-5000001\r\n",
    oom      => "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    noscript => "-NOSCRIPT No matching script. Please use EVAL.\r\n",
    nothing  => '',
    part     => ':70',
);

sub scripted {
    my ($args) = @_;

    my ($key) = $args->[3] =~ /\{(.*)\}\z/s;
    my ($word, @options) = split /,/, $key;

    return { reply => $REPLY{$word} // ":${word}000000\r\n",
             map { split /=/, $_, 2 } @options };
}


# Nobody is to be late by accident: only /brief has a short timeout.  Each
# client has a capacity of its own, as calls that are alike would share a
# command, and this is about commands.  A place below /own has a connection of
# its own, as it has another database.

sub start {
    my ($fake, %opt) = @_;

    my $own = join '', map {
        "location /own$_/ { ratelimit_redis_database $_; "
        . "ratelimit_on_error closed; empty_gif; }\n"
    } 1 .. $opt{own} // 0;

    my $addr = $fake->addr;

    return RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
            ratelimit_shards $addr;
            ratelimit_redis_timeout 60s;
            ratelimit_redis_connect_timeout 60s;
            ratelimit_breaker failures=100 window=100ms;
            ratelimit_log_key plain;
EOC
        server  => <<"EOC",
            ratelimit_key      \$arg_k;
            ratelimit_capacity 1000\$connection;
            ratelimit_rate     1000000r/s;
            add_header         X-Source \$ratelimit_source always;

            location /       { empty_gif; }
            location /brief  { ratelimit_redis_timeout 50ms; empty_gif; }
            location /medium { ratelimit_redis_timeout 1s; empty_gif; }
            location /closed { ratelimit_on_error closed; empty_gif; }
            $own
EOC
    );
}


# A reply in many parts takes its time on a busy machine.

sub ask { return RateLimit::Answer::ask(@_, 60) }


# All at once, a connection each; the verdicts in the order of the paths.

sub ask_all {
    my ($nginx, @paths) = @_;

    my $load = RateLimit::Load::run(
        port        => $nginx->port,
        connections => scalar @paths,
        requests    => scalar @paths,
        path        => sub { $paths[$_[0]] },
        keep        => 1,
        timeout     => 60,
    );

    my @verdicts = map { "no answer ($_)" } ($load->error_text) x @paths;

    $verdicts[$_->{n}] = verdict($_) for $load->responses;

    return @verdicts;
}


# Whether a request is decided by Redis again, after a connection was lost.

sub recovers {
    my ($nginx, $path) = @_;

    return wait_until(sub { ask($nginx, "$path?k=8") eq '200 redis 8' }, 10);
}


# The connection by which the last call with this key came.

sub conn_of {
    my ($fake, $key) = @_;

    my ($entry) = grep { ($_->{args}[3] // '') =~ /\{\Q$key\E\}\z/ }
                  reverse $fake->entries;

    return $entry ? $entry->{conn} : undef;
}


subtest 'a reply that is split at every byte is read' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => \&scripted });
    my $nginx = start($fake);

    my %expected = (
        7       => '200 redis 7',
        deny    => '429 redis 0',
        denied5 => '429 redis 5',
        oom     => '200 local storage_unavailable',
    );

    for my $word (sort keys %expected) {
        my $length = length($REPLY{$word} // ":${word}000000\r\n");
        my @wrong = grep { $_->[1] ne $expected{$word} }
                    map { [$_, ask($nginx, "/?k=$word,split=$_")] }
                    1 .. $length - 1, 'every';

        is_deeply \@wrong, [], "\"$word\", two parts, or as many as bytes";
    }

    # two replies of two requests as one stream of bytes, cut everywhere

    my @wrong;

    for my $at (1 .. 20) {
        my @got = ask_all($nginx, map { "/?k=$_,hold=2,split=$at" } 3, 4);
        push @wrong, [$at, @got] if "@got" ne '200 redis 3 200 redis 4';
    }

    is_deeply \@wrong, [], 'two replies in parts: each to its own request';

    is $fake->connections->{accepted}, 1, 'one connection carried it all';

    $nginx->finish;
};


subtest 'many replies in one segment, each to its own request' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => \&scripted });
    my $nginx = start($fake);

    my @wrong;

    for my $round (1 .. 10) {
        $fake->clear;

        my @got = ask_all($nginx, map { "/?k=$round$_,hold=30" } 10 .. 39);
        my @expected = map { "200 redis $round$_" } 10 .. 39;

        push @wrong, "@got" if "@got" ne "@expected";
    }

    is_deeply \@wrong, [], 'thirty at a time, all different';

    # passed, denied and failed ones in one segment, mixed

    my %expected = (
        deny => '429 redis 0', denied5 => '429 redis 5', 6 => '200 redis 6',
        oom => '200 local storage_unavailable',
    );
    my @words = (sort keys %expected) x 5;
    my $n = 0;

    is_deeply [ask_all($nginx, map { "/?k=$_,hold=20,n=" . $n++ } @words)],
              [map { $expected{$_} } @words], 'of all kinds';

    is $fake->connections->{accepted}, 1, 'one connection carried it all';

    $nginx->finish;
};


subtest 'a late reply is nobody else\'s' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => { eval => \&scripted });
    my $nginx = start($fake);

    # So late that the failure is out of the breaker's window by then, which is
    # hard for a slow nginx, and not so late that the connection is given up.

    my $late = patience(1) > 1 ? 430 : 300;

    # the slot of a request that has been answered waits for its reply

    for my $round (1 .. 3) {
        is ask($nginx, "/brief?k=5,delay=$late"), '200 local timeout',
           'answered by the failure policy';
        is ask($nginx, "/?k=7"), '200 redis 7',
           'the next one gets its own answer';
    }

    is_deeply [ask_all($nginx, "/brief?k=1,delay=$late", '/brief?k=deny',
                               '/?k=3')],
              ['200 local timeout', '200 local timeout', '200 redis 3'],
              'three on their way, two of them late';

    is $fake->connections->{accepted}, 1, 'on one connection';
    is $nginx->log_count(qr/DEGRADED.* failure: timeout/), 5,
       'the class is logged';
    is $nginx->log_count(qr/\[error\].*no answer from redis .*: timeout/), 4,
       'as an error once each time that answers were in time before';

    # clients that leave leave a slot, too

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 10, requests => 200,
        path => sub { "/?k=1$_[0]" }, keep => 1, abort => 0.5,
    );

    is $load->error_text, '', 'clients that leave disturb nobody';
    is_deeply [grep { verdict($_) ne "200 redis 1$_->{n}" } $load->responses],
              [], 'the others get their own answers';
    is $fake->connections->{accepted}, 1, 'on the same connection';

    # a server that owes a reply for too long is not trusted any more

    is ask($nginx, '/brief?k=5,delay=60000'), '200 local timeout',
       'no reply in time';
    ok $nginx->wait_log(qr/redis stopped answering, connection closed/),
       'then the connection is closed';
    ok recovers($nginx, '/'), 'and made anew';
    is $fake->connections->{accepted}, 2, 'once';

    $nginx->finish;
};


subtest 'an unexpected reply closes the connection' => sub {
    my @pushes = (
        ":9000000\r\n", ":-1\r\n", "+OK\r\n", "-ERR x\r\n",
        ":1\r\n" x 100_000,
    );
    my $fake = RateLimit::FakeRedis->start(policy => { eval => \&scripted });

    for my $bytes (@pushes) {
        my $nginx = start($fake);
        my $before = $fake->connections->{accepted};
        my $name = length $bytes > 20 ? 'a flood' : $bytes =~ s/\r\n//r;

        is ask($nginx, '/?k=7'), '200 redis 7', "$name: before it";

        $fake->push($bytes);

        ok wait_until(sub { $fake->connections->{accepted} > $before }, 10),
           'the connection is made anew';
        ok recovers($nginx, '/'), 'and works';
        ok $nginx->log_like(qr/\[error\].*unexpected reply from redis/),
           'logged';

        $nginx->finish;
    }

    # an extra one behind a good one, with others on their way

    my $fake2 = RateLimit::FakeRedis->start(policy => {
        eval => [ { reply => ":5000000\r\n:6000000\r\n" }, ":7000000\r\n" ],
    });
    my $nginx = start($fake2);

    is ask($nginx, '/?k=a'), '200 redis 5', 'two replies: the first counts';
    ok wait_until(sub { $fake2->connections->{accepted} == 2 }, 10),
       'the second one closes the connection';
    ok wait_until(sub { ask($nginx, '/?k=b') =~ /redis (.*)/ }, 10), 'back';
    is ask($nginx, '/?k=c'), '200 redis 7', 'and is never delivered';
    is $nginx->log_count(qr/remaining: 6 /), 0, 'to nobody';

    $nginx->finish;
};


subtest 'garbage, oversized and wrong replies' => sub {
    my @cases = (
        ['a word',              "hello\r\n"],
        ['HTTP',                "HTTP/1.1 400 Bad Request\r\n\r\n"],
        ['zero bytes',          "\0" x 64],
        ['an empty line',       "\r\n"],
        ['no number',           ":\r\n"],
        ['a bad number',        ":12x\r\n"],
        ['a huge number',       ":99999999999999999999\r\n"],
        ['a bad length',        "\$-7\r\n"],
        ['a huge length',       "\$99999999999999999999\r\n"],
        ['a bulk of 5 MB',      "\$5000000\r\n", 6_000_000],
        ['a bulk without end',  "\$2000000000\r\n", 2_000_000_000],
        ['a line without end',  '+', 2_000_000_000],
        ['an error without end', '-', 2_000_000_000],
        ['too many elements',   "*5000\r\n"],
        ['a huge array',        "*2147483647\r\n"],
        ['a huger array',       "*4294967297\r\n"],
        ['a deep array',        "*1\r\n" x 50],
        ['an array of arrays',  "*2000\r\n" . "*2000\r\n" x 2000],
        ['too much in an array', "*100\r\n" . ("\$1000\r\n" . 'x' x 1000
                                               . "\r\n") x 100],
        ['a push',              ">1\r\n+x\r\n"],
        ['a status',            "+OK\r\n"],
        ['an empty status',     "+\r\n"],
        ['a string',            "\$1\r\n5\r\n"],
        ['an empty string',     "\$0\r\n\r\n"],
        ['nil',                 "\$-1\r\n"],
        ['no array',            "*-1\r\n"],
        ['an empty array',      "*0\r\n"],
        ['an array',            "*2\r\n:5000000\r\n:0\r\n"],
    );

    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => sub {
            my ($args) = @_;
            my ($i) = $args->[3] =~ /\{case(\d+)\}/ or return scripted(@_);

            return { reply => $cases[$i][1], stream => $cases[$i][2] };
        },
    });

    my $nginx = start($fake, own => scalar @cases);
    my ($worker) = $nginx->workers;

    is ask($nginx, "/own$_/?k=7"), '200 redis 7', "connection $_"
        for 1 .. @cases;

    my $before = rss($worker);

    for my $i (0 .. $#cases) {
        my $place = '/own' . ($i + 1) . '/';

        is ask($nginx, "$place?k=case$i"), '503 closed storage_unavailable',
           "$cases[$i][0]: no answer";
        ok recovers($nginx, $place), 'the next one is answered';
        isnt conn_of($fake, 8), conn_of($fake, "case$i"),
             'on another connection';
    }

    is $nginx->log_count(qr/key: "case\d+".* failure: protocol/), @cases,
       'each is a failure of the protocol';

    SKIP: {
        skip 'what is freed stays in quarantine', 1
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

        cmp_ok rss($worker) - $before, '<', 8192, 'and costs no memory (kB)';
    }

    is_deeply [$nginx->workers], [$worker], 'nor the worker';
    ok wait_until(sub { $fake->connections->{open} == 1 + @cases }),
       'no connection was left behind';

    $nginx->finish;
};


# The most memory that a process has had, in kB.

sub rss {
    my ($pid) = @_;

    return slurp("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 : undef;
}


subtest 'a wrong reply fails itself and those behind it' => sub {
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => [
            { reply => ":1000000\r\n", hold => 5 },
            { reply => ":2000000\r\n", hold => 5 },
            { reply => "+OK\r\n", hold => 5 },
            { reply => ":4000000\r\n", hold => 5 },
            { reply => ":5000000\r\n", hold => 5 },
            { reply => ":8000000\r\n" },
        ],
    });
    my $nginx = start($fake);

    # who can tell whose the fourth reply is, when the third was none?

    is_deeply [sort(ask_all($nginx, map { "/?k=a$_" } 1 .. 5))],
              ['200 local storage_unavailable', '200 local storage_unavailable',
               '200 local storage_unavailable', '200 redis 1', '200 redis 2'],
              'those before it are good, those behind it are not';
    ok recovers($nginx, '/'), 'on a new connection';
    is $fake->connections->{accepted}, 2, 'a second one';

    $nginx->finish;
};


subtest 'NOSCRIPT is followed by one EVAL that the client does not notice'
    => sub
{
    my $lua = slurp('build/lua/token_bucket.lua');
    my $fake = RateLimit::FakeRedis->start(policy => {
        evalsha => [{ reply => $REPLY{noscript}, split => 'every' },
                    $REPLY{noscript}],
        eval    => \&scripted,
    });
    my $nginx = start($fake);

    is ask($nginx, '/?k=7'), '200 redis 7', 'the client does not notice';

    my @sha = $fake->commands('EVALSHA');
    my @text = $fake->commands('EVAL');
    my @load = map { $_->[2] } $fake->commands('SCRIPT');

    is scalar @sha, 1, 'one EVALSHA';
    is scalar @text, 1, 'one EVAL';
    is $text[0][1], $lua, 'with the script';
    is $sha[0][1], sha1_hex($lua), 'of that SHA-1';
    is_deeply [sort @load],
              [sort map { slurp($_) } grep { !/probe/ } glob 'build/lua/*.lua'],
              'which was loaded on connect as well, with all others';
    is_deeply [@{ $text[0] }[2 .. $#{ $text[0] }]],
              [@{ $sha[0] }[2 .. $#{ $sha[0] }]], 'with the same arguments';

    is ask($nginx, '/?k=deny'), '429 redis 0', 'a denial by EVAL';

    $fake->clear;
    is_deeply [ask_all($nginx, map { "/?k=$_" } 10 .. 29)],
              [map { "200 redis $_" } 10 .. 29], 'twenty at once';
    is scalar $fake->commands('EVALSHA'), 20, 'twenty EVALSHA';
    is scalar $fake->commands('EVAL'), 20, 'twenty EVAL';
    is $nginx->log_count(qr/DEGRADED/), 0, 'no failure';

    # to EVAL as well: once is enough

    $fake->policy({ eval => $REPLY{noscript} });
    $fake->clear;

    is ask($nginx, '/?k=7'), '200 local storage_unavailable', 'twice NOSCRIPT';
    is ask($nginx, '/closed?k=7'), '503 closed storage_unavailable',
       'twice NOSCRIPT, closed';
    is scalar $fake->commands('EVALSHA'), 2, 'one EVALSHA each';
    is scalar $fake->commands('EVAL'), 2, 'one EVAL each';
    is $nginx->log_count(qr/DEGRADED.* failure: noscript/), 2, 'its class';
    is $nginx->log_count(qr/\[error\].* answered "NOSCRIPT No matching/), 1,
       'an error, once';

    # both calls share the time that a request may wait

    $fake->policy({ evalsha => { reply => $REPLY{noscript}, delay => 700 },
                    eval    => { reply => ":7000000\r\n", delay => 700 } });

    is ask($nginx, '/medium?k=7'), '200 local timeout',
       'the second call has the time that the first one left';

    is $fake->connections->{accepted}, 1, 'on one connection';

    $nginx->finish;
};


subtest 'a connection that ends amid its replies' => sub {
    for my $how ('close', 'reset') {
        my $fake = RateLimit::FakeRedis->start(policy => {
            eval => [
                (map { { reply => ":${_}000000\r\n", hold => 10 } } 1 .. 3),
                { reply => ':10', hold => 10 },
                ({ reply => '', hold => 10 }) x 5,
                { reply => '', hold => 10, then => $how },
                { reply => ":8000000\r\n" },
            ],
        });
        my $nginx = start($fake);

        my @got = sort(ask_all($nginx, map { "/closed?k=$_" } 0 .. 9));

        is_deeply \@got,
                  ['200 redis 1', '200 redis 2', '200 redis 3',
                   ('503 closed storage_unavailable') x 7],
                  "$how: three were answered, seven fail";
        is $nginx->log_count(qr/DEGRADED.* failure: closed/), 7, 'each once';
        is $nginx->log_count(qr/ratelimit (?:PASSED|REJECTED|DEGRADED)/), 10,
           'ten decisions in all';
        is $nginx->log_count(qr/\[error\].*redis closed the connection/), 1,
           'one line about it';

        ok recovers($nginx, '/closed'), 'works again';
        is $fake->connections->{accepted}, 2, 'on a second connection';
        is scalar(grep { $_ eq '200 redis 8' }
                  ask_all($nginx, map { "/closed?k=$_" } 0 .. 19)), 20,
           'for everybody';
        is $fake->commands('EVALSHA') - $nginx->log_count(qr/source: redis/),
           7, 'no lost call was sent again';

        $nginx->finish;

        # without a single byte of a reply, on a connection that was good for
        # more than a second: it is made anew at once, the calls are not

        $nginx->start;
        RateLimit::Load::run(port => $nginx->port, duration => 1.5,
                             path => '/?k=8');
        $fake->policy({ eval => {} });
        $fake->clear;

        my $before = $nginx->log_count(qr/DEGRADED.* failure: closed/);
        my $pid = fork() // die;

        if (!$pid) {
            $fake->wait_commands('EVALSHA', 10, 20);
            $fake->drop($how);
            POSIX::_exit(0);
        }

        @got = ask_all($nginx, map { "/?k=$_" } 0 .. 9);
        waitpid $pid, 0;

        is_deeply \@got, [('200 local storage_unavailable') x 10],
                  "$how: all ten fail";
        is $nginx->log_count(qr/DEGRADED.* failure: closed/) - $before, 10,
           'each once';

        $fake->policy({ eval => ":8000000\r\n" });
        is ask($nginx, '/?k=8'), '200 redis 8', 'the next one is fine';
        is $fake->commands('EVALSHA') + $fake->commands('EVAL'), 11,
           'no lost call was sent again';

        $nginx->finish;
    }
};


done_testing();
