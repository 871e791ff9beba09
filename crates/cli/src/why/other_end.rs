//! The other end of the tunnel, where its process is on this host, too, as with containers that share
//! /run/adit: it is asked for its status. Of a peer elsewhere, nobody here may ask.

use std::net::IpAddr;

use adit_ctl::status::{self, InterfaceJson, PeerJson};

use crate::show;
use crate::why::blocks::blocks;

/// Interfaces that are asked.
const MAX_ASKED: usize = 64;

/// What the process of the other end says of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherEnd {
    pub(crate) interface: String,
    pub(crate) listen_port: u16,
    /// Its peer with our public key, if it has one.
    pub(crate) us: Option<Us>,
}

/// This interface, as the other end has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Us {
    pub(crate) has_preshared_key: bool,
    pub(crate) allowed_ips: Vec<String>,
    /// Our inner addresses that it takes nothing from.
    pub(crate) refused: Vec<IpAddr>,
}

impl OtherEnd {
    /// The other interfaces of this host whose processes answer.
    pub(crate) fn all(ours: &str) -> Vec<InterfaceJson> {
        let others = show::names().into_iter().filter(|name| name != ours);
        let others = others
            .take(MAX_ASKED)
            .filter_map(|name| status::fetch(&name).ok());
        others.collect()
    }

    /// That of a peer, among these.
    pub(crate) fn find(
        others: &[InterfaceJson],
        peer: &PeerJson,
        our_key: &str,
        our_addresses: &[IpAddr],
    ) -> Option<Self> {
        let mut others = others.iter();
        let other = others.find(|other| other.public_key.as_ref() == Some(&peer.public_key))?;
        let us = other.peers.iter().find(|peer| peer.public_key == our_key);
        let is_refused = |us: &PeerJson, ip: IpAddr| !blocks(us).any(|block| block.contains(ip));
        Some(Self {
            interface: other.name.clone(),
            listen_port: other.listen_port,
            us: us.map(|us| Us {
                has_preshared_key: us.has_preshared_key,
                allowed_ips: us.allowed_ips.clone(),
                refused: (our_addresses.iter().copied())
                    .filter(|ip| is_refused(us, *ip))
                    .collect(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_says_what_it_takes_from_us() {
        let mut us = PeerJson::default();
        us.public_key = "ours".into();
        us.allowed_ips = vec!["10.0.0.0/24".into()];
        let mut other = InterfaceJson::default();
        other.name = "wg1".into();
        other.public_key = Some("theirs".into());
        other.peers = vec![us];
        let mut peer = PeerJson::default();
        peer.public_key = "theirs".into();
        let [good, bad] = ["10.0.0.2", "10.0.1.2"].map(|ip| ip.parse().unwrap());
        let find = |peer: &PeerJson, key: &str| {
            OtherEnd::find(std::slice::from_ref(&other), peer, key, &[good, bad])
        };
        let found = find(&peer, "ours").expect("the other end");
        assert_eq!(found.interface, "wg1");
        assert_eq!(found.us.expect("our peer").refused, [bad]);
        assert_eq!(find(&peer, "another").expect("the other end").us, None);
        peer.public_key = "of nobody here".into();
        assert_eq!(find(&peer, "ours"), None);
    }
}
