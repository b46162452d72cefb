# docs/api.md: answers have the fields that are listed, and the sessions come out
# as they are shown.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Docs 'docs/api.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;

my @redis = map { RateLimit::Redis->start } 1 .. 2;

# the configuration of the page, with these servers

sub start {
    my ($more) = @_;

    my $shards = join ' ', map { $_->addr } @redis;
    my $text = http_of(block_of('Set up'))
               =~ s/ratelimit_shards \K[^;]+/$shards/r;

    return RateLimit::Nginx->start(conf => "$more$text");
}

my $nginx = start($patient);


# the second server of the page is that of the API

sub api {
    my ($path) = @_;

    return RateLimit::Load::get($nginx->port(2), "/ratelimit/$path");
}


sub json { return JSON::PP->new->utf8->decode(api(@_)->{body}) }


# The names in the first column of a section's table.

sub fields {
    my ($heading) = @_;

    return sort map { code_in($_->[0]) } table_of($section{$heading});
}


subtest 'sessions' => sub {
    RateLimit::Transcript::check($_->{command}, $_,
                                 '127.0.0.1:8082' => '127.0.0.1:' . $nginx->port(2))
        for steps_of();
};


subtest 'the paths are those that there are' => sub {
    my @listed = grep { $_ ne '(none)' } fields('Paths');

    is_deeply \@listed, [sort @{ json('')->{paths} }], 'the index';
};


subtest 'the fields are those that are listed' => sub {
    my $state = json('limits/login/keys/bob');
    my @here = map { "here.$_" } keys %{ delete $state->{here} };

    is_deeply [sort keys %$state, @here], [sort 'cost', fields('Look a client up')],
              'a key';

    my $limit = json('limits/client');
    my %definition = map { $_ => 1 } qw(name algorithm key capacity window rate
                                        refill_interval cost dry_run
                                        period timezone anchor);

    is_deeply [sort grep { !$definition{$_} } keys %$limit], [fields('Limits')],
              'a limit';

    my ($text) = $section{Limits} =~ /\| `used` \|(.*)\|/;
    my %words = map { $_ => 1 } code_in($text), 'server';

    is_deeply [grep { !$words{$_} } keys %{ $limit->{used}[0] }], [], 'its use';
    is_deeply [sort keys %{ json('servers')->{servers}[0] }],
              [sort 'calls', fields('Servers')], 'a server';
};


subtest 'top keys' => sub {
    my %get = map { $_->[0] => 1 } table_of($section{'Top keys'});

    ok $get{"`$_`"}, "argument $_" for qw(limit by n);

    RateLimit::Load::get($nginx->port, '/login', 'X-Api-Key' => 'carol') for 1 .. 6;

    my $shown = JSON::PP->new->decode(block_of('Top keys', 'json'));
    my $top = json('top?limit=login');

    is_deeply [sort keys %$top], [sort keys %$shown], 'the answer';
    is_deeply [sort keys %{ $top->{keys}[0] }],
              [sort keys %{ $shown->{keys}[0] }], 'a key';

    my @fields = (grep({ $_ ne 'keys' } keys %$top),
                  map { "keys[].$_" } keys %{ $top->{keys}[0] });

    is_deeply [sort @fields],
              [sort 'limit', 'by', grep { !/^(?:limit|by|n)\z/ } fields('Top keys')],
              'all of them are listed';
    is scalar @{ $top->{keys} }, 1, 'a client that was rejected';
};


subtest 'overrides' => sub {
    my $r = RateLimit::Load::request(
        $nginx->port(2), 'PUT', '/ratelimit/limits/client/keys/eve/override',
        { 'X-RateLimit-Write' => 1, 'Content-Type' => 'application/json' },
        '{"ban":true}');

    is $r->{status}, 200, 'a ban';
    is_deeply [sort keys %{ JSON::PP->new->decode($r->{body}) }],
              [sort 'limit', 'key', fields('Overrides')], 'its fields';
    is RateLimit::Load::get($nginx->port, '/', 'X-Api-Key' => 'eve')->{status},
       429, 'it holds';
    is json('overrides')->{total}, 1, 'and is listed';
};


subtest 'explain' => sub {
    my %get = map { $_->[0] => 1 } table_of($section{'Explain a request'});

    ok $get{"`$_`"}, "argument $_" for qw(uri host method);

    is_deeply [sort keys %{ json('explain?uri=/') }],
              [grep { !/^(?:uri|host|method)\z/ } fields('Explain a request')],
              'its fields';
};


subtest 'arguments, encoded keys, errors' => sub {
    RateLimit::Load::get($nginx->port, '/login', 'X-Api-Key' => 'a/b') for 1 .. 6;

    my $state = json('limits/login/keys/a%2Fb');

    ok !$state->{passes}, 'used up';
    ok $state->{here}{denied}, 'and known here';
    is_deeply [map { $_->{limit} } @{ json('keys/a%2Fb')->{limits} }],
              ['client', 'login'], 'in all limits';
    ok !json('limits/client/keys/a%2Fb?cost=101')->{passes}, 'another cost';

    my %status = map { $_->[0] => 1 } table_of($section{Errors});
    delete $status{status};

    for (['limits/client/keys/a?cost=x', 400], ['limits/x', 404]) {
        my ($path, $status) = @$_;

        is api($path)->{status}, $status, $path;
        ok delete $status{$status}, 'is listed';
    }

    my $put = '/ratelimit/limits/client/keys/a/override';
    my %write = ('X-RateLimit-Write' => 1);
    my %json = ('Content-Type' => 'application/json');

    for (['POST', '/ratelimit/', {}, '', 405], ['PUT', $put, {}, '{}', 403],
         ['PUT', $put, { %write }, '{}', 415],
         ['PUT', $put, { %write, %json }, 'x' x 70_000, 413])
    {
        my ($method, $path, $headers, $body, $status) = @$_;

        is RateLimit::Load::request($nginx->port(2), $method, $path, $headers,
                                    $body)->{status}, $status, "status $status";
        ok delete $status{$status}, 'is listed';
    }

    # t/http/134 fills the memory

    ok delete $status{507}, 'also that of a full memory';

    $nginx->finish;
    $nginx = start('');

    $_->pause for @redis;
    is api('limits/client/keys/new')->{status}, 503, 'no answer';
    ok delete $status{503}, 'is listed';
    is api('limits')->{status}, 200, 'limits are still shown';
    $_->resume for @redis;

    is_deeply [keys %status], [], 'and no other';
};

$nginx->finish;

done_testing();
