//! "WireGuard in pfSense 2.5 Performance": UDP by packet size, in one direction and in both, TCP streams,
//! and what two gateways forward, through one tunnel and through four; IPsec beside WireGuard.

use std::time::Duration;

use adit_testbed::framing::{Family, TUNNEL_MTU};
use adit_testbed::stats::to_f64;

use super::emulated::{self, Guest};
use super::results::{Curve, Measure, Published, Results, Subject, Values};
use super::{ReproduceArgs, ending};
use crate::gateway::Tunnels;
use crate::generator::{Flood, Streams};
use crate::goals::Limit;
use crate::implementation::{Entry, Implementation};
use crate::metric::Better;
use crate::pair::{LinkedHosts, Placement};
use crate::sandbox::Failure;
use crate::sites::{Sites, packet};
use crate::{ipsec, tools};

/// Octets of IP packets inside the tunnel. For those longer than its usual MTU, the MTUs of the tunnel
/// and the link follow.
const SIZES: [usize; 10] = [
    64,
    128,
    256,
    512,
    1024,
    1280,
    ipsec::MTU,
    TUNNEL_MTU,
    1518,
    9000,
];
/// Of which this is IP and UDP.
const HEADERS: usize = 28;
/// The largest packet of the source.
const LARGEST: usize = 1518;
/// More than a rate in Mb/s, or it is as good as the same; and the same for sizes.
const TENTH: f64 = 1.1;
/// TCP streams at once.
const STREAMS: [u32; 4] = [1, 2, 4, 8];
/// Tunnels that share them.
const TUNNELS: [u8; 2] = [1, 4];
const WARM_UP: Duration = Duration::from_millis(500);
/// Seconds that building the hosts takes, and forwarding through one tunnel and through four.
const REST: u64 = 44;
/// In which directions packets go: the beginning of an id, and of a title.
const WAYS: [(&str, &str); 2] = [("udp", "UDP"), ("udp-both", "UDP both ways")];

const SHARED: &str = "UDP in both directions, counted at the exit, in both; there TRex and two routers, here the lab's generator and both gateways on the cores of one machine";
const THEORY: &str =
    "of 1 GbE there; here of what the same links forward without a tunnel, in both less framing";
const ESP: &str = "the kernel's ESP and packets of 1518 octets there; here strongSwan's ESP in userspace, which takes 1400";
#[rustfmt::skip]
const PUBLISHED: [Published; 8] = [
    Published::gbps("XG-1541, one tunnel, kernel", 1.542, "forwarded-1", "kernel", SHARED),
    Published::gbps("XG-1541, one tunnel, wireguard-go", 1.37, "forwarded-1", "wireguard-go", SHARED),
    Published::gbps("XG-1541, four tunnels, wireguard-go", 2.7, "forwarded-4", "wireguard-go", SHARED),
    Published::gbps("XG-1541, four tunnels, kernel", 6.51, "forwarded-4", "kernel", SHARED),
    Published { unit: "%", ..Published::gbps("SG-5100, one tunnel, kernel, of theory", 99.89, "forwarded-1.percent", "kernel", THEORY) },
    Published { unit: "%", ..Published::gbps("SG-5100, one tunnel, wireguard-go, of theory", 36.15, "forwarded-1.percent", "wireguard-go", THEORY) },
    Published::gbps("IPsec, AES-GCM-128, largest packets", 1.7236, "udp-1400.gbps", "ipsec", ESP),
    Published { unit: "octets", ..Published::gbps("IPsec, knee", 1024.0, "udp.knee", "ipsec", ESP) },
];

/// Measures everything that is there.
pub(super) fn measure(args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
    results.published = PUBLISHED.to_vec();
    let congestion = args.congestion(results);
    results.measures = measures(&congestion);
    let entries = find(args, results);
    let guest = find_guest(args, results);
    if entries.iter().any(|of| of.who == Implementation::Ipsec) {
        results.leave_out(
            "ipsec over 1400 octets",
            "charon reads no more of a packet from its TUN",
        );
    }
    // Half of the time: there are many.
    let time = Duration::from_secs(args.seconds.into()) / 2;
    let floods = u32::try_from(SIZES.len() * WAYS.len())?;
    let streams = u32::try_from(STREAMS.len() * TUNNELS.len() * congestion.len())?;
    let each = (time + Duration::from_millis(300)) * floods
        + (time + WARM_UP) * streams
        + Duration::from_secs(REST);
    results.measure_rounds(each, |name, values| {
        if let Some(guest) = guest.as_ref().filter(|_| name == emulated::NAME) {
            return guest.measure(args.seconds, &congestion, values);
        }
        let entry = entries.iter().find(|entry| entry.who.name() == name);
        let entry = entry.ok_or("it is not there")?;
        // A size that does not pass ends the sizes, but not the rest.
        let sizes = sweep(entry, time, values);
        let streams = streams_in_tunnels(entry, time, &congestion, values);
        sizes.and(streams).and(forwarded(entry, values))
    })?;
    add_percent(&entries, results);
    judge(results);
    Ok(())
}

/// What is measured here, and not in the guest.
fn here() -> impl Iterator<Item = Implementation> {
    use Implementation::{Adit, Direct, Ipsec, Kernel};
    let first = [Direct, Kernel, Ipsec].into_iter();
    first.chain(Implementation::PEERS).chain([Adit])
}

/// The names of all that its tables may have.
pub(super) fn subjects() -> Vec<&'static str> {
    here()
        .map(Implementation::name)
        .chain([emulated::NAME])
        .collect()
}

fn find(args: &ReproduceArgs, results: &mut Results) -> Vec<Entry> {
    let mut entries = Vec::new();
    for who in here() {
        if let Some(entry) = args.find(who, results) {
            results.subjects.push(Subject {
                name: who.name().to_owned(),
                what: entry.version.clone(),
            });
            entries.push(entry);
        }
    }
    entries
}

/// The kernel's ESP and WireGuard, which few kernels have where the lab runs.
fn find_guest(args: &ReproduceArgs, results: &mut Results) -> Option<Guest> {
    if !args.wants(emulated::NAME) {
        return None;
    }
    match emulated::find() {
        Ok(guest) => {
            results.subjects.push(Subject {
                name: emulated::NAME.to_owned(),
                what: format!("Linux {} in QEMU, without hardware help", guest.release),
            });
            Some(guest)
        }
        Err(why) => {
            results.leave_out(emulated::NAME, &why.to_string());
            None
        }
    }
}

fn measures(congestion: &[String]) -> Vec<Measure> {
    use Better::{Higher, Lower};
    let mut all = Vec::new();
    let mut add = |id: String, title: String, unit, better, places, curve| {
        all.push(Measure {
            id,
            title,
            unit,
            better,
            places,
            curve,
            distribution: None,
        });
    };
    for (way, what) in WAYS {
        for size in SIZES {
            let (id, title) = (
                format!("{way}-{size}"),
                format!("{what} in IP packets of {size} octets"),
            );
            let curve = |unit| {
                Some(Curve {
                    title: format!("{what} by size of the IP packet, {unit}"),
                    axis: "octets",
                    at: to_f64(size),
                })
            };
            let [packets, rate, share] = ["packets", "IP", "percent of theory"].map(curve);
            let [gbps, percent] = ["gbps", "percent"].map(|of| format!("{id}.{of}"));
            let [ip, theory] = ["IP", "percent of theory"].map(|of| format!("{title}, {of}"));
            add(id, title, "kpps", Higher, 0, packets);
            add(gbps, ip, "Gb/s", Higher, 2, rate);
            add(percent, theory, "%", Higher, 0, share);
        }
        let title = format!("{what}: from this size on larger packets bring no more Gb/s");
        add(format!("{way}.knee"), title, "octets", Lower, 0, None);
    }
    for tunnels in TUNNELS {
        for (control, streams) in congestion.iter().flat_map(|of| STREAMS.map(|n| (of, n))) {
            let title = format!("TCP, tunnels: {tunnels}, streams: {streams}, {control}");
            let id = stream_id(tunnels, streams, control);
            add(id, title, "Gb/s", Higher, 2, None);
        }
    }
    for tunnels in TUNNELS {
        let title = format!("UDP forwarded both ways, tunnels: {tunnels}");
        let id = format!("forwarded-{tunnels}");
        let (percent, theory) = (
            format!("{id}.percent"),
            format!("{title}, percent of theory"),
        );
        add(id, title, "Gb/s", Higher, 2, None);
        add(percent, theory, "%", Higher, 0, None);
    }
    for control in congestion {
        for (name, what) in emulated::LOADS {
            let title = format!("TCP in an emulated guest, {control}: {what}");
            add(emulated::id(name, control), title, "Mb/s", Higher, 1, None);
        }
        let title =
            format!("TCP in an emulated guest, {control}: the kernel's ESP over its WireGuard");
        let id = emulated::id(emulated::RATIO, control);
        add(id, title, "×", Higher, 2, None);
    }
    all
}

/// The MTU of a tunnel that takes packets of this size.
fn mtu(size: usize) -> usize {
    size.max(TUNNEL_MTU)
}

/// Floods of each size, first in one direction, then in both.
fn sweep(entry: &Entry, time: Duration, values: &mut Values) -> Result<(), Failure> {
    let sizes: Vec<usize> = SIZES
        .into_iter()
        .filter(|&size| size <= entry.who.longest())
        .collect();
    let mut rates = WAYS.map(|_| Vec::new());
    for sizes in sizes.chunk_by(|one, next| mtu(*one) == mtu(*next)) {
        let mtu = mtu(sizes[0]);
        let mut pair = LinkedHosts::with_mtu(entry, Placement::Free, Family::V4, "cubic", mtu)?;
        for &size in sizes {
            let flood = Flood {
                len: size - HEADERS,
                trains: false,
                time,
            };
            for (both, (way, _)) in WAYS.into_iter().enumerate() {
                let rate = if both == 1 {
                    flood.both_ways(&pair)
                } else {
                    flood.run(&pair).and_then(datagrams)
                };
                pair.check()?;
                let rate = rate.map_err(|why| format!("{way}-{size}: {why}"))?;
                let gbps = rate * to_f64(size) * 8.0 / 1e9;
                values.push((format!("{way}-{size}"), rate / 1e3));
                values.push((format!("{way}-{size}.gbps"), gbps));
                rates[both].push((size, gbps));
            }
        }
    }
    for ((way, _), rates) in WAYS.into_iter().zip(rates) {
        let knee = knee(&rates).map(|size| (format!("{way}.knee"), to_f64(size)));
        values.extend(knee);
    }
    Ok(())
}

fn datagrams(flow: tools::Flow) -> Result<f64, Failure> {
    let rate = flow.datagrams_per_second();
    rate.ok_or_else(|| "no datagrams were counted".into())
}

/// The smallest size from which on no larger one, up to the source's largest, brings a tenth more. There
/// is none if the rate grows up to the largest: sizes that are almost as large do not count.
fn knee(rates: &[(usize, f64)]) -> Option<usize> {
    let rates: Vec<(usize, f64)> = rates
        .iter()
        .copied()
        .filter(|(size, _)| *size <= LARGEST)
        .collect();
    let largest = to_f64(rates.last()?.0);
    rates.iter().enumerate().find_map(|(at, &(size, rate))| {
        let flat = rates[at..]
            .iter()
            .all(|(_, larger)| *larger <= rate * TENTH);
        (flat && to_f64(size) * TENTH < largest).then_some(size)
    })
}

fn stream_id(tunnels: u8, streams: u32, congestion: &str) -> String {
    format!("tcp-{tunnels}-{streams}{}", ending(congestion))
}

/// TCP streams that share one tunnel, and four.
fn streams_in_tunnels(
    entry: &Entry,
    time: Duration,
    congestion: &[String],
    values: &mut Values,
) -> Result<(), Failure> {
    for tunnels in TUNNELS {
        let hosts = Tunnels::new(entry, tunnels)?;
        for control in congestion {
            hosts.choose_congestion(control)?;
            for count in STREAMS {
                let streams = Streams {
                    count,
                    time,
                    warm_up: WARM_UP,
                    ..Streams::default()
                };
                let id = stream_id(tunnels, count, control);
                let gbps = hosts.streams(streams);
                let gbps = gbps.map_err(|why| format!("{id}: {why}"))?;
                values.push((id, gbps));
            }
        }
    }
    Ok(())
}

/// UDP in both directions between sites behind two gateways.
fn forwarded(entry: &Entry, values: &mut Values) -> Result<(), Failure> {
    for tunnels in TUNNELS {
        let most = Sites::new(entry, tunnels)?.most()?;
        values.push((format!("forwarded-{tunnels}"), most.gbps()));
    }
    Ok(())
}

/// What each reached of what its framing leaves of the same links without a tunnel.
fn add_percent(entries: &[Entry], results: &mut Results) {
    let who = |name: &str| {
        let entry = entries.iter().find(|entry| entry.who.name() == name);
        entry.map_or(Implementation::Direct, |entry| entry.who)
    };
    let direct = Implementation::Direct.name();
    for size in SIZES {
        for (way, _) in WAYS {
            results.add_percent(&format!("{way}-{size}"), direct, |name| {
                who(name).share_of_direct(size, mtu(size))
            });
        }
    }
    for tunnels in TUNNELS {
        results.add_percent(&format!("forwarded-{tunnels}"), direct, |name| {
            let who = who(name);
            who.share_of_direct(packet(who), TUNNEL_MTU)
        });
    }
}

/// At each size up to the source's largest Adit is ahead of the best other.
fn judge(results: &mut Results) {
    let mut others = vec![Implementation::Kernel.name(), Implementation::Ipsec.name()];
    others.extend(Implementation::PEERS.map(Implementation::name));
    for size in SIZES.into_iter().filter(|&size| size <= LARGEST) {
        for (way, _) in WAYS {
            let id = format!("{way}-{size}");
            if let Some(best) = results.best(&id, &others) {
                results.judge(&id, "adit", best, Limit::AtLeast(1.0));
            }
        }
    }
    for theirs in [Implementation::WireguardGo, Implementation::Tailscale] {
        results.judge("forwarded-4", "adit", theirs.name(), Limit::AtLeast(2.5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_larger_packets_stop_to_bring_more() {
        let rates = [
            (64, 1.0),
            (512, 8.0),
            (1024, 9.6),
            (1280, 10.0),
            (1518, 10.5),
        ];
        assert_eq!(knee(&rates), Some(1024));
        // Packets longer than the source's do not count.
        let longer = [&rates[..], &[(9000, 60.0)]].concat();
        assert_eq!(knee(&longer), Some(1024));
        // A dip is no knee.
        assert_eq!(knee(&[(64, 5.0), (512, 4.0), (1518, 20.0)]), None);
        assert_eq!(knee(&[]), None);
    }

    #[test]
    fn a_rate_that_grows_with_the_packets_has_no_knee() {
        let rates = SIZES.map(|size| (size, to_f64(size)));
        assert_eq!(knee(&rates), None);
    }

    #[test]
    fn every_value_and_published_figure_has_its_measure() {
        let congestion = ["cubic", "bbr"].map(str::to_owned);
        let ids: Vec<String> = measures(&congestion).into_iter().map(|of| of.id).collect();
        for of in PUBLISHED {
            assert!(ids.iter().any(|id| id == of.measure), "{}", of.measure);
        }
        let mut unique = ids.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), ids.len());
    }

    #[test]
    fn sizes_up_to_the_usual_mtu_share_hosts() {
        let mtus: Vec<usize> = SIZES
            .chunk_by(|one, next| mtu(*one) == mtu(*next))
            .map(|sizes| mtu(sizes[0]))
            .collect();
        assert_eq!(mtus, [TUNNEL_MTU, 1518, 9000]);
    }
}
