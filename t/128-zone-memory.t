# What lives in shared memory: whose layout it has.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Copy qw(copy);
use File::Temp ();

use RateLimit::Util qw(slurp);


# The numbers of which the layout is made, as the compiler sees them, of the
# sources with one change.

sub layout {
    my ($dir, $flags, $file, $change) = @_;

    my $src = File::Temp->newdir;
    my @numbers;

    copy($_, "$src") or die "$_: $!\n" for glob 'src/*.[ch]';

    if ($file) {
        my $path = "$src/ngx_http_ratelimit_$file";
        my $text = slurp($path);

        for ($text) {
            $change->() or die "nothing to change in $file\n";
        }

        open my $out, '>', $path or die "$path: $!\n";
        print {$out} $text;
        close $out or die "$path: $!\n";
    }

    for my $source (qw(zone stats)) {
        my $asm = `cd $dir && \${CC:-cc} $flags -O0 -w -S -o - -I $src \\
                   $src/ngx_http_ratelimit_$source.c`;

        $? == 0 or die "the compiler failed\n";

        push @numbers, $asm =~ /^\w+_(?:layout|fields):\n((?:\s+\.long\s.*\n)+)/m
                       or die "no layout in $source.c\n";
    }

    return join '', @numbers;
}


my ($dir) = grep { -f "$_/objs/Makefile" } glob 'build/nginx-dev build/*-[0-9]*';

SKIP: {
    skip 'nothing was built here', 8 if !$dir;

    my $flags = `make -s -C $dir -f objs/Makefile --no-print-directory \\
                      --eval='flags: ; \@echo \$(CFLAGS) \$(ALL_INCS)' flags`;
    chomp $flags;
    $flags =~ s/-f(?:sanitize|no-sanitize)\S+//g;

    my $layout = layout($dir, $flags);

    like($layout, qr/(?:\s+\.long.*\n){100}/, 'the layout is made of all fields');
    is(layout($dir, $flags), $layout, 'the same sources, the same layout');

    for (['a field more', 'stats.h',
          sub { s/(ngx_atomic_t +refunds;)/$1 ngx_atomic_t more;/ }],
         ['two fields of a size, the other way round', 'stats.h',
          sub { s/(uint64_t +set);(.*?)(uint64_t +news);/$3;$2$1;/s }],
         ['a larger field', 'zone.h',
          sub { s/uint32_t( +gone;)/uint64_t$1/ }],
         ['one more of an enum that is counted', 'failure.h',
          sub { s/(\n +NGX_HTTP_RATELIMIT_FAILURES)/\n    ONE_MORE,$1/ }],
         ['a struct within', 'breaker.h',
          sub { s/uint32_t( +attempt;)/uint64_t$1/ }],
         ['the format', 'zone.c', sub { s/(_ZONE_FORMAT +)\d+/${1}1234567/ }])
    {
        my ($name, $file, $change) = @$_;

        isnt(layout($dir, $flags, $file, $change), $layout,
             "$name: another layout");
    }
}


done_testing;
