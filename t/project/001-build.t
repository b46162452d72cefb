# What the build makes: nothing is visible that a second build of the module
# could bind to, and a warning of a newer compiler stops "make lint", but nobody
# who only wants the module.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use File::Basename qw(dirname);
use File::Path ();

use RateLimit::Util qw(find_program slurp temp_dir write_file);

my $module = $ENV{RATELIMIT_MODULE};
my $nginx = find_program($ENV{TEST_NGINX_BINARY} || 'nginx');

# where nginx's configure ran, see the Makefile
my $objs = $module ? dirname($module) : dirname(dirname($nginx));

$objs .= '/nginx-dev' if -d "$objs/nginx-dev";

my $dir = temp_dir('build');


# The exit code and what a command printed.

sub run {
    my ($command) = @_;

    # nothing of a make that runs the tests
    local @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)};
    delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL)};

    my $output = `$command 2>&1`;

    return ($? >> 8, $output);
}


sub exported {
    my ($file) = @_;

    my ($code, $symbols) = run("nm -D --defined-only --extern-only $file");

    is $code, 0, 'nm reads it' or diag $symbols;

    return sort map { (split)[2] } split /\n/, $symbols;
}


subtest 'nothing is visible but what nginx looks up' => sub {
    plan skip_all => 'nm is not installed' unless find_program('nm');

    if ($module) {
        is_deeply [exported($module)],
                  [qw(ngx_module_names ngx_module_order ngx_modules)],
                  'the module exports the tables that nginx looks up, no more';

    } else {
        is_deeply [grep { /ratelimit/ } exported($nginx)], [],
                  'an nginx with the module inside exports nothing of it';
    }
};


subtest 'a warning of a newer compiler stops lint and no build' => sub {
    plan skip_all => 'the folder of the build is not here'
        unless -f "$objs/objs/Makefile";

    # any warning will do

    write_file("$dir/warning.h", "#warning a compiler that knows more\n");

    my $source = Cwd::getcwd() . '/src/pure/ngx_rl_text.c';
    my ($code, $compile) = run("make -n -C $objs -f objs/Makefile "
        . "--no-print-directory -W $source "
        . 'objs/addon/pure/ngx_rl_text.o');

    $compile =~ s/\\\n/ /g;
    ($compile) = grep { /-o objs\/\S+text\.o/ } split /\n/, $compile;

    ok $compile, 'how a source is compiled' or return;

    # as nginx does it, unless CFLAGS are in the environment of its configure
    $compile =~ s{ -c }{ -Werror -c };
    $compile =~ s{-o objs/\S+}{-o $dir/text.o -include $dir/warning.h};

    my ($rc, $output) = run("cd $objs && $compile");

    like $compile, qr/ -Werror -c /, 'nginx makes errors of warnings';
    like $output, qr/warning: .*a compiler that knows more/, 'it warns';
    is $rc, 0, 'the build goes on';
    ok -f "$dir/text.o", 'and has its object';

    my $lint = "tools/lint.sh $nginx $objs warnings "
               . 'src/pure/ngx_rl_text.c';

    ($rc, $output) = run("WARNINGS='-Wall -include $dir/warning.h' $lint");

    like $output, qr/error: .*a compiler that knows more/, 'lint sees it';
    isnt $rc, 0, 'and fails';

    ($rc, $output) = run("WARNINGS=-Wall $lint");

    is $rc, 0, 'without the warning it does not' or diag $output;
};


# A running nginx has the file mapped.

subtest 'make install puts a new file in the place of the old one' => sub {
    plan skip_all => 'a module of its own file only' unless $module;

    mkdir "$dir/modules";

    my $file = "$dir/modules/ngx_http_ratelimit_module.so";
    my $install = "make --no-print-directory install MODULESDIR=$dir/modules "
                  . "PREFIX=$dir/usr";

    my ($code, $output) = run($install);

    is $code, 0, 'it installs' or diag $output;
    ok slurp($file) eq slurp($module), 'the module';
    is sprintf('%o', (stat $file)[2] & 0777), '644', 'for everybody to read';

    # the old file is still open, so its inode can't be the new one's

    open my $old, '<', $file or die "$file: $!\n";

    is((run($install))[0], 0, 'it installs again');
    isnt +(stat $file)[1], (stat $old)[1], 'a new file, not the old one changed';
    is_deeply [map { s{.*/}{}r } glob "$dir/modules/*"],
              ['ngx_http_ratelimit_module.so'], 'nothing is left behind';
};


# As the packages of Debian have it: a snippet, and a link to it.

subtest 'make install enables the module where nginx has a folder for that'
    => sub
{
    plan skip_all => 'a module of its own file only' unless $module;

    my $root = "$dir/root";
    my ($conf) = `$nginx -V 2>&1` =~ m{--conf-path=(\S+)/};
    my ($modules) = `$nginx -V 2>&1` =~ m{--modules-path=(\S+)};

    plan skip_all => 'an nginx without these paths' unless $conf && $modules;

    my $file = "$modules/ngx_http_ratelimit_module.so";
    my $snippet = "$conf/modules-available/mod-http-ratelimit.conf";
    my $link = "$root$conf/modules-enabled/50-mod-http-ratelimit.conf";
    my $make = 'make --no-print-directory';

    my ($code, $output) = run("$make install DESTDIR=$root");

    is $code, 0, 'it installs' or diag $output;
    ok -f "$root$file", 'the module';
    ok !-e "$root$conf", 'nothing else: there is no folder modules-enabled';

    File::Path::make_path("$root$conf/modules-enabled");

    for (1 .. 2) {
        ($code, $output) = run("$make install DESTDIR=$root");

        is $code, 0, 'it installs' or diag $output;
        like $output, qr/^enabled by \Q$link\E$/m, 'and says what it enables';
        is slurp("$root$snippet"), "load_module $file;\n", 'the snippet';
        is readlink($link), $snippet, 'the link to it';
    }

    # the tool

    my $tool = "$root/usr/local/bin/ratelimitctl";
    my $completion = "$root/usr/local/share/bash-completion/completions/ratelimitctl";

    like $output, qr/^installed \Q$tool\E$/m, 'the tool';
    is sprintf('%o', (stat $tool)[2] & 0777), '755', 'for everybody to run';
    is slurp($completion), slurp('tools/ratelimitctl.bash'), 'its completion';

    my ($rc, $help) = run("$tool help");

    is $rc, 0, 'it runs' or diag $help;
    like $help, qr/^usage: ratelimitctl /, 'and helps';

    ($code, $output) = run("$make uninstall DESTDIR=$root");

    is $code, 0, 'it uninstalls' or diag $output;
    ok !-e "$root$file" && !-e "$root$snippet" && !-l $link, 'all of it';
    ok !-e $tool && !-e $completion, 'the tool, too';

    ($code, $output) = run("$make install DESTDIR=$root PREFIX=/opt/x");
    ok -x "$root/opt/x/bin/ratelimitctl", 'another prefix';
    run("$make uninstall DESTDIR=$root PREFIX=/opt/x");
    ok !-e "$root/opt/x/bin/ratelimitctl", 'and from there';
};


subtest 'make install takes the man pages that make docs has written' => sub {
    plan skip_all => 'a module of its own file only' unless $module;

    my $docs = "$dir/docs";
    my $root = "$dir/man";

    mkdir $docs;
    write_file("$docs/ratelimitctl.1", ".TH RATELIMITCTL 1\n");

    my ($code, $output) = run('make --no-print-directory install '
                              . "DESTDIR=$root DOCSDIR=$docs");

    is $code, 0, 'it installs' or diag $output;
    ok -f "$root/usr/local/share/man/man1/ratelimitctl.1", 'the page';
    run("make --no-print-directory uninstall DESTDIR=$root");
    ok !-e "$root/usr/local/share/man/man1/ratelimitctl.1", 'and removes it';
};


File::Path::remove_tree($dir);

done_testing;
