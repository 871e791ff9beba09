//! Many peers that are all active at once.

use std::time::Duration;

use super::Values;
use super::clients::{self, Clients, Pace};
use super::load::{Direction, Load};
use super::many::{self, Many, section};
use super::measures::{
    ACTIVE_LOADS, ACTIVE_MEMORY, FROM_TCP, FROM_TCP_CPU, HANDSHAKES, TO_TCP, TO_TCP_CPU,
};
use super::tcp::Tcp;
use crate::hosts::Keys;
use crate::implementation::Entry;
use crate::measure::wait;
use crate::sandbox::Failure;

/// How long the configuration, and then the handshakes, may take.
const LIMIT: Duration = Duration::from_secs(60);
/// After its port is there, a gateway may need so long until its peers may shake hands.
const SETTLE: Duration = Duration::from_secs(1);
/// Handshakes under way at a time: no implementation is under load with so few.
const AT_A_TIME: usize = 64;

/// All peers get a session, then UDP goes in both directions, one at a time, and TCP of some.
pub(super) fn active(entry: &Entry, peers: u32, congestion: &str) -> Result<Values, Failure> {
    let mut hosts = Many::new(entry)?;
    let keys = Keys::several(peers)?;
    let mut config = hosts.head();
    for (peer, keys) in (0..).zip(&keys) {
        let inner = many::inner(peer).to_string();
        section(
            &mut config,
            &keys.public,
            &inner,
            Some(many::endpoint(peer)),
        );
    }
    hosts.setconf(config, LIMIT)?;
    hosts.bring_up()?;
    hosts.wait_for_port()?;
    wait(SETTLE)?;

    let clients = Clients::new(&keys, hosts.keys.public)?;
    let sockets = clients::sockets(&hosts.players)?;
    let handshakes = clients.connect(&sockets, Pace::AtATime(AT_A_TIME), LIMIT);
    hosts.check()?;
    let connected = handshakes.connected.len();
    if connected < keys.len() {
        let seconds = LIMIT.as_secs();
        return Err(
            format!("only {connected} of {peers} peers had a session after {seconds} s").into(),
        );
    }
    let mut values = Values::new();
    // Of a few the time is that of threads that wake up.
    if peers >= 100 {
        values.push((HANDSHAKES, handshakes.rate(keys.len(), LIMIT)));
    }
    let load = Load::new(&hosts, sockets, handshakes.connected)?;
    let mut any = false;
    for (to_peers, len, rate, cpu) in ACTIVE_LOADS {
        let direction = if to_peers {
            Direction::ToPeers
        } else {
            Direction::FromPeers
        };
        let done = load.run(&hosts, direction, len);
        // That the daemon has ended tells more than that nothing arrived.
        hosts.check()?;
        let delivered = done?;
        values.push((rate, delivered.rate / 1e3));
        values.extend(delivered.cpu.map(|time| (cpu, time)));
        any |= delivered.cpu.is_some();
    }
    // A flood that leaves nothing of one load is a result.
    if !any {
        return Err("no packet arrived, either way".into());
    }
    let tcp = Tcp::new(&hosts, load.peers, load.players, congestion)?;
    for (direction, rate, cpu) in [
        (Direction::FromPeers, FROM_TCP, FROM_TCP_CPU),
        (Direction::ToPeers, TO_TCP, TO_TCP_CPU),
    ] {
        let done = tcp.run(&hosts, direction);
        hosts.check()?;
        // Connections that do not even come about carried nothing.
        let (gbps, time) = done.unwrap_or_else(|why| {
            eprint!("(no TCP: {why}) ");
            (0.0, 0.0)
        });
        values.push((rate, gbps));
        values.extend((gbps > 0.0).then_some((cpu, time)));
    }
    tcp.stop()?;
    let memory = adit_testbed::proc::memory(hosts.pid())?;
    values.push((ACTIVE_MEMORY, memory.peak));
    Ok(values)
}
