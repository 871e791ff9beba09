//! What can be seen from this host of a peer that does not connect.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_ctl::status::{EventJson, EventKind, InterfaceJson, PeerJson};
use adit_netlink::{Address, Link, Netlink, RouteLookup};
use adit_proto::FailureReason;
use adit_proto::config::Cidr;

use super::beyond::{self, Beyond};
use super::chains::{self, Dropping, Packets};
use super::clock::clock;
use super::firewall::{closing, dropping, nftables};
use super::forwarding::Forwarding;
use super::other_end::OtherEnd;
use super::reverse_path::{self, ReversePath};
use super::rules::{AgentTable, Limited};
use crate::networks::{Collision, Networks, disables_v6, is_link_local, is_private, is_tunnel};
use crate::why::blocks::{blocks, inhabitant, is_host, nested, owner};
use crate::why::reach::{PortReply, reach};

/// Blocks of a peer for which the route is looked up.
const MAX_BLOCKS: usize = 64;

/// What came back from inside the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Who was asked.
    pub(crate) to: IpAddr,
    /// It is the first address of the interface's network, which nobody may have.
    pub(crate) is_guess: bool,
    /// For a short packet.
    pub(crate) short: PortReply,
    /// For one as long as the MTU.
    pub(crate) long: PortReply,
}

/// An address that is to be tried inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedAddress {
    pub(crate) to: IpAddr,
    /// The key of the peer that is sent what is for it.
    pub(crate) owner: Option<String>,
    /// The other device that it is sent by, or none where there is no route; `None` if it goes into
    /// the tunnel.
    pub(crate) elsewhere: Option<Option<String>>,
}

/// The interface, as netlink has it, and the host around it.
pub(super) struct HostState {
    netlink: Netlink,
    pub(super) link: Link,
    links: Vec<Link>,
    addresses: Vec<Address>,
    networks: Networks,
    clock: Option<String>,
    here: Forwarding,
    /// Towards the Internet, without tunnels.
    uplink: Option<RouteLookup>,
    /// What an agent lets peers open.
    rules: Option<AgentTable>,
    /// Other interfaces here that an Adit serves.
    others: Vec<InterfaceJson>,
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
    pub(crate) peer: PeerJson,
    /// Before anything was tried.
    pub(crate) endpoint: Option<SocketAddr>,
    /// The way to it, or why there is none.
    pub(crate) path: Option<Result<RouteLookup, String>>,
    /// The device that it leaves by.
    pub(crate) device: Option<String>,
    pub(crate) path_mtu: Option<u32>,
    /// The device at which the kernel's reverse path filter drops answers.
    pub(crate) filtered: Option<String>,
    /// Other devices with a strict filter, and what it dropped.
    pub(crate) reverse_path: ReversePath,
    /// The networks of the interface's addresses.
    pub(crate) networks: Vec<Cidr>,
    /// Networks of the tunnel that this host has without it, too. If the narrowest route to the peer's
    /// is the other one, they are sent there.
    pub(crate) collisions: Vec<(Collision, bool)>,
    /// The sysctl that disables IPv6 for the endpoint, and for the interface.
    pub(crate) without_v6: [Option<String>; 2],
    /// A block of IPv6 that is not sent anywhere for that reason.
    pub(crate) v6_block: Option<Cidr>,
    /// A block that is sent with a source that is none of the interface's addresses, and that source.
    pub(crate) our_source: Option<(Cidr, IpAddr)>,
    /// This host's address towards the Internet, or towards the endpoint.
    pub(crate) outer: Option<IpAddr>,
    /// Whether this host has addresses of a provider's NAT.
    pub(crate) has_cgnat: bool,
    /// The first two routers towards the Internet, where a peer is to find this host behind them.
    pub(crate) routers: Vec<IpAddr>,
    /// What drops all that comes out of the tunnel.
    pub(crate) input: Option<Dropping>,
    /// The other end, if it is on this host, too.
    pub(crate) other_end: Option<OtherEnd>,
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
    pub(crate) events: Vec<EventJson>,
    /// The interface's counters of handshakes, before and after.
    pub(crate) counters: [BTreeMap<String, u64>; 2],
    /// What the host at the endpoint answers to UDP.
    pub(crate) outside: Option<PortReply>,
    pub(crate) inside: Option<Inside>,
    /// The address that the user wants to be tried.
    pub(crate) wanted: Option<WantedAddress>,
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
    /// It may open only what its record allows.
    pub(crate) limited: Option<Limited>,
}

impl HostState {
    pub(super) fn look(netlink: Netlink, link: Link, status: &InterfaceJson) -> Self {
        let links = netlink.links().unwrap_or_default();
        let addresses = netlink.addresses().unwrap_or_default();
        let uplink = inhabitant(Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
            .and_then(|to| netlink.route_get(to, None, status.fwmark, None).ok())
            .filter(|path| path.oif != link.index);
        let device = uplink.and_then(|path| links.iter().find(|link| link.index == path.oif));
        Self {
            networks: Networks::look(&netlink, &links, &addresses, |other| {
                other.index != link.index
            }),
            clock: clock(&link.name, status),
            here: Forwarding::look(status, device.map(|link| link.name.clone())),
            uplink: uplink.filter(|_| !device.is_some_and(is_tunnel)),
            rules: AgentTable::look(&status.name),
            others: OtherEnd::all(&status.name),
            links,
            addresses,
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
        status: &InterfaceJson,
        peer: &PeerJson,
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
            networks: own()
                .filter_map(|one| Cidr::new(one.ip, one.prefix_len))
                .collect(),
            has_cgnat: self.networks.has_cgnat(),
            here: self.here.clone(),
            limited: self.rules.as_ref().and_then(|it| it.limits(peer)),
            peer: peer.clone(),
            endpoint: peer.endpoint.as_deref().and_then(|text| text.parse().ok()),
            clock: self.clock.clone(),
            ..Evidence::default()
        };
        seen.other_end = OtherEnd::find(&self.others, peer, &seen.public_key, &seen.addresses);
        self.path(&mut seen);
        self.blocks(&mut seen);
        self.collisions(&mut seen);
        let owner = |to| owner(status, to).map(|peer| peer.public_key.clone());
        let is_sent_there = |to: &IpAddr| {
            owner(*to).as_ref() == Some(&peer.public_key) && self.elsewhere(*to).is_none()
        };
        seen.wanted = wanted.map(|to| WantedAddress {
            to,
            owner: owner(to),
            elsewhere: self.elsewhere(to),
        });
        let networks = &seen.networks;
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
        seen.outer = self.uplink.and_then(|path| path.src);
        let Some(to) = seen.endpoint else { return };
        let uplink = self.uplink.and_then(|path| self.device(path.oif));
        seen.without_v6[0] = (to.is_ipv6())
            .then(|| disables_v6(uplink.map_or("all", |link| &link.name)))
            .flatten();
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
        seen.outer = path.src;
        if to.is_ipv6() {
            return;
        }
        let others = (self.links.iter())
            .filter(|link| link.up && !link.loopback && link.index != self.link.index);
        let others = others.filter(|link| link.index != path.oif);
        seen.reverse_path = ReversePath::look(others.map(|link| link.name.as_str()));
        if let (true, Some(link)) = (seen.fwmark != 0, device) {
            let back = get(0).map_or(0, |path| path.oif);
            if reverse_path::drops_marked(&link.name) && back != path.oif {
                seen.filtered = Some(link.name.clone());
            }
        }
    }

    /// Whether the kernel sends the peer's blocks into the tunnel, with a source of ours.
    fn blocks(&self, seen: &mut Evidence) {
        seen.without_v6[1] = disables_v6(&self.link.name);
        for block in blocks(&seen.peer).take(MAX_BLOCKS) {
            let Some(to) = inhabitant(Some(block)) else {
                continue;
            };
            if to.is_ipv6() && seen.without_v6[1].is_some() {
                seen.v6_block = seen.v6_block.or(Some(block));
                continue;
            }
            match self.netlink.route_get(to, None, 0, None) {
                Ok(path) if path.oif == self.link.index => {
                    let has_family = |ip: &IpAddr| ip.is_ipv6() == to.is_ipv6();
                    let source = path.src.filter(|source| !seen.addresses.contains(source));
                    if !seen.addresses.iter().any(has_family) {
                        seen.unaddressed = Some(block);
                    } else if let Some(source) = source.filter(|ip| !is_link_local(*ip)) {
                        seen.our_source = seen.our_source.or(Some((block, source)));
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

    /// Which networks of the tunnel this host has without it, too.
    fn collisions(&self, seen: &mut Evidence) {
        let of_peer = blocks(&seen.peer).take(MAX_BLOCKS);
        let all = of_peer.chain(seen.networks.iter().copied());
        let all = all.flat_map(|block| self.networks.collisions(block));
        // Whether the other network's own route is what takes packets away.
        let takes = |collision: &Collision| {
            let Collision { ours, theirs } = collision;
            let is_elsewhere = |(block, device): &&(Cidr, Option<String>)| {
                block == ours && device.as_ref() == Some(&theirs.device)
            };
            let to = inhabitant(Some(*ours)).filter(|to| theirs.block.contains(*to));
            let route = to.and_then(|to| self.networks.route(to, &theirs.device));
            seen.not_routed.iter().any(|it| is_elsewhere(&it)) && route == Some(theirs.block)
        };
        let all = all.map(|collision| (takes(&collision), collision));
        let mut found: Vec<_> = all.map(|(takes, collision)| (collision, takes)).collect();
        found.sort_by_key(|(_, takes)| !takes);
        seen.collisions = found;
    }
}

impl Evidence {
    /// What a proxy's own process tells of a peer.
    pub(super) fn of_proxy(status: &InterfaceJson, peer: &PeerJson) -> Self {
        Self {
            interface: status.name.clone(),
            up: true,
            public_key: status.public_key.clone().unwrap_or_default(),
            has_key: status.public_key.is_some(),
            listen_port: status.listen_port,
            fwmark: status.fwmark,
            peer: peer.clone(),
            endpoint: peer.endpoint.as_deref().and_then(|text| text.parse().ok()),
            ..Self::default()
        }
    }

    /// The first event of a kind.
    pub(crate) fn event(&self, kind: EventKind) -> Option<&EventJson> {
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

    /// The network inside the tunnel that an address is of: one of ours, or a block of the peer that
    /// holds an address of ours as well.
    pub(crate) fn inner_network(&self, ip: IpAddr) -> Option<Cidr> {
        let is_ours = |block: &Cidr| self.addresses.iter().any(|own| block.contains(*own));
        let of_peer = blocks(&self.peer).filter(|block| block.prefix_len() > 1 && is_ours(block));
        let mut all = self.networks.iter().copied().chain(of_peer);
        all.find(|network| network.contains(ip))
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
            PortReply::Answers => reach(to, longest),
            _ => PortReply::Silent,
        };
        let answers = short == PortReply::Answers;
        self.inside = Some(Inside {
            to,
            is_guess: wanted.is_none() && self.inner_address().is_none(),
            short,
            long,
        });
        self.peer_answers = match near.filter(|near| *near != to) {
            Some(near) if !answers => reach(near, 8) == PortReply::Answers,
            _ => answers && wanted.is_none(),
        };
        let behind = match wanted {
            Some(to) => (!answers && near != Some(to)).then_some(to),
            None => self.behind.filter(|_| answers),
        };
        self.beyond = behind.and_then(Beyond::ask);
        if !answers && let Some(rules) = nftables() {
            let packets = Packets {
                hook: "input",
                from: &self.interface,
                to: None,
                are_answers: true,
                v6: to.is_ipv6(),
            };
            self.input = chains::dropping(&rules, packets);
        }
    }

    /// Looks at the firewall, and asks the host at the endpoint, unless that would go through the
    /// tunnel. Without an endpoint, looks at what is between this host and the Internet.
    pub(super) fn look_outside(&mut self) {
        let port = self.endpoint.map(|to| to.port());
        let ports: Vec<u16> = port.into_iter().chain([self.listen_port]).collect();
        let rules = nftables().unwrap_or_default();
        self.rules = dropping(&rules, &ports);
        self.closed = closing(&rules, self.listen_port, self.endpoint.is_some());
        let is_outside = |path: &RouteLookup| Some(path.oif) != self.index && !path.local;
        if let (Some(to), Some(Ok(path)), true) = (self.endpoint, &self.path, self.fwmark == 0)
            && is_outside(path)
        {
            self.outside = Some(reach(to.ip(), 8));
        }
        let is_hidden = self.outer.is_some_and(|ip| ip.is_ipv4() && is_private(ip));
        if self.endpoint.is_none()
            && is_hidden
            && let Some(to) = inhabitant(Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
        {
            self.routers = beyond::routers(to);
        }
    }
}
