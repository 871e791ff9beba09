//! Two gateways with one address, whose parts are killed and parted at random, while clients ping.
//!
//! `ADIT_CHAOS_SECONDS=600 ADIT_CHAOS_SEED=3` goes on for ten minutes, in another order.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::chaos::{Random, duration};
use crate::failover::{Failover, GATEWAY, INSIDE, start_bird, start_tunnel};
use crate::harness::*;
use crate::quick::only_adit;
use crate::routers::start_keepalived;

/// How long, after what is set up.
const SECONDS: u64 = 20;
/// All clients have an answer again within this time, and three times as long on a machine that has other work.
const BACK: Duration = seconds(5);
/// How long a client waits for an answer before it begins a handshake, if its gateway does not call it
/// (docs/failover.md).
const WAITS: Duration = seconds(15);

/// `adit call` leaves out peers whose handshake with the gateway is younger (docs/failover.md).
const YOUNG: u64 = 5;

/// Kills all processes of this name in the container. Nobody waits for them there.
fn kill(host: &Container, name: &str) {
    let alive = format!("pgrep -r R,S,D -x {name}");
    host.sh(&format!(
        "for p in $({alive}); do kill -9 $p || true; done; while {alive} > /dev/null; do sleep 0.02; done"
    ));
}

/// Does one thing to a gateway, and undoes it. Says what it was, and whether clients may have to wait.
fn strike(net: &Failover, random: &mut Random) -> (&'static str, bool) {
    let number = random.below(2);
    let gateway = &net.gateways[number as usize];
    let port = format!("port{}", number + 1);
    let switch = &net.switch;
    let kind = random.below(7);
    let time = random.below(if kind < 4 { 1500 } else { 4000 });
    let pause = || std::thread::sleep(Duration::from_millis(time.into()));
    // A gateway that loses the address while it still calls may call last.
    let is_short = time < 1000;
    match kind {
        0 | 1 => {
            kill(gateway, "adit");
            pause();
            start_tunnel(gateway);
            ("kill a tunnel", false)
        }
        2 => {
            kill(gateway, "keepalived");
            pause();
            start_keepalived(gateway);
            ("kill keepalived", is_short)
        }
        3 => {
            kill(gateway, "bird");
            pause();
            start_bird(gateway);
            ("kill BIRD", false)
        }
        4 => {
            switch.sh(&format!("ip link set {port} down"));
            pause();
            switch.sh(&format!("ip link set {port} up"));
            ("a link without carrier", is_short)
        }
        5 => {
            switch.sh(&format!("bridge link set dev {port} state 0"));
            pause();
            switch.sh(&format!("bridge link set dev {port} state 3"));
            ("a link that carries nothing", is_short)
        }
        _ => {
            net.parts_gateways(true);
            pause();
            net.parts_gateways(false);
            ("split brain", is_short)
        }
    }
}

/// (sender, receiver index and counter) of each data message.
fn sealed(capture: &Capture) -> Vec<(std::net::IpAddr, [u8; 12])> {
    let messages = capture.datagrams().into_iter();
    let of_data = messages.filter_map(|datagram| {
        let header = datagram.payload.get(..16)?;
        let named = header[4..].try_into().expect("twelve bytes");
        (header[..4] == [4, 0, 0, 0]).then_some((datagram.source, named))
    });
    of_data.collect()
}

#[test]
fn gateways_are_whole_after_whatever_befell_either() {
    if !only_adit() {
        return;
    }
    let mut random = Random::of_seed(7);
    let mut net = Failover::new();
    // As they were sent: a gateway without the address forwards what still comes to it.
    let capture = Capture::start(&net.switch, "br0", "udp port 51820 and ip[8] = 64");
    for (_, client) in &net.clients {
        for to in [GATEWAY, INSIDE] {
            client.host.sh(&format!(
                "ping -n -q -i 0.05 {to} > /dev/null 2>&1 < /dev/null & echo $! >> /run/pings"
            ));
        }
    }
    let (time, start) = (duration(SECONDS), Instant::now());
    let mut all: BTreeMap<&str, Vec<[Duration; 2]>> = BTreeMap::new();
    let mut removed: Option<u64> = None;
    while start.elapsed() < time || removed.is_none() {
        net.tells_where_peers_are();
        // Sometimes there is no rest, or the next one comes before the list: then clients are not called.
        let (rests, two) = (random.below(3) > 0, random.below(5) == 0);
        if rests {
            wait_for("handshakes are older", seconds(30), || !has_young(&net));
        }
        let mut waits = two || has_young(&net);
        let mut what = "two blows";
        for _ in 0..=u8::from(two) {
            let begun = Instant::now();
            let (blow, may_wait) = strike(&net, &mut random);
            waits |= may_wait;
            let note = if waits {
                " (clients may have to wait)"
            } else {
                ""
            };
            println!("{:>6} ms  {blow}{note}", begun.elapsed().as_millis());
            if !two {
                what = blow;
            }
        }
        let promised = if waits { BACK + WAITS } else { BACK };
        let took = net.is_whole(promised * 3);
        println!("{:>6} ms  until all is well", took[1].as_millis());
        all.entry(what).or_default().push(took);
        if removed.is_none() && start.elapsed() > time / 2 {
            net.removes_the_stranger();
            removed = Some(came(&net));
            println!("           the stranger is removed");
        }
    }
    for (what, times) in &all {
        let of = |which: usize| {
            let mut times: Vec<Duration> = times.iter().map(|it| it[which]).collect();
            times.sort_unstable();
            let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
            format!("{middle:.1?}, at most {most:.1?}")
        };
        let (gateway, inside) = (of(0), of(1));
        println!(
            "{what}: {} times, answers after {gateway}, from behind after {inside}",
            times.len()
        );
    }
    for (_, client) in &net.clients {
        client.host.sh("kill $(cat /run/pings)");
    }

    // Who was removed has not come again, and is no peer of either.
    let (keys, stranger) = net.stranger();
    assert_eq!(Some(came(&net)), removed);
    ping_fails(&stranger.host, GATEWAY);
    for gateway in &net.gateways {
        assert!(!gateway.sh("wg show wg0 peers").contains(&keys.public));
    }
    // Invariant 1, of both gateways and the clients. That packets are accounted for is seen when the containers end.
    let sealed = sealed(&capture);
    let unique: HashSet<_> = sealed.iter().collect();
    assert!(sealed.len() > 200, "{} were captured", sealed.len());
    assert_eq!(unique.len(), sealed.len(), "a counter was used twice");
    println!("{} data messages, no counter twice", sealed.len());
}

fn has_young(net: &Failover) -> bool {
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("a clock");
    let is_young = |at: &u64| at + YOUNG >= now.as_secs();
    let mut gateways = net.gateways.iter();
    gateways.any(|gateway| Failover::handshakes(gateway).iter().any(is_young))
}

/// The latest handshake of the stranger, as it has it.
fn came(net: &Failover) -> u64 {
    crate::gateways::latest_handshake(&net.stranger().1.host)
}
