package RateLimit::Test;

# Glue between Test::Nginx and this project.  Use it BEFORE Test::Nginx::Socket,
# which reads the environment when it is loaded:
#
#   use lib 't/lib';
#   use RateLimit::Test;
#   use Test::Nginx::Socket 'no_plan';
#
#   our $redis = start_redis();
#
#   run_tests();
#
#   __DATA__
#
#   === TEST 1: the second request of two is rejected
#   --- http_config
#   ratelimit_shards 127.0.0.1:$TEST_NGINX_REDIS_PORT;
#   --- config
#   location /t { ratelimit_rate 1r/m; ratelimit_capacity 1; return 204; }
#   --- init
#   $::redis->cmd('SET', 'x', 1);              # Perl, before the requests
#   --- request eval
#   ["GET /t", "GET /t"]
#   ...
#
# What it does: loads the module named by RATELIMIT_MODULE; picks a free port
# and a server root in a temporary folder, unless TEST_NGINX_PORT,
# TEST_NGINX_SERVROOT or TEST_NGINX_RANDOMIZE say otherwise (RATELIMIT_KEEP=1
# keeps the folder); log level info, no shuffling, no long strings, no repeats,
# 1024 connections.  Call log_level, workers, master_on, ... to differ.
#
# Exported, with the variables that they set for use in the sections of a test:
#   start_redis(%opt)      a RateLimit::Redis    $TEST_NGINX_REDIS_PORT, _SOCK,
#                          (name => 'B': $TEST_NGINX_REDIS_B_PORT ...)   _ADDR
#   start_shards($n, %opt) a list of them        $TEST_NGINX_SHARDS (addresses),
#                                                $TEST_NGINX_SHARD1_PORT, ...
#   start_fake(%opt)       a RateLimit::FakeRedis    $TEST_NGINX_FAKE_PORT ...
#   wait_until, slurp, free_port                 of RateLimit::Util
#   patient_blocks($http)  before each block, as these tests are not about time:
#                          the Redis of start_redis(), long timeouts, then this
#                          text; and "no_error_log" is [alert] and [crit].  With
#                          a section "--- no_shards" there is no Redis
#   log_lines($regex)      lines of the block's error log
# Always set: $TEST_NGINX_DEAD_PORT, ..._PORT2, ..._PORT3, and
# $TEST_NGINX_DEAD_SOCK, where nobody listens.
#
# A section "--- after" is Perl that runs when the last response of its block has
# come.
#
# Redis servers are ended after nginx, also when a test dies.  Each block starts
# with empty ones (FLUSHALL), unless it has a section "--- keep_redis".
#
# A block fails when its nginx, up to its exit, logged an [alert], [emerg] or
# [crit], or something from a sanitizer or valgrind; in a "must_die" block only
# the latter.  Expected lines: "--- allow_alerts", a regex on each line.  This
# adds no test as long as nothing is found.

use strict;
use warnings;

use Test::Builder ();           # first, so that its END comes last
use Exporter 'import';
use File::Path ();
use File::Spec ();

use RateLimit::FakeRedis ();
use RateLimit::Redis ();
use RateLimit::Util qw(
    free_port dead_port wait_until slurp temp_dir patience keep_files log_trouble
);

our @EXPORT = qw(
    start_redis start_shards start_fake patient_blocks log_lines
    wait_until slurp free_port
);

# warnings of "nginx -t" that would be in the way
my @SILENT = qw(client_value early_return auth_variable unused_limit no_shards
                long_timeout);

my $owner = $$;
my $dir;
my @redis;
my @fakes;


sub start_redis {
    my (%opt) = @_;

    my $name = delete $opt{name};
    my $redis = RateLimit::Redis->start(%opt);

    push @redis, $redis;
    _export(join('_', 'REDIS', grep { defined } $name), $redis);

    return $redis;
}


sub start_shards {
    my ($n, %opt) = @_;

    my @shards = RateLimit::Redis->start_many($n, %opt);

    push @redis, @shards;
    _export("SHARD$_", $shards[$_ - 1]) for 1 .. $n;
    $ENV{TEST_NGINX_SHARDS} = join ' ', map { $_->addr } @shards;

    return @shards;
}


sub start_fake {
    my (%opt) = @_;

    my $name = delete $opt{name};
    my $fake = RateLimit::FakeRedis->start(unix => 1, %opt);

    push @fakes, $fake;
    _export(join('_', 'FAKE', grep { defined } $name), $fake);

    return $fake;
}


# "server" of the options is code: called with the block, the name of the server
# that its limits are on, REDIS if there is none.

sub patient_blocks {
    my ($http, %opt) = @_;

    Test::Nginx::Util::add_block_preprocessor(sub {
        my ($block) = @_;

        my $server = $opt{server} ? $opt{server}->($block) : 'REDIS';
        my $shards = defined $block->no_shards
                     ? '' : "ratelimit_shards \$TEST_NGINX_${server}_ADDR;";

        $block->set_value('http_config', <<"EOC" . ($block->http_config // ''));
    $shards
    ratelimit_redis_timeout 10s;
    ratelimit_redis_connect_timeout 10s;
$http
EOC

        $block->set_value('no_error_log', "[alert]\n[crit]\n")
            unless defined $block->no_error_log;
    });
}


sub log_lines {
    my ($regex) = @_;

    no warnings 'once';

    return grep { $_ =~ $regex }
                split /\n/, slurp($Test::Nginx::Util::ErrLogFile);
}


sub _export {
    my ($name, $server) = @_;

    $ENV{"TEST_NGINX_${name}_PORT"} = $server->port;
    $ENV{"TEST_NGINX_${name}_ADDR"} = $server->addr;
    $ENV{"TEST_NGINX_${name}_SOCK"} = $server->socket // '';
}


# ---- Test::Nginx's environment, before it is loaded

sub _environment {
    $dir = temp_dir('test');

    my $module = $ENV{RATELIMIT_MODULE} // '';

    if (length $module) {
        $module = File::Spec->rel2abs($module);
        my @others = grep { $_ ne $module }
                     split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // '';
        $ENV{TEST_NGINX_LOAD_MODULES} = join ' ', @others, $module;
    }

    if (!$ENV{TEST_NGINX_RANDOMIZE}) {
        $ENV{TEST_NGINX_PORT} ||= free_port()
            unless $ENV{TEST_NGINX_SERVER_PORT};
        $ENV{TEST_NGINX_SERVROOT} ||= "$dir/servroot";
    }

    $ENV{"TEST_NGINX_DEAD_PORT$_"} = dead_port() for '', 2, 3;
    $ENV{TEST_NGINX_DEAD_SOCK} = "$dir/dead.sock";

    if ($ENV{TEST_NGINX_USE_VALGRIND}) {
        $ENV{TEST_NGINX_SLEEP} ||= 0.25;
        $ENV{VALGRIND_OPTS} = join ' ', grep { defined } $ENV{VALGRIND_OPTS},
                                        "--log-file=$dir/valgrind.%p";
    }
}


sub _defaults {
    no warnings 'once';

    Test::Nginx::Util::repeat_each(1);
    Test::Nginx::Util::no_shuffle();
    Test::Nginx::Util::no_long_string();
    Test::Nginx::Util::worker_connections(1024);
    Test::Nginx::Util::log_level($ENV{TEST_NGINX_LOG_LEVEL} || 'info');
    Test::Nginx::Util::timeout(patience(5)) unless $ENV{TEST_NGINX_TIMEOUT};

    Test::Nginx::Util::add_block_preprocessor(\&_before_block);
    Test::Nginx::Socket::add_response_body_check(\&_after_response);

    # called when a block's nginx has ended and its log is still there

    my $check = $Test::Nginx::Util::CheckShutdownErrorLog;

    $Test::Nginx::Util::CheckShutdownErrorLog = sub {
        my ($block, $dry_run) = @_;

        $check->($block, $dry_run);
        _after_block($block) unless $dry_run;
    };
}


sub _before_block {
    my ($block) = @_;

    if (!defined $block->keep_redis) {
        for my $redis (@redis) {
            eval { $redis->cmd('FLUSHALL') } if $redis->pid;
        }
    }

    # tests let clients choose limits and end requests early; the warnings are
    # tested by conf/016-warnings.t.  On the first line, so that the others keep
    # their numbers

    $block->set_value('http_config', 'ratelimit_silence '
                      . join(' ', @SILENT) . '; ' . ($block->http_config // ''))
        unless ($block->http_config // '') =~ /ratelimit_silence/;

    # an empty list: makes Test::Nginx call the check above for this block

    if (!defined $block->shutdown_error_log
        && !defined $block->no_shutdown_error_log)
    {
        $block->set_value('no_shutdown_error_log', '');
    }
}


# In the package of the test, which the text is a part of.

sub _after_response {
    my ($block, $body, $n) = @_;

    my $last = ref $block->request ? $#{ $block->request } : 0;

    if (defined $block->after && $n == $last) {
        eval 'package main; ' . $block->after . ';1' or die $@;
    }
}


sub _after_block {
    my ($block) = @_;

    no warnings 'once';

    my @reports = glob "$dir/valgrind.*";
    my $text = join "\n", map { slurp($_) }
                          $Test::Nginx::Util::ErrLogFile, @reports;
    unlink @reports;

    my @lines = log_trouble($text);

    if (defined $block->must_die) {
        @lines = grep { !/\[(?:alert|emerg|crit)\]/ } @lines;
    }

    for my $regex (grep { length } split /\n/, $block->allow_alerts // '') {
        @lines = grep { $_ !~ /$regex/ } @lines;
    }

    return unless @lines;

    my $test = Test::Builder->new;

    $test->ok(0, $block->name . ' - nothing alarming in error.log');
    $test->diag($_) for @lines > 40 ? @lines[0 .. 39] : @lines;
}


# Compiled before Test::Nginx's END, so it runs after nginx has ended.

END {
    if ($$ == $owner && defined $dir) {
        local ($?, $!, $@);

        @fakes = ();
        @redis = ();
        File::Path::remove_tree($dir) unless keep_files($dir);
    }
}


_environment();
require Test::Nginx::Socket;
_defaults();


1;
