package Bench::Cases;

# What is measured: the cases, and the nginx configuration that they make.
#
#   my @cases = Bench::Cases::all($keys);      # ours, limit_req, no limiter
#   push @cases, Bench::Cases::contestant($name, $file);
#
# A case is a hash:
#   id         name on the command line, and of its location
#   title      in the table
#   family     none, limit_req, exact, ..., contest
#   kind       what limit_req it is compared with: hot, keys, denied, three
#              (three limits, hot) or three-keys
#   workers    of the nginx that serves it
#   transport  unix, tcp or none
#   store      name of its redis-server, or undef
#   expect     the status that its answers must have: 200 or 429
#   before     seconds of load before each round that are not counted
#   after      seconds of CPU after the load that are still its own
#   server     which nginx serves it: those with the same name share one
#   conf, http, main   configuration inside its location, of http, on top
#   redis      more of redis.conf
#   commands   what its redis-server is told first, each an array
#   goal       true if a target needs it
#
#   Bench::Cases::base_of($case, @cases);      # the limit_req that it is
#                                              # compared with, or undef
#   Bench::Cases::nginx_options(\@cases, \%redis);  # for RateLimit::Nginx
#
# As a rule all cases with as many workers live in one nginx, each in a location
# of its own, with "empty_gif" as the cheapest content that comes after all limiters.
# ("return" would end a request before any of them has run.)  A case has its own
# redis-server, which it shares with the same case over another transport
# or with other workers: what one case leaves behind, keys that expire, tokens
# that are given back, is not on the bill of the next one.

use strict;
use warnings;

use RateLimit::Util qw(slurp);


# Nothing is ever denied here: a hot key has a million at once and a hundred
# thousand a second, the most that "gcra" takes, and one of many a thousandth
# of that rate.  The buckets of many keys need longer to fill than the benchmark
# runs, so that they stay in Redis from round to round.

my %rate = (
    hot  => { capacity => 1_000_000, rate => '100000r/s' },
    keys => { capacity => 100_000, rate => '100r/s' },
    slow => { capacity => 100_000, rate => '5000r/d' },
);

my %key = (hot => 'hot', keys => '$arg_k', slow => '$arg_k');

sub all {
    my ($keys) = @_;

    my @cases;
    my $many = commas($keys) . ' keys';

    my $add = sub {
        my ($family, $kind, %case) = @_;

        $case{family} = $family;
        $case{kind} = $kind;
        $case{id} //= $kind eq 'none' ? $family : "$family-$kind";
        $case{title} .= {
            hot => ', hot key', keys => ", $many", denied => '',
            three => ', hot key', 'three-keys' => ", $many", none => '',
        }->{$kind};
        $case{workers} //= 1;
        $case{expect} //= 200;
        $case{before} //= 0;
        $case{after} //= 0;
        $case{server} //= $case{workers};
        $case{http} //= '';
        $case{conf} //= '';

        $case{transport} = $case{conf} =~ /%%SHARD%%/ ? 'unix' : 'none';
        $case{store} = $case{id} if $case{transport} ne 'none';

        push @cases, \%case;
    };

    # the same for all, and what everything is compared with

    $add->('none', 'none', title => 'no limiter', goal => 1);

    for my $kind (qw(hot keys)) {
        $add->('limit_req', $kind, title => 'limit_req', goal => 1,
               http => limit_req_zone($kind, $key{$kind}, $rate{$kind}{rate}),
               conf => limit_req($kind));
    }

    $add->('limit_req', 'denied', title => 'limit_req, all denied', goal => 1,
           expect => 429,
           http => limit_req_zone('denied', 'hot', '1r/m'),
           conf => 'limit_req zone=denied;');

    for my $kind (qw(hot keys)) {
        my @keys = $kind eq 'hot' ? ('a', 'b', 'c')
                                  : ('$arg_k', '$binary_remote_addr', 'c');
        my $three = $kind eq 'hot' ? 'three' : 'three-keys';

        $add->('limit_req', $three, title => 'limit_req, three limits',
               http => limit_req_zone("$three-0", $keys[0], $rate{$kind}{rate})
                       . limit_req_zone("$three-1", $keys[1], $rate{hot}{rate})
                       . limit_req_zone("$three-2", $keys[2], $rate{hot}{rate}),
               conf => limit_req("$three-0", $rate{$kind})
                       . limit_req("$three-1", $rate{hot})
                       . limit_req("$three-2", $rate{hot}));
    }

    # ours

    for my $kind (qw(hot keys)) {
        $add->('exact', $kind, title => 'exact', goal => 1,
               conf => shard() . limit($kind));
    }

    # a quota: a bucket that takes longer than an hour to become full

    $add->('slow', 'keys', title => 'exact, 5000r/d', goal => 1,
           conf => shard() . limit('slow'));

    $add->('denied', 'denied', id => 'denied', title => 'all denied',
           goal => 1, expect => 429, conf => shard() . denied());
    $add->('denied', 'denied', id => 'denied-plain', goal => 1, expect => 429,
           title => 'all denied, no headers',
           conf => shard() . denied() . "ratelimit_headers off;\n");

    # Its keys are told when to go each ten seconds, if they are in use: rounds
    # that are further apart would measure nothing else.

    for my $kind (qw(hot keys)) {
        $add->('gcra', $kind, title => 'gcra', goal => $kind eq 'keys',
               before => $kind eq 'keys' ? 2 : 0,
               conf => shard() . limit($kind)
                       . "ratelimit_algorithm gcra;\n");
    }

    # What a lease has left over goes back to Redis after its time.  With many
    # keys each has to be used several times in that time for a lease to be of
    # any use, and to have been used before.  So there it is longer, each round
    # begins with a load that is not counted, and what is given back in a round
    # is from that.  The leases that a round leaves behind are on no other
    # case's bill.

    $add->('lease', 'hot', title => 'lease', goal => 1, after => 1.3,
           conf => shard() . limit('hot') . "ratelimit_lease 1%;\n");
    $add->('lease', 'keys', title => 'lease', goal => 1, before => 6,
           server => 'lease-keys',
           conf => shard() . limit('keys') . "ratelimit_lease 1% ttl=5s;\n");

    for my $kind (qw(hot keys)) {
        $add->('local', $kind, title => 'local', goal => 1,
               conf => limit($kind));
    }

    # compare these with the two above

    for my $kind (qw(hot keys)) {
        $add->('top', $kind, title => 'local, top keys',
               conf => limit($kind) . "ratelimit_top 100;\n");
    }

    # the limit has an override, of another key

    for my $kind (qw(hot keys)) {
        $add->('override', $kind, title => 'exact, an override',
               server => "override-$kind",
               http => "ratelimit_overrides on;\n"
                       . named("override-$kind", $key{$kind}, $rate{$kind}),
               commands => [['HSET', "ratelimit:{override-$kind}:overrides",
                             'somebody', 'ban', '', 1]],
               conf => shard() . "ratelimit override-$kind;\n");
    }

    for my $kind (qw(hot keys)) {
        $add->('window', $kind, title => 'window log',
               conf => shard() . window($kind));
    }

    for my $kind (qw(hot keys)) {
        my @keys = $kind eq 'hot' ? ('a', 'b', 'c')
                                  : ('$arg_k', '$remote_addr', 'c');

        $add->('hierarchy', $kind eq 'hot' ? 'three' : 'three-keys',
               id => "hierarchy-$kind", title => 'three limits',
               http => named("user-$kind", $keys[0], $rate{$kind})
                       . named("address-$kind", $keys[1], $rate{hot})
                       . named("all-$kind", $keys[2], $rate{hot}),
               conf => shard()
                       . "ratelimit user-$kind address-$kind all-$kind;\n");
    }

    # the main ones once more

    my %by_id = map { $_->{id} => $_ } @cases;

    @cases = map { $_->{family} eq 'exact' ? ($_, over_tcp($_)) : $_ } @cases;

    for my $id (qw(none limit_req-hot limit_req-keys exact-hot exact-keys
                   lease-hot local-hot))
    {
        push @cases, { %{ $by_id{$id} }, id => "$id-2w", workers => 2,
                       server => 2, goal => 0 };
    }

    return @cases;
}


sub over_tcp {
    my ($case) = @_;

    return { %$case, id => "$case->{id}-tcp", transport => 'tcp', goal => 0,
             conf => $case->{conf} =~ s/%%SHARD%%/%%SHARD_TCP%%/r };
}


sub limit_req_zone {
    my ($name, $key, $rate) = @_;

    return "limit_req_zone $key zone=$name:32m rate=$rate;\n";
}


sub limit_req {
    my ($zone, $rate) = @_;

    my $burst = ($rate // $rate{$zone})->{capacity};

    return "limit_req zone=$zone burst=$burst nodelay;\n";
}


sub shard { "ratelimit_shards %%SHARD%%;\n" }


sub limit {
    my ($kind) = @_;

    return "ratelimit_key $key{$kind};\n"
           . "ratelimit_capacity $rate{$kind}{capacity};\n"
           . "ratelimit_rate $rate{$kind}{rate};\n";
}


sub denied {
    return "ratelimit_key hot;\n"
           . "ratelimit_capacity 1;\n"
           . "ratelimit_rate 1r/m;\n";
}


sub window {
    my ($kind) = @_;

    return "ratelimit_algorithm sliding_window_log;\n"
           . "ratelimit_key $key{$kind};\n"
           . "ratelimit_capacity 1000000;\n"
           . 'ratelimit_window ' . ($kind eq 'hot' ? '1s' : '60s') . ";\n";
}


sub named {
    my ($name, $key, $rate) = @_;

    return "ratelimit_limit $name key=$key capacity=$rate->{capacity}"
           . " rate=$rate->{rate};\n";
}


sub base_of {
    my ($case, @cases) = @_;

    return undef if $case->{family} eq 'limit_req';

    my ($base) = grep {
        $_->{family} eq 'limit_req' && $_->{kind} eq $case->{kind}
        && $_->{workers} == $case->{workers}
    } @cases;

    return $base;
}


# A snippet of the user's own, see bench.pl.

sub contestant {
    my ($name, $file) = @_;

    die "a contestant's name is made of letters, digits, \"_\" and \"-\": "
        . "\"$name\"\n" if $name !~ /^[\w-]+$/;
    die "$file: $!\n" unless -r $file;

    my $stem = $file =~ s/\.conf$//r;
    my $conf = slurp($file);
    my $http = slurp("$stem.http.conf");
    my $texts = "$conf\n$http";
    my ($kind) = $texts =~ /^\#\s*kind:\s*
                            (hot|keys|denied|three|three-keys)\s*$/mx;
    my %redis;

    $kind //= $texts =~ /\$arg_k\b/ ? 'keys' : 'hot';

    for (split /\n/, slurp("$stem.redis.conf")) {
        push @{ $redis{$1} }, $2 if /^\s*([^\s#]\S*)\s+(.*\S)/;
    }

    return {
        id        => $name,
        title     => $name,
        family    => 'contest',
        kind      => $kind,
        workers   => 1,
        transport => $texts =~ /%%REDIS_PORT%%/ ? 'tcp'
                     : $texts =~ /%%REDIS_SOCKET%%/ ? 'unix' : 'none',
        store     => $texts =~ /%%REDIS_/ ? $name : undef,
        expect    => $kind eq 'denied' ? 429 : 200,
        server    => 1,
        before    => 0,
        after     => 0,
        conf      => $conf,
        http      => $http,
        main      => slurp("$stem.main.conf"),
        redis     => \%redis,
    };
}


# Rejections are logged by neither limiter, errors of Redis are.  Redis may be
# slow where all share two CPUs: a call that was given up would not be counted.

sub nginx_options {
    my ($cases, $redis) = @_;

    my ($workers) = map { $_->{workers} } @$cases;
    my $reuseport = $workers > 1 ? ' reuseport' : '';
    my (%seen, $http, $locations);
    my $main = '';

    for my $case (@$cases) {
        my $store = defined $case->{store} ? $redis->{ $case->{store} } : undef;

        for my $text ($case->{main} // '') {
            $main .= fill($text, $store) unless $seen{main}{$text}++;
        }

        for my $text ($case->{http}) {
            $http .= fill($text, $store) unless $seen{http}{$text}++;
        }

        my $conf = fill($case->{conf}, $store);
        $conf =~ s/^/            /mg;

        $locations .= <<"EOC";
        location = /$case->{id} {
$conf
            empty_gif;
        }

EOC
    }

    return (
        workers => $workers,
        log     => 'warn',
        main    => $main,
        conf    => <<"EOC",
    access_log off;
    keepalive_requests 1000000000;

    limit_req_status 429;
    limit_req_log_level info;
    ratelimit_log_level info;

    ratelimit_zone 128m;
    ratelimit_redis_timeout 1s;
    ratelimit_redis_connect_timeout 1s;

    @{[ $http // '' ]}

    server {
        listen 127.0.0.1:%%PORT%%$reuseport;
        server_name localhost;

        location = /metrics {
            ratelimit_metrics;
        }

@{[ $locations // '' ]}
    }
EOC
    );
}


sub fill {
    my ($text, $redis) = @_;

    return $text unless $redis;

    my %value = (
        SHARD        => 'unix:' . $redis->socket,
        SHARD_TCP    => $redis->addr,
        REDIS_SOCKET => $redis->socket,
        REDIS_HOST   => '127.0.0.1',
        REDIS_PORT   => $redis->port,
    );

    $text =~ s/%%(\w+)%%/$value{$1} \/\/ "%%$1%%"/ge;

    return $text;
}


sub commas {
    my ($n) = @_;

    1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;

    return $n;
}


1;
