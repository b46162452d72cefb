# A configuration that loads and most likely does not do what it was written for:
# "nginx -t" says so, with file and line, once for a place, and not where it is
# meant.  Errors that are found while levels are merged have file and line too.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Nginx;
use RateLimit::Util qw(slurp temp_dir write_file);

use File::Path ();

my $SECRET = 'Pa55-w0rd';
my $dir = temp_dir('warnings');

END {
    File::Path::remove_tree($dir) if defined $dir;
}


# What "nginx -t" says at these levels, and where: the text of that line, or the
# name of another file and the number.

sub said {
    my ($levels, %opt) = @_;

    $opt{warnings} = 1;

    my ($code, $output) = RateLimit::Nginx->test_config(%opt);

    my $nginx = RateLimit::Nginx->new(%opt);
    $nginx->_write_config;

    my @text = split /\n/, slurp("$nginx->{dir}/conf/nginx.conf");
    my @said;

    for ($output =~ /^nginx: \[(?:$levels)\] (.*)$/mg) {
        my $text = $_;
        my $where = 'nowhere';

        if ($text =~ s/ in (\S+):(\d+)$//) {
            my ($file, $line) = ($1, $2);

            $where = $file =~ /nginx\.conf$/ ? $text[$line - 1]
                                             : "$file:$line";
        }

        $where =~ s/^\s+|\s+$//g;

        push @said, [$text, $where];
    }

    push @said, ["exit code $code", $output] if $code && $levels !~ /emerg/;

    return @said;
}

sub warnings_of { return said('warn|error|crit|alert', @_) }


# One warning, which has these texts, at that line; and none with the directive
# that it names.

sub warned {
    my ($name, $what, $line, $texts, %opt) = @_;

    my @said = warnings_of(%opt);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    subtest $name => sub {
        is scalar @said, 1, 'one warning'
            or diag map { "$_->[0] at $_->[1]\n" } @said;

        my ($text, $where) = @{ $said[0] || ['', ''] };

        like $text, qr/\Q$_\E/, "says: $_" for @$texts;
        is $where, $line, 'there';

        like $text, qr/ \(or write "ratelimit_silence $what;" if this is intended\)$/,
             'says how it is silenced';

        unlike $text, qr/\Q$SECRET\E/, 'tells no secret';

        my @after = warnings_of(%opt, conf => "ratelimit_silence $what;\n"
                                              . ($opt{conf} // ''));

        is_deeply \@after, [], 'and it is';
    };
}

sub not_warned {
    my ($name, %opt) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is_deeply [warnings_of(%opt)], [], $name;
}


my $SHARDS = "ratelimit_shards 127.0.0.1:1;\n";


# ---- auth_request_set

my $AUTH = <<'EOC';
auth_request /auth;
auth_request_set $user $upstream_http_x_user;
EOC

my $PLACE = "location = /auth { empty_gif; }\n";

warned('a key of auth_request_set', 'auth_variable', 'ratelimit_key $user;',
       ['"$user" in "ratelimit_key" comes from "auth_request_set"',
        'an empty key is not limited', 'write "ratelimit_phase precontent;"'],
       conf => $SHARDS, server => "$PLACE location / { $AUTH
           ratelimit_key \$user;
           ratelimit_rate 1r/s;
       }");

warned('as a part of the key', 'auth_variable', 'ratelimit_key x${user}y;',
       ['"$user"'],
       conf => $SHARDS, server => "$PLACE location / { $AUTH
           ratelimit_key x\${user}y;
           ratelimit_rate 1r/s;
       }");

for my $case (['capacity', 'rate=1r/s capacity=$user'],
              ['rate', 'rate=$user'], ['cost', 'rate=1r/s cost=$user'],
              ['window', 'algorithm=sliding_window_log capacity=5 '
                         . 'window=$user'])
{
    my ($name, $text) = @$case;

    warned("a $name of auth_request_set in a named limit", 'auth_variable',
           "ratelimit_limit a $text;", ['"$user" in "ratelimit_limit"'],
           conf => "$SHARDS\nratelimit_limit a $text;\n",
           server => "$PLACE location / { $AUTH ratelimit a; }
                      location /b { $AUTH ratelimit a; }");
}

warned('a cost of the location', 'auth_variable', 'ratelimit_cost $user;',
       ['"$user" in "ratelimit_cost"'],
       conf => "$SHARDS ratelimit_limit a rate=1r/s;\n",
       server => "$PLACE location / { $AUTH ratelimit a;
           ratelimit_cost \$user;
       }");

warned('by way of a map', 'auth_variable', 'ratelimit_rate $rate;',
       ['"$rate" in "ratelimit_rate"'],
       conf => "$SHARDS map \$user \$rate { default 1r/s; bob 5r/s; }\n",
       server => "$PLACE location / { $AUTH
           ratelimit_rate \$rate;
       }");

warned('by way of a value of a map, and set', 'auth_variable',
       'ratelimit_key $key;', ['"$key" in "ratelimit_key"'],
       conf => "$SHARDS map \$uri \$who { default \$user; /a x; }\n",
       server => "$PLACE location / { $AUTH
           set \$key \$who;
           ratelimit_key \$key;
           ratelimit_rate 1r/s;
       }");

warned('set comes before any authentication, whatever the phase',
       'auth_variable', 'ratelimit_key $key;',
       ['"$key" in "ratelimit_key" is empty: "set" copies',
        'use a "map" instead'],
       conf => $SHARDS,
       server => "$PLACE location / { $AUTH
           ratelimit_phase precontent;
           set \$key \$user;
           ratelimit_key \$key;
           ratelimit_rate 1r/s;
       }");

warned('where auth_request is inherited', 'auth_variable',
       'ratelimit_key $user;', ['"$user"'],
       conf => $SHARDS,
       server => "$AUTH location = /auth { auth_request off; }
           location / {
           ratelimit_key \$user;
           ratelimit_rate 1r/s;
       }");

not_warned('after authentication', conf => $SHARDS,
           server => "$PLACE location / { $AUTH ratelimit_key \$user;
                      ratelimit_rate 1r/s; ratelimit_phase precontent; }");
not_warned('where auth_request is off', conf => $SHARDS,
           server => "$AUTH $PLACE location / { auth_request off;
                      ratelimit_key \$user; ratelimit_rate 1r/s; }");
not_warned('another variable', conf => $SHARDS,
           server => "$PLACE location / { $AUTH ratelimit_key \$arg_user;
                      ratelimit_rate 1r/s; }");
not_warned('set in another location', conf => $SHARDS,
           server => "$PLACE location /a { $AUTH } location / {
                      ratelimit_key \$user; ratelimit_rate 1r/s; }");


# ---- return

warned('return in a limited location', 'early_return', 'return 200 hello;',
       ['"return" ends every request of this location before its limits are '
        . 'applied'], conf => $SHARDS, server => <<'EOC');
location / {
    ratelimit_rate 1r/s;
    return 200 hello;
}
EOC

warned('return behind conditions that may not hold', 'early_return',
       'return 200 hello;', ['"return"'],
       conf => "$SHARDS ratelimit_limit a rate=1r/s;", server => <<'EOC');
location / {
    if ($arg_a) { set $b 1; }
    rewrite ^/x /y last;
    ratelimit a;
    return 200 hello;
}
EOC

warned('a redirect of everything', 'early_return',
       'rewrite ^(.*)$ /new$1 permanent;', ['"rewrite" ends every request'],
       conf => $SHARDS, server => <<'EOC');
location / {
    ratelimit_rate 1r/s;
    rewrite ^(.*)$ /new$1 permanent;
}
EOC

warned('of a server', 'early_return', 'return 301 https://$host$request_uri;',
       ['of this server'], conf => $SHARDS, server => <<'EOC');
ratelimit_rate 1r/s;
return 301 https://$host$request_uri;
EOC

my $LINE = 'location /a { return 200; } location /b { ratelimit_rate 1r/s; '
           . 'return 200; } location /c { ratelimit_rate 1r/s; }';

warned('in one of three locations of a line', 'early_return', $LINE,
       ['"return"'], conf => $SHARDS, server => $LINE);

not_warned($_->[0], conf => $SHARDS,
           server => "location / { ratelimit_rate 1r/s; $_->[1] }")
    for ['return in if', 'if ($arg_a) { return 403; }'],
        ['return after break', 'break; return 403;'],
        ['return after break in if', 'if ($arg_a) { break; } return 403;'],
        ['return after a rewrite that breaks',
         'rewrite ^/a /b break; return 403;'],
        ['a redirect of some', 'rewrite ^/a /b redirect;'],
        ['a rewrite to another place', 'rewrite ^ /b last;'],
        ['return in a location within', 'location /a { return 200; }'];

not_warned('return where a limit is inherited', conf => $SHARDS,
           server => 'ratelimit_rate 1r/s; location /health { return 200; }');
not_warned('return where the limits are off', conf => $SHARDS,
           server => 'ratelimit_rate 1r/s;
                      location /health { ratelimit off; return 200; }');


# ---- limits that nobody uses

warned('a limit that nobody uses', 'unused_limit',
       'ratelimit_limit b rate=1r/s;',
       ['limit "b" of "ratelimit_limit" is not used',
        'write "ratelimit b;"'],
       conf => "$SHARDS ratelimit_limit a rate=1r/s;
                ratelimit_limit b rate=1r/s;", server => 'ratelimit a;');
warned('the only limit', 'unused_limit', 'ratelimit_limit b rate=1r/s;',
       ['limit "b"'], conf => "\nratelimit_limit b rate=1r/s;");


# ---- leases

for my $case (['without shards', '', 'ratelimit_rate 100r/s;',
               'without "ratelimit_shards"'],
              ['of a preview', $SHARDS,
               'ratelimit_rate 100r/s; ratelimit_preview on;', 'a preview'],
              ['of several limits', $SHARDS, 'ratelimit a b;',
               'several limits'],
              ['of a window', $SHARDS, 'ratelimit_capacity 100;'
               . 'ratelimit_algorithm sliding_window_log;',
               'a sliding window log'],
              ['of nothing', $SHARDS, '', 'no limit is applied there'])
{
    my ($name, $shards, $text, $why) = @$case;

    warned("a lease $name", 'useless_lease', 'ratelimit_lease 10;',
           ['"ratelimit_lease" has no effect: ', $why],
           conf => "$shards ratelimit_limit a rate=1r/s;
                    ratelimit_limit b rate=1r/s;
                    server { listen 127.0.0.1:%%PORT2%%;
                             location /a { ratelimit a; }
                             location /b { ratelimit b; } }",
           server => "location / { $text
               ratelimit_lease 10;
           }");
}

warned('a lease of less than a token', 'useless_lease', 'ratelimit_lease 5%;',
       ['less than one token'], conf => $SHARDS,
       server => "location / { ratelimit_rate 10r/s;
           ratelimit_lease 5%;
       }");

not_warned('a lease that one of its places uses',
           conf => "$SHARDS ratelimit_lease 10;",
           server => 'location /a { ratelimit_capacity 5;
                                    ratelimit_algorithm sliding_window_log; }
                      location /b { ratelimit_rate 10r/s; }');
not_warned('no lease', conf => "$SHARDS ratelimit_lease off;",
           server => 'location /a { ratelimit_preview on;
                                    ratelimit_rate 1r/s; }');


# ---- maps

for my $case (['capacity', 'ratelimit_capacity $n;', 'ratelimit_rate 1r/s;'],
              ['rate', 'ratelimit_rate ${n}r/s;', ''],
              ['cost', 'ratelimit_cost $n;', 'ratelimit_rate 1r/s;'],
              ['window', 'ratelimit_window $n;', 'ratelimit_capacity 5;'
               . 'ratelimit_algorithm sliding_window_log;'])
{
    my ($name, $text, $others) = @$case;

    warned("a $name of a map without default", 'map_default', $text,
           ['"$n" in "ratelimit_' . $name . '" comes from a "map" or "geo" '
            . 'without a "default"', 'add a "default"',
            $name eq 'cost' ? 'an empty value counts as 1;'
                            : 'an empty value is not a number;'],
           conf => "$SHARDS map \$arg_a \$n { a 1; b 2; }\n",
           server => "location / { $others\n$text\n}");
}

warned('a map within a map', 'map_default', 'ratelimit_rate $rate;', ['"$rate"'],
       conf => "$SHARDS map \$arg_a \$n { a 1r/s; }
                map \$arg_b \$rate { default \$n; b 2r/s; }\n",
       server => "location / {\nratelimit_rate \$rate;\n}");
warned('a geo', 'map_default', 'ratelimit_rate $rate;', ['"$rate"'],
       conf => "$SHARDS geo \$rate { 10.0.0.0/8 1r/s; }\n",
       server => "location / {\nratelimit_rate \$rate;\n}");

warned('an empty default', 'map_default', 'ratelimit_rate $rate;',
       ['"$rate"', 'or with an empty one'],
       conf => "$SHARDS map \$arg_a \$rate { default ''; a 1r/s; }\n",
       server => "location / {\nratelimit_rate \$rate;\n}");

# ---- what a client sends

for my $case (['capacity', 'ratelimit_capacity $http_x_burst;',
               'ratelimit_rate 1r/s;', '$http_x_burst'],
              ['rate', 'ratelimit_rate ${arg_n}r/s;', '', '$arg_n'],
              ['rate', 'ratelimit_rate $COOKIE_rate;', '', '$COOKIE_rate'],
              ['refill_interval', 'ratelimit_refill_interval $arg_t;',
               'ratelimit_rate 1r/s;', '$arg_t'],
              ['window', 'ratelimit_window $content_length;',
               'ratelimit_capacity 5; ratelimit_algorithm sliding_window_log;',
               '$content_length'])
{
    my ($name, $text, $others, $variable) = @$case;

    warned("a $name: $text", 'client_value', $text,
           [qq{"$variable" in "ratelimit_$name" is sent by the client},
            'list the allowed values in a "map"'],
           conf => $SHARDS, server => "location / { $others\n$text\n}");
}

warned('a client has a say through a map', 'client_value',
       'ratelimit_rate $rate;', ['"$rate" in "ratelimit_rate"'],
       conf => "$SHARDS map \$host \$rate { default 1r/s; a \$arg_rate; }\n",
       server => "location / {\nratelimit_rate \$rate;\n}");
warned('of a limit with a name', 'client_value',
       'ratelimit_limit a rate=1r/s capacity=$arg_c;',
       ['"$arg_c" in "ratelimit_limit"'],
       conf => "$SHARDS\nratelimit_limit a rate=1r/s capacity=\$arg_c;\n",
       server => 'ratelimit a;');

warned('what the regex of a map takes of it', 'client_value',
       'ratelimit_rate $rate;', ['"$rate" in "ratelimit_rate"'],
       conf => "$SHARDS map \$http_x \$rate {
                    default 1r/s; ~^(\\d+)\$ \$1r/s;
                }\n",
       server => "location / {\nratelimit_rate \$rate;\n}");
warned('by its name', 'client_value', 'ratelimit_capacity $n;',
       ['"$n" in "ratelimit_capacity"'],
       conf => "$SHARDS map \$http_x \$n {
                    default 1; ~^(?<number>\\d+)\$ \$number;
                }\n",
       server => "location / { ratelimit_rate 1r/s;\nratelimit_capacity \$n;\n}");
warned('what the regex of a location takes of the URI', 'client_value',
       "ratelimit_capacity $_;", [qq{"$_" in "ratelimit_capacity"}],
       conf => $SHARDS,
       server => "location ~ ^/(?<n>\\d+)/ { ratelimit_rate 1r/s;
           ratelimit_capacity $_;
       }")
    for '$1', '$n';

not_warned($_->[0], conf => "$SHARDS $_->[1]\n", server => $_->[2])
    for ['what a regex takes of the server\'s own',
         'map $server_name $n { default 1; ~^a(\d+) $1; }
          map $http_x $m { default 1; ~^a(b) $n; }',
         'location ~ ^/(?<x>\d+)/ { ratelimit_rate 1r/s;
              ratelimit_capacity $m; }'],
        ['what a map chooses by', 'map $arg_a $rate { default 1r/s; a 2r/s; }',
         'ratelimit_rate $rate;'],
        ['a key and a cost of a client', '',
         'ratelimit_rate 1r/s; ratelimit_key $http_x; '
         . 'ratelimit_cost $content_length;'],
        ['a name that only begins alike', 'map $host $argument { default 5; }',
         'ratelimit_rate 1r/s; ratelimit_capacity $argument;'];


# each place is looked at once, however often variables are made of themselves

not_warned('a key in many steps', conf => $SHARDS,
           server => 'location / { set $k a;' . 'set $k "$k-$k";' x 30
                     . 'ratelimit_rate 1r/s; ratelimit_key $k; }');


write_file("$dir/map", "default 1r/s;\n");

not_warned($_->[0], conf => "$SHARDS $_->[1]\n",
           server => 'ratelimit_rate $rate;')
    for ['a map with default', 'map $arg_a $rate { default 1r/s; a 2r/s; }'],
        ['a map with default in a file',
         "map \$arg_a \$rate { include $dir/map; a 2r/s; }"],
        ['a map of all', 'map $arg_a $rate { ~^.*$ 1r/s; a 2r/s; }'],
        ['a geo with default', 'geo $rate { default 1r/s; 10.0.0.0/8 2r/s; }'],
        ['a map by one without default',
         'map $arg_a $p { a 1; } map $p $rate { default 1r/s; 1 2r/s; }'];

not_warned('a key of a map without default',
           conf => "$SHARDS map \$arg_a \$k { a 1; }\n",
           server => 'ratelimit_key $k; ratelimit_rate 1r/s;');


# ---- shards

sub notices_of {
    my ($code, $output) = RateLimit::Nginx->test_config(@_);

    return $output =~ /^nginx: (there is no .*)$/mg;
}

my @notices = notices_of(server => 'location /a { ratelimit_rate 1r/s; }
                                    location /b { ratelimit_rate 1r/s; }');

is scalar @notices, 1, 'no shards at all: one notice';
like $notices[0], qr{^there\ is\ no\ "ratelimit_shards":\ each\ machine\ limits
                     \ on\ its\ own,\ in\ its\ own\ memory
                     \ \(or\ write\ "ratelimit_silence\ no_shards;"
                     \ if\ this\ is\ intended\)\ in\ /\S+/nginx\.conf:\d+$}x,
     'says what it means';
is_deeply [notices_of(conf => 'ratelimit_silence no_shards;',
                      server => 'ratelimit_rate 1r/s;')], [], 'or none';
is_deeply [notices_of(conf => $SHARDS, server => 'ratelimit_rate 1r/s;')], [],
          'nor with shards';
is_deeply [notices_of(server => '')], [], 'nor without limits';

SKIP: {
    my $nginx = RateLimit::Nginx->new(server => 'ratelimit_rate 1r/s;');
    my @command = $nginx->_command('-t');

    skip 'this nginx has no -e', 1 unless grep { $_ eq '-e' } @command;

    $nginx->_write_config;
    $command[-1] = 'stderr';

    my $output = qx{@command 2>&1};

    is scalar(() = $output =~ /there is no "ratelimit_shards"/g), 1,
       'one notice where the log is what nginx -t shows';
}

warned('some without shards', 'no_shards', 'location /b {',
       ['limits of location "/b" are kept in this machine\'s memory'],
       server => "location /a { ratelimit_rate 1r/s; $SHARDS }
           location /b {
               ratelimit_rate 1r/s;
           }
           location /c {
               ratelimit_rate 1r/s;
           }");


# ---- timeouts

warned('a timeout without a unit', 'long_timeout',
       'ratelimit_redis_timeout 50;',
       ['"ratelimit_redis_timeout" "50" is 50 seconds', 'write "50ms"'],
       conf => $SHARDS, server => "ratelimit_rate 1r/s;
           ratelimit_redis_timeout 50;
           location /a { ratelimit_rate 1r/s; }");
warned('a timeout of a second', 'long_timeout', 'ratelimit_redis_timeout 1s;',
       ['"ratelimit_redis_timeout" "1s" is long'],
       conf => $SHARDS, server => "ratelimit_rate 1r/s;
           ratelimit_redis_timeout 1s;");

not_warned("a timeout of $_", conf => $SHARDS,
           server => "ratelimit_rate 1r/s; ratelimit_redis_timeout $_;")
    for '999ms', '50ms';


# ---- passwords

warned("a password in plain text for $_->[0]: $_->[1]", 'plain_password',
       "ratelimit_shards $_->[1];",
       ['a password is sent in plain text', $_->[0],
        'write "ratelimit_redis_ssl on;"'],
       conf => "\nratelimit_shards $_->[1];\n$_->[2]",
       server => 'location /a { ratelimit_rate 1r/s; }
                  location /b { ratelimit_rate 1r/s; }')
    for ['the cluster', 'cluster 10.255.0.1:1 127.0.0.1:1',
         "ratelimit_redis_password $SECRET;"],
        ['the cluster', 'cluster [2001:db8::1]:1',
         "ratelimit_redis_password $SECRET;"],
        ['a sentinel', 'sentinel=m 10.255.0.1:1',
         "ratelimit_redis_password $SECRET;"],
        ['a sentinel', 'sentinel=m 10.255.0.1:1',
         "ratelimit_sentinel_password $SECRET;"];

not_warned($_->[0], conf => $_->[1], server => 'ratelimit_rate 1r/s;')
    for ['no password', 'ratelimit_shards cluster 10.255.0.1:1;'],
        ['a password for this machine',
         'ratelimit_shards cluster 127.0.0.1:1 [::1]:1;'
         . "ratelimit_redis_password $SECRET;"],
        ['a password for servers that are known',
         "ratelimit_shards 10.255.0.1:1; ratelimit_redis_password $SECRET;"],
        ['a password by TLS', "ratelimit_shards cluster 10.255.0.1:1;
         ratelimit_redis_password $SECRET; ratelimit_redis_ssl on;"],
        ['passwords of sentinels by TLS', "ratelimit_redis_ssl on;
         ratelimit_shards sentinel=m 10.255.0.1:1;
         ratelimit_sentinel_password $SECRET;
         ratelimit_redis_password $SECRET;"];


sub password_file {
    my ($mode) = @_;

    return write_file(sprintf("$dir/password-%o", $mode), "$SECRET\n", $mode);
}

for my $directive ('ratelimit_redis_password_file',
                   'ratelimit_sentinel_password_file')
{
    my $open = password_file(0644);
    my $shards = $directive =~ /sentinel/
                 ? 'ratelimit_shards sentinel=m 127.0.0.1:1;' : $SHARDS;

    warned("$directive that others can read", 'password_file',
           "$directive $open;",
           ["every user of this machine can read \"$open\", "
            . "the file of \"$directive\"",
            "chmod o-r $open"], conf => $shards,
           server => "ratelimit_rate 1r/s;\n$directive $open;");

    not_warned(sprintf("$directive of mode %o", $_), conf => $shards,
               server => "ratelimit_rate 1r/s; $directive "
                         . password_file($_) . ';')
        for 0640, 0600;
}


# ---- the zone

sub limits {
    return join "\n", map { "ratelimit_limit $_[0]$_ rate=1r/s;" } 1 .. $_[1];
}

sub uses {
    return join "\n", map { "location /$_ { ratelimit $_[0]$_; }" } 1 .. $_[1];
}

for my $case ([100, 'full'], [3, 'small enough']) {
    my ($n, $name) = @$case;

    my %conf = map {
        $_ => { conf   => "$SHARDS\nratelimit_zone 256k;\n" . limits($_, $n),
                server => uses($_, $n) }
    } qw(a b);

    if ($n > 10) {
        warned("a zone that is $name", 'small_reserve', 'ratelimit_zone 256k;',
               ['"ratelimit_zone" of 256k has ', 'a reload that replaces '
                . 'them all would fail'], %{ $conf{a} });
    } else {
        not_warned("a zone that is $name", %{ $conf{a} });
    }

    # so it is

    my $nginx = RateLimit::Nginx->start(%{ $conf{a} });

    is $nginx->reload(%{ $conf{b} }) ? 1 : 0, $n > 10 ? 0 : 1,
       "a reload with other limits, in a zone that is $name";
    $nginx->stop;
}


# ---- silence

my $TWO = 'location /a { %s ratelimit_rate 1r/s; return 200; }
           location /b { ratelimit_rate 1r/s; return 200; }';

my @two = warnings_of(conf => $SHARDS, server => sprintf $TWO, '');

is scalar @two, 2, 'two places, two warnings';

my @one = warnings_of(conf => $SHARDS,
                      server => sprintf $TWO,
                                        'ratelimit_silence early_return;');

is scalar @one, 1, 'silent in one of them';

not_warned('both by the server', conf => $SHARDS,
           server => 'ratelimit_silence no_shards early_return;'
                     . sprintf $TWO, 'ratelimit_silence unused_limit;');

my ($refused) = said('emerg', conf => "\nratelimit_silence quiet;\n");

like $refused->[0], qr/\Q$_\E/, "an unknown name: $_"
    for 'invalid value "quiet" in "ratelimit_silence": it must be '
        . '"auth_variable", "early_return", ', ' or "client_value"';
is $refused->[1], 'ratelimit_silence quiet;', 'with its line';


# ---- what else a configuration may have

warned('blocks and quotes before it', 'early_return', 'return 200 "}";',
       ['"return"'], conf => $SHARDS . <<'EOH', server => <<'EOC');
types { text/html html; }
log_format x '$status "$request" {';
EOH
# location / { don't
location ~ "^/a{2}$" { empty_gif; }
location ~ ^/\{b { add_header X "a;b}"; }
location / {
    set $a "${uri}{\"";
    if ($arg_a = "}") { set $b "
"; }
    ratelimit_rate 1r/s;   # it's {
    return 200 "}";
}
EOC

write_file("$dir/one.conf", "location /a {\n    ratelimit_rate 1r/s;\n"
                       . "    return 200;\n}\n");

is_deeply [map { $_->[1] } warnings_of(conf => $SHARDS,
                                       server => "include $dir/o*.conf;")],
          ["$dir/one.conf:3"], 'a file that is included';

write_file("$dir/two.conf", "ratelimit_rate 1r/s;\nreturn 200;\n");

@two = warnings_of(conf => $SHARDS,
                   server => "location /a { include $dir/two.conf; }
                              location /b { include $dir/two.conf; }");

is scalar @two, 2, 'a file that is included twice';


# ---- at start and reload

my $nginx = RateLimit::Nginx->start(conf => $SHARDS, server => 'location / {
    ratelimit_rate 1r/s;
    return 200;
}');

sub logged {
    return scalar(() = slurp("$nginx->{dir}/logs/error.log")
                       =~ /\[warn\] .*early_return/g);
}

is logged(), 1, 'nginx logs it at start';
ok $nginx->reload, 'reload';
is logged(), 2, 'and at reload';

$nginx->stop;


# ---- errors that are found while levels are merged

sub wrong {
    my ($name, $text, $line, %opt) = @_;

    my @said = said('emerg', %opt);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    like $said[0][0] // '', qr/\Q$text\E/, $name;
    is $said[0][1], $line, "$name: there";
}

my $MANY = 'ratelimit ' . join(' ', map { "l$_" } 1 .. 33) . ';';
my $PASSWORDS = 'ratelimit_shards cluster redis://:a@127.0.0.1:1 '
                . 'redis://:b@127.0.0.1:2;';

wrong('an unknown limit', 'unknown limit "a" in "ratelimit"', 'ratelimit a;',
      conf => $SHARDS, server => "location / {\nratelimit a;\n}");
wrong('an unknown limit in http', 'unknown limit "a"', 'ratelimit a;',
      conf => "$SHARDS\nratelimit a;\n", server => 'location / { }');
wrong('a capacity without a rate', 'without "ratelimit_rate"',
      'ratelimit_capacity 5;',
      conf => $SHARDS, server => "location / {\nratelimit_capacity 5;\n}");
wrong('a cost above the capacity', 'no request could ever pass; raise the '
      . 'capacity or lower the cost', 'ratelimit_cost 20;',
      conf => "$SHARDS ratelimit_limit a rate=1r/s capacity=10;",
      server => "ratelimit_cost 20;\nlocation / {\nratelimit a;\n}");
wrong('the same in a limit', 'no request could ever pass',
      'ratelimit_limit a rate=1r/s capacity=10 cost=20;',
      conf => "\nratelimit_limit a rate=1r/s capacity=10 cost=20;\n");
wrong('a rate that never refills', 'never refills', 'ratelimit_rate 0r/s;',
      conf => $SHARDS, server => "location / {\nratelimit_rate 0r/s;\n}");
wrong('headers', '"off" can\'t be combined with other values',
      'ratelimit_headers off legacy;', conf => $SHARDS,
      server => "ratelimit_rate 1r/s;\nratelimit_headers off legacy;");
wrong('a password without shards', 'without "ratelimit_shards"',
      "ratelimit_redis_password_file $dir/password-600;",
      conf => "\nratelimit_redis_password_file $dir/password-600;\n",
      server => 'ratelimit_rate 1r/s;');
wrong('a user without a password', 'needs "ratelimit_redis_password"',
      'ratelimit_redis_user bob;', conf => $SHARDS,
      server => "ratelimit_rate 1r/s;\nratelimit_redis_user bob;");
wrong('certificates without TLS', 'without TLS',
      'ratelimit_redis_ssl_name a;', conf => $SHARDS,
      server => "ratelimit_rate 1r/s;\nratelimit_redis_ssl_name a;");
wrong('a database of a cluster', 'a cluster has only database 0',
      'ratelimit_redis_database 1;',
      conf => "ratelimit_shards cluster 127.0.0.1:1;\n"
              . "ratelimit_redis_database 1;\n",
      server => 'ratelimit_rate 1r/s;');
wrong('passwords of a cluster', 'another user or password than an earlier node',
      $PASSWORDS, conf => "\n$PASSWORDS\n", server => 'ratelimit_rate 1r/s;');
wrong('too many limits', 'limits in one location', $MANY,
      conf => $SHARDS . join("\n", map { "ratelimit_limit l$_ rate=1r/s;" }
                                   1 .. 33),
      server => "\n$MANY\n");

done_testing;
