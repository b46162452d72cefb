package RateLimit::Docs;

# A page of the docs, and what the sources say: for the tests that compare the
# two and run the examples of the page.
#
#     use lib 't/lib';
#     use Test::More;
#     use RateLimit::Docs 'docs/guide.md';
#
#     load_ok($_) for @{ $block{nginx} };          # nginx -t takes each block
#
#     subtest 'costs do what is described' => sub {
#         my $redis = RateLimit::Redis->start;
#         my $nginx = nginx_of('Cost', [$redis]);  # the block of "## Cost"
#
#         is $nginx->get('/')->{status}, 200, 'passed';
#         is sprintf('%.0f', state_of('ratelimit:points:{127.0.0.1}', $redis)),
#            494, 'six points are charged';
#         $nginx->finish;
#     };
#
#     done_testing();
#
# THE PAGE, exported by the "use" line that names it:
#   $page         its text
#   %section      heading => text up to the next heading of the same or a higher
#                 level.  "### `ratelimit_key`" is $section{ratelimit_key}
#   %block        language => list of the texts of fenced blocks
#   @log_lines    the lines of all "log" blocks
# and of any page, "my $other = read_page('README.md')": a hash of text, section,
# block, anchors (name => 1), languages (all, in order; '' for none), links
# ([address, line number]), log_lines.
#
#   block_of($heading, $language = 'nginx', $n = 0)  a block of a section
#   table_of($text)        rows, each a list of cells, without the ruler; the
#                          head is the first row.  "\|" in a cell is "|"
#   code_in($text)         what stands in backquotes
#   steps_of($heading)     RateLimit::Transcript steps of the section's "console"
#                          blocks; of the whole page without a heading
#   entry_of($heading)     an entry of the directive reference: a hash of syntax
#                          (a list), default, context, text; undef if it is none.
#                          With a second argument of that read_page()
#   anchor_of($heading)    its name in a link
#
# THE SOURCES:
#   $all                   all of src/, one text; source('conf.c') see
#                          RateLimit::Source
#   %lua                   'token_bucket.lua' => text of the script in build/lua/
#   define('CLAIMS')       the number of "#define NGX_RL_CLAIMS 8"
#   strings('ngx_rl_source_names')    the strings of an array
#   microseconds('60s')    60000000
#   %directive             name => hash of context ("http, server"), words
#                          ("on | off", or undef), default (or undef: no merge
#                          function has it), arguments (flags of the table)
#   @variables             ('$ratelimit_status', ...)
#   @per_limit             ('$ratelimit_status_NAME', ...)
#   @metrics               names of the metric families
#   breaker_default()      "failures=5 window=10s probe=1s"
#   log_calls()            calls that log: hash of level, format, words
#   log_patterns()         the same as hash of name, regex: a line "[level] text"
#                          of a "log" block matches one
#   log_starts()           regexes of the beginnings of these lines, from eight
#                          characters on
#   log_ok(@lines)         one test: the code writes each of these lines
#
# CONFIGURATIONS.  A block is a whole configuration or the inside of http {}.
#   $patient               long timeouts, so that a busy machine does not make
#                          Redis look dead
#   http_of($text, %replace)    the inside of http {}, "listen" on ports of this
#                          test (%%PORT%%, %%PORT2%%, ... in order), files of
#                          /etc/ replaced by real ones; %replace must all occur
#   load_ok($text, $name, %replace)   nginx -t takes it, without a warning
#   nginx_of($heading, [@redis], replace => {}, more => $text)   a running nginx;
#                          rates a second become rates a day
#   nginx_at($heading, $more, %replace)   a running nginx whose answers have
#                          X-Source and X-Shard
#   source_of($port, $path, %headers)   that X-Source
#   example($redis, %replace)   the first configuration of README.md with this
#                          Redis and a backend; clients are X-Real-IP
#   state_of($key, @redis) tokens of a bucket or entries of a window
#   calls_of(@redis)       script calls since reset_calls()
#   resp('1000000 -1')     the RESP reply that a fake Redis sends
#   certs()                a RateLimit::Certs with the CA; its files are those
#                          that /etc/nginx/*.crt and *.key stand for
#   tls_server(%config)    a RateLimit::Redis with TLS
#   allow($which, @redis)  runs the "acl setuser nginx $which" that the page
#                          shows on these servers; returns the rights
#   denied(@redis)         what their ACL LOG says about the user "nginx"

use strict;
use warnings;

use List::Util qw(sum0);
use Test::More ();

use RateLimit::Certs;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Source;
use RateLimit::Transcript;
use RateLimit::Util qw(free_port slurp write_file);

our ($page, %section, %block, @log_lines);

our $all = all_sources();
our %lua = map { s{.*/}{}r => slurp($_) } glob 'build/lua/*.lua';

# a busy machine must not make Redis look dead
our $patient = "ratelimit_redis_timeout 20s;\n"
               . "ratelimit_redis_connect_timeout 20s;\n";

my @EXPORT = qw(
    read_page anchor_of block_of table_of code_in steps_of entry_of
    define strings microseconds breaker_default log_calls log_patterns log_starts
    log_ok
    http_of load_ok nginx_of nginx_at source_of example state_of calls_of resp
    certs tls_server allow denied
    source source_path sources all_sources
);


sub import {
    my ($class, $file) = @_;

    my $caller = caller;

    no strict 'refs';

    *{"${caller}::$_"} = \&{$_} for @EXPORT;
    *{"${caller}::$_"} = \${$_} for qw(page all patient);
    *{"${caller}::$_"} = \%{$_} for qw(section block directive lua);
    *{"${caller}::$_"} = \@{$_} for qw(log_lines variables per_limit metrics);

    if (defined $file) {
        my $read = read_page($file);

        $page = $read->{text};
        %section = %{ $read->{section} };
        %block = %{ $read->{block} };
        @log_lines = @{ $read->{log_lines} };
    }
}


# ---- pages

# The name that GitHub gives a heading.

sub anchor_of {
    my ($heading) = @_;

    $heading =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;

    return lc($heading =~ s/[^\w\s-]//gr) =~ s/ /-/gr;
}


sub read_page {
    my ($file) = @_;

    my $text = slurp($file);
    my (%block, @languages, %section, %anchor, @links);

    while ($text =~ /^(\ *)(```+)([^\n`]*)\n(.*?)^\1\2$/msgx) {
        my ($indent, $language, $inside) = ($1, $3, $4);

        $inside =~ s/^$indent//mg;
        push @languages, $language;
        push @{ $block{$language} }, $inside;
    }

    # a "#" or a link in a block is none

    my $prose = $text =~ s{^(\ *)(```+)[^\n`]*\n.*?^\1\2$}
                          { $& =~ s/[^\n]/ /gr }msgxre;
    my @headings;

    while ($prose =~ /^(#+) +([^\n]+?) *#*$/mg) {
        push @headings, { level => length $1, name => $2, start => $-[0],
                          end => $+[0] };
    }

    for my $i (0 .. $#headings) {
        my $heading = $headings[$i];
        my ($next) = grep { $_->{level} <= $heading->{level} }
                     @headings[$i + 1 .. $#headings];
        my $end = $next ? $next->{start} : length $text;
        my $name = anchor_of($heading->{name});
        my $n = '';

        $n = ($n || 0) - 1 while $anchor{"$name$n"};
        $anchor{"$name$n"} = 1;

        my $inside = substr $text, $heading->{end}, $end - $heading->{end};

        $section{ $heading->{name} =~ s/`//gr } //= $inside =~ s/^\n//r;
    }

    $anchor{$1} = 1 while $prose =~ /<a (?:id|name)="([^"]+)"/g;

    # code is no link either

    my $plain = $prose =~ s/`[^`\n]*`/ $& =~ tr{]}{ }r /ger;

    while ($plain =~ /\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]: +(\S+)/mg) {
        my $to = $1 // $2;

        push @links, [$to, 1 + (substr($plain, 0, $-[0]) =~ tr/\n//)];
    }

    return {
        file => $file, text => $text, prose => $prose, block => \%block,
        languages => \@languages, section => \%section, anchors => \%anchor,
        links => \@links,
        log_lines => [map { split /\n/ } @{ $block{log} || [] }],
    };
}


sub block_of {
    my ($name, $language, $n) = @_;

    $language //= 'nginx';

    my $text = $section{$name} // die "no section $name\n";
    my @blocks = $text =~ /^```\Q$language\E\n(.*?)^```$/msg;

    return $blocks[$n // 0] // die "no block of $language in $name\n";
}


sub table_of {
    my ($text) = @_;

    my @rows = map { [map { s/^\s+|\s+$//gr =~ s/\\\|/|/gr }
                      split /(?<!\\)\|/, $_, -1] }
               $text =~ /^\|(.*)\|\ *$/mgx;

    return grep { ($_->[0] // '') !~ /^:?-+:?$/ } @rows;
}


sub code_in {
    my ($text) = @_;

    return $text =~ /`([^`\n]+)`/g;
}


sub steps_of {
    my ($name) = @_;

    my @blocks = defined $name
        ? ($section{$name} // die "no section $name\n")
          =~ /^```console\n(.*?)^```$/msg
        : @{ $block{console} || [] };

    return map { RateLimit::Transcript::parse($_) } @blocks;
}


sub entry_of {
    my ($name, $of) = @_;

    my $text = ($of ? $of->{section} : \%section)->{$name} // return undef;
    my ($table, $rest) = $text =~ /\A\s*((?:^\|[^\n]*\n)+)(.*)/ms or return undef;
    my %entry = (syntax => [], text => $rest);
    my $last = '';

    for (table_of($table)) {
        my ($label, $value) = @$_;

        $label = lc($label =~ s/[*_:]//gr);
        $last = $label if length $label;
        $value //= '';

        # the head of the table is empty
        next if $last eq '' || $value eq '';

        my $plain = $value =~ /^`([^`]*)`$/ ? $1 : $value =~ s/`//gr;

        if ($last eq 'syntax') {
            push @{ $entry{syntax} }, $plain;

        } else {
            $entry{$last} = join ' ', $entry{$last} // (), $plain;
        }
    }

    return @{ $entry{syntax} } ? \%entry : undef;
}


# ---- sources

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


# A time, as a user writes it.

my %MICROSECONDS = (d => 86400e6, h => 3600e6, m => 60e6, s => 1e6, ms => 1e3);

sub microseconds {
    my ($text) = @_;

    my ($n, $unit) = $text =~ /^(\d+)(ms|[smhd])$/ or return $text;

    return $n * $MICROSECONDS{$unit};
}


my %CONTEXT = (
    NGX_HTTP_MAIN_CONF => 'http', NGX_HTTP_SRV_CONF => 'server',
    NGX_HTTP_LOC_CONF => 'location', NGX_HTTP_LIF_CONF => 'if in location',
    NGX_HTTP_LMT_CONF => 'limit_except',
);

my %CONSTANT = (
    NGX_HTTP_TOO_MANY_REQUESTS => 429, NGX_HTTP_SERVICE_UNAVAILABLE => 503,
    NGX_RL_ERROR_RETRY => '1s',
);


# The command table: name => contexts, arguments, allowed words, default.

sub _directives {
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

    # the size of the zone belongs to no block of the configuration

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

            # what "on" stands for, and "off"

            my ($bounds) = $text =~ /ngx_rl_bounds_t\s+\Q${\ substr $post, 1}\E
                                     \s*=\s*\{([^"]*)/x;
            my $time = ($bounds // '') =~ /NGX_RL_TIME/;
            my $off = ($bounds // '') =~ /NGX_RL_(?:AMOUNT|PERCENT)/
                      && $value eq '0';
            my $on = $time && $bounds =~ /\b$value\b/ && $value =~ /^NGX_RL_\w+$/;

            $value = $word                     ? $word->[0]
                   : $on                       ? 'on'
                   : $off                      ? 'off'
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
            arguments => join(' ', map { /^NGX_CONF_(\w+)/ } @flags),
        };
    }

    return %directive;
}


our %directive = _directives();

our @variables = map { "\$$_" }
    (source('variables.c') =~ /ngx_rl_variables\[\]\s*=\s*\{(.*?)\n\};/s)[0]
    =~ /\bngx_rl_variable\("(\w+)"/g;

our @per_limit = map { "\$${_}NAME" }
    (source('variables.c') =~ /ngx_rl_per_limit_variables\[\]\s*=\s*\{(.*?)\n\};/s)[0]
    =~ /\bngx_rl_per_limit\("(\w+)"/g;

our @metrics = do {
    my %seen;
    grep { !$seen{$_}++ } source('metrics.c') =~ /"(nginx_ratelimit_\w+)"/g;
};


sub breaker_default {
    my ($failures, $window, $probe) = source('conf.c') =~
        /ngx_rl_breaker_default\s*=\s*\{\s*(\d+),\s*(\d+),\s*(\d+)\s*\}/
        or die "no default of the breaker\n";

    return sprintf 'failures=%d window=%ds probe=%ds', $failures,
                   $window / 1000, $probe / 1000;
}


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

            # a declaration, and the line that logs the text of another call

            next if $call =~ /const char \*fmt|"%\*s"/;

            # check_warn() names its level only where it is no warning

            $call = ($function =~ /connection_fail/ ? 'NGX_LOG_ERR'
                     : $call =~ /NGX_RL_CHECK_NOTICE/ ? 'NGX_LOG_NOTICE'
                     : 'NGX_LOG_WARN')
                    . ", $call" if $function ne 'ngx_log_error';

            my ($level, $rest) = $call =~ /^\s*(\w+),\s*(.*)/s;

            # no machine that people use lacks /dev/urandom

            next if $level =~ /EMERG|ALERT/ || $rest =~ m{/dev/urandom};

            my ($format, $args) = $rest =~ /("(?:[^"\\]|\\.)*"
                                             (?:\s*"(?:[^"\\]|\\.)*")*)(.*)/xs;

            $format = join '', $format =~ /"((?:[^"\\]|\\.)*)"/g;
            $format =~ s/\\"/"/g;

            $format .= _silence_hint() if $function =~ /check_warn/;

            my @words = $args =~ /[?:]\s*"([a-z](?:[^"\\]|\\.)*)"/g;

            # "c ? name(x) : "word"": any text, or this word

            push @words, '' if @words && $args =~ /\?\s*\w+\(/;

            push @calls, { level => $level, format => $format,
                           words => \@words };
        }
    }

    return @calls;
}


# What check_warn() appends.

sub _silence_hint {
    my ($body) = source('check.c') =~ /^ngx_rl_check_warn\((.*?)^\}/ms
                 or die "no check_warn()\n";
    my ($list) = $body =~ /ngx_slprintf\([^"]*((?:"(?:[^"\\]|\\.)*"\s*)+)/s
                 or die "check_warn() appends nothing\n";

    return join('', $list =~ /"((?:[^"\\]|\\.)*)"/g) =~ s/\\"/"/gr;
}


my %LEVEL = (NGX_LOG_ERR => 'error', NGX_LOG_WARN => 'warn',
             NGX_LOG_NOTICE => 'notice', NGX_LOG_INFO => 'info');

sub log_patterns {
    my @patterns;

    for my $call (log_calls()) {
        my $level = $LEVEL{ $call->{level} } // '\w+';

        for my $word (@{ $call->{words} } ? @{ $call->{words} } : '') {
            my $regex = join '', map {
                  /^%(?:ui|uL|uA|L|d|i)$/  ? '-?\d+'
                : /^%s$/ && length $word   ? quotemeta $word
                : /^%/                     ? '.*?'
                :                            quotemeta
            } split /(%(?:\*s|ui|uL|uA|[VsLdi]))/, $call->{format};

            push @patterns, {
                name  => $call->{format} =~ s/%s/$word || '%s'/er,
                regex =>
                    qr/^\[$level\] $regex(?: \(\d+: [\w ]+\))?(?:, redis: \S+)?$/,
            };
        }
    }

    return @patterns;
}


sub log_starts {
    my @starts;

    for my $call (log_calls()) {
        my $level = $LEVEL{ $call->{level} } // '\w+';

        for my $word (@{ $call->{words} } ? @{ $call->{words} } : '') {
            my @parts = map { /^%s$/ && length $word ? split //, $word
                            : /^%/ ? $_ : split // }
                        split /(%(?:\*s|ui|uL|uA|[VsLdi]))/, $call->{format};

            # a value at the end is a word, unless it is quoted: else it would
            # stand for the rest of any line

            push @starts, map {
                my $start = join '', map { /^%./ ? '.+' : quotemeta }
                                     @parts[0 .. $_];

                $start =~ s/\.\+\z/\\S+/ if $parts[$_ - 1] ne '"';
                qr/^\[$level\] $start$/
            } 8 .. $#parts;
        }
    }

    return @starts;
}


sub log_ok {
    my (@lines) = @_;

    my @patterns = log_patterns();
    my @unknown = grep { my $line = $_;
                         !grep { $line =~ $_->{regex} } @patterns } @lines;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return Test::More::is_deeply(\@unknown, [], 'the code writes each log line');
}


# ---- configurations

my ($certs, $server, %file);

sub certs {
    if (!$certs) {
        $certs = RateLimit::Certs->new;
        $server = $certs->make('server',
                               san => 'DNS:redis.example.com,DNS:localhost');

        my $client = $certs->make('limiter');

        for (['redis-password', 'wonderland'],
             ['sentinel-password', 'looking-glass'])
        {
            my ($name, $text) = @$_;

            write_file($certs->dir . "/$name", "$text\n", 0600);
        }

        %file = (
            '/etc/nginx/redis-ca.crt'      => $certs->ca,
            '/etc/nginx/limiter.crt'       => $client->{cert},
            '/etc/nginx/limiter.key'       => $client->{key},
            '/etc/nginx/redis-password'    => $certs->dir . '/redis-password',
            '/etc/nginx/sentinel-password' => $certs->dir . '/sentinel-password',
        );
    }

    return $certs;
}


# A file of /etc/ that a configuration names: one of those above, or by its name
# a CA, the key or the certificate of a server.

sub _file {
    my ($path) = @_;

    certs();

    return $file{$path}        ? $file{$path}
         : $path =~ /\bca\b|ca-/ ? $certs->ca
         : $path =~ /key$/     ? $server->{key}
         :                       $server->{cert};
}


sub http_of {
    my ($text, %replace) = @_;

    if ($text =~ /^http \{\n(.*)^\}\n/ms) {
        $text = $1;
    }

    my %port;
    my $n = 0;

    $text =~ s/^(\s*listen\s+)(?:[\d.]+:|\[::\]:|\*:)?(\d+)(?=[ ;])/
               $port{$2} ||= '%%PORT' . (++$n == 1 ? '' : $n) . '%%';
               "${1}127.0.0.1:$port{$2}"/mge;

    $text =~ s{(/etc/[\w./-]+(?:password|\.crt|\.key|\.pem))(?=[;" ])}
              { _file($1) }ge;

    for my $from (keys %replace) {
        $text =~ s/\Q$from\E/$replace{$from}/g or die "no $from\n";
    }

    return RateLimit::Nginx->http2_of($text);
}


# Names of example.com have no address: each becomes a port of this machine.

sub _hosts {
    my ($text) = @_;

    my $port = 20000;
    my $host = qr/[\w.-]+\.example(?:\.\w+)?|[\w.-]+\.internal/;

    $text =~ s{^(\s*ratelimit_shards\s)([^;]*)}
              { my ($head, $list) = ($1, $2);
                $list =~ s/(?<![\w.=-])$host(?::\d+)?(?![\w.-])
                           /'localhost:' . $port++/gex;
                "$head$list" }gme;
    $text =~ s{^(\s*(?:\w+_pass|server)\s+(?:\w+://)?)$host}{${1}localhost}gm;

    return $text;
}


sub load_ok {
    my ($text, $name, %replace) = @_;

    $name //= ($text =~ /(\S[^\n]*)/)[0];

    my ($code, $output) = RateLimit::Nginx->test_config(
                              conf => _hosts(http_of($text, %replace)));

    # a part of a configuration may leave out the location that uses a limit

    my @warnings = grep { /\[warn\]/ && !/unused_limit/ } split /\n/, $output;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return Test::More::ok($code == 0 && !@warnings, "nginx loads: $name")
           || Test::More::diag("$text\n$output");
}


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


# The first configuration of the README, with a backend on %%PORT9%%, and
# clients whose address is in a header.

sub example {
    my ($redis, %replace) = @_;

    my $text = http_of(read_page('README.md')->{block}{nginx}[0], %replace);

    $text =~ s/ratelimit_shards\s+\K[^;]+/$redis->addr/e
        or die "no shards in the README\n";
    $text =~ s{(proxy_pass\s+http://)[^;/]+}{${1}127.0.0.1:%%PORT9%%}g;

    return $text . <<'EOC';
set_real_ip_from 127.0.0.1;
real_ip_header   X-Real-IP;

server {
    listen 127.0.0.1:%%PORT9%%;
    location / { return 200 "backend\n"; }
}
EOC
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


# RESP of a reply as the docs show it: one integer, or several.

sub resp {
    my (@integers) = split / /, $_[0];

    my $text = join '', map { ":$_\r\n" } @integers;

    return @integers > 1 ? '*' . @integers . "\r\n$text" : $text;
}


sub tls_server {
    my (%config) = @_;

    my $port = free_port();

    certs();

    return RateLimit::Redis->start(
        port => $port, config => { $certs->redis($server, $port), %config });
}


# The rights that the page shows, on these servers.

sub allow {
    my ($which, @redis) = @_;

    my ($step) = grep { $_->{command} =~ / acl setuser nginx $which/ } steps_of();

    $step // die "no rights: $which\n";

    for my $redis (@redis) {
        my $command = $step->{command}
                      =~ s/redis-cli\K(?: -h [\w.-]+)?(?: -p \d+)?/
                           ' -p ' . $redis->port/er;

        RateLimit::Transcript::check($command, { %$step, command => $command });
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


1;
