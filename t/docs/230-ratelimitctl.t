# docs/ratelimitctl.md: the commands, options, words of the configuration file and
# exit codes are those of the tool, and the session comes out as it is shown.
# What the tool does is tested by t/project/190-ratelimitctl.t.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Cwd ();
use File::Path ();

use RateLimit::Docs 'docs/ratelimitctl.md';
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Transcript;
use RateLimit::Util qw(dead_port slurp temp_dir write_file);

my $tool = slurp('tools/ratelimitctl');
my $home = temp_dir('ctl');

delete @ENV{qw(RATELIMIT_API NO_COLOR)};
$ENV{HOME} = $home;
$ENV{PATH} = Cwd::getcwd() . "/tools:$ENV{PATH}";


# The names in the first column of a section's table.

sub words {
    my ($heading, $regex) = @_;

    my %word = map { $_ => 1 } map { /$regex/g } map { code_in($_->[0]) }
               table_of($section{$heading});

    return sort keys %word;
}


subtest 'commands and options are those of the tool' => sub {
    my ($table) = $tool =~ /^my %COMMAND = \((.*?)^\);/ms;
    my @commands = $table =~ /^    (\w+)\s+=>/mg;

    is_deeply [sort(words('Commands that look', qr/^(\w+)/),
                    words('Commands that change', qr/^(\w+)/))],
              [sort @commands], 'commands';

    my ($parse) = $tool =~ /^sub parse_options \{(.*?)^\}/ms;
    my ($own) = $parse =~ /qw\((.*?)\)/s;
    my ($common) = $parse =~ /GetOptions\(\\%opt, \@specific,(.*?)\);/s;
    my %option = map { s/=.*//r => 1 }
                 map { split /\|/, s/=.*//r } split(' ', $own), $common =~ /'([^']+)'/g;

    is_deeply [words('Options', qr/(?:^|\s)--?([\w-]+)/)], [sort keys %option], 'options';

    # each command is in the summary, and so is each option but two for tests
    # and completions

    my $help = `ratelimitctl help`;

    like $help, qr/^  (?:\w+ +)?\Q$_\E |also: $_\)/m, "help: $_"
        for grep { $_ ne 'help' } @commands;
    like $help, qr/(?<![\w-])--?\Q$_\E\b/, "help: $_"
        for grep { !/^(?:names|interval|count)$/ } keys %option;
};


subtest 'exit codes' => sub {
    my ($list) = $tool =~ /^use constant \{(.*?)^\};/ms;

    is_deeply [map { $_->[0] } grep { $_->[0] =~ /^\d/ } table_of($section{'Exit status'})],
              [$list =~ /=> (\d)/g], 'all of them';
};


subtest 'the configuration file' => sub {
    my $text = block_of('Machines', 'text');

    # nobody listens there

    my $nobody = '127.0.0.1:' . dead_port();

    write_file("$home/.ratelimitctl",
               $text =~ s{://\S+?/}{://$nobody/}gr =~ s{(?<=cacert ).*}{/dev/null}r, 0600);

    my $found = `ratelimitctl --json machines 2>/dev/null`;

    like $found, qr/"name" : "$_"/, "machine $_" for qw(a b);
    unlike `ratelimitctl machines 2>&1`, qr/not understood/, 'each line is understood';

    my ($read) = $tool =~ /^sub read_conf \{(.*?)^\}/ms;
    my %shown = map { $_ => 1 } $text =~ /^(\w+)/mg;

    ok $read =~ /\b\Q$_\E\b/, "the tool reads $_" for keys %shown;
    unlink "$home/.ratelimitctl";
};


subtest 'machines' => sub {
    my ($default) = $tool =~ /^my \$DEFAULT = '(.*)';/m;

    like $section{Machines}, qr/^5\. `\Q$default\E`\.$/m, 'the default';
    like block_of('Set up'), qr/listen 127\.0\.0\.1:8082;\n+ *location \/ratelimit\//,
         'which is that of the configuration';
};


subtest 'the session' => sub {
    my $redis = RateLimit::Redis->start;
    my $api = http_of(block_of('Set up')) =~ s/%%PORT%%/%%PORT2%%/r;

    my $nginx = RateLimit::Nginx->start(conf => <<"END");
$patient
ratelimit_shards ${\ $redis->addr };
ratelimit_limit client key=\$http_x_api_key capacity=100 rate=10r/s;

server {
    listen 127.0.0.1:%%PORT%%;
    location / { ratelimit client; empty_gif; }
}

$api
END

    local $ENV{RATELIMIT_API} = '127.0.0.1:' . $nginx->port(2);

    RateLimit::Transcript::check($_->{command}, $_) for steps_of();
    $nginx->finish;
};


File::Path::remove_tree($home);

done_testing();
