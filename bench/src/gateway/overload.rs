//! What an application receives of more than can be carried: it reads one datagram a call, from a
//! socket with the default buffer.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::interrupt::interrupted;
use adit_testbed::stats::to_f64;

use super::Values;
use super::measures::{MOST, OFFERED, TWICE, TWICE_RATIO};
use super::tunnels::{Tunnels, inner};
use crate::implementation::Entry;
use crate::sandbox::Failure;

/// The longest payload that fits the tunnel.
const PAYLOAD: usize = TUNNEL_MTU - 28;
const PORT: u16 = 5302;
/// How long each rate is offered. The first quarter does not count.
const TIME: Duration = Duration::from_secs(2);

/// One way, or both ways at once: at each rate, and at twice the most that arrived at one of them.
pub(super) fn overload(entry: &Entry, both: bool) -> Result<Values, Failure> {
    let hosts = Tunnels::new(entry, 1)?;
    let mut values = Values::new();
    for (id, rate) in OFFERED {
        values.push((id, delivered(&hosts, rate, both)?));
    }
    let most = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let directions = if both { 2.0 } else { 1.0 };
    // A sender that cannot offer so much offers what it can.
    let twice = delivered(&hosts, Some(2.0 * most / directions), both)?;
    values.push((MOST, most));
    values.push((TWICE, twice));
    values.push((TWICE_RATIO, twice / most));
    Ok(values)
}

/// Gb/s that arrive in applications when so many are offered, in each direction.
fn delivered(hosts: &Tunnels, rate: Option<f64>, both: bool) -> Result<f64, Failure> {
    let directions = [
        (&hosts.left, &hosts.right, 2),
        (&hosts.right, &hosts.left, 1),
    ];
    let directions = &directions[..if both { 2 } else { 1 }];
    let mut receivers = Vec::new();
    for (_, to, end) in directions {
        receivers.push(receiver(to, inner(0, *end))?);
    }
    let mut senders = Vec::new();
    for (from, _, end) in directions {
        let to = SocketAddr::new(inner(0, *end), PORT);
        senders.push(from.thread(move || send(to, rate))?);
    }
    for sender in senders {
        sender.join().map_err(|_| "the sender panicked")??;
    }
    let mut gbps = 0.0;
    for receiver in receivers {
        gbps += receiver.join().map_err(|_| "the receiver panicked")??;
    }
    // Until queues are empty.
    std::thread::sleep(Duration::from_millis(300));
    Ok(gbps)
}

/// An ordinary application. It returns the Gb/s that it read while the load was steady.
fn receiver(at: &Host, address: IpAddr) -> Result<JoinHandle<std::io::Result<f64>>, Failure> {
    let socket = at.run(move || UdpSocket::bind((address, PORT)))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(at.thread(move || {
        let mut buffer = [0; 2048];
        let mut begun: Option<Instant> = None;
        let (mut bytes, waits_until) = (0, Instant::now() + Duration::from_secs(3));
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) => {
                    let since = begun.get_or_insert_with(Instant::now).elapsed();
                    if since >= TIME {
                        break;
                    }
                    if since >= TIME / 4 {
                        bytes += len;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let is_over = begun.is_some_and(|begun| begun.elapsed() >= TIME);
                    let is_silent = begun.is_none() && Instant::now() > waits_until;
                    if is_over || is_silent || interrupted() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(to_f64(bytes) * 8.0 / 1e9 / (TIME * 3 / 4).as_secs_f64())
    })?)
}

/// Sends for [`TIME`], at a rate in Gb/s or as fast as it goes.
fn send(to: SocketAddr, rate: Option<f64>) -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(to)?;
    let payload = [0; PAYLOAD];
    let (begun, mut sent) = (Instant::now(), 0.0);
    while begun.elapsed() < TIME && !interrupted() {
        let due = rate.map_or(f64::INFINITY, |rate| {
            begun.elapsed().as_secs_f64() * rate * 1e9 / 8.0
        });
        if sent >= due {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        // What is refused is lost; the sender is not slowed down by that.
        match socket.send(&payload) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) if e.raw_os_error() == Some(nix::libc::ENOBUFS) => {}
            Err(e) => return Err(e),
        }
        sent += to_f64(PAYLOAD);
    }
    Ok(())
}
