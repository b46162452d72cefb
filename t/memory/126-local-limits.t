# Limits in the memory of one machine.  First without any "ratelimit_shards",
# where everything that a limit can do is done there, exactly, by all workers
# together and over a reload.  Then as the share that a machine grants while
# Redis is away.
#
# The rate of most limits is too slow to refill during a test, so "Remaining"
# counts what was taken.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest', 'cmp_ok', 'note'];

use List::Util qw(sum0);
use POSIX qw(floor);
use Time::HiRes qw(time);

# nothing in these says that anything is missing
our $sound = "!X-RateLimit-Degraded\n!X-RateLimit-Degraded-Reason\n!X-Shard\n";
our $silent = "!Retry-After\n!X-RateLimit-Retry-After\n";

my $TELL = <<'EOC';
    add_header X-Name $ratelimit_name always;
    add_header X-Status $ratelimit_status always;
    add_header X-Source $ratelimit_source always;
    add_header X-Shard $ratelimit_shard always;
EOC

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value('http_config', $TELL . ($block->http_config // ''));
    $block->set_value('no_error_log', "[alert]\n[crit]\n")
        unless defined $block->no_error_log;
});


# A section "after" is Perl that runs when the last response of its block has
# come.


no_root_location();
run_tests();


# ---- one machine, four workers

# Workers with a socket each, so that all of them get connections.  Which limit,
# its key and the cost come with the request.

sub start_local {
    my (%opt) = @_;

    return RateLimit::Nginx->start(workers => 4, log => 'notice', %opt,
                                   conf => <<"EOC" . ($opt{conf} // ''));
    $TELL
    add_header X-Worker \$pid always;
    ratelimit_log_level info;

    map \$arg_c \$cost { "" 1; default \$arg_c; }

    ratelimit_limit user   key=\$arg_u capacity=40 rate=1r/d;
    ratelimit_limit ip     key=\$arg_i capacity=60 window=1h
                           algorithm=sliding_window_log;
    ratelimit_limit global key=all capacity=1000 rate=1r/d;

    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name localhost;

        ratelimit_key \$arg_k;
        ratelimit_cost \$cost;

        location /100 { ratelimit_capacity 100; ratelimit_rate 1r/d;
                        empty_gif; }
        location /five { ratelimit_capacity 5; ratelimit_rate 1r/d;
                         empty_gif; }
        location /never { ratelimit_capacity 7; ratelimit_rate 0r/s;
                          empty_gif; }
        location /refill { ratelimit_capacity 100; ratelimit_rate 50r/s;
                           empty_gif; }
        location /steps { ratelimit_capacity 100; ratelimit_rate 2r/s;
                          ratelimit_refill_interval 2s; empty_gif; }

        location /window {
            ratelimit_algorithm sliding_window_log;
            ratelimit_window 1h;
            ratelimit_capacity 50;
            empty_gif;

            location /window/3000 { ratelimit_capacity 3000; empty_gif; }
            location /window/slide { ratelimit_capacity 20;
                                     ratelimit_window 1s; empty_gif; }
            location /window/coarse { ratelimit_capacity 300;
                                      ratelimit_window 2s; empty_gif; }
        }

        location /h { ratelimit user ip global; empty_gif; }
        location /look/user   { ratelimit user; ratelimit_preview on;
                                empty_gif; }
        location /look/ip     { ratelimit ip; ratelimit_preview on;
                                empty_gif; }
        location /look/global { ratelimit global; ratelimit_preview on;
                                empty_gif; }

        location /free { empty_gif; }
        location /reading { return 200 \$connections_reading; }
    }
EOC
}


sub left {
    my ($nginx, $path) = @_;

    return $nginx->get($path)
           ->{headers}{'x-ratelimit-remaining'};
}


sub local_tests {
    my $nginx = start_local();
    my $port = $nginx->port;

    my $run = sub {
        my (%opt) = @_;

        my $load = RateLimit::Load::run(port => $port, timeout => 60,
                                        connections => 50, keep => 1, %opt);

        is $load->error_text, '', 'each request was answered';

        return $load;
    };


    subtest '4 workers, 50 connections, one bucket: exactly 100 pass' => sub {
        my $load = $run->(path => '/100?k=a', requests => 2000);

        is_deeply $load->statuses, { 200 => 100, 429 => 1900 }, '100 and 1900';

        my %workers = map { $_->{headers}{'x-worker'} => 1 } $load->responses;
        my %sources = map { $_->{headers}{'x-source'} => 1 } $load->responses;
        my @degraded = grep { $_->{headers}{'x-ratelimit-degraded'} }
                            $load->responses;

        is scalar keys %workers, 4, 'by all four workers';
        is_deeply [keys %sources], ['local'], 'from memory';
        is_deeply \@degraded, [], 'and nothing is degraded about it';
    };


    subtest 'a window of 50, one of 3000: exactly so many pass' => sub {
        my $load = $run->(path => '/window?k=a', requests => 1000);

        is_deeply $load->statuses, { 200 => 50, 429 => 950 }, '50 and 950';

        # more than the requests that are told apart

        $load = $run->(path => '/window/3000?k=a', requests => 5000);

        is_deeply $load->statuses, { 200 => 3000, 429 => 2000 },
                  '3000 and 2000';
    };


    subtest '500 keys at once, capacity 5: exactly 5 each' => sub {
        my $load = $run->(requests => 5000, timeout => 120,
                          path => sub { '/five?k=u' . $_[0] * 173 % 500 });
        my %passed;

        $passed{ $_->{n} * 173 % 500 } += $_->{status} == 200
            for $load->responses;

        is_deeply $load->statuses, { 200 => 2500, 429 => 2500 }, 'half of all';
        is scalar(grep { $_ == 5 } values %passed), 500, 'five of each key';
    };


    subtest 'costs: what passed adds up to the capacity' => sub {
        my @costs = (3, 1, 2, 5);

        for my $path ('/100?k=costs', '/window?k=costs') {
            my $load = $run->(requests => 400,
                              path => sub { "$path&c=$costs[$_[0] % 4]" });

            is sum0(map { $costs[$_->{n} % 4] }
                    grep { $_->{status} == 200 } $load->responses),
               $path =~ /window/ ? 50 : 100, $path;
        }
    };


    subtest 'a rate of zero: so many, and never again' => sub {
        my $load = $run->(path => '/never?k=a', requests => 200);

        is_deeply $load->statuses, { 200 => 7, 429 => 193 }, '7 and 193';
    };


    # Three users on one address: none of the limits is exceeded, and what one
    # of them rejects costs the others nothing.

    subtest 'a hierarchy takes from all of its limits, or from none' => sub {
        my $load = $run->(requests => 300,
                          path => sub { '/h?i=x&u=u' . $_[0] % 3 });
        my %passed;

        $passed{ $_->{n} % 3 } += $_->{status} == 200 for $load->responses;

        is_deeply $load->statuses, { 200 => 60, 429 => 240 },
                  '60 from the address';
        cmp_ok $passed{$_}, '<=', 40, "user $_: at most 40" for 0 .. 2;

        is left($nginx, "/look/user?u=u$_"), 40 - $passed{$_},
           "user $_: what passed was taken" for 0 .. 2;
        is left($nginx, '/look/ip?i=x'), 0, 'the address: all of it';
        is left($nginx, '/look/global'), 940, 'everybody: 60';
    };


    # From the first take on, a bucket of 100 gives 100 and 50 a second until a
    # request is denied.

    subtest 'refill: capacity + rate x time, within 1 %' => sub {
        my ($asked, $passed, $denied) = (0, 0, 0);

        my $one = sub {
            my $status = RateLimit::Load::get($port, '/refill?k=a')->{status};

            $asked++;
            $passed++ if $status == 200;
            $denied++ if $status == 429;

            return $status;
        };

        my $first_sent = time;
        $one->();
        my $first_answered = time;

        my $load = $run->(connections => 8, duration => 3, keep => 0,
                          path => '/refill?k=a');

        $asked += $load->count;
        $passed += $load->count(200);
        $denied += $load->count(429);

        my ($last_sent, $last_answered);

        for (1 .. 1000) {
            $last_sent = time;
            my $status = $one->();
            $last_answered = time;

            last if $status == 429;
        }

        my $most = 100 + 50 * ($last_answered - $first_sent);
        my $least = 100 + 50 * ($last_sent - $first_answered);

        note sprintf '%d passed, between %.1f and %.1f expected', $passed,
                     $least, $most;

        is $passed + $denied, $asked, 'each request passed or was denied';
        cmp_ok $denied, '>', 100, 'there were more requests than tokens';
        cmp_ok $passed, '<=', $most, 'never more';
        cmp_ok $passed, '>=', $least * 0.99, 'and not 1 % less';
    };


    # Under load a window fills as soon as it is empty, so a full one passes in
    # each of its lengths.  One with more than 64 requests may hold some of
    # them as if it were longer by a 31st part.

    for (['/window/slide', 20, 1, 1], ['/window/coarse', 300, 2, 32 / 31]) {
        my ($path, $capacity, $length, $longer) = @$_;

        subtest "$path: no window ever holds more, and none much less" => sub {
            my $start = time;
            my $load = $run->(connections => 8,
                              duration => 4 * $length * $longer + 0.5,
                              path => "$path?k=a");
            my $end = time;
            my $passed = $load->count(200);

            # any stretch of time is covered by so many windows
            my $most = $capacity * (floor(($end - $start) / $length) + 1);
            my $least = $capacity * 3;

            note sprintf '%d passed, between %d and %d expected', $passed,
                         $least, $most;

            cmp_ok $load->count(429), '>', 100, 'more came than may pass';
            cmp_ok $passed, '<=', $most, 'never more';
            cmp_ok $passed, '>=', $least, 'and not fewer than fit';
        };
    }


    subtest 'refill_interval: nothing, and then all of a step at once' => sub {
        is RateLimit::Load::get($port, '/steps?k=a&c=100')->{status}, 200,
           'all of it is taken';

        my $asked = 0;

        ok wait_until(sub {
            $asked++;
            RateLimit::Load::get($port, '/steps?k=a')->{status} == 200;
        }, 10), 'the step is over';
        cmp_ok $asked, '>', 1, 'before that nothing came';

        my $raw = "GET /steps?k=a HTTP/1.1\r\nHost: x\r\n\r\n";

        is join(' ', map { $_->{status} }
                     RateLimit::Load::pipeline($port, [($raw) x 4])),
           '200 200 200 429', 'then four tokens, no more';
    };


    subtest 'where no limit is set, nothing happens' => sub {
        my $load = $run->(path => '/free?k=a', requests => 500);

        is_deeply $load->statuses, { 200 => 500 }, 'all pass';
        is_deeply [grep { /ratelimit|x-status|x-source/ }
                   map { keys %{ $_->{headers} } } $load->responses], [],
                  'and nobody is told anything';
    };


    subtest 'a reload keeps what was taken' => sub {
        is left($nginx, '/five?k=reload'), 4, 'a bucket';
        is left($nginx, '/window?k=reload'), 49, 'a window';
        ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
        is left($nginx, '/five?k=reload'), 3, 'the bucket goes on';
        is left($nginx, '/window?k=reload'), 48, 'the window goes on';
        is RateLimit::Load::get($port, '/100?k=a')->{status}, 429,
           'who had nothing left has nothing left';
    };


    # Half a request keeps an old worker from leaving.

    subtest 'old and new workers take from the same bucket' => sub {
        my $old = RateLimit::Load::connection($port);

        $old->write("GET /five?k=both HTTP/1.1\r\nHost: x\r\n");

        ok wait_until(sub {
            RateLimit::Load::get($port, '/reading')->{body} == 1
        }), 'a worker waits for the rest';

        is left($nginx, '/five?k=both'), 4, 'another connection';

        my %old = map { $_ => 1 } $nginx->workers;

        ok $nginx->reload, 'a reload';
        ok wait_until(sub {
            !grep { $old{ RateLimit::Load::get($port, '/free')
                          ->{headers}{'x-worker'} } } 1 .. 20
        }), 'old workers accept no more';

        my $new = RateLimit::Load::get($port, '/five?k=both');

        is $new->{headers}{'x-ratelimit-remaining'}, 3, 'a new worker';
        ok !$old{ $new->{headers}{'x-worker'} }, 'it is one';

        $old->write("\r\n");

        my $response = $old->response(10);

        is $response->{headers}{'x-ratelimit-remaining'}, 2, 'an old worker';
        ok $old{ $response->{headers}{'x-worker'} }, 'it is one';
        is left($nginx, '/five?k=both'), 1, 'and a new one sees it';

        $old->close;
        ok $nginx->old_workers_gone(10), 'the old ones leave';
    };


    subtest 'a changed capacity applies to what is there' => sub {
        is left($nginx, '/five?k=change'), 4, 'one of 5 is taken';

        my $text = $nginx->{opt}{http};

        ok $text =~ s/(location \/five \{ ratelimit_capacity) 5;/$1 3;/,
           'a smaller one';
        ok $nginx->reload(conf => $text) && $nginx->old_workers_gone(10),
           'after a reload';
        is left($nginx, '/five?k=change'), 2, 'what is above it is gone';
        is left($nginx, '/five?k=new'), 2, 'a new key has no more either';
    };


    $nginx->finish;
    is $nginx->log_count(qr/redis/i), 0, 'and never spoke of Redis';
}


# ---- a share of a limit, while Redis is away

sub degraded_tests {
    my @shards = RateLimit::Redis->start_many(2);
    my ($live, $dead) = @shards;
    my $addresses = join ' ', map { $_->addr } @shards;

    my $nginx = RateLimit::Nginx->start(workers => 4, log => 'info',
                                        conf => <<"EOC");
    $TELL
    ratelimit_shards $addresses;
    ratelimit_redis_timeout 10s;
    ratelimit_silence long_timeout;
    ratelimit_redis_connect_timeout 10s;
    ratelimit_local_share 1/4;

    map \$arg_c \$cost { "" 1; default \$arg_c; }

    ratelimit_limit here  key=\$arg_h capacity=\$arg_hc rate=1r/d;
    ratelimit_limit there key=\$arg_t capacity=\$arg_tc rate=1r/d;
    ratelimit_limit window key=\$arg_t capacity=\$arg_tc window=1h
                           algorithm=sliding_window_log;

    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name localhost;

        ratelimit_key \$arg_k;
        ratelimit_cost \$cost;

        location /place { ratelimit_rate 1r/d; ratelimit_capacity 1000000;
                          empty_gif; }
        location /100 { ratelimit_capacity 100; ratelimit_rate 0r/s;
                        empty_gif; }
        location /whole { ratelimit_capacity 100; ratelimit_rate 0r/s;
                          ratelimit_local_share 1; empty_gif; }
        location /window { ratelimit_capacity 100; ratelimit_window 1h;
                           ratelimit_algorithm sliding_window_log; empty_gif; }
        location /clock { ratelimit_capacity 100; ratelimit_rate 1r/d;
                          ratelimit_clock nginx; empty_gif; }
        location /one { ratelimit_capacity 1; ratelimit_rate 1r/m; empty_gif; }
        location /minute { ratelimit_capacity 100; ratelimit_rate 240r/m;
                           empty_gif; }
        location /fast { ratelimit_capacity 1000; ratelimit_rate 400r/s;
                         empty_gif; }
        location /long { ratelimit_capacity 4; ratelimit_window 1s;
                         ratelimit_algorithm sliding_window_log; empty_gif; }

        location /both { ratelimit here there; ratelimit_local_share 0.5;
                         empty_gif; }
        location /both/window { ratelimit here window;
                                ratelimit_local_share 0.5; empty_gif; }
        location /look/there { ratelimit there; ratelimit_preview on;
                               ratelimit_preview_cache off;
                               ratelimit_local_share 0.5; empty_gif; }
        location /look/window { ratelimit window; ratelimit_preview on;
                                ratelimit_preview_cache off;
                                ratelimit_local_share 0.5; empty_gif; }
    }
EOC

    my $port = $nginx->port;
    my $get = sub { RateLimit::Load::get($port, $_[0]) };

    # Keys that no test had before.

    my $n = 0;

    my $key_on = sub {
        my ($shard) = @_;

        while ($n++ < 10_000) {
            return "k$n" if $get->("/place?k=k$n")->{headers}{'x-shard'}
                            eq $shard->addr;
        }

        die "no key for this shard\n";
    };

    my $word = sub {
        my ($response) = @_;

        my $h = $response->{headers};

        return join ' ', $response->{status}, map { $h->{$_} // '-' }
               qw(x-status x-source x-ratelimit-remaining);
    };

    my $tokens = sub {
        my ($limit, $key) = @_;

        my $left = $live->tokens("ratelimit:$limit:{$key}");

        return defined $left ? sprintf('%.0f', $left) : undef;
    };

    my $degraded = sub {
        my ($name, @responses) = @_;

        my %reasons = map { ($_->{headers}{'x-ratelimit-degraded'} // '-') . ' '
                            . ($_->{headers}{'x-ratelimit-degraded-reason'}
                               // '-') => 1 } @responses;

        is_deeply [grep { !/^true (?:storage_unavailable|circuit_open)$/ }
                   keys %reasons], [], $name;
    };

    my $key = $key_on->($dead);

    is $word->($get->("/100?k=$key")), '200 PASSED redis 99',
       'with Redis, all of a limit';

    $dead->kill9;
    ok wait_until(sub {
        $get->("/place?k=$key")->{headers}{'x-source'} eq 'local'
    }), 'a shard is gone';


    for (['/100', 25], ['/whole', 100], ['/window', 25], ['/clock', 25]) {
        my ($path, $share) = @$_;

        subtest "$path of 100: this machine grants $share" => sub {
            my $key = $key_on->($dead);
            my $load = RateLimit::Load::run(port => $port, connections => 40,
                                            requests => 400, keep => 1,
                                            path => "$path?k=$key",
                                            timeout => 60);

            is $load->error_text, '', 'each request was answered';
            is_deeply $load->statuses, { 200 => $share, 429 => 400 - $share },
                      "exactly $share";
            $degraded->('and each is told', $load->responses);

            my %seen = map { join(' ', map { $_ // '-' }
                                  $_->{status},
                                  @{ $_->{headers} }{qw(x-status x-source
                                                        x-shard
                                                        x-ratelimit-limit)})
                             => 1 } $load->responses;

            is_deeply [sort keys %seen],
                      ["200 DEGRADED local ${\ $dead->addr} $share",
                       "429 REJECTED local ${\ $dead->addr} $share"],
                      'who decided, and which limit';
        };
    }


    subtest 'a limit of one stays one, at a quarter of its rate' => sub {
        my $key = $key_on->($dead);

        is $word->($get->("/one?k=$key")), '200 DEGRADED local 0', 'one';

        my $response = $get->("/one?k=$key");
        my $wait = $response->{headers}{'retry-after'};

        is $word->($response), '429 REJECTED local 0', 'and no other';
        ok $wait > 200 && $wait <= 240, 'for four minutes, not one'
            or diag $wait;
    };


    subtest 'a cost above the share passes once, and is paid back' => sub {
        my $key = $key_on->($dead);

        # 25 tokens, one more a second

        is $word->($get->("/minute?k=$key&c=40")), '200 DEGRADED local 0',
           'it would never fit';

        my $response = $get->("/minute?k=$key");
        my $wait = $response->{headers}{'retry-after'};

        is $word->($response), '429 REJECTED local 0', 'the next one waits';
        ok $wait > 10 && $wait <= 16, 'until 15 are paid back, and for its own'
            or diag $wait;

        $wait = $get->("/minute?k=$key&c=40")->{headers}{'retry-after'};
        ok $wait > 34 && $wait <= 40, 'another such one, until all is there'
            or diag $wait;

        # 250 tokens, 100 more a second

        $key = $key_on->($dead);

        my $start = time;

        is $word->($get->("/fast?k=$key&c=300")), '200 DEGRADED local 0',
           'it is 50 above';
        ok wait_until(sub { $get->("/fast?k=$key")->{status} == 200 }, 10),
           'time pays it back';
        cmp_ok time - $start, '>=', 0.51, 'no sooner than it may';

        # a window pays by being closed: 60 of 25 are three of them

        $key = $key_on->($dead);

        $response = $get->("/window?k=$key&c=60");
        is $word->($response), '200 DEGRADED local 0', 'a window';
        $wait = $response->{headers}{'x-ratelimit-reset'} - time;
        ok $wait > 3 * 3600 - 60 && $wait <= 3 * 3600 + 1,
           'which is full for three times its length' or diag $wait;
        $response = $get->("/window?k=$key");
        is $word->($response), '429 REJECTED local 0', 'has no room';
        $wait = $response->{headers}{'retry-after'};
        ok $wait > 3 * 3600 - 60 && $wait <= 3 * 3600, 'until then'
            or diag $wait;

        # four of one, in a second each

        $key = $key_on->($dead);
        $start = time;

        is $word->($get->("/long?k=$key&c=4")), '200 DEGRADED local 0',
           'a short window';
        is $word->($get->("/long?k=$key")), '429 REJECTED local 0', 'is full';
        ok wait_until(sub { $get->("/long?k=$key&c=4")->{status} == 200 }, 20),
           'until it has gone';
        cmp_ok time - $start, '>=', 3.9, 'no sooner than it may';

        is $get->("/minute?k=$key&c=101")->{headers}{'retry-after'}, undef,
           'what is above the limit itself never passes';
    };


    for (['/both', '/look/there'], ['/both/window', '/look/window']) {
        my ($path, $look) = @$_;

        subtest "$path: one limit there, one on a shard that is gone" => sub {
            my ($h, $t) = ($key_on->($live), $key_on->($dead));

            my $left = sub {
                return $get->("$look?t=$t&tc=4")
                       ->{headers}{'x-ratelimit-remaining'};
            };

            # half of 4 here, all of 5 in Redis

            my $both = "$path?h=$h&hc=5&t=$t&tc=4";
            my @responses = map { $get->($both) } 1 .. 4;

            is_deeply [map { $word->($_) } @responses],
                      ['200 DEGRADED local 1', '200 DEGRADED local 0',
                       ('429 REJECTED local 0') x 2],
                      'two pass, then the share is used up';
            $degraded->('and each is told', @responses);
            ok wait_until(sub { $tokens->('here', $h) == 3 }),
               'what was taken in Redis for the others is given back'
                or diag $tokens->('here', $h);

            # the other way round: Redis denies

            ($h, $t) = ($key_on->($live), $key_on->($dead));
            $both = "$path?h=$h&hc=1&t=$t&tc=8";

            @responses = map { $get->($both) } 1 .. 4;

            is $responses[0]{status}, 200, 'one passes';
            is $word->($responses[1]), '429 REJECTED redis 0',
               'then Redis denies';
            like $word->($_), qr/^429 REJECTED (?:redis|denied) 0$/,
                 'which may be remembered' for @responses[2, 3];
            is $responses[1]{headers}{'x-name'}, 'here', 'by its name';
            is $get->("$look?t=$t&tc=8")
               ->{headers}{'x-ratelimit-remaining'}, 3,
               'and of the share one is taken';

            # under load: never more than either grants

            ($h, $t) = ($key_on->($live), $key_on->($dead));

            my $load = RateLimit::Load::run(
                port => $port, connections => 30, requests => 300,
                timeout => 60, path => "$path?h=$h&hc=100&t=$t&tc=40");

            is $load->error_text, '', 'each request was answered';
            is_deeply $load->statuses, { 200 => 20, 429 => 280 },
                      'exactly the share';
            ok wait_until(sub { $tokens->('here', $h) == 80 }),
               'and Redis has the rest' or diag $tokens->('here', $h);
        };
    }


    subtest 'back in Redis, its own state counts' => sub {
        my $other = $key_on->($dead);

        is $word->($get->("/100?k=$other")), '200 DEGRADED local 24', 'away';

        $dead->start;
        ok wait_until(sub {
            $get->("/place?k=$other")->{headers}{'x-source'} eq 'redis'
        }, 15), 'back';

        # all four workers

        my $load;

        ok wait_until(sub {
            $load = RateLimit::Load::run(port => $port, connections => 20,
                                         requests => 20, keep => 1, close => 1,
                                         path => "/place?k=$other");
            return !grep { $_->{headers}{'x-source'} ne 'redis' }
                         $load->responses;
        }, 15), 'for all workers';

        my $response = $get->("/100?k=$other");

        is $word->($response), '200 PASSED redis 99', 'a full bucket';
        is $response->{headers}{'x-ratelimit-degraded'}, undef, 'nothing amiss';
    };

    $nginx->finish;
}


local_tests();
degraded_tests();

__DATA__

=== TEST 1: a token bucket
--- config
location /t { ratelimit_rate 1r/m; ratelimit_capacity 2; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429, 429]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\nX-Name: localhost/t\n"
 . "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\n$::silent$::sound",
 "X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 0\n"
 . "$::silent$::sound",
 ("X-Status: REJECTED\nX-Source: local\nX-Name: localhost/t\n"
  . "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n$::sound") x 2]
--- raw_response_headers_like eval
[("") x 2, ("Retry-After: (?:60|5\\d)\r\n") x 2]



=== TEST 2: a sliding window log
--- config
location /t { ratelimit_algorithm sliding_window_log; ratelimit_window 1h;
              ratelimit_capacity 2; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\nX-RateLimit-Limit: 2\n"
 . "X-RateLimit-Remaining: 1\n$::silent$::sound",
 "X-Status: PASSED\nX-RateLimit-Remaining: 0\n$::silent$::sound",
 "X-Status: REJECTED\nX-Source: local\nX-RateLimit-Remaining: 0\n$::sound"]
--- raw_response_headers_like eval
[("") x 2, "Retry-After: (?:3600|35\\d\\d)\r\n"]



=== TEST 3: refill in steps, and Retry-After knows of them
--- config
location /t { ratelimit_rate 60r/m; ratelimit_capacity 10;
              ratelimit_refill_interval 10s; ratelimit_cost $arg_c; empty_gif; }
--- request eval
["GET /t?c=10", "GET /t?c=1"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\nX-Source: local"]
--- raw_response_headers_like eval
["", "Retry-After: (?:10|[5-9])\r\n"]



=== TEST 4: costs, of the place and of a limit
--- http_config
ratelimit_limit points   rate=1r/d capacity=10;
ratelimit_limit requests rate=1r/d capacity=10 cost=1;
--- config
location /t { ratelimit points requests; ratelimit_cost 3; empty_gif; }
location /points { ratelimit points; ratelimit_preview on; empty_gif; }
location /requests { ratelimit requests; ratelimit_preview on; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /points", "GET /requests"]
--- error_code eval
[200, 200, 200, 429, 200, 200]
--- response_headers eval
["X-Name: points\nX-RateLimit-Remaining: 7",
 "X-Name: points\nX-RateLimit-Remaining: 4",
 "X-Name: points\nX-RateLimit-Remaining: 1",
 "X-Name: points\nX-RateLimit-Remaining: 1\nX-Status: REJECTED",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 7"]



=== TEST 5: a cost above the capacity never passes, and takes nothing
--- http_config
ratelimit_limit small rate=1r/d capacity=5 cost=$arg_c;
ratelimit_limit other rate=1r/d capacity=50;
--- config
location /t { ratelimit other small; empty_gif; }
--- request eval
["GET /t?c=6", "GET /t?c=5"]
--- error_code eval
[429, 200]
--- response_headers eval
["X-Name: small\nX-Status: REJECTED\nX-Source: local\n$::silent$::sound",
 "X-Name: small\nX-RateLimit-Remaining: 0"]
--- after
::is(scalar ::log_lines(qr/\[warn\].*cost 6 is above capacity 5 of limit "small": this request can never pass/), 1, 'a warning');



=== TEST 6: a hierarchy is all or nothing, whatever the order
--- http_config
ratelimit_limit bucket rate=1r/d capacity=9;
ratelimit_limit window algorithm=sliding_window_log window=1h capacity=2;
ratelimit_limit steps  rate=1r/d capacity=9 refill_interval=1h;
--- config
location /first { ratelimit window bucket steps; empty_gif; }
location /last  { ratelimit bucket steps window; empty_gif; }
location /bucket { ratelimit bucket; ratelimit_preview on; empty_gif; }
location /steps  { ratelimit steps; ratelimit_preview on; empty_gif; }
--- request eval
["GET /first", "GET /last", "GET /first", "GET /last", "GET /bucket",
 "GET /steps"]
--- error_code eval
[200, 200, 429, 429, 200, 200]
--- response_headers eval
["X-Name: window\nX-RateLimit-Remaining: 1",
 "X-Name: window\nX-RateLimit-Remaining: 0",
 ("X-Name: window\nX-Status: REJECTED\nX-RateLimit-Limit: 2\n$::sound") x 2,
 ("X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 7") x 2]



=== TEST 7: of several that reject, the one with the longest wait speaks
--- http_config
ratelimit_limit minute rate=1r/m capacity=1;
ratelimit_limit hour   algorithm=sliding_window_log window=1h capacity=1;
ratelimit_limit second rate=1r/s capacity=1;
--- config
location /t { ratelimit minute hour second; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-Status: PASSED", "X-Name: hour\nX-Status: REJECTED"]



=== TEST 8: a preview takes nothing and rejects nobody
--- config
ratelimit_key x;
ratelimit_rate 1r/d;
ratelimit_capacity 2;
location /t { empty_gif; }
location /look { ratelimit_preview on; empty_gif; }
--- request eval
["GET /look", "GET /look", "GET /t", "GET /look", "GET /t", "GET /t",
 "GET /look"]
--- error_code eval
[200, 200, 200, 200, 200, 429, 200]
--- response_headers eval
[("X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 2\n$::sound") x 2,
 "X-RateLimit-Remaining: 1",
 "X-Source: local\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0",
 "X-Status: REJECTED",
 "X-Status: REJECTED_PREVIEW\nX-Source: local\nX-RateLimit-Remaining: 0\n"
 . "$::silent$::sound"]



=== TEST 9: a preview of a window
--- config
ratelimit_algorithm sliding_window_log;
ratelimit_window 1h;
ratelimit_capacity 2;
location /t { empty_gif; }
location /look { ratelimit_preview on; empty_gif; }
--- request eval
["GET /look", "GET /t", "GET /look", "GET /look", "GET /t", "GET /look"]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 ("X-RateLimit-Remaining: 1\nX-Source: local") x 2,
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0\nX-Status: REJECTED_PREVIEW"]



=== TEST 10: a place in a dry run takes, logs and rejects nobody
--- config
location /t { ratelimit_rate 1r/d; ratelimit_capacity 1; ratelimit_dry_run on;
              ratelimit_headers legacy dry_run;
              empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 0\n$::sound",
 "X-Status: REJECTED_DRY_RUN\nX-Source: local\nX-RateLimit-Remaining: 0\n"
 . "$::silent$::sound"]
--- after
::is_deeply([map { /(\[\w+\]).* (ratelimit .*), client/ ? "$1 $2" =~ s/\d{5}/N/r
                                                        : () }
             ::log_lines(qr/ ratelimit /)],
            ['[info] ratelimit PASSED, limit: "localhost/t", key: "127.0.0.1", '
             . 'cost: 1, remaining: 0 of 1, retry after: 0, source: local',
             '[error] ratelimit REJECTED_DRY_RUN, limit: "localhost/t", '
             . 'key: "127.0.0.1", cost: 1, remaining: 0 of 1, retry after: N, '
             . 'source: local'], 'the log');



=== TEST 11: a limit in a dry run disturbs no enforced one, and the other way round
--- http_config
ratelimit_limit shadow   rate=1r/d capacity=1 dry_run;
ratelimit_limit enforced rate=1r/d capacity=2;
ratelimit_limit generous rate=1r/d capacity=9 dry_run;
--- config
location /t { ratelimit shadow enforced generous; empty_gif; }
location /look { ratelimit generous; ratelimit_preview on;
                 ratelimit_headers legacy dry_run; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /look"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-Name: enforced\nX-Status: PASSED\nX-RateLimit-Remaining: 1",
 "X-Name: enforced\nX-Status: PASSED\nX-RateLimit-Remaining: 0",
 "X-Name: enforced\nX-Status: REJECTED",
 "X-RateLimit-Remaining: 7"]
--- after
::is(scalar ::log_lines(qr/ratelimit REJECTED_DRY_RUN, limit: "shadow"/), 2,
     'what it would have rejected');



=== TEST 12: headers of the draft
--- http_config
ratelimit_limit window algorithm=sliding_window_log window=60s capacity=10;
ratelimit_limit bucket rate=6r/m capacity=2;
--- config
location /t { ratelimit window bucket; ratelimit_headers draft-8; empty_gif; }
location /both { ratelimit window bucket; ratelimit_headers legacy draft-8;
                 empty_gif; }
location /off { ratelimit window bucket; ratelimit_headers off; empty_gif; }
--- request eval
["GET /t", "GET /both", "GET /t", "GET /off"]
--- error_code eval
[200, 200, 429, 429]
--- response_headers eval
["RateLimit-Policy: \"window\";q=10;w=60, \"bucket\";q=2;w=20\n"
 . "RateLimit: \"bucket\";r=1;t=10\n!X-RateLimit-Limit\n$::silent$::sound",
 "RateLimit-Policy: \"window\";q=10;w=60, \"bucket\";q=2;w=20\n"
 . "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n$::silent$::sound",
 "RateLimit-Policy: \"window\";q=10;w=60, \"bucket\";q=2;w=20\n"
 . "!X-RateLimit-Limit\n!X-RateLimit-Retry-After\n$::sound",
 "!RateLimit\n!RateLimit-Policy\n!X-RateLimit-Limit\n$::silent$::sound"]
--- raw_response_headers_like eval
["", "RateLimit: \"bucket\";r=0;t=(?:20|1\\d)\r\n",
 "RateLimit: \"bucket\";r=0;t=(?:10|[1-9])\r\n", ""]



=== TEST 13: variables
--- http_config
add_header X-Limit $ratelimit_limit always;
add_header X-Remaining $ratelimit_remaining always;
add_header X-Reset $ratelimit_reset always;
add_header X-Retry $ratelimit_retry_after always;
add_header X-Latency $ratelimit_latency always;
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 1; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-Limit: 1\nX-Remaining: 0\n!X-Retry\n!X-Shard\n!X-Latency\n"
 . "X-Source: local",
 "X-Limit: 1\nX-Remaining: 0\n!X-Shard\nX-Source: local\nX-Status: REJECTED"]
--- raw_response_headers_like eval
["X-Reset: \\d{10}\r\n",
 "X-Retry: 3(?:600|5\\d\\d)\r\n"]



=== TEST 14: bodies
--- http_config
ratelimit_limit a rate=1r/h capacity=1;
ratelimit_limit b rate=1r/m capacity=1;
--- config
location /json { ratelimit b; ratelimit_body json; empty_gif; }
location /problem { ratelimit a b; ratelimit_body problem; empty_gif; }
location /a { ratelimit a; empty_gif; }
--- request eval
["GET /a", "GET /json", "GET /json", "GET /problem"]
--- error_code eval
[200, 200, 429, 429]
--- response_body_like eval
["", "", '^\{"error":"rate_limit_exceeded","blocking_limit":"b","limit":1,"remaining":0,"retry_after":\d+\}$',
 '"violated-policies":\["a","b"\]\}$']
--- response_headers eval
["", "", "Content-Type: application/json\n$::sound",
 "Content-Type: application/problem+json\n$::sound"]



=== TEST 15: the phase precontent is behind authentication
--- http_config
ratelimit_limit user key=$user rate=1r/d capacity=2;
--- config
location /t {
    auth_request     /auth;
    auth_request_set $user $upstream_http_x_user;
    ratelimit        user;
    ratelimit_phase  precontent;
    empty_gif;
}
location = /auth {
    internal;
    proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/check;
}
location /check {
    if ($http_x_token = "") { return 401; }
    add_header X-User $http_x_token;
    return 204;
}
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /t"]
--- more_headers eval
["", ("X-Token: alice") x 3, "X-Token: bob"]
--- error_code eval
[401, 200, 200, 429, 200]
--- response_headers eval
["!X-RateLimit-Limit", "X-RateLimit-Remaining: 1\nX-Source: local",
 "X-RateLimit-Remaining: 0", "X-Status: REJECTED",
 "X-RateLimit-Remaining: 1"]



=== TEST 16: an empty key is not limited
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; ratelimit_capacity 1;
              empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t?k=a", "GET /t?k=a"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
[("X-Status: SKIPPED\n!X-RateLimit-Limit\n!X-Source") x 2,
 "X-Status: PASSED", "X-Status: REJECTED"]



=== TEST 17: locations without a limit are as they were
--- config
location /t { ratelimit_rate 1r/d; empty_gif; }
location /free { empty_gif; }
location /off { ratelimit off; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /free", "GET /free", "GET /off"]
--- error_code eval
[200, 429, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 0", "X-Status: REJECTED",
 ("!X-Status\n!X-Source\n!X-RateLimit-Limit\n$::silent$::sound") x 3]



=== TEST 18: "closed" closes nothing where there is nothing that could fail
--- config
ratelimit_on_error closed;
location /t { ratelimit_rate 1r/d; ratelimit_capacity 2; empty_gif; }
location /window { ratelimit_algorithm sliding_window_log; ratelimit_capacity 1;
                   ratelimit_window 1h; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /window", "GET /window"]
--- error_code eval
[200, 200, 429, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\n$::sound",
 "X-Status: PASSED\nX-Source: local\n$::sound",
 "X-Status: REJECTED\nX-Source: local\n$::sound",
 "X-Status: PASSED\nX-Source: local\n$::sound",
 "X-Status: REJECTED\nX-Source: local\n$::sound"]



=== TEST 19: but a wrong value of a variable is a failure here, too
--- config
ratelimit_rate $arg_r;
ratelimit_capacity 2;
location /closed { ratelimit_on_error closed; empty_gif; }
location /open { ratelimit_on_error open; empty_gif; }
location /local { ratelimit_on_error local; empty_gif; }
--- request eval
["GET /closed?r=x", "GET /open?r=x", "GET /local?r=x", "GET /local?r=1r/d"]
--- error_code eval
[503, 200, 200, 200]
--- response_headers eval
["X-Status: DEGRADED\nX-Source: closed\nX-RateLimit-Degraded-Reason: invalid_limit\nRetry-After: 1",
 "X-Status: DEGRADED\nX-Source: open\nX-RateLimit-Degraded-Reason: invalid_limit",
 "X-Status: DEGRADED\nX-Source: open\nX-RateLimit-Degraded-Reason: invalid_limit",
 "X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 1\n$::sound"]
--- after
::is(scalar ::log_lines(qr/\[error\].*invalid value "x" of "ratelimit_rate"/), 1,
     'told once');



=== TEST 20: one limit, one state; two limits never share one
--- http_config
ratelimit_limit a key=x rate=1r/d capacity=3;
ratelimit_limit b key=x rate=1r/d capacity=3;
--- config
location /one { ratelimit a; empty_gif; }
location /two { ratelimit a; ratelimit_cost 2; empty_gif; }
location /b { ratelimit b; empty_gif; }
--- request eval
["GET /one", "GET /two", "GET /one", "GET /b"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 0", "X-Name: a",
 "X-Name: b\nX-RateLimit-Remaining: 2"]



=== TEST 21: another prefix, another state
--- http_config
ratelimit_limit a key=x rate=1r/d capacity=3;
--- config
location /one { ratelimit a; empty_gif; }
location /two { ratelimit a; ratelimit_prefix other; empty_gif; }
--- request eval
["GET /one", "GET /two", "GET /one"]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 2",
 "X-RateLimit-Remaining: 1"]



=== TEST 22: the share is one of a limit that others have a part of: here it means nothing
--- config
ratelimit_local_share 1/4;
location /t { ratelimit_rate 1r/d; ratelimit_capacity 4; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 4\nX-RateLimit-Remaining: 3\n$::sound", "", "",
 "X-RateLimit-Remaining: 0", "X-Status: REJECTED"]



=== TEST 23: nor does the clock that shards would go by
--- config
ratelimit_clock nginx;
location /t { ratelimit_rate 1r/d; ratelimit_capacity 1; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\n$::sound", "X-Status: REJECTED\n$::sound"]



=== TEST 24: keys of any length
--- config
location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d; ratelimit_capacity 1;
              empty_gif; }
--- request eval
["GET /t?k=" . "x" x 256, "GET /t?k=" . "x" x 256, "GET /t?k=" . "x" x 257,
 "GET /t?k=" . "x" x 257, "GET /t?k=" . "x" x 256 . "y", "GET /t?k=x"]
--- error_code eval
[200, 429, 200, 429, 200, 200]



=== TEST 25: beside a place with shards, a place without any is on its own
--- http_config
ratelimit_limit a key=x rate=1r/d capacity=3;
--- config
location /here { ratelimit a; empty_gif; }
location /there { ratelimit a; ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
                  ratelimit_on_error open; empty_gif; }
--- request eval
["GET /here", "GET /there", "GET /here"]
--- response_headers eval
["X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 2\n$::sound",
 "X-Status: DEGRADED\nX-Source: open\nX-RateLimit-Degraded: true",
 "X-Status: PASSED\nX-Source: local\nX-RateLimit-Remaining: 1\n$::sound"]

