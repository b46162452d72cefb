# Overrides: other numbers, a ban or an exemption for one key of a limit, made by
# the API, by redis-cli or on one machine without Redis, and keys that are reset.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();
use Time::HiRes qw(time);

use RateLimit::Cluster;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(patience wait_until);

my @redis = RateLimit::Redis->start_many(3);
my $JSON = JSON::PP->new->utf8->canonical;

my $PATIENT = "ratelimit_redis_timeout 5s;\n"
              . "ratelimit_redis_connect_timeout 5s;\n";
my $SHARDS = 'ratelimit_shards ' . join(' ', map { $_->addr } @redis) . ";\n";

my $LIMITS = <<'EOC';
    ratelimit_silence client_value unused_limit no_shards;
    ratelimit_deny_cache 60s;
    ratelimit_limit user   key=$arg_key capacity=5 rate=5r/d;
    ratelimit_limit lean   key=$arg_key capacity=5 rate=5r/d algorithm=gcra;
    ratelimit_limit window key=$arg_key capacity=5 window=1h
                           algorithm=sliding_window_log;
    ratelimit_limit dry    key=$arg_key capacity=5 rate=5r/d dry_run;
    ratelimit_limit plan   key=$arg_key capacity=$arg_c rate=1r/d;
EOC

my $SERVER = <<'EOC';
    location /user   { ratelimit user; try_files /none @ok; }
    location /lean   { ratelimit lean; try_files /none @ok; }
    location /window { ratelimit window; try_files /none @ok; }
    location /dry    { ratelimit dry; try_files /none @ok; }
    location /plan   { ratelimit plan; try_files /none @ok; }
    location /both   { ratelimit user window; try_files /none @ok; }
    location @ok     { add_header X-Status $ratelimit_status;
                       return 200 ok; }

    location /api/  { ratelimit_api write; }
    location /look/ { ratelimit_api; }
EOC


sub start {
    my ($conf, %opt) = @_;

    return RateLimit::Nginx->start(conf => "$conf$LIMITS", server => $SERVER,
                                   workers => 2, log => 'info', %opt);
}


sub get { return $_[0]->get("/api/$_[1]") }
sub answer { return $JSON->decode(get(@_)->{body}) }


sub change {
    my ($nginx, $method, $path, $body, %headers) = @_;

    return RateLimit::Load::request(
        $nginx->port, $method, "/api/$path",
        { 'X-RateLimit-Write' => 1,
          defined $body ? ('Content-Type' => 'application/json') : (),
          %headers },
        ref $body ? $JSON->encode($body) : $body);
}


sub override {
    my ($nginx, $limit, $key, %fields) = @_;

    return change($nginx, 'PUT', "limits/$limit/keys/$key/override", \%fields);
}


# How many of n requests pass.

sub passed {
    my ($nginx, $limit, $key, $n) = @_;

    return scalar grep { $_ == 200 }
                  map { $nginx->get("/$limit?key=$key")->{status} } 1 .. $n;
}


# Whether the bucket is full, and the machine does not reject by itself.

sub forgotten {
    my ($nginx, $limit, $key) = @_;

    my $state = answer($nginx, "limits/$limit/keys/$key");

    return $state->{remaining} == $state->{capacity}
           && !$state->{here}{denied};
}


sub eventually {
    my ($name, $code) = @_;

    ok wait_until($code, 10), $name;
}


my @nginx = map { start("$PATIENT$SHARDS") } 1, 2;


for my $limit (qw(user lean window)) {
    subtest "$limit: a raised capacity, on both machines" => sub {
        my $key = "raise-$limit";

        is passed($nginx[0], $limit, $key, 7), 5, 'five pass';
        is passed($nginx[1], $limit, $key, 2), 0, 'none on the other machine';

        my $r = override($nginx[0], $limit, $key, capacity => 8,
                         reason => 'a good customer');
        is $r->{status}, 200, 'the override is set' or diag $r->{body};
        is_deeply $JSON->decode($r->{body}),
            { limit => $limit, key => $key, capacity => 8, rate => undef,
              cost => undef, exempt => JSON::PP::false, ban => JSON::PP::false,
              until => undef, reason => 'a good customer' }, 'and shown';

        eventually 'the other machine knows it' => sub {
            answer($nginx[1], "limits/$limit/keys/$key")->{override};
        };

        # a bucket keeps its tokens, a window its entries

        my $more = $limit eq 'window' ? 3 : $limit eq 'lean' ? 3 : 0;

        is passed($nginx[1], $limit, $key, 5), $more, "then $more pass";

        is change($nginx[1], 'DELETE', "limits/$limit/keys/$key")->{status}, 200,
           'it is reset on the other machine';

        eventually 'the first one knows that' => sub {
            forgotten($nginx[0], $limit, $key);
        };

        is passed($nginx[0], $limit, $key, 4), 4, 'four pass here,';
        is passed($nginx[1], $limit, $key, 9), 4, 'four there,';
        is passed($nginx[0], $limit, $key, 3), 0, 'and no more';

        is change($nginx[0], 'DELETE',
                  "limits/$limit/keys/$key/override")->{status}, 200,
           'the override is removed';
        eventually 'on the other machine, too' => sub {
            !answer($nginx[1], "limits/$limit/keys/$key")->{override};
        };
        is change($nginx[0], 'DELETE',
                  "limits/$limit/keys/$key/override")->{status}, 404,
           'it can be removed once';

        is change($nginx[0], 'DELETE', "limits/$limit/keys/$key")->{status},
           200, 'reset again';
        eventually 'on the other machine' => sub {
            forgotten($nginx[1], $limit, $key);
        };
        is passed($nginx[1], $limit, $key, 9), 5, 'five pass';
        is passed($nginx[0], $limit, $key, 2), 0, 'of both machines';
    };
}


subtest 'a rate and a cost' => sub {
    is override($nginx[0], 'user', 'fast', rate => '1000r/s', capacity => 100)
           ->{status}, 200, 'a rate';
    is passed($nginx[0], 'user', 'fast', 120), 120, 'refills quickly';

    is override($nginx[0], 'user', 'dear', cost => 2)->{status}, 200, 'a cost';
    is passed($nginx[0], 'user', 'dear', 6), 2, 'two of five tokens each';

    is override($nginx[0], 'plan', 'p', capacity => 3)->{status}, 200,
       'of a limit whose capacity is a variable';
    is passed($nginx[0], 'plan', 'p&c=9', 9), 3, 'it counts instead of that';
};


subtest 'a ban and an exemption' => sub {
    is override($nginx[0], 'user', 'bad', ban => JSON::PP::true, until => '1h',
                reason => "\x{fc}bel")->{status}, 200, 'a ban';
    is override($nginx[0], 'user', 'good', exempt => JSON::PP::true)->{status},
       200, 'an exemption';

    my $r = $nginx[0]->get('/user?key=bad');
    is $r->{status}, 429, 'rejected';
    cmp_ok $r->{headers}{'retry-after'}, '>', 3500, 'Retry-After';
    is $r->{headers}{'x-ratelimit-remaining'}, 0, 'nothing remains';
    is passed($nginx[0], 'both', 'bad', 1), 0, 'also beside another limit,';
    is answer($nginx[0], 'limits/window/keys/bad')->{remaining}, 5,
       'from which nothing is taken';

    is passed($nginx[0], 'user', 'good', 20), 20, 'the exempt one passes';
    is passed($nginx[0], 'both', 'good', 9), 5, 'the other limit counts';
    $r = $nginx[0]->get('/user?key=good');
    is $r->{headers}{'x-ratelimit-remaining'}, undef, 'and has no headers';
    is $r->{headers}{'x-status'}, 'SKIPPED', '$ratelimit_status';

    my $state = answer($nginx[0], 'limits/user/keys/bad');
    ok !$state->{passes}, 'the state of the banned one';
    ok $state->{override}{ban}, 'with its ban';
    is $state->{override}{reason}, '%C3%BCbel', 'and the reason';
    ok answer($nginx[0], 'limits/user/keys/good')->{passes}, 'of the other one';

    eventually 'both hold on the other machine' => sub {
        $nginx[1]->get('/user?key=bad')->{status} == 429
            && passed($nginx[1], 'user', 'good', 9) == 9;
    };

    ok $nginx[0]->log_like(qr/REJECTED, limit: "user", key: "[^"]+", cost.* source: override/),
       'the log says why it was rejected,';
    ok $nginx[0]->log_like(qr/SKIPPED, limit: "user", key: "[^"]+", source: override/),
       'and why it was not limited';
    ok $nginx[0]->log_like(qr/\[notice\].*ratelimit: override set, limit: "user", key: "[^"]+", override: "ban until=\d+ reason=\\xC3\\xBCbel".*client: 127/),
       'who set it is in the log';
    ok !$nginx[0]->log_like(qr/ratelimit: (?:override|key) .*request: /),
       'without the request, whose path has the key';

    my $dry = override($nginx[0], 'dry', 'd', ban => JSON::PP::true);
    is $dry->{status}, 200, 'a ban of a limit in a dry run';
    is passed($nginx[0], 'dry', 'd', 3), 3, 'rejects nobody';
};


subtest 'a reset is not lost when the override is removed' => sub {
    for my $with (0, 1) {
        my $key = "reset-$with";

        is passed($nginx[1], 'user', $key, 7), 5, 'five pass';
        ok !forgotten($nginx[1], 'user', $key), 'the bucket is empty';

        if ($with) {
            is override($nginx[0], 'user', $key, cost => 1)->{status}, 200,
               'an override';
        }

        is change($nginx[0], 'DELETE', "limits/user/keys/$key")->{status}, 200,
           'reset on another machine';

        my $r = change($nginx[0], 'DELETE', "limits/user/keys/$key/override");
        is $r->{status}, $with ? 200 : 404, 'the override is removed';
        is get($nginx[0], "limits/user/keys/$key/override")->{status}, 404,
           'there is none';
        is change($nginx[0], 'DELETE', "limits/user/keys/$key/override")
               ->{status}, 404, 'only once';

        eventually 'this machine forgets' => sub {
            forgotten($nginx[1], 'user', $key);
        };
    }
};


subtest 'lists and counters' => sub {
    my $list = answer($nginx[0], 'overrides?limit=user');
    is_deeply [sort map { $_->{key} } @{ $list->{overrides} }],
        [qw(bad dear fast good)], 'those of a limit';
    is $list->{total}, 4, 'their number';
    is answer($nginx[0], 'limits/user')->{overrides}, 4, 'also with the limit';
    cmp_ok scalar @{ answer($nginx[0], 'overrides')->{overrides} }, '==', 6,
           'all';
    is scalar @{ answer($nginx[0], 'overrides?n=2')->{overrides} }, 2, 'two';
    is answer($nginx[0], 'limits/user/keys/bad/override')->{key}, 'bad', 'one';
    is get($nginx[0], 'limits/user/keys/none/override')->{status}, 404, 'none';
    is get($nginx[0], 'overrides?limit=nobody')->{status}, 404, 'no limit';
};


subtest 'an override ends at its time' => sub {
    is override($nginx[0], 'user', 'short', ban => JSON::PP::true,
                until => int(time) + 2)->{status}, 200, 'for two seconds';
    is passed($nginx[0], 'user', 'short', 1), 0, 'banned';
    eventually 'not any more' => sub {
        passed($nginx[0], 'user', 'short', 1) == 1;
    };
    is answer($nginx[0], 'limits/user/keys/short')->{override}, undef, 'gone';
};


subtest 'by hand, as documented' => sub {
    my $table = 'ratelimit:{user}:overrides';
    my ($home) = grep { $_->cmd('EXISTS', $table) } @redis;

    ok $home, 'one server has the table';
    like $home->cmd('HGET', $table, 'bad'), qr/^ban until=\d+ reason=/,
         'readable';

    $home->cmd('HSET', $table, 'hand', 'ban', '', time);
    eventually 'an override made with redis-cli' => sub {
        passed($nginx[0], 'user', 'hand', 1) == 0
            && passed($nginx[1], 'user', 'hand', 1) == 0;
    };

    $home->cmd('HSET', $table, 'hand', 'exempt', '', time);
    eventually 'changed' => sub { passed($nginx[0], 'user', 'hand', 1) == 1 };

    $home->cmd('HDEL', $table, 'hand');
    eventually 'removed without a version' => sub {
        !answer($nginx[1], 'limits/user/keys/hand')->{override};
    };

    $home->cmd('HSET', $table, 'wrong', 'nonsense', '', time);
    eventually 'an invalid text is logged' => sub {
        grep { $_->log_like(qr/\[error\].*1 overrides of limit "user" are not applied: invalid text in "ratelimit:\{user\}:overrides"/) } @nginx;
    };
    is passed($nginx[0], 'user', 'wrong', 9), 5, 'and not applied';

    $home->cmd('DEL', $table);
    eventually 'the table is deleted' => sub {
        @{ answer($nginx[0], 'overrides?limit=user')->{overrides} } == 0
            && @{ answer($nginx[1], 'overrides?limit=user')->{overrides} } == 0;
    };
};


subtest 'keys of any bytes, and digests' => sub {
    my $long = 'k' x 300;

    for my $key ('a%2Fb', '%C3%BC%20%22', '%3Cb%3E', $long, 'sha1:x', '%7Bx%7D') {
        is override($nginx[0], 'user', $key, ban => JSON::PP::true)->{status},
           200, "set: $key";
        ok answer($nginx[0], "limits/user/keys/$key")->{override}{ban}, 'shown';
        is change($nginx[0], 'DELETE', "limits/user/keys/$key")->{status}, 200,
           'reset';
        ok answer($nginx[0], "limits/user/keys/$key")->{override}{ban},
           'which leaves the override';
        is change($nginx[0], 'DELETE',
                  "limits/user/keys/$key/override")->{status}, 200, 'removed';
    }

    is override($nginx[0], 'user', $long, ban => JSON::PP::true)->{status}, 200,
       'a key that Redis stores as a digest';
    is $nginx[0]->get("/user?key=$long")->{status}, 429, 'is found';
};


subtest 'wrong requests change nothing and say why' => sub {
    my $put = 'limits/user/keys/w/override';
    my $long = 'x' x 70_000;

    for (['PUT', $put, '{"ban":true}', 403, qr/X-RateLimit-Write/,
          'X-RateLimit-Write' => 0],
         ['DELETE', 'limits/user/keys/w', undef, 403, qr/X-RateLimit-Write/,
          'X-RateLimit-Write' => 'yes'],
         ['PUT', $put, '{"ban":true}', 415, qr/application\/json/,
          'Content-Type' => 'text/plain'],
         ['PUT', $put, "{\"reason\":\"$long\"}", 413, qr/at most 65536 bytes/],
         ['PUT', $put, '', 400, qr/a JSON object is expected/],
         ['PUT', $put, '[]', 400, qr/a JSON object is expected/],
         ['PUT', $put, '{"ban":true', 400, qr/closing brace/],
         ['PUT', $put, '{}', 400, qr/needs one of/],
         ['PUT', $put, '{"ban":false}', 400, qr/needs one of/],
         ['PUT', $put, '{"until":"1h"}', 400, qr/needs one of/],
         ['PUT', $put, '{"bans":true}', 400, qr/unknown field "bans"/],
         ['PUT', $put, '{"ban":1}', 400, qr/"ban": it must be true or false/],
         ['PUT', $put, '{"ban":true,"ban":true}', 400, qr/"ban" is repeated/],
         ['PUT', $put, '{"ban":true,"cost":1}', 400, qr/exclude each other/],
         ['PUT', $put, '{"exempt":true,"ban":true}', 400, qr/exclude each/],
         ['PUT', $put, '{"capacity":"5"}', 400, qr/"capacity": /],
         ['PUT', $put, '{"capacity":0}', 400, qr/"capacity": /],
         ['PUT', $put, '{"capacity":-1}', 400, qr/"capacity": /],
         ['PUT', $put, '{"capacity":1e3}', 400, qr/"capacity": /],
         ['PUT', $put, '{"capacity":99999999999999999999}', 400, qr/"capacity"/],
         ['PUT', $put, '{"rate":5}', 400, qr/"rate": /],
         ['PUT', $put, '{"rate":"5/s"}', 400, qr/"rate": /],
         ['PUT', $put, '{"cost":6}', 400, qr/6 is above capacity 5/],
         ['PUT', $put, '{"ban":true,"until":5}', 400, qr/in the future/],
         ['PUT', $put, '{"ban":true,"until":"soon"}', 400, qr/in the future/],
         ['PUT', $put, '{"ban":true,"until":1e10}', 400, qr/in the future/],
         ['PUT', $put, '{"ban":true,"until":"9223372036854775807s"}', 400,
          qr/too far in the future/],
         ['PUT', $put, '{"ban":true,"reason":"a\nb"}', 400, qr/control/],
         ['PUT', $put, '{"ban":true,"reason":"' . 'r' x 257 . '"}', 400,
          qr/256 bytes/],
         ['PUT', 'limits/window/keys/w/override', '{"rate":"5r/s"}', 400,
          qr/has a window and no rate/],
         ['PUT', 'limits/nobody/keys/w/override', '{"ban":true}', 404, qr/no limit/],
         ['PUT', 'limits/user/keys/w', '{"ban":true}', 405, qr/Allow/],
         ['POST', $put, '{"ban":true}', 405, qr/Allow/],
         ['DELETE', 'limits/user', undef, 405, qr/Allow/],
         ['DELETE', 'overrides', undef, 405, qr/Allow/])
    {
        my ($method, $path, $body, $status, $detail, %headers) = @$_;

        my $r = change($nginx[0], $method, $path, $body, %headers);

        is $r->{status}, $status, "$method $path "
                                  . substr($body // '', 0, 40);
        is $r->{headers}{'content-type'}, 'application/problem+json', 'type';
        like eval { $JSON->decode($r->{body})->{detail} } // '', $detail,
             'detail';
    }

    is $JSON->decode(change($nginx[0], 'PUT', $put, '{"cost":0}')->{body})
            ->{field}, 'cost', 'the field is named';

    my $allow = change($nginx[0], 'POST', $put, '{}')->{headers}{allow};
    is $allow, 'GET, HEAD, PUT, DELETE', 'Allow';

    my $r = RateLimit::Load::request(
        $nginx[0]->port, 'PUT', "/look/$put",
        { 'X-RateLimit-Write' => 1, 'Content-Type' => 'application/json' },
        '{"ban":true}');
    is $r->{status}, 403, 'an API without write';
    like $r->{body}, qr/ratelimit_api write/, 'says what to configure';

    is get($nginx[0], $put)->{status}, 404, 'nothing was set';
};


# A page of another origin may send any body, without asking first.

subtest 'the body of a refused request is no request' => sub {
    my $json = '{"ban":true}';
    my $body = "PUT /api/limits/user/keys/smuggled/override HTTP/1.1\r\n"
               . "Host: a\r\nX-RateLimit-Write: 1\r\n"
               . "Content-Type: application/json\r\n"
               . 'Content-Length: ' . length($json) . "\r\n\r\n$json";
    my $path = '/api/limits/user/keys/k/override';

    for (['POST', $path, '', 405], ['PUT', $path, '', 403],
         ['PUT', $path, "X-RateLimit-Write: 1\r\n", 415],
         ['PUT', '/api/none', '', 404], ['PUT', '/api/limits/none', '', 404],
         ['POST', '/api/none', '', 404], ['PUT', '/look/limits', '', 405],
         ['DELETE', $path, '', 403],
         ['PUT', $path, "X-RateLimit-Write: 1\r\n"
                        . "Content-Type: application/json\r\n", 413])
    {
        my ($method, $uri, $headers, $status) = @$_;
        my $text = $body . ($status == 413 ? ' ' x 70_000 : '');

        my $c = RateLimit::Load::connection($nginx[0]->port);
        $c->write("$method $uri HTTP/1.1\r\nHost: a\r\n$headers"
                  . 'Content-Length: ' . length($text) . "\r\n\r\n$text");
        is $c->response(10, $method)->{status}, $status, "$method $uri";
        $c->write("GET /api/servers HTTP/1.1\r\nHost: a\r\n"
                  . "Connection: close\r\n\r\n");
        is eval { $c->response(10, 'GET')->{status} }, 200, 'the next one';
        $c->close;
    }

    is get($nginx[0], 'limits/user/keys/smuggled/override')->{status}, 404,
       'nothing was set';
};


subtest 'a body in small pieces, and a client that leaves' => sub {
    my $c = RateLimit::Load::connection($nginx[0]->port);
    my $body = '{"capacity":7,"reason":"slow"}';

    $c->write("PUT /api/limits/user/keys/slow/override HTTP/1.1\r\nHost: a\r\n"
              . "X-RateLimit-Write: 1\r\nContent-Type: application/json\r\n"
              . "Transfer-Encoding: chunked\r\n\r\n");
    $c->write(sprintf "%x\r\n%s\r\n", length, $_) for split //, $body;
    $c->write("0\r\n\r\n");
    is $c->response(10, 'PUT')->{status}, 200, 'byte by byte';
    $c->close;

    for my $n (1 .. 20) {
        my $c = RateLimit::Load::connection($nginx[0]->port);
        $c->write("PUT /api/limits/user/keys/gone$n/override HTTP/1.1\r\n"
                  . "Host: a\r\nX-RateLimit-Write: 1\r\n"
                  . "Content-Type: application/json\r\n"
                  . "Content-Length: 12\r\n\r\n{\"ban\":true}");
        $c->close;
    }

    is passed($nginx[0], 'user', 'after', 1), 1, 'nginx goes on';
};


subtest 'many writers at once' => sub {
    my $path = '/api/limits/user/keys/many/override';

    my $load = RateLimit::Load::run(
        targets => [map { $_->port } @nginx], connections => 16,
        requests => 400, timeout => 60,
        path => sub {
            my ($n) = @_;

            return $n % 10 == 9
                   ? { path => $path, method => 'DELETE',
                       headers => { 'X-RateLimit-Write' => 1 } }
                   : { path => $path, method => 'PUT',
                       headers => { 'X-RateLimit-Write' => 1,
                                    'Content-Type' => 'application/json' },
                       body => $JSON->encode({ capacity => 10 + $n }) };
        });

    is $load->errors, 0, 'all are answered' or diag $load->error_text;
    is_deeply [grep { !/^(?:200|404)$/ } keys %{ $load->statuses }], [],
              'set, removed, or not there';

    is override($nginx[0], 'user', 'many', capacity => 7)->{status}, 200,
       'the last one';

    eventually 'is the one that all have in the end' => sub {
        my ($text) = grep { defined }
                     map { $_->cmd('HGET', 'ratelimit:{user}:overrides', 'many') }
                     @redis;

        $text eq 'capacity=7'
            && !grep { answer($_, 'limits/user/keys/many')->{capacity} != 7 }
                     @nginx;
    };
};


subtest 'Redis is away' => sub {
    my $nginx = start("ratelimit_redis_timeout 200ms; $SHARDS");
    my $table = 'ratelimit:{user}:overrides';

    is override($nginx, 'user', 'stay', ban => JSON::PP::true)->{status}, 200,
       'a ban';

    my ($home) = grep { $_->cmd('EXISTS', $table) } @redis;
    $home->pause;

    my $start = time;
    my $r = override($nginx, 'user', 'new', ban => JSON::PP::true);
    is $r->{status}, 503, 'a new one is not set';
    like $r->{body}, qr/the override is not set/, 'and said so';
    cmp_ok time - $start, '<', patience(3), 'within the timeout';
    is $nginx->get('/user?key=stay')->{status}, 429, 'the known one stays';
    is get($nginx, 'limits/user/keys/new/override')->{status}, 404,
       'nothing unwritten is shown';

    $home->resume;
    eventually 'it can be set afterwards' => sub {
        override($nginx, 'user', 'new', ban => JSON::PP::true)->{status} == 200;
    };

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'one machine without Redis' => sub {
    my $nginx = start('');

    for my $limit (qw(user lean window)) {
        is passed($nginx, $limit, 'a', 7), 5, "$limit: five pass";
        is change($nginx, 'DELETE', "limits/$limit/keys/a")->{status}, 200,
           'reset';
        is passed($nginx, $limit, 'a', 7), 5, 'five pass again';
        is override($nginx, $limit, 'a', exempt => JSON::PP::true)->{status},
           200, 'exempt';
        is passed($nginx, $limit, 'a', 9), 9, 'all pass';
    }

    $nginx->reload;

    is passed($nginx, 'user', 'a', 9), 9, 'a reload keeps it';
    is change($nginx, 'DELETE', 'limits/user/keys/a/override')->{status}, 200,
       'removed';
    is passed($nginx, 'user', 'a', 3), 0, 'the bucket is as it was';
    is_deeply [sort map { $_->{limit} }
                    @{ answer($nginx, 'overrides')->{overrides} }],
        [qw(lean window)], 'the others stay';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a restart of all machines keeps overrides' => sub {
    is override($nginx[0], 'user', 'kept', ban => JSON::PP::true)->{status}, 200,
       'a ban';

    $_->stop for @nginx;
    $_->no_alerts for @nginx;

    @nginx = (start("$PATIENT$SHARDS"));

    eventually 'it holds' => sub {
        $nginx[0]->get('/user?key=kept')->{status} == 429;
    };
};


subtest 'more overrides than there is memory for' => sub {
    my $nginx = start("ratelimit_overrides 64k;\n");
    my ($set, $r) = (0);

    while ($set < 1000) {
        $r = override($nginx, 'user', "full-$set", ban => JSON::PP::true);
        last if $r->{status} != 200;
        $set++;
    }

    is $r->{status}, 507, 'no room any more';
    like $r->{body}, qr/of this machine is full: make it larger/, 'why';
    cmp_ok $set, '>', 50, 'some were set';
    is $nginx->get('/user?key=full-7')->{status}, 429, 'they hold';
    is passed($nginx, 'user', "full-$set", 1), 1, 'the last one was not set';
    is change($nginx, 'DELETE', 'limits/user/keys/full-7/override')->{status},
       200, 'one is removed';

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a user without the rights' => sub {
    my $redis = RateLimit::Redis->start;

    $redis->cmd('ACL', 'SETUSER', 'limiter', 'on', '>secret', '~*', '+@all',
                '-hlen', '-hscan');

    my $nginx = start($PATIENT . 'ratelimit_shards ' . $redis->addr . ";\n"
                      . "ratelimit_redis_user limiter;\n"
                      . "ratelimit_redis_password secret;\n");

    eventually 'it is logged' => sub {
        $nginx->log_like(qr/\[error\].*overrides of limit "user" cannot be read: redis limiter@\S+ refused HLEN of "ratelimit:\{user\}:overrides": "NOPERM/);
    };
    is passed($nginx, 'user', 'a', 7), 5, 'limits are not affected';
    is answer($nginx, 'servers')->{servers}[0]{breaker}, 'distributed',
       'nor is the breaker';

    $redis->cmd('ACL', 'SETUSER', 'limiter', '+hlen', '+hscan');
    $redis->cmd('HSET', 'ratelimit:{user}:overrides', 'a', 'exempt', '', 1);
    eventually 'with the rights it works' => sub {
        passed($nginx, 'user', 'a', 1) == 1;
    };

    $nginx->stop;
    $nginx->no_alerts;
};


subtest 'a machine that does not ask' => sub {
    my $nginx = start("$PATIENT$SHARDS ratelimit_overrides off;\n");

    is answer($nginx, '')->{overrides}, 'off', 'the index says so';
    is get($nginx, 'overrides')->{status}, 404, 'there is no list';
    is override($nginx, 'user', 'x', ban => JSON::PP::true)->{status}, 404,
       'and nothing to set';
    is answer($nginx, 'limits/user')->{overrides}, undef, 'of no limit';
};


subtest 'in a cluster' => sub {
    my $cluster = RateLimit::Cluster->start;
    my @nginx = map {
        start($PATIENT . 'ratelimit_shards cluster ' . $cluster->addrs
              . ";\n");
    } 1, 2;

    ok wait_until(sub { passed($nginx[0], 'user', 'warm', 1) }, 10), 'it works';

    for my $limit (qw(user lean window)) {
        is passed($nginx[0], $limit, 'c', 7), 5, "$limit: five pass";
        is override($nginx[0], $limit, 'b', ban => JSON::PP::true)->{status},
           200, 'a ban';
        is change($nginx[1], 'DELETE', "limits/$limit/keys/c")->{status}, 200,
           'a reset on the other machine';
        eventually 'both hold on both' => sub {
            $nginx[1]->get("/$limit?key=b")->{status} == 429
                && forgotten($nginx[0], $limit, 'c');
        };
        is passed($nginx[0], $limit, 'c', 7), 5, 'five pass';
    }

    $_->stop for @nginx;
    $_->no_alerts for @nginx;
};


$_->stop for @nginx;
$_->no_alerts for @nginx;

done_testing;
