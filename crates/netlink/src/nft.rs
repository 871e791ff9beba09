//! Tables of the packet filter as data: the kernel gets them in one transaction, and people the text
//! that `nft -f` takes.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR,
};

use crate::attribute::{Attributes, attribute, nested, string};
use crate::nftables::{
    DEL_TABLE, DROP, EQUAL, META_IIFNAME, NEW_CHAIN, NEW_RULE, NEW_TABLE, NOT_EQUAL,
    NftTransaction, POSTROUTING, REGISTER, compare, describe, expression, interface_name,
    load_header, load_meta, message, number, protocol, verdict,
};
use crate::{Error, Family, HEADER, KernelRefusal, Raw, Result, open_socket, receive};

/// A table, with all that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTable {
    /// Its name. Another family may have a table of the same name.
    pub name: String,
    /// Its chains, one at least.
    pub chains: Vec<NftChain>,
}

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftChain {
    /// Its name.
    pub name: String,
    /// Which packets pass it: none without a hook, since no rule jumps here.
    pub hook: Option<Hook>,
    /// A packet that no rule decides about is accepted.
    pub rules: Vec<NftRule>,
}

/// Where packets pass a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that this host forwards.
    Forward,
    /// The first packet of each connection that leaves, for the translation of addresses.
    SourceNat,
}

/// A rule: what happens to packets that match all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftRule {
    /// Conditions that a packet must meet.
    pub matches: Vec<Match>,
    /// The verdict about it then.
    pub verdict: Verdict,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The packet came by this interface.
    Input(String),
    /// The packet leaves by this interface.
    Output(String),
    /// The packet leaves by another interface.
    OtherOutput(String),
    /// Its source is in this network.
    From(IpAddr, u8),
    /// Its destination is in this network.
    To(IpAddr, u8),
    /// The packet belongs to a connection that was answered, or is an error about one.
    Established,
    /// Another rule has changed its destination.
    Translated,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No further rule of the chain is asked.
    Accept,
    /// The packet goes no further.
    Drop,
    /// The packet leaves with an address of the interface that it leaves by.
    Masquerade,
}

const GET_CHAIN: u16 = NEW_CHAIN + 1;
/// Of `enum nf_inet_hooks`.
pub(crate) const FORWARD: u32 = 2;
/// Of `enum nf_ip_hook_priorities`.
pub(crate) const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;
pub(crate) const ACCEPT: u32 = 1;
const META_OIFNAME: u32 = 7;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
/// `NF_CT_STATE_BIT` of established and related.
const ESTABLISHED: u32 = 2 | 4;
/// `IPS_DST_NAT`
const TRANSLATED: u32 = 1 << 5;
/// Attempts at a dump that changes while it is read.
const DUMP_ATTEMPTS: usize = 10;

/// Sets tables in the place of those of the same names, and deletes others. All of it or, with an
/// error, nothing.
///
/// # Errors
///
/// The kernel's, with the message that it refused: `Unsupported` if it has no nf_tables,
/// `NotFound` if it lacks an expression.
pub fn replace(family: Family, tables: &[NftTable], gone: &[&str]) -> Result<()> {
    let mut batch = NftTransaction::new(family);
    for name in gone {
        empty(&mut batch, family, name);
    }
    for table in tables {
        let described = describe(family, &table.name);
        empty(&mut batch, family, &table.name);
        let name = attribute(1, &string(&table.name));
        batch.push(
            format!("making {described}"),
            NEW_TABLE,
            NLM_F_CREATE,
            &[&name],
        );
        for chain in &table.chains {
            let what = format!("making chain {} of {described}", chain.name);
            let mut attributes = [name.clone(), attribute(3, &string(&chain.name))].concat();
            if let Some(hook) = chain.hook {
                let (kind, number_of_hook, priority) = hook.of_kernel();
                let place = [
                    number(1, number_of_hook),
                    attribute(2, &priority.to_be_bytes()),
                ];
                attributes.extend(nested(4, &place.concat()));
                attributes.extend(attribute(7, &string(kind)));
            }
            batch.push(what, NEW_CHAIN, NLM_F_CREATE, &[&attributes]);
        }
        for chain in &table.chains {
            let of_chain = attribute(2, &string(&chain.name));
            for rule in &chain.rules {
                let what = format!("adding a rule to chain {} of {described}", chain.name);
                let expressions = nested(4, &rule.expressions().concat());
                let attributes: [&[u8]; 3] = [&name, &of_chain, &expressions];
                batch.push(what, NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
            }
        }
    }
    batch.commit()
}

/// Deletes a table, also where there is none.
fn empty(batch: &mut NftTransaction, family: Family, table: &str) {
    let described = describe(family, table);
    let name = attribute(1, &string(table));
    batch.push(
        format!("making {described}"),
        NEW_TABLE,
        NLM_F_CREATE,
        &[&name],
    );
    batch.push(format!("emptying {described}"), DEL_TABLE, 0, &[&name]);
}

/// A chain that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name of its table.
    pub table: String,
    /// Its own name.
    pub name: String,
    /// Whether it drops what is forwarded and what none of its rules accepts.
    pub drops_forwarded: bool,
}

/// All chains of a family; none where the kernel has no nf_tables.
///
/// # Errors
///
/// The kernel's: `PermissionDenied` without CAP_NET_ADMIN.
pub fn chains(family: Family) -> Result<Vec<Listed>> {
    for _ in 0..DUMP_ATTEMPTS {
        match dump_chains(family) {
            Ok(Some(found)) => return Ok(found),
            // It changed meanwhile.
            Ok(None) => {}
            Err(failure) => {
                let error = failure.while_trying("listing the chains of nf_tables");
                return match is_missing(&error) {
                    true => Ok(Vec::new()),
                    false => Err(error),
                };
            }
        }
    }
    let busy = KernelRefusal::from(std::io::Error::from_raw_os_error(libc::EBUSY));
    Err(busy.while_trying("listing the chains of nf_tables"))
}

/// Whether the kernel has no nf_tables: an unknown part of netfilter is an invalid argument.
fn is_missing(error: &Error) -> bool {
    let is_unknown = error.raw_os_error() == Some(libc::EINVAL);
    is_unknown || error.kind() == std::io::ErrorKind::Unsupported
}

fn dump_chains(family: Family) -> Result<Option<Vec<Listed>>, KernelRefusal> {
    let socket = open_socket(netlink_sys::protocols::NETLINK_NETFILTER, 0)?;
    let _ = socket.send(
        &message(GET_CHAIN, NLM_F_DUMP, 1, protocol(family), 0, &[]),
        0,
    )?;
    let (mut buffer, mut found, mut has_changed) = (Vec::new(), Vec::new(), false);
    loop {
        receive(&socket, &mut buffer)?;
        for raw in Raw::split(&buffer) {
            has_changed |= raw.flags & NLM_F_DUMP_INTR != 0;
            match raw.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    return raw.outcome().map(|()| (!has_changed).then_some(found));
                }
                NEW_CHAIN => found.extend(Listed::of(raw.bytes)),
                _ => {}
            }
        }
    }
}

impl Listed {
    fn of(message: &[u8]) -> Option<Self> {
        // Behind `struct nfgenmsg`.
        let attributes = message.get(HEADER + 4..)?;
        let find = |kind| Attributes(attributes).find(kind);
        let text = |kind| {
            let text: &[u8] = find(kind)?;
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let hook = find(4).and_then(|hook| Attributes(hook).find(1));
        let is = |value: Option<&[u8]>, number: u32| value == Some(&number.to_be_bytes()[..]);
        Some(Self {
            table: text(1)?,
            name: text(3)?,
            drops_forwarded: is(hook, FORWARD) && is(find(5), DROP),
        })
    }
}

impl Hook {
    /// Type of the chain, hook, priority.
    fn of_kernel(self) -> (&'static str, u32, i32) {
        match self {
            Self::Forward => ("filter", FORWARD, FILTER),
            Self::SourceNat => ("nat", POSTROUTING, SOURCE_NAT),
        }
    }
}

impl NftRule {
    fn expressions(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = self.matches.iter().flat_map(Match::expressions).collect();
        all.push(match self.verdict {
            Verdict::Accept => verdict(ACCEPT),
            Verdict::Drop => verdict(DROP),
            Verdict::Masquerade => expression("masq", &[]),
        });
        all
    }
}

impl Match {
    fn expressions(&self) -> Vec<Vec<u8>> {
        let device =
            |key, how, name: &str| vec![load_meta(key), compare(how, &interface_name(name))];
        match self {
            Self::Input(name) => device(META_IIFNAME, EQUAL, name),
            Self::Output(name) => device(META_OIFNAME, EQUAL, name),
            Self::OtherOutput(name) => device(META_OIFNAME, NOT_EQUAL, name),
            Self::From(ip, len) => network(*ip, *len, if ip.is_ipv4() { 12 } else { 8 }),
            Self::To(ip, len) => network(*ip, *len, if ip.is_ipv4() { 16 } else { 24 }),
            Self::Established => tracked(CT_STATE, ESTABLISHED),
            Self::Translated => tracked(CT_STATUS, TRANSLATED),
        }
    }
}

/// Whether the address at this offset of the header is in a network.
fn network(ip: IpAddr, prefix_len: u8, offset: u32) -> Vec<Vec<u8>> {
    let address = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let len = u32::try_from(address.len()).unwrap_or_default();
    let mut expressions = vec![load_header(offset, len)];
    let mask: Vec<u8> = (0..address.len())
        .map(|byte| {
            let bits = usize::from(prefix_len).saturating_sub(8 * byte).min(8);
            u8::MAX
                .checked_shl(8 - u32::try_from(bits).unwrap_or(8))
                .unwrap_or(0)
        })
        .collect();
    if mask.last() != Some(&u8::MAX) {
        expressions.push(masked(&mask));
    }
    let first: Vec<u8> = address
        .iter()
        .zip(&mask)
        .map(|(byte, mask)| byte & mask)
        .collect();
    expressions.push(compare(EQUAL, &first));
    expressions
}

/// Whether connection tracking has one of these bits set for the packet.
pub(crate) fn tracked(key: u32, bits: u32) -> Vec<Vec<u8>> {
    vec![
        expression("ct", &[number(1, REGISTER), number(2, key)]),
        masked(&bits.to_ne_bytes()),
        compare(NOT_EQUAL, &[0; 4]),
    ]
}

/// Keeps only these bits of the register.
pub(crate) fn masked(mask: &[u8]) -> Vec<u8> {
    let data = |kind, bytes: &[u8]| nested(kind, &attribute(1, bytes));
    let attributes = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, u32::try_from(mask.len()).unwrap_or_default()),
        data(4, mask),
        data(5, &vec![0; mask.len()]),
    ];
    expression("bitwise", &attributes)
}

/// The word of `nft` for a family.
fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

impl NftTable {
    /// The script with which `nft -f` does what [`replace`] does.
    pub fn script(&self, family: Family) -> String {
        let (ip, name) = (word(family), &self.name);
        let mut out =
            format!("table {ip} {name}\ndelete table {ip} {name}\ntable {ip} {name} {{\n");
        for chain in &self.chains {
            _ = writeln!(out, "  chain {} {{", chain.name);
            match chain.hook {
                Some(Hook::Forward) => out += "    type filter hook forward priority filter\n",
                Some(Hook::SourceNat) => out += "    type nat hook postrouting priority srcnat\n",
                None => {}
            }
            for rule in &chain.rules {
                _ = writeln!(out, "    {rule}");
            }
            out += "  }\n";
        }
        out + "}\n"
    }
}

impl fmt::Display for NftRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.matches {
            write!(f, "{one} ")?;
        }
        f.write_str(match self.verdict {
            Verdict::Accept => "accept",
            Verdict::Drop => "drop",
            Verdict::Masquerade => "masquerade",
        })
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |ip: &IpAddr| word(Family::of(*ip));
        match self {
            Self::Input(name) => write!(f, "iifname \"{name}\""),
            Self::Output(name) => write!(f, "oifname \"{name}\""),
            Self::OtherOutput(name) => write!(f, "oifname != \"{name}\""),
            Self::From(ip, len) => write!(f, "{} saddr {ip}/{len}", of(ip)),
            Self::To(ip, len) => write!(f, "{} daddr {ip}/{len}", of(ip)),
            Self::Established => f.write_str("ct state established,related"),
            Self::Translated => f.write_str("ct status dnat"),
        }
    }
}
