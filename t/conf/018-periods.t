# Fixed windows in the configuration: which words go together, what is
# inherited, and what the limit does then.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use RateLimit::Calendar;
use RateLimit::Config;
use RateLimit::Load;
use RateLimit::Nginx;

my $FIXED = 'ratelimit_limit a algorithm=fixed_window';


accepted('a window', "$FIXED capacity=5 window=10s;", 'ratelimit a;');
accepted('the default window', "$FIXED capacity=5;", 'ratelimit a;');
accepted('a month from the 28th', "$FIXED capacity=5 period=month anchor=28 "
         . 'timezone=-05:00;', 'ratelimit a;');
accepted('a week from Sunday', "$FIXED capacity=5 period=week anchor=7;",
         'ratelimit a;');
accepted("a $_", "$FIXED capacity=\$arg_c period=$_ timezone=+14:00 cost=2;",
         'ratelimit a;')
    for qw(minute hour day week month);

refused('no capacity', "$FIXED period=day;", '', 'ratelimit_limit', '"a"',
        'no "capacity="');
refused('a rate', "$FIXED capacity=5 rate=1r/s;", '', '"rate="',
        'have no meaning', 'fixed window');
refused('an interval', "$FIXED capacity=5 refill_interval=1s;", '',
        'have no meaning', 'fixed window');
refused('a window and a period', "$FIXED capacity=5 window=1h period=day;", '',
        '"window=" and "period="', 'remove one of them');
refused("$_ without a period", "$FIXED capacity=5 window=1h $_;", '',
        'without "period="')
    for qw(timezone=UTC anchor=2);
refused('an anchor of a day', "$FIXED capacity=5 period=day anchor=2;", '',
        '"anchor=" has no meaning');
refused('the eighth day of a week', "$FIXED capacity=5 period=week anchor=8;",
        '', 'no day of a week', 'from 1 (Monday) to 7');
refused("$_ of a token bucket", "ratelimit_limit a rate=1r/s $_;", '',
        'has no meaning', 'algorithm=fixed_window')
    for qw(period=day timezone=UTC anchor=2);
accepted('a counter', 'ratelimit_limit a algorithm=sliding_window_counter '
         . 'capacity=5 window=10s;', 'ratelimit a;');
refused("$_ of a counter", 'ratelimit_limit a capacity=5 '
        . "algorithm=sliding_window_counter $_;", '', 'no meaning')
    for qw(period=day rate=1r/s refill_interval=1s);
refused('a counter without a capacity', 'ratelimit_limit a window=1h '
        . 'algorithm=sliding_window_counter;', '', 'no "capacity="');
refused('the window of a counter from a variable', 'ratelimit_limit a '
        . 'algorithm=sliding_window_counter capacity=5 window=$arg_w;',
        'ratelimit a;', 'has a variable', 'sliding window counter');
refused('advice of a counter', 'ratelimit_limit a dry_run advise capacity=5 '
        . 'algorithm=sliding_window_counter;', '', 'sliding window counter');
refused('a period of a log', 'ratelimit_limit a algorithm=sliding_window_log '
        . 'capacity=5 period=day;', '', '"period=" has no meaning');
refused("$_ twice", "$FIXED capacity=5 period=week timezone=UTC anchor=2 $_;",
        '', "duplicate parameter \"$_\"")
    for qw(period=day timezone=UTC anchor=3);
refused("$_ from a variable", "$FIXED capacity=5 period=week $_;", '',
        'ratelimit_limit')
    for qw(timezone=$arg_z anchor=$arg_a);
refused('a window from a variable', "$FIXED capacity=5 window=\$arg_w;",
        'ratelimit a;', '"$arg_w"', 'has a variable', 'fixed window');
refused('advice', "$FIXED capacity=5 dry_run advise;", '', '"advise"',
        'fixed window');
refused('a cost above the capacity', "$FIXED capacity=5 cost=6;", '',
        'no request could ever pass');

refused('a window and a period in one block', '',
        'ratelimit_algorithm fixed_window; ratelimit_capacity 5; '
        . 'ratelimit_window 1h; ratelimit_period day;', 'in one block');
refused('a period alone', '', 'ratelimit_period day;', 'ratelimit_period');
refused('the eighth day of a week', '', 'ratelimit_algorithm fixed_window; '
        . 'ratelimit_capacity 5; ratelimit_period week; ratelimit_anchor 8;',
        'no day of a week');


subtest 'a block that sets one does not inherit the other' => sub {
    my $nginx = RateLimit::Nginx->start(conf => <<'EOC', server => <<'EOS');
    ratelimit_algorithm fixed_window;
    ratelimit_capacity  5;
    ratelimit_period    month;
    ratelimit_timezone  -08:00;
    ratelimit_anchor    20;
EOC
        ratelimit_key x;
        location /month  { ratelimit_capacity 6; empty_gif; }
        location /window { ratelimit_window 100d; empty_gif;
            location /window/day { ratelimit_period day; empty_gif; } }
EOS

    my $now = time;
    my %end = (
        '/month'      => (RateLimit::Calendar->new('month', zone => -28800,
                              anchor => 20)->at($now * 1e6))[1] / 1e6,
        '/window'     => $now - $now % 8_640_000 + 8_640_000,
        '/window/day' => (RateLimit::Calendar->new('day', zone => -28800)
                              ->at($now * 1e6))[1] / 1e6,
    );

    for my $path (sort keys %end) {
        my $r = $nginx->get($path);

        cmp_ok abs($r->{headers}{'x-ratelimit-reset'} - $end{$path}), '<=', 5,
               $path;
    }
};


# An override changes the capacity; a reset empties the window.

subtest 'the API knows fixed windows' => sub {
    my $nginx = RateLimit::Nginx->start(conf => <<'EOC', server => <<'EOS');
    ratelimit_limit plan algorithm=fixed_window key=$arg_k capacity=3
                    period=month timezone=+01:00 anchor=15;
EOC
        location /api/ { ratelimit_api write; }
        location / { ratelimit plan; empty_gif; }
EOS

    my $api = sub {
        my ($method, $path, $body) = @_;

        return RateLimit::Load::request($nginx->port, $method, "/api/$path",
                                        { 'X-RateLimit-Write' => 1,
                                          'Content-Type' => 'application/json' },
                                        $body);
    };

    like $api->('GET', 'limits/plan')->{body},
         qr/"algorithm":"fixed_window".*"period":"month","timezone":"\+01:00","anchor":"15"/,
         'its definition';

    $nginx->get('/?k=a') for 1 .. 3;
    is $nginx->get('/?k=a')->{status}, 429, 'used up';
    like $api->('GET', 'limits/plan/keys/a')->{body},
         qr/"remaining":0.*"reset":\d+/, 'its state';

    like $api->('DELETE', 'limits/plan/keys/a')->{body}, qr/"reset":true/,
         'a reset';
    is $nginx->get('/?k=a')->{headers}{'x-ratelimit-remaining'}, 2,
       'starts anew';
};


done_testing();
