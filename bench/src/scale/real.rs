//! The engine over real devices, in this process: what its stages cost with the kernel's.
//!
//! ```text
//!   streams → left 10.79.0.1: TUN → engine → UDP ─ veth ─ UDP → engine → TUN: right 10.79.0.2
//! ```
//!
//! The TUN devices have clocks; the sockets have none. What lies between the calls of the TUN is the
//! work, known from the engine in memory, and the calls of the socket: the rest.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Engine, Interface, LinuxPlatform, Settings, Watches};
use adit_io::Offloads;
use adit_io::tun::Tun;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, Secret};
use adit_testbed::{Host, link};

use super::stages::{Clock, Clocked, StageCosts};
use crate::daemon;
use crate::generator::Streams;
use crate::hosts;
use crate::measure::wait;
use crate::sandbox::Failure;

const LINK: &str = "ve2";
const TUN: &str = "wg0";
const PORT: u16 = 51_820;
const FLOWS: u32 = 8;
const WARM_UP: Duration = Duration::from_millis(400);
const TIME: Duration = Duration::from_millis(1500);

fn outer(end: u8) -> IpAddr {
    Ipv4Addr::new(10, 76, 2, end).into()
}

fn inner(end: u8) -> IpAddr {
    Ipv4Addr::new(10, 79, 0, end).into()
}

fn secret(end: u8) -> Secret {
    Secret::new(&[100 + end; 32])
}

/// One end: 1 for the left one, 2 for the right one.
struct End {
    // First: it uses the host's devices.
    _interface: Interface,
    clock: Arc<Clock>,
    host: Host,
}

impl End {
    fn new(host: Host, own: u8) -> Result<Self, Failure> {
        host.bring_up("lo", &[], None)?;
        host.bring_up(LINK, &[(outer(own), 24)], None)?;
        let clock = Arc::<Clock>::default();
        let of_tun = Arc::clone(&clock);
        // Threads and sockets are where the thread that makes them is.
        let interface = host.run(move || -> Result<Interface, Failure> {
            let tun = Arc::new(Tun::open_fair(TUN, Offloads::ALL)?);
            tun.limit_queue();
            let settings = Settings {
                offloads: Offloads::ALL,
                log: Arc::new(|line| eprintln!("scale: {line}")),
                log_verbose: None,
                listener: None,
                peers_file: None,
                gateway_id: None,
            };
            let kernel = LinuxPlatform::new(Arc::clone(&tun), settings, &Watches::default())?;
            let offloads = tun.offloads();
            let engine = Engine::start(1)?;
            Ok(engine.add(Clocked(tun, of_tun), kernel, offloads)?)
        })?;
        let other = 3 - own;
        let block = Cidr::new(inner(other), 32).ok_or("a wrong prefix")?;
        interface.set(DeviceChange {
            private_key: Some(secret(own)),
            listen_port: Some(PORT),
            peers: vec![PeerChange {
                endpoint: Some(SocketAddr::new(outer(other), PORT)),
                allowed_ips: vec![AllowedIpChange::Add(block)],
                ..PeerChange::new(secret(other).public_key())
            }],
            ..DeviceChange::default()
        })?;
        host.bring_up(TUN, &[(inner(own), 24)], Some(hosts::MTU))?;
        Ok(Self {
            _interface: interface,
            clock,
            host,
        })
    }
}

/// What the stages cost with the kernel's devices: outbound and inbound. `memory` has what they cost
/// without them.
pub(super) fn measure(memory: [&StageCosts; 2]) -> Result<[StageCosts; 2], Failure> {
    let (left, right) = (Host::new()?, Host::new()?);
    link((&left, LINK), (&right, LINK))?;
    let (left, right) = (End::new(left, 1)?, End::new(right, 2)?);
    daemon::wait_for(&left.host, inner(2))?;
    let streams = Streams {
        count: FLOWS,
        time: TIME,
        warm_up: WARM_UP,
        ..Streams::default()
    };
    let running = streams.start(&left.host, &right.host, &[inner(2)])?;
    wait(WARM_UP)?;
    for end in [&left, &right] {
        end.clock.set_on(true);
    }
    wait(TIME)?;
    for end in [&left, &right] {
        end.clock.set_on(false);
    }
    running.finish(&left.host, &right.host)?;
    // What the left one sent, the right one wrote, but for what was under way.
    let written = right.clock.written();
    let outbound = left.clock.outbound_of_tun(memory[0], written)?;
    let inbound = right.clock.inbound_of_tun(memory[1], written)?;
    Ok([outbound, inbound])
}
