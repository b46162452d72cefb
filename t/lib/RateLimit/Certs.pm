package RateLimit::Certs;

# Certificates for tests, made by openssl in a temporary folder, and signed by
# an authority of their own.
#
#   my $certs = RateLimit::Certs->new;         # an authority; name => 'Other CA'
#   $certs->ca;                                # its certificate, a file
#   $certs->dir;
#
#   my $cert = $certs->make('server',          # the name of the files
#       cn      => 'redis.test',               # default: that name
#       san     => 'DNS:redis.test,IP:127.0.0.1',       # default: none
#       from    => -20, until => -10,          # days from now; default -1, 30
#       password => 'secret',                  # of the key; default: none
#   );
#   $cert->{cert};  $cert->{key};              # files
#
#   $certs->revoke($cert);
#   $certs->crl;                               # the list, a file, made anew
#
#   my %config = $certs->redis($cert);         # lines of redis.conf: TLS with
#                                              # that certificate on its port
#
# The folder ends with the object.

use strict;
use warnings;

use File::Path ();
use POSIX ();

use RateLimit::Util qw(
    find_program keep_files reap slurp spawn temp_dir write_file
);


sub new {
    my ($class, %opt) = @_;

    my $dir = temp_dir('certs');
    my $self = bless { owner => $$, dir => $dir }, $class;

    # the workers of an nginx, and Redis, may run as other users
    chmod 0755, $dir;

    $self->_write('index.txt', '');
    $self->_write('index.txt.attr', "unique_subject = no\n");
    $self->_write('serial', "1000\n");
    $self->_write('crlnumber', "1000\n");
    $self->_write('ca.conf', <<"EOC");
[ca]
default_ca = authority

[authority]
database = $dir/index.txt
new_certs_dir = $dir
serial = $dir/serial
crlnumber = $dir/crlnumber
certificate = $dir/ca.crt
private_key = $dir/ca.key
default_md = sha256
default_crl_days = 30
policy = any
copy_extensions = copy

[any]
commonName = supplied

[req]
distinguished_name = dn
prompt = no

[dn]
CN = unused

[authority_ext]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
EOC

    $self->_openssl(qw(req -x509 -new -newkey ec -pkeyopt
                       ec_paramgen_curve:prime256v1 -nodes -days 30),
                    '-config', "$dir/ca.conf", '-extensions', 'authority_ext',
                    '-subj', '/CN=' . ($opt{name} // 'Test CA'),
                    '-keyout', "$dir/ca.key", '-out', "$dir/ca.crt");

    return $self;
}


sub available { return defined find_program('openssl') }


sub ca  { "$_[0]{dir}/ca.crt" }
sub dir { $_[0]{dir} }


sub make {
    my ($self, $name, %opt) = @_;

    my $dir = $self->{dir};
    my $cn = $opt{cn} // $name;
    my ($cert, $key) = ("$dir/$name.crt", "$dir/$name.key");

    $self->_openssl(qw(req -new -newkey ec -pkeyopt
                       ec_paramgen_curve:prime256v1),
                    defined $opt{password}
                    ? ('-passout', "pass:$opt{password}") : '-nodes',
                    '-config', "$dir/ca.conf", '-subj', "/CN=$cn",
                    (defined $opt{san}
                     ? ('-addext', "subjectAltName=$opt{san}") : ()),
                    '-keyout', $key, '-out', "$dir/$name.csr");

    $self->_openssl(qw(ca -batch -notext), '-config', "$dir/ca.conf",
                    '-startdate', _time($opt{from} // -1),
                    '-enddate', _time($opt{until} // 30),
                    '-in', "$dir/$name.csr", '-out', $cert);

    chmod 0644, $cert, $key;

    return { cert => $cert, key => $key };
}


sub revoke {
    my ($self, $cert) = @_;

    $self->_openssl('ca', '-config', "$self->{dir}/ca.conf",
                    '-revoke', $cert->{cert});
}


sub crl {
    my ($self) = @_;

    $self->_openssl(qw(ca -gencrl), '-config', "$self->{dir}/ca.conf",
                    '-out', "$self->{dir}/ca.crl");

    return "$self->{dir}/ca.crl";
}


sub redis {
    my ($self, $cert, $port) = @_;

    return (
        'port'             => 0,
        'tls-port'         => $port,
        'tls-cert-file'    => $cert->{cert},
        'tls-key-file'     => $cert->{key},
        'tls-ca-cert-file' => $self->ca,
        'tls-auth-clients' => 'no',
    );
}


sub _time {
    my ($days) = @_;

    return POSIX::strftime('%Y%m%d%H%M%SZ', gmtime(time + $days * 86400));
}


sub _write {
    my ($self, $name, $text) = @_;

    write_file("$self->{dir}/$name", $text);
}


sub _openssl {
    my ($self, @args) = @_;

    my $log = "$self->{dir}/openssl.log";
    my $pid = spawn(['openssl', @args], out => $log);
    my $status = reap($pid, 60);

    return if defined $status && $status == 0;

    kill 'KILL', $pid unless defined $status;

    die "openssl $args[0] failed:\n" . slurp($log);
}


sub DESTROY {
    my ($self) = @_;

    return if $self->{owner} != $$;

    local ($?, $!, $@);

    File::Path::remove_tree($self->{dir}) unless keep_files($self->{dir});
}


1;
