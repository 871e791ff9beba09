//! A gateway with half a million peers, most of them silent.
//!
//! Stages of one round: a stream and pings to an established peer → `wg setconf` with all peers
//! meanwhile → what they need of memory, and how long `wg show dump` takes → the gateway is started
//! again, and many of the peers shake hands within five seconds, beside the pings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use adit_proto::config::PublicKey;
use adit_testbed::process::Process;
use adit_testbed::stats::to_f64;
use adit_testbed::{Host, proc};

use super::Values;
use super::beside::{Pings, Stream};
use super::clients::{self, Clients, Pace};
use super::many::{self, INTERFACE, Many, PORT, section};
use super::measures::{
    DUMP, LOAD, LOAD_GAP, LOAD_SHARE, REKEY_CPU_RATE, REKEY_GAP, REKEY_RATE, REKEYED, SILENT,
    SILENT_MEMORY, STATE_IPS,
};
use crate::daemon;
use crate::hosts::{Keys, host, link, random};
use crate::implementation::{Entry, Implementation};
use crate::measure::wait;
use crate::sandbox::Failure;

/// How long `wg setconf` and `wg show` may take, each.
const LIMIT: Duration = Duration::from_secs(120);
/// Peers that shake hands after a restart: as many as the lab can play.
const REKEYING: u32 = 20_000;
/// They notice one after the other within this time: 4,000 a second, the rate that is the goal.
const NOTICE: Duration = Duration::from_secs(5);
/// How long their handshakes may take.
const REKEY: Duration = Duration::from_secs(60);
/// wireguard-go has room for 65,536 peers, and some take more than a millisecond to load each.
const OTHERS: u32 = 20_000;
/// Allowed IPs of each silent peer.
const ALLOWED_IPS: u32 = 3;

const LINK: &str = "ve3";
/// The established peer.
pub(crate) const FAST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// How many peers an implementation is given.
fn size(who: Implementation, asked: u32) -> u32 {
    match who {
        Implementation::Adit => asked,
        _ => asked.min(OTHERS),
    }
}

/// A peer with an interface of its own, which the stream and the pings go to.
pub(crate) struct Established {
    // Stopped before its host goes.
    _daemon: Process,
    pub(crate) host: Host,
    pub(crate) section: String,
}

impl Established {
    pub(crate) fn new(entry: &Entry, hosts: &Many) -> Result<Self, Failure> {
        let host = host()?;
        link([&hosts.gateway, &host], LINK, [10, 80, 0])?;
        let daemon = daemon::start(&host, entry, INTERFACE)?;
        let keys = Keys::new()?;
        let gateway = hosts.keys.public;
        let peer =
            format!("{PORT} peer {gateway} endpoint 10.80.0.1:{PORT} allowed-ips 10.77.0.1/32");
        daemon::configure(&host, &keys, INTERFACE, &peer, FAST)?;
        let mut part = String::new();
        let endpoint = SocketAddr::new(Ipv4Addr::new(10, 80, 0, 2).into(), PORT);
        section(&mut part, &keys.public, &FAST.to_string(), Some(endpoint));
        Ok(Self {
            _daemon: daemon,
            host,
            section: part,
        })
    }
}

/// All sections: the established peer's, then those of peers with these keys, then silent ones.
pub(crate) fn config(
    hosts: &Many,
    established: &Established,
    keys: &[Keys],
    peers: u32,
) -> Result<String, Failure> {
    let mut config = hosts.head() + &established.section;
    for peer in 0..peers {
        let (public, endpoint) = match keys.get(peer as usize) {
            Some(keys) => (keys.public, Some(many::endpoint(peer))),
            None => {
                let mut key = PublicKey([0; 32]);
                random(&mut key.0)?;
                (key, None)
            }
        };
        let first = u32::from(Ipv4Addr::new(100, 0, 0, 0)) + 2 * peer;
        let [first, second] = [first, first + 1].map(Ipv4Addr::from_bits);
        let inner = many::inner(peer);
        let ips = format!("{inner}, {first}, {second}");
        section(&mut config, &public, &ips, endpoint);
    }
    Ok(config)
}

/// One round.
pub(super) fn state(entry: &Entry, asked: u32) -> Result<Values, Failure> {
    let peers = size(entry.who, asked);
    let mut hosts = Many::new(entry)?;
    let established = Established::new(entry, &hosts)?;
    hosts.setconf(hosts.head() + &established.section, LIMIT)?;
    hosts.bring_up()?;
    daemon::wait_for(&hosts.gateway, FAST)?;
    let keys = Keys::several(peers.min(REKEYING))?;
    let config = config(&hosts, &established, &keys, peers)?;

    let pings = Pings::start(&hosts.gateway, &established.host, FAST)?;
    let mut values = vec![
        (SILENT, f64::from(peers)),
        (STATE_IPS, f64::from(ALLOWED_IPS * peers)),
    ];
    values.extend(load(&mut hosts, &established, &pings, &config, peers)?);
    values.extend(dump(&mut hosts, peers)?);
    values.extend(rekey(entry, &mut hosts, &pings, config, &keys)?);
    Ok(values)
}

/// All peers are loaded beside a stream and pings.
fn load(
    hosts: &mut Many,
    established: &Established,
    pings: &Pings,
    config: &str,
    peers: u32,
) -> Result<Values, Failure> {
    let stream = Stream::start(&hosts.gateway, &established.host, FAST)?;
    wait(Duration::from_millis(500))?;
    let mark = stream.mark();
    wait(Duration::from_secs(2))?;
    let alone = stream.gbps(mark);
    let before = proc::memory(hosts.pid())?.now;
    let (begun, mark) = (Instant::now(), stream.mark());
    let loaded = hosts.setconf(config.to_owned(), LIMIT);
    let (took, beside) = (begun.elapsed(), stream.gbps(mark));
    hosts.check()?;
    loaded.map_err(|why| format!("{peers} peers cannot be loaded: {why}"))?;
    // What was still to be done when the command ended disturbs no less.
    wait(Duration::from_millis(500))?;
    let gap = pings.longest_gap(begun);
    drop(stream);
    wait(Duration::from_millis(500))?;
    let memory = proc::memory(hosts.pid())?.now - before;
    Ok(vec![
        (LOAD, took.as_secs_f64()),
        (LOAD_SHARE, beside / alone),
        (LOAD_GAP, gap),
        (SILENT_MEMORY, memory * 1024.0 / f64::from(peers)),
    ])
}

/// The status of all.
fn dump(hosts: &mut Many, peers: u32) -> Result<Values, Failure> {
    let script = format!("wg show {INTERFACE} dump | wc -l");
    let begun = Instant::now();
    let lines = hosts.gateway.output("sh", &["-c", &script], LIMIT);
    let took = begun.elapsed().as_secs_f64();
    hosts.check()?;
    let lines = lines?;
    // The interface itself, and the established peer.
    if lines.trim() != (peers + 2).to_string() {
        return Err(format!("`wg show dump` has {} lines", lines.trim()).into());
    }
    Ok(vec![(DUMP, took)])
}

/// The gateway has been restarted, and many of its peers find out.
fn rekey(
    entry: &Entry,
    hosts: &mut Many,
    pings: &Pings,
    config: String,
    keys: &[Keys],
) -> Result<Values, Failure> {
    let clients = Clients::new(keys, hosts.keys.public)?;
    let sockets = clients::sockets(&hosts.players)?;
    hosts.start(entry)?;
    hosts.setconf(config, LIMIT)?;
    hosts.bring_up()?;
    hosts.wait_for_port()?;
    daemon::wait_for(&hosts.gateway, FAST)?;
    // The established peer is one again, and answers.
    let settled = Instant::now();
    wait(Duration::from_secs(1))?;
    if pings.longest_gap(settled) > 900.0 {
        return Err("the established peer does not answer after the restart".into());
    }
    let (begun, before) = (Instant::now(), proc::cpu_time(hosts.pid())?);
    let handshakes = clients.connect(&sockets, Pace::Within(NOTICE), REKEY);
    let spent = proc::cpu_time(hosts.pid())?.saturating_sub(before);
    let gap = pings.longest_gap(begun);
    hosts.check()?;
    let connected = to_f64(handshakes.connected.len());
    Ok(vec![
        (REKEYED, connected),
        (REKEY_RATE, handshakes.rate(keys.len(), REKEY)),
        (REKEY_CPU_RATE, connected / spent.as_secs_f64()),
        (REKEY_GAP, gap),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_implementations_get_as_many_peers_as_they_hold() {
        assert_eq!(size(Implementation::Adit, 500_000), 500_000);
        assert_eq!(size(Implementation::WireguardGo, 500_000), 20_000);
        assert_eq!(size(Implementation::WireguardGo, 1000), 1000);
    }
}
