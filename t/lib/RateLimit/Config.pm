package RateLimit::Config;

# What "nginx -t" says of a configuration, for tests with a line a case.
#
#   use RateLimit::Config;              # exports both
#
#   accepted($name, $http, $location);          # a test: it loads, without any
#                                       # complaint
#   refused($name, $http, $location, @texts);   # a test: it does not, and the one
#                                       # complaint holds all these texts or
#                                       # regexes; no password is told
#
# Texts for the http block, and for a location "/t" of a server in it; undef: no
# server.  Passwords in them are $SECRET.

use strict;
use warnings;

use Exporter 'import';
use Test::More ();

use RateLimit::Nginx ();

our @EXPORT = qw(accepted refused $SECRET);

our $SECRET = 'Pa55-w0rd';


sub _try {
    my ($http, $location) = @_;

    my @server = defined $location ? (server => "location /t { $location }")
                                   : ();

    return RateLimit::Nginx->test_config(conf => $http, @server);
}


sub accepted {
    my ($name, $http, $location) = @_;

    my ($code, $output) = _try($http, $location);

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    Test::More::ok($code == 0
                   && $output !~ /\[(?:warn|error|alert|crit|emerg)\]/, $name)
        or Test::More::diag($output);
}


sub refused {
    my ($name, $http, $location, @texts) = @_;

    my ($code, $output) = _try($http, $location);
    my ($line) = $output =~ /^(nginx: \[emerg\].*)$/m;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    Test::More::subtest($name => sub {
        Test::More::is($code, 1, 'nginx -t fails');

        for my $text (@texts) {
            Test::More::like($line // $output,
                             ref $text ? $text : qr/\Q$text\E/,
                             ref $text ? 'complaint' : "says: $text");
        }

        Test::More::unlike($output, qr/\Q$SECRET\E/, 'tells no secret');
        Test::More::unlike($output,
                           qr/\[(?:alert|crit)\]|Sanitizer|runtime error/,
                           'nothing worse');
    });
}


1;
