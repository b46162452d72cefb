# nginx without a master, with one worker, and with several.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use POSIX ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(alive reap slurp spawn wait_until write_file);


my @redis = RateLimit::Redis->start_many(2);

my %CONFIG = (
    log    => 'notice',
    conf   => <<"EOC",
        ratelimit_shards @{[map { $_->addr } @redis]};
        ratelimit_redis_timeout 20s;
        ratelimit_redis_connect_timeout 20s;
EOC
    server => <<'EOC',
        ratelimit_key      $arg_k;
        ratelimit_capacity 10;
        ratelimit_rate     0r/s;
        add_header         X-Source $ratelimit_source always;

        location / { empty_gif; }
EOC
);


sub flush { $_->cmd('FLUSHALL') for @redis }


# 100 requests for each of ten keys: ten of each pass.  The keys are new ones,
# as denials are remembered.

my $rounds = 0;

sub is_exact {
    my ($port, $name) = @_;

    $rounds++;

    my $load = RateLimit::Load::run(
        port => $port, connections => 50, requests => 1000, keep => 1,
        path => sub { "/?k=$rounds-" . $_[0] % 10 }, timeout => 60);

    is $load->error_text, '', "$name: every request is answered";
    is_deeply $load->statuses, { 200 => 100, 429 => 900 }, 'exactly';
    is_deeply [grep { $_ !~ /^(?:200 redis|429 redis|429 denied)$/ }
               map { "$_->{status} $_->{headers}{'x-source'}" }
               $load->responses], [], 'Redis decided about all';
}


subtest 'nginx without a master works' => sub {
    flush();

    my $nginx = RateLimit::Nginx->start(%CONFIG, master => 0);

    is_exact($nginx->port, 'one process');
    is_deeply [map { $_->clients } @redis], [1, 1],
              'one connection a shard';

    # shards that go and come

    $redis[0]->kill9;
    is($nginx->get("/?k=x$_")->{status}, 200,
       'a dead shard: the failure policy') for 1 .. 10;
    $redis[0]->start;
    ok wait_until(sub { $redis[0]->clients == 1 }, 20), 'it comes back';

    # reopening the logs is for everybody

    kill 'USR1', $nginx->pid;
    ok $nginx->wait_log(qr/reopening logs/, 10), 'USR1';
    flush();
    is_exact($nginx->port, 'after it');

    ok $nginx->stop, 'left by itself';
    is_deeply [map { $_->clients } @redis], [0, 0], 'connections closed';
    $nginx->no_alerts;
};


subtest 'master_process off, told to stop at once' => sub {
    my $nginx = RateLimit::Nginx->start(%CONFIG, master => 0);
    my $pid = $nginx->pid;

    $nginx->get('/?k=x');
    kill 'TERM', $pid;

    ok wait_until(sub { !alive($pid) }, 10), 'gone';
    is_deeply [map { $_->clients } @redis], [0, 0], 'connections closed';

    $nginx->finish;
};


# The harness keeps nginx in the foreground, as its child; here it goes to the
# background, as most do.

subtest 'nginx in the background works' => sub {
    for my $master ('off', 'on') {
        flush();

        my $nginx = RateLimit::Nginx->new(%CONFIG, master => $master eq 'on');

        $nginx->_write_config;

        my $file = $nginx->dir . '/conf/nginx.conf';
        my $text = slurp($file);

        $text =~ s/^daemon off;/daemon on;/m or die "no daemon off\n";
        write_file($file, $text);

        my $starter = spawn([$nginx->_command], out => $nginx->dir . '/stderr');

        is reap($starter, 20), 0, "master_process $master: started";

        my $pid;
        ok wait_until(sub {
            ($pid) = slurp($nginx->dir . '/nginx.pid') =~ /^(\d+)$/m;
        }, 10), 'in the background';

        my $end = Guard->new($pid);

        isnt $pid, $starter, 'another process';
        ok wait_until(sub {
            $nginx->get('/?k=y')->{status} == 200
        }, 10), 'answers';
        is_exact($nginx->port, 'daemon on');

        kill 'QUIT', $pid;
        ok wait_until(sub { !alive($pid) }, 20), 'left by itself';
        ok wait_until(sub { !grep { $_->clients } @redis }, 10),
           'connections closed';
        $nginx->no_alerts;
    }
};


subtest 'each worker has a connection to each shard' => sub {
    for my $workers (1, 4) {
        flush();

        my $nginx = RateLimit::Nginx->start(%CONFIG, workers => $workers);

        is_exact($nginx->port, "$workers");
        ok wait_until(sub {
            !grep { $_->clients != $workers } @redis
        }, 10), 'a connection for each worker and shard';

        ok $nginx->reload, 'reload';
        ok $nginx->old_workers_gone(20), 'old workers left';
        flush();
        is_exact($nginx->port, 'after it');

        ok $nginx->stop, 'left by itself';
        is_deeply [map { $_->clients } @redis], [0, 0],
                  'connections closed';
        $nginx->no_alerts;
    }
};


done_testing();


# Ends a process that is not our child, whatever becomes of the test.

package Guard;

sub new { bless { pid => $_[1], owner => $$ }, $_[0] }

sub DESTROY {
    my ($self) = @_;

    kill 'KILL', $self->{pid}
        if $self->{owner} == $$ && RateLimit::Util::alive($self->{pid});
}
