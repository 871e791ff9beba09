//! Peers that the lab is itself: honest ones that want to connect, one that attacks, and strangers.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey};
use adit_proto::wire::{INITIATION_LEN, sealed_len};
use adit_proto::{Device, Endpoint, Output, Peer, Session, Tai64N, Time};

use crate::hosts::{self, Keys};
use crate::sandbox::Failure;

/// A WireGuard peer without an interface, at an address of the host that it is made on.
pub(super) struct Client {
    device: Device,
    server: Arc<Peer>,
    socket: UdpSocket,
    begun: Instant,
    /// Added to its clock.
    ahead: Duration,
}

impl Client {
    pub(super) fn new(
        keys: &Keys,
        from: SocketAddr,
        server: PublicKey,
        at: SocketAddr,
    ) -> Result<Self, Failure> {
        let random = |bytes: &mut [u8]| hosts::random(bytes).expect("/dev/urandom ends");
        let mut device = Device::new(Box::new(random));
        let everything = Cidr::new([0, 0, 0, 0].into(), 0).ok_or("no block")?;
        let change = DeviceChange {
            private_key: Some(keys.secret.clone()),
            peers: vec![PeerChange {
                endpoint: Some(at),
                allowed_ips: vec![AllowedIpChange::Add(everything)],
                ..PeerChange::new(server)
            }],
            ..DeviceChange::default()
        };
        device.apply(Time(1), &change)?;
        let peer = device.peer(&server).ok_or("no peer")?;
        let socket = UdpSocket::bind(from)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            server: Arc::clone(peer),
            device,
            socket,
            begun: Instant::now(),
            ahead: Duration::ZERO,
        })
    }

    fn now(&self) -> Time {
        Time::default() + (Duration::from_secs(1) + self.begun.elapsed() + self.ahead)
    }

    fn wall(&self) -> Tai64N {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Tai64N::from_unix(since.unwrap_or_default() + self.ahead)
    }

    /// Asks for a session.
    pub(super) fn connect(&mut self) {
        if self.server.want_session() {
            let server = Arc::clone(&self.server);
            self.device.handle_event(self.now(), self.wall(), &server);
        }
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.server.session(self.now())
    }

    /// Does what is due: reads what came, and sends what there is to send. Returns the initiations
    /// among that.
    pub(super) fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2048];
        loop {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => {
                    let (now, wall) = (self.now(), self.wall());
                    let datagram = &buffer[..len];
                    if adit_proto::wire::classify(datagram)
                        == Some(adit_proto::wire::DatagramKind::Handshake)
                    {
                        let device = &mut self.device;
                        device.handle_handshake(now, wall, from.into(), datagram, false);
                    }
                }
                // What ICMP says is no reason to stop.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => break,
            }
        }
        let now = self.now();
        if self.device.next_deadline().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now, self.wall());
        }
        let mut initiations = Vec::new();
        while let Some(output) = self.device.poll_output() {
            match output {
                Output::Handshake {
                    to, datagram, peer, ..
                } => {
                    self.send(to, &datagram);
                    self.device.handle_sent(&datagram, peer.as_ref(), true);
                    if datagram.len() == INITIATION_LEN {
                        initiations.push(datagram.to_vec());
                    }
                }
                Output::Keepalive { peer } => {
                    let sealed = self.device.seal_keepalive(now, self.wall(), &peer);
                    if let Some((to, datagram)) = sealed {
                        self.send(to, &datagram);
                    }
                }
                Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
            }
        }
        initiations
    }

    fn send(&self, to: Endpoint, datagram: &[u8]) {
        // What is lost is sent again.
        let _ = self.socket.send_to(datagram, to.addr);
    }

    /// Whether it was given a cookie.
    pub(super) fn has_cookie(&self) -> bool {
        self.device.handshake_stats().cookies_accepted > 0
    }

    /// The next initiation, without waiting for the time that it is due.
    pub(super) fn next_initiation(&mut self) -> Option<Vec<u8>> {
        self.ahead += Duration::from_secs(6);
        self.poll().pop()
    }

    /// Seals a packet.
    pub(super) fn seal(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let (now, wall) = (self.now(), self.wall());
        let mut datagram = vec![0; sealed_len(packet.len(), 1420)];
        let sealed = self.device.seal(now, wall, packet, 1420, &mut datagram);
        sealed.ok().map(|_| datagram)
    }
}

/// How many of the clients connect within a time, and how long the last of them took.
pub(super) fn connect(mut clients: Vec<Client>, limit: Duration) -> (usize, Duration) {
    let begun = Instant::now();
    let mut last = Duration::ZERO;
    let count = clients.len();
    clients.iter_mut().for_each(Client::connect);
    while !clients.is_empty() && begun.elapsed() < limit {
        clients.retain_mut(|client| {
            client.poll();
            let connected = client.session().is_some();
            if connected {
                last = begun.elapsed();
            }
            !connected
        });
        std::thread::sleep(Duration::from_millis(2));
    }
    (count - clients.len(), last)
}
