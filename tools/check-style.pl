#!/usr/bin/perl

# Checks the C sources, the scripts and the build description against the
# rules of this project that no compiler knows:
#
#     tools/check-style.pl [FILE...]
#
# Without arguments: all of src/, t/unit/, lua/ and console/, and what concerns
# them together (layers, unit tests, the list of scripts in config).  Prints
# FILE:LINE: what is wrong, and ends with 1 if there was anything.

use strict;
use warnings;

my $PREFIX = 'ngx_rl_';
my $MODULE = 'ngx_http_ratelimit_module';
my $COLUMNS = 80;

my $found = 0;


sub complain {
    my ($file, $line, $text) = @_;

    print "$file:$line: $text\n";
    $found++;
}


sub lines_of {
    my ($file) = @_;

    open my $in, '<:raw', $file or die "$file: $!\n";
    my $text = do { local $/; <$in> };

    if ($text !~ /\n\z/) {
        complain($file, ($text =~ tr/\n//) + 1, 'no newline at the end');
    }

    return split /\n/, $text;
}


# What any text must keep to.

sub check_text {
    my ($file, @lines) = @_;

    my $n = 0;

    for (@lines) {
        $n++;

        complain($file, $n, "more than $COLUMNS columns") if length > $COLUMNS;
        complain($file, $n, 'tab') if /\t/;
        complain($file, $n, 'carriage return') if /\r/;
        complain($file, $n, 'blanks at the end of the line') if /[ ]\z/;
        complain($file, $n, "\"$1\" left") if /\b(TODO|FIXME|XXX)\b/;
    }

    if (@lines && $lines[-1] eq '') {
        complain($file, $n, 'blank line at the end of the file');
    }
}


# The lines with comments blanked and the insides of strings replaced, so that
# what is left is code.

sub code_of {
    my ($file, @lines) = @_;

    my $text = join "\n", @lines;

    my $keep_lines = sub {
        my ($part) = @_;
        $part =~ s/[^\n]/ /g;
        return $part;
    };

    $text =~ s{
        (/\*.*?\*/)                         # comment
      | (//[^\n]*)                          # comment of another language
      | "((?:[^"\\\n]|\\.)*)"               # string
      | '((?:[^'\\\n]|\\.)*)'               # character
    }{
          defined $1 ? $keep_lines->($1)
        : defined $2 ? '//' . ' ' x (length($2) - 2)
        : defined $3 ? '"' . 's' x length($3) . '"'
        :              "'" . 'c' x length($4) . "'"
    }gesx;

    my @code = split /\n/, $text, -1;

    s/[ ]+\z// for @code;

    return @code;
}


# Does the definition or prototype that opens at this line of code have a body?

sub has_body {
    my ($code, $i) = @_;

    my $depth = 0;

    for my $j ($i .. $#$code) {
        for my $c (split //, $code->[$j]) {
            $depth++ if $c eq '(';
            $depth-- if $c eq ')';

            return 0 if $depth == 0 && $c =~ /[;=,]/;
            return 1 if $depth == 0 && $c eq '{';
        }
    }

    return 0;
}


sub check_c {
    my ($file, @lines) = @_;

    my @code = code_of($file, @lines);
    my $own = $file =~ m{^src/};

    for my $i (0 .. $#code) {
        my $n = $i + 1;

        for ($code[$i]) {
            complain($file, $n, 'a // comment') if m{//};
            complain($file, $n, 'write "for ( ;; )"')
                if /\bfor\s*\(\s*;\s*;\s*\)/ && !/\bfor \( ;; \)/
                   || /\bwhile\s*\(\s*1\s*\)/;
            complain($file, $n, "a blank between \"$1\" and \"(\"")
                if /\b(if|for|while|switch|return)\(/;
            complain($file, $n, 'a blank between ")" and "{"') if /\)\{/;
            complain($file, $n, '"else" stands on the line of the brace')
                if /^\s*else\b/;
            complain($file, $n, 'a brace after "else"')
                if /\belse\s*\z/ && !/^#/;
            complain($file, $n, 'a blank line before "else"')
                if /^\s*\}\s*else\b/ && $i && $lines[$i - 1] !~ /^(#.*)?\z/;
        }

        check_function($file, $i, \@lines, \@code, $own)
            if $code[$i] =~ /^(?!__attribute__)[A-Za-z_]\w*\(/;

        check_head($file, $i, \@code)
            if $code[$i] =~ /^(?!\#|typedef\b)[A-Za-z_][\w\s\*]*[\s\*]\w+\(/;

        check_gap($file, $i, \@lines) if $code[$i] eq '}';

        check_names($file, $i, \@code) if $own;
    }
}


# A definition with its type on the same line.

sub check_head {
    my ($file, $i, $code) = @_;

    if (has_body($code, $i)) {
        complain($file, $i + 1, 'the return type stands on its own line');
    }
}


# A function is followed by two blank lines.

sub check_gap {
    my ($file, $i, $lines) = @_;

    my $j = $i + 1;

    $j++ while $j <= $#$lines && $lines->[$j] eq '';

    my $blank = $j - $i - 1;

    return if $j > $#$lines;
    return if $lines->[$j] =~ /^#/ && $blank >= 1;

    if ($blank != 2) {
        complain($file, $i + 1, "two blank lines after a function, not $blank");
    }
}


# A definition: NAME(...) at the left margin, its type on the line before.

sub check_function {
    my ($file, $i, $lines, $code, $own) = @_;

    return if !has_body($code, $i);

    my ($name) = $code->[$i] =~ /^(\w+)/;

    if ($own && index($name, $PREFIX) != 0) {
        complain($file, $i + 1, "$name() lacks the prefix $PREFIX");
    }

    # the head: type, above it perhaps attributes and a comment

    my $j = $i - 1;

    if ($j < 0 || $code->[$j] !~ /^[A-Za-z_][\w\s\*]*\z/) {
        complain($file, $i + 1, "the type of $name() on the line before it");
        return;
    }

    $j-- if $j > 0 && $code->[$j - 1] =~ /^__attribute__/;

    if ($j > 0 && $lines->[$j - 1] =~ m{\*/\z}) {
        $j-- while $j > 0 && $lines->[$j - 1] !~ m{^/\*};
        $j--;

    } elsif ($j > 1 && $lines->[$j - 1] eq '' && $lines->[$j - 2] =~ m{\*/\z}) {
        $j -= 1;
        $j-- while $j > 0 && $lines->[$j - 1] !~ m{^/\*};
        $j--;
    }

    if ($j > 1 && $lines->[$j - 1] !~ /^#/
        && !($lines->[$j - 1] eq ''
             && ($lines->[$j - 2] eq '' || $lines->[$j - 2] =~ /^#/)))
    {
        complain($file, $j + 1, "two blank lines before $name()");
    }

    check_variables($file, $i, $code);
}


# The variables at the top of a function: shortest type first, the names in
# one column.

sub check_variables {
    my ($file, $i, $code) = @_;

    $i++ while $code->[$i] !~ /^\{/;
    $i++;

    my ($column, $length) = (0, 0);

    for ( ; $i <= $#$code; $i++) {
        next if $code->[$i] =~ /^(?:#.*)?\z/ && $column == 0;

        my ($type, $gap, $star, $name) = $code->[$i] =~
            /^[ ]{4}((?:(?:static|const|volatile|struct|unsigned|signed|long|
              short|union|enum)[ ])*[A-Za-z_]\w*(?:[ ]const)?)([ ]+)(\(?\**)
              (\w+)[\w\[\]\(\)\s,\*\+\-"{]*(?:;|=|\z)/x
            or last;

        last if $type =~ /^(return|goto|case|if|for|while|do|switch)\b/;
        last if $type =~ /^__/;

        my $at = 4 + length($type) + length($gap) + length($star);

        if ($column == 0) {
            $column = $at;

        } elsif ($at != $column) {
            complain($file, $i + 1, "\"$name\" is not in the column of the "
                                    . 'variables above it');
        }

        if (length($type) < $length) {
            complain($file, $i + 1, "\"$type\" is shorter than the type above");
        }

        if (length($gap) < 2 && $code->[$i] !~ /=/) {
            complain($file, $i + 1, "two blanks between \"$type\" and "
                                    . "\"$star$name\"");
        }

        $length = length $type;
    }
}


# Names at file scope: modules share one name space with nginx.

sub check_names {
    my ($file, $i, $code) = @_;

    my $n = $i + 1;

    for ($code->[$i]) {
        if (/^#\s*define\s+(\w+)/) {
            complain($file, $n, "macro $1 lacks the prefix $PREFIX")
                if $1 !~ /^_?\Q$PREFIX\E/i;

        } elsif (/^(?!typedef\b)\w[\w\s\*]*[\s\*](\w+)
                  (?:\[.*?\])*\s*(?:=.*|;)\z/x)
        {
            # the name that each filter of nginx gives the next one
            complain($file, $n, "$1 lacks the prefix $PREFIX")
                if $1 !~ /^(?:\Q$PREFIX\E|ngx_http_next_header_filter\z
                              |$MODULE\z)/x;

        } elsif (/^\}\s*(\w+);/ || /^typedef\b.*?(\w+);\z/) {
            complain($file, $n, "type $1 lacks the prefix $PREFIX")
                if index($1, $PREFIX) != 0;
        }
    }
}


# tools/layers: "FOLDER/NAME" => what may be included from it

sub layers_of {
    my %layer;

    for my $line (lines_of('tools/layers')) {
        $line =~ s/#.*//;

        my ($folder, $below, $names) = $line =~ /^(\w+)\s*\(([\w\s]*)\)(.*)/
            or next;
        my %may = map { $_ => 1 } split ' ', $below;
        my @before;

        for my $name (split ' ', $names) {
            my $file = "$folder/$name";

            $layer{$file} = {
                folders => \%may,
                files => { map { $_ => 1 } @before, $file },
                pure => scalar $folder =~ /^(pure|script)\z/,
            };

            push @before, $file;
        }
    }

    return \%layer;
}


sub check_layers {
    my ($layer, $file, @lines) = @_;

    return if $file eq "src/$MODULE.c";

    my ($name) = $file =~ m{^src/(\w+/\Q$PREFIX\E\w+)\.[ch]\z};
    my $own = $layer->{($name // '') =~ s/\Q$PREFIX\E//r};

    if (!$own) {
        complain($file, 1, 'is not in tools/layers');
        return;
    }

    my $n = 0;

    for (@lines) {
        $n++;

        my ($header) = /^#\s*include\s*[<"](.*)[>"]/ or next;

        if ($header =~ m{^(\w+)/\Q$PREFIX\E(\w+)\.h\z}) {
            my $other = "$1/$2";

            if (!$layer->{$other}) {
                complain($file, $n, "$other is not in tools/layers");

            } elsif (!$own->{folders}{$1} && !$own->{files}{$other}) {
                complain($file, $n, "may not include $header: tools/layers");
            }

        } elsif ($own->{pure} && $header =~ /^ngx_(?!rl_lua)|nginx/) {
            complain($file, $n, "includes $header of nginx");
        }
    }
}


# tools/layers names what is there

sub check_names_of_layers {
    my ($layer) = @_;

    for my $file (sort keys %$layer) {
        my $path = $file =~ s{/}{/$PREFIX}r;

        complain('tools/layers', 1, "names $file, which is not there")
            if !-f "src/$path.h" && !-f "src/$path.c";
    }
}


# what does without nginx has a unit test of the same name

sub check_units {
    my (@files) = @_;

    for my $file (@files) {
        my ($folder, $name) =
            $file =~ m{^src/(pure|script)/\Q$PREFIX\E(\w+)\.h\z} or next;

        complain($file, 1, "has no unit test t/unit/$folder/$name.c")
            if !-f "t/unit/$folder/$name.c";
    }
}


# docs/architecture.md has a line for each file, in the section of its folder

sub check_architecture {
    my ($layer) = @_;

    my $page = 'docs/architecture.md';
    my (%listed, $folder);

    for (lines_of($page)) {
        $folder = $1 if /^###? (\w+)/;
        $listed{"$folder/$1"} = 1 if /^\| `(\w+)` \|/;
    }

    for my $file (sort keys %$layer) {
        complain($page, 1, "has no line for $file") if !$listed{$file};
    }

    for my $file (sort keys %listed) {
        my ($in) = $file =~ m{^(\w+)/};

        complain($page, 1, "has a line for $file, which is not there")
            if !$layer->{$file} && grep { m{^$in/} } keys %$layer;
    }
}


# config lists each script and each file of the console by name

sub check_config {
    my (@files) = @_;

    my $text = join "\n", lines_of('config');
    my %listed = map { $_ => 1 }
                 $text =~ m{\$ngx_addon_dir/((?:lua|console)/\S+?\.\w+)}g;

    for my $file (@files) {
        complain('config', 1, "does not list $file") if !$listed{$file};
    }

    for my $file (sort keys %listed) {
        complain('config', 1, "lists $file, which is not there") if !-f $file;
    }
}


# The fields of a struct, those of nested ones with their path: name => type.

sub fields_of {
    my ($body, $path) = @_;

    my %field;

    $body =~ s/\b(?:volatile|const)\b//g;

    while ($body =~ s/\b(?:struct|union)\s*(\{(?:[^{}]|(?1))*\})\s*(\w+)\s*;//) {
        my ($inner, $name) = ($1, $2);

        %field = (%field, fields_of(substr($inner, 1, -1), "$path$name."));
    }

    while ($body =~ /(\w+)\s+([\w\s*,\[\]+]+);/g) {
        my ($type, $names) = ($1, $2);

        for (split /,/, $names) {
            my ($pointer, $name) = /^\s*(\**)\s*(\w+)/ or next;
            $field{"$path$name"} = $pointer ? '' : $type;
        }
    }

    return %field;
}


# Each struct that lives in shared memory lists all of its fields for the
# layout of the zone, and so do the structs that are in it.

sub check_layout {
    my (@files) = @_;

    my (%struct, %listed, %where);

    for my $file (@files) {
        my $text = join "\n", code_of($file, lines_of($file));

        $struct{$2} = $1
            while $text =~ /^typedef\ (?:struct|union)\ (\{.*?^\})
                            \ \Q$PREFIX\E(\w+)_t;/gmsx;
        $struct{$1} = $2
            while $text =~ /^struct\ \Q$PREFIX\E(\w+)_s\ (\{.*?^\});/gmsx;

        while ($text =~ /\b\Q$PREFIX\Ezone_field\((\w+),\s*([\w.]+)\)/g) {
            next if $2 eq 'field';
            $listed{$1}{$2} = 1;
            $where{$1} = $file;
        }
    }

    for my $name (sort keys %listed) {
        my %field = fields_of(substr($struct{$name} // '{}', 1, -1), '');

        for my $field (sort keys %field) {
            complain($where{$name}, 1, "the layout lacks $field of $name")
                if !$listed{$name}{$field};

            my ($type) = $field{$field} =~ /^\Q$PREFIX\E(\w+)_t\z/ or next;

            complain($where{$name}, 1, "the layout lacks $type, in $name")
                if $struct{$type} && !$listed{$type};
        }
    }

    complain('tools/check-style.pl', 1, 'finds no layout') if !%listed;
}


my @files = @ARGV;

if (!@files) {
    my @sources = (glob('src/*.[ch]'), glob('src/*/*.[ch]'));
    my @scripts = (glob('lua/*.lua'), glob('lua/lib/*.lua'));
    my $layer = layers_of();

    check_layers($layer, $_, lines_of($_)) for @sources;
    check_names_of_layers($layer);
    check_architecture($layer);
    check_config(@scripts, glob('console/*'));
    check_layout(@sources);
    check_units(@sources);

    @files = (@sources, @scripts, glob('console/*'), glob('t/unit/*.[ch]'),
              glob('t/unit/*/*.[ch]'));
}

for my $file (@files) {
    my @lines = lines_of($file);

    check_text($file, @lines);
    check_c($file, @lines) if $file =~ /\.[ch]\z/;
}

exit($found ? 1 : 0);
