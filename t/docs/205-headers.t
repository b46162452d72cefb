# docs/headers.md: the headers, bodies and variables are those of the module, and
# the clients in five languages wait and give up as the page says.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use Digest::SHA ();

use RateLimit::Docs 'docs/headers.md';
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(
    dead_port find_program reap slurp spawn wait_until write_file
);


# The commands of a section, with the port of a running nginx.

sub run_steps {
    my ($name, $nginx) = @_;

    my @steps = steps_of($name);

    cmp_ok scalar @steps, '>=', 3, 'there are commands';

    for my $step (@steps) {
        my ($first) = $step->{command} =~ /^([^\n]*)/;
        RateLimit::Transcript::check($first, $step, 8080 => $nginx->port);
    }
}


# The rows of the table whose head starts with these words.

sub rows_after {
    my ($text, $head) = @_;

    my ($table) = $text =~ /(?:\A|\n\n)(\|\ \Q$head\E\ \|[^\n]*\n(?:\|[^\n]*\n)+)/x
                  or die "no table $head\n";
    my (undef, @rows) = table_of($table);

    return @rows;
}


subtest 'the first look' => sub {
    my $redis = RateLimit::Redis->start;
    my $text = http_of(block_of('A first look'), '127.0.0.1:6379' => $redis->addr);
    my $nginx = RateLimit::Nginx->start(conf => "$patient$text");

    run_steps('A first look', $nginx);
    $nginx->finish;
};


subtest 'headers are made from replies as described' => sub {
    my $text = $section{'From a Redis reply to headers'};
    my @tables = map { [table_of($_)] } $text =~ /^(\| reply .*?)\n\n/msg;

    is scalar @tables, 2, 'two scripts, two tables';

    for (qw(token_bucket.lua gcra.lua take.lua)) {
        ok exists $lua{$_}, $_;
        like $text, qr/`\Q$_\E`/, 'is in the text';
    }

    my $flat = $text =~ s/\s+/ /gr;

    like $flat, qr/`ratelimit_capacity 100` and `ratelimit_rate 6r\/m`/,
         'the limit of the first table';

    my @limits = $flat =~ /`(ratelimit_limit [^`]+)`/g;

    is scalar @limits, 2, 'the limits of the second';

    my @replies = map { map { code_in($_) } @{ $_->[0] }[1, 2] } @tables;

    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => [map { resp($_) } @replies, 1000000, 6000000,
                                              6000000] });

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $fake->addr};\n"
                  . join('', map { "$_;\n" } @limits),
        server => <<'EOC');
location / {
    ratelimit_capacity 100;
    ratelimit_rate     6r/m;
}
location /two {
    ratelimit          minute bucket;
    ratelimit_headers  legacy draft-8;
}
location /proxy {
    ratelimit_capacity 100;
    ratelimit_rate     6r/m;
    proxy_pass         http://127.0.0.1:%%PORT%%/backend;
}
location /backend {
    ratelimit  off;
    add_header X-RateLimit-Limit       7;
    add_header X-RateLimit-Retry-After 7;
    add_header Retry-After             7;
    add_header RateLimit-Policy        '"theirs";q=7';
    return     200;
}
EOC

    for my $table (@tables) {
        my %row = map { join(' ', code_in($_->[0])) || $_->[0] => $_ } @$table;
        my $path = $table == $tables[0] ? '/x' : '/two';

        for my $column (1, 2) {
            my $now = time;
            my $response = $nginx->get($path);
            my $late = time - $now;
            my ($reply) = code_in($row{reply}[$column]);

            is $response->{status}, $column == 1 ? 404 : 429, "$reply: status";

            for my $name (grep { /^(?:X-)?RateLimit|^Retry-After$/ }
                          sort keys %row)
            {
                my $value = $response->{headers}{ lc $name };
                my $cell = $row{$name}[$column];

                if ($cell eq 'not sent') {
                    is $value, undef, "$reply: no $name";

                } elsif ($cell =~ /^now \+ (\d+)/) {
                    my $more = $value - $now - $1;
                    ok $more >= 0 && $more <= $late + 1, "$reply: $name"
                        or diag "$value is not $now + $1";

                } elsif ($cell =~ /^`(.*)`$/) {
                    is $value, $1, "$reply: $name";

                } else {
                    is $value, ($cell =~ /^(\d+)/)[0], "$reply: $name";
                }
            }
        }
    }

    my @commands = $fake->commands('EVALSHA');
    my %sha = map { $_ => Digest::SHA::sha1_hex($lua{$_}) } keys %lua;

    is_deeply [map { $_->[1] } @commands],
              [($sha{'token_bucket.lua'}) x 2, ($sha{'take.lua'}) x 2],
              'each by its script';

    # the unit of gcra: a token each ten seconds

    my $redis = RateLimit::Redis->start;
    my $tick = 10_000_000 * 16;

    is $redis->cmd('EVAL', $lua{'gcra.lua'}, 1, 'd', 100 * $tick, $tick, 0),
       99 * $tick, 'gcra: sixteenths of a microsecond';

    my $headers = $nginx->get('/proxy')->{headers};

    is $headers->{'x-ratelimit-limit'}, 100, "a backend's header is replaced";
    is $headers->{'x-ratelimit-retry-after'}, undef, 'or removed';
    is $headers->{'retry-after'}, 7, 'its Retry-After stays';
    is $headers->{'ratelimit-policy'}, '"theirs";q=7',
       'so does a family that is not sent';

    $nginx->finish;
};


subtest 'each header of the module is described' => sub {
    my $text = $section{Headers};

    for my $name (source('headers.c') =~ /ngx_rl_header\("([\w-]+)"/g) {
        like $text, qr/`\Q$name\E`/, $name;
    }

    my @reasons = map { code_in($_->[0]) } rows_after($section{Degraded}, 'reason');
    my ($reasons) = source('failure.c') =~ /ngx_rl_reason_names\[\]\s*=\s*\{(.*?)\}/s;

    is_deeply [sort @reasons], [sort $reasons =~ /"(\w+)"/g], 'the reasons';
};


subtest 'headers are sent and left out as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n"
                  . "ratelimit_deny_cache off;\n"
                  . "ratelimit_limit once capacity=1 rate=0r/s;\n"
                  . "ratelimit_limit minute capacity=1 rate=1r/m;\n"
                  . "ratelimit_limit shadow capacity=1 rate=1r/m dry_run;\n",
        server => <<'EOC');
ratelimit_headers legacy draft-8;

location /once  { ratelimit once; empty_gif; }
location /cost  { ratelimit minute; ratelimit_cost $arg_c; empty_gif; }
location /skip  { ratelimit_key ""; ratelimit_rate 1r/m; empty_gif; }
location /dry   { ratelimit shadow; empty_gif; }
location /shown { ratelimit shadow; ratelimit_headers legacy draft-8 dry_run;
                  empty_gif; }
location /both  { ratelimit minute shadow; empty_gif; }
location /off   { ratelimit minute; ratelimit_headers off; empty_gif; }
location /new   { ratelimit minute; ratelimit_headers draft-8; empty_gif; }
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };
    my $names = sub { [sort grep { /ratelimit|retry/ } keys %{ $_[0] }] };

    $get->('/once');

    my $h = $get->('/once');

    is_deeply $names->($h), [qw(ratelimit ratelimit-policy x-ratelimit-limit
                                x-ratelimit-remaining)],
              'a limit that never refills: no times';
    is $h->{'ratelimit-policy'}, '"once";q=1', 'no w';
    is $h->{ratelimit}, '"once";r=0', 'no t';
    is $get->('/cost?c=2')->{'retry-after'}, undef,
       'a cost above the capacity: no Retry-After';

    is_deeply $names->($get->('/skip')), [], 'skipped: nothing';
    is_deeply $names->($get->('/dry')), [], 'dry run: nothing';

    $h = $get->('/shown');
    is $h->{'ratelimit-policy'}, '"shadow";q=1;w=60', 'dry_run: the reported limit';
    is $h->{'retry-after'}, undef, 'no Retry-After';

    is $get->('/both')->{'ratelimit-policy'}, '"minute";q=1;w=60',
       'a limit in a dry run is not listed';

    is_deeply $names->($get->('/off')), [], 'off: nothing';
    is_deeply $names->($get->('/new')), [qw(ratelimit ratelimit-policy retry-after)],
              'draft-8';

    $nginx->finish;

    # without Redis

    my $dead = dead_port();

    $nginx = RateLimit::Nginx->start(
        conf   => "ratelimit_shards 127.0.0.1:$dead;\n"
                  . "ratelimit_breaker failures=10;\n"   # not at once
                  . "ratelimit_headers legacy draft-8;\n",
        server => <<'EOC');
ratelimit_capacity 4;
ratelimit_rate     4r/m;
add_header X-Status $ratelimit_status always;

location /local  { ratelimit_local_share 1/2; empty_gif; }
location /open   { ratelimit_on_error open; empty_gif; }
location /closed { ratelimit_on_error closed; empty_gif; }
location /quiet  { ratelimit_headers legacy no_degraded; empty_gif; }
location /bad    { ratelimit_rate $arg_r; empty_gif; }
EOC

    $h = $get->('/local');
    is $h->{'x-ratelimit-degraded'}, 'true', 'degraded';
    is $h->{'x-ratelimit-degraded-reason'}, 'storage_unavailable', 'its reason';
    is $h->{'x-ratelimit-limit'}, 2, 'the local share';

    for my $path (qw(/open /closed)) {
        $h = $get->($path);
        is_deeply $names->($h), [sort qw(ratelimit-policy x-ratelimit-degraded
                                         x-ratelimit-degraded-reason),
                                 $path eq '/open' ? () :
                                 qw(retry-after x-ratelimit-retry-after)],
                  "$path: nothing was counted";
    }

    is $h->{'retry-after'}, 1, 'closed: a second';
    is $h->{'x-status'}, 'DEGRADED', 'the status';
    is $nginx->get('/closed')->{status}, 503, 'rejected';

    $h = $get->('/quiet');
    is $h->{'x-ratelimit-degraded'}, undef, 'no_degraded';
    is $h->{'x-ratelimit-degraded-reason'}, undef, 'hides both';
    is $h->{'x-status'}, 'DEGRADED', 'the variable does not';

    is $get->('/bad?r=no')->{'x-ratelimit-degraded-reason'}, 'invalid_limit',
       'a value that is invalid';
    ok wait_until(sub { $get->('/open')->{'x-ratelimit-degraded-reason'}
                        eq 'circuit_open' }), 'the breaker';

    $nginx->finish;
};


subtest 'bodies are as described' => sub {
    my ($json, $problem) = map { s/\n//r } @{ $block{json} };

    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => [map { resp($_) } -1, '-1 -1', '1000000 -1', -1, -1,
                                              -1] });

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $fake->addr};\n"
                  . "ratelimit_deny_cache off;\n"
                  . "ratelimit_limit ip capacity=100 rate=20r/m;\n"
                  . "ratelimit_limit user capacity=100 rate=20r/m;\n"
                  . "ratelimit_limit once capacity=100 rate=0r/s;\n",
        server => <<'EOC');
error_page 429 /page;
error_page 503 /page;

location /json    { ratelimit ip; ratelimit_body json; }
location /problem { ratelimit ip user; ratelimit_body problem; }
location /once    { ratelimit once; ratelimit_body json; }
location /default { ratelimit ip; }
location /closed  { ratelimit_rate $arg_no; ratelimit_body json;
                    ratelimit_on_error closed; }
location /page    { return 200 "page\n"; }
EOC

    my %type = map { (code_in($_->[0]))[0] => (code_in($_->[2]))[0] }
               rows_after($section{Bodies}, 'value');

    is_deeply [sort keys %type],
              [sort split / \| /, $directive{ratelimit_body}{words}], 'the values';

    my $get = sub { $nginx->get($_[0]) };
    my $response = $get->('/json');

    is $response->{status}, 429, 'json: status';
    is $response->{headers}{'content-type'}, $type{json}, 'its type';
    is $response->{body}, $json, 'its body, whatever error_page says';

    $response = $get->('/problem');
    is $response->{headers}{'content-type'}, $type{problem}, 'problem: its type';
    is $response->{body}, $problem, 'its body';

    $response = $get->('/problem');
    like $response->{body}, qr/"violated-policies":\["user"\]\}$/,
         'only those that reject';

    $response = $get->('/once');
    like $response->{body}, qr/"retry_after":null\}$/, 'no wait helps';
    is $response->{headers}{'retry-after'}, undef, 'no Retry-After';

    $response = RateLimit::Load::request($nginx->port, 'HEAD', '/json');
    is $response->{status}, 429, 'HEAD';
    is $response->{body}, '', 'has no body';

    is $get->('/default')->{body}, "page\n", 'default: the error_page';
    is $get->('/closed')->{body}, "page\n", 'closed: the error_page';

    $nginx->finish;

    # limits that nginx did not query, as it knew enough

    my $redis = RateLimit::Redis->start;

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n"
                  . "ratelimit_deny_cache 60s;\n"
                  . "ratelimit_limit ip capacity=1 rate=1r/d;\n"
                  . "ratelimit_limit user capacity=2 rate=1r/d;\n",
        server => <<'EOC');
location /ip      { ratelimit ip; }
location /user    { ratelimit user; }
location /problem { ratelimit ip user; ratelimit_body problem; }
EOC

    $get->('/ip');
    $get->('/user') for 1 .. 2;
    $redis->reset_calls;
    like $get->('/problem')->{body}, qr/"violated-policies":\["ip","user"\]\}$/,
         'both are known';
    $redis->cmd('DEL', 'ratelimit:ip:{127.0.0.1}');
    like $get->('/problem')->{body}, qr/\["ip","user"\]\}$/, 'and stay so';
    is calls_of($redis), 0, 'nginx does not call Redis';

    $nginx->finish;
};


subtest 'variables have the values that are described' => sub {
    my $text = $section{Variables};

    is_deeply [sort map { code_in($_->[0]) } rows_after($text, 'variable')],
              [sort @variables, @per_limit], 'each variable has a row';
    is_deeply [sort map { code_in($_->[0]) } rows_after($text, '`$ratelimit_source`')],
              [sort grep { $_ ne 'none' } strings('ngx_rl_source_names')],
              'the sources';

    my @states = map { code_in($_->[0]) } rows_after($text, '`$ratelimit_status`');

    is_deeply [sort @states], [sort +strings('ngx_rl_outcome_names')], 'the decisions';

    my $format = block_of('Variables');

    like $format, qr/\Q$_\E\b/, "$_ is in the log format" for @variables;
    is scalar(() = $format =~ /^log_format/mg), 2, 'two formats';

    my $redis = RateLimit::Redis->start;
    my $headers = join '', map { "add_header X-$_ \$ratelimit_$_ always;\n" }
                           map { s/^\$ratelimit_//r } @variables;

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n$headers$format"
                  . "ratelimit_limit two capacity=2 rate=2r/h;\n"
                  . "ratelimit_limit dry capacity=1 rate=1r/h dry_run;\n",
        server => <<'EOC');
access_log %%DIR%%/logs/limits.log limits;
access_log %%DIR%%/logs/limits.json limits_json;

location /two   { ratelimit two; empty_gif; }
location /dry   { ratelimit dry; empty_gif; }
location /cost  { ratelimit two; ratelimit_cost $arg_cost; empty_gif; }
location /skip  { ratelimit_key ""; ratelimit_rate 1r/h; empty_gif; }
location /early { ratelimit two; ratelimit_silence early_return; return 204; }
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };
    my $now = time;
    my $h = $get->('/two');

    is $h->{'x-status'}, 'PASSED', '$ratelimit_status';
    is $h->{'x-name'}, 'two', '$ratelimit_name';
    is $h->{'x-limit'}, 2, '$ratelimit_limit';
    is $h->{'x-remaining'}, 1, '$ratelimit_remaining';
    cmp_ok abs($h->{'x-reset'} - $now - 1800), '<', 60, '$ratelimit_reset';
    is $h->{'x-retry_after'}, undef, '$ratelimit_retry_after';
    is $h->{'x-source'}, 'redis', '$ratelimit_source';
    is $h->{'x-shard'}, $redis->addr, '$ratelimit_shard';
    like $h->{'x-latency'}, qr/^\d+\.\d{6}$/, '$ratelimit_latency';
    is $h->{'x-client_net'}, '127.0.0.1', '$ratelimit_client_net';

    my $log = $nginx->dir . '/logs/limits.log';

    ok wait_until(sub { slurp($log) =~ /\n/ }), 'a line in the log';
    like slurp($log), qr{^127\.0\.0\.1\ "GET\ /two\ HTTP/1\.1"\ 200\ PASSED\ two
                         \ 1/2\ redis\ \Q${\ $redis->addr}\E\ \d+\.\d{6}
                         \ reset=\d+\ wait=-\ net=127\.0\.0\.1$}mx, 'as it is shown';

    my ($line) = split /\n/, slurp($nginx->dir . '/logs/limits.json');
    my $data = JSON::PP::decode_json($line);

    is $data->{status}, 200, 'JSON, as it is';
    is $data->{limits}[0]{name}, 'two', '$ratelimit_limits';

    my ($members) = $text =~ /an object with (.*?)\. /s;

    is_deeply [sort keys %{ $data->{limits}[0] }], [sort +code_in($members)],
              'its members';

    $get->('/two');
    $h = $get->('/two');
    is $h->{'x-status'}, 'REJECTED', 'rejected';
    is $h->{'x-retry_after'}, $h->{'retry-after'}, 'with a time';
    is $h->{'x-source'}, 'denied', 'known before';
    is $h->{'x-shard'}, undef, 'no shard was called';
    is $h->{'x-latency'}, undef, 'so there is no latency';

    $get->('/dry');
    $h = $get->('/dry');
    is $h->{'x-status'}, 'REJECTED_DRY_RUN', 'dry run';
    like $h->{'x-retry_after'}, qr/^\d+$/, 'with a time as well';

    is $get->('/cost?cost=4')->{'x-source'}, 'local', 'a cost above the capacity';
    is $get->('/skip')->{'x-status'}, 'SKIPPED', 'skipped';

    $h = $get->('/early');
    is $h->{'x-status'}, undef, 'before the phase of the limits: nothing';
    is $h->{'x-client_net'}, '127.0.0.1', 'except the network of the client';

    $nginx->finish;
};


subtest 'CORS' => sub {
    my $redis = RateLimit::Redis->start;
    my $text = http_of(block_of('Browsers and CORS'),
                       '127.0.0.1:6379' => $redis->addr);
    my $nginx = RateLimit::Nginx->start(conf => "$patient$text");

    run_steps('Browsers and CORS', $nginx);
    $nginx->finish;

    # preflights that the application answers

    my ($map) = $section{'Browsers and CORS'} =~ /`(map [^`]+\})`/;

    $text =~ s/if \(.*?\n +\}//s;
    $text =~ s/ratelimit_capacity 1;/$& ratelimit_key \$limit_key;/;
    $text =~ s/empty_gif;/proxy_pass http:\/\/127.0.0.1:%%PORT2%%;/;
    $nginx = RateLimit::Nginx->start(
        conf => "$patient$map\n$text"
                . "server { listen 127.0.0.1:%%PORT2%%; return 204; }\n");
    $redis->cmd('FLUSHALL');

    my $ask = sub { RateLimit::Load::request($nginx->port, $_[0], '/api/')->{status} };

    is join(' ', map { $ask->('OPTIONS') } 1 .. 3), '204 204 204', 'OPTIONS is free';
    is join(' ', map { $ask->('GET') } 1 .. 2), '204 429', 'GET is charged';

    $nginx->finish;
};


subtest 'gRPC' => sub {
    plan skip_all => 'this nginx has no HTTP/2 or no gRPC'
        if !RateLimit::Nginx->has_grpc;

    my $redis = RateLimit::Redis->start;
    my $text = http_of(block_of('gRPC'), '127.0.0.1:6379' => $redis->addr,
                       '127.0.0.1:50051' => '127.0.0.1:%%PORT2%%')
               . RateLimit::Nginx->http2_of(<<'EOC');
server {
    listen 127.0.0.1:%%PORT2%% http2;
    default_type application/grpc;
    add_header grpc-status 0;
    return 200;
}
EOC

    my $nginx = RateLimit::Nginx->start(conf => "$patient$text");
    my $call = sub {
        my $type = shift // 'application/grpc';
        my $curl = 'curl -sSim 30 --http2-prior-knowledge -X POST'
                   . " -H 'TE: trailers' -H 'Content-Type: $type'";

        return scalar qx($curl ${\ $nginx->url('/shop.Orders/Get')} 2>&1);
    };

    like $call->(), qr/^grpc-status: 0\r?$/m, 'a call';

    my $rejected = $call->();

    like $rejected, qr{^HTTP/2 200 *\r?$}m, 'HTTP status';
    like $rejected, qr{^content-type: application/grpc\r?$}m, 'Content-Type';
    like $rejected, qr/^grpc-status: 8\r?$/m, 'RESOURCE_EXHAUSTED';
    like $rejected, qr/^grpc-message: rate limit exceeded\r?$/m, 'the message';
    like $rejected, qr/^grpc-retry-pushback-ms: [1-9]\d*000\r?$/m, 'the wait';
    like $rejected, qr/^retry-after: \d+\r?$/m, 'retry-after';

    $nginx->finish;

    # the table of requests; an error page of this kind is no gRPC

    my $plain = '@page { return 200 page; }';

    for my $row (rows_after($section{gRPC}, '`ratelimit_body`')) {
        my ($bodies, $request, $answer) = @$row;

        for my $body (code_in($bodies)) {
            my $conf = $text =~ s/^(\s*ratelimit_capacity)/ratelimit_body $body;\n$1/mr;

            $conf =~ s/^(\s*ratelimit_body)/error_page 429 = \@page;\n$1/m
                if $request =~ /there is an|^any/;
            $conf =~ s/^(\s*location )/location $plain\n$1/m;
            $redis->cmd('FLUSHALL');
            $nginx = RateLimit::Nginx->start(conf => "$patient$conf");
            $call->($request =~ /^any/ ? 'application/json' : ())  for 1 .. 2;

            my $got = $call->($request =~ /^any/ ? 'application/json' : ());

            like $got, $answer eq 'gRPC'     ? qr{^HTTP/2\ 200.*^grpc-status:\ 8}ms
                     : $answer eq 'the page' ? qr{^page\z}m
                     : $body eq 'default'    ? qr{^page\z}m : qr{^HTTP/2 429}m,
                 "$body, $request: $answer";
            $nginx->finish;
        }
    }
};


# ---- clients

my ($node, $java, $go, $python) = map { find_program($_) } qw(node java go python3);
my ($node_major) = $node ? `$node --version` =~ /^v(\d+)/ : ();
my ($java_major) = $java ? `$java -version 2>&1` =~ /version "(\d+)/ : ();

my @clients = (
    { name => 'Python', language => 'python',
      text => block_of('Python', 'python'), file => 'client.py',
      run => [$python // ()], need => $python ? '' : 'python3 is not installed' },
    { name => 'JavaScript', language => 'javascript',
      text => block_of('JavaScript', 'javascript'), file => 'client.mjs',
      run => [$node // ()],
      need => !$node ? 'node is not installed'
            : $node_major < 18 ? "node is version $node_major, not 18" : '' },
    { name => 'Go', language => 'go',
      text => block_of('Go', 'go'), file => 'client.go',
      need => $go ? '' : 'go is not installed' },
    { name => 'Java', language => 'java',
      text => block_of('Java', 'java'), file => 'Client.java',
      run => [$java // ()],
      need => !$java ? 'java is not installed'
            : $java_major < 11 ? "java is version $java_major, not 11"
            : system("$java --list-modules 2>/dev/null | grep -q jdk.compiler")
              ? 'java has no compiler' : '' },
    { name => 'Shell', language => 'sh',
      text => block_of('Shell', 'sh'), file => 'client.sh', run => ['sh'],
      need => find_program('curl') && find_program('shuf')
              ? '' : 'curl or shuf is not installed' },
);

# A token comes in 10 seconds, which no client would wait for by itself the first
# time. "/date" rejects always and has no number to wait for.

my $redis = RateLimit::Redis->start;

my $nginx = RateLimit::Nginx->start(
    workers => 1,
    conf    => "${patient}ratelimit_shards ${\ $redis->addr};\n"
               . "log_format retry '\$msec \$uri \$arg_k \$status "
               . "\$sent_http_retry_after';\n",
    server  => <<'EOC');
access_log %%DIR%%/logs/retry.log retry;
ratelimit_key $arg_k;

location /wait   { ratelimit_rate 6r/m; ratelimit_capacity 1;
                   try_files /none @done; }
location /day    { ratelimit_rate 1r/d; ratelimit_capacity 1;
                   try_files /none @done; }
location /date   { add_header Retry-After "Wed, 21 Oct 2015 07:28:00 GMT" always;
                   return 429; }
location /broken { return 500; }
location @done   { return 200 "done\n"; }
EOC

# The requests of a client to a path: hashes of time, status and wait.

sub visits {
    my ($path, $key) = @_;

    return map { /^([\d.]+) \Q$path $key\E (\d+) (.*)$/
                 ? { time => $1, status => $2, wait => $3 } : () }
           split /\n/, slurp($nginx->dir . '/logs/retry.log');
}


my %expected = (
    '/wait'   => '200 429 200',
    '/day'    => '200 429',
    '/date'   => '429 429 429 429',
    '/broken' => '500',
);

for my $client (@clients) {
    next if $client->{need};

    my $dir = $nginx->dir . "/$client->{language}";

    mkdir $dir;

    my $file = write_file("$dir/$client->{file}", $client->{text});

    # it must not take longer to compile than a token to come

    if ($client->{language} eq 'java' && find_program('javac')) {
        my $log = "$dir/log";

        is reap(spawn([find_program('javac'), '-d', $dir, $file], out => $log),
                120), 0, 'javac' or diag slurp($log);
        push @{ $client->{run} }, '-cp', $dir, 'Client';

    } elsif ($client->{language} eq 'go') {
        local @ENV{qw(GOCACHE GOPATH GO111MODULE)} = ("$dir/cache", "$dir/path",
                                                      'off');
        my $log = "$dir/log";

        is reap(spawn([$go, 'build', '-o', "$dir/client", $file], out => $log),
                120), 0, 'go build' or diag slurp($log);
        $client->{run} = ["$dir/client"];

    } else {
        push @{ $client->{run} }, $file;
    }

    # all at once: they mostly wait

    for my $path (sort keys %expected) {
        my $url = $nginx->url("$path?k=$client->{language}");

        is $nginx->get("$path?k=$client->{language}")->{status}, 200,
           "$client->{name}: the only token of $path"
            if $expected{$path} =~ /^200/;

        my $out = "$dir/out" . $path =~ tr{/}{-}r;

        $client->{task}{$path} = {
            out => $out, pid => spawn([@{ $client->{run} }, $url], out => $out),
        };
    }
}

for my $client (@clients) {
    SKIP: {
        skip "$client->{name}: $client->{need}", 1 if $client->{need};

        subtest "a client in $client->{name}" => sub {
            for my $path (sort keys %expected) {
                my ($pid, $out) = @{ $client->{task}{$path} }{qw(pid out)};
                my $code = reap($pid, 90);

                if (!defined $code) {
                    kill 'KILL', $pid;
                    reap($pid, 5);
                }

                my $good = $expected{$path} =~ /200$/;

                ok defined $code && ($code == 0) == $good,
                   "$path: " . ($good ? 'succeeds' : 'fails')
                    or diag slurp($out);
                is slurp($out), "done\n", 'and has the page' if $good;
                ok wait_until(sub {
                    $expected{$path} eq join ' ', map { $_->{status} }
                                                  visits($path, $client->{language})
                }), "$path: $expected{$path}"
                    or diag explain [visits($path, $client->{language})];
            }

            my @visits = visits('/wait', $client->{language});
            my $waited = $visits[-1]{time} - $visits[-2]{time};

            cmp_ok $waited, '>=', $visits[-2]{wait} - 0.1, 'waits for Retry-After';

            # 1, 2 and 4 seconds, and up to half of it; less is exact, more is a
            # busy machine

            @visits = visits('/date', $client->{language});

            my @waits = map { $visits[$_]{time} - $visits[$_ - 1]{time} } 1 .. 3;

            cmp_ok $waits[$_], '>=', 2 ** $_ - 0.1, 'doubles the wait' for 0 .. 2;
            ok scalar(grep { $waits[$_] > 1.02 * 2 ** $_ } 0 .. 2),
               'and adds a random time' or diag "@waits";
        };
    }
}

like $_->{text}, qr/\b(?i:attempts) *=+ *4\b/,
     "$_->{name}: 4 attempts" for @clients;

$nginx->finish;


# the clients of the last table are run by t/http/116-clients-retry.t

my $others = slurp('t/http/116-clients-retry.t');

for my $row (rows_after($section{'Libraries that retry'}, 'client')) {
    my ($name) = $row->[0] =~ /^(\w+)/;

    like $others, qr/^    subtest '$name\b/m, "$name is tested";
    like $others, qr/\Q$_\E/, $_ for (code_in($row->[1]))[0] =~ /(--[\w-]+|limit: 5)/g;
}


done_testing();
