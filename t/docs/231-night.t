# docs/night.md: each situation is brought about on two machines, and the commands
# of the page print what it shows.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use File::Path ();
use JSON::PP ();

use RateLimit::Docs 'docs/night.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(temp_dir wait_until write_file);

my $home = temp_dir('night');

delete @ENV{qw(RATELIMIT_API NO_COLOR)};
$ENV{HOME} = $home;
$ENV{PATH} = Cwd::getcwd() . "/tools:$ENV{PATH}";

my @redis = map { RateLimit::Redis->start } 1 .. 2;


# An nginx with the configuration of the page; clients are X-Real-IP.  What a
# machine remembers for a second may or may not be shown.

sub start {
    my (@servers) = @_;

    my $shards = join ' ', map { $_->addr } @servers;
    my $text = http_of(block_of('The configuration of this page'));

    $text =~ s/ratelimit_shards +\K[^;]+/$shards/ or die "no shards\n";

    return RateLimit::Nginx->start(conf => $patient . $text . <<'END');
set_real_ip_from     127.0.0.1;
real_ip_header       X-Real-IP;
ratelimit_deny_cache off;
END
}


sub ctl { return scalar `ratelimitctl @_ 2>&1` }


# "acme" lives on the first server of the page

my $nginx = start(@redis);
my $shard = JSON::PP->new->decode(ctl('-m', '127.0.0.1:' . $nginx->port(2), '--json',
                                      'shard', 'client', 'acme'))->{shards}[0]{server};

@redis = reverse @redis if $shard ne $redis[0]->addr;
$nginx->finish;

my @nginx = map { start(@redis) } 1 .. 2;

my ($file) = $page =~ /^```text\n(.*?)^```$/ms;

$file =~ s/10\.0\.1\.$_:8082/'127.0.0.1:' . $nginx[$_ - 1]->port(2)/e for 1 .. 2;
write_file("$home/.ratelimitctl", $file, 0600);


sub get {
    my ($n, $path, %headers) = @_;

    my $times = delete $headers{times} // 1;
    my %status;

    $status{ RateLimit::Load::get($nginx[$n]->port, $path, Host => 'shop.example',
                                  %headers)->{status} }++ for 1 .. $times;

    return join ' ', map { "$_*$status{$_}" } sort keys %status;
}


# The commands of a section.

my %done;

sub session {
    my ($name) = @_;

    my @steps = steps_of($name);

    ok scalar @steps, "$name has a session";
    $done{$name} = 1;

    RateLimit::Transcript::check($_->{command}, $_,
        '10.0.0.1:6379' => $redis[0]->addr, '10.0.0.2:6379' => $redis[1]->addr)
        for @steps;
}


my @acme = ('X-Customer' => 'acme', 'X-Real-IP' => '198.51.100.4');


subtest 'a client gets 429' => sub {
    get($_, '/api/', @acme, times => 60) for 0, 1;
    is get($_, '/api/', @acme), '429*1', 'it does' for 0, 1;

    session('A client gets 429 and should not');
    ok wait_until(sub { get($_, '/api/', @acme) eq '200*1' }), 'not any more' for 0, 1;
};


subtest 'who is hammering us' => sub {
    my $n = 0;

    get($n++ % 2, '/api/', 'X-Real-IP' => '203.0.113.7', times => 20) for 1 .. 16;
    session('Who is hammering us?');
};


subtest 'raise a customer' => sub {
    session('Raise a customer for an hour');

    ok wait_until(sub { get(1, '/api/', @acme, 'X-Real-IP' => '198.51.100.5') eq '200*1'
                        && ctl('-m b show client acme') =~ /of 1000 left/ }),
       'on the other machine, too';
};


subtest 'ban' => sub {
    session('Ban an address now');

    my %banned = ('X-Real-IP' => '203.0.113.7', 'X-Customer' => 'x');

    ok wait_until(sub { get($_, '/api/', %banned) eq '429*1' }), 'it is banned' for 0, 1;
};


subtest 'exempt' => sub {
    session('Exempt the monitoring');

    ok wait_until(sub { ctl("-m $_ show address 192.0.2.10") =~ /exempt/ }), "on $_"
        for qw(a b);

    is get(0, '/api/', 'X-Real-IP' => '192.0.2.10', times => 250), '200*250',
       'it is not limited';
};


subtest 'undo' => sub {
    session('Undo it');
    ok wait_until(sub { ctl('-m', $_, 'show client acme') =~ /of 100 left/ }), "on $_"
        for qw(a b);
};


subtest 'Redis is down' => sub {
    $redis[0]->stop;

    # each machine notices by its own requests

    ok wait_until(sub {
        get($_, '/api/', @acme) for 0, 1;
        return 2 == (() = ctl('servers') =~ /circuit_open/g);
    }), 'both machines see it';

    session('Is Redis down, and what does it mean?');

    $redis[0]->start;
    ok wait_until(sub { get($_, '/api/', @acme) for 0, 1;
                        ctl('servers') !~ /circuit_open|fallback/ }), 'and its end';
};


subtest 'explain' => sub {
    session('Why is this URL not limited?');
};


subtest 'shard' => sub {
    session('Which shard holds this key?');
};


subtest 'advise' => sub {
    get($_ % 2, '/report', 'X-Customer' => "c$_", times => $_ == 1 ? 20 : 8) for 1 .. 11;
    session('Is the new limit sized right?');
};


is_deeply [grep { !$done{$_} } grep { $section{$_} =~ /^```console/m
                                      && $page =~ /^## \Q$_\E$/m } keys %section], [],
          'all situations';

$_->finish for @nginx;

File::Path::remove_tree($home);

done_testing();
