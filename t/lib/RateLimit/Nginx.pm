package RateLimit::Nginx;

# An nginx of its own, apart from Test::Nginx's: for tests that need several at
# once, a reload, several workers, a killed worker, or a look at exit.
#
#   my $nginx = RateLimit::Nginx->start(
#       server  => 'location / { return 200 ok; }',  # inside one server block
#       conf    => 'map $uri $x { ... }',            # before it, inside http
#       main    => 'worker_rlimit_nofile 100;',
#       events  => 'worker_connections 1024;',       # default as shown
#       workers => 2,                                # default 2
#       master  => 0,                                # default 1
#       log     => 'debug',                          # default info
#       load    => ['other.so'],    # default: RATELIMIT_MODULE, if set
#       warnings => 1,              # also about the long timeouts of tests
#       reuseport => 1,             # a socket for each worker, so that all of
#                                   # them get connections
#   );
#
# Texts may hold %%PORT%% (the listening port; %%PORT2%%, %%PORT3%%, ... are
# further free ones) and %%DIR%% (the temporary folder, prefix of the nginx).
# Without "server" the text of "conf" brings its own server blocks.
#
#   $nginx->port;  $nginx->port(2);  $nginx->url('/x');  $nginx->dir;
#   $nginx->pid;   $nginx->workers;              # pids of the current workers
#   $nginx->reload;  $nginx->reload(server => '...');   # true: new workers run;
#                               # false: nginx refused the configuration
#   $nginx->old_workers_gone(5);                 # after a reload
#   $nginx->kill_worker('KILL');                 # one worker; awaits the next
#   $nginx->error_log;  $nginx->log_like(qr/x/); $nginx->log_count(qr/x/);
#   $nginx->wait_log(qr/x/, 5);  $nginx->access_log;
#   $nginx->states($shard);     # what the log says about it, in order:
#                               # "notice fallback, failure: closed",
#                               # "error circuit_open, failure: refused",
#                               # "error distributed again", ...
#   $nginx->state_names($shard);        # the same without levels, an array ref
#   $nginx->get('/x', 'X-Api-Key' => 'a');      # a response of RateLimit::Load
#   $nginx->begin('/x')->response;      # in two steps, on a connection
#   $nginx->metrics;            # of RateLimit::Metrics, where "/metrics" is that
#   $nginx->metric('redis_calls_total', shard => $addr);    # the sum of these
#   $nginx->topology_events('moved');           # nginx_ratelimit_topology_...
#   $nginx->descriptors;        # that all workers have open,
#   $nginx->memory;             # and kB that are theirs alone
#   $nginx->stop;               # QUIT, awaited; true if it left by itself
#   $nginx->finish;             # tests: it leaves by itself, with nothing alarming
#                               # in its log.  Options, and further tests:
#       timeout   => 20,        # s, in which it leaves
#       except    => qr/signal 9/,      # lines of this kind are fine
#       same_workers => 1,      # as since its start, or the last reload
#       printable => 1          # there is nothing else in the log
#   $nginx->start;              # again, same ports and folder
#   $nginx->alerts;             # lines that are [alert], [emerg], [crit], or
#                               # come from a sanitizer or valgrind
#   $nginx->no_alerts;          # a test: ok if there are none; best after stop
#   $nginx->no_alerts('name', except => qr/exited on signal 9/);
#
#   my ($code, $output) = RateLimit::Nginx->test_config(conf => '...');
#   RateLimit::Nginx->has_grpc;         # it has HTTP/2 and gRPC
#   RateLimit::Nginx->http2_of($text);  # "listen ... http2;", which nginx warns
#                               # about since 1.25.1, as this version wants it
#
#   my $nginx = RateLimit::Nginx->new(...);     # for a binary upgrade
#   my $master = $nginx->start_daemon;          # its pid
#   $nginx->daemon;             # the pid of the newest master, once it has all
#                               # of its workers; else 0
#
# The binary is TEST_NGINX_BINARY or nginx.  With TEST_NGINX_USE_VALGRIND it
# runs under valgrind (valgrind.suppress of the current folder applies), and
# "alerts" includes the reports.  nginx goes to the background in start_daemon
# alone, without which it takes no USR2; else it is our child.  It ends with the
# object or at the end of the Perl process that made it, never in a forked
# child.

use strict;
use warnings;

use File::Path ();
use File::Spec ();
use IO::Socket::INET ();
use List::Util qw(sum0);
use Scalar::Util ();
use Test::Builder ();

use RateLimit::Load ();
use RateLimit::Metrics ();
use RateLimit::Util qw(
    alive free_port keep_files log_trouble reap slurp spawn temp_dir wait_until
    write_file
);

my %all;


sub new {
    my ($class, %opt) = @_;

    my $self = bless {
        owner  => $$,
        dir    => temp_dir('nginx'),
        binary => $ENV{TEST_NGINX_BINARY} || 'nginx',
        ports  => {},
    }, $class;

    chmod 0755, $self->{dir};
    mkdir "$self->{dir}/$_" for qw(conf logs html);

    $self->{fixed} = defined $opt{port};
    $self->{ports}{1} = $opt{port} if $self->{fixed};

    $self->_configure(%opt);

    $all{Scalar::Util::refaddr($self)} = $self;
    Scalar::Util::weaken($all{Scalar::Util::refaddr($self)});

    return $self;
}


# Class method: a new nginx.  Object method: start it again after stop.

sub start {
    my ($self, @opt) = @_;

    $self = $self->new(@opt) unless ref $self;

    die "nginx already runs\n" if $self->{pid};

    for my $try (1 .. 5) {
        my $from = length $self->error_log;

        $self->_write_config;
        unlink "$self->{dir}/nginx.pid";

        $self->{pid} = spawn([$self->_command], out => "$self->{dir}/stderr",
                             death => 'TERM');

        my $status;
        my $ready = wait_until(sub {
            $status = reap($self->{pid}, 0);
            return 1 if defined $status;
            return $self->_is_up;
        }, 15);

        if ($ready && !defined $status) {
            $self->{first} = [$self->workers];
            return $self;
        }

        my $log = slurp("$self->{dir}/stderr")
                  . substr $self->error_log, $from;

        if (!defined $status) {
            kill 'KILL', $self->workers, $self->{pid};
            reap($self->{pid}, 5);
        }

        undef $self->{pid};

        # a port taken meanwhile: choose others, unless the test chose it

        if ($log =~ /Address already in use/ && !$self->{fixed}) {
            $self->{ports} = {};
            unlink "$self->{dir}/logs/error.log", "$self->{dir}/stderr";
            next;
        }

        die "nginx did not start:\n$log\n";
    }

    die "nginx found no free port\n";
}


sub pid { $_[0]{pid} }
sub dir { $_[0]{dir} }


sub port {
    my ($self, $n) = @_;

    return $self->{ports}{$n // 1} //= free_port();
}


sub url {
    my ($self, $path) = @_;

    return 'http://127.0.0.1:' . $self->port . ($path // '/');
}


sub get {
    my ($self, @request) = @_;

    return RateLimit::Load::get($self->port, @request);
}


sub begin {
    my ($self, @request) = @_;

    return RateLimit::Load::connection($self->port)->send(@request);
}


sub metrics { return RateLimit::Metrics::fetch($_[0]->port) }


sub metric {
    my ($self, @which) = @_;

    return RateLimit::Metrics::sum($self->metrics, @which);
}


sub topology_events {
    my ($self, $event) = @_;

    return $self->metric('topology_events_total', event => $event);
}


sub descriptors {
    my ($self) = @_;

    return scalar(() = map { glob "/proc/$_/fd/*" } $self->workers);
}


# The zone, which is shared, is not among it.

sub memory {
    my ($self) = @_;

    return sum0 map { slurp("/proc/$_/status") =~ /^RssAnon:\s+(\d+) kB/m }
                $self->workers;
}


# Workers are the children of the master that took their title and were not
# told to leave; under valgrind there are no titles, so all children count.

sub workers {
    my ($self) = @_;

    return () unless $self->{pid};
    return ($self->{pid}) unless $self->{opt}{master};

    my @children = _children($self->{pid});

    if (!$self->_valgrind) {
        @children = grep {
            my $title = slurp("/proc/$_/cmdline");
            $title =~ /worker process/ && $title !~ /shutting down/
        } @children;
    }

    return grep { !$self->{old}{$_} } @children;
}


sub reload {
    my ($self, %change) = @_;

    my @old = $self->workers;
    my $from = length $self->error_log;

    my $before = $self->{opt};

    if (%change) {
        $self->_configure(%{ $self->{opt} }, %change);
    }

    $self->_write_config;

    kill 'HUP', $self->{pid};

    my $refused;
    my $up = wait_until(sub {
        return 1 if $refused = substr($self->error_log, $from) =~ /\[emerg\]/;

        my %old = map { $_ => 1 } @old;
        my @new = grep { !$old{$_} } $self->workers;

        return @new >= $self->{opt}{workers};
    }, 15);

    if ($refused) {
        $self->{opt} = $before;
        $self->_write_config;
        return 0;
    }

    die "nginx did not reload:\n" . substr($self->error_log, $from) unless $up;

    $self->{old}{$_} = 1 for @old;
    $self->{first} = [$self->workers];

    return 1;
}


sub old_workers_gone {
    my ($self, $timeout) = @_;

    return wait_until(sub {
        delete @{ $self->{old} }{ grep { !alive($_) } keys %{ $self->{old} } };
        return !%{ $self->{old} };
    }, $timeout // 5);
}


# Ends one worker and waits until the master has replaced it.

sub kill_worker {
    my ($self, $signal, $pid) = @_;

    $pid //= ($self->workers)[0];

    kill $signal // 'KILL', $pid;

    return wait_until(sub {
        !alive($pid) && $self->workers >= $self->{opt}{workers}
    }, 10);
}


sub error_log  { slurp("$_[0]{dir}/logs/error.log") }
sub access_log { slurp("$_[0]{dir}/logs/access.log") }


sub log_like {
    my ($self, $regex) = @_;

    return $self->error_log =~ $regex;
}


sub log_count {
    my ($self, $regex) = @_;

    return scalar grep { $_ =~ $regex } split /\n/, $self->error_log;
}


sub wait_log {
    my ($self, $regex, $timeout) = @_;

    return wait_until(sub { $self->log_like($regex) }, $timeout);
}


sub states {
    my ($self, $shard) = @_;

    return map {
        /\[(\w+)\] .*ratelimit shard \Q$shard\E is (?:in state )?(.*)$/
            ? "$1 $2"
        : /\[(\w+)\] .*ratelimit: redis \Q$shard\E is unavailable \((\w+)\), (?:its|limits|requests) .* until it answers(.*)$/
            ? "$1 circuit_open, failure: $2$3"
        : /\[(\w+)\] .*ratelimit: redis \Q$shard\E is available again(?: after [1-9]\d* s)?(.*)$/
            ? "$1 distributed again$2"
        : ()
    } split /\n/, $self->error_log;
}


sub state_names {
    my ($self, $shard) = @_;

    return [map { s/^\w+ //r } $self->states($shard)];
}


# True if it left by itself within the timeout.

sub stop {
    my ($self, $timeout) = @_;

    return 1 unless $self->{pid} && $self->{owner} == $$;

    my $graceful = 1;

    kill 'QUIT', $self->{pid};

    if (!defined reap($self->{pid}, $timeout // 10)) {
        $graceful = 0;
        kill 'TERM', $self->{pid};

        if (!defined reap($self->{pid}, 3)) {
            kill 'KILL', _children($self->{pid}), $self->{pid};
            reap($self->{pid}, 5);
        }
    }

    undef $self->{pid};
    $self->{old} = {};

    return $graceful;
}


sub start_daemon {
    my ($self) = @_;

    $self->_write_config;

    my $file = "$self->{dir}/conf/nginx.conf";
    my $text = slurp($file) =~ s/^daemon off;/daemon on;/mr;

    write_file($file, $text);

    # the master executes itself by this name, and knows no PATH

    my ($program, @args) = $self->_command;

    system(RateLimit::Util::find_program($program), @args) == 0
        or die $self->error_log;

    return wait_until(sub { $self->daemon }, 15)
           || die "nginx did not start:\n" . $self->error_log;
}


sub daemon {
    my ($self) = @_;

    my ($pid) = slurp("$self->{dir}/nginx.pid") =~ /^(\d+)$/m
        or return 0;

    $self->{masters}{$pid} = 1;

    my @workers = _children($pid);

    return @workers >= $self->{opt}{workers} ? $pid : 0;
}


sub alerts {
    my ($self, %opt) = @_;

    my $text = join "\n", map { slurp($_) }
               "$self->{dir}/logs/error.log", "$self->{dir}/stderr",
               glob "$self->{dir}/valgrind.*";

    my $except = $opt{except};
    my %seen;

    return grep { !$seen{$_}++ && !(defined $except && $_ =~ $except) }
           log_trouble($text);
}


sub no_alerts {
    my ($self, $name, %opt) = @_;

    my @alerts = $self->alerts(%opt);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $test = Test::Builder->new;
    my $ok = $test->ok(!@alerts, $name // 'nothing alarming in the log');

    $test->diag($_) for @alerts > 40 ? @alerts[0 .. 39] : @alerts;

    return $ok;
}


sub finish {
    my ($self, %opt) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $test = Test::Builder->new;

    if ($opt{same_workers}) {
        my @workers = $self->workers;
        $test->is_eq("@workers", "@{ $self->{first} }",
                     'the workers are the same');
    }

    $test->ok($self->stop($opt{timeout}), 'nginx leaves by itself');
    $self->no_alerts(undef, except => $opt{except});

    if ($opt{printable}) {
        $test->unlike($self->error_log, qr/[^\x20-\x7e\n]/,
                      'nothing raw in the log');
    }

    return;
}


sub test_config {
    my ($class, %opt) = @_;

    my $self = $class->new(%opt);

    $self->_write_config;

    my $pid = spawn([$self->_command('-t')], out => "$self->{dir}/stderr");
    my $status = reap($pid, 15);

    if (!defined $status) {
        kill 'KILL', $pid;
        reap($pid, 5);
        die "nginx -t did not end\n";
    }

    my $output = slurp("$self->{dir}/stderr");

    return ($status & 127 ? 128 + ($status & 127) : $status >> 8, $output);
}


{
    my $about;

    sub _about {
        my $binary = $ENV{TEST_NGINX_BINARY} || 'nginx';

        return $about //= `$binary -V 2>&1`;
    }
}


sub has_grpc {
    return _about() =~ /--with-http_v2_module/
           && _about() !~ /--without-http_grpc_module/;
}


sub http2_of {
    my ($class, $text) = @_;

    my ($major, $minor, $patch) = _about() =~ m{/(\d+)\.(\d+)\.(\d+)}
        or die "nginx does not report its version: ${\ _about()}\n";

    if ($major * 1_000_000 + $minor * 1000 + $patch >= 1_025_001) {
        $text =~ s/^(\s*listen\s+[^\s;]+) http2;/$1; http2 on;/mg;
    }

    return $text;
}


sub _configure {
    my ($self, %opt) = @_;

    $opt{http} = delete $opt{conf} if defined $opt{conf};
    $opt{http} //= '';

    if (!defined $opt{load}) {
        $opt{load} = [grep { length } $ENV{RATELIMIT_MODULE} // ''];
    }

    $opt{master}  //= 1;
    $opt{workers} //= 2;
    $opt{log}     //= 'info';
    $opt{events}  //= 'worker_connections 1024;';
    $opt{main}    //= '';

    $opt{workers} = 1 unless $opt{master};

    $self->{opt} = \%opt;
}


sub _write_config {
    my ($self) = @_;

    my $opt = $self->{opt};
    my $load = join '', map { 'load_module ' . File::Spec->rel2abs($_) . ";\n" }
                        @{ $opt->{load} };
    my $user = $> == 0 ? 'user root;' : '';
    my $master = $opt->{master} ? 'on' : 'off';
    my $reuseport = $opt->{reuseport} ? ' reuseport' : '';
    my $server = !defined $opt->{server} ? '' : <<"EOC";
    server {
        listen 127.0.0.1:%%PORT%%$reuseport;
        server_name localhost;

$opt->{server}
    }
EOC

    # on a busy machine tests are patient on purpose, and requests of a test
    # choose the limits that it needs

    my $silence = '';

    if (!$opt->{warnings}) {
        my $all = "$opt->{http}$server";

        $silence .= 'ratelimit_silence long_timeout;'
            if $all =~ /\bratelimit_redis_timeout\s+\d+s/;
        $silence .= 'ratelimit_silence client_value;'
            if $all =~ /\bratelimit_(?:limit|capacity|rate|window|refill_interval)
                        \s[^;]*\$\{?(?:arg|http|cookie)_/x;
    }

    my $text = <<"EOC";
$load
daemon off;
master_process $master;
worker_processes $opt->{workers};
pid %%DIR%%/nginx.pid;
error_log %%DIR%%/logs/error.log $opt->{log};
$user
$opt->{main}

events {
    $opt->{events}
}

http {
    access_log %%DIR%%/logs/access.log;
    default_type text/plain;
    root %%DIR%%/html;

    client_body_temp_path %%DIR%%/client_body_temp;
    proxy_temp_path %%DIR%%/proxy_temp;
    fastcgi_temp_path %%DIR%%/fastcgi_temp;
    uwsgi_temp_path %%DIR%%/uwsgi_temp;
    scgi_temp_path %%DIR%%/scgi_temp;
    $silence

$opt->{http}

$server
}
EOC

    $text =~ s/%%DIR%%/$self->{dir}/g;
    $text =~ s/%%PORT(\d*)%%/$self->port($1 || 1)/ge;

    my $file = "$self->{dir}/conf/nginx.conf";

    write_file($file, $text);
}


sub _valgrind {
    return $ENV{TEST_NGINX_USE_VALGRIND} ? 1 : 0;
}


sub _command {
    my ($self, @args) = @_;

    my $dir = $self->{dir};
    my $binary = $self->{binary};
    my @command = ($binary, '-p', "$dir/", '-c', "$dir/conf/nginx.conf", @args);

    push @command, '-e', "$dir/logs/error.log" if _names_log($binary);

    if ($self->_valgrind && !@args) {
        my @suppress = -f 'valgrind.suppress'
            ? '--suppressions=' . File::Spec->rel2abs('valgrind.suppress') : ();

        unshift @command, 'valgrind', '-q', '--leak-check=full',
                '--show-possibly-lost=no', '--num-callers=50',
                '--keep-debuginfo=yes', "--log-file=$dir/valgrind.%p",
                @suppress;

        # valgrind needs a path
        my ($at) = grep { $command[$_] eq $binary } 0 .. $#command;
        $command[$at] = RateLimit::Util::find_program($binary) // $binary;
    }

    return @command;
}


# nginx 1.18 can't be told where to log before it has read its configuration.

my %names_log;

sub _names_log {
    my ($binary) = @_;

    return $names_log{$binary} //= do {
        my $program = RateLimit::Util::find_program($binary) // $binary;

        `$program -h 2>&1` =~ /^ +-e filename/m ? 1 : 0;
    };
}


# The pid file is written after the sockets are open, the workers start after
# it.

sub _is_up {
    my ($self) = @_;

    return slurp("$self->{dir}/nginx.pid") =~ /^\d+/
           && $self->workers >= $self->{opt}{workers};
}


sub _children {
    my ($parent) = @_;

    my @children;

    for my $file (glob '/proc/[0-9]*/stat') {
        if (slurp($file) =~ /^(\d+) \(.*\) ([A-Z]) (\d+) /s) {
            push @children, $1 if $3 == $parent && $2 !~ /[ZX]/;
        }
    }

    return sort { $a <=> $b } @children;
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$ || $self->{ended}++;

    local ($?, $!, $@);

    delete $all{Scalar::Util::refaddr($self)};
    $self->stop(3);

    for my $pid (grep { alive($_) } keys %{ $self->{masters} }) {
        kill 'KILL', _children($pid), $pid;
    }

    File::Path::remove_tree($self->{dir}) unless keep_files($self->{dir});
}


END {
    $_->DESTROY for grep { defined } values %all;
}


1;
