# Clients that leave while they wait, send too early, too late, too slowly or
# too much: each answer still belongs to the request that asked, and nothing
# but the client's own request suffers.
#
# With the fake Redis the reply says whose it is: key "7" has 7 tokens left, and
# so has "h5-7", whose reply is held until five such calls have come.  So a test
# knows that requests are parked, and says when they go on.  With a real Redis
# each request has a capacity of its own.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp wait_until write_file);

use POSIX ();
use Socket qw(unpack_sockaddr_in);
use Time::HiRes qw(sleep);


# ---- what all parts use

# One worker, so that one connection to Redis carries everything.  /n answers
# from a file, /post sends the body through another proxy that keeps it in a
# file and says where.

sub nginx {
    my ($shards, %opt) = @_;

    my $conf = delete $opt{conf} // '';
    my $server = delete $opt{server} // '';

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
    ratelimit_shards $shards;
    ratelimit_redis_timeout 60s;
    ratelimit_redis_connect_timeout 60s;
    keepalive_requests 100000;
    client_max_body_size 10m;
    log_format main '\$status \$ratelimit_status \$request_uri';
    access_log %%DIR%%/logs/access.log main;
    $conf
EOC
        server  => <<"EOC",
        ratelimit_key \$arg_k;
        ratelimit_capacity 1000000;

        location /n { ratelimit_rate 1r/d; alias %%DIR%%/html/ok; }

        location /c {
            ratelimit_rate 1r/d;
            ratelimit_capacity \$arg_c;
            alias %%DIR%%/html/ok;
        }

        location /post {
            ratelimit_rate 1r/d;
            ratelimit_capacity \$arg_c;
            client_body_buffer_size 16k;
            proxy_pass http://127.0.0.1:%%PORT%%/body;
        }

        location /stream {
            ratelimit_rate 1r/d;
            ratelimit_capacity \$arg_c;
            proxy_request_buffering off;
            proxy_http_version 1.1;
            proxy_pass http://127.0.0.1:%%PORT%%/body;
        }

        location /body {
            client_body_in_file_only on;
            proxy_pass http://127.0.0.1:%%PORT%%/ok;
            add_header X-Body \$request_body_file;
        }

        location /ok { return 200 "ok\\n"; }

        $server
EOC
        %opt
    );

    write_file($nginx->dir . '/html/ok', "ok\n");

    return $nginx;
}


sub raw {
    my ($path, @headers) = @_;

    return join "\r\n", "GET $path HTTP/1.1", 'Host: localhost', @headers, '',
                        '';
}


# "200 100 99": status, limit and remaining of a response, and "degraded" if it
# was not Redis that decided.

sub told {
    my ($r) = @_;

    return $r->{error} unless $r->{status};

    return join ' ', $r->{status},
                (map { $r->{headers}{"x-ratelimit-$_"} // '-' }
                 qw(limit remaining)),
                $r->{headers}{'x-ratelimit-degraded'} ? 'degraded' : ();
}


sub parked {
    my ($fake, $n) = @_;

    return $fake->wait_commands('EVALSHA', $n, 20);
}


# ---- leaving

subtest 'clients leave while parked: the replies of the others are theirs' =>
    sub
{
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);
    my $n = 10;
    my $left = 0;
    my $round = 0;

    my %ways = (
        close => sub { $_[0]->close },
        reset => sub { $_[0]->close('reset') },
        half  => sub { shutdown $_[0]{socket}, 1 },
    );

    # who leaves, and how

    my @rounds = (
        ['nobody',          sub { '' }],
        ['every other one', sub { $_[0] % 2 ? 'close' : '' }],
        ['the others',      sub { $_[0] % 2 ? '' : 'reset' }],
        ['the first',       sub { $_[0] == 1 ? 'close' : '' }],
        ['the last',        sub { $_[0] == $n ? 'close' : '' }],
        ['all',             sub { 'close' }],
        ['all by a reset',  sub { 'reset' }],
        ['some half',       sub { $_[0] % 3 ? '' : 'half' }],
    );

    for (@rounds) {
        my ($who, $how) = @$_;
        my $hold = $n + 1;
        my $base = 100 * ++$round;
        my @clients;

        $fake->clear;

        for my $i (1 .. $n) {
            my $c = RateLimit::Load::connection($nginx->port);
            $c->write(raw("/n?k=h$hold-" . ($base + $i)));
            push @clients, [$c, $base + $i, $how->($i)];

            # in this order

            parked($fake, $i) or die "request $i is not parked\n";
        }

        for (@clients) {
            my ($c, undef, $way) = @$_;
            next unless $way;
            $ways{$way}->($c);
            $left++;
        }

        ok wait_until(sub {
            $nginx->log_count(qr/prematurely closed/) == $left
        }, 20), "$who: noticed at once";

        my $last = $nginx->get("/n?k=h$hold-" . ($base + $hold));

        is told($last), '200 1000000 ' . ($base + $hold), 'the one after';

        is_deeply
            [map { told($_->[0]->response(20)) }
             grep { !$_->[2] } @clients],
            [map { "200 1000000 $_->[1]" } grep { !$_->[2] } @clients],
            'those who stayed';
    }

    is scalar(() = $nginx->access_log =~ /^499 - /mg), $left,
       'those who left are logged as such, with no decision';
    is_deeply $fake->connections, { accepted => 1, open => 1, peak => 1 },
              'the connection to Redis lives on';
    $nginx->finish(timeout => 20);
};


subtest 'clients leave under load, with a Redis that stutters' => sub {
    my @shards = RateLimit::Redis->start_many(3);
    my $nginx = nginx(join(' ', map { $_->addr } @shards), workers => 2);

    # stopped and continued in turns: so that some requests are parked for long
    # enough to be left

    my @pids = map { $_->pid } @shards;
    my $test = $$;
    my $stutter = fork() // die;

    if (!$stutter) {
        $SIG{TERM} = sub { kill 'CONT', @pids; POSIX::_exit(0) };

        while (getppid() == $test) {
            kill 'STOP', @pids;
            sleep 0.02;
            kill 'CONT', @pids;
            sleep 0.02;
        }

        POSIX::_exit(0);
    }

    for my $after (0, 1, 10) {
        my $load = RateLimit::Load::run(
            port        => $nginx->port,
            connections => 60,
            requests    => 3000,
            abort       => 0.3,
            abort_after => $after,
            keep        => 1,
            timeout     => 60,
            path        => sub { '/c?k=' . "$after-$_[0]" . '&c='
                                 . (1000 + $_[0]) },
        );

        is $load->error_text, '', "left after $after ms: all others answered";
        cmp_ok $load->aborted, '>', 100, 'many left';

        my @wrong = grep { told($_) ne join ' ', 200, 1000 + $_->{n},
                                                 999 + $_->{n} }
                    $load->responses;

        is scalar @wrong, 0, 'each answer belongs to its request';
        diag "request $_->{n}: " . told($_) for splice @wrong, 0, 5;
    }

    kill 'TERM', $stutter;
    waitpid $stutter, 0;

    cmp_ok $nginx->log_count(qr/prematurely closed/), '>', 100,
           'many were noticed while parked';

    for my $redis (@shards) {
        my $clients = () = $redis->cmd('CLIENT', 'LIST') =~ /cmd=evalsha/g;
        is $clients, 2, 'one connection per worker and shard';
    }

    $nginx->finish(timeout => 20);
};


subtest 'clients leave: post_action, which goes on without them' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr, server => <<'EOC');
        location /left {
            ratelimit_rate 1r/d;
            alias %%DIR%%/html/ok;
            post_action /after;
        }
        location /after { ratelimit_rate 1r/d; alias %%DIR%%/html/ok; }
EOC

    my $c = RateLimit::Load::connection($nginx->port);
    $c->write(raw('/left?k=h2-1'));
    parked($fake, 1);
    $c->close;

    ok $nginx->wait_log(qr/prematurely closed/, 20), 'noticed';
    is told($nginx->get('/left?k=h2-2')),
       '200 1000000 2', 'the one after';

    ok wait_until(sub { $nginx->log_count(qr/ratelimit PASSED/) == 2 }, 20),
       'a verdict each';
    is scalar $fake->commands('EVALSHA'), 2, 'charged once each';

    is told($nginx->get('/left?k=3')),
       '200 1000000 3', 'and the next one';
    is scalar $fake->commands('EVALSHA'), 3, 'charged once';
    $nginx->finish(timeout => 20);
};


subtest 'clients leave when it is decided: that is not ours to judge' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr, server => <<'EOC');
        location /ignored {
            ratelimit_rate 1r/d;
            proxy_ignore_client_abort on;
            proxy_pass http://127.0.0.1:%%PORT%%/n?k=$arg_b;
        }
EOC

    # the backend, limited too, is parked when the client leaves

    my $c = RateLimit::Load::connection($nginx->port);
    $c->write(raw('/ignored?k=1&b=h2-2'));
    ok parked($fake, 2), 'passed, and waits for the backend';
    $c->close;

    is told($nginx->get('/n?k=h2-3')),
       '200 1000000 3', 'another one sets the backend going';
    ok wait_until(sub { $nginx->access_log =~ m{^200 PASSED /ignored\?k=1}m },
                  20), 'the first goes on to its end';
    $nginx->finish(timeout => 20);
};


subtest 'half-closed clients are treated as nginx treats them' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr,
        conf   => 'limit_req_zone $server_name zone=one:1m rate=1r/m;',
        server => <<'EOC');
        location /delayed {
            limit_req zone=one burst=10;
            alias %%DIR%%/html/ok;
        }
EOC

    # parked by limit_req, and parked by us

    is($nginx->get('/delayed')->{status}, 200,
       'limit_req: the first one passes');

    my %status;

    for my $path ('/delayed', '/n?k=h2-1') {
        my $c = RateLimit::Load::connection($nginx->port);

        $c->write(raw($path));
        ok +($path =~ /delayed/ ? $nginx->wait_log(qr/delaying request/, 20)
                                : parked($fake, 1)), "$path is parked";
        shutdown $c->{socket}, 1;

        ok wait_until(sub {
            ($status{$path}) = $nginx->access_log
                               =~ /^((?!200)\d+) - \Q$path\E$/m;
        }, 20), 'and noticed';
        is $c->response(20)->{error}, 'empty', 'no answer';
    }

    is $status{'/n?k=h2-1'}, $status{'/delayed'}, 'with the same status';

    is told($nginx->get('/n?k=h2-2')),
       '200 1000000 2', 'the one after';
    $nginx->finish(timeout => 20);
};


# ---- many at once

subtest 'of many requests that are parked on one worker each gets its own answer'
    => sub
{
    my $fake = RateLimit::FakeRedis->start_by_key;

    # each has a limit of its own, of the kind that then is a call of its own

    my $nginx = nginx($fake->addr, server => <<'EOC');
        location /own {
            ratelimit_rate 1000r/s;
            ratelimit_capacity $arg_c;
            alias %%DIR%%/html/ok;
        }
EOC
    my $n = 400;

    # no reply comes before the last request has

    my $load = RateLimit::Load::run(
        port        => $nginx->port,
        connections => $n,
        requests    => $n,
        keep        => 1,
        timeout     => 60,
        path        => sub { "/own?k=h$n-" . (1 + $_[0]) . '&c='
                             . (1001 + $_[0]) },
    );

    is $load->error_text, '', 'all are answered';
    is_deeply [map { told($_) } sort { $a->{n} <=> $b->{n} } $load->responses],
              [map { join ' ', 200, 1000 + $_, $_ } 1 .. $n],
              'each with its own';
    is_deeply $fake->connections, { accepted => 1, open => 1, peak => 1 },
              'over one connection';
    $nginx->finish(timeout => 20);
};


subtest 'pipelining: 100 requests at once, answered in order' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);

    my @r = RateLimit::Load::pipeline(
        $nginx->port,
        [map { raw("/c?k=own-$_&c=" . (1000 + $_)) } 1 .. 100],
        timeout => 30);

    is_deeply [map { told($_) } @r],
              [map { join ' ', 200, 1000 + $_, 999 + $_ } 1 .. 100],
              '100 keys';

    @r = RateLimit::Load::pipeline(
        $nginx->port, [map { raw('/c?k=shared&c=60') } 1 .. 100],
        timeout => 30);

    is_deeply [map { told($_) } @r],
              [(map { '200 60 ' . (60 - $_) } 1 .. 60), ('429 60 0') x 40],
              'one key: 60 pass, one by one, and 40 are rejected';

    # who leaves in the middle has been charged for what was answered at least

    my $c = RateLimit::Load::connection($nginx->port);
    $c->write(join '', map { raw('/c?k=left&c=1000') } 1 .. 100);
    is told($c->response(20)), '200 1000 999', 'the first of 100 ...';
    $c->close;

    my ($left) = told($nginx->get('/c?k=left&c=1000'))
                 =~ /^200 1000 (\d+)$/;
    cmp_ok $left, '<=', 998, '... was charged';
    cmp_ok $left, '>=', 899, 'and none twice';

    $nginx->finish(timeout => 20);
};


subtest 'pipelining: what comes while the first is parked' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);

    my $c = RateLimit::Load::connection($nginx->port);
    $c->write(raw('/n?k=h2-1'));
    parked($fake, 1);
    $c->write(raw('/n?k=2') . raw('/n?k=3'));

    my $garbage = RateLimit::Load::connection($nginx->port);
    $garbage->write(raw('/n?k=h2-4') . "\x00\xff\r\nno request\r\n\r\n");

    is_deeply [map { told($c->response(20)) } 1 .. 3],
              [map { "200 1000000 $_" } 1 .. 3], 'the next requests: in order';
    is told($garbage->response(20)), '200 1000000 4',
       'garbage: the request before it is answered';
    is $garbage->response(20)->{status}, 400, 'and the garbage is what it is';
    $garbage->close;

    $garbage = RateLimit::Load::connection($nginx->port);
    $garbage->write(raw('/n?k=h2-5'));
    parked($fake, 5);
    $garbage->write("\x16\x03\x01\x00" x 5000);
    is told($nginx->get('/n?k=h2-6')), '200 1000000 6',
       'others don\'t mind';
    is told($garbage->response(20)), '200 1000000 5', 'much garbage: answered';
    is $garbage->response(20)->{status}, 400, 'and refused';

    $_->close for $c, $garbage;

    # once a response did not fit into the socket, whatever a client sends is
    # a write event as well: that must not ask Redis again

    write_file($nginx->dir . '/html/big', 'x' x 8_000_000);

    $fake->clear;
    $c = RateLimit::Load::connection($nginx->port);
    $c->write(raw('/big'));
    is length $c->response(60)->{body}, 8_000_000, 'a large response';
    $c->write(raw('/n?k=h2-7'));
    parked($fake, 1);
    $c->write($_) for split //, raw('/n?k=8');
    is told($nginx->get('/n?k=h2-9')), '200 1000000 9',
       'then one is parked, and another one is not';
    is_deeply [map { told($c->response(20)) } 1, 2],
              [map { "200 1000000 $_" } 7, 8], 'both are answered';
    is scalar $fake->commands('EVALSHA'), 3, 'one call each';
    $c->close;

    $nginx->finish(timeout => 20);
};


# ---- methods, bodies, connections

subtest 'HEAD, HTTP/1.0, Connection: close, a unix socket' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr, conf => <<'EOC');
    server {
        listen unix:%%DIR%%/nginx.sock;

        location /addr {
            ratelimit_rate 1r/d;
            ratelimit_capacity 2;
            alias %%DIR%%/html/ok;
        }

        location /net {
            ratelimit_key $ratelimit_client_net;
            ratelimit_rate 1r/d;
            ratelimit_capacity 2;
            alias %%DIR%%/html/ok;
        }
    }
EOC
    my $port = $nginx->port;
    my $c = RateLimit::Load::connection($port);

    for my $expected ('200 2 1', '200 2 0', '429 2 0') {
        $c->write("HEAD /c?k=head&c=2 HTTP/1.1\r\nHost: a\r\n\r\n");
        my $r = $c->response(20, 'HEAD');
        is told($r), $expected, "HEAD: $expected";
        cmp_ok $r->{headers}{'content-length'}, '>', 0, 'a length';
    }

    $c->write(raw('/c?k=after&c=2'));
    is told($c->response(20)), '200 2 1', 'the connection is still in step';

    for my $expected ('200 1 0', '429 1 0') {
        my $c = RateLimit::Load::connection($port);
        $c->write(raw('/c?k=close&c=1', 'Connection: close'));
        my $r = $c->response(20);
        is told($r), $expected, "Connection: close: $expected";
        is $r->{headers}{connection}, 'close', 'says so';
        is $c->response(20)->{error}, 'empty', 'and is closed';
    }

    for my $expected ('200 1 0', '429 1 0') {
        my $c = RateLimit::Load::connection($port);
        $c->write("GET /c?k=old&c=1 HTTP/1.0\r\n\r\n");
        is told($c->response(20)), $expected, "HTTP/1.0: $expected";
        is $c->response(20)->{error}, 'empty', 'and is closed';
    }

    for my $path ('/addr', '/net') {
        is_deeply
            [map { told(RateLimit::Load::get($nginx->dir . '/nginx.sock',
                                             $path)) } 1 .. 3],
            ['200 2 1', '200 2 0', '429 2 0'], "a unix socket, $path";
    }

    is_deeply [sort grep { /unix/ } @{ $redis->cmd('KEYS', '*') }],
              ['ratelimit:_/addr:{unix:}', 'ratelimit:_/net:{unix:}'],
              'whose clients are all one';
    $nginx->finish(timeout => 20);
};


sub body_of {
    my ($r) = @_;

    return slurp($r->{headers}{'x-body'} // '');
}


sub chunked {
    my ($body, $size) = @_;

    return join '', (map { sprintf "%x\r\n%s\r\n", length, $_ }
                     unpack "(a$size)*", $body), "0\r\n\r\n";
}


subtest 'bodies arrive whole, small, large or chunked' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);

    my $small = 'hello';
    my $large = join '', map { chr(97 + $_ % 26) x 1024 } 1 .. 3000;

    for my $path ('/post', '/stream') {
        my $k = 0;

        for my $body ($small, $large) {
            my $url = "$path?c=2&k=$path-" . ++$k;
            my $c = RateLimit::Load::connection($nginx->port);

            my %forms = (
                'with a length' => "Content-Length: " . length($body)
                                   . "\r\n\r\n$body",
                'in chunks'     => "Transfer-Encoding: chunked\r\n\r\n"
                                   . chunked($body, 1000),
            );

            # both pass on one connection; the third and fourth are rejected

            for my $form (sort keys %forms) {
                $c->write("POST $url HTTP/1.1\r\nHost: a\r\n$forms{$form}");
                my $r = $c->response(30);
                is $r->{status}, 200, "$path, " . length($body)
                                      . " bytes $form";
                ok body_of($r) eq $body, 'arrive';
            }

            for my $form (sort keys %forms) {
                my $c = RateLimit::Load::connection($nginx->port);
                $c->write("POST $url HTTP/1.1\r\nHost: a\r\n$forms{$form}");
                my $r = $c->response(30);
                is told($r), '429 2 0', "$form: rejected";

                # usable again, or told to be closed

                if ($r->{close}) {
                    is $c->response(30)->{error} =~ s/reset/empty/r, 'empty',
                       'closed';
                } else {
                    $c->write(raw('/c?c=9&k=' . $path . ++$k));
                    is told($c->response(30)), '200 9 8', 'and in step';
                }
            }
        }
    }

    $nginx->finish(timeout => 20);
};


subtest 'a body that arrives slowly is waited for, and nobody else waits'
    => sub
{
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);
    my @pieces = map { $_ x 20000 } 'a' .. 'e';
    my $body = join '', @pieces;
    my $length = length $body;

    for my $path ('/post', '/stream') {
        $fake->clear;

        my $c = RateLimit::Load::connection($nginx->port);
        $c->write("POST $path?c=100&k=h2-1 HTTP/1.1\r\nHost: a\r\n");
        $c->write("Content-Length: $length\r\n\r\n");
        parked($fake, 1);

        # two pieces while it is parked, the others afterwards

        $c->write($pieces[0]);
        $c->write($pieces[1]);
        is told($nginx->get('/n?k=h2-2')),
           '200 1000000 2', "$path: another one passes";
        $c->write($pieces[$_]) for 2, 3;

        my $early = '';
        vec($early, fileno $c->{socket}, 1) = 1;
        is select($early, undef, undef, 0.1), 0, 'no answer before the end';

        $c->write($pieces[4]);
        my $r = $c->response(20);
        is told($r), '200 100 1', 'then the answer';
        ok body_of($r) eq $body, 'to the whole body';

        # the same in chunks

        $fake->clear;
        $c->write("POST $path?c=100&k=h2-3 HTTP/1.1\r\nHost: a\r\n"
                  . "Transfer-Encoding: chunked\r\n\r\n");
        parked($fake, 1);
        $c->write("4e20\r\n$pieces[0]");
        is told($nginx->get('/n?k=h2-4')),
           '200 1000000 4', 'in chunks: another one passes';
        $c->write("\r\n4e2");
        $c->write("0\r\n$pieces[1]\r\n0\r\n\r\n");
        $r = $c->response(20);
        is told($r), '200 100 3', 'the answer';
        ok body_of($r) eq $pieces[0] . $pieces[1], 'to the whole body';

        # left in the middle of the body

        my $before = $nginx->log_count(qr/prematurely closed/);

        $fake->clear;
        $c->write("POST $path?c=100&k=h2-5 HTTP/1.1\r\nHost: a\r\n"
                  . "Content-Length: $length\r\n\r\n$pieces[0]");
        parked($fake, 1);
        $c->close;
        ok wait_until(sub { $nginx->log_count(qr/prematurely closed/)
                            > $before }, 20), 'who leaves is noticed';
        is told($nginx->get('/n?k=h2-6')),
           '200 1000000 6', 'the one after';
    }

    $nginx->finish(timeout => 20);
};


subtest 'bodies that arrive after the rejection' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);
    my $body = 'x' x 300_000;

    is told($nginx->get('/c?c=1&k=slow')), '200 1 0',
       'used up';

    my %forms = (
        length => ['Content-Length: ' . length $body, $body],
        chunks => ['Transfer-Encoding: chunked', chunked($body, 5000)],
    );

    for my $form (sort keys %forms) {
        my ($header, $bytes) = @{ $forms{$form} };
        my $c = RateLimit::Load::connection($nginx->port);

        $c->write("POST /c?c=1&k=slow HTTP/1.1\r\nHost: a\r\n$header\r\n\r\n");
        is told($c->response(20)), '429 1 0', "$form: rejected before it came";

        $c->write($_) for unpack '(a50000)*', $bytes;
        $c->write(raw("/c?c=9&k=$form"));
        is told($c->response(20)), '200 9 8', 'the next request is in step';

        # a body that never comes

        $c->write("POST /c?c=1&k=slow HTTP/1.1\r\nHost: a\r\n$header\r\n\r\n");
        is told($c->response(20)), '429 1 0', 'rejected again';
        $c->close;
    }

    $nginx->finish(timeout => 20);
};


# What the server says next, as it is.

sub says {
    my ($c) = @_;

    return wait_until(sub {
        my $read = '';
        vec($read, fileno $c->{socket}, 1) = 1;

        if (select $read, undef, undef, 0) {
            sysread $c->{socket}, $c->{in}, 65536, length $c->{in};
        }

        return $c->{in} =~ /^(.*?)\r\n\r\n/s && $1;
    }, 20);
}


subtest 'a client that expects 100-continue is told or rejected' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);

    for my $path ('/post', '/stream') {
        my $head = "POST $path?c=1&k=expect HTTP/1.1\r\nHost: a\r\n"
                   . "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        my $c = RateLimit::Load::connection($nginx->port);

        $c->write($head);
        is says($c), 'HTTP/1.1 100 Continue', "$path: told to go on";
        $c->write('hello');
        my $r = $c->response(20);
        is told($r), '200 1 0', 'and passed';
        is body_of($r), 'hello', 'with its body';

        $c = RateLimit::Load::connection($nginx->port);
        $c->write($head);
        like says($c), qr/^HTTP\/1\.1 429 /, 'rejected instead of told';
        is told($c->response(20)), '429 1 0', 'with its headers';
    }

    $nginx->finish(timeout => 20);
};


# ---- no connection left for Redis

subtest 'worker_connections used up by clients: the failure policy decides' =>
    sub
{
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr,
        events => 'worker_connections 32;',
        conf   => 'client_header_timeout 10m;',
        server => <<'EOC');
        location /closed {
            ratelimit_rate 1r/d;
            ratelimit_on_error closed;
            alias %%DIR%%/html/ok;
        }
EOC
    my @clients;

    # clients in the middle of their request hold all that nginx has; there is
    # no more when it sends several away, one after the other

    my $use_up = sub {
        my $refused = 0;

        while ($refused < 5) {
            die "32 connections serve 100 clients\n" if @clients > 100;

            my $c = RateLimit::Load::connection($nginx->port);
            my $path = @clients % 2 ? '/n' : '/closed';

            $c->write("GET $path?k=1 HTTP/1.1\r\nHost: a\r\n");

            my $port = (unpack_sockaddr_in(getsockname $c->{socket}))[0];
            my $unread = sprintf ': 0100007F:%04X 0100007F:%04X 01 '
                                 . '[0-9A-F]{8}:(?!0{8})', $nginx->port, $port;
            my $gone;

            wait_until(sub {
                # in this order: one that is sent away in between was unread

                my $was_read = slurp('/proc/net/tcp') !~ $unread;
                my $read = '';
                vec($read, fileno $c->{socket}, 1) = 1;

                return $gone = 1 if select $read, undef, undef, 0;
                return $was_read;
            }, 20) or die "a client was neither read nor sent away\n";

            $refused = $gone ? $refused + 1 : 0;
            push @clients, [$c, $path] unless $gone;
        }
    };

    is told($nginx->get('/n?k=1')),
       '200 1000000 999999', 'Redis is used';

    $use_up->();
    cmp_ok scalar @clients, '>', 20, 'clients hold all connections ...';
    $redis->stop;
    ok $nginx->wait_log(qr/connect\(\) to .* failed/, 20), 'Redis goes away';
    $use_up->();

    # now Redis is there again, but there is nothing to reach it with

    my $none = qr/\[alert\].*worker_connections are not enough.*redis: /;
    my $tries = $nginx->log_count($none);

    $redis->start;
    ok wait_until(sub { $nginx->log_count($none) > $tries }, 60),
       '... so that none is left for Redis when it is back';

    # all are answered before the first of them is gone

    $_->[0]->write("\r\n") for @clients[0 .. 9];

    my %told;

    for (@clients[0 .. 9]) {
        my ($c, $path) = @$_;

        push @{ $told{$path} }, told($c->response(20));
    }

    is_deeply [reverse sort @{ $told{'/n'} }],
              [map { "200 1000000 99999$_ degraded" } 9, 8, 7, 6, 5],
              '/n: this machine\'s own limit, no error of nginx';
    is_deeply $told{'/closed'}, [('503 - - degraded') x 5],
              '/closed: no error of nginx either';

    $_->[0]->close for @clients;

    # of the bucket that Redis forgot

    ok wait_until(sub {
        told($nginx->get('/n?k=1'))
            eq '200 1000000 999999'
    }, 60), 'and when clients have left, Redis is used';

    $nginx->finish(timeout => 20,
                   except => qr/worker_connections are not enough/);
};


done_testing();
