//! How each cause shows.

use std::net::IpAddr;

use adit_ctl::status::{EventJson, EventKind};
use adit_proto::{FailureReason, Refusal};

use super::causes::{Cause, Certainty, Finding};
use super::evidence::Evidence;
use super::forwarding;
use super::reach::PortReply;
use super::reverse_path::ReversePath;
use crate::networks::is_private;
use Certainty::{Certain, Likely, Possible};

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;

/// A finding, with what was seen, and what to type next.
macro_rules! finding {
    ($cause:ident, $certainty:expr; $text:literal; $($command:literal)*) => {
        Finding::new(Cause::$cause, $certainty, format!($text))$(.run(format!($command)))*
    };
}

mod address;
mod within;

use address::{addresses, behind_nat, both_ends, collides, without_v6};
use within::{elsewhere, inside, limited, overlap, routed};

/// What is wrong with a peer: the most likely cause first. Nothing if it works.
pub(crate) fn diagnose(seen: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    let causes: &[fn(&Evidence, &mut Vec<Finding>)] = match (seen.up, seen.session) {
        (false, _) => &[down],
        (true, true) => &[
            both_ends, shared, source, inside, elsewhere, without_v6, collides, routed, overlap,
            here, limited,
        ],
        (true, false) => &[
            both_ends,
            route,
            without_v6,
            addresses,
            sending,
            closed,
            shared,
            came_back,
            behind_nat,
            configuration,
            clock,
            silence,
            collides,
            routed,
            overlap,
        ],
    };
    for look_for in causes {
        look_for(seen, &mut found);
    }
    if !seen.session {
        // No handshake fails for the sake of these.
        let later = [
            Cause::NoAllowedIps,
            Cause::NotRouted,
            Cause::SubnetCollision,
        ];
        let found = found.iter_mut().filter(|one| later.contains(&one.cause));
        found.for_each(|finding| finding.problem = false);
    }
    found.sort_by_key(|finding| (!finding.problem, finding.certainty));
    // The first that names a cause is the surest.
    let mut named = Vec::new();
    found.retain(|finding| {
        let is_new = !named.contains(&finding.cause);
        named.push(finding.cause);
        is_new
    });
    found
}

fn down(seen: &Evidence, found: &mut Vec<Finding>) {
    let name = &seen.interface;
    found.push(finding!(InterfaceDown, Certain;
        "{name} is down: it has no socket, sends nothing and hears nothing";
        "ip link set {name} up"));
}

/// Causes in what the interface lacks for a handshake.
fn configuration(seen: &Evidence, found: &mut Vec<Finding>) {
    let (name, key, ours) = (&seen.interface, &seen.peer.public_key, &seen.public_key);
    if !seen.has_key {
        found.push(finding!(NoPrivateKey, Certain;
            "{name} has no private key: no peer can answer it";
            "wg set {name} private-key FILE"));
    }
    if seen.endpoint.is_none() {
        let (port, waited) = (seen.listen_port, seen.waited.as_secs());
        found.push(finding!(NoEndpoint, Likely;
            "no endpoint is known, and the peer did not call within {waited} s: either side must know where the other one \
             is. This side listens at port {port}";
            "wg set {name} peer {key} endpoint ADDRESS:PORT"
            "at the peer: wg set INTERFACE peer {ours} endpoint OUR-ADDRESS:{port} persistent-keepalive 25"));
    }
}

/// The way to the endpoint.
fn route(seen: &Evidence, found: &mut Vec<Finding>) {
    let (Some(to), Some(path)) = (seen.endpoint, &seen.path) else {
        return;
    };
    let (name, key, ip) = (&seen.interface, &seen.peer.public_key, to.ip());
    let mark = match seen.fwmark {
        0 => String::new(),
        mark => format!(" mark {mark:#x}"),
    };
    match path {
        // Another cause.
        Err(_) if seen.without_v6[0].is_some() => {}
        Err(error) => found.push(finding!(NoRoute, Certain;
            "this host has no way to {ip}: {error}";
            "ip route get {ip}{mark}"
            "ip route add {ip} via ROUTER")),
        // The peer is on this host, too, and may be meant.
        Ok(path) if path.local && is_of_other_end(seen, to.port()) => {}
        Ok(path) if path.local => found.push(finding!(EndpointIsHere, Certain;
            "{ip} is an address of this host itself";
            "ip route get {ip}"
            "wg set {name} peer {key} endpoint ADDRESS:PORT")),
        Ok(path) if Some(path.oif) == seen.index && seen.inner_network(ip).is_some() => {}
        Ok(path) if Some(path.oif) == seen.index => {
            let why = seen.block_of(ip).map_or_else(String::new, |block| {
                format!(": {block} is among the allowed IPs and holds it")
            });
            found.push(finding!(RoutingLoop, Certain;
                "the route to the endpoint {ip} leads into {name} itself, so that its datagrams go round and round{why}";
                "ip route get {ip}{mark}"
                "ip route add {ip} via ROUTER dev DEVICE"));
        }
        Ok(_) => {}
    }
    if let Some(device) = &seen.filtered {
        found.push(finding!(RpFilter, Certain;
            "answers arrive at {device}, and the kernel would send to {ip} by another way without the firewall mark: its \
             reverse path filter drops them";
            "sysctl -w net.ipv4.conf.{device}.rp_filter=2"));
    }
    let ReversePath { strict, dropped } = &seen.reverse_path;
    let more = dropped[1].saturating_sub(dropped[0]);
    if let (true, Some(device)) = (more > 0, strict.first()) {
        let (devices, by) = (
            strict.join(" and "),
            seen.device.as_deref().unwrap_or_default(),
        );
        let finding = finding!(RpFilter, Likely;
            "the kernel's reverse path filter dropped {more} packets just now, and it is strict at {devices}: what comes \
             there from {ip}, where this host sends by {by}, is dropped, as answers that take another way back are";
            "sysctl -w net.ipv4.conf.{device}.rp_filter=2");
        let others = strict.iter().skip(1);
        found.push(others.fold(finding, |finding, device| {
            finding.run(format!("sysctl -w net.ipv4.conf.{device}.rp_filter=2"))
        }));
    }
}

/// Whether the process of the other end, on this host, listens at a port.
fn is_of_other_end(seen: &Evidence, port: u16) -> bool {
    seen.other_end
        .as_ref()
        .is_some_and(|other| other.listen_port == port)
}

/// Whether our message left.
fn sending(seen: &Evidence, found: &mut Vec<Finding>) {
    let Some(event) = seen.event(EventKind::NotSent) else {
        return;
    };
    let said = without_key(event);
    if !said.contains("Operation not permitted") {
        // A route that is missing or rejects explains it.
        if found.iter().all(|one| one.certainty != Certain) {
            found.push(Finding::new(Cause::NotSent, Likely, said));
        }
        return;
    }
    let port = seen.endpoint.map_or(0, |to| to.port());
    let rules = quoted(seen);
    let finding = finding!(LocalFirewall, Certain;
        "a firewall on this host drops what we send: {said}{rules}";
        "nft -a list ruleset | grep -e hook -e drop -e reject -e {port}");
    let chain = seen.rules.first().and_then(|rule| rule.split_once(": "));
    found.push(match chain {
        Some((chain, _)) => finding.run(format!("nft insert rule {chain} udp dport {port} accept")),
        None => finding,
    });
}

/// Whether this host takes what comes to its port.
fn closed(seen: &Evidence, found: &mut Vec<Finding>) {
    let Some((chain, rule)) = (seen.closed.as_ref()).and_then(|rule| rule.split_once(": ")) else {
        return;
    };
    let port = seen.listen_port;
    found.push(finding!(LocalFirewall, Likely;
        "a firewall on this host drops what comes to our port {port}, the answers too. nftables has in {chain}: {rule}";
        "nft insert rule {chain} udp dport {port} accept"
        "nft -a list ruleset | grep -e hook -e drop -e reject -e {port}"));
}

/// Whether the peer moves to and fro.
fn shared(seen: &Evidence, found: &mut Vec<Finding>) {
    let roamed = |event: &&EventJson| event.event == EventKind::PeerRoamed.name();
    let places: Vec<&str> = (seen.events.iter().filter(roamed))
        .filter_map(|event| event.endpoint.as_deref())
        .collect();
    let mut different = places.clone();
    different.sort_unstable();
    different.dedup();
    // A network that changes moves a peer once.
    if places.len() < 3 || different.len() == places.len() {
        return;
    }
    let (moves, places) = (places.len(), different.join(" and "));
    let name = &seen.interface;
    found.push(finding!(SharedKey, Likely;
        "the peer moved {moves} times meanwhile, between {places}: two hosts use its private key, as with one file on two \
         devices, and each takes the answers from the other. Each needs a key and an address of its own";
        "adit new-peer {name} --name SECOND-DEVICE"
        "at one of the two: adit down INTERFACE"));
}

/// Causes in what this host does for its peers.
fn here(seen: &Evidence, found: &mut Vec<Finding>) {
    found.extend(forwarding::of_this_host(&seen.interface, &seen.here));
}

/// The rules that may have dropped something.
fn quoted(seen: &Evidence) -> String {
    match seen.rules.as_slice() {
        [] => String::new(),
        rules => format!(". On this host nftables has: {}", rules.join(" | ")),
    }
}

/// The text of an event. Its first words are the key, which the heading has.
fn without_key(event: &EventJson) -> &str {
    event.text.split_once(": ").map_or("", |(_, text)| text)
}

/// Causes that show in what came back instead of an answer.
fn came_back(seen: &Evidence, found: &mut Vec<Finding>) {
    icmp(seen, found);
    let (name, key, ours) = (&seen.interface, &seen.peer.public_key, &seen.public_key);
    // Without an endpoint it may be anybody who calls.
    let sure = if seen.endpoint.is_some() {
        Certain
    } else {
        Likely
    };
    for event in &seen.events {
        let from = event.endpoint.as_deref().unwrap_or("elsewhere");
        if let (true, Some(other)) = (event.event == EventKind::UnknownPeer.name(), &event.peer) {
            let blocks = seen.peer.allowed_ips.join(",");
            let to = seen
                .endpoint
                .map_or_else(String::new, |to| format!(" endpoint {to}"));
            found.push(finding!(WrongPeerKey, sure;
                "what calls from {from} has the public key {other}, which is no peer of {name}: the key that is configured \
                 here is another one";
                "at the peer: wg show INTERFACE public-key"
                "wg set {name} peer {key} remove"
                "wg set {name} peer {other} allowed-ips {blocks}{to}"));
        } else if event.reason.as_deref() == Some(Refusal::BadMac1.name()) {
            found.push(finding!(PeerLacksOurKey, sure;
                "a handshake message came from {from} that was made for another public key than ours: the peer has a wrong \
                 one for this interface, whose key is {ours}";
                "at the peer: wg show INTERFACE peers"
                "at the peer: wg set INTERFACE peer {ours} endpoint OUR-ADDRESS:PORT allowed-ips OUR-ADDRESSES"));
        }
    }
    match seen.failure() {
        Some(FailureReason::NotAuthentic) => found.push(preshared_key(seen, Certain,
            "the peer answers, and its response does not decrypt: its preshared key is another one, or only one side has one")),
        Some(FailureReason::NotConfirmed) => found.push(preshared_key(seen, Likely,
            "we answered the peer's initiations, and it did not use the session: the preshared keys differ, or our answers \
             do not reach it")),
        Some(FailureReason::ReplayedTimestamp) => found.push(finding!(PeerClock, Certain;
            "the peer's initiation has a timestamp that is not newer than its last one: its clock was set back, or another \
             host has the same private key";
            "at the peer: timedatectl"
            "if its clock is right: wg set {name} peer {key} remove, and add it again")),
        _ => {}
    }
    if seen.more("cookies_accepted") > 0 {
        found.push(finding!(UnderLoad, Certain;
            "the peer is under load: it sent a cookie reply, and no response yet";
            "adit why {name} {key}"));
    }
}

fn preshared_key(seen: &Evidence, certainty: Certainty, text: &str) -> Finding {
    let (name, key, ours) = (&seen.interface, &seen.peer.public_key, &seen.public_key);
    let has = if seen.peer.has_preshared_key {
        "one"
    } else {
        "none"
    };
    finding!(PresharedKey, certainty;
        "{text} (this side has {has})";
        "wg set {name} peer {key} preshared-key FILE"
        "at the peer: wg set INTERFACE peer {ours} preshared-key FILE")
}

/// Errors that routers and hosts sent.
fn icmp(seen: &Evidence, found: &mut Vec<Finding>) {
    let (Some(to), Some(event)) = (seen.endpoint, seen.event(EventKind::IcmpError)) else {
        return;
    };
    let said = without_key(event);
    let (name, key, ip, port) = (&seen.interface, &seen.peer.public_key, to.ip(), to.port());
    let host = if ip.is_ipv6() {
        format!("[{ip}]")
    } else {
        ip.to_string()
    };
    found.push(match event.reason.as_deref() {
        Some("port_unreachable") => finding!(PortClosed, Certain;
            "{ip} says that nothing listens at port {port}: WireGuard does not run there, or its ListenPort is another one";
            "at the peer: wg show all listen-port"
            "at the peer: ss -ulnp"
            "wg set {name} peer {key} endpoint {host}:PORT"),
        Some("prohibited") => finding!(Rejected, Certain;
            "a firewall rejects what we send to {to}: {said}";
            "at the peer: nft list ruleset | grep -e reject -e {port}"
            "traceroute {ip}"),
        Some("host_unreachable" | "network_unreachable" | "time_exceeded") => finding!(HostUnreachable, Certain;
            "{to} cannot be reached: {said}";
            "ping {ip}"
            "ip neigh show {ip}"
            "traceroute {ip}"),
        _ => return,
    });
}

/// Our own clock. A peer says nothing of an initiation that it takes for a replay.
fn clock(seen: &Evidence, found: &mut Vec<Finding>) {
    if let Some(why) = &seen.clock {
        found.push(finding!(Clock, Likely;
            "the clock of this host is wrong: {why}. A peer that has seen a later timestamp refuses ours, without a word";
            "timedatectl set-ntp true"
            "date -u"));
    }
}

/// An initiation left, and nothing came.
fn silence(seen: &Evidence, found: &mut Vec<Finding>) {
    // Anything surer explains the silence.
    let Some(to) = seen.endpoint.filter(|_| {
        found
            .iter()
            .all(|one| one.certainty != Certain && one.cause != Cause::Cgnat)
    }) else {
        return;
    };
    let (key, ours, ip, port) = (&seen.peer.public_key, &seen.public_key, to.ip(), to.port());
    let (is_there, rules) = (seen.outside == Some(PortReply::Answers), quoted(seen));
    let host = match seen.outside {
        Some(PortReply::Answers) => ", though that host is up and UDP reaches it",
        Some(_) => "; nor did that host say anything to UDP at another port",
        None => "",
    };
    let waited = seen.waited.as_secs();
    let is_far = matches!(&seen.path, Some(Ok(path)) if path.gateway.is_some());
    let private = match is_private(ip) && is_far {
        true => " (a private address, which only hosts of its own network find)",
        false => "",
    };
    let text =
        format!("an initiation went to {to}{private}, and nothing came back in {waited} s{host}");
    let drops = match is_there {
        true => "a firewall drops UDP to that port, or the answers",
        false => "the host is down, or a firewall drops UDP, there or on the way",
    };
    // Answers that the kernel drops are not missing for another reason.
    let is_filtered = found.iter().any(|one| one.cause == Cause::RpFilter);
    if is_filtered {
        found.push(finding!(NoAnswer, Possible; "{text}: {drops}{rules}"; "traceroute {ip}"));
        return;
    }
    // What worked before had the right keys.
    let keys = is_there && seen.peer.latest_handshake.is_none();
    let (keys, way) = if keys {
        (Likely, Possible)
    } else {
        (Possible, Likely)
    };
    found.push(finding!(NoAnswer, way;
        "{text}: {drops}{rules}";
        "at the peer: tcpdump -ni any udp port {port}"
        "at the peer: nft list ruleset | grep -e hook -e drop -e {port}"
        "ping {ip}"
        "traceroute {ip}"));
    found.push(finding!(PeerLacksOurKey, keys;
        "{text}: the peer has no peer with our public key {ours}, or another one in its place, and refuses in silence";
        "at the peer: wg show all peers"
        "at the peer: adit why INTERFACE"));
    found.push(finding!(WrongPeerKey, Possible;
        "{key} is not the public key of what runs at {to}, which refuses in silence";
        "at the peer: wg show all public-key"));
    found.push(finding!(Clock, Possible;
        "the clock of this host was set back while the peer remembers later timestamps, or another host uses our private key";
        "date -u"));
}

/// Causes that show in what comes out of the tunnel and is refused.
fn source(seen: &Evidence, found: &mut Vec<Finding>) {
    let (name, key) = (&seen.interface, &seen.peer.public_key);
    let blocks = seen.peer.allowed_ips.join(",");
    let before = seen.peer.drops.get("wrong_source").copied().unwrap_or(0);
    let now = seen.event(EventKind::WrongSource).map(without_key);
    let more = seen.wrong_sources;
    let said = match now {
        Some(said) => said.to_owned(),
        None if more > 0 => format!("{more} packets had another inner source just now"),
        None if before > 0 => format!("{before} packets had another inner source"),
        None => return,
    };
    let is_new = now.is_some() || more > 0;
    let finding = finding!(WrongSource, if is_new { Certain } else { Likely };
        "{said}: the allowed IPs of the peer here ({blocks}) are not the addresses that it uses inside";
        "at the peer: ip address show dev INTERFACE"
        "wg set {name} peer {key} allowed-ips {blocks},ADDRESS");
    found.push(if is_new { finding } else { finding.remark() });
}

/// Whether an event is about this peer, or came from its address.
pub(super) fn concerns(event: &EventJson, key: &str, endpoint: Option<IpAddr>) -> bool {
    let from: Option<std::net::SocketAddr> =
        event.endpoint.as_deref().and_then(|it| it.parse().ok());
    let is_stranger = event.event == EventKind::UnknownPeer.name() || event.peer.is_none();
    match (&event.peer, endpoint) {
        (Some(peer), _) if peer == key => true,
        (_, Some(endpoint)) => is_stranger && from.is_some_and(|from| from.ip() == endpoint),
        (_, None) => is_stranger && from.is_some(),
    }
}
