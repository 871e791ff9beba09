//! A gateway whose peers are interfaces of one other host.
//!
//! ```text
//!    gateway 10.76.1.1 ───────── veth ───────── 10.76.1.2 host
//!    wg0     10.77.0.1                          wg0, wg1 ...  10.77.1.1, 10.77.1.2 ...
//! ```

use std::net::{IpAddr, Ipv4Addr};

use adit_testbed::framing::TUNNEL_MTU;
use adit_testbed::process::Process;
use adit_testbed::{Host, link};

use crate::daemon::{self, READY};
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
        let host = || -> Result<Host, Failure> {
            let host = Host::new()?;
            host.own_run()?;
            Ok(host)
        };
        let (gateway, host) = (host()?, host()?);
        link((&gateway, LINK), (&host, LINK))?;
        for (host, last) in [(&gateway, 1), (&host, 2)] {
            let address = Ipv4Addr::new(10, 76, 1, last).into();
            host.bring_up(LINK, &[(address, 24)], None)?;
        }
        let mut daemons = vec![daemon::start(&gateway, entry, INTERFACE)?];
        let names: Vec<String> = (0..count).map(|peer| format!("wg{peer}")).collect();
        daemons.extend(daemon::start_several(&host, entry, &names)?);
        let at_gateway = daemon::keys()?;
        let mut set = format!("set {INTERFACE} private-key /run/key listen-port 51820");
        for (peer, name) in (0..count).zip(&names) {
            let keys = daemon::keys()?;
            let (port, address) = (51_820 + u16::from(peer), Self::address(peer));
            daemon::configure(
                &host,
                &keys.private,
                name,
                &format!(
                    "{port} peer {} endpoint 10.76.1.1:51820 allowed-ips 10.77.0.1/32",
                    at_gateway.public
                ),
                address,
            )?;
            // Each peer answers from its own interface.
            let table = 100 + u16::from(peer);
            host.ip(&format!(
                "route replace 10.77.0.1/32 dev {name} table {table} congctl {congestion}"
            ))?;
            host.ip(&format!("rule add from {address} table {table}"))?;
            set += &format!(
                " peer {} endpoint 10.76.1.2:{port} allowed-ips {address}/32",
                keys.public
            );
        }
        let private = at_gateway.private;
        gateway.run(move || std::fs::write("/run/key", private))?;
        let words: Vec<&str> = set.split_whitespace().collect();
        gateway.output("wg", &words, READY)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        gateway.bring_up(INTERFACE, &[(own, 16)], Some(u32::try_from(TUNNEL_MTU)?))?;
        for peer in 0..count {
            let address = Self::address(peer);
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

    /// The inner address of a peer.
    pub(super) fn address(peer: u8) -> IpAddr {
        Ipv4Addr::new(10, 77, 1, peer + 1).into()
    }
}
