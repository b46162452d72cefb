# "ratelimit_top": the keys of a limit that are seen and rejected most often, as
# the API shows them.  Limits are in the memory of the machine, where rejections
# can be told in advance.
#
# Counts decay, and a test may take any time.  So a count is compared with the
# requests of its key, and with what is left of them after the whole time since
# the first one.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use JSON::PP ();
use List::Util qw(max sum0);
use Time::HiRes qw(time);

use RateLimit::Flood;
use RateLimit::Nginx;
use RateLimit::Redis;

my $HALF_LIFE = 60;
my $ROUNDED = 0.1;              # of figures

my $LIMITS = <<'EOC';
    ratelimit_silence client_value no_shards unused_limit;
    ratelimit_log_level info;
    access_log off;
    keepalive_requests 1000000;

    ratelimit_limit skew   key=$arg_k capacity=40 rate=1r/d;
    ratelimit_limit other  key=$arg_k capacity=5 rate=1r/d;
    ratelimit_limit third  key=$arg_k capacity=1000 rate=1r/d;
    ratelimit_limit dry    key=$arg_k capacity=5 rate=1r/d dry_run;
    ratelimit_limit binary key=$binary_remote_addr capacity=5 rate=1r/d;
    ratelimit_limit unused rate=1r/d;
    ratelimit_top 100;
EOC

my $SERVER = <<'EOC';
    location /skew    { ratelimit skew; ratelimit_log_key plain; empty_gif; }
    location /hash    { ratelimit other; empty_gif; }
    location /both    { ratelimit third other; ratelimit_log_key plain;
                        empty_gif; }
    location /dry     { ratelimit dry; ratelimit_log_key plain; empty_gif; }
    location /binary  { ratelimit binary; empty_gif; }
    location /hidden  { ratelimit_key $arg_k; ratelimit_rate 5r/d;
                        ratelimit_log_key off; empty_gif; }
    location /preview { ratelimit_key $arg_k; ratelimit_rate 5r/d;
                        ratelimit_preview on; empty_gif; }
    location /off     { ratelimit_key $arg_k; ratelimit_rate 5r/d;
                        ratelimit_top off; empty_gif; }
    location /10      { ratelimit_key $arg_k; ratelimit_rate 5r/d;
                        ratelimit_top 10; ratelimit_log_key plain;
                        empty_gif; }

    location /third/look   { ratelimit third; ratelimit_log_key plain;
                             ratelimit_preview on; empty_gif; }
    location /third/hidden { ratelimit third; ratelimit_log_key off;
                             empty_gif; }
    location /third/off    { ratelimit third; ratelimit_top off; empty_gif; }

    location /api/ { ratelimit_api; }
EOC


sub api {
    my ($nginx, $path) = @_;

    my $r = $nginx->get("/api/$path");

    return { %{ JSON::PP->new->utf8->decode($r->{body}) },
             answered => $r->{status} };
}


# what is listed: { key => count }

sub counts {
    my ($nginx, $limit, $by) = @_;

    my $top = api($nginx, "top?limit=$limit&n=1000" . ($by ? "&by=$by" : ''));

    return { map { $_->{key} => $_->{count} } @{ $top->{keys} } };
}


# Whether a count can be that of so many requests: none is older than "since".

sub is_count {
    my ($count, $requests, $since, $name) = @_;

    $count //= 0;

    my $least = $requests * 2 ** -((time - $since) / $HALF_LIFE);

    ok $count <= $requests + $ROUNDED && $count >= $least - $ROUNDED, $name
        or diag("count $count, expected between $least and $requests");
}


my $nginx = RateLimit::Nginx->start(conf => $LIMITS, server => $SERVER,
                                    reuseport => 1);


subtest 'the heaviest of many keys' => sub {
    my $since = time;
    my %sent;

    # a few are heavy, and most requests are of keys that come twice

    my $flood = RateLimit::Flood::run(
        port => $nginx->port, requests => 20_000, timeout => 120,
        path => sub {
            my $i = $_[0] % 10_000;
            my $key = $i % 20 == 0 ? 'first' : $i % 50 == 1 ? 'second'
                      : $i % 100 == 2 ? 'third' : "light$i";

            $sent{$key}++;
            return "/skew?k=$key";
        });

    is sum0(values %{ $flood->{marks} }), 20_000, 'all are answered';

    for (['seen', sub { $_[0] }], ['rejected', sub { max(0, $_[0] - 40) }]) {
        my ($by, $part) = @$_;

        my $top = api($nginx, "top?limit=skew&by=$by&n=1000");
        my @keys = @{ $top->{keys} };

        is_deeply [@$top{qw(answered limit by half_life)}],
                  [200, 'skew', $by, 60], "by $by";
        is_deeply [map { $_->{key} } @keys[0 .. 2]],
                  ['first', 'second', 'third'], 'the heaviest first';
        is scalar(grep { $keys[$_ - 1]{count} < $keys[$_]{count} } 1 .. $#keys),
           0, 'in order';
        is scalar(@keys), $by eq 'seen' ? 100 : 3, 'so many keys';

        my $rest = 2 ** -((time - $since) / $HALF_LIFE);
        my $missed = $by eq 'seen' ? 20_000 / 100 : 0;

        my @wrong = grep {
            my $true = $part->($sent{ $_->{key} });

            $_->{count} < $true * $rest - $ROUNDED
            || $_->{count} - $_->{error} > $true + $ROUNDED
            || $_->{error} > $missed + $ROUNDED
        } @keys;

        is scalar(@wrong), 0, 'the true count is within the bounds'
            or diag(explain(\@wrong));

        cmp_ok $top->{error}, '<=', $missed + $ROUNDED,
               'a key that is not listed has a low count';
        cmp_ok $top->{error}, '>', 0, 'but it has one' if $by eq 'seen';
    }

    is_deeply [map { $_->{key} }
                   @{ api($nginx, 'top?limit=skew&n=2')->{keys} }],
              ['first', 'second'], 'as many as the request wants, by rejected';
    is scalar @{ api($nginx, 'top?limit=skew&by=seen')->{keys} }, 20,
       '20 by default';
};


subtest 'keys are shown as in the log' => sub {
    my $since = time;
    my $long = 'x' x 100;
    my $digest = 'sha1:' . substr sha1_hex('secret'), 0, 16;

    $nginx->get('/hash?k=secret') for 1 .. 7;

    is_deeply [keys %{ counts($nginx, 'other') }], [$digest], 'a digest';
    is_count counts($nginx, 'other')->{$digest}, 2, $since, 'rejected twice';
    is_count counts($nginx, 'other', 'seen')->{$digest}, 7, $since, 'seen';

    $nginx->get('/binary') for 1 .. 6;

    is_deeply [keys %{ counts($nginx, 'binary') }], ['127.0.0.1'],
              'an address';

    $nginx->get("/10?k=$long$_") for 1, 2, 2;
    $nginx->get("/10?k=a%01\"b");
    $nginx->get("/10?k=\xff");

    my $top = api($nginx, 'top?limit=localhost%2F10&by=seen');

    is_deeply [sort map { $_->{key} } @{ $top->{keys} }],
              [sort 'a%2501"b', '%FF', (substr $long, 0, 64) x 2],
              'other bytes are escaped, and long keys are cut off';
    is_count $top->{keys}[0]{count}, 2, $since,
             'keys that begin alike are not the same';

    is api($nginx, 'limits/localhost%2F10')->{top}, 10, 'a table of its own';
};


subtest 'what counts' => sub {
    my $since = time;

    $nginx->get('/dry?k=dry') for 1 .. 8;
    is_count counts($nginx, 'dry')->{dry}, 3, $since,
             'what a dry run would reject';
    is_count counts($nginx, 'dry', 'seen')->{dry}, 8, $since, 'and all';

    $nginx->get('/both?k=both') for 1 .. 8;
    is_count counts($nginx, 'other')->{both}, 3, $since,
             'a request that one limit rejects counts there';
    is_count counts($nginx, 'third', 'seen')->{both}, 5, $since,
             'and is no request of the other';

    $nginx->get("/third$_?k=unlisted") for '/look', '/hidden', '/off';
    is counts($nginx, 'third', 'seen')->{unlisted}, undef,
       'previews do not count, nor do keys that are not shown, nor "off"';

    $nginx->get('/hash') for 1 .. 8;
    ok !exists counts($nginx, 'other', 'seen')->{''}, 'nor do empty keys';
};


subtest 'requests that cannot be answered' => sub {
    for (['top', 400, qr/"limit" is missing/],
         ['top?limit=', 400, qr/"limit" is missing/],
         ['top?limit=nobody', 404, qr/no limit of this name/],
         ['top?limit=unused', 404, qr/"unused" are not counted.*ratelimit_top/],
         ['top?limit=localhost/off', 404, qr/are not counted/],
         ['top?limit=localhost/hidden', 404, qr/"ratelimit_log_key off"/],
         ['top?limit=localhost/preview', 404, qr/in previews/],
         ['top?limit=skew&by=passed', 400, qr/"by".*"rejected" or "seen"/],
         ['top?limit=skew&by=', 400, qr/"by"/],
         (map { ["top?limit=skew&n=$_", 400, qr/"n".*1 to 1000/] }
              '', 0, 1001, -1, 'x', '1e3', '9' x 30))
    {
        my ($path, $status, $detail) = @$_;
        my $answer = api($nginx, $path);

        is $answer->{answered}, $status, $path;
        like $answer->{detail}, $detail, 'and why';
    }

    is api($nginx, 'limits/skew')->{top}, 100, 'limits say how many keys';
    is api($nginx, "limits/$_")->{top}, undef, "none of $_"
        for 'unused', 'localhost%2Foff', 'localhost%2Fhidden';
};


subtest 'reload' => sub {
    my $since = time;

    $nginx->get('/dry?k=kept') for 1 .. 9;

    ok $nginx->reload && $nginx->old_workers_gone(20), 'the same again';
    is_count counts($nginx, 'dry', 'seen')->{kept}, 9, $since, 'keys are kept';

    ok $nginx->reload(conf => $LIMITS =~ s/ratelimit_top 100/ratelimit_top 50/r)
       && $nginx->old_workers_gone(20), 'another number of keys';
    is_deeply counts($nginx, 'dry', 'seen'), {}, 'starts with none';
    is api($nginx, 'limits/dry')->{top}, 50, 'and has a new table';

    $nginx->get('/dry?k=new') for 1 .. 3;
    is_deeply [keys %{ counts($nginx, 'dry', 'seen') }], ['new'],
              'which counts';

    ok $nginx->reload(conf => $LIMITS) && $nginx->old_workers_gone(20),
       'the first number';
    is_count counts($nginx, 'dry', 'seen')->{kept}, 9, $since,
             'has the first table again';

    # not all of them fit into the zone at once; they need as many pages each

    my $refused = 0;

    for my $n (88 .. 98) {
        my $conf = $LIMITS =~ s/ratelimit_top 100/ratelimit_top $n/r;

        $refused++ unless $nginx->reload(conf => $conf)
                          && $nginx->old_workers_gone(20);
    }

    is $refused, 0, 'tables of older configurations are replaced';
    $nginx->get('/dry?k=end');
    ok exists counts($nginx, 'dry', 'seen')->{end}, 'and it goes on';
};


subtest 'workers that are killed' => sub {
    my $flood = RateLimit::Flood::start(
        port => $nginx->port, timeout => 300,
        path => sub { '/skew?k=' . $_[0] % 300 });

    for (1 .. 10) {
        $nginx->kill_worker('KILL');
        api($nginx, 'top?limit=skew&by=seen');
    }

    $flood->stop;

    $nginx->get('/skew?k=after') for 1 .. 300;

    my $keys = api($nginx, 'top?limit=skew&by=seen&n=1000')->{keys};

    ok @$keys > 0 && @$keys <= 1000, 'a table';
    is scalar(grep { $_->{key} eq 'after' && $_->{count} > 0 } @$keys), 1,
       'that counts';
    is scalar(grep { $_->{key} !~ /^(?:\w+)\z/ || $_->{error} > $_->{count} }
                   @$keys), 0, 'and is sound';
};

$nginx->finish(except => qr/exited on signal 9|was locked by/);


subtest 'with Redis' => sub {
    my $since = time;
    my $redis = RateLimit::Redis->start;
    my $other = RateLimit::Nginx->start(
        conf   => 'ratelimit_redis_timeout 20s; '
                  . 'ratelimit_redis_connect_timeout 20s; '
                  . 'ratelimit_shards ' . $redis->addr . ";\n$LIMITS",
        server => $SERVER);

    $other->get('/skew?k=redis') for 1 .. 45;

    is_count counts($other, 'skew', 'seen')->{redis}, 45, $since, 'seen';
    is_count counts($other, 'skew')->{redis}, 5, $since,
             'rejected, also without asking Redis';

    $other->finish;
};


subtest 'memory' => sub {
    my ($code, $output) = RateLimit::Nginx->test_config(
        conf   => "ratelimit_zone 64k;\n",
        server => 'location / { ratelimit_rate 1r/s; ratelimit_top 1000; }');

    isnt $code, 0, 'a zone that is too small for the table is refused';
    like $output, qr/"ratelimit_zone" of 64k is too small/, 'with the reason';

    ($code, $output) = RateLimit::Nginx->test_config(
        conf   => "ratelimit_zone 512k;\n",
        server => 'location / { ratelimit_rate 1r/s; ratelimit_top 1000; }');

    is $code, 0, 'a larger one loads' or diag($output);
};

done_testing();
