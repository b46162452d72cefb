# README.md against the code: each configuration in it is taken by nginx, each
# command answers what it shows, and each directive, variable, header, log line
# and number is the one of the sources.
#
# Not under valgrind: nginx is started a hundred times, mostly for its messages
# about configurations, and with Redis timeouts of some milliseconds.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(slurp wait_until);

my $readme = slurp('README.md');
my %source = map { s{.*/ngx_http_ratelimit_}{}r => slurp($_) } glob 'src/*.[ch]';
my $all = join "\n", map { $source{$_} } sort keys %source;

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

    my ($value) = $all =~ /^#define\s+NGX_HTTP_RATELIMIT_$name\s+(\d+)/m;

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


# The command table: name => contexts, arguments, allowed words, default.

sub directives {
    my $text = $source{'module.c'};

    my %enum;

    while ($text =~ /ngx_conf_enum_t\s+(\w+)\[\]\s*=\s*\{(.*?)\};/sg) {
        my ($name, $list) = ($1, $2);

        $enum{$name} = [map { [/"([^"]+)"\),\s*(\w+)/] }
                        $list =~ /\{\s*(ngx_string\([^}]*)\}/g];
    }

    my %default;

    while ($source{'conf.c'} =~ /ngx_conf_merge_\w*value\(conf->([\w.]+),
                                 \s*prev->[\w.]+,\s*([^)]+)\)/xg)
    {
        $default{$1} = $2;
    }

    my %directive;

    my ($table) = $text =~ /ngx_http_ratelimit_commands\[\]\s*=\s*\{(.*?)
                            ngx_null_command/sx or die;

    while ($table =~ /\{\s*ngx_string\("(\w+)"\),\s*([^,]+),\s*(\w+),\s*\w+,
                      \s*([^,]+),\s*(\S+)\s*\}/xg)
    {
        my ($name, $type, $handler, $offset, $post) = ($1, $2, $3, $4, $5);

        while ($type =~ /(NGX_HTTP_RATELIMIT_\w+)/) {
            my $macro = $1;
            my ($value) = $text =~ /^#define\s+$macro\s+\\?\s*\(?([\w|]+)\)?$/m
                          or die "no $macro\n";
            $type =~ s/$macro/$value/;
        }

        my @flags = split /\s*\|\s*/, $type;
        my ($field) = $offset =~ /\(([\w.]+)\)/;

        if (!defined $field) {
            my ($short) = $name =~ /^ratelimit_(?:redis_)?(\w+)/;
            ($field) = grep { exists $default{$_} } $short, "access.$short";
        }

        my $words = $enum{ $post =~ s/^&//r };
        my $value = defined $field ? $default{$field} : undef;

        if (defined $value) {
            my ($word) = grep { $_->[1] eq $value } @{ $words || [] };

            $value = $word                     ? $word->[0]
                   : exists $CONSTANT{$value}  ? $CONSTANT{$value}
                   : $type =~ /NGX_CONF_FLAG/  ? ($value ? 'on' : 'off')
                   : $handler =~ /timeout/     ? "${value}ms"
                   : $value eq '""'            ? 'none'
                   :                             $value =~ s/^"(.*)"$/$1/r;
        }

        $directive{$name} = {
            context => join(', ', grep { defined } @CONTEXT{@flags}),
            words   => $type =~ /NGX_CONF_FLAG/ ? 'on | off'
                     : $words ? join(' | ', map { $_->[0] } @$words) : undef,
            default => $value,
        };
    }

    return %directive;
}


my %directive = directives();
my @variables = map { "\$$_" }
    ($source{'variables.c'} =~ /ngx_http_ratelimit_variables\[\]\s*=\s*\{(.*?)\n\};/s)[0]
    =~ /\{ ngx_string\("(\w+)"\)/g;

cmp_ok scalar keys %directive, '>=', 18, 'the directives of the module';
cmp_ok scalar @variables, '>=', 10, 'its variables';
cmp_ok scalar keys %section, '>=', 20, 'the sections of the README';


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

    $text =~ s/^(\s*listen\s+)(\d+);/
               $port{$2} ||= '%%PORT' . (++$n == 1 ? '' : $n) . '%%';
               "${1}127.0.0.1:$port{$2};"/mge;

    for my $from (keys %replace) {
        $text =~ s/\Q$from\E/$replace{$from}/g or die "no $from\n";
    }

    return $text;
}


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

    for my $text (@{ $block{nginx} }) {
        my ($code, $output) = RateLimit::Nginx->test_config(
                                  conf => http_of($text));
        is $code, 0, ($text =~ /(\S[^\n]*)/)[0] or diag $output;
    }
};


subtest 'the first configuration: one limit over two nginx' => sub {
    my $redis = RateLimit::Redis->start;

    # nothing comes back during the test
    my $text = $patient . example($redis, '10r/s' => '10r/d');
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

    for (@nginx) {
        ok $_->stop, 'stopped';
        $_->no_alerts;
    }
};


# ---- directives

subtest 'directives' => sub {
    my @entries = grep { /^ratelimit\w*$/ } keys %section;

    is_deeply [sort @entries], [sort keys %directive],
              'each directive has an entry, each entry is a directive';

    # those whose default no merge function has are tried below

    my %special = (
        ratelimit_shards => 'none', ratelimit_key => '$remote_addr',
        ratelimit_rate => 'none', ratelimit_cost => '1',
        ratelimit_capacity => 'the number in the rate',
        ratelimit_redis_password_file => 'none',
    );

    for my $name (sort @entries) {
        my $text = $section{$name};
        my ($syntax) = $text =~ /^Syntax: +(.*)$/m;
        my ($default) = $text =~ /^Default: +(.*)$/m;
        my ($context) = $text =~ /^Context: +(.*)$/m;
        my $real = $directive{$name};

        like $syntax, qr/^\Q$name\E .+;$/, "$name: syntax";
        is $syntax, "$name $real->{words};", "$name: words"
            if defined $real->{words};
        is $default, $real->{default} // $special{$name}, "$name: default";
        is $context, $real->{context}, "$name: context";
        like $text, qr/^```\n\n[A-Z]/m, "$name: text";
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
            like $name, qr/^ratelimit_(?:key|redis_password)$/,
                 "$name takes anything";
            next;
        }

        for my $value (code_in($list)) {
            my $text = $value =~ /^ratelimit_/ ? $value : "$name $value;";

            my ($code, $output) = RateLimit::Nginx->test_config(
                conf   => 'ratelimit_shards 127.0.0.1:1; ratelimit_rate 1r/s;',
                server => "location / { $text }");

            is $code, 1, $text;
            like $output, qr/\[emerg\].*"?\Q$name\E"?/, 'the message names it';
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

    is $code, 1, 'a limit without shards';
    like $output, qr/needs "ratelimit_shards"/, 'the message says so';
};


# ---- defaults that take a request to see, variables, names, order, redirects

subtest 'defaults, variables, names' => sub {
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
       'key: $remote_addr';

    # variables

    my @rows = map { code_in($_->[0]) } grep { $_->[0] =~ /^`\$/ }
               table_of($section{Variables});

    is_deeply [sort @rows], [sort @variables],
              'each variable has an entry, each entry is a variable';

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
    is $h->{'x-status'}, 'DEGRADED', 'a wrong value of a variable';
    is $h->{'x-ratelimit-degraded-reason'}, 'invalid_limit', 'its reason';

    is $get->(3, '/lifted')->{'x-status'}, 'SKIPPED', 'skipped';
    is $get->(3, '/nothing')->{'x-status'}, 'PASSED', 'limit of the http level';

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;
};


subtest 'order and redirects' => sub {
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

        return join ' ', map { RateLimit::Load::get($nginx->port, $path)
                               ->{status} } 1 .. $n;
    };

    is $statuses->('/auth', 3), '401 401 429', 'before authentication';
    is $statuses->('/any', 3), '401 401 429', 'satisfy any: nothing is granted';
    is $statuses->('/granted', 3), '418 418 429', 'and a rejection is final';
    is $statuses->('/return', 3), '204 204 204', 'return comes before a limit';

    my @response = map { RateLimit::Load::get($nginx->port, '/first') } 1 .. 4;

    is join(' ', map { $_->{headers}{'x-ratelimit-remaining'} } @response),
       '2 1 0 0', 'redirects: the first limit decides';
    is join(' ', map { $_->{headers}{'x-ratelimit-limit'} } @response),
       '3 3 3 3', 'and its headers stay';
    is scalar @{ $redis->cmd('KEYS', '*first*') }, 1, 'its bucket';
    is scalar @{ $redis->cmd('KEYS', '*second*') }, 0, 'is the only one';

    is $statuses->('/skipped', 2), '418 429', 'an empty key decides nothing';

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;
};


# ---- the reply and its headers

subtest 'from reply to headers' => sub {
    my @rows = table_of(($section{'From reply to headers'} =~ /(.*?)\n\n[^|]*\z/s)[0]);
    my %row = map { join(' ', code_in($_->[0])) || $_->[0] => $_ } @rows;

    my ($replies) = grep { $_->[0] eq 'reply' } @rows;
    my @reply = map { code_in($_) } @$replies[1, 2];

    my $fake = RateLimit::FakeRedis->start(
        policy => { eval => [map { ":$_\r\n" } @reply, 1000000] });

    my $nginx = RateLimit::Nginx->start(
        conf   => "${patient}ratelimit_shards ${\ $fake->addr};",
        server => <<'EOC');
ratelimit_capacity 100;
ratelimit_rate     6r/m;

location /proxy {
    proxy_pass http://127.0.0.1:%%PORT%%/backend;
}
location /backend {
    add_header X-RateLimit-Limit       7;
    add_header X-RateLimit-Retry-After 7;
    add_header Retry-After             7;
    return     200;
}
EOC

    like $section{'From reply to headers'},
         qr/`ratelimit_capacity 100` and `ratelimit_rate 6r\/m`/,
         'the limit of the table';

    for my $column (1, 2) {
        my $now = time;
        my $response = RateLimit::Load::get($nginx->port, '/x');
        my $late = time - $now;

        is $response->{status}, $column == 1 ? 404 : 429, 'status';

        for my $name (grep { /^X-RateLimit|^Retry-After$/ } sort keys %row) {
            next if $name =~ /Degraded/ || $name =~ / /;

            my $value = $response->{headers}{ lc $name };
            my $cell = $row{$name}[$column];

            if ($cell eq 'not sent') {
                is $value, undef, "$reply[$column - 1]: no $name";

            } elsif ($cell =~ /^now \+ (\d+)/) {
                my $more = $value - $now - $1;
                ok $more >= 0 && $more <= $late + 1, "$reply[$column - 1]: $name"
                    or diag "$value is not $now + $1";

            } else {
                is $value, ($cell =~ /^(\d+)/)[0], "$reply[$column - 1]: $name";
            }
        }
    }

    my $headers = RateLimit::Load::get($nginx->port, '/proxy')->{headers};

    is $headers->{'x-ratelimit-limit'}, 100, "a backend's header is replaced";
    is $headers->{'x-ratelimit-retry-after'}, undef, 'or removed';
    is $headers->{'retry-after'}, 7, 'its Retry-After stays';

    # every header of the filter is here

    for my $name ($source{'headers.c'} =~ /ngx_string\("([A-Z][\w-]+)"\)/g) {
        like $section{'From reply to headers'}, qr/`\Q$name\E`/, $name;
    }

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;
};


# ---- failures, log lines, numbers

subtest 'failures' => sub {
    my ($table) = $section{'When Redis is away'} =~ /^(\| failure.*)\z/ms;
    my @named = map { code_in($_->[0]) } table_of($table);
    my @failures = grep { $_ ne 'ok' }
                   strings('ngx_http_ratelimit_failure_names');

    is_deeply [sort @named], [sort @failures], 'each has an entry';

    my ($code) = $source{'failure.c'} =~ /ngx_http_ratelimit_failure_reason\(
                                          [^;]*\{(.*)/sx;
    my %reason = map { $_ => 1 } $code =~ /return "(\w+)"/g;
    my %told = map { $_ => 1 } map { code_in($_->[2]) }
               grep { @$_ > 2 } table_of($table);

    is_deeply [sort keys %told], [sort keys %reason], 'the reasons';
};


# The calls that log, apart from configuration errors: level, format, and the
# words that a condition puts in.

sub log_calls {
    my @calls;

    for my $file (sort keys %source) {
        while ($source{$file} =~ /\bngx_log_error\((.*?)\);/sg) {
            my ($level, $rest) = $1 =~ /^\s*(\w+),\s*(.*)/s;

            next if $level =~ /EMERG|ALERT/;

            my ($format, $args) = $rest =~ /("(?:[^"\\]|\\.)*"
                                             (?:\s*"(?:[^"\\]|\\.)*")*)(.*)/xs;

            $format = join '', $format =~ /"((?:[^"\\]|\\.)*)"/g;
            $format =~ s/\\"/"/g;

            my @words = $args =~ /[?:]\s*"((?:[^"\\]|\\.)*)"/g;

            push @calls, { level => $level, format => $format,
                           words => \@words };
        }
    }

    return @calls;
}


my %LEVEL = (NGX_LOG_ERR => 'error', NGX_LOG_WARN => 'warn',
             NGX_LOG_NOTICE => 'notice', NGX_LOG_INFO => 'info');

my @log_lines = map { split /\n/ } @{ $block{log} };


subtest 'log lines' => sub {
    my @calls = log_calls();
    my %explained;

    cmp_ok scalar @calls, '>=', 15, 'there are calls that log';

    for my $call (@calls) {
        my $level = $LEVEL{ $call->{level} } // '\w+';

        for my $word (@{ $call->{words} } ? @{ $call->{words} } : '') {
            my $regex = join '', map {
                  /^%(?:ui|uL|L|d|i)$/     ? '-?\d+'
                : /^%s$/ && length $word   ? quotemeta $word
                : /^%/                     ? '.+?'
                :                            quotemeta
            } split /(%(?:\*s|ui|uL|[VsLdi]))/, $call->{format};

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


subtest 'log lines of an outage' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx;

    my $get = sub {
        return RateLimit::Load::get($nginx->port, '/api/',
                                    'X-Real-IP' => '203.0.113.7')->{headers};
    };

    my $degraded = sub { $get->()->{'x-ratelimit-degraded'} };

    my $logged = sub {
        my ($start) = @_;

        my ($line) = grep { /^\[\w+\] \Q$start\E/ } @log_lines;
        my ($level, $text) = $line =~ /^(\[\w+\]) (.*)/;

        $text =~ s/\Q10.0.0.1:6379\E/$addr/g;

        ok wait_until(sub {
            grep { /\Q$level\E/ && /\Q$text\E(?:,|$)/ }
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

    $redis->start;
    ok wait_until(sub { !$degraded->() }, 15), 'it is back';
    $logged->('redis is back');

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;

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

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;
};


subtest 'numbers' => sub {
    my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;

    my @numbers = (
        ['ratelimit_key', KEY_MAX => '%d bytes'],
        ['Log lines', LOG_KEY => 'first %d bytes'],
        ['When Redis is away', REDIS_SLOTS => '%d calls'],
        ['When Redis is away', REDIS_STALL => '%d ms after'],
        ['When Redis is away', BACKOFF_MIN => 'after %d ms'],
        ['When Redis is away', BACKOFF_MAX => '%d s', 1000],
        ['When Redis is away', REDIS_STABLE => 'lived for a second', 1, 1000],
        ['Log lines', REDIS_LOG => 'once a minute', 1, 60],
        ['Directives', LOG_INTERVAL => 'once a minute', 1, 60],
        ['ratelimit_capacity', MAX_CAPACITY => '1 to %d'],
        ['ratelimit_rate', MAX_RATE => 'up to %d'],
        ['ratelimit_cost', MAX_COST => '1 to %d'],
        ['ratelimit_redis_timeout', TIMEOUT_MAX => '1ms to %ds', 1000],
        ['ratelimit_shards', REDIS_PORT => 'port is %d'],
        ['Variables', IPV6_PREFIX => 'its /%d'],
    );

    for (@numbers) {
        my ($section, $name, $format, $scale, $value) = @$_;

        is define($name), $value, $name if defined $value;

        my $words = $format =~ s{%d}{define($name) / ($scale || 1)}er;
        ok index($text{$section}, $words) >= 0, "$section: $words";
    }

    my ($major, $minor) = slurp('config') =~ /-lt (\d)0(\d\d)000/;
    like $text{Building}, qr/nginx \Q$major.$minor\E or newer/, 'oldest nginx';
};


# ---- commands

subtest 'commands of redis-cli' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = RateLimit::Nginx->start(conf => $patient . example($redis));

    is RateLimit::Load::get($nginx->port, '/api/',
                            'X-Real-IP' => '203.0.113.7')->{status}, 200,
       'a request';

    my %step = map { $_->{command} => $_ }
               map { RateLimit::Transcript::parse($_) } @{ $block{console} };
    my @order = map { $_->{command} }
                map { RateLimit::Transcript::parse($_) } @{ $block{console} };

    cmp_ok scalar @order, '>=', 5, 'commands';

    for my $command (@order) {
        RateLimit::Transcript::check($command, $step{$command},
                                     '-h 10.0.0.1' => '-p ' . $redis->port);
    }

    ok !$redis->cmd('EXISTS', 'ratelimit:example.com/api/:{203.0.113.7}'),
       'the bucket was reset';

    # the user made there is all that the module needs

    my $text = example($redis, 'server_name example.com;' =>
        'server_name example.com; ratelimit_redis_user nginx; '
        . 'ratelimit_redis_password secret; add_header X-St $ratelimit_status;');

    ok $nginx->reload(conf => $patient . $text), 'as this user';
    ok $nginx->old_workers_gone(10), 'old workers are gone';
    is RateLimit::Load::get($nginx->port, '/api/')->{headers}{'x-st'}, 'PASSED',
       'a request';
    ok !$nginx->log_like(qr/NOPERM|redis refused/), 'nothing is forbidden';

    like $redis->cmd('CLIENT', 'LIST'), qr/ name=nginx-ratelimit\@\S/,
         'the name of the connections';

    ok $nginx->stop, 'stopped';
    $nginx->no_alerts;
};


subtest 'commands of make' => sub {
    my $makefile = slurp('Makefile');
    my $text = join "\n", @{ $block{sh} };

    for my $target ($text =~ /^make ([a-z]+)\b/mg, 'help') {
        like $makefile, qr/^\Q$target\E:/m, "make $target";
    }

    for my $name (map { /\b([A-Z][A-Z_]+)=/g } code_in($readme), $text) {
        like $makefile, qr/^\Q$name\E +\?=/m, "$name=";
    }

    is_deeply [sort $readme =~ /^(\.\/configure|make)\b/mg],
              [sort $text =~ /^(\.\/configure|make)\b/mg], 'all in blocks of sh';
};


subtest 'links' => sub {
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
