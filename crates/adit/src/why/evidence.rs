//! What can be seen from this host of a peer that does not connect.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use adit_ctl::status::{Event, EventKind, Interface, Peer};
use adit_netlink::{Address, Link, Netlink, Path};
use adit_proto::FailureReason;
use adit_proto::config::Cidr;

use super::beyond::{Beyond, Forwarding};
use super::firewall::{closing, dropping, nftables};
use crate::events::utc;
use crate::why::blocks::{blocks, is_host};
use crate::why::reach::{Reach, reach};

/// Blocks of a peer for which the route is looked up.
const MAX_BLOCKS: usize = 64;
/// A clock that says less was never set: 1 January 2020.
const YEAR_2020: u64 = 1_577_836_800;
/// How much later than the clock a file may be, in seconds.
const SLACK: u64 = 120;

/// What came back from inside the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Who was asked.
    pub(crate) to: IpAddr,
    /// It is the first address of the interface's network, which nobody may have.
    pub(crate) is_guess: bool,
    /// For a short packet.
    pub(crate) short: Reach,
    /// For one as long as the MTU.
    pub(crate) long: Reach,
}

/// An address that is to be tried inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) to: IpAddr,
    /// The key of the peer that is sent what is for it.
    pub(crate) owner: Option<String>,
    /// The other device that it is sent by, or none where there is no route; `None` if it goes into
    /// the tunnel.
    pub(crate) elsewhere: Option<Option<String>>,
}

/// The interface, as netlink has it, and the host around it.
pub(super) struct Host {
    netlink: Netlink,
    pub(super) link: Link,
    links: Vec<Link>,
    addresses: Vec<Address>,
    clock: Option<String>,
    here: Forwarding,
}

/// All that is known of one peer.
#[derive(Clone, Default)]
pub(crate) struct Evidence {
    pub(crate) interface: String,
    pub(crate) index: Option<u32>,
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    pub(crate) public_key: String,
    pub(crate) has_key: bool,
    pub(crate) listen_port: u16,
    pub(crate) fwmark: u32,
    /// Addresses of the interface.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) peer: Peer,
    /// Before anything was tried.
    pub(crate) endpoint: Option<SocketAddr>,
    /// The way to it, or why there is none.
    pub(crate) path: Option<Result<Path, String>>,
    /// The device that it leaves by.
    pub(crate) device: Option<String>,
    pub(crate) path_mtu: Option<u32>,
    /// The device at which the kernel's reverse path filter drops answers.
    pub(crate) filtered: Option<String>,
    /// Blocks of the peer that are sent elsewhere, and by which device.
    pub(crate) not_routed: Vec<(Cidr, Option<String>)>,
    /// A block of a family of which the interface has no address.
    pub(crate) unaddressed: Option<Cidr>,
    /// A block of another peer inside one of this peer's, and that peer.
    pub(crate) nested: Option<(Cidr, Cidr, String)>,
    /// What is wrong with the clock.
    pub(crate) clock: Option<String>,
    /// Rules of the firewall that may drop our datagrams.
    pub(crate) rules: Vec<String>,
    /// The rule that drops what comes to our port.
    pub(crate) closed: Option<String>,
    /// There is a session, since a handshake was tried or, if none was, from before.
    pub(crate) session: bool,
    /// Why no handshake was tried.
    pub(crate) not_tried: Option<String>,
    /// How long was waited for an answer.
    pub(crate) waited: Duration,
    /// When that began: seconds since the Unix epoch.
    pub(crate) since: u64,
    /// What happened meanwhile that concerns the peer.
    pub(crate) events: Vec<Event>,
    /// The interface's counters of handshakes, before and after.
    pub(crate) counters: [BTreeMap<String, u64>; 2],
    /// What the host at the endpoint answers to UDP.
    pub(crate) outside: Option<Reach>,
    pub(crate) inside: Option<Inside>,
    /// The address that the user wants to be tried.
    pub(crate) wanted: Option<Wanted>,
    /// The first address of the interface's network, if the peer is sent what is for it.
    pub(crate) first: Option<IpAddr>,
    /// Whether the peer itself answered, where another host was asked for.
    pub(crate) peer_answers: bool,
    /// What is behind the peer.
    pub(crate) beyond: Option<Beyond>,
    /// An address behind the peer, by its allowed IPs.
    pub(crate) behind: Option<IpAddr>,
    /// Packets of the peer with another inner source, meanwhile.
    pub(crate) wrong_sources: u64,
    /// What this host forwards.
    pub(crate) here: Forwarding,
}

impl Host {
    pub(super) fn look(netlink: Netlink, link: Link, status: &Interface) -> Self {
        let links = netlink.links().unwrap_or_default();
        let uplink = inhabitant(Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
            .and_then(|to| netlink.route_get(to, None, status.fwmark, None).ok())
            .filter(|path| path.oif != link.index)
            .and_then(|path| links.iter().find(|link| link.index == path.oif))
            .map(|link| link.name.clone());
        Self {
            links,
            addresses: netlink.addresses().unwrap_or_default(),
            clock: clock(&link.name, status),
            here: Forwarding::look(status, uplink),
            netlink,
            link,
        }
    }

    fn device(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Everything that is known before anything is tried.
    pub(super) fn evidence(
        &self,
        status: &Interface,
        peer: &Peer,
        wanted: Option<IpAddr>,
    ) -> Evidence {
        let own = || {
            let of_link = |one: &&Address| one.ifindex == self.link.index && !is_link_local(one.ip);
            self.addresses.iter().filter(of_link)
        };
        let mut seen = Evidence {
            interface: status.name.clone(),
            index: Some(self.link.index),
            up: self.link.up,
            mtu: self.link.mtu,
            public_key: status.public_key.clone().unwrap_or_default(),
            has_key: status.public_key.is_some(),
            listen_port: status.listen_port,
            fwmark: status.fwmark,
            addresses: own().map(|one| one.ip).collect(),
            here: self.here.clone(),
            peer: peer.clone(),
            endpoint: peer.endpoint.as_deref().and_then(|text| text.parse().ok()),
            clock: self.clock.clone(),
            ..Evidence::default()
        };
        self.path(&mut seen);
        self.blocks(&mut seen);
        let owner = |to| owner(status, to).map(|peer| peer.public_key.clone());
        let is_sent_there = |to: &IpAddr| {
            owner(*to).as_ref() == Some(&peer.public_key) && self.elsewhere(*to).is_none()
        };
        seen.wanted = wanted.map(|to| Wanted {
            to,
            owner: owner(to),
            elsewhere: self.elsewhere(to),
        });
        let networks: Vec<Cidr> = own()
            .filter_map(|one| Cidr::new(one.ip, one.prefix_len))
            .collect();
        let first = networks.iter().filter(|network| !is_host(**network));
        let first = first.filter_map(|network| inhabitant(Some(*network)));
        seen.first = first
            .filter(|to| !seen.addresses.contains(to))
            .find(is_sent_there);
        let is_near = |to: &IpAddr| networks.iter().any(|network| network.contains(*to));
        let behind = blocks(peer).filter(|block| !is_host(*block));
        let behind = behind.filter_map(|block| inhabitant(Some(block)));
        seen.behind = behind
            .take(MAX_BLOCKS)
            .filter(|to| !is_near(to))
            .find(is_sent_there);
        seen.nested = nested(status, peer);
        seen
    }

    /// The other device by which packets to an address leave, or none where there is no route;
    /// `None` if they go into the tunnel.
    fn elsewhere(&self, to: IpAddr) -> Option<Option<String>> {
        match self.netlink.route_get(to, None, 0, None) {
            Ok(path) if path.oif == self.link.index && !path.local => None,
            Ok(path) => Some(self.device(path.oif).map(|link| link.name.clone())),
            Err(_) => Some(None),
        }
    }

    /// The way to the endpoint.
    fn path(&self, seen: &mut Evidence) {
        let Some(to) = seen.endpoint else { return };
        let get = |mark| self.netlink.route_get(to.ip(), None, mark, None);
        let path = match get(seen.fwmark) {
            Ok(path) => path,
            Err(error) => {
                seen.path = Some(Err(error.to_string()));
                return;
            }
        };
        let device = self.device(path.oif);
        seen.path_mtu = path.mtu.or(device.map(|link| link.mtu));
        seen.device = device.map(|link| link.name.clone());
        seen.path = Some(Ok(path));
        // The kernel looks up the way back to the source of each packet: without its mark, unless
        // src_valid_mark is set.
        let setting = |device: &str, name: &str| {
            let path = format!("/proc/sys/net/ipv4/conf/{device}/{name}");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.trim().parse().unwrap_or(0_u32)
        };
        if let (true, Some(link)) = (to.is_ipv4() && seen.fwmark != 0, device) {
            let most = |name| setting("all", name).max(setting(&link.name, name));
            let back = get(0).map_or(0, |path| path.oif);
            if most("rp_filter") == 1 && most("src_valid_mark") == 0 && back != path.oif {
                seen.filtered = Some(link.name.clone());
            }
        }
    }

    /// Whether the kernel sends the peer's blocks into the tunnel, with a source of ours.
    fn blocks(&self, seen: &mut Evidence) {
        for block in blocks(&seen.peer).take(MAX_BLOCKS) {
            let Some(to) = inhabitant(Some(block)) else {
                continue;
            };
            match self.netlink.route_get(to, None, 0, None) {
                Ok(path) if path.oif == self.link.index => {
                    let has_family = |ip: &IpAddr| ip.is_ipv6() == to.is_ipv6();
                    if !seen.addresses.iter().any(has_family) {
                        seen.unaddressed = Some(block);
                    }
                }
                // Our own address is in our own network.
                Ok(path) if path.local => {}
                Ok(path) => {
                    let device = self.device(path.oif).map(|link| link.name.clone());
                    seen.not_routed.push((block, device));
                }
                Err(_) => seen.not_routed.push((block, None)),
            }
        }
    }
}

impl Evidence {
    /// The first event of a kind.
    pub(crate) fn event(&self, kind: EventKind) -> Option<&Event> {
        self.events.iter().find(|event| event.event == kind.name())
    }

    /// Why a handshake with the peer failed, now or within the last minute, as far as that tells
    /// anything.
    pub(crate) fn failure(&self) -> Option<FailureReason> {
        let failure = self.peer.last_failure.as_ref()?;
        let is_new =
            failure.at + 60 >= self.since && Some(failure.at) >= self.peer.latest_handshake;
        let reasons = FailureReason::ALL.iter().copied();
        reasons
            .filter(|_| is_new)
            .find(|reason| reason.name() == failure.reason)
    }

    /// By how much a counter of handshakes has grown.
    pub(crate) fn more(&self, counter: &str) -> u64 {
        let [before, after] = &self.counters;
        let count = |counters: &BTreeMap<String, u64>| counters.get(counter).copied().unwrap_or(0);
        count(after).saturating_sub(count(before))
    }

    /// The peer's block that holds an address.
    pub(crate) fn block_of(&self, ip: IpAddr) -> Option<Cidr> {
        blocks(&self.peer).find(|block| block.contains(ip))
    }

    /// An address inside that only the peer can have.
    pub(super) fn inner_address(&self) -> Option<IpAddr> {
        let ours = |ip: IpAddr| {
            self.addresses
                .iter()
                .any(|own| own.is_ipv6() == ip.is_ipv6())
        };
        let hosts = blocks(&self.peer).filter(|block| is_host(*block));
        let elsewhere = |block: &Cidr| self.not_routed.iter().any(|(other, _)| other == block);
        hosts
            .filter(|block| ours(block.addr()) && !elsewhere(block))
            .map(|block| block.addr())
            .next()
    }

    /// Asks the peer something through the tunnel, if it is known whom to ask, and what is behind it.
    pub(super) fn look_inside(&mut self) {
        let key = &self.peer.public_key;
        let wanted = (self.wanted.as_ref())
            .filter(|wanted| wanted.elsewhere.is_none() && wanted.owner.as_ref() == Some(key))
            .map(|wanted| wanted.to);
        let near = self.inner_address().or(self.first);
        let Some(to) = wanted.or(near) else {
            return;
        };
        let headers = if to.is_ipv6() { 48 } else { 28 };
        let longest = usize::try_from(self.mtu)
            .unwrap_or(0)
            .saturating_sub(headers);
        let short = reach(to, 8);
        let long = match short {
            Reach::Answers => reach(to, longest),
            _ => Reach::Silent,
        };
        let answers = short == Reach::Answers;
        self.inside = Some(Inside {
            to,
            is_guess: wanted.is_none() && self.inner_address().is_none(),
            short,
            long,
        });
        self.peer_answers = match near.filter(|near| *near != to) {
            Some(near) if !answers => reach(near, 8) == Reach::Answers,
            _ => answers && wanted.is_none(),
        };
        let behind = match wanted {
            Some(to) => (!answers && near != Some(to)).then_some(to),
            None => self.behind.filter(|_| answers),
        };
        self.beyond = behind.and_then(Beyond::ask);
    }

    /// Looks at the firewall, and asks the host at the endpoint, unless that would go through the
    /// tunnel.
    pub(super) fn look_outside(&mut self) {
        let port = self.endpoint.map(|to| to.port());
        let ports: Vec<u16> = port.into_iter().chain([self.listen_port]).collect();
        let rules = nftables().unwrap_or_default();
        self.rules = dropping(&rules, &ports);
        self.closed = closing(&rules, self.listen_port, self.endpoint.is_some());
        let is_outside = |path: &Path| Some(path.oif) != self.index && !path.local;
        if let (Some(to), Some(Ok(path)), true) = (self.endpoint, &self.path, self.fwmark == 0)
            && is_outside(path)
        {
            self.outside = Some(reach(to.ip(), 8));
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// An address in a block to look up a route for; `None` for what is not routed as others are.
fn inhabitant(block: Option<Cidr>) -> Option<IpAddr> {
    let block = block?;
    let ip = match block.addr() {
        // Name servers that everybody knows.
        IpAddr::V4(_) if block.prefix_len() == 0 => Ipv4Addr::new(1, 1, 1, 1).into(),
        IpAddr::V6(_) if block.prefix_len() == 0 => {
            Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111).into()
        }
        ip if is_host(block) => ip,
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1).into(),
    };
    (!ip.is_multicast() && !is_link_local(ip)).then_some(ip)
}

/// The peer that is sent what is for an address: that of the narrowest block.
fn owner(status: &Interface, to: IpAddr) -> Option<&Peer> {
    let width = |peer: &Peer| {
        let holds = blocks(peer).filter(|block| block.contains(to));
        holds.map(|block| block.prefix_len()).max()
    };
    let owners = status
        .peers
        .iter()
        .filter_map(|peer| Some((width(peer)?, peer)));
    owners.max_by_key(|(len, _)| *len).map(|(_, peer)| peer)
}

/// A block of another peer inside one of this peer's.
fn nested(status: &Interface, peer: &Peer) -> Option<(Cidr, Cidr, String)> {
    let outer: Vec<Cidr> = blocks(peer)
        .filter(|block| block.prefix_len() > 0)
        .collect();
    let others = status
        .peers
        .iter()
        .filter(|other| other.public_key != peer.public_key);
    others
        .flat_map(|other| blocks(other).map(move |block| (block, other)))
        .find_map(|(inner, other)| {
            let holds = |outer: &&Cidr| {
                outer.contains(inner.addr()) && outer.prefix_len() < inner.prefix_len()
            };
            let outer = outer.iter().find(holds)?;
            Some((inner, *outer, other.public_key.clone()))
        })
}

/// What shows that the clock is behind what it was.
fn clock(name: &str, status: &Interface) -> Option<String> {
    let seconds = |time: SystemTime| {
        let time = time.duration_since(SystemTime::UNIX_EPOCH);
        time.map_or(0, |time| time.as_secs())
    };
    // Systemd's own client of NTP keeps there when it last knew the time.
    let files = [
        format!("/etc/wireguard/{name}.conf"),
        "/var/lib/systemd/timesync/clock".into(),
        "/etc/resolv.conf".into(),
        "/var/log/wtmp".into(),
    ];
    let written = files.into_iter().filter_map(|file| {
        let written = std::fs::metadata(&file).ok()?.modified().ok()?;
        Some((seconds(written), format!("{file} was written")))
    });
    let handshakes = status.peers.iter().filter_map(|peer| {
        let at = peer.latest_handshake?;
        Some((at, "the latest handshake was".to_owned()))
    });
    wrong_clock(seconds(SystemTime::now()), written.chain(handshakes))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a time of this age of the universe"
)]
pub(super) fn wrong_clock(
    now: u64,
    happened: impl Iterator<Item = (u64, String)>,
) -> Option<String> {
    let date = |seconds: u64| utc(seconds as f64);
    if now < YEAR_2020 {
        return Some(format!("it says {}", date(now)));
    }
    let (last, what) = happened.max()?;
    (last > now + SLACK).then(|| format!("it says {}, but {what} at {}", date(now), date(last)))
}
