# HTTP/2: many requests on one connection, each limited and answered for
# itself, also when others are cancelled while they wait.
#
# Bodies say what was decided, so that no response header has to be decoded.
# With the fake Redis the reply says whose it is: key "7" has 7 tokens left, and
# so has "h5-7", whose reply is held until five such calls have come.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp wait_until write_file);


my $binary = $ENV{TEST_NGINX_BINARY} || 'nginx';
my $about = `$binary -V 2>&1`;
my @version = $about =~ m{^nginx version: \S+/(\d+)\.(\d+)\.(\d+)}m
    or die "$binary does not tell its version: $about\n";

if ($about !~ /--with-http_v2_module/) {
    plan skip_all => 'this nginx has no HTTP/2';
}

# "listen ... http2" until 1.25.1, "http2 on" since

my $modern = $version[0] * 1_000_000 + $version[1] * 1000 + $version[2]
             >= 1_025_001;


# ---- an HTTP/2 client that speaks in frames

package H2 {
    use Time::HiRes qw(time);

    use RateLimit::Util qw(patience);

    my %TYPE = (data => 0, headers => 1, rst => 3, settings => 4, ping => 6,
                goaway => 7);
    my ($END_STREAM, $END_HEADERS, $ACK) = (1, 4, 1);
    my $CANCEL = 8;

    sub new {
        my ($class, $port) = @_;

        my $self = bless {
            tcp     => RateLimit::Load::connection($port),
            in      => '',
            next    => 1,
            streams => {},      # by id: status, body, end
        }, $class;

        $self->{tcp}->write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                            . frame('settings', 0, 0, ''));

        return $self;
    }

    sub frame {
        my ($type, $flags, $id, $payload) = @_;

        return substr(pack('N', length $payload), 1)
               . pack('CCN', $TYPE{$type}, $flags, $id) . $payload;
    }

    # The id and the frame of a new request; without "open" it has no body.

    sub request {
        my ($self, $path, %opt) = @_;

        my $id = $self->{next};
        my @fields = (':method', $opt{open} ? 'POST' : 'GET',
                      ':scheme', 'http', ':path', $path,
                      ':authority', 'localhost');

        $self->{next} += 2;

        # literals, never indexed, not compressed

        my $block = join '', map { my ($name, $value) = splice @fields, 0, 2;
                                   "\0" . pack('C/a C/a', $name, $value) }
                             1 .. @fields / 2;

        return ($id, frame('headers',
                           $END_HEADERS | ($opt{open} ? 0 : $END_STREAM), $id,
                           $block));
    }

    sub cancel { frame('rst', 0, $_[0], pack 'N', $CANCEL) }
    sub data   { frame('data', $_[2] ? $END_STREAM : 0, $_[0], $_[1]) }

    sub write { my $self = shift; $self->{tcp}->write(join '', @_) }
    sub close { $_[0]{tcp}->close($_[1]) }

    # "200 body" of a stream, or what came instead; waits for it.

    sub answer {
        my ($self, $id) = @_;

        my $end = time + patience(30);

        while (!$self->{streams}{$id}{end}) {
            return $self->{goaway} if defined $self->{goaway};
            $self->read($end - time) or return 'timeout';
        }

        my $stream = $self->{streams}{$id};

        return $stream->{end} if $stream->{end} ne 'end';
        return join ' ', $stream->{status}, $stream->{body} // ();
    }

    # All that was sent before has been handled by the server when its answer to
    # a ping is here.

    sub ping {
        my ($self) = @_;

        my $end = time + patience(30);

        $self->{pong} = 0;
        $self->write(frame('ping', 0, 0, '12345678'));

        until ($self->{pong} || defined $self->{goaway}) {
            $self->read($end - time) or return 0;
        }

        return $self->{pong};
    }

    sub read {
        my ($self, $timeout) = @_;

        my $socket = $self->{tcp}{socket};
        my $read = '';
        vec($read, fileno $socket, 1) = 1;

        return 0 if $timeout <= 0;
        return 0 unless select $read, undef, undef, $timeout;

        if (!sysread $socket, $self->{in}, 65536, length $self->{in}) {
            $self->{goaway} //= 'closed';
            return 1;
        }

        while (length $self->{in} >= 9) {
            my $length = unpack 'N', "\0" . substr $self->{in}, 0, 3;

            last if length $self->{in} < 9 + $length;

            my (undef, $type, $flags, $id, $payload) =
                unpack "a3 C C N a$length", $self->{in};

            substr $self->{in}, 0, 9 + $length, '';
            $self->take($type, $flags, $id, $payload);
        }

        return 1;
    }

    sub take {
        my ($self, $type, $flags, $id, $payload) = @_;

        my $stream = $id ? $self->{streams}{$id} //= {} : undef;

        if ($type == $TYPE{headers}) {

            # perhaps a change of the table's size; then the status: an index,
            # or three digits

            $payload =~ s/^[\x20-\x3f]+//;
            $stream->{status} =
                $payload =~ /^\x88/ ? 200
                : $payload =~ /^\x48\x03(\d{3})/ ? $1
                : 'unknown ' . unpack 'H*', $payload;

        } elsif ($type == $TYPE{data}) {
            $stream->{body} .= $payload;

        } elsif ($type == $TYPE{rst}) {
            $stream->{end} //= 'reset';

        } elsif ($type == $TYPE{settings}) {
            $self->write(frame('settings', $ACK, 0, '')) unless $flags & $ACK;

        } elsif ($type == $TYPE{ping}) {
            $self->{pong} = 1;

        } elsif ($type == $TYPE{goaway}) {
            $self->{goaway} = 'goaway ' . unpack 'x4 N', $payload;
        }

        if (($type == $TYPE{headers} || $type == $TYPE{data})
            && $flags & $END_STREAM)
        {
            $stream->{end} = 'end';
        }
    }
}


# ---- servers

sub nginx {
    my ($shards, %opt) = @_;

    my $listen = $modern ? 'listen 127.0.0.1:%%PORT%%; http2 on;'
                         : 'listen 127.0.0.1:%%PORT%% http2;';

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
    ratelimit_shards $shards;
    ratelimit_redis_timeout 60s;
    ratelimit_redis_connect_timeout 60s;

    # calls that differ by the rate are commands of their own
    map \$arg_k \$rate {
        default                  1r/d;
        ~^(?:h\\d+-)?(?<n>\\d+)\$  1000\${n}r/s;
    }

    server {
        $listen

        ssi on;
        ssi_types *;
        error_page 429 /told;
        ratelimit_key \$arg_k;

        location /n {
            ratelimit_capacity 1000000;
            ratelimit_rate \$rate;
            alias %%DIR%%/html/told;
        }

        location /c {
            ratelimit_capacity \$arg_c;
            ratelimit_rate 1r/d;
            alias %%DIR%%/html/told;
        }

        location /post {
            ratelimit_capacity \$arg_c;
            ratelimit_rate 1r/d;
            proxy_pass http://127.0.0.1:%%PORT2%%/body;
        }

        location = /told { }
    }

    # keeps a body in a file and answers with its name

    server {
        listen 127.0.0.1:%%PORT2%%;

        location /body {
            client_body_in_file_only on;
            proxy_set_header X-File \$request_body_file;
            proxy_pass http://127.0.0.1:%%PORT2%%/name;
        }

        location /name { return 200 \$http_x_file; }
    }
EOC
        %opt
    );

    write_file($nginx->dir . '/html/told',
               join ' ', map { qq(<!--# echo var="ratelimit_$_" -->) }
                         qw(status limit remaining));

    return $nginx;
}


# Sends requests for the paths at once, and the frames that "more" makes of
# their ids; the ids.

sub send_all {
    my ($h2, $more, @paths) = @_;

    my (@ids, @frames);

    for my $path (@paths) {
        my ($id, $frame) = $h2->request($path);

        push @ids, $id;
        push @frames, $frame, $more ? $more->($id) : ();
    }

    $h2->write(@frames);

    return @ids;
}


# ---- tests

subtest '100 streams on one connection: exactly the capacity passes' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr, workers => 2);

    my $codes = sub {
        my (@args) = @_;

        my $out = qx(timeout 300 h2load @args 2>&1);
        my ($done) = $out =~ /^(status codes: .*)$/m;

        return $done // $out;
    };

    is $codes->('-c 1 -m 100 -n 100',
                "'" . $nginx->url('/c?k=one&c=10') . "'"),
       'status codes: 10 2xx, 0 3xx, 90 4xx, 0 5xx', '100 at once';

    is $codes->('-c 4 -m 100 -n 2000',
                "'" . $nginx->url('/c?k=four&c=250') . "'"),
       'status codes: 250 2xx, 0 3xx, 1750 4xx, 0 5xx',
       '2000 over four connections and two workers';

    my $clients = () = $redis->cmd('CLIENT', 'LIST') =~ /cmd=evalsha/g;
    cmp_ok $clients, '<=', 2, 'at most one connection to Redis per worker';

    $nginx->finish(timeout => 20);
};


subtest '100 streams parked at once: each gets its own answer' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);
    my $h2 = H2->new($nginx->port);

    # no reply comes before the last request has

    my @ids = send_all($h2, undef, map { "/n?k=h100-$_" } 1 .. 100);

    is_deeply [map { $h2->answer($_) } @ids],
              [map { "200 PASSED 1000000 $_" } 1 .. 100], 'all of them';
    is scalar $fake->commands('EVALSHA'), 100, 'one call each';
    is_deeply $fake->connections, { accepted => 1, open => 1, peak => 1 },
              'over one connection';

    $h2->close;
    $nginx->finish(timeout => 20);
};


subtest 'streams with a real Redis: own limits, one shared limit' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);
    my $h2 = H2->new($nginx->port);

    my @ids = send_all($h2, undef, map { "/c?k=$_&c=" . (100 + $_) } 1 .. 100);

    is_deeply [map { $h2->answer($_) } @ids],
              [map { join ' ', 200, 'PASSED', 100 + $_, 99 + $_ } 1 .. 100],
              'own limits';

    @ids = send_all($h2, undef, ('/c?k=shared&c=40') x 100);

    is_deeply [map { $h2->answer($_) } @ids],
              [(map { '200 PASSED 40 ' . (40 - $_) } 1 .. 40),
               ('429 REJECTED 40 0') x 60], 'a shared one: first come';

    $h2->close;
    $nginx->finish(timeout => 20);
};


subtest 'streams reset while parked: the others get their answers' => sub {
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);
    my $h2 = H2->new($nginx->port);
    my $n = 40;
    my $round = 0;
    my $cancelled = 0;

    my @rounds = (
        ['every other one', sub { $_[0] % 2 }],
        ['the others',      sub { $_[0] % 2 == 0 }],
        ['the first',       sub { $_[0] == 1 }],
        ['the last',        sub { $_[0] == $n }],
        ['all',             sub { 1 }],
    );

    for (@rounds) {
        my ($who, $leaves) = @$_;
        my $hold = $n + 1;
        my $base = 100 * ++$round;

        $fake->clear;

        my @ids = send_all($h2, undef,
                           map { "/n?k=h$hold-" . ($base + $_) } 1 .. $n);

        $fake->wait_commands('EVALSHA', $n, 20) or die "not parked\n";

        my @gone = grep { $leaves->($_) } 1 .. $n;
        my @stay = grep { !$leaves->($_) } 1 .. $n;

        $h2->write(map { H2::cancel($ids[$_ - 1]) } @gone);
        $cancelled += @gone;
        ok wait_until(sub {
            $nginx->log_count(qr/client canceled stream/) == $cancelled
        }, 20), "$who: noticed at once";

        my ($last) = send_all($h2, undef, "/n?k=h$hold-" . ($base + $hold));

        is $h2->answer($last), '200 PASSED 1000000 ' . ($base + $hold),
           'the one after';
        is_deeply [map { $h2->answer($ids[$_ - 1]) } @stay],
                  [map { '200 PASSED 1000000 ' . ($base + $_) } @stay],
                  'those who stayed';
        is scalar(grep { $h2->{streams}{$ids[$_ - 1]} } @gone), 0,
           'nothing for the others';
    }

    is_deeply $fake->connections, { accepted => 1, open => 1, peak => 1 },
              'the connection to Redis lives on';

    # the whole connection

    $fake->clear;
    send_all($h2, undef, map { "/n?k=h$n-$_" } 1 .. $n - 1);
    $fake->wait_commands('EVALSHA', $n - 1, 20) or die "not parked\n";
    $h2->close('reset');

    ok wait_until(sub {
        (() = $nginx->access_log =~ /" 499 /g) == $cancelled + $n - 1
    }, 20), 'a connection with many parked streams is lost';

    $h2 = H2->new($nginx->port);
    my ($id) = send_all($h2, undef, "/n?k=h$n-$n");
    is $h2->answer($id), "200 PASSED 1000000 $n", 'a new one is served';

    $h2->close;
    $nginx->finish(timeout => 20);
};


subtest 'streams reset at once, with a real Redis' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);
    my $h2 = H2->new($nginx->port);

    # in the same segment: nginx may have sent nothing to Redis yet

    for my $round (1 .. 10) {
        my $base = 100 * $round;
        my @ids = send_all($h2, sub { $_[0] % 4 == 1 ? H2::cancel($_[0]) : () },
                           map { "/c?k=$base-$_&c=" . ($base + $_) } 1 .. 60);
        my @stay = grep { $ids[$_ - 1] % 4 != 1 } 1 .. 60;

        is_deeply [map { $h2->answer($ids[$_ - 1]) } @stay],
                  [map { join ' ', 200, 'PASSED', $base + $_, $base + $_ - 1 }
                   @stay], "round $round: those who stayed";
        ok $h2->ping, 'the connection is fine';
    }

    $h2->close;
    $nginx->finish(timeout => 20);
};


subtest 'bodies arrive while their request is parked, and hold up no other one'
    => sub
{
    my $fake = RateLimit::FakeRedis->start_by_key;
    my $nginx = nginx($fake->addr);
    my $h2 = H2->new($nginx->port);
    my @pieces = map { $_ x 10000 } 'a' .. 'd';

    # two pieces while it is parked, the others afterwards

    my ($id, $frame) = $h2->request('/post?c=100&k=h2-1', open => 1);
    $h2->write($frame);
    $fake->wait_commands('EVALSHA', 1, 20) or die "not parked\n";
    $h2->write(map { H2::data($id, $pieces[$_]) } 0, 1);
    ok $h2->ping, 'pieces arrive while the request is parked';

    my ($other) = send_all($h2, undef, '/n?k=h2-2');
    is $h2->answer($other), '200 PASSED 1000000 2', 'another one passes';

    $h2->write(H2::data($id, $pieces[2]), H2::data($id, $pieces[3], 1));
    my ($status, $file) = split ' ', $h2->answer($id), 2;
    is $status, 200, 'then this one';
    ok slurp($file) eq join('', @pieces), 'with all of its body';

    # reset in the middle of the body

    $fake->clear;
    ($id, $frame) = $h2->request('/post?c=100&k=h2-3', open => 1);
    $h2->write($frame, H2::data($id, $pieces[0]));
    $fake->wait_commands('EVALSHA', 1, 20) or die "not parked\n";
    $h2->write(H2::cancel($id));
    ok $nginx->wait_log(qr/client canceled stream/, 20),
       'who leaves is noticed';
    ($other) = send_all($h2, undef, '/n?k=h2-4');
    is $h2->answer($other), '200 PASSED 1000000 4', 'the one after';

    $h2->close;
    $nginx->finish(timeout => 20);
};


subtest 'bodies of rejected requests, and HEAD' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx($redis->addr);
    my $h2 = H2->new($nginx->port);

    my ($id) = send_all($h2, undef, '/c?c=1&k=a');
    is $h2->answer($id), '200 PASSED 1 0', 'used up';

    ($id, my $frame) = $h2->request('/c?c=1&k=a', open => 1);
    $h2->write($frame);
    is $h2->answer($id), '429 REJECTED 1 0', 'rejected before its body came';
    $h2->write(H2::data($id, 'x' x 5000), H2::data($id, 'y', 1));

    ($id) = send_all($h2, undef, '/c?c=9&k=b');
    is $h2->answer($id), '200 PASSED 9 8', 'the connection is fine';
    $h2->close;

    my $url = $nginx->url('/c?c=1&k=head');

    for my $expected (200, 429) {
        my $head = qx(curl -sS --max-time 60 --http2-prior-knowledge -I '$url');

        like $head, qr{^HTTP/2 $expected\b}, "HEAD: $expected";
        like $head, qr/^x-ratelimit-limit: 1\r$/m, 'its limit';
        like $head, qr/^x-ratelimit-remaining: 0\r$/m, 'what remains';
        is scalar(() = $head =~ /^retry-after: \d+\r$/mg),
           $expected == 429 ? 1 : 0, 'when to come back';
    }

    $nginx->finish(timeout => 20);
};


done_testing();
