# Wrong values are errors of "nginx -t" that name the directive, the value and
# what is allowed; good values of every form load.  Nothing is run here, so the
# blocks of Test::Nginx would only hide what is one line per case.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Config;
use RateLimit::Nginx;
use RateLimit::Util qw(temp_dir write_file);

use File::Path ();
use POSIX ();

my $dir = temp_dir('directives');

END {
    File::Path::remove_tree($dir) if defined $dir;
}


my $SHARDS = 'ratelimit_shards 127.0.0.1:6379;';

# a good value of each, which stands alone in a location with a limit

my %GOOD = (
    ratelimit_shards                => '127.0.0.1:6379',
    ratelimit_key                   => '$remote_addr',
    ratelimit_capacity              => '10',
    ratelimit_rate                  => '10r/s',
    ratelimit_cost                  => '1',
    ratelimit_algorithm             => 'sliding_window_log',
    ratelimit_window                => '60s',
    ratelimit_period                => 'month',
    ratelimit_timezone              => '+01:00',
    ratelimit_anchor                => '15',
    ratelimit_refill_interval       => '100ms',
    ratelimit_preview               => 'on',
    ratelimit_preview_cache         => '50ms',
    ratelimit_deny_cache            => '50ms',
    ratelimit_lease                 => '10%',
    ratelimit_phase                 => 'precontent',
    ratelimit_clock                 => 'nginx',
    ratelimit_body                  => 'json',
    ratelimit_retry_jitter          => '20%',
    ratelimit_error_retry_after     => '5s',
    ratelimit_ipv6_prefix           => '56',
    ratelimit_status                => '429',
    ratelimit_error_status          => '503',
    ratelimit_on_error              => 'open',
    ratelimit_local_share           => '1/4',
    ratelimit_breaker               => 'failures=5',
    ratelimit_headers               => 'legacy',
    ratelimit_log_level             => 'error',
    ratelimit_log_key               => 'hash',
    ratelimit_top                   => '100',
    ratelimit_dry_run               => 'on',
    ratelimit_prefix                => 'ratelimit',
    ratelimit_redis_timeout         => '50ms',
    ratelimit_redis_connect_timeout => '100ms',
    ratelimit_redis_user            => 'nginx',
    ratelimit_redis_password        => $SECRET,
    ratelimit_redis_password_file   => "$dir/password",
    ratelimit_redis_database        => '1',
);

# a user needs a password, a capacity and a key need a rate

sub companions {
    my ($directive) = @_;

    my $text = '';

    $text .= 'ratelimit_rate 10r/s;' unless $directive eq 'ratelimit_rate';
    $text .= "ratelimit_redis_password $SECRET;"
        if $directive eq 'ratelimit_redis_user';
    $text .= 'ratelimit_capacity 10;' if $directive eq 'ratelimit_algorithm';

    return $text;
}


write_file("$dir/password", "$SECRET\n", 0600);
write_file("$dir/empty", '', 0600);
write_file("$dir/blank", "\n$SECRET\n", 0600);


# ---- values that are wrong by themselves

my $CAPACITY = 'it must be a whole number from 1 to 1000000000';
my $COST     = 'it must be a whole number from 1 to 100000';
my $RATE     = 'it must be a number followed by "r/s", "r/m", "r/h" or "r/d", '
               . 'for example "10r/s" or "0.5r/m", '
               . 'at most 1000000000 with at most 6 digits after the point';
my $STATUS   = 'it must be a status from 400 to 599, '
               . 'except 401, 403 and 407';
my $TIME     = 'it must be a time from 1ms to 60s';
my $PREFIX   = 'it must be printable ASCII without spaces or braces';
my $DATABASE = 'it must be a number from 0 to 65535';
my $WINDOW   = 'it must be a time from 1ms to 365d, for example "60s"';
my $PERIOD   = 'it must be "minute", "hour", "day", "week" or "month"';
my $ZONE     = 'it must be "UTC" or from "-12:00" to "+14:00"';
my $ANCHOR   = 'it must be a day of the month from 1 to 28, or of the week '
               . 'from 1 (Monday) to 7';
my $STEP     = 'it must be a time from 0 to 1d, for example "100ms"';
my $CACHE    = 'or a time up to 60s, for example "50ms"';
my $LEASE    = 'it must be a number of tokens from 1 to 1000000000, '
               . 'a percentage of the capacity from "1%" to "100%", or "off"';
my $BITS     = 'it must be a number from 1 to 128';
my $SHARE    = 'it must be above 0 and at most 1: a decimal with up to 3 digits '
               . 'after the point, for example "0.25", or a fraction of '
               . 'numbers up to 1000, for example "1/4"';
my $FAILURES = 'it must be a number from 1 to 100';
my $OUTAGE   = 'it must be a time from 100ms to 1h, for example "30s"';
my $PROBE    = 'it must be a time from 100ms to 1h, for example "10s"';
my $BREAKER  = 'it must be "failures=", "window=" or "probe="';

my @WRONG = (
    [ratelimit_capacity => $CAPACITY,
     qw(0 -1 +1 abc 10x 1.5 1k 0x10 1000000001 99999999999999999999999999), ''],
    [ratelimit_rate => $RATE,
     qw(abc 10 10r 10r/ r/s 10/s 10r/x 10r/S 10r/sec 10rps -1r/s +1r/s 1.r/s
        .5r/s 1..5r/s 1.1234567r/s 1e3r/s 0x1r/s 1000000001r/s
        99999999999999999999r/s), '10 r/s', ''],
    [ratelimit_cost => $COST,
     qw(0 -1 x 1x 1.5 100001 99999999999999999999999999), ''],
    [ratelimit_status => $STATUS,
     qw(200 399 401 403 407 600 -429 4290 abc 429x), ''],
    [ratelimit_error_status => $STATUS, qw(302 401 403 407 600 abc)],
    [ratelimit_error_retry_after => 'it must be a time from 1s to 1d',
     qw(0 off 999ms 86401s 2d -1 abc), ''],
    [ratelimit_retry_jitter => 'it must be "off" or a percentage from "0%"',
     qw(20 101% -1% 1.5% % 5%% on x%), ''],
    [ratelimit_redis_timeout => $TIME, qw(0 0ms abc 2m 61s 60001ms -1 1x), ''],
    [ratelimit_redis_connect_timeout => $TIME, qw(0 abc 2m 61s)],
    [ratelimit_prefix => $PREFIX, 'a{b', 'a}b', 'a b', "a\tb", "caf\xc3\xa9",
     ''],
    [ratelimit_redis_database => $DATABASE, qw(-1 abc 1x 65536 99999999999999),
     ''],
    [ratelimit_on_error => 'it must be "open", "closed" or "local"',
     qw(foo closedx redis), ''],
    [ratelimit_local_share => $SHARE,
     qw(0 2 1/0 0/4 5/4 1.5 -1 abc 0.2555 0.000 .5 1. 1/ /4 1/1001 25%), ''],
    [ratelimit_breaker => $FAILURES,
     map { "failures=$_" } qw(0 101 -1 abc 5x 1.5 99999999999999999999), ''],
    [ratelimit_breaker => $OUTAGE,
     map { "window=$_" } qw(0 99ms 3600001ms 61m 2h -1 abc 1x), ''],
    [ratelimit_breaker => $PROBE,
     map { "probe=$_" } qw(0 99ms 3600001ms 2h -1 abc), ''],
    [ratelimit_breaker => $BREAKER,
     qw(5 off on failures Failures=5 failure=5 timeout=1s =5), ''],
    [ratelimit_headers => 'it must be "legacy", "draft-8", "draft-11", "off"',
     qw(foo on draft8), ''],
    [ratelimit_body => 'it must be "default", "json", "problem" or "grpc"',
     qw(foo html off), ''],
    [ratelimit_phase => 'it must be "access" or "precontent"',
     qw(preaccess content), ''],
    [ratelimit_clock => 'it must be "redis" or "nginx"', qw(local), ''],
    [ratelimit_algorithm =>
         'it must be "token_bucket", "sliding_window_log", "gcra", "fixed_window" or "sliding_window_counter"',
     qw(bucket sliding_window gcra2), ''],
    [ratelimit_period => $PERIOD, qw(year 60s Month days $arg_p), ''],
    [ratelimit_timezone => $ZONE,
     qw(utc Z +1 +01 1:00 +24:00 +14:01 -12:01 Europe/Berlin $arg_z), ''],
    [ratelimit_anchor => $ANCHOR, qw(0 29 -1 1.5 monday $arg_a), ''],
    [ratelimit_window => $WINDOW,
     qw(0 0s -1s abc 1x 1.5s 366d 31536000001ms), ''],
    [ratelimit_refill_interval => $STEP, qw(-1 abc 2d 86400001ms), ''],
    [ratelimit_preview => 'it must be "on" or "off"', qw(yes 1)],
    [ratelimit_preview_cache => 'it must be "off" ' . $CACHE, qw(on -1 abc 2m 60001ms), ''],
    [ratelimit_deny_cache => 'it must be "on", "off" ' . $CACHE, qw(yes -1 abc 2m 60001ms), ''],
    [ratelimit_lease => $LEASE,
     qw(0 -1 abc 1.5 10x 1000000001 0% 101% % 1.5% %10 10%% on
        99999999999999999999), ''],
    [ratelimit_ipv6_prefix => $BITS, qw(0 129 -64 /64 abc 64x), ''],
    [ratelimit_log_key => 'it must be "plain", "hash" or "off"', qw(on sha1)],
    [ratelimit_top => 'it must be "off" or a number of keys from 10 to 1000',
     qw(on 0 9 1001 -10 10x 1.5 abc Off 99999999999999999999), ''],
    [ratelimit_log_level =>
         'it must be "debug", "info", "notice", "warn" or "error"',
     qw(loud err crit), ''],
    [ratelimit_dry_run => 'it must be "on" or "off"', qw(yes 1)],
);

for my $case (@WRONG) {
    my ($directive, $allowed, @values) = @$case;

    for my $value (@values) {
        refused("$directive \"$value\"", $SHARDS,
                companions($directive) . " $directive \"$value\";",
                $directive, "\"$value\"", $allowed,
                qr/ in \S+nginx\.conf:\d+$/);
    }
}

refused('a wrong value in http', "ratelimit_capacity 0; $SHARDS", undef,
        'ratelimit_capacity', '"0"', $CAPACITY);
refused('a variable that nobody knows', $SHARDS,
        'ratelimit_rate $no_such_rate;', 'unknown "no_such_rate" variable');
refused('a key of a variable that nobody knows', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_key $no_such_key;',
        'unknown "no_such_key" variable');
refused('a rate of two words', $SHARDS, 'ratelimit_rate 10 r/s;',
        'invalid number of arguments in "ratelimit_rate"');


# ---- values that don't fit each other

my $FAST = 'the rate per second must be at most 1000 times the capacity';

for my $pair (['1001r/s', 1], ['60001r/m', 1], ['3000.1r/s', 3],
              ['1000000000r/s', 999999])
{
    my ($rate, $capacity) = @$pair;

    refused("rate $rate, capacity $capacity", $SHARDS,
            "ratelimit_rate $rate; ratelimit_capacity $capacity;",
            'ratelimit_rate', "\"$rate\"", "capacity $capacity", $FAST,
            'limit "localhost/t"');
}

for my $pair (['1000r/s', 1], ['60000r/m', 1], ['1000000000r/s', 1000000],
              ['0.000001r/d', 1000000000], ['0r/s', 1], ['0.0r/d', 5])
{
    my ($rate, $capacity) = @$pair;

    accepted("rate $rate, capacity $capacity", $SHARDS,
             "ratelimit_rate $rate; ratelimit_capacity $capacity;");
}

# gcra counts in sixteenths of a microsecond, up to a year

my $GCRA = '"gcra" needs a rate above zero and at most 100000r/s that refills '
           . 'the capacity within a year';

for my $pair (['0r/s', 5], ['100001r/s', 1000], ['100000.5r/s', 1000],
              ['1000000000r/s', 1000000], ['1r/d', 366], ['0.000001r/d', 1],
              ['1r/s', 31536001])
{
    my ($rate, $capacity) = @$pair;

    refused("gcra: rate $rate, capacity $capacity", $SHARDS,
            "ratelimit_rate $rate; ratelimit_capacity $capacity;"
            . 'ratelimit_algorithm gcra;',
            'ratelimit_rate', "\"$rate\"", "capacity $capacity", $GCRA,
            'limit "localhost/t"');
    accepted('which a token bucket can be', $SHARDS,
             "ratelimit_rate $rate; ratelimit_capacity $capacity;"
             . 'ratelimit_algorithm token_bucket;');
}

for my $pair (['100000r/s', 100], ['100000r/s', 1000000000], ['1r/d', 365],
              ['1r/s', 31536000], ['0.000001r/s', 31], ['7r/m', 1])
{
    my ($rate, $capacity) = @$pair;

    accepted("gcra: rate $rate, capacity $capacity", $SHARDS,
             "ratelimit_rate $rate; ratelimit_capacity $capacity;"
             . 'ratelimit_algorithm gcra;');
}

accepted('gcra: the capacity is the number in the rate', $SHARDS,
         'ratelimit_rate 10r/s; ratelimit_algorithm gcra;');
accepted('gcra: what is not known yet is checked with each request', $SHARDS,
         'ratelimit_rate $arg_r; ratelimit_algorithm gcra;');
accepted('gcra with what it has no use for, which may be inherited',
         "$SHARDS ratelimit_refill_interval 1s; ratelimit_window 5s;",
         'ratelimit_rate 10r/s; ratelimit_algorithm gcra;');
refused('gcra: too fast for its capacity, as for any bucket', $SHARDS,
        'ratelimit_rate 1001r/s; ratelimit_capacity 1; '
        . 'ratelimit_algorithm gcra;', $FAST);

refused('0r/s without a capacity', $SHARDS, 'ratelimit_rate 0r/s;',
        'ratelimit_rate', '"0r/s"', 'never refills', 'ratelimit_capacity');
refused('a cost above the capacity', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_capacity 10; ratelimit_cost 11;',
        'ratelimit_cost', '"11"', 'capacity 10', 'no request could ever pass');
refused('a cost above the number in the rate', $SHARDS,
        'ratelimit_rate 5r/s; ratelimit_cost 6;',
        'ratelimit_cost', '"6"', 'capacity 5');
refused('an inherited cost above the capacity', "$SHARDS ratelimit_cost 7;",
        'ratelimit_rate 5r/s;', 'ratelimit_cost', '"7"', 'capacity 5');
accepted('a cost as high as the capacity', $SHARDS,
         'ratelimit_rate 1r/s; ratelimit_capacity 10; ratelimit_cost 10;');
accepted('a limit without shards', '', 'ratelimit_rate 1r/s;');
accepted('a limit of http without shards', 'ratelimit_rate 1r/s;', '');
accepted('a window without shards', '', 'ratelimit_capacity 5;'
         . 'ratelimit_algorithm sliding_window_log;');

# somebody who says how to talk to Redis means to have one

for my $case (['user', "ratelimit_redis_user bob; ratelimit_redis_password "
                       . "$SECRET;", 'password'],
              ['password', "ratelimit_redis_password $SECRET;", 'password'],
              ['database', 'ratelimit_redis_database 1;', 'database'])
{
    my ($name, $text, $told) = @$case;

    refused("a $name of Redis without shards, in $_->[0]", @$_[1, 2],
            "\"ratelimit_redis_$told\" without \"ratelimit_shards\": limits "
            . "would be kept in this machine's memory only; add "
            . '"ratelimit_shards"')
        for ['a location', '', "ratelimit_rate 1r/s; $text"],
            ['http', $text, 'ratelimit_rate 1r/s;'],
            ['http, with a named limit', "$text ratelimit_limit a rate=1r/s;",
             'ratelimit a;'];

    accepted("a $name of Redis without shards where nothing is limited", $text,
             'empty_gif;');
}

accepted('database 0 is none', 'ratelimit_redis_database 0;',
         'ratelimit_rate 1r/s;');


# Warnings of a configuration that loads; locations that have a limit, with
# shards or without.

sub warnings_of {
    my ($http, $server) = @_;

    my ($code, $output) = RateLimit::Nginx->test_config(conf => $http,
                                                        server => $server);

    return $code ? $output
                 : join "\n", $output =~ /^nginx:\ \[(?:warn|error)\]
                                         \ (.*)\ in\ \S+:\d+$/xmg;
}

my $WITH = "ratelimit_rate 1r/s; $SHARDS";
my $WITHOUT = 'ratelimit_rate 1r/s;';
my $ALONE = "are kept in this machine's memory, other limits in Redis: "
            . 'add "ratelimit_shards" for this location '
            . '(or write "ratelimit_silence no_shards;" if this is intended)';

is warnings_of('', "location /a { $WITH } location /b { $WITHOUT }"),
   "limits of location \"/b\" $ALONE",
   'a place without shards beside one that has some: a warning';
is warnings_of('', "location /a { $WITHOUT } location /b { $WITHOUT } "
                   . "location /c { $WITH }"),
   "limits of location \"/a\" $ALONE", 'one for all of them';
is warnings_of('', "location /a { $WITH } location /b { empty_gif; }"), '',
   'a place without limits needs no shards';
is warnings_of('', "location /a { $WITHOUT } location /b { $WITHOUT }"), '',
   'no place with shards, no warning';
is warnings_of($SHARDS, "location /a { $WITHOUT } location /b { $WITHOUT }"),
   '', 'nor if all have some';
is warnings_of($SHARDS, "location /a { $WITHOUT }
                         location /b { ratelimit_redis_database 1; $WITHOUT }"),
   '', 'of whatever kind';


refused('a wrong limit without shards', '', 'ratelimit_rate 0r/s;',
        'ratelimit_rate', '"0r/s"', 'never refills');
refused('a capacity without a rate', $SHARDS, 'ratelimit_capacity 5;',
        'ratelimit_capacity', 'without "ratelimit_rate"', 'location "/t"');
refused('a key without a rate', $SHARDS, 'ratelimit_key $uri;',
        'ratelimit_key', 'without "ratelimit_rate"', 'location "/t"');

# no request is served at the http level: what is wrong or missing there may
# be put right below

accepted('a limit in http that only the servers complete',
         "ratelimit_rate 0r/s; ratelimit_cost 5; server {"
         . "listen 127.0.0.1:%%PORT2%%; $SHARDS ratelimit_capacity 5; }");
accepted('a user in http, the password in the location',
         "$SHARDS ratelimit_redis_user bob;",
         "ratelimit_rate 1r/s; ratelimit_redis_password $SECRET;");


# ---- shards

my @SHARDS_WRONG = (
    ['nothing'          => '', 'invalid number of arguments'],
    ['no address'       => 'hash=modulo', 'no address'],
    ['hash=foo'         => '127.0.0.1 hash=foo', '"hash=foo"',
                           '"hash=consistent" or "hash=modulo"'],
    ['hash='            => '127.0.0.1 hash=', '"hash="'],
    ['port 0'           => '127.0.0.1:0', 'invalid port', '"127.0.0.1:0"'],
    ['port 65536'       => '127.0.0.1:65536', 'invalid port'],
    ['port abc'         => '127.0.0.1:abc', 'invalid port'],
    ['a range of ports' => '127.0.0.1:6379-6380', 'invalid port'],
    ['no host'          => ':6379', 'no host'],
    ['an empty word'    => '""', 'no host'],
    ['a path'           => '127.0.0.1:6379/1', 'invalid host'],
    ['IPv6, no bracket' => '[::1:6379', 'invalid host'],
    ['IPv6 and a port'  => '::1:6379', 'invalid address "::1:6379"',
                           'an IPv6 address needs brackets, '
                           . 'write "[::1]:6379" in '],
    ['IPv6 alone'       => 'redis://fe80::1:beef', 'write "[fe80::1:beef]"'],
    ['a list by commas' => 'a:1,b:2', 'invalid address "a:1,b:2"',
                           'separated by spaces, '
                           . 'write "host1:port host2:port" in '],
    ['URLs by commas'   => "redis://:$SECRET\@127.0.0.1:1,redis://127.0.0.1:2",
                           'separated by spaces'],
    ['URL, a parameter' => "redis://127.0.0.1?password=$SECRET",
                           'has parameters'],
    ['URL, a parameter behind a database'
                        => "redis://localhost/0?password=$SECRET",
                           'has parameters'],
    ['parameters by commas' => "127.0.0.1:6379,password=$SECRET",
                           'has parameters', '"ratelimit_redis_password"'],
    ['a weight'         => '127.0.0.1 weight=5', 'invalid parameter "weight="',
                           'shards have no weights',
                           '"hash=consistent" or "hash=modulo"'],
    ['a parameter'      => "127.0.0.1 password=$SECRET",
                           'invalid parameter "password="'],
    ['sentinel, later'  => '127.0.0.1 sentinel=m',
                           '"sentinel=m" must be the first parameter'],
    ['IPv6, bad'        => '[::zz]:6379', 'invalid IPv6 address'],
    ['unix, no path'    => 'unix:', 'no path in the unix domain socket'],
    ['unix, too long'   => 'unix:/' . 'x' x 120, 'too long path'],
    ['an unknown host'  => 'no-such-host.invalid:6379', 'host not found',
                           '"no-such-host.invalid:6379"'],
    ['twice the same'   => '127.0.0.1:6379 127.0.0.1:6379',
                           'duplicate shard "127.0.0.1:6379"'],
    ['twice, one by default port' => '127.0.0.1:6379 127.0.0.1',
                           'duplicate shard "127.0.0.1:6379"'],
    ['twice, one by URL' => "127.0.0.1:6379 redis://:$SECRET\@127.0.0.1",
                           'duplicate shard "127.0.0.1:6379"'],
    ['twice the socket' => 'unix:/a unix:/a', 'duplicate shard "unix:/a"'],
    ['TLS'              => "rediss://u:$SECRET\@127.0.0.1/x",
                           'invalid database "x"'],
    ['URL, no host'     => 'redis://', 'no host'],
    ['URL, only db'     => 'redis:///1', 'no host'],
    ['URL, bad port'    => "redis://u:$SECRET\@127.0.0.1:x",
                           'invalid port', '"127.0.0.1:x"'],
    ['URL, bad host'    => "redis://u:$SECRET\@no-such-host.invalid",
                           'host not found', '"no-such-host.invalid"'],
    ['URL, bad db'      => "redis://u:$SECRET\@127.0.0.1/x",
                           'invalid database "x"',
                           'a number from 0 to 65535'],
    ['URL, db too high' => 'redis://127.0.0.1/65536', '"65536"'],
    ['URL, db negative' => 'redis://127.0.0.1/-1', '"-1"'],
    ['URL, user alone'  => 'redis://bob@127.0.0.1', 'no password',
                           '"@127.0.0.1"', 'redis://user:password@host'],
    ['URL, a password for a user' => "redis://$SECRET\@127.0.0.1",
                           'no password'],
    ['URL, slash in the password' => "redis://bob:x/$SECRET\@127.0.0.1",
                           'redis://user:password@host', '"%2F"'],
    ['URL, slash in the password, db' =>
                           "redis://bob:x/$SECRET\@127.0.0.1/1", '"%2F"'],
    ['no scheme'        => "bob:$SECRET\@127.0.0.1:6379",
                           'redis://user:password@host'],
    ['another scheme'   => "http://bob:$SECRET\@127.0.0.1:6379",
                           'redis://user:password@host'],
    ['a slip in the scheme' => "redis:/bob:$SECRET\@127.0.0.1",
                           'redis://user:password@host'],
);

for my $case (@SHARDS_WRONG) {
    my ($name, $value, @texts) = @$case;

    refused("ratelimit_shards: $name", "ratelimit_shards $value;",
            'ratelimit_rate 1r/s;', 'ratelimit_shards', @texts);
}

for my $value (
    'localhost', 'localhost:6380', '127.0.0.1', '127.0.0.1:6379', '[::1]',
    '[::1]:6380', 'unix:/run/redis/a.sock', 'redis://127.0.0.1',
    'redis://127.0.0.1/', 'redis://127.0.0.1:6380/3', 'REDIS://127.0.0.1',
    'redis://[::1]:6380/0', "redis://:$SECRET\@127.0.0.1",
    "redis://bob:$SECRET\@127.0.0.1:6379/65535", 'redis://b%40b:a%2Fb@[::1]',
    'redis://bob:p@ss@127.0.0.1',
    '127.0.0.1:6379 127.0.0.1:6380 [::1]:6379 unix:/a unix:/b',
    '127.0.0.1 hash=consistent', 'hash=modulo 127.0.0.1 127.0.0.2',
    'redis://127.0.0.1/1 redis://127.0.0.1/2')
{
    accepted("ratelimit_shards $value", "ratelimit_shards $value;",
             'ratelimit_rate 1r/s;');
}


# ---- a password is never shown, wherever the mistake is

for my $value (qw(redis://user:s3cr3t redis://:s3cr3t redis://user:s3cr3t/0
                  redis://user:s3cr3t/x redis://user:12/s3cr3t
                  rediss://user:s3cr3t/ redis://user:pa/s3cr3t
                  redis://user:pa/s3cr3t@127.0.0.1
                  redis://user:s3cr3t@127.0.0.1:x redis://user:s3cr3t@
                  redis://user:s3cr3t@127.0.0.1/x redis://s3cr3t@127.0.0.1
                  redis://user:pa@s3cr3t@127.0.0.1:x
                  redis:/user:s3cr3t@127.0.0.1 user:s3cr3t@127.0.0.1
                  valkey://user:s3cr3t valkey://user:s3cr3t@127.0.0.1
                  password=s3cr3t), 'redis://user:s3cr3t@[::1', 'redis://:5ec3e7',
              'redis://user:s3cr3t,x')
{
    my ($code, $output) = RateLimit::Nginx->test_config(
        conf   => "ratelimit_shards 127.0.0.1 $value;",
        server => 'ratelimit_rate 1r/s;');

    is($code, 1, "refused: $value");
    like($output, qr/\[emerg\].*"ratelimit_shards".* in \S+:\d+$/m,
         'with file and line');
    unlike($output, qr/s3cr3t|5ec3e7/, 'and no password');
}


# ---- words that don't fit each other

refused('two header families and off', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_headers legacy off;',
        'ratelimit_headers', '"off" can\'t be combined');
refused('no headers, and those of a dry run', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_headers off dry_run;',
        'ratelimit_headers', '"off" can\'t be combined');
refused('headers without a family', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_headers dry_run no_degraded;',
        'ratelimit_headers', 'no header family', 'add "legacy"');
refused('a header family twice', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_headers legacy draft-8 legacy;',
        'ratelimit_headers', 'duplicate value "legacy"');
refused('both drafts',  '',
        'ratelimit_rate 1r/s; ratelimit_headers draft-8 draft-11;',
        'ratelimit_headers', '"draft-8" can\'t be combined with "draft-11"');
refused('an algorithm without a rate', $SHARDS,
        'ratelimit_algorithm token_bucket;', 'ratelimit_algorithm',
        'without "ratelimit_rate"', 'location "/t"');
refused('a window log without a capacity', $SHARDS,
        'ratelimit_algorithm sliding_window_log;', 'ratelimit_algorithm',
        'without "ratelimit_capacity"', 'location "/t"');
refused('a window alone', $SHARDS, 'ratelimit_window 10s;',
        'ratelimit_window', 'location "/t"');
refused('a refill interval alone', $SHARDS, 'ratelimit_refill_interval 10s;',
        'ratelimit_refill_interval', 'location "/t"');
refused("a breaker with $_->[0] twice", $SHARDS,
        "ratelimit_rate 1r/s; ratelimit_breaker $_->[0] $_->[1];",
        'ratelimit_breaker', "duplicate parameter \"$_->[1]\"")
    for ['failures=5', 'failures=6'], ['window=1s', 'window=1s'],
        ['probe=1s', 'probe=2s'];
refused('a breaker of four words', $SHARDS, 'ratelimit_rate 1r/s;'
        . 'ratelimit_breaker failures=5 window=1s probe=1s failures=5;',
        'invalid number of arguments in "ratelimit_breaker"');
refused("a lease with \"$_\"", $SHARDS,
        "ratelimit_rate 1r/s; ratelimit_lease 10 \"$_\";",
        'ratelimit_lease', "invalid parameter \"$_\"",
        'it must be "ttl=" with a time from 10ms to 60s, for example "ttl=1s"')
    for qw(ttl=9ms ttl=0 ttl=60001ms ttl=2m ttl=-1 ttl=abc ttl= ttl 1s
           TTL=1s time=1s off), '';
refused('no lease, for a time', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_lease off ttl=1s;',
        'ratelimit_lease', 'invalid value "off"');
refused('a lease of three words', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_lease 10 ttl=1s ttl=1s;',
        'invalid number of arguments in "ratelimit_lease"');
refused('no words for a lease', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_lease;',
        'invalid number of arguments in "ratelimit_lease"');
refused('two words for the memory of denials', $SHARDS,
        'ratelimit_rate 1r/s; ratelimit_deny_cache on 1s;',
        'invalid number of arguments in "ratelimit_deny_cache"');
refused('gcra without a rate', $SHARDS, 'ratelimit_algorithm gcra;',
        'ratelimit_algorithm', 'without "ratelimit_rate"', 'location "/t"');
accepted('a lease of a window, or of several limits, which is of no use',
         "$SHARDS ratelimit_lease 10%; ratelimit_silence useless_lease; "
         . 'ratelimit_limit a rate=1r/s; '
         . 'ratelimit_limit b rate=1r/m; ratelimit_limit c capacity=5 '
         . 'algorithm=sliding_window_log; server { '
         . 'listen 127.0.0.1:%%PORT2%%; location /a { ratelimit c; } '
         . 'location /b { ratelimit a b; } }');
accepted('leases and denials where there are no shards',
         'ratelimit_silence useless_lease;',
         'ratelimit_rate 1r/s; ratelimit_lease 10%; ratelimit_deny_cache 1s;');
accepted('a window log with a capacity', $SHARDS,
         'ratelimit_algorithm sliding_window_log; ratelimit_capacity 5;');


# ---- credentials

refused('a user without a password', "$SHARDS ratelimit_redis_user bob;",
        'ratelimit_rate 1r/s;', 'ratelimit_redis_user', '"bob"',
        'ratelimit_redis_password', 'ratelimit_redis_password_file');
refused('a user with an empty password',
        "$SHARDS ratelimit_redis_user bob; ratelimit_redis_password '';",
        'ratelimit_rate 1r/s;', 'ratelimit_redis_user', '"bob"');
refused('a password file that is missing', $SHARDS,
        "ratelimit_rate 1r/s; ratelimit_redis_password_file $dir/none;",
        "$dir/none", 'ratelimit_redis_password_file', 'No such file');
refused('a password file that is a folder', $SHARDS,
        "ratelimit_rate 1r/s; ratelimit_redis_password_file $dir;",
        $dir, 'ratelimit_redis_password_file', 'Is a directory');
refused("a password file with $_ first line", $SHARDS,
        "ratelimit_rate 1r/s; ratelimit_redis_password_file $dir/$_;",
        "$dir/$_", 'ratelimit_redis_password_file', 'first line')
    for qw(empty blank);
refused('a password and a password file', $SHARDS,
        "ratelimit_redis_password $SECRET; "
        . "ratelimit_redis_password_file $dir/password;",
        '"ratelimit_redis_password_file" directive is duplicate');
refused('a password file and a password', $SHARDS,
        "ratelimit_redis_password_file $dir/password; "
        . "ratelimit_redis_password $SECRET;",
        '"ratelimit_redis_password" directive is duplicate');
refused('a password of two words', $SHARDS,
        "ratelimit_redis_password a $SECRET;",
        'invalid number of arguments in "ratelimit_redis_password"');
accepted('an empty user and password, as if there were none',
         "$SHARDS ratelimit_redis_user ''; ratelimit_redis_password '';",
         'ratelimit_rate 1r/s;');


# ---- each directive: where it may stand, and how often

for my $directive (sort keys %GOOD) {
    my $text = "$directive $GOOD{$directive};";
    my $beside = companions($directive);
    my $shards = $directive eq 'ratelimit_shards' ? '' : $SHARDS;
    my $twice = qr/"$directive" directive is duplicate/;

    accepted("$directive in http", "$shards $beside $text", '');
    accepted("$directive in server",
             "$shards server { listen 127.0.0.1:%%PORT2%%; $beside $text }");
    accepted("$directive in location", $shards, "$beside $text");

    refused("$directive twice", $shards, "$beside $text $text", $twice);
    refused("$directive in if", $shards, "$beside if (\$args) { $text }",
            qr/"$directive" directive is not allowed here/);

    refused("$directive without a value", $shards, "$beside $directive;",
            qr/invalid number of arguments in "$directive"/);
}


# ---- directives with places of their own

# 16 pages at least

my $k = 16 * POSIX::sysconf(POSIX::_SC_PAGESIZE()) / 1024;

for my $value ("${k}k", $k * 1024, '10m') {
    accepted("ratelimit_zone $value in http", "$SHARDS ratelimit_zone $value;",
             'ratelimit_rate 1r/s;');
}

for my $value (qw(0 4k abc 1x -64k), $k - 1 . 'k', $k * 1024 - 1, '') {
    refused("ratelimit_zone \"$value\"", "$SHARDS ratelimit_zone \"$value\";",
            'ratelimit_rate 1r/s;', 'ratelimit_zone', "\"$value\"",
            "it must be a size of at least ${k}k, for example \"10m\"");
}

refused('ratelimit_zone twice', "$SHARDS ratelimit_zone 1m; ratelimit_zone 1m;",
        '', '"ratelimit_zone" directive is duplicate');
refused("ratelimit_zone in $_->[0]", @$_[1, 2],
        '"ratelimit_zone" directive is not allowed here')
    for ['server', 'server { listen 127.0.0.1:%%PORT2%%; ratelimit_zone 1m; }'],
        ['location', '', 'ratelimit_zone 1m;'];

accepted('ratelimit_metrics in a location', '', 'ratelimit_metrics;');
accepted('ratelimit_metrics beside a limit', $SHARDS,
         'ratelimit_metrics; ratelimit_rate 1r/s;');
refused('ratelimit_metrics with a word', '', 'ratelimit_metrics on;',
        'invalid number of arguments in "ratelimit_metrics"');
refused('ratelimit_metrics twice', '', 'ratelimit_metrics; ratelimit_metrics;',
        '"ratelimit_metrics" directive is duplicate');
refused("ratelimit_metrics beside $_", '', "$_; ratelimit_metrics;",
        '"ratelimit_metrics" directive conflicts with another directive that '
        . 'generates the response')
    for 'empty_gif', 'proxy_pass http://127.0.0.1:1', 'stub_status';
accepted('ratelimit_metrics in each of two locations', '',
         'ratelimit_metrics; location /t/more { ratelimit_metrics; }');
refused("ratelimit_metrics in $_->[0]", @$_[1, 2],
        '"ratelimit_metrics" directive is not allowed here')
    for ['http', 'ratelimit_metrics;', ''],
        ['server', 'server { listen 127.0.0.1:%%PORT2%%; ratelimit_metrics; }'],
        ['if', '', 'if ($args) { ratelimit_metrics; }'];


# ---- good values of all forms

my @RIGHT = (
    [ratelimit_capacity      => qw(1 007 1000000000 $arg_c x$arg_c)],
    [ratelimit_rate          => qw(1r/s 10r/m 5r/h 1r/d 0.5r/s 1.5r/m
                                   0.000001r/s 1.0r/s $arg_r ${arg_r}r/s)],
    [ratelimit_cost          => qw(1 10 $arg_cost)],
    [ratelimit_status        => qw(400 404 429 444 499 503 599)],
    [ratelimit_error_status  => qw(429 500 503)],
    [ratelimit_redis_timeout => qw(1 1ms 250ms 60s 1m)],
    [ratelimit_prefix        => qw(rl a:b:c app-1/x "~!")],
    [ratelimit_redis_database => qw(0 15 65535)],
    [ratelimit_on_error      => qw(open closed local)],
    [ratelimit_local_share   => qw(1 1.0 0.25 0.001 1/4 2/3 1/1000 3/3)],
    [ratelimit_breaker       => qw(failures=1 failures=100 window=100ms
                                   window=1h window=30 probe=100ms probe=1h),
                                'failures=3 window=10s probe=1s',
                                'probe=1s failures=3', 'window=1m probe=1m'],
    [ratelimit_headers       => qw(legacy draft-8 draft-11 off),
                                'legacy draft-8', 'draft-8 legacy',
                                'legacy expose'],
    [ratelimit_body          => qw(default json problem grpc)],
    [ratelimit_error_retry_after => qw(1 1s 1500ms 5m 1d)],
    [ratelimit_retry_jitter  => qw(0% 1% 20% 100% off)],
    [ratelimit_phase         => qw(access precontent)],
    [ratelimit_clock         => qw(redis nginx)],
    [ratelimit_algorithm     => qw(token_bucket sliding_window_log gcra)],
    [ratelimit_period        => qw(minute hour day week month)],
    [ratelimit_timezone      => qw(UTC +00:00 -12:00 +14:00 +05:45)],
    [ratelimit_anchor        => qw(1 7 28)],
    [ratelimit_window        => qw(1ms 1s 60 1m 30d 365d $arg_w)],
    [ratelimit_refill_interval => qw(0 10ms 1m 1d $arg_i)],
    [ratelimit_preview       => qw(on off)],
    [ratelimit_preview_cache => qw(0 1ms 50ms 60s off)],
    [ratelimit_deny_cache    => qw(0 1ms 1s 60s on off)],
    [ratelimit_lease         => qw(off 1 50 1000000000 1% 10% 100%),
                                '50 ttl=10ms', '10% ttl=1', '10% ttl=60s',
                                '1 ttl=1m'],
    [ratelimit_ipv6_prefix   => qw(1 48 64 128)],
    [ratelimit_log_key       => qw(plain hash off)],
    [ratelimit_top           => qw(10 1000 off)],
    [ratelimit_log_level     => qw(debug info notice warn error)],
    [ratelimit_dry_run       => qw(on off)],
    [ratelimit_key           => qw("" static $http_x_api_key $remote_addr$uri)],
);

for my $case (@RIGHT) {
    my ($directive, @values) = @$case;

    my $capacity = $directive =~ /^ratelimit_(?:capacity|algorithm)$/
                   ? '' : 'ratelimit_capacity 100;';

    accepted("$directive $_", "$SHARDS ratelimit_silence long_timeout;",
             companions($directive) . "$capacity $directive $_;") for @values;
}


done_testing();
