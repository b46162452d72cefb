# docs/cluster.md: what nginx does with a Redis Cluster.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA ();

use RateLimit::Cluster;
use RateLimit::Docs 'docs/cluster.md';
use RateLimit::Nginx;
use RateLimit::Transcript;


# nginx with the configuration of the page, on this cluster.

sub start {
    my ($cluster) = @_;

    my @nodes = $cluster->masters;

    # one address is enough

    return nginx_at('Configuration', $patient,
        '10.0.0.1:6379 10.0.0.2:6379 10.0.0.3:6379' => $nodes[0]->addr,
        '10.0.0.0/24' => '127.0.0.0/8',
        '100r/m' => '100r/d', '1000r/s' => '1000r/d');
}


subtest 'a cluster does what is described' => sub {
    my $cluster = RateLimit::Cluster->start;
    my @nodes = $cluster->masters;
    my $nginx = start($cluster);

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

    # the commands of the page, for a client that nobody was before

    $key = 'alice';
    is $get->('/api/')->{headers}{'x-ratelimit-remaining'}, 99, 'alice';

    for my $step (steps_of('Try it')) {
        RateLimit::Transcript::check($step->{command}, $step,
                                     '-h 10.0.0.1' => '-p ' . $nodes[0]->port);
    }

    # the settings exist

    for my $row (table_of($section{'Settings of the cluster'})) {
        my ($name) = map { /^([\w-]+)/ } code_in($row->[0]) or next;

        is scalar @{ $nodes[0]->cmd('CONFIG', 'GET', $name) }, 2, $name;
    }

    my ($default) = $section{'Settings of the cluster'}
                    =~ /`(cluster-\S+) yes` \(default\)/;

    is $nodes[0]->cmd('CONFIG', 'GET', $default)->[1], 'yes', "$default: default";

    $nginx->finish;
};


subtest 'an address outside of the networks is not used' => sub {
    my $cluster = RateLimit::Cluster->start;
    my @nodes = $cluster->masters;
    my $nginx = nginx_at('Configuration', $patient,
        '10.0.0.1:6379 10.0.0.2:6379 10.0.0.3:6379' => $nodes[0]->addr);

    my ($here) = grep { $cluster->node_of($_) == $nodes[0] } 'a' .. 'zz';
    my ($there) = grep { $cluster->node_of($_) == $nodes[1] } 'a' .. 'zz';

    is $nginx->get('/api/', 'X-Api-Key' => $here)->{headers}{'x-source'}, 'redis',
       'the address of the configuration is used';
    is $nginx->get('/api/', 'X-Api-Key' => $there)->{headers}{'x-source'}, 'local',
       'an announced one is not';
    is $nodes[1]->clients, 0, 'no connection was made';

    $nginx->finish;
};


subtest 'the rights that are listed are needed, and are enough' => sub {
    my $cluster = RateLimit::Cluster->start(masters => 2);
    my @nodes = $cluster->masters;

    # those of a single server

    my ($acl) = map { $_->{command} =~ /setuser (.*)/ } map {
        RateLimit::Transcript::parse($_)
    } grep { /acl setuser/ } @{ read_page('docs/redis.md')->{block}{console} };

    for my $node (@nodes) {
        $node->cmd('ACL', 'SETUSER', map { s/^'(.*)'$/$1/r } split / /, $acl);
    }

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


subtest 'numbers are those of the sources' => sub {
    my $text = $page =~ s/\s+/ /gr;

    is define('CLUSTER_REFRESH'), 1000, 'a second';
    like $text, qr/at most once a second/, 'once a second';

    for ([CLUSTER_AGAIN => 'after %d ms'], [CLUSTER_HOPS => 'to another node at most %d times'],
         [NODES_MAX => 'at a time | %d'])
    {
        my ($name, $format) = @$_;
        my $words = $format =~ s/%d/define($name)/er;

        ok index($text, $words) >= 0, $words;
    }

    # nodes of the zone: 4 kB each, of three quarters of a sixteenth of it

    my ($zone) = $directive{ratelimit_zone}{default} =~ /^(\d+)m$/;
    my ($nodes) = $text =~ /default zone of $zone MB \| (\d+)/;

    cmp_ok abs($zone * 1024 / 16 * 3 / 4 / 4 - $nodes), '<=', 1, "$nodes nodes";
};


done_testing();
