//! What peers of a tunnel may open, as a table of nf_tables whose elements change one by one:
//!
//! ```text
//! table inet adit-rules-wg0 {
//!   set limited4 { type ipv4_addr; flags interval; }
//!   set allowed4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags interval; }
//!   chain forward {
//!     type filter hook forward priority filter
//!     iifname != "wg0" accept
//!     ct direction reply accept
//!     ct state related accept
//!     ip saddr != @limited4 accept
//!     ip saddr . ip daddr . meta l4proto . th dport @allowed4 accept
//!     counter drop
//!   }
//! }
//! ```
//!
//! So it is for IPv6, and for packets to this host. Each packet that a peer sends is looked up, not only the first
//! one of a connection, so that what is deleted ends at once; answers are not.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLMSG_ERROR};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::attribute::{attribute, nested, string};
use crate::nft::{ACCEPT, FILTER, FORWARD, tracked};
use crate::nftables::{
    DEL_TABLE, DROP, EQUAL, META_IIFNAME, META_L4PROTO, NEW_CHAIN, NEW_RULE, NEW_TABLE, NFTABLES,
    NOT_EQUAL, NftTransaction, REGISTER, compare, expression, inet, interface_name, load_meta,
    message, number, protocol, verdict,
};
use crate::{Family, KernelRefusal, Raw, Result, descriptor, open_socket, receive};

/// The table of an interface.
#[derive(Clone, Debug)]
pub struct PeerFilter {
    table: String,
    interface: String,
}

/// An element of its sets. No two of them may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterElement {
    /// What comes from this network is dropped unless it is allowed.
    Limited(IpAddr, u8),
    /// From the first network the second one may be reached, which is of the same family, with these protocols and
    /// destination ports, each from the first to the last one.
    Allowed((IpAddr, u8), (IpAddr, u8), (u8, u8), (u16, u16)),
}

const GET_TABLE: u16 = NEW_TABLE + 1;
const NEW_SET: u16 = NFTABLES << 8 | 9;
const NEW_ELEMENT: u16 = NFTABLES << 8 | 12;
const DEL_ELEMENT: u16 = NFTABLES << 8 | 14;
/// `NFNLGRP_NFTABLES`, as a bit.
const CHANGES: u32 = 1 << 6;
const INPUT: u32 = 1;
const META_NFPROTO: u32 = 15;
const CT_STATE: u32 = 0;
const CT_DIRECTION: u32 = 1;
const REPLY: u8 = 1;
const RELATED: u32 = 4;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// `NFT_REG32_00`: the first of the registers of four bytes.
const FIRST_REGISTER: u32 = 8;
const SET_INTERVAL: u32 = 4;
const SET_CONCAT: u32 = 0x80;
const INTERVAL_END: u32 = 1;
const LOOKUP_INVERTED: u32 = 1;
/// Elements in a message: the length of an attribute has 16 bits.
const MAX_ELEMENTS: usize = 300;
/// Types of nft(8), which lists elements by them.
const INET_PROTO: u32 = 12;
const INET_SERVICE: u32 = 13;

impl PeerFilter {
    /// The table for what comes by an interface.
    pub fn new(interface: &str) -> Self {
        Self {
            table: format!("adit-rules-{interface}"),
            interface: interface.to_owned(),
        }
    }

    /// Makes the table with these elements, in the place of one that is there. All of it or, with an error, nothing.
    ///
    /// # Errors
    ///
    /// The kernel's, with the message that it refused: `Unsupported` if it has no nf_tables, `PermissionDenied`
    /// without CAP_NET_ADMIN.
    pub fn replace(&self, elements: &[FilterElement]) -> Result<()> {
        let mut batch = NftTransaction::inet();
        let name = attribute(1, &string(&self.table));
        batch.push(format!("making {self}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        batch.push(format!("emptying {self}"), DEL_TABLE, 0, &[&name]);
        batch.push(format!("making {self}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        for (number, family) in (1_u32..).step_by(2).zip(Family::BOTH) {
            self.make_set(
                &mut batch,
                limited(family),
                number,
                &address_fields(family)[..1],
            );
            self.make_set(
                &mut batch,
                allowed(family),
                number + 1,
                &address_fields(family),
            );
        }
        for (chain, hook) in [("input", INPUT), ("forward", FORWARD)] {
            let place = [number(1, hook), attribute(2, &FILTER.to_be_bytes())];
            let attributes: [&[u8]; 4] = [
                &name,
                &attribute(3, &string(chain)),
                &nested(4, &place.concat()),
                &attribute(7, &string("filter")),
            ];
            let what = format!("making chain {chain} of {self}");
            batch.push(what, NEW_CHAIN, NLM_F_CREATE, &attributes);
            for expressions in self.rules() {
                let attributes: [&[u8]; 3] = [
                    &name,
                    &attribute(2, &string(chain)),
                    &nested(4, &expressions.concat()),
                ];
                let what = format!("adding a rule to chain {chain} of {self}");
                batch.push(what, NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
            }
        }
        self.push_elements(&mut batch, NEW_ELEMENT, elements);
        batch.commit()
    }

    /// Deletes elements and then adds others. All of it or, with an error, nothing.
    ///
    /// # Errors
    ///
    /// The kernel's: `NotFound` if there is no table, or no such element.
    pub fn change(&self, delete: &[FilterElement], add: &[FilterElement]) -> Result<()> {
        let mut batch = NftTransaction::inet();
        self.push_elements(&mut batch, DEL_ELEMENT, delete);
        self.push_elements(&mut batch, NEW_ELEMENT, add);
        batch.commit()
    }

    /// Deletes the table, also where there is none.
    ///
    /// # Errors
    ///
    /// As of [`PeerFilter::replace`].
    pub fn remove(&self) -> Result<()> {
        let mut batch = NftTransaction::inet();
        let name = attribute(1, &string(&self.table));
        batch.push(format!("making {self}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        batch.push(format!("deleting {self}"), DEL_TABLE, 0, &[&name]);
        batch.commit()
    }

    /// Whether the kernel has the table.
    ///
    /// # Errors
    ///
    /// The kernel's, but that there is none.
    pub fn is_there(&self) -> Result<bool> {
        match self.find() {
            Ok(()) => Ok(true),
            Err(failure) if failure.source.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(failure) => Err(failure.while_trying(format!("looking for {self}"))),
        }
    }

    fn find(&self) -> Result<(), KernelRefusal> {
        let socket = open_socket(netlink_sys::protocols::NETLINK_NETFILTER, 0)?;
        let name = attribute(1, &string(&self.table));
        let asked = message(GET_TABLE, 0, 1, inet(), 0, &name);
        let _ = socket.send(&asked, 0)?;
        let mut buffer = Vec::new();
        loop {
            receive(&socket, &mut buffer)?;
            for raw in Raw::split(&buffer) {
                match raw.kind {
                    NEW_TABLE => return Ok(()),
                    NLMSG_ERROR => return raw.outcome(),
                    _ => {}
                }
            }
        }
    }

    /// A set whose keys have fields of these types and lengths.
    fn make_set(&self, batch: &mut NftTransaction, set: &str, id: u32, fields: &[(u32, u32)]) {
        let kind = fields.iter().fold(0, |all, (kind, _)| all << 6 | kind);
        let len = fields.iter().map(|(_, len)| len.next_multiple_of(4)).sum();
        let mut flags = SET_INTERVAL;
        let mut more = Vec::new();
        if fields.len() > 1 {
            flags |= SET_CONCAT;
            let lengths = fields.iter().map(|(_, len)| nested(1, &number(1, *len)));
            more = nested(9, &nested(2, &lengths.collect::<Vec<_>>().concat()));
        }
        let attributes = [
            attribute(1, &string(&self.table)),
            attribute(2, &string(set)),
            number(3, flags),
            number(4, kind),
            number(5, len),
            more,
            number(10, id),
        ];
        let what = format!("making set {set} of {self}");
        batch.push(what, NEW_SET, NLM_F_CREATE, &[&attributes.concat()]);
    }

    fn push_elements(&self, batch: &mut NftTransaction, kind: u16, elements: &[FilterElement]) {
        let verb = if kind == NEW_ELEMENT {
            "adding"
        } else {
            "deleting"
        };
        for set in Family::BOTH
            .iter()
            .flat_map(|it| [limited(*it), allowed(*it)])
        {
            let of_set: Vec<_> = elements.iter().filter(|it| it.set() == set).collect();
            for some in of_set.chunks(MAX_ELEMENTS) {
                let encoded: Vec<_> = some.iter().map(|it| it.encode()).collect();
                let attributes: [&[u8]; 3] = [
                    &attribute(1, &string(&self.table)),
                    &attribute(2, &string(set)),
                    &nested(3, &encoded.concat()),
                ];
                let flags = if kind == NEW_ELEMENT { NLM_F_CREATE } else { 0 };
                let what = format!("{verb} elements of set {set} of {self}");
                batch.push(what, kind, flags, &attributes);
            }
        }
    }

    /// The rules of a chain, as expressions.
    fn rules(&self) -> Vec<Vec<Vec<u8>>> {
        let direction = vec![
            expression("ct", &[number(1, REGISTER), number(2, CT_DIRECTION)]),
            compare(EQUAL, &[REPLY]),
            verdict(ACCEPT),
        ];
        let mut related = tracked(CT_STATE, RELATED);
        related.push(verdict(ACCEPT));
        let mut rules = vec![
            vec![
                load_meta(META_IIFNAME),
                compare(NOT_EQUAL, &interface_name(&self.interface)),
                verdict(ACCEPT),
            ],
            direction,
            related,
        ];
        let is_of = |family| vec![load_meta(META_NFPROTO), compare(EQUAL, &[protocol(family)])];
        for family in Family::BOTH {
            let mut rule = is_of(family);
            let (source, _, len) = addresses(family);
            rule.push(load(NETWORK_HEADER, source, len, FIRST_REGISTER));
            rule.push(look_up(limited(family), LOOKUP_INVERTED));
            rule.push(verdict(ACCEPT));
            rules.push(rule);
        }
        for family in Family::BOTH {
            let mut rule = is_of(family);
            let (source, destination, len) = addresses(family);
            let second = FIRST_REGISTER + len / 4;
            let third = second + len / 4;
            rule.push(load(NETWORK_HEADER, source, len, FIRST_REGISTER));
            rule.push(load(NETWORK_HEADER, destination, len, second));
            rule.push(expression(
                "meta",
                &[number(1, third), number(2, META_L4PROTO)],
            ));
            rule.push(load(TRANSPORT_HEADER, 2, 2, third + 1));
            rule.push(look_up(allowed(family), 0));
            rule.push(verdict(ACCEPT));
            rules.push(rule);
        }
        rules.push(vec![expression("counter", &[]), verdict(DROP)]);
        rules
    }
}

impl fmt::Display for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nf_tables' table inet {}", self.table)
    }
}

impl FilterElement {
    fn set(&self) -> &'static str {
        match self {
            Self::Limited(from, _) => limited(Family::of(*from)),
            Self::Allowed((from, _), ..) => allowed(Family::of(*from)),
        }
    }

    /// As the kernel's lists have it. An interval of one field is two elements: where it begins, and where what is
    /// behind it does.
    fn encode(&self) -> Vec<u8> {
        let value = |kind, bytes: &[u8]| nested(kind, &attribute(1, bytes));
        match self {
            Self::Limited(from, len) => {
                let (first, last) = range(*from, *len);
                let mut elements = nested(1, &value(1, &first));
                if let Some(next) = following(&last) {
                    let end = [value(1, &next), number(3, INTERVAL_END)];
                    elements.extend(nested(1, &end.concat()));
                }
                elements
            }
            Self::Allowed((from, from_len), (to, to_len), protocols, ports) => {
                let (from, to) = (range(*from, *from_len), range(*to, *to_len));
                let key = |from: &[u8], to: &[u8], protocol: u8, port: u16| {
                    let port = port.to_be_bytes();
                    [from, to, &[protocol, 0, 0, 0], &port, &[0, 0]].concat()
                };
                let first = key(&from.0, &to.0, protocols.0, ports.0);
                let last = key(&from.1, &to.1, protocols.1, ports.1);
                nested(1, &[value(1, &first), value(10, &last)].concat())
            }
        }
    }
}

fn limited(family: Family) -> &'static str {
    match family {
        Family::V4 => "limited4",
        Family::V6 => "limited6",
    }
}

fn allowed(family: Family) -> &'static str {
    match family {
        Family::V4 => "allowed4",
        Family::V6 => "allowed6",
    }
}

/// Types and lengths of the fields of what is allowed.
fn address_fields(family: Family) -> [(u32, u32); 4] {
    let address = match family {
        Family::V4 => (7, 4),
        Family::V6 => (8, 16),
    };
    [address, address, (INET_PROTO, 1), (INET_SERVICE, 2)]
}

/// Offsets of source and destination in the header, and their length.
fn addresses(family: Family) -> (u32, u32, u32) {
    match family {
        Family::V4 => (12, 16, 4),
        Family::V6 => (8, 24, 16),
    }
}

fn load(header: u32, offset: u32, len: u32, register: u32) -> Vec<u8> {
    let attributes = [
        number(1, register),
        number(2, header),
        number(3, offset),
        number(4, len),
    ];
    expression("payload", &attributes)
}

/// Ends the rule unless the set has what the registers hold.
fn look_up(set: &str, flags: u32) -> Vec<u8> {
    let attributes = [
        attribute(1, &string(set)),
        number(2, FIRST_REGISTER),
        number(5, flags),
    ];
    expression("lookup", &attributes)
}

/// The first and the last address of a network.
fn range(ip: IpAddr, len: u8) -> (Vec<u8>, Vec<u8>) {
    let rest = |bits: u8| u32::from(bits.saturating_sub(len));
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(rest(32)).unwrap_or(0);
            let first = ip.to_bits() & mask;
            (
                first.to_be_bytes().into(),
                (first | !mask).to_be_bytes().into(),
            )
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(rest(128)).unwrap_or(0);
            let first = ip.to_bits() & mask;
            (
                first.to_be_bytes().into(),
                (first | !mask).to_be_bytes().into(),
            )
        }
    }
}

/// The next address; `None` behind the last one.
fn following(address: &[u8]) -> Option<Vec<u8>> {
    let mut next = address.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, is_over) = byte.overflowing_add(1);
        *byte = sum;
        if !is_over {
            return Some(next);
        }
    }
    None
}

/// A socket that tells when any table of the namespace changes.
pub struct FilterMonitor(OwnedFd);

impl FilterMonitor {
    /// For the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Those of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let socket = open_socket(netlink_sys::protocols::NETLINK_NETFILTER, CHANGES)?;
        descriptor(&socket).map(Self)
    }

    /// Takes all that it has told. What did not fit, it does not tell: any of it says only that something changed.
    pub fn drain(&self) {
        let mut buffer = [0; 64];
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for FilterMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
