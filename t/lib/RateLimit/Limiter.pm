package RateLimit::Limiter;

# An nginx whose limits are in Redis, for tests that count: it is patient, and
# closed where Redis did not answer, so that a slow machine can't turn a request
# that nobody decided about into one that passed.  Its answers say who decided.
#
#   use RateLimit::Limiter;             # exports start_nginx, limiter_conf
#
#   my $nginx = start_nginx($shards,    # of ratelimit_shards: a text, or a list
#                                       # of servers; undef: this machine's memory
#       timeout  => '20s',              # ratelimit_redis_timeout, default shown
#       connect  => '1s',               # ..._connect_timeout; default: the same
#       on_error => 'local',            # default closed
#       breaker  => 'probe=1s',         # of ratelimit_breaker; default: unset
#       deny_cache => 'off',            # default: unset, which is on
#       capacity => 1000,               # of "/", see below
#       conf     => 'map $uri $x {}',   # more of http
#       server   => 'location /x {}',   # of the server
#       workers  => 1,                  # default as shown; and all else that
#   );                                  # RateLimit::Nginx takes
#
# Without "server" a request to "/?k=KEY" takes from a bucket that never refills,
# "/short?k=KEY" with a timeout of 400 ms, "/lease?k=KEY" by leases of 100.
# "/metrics" are the metrics.  Each response has X-Source, X-Status, X-Name,
# X-Shard and X-Worker, unless a location adds headers of its own.
#
# Rejections are logged at info, nginx logs from notice on.
#
#   $nginx->reload(limiter_conf($shards, %same));       # with another one

use strict;
use warnings;

use Exporter 'import';

use RateLimit::Nginx ();

our @EXPORT = qw(start_nginx limiter_conf);

our $HEADERS = <<'EOC';
        add_header X-Source $ratelimit_source always;
        add_header X-Status $ratelimit_status always;
        add_header X-Name   $ratelimit_name always;
        add_header X-Shard  $ratelimit_shard always;
        add_header X-Worker $pid always;
EOC


sub start_nginx {
    my ($shards, %opt) = @_;

    return RateLimit::Nginx->start(limiter_conf($shards, %opt));
}


# What RateLimit::Nginx takes.

sub limiter_conf {
    my ($shards, %opt) = @_;

    my $timeout = delete $opt{timeout} // '20s';
    my $connect = delete $opt{connect} // $timeout;
    my $on_error = delete $opt{on_error} // 'closed';
    my $capacity = delete $opt{capacity} // 1000;
    my $conf = delete $opt{conf} // '';
    my $server = delete $opt{server};

    for my $name (qw(breaker deny_cache)) {
        my $value = delete $opt{$name} // next;
        $conf .= "    ratelimit_$name $value;\n";
    }

    $shards = join ' ', map { $_->addr } @$shards if ref $shards;
    $shards = defined $shards ? "ratelimit_shards $shards;" : '';

    $server //= <<"EOC";
        ratelimit_key      \$arg_k;
        ratelimit_capacity $capacity;
        ratelimit_rate     0r/s;

        location /short { ratelimit_redis_timeout 400ms; empty_gif; }
        location /lease { ratelimit_lease 100 ttl=60s; empty_gif; }
        location /      { empty_gif; }
EOC

    return (
        workers => 1,
        log     => 'notice',
        %opt,
        conf    => <<"EOC",
    $shards
    ratelimit_redis_timeout $timeout;
    ratelimit_redis_connect_timeout $connect;
    ratelimit_on_error $on_error;
    ratelimit_log_level info;
    keepalive_requests 1000000;
    $conf
EOC
        server  => <<"EOC",
$HEADERS
        location = /metrics { ratelimit off; ratelimit_metrics; }

$server
EOC
    );
}


1;
