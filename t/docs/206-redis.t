# docs/redis.md: what is in Redis, how other programs share it, where keys live,
# and what a server needs.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use Digest::SHA ();
use JSON::PP ();

use RateLimit::Dns;
use RateLimit::Docs 'docs/redis.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(find_program free_port temp_dir wait_until write_file);

my $python = find_program('python3');
my $dir = temp_dir('docs-redis');


# The commands of a section, on this server.

sub run_steps {
    my ($name, $redis, %replace) = @_;

    my @steps = steps_of($name);

    RateLimit::Transcript::check($_->{command}, $_,
                                 '-h 10.0.0.1' => '-p ' . $redis->port,
                                 %replace) for @steps;

    return @steps;
}


# The rows of the table of a section that has this head.

sub rows_below {
    my ($name, $head) = @_;

    my $text = $section{$name} // die "no section $name\n";
    my ($table) = $text =~ /^(\|\ *\Q$head\E\ *\|.*?)(?:^$|\z)/msx
                  or die "no table $head in $name\n";
    my (undef, @rows) = table_of($table);

    return @rows;
}


# ---- what is in Redis

my $states = <<'EOC';
ratelimit_log_key plain;
ratelimit_limit bucket key=$arg_k capacity=10 rate=10r/m;
ratelimit_limit slow   key=$arg_k capacity=10 rate=10r/d;
ratelimit_limit never  key=$arg_k capacity=10 rate=0r/s;
ratelimit_limit gcra   key=$arg_k capacity=10 rate=10r/m algorithm=gcra;
ratelimit_limit window key=$arg_k capacity=10 window=1m
                       algorithm=sliding_window_log;
EOC

my @names = qw(bucket slow never gcra window);


subtest 'keys have the names and the content that is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => $patient . $states . "ratelimit_shards ${\ $redis->addr};\n",
        server => join '', map { "location /$_ { ratelimit $_; }\n" } @names);

    my %key = map { $_ => "ratelimit:$_:{a}" } @names;

    $nginx->get("/$_?k=a") for @names;

    is_deeply [sort @{ $redis->cmd('KEYS', '*') }], [sort values %key],
              block_of('Keys and state', 'text') =~ s/\s+$//r;

    # types

    my %row = map { (code_in($_->[0]))[0] => $_ }
              rows_below('Keys and state', 'algorithm');
    my %type = (hash => 'hash', string => 'string', 'sorted set' => 'zset');

    for (['token_bucket', 'bucket'], ['gcra', 'gcra'],
         ['sliding_window_log', 'window'])
    {
        my ($algorithm, $name) = @$_;

        is $redis->cmd('TYPE', $key{$name}), $type{ $row{$algorithm}[1] },
           "$algorithm is a $row{$algorithm}[1]";
    }

    # the fields of a bucket, those of a slow one

    my @fields = map { code_in($_->[0]) } rows_below('Keys and state', 'field');

    is_deeply [sort @{ $redis->cmd('HKEYS', $key{slow}) }], [sort @fields],
              'the fields of a slow bucket';
    is_deeply [sort @{ $redis->cmd('HKEYS', $key{bucket}) }],
              [sort grep { $_ ne 'seen' } @fields], 'of another one';

    # gcra: a tenth of a minute from now, in ticks

    my ($part, $epoch) = $row{gcra}[2] =~ m{1/(\d+) microsecond.* from (\d+) sec};
    my $full = $redis->cmd('GET', $key{gcra}) / $part / 1e6 + $epoch;

    cmp_ok abs($full - time - 6), '<', 10, 'gcra: when it is full';

    # windows

    my ($form) = $row{sliding_window_log}[2] =~ /member is `([A-Z:]+)`/;

    is $form, 'TOTAL:COST:SEEN:ID', 'the parts of a member';

    my $entry = $redis->cmd('ZRANGE', $key{window}, 0, -1, 'WITHSCORES');

    like $entry->[0], qr/^0{15}1:1:\d{16}:\S+$/, 'a member';
    cmp_ok abs($entry->[1] - time * 1e6), '<', 60e6, 'its score';

    # times to live

    my $ttl = sub { $redis->cmd('PTTL', $key{$_[0]}) / 1000 };
    my $between = sub {
        my ($name, $from, $to) = @_;
        my $got = $ttl->($name);

        ok $got > $from && $got <= $to, "$name: $from to $to s" or diag $got;
    };

    $between->('bucket', 30, 61);
    $between->('gcra', 8, 26);
    $between->('window', 30, 61);
    $between->('never', 364 * 86400, 366 * 86400);
    $between->('slow', 86400 - 60, 86401);

    $nginx->get('/bucket?k=a') for 1 .. 2;
    $between->('bucket', 30, 122);

    # digests

    my %long = ('x' x 257 => 1, 'x' x 256 => 0, 'sha1:abc' => 1, 'a{b' => 0);

    for my $value (sort keys %long) {
        my $sha = 'sha1:' . Digest::SHA::sha1_hex($value);
        my $key = $long{$value} ? $sha : $value;

        $nginx->get('/never?k=' . $value);
        is $redis->cmd('EXISTS', "ratelimit:never:{$key}"), 1,
           substr($value, 0, 10) . ', ' . length $value;

        my ($command) = $page =~ /`(printf sha1:[^`]+)`/;
        my $printed = do { local $ENV{value} = $value; `$command` };

        is $printed, $sha, 'the command of the page';
    }

    # a key of another application

    $redis->cmd('SET', 'ratelimit:bucket:{other}', 'text');
    is $nginx->get('/bucket?k=other')->{headers}{'x-ratelimit-degraded'}, 'true',
       'a call fails';
    is $redis->cmd('GET', 'ratelimit:bucket:{other}'), 'text', 'it is left alone';
    ok $nginx->log_like(qr/WRONGTYPE/), 'WRONGTYPE';

    # what another algorithm has left

    $redis->cmd('ZADD', 'ratelimit:bucket:{z}', 1, 1);
    is $nginx->get('/bucket?k=z')->{headers}{'x-ratelimit-remaining'}, 9,
       'a limit whose algorithm was changed';

    $nginx->finish;
};


subtest 'a client is looked up and reset as shown' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC');
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen      127.0.0.1:%%PORT%%;
    server_name example.com;
    location /api/ { ratelimit_capacity 100; ratelimit_rate 1r/m; }
}
EOC

    is $nginx->get('/api/', 'X-Real-IP' => '203.0.113.7')
       ->{headers}{'x-ratelimit-remaining'}, 99, 'a request';
    run_steps('Keys and state', $redis);
    is $redis->cmd('DBSIZE'), 0, 'reset';

    $nginx->finish;
};


subtest 'limits are named as described' => sub {
    my $redis = RateLimit::Redis->start;
    my $names = block_of('Names of limits');
    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}add_header X-Name \$ratelimit_name always;\n"
                . http_of($names, '127.0.0.1:6379' => $redis->addr));

    my $port = 0;
    my $tried = 0;

    for my $line (split /\n/, $names) {
        $port++ if $line =~ /^server \{/;

        my ($name) = $line =~ /# name: (\S+)$/ or next;
        my ($path) = $line =~ /location (?:[=~] )?(\S+)/;

        $path //= $port == 1 ? '/' : '';        # the server's own; http's
        next if $path eq '';

        $path =~ s/^\\\.php\$$/\/x.php/;
        is RateLimit::Load::get($nginx->port($port), $path)->{headers}{'x-name'},
           $name, "name of $path";
        $tried++;
    }

    is $tried, 7, 'all of them';
    $nginx->finish;
};


# ---- other programs

subtest 'the scripts answer as shown' => sub {
    my $redis = RateLimit::Redis->start;
    my @steps = run_steps('The scripts', $redis);

    cmp_ok scalar @steps, '>=', 7, 'commands';

    # the tables have the arguments of the commands

    for my $script ('token_bucket.lua', 'gcra.lua') {
        my ($key, @args) = map { $_->[2] =~ s/`//gr }
                           rows_below($script, 'argument');
        my ($step) = steps_of($script);

        like $step->{command}, qr/ '\Q$key\E' , \Q@args\E$/, "$script: @args";
    }

    # and what nginx sends is the same

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC',
ratelimit_deny_cache off;
ratelimit_limit batch  key=alice capacity=5 rate=5r/m;
ratelimit_limit gcra   key=alice capacity=5 rate=5r/m algorithm=gcra;
ratelimit_limit minute key=bob capacity=2 window=1m algorithm=sliding_window_log;
ratelimit_limit day    key=bob capacity=5000 rate=5000r/d;
EOC
        server => <<'EOC');
location /batch { ratelimit batch; }
location /gcra  { ratelimit gcra; }
location /take  { ratelimit day minute; }
EOC

    $nginx->get('/batch');          # connected

    open my $monitor, '-|', 'timeout', 20, 'redis-cli', '-p', $redis->port,
         'monitor' or die "redis-cli: $!\n";
    <$monitor>;
    $nginx->get($_) for '/batch', '/gcra', '/take';
    $redis->cmd('ECHO', 'enough');

    my %sent;

    while (<$monitor>) {
        last if /"enough"/;

        my ($n, $rest) = /"evalsha" "[0-9a-f]+" "(\d+)" (.*)/i or next;
        my @words = $rest =~ /"((?:[^"\\]|\\.)*)"/g;

        $sent{ $words[0] } = [splice @words, $n];
    }

    close $monitor;

    for (['ratelimit:batch:{alice}', 'token_bucket.lua', 5],
         ['ratelimit:gcra:{alice}', 'gcra.lua', 3])
    {
        my ($key, $script, $n) = @$_;
        my @args = map { $_->[2] } rows_below($script, 'argument');

        my @real = @{ $sent{$key} || [] }[0 .. $n - 1];

        # a rate is a fraction, which nginx reduces

        if ($n == 5) {
            is $real[1] / $real[2], $args[2] / $args[3], 'the rate';
            @real[1, 2] = @args[2, 3];
        }

        is_deeply \@real, [@args[1 .. $n]], "$script: as nginx does";
    }

    my ($take) = steps_of('take.lua');
    my ($shown) = $take->{command} =~ / , (.*)/;
    my @shown = split ' ', $shown =~ s/\$\([^)]*\)/NOW/r;
    my @real = @{ $sent{'ratelimit:day:{bob}'} || [] };

    is scalar @real, scalar @shown, 'take.lua: as many arguments';
    is $real[9] / $real[10], $shown[9] / $shown[10], 'take.lua: the rate';
    @real[9, 10] = @shown[9, 10];
    is_deeply [@real[0, 1, 4 .. $#real]], [@shown[0, 1, 4 .. $#shown]],
              'take.lua: as nginx does';

    $nginx->finish;
};


# A program of the page, and lines after it; what it prints.

sub run_python {
    my ($text, $lines) = @_;

    my $file = "$dir/run.py";

    write_file($file, "$text\n$lines");

    my $printed = `cd '$dir' && timeout 30 python3 run.py 2>&1`;

    is $?, 0, 'python3 ends well' or diag $printed;

    return $printed;
}


subtest 'the program in Python shares buckets with nginx' => sub {
    plan skip_all => 'no python3' unless $python;

    my $redis = RateLimit::Redis->start;
    my $port = $redis->port;
    my $program = block_of('Example: Python', 'python');
    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_deny_cache off;\n"
                . "ratelimit_limit day key=\$arg_k capacity=9 rate=9r/d;\n"
                . http_of(block_of('Example: Python'),
                          '10.0.0.1:6379' => $redis->addr)
                . "server { listen 127.0.0.1:%%PORT2%%; ratelimit day; }\n");

    write_file("$dir/limiter.py", $program);
    run_steps('Example: Python', $redis,
              '127.0.0.1:8080' => '127.0.0.1:' . $nginx->port,
              'python3 limiter.py' => "python3 $dir/limiter.py",
              '10.0.0.1 6379' => "127.0.0.1 $port");

    # five in all, whoever takes them

    my $run = sub { `python3 $dir/limiter.py 127.0.0.1 $port build/lua/token_bucket.lua $_[0] 2>&1` };

    like $run->('alice'), qr/^passed left 0 wait 0$/, 'the fifth';
    like $run->('alice'), qr/^rejected left 0 wait (?:[1-9]|1[012])$/,
         'the sixth: twelve seconds at most';
    is $nginx->get('/', 'X-Client' => 'alice')->{status}, 429, 'nginx: the same';

    # digests, and a bucket that needs more than an hour to fill

    my $lua = Cwd::getcwd() . '/build/lua/token_bucket.lua';
    my $printed = run_python("from limiter import *\n", <<"EOP");
redis = Redis("127.0.0.1", $port)
day = TokenBucket("day", 9, 9, 86400, "$lua")
for value in "x" * 300, "sha1:abc", "plain":
    print(*day.take(redis, value))
try:
    day.take(redis, "plain", "x")
except RuntimeError as error:
    print("error", str(error)[:3])
print(day.take(redis, "plain", 9)[2] > 80000)
print(redis.call("SET", "a", "b"), redis.call("GET", "a"), redis.call("GET", "none"))
print(key_of("a{b", True) != "a{b", key_of("a{b"))
EOP

    is $printed, "True 8.0 0\nTrue 8.0 0\nTrue 8.0 0\nerror ERR\nFalse\n"
                 . "OK b None\nTrue a{b\n", 'what it prints' or diag $printed;

    for my $value ('x' x 300, 'sha1:abc', 'plain') {
        is RateLimit::Load::get($nginx->port(2), "/?k=$value")
           ->{headers}{'x-ratelimit-remaining'}, 7,
           'nginx goes on from there: ' . substr $value, 0, 10;
    }

    $nginx->finish;
};


# ---- shards

subtest 'keys are on the shards that the page computes' => sub {
    plan skip_all => 'no python3' unless $python;

    my $program = block_of('Sharding', 'python');
    my @rows = rows_below('Sharding', 'KEY');
    my @keys = map { code_in($_->[0]) } @rows;
    my @redis = RateLimit::Redis->start_many(4);
    my @addr = map { $_->addr } @redis;
    my @try = (@keys, map { "k$_" } 1 .. 20);
    my $lists = JSON::PP->new->canonical->ascii->encode(
        { keys => [map { my $k = $_; utf8::decode($k); $k } @try],
          shards => \@addr });

    my $answer = JSON::PP::decode_json(run_python($program, <<"EOP"));
import json
given = json.loads(r'''$lists''')
keys, shards = given["keys"], given["shards"]
print(json.dumps({
    "hash": ["%08x" % fnv1a(k.encode(), 0x811c9dc5, 0x01000193, 32) for k in keys],
    "three": [modulo(k, [0, 1, 2]) for k in keys],
    "modulo": [modulo(k, shards[:3]) for k in keys],
    "consistent": [consistent(k, shards[:3]) for k in keys],
    "four": [consistent("n%d" % i, shards) for i in range(4000)],
    "before": [consistent("n%d" % i, shards[:3]) for i in range(4000)],
}))
EOP

    for my $i (0 .. $#rows) {
        is $answer->{hash}[$i], (code_in($rows[$i][1]))[0], "FNV-1a of $keys[$i]";
        is $answer->{three}[$i], $rows[$i][2], 'its shard';
    }

    for my $hash (qw(modulo consistent)) {
        my $nginx = RateLimit::Nginx->start(
            conf   => $patient . "ratelimit_shards @addr[0 .. 2] hash=$hash;\n",
            server => 'add_header X-Shard $ratelimit_shard always;
                       location / { ratelimit_key $http_x_key;
                                    ratelimit_rate 1r/d; }');

        is_deeply [map { $nginx->get('/', 'X-Key' => $_)->{headers}{'x-shard'} }
                   @try], $answer->{$hash}, "nginx agrees: hash=$hash";
        $nginx->finish;
    }

    # a fourth shard takes a quarter, and nothing else moves

    my @moved = grep { $answer->{four}[$_] ne $answer->{before}[$_] } 0 .. 3999;

    is scalar(grep { $answer->{four}[$_] ne $addr[3] } @moved), 0,
       'keys move to the new shard only';
    cmp_ok abs(@moved - 1000), '<', 150, 'a quarter of them' or diag scalar @moved;
};


subtest 'shards are called as listed' => sub {
    my $redis = RateLimit::Redis->start(
        config => { user => 'nginx on >secret ~* +@all' });
    my ($row) = grep { $_->[0] eq 'a shard' } table_of($section{Sharding});
    my $addr = $redis->addr;
    my $nginx = RateLimit::Nginx->start(
        conf => $patient . "ratelimit_rate 1r/s;\n"
                . "add_header X-Shard \$ratelimit_shard always;\n",
        server => "location /0 { ratelimit_shards $addr; }\n"
                  . "location /1 { ratelimit_shards unix:${\ $redis->socket}; }\n"
                  . "location /2 { ratelimit_shards redis://nginx:secret\@$addr/2; }\n");

    my @called = map { s/10\.0\.0\.1:6379/$addr/r
                       =~ s{unix:\S+}{'unix:' . $redis->socket}er } code_in($row->[1]);

    is_deeply [map { $nginx->get("/$_")->{headers}{'x-shard'} } 0 .. 2],
              \@called, "@called";

    like $redis->cmd('CLIENT', 'LIST'), qr/ name=nginx-ratelimit\@\S/,
         'the name of the connections';
    $nginx->finish;
};


# The name is "localhost", which the system knows as nginx starts.

subtest 'names that move are followed as described' => sub {
    my $dns = RateLimit::Dns->start(names => { localhost => { a => ['127.0.0.1'] } });
    my @port = map { free_port() } 1 .. 2;
    my @old = map { RateLimit::Redis->start(port => $_) } @port;
    my @new = map { RateLimit::Redis->start(port => $_, bind => '127.0.0.2') } @port;

    my $nginx = nginx_at('Host names that move', $patient,
                         '10.0.0.53' => $dns->addr,
                         'redis-1.example.com' => "localhost:$port[0]",
                         'redis-2.example.com' => "localhost:$port[1]");
    my $get = sub { source_of($nginx->port, '/') };
    my $keys = sub { my $n = 0; $n += $_->cmd('DBSIZE') for @_; return $n };

    is $get->(), 'redis', 'Redis decides';
    is $keys->(@old), 1, 'where the name leads';

    $dns->name('localhost', a => ['127.0.0.2']);
    ok wait_until(sub { $get->() eq 'redis' && $keys->(@new) == 1 }, 30),
       'it moves, and nginx follows';

    $dns->forget('localhost');
    ok $nginx->wait_log(qr/"localhost" could not be resolved/, 30), 'DNS fails';
    is $get->(), 'redis', 'the last addresses stay';

    $nginx->finish;
};


# ---- servers

subtest 'a managed Redis works with what is described' => sub {
    my $dns = RateLimit::Dns->start(names => { localhost => { a => ['127.0.0.1'] } });
    my $redis = tls_server(user => 'limiter on >wonderland ~ratelimit:* +@all '
                                   . '-client -script');

    # no authority of the system has signed it

    my $nginx = nginx_at('Managed Redis',
        "ratelimit_redis_ssl_trusted_certificate ${\ certs()->ca};\n",
        '10.0.0.53' => $dns->addr, '100ms' => '20s', '500ms' => '20s',
        'limits.example.net:6380' => 'localhost:' . $redis->port);

    is source_of($nginx->port, '/'), 'redis', 'Redis decides';
    ok $nginx->log_like(qr/\[info\].*refused $_,/), "without $_"
        for 'CLIENT SETNAME', 'SCRIPT LOAD';
    unlike $nginx->error_log, qr/wonderland/, 'nothing secret in the log';

    $nginx->finish;
};


subtest 'Redis needs as much memory as is said' => sub {
    my $redis = RateLimit::Redis->start;
    my ($version) = $section{Memory} =~ /in Redis (\d+\.\d+)/;

    plan skip_all => "not Redis $version"
        if $redis->info('server')->{redis_version} !~ /^\Q$version\E\./;

    # of one key

    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC');
server {
listen 127.0.0.1:%%PORT%%;
ratelimit_key 203.0.113.7;
location /n/  { ratelimit_key $uri; ratelimit_capacity 1000000;
                ratelimit_window 1h; ratelimit_algorithm sliding_window_log; }
location /fast { ratelimit_rate 1000r/s; ratelimit_capacity 1000000; }
location /slow { ratelimit_rate 100r/s; ratelimit_capacity 1000000; }
location /gcra { ratelimit_rate 100r/s; ratelimit_capacity 1000000;
                 ratelimit_algorithm gcra; }
}
EOC

    for my $row (table_of($section{Memory})) {
        my ($what, $bytes, $each) = @$row;
        my $key;

        if ($what =~ /^window with (\d+) entries$/) {
            my $n = $1;

            # one after the other: an entry each
            my $load = RateLimit::Load::run(
                port => $nginx->port, connections => 1, requests => $n,
                path => "/n/$n", timeout => 60);

            is $load->count(404), $n, "$n requests";
            cmp_ok abs($bytes / $n - $each), '<=', 1, "$each each";
            $key = "ratelimit:_/n/:{/n/$n}";

        } elsif ($bytes =~ /^\d+$/ && $each eq 'none') {
            my $place = $what =~ /gcra/ ? 'gcra'
                      : $what =~ /slower/ ? 'slow' : 'fast';

            # as it is in use, not as it was made
            $nginx->get("/$place") for 1 .. 2;
            $key = "ratelimit:_/$place:{203.0.113.7}";

        } else {
            next;
        }

        my $real = $redis->cmd('MEMORY', 'USAGE', $key);

        cmp_ok abs($real / $bytes - 1), '<', 0.15, "$what: $bytes bytes"
            or diag $real;
    }

    $nginx->finish;

    my ($packed) = $section{Memory} =~ /Up to (\d+) entries/;

    is $redis->cmd('CONFIG', 'GET', 'zset-max-listpack-entries')->[1], $packed,
       'packed entries';

    # of many

    my %in_all = map { (code_in($_->[0]))[0] => $_ }
                 grep { ($_->[2] // '') =~ /MB$/ } table_of($section{Memory});
    my $n = 100_000;

    for (['token_bucket', <<'EOL'], ['gcra', <<'EOM']) {
redis.call('HSET', key, 'tokens', '99', 'lastRefill', '1794844923000000',
           'expires', '1794845923000')
redis.call('PEXPIRE', key, 1000000)
EOL
redis.call('SET', key, '1517518768000000', 'PX', 1000000)
redis.call('SETRANGE', key, 0, '15')
EOM
        my ($kind, $lines) = @$_;
        my (undef, $expected, $million) = @{ $in_all{$kind} };

        is $million, "$expected MB", "$kind: a million of them";
        $redis->cmd('FLUSHALL');

        my $before = $redis->info('memory')->{used_memory};

        $redis->cmd('EVAL', <<"EOL", 0, $n);
for i = 1, ARGV[1] do
    local key = string.format('ratelimit:example.com/api/:{203.%d.%d.%d}',
                              i / 65536, i / 256 % 256, i % 256)
    $lines
end
EOL

        my $each = ($redis->info('memory')->{used_memory} - $before) / $n;

        is $redis->cmd('DBSIZE'), $n, "$kind: so many";
        cmp_ok abs($each / $expected - 1), '<', 0.15, "$expected bytes each"
            or diag $each;
    }

    # the example: 50,000 buckets

    my ($keys, $mb) = $section{Memory} =~ /holds ([\d,]+) buckets, about (\d+) MB/;

    cmp_ok abs($keys =~ s/,//gr * $in_all{token_bucket}[1] / 1e6 - $mb), '<', 1,
           'the example';
};


subtest 'Redis takes the settings that are listed' => sub {
    my $redis = RateLimit::Redis->start;
    my @rows = rows_below('Eviction, persistence, timeouts', 'setting of Redis');

    cmp_ok scalar @rows, '>=', 5, 'settings';

    for my $row (@rows) {
        my ($name) = code_in($row->[0]);
        my ($value) = code_in($row->[1]);

        is $redis->cmd('CONFIG', 'SET', $name, $value =~ s/^""$//r), 'OK',
           "$name $value" if defined $value;
        cmp_ok scalar @{ $redis->cmd('CONFIG', 'GET', $name) }, '==', 2, $name;
    }

    for ($section{Memory} =~ /`(lazyfree[\w-]+ yes)`/g) {
        is $redis->cmd('CONFIG', 'SET', split / /), 'OK', $_;
    }
};


# ---- rights

my ($acl) = map { $_->{command} } steps_of('Rights (ACL)');
my @rights = map { s/^'(.*)'$/$1/r } split / /, ($acl =~ /setuser (.*)/)[0];

subtest 'the user of the page can do all that is needed' => sub {
    my @redis = RateLimit::Redis->start_many(2);

    run_steps('Rights (ACL)', $_) for @redis;

    my %allowed = map { $_ => 1 } $acl =~ /\+(\w+)(?=\s|$)/g;
    my %called = map { lc $_ => 1 } map { /\bp?call\('(\w+)'/g } values %lua;

    delete @allowed{qw(eval evalsha)};
    is_deeply [sort keys %allowed], [sort keys %called],
              'the commands of the scripts';

    my $nginx = RateLimit::Nginx->start(
        conf => "$patient ratelimit_shards @{[map { $_->addr } @redis]};" . <<'EOC',
ratelimit_redis_user     nginx;
ratelimit_redis_password secret;
EOC
        server => 'location /one { ratelimit_rate 1r/s; }');

    my $status = sub { $nginx->get('/one')->{status} };

    is $status->(), 404, 'passed';
    $_->cmd('SCRIPT', 'FLUSH') for @redis;
    ok wait_until(sub { $status->() == 404 }, 10), 'with the text of a script';
    ok !$nginx->log_like(qr/NOPERM|redis refused|answered/), 'nothing is forbidden';

    # an open breaker is closed by a probe, with these rights

    $_->cmd('CONFIG', 'SET', 'maxmemory', 1) for @redis;
    ok wait_until(sub {
        $status->();
        $nginx->log_like(qr/ is unavailable \(oom\)/);
    }), 'no memory';
    $_->cmd('CONFIG', 'SET', 'maxmemory', 0) for @redis;
    ok $nginx->wait_log(qr/ is available again/, 15), 'probed';
    ok !$nginx->log_like(qr/NOPERM/), 'which is allowed';
    is_deeply $redis[0]->cmd('KEYS', '*probe*'), [], 'and leaves nothing behind';

    $nginx->finish;
};


# Without one of the commands that it names, some script fails for it.

subtest 'the user of the page has no right that is not needed' => sub {
    my @commands = map { /^\+(\w+)$/ ? $1 : () } @rights;
    my @redis = RateLimit::Redis->start_many(2);

    $_->cmd('ACL', 'SETUSER', @rights) for @redis;

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "$patient ratelimit_shards @{[map { $_->addr } @redis]};"
                   . <<'EOC', server => <<'EOC');
ratelimit_redis_user     nginx;
ratelimit_redis_password secret;
ratelimit_deny_cache     off;
ratelimit_breaker        failures=100 window=100ms;

ratelimit_limit bucket key=$arg_b capacity=2 rate=2r/m;
ratelimit_limit gcra   key=$arg_g capacity=9 rate=600r/m algorithm=gcra;
ratelimit_limit window key=$arg_w capacity=3 window=1h
                       algorithm=sliding_window_log;
EOC
location /bucket { ratelimit bucket; empty_gif; }
location /gcra   { ratelimit gcra; empty_gif; }
location /two    { ratelimit bucket gcra window; empty_gif; }
EOC

    my $get = sub { $nginx->get($_[0])->{status} };

    my ($here, $there);

    for my $k (map { "k$_" } 1 .. 100) {
        $get->("/bucket?b=$k");
        $redis[0]->cmd('EXISTS', "ratelimit:bucket:{$k}") ? $here = $k
                                                          : ($there = $k);
        last if defined $here && defined $there;
    }

    my $try = sub {
        for (@redis) {
            $_->cmd('FLUSHALL');
            $_->cmd('ACL', 'LOG', 'RESET');
        }

        # a bucket, gcra; what another algorithm has left

        $get->("/bucket?b=$here") for 1 .. 3;
        $get->("/gcra?g=$here") for 1 .. 3;
        $redis[1]->cmd('ZADD', "ratelimit:bucket:{$there}", 1, 1);
        $redis[1]->cmd('HSET', "ratelimit:gcra:{$there}", 'tokens', 1);
        $get->("/bucket?b=$there");
        $get->("/gcra?g=$there");

        # the bucket denies, and the window gives back

        $redis[1]->cmd('ZADD', "ratelimit:window:{$there}", 1,
                       sprintf '%016d:1:%016d:x', 1, 1);
        $get->("/two?b=$here&w=$there");

        # the other way round

        $redis[0]->cmd('DEL', "ratelimit:bucket:{$here}");
        $get->("/two?w=$there") for 1 .. 3;
        $get->("/two?b=$here&g=$here&w=$there");

        # refunds are sent by then

        $get->("/two?b=$_") for $here, $there;

        return split / /, denied(@redis);
    };

    is_deeply [$try->()], [], 'with all of them nothing is forbidden';

    for my $command (grep { !/^eval(?:sha)?$/ } @commands) {
        $_->cmd('ACL', 'SETUSER', 'nginx', "-$command") for @redis;
        is_deeply [$try->()], [$command], "$command is needed";
        $_->cmd('ACL', 'SETUSER', 'nginx', "+$command") for @redis;
    }

    is_deeply [$try->()], [], 'all is well again';

    $nginx->finish;
};


subtest 'numbers are those of the sources' => sub {
    my $text = $page =~ s/\s+/ /gr;

    for ([KEY_MAX => 'longer than %d bytes'],
         [RESOLVE_MIN => 'pauses of %d s', 1000],
         [RESOLVE_PAUSE => 'to %d s', 1000], [DENY_CACHE => 'by default %d second', 1000])
    {
        my ($name, $format, $scale) = @$_;
        my $words = $format =~ s{%d}{define($name) / ($scale || 1)}er;

        ok index($text, $words) >= 0, $words;
    }

    ok index($text, "default of $1 ms") >= 0, 'the timeout'
        if $directive{ratelimit_redis_timeout}{default} =~ /^(\d+)ms$/;
    is $directive{ratelimit_prefix}{default}, 'ratelimit', 'the prefix';
};


subtest 'the scripts can be printed' => sub {
    my ($command) = @{ $block{sh} };
    my ($name) = $command =~ m{lua/(\w+\.lua)};

    is `$command`, $lua{$name}, $command =~ s/\s+$//r;
};


done_testing();
