# README.md against the code: each configuration in it is taken by nginx, each
# command answers what it shows, and each directive, variable, header, log line
# and number is the one of the sources.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA ();
use JSON::PP ();
use List::Util qw(sum0);

use RateLimit::Certs;
use RateLimit::Cluster;
use RateLimit::Dns;
use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Sentinel;
use RateLimit::Source;
use RateLimit::Transcript;
use RateLimit::Util qw(free_port slurp wait_until write_file);

my $readme = slurp('README.md');
my $all = all_sources();
my %lua = map { s{.*/}{}r => slurp($_) } glob 'build/lua/*.lua';

# certificates, and files that configurations name
my $certs = RateLimit::Certs->new;
my $server = $certs->make('server', san => 'DNS:redis.example.com,DNS:localhost');
my $client = $certs->make('limiter');

for (['redis-password', 'wonderland'], ['sentinel-password', 'looking-glass']) {
    my ($name, $text) = @$_;

    write_file($certs->dir . "/$name", "$text\n", 0600);
}

my %file = (
    '/etc/nginx/redis-ca.crt'      => $certs->ca,
    '/etc/nginx/limiter.crt'       => $client->{cert},
    '/etc/nginx/limiter.key'       => $client->{key},
    '/etc/nginx/redis-password'    => $certs->dir . '/redis-password',
    '/etc/nginx/sentinel-password' => $certs->dir . '/sentinel-password',
);

# a busy machine must not make Redis look dead
my $patient = "ratelimit_redis_timeout 20s;\n"
              . "ratelimit_redis_connect_timeout 20s;\n";


# ---- what is in the README

# Fenced blocks: language => list of texts.

my %block;

while ($readme =~ /^```(\w+)\n(.*?)^```$/msg) {
    push @{ $block{$1} }, $2;
}

# Sections: heading => text up to the next heading of the same or a higher level.

my %section;

while ($readme =~ /^(#+) ([^\n]+)\n(.*?)(?=^(??{ "#{1,".length($1)."}" }) |\z)/msg)
{
    $section{$2} = $3;
    pos($readme) -= length $3;
}


sub table_of {
    my ($text) = @_;

    my @rows = map { [map { s/^\s+|\s+$//gr } split /(?<!\\)\|/, $_] }
               $text =~ /^\|(.*)\|$/mg;

    return grep { $_->[0] !~ /^:?-+:?$/ } @rows;
}


sub code_in {
    my ($text) = @_;

    return $text =~ /`([^`\n]+)`/g;
}


# ---- what is in the sources

# #define NAME value, as a number

sub define {
    my ($name) = @_;

    my ($value) = $all =~ /^#define\s+NGX_RL_$name\s+(\d+)/m;

    return $value // die "no $name\n";
}


# static const char *NAME[] = { "a", "b" };

sub strings {
    my ($name) = @_;

    my ($list) = $all =~ /\b\Q$name\E\[\]\s*=\s*\{(.*?)\};/s or die "no $name\n";

    return $list =~ /"([^"]*)"/g;
}


my %CONTEXT = (
    NGX_HTTP_MAIN_CONF => 'http', NGX_HTTP_SRV_CONF => 'server',
    NGX_HTTP_LOC_CONF => 'location', NGX_HTTP_LIF_CONF => 'if in location',
    NGX_HTTP_LMT_CONF => 'limit_except',
);

my %CONSTANT = (
    NGX_HTTP_TOO_MANY_REQUESTS => 429, NGX_HTTP_SERVICE_UNAVAILABLE => 503,
);


# A time or a size, as a user writes it.

my %MICROSECONDS = (d => 86400e6, h => 3600e6, m => 60e6, s => 1e6, ms => 1e3);

sub microseconds {
    my ($text) = @_;

    my ($n, $unit) = $text =~ /^(\d+)(ms|[smhd])$/ or return $text;

    return $n * $MICROSECONDS{$unit};
}


# The command table: name => contexts, arguments, allowed words, default.

sub directives {
    my $text = source('module.c');

    my %enum;

    while ($all =~ /ngx_conf_enum_t\s+(\w+)\[\]\s*=\s*\{(.*?)\};/sg) {
        my ($name, $list) = ($1, $2);

        $enum{$name} = [map { [/"([^"]+)"\),\s*(\w+)/] }
                        $list =~ /\{\s*(ngx_string\([^}]*)\}/g];
    }

    # values of bits are or'ed with a flag that says "set"

    my $conf = source('conf.c');
    my %default;

    while ($conf =~ /ngx_conf_(?:merge|init)_\w*value\(conf->(?:params\.)?([\w.]+),
                                 (?:\s*prev->[\w.]+,)?\s*([^);]+)\)/xg)
    {
        my ($field, $value) = ($1, $2);

        $default{$field} = $value =~ s/^\(NGX_CONF_BITMASK_SET\s*\|//r;
    }

    # the size of the zone is that of no place

    $default{zone_size} = "$1m"
        if $all =~ /init_size_value\(rmcf->zone_size,\s*\w+ZONE_SIZE\)/
           && $all =~ /ZONE_SIZE\s+\((\d+) \* 1024 \* 1024\)/;

    my %directive;

    my ($table) = $text =~ /ngx_rl_commands\[\]\s*=\s*\{(.*?)
                            ngx_null_command/sx or die;

    # most are written by a macro

    $table =~ s/ngx_rl_command\(("\w+"),\s*(\w+),\s*(\w+),\s*([\w.]+),
                                \s*([^\s)]+)\)
               /{ ngx_string($1), NGX_RL_ANYWHERE|$2, $3, 0, (conf, $4), $5 }/xg;

    while ($table =~ /\{\s*ngx_string\("(\w+)"\),\s*([^,]+),\s*(\w+),\s*\w+,
                      \s*(\d+|\w*\([^)]+\)),\s*(\S+)\s*\}/xg)
    {
        my ($name, $type, $handler, $offset, $post) = ($1, $2, $3, $4, $5);

        while ($type =~ /(NGX_RL_\w+)/) {
            my $macro = $1;
            my ($value) = $text =~ /^#define\s+$macro\s+\\?\s*\(?([\w|]+)\)?$/m
                          or die "no $macro\n";
            $type =~ s/$macro/$value/;
        }

        my @flags = split /\s*\|\s*/, $type;
        my ($field) = $offset =~ /([\w.]+)\)/;

        if (!defined $field) {
            my ($short) = $name =~ /^ratelimit_(?:redis_)?(\w+)/;
            ($field) = grep { exists $default{$_} }
                       defined $short ? ($short, "defaults.$short",
                                         "${short}_size") : ();

        } else {
            $field =~ s/^params\.//;
        }

        my $words = $enum{ $post =~ s/^&//r };
        my $value = defined $field ? $default{$field} : undef;
        $value = 'off' if ($value // '') eq 'NULL';

        if (defined $value) {
            my ($word) = grep { $_->[1] eq $value } @{ $words || [] };

            # what "on" stands for

            my ($bounds) = $text =~ /ngx_rl_bounds_t\s+\Q${\ substr $post, 1}\E
                                     \s*=\s*\{([^"]*)/x;
            my $time = ($bounds // '') =~ /NGX_RL_TIME/;
            my $on = $time && $bounds =~ /\b$value\b/ && $value =~ /^NGX_RL_\w+$/;

            $value = $word                     ? $word->[0]
                   : $on                       ? 'on'
                   : exists $CONSTANT{$value}  ? $CONSTANT{$value}
                   : $type =~ /NGX_CONF_FLAG/  ? ($value ? 'on' : 'off')
                   : $time                     ? "${value}ms"
                   : $value eq '""'            ? 'none'
                   :                             $value =~ s/^"(.*)"$/$1/r;
        }

        $directive{$name} = {
            context => join(', ', grep { defined } @CONTEXT{@flags}),
            words   => $type =~ /NGX_CONF_FLAG/ ? 'on | off'
                     : $words ? join(' | ', map { $_->[0] } @$words)
                                . ($handler =~ /bitmask|headers|silence/ ? ' ...' : '')
                     : undef,
            default => $value,
        };
    }

    return %directive;
}


sub breaker_default {
    my ($failures, $window, $probe) = source('conf.c') =~
        /ngx_rl_breaker_default\s*=\s*\{\s*(\d+),\s*(\d+),\s*(\d+)\s*\}/
        or die "no default of the breaker\n";

    return sprintf 'failures=%d window=%ds probe=%ds', $failures,
                   $window / 1000, $probe / 1000;
}


my %directive = directives();
my @variables = map { "\$$_" }
    (source('variables.c') =~ /ngx_rl_variables\[\]\s*=\s*\{(.*?)\n\};/s)[0]
    =~ /\bngx_rl_variable\("(\w+)"/g;

cmp_ok scalar keys %directive, '>=', 30, 'the directives of the module';
cmp_ok scalar @variables, '>=', 10, 'its variables';
cmp_ok scalar keys %section, '>=', 50, 'the sections of the README';


# ---- configurations

# What is inside of its http block, on ports of this test.  The shards and what
# else has to be reached are replaced by the caller.

sub http_of {
    my ($text, %replace) = @_;

    if ($text =~ /^http \{\n(.*)^\}\n/ms) {
        $text = $1;
    }

    my %port;
    my $n = 0;

    $text =~ s/^(\s*listen\s+)(?:127\.0\.0\.1:)?(\d+);/
               $port{$2} ||= '%%PORT' . (++$n == 1 ? '' : $n) . '%%';
               "${1}127.0.0.1:$port{$2};"/mge;

    $text =~ s/\Q$_\E/$file{$_}/g for keys %file;

    for my $from (keys %replace) {
        $text =~ s/\Q$from\E/$replace{$from}/g or die "no $from\n";
    }

    return $text;
}


# The configuration in a section.

sub block_of {
    my ($name) = @_;

    my ($text) = ($section{$name} // die "no section $name\n")
                 =~ /^```nginx\n(.*?)^```$/ms or die "no block in $name\n";

    return $text;
}


# The state of a bucket or a window, wherever it is.

sub state_of {
    my ($key, @redis) = @_;

    my ($home) = grep { $_->cmd('EXISTS', $key) } @redis or return undef;

    return $home->cmd('TYPE', $key) eq 'zset'
           ? $home->cmd('ZCARD', $key) : $home->tokens($key);
}


# Script calls since the last CONFIG RESETSTAT.

sub calls_of { return sum0(map { $_->calls } @_) }


# The first configuration, with a backend, and clients whose address is in a
# header.

my ($example) = @{ $block{nginx} };

sub example {
    my ($redis, %replace) = @_;

    return http_of($example, '10.0.0.1:6379 10.0.0.2:6379 10.0.0.3:6379' =>
                                 '127.0.0.1:' . $redis->port,
                             '8081' => '%%PORT9%%', %replace) . <<'EOC';
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen 127.0.0.1:%%PORT9%%;
    location / { return 200 "backend\n"; }
}
EOC
}


subtest 'each configuration is taken by nginx' => sub {
    like $readme, qr/\A# \S+\n\n[^\n]+(?:\n[^\n]+)*\n\n```nginx\n/,
         'one sentence, then a configuration';
    like $example, qr/^load_module modules\/ngx_http_ratelimit_module\.so;$/m,
         'the first one is complete';

    # names have to be known

    my %host = ('redis-1.example.com' => 'localhost:6379',
                'redis-2.example.com' => 'localhost:6380',
                'limits.example.net'  => 'localhost');

    for my $text (@{ $block{nginx} }) {
        my $any = join '|', map { quotemeta } keys %host;
        my ($code, $output) = RateLimit::Nginx->test_config(
                                  conf => http_of($text)
                                          =~ s/($any)(?=[ :;])/$host{$1}/gr);
        is $code, 0, ($text =~ /(\S[^\n]*)/)[0] or diag $output;

        # a part of a configuration may leave out who uses a limit

        unlike $output, qr/\[warn\] (?!.*unused_limit)/, 'without a warning';
    }
};


subtest 'the first configuration: limits over two nginx' => sub {
    my @redis = RateLimit::Redis->start_many(3);

    # nothing comes back during the test
    my %slow = map { ("${_}r/s" => "${_}r/d") } 5, 10, 1000;
    my $text = $patient . example($redis[0], %slow);
    my @nginx = map { RateLimit::Nginx->start(conf => $text) } 1 .. 2;

    my $response = RateLimit::Load::get($nginx[0]->port, '/api/x',
                                        'X-Real-IP' => '203.0.113.7');
    is $response->{status}, 200, 'passed';
    is $response->{body}, "backend\n", 'answered by the backend';
    is $response->{headers}{'x-ratelimit-limit'}, 100, 'X-RateLimit-Limit';
    is $response->{headers}{'x-ratelimit-remaining'}, 99,
       'X-RateLimit-Remaining';

    my $load = RateLimit::Load::run(
        targets => [map { $_->port } @nginx], connections => 10,
        requests => 150, path => '/api/', headers => { 'X-Real-IP' => '192.0.2.1' });

    is_deeply $load->statuses, { 200 => 100, 429 => 50 }, '100, and no more';

    # three users on one address, first on one shard, then on three

    for my $shards (1, 3) {
        $text = $patient . example($redis[0], %slow)
                . "ratelimit_deny_cache off;\n";

        ok $_->reload(conf => $text) && $_->old_workers_gone(10),
           "$shards: each rejection asks" for @nginx;

        if ($shards == 3) {
            my $list = join ' ', map { '127.0.0.1:' . $_->port } @redis;
            $text =~ s/ratelimit_shards \K[^;]+/$list/;
            ok $_->reload(conf => $text) && $_->old_workers_gone(10),
               'three shards' for @nginx;
        }

        for (@redis) {
            $_->cmd('FLUSHALL');
            $_->reset_calls;
        }

        $load = RateLimit::Load::run(
            targets => [map { $_->port } @nginx], connections => 10,
            requests => 180, keep => 1, path => sub {
                { path => '/search', headers => {
                      'X-Real-IP' => '192.0.2.9', 'X-Api-Key' => 'u' . $_[0] % 3 } }
            });

        my %passed;

        $passed{ $_->{n} % 3 } += $_->{status} == 200 for $load->responses;

        is_deeply $load->statuses, { 200 => 100, 429 => 80 },
                  "$shards: 100 searches from the address";
        cmp_ok $passed{$_}, '<=', 50, "$shards: user $_" for 0 .. 2;
        cmp_ok calls_of(@redis), '<=', 180, 'a call each at most'
            if $shards == 1;

        my %left = ('address:{192.0.2.9}' => 0, 'everybody:{search}' => 4900,
                    map { ("user:{u$_}" => 50 - $passed{$_}) } 0 .. 2);

        for (sort keys %left) {
            my $key = "ratelimit:$_";
            my $n = $left{$_};

            ok wait_until(sub { abs(state_of($key, @redis) - $n) < 0.1 }),
               "$shards: $n are left in $_";
        }
    }

    # the answer names the limit

    $response = RateLimit::Load::get($nginx[0]->port, '/search',
        'X-Real-IP' => '192.0.2.9', 'X-Api-Key' => 'new');
    is $response->{headers}{'x-ratelimit-limit'}, 100, 'of the address';
    like $response->{body}, qr/"blocking_limit":"address"/, 'by its name';
    ok $nginx[0]->wait_log(qr/ratelimit REJECTED, limit: "address", key: "192\.0\.2\.9"/),
       'the log names it';

    for (@nginx) {
        $_->finish;
    }
};


# ---- directives

subtest 'each directive is described as it is' => sub {
    my @entries = grep { /^ratelimit(?:_\w+)?$/ } keys %section;

    is_deeply [sort @entries], [sort keys %directive],
              'each directive has an entry, each entry is a directive';

    # those whose default no merge function has are tried below

    my %special = (
        ratelimit_shards => 'none', ratelimit_key => '$ratelimit_client_net',
        ratelimit_log_key =>
            'plain for addresses and constants, hash for all else',
        ratelimit_rate => 'none', ratelimit_cost => '1',
        ratelimit_capacity => 'the number in the rate',
        ratelimit_redis_password_file => 'none',
        ratelimit_limit => 'none', ratelimit => 'none',
        ratelimit_window => '60s', ratelimit_refill_interval => '0',
        ratelimit_local_share => '1', ratelimit_metrics => 'none',
        ratelimit_breaker => breaker_default(), ratelimit_lease => 'off',
        ratelimit_sentinel_password_file => 'none',
        ratelimit_silence => 'none',
        ratelimit_redis_ssl => 'off',
        ratelimit_redis_ssl_verify => 'on',
        ratelimit_redis_ssl_verify_depth => '1',
        ratelimit_redis_ssl_trusted_certificate =>
            'the certificates of the system',
        ratelimit_redis_ssl_crl => 'none',
        ratelimit_redis_ssl_name => 'the host of the address',
        ratelimit_redis_ssl_server_name => 'on',
        ratelimit_redis_ssl_certificate => 'none',
        ratelimit_redis_ssl_certificate_key => 'none',
        ratelimit_redis_ssl_password_file => 'none',
        ratelimit_redis_ssl_protocols => 'TLSv1.2 TLSv1.3',
        ratelimit_redis_ssl_ciphers => 'DEFAULT',
        ratelimit_redis_ssl_session_reuse => 'on',
    );

    is microseconds($special{ratelimit_window}), define('WINDOW_DEFAULT'),
       'the length of a window';

    for my $name (sort @entries) {
        my $text = $section{$name};
        my ($syntax) = $text =~ /^Syntax: +(.*)$/m;
        my ($default) = $text =~ /^Default: +(.*)$/m;
        my ($context) = $text =~ /^Context: +(.*)$/m;
        my $real = $directive{$name};

        like $syntax, $name eq 'ratelimit_metrics' ? qr/^\Q$name\E;$/
                                                   : qr/^\Q$name\E .+;$/,
             "$name: syntax";
        is $syntax, "$name $real->{words};", "$name: words"
            if defined $real->{words};
        is $default, $real->{default} // $special{$name}, "$name: default";
        is $context, $real->{context}, "$name: context";
        like $text, qr/^```\n\n[A-Z]/m, "$name: text";
    }

    # parameters of a named limit

    my ($message) = source('limit.c') =~ /there are "\s*"(key=.*?)",\s*word/s;
    my @real = grep { $_ ne 'and' } ($message =~ s/"\s*"//gr) =~ /(\w+=?)/g;
    my @rows = map { code_in($_->[0]) }
               grep { $_->[0] =~ /^`/ } table_of($section{ratelimit_limit});

    is_deeply [sort @rows], [sort @real], 'parameters of ratelimit_limit';

    for (grep { $_->[0] =~ /^`/ } table_of($section{ratelimit_limit})) {
        my ($name) = code_in($_->[0]);
        my ($as) = code_in($_->[2]);

        is $as, 'ratelimit_' . ($name =~ s/=$//r), "$name is $as";
        is((code_in($_->[1]))[0], $directive{$as}{default} // $special{$as},
           "$name: default")
            if $_->[1] =~ /^`[^`]+`$/;
    }

    # nothing in the README or the examples that does not exist

    my %known = map { $_ => 1 } keys %directive, map { s/^\$//r } @variables;

    for my $file ('README.md', glob 'conf-examples/*.conf') {
        my $text = slurp($file);
        my %seen = map { $_ => 1 }
                   $text =~ /(?<![\w.\/-])(ratelimit_\w+)/g;

        is_deeply [grep { !$known{$_} } sort keys %seen], [],
                  "$file: no unknown name";
    }
};


subtest 'wrong values are refused' => sub {
    for my $name (sort keys %directive) {
        my ($list) = $section{$name} =~ /^Refused: (.*?)\n\n/ms;

        if (!defined $list) {
            like $name, qr/^ratelimit_(?:key|(?:redis|sentinel)_password)$/,
                 "$name takes anything";
            next;
        }

        for my $value (code_in($list)) {
            my $text = $value =~ /^ratelimit(?:_\w+)? .*;$/ ? $value
                                                          : "$name $value;";
            my ($first) = $text =~ /^(\w+)/;
            my $http = $directive{$first}{context} eq 'http';

            my ($code, $output) = RateLimit::Nginx->test_config(
                conf   => 'ratelimit_shards 127.0.0.1:1; ratelimit_rate 1r/s;'
                          . 'ratelimit_limit first rate=1r/s;'
                          . ($http ? $text : ''),
                server => 'location / { ' . ($http ? '' : $text) . ' }');

            is $code, 1, $text;
            like $output, qr/\[emerg\].*\b\Q$name\E\b/, 'the message names it';
        }
    }

    for my $text ('ratelimit_key $uri;', 'ratelimit_capacity 1;') {
        my ($code, $output) = RateLimit::Nginx->test_config(
            conf => 'ratelimit_shards 127.0.0.1:1;',
            server => "location / { $text }");

        is $code, 1, "$text alone in a location";
        like $output, qr/without "ratelimit_rate"/, 'the message says why';
    }

    my ($code, $output) = RateLimit::Nginx->test_config(
        server => 'location / { ratelimit_rate 1r/s; }');

    is $code, 0, 'a limit needs no shards' or diag $output;

    # the most that guard a place

    for my $n (define('CLAIMS'), define('CLAIMS') + 1) {
        my $limits = join ' ', map { "ratelimit_limit l$_ rate=1r/s;" } 2 .. $n;
        my $names = join ' ', map { "l$_" } 2 .. $n;

        ($code, $output) = RateLimit::Nginx->test_config(
            conf   => "ratelimit_shards 127.0.0.1:1; $limits",
            server => "location / { ratelimit_rate 1r/s; ratelimit $names; }");

        is $code, $n > define('CLAIMS') ? 1 : 0, "$n limits" or diag $output;
    }

    # names

    for my $length (define('LIMIT_NAME_MAX'), define('LIMIT_NAME_MAX') + 1) {
        my $name = 'x' x $length;

        ($code, $output) = RateLimit::Nginx->test_config(
            conf => "ratelimit_limit $name rate=1r/s;");

        is $code, $length > define('LIMIT_NAME_MAX') ? 1 : 0, "a name of $length";
    }
};


# ---- defaults that take a request to see, variables, names, order, redirects

subtest 'defaults, variables and names are those of the sources' => sub {
    my $redis = RateLimit::Redis->start;
    my ($names) = grep { /# name: / } @{ $block{nginx} };

    my $headers = join '', map { "add_header X-$_ \$ratelimit_$_ always;\n" }
                           map { s/^\$ratelimit_//r } @variables;

    my $nginx = RateLimit::Nginx->start(
        conf => "$patient$headers\n"
                . http_of($names, '127.0.0.1:6379' => $redis->addr)
                . <<"EOC");
server {
    listen 127.0.0.1:%%PORT3%%;
    server_name defaults;
    ratelimit_key any;
    location /half    { ratelimit_rate 0.5r/s; }
    location /minute  { ratelimit_rate 10r/m; }
    location /lifted  { ratelimit_key ""; }
    location /two     { ratelimit_rate 2r/h; ratelimit_key \$remote_addr; }
    location /dry     { ratelimit_rate 1r/h; ratelimit_dry_run on; }
    location /cost    { ratelimit_rate 3r/h; ratelimit_cost \$arg_cost; }
}
EOC

    my $get = sub {
        my ($port, $path, %headers) = @_;

        return RateLimit::Load::get($nginx->port($port), $path, %headers)
               ->{headers};
    };

    # names

    my $port = 0;
    my $tried = 0;

    for my $line (split /\n/, $names) {
        $port++ if $line =~ /^server \{/;

        my ($name) = $line =~ /# name: (\S+)$/ or next;
        my ($path) = $line =~ /location (?:[=~] )?(\S+)/;

        $path //= $port == 1 ? '/' : '';        # the server's own; http's
        next if $path eq '';

        $path =~ s/^\\\.php\$$/\/x.php/;
        is $get->($port, $path)->{'x-name'}, $name, "name of $path";
        $tried++;
    }

    is $tried, 7, 'all of them';

    # defaults

    is $get->(3, '/minute')->{'x-ratelimit-limit'}, 10, 'capacity: of 10r/m';
    is $get->(3, '/minute')->{'x-ratelimit-remaining'}, 8, 'cost: 1';
    is $get->(3, '/half')->{'x-ratelimit-limit'}, 1, 'capacity: of 0.5r/s';
    is_deeply [grep { /ratelimit/ } keys %{ $get->(3, '/lifted') }], [],
              'a limit lifted';
    ok $redis->cmd('EXISTS', 'ratelimit:example.com:{127.0.0.1}'),
       'key: $ratelimit_client_net';

    # variables

    my @rows = map { code_in($_->[0]) } grep { $_->[0] =~ /^`\$/ }
               table_of($section{Variables});

    is_deeply [sort @rows], [sort @variables],
              'each variable has an entry, each entry is a variable';

    my ($who) = map { $_->[1] } grep { $_->[0] eq '`$ratelimit_source`' }
                table_of($section{Variables});

    is_deeply [sort +code_in($who)],
              [sort grep { $_ ne 'none' }
                         strings('ngx_rl_source_names')],
              'the sources';

    my $now = time;
    my $h = $get->(3, '/two');

    is $h->{'x-status'}, 'PASSED', '$ratelimit_status';
    is $h->{'x-name'}, 'defaults/two', '$ratelimit_name';
    is $h->{'x-limit'}, 2, '$ratelimit_limit';
    is $h->{'x-remaining'}, 1, '$ratelimit_remaining';
    cmp_ok abs($h->{'x-reset'} - $now - 1800), '<', 60, '$ratelimit_reset';
    is $h->{'x-retry_after'}, undef, '$ratelimit_retry_after';
    is $h->{'x-source'}, 'redis', '$ratelimit_source';
    is $h->{'x-shard'}, $redis->addr, '$ratelimit_shard';
    like $h->{'x-latency'}, qr/^\d+\.\d{6}$/, '$ratelimit_latency';
    is $h->{'x-client_net'}, '127.0.0.1', '$ratelimit_client_net';

    $get->(3, '/two');
    $h = $get->(3, '/two');
    is $h->{'x-status'}, 'REJECTED', 'rejected';
    is $h->{'x-retry_after'}, $h->{'retry-after'}, 'with a time';
    is $h->{'x-source'}, 'denied', 'as was known before';
    is $h->{'x-shard'}, undef, 'nobody was asked';
    is $h->{'x-latency'}, undef, 'so it took no time';

    $get->(3, '/dry');
    $h = $get->(3, '/dry');
    is $h->{'x-status'}, 'REJECTED_DRY_RUN', 'dry run';
    like $h->{'x-retry_after'}, qr/^\d+$/, 'with a time as well';
    is $h->{'retry-after'}, undef, 'but no header';

    $h = $get->(3, '/cost?cost=4');
    is $h->{'x-source'}, 'local', 'a cost above the capacity';
    is $h->{'retry-after'}, undef, 'no Retry-After, it can never pass';
    ok $nginx->log_like(qr/\[warn\].* cost 4 is above capacity 3 of limit "defaults\/cost": this request can never pass,/),
       'logged';

    $h = $get->(3, '/cost?cost=no');
    is $h->{'x-status'}, 'REJECTED', 'a cost that is no number';
    is $h->{'x-ratelimit-degraded'}, undef, 'is the highest';

    is $get->(3, '/lifted')->{'x-status'}, 'SKIPPED', 'skipped';
    is $get->(3, '/nothing')->{'x-status'}, 'PASSED', 'limit of the http level';

    $nginx->finish;
};


subtest 'order and redirects are as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf => "${patient}ratelimit_shards ${\ $redis->addr};",
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

    is $statuses->('/skipped', 2), '418 429', 'an empty key decides nothing';

    $nginx->finish;
};


# ---- the sections about limits

# nginx with the configuration of a section on real servers; rates per second
# become rates per day, so that nothing comes back during a test.

sub nginx_of {
    my ($name, $redis, %opt) = @_;

    my $shards = join ' ', map { $_->addr } @$redis;
    my $text = http_of(block_of($name), %{ $opt{replace} || {} });

    $text =~ s/ratelimit_shards \K[^;]+/$shards/ or die "no shards in $name\n";
    $text =~ s{(\d)r/s\b}{${1}r/d}g;

    return RateLimit::Nginx->start(conf => "$patient$text" . ($opt{more} // ''));
}


subtest 'several limits on one request do what is described' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $nginx = nginx_of('Several limits on one request', \@redis);

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
    is sprintf('%.0f', state_of('ratelimit:burst:{a}', @redis)), 15,
       'burst: the rejected one has cost nothing';
    is sprintf('%.0f', state_of('ratelimit:daily:{a}', @redis)), 4995, 'daily';

    is $get->('/', 'a')->{headers}{'x-ratelimit-limit'}, 20,
       'elsewhere: the list of the server, and the same bucket';
    is sprintf('%.0f', state_of('ratelimit:burst:{a}', @redis)), 14, 'less';
    is_deeply [grep { /ratelimit/ } keys %{ $get->('/health', 'a')->{headers} }],
              [], 'off';

    $nginx->finish;

    # which limit speaks

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

    # a shard is away

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
    }), 'a shard is away';

    my $response = $nginx->get("/closed?$args");

    is $response->{status}, 503, 'closed: rejected';
    is $response->{headers}{'x-name'}, 'there', 'by the limit that is away';
    ok wait_until(sub { ($tokens->() // 2) == 2 }), 'nothing was taken';

    $response = $nginx->get("/open?$args");
    is $response->{headers}{'x-status'}, 'DEGRADED', 'open: degraded';
    is $response->{headers}{'x-ratelimit-degraded'}, 'true', 'with the headers';
    is $response->{headers}{'x-ratelimit-remaining'}, 1, 'of both';
    is $response->{headers}{'x-name'}, 'here', 'the other one speaks';
    is $response->{headers}{'x-source'}, 'open', 'but did not decide';

    $nginx->get("/open?$args");
    is $nginx->get("/open?$args")->{status}, 429,
       'and still rejects';

    # this machine's share

    $redis[0]->cmd('FLUSHALL');

    my @responses;

    for (1 .. 3) {
        push @responses, $nginx->get("/local?$args");

        # what is given back is there before the next one comes
        wait_until(sub { abs($tokens->() - 1) < 0.1 });
    }

    is join(' ', map { "$_->{status} $_->{headers}{'x-status'}" } @responses),
       '404 DEGRADED 429 REJECTED 429 REJECTED', 'local: half of two';
    is $responses[2]{headers}{'x-name'}, 'there', 'by the limit that is away';
    is $responses[2]{headers}{'x-source'}, 'local', 'decided here';
    ok wait_until(sub { abs($tokens->() - 1) < 0.1 }),
       'what the others took in Redis is given back';

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


subtest 'the sliding window log does what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Sliding window log', [$redis], more => <<"EOC");
server {
    listen 127.0.0.1:%%PORT2%%;
    ratelimit_algorithm sliding_window_log;
    ratelimit_capacity  1000000;
    ratelimit_window    1h;

    location /n/      { ratelimit_key \$uri; }
    location /cost/   { ratelimit_key x; ratelimit_capacity 5; ratelimit_cost 2; }
    location /fast    { ratelimit_key 203.0.113.7; ratelimit_rate 1000r/s;
                        ratelimit_algorithm token_bucket; }
    location /slow    { ratelimit_key 203.0.113.7; ratelimit_rate 100r/s;
                        ratelimit_algorithm token_bucket; }
    location /gcra    { ratelimit_key 203.0.113.7; ratelimit_rate 100r/s;
                        ratelimit_algorithm gcra; }
}
EOC

    my @response = map { $nginx->get('/login') } 1 .. 7;
    my $window = 'ratelimit:_=/login:{127.0.0.1}';

    is join(' ', map { $_->{status} } @response),
       '404 404 404 404 404 429 429', 'five';
    is state_of($window, $redis), 5, 'what is rejected leaves no entry';
    cmp_ok $redis->cmd('PTTL', $window), '>', 290_000, 'a time to live';

    my ($h) = $response[6]{headers};

    ok $h->{'retry-after'} > 290 && $h->{'retry-after'} <= 300, 'Retry-After';
    cmp_ok abs($h->{'x-ratelimit-reset'} - time - $h->{'retry-after'}), '<=', 2,
           'Reset: when the oldest leaves, and this is it';

    # what an entry is, as the section about Redis says

    my ($form) = $section{'In Redis'} =~ /its member `([A-Z:]+)`/;
    my @parts = map { code_in($_->[0]) } grep { $_->[0] =~ /^`[A-Z]+`$/ }
                table_of($section{'In Redis'});

    is join(':', @parts), $form, 'the parts of an entry';

    my $entries = $redis->cmd('ZRANGE', $window, 0, -1, 'WITHSCORES');
    my %ids;

    for my $i (0 .. 4) {
        my ($member, $score) = @$entries[2 * $i, 2 * $i + 1];

        like $member, qr/^00000000000000\d\d:1:(\d{16}):(\S+)$/, $member;
        is substr($member, 0, 16) + 0, $i + 1, 'its total';

        my ($seen, $id) = $member =~ /:(\d{16}):(\S+)$/;

        cmp_ok abs($score - time * 1e6), '<', 60e6, 'its time';
        cmp_ok abs($score - $seen), '<', 10e6, 'by the other clock';
        $ids{$id} = 1;
    }

    is scalar keys %ids, 5, 'ids are unique';

    # a cost is one entry

    RateLimit::Load::get($nginx->port(2), '/cost/') for 1 .. 3;
    is state_of('ratelimit:_/cost/:{x}', $redis), 2, 'two entries of cost 2';
    is RateLimit::Load::get($nginx->port(2), '/cost/')
       ->{headers}{'x-ratelimit-remaining'}, 1, '1 of 5 is left';

    # memory, if this is the server that it was measured with

    my ($version) = $section{'Sliding window log'} =~ /In Redis (\d+\.\d+)/;

    SKIP: {
        skip "not Redis $version", 1
            if $redis->info('server')->{redis_version} !~ /^\Q$version\E\./;

        for my $row (table_of($section{'Sliding window log'})) {
            my ($what, $bytes, $each) = @$row;

            if ($what =~ /^window with (\d+) entries$/) {
                my $n = $1;

                # one after the other: an entry each
                my $load = RateLimit::Load::run(
                    port => $nginx->port(2), connections => 1, requests => $n,
                    path => "/n/$n", timeout => 60);
                my $real = $redis->cmd('MEMORY', 'USAGE',
                                       "ratelimit:_/n/:{/n/$n}");

                is $load->count(404), $n, "$n requests";
                cmp_ok abs($real / $bytes - 1), '<', 0.15, "$bytes bytes"
                    or diag $real;
                cmp_ok abs($bytes / $n - $each), '<=', 1, "$each each";

            } elsif ($what =~ /bucket|gcra/) {
                my $place = $what =~ /gcra/ ? 'gcra'
                          : $what =~ /slower/ ? 'slow' : 'fast';

                # as it is in use, not as it was made
                RateLimit::Load::get($nginx->port(2), "/$place") for 1 .. 2;

                my $real = $redis->cmd('MEMORY', 'USAGE',
                                       "ratelimit:_/$place:{203.0.113.7}");

                cmp_ok abs($real / $bytes - 1), '<', 0.15, "$bytes bytes"
                    or diag $real;
            }
        }

        # those that come together share entries

        my $together = RateLimit::Load::run(
            port => $nginx->port(2), connections => 20, requests => 1000,
            path => '/n/together', timeout => 60);

        is $together->count(404), 1000, '1000 requests at once';
        cmp_ok state_of('ratelimit:_/n/:{/n/together}', $redis), '<', 900,
               'fewer entries';

        my ($packed) = $section{'Sliding window log'} =~ /Up to (\d+) entries/;

        is $redis->cmd('CONFIG', 'GET', 'zset-max-listpack-entries')->[1],
           $packed, 'packed entries';
    }

    $nginx->finish;

    # a bucket promises something else, within a minute by its own arithmetic

    like $section{'Sliding window log'} =~ s/\s+/ /gr,
         qr/one of 100 with 100r\/m can let 200 pass within a minute/, '100 + 100';
};


subtest 'costs do what is described' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = nginx_of('Cost', [$redis]);

    $nginx->get('/');
    RateLimit::Load::request($nginx->port, 'POST', '/', {}, 'x');

    is sprintf('%.0f', state_of('ratelimit:requests:{127.0.0.1}', $redis)), 98,
       'cost= of the limit';
    is sprintf('%.0f', state_of('ratelimit:points:{127.0.0.1}', $redis)), 494,
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
    ok $nginx->log_like(qr/\[warn\].*cost 6 is above capacity 5 of limit "small"/),
       'a warning';
    ok !$nginx->log_like(qr/SKIPPED/), 'and nothing that is not so';

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
       'Redis is away';
    is $page->()->{status}, 200, 'not then either';
    like $page->()->{body}, qr/"limit":,"remaining":,/, 'closed: no numbers';

    my $config = $nginx->{opt}{http};

    ok $nginx->reload(conf => $config =~ s/ratelimit_on_error closed;//r)
       && $nginx->old_workers_gone(10), 'the default';

    # that the bucket was empty holds for a second
    ok wait_until(sub { $nginx->get('/api/')->{status}
                        == 404 }), 'Redis is still away';
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

    is $page->()->{headers}{'x-source'}, 'redis', 'asked once';

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
                    $load->responses], [], 'and speaks, always';
    is sprintf('%.0f', state_of('ratelimit:tomorrow:{127.0.0.1}', $redis)), 0,
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
    is sprintf('%.0f', state_of('ratelimit:tomorrow:{127.0.0.1}', $redis)), 49,
       'one of three has passed';

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


subtest 'Redis is called as seldom as is said' => sub {
    my @redis = RateLimit::Redis->start_many(3);
    my $text = block_of('Fewer calls to Redis');
    my ($most) = $text =~ /# up to (\d+) tokens at a time/;
    my ($capacity) = $text =~ /ratelimit_capacity (\d+);/;
    my ($percent) = $text =~ /ratelimit_lease +(\d+)%/;

    is $most, $capacity * $percent / 100, 'the lease of the text';

    # a lease that lives as long as this test, and one of the usual length

    my $list = join ' ', map { $_->addr } @redis;
    my $nginx = nginx_of('Fewer calls to Redis', [$redis[0]],
        replace => { 'ttl=1s' => 'ttl=60s' }, more => <<"EOC");
ratelimit_limit one   key=\$arg_one   capacity=1 rate=1r/d;
ratelimit_limit two   key=\$arg_two   capacity=9 rate=1r/d;
ratelimit_limit trial key=\$arg_two   capacity=1 rate=1r/d dry_run;
ratelimit_log_key plain;
ratelimit_limit fast  key=fast        capacity=1 rate=10r/s;

server {
    listen     127.0.0.1:%%PORT2%%;
    add_header X-Source \$ratelimit_source always;

    location /short  { ratelimit_key \$arg_k; ratelimit_rate 1r/d;
                       ratelimit_capacity 100; ratelimit_lease 10; }
    location /window { ratelimit_key \$arg_k; ratelimit_window 1h;
                       ratelimit_capacity 100; ratelimit_lease 10;
                       ratelimit_algorithm sliding_window_log; }
    location /one    { ratelimit one; }
    location /fast   { ratelimit fast; }
    location /both   { ratelimit one two trial; ratelimit_lease 10; }
    location /shards { ratelimit one two; ratelimit_shards $list; }
    location /off    { ratelimit one; ratelimit_deny_cache off; }
}
EOC

    my $get = sub { RateLimit::Load::get($nginx->port(2), $_[0]) };
    my $sources = sub {
        my ($n, $path) = @_;

        return join ' ', map { $get->($path)->{headers}{'x-source'} } 1 .. $n;
    };

    # how leases grow

    my $flat = $section{'Fewer calls to Redis'} =~ s/\s+/ /gr;
    my ($growth, $then) = $flat =~
        /the requests ([\d, ]+) and so on ask Redis at first, then one of (\d+)\./;

    is $then, $most + 1, 'one that asks, and a full lease';

    my @asked;
    my $calls = calls_of(@redis);

    for my $n (1 .. 3 * $then) {
        $nginx->get('/api/', 'X-Api-Key' => 'a');

        my $now = calls_of(@redis);

        push @asked, $n if $now > $calls;
        $calls = $now;
    }

    my @growth = split /, /, $growth;

    is "@asked[0 .. $#growth]", "@growth", "requests @growth ask";
    is $asked[-1] - $asked[-2], $then, "then one of $then" or diag "@asked";

    cmp_ok state_of("ratelimit:_/api/:{a}", @redis), '<',
           $capacity - 3 * $then, 'more is taken than was spent';

    # Remaining counts what is held

    is $nginx->get('/api/', 'X-Api-Key' => 'a')
       ->{headers}{'x-ratelimit-remaining'}, $capacity - 3 * $then - 1,
       'Remaining: what is held as well';

    # the ttl

    is $sources->(4, '/short?k=a'), 'redis redis lease redis', 'a lease';
    cmp_ok state_of('ratelimit:_/short:{a}', @redis), '<', 94, 'three are held';
    ok wait_until(sub {
        abs(state_of('ratelimit:_/short:{a}', @redis) - 96) < 0.1
    }), 'and go back';

    # windows and several limits have none

    is $sources->(5, '/window?k=a'), 'redis redis redis redis redis',
       'a window has no leases';
    is $sources->(3, '/both?two=b'), 'redis redis redis', 'nor have several limits';

    # denials

    is $sources->(3, '/one?one=a'), 'redis denied denied', 'an empty bucket';
    is $sources->(2, '/off?one=a'), 'redis redis', 'off: Redis is asked';

    $_->reset_calls for @redis;
    is $get->('/both?one=a&two=a')->{headers}{'x-source'}, 'denied',
       'one of several';
    is calls_of(@redis), 0, 'the others are not asked';
    is $nginx->log_count(qr/REJECTED_DRY_RUN, limit: "trial", key: "a"/), 0,
       'not even those that are tried';

    $redis[0]->cmd('DEL', 'ratelimit:one:{a}');
    is $get->('/one?one=a')->{status}, 429, 'a bucket that was reset';

    my $since = time;

    ok wait_until(sub { $get->('/one?one=a')->{status} == 404 }), 'is used';
    cmp_ok time - $since, '<=', 3, 'after a second';

    # several limits that reject, on one shard or on two

    is $sources->(3, '/both?one=c&two=c'), 'redis redis denied', 'one shard';

    my %key;

    for my $k (map { "k$_" } 1 .. 100) {
        $get->("/shards?two=$k");

        my ($home) = grep { $redis[$_]->cmd('EXISTS', "ratelimit:two:{$k}") }
                     0 .. 2;
        $key{$home} //= $k;
        last if keys %key == 2;
    }

    my ($here, $there) = values %key;

    is $sources->(2, "/shards?one=$here&two=$there"), 'redis redis',
       'two shards';
    ok wait_until(sub {
        $sources->(1, "/shards?one=$here&two=$there") eq 'denied'
    }), 'remembered as well';

    # a flood: a bucket of one token each 100 ms

    $_->reset_calls for @redis;

    my $load = RateLimit::Load::run(
        port => $nginx->port(2), connections => 16, duration => 2,
        path => '/fast');

    cmp_ok calls_of(@redis), '<=', 8 + 4 * $load->count(404),
           'a flood costs a few calls for each token';
    cmp_ok calls_of(@redis), '<', $load->count / 2,
           'not one for each request' or diag $load->count;

    # what is held goes back when a worker leaves

    my $api = 'ratelimit:_/api/:{b}';

    $nginx->get('/api/', 'X-Api-Key' => 'b') for 1 .. 4;
    cmp_ok state_of($api, @redis), '<', $capacity - 6, 'three are held';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    ok wait_until(sub { abs(state_of($api, @redis) - $capacity + 4) < 0.1 }),
       'gives back';

    $nginx->get('/api/', 'X-Api-Key' => 'b') for 1 .. 2;

    my $left = state_of($api, @redis);

    ok $nginx->stop, 'stopped';
    ok wait_until(sub { abs(state_of($api, @redis) - $capacity + 6) < 0.1 }),
       'so does the end' or diag $left, ' ', state_of($api, @redis);
    $nginx->no_alerts;
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


# Clocks can't be set here, but the times in Redis can.

subtest 'clocks are taken as described' => sub {
    my $redis = RateLimit::Redis->start;

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $redis->addr};\n" . <<'EOC',
ratelimit_limit slow   key=x capacity=1000000 rate=1r/s;
ratelimit_limit window key=x capacity=2 window=2h algorithm=sliding_window_log;
ratelimit_limit steps  key=x capacity=100 rate=60r/m refill_interval=10s;
ratelimit_limit gcra   key=x capacity=10000 rate=1r/s algorithm=gcra;

add_header X-Status $ratelimit_status always;
EOC
        server => <<'EOC');
location /redis  { ratelimit slow; }
location /nginx  { ratelimit slow; ratelimit_clock nginx; }
location /window { ratelimit window; }
location /steps  { ratelimit steps; }
location /gcra   { ratelimit gcra; ratelimit_deny_cache off; }
location /gcra-nginx { ratelimit gcra; ratelimit_deny_cache off;
                       ratelimit_clock nginx; }
EOC

    my $get = sub { $nginx->get($_[0])->{headers} };

    my $set = sub {
        my ($last, $seen) = @_;

        my @at = map { sprintf '%.0f', (time + $_) * 1e6 } $last, $seen;

        $redis->cmd('DEL', 'ratelimit:slow:{x}');
        $redis->bucket_set('ratelimit:slow:{x}', tokens => '100',
                           lastRefill => $at[0], seen => $at[1]);
    };

    my $left = sub { $get->($_[0])->{'x-ratelimit-remaining'} };
    my $near = sub { abs($_[0] - $_[1]) < 60 };

    my $day = 86400;

    for my $clock ('/redis', '/nginx') {
        $set->(-10000, -10000);
        ok $near->($left->($clock), 100 + 10000), "$clock: time goes on";

        $set->(-3 * $day, -3 * $day);
        ok $near->($left->($clock), 100 + 3 * $day), "$clock: so does idleness";

        $set->(-3 * $day, 0);
        ok $near->($left->($clock), 100 + 3600), "$clock: a leap is an hour";

        $set->(30, 0);
        is $left->($clock), 99, "$clock: back by half a minute, no refill";
        is $left->($clock), 98, "$clock: nobody is locked out";
    }

    $set->(90, 0);
    is $left->('/redis'), 99, '/redis: back by more';
    cmp_ok $redis->bucket('ratelimit:slow:{x}')->{lastRefill}, '<',
           (time + 60) * 1e6, 'it goes on from there';

    $set->(90, 0);
    is $get->('/nginx')->{'x-status'}, 'DEGRADED', '/nginx: a failure';
    ok $nginx->wait_log(qr/ratelimit DEGRADED, limit: "slow", .* failure: clock/),
       'called "clock"';

    # gcra has no second clock: a leap refills, and time that runs back takes
    # away, but not more than all

    my $full_at = sub {
        $redis->cmd('SET', 'ratelimit:gcra:{x}',
                    sprintf '%.0f', (time + $_[0] - 1_700_000_000) * 16e6);
    };

    for my $clock ('/gcra', '/gcra-nginx') {
        $full_at->(1000);
        ok $near->($left->($clock), 9000), "$clock: a thousand lack";
        $full_at->(1000 - 3 * $day);
        is $left->($clock), 9999, "$clock: three days later, a leap or not";
        $full_at->(1000 + 4000);
        ok $near->($left->($clock), 5000), "$clock: back by so many seconds";
        $full_at->(3 * $day);
        is $get->($clock)->{'x-ratelimit-remaining'}, 0,
           "$clock: back by more than all";
        is $get->($clock)->{'x-status'}, 'REJECTED', 'is no failure';
    }

    # a refill in steps

    my ($rate, $step) = ($section{ratelimit_refill_interval} =~ s/\s+/ /gr)
                        =~ /with `(\w+\/m)` and `(\w+)`, ten tokens/;

    is "$rate $step", '60r/m 10s', 'the steps of the text';

    for ([4 => 5], [14 => 15], [24 => 25]) {
        my ($ago, $tokens) = @$_;

        $redis->bucket_set('ratelimit:steps:{x}', tokens => '6',
                           lastRefill => sprintf '%.0f', (time - $ago) * 1e6);
        is $left->('/steps'), $tokens, "$tokens after $ago s";
    }

    # entries of a window go with the clock

    $get->('/window') for 1 .. 2;
    is $get->('/window')->{'x-ratelimit-remaining'}, 0, 'a full window';

    for my $member (@{ $redis->cmd('ZRANGE', 'ratelimit:window:{x}', 0, -1) }) {
        $redis->cmd('ZADD', 'ratelimit:window:{x}', (time + 3600) * 1e6, $member);
    }

    my $wait = $get->('/window')->{'retry-after'};

    ok $wait > 7000 && $wait <= 7200, 'back by an hour: it leaves as it would'
        or diag $wait;

    $nginx->finish;
};


# ---- the reply and its headers

# RESP of a reply as the README shows it: one integer, or several.

sub resp {
    my (@integers) = split / /, $_[0];

    my $text = join '', map { ":$_\r\n" } @integers;

    return @integers > 1 ? '*' . @integers . "\r\n$text" : $text;
}


subtest 'headers are made from replies as described' => sub {
    my $text = $section{'From reply to headers'};
    my @tables = map { [table_of($_)] } $text =~ /^(\| reply .*?)\n\n/msg;

    is scalar @tables, 2, 'two scripts, two tables';

    for (qw(token_bucket.lua gcra.lua take.lua)) {
        ok exists $lua{$_}, $_;
        like $text, qr/`\Q$_\E`/, 'is in the text';
    }

    my $flat = $text =~ s/\s+/ /gr;

    like $flat, qr/`ratelimit_capacity 100` and `ratelimit_rate 6r\/m`/,
         'the limit of the first table';

    my @limits = $text =~ /`(ratelimit_limit [^`]+)`/g;

    is scalar @limits, 2, 'the limits of the second';

    my @replies = map { map { code_in($_) } @{ $_->[0] }[1, 2] } @tables;

    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => [map { resp($_) } @replies, 1000000, 6000000] });

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

    # those of several requests, of several buckets, and of gcra

    my $redis = RateLimit::Redis->start;
    my @bucket = (100, 1, 10, 1, 2_000_000);    # 6r/m
    my $tick = 10_000_000 * 16;                 # a token each ten seconds

    is_deeply $redis->cmd('EVAL', $lua{'token_bucket.lua'}, 1, 'a', @bucket,
                          0, 3),
              [3, 97_000_000], 'three requests: two integers';
    is_deeply $redis->cmd('EVAL', $lua{'token_bucket.lua'}, 2, 'b', 'c',
                          @bucket), [99_000_000, 99_000_000], 'two buckets';
    is_deeply $redis->cmd('EVAL', $lua{'token_bucket.lua'}, 2, 'f', 'g',
                          @bucket, 0, 1, 3), [1, 99_000_000, 3, 97_000_000],
              'one and three for two buckets: two integers each';
    is $redis->cmd('EVAL', $lua{'gcra.lua'}, 1, 'd', 100 * $tick, $tick, 0),
       99 * $tick, 'gcra: what the tokens are worth';
    is_deeply $redis->cmd('EVAL', $lua{'gcra.lua'}, 1, 'e', 100 * $tick, $tick,
                          0, 3), [3, 97 * $tick], 'and of three requests';

    my $headers = $nginx->get('/proxy')->{headers};

    is $headers->{'x-ratelimit-limit'}, 100, "a backend's header is replaced";
    is $headers->{'x-ratelimit-retry-after'}, undef, 'or removed';
    is $headers->{'retry-after'}, 7, 'its Retry-After stays';
    is $headers->{'ratelimit-policy'}, '"theirs";q=7',
       'so does a family that is not sent';

    # every header of the filter is here

    for my $name (source('headers.c') =~ /ngx_rl_header\("([\w-]+)"/g) {
        like $text, qr/`\Q$name\E`/, $name;
    }

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

    my $get = sub { $nginx->get($_[0]) };
    my $response = $get->('/json');

    is $response->{status}, 429, 'json: status';
    is $response->{headers}{'content-type'}, 'application/json', 'its type';
    is $response->{body}, $json, 'its body, whatever error_page says';

    $response = $get->('/problem');
    is $response->{headers}{'content-type'}, 'application/problem+json',
       'problem: its type';
    is $response->{body}, $problem, 'its body';

    $response = $get->('/problem');
    like $response->{body}, qr/"violated-policies":\["user"\]\}$/,
         'only those that reject';

    $response = $get->('/once');
    like $response->{body}, qr/"retry_after":null\}$/, 'no time helps';
    is $response->{headers}{'retry-after'}, undef, 'no Retry-After';

    $response = RateLimit::Load::request($nginx->port, 'HEAD', '/json');
    is $response->{status}, 429, 'HEAD';
    is $response->{body}, '', 'has no body';

    is $get->('/default')->{body}, "page\n", 'default: the error_page';
    is $get->('/closed')->{body}, "page\n", 'closed: the error_page';

    $nginx->finish;

    # what is known to reject, and what was not asked for that reason

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
    is calls_of($redis), 0, 'nobody asks';

    $nginx->finish;
};


# ---- failures, log lines, numbers

subtest 'failures are called and decided as described' => sub {
    my ($table) = $section{Faults} =~ /^(\| failure.*)\z/ms;
    my @named = map { code_in($_->[0]) } table_of($table);
    my @failures = grep { $_ ne 'ok' }
                   strings('ngx_rl_failure_names');

    is_deeply [sort @named], [sort @failures], 'each has an entry';

    my %told = map { $_ => 1 } map { code_in($_->[2]) }
               grep { @$_ > 2 } table_of($table);
    my @reasons = strings('ngx_rl_reason_names');

    is_deeply [sort keys %told], [sort @reasons], 'the reasons';

    my ($header) = grep { $_->[0] eq '`X-RateLimit-Degraded-Reason`' }
                   table_of($section{'From reply to headers'});

    is_deeply [sort +code_in($header->[1])], [sort @reasons],
              'those of the header';

    # which of them count

    my ($code) = source('failure.c') =~ /\nngx_rl_failure_breaks\(
                                          (.*?)\n\}/sx;
    my @silent = map { lc } grep { !/^(?:OK|CIRCUIT)$/ }
                 $code =~ /case NGX_RL_(\w+):/g;
    my ($list) = ($section{'The circuit breaker'} =~ s/\s+/ /gr)
                 =~ /don't count: ([^.]+)\./;

    is_deeply [sort +code_in($list)], [sort @silent], 'what does not count';

    my @states = map { code_in($_->[0]) } grep { $_->[0] =~ /^`/ }
                 table_of($section{'The circuit breaker'});

    is_deeply \@states, [strings('ngx_rl_breaker_names')],
              'the states of the breaker';

    my ($failures, $window) = breaker_default() =~ /failures=(\d+) window=(\d+)s/;

    like $section{'The circuit breaker'},
         qr/\b$failures failures within $window s\b/, 'its numbers';
};


# The calls that log, apart from configuration errors: level, format, and the
# words that a condition puts in.

sub log_calls {
    my @calls;

    for my $file (sources()) {
        my $text = source($file);

        while ($text =~ /\b(ngx_log_error|ngx_rl_check_warn
                            |ngx_rl_connection_fail)
                         \((.*?)\);/sgx)
        {
            my ($function, $call) = ($1, $2);

            # a declaration, and the line that logs what others say

            next if $call =~ /const char \*fmt|"%\*s"/;

            # check_warn() names its level only where it is no warning

            $call = ($function =~ /connection_fail/ ? 'NGX_LOG_ERR'
                     : $call =~ /NGX_RL_CHECK_NOTICE/ ? 'NGX_LOG_NOTICE'
                     : 'NGX_LOG_WARN')
                    . ", $call" if $function ne 'ngx_log_error';

            my ($level, $rest) = $call =~ /^\s*(\w+),\s*(.*)/s;

            # the latter says that this is no usual machine

            next if $level =~ /EMERG|ALERT/ || $rest =~ m{/dev/urandom};

            my ($format, $args) = $rest =~ /("(?:[^"\\]|\\.)*"
                                             (?:\s*"(?:[^"\\]|\\.)*")*)(.*)/xs;

            $format = join '', $format =~ /"((?:[^"\\]|\\.)*)"/g;
            $format =~ s/\\"/"/g;

            $format .= ' (or "ratelimit_silence %V;" if this is meant) in %V:%ui'
                if $function =~ /check_warn/;

            my @words = $args =~ /[?:]\s*"([a-z](?:[^"\\]|\\.)*)"/g;

            # "c ? name(x) : "word"": any text, or this word

            push @words, '' if @words && $args =~ /\?\s*\w+\(/;

            push @calls, { level => $level, format => $format,
                           words => \@words };
        }
    }

    return @calls;
}


my %LEVEL = (NGX_LOG_ERR => 'error', NGX_LOG_WARN => 'warn',
             NGX_LOG_NOTICE => 'notice', NGX_LOG_INFO => 'info');

my @log_lines = map { split /\n/ } @{ $block{log} };


subtest 'each log line is one of the sources' => sub {
    my @calls = log_calls();
    my %explained;

    cmp_ok scalar @calls, '>=', 15, 'there are calls that log';

    for my $call (@calls) {
        my $level = $LEVEL{ $call->{level} } // '\w+';

        for my $word (@{ $call->{words} } ? @{ $call->{words} } : '') {
            my $regex = join '', map {
                  /^%(?:ui|uL|uA|L|d|i)$/  ? '-?\d+'
                : /^%s$/ && length $word   ? quotemeta $word
                : /^%/                     ? '.*?'
                :                            quotemeta
            } split /(%(?:\*s|ui|uL|uA|[VsLdi]))/, $call->{format};

            my @match = grep {
                /^\[$level\] $regex(?: \(\d+: [\w ]+\))?(?:, redis: \S+)?$/
            } @log_lines;

            ok @match, ($call->{format} =~ s/%s/$word || '%s'/er);
            $explained{$_} = 1 for @match;
        }
    }

    is_deeply [grep { !$explained{$_} } @log_lines], [],
              'and none that the code does not write';
};


subtest 'an outage logs the lines that are shown' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx;

    my $get = sub {
        return $nginx->get('/api/',
                                    'X-Real-IP' => '203.0.113.7')->{headers};
    };

    my $degraded = sub { $get->()->{'x-ratelimit-degraded'} };

    my $logged = sub {
        my ($start) = @_;

        my ($line) = grep { /^\[\w+\] \Q$start\E/ } @log_lines;
        my ($level, $text) = $line =~ /^(\[\w+\]) (.*)/;

        $text =~ s/\Q10.0.0.1:6379\E/$addr/g;
        $text = quotemeta($text) =~ s/(after\\ )\d+/$1\\d+/r;

        ok wait_until(sub {
            grep { /\Q$level\E/ && /$text(?:,|$)/ }
                 split /\n/, $nginx->error_log
        }), $line;
    };

    # gone, and back

    $nginx = RateLimit::Nginx->start(conf => $patient . example($redis),
                                     workers => 1);

    ok wait_until(sub { $redis->cmd('FLUSHALL'); !$degraded->() }), 'passed';
    $logged->('ratelimit PASSED');

    $redis->stop;
    ok wait_until($degraded), 'Redis is away';
    is $get->()->{'x-ratelimit-degraded-reason'}, 'storage_unavailable',
       'no connection';
    $logged->('connect() to');
    ok wait_until(sub { $get->(); $nginx->log_like(qr/ is unavailable/) }, 15),
       'after five attempts it is given up';

    $redis->start;
    ok wait_until(sub { !$degraded->() }, 15), 'it is back';
    $logged->("ratelimit: redis 10.0.0.1:6379 is unavailable");
    $logged->("ratelimit: redis 10.0.0.1:6379 is available again");

    $nginx->finish;

    # there, but silent

    $nginx = RateLimit::Nginx->start(
        conf    => 'ratelimit_redis_connect_timeout 20s;' . example($redis),
        workers => 1);

    ok wait_until(sub { !$degraded->() }), 'passed';

    $redis->pause;
    is $get->()->{'x-ratelimit-degraded-reason'}, 'timeout', 'no answer';
    $logged->('no answer from redis');
    $logged->('ratelimit DEGRADED');
    $logged->('redis does not answer any more');
    $redis->resume;

    $nginx->finish;
};


# What Redis has said and given holds for its time.

subtest 'what is known in an outage is as described' => sub {
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
    }

    is $get->('/lease')->{'x-source'}, 'local', 'what is not known is';

    $nginx->finish;
};


# Each text that a row of the table quotes is the beginning of a line that the
# code writes, each metric and each label is one of the code.

subtest 'faults have the names that are listed' => sub {
    my @rows = grep { @$_ == 4 && $_->[0] !~ /^fault$/ }
               table_of($section{Faults});
    my %family = map { $_ => 1 } source('metrics.c') =~ /"nginx_ratelimit_(\w+)"/g;
    my %label = (class => { map { $_ => 1 }
                            strings('ngx_rl_failure_names') },
                 to => { map { $_ => 1 }
                         strings('ngx_rl_breaker_names') },
                 event => { map { $_ => 1 }
                            strings('ngx_rl_event_names') });
    my %reason = map { $_ => 1 } strings('ngx_rl_reason_names');

    cmp_ok scalar @rows, '>=', 24, 'there are faults';

    # all beginnings of all formats, with what may stand for their parts

    my @starts;

    for my $call (log_calls()) {
        for my $word (@{ $call->{words} } ? @{ $call->{words} } : '') {
            my @parts = map { /^%s$/ && length $word ? split //, $word
                            : /^%/ ? $_ : split // }
                        split /(%(?:\*s|ui|uL|uA|[VsLdi]))/, $call->{format};

            push @starts, map {
                join '', map { /^%./ ? '.+' : quotemeta } @parts[0 .. $_]
            } 8 .. $#parts;
        }
    }

    for my $row (@rows) {
        my ($fault, $clients, $log, $metrics) = @$row;

        for my $text (code_in($log)) {
            my $line = $text =~ s/SHARD/10.0.0.1:6379/r;
            ok scalar(grep { $line =~ /^$_$/ } @starts), "$fault: $text";
        }

        for my $text (code_in($clients)) {
            next if $text =~ /^ratelimit_/;
            ok $reason{$text}, "$fault: $text";
        }

        for my $text (code_in($metrics)) {
            my ($name, $key, $value) = $text =~ /^(\w*)(?:\{(\w+)="(\w+)"\})?$/;

            ok $name eq '' || $family{$name}, "$fault: $text";
            ok $label{$key}{$value}, "$fault: $key $value" if defined $key;
        }
    }
};


# Those faults that a command makes, and what the table says of them.  The
# others have tests of their own.

subtest 'faults do what is listed' => sub {
    my %row = map { $_->[0] => $_ } table_of($section{Faults});
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
    $try->('Redis is stopped, or hangs', break => sub { $_[0]->pause },
           mend => sub { $_[0]->resume }, conf => '',
           any => 1);
    $try->('wrong password, or rights that are missing', apart => 1,
           config => { requirepass => 'right' },
           conf => "ratelimit_redis_password wrong;\n");
    $try->('SCRIPT FLUSH', break => sub { $_[0]->cmd('SCRIPT', 'FLUSH') });
    $try->('`maxmemory` with `noeviction`',
           break => sub { $_[0]->cmd('CONFIG', 'SET', 'maxmemory', 1) });

    my $primary = RateLimit::Redis->start;

    $try->('the server is a replica', any => 1, break => sub {
        $_[0]->cmd('REPLICAOF', '127.0.0.1', $primary->port)
    });
    $try->('a long script keeps it busy',
           config => { 'lua-time-limit' => 50 }, conf => '',
           break => sub {
               my $client = RateLimit::Redis::Client->connect($_[0]->target);
               syswrite $client->{socket}, "EVAL 'while true do end' 0\r\n";
           },
           mend => sub { $_[0]->cmd('SCRIPT', 'KILL') });
    $try->('a variable with a wrong capacity, rate, window or refill interval',
           path => '/value?r=x');
};


# ---- metrics

subtest 'the metrics are those that are listed' => sub {
    my $redis = RateLimit::Redis->start;
    my $text = http_of(block_of('Metrics'));

    my $nginx = RateLimit::Nginx->start(conf => "$patient$text" . <<"EOC");
server {
    listen 127.0.0.1:%%PORT2%%;
    location /  { ratelimit client; empty_gif; }
    location /r { ratelimit client; ratelimit_shards ${\ $redis->addr}; empty_gif; }
}
EOC

    # the example with jq

    RateLimit::Load::get($nginx->port(2), '/') for 1 .. 3;

    my ($step) = map { RateLimit::Transcript::parse($_) }
                 grep { /jq/ } @{ $block{console} };

    RateLimit::Transcript::check('jq', $step,
                                 '127.0.0.1:8082' => '127.0.0.1:'
                                                     . $nginx->port);

    # the table

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

    my ($decisions) = ($section{Metrics} =~ s/\s+/ /gr)
                      =~ /A decision is (.*?);/;

    is_deeply [code_in($decisions)],
              [strings('ngx_rl_decision_names')], 'decisions';

    my ($roles) = map { $_->[3] =~ /what it is: (.*)/ }
                  grep { $_->[0] =~ /shard_node/ } @rows;
    my @events = map { code_in($_->[0]) }
                 grep { @$_ == 3 && $_->[0] =~ /^`/ }
                 table_of($section{Metrics});

    is_deeply [code_in($roles)], [strings('ngx_rl_role_names')],
              'roles';
    is_deeply \@events, [strings('ngx_rl_event_names')], 'events';

    my ($format) = $section{Metrics} =~ /text format (\S+)/;

    like source('exposition.c'), qr/version=\Q$format\E;/, 'the format';

    $nginx->finish;
};


# ---- this machine's memory

subtest 'one machine needs no Redis, as described' => sub {
    my $nginx = RateLimit::Nginx->start(
        conf => http_of(block_of('One machine needs no Redis'))
                =~ s/10r\/s/10r\/d/r);

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                    requests => 150, path => '/x', keep => 1);

    is_deeply $load->statuses, { 404 => 100, 429 => 50 }, '100, by all workers';
    is_deeply [grep { $_->{headers}{'x-ratelimit-degraded'} }
               $load->responses], [], 'nothing is degraded';
    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    is $nginx->get('/x')->{status}, 429, 'forgets nothing';
    ok $nginx->stop && $nginx->start, 'a restart';
    is join(' ', map { $nginx->get('/login')->{status} }
                 1 .. 6), '404 404 404 404 404 429', 'does; a window of 5';

    $nginx->finish;

    # how many fit

    my ($fit) = $section{ratelimit_zone} =~ /about (\d+) buckets/;

    $nginx = RateLimit::Nginx->start(
        workers => 1, log => 'error',
        conf    => 'ratelimit_zone 512k;',
        server  => 'ratelimit_log_level info;
                    location /t { ratelimit_key $arg_k; ratelimit_rate 1r/d;
                                  empty_gif; }
                    location /metrics { ratelimit_metrics; }');

    $load = RateLimit::Load::run(port => $nginx->port, connections => 20,
                                 requests => 9000, timeout => 60,
                                 path => sub { "/t?k=$_[0]" });
    is $load->count(200), 9000, 'more than fit';

    my %zone = $nginx->get('/metrics')->{body}
               =~ /^nginx_ratelimit_zone_(\S+) (\d+)$/mg;

    cmp_ok $zone{'evictions_total{held="much"}'}, '>', 0, 'some had to go';
    cmp_ok abs($zone{keys} / ($fit / 2) - 1), '<', 0.1, "half of $fit are left"
        or diag $zone{keys};

    $nginx->finish;
};


subtest 'Redis needs as much memory as is said' => sub {
    my $redis = RateLimit::Redis->start;
    my ($version) = $section{'Sliding window log'} =~ /In Redis (\d+\.\d+)/;

    plan skip_all => "not Redis $version"
        if $redis->info('server')->{redis_version} !~ /^\Q$version\E\./;

    my $text = $section{'Redis in production'} =~ s/\s+/ /gr;
    my ($bytes) = $text =~ /a bucket takes about (\d+) bytes/;

    like $text, qr/a million of them is $bytes MB/, 'a million';

    my ($gcra) = $text =~ /one of `gcra` about (\d+)/;
    my $n = 100_000;

    for (['bucket', $bytes, <<'EOL'], ['gcra', $gcra, <<'EOM']) {
redis.call('HSET', key, 'tokens', '99', 'lastRefill', '1794844923000000',
           'expires', '1794845923000')
redis.call('PEXPIRE', key, 1000000)
EOL
redis.call('SET', key, '1517518768000000', 'PX', 1000000)
redis.call('SETRANGE', key, 0, '15')
EOM
        my ($kind, $expected, $lines) = @$_;

        $redis->cmd('FLUSHALL');

        my $before = $redis->info('memory')->{used_memory};

        $redis->cmd('EVAL', <<"EOL", 0, $n);
for i = 1, ARGV[1] do
    local key = string.format('ratelimit:example.com/api/:{203.%d.%d.%d}',
                              i / 65536, i / 256 % 256, i % 256)
    $lines
end
EOL

        my $each = ($redis->info('memory')->{used_memory} - $before) / $n;

        is $redis->cmd('DBSIZE'), $n, "$kind: so many";
        cmp_ok abs($each / $expected - 1), '<', 0.15, "$expected bytes each"
            or diag $each;
    }

    for my $policy ($section{'Redis in production'} =~ /`maxmemory-policy ([\w-]+)`/g) {
        is $redis->cmd('CONFIG', 'SET', 'maxmemory-policy', $policy), 'OK',
           $policy;
    }
};


subtest 'numbers are those of the sources' => sub {
    my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

    my @numbers = (
        ['ratelimit_key', KEY_MAX => '%d bytes'],
        ['Log lines', LOG_KEY => 'first %d bytes'],
        ['When Redis is away', PIPELINE_PENDINGS => '%d calls'],
        ['When Redis is away', PIPELINE_STALL => '%d ms after'],
        ['When Redis is away', BACKOFF_MIN => 'after %d ms'],
        ['ratelimit_breaker', BACKOFF_MIN => 'after %d ms'],
        ['ratelimit_breaker', BREAKER_MAX => '1 to %d'],
        ['ratelimit_local_share', MAX_SHARE => 'denominator of %d'],
        ['One machine needs no Redis', ENTRIES => 'up to %d requests'],
        ['Limits of the design', ENTRIES => 'more than %d requests'],
        ['Log lines', RECORD_CHANGES => 'up to ten a minute', 1, 10],
        ['When Redis is away', CONNECTION_STABLE => 'lived for a second', 1, 1000],
        ['Log lines', THROTTLE_MINUTE => 'once a minute', 1, 60],
        ['Directives', THROTTLE_MINUTE => 'once a minute', 1, 60],
        ['ratelimit_capacity', MAX_CAPACITY => '1 to %d'],
        ['ratelimit_rate', MAX_RATE => 'up to %d'],
        ['ratelimit_cost', MAX_COST => '1 to %d'],
        ['ratelimit_redis_timeout', TIMEOUT_MAX => '1ms to %ds', 1000],
        ['ratelimit_shards', REDIS_PORT => 'port is %d'],
        ['Several limits on one request', CLAIMS => 'At most %d'],
        ['ratelimit', CLAIMS => 'up to %d'],
        ['Limits of the design', CLAIMS => 'At most %d limits'],
        ['ratelimit_limit', LIMIT_NAME_MAX => '1 to %d letters'],
        ['ratelimit_window', WINDOW_MAX => '1ms to %dd', 86400000],
        ['ratelimit_refill_interval', INTERVAL_MAX => 'up to %dd', 86400000],
        ['ratelimit_preview_cache', TIMEOUT_MAX => 'up to %ds', 1000],
        ['ratelimit_deny_cache', DENY_CACHE => '`on` is %ds', 1000],
        ['ratelimit_deny_cache', TIMEOUT_MAX => 'and %ds is the most', 1000],
        ['ratelimit_lease', LEASE_TTL => 'by default %ds', 1000],
        ['ratelimit_lease', TIMEOUT_MAX => '10ms to %ds', 1000],
        ['ratelimit_lease', MAX_CAPACITY => '1 to %d or'],
        ['Fewer calls to Redis', EVAL_CALLS => 'Up to %d of them'],
        ['Fewer calls to Redis', COMMAND_WAIT => '%d ms at most'],
        ['ratelimit_shards', SENTINEL_PORT => 'that of a sentinel %d'],
        ['Redis Cluster', CLUSTER_REFRESH => 'once a second', 1, 1000],
        ['Redis Cluster', CLUSTER_AGAIN => 'after %d ms'],
        ['Redis Cluster', CLUSTER_HOPS => '%d hops at most'],
        ['Limits of the design', NODES_MAX => 'up to %d masters'],
        ['Sentinel', SENTINEL_PING => 'for two to four seconds', 1, 2000],
        ['Sentinel', SENTINEL_STALE => 'For %d s a sentinel', 1000],
        ['Sentinel', SENTINEL_ASK => 'once a second', 1, 1000],
        ['Names that move', RESOLVE_MIN => 'pauses of %d s', 1000],
        ['Names that move', RESOLVE_PAUSE => '%d s', 1000],
    );

    for (@numbers) {
        my ($section, $name, $format, $scale, $value) = @$_;

        is define($name), $value, $name if defined $value;

        my $words = $format =~ s{%d}{define($name) / ($scale || 1)}er;
        ok index($text{$section}, $words) >= 0, "$section: $words";
    }

    like source('combine.c'), qr/timer, waiter->timeout \/ 4 \+ 1\)/,
         'who waits goes after a quarter of the timeout';

    # 64 bytes a key, and as many for a chunk of a window

    my $chunks = define('ENTRIES') / define('CHUNK');

    ok index($text{ratelimit_zone}, 'for each four requests') >= 0
       && define('CHUNK') == 4, 'ratelimit_zone: a chunk';
    ok index($text{ratelimit_zone}, 'up to ' . ($chunks + 1) . ' times') >= 0,
       'ratelimit_zone: the largest window';

    # who goes when the zone is full

    for (['next %d places', 'CELLS_SWEEP'], ['at %d more', 'CELLS_SEARCH'],
         ['counts %d times', 'WEIGHT_KNOWN'])
    {
        my ($format, $name) = @$_;
        my $words = $format =~ s/%d/define($name)/er;

        ok index($text{ratelimit_zone}, $words) >= 0, "ratelimit_zone: $words";
    }

    ok index($text{ratelimit_zone}, 'count four times') >= 0
       && define('WEIGHT_LITTLE') == 4 * define('WEIGHT_MUCH'),
       'ratelimit_zone: what little counts';

    my $bits = $directive{ratelimit_ipv6_prefix}{default};

    ok index($text{Variables}, "its /$bits;") >= 0, "Variables: /$bits";

    my ($ms) = $directive{ratelimit_preview_cache}{default} =~ /^(\d+)ms$/;

    ok index($text{Preview}, "by default ${ms}ms") >= 0, "Preview: $ms ms";
    ok index($text{Preview}, 1000 / $ms . ' calls a second') >= 0, 'its calls';

    my ($behind) = $lua{'take.lua'} =~ /^local BEHIND = (\d+)$/m;
    my ($hour) = $lua{'take.lua'} =~ /^local HOUR = (\d+)$/m;

    ok index($text{Clocks}, 'more than ' . $behind / 1e6 . ' s behind') >= 0,
       "Clocks: $behind";
    is $hour, 3600e6, 'Clocks: an hour';
    is define('HOUR') * 1000, $hour, 'the same for the short script';

    my ($major, $minor) = slurp('config') =~ /-lt (\d)0(\d\d)000/;
    like $text{Building}, qr/nginx \Q$major.$minor\E or newer/, 'oldest nginx';
};


# ---- commands

subtest 'commands of redis-cli show what is said' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(conf => $patient . example($redis));

    is $nginx->get('/api/',
                            'X-Real-IP' => '203.0.113.7')->{status}, 200,
       'a request';

    # what a cluster and sentinels need besides has tests of its own

    my @steps = grep { $_->{command} !~ / acl setuser nginx '?\+| -p 26379 / }
                map { RateLimit::Transcript::parse($_) }
                grep { /^\$ redis-cli/ } @{ $block{console} };
    my %step = map { $_->{command} => $_ } @steps;
    my @order = map { $_->{command} } @steps;

    cmp_ok scalar @order, '>=', 5, 'commands';

    for my $command (@order) {
        RateLimit::Transcript::check($command, $step{$command},
                                     '-h 10.0.0.1' => '-p ' . $redis->port);
    }

    ok !$redis->cmd('EXISTS', 'ratelimit:example.com/api/:{203.0.113.7}'),
       'the bucket was reset';

    # the user made there is all that the module needs, and needs it all

    my ($acl) = grep { / acl setuser / } @order;
    my %allowed = map { $_ => 1 } $acl =~ /\+(\w+)(?=\s|$)/g;
    my %called = map { lc $_ => 1 }
                 map { /\bp?call\('(\w+)'/g }
                 values %lua;

    delete @allowed{qw(eval evalsha)};
    is_deeply [sort keys %allowed], [sort keys %called],
              'the commands of the scripts';

    $nginx->finish;

    my $second = RateLimit::Redis->start;

    RateLimit::Transcript::check('the same user elsewhere', $step{$acl},
                                 '-h 10.0.0.1' => '-p ' . $second->port);

    my $list = join ' ', map { $_->addr } $redis, $second;

    $nginx = RateLimit::Nginx->start(
        conf => "$patient ratelimit_shards $list;" . <<'EOC', server => <<'EOC');
ratelimit_redis_user     nginx;
ratelimit_redis_password secret;
ratelimit_deny_cache     off;

ratelimit_limit bucket key=$arg_b capacity=2 rate=2r/h;
ratelimit_limit gcra   key=$arg_g capacity=2 rate=2r/h algorithm=gcra;
ratelimit_limit window key=$arg_w capacity=3 window=1h
                       algorithm=sliding_window_log;

add_header X-St $ratelimit_status always;
EOC
location /one   { ratelimit_rate 1r/s; }
location /gcra  { ratelimit gcra; }
location /two   { ratelimit bucket gcra window; }
location /quota { ratelimit bucket window; ratelimit_preview on; }
EOC

    my $status = sub {
        return $nginx->get($_[0])->{headers}{'x-st'};
    };

    is join(' ', map { $status->('/one') } 1 .. 2), 'PASSED REJECTED',
       'one bucket';
    is $status->('/quota?b=x&w=x'), 'PASSED', 'a preview';

    # a denied window gives a bucket on the other shard its token back, and
    # the other way round

    my @key = grep { defined } map {
        my $n = $_;
        $status->("/two?b=k$n");
        my ($i) = grep { (($redis, $second)[$_])
                         ->cmd('EXISTS', "ratelimit:bucket:{k$n}") } 0, 1;
        [$i, "k$n"]
    } 1 .. 40;

    my ($here) = map { $_->[1] } grep { $_->[0] == 0 } @key;
    my ($there) = map { $_->[1] } grep { $_->[0] == 1 } @key;

    $_->cmd('FLUSHALL') for $redis, $second;

    is join(' ', map { $status->("/two?b=$here&w=$there") } 1 .. 3),
       'PASSED PASSED REJECTED', 'two limits on two shards';
    ok wait_until(sub {
        state_of("ratelimit:window:{$there}", $redis, $second) == 2
    }), 'an entry is given back';

    is join(' ', map { $status->("/two?b=$there&w=$there") } 1 .. 2),
       'PASSED REJECTED', 'two limits on one shard';
    my ($other) = map { $_->[1] } grep { $_->[0] == 0 && $_->[1] ne $here } @key;

    is $status->("/two?b=$other&w=$there"), 'REJECTED', 'another bucket';
    ok wait_until(sub {
        (state_of("ratelimit:bucket:{$other}", $redis, $second) // 2) == 2
    }), 'a token is given back';

    # so it is with gcra

    is join(' ', map { $status->("/two?g=$here&w=$there") } 1 .. 2),
       'REJECTED REJECTED', 'gcra and a window';
    is join(' ', map { $status->("/gcra?g=$here") } 1 .. 3),
       'PASSED PASSED REJECTED', 'its tokens are given back';
    $second->cmd('DEL', "ratelimit:window:{$there}");
    is $status->("/two?g=$here&w=$there"), 'REJECTED', 'gcra denies';
    is $status->("/two?b=$other&w=$there"), 'PASSED', 'the window does not';
    ok wait_until(sub {
        state_of("ratelimit:window:{$there}", $second) == 1
    }), 'and has its entry back';
    $status->("/two?w=$there") for 1 .. 2;

    # entries from the future are moved

    my ($home) = grep { $_->cmd('EXISTS', "ratelimit:window:{$there}") }
                 $redis, $second;

    $home->cmd('ZADD', "ratelimit:window:{$there}", (time + 600) * 1e6,
               $home->cmd('ZRANGE', "ratelimit:window:{$there}", -1, -1)->[0]);
    is $status->("/two?w=$there"), 'REJECTED', 'after the clock was set back';

    # scripts are not there any more

    $_->cmd('SCRIPT', 'FLUSH') for $redis, $second;
    is $status->("/two?b=fresh&w=fresh"), 'PASSED', 'with the text of a script';

    ok !$nginx->log_like(qr/NOPERM|redis refused|refund failed|answered/),
       'nothing is forbidden';
    ok !$nginx->log_like(qr/ is in state | is unavailable/), 'and no shard was missed';

    # an open breaker is closed by a probe, with these rights

    $_->cmd('CONFIG', 'SET', 'maxmemory', 1) for $redis, $second;
    ok wait_until(sub {
        $status->('/one');
        $nginx->log_like(qr/ is unavailable \(oom\)/);
    }), 'no memory';
    $_->cmd('CONFIG', 'SET', 'maxmemory', 0) for $redis, $second;
    ok $nginx->wait_log(qr/ is available again/, 15), 'probed';
    ok !$nginx->log_like(qr/NOPERM|redis refused/), 'which is allowed';
    is_deeply $redis->cmd('KEYS', '*probe*'), [], 'and leaves nothing behind';

    like $redis->cmd('CLIENT', 'LIST'), qr/ name=nginx-ratelimit\@\S/,
         'the name of the connections';

    $nginx->finish;
};


# Without one of the commands that it names, some script fails for it.

subtest 'the user of redis-cli has no right that is not needed' => sub {
    my ($line) = grep { / acl setuser / } map { $_->{command} }
                 map { RateLimit::Transcript::parse($_) } @{ $block{console} };
    my ($rights) = $line =~ /setuser (.*)/ or die;
    my @rights = map { s/^'(.*)'$/$1/r } split / /, $rights;
    my @commands = map { /^\+(\w+)$/ ? $1 : () } @rights;
    my @redis = RateLimit::Redis->start_many(2);

    $_->cmd('ACL', 'SETUSER', @rights) for @redis;

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "$patient ratelimit_shards @{[map { $_->addr } @redis]};"
                   . <<'EOC', server => <<'EOC');
ratelimit_redis_user     nginx;
ratelimit_redis_password secret;
ratelimit_deny_cache     off;
ratelimit_breaker        failures=100 window=100ms;

ratelimit_limit bucket key=$arg_b capacity=2 rate=2r/m;
ratelimit_limit gcra   key=$arg_g capacity=9 rate=600r/m algorithm=gcra;
ratelimit_limit window key=$arg_w capacity=3 window=1h
                       algorithm=sliding_window_log;
EOC
location /bucket { ratelimit bucket; empty_gif; }
location /gcra   { ratelimit gcra; empty_gif; }
location /two    { ratelimit bucket gcra window; empty_gif; }
EOC

    my $get = sub { $nginx->get($_[0])->{status} };

    my ($here, $there);

    for my $k (map { "k$_" } 1 .. 100) {
        $get->("/bucket?b=$k");
        $redis[0]->cmd('EXISTS', "ratelimit:bucket:{$k}") ? $here = $k
                                                          : ($there = $k);
        last if defined $here && defined $there;
    }

    my $try = sub {
        for (@redis) {
            $_->cmd('FLUSHALL');
            $_->cmd('ACL', 'LOG', 'RESET');
        }

        # a bucket, gcra; what another algorithm has left

        $get->("/bucket?b=$here") for 1 .. 3;
        $get->("/gcra?g=$here") for 1 .. 3;
        $redis[1]->cmd('ZADD', "ratelimit:bucket:{$there}", 1, 1);
        $redis[1]->cmd('HSET', "ratelimit:gcra:{$there}", 'tokens', 1);
        $get->("/bucket?b=$there");
        $get->("/gcra?g=$there");

        # the bucket denies, and the window gives back

        $redis[1]->cmd('ZADD', "ratelimit:window:{$there}", 1,
                       sprintf '%016d:1:%016d:x', 1, 1);
        $get->("/two?b=$here&w=$there");

        # the other way round

        $redis[0]->cmd('DEL', "ratelimit:bucket:{$here}");
        $get->("/two?w=$there") for 1 .. 3;
        $get->("/two?b=$here&g=$here&w=$there");

        # refunds are sent by then

        $get->("/two?b=$_") for $here, $there;

        return map { my %entry = @$_; $entry{username} eq 'nginx'
                                      ? lc $entry{object} : () }
               map { @{ $_->cmd('ACL', 'LOG') } } @redis;
    };

    is_deeply [$try->()], [], 'with all of them nothing is forbidden';

    for my $command (grep { !/^eval(?:sha)?$/ } @commands) {
        $_->cmd('ACL', 'SETUSER', 'nginx', "-$command") for @redis;

        my %denied = map { $_ => 1 } $try->();

        is_deeply [keys %denied], [$command], "$command is needed";
        $_->cmd('ACL', 'SETUSER', 'nginx', "+$command") for @redis;
    }

    is_deeply [$try->()], [], 'all is well again';

    $nginx->finish;
};


# ---- where Redis is

# nginx with the configuration of a section, whose every answer says who has
# decided, and where; %replace as http_of() takes it.

sub nginx_at {
    my ($name, $more, %replace) = @_;

    return RateLimit::Nginx->start(
        conf => http_of(block_of($name), %replace) . $more
                . "add_header X-Source \$ratelimit_source always;\n"
                . "add_header X-Shard  \$ratelimit_shard  always;\n"
                . "ratelimit_deny_cache off;\n");
}


sub source_of { RateLimit::Load::get(@_)->{headers}{'x-source'} }


subtest 'a cluster does what is described' => sub {
    my $cluster = RateLimit::Cluster->start;
    my @nodes = $cluster->masters;

    # one is enough

    my $nginx = nginx_at('Redis Cluster', $patient,
        '10.0.0.1:6379 10.0.0.2:6379 10.0.0.3:6379' => $nodes[0]->addr,
        '100r/m' => '100r/d', '1000r/s' => '1000r/d');

    ok $nginx->wait_log(qr/ratelimit cluster: 3 nodes serve 16384 of 16384 slots/),
       'the others are found';

    my $home = $cluster->node_of('search');
    my ($key) = grep { $cluster->node_of($_) != $home } 'a' .. 'z';
    my $get = sub { $nginx->get($_[0], 'X-Api-Key' => $key) };

    $get->('/search');                  # there is a connection to both

    for (['/api/', 0], ['/search', 5]) {
        my ($path, $calls) = @$_;

        $_->reset_calls for @nodes;
        is join(' ', map { $get->($path)->{headers}{'x-source'} } 1 .. 5),
           'redis redis redis redis redis', "$path: Redis decides";
        is calls_of($cluster->node_of($key)), 5, 'one call for one key';
        is calls_of($home), $calls, "and $calls for the other";
    }

    is $get->('/api/')->{headers}{'x-shard'}, $cluster->node_of($key)->addr,
       '$ratelimit_shard: the node';

    # braces

    ($key) = '{a}b';
    $get->('/api/');

    my $sha = Digest::SHA::sha1_hex($key);

    is scalar(grep { $_ eq "ratelimit:minute:{sha1:$sha}" } $cluster->keys), 1,
       'a key with braces';

    # a slot moves, and its bucket with it

    ($key) = grep { $cluster->node_of($_) == $nodes[0] } 'aa' .. 'zz';
    $get->('/api/') for 1 .. 3;
    $cluster->move_slot(RateLimit::Cluster::slot($key), $nodes[1]);
    is $get->('/api/')->{headers}{'x-ratelimit-remaining'}, 96,
       'a slot that has moved: nothing is forgotten';

    $nginx->finish;

    # as a shard

    $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $nodes[0]->addr};",
        server => 'location / { ratelimit_key $arg_k; ratelimit_rate 1r/d; }');

    $nginx->get("/?k=$_") for 1 .. 20;
    ok $nginx->wait_log(qr/is a node of a cluster: write|answered "MOVED/),
       'a node as a shard';

    $nginx->finish;
};


subtest 'sentinels do what is described' => sub {
    my $all = RateLimit::Sentinel->start(
        names           => ['limits-a', 'limits-b'],
        config          => { requirepass => 'wonderland' },
        sentinel_config => { requirepass => 'looking-glass' },
    );

    my $nginx = nginx_at('Sentinel', $patient . <<'EOC',
server {
    listen         127.0.0.1:%%PORT2%%;
    ratelimit_rate 1000r/d;
    ratelimit_key  $arg_k;
}
EOC
        '10.0.0.1 10.0.0.2 10.0.0.3' => $all->addrs,
        'ratelimit_redis_ssl              on;' => '');

    my %shard;

    # all workers have to be told

    ok wait_until(sub {
        my @h = map { RateLimit::Load::get($nginx->port(2), "/?k=$_")->{headers} }
                1 .. 20;

        %shard = map { ($h[$_ - 1]{'x-shard'} => $_) } 1 .. 20;
        return !grep { $_->{'x-source'} ne 'redis' } @h;
    }, 15), 'Redis decides';

    is_deeply [sort keys %shard], ['limits-a', 'limits-b'],
              'each name is a shard';
    like $nginx->error_log, qr/ratelimit shard limits-a: the master is \S+, says sentinel/,
         'the log says where it is';

    # another master: the shard, and its keys, stay

    my $old = $all->master('limits-a');

    ok $all->failover('limits-a'), 'a failover';
    ok $nginx->wait_log(qr/ratelimit shard limits-a: the master is \S+ now, and was \Q${\ $old->addr}\E,/, 15),
       'is told';
    ok wait_until(sub {
        my $h = RateLimit::Load::get($nginx->port(2), "/?k=$shard{'limits-a'}")
                ->{headers};
        return $h->{'x-source'} eq 'redis' && $h->{'x-shard'} eq 'limits-a';
    }, 15), 'the new one decides';
    cmp_ok $all->master('limits-a')->cmd('DBSIZE'), '>', 0, 'by what there was';

    $nginx->finish;
};


sub tls_server {
    my (%config) = @_;

    my $port = free_port();

    return RateLimit::Redis->start(
        port => $port, config => { $certs->redis($server, $port), %config });
}


subtest 'TLS does what is described' => sub {
    my @redis = map { tls_server('tls-auth-clients' => 'yes') } 1 .. 2;
    my $nginx = nginx_at('TLS', $patient,
                         '10.0.0.1:6380' => $redis[0]->addr,
                         '10.0.0.2:6380' => $redis[1]->addr);

    is source_of($nginx->port, '/'), 'redis', 'Redis decides';
    $nginx->finish;

    # without a certificate, or with another name

    for (['ratelimit_redis_ssl_certificate\w* [^;]+;', 'certificate required'],
         ['redis\.example\.com', 'certificate is not for'])
    {
        my ($what, $why) = @$_;
        my $text = http_of(block_of('TLS'), '10.0.0.1:6380' => $redis[0]->addr,
                                            '10.0.0.2:6380' => $redis[1]->addr);

        $text =~ s/$what/$what =~ m{example} ? 'other.example.com' : ''/ge;

        $nginx = RateLimit::Nginx->start(conf => "$patient$text");
        is $nginx->get('/')
           ->{headers}{'x-ratelimit-degraded'}, 'true', "$why: share";
        ok $nginx->wait_log(qr/redis TLS handshake with \S+ failed: .*$why/),
           'the log says why';
        $nginx->finish;
    }
};


# The name is "localhost", which the system knows as nginx starts.

subtest 'names that move are followed as described' => sub {
    my $dns = RateLimit::Dns->start(names => { localhost => { a => ['127.0.0.1'] } });
    my @port = map { free_port() } 1 .. 2;
    my @old = map { RateLimit::Redis->start(port => $_) } @port;
    my @new = map { RateLimit::Redis->start(port => $_, bind => '127.0.0.2') } @port;

    my $nginx = nginx_at('Names that move', $patient,
                         '10.0.0.53' => $dns->addr,
                         'redis-1.example.com' => "localhost:$port[0]",
                         'redis-2.example.com' => "localhost:$port[1]");
    my $get = sub { source_of($nginx->port, '/') };
    my $keys = sub { my $n = 0; $n += $_->cmd('DBSIZE') for @_; return $n };

    is $get->(), 'redis', 'Redis decides';
    is $keys->(@old), 1, 'where the name leads';

    $dns->name('localhost', a => ['127.0.0.2']);
    ok $nginx->wait_log(qr/ratelimit shard localhost:$_: addresses are 127\.0\.0\.2 now/, 30),
       'it moves' for @port;
    ok wait_until(sub { $get->() eq 'redis' && $keys->(@new) == 1 }, 15),
       'and nginx follows';

    $dns->forget('localhost');
    ok $nginx->wait_log(qr/name "localhost" could not be resolved .*, last addresses stay/, 30),
       'DNS fails';
    is $get->(), 'redis', 'the last addresses stay';

    $nginx->finish;
};


subtest 'a managed Redis works with what is described' => sub {
    my $dns = RateLimit::Dns->start(names => { localhost => { a => ['127.0.0.1'] } });
    my $redis = tls_server(user => 'limiter on >wonderland ~ratelimit:* +@all '
                                   . '-client -script');

    # no authority of the system has signed it

    my $nginx = nginx_at('Managed Redis',
        "ratelimit_redis_ssl_trusted_certificate ${\ $certs->ca};\n",
        '10.0.0.53' => $dns->addr, '100ms' => '20s', '500ms' => '20s',
        'limits.example.net:6380' => 'localhost:' . $redis->port);

    is source_of($nginx->port, '/'), 'redis', 'Redis decides';
    ok $nginx->log_like(qr/refused $_, which is not needed/), "without $_"
        for 'CLIENT SETNAME', 'SCRIPT LOAD';
    unlike $nginx->error_log, qr/wonderland/, 'nothing secret in the log';

    $nginx->finish;
};


# The rights of the README, on these servers.

sub allow {
    my ($which, @redis) = @_;

    my ($step) = grep { $_->{command} =~ / acl setuser nginx $which/ }
                 map { RateLimit::Transcript::parse($_) } @{ $block{console} };

    $step // die "no rights: $which\n";

    for my $redis (@redis) {
        RateLimit::Transcript::check($step->{command}, $step,
            '-h 10.0.0.4 -p 26379' => '-p ' . $redis->port,
            '-h 10.0.0.1' => '-p ' . $redis->port);
    }

    return $step->{command} =~ /(?:\s|')(&?\+[\w|+-]+)/g;
}


sub denied {
    my (@redis) = @_;

    my %denied = map { my %entry = @$_;
                       $entry{username} eq 'nginx' ? (lc $entry{object} => 1) : () }
                 map { @{ $_->cmd('ACL', 'LOG') } } @redis;

    return join ' ', sort keys %denied;
}


subtest 'in a cluster the rights that are listed are needed, and are enough'
    => sub
{
    my $cluster = RateLimit::Cluster->start(masters => 2);
    my @nodes = $cluster->masters;

    allow("on '>secret'", @nodes);

    my @rights = allow(qr/'\+cluster/, @nodes);
    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "${patient}ratelimit_shards cluster ${\ $nodes[0]->addr};\n"
                   . "add_header X-Source \$ratelimit_source always;\n"
                   . "ratelimit_breaker failures=100 window=100ms;\n"
                   . <<'EOC', server => <<'EOC');
ratelimit_redis_user     nginx;
ratelimit_redis_password secret;
EOC
location / { ratelimit_key $arg_k; ratelimit_rate 100r/d; }
EOC

    my $n = 0;

    # a new connection to each node, and a slot in the middle of its move

    my $try = sub {
        $_->cmd('ACL', 'LOG', 'RESET') for @nodes;
        $nginx->reload && $nginx->old_workers_gone(10) or die "no reload\n";

        my @key = map { my $node = $_;
                        $n++ while $cluster->node_of("k$n") != $node;
                        'k' . $n++ } @nodes;
        my @sources = map { source_of($nginx->port, "/?k=$_") } @key;
        my $slot = RateLimit::Cluster::slot("k$n");
        my ($to) = grep { $_ != $cluster->node_of(\$slot) } @nodes;

        $cluster->begin_move($slot, $to);
        push @sources, source_of($nginx->port, "/?k=k$n");
        $cluster->cancel_move($slot);
        $cluster->flush;
        $n++;

        return "@sources";
    };

    is_deeply \@rights, ['+cluster|slots', '+asking'], 'the rights';
    is $try->(), 'redis redis redis', 'with all of them Redis decides';
    is denied(@nodes), '', 'nothing is forbidden';

    for my $right (map { s/^\+//r } @rights) {
        $_->cmd('ACL', 'SETUSER', 'nginx', "-$right") for @nodes;
        like $try->(), qr/local$/, "without $right it does not";
        is denied(@nodes), $right, "$right is needed";
        $_->cmd('ACL', 'SETUSER', 'nginx', "+$right") for @nodes;
    }

    $nginx->finish;
};


subtest 'with sentinels the rights that are listed are needed, and are enough'
    => sub
{
    my $all = RateLimit::Sentinel->start;
    my @servers = $all->servers;
    my @sentinels = $all->sentinels;

    allow("on '>secret'", @servers);
    is_deeply [allow(qr/\+role/, @servers)], ['+role'], 'the role';

    my @rights = allow(qr/on '>other'/, @sentinels);

    cmp_ok scalar @rights, '==', 5, 'rights on sentinels' or diag "@rights";

    my $nginx = RateLimit::Nginx->start(
        workers => 1,
        conf    => "${patient}ratelimit_shards sentinel=mymaster ${\ $all->addrs};\n"
                   . "add_header X-Source \$ratelimit_source always;\n"
                   . <<'EOC', server => <<'EOC');
ratelimit_redis_user        nginx;
ratelimit_redis_password    secret;
ratelimit_sentinel_user     nginx;
ratelimit_sentinel_password other;
EOC
location / { ratelimit_rate 100r/d; }
EOC

    ok wait_until(sub { source_of($nginx->port, '/') eq 'redis' }, 15),
       'Redis decides';
    ok $all->failover, 'a failover';
    ok $nginx->wait_log(qr/the master is \S+ now, and was/, 15), 'is heard of';
    ok wait_until(sub { source_of($nginx->port, '/') eq 'redis' }, 15),
       'Redis decides again';
    is denied(@servers, @sentinels), '', 'nothing is forbidden';

    # without one of them the next worker is denied something

    my $try = sub {
        my ($right, $on, @redis) = @_;

        my ($off, $object) = $right =~ /^&(.*)/ ? ('resetchannels', $1)
                                                : ($right =~ s/^\+/-/r,
                                                   $right =~ s/^\+//r);

        for (@redis) {
            $_->cmd('ACL', 'SETUSER', 'nginx', $off);
            $_->cmd('ACL', 'LOG', 'RESET');
        }

        ok $nginx->reload && $nginx->old_workers_gone(10), "without $right";
        ok wait_until(sub { denied(@redis) eq $object }, 15),
           "$object is needed" or diag denied(@redis);
        $_->cmd('ACL', 'SETUSER', 'nginx', $on) for @redis;
    };

    $try->('+role', '+role', @servers);
    $try->($_, $_, @sentinels) for @rights;

    $nginx->finish;
};


subtest 'the commands of make exist' => sub {
    my $makefile = slurp('Makefile');
    my $text = join "\n", @{ $block{sh} };

    for my $target ($text =~ /^make ([a-z]+)\b/mg, 'help') {
        like $makefile, qr/^\Q$target\E:/m, "make $target";
    }

    for my $name (map { /\b([A-Z][A-Z_]+)=/g } code_in($readme), $text) {
        like $makefile, qr/^\Q$name\E\ +\?=
                           |\$\(foreach\ name,[^,]*\b\Q$name\E\b
                           |\$\(if\ \$\(\Q$name\E\)/mx, "$name=";
    }

    is_deeply [sort $readme =~ /^(\.\/configure|make)\b/mg],
              [sort $text =~ /^(\.\/configure|make)\b/mg], 'all in blocks of sh';
};


subtest 'links lead somewhere' => sub {
    my %anchor = map { lc(s/[^\w\s-]//gr) =~ s/ /-/gr => 1 } keys %section;

    while ($readme =~ /\]\(([^)]+)\)/g) {
        my $link = $1;

        ok $link =~ /^#(.*)/ ? $anchor{$1} : -e $link, $link;
    }

    for my $file (glob 'conf-examples/*.conf') {
        like $readme, qr/\(\Q$file\E\)/, "$file is mentioned";
    }
};


done_testing();
