# How tools/embed-lua.sh puts the scripts together: what it writes, what its
# SHA-1s are of, and what it says of a script that it can't put together.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Digest::SHA qw(sha1_hex);
use File::Path ();

use RateLimit::Redis;
use RateLimit::Util qw(slurp temp_dir);

my $TOOL = 'tools/embed-lua.sh';
my $HEADER = 'ratelimit_lua.h';

my $temp = temp_dir('lua');
my $folders = 0;

END { File::Path::remove_tree($temp) if $temp }

my @scripts = map { m{([^/]+)\.lua\z} } glob 'lua/*.lua';


# A folder with these files, the name of a part beginning with "lib/", and with
# an empty folder "out".

sub folder {
    my (%file) = @_;

    my $dir = "$temp/" . ++$folders;

    mkdir $_ or die "$_: $!\n" for $dir, "$dir/lib", "$dir/out";

    for my $name (keys %file) {
        open my $out, '>:raw', "$dir/$name" or die "$dir/$name: $!\n";
        print $out $file{$name};
        close $out;
    }

    return $dir;
}


# What the tool printed, standard error as well, and whether it succeeded.

sub run {
    my (@args) = @_;

    my $text = `sh $TOOL @args 2>&1`;

    return ($text, $? == 0);
}


# The string macro of that name, as C reads it.

sub macro {
    my ($header, $name) = @_;

    my ($lines) = $header =~ /^#define \w+_LUA_$name ((?:.*\\\n)*.*)/m;
    my $text = join '', ($lines // '') =~ /"((?:[^"\\]|\\.)*)"/g;

    return $text =~ s/\\(.)/$1 eq 'n' ? "\n" : $1/ger;
}


subtest 'a line stands for the text of a part' => sub {
    my $dir = folder('a.lua'         => <<'A', 'lib/one.lua' => <<'ONE',
-- head

--@ include one
--@ include two_2
    --@ include one_more

return x .. "\\?" -- not at its start: --@ include nothing
A
-- one

local x = '1'
ONE
                     'lib/two_2.lua' => "local y\n",
                     'lib/one_more.lua' => "if y then\n\n    x = y\nend\n");
    my $whole = <<'WHOLE';
-- head

-- one

local x = '1'

local y

    if y then

        x = y
    end

return x .. "\\?" -- not at its start: --@ include nothing
WHOLE

    is_deeply [run('--expand', "$dir/a.lua")], [$whole, 1], 'printed';

    my $short = folder('a.lua' => "--@ include b\n", 'lib/b.lua' => "-- b\n");

    is_deeply [run('--expand', "$short/a.lua")], ["-- b\n", 1],
              'a part alone: nothing before or behind it';
    is_deeply [run("$dir/$HEADER", "$dir/a.lua")],
              ["$dir/$HEADER: $dir/a.lua would be overwritten\n", ''],
              'a script is not overwritten';

    is_deeply [run("$dir/out/$HEADER", "$dir/a.lua")], ['', 1], 'embedded';
    is slurp("$dir/out/a.lua"), $whole, 'written next to the header';

    my $header = slurp("$dir/out/$HEADER");

    is macro($header, 'A'), $whole, 'in the header';
    is macro($header, 'A_SHA1'), sha1_hex($whole), 'with its SHA-1';
    is_deeply [sort map { s{.*/}{}r } glob "$dir/out/*"], ['a.lua', $HEADER],
              'and nothing else is left';
};


subtest 'errors name the file and the line' => sub {
    my %wrong = (
        'an unknown part'      => ["\n--@ include none\n", {},
            'DIR/a.lua:2: no part "none" to include in DIR/lib/none.lua'],
        'an empty part'        => ["--@ include b\n", { b => '' },
            'DIR/a.lua:1: no part "b" to include in DIR/lib/b.lua'],
        'a part twice'         => ["--@ include b\n\n--@ include b\n",
            { b => "-- b\n" }, 'DIR/a.lua:3: "b" is included twice'],
        'a part in a part'     => ["--@ include b\n",
            { b => "-- b\n--@ include c\n", c => "-- c\n" },
            'DIR/lib/b.lua:2: a part can not include another part'],
        'no name'              => ["--@ include\n", {},
            'DIR/a.lua:1: "--@ include" is not "--@ include NAME"'],
        'a path'               => ["--@ include ../b\n", {},
            'DIR/a.lua:1: "--@ include ../b" is not "--@ include NAME"'],
        'another word'         => ["  --@ require b\n", { b => "-- b\n" },
            'DIR/a.lua:1: "  --@ require b" is not "--@ include NAME"'],
        'a tab in a script'    => ["\t-- a\n", {},
            'DIR/a.lua: only printable ASCII without tabs, ended by a newline,'
            . ' can be embedded'],
        'half a line in a part' => ["--@ include b\n", { b => '-- b' },
            'DIR/lib/b.lua: only printable ASCII without tabs, ended by a'
            . ' newline, can be embedded'],
    );

    for my $what (sort keys %wrong) {
        my ($script, $part, $message) = @{ $wrong{$what} };
        my $dir = folder('a.lua' => $script,
                         map { ("lib/$_.lua" => $part->{$_}) } keys %$part);

        for (['--expand'], ["$dir/out/$HEADER"]) {
            my ($text, $ok) = run(@$_, "$dir/a.lua");
            my ($last) = ($text =~ s/\Q$dir\E/DIR/gr) =~ /(.*)\n\z/;

            is $last, $message, "$what: the message";
            ok !$ok, "$what: fails";
        }

        is_deeply [glob "$dir/out/*"], [], "$what: leaves no file";
    }

    my ($text, $ok) = run('--expand', 'lua/none.lua');

    is $text, "lua/none.lua: no such file\n", 'no script: the message';
    ok !$ok, 'no script: fails';

    ($text, $ok) = run();

    like $text, qr/^usage: $TOOL HEADER LUA\.\.\.$/m, 'no arguments: the usage';
    ok !$ok, 'no arguments: fails';
};


subtest 'the scripts of the module are put together' => sub {
    my $redis = RateLimit::Redis->start;
    my $header = slurp('build/lua/ngx_rl_lua.h');

    cmp_ok scalar @scripts, '>=', 5, 'scripts';

    for my $name (@scripts) {
        my ($whole) = run('--expand', "lua/$name.lua");
        my $sha1 = macro($header, uc($name) . '_SHA1');

        is slurp("build/lua/$name.lua"), $whole, "$name: as the tool prints it";
        is macro($header, uc $name), $whole, "$name: embedded";
        is $sha1, sha1_hex($whole), "$name: the embedded SHA-1";
        is $redis->cmd('SCRIPT', 'LOAD', $whole), $sha1, "$name: by Redis";
        unlike $whole, qr/--@/, "$name: nothing is left to include";

        my ($head) = $whole =~ /\A((?:--.*\n)+)/;

        like $head // '', qr/^-- KEYS.*^-- Reply: /ms,
             "$name: opens with KEYS and reply";
        like $head, qr/^-- ARGV/m, "$name: and ARGV" if $whole =~ /\bARGV\[/;
    }

    for my $part (glob 'lua/lib/*.lua') {
        my ($name) = $part =~ m{([^/]+)\.lua\z};

        like slurp($part), qr/\A-- $name: (?:.*\n)+?-- Gives (?:.*\n)+?-- Needs /,
             "$part: says what it gives and what it needs";
        ok scalar(grep { slurp("lua/$_.lua") =~ /^ *--\@ include $name$/m }
                       @scripts) >= 2, "$part: more than one script has it";
    }
};


done_testing;
