//! `adit-lab embed-device`: the loop of a program that embeds [`Device`], on one thread, over a TUN
//! device and [`std_udp`].
//!
//! Wait until there is something to do → GSO packets of the TUN are sealed as one batch, trains are
//! sent → timers → datagrams that wait are opened as one batch, merged packets are written to the TUN.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use adit::sans_io::{AsPacket, Clock, Device, Inbox, Outbox, PacketRef};
use adit::{Config, Frame, Gso, GsoKind, Peer, std_udp};
use adit_io::tun::{Tun, TunErrorKind};
use adit_io::{MAX_FRAME, Offloads, TunQueue};
use adit_offload::checksum::Sum;
use adit_offload::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_HDR_LEN, VnetHdr};
use adit_testbed::framing::TUNNEL_MTU;
use clap::Args;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::sandbox::Failure;

/// A tunnel to one peer, whose private key is read from standard input.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// The TUN device.
    name: String,
    /// The UDP port.
    port: u16,
    /// The peer's public key.
    peer: String,
    /// The peer's address and port.
    endpoint: SocketAddr,
}

/// GSO packets that are read from the TUN at once.
const FRAMES: usize = 32;
/// The longest wait, so that the conversion to milliseconds has an end.
const WAIT: Duration = Duration::from_secs(10);

/// Room for a packet of the TUN.
struct TunPacket {
    bytes: Box<[u8]>,
    len: usize,
    gso: Option<Gso>,
}

impl AsPacket for TunPacket {
    fn as_packet(&self) -> PacketRef<'_> {
        let mut packet = PacketRef::new(&self.bytes[VNET_HDR_LEN..self.len]);
        packet.gso = self.gso;
        packet
    }
}

struct Host {
    device: Device,
    tun: Tun,
    socket: UdpSocket,
    clock: Clock,
    packets: Vec<TunPacket>,
    inbox: Inbox,
    outbox: Outbox,
}

/// Carries packets until the TUN device is gone.
pub(crate) fn run(args: &DeviceArgs) -> Result<(), Failure> {
    let mut key = String::new();
    io::stdin().read_line(&mut key)?;
    let peer = Peer::new(args.peer.parse()?)
        .endpoint(args.endpoint)
        .allowed_ip("0.0.0.0/0".parse()?)
        .allowed_ip("::/0".parse()?);
    let mut device = Device::new(&Config::new(key.trim().parse()?).peer(peer))?;
    device.set_mtu(TUNNEL_MTU)?;
    let offloads = Offloads {
        tun_tunnel: false,
        ..Offloads::ALL
    };
    let packet = || TunPacket {
        bytes: vec![0; MAX_FRAME].into(),
        len: VNET_HDR_LEN,
        gso: None,
    };
    let mut host = Host {
        device,
        tun: Tun::open_embedded(&args.name, offloads)?,
        socket: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, args.port))?,
        clock: Clock::new(),
        packets: (0..FRAMES).map(|_| packet()).collect(),
        inbox: Inbox::new(),
        outbox: Outbox::new(),
    };
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&host.tun, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    epoll.add(&host.socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    loop {
        let deadline = host.device.next_deadline(host.clock.now()).unwrap_or(WAIT);
        // Rounded up, or the last millisecond would be spent awake.
        let milliseconds = u16::try_from(deadline.min(WAIT).as_millis())? + 1;
        let mut events = [EpollEvent::empty(); 2];
        match epoll.wait(&mut events, EpollTimeout::from(milliseconds)) {
            Err(errno) if errno != nix::errno::Errno::EINTR => return Err(errno.into()),
            _ => {}
        }
        host.outbound()?;
        host.inbound()?;
    }
}

impl Host {
    fn outbound(&mut self) -> Result<(), Failure> {
        let mut count = 0;
        while count < FRAMES && self.packets[count].read(&self.tun)? {
            count += 1;
        }
        let now = self.clock.now();
        let mut taken = 0;
        while taken < count {
            let packets = &self.packets[taken..count];
            taken += self.device.seal(now, packets, &mut self.outbox);
            self.send();
        }
        self.device.handle_timeout(now, &mut self.outbox);
        self.send();
        Ok(())
    }

    fn inbound(&mut self) -> Result<(), Failure> {
        std_udp::recv(&self.socket, &mut self.inbox, Some(Duration::ZERO))?;
        let now = self.clock.now();
        let mut opened = self.device.open(now, &mut self.inbox, &mut self.outbox);
        for frame in opened.merged() {
            let header = header(&frame);
            let pieces = std::iter::once(&header[..]).chain(frame.pieces());
            let pieces: Vec<_> = pieces.map(IoSlice::new).collect();
            // What the TUN does not take is lost, as in any network.
            let _ = self.tun.write(&pieces);
        }
        self.send();
        Ok(())
    }

    fn send(&mut self) {
        for train in self.outbox.drain() {
            // So is what the socket does not take.
            let _ = std_udp::send(&self.socket, &train);
        }
    }
}

impl TunPacket {
    /// Reads a packet. False if none waits.
    fn read(&mut self, tun: &Tun) -> Result<bool, Failure> {
        self.len = match tun.read(&mut self.bytes) {
            Ok(len) if len > VNET_HDR_LEN => len,
            Ok(_) => return Ok(false),
            Err(error) if TunErrorKind::of(&error) == TunErrorKind::Gone => {
                return Err(error.into());
            }
            Err(_) => return Ok(false),
        };
        let Some((header, packet)) = self.bytes[..self.len].split_first_chunk_mut::<VNET_HDR_LEN>()
        else {
            return Ok(false);
        };
        let header = VnetHdr::parse(header);
        self.gso = gso(&header);
        if self.gso.is_none() && header.flags & NEEDS_CSUM != 0 {
            complete(packet, &header);
        }
        Ok(true)
    }
}

/// How the kernel says that a packet is cut.
fn gso(header: &VnetHdr) -> Option<Gso> {
    let kind = match header.gso_type & !GSO_ECN {
        GSO_TCPV4 => GsoKind::Tcp4,
        GSO_TCPV6 => GsoKind::Tcp6,
        GSO_UDP_L4 => GsoKind::Udp,
        _ => return None,
    };
    let segment = header.gso_size;
    Some(Gso { kind, segment })
}

/// Adds to the checksum of a single packet what the kernel left out.
fn complete(packet: &mut [u8], header: &VnetHdr) {
    let start = usize::from(header.csum_start);
    let at = start + usize::from(header.csum_offset);
    let Some(summed) = packet.get(start..) else {
        return;
    };
    let sum = Sum::of(summed).checksum();
    // Zero would say that a datagram has none.
    let sum = if sum == 0 { 0xffff } else { sum };
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// The header before a packet that is written to the TUN.
fn header(frame: &Frame<'_>) -> [u8; VNET_HDR_LEN] {
    let headers = frame.pieces().find(|piece| !piece.is_empty());
    let header = frame
        .gso()
        .zip(headers)
        .and_then(|(gso, headers)| merged(gso, headers));
    header.unwrap_or_default().write()
}

/// The header before one that stands for several. `None` if its headers are too short.
fn merged(gso: Gso, headers: &[u8]) -> Option<VnetHdr> {
    let first = usize::from(*headers.first()?);
    let (ip, v4) = match first >> 4 {
        4 => ((first & 15) * 4, true),
        _ => (40, false),
    };
    let tcp = || Some(usize::from(headers.get(ip + 12)? >> 4) * 4);
    let (transport, csum_offset, gso_type) = match (gso.kind, v4) {
        (GsoKind::Udp, _) => (8, 6, GSO_UDP_L4),
        (_, true) => (tcp()?, 16, GSO_TCPV4),
        (_, false) => (tcp()?, 16, GSO_TCPV6),
    };
    Some(VnetHdr {
        flags: NEEDS_CSUM,
        gso_type,
        hdr_len: u16::try_from(ip + transport).ok()?,
        gso_size: gso.segment,
        csum_start: u16::try_from(ip).ok()?,
        csum_offset,
        ..VnetHdr::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merged_packet_has_the_header_that_the_kernel_wants() {
        let mut headers = [0; 40];
        (headers[0], headers[32]) = (0x45, 0x80);
        let gso = Gso {
            kind: GsoKind::Tcp4,
            segment: 1368,
        };
        let header = merged(gso, &headers).unwrap();
        assert_eq!(header.hdr_len, 52);
        assert_eq!((header.csum_start, header.csum_offset), (20, 16));
        assert_eq!((header.gso_type, header.gso_size), (GSO_TCPV4, 1368));
        assert!(merged(gso, &headers[..20]).is_none());
        // What is written is read again.
        assert_eq!(super::gso(&header), Some(gso));
    }

    #[test]
    fn a_checksum_that_the_kernel_left_out_is_completed() {
        // The field has the sum of the pseudo-header, 0x1234 here.
        let mut packet = [0, 7, 0, 9, 0, 12, 0x12, 0x34, 1, 2, 3, 4];
        let whole = Sum::of(&packet).checksum();
        let header = VnetHdr {
            csum_offset: 6,
            ..VnetHdr::default()
        };
        complete(&mut packet, &header);
        assert_eq!(packet[6..8], whole.to_be_bytes());
        // A header of nonsense changes nothing.
        let before = packet;
        for start in [7, 11, 12, 600] {
            let header = VnetHdr {
                csum_start: start,
                csum_offset: 6,
                ..VnetHdr::default()
            };
            complete(&mut packet, &header);
        }
        assert_eq!(packet, before);
    }
}
