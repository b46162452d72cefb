# The smallest zone and a million different keys: with limits that live in this
# machine's memory, with a Redis that is gone, and with windows.  Keys leave, in
# the order of their use, and nothing else happens: the client that is there all
# the time stays limited, memory stays as it is, the log stays quiet.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);

use RateLimit::Flood;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my $MILLION = 1_000_000;
my $HOT = 10;           # what the client that is always there may have
my $EVERY = 20;         # and how often it comes: each 20th request

# a sanitizer or valgrind is slower than a test may be

my $SLOW = $ENV{TEST_NGINX_USE_VALGRIND} || $ENV{RATELIMIT_PATIENCE} ? 50 : 1;


sub start {
    my ($http) = @_;

    return RateLimit::Nginx->start(
        log    => 'notice',
        conf   => <<"EOC",
    ratelimit_zone 64k;
    ratelimit_log_level info;
    access_log off;
    keepalive_requests 100000000;
$http
EOC
        server => <<"EOC",
            ratelimit_key     \$arg_k;
            ratelimit_headers off;
            add_header        X-Source \$ratelimit_source always;

            location / {
                ratelimit_capacity 5;
                ratelimit_rate 1r/h;
                empty_gif;
            }

            location /hot {
                ratelimit_capacity $HOT;
                ratelimit_rate 0r/s;
                empty_gif;
            }

            location /window/ {
                ratelimit_algorithm sliding_window_log;
                ratelimit_capacity 5;
                ratelimit_window 1h;
                empty_gif;

                location /window/hot {
                    ratelimit_algorithm sliding_window_log;
                    ratelimit_capacity $HOT;
                    ratelimit_window 1h;
                    empty_gif;
                }
            }

            location = /metrics { ratelimit_metrics; }
EOC
    );
}


sub metrics {
    my ($nginx) = @_;

    my $text = $nginx->get('/metrics')->{body};
    my %metrics = $text =~ /^nginx_ratelimit_(\S+) (\S+)$/mg;

    $metrics{zone_evictions_total} = sum0 map { $metrics{$_} }
                                          grep { /^zone_evictions_total/ }
                                          keys %metrics;

    return \%metrics;
}


# So many keys, each once, and among them the hot one; "from" is the number of
# the first.

sub flood {
    my ($nginx, $prefix, $from, $keys) = @_;

    return RateLimit::Flood::run(
        port => $nginx->port, requests => $keys * $EVERY / ($EVERY - 1),
        mark => 'X-Source', timeout => 300,
        path => sub {
            return $_[0] % $EVERY ? $prefix . '?k=' . ($from + $_[0])
                                  : $prefix . 'hot?k=hot';
        },
    );
}


# What must be true of a flood of different keys; the first tenth of them is to
# fill what grows once.

sub survives {
    my ($nginx, $prefix, $keys) = @_;

    $keys = ($EVERY - 1) * int 1 + $keys / $SLOW / ($EVERY - 1);

    my @workers = $nginx->workers;
    my $before = metrics($nginx);
    my $lines = $nginx->log_count(qr/./);

    my $tenth = ($EVERY - 1) * int $keys / 10 / ($EVERY - 1);
    my $first = flood($nginx, $prefix, 0, $tenth);
    my $memory = $nginx->memory;
    my $used = metrics($nginx)->{zone_used_bytes};
    my $second = flood($nginx, $prefix, 2 * $keys, $keys - $tenth);

    my $after = metrics($nginx);
    my %marks = %{ $first->{marks} };

    $marks{$_} += $second->{marks}{$_} for keys %{ $second->{marks} };

    my $hot = $keys / ($EVERY - 1);

    is_deeply { %{ $first->{errors} }, %{ $second->{errors} } }, {},
       'every request gets a complete answer';
    is_deeply \%marks, { '200 local' => $keys + $HOT,
                         '429 local' => $hot - $HOT },
       "$keys keys pass, and the one that comes all the time only $HOT times";

    my %new = map { $_ => $after->{$_} - $before->{$_} } keys %$after;

    is $new{zone_evictions_total} + $new{zone_keys}, $keys + 1,
       'each key is known, or was and is counted as evicted';
    cmp_ok $after->{zone_keys}, '>', 50, 'some are known';
    is $new{zone_resets_total}, 0, 'never all of them are forgotten';
    is $new{'decisions_total{decision="passed",source="local"}'},
       $keys + $HOT, 'passed requests are counted';
    is $new{'decisions_total{decision="rejected",source="local"}'},
       $hot - $HOT, 'rejected ones too';

    is $after->{zone_used_bytes}, $used, 'the zone is as full as before';
    cmp_ok $after->{zone_used_bytes}, '<=', $after->{zone_size_bytes},
       'and not more';

    SKIP: {
        skip 'what is freed stays in quarantine', 1 if $SLOW > 1;

        cmp_ok $nginx->memory - $memory, '<', 1024,
               'workers need no more memory, by less than a megabyte';
    }

    is_deeply [$nginx->workers], \@workers, 'no worker died';

    return $nginx->log_count(qr/./) - $lines;
}


subtest 'a million keys without Redis push each other out, and nothing else'
    => sub
{
    my $nginx = start('');

    is survives($nginx, '/', $MILLION), 0, 'nothing is logged';

    $nginx->finish;
};


subtest 'a million keys while Redis is down push each other out, and nothing else'
    => sub
{
    my $redis = RateLimit::Redis->start;
    my $nginx = start('ratelimit_shards ' . $redis->addr . ';');

    is $nginx->get('/?k=first')->{headers}{'x-source'},
       'redis', 'Redis decides';

    $redis->kill9;

    cmp_ok survives($nginx, '/', $MILLION), '<', 10, 'the log stays short';

    $redis->start;

    ok wait_until(sub {
        metrics($nginx)->{'breaker_state{shard="' . $redis->addr
                          . '",state="distributed"}'};
    }, 20), 'the breaker closes when Redis is back';

    my $r = $nginx->get('/hot?k=hot');

    is "$r->{status} $r->{headers}{'x-source'}", '200 redis',
       'and Redis decides again';

    $nginx->finish;
};


subtest 'windows, which need several places each' => sub {
    my $nginx = start('');

    is survives($nginx, '/window/', $MILLION / 4), 0, 'nothing is logged';

    $nginx->finish;
};


# Each configuration has other limits and other shards than the one before.

subtest 'limits that are renamed again and again leave nothing behind' => sub {
    my $limits = 5;
    my $reloads = $SLOW > 1 ? 5 : 30;

    my $server = sub {
        my ($n) = @_;

        my $dead = 'ratelimit_shards unix:/nonexistent/' . $n . 'x';

        return "ratelimit_key \$arg_k; location = /metrics { ratelimit_metrics; }"
               . "location = /same { ratelimit_rate 1r/d; empty_gif; }"
               . "location /away { $dead; ratelimit_rate 1r/d; empty_gif; }"
               . join '', map {
                   "location = /$n/$_ { ratelimit_rate 1r/d; empty_gif; }"
                 } 1 .. $limits;
    };

    my $nginx = RateLimit::Nginx->start(log => 'notice', workers => 1,
                                        conf => 'ratelimit_zone 128k;',
                                        server => $server->(0));

    my $get = sub { $nginx->get($_[0])->{status} };
    my (@refused, @odd, @wrong);

    is $get->('/same?k=a'), 200, 'a client passes';

    for my $n (1 .. $reloads) {
        $nginx->reload(server => $server->($n)) or push @refused, $n;
        $nginx->old_workers_gone(20);

        my $status = join ' ', map { $get->("/$n/$_?k=a") } 1, $limits, $limits;

        push @odd, "$n: $status" if $status ne '200 200 429';

        my $metrics = metrics($nginx);
        my @counted = map {
            $metrics->{"requests_total{limit=\"localhost=/$n/$_\","
                       . 'decision="passed",source="local"}'} // 0
        } 1 .. $limits;

        push @wrong, "$n: @counted"
            if "@counted" ne join ' ', 1, (0) x ($limits - 2), 1;
    }

    is "@refused", '', "none of $reloads configurations is refused";
    is_deeply \@odd, [], 'limits work in each of them';
    is_deeply \@wrong, [], 'and their figures begin with 0';

    is $get->('/same?k=a'), 429, 'who was there at first is still known';

    my $metrics = metrics($nginx);
    my @same = grep { /^requests_total.*"localhost=\/same"/ && $metrics->{$_} }
               keys %$metrics;

    is_deeply [map { $metrics->{$_} } sort @same], [1, 1],
       'with its own figures, from all the time';

    my %names = map { /^requests_total\{.*limit="localhost=\/(\d+)\// ? ($1 => 1)
                                                                     : () }
                keys %$metrics;

    cmp_ok scalar(keys %names), '<', $reloads,
           'figures of limits that are long gone are gone, too';

    $nginx->finish;
};


done_testing;
