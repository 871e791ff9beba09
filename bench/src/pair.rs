//! Two hosts joined by one link, with or without a tunnel over it.
//!
//! ```text
//!        host a                                         host b
//!  load  wg0 10.77.0.1, fd77::1   ─ ─ tunnel ─ ─   wg0 10.77.0.2, fd77::2  load
//!        ve0 10.76.0.1, fd76::1  ──── veth 1500 ───  ve0 10.76.0.2, fd76::2
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adit_proto::config::PublicKey;
use adit_testbed::framing::{Family, LINK_MTU, TUNNEL_MTU};
use adit_testbed::process::Process;
use adit_testbed::{Host, link};

use crate::daemon;
use crate::hosts::{self, Keys};
use crate::implementation::{Entry, Implementation};
use crate::ipsec;
use crate::sandbox::Failure;

/// Where the processes of the hosts may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On any core.
    Free,
    /// Everything of host a on core 0, everything of host b on core 1.
    OnePerCore,
}

/// Two hosts.
pub(crate) struct LinkedHosts {
    // The daemons are stopped before their hosts go.
    daemons: Option<[Process; 2]>,
    pub(crate) a: Host,
    pub(crate) b: Host,
    who: Implementation,
    outer: Family,
    congestion: String,
    /// Octets of the MTU of a WireGuard tunnel over this link.
    mtu: usize,
}

/// The addresses of an interface of both hosts: 10.NET.0.1 and 2, fdNET::1 and 2.
#[derive(Clone, Copy)]
struct Net(u8, u16);

const LINK_NET: Net = Net(76, 0xfd76);
const TUNNEL_NET: Net = Net(77, 0xfd77);
const VXLAN_NET: Net = Net(78, 0xfd78);

impl Net {
    fn address(self, family: Family, host: u8) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, self.0, 0, host + 1).into(),
            Family::V6 => Ipv6Addr::new(self.1, 0, 0, 0, 0, 0, 0, u16::from(host) + 1).into(),
        }
    }
}

/// What the link's MTU has more than the tunnel's.
const OVERHEAD: usize = LINK_MTU - TUNNEL_MTU;
/// Both ends of the link between the hosts.
pub(crate) const LINK: &str = "ve0";
/// The interface of every WireGuard tunnel.
const TUNNEL: &str = "wg0";

impl LinkedHosts {
    /// Builds the hosts and the tunnel of `entry` over `outer`, and waits until packets pass.
    pub(crate) fn new(
        entry: &Entry,
        placement: Placement,
        outer: Family,
        congestion: &str,
    ) -> Result<Self, Failure> {
        Self::with_mtu(entry, placement, outer, congestion, TUNNEL_MTU)
    }

    /// The same, with a tunnel of this MTU, and a link whose MTU is 80 octets longer.
    pub(crate) fn with_mtu(
        entry: &Entry,
        placement: Placement,
        outer: Family,
        congestion: &str,
        mtu: usize,
    ) -> Result<Self, Failure> {
        let mut pair = Self::linked(entry.who, placement, outer, congestion, mtu)?;
        pair.tunnel(entry)
            .map_err(|e| format!("{}: {e}", entry.who.name()))?;
        Ok(pair)
    }

    /// Builds the hosts, and a tunnel between programs that embed the library of `who`. Each is started
    /// with `words`, then the interface that it is to make, its UDP port, the peer's key and endpoint.
    /// Waits until packets pass.
    pub(crate) fn embedding(who: Implementation, words: &[String]) -> Result<Self, Failure> {
        let mut pair = Self::linked(who, Placement::Free, Family::V4, "cubic", TUNNEL_MTU)?;
        let keys = [Keys::new()?, Keys::new()?];
        let start = |host: &Host, us: usize, them: u8| {
            let endpoint = pair.endpoint(them).to_string();
            let peer = &keys[usize::from(them)].public.to_string();
            let tunnel = [TUNNEL, "51820", peer, &endpoint].map(str::to_owned);
            let words = [words, &tunnel].concat();
            daemon::start_embedding(host, TUNNEL, &words, &keys[us].private())
        };
        let programs = [start(&pair.a, 0, 1)?, start(&pair.b, 1, 0)?];
        pair.daemons = Some(programs);
        for (host, us, them) in [(&pair.a, 0, 1), (&pair.b, 1, 0)] {
            pair.join(host, TUNNEL, TUNNEL_NET, [us, them], pair.mtu)?;
        }
        pair.wait_for_packets()?;
        Ok(pair)
    }

    /// Builds the hosts, and only b's end of a tunnel of `entry`: a program at a has the other one, at
    /// [`Self::endpoint`], with the public key that `near` gives, which is told that of b. Also gives b's daemon.
    pub(crate) fn with_far_end(
        entry: &Entry,
        near: impl FnOnce(&Self, &PublicKey) -> Result<PublicKey, Failure>,
    ) -> Result<(Self, Process), Failure> {
        let direct = Implementation::Direct;
        let pair = Self::linked(direct, Placement::Free, Family::V4, "cubic", TUNNEL_MTU)?;
        let far = daemon::start(&pair.b, entry, TUNNEL)?;
        let keys = Keys::new()?;
        let near = near(&pair, &keys.public)?;
        pair.configure(&pair.b, &keys, &near, [1, 0])?;
        Ok((pair, far))
    }

    /// Two hosts with a link, and no tunnel yet.
    fn linked(
        who: Implementation,
        placement: Placement,
        outer: Family,
        congestion: &str,
        mtu: usize,
    ) -> Result<Self, Failure> {
        let [core_a, core_b] = match placement {
            Placement::Free => [None, None],
            Placement::OnePerCore => [Some(0), Some(1)],
        };
        let pair = Self {
            daemons: None,
            a: host(core_a)?,
            b: host(core_b)?,
            who,
            outer,
            congestion: congestion.to_owned(),
            mtu,
        };
        pair.link()?;
        Ok(pair)
    }

    /// Where a host's tunnel is reached, over the link.
    pub(crate) fn endpoint(&self, host: u8) -> SocketAddr {
        SocketAddr::new(LINK_NET.address(self.outer, host), 51820)
    }

    /// The address of host b (1) or a (0) inside the tunnel.
    pub(crate) fn inside(&self, family: Family, host: u8) -> IpAddr {
        TUNNEL_NET.address(family, host)
    }

    /// The address of host b (1) or a (0) that a load goes to: through the tunnel if there is one.
    pub(crate) fn address(&self, family: Family, host: u8) -> IpAddr {
        let net = if self.who == Implementation::Direct {
            LINK_NET
        } else {
            TUNNEL_NET
        };
        net.address(family, host)
    }

    /// The process numbers of the tunnel's daemons at a and b.
    pub(crate) fn daemons(&self) -> Option<[u32; 2]> {
        let [a, b] = self.daemons.as_ref()?;
        Some([a.id(), b.id()])
    }

    /// An error with the daemon's last words if one has ended.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let interface = self.interface();
        let Some(daemons) = self.daemons.as_mut() else {
            return Ok(());
        };
        for (daemon, host) in daemons.iter_mut().zip([&self.a, &self.b]) {
            daemon::check(host, daemon, interface)?;
        }
        Ok(())
    }

    const fn interface(&self) -> &'static str {
        match self.who {
            Implementation::Ipsec => ipsec::INTERFACE,
            _ => TUNNEL,
        }
    }

    /// The MTU of the tunnel's interface, in octets.
    fn inner_mtu(&self) -> usize {
        self.mtu.min(self.who.longest())
    }

    /// Puts a VXLAN device on the tunnel (or the link) and returns b's address on it.
    pub(crate) fn vxlan(&self) -> Result<IpAddr, Failure> {
        let (device, mtu) = if self.who == Implementation::Direct {
            (LINK, self.mtu + OVERHEAD - 50)
        } else {
            (self.interface(), self.inner_mtu() - 50)
        };
        for (host, us, them) in [(&self.a, 0, 1), (&self.b, 1, 0)] {
            let local = self.address(Family::V4, us);
            let remote = self.address(Family::V4, them);
            host.ip(&format!(
                "link add name vx0 mtu {mtu} type vxlan id 78 dstport 4789 dev {device} local {local} remote {remote}"
            ))?;
            host.bring_up("vx0", &[(VXLAN_NET.address(Family::V4, us), 24)], None)?;
            let ends = [us, them].map(|of| VXLAN_NET.address(Family::V4, of));
            choose_congestion(host, ends, "vx0", &self.congestion)?;
        }
        let b = VXLAN_NET.address(Family::V4, 1);
        daemon::wait_for(&self.a, b)?;
        Ok(b)
    }

    /// Takes the VXLAN device away again.
    pub(crate) fn drop_vxlan(&self) -> Result<(), Failure> {
        self.a.ip("link del vx0")?;
        Ok(self.b.ip("link del vx0")?)
    }

    fn link(&self) -> Result<(), Failure> {
        link((&self.a, LINK), (&self.b, LINK))?;
        for (host, us, them) in [(&self.a, 0, 1), (&self.b, 1, 0)] {
            host.bring_up("lo", &[], None)?;
            self.join(host, LINK, LINK_NET, [us, them], self.mtu + OVERHEAD)?;
        }
        Ok(())
    }

    /// Gives an interface of host `us` its addresses in `net` and its MTU, and the routes to
    /// `them`.
    fn join(
        &self,
        host: &Host,
        interface: &str,
        net: Net,
        [us, them]: [u8; 2],
        mtu: usize,
    ) -> Result<(), Failure> {
        let addresses = [
            (net.address(Family::V4, us), 24),
            (net.address(Family::V6, us), 64),
        ];
        host.bring_up(interface, &addresses, Some(u32::try_from(mtu)?))?;
        for family in [Family::V4, Family::V6] {
            let ends = [us, them].map(|of| net.address(family, of));
            choose_congestion(host, ends, interface, &self.congestion)?;
        }
        Ok(())
    }

    fn tunnel(&mut self, entry: &Entry) -> Result<(), Failure> {
        match entry.who {
            Implementation::Direct => {
                return daemon::wait_for(&self.a, self.address(Family::V4, 1));
            }
            Implementation::Kernel => {
                for host in [&self.a, &self.b] {
                    host.ip(&format!("link add name {TUNNEL} type wireguard"))?;
                }
            }
            Implementation::Ipsec => return self.ipsec(),
            _ => {
                let start = |host| daemon::start(host, entry, TUNNEL);
                self.daemons = Some([start(&self.a)?, start(&self.b)?]);
            }
        }
        let keys = [Keys::new()?, Keys::new()?];
        for (host, us, them) in [(&self.a, 0, 1), (&self.b, 1, 0)] {
            let [own, peer] = [us, them].map(|of| &keys[usize::from(of)]);
            self.configure(host, own, &peer.public, [us, them])?;
        }
        self.wait_for_packets()
    }

    fn wait_for_packets(&mut self) -> Result<(), Failure> {
        daemon::wait_for(&self.a, self.address(Family::V4, 1))?;
        daemon::wait_for(&self.a, self.address(Family::V6, 1))?;
        self.check()
    }

    fn ipsec(&mut self) -> Result<(), Failure> {
        let outer = [0, 1].map(|host| LINK_NET.address(self.outer, host));
        let inner = [0, 1].map(|host| {
            let [v4, v6] = [Family::V4, Family::V6].map(|of| TUNNEL_NET.address(of, host));
            format!("{v4}/32,{v6}/128")
        });
        self.daemons = Some(ipsec::start_both([&self.a, &self.b])?);
        for (host, us, them) in [(&self.a, 0, 1), (&self.b, 1, 0)] {
            let mtu = self.inner_mtu();
            self.join(host, ipsec::INTERFACE, TUNNEL_NET, [us, them], mtu)?;
        }
        ipsec::connect([&self.a, &self.b], outer, &[inner])?;
        self.wait_for_packets()
    }

    /// Gives the interface its key, peer, addresses and MTU, as wg-quick would.
    fn configure(
        &self,
        host: &Host,
        keys: &Keys,
        peer: &PublicKey,
        [us, them]: [u8; 2],
    ) -> Result<(), Failure> {
        let endpoint = self.endpoint(them);
        let inside = |family| TUNNEL_NET.address(family, them);
        let set = format!(
            "listen-port 51820 peer {peer} endpoint {endpoint} allowed-ips {}/32,{}/128",
            inside(Family::V4),
            inside(Family::V6)
        );
        hosts::set(host, TUNNEL, keys, &set)?;
        self.join(host, TUNNEL, TUNNEL_NET, [us, them], self.mtu)
    }
}

/// An error if this kernel has not got the congestion control.
pub(crate) fn require_congestion(control: &str) -> Result<(), Failure> {
    let there = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let there = std::fs::read_to_string(there).unwrap_or_default();
    if there.split_whitespace().any(|name| name == control) {
        return Ok(());
    }
    Err(format!(
        "TCP has no congestion control {control} here, but {}: modprobe tcp_{control} where there is \
         such a module",
        there.split_whitespace().collect::<Vec<_>>().join(", ")
    )
    .into())
}

/// Every TCP connection of a host from one address to another begins with the congestion control
/// asked for. A namespace may not choose it for all; and if a socket chooses when it is connected, as iperf3
/// does, BBR leaves it paced if that is the default of the machine: 12,000 timers a second, a third
/// of the throughput.
pub(crate) fn choose_congestion(
    host: &Host,
    [from, to]: [IpAddr; 2],
    device: &str,
    control: &str,
) -> Result<(), Failure> {
    Ok(host.ip(&format!(
        "route replace {to} dev {device} src {from} congctl {control}"
    ))?)
}

/// A host whose processes and threads run on `core` only, or anywhere.
fn host(core: Option<usize>) -> Result<Host, Failure> {
    let host = hosts::host()?;
    if let Some(core) = core {
        host.pin(core)?;
    }
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_that_is_not_there_is_named_and_so_are_those_that_are() {
        // Every kernel has it.
        require_congestion("reno").unwrap();
        let why = require_congestion("nosuch").unwrap_err().to_string();
        assert!(why.contains("nosuch") && why.contains("reno"), "{why}");
        assert!(require_congestion("").is_err());
    }
}
