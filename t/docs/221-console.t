# docs/console.md: its configurations serve the page, the sections and buttons it
# describes are those of the page, and its session comes out as shown.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Docs 'docs/console.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(slurp);

my @redis = map { RateLimit::Redis->start } 1 .. 2;
my $shards = join ' ', map { $_->addr } @redis;


subtest 'one machine' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf => $patient . http_of(block_of('Set up'))
                           =~ s/ratelimit_shards \K[^;]+/$shards/r);
    my $port = $nginx->port(2);
    my $get = sub { RateLimit::Load::get($port, @_) };

    is $get->('/console/')->{status}, 200, 'the page';
    is $get->('/console/config.json')->{body},
       qq({"api":"/ratelimit/","machines":[]}\n), 'it finds the API';

    my $index = JSON::PP::decode_json($get->('/ratelimit/')->{body});

    ok $index->{write}, 'which can write';

    RateLimit::Load::get($nginx->port, '/');

    my $limit = JSON::PP::decode_json(
                    $get->('/ratelimit/limits/client')->{body});

    is $limit->{top}, 100, 'top keys are on';
    is $limit->{requests}{passed}, 1, 'a request';

    RateLimit::Transcript::check($_->{command}, $_, 8082 => $port)
        for steps_of();

    $nginx->finish;
};


subtest 'several machines' => sub {
    my $other = RateLimit::Nginx->start(
        conf   => "$patient ratelimit_shards $shards;",
        server => 'location /ratelimit/ { ratelimit_api; }
                   location /x { ratelimit_rate 1r/s; }');
    my $address = '127.0.0.1:' . $other->port;
    my $nginx = RateLimit::Nginx->start(
        conf => http_of(block_of('Several machines'))
                =~ s/10\.1\.0\.\d:8082/$address/gr);
    my $config = JSON::PP::decode_json(
                     $nginx->get('/console/config.json')->{body});

    is_deeply [map { $_->{name} } @{ $config->{machines} }],
              ['edge-b', 'edge-c'], 'their names';

    for my $machine (@{ $config->{machines} }) {
        my $r = $nginx->get("$machine->{api}limits");

        is $r->{status}, 200, "$machine->{name} answers";
        like $r->{body}, qr{"name":"localhost/x"}, 'for itself';
    }

    $nginx->finish;
    $other->finish;
};


subtest 'the sections and buttons are those of the page' => sub {
    my $html = slurp('console/index.html');
    my $script = slurp('console/console.js');

    my @sections = grep { !/^(?:section|top of the page)$/ }
                   map { $_->[0] } table_of($section{'What it shows'});

    is_deeply [sort @sections],
              [sort grep { $_ ne 'Key' } $html =~ m{<h2[^>]*>([^<]*)</h2>}g],
              'sections';

    my @buttons = grep { $_ ne 'button' }
                  map { $_->[0] } table_of($section{'Look a key up'});

    is_deeply [sort @buttons], [sort $script =~ /this\.button\('([^']+)'/g],
              'buttons';

    # numbers

    my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

    like $script, qr/HISTORY = 5 \* MINUTE/, 'five minutes';
    like $text{'What it shows'}, qr/up to five minutes/, 'as it says';
    like $html, qr/<option value="1h" selected>/, 'an hour';
    like $text{'Look a key up'}, qr/lasts for an hour unless/, 'as it says';
};


subtest 'the pictures' => sub {
    my @files = $page =~ /!\[[^\]]+\]\((images\/[\w.-]+)\)/g;

    is_deeply [sort @files], [map { s{^docs/}{}r } glob 'docs/images/console*'],
              'those that there are';

    for my $file (@files) {
        like slurp("docs/$file"), qr/\A\x89PNG\r\n\x1a\n/, "$file is a PNG";
        cmp_ok -s "docs/$file", '<', 150_000, 'a small one';
    }
};


done_testing();
