# "explain" of the API finds the server, the location and the limits that a
# request meets: compared with what nginx does with such a request.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Load;
use RateLimit::Nginx;

# each location says where a request has arrived

my @SERVERS = (
    ['first', '', <<'EOC'],
        location / { ratelimit a; try_files /none @first_root; }
        location @first_root { add_header X-At "first /"; return 200; }
EOC
    ['www.example.com', 'server_name www.example.com .example.org;', <<'EOC'],
        ratelimit a;
        location / { try_files /none @w1; }
        location @w1 { add_header X-At "www.example.com /"; return 200; }
        location = /exact { ratelimit b; try_files /none @w2; }
        location @w2 { add_header X-At "www.example.com /exact"; return 200; }
        location /api { ratelimit a b; try_files /none @w3;
            location /api/deep { ratelimit off; try_files /none @w4; }
            location ~ \.json$ { ratelimit b; try_files /none @w5; }
        }
        location @w3 { add_header X-At "www.example.com /api"; return 200; }
        location @w4 { add_header X-At "www.example.com /api/deep"; return 200; }
        location @w5 { add_header X-At "www.example.com \.json"; return 200; }
        location ^~ /static { try_files /none @w6; }
        location @w6 { add_header X-At "www.example.com /static"; return 200; }
        location ~ \.php$ { ratelimit b; ratelimit_dry_run on;
                            try_files /none @w7; }
        location @w7 { add_header X-At "www.example.com \.php"; return 200; }
        location ~* ^/re { ratelimit_preview on; ratelimit a;
                           ratelimit_phase precontent; try_files /none @w8; }
        location @w8 { add_header X-At "www.example.com ^/re"; return 200; }
EOC
    ['*.example.com', 'server_name *.example.com mail.*;', <<'EOC'],
        location / { try_files /none @s1; }
        location @s1 { add_header X-At "*.example.com /"; return 200; }
EOC
    ['~^re\d', 'server_name ~^re\d+\.net$;', <<'EOC'],
        location /x { try_files /none @r1; }
        location @r1 { add_header X-At "re /x"; return 200; }
EOC
);

my $conf = <<'EOC';
    ratelimit_silence unused_limit no_shards;
    ratelimit_limit a capacity=1000000 rate=1000r/s;
    ratelimit_limit b capacity=1000000 rate=1000r/s;
EOC

$conf .= "server { listen 127.0.0.1:%%PORT%%; $_->[1]\n$_->[2] }\n" for @SERVERS;
$conf .= 'server { listen 127.0.0.1:%%PORT2%%;
              location /api/ { ratelimit_api; }
              location /m { limit_except GET { deny all; } } }';

my $nginx = RateLimit::Nginx->start(conf => $conf);


sub explained {
    my ($query) = @_;

    my $r = RateLimit::Load::get($nginx->port(2), "/api/explain?$query");

    return JSON::PP->new->utf8->decode($r->{body});
}


# host, uri, server_by, location_by, limits

for (['', '/', 'default', 'prefix', 'a'],
     ['nobody.net', '/any', 'default', 'prefix', 'a'],
     ['www.example.com', '/', 'name', 'prefix', 'a'],
     ['WWW.Example.COM:8080', '/', 'name', 'prefix', 'a'],
     ['www.example.com', '/exact', 'name', 'exact', 'b'],
     ['www.example.com', '/exactly', 'name', 'prefix', 'a'],
     ['www.example.com', '/api', 'name', 'prefix', 'a b'],
     ['www.example.com', '/api/x', 'name', 'prefix', 'a b'],
     ['www.example.com', '/ap', 'name', 'prefix', 'a'],
     ['www.example.com', '/api/deep/x', 'name', 'prefix', ''],
     ['www.example.com', '/api/x.json', 'name', 'regex', 'b'],
     ['www.example.com', '/api/x.php', 'name', 'regex', 'b'],
     ['www.example.com', '/x.json', 'name', 'prefix', 'a'],
     ['www.example.com', '/x.php?a=b', 'name', 'regex', 'b'],
     ['www.example.com', '/static/x.php', 'name', 'prefix', 'a'],
     ['www.example.com', '/RE/x', 'name', 'regex', 'a'],
     ['example.org', '/', 'name', 'prefix', 'a'],
     ['a.example.org', '/', 'wildcard', 'prefix', 'a'],
     ['a.example.com', '/', 'wildcard', 'prefix', ''],
     ['a.b.example.com', '/', 'wildcard', 'prefix', ''],
     ['mail.net', '/', 'wildcard', 'prefix', ''],
     ['re5.net', '/x/y', 'regex', 'prefix', ''],
     ['re5.net', '/', 'regex', 'none', ''])
{
    my ($host, $uri, $server_by, $location_by, $limits) = @$_;

    my $e = explained("host=$host&uri="
                    . $uri =~ s/([^\w\/.])/sprintf '%%%02X', ord $1/ger);

    is_deeply [@$e{qw(server_by location_by)},
               join(' ', map { $_->{name} } @{ $e->{limits} })],
        [$server_by, $location_by, $limits], "$host $uri";
    is $e->{limited} ? 1 : 0, $limits ? 1 : 0, 'limited';

    my $at = RateLimit::Load::get($nginx->port, $uri,
                                  $host ? (Host => $host) : ())
                 ->{headers}{'x-at'} // '';
    my ($server, $location) = $at =~ /^(\S+) (\S+)$/ or next;

    is $e->{location} =~ s/\$$//r, $location, 'nginx takes the same location';
}

my $e = explained('host=www.example.com&uri=/re');
is_deeply [map { @$_{qw(key mode phase state)} } @{ $e->{limits} }],
    ['$ratelimit_client_net', 'preview', 'precontent', 'memory'],
    'how it is applied';
is explained('host=www.example.com&uri=/x.php')->{limits}[0]{mode}, 'dry_run',
   'a dry run';
like join(' ', @{ explained('uri=/')->{notes} }),
     qr/no server has this name.*"try_files" and "error_page" are not followed/,
     'notes';
like join(' ', @{ explained('host=www.example.com&uri=/api/deep/x')->{notes} }),
     qr/"ratelimit off" applies here/, 'a note about off';

for (['', 400, 'uri'], ['uri=x', 400, 'uri'], ['uri=/&method=get', 400, 'method'],
     ['uri=/&method=NONE', 400, 'method'], ['uri=/&method=POST', 200])
{
    my ($query, $status, $field) = @$_;
    my $r = RateLimit::Load::get($nginx->port(2), "/api/explain?$query");

    is $r->{status}, $status, "status of \"$query\"";
    my $answer = JSON::PP->new->decode($r->{body});

    is $answer->{field}, $field, 'and its field';
}

$nginx->finish;

done_testing;
