//! What lies behind a host, and whether it forwards: asked of the peer from afar, seen on this host.
//!
//! A packet whose hop limit ends at the peer is answered by it only if it forwards; one whose hop
//! limit ends behind it, only if the answer finds the way back, which takes NAT or a route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adit_ctl::status::Interface;
use adit_netlink::netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};

use super::causes::{Cause, Certainty, Finding};
use super::firewall::nftables;
use crate::why::blocks::{blocks, is_host};

/// How long a router may take to answer, and how often it is asked.
const PATIENCE: Duration = Duration::from_millis(400);
const ASKED: u32 = 3;
/// A port that hardly anybody uses: what traceroute(8) sends to first.
pub(super) const UNUSED_PORT: u16 = 33434;

/// The fate of a packet behind the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Where it was to go.
    pub(crate) to: IpAddr,
    /// Who answered that the hop limit of 1 ended: the peer, if it forwards.
    pub(crate) peer: Option<IpAddr>,
    /// Whether anybody behind answered.
    pub(crate) behind: bool,
}

impl Beyond {
    /// Asks on the way to an address. `None` without the right to hear the answers, or to send.
    pub(crate) fn ask(to: IpAddr) -> Option<Self> {
        let peer = hop(to, 1)?;
        let behind = peer.is_some() && hop(to, 2)?.is_some();
        Some(Self { to, peer, behind })
    }
}

/// Which router says that a packet to `to` with this hop limit ends there.
fn hop(to: IpAddr, limit: u8) -> Option<Option<IpAddr>> {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let answers = socket_with(family, SocketType::RAW, flags, Some(protocol)).ok()?;
    let from: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    match to {
        IpAddr::V4(_) => socket.set_ttl(limit.into()).ok()?,
        IpAddr::V6(_) => {
            rustix::net::sockopt::set_ipv6_unicast_hops(&socket, Some(limit)).ok()?;
        }
    }
    for _ in 0..ASKED {
        socket.send_to(&[0; 8], (to, UNUSED_PORT)).ok()?;
        if let Some(router) = wait_for_answer(&answers, to) {
            return Some(Some(router));
        }
    }
    Some(None)
}

fn wait_for_answer(answers: &OwnedFd, to: IpAddr) -> Option<IpAddr> {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut polled = [PollFd::new(answers, PollFlags::IN)];
        if left.is_zero() || poll(&mut polled, timeout.as_ref()).is_err() {
            return None;
        }
        let mut bytes = [0; 1500];
        let Ok((len, _)) = recv(answers, &mut bytes[..], RecvFlags::DONTWAIT) else {
            continue;
        };
        let bytes = bytes.get(..len).unwrap_or_default();
        // IPv6 leaves its header out: the answer was about our packet.
        let answer = match to {
            IpAddr::V4(to) => expired_v4(bytes, to).map(IpAddr::V4),
            IpAddr::V6(to) => expired_v6(bytes, to).then_some(IpAddr::V6(to)),
        };
        if answer.is_some() {
            return answer;
        }
    }
}

/// The router that says that the time of a packet of ours to `to` was exceeded in transit: header
/// of IPv4, of ICMP (8), and of our packet.
fn expired_v4(bytes: &[u8], to: Ipv4Addr) -> Option<Ipv4Addr> {
    let header = usize::from(bytes.first()? & 15) * 4;
    let icmp = bytes.get(header..)?;
    let inner = icmp.get(8..)?;
    let is_ours = icmp.first() == Some(&11) && inner.get(16..20)? == to.octets();
    let source: [u8; 4] = bytes.get(12..16)?.try_into().ok()?;
    let port = inner.get(usize::from(inner.first()? & 15) * 4 + 2..)?;
    (is_ours && port.get(..2)? == UNUSED_PORT.to_be_bytes()).then(|| source.into())
}

/// The same of ICMPv6, whose messages come without the outer header.
fn expired_v6(icmp: &[u8], to: Ipv6Addr) -> bool {
    let inner = icmp.get(8..).unwrap_or_default();
    icmp.first() == Some(&3)
        && inner.get(24..40) == Some(&to.octets()[..])
        && inner.get(42..44) == Some(&UNUSED_PORT.to_be_bytes()[..])
}

/// Whether this host forwards what comes out of the tunnel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarding {
    /// Packets between hosts are to pass here: at least two peers are hosts.
    pub(crate) is_hub: bool,
    /// The families of these peers that are not forwarded.
    pub(crate) off: Vec<&'static str>,
    /// Packets that were to be forwarded and were not, before anything was tried and since.
    pub(crate) refused: [u64; 2],
    /// What peers send to the Internet gets no address of this host's.
    pub(crate) no_masquerade: bool,
    /// The device of the default route.
    pub(crate) uplink: Option<String>,
}

impl Forwarding {
    pub(crate) fn look(status: &Interface, uplink: Option<String>) -> Self {
        let hosts = || {
            status.peers.iter().filter(|peer| {
                let mut blocks = blocks(peer).peekable();
                blocks.peek().is_some() && blocks.all(is_host)
            })
        };
        let name = &status.name;
        let has =
            |v6: bool| hosts().any(|peer| blocks(peer).any(|block| block.addr().is_ipv6() == v6));
        // The sysctl of the interface counts in IPv4, and in IPv6 that of all.
        let families = [
            (
                false,
                "net.ipv4.ip_forward",
                format!("net/ipv4/conf/{name}/forwarding"),
            ),
            (
                true,
                "net.ipv6.conf.all.forwarding",
                "net/ipv6/conf/all/forwarding".to_owned(),
            ),
        ];
        let is_off = |sysctl: &str| netns::sysctl(sysctl).is_ok_and(|value| value == "0");
        let off = families
            .iter()
            .filter(|(v6, _, sysctl)| has(*v6) && is_off(sysctl))
            .map(|(_, name, _)| *name)
            .collect();
        let refused = refused(name);
        Self {
            is_hub: hosts().count() > 1,
            off,
            refused: [refused; 2],
            no_masquerade: uplink.is_some()
                && !has_legacy_nat()
                && nftables()
                    .is_some_and(|rules| !translates(&rules) && !is_confined(&rules, name)),
            uplink,
        }
    }

    pub(crate) fn look_again(&mut self, name: &str) {
        self.refused[1] = refused(name);
    }
}

/// Whether the NAT of iptables-legacy is in use, whose rules nftables does not list.
fn has_legacy_nat() -> bool {
    let tables = std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
    tables.is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
}

/// Whether a rule set translates the sources of what leaves.
pub(super) fn translates(rules: &str) -> bool {
    let mut lines = rules.lines().map(str::trim);
    lines.any(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| matches!(word, "masquerade" | "snat" | "MASQUERADE" | "SNAT"))
    })
}

/// Whether `adit up` has set what the peers of an interface reach: then no more is meant.
fn is_confined(rules: &str, interface: &str) -> bool {
    let table = format!("table ip adit-forward-{interface} {{");
    rules.lines().any(|line| line == table)
}

/// How many packets for others came to a host that does not forward: of all devices in IPv4, of the
/// interface in IPv6.
fn refused(name: &str) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let v4 = read("/proc/thread-self/net/snmp");
    let mut lines = v4.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let names = lines.next().unwrap_or_default().split(' ');
    let values = lines.next().unwrap_or_default().split(' ');
    let mut fields = names.zip(values);
    let v4 = fields.find(|(name, _)| *name == "InAddrErrors");
    let v6 = read(&format!("/proc/thread-self/net/dev_snmp6/{name}"));
    let v6 = v6
        .lines()
        .find_map(|line| line.strip_prefix("Ip6InAddrErrors"));
    let number = |text: &str| text.trim().parse().unwrap_or(0_u64);
    v4.map_or(0, |(_, value)| number(value)) + v6.map_or(0, number)
}

/// The peer forwards nothing, or nothing comes back from behind it.
pub(super) fn of_peer(beyond: &Beyond, certainty: Certainty) -> Finding {
    let Beyond { to, peer, behind } = beyond;
    let (sysctl, family) = match to {
        IpAddr::V4(_) => ("net.ipv4.ip_forward", "ip"),
        IpAddr::V6(_) => ("net.ipv6.conf.all.forwarding", "ip6"),
    };
    let Some(router) = peer else {
        return Finding::new(
            Cause::NoForwarding,
            certainty,
            format!(
                "the peer does not forward what is for {to}, behind it: a packet whose hop limit ends at the peer is not \
                 answered"
            ),
        )
        .run(format!("at the peer: sysctl -w {sysctl}=1"))
        .run(format!(
            "at the peer, for good: echo {sysctl}=1 > /etc/sysctl.d/99-forward.conf"
        ));
    };
    let text = match behind {
        true => format!(
            "the peer forwards, a router behind it answers, and {to} does not: it may be down, or drops this"
        ),
        false => format!(
            "the peer forwards what is for {to}, as {router} says, and nobody behind it answers: they do not know the way \
             back to our address, which takes NAT at the peer or a route there, or a firewall at the peer drops what is \
             forwarded"
        ),
    };
    masquerade(
        Finding::new(Cause::NoMasquerade, certainty, text),
        family,
        "at the peer: ",
        "DEVICE",
    )
    .run("at the peer: nft list ruleset | grep -e 'hook forward' -e masquerade")
}

/// The commands that translate what leaves by a device.
fn masquerade(finding: Finding, family: &str, place: &str, device: &str) -> Finding {
    finding
        .run(format!("{place}nft add table {family} adit-nat"))
        .run(format!(
            "{place}nft 'add chain {family} adit-nat postrouting {{ type nat hook postrouting priority srcnat; }}'"
        ))
        .run(format!(
            "{place}nft add rule {family} adit-nat postrouting oifname {device} masquerade"
        ))
}

/// What this host does not forward for its peers.
pub(super) fn of_this_host(name: &str, here: &Forwarding) -> Vec<Finding> {
    let mut found = Vec::new();
    if !here.is_hub {
        return found;
    }
    let refused = here.refused[1].saturating_sub(here.refused[0]);
    if !here.off.is_empty() {
        let is_seen = refused > 0;
        let (certainty, seen) = match is_seen {
            true => (
                Certainty::Certain,
                format!(": {refused} packets were dropped just now"),
            ),
            false => (Certainty::Possible, String::new()),
        };
        let mut finding = Finding::new(
            Cause::NoForwarding,
            certainty,
            format!(
                "this host does not forward ({} = 0){seen}: peers of {name} reach this host, and neither each other nor \
                 what is behind it",
                here.off.join(", ")
            ),
        );
        for sysctl in &here.off {
            finding = finding.run(format!("sysctl -w {sysctl}=1"));
        }
        let settings: String = here.off.iter().map(|it| format!("{it}=1\\n")).collect();
        finding = finding.run(format!(
            "for good: printf '{settings}' > /etc/sysctl.d/99-forward.conf"
        ));
        found.push(if is_seen { finding } else { finding.remark() });
    }
    if let (true, Some(device)) = (here.no_masquerade, &here.uplink) {
        let finding = Finding::new(
            Cause::NoMasquerade,
            Certainty::Possible,
            format!(
                "no rule of nftables translates what leaves by {device}: peers of {name} that send to the Internet through \
                 this host get no answers"
            ),
        );
        found.push(masquerade(finding, "ip", "", device).remark());
    }
    found
}

#[cfg(test)]
#[path = "beyond_tests.rs"]
mod tests;
