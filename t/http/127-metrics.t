# "ratelimit_metrics": what it counts is what was sent, by all workers together,
# over reloads and killed workers; as text for Prometheus and as JSON, with the
# same figures in both.
#
# Clients come over one address with keys of their own, none of which is ever to
# be seen in the output.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use File::Path ();
use JSON::PP ();
use List::Util qw(sum0);

use RateLimit::FakeRedis;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(
    dead_port free_port reap slurp spawn temp_dir wait_until write_file
);

my $TEXT = 'text/plain; version=0.0.4; charset=utf-8';

# in each client's key
my $SECRET = 'sEcReT';

my $PATIENT = "ratelimit_redis_timeout 20s;\n"
              . "ratelimit_redis_connect_timeout 20s;\n";

my $dir = temp_dir('metrics');
my $owner = $$;

END { File::Path::remove_tree($dir) if defined $dir && $owner == $$ }


# ---- reading

# Samples of the text: "name{label="value",...}" => value, labels sorted.  Dies
# on a line that is none.  In a list also the types of the families.

sub parse_text {
    my ($text) = @_;

    my (%samples, %types, %helps);

    for my $line (split /\n/, $text) {

        if ($line =~ /^# HELP (\w+) \S.*\.$/) {
            die "twice: $line\n" if $helps{$1}++;
            next;
        }

        if ($line =~ /^# TYPE (\w+) (counter|gauge|histogram)$/) {
            die "twice: $line\n" if exists $types{$1};
            $types{$1} = $2;
            next;
        }

        my ($name, $labels, $value) = $line =~
            /^(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\})?\ (\d+(?:\.\d+)?)$/x
            or die "no sample: $line\n";

        my @labels;

        while (($labels // '') =~ /(\w+)="((?:[^"\\]|\\.)*)"/g) {
            my ($label, $text) = ($1, $2);

            push @labels, [$label, $text =~ s/\\(["\\])/$1/gr];
        }

        add_sample(\%samples, $name, \@labels, $value);
    }

    return wantarray ? (\%samples, \%types, \%helps) : \%samples;
}


sub parse_json {
    my ($text) = @_;

    my $all = JSON::PP->new->utf8->decode($text);
    my %samples;

    for my $name (keys %$all) {
        for my $sample (@{ $all->{$name} }) {
            my %labels = %$sample;
            my $value = delete $labels{value};

            add_sample(\%samples, $name,
                       [map { [$_, $labels{$_}] } keys %labels], $value);
        }
    }

    return \%samples;
}


sub add_sample {
    my ($samples, $name, $labels, $value) = @_;

    my $full = id($name, map { @$_ } @$labels);

    die "twice: $full\n" if exists $samples->{$full};
    $samples->{$full} = $value + 0;
}


# The name of a sample, its labels sorted, without the common start.

sub id {
    my ($name, %labels) = @_;

    $name =~ s/^nginx_ratelimit_//;

    return $name unless %labels;

    return "$name\{"
           . join(',', map { "$_=$labels{$_}" } sort keys %labels) . '}';
}


sub text_of {
    my ($nginx) = @_;

    return $nginx->get('/metrics')->{body};
}


sub samples {
    my ($nginx) = @_;

    return scalar parse_text(text_of($nginx));
}


sub promtool_ok {
    my ($name, $text) = @_;

    write_file("$dir/metrics", $text);

    unlink "$dir/output";

    my $pid = spawn(['sh', '-c', "promtool check metrics < $dir/metrics"],
                    out => "$dir/output");
    my $status = reap($pid, 60);

    kill 'KILL', $pid if !defined $status;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is $status, 0, "$name: promtool takes it";
    is slurp("$dir/output"), '', "$name: and has nothing to say";
}


# A test: the samples grew by so much, those that are named, and of the families
# that are named no others.

sub grew {
    my ($name, $before, $after, %by) = @_;

    my %family = map { /^(\w+)/ => 1 } keys %by;
    my %real;

    for my $id (keys %$after) {
        my ($family) = $id =~ /^(\w+)/;
        my $more = $after->{$id} - ($before->{$id} // 0);

        $real{$id} = $more if $family{$family} && $more;
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return is_deeply(\%real, { map { $_ => $by{$_} } grep { $by{$_} } keys %by },
                     $name) || diag explain \%real;
}


# Counts of decisions, of a limit and of requests: "LIMIT DECISION SOURCE" => n.

sub decided {
    my (%count) = @_;

    my %by;

    for (keys %count) {
        my ($limit, $decision, $source) = split / /;
        my @labels = (decision => $decision, source => $source);

        $by{ id('requests_total', limit => $limit, @labels) } += $count{$_};
        $by{ id('decisions_total', @labels) } += $count{$_};
    }

    return %by;
}


# ---- the sequence

# Workers with a socket each, so that all of them get connections.

sub start {
    my (%opt) = @_;

    my $text = ($opt{conf} // '') . <<"EOC";
    $PATIENT
    ratelimit_log_level info;
    map \$arg_c \$cost { "" 1; default \$arg_c; }
    add_header X-Worker \$pid always;
    add_header X-Shard \$ratelimit_shard always;
    add_header X-Source \$ratelimit_source always;

    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        server_name localhost;
        ratelimit_key \$arg_k;
        ratelimit_cost \$cost;
        location /metrics { ratelimit off; ratelimit_metrics; }
        $opt{server}
    }
EOC

    delete @opt{qw(conf server)};

    return RateLimit::Nginx->start(workers => 2, %opt, conf => $text);
}


# A client that has asked, and is still to read the answer.

sub asked {
    my ($nginx, $path) = @_;

    my $c = RateLimit::Load::connection($nginx->port);

    $c->write("GET $path HTTP/1.1\r\nHost: x\r\n\r\n");

    return $c;
}


subtest 'both forms, and what they are served as' => sub {
    my @redis = RateLimit::Redis->start_many(2);
    my $shards = join ' ', map { $_->addr } @redis;

    my $nginx = start(
        conf   => "ratelimit_shards $shards;\n"
                  . "ratelimit_limit named key=\$arg_k rate=1r/d capacity=2;\n",
        server => <<'EOC');
location /t     { ratelimit named; empty_gif; }
location /few   { ratelimit named; ratelimit_rate 1r/d; ratelimit_metrics; }
EOC

    $nginx->get("/t?k=$SECRET-$_") for 1 .. 10;
    $nginx->get("/t?k=$SECRET") for 1 .. 4;

    my $ask = sub {
        my ($method, $path) = @_;

        return RateLimit::Load::request($nginx->port, $method, $path);
    };

    # all connections are there, and nothing changes any more

    ok wait_until(sub {
        my $all = samples($nginx);
        return 4 == sum0(map { $all->{$_} } grep { /^redis_connections/ }
                                            keys %$all);
    }), 'connected';

    my $text = $ask->('GET', '/metrics');
    my $json = $ask->('GET', '/metrics?format=json');

    is $text->{status}, 200, 'text';
    is $text->{headers}{'content-type'}, $TEXT, 'its type';
    is $json->{status}, 200, 'JSON';
    is $json->{headers}{'content-type'}, 'application/json', 'its type';

    my ($samples, $types, $helps) = parse_text($text->{body});

    cmp_ok scalar keys %$samples, '>', 100, 'there are samples';
    is_deeply parse_json($json->{body}), $samples,
              'the same samples with the same figures in both';
    is_deeply [sort keys %$helps], [sort keys %$types],
              'each family has its help and its type';

    my %families = map { /^(\w+)/ => 1 }
                   map { s/^(\w+_seconds)_(?:bucket|sum|count)\b/$1/r }
                   keys %$samples;

    is_deeply [sort map { s/^nginx_ratelimit_//r } keys %$types],
              [sort keys %families], 'and samples';
    is_deeply [grep { ($types->{$_} eq 'counter') != /_total$/ } keys %$types],
              [], 'counters, and no others, end in _total';

    unlike $text->{body} . $json->{body}, qr/$SECRET/,
           'the key of a client is nowhere';
    is_deeply [grep { /127\.0\.0\.1/ && !/shard=127/ } keys %$samples], [],
              'nor its address';

    promtool_ok('all of it', $text->{body});

    my ($version) = slurp('src/core/ngx_rl_version.h')
                    =~ /_RELEASE +"(.*)"/;

    is $samples->{ id('build_info', version => $version, nginx =>
                      ($text->{headers}{server} =~ m{nginx/([\d.]+)})[0]) }, 1,
       'what runs here';

    # methods and arguments

    my $head = $ask->('HEAD', '/metrics');

    is $head->{status}, 200, 'HEAD';
    is $head->{body}, '', 'has no body';
    is $head->{headers}{'content-type'}, $TEXT, 'but its type';
    is $head->{headers}{'content-length'}, length $text->{body},
       'and the length';

    is $ask->('HEAD', '/metrics?format=json')->{headers}{'content-length'},
       length $json->{body}, 'of JSON, too';

    is $ask->($_, '/metrics')->{status}, 405, "$_ is not allowed"
        for qw(POST PUT DELETE OPTIONS);

    is $ask->('GET', "/metrics?$_")->{headers}{'content-type'}, $TEXT,
       "$_ is text" for qw(format=text format=xml format=json5 format= x=json);
    is $ask->('GET', '/metrics?x=1&format=json')
       ->{headers}{'content-type'}, 'application/json', 'among other arguments';

    # a limit may guard it as anything else

    is join(' ', map { $ask->('GET', "/few?k=$SECRET-few")->{status} } 1, 2),
       '200 429', 'where there is a limit it is limited';

    $nginx->finish;
};


subtest 'metrics can be included in a page' => sub {
    my $nginx = start(server => <<'EOC');
location = /page { ssi on; default_type text/html; alias %%DIR%%/html/page; }
location /t { ratelimit_rate 1r/d; empty_gif; }
EOC

    my $page = $nginx->dir . '/html/page';

    write_file($page, "[[<!--#include virtual=\"/metrics\" -->]]\n"
                      . "((<!--#include virtual=\"/metrics?format=json\""
                      . " -->))\n");
    chmod 0644, $page;

    $nginx->get("/t?k=$_") for 1 .. 3;

    my $response = $nginx->get('/page');
    my ($text, $json) = $response->{body} =~ /\A\[\[(.*)\]\]\n\(\((.*)\)\)\n\z/s;

    is $response->{status}, 200, 'the page comes';
    ok defined $text, 'all of it, to its end' or diag $response->{body};

    $text //= '';
    $json //= '{}';

    is parse_text($text)->{id('decisions_total', decision => 'passed',
                              source => 'local')}, 3, 'with the text';
    is_deeply parse_json($json), scalar parse_text($text), 'and the JSON';

    $nginx->finish;
};


subtest 'without limits and shards there is nothing but the zone' => sub {
    my $nginx = RateLimit::Nginx->start(
        server => 'location /metrics { ratelimit_metrics; }');

    my ($samples, $types) = parse_text(text_of($nginx));

    promtool_ok('next to nothing', text_of($nginx));
    is_deeply [sort grep { /redis|breaker|limit=/ } keys %$samples], [],
              'nothing of what there is not';
    is_deeply [grep { !/^(?:build_info|zone_)/ && $samples->{$_} }
               keys %$samples], [], 'and nothing has happened';
    is $samples->{zone_size_bytes}, 10 * 1024 * 1024, 'but the zone';
    is_deeply parse_json($nginx->get('/metrics?format=json')->{body}),
              $samples, 'JSON is the same';

    $nginx->finish;

    # one machine needs no Redis

    $nginx = start(server => 'location /t { ratelimit_rate 1r/d;
                                            ratelimit_capacity 3; empty_gif; }');

    my $before = samples($nginx);

    $nginx->get("/t?k=$_") for qw(a a a a a b);

    my $after = samples($nginx);

    grew('local decisions', $before, $after,
         decided('localhost/t passed local' => 4,
                 'localhost/t rejected local' => 2),
         zone_keys => 2, zone_evictions_total => 0, zone_resets_total => 0,
         zone_used_bytes => (2 + 2) * 64);
    is sum0(map { $after->{$_} } grep { /^fallback_/ } keys %$after), 0,
       'are no fallback';
    promtool_ok('local', text_of($nginx));

    $nginx->finish;
};


subtest 'what was sent is what was counted' => sub {
    my @redis = RateLimit::Redis->start_many(2);
    my $shards = join ' ', map { $_->addr } @redis;
    my $late = RateLimit::Redis->new;       # not yet there
    my $dead = dead_port();

    my $nginx = start(
        log    => 'notice',
        conf   => <<"EOC", server => <<"EOC");
ratelimit_shards $shards;
ratelimit_limit here  key=\$arg_h capacity=1 rate=1r/d;
ratelimit_limit there key=\$arg_t capacity=9 rate=1r/d;
ratelimit_limit shade key=\$arg_t capacity=1 rate=1r/d dry_run;
ratelimit_deny_cache off;
EOC
location /redis { ratelimit_rate 1r/d; ratelimit_capacity 3; empty_gif; }
location /dry   { ratelimit_rate 1r/d; ratelimit_capacity 1;
                  ratelimit_dry_run on; empty_gif; }
location /denied { ratelimit_rate 1r/d; ratelimit_capacity 3;
                   ratelimit_deny_cache 60s; empty_gif; }
location /lease { ratelimit_rate 1r/d; ratelimit_capacity 9;
                  ratelimit_lease 5 ttl=60s; empty_gif; }
location /look  { ratelimit here there; ratelimit_preview on;
                  ratelimit_preview_cache off; empty_gif; }
location /cached { ratelimit here there; ratelimit_preview on;
                   ratelimit_preview_cache 60s; empty_gif; }
location /both  { ratelimit here there; empty_gif; }
location /shade { ratelimit there shade; empty_gif; }
location /open  { ratelimit_rate \$arg_r; ratelimit_on_error open; empty_gif; }
location /local { ratelimit_rate \$arg_r; empty_gif; }
location /closed { ratelimit_rate \$arg_r; ratelimit_on_error closed;
                   empty_gif; }
location /place { ratelimit_rate 1r/d; ratelimit_capacity 1000000; empty_gif; }

location /skip/first  { ratelimit_rate 1r/d; ratelimit_key \$arg_none;
                        try_files /none /skip/last; }
location /skip/last   { ratelimit_rate 1r/d; ratelimit_key \$arg_none;
                        empty_gif; }
location /skip/passed { ratelimit_rate 1r/d; ratelimit_key \$arg_none;
                        try_files /none /redis?k=\$arg_k; }
location /skip/free   { ratelimit_rate 1r/d; ratelimit_key \$arg_none;
                        try_files /none /free; }

location /free { empty_gif; }

location /away/ {
    ratelimit_shards  127.0.0.1:$dead;
    ratelimit_breaker failures=100 window=1h probe=1h;

    location /away/local  { ratelimit_rate 1r/d; ratelimit_capacity 2;
                            ratelimit_local_share 1/2; empty_gif; }
    location /away/open   { ratelimit_rate 1r/d; ratelimit_on_error open;
                            empty_gif; }
    location /away/closed { ratelimit_rate 1r/d; ratelimit_on_error closed;
                            empty_gif; }
}

location /late {
    ratelimit_shards  ${\ $late->addr };
    ratelimit_breaker failures=3 window=1h probe=200ms;
    ratelimit_rate    1r/d;
    ratelimit_capacity 1000;
    empty_gif;
}
EOC

    my ($before, $after);

    my $get = sub {
        my ($path, $n) = @_;

        return map { $nginx->get($path) } 1 .. $n // 1;
    };

    # What came between the last look and this one.  The shards that are away
    # are tried again now and then.

    my $away = join '|', "127.0.0.1:$dead", $late->addr;

    my $look = sub {
        my ($name, %by) = @_;

        $after = samples($nginx);
        grew($name, $before, { map { $_ => $after->{$_} }
                               grep { !/shard=(?:$away)\b/ } keys %$after },
             %by);
        $before = $after;
    };

    my $total = sub {
        my ($family, %labels) = @_;

        my $all = samples($nginx);

        return sum0(map { $all->{$_} }
                    grep { my $id = $_;
                           $id =~ /^$family\b/
                           && !grep { $id !~ /[{,]$_=\Q$labels{$_}\E[,}]/ }
                                    keys %labels } keys %$all);
    };

    my %key;

    for my $n (1 .. 100) {
        my ($r) = $get->("/place?k=k$n");
        $key{ $r->{headers}{'x-shard'} } //= "k$n";
        last if keys %key == 2;
    }

    my ($here, $there) = map { $key{ $_->addr } } @redis;

    ok wait_until(sub {
        $total->('redis_connections', shard => $redis[0]->addr) == 2
        && $total->('redis_connections', shard => $redis[1]->addr) == 2
    }), 'connected';

    $_->cmd('FLUSHALL') for @redis;
    $before = samples($nginx);

    # Redis

    $get->("/redis?k=a", 5);
    $look->('passed and rejected',
            decided('localhost/redis passed redis' => 3,
                    'localhost/redis rejected redis' => 2),
            id('tokens_total', limit => 'localhost/redis') => 3,
            id('near_limit_total', limit => 'localhost/redis') => 1,
            'decision_seconds_count' => 5,
            map { (id('fallback_decisions_total', policy => $_,
                      reason => 'timeout') => 0) } 'local');

    $get->("/dry?k=a", 3);
    $look->('a dry run', decided('localhost/dry passed redis' => 1,
                                 'localhost/dry dry_run_rejected redis' => 2));

    $get->("/denied?k=$here", 5);
    $look->('a denial that is remembered',
            decided('localhost/denied passed redis' => 3,
                    'localhost/denied rejected denied' => 2),
            id('redis_calls_total', shard => $redis[0]->addr) => 3);

    $get->("/lease?k=$here", 3);
    $look->('a token that was taken before',
            decided('localhost/lease passed redis' => 2,
                    'localhost/lease passed lease' => 1),
            id('redis_calls_total', shard => $redis[0]->addr) => 2);

    # counted when the request ends, which may be after its answer was read

    my $skip = sub {
        my ($path, $n) = @_;

        my @skipped = (decisions_total => decision => 'skipped');
        my $before = $total->(@skipped);

        $get->($path, $n);
        wait_until(sub { $total->(@skipped) >= $before + $n });
    };

    $skip->("/redis", 2);
    $look->('skipped', decided('localhost/redis skipped none' => 2));

    $skip->("/skip/first", 2);
    $look->('skipped twice, by a redirect, counts once',
            decided('localhost/skip/last skipped none' => 2));

    $skip->("/skip/free", 2);
    $look->('also if the redirect leads to no limit',
            decided('localhost/skip/free skipped none' => 2));

    $get->("/skip/passed?k=skipped", 4);
    $skip->("/redis", 1);           # in case that something comes late
    $look->('who then meets another limit is not counted as skipped',
            decided('localhost/redis passed redis' => 3,
                    'localhost/redis rejected redis' => 1,
                    'localhost/redis skipped none' => 1));

    $get->("/redis?k=b&c=4", 2);
    $look->('a cost that never fits',
            decided('localhost/redis rejected local' => 2),
            id('tokens_total', limit => 'localhost/redis') => 0,
            map { (id('redis_calls_total', shard => $_->addr) => 0) } @redis);

    $get->("/look?h=$here&t=$there", 3);
    $look->('a preview is no request to a limit',
            decided('here passed redis' => 0, 'there passed redis' => 0),
            (map { (id('previews_total', limit => $_, source => 'redis') => 3,
                    id('previews_total', limit => $_, source => 'cache') => 0,
                    id('tokens_total', limit => $_) => 0) } qw(here there)),
            'decision_seconds_count' => 0);

    $get->("/cached?h=$here&t=$there", 3);
    $look->('a preview that is remembered',
            map { (id('previews_total', limit => $_, source => 'redis') => 1,
                   id('previews_total', limit => $_, source => 'cache') => 2)
                } qw(here there));

    $get->("/look?t=$there");
    $look->('a limit without a key is not looked at',
            id('previews_total', limit => 'here', source => 'redis') => 0,
            id('previews_total', limit => 'there', source => 'redis') => 1);

    # a request is counted once, each of its limits for itself

    $get->("/shade?t=$there", 3);
    $look->('two limits on one request',
            id('decisions_total', decision => 'passed', source => 'redis') => 3,
            id('requests_total', limit => 'there', decision => 'passed',
               source => 'redis') => 3,
            id('requests_total', limit => 'shade', decision => 'passed',
               source => 'redis') => 1,
            id('requests_total', limit => 'shade', source => 'redis',
               decision => 'dry_run_rejected') => 2);

    # a refund, on the shard that had let pass

    $get->("/both?h=$here&t=$there", 3);
    ok wait_until(sub { $total->('redis_calls_in_flight') == 0 }), 'settled';
    $look->('refunds, and who rejects is counted alone',
            id('decisions_total', decision => 'passed', source => 'redis') => 1,
            id('decisions_total', decision => 'rejected',
               source => 'redis') => 2,
            id('requests_total', limit => 'here', decision => 'passed',
               source => 'redis') => 1,
            id('requests_total', limit => 'there', decision => 'passed',
               source => 'redis') => 1,
            id('requests_total', limit => 'here', decision => 'rejected',
               source => 'redis') => 2,
            id('redis_refunds_total', shard => $redis[1]->addr) => 2,
            id('redis_calls_total', shard => $redis[0]->addr) => 3,
            id('redis_calls_total', shard => $redis[1]->addr) => 5,
            id('redis_script_reloads_total', shard => $redis[0]->addr) => 0);

    # wrong values of variables

    $get->('/open?k=a&r=x', 2);
    $get->('/local?k=a&r=y', 3);
    $get->('/closed?k=a&r=z', 4);
    $look->('invalid values',
            decided('localhost/open passed open' => 2,
                    'localhost/local passed open' => 3,
                    'localhost/closed rejected closed' => 4),
            id('invalid_values_total', limit => 'localhost/open') => 2,
            id('invalid_values_total', limit => 'localhost/local') => 3,
            id('invalid_values_total', limit => 'localhost/closed') => 4,
            id('fallback_decisions_total', policy => 'open',
               reason => 'invalid_limit') => 5,
            id('fallback_decisions_total', policy => 'closed',
               reason => 'invalid_limit') => 4,
            id('redis_failures_total', shard => $redis[0]->addr,
               class => 'error') => 0);

    # as many calls and bytes as Redis has seen; nothing else happens there

    my %stat;

    my $measure = sub {
        my ($redis) = @_;

        my $reply = $redis->cmd('INFO', 'stats');
        my %now = map { /^(total_net_\w+_bytes):(\d+)/ ? ($1 => $2) : () }
                  split /\r?\n/, $reply;
        my %delta = map { $_ => $now{$_} - ($stat{$redis}{$_} // 0) } keys %now;

        # this question, and the answer to the one before it

        $delta{total_net_input_bytes} -=
            length "*2\r\n\$4\r\nINFO\r\n\$5\r\nstats\r\n";
        $delta{total_net_output_bytes} -= $stat{$redis}{reply} // 0;

        $stat{$redis} = { %now, reply => length($reply) + 5
                                         + length length $reply };
        return \%delta;
    };

    my ($one) = @redis;
    my $addr = $one->addr;

    $one->cmd('CONFIG', 'RESETSTAT');
    $measure->($one);
    $measure->($one);
    $before = samples($nginx);

    $get->("/place?k=$here", 20);

    my $delta = $measure->($one);

    $look->('calls and bytes are those that Redis has counted',
            id('redis_calls_total', shard => $addr) => 20,
            id('redis_sent_bytes_total', shard => $addr)
                => $delta->{total_net_input_bytes},
            id('redis_received_bytes_total', shard => $addr)
                => $delta->{total_net_output_bytes},
            id('redis_latency_seconds_count', shard => $addr) => 20,
            decided('localhost/place passed redis' => 20));
    like $one->info('commandstats')->{cmdstat_evalsha}, qr/^calls=20,/,
         'so has its own statistics';

    # scripts that Redis has lost

    $one->cmd('SCRIPT', 'FLUSH');
    $get->("/place?k=$here", 4);
    $look->('a script that had to be sent again',
            id('redis_script_reloads_total', shard => $addr) => 1,
            id('redis_calls_total', shard => $addr) => 5,
            id('redis_failures_total', shard => $addr, class => 'noscript')
                => 0,
            decided('localhost/place passed redis' => 4));

    # connections that Redis has lost; those that no call waits for are no
    # failures

    $one->cmd('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    ok wait_until(sub {
        $total->('redis_reconnects_total', shard => $addr) == 2
    }, 10), 'a reconnect of each worker';
    $look->('and no more',
            id('redis_reconnects_total', shard => $addr) => 2,
            id('redis_failures_total', shard => $addr, class => 'closed') => 0,
            id('breaker_transitions_total', shard => $addr, to => 'fallback')
                => 0);
    is $total->('redis_connections', shard => $addr), 2, 'both are back';
    $get->("/place?k=$here", 2);
    $look->('and in use', decided('localhost/place passed redis' => 2));

    # nobody there

    $get->('/away/local?k=a', 3);
    $get->('/away/open?k=a', 4);
    $get->('/away/closed?k=a', 5);

    my $name = "127.0.0.1:$dead";

    $look->('the three policies',
            decided('localhost/away/local passed local' => 1,
                    'localhost/away/local rejected local' => 2,
                    'localhost/away/open passed open' => 4,
                    'localhost/away/closed rejected closed' => 5),
            id('fallback_decisions_total', policy => 'local',
               reason => 'storage_unavailable') => 3,
            id('fallback_decisions_total', policy => 'open',
               reason => 'storage_unavailable') => 4,
            id('fallback_decisions_total', policy => 'closed',
               reason => 'storage_unavailable') => 5);

    # but for those of the very moment in which it is tried

    cmp_ok $after->{ id('redis_calls_total', shard => $name) }, '<=', 2,
           'no call';
    is $after->{ id('redis_connections', shard => $name) }, 0, 'no connection';
    cmp_ok $after->{ id('redis_failures_total', shard => $name,
                        class => 'refused') }, '>=', 12,
           'each call and each attempt to connect is a failure';
    is $after->{ id('breaker_state', shard => $name, state => 'fallback') }, 1,
       'but too few to open the breaker';
    is $after->{ id('breaker_transitions_total', shard => $name,
                    to => 'fallback') }, 1, 'a change of state';

    # a breaker that opens, and closes

    my $state = sub {
        my $all = samples($nginx);
        my @on = grep { $all->{ id('breaker_state', shard => $late->addr,
                                   state => $_) } }
                      qw(distributed fallback circuit_open);
        return "@on";
    };

    ok wait_until(sub { $get->('/late?k=a'); $state->() eq 'circuit_open' }),
       'a breaker opens, and the shard is in one state';
    $before = samples($nginx);
    $get->('/late?k=a', 5);
    $look->('from then on nobody tries',
            decided('localhost/late passed local' => 5),
            id('fallback_decisions_total', policy => 'local',
               reason => 'circuit_open') => 5);
    is $after->{ id('breaker_transitions_total', shard => $late->addr,
                    to => 'circuit_open') }, 1, 'it has opened once';

    $late->start;
    ok wait_until(sub { $state->() eq 'distributed' }, 10), 'it closes';
    is samples($nginx)->{ id('breaker_transitions_total',
                             shard => $late->addr, to => 'distributed') }, 1,
       'once';

    ok wait_until(sub {
        ($get->('/late?k=a'))[0]{headers}{'x-source'} eq 'redis'
    }), 'and Redis decides';

    # silence

    ok $nginx->reload(conf => $nginx->{opt}{http}
                              =~ s/redis_timeout 20s/redis_timeout 100ms/r)
       && $nginx->old_workers_gone(10), 'less patience';
    ok wait_until(sub {
        $total->('redis_connections', shard => $addr) == 2
    }), 'connected';

    $before = samples($nginx);
    $one->pause;
    $get->("/place?k=$here", 2);
    $look->('timeouts',
            decided('localhost/place passed local' => 2),
            id('fallback_decisions_total', policy => 'local',
               reason => 'timeout') => 2,
            id('redis_failures_total', shard => $addr, class => 'timeout')
                => 2,
            id('redis_latency_seconds_count', shard => $addr) => 0,
            id('breaker_transitions_total', shard => $addr, to => 'fallback')
                => 1);
    $one->resume;
    ok wait_until(sub {
        $get->("/place?k=$here");
        samples($nginx)->{ id('breaker_state', shard => $addr,
                              state => 'distributed') };
    }, 10), 'and it answers again';

    # the sums fit

    $after = samples($nginx);

    my $sum = sub {
        my ($regex) = @_;

        return sum0(map { $after->{$_} } grep { $_ =~ $regex } keys %$after);
    };

    is $sum->(qr/^fallback_.*policy=$_/),
       $sum->(qr/^decisions_.*source=$_/), "what is $_ is a fallback"
        for qw(open closed);
    is $sum->(qr/^fallback_.*policy=local/),
       $sum->(qr/^decisions_.*source=local/) - 2,
       'and so is what is local, but for costs that never fit';
    unlike text_of($nginx), qr/\b(?:k\d+)\b/, 'no key of a client';
    promtool_ok('after all of that', text_of($nginx));

    # kept over a reload, but for what new connections add

    ok wait_until(sub { $total->('redis_calls_in_flight') == 0 }), 'idle';

    my $counted = sub {
        my $all = samples($nginx);

        return { map { $_ => $all->{$_} }
                 grep { /_total|_count|_bucket|_sum/ && !/_bytes_/
                        && !/shard=(?:$away)\b/ } keys %$all };
    };

    my $count = $counted->();

    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    is_deeply $counted->(), $count, 'no counter has changed';

    # what the configuration does not have any more

    my $text = $nginx->{opt}{http};
    my $less = $text =~ s{location /dry .*?\}}{}sr;

    isnt $less, $text, 'a limit is removed';
    ok $nginx->reload(conf => $less) && $nginx->old_workers_gone(10), 'loaded';
    is_deeply [grep { m{limit=localhost/dry} } keys %{ samples($nginx) }], [],
              'it is not shown';
    ok $nginx->reload(conf => $text) && $nginx->old_workers_gone(10), 'again';
    is_deeply $counted->(), $count, 'and comes back with what it had';

    $nginx->finish;
};


subtest 'each worker tells the sums over all workers' => sub {
    my $redis = RateLimit::Redis->start;
    my $nginx = start(
        workers => 4, log => 'notice',
        conf    => "ratelimit_shards ${\ $redis->addr};\n",
        server  => 'location /t { ratelimit_rate 1.${arg_k}1r/m;
                                  ratelimit_capacity 1;
                                  ratelimit_deny_cache off; empty_gif; }');

    # two for each key, which never meet in one call, and a rate for each key,
    # so that calls for others are others

    my $before = samples($nginx);
    my $load = RateLimit::Load::run(port => $nginx->port, connections => 40,
                                    requests => 1000, keep => 1,
                                    path => sub { '/t?k=' . $_[0] % 500 },
                                    timeout => 60);
    my %workers = map { $_->{headers}{'x-worker'} => 1 } $load->responses;

    is $load->error_text, '', 'each request was answered';
    is scalar keys %workers, 4, 'by four workers';

    grew('all of them are counted', $before, samples($nginx),
         decided('localhost/t passed redis' => 500,
                 'localhost/t rejected redis' => 500),
         id('redis_calls_total', shard => $redis->addr) => 1000,
         id('redis_latency_seconds_count', shard => $redis->addr) => 1000);

    # whoever is asked

    my (%seen, %figures);

    wait_until(sub {
        my $response = $nginx->get('/metrics');

        $seen{ $response->{headers}{'x-worker'} } = 1;
        $figures{ $response->{body} } = 1;

        return keys %seen == 4;
    }, 20);

    is scalar keys %seen, 4, 'each worker was asked';
    is scalar keys %figures, 1, 'and all say the same';
    is samples($nginx)->{ id('redis_connections', shard => $redis->addr) }, 4,
       'a connection each';

    $nginx->finish;
};


subtest 'gauges return to what is true' => sub {
    my $redis = RateLimit::Redis->start;
    my $addr = $redis->addr;
    my $nginx = start(
        conf   => "ratelimit_shards $addr;\n",
        server => 'location /t { ratelimit_rate 1000${arg_k}r/s;
                                 ratelimit_capacity 1000; empty_gif; }');

    my $gauge = sub {
        my ($name, $value) = @_;

        return wait_until(sub {
            samples($nginx)->{ id("redis_$name", shard => $addr) } == $value
        }, 10);
    };

    ok $gauge->(connections => 2), 'two workers, two connections';
    ok $gauge->(calls_in_flight => 0), 'and no calls';

    $redis->pause;

    my @clients = map { asked($nginx, "/t?k=$_") } 1 .. 7;

    ok $gauge->(calls_in_flight => 7), 'seven calls wait';
    is samples($nginx)->{ id('redis_latency_seconds_count', shard => $addr) },
       0, 'none of them has been answered';
    $redis->resume;

    is join(' ', map { $_->response(10)->{status} } @clients),
       join(' ', (200) x 7), 'all are answered';
    ok $gauge->(calls_in_flight => 0), 'none waits any more';
    is samples($nginx)->{ id('redis_latency_seconds_count', shard => $addr) },
       7, 'and all have their time';

    # killed with calls under way, three times

    for my $round (1 .. 3) {
        $redis->pause;

        @clients = map { asked($nginx, "/t?k=$_") } 1 .. 12;
        ok $gauge->(calls_in_flight => 12), "$round: twelve calls wait";

        ok $nginx->kill_worker('KILL', $_), 'a worker is killed'
            for $nginx->workers;
        ok $gauge->(calls_in_flight => 0), 'its calls are gone with it';

        $redis->resume;
        $_->close for @clients;
        ok $gauge->(connections => 2), 'and its connection was replaced';
    }

    is $nginx->get('/t?k=x')->{status}, 200, 'it works';
    ok $gauge->(calls_in_flight => 0), 'at rest';

    # Redis gone, and back

    $redis->kill9;
    ok $gauge->(connections => 0), 'no connections';
    ok $gauge->(calls_in_flight => 0), 'and no calls';
    $redis->start;
    ok wait_until(sub {
        RateLimit::Load::run(port => $nginx->port, connections => 10,
                             requests => 20, path => '/t?k=x', close => 1);
        return samples($nginx)->{ id('redis_connections', shard => $addr) }
               == 2;
    }, 15), 'two connections';

    ok $nginx->reload && $nginx->old_workers_gone(10), 'a reload';
    ok $gauge->(connections => 2), 'still two';

    $nginx->finish(except => qr/worker process \d+ exited on signal 9/);
};


subtest 'odd names are escaped' => sub {
    my $nginx = start(server => <<'EOC');
location ~ "^/php\.(\d+)$"   { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
location '/a"quote"/'        { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
location "/f%C3%BCr/"        { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
location '/tab	and space/' { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
location "/für/"             { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
location '/brace{/}/,=\\/'   { ratelimit_rate 1r/d; ratelimit_key x; empty_gif; }
EOC

    is $nginx->get($_)->{status}, 200, $_
        for '/php.7', '/a%22quote%22/', '/f%C3%BCr/';

    my $text = text_of($nginx);
    my $json = $nginx->get('/metrics?format=json')
               ->{body};

    promtool_ok('odd names', $text);
    is_deeply parse_json($json), scalar parse_text($text),
              'JSON has the same names';
    unlike $text . $json, qr/[^\n -~]/, 'and both are plain ASCII';

    my $samples = parse_text($text);

    # two names are never the same text

    is $samples->{ id('requests_total', limit => 'localhost/f%25C3%25BCr/',
                      source => 'local', decision => 'passed') }, 0,
       'what was %C3 in the configuration';

    for my $name ('localhost~^/php\\.(\\d+)$', 'localhost/a"quote"/',
                  'localhost/f%C3%BCr/')
    {
        is $samples->{ id('requests_total', limit => $name, source => 'local',
                          decision => 'passed') }, 1, $name;
    }

    my %names = map { /limit=(.*)\}$/ ? ($1 => 1) : () }
                grep { /^invalid_values/ } keys %$samples;

    is scalar keys %names, 6, 'each limit has a name of its own'
        or diag explain \%names;

    $nginx->finish;
};


subtest 'two hundred limits on thirty shards' => sub {
    my $ports = join ' ', map { '127.0.0.1:' . free_port() } 1 .. 30;
    my @names = map { sprintf 'limit-%03d-%s', $_, 'x' x ($_ % 54) } 1 .. 200;

    my $nginx = start(
        workers => 1, log => 'error',
        conf    => "ratelimit_shards $ports;\n"
                   . join('', map { "ratelimit_limit $_ key=\$arg_k "
                                    . "rate=1r/d;\n" } @names),
        server  => join '', map { "location /$_ { ratelimit $names[$_ - 1]; "
                                  . "empty_gif; }\n" } 1 .. 200);

    $nginx->get("/$_?k=a") for 1 .. 200;

    my $text = text_of($nginx);
    my ($samples) = parse_text($text);

    cmp_ok length $text, '>', 100_000, 'a long text';
    promtool_ok('many limits', $text);
    is sum0(map { $samples->{ id('requests_total', limit => $_,
                                 decision => 'passed', source => 'local') } }
            @names), 200, 'each limit is there, and has counted';
    is scalar(grep { /^redis_calls_total/ } keys %$samples), 30, 'each shard';

    my $json = $nginx->get('/metrics?format=json');

    is scalar keys %{ parse_json($json->{body}) }, scalar keys %$samples,
       'as many samples in JSON';

    is length $json->{body}, $json->{headers}{'content-length'},
       'as long as it says';

    $nginx->finish;
};


subtest 'the histogram of latencies is cumulative and counts each call' => sub {
    my @delays = (0, 0, 0, 30, 300);
    my $fake = RateLimit::FakeRedis->start(policy => {
        eval => [map { { reply => ":5000000\r\n", delay => $_ } } @delays] });

    my $nginx = start(
        workers => 1,
        conf    => "ratelimit_shards ${\ $fake->addr};\n",
        server  => 'location /t { ratelimit_rate 1r/d; ratelimit_capacity 9;
                                  empty_gif; }');

    is $nginx->get('/t?k=a')->{headers}{'x-source'},
       'redis', 'answered' for @delays;

    my $samples = samples($nginx);
    my %shard = (shard => $fake->addr);
    my @bounds = sort { ($a eq '+Inf') - ($b eq '+Inf') || $a <=> $b }
                 map { /^redis_latency_seconds_bucket\{le=([^,]+)/ ? $1 : () }
                 keys %$samples;
    my @counts = map { $samples->{ id('redis_latency_seconds_bucket', %shard,
                                      le => $_) } } @bounds;

    is $bounds[-1], '+Inf', 'the last bucket has all of them';
    cmp_ok scalar @bounds, '>', 8, 'there are others';
    is_deeply [@counts], [sort { $a <=> $b } @counts], 'cumulative';
    is $counts[-1], 5, 'five calls';
    is $samples->{ id('redis_latency_seconds_count', %shard) }, 5,
       'as the count says';

    my $within = sub {
        return $samples->{ id('redis_latency_seconds_bucket', %shard,
                              le => $_[0]) };
    };

    cmp_ok $within->(0.025), '<=', 3, 'two took longer than 25 ms';
    cmp_ok $within->(0.25), '<=', 4, 'and one longer than 250';

    my $sum = $samples->{ id('redis_latency_seconds_sum', %shard) };

    cmp_ok $sum, '>=', 0.33, 'all of the time';
    cmp_ok $sum, '<', 20, 'in seconds';

    # what clients waited for that, and for what needs no call

    $nginx->get('/t?k=a&c=10') for 1 .. 7;

    $samples = samples($nginx);
    $within = sub {
        return $samples->{ id('decision_seconds_bucket', le => $_[0]) };
    };

    is $within->('+Inf'), 12, 'decisions: all requests';
    is $samples->{decision_seconds_count}, 12, 'as the count says';
    cmp_ok $within->(0.0001), '>=', 7, 'this machine decides at once';
    cmp_ok $within->(0.025), '<=', 10, 'two took longer than 25 ms';
    cmp_ok $within->(0.25), '<=', 11, 'and one longer than 250';
    cmp_ok $samples->{decision_seconds_sum}, '>=', 0.33, 'all of the time';
    cmp_ok $samples->{decision_seconds_sum}, '<', 20, 'in seconds';

    $nginx->finish;
};


subtest 'the metrics of the zone are its size and its keys' => sub {
    my $nginx = start(
        workers => 1, log => 'error',
        conf    => "ratelimit_zone 64k;\n",
        server  => 'location /t { ratelimit_rate 1r/d; empty_gif; }');

    my $before = samples($nginx);

    is $before->{zone_size_bytes}, 65536, 'as large as it was made';
    is $before->{zone_keys}, 0, 'and empty';

    $nginx->get("/t?k=$_") for 1 .. 20;
    grew('keys that come', $before, samples($nginx), zone_keys => 20,
         zone_used_bytes => (20 + 2) * 64, zone_evictions_total => 0);

    my $load = RateLimit::Load::run(port => $nginx->port, connections => 10,
                                    requests => 3000,
                                    path => sub { "/t?k=x$_[0]" });
    my $after = samples($nginx);

    is $load->count(200), 3000, 'more than fit';
    cmp_ok $after->{zone_keys}, '>', 100, 'it is full';
    cmp_ok $after->{zone_used_bytes}, '<=', 65536, 'and no larger';

    my %held = map { $_ => $after->{ id('zone_evictions_total', held => $_) } }
                   qw(nothing known little much);

    is $after->{zone_keys} + $held{much}, 3020,
       'each key is there or has been forgotten';
    is sum0(@held{qw(nothing known little)}), 0, 'with all that it held';
    is $after->{zone_resets_total}, 0, 'one by one';

    $nginx->finish;
};


done_testing();
