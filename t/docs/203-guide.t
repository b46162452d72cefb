# docs/guide.md against the module: each configuration does what the text and the
# tables around it say.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs 'docs/guide.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(wait_until);

# a section on one line
my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;


# Statuses of N requests for a path.

sub statuses {
    my ($nginx, $path, $n, %headers) = @_;

    return join ' ', map { $nginx->get($path, %headers)->{status} } 1 .. $n;
}


# Whole tokens of a bucket.

sub whole {
    my ($key, @redis) = @_;

    return sprintf '%.0f', state_of($key, @redis);
}


subtest 'nginx loads each configuration' => sub {
    load_ok($_) for @{ $block{nginx} };
};


subtest 'a first limit' => sub {
    my $redis = RateLimit::Redis->start;
    my @nginx = map { nginx_of('A first limit', [$redis]) } 1 .. 2;

    my $load = RateLimit::Load::run(targets => [map { $_->port } @nginx],
                                    connections => 10, requests => 120,
                                    path => '/api/', keep => 1);

    is_deeply $load->statuses, { 404 => 100, 429 => 20 },
              'two machines admit 100 requests';
    is_deeply [grep { $_->{status} == 429 && !$_->{headers}{'retry-after'} }
                    $load->responses], [], 'a rejection has a Retry-After';

    $_->finish for @nginx;
};


subtest 'what happens to a request' => sub {
    my @statuses = map { code_in($_->[1]) }
                   grep { $_->[1] =~ /^`/ } table_of($section{'What happens to a request'});
    my %seen = map { $_ => 1 } grep { /^[A-Z]/ } @statuses;

    is_deeply [sort keys %seen],
              [qw(DEGRADED PASSED REJECTED REJECTED_DRY_RUN REJECTED_PREVIEW
                  SKIPPED)],
              'all values of $ratelimit_status';

    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC');
add_header X-Status $ratelimit_status always;

server {
    listen 127.0.0.1:%%PORT%%;
    server_name localhost;

    location /passed {
        ratelimit_rate 1r/d;
        location /passed/quota { ratelimit_preview on; }
    }
    location /dry    { ratelimit_rate 1r/d; ratelimit_dry_run on; }
    location /empty  { ratelimit_rate 1r/d; ratelimit_key ""; }
    location /down   { ratelimit_rate 1r/d; ratelimit_shards 127.0.0.1:1; }
    location /failed { ratelimit_rate 9r/d; proxy_pass http://127.0.0.1:1; }

    location /main {
        ratelimit_rate 9r/d;
        auth_request   /sub;
        mirror         /sub;
    }

    location /sub {
        ratelimit_key  sub;
        ratelimit_rate 1r/d;
        proxy_pass     http://127.0.0.1:%%PORT9%%;
    }
}

server {
    listen 127.0.0.1:%%PORT9%%;
    location / { return 204; }
}
EOC

    my $status = sub {
        my $response = $nginx->get($_[0]);

        return "$response->{status} $response->{headers}{'x-status'}";
    };

    is $status->('/passed'), '404 PASSED', 'enough tokens';
    is $status->('/passed'), '429 REJECTED', 'not enough';
    is $status->('/passed/quota'), '404 REJECTED_PREVIEW', 'a preview';
    is $status->('/dry'), '404 PASSED', 'dry run';
    is $status->('/dry'), '404 REJECTED_DRY_RUN', 'dry run, not enough';
    is $status->('/empty'), '404 SKIPPED', 'no limit applies';
    is $status->('/down'), '404 DEGRADED', 'no Redis';
    is $status->('/down'), '429 REJECTED', 'this machine limits by itself';

    is $status->('/main'), '404 PASSED', "main request $_" for 1 .. 3;
    is_deeply $redis->cmd('KEYS', '*sub*'), [], 'subrequests do not count';

    is $status->('/failed'), '502 PASSED', 'the backend fails';
    is whole('ratelimit:localhost/failed:{127.0.0.1}', $redis), 8, 'charged';

    $nginx->finish;
};


subtest 'limits are inherited as described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Inheritance', [$redis],
                         more => "ratelimit_headers draft-8;\n");

    # the rates are those of a day

    my $expected = {
        '/a' => '"example.com";q=200;w=172800, "burst";q=50;w=86400',
        '/b' => '"example.com";q=200;w=172800, "burst";q=50;w=86400',
        '/c' => '"example.com/c";q=200;w=1728000, "burst";q=50;w=86400',
        '/d' => undef,
        '/e' => '"example.com/e";q=5;w=86400',
    };

    my @rows = grep { $_->[0] =~ m{^`/} } table_of($section{Inheritance});

    is_deeply { map { (code_in($_->[0]))[0] => $nginx->get((code_in($_->[0]))[0])
                      ->{headers}{'ratelimit-policy'} } @rows },
              $expected, 'limits of each location';
    is whole('ratelimit:example.com:{127.0.0.1}', $redis), 194,
       '/a and /b share the bucket of the server';
    is whole('ratelimit:burst:{127.0.0.1}', $redis), 43, 'and all three "burst"';

    # what the table says of a bucket is its capacity

    for (@rows) {
        my ($path) = code_in($_->[0]);
        my ($size) = $_->[1] =~ /bucket of (\d+) tokens/ or next;

        like $expected->{$path}, qr/;q=$size;/, "$path: $size";
    }

    $nginx->finish;
};


subtest 'several limits do what is described' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $nginx = nginx_of('Several limits', \@redis);

    my $get = sub {
        my ($path, $account) = @_;

        return $nginx->get($path,
                                    'X-Account' => $account);
    };

    my $statuses = sub {
        my ($n, @args) = @_;

        return join ' ', map { $get->(@args)->{status} } 1 .. $n;
    };

    $_->reset_calls for @redis;
    is $statuses->(6, '/login', 'a'), '404 404 404 404 404 429', 'a login';
    is calls_of(@redis), 6, 'one key: a call each, on three shards';

    is state_of('ratelimit:login:{a}', @redis), 5, 'login: 5 entries';
    is whole('ratelimit:burst:{a}', @redis), 15,
       'burst: the rejected one has cost nothing';
    is whole('ratelimit:daily:{a}', @redis), 4995, 'daily';

    is $get->('/', 'a')->{headers}{'x-ratelimit-limit'}, 20,
       'elsewhere: the list of the server, and the same bucket';
    is whole('ratelimit:burst:{a}', @redis), 14, 'less';
    is_deeply [grep { /ratelimit/ } keys %{ $get->('/health', 'a')->{headers} }],
              [], 'off';

    $nginx->finish;

    # different keys: a call each on several shards, one on a single server

    for my $n (1, 3) {
        my $shards = join ' ', map { $_->addr } @redis[0 .. $n - 1];
        my $names = join ' ', map { "l$_" } 1 .. 9;

        $nginx = RateLimit::Nginx->start(
            conf   => "${patient}ratelimit_shards $shards;\n" . join('',
                      map { "ratelimit_limit l$_ key=k$_ rate=100r/d;\n" } 1 .. 9),
            server => "location / { ratelimit $names; }");

        $_->reset_calls for @redis;
        $nginx->get('/');
        is calls_of(@redis), $n, "nine keys, $n shards: calls";
        $nginx->finish;
    }

    # which limit is reported

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis[0]->addr};\n" . <<'EOC',
ratelimit_limit minute key=x capacity=2 rate=1r/m;
ratelimit_limit hour   key=x capacity=2 rate=1r/h;
ratelimit_limit large  key=x capacity=9 rate=1r/h;
ratelimit_limit shadow key=x capacity=1 rate=1r/d dry_run;
ratelimit_limit none   key=$arg_none capacity=1 rate=1r/h;

add_header X-Name $ratelimit_name always;
EOC
        server => <<'EOC');
ratelimit_headers draft-8;
ratelimit         minute;

location /two    { ratelimit shadow large minute hour none; }
location /unnamed { ratelimit_rate 1r/h; }
location /off    { ratelimit off; ratelimit_rate 1r/h; }
EOC

    $get = sub { $nginx->get($_[0])->{headers} };

    is $get->('/two')->{'x-name'}, 'minute', 'passed: the smallest part left';
    is $get->('/unnamed')->{'ratelimit-policy'},
       '"localhost/unnamed";q=1;w=3600, "minute";q=2;w=120',
       'a limit without a name beside those of the level above';
    is $get->('/off')->{'ratelimit-policy'}, '"localhost/off";q=1;w=3600',
       'off: nothing from above';

    $redis[0]->cmd('FLUSHALL');
    $get->('/two') for 1 .. 2;

    my $h = $get->('/two');

    is $h->{'x-name'}, 'hour', 'rejected: the longest wait';
    is $h->{'ratelimit-policy'},
       '"large";q=9;w=32400, "minute";q=2;w=120, "hour";q=2;w=7200',
       'neither what is tried nor what does not apply is listed';
    like $h->{'ratelimit'}, qr/^"hour";r=0;t=36\d\d$/, 'RateLimit';

    my $rejected = qr/ratelimit REJECTED, limit: "(\w+)"/;

    is_deeply [sort $nginx->error_log =~ /$rejected/g], [qw(hour minute)],
              'a line for each that rejects';
    is $nginx->log_count(qr/REJECTED_DRY_RUN, limit: "shadow"/), 2,
       'and for what would have';

    $nginx->finish;

    # a shard is unavailable

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ join ' ', map { $_->addr } @redis};\n"
                  . <<'EOC',
ratelimit_limit here  key=$arg_here capacity=2 rate=1r/d;
ratelimit_limit there key=$arg_there capacity=2 rate=1r/d;

add_header X-Status $ratelimit_status always;
add_header X-Name   $ratelimit_name always;
add_header X-Source $ratelimit_source always;
EOC
        server => <<'EOC');
location /open    { ratelimit here there; ratelimit_on_error open; }
location /closed  { ratelimit here there; ratelimit_on_error closed; }
location /local   { ratelimit here there; ratelimit_local_share 1/2;
                    ratelimit_deny_cache off; }
location /look    { ratelimit there; ratelimit_preview on;
                    ratelimit_local_share 1/2; }
EOC

    # a key on the first shard, one on the second

    my %key;

    for (1 .. 100) {
        $nginx->get("/open?here=k$_");

        for my $i (0, 1) {
            $key{$i} //= "k$_" if $redis[$i]->cmd('EXISTS', "ratelimit:here:{k$_}");
        }

        last if keys %key == 2;
    }

    $_->cmd('FLUSHALL') for @redis;
    $redis[1]->stop;

    my $args = "here=$key{0}&there=$key{1}";
    my $tokens = sub { state_of("ratelimit:here:{$key{0}}", $redis[0]) };

    ok wait_until(sub {
        $nginx->get("/closed?there=$key{1}")->{status}
        == 503
    }), 'a shard is unavailable';

    my $response = $nginx->get("/closed?$args");

    is $response->{status}, 503, 'closed: rejected';
    is $response->{headers}{'x-name'}, 'there', 'by the limit without its shard';
    ok wait_until(sub { ($tokens->() // 2) == 2 }), 'nothing was taken';

    $response = $nginx->get("/open?$args");
    is $response->{headers}{'x-status'}, 'DEGRADED', 'open: degraded';
    is $response->{headers}{'x-ratelimit-degraded'}, 'true', 'with the headers';
    is $response->{headers}{'x-ratelimit-remaining'}, 1, 'of both';
    is $response->{headers}{'x-name'}, 'here', 'the other one is reported';
    is $response->{headers}{'x-source'}, 'open', 'but did not decide';

    $nginx->get("/open?$args");
    is $nginx->get("/open?$args")->{status}, 429,
       'and still rejects';

    # the local share of this machine

    $redis[0]->cmd('FLUSHALL');

    my @responses;

    for (1 .. 3) {
        push @responses, $nginx->get("/local?$args");

        # the refund arrives before the next request
        wait_until(sub { abs($tokens->() - 1) < 0.1 });
    }

    is join(' ', map { "$_->{status} $_->{headers}{'x-status'}" } @responses),
       '404 DEGRADED 429 REJECTED 429 REJECTED', 'local: half of two';
    is $responses[2]{headers}{'x-name'}, 'there', 'by the limit without its shard';
    is $responses[2]{headers}{'x-source'}, 'local', 'decided here';
    ok wait_until(sub { abs($tokens->() - 1) < 0.1 }),
       'tokens that the others took in Redis are refunded';

    $redis[0]->bucket_set("ratelimit:here:{$key{0}}", tokens => 0);
    $args =~ s/there=.*/there=/;

    my ($new) = grep { $nginx->get("/look?there=$_")
                       ->{headers}{'x-source'} eq 'local' } 'a' .. 'z';

    is $nginx->get("/local?$args$new")
       ->{headers}{'x-name'}, 'here', 'Redis rejects';
    is $nginx->get("/look?there=$new")
       ->{headers}{'x-ratelimit-remaining'}, 1, 'and nothing is taken here';

    $nginx->finish;
};


subtest 'the order of phases and redirects are as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};
                 limit_req_zone \$server_name zone=first:1m rate=1r/m;",
        server => <<'EOC');
location /auth {
    ratelimit_rate 2r/h;
    auth_basic     x;
    auth_basic_user_file %%DIR%%/nobody;
}
location /any {
    ratelimit_rate 2r/h;
    satisfy        any;
    deny           all;
    auth_basic     x;
    auth_basic_user_file %%DIR%%/nobody;
}
location /granted {
    ratelimit_rate 2r/h;
    satisfy        any;
    allow          all;
    try_files      "" @other;
}
location /return {
    ratelimit_rate 1r/h;
    return         204;
}
location /first {
    ratelimit_rate 3r/h;
    error_page     404 /second;
    error_page     429 = @other;
}
location /second {
    ratelimit_rate 1r/h;
    try_files      /none @other;
}
location /skipped {
    ratelimit_key  "";
    ratelimit_rate 9r/h;
    try_files      /none @last;
}
location @last {
    ratelimit_rate 1r/h;
    try_files      /none =418;
}
location @other {
    ratelimit_rate 9r/h;
    try_files      /none =418;
}
location /limit_req {
    limit_req      zone=first;
    ratelimit_rate 9r/h;
    try_files      /none =418;
}
EOC

    my $statuses = sub {
        my ($path, $n) = @_;

        return join ' ', map { $nginx->get($path)
                               ->{status} } 1 .. $n;
    };

    is $statuses->('/auth', 3), '401 401 429', 'before authentication';
    is $statuses->('/any', 3), '401 401 429', 'satisfy any: nothing is granted';
    is $statuses->('/granted', 3), '418 418 429', 'and a rejection is final';
    is $statuses->('/return', 3), '204 204 204', 'return comes before a limit';

    my @response = map { $nginx->get('/first') } 1 .. 4;

    is join(' ', map { $_->{headers}{'x-ratelimit-remaining'} } @response),
       '2 1 0 0', 'redirects: the first limit decides';
    is join(' ', map { $_->{headers}{'x-ratelimit-limit'} } @response),
       '3 3 3 3', 'and its headers stay';
    is scalar @{ $redis->cmd('KEYS', '*first*') }, 1, 'its bucket';
    is scalar @{ $redis->cmd('KEYS', '*second*') }, 0, 'is the only one';

    is $statuses->('/limit_req', 2), '418 503', 'limit_req comes first';
    is whole('ratelimit:localhost/limit_req:{127.0.0.1}', $redis), 8,
       'its rejection is not charged';

    is $statuses->('/skipped', 2), '418 429', 'an empty key decides nothing';

    $nginx->finish;
};


subtest 'redirects from a preview or a dry run are as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};
                 ratelimit_preview_cache off;\n" . <<'EOC',
ratelimit_limit first  key=$arg_k capacity=10 rate=10r/d;
ratelimit_limit second key=$arg_k capacity=20 rate=20r/d;

add_header X-Name   $ratelimit_name always;
add_header X-Status $ratelimit_status always;
EOC
        server => <<'EOC');
location /dry-enforced      { ratelimit first; ratelimit_dry_run on;
                              try_files /none @enforced; }
location /preview-enforced  { ratelimit first; ratelimit_preview on;
                              try_files /none @enforced; }
location /preview-dry       { ratelimit first; ratelimit_preview on;
                              try_files /none @dry; }
location /preview-none      { ratelimit first; ratelimit_preview on;
                              try_files /none @none; }
location /dry-dry           { ratelimit first; ratelimit_dry_run on;
                              try_files /none @dry; }
location /dry-preview       { ratelimit first; ratelimit_dry_run on;
                              try_files /none @preview; }
location /same              { ratelimit first; ratelimit_dry_run on;
                              try_files /none @same; }
location /cost              { ratelimit first; ratelimit_dry_run on;
                              try_files /none @cost; }
location /empty             { ratelimit first;
                              try_files /none @both; }

location @enforced { ratelimit second; try_files /none =418; }
location @dry      { ratelimit second; ratelimit_dry_run on;
                     try_files /none =418; }
location @preview  { ratelimit second; ratelimit_preview on;
                     try_files /none =418; }
location @none     { ratelimit off; try_files /none =418; }
location @same     { ratelimit first; try_files /none =418; }
location @cost     { ratelimit first; ratelimit_cost 2; try_files /none =418; }
location @both     { ratelimit_key x; ratelimit_rate 7r/d; try_files /none =418; }
EOC

    # path: the reported limit, what the two have taken

    my @rows = (
        ['dry-enforced',     'second', 1, 1],
        ['preview-enforced', 'second', 0, 1],
        ['preview-dry',      'first',  0, 1],
        ['preview-none',     'first',  0, 0],
        ['dry-dry',          'first',  1, 0],
        ['dry-preview',      'first',  1, 0],
        ['same',             'first',  1, 0],
        ['cost',             'first',  3, 0],
    );

    for (@rows) {
        my ($path, $name, $first, $second) = @$_;

        my $response = $nginx->get("/$path?k=$path");

        is $response->{headers}{'x-name'}, $name, "$path: the reported limit";
        is 10 - (state_of("ratelimit:first:{$path}", $redis) // 10) =~ s/\..*//r,
           $first, "$path: taken from the first";
        is 20 - (state_of("ratelimit:second:{$path}", $redis) // 20) =~ s/\..*//r,
           $second, "$path: taken from the second";
    }

    is $nginx->get('/empty?k=')->{headers}{'x-ratelimit-limit'}, 7,
       'empty keys: the next location decides';

    # a decision of a dry run is enforced

    is statuses($nginx, '/same?k=all', 11),
       join(' ', (418) x 10, 429), 'the same limit: its first decision counts';

    $nginx->finish;
};


subtest 'costs do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Cost', [$redis]);

    $nginx->get('/');
    RateLimit::Load::request($nginx->port, 'POST', '/', {}, 'x');

    is whole('ratelimit:requests:{127.0.0.1}', $redis), 98,
       'cost= of the limit';
    is whole('ratelimit:points:{127.0.0.1}', $redis), 494,
       'ratelimit_cost of the place, by method';

    $nginx->finish;

    # above the capacity, beside another limit

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC',
ratelimit_limit small key=$remote_addr capacity=5 rate=5r/d;
ratelimit_limit other key=$remote_addr capacity=50 rate=50r/d cost=1;
EOC
        server => 'location / { ratelimit other small; ratelimit_cost $arg_cost; }');

    my $response = $nginx->get('/?cost=6');

    is $response->{status}, 429, 'a cost above the capacity';
    is $response->{headers}{'retry-after'}, undef, 'no Retry-After';
    is state_of('ratelimit:other:{127.0.0.1}', $redis), undef,
       'nothing was taken';
    ok $nginx->log_like(qr/\[warn\].*\bcost 6 .*capacity 5 of limit "small"/),
       'a warning';
    ok !$nginx->log_like(qr/SKIPPED/), 'and nothing that is not so';

    $nginx->finish;
};


subtest 'no value of a variable switches a limit off' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};",
        server => 'location / { ratelimit_key $arg_key; ratelimit_capacity 200000;
                                ratelimit_rate 1r/d; ratelimit_cost $arg_cost;
                                ratelimit_on_error closed; }
                   location /metrics { ratelimit_metrics; }');

    # values of each row of the table

    my %values = (
        'empty, or `0`'                   => ['', '0'],
        '`1` to `100000`'                 => ['1', '42', '100000'],
        'above `100000`'                  => ['100001', '9' x 30],
        'negative, or not a whole number' => ['-1', '1.5', 'x', '%20'],
    );
    my $wrong = 0;

    for (table_of($section{'Costs that clients influence'})) {
        my ($row, $cost) = @$_;

        next if $row eq 'value';

        for my $value (@{ delete $values{$row} || die "values of $row\n" }) {
            my $response = $nginx->get("/x?key=key$value&cost=$value");

            is $response->{status}, 404, "cost '$value'";
            is 200000 - $response->{headers}{'x-ratelimit-remaining'},
               $cost eq 'that number' ? $value : $cost, 'is charged';
            $wrong++ if $row =~ /above|negative/;
        }
    }

    is_deeply \%values, {}, 'all rows';

    my ($counted) = $nginx->get('/metrics')->{body}
                    =~ /^nginx_ratelimit_invalid_values_total\S* (\d+)$/m;

    is $counted, $wrong, 'wrong values are counted';
    $nginx->finish;

    # a body of unknown length has a price

    $nginx = nginx_of('Costs that clients influence', [$redis]);

    my $remaining = sub {
        $redis->cmd('FLUSHALL');

        return 500000 - RateLimit::Load::request($nginx->port, @_)
                        ->{headers}{'x-ratelimit-remaining'};
    };

    is $remaining->('GET', '/upload'), 1, 'no body';
    is $remaining->('POST', '/upload', {}, '12345'), 5, 'a length';
    is $remaining->('POST', '/upload', { 'Transfer-Encoding' => 'chunked' },
                    "5\r\n12345\r\n0\r\n\r\n"), 50000, 'a chunked body';

    $nginx->finish;
};


subtest 'plans do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Plans', [$redis]);

    my $get = sub {
        my ($account, $plan) = @_;

        return $nginx->get('/', 'X-Account' => $account, 'X-Plan' => $plan)
               ->{headers};
    };

    is $get->('a', 'pro')->{'x-ratelimit-limit'}, 100, 'a plan';
    is $get->('b', 'no-such-plan')->{'x-ratelimit-limit'}, 10, 'the default';
    is $get->('c', 'pro')->{'x-ratelimit-remaining'}, 99, 'a new client';

    # a change keeps what was used

    $get->('d', 'x') for 1 .. 4;
    cmp_ok $get->('d', 'pro')->{'x-ratelimit-remaining'}, '<', 10,
           'another plan: no fresh bucket';
    is $get->('c', 'x')->{'x-ratelimit-remaining'}, 9,
       'tokens above a smaller capacity are dropped';

    # without a default

    my $config = $nginx->{opt}{http};

    $config =~ s/default  10r\/m;// or die;
    ok $nginx->reload(conf => $config) && $nginx->old_workers_gone(10),
       'a map without a default';
    is $get->('e', 'x')->{'x-ratelimit-limit'}, undef, 'no limit';

    my ($code, $output) = RateLimit::Nginx->test_config(
        conf => http_of(block_of('Plans') =~ s/default  10r\/m;//r));

    is $code, 0, 'it loads';
    like $output, qr/\[warn\].*plan_rate.*map_default/, 'nginx -t warns';

    $nginx->finish;
};


subtest 'previews do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Preview', [$redis], replace => {
        'ratelimit_preview on;' => 'ratelimit_preview on;
                                    ratelimit_on_error closed;' });

    my $page = sub { $nginx->get('/quota') };

    like $page->()->{body}, qr/^\{"limit":100,"remaining":100,"reset":\d+\}$/,
         'a quota page';
    is $page->()->{headers}{'content-type'}, 'application/json', 'its type';
    is_deeply $redis->cmd('KEYS', '*'), [], 'takes nothing';

    $nginx->get('/api/') for 1 .. 3;
    ok wait_until(sub { $page->()->{body} =~ /"remaining":97,/ }), 'what is left';

    $nginx->get('/api/') for 1 .. 98;
    is $nginx->get('/api/')->{status}, 429, 'used up';
    ok wait_until(sub { $page->()->{body} =~ /"remaining":0,/ }), 'nothing';
    is $page->()->{status}, 200, 'the page rejects nobody';

    $redis->stop;
    ok wait_until(sub { $page->()->{headers}{'x-ratelimit-degraded'} }),
       'Redis is unavailable';
    is $page->()->{status}, 200, 'not then either';
    like $page->()->{body}, qr/"limit":,"remaining":,/, 'closed: no numbers';

    my $config = $nginx->{opt}{http};

    ok $nginx->reload(conf => $config =~ s/ratelimit_on_error closed;//r)
       && $nginx->old_workers_gone(10), 'the default';

    # that the bucket was empty holds for a second
    ok wait_until(sub { $nginx->get('/api/')->{status}
                        == 404 }), 'Redis is still unavailable';
    $nginx->get('/api/');
    like $page->()->{body}, qr/"limit":100,"remaining":98,/,
         'the numbers of this machine';
    $redis->start;

    $nginx->finish;

    # the cache

    my $text = http_of(block_of('Preview'), '10.0.0.1:6379' => $redis->addr);

    $text =~ s/ratelimit_preview on;/$& ratelimit_preview_cache 20s;
               add_header X-Source \$ratelimit_source;/ or die;
    $text =~ s/default_type application\/json;/
               add_header X-Source \$ratelimit_source;/ or die;

    $redis->cmd('FLUSHALL');
    $nginx = RateLimit::Nginx->start(conf => "$patient$text");
    $redis->reset_calls;

    is $page->()->{headers}{'x-source'}, 'redis', 'one call';

    # by both workers, in the end
    my $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                    requests => 100, path => '/quota',
                                    close => 1, keep => 1);

    is_deeply [grep { $_->{headers}{'x-source'} ne 'cache' } $load->responses],
              [], 'then from memory';
    is calls_of($redis), 1, 'one call';
    is $nginx->get('/api/')
       ->{headers}{'x-ratelimit-remaining'}, 99, 'only previews use it';

    $nginx->finish;

    my ($ms) = $directive{ratelimit_preview_cache}{default} =~ /^(\d+)ms$/;

    like $text{Preview}, qr/by default ${ms}ms/, "$ms ms";
    like $text{Preview}, qr/at most ${\ (1000 \/ $ms)} calls a second/, 'its calls';
};


subtest 'dry runs do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Dry run', [$redis], more => <<"EOC");
server {
    listen     127.0.0.1:%%PORT2%%;
    add_header X-Status \$ratelimit_status always;

    ratelimit_on_error closed;

    location /alone { ratelimit tomorrow; }
    location /away  { ratelimit tomorrow; ratelimit_shards 127.0.0.1:1; }
    location /all   { ratelimit today; ratelimit_dry_run on;
                      ratelimit_shards 127.0.0.1:1; }
}
EOC

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 10,
                                    requests => 110, path => '/x', keep => 1);

    is_deeply $load->statuses, { 404 => 100, 429 => 10 },
              'the limit that is enforced decides';
    is_deeply [grep { $_->{headers}{'x-ratelimit-limit'} != 100 }
                    $load->responses], [], 'and is reported, always';
    is whole('ratelimit:tomorrow:{127.0.0.1}', $redis), 0,
       'the other one counts';
    cmp_ok $nginx->log_count(qr/\[error\].*REJECTED_DRY_RUN, limit: "tomorrow"/),
           '>=', 50, 'and logs';

    my $response = RateLimit::Load::get($nginx->port(2), '/alone');

    is $response->{status}, 404, 'alone: passes';
    is $response->{headers}{'x-status'}, 'REJECTED_DRY_RUN', 'and tells';
    is $response->{headers}{'x-ratelimit-limit'}, undef, 'in no header';
    is $response->{headers}{'retry-after'}, undef, 'without a Retry-After';

    for my $path ('/away', '/all') {
        $response = RateLimit::Load::get($nginx->port(2), $path);
        is $response->{status}, 404, "$path: passes, with closed as well";
        is $response->{headers}{'x-status'}, 'DEGRADED', 'degraded';
    }

    # where an enforced limit rejects, nothing is taken from it

    $redis->cmd('FLUSHALL');
    $nginx->reload(conf => do {
        my $text = http_of(block_of('Dry run'), '10.0.0.1:6379' => $redis->addr);
        $text =~ s/today \K.*;/key=\$remote_addr capacity=1 rate=1r\/d;/;
        $text =~ s/5r\/s/5r\/d/;
        "$patient$text"
    });
    ok $nginx->old_workers_gone(10), 'another limit';

    $nginx->get('/') for 1 .. 3;
    is whole('ratelimit:tomorrow:{127.0.0.1}', $redis), 49,
       'one of three has passed';

    $nginx->finish;
};


subtest 'one dry run sizes a limit' => sub {
    my $redis = RateLimit::Redis->start;
    my $heading = 'Size a limit with one dry run';
    my $nginx = nginx_of($heading, [$redis]);
    my @ports = map { ('127.0.0.1:808' . ($_ == 1 ? 0 : 2))
                      => '127.0.0.1:' . $nginx->port($_) } 1, 2;

    RateLimit::Transcript::check($_->{command}, $_, @ports)
        for steps_of($heading);

    # the bounds are those that are listed

    my $metrics = RateLimit::Load::get($nginx->port(2), '/metrics')->{body};
    my @le = $metrics =~ /needed_capacity_bucket\{.*le="(\d+)"/g;

    like $text{$heading}, qr/are 1 to 6, ${\ join ', ', @le[6 .. 16]}, and/,
         'the capacities of the curve';
    is "@le[0 .. 5]", '1 2 3 4 5 6', 'the first ones';

    is_deeply [sort @{ $redis->cmd('KEYS', '*') }],
              ['ratelimit:client:{127.0.0.1}:advise:20000'],
              'the bucket has a key of its own, for 1000 times the capacity';

    $nginx->finish;
};


subtest 'limits after authentication do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('After authentication', [$redis],
        replace => { '8081' => '%%PORT9%%' }, more => <<"EOC");
server {
    listen 127.0.0.1:%%PORT9%%;

    location / {
        if (\$http_x_token = "") { return 401; }
        add_header X-User \$http_x_token;
        return 204;
    }
}
server {
    listen          127.0.0.1:%%PORT2%%;
    ratelimit_phase precontent;

    location / { ratelimit_rate 1r/d; try_files /none =204; }
}
EOC

    my $get = sub { $nginx->get('/x', @_) };

    is $get->()->{status}, 401, 'not let in';
    is_deeply $redis->cmd('KEYS', '*'), [], 'not counted';
    is $get->('X-Token' => 'alice')->{headers}{'x-ratelimit-remaining'}, 99,
       'let in';
    is_deeply $redis->cmd('KEYS', '*'), ['ratelimit:user:{alice}'],
              'counted by user';

    is join(' ', map { RateLimit::Load::get($nginx->port(2), '/')->{status} }
                 1 .. 2), '204 429', 'before try_files';

    $nginx->finish;
};


subtest 'addresses of clients are taken as described' => sub {
    my $nginx = RateLimit::Nginx->start(conf => <<'EOC');
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen 127.0.0.1:%%PORT%%;
    listen unix:%%DIR%%/nginx.sock;

    location / { return 200 "$ratelimit_client_net\n"; }
    location /48 {
        ratelimit_ipv6_prefix 48;
        return 200 "$ratelimit_client_net\n";
    }
}
EOC

    my $tried = 0;

    for my $row (table_of($section{Addresses})) {
        my ($value) = code_in($row->[1]) or next;
        my ($client) = code_in($row->[0]);

        my $response = defined $client
            ? $nginx->get('/', 'X-Real-IP' => $client)
            : RateLimit::Load::get($nginx->dir . '/nginx.sock', '/');

        is $response->{body}, "$value\n", $row->[0];
        $tried++;
    }

    is $tried, 4, 'all of them';
    is $nginx->get('/48',
                            'X-Real-IP' => '2001:db8:1:2::3')->{body},
       "2001:db8:1::\n", 'ratelimit_ipv6_prefix';

    $nginx->finish;
};


subtest 'one machine without Redis does what is described' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf => http_of(block_of('One machine without Redis'))
                =~ s/10r\/s/10r\/d/r);

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                    requests => 150, path => '/x', keep => 1);

    is_deeply $load->statuses, { 404 => 100, 429 => 50 }, '100, by all workers';
    is_deeply [grep { $_->{headers}{'x-ratelimit-degraded'} }
               $load->responses], [], 'nothing is degraded';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    is $nginx->get('/x')->{status}, 429, 'loses nothing';
    ok $nginx->stop && $nginx->start, 'a restart';
    is join(' ', map { $nginx->get('/login')->{status} }
                 1 .. 6), '404 404 404 404 404 429', 'does; a window of 5';

    $nginx->finish;

    my $entries = define('ENTRIES');

    like $text{'One machine without Redis'}, qr/more than $entries requests/,
         'large windows';
};


subtest 'limits have the names that are shown' => sub {
    my $redis = RateLimit::Redis->start;
    my $text = block_of('Names of limits');
    my $nginx = nginx_of('Names of limits', [$redis],
                         more => "add_header X-Name \$ratelimit_name always;\n");

    my $port = 0;
    my $tried = 0;

    for my $line (split /\n/, $text) {
        $port++ if $line =~ /^server \{/;

        my ($name) = $line =~ /# name: (\S+)$/ or next;
        my ($path) = $line =~ /location (?:[=~] )?(\S+)/;

        $path //= $port == 1 ? '/' : '';        # the server's own; http's
        next if $path eq '';

        $path =~ s/^\\\.php\$$/\/x.php/;
        is RateLimit::Load::get($nginx->port($port), $path)->{headers}{'x-name'},
           $name, "name of $path";
        $tried++;
    }

    is $tried, 7, 'all of them';

    $nginx->finish;

    # braces

    $nginx = RateLimit::Nginx->start(
        conf   => 'add_header X-Name $ratelimit_name always;',
        server => 'location ~ "^/x{2}$" { ratelimit_rate 9r/d; }');

    is $nginx->get('/xx')->{headers}{'x-name'}, 'localhost~^/x(2)$', 'parentheses';

    $nginx->finish;
};


subtest 'numbers are those of the sources' => sub {
    my @numbers = (
        ['Several limits', CLAIMS => 'At most %d'],
        ['Cost', MAX_COST => '1 to %d.'],
        ['Cost', THROTTLE_MINUTE => 'once a minute', 1, 60],
    );

    for (@numbers) {
        my ($section, $name, $format, $scale, $value) = @$_;

        is define($name), $value, $name if defined $value;

        my $words = $format =~ s{%d}{define($name) / ($scale || 1)}er;
        like $text{$section} =~ s/\*//gr, qr/\Q$words\E/, "$section: $words";
    }

    my ($refunds) = $text{'Limits on several shards'} =~ /up to (\d+) refunds/;

    like $all, qr/#define\s+NGX_RL_REFUND\w*\s+\(?(?:$refunds|128 \* 1024|1 << 17)/,
         "$refunds refunds";
};


done_testing();
