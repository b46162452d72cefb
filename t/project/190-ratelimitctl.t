# tools/ratelimitctl: what it asks, what it says about the answers, how it merges
# machines, which of them it lets write, and what it does when things go wrong.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use File::Path ();
use JSON::PP ();
use MIME::Base64 qw(encode_base64);
use POSIX ();

use RateLimit::Certs;
use RateLimit::FakeApi;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(dead_port find_program slurp temp_dir wait_until write_file);

my $tool = Cwd::getcwd() . '/tools/ratelimitctl';
my $home = temp_dir('ctl');

# nothing of the person who runs the tests
delete @ENV{qw(RATELIMIT_API NO_COLOR http_proxy LC_ALL LC_CTYPE)};
$ENV{HOME} = $home;
$ENV{LANG} = 'C.UTF-8';
$ENV{TZ} = 'UTC';


# The exit code, what it printed, and what it complained about.

sub ctl {
    my (@args) = @_;

    my $pid = open(my $out, '-|') // die "fork: $!\n";

    if ($pid == 0) {
        open STDERR, '>', "$home/stderr" or die;
        open STDIN, '<', '/dev/null';
        { no warnings 'exec'; exec $tool, @args; }
        POSIX::_exit(127);
    }

    my $text = do { local $/; <$out> } // '';

    close $out;

    return ($? >> 8, $text, slurp("$home/stderr"));
}


sub json { return JSON::PP->new->utf8->decode($_[0]) }

my ($true, $false) = (JSON::PP::true(), JSON::PP::false());


sub limit {
    my ($name, %more) = @_;

    return {
        name => $name, algorithm => 'token_bucket', key => '$http_x_api_key',
        capacity => '100', window => undef, rate => '10r/s',
        refill_interval => undef, cost => undef, dry_run => $false,
        used => [{ server => 'shop', location => '/', phase => 'access',
                   mode => 'enforced', state => 'redis', on_error => 'local' }],
        requests => { passed => 10, rejected => 2, dry_run_rejected => 0,
                      skipped => 1 },
        sources => {}, tokens => 10, near_limit => 0, invalid_values => 0,
        rates => { '1s' => { passed => 4, rejected => 1.5, degraded => 0 },
                   '10s' => { passed => 2.5, rejected => 0.5, degraded => 0 },
                   '60s' => undef },
        overrides => 1, top => 100, advise => undef, %more
    };
}


sub state {
    my ($limit, $key, %more) = @_;

    return {
        limit => $limit, key => $key, redis_key => "ratelimit:$limit:{$key}",
        server => '10.0.0.1:6379', state => 'redis', passes => $true,
        capacity => 100, cost => 1, remaining => 37, reset => time + 90,
        retry_after => undef, here => { denied => $false, held => 0 },
        override => undef, %more
    };
}


sub server {
    my ($name, %more) = @_;

    return {
        name => $name, role => 'shard', address => $name, breaker => 'distributed',
        last_failure => undef, since => undef, connections => 2,
        calls_in_flight => 0, calls => 12,
        latency => { p50 => 0.00025, p95 => 0.001, p99 => 0.0025 },
        failures => {}, %more
    };
}


my %index = (version => '0.6.0', nginx => '1.22.1', write => $true,
             overrides => 'on', paths => []);

my %base = (
    'GET ' => \%index,
    'GET limits' => { limits => [limit('client'), limit('login', top => undef)] },
    'GET limits/client' => limit('client'),
    'GET limits/login' => limit('login'),
    'GET limits/nobody' => [404, { detail => 'there is no limit of this name: '
                                             . '"limits" lists all of them' }],
    'GET servers' => { servers => [server('10.0.0.1:6379')] },
);

my ($a, $b) = map { RateLimit::FakeApi->start(answers => \%base) } 1 .. 2;
my @both = ('-m', 'a=' . $a->url, '-m', 'b=' . $b->url);


# Other answers of a, or of both.

sub answer {
    my (%more) = @_;

    $_->answers({ %base, %more }) for $a, $b;
    $_->requests for $a, $b;
}


subtest 'usage' => sub {
    my ($code, $out, $err) = ctl('help');

    is $code, 0, 'help';
    like $out, qr/\Ausage: ratelimitctl/, 'says how';
    is_deeply [ctl('--help')], [0, $out, ''], '--help';
    is((ctl())[0], 2, 'without a command');

    for (['frobnicate'], ['show'], ['show', 1, 2, 3], ['reset', 'client'],
         ['servers', 'x'], ['--frobnicate', 'limits'], ['show', ''],
         ['top', '--by', 'color'], ['top', '-n', '0'], ['limits', '--reason', 'x'],
         ['ban', 'client', 'x', '--capacity', 5], ['override', 'client', 'x'],
         ['override', 'client', 'x', '--capacity', 'many'],
         ['ban', 'client', 'x', '--for', 'ever'],
         ['ban', 'client', 'x', '--for', '0s'],
         ['ban', 'client', 'x', '--until', 'tomorrow'],
         ['ban', 'client', 'x', '--until', '2026-02-31'],
         ['ban', 'client', 'x', '--until', '2001-01-01'],
         ['ban', 'client', 'x', '--until', '1000000000'],
         ['ban', 'client', 'x', '--for', '1h', '--until', '18:00'],
         ['ban', 'client', 'x', '--reason', "\xff"],
         ['show', 'client', 'a%00b'], ['-t', 'x', 'limits'], ['-m', 'ftp://x', 'limits'],
         ['-H', 'nonsense', 'limits'])
    {
        my ($code, $out, $err) = ctl('-m', $a->url, @$_);

        is $code, 2, "@$_";
        is $out, '', 'nothing is printed';
        like $err, qr/\Aratelimitctl: .*\n"ratelimitctl help"/, 'but what is wrong';
    }

    is scalar(() = $a->requests), 0, 'and nothing is asked';

    like((ctl('ban', 'x'))[2], qr/"ban" needs 2 arguments: ban LIMIT KEY$/m, 'which');
    like((ctl('unban'))[2], qr/: unban LIMIT KEY$/m, 'of another name');
    like((ctl('show'))[2], qr/: show \[LIMIT\] KEY$/m, 'of show');
    like((ctl('raise'))[2], qr/no command "raise": use "override"$/m, 'a word of ours');
};


subtest 'show, in one limit' => sub {
    my %word = (
        'passes'  => [{}, 0, qr/^client alice: would pass, 37 of 100 left$/m],
        'rejects' => [{ passes => $false, remaining => 0, retry_after => 4 }, 1,
                      qr/^client alice: rejected, passes again in 4 s$/m],
        'never'   => [{ passes => $false, cost => 200 }, 1,
                      qr/always will be: a request costs 200, the capacity is 100$/m],
        'banned'  => [{ passes => $false, override => {
                            limit => 'client', key => 'alice', ban => $true,
                            exempt => $false, until => time + 3590,
                            reason => 'gr%C3%BC%C3%9Fe %25' } }, 1,
                      qr/^client\ alice:\ rejected,\ banned\n(?:.*\n)*
                         \ +override\ +banned,\ until\ \S+\ \(1\ h\)\n
                         \ +reason\ +grüße\ %$/mx],
        'exempt'  => [{ override => { exempt => $true, ban => $false,
                                      until => undef } }, 0,
                      qr/would pass, exempt\n(?:.*\n)* +override +exempt, without an end$/m],
        'has numbers of its own' =>
                     [{ override => { capacity => 500, rate => '50r/s', cost => undef,
                                      until => undef } }, 0,
                      qr/override +capacity 500, rate 50r\/s, without an end$/m],
    );

    for my $name (sort keys %word) {
        my ($more, $code, $regex) = @{ $word{$name} };

        answer('GET limits/client/keys/alice' => state('client', 'alice', %$more));

        my ($rc, $out, $err) = ctl('-m', $a->url, 'show', 'client', 'alice');

        is $rc, $code, "$name: exit code";
        like $out, $regex, $name;
        is $err, '', 'no complaint';
    }

    answer('GET limits/client/keys/alice' => state('client', 'alice'));

    my ($code, $out) = ctl('-m', $a->url, 'show', 'client', 'alice');

    like $out, qr/^ +override +none$/m, 'no override';
    like $out, qr/^ +server +10\.0\.0\.1:6379, Redis key ratelimit:client:\{alice\}$/m,
         'where it is';
    like $out, qr/^ +reset +\d\d:\d\d:\d\d \(in 1 min 30 s\)$|\(in 1 min 2\d s\)$/m,
         'when it is full';

    $a->requests;
    ctl('-m', $a->url, 'show', 'client', 'alice', '--cost', 5, '--rate', '5r/s');
    is((map { $_->{line} } $a->requests)[0],
       'GET limits/client/keys/alice?cost=5&rate=5r%2Fs', 'other numbers');
};


subtest 'show, in all limits, on two machines' => sub {
    my @memory = map { state('here', 'alice', state => 'memory', passes => $_,
                             remaining => 1, capacity => 1, retry_after => undef,
                             redis_key => undef, server => undef, here => undef) }
                     $true, $false;

    delete $_->{here} for @memory;
    $memory[1]{retry_after} = 30;

    answer();
    $a->answers({ %base, 'GET keys/alice' => { key => 'alice', limits => [
        state('client', 'alice', here => { denied => $true, held => 0 }),
        state('plan', 'alice', parameter => 'capacity', error => 'a variable'),
        $memory[0] ] } });
    $b->answers({ %base, 'GET keys/alice' => { key => 'alice', limits => [
        state('client', 'alice', here => { denied => $false, held => 12 },
              remaining => 36), $memory[1] ] } });

    my ($code, $out, $err) = ctl(@both, 'show', 'alice');

    is $code, 1, 'one of them rejects';
    like $out, qr/^client +would pass, 37 of 100 left +10\.0\.0\.1:6379 +a rejects it/m,
         'what machines have in common is shown once';
    like $out, qr/^ +b holds 12 tokens/m, 'and what each knows';
    like $out, qr/^plan +unknown: "capacity": a variable/m, 'a limit without an answer';
    like $out, qr/^here\ +on\ a:\ would\ pass,\ 1\ of\ 1\ left\ +\(memory\)\n
                  \ +on\ b:\ rejected,\ passes\ again\ in\ 30\ s$/mx,
         'memory is of each machine';
    is $err, '', 'no complaint';

    ($code, $out) = ctl(@both, '--json', 'show', 'alice');
    my $found = json($out);

    is $code, 1, 'as JSON';
    is_deeply $found->{limits}[0]{here},
              { a => { denied => $true, held => 0 }, b => { denied => $false, held => 12 } },
              'what each knows';
    is_deeply [map { $_->{machine} } grep { ($_->{state} // '') eq 'memory' }
               @{ $found->{limits} }], ['a', 'b'], 'each memory';
    is $found->{limits}[0]{remaining}, 37, 'a number';
    like $out, qr/"remaining" : 37\b/, 'is no text';
};


subtest 'keys are bytes' => sub {
    my %line = (
        'a/b?c#d e'     => 'a%2Fb%3Fc%23d%20e',
        'a%2Fb'         => 'a%2Fb',
        'a%252Fb'       => 'a%252Fb',
        '100%'          => '100%25',
        "gr\xc3\xbc"    => 'gr%C3%BC',
        '%1b%5b31m'     => '%1B%5B31m',
        'alice+b@c.de'  => 'alice%2Bb%40c.de',
        '..'            => '..',
    );

    for my $key (sort keys %line) {
        answer();
        ctl('-m', $a->url, 'show', 'client', $key);
        is((map { $_->{line} } $a->requests)[0],
           "GET limits/client/keys/$line{$key}", $key);
    }

    answer();
    ctl('-m', $a->url, '--raw', 'show', 'localhost/own', 'a%2Fb');
    is((map { $_->{line} } $a->requests)[0],
       'GET limits/localhost%2Fown/keys/a%252Fb', '--raw, and the name of a limit');

    ctl('-m', $a->url, 'show', 'client', '--', '-x');
    is((map { $_->{line} } $a->requests)[0], 'GET limits/client/keys/-x', '--');
};


subtest 'no byte of an answer steers the terminal' => sub {
    my $evil = "\e[31m\x7f\x9b\r\n\x{202e}x";

    answer('GET limits/client/keys/x' => state('client', $evil, server => $evil,
               override => { capacity => $evil, reason => '%1B[31m', until => undef }),
           'GET limits/client' => limit($evil, key => $evil),
           'GET top?limit=client&by=rejected&n=20' =>
               { limit => $evil, half_life => 60, keys => [{ key => $evil, count => 1 }] },
           'GET overrides?n=10000' => { overrides => [{ limit => $evil, key => $evil,
                                rate => $evil, reason => $evil }] },
           'GET servers' => [503, { detail => $evil, field => $evil }],
           'GET explain?host=x&uri=%2F&method=GET' => {
               server => $evil, location => $evil, location_by => $evil, limited => $true,
               limits => [{ name => $evil }], notes => [$evil] });

    for (['show', 'client', 'x'], ['limits', 'client'], ['top', 'client'], ['overrides'],
         ['servers'], ['explain', 'x'], ['show', 'client', $evil], ["--$evil"], [$evil])
    {
        for my $json ([], ['--json']) {
            my (undef, $out, $err) = ctl('-m', $a->url, @$json,
                                         map { my $x = $_; utf8::encode($x); $x } @$_);

            ok length "$out$err", "@$json " . ($_->[0] =~ /^\w+$/ ? $_->[0] : 'arguments');
            unlike "$out$err", qr/[^\n\x20-\x7e]/, 'is printable';
        }
    }
};


subtest 'top, summed over machines' => sub {
    my $path = 'GET top?limit=client&by=rejected&n=3';

    answer();
    $a->answers({ %base, $path => { limit => 'client', by => 'rejected', half_life => 60,
        error => 1, keys => [{ key => 'x', count => 100, error => 1 },
                             { key => 'y', count => 90, error => 0 }] } });
    $b->answers({ %base, $path => { limit => 'client', by => 'rejected', half_life => 60,
        error => 1, keys => [{ key => 'y', count => 83.1, error => 2 },
                             { key => 'z', count => 5, error => 0 },
                             { key => 'w', count => 4, error => 0 }] } });

    my ($code, $out, $err) = ctl(@both, 'top', '-n', 3);

    is $code, 0, 'found';
    is $err, '', 'no complaint';
    like $out, qr/^LIMIT\ +KEY\ +REJECTED\ +PER\ SECOND\ +ERROR\ +MACHINES\n
                  client\ +y\ +173\ +2\.0\ +2\ +a\ 90,\ b\ 83\n
                  client\ +x\ +100\ +1\.2\ +1\ +a\ 100\n
                  client\ +z\ +5\ +0\.1\ +0\ +b\ 5\n\z/x, 'the largest first';
    is_deeply [map { $_->{line} } $a->requests],
              ['GET limits', 'GET top?limit=client&by=rejected&n=3'],
              'limits without the counter are not asked';

    my $keys = json((ctl(@both, '--json', 'top', 'client', '-n', 3))[1])->{keys};

    is_deeply [map { $_->{key} } @$keys], ['y', 'x', 'z'], 'JSON';
    is_deeply $keys->[0]{machines}, { a => 90, b => 83.1 }, 'of each machine';

    answer('GET top?limit=client&by=seen&n=20' => { keys => [] });
    is_deeply [ctl('-m', $a->url, 'top', 'client', '--by', 'seen')],
              [1, "no requests in the last minutes\n", ''], 'none';

    answer('GET limits' => { limits => [limit('client', top => undef)] });
    ($code, $out, $err) = ctl('-m', $a->url, 'top');
    is $code, 1, 'off';
    like $err, qr/no limit counts its keys\n  write "ratelimit_top 100;"/, 'what to do';
};


subtest 'limits' => sub {
    answer('GET limits' => { limits => [limit('client'), limit('window',
               algorithm => 'sliding_window_log', window => '5m', rate => undef)] });

    my ($code, $out, $err) = ctl(@both, 'limits');

    is $code, 0, 'found';
    like $out, qr/^client\ +\$http_x_api_key\ +100\ +10r\/s\ +enforced\ +redis
                  \ +5\.0\ +1\.0\ +20\ +4\ +1$/mx, 'summed; rates of the longest span';
    like $out, qr/^window +\S+ +100 +in 5m /m, 'a window';

    ($code, $out) = ctl(@both, 'limits', 'client');
    like $out, qr/^a\ +4\.0\ +2\.5\ +1\.5\ +0\.5\ +10\ +2\ +0\ +1\n
                  b\ .*\n
                  all\ +8\.0\ +5\.0\ +3\.0\ +1\.0\ +20\ +4\ +0\ +2$/mx, 'each, and all';
    like $out, qr/^shop +\/ +access +enforced +redis +local$/m, 'where it is used';

    is_deeply [map { "$_->{machine} $_->{name}" }
               @{ json((ctl(@both, '--json', 'limits'))[1])->{limits} }],
              ['a client', 'b client', 'a window', 'b window'], 'JSON';
    is +(ctl('-m', $a->url, 'limits', '--names'))[1], "client\nwindow\n", 'names';

    $b->answers({ %base, 'GET limits' => { limits => [limit('client')] } });
    like +(ctl(@both, 'limits'))[1], qr/^window .* a only$/m, 'not everywhere the same';
};


subtest 'servers, and what it means that one is down' => sub {
    answer();
    $b->answers({ %base,
        'GET limits' => { limits => [limit('client'), limit('pay', used => [
            { server => 'shop', location => '/pay', phase => 'access', mode => 'enforced',
              state => 'redis', on_error => 'closed' }])] },
        'GET servers' => { servers => [server('10.0.0.1:6379',
            breaker => 'circuit_open', last_failure => 'refused', since => time - 700,
            failures => { refused => 4, timeout => 1 })] } });

    my ($code, $out) = ctl(@both, 'servers');

    is $code, 1, 'not all is well';
    like $out, qr/^a +10\.0\.0\.1:6379 +shard +distributed .* 250 us +2\.5 ms/m, 'a';
    like $out, qr/^b +\S+ +shard +circuit_open +\d\d:\d\d:\d\d \(12 min\) +refused .* 5$/m,
         'b';
    like $out, qr/^10\.0\.0\.1:6379 does not answer, as seen by b$/m, 'in words';
    like $out, qr/^  closed  requests are rejected with 503: pay$/m, 'what it means';
    like $out, qr/^  local   each machine grants .*: client, login$/m, 'for each limit';

    is((ctl('-m', $a->url, 'servers'))[0], 0, 'all is well');
};


subtest 'overrides' => sub {
    my %ban = (limit => 'client', key => 'x', capacity => undef, rate => undef,
               cost => undef, exempt => $false, ban => $true, until => time + 7205,
               reason => 'abuse');
    my %own = (%ban, key => 'y', ban => $false, capacity => 500, rate => '5r/s',
               until => undef, reason => undef);

    answer('GET overrides?n=10000' => { overrides => [\%ban] });
    $b->answers({ %base, 'GET overrides?n=10000' => { overrides => [\%ban, \%own] } });

    my ($code, $out) = ctl(@both, 'overrides');

    is $code, 0, 'found';
    like $out, qr/^client +x +banned +\S+ \(2 h\) +abuse$/m, 'on both';
    like $out, qr/^client +y +capacity 500, rate 5r\/s +no end +b only$/m, 'on one';

    answer('GET overrides?n=10000&limit=a%2Fb' => { overrides => [] });
    is_deeply [ctl('-m', $a->url, 'overrides', 'a/b')],
              [1, "there are no overrides\n", ''], 'none';
};


subtest 'explain' => sub {
    answer('GET explain?host=shop.example&uri=%2Flogin%3Fa%3D1&method=POST' => {
        server => 'shop.example', server_by => 'name', location => '/login',
        location_by => 'prefix', limited => $true, notes => ['Try it.'], limits => [
            { name => 'login', key => '$remote_addr', mode => 'enforced',
              phase => 'access', state => 'redis', on_error => 'local' }] });

    my ($code, $out, $err) = ctl(@both, 'explain', 'https://shop.example:8443/login?a=1#x',
                                 '--method', 'POST');

    is $code, 0, 'limited';
    is $err, '', 'no complaint';
    is $out, <<'END', 'both machines say the same';
server    shop.example (by its name)
location  /login (prefix)
limited   yes

LIMIT  KEY           MODE      PHASE   STATE  ON ERROR
login  $remote_addr  enforced  access  redis  local

- Try it.
END

    answer('GET explain?host=&uri=%2Fx&method=GET' => {
        server => '_', server_by => 'default', location => undef, location_by => 'none',
        limited => $false, limits => [], notes => [] });
    is_deeply [ctl('-m', $a->url, 'explain', '/x')],
              [1, "server    _ (the first server: no name matches)\n"
                  . "location  (none)\nlimited   no\n", ''], 'not limited';
};


subtest 'advise' => sub {
    my @curve = map { { capacity => $_->[0], rejected => $_->[1] } }
                [1, 0.9], [10, 0.1], [40, 0.01], [80, 0.001], [100, 0.0005], [200, 0];

    answer('GET limits/client' => limit('client', advise => {
               requests => 10000, curve => \@curve }));

    my ($code, $out) = ctl('-m', $a->url, 'advise', 'client');

    is $code, 0, 'found';
    like $out, qr/^client: 10000 requests were watched, rate 10r\/s, capacity 100$/m, 'head';
    like $out, qr/^with capacity 100 as it is, at most 0\.05 % of them would have been rejected$/m,
         'as it is';
    is_deeply [$out =~ /^ +(\S+(?: %)?) +(\d+) +\S+ %$/mg],
              ['10 %', 10, '1 %', 40, '0.1 %', 80, '0.01 %', 200, 'none', 200],
              'a capacity for each share';

    # b saw as many requests, and needs less

    $b->answers({ %base, 'GET limits/client' => limit('client', advise => {
        requests => 10000, curve => [{ capacity => 5, rejected => 0 }] }) });

    my $found = json((ctl(@both, '--json', 'advise', 'client'))[1]);

    is $found->{requests}, 20000, 'two machines';
    is_deeply [map { $_->{capacity} } @{ $found->{table} }], [10, 40, 80, 200, 200],
              'their curves are weighed';

    answer();
    ($code, $out, my $err) = ctl('-m', $a->url, 'advise', 'client');
    is $code, 1, 'not watched';
    like $err, qr/"ratelimit_limit client \.\.\. dry_run advise;"/, 'what to do';
};


subtest 'writes go to the first machine that may' => sub {
    my $path = 'limits/client/keys/al%20ice';
    my %override = (limit => 'client', key => 'al ice', capacity => 500, rate => '50r/s',
                    cost => undef, exempt => $false, ban => $false, until => time + 3599,
                    reason => 'x');
    my %write = ("PUT $path/override" => \%override,
                 "DELETE $path/override" => { removed => $true },
                 "DELETE $path" => { reset => $true });

    answer(%write);

    my ($code, $out, $err) = ctl(@both, 'override', 'client', 'al ice', '--capacity', 500,
        '--rate', '50r/s', '--for', '1h', '--reason', "gr\xc3\xbc\xc3\x9fe");

    is $code, 0, 'done';
    is $err, '', 'no complaint';
    like $out, qr/^client al ice: capacity 500, rate 50r\/s, until \S+ \(1 h\)$/m,
         'it says so';
    like $out, qr/^  done by a; machines with the same Redis follow within a second$/m, 'and who';
    unlike $out, qr/not applied/, 'all of them';

    my ($put) = grep { $_->{line} =~ /^PUT/ } $a->requests;

    is $put->{line}, "PUT $path/override", 'the path';
    is $put->{headers}{'x-ratelimit-write'}, 1, 'the header';
    is $put->{headers}{'content-type'}, 'application/json', 'the type';
    is_deeply json($put->{body}), { capacity => 500, rate => '50r/s', until => '3600s',
                                    reason => "gr\xfc\xdfe" }, 'the body';
    like $put->{body}, qr/"capacity":500\b/, 'a number';
    is scalar(grep { $_->{line} =~ /^(?!GET)/ } $b->requests), 0, 'b is not asked';

    for (['ban', { ban => $true }], ['exempt', { exempt => $true }],
         ['ban', { ban => $true, until => 4102444800 }, '--until', '2100-01-01'],
         ['ban', { ban => $true, until => 4102444800 }, '--until', '4102444800'],
         ['ban', { ban => $true, until => 4102441200 }, '--until',
                                                        '2100-01-01T00:00+01:00'],
         ['ban', { ban => $true, until => '5400s' }, '--for', '1h30m'])
    {
        my ($name, $body, @more) = @$_;

        is((ctl('-m', $a->url, $name, 'client', 'al ice', @more))[0], 0, "$name @more");
        ($put) = grep { $_->{line} =~ /^PUT/ } $a->requests;
        is_deeply json($put->{body}), $body, 'the body';
    }

    is_deeply [ctl('-m', $a->url, 'remove', 'client', 'al ice')],
              [0, "client al ice: the override is removed, the numbers of the limit apply\n",
               ''], 'remove';
    is_deeply [ctl('-m', $a->url, 'reset', 'client', 'al ice')],
              [0, "client al ice: reset, the next request finds a full limit\n", ''],
              'reset';
    is_deeply [map { $_->{line} } grep { $_->{line} =~ /^(?!GET)/ } $a->requests],
              ["DELETE $path/override", "DELETE $path"], 'what is asked';

    # a may not write, or can't: b does it

    for (['GET ' => { %index, write => $false }],
         ["DELETE $path" => [503, { detail => 'no answer from redis' }]],
         ['GET limits/client' => [0]])
    {
        answer(%write);
        $a->answers({ %base, %write, @$_ });
        ($code, $out, $err) = ctl(@both, 'reset', 'client', 'al ice');
        is $code, 0, 'done';
        like $out, qr/^  done by b;/m, 'by b';
    }

    # neither

    answer('GET ' => { %index, write => $false });
    ($code, $out, $err) = ctl(@both, 'reset', 'client', 'al ice');
    is $code, 3, 'nobody may';
    is $out, '', 'nothing is said to be done';
    like $err, qr/^ratelimitctl: a, b: its API may only read\n  write "ratelimit_api write;"/m,
         'and what to do';

    answer("DELETE $path" => [503, { detail => 'no answer from redis' }]);
    ($code, $out, $err) = ctl(@both, 'reset', 'client', 'al ice');
    is $code, 3, 'nobody can';
    like $err, qr/a, b: no answer from redis\n  "ratelimitctl servers"/, 'and why';

    # to all

    answer(%write);
    ($code, $out) = ctl(@both, '--all', 'reset', 'client', 'al ice');
    like $out, qr/^  done on a, b$/m, '--all';
    is scalar(grep { $_->{line} =~ /^DELETE/ } $_->requests), 1, 'each is asked' for $a, $b;

    answer(%write);
    $b->answers({ %base });
    ($code, $out, $err) = ctl(@both, '--all', 'reset', 'client', 'al ice');
    is $code, 3, 'one of them fails';
    like $out, qr/^  done on a$/m, 'the other is done';
    like $err, qr/^ratelimitctl: b: no such path/, 'and the failure is told';
};


subtest 'a machine that ignores overrides is named' => sub {
    answer('DELETE limits/client/keys/x' => { reset => $true });
    $b->answers({ %base, 'GET ' => { %index, write => $false, overrides => 'off' } });

    my ($code, $out, $err) = ctl(@both, 'reset', 'client', 'x');

    is $code, 0, 'done';
    is $err, '', 'no complaint';
    like $out, qr/^  not applied by b: write "ratelimit_overrides on;" there$/m, 'but not by b';
};


subtest 'limits in memory are written on each machine' => sub {
    my $limit = limit('client');

    $limit->{used}[0]{state} = 'memory';
    answer('GET limits/client' => $limit,
           'DELETE limits/client/keys/x' => { reset => $true });

    my ($code, $out) = ctl(@both, 'reset', 'client', 'x');

    is $code, 0, 'done';
    like $out, qr/^  done on a, b: each machine keeps this limit in its own memory$/m,
         'it says so';

    # one of them had an override

    answer('GET limits/client' => $limit,
           'DELETE limits/client/keys/x/override' => { removed => $true });
    $b->answers({ %base, 'GET limits/client' => $limit,
        'DELETE limits/client/keys/x/override' => [404, { detail => 'there is none' }] });
    ($code, $out) = ctl(@both, 'remove', 'client', 'x');
    is $code, 0, 'removed where it was';
    like $out, qr/^  done on a:/m, 'and it says where';
};


subtest 'an override that is not there' => sub {
    answer('DELETE limits/client/keys/x/override' => [404, { detail => 'there is none' }]);

    my ($code, $out, $err) = ctl('-m', $a->url, 'unban', 'client', 'x');

    is $code, 1, 'none';
    is $err, "ratelimitctl: there is none\n", 'it says so';

    ($code, $out, $err) = ctl('-m', $a->url, 'unban', 'nobody', 'x');
    is $code, 3, 'another limit';
    like $err, qr/no limit of this name.*\n  "ratelimitctl limits" lists them$/m,
         'what to do';
};


subtest 'what goes wrong is told in words' => sub {
    my %text = (
        'refused'   => ['-m', '127.0.0.1:' . dead_port(), qr/no answer: Connection refused\n +is nginx/],
        'no API'    => [[404, 'x'], qr/no API at this address\n +check the path/],
        'password'  => [[401, 'x'], qr/a name and a password\n +give --user/],
        'denied'    => [[403, 'x'], qr/nginx denies access\n.*"allow" and "deny"/],
        'gateway'   => [[502, 'x'], qr/status 502 Status\n/],
        'HTML'      => [[200, '<html>', 'text/html'], qr/not that of ratelimit_api\n/],
        'a list'    => [[200, '[]'], qr/not that of ratelimit_api\n/],
        'nothing'   => [[0], qr/no answer: \S/],
        'a problem' => [[400, { detail => 'it is too large', field => 'rate' }],
                        qr/^ratelimitctl: it is too large \(field "rate"\)$/m],
    );

    for my $name (sort keys %text) {
        my ($answer, @rest) = @{ $text{$name} };
        my @machine = ref $answer ? ('-m', $a->url) : ($answer, shift @rest);

        answer('GET limits' => $answer) if ref $answer;

        my ($code, $out, $err) = ctl(@machine, 'limits');

        is $code, 3, "$name: exit code";
        is $out, '', 'nothing is printed';
        like $err, $rest[0], $name;

        ($code, $out) = ctl(@machine, '--json', 'limits');
        is $code, 3, 'JSON';
        is scalar @{ json($out)->{errors} }, 1, 'is told in it as well';
    }

    # one machine is down: the other is enough

    answer();

    my ($code, $out, $err) = ctl('-m', 'a=' . $a->url, '-m', 'b=127.0.0.1:' . dead_port(),
                                 'limits');

    is $code, 0, 'one of two';
    like $out, qr/^client /m, 'is shown';
    like $err, qr/^ratelimitctl: b: no answer/, 'the other is told';
};


subtest 'machines: arguments, environment, files' => sub {
    answer();

    my $names = sub {
        my ($code, $out) = ctl('--json', @_, 'machines');
        return join ' ', map { $_->{name} . (defined $_->{version} ? '' : '!') }
                         @{ json($out)->{machines} };
    };

    my ($pa, $pb) = map { "127.0.0.1:$_->{port}" } $a, $b;

    {
        local $ENV{RATELIMIT_API} = "http://$pa b=http://$pb/ratelimit";
        is $names->(), "$pa b", 'RATELIMIT_API';
        is $names->('-m', $pb), $pb, '-m comes first';
    }

    write_file("$home/.ratelimitctl", <<"END", 0644);
# two machines
machine one http://$pa
machine two   $pb/ratelimit/
END

    is $names->(), 'one two', '~/.ratelimitctl';
    is $names->('-m', 'two'), 'two', 'a name of the file';
    is $names->('-m', $pa, '-m', "http://$pa/x/"), "$pa/ratelimit/ $pa/x/!",
       'two of one host';
    is +(ctl('machines'))[2], '', 'a file without a secret';

    for (["header X-Token: s3cret\n", 'x-token', 's3cret'],
         ["user joe:s3:cret\n", 'authorization',
          'Basic ' . encode_base64('joe:s3:cret', '')])
    {
        my ($line, $header, $value) = @$_;

        write_file("$home/.ratelimitctl", "machine one $pa\n$line", 0644);
        $a->requests;
        like +(ctl('machines'))[2], qr/everybody may read it: chmod 600/, 'a warning';
        is +($a->requests)[0]{headers}{$header}, $value, $line;
        chmod 0600, "$home/.ratelimitctl";
        is +(ctl('machines'))[2], '', 'none now';
    }

    $a->requests;
    ctl('-u', 'ann:b', '-H', 'X-One: 1', '-H', 'X-Two: 2', 'machines');

    my ($request) = $a->requests;

    is $request->{headers}{authorization}, 'Basic ' . encode_base64('ann:b', ''),
       '--user comes first';
    is "@{ $request->{headers} }{qw(x-one x-two)}", '1 2', '--header';

    ctl('-m', "http://j%3Ao:p%40ss\@$pa", 'machines');
    is +($a->requests)[0]{headers}{authorization}, 'Basic ' . encode_base64('j:o:p@ss', ''),
       'in the address';

    my (undef, $out, $err) = ctl('-m', 'http://joe:s3cret@127.0.0.1:' . dead_port(),
                                 'limits');

    unlike "$out$err", qr/s3cret/, 'a password is not shown';

    write_file("$home/.ratelimitctl", "machine one $pa\nmachin two $pb\n", 0600);
    like +(ctl('machines'))[2], qr/\.ratelimitctl, line 2: not understood: "machin"/,
         'a mistake in the file';
    is +(ctl('machines'))[0], 2, 'its exit code';
    unlink "$home/.ratelimitctl";

    {
        local $ENV{http_proxy} = 'http://127.0.0.1:' . dead_port();
        is +(ctl('-m', $pa, 'machines'))[0], 0, 'no proxy is asked';
    }
};


subtest 'watch' => sub {
    answer('GET servers' => { servers => [server('10.0.0.1:6379', calls => 12)] });

    my ($code, $out, $err) = ctl(@both, 'watch', '--count', 2, '--interval', '0.05');

    is $code, 0, 'it ends';
    is $err, '', 'no complaint';
    is scalar(() = $out =~ /^client +enforced +5\.0 +1\.0 +0\.0 +20 +4 +1$/mg), 2,
       'limits of both machines, twice';
    like $out, qr/^b +10\.0\.0\.1:6379 +shard +distributed .* 0\.0 /m, 'calls per second';
    unlike $out, qr/\e/, 'no escape sequences without a terminal';

    ($code, $out) = ctl(@both, '--json', 'watch', '--count', 2, '--interval', '0.05');
    is_deeply [map { scalar @{ json($_)->{servers} } } split /\n/, $out], [2, 2],
              'a line of JSON each time';

    # until Ctrl-C, on a terminal

    SKIP: {
        skip 'no script(1) here', 4 unless find_program('script');

        my $pid = fork() // die "fork: $!\n";

        if ($pid == 0) {
            open STDOUT, '>', '/dev/null';
            open STDIN, '<', '/dev/null';
            $ENV{TERM} = 'xterm';
            no warnings 'exec';
            exec 'script', '-qfec', "sh -c 'stty cols 40 rows 9; echo \$\$ > $home/pid; "
                . "exec $tool @both watch --interval 0.05'", "$home/typescript";
            POSIX::_exit(127);
        }

        ok wait_until(sub { slurp("$home/typescript") =~ /(?:\e\[H.*){3}/s }), 'it draws';
        kill 'INT', slurp("$home/pid");
        waitpid $pid, 0;
        is $? >> 8, 0, 'Ctrl-C ends it';

        my $text = slurp("$home/typescript");

        like $text, qr/\e\[\?25l.*\e\[\?25h/s, 'the cursor is back';

        my ($screen) = $text =~ /\e\[H(.*?)\e\[J/s;
        my @lines = map { s/\e\[[\d;?]*\w//gr } split /\r?\n/, $screen;

        is scalar(grep { length > 40 } @lines), 0, 'it fits' or diag $screen;
    }
};


subtest 'colours are for terminals' => sub {
    plan skip_all => 'no script(1) here' unless find_program('script');

    answer('GET limits/client/keys/x' => state('client', 'x'));

    local $ENV{RATELIMIT_API} = $a->url;

    my $run = sub { return `$_[0] script -qec '$tool show client x' /dev/null < /dev/null` };

    like $run->('TERM=xterm'), qr/\e\[32mwould pass/, 'on a terminal';
    unlike $run->('TERM=xterm NO_COLOR=1'), qr/\e\[32m/, 'NO_COLOR';
    unlike $run->('TERM=dumb'), qr/\e\[32m/, 'TERM=dumb';
};


# What bash offers after a line.

sub completed {
    my ($line) = @_;

    local $ENV{PATH} = "tools:$ENV{PATH}";
    local $ENV{LINE} = $line;

    my $found = `bash -c '. tools/ratelimitctl.bash
        COMP_LINE=\$LINE COMP_POINT=\${#LINE} COMP_WORDS=(ratelimitctl)
        _ratelimitctl
        printf "%s\\n" "\${COMPREPLY[@]}"' 2>&1`;

    return join ' ', sort split /\n/, $found;
}


subtest 'completion' => sub {
    answer('GET limits' => { limits => [map { limit($_) } 'client', 'shop/a b', 'x:y',
                                                          'x:z'] });

    my $ctl = 'ratelimitctl -m ' . $a->url;

    is completed('ratelimitctl un'), 'unban', 'a command';
    is completed("$ctl --json re"), 'remove reset', 'after options';
    is completed("$ctl show cl"), 'client', 'a limit';
    is completed("$ctl ban shop"), 'shop/a\\ b', 'a limit with a blank';
    is completed("$ctl ban x:"), 'y z', 'what follows a colon';
    is completed("$ctl ban client "), '', 'no keys';
    is completed("$ctl servers "), '', 'no limit where none belongs';
    is completed('ratelimitctl top --by '), 'rejected seen', 'a value';
    is completed('ratelimitctl top --b'), '--by', 'an option of the command';
    is completed('ratelimitctl servers --b'), '', 'not of another';
    is completed('ratelimitctl -m 127.0.0.1:' . dead_port() . ' show c'), '',
       'nothing, and no complaint, without an answer';

    # all commands and options are there

    my ($table) = slurp($tool) =~ /^my %COMMAND = \((.*?)^\);/ms;

    is completed('ratelimitctl '), join(' ', sort $table =~ /^    (\w+)\s+=>/mg),
       'all commands';

    while ($table =~ /^    (\w+) +=> \[[^,]*, *\d, \d(?:, qw\(([^)]*)\))?\]/mg) {
        my ($command, $own) = ($1, $2 // '');
        my @options = map { length == 1 ? "-$_" : "--$_" } grep { $_ ne 'names' }
                      split ' ', $own;
        my %offered = map { $_ => 1 } split ' ', completed("ratelimitctl $command -");

        is_deeply [grep { !$offered{$_} } @options], [], "options of $command";
    }
};


# ---- a real nginx

my $redis = RateLimit::Redis->start;
my $certs = RateLimit::Certs->new;
my $own = $certs->make('server', san => 'DNS:localhost,IP:127.0.0.1');
my $client = $certs->make('operator');

my @nginx = map { RateLimit::Nginx->start(conf => <<"END") } 1 .. 2;
ratelimit_redis_timeout 20s;
ratelimit_redis_connect_timeout 20s;
ratelimit_limit client key=\$arg_key capacity=3 rate=3r/h;

server {
    listen 127.0.0.1:%%PORT%%;
    ratelimit_shards ${\ $redis->addr };
    location / { ratelimit client; empty_gif; }
}

server {
    listen 127.0.0.1:%%PORT4%%;
    location /memory { ratelimit_rate 1r/h; ratelimit_key \$arg_key; empty_gif; }
}

server {
    listen 127.0.0.1:%%PORT2%%;
    listen unix:%%DIR%%/api.sock;
    location /ratelimit/ { ratelimit_api write; }
    location /read/ { ratelimit_api; }
}

server {
    listen 127.0.0.1:%%PORT3%% ssl;
    ssl_certificate        $own->{cert};
    ssl_certificate_key    $own->{key};
    ssl_client_certificate ${\ $certs->ca };
    ssl_verify_client      on;
    location /ratelimit/ { ratelimit_api; }
}

server {
    listen 127.0.0.1:%%PORT2%%;
    server_name other;
    location /other/ { ratelimit_api; }
}
END

my @real = ('-m', 'a=127.0.0.1:' . $nginx[0]->port(2),
            '-m', 'b=127.0.0.1:' . $nginx[1]->port(2));


subtest 'nginx: keys of any byte' => sub {
    my ($code, $out, $err);

    for my $key ('alice', 'a/b', 'a?b', 'a b', '100%', '..', "\xff\x01", 'a%b') {
        my $path = '/?key=' . ($key =~ s/([^\w.])/sprintf '%%%02X', ord $1/ger);
        my $arg = $key =~ s/%/%25/gr =~ s/([^\x20-\x7e])/sprintf '%%%02X', ord $1/ger;

        # $arg_key is not decoded by nginx

        my $stored = $key =~ s/([^\w.])/sprintf '%%25%02X', ord $1/ger;

        $nginx[0]->get($path) for 1 .. 4;

        ($code, $out, $err) = ctl(@real, 'show', 'client', $stored);
        is $code, 1, "$arg: rejected" or diag $out, $err;
        like $out, qr/^client \Q$stored\E: rejected, passes again in (?:19|20) min$/m,
             'and when it passes';

        next if $key eq $stored;

        ($code, $out) = ctl(@real, 'show', $arg);
        is $code, 0, 'the key itself was never used';
        like $out, qr/^client +would pass, 3 of 3 left/m, 'in all limits';
    }

    my $shown = json((ctl(@real, '--json', 'show', 'client', "a%25\n\xff/"))[1]);

    is $shown->{limits}[0]{key}, 'a%25%0A%FF/', 'bytes arrive as they are';
    is $shown->{key}, 'a%25%0A%FF/', 'and are shown the same way';
};


subtest 'nginx: limits, servers, shards' => sub {
    my ($code, $out) = ctl(@real, 'shard', 'client', 'alice');

    is $code, 0, 'shard';
    like $out, qr/^client +\Q${\ $redis->addr }\E +ratelimit:client:\{alice\}$/m, 'where';

    ($code, $out) = ctl(@real, 'limits');
    like $out, qr/^client +\$arg_key +3 +3r\/h +enforced +redis /m, 'limits';

    ($code, $out) = ctl(@real, 'servers');
    is $code, 0, 'servers are well';
    is scalar(() = $out =~ / distributed /g), 2, 'for both machines';

    ($code, $out) = ctl(@real, 'machines');
    is scalar(() = $out =~ /reads and writes/g), 2, 'both may write';
};


# The statuses of a few requests to each machine.

sub statuses {
    my ($key, $times) = @_;

    return join ' ', map { my $nginx = $_;
                           map { $nginx->get("/?key=$key")->{status} } 1 .. $times }
                     @nginx;
}


subtest 'nginx: reset, override, ban, exempt, remove, on both machines' => sub {
    my $key = 'w%2525';             # "w%25" in a request, and nginx keeps that

    is statuses('w%25', 3), '200 200 200 429 429 429', 'used up';

    my ($code, $out, $err) = ctl(@real, 'reset', 'client', $key);

    is $code, 0, 'reset' or diag $err;
    ok wait_until(sub { statuses('w%25', 1) =~ /200/ }), 'a new start';

    ($code, $out, $err) = ctl(@real, 'override', 'client', $key, '--capacity', 1000,
                              '--rate', '1000r/h', '--for', '1h', '--reason', "gr\xc3\xbcn");
    is $code, 0, 'override' or diag $err;
    like $out, qr/^client \Q$key\E: capacity 1000, rate 1000r\/h, until \S+ \(1 h\)$/m,
         'what it says';

    for my $machine ('a', 'b') {
        my @one = @real[$machine eq 'a' ? (0, 1) : (2, 3)];

        ok wait_until(sub { ($code, $out) = ctl(@one, 'show', 'client', $key);
                            $out =~ /of 1000 left/ }), "$machine knows";
        like $out, qr/^ +reason +gr\xc3\xbcn$/m, 'and why';
    }

    ($code, $out) = ctl(@real, 'overrides');
    is $code, 0, 'overrides';
    like $out, qr/^client +\Q$key\E +capacity 1000, rate 1000r\/h +\S+ \(1 h\) +gr\xc3\xbcn$/m,
         'one, on both machines';
    is json((ctl(@real, '--json', 'overrides', 'client'))[1])->{overrides}[0]{key}, $key,
       'JSON';

    is((ctl(@real, 'ban', 'client', $key))[0], 0, 'ban');
    ok wait_until(sub { statuses('w%25', 1) eq '429 429' }), 'no request passes';
    ($code, $out) = ctl(@real, 'show', 'client', $key);
    is $code, 1, 'show knows';
    like $out, qr/^client \Q$key\E: rejected, banned$/m, 'in words';

    is((ctl(@real, 'exempt', 'client', $key))[0], 0, 'exempt');
    ok wait_until(sub { statuses('w%25', 5) !~ /429/ }), 'all requests pass';
    ($code, $out) = ctl(@real, 'show', 'client', $key);
    is $code, 0, 'show knows';

    is((ctl(@real, 'remove', 'client', $key))[0], 0, 'remove');
    is((ctl(@real, 'overrides'))[0], 1, 'there is none')
        if wait_until(sub { (ctl(@real, 'overrides'))[0] == 1 });

    ($code, $out, $err) = ctl(@real, 'remove', 'client', $key);
    is $code, 1, 'there is none to remove';
    is $err, "ratelimitctl: a: this key has no override\n", 'in words';

    ($code, $out, $err) = ctl(@real, 'override', 'client', $key, '--rate', 'fast');
    is $code, 3, 'a wrong rate';
    like $err, qr/^ratelimitctl: a: "rate": it must be a number followed by/, 'in words';
};


subtest 'nginx: a limit in memory is changed on each machine' => sub {
    my $limit = json((ctl(@real, '--json', 'limits'))[1])->{limits};
    my ($name) = map { $_->{name} } grep { $_->{used}[0]{state} eq 'memory' } @$limit;

    my ($code, $out, $err) = ctl(@real, 'ban', $name, 'm');

    is $code, 0, 'banned' or diag $err;
    like $out, qr/^  done on a, b: each machine keeps this limit in its own memory$/m,
         'it says so';

    is RateLimit::Load::get($_->port(4), '/memory?key=m')->{status}, 429, 'it is'
        for @nginx;
    is((ctl(@real, 'unban', $name, 'm'))[0], 0, 'unbanned');
};


subtest 'nginx: an API that only reads' => sub {
    my ($code, $out, $err) = ctl('-m', '127.0.0.1:' . $nginx[0]->port(2) . '/read/',
                                 'ban', 'client', 'x');

    is $code, 3, 'refused';
    like $err, qr/its API may only read\n  write "ratelimit_api write;"/, 'what to do';

    ($code, $out) = ctl('-m', 'x=127.0.0.1:' . $nginx[0]->port(2) . '/read/', @real,
                        'reset', 'client', 'x');
    is $code, 0, 'another machine does it';
    like $out, qr/^  done by a;/m, 'and it says which';
};


subtest 'a unix socket' => sub {
    plan skip_all => 'no curl here' unless find_program('curl');

    my $socket = $nginx[0]->dir . '/api.sock';

    for ("unix:$socket", "http://unix:$socket:/ratelimit/", "x=unix:$socket:/ratelimit") {
        my ($code, $out, $err) = ctl('-m', $_, 'show', 'client', 'a%25/..%0A');

        is $code, 0, $_ or diag $err;
        like $out, qr{^client a%25/\.\.%0A: would pass, 3 of 3 left$}m, 'the state';
    }

    my ($code, $out, $err) = ctl('-m', "unix:$home/none", 'limits');

    is $code, 3, 'none there';
    like $err, qr/no answer: .*connect/i, 'it says so';

    local $ENV{PATH} = '/nonexistent';
    ($code, $out, $err) = ctl('-m', "unix:$socket", 'limits');
    is $code, 3, 'no curl';
    like $err, qr/no curl: it is needed for https:\/\/ and unix sockets/, 'it says so';
};


subtest 'https://, with a certificate of the client' => sub {
    plan skip_all => 'no curl here' unless find_program('curl');

    my @https = ('-m', 'https://127.0.0.1:' . $nginx[0]->port(3) . '/ratelimit/');
    my @all = (@https, '--cacert', $certs->ca, '--cert', $client->{cert},
               '--key', $client->{key});

    my ($code, $out, $err) = ctl(@all, 'limits');

    is $code, 0, 'it is asked' or diag $err;
    like $out, qr/^client /m, 'and answers';

    ($code, $out, $err) = ctl(@https, 'limits');
    is $code, 3, 'without the CA';
    like $err, qr/certificate/, 'it says why';

    ($code, $out, $err) = ctl(@https, '--insecure', 'limits');
    is $code, 3, 'without a certificate of its own';

    ($code, $out, $err) = ctl('-m', '127.0.0.1:' . $nginx[0]->port(3), 'limits');
    is $code, 3, 'without TLS';
    like $err, qr/it expects TLS\n +write https:/, 'it says so';
};


subtest 'another name of the host' => sub {
    plan skip_all => 'no curl here' unless find_program('curl');

    my ($code, $out, $err) = ctl('-m', '127.0.0.1:' . $nginx[0]->port(2) . '/other/',
                                 '-H', 'Host: other', 'limits');

    is $code, 0, 'is asked' or diag $err;
};


subtest 'Redis is down' => sub {
    $redis->stop;
    $_->get('/?key=z') for (@nginx) x 12;

    ok wait_until(sub { (ctl(@real, 'servers'))[1] =~ /^a .*circuit_open/m }),
       'servers shows it';

    my ($code, $out, $err) = ctl(@real, 'show', 'client', 'alice');

    is $code, 3, 'the state is not known';
    like $err, qr/no answer from redis.*\n  "ratelimitctl servers"/, 'what to do';
};


$_->finish for @nginx;

File::Path::remove_tree($home);

done_testing();
