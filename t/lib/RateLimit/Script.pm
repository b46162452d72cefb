package RateLimit::Script;

# Calls of the scripts in lua/ on a real Redis, with clocks of the test's
# choice.
#
#   my $script = RateLimit::Script->new($redis);
#
#   my $ip   = $script->bucket(capacity => 10, rate => [1, 60]);
#   my $user = $script->window(capacity => 5, length => 60_000_000);
#   my $all  = $script->gcra(capacity => 5, rate => [7, 1]);
#   my $plan = $script->fixed(capacity => 5, length => 60_000_000);
#   my $rough = $script->counter(capacity => 5, length => 60_000_000);
#
# A limit is a hash that take and refund read; change it, or copy it with
# changes: { %$ip, cost => 3 }.  Its parts: key (a new one unless given),
# capacity, cost (1), rate ([numerator, denominator] of tokens a second), step
# (us, 0), length (us; of fixed, 0: months), shift (of fixed: s, 0), shadow (0),
# varies (of gcra, 0), ttl (ms; as the module computes it).
#
#   my $reply = $script->take([$ip, $user],
#       at    => $us,           # Redis's TIME; its real one if missing
#       nginx => $us,           # nginx's time; as Redis's if missing
#       clock => 'nginx',       # whose counts; default redis
#       peek  => 1,             # change nothing
#       times => 5,             # so many requests; default 1
#       id    => 'x');          # a new one unless given
#   my $state = $script->one($ip, at => $us);      # its numbers as an array ref
#   my $all   = $script->take_many([[$ip, $user], [$user]],  # requests
#       times => [1, 5],        # how many times each; default 1
#       at => $us, ...);        # as above
#   my $n     = $script->refund([$ip, $user], id => 'x', times => 2);
#   my $left  = $script->short($ip, at => $us, times => 2);  # the short script
#   my $each  = $script->short([$ip, $other], at => $us,     # of several keys
#                              times => [2, 5],              # for each of them
#                              nginx => $us);                # none if missing
#
# An error reply is a RateLimit::Redis::Error.  What take_many says is a list of
# arrays, one a request: its part of the reply.  Limits of the same key are one
# limit, and have to be the same.  What refund gives to several limits has their
# own id each, where they have one: { %$user, id => 'y' }.
#
#   $script->flat($requests, %opt);  # the reply to take_many as it is
#
#   $script->fields_of($ip);    # of a bucket
#   $script->log_of($user);     # entries: [time, cost, id], oldest first
#   $script->bytes_of($ip, ...);     # DUMP of all of them, to compare; undef
#                                    # for a key that is not there
#   $script->pttl($ip);
#   $script->life_of($ip);      # of a bucket: its fields, now and pttl, of one
#                               # moment, all times in us; undef without a key
#   $script->age($ip, $ms);     # so much time goes by for the bucket, by all
#                               # clocks; it is gone if that is its time to live
#   $script->expires_in($ip, $ms, at => $us);  # sets the bucket's time to live,
#                               # and the field that says so
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

my $LIFE = <<'EOC';
    local time = redis.call('TIME')

    return { string.format('%.0f', time[1] * 1000000 + time[2]),
             redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]) }
EOC

my $AGE = <<'EOC';
    local left = redis.call('PTTL', KEYS[1])
    local ms = tonumber(ARGV[1])

    if left >= 0 and left <= ms then
        return redis.call('DEL', KEYS[1])
    end

    for field, us in pairs({ lastRefill = 1000, seen = 1000, expires = 1 }) do
        local was = redis.call('HGET', KEYS[1], field)

        if was then
            redis.call('HSET', KEYS[1], field,
                       string.format('%.0f', was - ms * us))
        end
    end

    if left >= 0 then
        redis.call('PEXPIRE', KEYS[1], left - ms)
    end

    return 0
EOC


sub new {
    my ($class, $redis) = @_;

    my $self = bless { redis => $redis, keys => 0, ids => 0 }, $class;

    for my $name (qw(take refund token_bucket gcra fixed_window
                     sliding_window_counter)) {
        my $file = "build/lua/$name.lua";
        my $text = slurp($file) || die "no $file here\n";

        $self->{plain}{$name} = $redis->cmd('SCRIPT', 'LOAD', $text);
        $self->{clocked}{$name} = $redis->cmd('SCRIPT', 'LOAD',
                                              $CLOCKED . $text);
    }

    $self->{plain}{life} = $redis->cmd('SCRIPT', 'LOAD', $LIFE);
    $self->{plain}{age} = $redis->cmd('SCRIPT', 'LOAD', $AGE);

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


sub fixed {
    my ($self, %limit) = @_;

    return { kind => 'fixed', key => $self->new_key, capacity => 10,
             length => 60_000_000, shift => 0, %limit };
}


sub counter {
    my ($self, %limit) = @_;

    return { %{ $self->fixed(%limit) }, kind => 'counter' };
}


# As the module computes it: the time to be full, or empty, and a second.

sub ttl_of {
    my ($self, $limit) = @_;

    return $limit->{ttl} if defined $limit->{ttl};

    my $us;

    if ($limit->{kind} eq 'window') {
        $us = $limit->{length};

    } elsif ($limit->{kind} =~ /^(?:gcra|fixed|counter)\z/) {
        return 0;

    } else {
        my ($num, $den) = @{ $limit->{rate} };

        return 31_536_000_000 if $num == 0;

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

    return $self->_call('take', $opt{at}, $limits,
                        $self->_opening($opt{times} // 1, %opt),
                        map { $self->_limit($_) } @$limits);
}


# What all calls of take.lua begin with.

sub _opening {
    my ($self, $times, %opt) = @_;

    my $nginx = $opt{nginx} // $opt{at} // int(Time::HiRes::time() * 1e6);

    return ($opt{peek} ? 'peek' : 'take', $opt{clock} // 'redis', $nginx,
            $opt{id} // 'id-' . ++$self->{ids}, $times);
}


# What they say of a limit.

sub _limit {
    my ($self, $limit) = @_;

    my $tick = $self->tick_of($limit);

    return ($limit->{kind}, $limit->{shadow} ? 'shadow' : 'enforced',
            $limit->{capacity} * $tick, ($limit->{cost} // 1) * $tick,
            $limit->{kind} eq 'window' ? ($limit->{length}, 0, 0)
            : $limit->{kind} =~ /fixed|counter/ ? (@$limit{qw(length shift)}, 0)
            : (@{ $limit->{rate} }, $limit->{kind} eq 'gcra'
                                    ? $limit->{varies} // 0
                                    : $limit->{step} // 0),
            $self->ttl_of($limit));
}


sub take_many {
    my ($self, $requests, %opt) = @_;

    my $reply = $self->flat($requests, %opt);
    my @rest = ref $reply eq 'ARRAY' ? @$reply : $reply;
    my @each;

    for my $i (0 .. $#$requests) {
        my $n = ($opt{times} ? $opt{times}[$i] // 1 : 1) > 1 ? 1 : 0;

        $n += $_->{kind} =~ /^(?:window|fixed)\z/ ? 3
              : $_->{kind} eq 'counter' ? 4
              : $_->{kind} eq 'bucket' && $_->{step} ? 2 : 1
            for @{ $requests->[$i] };

        die "reply too short: @rest\n" if @rest < $n;
        push @each, [splice @rest, 0, $n];
    }

    die "more than the reply: @rest\n" if @rest;

    return \@each;
}


sub flat {
    my ($self, $requests, %opt) = @_;

    my (@limits, @requests, %number, %said);

    for my $i (0 .. $#$requests) {
        my @own = @{ $requests->[$i] };

        for my $limit (@own) {
            my $key = $limit->{key};
            my $text = join ' ', $self->_limit($limit);

            push @limits, $limit if !$number{$key};
            $number{$key} ||= @limits;

            die "$key has two limits\n" if ($said{$key} //= $text) ne $text;
        }

        push @requests, $opt{times} ? $opt{times}[$i] // 1 : 1, scalar @own,
                        map { $number{ $_->{key} } } @own;
    }

    return $self->_call('take', $opt{at}, \@limits,
                        $self->_opening($requests[0], %opt),
                        (map { $self->_limit($_) } @limits), @requests);
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

    splice @args, 1, 0, @{ $limit->{rate} } if $limit->{kind} eq 'bucket';
    push @args, $limit->{kind} eq 'gcra'  ? $limit->{varies} // 0
                : $limit->{kind} =~ /fixed|counter/
                                          ? @$limit{qw(length shift)}
                                          : $self->ttl_of($limit);

    if ($limit->{kind} eq 'bucket' && ($opt{times} || $opt{nginx})) {
        push @args, $opt{nginx} // 0;
    }

    if ($opt{times}) {
        push @args, ref $opt{times} ? @{ $opt{times} }
                                    : ($opt{times}) x @$limits;
    }

    my %script = (bucket => 'token_bucket', gcra => 'gcra',
                  fixed => 'fixed_window',
                  counter => 'sliding_window_counter');

    return $self->_call($script{ $limit->{kind} }, $opt{at}, $limits, @args);
}


sub refund {
    my ($self, $limits, %opt) = @_;

    my @args = map { ($_->{kind}, $_->{capacity}, ($_->{cost} // 1)
                      * ($opt{times} // 1) * $self->tick_of($_),
                      $_->{id} // $opt{id} // '') } @$limits;

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


sub fields_of {
    my ($self, $limit) = @_;

    return $self->{redis}->bucket($limit->{key});
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


sub life_of {
    my ($self, $limit) = @_;

    my ($now, $pttl, $fields) = @{ $self->_call('life', undef, [$limit]) };

    return undef if $pttl == -2;

    my %life = (@$fields, now => $now, pttl => $pttl);

    $life{$_} *= 1000 for grep { exists $life{$_} } qw(pttl expires);

    return \%life;
}


sub age {
    my ($self, $limit, $ms) = @_;

    my $reply = $self->_call('age', undef, [$limit], $ms);

    die "$reply\n" if ref $reply;

    return;
}


sub expires_in {
    my ($self, $limit, $ms, %opt) = @_;

    $self->{redis}->bucket_set($limit->{key},
                               expires => int($opt{at} / 1000) + $ms);
    $self->{redis}->cmd('PEXPIRE', $limit->{key}, $ms);

    return;
}


1;
