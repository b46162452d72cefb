# docs/sentinel.md: how nginx follows masters that sentinels watch.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs 'docs/sentinel.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Sentinel;
use RateLimit::Transcript;
use RateLimit::Util qw(wait_until);


subtest 'sentinels do what is described' => sub {
    my $all = RateLimit::Sentinel->start(
        names           => ['limits-a', 'limits-b'],
        config          => { requirepass => 'wonderland' },
        sentinel_config => { requirepass => 'looking-glass' },
    );

    my $nginx = nginx_at('Configuration', $patient . <<'EOC',
server {
    listen         127.0.0.1:%%PORT2%%;
    ratelimit_rate 1000r/d;
    ratelimit_key  $arg_k;
}

server {
    listen 127.0.0.1:%%PORT3%%;
    location = /metrics { ratelimit_metrics; }
}
EOC
        '10.0.0.1 10.0.0.2 10.0.0.3' => $all->addrs,
        '10.0.0.0/24' => '127.0.0.0/8',
        'ratelimit_redis_ssl              on;' => '');

    my %shard;

    # all workers have to hear of the masters

    ok wait_until(sub {
        my @h = map { RateLimit::Load::get($nginx->port(2), "/?k=$_")->{headers} }
                1 .. 20;

        %shard = map { ($h[$_ - 1]{'x-shard'} => $_) } 1 .. 20;
        return !grep { $_->{'x-source'} ne 'redis' } @h;
    }, 15), 'Redis decides';

    is_deeply [sort keys %shard], ['limits-a', 'limits-b'],
              'each name is a shard';

    # the commands of the page: where the master is, a failover, the metric

    my $old = $all->master('limits-a');
    my ($sentinel) = $all->sentinels;
    my ($host, $port) = $old->addr =~ /^(.*):(\d+)$/;
    my @steps = steps_of('Try it');

    is scalar @steps, 3, 'commands';

    # a replica that is not in step is not promoted
    ok wait_until(sub {
        $old->info('replication')->{connected_slaves} >= 1
    }, 30), 'there is a replica';

    for my $step (@steps) {
        local $ENV{REDISCLI_AUTH} = 'looking-glass';

        RateLimit::Transcript::check($step->{command}, {
            command => $step->{command}
                       =~ s/-h 10\.0\.0\.4 -p 26379/'-p ' . $sentinel->port/er
                       =~ s/127\.0\.0\.1:8082/'127.0.0.1:' . $nginx->port(3)/er,
            output  => [map { s/^10\.0\.0\.1$/$host/r =~ s/^6379$/$port/r }
                        @{ $step->{output} }] });
    }

    # another master: the shard, and its keys, stay

    ok $nginx->wait_log(qr/limits-a: the master is now \S+ \(was \Q${\ $old->addr}\E\)/, 30),
       'nginx hears of it';
    ok wait_until(sub {
        my $h = RateLimit::Load::get($nginx->port(2), "/?k=$shard{'limits-a'}")
                ->{headers};
        return $h->{'x-source'} eq 'redis' && $h->{'x-shard'} eq 'limits-a';
    }, 15), 'the new one decides';
    cmp_ok $all->master('limits-a')->cmd('DBSIZE'), '>', 0, 'by what there was';

    # sentinels stop: nothing changes

    $_->stop for $all->sentinels;
    is source_of($nginx->port(2), "/?k=$shard{'limits-b'}"), 'redis',
       'without any sentinel';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    ok wait_until(sub {
        source_of($nginx->port(2), "/?k=$shard{'limits-b'}") eq 'redis'
    }, 15), 'keeps the addresses';

    $nginx->finish;
};


subtest 'the rights that are listed are needed, and are enough' => sub {
    my $all = RateLimit::Sentinel->start;
    my @servers = $all->servers;
    my @sentinels = $all->sentinels;

    # those of a single server

    my ($acl) = map { $_->{command} =~ /setuser (.*)/ } map {
        RateLimit::Transcript::parse($_)
    } grep { /acl setuser/ } @{ read_page('docs/redis.md')->{block}{console} };

    for my $server (@servers) {
        $server->cmd('ACL', 'SETUSER', map { s/^'(.*)'$/$1/r } split / /, $acl);
    }

    is_deeply [allow(qr/\+role/, @servers)], ['+role'], 'the role';

    my @rights = allow(qr/on '>other'/, @sentinels);

    cmp_ok scalar @rights, '==', 5, 'rights on sentinels' or diag "@rights";

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "${patient}ratelimit_shards sentinel=mymaster ${\ $all->addrs};\n"
                   . "add_header X-Source \$ratelimit_source always;\n"
                   . <<'EOC', server => <<'EOC');
ratelimit_redis_user        nginx;
ratelimit_redis_password    secret;
ratelimit_sentinel_user     nginx;
ratelimit_sentinel_password other;
EOC
location / { ratelimit_rate 100r/d; }
EOC

    ok wait_until(sub { source_of($nginx->port, '/') eq 'redis' }, 15),
       'Redis decides';
    ok $all->failover, 'a failover';
    ok $nginx->wait_log(qr/mymaster: the master is now \S+/, 15), 'is heard of';
    ok wait_until(sub { source_of($nginx->port, '/') eq 'redis' }, 15),
       'Redis decides again';
    is denied(@servers, @sentinels), '', 'nothing is forbidden';

    # without one of them the next worker is denied something

    my $try = sub {
        my ($right, $on, @redis) = @_;

        my ($off, $object) = $right =~ /^&(.*)/ ? ('resetchannels', $1)
                                                : ($right =~ s/^\+/-/r,
                                                   $right =~ s/^\+//r);

        for (@redis) {
            $_->cmd('ACL', 'SETUSER', 'nginx', $off);
            $_->cmd('ACL', 'LOG', 'RESET');
        }

        ok $nginx->reload && $nginx->old_workers_gone(10), "without $right";
        ok wait_until(sub { denied(@redis) eq $object }, 15),
           "$object is needed" or diag denied(@redis);
        $_->cmd('ACL', 'SETUSER', 'nginx', $on) for @redis;
    };

    $try->('+role', '+role', @servers);
    $try->($_, $_, @sentinels) for @rights;

    $nginx->finish;
};


subtest 'numbers and settings are those of the sources and of Redis' => sub {
    my $text = $page =~ s/\s+/ /gr;

    for ([SENTINEL_PING => 'for two to four seconds', 2000],
         [SENTINEL_ASK => 'at most once a second', 1000],
         [SENTINEL_STALE => 'For 10 s nginx ignores', 10000],
         [SENTINEL_PORT => 'the port is 26379', 26379])
    {
        my ($name, $words, $value) = @$_;

        is define($name), $value, $name;
        ok index($text, $words) >= 0, $words;
    }

    my $redis = RateLimit::Redis->start;

    for my $name ('min-replicas-to-write', 'min-replicas-max-lag') {
        ok index($text, $name) >= 0, $name;
        is scalar @{ $redis->cmd('CONFIG', 'GET', $name) }, 2, 'Redis has it';
    }
};


done_testing();
