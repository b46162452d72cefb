# Two builds of the module: what a reload, a restart and a binary upgrade run
# afterwards, whose memory it uses, and that both may share a Redis.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Copy qw(copy);
use File::Path ();
use IO::Socket::INET ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(alive slurp temp_dir wait_until);

my $RELEASE = '[0-9]+\.[0-9]+\.[0-9]+';

# the keys of the first limit, "/few", are in the memory of the machine
my $HTTP = <<'EOC';
    ratelimit_log_level info;
EOC

my $SERVER = <<'EOC';
        location /few {
            ratelimit_key $arg_k;
            ratelimit_capacity 5;
            ratelimit_rate 0r/s;
            empty_gif;
        }

        location = /slow {
            ratelimit_key $arg_k;
            ratelimit_capacity 5;
            ratelimit_rate 0r/s;
            limit_rate 1;
            empty_gif;
        }

        location = /metrics { ratelimit_metrics; }
EOC

my $EMPTY = qr/\[notice\].* the ratelimit zone starts empty: /;
my $CHANGED = qr/\[error\].* has changed since it was loaded/;


# The version in the metric of an nginx.

sub version {
    my ($port) = @_;

    my $text = RateLimit::Load::get($port, '/metrics')->{body};

    return $text =~ /^nginx_ratelimit_build_info\{version="([^"]*)"/m ? $1 : '';
}


sub passed {
    my ($port, $n, $key) = @_;

    $key //= 'a';

    return scalar grep {
        RateLimit::Load::get($port, "/few?k=$key")->{status} == 200
    } 1 .. $n;
}


# A copy of a module by a rename, as "make install" has it.

sub install {
    my ($from, $to) = @_;

    copy($from, "$to.new") or die "$to.new: $!\n";
    rename "$to.new", $to or die "$to: $!\n";
}


# Reloads, and waits until no old worker takes connections any more.

sub reloaded {
    my ($nginx, @change) = @_;

    my @old = $nginx->workers;

    return $nginx->reload(@change) && wait_until(sub {
        !grep { alive($_) && slurp("/proc/$_/cmdline") !~ /shutting down/ } @old
    }, 10);
}


my ($source) = slurp('src/core/ngx_rl_version.h')
               =~ /^#define NGX_RL_RELEASE +"($RELEASE)"$/m;


subtest 'the version is the same in source, changelog and metric' => sub {
    ok $source, 'the source has one' or return;

    my ($newest) = slurp('CHANGELOG.md') =~ /^## +(\S+)/m;

    is $newest, $source, 'CHANGELOG.md begins with it';

    my $nginx = RateLimit::Nginx->start(server => $SERVER);

    is version($nginx->port), $source, 'and the metric says so';

    $nginx->finish;
};


my $module = $ENV{RATELIMIT_MODULE};

if (!$module || $ENV{TEST_NGINX_USE_VALGRIND}) {
    note 'two modules need an nginx that loads them, and no valgrind';
    done_testing;
    exit;
}


# --- the other build ---------------------------------------------------------

my $OTHER = "$source+other";
my $dir = temp_dir('upgrade');
my $other = do {
    local %ENV = %ENV;

    delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)};
    $ENV{FLAVOUR} = 'other';

    my $log = `make --no-print-directory all 2>&1`;

    $? == 0 or BAIL_OUT("make FLAVOUR=other failed:\n$log");

    my @files = sort { -M $a <=> -M $b }
                glob 'build/other-*/ngx_http_ratelimit_module.so';
    $files[0];
};


subtest 'a reload with another path runs the other build' => sub {
    install($module, "$dir/first.so");
    install($other, "$dir/second.so");

    my $nginx = RateLimit::Nginx->start(
        log => 'notice', load => ["$dir/first.so"],
        conf => $HTTP, server => $SERVER,
    );
    my $port = $nginx->port;

    is version($port), $source, 'the first build runs';
    is passed($port, 7), 5, 'a limit of 5';

    ok reloaded($nginx), 'reloaded as it is';
    is version($port), $source, 'it still runs';
    is passed($port, 3), 0, 'and knows what it has counted';
    ok !$nginx->log_like($EMPTY), 'nothing to say';

    # each byte takes a second: this client holds a worker of the first build
    # that has already decided

    my $slow = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port")
        or die "no connection: $!\n";
    print $slow "GET /slow?k=slow HTTP/1.0\r\n\r\n";
    ok wait_until(sub { sysread $slow, my $byte, 1 }, 10), 'a slow client';

    ok reloaded($nginx, load => ["$dir/second.so"]), 'reloaded with the second';
    is version($port), $OTHER, 'the second build runs';
    is $nginx->log_count(qr/$EMPTY.*another build of the module/), 1,
       'it says that its memory is new';
    is passed($port, 7), 5, 'and so it is';

    ok reloaded($nginx), 'reloaded again';
    is version($port), $OTHER, 'the second build it is';
    is passed($port, 3), 0, 'with its memory';
    is $nginx->log_count($EMPTY), 1, 'nothing to say';

    close $slow;
    ok $nginx->old_workers_gone(20), 'the workers of the first leave';

    # nginx has closed the first one by now

    my $maps = slurp('/proc/' . $nginx->pid . '/maps');

    like $maps, qr/second\.so/, 'the master has the second build';
    unlike $maps, qr/first\.so/, 'and no longer the first';

    ok $nginx->kill_worker('KILL'), 'a worker is killed and replaced';
    is version($port), $OTHER, 'the second build goes on';

    ok reloaded($nginx, load => ["$dir/first.so"]), 'and back';
    is version($port), $source, 'the first build runs';
    is passed($port, 7), 5, 'with new memory';
    is $nginx->log_count($EMPTY), 2, 'it says so';

    ok !$nginx->log_like($CHANGED), 'no file has changed';

    ok reloaded($nginx, conf => "ratelimit_zone 1m; $HTTP"), 'a smaller zone';
    ok $nginx->log_like(qr/$EMPTY.*its size has changed from 10240k to 1024k$/m),
       'starts empty, and says so';

    $nginx->finish(except => qr/exited on signal 9|was locked by/);
};


# The loader of the GNU C library goes by the path, others by the file.

subtest 'a new file at the same path is not run by a reload, which says so'
    => sub
{
    my $file = "$dir/module.so";

    install($module, $file);

    my $nginx = RateLimit::Nginx->start(
        log => 'notice', load => [$file], conf => $HTTP, server => $SERVER,
    );
    my $port = $nginx->port;

    is passed($port, 7), 5, 'a limit of 5';
    install($other, $file);
    ok reloaded($nginx), 'reloaded';

    if (version($port) eq $OTHER) {
        pass 'the new file runs';

    } else {
        is version($port), $source, 'the old code runs';
        ok $nginx->log_like(qr/$CHANGED.*ratelimit \Q$source\E:/),
           'and says so';
        is passed($port, 3), 0, 'with its memory';
    }

    ok $nginx->stop, 'nginx leaves';
    $nginx->start;

    is version($port), $OTHER, 'a restart runs the new file';
    is passed($port, 7), 5, 'with new memory';

    $nginx->finish;
};


subtest 'a binary upgrade runs the other build with memory of its own' => sub {
    my $file = "$dir/upgrade.so";

    install($module, $file);

    my $nginx = RateLimit::Nginx->new(
        log => 'notice', load => [$file], conf => $HTTP, server => $SERVER,
    );
    my $master = $nginx->start_daemon;
    my $port = $nginx->port;

    is version($port), $source, 'the first build runs';
    is passed($port, 7), 5, 'a limit of 5';

    install($other, $file);
    kill 'USR2', $master;

    my $new = wait_until(sub {
        my $pid = $nginx->daemon;
        $pid && $pid != $master && $pid;
    }, 20);

    ok $new, 'there is a new master' or return;

    kill 'QUIT', $master;
    ok wait_until(sub { !alive($master) }, 20), 'the old one leaves';

    is version($port), $OTHER, 'the second build runs';
    is passed($port, 7), 5, 'with new memory';

    kill 'QUIT', $new;
    ok wait_until(sub { !alive($new) }, 20), 'nginx leaves';
    $nginx->no_alerts;
};


subtest 'two builds share the limits of one Redis' => sub {
    my $redis = RateLimit::Redis->start;
    my $shards = $redis->addr;

    my @nginx = map {
        RateLimit::Nginx->start(
            log => 'notice', load => [$_], server => $SERVER,
            conf => "ratelimit_shards $shards; ratelimit_redis_timeout 20s;"
                    . 'ratelimit_deny_cache off;' . $HTTP,
        )
    } $module, $other;

    my @ports = map { $_->port } @nginx;

    is_deeply [map { version($_) } @ports], [$source, $OTHER], 'two builds';

    my $n = 0;

    $n += passed($ports[$_ % 2], 1) for 1 .. 12;
    is $n, 5, 'a limit of 5 is one limit';

    for my $nginx (@nginx) {
        $nginx->finish;
    }
};


File::Path::remove_tree($dir);

done_testing;
