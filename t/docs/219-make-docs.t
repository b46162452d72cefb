# "make docs": the man pages have every directive, every variable and every
# command; the HTML page has every page, needs nothing from elsewhere, and its
# links lead somewhere.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Temp ();

use RateLimit::Docs;
use RateLimit::Util qw(slurp);

plan skip_all => 'no pandoc here' if system 'command -v pandoc > /dev/null 2>&1';

my $dir = File::Temp->newdir('ratelimit-docs-XXXXXX', TMPDIR => 1);

is `tools/docs.pl $dir 2>&1`, "wrote $dir/index.html\n"
                              . "wrote $dir/ngx_http_ratelimit_module.5\n"
                              . "wrote $dir/ratelimitctl.1\n",
   'tools/docs.pl complains about nothing';


subtest 'one page of HTML' => sub {
    my $html = slurp("$dir/index.html");
    my (%id, @twice);

    for ($html =~ / id="([^"]*)"/g) {
        push @twice, $_ if $id{$_}++;
    }

    is_deeply \@twice, [], 'no id is there twice';

    my @links = $html =~ /<a [^>]*href="([^"]*)"/g;

    cmp_ok scalar @links, '>=', 200, 'links';
    is_deeply [grep { !/^#(.*)/ ? !/^https:|^mailto:/ : !$id{$1} } @links], [],
              'each leads to a part of the page, or to another site';
    is_deeply [$html =~ /(?:src|srcset)="(?!data:)([^"]*)"/g], [], 'no images elsewhere';
    unlike $html, qr/<link\b|<script [^>]*src|\@import|url\(/, 'no files either';

    for my $file (qw(README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md),
                  glob 'docs/*.md')
    {
        my ($slug) = lc($file) =~ m{(\w+)\.md$};

        $slug = "file-$slug" if $file !~ m{/|README};

        ok $id{$slug}, $file;
        ok scalar(grep { $_ eq "#$slug" } @links), "$file is in the contents";

        # what the page has as blocks is there as text

        my $page = read_page($file);
        my $blocks = @{ $page->{languages} };
        my ($section) = $html =~ /<section id="$slug">(.*?)<\/section>/s;

        is scalar(() = ($section // '') =~ /<pre/g), $blocks, "$file: blocks";
    }

    ok $id{"example--$_"}, "$_.conf"
        for map { m{(\w[\w-]*)\.conf$} } glob 'conf-examples/*.conf';
};


subtest 'the man page' => sub {
    my $file = "$dir/ngx_http_ratelimit_module.5";
    my $source = slurp($file);

    like $source, qr/^\.TH "?NGX_HTTP_RATELIMIT_MODULE"? "?5"? /m, 'its title';

    for my $name (sort keys %directive) {
        ok $source =~ /^\.SS \Q$name\E\n\.TP 10\n\\f\[B\]Syntax:/m, $name;
    }

    ok $source =~ /\Q$_\E\b/, $_ for @variables;
    is_deeply [$source =~ /^(.*(?:\]\((?!\d\))|\.md\#).*)$/mg], [],
              'no links of Markdown';

    SKIP: {
        skip 'no man here', 3 if system 'command -v man > /dev/null 2>&1';

        local $ENV{MANWIDTH} = 80;
        local $ENV{LC_ALL} = 'C.UTF-8';

        my $text = `man -P cat -l $file 2>/dev/null | col -bx`;

        skip 'man shows nothing here', 3 if $text !~ /\S/;

        is `man --warnings -P cat -l $file 2>&1 >/dev/null`, '', 'no warning';
        ok $text =~ /^NAME\n +ngx_http_ratelimit_module - \S/m, 'its name';
        ok $text =~ /^ +Syntax: +ratelimit_rate rate;\n +Default: +none\n/m,
           'an entry';
    }
};


subtest 'the man page of the tool' => sub {
    my $file = "$dir/ratelimitctl.1";
    my $source = slurp($file);

    like $source, qr/^\.TH "?RATELIMITCTL"? "?1"? /m, 'its title';
    is_deeply [$source =~ /^(.*(?:\]\((?!\d\))|\.md\#).*)$/mg], [],
              'no links of Markdown';

    my $page = read_page('docs/ratelimitctl.md');
    my @names = map { code_in($_->[0]) } map { table_of($page->{section}{$_}) }
                'Commands that look', 'Commands that change', 'Options';

    cmp_ok scalar @names, '>=', 40, 'commands and options';

    for my $heading (map { uc } grep { !/^ratelimitctl$|^Synopsis$/ }
                     keys %{ $page->{section} })
    {
        ok $source =~ /^\.SH $heading$/m, $heading;
    }

    SKIP: {
        skip 'no man here', 2 if system 'command -v man > /dev/null 2>&1';

        local $ENV{MANWIDTH} = 200;
        local $ENV{LC_ALL} = 'C.UTF-8';

        my $text = `man -P cat -l $file 2>/dev/null | col -bx`;

        skip 'man shows nothing here', 2 if $text !~ /\S/;

        is `man --warnings -P cat -l $file 2>&1 >/dev/null`, '', 'no warning';
        is_deeply [grep { index($text, $_) < 0 } @names], [], 'all of its tables';
    }
};


done_testing();
