//! What the sockets of an interface answer.

use std::collections::BTreeMap;

use adit_ctl::status;
use adit_ctl::uapi::{Response, UapiError};
use adit_engine::{CommandError, Interface};
use adit_io::Offloads;
use adit_netlink::Netlink;
use adit_netlink::ethtool::tx_udp_segmentation;
use adit_proto::config::{DeviceChange, DeviceStatus};

/// To `get` on the control socket.
pub(super) fn get(interface: &Interface) -> Response {
    let status = interface.get().map(Response::Status);
    status.unwrap_or_else(refused)
}

/// To `set` on the control socket.
pub(super) fn set(interface: &Interface, change: DeviceChange) -> Response {
    let done = interface.set(change).map(|()| Response::Done);
    done.unwrap_or_else(refused)
}

fn refused(error: CommandError) -> Response {
    let errno = error.errno().raw_os_error();
    Response::Refused(UapiError::new(errno, error.to_string()))
}

/// On the status socket. `tun` is what is in force of the TUN's offloads.
pub(super) fn status(interface: &Interface, name: &str, tun: Offloads) -> status::Interface {
    let device = interface.get().unwrap_or_default();
    let report = interface.report();
    let offloads = report.offloads.and(Offloads {
        udp_gso: true,
        udp_gro: true,
        ..tun
    });
    let mut status = status::Interface::new(name, &device, false);
    status.engine = Some(status::Engine {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        aead: report.aead.to_owned(),
        shards: u32::try_from(report.shards).unwrap_or(u32::MAX),
        offloads: offloads
            .iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
        tx_udp_segmentation: egress_segments(&device),
        refused: report.refused.into_iter().map(str::to_owned).collect(),
        drops: named(report.drops),
        ignored: named(report.ignored),
        icmp_errors: named(report.icmp_errors),
        handshakes: named(
            report
                .handshakes
                .counters()
                .map(|(name, count, _)| (name, count)),
        ),
    });
    status
}

fn named(counters: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    let counters = counters.into_iter();
    counters
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// Whether the devices that lead to the peers segment UDP in hardware: false if one of them does
/// not.
fn egress_segments(device: &DeviceStatus) -> Option<bool> {
    let netlink = Netlink::open().ok()?;
    let mut egress: Vec<u32> = (device.peers.iter())
        // A gateway's peers are behind few devices; a handful of them tells.
        .filter_map(|peer| peer.endpoint)
        .take(16)
        .filter_map(|to| netlink.route_get(to.ip(), None, device.fwmark, None).ok())
        .map(|path| path.oif)
        .collect();
    egress.sort_unstable();
    egress.dedup();
    let segments = |oif: &u32| tx_udp_segmentation(&netlink.link_by_index(*oif).ok()?.name);
    egress
        .iter()
        .map(segments)
        .reduce(|all, one| Some(all? && one?))
        .flatten()
}
