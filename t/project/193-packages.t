# Packages: the files of packaging/debian fit the sources and each other, the
# tarball has the same bytes each time, and the package can be built.  What
# installing, upgrading and removing it does is tested by tools/package-test.sh,
# as root and in other releases of Debian.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Copy qw(copy);
use File::Path ();

use RateLimit::Util qw(find_program slurp temp_dir write_file);

my $package = 'libnginx-mod-http-ratelimit';
my $debian = 'packaging/debian';
my $module = 'ngx_http_ratelimit_module';
my $nginx = find_program($ENV{TEST_NGINX_BINARY} || 'nginx');
my ($release) = slurp('src/core/ngx_rl_version.h')
                =~ /define NGX_RL_RELEASE +"([\d.]+)"/;
my $dir = temp_dir('packages');


# The exit code and what a command printed.

sub run {
    my ($command) = @_;

    # nothing of a make that runs the tests
    local %ENV = %ENV;
    delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL CFLAGS LDFLAGS REVISION QUICK)};

    my $output = `$command 2>&1`;

    return ($? >> 8, $output);
}


sub words_of {
    my ($file) = @_;

    return split ' ', slurp("$debian/$file") =~ s/^#.*//mgr;
}


# The value of a field, with the lines that continue it.

sub field_of {
    my ($name, $text) = @_;

    return $text =~ /^\Q$name\E: *(.*\n(?:[ \t].*\n)*)/m ? $1 : '';
}


subtest 'names and versions' => sub {
    my ($source, $version) = slurp("$debian/changelog") =~ /\A(\S+) \((\S+)\)/;
    my $control = slurp("$debian/control");

    is $source, $package, 'the changelog names the package';
    like $version, qr/^\Q$release\E-\d+$/, 'and the version of the sources';
    is field_of('Source', $control), "$package\n", 'the source package';
    is field_of('Package', $control), "$package\n", 'the binary package';
    like field_of('Depends', $control), qr/\$\{\Q$_\E:Depends\}/, "depends on $_"
        for qw(misc shlibs perl);

    is slurp("$debian/source/format"), "3.0 (quilt)\n", 'the format';
    ok -x "$debian/rules", 'rules can be run';
};


# dh-sequence-nginx is a part of nginx-dev

subtest 'tools/setup.sh installs what the build depends on' => sub {
    my $setup = slurp('tools/setup.sh');
    my %setup = map { $_ => 1 }
                map { split ' ', $setup =~ /\n    $_\)\n\s+echo ([^\n]+)/ ? $1 : '' }
                qw(build deb);
    my $depends = field_of('Build-Depends', slurp("$debian/control"));
    my @names = map { s/^\s+|[\s(<].*//gsr } split /,\s*/, $depends;

    cmp_ok scalar @names, '>=', 5, 'there are some';

    for (@names) {
        s/^debhelper-compat$/debhelper/;
        s/^dh-sequence-nginx$/nginx-dev/;
        ok $setup{$_}, $_;
    }
};


subtest 'files' => sub {
    my %known = map { $_ => 1 }
                qw(README.Debian doc-base docs examples links lintian-overrides
                   nginx postinst postrm);

    for (glob "$debian/$package.*") {
        my ($kind) = m{/\Q$package\E\.(.*)};

        ok $known{$kind}, "debhelper reads .$kind";
    }

    for my $file (words_of("$package.docs"), words_of("$package.examples")) {
        next if $file eq 'debian/manual/index.html';

        my @found = glob $file;

        ok @found && -e $found[0], $file;
    }

    like slurp("$debian/rules"), qr{tools/docs\.pl debian/manual\n}, 'and index.html';

    # all examples, the dashboard and the alerts are in that folder

    ok -e "conf-examples/monitoring/$_", "monitoring/$_"
        for qw(grafana-dashboard.json alerts.yml prometheus.yml);

    my $doc = "/usr/share/doc/$package";

    is field_of('Index', slurp("$debian/$package.doc-base")), "$doc/index.html\n",
       'doc-base names the page';
    is_deeply [words_of("$package.links")],
              [map { s{^/}{}r } "$doc/examples", "$doc/conf-examples"],
              'links between the pages and the examples lead somewhere';
};


subtest 'scripts' => sub {
    for my $kind (qw(postinst postrm)) {
        my $file = "$debian/$package.$kind";

        is +(run("sh -n $file"))[1], '', "sh reads $kind";
        like slurp($file), qr/^set -e\n.*^#DEBHELPER#\n/ms, 'with a place for debhelper';
    }

    is +(run('sh -n packaging/debian-test.sh'))[1], '', 'sh reads the test';
    is +(run("bash -n tools/$_"))[1], '', "bash reads $_"
        for qw(package-test.sh chroot-test.sh chroot.sh);
};


subtest 'the licence' => sub {
    my ($text) = slurp('LICENSE') =~ /^(Redistribution.*)/ms;
    my ($shown) = slurp("$debian/copyright")
                  =~ /^License: BSD-2-Clause\n((?: .*\n)+)\z/m;

    is $shown =~ s/^ \.?//mgr, $text, 'is that of the sources';
};


subtest 'the snippet is that of make install' => sub {
    my ($name) = slurp("$debian/$package.nginx") =~ m{^mod debian/(\S+)\n\z};

    like slurp('Makefile'), qr{/modules-available/\Q$name\E"}, 'its name';
    like slurp('Makefile'), qr{/50-\Q$name\E"}, 'the name of the link';
    is slurp("$debian/$name"), "load_module /usr/lib/nginx/modules/$module.so;\n",
       'its line';

    my ($conf) = `$nginx -V 2>&1` =~ m{--conf-path=(\S+)/};

    return if !$ENV{RATELIMIT_MODULE} || ($conf // '') ne '/etc/nginx';

    my $root = "$dir/root";

    File::Path::make_path("$root/etc/nginx/modules-enabled");

    my ($code, $output) = run("make --no-print-directory install DESTDIR=$root");

    is $code, 0, 'make install' or diag $output;
    is slurp("$root/etc/nginx/modules-available/$name"), slurp("$debian/$name"),
       'writes the same';

    ($code, $output) = run("make --no-print-directory uninstall DESTDIR=$root");

    is $code, 0, 'make uninstall' or diag $output;
    is `find $root -not -type d`, '', 'removes all of it';
};


subtest 'make install says what to do next' => sub {
    plan skip_all => 'a module of its own file only' unless $ENV{RATELIMIT_MODULE};

    my $make = "make --no-print-directory MODULESDIR=$dir/modules PREFIX=$dir/prefix";
    my ($code, $output) = run("$make install");

    is $code, 0, 'make install' or diag $output;
    like $output, qr{\Q"load_module $dir/modules/$module.so;"\E.*nginx\.conf}, 'load it';
    like $output, qr/add a limit.*"nginx -t", and restart/s, 'add a limit, restart';

    # the module of a package: dpkg-query says so

    mkdir "$dir/bin";
    write_file("$dir/bin/dpkg-query", qq(#!/bin/sh\necho "$package: \$2"\n));
    chmod 0755, "$dir/bin/dpkg-query";

    for my $target (qw(install uninstall)) {
        ($code, $output) = run("PATH=$dir/bin:\$PATH $make $target");

        isnt $code, 0, "make $target refuses to touch the module of a package";
        like $output, qr/belongs to the package \Q$package\E: run/, 'and names it';
        ok -e "$dir/modules/$module.so", 'it is still there';
    }

    ($code, $output) = run("$make uninstall");
    is $code, 0, 'make uninstall' or diag $output;
    is `find $dir/modules $dir/prefix -not -type d`, '', 'removes all of it';
};


# A clone, so that this does not change build/.  The script is the one of this
# tree; what it archives is the last commit.

sub clone {
    my ($path) = @_;

    my ($code, $output) = run("git clone -q --no-hardlinks . $path");

    is $code, 0, 'a clone' or diag $output;
    copy('tools/package.sh', "$path/tools/package.sh") or die "package.sh: $!\n";
    chmod 0755, "$path/tools/package.sh";
}


my $has_git = -e '.git' && find_program('git');


subtest 'make dist: the same bytes each time' => sub {
    plan skip_all => 'no git tree' unless $has_git;

    my @tarballs;

    for ([1, 'umask 022; TZ=UTC'], [2, 'umask 077; TZ=Asia/Tokyo']) {
        my ($n, $setting) = @$_;

        clone("$dir/$n");

        # files of another age
        run("find $dir/$n -name '*.c' -exec touch -d '$n days ago' {} +") if $n > 1;

        my ($code, $output) = run("$setting; export TZ; $dir/$n/tools/package.sh dist");

        is $code, 0, 'dist' or diag $output;

        my ($file) = $output =~ /^wrote (build\S+)/m;

        like $file, qr{/\Q$module-$release\E\.tar\.gz$}, 'the name';
        push @tarballs, "$dir/$n/$file";
    }

    ok slurp($tarballs[0]) eq slurp($tarballs[1]), 'the same bytes';

    my @members = grep { !m{/$} } split /\n/, `tar -tzf $tarballs[0]`;

    is_deeply [sort map { s{^\Q$module-$release\E/}{}r } @members],
              [sort split /\n/, `git -C $dir/1 ls-tree -r --name-only HEAD`],
              'all files of the commit, in one folder';

    my ($time) = `git log -1 --format=%ct` =~ /(\d+)/;
    my @times = `tar -tvzf $tarballs[0] --utc --full-time` =~ /\b(\d{4}-\d\d-\d\d [\d:]{8})/g;
    my %times = map { $_ => 1 } @times;

    is_deeply [keys %times], [`date -u -d \@$time '+%F %T'` =~ /(.*)\n/],
              'with the time of the commit';
};


# Without optimization and without docs, to be quick.

subtest 'make deb' => sub {
    plan skip_all => 'no git tree' unless $has_git;
    plan skip_all => 'a module of its own file only' unless $ENV{RATELIMIT_MODULE};
    plan skip_all => 'no dpkg-buildpackage' unless find_program('dpkg-buildpackage');

    my ($missing, $what) = run("dpkg-checkbuilddeps $debian/control");

    plan skip_all => $what =~ s/\n//gr if $missing;

    clone("$dir/deb");

    my ($code, $output) =
        run("cd $dir/deb && QUICK=1 REVISION=7~test"
            . " DEBFULLNAME='A Builder' DEBEMAIL=builder\@example.com"
            . " DEB_CFLAGS_APPEND=-g0 DEB_BUILD_OPTIONS='noopt nodoc noautodbgsym parallel=2'"
            . ' tools/package.sh deb');

    is $code, 0, 'builds' or diag $output;

    my ($deb) = $output =~ /^wrote (\S+\.deb) /m;

    $deb = "$dir/deb/" . ($deb // 'none');

    my $fields = `dpkg-deb -f $deb`;

    is field_of('Version', $fields), "$release-7~test\n", 'its version';
    is field_of('Maintainer', $fields), "A Builder <builder\@example.com>\n", 'who built it';
    like field_of('Depends', $fields), qr/nginx-abi-\S+/, 'depends on the ABI of nginx';
    like field_of('Depends', $fields), qr/libhiredis[\d.]+/, 'on hiredis';
    like field_of('Depends', $fields), qr/perl:any/, 'on perl';

    my %file = map { $_ => 1 } `dpkg-deb -c $deb` =~ m{ \./(\S*[^/\s])\n}g;

    ok $file{$_}, $_ for "usr/lib/nginx/modules/$module.so",
                         'usr/share/nginx/modules-available/mod-http-ratelimit.conf',
                         'usr/bin/ratelimitctl',
                         'usr/share/bash-completion/completions/ratelimitctl';

    run("dpkg-deb -x $deb $dir/files");
    like slurp("$dir/files/usr/lib/nginx/modules/$module.so"),
         qr/\b\Q$release+deb7~test\E\b/, 'metrics name the revision';
    is slurp("$dir/files/usr/bin/ratelimitctl"), slurp('tools/ratelimitctl'),
       'the tool of the sources';
};


File::Path::remove_tree($dir);

done_testing();
