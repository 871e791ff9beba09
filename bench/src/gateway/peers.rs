//! A gateway whose peers are interfaces of one other host.
//!
//! ```text
//!    gateway 10.76.1.1 ───────── veth ───────── 10.76.1.2 host
//!    wg0     10.77.0.1                          wg0, wg1 ...  10.77.1.1, 10.77.1.2 ...
//! ```

use std::net::{IpAddr, Ipv4Addr};

use adit_testbed::Host;
use adit_testbed::process::Process;

use crate::daemon;
use crate::hosts::{self, Keys, host, link};
use crate::implementation::Entry;
use crate::pair::choose_congestion;
use crate::sandbox::Failure;

const INTERFACE: &str = "wg0";
const LINK: &str = "ve1";

/// The hosts, and what runs there.
pub(super) struct Peers {
    // The daemons are stopped before their hosts go.
    _daemons: Vec<Process>,
    pub(super) gateway: Host,
    pub(super) host: Host,
    pub(super) count: u8,
}

impl Peers {
    pub(super) fn new(entry: &Entry, count: u8, congestion: &str) -> Result<Self, Failure> {
        let (gateway, host) = (host()?, host()?);
        link([&gateway, &host], LINK, [10, 76, 1])?;
        let mut daemons = vec![daemon::start(&gateway, entry, INTERFACE)?];
        let names: Vec<String> = (0..count).map(|peer| format!("wg{peer}")).collect();
        daemons.extend(daemon::start_several(&host, entry, &names)?);
        let keys = Keys::new()?;
        let mut set = "listen-port 51820".to_owned();
        for peer in 0..count {
            set += &interface(&host, peer, 1, &keys, congestion)?;
        }
        hosts::set(&gateway, INTERFACE, &keys, &set)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        gateway.bring_up(INTERFACE, &[(own, 16)], Some(hosts::MTU))?;
        for peer in 0..count {
            let address = address(peer);
            choose_congestion(&gateway, [own, address], INTERFACE, congestion)?;
            daemon::wait_for(&gateway, address)?;
        }
        Ok(Self {
            _daemons: daemons,
            gateway,
            host,
            count,
        })
    }
}

/// The inner address of a peer.
pub(super) fn address(peer: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 1, peer + 1).into()
}

/// Sets up the interface of a peer, whose daemon runs, on a host with others: it answers from there. The
/// gateway is 10.76.NET.1, the host 10.76.NET.2. Returns what `wg set` is to say of the peer there.
pub(super) fn interface(
    host: &Host,
    peer: u8,
    net: u8,
    gateway: &Keys,
    congestion: &str,
) -> Result<String, Failure> {
    let (keys, name, address) = (Keys::new()?, format!("wg{peer}"), address(peer));
    let (port, table) = (51_820 + u16::from(peer), 100 + u16::from(peer));
    let to_gateway = format!(
        "{port} peer {} endpoint 10.76.{net}.1:51820 allowed-ips 10.77.0.1/32",
        gateway.public
    );
    daemon::configure(host, &keys, &name, &to_gateway, address)?;
    host.ip(&format!(
        "route replace 10.77.0.1/32 dev {name} table {table} congctl {congestion}"
    ))?;
    host.ip(&format!("rule add from {address} table {table}"))?;
    let public = keys.public;
    Ok(format!(
        " peer {public} endpoint 10.76.{net}.2:{port} allowed-ips {address}/32"
    ))
}
