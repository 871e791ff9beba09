//! A gateway with more peers than there can be interfaces: the lab plays them all.
//!
//! ```text
//!    app 10.79.0.2 ── veth ── 10.79.0.1 gateway 10.76.1.1 ── veth ── 10.76.1.2 players
//!    fd79::2                  fd79::1   fd76::1              fd76::2
//!                             wg0 10.77.0.1
//! ```
//!
//! Every second peer speaks IPv6, inside and outside. Each has an address of its own in both
//! places, as it has on the Internet.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use adit_proto::config::PublicKey;
use adit_testbed::process::Process;
use adit_testbed::{Host, link};

use crate::daemon::{self, READY};
use crate::hosts::{self, Keys, host};
use crate::implementation::Entry;
use crate::sandbox::Failure;

pub(crate) const INTERFACE: &str = "wg0";
pub(crate) const PORT: u16 = 51_820;
/// The link to the players, and the one to the application.
const LINK: &str = "ve1";
const APP_LINK: &str = "ve2";

/// Whether all of a peer's addresses are IPv6.
pub(crate) const fn is_v6(peer: u32) -> bool {
    peer % 2 == 1
}

/// Where a peer is: an address that the players' host calls its own.
pub(crate) fn outer(peer: u32) -> IpAddr {
    if is_v6(peer) {
        // A /64 of its own, as a site has: implementations limit handshakes by it.
        let [high, low] = halves(peer);
        Ipv6Addr::new(0xfd64, 0, high, low, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(172, 16, 0, 0)) + peer).into()
    }
}

/// A peer's address inside the tunnel.
pub(crate) fn inner(peer: u32) -> IpAddr {
    if is_v6(peer) {
        let [high, low] = halves(peer);
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, high, low).into()
    } else {
        Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + peer).into()
    }
}

fn halves(peer: u32) -> [u16; 2] {
    let [a, b, c, d] = peer.to_be_bytes();
    [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
}

/// Where a peer finds the gateway.
pub(crate) fn gateway(peer: u32) -> SocketAddr {
    let ip: IpAddr = if is_v6(peer) {
        Ipv6Addr::new(0xfd76, 0, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(10, 76, 1, 1).into()
    };
    SocketAddr::new(ip, PORT)
}

/// The application behind the gateway.
pub(crate) fn app(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 2).into()
    } else {
        Ipv4Addr::new(10, 79, 0, 2).into()
    }
}

/// The hosts, and the gateway's daemon.
pub(crate) struct Many {
    // Stopped before its host goes.
    pub(crate) daemon: Option<Process>,
    pub(crate) gateway: Host,
    pub(crate) players: Host,
    pub(crate) app: Host,
    pub(crate) keys: Keys,
}

/// A switch of the kernel, in the namespace of a host.
fn set(host: &Host, name: &'static str) -> Result<(), Failure> {
    let path = format!("/proc/sys/net/{name}");
    Ok(host.run(move || fs::write(path, "1"))?)
}

impl Many {
    /// The hosts, and a daemon without peers.
    pub(crate) fn new(entry: &Entry) -> Result<Self, Failure> {
        let (gateway, players, app) = (host()?, host()?, host()?);
        for (net, name, other) in [(76, LINK, &players), (79, APP_LINK, &app)] {
            link((&gateway, name), (other, name))?;
            for (host, last) in [(&gateway, 1), (other, 2)] {
                let (v4, v6) = match net {
                    76 => (Ipv4Addr::new(10, 76, 1, last), 0xfd76),
                    _ => (Ipv4Addr::new(10, 79, 0, last), 0xfd79),
                };
                let v6 = Ipv6Addr::new(v6, 0, 0, 0, 0, 0, 0, last.into());
                host.bring_up(name, &[(v4.into(), 24), (v6.into(), 64)], None)?;
            }
        }
        for route in [
            "route add 172.16.0.0/12 via 10.76.1.2",
            "-6 route add fd64::/32 via fd76::2",
        ] {
            gateway.ip(route)?;
        }
        for command in [
            "link set lo up",
            "route add local 172.16.0.0/12 dev lo",
            "-6 route add local fd64::/32 dev lo",
        ] {
            players.ip(command)?;
        }
        for route in [
            "route add default via 10.79.0.1",
            "-6 route add default via fd79::1",
        ] {
            app.ip(route)?;
        }
        // Once the neighbours are known, the first packets need not wait for them.
        for (from, to) in [
            (&players, self::gateway(0).ip()),
            (&players, self::gateway(1).ip()),
            (&app, Ipv4Addr::new(10, 79, 0, 1).into()),
            (&app, Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1).into()),
        ] {
            daemon::wait_for(from, to)?;
        }
        set(&gateway, "ipv4/ip_forward")?;
        set(&gateway, "ipv6/conf/all/forwarding")?;
        // The peers' addresses are routes only: IPv6 does not let a socket send from them otherwise.
        set(&players, "ipv6/ip_nonlocal_bind")?;
        let keys = Keys::new()?;
        let mut this = Self {
            daemon: None,
            gateway,
            players,
            app,
            keys,
        };
        this.start(entry)?;
        Ok(this)
    }

    /// Starts the daemon, and stops the one before.
    pub(crate) fn start(&mut self, entry: &Entry) -> Result<(), Failure> {
        drop(self.daemon.take());
        self.daemon = Some(daemon::start(&self.gateway, entry, INTERFACE)?);
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Process::id)
    }

    /// An error that says so, if the daemon has ended.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let daemon = self.daemon.as_mut().ok_or("there is no daemon")?;
        daemon::check(&self.gateway, daemon, INTERFACE)
    }

    /// The interface's own section of a configuration.
    pub(crate) fn head(&self) -> String {
        let private = self.keys.private();
        format!("[Interface]\nPrivateKey = {private}\nListenPort = {PORT}\n")
    }

    /// `wg setconf`, which ends within `limit`.
    pub(crate) fn setconf(&self, config: String, limit: Duration) -> Result<(), Failure> {
        self.gateway
            .run(move || fs::write("/run/wg.conf", config))?;
        let args = ["setconf", INTERFACE, "/run/wg.conf"];
        self.gateway.output("wg", &args, limit)?;
        Ok(())
    }

    /// The interface goes up, and has its routes.
    pub(crate) fn bring_up(&self) -> Result<(), Failure> {
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        self.gateway
            .bring_up(INTERFACE, &[(own, 16)], Some(hosts::MTU))?;
        self.gateway
            .ip(&format!("route add 10.128.0.0/9 dev {INTERFACE}"))?;
        self.gateway
            .ip(&format!("-6 route add fd77::/64 dev {INTERFACE}"))?;
        Ok(())
    }

    /// Until the gateway takes datagrams.
    pub(crate) fn wait_for_port(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + READY;
        let bound = || adit_testbed::proc::has_udp_port(PORT).unwrap_or(false);
        while !self.gateway.run(bound) {
            adit_testbed::interrupt::check()?;
            if Instant::now() > deadline {
                return Err(format!("nothing listens on port {PORT}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// A peer's section. Its endpoint is known where a player stands at it: not every implementation
/// learns it from a handshake.
pub(crate) fn section(
    config: &mut String,
    key: &PublicKey,
    allowed_ips: &str,
    endpoint: Option<SocketAddr>,
) {
    let _ = write!(
        config,
        "\n[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed_ips}\n"
    );
    if let Some(endpoint) = endpoint {
        let _ = writeln!(config, "Endpoint = {endpoint}");
    }
}

/// Where the gateway finds a player.
pub(crate) fn endpoint(peer: u32) -> SocketAddr {
    SocketAddr::new(outer(peer), PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_peer_has_addresses_of_its_own() {
        let all: Vec<u32> = (0..70_000).chain(499_990..500_000).collect();
        let inside: BTreeSet<_> = all.iter().map(|&peer| inner(peer)).collect();
        let outside: BTreeSet<_> = all.iter().map(|&peer| outer(peer)).collect();
        assert_eq!((inside.len(), outside.len()), (all.len(), all.len()));
        assert!(all.iter().all(|&peer| inner(peer).is_ipv6() == is_v6(peer)));
        assert!(all.iter().all(|&peer| outer(peer).is_ipv6() == is_v6(peer)));
    }
}
