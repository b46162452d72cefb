# The DNS server of the tests: what it answers, byte for byte, and that nginx's
# own resolver is content with it, also for names that /etc/hosts knows.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use IO::Socket::INET ();
use POSIX ();
use Socket qw(AF_INET AF_INET6 inet_ntop);
use Time::HiRes qw(time);

use RateLimit::Dns;
use RateLimit::Nginx;
use RateLimit::Util qw(alive free_port patience wait_until);

# a plain nginx, whatever the suite is run with

local $ENV{RATELIMIT_MODULE} = '';


# A query as it goes over the wire.

sub query {
    my ($id, $name, $type) = @_;

    return pack('n n n n n n', $id, 0x0100, 1, 0, 0, 0)
           . join('', map { chr(length) . $_ } split /\./, $name) . "\0"
           . pack('n n', $type, 1);
}


sub dial {
    my ($dns, $proto) = @_;

    return IO::Socket::INET->new(PeerAddr => $dns->addr, Proto => $proto)
           || die "dial: $!";
}


# The next answer by UDP, undef after so many seconds.

sub answer {
    my ($socket, $timeout) = @_;

    my $read = '';
    vec($read, fileno $socket, 1) = 1;

    return undef unless select $read, undef, undef, patience($timeout // 10);

    recv $socket, my $answer, 65536, 0;

    return $answer;
}


# So many bytes by TCP.

sub take {
    my ($socket, $n) = @_;

    my $bytes = '';

    while (length $bytes < $n) {
        my $read = '';
        vec($read, fileno $socket, 1) = 1;

        die "no more bytes\n"
            unless select($read, undef, undef, patience(10))
                   && sysread $socket, $bytes, $n - length $bytes,
                              length $bytes;
    }

    return $bytes;
}


sub ask {
    my ($dns, $name, $type) = @_;

    my $socket = dial($dns, 'udp');

    send $socket, query(4711, $name, $type), 0;

    return answer($socket);
}


# Code, number of answers, and the addresses of type A or AAAA among them.

sub summary {
    my ($answer) = @_;

    my ($flags, $questions, $n) = unpack 'x2 n n n', $answer;
    my $at = 12;
    my @data;

    my $skip = sub {
        while (my $length = ord substr $answer, $at++, 1) { $at += $length }
    };

    for (1 .. $questions) { $skip->(); $at += 4 }

    for (1 .. $n) {
        $skip->();
        my ($type, $class, $ttl, $data) = unpack "x$at n n N n/a*", $answer;
        $at += 10 + length $data;

        push @data, inet_ntop($type == 1 ? AF_INET : AF_INET6, $data)
            if $type == 1 || $type == 28;
    }

    return join ' ', $flags & 15, $n, @data;
}


subtest 'answers are right, byte for byte' => sub {
    my $dns = RateLimit::Dns->start(names => {
        'redis.test' => { a => ['127.0.0.2'], ttl => 7 },
    });

    my $question = "\x05redis\x04test\x00\x00\x01\x00\x01";

    is unpack('H*', ask($dns, 'redis.test', 1)),
       unpack('H*', "\x12\x67\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"
                    . $question
                    . "\x05redis\x04test\x00\x00\x01\x00\x01"
                    . "\x00\x00\x00\x07\x00\x04\x7f\x00\x00\x02"),
       'an address';

    is unpack('H*', ask($dns, 'other.test', 1)),
       unpack('H*', "\x12\x67\x81\x83\x00\x01\x00\x00\x00\x00\x00\x00"
                    . "\x05other\x04test\x00\x00\x01\x00\x01"),
       'a name that it does not know';

    is unpack('H*', ask($dns, 'ReDiS.TeSt', 28)),
       unpack('H*', "\x12\x67\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00"
                    . "\x05ReDiS\x04TeSt\x00\x00\x1c\x00\x01"),
       'a name without an address of this type, in another case';

    my $socket = dial($dns, 'udp');

    send $socket, $_, 0 for 'x', "\x12\x67" . "\0" x 10,
                            substr query(1, 'redis.test', 1), 0, 20;

    is unpack('H*', answer($socket)),
       unpack('H*', "\x12\x67\x81\x81" . "\0" x 8), 'no question';
    is unpack('H*', answer($socket)),
       unpack('H*', "\x00\x01\x81\x81" . "\0" x 8), 'half a question';

    is summary(ask($dns, 'redis.test', 1)), '0 1 127.0.0.2', 'it is well';
};


subtest 'names change at run time' => sub {
    my $dns = RateLimit::Dns->start;

    is summary(ask($dns, 'a.test', 1)), '3 0', 'not known';

    $dns->name('a.test', a => ['127.0.0.1', '127.0.0.2'],
               aaaa => ['::1', '2001:db8::1']);
    is summary(ask($dns, 'a.test', 1)), '0 2 127.0.0.1 127.0.0.2',
       'addresses';
    is summary(ask($dns, 'a.test', 28)), '0 2 ::1 2001:db8::1', 'of IPv6';
    is summary(ask($dns, 'a.test', 33)), '0 0', 'of another type: none';

    $dns->name('a.test', a => ['127.0.0.3']);
    is summary(ask($dns, 'a.test', 1)), '0 1 127.0.0.3', 'others';
    is summary(ask($dns, 'a.test', 28)), '0 0', 'nothing stays';

    $dns->name('a.test', a => ['127.0.0.3'], code => 'SERVFAIL');
    is summary(ask($dns, 'a.test', 1)), '2 0', 'SERVFAIL';

    $dns->name('a.test', code => 'REFUSED');
    is summary(ask($dns, 'a.test', 1)), '5 0', 'REFUSED';

    $dns->name('b.test', cname => 'c.test');
    $dns->name('c.test', a => ['127.0.0.4']);
    is summary(ask($dns, 'b.test', 1)), '0 2 127.0.0.4', 'CNAME';

    $dns->forget('a.test');
    is summary(ask($dns, 'a.test', 1)), '3 0', 'forgotten';

    is $dns->queries, 10, 'all queries';
    is $dns->queries('a.test'), 9, 'of a name';
    is $dns->queries('a.test', 'AAAA'), 2, 'of a name and type';
    is $dns->queries('a.test', 'TYPE33'), 1, 'of another type';
    is $dns->queries('none.test'), 0, 'none';
    is $dns->tcp, 0, 'none by TCP';
};


subtest 'answers may be late or never come' => sub {
    my $dns = RateLimit::Dns->start(names => {
        'late.test'   => { a => ['127.0.0.1'], delay => 300 },
        'silent.test' => { silent => 1 },
        'quick.test'  => { a => ['127.0.0.2'] },
    });

    my $socket = dial($dns, 'udp');
    my $from = time;

    send $socket, query($_->[0], $_->[1], 1), 0
        for [1, 'silent.test'], [2, 'late.test'], [3, 'quick.test'];

    is unpack('n', answer($socket)), 3, 'the quick one comes first';
    is unpack('n', answer($socket)), 2, 'then the late one';
    cmp_ok time - $from, '>=', 0.3, 'late';

    is $dns->queries('silent.test'), 1, 'the silent one was asked';
    is answer($socket, 0.1), undef, 'and does not answer';

    send $socket, query(4, 'silent.test', 1), 0;
    ok wait_until(sub { $dns->queries('silent.test') == 2 }), 'asked again';
    $dns->name('silent.test', a => ['127.0.0.5']);
    send $socket, query(5, 'silent.test', 1), 0;
    is summary(answer($socket)), '0 1 127.0.0.5', 'until it does';
};


subtest 'an answer that is too long for UDP comes by TCP' => sub {
    my @many = map { "127.1.0.$_" } 1 .. 40;
    my $dns = RateLimit::Dns->start(names => { 'many.test' => { a => \@many } });

    my $short = ask($dns, 'many.test', 1);

    is unpack('n', substr $short, 2, 2) & 0x0200, 0x0200, 'truncated by UDP';
    is summary($short), '0 0', 'no part of it';

    my $socket = dial($dns, 'tcp');
    my $query = query(9, 'many.test', 1);
    my $bytes = pack('n', length $query) . $query;

    # in portions, and two at once

    syswrite $socket, $_ for substr($bytes, 0, 1), substr($bytes, 1, 9),
                             substr($bytes, 10) . $bytes;

    for (1, 2) {
        my $length = unpack 'n', take($socket, 2);

        is summary(take($socket, $length)), join(' ', '0 40', @many),
           'all by TCP';
    }

    is $dns->tcp, 2, 'counted';
    is $dns->queries('many.test', 'A'), 3, 'with the others';
};


subtest 'the server ends with its object' => sub {
    my $dns = RateLimit::Dns->start(names => { x => { a => ['127.0.0.1'] } });
    my ($pid, $port) = ($dns->pid, $dns->port);

    if (fork() // die) { wait }
    else { undef $dns; POSIX::_exit(0) }
    is summary(ask($dns, 'x', 1)), '0 1 127.0.0.1',
       'a forked child does not end it';

    undef $dns;
    ok !alive($pid), 'ended with the object';

    $dns = RateLimit::Dns->start(port => $port);
    is $dns->port, $port, 'again on the same port';

    ok !eval { RateLimit::Dns->start(port => $port) }, 'not twice';

    $dns->stop;
    ok !eval { $dns->queries }, 'stopped';
};


# The resolver of nginx does not look into /etc/hosts: it asks for "localhost",
# and believes the answer.

subtest 'the resolver of nginx takes the answers' => sub {
    my $port = free_port();
    my $dns = RateLimit::Dns->start(names => {
        localhost => { a => ['127.0.0.1'], ttl => 1 },
    });

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => <<"EOC",
            resolver @{[ $dns->addr ]} ipv6=off;
            resolver_timeout 20s;

            server { listen 127.0.0.1:$port; return 200 one; }
            server { listen 127.0.0.2:$port; return 200 two; }

            server {
                listen 127.0.0.1:%%PORT%%;
                set \$name localhost;

                location / { proxy_pass http://\$name:$port; }
            }
EOC
    );

    my $get = sub { $nginx->get('/') };

    is $get->()->{body}, 'one', 'an address';
    cmp_ok $dns->queries('localhost', 'A'), '>=', 1, 'is asked for';

    $dns->name('localhost', a => ['127.0.0.2'], ttl => 1);
    ok wait_until(sub { $get->()->{body} eq 'two' }, 20),
       'another one after its time to live';

    $dns->name('localhost', cname => 'other.test', ttl => 1);
    $dns->name('other.test', a => ['127.0.0.1'], ttl => 1);
    ok wait_until(sub { $get->()->{body} eq 'one' }, 20), 'by CNAME';

    $dns->name('localhost', a => [map { "127.0.0.2" } 1 .. 40], ttl => 1);
    ok wait_until(sub { $get->()->{body} eq 'two' }, 20), 'by TCP';
    cmp_ok $dns->tcp, '>=', 1, 'really';

    $dns->name('localhost', code => 'NXDOMAIN');
    ok wait_until(sub { $get->()->{status} == 502 }, 20), 'NXDOMAIN';

    $nginx->finish;
};


done_testing;
