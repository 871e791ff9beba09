//! What a peer may open through its gateway: `tcp/443, udp/53, 10.1.0.0/16 tcp/8000-8100, icmp`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use adit_proto::config::Cidr;

/// Most rules of one record.
const MAX_PORT_RULES: usize = 256;
/// Most elements that the rules of one record become: for each of its address blocks, and without overlaps.
const MAX_ELEMENTS: usize = 4096;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// All that a peer may open; the rest of what it sends is dropped, but for answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPorts(Vec<PortRule>);

/// One kind of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortRule {
    /// `None`: to anywhere.
    to: Option<Cidr>,
    protocol: RuleProtocol,
    ports: (u16, u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleProtocol {
    Tcp,
    Udp,
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp,
    Any,
}

/// Destinations, protocols and ports, each from the first to the last one. Protocols without ports have all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowRange {
    /// The destinations.
    pub to: Cidr,
    /// Numbers of protocols.
    pub protocols: (u8, u8),
    /// Destination ports.
    pub ports: (u16, u16),
}

/// An element of the packet filter's sets.
///
/// ```text
/// limited 10.66.0.2/32
/// allowed 10.66.0.2/32 10.1.0.0/16 6-6 443-443
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleElement {
    /// What comes from here is dropped unless it is allowed.
    Limited(Cidr),
    /// These sources may open this.
    Allowed(Cidr, FlowRange),
}

impl AllowedPorts {
    /// Adds what a line says: rules with commas between them, or nothing.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn extend(&mut self, text: &str) -> Result<(), String> {
        if text.trim().is_empty() {
            return Ok(());
        }
        for rule in text.split(',') {
            self.0.push(rule.parse()?);
        }
        match self.0.len() > MAX_PORT_RULES {
            true => Err(format!("more than {MAX_PORT_RULES} rules")),
            false => Ok(()),
        }
    }

    /// Fails where the rules of a peer with these addresses take too many elements.
    pub(crate) fn check(&self, blocks: &[Cidr]) -> Result<(), String> {
        let of = |is_v6| {
            let blocks = blocks.iter().filter(|it| it.addr().is_ipv6() == is_v6);
            self.flows(is_v6).len().saturating_mul(blocks.count())
        };
        let count = of(false) + of(true);
        match count > MAX_ELEMENTS {
            true => Err(format!(
                "AllowedPorts: with the peer's addresses this takes {count} entries of the packet filter, and a record \
                 may have {MAX_ELEMENTS}"
            )),
            false => Ok(()),
        }
    }

    /// The same for one family, without overlaps, as the sets of nf_tables have it.
    pub(crate) fn flows(&self, is_v6: bool) -> Vec<FlowRange> {
        let any = Cidr::new(unspecified(is_v6), 0);
        let rules = self.0.iter().filter_map(|rule| {
            let to = rule.to.or(any).filter(|to| to.addr().is_ipv6() == is_v6)?;
            Some((to, rule.protocol, rule.ports))
        });
        let rules: Vec<_> = rules.collect();
        let of = |is_it: fn(RuleProtocol) -> bool| {
            let these = rules.iter().filter(|(_, protocol, _)| is_it(*protocol));
            these.map(|(to, _, ports)| (*to, *ports)).collect()
        };
        let mut flows = Vec::new();
        let mut add = |protocols, rules: Vec<(Cidr, (u16, u16))>| {
            for (to, ports) in without_overlaps(rules) {
                flows.push(FlowRange {
                    to,
                    protocols,
                    ports,
                });
            }
        };
        if (rules.iter()).all(|(_, protocol, _)| *protocol == RuleProtocol::Any) {
            add((0, u8::MAX), of(|_| true));
            return flows;
        }
        let icmp = if is_v6 { ICMPV6 } else { ICMP };
        add(
            (TCP, TCP),
            of(|it| it != RuleProtocol::Udp && it != RuleProtocol::Icmp),
        );
        add(
            (UDP, UDP),
            of(|it| it != RuleProtocol::Tcp && it != RuleProtocol::Icmp),
        );
        add(
            (icmp, icmp),
            of(|it| it != RuleProtocol::Tcp && it != RuleProtocol::Udp),
        );
        let others: [(u8, u8); 4] = match is_v6 {
            false => [(0, 0), (2, 5), (7, 16), (18, u8::MAX)],
            true => [(0, 5), (7, 16), (18, 57), (59, u8::MAX)],
        };
        for protocols in others {
            add(protocols, of(|it| it == RuleProtocol::Any));
        }
        flows
    }
}

fn unspecified(is_v6: bool) -> IpAddr {
    match is_v6 {
        false => IpAddr::from([0; 4]),
        true => IpAddr::from([0; 16]),
    }
}

/// The same pairs of destination and ports, each once: between two ports where something begins or ends, the widest
/// destinations hold.
fn without_overlaps(rules: Vec<(Cidr, (u16, u16))>) -> Vec<(Cidr, (u16, u16))> {
    let edges = rules
        .iter()
        .flat_map(|(_, (first, last))| [Some(*first), last.checked_add(1)].into_iter().flatten());
    let edges: BTreeSet<u16> = edges.collect();
    let mut found: Vec<(Cidr, (u16, u16))> = Vec::new();
    // Those of the ports before, which may go on.
    let mut before: Vec<usize> = Vec::new();
    for &first in &edges {
        let next = edges.range(first..).nth(1);
        let last = next.map_or(u16::MAX, |next| next - 1);
        let here = rules
            .iter()
            .filter(|(_, ports)| ports.0 <= first && last <= ports.1);
        let here: BTreeSet<Cidr> = here.map(|(to, _)| *to).collect();
        let mut now = Vec::new();
        for to in widest(here) {
            let goes_on = (before.iter().copied())
                .find(|at| found[*at].0 == to && found[*at].1.1.checked_add(1) == Some(first));
            let at = goes_on.unwrap_or(found.len());
            match goes_on {
                Some(at) => found[at].1.1 = last,
                None => found.push((to, (first, last))),
            }
            now.push(at);
        }
        before = now;
    }
    found
}

/// Those blocks that no other one of them holds.
pub(crate) fn widest(blocks: impl IntoIterator<Item = Cidr>) -> impl Iterator<Item = Cidr> {
    let mut last: Option<Cidr> = None;
    // In their order, a block stands before all that it holds.
    blocks.into_iter().filter(move |block| {
        let is_new = last.is_none_or(|last| !holds(last, *block));
        if is_new {
            last = Some(*block);
        }
        is_new
    })
}

/// Whether all addresses of a block are in another one.
pub(crate) fn holds(outer: Cidr, block: Cidr) -> bool {
    outer.prefix_len() <= block.prefix_len() && outer.contains(block.addr())
}

impl FromStr for PortRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            // What is no such text may be a secret.
            "AllowedPorts: expected rules such as tcp/443, udp/5000-5100, icmp, 10.1.0.0/16 tcp/22 or fd00::/64 any"
                .to_owned()
        };
        let mut words = text.split_ascii_whitespace().rev();
        let flow = words.next().ok_or_else(wrong)?;
        let to = match words.next() {
            Some(block) => Some(block_of(block).ok_or_else(wrong)?),
            None => None,
        };
        let (protocol, ports) = match flow.split_once('/') {
            Some((protocol, ports)) => (protocol, Some(ports)),
            None => (flow, None),
        };
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => RuleProtocol::Tcp,
            "udp" => RuleProtocol::Udp,
            "icmp" => RuleProtocol::Icmp,
            "any" => RuleProtocol::Any,
            _ => return Err(wrong()),
        };
        let has_ports = matches!(protocol, RuleProtocol::Tcp | RuleProtocol::Udp);
        let ports = match ports {
            None => (0, u16::MAX),
            Some(ports) if has_ports => range_of(ports).ok_or_else(wrong)?,
            Some(_) => return Err("AllowedPorts: only tcp and udp have ports".into()),
        };
        match words.next() {
            None => Ok(Self {
                to,
                protocol,
                ports,
            }),
            Some(_) => Err(wrong()),
        }
    }
}

/// `443`, or `8000-8100`.
fn range_of<T: FromStr + Copy + PartialOrd>(text: &str) -> Option<(T, T)> {
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| text.parse().ok()).flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last))
}

/// An address, with or without a length.
fn block_of(text: &str) -> Option<Cidr> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address.parse().ok()?, len.parse().ok()?),
        None => {
            let address: IpAddr = text.parse().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    Cidr::new(address, len)
}

impl fmt::Display for RuleElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(block) => write!(f, "limited {block}"),
            Self::Allowed(from, flows) => {
                let FlowRange {
                    to,
                    protocols: (first, last),
                    ports,
                } = flows;
                write!(
                    f,
                    "allowed {from} {to} {first}-{last} {}-{}",
                    ports.0, ports.1
                )
            }
        }
    }
}

impl FromStr for RuleElement {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or(());
        let kind = next()?;
        let from = block_of(next()?).ok_or(())?;
        let element = match kind {
            "limited" => Self::Limited(from),
            "allowed" => {
                let flows = FlowRange {
                    to: block_of(next()?).ok_or(())?,
                    protocols: range_of(next()?).ok_or(())?,
                    ports: range_of(next()?).ok_or(())?,
                };
                let is_one_family = flows.to.addr().is_ipv4() == from.addr().is_ipv4();
                is_one_family
                    .then_some(Self::Allowed(from, flows))
                    .ok_or(())?
            }
            _ => return Err(()),
        };
        words.next().is_none().then_some(element).ok_or(())
    }
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
