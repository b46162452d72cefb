# All pages of the docs: nginx loads their configurations, their links lead
# somewhere, what they name exists, and what exists they name.  What a page says
# about behaviour is tested by the file with its name.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Docs;
use RateLimit::Util qw(slurp);

my @pages = map { read_page($_) }
            qw(README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md),
            glob 'docs/*.md';
my %page = map { $_->{file} => $_ } @pages;
my @examples = glob 'conf-examples/*.conf';

# it names what older versions had
my @today = grep { $_->{file} ne 'CHANGELOG.md' } @pages;


# "docs/../conf-examples/x.conf" => "conf-examples/x.conf"

sub path_of {
    my ($page, $link) = @_;

    my $path = ($page->{file} =~ m{^(.*/)} ? $1 : '') . $link;

    1 while $path =~ s{(?:^|(?<=/))(?!\.\.)[^/]+/\.\./}{};

    return $path =~ s{(?:^|(?<=/))\./}{}r;
}


# The text without code, on one line.

sub words_of {
    my ($page) = @_;

    return $page->{prose} =~ s/`[^`\n]*`//gr =~ s/\s+/ /gr;
}


# The test file of a page.

sub test_of {
    my ($page) = @_;

    my ($name) = lc($page->{file}) =~ m{([^/]+)\.md$};

    return glob "t/docs/*-$name.t";
}


ok length $_->{text}, "$_->{file} is there" for @pages;


subtest 'nginx loads each configuration' => sub {
    for my $page (@pages) {
        for my $text (@{ $page->{block}{nginx} || [] }) {
            load_ok($text, "$page->{file}: " . ($text =~ /(\S[^\n]*)/)[0]);
        }
    }
};


# What a test does with a block is in the test of the page; this finds blocks
# that no test looks at.

subtest 'each block is run by a test' => sub {
    my %here = map { $_ => 1 } qw(nginx sh);

    # pictures, and what a person writes
    $here{text} = 1;

    for my $page (@pages) {
        my %language = map { $_ => 1 } @{ $page->{languages} };
        my $test = join '', map { slurp($_) } test_of($page);

        for my $language (sort keys %language) {
            next if $here{$language};

            my $name = quotemeta $language;
            my $used = $test =~ /\$block\{\s*'?$name'?\s*\}
                                 |block_of\([^;]*['"]$name['"]
                                 |```$name\b/x
                       || $language eq 'log' && $test =~ /\@log_lines\b/
                       || $language eq 'console' && $test =~ /\bsteps_of\(/;

            ok length $language && $used, "$page->{file}: blocks of "
                                          . ($language || 'no language');
        }

        # tools/check-style.pl compares docs/architecture.md with the sources

        is scalar(() = test_of($page)), 1, "$page->{file} has a test"
            if $page->{file} =~ m{^docs/(?!architecture)|README};
    }
};


subtest 'sh reads its blocks, and the commands in them exist' => sub {
    my $makefile = slurp('Makefile');

    for my $page (@today) {
        for my $text (@{ $page->{block}{sh} || [] }) {
            my ($name) = $text =~ /(\S[^\n]*)/;

            open my $sh, '|-', 'sh -n 2>&1' or die "sh: $!\n";
            print $sh $text;
            ok close $sh, "$page->{file}: sh reads: $name";
        }

        my $shown = join "\n", map { @{ $page->{block}{$_} || [] } } qw(sh console);
        my @code = code_in($page->{prose});

        my %target = map { $_ => 1 }
                     $shown =~ /(?:^|&& |sudo )(?:\$ )?make ([a-z]+)\b/mg,
                     map { /^make(?: [A-Z]+=\S+)* ([a-z]+)\b/ } @code;
        my %name = map { $_ => 1 }
                   map { / ([A-Z][A-Z_]+)=/g } grep { /\bmake / } @code,
                                               split /\n/, $shown;
        my %tool = map { $_ => 1 }
                   "$shown\n@code" =~ m{(?<![\w/.])((?:tools|bench)/[\w.-]+)}g;

        like $makefile, qr/^\Q$_\E:/m, "$page->{file}: make $_"
            for sort keys %target;
        like $makefile, qr/^\Q$_\E\ +\?=
                           |\$\(foreach\ name,[^,]*\b\Q$_\E\b
                           |\$\(if\ \$\(\Q$_\E\)/mx, "$page->{file}: $_="
            for sort keys %name;
        ok -e, "$page->{file}: $_" for sort keys %tool;
    }
};


subtest 'links lead somewhere' => sub {
    my %linked;

    for my $page (@pages) {
        for (@{ $page->{links} }) {
            my ($link, $line) = @$_;

            if ($link =~ m{^\w+:}) {
                like $link, qr{^(?:https://|mailto:)[\w.\@-]+},
                     "$page->{file}:$line: $link";
                next;
            }

            my ($file, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
            my $path = length $file ? path_of($page, $file) : $page->{file};

            $linked{ $page->{file} }{$path} = 1;

            ok -e $path && (!defined $anchor
                            || $page{$path} && $page{$path}{anchors}{$anchor}),
               "$page->{file}:$line: $link";
        }
    }

    # what a reader of the README gets to

    my %reached = %{ $linked{'README.md'} };

    for my $page (grep { $_->{file} ne 'README.md' } @pages) {
        ok $reached{ $page->{file} }, "the README links to $page->{file}";
    }

    for my $file (@examples) {
        ok scalar(grep { $linked{$_}{$file} } keys %linked), "a page links to $file";
    }
};


subtest 'the README is short, long pages have a table of contents' => sub {
    my $lines = $page{'README.md'}{text} =~ tr/\n//;

    cmp_ok $lines, '<=', 250, 'lines of the README';

    for my $page (grep { $_->{file} =~ m{^docs/} } @pages) {
        like $page->{text}, qr/\A# \S[^\n]*\n\n[A-Z`]/,
             "$page->{file}: a title, and what the page is for";

        next if ($page->{text} =~ tr/\n//) <= 150;

        my ($head) = $page->{prose} =~ /\A(.*?)(?=^## (?!Contents))/ms;
        my @to = $head =~ /^\s*[-*|].*?\]\(#([\w-]+)\)/mg;

        cmp_ok scalar @to, '>=', 3, "$page->{file}: a table of contents";

        # each section of the second level

        my %to = map { $_ => 1 } $head =~ /\]\(#([\w-]+)\)/g;
        my @sections = grep { $_ ne 'Contents' } $page->{prose} =~ /^## +(.+)$/mg;

        is_deeply [grep { !$to{ anchor_of($_) } } @sections], [],
                  "$page->{file}: all of its sections";
    }
};


subtest 'words that have a better one are not used' => sub {
    my @retired = (
        qr/\b(?:limit|that) speaks?\b/i, qr/\bbut for\b/i, qr/\bas such\b/i, qr/\bin vain\b/i,
        qr/\bfor all that\b/i, qr/\bis away\b/i, qr/\bsomebody else's\b/i,
        qr/\bis none by\b/i, qr/\btells? of\b/i, qr/\bhappens? upon\b/i,
        qr/[.,;:] who (?:waits|was|is|has|asks)\b/i, qr/\bgoes back\b/i,
        qr/\b(?:is|are) gone\b/i, qr/\bthe same share\b/i,
    );

    for my $page (@today) {
        my $text = words_of($page);
        my @found;

        for my $word (@retired) {
            push @found, $1 while $text =~ /(.{0,30}$word.{0,20})/g;
        }

        is_deeply \@found, [], $page->{file};

        my @long = grep { /\S/ && length > 120 && !/^\||https?:|^\[/ }
                   split /\n/, $page->{prose};

        is_deeply \@long, [], "$page->{file}: lines are wrapped";
        unlike $page->{text}, qr/[ \t]$/m, "$page->{file}: no blanks at the end";
    }
};


# ---- the reference and the sources

subtest 'each directive has an entry, each entry is a directive' => sub {
    my $page = $page{'docs/directives.md'} or die "no docs/directives.md\n";
    my @entries = grep { /^ratelimit(?:_\w+)?$/ } keys %{ $page->{section} };

    cmp_ok scalar keys %directive, '>=', 50, 'directives of the module';
    is_deeply [sort @entries], [sort keys %directive], 'the same names';

    for my $name (sort grep { $directive{$_} } @entries) {
        my $entry = entry_of($name, $page);

        ok $entry, "$name: a table" or next;
        like $_, qr/^\Q$name\E(?: .+)?;$/, "$name: $_" for @{ $entry->{syntax} };
        ok length($entry->{default} // ''), "$name: default";
        is $entry->{context}, $directive{$name}{context}, "$name: context";
        like $entry->{text}, qr/\A\s*[A-Z`]/, "$name: text";

        # what the command table takes

        is !!(grep { /^\w+;$/ } @{ $entry->{syntax} }),
           $directive{$name}{arguments} eq 'NOARGS', "$name: arguments";
    }
};


subtest 'no name that does not exist' => sub {
    my %known = map { $_ => 1 } keys %directive, map { s/^\$//r } @variables;
    my $per_limit = join '|', map { s/^\$(\w+)NAME$/$1/r } @per_limit;
    my %metric = map { $_ => 1 } @metrics;

    for my $file ((map { $_->{file} } @today), @examples) {
        my $text = slurp($file);
        my %seen = map { $_ => 1 } $text =~ /(?<![\w.\/-])(ratelimit_\w+)/g;

        # "$ratelimit_*" and "ratelimit_redis_ssl_*" stand for several

        is_deeply [grep { !$known{$_} && !/_$/ && !/^(?:$per_limit)\w/ }
                   sort keys %seen], [],
                  "$file: directives and variables";

        %seen = map { $_ => 1 } $text =~ /\b(nginx_ratelimit_\w+)/g;

        is_deeply [grep { !$metric{$_} && !$metric{ s/_(?:bucket|sum|count)$//r }
                          && !/_$/ } sort keys %seen], [], "$file: metrics";
    }
};


# A name at the beginning of a row of some table.

sub rows_of {
    my ($regex, @files) = @_;

    my %row = map { $_ => 1 } grep { /^$regex$/ } map { code_in($_->[0]) }
              map { table_of($_->{text}) } @page{@files};

    return sort keys %row;
}


subtest 'each variable and each metric has a row' => sub {
    cmp_ok scalar @variables, '>=', 10, 'variables of the module';
    is_deeply [rows_of(qr/\$ratelimit_\w+/, 'docs/directives.md')],
              [sort @variables, @per_limit], 'variables';

    cmp_ok scalar @metrics, '>=', 25, 'metrics of the module';
    is_deeply [rows_of(qr/nginx_ratelimit_\w+/, 'docs/monitoring.md')],
              [sort @metrics], 'metrics';
};


done_testing();
