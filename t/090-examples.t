# Every file of conf-examples/: nginx takes it, the commands in its head answer
# what it says there, and it does what its comments promise.  An example without
# a test fails.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(slurp wait_until);

my @SHARDS = (6379, 6380, 6381);

my @redis = RateLimit::Redis->start_many(scalar @SHARDS);
my $nginx;

my %port = map { $SHARDS[$_] => $redis[$_]->port } 0 .. $#SHARDS;

# a busy machine must not make Redis look dead
my $patient = "ratelimit_redis_timeout 20s;\n"
              . "ratelimit_redis_connect_timeout 20s;\n";


# The text of an example with ports of this test, as "make run" does it.

sub text_of {
    my ($file) = @_;

    my $text = slurp("conf-examples/$file");

    $text =~ s/\b(638[01]|6379)\b/$port{$1}/g;
    $text =~ s/\b8080\b/%%PORT%%/g;
    $text =~ s/\b8081\b/%%PORT2%%/g;

    return $patient . $text;
}


# Reloads; from then on no worker has the old configuration.

sub reconfigure {
    my ($text) = @_;

    return $nginx->reload(conf => $text) && $nginx->old_workers_gone(10);
}


# One request, by curl from another address of this machine if one is named.

sub get {
    my ($path, %opt) = @_;

    return RateLimit::Load::get($nginx->port, $path, %{ $opt{headers} || {} })
        if !defined $opt{from};

    my $url = $nginx->url($path);
    my $text = `curl -sim 30 --interface $opt{from} $url`;

    my ($status) = $text =~ m{^HTTP/1.1 (\d+)};
    my %headers = map { lc $_->[0] => $_->[1] }
                  map { [/^(\S+): (.*?)\r?$/] } $text =~ /^(\S+: .*)$/mg;

    return { status => $status // 0, headers => \%headers };
}


sub statuses {
    my ($n, @args) = @_;

    return join ' ', map { get(@args)->{status} } 1 .. $n;
}


# All keys of all shards.

sub keys_in_redis {
    return sort map { @{ $_->cmd('KEYS', '*') } } @redis;
}


sub limit_of {
    my ($response) = @_;

    return join ' of ', map { $_ // '-' }
           @{ $response->{headers} }{qw(x-ratelimit-remaining
                                        x-ratelimit-limit)};
}


my %behaviour;


$behaviour{'simple.conf'} = sub {
    my $response = get('/');

    is $response->{status}, 200, 'no rate: not limited';
    is_deeply [grep { /ratelimit/ } keys %{ $response->{headers} }], [],
              'and no headers';

    is limit_of(get('/reports/today')), '19 of 100',
       'a nested location takes from the same bucket, by its own cost';

    $response = get('/trial');
    is $response->{status}, 200, 'a dry run passes';
    is limit_of($response), '0 of 1', 'its headers say how it stands';
    is $response->{headers}{'retry-after'}, undef, 'and tell nobody to wait';
    ok $nginx->log_like(qr/ratelimit REJECTED_DRY_RUN, limit: "localhost\/trial"/),
       'it is logged';

    is statuses(1, '/api/'), 429, 'this client has used up its bucket';
    is get('/api/', from => '127.0.0.2')->{status}, 200, 'another has its own';

    is_deeply [keys_in_redis()],
              [map { "ratelimit:localhost$_" }
                   '/api/:{127.0.0.1}', '/api/:{127.0.0.2}',
                   '/login:{127.0.0.1}', '/reports/:{127.0.0.1}',
                   '/trial:{127.0.0.1}'],
              'the buckets';

    my $shard = get('/api/')->{headers}{'x-shard'};
    my ($home) = grep { $_->addr eq $shard } @redis;

    ok $home, 'X-Shard is one of the shards';
    cmp_ok $home->cmd('PTTL', 'ratelimit:localhost/api/:{127.0.0.1}'), '>', 0,
           'and has the bucket, with a time to live';
};


$behaviour{'tiers.conf'} = sub {
    my %as = map { $_ => { headers => { Authorization => "Bearer $_-token" } } }
             qw(alice bob carol dave mallory);

    is get('/')->{status}, 429, 'who has no account is out of tokens';
    is get('/', %{ $as{mallory} })->{status}, 429,
       'a made-up token is no account';

    like limit_of(get('/', %{ $as{bob} })), qr/^9[89] of 100$/,
         'bob is on the same address, but has a bucket of his own';
    is limit_of(get('/', %{ $as{dave} })), '9 of 10', 'dave has no plan: free';
    is limit_of(get('/', %{ $as{carol} })), '9 of 10',
       "carol's plan is not defined: free";

    ok !$nginx->log_like(qr/invalid value/), 'no value was invalid';

    # a changed plan applies to the live bucket

    my $text = text_of('tiers.conf');

    ok $text =~ s/alice    enterprise;/alice    pro;/, 'alice goes to pro';
    ok reconfigure($text), 'after a reload';
    is limit_of(get('/', %{ $as{alice} })), '99 of 100',
       'her bucket holds what the new plan allows';
};


$behaviour{'api-keys.conf'} = sub {
    my $acme = { headers => { 'X-Api-Key' => '5f1c0e7a' } };

    is get('/', %$acme)->{body}, "client: acme, key: \n",
       'the application is told the owner, not the key';
    is limit_of(get('/', headers => { 'X-Api-Key' => 'c93b24d8' })),
       '99 of 100', 'another key has another bucket';
    is get('/')->{status}, 429, 'no key: by address, as with a made-up one';

    is_deeply [keys_in_redis()],
              [map { "ratelimit:localhost/:{$_}" }
                   'address:127.0.0.1', 'client:acme', 'client:globex'],
              'no key is in Redis';

    ok $nginx->wait_log(qr/ratelimit REJECTED, .* key: "address:127.0.0.1"/),
       'rejections are logged';
    unlike $nginx->error_log . $nginx->access_log, qr/5f1c0e7a|made-up/,
           'no key is in the logs';
};


$behaviour{'load-balancer.conf'} = sub {
    is_deeply [keys_in_redis()],
              [map { "ratelimit:localhost/:{$_}" }
                   '2001:db8:1:2::', '203.0.113.7', '203.0.113.8'],
              'the clients are those of the header, IPv6 by network';

    is get('/', headers => { 'X-Forwarded-For' => '2001:db8:1:3::1' })
       ->{status}, 200, 'another IPv6 network has its own bucket';
    is get('/', headers => { 'X-Forwarded-For' => '203.0.113.7, 10.1.2.3' })
       ->{status}, 429, 'two balancers in a row';

    # from elsewhere the header counts for nothing

    my $text = text_of('load-balancer.conf');

    ok $text =~ s/^set_real_ip_from 127\.0\.0\.1;//m, 'without 127.0.0.1';
    ok reconfigure($text), 'in the list';
    is join(' ', map { get('/', headers => { 'X-Forwarded-For' => "192.0.2.$_" })
                       ->{status} } 1 .. 4),
       '200 200 200 429', 'the header does not help';
    is scalar(grep { /\{127\.0\.0\.1\}/ } keys_in_redis()), 1,
       'the address of the connection is limited';
};


$behaviour{'whitelist.conf'} = sub {
    is_deeply [keys_in_redis()], ['ratelimit:localhost:{127.0.0.2}'],
              'only who is limited has a bucket';

    my $response = get('/');

    is $response->{status}, 200, 'not limited';
    is_deeply [grep { /ratelimit/ } keys %{ $response->{headers} }], [],
              'and no headers';
    is get('/', from => '127.0.0.2')->{status}, 429, 'another is';
    ok $nginx->log_like(qr/ratelimit SKIPPED, limit: "localhost", /), 'logged';
};


$behaviour{'json-error-page.conf'} = sub {
    my $json = sub { JSON::PP::decode_json($_[0]{body}) };

    my ($key) = keys_in_redis();
    my ($home) = grep { $_->cmd('EXISTS', $key) } @redis;
    my $before = $home->cmd('HGETALL', $key);

    my $response = get('/');

    is $response->{status}, 429, 'rejected';
    is $response->{headers}{'content-type'}, 'application/json', 'JSON';
    is $json->($response)->{error}, 'rate_limited', 'its error';
    is $json->($response)->{limit}, 2, 'its limit';
    is $json->($response)->{retry_after}, $response->{headers}{'retry-after'},
       'the time of the header';
    is_deeply $home->cmd('HGETALL', $key), $before,
              'a rejected request and its error page take nothing';

    # Redis away

    $home->stop;

    ok wait_until(sub { get('/')->{status} == 503 }), 'rejected without Redis';
    $response = get('/');
    is $response->{headers}{'content-type'}, 'application/json', 'JSON';
    is_deeply $json->($response), { error => 'unavailable', retry_after => 1 },
              'its body';
    is $response->{headers}{'retry-after'}, 1, 'Retry-After';

    $home->start;
    ok wait_until(sub { get('/')->{status} == 200 }, 15), 'Redis is back';

    # a limit that never refills

    my $text = text_of('json-error-page.conf');

    ok $text =~ s{2r/m;}{0r/s;}, 'a rate of zero';
    ok reconfigure($text), 'after a reload';
    ok wait_until(sub { ($response = get('/'))->{status} == 429 }),
       'the bucket is empty for good';
    is $json->($response)->{retry_after}, undef, 'null is what JSON has for it';
    is $response->{headers}{'retry-after'}, undef, 'and there is no header';
};


my @files = map { s{.*/}{}r } glob 'conf-examples/*';

cmp_ok scalar @files, '>=', 6, 'there are examples';
is_deeply [sort keys %behaviour], [sort @files],
          'each example has a test, each test an example';

for my $file (@files) {
    subtest $file => sub {
        my $source = slurp("conf-examples/$file");

        like $source, qr{^\# .*include\ conf-examples/\Q$file\E;$}mx,
             'says how to use it';
        like $source,
             qr/^ratelimit_shards\ 127\.0\.0\.1:6379\ 127\.0\.0\.1:6380
                \ 127\.0\.0\.1:6381;$/mx, 'three shards';
        is_deeply [sort { $a <=> $b } $source =~ /^\s*listen\s+(?:\S*:)?(\d+);/mg],
                  [8080, 8081], 'ports that "make run" replaces';
        unlike $source, qr/[^\n -~]|\t| $/m, 'plain text';

        my ($code, $output) = RateLimit::Nginx->test_config(
                                  conf => text_of($file));
        is $code, 0, 'nginx -t' or diag $output;

        $_->cmd('FLUSHALL') for @redis;
        $nginx = RateLimit::Nginx->start(conf => text_of($file));

        # what "make run" shows

        my ($try) = $source =~ /^# Try it[^\n]*\n(.*?)^[^#]/ms;
        my @steps = RateLimit::Transcript::parse(
                        ($try // '') =~ s/^#(?: {5})?//mgr);

        cmp_ok scalar @steps, '>=', 2, 'there is something to try';

        for my $step (@steps) {
            my ($name) = $step->{command} =~ /^([^\n]*)/;
            RateLimit::Transcript::check($name, $step, %port,
                                         8080 => $nginx->port);
        }

        $behaviour{$file}->();

        ok $nginx->stop, 'stopped';
        $nginx->no_alerts;
        undef $nginx;
    };
}


done_testing();
