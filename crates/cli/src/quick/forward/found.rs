//! What a tunnel wants, and what the packet filter has of tunnels that forward.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use adit_ctl::config::{Forward, InterfaceAddress};
use adit_netlink::Family;
use adit_netlink::nft::{self, Listed};

/// The table of all tunnels that forward, and the beginning of the name of each one's own.
pub(super) const COMMON: &str = "adit-forward";
pub(super) const OWN: &str = "adit-forward-";
/// What the name of a chain begins with that has a setting's value: `was-0/net/ipv4/…`.
pub(super) const WAS: &str = "was-";

/// The wishes of a tunnel.
#[derive(Clone, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) interface: &'a str,
    pub(super) reach: Forward,
    /// The interface's own; their networks are those of its peers.
    pub(super) addresses: &'a [InterfaceAddress],
}

/// State of the packet filter for tunnels that forward, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Interfaces.
    pub(super) tunnels: BTreeSet<String>,
    /// Settings that were changed, and what they were.
    pub(super) before: BTreeMap<String, String>,
    /// Chains of other programs that may drop what is forwarded, each with its table.
    pub(super) obstacles: Vec<(String, String)>,
}

impl Found {
    pub(super) fn look(family: Family) -> io::Result<Self> {
        Ok(Self::of(&nft::chains(family)?))
    }

    /// From the names of tables and their chains.
    pub(super) fn of(chains: &[Listed]) -> Self {
        let mut found = Self::default();
        for chain in chains {
            let kept = chain.name.strip_prefix(WAS);
            if let Some(interface) = chain.table.strip_prefix(OWN) {
                found.tunnels.insert(interface.to_owned());
            } else if chain.drops_forwarded {
                let names = (chain.table.clone(), chain.name.clone());
                found.obstacles.push(names);
            } else if chain.table == COMMON
                && let Some((value, setting)) = kept.and_then(|rest| rest.split_once('/'))
            {
                found.before.insert(setting.to_owned(), value.to_owned());
            }
        }
        found
    }
}
