# Shared memory that is short: whoever floods it, used-up limits of others stay
# used up, as long as there is anything else that can go.  And whose layout it
# has.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Copy qw(copy);
use File::Temp ();

use RateLimit::Flood;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Source;
use RateLimit::Util qw(dead_port slurp write_file);

# many times what goes into the smallest zone

my $KEYS = 5000;


sub config {
    my ($http, $server) = @_;

    return (
        log    => 'notice',
        conf   => <<"EOC",
    ratelimit_zone 64k;
    ratelimit_log_level info;
    access_log off;
    keepalive_requests 100000000;

    ratelimit_limit login key=\$arg_k algorithm=sliding_window_log capacity=5
                    window=1h;
    ratelimit_limit slow key=\$arg_k capacity=4 rate=1r/d;
$http
EOC
        server => <<"EOC",
            ratelimit_headers off;
            add_header        X-Source \$ratelimit_source always;

            location = /login { ratelimit login; empty_gif; }
            location = /slow  { ratelimit slow; empty_gif; }
$server
            location = /metrics {
                ratelimit off;
                ratelimit_metrics;
            }
EOC
    );
}


sub start { return RateLimit::Nginx->start(config(@_)) }


sub status {
    my ($nginx, $path, $times) = @_;

    return join ' ', map { $nginx->get($path)->{status} }
                         1 .. $times // 1;
}


sub metrics {
    my ($nginx) = @_;

    my %metrics = status($nginx, '/metrics') eq 200
                  ? $nginx->get('/metrics')->{body}
                    =~ /^nginx_ratelimit_(\S+) (\S+)$/mg
                  : ();

    return \%metrics;
}


sub evicted {
    my ($nginx, $held) = @_;

    return metrics($nginx)->{"zone_evictions_total{held=\"$held\"}"};
}


sub flood {
    my ($nginx, $path, %opt) = @_;

    my $flood = RateLimit::Flood::run(
        port => $nginx->port, requests => $KEYS, timeout => 120, %opt,
        path => ref $path ? $path : sub { "$path$_[0]" });

    is_deeply $flood->{errors}, {}, 'all requests of a flood are answered';

    return $flood->{marks};
}


# Ten clients have used up a window, and ten a bucket.

sub use_up {
    my ($nginx) = @_;

    is join(' ', map { status($nginx, "/login?k=$_", 6) } 1 .. 10),
       join(' ', ('200 200 200 200 200 429') x 10), 'ten windows are full';
    is join(' ', map { status($nginx, "/slow?k=$_", 5) } 1 .. 10),
       join(' ', ('200 200 200 200 429') x 10), 'ten buckets are empty';
}


sub still_used_up {
    my ($nginx) = @_;

    is join(' ', map { status($nginx, "/login?k=$_") } 1 .. 10),
       join(' ', (429) x 10), 'the windows are still full';
    is join(' ', map { status($nginx, "/slow?k=$_") } 1 .. 10),
       join(' ', (429) x 10), 'the buckets are still empty';
}


subtest 'rejected requests take no memory' => sub {
    my $nginx = start('ratelimit_limit all key=all capacity=1 rate=0r/s;
                       ratelimit_limit user key=$arg_k capacity=9 rate=1r/d;',
                      'location = /api { ratelimit all user; empty_gif; }');

    use_up($nginx);
    is status($nginx, '/api?k=first'), 200, 'one request passes';

    my $before = metrics($nginx);

    is_deeply flood($nginx, '/api?k='), { 429 => $KEYS },
       'all others are rejected';

    my $after = metrics($nginx);

    is $after->{zone_keys}, $before->{zone_keys}, 'nothing is kept of them';
    is $after->{zone_used_bytes}, $before->{zone_used_bytes}, 'no memory';

    still_used_up($nginx);
    $nginx->finish;
};


subtest 'requests that pass another limit do not push used-up limits out'
    => sub
{
    my $nginx = start('ratelimit_limit a key=$arg_k capacity=100 rate=1r/d;
                       ratelimit_limit b key=$arg_k capacity=1 rate=1r/d;',
                      'location = /a { ratelimit a; empty_gif; }
                       location = /b { ratelimit b; empty_gif; }');

    use_up($nginx);

    is_deeply flood($nginx, '/a?k='), { 200 => $KEYS },
       'many clients come with one request of a hundred';
    is_deeply flood($nginx, '/b?k='), { 200 => $KEYS },
       'and with the only one they have';

    still_used_up($nginx);

    cmp_ok evicted($nginx, 'little'), '>', $KEYS / 2, 'keys had to go';
    cmp_ok evicted($nginx, 'much'), '>', $KEYS / 2, 'of both limits';

    $nginx->finish;
};


subtest 'requests that pass the same limit do not push used-up keys out'
    => sub
{
    my $nginx = start('', '');

    use_up($nginx);

    is_deeply flood($nginx, '/login?k=x'), { 200 => $KEYS },
       'many clients log in once';
    is_deeply flood($nginx, '/slow?k=x'), { 200 => $KEYS }, 'or ask once';

    still_used_up($nginx);

    is evicted($nginx, 'much'), 0, 'only keys with little taken had to go';

    $nginx->finish;
};


subtest 'buckets that are full again go first' => sub {
    my $nginx = start('ratelimit_limit mixed key=$arg_k capacity=1
                                       rate=$arg_r;',
                      'location = /mixed { ratelimit mixed; empty_gif; }');

    my $slow = 100;

    is_deeply flood($nginx, '/mixed?r=1r/d&k=', requests => $slow),
       { 200 => $slow }, 'clients of a slow plan';

    # each batch of a connection is answered before its next one

    is_deeply flood($nginx, '/mixed?r=1000r/s&k=x', connections => 1,
                    batch => 10),
       { 200 => $KEYS }, 'many of a fast one, in the same limit';

    is_deeply flood($nginx, '/mixed?r=1r/d&k=', requests => $slow),
       { 429 => $slow }, 'all the slow ones are still known';

    cmp_ok evicted($nginx, 'nothing'), '>', $KEYS / 2,
           'keys that held nothing had to go';
    is evicted($nginx, 'little') + evicted($nginx, 'much'), 0, 'and no others';

    $nginx->finish;
};


subtest 'shares that are used up while Redis is away stay used up' => sub {
    my $nginx = start('ratelimit_shards 127.0.0.1:' . dead_port() . ';'
                      . 'ratelimit_local_share 1;'
                      . 'ratelimit_limit a key=$arg_k capacity=100 rate=1r/d;
                         ratelimit_limit all key=all capacity=1 rate=0r/s;
                         ratelimit_limit user key=$arg_k capacity=9 rate=1r/d;',
                      'location = /a { ratelimit a; empty_gif; }
                       location = /api { ratelimit all user; empty_gif; }');

    use_up($nginx);

    is_deeply flood($nginx, '/a?k=', mark => 'X-Source'),
       { '200 local' => $KEYS }, 'many clients pass another limit';
    is status($nginx, '/api?k=first'), 200, 'one request passes';
    is_deeply flood($nginx, '/api?k=', mark => 'X-Source'),
       { '429 local' => $KEYS }, 'all others are rejected';

    still_used_up($nginx);
    $nginx->finish;
};


subtest 'what is known about keys of Redis goes first' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start('ratelimit_limit a key=$arg_k capacity=1 rate=1r/d;',
                      'location = /a { ratelimit_shards ' . $redis->addr . ';
                                       ratelimit_redis_timeout 20s;
                                       ratelimit_deny_cache 60s;
                                       ratelimit a; empty_gif; }');

    use_up($nginx);

    is_deeply flood($nginx, '/a?k=', batch => 10), { 200 => $KEYS },
       'many clients pass';
    is_deeply flood($nginx, '/a?k=', batch => 10), { 429 => $KEYS },
       'and are denied';

    still_used_up($nginx);

    cmp_ok evicted($nginx, 'known'), '>', $KEYS / 2,
           'most denials had to be forgotten';
    is evicted($nginx, 'much'), 0, 'and nothing else';

    $nginx->finish;
};


subtest 'limits that come and go do not push used-up limits out' => sub {
    my @conf = map {
        ["ratelimit_limit a$_ key=\$arg_k capacity=100 rate=1r/d;",
         "location = /a { ratelimit a$_; empty_gif; }"]
    } 1 .. 4;

    my $nginx = start(@{ shift @conf });

    use_up($nginx);

    is_deeply flood($nginx, '/a?k='), { 200 => $KEYS }, 'many clients';

    for (@conf) {
        ok $nginx->reload(config(@$_)), 'another limit';
        $nginx->old_workers_gone(20);

        is_deeply flood($nginx, '/a?k='), { 200 => $KEYS }, 'and many clients';
    }

    still_used_up($nginx);
    $nginx->finish;
};


# The numbers of which the layout is made, as the compiler sees them, of the
# sources with one change.

sub layout {
    my ($dir, $flags, $file, $change) = @_;

    my $src = File::Temp->newdir;
    my @numbers;

    for (glob 'src/*/*.[ch]') {
        my ($folder) = m{^src/(\w+)/};

        mkdir "$src/$folder";
        copy($_, "$src/$folder") or die "$_: $!\n";
    }

    if ($file) {
        my $path = source_path($file) =~ s{^src}{$src}r;
        my $text = slurp($path);

        for ($text) {
            $change->() or die "nothing to change in $file\n";
        }

        write_file($path, $text);
    }

    for my $source (qw(zone stats record)) {
        my $path = source_path("$source.c") =~ s{^src}{$src}r;
        my $asm = `cd $dir && \${CC:-cc} -I $src $flags -O0 -w -S -o - \\
                   $path`;

        $? == 0 or die "the compiler failed\n";

        push @numbers, $asm =~ /^\w+_(?:layout|fields):\n((?:\s+\.long\s.*\n)+)/m
                       or die "no layout in $source.c\n";
    }

    return join '', @numbers;
}


my ($dir) = grep { -f "$_/objs/Makefile" } glob 'build/nginx-dev build/*-[0-9]*';

SKIP: {
    skip 'nothing was built here', 8 if !$dir;

    my $flags = `make -s -C $dir -f objs/Makefile --no-print-directory \\
                      --eval='flags: ; \@echo \$(CFLAGS) \$(ALL_INCS)' flags`;
    chomp $flags;
    $flags =~ s/-f(?:sanitize|no-sanitize)\S+//g;

    my $layout = layout($dir, $flags);

    like($layout, qr/(?:\s+\.long.*\n){100}/, 'the layout is made of all fields');
    is(layout($dir, $flags), $layout, 'the same sources, the same layout');

    for (['a field more', 'record.h',
          sub { s/(ngx_atomic_t +refunds;)/$1 ngx_atomic_t more;/ }],
         ['two fields of a size, the other way round', 'record.h',
          sub { s/(uint64_t +set);(.*?)(uint64_t +logged);/$3;$2$1;/s }],
         ['a larger field', 'cells.h',
          sub { s/uint32_t( +turn;)/uint64_t$1/ }],
         ['one more of an enum that is counted', 'failure.h',
          sub { s/(\n +NGX_RL_FAILURES)/\n    ONE_MORE,$1/ }],
         ['a struct within', 'breaker.h',
          sub { s/uint32_t( +attempt;)/uint64_t$1/ }],
         ['the format', 'zone.c', sub { s/(_ZONE_FORMAT +)\d+/${1}1234567/ }])
    {
        my ($name, $file, $change) = @$_;

        isnt(layout($dir, $flags, $file, $change), $layout,
             "$name: another layout");
    }
}


done_testing;
