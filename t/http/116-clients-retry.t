# Real HTTP clients that meet a limit: they wait for as long as Retry-After says
# and then get what they wanted.  curl --retry, and "got" of npm.
#
# A token comes in so many seconds that neither client would wait for it by
# itself: both try again after one second, unless told otherwise.  So a client
# that is rejected once and passes then has listened.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use File::Path ();

use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(
    find_program patience reap slurp spawn wait_until write_file
);

my $redis = RateLimit::Redis->start;
my $addr = $redis->addr;

my $nginx = RateLimit::Nginx->start(
    workers => 1,
    conf    => <<"EOC",
        ratelimit_shards $addr;
        ratelimit_redis_timeout 10s;
        ratelimit_silence long_timeout;
        ratelimit_redis_connect_timeout 10s;
        log_format retry '\$msec \$arg_k \$status \$sent_http_retry_after';
EOC
    server  => <<'EOC',
        access_log %%DIR%%/logs/retry.log retry;
        ratelimit_key $arg_k;

        # a token in four seconds
        ratelimit_rate     15r/m;
        ratelimit_capacity 1;

        location /page    { try_files /none @done; }
        location /json    { ratelimit_body json;    try_files /none @done; }
        location /problem { ratelimit_body problem; ratelimit_headers draft-8;
                            try_files /none @done; }
        location /503     { ratelimit_status 503;   try_files /none @done; }
        location /window  { ratelimit_algorithm sliding_window_log;
                            ratelimit_window 4s;    try_files /none @done; }
        location /down    { ratelimit_on_error closed;
                            ratelimit_redis_timeout 100ms;
                            try_files /none @done; }
        location @done    { return 200 "done\n"; }
EOC
);


# What the log has of a key: hashes of time, status and wait.

sub visits {
    my ($key) = @_;

    return map { /^([\d.]+) \Q$key\E (\d+) (\S+)$/
                 ? { time => $1, status => $2, wait => $3 } : () }
           split /\n/, slurp($nginx->dir . '/logs/retry.log');
}


# What a client did: its first request took the only token.

sub listened {
    my ($path, $key, $status) = @_;

    my @visits = visits($key);

    is_deeply [map { $_->{status} } @visits], [200, $status, 200],
              "$path: passed, rejected once, and passed"
        or diag explain \@visits;

    return unless @visits == 3;

    # less than four, where the first request was seconds ago

    like $visits[1]{wait}, qr/^[1-4]$/, 'told to wait';
    cmp_ok $visits[2]{time} - $visits[1]{time}, '>=',
           $visits[1]{wait} - 0.1, 'and so it did';
}


# Starts all of the clients at once, and waits for them; each is a path, a key
# and a command that is given the URL twice.  Returns what they have printed.

sub run_clients {
    my (@clients) = @_;

    for my $client (@clients) {
        my ($path, $key, @command) = @$client;
        my $url = $nginx->url("$path?k=$key");
        my $out = $nginx->dir . "/$key.out";

        $client = { path => $path, out => $out,
                    pid => spawn([@command, $url, $url], out => $out) };
    }

    for my $client (@clients) {
        my $status = reap($client->{pid}, 60);

        is $status, 0, "$client->{path}: the client succeeds"
            or diag slurp($client->{out});

        if (!defined $status) {
            kill 'KILL', $client->{pid};
            reap($client->{pid}, 5);
        }
    }

    return map { slurp($_->{out}) } @clients;
}


my $curl = find_program('curl');

SKIP: {
    skip 'curl is not installed', 1 unless $curl;

    # Retry-After is honoured since 7.66, 429 is retried since then as well

    my @curl = ($curl, '--silent', '--show-error', '--fail', '--retry', 5,
                '--retry-max-time', patience(60));

    subtest 'curl --retry waits for as long as it is told' => sub {
        my @paths = qw(/page /json /problem /503 /window);
        my @out = run_clients(map { [$_, "curl$_" =~ tr{/}{-}r, @curl] }
                              @paths);

        for my $i (0 .. $#paths) {
            listened($paths[$i], "curl$paths[$i]" =~ tr{/}{-}r,
                     $paths[$i] eq '/503' ? 503 : 429);
            is scalar(() = $out[$i] =~ /^done$/mg), 2, 'and has both pages';
        }
    };

    subtest 'curl --retry succeeds when Redis is back' => sub {
        my $out = $nginx->dir . '/down.out';

        $redis->stop;

        my $pid = spawn([@curl, '--retry', 20, $nginx->url('/down?k=down')],
                        out => $out);

        ok wait_until(sub { grep { $_->{status} == 503 } visits('down') }, 20),
           'turned away with 503';
        is((visits('down'))[0]{wait}, 1, 'for a second');

        $redis->start;

        is reap($pid, 60), 0, 'the client succeeds' or diag slurp($out);
        is((visits('down'))[-1]{status}, 200, 'and passes');
        like slurp($out), qr/^done$/m, 'and has the page';
    };
}


my ($node, $npm) = map { find_program($_) } qw(node npm);

SKIP: {
    skip 'node and npm are not installed', 1 unless $node && $npm;

    # stays in build/ for the next time

    my $dir = Cwd::getcwd() . '/build/npm';
    my $log = $nginx->dir . '/npm.log';

    if (!-d "$dir/node_modules/got") {
        File::Path::make_path($dir);
        is reap(spawn([$npm, 'install', '--prefix', $dir, '--no-audit',
                       '--no-fund', '--loglevel', 'error', 'got@11'],
                      out => $log), 120), 0, 'npm install got'
            or diag slurp($log);
    }

    my $script = write_file($nginx->dir . '/client.js', <<"EOC");
        const got = require('$dir/node_modules/got');

        (async () => {
            for (const url of process.argv.slice(2)) {
                const r = await got(url, { retry: { limit: 5 } });
                process.stdout.write(r.body);
            }
        })().catch(e => { console.error(e.message); process.exit(1); });
EOC

    subtest 'got waits for as long as it is told' => sub {
        my @paths = qw(/page /json /problem /503 /window);
        my @out = run_clients(map { [$_, "got$_" =~ tr{/}{-}r, $node, $script] }
                              @paths);

        for my $i (0 .. $#paths) {
            listened($paths[$i], "got$paths[$i]" =~ tr{/}{-}r,
                     $paths[$i] eq '/503' ? 503 : 429);
            is $out[$i], "done\n" x 2, 'and has both pages';
        }
    };
}


$nginx->finish;

done_testing();
