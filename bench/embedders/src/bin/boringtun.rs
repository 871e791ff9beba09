//! A loop around boringtun's `Tunn` on one thread, over boringtun's TUN device and one UDP socket.
//!
//! Wait until there is something to do → packets from the TUN are encapsulated and sent → datagrams
//! are decapsulated and written to the TUN → timers, each 250 ms.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use boringtun::device::Error as DeviceError;
use boringtun::device::tun::TunSocket;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use embedders::{Failure, Settings};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

/// How often `Tunn` wants its timers looked at.
const TICK: Duration = Duration::from_millis(250);
/// Packets of one side before the other side's turn, as in boringtun's own device.
const TURN: usize = 100;
const LONGEST: usize = 65_536;

struct Host {
    tunn: Tunn,
    tun: TunSocket,
    socket: UdpSocket,
    from: Box<[u8]>,
    to: Box<[u8]>,
}

fn main() -> Result<(), Failure> {
    let settings = Settings::read()?;
    let tun = TunSocket::new(&settings.name)?.set_non_blocking()?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, settings.port))?;
    socket.connect(settings.endpoint)?;
    socket.set_nonblocking(true)?;
    let (key, peer) = (
        StaticSecret::from(settings.key),
        PublicKey::from(settings.peer),
    );
    let mut host = Host {
        tunn: Tunn::new(key, peer, None, None, 1, None),
        tun,
        socket,
        from: vec![0; LONGEST].into(),
        to: vec![0; LONGEST].into(),
    };
    let mut poll = Poll::new()?;
    for descriptor in [host.tun.as_raw_fd(), host.socket.as_raw_fd()] {
        let source = &mut SourceFd(&descriptor);
        poll.registry()
            .register(source, Token(0), Interest::READABLE)?;
    }
    let mut events = Events::with_capacity(2);
    let mut tick = Instant::now() + TICK;
    loop {
        match poll.poll(
            &mut events,
            Some(tick.saturating_duration_since(Instant::now())),
        ) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        // What is ready is told once: both are read until nothing waits.
        let mut waits = true;
        while waits {
            waits = host.outbound()? | host.inbound()?;
            if Instant::now() >= tick {
                tick = Instant::now() + TICK;
                host.timers();
            }
        }
    }
}

impl Host {
    /// Packets of the TUN. Whether more may wait.
    fn outbound(&mut self) -> Result<bool, Failure> {
        for _ in 0..TURN {
            let packet = match self.tun.read(&mut self.from) {
                Ok(packet) => packet,
                Err(DeviceError::IfaceRead(error)) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            if let TunnResult::WriteToNetwork(datagram) =
                self.tunn.encapsulate(packet, &mut self.to)
            {
                send(&self.socket, datagram);
            }
        }
        Ok(true)
    }

    /// Datagrams of the peer. Whether more may wait.
    fn inbound(&mut self) -> Result<bool, Failure> {
        for _ in 0..TURN {
            let len = match self.socket.recv(&mut self.from) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // The peer was not there yet.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error.into()),
            };
            let mut datagram = &self.from[..len];
            loop {
                match self.tunn.decapsulate(None, datagram, &mut self.to) {
                    TunnResult::WriteToNetwork(answer) => send(&self.socket, answer),
                    TunnResult::WriteToTunnelV4(packet, _) => {
                        self.tun.write4(packet);
                        break;
                    }
                    TunnResult::WriteToTunnelV6(packet, _) => {
                        self.tun.write6(packet);
                        break;
                    }
                    TunnResult::Done | TunnResult::Err(_) => break,
                }
                // Asked again without a datagram, it gives what waited for a session.
                datagram = &[];
            }
        }
        Ok(true)
    }

    fn timers(&mut self) {
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut self.to) {
            send(&self.socket, datagram);
        }
    }
}

/// A datagram that cannot be sent is lost, as in any network.
fn send(socket: &UdpSocket, datagram: &[u8]) {
    let _ = socket.send(datagram);
}
