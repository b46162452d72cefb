package RateLimit::Script;

# Calls of the scripts in lua/ on a real Redis, with clocks of the test's
# choice.
#
#   my $script = RateLimit::Script->new($redis);
#
#   my $ip   = $script->bucket(capacity => 10, rate => [1, 60]);
#   my $user = $script->window(capacity => 5, length => 60_000_000);
#   my $all  = $script->gcra(capacity => 5, rate => [7, 1]);
#
# A limit is a hash that take and refund read; change it, or copy it with
# changes: { %$ip, cost => 3 }.  Its parts: key (a new one unless given),
# capacity, cost (1), rate ([numerator, denominator] of tokens a second), step
# (us, 0), length (us), shadow (0), ttl (ms; as the module computes it).
#
#   my $reply = $script->take([$ip, $user],
#       at    => $us,           # Redis's TIME; its real one if missing
#       nginx => $us,           # nginx's time; as Redis's if missing
#       clock => 'nginx',       # whose counts; default redis
#       peek  => 1,             # change nothing
#       times => 5,             # so many requests; default 1
#       id    => 'x');          # a new one unless given
#   my $state = $script->one($ip, at => $us);      # its numbers as an array ref
#   my $n     = $script->refund([$ip, $user], id => 'x', times => 2);
#   my $left  = $script->short($ip, at => $us, times => 2);  # the short script
#   my $each  = $script->short([$ip, $other], at => $us);    # of several keys
#
# An error reply is a RateLimit::Redis::Error.
#
#   $script->hash_of($ip);      # the fields
#   $script->log_of($user);     # entries: [time, cost, id], oldest first
#   $script->bytes_of($ip, ...);     # DUMP of all of them, to compare; undef
#                                    # for a key that is not there
#   $script->pttl($ip);
#
# TIME is changed by a line before the script, on its first line, that puts a
# function between the script and redis.call; the rest is the file as it is.

use strict;
use warnings;

use POSIX ();
use Time::HiRes ();

use RateLimit::Util qw(slurp);

my $CLOCKED = 'local us, s = table.remove(ARGV), table.remove(ARGV); '
              . 'local real = redis; local redis = setmetatable({ '
              . 'call = function(name, ...) if name == "TIME" then '
              . 'return { s, us } end '
              . 'return real.call(name, ...) end }, { __index = real }); ';


sub new {
    my ($class, $redis) = @_;

    my $self = bless { redis => $redis, keys => 0, ids => 0 }, $class;

    for my $name (qw(take refund token_bucket gcra)) {
        my $text = slurp("lua/$name.lua") || die "no lua/$name.lua here\n";

        $self->{plain}{$name} = $redis->cmd('SCRIPT', 'LOAD', $text);
        $self->{clocked}{$name} = $redis->cmd('SCRIPT', 'LOAD',
                                              $CLOCKED . $text);
    }

    return $self;
}


sub new_key { return 'ratelimit:script:{' . ++$_[0]{keys} . '}' }


sub bucket {
    my ($self, %limit) = @_;

    return { kind => 'bucket', key => $self->new_key, capacity => 10,
             rate => [1, 1], %limit };
}


# Its capacity and cost are tokens here as elsewhere; calls have ticks instead.

sub gcra {
    my ($self, %limit) = @_;

    return { %{ $self->bucket(%limit) }, kind => 'gcra' };
}


sub window {
    my ($self, %limit) = @_;

    return { kind => 'window', key => $self->new_key, capacity => 10,
             length => 60_000_000, %limit };
}


# As the module computes it: the time to be full, or empty, and a second.

sub ttl_of {
    my ($self, $limit) = @_;

    return $limit->{ttl} if defined $limit->{ttl};

    my $us;

    if ($limit->{kind} eq 'window') {
        $us = $limit->{length};

    } else {
        my ($num, $den) = @{ $limit->{rate} };

        return 3_155_760_000_000 if $num == 0;

        $us = POSIX::ceil($limit->{capacity} * 1_000_000 * $den / $num)
              + ($limit->{step} // 0);
    }

    my $ms = int($us / 1000) + 1000;

    return $ms < 3_155_760_000_000 ? $ms : 3_155_760_000_000;
}


# Ticks of GCRA, sixteenths of a microsecond, that a token is worth; for the
# others, 1.

sub tick_of {
    my ($self, $limit) = @_;

    return 1 if $limit->{kind} ne 'gcra';

    my ($num, $den) = @{ $limit->{rate} };

    return POSIX::ceil(16_000_000 * $den / $num);
}


sub take {
    my ($self, $limits, %opt) = @_;

    my $nginx = $opt{nginx} // $opt{at} // int(Time::HiRes::time() * 1e6);

    my @args = ($opt{peek} ? 'peek' : 'take', $opt{clock} // 'redis', $nginx,
                $opt{id} // 'id-' . ++$self->{ids}, $opt{times} // 1);

    for my $limit (@$limits) {
        my $tick = $self->tick_of($limit);

        push @args, $limit->{kind}, $limit->{shadow} ? 'shadow' : 'enforced',
                    $limit->{capacity} * $tick, ($limit->{cost} // 1) * $tick;

        push @args, $limit->{kind} eq 'window'
                    ? ($limit->{length}, 0, 0)
                    : (@{ $limit->{rate} }, $limit->{step} // 0);

        push @args, $self->ttl_of($limit);
    }

    return $self->_call('take', $opt{at}, $limits, @args);
}


sub one {
    my ($self, $limit, %opt) = @_;

    my $reply = $self->take([$limit], %opt);

    return ref $reply ? $reply : [$reply];
}


sub short {
    my ($self, $limits, %opt) = @_;

    $limits = [$limits] if ref $limits ne 'ARRAY';

    my $limit = $limits->[0];
    my $tick = $self->tick_of($limit);
    my @args = ($limit->{capacity} * $tick, ($limit->{cost} // 1) * $tick);

    if ($limit->{kind} eq 'bucket') {
        splice @args, 1, 0, @{ $limit->{rate} };
        push @args, $self->ttl_of($limit);
    }

    push @args, $opt{times} if $opt{times};

    return $self->_call($limit->{kind} eq 'gcra' ? 'gcra' : 'token_bucket',
                        $opt{at}, $limits, @args);
}


sub refund {
    my ($self, $limits, %opt) = @_;

    my @args = $opt{id};

    push @args, $_->{kind}, $_->{capacity},
                ($_->{cost} // 1) * ($opt{times} // 1) * $self->tick_of($_)
        for @$limits;

    return $self->_call('refund', undef, $limits, @args);
}


sub _call {
    my ($self, $name, $at, $limits, @args) = @_;

    my @keys = map { $_->{key} } @$limits;

    if (!defined $at) {
        return $self->{redis}->try('EVALSHA', $self->{plain}{$name},
                                   scalar @keys, @keys, @args);
    }

    return $self->{redis}->try('EVALSHA', $self->{clocked}{$name},
                               scalar @keys, @keys, @args,
                               int($at / 1_000_000), $at % 1_000_000);
}


sub hash_of {
    my ($self, $limit) = @_;

    return { @{ $self->{redis}->cmd('HGETALL', $limit->{key}) } };
}


sub log_of {
    my ($self, $limit) = @_;

    my @all = @{ $self->{redis}->cmd('ZRANGE', $limit->{key}, 0, -1,
                                     'WITHSCORES') };
    my @log;

    while (my ($member, $score) = splice @all, 0, 2) {
        my ($total, $cost, $seen, $id) = split /:/, $member, 4;
        push @log, [0 + $score, 0 + $cost, $id];
    }

    return \@log;
}


sub bytes_of {
    my ($self, @limits) = @_;

    return [map { $self->{redis}->cmd('DUMP', $_->{key}) } @limits];
}


sub pttl {
    my ($self, $limit) = @_;

    return $self->{redis}->cmd('PTTL', $limit->{key});
}


1;
