//! Interfaces.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};

use crate::netns::Netns;
use crate::{Netlink, Result, netns_fd};

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Up, and with a carrier (IFF_RUNNING).
    pub running: bool,
    /// The VRF, bridge or bond that it belongs to; 0 if none.
    pub controller: u32,
    /// Is a loopback interface.
    pub loopback: bool,
    /// `veth`, `tun`, `wireguard`, …; hardware has none.
    pub kind: Option<String>,
    /// Packets that its queue holds.
    pub txqueuelen: u32,
    /// Longest GSO packet that the kernel makes for it; 0 if the kernel does not say.
    pub gso_max_size: u32,
    /// Packets so far that were to leave through it and did not: for a TUN, those that found it
    /// full.
    pub tx_dropped: u64,
}

/// Changes for [`Netlink::set_link`]; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkChange<'a> {
    /// A new name. The interface must be down before Linux 6.2.
    pub name: Option<&'a str>,
    /// Up or down.
    pub up: Option<bool>,
    /// The MTU.
    pub mtu: Option<u32>,
    /// Packets that its queue holds.
    pub txqueuelen: Option<u32>,
    /// Longest GSO packet that the kernel makes for it, of either family.
    pub gso_max_size: Option<u32>,
    /// Without an IPv6 link-local address that the kernel gives it.
    pub no_link_local: bool,
    /// Its Ethernet address.
    pub address: Option<[u8; 6]>,
    /// Without ARP and neighbour discovery.
    pub no_arp: bool,
    /// The namespace to move it to.
    pub netns: Option<&'a Netns>,
}

impl Netlink {
    /// All interfaces.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn links(&self) -> Result<Vec<Link>> {
        let answers = self.dump(
            "listing interfaces",
            Message::GetLink(LinkMessage::default()),
        )?;
        Ok(answers.iter().filter_map(Link::from_message).collect())
    }

    /// The interface called `name`; an error of kind `NotFound` if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `NotFound` if there is no such interface.
    pub fn link(&self, name: &str) -> Result<Link> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(&format!("looking for interface {name}"), message)
    }

    /// The interface with this index; an error of kind `NotFound` if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `NotFound` if there is no such interface.
    pub fn link_by_index(&self, index: u32) -> Result<Link> {
        self.one_link(&format!("looking for interface {index}"), about(index))
    }

    fn one_link(&self, what: &str, message: LinkMessage) -> Result<Link> {
        let answers = self.get(what, Message::GetLink(message))?;
        let link = answers.iter().find_map(Link::from_message);
        link.ok_or_else(|| {
            crate::KernelRefusal::from(std::io::Error::from_raw_os_error(libc::ENODEV))
                .while_trying(what)
        })
    }

    /// Makes two joined interfaces: `name` here, and `peer`, in `netns` if given.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `AlreadyExists` if a name is taken.
    pub fn add_veth(&self, name: &str, peer: &str, netns: Option<&Netns>) -> Result<()> {
        let mut other = LinkMessage::default();
        other
            .attributes
            .push(LinkAttribute::IfName(peer.to_owned()));
        if let Some(netns) = netns {
            other
                .attributes
                .push(LinkAttribute::NetNsFd(netns_fd(netns)));
        }
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
            ]),
        ];
        let what = format!("making veth interfaces {name} and {peer}");
        self.change(what, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes an interface.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn delete_link(&self, index: u32) -> Result<()> {
        self.change("deleting the interface", Message::DelLink(about(index)), 0)
    }

    /// Changes an interface. The kernel may have made some of the changes when it refuses others.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn set_link(&self, index: u32, change: &LinkChange<'_>) -> Result<()> {
        let mut message = about(index);
        if let Some(up) = change.up {
            message.header.change_mask = LinkFlags::Up;
            message.header.flags = if up {
                LinkFlags::Up
            } else {
                LinkFlags::empty()
            };
        }
        if change.no_arp {
            message.header.change_mask |= LinkFlags::Noarp;
            message.header.flags |= LinkFlags::Noarp;
        }
        let attributes = [
            change
                .address
                .map(|address| LinkAttribute::Address(address.to_vec())),
            change
                .name
                .map(|name| LinkAttribute::IfName(name.to_owned())),
            change.mtu.map(LinkAttribute::Mtu),
            change.txqueuelen.map(LinkAttribute::TxQueueLen),
            change
                .netns
                .map(|netns| LinkAttribute::NetNsFd(netns_fd(netns))),
        ];
        message.attributes.extend(attributes.into_iter().flatten());
        if let Some(size) = change.gso_max_size {
            // Sets that of IPv4 too, up to the 64 KiB at which the two part (Linux 6.3).
            message.attributes.push(LinkAttribute::GsoMaxSize(size));
        }
        if change.no_link_local {
            let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
            let families = vec![AfSpecUnspec::Inet6(vec![mode])];
            message
                .attributes
                .push(LinkAttribute::AfSpecUnspec(families));
        }
        let what = format!("setting {}", change.describe());
        self.change(what, Message::SetLink(message), 0)
    }
}

impl LinkChange<'_> {
    fn describe(&self) -> String {
        let parts = [
            self.name.map(|name| format!("name {name}")),
            self.up
                .map(|up| String::from(if up { "up" } else { "down" })),
            self.mtu.map(|mtu| format!("MTU {mtu}")),
            self.txqueuelen.map(|len| format!("txqueuelen {len}")),
            self.gso_max_size.map(|size| format!("gso_max_size {size}")),
            self.address.map(|_| String::from("its address")),
            self.no_arp.then(|| String::from("no ARP")),
            self.no_link_local
                .then(|| String::from("no link-local address")),
            self.netns.map(|_| String::from("network namespace")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn about(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

impl Link {
    pub(super) fn from_message(message: &Message) -> Option<Self> {
        let (Message::NewLink(message) | Message::DelLink(message)) = message else {
            return None;
        };
        let header = &message.header;
        let mut link = Self {
            index: header.index,
            up: header.flags.contains(LinkFlags::Up),
            running: header.flags.contains(LinkFlags::Running),
            loopback: header.link_layer_type == LinkLayerType::Loopback,
            ..Self::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Controller(index) => link.controller = *index,
                LinkAttribute::TxQueueLen(len) => link.txqueuelen = *len,
                LinkAttribute::GsoMaxSize(size) => link.gso_max_size = *size,
                LinkAttribute::Stats64(stats) => link.tx_dropped = stats.tx_dropped,
                LinkAttribute::LinkInfo(infos) => {
                    link.kind = infos.iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Some(link)
    }
}
