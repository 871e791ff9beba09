//! What the sockets of an interface answer.

use std::collections::BTreeMap;

use adit_ctl::status::{self, Interface};
use adit_ctl::uapi::{Request, Response, UapiError};
use adit_engine::{Engine, Errno, SetError};
use adit_io::Offloads;
use adit_io::ethtool::tx_udp_segmentation;
use adit_io::netlink::Netlink;
use adit_proto::HandshakeStats;
use adit_proto::config::DeviceStatus;
use rustix::io::Errno as Number;

/// On the control socket.
pub(super) fn request(engine: &Engine, request: Request) -> Response {
    match request {
        Request::Get => engine.get().map(Response::Status),
        Request::Set(change) => engine.set(change).map(|()| Response::Done),
    }
    .unwrap_or_else(|error| Response::Refused(uapi_error(error)))
}

fn uapi_error(error: SetError) -> UapiError {
    let number = match error.errno {
        Errno::Invalid => Number::INVAL,
        Errno::AddressInUse => Number::ADDRINUSE,
        Errno::Denied => Number::ACCESS,
        Errno::Io => Number::IO,
    };
    UapiError::new(number.raw_os_error(), error.message)
}

/// On the status socket. `tun` is what is in force of the TUN's offloads.
pub(super) fn status(engine: &Engine, name: &str, tun: Offloads) -> Interface {
    let device = engine.get().unwrap_or_default();
    let report = engine.report();
    let offloads = report.offloads.and(Offloads {
        udp_gso: true,
        udp_gro: true,
        ..tun
    });
    let mut interface = Interface::new(name, &device, false);
    interface.engine = Some(status::Engine {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        aead: report.aead.to_owned(),
        shards: u32::try_from(report.shards).unwrap_or(u32::MAX),
        offloads: offloads
            .iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
        tx_udp_segmentation: egress_segments(&device),
        drops: report
            .drops
            .into_iter()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
        handshakes: handshakes(&report.handshakes),
    });
    interface
}

/// Whether the devices that lead to the peers segment UDP in hardware: false if one of them does not.
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

fn handshakes(stats: &HandshakeStats) -> BTreeMap<String, u64> {
    let named = [
        ("initiations_sent", stats.initiations_sent),
        ("initiations_received", stats.initiations_received),
        ("initiations_accepted", stats.initiations_accepted),
        ("responses_sent", stats.responses_sent),
        ("responses_received", stats.responses_received),
        ("responses_accepted", stats.responses_accepted),
        ("confirmed", stats.confirmed),
        ("cookies_sent", stats.cookies_sent),
        ("cookies_received", stats.cookies_received),
        ("cookies_accepted", stats.cookies_accepted),
        ("given_up", stats.given_up),
        ("invalid", stats.invalid),
        ("bad_mac1", stats.bad_mac1),
        ("rate_limited", stats.rate_limited),
        ("unknown_peer", stats.unknown_peer),
        ("replayed_timestamp", stats.replayed_timestamp),
        ("flooded", stats.flooded),
        ("not_authentic", stats.not_authentic),
        ("unexpected", stats.unexpected),
    ];
    named
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}
