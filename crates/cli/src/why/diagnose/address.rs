//! Addresses that cannot work: inside in the place of outside, behind NAT, in two networks at once, of
//! IPv6 where that is disabled.

use adit_ctl::status::{EventJson, EventKind};

use crate::networks::{is_cgnat, is_private};
use crate::why::causes::Certainty::{Certain, Likely, Possible};
use crate::why::causes::{Cause, Finding};
use crate::why::evidence::{Evidence, Inside};
use crate::why::other_end::{OtherEnd, Us};
use crate::why::reach::PortReply;

/// An endpoint that no datagram from here gets to.
pub(super) fn addresses(seen: &Evidence, found: &mut Vec<Finding>) {
    let (Some(to), Some(Ok(path))) = (seen.endpoint, &seen.path) else {
        return;
    };
    let (name, key, ip, port) = (&seen.interface, &seen.peer.public_key, to.ip(), to.port());
    let inner = seen.inner_network(ip);
    if let Some(network) = inner.filter(|_| Some(path.oif) == seen.index && !path.local) {
        found.push(finding!(EndpointInside, Certain;
            "the endpoint {ip} is an address inside the tunnel, of {network}: it is to be the address that the peer's host has \
             without the tunnel";
            "wg set {name} peer {key} endpoint OUTER-ADDRESS:{port}"
            "in the file, below its [Peer]: Endpoint = OUTER-ADDRESS:{port}"));
    }
    // In a provider's network, or in one that uses its addresses inside, it may be right.
    if is_cgnat(ip) && !seen.has_cgnat && inner.is_none() {
        let (ours, listens) = (&seen.public_key, seen.listen_port);
        let unreachable = |event: &EventJson| {
            let reason = event.reason.as_deref();
            matches!(reason, Some("host_unreachable" | "network_unreachable"))
        };
        let is_told = seen.event(EventKind::IcmpError).is_some_and(unreachable);
        let certainty = if is_told { Certain } else { Likely };
        found.push(finding!(Cgnat, certainty;
            "the endpoint {ip} is an address of a provider's NAT (CGNAT, 100.64.0.0/10): nobody outside of that provider's \
             network reaches it, and no port is forwarded there. The peer has to call this side, or needs a public address";
            "at the peer: wg set INTERFACE peer {ours} endpoint OUR-ADDRESS:{listens} persistent-keepalive 25"));
    }
}

/// Why a peer without an endpoint cannot call.
pub(super) fn behind_nat(seen: &Evidence, found: &mut Vec<Finding>) {
    let (None, Some(outer)) = (seen.endpoint, seen.outer) else {
        return;
    };
    let (name, key, port) = (&seen.interface, &seen.peer.public_key, seen.listen_port);
    let cgnat = std::iter::once(&outer).chain(&seen.routers);
    if let Some(ip) = cgnat.copied().find(|ip| is_cgnat(*ip)) {
        found.push(finding!(Cgnat, Likely;
            "this host is behind a provider's NAT (CGNAT): {ip} is one of its addresses. No peer elsewhere can call this host, \
             and no port can be forwarded to it; and no endpoint of the peer is known that it could call";
            "wg set {name} peer {key} endpoint ADDRESS:PORT persistent-keepalive 25"));
    } else if let ([first, second], true) = (seen.routers.as_slice(), is_private(outer)) {
        let are_private = is_private(*first) && is_private(*second);
        found.extend(are_private.then(|| finding!(DoubleNat, Possible;
            "the first two routers towards the Internet, {first} and {second}, have private addresses: if both translate, \
             which cannot be seen from here, a peer elsewhere calls this host ({outer}) only if both forward UDP port {port}";
            "traceroute -n 1.1.1.1"
            "wg set {name} peer {key} endpoint ADDRESS:PORT persistent-keepalive 25")));
    }
}

/// IPv6 where it is disabled.
pub(super) fn without_v6(seen: &Evidence, found: &mut Vec<Finding>) {
    let name = &seen.interface;
    let [outer, inner] = &seen.without_v6;
    let again = "adit down {name}; adit up {name}".replace("{name}", name);
    if let (Some(sysctl), Some(to), Some(Err(_))) = (outer, seen.endpoint, &seen.path) {
        let ip = to.ip();
        found.push(finding!(Ipv6Disabled, Certain;
            "the endpoint {ip} is IPv6, which {sysctl} = 1 disables on this host. Addresses that were lost have to be given \
             again";
            "sysctl -w {sysctl}=0"));
    } else if let (Some(sysctl), Some(block)) = (inner, seen.v6_block) {
        let is_all = seen
            .peer
            .allowed_ips
            .iter()
            .all(|block| block.contains(':'));
        let is_wanted = seen
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.to.is_ipv6());
        let finding = finding!(Ipv6Disabled, Certain;
            "the peer has {block}, and {sysctl} = 1 disables IPv6: {name} has no IPv6 address and no routes of IPv6";
            "sysctl -w {sysctl}=0"
            "{again}");
        found.push(match seen.session && (is_all || is_wanted) {
            true => finding,
            false => finding.remark(),
        });
    }
}

/// Networks of the tunnel that are here, too.
pub(super) fn collides(seen: &Evidence, found: &mut Vec<Finding>) {
    let Some((collision, takes)) = seen.collisions.first() else {
        return;
    };
    let (name, ours, theirs) = (&seen.interface, collision.ours, &collision.theirs);
    let (block, device) = (theirs.block, &theirs.device);
    let len = if block.addr().is_ipv6() { 128 } else { 32 };
    let whose = match seen.networks.contains(&ours) {
        true => format!("{ours}, the network of {name} itself,"),
        false => format!("{ours}, the peer's side,"),
    };
    let says = match takes {
        true => format!("packets there leave by {device}, not into {name}"),
        false => {
            "of what both have, only one is reached; `ip route get ADDRESS` says which".to_owned()
        }
    };
    let finding = finding!(SubnetCollision, Certain;
        "{whose} and {block} of {device} on this host have the same addresses: {says}. Send single hosts into the tunnel, or \
         give one of the two networks other addresses";
        "ip route replace ADDRESS/{len} dev {name}"
        "ip route get ADDRESS");
    found.push(if *takes { finding } else { finding.remark() });
}

/// What the process of the other end says, where it is on this host.
pub(super) fn both_ends(seen: &Evidence, found: &mut Vec<Finding>) {
    let Some(OtherEnd { interface, us, .. }) = &seen.other_end else {
        return;
    };
    let ours = &seen.public_key;
    let addresses = |addresses: &[std::net::IpAddr]| {
        let block = |ip: &std::net::IpAddr| format!("{ip}/{}", if ip.is_ipv6() { 128 } else { 32 });
        addresses.iter().map(block).collect::<Vec<_>>().join(",")
    };
    let Some(Us {
        has_preshared_key,
        allowed_ips,
        refused,
    }) = us
    else {
        let blocks = addresses(&seen.addresses);
        found.push(finding!(PeerLacksOurKey, Certain;
            "the other end is {interface}, served on this host: it has no peer with our public key {ours}";
            "wg set {interface} peer {ours} allowed-ips {blocks}"));
        return;
    };
    if !seen.session && *has_preshared_key != seen.peer.has_preshared_key {
        let [here, there] = [seen.peer.has_preshared_key, *has_preshared_key]
            .map(|has| if has { "one" } else { "none" });
        found.push(finding!(PresharedKey, Certain;
            "the other end is {interface}, served on this host: it has {there} for us, and this side has {here}";
            "wg set {interface} peer {ours} preshared-key FILE"));
    }
    let is_silent =
        matches!(&seen.inside, Some(Inside { short, .. }) if *short != PortReply::Answers);
    if seen.session && is_silent && !refused.is_empty() {
        let (has, lacks) = (allowed_ips.join(","), addresses(refused));
        let all = [has.clone(), lacks.clone()];
        let all = all.iter().filter(|it| !it.is_empty()).cloned();
        let all = all.collect::<Vec<_>>().join(",");
        found.push(finding!(NothingInside, Certain;
            "the other end is {interface}, served on this host: its allowed IPs for us ({has}) lack {lacks}, and it drops what \
             comes from there";
            "wg set {interface} peer {ours} allowed-ips {all}"));
    }
}
