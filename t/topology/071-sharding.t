# Where a bucket lives: on which shard, and under which name.
#
# The two rules are written down here a second time, in Perl, as another client
# would have to follow them; nginx has to agree with that about every key.

use strict;
use warnings;
no warnings 'portable';        # numbers of 64 bits

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp);

my @redis = RateLimit::Redis->start_many(4);

my $COMMON = 'ratelimit_redis_timeout 20s; ratelimit_redis_connect_timeout 20s;
              ratelimit_on_error closed; ratelimit_capacity 5;
              ratelimit_rate 1r/d; ratelimit_log_level info;';


# ---- the rules

sub fnv1a {
    my ($text) = @_;

    use integer;                        # wraps at 64 bits

    my $h = 0xcbf29ce484222325;

    for my $byte (unpack 'C*', $text) {
        $h = ($h ^ $byte) * 0x100000001b3;
    }

    return $h;
}


sub fnv1a_32 {
    my ($text) = @_;

    my $h = 0x811c9dc5;

    for my $byte (unpack 'C*', $text) {
        $h = ($h ^ $byte) * 0x01000193 % 2 ** 32;
    }

    return $h;
}


sub mix {
    my ($h) = @_;

    use integer;

    my $shift = sub { ($_[0] >> 33) & 0x7fffffff };

    $h ^= $shift->($h);
    $h *= 0xff51afd7ed558ccd;
    $h ^= $shift->($h);
    $h *= 0xc4ceb9fe1a85ec53;
    $h ^= $shift->($h);

    return $h;
}


sub unsigned { return $_[0] & 0xffffffffffffffff }


sub consistent {
    my ($key, @names) = @_;

    my $h = fnv1a($key);
    my ($best, $highest);

    for my $i (0 .. $#names) {
        my $score = unsigned(mix(unsigned($h) ^ unsigned(fnv1a($names[$i]))));

        if (!defined $best || $score > $highest) {
            ($best, $highest) = ($i, $score);
        }
    }

    return $best;
}


sub modulo {
    my ($key, @names) = @_;

    return fnv1a_32($key) % @names;
}


# ---- looking

sub flush { $_->cmd('FLUSHALL') for @redis }


# Every key of every server: { key => ["server/database", ...] }.

sub all_keys {
    my %keys;

    for my $i (0 .. $#redis) {
        for my $db (0 .. 3) {
            $redis[$i]->cmd('SELECT', $db);
            push @{ $keys{$_} }, "$i/$db" for @{ $redis[$i]->cmd('KEYS', '*') };
        }

        $redis[$i]->cmd('SELECT', 0);
    }

    return \%keys;
}


# An nginx whose one location, /t, has its key from the argument k.

sub start {
    my ($shards, %opt) = @_;

    return RateLimit::Nginx->start(
        workers => 2, log => 'notice',
        conf    => "ratelimit_shards $shards; $COMMON " . ($opt{conf} // ''),
        server  => 'location /t { ratelimit_key $arg_k;
                    add_header X-Shard $ratelimit_shard; empty_gif; }');
}


# Asks for many keys, and compares: each on the server that the rule says, on
# no other, and the request was told so.

sub agrees {
    my ($name, $nginx, $rule, @shards) = @_;

    flush();

    my @keys = ((map { "10.1.$_.7" } 1 .. 40), (map { "user-$_" } 1 .. 40),
                map { sprintf '%08x-77aa', $_ * 2_654_435_761 % 2 ** 32 }
                    1 .. 40);
    my %expected;
    my $told = 0;

    for my $key (@keys) {
        my $shard = $shards[$rule->($key, map { $_->{name} } @shards)];
        my $r = $nginx->get("/t?k=$key");

        $told++ if ($r->{headers}{'x-shard'} // '')
                   eq ($shard->{label} // $shard->{name});
        $expected{"ratelimit:localhost/t:{$key}"} = [$shard->{place}];
    }

    is_deeply all_keys(), \%expected, "$name: every key is where it belongs";
    is $told, scalar @keys, "$name: and \$ratelimit_shard says where";

    my %used = map { $_->[0] => 1 } values %expected;
    is scalar keys %used, scalar @shards, "$name: every shard has some";
}


# As nginx and a test see the n-th server by TCP.

sub tcp {
    my ($i) = @_;

    return { write => $redis[$i]->addr, name => $redis[$i]->addr,
             place => "$i/0" };
}


sub list { return join ' ', map { $_->{write} } @_ }


# ---- tests

subtest 'the rules of this test are the published ones' => sub {
    my %vectors = (
        ''          => 'cbf29ce484222325',
        'a'         => 'af63dc4c8601ec8c',
        'foobar'    => '85944171f73967e8',
        '127.0.0.1' => 'aabafe7104d914be',
        "\xff\0\0\1" => '6961196491cc682d',
    );

    is sprintf('%016x', unsigned(fnv1a($_))), $vectors{$_}, 'FNV-1a'
        for sort keys %vectors;

    my %vectors32 = ('' => '811c9dc5', 'a' => 'e40c292c',
                     'foobar' => 'bf9cf968');

    is sprintf('%08x', fnv1a_32($_)), $vectors32{$_}, 'FNV-1a, 32 bits'
        for sort keys %vectors32;

    # the finalizer of MurmurHash3
    is sprintf('%016x', unsigned(mix(1))), 'b456bcfc34c2cb2c', 'mix of 1';
    is unsigned(mix(0)), 0, 'mix of 0';
};


subtest 'hash=consistent is the default' => sub {
    my @shards = map { tcp($_) } 0 .. 2;

    my $nginx = start(list(@shards));
    agrees('no hash=', $nginx, \&consistent, @shards);

    $nginx = start(list(@shards) . ' hash=consistent');
    agrees('hash=consistent', $nginx, \&consistent, @shards);

    # among the addresses, too

    $nginx = start("hash=consistent " . list(@shards));
    agrees('hash= in front', $nginx, \&consistent, @shards);

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'hash=modulo counts the list' => sub {
    my @shards = map { tcp($_) } 0 .. 2;

    my $nginx = start(list(@shards) . ' hash=modulo');
    agrees('three', $nginx, \&modulo, @shards);

    $nginx = start(list(reverse @shards) . ' hash=modulo');
    agrees('in another order', $nginx, \&modulo, reverse @shards);

    $nginx = start(list(@shards, tcp(3)) . ' hash=modulo');
    agrees('four', $nginx, \&modulo, @shards, tcp(3));
};


# What other programs rely on.

subtest 'hash=modulo by the table of docs/redis.md' => sub {
    my @shards = map { tcp($_) } 0 .. 2;
    my $nginx = start(list(@shards) . ' hash=modulo');
    my @rows = slurp('docs/redis.md') =~ /^\| `(.+)` \| `([0-9a-f]{8})` \| (\d) \|$/mg;
    my %used;

    cmp_ok scalar @rows, '>=', 3 * 5, 'the table has rows';

    while (my ($key, $hash, $shard) = splice @rows, 0, 3) {
        is sprintf('%08x', fnv1a_32($key)), $hash, "$key: the hash";
        is $nginx->get("/t?k=$key")
               ->{headers}{'x-shard'}, $shards[$shard]{name}, 'the shard';
        $used{$shard} = 1;
    }

    is join(' ', sort keys %used), '0 1 2', 'each shard is in it';
};


subtest 'the order of the list does not matter to consistent hashing' => sub {
    my @shards = map { tcp($_) } 0 .. 3;
    my @nginx = (start(list(@shards)),
                 start(list(@shards[2, 0, 3, 1])));

    agrees('another order', $nginx[1], \&consistent, @shards);
    flush();

    my $wrong = 0;

    for my $n (1 .. 50) {
        for my $i (0, 1) {
            my $r = RateLimit::Load::get($nginx[$i]->port, "/t?k=$n");
            $wrong++ if $r->{headers}{'x-ratelimit-remaining'} != 4 - $i;
        }
    }

    is $wrong, 0, 'one bucket for both';
};


subtest 'a fourth shard takes its keys and moves no other' => sub {
    my @shards = map { tcp($_) } 0 .. 3;
    my @nginx = (start(list(@shards[0 .. 2])),
                 start(list(@shards)));
    my ($moved, $wrong) = (0, 0);

    flush();

    for my $n (1 .. 100) {
        my ($before, $after)
            = map { $_->get("/t?k=$n")->{headers} }
              @nginx;

        if ($before->{'x-shard'} eq $after->{'x-shard'}) {
            $wrong++ if $after->{'x-ratelimit-remaining'} != 3;

        } else {
            $moved++;
            $wrong++ if $after->{'x-shard'} ne $shards[3]{name}
                        || $after->{'x-ratelimit-remaining'} != 4;
        }
    }

    is $wrong, 0, 'to the new one alone';
    cmp_ok $moved, '>', 5, 'some moved';
    cmp_ok $moved, '<', 60, 'most did not';
};


subtest 'unix sockets and TCP work side by side' => sub {
    my @shards = (tcp(0), map { my $socket = 'unix:' . $redis[$_]->socket;
                                { write => $socket, name => $socket,
                                  place => "$_/0" } } 1, 2);

    agrees('consistent', start(list(@shards)), \&consistent, @shards);
    agrees('modulo', start(list(@shards) . ' hash=modulo'), \&modulo,
           @shards);
};


subtest 'redis:// names a database, or nothing more than an address' => sub {
    my $addr = $redis[0]->addr;

    # two databases of one server, and addresses in other clothes

    my @shards = (
        { write => "redis://$addr/2", name => "$addr/2", place => '0/2' },
        { write => "REDIS://$addr/1", name => "$addr/1", place => '0/1' },
        { write => 'redis://' . $redis[1]->addr, name => $redis[1]->addr,
          place => '1/0' },
        { write => 'redis://' . $redis[2]->addr . '/', name => $redis[2]->addr,
          place => '2/0' },
        { write => 'redis://' . $redis[3]->addr . '/0', name => $redis[3]->addr,
          place => '3/0' },
    );

    agrees('databases', start(list(@shards)), \&consistent, @shards);

    # the directive holds for those that say nothing

    @shards = (
        { write => $addr, name => $addr, label => "$addr/3",
          place => '0/3' },
        { write => 'redis://' . $redis[1]->addr . '/1',
          name => $redis[1]->addr . '/1', place => '1/1' },
        { write => 'redis://' . $redis[2]->addr . '/0',
          name => $redis[2]->addr, place => '2/0' },
    );

    my $nginx = start(list(@shards),
                            conf => 'ratelimit_redis_database 3;');
    agrees('ratelimit_redis_database', $nginx, \&consistent, @shards);
    $nginx->stop;
    $nginx->no_alerts;
};


# Keys as they come: from a header, decoded from the path, in binary.

subtest 'any byte may be in a key' => sub {
    my @shards = map { tcp($_) } 0 .. 2;
    my @names = map { $_->{name} } @shards;

    my $nginx = RateLimit::Nginx->start(
        workers => 1, log => 'info',
        conf    => 'ratelimit_shards ' . list(@shards) . "; $COMMON",
        server  => 'location /h { ratelimit_key $http_x_key; empty_gif; }
                    location /b { ratelimit_key $binary_remote_addr;
                                  empty_gif; }
                    location /a { ratelimit_rate 1r/d; empty_gif; }
                    location /u/ { ratelimit_key $uri; empty_gif; }');

    my $check = sub {
        my ($name, $location, $key, $what, @headers) = @_;

        flush();

        my $r = $nginx->get($location, @headers);
        my $place = consistent($key, @names) . '/0';

        is $r->{status}, 200, "$what: passed";
        is_deeply all_keys(),
                  { "ratelimit:localhost/$name:{$key}" => [$place] },
                  "$what: its bucket";
    };

    $check->('b', '/b', "\x7f\0\0\1", '$binary_remote_addr');
    $check->('a', '/a', '127.0.0.1', 'no key: $remote_addr');

    for my $key ('{', '}', '{}', 'a}b{c', '"quoted"', "it's", '\\n', '%s%n',
                 "\xc3\xa9\xff\x80", 'a b', ':', '*', '[a]?')
    {
        $check->('h', '/h', $key, "\"$key\"", 'X-Key' => $key);
    }

    $check->('u/', '/u/%0d%0a%22%09%01%7f', "/u/\r\n\"\t\x01\x7f",
             'control characters');

    # long ones

    for my $length (255, 256) {
        $check->('h', '/h', 'k' x $length, "$length bytes",
                 'X-Key' => 'k' x $length);
    }

    for my $length (257, 300, 4000) {
        my $key = 'k' x $length;
        $check->('h', '/h', 'sha1:' . sha1_hex($key), "$length bytes: a digest",
                 'X-Key' => $key);
    }

    # two that differ in their last byte are two

    flush();

    for my $last ('a', 'b') {
        $nginx->get('/h', 'X-Key' => 'k' x 500 . $last);
    }

    is scalar keys %{ all_keys() }, 2, 'long keys keep apart';

    flush();
    is $nginx->get('/h')->{status}, 200,
       'an empty key is not limited';
    is_deeply all_keys(), {}, 'and leaves nothing';

    unlike $nginx->error_log, qr/[^\x20-\x7e\n]/, 'nothing raw in the log';
    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'each place that sets a limit has a bucket of its own name' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 1, log => 'notice', conf => <<"EOC");
    ratelimit_shards @{[ $redis[0]->addr ]};
    $COMMON
    ratelimit_key k;

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name one.example;

        location /a { ratelimit_rate 2r/d; empty_gif; }
        location = /a { ratelimit_rate 2r/d; empty_gif; }
        location ~ ^/r { ratelimit_capacity 4; empty_gif; }
        location ~* ^/r { ratelimit_capacity 4; empty_gif; }
        location /b { ratelimit_key k; empty_gif;
            location /b/c { ratelimit_key k; empty_gif; }
            location /b/d { empty_gif; }
        }
        location /named { ratelimit_rate 2r/d; error_page 404 = \@n; }
        location \@n { ratelimit_rate 3r/d; empty_gif; }
        location /p { ratelimit_rate 2r/d; ratelimit_prefix api.v1;
                      empty_gif; }
        location /http { empty_gif; }
    }

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name two.example www.two.example;
        ratelimit_rate 2r/d;

        location /a { ratelimit_rate 2r/d; empty_gif; }
        location /x { empty_gif; }
        location /y { ratelimit_prefix other; empty_gif; }
    }

    # the same name once more, elsewhere

    server {
        listen 127.0.0.1:%%PORT2%%;
        server_name two.example;

        location /a { ratelimit_rate 2r/d; empty_gif; }
    }

    server {
        listen 127.0.0.1:%%PORT3%%;
        server_name two.example;

        location /a { ratelimit_rate 2r/d; empty_gif; }
    }

    server {
        listen 127.0.0.1:%%PORT2%%;
        server_name "";

        location / { ratelimit_rate 2r/d; empty_gif; }
    }
EOC

    my @cases = (
        [1, 'one.example', '/a/x', 'ratelimit:one.example/a:{k}'],
        [1, 'one.example', '/a', 'ratelimit:one.example=/a:{k}'],
        [1, 'one.example', '/r', 'ratelimit:one.example~^/r:{k}'],
        [1, 'one.example', '/R', 'ratelimit:one.example~^/r#2:{k}'],
        [1, 'one.example', '/b', 'ratelimit:one.example/b:{k}'],
        [1, 'one.example', '/b/c', 'ratelimit:one.example/b/c:{k}'],
        [1, 'one.example', '/p', 'api.v1:one.example/p:{k}'],
        [1, 'one.example', '/http', 'ratelimit:http:{k}'],
        [1, 'two.example', '/a', 'ratelimit:two.example/a:{k}'],
        [1, 'two.example', '/x', 'ratelimit:two.example:{k}'],
        [1, 'two.example', '/y', 'other:two.example:{k}'],
        [2, 'two.example', '/a', 'ratelimit:two.example/a#2:{k}'],
        [3, 'two.example', '/a', 'ratelimit:two.example/a#3:{k}'],
        [2, '', '/', 'ratelimit:_/:{k}'],

        # the limit of the place where the request came in
        [1, 'one.example', '/named', 'ratelimit:one.example/named:{k}'],
    );

    my %buckets;

    flush();

    for my $case (@cases) {
        my ($port, $host, $path, $key) = @$case;

        for (1, 2) {
            my $c = RateLimit::Load::connection($nginx->port($port));
            my $line = length $host ? "Host: $host\r\n" : '';
            my $version = length $host ? '1.1' : '1.0';

            $c->write("GET $path HTTP/$version\r\n${line}\r\n");
            $c->response;
        }

        $buckets{$key} = 1;
    }

    my $keys = all_keys();

    is_deeply [sort keys %$keys], [sort keys %buckets], 'the names';

    for my $key (sort keys %buckets) {
        my $tokens = $redis[0]->tokens($key) // 'none';
        my $capacity = $key =~ /~/ ? 4 : 5;

        like $tokens, qr/^@{[ $capacity - 2 ]}(?:\.000|$)/, "$key: two were taken";
    }

    # a location without a limit of its own shares its parent's

    $nginx->get('/b/d', Host => 'one.example');
    like $redis[0]->tokens('ratelimit:one.example/b:{k}'),
         qr/^2(?:\.000|$)/, 'an inherited limit is the same bucket';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'two locations, one client: two buckets on one shard' => sub {
    my $nginx = RateLimit::Nginx->start(
        workers => 2, log => 'notice', conf => <<"EOC");
    ratelimit_shards @{[ list(map { tcp($_) } 0 .. 2) ]};
    $COMMON

    server {
        listen 127.0.0.1:%%PORT%%;
        server_name localhost;

        location /a { ratelimit_capacity 3; empty_gif; }
        location /b { ratelimit_capacity 4; empty_gif; }
    }
EOC

    flush();

    my %passed;

    for my $path ('/a', '/b') {
        my $load = RateLimit::Load::run(port => $nginx->port, path => $path,
                                        requests => 20, connections => 10,
                                        timeout => 60);
        $passed{$path} = $load->count(200);
    }

    is_deeply \%passed, { '/a' => 3, '/b' => 4 }, 'each its own capacity';

    # one client, one shard, whatever the limit

    my %places = map { $_->[0] => 1 } values %{ all_keys() };
    is scalar keys %places, 1, 'both on the shard of the client';
};


done_testing();
