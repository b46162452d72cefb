# api/openapi.json: each path that the API has is described, with its methods,
# and real answers are as their schemas say: all fields, and no others.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(slurp wait_until);

my $redis = RateLimit::Redis->start;
my $nginx = RateLimit::Nginx->start(conf => <<"EOC", server => <<'EOC2');
    ratelimit_shards ${\ $redis->addr};
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_top 100;
    ratelimit_limit user  key=\$arg_key capacity=5 rate=5r/h;
    ratelimit_limit plan  key=\$arg_key capacity=\$arg_capacity rate=1r/h;
    ratelimit_limit trial key=\$arg_key capacity=2 rate=2r/h dry_run advise;
EOC
    location /user  { ratelimit user; try_files /none @ok; }
    location /plan  { ratelimit plan; try_files /none @ok; }
    location /trial { ratelimit trial; try_files /none @ok; }
    location @ok    { return 200 ok; }

    location /r/    { ratelimit_api write; }
EOC2

my $json = JSON::PP->new->utf8->boolean_values(JSON::PP::false, JSON::PP::true);
my $openapi = $json->decode(slurp('api/openapi.json'));


# ---- a small part of JSON Schema: what the description uses

sub resolve {
    my ($schema) = @_;

    while (my $ref = $schema->{'$ref'}) {
        $schema = $openapi;
        $schema = $schema->{$_} // die "$ref\n" for split m{/}, $ref =~ s{^#/}{}r;
    }

    return $schema;
}


sub type_of {
    my ($value) = @_;

    return 'null' if !defined $value;
    return 'boolean' if JSON::PP::is_bool($value);
    return lc(ref $value) =~ s/hash/object/r if ref $value;
    return 'string' if $json->encode([$value]) =~ /^\["/;
    return $value =~ /^-?\d+$/ ? 'integer' : 'number';
}


# What is wrong with the value, a list of sentences.

sub wrong {
    my ($schema, $value, $at) = @_;

    $schema = resolve($schema);

    if (my $choices = $schema->{oneOf}) {
        my @tried = map { [wrong($_, $value, $at)] } @$choices;

        return () if grep { !@$_ } @tried;
        return $tried[0][0];
    }

    my $type = type_of($value);
    my @types = map { ref $_ ? @$_ : $_ } grep { defined } $schema->{type};

    return "$at: $type instead of @types"
        if @types && !grep { $_ eq $type || $_ eq 'number' && $type eq 'integer' }
                           @types;
    return "$at: \"$value\" is none of @{ $schema->{enum} }"
        if $schema->{enum} && !grep { $_ eq $value } @{ $schema->{enum} };
    return "$at: another value"
        if exists $schema->{const} && $json->encode([$value])
                                      ne $json->encode([$schema->{const}]);

    if ($type eq 'array') {
        return map { wrong($schema->{items}, $value->[$_], "$at\[$_]") }
               0 .. $#$value;
    }

    return () if $type ne 'object';

    my $fields = $schema->{properties} || {};
    my @wrong = map { "$at.$_ is missing" }
                grep { !exists $value->{$_} } @{ $schema->{required} || [] };

    for my $name (sort keys %$value) {
        my $of = $fields->{$name} // $schema->{additionalProperties};

        push @wrong, $of ? wrong($of, $value->{$name}, "$at.$name")
                         : "$at.$name is not described";
    }

    return @wrong;
}


# ---- requests

my %asked;


sub request {
    my ($method, $path, $body, %headers) = @_;

    %headers = ('X-RateLimit-Write' => 1, %headers) if $method ne 'GET';
    $headers{'Content-Type'} //= 'application/json' if defined $body;

    return RateLimit::Load::request($nginx->port, $method, "/r/$path", \%headers,
                                    $body);
}


# One request, to this path of the description: its answer has the schema of its
# status.

sub described_ok {
    my ($method, $path, $to, %opt) = @_;

    my $r = request($method, $to, $opt{body}, %{ $opt{headers} || {} });
    my $status = $opt{status} // 200;

    is $r->{status}, $status, "$method $to" or diag $r->{body};

    $asked{"$method $path"}{ $r->{status} } = 1;

    my $response = resolve($openapi->{paths}{$path}{lc $method}
                                   {responses}{ $r->{status} } // {});
    my $content = $response->{content}{ $r->{headers}{'content-type'} // '' };

    ok $content, 'its status and type are described' or return;
    is_deeply [wrong($content->{schema}, $json->decode($r->{body}), '')], [],
              'and its fields';
}


subtest 'the description is that of this API' => sub {
    my $r = request('GET', 'openapi.json');
    my $index = $json->decode(request('GET', '')->{body});

    is $r->{status}, 200, 'it is there';
    is $r->{headers}{'content-type'}, 'application/json', 'type';
    ok $r->{body} eq slurp('api/openapi.json'), 'as in the sources';
    is $openapi->{openapi}, '3.1.0', 'OpenAPI 3.1';

    my ($release) = slurp('src/core/ngx_rl_version.h')
                    =~ /NGX_RL_RELEASE\s+"([^"]+)"/;

    is $openapi->{info}{version}, $release, 'of this version';

    my @paths = map { s{^/}{}r =~ s/\{limit\}/NAME/r =~ s/\{key\}/KEY/r }
                grep { $_ ne '/' } keys %{ $openapi->{paths} };

    is_deeply [sort @paths], [sort @{ $index->{paths} }], 'the same paths';

    for my $path (sort keys %{ $openapi->{paths} }) {
        my $to = $path =~ s{^/}{}r =~ s/\{limit\}/user/r =~ s/\{key\}/a/r;
        my $allow = request('PATCH', $to)->{headers}{allow} // '';
        my @methods = grep { $_ ne 'PARAMETERS' }
                      map { uc } keys %{ $openapi->{paths}{$path} };

        is_deeply [sort grep { $_ ne 'HEAD' } split /, /, $allow],
                  [sort @methods], "the methods of $path";
    }

    my @refs = slurp('api/openapi.json') =~ m{"\$ref": "([^"]*)"}g;

    ok eval { resolve({ '$ref' => $_ }) }, $_
        for sort keys %{{ map { $_ => 1 } @refs }};
};


subtest 'answers are as described' => sub {
    $nginx->get("/user?key=a") for 1 .. 7;
    $nginx->get("/trial?key=a") for 1 .. 7;

    my $override = '/limits/{limit}/keys/{key}/override';
    my $key = '/limits/{limit}/keys/{key}';

    described_ok('GET', '/', '');
    described_ok('GET', '/limits', 'limits');
    described_ok('GET', '/limits/{limit}', 'limits/trial');
    described_ok('GET', $key, 'limits/user/keys/a');
    described_ok('GET', '/keys/{key}', 'keys/a');
    described_ok('GET', '/servers', 'servers');
    described_ok('GET', '/top', "top?limit=user&by=$_") for qw(rejected seen);
    described_ok('GET', '/explain', "explain?host=x&uri=$_") for qw(/user /no);

    for my $body ('{"ban":true,"until":"1h","reason":"x"}', '{"exempt":true}',
                  '{"capacity":9,"rate":"9r/s","cost":2,"until":4000000000}')
    {
        is_deeply [wrong({ '$ref' => '#/components/schemas/OverrideChange' },
                         $json->decode($body), '')], [], $body;
        described_ok('PUT', $override, 'limits/user/keys/a/override',
                     body => $body);
        described_ok('GET', $override, 'limits/user/keys/a/override');

        my $limit;

        ok wait_until(sub {
            $limit = $json->decode(request('GET', 'limits/user')->{body});
            $limit->{overrides};
        }, 10), 'it is counted';
        described_ok('GET', '/overrides', 'overrides');
        described_ok('GET', $key, 'limits/user/keys/a');
    }

    described_ok('DELETE', $override, 'limits/user/keys/a/override');
    described_ok('DELETE', $key, 'limits/user/keys/a');
};


subtest 'problems are as described' => sub {
    my $override = '/limits/{limit}/keys/{key}/override';
    my $to = 'limits/user/keys/b/override';

    described_ok('GET', '/limits/{limit}', 'limits/none', status => 404);
    described_ok('GET', $override, $to, status => 404);
    described_ok('DELETE', $override, $to, status => 404);
    described_ok('GET', '/limits/{limit}/keys/{key}', 'limits/plan/keys/a',
                 status => 400);
    described_ok('GET', '/top', 'top', status => 400);
    described_ok('PUT', $override, $to, body => '{"capacity":0}', status => 400);
    described_ok('PUT', $override, $to, body => '{', status => 400);
    described_ok('PUT', $override, $to, body => '{"ban":true}', status => 403,
                 headers => { 'X-RateLimit-Write' => 0 });
    described_ok('PUT', $override, $to, body => '{"ban":true}', status => 415,
                 headers => { 'Content-Type' => 'text/plain' });
    described_ok('PUT', $override, $to, status => 413,
                 body => '{"reason":"' . 'x' x 70_000 . '"}');
};


subtest 'each operation was asked' => sub {
    for my $path (sort keys %{ $openapi->{paths} }) {
        for my $method (grep { $_ ne 'parameters' }
                        sort keys %{ $openapi->{paths}{$path} })
        {
            ok $asked{ uc($method) . " $path" } || $path eq '/openapi.json',
               uc($method) . " $path";
        }
    }
};

$nginx->finish;

done_testing();
