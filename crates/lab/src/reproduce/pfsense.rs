//! "WireGuard in pfSense 2.5 Performance": UDP by packet size, and what two gateways forward through one
//! tunnel and through four.

use std::time::Duration;

use adit_testbed::framing::{Family, TUNNEL_MTU};
use adit_testbed::stats::to_f64;

use super::ReproduceArgs;
use super::results::{Curve, Measure, Published, Results, Subject, Values};
use crate::gateway;
use crate::generator::Flood;
use crate::goals::Limit;
use crate::implementation::{Entry, Implementation};
use crate::metric::Better;
use crate::pair::{LinkedHosts, Placement};
use crate::sandbox::Failure;
use crate::sites::Sites;

/// Octets of IP packets inside the tunnel, up to its MTU.
const SIZES: [usize; 8] = [64, 128, 256, 512, 768, 1024, 1280, TUNNEL_MTU];
/// Of which this is IP and UDP.
const HEADERS: usize = 28;
/// Seconds that building the hosts takes, with TCP in one tunnel and in four, and forwarding by both.
const TUNNELS: u64 = 44;

const SHARED: &str = "UDP in both directions, counted at the exit, in both; there TRex and two routers, here the lab's generator and both gateways on the cores of one machine";
const PUBLISHED: [Published; 4] = [
    Published::gbps(
        "XG-1541, one tunnel, kernel",
        1.542,
        "forwarded-1",
        "kernel",
        SHARED,
    ),
    Published::gbps(
        "XG-1541, one tunnel, wireguard-go",
        1.37,
        "forwarded-1",
        "wireguard-go",
        SHARED,
    ),
    Published::gbps(
        "XG-1541, four tunnels, wireguard-go",
        2.7,
        "forwarded-4",
        "wireguard-go",
        SHARED,
    ),
    Published::gbps(
        "XG-1541, four tunnels, kernel",
        6.51,
        "forwarded-4",
        "kernel",
        SHARED,
    ),
];

/// Measures everything that is there.
pub(super) fn measure(args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
    results.published = PUBLISHED.to_vec();
    results.measures = measures();
    results.leave_out("IPsec", "this lab does not drive strongSwan yet");
    let entries = find(args, results);
    let udp = Duration::from_secs(args.seconds.into());
    let each = (udp + Duration::from_millis(300)) * u32::try_from(SIZES.len())?
        + Duration::from_secs(TUNNELS);
    results.measure_rounds(each, |name, values| {
        let entry = entries.iter().find(|entry| entry.who.name() == name);
        let entry = entry.ok_or("it is not there")?;
        sweep(entry, udp, values)?;
        four_tunnels(entry, values)?;
        forwarded(entry, values)
    })?;
    for size in SIZES {
        for theirs in Implementation::PEERS {
            let id = format!("udp-{size}");
            results.judge(&id, "adit", theirs.name(), Limit::AtLeast(1.0));
        }
    }
    for theirs in [Implementation::WireguardGo, Implementation::Tailscale] {
        results.judge("forwarded-4", "adit", theirs.name(), Limit::AtLeast(2.5));
    }
    Ok(())
}

fn find(args: &ReproduceArgs, results: &mut Results) -> Vec<Entry> {
    use Implementation::{Adit, Direct, Kernel};
    let all = [Direct, Kernel].into_iter().chain(Implementation::PEERS);
    let mut entries = Vec::new();
    for who in all.chain([Adit]) {
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

fn measures() -> Vec<Measure> {
    let mut all = Vec::new();
    let mut add = |id: String, title: String, unit, places, curve| {
        all.push(Measure {
            id,
            title,
            unit,
            better: Better::Higher,
            places,
            curve,
        });
    };
    for size in SIZES {
        let title = format!("UDP in IP packets of {size} octets");
        let curve = |unit| {
            Some(Curve {
                title: format!("UDP by size of the IP packet, {unit}"),
                axis: "octets",
                at: to_f64(size),
            })
        };
        let (id, packets) = (format!("udp-{size}"), curve("packets"));
        add(id.clone(), title.clone(), "kpps", 0, packets);
        add(
            format!("{id}.gbps"),
            format!("{title}, IP"),
            "Gb/s",
            2,
            curve("IP"),
        );
    }
    for (id, title) in [
        ("one-tunnel", "TCP in one tunnel"),
        ("four-tunnels", "TCP in four tunnels"),
        ("forwarded-1", "UDP forwarded both ways, one tunnel"),
        ("forwarded-4", "UDP forwarded both ways, four tunnels"),
    ] {
        add(id.to_owned(), title.to_owned(), "Gb/s", 2, None);
    }
    all
}

/// A flood of each size.
fn sweep(entry: &Entry, time: Duration, values: &mut Values) -> Result<(), Failure> {
    let mut pair = LinkedHosts::new(entry, Placement::Free, Family::V4, "cubic")?;
    for size in SIZES {
        let flood = Flood {
            len: size - HEADERS,
            trains: false,
            time,
        };
        let done = flood.run(&pair);
        pair.check()?;
        let flow = done?;
        let (_, received) = flow.datagrams.ok_or("no datagrams were counted")?;
        let rate = received / flow.seconds;
        values.push((format!("udp-{size}"), rate / 1e3));
        values.push((format!("udp-{size}.gbps"), rate * to_f64(size) * 8.0 / 1e9));
    }
    Ok(())
}

/// TCP through one tunnel and through four at once, where there are tunnels.
fn four_tunnels(entry: &Entry, values: &mut Values) -> Result<(), Failure> {
    if entry.binary.is_none() {
        return Ok(());
    }
    let [one, four] = gateway::one_and_four_tunnels(entry)?;
    values.push(("one-tunnel".to_owned(), one));
    values.push(("four-tunnels".to_owned(), four));
    Ok(())
}

/// UDP in both directions between sites behind two gateways.
fn forwarded(entry: &Entry, values: &mut Values) -> Result<(), Failure> {
    for tunnels in [1, 4] {
        let most = Sites::new(entry, tunnels)?.most()?;
        values.push((format!("forwarded-{tunnels}"), most.gbps()));
    }
    Ok(())
}
