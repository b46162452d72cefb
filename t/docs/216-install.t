# docs/install.md: what is installed where, versions, and what a reload does.
# Upgrades themselves are tested by t/project/002-upgrade.t.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Copy qw(copy);
use File::Path ();

use RateLimit::Docs 'docs/install.md';
use RateLimit::Nginx;
use RateLimit::Util qw(find_program slurp temp_dir);

my %text = map { $_ => $section{$_} =~ s/\s+/ /gr } keys %section;
my $program = find_program($ENV{TEST_NGINX_BINARY} || 'nginx');
my $module = $ENV{RATELIMIT_MODULE};
my ($release) = source('version.h') =~ /NGX_RL_RELEASE +"([\d.]+)"/;


sub run {
    my ($command) = @_;

    local %ENV = %ENV;

    delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)};

    my $output = `$command 2>&1`;

    is $?, 0, $command or diag $output;

    return $output;
}


subtest 'versions are those of the sources' => sub {
    my ($major, $minor) = slurp('config') =~ /-lt (\d)0(\d\d)000/;

    like $text{'What it needs'}, qr/nginx \| \Q$major.$minor\E or newer/,
         'the oldest nginx';

    is_deeply [grep { $_ ne $release } $page =~ /\b(0\.5\.[1-9]\d*)\b/g], [],
              "$release wherever a page names a version of today";
    like $text{Upgrading}, qr/is `\Q$release\E\+acme1`/, 'a build of your own';

    my ($newest) = slurp('CHANGELOG.md') =~ /^## +(\S+)/m;

    is $newest, $release, 'the changelog begins with it';
    log_ok(@log_lines);
};


subtest 'the table of versions' => sub {
    my @rows = grep { @$_ == 6 } table_of($section{Versions});

    is scalar @rows, 5, 'four systems and a head';

    # nginx that runs these tests, if it is one of the table

    my ($version) = `$program -v 2>&1` =~ m{nginx/([\d.]+)};

    note "this is nginx $version";
    ok +(grep { $_->[1] eq '1.22.1' } @rows), 'that of Debian 12';

    # the tests are there, and a chroot runs the same

    my ($core) = $section{Versions} =~ /\(((?:\d{3},?\s*)+)\)/;
    my %core = map { $_ => 1 } $core =~ /\d{3}/g;

    is scalar(() = glob "t/*/$_-*.t"), 1, "test $_" for sort keys %core;

    my ($chroot) = slurp('tools/chroot-test.sh') =~ /t\/\*\/\{([\d,]+)\}-/;

    is_deeply [sort keys %core], [split /,/, $chroot], 'those of chroot-test.sh';
};


subtest 'packages' => sub {
    my ($build) = slurp('tools/setup.sh') =~ /\n    build\)\n\s+echo ([^\n]+)/;
    my ($shown) = block_of('Debian and its relatives', 'sh')
                  =~ /apt-get install (.*)/;

    is_deeply [sort split ' ', $shown],
              [sort grep { $_ ne 'nginx' } split ' ', $build],
              'those for a build';

    my ($source) = slurp('tools/setup.sh')
                   =~ /\n    source\)\n\s+echo (.*?)\n\s+;;/s;

    like $source, qr/\b\Q$_\E\b/, "for a source of nginx: $_"
        for $text{'Another nginx'} =~ /`(lib[\w -]+)`/ ? split ' ', $1 : 'none';
};


subtest 'a Debian package' => sub {
    my $name = 'A Debian package';
    my $setup = slurp('tools/setup.sh');
    my @groups = map { $setup =~ /\n    $_\)\n\s+echo ([^\n]+)/ } qw(build deb);

    # build-essential has the compiler
    my @needed = grep { !/^(?:nginx|gcc|libc6-dev|make)$/ } map { split ' ' } @groups;
    my ($shown, $file) = block_of($name, 'sh') =~ m{
        install\ ([^\n.]+)\n make\ deb\n sudo\ apt-get\ install\ ./(\S+)}x;

    is_deeply [sort split ' ', $shown], [sort @needed], 'the packages for a build';

    my ($package, $version) = slurp('packaging/debian/changelog') =~ /(\S+) \((\S+)\)/;

    is $file, "build/deb/${package}_${version}_*.deb", 'the file';
    like $text{$name}, qr/`\Q$release\E-1~deb12`; metrics say `\Q$release\E\+deb1~deb12`/,
         'the version with a revision';

    # what the package puts elsewhere than "make install" is tested where it is
    # built: t/project/193-packages.t

    my @files = map { code_in($_->[0]) } grep { $_->[0] =~ m{^`/} } table_of($section{$name});

    is_deeply [grep { m{modules/|modules-enabled} } @files],
              [map { code_in($_->[0]) } grep { $_->[0] =~ m{modules/|modules-enabled} }
               table_of($section{'Debian and its relatives'})],
              'the module and its link are where make install puts them';

    my $test = slurp('packaging/debian-test.sh');

    like $test, qr/\Q$files[1]\E/, 'the snippet';
    ok -e "tools/$_", $_ for $text{$name} =~ m{`tools/(\S+) RELEASE`};
};


subtest 'make install writes the files of the table' => sub {
    my ($conf) = `$program -V 2>&1` =~ m{--conf-path=(\S+)/};

    plan skip_all => 'a Debian nginx and a module of its own file'
        unless $module && ($conf // '') eq '/etc/nginx';

    my @files = map { code_in($_->[0]) }
                grep { @$_ == 2 && $_->[0] =~ m{^`/} }
                table_of($section{'Debian and its relatives'});
    my $root = temp_dir('install');

    is scalar @files, 5, 'five files';
    File::Path::make_path("$root/etc/nginx/modules-enabled");

    # variables of the second table

    my @variables = $section{'Debian and its relatives'} =~ /`make install (\w+)=\S+`/g;

    is "@variables", 'DESTDIR MODULESDIR PREFIX', 'its variables';

    run("make --no-print-directory install DESTDIR=$root");
    ok -e "$root$files[0]" && -e "$root$files[1]" && -l "$root$files[2]"
       && -x "$root$files[3]" && -e "$root$files[4]", 'all of them';
    is readlink "$root$files[2]", $files[1], 'the third is a link to the second';
    is slurp("$root$files[1]"), "load_module $files[0];\n", 'a load_module line';
    ok index($text{'Debian and its relatives'}, "`load_module $files[0];`") >= 0,
       'which is the line for other systems';

    run("make --no-print-directory uninstall DESTDIR=$root");
    is_deeply [grep { -e "$root$_" || -l "$root$_" } @files], [], 'uninstall';

    run("make --no-print-directory install DESTDIR=$root MODULESDIR=/opt/modules");
    ok -e "$root/opt/modules/ngx_http_ratelimit_module.so", 'another folder';
    is_deeply [grep { -e "$root$_" || -l "$root$_" } @files[0 .. 2]], [],
              'and no snippet';
    run("make --no-print-directory uninstall DESTDIR=$root MODULESDIR=/opt/modules");

    run("make --no-print-directory install DESTDIR=$root PREFIX=/usr");
    ok -x "$root/usr/bin/ratelimitctl", 'another prefix';

    File::Path::remove_tree($root);
};


subtest 'nginx refuses a module of another version, in these words' => sub {
    like slurp($program), qr/version %ui instead of %ui/, 'the words of nginx';
    like $page, qr/`version \d+ instead of \d+`/, 'and of the page';
};


subtest 'a reload without the module unloads it' => sub {
    plan skip_all => 'a module of its own file only' unless $module;

    my $dir = temp_dir('unload');

    copy($module, "$dir/module.so") or die "$dir/module.so: $!\n";

    my $nginx = RateLimit::Nginx->start(
        load => ["$dir/module.so"],
        server => 'ratelimit_rate 1r/d; location / { empty_gif; }');

    is join(' ', map { $nginx->get('/')->{status} } 1 .. 2), '200 429', 'it limits';

    ok $nginx->reload(load => [], server => 'location / { empty_gif; }')
       && $nginx->old_workers_gone(10), 'a reload without it';
    is $nginx->get('/')->{status}, 200, 'no limit';
    unlike slurp('/proc/' . $nginx->pid . '/maps'), qr/module\.so/, 'it is unloaded';

    $nginx->finish;
    File::Path::remove_tree($dir);
};


subtest 'the servers of make run' => sub {
    my @names = map { code_in($_->[0]) } table_of($section{'A sandbox'});

    shift @names;

    my ($list) = slurp('Makefile') =~ /TOPOLOGY=([\w|]+)/;

    is_deeply [sort @names], [sort split /\|/, $list], 'all topologies';
    like slurp('tools/run.sh'), qr/\b\Q$_\E\)/, "run.sh: $_" for grep { $_ ne 'shards' } @names;
};


done_testing();
