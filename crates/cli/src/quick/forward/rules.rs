//! The tables of tunnels that forward.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_ctl::config::{Forward, InterfaceAddress};
use adit_netlink::Family;
use adit_netlink::nft::{Hook, Match, NftChain, NftRule, NftTable, Verdict};
use adit_proto::config::Cidr;

use super::found::{COMMON, Found, OWN, WAS, Wanted};

/// The networks of private use: RFC 1918, RFC 4193.
pub(in crate::quick) const PRIVATE: [(IpAddr, u8); 4] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
];

/// Its addresses mean something else on each link (RFC 3927).
const LINK_LOCAL: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16);

fn rule(matches: Vec<Match>, verdict: Verdict) -> NftRule {
    NftRule { matches, verdict }
}

/// What the peers of a tunnel reach. Nothing that they did not ask for gets to them.
pub(super) fn own_table(family: Family, wanted: &Wanted<'_>) -> NftTable {
    let input = || Match::Input(wanted.interface.to_owned());
    let output = || Match::Output(wanted.interface.to_owned());
    let of_family = |ip: IpAddr| Family::of(ip) == family;
    let mut rules = vec![rule(vec![input(), output()], Verdict::Accept)];
    let private = PRIVATE.into_iter().filter(|(ip, _)| of_family(*ip));
    match wanted.reach {
        Forward::Peers => rules.push(rule(vec![input()], Verdict::Drop)),
        Forward::Lan => {
            let lan =
                private.map(|(ip, len)| rule(vec![input(), Match::To(ip, len)], Verdict::Accept));
            rules.extend(lan);
            rules.push(rule(vec![input()], Verdict::Drop));
        }
        // Networks of one link, such as that of a cloud's metadata.
        Forward::Internet if family == Family::V4 => {
            let (ip, len) = LINK_LOCAL;
            rules.push(rule(vec![input(), Match::To(ip, len)], Verdict::Drop));
        }
        Forward::Internet => {}
    }
    rules.push(rule(vec![output(), Match::Established], Verdict::Accept));
    rules.push(rule(vec![output()], Verdict::Drop));
    let mut chains = vec![NftChain {
        name: "forward".into(),
        hook: Some(Hook::Forward),
        rules,
    }];
    if wanted.reach > Forward::Peers {
        let networks = wanted
            .addresses
            .iter()
            .filter(|address| of_family(address.ip));
        let translate = |address: &InterfaceAddress| {
            let other = Match::OtherOutput(wanted.interface.to_owned());
            let from = network(*address);
            rule(
                vec![Match::From(from, address.prefix_len), other],
                Verdict::Masquerade,
            )
        };
        chains.push(NftChain {
            name: "postrouting".into(),
            hook: Some(Hook::SourceNat),
            rules: networks.map(translate).collect(),
        });
    }
    NftTable {
        name: format!("{OWN}{}", wanted.interface),
        chains,
    }
}

/// The first address of an address's network.
fn network(address: InterfaceAddress) -> IpAddr {
    let block = Cidr::new(address.ip, address.prefix_len);
    block.map_or(address.ip, |block| block.addr())
}

/// Keeps what is none of the tunnels' from being forwarded by changed settings. `None` if no setting
/// was changed.
pub(super) fn common(family: Family, found: &Found) -> Option<NftTable> {
    if found.before.is_empty() {
        return None;
    }
    let mut rules = vec![
        rule(vec![Match::Established], Verdict::Accept),
        // Another program has it forwarded.
        rule(vec![Match::Translated], Verdict::Accept),
    ];
    for tunnel in &found.tunnels {
        rules.push(rule(vec![Match::Input(tunnel.clone())], Verdict::Accept));
        rules.push(rule(vec![Match::Output(tunnel.clone())], Verdict::Accept));
    }
    match family {
        // Of interfaces that come later, the kernel forwards nothing, unless another program says so.
        Family::V4 => {
            let changed = found.before.keys().filter_map(|it| interface_of(it));
            let changed = changed.filter(|name| !found.tunnels.contains(*name));
            rules.extend(
                changed.map(|name| rule(vec![Match::Input(name.to_owned())], Verdict::Drop)),
            );
        }
        Family::V6 => rules.push(rule(Vec::new(), Verdict::Drop)),
    }
    let forward = NftChain {
        name: "forward".into(),
        hook: Some(Hook::Forward),
        rules,
    };
    let kept = found.before.iter().map(|(setting, value)| NftChain {
        name: format!("{WAS}{value}/{setting}"),
        hook: None,
        rules: Vec::new(),
    });
    Some(NftTable {
        name: COMMON.into(),
        chains: std::iter::once(forward).chain(kept).collect(),
    })
}

/// The interface of an IPv4 setting that is changed.
fn interface_of(setting: &str) -> Option<&str> {
    setting
        .strip_prefix("net/ipv4/conf/")?
        .strip_suffix("/forwarding")
}
