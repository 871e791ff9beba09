//! "WireGuard in pfSense 2.5 Performance": UDP by packet size, and four tunnels between two hosts.

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

/// Octets of IP packets inside the tunnel, up to its MTU.
const SIZES: [usize; 8] = [64, 128, 256, 512, 768, 1024, 1280, TUNNEL_MTU];
/// Of which this is IP and UDP.
const HEADERS: usize = 28;
/// Seconds that building the hosts and a case of the four tunnels take.
const FOUR_TUNNELS: u64 = 14;

const ONE_WAY: &str = "UDP in both directions from TRex, counted at the exit, on routers' CPUs there; here one way, from the lab's generator";
const TCP: &str = "UDP in both directions there; here one TCP stream in each tunnel";
const PUBLISHED: [Published; 4] = [
    Published::gbps(
        "XG-1541, one tunnel, kernel",
        1.542,
        "udp-1420.gbps",
        "kernel",
        ONE_WAY,
    ),
    Published::gbps(
        "XG-1541, one tunnel, wireguard-go",
        1.37,
        "udp-1420.gbps",
        "wireguard-go",
        ONE_WAY,
    ),
    Published::gbps(
        "XG-1541, four tunnels, wireguard-go",
        2.7,
        "four-tunnels",
        "wireguard-go",
        TCP,
    ),
    Published::gbps(
        "XG-1541, four tunnels, kernel",
        6.51,
        "four-tunnels",
        "kernel",
        TCP,
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
        + Duration::from_secs(FOUR_TUNNELS);
    results.measure_rounds(each, |name, values| {
        let entry = entries.iter().find(|entry| entry.who.name() == name);
        let entry = entry.ok_or("it is not there")?;
        sweep(entry, udp, values)?;
        four_tunnels(entry, values)
    })?;
    for size in SIZES {
        for theirs in Implementation::PEERS {
            let id = format!("udp-{size}");
            results.judge(&id, "adit", theirs.name(), Limit::AtLeast(1.0));
        }
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
