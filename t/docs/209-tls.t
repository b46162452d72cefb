# docs/tls.md: connections to Redis by TLS, and what the log says if they fail.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Certs;
use RateLimit::Docs 'docs/tls.md';
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(free_port slurp temp_dir);


subtest 'a public certificate needs nothing but the address' => sub {
    my $redis = tls_server('tls-auth-clients' => 'no');

    # this authority is none of the system

    my $nginx = nginx_at('With a public certificate', $patient
        . "ratelimit_redis_ssl_trusted_certificate ${\ certs()->ca};\n",
        'limits.example.net:6380' => 'localhost:' . $redis->port);

    is source_of($nginx->port, '/'), 'redis', 'Redis decides';
    $nginx->finish;
};


subtest 'an authority of one\'s own does what is described' => sub {
    my @redis = map { tls_server('tls-auth-clients' => 'yes') } 1 .. 2;
    my $nginx = nginx_at('With your own authority', $patient,
                         '10.0.0.1:6380' => $redis[0]->addr,
                         '10.0.0.2:6380' => $redis[1]->addr);

    is source_of($nginx->port, '/'), 'redis', 'Redis decides';
    $nginx->finish;
};


# Certificates, redis.conf and nginx as the page makes them.

subtest 'certificates are made as described' => sub {
    my $dir = temp_dir('docs-tls');
    my $port = free_port();
    my ($commands) = block_of('Making certificates', 'sh');

    chmod 0755, $dir;

    my $printed = `cd '$dir' && set -e && ( $commands ) 2>&1`;

    is $?, 0, 'openssl' or diag $printed;

    my %config = map { split ' ', s{/etc/redis/}{$dir/}r =~ s/6380/$port/r, 2 }
                 split /\n/, block_of('Making certificates', 'text');

    is scalar keys %config, 6, 'lines of redis.conf';

    # the harness sets the port by itself

    is delete $config{port}, 0, 'no port without TLS';
    chmod 0644, glob "$dir/*.key";

    my $redis = RateLimit::Redis->start(
        port => $port, config => { %config, port => 0 });

    for my $step (steps_of('Making certificates')) {
        RateLimit::Transcript::check($step->{command}, $step,
            '-h 10.0.0.1 -p 6380' => "-p $port",
            map { $_ => "$dir/$_" } 'redis-ca.crt', 'limiter.crt', 'limiter.key');
    }

    my $text = block_of('With your own authority')
               =~ s{/etc/nginx/}{$dir/}gr
               =~ s{rediss://10\.0\.0\.1:6380 \S+;}{rediss://127.0.0.1:$port;}r;
    my $nginx = RateLimit::Nginx->start(
        conf => $patient . http_of($text)
                . "add_header X-Source \$ratelimit_source always;\n");

    is source_of($nginx->port, '/'), 'redis', 'nginx';
    $nginx->finish;
};


# Each row of the table: nginx that meets it, and its log.

subtest 'the log says why it does not work' => sub {
    my $certs = certs();
    my $old = $certs->make('old', san => 'DNS:redis.example.com',
                           from => -20, until => -10);
    my @ports = map { free_port() } 1 .. 2;
    my $good = tls_server('tls-auth-clients' => 'yes');
    my $expired = RateLimit::Redis->start(
        port => $ports[0], config => { $certs->redis($old, $ports[0]) });
    my $plain = RateLimit::Redis->start;
    my $other = RateLimit::Certs->new(name => 'Other CA');

    my %case = (
        'certificate has expired' => [$expired],
        'certificate is not for' =>
            [$good, 'redis.example.com' => 'other.example.com'],
        'self-signed certificate' =>
            [$good, '/etc/nginx/redis-ca.crt' => $other->ca],
        'certificate required' =>
            [$good, qr/ratelimit_redis_ssl_certificate\w* [^;]+;/ => ''],
        'does not answer' => [$plain],
        'does it expect TLS' => [$good, qr/ratelimit_redis_ssl\w* [^;]+;|rediss:\/\// => ''],
    );

    my $log_of = sub {
        my ($redis, $from, $to) = @_;

        my $text = block_of('With your own authority')
                   =~ s{rediss://10\.0\.0\.1:6380 \S+;}
                       {'rediss://' . $redis->addr . ';'}er;

        $text =~ s/$from/$to/g or die "no $from\n" if defined $from;

        # a server without TLS is silent

        my $timeouts = $redis == $plain ? $patient =~ s/20s/900ms/gr : $patient;
        my $nginx = RateLimit::Nginx->start(conf => $timeouts . http_of($text));

        is $nginx->get('/')->{headers}{'x-ratelimit-degraded'}, 'true',
           'the local share decides';
        ok $nginx->wait_log(qr/TLS handshake|expect TLS/), 'there is a line';

        my $log = $nginx->error_log;

        $nginx->finish;

        return $log;
    };

    my (undef, @rows) = table_of($section{'When it does not work'});

    for my $row (@rows) {
        my ($words) = code_in($row->[0]);
        my ($case) = grep { index($words, $_) >= 0 } keys %case;
        my $regex = quotemeta($words) =~ s/ADDRESS/\\S+/r =~ s/NAME/[\\w.]+/r;

        like $log_of->(@{ delete $case{$case // ''} // die "no $words\n" }),
             qr/$regex/, $words;
    }

    is_deeply [keys %case], [], 'all rows';
};


subtest 'the settings of Redis exist' => sub {
    my $redis = RateLimit::Redis->start;

    for my $name ($page =~ /`(tls-[a-z-]+) yes`/g) {
        is scalar @{ $redis->cmd('CONFIG', 'GET', $name) }, 2, $name;
    }
};


done_testing();
