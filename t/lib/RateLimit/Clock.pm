package RateLimit::Clock;

# Clocks that are wrong, for the programs of a test: servers started through a
# clock see its time of day, and it can be set while they run.
#
#   my $clock = RateLimit::Clock->new;
#   my $redis = $clock->run(sub { RateLimit::Redis->start });
#
#   $clock->set(3600);          # its programs are an hour ahead of this machine
#   $clock->add(-60);           # a minute less
#   $clock->offset;             # seconds
#   $clock->time;               # what its programs see now, seconds
#
# Works by a small library (t/lib/clock.c), made here by the C compiler that CC
# names, or cc.  It and the files of the clocks are removed at the end.

use strict;
use warnings;

use File::Basename ();
use File::Path ();
use Time::HiRes ();

use RateLimit::Util qw(find_program temp_dir);

my ($dir, $owner, $clocks);


sub new {
    my ($class) = @_;

    _build() unless $dir;

    my $self = bless { file => "$dir/clock" . ++$clocks }, $class;

    $self->set(0);

    return $self;
}


# Runs the code; what it starts has this clock.

sub run {
    my ($self, $code) = @_;

    # AddressSanitizer wants to be loaded first, but can do without

    local $ENV{ASAN_OPTIONS} = join ',', 'verify_asan_link_order=0',
                               grep { length } $ENV{ASAN_OPTIONS} // '';
    local $ENV{LD_PRELOAD} = join ':', "$dir/clock.so",
                             grep { length } $ENV{LD_PRELOAD} // '';
    local $ENV{RATELIMIT_CLOCK} = $self->{file};

    return $code->();
}


# One write of eight bytes: a program sees the old time or the new one.

sub set {
    my ($self, $seconds) = @_;

    open my $out, -e $self->{file} ? '+<:raw' : '>:raw', $self->{file}
        or die "$self->{file}: $!\n";
    syswrite $out, pack('q', sprintf '%.0f', $seconds * 1e6);
    close $out;

    $self->{offset} = $seconds;

    return;
}


sub add {
    my ($self, $seconds) = @_;

    return $self->set($self->{offset} + $seconds);
}


sub offset { $_[0]{offset} }
sub time   { Time::HiRes::time() + $_[0]{offset} }


sub _build {
    $dir = temp_dir('clock');
    $owner = $$;

    # servers may run as another user
    chmod 0755, $dir;

    my $source = File::Basename::dirname(__FILE__) . '/../clock.c';
    my @cc = split ' ', $ENV{CC} || 'cc';

    find_program($cc[0]) or die "no C compiler: $cc[0]\n";

    system(@cc, '-O1', '-Wall', '-Wextra', '-Werror', '-fPIC', '-shared',
           '-o', "$dir/clock.so", $source) == 0
        or die "can't compile $source\n";
}


END {
    if ($dir && $owner == $$) {
        local ($?, $!);
        File::Path::remove_tree($dir);
    }
}


1;
