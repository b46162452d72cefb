package RateLimit::Resp;

# Replies in bytes, as servers send them: for the policies of
# RateLimit::FakeRedis.
#
#   use RateLimit::Resp;                # exports all of these
#
#   bulk('a');                          # a string
#   array('a', 'b');                    # a list of strings
#   slots_reply([0, 16383, $host, $port], ...);
#                                       # to CLUSTER SLOTS: ranges of slots; more
#                                       # hosts and ports are replicas
#   all_slots($host, $port);            # the same: a node that has all of them
#   cluster_policy($reply, eval => $bytes);     # of a fake that is a node and
#                                       # replies so to CLUSTER SLOTS
#   sentinel_policy($addr, %others);    # of a fake that is a sentinel and names
#                                       # this master, as "host:port" or as the
#                                       # bytes of its reply; and replies to
#                                       # other commands, by their names
#   switch_event('mymaster', $old, $new);       # that it pushes: of servers, or
#                                       # of any words

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(
    bulk array slots_reply all_slots cluster_policy sentinel_policy switch_event
);

my $MAX = 2 ** 14 - 1;  # the last slot


sub bulk  { return '$' . length($_[0]) . "\r\n$_[0]\r\n" }
sub array { return '*' . @_ . "\r\n" . join '', map { bulk($_) } @_ }


sub slots_reply {
    my (@ranges) = @_;

    return '*' . @ranges . "\r\n" . join '', map {
        my ($from, $to, @at) = @$_;
        my $nodes = '';
        my $n = 2;

        while (my ($host, $port) = splice @at, 0, 2) {
            $nodes .= "*3\r\n" . bulk($host) . ":$port\r\n" . bulk('e' x 40);
            $n++;
        }

        "*$n\r\n:$from\r\n:$to\r\n$nodes"
    } @ranges;
}


sub all_slots {
    my (@nodes) = @_;

    return slots_reply([0, $MAX, @nodes]);
}


sub cluster_policy {
    my ($slots, %rest) = @_;

    return { handshake => { 'CLUSTER SLOTS' => $slots }, %rest };
}


sub sentinel_policy {
    my ($master, %others) = @_;

    $master = array(split /:/, $master) if $master =~ /^[\d.]+:\d+\z/;

    return { handshake => {
        'SENTINEL GET-MASTER-ADDR-BY-NAME' => $master,
        SUBSCRIBE => "*3\r\n" . bulk('subscribe') . bulk('+switch-master')
                     . ":1\r\n",
        PING      => array('pong', ''),
        %others,
    } };
}


sub switch_event {
    my (@words) = @_;

    return array('message', '+switch-master',
                 join ' ', map { ref ? split /:/, $_->addr : $_ } @words);
}


1;
