# conf-examples/monitoring: what it asks for exists.  A real Prometheus scrapes
# an nginx that passes, rejects and has lost a shard; each expression of the
# dashboard and of the alerts is run there, and finds something.  That an alert
# fires when it should, and only then, is in alerts-test.yml, for promtool.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Path ();
use JSON::PP ();

use RateLimit::Docs ();
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(
    free_port keep_files reap slurp spawn temp_dir wait_until write_file
);

my $FOLDER = 'conf-examples/monitoring';

# alerts whose parts can't all have a result here, and an annotation
my %EMPTY = (
    RateLimitMetricsAbsent   => 'there are metrics',
    RateLimitRejectionsSurge => 'an hour ago there was nothing',
    RateLimitMastersDiffer   => 'there are no sentinels',
    RateLimitClusterChanged  => 'there is no cluster',
    RateLimitRedisMemory     => 'there is no redis_exporter',
    'Redis memory, A'        => 'there is no redis_exporter',
    'Keys evicted by Redis, A' => 'there is no redis_exporter',
    'annotation Failover'    => 'there are no sentinels',
);

my $dir = temp_dir('monitoring');
my $owner = $$;
my $prometheus;         # its pid
my $api;                # its port


END {
    if ($owner == $$) {
        local ($?, $!, $@);

        prometheus_stop();
        File::Path::remove_tree($dir) unless keep_files($dir);
    }
}


# ---- programs

# The exit code of promtool, and what it says.

sub promtool {
    my (@args) = @_;

    my $out = "$dir/promtool.out";

    unlink $out;

    my $pid = spawn(['promtool', @args], out => $out);
    my $status = reap($pid, 60);

    if (!defined $status) {
        kill 'KILL', $pid;
        reap($pid, 5);
        die "promtool @args did not end\n";
    }

    return ($status & 127 ? 128 + ($status & 127) : $status >> 8, slurp($out));
}


sub promtool_ok {
    my ($name, @args) = @_;

    my ($code, $output) = promtool(@args);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is($code, 0, $name) || diag $output;
}


# The files of the example, but in a hurry, and scraping this port.

sub prometheus_start {
    my ($target) = @_;

    my $config = slurp("$FOLDER/prometheus.yml");
    my $rules = slurp("$FOLDER/alerts.yml");

    $config =~ s/_interval: 15s$/_interval: 1s/mg == 2
        or die "two intervals expected\n";
    $config =~ s/127\.0\.0\.1:8082$/127.0.0.1:$target/m
        or die "no target\n";
    $rules =~ s/^( *for:) \d+[mh]$/$1 0s/mg;

    write_file("$dir/prometheus.yml", $config);
    write_file("$dir/alerts.yml", $rules);

    for my $try (1 .. 5) {
        $api = free_port();
        $prometheus = spawn(['prometheus', "--config.file=$dir/prometheus.yml",
                             "--storage.tsdb.path=$dir/data",
                             "--web.listen-address=127.0.0.1:$api",
                             '--log.level=warn'],
                            out => "$dir/prometheus.log");

        my $status;
        my $ready = wait_until(sub {
            $status = reap($prometheus, 0);
            return 1 if defined $status;
            return RateLimit::Load::get($api, '/-/ready')->{status} == 200;
        }, 30);

        return if $ready && !defined $status;

        undef $prometheus if defined $status;
        prometheus_stop();
        last if slurp("$dir/prometheus.log") !~ /address already in use/;
    }

    die "prometheus did not start:\n" . slurp("$dir/prometheus.log");
}


# True if it left by itself.

sub prometheus_stop {
    my $pid = $prometheus // return 1;

    undef $prometheus;
    kill 'TERM', $pid;

    return 1 if defined reap($pid, 10);

    kill 'KILL', $pid;
    reap($pid, 5);

    return 0;
}


# ---- the API of Prometheus

# What it has to say, or a string with its error.

sub ask {
    my ($path, %args) = @_;

    s/([^\w.-])/sprintf '%%%02X', ord $1/ge for values %args;

    my $query = join '&', map { "$_=$args{$_}" } sort keys %args;
    my $response = RateLimit::Load::get($api, "/api/v1/$path?$query");
    my $answer = eval { JSON::PP::decode_json($response->{body} // '') };

    return $response->{error} || "status $response->{status}" if !$answer;
    return $answer->{error} if $answer->{status} ne 'success';
    return $answer->{data};
}


# The series of an expression whose values are numbers, or a string with an
# error.

sub series_of {
    my ($expr) = @_;

    my $data = ask('query', query => $expr);

    return $data if !ref $data;
    return "a $data->{resultType}" if $data->{resultType} ne 'vector';
    return [grep { $_->{value}[1] ne 'NaN' } @{ $data->{result} }];
}


# Names of the alerts that fire.

sub firing {
    my $data = ask('alerts');

    return {} if !ref $data;
    return { map { $_->{labels}{alertname} => $_ }
             grep { $_->{state} eq 'firing' } @{ $data->{alerts} } };
}


# ---- what the files ask for

my $rules = slurp("$FOLDER/alerts.yml");
my $tests = slurp("$FOLDER/alerts-test.yml");
my @alerts = $rules =~ /^ *- alert: (\S+)$/mg;

my $dashboard = JSON::PP::decode_json(slurp("$FOLDER/grafana-dashboard.json"));
my @panels = map { ($_, @{ $_->{panels} || [] }) } @{ $dashboard->{panels} };
my @variables = @{ $dashboard->{templating}{list} };


# An expression as Grafana sends it, with everything selected; a label that
# does not exist selects nothing.

sub filled_in {
    my ($expr) = @_;

    my %value = (__rate_interval => '1m', __range => '5m',
                 map { $_->{name} => '.+' } grep { $_->{type} eq 'query' }
                                            @variables);

    return $expr =~ s/\$(\w+)/$value{$1} \/\/ die "unknown variable \$$1\n"/ger;
}


# All expressions of the dashboard by what they are for, and the labels that are
# shown with them.

sub expressions {
    my (%expr, %labels);

    for my $panel (@panels) {
        for my $target (@{ $panel->{targets} || [] }) {
            my $name = "$panel->{title}, $target->{refId}";

            $expr{$name} = $target->{expr};
            $labels{$name} = [$target->{legendFormat} =~ /\{\{(\w+)\}\}/g];
        }
    }

    for my $annotation (@{ $dashboard->{annotations}{list} }) {
        next if !defined $annotation->{expr};

        my $name = "annotation $annotation->{name}";

        $expr{$name} = $annotation->{expr};
        $labels{$name} = [$annotation->{textFormat} =~ /\{\{(\w+)\}\}/g];
    }

    return (\%expr, \%labels);
}


# What an alert compares: its parts, without the comparison to a number.

sub parts_of {
    my ($query) = @_;

    return map { s/ (?:==|[<>]=?) [\d.e+-]+(?= \*|$)//r }
           split / (?:and|or|unless) (?:(?:on|ignoring) \([^)]*\) )?/, $query;
}


subtest 'promtool accepts the files' => sub {
    promtool_ok('the configuration', 'check', 'config',
                "$FOLDER/prometheus.yml");
    promtool_ok('the rules', 'check', 'rules', '--lint=all', '--lint-fatal',
                "$FOLDER/alerts.yml");
    promtool_ok('the tests of the rules', 'test', 'rules',
                "$FOLDER/alerts-test.yml");
};


subtest 'each alert fires in a test of promtool' => sub {
    cmp_ok scalar @alerts, '>=', 15, 'there are alerts';

    my %fires = map { $_ => 1 }
                $tests =~ /^ *- labels: ALERTS\{alertname="(\w+)"/mg;

    my %alerts = map { $_ => 1 } @alerts;

    is_deeply [sort keys %fires], [sort keys %alerts],
              'each one fires in a test';

    # a test asks for all alerts that fire, so it tells which ones are silent

    my (undef, @tests) = split /^  - name: /m, $tests;

    for (@tests) {
        my ($name) = /^(.+)/;
        like $_, qr/^ +exp_samples: \[\]$/m, "$name: silent at first";
    }

    # a class, an event or a role that does not exist would never alert

    my $pages = slurp('docs/monitoring.md') . slurp('docs/outages.md');
    my ($expr) = expressions();

    for my $label (qw(class event role)) {
        my %values = map { $_ => 1 } map { split /\|/ }
                     map { /\b$label=~?"([^"]+)"/g } $rules, values %$expr;

        cmp_ok scalar keys %values, '>', 0, "$label is asked for";
        like $pages, qr/`$_`/, "$label $_" for sort keys %values;
    }
};


subtest 'no panel of the dashboard is out of place' => sub {
    my (%ids, %titles, %taken);

    for my $panel (@panels) {
        my ($x, $y, $w, $h) = @{ $panel->{gridPos} }{qw(x y w h)};
        my $name = $panel->{title};

        ok !$ids{$panel->{id}}++, "$name: a number of its own";
        cmp_ok $x + $w, '<=', 24, 'within the page';

        my $over = 0;

        for my $i ($x .. $x + $w - 1) {
            $over += $taken{"$i,$_"}++ ? 1 : 0 for $y .. $y + $h - 1;
        }

        is $over, 0, 'not over another one';

        next if $panel->{type} eq 'row';

        ok !$titles{$name}++, 'a title of its own';
        like $panel->{description}, qr/\.$/, 'a description';
        is $_->{datasource}{uid}, '${datasource}', 'the chosen data source'
            for $panel, @{ $panel->{targets} };
    }

    is_deeply [map { $_->{title} } grep { $_->{type} eq 'row' } @panels],
              ['Overview', 'Decisions', 'Limits', 'Redis latency',
               'Redis failures', 'Circuit breaker', 'Redis connections',
               'Topology', 'Shared memory'], 'rows';
    is_deeply [map { $_->{name} } @variables],
              [qw(datasource job instance limit shard)], 'variables';
};


# ---- nginx, with the example and what it takes to make everything happen

my @redis = RateLimit::Redis->start_many(3);
my $example = slurp('conf-examples/monitoring.conf');

my %port = (6379 => $redis[0]->port, 6380 => $redis[1]->port,
            6381 => $redis[2]->port, 8080 => '%%PORT%%', 8081 => '%%PORT2%%',
            8082 => '%%PORT3%%');

$example =~ s/\b(6379|638[01]|808[0-2])\b/$port{$1}/g;

my $nginx = RateLimit::Nginx->start(conf => <<"EOC");
    # a busy machine must not make Redis look dead
    ratelimit_redis_timeout 20s;

    $example

    ratelimit_limit many  key=\$arg_k capacity=1000000 rate=1000r/s;
    ratelimit_limit few   key=\$arg_k capacity=1 rate=1r/d;
    ratelimit_limit trial key=\$arg_k capacity=1 rate=1r/d dry_run;
    ratelimit_limit plan  key=\$arg_k capacity=\$arg_capacity rate=1r/s;

    server {
        listen 127.0.0.1:%%PORT4%%;

        ratelimit          many;
        ratelimit_on_error open;

        location /many   { empty_gif; }
        location /closed { ratelimit_on_error closed; empty_gif; }
        location /local  { ratelimit_on_error local; empty_gif; }
        location /look   { ratelimit_preview on; empty_gif; }
        location /few    { ratelimit few; empty_gif; }
        location /lease  { ratelimit_rate 1r/d; ratelimit_capacity 1000000;
                           ratelimit off; ratelimit_key \$arg_k;
                           ratelimit_lease 1000 ttl=60s; empty_gif; }
        location /trial  { ratelimit trial; empty_gif; }
        location /plan   { ratelimit plan; empty_gif; }
    }
EOC

my $metrics = sub { RateLimit::Load::get($nginx->port(3), '/metrics') };


# A little of everything, with so many keys that each shard has some, and an
# empty one.  How many requests got which status.

sub traffic {
    my @places = qw(many? closed? local? look? few? few? trial? trial? lease?
                    plan?capacity=10& plan?capacity=gold&);
    my @paths = map { my $k = $_; map { "/${_}k=$k" } @places } '', 1 .. 40;

    my $here = RateLimit::Load::run(
        port => $nginx->port(4), connections => 4, requests => scalar @paths,
        path => sub { $paths[$_[0]] });

    my $example = RateLimit::Load::run(
        port => $nginx->port, connections => 1, requests => 2, path => '/');

    return { map { $_ => $here->count($_) + $example->count($_) }
                 200, 429, 503 };
}


subtest 'promtool accepts the metrics' => sub {
    my $statuses = traffic();

    cmp_ok $statuses->{$_}, '>', 0, "status $_" for 200, 429;

    my $response = $metrics->();

    is $response->{status}, 200, 'there are metrics';

    write_file("$dir/metrics", $response->{body});

    my $out = `promtool check metrics < $dir/metrics 2>&1`;

    is "$? $out", '0 ', 'promtool finds nothing to say';

    # what is asked for exists, and what exists is asked for

    my %family = $response->{body} =~ /^# TYPE (\S+) (\S+)$/mg;
    my ($expr) = expressions();
    my %used;

    for my $text ($rules, values %$expr) {
        while ($text =~ /(?<![\w:])(nginx_ratelimit_\w+)/g) {
            my $name = $1;
            my $base = $name =~ s/_(?:bucket|sum|count)$//r;

            $used{($family{$base} // '') eq 'histogram' ? $base : $name} = 1;
        }
    }

    is_deeply [sort keys %used], [sort keys %family], 'the families';
};


prometheus_start($nginx->port(3));


subtest 'Prometheus reads the metrics' => sub {
    my $target;

    ok wait_until(sub {
        my $targets = ask('targets');

        $target = ref $targets ? $targets->{activeTargets}[0] : {};
        return ($target->{health} // '') eq 'up';
    }, 30), 'Prometheus reads the metrics'
        or diag explain $target;
};


subtest 'the variables of the dashboard have values' => sub {
    my %expected = (
        job      => ['nginx-ratelimit'],
        instance => ['127.0.0.1:' . $nginx->port(3)],
        limit    => [qw(_/lease client everybody few many plan trial)],
        shard    => [sort map { $_->addr } @redis],
    );

    for my $variable (grep { $_->{type} eq 'query' } @variables) {
        my ($series, $label) =
            $variable->{query}{query} =~ /^label_values\((.*), (\w+)\)$/;

        is $variable->{definition}, $variable->{query}{query},
           "$variable->{name}: shown as it is";

        my $values;

        wait_until(sub {
            $values = ask("label/$label/values",
                          'match[]' => filled_in($series));
            return ref $values && @$values >= @{ $expected{$label} };
        }, 30);

        is_deeply $values, $expected{$label}, 'its values';
    }
};


# From here on a shard is away; what has happened before Prometheus came is no
# increase for it.

$redis[2]->kill9;


# Runs expressions, with traffic, until each has had a result, with the labels
# that it is to have.

sub results_ok {
    my ($expressions, $labels, %may_be_empty) = @_;

    my %left = %$expressions;
    my %result;

    wait_until(sub {
        traffic();

        for my $name (keys %left) {
            $result{$name} = series_of($left{$name});
            delete $left{$name} if ref $result{$name} && @{ $result{$name} };
        }

        return !grep { !$may_be_empty{$_} } keys %left;
    }, 60);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for my $name (sort keys %$expressions) {
        my $series = $result{$name};

        ok ref $series && (@$series || $may_be_empty{$name}), $name
            or diag "$expressions->{$name}\n",
                    ref $series ? 'no result' : $series;

        next if !ref $series || !@$series;

        is_deeply [grep { !defined $series->[0]{metric}{$_} }
                   @{ $labels->{$name} || [] }], [], 'its labels';
    }
}


subtest 'each expression of the dashboard finds something' => sub {
    my ($expr, $labels) = expressions();

    cmp_ok scalar keys %$expr, '>', 40, 'there are some';
    results_ok({ map { $_ => filled_in($expr->{$_}) } keys %$expr }, $labels,
               %EMPTY);

    # the table of nodes has each shard that was found, and as what

    my $nodes = series_of(filled_in($expr->{'Nodes and roles, A'}));

    is_deeply [sort map { join ' ', @{ $_->{metric} }{qw(shard node role)} }
               @$nodes],
              [sort map { join ' ', $_->addr, $_->addr, 'shard' } @redis],
              'the nodes';

    # each source has a curve, and all of them together are all requests

    my $by_source = filled_in($expr->{'Requests by source, A'});
    my @sources = qw(closed denied lease local none open redis);
    my %source;

    wait_until(sub {
        traffic();
        %source = map { $_->{metric}{source} => $_->{value}[1] }
                  grep { $_->{value}[1] > 0 } @{ series_of($by_source) };
        return keys %source == @sources;
    }, 30);

    is_deeply [sort keys %source], \@sources, 'all sources';

    # what was decided without Redis is counted as such; denied and lease were
    # decided by what it has said, and are part of the whole

    my $body = $metrics->()->{body};
    my ($fallback, %decided) = (0);

    $fallback += $_ for $body =~ /^nginx_ratelimit_fallback_decisions_total
                                  \{[^}]*\}\ (\d+)$/mgx;
    $decided{$1} += $2
        while $body =~ /^nginx_ratelimit_decisions_total
                        \{.*source="(\w+)"\}\ (\d+)$/mgx;

    is $fallback, $decided{local} + $decided{open} + $decided{closed},
       'the share without Redis';
};


subtest 'each expression of the rules can be run' => sub {
    my @found = map { @{ $_->{rules} } } @{ ask('rules')->{groups} };
    my (%expr, %labels, %may_be_empty);

    is_deeply [map { $_->{name} } grep { $_->{type} eq 'alerting' } @found],
              \@alerts, 'all alerts are there';
    is scalar(() = $rules =~ /^ *for: \d+[mh]$/mg), scalar @alerts,
       'each waits for a while';

    for my $rule (@found) {
        my $name = $rule->{name};

        # one that has two severities

        $name .= " $rule->{labels}{severity}" if $expr{$name};

        $expr{$name} = $rule->{query};

        next if $rule->{type} ne 'alerting';

        my $text = $rule->{annotations};

        like $rule->{labels}{severity}, qr/^(?:critical|warning|info)$/,
             "$name: its severity";
        ok length $text->{$_}, "its $_" for qw(summary description);

        my ($page, $anchor) = $text->{runbook_url} =~ m{^(docs/\w+\.md)#([\w-]+)$};

        ok $page && RateLimit::Docs::read_page($page)->{anchors}{$anchor},
           'its runbook is a section that exists';

        # the alert itself has a result only if it fires

        my @parts = parts_of($rule->{query});

        for my $i (0 .. $#parts) {
            $expr{"$name, part $i"} = $parts[$i];
            $may_be_empty{"$name, part $i"} = $EMPTY{$name};
        }

        $labels{"$name, part 0"} = ["@$text{qw(summary description)}"
                                    =~ /\$labels\.(\w+)/g];
        $may_be_empty{$name} = 1;
    }

    results_ok(\%expr, \%labels, %may_be_empty);
};


subtest 'alerts fire when a shard is lost, and only those' => sub {
    my @fire = map { "RateLimit$_" }
               qw(BreakerOpen Degraded FailOpen FailClosed RedisFailures
                  InvalidValues);
    my @silent = map { "RateLimit$_" }
                 qw(MetricsAbsent TargetDown BreakerFlapping RedisRefuses
                    Failover MastersDiffer ClusterChanged ClusterDown
                    Redirects NameUnresolved RejectionsSurge ZoneAlmostFull
                    ZoneEvictions ZoneReset RedisMemory VersionsDiffer);
    my ($firing, $statuses);

    wait_until(sub {
        $statuses = traffic();
        $firing = firing();
        return !grep { !$firing->{$_} } @fire;
    }, 60);

    cmp_ok $statuses->{$_}, '>', 0, "status $_" for 200, 429, 503;
    ok $firing->{$_}, "$_ fires" for @fire;
    ok !$firing->{$_}, "$_ does not" for @silent;

    for my $name (sort keys %$firing) {
        my $text = join ' ', values %{ $firing->{$name}{annotations} };

        unlike $text, qr/<|\{\{|\$/, "$name: its text is complete";
    }

    my $shard = $redis[2]->addr;

    like $firing->{RateLimitBreakerOpen}{annotations}{summary},
         qr/has given up on Redis \Q$shard\E\b/, 'and names the shard';
    is $firing->{RateLimitBreakerOpen}{labels}{severity}, 'critical',
       'where clients pass unseen or are turned away that is critical';

    # the shard comes back

    $redis[2]->start;

    ok wait_until(sub {
        traffic();
        return !firing()->{RateLimitBreakerOpen};
    }, 60), 'the circuit is closed again';

    # nginx goes

    ok $nginx->stop, 'nginx left by itself';

    for my $name (qw(RateLimitTargetDown RateLimitMetricsAbsent)) {
        ok wait_until(sub { firing()->{$name} }, 30), "then $name fires";
    }
};


ok prometheus_stop(), 'Prometheus left by itself';
$nginx->no_alerts;

done_testing();
