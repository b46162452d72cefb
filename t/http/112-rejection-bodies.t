# The bodies of rejections: nginx's own page or the user's, JSON, and problem
# details; whole, of the right type and length, and with the connection in order
# afterwards.
#
# With the fake Redis everything is denied at once, so numbers are exact: a
# bucket of 100 that gets a token in three seconds and has none.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

use JSON::PP ();

use RateLimit::Util qw(find_program patience write_file);

our $redis = start_redis();

# a call for several requests has their number behind the nine words of others

our $full = start_fake(policy => {
    eval => sub { @{ $_[0] } > 9 ? "*2\r\n:0\r\n:-1\r\n" : ":-1\r\n" },
});

our $TYPE = 'https://iana.org/assignments/http-problem-types#quota-exceeded';
our $TITLE = 'Request cannot be satisfied as assigned quota has been exceeded';

our $JSON = '{"error":"rate_limit_exceeded","blocking_limit":"ip",'
            . '"limit":100,"remaining":0,"retry_after":3}';
our $PROBLEM = problem(429, 'ip');

our $NUMBERS = "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 0\n"
               . "X-RateLimit-Retry-After: 3\nRetry-After: 3\n";


sub problem {
    my ($status, @names) = @_;

    return qq({"type":"$TYPE","title":"$TITLE","status":$status,)
           . '"violated-policies":['
           . CORE::join(',', map { qq("$_") } @names) . ']}';
}


# A block with a section "full" is denied everything by the fake Redis.

patient_blocks('ratelimit_limit ip rate=20r/m capacity=100;',
               server => sub { defined $_[0]->full ? 'FAKE' : 'REDIS' });


no_root_location();
run_tests();


# ---- connections by hand

# "status", "type" and "body" of a response in one string.

sub summary {
    my ($r) = @_;

    return CORE::join ' ', $r->{status} || $r->{error},
                           $r->{headers}{'content-type'} // '-', $r->{body};
}


sub start {
    my ($server, %opt) = @_;

    my $addr = $full->addr;
    my $listen = delete $opt{listen} // '';

    return RateLimit::Nginx->start(
        workers => 1,
        %opt,
        conf    => <<"EOC",
            ratelimit_shards $addr;
            ratelimit_redis_timeout 20s;
            ratelimit_redis_connect_timeout 20s;
            ratelimit_limit ip rate=20r/m capacity=100;
            $listen
EOC
        server  => $server,
    );
}


my $PLACES = <<'EOC';
    ratelimit ip;
    client_max_body_size 10m;
    location /json    { ratelimit_body json;    try_files /none @done; }
    location /problem { ratelimit_body problem; try_files /none @done; }
    location /free    { ratelimit off;          try_files /none @done; }
    location @done { return 200 done; }
EOC

my %EXPECTED = (
    '/json'    => "429 application/json $JSON",
    '/problem' => "429 application/problem+json $PROBLEM",
    '/free'    => '200 text/plain done',
);


subtest 'a connection goes on after a rejection' => sub {
    my $nginx = start($PLACES);
    my @paths = qw(/json /problem /free /json /free /problem);

    my @r = RateLimit::Load::pipeline($nginx->port,
        [map { "GET $_ HTTP/1.1\r\nHost: x\r\n\r\n" } @paths]);

    is_deeply [map { summary($_) } @r], [@EXPECTED{@paths}], 'pipelined';

    my $c = RateLimit::Load::connection($nginx->port);

    for my $path (@paths) {
        $c->write("HEAD $path HTTP/1.1\r\nHost: x\r\n\r\n");
        my $head = $c->response(10, 'HEAD');
        my ($status, $type, $body) = split / /, $EXPECTED{$path}, 3;

        is summary($head), "$status $type ", "HEAD $path: no body";
        is $head->{headers}{'content-length'}, length $body, 'but its length';

        $c->write("GET $path HTTP/1.1\r\nHost: x\r\n\r\n");
        is summary($c->response), $EXPECTED{$path}, "GET $path";
    }

    $nginx->finish;
};


subtest 'a request body that nobody reads does not disturb the next request'
    => sub
{
    my $nginx = start($PLACES);

    for my $path (qw(/json /problem)) {
        my $c = RateLimit::Load::connection($nginx->port);
        my $size = 300_000;

        # the answer comes before the body, and the body is thrown away

        $c->write("POST $path HTTP/1.1\r\nHost: x\r\n"
                  . "Content-Length: $size\r\n\r\n");
        is summary($c->response), $EXPECTED{$path}, "POST $path";
        $c->write('x' x $size);
        $c->write("GET /free HTTP/1.1\r\nHost: x\r\n\r\n");
        is summary($c->response), $EXPECTED{'/free'}, 'the next request';

        # all of it at once

        $c->write("POST $path HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
                  . 'hello'
                  . "GET /free HTTP/1.1\r\nHost: x\r\n\r\n");
        is summary($c->response), $EXPECTED{$path}, "POST $path, short";
        is summary($c->response), $EXPECTED{'/free'}, 'the next request';

        # in chunks

        $c->write("POST $path HTTP/1.1\r\nHost: x\r\n"
                  . "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        is summary($c->response), $EXPECTED{$path}, "POST $path, chunked";
        $c->write("7\r\n, world\r\n0\r\n\r\n"
                  . "GET /free HTTP/1.1\r\nHost: x\r\n\r\n");
        is summary($c->response), $EXPECTED{'/free'}, 'the next request';

        # a client that asks first

        $c->write("POST $path HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                  . "Expect: 100-continue\r\n\r\n");
        is summary($c->response), $EXPECTED{$path}, "POST $path, Expect";
        $c->close;

        # one that leaves in the middle

        $c = RateLimit::Load::connection($nginx->port);
        $c->write("POST $path HTTP/1.1\r\nHost: x\r\n"
                  . "Content-Length: $size\r\n\r\nabc");
        is summary($c->response), $EXPECTED{$path}, "POST $path, cut off";
        $c->close;
    }

    is summary($nginx->get('/free')),
       $EXPECTED{'/free'}, 'nginx is well';

    $nginx->finish;
};


subtest 'of many rejections at once each has its own body' => sub {
    my $nginx = start($PLACES);
    my @paths = sort keys %EXPECTED;

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 20, requests => 600, keep => 1,
        timeout => 60,
        path => sub {
            return { path => $paths[$_[0] % 3],
                     $_[0] % 2 ? (method => 'POST', body => 'x' x $_[0])
                               : (method => 'GET') };
        });

    is $load->error_text, '', 'no errors';
    is scalar(grep { summary($_) ne $EXPECTED{ $paths[$_->{n} % 3] } }
              $load->responses), 0, 'each has its own body';

    $nginx->finish;
};


SKIP: {
    my $nginx_about = `${\($ENV{TEST_NGINX_BINARY} || 'nginx')} -V 2>&1`;
    my $nghttp = find_program('nghttp');

    Test::More::skip('this nginx has no HTTP/2', 1)
        unless $nginx_about =~ /--with-http_v2_module/;
    Test::More::skip('there is no nghttp', 1) unless $nghttp;

    my ($major, $minor, $patch) = $nginx_about =~ m{nginx/(\d+)\.(\d+)\.(\d+)};
    my $modern = $major * 1_000_000 + $minor * 1000 + $patch >= 1_025_001;

    subtest 'a rejection by HTTP/2 has the same body' => sub {
        my $nginx = start(undef, listen => 'server { '
            . 'listen 127.0.0.1:%%PORT2%% '
            . ($modern ? '; http2 on;' : 'http2;') . " $PLACES }");
        my $port = $nginx->port(2);
        my $file = $nginx->dir . '/data';

        my $ask = sub {
            my (@args) = @_;

            open my $in, '-|', $nghttp, '-v', '--no-dep',
                 '--timeout', patience(20), @args or die "nghttp: $!\n";
            local $/;
            my $text = <$in>;
            close $in;

            my $time = qr/\[ *[\d.]+\]/;
            my @body = $text =~ /^(.*?)$time recv DATA frame <length=[1-9]/mg;

            return CORE::join ' ', $text =~ /$time recv .* :status: (\d+)/,
                                   $text =~ /$time recv .* content-type: (\S+)/,
                                   CORE::join('', @body);
        };

        for my $path (sort keys %EXPECTED) {
            my $url = "http://127.0.0.1:$port$path";

            is $ask->($url), $EXPECTED{$path}, "GET $path";
            is $ask->('-H', ':method: HEAD', $url),
               $EXPECTED{$path} =~ s/^(\S+ \S+ ).*/$1/r, "HEAD $path";

            for my $size (5, 60_000, 300_000) {
                write_file($file, 'x' x $size);

                is $ask->('-d', $file, $url), $EXPECTED{$path},
                   "POST $path, $size bytes that nobody reads";
            }
        }

        $nginx->finish;
    };
}


# ---- names

# Limits are named after their locations, and these may have any name; what is
# not printable ASCII is written as in a URI.

subtest 'a name that JSON has to escape is escaped' => sub {
    my @places = (
        # in the configuration, in the request line, the name of the limit
        ['"/a\\"b"',        '/a%22b',       '/a"b'],
        ['"/a\\\\\\\\b"',   '/a%5C%5Cb',    '/a\\\\b'],
        ["\"/a\tb\"",       '/a%09b',       '/a%09b'],
        ["\"/a\x01b\"",     '/a%01b',       '/a%01b'],
        ["\"/caf\xc3\xa9\"", '/caf%C3%A9',  '/caf%C3%A9'],
        ["\"/\xe2\x82\xac\"", '/%E2%82%AC', '/%E2%82%AC'],
        ["\"/\xf0\x9f\x9a\xa6\"", '/%F0%9F%9A%A6', '/%F0%9F%9A%A6'],
        ['"/</script>"',    '/%3C/script%3E', '/</script>'],
        ['= /exact',        '/exact',       '=/exact'],
        ['~ "^/[0-9]{2,3}\\.php$"', '/123.php', '~^/[0-9](2,3)\\.php$'],
        ["\"/latin\xe9\"",  '/latin%E9',    '/latin%E9'],
    );
    my $conf = CORE::join '', map {
        "location $$_[0] { ratelimit_rate 20r/m; ratelimit_capacity 100; }\n"
    } @places;

    for my $body (qw(json problem)) {
        my $nginx = start("ratelimit_body $body; ratelimit_headers draft-8;"
                          . $conf);

        for my $place (@places) {
            my ($text, $path, $name) = @$place;
            my $r = $nginx->get($path);
            my $data = eval { JSON::PP->new->utf8->decode($r->{body}) };
            my $got = $data && ($body eq 'json'
                                ? $data->{blocking_limit}
                                : $data->{'violated-policies'}[0]);

            is $r->{status}, 429, "$body $path";
            ok $data, 'is JSON' or Test::More::diag($r->{body});
            is $r->{headers}{'content-length'}, length $r->{body}, 'length';

            is $got, "localhost$name", 'names the limit';

            # the policies of the header are those of the body

            my ($quoted) = $r->{headers}{'ratelimit-policy'}
                           =~ /^"((?:[^"\\]|\\.)*)";q=100;w=300$/;
            is $quoted =~ s/\\(.)/$1/gr, "localhost$name", 'as the header';
        }

        $nginx->finish;
    }
};

__DATA__

=== TEST 1: json: exactly this
--- full
--- config
location /t { ratelimit ip; ratelimit_body json; empty_gif; }
--- request
GET /t
--- error_code: 429
--- response_headers eval
"Content-Type: application/json\nContent-Length: " . length($::JSON)
. "\n$::NUMBERS"
--- response_body eval
$::JSON



=== TEST 2: problem: exactly this
--- full
--- config
location /t { ratelimit ip; ratelimit_body problem; empty_gif; }
--- request
GET /t
--- error_code: 429
--- response_headers eval
"Content-Type: application/problem+json\nContent-Length: "
. length($::PROBLEM) . "\n$::NUMBERS"
--- response_body eval
$::PROBLEM



=== TEST 3: default, said or not: nginx's own page
--- full
--- config
ratelimit ip;
location /said { ratelimit_body default; empty_gif; }
location /unsaid { empty_gif; }
--- request eval
["GET /said", "GET /unsaid"]
--- error_code eval
[429, 429]
--- response_headers eval
[("Content-Type: text/html\n$::NUMBERS") x 2]
--- response_body_like eval
[("<center><h1>429 Too Many Requests</h1></center>") x 2]



=== TEST 4: default: the user's page, which may use the variables
--- full
--- config
ratelimit ip;
error_page 429 @busy;
location /default { empty_gif; }
location /json { ratelimit_body json; empty_gif; }
location @busy { default_type text/plain;
                 return 429 "wait $ratelimit_retry_after for $ratelimit_name"; }
--- request eval
["GET /default", "GET /json"]
--- error_code eval
[429, 429]
--- response_headers eval
["Content-Type: text/plain\n$::NUMBERS",
 "Content-Type: application/json\n$::NUMBERS"]
--- response_body eval
["wait 3 for ip", $::JSON]



=== TEST 5: HEAD: the headers of the same response, no body
--- full
--- config
ratelimit ip;
location /json    { ratelimit_body json;    empty_gif; }
location /problem { ratelimit_body problem; empty_gif; }
--- request eval
["HEAD /json", "HEAD /problem"]
--- error_code eval
[429, 429]
--- response_headers eval
["Content-Type: application/json\nContent-Length: " . length($::JSON)
 . "\n$::NUMBERS",
 "Content-Type: application/problem+json\nContent-Length: "
 . length($::PROBLEM) . "\n$::NUMBERS"]
--- response_body eval
["", ""]



=== TEST 6: with another status
--- full
--- config
ratelimit ip;
location /json    { ratelimit_body json; ratelimit_status 503; empty_gif; }
location /problem { ratelimit_body problem; ratelimit_status 503; empty_gif; }
location /odd     { ratelimit_body problem; ratelimit_status 598; empty_gif; }
location /bad     { ratelimit_body json; ratelimit_status 400; empty_gif; }
--- request eval
["GET /json", "GET /problem", "GET /odd", "GET /bad"]
--- error_code eval
[503, 503, 598, 400]
--- response_headers eval
["Content-Type: application/json", "Content-Type: application/problem+json",
 "Content-Type: application/problem+json", "Content-Type: application/json"]
--- response_body eval
[$::JSON, ::problem(503, 'ip'), ::problem(598, 'ip'), $::JSON]



=== TEST 7: a wait without end is null
--- config
ratelimit_capacity 1;
ratelimit_cost $arg_c;
ratelimit_body json;
location /never { ratelimit_rate 0r/s; empty_gif; }
location /cost  { ratelimit_rate 1r/s; empty_gif; }
--- request eval
["GET /never?c=1", "GET /never?c=1", "GET /cost?c=2"]
--- error_code eval
[200, 429, 429]
--- response_headers eval
["X-RateLimit-Remaining: 0",
 "Content-Type: application/json\n!Retry-After",
 "Content-Type: application/json\n!Retry-After"]
--- response_body_like eval
["^GIF",
 '^\{"error":"rate_limit_exceeded","blocking_limit":"localhost/never",'
 . '"limit":1,"remaining":0,"retry_after":null\}$',
 '^\{"error":"rate_limit_exceeded","blocking_limit":"localhost/cost",'
 . '"limit":1,"remaining":\d,"retry_after":null\}$']



=== TEST 8: the body agrees with the headers
--- config
location /t { ratelimit_rate 1r/h; ratelimit_capacity 5; ratelimit_cost 2;
              ratelimit_body json; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["X-RateLimit-Remaining: 3", "X-RateLimit-Remaining: 1"]
--- after
my $r = RateLimit::Load::get(Test::Nginx::Util::server_port(), '/t');
my $data = JSON::PP::decode_json($r->{body});
::is_deeply($data, {
    error          => 'rate_limit_exceeded',
    blocking_limit => 'localhost/t',
    limit          => $r->{headers}{'x-ratelimit-limit'},
    remaining      => $r->{headers}{'x-ratelimit-remaining'},
    retry_after    => $r->{headers}{'retry-after'},
}, 'all of it');
::is($data->{remaining}, 1, 'one is left, two would be needed');



=== TEST 9: several violated policies are all named, the longest wait blocks
--- http_config
ratelimit_limit hour rate=1r/h capacity=1;
ratelimit_limit many rate=1r/h capacity=9;
ratelimit_limit day  rate=1r/d capacity=1;
ratelimit_limit log  algorithm=sliding_window_log window=10m capacity=1;
--- config
ratelimit hour many day log;
location /t       { empty_gif; }
location /json    { ratelimit_body json; empty_gif; }
location /problem { ratelimit_body problem; empty_gif; }
--- request eval
["GET /t", "GET /json", "GET /problem"]
--- error_code eval
[200, 429, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 1", "Retry-After: 8\\d{4}", "Retry-After: 8\\d{4}"]
--- response_body_like eval
["^GIF",
 '^\{"error":"rate_limit_exceeded","blocking_limit":"day","limit":1,'
 . '"remaining":0,"retry_after":8\d{4}\}$',
 '^' . quotemeta(::problem(429, 'hour', 'day', 'log')) . '$']



=== TEST 10: without headers the body is the same
--- full
--- config
location /t { ratelimit ip; ratelimit_body json; ratelimit_headers off;
              empty_gif; }
--- request
GET /t
--- error_code: 429
--- response_headers
Content-Type: application/json
!Retry-After
!X-RateLimit-Limit
--- response_body eval
$::JSON



=== TEST 11: a rejection with a body is final, also where any is to satisfy
--- full
--- config
location /t { satisfy any; allow all; ratelimit ip; ratelimit_body json;
              empty_gif; }
location /denied { satisfy any; deny all; ratelimit ip; ratelimit_body json;
                   empty_gif; }
--- request eval
["GET /t", "GET /denied"]
--- error_code eval
[429, 429]
--- response_headers eval
[("Content-Type: application/json") x 2]
--- response_body eval
[$::JSON, $::JSON]



=== TEST 12: in the precontent phase as well
--- full
--- config
location /t { ratelimit ip; ratelimit_body json; ratelimit_phase precontent;
              try_files /none @done; }
location @done { return 200 "done\n"; }
--- request eval
["GET /t", "POST /t\nhello", "HEAD /t"]
--- error_code eval
[429, 429, 429]
--- response_headers eval
[("Content-Type: application/json\n$::NUMBERS") x 3]
--- response_body eval
[$::JSON, $::JSON, ""]



=== TEST 13: a limited error page is rejected with the status of the limit
--- full
--- config
location /t { deny all; error_page 403 /page; }
location /new { deny all; error_page 403 =200 /page; }
location /page { ratelimit ip; ratelimit_body json; empty_gif; }
location /default { deny all; error_page 403 /html; }
location /html { ratelimit ip; empty_gif; }
--- request eval
["GET /t", "GET /new", "GET /default"]
--- error_code eval
[429, 429, 429]
--- response_headers eval
["Content-Type: application/json", "Content-Type: application/json",
 "Content-Type: text/html"]
--- response_body_like eval
["^\Q$::JSON\E\$", "^\Q$::JSON\E\$", "429 Too Many Requests"]



=== TEST 14: the access log has the status and the length
--- full
--- http_config
log_format body '$status $body_bytes_sent';
--- config
location /t { ratelimit ip; ratelimit_body json; access_log logs/body.log body;
              empty_gif; }
--- request
GET /t
--- error_code: 429
--- response_headers
Content-Type: application/json
--- after
my $file = "$Test::Nginx::Util::ServRoot/logs/body.log";
::ok(::wait_until(sub { ::slurp($file) eq '429 ' . length($::JSON) . "\n" }),
     'the line');



=== TEST 15: the failure policy has nginx's page
--- config
location /t { ratelimit ip; ratelimit_body json; ratelimit_on_error closed;
              ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT; empty_gif; }
--- request
GET /t
--- error_code: 503
--- response_headers
Content-Type: text/html
Retry-After: 1
--- response_body_like: 503 Service Temporarily Unavailable
