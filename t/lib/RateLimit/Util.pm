package RateLimit::Util;

# What every part of the test harness needs: free ports, temporary folders,
# waiting for a condition, and child processes that are always ended.
#
#   my $port = free_port();
#   my $dead = dead_port();                  # nobody listens, nor ever will
#   my $dir  = temp_dir('redis');            # the caller removes it
#   write_file("$dir/x", $text);  my $text = slurp("$dir/x");     # '' if not there
#   wait_until(sub { -e "$dir/x" }, 5) or die "no x after 5 s";
#   my $pid  = spawn([qw(redis-server -)], out => "$dir/log");
#   my $code = reap($pid, 5);                # undef: still alive after 5 s
#
# Ownership: a process or a folder belongs to the Perl process that made it.
# Test::Nginx forks, so whoever cleans up compares $$ first.  A child ends with
# its parent even when the parent is killed by signal 9 (setpriv --pdeathsig).

use strict;
use warnings;

use Exporter 'import';
use File::Spec ();
use File::Temp ();
use IO::Socket::INET ();
use POSIX ();
use Time::HiRes ();

our @EXPORT_OK = qw(
    free_port dead_port wait_until slurp write_file temp_dir spawn reap alive
    find_program patience keep_files log_trouble
);


# A test killed by SIGTERM or Ctrl-C must still run its END blocks.  A forked
# child that inherits the handler dies as it would have without it.

{
    my $owner = $$;

    for my $name (qw(INT TERM HUP)) {
        next if $SIG{$name} && $SIG{$name} ne 'DEFAULT';

        $SIG{$name} = sub {
            exit 1 if $$ == $owner;
            $SIG{$name} = 'DEFAULT';
            kill $name, $$;
        };
    }
}


# Below the kernel's range for outgoing connections, so that a client of
# another test can't take the port between this check and its use.

my %given;

sub free_port {
    for (1 .. 1000) {
        my $port = 10000 + int rand 22000;

        next if $given{$port};

        my $socket = IO::Socket::INET->new(
            LocalAddr => '0.0.0.0', LocalPort => $port,
            Proto => 'tcp', Listen => 1
        ) or next;

        close $socket;
        $given{$port} = 1;

        return $port;
    }

    die "no free port found\n";
}


# A port that this process holds, so that no server of another test gets it.

my @held;

sub dead_port {
    for (1 .. 1000) {
        my $socket = IO::Socket::INET->new(
            LocalAddr => '127.0.0.1', LocalPort => free_port(), Proto => 'tcp'
        ) or next;

        push @held, $socket;

        return $socket->sockport;
    }

    die "no free port found\n";
}


# Seconds that a wait may take: ten times as many under valgrind, or what
# RATELIMIT_PATIENCE says.

sub patience {
    my ($seconds) = @_;

    my $factor = $ENV{RATELIMIT_PATIENCE}
                 || ($ENV{TEST_NGINX_USE_VALGRIND} ? 10 : 1);

    return $seconds * $factor;
}


# The first true value of the code, or false after the timeout.

sub wait_until {
    my ($code, $timeout) = @_;

    my $end = Time::HiRes::time() + patience($timeout // 5);

    while (1) {
        my $value = $code->();

        return $value if $value;
        return $value if Time::HiRes::time() >= $end;

        Time::HiRes::sleep(0.01);
    }
}


sub slurp {
    my ($file) = @_;

    open my $in, '<:raw', $file or return '';
    local $/;
    my $text = <$in>;

    return $text // '';
}


# Gives the name of the file; "mode" if it is not to be the usual one.

sub write_file {
    my ($file, $text, $mode) = @_;

    open my $out, '>:raw', $file or die "$file: $!\n";
    print $out $text;
    close $out or die "$file: $!\n";

    chmod $mode, $file if defined $mode;

    return $file;
}


sub temp_dir {
    my ($what) = @_;

    return File::Temp::tempdir("ratelimit-$what-XXXXXX", TMPDIR => 1);
}


# RATELIMIT_KEEP=1 leaves the folders of a test for inspection.

sub keep_files {
    my ($dir) = @_;

    return 0 unless $ENV{RATELIMIT_KEEP};

    print STDERR "# kept: $dir\n" if -d $dir;

    return 1;
}


sub find_program {
    my ($name) = @_;

    if ($name =~ m{/}) {
        return -x $name ? File::Spec->rel2abs($name) : undef;
    }

    for my $dir (split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/usr/local/sbin')
    {
        return "$dir/$name" if length $dir && -x "$dir/$name" && -f _;
    }

    return undef;
}


# Starts a program, its output going to the file "out".  "death" is the signal
# that it gets when its parent dies.

my $setpriv;

sub spawn {
    my ($command, %opt) = @_;

    my $program = find_program($command->[0])
                  // die "$command->[0] is not installed\n";
    my @command = ($program, @$command[1 .. $#$command]);

    if (!defined $setpriv) {
        my $path = find_program('setpriv');
        $setpriv = $path && `$path --help 2>&1` =~ /--pdeathsig/ ? $path : '';
    }

    if ($setpriv) {
        unshift @command, $setpriv, '--pdeathsig', $opt{death} // 'KILL', '--';
    }

    my $pid = fork() // die "fork() failed: $!\n";

    if ($pid) {
        return $pid;
    }

    $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE);

    my $out = $opt{out} // File::Spec->devnull;

    open STDIN, '<', File::Spec->devnull;
    open STDOUT, '>>', $out;
    open STDERR, '>&', \*STDOUT;

    no warnings 'exec';
    exec { $command[0] } @command;

    print STDERR "exec $command[0] failed: $!\n";
    POSIX::_exit(127);
}


# The wait status of a child of ours, undef while it lives.

sub reap {
    my ($pid, $timeout) = @_;

    my $status;

    local ($?, $!);

    wait_until(sub {
        my $rc = waitpid $pid, POSIX::WNOHANG();

        return 0 if $rc == 0;

        $status = $rc == $pid ? $? : -1;
        return 1;
    }, $timeout // 0);

    return $status;
}


# True for a process that exists and is no zombie.

sub alive {
    my ($pid) = @_;

    return slurp("/proc/$pid/stat") =~ /^\d+ \(.*\) [^ZX] /s;
}


# The lines of a log that no test may leave unexplained: nginx's three worst
# levels, and what sanitizers and valgrind print.

sub log_trouble {
    my ($text) = @_;

    return grep {
        /\[(?:alert|emerg|crit)\]/
        || /(?:ERROR|WARNING|SUMMARY): \w+Sanitizer/
        || /: runtime error: /
        || /^==\d+== (?!\s*$)/
        || /\bAssertion .* failed/
    } split /\n/, $text;
}


1;
