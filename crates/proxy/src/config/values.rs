//! The values of a proxy's own keys. Errors say what to write, and repeat no value that may be a secret.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use adit_ctl::config::quote;

use super::model::{Bind, EndpointHost, ProxyEndpoint, Resolve};

/// Longest path of a UNIX socket: `sun_path` of unix(7) without its last zero.
const MAX_UNIX_PATH: usize = 107;
/// Longest name (RFC 1035, section 2.3.4, as text).
const MAX_NAME: usize = 253;
/// Longer than a host is up, and still no overflow when it is added to a time.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

impl Bind {
    /// Whether only this host's own programs reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Port(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Bind {
    type Err = String;

    /// As Go reads it: an address or `localhost`, a colon, and a port. Without an address it is all of this
    /// host's, `[::]`. Or it is `unix:` and an absolute path.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path).map(Self::Unix);
        }
        port_of_host(text).map(Self::Port)
    }
}

fn unix(path: &str) -> Result<PathBuf, String> {
    let is_path = path.starts_with('/') && !path.ends_with('/') && !path.contains('\0');
    match is_path && path.len() <= MAX_UNIX_PATH {
        true => Ok(Path::new(path).to_owned()),
        false => Err(format!(
            "expected unix: and the absolute path of a socket, of at most {MAX_UNIX_PATH} bytes, like \
             unix:/run/proxy.sock"
        )),
    }
}

/// A TCP or UDP port of this host.
pub(super) fn port_of_host(text: &str) -> Result<SocketAddr, String> {
    const EXPECTED: &str = "expected address:port like 127.0.0.1:1080 or [::1]:1080";
    let wrong = |why: &str| format!("{EXPECTED}, got {}{why}", quote(text));
    if number::<u16>(text).is_some() {
        return Err(format!(
            "the address is missing: write 127.0.0.1:{text} for programs of this host"
        ));
    }
    let (host, port) = split(text).ok_or_else(|| wrong(""))?;
    let port = number(port).ok_or_else(|| wrong(", whose port is no number from 0 to 65535"))?;
    let ip = match host {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ if host.eq_ignore_ascii_case("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => match host.parse() {
            Ok(ip) => ip,
            Err(_) if host.contains('%') => {
                return text.parse().map_err(|_| {
                    wrong(", whose scope is to be the number of an interface (`ip link`)")
                });
            }
            Err(_) => return Err(wrong(": a name is not looked up here")),
        },
    };
    Ok(SocketAddr::new(ip, port))
}

impl FromStr for ProxyEndpoint {
    type Err = String;

    /// `host:port`, `address:port` or `[IPv6 address]:port`.
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected host:port like intranet.example:80 or [fd00::1]:80";
        let wrong = |why: &str| format!("{EXPECTED}, got {}{why}", quote(text));
        let (host, port) = split(text).ok_or_else(|| wrong(""))?;
        let port = number(port)
            .filter(|port| *port != 0)
            .ok_or_else(|| wrong(", whose port is no number from 1 to 65535"))?;
        let host = match host.parse::<IpAddr>() {
            // One of IPv4 in that of IPv6 is of IPv4.
            Ok(ip) => EndpointHost::Address(ip.to_canonical()),
            Err(_) if is_name(host) => EndpointHost::Name(host.to_owned()),
            Err(_) if host.contains('%') => {
                return Err(wrong(": an address inside a tunnel has no scope"));
            }
            Err(_) => return Err(wrong("")),
        };
        Ok(Self { host, port })
    }
}

/// Whether this can be the name of a host: letters, digits, `-` and `_`, in labels of at most 63.
fn is_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_letter);
    // Numbers and dots alone are an address with a mistake.
    let is_address = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    host.len() <= MAX_NAME && host.split('.').all(is_label) && !is_address
}

/// Host, without brackets, and port. An IPv6 address has to have brackets.
fn split(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once("]:")?;
        return host.contains(':').then_some((host, port));
    }
    let (host, port) = text.rsplit_once(':')?;
    (!host.contains(':')).then_some((host, port))
}

/// A port inside the tunnel.
pub(super) fn inner_port(text: &str) -> Result<u16, String> {
    let port = number(text).filter(|port| *port != 0);
    port.ok_or_else(|| format!("expected a port from 1 to 65535, got {}", quote(text)))
}

/// Seconds until a client is forgotten; 0 is never.
pub(super) fn inactivity(text: &str) -> Result<Duration, String> {
    let seconds: Option<u32> = number(text);
    match seconds {
        Some(0) => Ok(NEVER),
        Some(seconds) => Ok(Duration::from_secs(seconds.into())),
        None => Err(format!(
            "expected seconds, or 0 for never, got {}",
            quote(text)
        )),
    }
}

/// Seconds between two looks at whether an address is there.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = number::<u32>(text).filter(|seconds| (1..=86_400).contains(seconds));
    let seconds = seconds.map(|seconds| Duration::from_secs(seconds.into()));
    seconds.ok_or_else(|| format!("expected seconds from 1 to 86400, got {}", quote(text)))
}

/// Addresses with commas between them.
pub(super) fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let parts = text.split(',').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .map(|part| {
            part.parse().map_err(|_| {
                format!(
                    "expected addresses with commas between them, got {}",
                    quote(part)
                )
            })
        })
        .collect()
}

/// What `ResolveStrategy` says.
pub(super) fn resolve(text: &str) -> Result<Resolve, String> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Resolve::Auto),
        "ipv4" => Ok(Resolve::Ipv4),
        "ipv6" => Ok(Resolve::Ipv6),
        _ => Err(format!("expected auto, ipv4 or ipv6, got {}", quote(text))),
    }
}

/// Digits only: `str::parse` would take a plus sign, too.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}
