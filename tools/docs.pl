#!/usr/bin/perl

# Writes the docs in other forms, with pandoc:
#
#     tools/docs.pl DIR
#
#     DIR/index.html                    the README, all pages of docs/ and the
#                                       examples, on one page that needs no other
#     DIR/ngx_http_ratelimit_module.5   a man page: an introduction,
#                                       and docs/directives.md
#     DIR/ratelimitctl.1                a man page of docs/ratelimitctl.md
#
# The order of the pages is that in which the README links to them.

use strict;
use warnings;

my $NAME = 'ngx_http_ratelimit_module';
my $PAGES = qr{^(?:README|CONTRIBUTING|SECURITY|CHANGELOG)\.md$|^docs/\w+\.md$};

my ($dir) = @ARGV;

die "usage: tools/docs.pl DIR\n" if @ARGV != 1;


sub slurp {
    my ($file) = @_;

    open my $in, '<:raw', $file or die "docs: $file: $!\n";
    local $/;

    return <$in>;
}


sub spew {
    my ($file, $text) = @_;

    open my $out, '>:raw', "$file.new" or die "docs: $file: $!\n";
    print $out $text;
    close $out or die "docs: $file: $!\n";
    rename "$file.new", $file or die "docs: $file: $!\n";

    print "wrote $file\n";
}


# pandoc reads a file, so that it can't wait for us while we wait for it

sub pandoc {
    my ($text, @options) = @_;

    my $file = "$dir/.input";

    open my $out, '>:raw', $file or die "docs: $file: $!\n";
    print $out $text;
    close $out or die "docs: $file: $!\n";

    open my $in, '-|', 'pandoc', @options, $file or die "docs: pandoc: $!\n";
    my $result = do { local $/; <$in> };
    close $in or die "docs: pandoc failed\n";

    unlink $file;

    return $result;
}


sub escaped {
    my ($text) = @_;

    my %entity = ('&' => '&amp;', '<' => '&lt;', '>' => '&gt;', '"' => '&quot;');

    return $text =~ s/([&<>"])/$entity{$1}/gr;
}


# "docs/redis.md" and "../conf-examples/x.conf" => "conf-examples/x.conf"

sub path_of {
    my ($from, $link) = @_;

    my $path = ($from =~ m{^(.*/)} ? $1 : '') . $link;

    1 while $path =~ s{(?:^|(?<=/))(?!\.\.)[^/]+/\.\./}{};

    return $path =~ s{(?:^|(?<=/))\./}{}r;
}


# ---- what there is

sub links_of {
    my ($file) = @_;

    my $text = slurp($file) =~ s/^```.*?^```$//msgr;

    return map { path_of($file, $_) } $text =~ /\]\(([^)#\s]+)/g;
}


my %seen;
my @files = grep { /$PAGES/ && -f && !$seen{$_}++ }
            'README.md', links_of('README.md'), (sort glob 'docs/*.md'),
            'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md';

# those for authors at the end
@files = ((grep { !/^[A-QS-Z]|architecture/ } @files),
          (grep { /^[A-QS-Z]|architecture/ } @files));

my @examples = ((sort glob 'conf-examples/*.conf'),
                (grep { !/-test\./ } sort glob 'conf-examples/*/*.yml'));
my %example = map { $_ => s{^conf-examples/|\.conf$}{}gr =~ s{/}{-}gr } @examples;

my ($version) = slurp('src/core/ngx_rl_version.h')
                =~ /^#define\s+NGX_RL_RELEASE\s+"([^"]+)"/m
                or die "docs: no version\n";

# README.md => readme, docs/security.md => security, SECURITY.md => file-security
my %slug = map { $_ => (m{/|^README} ? '' : 'file-') . lc(s{.*/|\.md$}{}gr) } @files;


# ---- HTML

# Comments and prompts are set apart.

sub coloured {
    my ($language, $text) = @_;

    if ($language =~ /^(?:nginx|sh|yaml|python|ruby)$/) {
        $text =~ s{(?:^|(?<=\s))(\#\ .*)$}{<i>$1</i>}mg;

    } elsif ($language eq 'console') {
        $text =~ s{^\$\ (.*(?:\\\n.*)*)}{<b class="prompt">\$ </b><b>$1</b>}mg;

    } elsif ($language eq 'log') {
        $text =~ s{^(\[\w+\])}{<b>$1</b>}mg;
    }

    return $text;
}


# Where a link of this file leads to within the one page, if it does.

sub target_of {
    my ($file, $link) = @_;

    my ($to, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
    my $path = length $to ? path_of($file, $to) : $file;

    if (my $slug = $slug{$path}) {
        return defined $anchor ? "#$slug--$anchor" : "#$slug";
    }

    return "#example--$example{$path}" if $example{$path};
    return '#examples' if $path =~ m{^conf-examples/?$};

    return undef;
}


sub image_of {
    my ($file, $link) = @_;

    my $path = path_of($file, $link);

    my ($type) = $path =~ /\.(svg|png)$/;

    die "docs: $file: image $link is no SVG or PNG of ours\n"
        if !$type || !-f $path;

    require MIME::Base64;

    return 'data:image/' . ($type eq 'svg' ? 'svg+xml' : $type) . ';base64,'
           . MIME::Base64::encode_base64(slurp($path), '');
}


sub html_of {
    my ($file) = @_;

    my $slug = $slug{$file};
    my $html = pandoc(slurp($file), '-f', 'gfm', '-t', 'html5', '--wrap=none',
                      '--no-highlight', "--id-prefix=$slug--");

    # the address of the page is its title's

    $html =~ s{<h1 id="[^"]*">}{<h1>};

    $html =~ s{<pre class="([\w-]+)"><code>(.*?)</code></pre>}
              { qq(<pre class="$1"><code>) . coloured($1, $2) . '</code></pre>' }gse;

    # widths that come from the source's columns

    $html =~ s{<colgroup>.*?</colgroup>\n?}{}gs;
    $html =~ s{<table style="[^"]*">}{<table>}g;
    $html =~ s{<tr class="\w+">}{<tr>}g;

    # a table without a head is the one of a directive

    $html =~ s{<thead>\s*<tr>(?:\s*<th[^>]*></th>)+\s*</tr>\s*</thead>}{}g;
    $html =~ s{<table>(?=\s*<tbody>)}{<table class="directive">}g;
    $html =~ s{(<table.*?</table>)}{<div class="table">$1</div>}gs;

    $html =~ s{<img src="([^":]+)"}{ '<img src="' . image_of($file, $1) . '"' }ge;

    $html =~ s{<a href="([^"]*)"([^>]*)>(.*?)</a>}{
        my ($link, $rest, $text) = ($1, $2, $3);

        $link =~ s/^#\Q$slug\E--/#/;

        my $target = $link =~ m{^\w+:} ? $link : target_of($file, $link);

        defined $target ? qq(<a href="$target">$text</a>) : $text
    }gse;

    $html =~ s{<(h[2-4]) id="([^"]+)">(.*?)</\1>}
              {<$1 id="$2">$3 <a class="here" href="#$2" title="link">#</a></$1>}gs;

    return $html;
}


sub title_of {
    my ($file) = @_;

    my ($title) = slurp($file) =~ /^# +(.+)$/m or die "docs: $file: no title\n";

    return $file eq 'README.md' ? 'Overview' : escaped($title =~ s/`//gr);
}


sub write_html {
    my (@sections, @entries);

    for my $file (@files) {
        my $html = html_of($file);
        my $slug = $slug{$file};
        my @parts;

        while ($html =~ m{<h2 id="([^"]+)">(.*?) <a class="here"}g) {
            my ($id, $text) = ($1, $2 =~ s/<[^>]+>//gr);

            push @parts, qq(<li><a href="#$id">$text</a></li>\n)
                if $text ne 'Contents';
        }

        my $link = qq(<a href="#$slug">) . title_of($file) . '</a>';

        push @entries, @parts < 2 ? qq(<li class="plain">$link</li>\n)
            : "<li><details><summary>$link</summary>\n<ul>\n@parts</ul>"
              . "</details></li>\n";
        push @sections, qq(<section id="$slug">\n$html</section>\n);
    }

    my (@list, @texts);

    for my $file (@examples) {
        my $name = $example{$file};
        my $title = $file =~ s{^conf-examples/}{}r;

        push @list, qq(<li><a href="#example--$name">$title</a></li>\n);
        push @texts, qq(<h2 id="example--$name">$title )
                     . qq(<a class="here" href="#example--$name" title="link">#</a>)
                     . qq(</h2>\n<pre class="nginx"><code>)
                     . coloured('nginx', escaped(slurp($file))) . "</code></pre>\n";
    }

    push @entries, '<li><details><summary><a href="#examples">Examples</a>'
                   . "</summary>\n<ul>\n@list</ul></details></li>\n";
    push @sections, qq(<section id="examples">\n<h1>Examples</h1>\n<p>The files of )
                    . "<code>conf-examples/</code>. Each <code>.conf</code> is a "
                    . "whole configuration of nginx."
                    . "</p>\n@texts</section>\n";

    my $css = slurp('tools/docs.css');

    spew("$dir/index.html", <<"EOT");
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$NAME $version</title>
<style>
$css</style>
</head>
<body>
<header>
<a class="name" href="#readme">$NAME</a> <span>$version</span>
<label for="menu">Contents</label>
</header>
<input type="checkbox" id="menu" aria-label="show the contents">
<nav>
<ul>
@entries</ul>
</nav>
<main>
@sections</main>
<script>
document.querySelector('nav').addEventListener('click', function (event) {
    if (event.target.closest('a')) {
        document.getElementById('menu').checked = false;
    }
});
</script>
</body>
</html>
EOT
}


# ---- man pages

sub cells_of {
    my ($row) = @_;

    $row =~ s/^\|\s*|\s*\|\s*$//g;

    return map { s/^\s+|\s+$//gr } split /(?<!\\)\|/, $row, -1;
}


# Tables of the page, as a terminal of 80 columns can show them: that of a
# directive, lists of terms, and others whose columns are as wide as their text.

sub table_as_text {
    my ($table, $follows) = @_;

    my ($head, undef, @rows) = split /\n/, $table;
    my @head = cells_of($head);

    @rows = map { [cells_of($_)] } @rows;

    # the table of a directive

    if (!grep { length } @head) {
        my @lines;

        for (@rows) {
            my ($name, $value) = map { s/\\\|/|/gr } @$_;

            push @lines, length $name ? "\n\n**$name:**\n\n:   $value" : "\\\n    $value";
        }

        return join('', @lines) . "\n";
    }

    # terms and what they mean; with more columns each has its label, and so
    # has a table right after another

    if (@head <= 4) {
        my $label = $follows ? ucfirst("$head[0]: $head[1]\n\n") : '';

        return $label . join("\n", map {
            my ($term, @cells) = map { s/\\\|/|/gr } @$_;

            my $text = @cells == 1 ? $cells[0] : join '; ', map {
                length $cells[$_] && $cells[$_] !~ /^-+$/
                    ? "$head[$_ + 1]: $cells[$_]" : ()
            } 0 .. $#cells;

            "$term\n\n:   $text\n";
        } @rows) . "\n";
    }

    return $table;
}


sub for_man {
    my ($text) = @_;

    my @parts = split /(^```.*?^```\n)/ms, $text;

    for my $part (@parts) {
        next if $part =~ /^```/;

        $part =~ s{(^\|.*\|\ *\n^\|[-:|\ ]+\|\ *\n(?:^\|.*\|\ *\n)*)}
                  { my ($table, $before) = ($1, substr $part, 0, $-[0]);
                    table_as_text($table, $before =~ /\|\ *\n\n\z/) }gmxe;

        # a link to a directive is its name; others have the name of the page
        # in "SEE ALSO"

        $part =~ s{!\[[^\]]*\]\([^)]*\)}{}g;
        $part =~ s{\[(`?ratelimit(?:_\w+)?`?)\]\([^)]*\)}{ '**' . $1 =~ s/`//gr . '**' }gse;
        $part =~ s{\[([^\]]+)\]\((?:\w+:)[^)]*\)}{$1}gs;
        $part =~ s{\b([Ss]ee\s+)\[([^\]]+)\]\(([\w.-]+\.md)(?:\#[^)]*)?\)}
                  {$1*$2* (docs/$3)}gx;
        $part =~ s{\[([^\]]+)\]\([^)]*\)}{ my $of = $1; $of =~ /[`*]/ ? $of : "*$of*" }gse;
    }

    return join '', @parts;
}


# Groups are sections of a man page, what is in them its parts.

sub sections_for_man {
    my ($text) = @_;

    $text =~ s/^##(?=#* )/#/mg;
    $text =~ s/^## `(.*)`$/## $1/mg;
    $text =~ s/^# (.*)$/'# ' . uc $1/gme;

    return $text;
}


sub pages_but {
    my ($own) = @_;

    return map {
        my ($title) = slurp($_) =~ /^# +(.+)$/m;
        "$_\n\n:   $title\n";
    } grep { m{^docs/} && $_ ne $own } @files;
}


sub write_man {
    my ($name, $section, $header, $text) = @_;

    my $man = pandoc($text, '-f', 'gfm+definition_lists-smart', '-t', 'man', '-s',
                     '-M', "title=" . uc $name, '-M', "section=$section",
                     '-M', "footer=$NAME $version",
                     '-M', "header=$header");

    # code is bold: there is no other font on a terminal

    $man =~ s/\\f\[[VC][RBI]*\]/\\f[B]/g;

    # names are neither hyphenated nor spread; the values of a directive are
    # in one column

    $man =~ s/^(\.TH .*\n)/.ds AD l\n.nr HY 0\n$1.nh\n.ad l\n/m;
    $man =~ s/^\.hy\n//mg;
    $man =~ s/^\.PD 0\n\.P\n\.PD\n/.br\n/mg;
    $man =~ s{^\.TP\n(?=\\f\[B\](?:Syntax|Default|Context):)}{.TP 10\n}mg;
    $man =~ s{^(\.TP\ 10\n\\f\[B\]Default)}{.PD 0\n$1}mgx;
    $man =~ s{^(\.TP\ 10\n\\f\[B\]Context:.*\n(?:(?!\.).*\n)+)}{$1.PD\n}mgx;
    $man =~ s/^\.\\" Automatically.*\n(?:\.\\"\n)?//mg;

    spew("$dir/$name.$section", $man);
}


sub write_man_of_module {
    my $readme = slurp('README.md');
    my $reference = slurp('docs/directives.md');
    my ($intro) = $readme =~ /\A# [^\n]*\n+(.*?)(?=^(?:```|#|- |\||!\[))/ms;
    my ($example) = $readme =~ /^```nginx\n(.*?)^```$/ms;

    my ($head, $groups) = $reference =~ /\A# [^\n]*\n+(.*?)(^## .*)/ms;

    # its list of contents is no part of a man page

    $head =~ s/^\s*(?:[-*]|\|).*\n(?:\s+\S.*\n)*//mg;
    $groups =~ s/^## Contents\n.*?(?=^## )//ms;

    write_man($NAME, 5, 'nginx modules', join "\n",
        "# NAME\n", "$NAME - rate limits for nginx, in Redis\n",
        "# SYNOPSIS\n", "```\n$example```\n",
        "# DESCRIPTION\n", for_man("$intro\n$head"),
        for_man(sections_for_man($groups)),
        "# SEE ALSO\n",
        "**ratelimitctl**(1), **nginx**(8), **redis-server**(1), **redis-cli**(1)\n",
        "The pages that come with the sources:\n", pages_but('docs/directives.md'));
}


sub write_man_of_tool {
    my ($intro, $rest) = slurp('docs/ratelimitctl.md')
                         =~ /\A# [^\n]*\n+(.*?)(^## .*)/ms;
    my ($synopsis) = $rest =~ s/^## Synopsis\n(.*?)(?=^## )//ms ? $1 : '';

    $intro =~ s/^- .*\n//mg;

    write_man('ratelimitctl', 1, 'rate limits of nginx', join "\n",
        "# NAME\n", "ratelimitctl - look at rate limits of nginx and change them\n",
        "# SYNOPSIS\n", $synopsis,
        "# DESCRIPTION\n", for_man($intro),
        for_man(sections_for_man($rest)),
        "# SEE ALSO\n", "**$NAME**(5), **nginx**(8), **curl**(1)\n",
        "The pages that come with the sources:\n",
        pages_but('docs/ratelimitctl.md'));
}


mkdir $dir;
write_html();
write_man_of_module();
write_man_of_tool();
