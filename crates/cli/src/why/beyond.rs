//! What lies behind a peer, and whether it forwards: asked from afar.
//!
//! A packet whose hop limit ends at the peer is answered by it only if it forwards; one whose hop
//! limit ends behind it, only if the answer finds the way back, which takes NAT or a route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};

use super::causes::{Cause, Certainty, Finding};

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

/// The first two routers on the way to an address, as far as they say so.
pub(super) fn routers(to: IpAddr) -> Vec<IpAddr> {
    let first = hop(to, 1).flatten();
    let second = first.and_then(|_| hop(to, 2).flatten());
    first.into_iter().chain(second).collect()
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
pub(super) fn masquerade(finding: Finding, family: &str, place: &str, device: &str) -> Finding {
    finding
        .run(format!("{place}nft add table {family} adit-nat"))
        .run(format!(
            "{place}nft 'add chain {family} adit-nat postrouting {{ type nat hook postrouting priority srcnat; }}'"
        ))
        .run(format!(
            "{place}nft add rule {family} adit-nat postrouting oifname {device} masquerade"
        ))
}

#[cfg(test)]
#[path = "beyond_tests.rs"]
mod tests;
