//! What files say, read and checked.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use adit::{IpBlock, PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// What a proxy is to do.
#[derive(Debug)]
pub struct ProxyConfig {
    /// Its tunnel.
    pub tunnel: TunnelPart,
    /// What it offers to clients, in the order of the file.
    pub services: Vec<ProxyService>,
    /// Which addresses of a name are tried.
    pub resolve: Resolve,
}

/// The tunnel of a proxy.
#[derive(Debug)]
pub struct TunnelPart {
    /// Its private key.
    pub private_key: PrivateKey,
    /// The inner addresses of this end; at least one.
    pub addresses: Vec<IpAddr>,
    /// DNS servers inside the tunnel.
    pub dns: Vec<IpAddr>,
    /// The MTU of the inner network, if the file has one.
    pub mtu: Option<usize>,
    /// The port for datagrams of peers; 0 for any.
    pub listen_port: u16,
    /// Peers.
    pub peers: Vec<PeerPart>,
    /// Addresses inside the tunnel that are asked whether they are there.
    pub check_alive: Vec<IpAddr>,
    /// How often.
    pub check_alive_interval: Duration,
}

/// A peer of a proxy's tunnel.
#[derive(Debug)]
pub struct PeerPart {
    /// Its name, from a comment.
    pub name: Option<String>,
    /// Its public key.
    pub public_key: PublicKey,
    /// The key that both have beside.
    pub preshared_key: Option<PresharedKey>,
    /// Where it is: a name is looked up outside the tunnel.
    pub endpoint: Option<ProxyEndpoint>,
    /// Whether a packet is sent to it after this time without one.
    pub keepalive: Option<Duration>,
    /// What is behind it.
    pub allowed_ips: Vec<IpBlock>,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyEndpoint {
    /// The host.
    pub host: EndpointHost,
    /// The port.
    pub port: u16,
}

/// A host, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointHost {
    /// An address.
    Address(IpAddr),
    /// A name, to be looked up.
    Name(String),
}

/// Where a service takes clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// A TCP port, or a UDP port, of this host.
    Port(SocketAddr),
    /// A UNIX socket.
    Unix(PathBuf),
}

/// A name and a password that a client has to give.
#[derive(Clone)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password.
    pub password: Zeroizing<String>,
}

/// The files, in PEM, by which clients know a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, and those between it and one that clients trust.
    pub chain: NamedFile,
    /// Its private key.
    pub key: NamedFile,
}

/// A file that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The line that names it.
    pub line: usize,
    /// Where it is.
    pub path: PathBuf,
}

/// Something that a proxy offers.
#[derive(Debug)]
pub struct ProxyService {
    /// The line of the file where its section begins; 0 for one of the command line.
    pub line: usize,
    /// What it is.
    pub kind: ServiceKind,
}

/// What a service is.
#[derive(Debug)]
pub enum ServiceKind {
    /// A SOCKS5 proxy.
    Socks5 {
        /// Where clients come to.
        bind: Bind,
        /// What they have to give.
        credentials: Option<Credentials>,
    },
    /// An HTTP proxy.
    Http {
        /// Where clients come to.
        bind: Bind,
        /// What they have to give.
        credentials: Option<Credentials>,
        /// What the proxy shows them, if they speak TLS with it.
        certificate: Option<CertificateFiles>,
    },
    /// A proxy for TLS, which takes the host from the client's SNI.
    Sni {
        /// Where clients come to.
        bind: Bind,
    },
    /// Connections to a port of this host go into the tunnel.
    TcpClient {
        /// Where clients come to.
        bind: Bind,
        /// Where they get to, inside the tunnel.
        target: ProxyEndpoint,
    },
    /// Connections to a port inside the tunnel go to a target outside.
    TcpServer {
        /// The port inside the tunnel.
        port: u16,
        /// Where they get to, outside the tunnel.
        target: ProxyEndpoint,
    },
    /// Datagrams to a port of this host go into the tunnel.
    UdpClient {
        /// Where clients send to.
        bind: SocketAddr,
        /// Where they get to, inside the tunnel.
        target: ProxyEndpoint,
        /// A client that is silent for so long is forgotten: 136 years where the file says never.
        inactivity: Duration,
    },
    /// Datagrams to a port inside the tunnel go to a target outside.
    UdpServer {
        /// The port inside the tunnel.
        port: u16,
        /// Where they get to, outside the tunnel.
        target: ProxyEndpoint,
        /// A client that is silent for so long is forgotten: 136 years where the file says never.
        inactivity: Duration,
    },
    /// Standard input and output are one connection into the tunnel.
    Stdio {
        /// Where it gets to, inside the tunnel.
        target: ProxyEndpoint,
    },
}

/// Which addresses of a name are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolve {
    /// As the stack has them: those of both families.
    #[default]
    Auto,
    /// Only those of IPv4.
    Ipv4,
    /// Only those of IPv6.
    Ipv6,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ProxyEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            EndpointHost::Address(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            EndpointHost::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
