# Valkey instead of Redis: files of this suite that ask the server for most of
# what it can do, each run as it is, with its server.  "make test REDIS=valkey"
# runs all of them so.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Path ();

use RateLimit::Redis;
use RateLimit::Util qw(find_program keep_files reap slurp spawn temp_dir);

# the scripts, what is called an error, a cluster, sentinels
my @TOPICS = qw(021 023 122 143 151 156);

my $server = find_program('valkey-server');

plan skip_all => 'no valkey-server is installed' unless $server;
plan skip_all => "all tests are run with $ENV{RATELIMIT_REDIS_SERVER}"
    if ($ENV{RATELIMIT_REDIS_SERVER} // '') =~ /valkey/;

local $ENV{RATELIMIT_REDIS_SERVER} = $server;


subtest 'the server of the tests is Valkey' => sub {
    my $info = RateLimit::Redis->start->info('server');

    is $info->{server_name}, 'valkey', 'is Valkey';
    ok $info->{valkey_version}, 'of some version'
        and note "Valkey $info->{valkey_version}";
};


# A file ends by itself, so the time is for one that hangs.

sub run {
    my ($file) = @_;

    my $dir = temp_dir('valkey');
    my $pid = spawn([$^X, '-I', 't/lib', $file], out => "$dir/out",
                    death => 'TERM');
    my $status = reap($pid, 300);

    if (!defined $status) {
        kill 'TERM', $pid;
        reap($pid, 30) // kill 'KILL', $pid;
    }

    my $output = slurp("$dir/out");

    File::Path::remove_tree($dir) unless keep_files($dir);

    return ($status, $output);
}


for my $topic (@TOPICS) {
    my ($file) = glob "t/*/$topic-*.t" or next;

    subtest $file => sub {
        my ($status, $output) = run($file);

        plan skip_all => $1 if $output =~ /^1\.\.0 # SKIP (.*)/m;

        my $ok = () = $output =~ /^ok \d+/mg;

        cmp_ok $ok, '>', 0, 'some tests have passed';
        is $status, 0, 'and none has failed'
            or diag map { "$_\n" } grep { /^\s*(?:not ok|#)/ }
                                   split /\n/, $output;
    };
}


done_testing;
