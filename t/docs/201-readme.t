# README.md: its first configuration limits over two nginx, its five steps lead
# from a Debian nginx to one that limits, and back, and its table has all
# examples.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Path ();

use RateLimit::Docs 'README.md';
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(find_program slurp temp_dir wait_until write_file);

my $example = $block{nginx}[0];


subtest 'the form' => sub {
    like $page, qr/\A# \S+\n\n(?:[^\n]+\n){1,5}\n```nginx\n/,
         'five lines, then a configuration';
    like $example, qr/^load_module modules\/ngx_http_ratelimit_module\.so;$/m,
         'which is complete';
    cmp_ok $page =~ tr/\n//, '<=', 250, 'at most 250 lines';

    my ($costs) = $section{'Exact, and what it costs'} =~ /\A(.*?)\n\n!\[/s;

    is scalar(() = $costs =~ /\.(?=\s|\z)/g), 2,
       'two sentences, then the picture';

    # each example is in the table, and the table has no other

    my @rows = table_of($section{'Where to read on'});
    my @linked = map { $_->[2] =~ m{\(conf-examples/([\w-]+\.conf)\)}g } @rows;

    is_deeply [sort @linked],
              [sort map { s{.*/}{}r } glob 'conf-examples/*.conf'],
              'all examples, once each';

    # and each page

    is_deeply [grep { $page !~ m{\]\(\Q$_\E\b} } glob 'docs/*.md'], [],
              'all pages';
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
           "$shards: each rejection asks Redis" for @nginx;

        if ($shards == 3) {
            my $list = join ' ', map { $_->addr } @redis;
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

    $_->finish for @nginx;
};


# The folders of a Debian nginx below a folder of this test: "make install" and
# what nginx.conf includes are as on a real machine, only the root is another.

subtest 'the five steps, and the way back' => sub {
    my $program = find_program($ENV{TEST_NGINX_BINARY} || 'nginx');
    my ($conf) = `$program -V 2>&1` =~ m{--conf-path=(\S+)/};

    plan skip_all => 'a Debian nginx and a module of its own file'
        unless $ENV{RATELIMIT_MODULE} && ($conf // '') eq '/etc/nginx';

    my $steps = $section{'Install into your nginx'};
    my $root = temp_dir('debian');
    my @sh = $steps =~ /^```sh\n(.*?)^```$/msg;

    # 1: what setup.sh installs for a build

    my ($needed) = slurp('tools/setup.sh') =~ /\n    build\)\n\s+echo ([^\n]+)/;
    my @packages = grep { !/^(?:nginx|curl|redis-server)$/ }
                   map { split ' ' } $sh[0] =~ /apt-get install (.*)/g;

    is_deeply [sort @packages], [sort grep { $_ ne 'nginx' } split ' ', $needed],
              'the packages';

    # 2

    File::Path::make_path(map { "$root$conf/$_" }
                          qw(modules-enabled conf.d sites-enabled));
    is $sh[1], "make\nsudo make install\n", 'make install';
    install($root, 'install');

    my $link = "$root$conf/modules-enabled/50-mod-http-ratelimit.conf";
    my $snippet = readlink $link;

    ok -l $link, 'it enables the module';
    is $snippet, '/etc/nginx/modules-available/mod-http-ratelimit.conf',
       'by the snippet that the README names';
    like $steps, qr/`\Q$snippet\E`/, 'and it names it';

    # 3: the two files of the block

    my $redis = RateLimit::Redis->start;
    my ($limit, $server) = block_of('Install into your nginx')
                           =~ /^# new file: \S+\n(.*?)^# your server[^\n]+\n(.*)/ms;

    $limit =~ s/127\.0\.0\.1:6379/$redis->addr/e;
    $server =~ s/listen 80;/listen 127.0.0.1:%%PORT%%;/ or die;
    $server =~ s/\/var\/www\/html/%%DIR%%\/html/ or die;

    my $load = slurp("$root$snippet") =~ s/ (?=\/)/ $root/r;
    my ($module) = $load =~ /^load_module (\S+);$/;

    ok -f $module, 'the snippet names the module';

    # 4: an nginx that ran without it

    my $nginx = RateLimit::Nginx->start(
        load => [], conf => $server =~ s/\s+ratelimit client;.*//r);

    write_file($nginx->dir . '/html/index.html', "hello\n");
    is $nginx->get('/')->{headers}{'x-ratelimit-limit'}, undef, 'no limit';

    ok $nginx->reload(load => [$module], conf => "$patient$limit$server")
       && $nginx->old_workers_gone(10), 'a reload is enough the first time';
    is $nginx->get('/')->{headers}{'x-ratelimit-remaining'}, 4, 'it limits';
    $redis->cmd('FLUSHALL');

    ok $nginx->stop && $nginx->start, 'a restart';

    # 5

    for my $step (steps_of('Install into your nginx')) {
        RateLimit::Transcript::check($step->{command}, $step,
            'http://127.0.0.1/' => $nginx->url('/'),
            'redis-cli'         => 'redis-cli -p ' . $redis->port);
    }

    # "dry_run" at the end of the line

    ok $nginx->reload(conf => "$patient$server"
                              . $limit =~ s/6r\/m/6r\/m dry_run/r)
       && $nginx->old_workers_gone(10), 'dry_run';
    is $nginx->get('/')->{status}, 200, 'rejects nothing';
    ok $nginx->wait_log(qr/ratelimit REJECTED_DRY_RUN, limit: "client"/),
       'and logs';

    # and away: keys expire

    my $key = 'ratelimit:client:{127.0.0.1}';

    cmp_ok $redis->cmd('PTTL', $key), '>', 0, 'the key expires by itself';

    is $sh[3] // '', "sudo rm /etc/nginx/conf.d/ratelimit.conf\n"
                     . "sudo make uninstall\n$sh[2]", 'how to remove it';
    install($root, 'uninstall');
    ok !-e $module && !-l $link && !-e "$root$snippet", 'all is removed';
    ok $nginx->stop, 'nginx leaves';

    my ($code, $output) = RateLimit::Nginx->test_config(
        load => [], conf => $server =~ s/\s+ratelimit client;.*//r);

    is $code, 0, 'without the lines, nginx loads its configuration'
        or diag $output;

    $nginx->no_alerts;
    File::Path::remove_tree($root);
};


sub install {
    my ($root, $target) = @_;

    local %ENV = %ENV;

    delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)};

    my $output = `make --no-print-directory $target DESTDIR=$root 2>&1`;

    is $?, 0, "make $target" or diag $output;
}


# What docs/performance.md measured.

subtest 'the costs are those of the benchmark' => sub {
    my @rows = map { table_of(slurp($_)) }
               grep { -e } 'docs/performance.md';
    my %ratio = map { ($_->[0] // '') => $_->[3] } grep { @$_ == 7 } @rows;
    my ($hot, $many) = $section{'Exact, and what it costs'} =~ /(\d\.\d) times/g;

    is sprintf('%.1f', $ratio{'exact, hot key'} // 0), $hot, 'a hot key';
    is sprintf('%.1f', $ratio{'exact, 100,000 keys'} // 0), $many, 'many keys';
};


subtest 'the picture has the words of the code' => sub {
    my $picture = block_of('The path of a request', 'text');

    for my $word (strings('ngx_rl_outcome_names')) {
        next if $word =~ /DRY_RUN|PREVIEW|^$/;
        like $picture, qr/\b$word\b/, $word;
    }

    for my $word (split / \| /, $directive{ratelimit_on_error}{words}) {
        like $picture, qr/\b$word\b/, $word;
    }
};


done_testing();
