# "ratelimit_console": the page and its files, with headers that let a browser
# load nothing else; where the page finds its APIs; what nginx -t says about a
# console that can't work.  What the page does is tested by 133-browser.t.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Util qw(slurp);

my %FILES = (
    ''            => ['index.html', 'text/html; charset=utf-8'],
    'console.css' => ['console.css', 'text/css; charset=utf-8'],
    'console.js'  => ['console.js', 'text/javascript; charset=utf-8'],
    'icon.svg'    => ['icon.svg', 'image/svg+xml; charset=utf-8'],
);

my %HEADERS = (
    'content-security-policy' =>
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        . "img-src 'self'; connect-src 'self'; base-uri 'none'; "
        . "form-action 'none'; frame-ancestors 'none'",
    'x-content-type-options'  => 'nosniff',
    'referrer-policy'         => 'no-referrer',
    'cache-control'           => 'no-store',
);

my $nginx = RateLimit::Nginx->start(server => <<'EOC');
    location /console/ {
        ratelimit_console;

        if ($arg_if) {
            set $x y;
        }
    }

    location /both/ {
        ratelimit_console api=/api/ b=/machines/b/ c-2.x=/machines/c/;
    }

    location /moved  { rewrite ^ /console/config.json last; }
    location /closed/ { ratelimit_console; deny all; }
    location /nested/ {
        location /nested/console/ { ratelimit_console; }
    }

    location "/rate limit/" { ratelimit_api; }
    location /ratelimit/    { ratelimit_api; }
EOC


sub config_ok {
    my ($path, $expected, $name) = @_;

    my $r = $nginx->get($path);

    is $r->{status}, 200, "$name: status";
    is $r->{headers}{'content-type'}, 'application/json; charset=utf-8', 'type';
    is_deeply JSON::PP::decode_json($r->{body} || '{}'), $expected, 'its text';
}


subtest 'the page and its files' => sub {
    for my $name (sort keys %FILES) {
        my ($file, $type) = @{ $FILES{$name} };
        my $r = $nginx->get("/console/$name");
        my $text = slurp("console/$file");

        is $r->{status}, 200, $file;
        is $r->{headers}{'content-type'}, $type, 'type';
        is $r->{headers}{'content-length'}, length $text, 'length';
        ok $r->{body} eq $text, 'its text';
        is $r->{headers}{$_}, $HEADERS{$_}, $_ for sort keys %HEADERS;

        $r = RateLimit::Load::request($nginx->port, 'HEAD', "/console/$name");
        is $r->{status}, 200, 'HEAD';
        is $r->{headers}{'content-length'}, length $text, 'the same length';
    }
};


# what the policy forbids would only be seen in a browser

subtest 'the files need nothing from elsewhere and nothing inline' => sub {
    my $html = slurp('console/index.html');
    my $script = slurp('console/console.js');
    my $style = slurp('console/console.css');

    unlike $html, qr/<style|<script(?![^>]*src=)| style=| on\w+=/, 'no inline';
    is_deeply [grep { !exists $FILES{$_} && !/^#/ }
               $html =~ /(?:src|href)="([^"]*)"/g], [], 'only its own files';
    unlike "$script$style", qr{\bhttps?://(?!www\.w3\.org/2000/svg)}, 'no URLs';
    unlike $script, qr/innerHTML|outerHTML|insertAdjacent|document\.write
                       |\beval\(|new\ Function|setTimeout\('/x,
           'text never becomes markup or code';
    unlike $style, qr/\@import|url\(/, 'no files of the style';
};


subtest 'where the APIs are' => sub {
    config_ok('/console/config.json', { api => '/rate%20limit/', machines => [] },
              'the first API of the server');
    config_ok('/console/config.json?if=1',
              { api => '/rate%20limit/', machines => [] }, 'in an "if"');
    config_ok('/both/config.json',
              { api => '/api/',
                machines => [{ name => 'b', api => '/machines/b/' },
                             { name => 'c-2.x', api => '/machines/c/' }] },
              'as written');
    config_ok('/moved', { api => '/rate%20limit/', machines => [] },
              'behind an internal redirect');
    config_ok('/nested/console/config.json',
              { api => '/rate%20limit/', machines => [] }, 'a nested location');
};


subtest 'all else' => sub {
    for my $path ('x', 'index.html', 'config.jso', 'config.json/', 'CONSOLE.JS',
                  '..%2Fetc')
    {
        my $r = $nginx->get("/console/$path");

        is $r->{status}, 404, $path;
        is $r->{headers}{'content-security-policy'},
           $HEADERS{'content-security-policy'}, 'has the policy, too'
            if $path eq 'x';
    }

    for my $method (qw(POST PUT DELETE PATCH OPTIONS)) {
        my $r = RateLimit::Load::request($nginx->port, $method, '/console/', {},
                                         'x=y');
        is $r->{status}, 405, $method;
        is $r->{headers}{allow}, 'GET, HEAD', 'Allow';
    }

    my $r = $nginx->get('/console');
    is $r->{status}, 301, 'without the slash';
    like $r->{headers}{location}, qr{/console/$}, 'it is added';

    is $nginx->get('/closed/')->{status}, 403, 'access rules come first';
};

$nginx->finish;


subtest 'the API is that of the same server, wherever it stands' => sub {
    my $two = RateLimit::Nginx->start(
        conf   => 'server { listen 127.0.0.1:%%PORT2%%;
                            location /x/ { ratelimit_api; } }',
        server => 'location /console/ { ratelimit_console b=/b/; }
                   location /outer/ { location /outer/api/ { ratelimit_api; } }
                   location /later/ { ratelimit_api; }');

    my $config = JSON::PP::decode_json($two->get('/console/config.json')->{body});

    is $config->{api}, '/outer/api/', 'below the console';
    $two->finish;
};


subtest 'nginx -t says what is wrong' => sub {
    my $long = 'm' x 65;

    for (['location = /x', '', qr/directive needs a location that is a prefix/],
         ['location /x', '', qr/directive needs a location that is a prefix/],
         ['location ~ ^/x/', '', qr/directive needs a location that is a prefix/],
         ['location /x/', '', qr/without an API: add a location with "ratelimit_api" to this server, or name .* "api=\/ratelimit\/"/],
         ['location /x/', 'b', qr/invalid parameter "b" in .*"api=PATH" or "NAME=PATH"/],
         ['location /x/', 'api=', qr/invalid path in "api="/],
         ['location /x/', 'api=y/', qr/invalid path in "api=y\/"/],
         ['location /x/', 'api=/y', qr/invalid path in "api=\/y"/],
         ['location /x/', 'api=//host/', qr/invalid path/],
         ['location /x/', '"api=/\\\\host/"', qr/invalid path/],
         ['location /x/', 'api=https://host/', qr/invalid path/],
         ['location /x/', 'api=/$y/', qr/invalid path .* without variables/],
         ['location /x/', 'api=/y?z/', qr/invalid path .* arguments/],
         ['location /x/', '"api=/a b/"', qr/invalid path/],
         ['location /x/', q('api=/a"b/'), qr/invalid path/],
         ['location /x/', '=/y/', qr/invalid name in "=\/y\/"/],
         ['location /x/', '"a b=/y/"', qr/invalid name in .* it must have 1 to 64/],
         ['location /x/', "$long=/y/", qr/invalid name/],
         ['location /x/', 'api=/y/ api=/z/', qr/duplicate name "api"/],
         ['location /x/', 'b=/y/ b=/z/', qr/duplicate name "b"/])
    {
        my ($location, $words, $why) = @$_;
        my ($code, $output) = RateLimit::Nginx->test_config(
            server => "$location { ratelimit_console $words; }");

        isnt $code, 0, "$location, $words";
        like $output, $why, 'why';
        like $output, qr/\[emerg\].*ratelimit_console.* in .*nginx\.conf:\d+/,
             'where';
    }

    for (['ratelimit_console; ratelimit_console;', qr/is duplicate/],
         ['ratelimit_api; ratelimit_console;', qr/conflicts with another/],
         ['ratelimit_console; ratelimit_api;', qr/conflicts with another/])
    {
        my ($code, $output) = RateLimit::Nginx->test_config(
            server => "location /x/ { $_->[0] } location /y/ { ratelimit_api; }");

        isnt $code, 0, $_->[0];
        like $output, $_->[1], 'why';
    }

    my ($code, $output) = RateLimit::Nginx->test_config(
        conf   => 'server { location /y/ { ratelimit_api; } }',
        server => 'location /x/ { ratelimit_console; }');

    isnt $code, 0, 'the API of another server is another origin';
    like $output, qr/without an API/, 'why';

    ($code, $output) = RateLimit::Nginx->test_config(
        server => 'location /x/ { ratelimit_console api=/elsewhere/ b=/b/; }');
    is $code, 0, 'an API behind a proxy' or diag $output;
};


done_testing();
