//! One field of each interface or peer, byte for byte as `wg show IF FIELD` prints it: scripts read
//! that.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use zeroize::Zeroizing;

use super::{InterfaceJson, PeerJson};

/// A field that `wg show` prints of an interface by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The interface's public key.
    PublicKey,
    /// The interface's private key.
    PrivateKey,
    /// The UDP port.
    ListenPort,
    /// The firewall mark.
    Fwmark,
    /// The public key of each peer.
    Peers,
    /// The preshared key of each peer.
    PresharedKeys,
    /// The endpoint of each peer.
    Endpoints,
    /// The allowed IPs of each peer.
    AllowedIps,
    /// When each peer had its latest handshake.
    LatestHandshakes,
    /// The bytes from and to each peer.
    Transfer,
    /// The interval of persistent keepalives of each peer.
    PersistentKeepalive,
    /// All of it.
    Dump,
}

impl Field {
    /// Every field, in the order of wg(8).
    pub const ALL: [Self; 12] = [
        Self::PublicKey,
        Self::PrivateKey,
        Self::ListenPort,
        Self::Fwmark,
        Self::Peers,
        Self::PresharedKeys,
        Self::Endpoints,
        Self::AllowedIps,
        Self::LatestHandshakes,
        Self::Transfer,
        Self::PersistentKeepalive,
        Self::Dump,
    ];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "public-key",
            Self::PrivateKey => "private-key",
            Self::ListenPort => "listen-port",
            Self::Fwmark => "fwmark",
            Self::Peers => "peers",
            Self::PresharedKeys => "preshared-keys",
            Self::Endpoints => "endpoints",
            Self::AllowedIps => "allowed-ips",
            Self::LatestHandshakes => "latest-handshakes",
            Self::Transfer => "transfer",
            Self::PersistentKeepalive => "persistent-keepalive",
            Self::Dump => "dump",
        }
    }

    /// Whether it takes keys that only the control socket tells.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::PrivateKey | Self::PresharedKeys | Self::Dump)
    }
}

/// Prints as `wg show IF FIELD` does; `all` is for `wg show all FIELD`, which begins lines with the
/// name.
pub fn print_field(interface: &InterfaceJson, field: Field, all: bool) -> Zeroizing<String> {
    let prefix = match all {
        true => format!("{}\t", interface.name),
        false => String::new(),
    };
    // All at once: a string that grows would leave copies of keys behind.
    let blocks: usize = (interface.peers.iter())
        .map(|peer| peer.allowed_ips.len())
        .sum();
    let size = 256 + interface.peers.len() * (256 + prefix.len()) + blocks * 48;
    let mut text = Zeroizing::new(String::with_capacity(size));
    // Writing to a string cannot fail.
    _ = write_field(&mut text, interface, field, &prefix);
    text
}

fn write_field(out: &mut String, of: &InterfaceJson, field: Field, prefix: &str) -> fmt::Result {
    let per_peer: fn(&mut String, &PeerJson) -> fmt::Result = match field {
        Field::PublicKey => return writeln!(out, "{prefix}{}", maybe(of.public_key.as_deref())),
        Field::PrivateKey => return writeln!(out, "{prefix}{}", maybe(of.private_key.as_deref())),
        Field::ListenPort => return writeln!(out, "{prefix}{}", of.listen_port),
        Field::Fwmark => return writeln!(out, "{prefix}{}", Mark(of.fwmark)),
        Field::Peers => |out, peer| writeln!(out, "{}", peer.public_key),
        Field::PresharedKeys => |out, peer| {
            let key = maybe(peer.preshared_key.as_deref());
            writeln!(out, "{}\t{key}", peer.public_key)
        },
        Field::Endpoints => |out, peer| writeln!(out, "{}\t{}", peer.public_key, EndpointOf(peer)),
        Field::AllowedIps => {
            |out, peer| writeln!(out, "{}\t{}", peer.public_key, BlocksText(peer, ' '))
        }
        Field::LatestHandshakes => |out, peer| {
            let at = peer.latest_handshake.unwrap_or(0);
            writeln!(out, "{}\t{at}", peer.public_key)
        },
        Field::Transfer => |out, peer| {
            let PeerJson {
                transfer_rx,
                transfer_tx,
                ..
            } = peer;
            writeln!(out, "{}\t{transfer_rx}\t{transfer_tx}", peer.public_key)
        },
        Field::PersistentKeepalive => {
            |out, peer| writeln!(out, "{}\t{}", peer.public_key, Keepalive(peer))
        }
        Field::Dump => {
            let private = maybe(of.private_key.as_deref());
            let public = maybe(of.public_key.as_deref());
            let mark = Mark(of.fwmark);
            writeln!(
                out,
                "{prefix}{private}\t{public}\t{}\t{mark}",
                of.listen_port
            )?;
            |out, peer| {
                let key = maybe(peer.preshared_key.as_deref());
                let endpoint = EndpointOf(peer);
                let (blocks, keepalive) = (BlocksText(peer, ','), Keepalive(peer));
                let at = peer.latest_handshake.unwrap_or(0);
                let PeerJson {
                    public_key,
                    transfer_rx,
                    transfer_tx,
                    ..
                } = peer;
                writeln!(
                    out,
                    "{public_key}\t{key}\t{endpoint}\t{blocks}\t{at}\t{transfer_rx}\t{transfer_tx}\t{keepalive}"
                )
            }
        }
    };
    // wg begins the first line alone with the name here, even if there is no line.
    let is_once = field == Field::Endpoints;
    if is_once {
        out.push_str(prefix);
    }
    for peer in &of.peers {
        if !is_once {
            out.push_str(prefix);
        }
        per_peer(out, peer)?;
    }
    Ok(())
}

fn maybe(key: Option<&str>) -> &str {
    key.unwrap_or("(none)")
}

struct Mark(u32);

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("off"),
            mark => write!(f, "{mark:#x}"),
        }
    }
}

struct Keepalive<'a>(&'a PeerJson);

impl fmt::Display for Keepalive<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.persistent_keepalive {
            0 => f.write_str("off"),
            seconds => seconds.fmt(f),
        }
    }
}

/// The endpoint of a peer as wg(8) writes it.
pub(super) struct EndpointOf<'a>(pub(super) &'a PeerJson);

impl fmt::Display for EndpointOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = &self.0.endpoint else {
            return f.write_str("(none)");
        };
        match text.parse() {
            Ok(SocketAddr::V6(addr)) => {
                write!(f, "[{}{}]:{}", in6(*addr.ip()), Scope(addr), addr.port())
            }
            _ => f.write_str(text),
        }
    }
}

/// The scope of an endpoint, by the name of its interface.
struct Scope(SocketAddrV6);

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.scope_id() == 0 {
            return Ok(());
        }
        let socket = std::os::unix::net::UnixDatagram::unbound().map_err(|_| fmt::Error)?;
        match rustix::net::netdevice::index_to_name(socket, self.0.scope_id()) {
            Ok(name) => write!(f, "%{name}"),
            Err(_) => write!(f, "%{}", self.0.scope_id()),
        }
    }
}

struct BlocksText<'a>(&'a PeerJson, char);

impl fmt::Display for BlocksText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(peer, between) = self;
        if peer.allowed_ips.is_empty() {
            return f.write_str("(none)");
        }
        for (number, block) in peer.allowed_ips.iter().enumerate() {
            if number > 0 {
                f.write_char(*between)?;
            }
            f.write_str(&allowed_ip(block))?;
        }
        Ok(())
    }
}

/// An allowed IP as wg(8) writes it.
pub(super) fn allowed_ip(block: &str) -> String {
    let parts = block.split_once('/');
    match parts.and_then(|(ip, len)| Some((ip.parse().ok()?, len))) {
        Some((IpAddr::V6(ip), len)) => format!("{}/{len}", in6(ip)),
        _ => block.to_owned(),
    }
}

/// An address as inet_ntop(3) writes it, with dots where only the last 32 bits are set.
fn in6(ip: Ipv6Addr) -> String {
    let bits = ip.to_bits();
    match bits >> 32 == 0 && bits >> 16 != 0 {
        true => format!(
            "::{}",
            std::net::Ipv4Addr::from(ip.octets()[12..].first_chunk().copied().unwrap_or_default())
        ),
        false => ip.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_addresses_are_written_as_the_c_library_does() {
        for (ip, text) in [
            ("::", "::"),
            ("::1", "::1"),
            ("::1.2.3.4", "::1.2.3.4"),
            ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
            ("fd00:0:0:1::", "fd00:0:0:1::"),
        ] {
            assert_eq!(in6(ip.parse().unwrap()), text);
        }
    }

    #[test]
    fn a_peer_of_which_nothing_is_known_has_words_for_it() {
        let (mut interface, mut peer) = (InterfaceJson::default(), PeerJson::default());
        "wg0".clone_into(&mut interface.name);
        "KEY".clone_into(&mut peer.public_key);
        interface.peers.push(peer);
        let dump = print_field(&interface, Field::Dump, true);
        assert_eq!(
            *dump,
            "wg0\t(none)\t(none)\t0\toff\nwg0\tKEY\t(none)\t(none)\t(none)\t0\t0\t0\toff\n"
        );
        let endpoints = print_field(&interface, Field::Endpoints, false);
        assert_eq!(*endpoints, "KEY\t(none)\n");
    }
}
