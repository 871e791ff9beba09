//! The sockets of this host that a proxy listens on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind as bind_socket, listen, socket_with, sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;

use super::certificate::read_certificate;
use super::options::ServeError;
use super::report::ServiceName;
use super::secret::LoginCheck;
use crate::config::{Bind, ProxyEndpoint, ProxyService, ServiceKind};

/// Connections that wait to be accepted; the system has a limit of its own.
const BACKLOG: i32 = 4096;

/// What a service has before it begins.
pub(crate) enum PreparedService {
    /// A socket that listens, and what its clients have to give.
    Listens {
        fd: OwnedFd,
        service: ServiceName,
        login: Option<LoginCheck>,
        target: Option<ProxyEndpoint>,
        /// What clients are shown that speak TLS with the proxy, if they do.
        tls: Option<Arc<ServerConfig>>,
    },
    /// A port of this host for datagrams.
    Datagrams {
        socket: UdpSocket,
        target: ProxyEndpoint,
        inactivity: std::time::Duration,
    },
    /// A TCP port inside the tunnel, which is had once there is one.
    InnerTcp {
        line: usize,
        port: u16,
        target: ProxyEndpoint,
    },
    /// A UDP port inside the tunnel.
    InnerUdp {
        line: usize,
        port: u16,
        target: ProxyEndpoint,
        inactivity: std::time::Duration,
    },
    /// Standard input and output.
    Stdio {
        target: ProxyEndpoint,
        descriptors: [OwnedFd; 2],
    },
}

/// All sockets of this host that a proxy listens on. Those of UNIX vanish with it.
pub struct ProxyListeners {
    pub(crate) prepared: Vec<PreparedService>,
    pub(crate) sockets: SocketFiles,
    addresses: Vec<Option<SocketAddr>>,
}

/// Opens all sockets that services listen on, and allows the process as many descriptors as it may have. To
/// be called before the process gives up what this takes.
///
/// # Errors
///
/// [`ServeError::Bind`] and [`ServeError::File`]: what was opened is closed again.
pub fn bind(services: &[ProxyService]) -> Result<ProxyListeners, ServeError> {
    raise_descriptor_limit();
    let mut listeners = ProxyListeners {
        prepared: Vec::new(),
        sockets: SocketFiles::default(),
        addresses: Vec::new(),
    };
    for service in services {
        let prepared = listeners.open(service)?;
        let address = match &prepared {
            PreparedService::Listens { fd, .. } => super::socket::local_address(fd),
            PreparedService::Datagrams { socket, .. } => socket.local_addr().ok(),
            _ => None,
        };
        listeners.addresses.push(address);
        listeners.prepared.push(prepared);
    }
    Ok(listeners)
}

impl ProxyListeners {
    /// The addresses of this host that services have, in their order; `None` for those that have none.
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        &self.addresses
    }

    /// Has these descriptors be read and written in place of standard input and output.
    pub fn set_stdio(&mut self, input: OwnedFd, output: OwnedFd) {
        let stdio = self
            .prepared
            .iter_mut()
            .find_map(|prepared| match prepared {
                PreparedService::Stdio { descriptors, .. } => Some(descriptors),
                _ => None,
            });
        if let Some(descriptors) = stdio {
            *descriptors = [input, output];
        }
    }

    /// Listens for those who ask for pages ([`InfoOptions`](super::InfoOptions)); a UNIX socket is removed with those
    /// of services.
    ///
    /// # Errors
    ///
    /// [`ServeError::Bind`].
    pub fn listen_for_pages(&mut self, bind: &Bind) -> Result<OwnedFd, ServeError> {
        self.listen(0, bind)
    }

    fn open(&mut self, service: &ProxyService) -> Result<PreparedService, ServeError> {
        let line = service.line;
        let mut listens =
            |bind: &Bind, service, login: Option<&_>, target: Option<&ProxyEndpoint>| {
                Ok(PreparedService::Listens {
                    fd: self.listen(line, bind)?,
                    service,
                    login: login.map(LoginCheck::new),
                    target: target.cloned(),
                    tls: None,
                })
            };
        match &service.kind {
            ServiceKind::Socks5 { bind, credentials } => {
                listens(bind, ServiceName::Socks5, credentials.as_ref(), None)
            }
            ServiceKind::Http {
                bind,
                credentials,
                certificate,
            } => {
                let certificate = certificate.as_ref().map(read_certificate).transpose();
                let certificate =
                    certificate.map_err(|(line, why)| ServeError::File { line, why })?;
                let mut prepared = listens(bind, ServiceName::Http, credentials.as_ref(), None)?;
                if let PreparedService::Listens { tls, .. } = &mut prepared {
                    *tls = certificate;
                }
                Ok(prepared)
            }
            ServiceKind::Sni { bind } => listens(bind, ServiceName::Sni, None, None),
            ServiceKind::TcpClient { bind, target } => {
                listens(bind, ServiceName::TcpClient, None, Some(target))
            }
            ServiceKind::UdpClient {
                bind,
                target,
                inactivity,
            } => {
                let socket = bind_on(*bind, SocketType::DGRAM);
                Ok(PreparedService::Datagrams {
                    socket: socket.map_err(|error| refused(line, bind, error))?.into(),
                    target: target.clone(),
                    inactivity: *inactivity,
                })
            }
            ServiceKind::TcpServer { port, target } => Ok(PreparedService::InnerTcp {
                line,
                port: *port,
                target: target.clone(),
            }),
            ServiceKind::UdpServer {
                port,
                target,
                inactivity,
            } => Ok(PreparedService::InnerUdp {
                line,
                port: *port,
                target: target.clone(),
                inactivity: *inactivity,
            }),
            ServiceKind::Stdio { target } => {
                let another = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned();
                let refused = |error| refused(line, &"standard input and output", error);
                Ok(PreparedService::Stdio {
                    target: target.clone(),
                    descriptors: [
                        another(&io::stdin()).map_err(refused)?,
                        another(&io::stdout()).map_err(refused)?,
                    ],
                })
            }
        }
    }

    fn listen(&mut self, line: usize, bind: &Bind) -> Result<OwnedFd, ServeError> {
        let listener = match bind {
            Bind::Port(address) => listen_on(*address),
            Bind::Unix(path) => self.sockets.listen(path),
        };
        listener.map_err(|error| refused(line, bind, error))
    }
}

fn refused(line: usize, bind: &dyn std::fmt::Display, error: io::Error) -> ServeError {
    ServeError::Bind {
        line,
        bind: bind.to_string(),
        error,
    }
}

fn listen_on(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = bind_on(address, SocketType::STREAM)?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// A socket that has an address. `[::]` is every address of both families, as in Go, whatever this host has IPv6 do.
fn bind_on(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let is_any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = match socket_with(family, kind, flags, None) {
        // There is no IPv6.
        Err(Errno::AFNOSUPPORT) if is_any => {
            return bind_on((Ipv4Addr::UNSPECIFIED, address.port()).into(), kind);
        }
        made => made?,
    };
    if is_any {
        sockopt::set_ipv6_v6only(&fd, false)?;
    }
    if kind == SocketType::STREAM {
        // A port that was just left can be had again.
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    bind_socket(&fd, &address)?;
    Ok(fd)
}

/// Files of UNIX sockets, which are removed at the end.
#[derive(Default)]
pub(crate) struct SocketFiles(Vec<(PathBuf, (u64, u64))>);

impl SocketFiles {
    fn listen(&mut self, path: &Path) -> io::Result<OwnedFd> {
        remove_stale(path)?;
        let listener = UnixListener::bind(path)?;
        if let Some(identity) = identity(path) {
            self.0.push((path.to_owned(), identity));
        }
        listener.set_nonblocking(true)?;
        // The standard library's backlog is short.
        listen(&listener, BACKLOG)?;
        Ok(listener.into())
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for (path, made) in &self.0 {
            // It may be another one's since, and a sandbox may keep this process from it.
            if identity(path) == Some(*made) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    metadata
        .file_type()
        .is_socket()
        .then(|| (metadata.dev(), metadata.ino()))
}

/// Removes the socket that an earlier process left. One that is served stays, as does any other file: then the
/// path cannot be had.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_stale = identity(path).is_some()
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    match is_stale {
        true => std::fs::remove_file(path),
        false => Ok(()),
    }
}

/// Allows as many descriptors as the process may have. What it may not, it finds out at the limit.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

#[cfg(test)]
mod tests {
    use adit_netlink::netns::{Netns, set_sysctl};

    use super::*;

    #[test]
    fn every_address_is_of_both_families_whatever_this_host_has_ipv6_do() {
        // A network of its own takes root.
        let Ok(network) = Netns::new() else { return };
        let bound = network.run(|| {
            set_sysctl("net.ipv6.bindv6only", "1").expect("a setting of the network");
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            for kind in [SocketType::STREAM, SocketType::DGRAM] {
                let fd = bind_on(any, kind).expect("a port");
                assert_eq!(sockopt::ipv6_v6only(&fd), Ok(false), "{kind:?}");
            }
            // Others are what the host says.
            let other = bind_on((Ipv6Addr::LOCALHOST, 0).into(), SocketType::STREAM);
            assert!(other.is_err(), "the interface is down");
        });
        bound.expect("it is entered");
    }
}
