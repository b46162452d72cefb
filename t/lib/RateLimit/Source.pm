package RateLimit::Source;

# The C sources, for tests that compare them with the docs or compile them:
#
#     my $text = source('conf.c');            # src/conf/ngx_rl_conf.c
#     my $path = source_path('conf.c');
#     my @names = sources();
#     my $all = all_sources();                # of all files, one text
#
# A file is named by what stands behind its prefix, in whichever folder it is;
# "module.c" is the one of the command table.

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(source source_path sources all_sources);

my %path = map { m{.*/ngx_(?:rl|http_ratelimit)_(\w+\.[ch])\z} ? ($1 => $_) : () }
           glob('src/*.[ch]'), glob('src/*/*.[ch]');
my %text;


sub source_path {
    my ($name) = @_;

    return $path{$name} // die "there is no source $name\n";
}


sub source {
    my ($name) = @_;

    return $text{$name} //= do {
        open my $in, '<', source_path($name) or die "$name: $!\n";
        local $/;
        <$in>;
    };
}


sub sources {
    return sort keys %path;
}


sub all_sources {
    return join '', map { source($_) } sources();
}


1;
