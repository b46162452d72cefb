# gRPC through grpc_pass, with the client and the server of Python: what a
# rejected call looks like to a client, and to one that retries; and which
# requests are taken for gRPC.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(
    dead_port find_program patience reap slurp spawn temp_dir wait_until
    write_file
);

plan skip_all => 'this nginx has no HTTP/2 or no gRPC'
    if !RateLimit::Nginx->has_grpc;

# a Python of the user may stand before that of the system

my ($python) = grep { $_ && system("$_ -c 'import grpc' 2>/dev/null") == 0 }
               '/usr/bin/python3', find_program('python3');

plan skip_all => 'there is no grpc for Python' if !$python;

# Messages are bytes, so nothing has to be generated.  A service says what it
# got; a client prints what it got as JSON, one line for each call.

my $dir = temp_dir('grpc');
my $script = write_file("$dir/grpc_test.py", <<'EOP');
import json
import sys
import time
from concurrent import futures

import grpc

RETRY = json.dumps({"methodConfig": [{
    "name": [{}],
    "retryPolicy": {
        "maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "0.1s",
        "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    },
}]})


class Service(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method.endswith("/Stream"):
            return grpc.stream_unary_rpc_method_handler(
                lambda messages, context: b"%d" % sum(1 for _ in messages))

        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: b"got " + message)


def serve(file):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4),
                         handlers=(Service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    with open(file + ".new", "w") as out:
        out.write(str(port))

    import os
    os.rename(file + ".new", file)
    server.wait_for_termination()


def texts(metadata):
    return {name: value for name, value in metadata or ()
            if isinstance(value, str)}


def call(address, paths, retry):
    options = [("grpc.enable_http_proxy", 0)]

    if retry:
        options.append(("grpc.service_config", RETRY))

    with grpc.insecure_channel(address, options=options) as channel:
        for path in paths:
            start = time.monotonic()

            try:
                if path.endswith("/Stream"):
                    messages = (b"x" * 10000 for _ in range(200))
                    result = channel.stream_unary(path)(messages, timeout=60)
                else:
                    result = channel.unary_unary(path)(b"hello", timeout=60)

                answer = {"code": "OK", "message": result.decode()}

            except grpc.RpcError as error:
                answer = {"code": error.code().name,
                          "details": error.details(),
                          "initial": texts(error.initial_metadata()),
                          "trailing": texts(error.trailing_metadata())}

            answer["seconds"] = time.monotonic() - start
            print(json.dumps(answer), flush=True)


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    call(sys.argv[2], sys.argv[3:], sys.argv[1] == "retry")
EOP

my $service = spawn([$python, $script, 'serve', "$dir/port"], out => "$dir/log");

END {
    if ($service) {
        kill 'TERM', $service;
        reap($service, 5);
    }
}

ok wait_until(sub { -e "$dir/port" }, 30), 'a gRPC service'
    or BAIL_OUT(slurp("$dir/log"));

my $redis = RateLimit::Redis->start;
my $down = '127.0.0.1:' . dead_port();
my $upstream = '127.0.0.1:' . slurp("$dir/port");

my $nginx = RateLimit::Nginx->start(
    workers => 1,
    conf    => RateLimit::Nginx->http2_of(<<"EOC"));
ratelimit_shards ${\ $redis->addr};
ratelimit_redis_timeout 10s;
ratelimit_silence long_timeout;
ratelimit_redis_connect_timeout 10s;
log_format answer '\$uri \$status \$ratelimit_status \$sent_http_grpc_status';

server {
    listen 127.0.0.1:%%PORT2%% http2;
    server_name localhost;
    client_max_body_size 10m;
    access_log %%DIR%%/logs/answer.log answer;

    ratelimit_capacity 1;

    location /t.Default/ { ratelimit_rate 1r/h; grpc_pass grpc://$upstream; }
    location /t.Json/    { ratelimit_rate 1r/h; ratelimit_body json;
                           grpc_pass grpc://$upstream; }
    location /t.Problem/ { ratelimit_rate 1r/h; ratelimit_body problem;
                           grpc_pass grpc://$upstream; }
    location /t.Grpc/    { ratelimit_rate 1r/h; ratelimit_body grpc;
                           ratelimit_status 503; ratelimit_headers off;
                           grpc_pass grpc://$upstream; }
    location ~ "^/t\\.(?:Name|100%|caf\xc3\xa9)/"
                         { ratelimit_rate 1r/h; ratelimit_body grpc;
                           grpc_pass grpc://$upstream; }
    location /t.Never/   { ratelimit_rate 0r/s; grpc_pass grpc://$upstream; }
    location /t.Soon/    { ratelimit_rate 30r/m; grpc_pass grpc://$upstream; }
    location /t.Free/    { ratelimit off; grpc_pass grpc://$upstream; }
    location /t.Dry/     { ratelimit_rate 1r/h; ratelimit_dry_run on;
                           grpc_pass grpc://$upstream; }

    location /t.Page/    { ratelimit_rate 1r/h; error_page 429 = \@page;
                           grpc_pass grpc://$upstream; }
    location /t.Other/   { ratelimit_rate 1r/h; error_page 404 502 = \@page;
                           grpc_pass grpc://$upstream; }
    location \@page      { default_type application/grpc;
                           add_header grpc-status 9;
                           add_header grpc-message "the page";
                           return 200; }

    location /t.Down/    { ratelimit_shards $down; ratelimit_on_error closed;
                           ratelimit_rate 1r/h; grpc_pass grpc://$upstream; }
    location /t.DownJson/ { ratelimit_shards $down; ratelimit_on_error closed;
                           ratelimit_body json;
                           ratelimit_rate 1r/h; grpc_pass grpc://$upstream; }
    location /t.DownPage/ { ratelimit_shards $down; ratelimit_on_error closed;
                           error_page 503 = \@page;
                           ratelimit_rate 1r/h; grpc_pass grpc://$upstream; }
}

server {
    listen 127.0.0.1:%%PORT%%;
    server_name localhost;
    ratelimit_key \$arg_k;
    ratelimit_capacity 1;
    ratelimit_rate 1r/h;

    location /default { try_files /none \@done; }
    location /json    { ratelimit_body json; try_files /none \@done; }
    location /grpc    { ratelimit_body grpc; try_files /none \@done; }
    location /page    { error_page 429 \@busy; try_files /none \@done; }
    location \@done   { return 200 done; }
    location \@busy   { return 200 busy; }
}
EOC


# Calls on one channel, in turn: a list of hashes.

my $runs = 0;

sub calls {
    my ($mode, @paths) = @_;

    my $out = "$dir/out-" . ++$runs;
    my $pid = spawn([$python, $script, $mode, '127.0.0.1:' . $nginx->port(2),
                     @paths], out => $out);

    if (!defined reap($pid, patience(90))) {
        kill 'KILL', $pid;
        reap($pid, 5);
    }

    my @answers = map { JSON::PP::decode_json($_) } grep { /^\{/ }
                  split /\n/, slurp($out);

    is scalar @answers, scalar @paths, 'each call has an answer'
        or diag slurp($out);

    return @answers;
}


sub is_rejected {
    my ($answer, $details, $name) = @_;

    is $answer->{code}, 'RESOURCE_EXHAUSTED', "$name: the code";
    is $answer->{details}, $details, 'the message';

    my %metadata = (%{ $answer->{initial} }, %{ $answer->{trailing} });

    like $metadata{'grpc-retry-pushback-ms'}, qr/^3[56]\d\d000$/,
         'when to come again';
}


subtest 'a rejected call has the status RESOURCE_EXHAUSTED' => sub {
    my %message = (
        Default => 'rate limit exceeded',
        Json    => 'rate limit "localhost/t.Json/" exceeded',
        Problem => 'rate limit "localhost/t.Problem/" exceeded',
        Grpc    => 'rate limit "localhost/t.Grpc/" exceeded',
        Other   => 'rate limit exceeded',
    );

    for my $name (sort keys %message) {
        my ($passed, $rejected, $free) = calls('call', "/t.$name/Get",
                                               "/t.$name/Get", '/t.Free/Get');

        is $passed->{message}, 'got hello', "$name: the first call passes";
        is_rejected($rejected, $message{$name}, $name);
        is $free->{code}, 'OK', 'the connection goes on';

        my %metadata = (%{ $rejected->{initial} }, %{ $rejected->{trailing} });

        is $metadata{'retry-after'} // 'none',
           $name eq 'Grpc' ? 'none'
                           : $metadata{'grpc-retry-pushback-ms'} / 1000,
           'the headers of the limit are metadata';
        is $metadata{'x-ratelimit-limit'}, $name eq 'Grpc' ? undef : 1,
           'all of them';
    }

    ok wait_until(sub {
        slurp($nginx->dir . '/logs/answer.log') =~ m{/t\.Grpc/Get 200 REJECTED 8}
    }), 'the log has both statuses';

    my (undef, $dry) = calls('call', ('/t.Dry/Get') x 2);
    is $dry->{code}, 'OK', 'a dry run rejects nothing';
};


subtest 'a name is percent-encoded, and the client decodes it' => sub {
    my (undef, $rejected) = calls('call', ('/t.Name/Get') x 2);

    is_rejected($rejected, "rate limit \"localhost~^/t\\.(?:Name|100%|caf\xe9)/\""
                           . ' exceeded', 'a name with a percent sign and UTF-8');
};


subtest 'a call that sends a stream is rejected as a whole' => sub {
    my (@rejected) = calls('call', ('/t.Default/Stream') x 4, '/t.Free/Stream');
    my $free = pop @rejected;

    is_rejected($_, 'rate limit exceeded', 'a stream') for @rejected;
    is $free->{message}, '200', 'the connection goes on';
};


subtest 'a client with a retry policy obeys' => sub {
    my (undef, $never) = calls('retry', ('/t.Never/Get') x 2);

    is $never->{code}, 'RESOURCE_EXHAUSTED', 'no wait would help';
    is $never->{trailing}{'grpc-retry-pushback-ms'}
       // $never->{initial}{'grpc-retry-pushback-ms'}, '-1', 'do not retry';

    my ($first, $waited) = calls('retry', ('/t.Soon/Get') x 2);

    is $first->{code}, 'OK', 'a token';
    is $waited->{code}, 'OK', 'the next one, at the second attempt';
    cmp_ok $waited->{seconds}, '>=', 1.9, 'waits for it';

    my $log = slurp($nginx->dir . '/logs/answer.log');
    my @never = $log =~ m{^/t\.Never/Get .*}mg;
    my @soon = $log =~ m{^/t\.Soon/Get .*}mg;

    is scalar @never, 2, 'one attempt for each call' or diag "@never";
    is scalar(grep { /REJECTED/ } @soon), 1, 'one attempt in vain'
        or diag "@soon";
};


subtest 'without Redis and closed, the status is UNAVAILABLE' => sub {
    for my $name (qw(Down DownJson)) {
        my ($answer) = calls('call', "/t.$name/Get");

        is $answer->{code}, 'UNAVAILABLE', "$name: the code";
        is $answer->{details}, 'rate limit unavailable', 'the message';

        my %metadata = (%{ $answer->{initial} }, %{ $answer->{trailing} });

        is $metadata{'grpc-retry-pushback-ms'}, 1000, 'when to come again';
        is $metadata{'x-ratelimit-degraded'}, 'true', 'degraded';
    }
};


subtest 'an error page is used as before' => sub {
    for my $name (qw(Page DownPage)) {
        my ($first, $second) = calls('call', ("/t.$name/Get") x 2);

        is $first->{code}, 'OK', 'a token' if $name eq 'Page';
        is $second->{code}, 'FAILED_PRECONDITION', "$name: the code of the page";
        is $second->{details}, 'the page', 'its message';
    }
};


subtest 'the answer ends with its headers' => sub {
    my $nghttp = find_program('nghttp');

    plan skip_all => 'there is no nghttp' if !$nghttp;

    my $url = 'http://127.0.0.1:' . $nginx->port(2) . '/t.Default/Get';
    my $text = qx($nghttp -nv -H ':method: POST' -H 'content-type: application/grpc+proto' $url 2>&1);

    like $text, qr/recv\ HEADERS\ frame\ <[^>]*>\s*;\ END_STREAM
                   \ \|\ END_HEADERS/x, 'trailers only';
    like $text, qr{recv .* content-type: application/grpc$}m, 'the type';
    unlike $text, qr/recv DATA/, 'no data';

    $text = qx($nghttp -nv $url 2>&1);
    like $text, qr/recv .* :status: 429/, 'without that type: 429';
};


subtest 'which requests are gRPC' => sub {
    my $n = 0;

    # path, type of the request => status, type of the answer, body

    my @cases = (
        ['/default', 'application/grpc',         429, 'text/html'],
        ['/default', 'application/json',         429, 'text/html'],
        ['/default', 'application/grpc-web',     200, 'application/grpc-web'],
        ['/default', 'Application/gRPC-Web+proto; x=y',
                                                 200, 'application/grpc-web'],
        ['/default', 'application/grpc-web-text', 200,
                                                 'application/grpc-web-text'],
        ['/default', 'application/grpc-website', 429, 'text/html'],
        ['/default', 'application/grpc-web-texts', 429, 'text/html'],
        ['/json',    'application/grpc',         429, 'application/json'],
        ['/json',    'application/grpc-web',     200, 'application/grpc-web'],
        ['/page',    'application/grpc-web',     429, 'text/plain'],
        ['/grpc',    'application/json',         200, 'application/grpc'],
        ['/grpc',    'application/grpc-web',     200, 'application/grpc-web'],
    );

    for (@cases) {
        my ($path, $type, $status, $answer) = @$_;
        my $c = RateLimit::Load::connection($nginx->port);
        my $head = "POST $path?k=" . ++$n . " HTTP/1.1\r\nHost: localhost\r\n"
                   . "Content-Type: $type\r\nContent-Length: 5\r\n\r\n";

        $c->write("${head}hello");
        is $c->response->{status}, 200, "$path, $type: passes";

        $c->write("${head}hello");
        my $r = $c->response;

        is $r->{status}, $status, 'then not';
        is $r->{headers}{'content-type'}, $answer, 'the type';
        is $r->{headers}{'grpc-status'}, $answer =~ /grpc/ ? 8 : undef,
           'grpc-status';
        like $r->{headers}{'retry-after'}, qr/^3[56]\d\d$/, 'Retry-After';

        if ($answer =~ /grpc/) {
            is $r->{body}, '', 'no body';
            is $r->{headers}{'content-length'}, 0, 'Content-Length';
        }

        $c->write("GET $path HTTP/1.1\r\nHost: localhost\r\n\r\n");
        is $c->response->{status}, 200, 'the connection goes on';
        $c->close;
    }
};


$nginx->finish;

done_testing();
