# Variables of one limit, $ratelimit_remaining_NAME and its like, and
# $ratelimit_limits, which has all limits of a request as JSON.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Config;
use RateLimit::Nginx;
use RateLimit::Redis;

my @WHAT = qw(status limit remaining reset retry_after);
my $SHARDS = 'ratelimit_shards 127.0.0.1:6379;';


# ---- names, with nginx -t

sub log_of { 'log_format x "' . join(' ', map { "\$$_" } @_) . '";' }


accepted('a variable of a limit', "$SHARDS ratelimit_limit ip rate=1r/s; "
         . log_of(map { "ratelimit_${_}_ip" } @WHAT), 'ratelimit ip;');
accepted('a limit that no location has', "$SHARDS ratelimit_limit ip rate=1r/s; "
         . 'ratelimit_silence unused_limit; ' . log_of('ratelimit_status_ip'), '');
accepted('before the limit', "$SHARDS " . log_of('ratelimit_status_ip')
         . ' ratelimit_limit ip rate=1r/s;', 'ratelimit ip;');
accepted('another case, and characters that variables do not have',
         "$SHARDS ratelimit_limit Per-IP.2 rate=1r/s; "
         . log_of('ratelimit_status_per_ip_2', 'ratelimit_limit_PER_IP_2'),
         'ratelimit Per-IP.2;');
accepted('a limit of a location', "$SHARDS " . log_of('ratelimit_limit_localhost_t'),
         'ratelimit_rate 1r/s;');
accepted('a variable of a map', "$SHARDS map \$ratelimit_status \$ratelimit_status_x "
         . '{ default 1; } ' . log_of('ratelimit_status_x'), 'ratelimit_rate 1r/s;');
accepted('a variable that is set', $SHARDS,
         'set $ratelimit_limit_x 1; ratelimit_rate 1r/s;');

refused("an unknown limit in \$ratelimit_${_}_ap",
        "$SHARDS ratelimit_limit api rate=1r/s; " . log_of("ratelimit_${_}_ap"), '',
        "unknown limit \"ap\" in the variable \"\$ratelimit_${_}_ap\"")
    for @WHAT;
refused('a variable without any limit', log_of('ratelimit_status_x'), '',
        'unknown limit "x" in the variable "$ratelimit_status_x"');
refused('a name that two limits have', "$SHARDS ratelimit_limit a-b rate=1r/s; "
        . 'ratelimit_limit A.B rate=1r/s; ' . log_of('ratelimit_status_a_b'), '',
        'the variable "$ratelimit_status_a_b" may mean limit "a-b" or limit "A.B"');
refused('a variable of something else', log_of('ratelimit_source_ip'), '',
        'unknown "ratelimit_source_ip" variable');


# ---- values

my $redis = RateLimit::Redis->start;
my $names = join ' ', qw(ip user dry empty);
my $format = join ' ', map { my $w = $_; map { "$_.$w=\$ratelimit_${w}_$_" }
                             split / /, $names } @WHAT;

my $nginx = RateLimit::Nginx->start(
    workers => 1,
    conf    => <<"EOC",
ratelimit_shards ${\ $redis->addr};
ratelimit_redis_timeout 10s;
ratelimit_silence long_timeout;
ratelimit_redis_connect_timeout 10s;
ratelimit_limit ip    capacity=3 rate=1r/h;
ratelimit_limit user  capacity=1 rate=2r/h key=\$arg_user;
ratelimit_limit dry   capacity=1 rate=1r/d dry_run;
ratelimit_limit never capacity=1 rate=0r/s dry_run;
ratelimit_limit empty capacity=1 rate=1r/d key=\$arg_none;
add_header X-Each "$format" always;
add_header X-All  \$ratelimit_limits always;
EOC
    server  => <<'EOC');
location /all   { ratelimit ip user dry empty; try_files /none @done; }
location /early { ratelimit ip; return 204; }
location /free  { ratelimit off; try_files /none @done; }
location /first { ratelimit dry never; try_files /none @then; }
location /deny  { ratelimit ip user; ratelimit_deny_cache 60s;
                  try_files /none @done; }
location @then  { ratelimit ip dry; try_files /none @done; }
location @done  { return 200 done; }
location "/a\"b\\c" { ratelimit_rate 1r/h; try_files /none @done; }
location /down  { ratelimit_shards 127.0.0.1:1; ratelimit_on_error closed;
                  ratelimit ip dry; try_files /none @done; }
location /preview { ratelimit ip user; ratelimit_preview on;
                  ratelimit_preview_cache off; try_files /none @done; }
EOC

# The variables of each limit: limit => { what => value }, without empty ones;
# and the array of all of them.

sub get {
    my ($path) = @_;

    my $r = $nginx->get($path);
    my %each;

    for (split / /, $r->{headers}{'x-each'}) {
        my ($limit, $what, $value) = /^(\w+)\.(\w+)=(.*)$/;

        $each{$limit}{$what} = $value if length $value;
    }

    my $all = eval { JSON::PP::decode_json($r->{headers}{'x-all'}) };

    ok $all, "$path: JSON" or diag $r->{headers}{'x-all'};

    # what is in both is the same

    for my $limit (@$all) {
        my $each = $each{ $limit->{name} } or next;

        is_deeply $each, { map { defined $limit->{$_} ? ($_ => $limit->{$_}) : () }
                           @WHAT }, "$limit->{name} is the same in both";
        delete $limit->{reset};
    }

    delete $each{$_}{reset} for keys %each;

    return (\%each, $all, $r);
}


subtest 'each limit has its own numbers' => sub {
    my ($each, $all, $r) = get('/all?user=a');

    is $r->{status}, 200, 'passed';
    is_deeply $each, {
        ip    => { status => 'PASSED', limit => 3, remaining => 2 },
        user  => { status => 'PASSED', limit => 1, remaining => 0 },
        dry   => { status => 'PASSED', limit => 1, remaining => 0 },
        empty => { status => 'SKIPPED' },
    }, 'variables';
    is_deeply [map { $_->{name} } @$all], [qw(ip user dry empty)], 'all of them';
    is_deeply $all->[0], { name => 'ip', status => 'PASSED', limit => 3,
                           remaining => 2, retry_after => undef,
                           source => 'redis', dry_run => JSON::PP::false },
              'one of them';
    is_deeply [map { $_->{dry_run} ? 1 : 0 } @$all], [0, 0, 1, 0], 'dry runs';
    is $all->[3]{source}, undef, 'an empty key has no source';

    ($each, $all, $r) = get('/all?user=a');

    is $r->{status}, 429, 'rejected';
    is $each->{user}{status}, 'REJECTED', 'by one';
    like $each->{user}{retry_after}, qr/^1[78]\d\d$/, 'with its wait';
    is $each->{user}{retry_after}, $r->{headers}{'retry-after'}, 'that of the header';
    is $each->{ip}{status}, 'PASSED', 'another would have let it pass';
    is $each->{ip}{remaining}, 2, 'and took nothing';
    is $each->{dry}{status}, 'REJECTED_DRY_RUN', 'one is in a dry run';
    like $each->{dry}{retry_after}, qr/^86[34]\d\d$/, 'with its wait, too';
};


subtest 'a limit that was not asked has no values' => sub {
    get('/deny?user=b') for 1 .. 2;

    my ($each, $all, $r) = get('/deny?user=b');

    is $r->{status}, 429, 'rejected from memory';
    is $each->{user}{status}, 'REJECTED', 'by one limit';
    is_deeply $each->{ip} // {}, {}, 'the other was not asked';
    is_deeply [map { $_->{status} } @$all], [undef, 'REJECTED'], 'null in JSON';
    is_deeply $each->{empty} // {}, {}, 'nor was one of another location';

    for my $path (qw(/early /free)) {
        ($each, $all) = get($path);
        is_deeply [$each, $all], [{}, []], "$path: nothing";
    }
};


subtest 'limits of several locations' => sub {
    $redis->cmd('FLUSHALL');

    my ($each, $all) = get('/first');

    is_deeply [sort map { $_->{name} } @$all], [qw(dry ip never)],
              'each limit once';
    is $each->{dry}{remaining}, 0, 'a dry run before';
    is $each->{ip}{remaining}, 2, 'an enforced limit after it';
};


subtest 'other outcomes' => sub {
    my ($each, $all, $r) = get('/down');

    is $r->{status}, 503, 'closed';
    is $each->{ip}{status}, 'DEGRADED', 'the status of a limit';
    is_deeply [map { $_->{source} } @$all], ['closed', 'open'], 'the sources';

    $redis->cmd('FLUSHALL');
    ($each) = get('/preview?user=p');
    is_deeply $each, { ip   => { status => 'PASSED', limit => 3, remaining => 3 },
                       user => { status => 'PASSED', limit => 1, remaining => 1 } },
              'a preview';

    (undef, $all) = get('/a%22b%5Cc');
    is $all->[0]{name}, 'localhost/a"b\\c', 'a name that JSON has to escape';
};


$nginx->finish;

done_testing();
