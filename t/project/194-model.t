# The model of combined calls, denials, leases and refunds has no fault in any of
# its states, and a planted one is found.

use strict;
use warnings;

use Test::More;

plan skip_all => 'no spin' if system('command -v spin > /dev/null') != 0;

my @bugs = do {
    open my $file, '<', 't/model/limits.pml' or die "t/model/limits.pml: $!\n";
    my %seen;

    grep { !$seen{$_}++ } map { /\b(BUG_[A-Z_]+)/g } <$file>;
};

sub model {
    my (@options) = @_;

    my $output = `tools/model.sh @options 2>&1`;

    return ($? >> 8, $output);
}

my ($code, $output) = model('-DREQUESTS=2');

is $code, 0, 'nothing is found' or diag $output;
like $output, qr/^model: [\d.e+]+ states, nothing found$/m, 'in all states';

($code, $output) = model('-DREQUESTS=2', '-DLEASE=2', '-DREFILLS=2');
is $code, 0, 'with larger leases and more refills' or diag $output;

cmp_ok scalar @bugs, '>=', 4, 'mistakes that can be planted';

for my $bug (@bugs) {
    ($code, $output) = model('-DREQUESTS=2', "-D$bug");

    is $code, 1, "$bug is found" or diag $output;
    like $output, qr/assertion violated/, 'by an assertion';
}

done_testing;
