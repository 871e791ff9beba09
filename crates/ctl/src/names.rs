//! Names of interfaces, and of what the endpoints of peers are.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::text::number;

/// `host:port`; the host may be an address (without brackets, perhaps with `%scope`) or a name to
/// resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// An address without brackets, or a name.
    pub host: String,
    /// A UDP port.
    pub port: u16,
}

impl HostPort {
    /// The address, if it is one and no name.
    pub fn numeric(&self) -> Option<SocketAddr> {
        let Self { host, port } = self;
        match host.contains(':') {
            true => endpoint(&format!("[{host}]:{port}")),
            false => Some(SocketAddr::new(host.parse().ok()?, *port)),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Whether `name` can be an interface's: `[a-zA-Z0-9_=+.-]{1,15}`, and neither `.` nor `..`.
///
/// # Errors
/// Words for people.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
    let length = (1..=15).contains(&name.len());
    if length && name.bytes().all(good) && name != "." && name != ".." {
        return Ok(());
    }
    Err(format!(
        "{name:?} is no interface name: expected 1 to 15 letters, digits or any of _=+.-"
    ))
}

/// `ip:port`, `[ip]:port`, `[ip%scope]:port` where the scope is an interface's index or, as wg(8)
/// sends it, its name.
///
/// An IPv4 address inside an IPv6 one counts as IPv4.
pub(crate) fn endpoint(value: &str) -> Option<SocketAddr> {
    let (_, port) = value.rsplit_once(':')?;
    number::<u16>(port)?;
    let endpoint: SocketAddr = match value.parse() {
        Ok(endpoint) => endpoint,
        Err(_) => {
            let (addr, scope) = value.strip_prefix('[')?.split_once('%')?;
            let (scope, port) = scope.split_once("]:")?;
            let scope = adit_io::helper::files::index(scope).ok()?;
            format!("[{addr}%{scope}]:{port}").parse().ok()?
        }
    };
    Some(match endpoint.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, endpoint.port())),
        IpAddr::V6(_) => endpoint,
    })
}
