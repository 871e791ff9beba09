//! Routes, and route look-ups.

use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use crate::{Family, Netlink, Result};

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The network it leads to. A default route leads to 0.0.0.0/0 or ::/0.
    pub destination: (IpAddr, u8),
    /// The interface it goes out of.
    pub oif: Option<u32>,
    /// The router it goes through.
    pub gateway: Option<IpAddr>,
    /// The table it is in: 254 is the main one, 255 the local one.
    pub table: u32,
    /// Its metric (priority); the kernel's default if `None`.
    pub metric: Option<u32>,
    /// The source address that it suggests.
    pub prefsrc: Option<IpAddr>,
    /// The MTU that it states.
    pub mtu: Option<u32>,
    /// A route to hosts, not one that rejects, or is local to this host, or for broadcasts. One
    /// that is added and is none is `unreachable`: look-ups end there.
    pub unicast: bool,
}

impl Route {
    /// The main table.
    pub const MAIN: u32 = 254;

    /// Who added a route that is added here: routing daemons export routes by this number. It is in no list of such
    /// numbers (rtnetlink.h, iproute2's rt_protos, FRR). Who lists or deletes routes takes those of all.
    pub const PROTOCOL: u8 = 87;

    /// A route to a network through an interface, in the main table.
    pub fn through(oif: u32, destination: IpAddr, prefix_len: u8) -> Self {
        Self {
            destination: (destination, prefix_len),
            oif: Some(oif),
            gateway: None,
            table: Self::MAIN,
            metric: None,
            prefsrc: None,
            mtu: None,
            unicast: true,
        }
    }
}

/// The result of a route look-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteLookup {
    /// The interface that packets leave by.
    pub oif: u32,
    /// The source address that is chosen.
    pub src: Option<IpAddr>,
    /// The router, unless the destination is reached directly.
    pub gateway: Option<IpAddr>,
    /// The MTU, where the route or path MTU discovery knows one; otherwise it is the interface's.
    pub mtu: Option<u32>,
    /// For how long the kernel believes that MTU, if an ICMP message taught it.
    pub learned: Option<Duration>,
    /// The destination is this host itself.
    pub local: bool,
}

impl Netlink {
    /// All routes of a family, in all tables.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn routes(&self, family: Family) -> Result<Vec<Route>> {
        self.routes_of(family.into())
    }

    pub(super) fn routes_of(&self, family: AddressFamily) -> Result<Vec<Route>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let answers = self.dump("listing routes", Message::GetRoute(message))?;
        // A kernel without the family lists the routes of all others.
        let of_family = answers.iter().filter(|answer| match answer {
            Message::NewRoute(route) => route.header.address_family == family,
            _ => false,
        });
        Ok(of_family.filter_map(Route::from_message).collect())
    }

    /// Adds a route; an error of kind `AlreadyExists` if there is one to the same network with the
    /// same metric.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `AlreadyExists` if there is such a route.
    pub fn add_route(&self, route: &Route) -> Result<()> {
        let what = format!("adding {}", route.describe());
        self.change(
            what,
            Message::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds a route or changes the one to the same network with the same metric.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn replace_route(&self, route: &Route) -> Result<()> {
        let what = format!("replacing {}", route.describe());
        self.change(
            what,
            Message::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Deletes a route; an error of kind `NotFound` if there is none like it.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `NotFound` if there is no such route.
    pub fn delete_route(&self, route: &Route) -> Result<()> {
        let what = format!("deleting {}", route.describe());
        let mut message = route.message();
        // Of any origin and scope.
        message.header.protocol = RouteProtocol::Unspec;
        message.header.scope = RouteScope::NoWhere;
        self.change(what, Message::DelRoute(message), 0)
    }

    /// The way a packet to `to` would take: from `src` if given, with firewall mark `mark`, out of
    /// `oif` if given.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request, as when there is no route.
    pub fn route_get(
        &self,
        to: IpAddr,
        src: Option<IpAddr>,
        mark: u32,
        oif: Option<u32>,
    ) -> Result<RouteLookup> {
        let family = Family::of(to);
        let mut message = RouteMessage::default();
        message.header.address_family = family.into();
        message.header.destination_prefix_length = family.bits();
        message
            .attributes
            .push(RouteAttribute::Destination(to.into()));
        if let Some(src) = src {
            message.header.source_prefix_length = family.bits();
            message.attributes.push(RouteAttribute::Source(src.into()));
        }
        if mark != 0 {
            message.attributes.push(RouteAttribute::Mark(mark));
        }
        message.attributes.extend(oif.map(RouteAttribute::Oif));
        let what = format!("looking for a route to {to}");
        let answers = self.get(&what, Message::GetRoute(message))?;
        let route = answers.iter().find_map(|answer| match answer {
            Message::NewRoute(route) => Some(route),
            _ => None,
        });
        let Some(route) = route else {
            let error = std::io::Error::from_raw_os_error(libc::ENETUNREACH);
            return Err(crate::KernelRefusal::from(error).while_trying(what));
        };
        let found = Route::parse(route);
        Ok(RouteLookup {
            oif: found.oif.unwrap_or(0),
            src: found.prefsrc.or(src),
            gateway: found.gateway,
            mtu: found.mtu,
            learned: found.mtu.and_then(|_| learned(route)),
            local: route.header.kind == RouteType::Local,
        })
    }
}

impl Route {
    fn describe(&self) -> String {
        let (ip, prefix_len) = self.destination;
        let mut text = format!("route {ip}/{prefix_len}");
        if let Some(gateway) = self.gateway {
            text += &format!(" via {gateway}");
        }
        if self.table != Self::MAIN {
            text += &format!(" in table {}", self.table);
        }
        text
    }

    fn message(&self) -> RouteMessage {
        let (ip, prefix_len) = self.destination;
        let mut message = RouteMessage::default();
        message.header.address_family = Family::of(ip).into();
        message.header.destination_prefix_length = prefix_len;
        // The attribute says it; the header's byte cannot hold most tables.
        message.header.table = u8::try_from(self.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        message.header.protocol = RouteProtocol::from(Self::PROTOCOL);
        message.header.kind = match self.unicast {
            true => RouteType::Unicast,
            false => RouteType::Unreachable,
        };
        message.header.scope = if self.unicast && self.gateway.is_none() && ip.is_ipv4() {
            RouteScope::Link
        } else {
            RouteScope::Universe
        };
        let attributes = [
            (prefix_len > 0).then(|| RouteAttribute::Destination(ip.into())),
            Some(RouteAttribute::Table(self.table)),
            self.oif.map(RouteAttribute::Oif),
            self.gateway.map(|ip| RouteAttribute::Gateway(ip.into())),
            self.metric.map(RouteAttribute::Priority),
            self.prefsrc.map(|ip| RouteAttribute::PrefSource(ip.into())),
            self.mtu
                .map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])),
        ];
        message.attributes.extend(attributes.into_iter().flatten());
        message
    }

    pub(super) fn from_message(message: &Message) -> Option<Self> {
        let Message::NewRoute(message) = message else {
            return None;
        };
        // Not an entry of the routing cache (IPv6: redirects and path MTUs).
        let cloned = netlink_packet_route::route::RouteFlags::Cloned;
        (!message.header.flags.contains(cloned)).then(|| Self::parse(message))
    }

    fn parse(message: &RouteMessage) -> Self {
        let header = &message.header;
        let unspecified = match header.address_family {
            AddressFamily::Inet6 => IpAddr::from([0; 16]),
            _ => IpAddr::from([0; 4]),
        };
        let mut route = Self {
            destination: (unspecified, header.destination_prefix_length),
            oif: None,
            gateway: None,
            table: header.table.into(),
            metric: None,
            prefsrc: None,
            mtu: None,
            unicast: header.kind == RouteType::Unicast,
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(ip) => {
                    route.destination.0 = address(ip).unwrap_or(unspecified);
                }
                RouteAttribute::Oif(index) => route.oif = Some(*index),
                RouteAttribute::Gateway(ip) => route.gateway = address(ip),
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                RouteAttribute::PrefSource(ip) => route.prefsrc = address(ip),
                RouteAttribute::Metrics(metrics) => {
                    route.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        route
    }
}

/// How much longer an entry lasts that the kernel made by itself. IPv6 marks those, and gives routes
/// of router advertisements a time, too; IPv4 marks all answers, and only such an entry has a time.
fn learned(route: &RouteMessage) -> Option<Duration> {
    let cloned = netlink_packet_route::route::RouteFlags::Cloned;
    let expires = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::CacheInfo(info) => Some(info.expires),
            _ => None,
        })?;
    // In hundredths of a second (USER_HZ).
    let left = Duration::from_millis(u64::from(expires) * 10);
    (expires > 0 && route.header.flags.contains(cloned)).then_some(left)
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
