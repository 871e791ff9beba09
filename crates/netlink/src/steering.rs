//! Rules with which a gateway forwards what another gateway has the session of, in one table of nf_tables.
//!
//! ```text
//! chain in0:     type filter hook ingress device "eth0" priority filter
//!                ip daddr 192.0.2.1 udp dport 51820 jump to-ip
//! chain to-ip:   @th,64,8 >= 3 @th,64,8 <= 4 @th,120,5 1 accept
//!                @th,64,8 >= 3 @th,64,8 <= 4 @th,120,5 2 fwd ip to 10.0.0.2 device "eth0"
//!                @th,64,8 2 @th,152,5 2 fwd ip to 10.0.0.2 device "eth0"
//! ```
//!
//! The rules are where a device gives its packets to the kernel: before routing and connection tracking, which
//! so know nothing of what is forwarded. `fwd` takes one off the hop limit, and forwards nothing at its end.

use std::io::ErrorKind;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use crate::attribute::{attribute, nested, string};
use crate::nft::masked;
use crate::nftables::{
    DEL_TABLE, EQUAL, META_L4PROTO, NEW_CHAIN, NEW_RULE, NEW_TABLE, NftTransaction, REGISTER,
    compare, expression, load_header, load_meta, load_payload, number, protocol, verdict,
};
use crate::{Family, Result};

/// The rules of a gateway that is one of several with the same key and address.
#[derive(Clone, Copy, Debug)]
pub struct Steering<'a> {
    /// The table that holds them, and nothing else.
    pub table: &'a str,
    /// Devices that datagrams come in by.
    pub devices: &'a [String],
    /// Addresses that the gateways share.
    pub addresses: &'a [IpAddr],
    /// The port of the tunnel.
    pub port: u16,
    /// The number of this gateway.
    pub own: u8,
    /// The other gateways, each once for each family.
    pub others: &'a [SteeringTarget],
}

/// Another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringTarget {
    /// Its number: the five upper bits of the last byte of the receiver indices that it makes.
    pub id: u8,
    /// Its neighbour address, for datagrams of this family.
    pub address: IpAddr,
    /// Index of the device that it is reached by.
    pub device: u32,
}

const ACCEPT: u32 = 1;
/// `NFT_JUMP`
const JUMP: i32 = -3;
/// Of `enum nf_dev_hooks`.
const INGRESS: u32 = 0;
const FILTER: i32 = 0;
const META_PROTOCOL: u32 = 1;
const LESS_OR_EQUAL: u32 = 3;
const GREATER_OR_EQUAL: u32 = 5;
const TRANSPORT_HEADER: u32 = 2;
const SECOND_REGISTER: u32 = 2;

/// Behind the UDP header: the type of a message, and the last byte of the receiver index, in a response and in
/// cookie replies and data (whitepaper 5.4).
const KIND: u32 = 8;
const RECEIVER_OF_RESPONSE: u32 = 8 + 8 + 3;
const RECEIVER: u32 = 8 + 4 + 3;
const RESPONSE: u8 = 2;
const COOKIE_REPLY: u8 = 3;
const DATA: u8 = 4;
/// The bits of that byte that name the gateway.
const OF_GATEWAY: u8 = 0xf8;
const SHIFT: u8 = 3;

impl Steering<'_> {
    /// Sets the rules, in the place of what the table held. All of them or, with an error, none.
    ///
    /// # Errors
    ///
    /// The kernel's, with the message that it refused: `Unsupported` if it has no nf_tables, `NotFound` if it
    /// lacks an expression or a device.
    pub fn set(&self) -> Result<()> {
        let mut batch = NftTransaction::of_devices();
        let table = describe(self.table);
        let name = attribute(1, &string(self.table));
        batch.push(format!("making {table}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        batch.push(format!("emptying {table}"), DEL_TABLE, 0, &[&name]);
        batch.push(format!("making {table}"), NEW_TABLE, NLM_F_CREATE, &[&name]);
        for family in Family::BOTH {
            let chain = target(family);
            let attributes: [&[u8]; 2] = [&name, &attribute(3, &string(chain))];
            let what = format!("making chain {chain} of {table}");
            batch.push(what, NEW_CHAIN, NLM_F_CREATE, &attributes);
            for rule in self.rules(family) {
                add(&mut batch, &table, (&name, chain), &rule);
            }
        }
        for (device, number_of_chain) in self.devices.iter().zip(0..) {
            let chain = format!("in{number_of_chain}");
            let hook = [
                number(1, INGRESS),
                attribute(2, &FILTER.to_be_bytes()),
                attribute(3, &string(device)),
            ];
            let attributes: [&[u8]; 4] = [
                &name,
                &attribute(3, &string(&chain)),
                &nested(4, &hook.concat()),
                &attribute(7, &string("filter")),
            ];
            let what = format!("making chain {chain} of {table} for {device}");
            batch.push(what, NEW_CHAIN, NLM_F_CREATE, &attributes);
            for address in self.addresses {
                let rule = to_tunnel(*address, self.port);
                add(&mut batch, &table, (&name, &chain), &rule);
            }
        }
        batch.commit()
    }

    /// Deletes a table with all that it holds; whether there was one.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn remove(table: &str) -> Result<bool> {
        let mut batch = NftTransaction::of_devices();
        let what = format!("deleting {}", describe(table));
        batch.push(what, DEL_TABLE, 0, &[&attribute(1, &string(table))]);
        match batch.commit() {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                // Where there is no nf_tables there is no table.
                ErrorKind::NotFound | ErrorKind::Unsupported => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// What happens to datagrams for the tunnel: most are this gateway's own.
    fn rules(&self, family: Family) -> Vec<Vec<Vec<u8>>> {
        let mut others = self.others.iter();
        let others: Vec<_> = (others.by_ref())
            .filter(|other| Family::of(other.address) == family)
            .collect();
        if others.is_empty() {
            return Vec::new();
        }
        let mut own = of_gateway((COOKIE_REPLY, DATA), RECEIVER, self.own);
        own.push(verdict(ACCEPT));
        let mut rules = vec![own];
        for other in others {
            for (kinds, at) in [
                ((COOKIE_REPLY, DATA), RECEIVER),
                ((RESPONSE, RESPONSE), RECEIVER_OF_RESPONSE),
            ] {
                let mut rule = of_gateway(kinds, at, other.id);
                rule.extend(forward(other));
                rules.push(rule);
            }
        }
        rules
    }
}

fn describe(table: &str) -> String {
    format!("nf_tables' table netdev {table}")
}

/// The chain for datagrams of a family.
fn target(family: Family) -> &'static str {
    match family {
        Family::V4 => "to-ip",
        Family::V6 => "to-ip6",
    }
}

fn add(batch: &mut NftTransaction, table: &str, (name, chain): (&[u8], &str), rule: &[Vec<u8>]) {
    let attributes: [&[u8]; 3] = [
        name,
        &attribute(2, &string(chain)),
        &nested(4, &rule.concat()),
    ];
    let what = format!("adding a rule to chain {chain} of {table}");
    batch.push(what, NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
}

/// `ip daddr ADDRESS udp dport PORT jump to-ip`
fn to_tunnel(address: IpAddr, port: u16) -> Vec<Vec<u8>> {
    let (kind, offset, bytes): (u16, u32, Vec<u8>) = match address {
        IpAddr::V4(ip) => (0x0800, 16, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x86dd, 24, ip.octets().to_vec()),
    };
    let udp = u8::try_from(libc::IPPROTO_UDP).unwrap_or_default();
    let len = u32::try_from(bytes.len()).unwrap_or_default();
    let chain = target(Family::of(address));
    let jump = [
        attribute(1, &JUMP.to_be_bytes()),
        attribute(2, &string(chain)),
    ];
    let jump = nested(2, &nested(2, &jump.concat()));
    vec![
        load_meta(META_PROTOCOL),
        compare(EQUAL, &kind.to_be_bytes()),
        load_header(offset, len),
        compare(EQUAL, &bytes),
        load_meta(META_L4PROTO),
        compare(EQUAL, &[udp]),
        load_payload(TRANSPORT_HEADER, 2, 2),
        compare(EQUAL, &port.to_be_bytes()),
        expression("immediate", &[number(1, 0), jump]),
    ]
}

/// `@th,64,8 >= FIRST @th,64,8 <= LAST @th,AT,5 ID`
fn of_gateway((first, last): (u8, u8), at: u32, id: u8) -> Vec<Vec<u8>> {
    let mut rule = vec![load_payload(TRANSPORT_HEADER, KIND, 1)];
    match first == last {
        true => rule.push(compare(EQUAL, &[first])),
        false => {
            rule.push(compare(GREATER_OR_EQUAL, &[first]));
            rule.push(compare(LESS_OR_EQUAL, &[last]));
        }
    }
    rule.push(load_payload(TRANSPORT_HEADER, at, 1));
    rule.push(masked(&[OF_GATEWAY]));
    rule.push(compare(EQUAL, &[id << SHIFT]));
    rule
}

/// `fwd ip to ADDRESS device DEVICE`
fn forward(to: &SteeringTarget) -> Vec<Vec<u8>> {
    let address = match to.address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let load = |register, bytes: &[u8]| {
        let value = nested(2, &attribute(1, bytes));
        expression("immediate", &[number(1, register), value])
    };
    let family = u32::from(protocol(Family::of(to.address)));
    vec![
        load(REGISTER, &to.device.to_ne_bytes()),
        load(SECOND_REGISTER, &address),
        expression(
            "fwd",
            &[
                number(1, REGISTER),
                number(2, SECOND_REGISTER),
                number(3, family),
            ],
        ),
    ]
}
