//! What is wrong inside a tunnel that works.

use std::net::IpAddr;

use adit_ctl::status::EventKind;
use adit_proto::config::Cidr;

use crate::why::beyond;
use crate::why::causes::Certainty::{Certain, Likely, Possible};
use crate::why::causes::{Cause, Finding, overhead};
use crate::why::chains::Dropping;
use crate::why::evidence::{Evidence, Inside, WantedAddress};
use crate::why::reach::PortReply;
use crate::why::rules::Limited;

/// Whether packets pass through the tunnel.
pub(super) fn inside(seen: &Evidence, found: &mut Vec<Finding>) {
    let (name, ours, mtu) = (&seen.interface, &seen.public_key, seen.mtu);
    let outer = overhead(seen.endpoint.is_some_and(|to| to.is_ipv6()));
    let needs = mtu + outer;
    let fits = (seen.path_mtu).map(|path| path.saturating_sub(outer));
    // Probes try every sixteenth length: this host may know the length that they came near to.
    let probed = (seen.peer.path_mtu).map(|takes| {
        let takes = u32::from(takes);
        fits.filter(|fits| (takes..takes + 16).contains(fits))
            .unwrap_or(takes)
    });
    let [fits, probed] = [fits, probed].map(|takes| takes.filter(|takes| *takes < mtu));
    if let Some(Inside {
        to,
        is_guess,
        short,
        long,
    }) = &seen.inside
    {
        if *short != PortReply::Answers && (seen.peer_answers || forwards(seen)) {
            // It is not the peer that is silent.
        } else if *short != PortReply::Answers && is_of_this_host(seen, *to, found) {
            // Nor is it the peer's fault.
        } else if *short != PortReply::Answers && *is_guess {
            let inner: Vec<String> = seen.addresses.iter().map(ToString::to_string).collect();
            let inner = inner.join(" or ");
            found.push(finding!(NothingInside, Possible;
                "the handshake works, and {to}, the first address of our network, does not answer inside: the peer's allowed \
                 IPs for us lack our address {inner}, its firewall drops what comes out of the tunnel, or nobody has {to}";
                "adit why {name} --inside ADDRESS-OF-THE-PEER"
                "at the peer: wg show all allowed-ips"
                "at the peer: wg set INTERFACE peer {ours} allowed-ips OUR-ADDRESSES"));
        } else if *short != PortReply::Answers {
            let inner: Vec<String> = seen.addresses.iter().map(ToString::to_string).collect();
            let inner = inner.join(" or ");
            found.push(finding!(NothingInside, Likely;
                "the handshake works, and {to} does not answer inside: the peer's allowed IPs for us lack our address \
                 {inner}, its firewall drops what comes out of the tunnel, or {to} is not its address";
                "at the peer: wg show all allowed-ips"
                "at the peer: wg set INTERFACE peer {ours} allowed-ips OUR-ADDRESSES"
                "ping {to}"));
        } else if *long != PortReply::Answers {
            let set = probed.or(fits).unwrap_or(1280);
            found.push(finding!(Mtu, Certain;
                "{to} answers through the tunnel to short packets, and not to packets of {mtu} bytes, the MTU of {name}: \
                 these make datagrams of {needs} bytes, which the path to the peer does not take";
                "ip link set {name} mtu {set}"
                "in the file, below [Interface]: MTU = {set}"));
        }
    }
    if let Some(behind) = &seen.beyond {
        // What was asked for did not answer; otherwise the way was tried by itself, and not every
        // router tells.
        let is_wanted = seen.wanted.is_some();
        let finding = |certainty| beyond::of_peer(behind, certainty);
        match (behind.peer, is_wanted) {
            (None, _) if seen.peer_answers => found.push(finding(Likely)),
            (None, _) => found.push(finding(Possible)),
            (Some(_), true) => found.push(finding(Likely)),
            (Some(_), false) if !behind.behind => found.push(finding(Possible).remark()),
            (Some(_), false) => {}
        }
    }
    if let Some(takes) = probed {
        found.push(finding!(Mtu, Certain;
            "the path to the peer takes packets of {takes} bytes, and the MTU of {name} is {mtu}: programs are told by ICMP \
             to send shorter ones, and what does not heed that leaves in fragments, or is dropped as path mtu where these \
             do not arrive";
            "ip link set {name} mtu {takes}"
            "in the file, below [Interface]: MTU = {takes}").remark());
    } else if let Some(fits) = fits {
        let path = fits + outer;
        found.push(finding!(Mtu, Possible;
            "the MTU of {name}, {mtu}, makes datagrams of {needs} bytes, and the path to the peer takes {path}: they are \
             sent in fragments or not at all; {fits} fits";
            "ip link set {name} mtu {fits}").remark());
    }
}

/// Whether this host keeps an answer from inside away, or the packet from getting one.
fn is_of_this_host(seen: &Evidence, to: IpAddr, found: &mut Vec<Finding>) -> bool {
    let name = &seen.interface;
    if let Some(Dropping { chain, rule }) = &seen.input {
        found.push(finding!(LocalFirewall, Certain;
            "a firewall on this host drops all that comes out of {name}, the answers of {to} too. nftables has in {chain}: \
             {rule}";
            "nft insert rule {chain} iifname {name} accept"
            "nft -a list ruleset | grep -e hook -e drop -e reject -e {name}"));
        return true;
    }
    let Some((block, source)) = seen.our_source.filter(|(block, _)| block.contains(to)) else {
        return false;
    };
    let own = seen
        .addresses
        .iter()
        .find(|ip| ip.is_ipv6() == to.is_ipv6());
    let own = own.map_or_else(|| "OUR-INNER-ADDRESS".to_owned(), ToString::to_string);
    found.push(finding!(OurSource, Likely;
        "the handshake works, and what this host sends to {block} has the source {source}, which is no address of {name}: the \
         peer drops it unless {source} is among its allowed IPs for us";
        "ip route replace {block} dev {name} src {own}"));
    true
}

/// Whether the peer said itself that it forwards.
fn forwards(seen: &Evidence) -> bool {
    seen.beyond.is_some_and(|beyond| beyond.peer.is_some())
}

/// An answer from where we did not send to.
pub(super) fn elsewhere(seen: &Evidence, found: &mut Vec<Finding>) {
    if found.iter().any(|one| one.cause == Cause::SharedKey) {
        return;
    }
    if let Some(event) = seen.event(EventKind::PeerRoamed)
        && let (Some(from), Some(to)) = (&event.from, &event.endpoint)
    {
        found.push(finding!(AnswersFromElsewhere, Certain;
            "we sent to {from}, and the peer answers from {to}: a NAT, or a second address at the peer. WireGuard follows it, \
             but a firewall or NAT between that expects answers from {from} would drop them";
            "at the peer: ip address show"
            "at the peer: nft list ruleset | grep -e nat -e masquerade").remark());
    }
}

/// Whether this host sends the peer's allowed IPs into the tunnel.
pub(super) fn routed(seen: &Evidence, found: &mut Vec<Finding>) {
    let (name, key) = (&seen.interface, &seen.peer.public_key);
    if seen.peer.allowed_ips.is_empty() {
        found.push(finding!(NoAllowedIps, Certain;
            "the peer has no allowed IPs: nothing is sent to it or taken from it. A block belongs to the peer that was given \
             it last";
            "wg show {name} allowed-ips"
            "wg set {name} peer {key} allowed-ips ADDRESS/32"));
    }
    if let Some(WantedAddress {
        to,
        owner,
        elsewhere,
    }) = &seen.wanted
    {
        let len = if to.is_ipv6() { 128 } else { 32 };
        let blocks = seen.peer.allowed_ips.join(",");
        let way = match elsewhere {
            Some(Some(device)) => Some(format!("by {device}")),
            Some(None) => Some("nowhere: there is no route".to_owned()),
            None => None,
        };
        if owner.is_none() {
            found.push(finding!(NotRouted, Certain;
                "no peer of {name} has {to} among its allowed IPs: what is for it is not sent through the tunnel";
                "wg show {name} allowed-ips"
                "wg set {name} peer {key} allowed-ips {blocks},{to}/{len}"
                "ip route add {to}/{len} dev {name}"));
        } else if let Some(other) = owner.as_ref().filter(|owner| *owner != key) {
            found.push(
                finding!(Overlap, Certain;
                "{to} is among the allowed IPs of peer {other}: it says nothing about this one";
                "adit why {name} {other} --inside {to}")
                .remark(),
            );
        } else if let Some(way) = way {
            found.push(finding!(NotRouted, Certain;
                "this host sends packets to {to} {way}, not into {name}: an answer would say nothing about the tunnel";
                "ip route get {to}"
                "ip route add {to}/{len} dev {name}"));
        }
    }
    let collides = |it: &&(Cidr, Option<String>)| {
        let taken = seen.collisions.iter().filter(|(_, takes)| *takes);
        taken
            .map(|(collision, _)| collision)
            .any(|one| one.ours == it.0 && Some(&one.theirs.device) == it.1.as_ref())
    };
    for (block, device) in seen.not_routed.iter().filter(|it| !collides(it)) {
        let (to, way) = (
            block.addr(),
            match device {
                Some(device) => format!("by {device}, whose route is narrower or comes first"),
                None => "nowhere: there is no route".to_owned(),
            },
        );
        found.push(finding!(NotRouted, Certain;
            "this host sends packets to {block} {way}, not into {name}";
            "ip route get {to}"
            "ip route add {block} dev {name}"));
    }
    if let Some(block) = seen.unaddressed {
        let version = if block.addr().is_ipv6() {
            "IPv6"
        } else {
            "IPv4"
        };
        found.push(finding!(NoAddress, Likely;
            "{name} has no {version} address, and the peer has {block}: packets there have a source that it does not expect";
            "ip address add ADDRESS dev {name}").remark());
    }
}

pub(super) fn overlap(seen: &Evidence, found: &mut Vec<Finding>) {
    let name = &seen.interface;
    if let Some((inner, outer, other)) = &seen.nested {
        found.push(finding!(Overlap, Possible;
            "{inner} of peer {other} lies inside {outer} of this peer: packets there go to the other one";
            "wg show {name} allowed-ips").remark());
    }
}

/// Whether the packet filter of this host limits what the peer may open.
pub(super) fn limited(seen: &Evidence, found: &mut Vec<Finding>) {
    let Some(Limited { table, dropped }) = &seen.limited else {
        return;
    };
    let dropped = match dropped {
        Some(dropped) => format!(": it has dropped {dropped} packets of all peers so far"),
        None => String::new(),
    };
    found.push(
        finding!(LimitedByRules, Certain;
        "the peer may open only what the AllowedPorts of its record allow, and the packet filter of this host drops the \
         rest{dropped}";
        "nft list table {table}")
        .remark(),
    );
}
