//! The names by which clients may know this host.

use std::net::{IpAddr, Ipv6Addr};

/// The advice when a name is refused.
pub(super) const HELP: &str = "This host is not known by that name. Use its address, or start `adit metrics` with --host NAME.\n";

/// Which values of the header `Host` are answered.
pub(super) struct Hosts {
    /// In lower case. `None`: any.
    names: Option<Vec<String>>,
}

impl Hosts {
    /// For sockets that no browser can reach.
    pub(super) fn any() -> Self {
        Self { names: None }
    }

    /// `localhost`, the name of the system, that in the address to listen at, and these. An address
    /// is always right: no page of another host has it for its origin.
    pub(super) fn new(listen: &str, names: &[String]) -> Self {
        let system = rustix::system::uname();
        let own = ["localhost".to_owned(), host(listen).to_owned()];
        let system = system.nodename().to_string_lossy().into_owned();
        let all = own.into_iter().chain([system]).chain(names.iter().cloned());
        let names = all.map(|name| plain(&name)).collect();
        Self { names: Some(names) }
    }

    pub(super) fn contain(&self, header: &[u8]) -> bool {
        let Some(names) = &self.names else {
            return true;
        };
        let Ok(header) = std::str::from_utf8(header) else {
            return false;
        };
        let name = host(header);
        let literal = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        match literal {
            Some(literal) => literal.parse::<Ipv6Addr>().is_ok(),
            None => name.parse::<IpAddr>().is_ok() || names.contains(&plain(name)),
        }
    }
}

/// Without its port.
fn host(text: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (host.ends_with(']') || !host.contains(':')) => host,
        _ => text,
    }
}

fn plain(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_known_names_are_answered_and_no_others() {
        let hosts = Hosts::new("gw.example:9586", &["Prom.Example".to_owned()]);
        let system = rustix::system::uname();
        let system = system.nodename().to_string_lossy().into_owned();
        for known in [
            "127.0.0.1",
            "127.0.0.1:9586",
            "192.0.2.7:80",
            "[::1]",
            "[::1]:9586",
            "[2001:db8::1]:1",
            "localhost",
            "LocalHost:9586",
            "localhost.",
            "gw.example:9586",
            "gw.example",
            "prom.example:1",
            "PROM.example.",
            &system,
        ] {
            assert!(hosts.contain(known.as_bytes()), "{known}");
        }
        for other in [
            "",
            ":9586",
            "evil.example",
            "evil.example:9586",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:9586:evil.example",
            "evil.example@127.0.0.1",
            "[::1].evil.example",
            "[evil.example]",
            "xgw.example",
            "localhost..",
            "local host",
        ] {
            assert!(!hosts.contain(other.as_bytes()), "{other}");
            assert!(Hosts::any().contain(other.as_bytes()));
        }
        assert!(!hosts.contain(b"\xff"));
    }

    #[test]
    fn where_no_name_is_listened_at_none_is_added() {
        for listen in ["127.0.0.1:9586", "[::]:9586", "0.0.0.0:1"] {
            let hosts = Hosts::new(listen, &[]);
            assert!(!hosts.contain(b"evil.example") && !hosts.contain(b""));
            assert!(hosts.contain(b"localhost:1"));
        }
    }
}
