package Bench::Measure;

# One run of a case under wrk, and what it has cost.
#
#   my $result = Bench::Measure::load(
#       nginx => $nginx, redis => $redis,       # redis may be undef
#       path => '/exact-hot', keys => 100000, offset => 0,
#       connections => 64, threads => 1, seconds => 2, after => 0);
#
# A result is a hash:
#   requests   completed by wrk               seconds    that it took
#   rps        requests a second              p50, p99, mean   microseconds
#   nginx      CPU microseconds a request of all workers
#   redis      the same of the redis-server
#   sum        of both
#   calls      calls of a script a request, as Redis has counted them
#   passed     share of answers below 400
#   errors     connections that failed, answers that did not come
#   degraded   requests that the module has decided without Redis
#   others     share of the machine's CPU time that none of us has used
#
#   Bench::Measure::sample($nginx, $path, $n)   # { 200 => $n }
#   Bench::Measure::script_call($nginx, $redis, $path)  # ('evalsha', ...)
#   Bench::Measure::round_trip($redis, $n, @call)       # { p50, mean }
#   Bench::Measure::busy($seconds)              # share of all CPUs, 0 to 1

use strict;
use warnings;

use Cwd ();
use File::Basename ();
use POSIX ();
use Time::HiRes ();

use RateLimit::Load;
use RateLimit::Util qw(slurp spawn reap temp_dir);

my $SCRIPT = Cwd::abs_path(File::Basename::dirname(__FILE__)
                           . '/../../load.lua');
my $HZ = POSIX::sysconf(POSIX::_SC_CLK_TCK());

my $dir;                 # made when the first program is run
my $owner = $$;
my $child;


sub load {
    my (%opt) = @_;

    my @pids = $opt{nginx}->workers;
    my $redis = $opt{redis};

    my $degraded = degraded($opt{nginx});
    my $calls = $redis ? commands($redis) : undef;
    my $machine = machine();
    my @before = (cpu(@pids), $redis ? cpu($redis->pid) : 0);

    my $output = run(['wrk', '-t', $opt{threads}, '-c', $opt{connections},
                      '-d', $opt{seconds}, '-s', $SCRIPT,
                      $opt{nginx}->url($opt{path}), '--',
                      $opt{path}, $opt{keys}, $opt{offset}],
                     $opt{seconds} + 20);

    if ($opt{after}) {
        Time::HiRes::sleep($opt{after});
        settle(@pids, $redis ? $redis->pid : ());
    }

    my @after = (cpu(@pids), $redis ? cpu($redis->pid) : 0);

    my ($line) = $output =~ /^BENCH (.*)$/m
        or die "wrk said:\n$output\n";
    my %r = $line =~ /(\w+)=([\d.]+)/g;

    die "wrk got no answer from $opt{path}:\n$output\n" unless $r{requests};

    my %result = (
        requests => 0 + $r{requests},
        seconds  => $r{us} / 1e6,
        rps      => $r{requests} / ($r{us} / 1e6),
        p50      => 0 + $r{p50},
        p99      => 0 + $r{p99},
        mean     => 0 + $r{mean},
        nginx    => ($after[0] - $before[0]) / $r{requests},
        redis    => ($after[1] - $before[1]) / $r{requests},
        passed   => 1 - $r{refused} / $r{requests},
        errors   => 0 + $r{errors},
        degraded => degraded($opt{nginx}) - $degraded,
        calls    => $redis ? calls($calls, commands($redis)) / $r{requests}
                           : 0,
    );

    $result{sum} = $result{nginx} + $result{redis};
    $result{others} = others($machine, machine(),
                             $result{sum} * $result{requests});

    return \%result;
}


# Microseconds of CPU of processes with all their threads, from the scheduler's
# own count where the kernel has it: nanoseconds, instead of 1/100 s.

sub cpu {
    my (@pids) = @_;

    my $sum = 0;

    for my $pid (@pids) {
        my $found;

        for my $task (glob "/proc/$pid/task/[0-9]*") {
            if (slurp("$task/schedstat") =~ /^(\d+) /) {
                $sum += $1 / 1000;
                $found = 1;
            }
        }

        if (!$found && slurp("/proc/$pid/stat") =~ /^\d+ \(.*\) (.*)/s) {
            my @field = split ' ', $1;
            $sum += ($field[11] + $field[12]) * 1e6 / $HZ;
            $found = 1;
        }

        die "process $pid has ended by itself\n" unless $found;
    }

    return $sum;
}


# The time of all CPUs so far, microseconds: busy, all, and what of it this
# process and the clients that it has awaited have used.

sub machine {
    my ($first) = split /\n/, slurp('/proc/stat');
    my (undef, @tick) = split ' ', $first;
    my %time = (own => 0);

    # user nice system idle iowait irq softirq steal; guest is part of user
    $time{busy} += ($tick[$_] // 0) * 1e6 / $HZ for 0, 1, 2, 5, 6, 7;
    $time{all} = $time{busy} + ($tick[3] + $tick[4]) * 1e6 / $HZ;
    $time{own} += $_ * 1e6 for times;

    return \%time;
}


sub others {
    my ($before, $after, $servers) = @_;

    my %spent = map { $_ => $after->{$_} - $before->{$_} } keys %$after;
    my $share = ($spent{busy} - $spent{own} - $servers) / ($spent{all} || 1);

    return $share > 0 ? $share : 0;
}


sub busy {
    my ($seconds) = @_;

    my $before = machine();
    Time::HiRes::sleep($seconds);
    my $after = machine();

    return ($after->{busy} - $before->{busy})
           / (($after->{all} - $before->{all}) || 1);
}


# Until the processes rest: less than 2 ms of CPU in 100 ms, or 3 s have passed.

sub settle {
    my (@pids) = @_;

    my $last = cpu(@pids);

    for (1 .. 30) {
        Time::HiRes::sleep(0.1);

        my $now = cpu(@pids);
        return if $now - $last < 2000;
        $last = $now;
    }
}


# Calls by command.  Commands that a script makes are counted, too.

sub commands {
    my ($redis) = @_;

    my $info = $redis->info('commandstats');
    my %calls;

    for my $name (keys %$info) {
        my ($command) = $name =~ /^cmdstat_(\w+)$/ or next;

        ($calls{$command}) = $info->{$name} =~ /^calls=(\d+)/;
    }

    return \%calls;
}


# Scripts; where there are none, all commands that do something.

sub calls {
    my ($before, $after) = @_;

    my %made = map { $_ => $after->{$_} - ($before->{$_} // 0) } keys %$after;
    my ($scripts, $all) = (0, 0);

    for my $name (keys %made) {
        if ($name =~ /^(?:eval|evalsha|fcall)(?:_ro)?$/) {
            $scripts += $made{$name};

        } elsif ($name !~ /^(?:info|ping|auth|hello|select|command|time)$/) {
            $all += $made{$name};
        }
    }

    return $scripts || $all;
}


# Requests that were decided without an answer of Redis.

sub degraded {
    my ($nginx) = @_;

    my $text = RateLimit::Load::get($nginx->port, '/metrics')->{body} // '';
    my $sum = 0;

    $sum += $1
        while $text =~ /^nginx_ratelimit_fallback_decisions_total\S* (\d+)/mg;

    return $sum;
}


# Which statuses a case answers with, as wrk does not tell 429 from 503.

sub sample {
    my ($nginx, $path, $n) = @_;

    my $result = RateLimit::Load::run(
        port => $nginx->port, connections => 4, requests => $n,
        path => sub { "$path?k=" . sprintf '%06d', $_[0] });

    my %status = %{ $result->statuses };
    $status{error} = $result->errors if $result->errors;

    return \%status;
}


# The very call that the module makes for one request, taken from MONITOR.

sub script_call {
    my ($nginx, $redis, $path) = @_;

    my $monitor = RateLimit::Redis::Client->connect($redis->target);

    $monitor->call('MONITOR');

    my $answer = RateLimit::Load::get($nginx->port, "$path?k=000000");

    for (1 .. 100) {
        my $line = $monitor->_reply;

        next unless $line =~ /^[\d.]+ \[\d+ (?!lua)[^\]]*\] ("evalsha" .*)/i;

        my $list = $1;
        my %plain = (n => "\n", r => "\r", t => "\t", a => "\a", b => "\b");
        my @call;

        while ($list =~ /"((?:[^"\\]|\\.)*)"/g) {
            my $word = $1;
            $word =~ s/\\(?:x([0-9a-f]{2})|(.))/
                       defined $1 ? chr hex $1 : $plain{$2} \/\/ $2/gei;
            push @call, $word;
        }

        return @call;
    }

    die "a request to $path made no call\n";
}


# How long that call takes redis-benchmark, microseconds.

sub round_trip {
    my ($redis, $n, @call) = @_;

    my $output = run(['redis-benchmark', '-s', $redis->socket, '-c', 1,
                      '-n', $n, '--csv', @call], 60);

    # rps, then milliseconds: average, min, p50, p95, p99, max
    my ($rps, undef, undef, $p50) =
        $output =~ /"([\d.]+)","([\d.]+)","([\d.]+)","([\d.]+)"
                    (?:,"[\d.]+"){3}\s*\z/x
        or die "redis-benchmark said:\n$output\n";

    return { p50 => $p50 * 1000, mean => 1e6 / $rps };
}


# The output of a program; it never outlives us.

sub run {
    my ($command, $timeout) = @_;

    $dir //= temp_dir('bench');

    my $file = "$dir/output";

    unlink $file;

    $child = spawn($command, out => $file);

    my $status = reap($child, $timeout);

    if (!defined $status) {
        kill 'KILL', $child;
        reap($child, 5);
        undef $child;
        die "$command->[0] did not end in $timeout s\n";
    }

    undef $child;

    my $output = slurp($file);

    die "$command->[0] failed:\n$output\n" if $status != 0;

    return $output;
}


END {
    if ($$ == $owner) {
        local ($?, $!);

        if ($child) {
            kill 'KILL', $child;
            reap($child, 5);
        }

        if (defined $dir) {
            unlink "$dir/output";
            rmdir $dir;
        }
    }
}


1;
