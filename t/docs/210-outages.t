# docs/outages.md: the policies, the breaker, and each fault with what clients,
# the log and the metrics show of it.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Docs 'docs/outages.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(slurp wait_until);

my %flat = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

# fault, what clients see, log, metric, cure
my @faults = grep { @$_ == 5 && $_->[0] ne 'fault' } table_of($section{Faults});


subtest 'failures have the names and reasons of the sources' => sub {
    my @rows = grep { $_->[0] =~ /^`/ } table_of($section{'Classes of failure'});
    my @failures = grep { $_ ne 'ok' } strings('ngx_rl_failure_names');

    is_deeply [sort map { code_in($_->[0]) } @rows], [sort @failures],
              'each class has a row';

    my %told = map { $_ => 1 } map { code_in($_->[2]) } @rows;

    is_deeply [sort keys %told], [sort +strings('ngx_rl_reason_names')],
              'the reasons';

    # the reasons one by one: all are storage_unavailable, except these

    my ($code) = source('failure.c') =~ /\nngx_rl_failure_reason\((.*?)\n\}/s;
    my %reason = (timeout => 'timeout', circuit_open => 'circuit_open',
                  config => 'invalid_limit');

    is scalar(() = $code =~ /case NGX_RL_/g), scalar keys %reason,
       'how many are exceptions';
    is +(code_in($_->[2]))[0],
       $reason{ (code_in($_->[0]))[0] } // 'storage_unavailable', $_->[0]
        for @rows;

    ok length $_->[3], "$_->[0]: what to look at" for @rows;
};


subtest 'the breaker has the states and numbers of the sources' => sub {
    my ($code) = source('failure.c') =~ /\nngx_rl_failure_breaks\(
                                          (.*?)\n\}/sx;
    my @silent = map { lc } grep { !/^(?:OK|CIRCUIT)$/ }
                 $code =~ /case NGX_RL_(\w+):/g;
    my ($list) = $flat{'The circuit breaker'} =~ /classes do not count: ([^.]+)\./;

    is_deeply [sort +code_in($list)], [sort @silent], 'classes that do not count';

    my @states = map { code_in($_->[0]) } grep { $_->[0] =~ /^`/ }
                 table_of($section{'The circuit breaker'});

    is_deeply \@states, [strings('ngx_rl_breaker_names')], 'states';

    my ($failures, $window) = breaker_default() =~ /failures=(\d+) window=(\d+)s/;

    like $section{'The circuit breaker'},
         qr/\b$failures failures within $window s\b/, 'numbers';
};


subtest 'numbers are those of the sources' => sub {
    for (['How nginx finds Redis again', PIPELINE_PENDINGS => '%d calls'],
         ['How nginx finds Redis again', PIPELINE_STALL => '%d ms after'],
         ['How nginx finds Redis again', BACKOFF_MIN => 'a pause of %d ms'],
         ['Faults', PIPELINE_PENDINGS => 'above %d'])
    {
        my ($name, $number, $format) = @$_;
        my $words = $format =~ s/%d/define($number)/er;

        ok index($flat{$name}, $words) >= 0, "$name: $words";
    }

    is define('CONNECTION_STABLE'), 1000, 'a connection is stable after a second';
    is define('THROTTLE_MINUTE'), 60, 'a line a minute';
    is $directive{ratelimit_redis_timeout}{default}, '50ms', 'the timeout';
    like $flat{'In short'}, qr/, 50 ms by default/, 'and on the page';
    is $directive{ratelimit_on_error}{default}, 'local', 'the policy';
    is_deeply [sort map { (code_in($_->[0]))[0] } grep { $_->[0] =~ /^`/ }
               table_of($section{'What clients see'})],
              [sort split / \| /, $directive{ratelimit_on_error}{words}],
              'all policies';
};


log_ok(@log_lines);


# ---- the session at the beginning, and the log that is shown with it

subtest 'first checks find a Redis that is down' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx = RateLimit::Nginx->start(
        workers => 1, log => 'error',
        conf => "${patient}ratelimit_shards $addr;\n",
        server => <<'EOC');
location /        { ratelimit_rate 1r/d; ratelimit_capacity 100000; empty_gif; }
location /metrics { ratelimit_metrics; }
EOC

    my $degraded = sub { $nginx->get('/')->{headers}{'x-ratelimit-degraded'} };

    my $logged = sub {
        my ($text) = $_[0] =~ /^\[error\] (.*)/;

        $text =~ s/10\.0\.0\.1:6379/$addr/g;
        $text = quotemeta($text) =~ s/(after\\ )\d+/$1\\d+/r;

        ok wait_until(sub { $nginx->log_like(qr/\[error\].*? $text/) }), $_[0];
    };

    ok wait_until(sub { !$degraded->() }), 'Redis decides';
    $redis->stop;
    ok wait_until(sub {
        $degraded->();
        $nginx->get('/metrics')->{body} =~ /state="circuit_open"\} 1$/m;
    }, 20), 'the breaker opens';

    my $port = $redis->port;
    my $log = $nginx->dir . '/logs/error.log';

    RateLimit::Transcript::check($_->{command}, $_,
                                 '127.0.0.1:8082' => '127.0.0.1:' . $nginx->port,
                                 '/var/log/nginx/error.log' => $log,
                                 '10.0.0.1 -p 6379' => "127.0.0.1 -p $port",
                                 '10.0.0.1:6379' => $addr)
        for steps_of('First checks');

    my @lines = @log_lines[grep { $log_lines[$_] !~ /still unavailable/ }
                           0 .. $#log_lines];

    $logged->($_) for @lines[0, 1];
    $redis->start;
    ok wait_until(sub { !$degraded->() }, 20), 'it is available again';
    $logged->($lines[2]);

    $nginx->finish;
};


subtest 'clients see what the policies say' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('What clients see', [$redis], more =>
        'add_header X-Status "$ratelimit_status $ratelimit_source" always;');

    ok wait_until(sub {
        !$nginx->get('/search')->{headers}{'x-ratelimit-degraded'}
    }), 'Redis decides';
    is $nginx->get('/api/')->{headers}{'x-ratelimit-limit'}, 100, 'all of it';

    $redis->stop;

    RateLimit::Transcript::check($_->{command}, $_,
                                 '127.0.0.1:8080' => '127.0.0.1:' . $nginx->port)
        for steps_of('What clients see');

    my %row = map { (code_in($_->[0]))[0] => $_ }
              grep { @$_ == 4 && $_->[0] =~ /^`/ }
              table_of($section{'What clients see'});

    for (['/api/', 'local'], ['/login', 'closed'], ['/search', 'open']) {
        my ($path, $policy) = @$_;
        my ($status, $source) = split / /,
                                $nginx->get($path)->{headers}{'x-status'};

        ok scalar(grep { $_ eq $status } code_in($row{$policy}[2])),
           "$policy: $status";
        is_deeply [code_in($row{$policy}[3])], [$source], "$policy: $source";
    }

    # what is left of the local share

    my ($h, $r);

    for (1 .. 40) {
        $r = $nginx->get('/api/');
        last if $r->{status} != 200;
    }

    is $r->{status}, 429, 'the local share is used up';
    is $r->{headers}{'x-status'}, 'REJECTED local', 'and rejects';
    is $r->{headers}{'x-ratelimit-degraded'}, 'true', 'which is degraded';

    $nginx->finish;
};


# What Redis has said and given holds for its time.

subtest 'denials and leases go on without Redis' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n"
                  . "ratelimit_deny_cache 60s;\n"
                  . "add_header X-Source \$ratelimit_source always;\n",
        server => <<'EOC');
location /empty { ratelimit_rate 1r/d; }
location /lease { ratelimit_rate 9r/d; ratelimit_lease 5 ttl=60s; }
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };

    $get->('/empty');
    $get->('/lease') for 1 .. 2;
    $redis->kill9;

    for (['/empty', 'denied'], ['/lease', 'lease']) {
        my ($path, $source) = @$_;
        my $h = $get->($path);

        is $h->{'x-source'}, $source, $path;
        is $h->{'x-ratelimit-degraded'}, undef, 'is not degraded';
        like $section{'What continues without Redis'}, qr/is `$source`/,
             'and on the page';
    }

    is $get->('/lease')->{'x-source'}, 'local', 'all else is local';

    $nginx->finish;
};


# ---- faults

# Each text in the log column is the beginning of a line that the code writes at
# that level, each metric and each label is one of the code.

subtest 'faults have the names that are listed' => sub {
    my %family = map { s/^nginx_ratelimit_//r => 1 } @metrics;
    my %label = (class => { map { $_ => 1 } strings('ngx_rl_failure_names') },
                 to    => { map { $_ => 1 } strings('ngx_rl_breaker_names') },
                 event => { map { $_ => 1 } strings('ngx_rl_event_names') });
    my %reason = map { $_ => 1 } strings('ngx_rl_reason_names');

    cmp_ok scalar @faults, '>=', 39, 'there are faults';

    my @starts = log_starts();

    for my $row (@faults) {
        my ($fault, $clients, $log, $metrics, $cure) = @$row;

        for my $text (code_in($log)) {
            my $line = $text =~ s/SHARD/10.0.0.1:6379/r;

            $line = "[error] $line" if $line !~ /^\[/;
            ok scalar(grep { $line =~ $_ } @starts), "$fault: $text";
        }

        for my $text (code_in($clients)) {
            next if $text =~ /^(?:ratelimit_|CLUSTERDOWN)/;
            ok $reason{$text}, "$fault: $text";
        }

        for my $text (code_in($metrics)) {
            my ($name, $key, $value) = $text =~ /^(\w*)(?:\{(\w+)="(\w+)"\})?$/;

            ok $name eq '' || $family{$name}, "$fault: $text";
            ok $label{$key}{$value}, "$fault: $key $value" if defined $key;
        }

        ok length $cure, "$fault: a cure";
    }

    # a class that the counter knows has a fault, or a row of its own only

    my %shown = map { $_ => 1 } map { /\{class="(\w+)"\}/g } map { $_->[3] } @faults;

    is_deeply [sort grep { !$shown{$_} } strings('ngx_rl_failure_names')],
              [sort qw(ok noscript masterdown misconf wrongtype error
                       circuit_open config)], 'classes without a fault';
};


# Those faults that a command makes, and what the table says of them.  The
# others have tests of their own.

subtest 'faults do what is listed' => sub {
    my %row = map { $_->[0] => $_ } @faults;
    my ($redis, $nginx);

    my $get = sub {
        my ($path) = @_;
        return $nginx->get($path // '/t?k=a');
    };

    my $metrics = sub {
        return JSON::PP::decode_json($get->('/metrics?format=json')->{body});
    };

    # the sum of a metric, as the table writes it

    my $sum = sub {
        my ($text) = @_;

        my ($name, $key, $value) = $text =~ /^(\w+)(?:\{(\w+)="(\w+)"\})?$/;
        my $all = $metrics->();
        my $sum = 0;

        for (@{ $all->{"nginx_ratelimit_$name"}
                || $all->{"nginx_ratelimit_${name}_count"} })
        {
            next if defined $key && $_->{$key} ne $value;
            next if $name eq 'breaker_state' && $_->{state} eq 'distributed';
            $sum += $_->{value};
        }

        return $sum;
    };

    my $try = sub {
        my ($fault, %opt) = @_;

        my $what = $row{$fault};

        ok $what, $fault or return;

        $redis = RateLimit::Redis->start(config => $opt{config} || {});
        $nginx = RateLimit::Nginx->start(
            conf   => "ratelimit_shards ${\ $redis->addr};\n"
                      . "ratelimit_redis_connect_timeout 2s;\n"
                      . ($opt{conf} // "ratelimit_redis_timeout 2s;\n"),
            server => <<'EOC');
location /t       { ratelimit_key $arg_k; ratelimit_rate 1r/d;
                    ratelimit_capacity 100000; empty_gif; }
location /value   { ratelimit_rate $arg_r; empty_gif; }
location /metrics { ratelimit_metrics; }
EOC

        ok wait_until(sub {
            grep { $_->{value} == 2 }
                 @{ $metrics->()->{nginx_ratelimit_redis_connections} }
        }), "$fault: connected" unless $opt{apart};

        my $path = $opt{path} // '/t?k=a';
        my @metrics = map { /^\{/ ? () : $_ } code_in($what->[3]);
        my %before = map { $_ => $sum->($_) } @metrics;

        $opt{break}->($redis) if $opt{break};

        my %reasons = map { $_ => 1 } grep { !/^ratelimit_/ }
                      code_in($what->[1]);
        my %seen;

        # until the log has it, and each reason has been seen

        my @lines = map { s/SHARD/$redis->addr/er } code_in($what->[2]);

        ok wait_until(sub {
            my $response = $get->($path);
            my $h = $response->{headers};

            $seen{ $h->{'x-ratelimit-degraded-reason'} // 'none' } = 1;
            $seen{"status $response->{status}"} = 1
                if $response->{status} != 200;

            my $log = $nginx->error_log;
            my @missing = grep { index($log, $_) < 0 } @lines;

            return !(@missing && !($opt{any} && @missing < @lines));
        }, 15), "$fault: the log" or diag $nginx->error_log;

        $get->($path) for 1 .. 20;

        delete $seen{none} if %reasons;

        is_deeply [grep { $_ ne 'circuit_open' && !$reasons{$_} }
                   sort keys %seen], %reasons ? [] : ['none'],
                  "$fault: clients";

        for (@metrics) {
            ok wait_until(sub { $sum->($_) > $before{$_} }), "$fault: $_";
        }

        $opt{mend}->($redis) if $opt{mend};

        ok $nginx->stop, "$fault: stopped";
        $nginx->no_alerts;
        undef $nginx;
        undef $redis;
    };

    # while a call is under way

    $try->('Redis is killed', any => 1, break => sub {
        my ($server) = @_;
        my $client = RateLimit::Load::connection($nginx->port);

        $server->pause;
        $client->write("GET /t?k=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wait_until(sub { $sum->('redis_calls_in_flight') > 0 }, 1);
        $server->kill9;
        $client->close;
    });
    $try->('Redis hangs, or its process is stopped',
           break => sub { $_[0]->pause }, mend => sub { $_[0]->resume },
           conf => '', any => 1);
    $try->('the password is wrong or was changed', apart => 1,
           config => { requirepass => 'right' },
           conf => "ratelimit_redis_password wrong;\n");
    $try->('Redis requires a password, and nginx has none', apart => 1,
           config => { requirepass => 'right' });
    $try->('the user lacks a right', any => 1, break => sub {
        $_[0]->cmd('ACL', 'SETUSER', 'default', '-hset')
    });
    $try->('`SCRIPT FLUSH`', break => sub { $_[0]->cmd('SCRIPT', 'FLUSH') });
    $try->('`maxmemory` is reached, with `noeviction`',
           break => sub { $_[0]->cmd('CONFIG', 'SET', 'maxmemory', 1) });

    my $primary = RateLimit::Redis->start;

    $try->('the server is a replica', any => 1, break => sub {
        $_[0]->cmd('REPLICAOF', '127.0.0.1', $primary->port)
    });
    $try->('another script keeps Redis busy',
           config => { 'lua-time-limit' => 50 }, conf => '',
           break => sub {
               my $client = RateLimit::Redis::Client->connect($_[0]->target);
               syswrite $client->{socket}, "EVAL 'while true do end' 0\r\n";
           },
           mend => sub { $_[0]->cmd('SCRIPT', 'KILL') });
    $try->('a variable has a wrong capacity, rate, window or refill interval',
           path => '/value?r=x');
};


# ---- alerts

subtest 'each alert has a row' => sub {
    my $rules = slurp('conf-examples/monitoring/alerts.yml');
    my %alert = map { $_ => 1 } $rules =~ /^ *- alert: RateLimit(\w+)$/mg;
    my %row = map { $_ => 1 } map { code_in($_->[0]) }
              grep { @$_ == 4 && $_->[0] =~ /^`/ } table_of($section{Alerts});

    is_deeply [sort keys %row], [sort keys %alert], 'the alerts';

    my %family = map { s/^nginx_ratelimit_//r => 1 } @metrics;

    for my $row (table_of($section{Alerts})) {
        ok $family{$_}, "$row->[0]: $_"
            for grep { /_(?:total|node|info)$/ } code_in($row->[2]);
    }
};


done_testing();
