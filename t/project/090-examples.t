# Every file of conf-examples/: nginx takes it, the commands in its head answer
# what it says there, and it does what its comments promise.  An example without
# a test fails.  EXAMPLE=cors in the environment: only conf-examples/cors.conf.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use JSON::PP ();

use RateLimit::Calendar;
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
    $text =~ s/\b8082\b/%%PORT3%%/g;

    return $patient . RateLimit::Nginx->http2_of($text);
}


# Reloads; from then on no worker has the old configuration.

sub reconfigure {
    my ($text) = @_;

    return $nginx->reload(conf => $text) && $nginx->old_workers_gone(10);
}


# One request, by curl from another address of this machine if one is named.

sub get {
    my ($path, %opt) = @_;

    return $nginx->get($path, %{ $opt{headers} || {} })
        if !defined $opt{from};

    my $url = $nginx->url($path);
    my $text = `curl -sim 30 --interface $opt{from} $url`;

    my ($status) = $text =~ m{^HTTP/1.1 (\d+)};
    my %headers = map { lc $_->[0] => $_->[1] }
                  map { [/^(\S+): (.*?)\r?$/] } $text =~ /^(\S+: .*)$/mg;

    return { status => $status // 0, headers => \%headers };
}


# The same with a method and a body.

sub post {
    my ($path, $body, %headers) = @_;

    return RateLimit::Load::request($nginx->port, 'POST', $path, \%headers,
                                    $body);
}


sub statuses {
    my ($n, @args) = @_;

    return join ' ', map { get(@args)->{status} } 1 .. $n;
}


# All keys of all shards.

sub keys_in_redis {
    return sort map { @{ $_->cmd('KEYS', '*') } } @redis;
}


# A field of a bucket, or undef.

sub tokens_of {
    my ($key) = @_;

    my ($home) = grep { $_->cmd('EXISTS', $key) } @redis;

    return $home ? $home->tokens($key) : undef;
}


sub json_of {
    my ($response) = @_;

    return JSON::PP::decode_json($response->{body});
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
    is_deeply [grep { /ratelimit|retry/ } keys %{ $response->{headers} }], [],
              'and tells clients nothing';
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

    my $shard;

    ok wait_until(sub { $shard = get('/api/')->{headers}{'x-shard'} }),
       'Redis is asked again after a second';

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

    # the log

    my $digest = sub { 'sha1:' . substr sha1_hex($_[0]), 0, 16 };
    my ($address, $client) = map { $digest->($_) } 'address:127.0.0.1',
                                                   'client:acme';

    ok $nginx->wait_log(qr/ratelimit REJECTED, .* key: "$address"/),
       'rejections are logged';
    ok $nginx->wait_log(qr/ratelimit PASSED, .* key: "$client"/),
       'the digest is that of the key';
    unlike $nginx->error_log . $nginx->access_log, qr/5f1c0e7a|made-up/,
           'no API key is in the logs';
    unlike $nginx->error_log, qr/acme|globex/, 'nor the name of an owner';

    my $log = $nginx->dir . '/logs/error.log';
    my ($grep) = slurp('conf-examples/api-keys.conf')
                 =~ /^#     (grep .*) error\.log$/m;

    like scalar(qx($grep $log)), qr/$client/, 'the command finds the lines';
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
    my ($key) = keys_in_redis();
    my ($home) = grep { $_->cmd('EXISTS', $key) } @redis;
    my $before = $home->cmd('HGETALL', $key);

    my $response = get('/');

    is $response->{status}, 429, 'rejected';
    is $response->{headers}{'content-type'}, 'application/json', 'JSON';
    is json_of($response)->{error}, 'rate_limited', 'its error';
    is json_of($response)->{limit}, 2, 'its limit';
    is json_of($response)->{retry_after}, $response->{headers}{'retry-after'},
       'the time of the header';
    is_deeply $home->cmd('HGETALL', $key), $before,
       'a rejected request and its error page take nothing';

    # Redis away

    $home->stop;

    ok wait_until(sub { get('/')->{status} == 503 }), 'rejected without Redis';
    $response = get('/');
    is $response->{headers}{'content-type'}, 'application/json', 'JSON';
    is_deeply json_of($response), { error => 'unavailable', retry_after => 1 },
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
    is json_of($response)->{retry_after}, undef, 'null is what JSON has for it';
    is $response->{headers}{'retry-after'}, undef, 'and there is no header';
};


$behaviour{'hierarchy.conf'} = sub {
    my %as = map { $_ => { 'X-Api-Key' => "$_-key" } } qw(alice bob);

    is get('/health', headers => $as{alice})->{status}, 200,
       'where limits are off';
    is limit_of(get('/', from => '127.0.0.3')), '4 of 5', 'no user: by address';
    is limit_of(get('/', from => '127.0.0.3')), '3 of 5', 'and again';

    is_deeply [keys_in_redis()],
              ['ratelimit:global:{everybody}',
               (map { "ratelimit:ip:{127.0.0.$_}" } 1 .. 3),
               'ratelimit:user:{alice}', 'ratelimit:user:{bob}'], 'the buckets';

    ok $nginx->log_like(qr/ratelimit REJECTED, limit: "user", key: "alice"/),
       'the log names the limit';
    ok $nginx->log_like(qr/ratelimit SKIPPED, limit: "user", the key is empty/),
       'also the one that does not apply';

    # exact, under load: nothing refills, and what is rejected costs nothing

    my $text = text_of('hierarchy.conf');

    is $text =~ s{\brate=\S+;}{rate=0r/s;}g, 3, 'without refill';
    $text =~ s/capacity=3 /capacity=30/;
    $text =~ s/capacity=5 /capacity=50/;
    ok reconfigure($text), 'after a reload';
    $_->cmd('FLUSHALL') for @redis;

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 16, requests => 240, keep => 1,
        path => sub { { path => '/', headers => $as{ $_[0] % 2 ? 'alice' : 'bob' } } });

    my %passed;

    for ($load->responses) {
        $passed{ $_->{n} % 2 ? 'alice' : 'bob' } += $_->{status} == 200;
    }

    is $load->errors, 0, 'each request was answered';
    is $passed{alice} + $passed{bob}, 50, 'one address: 50, no more, no less';
    cmp_ok $passed{$_}, '<=', 30, "$_: at most 30" for qw(alice bob);

    my %left = ('global:{everybody}' => 950, 'ip:{127.0.0.1}' => 0,
                map { ("user:{$_}" => 30 - $passed{$_}) } qw(alice bob));

    for my $key (sort keys %left) {
        ok wait_until(sub { tokens_of("ratelimit:$key") == $left{$key} }),
           "$key: $left{$key} are left";
    }
};


$behaviour{'monthly-quota.conf'} = sub {
    is_deeply [keys_in_redis()],
              [map { "ratelimit:$_:{bob}" } qw(day month pace)],
              'two counts and a bucket';

    my ($start, $end) = RateLimit::Calendar->new('month', zone => -18000,
                            anchor => 15)->at(time * 1e6);
    my $r = get('/quota?key=bob');

    is $r->{headers}{'x-ratelimit-remaining'}, 9999, 'of the month';
    cmp_ok abs($r->{headers}{'x-ratelimit-reset'} - $end / 1e6), '<=', 5,
           'which ends on the 15th';

    is get('/?key=bob')->{status}, 200, 'one more';
    ok wait_until(sub {
        get('/quota?key=bob')->{headers}{'x-ratelimit-remaining'} == 9998
    }), 'is counted';
};


$behaviour{'plans.conf'} = sub {
    my %as = map { $_ => { headers => { Authorization => "Bearer $_-token" } } }
             qw(alice bob carol dave);

    is_deeply [keys_in_redis()],
              [map { my $limit = $_;
                     map { "ratelimit:$limit:{account:$_}" }
                         qw(alice bob carol dave) } qw(pace quota)],
              'a bucket and a window for each account';

    # one call for both limits

    $_->cmd('CONFIG', 'RESETSTAT') for @redis;
    like limit_of(get('/', %{ $as{bob} })), qr/ of 50$/, 'bob';

    my @calls = map { $_->info('commandstats')->{cmdstat_evalsha} // () } @redis;

    is scalar @calls, 1, 'asked one shard';
    like $calls[0], qr/^calls=1,/, 'by one call';

    my ($home) = grep { $_->cmd('EXISTS', 'ratelimit:quota:{account:bob}') }
                 @redis;

    is $home->cmd('ZCARD', 'ratelimit:quota:{account:bob}'), 2,
       'an entry for each request that passed';

    # by address

    is statuses(6, '/'), '200 200 200 200 200 429', 'no account: free';
    is get('/export', from => '127.0.0.2')->{status}, 200, 'an export';
    is get('/', from => '127.0.0.2')->{status}, 429, 'costs 5';

    ok !$nginx->log_like(qr/invalid value/), 'no value was invalid';

    # another plan

    my $text = text_of('plans.conf');

    ok $text =~ s/bob      pro;/bob      free;/, 'bob goes to free';
    ok reconfigure($text), 'after a reload';

    my $response = get('/', %{ $as{bob} });

    is limit_of($response), '13 of 20',
       'the 6 that he has used count, and this one';
    is tokens_of('ratelimit:pace:{account:bob}'), '4',
       'his bucket is cut to the plan';
    is $response->{headers}{'ratelimit-policy'},
       '"pace";q=5;w=60, "quota";q=20;w=86400', 'his limits';
    is $home->cmd('ZCARD', 'ratelimit:quota:{account:bob}'), 3,
       'and his window goes on';
};


$behaviour{'quota-page.conf'} = sub {
    my $key = 'ratelimit:client:{127.0.0.1}';

    is_deeply [keys_in_redis()], [$key], 'one bucket';

    my $before = tokens_of($key);

    is statuses(20, '/quota'), join(' ', (200) x 20), 'the page is not limited';
    is tokens_of($key), $before, 'and takes nothing';

    is statuses(8, '/api/'), '200 200 200 200 200 200 200 429', 'used up';
    ok wait_until(sub { json_of(get('/quota'))->{remaining} == 0 }),
       'the page says so';

    my $response = get('/quota');

    is $response->{status}, 200, 'and is still there';
    is $response->{headers}{'retry-after'}, undef, 'it tells nobody to wait';
    cmp_ok abs(json_of($response)->{reset} - time - 3600), '<', 60,
           'when everything is back';

    # not more than one call in 50 ms

    $_->cmd('CONFIG', 'RESETSTAT') for @redis;

    my $text = text_of('quota-page.conf');

    ok $text =~ s/preview_cache 50ms/preview_cache 10s/, 'a longer memory';
    ok reconfigure($text), 'after a reload';
    is statuses(20, '/quota', from => '127.0.0.2'), join(' ', (200) x 20),
       'twenty pages';

    my ($calls) = map { /calls=(\d+)/ }
                  map { $_->info('commandstats')->{cmdstat_evalsha} // () }
                      @redis;

    is $calls, 1, 'one call';
    is get('/api/', from => '127.0.0.2')->{status}, 200, 'a request that takes';
    is get('/api/', from => '127.0.0.2')->{headers}{'x-ratelimit-remaining'}, 8,
       'asks Redis';

    # Redis away: what this machine has granted

    ok reconfigure(text_of('quota-page.conf')), 'as it was';
    $_->stop for @redis;
    ok wait_until(sub { json_of(get('/quota'))->{status} eq 'DEGRADED' }),
       'Redis is away';
    is statuses(3, '/api/', from => '127.0.0.3'), '200 200 200', 'three pass';

    my $url = $nginx->url('/quota');

    like `curl -sm 30 --interface 127.0.0.3 $url`,
         qr/^\{"limit":10,"remaining":7,"reset":\d+,"status":"DEGRADED"\}$/,
         'the page tells of them';

    # or nothing is known

    ok reconfigure("ratelimit_on_error open;\n" . text_of('quota-page.conf')),
       'no limit without Redis';
    ok wait_until(sub { json_of(get('/quota'))->{status} eq 'DEGRADED' }),
       'it is still away';
    is_deeply json_of(get('/quota')),
              { limit => undef, remaining => undef, reset => undef,
                status => 'DEGRADED' }, 'the page is JSON all the same';
    $_->start for @redis;
};


$behaviour{'login-protection.conf'} = sub {
    my %login = (alice => 'YWxpY2U6c2VjcmV0', bob => 'Ym9iOnNlY3JldA==');
    my %as = map { $_ => { Authorization => "Basic $login{$_}" } } keys %login;

    is_deeply [keys_in_redis()],
              [sort 'ratelimit:account:{alice}', 'ratelimit:account:{bob}',
                    (map { "ratelimit:account:{user-$_}" } 1 .. 5),
                    (map { "ratelimit:address:{127.0.0.$_}" } 1, 2)],
              'no window for what was rejected';

    my $entries = sub {
        my ($key) = @_;

        my ($home) = grep { $_->cmd('EXISTS', $key) } @redis;
        return $home->cmd('ZCARD', $key);
    };

    is $entries->('ratelimit:account:{alice}'), 5, 'five attempts on alice';
    is $entries->('ratelimit:address:{127.0.0.1}'), 10, 'ten from the address';

    my $wait = sub { get('/login', headers => $as{bob})
                     ->{headers}{'retry-after'} };
    my $before = $wait->();

    get('/login', headers => $as{bob}) for 1 .. 5;
    cmp_ok $wait->(), '<=', $before, 'to go on does not prolong the wait';
    is $entries->('ratelimit:address:{127.0.0.1}'), 10, 'and leaves no trace';

    my $response = get('/login', from => '127.0.0.3');

    is $response->{status}, 401, 'no name: the password is asked for';
    is $response->{headers}{'www-authenticate'}, 'Basic realm="example"',
       'by the application';
    ok $nginx->log_like(qr/SKIPPED, limit: "account", the key is empty/),
       'such a request is nobody\'s';

    # Redis away

    $_->stop for @redis;
    ok wait_until(sub { get('/login', headers => $as{alice})->{status} == 503 }),
       'no logins without Redis';
    $_->start for @redis;
    ok wait_until(sub { get('/login', headers => $as{alice})->{status} == 200 },
                  15), 'Redis is back';
};


$behaviour{'shadow-rollout.conf'} = sub {
    my $rejected = sub {
        my ($limit) = @_;

        return $nginx->log_count(
            qr/\[error\].* ratelimit REJECTED_DRY_RUN, limit: "\Q$limit\E"/);
    };

    # requests 3 to 5; the last two were rejected by the other limit as well,
    # which may not have needed Redis for the second of them
    like $rejected->('tomorrow'), qr/^[34]$/,
         'what it would have rejected is logged';
    is $rejected->('localhost/new/'), 2, 'also where nothing is enforced';
    is $nginx->log_count(qr/ratelimit REJECTED, limit: "today"/), 2,
       'what was rejected';

    cmp_ok tokens_of('ratelimit:tomorrow:{127.0.0.1}'), '<', 0.1,
           'the shadow has counted';
    is get('/api/', from => '127.0.0.2')->{headers}{'x-ratelimit-limit'}, 4,
       'it never speaks';

    # the access log, then the next step

    my $text = text_of('shadow-rollout.conf');

    ok $text =~ s{# (access_log) /var/log/nginx/(limits\.log)}
                 {$1 %%DIR%%/logs/$2}, 'a log of its own';
    ok reconfigure($text), 'after a reload';

    is get('/api/', from => '127.0.0.2')->{status}, 200, 'a request';
    is get('/new/')->{status}, 200, 'another one';

    my $log = $nginx->dir . '/logs/limits.log';

    ok wait_until(sub { slurp($log) =~ m{/new/} }), 'is logged';
    like slurp($log),
         qr{^127\.0\.0\.2 "GET /api/ HTTP/1\.1" 200 today PASSED 2/4 wait=-$}m,
         'with the limit that holds';
    like slurp($log),
         qr{"GET\ /new/\ HTTP/1\.1"\ 200\ localhost/new/\ REJECTED_DRY_RUN
            \ 0/1\ wait=\d+$}mx, 'with the one that is tried';

    ok $text =~ s/ dry_run;/;/, 'the limit is enforced';
    ok reconfigure($text), 'after a reload';

    my $response = get('/api/', from => '127.0.0.2');

    is $response->{status}, 429, 'its bucket is the old one';
    is $response->{headers}{'x-ratelimit-limit'}, 2, 'and it speaks';
};


$behaviour{'graphql-costs.conf'} = sub {
    is post('/graphql', 'x' x 100000, 'X-Operation' => 'getUser')->{status}, 429,
       'too large';
    ok $nginx->log_like(qr/\[warn\].* cost 100000 is above capacity 1000 of limit "upload"/),
       'can never pass';

    my $response = RateLimit::Load::request($nginx->port, 'POST', '/graphql',
        { 'X-Operation' => 'getUser', 'Transfer-Encoding' => 'chunked' },
        "1\r\nx\r\n0\r\n\r\n");

    is $response->{status}, 429, 'chunked: as much as the largest';
    is json_of($response)->{blocking_limit}, 'upload', 'by size';

    is get('/graphql', from => '127.0.0.2')->{headers}{'x-ratelimit-remaining'},
       99, 'GET is cheap';
    is post('/graphql', '')->{status}, 429, 'no operation: the highest price';

    my $head = `curl -sI --interface 127.0.0.2 ${\ $nginx->url('/graphql')}`;

    like $head, qr/^X-RateLimit-Remaining: 98\r?$/m, 'HEAD as well';

    # what is sent without a length over HTTP/2, where nothing tells of a body

    my $text = text_of('graphql-costs.conf');

    ok $text =~ s/( +)%%PORT%%;/$1%%PORT%% http2;/, 'HTTP/2';
    ok reconfigure($text), 'after a reload';

    my $upload = sub {
        my ($method) = @_;

        my $curl = "curl -sSi --max-time 60 --http2-prior-knowledge -T -"
                   . " --interface 127.0.0.3 -H 'X-Operation: getUser'";

        return scalar qx(printf %20000s | $curl -X $method ${\ $nginx->url('/graphql')});
    };

    like $upload->('POST'), qr/^x-ratelimit-remaining: 700\r?$/m,
         'a POST without a length: as much as the largest';
    like $upload->('GET'), qr/^x-ratelimit-remaining: 699\r?$/m,
         'a GET has no body that goes anywhere';

    ok !$nginx->log_like(qr/invalid value/), 'no value was invalid';
};


$behaviour{'authenticated-users.conf'} = sub {
    my $alice = { headers => { Authorization => 'Bearer alice-1' } };

    is_deeply [keys_in_redis()],
              ['ratelimit:user:{alice}', 'ratelimit:user:{bob}'],
              'who is nobody has no bucket';

    is get('/', %$alice)->{status}, 429, 'alice is out of tokens';
    is get('/auth')->{status}, 404, 'the check is not for the public';

    # as it would be in the access phase

    my $text = text_of('authenticated-users.conf');

    ok $text =~ s/ratelimit_phase precontent;/ratelimit_phase access;/,
       'before authentication';
    ok reconfigure($text), 'after a reload';
    is statuses(6, '/', %$alice), '200 200 200 200 200 200',
       'nobody would be limited';
};


$behaviour{'monitoring.conf'} = sub {
    my $metrics = sub {
        my ($path) = @_;
        return RateLimit::Load::get($nginx->port(3), $path // '/metrics');
    };

    my $count = sub {
        my ($labels) = @_;

        my ($n) = $metrics->()->{body}
                  =~ /^nginx_ratelimit_requests_total\{\Q$labels\E\} (\d+)$/m;
        return $n;
    };

    # by Redis, or, if both limits are on one shard, as known from before
    my $rejected = sub {
        my $n = 0;

        $n += $count->(qq{limit="client",decision="rejected",source="$_"}) // 0
            for qw(redis denied);
        return $n;
    };

    is $rejected->(), 1, 'one';
    is get('/')->{status}, 429, 'one more is rejected';
    is $rejected->(), 2, 'and counted';

    my $response = $metrics->();

    like $response->{headers}{'content-type'}, qr{^text/plain; version=0\.0\.4},
         'as Prometheus wants it';
    is $response->{headers}{'x-ratelimit-limit'}, undef, 'no limit here';
    is $metrics->('/')->{status}, 404, 'nor anything else';
    is ref json_of($metrics->('/metrics?format=json')), 'HASH', 'JSON, too';

    unlike $nginx->access_log, qr{/metrics}, 'and not in the log';

    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    is $rejected->(), 2, 'is no reason to forget';
};


$behaviour{'leases.conf'} = sub {
    my ($a, $b) = map { { headers => { 'X-Api-Key' => $_ } } } qw(a b);
    my $bucket = 'ratelimit:localhost/api/:{alice}';
    my $gcra = 'ratelimit:localhost/search:{bob}';

    is_deeply [keys_in_redis()], [$bucket, $gcra], 'a bucket for each key';

    my ($home) = grep { $_->cmd('EXISTS', $gcra) } @redis;

    is $home->cmd('TYPE', $gcra), 'string', 'that of gcra is a string';

    # whoever is rejected is rejected here, though Redis would not do so now

    my $response = get('/search', %$b);

    is $response->{headers}{'x-source'}, 'denied', 'a rejection';
    cmp_ok $response->{headers}{'retry-after'}, '<=', 60, 'with its time';
    $home->cmd('DEL', $gcra);
    is get('/search', %$b)->{status}, 429, 'is remembered';
    ok wait_until(sub { get('/search', %$b)->{status} == 200 }, 20),
       'not for long';

    # what is left of a lease goes back

    my $text = text_of('leases.conf');

    ok $text =~ s{100r/s}{1r/d}, 'a limit that hardly refills';
    ok reconfigure($text), 'after a reload';
    $_->cmd('FLUSHALL') for @redis;

    my $left = sub { tokens_of($bucket) // 1000 };

    is join(' ', map { get('/api/', %$a)->{headers}{'x-source'} } 1 .. 4),
       'redis redis lease redis', 'four requests';
    cmp_ok $left->(), '<', 994, 'three tokens are held';
    ok wait_until(sub { abs($left->() - 996) < 0.1 }), 'and given back';

    # never more than the limit, by few calls, never more held than configured

    ok $text =~ s{capacity 1000}{capacity 200}, 'a smaller bucket';
    ok reconfigure($text), 'after a reload';
    $_->cmd('FLUSHALL') for @redis;
    $_->cmd('CONFIG', 'RESETSTAT') for @redis;

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 1,
                                    requests => 300, path => '/api/', keep => 1,
                                    headers => { 'X-Api-Key' => 'a' });

    is_deeply $load->statuses, { 200 => 200, 429 => 100 }, '200, and no more';

    my ($calls) = map { /calls=(\d+)/ }
                  map { $_->info('commandstats')->{cmdstat_evalsha} // () }
                      @redis;

    cmp_ok $calls, '<', 60, 'by few calls';

    my %count;

    $count{ $_->{headers}{'x-source'} }++ for $load->responses;
    is $count{redis} + $count{lease} + $count{denied}, 300, 'three sources';
    cmp_ok $count{lease}, '>', 150, 'most of them by leases';
    cmp_ok $count{denied}, '>=', 90, 'and by what is known';
};


$behaviour{'local.conf'} = sub {
    is_deeply [keys_in_redis()], [], 'Redis has nothing to do with it';
    is get('/api/', from => '127.0.0.2')->{headers}{'x-source'}, 'local',
       'another client';
    is get('/api/')->{status}, 429, 'who is out of tokens is told so';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    is get('/api/')->{status}, 429, 'is no reason to forget';
    is get('/login')->{status}, 429, 'neither is it for windows';

    # exact, by both workers

    my $text = text_of('local.conf');

    ok $text =~ s{capacity=3    rate=9r/m}{capacity=50 rate=0r/s},
       'without refill';
    ok $text =~ s{key=\$ratelimit_client_net}{key=\$arg_k}, 'by another key';
    ok reconfigure($text), 'after a reload';

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                    requests => 200, path => '/api/?k=load',
                                    close => 1);

    is_deeply $load->statuses, { 200 => 50, 429 => 150 }, '50, and no more';
    ok !$nginx->log_like(qr/redis/i), 'and nothing is missing';
};


$behaviour{'fallback.conf'} = sub {
    is statuses(2, '/search'), '200 429', 'with Redis it is limited';
    is statuses(4, '/reset'), '200 200 200 429', 'and it is open';

    my ($home) = grep { $_->cmd('EXISTS', 'ratelimit:localhost/api/:{127.0.0.1}') }
                 @redis;

    $home->kill9;
    ok wait_until(sub {
        get('/chat')->{headers}{'x-ratelimit-degraded'}
    }), 'a shard is gone';

    # what Redis has denied before holds for a second
    ok wait_until(sub { get('/reset')->{headers}{'x-source'} ne 'denied' }),
       'denials are forgotten';
    ok wait_until(sub { get('/search')->{headers}{'x-source'} ne 'denied' }),
       'elsewhere, too';

    is statuses(4, '/reset', from => '127.0.0.1'), '503 503 503 503', 'closed';
    is statuses(2, '/search'), '200 200', 'open';
    is get('/chat')->{headers}{'x-ratelimit-limit'}, 4, 'all of a limit';

    ok $nginx->wait_log(qr/ratelimit: redis \S+ is unavailable/),
       'the log says so';
    $home->start;
    ok wait_until(sub { get('/chat')->{headers}{'x-source'} eq 'redis' }, 15),
       'and is back';
    ok $nginx->wait_log(qr/ratelimit: redis \S+ is available again/),
       'the log says so';
};


$behaviour{'cors.conf'} = sub {
    my $origin = 'https://app.example.com';

    # What a browser does: the preflight must allow the request, and the response
    # must name the origin once.  Returns what JavaScript gets to see of it: the
    # status and the exposed headers, or undef.

    my $fetch = sub {
        my ($from, $method, @headers) = @_;

        my $preflight = RateLimit::Load::request(
            $nginx->port, 'OPTIONS', '/api/',
            { Origin => $from, 'Access-Control-Request-Method' => $method,
              'Access-Control-Request-Headers' => join ',', map { lc } @headers });
        my $h = $preflight->{headers};

        return undef if $preflight->{status} !~ /^2/
            || ($h->{'access-control-allow-origin'} // '') ne $from
            || !grep({ $_ eq $method }
                     split /, */, $h->{'access-control-allow-methods'} // '');

        my %allowed = map { lc, 1 }
                      split /, */, $h->{'access-control-allow-headers'} // '';

        return undef if grep { !$allowed{ lc $_ } } @headers;

        my $response = RateLimit::Load::request(
            $nginx->port, $method, '/api/',
            { Origin => $from, map { $_ => 'x' } @headers });

        $h = $response->{headers};

        return undef if ($h->{'access-control-allow-origin'} // '') ne $from;

        my %exposed = map { lc, 1 }
                      split /, */, $h->{'access-control-expose-headers'} // '';

        return { status => $response->{status},
                 map { $_ => $h->{$_} } grep { $exposed{$_} } keys %$h };
    };

    my $seen = $fetch->($origin, 'PUT', 'Authorization', 'Content-Type');

    is $seen->{status}, 429, 'JavaScript sees the status';
    like $seen->{'retry-after'}, qr/^[1-9]\d*$/, 'Retry-After';
    is $seen->{'x-ratelimit-limit'}, 2, 'the limit';
    is $seen->{'x-ratelimit-remaining'}, 0, 'what remains';
    like $seen->{'x-ratelimit-reset'}, qr/^\d{10}$/, 'and the time of the reset';
    is $fetch->('https://evil.example', 'GET'), undef, 'other origins see nothing';
    is $fetch->($origin, 'PATCH'), undef, 'the method is not allowed';
    is $fetch->($origin, 'GET', 'X-Other'), undef, 'nor is the header';

    is_deeply [keys_in_redis()], ['ratelimit:localhost/api/:{127.0.0.1}'],
              'one bucket';

    $_->cmd('FLUSHALL') for @redis;

    my $preflight = RateLimit::Load::request($nginx->port, 'OPTIONS', '/api/',
                                             { Origin => $origin });

    is $preflight->{headers}{'x-ratelimit-limit'}, undef,
       'a preflight has no headers of the limit';
    is_deeply [keys_in_redis()], [], 'and takes nothing';

    # as it would be without "always"

    my $text = text_of('cors.conf');

    is $text =~ s/ always;/;/g, 6, 'without "always"';
    ok reconfigure($text), 'after a reload';
    ok wait_until(sub { get('/api/')->{status} == 200 }), 'a request';
    is $fetch->($origin, 'GET')->{status}, 200, 'another one';
    is $fetch->($origin, 'GET'), undef, 'the rejection is hidden';

    # a backend that does CORS, too

    $text = text_of('cors.conf');
    ok $text =~ s{(default_type application/json;)}
                 {$1 add_header Access-Control-Allow-Origin *;}, 'a backend';
    ok reconfigure($text), 'after a reload';
    is get('/api/', from => '127.0.0.2')->{status}, 200, 'a request';

    my $url = $nginx->url('/api/');
    my $head = `curl -sim 30 --interface 127.0.0.2 -H 'Origin: $origin' $url`;

    is_deeply [$head =~ /^Access-Control-Allow-Origin: (\S+)/mgi], [$origin],
              'one header';
};


# One call over HTTP/2: a hash of headers, with ":status" and the body.

sub grpc {
    my ($path, %opt) = @_;

    my $from = $opt{from} // '127.0.0.1';
    my $curl = "curl -sSim 30 --http2-prior-knowledge -X POST --interface $from"
               . " -H 'TE: trailers' -H 'Content-Type: application/grpc'";
    my $text = qx($curl ${\ $nginx->url($path)} 2>&1);
    my ($head, $body) = split /\r\n\r\n/, $text, 2;
    my ($status) = $head =~ m{^HTTP/2 (\d+)};

    return { ':status' => $status, body => $body,
             $head =~ /^([\w-]+): (.*?)\r?$/mg };
}


$behaviour{'grpc.conf'} = sub {
    my $path = '/shop.Orders/Get';
    my $call = grpc($path);

    is $call->{':status'}, 200, 'HTTP status';
    is $call->{'content-type'}, 'application/grpc', 'Content-Type';
    is $call->{'grpc-status'}, 8, 'RESOURCE_EXHAUSTED';
    is $call->{'grpc-message'}, 'rate limit "localhost/shop.Orders/" exceeded',
       'the message';
    is $call->{body}, '', 'no body';
    like $call->{'retry-after'}, qr/^\d+$/, 'Retry-After';
    is $call->{'grpc-retry-pushback-ms'}, $call->{'retry-after'} . '000',
       'in milliseconds for gRPC';
    is grpc($path, from => '127.0.0.2')->{'grpc-status'}, 0, 'another client';

    # headers are all there is: the stream ends with them

    SKIP: {
        my $nghttp = qx(nghttp -nv -H ':method: POST' ${\ $nginx->url($path)} 2>&1);

        skip 'nghttp is not installed', 1 if $nghttp !~ /HEADERS/;

        like $nghttp, qr/recv\ HEADERS\ frame\ <[^>]*>\s*;\ END_STREAM
                         \ \|\ END_HEADERS/x, 'a response of trailers only';
    }

    # a limit that never refills; no service; no Redis

    my $text = text_of('grpc.conf');

    ok $text =~ s{2r/m;}{0r/s;}, 'a rate of zero';
    ok reconfigure($text), 'after a reload';
    grpc($path, from => '127.0.0.3') for 1 .. 2;
    $call = grpc($path, from => '127.0.0.3');
    is $call->{'grpc-status'}, 8, 'rejected';
    is $call->{'grpc-retry-pushback-ms'}, -1, 'for good';

    ok $text =~ s{(grpc_pass) \S+;}{$1 grpc://127.0.0.1:1;}, 'no service';
    ok reconfigure("ratelimit_on_error closed;\n$text"), 'after a reload';
    $call = grpc($path, from => '127.0.0.4');
    is $call->{':status'}, 200, 'HTTP status';
    is $call->{'content-type'}, 'application/grpc', 'Content-Type';
    is $call->{'grpc-status'}, 14, 'UNAVAILABLE';

    $_->stop for @redis;
    ok wait_until(sub {
        $call = grpc($path, from => '127.0.0.5');
        $call->{'x-ratelimit-degraded'}
    }), 'no Redis';
    is $call->{'grpc-status'}, 14, 'UNAVAILABLE';
    $_->start for @redis;
};


$behaviour{'websocket.conf'} = sub {
    my @handshake = (Connection => 'Upgrade', Upgrade => 'websocket',
                     'Sec-WebSocket-Version' => 13,
                     'Sec-WebSocket-Key' => 'dGhlIHNhbXBsZSBub25jZQ==');

    my $response = get('/chat', headers => { @handshake });

    is $response->{status}, 429, 'rejected';
    like $response->{headers}{'retry-after'}, qr/^\d+$/, 'Retry-After';

    # An application that keeps connections open.  It is nginx, so what it
    # understands on them is another request.

    my $text = "ratelimit_deny_cache off;\n" . text_of('websocket.conf');

    ok $text =~ s/keepalive_timeout 0;//, 'an application that does not hang up';
    ok reconfigure($text), 'after a reload';
    $_->cmd('FLUSHALL') for @redis;

    my $connect = sub {
        my $c = RateLimit::Load::connection($nginx->port);
        my $response = $c->send('/chat', @handshake)->response(30);

        return ($response->{status}, $c);
    };
    my $says = sub { $_[0]->send('/')->response(30)->{body} };

    my @open = map { [$connect->()] } 1 .. 3;

    is join(' ', map { $_->[0] } @open), '101 101 101', 'three connections';
    is(($connect->())[0], 429, 'no more');
    is $says->($_->[1]), "hello from the backend\n", 'an open one goes on'
        for @open;
    is tokens_of('ratelimit:handshakes:{127.0.0.1}') < 0.5, 1,
       'what is sent on it takes nothing';

    ok $nginx->reload, 'a reload';
    is $says->($open[0][1]), "hello from the backend\n", 'does not close it';

    # as many as may be open

    ok $text =~ s/open_sockets 10;/open_sockets 3;/, 'a smaller number';
    ok $text =~ s/capacity=3 /capacity=9 /, 'a larger bucket';
    $_->[1]->close for @open;
    ok reconfigure($text), 'after a reload';
    $_->cmd('FLUSHALL') for @redis;

    @open = map { [$connect->()] } 1 .. 4;
    is join(' ', map { $_->[0] } @open), '101 101 101 429', 'three at a time';
    $open[0][1]->close;
    ok wait_until(sub { ($connect->())[0] == 101 }), 'one is closed';
    $_->[1]->close for @open;
};


$behaviour{'scrapers.conf'} = sub {
    # limits on another shard than the one that rejects get their tokens back

    my @rejected = map { "ratelimit:address:{127.0.$_}" } qw(0.4 2.3);
    my %rejected = map { $_ => 1 } @rejected;

    for my $key (@rejected) {
        ok wait_until(sub { (tokens_of($key) // 3) == 3 }),
           "$key: a rejected request takes nothing";
    }

    is_deeply [grep { !$rejected{$_} } keys_in_redis()],
              [(map { "ratelimit:address:{127.0.$_}" }
                    qw(0.1 0.2 0.3 1.1 1.2 2.1 2.2)),
               (map { "ratelimit:network:{127.0.$_.0/24}" } 0 .. 2),
               'ratelimit:provider:{cloud-c}'], 'the buckets';

    my $response = get('/robots.txt', from => '127.0.0.1');

    is $response->{status}, 200, 'the rules can be read';
    is $response->{headers}{'ratelimit-policy'}, undef, 'without a limit';
    ok $nginx->log_like(qr/ratelimit REJECTED, limit: "network", key: "127\.0\.0\.0\/24"/),
       'the log names the network';

    # IPv6, and IPv4 that is written as IPv6

    my $text = text_of('scrapers.conf');

    ok reconfigure("set_real_ip_from 127.0.0.1;\nreal_ip_header X-Real-IP;\n$text"),
       'addresses from a header';
    $_->cmd('FLUSHALL') for @redis;

    my %network = (
        '2001:db8:1:2:3:4:5:6' => '2001:db8:1::/48',
        '2001:db8:1::7'        => '2001:db8:1::/48',
        '2001:db8:0:2::7'      => '2001:db8:0::/48',
        '2001:db8::7'          => '2001:db8::/48',
        '2001::7'              => '2001::/48',
        '2001:0:0:5::7'        => '2001:0:0::/48',
        '::ffff:198.18.7.7'    => '198.18.7.0/24',
        '198.18.8.7'           => '198.18.8.0/24',
    );

    for my $address (sort keys %network) {
        $_->cmd('FLUSHALL') for @redis;
        is get('/', headers => { 'X-Real-IP' => $address })->{status}, 200,
           $address;
        is_deeply [grep { /:network:/ } keys_in_redis()],
                  ["ratelimit:network:{$network{$address}}"], 'its network';
    }

    is get('/', headers => { 'X-Real-IP' => '2001:db8:a:1::1' })->{headers}
       {'ratelimit-policy'}, '"address";q=3;w=60, "network";q=8;w=80, '
                             . '"provider";q=4;w=60', 'a provider';
};


$behaviour{'behind-cdn.conf'} = sub {
    is_deeply [keys_in_redis()],
              ['ratelimit:client:{203.0.113.7}', 'ratelimit:client:{203.0.113.8}',
               'ratelimit:direct:{127.0.0.1}'], 'the buckets';

    my $response = get('/');

    is $response->{headers}{'cache-control'}, 'no-store',
       'a rejection is not for caches';
    is $response->{body}, "too many requests\n", 'its body';
    is get('/', from => '127.0.0.2')->{status}, 200,
       'another direct client has its own bucket';

    my $cdn = sub {
        my ($address) = @_;

        my $curl = "curl -sm 30 --interface 127.0.0.10"
                   . " -H 'X-Forwarded-For: $address'";

        return scalar qx($curl ${\ $nginx->url('/')});
    };

    like $cdn->('6.6.6.6, 203.0.113.9'), qr/^client: 6\.6\.6\.6, 203\.0\.113\.9/,
         'through the CDN';
    ok((grep { $_ eq 'ratelimit:client:{203.0.113.9}' } keys_in_redis()),
       'what a client wrote itself does not count');
    like $cdn->('2001:db8:1:2:3:4:5:6'), qr/^client: 2001:db8/, 'IPv6';
    ok((grep { $_ eq 'ratelimit:client:{2001:db8:1:2::}' } keys_in_redis()),
       'by network');
    is get('/', from => '127.0.0.10')->{headers}{'ratelimit-policy'},
       '"direct";q=1;w=60', 'a CDN without the header is a direct client';
};


$behaviour{'console.conf'} = sub {
    my $page = RateLimit::Load::get($nginx->port(3), '/console/');

    is $page->{status}, 200, 'the page';
    like $page->{body}, qr/<title>Rate limits</, 'its text';
    is RateLimit::Load::get($nginx->port(3), '/console/config.json')->{body},
       qq({"api":"/ratelimit/","machines":[]}\n), 'finds the API';

    my $index = json_of(RateLimit::Load::get($nginx->port(3), '/ratelimit/'));

    ok $index->{write}, 'which can write';

    my $top = json_of(RateLimit::Load::get($nginx->port(3),
                                           '/ratelimit/top?limit=client'));

    is $top->{keys}[0]{key}, '127.0.0.1', 'the key that was rejected most';
    ok wait_until(sub { get('/')->{status} == 200 }), 'the reset has worked';
};


# those for other topologies are run by 092-run.t
my %elsewhere = map { ("$_.conf" => 1) } qw(cluster managed sentinel tls);

my @files = grep { !$elsewhere{$_} }
            map { s{.*/}{}r } glob 'conf-examples/*.conf';

cmp_ok scalar @files, '>=', 22, 'there are examples';
is_deeply [sort keys %behaviour], [sort @files],
          'each example has a test, each test an example';

for my $file (grep { !length($ENV{EXAMPLE} // '') || $_ eq "$ENV{EXAMPLE}.conf" }
              @files)
{
    subtest $file => sub {
        my $source = slurp("conf-examples/$file");

        plan skip_all => 'this nginx has no HTTP/2 or no gRPC'
            if $source =~ / http2;/ && !RateLimit::Nginx->has_grpc;

        like $source, qr{^\# .*include\ conf-examples/\Q$file\E;$}mx,
             'says how to use it';
        like $source,
             qr/^ratelimit_shards\ 127\.0\.0\.1:6379\ 127\.0\.0\.1:6380
                \ 127\.0\.0\.1:6381;$/mx, 'three shards'
            if $file ne 'local.conf';
        is_deeply [sort { $a <=> $b } $source =~ /^\s*listen\s+(?:\S*:)?(\d+)(?: http2)?;/mg],
                  [8080, 8081, $source =~ /ratelimit_(?:metrics|console);/ ? 8082 : ()],
                  'ports that "make run" replaces';
        unlike $source, qr/[^\n -~]|\t| $/m, 'plain text';

        my ($code, $output) = RateLimit::Nginx->test_config(
                                  conf => text_of($file) =~ s/^\Q$patient\E//r);
        is $code, 0, 'nginx -t' or diag $output;
        unlike $output, qr/\[warn\]|if this is intended/, 'and no warnings';

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
                                         8080 => $nginx->port,
                                         8082 => $nginx->port(3));
        }

        $behaviour{$file}->();

        $nginx->finish;
        undef $nginx;
    };
}


done_testing();
