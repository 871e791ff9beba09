//! Addresses of interfaces.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};

use crate::{Family, Netlink, Result};

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The interface.
    pub ifindex: u32,
    /// The address itself.
    pub ip: IpAddr,
    /// Length of the prefix of the network that it makes reachable.
    pub prefix_len: u8,
    /// IPv6: duplicate address detection still runs, or found a duplicate.
    pub tentative: bool,
}

impl Netlink {
    /// All addresses of all interfaces.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        let answers = self.dump(
            "listing addresses",
            Message::GetAddress(AddressMessage::default()),
        )?;
        Ok(answers.iter().filter_map(Address::from_message).collect())
    }

    /// Gives an interface an address. `nodad`: an IPv6 address is usable at once, unchecked for
    /// duplicates.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `AlreadyExists` if the interface has the address.
    pub fn add_address(&self, ifindex: u32, ip: IpAddr, prefix_len: u8, nodad: bool) -> Result<()> {
        let mut message = address(ifindex, ip, prefix_len);
        if nodad && ip.is_ipv6() {
            message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let what = format!("adding address {ip}/{prefix_len}");
        self.change(
            what,
            Message::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Takes an address from an interface.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `AddrNotAvailable` if the interface does not have the
    /// address.
    pub fn delete_address(&self, ifindex: u32, ip: IpAddr, prefix_len: u8) -> Result<()> {
        let what = format!("removing address {ip}/{prefix_len}");
        self.change(
            what,
            Message::DelAddress(address(ifindex, ip, prefix_len)),
            0,
        )
    }
}

fn address(ifindex: u32, ip: IpAddr, prefix_len: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = Family::of(ip).into();
    message.header.prefix_len = prefix_len;
    message.header.index = ifindex;
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message
}

impl Address {
    pub(super) fn from_message(message: &Message) -> Option<Self> {
        let (Message::NewAddress(message) | Message::DelAddress(message)) = message else {
            return None;
        };
        // IPv4 has both, and on a point-to-point interface ADDRESS is that of the other end.
        let local = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(ip) => Some(*ip),
                _ => None,
            });
        let any = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
        let bad = AddressFlags::Tentative | AddressFlags::Dadfailed;
        Some(Self {
            ifindex: message.header.index,
            ip: local.or(any)?,
            prefix_len: message.header.prefix_len,
            tentative: message.attributes.iter().any(|attribute| match attribute {
                AddressAttribute::Flags(flags) => flags.intersects(bad),
                _ => false,
            }),
        })
    }
}
