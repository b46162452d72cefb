# $ratelimit_client_net: the address of a client as a limit should see it.  IPv4
# as it is, IPv6 cut to the network that one client has for itself.
#
# Clients of any address come by the realip module.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Socket::IP ();
use Socket qw(AF_INET6 inet_pton);

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;

my $redis = RateLimit::Redis->start;

# a machine may have no IPv6 of its own

my $ipv6 = IO::Socket::IP->new(LocalHost => '::1', Listen => 1);


sub start {
    my (%opt) = @_;

    my $addr = $redis->addr;

    return RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
            ratelimit_shards $addr;
            ratelimit_redis_timeout 20s;
            ratelimit_redis_connect_timeout 20s;

            set_real_ip_from 127.0.0.1;
            real_ip_header X-Real-IP;

            add_header X-Net \$ratelimit_client_net always;
            $opt{http}
EOC
        server  => $opt{server},
    );
}


sub net_of {
    my ($target, $path, $address) = @_;

    my $r = RateLimit::Load::get($target, $path,
                                 defined $address ? ('X-Real-IP' => $address)
                                                  : ());

    return $r->{headers}{'x-net'};
}


# The first bits of an address, as bytes.

sub cut {
    my ($address, $bits) = @_;

    my $text = unpack 'B128', inet_pton(AF_INET6, $address);

    return pack 'B128', substr($text, 0, $bits) . '0' x (128 - $bits);
}


my @PREFIXES = (1, 8, 48, 56, 63, 64, 65, 127, 128);

my $nginx = start(
    http   => 'server { listen unix:%%DIR%%/sock; location / { empty_gif; }'
              . 'location /real { set_real_ip_from unix:; empty_gif; } }'
              . ($ipv6 ? 'server { listen [::1]:%%PORT2%%;
                              location / { empty_gif; } }
                          server { listen [::]:%%PORT3%% ipv6only=off;
                              location / { set_real_ip_from 10.0.0.0/8;
                                           empty_gif; } }'
                       : ''),
    server => join('', map { "location /$_/ { ratelimit_ipv6_prefix $_; "
                             . "empty_gif; }\n" } 1 .. 128)
              . 'location / { empty_gif; }',
);
my $port = $nginx->port;


subtest 'an IPv6 client is its network' => sub {
    my $address = '2001:db8:1234:5678:9abc:def0:1234:5679';
    my %expected = (
        1   => '::',
        8   => '2000::',
        48  => '2001:db8:1234::',
        56  => '2001:db8:1234:5600::',
        63  => '2001:db8:1234:5678::',
        64  => '2001:db8:1234:5678::',
        65  => '2001:db8:1234:5678:8000::',
        127 => '2001:db8:1234:5678:9abc:def0:1234:5678',
        128 => '2001:db8:1234:5678:9abc:def0:1234:5679',
    );

    is net_of($port, "/$_/", $address), $expected{$_}, "/$_" for @PREFIXES;
    is net_of($port, '/', $address), $expected{64}, '/64 unless said';
};


subtest 'for every length, the same bits and no others' => sub {
    srand 115;

    my @addresses = ('ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff',
                     'fe80::1', '2001:db8::',
                     map { join ':', map { sprintf '%x', int rand 65536 }
                                     1 .. 8 } 1 .. 3);
    my @wrong;

    my $load = RateLimit::Load::run(
        port => $port, connections => 4, requests => 128 * @addresses,
        keep => 1, timeout => 60,
        path => sub {
            my ($n) = @_;

            return { path    => '/' . (1 + $n % 128) . '/',
                     headers => { 'X-Real-IP' => $addresses[$n / 128] } };
        });

    for my $r ($load->responses) {
        my ($bits, $address) = (1 + $r->{n} % 128, $addresses[$r->{n} / 128]);
        my $bytes = inet_pton(AF_INET6, $r->{headers}{'x-net'} // '') // '';

        push @wrong, "$address/$bits is no $r->{headers}{'x-net'}"
            unless $bytes eq cut($address, $bits);
    }

    is scalar $load->responses, 128 * @addresses, 'all were answered';
    is_deeply \@wrong, [], 'with the network';
};


subtest 'however a client spells it, it is one network' => sub {
    my $net = '2001:db8:0:1::';

    is net_of($port, '/64/', $_), $net, $_
        for '2001:db8:0:1::', '2001:DB8:0:1::1', '2001:db8:0000:0001:0:0:0:1',
            '2001:0db8::1:ffff:ffff:ffff:ffff', '[2001:db8:0:1::5]:443',
            '2001:db8:0:1::192.0.2.1';
};


subtest 'IPv4 as it is, whatever the prefix' => sub {
    is net_of($port, "/$_/", '203.0.113.77'), '203.0.113.77', "/$_"
        for @PREFIXES;
    is net_of($port, '/', '203.0.113.77:1234'), '203.0.113.77',
       'without the port';
    is net_of($port, '/'), '127.0.0.1', 'not by realip';
};


subtest 'IPv4 in IPv6 is IPv4' => sub {
    is net_of($port, "/$_/", '::ffff:203.0.113.77'), '203.0.113.77', "/$_"
        for @PREFIXES;
    is net_of($port, '/', '::ffff:cb00:714d'), '203.0.113.77', 'in hex';
    is net_of($port, '/64/', '::203.0.113.77'), '::',
       'but not what only looks like it';
    is net_of($port, '/', '::1'), '::', 'nor ::1';
};


subtest 'a client of a unix socket has no network' => sub {
    my $path = $nginx->dir . '/sock';

    is net_of($path, '/'), 'unix:', 'has no network';
    is net_of($path, '/', '2001:db8::1'), 'unix:', 'nor can it say so';
    is net_of($path, '/real', '2001:db8:1:2:3::4'), '2001:db8:1:2::',
       'but behind a proxy it can';
};


SKIP: {
    skip 'this machine has no IPv6', 2 unless $ipv6;

    # a socket of both families sees an IPv4 client as one of IPv6

    is net_of($nginx->port(3), '/'), '127.0.0.1',
       'an IPv4 client of an IPv6 socket';

    my $socket = IO::Socket::IP->new(PeerHost => '::1',
                                     PeerPort => $nginx->port(2))
        or die "::1: $!\n";

    print $socket "GET / HTTP/1.0\r\n\r\n";
    my $text = join '', <$socket>;

    like $text, qr/^X-Net: ::\r$/m, 'an IPv6 client';
}

$nginx->finish;


for my $key ('ratelimit_key $ratelimit_client_net;', '') {

subtest "one network is one client, two are two: $key" => sub {
    $redis->cmd('FLUSHALL');

    my $limited = start(http => '', server => $key . <<'EOC');
        ratelimit_rate     1r/d;
        ratelimit_capacity 3;
        location / { empty_gif; }
        location /48 { ratelimit_ipv6_prefix 48; empty_gif; }
EOC

    my $left = sub {
        my ($path, $address) = @_;

        my $r = $limited->get($path,
                                     'X-Real-IP' => $address);

        return $r->{status} == 200 ? $r->{headers}{'x-ratelimit-remaining'}
                                   : $r->{status};
    };

    is $left->('/', '2001:db8:0:1::1'), 2, 'one address';
    is $left->('/', '2001:db8:0:1:ffff::2'), 1, 'another of its /64';
    is $left->('/', '2001:db8:0:1:1:2:3:4'), 0, 'a third one';
    is $left->('/', '2001:db8:0:1::5'), 429, 'and no more';
    is $left->('/', '2001:db8:0:2::1'), 2, 'another /64';

    is $left->('/', '198.51.100.1'), 2, 'an IPv4 address';
    is $left->('/', '::ffff:198.51.100.1'), 1, 'the same in IPv6';
    is $left->('/', '198.51.100.2'), 2, 'its neighbour';

    is $left->('/48', '2001:db8:7:1::1'), 2, '/48: one /64';
    is $left->('/48', '2001:db8:7:2::1'), 1, '/48: another';
    is $left->('/48', '2001:db8:8:1::1'), 2, '/48: another /48';

    is_deeply [sort map { s/^ratelimit:localhost:\{(.*)\}$/$1/r }
                        @{ $redis->cmd('KEYS', '*') }],
              ['198.51.100.1', '198.51.100.2', '2001:db8:0:1::',
               '2001:db8:0:2::', '2001:db8:7::', '2001:db8:8::'], 'the keys';

    $limited->finish;
};

}


subtest 'it is the key of a named limit that has none' => sub {
    $redis->cmd('FLUSHALL');

    my $limited = start(
        http   => 'ratelimit_limit client rate=1r/d capacity=3;',
        server => 'ratelimit client; location / { empty_gif; }');

    my @status = map {
        $limited->get('/',
                             'X-Real-IP' => "2001:db8:0:1::$_")->{status}
    } 1 .. 8;

    is_deeply \@status, [(200) x 3, (429) x 5], 'eight addresses of one /64';
    is_deeply $redis->cmd('KEYS', '*'), ['ratelimit:client:{2001:db8:0:1::}'],
              'are one client';

    $limited->finish;
};


subtest 'the prefix is inherited, and each place has its own' => sub {
    my $nested = start(http => 'ratelimit_ipv6_prefix 32;', server => <<'EOC');
        set $early $ratelimit_client_net;
        location /http { empty_gif; }
        location /own {
            ratelimit_ipv6_prefix 48;
            location /own/same { empty_gif; }
            location /own/else { ratelimit_ipv6_prefix 128; empty_gif; }
            empty_gif;
        }
        location /redirect { ratelimit_ipv6_prefix 56;
                             try_files $ratelimit_client_net @other; }
        location @other { ratelimit_ipv6_prefix 64; empty_gif; }
EOC
    my $address = '2001:db8:1234:5678::9';

    # whoever has asked for it before

    is net_of($nested->port, '/http', $address), '2001:db8::', 'of http';
    is net_of($nested->port, '/own', $address), '2001:db8:1234::', 'its own';
    is net_of($nested->port, '/own/same', $address), '2001:db8:1234::',
       'inherited';
    is net_of($nested->port, '/own/else', $address), '2001:db8:1234:5678::9',
       'replaced';
    is net_of($nested->port, '/redirect', $address), '2001:db8:1234:5678::',
       'where it was redirected to';

    $nested->finish;
};


done_testing();
