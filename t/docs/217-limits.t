# docs/limits.md: its numbers are those of the sources, and nothing is listed as
# missing that exists.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs 'docs/limits.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);


subtest 'bounds are those of the sources' => sub {
    my %bound = map { @$_ == 2 ? ($_->[0] => $_->[1]) : () }
                table_of($section{Bounds});

    for (['limits that apply to one request', CLAIMS => '%d'],
         ['capacity', MAX_CAPACITY => '%d'],
         ['cost of a request', MAX_COST => '1 to %d'],
         ['length of a key', KEY_MAX => 'any; above %d bytes a digest is used'],
         ['window', WINDOW_MAX => '1 ms to %d days', 86400000],
         ['commands under way, for each worker and shard', PIPELINE_PENDINGS => '%d'],
         ['masters of a cluster that a worker uses at a time', NODES_MAX => '%d'],
         ['leases that a worker holds at a time', LEASES_MAX => '%d'],
         ['top keys of a limit', TOP_MAX => '10 to %d on each machine'],
         ['local windows', ENTRIES =>
             'exact up to %d requests; larger ones are coarser, and stricter'])
    {
        my ($row, $name, $format, $scale) = @$_;

        is $bound{$row}, $format =~ s{%d}{define($name) / ($scale || 1)}er, $row;
        delete $bound{$row};
    }

    is_deeply [sort keys %bound],
              ['phase, clock and set of shards', 'what'], 'and all of them';

    my $wait = $section{'What a request waits for'};
    my ($default) = $directive{ratelimit_redis_timeout}{default} =~ /^(\d+)ms$/;

    like $wait, qr/\b$default ms by default/, 'the timeout';
};


subtest 'the algorithms are all there are' => sub {
    my ($list) = $section{'What it does not do'}
                 =~ /The algorithms are ([^.]+)\./;

    is_deeply [sort split /, | and /, $list],
              [sort map { tr/_/ /r } split / \| /,
               $directive{ratelimit_algorithm}{words}], $list;
};


subtest 'what is not limited' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf   => 'ratelimit_silence no_shards early_return;',
        server => <<'EOC');
location /return { ratelimit_rate 1r/d; return 204; }

location /main { mirror /sub; empty_gif; }
location /sub  { internal; ratelimit_rate 1r/d; empty_gif; }

location /first  { ratelimit_capacity 9; ratelimit_rate 1r/d; try_files /none @second; }
location @second { ratelimit_capacity 1; ratelimit_rate 1r/d; empty_gif; }
EOC

    is_deeply [map { $nginx->get('/return')->{status} } 1 .. 3], [(204) x 3],
              'what ends in the rewrite phase';
    is_deeply [map { $nginx->get('/main')->{status} } 1 .. 3], [(200) x 3],
              'subrequests';
    ok !$nginx->log_like(qr/ratelimit (?:PASSED|REJECTED)/), 'they never met a limit';
    is_deeply [map { $nginx->get('/first')->{status} } 1 .. 3], [(200) x 3],
              'a second location';

    $nginx->finish;
};


subtest 'a restart of Redis, and an outage' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;

    # one worker: another one might notice the end of the outage later

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf   => "${patient}ratelimit_shards $addr;\nratelimit_deny_cache off;\n",
        server => <<'EOC');
location / {
    ratelimit_capacity    4;
    ratelimit_rate        1r/d;
    ratelimit_local_share 1/2;
    add_header            X-Source $ratelimit_source always;
    empty_gif;
}
EOC

    my $passed = sub {
        scalar grep { $nginx->get('/')->{status} == 200 } 1 .. $_[0];
    };

    is $passed->(6), 4, 'the limit';
    $redis->kill9;
    ok wait_until(sub { $nginx->get('/')->{headers}{'x-source'} eq 'local' }),
       'an outage';
    is $passed->(6), 1, 'the local share starts full: two of four';
    $redis->start;
    ok wait_until(sub { $nginx->get('/')->{headers}{'x-source'} eq 'redis' }),
       'its end, without persistence';
    is $passed->(6), 3, 'one full bucket more';

    $nginx->finish;
};


done_testing();
