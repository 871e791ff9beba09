//! What to connect to.

use std::net::{IpAddr, SocketAddr};

use super::error::NetError;

/// What to connect to inside a tunnel: an address, or a name that is looked up there, and a port.
///
/// ```
/// use adit::net::Target;
/// # fn takes(_: impl Into<Target>) {}
/// takes("intranet.example:80");
/// takes("[fd00::1]:80");
/// takes(("intranet.example", 80));
/// takes(std::net::SocketAddr::from(([10, 0, 0, 1], 80)));
/// ```
#[derive(Clone, Debug)]
pub struct Target(TargetKind);

#[derive(Clone, Debug)]
enum TargetKind {
    Address(SocketAddr),
    Name(String, u16),
    /// Text, to be read when it is used.
    Text(String),
}

/// What a target is.
pub(super) enum Place<'a> {
    Address(SocketAddr),
    Name(&'a str, u16),
}

impl Target {
    pub(super) fn place(&self) -> Result<Place<'_>, NetError> {
        match &self.0 {
            TargetKind::Address(address) => Ok(Place::Address(*address)),
            TargetKind::Name(name, port) => Ok(of_host(name, *port)),
            TargetKind::Text(text) => {
                if let Ok(address) = text.parse() {
                    return Ok(Place::Address(address));
                }
                let wrong = || NetError::Target(text.clone());
                let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
                let is_host = !host.is_empty() && !host.contains([':', '[', ']', '/', '@']);
                let port = port.parse().ok().filter(|_| is_host).ok_or_else(wrong)?;
                Ok(of_host(host, port))
            }
        }
    }
}

/// A host is an address or a name.
fn of_host(host: &str, port: u16) -> Place<'_> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match bare.unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => Place::Address(SocketAddr::new(address, port)),
        Err(_) => Place::Name(host, port),
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self(TargetKind::Address(address))
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        Self(TargetKind::Text(text.to_owned()))
    }
}

impl From<String> for Target {
    fn from(text: String) -> Self {
        Self(TargetKind::Text(text))
    }
}

impl From<(&str, u16)> for Target {
    fn from((host, port): (&str, u16)) -> Self {
        Self(TargetKind::Name(host.to_owned(), port))
    }
}

impl From<(IpAddr, u16)> for Target {
    fn from(address: (IpAddr, u16)) -> Self {
        Self(TargetKind::Address(address.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(target: impl Into<Target>) -> String {
        match target.into().place() {
            Ok(Place::Address(address)) => format!("address {address}"),
            Ok(Place::Name(name, port)) => format!("name {name} {port}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn targets_are_addresses_or_names_with_a_port() {
        assert_eq!(shown("10.0.0.1:80"), "address 10.0.0.1:80");
        assert_eq!(shown("[fd00::1]:80"), "address [fd00::1]:80");
        assert_eq!(shown(("fd00::1", 80)), "address [fd00::1]:80");
        assert_eq!(shown(("[fd00::1]", 80)), "address [fd00::1]:80");
        assert_eq!(shown("host.example:80"), "name host.example 80");
        assert_eq!(shown(("host", 1)), "name host 1");
        for wrong in [
            "host",
            ":80",
            "host:",
            "host:65536",
            "fd00::1:80",
            "a/b:1",
            "",
        ] {
            assert!(shown(wrong).contains("is not name:port"), "{wrong}");
        }
    }
}
