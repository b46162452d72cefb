# docs/security.md: what a client can do, what it sees, and what is hidden.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use File::Path ();

use RateLimit::Docs 'docs/security.md';
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(dead_port temp_dir write_file);

my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;


subtest 'numbers are those of the sources' => sub {
    for (['Values that a client chooses', KEY_MAX => 'above %d bytes'],
         ['Values that a client chooses', MAX_COST => 'from 1 to %d costs %d'],
         ['Keys in logs and in Redis', LOG_KEY => 'at most %d bytes'],
         ['A hostile or compromised Redis', NODES_MAX => 'nodes (%d)'])
    {
        my ($section, $name, $format) = @$_;
        my $words = $format =~ s/%d/define($name)/ger;

        ok index($text{$section}, $words) >= 0, "$section: $words";
    }
};


subtest 'a limit with an empty key does not apply' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Empty keys', [$redis],
        more => "log_format s '\$ratelimit_status';\n"
                . "access_log %%DIR%%/logs/access.log s;\n");
    my $load = RateLimit::Load::run(port => $nginx->port, requests => 100,
                                    connections => 5, path => '/', keep => 1);

    is $load->count(429), 0, 'nobody is rejected';
    is_deeply [grep { grep { /ratelimit/ } keys %{ $_->{headers} } }
               $load->responses], [], 'there are no headers';
    is scalar(() = $nginx->access_log =~ /^SKIPPED$/mg), 100,
       'the access log shows it';
    is $redis->cmd('DBSIZE'), 0, 'and there is no key in Redis';

    $nginx->finish;
};


subtest 'invented keys get no bucket of their own' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Invented keys', [$redis]);
    my $load = RateLimit::Load::run(
        port => $nginx->port, requests => 90, connections => 5,
        path => sub {
            { path => '/', headers => { 'X-Api-Key' => "invented-$_[0]" } }
        });

    is $load->count(429), 40, '50 pass, however many keys';
    isnt $nginx->get('/', 'X-Api-Key' => '5f1c0e7a')->{status}, 429,
         'a known key has its own bucket';
    is $nginx->get('/', 'X-Api-Key' => '5f1c0e7b')->{status}, 429, 'no other has';

    # before the map there was one for each

    my $open = nginx_of('Empty keys', [$redis]);

    $load = RateLimit::Load::run(
        port => $open->port, requests => 90, connections => 5,
        path => sub {
            { path => '/', headers => { 'X-Api-Key' => "invented-$_[0]" } }
        });
    is $load->count(429), 0, 'without the map each key has a bucket';

    $_->finish for $nginx, $open;
};


subtest 'values of clients' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf   => 'ratelimit_silence no_shards;',
        server => <<'EOC');
location /cost {
    ratelimit_key      $arg_k;
    ratelimit_capacity 1000000;
    ratelimit_rate     1r/d;
    ratelimit_cost     $arg_cost;
}

location /rate {
    ratelimit_key  $arg_k;
    ratelimit_rate $arg_rate;
}

location /closed {
    ratelimit_key      $arg_k;
    ratelimit_rate     $arg_rate;
    ratelimit_on_error closed;
}
EOC

    my $left = sub {
        $nginx->get("/cost?k=$_[0]$_[0]&cost=$_[0]")->{headers}{'x-ratelimit-remaining'}
    };

    is $left->(''), undef, 'an empty key';
    is $nginx->get('/cost?k=x&cost=')->{headers}{'x-ratelimit-remaining'}, 999999,
       'an empty cost is 1';
    is $left->(0), 999999, 'and so is 0';
    is $left->(7), 999993, 'a number';
    is $left->($_), 900000, "cost $_" for '100001', '-1', 'x', '1.5';

    my $response = $nginx->get('/rate?k=a&rate=x');

    is $response->{headers}{'x-ratelimit-degraded-reason'}, 'invalid_limit',
       'a wrong rate: the limit does not apply';
    is $nginx->get('/closed?k=a&rate=x')->{status}, 503, 'closed: it is rejected';

    $nginx->finish;

    my ($code, $output) = RateLimit::Nginx->test_config(warnings => 1,
        conf => "server { listen 127.0.0.1:%%PORT%%;\n"
                . 'ratelimit_rate $arg_rate; }');

    like $output, qr/\[warn\] .*\$arg_rate.*client_value/s, 'nginx -t warns';
};


subtest 'no key reaches the bucket of another one' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards $addr;\n",
        server => <<'EOC');
location / {
    ratelimit_key      $http_x_key;
    ratelimit_capacity 5;
    ratelimit_rate     1r/d;
    ratelimit_log_key  plain;
}
EOC

    my $long = 'k' x 300;
    my $digest = 'sha1:' . sha1_hex($long);
    my $left = sub {
        $nginx->get('/', 'X-Key' => $_[0])->{headers}{'x-ratelimit-remaining'}
    };

    is $left->($long), 4, 'a long key';
    is $left->($long), 3, 'and again';
    is $left->($digest), 4, 'its digest is another key';
    is_deeply [sort @{ $redis->cmd('KEYS', '*') }],
              [sort map { "ratelimit:localhost/:{$_}" }
               $digest, 'sha1:' . sha1_hex($digest)], 'both are digests in Redis';

    # a rejected one is logged

    $left->("a\"b\tc\x{e9}" . 'x' x 100) for 1 .. 6;

    my ($shown) = $nginx->error_log =~ /REJECTED, limit: "[^"]*", key: "([^"]*)"/;

    like $shown, qr/^a\\x22b\\x09c\\x[Ee]9x+/, 'quotes and others are escaped';
    is length($shown =~ s/\\x\w\w/./gr), define('LOG_KEY'), 'its first bytes';

    $nginx->finish(printable => 1);
};


subtest 'clients see what is listed' => sub {
    my $server = <<'EOC';
ratelimit secret-name;
location /legacy  { }
location /draft   { ratelimit_headers draft-8; }
location /json    { ratelimit_body json; }
location /problem { ratelimit_body problem; }
location /off     { ratelimit_headers off; }
EOC
    my $nginx = RateLimit::Nginx->start(
        conf => 'ratelimit_limit secret-name capacity=1 rate=1r/d;',
        server => $server);

    $nginx->get('/legacy');

    my %shows = map {
        my $response = $nginx->get($_);

        is $response->{status}, 429, $_;

        my $text = join "\n", $response->{body}, map { ref ? @$_ : $_ }
                   %{ $response->{headers} };

        $_ => ($text =~ /secret-name/ ? 1 : 0);
    } qw(/legacy /draft /json /problem /off);

    is_deeply \%shows, { '/legacy' => 0, '/draft' => 1, '/json' => 1,
                         '/problem' => 1, '/off' => 0 }, 'where the name is shown';
    is_deeply [grep { /ratelimit/ } keys %{ $nginx->get('/off')->{headers} }], [],
              'off: no headers';
    $nginx->finish;

    # an outage

    my $addr = '127.0.0.1:' . dead_port();

    $nginx = RateLimit::Nginx->start(
        conf   => "ratelimit_shards $addr;",
        server => 'ratelimit_rate 10r/s; location /told { }
                   location /not { ratelimit_headers legacy no_degraded; }');

    is $nginx->get('/told')->{headers}{'x-ratelimit-degraded'}, 'true',
       'an outage is shown';
    is $nginx->get('/not')->{headers}{'x-ratelimit-degraded'}, undef,
       'unless no_degraded says otherwise';

    $nginx->finish;
};


subtest 'keys in the log' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf   => 'ratelimit_silence no_shards;',
        server => <<'EOC');
location /address { ratelimit_capacity 1; ratelimit_rate 1r/d; }
location /header  { ratelimit_key $http_x_key; ratelimit_rate 1r/d; }
location /off     { ratelimit_key $http_x_key; ratelimit_rate 1r/d;
                    ratelimit_log_key off; }
EOC

    $nginx->get($_, 'X-Key' => 'my secret') for map { ($_) x 2 }
                                                 qw(/address /header /off);

    my $log = $nginx->error_log;
    my $digest = substr sha1_hex('my secret'), 0, 16;

    ok index($text{'Keys in logs and in Redis'}, 'first ' . length($digest)
             . ' digits') >= 0, 'as many digits';
    like $log, qr/REJECTED, limit: "localhost\/address", key: "127\.0\.0\.1"/,
         'an address is shown';
    like $log, qr/REJECTED, limit: "localhost\/header", key: "sha1:$digest"/,
         'any other key is a digest';
    like $log, qr/REJECTED, limit: "localhost\/off", cost/, 'or is left out';
    unlike $log, qr/my secret/, 'the key itself is nowhere';

    $nginx->finish;
};


subtest 'passwords stay secret' => sub {
    my $dir = temp_dir('passwords');
    my $file = "$dir/redis-password";

    write_file($file, "wonderland\n", 0644);

    my ($code, $output) = RateLimit::Nginx->test_config(warnings => 1,
        conf => "ratelimit_shards cluster 10.0.0.1:6379;\n"
                . "ratelimit_redis_password_file $file;\n"
                . "server { listen 127.0.0.1:%%PORT%%; ratelimit_rate 1r/s; }\n");

    is $code, 0, 'a file that everybody can read';
    like $output, qr/\[warn\].*password_file/, 'nginx -t warns';
    like $output, qr/\[warn\].*plain_password/, 'and that the password is in plain text';
    unlike $output, qr/wonderland/, 'without the password';

    ($code, $output) = RateLimit::Nginx->test_config(
        conf => "ratelimit_shards redis://user:wonderland\@127.0.0.1/x;\n"
                . "server { listen 127.0.0.1:%%PORT%%; ratelimit_rate 1r/s; }\n");

    isnt $code, 0, 'a malformed address';
    unlike $output, qr/wonderland/, 'is reported without its password';

    File::Path::remove_tree($dir);
};


subtest 'metrics are closed to others' => sub {
    my $nginx = RateLimit::Nginx->start(conf => http_of(block_of('Metrics')));
    my $url = $nginx->url('/metrics');

    like `curl -s $url`, qr/^nginx_ratelimit_build_info/m, 'for this machine';
    is `curl -s -o /dev/null -w '%{http_code}' --interface 127.0.0.2 $url`, 403,
       'for no other';

    $nginx->finish;
};


subtest 'Redis does no more than is listed' => sub {

    # replies that are none, and one that never ends

    for ({ reply => "HTTP/1.1 200 OK\r\n\r\n" },
         { reply => ":99999999999999999999\r\n" },
         { reply => "*2000000000\r\n" },
         { reply => "\$100000000\r\n", stream => 1_000_000 })
    {
        my $reply = $_->{reply};
        my $fake = RateLimit::FakeRedis->start(policy => { eval => $_ });
        my $addr = $fake->addr;
        my $nginx = RateLimit::Nginx->start(
            workers => 1, conf => "ratelimit_shards $addr;",
            server => 'ratelimit_capacity 3; ratelimit_rate 1r/d;');

        my @statuses = map { $nginx->get('/x')->{status} } 1 .. 5;

        is "@statuses", '404 404 404 429 429',
           'this machine decides: ' . $reply =~ s/\r\n.*//sr;
        $nginx->finish(same_workers => 1);
    }
};


done_testing();
