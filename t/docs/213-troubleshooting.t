# docs/troubleshooting.md: each symptom is brought about, the check shows what the
# page says, and the cure helps.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA ();

use RateLimit::Docs 'docs/troubleshooting.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(slurp wait_until write_file);

my %flat = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

my $debug = block_of('See who decided');
my $real_ip = "set_real_ip_from 127.0.0.1;\nreal_ip_header X-Real-IP;\n";


# The session of a section.

sub session {
    my ($name, %replace) = @_;

    my @steps = steps_of($name);

    ok scalar @steps, "$name has a session";
    RateLimit::Transcript::check($_->{command}, $_, %replace) for @steps;
}


# Redis decides, which a look at this location shows.

sub decided {
    my ($nginx, $path) = @_;

    return wait_until(sub {
        my $response = $nginx->get($path);

        return !$response->{headers}{'x-ratelimit-degraded'};
    });
}


log_ok(@log_lines);


subtest 'the header shows who decided, to operators' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(conf => <<"EOC");
$patient
$real_ip
$debug
ratelimit_shards ${\ $redis->addr};
ratelimit_limit  client capacity=100 rate=1r/d;
server {
    listen 127.0.0.1:%%PORT%%;
    location /api/ { ratelimit client; empty_gif; }
    location /look { ratelimit client; ratelimit_preview on; empty_gif; }
}
EOC

    ok decided($nginx, '/look'), 'Redis decides';
    session('See who decided', '127.0.0.1:8080' => '127.0.0.1:' . $nginx->port,
            '10.0.0.1:6379' => $redis->addr);

    is $nginx->get('/api/', 'X-Real-IP' => '203.0.113.7')->{headers}
             {'x-limit-debug'}, undef, 'to nobody else';

    my %status = map { $_ => 1 } map { code_in($_->[1]) } grep { @$_ == 3 }
                 table_of($section{'See who decided'});

    is_deeply [sort grep { !/DRY/ } keys %status],
              [sort qw(DEGRADED PASSED REJECTED SKIPPED)], 'statuses';

    $nginx->finish;
};


subtest 'requests that are not limited' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(conf => <<"EOC");
$patient
$debug
ratelimit_shards ${\ $redis->addr};
ratelimit_limit  by_key key=\$http_x_api_key capacity=100 rate=1r/d;
ratelimit_limit  every  key=\$request_id capacity=100 rate=1r/d;
ratelimit_limit  other  key=all capacity=100 rate=1r/d;
ratelimit_limit  trial  key=all capacity=1 rate=1r/d dry_run;
ratelimit_silence early_return;
server {
    listen 127.0.0.1:%%PORT%%;
    location /early  { ratelimit by_key; return 200 early; }
    location /cured  { ratelimit by_key; try_files /none \@cured; }
    location \@cured { return 200 cured; }
    location /off    { ratelimit off; empty_gif; }
    location /by-key { ratelimit by_key; empty_gif; }
    location /every  { ratelimit every; empty_gif; }
    location /trial  { ratelimit trial; empty_gif; }
    location /first  { ratelimit other; try_files /none \@second; }
    location \@second { ratelimit by_key; return 200 second; }
}
EOC

    my $seen = sub { $nginx->get(@_)->{headers}{'x-limit-debug'} };

    ok decided($nginx, '/every'), 'Redis decides';
    session('This request is not limited',
            '127.0.0.1:8080' => '127.0.0.1:' . $nginx->port);

    my @key = ('X-Api-Key' => 'a');

    is $seen->('/off', @key), 'status= limit= source= shard=', 'ratelimit off';
    like $seen->('/cured', @key), qr/^status=PASSED limit=by_key source=redis/,
         'the cure of an early return';
    like $seen->('/by-key', @key), qr/^status=PASSED limit=by_key/, 'a key is there';
    like $seen->('/first', @key), qr/^status=PASSED limit=other/,
         'the first location decides';

    $seen->('/trial');
    like $seen->('/trial'), qr/^status=REJECTED_DRY_RUN limit=trial/, 'a dry run';

    # warnings of nginx -t that the page names

    my ($enum) = $all =~ /(auth_variable.*?)\};/s;

    like $enum, qr/"$_"/, "a warning: $_"
        for grep { !/auth_variable/ && /^[a-z]+_[a-z]+$/ }
            map { /warns about `(\w+)`/g } $page;

    $nginx->finish;
};


subtest 'requests that are limited' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(log => 'error', workers => 1,
        conf => $patient . $real_ip . <<"EOC");
ratelimit_silence no_shards;
ratelimit_limit  client capacity=100 rate=10r/m;
ratelimit_limit  none   capacity=1   rate=0r/s;
server {
    listen 127.0.0.1:%%PORT%%;
    location /none  { ratelimit client; empty_gif; }
}
server {
    listen 127.0.0.1:%%PORT2%%;
    ratelimit_shards ${\ $redis->addr};
    location /api/  { ratelimit client; empty_gif; }
    location /never { ratelimit none; empty_gif; }
}
EOC

    my $flood = sub {
        my ($path, $address, $n) = @_;

        my $port = $nginx->port($path eq '/none' ? 1 : 2);
        my $response;

        $response = RateLimit::Load::get($port, $path, 'X-Real-IP' => $address)
            for 1 .. $n;

        return $response->{headers}{'x-ratelimit-degraded'};
    };

    ok wait_until(sub { !$flood->('/api/', '203.0.113.1', 1) }), 'Redis decides';

    # emptied by another machine, so that Redis is what rejects

    $flood->('/api/', '203.0.113.7', 1);
    $redis->cmd('HSET', 'ratelimit:client:{203.0.113.7}', 'tokens', 0);
    $flood->('/api/', '203.0.113.7', 1);

    my ($line) = grep { /REJECTED/ } @log_lines;
    my $text = quotemeta $line =~ s/^\[error\] //r;

    ok $nginx->wait_log(qr/\[error\].*?$text/, 5), $line
        or diag $nginx->error_log;

    # the rows

    $flood->('/api/', '203.0.113.7', 3);
    ok $nginx->wait_log(qr/source: denied/, 5), 'a remembered denial';

    $flood->('/never', '203.0.113.9', 2);
    ok $nginx->wait_log(qr/limit: "none".*retry after: -1/, 5), 'never';

    $flood->('/none', '203.0.113.8', 101);
    ok $nginx->wait_log(qr/203\.0\.113\.8.*source: local(?!, failure)/, 5),
       'no shards apply';

    # who is rejected most

    my $log = $nginx->dir . '/some.log';

    write_file($log, join '', map { "$_\n" }
               grep { /REJECTED.*"203\.0\.113\.[78]"/ }
               split /\n/, $nginx->error_log);

    session('Too many requests are rejected', '/var/log/nginx/error.log' => $log);

    is `printf %s 'the key' | sha1sum | cut -c1-16`,
       substr(Digest::SHA::sha1_hex('the key'), 0, 16) . "\n", 'a digest';

    $nginx->finish;
};


subtest 'configurations are compared' => sub {
    my ($step) = steps_of('Two machines count apart');
    my @sum;

    for my $shard ('127.0.0.1:6390', 'localhost:6390', '127.0.0.1:6390') {
        my $nginx = RateLimit::Nginx->start(
            conf   => "ratelimit_shards $shard;\n",
            server => 'location / { ratelimit_rate 1r/s; }');
        my ($conf) = grep { -f } map { $nginx->dir . "/$_" }
                     qw(conf/nginx.conf nginx.conf);

        ok $conf, 'its configuration' or next;

        my $command = $step->{command}
                      =~ s{nginx -T 2>/dev/null}{cat $conf}r;

        push @sum, scalar `$command`;
        $nginx->stop;
    }

    isnt $sum[0], $sum[1], 'a shard with another name';
    is $sum[0], $sum[2], 'the same';
    like $sum[0], qr/^[0-9a-f]{40} /, 'a sum';
    isnt $sum[0], `printf '' | sha1sum`, 'of something';

    ok exists $directive{"ratelimit_$_"}, "ratelimit_$_"
        for map { split /\|/ } $step->{command} =~ /ratelimit_\(([^)]*)\)/;
};


subtest 'what Redis lost' => sub {
    my $redis = RateLimit::Redis->start;

    session('Limits reset by themselves', '10.0.0.1:6379' => $redis->addr);
};


subtest 'everything is DEGRADED' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server => 'location /api/ { ratelimit_rate 1r/s; ratelimit_capacity 1000;
                                    empty_gif; }');

    ok decided($nginx, '/api/'), 'Redis decides';
    $redis->stop;
    session('Everything is DEGRADED',
            '127.0.0.1:8080' => '127.0.0.1:' . $nginx->port);

    my @reasons = map { code_in($_->[0]) } grep { @$_ == 3 && $_->[0] =~ /^`/ }
                  table_of($section{'Everything is DEGRADED'});

    is_deeply [sort @reasons], [sort +strings('ngx_rl_reason_names')],
              'each reason has a row';

    my @lines = map { code_in($_->[0]) } grep { @$_ == 2 && $_->[0] =~ /^`/ }
                table_of($section{'Everything is DEGRADED'});
    my @starts = log_starts();

    cmp_ok scalar @lines, '>=', 4, 'log lines';

    for my $line (@lines) {
        my $text = '[error] ' . $line =~ s/ \(\d+: .*//r =~ s/SHARD/10.0.0.1:6379/r;

        ok scalar(grep { $text =~ $_ } @starts), $line;
    }

    $nginx->finish;
};


subtest 'headers are missing' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(conf => <<"EOC");
$patient
ratelimit_shards ${\ $redis->addr};
ratelimit_limit  api   key=\$arg_k capacity=100 rate=1r/d;
ratelimit_limit  trial key=\$arg_k capacity=100 rate=1r/d dry_run;
ratelimit_limit  zero  key=\$arg_k capacity=1 rate=0r/s;
server {
    listen 127.0.0.1:%%PORT%%;
    location /api    { ratelimit api; empty_gif; }
    location /off    { ratelimit api; ratelimit_headers off; empty_gif; }
    location /trial  { ratelimit trial; empty_gif; }
    location /trials { ratelimit trial; ratelimit_headers legacy dry_run; empty_gif; }
    location /draft  { ratelimit api; ratelimit_headers legacy draft-8; empty_gif; }
    location /zero   { ratelimit zero; empty_gif; }
    location /quiet  { ratelimit api; ratelimit_headers legacy no_degraded; empty_gif; }
    location /open   { ratelimit api; ratelimit_on_error open; empty_gif; }
}
EOC

    my $h = sub { $nginx->get($_[0])->{headers} };

    ok decided($nginx, '/api?k=a'), 'Redis decides';
    ok defined $h->('/api?k=a')->{'x-ratelimit-limit'}, 'with a key';
    is $h->($_)->{'x-ratelimit-limit'}, undef, $_
        for '/api', '/off?k=a', '/trial?k=a';
    ok defined $h->('/trials?k=a')->{'x-ratelimit-limit'}, 'dry_run';
    is $h->('/api?k=a')->{ratelimit}, undef, 'not those of the draft';
    ok defined $h->('/draft?k=a')->{$_}, "draft-8: $_"
        for qw(ratelimit ratelimit-policy);

    $h->('/zero?k=a');
    is $nginx->get('/zero?k=a')->{status}, 429, 'rejected';
    is $h->('/zero?k=a')->{'retry-after'}, undef, 'for ever';

    $redis->stop;
    ok defined $h->('/api?k=b')->{'x-ratelimit-degraded'}, 'degraded';
    is $h->('/quiet?k=b')->{'x-ratelimit-degraded'}, undef, 'no_degraded';
    is $h->('/open?k=b')->{'x-ratelimit-remaining'}, undef, 'open';
    ok defined $h->('/open?k=b')->{'x-ratelimit-degraded'}, 'is degraded';

    $nginx->finish;
};


subtest 'invalid values' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(log => 'error', conf => <<"EOC");
$patient
ratelimit_silence client_value;
ratelimit_shards ${\ $redis->addr};
ratelimit_capacity 1000000;
add_header X-Left \$ratelimit_remaining always;
server {
    listen 127.0.0.1:%%PORT%%;
    server_name example.com;
    location /api/   { ratelimit_rate \$arg_r; empty_gif; }
    location /open   { ratelimit_rate \$arg_r; ratelimit_on_error open; empty_gif; }
    location /closed { ratelimit_rate \$arg_r; ratelimit_on_error closed; empty_gif; }
    location /cost   { ratelimit_rate 1r/d; ratelimit_cost \$arg_c; empty_gif; }
}
EOC

    ok decided($nginx, '/cost'), 'Redis decides';

    is $nginx->get('/api/?r=gold')->{status}, 200, 'local';
    is $nginx->get('/open?r=gold')->{status}, 200, 'open';
    is $nginx->get('/closed?r=gold')->{status}, 503, 'closed';

    my ($line) = grep { /invalid/ } @log_lines;
    my $text = quotemeta $line =~ s/^\[error\] //r;

    ok $nginx->wait_log(qr/\[error\].*?$text/, 5), $line;

    my $left = sub { $nginx->get("/cost$_[0]")->{headers}{'x-left'} };
    my $before = $left->('');

    is $left->('?c='), $before - 1, 'an empty cost is 1';
    is $left->('?c=x'), $before - 1 - 100000, 'a wrong cost is 100000';
    is $left->('?c=250000'), $before - 1 - 200000, 'and one above';

    $nginx->finish;
};


# ---- looking a client up

subtest 'a client is looked up, found in Redis and reset' => sub {
    my @redis = RateLimit::Redis->start_many(2);
    my $nginx = nginx_of('Look a client up', \@redis, more => $real_ip,
                         replace => { '8089    $http' => '%%PORT2%% $http' });

    ok wait_until(sub {
        my $both = 0;

        for my $key ('a' .. 'p') {
            my $line = RateLimit::Load::get($nginx->port(2), '/client',
                                            'X-Key' => $key)->{body};
            $both |= $line =~ /source=redis/ ? 0 : 1;
        }

        return !$both;
    }), 'both shards decide';

    $nginx->get('/api/', 'X-Real-IP' => '203.0.113.7') for 1 .. 3;

    my $state = 'ratelimit:client:{203.0.113.7}';
    my ($home, $other) = sort { $b->cmd('EXISTS', $state)
                                <=> $a->cmd('EXISTS', $state) } @redis;

    is $home->cmd('EXISTS', $state), 1, 'the key that the page names';

    my @replace = ('10.0.0.1:6379' => $home->addr,
                   '10.0.0.2:6379' => $other->addr,
                   '127.0.0.1:8089' => '127.0.0.1:' . $nginx->port(2));

    session($_, @replace)
        for 'Look a client up', 'Find a client in Redis', 'Reset a client';

    # clients can't choose their key

    $nginx->get('/api/', 'X-Real-IP' => '203.0.113.7', 'X-Key' => 'mine');
    is $home->cmd('EXISTS', $state), 1, 'the key is the address';

    my $denied = `curl -s -o /dev/null -w '%{http_code}' --interface 127.0.0.2 \\
                       http://127.0.0.1:${\ $nginx->port(2)}/client`;

    is $denied, 403, 'operators only';

    # without Redis

    $_->stop for @redis;
    like RateLimit::Load::get($nginx->port(2), '/client',
                              'X-Key' => '203.0.113.7')->{body},
         qr/source=local status=DEGRADED/, 'during an outage';

    $nginx->finish;
};


subtest 'types are those of the algorithms' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n",
        server => join '', map { <<"EOC" } qw(token_bucket gcra sliding_window_log));
location /$_ {
    ratelimit_key       $_;
    ratelimit_algorithm $_;
    ${\ (/log/ ? 'ratelimit_window 60s; ratelimit_capacity 5;'
               : 'ratelimit_rate 1r/d; ratelimit_capacity 5;') }
    empty_gif;
}
EOC

    my %type = map { (code_in($_->[1]))[0] => (code_in($_->[0]))[0] }
               grep { @$_ == 3 && $_->[1] =~ /^`/ }
               table_of($section{'Find a client in Redis'});

    is scalar keys %type, 3, 'there are three';

    for my $algorithm (sort keys %type) {
        ok decided($nginx, "/$algorithm"), 'Redis decides';
        my ($key) = @{ $redis->cmd('KEYS', "*{$algorithm}") };
        is $redis->cmd('TYPE', $key), $type{$algorithm}, $algorithm;
    }

    $nginx->finish;
};


subtest 'numbers are those of the sources' => sub {
    is $directive{ratelimit_prefix}{default}, 'ratelimit', 'the prefix';
    like $flat{'Find a client in Redis'}, qr/longer than ${\ define('KEY_MAX')} bytes/,
         'a long key';
    is define('DENY_CACHE'), 1000, 'a second';
    like $flat{$_}, qr/, 1 s by default/, $_
        for 'Reset a client', 'This request is limited, and should not be';
    like $flat{'A limit gets an invalid value'},
         qr/counts as ${\ define('MAX_COST')}/, 'the largest cost';
};


done_testing();
