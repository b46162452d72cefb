package RateLimit::Redis;

# Real redis-server processes for tests, each in a temporary folder of its own.
#
#   my $redis = RateLimit::Redis->start;              # TCP port + unix socket
#   my $redis = RateLimit::Redis->start(
#       port   => 12345,                              # default: a free one
#       unix   => 0,                                  # default 1
#       tcp    => 0,                                  # default 1
#       config => { requirepass => 'secret',          # lines of redis.conf,
#                   maxmemory   => '2mb',             # values as written there;
#                   user => ['a on ...', 'b on ...'] });  # a list: many lines
#   my @shards = RateLimit::Redis->start_many(3, %same_options);
#
#   $redis->port;  $redis->addr;  $redis->socket;  $redis->pid;  $redis->dir;
#
#   $redis->cmd('SET', 'a', 1);        # scalar, array ref or undef (nil);
#                                      # dies on an error reply
#   $redis->try('EVAL', 'x', 0);       # the same, but an error reply is a
#                                      # RateLimit::Redis::Error (a string)
#   $redis->info('clients')->{connected_clients};
#
#   $redis->calls('evalsha');          # INFO commandstats: calls that were run,
#                                      # 'cluster|slots' is a subcommand; default
#                                      # as shown
#   $redis->reset_calls;               # since when
#   $redis->calls_during(sub { ... }); # of EVALSHA, that the code has caused
#   $redis->errors('READONLY');        # INFO errorstats: replies with this error
#   $redis->clients;                   # number of connections with the module's
#   $redis->client_list;               # name, and their fields: hashes
#   $redis->time;                      # its clock, in seconds
#
#   $redis->bucket($key);              # fields of a token bucket; undef if
#                                      # there is no such key
#   $redis->tokens($key);              # one of them
#   $redis->bucket_set($key, tokens => 5, expires => undef);
#                                      # changes some, makes the key if it has
#                                      # to; its time to live stays
#
#   $redis->contents;                  # of all limits: { 'NAME:{KEY}' => tokens
#                                      # of a bucket, or "N entries" of a window }
#
#   $redis->stop;      # SIGTERM, awaited        $redis->kill9;
#   $redis->pause;     # SIGSTOP, awaited        $redis->resume;
#   $redis->start;     # again, same port, socket and config; data are gone
#   $redis->restart;   # stop + start
#   RateLimit::Redis->new(%opt)        # takes port and folder, starts nothing
#
# "cmd" authenticates by requirepass of the config, or by auth => [user, pass].
# RATELIMIT_REDIS_SERVER names another server program (valkey-server).
#
# The process and the folder end with the object, or at the end of the Perl
# process that made it, whichever comes first; never in a forked child.

use strict;
use warnings;

use File::Path ();
use IO::Socket::INET ();
use IO::Socket::UNIX ();
use Scalar::Util ();
use Socket ();

use RateLimit::Util qw(
    free_port wait_until slurp temp_dir spawn reap keep_files
);

my %all;        # every live object by address, for END


sub new {
    my ($class, %opt) = @_;

    my $dir = temp_dir('redis');

    my $self = bless {
        owner  => $$,
        dir    => $dir,
        server => $ENV{RATELIMIT_REDIS_SERVER} || 'redis-server',
        bind   => $opt{bind} // '127.0.0.1',
        config => { %{ $opt{config} || {} } },
        auth   => $opt{auth},
        fixed  => defined $opt{port},
        port   => $opt{port} // free_port(),
        tcp    => $opt{tcp} // 1,
        socket => ($opt{unix} // 1) ? "$dir/redis.sock" : undef,
    }, $class;

    if (!$self->{auth} && defined $self->{config}{requirepass}) {
        my $password = $self->{config}{requirepass};
        $password =~ s/^"(.*)"$/$1/;
        $self->{auth} = [$password];
    }

    $all{Scalar::Util::refaddr($self)} = $self;
    Scalar::Util::weaken($all{Scalar::Util::refaddr($self)});

    return $self;
}


# Class method: a new server.  Object method: start it again after stop.

sub start {
    my ($self, @opt) = @_;

    $self = $self->new(@opt) unless ref $self;

    die "redis already runs\n" if $self->{pid};

    for my $try (1 .. 5) {
        $self->_write_config;
        unlink "$self->{dir}/log";

        $self->{pid} = spawn([$self->{server}, "$self->{dir}/redis.conf"],
                             out => "$self->{dir}/log");

        my $status;
        my $ready = wait_until(sub {
            $status = reap($self->{pid}, 0);
            return 1 if defined $status;
            return $self->_answers;
        }, 10);

        return $self if $ready && !defined $status;

        my $log = slurp("$self->{dir}/log");

        if (!defined $status) {
            $self->kill9;
        }

        undef $self->{pid};

        if ($log =~ /Address already in use/ && !$self->{fixed}) {
            $self->{port} = free_port();
            next;
        }

        die "$self->{server} did not start:\n$log\n";
    }

    die "$self->{server} found no free port\n";
}


sub start_many {
    my ($class, $n, %opt) = @_;

    return map { $class->start(%opt) } 1 .. $n;
}


sub port   { $_[0]{port} }
sub addr   { "127.0.0.1:$_[0]{port}" }
sub socket { $_[0]{socket} }
sub pid    { $_[0]{pid} }
sub dir    { $_[0]{dir} }
sub log    { slurp("$_[0]{dir}/log") }


sub cmd {
    my ($self, @args) = @_;

    my $reply = $self->try(@args);

    if (Scalar::Util::blessed($reply)) {
        die "redis: $reply (on $args[0])\n";
    }

    return $reply;
}


sub bucket {
    my ($self, $key) = @_;

    my %fields = @{ $self->cmd('HGETALL', $key) };

    return %fields ? \%fields : undef;
}


sub tokens {
    my ($self, $key) = @_;

    return ($self->bucket($key) // {})->{tokens};
}


sub bucket_set {
    my ($self, $key, %changes) = @_;

    for my $field (sort keys %changes) {
        my $value = $changes{$field};

        $self->cmd(defined $value ? ('HSET', $key, $field, $value)
                                  : ('HDEL', $key, $field));
    }

    return;
}


sub contents {
    my ($self) = @_;

    return { map {
        (s/^ratelimit://r => $self->cmd('TYPE', $_) eq 'hash'
                             ? int(0.5 + $self->tokens($_))
                             : $self->cmd('ZCARD', $_) . ' entries')
    } @{ $self->cmd('KEYS', '*') } };
}


# A connection that broke, or timed out, is not used again.

sub try {
    my ($self, @args) = @_;

    my $client = $self->{client};

    if (!$client || $self->{client_pid} != $$) {
        $client = RateLimit::Redis::Client->connect($self->target);
        $self->{client} = $client;
        $self->{client_pid} = $$;

        if ($self->{auth}) {
            my $ok = eval { $client->call('AUTH', @{ $self->{auth} }) };

            if (!defined $ok || Scalar::Util::blessed($ok)) {
                undef $self->{client};
                die "redis AUTH: ", $ok // $@, "\n";
            }
        }
    }

    my $reply = eval { $client->call(@args) };

    if ($@) {
        undef $self->{client};
        die $@;
    }

    return $reply;
}


# Where the server listens, as RateLimit::Redis::Client takes it.

sub target {
    my ($self) = @_;

    return $self->{socket} // [($self->{bind} =~ /^-?(\S+)/)[0], $self->{port}];
}


sub info {
    my ($self, @section) = @_;

    my %info;

    for (split /\r?\n/, $self->cmd('INFO', @section)) {
        $info{$1} = $2 if /^(\w+):(.*)$/;
    }

    return \%info;
}


sub calls {
    my ($self, $name) = @_;

    $name //= 'evalsha';

    return $self->cmd('INFO', 'commandstats')
           =~ /^cmdstat_\Q$name\E:calls=(\d+)/m ? $1 : 0;
}


sub reset_calls { $_[0]->cmd('CONFIG', 'RESETSTAT') }


sub calls_during {
    my ($self, $code) = @_;

    $self->reset_calls;
    $code->();

    return $self->calls;
}


sub errors {
    my ($self, $name) = @_;

    return $self->cmd('INFO', 'errorstats')
           =~ /^errorstat_\Q$name\E:count=(\d+)/m ? $1 : 0;
}


sub client_list {
    my ($self) = @_;

    return map { { /(\S+?)=(\S*)/g } }
           grep { /\bname=nginx-ratelimit@/ }
           split /\n/, $self->cmd('CLIENT', 'LIST');
}


sub clients { return scalar(() = $_[0]->client_list) }


sub time {
    my ($self) = @_;

    my ($s, $us) = @{ $self->cmd('TIME') };

    return $s + $us / 1e6;
}


sub stop {
    my ($self) = @_;

    return 1 unless $self->_ours;

    kill 'TERM', $self->{pid};
    kill 'CONT', $self->{pid};

    if (!defined reap($self->{pid}, 5)) {
        return $self->kill9;
    }

    $self->_gone;

    return 1;
}


sub kill9 {
    my ($self) = @_;

    return 1 unless $self->_ours;

    kill 'KILL', $self->{pid};
    reap($self->{pid}, 5);
    $self->_gone;

    return 1;
}


sub pause {
    my ($self) = @_;

    kill 'STOP', $self->{pid};

    return wait_until(sub {
        slurp("/proc/$self->{pid}/stat") =~ /^\d+ \(.*\) T /s
    }, 5);
}


sub resume {
    my ($self) = @_;

    kill 'CONT', $self->{pid};

    return wait_until(sub {
        slurp("/proc/$self->{pid}/stat") =~ /^\d+ \(.*\) [^T] /s
    }, 5);
}


sub restart {
    my ($self) = @_;

    $self->stop;

    return $self->start;
}


sub _ours {
    my ($self) = @_;

    return $self->{pid} && $self->{owner} == $$;
}


sub _gone {
    my ($self) = @_;

    undef $self->{pid};
    undef $self->{client};
    unlink $self->{socket} if $self->{socket};
}


# Any reply will do: NOAUTH and the like come from a server that is up.

sub _answers {
    my ($self) = @_;

    my $reply = eval {
        RateLimit::Redis::Client->connect($self->target)->call('PING')
    };

    return defined $reply && $reply !~ /^LOADING/;
}


sub _write_config {
    my ($self) = @_;

    my $dir = $self->{dir};

    my %config = (
        bind             => $self->{bind},
        port             => $self->{tcp} ? $self->{port} : 0,
        'protected-mode' => 'no',
        daemonize        => 'no',
        dir              => $dir,
        save             => '""',
        appendonly       => 'no',
        loglevel         => 'warning',
        %{ $self->{config} },
    );

    if ($self->{socket}) {
        $config{unixsocket} = $self->{socket};
        $config{unixsocketperm} = '777';
    }

    open my $out, '>', "$dir/redis.conf" or die "$dir/redis.conf: $!\n";

    for my $name (sort keys %config) {
        my $value = $config{$name};
        print $out "$name $_\n" for ref $value ? @$value : $value;
    }

    close $out or die "$dir/redis.conf: $!\n";

    # the workers of an nginx may run as another user
    chmod 0755, $dir;
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$ || $self->{ended}++;

    local ($?, $!, $@);

    delete $all{Scalar::Util::refaddr($self)};
    $self->stop;
    File::Path::remove_tree($self->{dir}) unless keep_files($self->{dir});
}


END {
    $_->DESTROY for grep { defined } values %all;
}


package RateLimit::Redis::Error;

# An error reply; reads as its text.

use strict;
use warnings;
use overload '""' => sub { $_[0][0] }, fallback => 1;


package RateLimit::Redis::Client;

# A blocking client for one command at a time.

use strict;
use warnings;

use RateLimit::Util qw(patience);


# [host, port], or the path of a unix socket.

sub connect {
    my ($class, $target) = @_;

    my $socket = ref $target
        ? IO::Socket::INET->new(PeerAddr => $target->[0],
                                PeerPort => $target->[1],
                                Timeout => 5)
        : IO::Socket::UNIX->new(Peer => $target);

    die "redis connect: $!\n" unless $socket;

    return bless { socket => $socket, in => '' }, $class;
}


sub call {
    my ($self, @args) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $bytes = '*' . @args . "\r\n"
                . join '', map { '$' . length($_) . "\r\n$_\r\n" } @args;

    while (length $bytes) {
        my $n = syswrite $self->{socket}, $bytes;
        die "redis write: $!\n" unless defined $n;
        substr $bytes, 0, $n, '';
    }

    return $self->_reply;
}


sub _reply {
    my ($self) = @_;

    my $line = $self->_line;
    my $type = substr $line, 0, 1, '';

    return $line if $type eq '+';
    return 0 + $line if $type eq ':';
    return bless([$line], 'RateLimit::Redis::Error') if $type eq '-';

    if ($type eq '$') {
        return undef if $line < 0;

        $self->_fill($line + 2);
        my $data = substr $self->{in}, 0, $line, '';
        substr $self->{in}, 0, 2, '';

        return $data;
    }

    if ($type eq '*') {
        return undef if $line < 0;
        return [map { $self->_reply } 1 .. $line];
    }

    die "redis sent \"$type$line\"\n";
}


sub _line {
    my ($self) = @_;

    while ($self->{in} !~ /\n/) {
        $self->_fill(length($self->{in}) + 1);
    }

    $self->{in} =~ s/^(.*?)\r?\n//s;

    return $1;
}


sub _fill {
    my ($self, $n) = @_;

    while (length $self->{in} < $n) {
        my $read = '';
        vec($read, fileno $self->{socket}, 1) = 1;

        my $ready = select $read, undef, undef, patience(5);

        next if $ready < 0;
        die "redis did not answer in time\n" if $ready == 0;

        my $got = sysread $self->{socket}, $self->{in}, 65536,
                          length $self->{in};

        die "redis closed the connection\n" unless $got;
    }
}


1;
