# docs/migrating.md: limit_req and what replaces it admit the same requests, and
# every equivalent in a table is a line that nginx takes.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use List::Util qw(sum0);
use Time::HiRes ();

use RateLimit::Docs 'docs/migrating.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until);

my $BACKEND = <<'EOC';
server {
    listen 127.0.0.1:%%PORT9%%;
    add_header X-Backend yes;
    location / { return 200 "backend\n"; }
}
add_header X-Status "$limit_req_status $ratelimit_status" always;
EOC


# nginx with a block of a section, a backend and this Redis.

sub start {
    my ($name, $n, $redis, %replace) = @_;

    my $text = http_of(block_of($name, 'nginx', $n));

    # patterns, since numbers occur more than once
    $text =~ s/$_/$replace{$_}/g for keys %replace;
    $text =~ s/ratelimit_shards\s+\K[^;]+/$redis->addr/e if $redis;
    $text =~ s/127\.0\.0\.1:8081/127.0.0.1:%%PORT9%%/g;

    return RateLimit::Nginx->start(conf => "$patient$text$BACKEND", workers => 1)
        if $redis;
    return RateLimit::Nginx->start(conf => "$text$BACKEND", workers => 1);
}


sub passed {
    my ($nginx, $n, $path, %headers) = @_;

    return scalar grep { $nginx->get($path, %headers)->{status} =~ /^(?:200|404)$/ }
                  1 .. $n;
}


subtest 'limit_req and the limit admit the same' => sub {
    my $redis = RateLimit::Redis->start;

    # as many at once

    my $old = start('From limit_req', 0, undef, '10r/s' => '1r/m');
    my $new = start('From limit_req', 1, $redis, '10r/s' => '1r/m');

    is passed($old, 30, '/api/'), 21, 'limit_req: 21 at once';
    is passed($new, 30, '/api/'), 21, 'the limit: 21 at once';

    for (['limit_req', $old], ['the limit', $new]) {
        my ($name, $nginx) = @$_;

        is $nginx->get('/api/')->{status}, 429, "$name: status";
        ok $nginx->wait_log(qr/\[warn\] .*(?:limiting requests|REJECTED)/),
           "$name: log level";
        $nginx->finish;
    }

    # as many over time: both get the same requests at the same moments

    $redis->cmd('FLUSHALL');
    $old = start('From limit_req', 0, undef);
    $new = start('From limit_req', 1, $redis);

    my @passed = (0, 0);

    for my $i (1 .. 80) {
        $passed[0] += passed($old, 1, '/api/');
        $passed[1] += passed($new, 1, '/api/');
        Time::HiRes::sleep(0.02 * ($i % 4));
    }

    cmp_ok $passed[0], '<', 80, 'some were rejected';
    cmp_ok abs($passed[0] - $passed[1]), '<=', 2, "both admit $passed[0]"
        or diag "@passed";

    $_->finish for $old, $new;
};


subtest 'a local limit_req delays what the limit admits' => sub {
    my $redis = RateLimit::Redis->start;

    # the fleet has room; this machine has a burst of 20
    my $nginx = start('Delaying requests', 0, $redis,
                      'capacity=21 rate=10r/s' => 'capacity=100 rate=1r/d');
    my $load = RateLimit::Load::run(port => $nginx->port, connections => 40,
                                    requests => 40, path => '/api/', keep => 1,
                                    timeout => 30);
    my %status;

    $status{ $_->{headers}{'x-status'} // '' }++ for $load->responses;

    cmp_ok $status{'DELAYED PASSED'} // 0, '>=', 20, 'delayed, and then taken'
        or diag explain \%status;

    my $rejected = sum0(map { $status{$_} } grep { /^REJECTED/ } keys %status);

    cmp_ok $rejected, '>', 0, 'limit_req rejects some';
    is sprintf('%.0f', state_of('ratelimit:api:{127.0.0.1}', $redis)),
       100 - (40 - $rejected), 'which take nothing from the shared limit';

    $nginx->finish;
};


subtest 'a named limit is one state' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start('Zones that several locations share', 0, $redis,
                      '10r/s' => '10r/d', '1r/s' => '1r/d');

    is passed($nginx, 10, '/api/') + passed($nginx, 5, '/search'), 15, '15 of 21';
    is passed($nginx, 10, '/upload'), 6, 'the second limit has 6';
    is passed($nginx, 3, '/api/'), 0, 'and the first one has none left';

    $nginx->finish;
};


subtest 'a dry run beside limit_req, then enforced' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = start('Without a gap', 0, $redis, '10r/s' => '1r/m',
                      'capacity=21' => 'capacity=5');

    is passed($nginx, 30, '/api/'), 21, 'limit_req decides';
    ok $nginx->wait_log(qr/ratelimit REJECTED_DRY_RUN, limit: "api"/), 'a log line';
    is $nginx->log_count(qr/REJECTED_DRY_RUN/), 16, 'for what it would reject';
    $nginx->finish;

    $nginx = start('Without a gap', 0, $redis, '10r/s dry_run' => '1r/m',
                   'capacity=21' => 'capacity=5',
                   'limit_req  zone=api burst=20 nodelay;' => '');
    is passed($nginx, 3, '/api/'), 0, 'enforced: the bucket keeps what was counted';
    $nginx->finish;
};


subtest 'what replaces a script' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start('From Lua', 0, $redis, '10r/s' => '10r/d');

    is passed($nginx, 25, '/api/', 'X-Api-Key' => 'a'), 21, 'by API key';
    is passed($nginx, 25, '/api/'), 21, 'by address without one';
    is state_of('ratelimit:hour:{a}', $redis), 21, 'an entry of the window each';
    like $nginx->get('/api/')->{body}, qr/"blocking_limit":"pace"/, 'JSON';

    $redis->kill9;

    my $response = $nginx->get('/api/', 'X-Api-Key' => 'new');

    is $response->{status}, 200, 'an outage: it passes';
    is $response->{headers}{'x-ratelimit-degraded'}, 'true', 'degraded';

    $nginx->finish;
};


subtest 'a pace and a quota' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start('From an API gateway', 0, $redis, '10r/s' => '1r/d');

    is passed($nginx, 25, '/api/', 'X-Api-Key' => 'a'), 20, 'the pace';
    is sprintf('%.0f', state_of('ratelimit:quota:{a}', $redis)), 980, 'the quota';

    $nginx->finish;
};


# ---- the tables

my @rows = table_of($page);

subtest 'capacities are burst plus one' => sub {
    my $n = 0;

    for my $row (table_of($section{'From limit_req'})) {
        my ($burst) = $row->[0] =~ /burst=(\d+) nodelay/ or next;

        is $row->[1], '`capacity=' . ($burst + 1) . '`', "burst=$burst";
        $n++;
    }

    my ($default) = $section{'From a Kubernetes ingress'} =~ /by default (\d+)/;

    for my $row (table_of($section{'From a Kubernetes ingress'})) {
        my ($rps) = "@$row" =~ /limit-rp[sm]: "(\d+)"/ or next;
        my ($times) = $row->[0] =~ /multiplier: "(\d+)"/;

        is +($row->[1] =~ /capacity=(\d+)/)[0], $rps * ($times // $default) + 1,
           $row->[0];
        $n++;
    }

    is $n, 4, 'all of them';
};


subtest 'nginx takes each equivalent' => sub {
    my (%limit, %line);

    for my $row (@rows) {
        for my $code (map { code_in($_) } @$row[1 .. $#$row]) {
            next if $code =~ /\.\.\.|NAME|KEY/;

            if ($code =~ /^(?:(?:algorithm|key|capacity|rate|window)=\S+ ?)+$/
                && $code =~ /=\d/)
            {
                $limit{ $code =~ /rate=|window=/ ? $code : "$code rate=1r/s" } = 1;

            } elsif ($code =~ /^key=\S+$/) {
                $limit{"$code rate=1r/s"} = 1;
            }
        }

        for my $cell (@$row) {
            while ($cell =~ /(?:\[(ratelimit_\w+)\]\(\S+\) `|`(ratelimit_\w+) )([\w]+)`/g)
            {
                $line{ ($1 // $2) . " $3;" } = 1;
            }
        }
    }

    cmp_ok scalar keys %limit, '>=', 12, 'limits';
    cmp_ok scalar keys %line, '>=', 8, 'other directives';

    my $i = 0;

    for my $limit (sort keys %limit) {
        $i++;
        load_ok("ratelimit_shards 127.0.0.1:6379;\nratelimit_limit l$i $limit;\n"
                . "server { listen 8080; ratelimit l$i; }\n", $limit);
    }

    for my $line (sort keys %line) {
        load_ok("ratelimit_shards 127.0.0.1:6379;\nratelimit_rate 1r/s;\n$line\n"
                . "server { listen 8080; }\n", $line);
    }
};


done_testing();
