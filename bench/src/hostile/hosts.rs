//! The server that is attacked, a client that uses it, and everybody else.
//!
//! ```text
//!    client 10.76.1.2 ── veth ──┐
//!    wg0    10.77.0.2           server (10.76.1.1, 10.76.2.1; wg0 10.77.0.1)
//!    outside 10.76.2.2 ─ veth ──┘
//!            10.80.0.0/15: any address of it is its own
//! ```
//!
//! The honest peers and the attacker are threads of the lab on the host `outside`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use adit_testbed::process::Process;
use adit_testbed::{Host, proc};

use super::clients::Client;
use crate::daemon;
use crate::hosts::{self, Keys, host, link};
use crate::implementation::Entry;
use crate::sandbox::Failure;
use crate::tools::Iperf;

const INTERFACE: &str = "wg0";
const CLIENT_LINK: &str = "ve1";
const OUTSIDE_LINK: &str = "ve2";
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 76, 2, 1);
const CLIENT_INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// The inner address of the peer that attacks.
pub(super) const INSIDER: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 1);
/// And its outer one.
const INSIDER_OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);
const PORT: u16 = 51_820;
/// Honest peers that connect while the server is attacked.
pub(super) const HONEST: u8 = 20;

pub(super) struct Hosts {
    // The daemons are stopped before their hosts go.
    server_daemon: Process,
    client_daemon: Process,
    server: Host,
    client: Host,
    pub(super) outside: Host,
    pub(super) public: adit_proto::config::PublicKey,
    honest: Vec<Keys>,
    insider: Keys,
}

/// The port of the server, or one where nobody listens.
pub(super) fn target(open: bool) -> SocketAddr {
    (SERVER, if open { PORT } else { 9 }).into()
}

/// The outer address of an honest peer.
const fn honest_outside(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 81, 0, n)
}

impl Hosts {
    pub(super) fn new(entry: &Entry) -> Result<Self, Failure> {
        let (server, client, outside) = (host()?, host()?, host()?);
        for (other, name, net) in [(&client, CLIENT_LINK, 1), (&outside, OUTSIDE_LINK, 2)] {
            link([&server, other], name, [10, 76, net])?;
        }
        outside.ip("link set lo up")?;
        outside.ip("route add local 10.80.0.0/15 dev lo")?;
        server.ip("route add 10.80.0.0/15 via 10.76.2.2")?;
        let (server_keys, client_keys, insider) = (Keys::new()?, Keys::new()?, Keys::new()?);
        let honest = Keys::several(HONEST.into())?;

        let server_daemon = daemon::start(&server, entry, INTERFACE)?;
        let client_daemon = daemon::start(&client, entry, INTERFACE)?;
        // Not every implementation learns endpoints from handshakes.
        let mut set = format!("listen-port {PORT}");
        let mut peer = |keys: &Keys, outside: Ipv4Addr, inside: IpAddr| {
            let (key, endpoint) = (keys.public, SocketAddr::from((outside, PORT)));
            set += &format!(" peer {key} endpoint {endpoint} allowed-ips {inside}/32");
        };
        peer(&client_keys, Ipv4Addr::new(10, 76, 1, 2), CLIENT_INSIDE);
        peer(&insider, INSIDER_OUTSIDE, INSIDER.into());
        for (n, keys) in (1..).zip(&honest) {
            peer(keys, honest_outside(n), Ipv4Addr::new(10, 77, 1, n).into());
        }
        hosts::set(&server, INTERFACE, &server_keys, &set)?;
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        server.bring_up(INTERFACE, &[(own, 16)], Some(hosts::MTU))?;
        let to_server = format!(
            "51820 peer {} endpoint 10.76.1.1:51820 allowed-ips 10.77.0.1/32",
            server_keys.public
        );
        daemon::configure(&client, &client_keys, INTERFACE, &to_server, CLIENT_INSIDE)?;
        daemon::wait_for(&client, own)?;
        Ok(Self {
            server_daemon,
            client_daemon,
            server,
            client,
            outside,
            public: server_keys.public,
            honest,
            insider,
        })
    }

    /// A client of the server at an address of the host outside.
    pub(super) fn outsider(&self, keys: &Keys, from: Ipv4Addr) -> Result<Client, Failure> {
        let (keys, public) = (keys.clone(), self.public);
        let from = SocketAddr::from((from, PORT));
        self.outside
            .run(move || Client::new(&keys, from, public, target(true)))
    }

    /// The honest peers, each at an address of its own.
    pub(super) fn honest(&self) -> Result<Vec<Client>, Failure> {
        let peers = (1..).zip(&self.honest);
        peers
            .map(|(n, keys)| self.outsider(keys, honest_outside(n)))
            .collect()
    }

    /// The peer that attacks.
    pub(super) fn insider(&self) -> Result<Client, Failure> {
        self.outsider(&self.insider, INSIDER_OUTSIDE)
    }

    /// TCP from the client to the server, in Gb/s.
    pub(super) fn stream(&self, seconds: u32) -> Result<f64, Failure> {
        let own = Ipv4Addr::new(10, 77, 0, 1).into();
        let flow = Iperf::tcp(1, seconds).start_between(&self.client, &self.server, own)?;
        Ok(flow.finish()?.gbps())
    }

    pub(super) fn client(&self) -> &Host {
        &self.client
    }

    /// The server's memory, in MiB.
    pub(super) fn memory(&self) -> Result<proc::Memory, Failure> {
        Ok(proc::memory(self.server_daemon.id())?)
    }

    /// An error with its last words if a daemon has ended.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        daemon::check(&self.server, &mut self.server_daemon, INTERFACE)?;
        daemon::check(&self.client, &mut self.client_daemon, INTERFACE)
    }
}
