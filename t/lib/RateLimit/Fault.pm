package RateLimit::Fault;

# Faults under load: an nginx with limits on Redis servers, clients that ask it
# all the time while the test does something bad, and what must hold for every
# fault.
#
#   my $fault = RateLimit::Fault->start(
#       redis   => 3,               # so many servers, or a list of
#                                   # RateLimit::Redis; default 1
#       shards  => 'host:port ...', # default: the addresses of these
#       timeout => 300,             # ratelimit_redis_timeout and
#       connect => 300,             # ..._connect_timeout, ms; default as shown
#       breaker => 'probe=1s',      # of ratelimit_breaker; default: unset
#       share   => '1/4',           # ratelimit_local_share; default as shown
#       http    => '...',           # more directives of http
#       server  => 'location /x {}',        # and of the server
#       workers => 2,               # and all else that RateLimit::Nginx takes
#   );
#
# "/?k=KEY&c=CAPACITY" is limited (0r/s, so nothing is ever refilled), "/free"
# is not, "/metrics" tells.
#
#   $fault->nginx;  $fault->redis;  $fault->redis(2);       # the third one
#   $fault->works;                  # true: all workers are connected to all
#   $fault->metric('redis_calls_total', shard => $addr);    # the sum of all
#                                   # that have these labels, now
#   $fault->state($shard);          # of the breaker; $shard: default the first
#   $fault->wait_state('circuit_open', 5, $shard);
#   $fault->ask($key, $capacity);   # one request, as in "requests" below
#   $fault->distributed($timeout, $n);  # true: Redis decides about each of so
#                                   # many new keys; default 20 s, 12 keys
#   $fault->wait_decisions($n, source => 'redis');  # true: so many more
#
#   my $load = $fault->during(sub { ... },
#       connections => 20, pause => 5,      # of RateLimit::Load; default shown
#       keys     => 100,            # requests take turns at them
#       capacity => 40,             # of each; or code: called with the key; the
#                                   # default tells keys apart, see "mixed_up"
#       path     => sub { ... });   # instead of both
#
# Runs the code while clients are at work in another process.
#
#   $load->requests;                # hashes: n, key, status, started and time
#                                   # (s, of the client), waited (s, of nginx),
#                                   # source, reason (''), limit, remaining,
#                                   # shard, pid
#   $load->requests(sub { $_->{source} eq 'redis' });       # some of them
#   $load->count(...);              # how many of them
#   $load->by('redis');             # how many were decided there
#   $load->degraded_since($time);   # how many that began later were not by Redis
#   $load->metric('redis_failures_total', class => 'closed');   # by how much it
#                                   # has grown meanwhile
#   $load->mixed_up;                # requests whose numbers are of another key,
#                                   # or of another request of the same key
#   $load->result;                  # errors, sent, ... of RateLimit::Load, as
#                                   # a hash
#
#   $fault->check($load, %except);  # a test: what holds for every fault
#   $fault->finish;                 # a test: nginx ends, nothing alarming
#
# What holds: every request got a complete answer, in time, passed or rejected;
# the workers are the same as before, with as many descriptors and not much more
# memory; nothing alarming and not much at all is in the log; the metrics say
# what the clients saw, and nothing is under way any more.  Exceptions:
#   errors  => 5,                   # so many requests without answer are fine
#   statuses => [500],              # and these, besides 200 and 429
#   workers => 0,                   # workers may be others; also leaves out
#                                   # their descriptors and memory
#   descriptors => 1,               # so many more, per worker: where there was
#                                   # no connection to Redis before
#   metrics => 0,                   # they may differ from what clients saw
#   alerts  => qr/signal 9/,        # lines of this kind are fine
#   lines   => 100,                 # in the log, at most; default as shown
#   memory  => 1024,                # kB, per worker; default as shown
#   wait    => 300,                 # ms that nginx may wait; default: timeout

use strict;
use warnings;

use List::Util qw(sum0);
use Test::More ();
use Time::HiRes qw(time);

use RateLimit::Load;
use RateLimit::Metrics;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(patience slurp wait_until);

# capacities of neighbour keys are so far apart
our $STEP = 400_000;

my $SLACK = 1;          # s, for the scheduling of a busy machine


sub start {
    my ($class, %opt) = @_;

    my $redis = delete $opt{redis} // 1;
    my @redis = ref $redis ? @$redis : RateLimit::Redis->start_many($redis);

    my $shards = delete $opt{shards} // join ' ', map { $_->addr } @redis;
    my $timeout = delete $opt{timeout} // 300;
    my $connect = delete $opt{connect} // 300;
    my $share = delete $opt{share} // '1/4';
    my $http = delete $opt{http} // '';
    my $server = delete $opt{server} // '';
    my $breaker = delete $opt{breaker};
    $breaker = defined $breaker ? "ratelimit_breaker $breaker;" : '';

    my $self = bless { redis => \@redis, timeout => $timeout }, $class;

    $self->{conf} = sub {
        my ($shards) = @_;

        return <<"EOC";
            ratelimit_shards                 $shards;
            ratelimit_redis_timeout          ${timeout}ms;
            ratelimit_redis_connect_timeout  ${connect}ms;
            ratelimit_local_share            $share;
            ratelimit_log_level              info;
            $breaker
            $http
EOC
    };

    $self->{nginx} = RateLimit::Nginx->start(
        log    => 'notice',
        %opt,
        conf   => $self->{conf}->($shards),
        server => <<"EOC",
            access_log off;

            location / {
                ratelimit_key       \$arg_k;
                ratelimit_capacity  \$arg_c;
                ratelimit_rate      0r/s;

                add_header X-Key    \$arg_k always;
                add_header X-Source \$ratelimit_source always;
                add_header X-Shard  \$ratelimit_shard always;
                add_header X-Waited \$request_time always;
                add_header X-Pid    \$pid always;

                empty_gif;
            }

            location /free    { empty_gif; }
            location /metrics { ratelimit_metrics; }

            $server
EOC
    );

    ($self->{shard}) = map { $_->{shard} }
                       @{ $self->metrics->{nginx_ratelimit_breaker_state} };

    return $self;
}


sub nginx { $_[0]{nginx} }


sub redis {
    my ($self, $n) = @_;

    return $self->{redis}[$n // 0];
}


# With other shards, or other directives of http behind them.

sub reload {
    my ($self, $shards, $more) = @_;

    return $self->{nginx}->reload(
        http => $self->{conf}->($shards) . ($more // ''));
}


# ---- what nginx says about itself

sub metrics { $_[0]{nginx}->metrics }


sub metric {
    my ($self, @which) = @_;

    return $self->{nginx}->metric(@which);
}


sub state {
    my ($self, $shard) = @_;

    $shard //= $self->{shard};

    my ($state) = grep { $_->{shard} eq $shard && $_->{value} }
                  @{ $self->metrics->{nginx_ratelimit_breaker_state} };

    return $state ? $state->{state} : undef;
}


sub wait_state {
    my ($self, $state, $timeout, $shard) = @_;

    return wait_until(sub { $self->state($shard) eq $state }, $timeout // 10);
}


# A worker without a connection makes one when it has something to send, at the
# latest; so requests are made until all have one.

sub works {
    my ($self, $timeout) = @_;

    my $n = 0;

    return wait_until(sub {
        $self->ask('works' . $n++, 1) for 1 .. 4;

        my $metrics = $self->metrics;
        my $sum = sub { RateLimit::Metrics::sum($metrics, @_) };
        my $shards = $sum->('breaker_state');

        return $sum->('breaker_state', state => 'distributed') == $shards
               && $sum->('redis_connections')
                  == $shards * $self->{nginx}->workers;
    }, $timeout // 10);
}


# ---- load

sub ask {
    my ($self, $key, $capacity) = @_;

    my $request = _request(RateLimit::Load::get($self->{nginx}->port,
                                                "/?k=$key&c=$capacity"));

    push @{ $self->{asked} }, $request;

    return $request;
}


sub distributed {
    my ($self, $timeout, $n) = @_;

    my $round = 0;

    return wait_until(sub {
        $round++;
        !grep { $self->ask("d$round-$_", 1)->{source} ne 'redis' }
              1 .. $n // 12
    }, $timeout // 20);
}


sub wait_decisions {
    my ($self, $n, @labels) = @_;

    my $from = $self->metric('decisions_total', @labels);

    return wait_until(sub {
        $self->metric('decisions_total', @labels) >= $from + $n
    }, 20);
}


sub _request {
    my ($response) = @_;

    my $h = $response->{headers};

    return {
        n         => $response->{n},
        started   => $response->{started},
        time      => $response->{time},
        status    => $response->{status},
        key       => $h->{'x-key'} // '',
        source    => $h->{'x-source'} // '',
        shard     => $h->{'x-shard'} // '',
        waited    => $h->{'x-waited'} // 0,
        pid       => $h->{'x-pid'} // '',
        limit     => $h->{'x-ratelimit-limit'} // '',
        remaining => $h->{'x-ratelimit-remaining'} // '',
        degraded  => $h->{'x-ratelimit-degraded'} // '',
        reason    => $h->{'x-ratelimit-degraded-reason'} // '',
    };
}


sub during {
    my ($self, $code, %opt) = @_;

    my $keys = delete $opt{keys} // 100;
    my $capacity = delete $opt{capacity} // \&apart;
    my @paths = map { my $c = ref $capacity ? $capacity->($_) : $capacity;
                      "/?k=$_&c=$c" } 0 .. $keys - 1;

    my %load = (
        port        => $self->{nginx}->port,
        connections => 20,
        pause       => 5,
        timeout     => 120,
        path        => sub { $paths[$_[0] % $keys] },
        %opt,
        keep        => \&_request,
    );

    my $before = $self->_look;

    $self->{asked} = [];

    my $task = RateLimit::Load::start(%load);
    my $ok = eval { $code->(); 1 };
    my $error = $@;
    my $result = $task->stop;

    die $error unless $ok;

    my $load = bless {
        requests => delete $result->{responses},
        asked    => $self->{asked},
        result   => $result,
        before   => $before,
        after    => $self->_look,
    }, 'RateLimit::Fault::Load';

    $self->{asked} = [];

    return $load;
}


sub apart {
    my ($key) = @_;

    return ($key + 1) * $STEP;
}


# All that must be again as it was, or has to be counted.

sub _look {
    my ($self) = @_;

    my $nginx = $self->{nginx};
    my @workers = $nginx->workers;

    return {
        metrics     => $self->metrics,
        lines       => $nginx->log_count(qr/./),
        workers     => [sort { $a <=> $b } @workers],
        descriptors => { map { $_ => _descriptors($_) } @workers },
        memory      => { map { $_ => _memory($_) } @workers },
    };
}


sub _descriptors {
    my ($pid) = @_;

    return scalar(() = glob "/proc/$pid/fd/*");
}


# kB that are the worker's own: the zone, which is shared, is not among them.

sub _memory {
    my ($pid) = @_;

    return slurp("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0;
}


# ---- tests

sub check {
    my ($self, $load, %opt) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return Test::More::subtest('as after every fault' => sub {
        $self->_check_answers($load, %opt);
        $self->_check_workers($load, %opt) if $opt{workers} // 1;
        $self->_check_log($load, %opt);
        $self->_check_metrics($load, %opt) if $opt{metrics} // 1;
    });
}


sub _check_answers {
    my ($self, $load, %opt) = @_;

    my $result = $load->{result};
    my @requests = $load->requests;
    my %statuses = map { $_ => 1 } 200, 429, @{ $opt{statuses} || [] };

    Test::More::cmp_ok(scalar @requests, '>', 100, 'there was some load');

    my $errors = sum0 values %{ $result->{errors} };

    if ($opt{errors}) {
        Test::More::cmp_ok($errors, '<=', $opt{errors},
                           'hardly a request is without answer');
    } else {
        Test::More::is_deeply($result->{errors}, {},
                              'every request got a complete answer');
    }

    Test::More::is(@requests + $errors, $result->{begun},
                   'as many answers as requests');

    my @others = grep { !$statuses{$_} } keys %{ $result->{statuses} };

    Test::More::is_deeply(\@others, [], 'each passed or was rejected');

    my @odd = grep { $_->{source} !~ /^(?:redis|local|open|closed)$/
                     || ($_->{source} eq 'redis') != ($_->{degraded} eq '')
                     || ($_->{source} eq 'redis') != ($_->{reason} eq '') }
              $load->requests(sub { $_->{status} == 200
                                    || $_->{status} == 429 });

    Test::More::is(scalar @odd, 0, 'each that Redis did not decide says so')
        or Test::More::diag(Test::More::explain($odd[0]));

    # A machine that holds the clients up holds nginx up as well.

    my $wait = ($opt{wait} // $self->{timeout}) / 1000
               + patience($SLACK) + 5 * $result->{held_up};

    Test::More::cmp_ok($result->{max_latency}, '<=', $wait,
                       'none waited for longer than the timeout');
}


sub _check_workers {
    my ($self, $load, %opt) = @_;

    my ($before, $after) = @$load{qw(before after)};

    if (!Test::More::is_deeply($after->{workers}, $before->{workers},
                               'the workers are the same'))
    {
        return;
    }

    for my $pid (@{ $before->{workers} }) {
        my $descriptors = $before->{descriptors}{$pid}
                          + ($opt{descriptors} // 0);

        wait_until(sub { _descriptors($pid) <= $descriptors }, 10);

        Test::More::cmp_ok(_descriptors($pid), '<=', $descriptors,
                           'a worker has no more descriptors than before');
    }

    SKIP: {
        Test::More::skip('what is freed stays in quarantine', 1)
            if $ENV{ASAN_OPTIONS} || $ENV{TEST_NGINX_USE_VALGRIND};

        for my $pid (@{ $before->{workers} }) {
            Test::More::cmp_ok(_memory($pid) - $before->{memory}{$pid},
                               '<=', $opt{memory} // 1024,
                               'a worker has hardly more memory (kB)');
        }
    }
}


sub _check_log {
    my ($self, $load, %opt) = @_;

    $self->{nginx}->no_alerts('nothing alarming in the log',
                              except => $opt{alerts});

    Test::More::cmp_ok($load->{after}{lines} - $load->{before}{lines}, '<=',
                       $opt{lines} // 100, 'not many lines in the log')
        or Test::More::diag($self->{nginx}->error_log);
}


sub _check_metrics {
    my ($self, $load, %opt) = @_;

    my (%seen, %told);

    for my $r ($load->requests, @{ $load->{asked} }) {
        my $decision = $r->{status} == 200 ? 'passed' : 'rejected';

        $seen{"$decision by $r->{source}"}++;
        $seen{"$r->{source} for $r->{reason}"}++ if length $r->{reason};
    }

    for my $sign ([1, 'after'], [-1, 'before']) {
        my $metrics = $load->{ $sign->[1] }{metrics};

        for (@{ $metrics->{nginx_ratelimit_decisions_total} }) {
            $told{"$_->{decision} by $_->{source}"}
                += $sign->[0] * $_->{value};
        }

        for (@{ $metrics->{nginx_ratelimit_fallback_decisions_total} }) {
            $told{"$_->{policy} for $_->{reason}"} += $sign->[0] * $_->{value};
        }
    }

    delete @told{ grep { $told{$_} == 0 } keys %told };

    Test::More::is_deeply(\%told, \%seen, 'metrics say what clients saw')
        or Test::More::diag(Test::More::explain(\%told, \%seen));

    Test::More::ok(wait_until(sub {
        $self->metric('redis_calls_in_flight') == 0
    }, 5), 'no call is under way any more');
}


sub finish {
    my ($self, %opt) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $self->{nginx}->finish(except => $opt{alerts});
}


package RateLimit::Fault::Load;

use strict;
use warnings;


sub requests {
    my ($self, $which) = @_;

    return @{ $self->{requests} } unless $which;
    return grep { $which->() } @{ $self->{requests} };
}


sub count {
    my ($self, @which) = @_;

    return scalar(() = $self->requests(@which));
}


sub by {
    my ($self, $source) = @_;

    return $self->count(sub { $_->{source} eq $source });
}


sub degraded_since {
    my ($self, $time) = @_;

    return $self->count(sub { $_->{started} > $time
                              && $_->{source} ne 'redis' });
}


sub result { $_[0]{result} }


sub metric {
    my ($self, @what) = @_;

    return RateLimit::Metrics::sum($self->{after}{metrics}, @what)
           - RateLimit::Metrics::sum($self->{before}{metrics}, @what);
}


# With the default capacities, nothing refilled and a cost of one, Redis gives
# each number once to each key, and no number to two keys.  Keys must not have
# been emptied in between.

sub mixed_up {
    my ($self) = @_;

    my %seen;

    return grep {
        my $full = ($_->{key} + 1) * $RateLimit::Fault::STEP;

        $_->{limit} != $full
        || $_->{remaining} >= $full
        || $_->{remaining} < $full - $RateLimit::Fault::STEP
        || $seen{"$_->{key} $_->{remaining}"}++
    } $self->requests(sub { $_->{source} eq 'redis' && $_->{status} == 200 });
}


1;
