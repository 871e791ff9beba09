//! The packet filter's part of a default route, as one transaction of nf_tables.
//!
//! 1. `BATCH_BEGIN`;
//! 2. the table: made if it is not there, deleted with all that it holds, made anew;
//! 3. its three chains, each on its hook;
//! 4. the rules, in the order in which the chains hold them;
//! 5. `BATCH_END`: the kernel takes all of it or, if it refuses one message, nothing.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_ERROR};

use rustix::net::sockopt::set_socket_send_buffer_size_force;

use crate::attribute::{attribute, nested, string, u16_at};
use crate::{Family, KernelRefusal, Raw, Result, open_socket, receive};

/// The rules that wg-quick sets for a default route through a tunnel.
///
/// They keep strangers from talking to the tunnel's addresses through other interfaces, and carry
/// the mark of the tunnel's own packets over to their answers, so that strict reverse-path filters
/// let them in:
///
/// ```text
/// chain preraw:     iifname != "wg0" ip daddr 10.0.0.1 fib saddr type != local drop
/// chain premangle:  meta l4proto udp meta mark set ct mark
/// chain postmangle: meta l4proto udp meta mark 0x0000ca6c ct mark set meta mark
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Firewall<'a> {
    /// The family whose packets it concerns.
    pub family: Family,
    /// The table that holds it, and nothing else.
    pub table: &'a str,
    /// The tunnel.
    pub interface: &'a str,
    /// The mark of the tunnel's own packets.
    pub mark: u32,
    /// The tunnel's addresses; those of another family do not count.
    pub addresses: &'a [IpAddr],
}

/// Subsystem of nfnetlink.
pub(crate) const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
pub(crate) const NEW_TABLE: u16 = NFTABLES << 8;
pub(crate) const DEL_TABLE: u16 = NFTABLES << 8 | 2;
pub(crate) const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
pub(crate) const NEW_RULE: u16 = NFTABLES << 8 | 6;

/// Of `enum nf_inet_hooks`.
const PREROUTING: u32 = 0;
pub(crate) const POSTROUTING: u32 = 4;
/// Of `enum nf_ip_hook_priorities`: before connection tracking, and after it.
const RAW: i32 = -300;
const MANGLE: i32 = -150;

/// The one register that the rules use, and that of the verdict.
pub(crate) const REGISTER: u32 = 1;
const VERDICT: u32 = 0;
pub(crate) const EQUAL: u32 = 0;
pub(crate) const NOT_EQUAL: u32 = 1;
const META_MARK: u32 = 3;
pub(crate) const META_IIFNAME: u32 = 6;
pub(crate) const META_L4PROTO: u32 = 16;
const CT_MARK: u32 = 3;
const NETWORK_HEADER: u32 = 1;
const FIB_SADDR: u32 = 1;
const FIB_ADDRTYPE: u32 = 3;
const RTN_LOCAL: u32 = 2;
pub(crate) const DROP: u32 = 0;

impl Firewall<'_> {
    /// Sets the rules, in the place of what the table held. All of them or, with an error, none: of
    /// kind `Unsupported` if the kernel has no nf_tables.
    ///
    /// # Errors
    ///
    /// The kernel's, with the message that it refused: `Unsupported` if it has no nf_tables,
    /// `NotFound` if it lacks an expression.
    pub fn set(&self) -> Result<()> {
        self.set_with_chain_type("filter")
    }

    /// The type is a parameter for the tests, which have the kernel refuse one in the middle.
    pub(super) fn set_with_chain_type(&self, chain_type: &str) -> Result<()> {
        let mut batch = NftTransaction::new(self.family);
        let table = self.describe();
        let name = attribute(1, &string(self.table));
        batch.push(format!("making {table}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        batch.push(format!("emptying {table}"), DEL_TABLE, 0, &[&name]);
        batch.push(format!("making {table}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        for (chain, hook, priority) in [
            ("preraw", PREROUTING, RAW),
            ("premangle", PREROUTING, MANGLE),
            ("postmangle", POSTROUTING, MANGLE),
        ] {
            let hook = [number(1, hook), attribute(2, &priority.to_be_bytes())].concat();
            let attributes: [&[u8]; 4] = [
                &name,
                &attribute(3, &string(chain)),
                &nested(4, &hook),
                &attribute(7, &string(chain_type)),
            ];
            let what = format!("making chain {chain} of {table}");
            batch.push(what, NEW_CHAIN, NLM_F_CREATE, &attributes);
        }
        let same_family = |ip: &&IpAddr| Family::of(**ip) == self.family;
        let guards = self.addresses.iter().filter(same_family);
        let guards = guards.map(|ip| ("preraw", guard(self.interface, *ip)));
        let marks = [
            ("premangle", restore_mark()),
            ("postmangle", save_mark(self.mark)),
        ];
        for (chain, expressions) in guards.chain(marks) {
            let attributes: [&[u8]; 3] = [
                &name,
                &attribute(2, &string(chain)),
                &nested(4, &expressions.concat()),
            ];
            let what = format!("adding a rule to chain {chain} of {table}");
            batch.push(what, NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
        }
        batch.commit()
    }

    fn describe(&self) -> String {
        describe(self.family, self.table)
    }

    /// Deletes a table with all that it holds; whether there was one.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn remove(family: Family, table: &str) -> Result<bool> {
        let mut batch = NftTransaction::new(family);
        let what = format!("deleting {}", describe(family, table));
        batch.push(what, DEL_TABLE, 0, &[&attribute(1, &string(table))]);
        match batch.commit() {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                // Where there is no nf_tables there is no table.
                std::io::ErrorKind::NotFound | std::io::ErrorKind::Unsupported => Ok(false),
                _ => Err(error),
            },
        }
    }
}

pub(crate) fn describe(family: Family, table: &str) -> String {
    match family {
        Family::V4 => format!("nf_tables' table ip {table}"),
        Family::V6 => format!("nf_tables' table ip6 {table}"),
    }
}

/// `iifname != INTERFACE ip daddr ADDRESS fib saddr type != local drop`
fn guard(interface: &str, address: IpAddr) -> Vec<Vec<u8>> {
    let (offset, address) = match address {
        IpAddr::V4(ip) => (16, ip.octets().to_vec()),
        IpAddr::V6(ip) => (24, ip.octets().to_vec()),
    };
    let len = u32::try_from(address.len()).unwrap_or_default();
    vec![
        load_meta(META_IIFNAME),
        compare(NOT_EQUAL, &interface_name(interface)),
        load_header(offset, len),
        compare(EQUAL, &address),
        expression(
            "fib",
            &[
                number(1, REGISTER),
                number(2, FIB_ADDRTYPE),
                number(3, FIB_SADDR),
            ],
        ),
        compare(NOT_EQUAL, &RTN_LOCAL.to_ne_bytes()),
        verdict(DROP),
    ]
}

/// What is loaded for the name of an interface. All of the register counts: a name that only begins
/// so is another.
pub(crate) fn interface_name(interface: &str) -> [u8; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from;
    }
    name
}

/// Loads some bytes of the network header.
pub(crate) fn load_header(offset: u32, len: u32) -> Vec<u8> {
    load_payload(NETWORK_HEADER, offset, len)
}

/// Loads some bytes from the beginning of a header on, of `enum nft_payload_bases`.
pub(crate) fn load_payload(base: u32, offset: u32, len: u32) -> Vec<u8> {
    let attributes = [
        number(1, REGISTER),
        number(2, base),
        number(3, offset),
        number(4, len),
    ];
    expression("payload", &attributes)
}

/// Ends the chain with a verdict of `linux/netfilter.h`.
pub(crate) fn verdict(code: u32) -> Vec<u8> {
    let verdict = nested(2, &nested(2, &number(1, code)));
    expression("immediate", &[number(1, VERDICT), verdict])
}

/// `meta l4proto udp meta mark set ct mark`
fn restore_mark() -> Vec<Vec<u8>> {
    let mut expressions = is_udp();
    expressions.push(expression("ct", &[number(1, REGISTER), number(2, CT_MARK)]));
    expressions.push(expression(
        "meta",
        &[number(2, META_MARK), number(3, REGISTER)],
    ));
    expressions
}

/// `meta l4proto udp meta mark MARK ct mark set meta mark`
fn save_mark(mark: u32) -> Vec<Vec<u8>> {
    let mut expressions = is_udp();
    expressions.push(load_meta(META_MARK));
    expressions.push(compare(EQUAL, &mark.to_ne_bytes()));
    expressions.push(load_meta(META_MARK));
    expressions.push(expression("ct", &[number(2, CT_MARK), number(4, REGISTER)]));
    expressions
}

fn is_udp() -> Vec<Vec<u8>> {
    let udp = u8::try_from(libc::IPPROTO_UDP).unwrap_or_default();
    vec![load_meta(META_L4PROTO), compare(EQUAL, &[udp])]
}

pub(crate) fn load_meta(key: u32) -> Vec<u8> {
    expression("meta", &[number(1, REGISTER), number(2, key)])
}

/// Ends the rule if the register does not hold, or holds, `value`.
pub(crate) fn compare(how: u32, value: &[u8]) -> Vec<u8> {
    let value = nested(3, &attribute(1, value));
    expression("cmp", &[number(1, REGISTER), number(2, how), value])
}

/// An expression as element of a rule's list: its name and its own attributes.
pub(crate) fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let name = attribute(1, &string(name));
    nested(1, &[name, nested(2, &attributes.concat())].concat())
}

/// nf_tables counts in network order.
pub(crate) fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// The number of a family.
pub(crate) fn protocol(family: Family) -> u8 {
    let number = match family {
        Family::V4 => libc::NFPROTO_IPV4,
        Family::V6 => libc::NFPROTO_IPV6,
    };
    u8::try_from(number).unwrap_or_default()
}

/// The number of the family of both.
pub(crate) fn inet() -> u8 {
    u8::try_from(libc::NFPROTO_INET).unwrap_or_default()
}

/// A request: `struct nlmsghdr` and `struct nfgenmsg`, which is family (1), version (1) and resource
/// (2, network order), and attributes.
pub(crate) fn message(
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    body: &[u8],
) -> Vec<u8> {
    let len = u32::try_from(20 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, family, 0]);
    bytes.extend_from_slice(&resource.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A transaction.
pub(crate) struct NftTransaction {
    /// The number of the tables' family.
    family: u8,
    bytes: Vec<u8>,
    /// The operation of each message; its sequence number is its place here.
    attempts: Vec<String>,
    /// Where the last message begins.
    last: usize,
}

impl NftTransaction {
    pub(crate) fn new(family: Family) -> Self {
        Self::of(protocol(family))
    }

    /// One for rules of devices.
    pub(crate) fn of_devices() -> Self {
        Self::of(u8::try_from(libc::NFPROTO_NETDEV).unwrap_or_default())
    }

    /// For tables of both families.
    pub(crate) fn inet() -> Self {
        Self::of(inet())
    }

    fn of(family: u8) -> Self {
        let mut batch = Self {
            family,
            bytes: Vec::new(),
            attempts: Vec::new(),
            last: 0,
        };
        batch.frame(BATCH_BEGIN, 0, 0, NFTABLES, &[]);
        batch.attempts.push("using nf_tables".into());
        batch
    }

    pub(crate) fn push(&mut self, what: String, kind: u16, flags: u16, attributes: &[&[u8]]) {
        self.last = self.bytes.len();
        self.frame(kind, flags, self.family, 0, attributes);
        self.attempts.push(what);
    }

    fn frame(&mut self, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[&[u8]]) {
        let sequence = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX);
        let body = attributes.concat();
        let message = message(kind, flags, sequence, family, resource, &body);
        self.bytes.extend_from_slice(&message);
    }

    /// Sends it and waits for what the kernel says first: an error, or that it has taken the last
    /// message with all before it.
    pub(crate) fn commit(mut self) -> Result<()> {
        // Only the last message asks: an answer to it comes after all errors.
        let flags = u16_at(&self.bytes, self.last + 6).unwrap_or_default() | NLM_F_ACK;
        if let Some(place) = self.bytes.get_mut(self.last + 6..self.last + 8) {
            place.copy_from_slice(&flags.to_ne_bytes());
        }
        let begin = "using nf_tables";
        self.frame(BATCH_END, 0, 0, NFTABLES, &[]);
        let answer = self.exchange();
        let (sequence, outcome) = answer.map_err(|failure| failure.while_trying(begin))?;
        let what = self.attempts.get(sequence).map_or(begin, String::as_str);
        outcome.map_err(|failure| failure.while_trying(what))
    }

    /// The number of the message that was answered first, and the answer.
    fn exchange(&self) -> Result<(usize, Result<(), KernelRefusal>), KernelRefusal> {
        // Its own socket: what the kernel says after the first answer goes with it.
        let socket = open_socket(netlink_sys::protocols::NETLINK_NETFILTER, 0)?;
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        // A transaction is one datagram. As much as sockets have is enough for short ones.
        if self.bytes.len() > 1 << 16 {
            let _ = set_socket_send_buffer_size_force(&socket, self.bytes.len());
        }
        socket.send(&self.bytes, 0)?;
        let mut buffer = Vec::new();
        loop {
            receive(&socket, &mut buffer)?;
            if let Some(answer) = Raw::split(&buffer).find(|raw| raw.kind == NLMSG_ERROR) {
                let sequence = usize::try_from(answer.sequence).unwrap_or(usize::MAX);
                return Ok((sequence, answer.outcome()));
            }
        }
    }
}
