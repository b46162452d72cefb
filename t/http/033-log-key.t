# How a key is shown in the log: as it is, where it is a client's address or
# text of the configuration, and as a digest where it may be a secret; or as
# "ratelimit_log_key" says.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);

use RateLimit::Nginx;
use RateLimit::Util qw(slurp);

my $LONG = 'x' x 300;

# what "key:" shows in the lines of a place, and for which key

my @CASES = (
    ['default'     => '', '', '127.0.0.1'],
    ['remote'      => 'ratelimit_key $remote_addr;', '', '127.0.0.1'],
    ['binary'      => 'ratelimit_key $binary_remote_addr;', '', '127.0.0.1'],
    ['net'         => 'ratelimit_key "${ratelimit_client_net}/x";', '',
     '127.0.0.1/x'],
    ['case'        => 'ratelimit_key $Remote_Addr;', '', '127.0.0.1'],
    ['constant'    => 'ratelimit_key everybody;', '', 'everybody'],
    ['header'      => 'ratelimit_key $http_x_key;', 'secret',
     digest_of('secret')],
    ['mixed'       => 'ratelimit_key $remote_addr$http_x_key;', 'secret',
     digest_of('127.0.0.1secret')],
    ['longer'      => 'ratelimit_key ${remote_addr}_$remote_addr_x;',
     '', digest_of('127.0.0.1_mapped')],
    ['long'        => 'ratelimit_key $http_x_key;', $LONG, digest_of($LONG)],
    ['alike'       => 'ratelimit_key $http_x_key;', 'sha1:abc',
     digest_of('sha1:abc')],
    ['plain'       => 'ratelimit_key $http_x_key; ratelimit_log_key plain;',
     'secret', 'secret'],
    ['hash'        => 'ratelimit_log_key hash;', '', digest_of('127.0.0.1')],
    ['hash_binary' => 'ratelimit_key $binary_remote_addr;
                       ratelimit_log_key hash;', '',
     digest_of("\x7f\x00\x00\x01")],
    ['off'         => 'ratelimit_log_key off;', '', undef],
    ['off_header'  => 'ratelimit_key $http_x_key; ratelimit_log_key off;',
     'secret', undef],
    ['inner'       => '', 'secret', 'secret',
     'ratelimit_key $http_x_key; ratelimit_rate 1r/d; ratelimit_log_key plain;'],
);


sub digest_of {
    return 'sha1:' . substr sha1_hex($_[0]), 0, 16;
}


my $nginx = RateLimit::Nginx->start(
    conf   => 'map $uri $remote_addr_x { default mapped; }',
    server => join '', map {
        my ($name, $conf, undef, undef, $around) = @$_;

        my $location = $around
            ? "location /$name/ { $around location /$name/in { empty_gif; } }"
            : "location /$name/ { $conf ratelimit_rate 1r/d; empty_gif; }";

        "$location\n"
    } @CASES);

for (@CASES) {
    my ($name, undef, $key, $shown) = @$_;

    my @headers = length $key ? ('X-Key' => $key) : ();
    my @status = map {
        $nginx->get("/$name/in", @headers)->{status}
    } 1, 2;

    is_deeply \@status, [200, 429], "$name: one passes, one is rejected";

    my @lines = grep { m{limit: "localhost/$name/"} }
                     split /\n/, $nginx->error_log;

    is scalar @lines, 2, 'a line each';

    my $part = defined $shown ? qq{, key: "$shown"} : '';

    is scalar(grep { m{limit: "localhost/$name/"\Q$part\E, cost: } } @lines), 2,
       'the key is ' . ($shown // 'not shown');
    unlike "@lines", qr/secret/, 'no secret'
        if $key eq 'secret' && ($shown // '') ne 'secret';
}


# as the README says

my $digest = `printf %s secret | sha1sum | cut -c1-16`;

chomp $digest;
is "sha1:$digest", digest_of('secret'), 'what the shell makes of it';

$nginx->finish;

done_testing();
