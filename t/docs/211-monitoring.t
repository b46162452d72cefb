# docs/monitoring.md: the metrics are those that nginx reports, the log lines are
# those of the sources, and the lines of the access log come about as they say.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs 'docs/monitoring.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(find_program slurp wait_until);

my %flat = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;


# ---- metrics

subtest 'the metrics are those that are listed' => sub {
    my $redis = RateLimit::Redis->start;
    my $text = http_of(block_of('Metrics'));

    my $nginx = RateLimit::Nginx->start(conf => "$patient$text" . <<"EOC");
ratelimit_overrides on;
server {
    listen 127.0.0.1:%%PORT2%%;
    location /  { ratelimit client; empty_gif; }
    location /a { ratelimit client; ratelimit_dry_run on; ratelimit_advise on; }
    location /r { ratelimit client; ratelimit_shards ${\ $redis->addr}; empty_gif; }
}
EOC

    # the sessions

    RateLimit::Load::get($nginx->port(2), '/') for 1 .. 3;

    for my $name ('Metrics as JSON', 'No metrics') {
        RateLimit::Transcript::check($name, $_, '127.0.0.1:8082' =>
                                     '127.0.0.1:' . $nginx->port)
            for steps_of($name);
    }

    # the tables

    RateLimit::Load::get($nginx->port(2), '/r');

    my $body = $nginx->get('/metrics')->{body};
    my %type = $body =~ /^# TYPE (\w+) (\w+)$/mg;
    my %labels;

    while ($body =~ /^(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? [\d.]+$/mg) {
        my ($name, $labels) = ($1, $2 // '');

        $labels{$name}{$_} = 1 for grep { $_ ne 'le' } $labels =~ /(\w+)="/g;
    }

    my @rows = grep { $_->[0] =~ /^`nginx_/ } table_of($section{Metrics});

    is_deeply [sort map { code_in($_->[0]) } @rows], [sort keys %type],
              'each metric has a row, each row is a metric';

    for (@rows) {
        my ($name) = code_in($_->[0]);

        is $_->[1], $type{$name}, "$name: type";
        is_deeply [sort +code_in($_->[2])], [sort keys %{ $labels{$name} }],
                  "$name: labels";
    }

    # values of labels

    my ($decisions) = $flat{Decisions} =~ /A `decision` is one of (.*?)\./;

    is_deeply [code_in($decisions)], [strings('ngx_rl_decision_names')],
              'decisions';

    my ($roles) = map { $_->[3] =~ /its role: (.*)/ }
                  grep { $_->[0] =~ /shard_node/ } @rows;
    my @events = map { code_in($_->[0]) }
                 grep { @$_ == 3 && $_->[0] =~ /^`/ }
                 table_of($section{Topology});

    is_deeply [code_in($roles)], [strings('ngx_rl_role_names')], 'roles';
    is_deeply \@events, [strings('ngx_rl_event_names')], 'events';

    my %held = map { $_ => 1 } $body =~ /evictions_total\{held="(\w+)"/g;

    is_deeply [sort map { code_in($_->[0]) }
               grep { @$_ == 3 && $_->[0] =~ /^`\w+`$/ && $_->[0] !~ /held/ }
               table_of($section{'Memory of the machine'})],
              [sort keys %held], 'evictions';

    my ($format) = $section{Metrics} =~ /text format (\S+)\./;

    like source('exposition.c'), qr/version=\Q$format\E;/, 'the format';

    # statuses of a location that does not show them

    my $status = sub {
        return RateLimit::Load::get($nginx->port, @_)->{status};
    };

    is $status->('/metric'), 404, 'another path';

    my $post = RateLimit::Load::connection($nginx->port);

    $post->write("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    is $post->response->{status}, 405, 'POST';

    my $denied = `curl -s -o /dev/null -w '%{http_code}' --interface 127.0.0.2 \\
                       http://127.0.0.1:${\ $nginx->port}/metrics`;

    is $denied, 403, 'an address that is not allowed';

    ok $section{'No metrics'} =~ /^\| $_\b/m, "status $_ has a row"
        for 200, 403, 404, 405;

    $nginx->finish;
};


# What they find is tested with a real Prometheus for those of the dashboard;
# here they have to parse, and to name metrics and values that exist.

subtest 'queries name what exists' => sub {
    my %metric = map { $_ => 1 } @metrics;
    my %value = (decision => { map { $_ => 1 } strings('ngx_rl_decision_names') },
                 source   => { map { $_ => 1 } strings('ngx_rl_source_names') },
                 le       => { map { $_ => 1 }
                               source('advice.c') =~ /\b(\d+)(?=[,\s])/g });
    my @queries = map { code_in($_->[1]) }
                  grep { $_->[0] ne 'question' }
                  table_of($section{'Useful queries'});
    my $n = 0;
    my $rules = "groups: [{name: g, rules: [\n"
                . join(",\n", map { "{record: 'a:b" . $n++ . "', expr: '$_'}" }
                              @queries)
                . "]}]\n";

    cmp_ok scalar @queries, '>=', 6, 'there are queries';

    for my $query (@queries) {
        ok $metric{ $_ =~ s/_(?:bucket|count)$//r }, $_ for $query =~ /(nginx_\w+)/g;

        while ($query =~ /(\w+)(?:=~?|!=)"([^"]+)"/g) {
            my ($label, $values) = ($1, $2);
            ok $value{$label}{$_}, "$label $_" for split /\|/, $values;
        }
    }

    SKIP: {
        skip 'no promtool', 1 if !find_program('promtool');

        my $file = "/tmp/queries.$$.yml";
        open my $out, '>', $file or die "$file: $!\n";
        print $out $rules;
        close $out;
        my $said = `promtool check rules $file 2>&1`;
        is $?, 0, 'promtool reads them' or diag $said;
        unlink $file;
    }
};


# ---- access log

subtest 'the access log shows what is said' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $format = block_of('Access log');
    my $nginx = RateLimit::Nginx->start(workers => 1,
        conf => <<"EOC");
$patient
$format
ratelimit_shards $addr;
ratelimit_limit  client key=\$ratelimit_client_net capacity=1 rate=1r/d;
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen 127.0.0.1:%%PORT%%;
    access_log %%DIR%%/limits.log limits;
    location /api/ { ratelimit client; empty_gif; }
    location /free { ratelimit client; ratelimit_preview on; empty_gif; }
}
EOC

    my $get = sub { $nginx->get($_[1] // '/api/', 'X-Real-IP' => $_[0]) };
    my $file = $nginx->dir . '/limits.log';
    my @lines = split /\n/, block_of('Access log', 'text');

    # connected, which a preview of another client shows

    ok wait_until(sub {
        !$get->('203.0.113.9', '/free')->{headers}{'x-ratelimit-degraded'}
    }), 'Redis decides';

    $get->('203.0.113.7') for 1 .. 2;
    $redis->stop;

    # the latency is 0 where nothing was sent

    ok wait_until(sub {
        $get->('203.0.113.9', '/free');
        $nginx->log_like(qr/is unavailable/)
    }, 20), 'the breaker is open';
    $get->('203.0.113.8');

    my $real;

    for my $line (@lines) {
        my $regex = quotemeta($line =~ s/10\.0\.0\.1:6379/$addr/r)
                    =~ s/0\\\.000(?!000)\d+/\\d\\.\\d{6}/r;

        ok wait_until(sub { ($real = slurp($file)) =~ /^$regex$/m }), $line
            or diag $real;
    }

    # one by one, who decided

    my @sources = map { (split ' ', $_)[8] } grep { /api/ } split /\n/, $real;

    is_deeply \@sources, [qw(redis denied local)], 'sources, in order';
    is_deeply [sort map { code_in($_->[0]) } grep { $_->[0] =~ /^`\w+`$/ }
               table_of($section{'Access log'} =~ s/.*?who decided \|//sr)],
              [sort grep { $_ ne 'none' } strings('ngx_rl_source_names')],
              'each source has a row';

    $nginx->finish;
};


# ---- error log

subtest 'each log line is one of the sources' => sub {
    my @patterns = log_patterns();
    my %explained;

    cmp_ok scalar @patterns, '>=', 60, 'there are calls that log';

    for my $pattern (@patterns) {
        my @match = grep { $_ =~ $pattern->{regex} } @log_lines;

        ok scalar @match, $pattern->{name};
        $explained{$_} = 1 for @match;
    }

    is_deeply [grep { !$explained{$_} } @log_lines], [],
              'and none that the code does not write';
};


subtest 'an outage logs the lines that are shown' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx;

    my $get = sub {
        return $nginx->get('/api/', 'X-Real-IP' => '203.0.113.7')->{headers};
    };

    my $degraded = sub { $get->()->{'x-ratelimit-degraded'} };

    my $start = sub {
        return RateLimit::Nginx->start(workers => 1,
            conf => "$_[0]\n" . <<"EOC");
ratelimit_shards $addr;
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen      127.0.0.1:%%PORT%%;
    server_name example.com;
    location /api/ { ratelimit_rate 1r/d; ratelimit_capacity 100; empty_gif; }
}
EOC
    };

    my $logged = sub {
        my ($what) = @_;

        my ($line) = grep { /^\[\w+\] $what/ } @log_lines;

        ok $line, "a line: $what" or return;

        my ($level, $text) = $line =~ /^(\[\w+\]) (.*)/;

        $text =~ s/\Q10.0.0.1:6379\E/$addr/g;
        $text = quotemeta($text) =~ s/(after\\ )\d+/$1\\d+/r;

        ok wait_until(sub {
            grep { /\Q$level\E/ && /$text(?:,|$)/ }
                 split /\n/, $nginx->error_log
        }), $line;
    };

    # unavailable, and available again

    $nginx = $start->($patient);

    ok wait_until(sub { $redis->cmd('FLUSHALL'); !$degraded->() }), 'passed';
    $logged->('ratelimit PASSED');

    $redis->stop;
    ok wait_until($degraded), 'Redis is unavailable';
    $logged->('connect\(\) to');
    ok wait_until(sub { $get->(); $nginx->log_like(qr/ is unavailable/) }, 15),
       'the breaker opens after five attempts';

    $redis->start;
    ok wait_until(sub { !$degraded->() }, 15), 'it is available again';
    $logged->('ratelimit: redis \S+ is unavailable');
    $logged->('ratelimit: redis \S+ is available again');

    $nginx->finish;

    # it runs, and does not answer

    $nginx = $start->('ratelimit_redis_connect_timeout 20s;');

    ok wait_until(sub { !$degraded->() }), 'passed';

    $redis->pause;
    is $get->()->{'x-ratelimit-degraded-reason'}, 'timeout', 'no answer';

    $logged->('no (?:answer|reply) from redis');
    $logged->('ratelimit DEGRADED');
    $logged->('redis (?:does not answer any more|stopped answering)');
    $redis->resume;

    $nginx->finish;
};


subtest 'the line of an outage names the policy' => sub {
    my @rows = grep { $_->[0] =~ /^`/ } table_of($section{'Log lines of Redis'});

    is scalar @rows, 4, 'there are four';
    ok index($all =~ s/\\"/"/gr =~ s/"\s*\n\s*"//gr, $_) >= 0, $_
        for map { (code_in($_->[0]))[0] } @rows;
};


subtest 'numbers are those of the sources' => sub {
    for (['Log lines of decisions', LOG_KEY => 'first %d bytes'],
         ['Error log', RECORD_CHANGES => 'up to ten a minute', 10],
         ['Error log', THROTTLE_MINUTE => 'at most once a minute', 60])
    {
        my ($name, $number, $format, $value) = @$_;

        is define($number), $value, $number if defined $value;

        my $words = $format =~ s/%d/define($number)/er;
        ok index($flat{$name}, $words) >= 0, "$name: $words";
    }

    like $flat{'Error log'}, qr/default level `error`/, 'the level';
    is $directive{ratelimit_log_level}{default}, 'error', 'of rejections';
};


done_testing();
