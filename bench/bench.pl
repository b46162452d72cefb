#!/usr/bin/perl

# What limits cost: the module beside limit_req and beside no limiter, in one
# run on this machine.
#
#     make bench                       about five minutes
#     make bench QUICK=1               one minute: only what the targets need
#     make bench CASES='^exact|gcra'   what matches, and its limit_req
#     make bench ROUNDS=8 SECONDS=3    default 4 rounds of 1 s a case
#     make bench KEYS=1000000          instead of 100000
#     make bench SVG=docs/bench.svg JSON=x.json
#     make bench LIST=1                names of the cases
#     make bench CONTEST='mine=path/to/mine.conf other=other.conf'
#
# or this file, with --quick, --cases=..., --rounds=... and so on; the nginx is
# TEST_NGINX_BINARY or nginx, the module RATELIMIT_MODULE or the one in build/.
#
# How it measures.  Each round runs every case once, under wrk with 64
# connections, every other round in the opposite order, and before and after
# each case the limit_req that it is compared with, as a machine that others
# use as well is now faster and now slower; figures are medians over the rounds.
# What counts is the CPU time that nginx and Redis use for a
# request, since wrk, nginx and Redis share the machine: requests/s depend on
# who is scheduled when.  All cases get the same requests, /CASE?k=NNNNNN over
# all keys, from the same script (load.lua), and answer with the same content,
# an empty_gif.  A hot key is a constant in the configuration.  Rejections are
# not logged, nor is access.  See lib/Bench/Cases.pm for the cases,
# lib/Bench/Measure.pm for what a figure is.
#
# What it prints.  A line of progress, then the table, then the targets of
# "As fast as local memory" and whether they were reached.  build/bench has all
# of it in bench.json, and a picture in bench.svg.  A "!" in the table marks
# figures that say nothing: requests that were not answered as the case
# intends, or that were decided without Redis.
#
# A lone request.  wrk with one connection, "exact" minus "no limiter", against
# the time that redis-benchmark needs for the same EVALSHA on one connection.
# The call is the module's own, taken from MONITOR.
#
# Contestants.  NAME=FILE.conf adds a case.  The file goes into a location, and
# beside it may lie
#
#     FILE.http.conf     for the http block (zones, maps, upstreams)
#     FILE.main.conf     for the top (load_module)
#     FILE.redis.conf    for its redis-server (loadmodule, io-threads)
#
# %%REDIS_SOCKET%%, or %%REDIS_HOST%% and %%REDIS_PORT%%, stand for a Redis
# server of its own.  It is compared with limit_req on 100,000 keys if it uses
# $arg_k, else on a hot key, or with what a line "# kind: hot" (or keys, denied,
# three, three-keys) says.  A limit must let everything pass ("denied":
# nothing): 100000 a second with a burst of 1000000 for a hot key, 100 a second
# with a burst of 100000 for one of many.
#
# It stays on 127.0.0.1 and in temporary folders, and ends what it has started,
# also after Ctrl-C.

use strict;
use warnings;

use FindBin ();
use lib "$FindBin::RealBin/lib", "$FindBin::RealBin/../t/lib";

use File::Basename ();
use File::Path ();
use Getopt::Long ();
use JSON::PP ();
use POSIX ();
use Time::HiRes ();

use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(find_program slurp);

use Bench::Cases;
use Bench::Measure;
use Bench::Picture;
use Bench::Report;

my $ROOT = File::Basename::dirname($FindBin::RealBin);

my %opt = (
    keys => 100_000, connections => 64,
    json => "$ROOT/build/bench/bench.json",
    svg  => "$ROOT/build/bench/bench.svg",
);

Getopt::Long::GetOptions(
    \%opt, 'quick', 'list', 'cases=s', 'rounds=i', 'seconds=i', 'keys=i',
    'connections=i', 'json=s', 'svg=s', 'contest=s',
) && !@ARGV or die "usage: see the top of $0\n";

$opt{rounds}  ||= $opt{quick} ? 2 : 4;
$opt{seconds} ||= 1;

die "keys: 64 to 1000000\n" if $opt{keys} < 64 || $opt{keys} > 1_000_000;

$ENV{RATELIMIT_MODULE} //= "$ROOT/build/ngx_http_ratelimit_module.so";

my $terminal = -t STDERR;
my $working = '';


sub paint {
    my ($text, $style) = @_;

    my %code = (bold => 1, green => 32, red => 31);

    return $text unless -t STDOUT && $code{$style};
    return $text =~ s/^(.*?)(\n?)\z/\e[$code{$style}m$1\e[0m$2/sr;
}


# A line that is written over on a terminal.

sub progress {
    my ($text) = @_;

    if ($terminal) {
        print STDERR "\r\e[K$text";
        $working = $text;
    }
}


sub say_line {
    my ($text) = @_;

    print STDERR $terminal && length $working ? "\r\e[K" : '', "$text\n";
    $working = '';
}


sub minutes {
    my ($seconds) = @_;

    return sprintf '%d:%02d', $seconds / 60, $seconds % 60;
}


for my $program ('wrk', 'redis-server', 'redis-benchmark',
                 $ENV{TEST_NGINX_BINARY} || 'nginx')
{
    find_program($program) or die "$program is missing: tools/setup.sh bench\n";
}


# --- the cases ---------------------------------------------------------------

my @all = Bench::Cases::all($opt{keys});
my @contest;

for (split ' ', $opt{contest} // '') {
    my ($name, $file) = /^([^=]+)=(.+)$/
        or die "a contestant is NAME=FILE, not \"$_\"\n";

    die "there is a case \"$name\" already\n"
        if grep { $_->{id} eq $name } @all, @contest;

    push @contest, Bench::Cases::contestant($name, $file);
}

if ($opt{list}) {
    printf "%-24s %s, %d worker%s%s\n", $_->{id}, $_->{title}, $_->{workers},
           $_->{workers} > 1 ? 's' : '',
           $_->{transport} eq 'tcp' ? ', TCP' : '' for @all, @contest;
    printf "%-24s %s\n", 'lone', 'one connection, and redis-benchmark';
    exit 0;
}


# what was chosen, with the limit_req that it is compared with

my $lone = 1;
my @cases = (@all, @contest);

if (defined $opt{cases}) {
    my $regex = eval { qr/$opt{cases}/ } or die "CASES: $@";
    my %chosen = map { $_->{id} => 1 }
                 @contest, grep { $_->{id} =~ $regex } @all;

    $lone = 'lone' =~ $regex;

    for my $case (grep { $chosen{ $_->{id} } } @cases) {
        $chosen{ $_->{id} } = 1 for grep { defined }
                                         Bench::Cases::base_of($case, @all);
    }

    @cases = grep { $chosen{ $_->{id} } } @cases;

    die "no case matches \"$opt{cases}\"; LIST=1 shows them\n"
        unless @cases || $lone;

} elsif ($opt{quick}) {
    @cases = grep { $_->{goal} || $_->{family} eq 'contest' } @cases;
}


# --- the servers -------------------------------------------------------------

my %redis;

sub redis_of {
    my ($case) = @_;

    return undef unless defined $case->{store};

    if (!$redis{ $case->{store} }) {
        my $redis = RateLimit::Redis->start(config => $case->{redis} // {});

        $redis->cmd(@$_) for @{ $case->{commands} // [] };
        $redis{ $case->{store} } = $redis;
    }

    return $redis{ $case->{store} };
}


# What this build of the module does not know is left out.  A contestant that
# nginx refuses is a mistake.

my %absent;             # why, by family
my %asked;

sub known {
    my ($case) = @_;

    my $contest = $case->{family} eq 'contest';
    my $family = $contest ? $case->{id} : $case->{family};

    if (!$asked{$family}++) {
        redis_of($case);

        my ($code, $output) = RateLimit::Nginx->test_config(
            Bench::Cases::nginx_options([$case], \%redis));

        if ($code != 0) {
            my ($why) = $output =~ /((?:unknown\ directive
                                        |invalid\ value\ "gcra")\ .*)\ in/x;

            die "$case->{id}: $output\n" if $contest || !$why;

            $absent{$family} = $why;
        }
    }

    return !defined $absent{$family};
}

progress('starting nginx and Redis');

@cases = grep { known($_) } @cases;

my %by_id = map { $_->{id} => $_ } @all;
my @lone_cases = $lone ? @by_id{qw(none exact-hot)} : ();
my %nginx;

my (%seen, %served);

for my $case (grep { !$seen{ $_->{id} }++ } @cases, @lone_cases) {
    redis_of($case);
    push @{ $served{ $case->{server} } }, $case;
}

for my $name (sort keys %served) {
    $nginx{$name} = RateLimit::Nginx->start(
        Bench::Cases::nginx_options($served{$name}, \%redis));
}


# --- the jobs ----------------------------------------------------------------

# [seconds planned, name, code]

my @jobs;
my @lone_results;

sub run_case {
    my ($case, %more) = @_;

    my $result = Bench::Measure::load(
        nginx   => $nginx{ $case->{server} },
        redis   => redis_of($case),
        path    => "/$case->{id}",
        keys    => $opt{keys},
        offset  => $case->{offset} // 0,
        threads => $case->{workers},
        seconds => $opt{seconds},
        after   => $case->{after},
        connections => $opt{connections},
        %more,
    );

    $case->{offset} = ($case->{offset} // 0) + $result->{requests};

    return $result;
}


sub run_round {
    my ($case) = @_;

    my %more;

    # what changes with the load is measured for longer

    if ($case->{before}) {
        run_case($case, seconds => $case->{before}, after => 0);
        $more{seconds} = 2 if $opt{seconds} < 2;
    }

    push @{ $case->{results} }, run_case($case, %more);

    return $case->{results}[-1];
}


# Cases between two runs of what they are compared with: the base of a result
# is the mean of that before and that after it.

my ($base_before, $between);

sub run_base {
    my ($base) = @_;

    my $result = run_round($base);

    if ($between) {
        $between->{base} = {
            map { $_ => ($base_before->{$_} + $result->{$_}) / 2 }
                qw(nginx rps)
        };
    }

    $base_before = $result;
    undef $between;
}

sub run_beside {
    my ($case) = @_;

    $between = run_round($case);
}


# Does a case do what it says?  Its first requests, of which one may pass
# where all others are denied.

sub check_case {
    my ($case) = @_;

    my $statuses = Bench::Measure::sample($nginx{ $case->{server} },
                                          "/$case->{id}", 100);
    my $good = $statuses->{ $case->{expect} } // 0;

    return if $good >= ($case->{expect} == 200 ? 100 : 98);

    my $text = "$case->{id} answers with "
               . join(', ', map { "$_ ($statuses->{$_} times)" }
                            sort keys %$statuses)
               . ", not with $case->{expect}";

    die "$text\n" . $nginx{ $case->{server} }->error_log
        unless $case->{family} eq 'contest';

    say_line("! $text");
}


# Many keys get known to all caches before the first round.

sub warm_case {
    my ($case) = @_;

    check_case($case);
    run_case($case, seconds => 1)
        if $case->{kind} =~ /keys$/ && !$case->{before};
}


my @call;

sub run_lone {
    my ($none, $exact) = @lone_cases;
    my $redis = redis_of($exact);
    my %r;

    @call = Bench::Measure::script_call($nginx{1}, $redis, "/$exact->{id}")
        unless @call;

    for (['none', $none], ['exact', $exact]) {
        my ($name, $case) = @$_;
        my $result = run_case($case, seconds => 1, connections => 1,
                              after => 0);

        @r{ $name, "${name}_mean" } = @$result{qw(p50 mean)};
    }

    my $trip = Bench::Measure::round_trip($redis, 20_000, @call);

    @r{qw(evalsha evalsha_mean)} = @$trip{qw(p50 mean)};
    $r{ratio} = ($r{exact} - $r{none}) / $r{evalsha};

    push @lone_results, \%r;
}


for my $case (@cases) {
    push @jobs, [$case->{kind} =~ /keys$/ && !$case->{before}
                 ? 1.4 + $case->{after} : 0.1,
                 "warm-up: $case->{id}", sub { warm_case($case) }];
}

for my $round (1 .. $opt{rounds}) {
    my @order = $round % 2 ? @cases : reverse @cases;
    my (@bases, %beside);

    for my $case (@order) {
        my $base = Bench::Cases::base_of($case, @cases) // $case;

        push @bases, $base unless $beside{ $base->{id} };
        push @{ $beside{ $base->{id} } }, $case;
    }

    my $job = sub {
        my ($case, $code) = @_;

        push @jobs, [$case->{before} + $opt{seconds} + $case->{after} + 0.3,
                     "round $round of $opt{rounds}: $case->{id}",
                     sub { $code->($case) }];
    };

    for my $base (@bases) {
        $job->($base, \&run_base);

        for my $case (grep { $_ != $base } @{ $beside{ $base->{id} } }) {
            $job->($case, \&run_beside);
            $job->($base, \&run_base);
        }
    }

    push @jobs, [3.5, "round $round of $opt{rounds}: lone request",
                 \&run_lone] if $lone;
}


# --- the run -----------------------------------------------------------------

my $began = time;
my $planned = 0;
$planned += $_->[0] for @jobs;

say_line(sprintf '%d cases, %d x %d s, about %s minutes', scalar @cases,
                 $opt{rounds}, $opt{seconds}, minutes($planned));

my $busy = Bench::Measure::busy(0.5);

say_line(sprintf '! this machine is %d%% busy already: expect noise',
                 100 * $busy) if $busy > 0.1;

my ($done, $elapsed, $stage) = (0, 0, '');

for my $job (@jobs) {
    my ($seconds, $name, $code) = @$job;

    # as slow as so far
    my $pace = $done > 5 ? $elapsed / $done : 1;
    my $left = minutes(($planned - $done) * $pace);

    progress("$name, $left left");

    if (!$terminal && $name =~ /^(.*?):/ && $1 ne $stage) {
        $stage = $1;
        say_line("$stage, $left left");
    }

    my $start = Time::HiRes::time();

    $code->();

    $elapsed += Time::HiRes::time() - $start;
    $done += $seconds;
}

progress('');

for my $name (sort keys %nginx) {
    my @lines = split /\n/, $nginx{$name}->error_log;

    say_line('! nginx has logged: ' . join "\n  ",
             @lines > 5 ? (@lines[0 .. 4], '...') : @lines) if @lines;
}


# --- the report --------------------------------------------------------------

sub output_of {
    my (@command) = @_;

    return eval { Bench::Measure::run(\@command, 10) } // '';
}

my $nginx_v = output_of($ENV{TEST_NGINX_BINARY} || 'nginx', '-v');
my $redis_v = output_of('redis-server', '--version');
my ($cpu) = slurp('/proc/cpuinfo') =~ /^model name\s*:\s*(.*)$/m;
my $cpus = () = slurp('/proc/stat') =~ /^cpu\d+ /mg;

my $report = Bench::Report->new({
    date        => POSIX::strftime('%Y-%m-%dT%H:%M:%SZ', gmtime $began),
    nginx       => $nginx_v =~ m{nginx/(\S+)} ? "$1" : '?',
    redis       => $redis_v =~ /v=(\S+)/ ? "$1" : '?',
    cpu         => $cpu // '?',
    cpus        => $cpus,
    kernel      => (POSIX::uname())[2],
    busy_before => $busy,
    absent      => \%absent,
    call        => \@call,
    map { $_ => 0 + $opt{$_} } qw(rounds seconds connections keys),
}, \@cases, \@lone_results);

my $meta = $report->{meta};

print "\n", paint('CPU time of a request', 'bold'),
      ": $opt{connections} connections, medians over $opt{rounds} x "
      . "$opt{seconds} s,\nnginx $meta->{nginx}, Redis $meta->{redis}, "
      . "$cpus CPUs ($meta->{cpu})\n\n",
      $report->table(\&paint), $report->targets(\&paint);

my $notes = $report->notes;
print "\n$notes" if length $notes;

sub write_file {
    my ($file, $text) = @_;

    File::Path::make_path(File::Basename::dirname($file));

    open my $out, '>:raw', $file or die "$file: $!\n";
    print $out $text;
    close $out or die "$file: $!\n";
}

my $svg = Bench::Picture::svg($report);
utf8::encode($svg);

write_file($opt{svg}, $svg) if length $svg;
write_file($opt{json},
           JSON::PP->new->utf8->canonical->pretty->encode($report->data));

print "\n  written: ", join(', ', map { s{^\Q$ROOT\E/}{}r } $opt{json},
                           length $svg ? $opt{svg} : ()), "\n";
