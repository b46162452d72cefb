# TLS to Redis: who is at the other end is checked before a word is said, and
# what is wrong stands in the log; apart from that nobody notices it.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Select ();
use IO::Socket::INET ();
use Time::HiRes qw(sleep);

use RateLimit::Certs;
use RateLimit::Cluster;
use RateLimit::Fault;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(free_port reap spawn wait_until write_file);

plan skip_all => 'no openssl' unless RateLimit::Certs->available;

my $certs = RateLimit::Certs->new;
my $other = RateLimit::Certs->new(name => 'Other CA');

my $BOTH = 'DNS:localhost,DNS:redis.test,IP:127.0.0.1';

my $good    = $certs->make('good', san => $BOTH);
my $expired = $certs->make('expired', san => $BOTH, from => -20, until => -10);
my $future  = $certs->make('future', san => $BOTH, from => 10, until => 20);
my $wrong   = $certs->make('wrong', san => 'DNS:other.test,IP:127.0.0.9');
my $unknown = $other->make('unknown', san => $BOTH);
my $revoked = $certs->make('revoked', san => $BOTH);
my $client  = $certs->make('client');
my $locked  = $certs->make('locked', password => 'Rose and Crown');

$certs->revoke($revoked);

my $CA  = 'ratelimit_redis_ssl_trusted_certificate ' . $certs->ca . ';';
my $CRL = 'ratelimit_redis_ssl_crl ' . $certs->crl . ';';
my $ON  = "ratelimit_redis_ssl on; $CA";

# generous: a busy machine must not look like a bad server
my $PATIENT = 10_000;


if (!eval { server($good); 1 }) {
    plan skip_all => "a redis-server without TLS: $@";
}


# A Redis that speaks TLS alone; a unix socket is for the test.

sub server {
    my ($cert, %config) = @_;

    my $port = $config{'cluster-enabled'} ? RateLimit::Cluster::port_pair()
                                          : free_port();

    return RateLimit::Redis->start(
        port => $port, config => { $certs->redis($cert, $port), %config });
}


sub start {
    my ($redis, $http, %opt) = @_;

    return RateLimit::Fault->start(redis => [$redis], timeout => $PATIENT,
                                   connect => $PATIENT, http => $http, %opt);
}


# It works, and over TLS, since the server does nothing else.

sub works {
    my ($redis, $http, $name, %opt) = @_;

    my $fault = start($redis, $http, %opt);

    ok $fault->works, $name or diag $fault->nginx->error_log;

    is $fault->ask('works', 5)->{source}, 'redis', 'Redis decides';
    is $fault->metric('redis_failures_total', class => 'tls'), 0,
       'no handshake failed';

    $fault->finish;
}


# It does not, and the log says why, in a line that is not said again and again.

sub fails {
    my ($redis, $http, $name, $why, %opt) = @_;

    my $fault = start($redis, $http, breaker => 'probe=100ms', %opt);
    my $addr = $redis->addr;

    my $times = wait_until(sub {
        $fault->metric('redis_failures_total', class => 'tls') >= 8
    }, 20);

    ok $times, "$name: the handshake fails";

    my $answer = $fault->ask('fails', 5);

    is $answer->{status}, 200, 'a request passes';
    is $answer->{source}, 'local', 'this machine decides';
    my $line = qr/redis TLS handshake with \Q$addr\E failed: $why, redis:/;

    like $fault->nginx->error_log, qr/\[error\] .* $line/, 'the log says why';
    is $fault->nginx->log_count(qr/redis TLS handshake/), 1, 'once';
    is $fault->nginx->log_count(qr/SSL|\[crit\]|\[alert\]/), 0,
       'and nginx itself says nothing';
    is $redis->calls('client|setname') + $redis->calls('auth')
       + $redis->calls('script|load'), 0, 'the server has heard no command';

    return $fault;
}


subtest 'a good certificate' => sub {
    my $redis = server($good);
    my $port = $redis->port;

    works($redis, $ON, 'by its address', shards => "127.0.0.1:$port");
    works($redis, $ON, 'by its name', shards => "localhost:$port");
    works($redis, $CA, 'rediss://', shards => "rediss://127.0.0.1:$port");
    works($redis, $CA, 'rediss:// with a database',
          shards => "rediss://127.0.0.1:$port/3");
    works($redis, "$CA ratelimit_redis_ssl off;", 'rediss:// wins over "off"',
          shards => "rediss://127.0.0.1:$port");
    works($redis, "$ON ratelimit_redis_ssl_name redis.test;", 'another name');
    works($redis, "$ON ratelimit_redis_ssl_server_name off;", 'without SNI',
          shards => "localhost:$port");

    my $fault = start($redis, $ON, workers => 3);

    ok $fault->works, 'three workers are connected';
    is $redis->clients, 3, 'with a connection each';
    is $fault->nginx->log_count(qr/\[error\]|\[crit\]/), 0,
       'and there is nothing to say about it';

    $fault->finish;
    ok wait_until(sub { !$redis->clients }, 10), 'they end with nginx';
};


subtest 'a good certificate of an IPv6 address' => sub {
    plan skip_all => 'no IPv6'
        unless eval { require IO::Socket::IP;
                      IO::Socket::IP->new(LocalHost => '::1', Listen => 1) };

    my $six = $certs->make('six', san => 'IP:::1');
    my $port = free_port();
    my $redis = RateLimit::Redis->start(
        port => $port, bind => '::1 127.0.0.1',
        config => { $certs->redis($six, $port) });

    works($redis, $ON, 'it is the address', shards => "[::1]:$port");

    my $fault = start($redis, $ON, shards => "127.0.0.1:$port");

    ok $fault->nginx->wait_log(qr/certificate is not for "127\.0\.0\.1"/, 20),
       'and not another one';
    $fault->finish;
};


subtest 'user, password and database over TLS' => sub {
    my $redis = server($good, user => ['default on nopass ~* &* +@all',
                                       'limits on >Hare ~* &* +@all']);

    works($redis, $CA, 'of the URL',
          shards => 'rediss://limits:Hare@' . $redis->addr . '/2');
    works($redis, "$ON ratelimit_redis_user limits;"
                  . 'ratelimit_redis_password Hare;', 'of directives');

    cmp_ok $redis->cmd('CONFIG', 'GET', 'tls-port')->[1], '>', 0, 'it is TLS';
};


subtest 'certificates that are wrong' => sub {
    my @cases = (
        ['expired', $expired, $ON, qr/certificate has expired/],
        ['not valid yet', $future, $ON, qr/certificate is not yet valid/],
        ['of another host', $wrong, $ON,
         qr/certificate is not for "127\.0\.0\.1"/],
        ['not of the name that is asked for', $good,
         "$ON ratelimit_redis_ssl_name elsewhere.test;",
         qr/certificate is not for "elsewhere\.test"/],
        ['not of the address that is asked for', $good,
         "$ON ratelimit_redis_ssl_name 127.0.0.2;",
         qr/certificate is not for "127\.0\.0\.2"/],
        ['of an unknown authority', $unknown, $ON,
         qr/unable to (?:get local issuer|verify the first) certificate/],
        ['unknown to the system', $good, 'ratelimit_redis_ssl on;',
         qr/self.signed certificate in certificate chain/],
        ['revoked', $revoked, "$ON $CRL",
         qr/certificate revoked/],
    );

    for (@cases) {
        my ($name, $cert, $http, $why) = @$_;

        my $redis = server($cert);

        fails($redis, $http, $name, $why)->finish;
    }
};


subtest 'a certificate that is replaced' => sub {
    my $redis = server($expired);
    my $fault = fails($redis, $ON, 'expired', qr/certificate has expired/);

    $redis->cmd('CONFIG', 'SET', 'tls-cert-file', $good->{cert},
                'tls-key-file', $good->{key});

    ok $fault->works(20), 'a good one is noticed';
    is $fault->ask('replaced', 5)->{source}, 'redis', 'Redis decides';

    $fault->finish;
};


subtest 'without verification' => sub {
    my $off = 'ratelimit_redis_ssl on; ratelimit_redis_ssl_verify off;';

    for ([expired => $expired], [unknown => $unknown], [wrong => $wrong]) {
        my ($name, $cert) = @$_;

        works(server($cert), $off, $name);
    }

    works(server($good), "$ON $CRL", 'not on the list of revoked ones');
};


subtest 'a server that wants to know its clients' => sub {
    my $redis = server($good, 'tls-auth-clients' => 'yes');
    my $mine = "$ON ratelimit_redis_ssl_certificate $client->{cert};"
               . " ratelimit_redis_ssl_certificate_key $client->{key};";

    works($redis, $mine, 'with a certificate');
    works($redis, "$mine ratelimit_redis_ssl_protocols TLSv1.2;",
          'with TLS 1.2');

    my $passwords = $certs->dir . '/passwords';

    write_file($passwords, "wrong\nRose and Crown\n");

    works($redis, "$ON ratelimit_redis_ssl_certificate $locked->{cert};"
                  . " ratelimit_redis_ssl_certificate_key $locked->{key};"
                  . " ratelimit_redis_ssl_password_file $passwords;",
          'with a key that has a password');

    fails(server($good, 'tls-auth-clients' => 'yes'), $ON,
          'without one', qr/tlsv13 alert certificate required/)->finish;
    fails(server($good, 'tls-auth-clients' => 'yes'),
          "$ON ratelimit_redis_ssl_protocols TLSv1.2;",
          'without one and with TLS 1.2',
          qr/sslv3 alert handshake failure/)->finish;

    my $stranger = $other->make('stranger');

    fails(server($good, 'tls-auth-clients' => 'yes'),
          "$ON ratelimit_redis_ssl_certificate $stranger->{cert};"
          . " ratelimit_redis_ssl_certificate_key $stranger->{key};",
          'with one that it does not trust',
          qr/tlsv1 alert unknown ca/)->finish;
};


subtest 'protocols and ciphers' => sub {
    my $old = server($good, 'tls-protocols' => 'TLSv1.2',
                     'tls-ciphers' => 'ECDHE-ECDSA-AES256-GCM-SHA384');
    my $new = server($good, 'tls-protocols' => 'TLSv1.3');

    works($old, $ON, 'TLS 1.2');
    works($new, $ON, 'TLS 1.3');
    works($old, "$ON ratelimit_redis_ssl_protocols TLSv1.2;"
                . 'ratelimit_redis_ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384;',
          'the cipher that it has');

    my @cases = (
        [$old, 'ratelimit_redis_ssl_protocols TLSv1.3;',
         'a server that is too old', qr/tlsv1 alert protocol version/],
        [$new, 'ratelimit_redis_ssl_protocols TLSv1.2;',
         'a server that is too new', qr/tlsv1 alert protocol version/],
        [$old, 'ratelimit_redis_ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;',
         'a cipher that it does not have', qr/sslv3 alert handshake failure/],
    );

    for (@cases) {
        my ($redis, $http, $name, $why) = @$_;

        $redis->reset_calls;
        fails($redis, "$ON $http", $name, $why)->finish;
    }
};


subtest 'a server that stalls in the handshake' => sub {
    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 50)
        or die "no listener: $!\n";
    my $addr = '127.0.0.1:' . $listener->sockport;
    my $fault = RateLimit::Fault->start(
        redis => [], shards => $addr, http => $ON, timeout => 200,
        connect => 300, breaker => 'probe=100ms');

    # connections are given up, or there would be one per worker

    my @connections;
    my $select = IO::Select->new($listener);

    my $load = $fault->during(sub {
        wait_until(sub {
            push @connections, scalar $listener->accept if $select->can_read(0);
            return @connections >= 8;
        }, 20);
    }, keys => 10);

    cmp_ok scalar @connections, '>=', 8, 'connections are given up, and made';
    ok $fault->nginx->wait_log(
           qr/\[error\] .* redis does not answer the TLS handshake: .* \Q$addr/, 20),
       'the log says so';
    is $fault->nginx->log_count(qr/TLS handshake/), 1, 'once';
    is $load->count(sub { $_->{source} ne 'local' }), 0,
       'this machine decides';
    cmp_ok $load->count(sub { $_->{reason} eq 'circuit_open' }), '>', 0,
           'the breaker has opened';

    $fault->check($load);
    $fault->finish;
};


subtest 'only one side speaks TLS' => sub {
    my $plain = RateLimit::Redis->start;
    my $fault = start($plain, $ON, connect => 300, breaker => 'probe=100ms');

    # what looks like a command to Redis depends on random bytes

    ok $fault->nginx->wait_log(
           qr/redis\ TLS\ handshake\ with\ \S+\ failed:
              .*the\ server\ may\ not\ use\ TLS
              |redis\ does\ not\ answer\ the\ TLS\ handshake/x, 20),
       'a plain server where TLS is expected' or diag $fault->nginx->error_log;
    is $fault->ask('plain', 5)->{source}, 'local', 'this machine decides';
    $fault->finish;

    my $redis = server($good);

    $fault = start($redis, '', breaker => 'probe=100ms');

    ok $fault->nginx->wait_log(qr/redis .*: does it expect TLS\?/, 20),
       'and the other way round' or diag $fault->nginx->error_log;
    is $fault->ask('plain', 5)->{source}, 'local', 'this machine decides';
    $fault->finish;
};


sub has_debug {
    my $binary = $ENV{TEST_NGINX_BINARY} || 'nginx';

    return `$binary -V 2>&1` =~ /--with-debug/;
}


# Ends all connections of nginx, and awaits that there are others.

sub reconnect {
    my ($redis, $fault) = @_;

    my $n = $fault->nginx->workers;
    my %old = map { $_->{id} => 1 } $redis->client_list;

    $redis->cmd('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');

    return wait_until(sub {
        $fault->ask('again', 1_000_000);

        my @new = grep { !$old{$_->{id}} } $redis->client_list;

        return @new == $n && $fault->metric('redis_connections') == $n;
    }, 20);
}


subtest 'sessions are resumed' => sub {
    plan skip_all => 'nginx without --with-debug' unless has_debug();

    for my $protocol (qw(TLSv1.3 TLSv1.2)) {
        my $redis = server($good);

        my %reused;

        for my $reuse (qw(on off)) {
            my $fault = start($redis,
                "$ON ratelimit_redis_ssl_protocols $protocol;"
                . "ratelimit_redis_ssl_session_reuse $reuse;",
                workers => 1, log => 'debug');

            ok $fault->works, "$protocol, session reuse $reuse";
            reconnect($redis, $fault) or last for 1 .. 5;

            $reused{$reuse} =
                $fault->nginx->log_count(qr/SSL reused session/);

            ok $fault->nginx->log_count(qr/SSL: \Q$protocol\E, cipher/) >= 6,
               'that many handshakes';

            $fault->finish;
        }

        is $reused{on}, 5, 'all but the first one resumed a session';
        is $reused{off}, 0, 'none without session reuse';
    }
};


subtest 'a session is no way around a certificate' => sub {
    my $redis = server($good);
    my $fault = start($redis, $ON, workers => 1, breaker => 'probe=100ms');

    ok $fault->works, 'it works';

    # the same server, whose sessions are gone, with another certificate

    $redis->stop;
    $redis->{config}{'tls-cert-file'} = $wrong->{cert};
    $redis->{config}{'tls-key-file'} = $wrong->{key};
    $redis->start;

    ok wait_until(sub {
        $fault->ask('session', 5);
        $fault->nginx->log_like(qr/certificate is not for "127\.0\.0\.1"/)
    }, 20), 'another certificate is noticed';
    is $redis->clients, 0, 'nobody talks to it';

    $fault->finish;
};


subtest 'exactly as many as the limit says' => sub {
    my @shards = map { server($good) } 1 .. 2;
    my $addresses = join ' ', map { 'rediss://' . $_->addr } @shards;

    my $nginx = RateLimit::Nginx->start(workers => 4, log => 'notice',
                                        conf => <<"EOC");
    ratelimit_shards $addresses;
    $CA
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_on_error closed;
    ratelimit_log_level info;

    server {
        listen 127.0.0.1:%%PORT%% reuseport;

        location / {
            ratelimit_key \$arg_k;
            ratelimit_capacity 100;
            ratelimit_rate 0r/s;
            add_header X-Worker \$pid always;
            empty_gif;
        }
    }
EOC

    my (%passed, %workers);

    my $load = RateLimit::Load::run(
        port => $nginx->port, connections => 40, requests => 4000,
        path => sub { '/?k=' . $_[0] % 20 },
        keep => sub { +{ n => $_[0]{n}, status => $_[0]{status},
                         pid => $_[0]{headers}{'x-worker'} } });

    is $load->errors, 0, 'all were answered' or diag $load->error_text;

    for ($load->responses) {
        $passed{ $_->{n} % 20 }++ if $_->{status} == 200;
        $workers{ $_->{pid} }++;
    }

    is_deeply [grep { $passed{$_} != 100 } 0 .. 19], [],
              'of each key exactly as many as it may';
    is_deeply [sort grep { !/^(?:200|429)$/ } keys %{ $load->statuses }], [],
              'the others were rejected';
    cmp_ok scalar keys %workers, '>', 1, 'by several workers';

    $nginx->finish;
};


# More than a socket takes: what waits to be written grows, and moves, while
# OpenSSL is in the middle of it.

subtest 'writes that are cut short are continued' => sub {
    my $redis = server($good);
    my $prefix = 'x' x 1800;
    my @names = map { "limit$_" } 1 .. 8;
    my $limits = join ' ', map { "ratelimit_limit $_ key=\$arg_k"
                                 . ' capacity=1000000 rate=0r/s;' } @names;

    my $fault = start($redis, <<"EOC", workers => 1, server => <<"EOS");
        $ON
        ratelimit_prefix $prefix;
        $limits
EOC
        location /long {
            ratelimit @names;
            add_header X-Key \$arg_k always;
            add_header X-Source \$ratelimit_source always;
            empty_gif;
        }
EOS

    ok $fault->works, 'it works';

    my $load = $fault->during(sub {
        for (1 .. 3) {
            $redis->pause;
            sleep 1;
            $redis->resume;
            sleep 0.2;
        }
    }, connections => 400, pause => 0,
       path => sub { "/long?k=$_[0]" });

    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis has decided on all';
    is_deeply $load->result->{errors}, {}, 'all were answered';
    is $load->metric('redis_reconnects_total'), 0, 'by one connection';
    is $fault->nginx->log_count(qr/\[error\]/), 0, 'nothing is in the log';

    $fault->finish;
};


subtest 'the nodes of a cluster are reached by TLS' => sub {
    my @nodes = map {
        server($good, 'cluster-enabled' => 'yes', 'tls-cluster' => 'yes',
               'cluster-node-timeout' => 30_000)
    } 1 .. 2;

    $nodes[0]->cmd('CLUSTER', 'ADDSLOTSRANGE', 0, 8191);
    $nodes[1]->cmd('CLUSTER', 'ADDSLOTSRANGE', 8192, 16383);
    $nodes[0]->cmd('CLUSTER', 'MEET', '127.0.0.1', $nodes[1]->port);

    for my $node (@nodes) {
        wait_until(sub {
            $node->cmd('CLUSTER', 'INFO') =~ /cluster_state:ok/
        }, 30) or return fail 'the cluster is up';
    }

    my $seed = $nodes[0]->addr;

    for (["cluster rediss://$seed", $CA], ["cluster $seed", $ON]) {
        my ($shards, $http) = @$_;

        my $fault = start($nodes[0], $http, shards => $shards, workers => 1);
        my %shard;

        ok wait_until(sub {
            %shard = ();
            $shard{ $fault->ask("c$_", 5)->{source} }++ for 1 .. 20;
            return ($shard{redis} // 0) == 20;
        }, 20), "$shards: Redis decides";

        is scalar(grep { $_->clients == 1 } @nodes), 2,
           'there is a connection to each node';
        is $fault->metric('redis_failures_total', class => 'tls'), 0,
           'no handshake failed';
        $fault->finish;
    }

    # who is behind an address that the cluster names is checked, too

    my $fault = start($nodes[0], $ON . 'ratelimit_redis_ssl_name no.test;',
                      shards => "cluster $seed");

    ok $fault->nginx->wait_log(qr/certificate is not for "no\.test"/, 20),
       'a name that no node has';
    $fault->finish;
};


subtest 'sentinels and masters are reached by TLS' => sub {
    my $master = server($good);
    my $port = free_port();
    my $dir = $master->dir;

    # a program that changes its configuration

    my $conf = write_file("$dir/sentinel.conf", <<"EOC");
port 0
tls-port $port
bind 127.0.0.1
dir $dir
tls-cert-file $good->{cert}
tls-key-file $good->{key}
tls-ca-cert-file @{[$certs->ca]}
tls-auth-clients no
tls-replication yes
protected-mode no
sentinel monitor limits 127.0.0.1 @{[$master->port]} 1
requirepass Fox
sentinel sentinel-pass Fox
EOC

    my $server = $ENV{RATELIMIT_REDIS_SERVER} || 'redis-server';
    my $pid = spawn([$server, $conf, '--sentinel'],
                    out => "$dir/sentinel.log");

    for (["sentinel=limits rediss://127.0.0.1:$port", $CA],
         ["sentinel=limits localhost:$port", $ON])
    {
        my ($shards, $http) = @$_;

        my $fault = start($master, "$http ratelimit_sentinel_password Fox;",
                          shards => $shards, workers => 1);

        ok wait_until(sub { $fault->ask('s', 1_000_000)->{source} eq 'redis' },
                      20), "$shards: Redis decides"
            or diag $fault->nginx->error_log;
        is $fault->nginx->log_count(qr/the master is \Q@{[$master->addr]}\E/),
           1, 'the sentinel has said where it is';
        is $fault->metric('redis_failures_total', class => 'tls'), 0,
           'no handshake failed';
        $fault->finish;
    }

    my $fault = start($master, "$ON ratelimit_sentinel_password Fox;"
                               . 'ratelimit_redis_ssl_name no.test;',
                      shards => "sentinel=limits 127.0.0.1:$port");

    ok $fault->nginx->wait_log(qr/certificate is not for "no\.test"/, 20),
       'a name that the sentinel has not';
    $fault->finish;

    kill 'TERM', $pid;
    defined reap($pid, 10) or kill 'KILL', $pid;
};


subtest 'a reload takes other certificates, or switches TLS off' => sub {
    my $redis = server($good);
    my $fault = start($redis, $ON);
    my $addr = $redis->addr;

    ok $fault->works, 'it works';

    my $load = $fault->during(sub {
        for (1 .. 3) {
            $fault->nginx->reload;
            $fault->nginx->old_workers_gone(20);
            $fault->works(20);
        }
    });

    $fault->check($load, workers => 0);
    is $load->count(sub { $_->{source} ne 'redis' }), 0,
       'Redis has decided on all';
    is $redis->clients, 2, 'old workers have closed their connections';

    # what the configuration says about TLS is noticed

    my $nginx = $fault->nginx;
    my $conf = $fault->{conf}->($addr);

    ok !$nginx->reload(conf => "$conf ratelimit_redis_ssl_crl nothing;"),
       'a file that is not there is refused';
    ok $nginx->reload(conf => $conf =~ s/ratelimit_redis_ssl on;//r
                              =~ s/(ratelimit_redis_ssl_trusted)/
                                   ratelimit_redis_ssl off; $1/xr),
       'TLS is switched off';
    $nginx->old_workers_gone(20);
    ok wait_until(sub { $fault->ask('off', 5)->{source} eq 'local' }, 20),
       'so the server is not understood';
    ok $nginx->reload(conf => $conf), 'and on again';
    $nginx->old_workers_gone(20);
    ok $fault->works(20), 'it works';

    $nginx->finish(except => qr/conf\/nothing"/);
};


# What was leased and not spent is given back by the last words of a worker.

subtest 'leases are given back at the end' => sub {
    my $redis = server($good);
    my $fault = start($redis, "$ON ratelimit_lease 50 ttl=50s;", workers => 1);

    ok wait_until(sub { $fault->ask('lease', 100)->{source} eq 'lease' }, 20),
       'a request is answered from a lease';

    my $spent = 100 - $fault->ask('lease', 100)->{remaining};
    my ($key) = @{ $redis->cmd('KEYS', '*{lease}*') };

    cmp_ok $redis->tokens($key), '<', 100 - $spent,
           'more was taken than spent';

    $fault->finish;

    ok wait_until(sub { $redis->tokens($key) == 100 - $spent },
                  10), 'the rest is back' or diag $redis->tokens($key);
};


subtest 'nothing is left of connections' => sub {
    my $redis = server($good);
    my $fault = start($redis, $ON, workers => 1,
                      breaker => 'failures=100 window=100ms probe=100ms');

    ok $fault->works, 'it works';
    ok reconnect($redis, $fault), 'again';

    my ($worker) = $fault->nginx->workers;
    my $before = $fault->nginx->descriptors;
    my ($accepted) = $redis->info('stats')->{total_connections_received};

    my $n = 0;

    for (1 .. 100) {
        reconnect($redis, $fault) or last;
        $n++;
    }

    is $n, 100, 'a hundred connections later';
    cmp_ok $redis->info('stats')->{total_connections_received} - $accepted,
           '>=', 100, 'which it has really made';
    ok wait_until(sub { $fault->nginx->descriptors <= $before }, 10),
       'it has no more descriptors';
    is_deeply [$fault->nginx->workers], [$worker], 'and is the same worker';

    # handshakes that fail

    $redis->cmd('CONFIG', 'SET', 'tls-cert-file', $expired->{cert},
                'tls-key-file', $expired->{key});
    $redis->cmd('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');

    ok wait_until(sub {
        $fault->ask('expired', 5);
        $fault->metric('redis_failures_total', class => 'tls') >= 50
    }, 60), 'fifty handshakes that fail';
    ok wait_until(sub { $fault->nginx->descriptors <= $before }, 10),
       'leave nothing behind';

    $fault->finish;
};


subtest 'wrong files and values are errors of nginx -t' => sub {
    my $file = $certs->ca;
    my $key = "ratelimit_redis_ssl_certificate_key $client->{key};";
    my $cert = "ratelimit_redis_ssl_certificate $client->{cert};";
    my $on = 'ratelimit_redis_ssl on;';
    my $shards = 'ratelimit_shards 127.0.0.1:1;';
    my $alone = q(without "ratelimit_shards": limits would be kept in this)
                . q( machine's memory only; add "ratelimit_shards");

    my @cases = (
        ["$shards ratelimit_redis_ssl yes;",
         'invalid value "yes" in "ratelimit_redis_ssl" directive, '
         . 'it must be "on" or "off"'],
        ["$shards $on $cert",
         qq("ratelimit_redis_ssl_certificate" "$client->{cert}" needs )
         . '"ratelimit_redis_ssl_certificate_key"'],
        ["$shards $on $key",
         qq("ratelimit_redis_ssl_certificate_key" "$client->{key}" needs )
         . '"ratelimit_redis_ssl_certificate"'],
        ["$shards $on $cert ratelimit_redis_ssl_certificate_key $good->{key};",
         qr/key values mismatch.*"ratelimit_redis_ssl_certificate_key"/s],
        ["$shards $on $cert ratelimit_redis_ssl_certificate_key $locked->{key};"
         . "ratelimit_redis_ssl_password_file $client->{cert};",
         qr/\Q$locked->{key}\E.*"ratelimit_redis_ssl_certificate_key"/s],
        ["$shards $on $key ratelimit_redis_ssl_certificate no-such-file;",
         qr/no-such-file" in "ratelimit_redis_ssl_certificate"/],
        ["$shards $on ratelimit_redis_ssl_trusted_certificate no-such-file;",
         qr/No\ such\ file.*no-such-file"\ in
            \ "ratelimit_redis_ssl_trusted_certificate"/xs],
        ["$shards $on ratelimit_redis_ssl_crl no-such-file;",
         'no-such-file" in "ratelimit_redis_ssl_crl"'],
        ["$shards ratelimit_redis_ssl_password_file no-such-file;",
         'no-such-file" failed (2: No such file or directory)'],
        ["$shards $on ratelimit_redis_ssl_ciphers none-of-these;",
         'invalid value "none-of-these" in "ratelimit_redis_ssl_ciphers"'],
        ["$shards $on ratelimit_redis_ssl_protocols TLSv1.4;",
         'invalid value "TLSv1.4" in "ratelimit_redis_ssl_protocols": '
         . 'it must be "TLSv1", "TLSv1.1", "TLSv1.2" or "TLSv1.3"'],
        ["$shards $on ratelimit_redis_ssl_protocols TLSv1.2 TLSv1.2;",
         'duplicate value "TLSv1.2" in "ratelimit_redis_ssl_protocols"'],
        ["$shards $on ratelimit_redis_ssl_verify_depth 101;",
         'invalid value "101" in "ratelimit_redis_ssl_verify_depth": '
         . 'it must be a number from 0 to 100'],
        ["$shards $on $on", '"ratelimit_redis_ssl" directive is duplicate'],
        ["$shards $CA", '"ratelimit_redis_ssl_trusted_certificate" without '
         . 'TLS: write "ratelimit_redis_ssl on" or "rediss://" addresses to '
         . 'use TLS, or "ratelimit_redis_ssl off" not to'],
        ["$shards ratelimit_sentinel_user nginx;",
         '"ratelimit_sentinel_user" "nginx" needs '
         . '"ratelimit_sentinel_password" or '
         . '"ratelimit_sentinel_password_file"'],
        ["$shards ratelimit_sentinel_password a;"
         . 'ratelimit_sentinel_password_file b;',
         '"ratelimit_sentinel_password_file" directive is duplicate, or '
         . 'conflicts with "ratelimit_sentinel_password"'],
        ["$shards ratelimit_sentinel_password_file no-such-file;",
         'no-such-file" of "ratelimit_sentinel_password_file" failed (2:'],
        [$on, qq("ratelimit_redis_ssl" $alone)],
        [$CA, qq("ratelimit_redis_ssl_trusted_certificate" $alone)],
        ["$cert $key", qq("ratelimit_redis_ssl_certificate" $alone)],
        ['ratelimit_sentinel_password x;',
         qq("ratelimit_sentinel_password" $alone)],
    );

    for (@cases) {
        my ($text, $why) = @$_;

        my ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "ratelimit_rate 1r/s; $text",
            server => 'location / { ratelimit_capacity 5; }');

        is $code, 1, $text =~ s/\S*\///gr;
        like $output, ref $why ? $why : qr/\[emerg\].*\Q$why\E/,
             'the message says why';
        unlike $output, qr/Rose|BEGIN/, 'and gives nothing away';
    }

    my @fine = (
        "$shards $ON $cert $key",
        "$shards $CA ratelimit_redis_ssl off;",
        "ratelimit_shards rediss://127.0.0.1:1 127.0.0.1:2; $CA",
        "$shards $on",
        "$shards $on ratelimit_redis_ssl_protocols TLSv1 TLSv1.1 TLSv1.2;",
        'ratelimit_shards unix:/tmp/no-such-socket 127.0.0.1:1;' . $ON,
    );

    for my $text (@fine) {
        my ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "ratelimit_rate 1r/s; $text",
            server => 'location / { ratelimit_capacity 5; }');

        is $code, 0, $text =~ s/\S*\///gr or diag $output;
    }
};


# A place that says anything about TLS has connections of its own.

subtest 'places with other settings of TLS have connections of their own'
    => sub
{
    my $redis = server($good);
    my $addr = $redis->addr;

    my $nginx = RateLimit::Nginx->start(workers => 1, log => 'notice',
                                        conf => <<"EOC", server => <<'EOS');
    ratelimit_shards rediss://$addr;
    ratelimit_redis_timeout 10s;
    ratelimit_silence long_timeout;
    ratelimit_redis_connect_timeout 10s;
    $CA
    ratelimit_rate 0r/s;
    ratelimit_capacity 100;
    add_header X-Source \$ratelimit_source always;
EOC
    location /a { ratelimit_key $uri; empty_gif; }
    location /b { ratelimit_key $uri; ratelimit_redis_ssl on; empty_gif; }
    location /c { ratelimit_key $uri; ratelimit_redis_ssl_name redis.test;
                  empty_gif; }
    location /d { ratelimit_key $uri; ratelimit_redis_ssl_name other.test;
                  empty_gif; }
EOS

    for my $path (qw(/a /b /c)) {
        is($nginx->get($path)->{headers}{'x-source'},
           'redis', $path);
    }

    is($nginx->get('/d')->{headers}{'x-source'},
       'local', '/d, which trusts nobody of that name');
    ok $nginx->wait_log(qr/certificate is not for "other\.test"/, 10),
       'the log says so';
    is $redis->clients, 2, 'those that are the same share connections';

    $nginx->finish;
};


done_testing;
