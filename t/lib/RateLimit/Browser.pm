package RateLimit::Browser;

# A headless Chromium for tests, told what to do over chromedriver.
#
#   plan skip_all => 'no chromium' unless RateLimit::Browser->available;
#
#   my $browser = RateLimit::Browser->start(width => 1280, height => 900);
#   $browser->go($url);
#   $browser->text('#limits');          # what is shown; undef: no such element
#   $browser->texts('tbody th');        # of all that there are, a list
#   $browser->click('#find button');
#   $browser->type('#key', 'alice');    # into this element
#   $browser->press('Tab', 'Enter');    # to what has the focus; or characters
#   $browser->script('return document.title');      # or with arguments
#   $browser->wait_text('#live', qr/live/, 10);     # true if it comes so far
#   $browser->wait_script('return window.x === 1');
#   $browser->prefers(dark => 1);       # the colour scheme
#   $browser->resize(390, 800);
#   $browser->screenshot($file);        # a PNG
#
#   $browser->log;                      # messages since the last call, each a
#                                       # hash: level, source, message
#   $browser->requests;                 # URLs requested since the last call
#
# What chromedriver refuses is an exception.  Selectors are those of CSS.  The
# browser keeps all of its files in a temporary folder, and ends with the object
# or with the test.

use strict;
use warnings;

use File::Path ();
use HTTP::Tiny ();
use JSON::PP ();
use MIME::Base64 ();
use Scalar::Util ();

use RateLimit::Util qw(
    alive find_program free_port keep_files patience reap slurp spawn temp_dir
    wait_until write_file
);

# how WebDriver names keys that are no characters
my %KEYS = (
    Tab => "\x{e004}", Enter => "\x{e007}", Escape => "\x{e00c}",
    Space => ' ', Shift => "\x{e008}", Left => "\x{e012}", Up => "\x{e013}",
    Right => "\x{e014}", Down => "\x{e015}",
);

# an element in WebDriver's JSON
my $ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';

my $json = JSON::PP->new->utf8->allow_nonref;
my %all;


sub available {
    return defined find_program('chromium')
           && defined find_program('chromedriver');
}


sub start {
    my ($class, %opt) = @_;

    my $dir = temp_dir('browser');
    my $port = free_port();
    my $self = bless {
        owner => $$, dir => $dir, url => "http://127.0.0.1:$port",
        http  => HTTP::Tiny->new(timeout => patience(60)),
    }, $class;

    {
        local $ENV{HOME} = $dir;
        local $ENV{TMPDIR} = $dir;
        local @ENV{qw(http_proxy https_proxy all_proxy)};

        $self->{pid} = spawn(['chromedriver', "--port=$port"],
                             out => "$dir/chromedriver.log", death => 'TERM');
    }

    $all{Scalar::Util::refaddr($self)} = $self;
    Scalar::Util::weaken($all{Scalar::Util::refaddr($self)});

    wait_until(sub {
        my $status = eval { $self->_request('GET', '/status') };
        $status && $status->{ready};
    }, 30) or die "chromedriver did not start:\n"
                  . slurp("$dir/chromedriver.log");

    my ($width, $height) = ($opt{width} // 1280, $opt{height} // 900);
    my $session = $self->_request('POST', '/session', {
        capabilities => { alwaysMatch => {
            browserName => 'chrome',
            'goog:chromeOptions' => {
                binary => find_program('chromium'),
                args => [
                    '--headless=new', '--disable-gpu', '--no-first-run',
                    '--disable-background-networking', '--disable-sync',
                    '--disable-component-update', '--disable-dev-shm-usage',
                    '--no-proxy-server', '--hide-scrollbars',
                    "--user-data-dir=$dir/profile",
                    "--window-size=$width,$height",

                    # root may not use it
                    $> == 0 ? '--no-sandbox' : (),
                ],
            },
            'goog:loggingPrefs' => { browser => 'ALL', performance => 'ALL' },
        } },
    });

    $self->{session} = "/session/$session->{sessionId}";
    $self->{browser} = $session->{capabilities}{'goog:processID'};

    # the browser's own first page is nobody's business

    $self->go('about:blank');
    $self->requests;

    return $self;
}


sub go {
    my ($self, $url) = @_;

    $self->_do('POST', 'url', { url => $url });
}


sub script {
    my ($self, $script, @args) = @_;

    return $self->_do('POST', 'execute/sync',
                      { script => $script, args => \@args });
}


sub text {
    my ($self, $selector) = @_;

    return ($self->texts($selector))[0];
}


sub texts {
    my ($self, $selector) = @_;

    return @{ $self->script('return [...document.querySelectorAll(arguments[0])]'
                            . '.map((node) => node.innerText)', $selector) };
}


sub click {
    my ($self, $selector) = @_;

    $self->_do('POST', 'element/' . $self->_find($selector) . '/click', {});
}


sub type {
    my ($self, $selector, $text) = @_;

    my $id = $self->_find($selector);

    $self->_do('POST', "element/$id/clear", {})
        if $self->script('return document.querySelector(arguments[0]).value',
                         $selector) ne '';
    $self->_do('POST', "element/$id/value", { text => $text });
}


sub press {
    my ($self, @keys) = @_;

    my @actions;

    for (map { $KEYS{$_} // split // } @keys) {
        push @actions, { type => 'keyDown', value => $_ },
                       { type => 'keyUp', value => $_ };
    }

    $self->_do('POST', 'actions', { actions => [
        { type => 'key', id => 'keyboard', actions => \@actions } ] });
}


sub wait_script {
    my ($self, $script, $timeout, @args) = @_;

    return wait_until(sub { $self->script($script, @args) }, $timeout // 10);
}


sub wait_text {
    my ($self, $selector, $regex, $timeout) = @_;

    return wait_until(sub { ($self->text($selector) // '') =~ $regex },
                      $timeout // 10);
}


sub prefers {
    my ($self, %opt) = @_;

    $self->_do('POST', 'goog/cdp/execute', {
        cmd    => 'Emulation.setEmulatedMedia',
        params => { features => [{ name  => 'prefers-color-scheme',
                                   value => $opt{dark} ? 'dark' : 'light' }] },
    });
}


# Of what the page sees; a window can't be as narrow as a phone.

sub resize {
    my ($self, $width, $height) = @_;

    $self->_do('POST', 'goog/cdp/execute', {
        cmd    => 'Emulation.setDeviceMetricsOverride',
        params => { width => $width, height => $height, deviceScaleFactor => 1,
                    mobile => JSON::PP::false },
    });
}


sub screenshot {
    my ($self, $file) = @_;

    return write_file($file, MIME::Base64::decode_base64(
                                 $self->_do('GET', 'screenshot')));
}


sub log {
    my ($self) = @_;

    return @{ $self->_do('POST', 'se/log', { type => 'browser' }) };
}


sub requests {
    my ($self) = @_;

    return map { $_->{params}{request}{url} }
           grep { $_->{method} eq 'Network.requestWillBeSent' }
           map { $json->decode($_->{message})->{message} }
           @{ $self->_do('POST', 'se/log', { type => 'performance' }) };
}


sub stop {
    my ($self) = @_;

    return unless $self->{pid} && $self->{owner} == $$;

    local ($?, $!, $@);

    eval { $self->_do('DELETE', '') } if $self->{session};

    kill 'TERM', $self->{pid};

    if (!defined reap($self->{pid}, 5)) {
        kill 'KILL', $self->{pid};
        reap($self->{pid}, 5);
    }

    undef $self->{pid};

    # it ends with chromedriver, unless that was killed

    my $browser = $self->{browser};

    if ($browser && !wait_until(sub { !alive($browser) }, 5)
        && slurp("/proc/$browser/cmdline") =~ /\Q$self->{dir}\E/)
    {
        kill 'KILL', $browser;
    }

    return;
}


sub _find {
    my ($self, $selector) = @_;

    return $self->_do('POST', 'element', { using => 'css selector',
                                           value => $selector })->{$ELEMENT};
}


sub _do {
    my ($self, $method, $path, $body) = @_;

    return $self->_request($method, $self->{session}
                                    . (length $path ? "/$path" : ''), $body);
}


sub _request {
    my ($self, $method, $path, $body) = @_;

    my $response = $self->{http}->request($method, "$self->{url}$path", {
        headers => { 'Content-Type' => 'application/json' },
        defined $body ? (content => $json->encode($body)) : (),
    });
    my $answer = eval { $json->decode($response->{content}) };

    die "chromedriver: $response->{content}\n" unless ref $answer eq 'HASH';
    die "chromedriver: $answer->{value}{error}: $answer->{value}{message}\n"
        unless $response->{success};

    return $answer->{value};
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$ || $self->{ended}++;

    local ($?, $!, $@);

    delete $all{Scalar::Util::refaddr($self)};
    $self->stop;

    File::Path::remove_tree($self->{dir}) unless keep_files($self->{dir});
}


END {
    $_->DESTROY for grep { defined } values %all;
}


1;
