# The header family draft-8: RateLimit-Policy lists the limits of a place,
# RateLimit tells about the one that speaks.  Both are structured fields (RFC
# 9651), whatever the limits are called.
#
# With the fake Redis the state of all buckets is what a test says, so numbers
# are exact.

use strict;
use warnings;

use lib 't/lib';
use RateLimit::Nginx;
use RateLimit::Test;
use Test::Nginx::Socket 'no_plan';
use Test::More import => ['subtest'];

our $redis = start_redis();
our $fake = start_fake();


# A section "replies" is a list of replies of the fake Redis, without which the
# real one is used: a number, or several of several limits.

patient_blocks(<<'EOC',
    ratelimit_headers draft-8;
    ratelimit_deny_cache off;
EOC
    server => sub { defined $_[0]->replies ? 'FAKE' : 'REDIS' });

add_block_preprocessor(sub {
    my ($block) = @_;

    if (defined $block->replies) {
        $fake->policy({ eval => [map {
            ref $_ ? '*' . @$_ . "\r\n" . CORE::join('', map { ":$_\r\n" } @$_)
                   : ":$_\r\n"
        } @{ $block->replies }] });
    }
});


# ---- structured fields

# A list of items with parameters, strictly as RFC 9651 has it, section 4.2:
# [value, { parameter => value }] each.  Dies of anything else, inner lists
# included, as neither field has them.

sub parse_list {
    my ($text) = @_;

    my @list;

    $text =~ s/^ +//;
    $text =~ s/ +$//;

    while (length $text) {
        push @list, [parse_item(\$text)];

        $text =~ s/^[ \t]*//;
        last unless length $text;
        $text =~ s/^,[ \t]*// or die "no comma before \"$text\"\n";
        die "a comma at the end\n" unless length $text;
    }

    return @list;
}

sub parse_item {
    my ($text) = @_;

    my $value = parse_bare($text);
    my %parameters;

    while ($$text =~ s/^; *//) {
        $$text =~ s/^([a-z*][a-z0-9_.*-]*)// or die "no key in \"$$text\"\n";
        my $key = $1;
        $parameters{$key} = $$text =~ s/^=// ? parse_bare($text) : 'true';
    }

    return ($value, \%parameters);
}

sub parse_bare {
    my ($text) = @_;

    if ($$text =~ /^"/) {
        $$text =~ s/^"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"//
            or die "no string in \"$$text\"\n";
        return $1 =~ s/\\(.)/$1/gr;
    }

    if ($$text =~ s/^(-?\d+)(?![.\d])//) {
        my $number = $1;
        die "$number has too many digits\n" if $number =~ /\d{16}/;
        return $number;
    }

    die "neither string nor integer: \"$$text\"\n";
}


# The parser is as strict as it says.

for my $bad ('"a', 'a"', '"a\\b"', '"caf' . "\xc3\xa9" . '"', "\"a\tb\"",
             '"a";', '"a";Q=1', '"a" ;q=1', '"a";q=', '"a";q=1.', '"a",',
             '"a" "b"', '"a";q=1234567890123456', '("a" "b")')
{
    ok(!defined eval { parse_list($bad); 1 }, "no list: $bad");
}

is_deeply([parse_list('"a\\"\\\\";q=1; w=-20 , "b"')],
          [['a"\\', { q => 1, w => -20 }], ['b', {}]], 'a list');


no_root_location();
run_tests();


# ---- names

sub start {
    my (%opt) = @_;

    my $addr = $redis->addr;

    return RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
            ratelimit_shards $addr;
            ratelimit_redis_timeout 20s;
            ratelimit_redis_connect_timeout 20s;
            ratelimit_headers draft-8;
            $opt{http}
EOC
        server  => $opt{server},
    );
}


subtest 'every legal name is a structured field' => sub {
    my @names = ('a' .. 'z', 'A' .. 'Z', 0 .. 9, '-', '_', '.', 'x' x 64,
                 '-.-', '1e3', 'free-tier_2.0');

    my $nginx = start(
        http   => CORE::join('', map { "ratelimit_limit $_ rate=1r/d "
                                       . "capacity=5;\n" } @names),
        server => CORE::join('', map { "location = /$_ { ratelimit "
                                       . "$names[$_] $names[$_ - 1]; }\n" }
                                 0 .. $#names),
    );

    $redis->cmd('FLUSHALL');

    for my $i (1 .. $#names) {
        my $r = $nginx->get("/$i");
        my @policy = eval { parse_list($r->{headers}{'ratelimit-policy'}) };
        my @speaks = eval { parse_list($r->{headers}{ratelimit}) };

        is_deeply [map { $$_[0] } @policy], [@names[$i, $i - 1]],
                  "RateLimit-Policy of $names[$i]";
        is_deeply [map { $$_[1] } @policy], [({ q => 5, w => 432000 }) x 2],
                  'its parameters';
        is scalar @speaks, 1, 'RateLimit: one item';
        is $speaks[0][1]{r}, $i == 1 ? 4 : 3, 'remaining';
        like $speaks[0][1]{t}, qr/^\d+$/, 'reset';
        is_deeply [sort keys %{ $speaks[0][1] }], ['r', 't'], 'nothing else';
    }

    $nginx->finish;
};


subtest 'and so is every name that a location gives' => sub {
    my @places = (
        # in the configuration, in the request line, the name
        ['"/a\\"b"',          '/a%22b',         'localhost/a"b'],
        ['"/a\\\\\\\\b"',     '/a%5C%5Cb',      'localhost/a\\\\b'],
        ["\"/a\tb\"",         '/a%09b',         'localhost/a%09b'],
        ["\"/\x01\x1f\x7f\"", '/%01%1f%7f',     'localhost/%01%1F%7F'],
        ["\"/caf\xc3\xa9\"",  '/caf%C3%A9',     'localhost/caf%C3%A9'],
        ["\"/\xff\xfe\"",     '/%FF%FE',        'localhost/%FF%FE'],
        ['"/a b, c;q=1"',     '/a%20b,%20c;q=1', 'localhost/a b, c;q=1'],
        ['"/%41"',            '/%2541',         'localhost/%2541'],
        ['= /exact',          '/exact',         'localhost=/exact'],
        ['~ "^/[0-9]{2,3}\\.php$"', '/123.php',
         'localhost~^/[0-9](2,3)\\.php$'],
        ['~* \\.(gif|png)$',  '/A.GIF',         'localhost~\\.(gif|png)$'],
        ['"/' . 'long' x 100 . '"', '/' . 'long' x 100,
         'localhost/' . 'long' x 100],
    );
    my $nginx = start(
        http   => '',
        server => CORE::join('', map { "location $$_[0] { ratelimit_rate 5r/d; "
                                       . "empty_gif; }\n" } @places),
    );

    $redis->cmd('FLUSHALL');

    for my $place (@places) {
        my ($text, $path, $name) = @$place;
        my $r = $nginx->get($path);

        is $r->{status}, 200, $path;
        is_deeply [eval { parse_list($r->{headers}{'ratelimit-policy'}) }],
                  [[$name, { q => 5, w => 86400 }]], 'RateLimit-Policy'
            or Test::More::diag($r->{headers}{'ratelimit-policy'});
        is_deeply [map { $$_[0] } eval { parse_list($r->{headers}{ratelimit}) }],
                  [$name], 'RateLimit';
    }

    $nginx->finish;
};


subtest 'and so are the largest and smallest numbers' => sub {
    my @limits = (
        'rate=1000000000r/s capacity=1000000000', 'rate=1000r/s capacity=1',
        'rate=1r/d capacity=1000000000', 'rate=0.000001r/d capacity=1',
        'rate=0.000001r/d capacity=1000000000', 'rate=0r/s capacity=1',
        'rate=1r/s capacity=10 refill_interval=1d',
        'algorithm=sliding_window_log capacity=1000000000 window=365d',
        'algorithm=sliding_window_log capacity=1 window=1ms',
    );
    my $nginx = start(
        http   => CORE::join('', map { "ratelimit_limit l$_ $limits[$_];\n" }
                                 0 .. $#limits),
        server => 'location / { ratelimit '
                  . CORE::join(' ', map { "l$_" } 0 .. $#limits)
                  . '; empty_gif; }',
    );

    $redis->cmd('FLUSHALL');

    for my $status (200, 429) {
        my $r = $nginx->get('/');
        my @policy = eval { parse_list($r->{headers}{'ratelimit-policy'}) };
        my @speaks = eval { parse_list($r->{headers}{ratelimit}) };

        is $r->{status}, $status, "status $status";
        is scalar @policy, @limits, 'RateLimit-Policy'
            or Test::More::diag($r->{headers}{'ratelimit-policy'});
        is_deeply [map { $_->[1]{q} } @policy],
                  [map { /capacity=(\d+)/ } @limits], 'the quotas';
        ok !exists $policy[5][1]{w}, 'what never refills has no window';
        is_deeply [map { $policy[$_][1]{w} } 0, 1, 6, 7, 8],
                  [1, 1, 86400, 31536000, 1], 'the windows';
        is scalar @speaks, 1, 'RateLimit'
            or Test::More::diag($r->{headers}{ratelimit});
    }

    $nginx->finish;
};

__DATA__

=== TEST 1: one limit: what it is, what is left, and when it is full again
--- replies eval: [7_000_000, 99_500_000, 0, 100_000_000]
--- http_config
ratelimit_limit ip rate=5r/s capacity=100;
--- config
location /t { ratelimit ip; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=20\nRateLimit: \"ip\";r=7;t=19\n"
 . "!X-RateLimit-Limit\n!X-RateLimit-Remaining\n!X-RateLimit-Reset",
 "RateLimit-Policy: \"ip\";q=100;w=20\nRateLimit: \"ip\";r=99;t=1",
 "RateLimit-Policy: \"ip\";q=100;w=20\nRateLimit: \"ip\";r=0;t=20",
 "RateLimit-Policy: \"ip\";q=100;w=20\nRateLimit: \"ip\";r=100;t=0"]



=== TEST 2: rejected: when to come again, as in Retry-After
--- replies eval: [-1, -500_001]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
location /t { ratelimit ip; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[429, 429]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=0;t=3\n"
 . "Retry-After: 3\n!X-RateLimit-Retry-After",
 "RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=0;t=2\n"
 . "Retry-After: 2\n!X-RateLimit-Retry-After"]



=== TEST 3: several limits: all are listed in their order, the tightest speaks
--- replies eval: [[7_000_000, 900_000_000], [70_000_000, 20_000_000]]
--- http_config
ratelimit_limit user rate=10r/s capacity=1000;
ratelimit_limit ip   rate=5r/s capacity=100;
--- config
location /t { ratelimit ip user; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=20, \"user\";q=1000;w=100\n"
 . "RateLimit: \"ip\";r=7;t=19",
 "RateLimit-Policy: \"ip\";q=100;w=20, \"user\";q=1000;w=100\n"
 . "RateLimit: \"user\";r=20;t=98"]



=== TEST 4: several limits, rejected: the one with the longest wait speaks
--- replies eval: [[0, -1], [-1, -1]]
--- http_config
ratelimit_limit user rate=1r/m capacity=1000;
ratelimit_limit ip   rate=5r/s capacity=100;
--- config
location /t { ratelimit user ip; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[429, 429]
--- response_headers eval
["RateLimit-Policy: \"user\";q=1000;w=60000, \"ip\";q=100;w=20\n"
 . "RateLimit: \"ip\";r=0;t=1\nRetry-After: 1",
 "RateLimit-Policy: \"user\";q=1000;w=60000, \"ip\";q=100;w=20\n"
 . "RateLimit: \"user\";r=0;t=60\nRetry-After: 60"]



=== TEST 5: a window: its length, and when the oldest entry leaves
--- replies eval: [[4, 2_500_000, 0], [-1, 2_500_000, 3_100_000]]
--- http_config
ratelimit_limit log algorithm=sliding_window_log capacity=5 window=1500ms;
--- config
location /t { ratelimit log; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["RateLimit-Policy: \"log\";q=5;w=2\nRateLimit: \"log\";r=4;t=3",
 "RateLimit-Policy: \"log\";q=5;w=2\nRateLimit: \"log\";r=0;t=4\n"
 . "Retry-After: 4"]



=== TEST 6: a bucket that is refilled in steps
--- replies eval: [[0, 4_000_000], [-1, 4_000_000]]
--- http_config
ratelimit_limit steps rate=1r/s capacity=15 refill_interval=10s;
--- config
location /t { ratelimit steps; empty_gif; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 429]
--- response_headers eval
["RateLimit-Policy: \"steps\";q=15;w=20\nRateLimit: \"steps\";r=0;t=16",
 "RateLimit-Policy: \"steps\";q=15;w=20\nRateLimit: \"steps\";r=0;t=6\n"
 . "Retry-After: 6"]



=== TEST 7: what never refills has no window and no end
--- replies eval: [4_000_000, -1, 5_000_000]
--- http_config
ratelimit_limit trial rate=0r/s capacity=5;
--- config
location /t { ratelimit trial; empty_gif; }
--- request eval
["GET /t", "GET /t", "GET /t"]
--- error_code eval
[200, 429, 200]
--- response_headers eval
["RateLimit-Policy: \"trial\";q=5\nRateLimit: \"trial\";r=4",
 "RateLimit-Policy: \"trial\";q=5\nRateLimit: \"trial\";r=0\n!Retry-After",
 "RateLimit-Policy: \"trial\";q=5\nRateLimit: \"trial\";r=5;t=0"]



=== TEST 8: a cost that can never pass
--- http_config
ratelimit_limit small rate=1r/s capacity=5;
--- config
location /t { ratelimit small; ratelimit_cost $arg_c; empty_gif; }
--- request
GET /t?c=6
--- error_code: 429
--- response_headers
RateLimit-Policy: "small";q=5;w=5
RateLimit: "small";r=5;t=0
!Retry-After



=== TEST 9: limits that are skipped or illegal are not listed
--- replies eval: [7_000_000]
--- http_config
ratelimit_limit ip   rate=5r/s capacity=100;
ratelimit_limit user key=$arg_u rate=5r/s capacity=100;
ratelimit_limit bad  rate=5r/s capacity=$arg_c;
--- config
location /t { ratelimit user bad ip; empty_gif; }
location /none { ratelimit user; empty_gif; }
--- request eval
["GET /t", "GET /none"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=20\nRateLimit: \"ip\";r=7;t=19\n"
 . "X-RateLimit-Degraded: true",
 "!RateLimit-Policy\n!RateLimit"]



=== TEST 10: plans are listed as they are for this client
--- replies eval: [7_000_000]
--- http_config
map $arg_plan $burst { default 10; pro 100; }
map $arg_plan $refill { default 1r/m; pro 5r/s; }
ratelimit_limit plan rate=$refill capacity=$burst;
--- config
location /t { ratelimit plan; empty_gif; }
--- request eval
["GET /t", "GET /t?plan=pro"]
--- response_headers eval
["RateLimit-Policy: \"plan\";q=10;w=600\nRateLimit: \"plan\";r=7;t=180",
 "RateLimit-Policy: \"plan\";q=100;w=20\nRateLimit: \"plan\";r=7;t=19"]



=== TEST 11: both families say the same
--- replies eval: [7_000_000, -1]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
ratelimit ip;
location /t { ratelimit_headers legacy draft-8; empty_gif; }
location /turned { ratelimit_headers draft-8 legacy; empty_gif; }
--- request eval
["GET /t", "GET /turned"]
--- error_code eval
[200, 429]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=7;t=279\n"
 . "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 7\n!Retry-After",
 "RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=0;t=3\n"
 . "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 0\n"
 . "X-RateLimit-Retry-After: 3\nRetry-After: 3"]



=== TEST 12: a place below replaces the families
--- replies eval: [7_000_000]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
ratelimit ip;
--- config
location /inherited { empty_gif; }
location /legacy { ratelimit_headers legacy; empty_gif; }
location /off { ratelimit_headers off; empty_gif; }
--- request eval
["GET /inherited", "GET /legacy", "GET /off"]
--- response_headers eval
["RateLimit: \"ip\";r=7;t=279\n!X-RateLimit-Limit",
 "!RateLimit\n!RateLimit-Policy\nX-RateLimit-Limit: 100",
 "!RateLimit\n!RateLimit-Policy\n!X-RateLimit-Limit"]



=== TEST 13: a backend's headers of the family are replaced, however spelt
--- replies eval: [7_000_000]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
location /t { ratelimit ip; proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/b; }
location /legacy { ratelimit ip; ratelimit_headers legacy;
                   proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/b; }
location /off { ratelimit ip; ratelimit_headers off;
                proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/b; }
location /b {
    add_header RateLimit '"theirs";r=1;t=1';
    add_header ratelimit '"theirs";r=2;t=2';
    add_header RATELIMIT-POLICY '"theirs";q=1;w=1';
    add_header ratelimit-policy '"others";q=1;w=1';
    add_header X-RateLimit-Limit 1234;
    return 200;
}
--- request eval
["GET /t", "GET /legacy", "GET /off"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=7;t=279\n"
 . "X-RateLimit-Limit: 1234",
 "RateLimit: \"theirs\";r=1;t=1, \"theirs\";r=2;t=2\n"
 . "RateLimit-Policy: \"theirs\";q=1;w=1, \"others\";q=1;w=1\n"
 . "X-RateLimit-Limit: 100",
 "RateLimit: \"theirs\";r=1;t=1, \"theirs\";r=2;t=2\n"
 . "RateLimit-Policy: \"theirs\";q=1;w=1, \"others\";q=1;w=1\n"
 . "X-RateLimit-Limit: 1234"]
--- raw_response_headers_unlike eval
["theirs|others", "\"ip\"", "\"ip\""]



=== TEST 14: a backend's headers go, also when there is nothing to say instead
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
ratelimit_shards 127.0.0.1:$TEST_NGINX_DEAD_PORT;
ratelimit_local_share 1/4;
location /t { ratelimit ip; ratelimit_on_error open;
              proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/b; }
location /local { ratelimit ip;
                  proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/b; }
location /b {
    add_header RateLimit '"theirs";r=1;t=1';
    add_header RateLimit-Policy '"theirs";q=1;w=1';
    return 200;
}
--- request eval
["GET /t", "GET /local"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=300\n!RateLimit\n"
 . "X-RateLimit-Degraded: true\n"
 . "X-RateLimit-Degraded-Reason: storage_unavailable",
 "RateLimit-Policy: \"ip\";q=25;w=300\nRateLimit: \"ip\";r=24;t=12\n"
 . "X-RateLimit-Degraded: true\n"
 . "X-RateLimit-Degraded-Reason: storage_unavailable"]



=== TEST 15: they survive redirects and error pages, and stand there once
--- replies eval: [7_000_000, -1, -1]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
location /t { ratelimit ip; error_page 429 @busy; error_page 404 /page; }
location @busy { return 429 "busy\n"; }
location /page { ratelimit ip; return 200 "page\n"; }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[404, 429]
--- response_body eval
["page\n", "busy\n"]
--- response_headers eval
["RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=7;t=279",
 "RateLimit-Policy: \"ip\";q=100;w=300\nRateLimit: \"ip\";r=0;t=3\n"
 . "Retry-After: 3"]



=== TEST 16: a dry run tells nobody to wait
--- replies eval: [-500_001]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
location /t { ratelimit ip; ratelimit_dry_run on;
              ratelimit_headers draft-8 dry_run; empty_gif; }
--- request
GET /t
--- response_headers
RateLimit-Policy: "ip";q=100;w=300
RateLimit: "ip";r=0;t=299
!Retry-After



=== TEST 17: a preview tells when it is full, not when to come again
--- replies eval: [-500_001]
--- http_config
ratelimit_limit ip rate=20r/m capacity=100;
--- config
location /t { ratelimit ip; ratelimit_preview on; empty_gif; }
--- request
GET /t
--- response_headers
RateLimit-Policy: "ip";q=100;w=300
RateLimit: "ip";r=0;t=299
!Retry-After



=== TEST 18: the limit of the place itself stands first
--- replies eval: [[7_000_000, 80_000_000]]
--- http_config
ratelimit_limit ip rate=5r/s capacity=100;
--- config
location /t { ratelimit ip; ratelimit_rate 1r/s; ratelimit_capacity 10;
              empty_gif; }
--- request
GET /t
--- response_headers
RateLimit-Policy: "localhost/t";q=10;w=10, "ip";q=100;w=20
RateLimit: "localhost/t";r=7;t=3



=== TEST 90: draft-11: r by t is at most the rate, whatever is left
--- replies eval
[99000000, 6500000, 500000, -500001]
--- config
location /t { ratelimit_rate 6r/m; ratelimit_capacity 100;
              ratelimit_headers draft-11; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
[map { "RateLimit-Policy: \"localhost/t\";q=100;w=1000\n"
       . "RateLimit: \"localhost/t\";$_" }
     'r=99;t=990', 'r=6;t=60', 'r=0;t=10', 'r=0;t=5']



=== TEST 91: draft-11: a rejection with something left
--- replies eval
[-2500001, -9900001]
--- config
location /t { ratelimit_rate 6r/m; ratelimit_capacity 100; ratelimit_cost $arg_c;
              ratelimit_headers draft-11; empty_gif; }
--- request eval
["GET /t?c=3", "GET /t?c=20"]
--- error_code eval
[429, 429]
--- response_headers eval
["Retry-After: 5\nRateLimit: \"localhost/t\";r=0;t=5",
 "Retry-After: 101\nRateLimit: \"localhost/t\";r=9;t=101"]



=== TEST 92: draft-11: a limit that never refills, a window, and one that is fast
--- config
ratelimit_headers draft-11;
location /never  { ratelimit_rate 0r/s; ratelimit_capacity 5; empty_gif; }
location /window { ratelimit_algorithm sliding_window_log; ratelimit_window 60s;
                   ratelimit_capacity 10; empty_gif; }
location /fast   { ratelimit_rate 1000r/s; ratelimit_capacity 100; empty_gif; }
--- request eval
["GET /never", "GET /window", "GET /fast"]
--- response_headers eval
["RateLimit: \"localhost/never\";r=4", "RateLimit: \"localhost/window\";r=9;t=60",
 "RateLimit: \"localhost/fast\";r=99;t=1"]



=== TEST 93: draft-11: nothing comes back before a fixed window ends
--- config
location /t { ratelimit_algorithm fixed_window; ratelimit_window 1d;
              ratelimit_capacity 1000; ratelimit_cost 1000;
              ratelimit_headers legacy draft-11; empty_gif; }
location /u { ratelimit off; empty_gif; }
--- request
GET /u
--- after
my $r = RateLimit::Load::get(Test::Nginx::Util::server_port(), '/t');
my ($t) = $r->{headers}{ratelimit} =~ /;r=0;t=(\d+)$/;
my $end = $r->{headers}{'x-ratelimit-reset'} - CORE::time();
::is($r->{status}, 200, 'the last tokens');
::cmp_ok($t, '>=', $end - 2, 't is the end of the window');
::cmp_ok($t, '<=', $end < 87 ? 87 : $end + 2, 'no later');
