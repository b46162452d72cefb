# The page of "ratelimit_console" in a real browser: it shows what the API says,
# its buttons change what Redis holds, names and keys stay text, and no page of
# another site can use the API.
#
# May be run twice: a browser waits for a busy machine.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use JSON::PP ();

use RateLimit::Browser;
use RateLimit::Load;
use RateLimit::Nginx;
use RateLimit::Redis;
use RateLimit::Util qw(wait_until write_file);

plan skip_all => 'no chromium here' unless RateLimit::Browser->available;

my $redis = RateLimit::Redis->start;

# the third server is another origin, with a page of an enemy
my $CONF = <<'EOC' =~ s/REDIS/$redis->addr/er;
    ratelimit_shards REDIS;
    ratelimit_redis_timeout 20s;
    ratelimit_redis_connect_timeout 20s;
    ratelimit_log_key plain;
    ratelimit_top 100;

    ratelimit_limit user  key=$http_x_key capacity=5 rate=5r/h;
    ratelimit_limit login key=$http_x_key capacity=3 window=1h
                          algorithm=sliding_window_log;
    ratelimit_limit trial key=$http_x_key capacity=2 rate=2r/h dry_run advise;

    server {
        listen 127.0.0.1:%%PORT2%%;

        location /ratelimit/  { ratelimit_api; }
        location /machines/b/ {
            proxy_pass http://127.0.0.1:%%PORT%%/ratelimit/;
        }
        location /machines/c/ { return 502; }
        location /console/    {
            ratelimit_console b=/machines/b/ c=/machines/c/;
        }
    }

    server {
        listen 127.0.0.1:%%PORT3%%;
        default_type text/html;
    }
EOC

my $nginx = RateLimit::Nginx->start(conf => $CONF, server => <<'EOC');
    location /user  { ratelimit user; try_files /none @ok; }
    location /login { ratelimit login; try_files /none @ok; }
    location /trial { ratelimit trial; try_files /none @ok; }
    location @ok    { return 200 ok; }

    location /ratelimit/ { ratelimit_api write; }
    location /console/   { ratelimit_console; }
EOC

my $MARKUP = '<img src=x onerror=window.hacked=1>';

my $origin = 'http://127.0.0.1:' . $nginx->port;
my $browser = RateLimit::Browser->start;
my %seen;


# The row of a limit in the panel of a key.

sub row {
    my ($limit) = @_;

    my @names = $browser->texts('.states tbody th');
    my ($i) = grep { $names[$_] eq $limit } 0 .. $#names;

    return '.states tbody tr:nth-child(' . (($i // 98) + 1) . ')';
}


sub look_up {
    my ($key) = @_;

    $browser->type('#key', $key);
    $browser->click('#find button');

    return $browser->wait_script(
        'return document.getElementById("found-key").textContent'
        . ' === arguments[0] && document.querySelector(".states tbody tr")'
        . ' !== null', 20, $key);
}


# Clicks a button in the row of a limit, and waits for what is said then.

sub act {
    my ($limit, $button, $said) = @_;

    $browser->click(row($limit) . " [data-do='$button']");

    return $browser->wait_text('#found-result', $said, 20);
}


sub status_of {
    my ($path, $key) = @_;

    return $nginx->get($path, 'X-Key' => $key)->{status};
}


sub api {
    my ($path) = @_;

    return JSON::PP::decode_json($nginx->get("/ratelimit/$path")->{body});
}


# What nobody may see: errors of the script, violations of the policy, requests
# to other origins.

sub clean {
    my ($name, %opt) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my @log = grep { $_->{source} ne 'network' || !$opt{failures} }
              $browser->log;

    is_deeply [map { "$_->{level} $_->{source} $_->{message}" } @log], [],
              "$name: no errors in the browser";

    my @requests = $browser->requests;

    $seen{$_}++ for @requests;

    is_deeply [grep { index($_, $opt{origin} // $origin) != 0 } @requests], [],
              "$name: no request to another origin";
}


subtest 'the page shows the limits, and their rates under load' => sub {
    $browser->go("$origin/console/");

    ok $browser->wait_text('#live', qr/^live$/, 30), 'it is live';
    ok $browser->wait_text('#about', qr/^\d+\.\d+\.\d+ .* read and write$/, 10),
       'the version';
    is_deeply [$browser->texts('.limit .name')], ['user', 'login', 'trial'],
              'the limits';
    like $browser->text('.limit:first-of-type .sub'),
         qr{^5 at once, 5r/h, token bucket\s+by \$http_x_key$}, 'a definition';
    is $browser->text('.servers th code'), $redis->addr, 'the server';
    like $browser->text('.servers tbody tr'), qr/\banswers\b/, 'it answers';
    ok $browser->script('return document.getElementById("outage").hidden'),
       'no outage';

    my $load = RateLimit::Load::start(port => $nginx->port, connections => 4,
                                      path => '/user', pause => 10,
                                      headers => { 'X-Key' => 'noisy' },
                                      duration => 300);

    my $rate = sub {
        my ($class) = @_;

        return ($browser->text(".limit td:nth-child($class)") // '') =~ s/\D//gr;
    };

    ok wait_until(sub { ($rate->(4) || 0) > 0 }, 30), 'rejected requests';
    ok $browser->wait_script('const path = document.querySelector(".c-rejected");
        return path.getAttribute("d").length > 100', 30), 'are drawn';
    ok $browser->wait_text('.bars li:first-child .key', qr/^noisy$/, 20),
       'the key that is rejected most';

    $load->stop;
    ok wait_until(sub { $rate->(4) eq '0' }, 40), 'the end of it';

    clean('the limits');
};


subtest 'a limit opens, by mouse and by keyboard' => sub {
    $browser->click('.limit .open');
    ok $browser->wait_text('.opened', qr{localhost/user\s+enforced\s+access}, 10),
       'where it is used';
    like $browser->text('.opened'), qr/rejected\s+\d/, 'its counters';

    $browser->script('document.querySelector(".limit .open").focus()');
    $browser->press('Enter');
    ok $browser->script('return document.querySelector(".detail").hidden'),
       'closed again';
};


subtest 'a reset by click takes effect in Redis' => sub {
    status_of('/user', 'alice') for 1 .. 6;
    is status_of('/user', 'alice'), 429, 'alice has used up her limit';

    ok look_up('alice'), 'she is found';
    like $browser->text(row('user')), qr/rejected.*0 of 5.*passes in/s, 'so';
    like $browser->text(row('login')), qr/passes.*3 of 3.*full/s,
         'not in the other limit';
    is $browser->script('return document.activeElement.id'), 'found-title',
       'the focus is there';

    ok act('user', 'reset', qr/^user: reset\.$/), 'a click';
    is $redis->cmd('EXISTS', 'ratelimit:user:{alice}'), 0, 'nothing in Redis';
    ok $browser->wait_text(row('user'), qr/passes.*5 of 5/s, 10), 'the page';
    ok wait_until(sub { status_of('/user', 'alice') == 200 }, 10),
       'she may go on';
};


subtest 'ban, exempt, raise and remove by click' => sub {
    my $override = sub {
        my ($found) = grep { $_->{key} eq 'alice' }
                      @{ api('overrides?limit=user')->{overrides} };
        return $found;
    };

    $browser->type('#reason', 'a test');
    ok act('user', 'ban', qr/^user: banned for 1 hour\.$/), 'banned';
    ok wait_until(sub { status_of('/user', 'alice') != 200 }, 10),
       'no request passes';

    my $ban = $override->();
    ok $ban->{ban}, 'the API says so';
    is $ban->{reason}, 'a test', 'and why';
    cmp_ok abs($ban->{until} - time - 3600), '<', 60, 'for an hour';
    ok $browser->wait_text(row('user'), qr/^user\s+banned/, 10), 'the panel';
    ok $browser->wait_text('.overrides tbody tr', qr/alice.*a test.*banned/s, 10),
       'the list of overrides';

    ok act('user', 'exempt', qr/^user: exempt for 1 hour\.$/), 'exempt';
    ok wait_until(sub { status_of('/user', 'alice') == 200 }, 10),
       'requests pass';
    is_deeply [map { status_of('/user', 'alice') } 1 .. 10], [(200) x 10],
              'more than the limit';

    ok act('user', 'raise', qr/^user: raised to 10 for 1 hour\.$/), 'raised';
    is_deeply [@{ $override->() }{qw(capacity rate)}], [10, '10r/h'], 'twice';

    ok act('user', 'remove override', qr/^user: override removed\.$/), 'removed';
    is $override->(), undef, 'there is none';

    act('user', 'ban', qr/banned/);
    ok $browser->wait_text('.overrides tbody tr', qr/alice/, 10), 'once more';
    $browser->click('.overrides td button');
    ok $browser->wait_text('#overrides-result', qr/^Removed .* alice in user/, 10),
       'removed in the list';
    ok wait_until(sub { !$override->() }, 10), 'there is none';

    clean('buttons');
};


subtest 'keys are text' => sub {
    status_of('/user', $MARKUP) for 1 .. 20;

    ok look_up($MARKUP), 'a key with markup';
    is $browser->text('#found-key'), $MARKUP, 'is shown as it is';
    like $browser->text(row('user')), qr/rejected/, 'and found';
    ok wait_until(sub { grep { $_ eq $MARKUP } $browser->texts('.bars .key') },
                  20), 'among the top keys';

    act('login', 'ban', qr/banned/);
    ok wait_until(sub { grep { $_ eq $MARKUP }
                        $browser->texts('.overrides .key') }, 20),
       'among the overrides';
    ok act('login', 'remove override', qr/removed/), 'it can be removed';

    look_up('bob');
    $browser->click('.bars .key');
    ok $browser->wait_text('#found-key', qr/^(?!bob)/, 10), 'by a click';

    my $key = "100%25 caf%C3%A9 a/b?c#d";

    ok look_up($key), 'a key with all kinds of bytes';
    is $redis->cmd('EXISTS', "ratelimit:user:{100% caf\xc3\xa9 a/b?c#d}"), 0,
       'has no state';
    act('user', 'ban', qr/banned/);
    is api('overrides?limit=user')->{overrides}[0]{key}, $key, 'is banned';
    act('user', 'remove override', qr/removed/);

    ok !$browser->script('return "hacked" in window'), 'no script of a key ran';
    is $browser->script('return document.querySelectorAll("img").length'), 1,
       'no image but the icon';
    clean('keys');
    is_deeply [grep { m{/x$} } keys %seen], [], 'no image was requested';
};


subtest 'the keyboard is enough' => sub {
    $browser->go("$origin/console/");
    $browser->wait_text('#about', qr/read and write/, 20);

    $browser->press('/');
    is $browser->script('return document.activeElement.id'), 'key', 'the field';
    $browser->press('bob', 'Enter');
    ok $browser->wait_text('.states', qr/^login/m, 20), 'a key by Enter';

    # to the first "Ban" and no further

    my $at = sub {
        return $browser->script('const node = document.activeElement;
            return node.dataset.do || node.id || node.textContent');
    };

    for (1 .. 12) {
        $browser->press('Tab');
        last if $at->() eq 'ban';
    }

    is $at->(), 'ban', 'a button by Tab';
    is $browser->script('return getComputedStyle(document.activeElement)
                         .outlineStyle'), 'solid', 'the focus can be seen';

    $browser->press('Enter');
    ok $browser->wait_text('#found-result', qr/banned/, 20), 'it works';
    is scalar @{ api('overrides')->{overrides} }, 1, 'in the API';

    act('user', 'remove override', qr/removed/);
    $browser->press('Escape');
    ok $browser->script('return document.getElementById("found").hidden'),
       'closed by Escape';
    is $at->(), 'key', 'and the focus is back';

    my @unnamed = @{ $browser->script('
        return [...document.querySelectorAll("input, select, button")]
            .filter((node) => !(node.labels && node.labels.length)
                              && !node.textContent.trim()
                              && !node.getAttribute("aria-label"))
            .map((node) => node.outerHTML)') };

    is_deeply \@unnamed, [], 'each field and button has a name';
};


subtest 'which limits apply, which capacity' => sub {
    $browser->type('#explain-host', 'localhost');
    $browser->type('#explain-uri', '/login');
    $browser->press('Enter');
    ok $browser->wait_text('#explain', qr/location \/login .*login by/s, 20),
       'a request is explained';

    status_of('/trial', 'carol') for 1 .. 30;
    ok $browser->wait_text('#advise', qr/^trial\n.*rejects nothing/s, 30),
       'a curve';
};


subtest 'dark and light, wide and narrow' => sub {
    my $back = 'return getComputedStyle(document.body).backgroundColor';

    $browser->prefers(dark => 0);
    my $light = $browser->script($back);
    $browser->prefers(dark => 1);
    isnt $browser->script($back), $light, 'two schemes';
    $browser->prefers(dark => 0);

    for my $width (360, 800, 1280) {
        $browser->resize($width, 800);
        look_up('bob');
        is $browser->script('return document.documentElement.scrollWidth'),
           $width, "$width: nothing sticks out";
    }

    $browser->resize(1280, 900);
    clean('schemes');
};


subtest 'an API that only reads; other machines' => sub {
    my $other = 'http://127.0.0.1:' . $nginx->port(2);

    $browser->go('about:blank');
    $browser->requests;
    $browser->go("$other/console/#key=bob");
    ok $browser->wait_text('#about', qr/read only$/, 20), 'read only';
    ok $browser->wait_text('.states', qr/^login/m, 20), 'a key';
    is $browser->script('return [...document.querySelectorAll(".states button")]
                         .filter((node) => node.offsetParent).length'), 0,
       'no buttons';
    like $browser->text('#found-note'), qr/ratelimit_api write;/, 'and why';

    ok $browser->wait_text('.machines thead', qr/this machine\s+b\s+c\s+all/, 20),
       'machines side by side';
    like $browser->text('.machines tbody tr:last-child'),
         qr/^\Q${\ $redis->addr}\E(?:\s+\d\S*\s\S+){2}/, 'with their servers';
    ok $browser->wait_text('#outage', qr/^c: no data, status 502/, 20),
       'one does not answer';

    clean('machines', origin => $other, failures => 1);
};


subtest 'pages of other sites change nothing' => sub {
    my $target = "$origin/ratelimit/limits/user/keys/victim";
    my $enemy = 'http://127.0.0.1:' . $nginx->port(3);

    write_file($nginx->dir . '/html/enemy.html', <<"EOT");
<!DOCTYPE html>
<iframe name="frame"></iframe>
<form method="post" target="frame" action="$target/override"
      enctype="text/plain"><input name='{"ban":true,"x":"' value='"}'></form>
<script>
const target = '$target';
const header = { 'X-RateLimit-Write': '1' };
const json = { 'Content-Type': 'application/json' };
const body = '{"ban":true}';
const tries = [];

for (const mode of ['cors', 'no-cors', 'same-origin']) {
    for (const headers of [{}, header, json, { ...header, ...json }]) {
        tries.push([target, { method: 'DELETE', mode, headers }],
                   [target + '/override', { method: 'PUT', mode, headers, body }],
                   [target + '/override', { method: 'POST', mode, headers,
                                            body }]);
    }
}

document.forms[0].submit();

Promise.all(tries.map(([url, options]) => {
    try {
        return fetch(url, options).then((r) => r.type, () => 'refused');
    } catch (error) {
        return 'refused';
    }
})).then((results) => { window.results = results; });
</script>
EOT

    status_of('/user', 'victim') for 1 .. 3;

    my $before = $redis->cmd('HGETALL', 'ratelimit:user:{victim}');

    ok @$before, 'a key with a state';

    $browser->go("$enemy/enemy.html");
    ok $browser->wait_script('return Array.isArray(window.results)', 30),
       'a page of another origin tries';

    my @results = @{ $browser->script('return window.results') };

    is scalar @results, 36, 'all of them';
    is_deeply [grep { !/^(?:refused|opaque)$/ } @results], [], 'it reads nothing';
    is_deeply $redis->cmd('HGETALL', 'ratelimit:user:{victim}'), $before,
              'the key is as it was';
    is_deeply api('overrides')->{overrides}, [], 'there is no override';

    $browser->log;
    $browser->go("$enemy/none");
    $browser->script('const frame = document.createElement("iframe");
                      frame.src = arguments[0]; document.body.append(frame)',
                     "$origin/console/");
    ok wait_until(sub { grep { $_->{message} =~ /frame-ancestors/ } $browser->log },
                  20), 'nor can it show the page in a frame';
};


subtest 'an outage is told in words' => sub {
    $nginx->reload(conf => $CONF =~ s/timeout 20s/timeout 50ms/gr
                           . 'ratelimit_breaker failures=2 probe=200ms;');
    $nginx->old_workers_gone(10);
    $browser->go('about:blank');
    $browser->requests;
    $browser->log;
    $browser->go("$origin/console/");
    ok $browser->wait_text('#live', qr/^live$/, 20), 'the page';

    $redis->pause;

    ok wait_until(sub {
        status_of('/user', "k$_") for 1 .. 3;
        ($browser->text('#outage') // '') =~ /unavailable/;
    }, 30), 'Redis stops';

    like $browser->text('#outage'),
         qr/^Redis\ \Q${\ $redis->addr}\E\ has\ been\ unavailable\ for\ \d+\ s
            \ \(timeout\):\ its\ keys\ get\ this\ machine.s\ share
            \ of\ the\ limit\.$/x, 'in words';
    is $browser->script('return document.getElementById("said").textContent'),
       'Redis ' . $redis->addr . ' has been unavailable', 'for those who listen';
    like $browser->text('.servers tbody tr'), qr/unavailable.*timeout/s,
         'among the servers';

    $redis->resume;
    ok wait_until(sub { $browser->script('return document.getElementById'
                                         . '("outage").hidden') }, 30), 'it ends';
    is $browser->script('return document.getElementById("said").textContent'),
       'All Redis servers answer again.', 'said, too';

    clean('an outage', failures => 1);
};

$browser->stop;
$nginx->finish;

done_testing();
