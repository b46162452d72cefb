# The wait of a rejection: with a random part, and the same wherever a client or a
# log finds it.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(dead_port);

my $redis = RateLimit::Redis->start;
my $dead = dead_port();

my $nginx = RateLimit::Nginx->start(
    workers => 1,
    conf    => <<"EOC",
ratelimit_shards ${\ $redis->addr};
ratelimit_redis_timeout 10s;
ratelimit_silence long_timeout;
ratelimit_redis_connect_timeout 10s;
ratelimit_headers legacy draft-8;
ratelimit_deny_cache off;
ratelimit_body json;
ratelimit_limit ip    capacity=1 rate=1r/h;
ratelimit_limit slow  capacity=1 rate=1r/d dry_run;
ratelimit_limit never capacity=1 rate=0r/s;
ratelimit_retry_jitter 50%;
add_header X-Wait  \$ratelimit_retry_after always;
add_header X-Ip    \$ratelimit_retry_after_ip always;
add_header X-Slow  \$ratelimit_retry_after_slow always;
EOC
    server  => <<"EOC");
location /t     { ratelimit ip slow; try_files /none \@done; }
location /off   { ratelimit ip slow; ratelimit_retry_jitter off;
                  try_files /none \@done; }
location /zero  { ratelimit ip slow; ratelimit_retry_jitter 0%;
                  try_files /none \@done; }
location /grpc  { ratelimit ip slow; ratelimit_body grpc; try_files /none \@done; }
location /dry   { ratelimit slow; try_files /none \@then; }
location \@then { ratelimit slow ip; try_files /none \@done; }
location /never { ratelimit never; try_files /none \@done; }
location /down  { ratelimit ip; ratelimit_shards 127.0.0.1:$dead;
                  ratelimit_on_error closed; ratelimit_retry_jitter 100%; }
location /later { ratelimit ip; ratelimit_shards 127.0.0.1:$dead;
                  ratelimit_on_error closed; ratelimit_retry_jitter off;
                  ratelimit_error_retry_after 30s;
                  location /later/ms { ratelimit_error_retry_after 1500ms; } }
location \@done { return 200 done; }
EOC

my $first = $nginx->get('/t');

is $first->{status}, 200, 'the only token';
is $first->{headers}{'retry-after'}, undef, 'a request that passes has no wait';


subtest 'a random part is added, and all agree' => sub {
    my (%seen, $wrong, $early, $late);

    for (1 .. 200) {
        my $r = $nginx->get('/t');
        my $h = $r->{headers};
        my $wait = $h->{'retry-after'};
        my ($t) = $h->{ratelimit} =~ /;t=(\d+)$/;

        $seen{$wait}++;
        $early++ if $wait < 3500;
        $late++ if $wait > 5400;
        $wrong++ if grep { $_ != $wait } $h->{'x-ratelimit-retry-after'}, $t,
                    $h->{'x-wait'}, $h->{'x-ip'},
                    JSON::PP::decode_json($r->{body})->{retry_after};

        # the other limit waits for longer by the same share

        my $share = ($wait - 3600) / 1800;

        $wrong++ if abs(($h->{'x-slow'} - 86400) / 43200 - $share) > 0.05;
    }

    is $wrong, undef, 'headers, body and variables agree';
    is $early, undef, 'never too early';
    is $late, undef, 'never more than half of the wait is added';
    cmp_ok scalar keys %seen, '>', 100, 'the waits differ';

    my @waits = sort { $a <=> $b } map { ($_) x $seen{$_} } keys %seen;

    cmp_ok $waits[10], '<', 4200, 'some are short';
    cmp_ok $waits[-10], '>', 4800, 'and some are long';

    my $h = $nginx->get('/grpc')->{headers};

    is $h->{'grpc-retry-pushback-ms'}, $h->{'retry-after'} . '000', 'gRPC, too';
};


subtest 'without it, and where there is nothing to add' => sub {
    for my $path (qw(/off /zero)) {
        my @waits = map { $nginx->get($path)->{headers}{'retry-after'} } 1 .. 20;

        is scalar(grep { $_ < 3500 || $_ > 3600 } @waits), 0, "$path: as it is"
            or diag "@waits";
    }

    $nginx->get('/never');

    my $r = $nginx->get('/never');

    is $r->{headers}{'retry-after'}, undef, 'a wait without end';
    is JSON::PP::decode_json($r->{body})->{retry_after}, undef, 'null';
};


subtest 'a wait that an earlier location has made longer stays as it is' => sub {
    my %seen;

    for (1 .. 50) {
        my $h = $nginx->get('/dry')->{headers};

        $seen{late}++ if $h->{'x-slow'} > 86400 * 1.5;
    }

    is_deeply \%seen, {}, 'not twice';
};


subtest 'without Redis and closed' => sub {
    my %seen;

    $seen{ $nginx->get('/down')->{headers}{'retry-after'} // 'none' }++ for 1 .. 100;

    is_deeply [sort keys %seen], [1, 2], 'one second, or two';

    my $h = $nginx->get('/later')->{headers};

    is $h->{'retry-after'}, 30, 'ratelimit_error_retry_after';
    is $h->{'x-ratelimit-retry-after'}, 30, 'in both headers';
    is $h->{'x-wait'}, 30, 'and in the variable';
    is $nginx->get('/later/ms')->{headers}{'retry-after'}, 2, 'rounded up';
};


$nginx->finish;

done_testing();
