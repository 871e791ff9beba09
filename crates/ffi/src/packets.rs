//! Packets, datagrams and addresses, as they cross in arrays.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::null;

use adit::sans_io::{AsPacket, PacketRef, Train};
use adit::{Gso, GsoKind};

use crate::abi::{self, CallFailure};

/// A packet that stands for itself.
pub const ADIT_GSO_NONE: u32 = 0;
/// Segments of TCP over IPv4.
pub const ADIT_GSO_TCP4: u32 = 1;
/// Segments of TCP over IPv6.
pub const ADIT_GSO_TCP6: u32 = 2;
/// Datagrams of UDP, over either.
pub const ADIT_GSO_UDP: u32 = 3;

/// The longest packet or train of datagrams.
const MAX_LEN: usize = 65_535;

/// An IP packet, or a GSO packet, which stands for several of one flow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct adit_packet {
    /// From the IP header on.
    pub bytes: *const u8,
    /// How many; at most 65,535.
    pub len: usize,
    /// One of ADIT_GSO_….
    pub gso_kind: u32,
    /// Bytes of payload in each packet but the last that it stands for; 0 with ADIT_GSO_NONE.
    pub gso_segment: u32,
}

/// A part of a packet; as struct iovec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct adit_piece {
    /// Where it is.
    pub bytes: *const u8,
    /// How many.
    pub len: usize,
}

/// An address and a port, the same on every system.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct adit_address {
    /// 4 or 6; 0 is no address.
    pub family: u16,
    /// The port, in the host's byte order.
    pub port: u16,
    /// The network interface of a link-local IPv6 address; otherwise 0.
    pub scope: u32,
    /// The address as in an IP header; of IPv4 the first 4 bytes.
    pub ip: [u8; 16],
}

/// Datagrams that came from one address: one, or several that the system has merged (UDP_GRO).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct adit_datagram {
    /// UDP payload.
    pub bytes: *const u8,
    /// How many; at most 65,535.
    pub len: usize,
    /// Of merged ones, the length of each but the last; 0 for a single one.
    pub stride: usize,
    /// Where they came from.
    pub from: adit_address,
    /// The two bits for congestion marks of the IP header; 0 if they are not known.
    pub ecn: u8,
}

/// Datagrams for one address that are to be sent, at most 64: by one call where the system has UDP_SEGMENT,
/// or one by one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct adit_train {
    /// The datagrams, one behind the other.
    pub bytes: *const u8,
    /// How many bytes.
    pub len: usize,
    /// The length of each datagram but the last, which may be shorter.
    pub stride: usize,
    /// Where to.
    pub to: adit_address,
    /// The two bits for congestion marks of the IP header.
    pub ecn: u8,
}

impl adit_packet {
    /// No packet: a caller's array has to begin with something.
    pub const NONE: Self = Self {
        bytes: null(),
        len: 0,
        gso_kind: ADIT_GSO_NONE,
        gso_segment: 0,
    };

    pub(crate) fn of(bytes: &[u8], gso: Option<Gso>) -> Self {
        let (gso_kind, gso_segment) = kind_of(gso);
        Self {
            bytes: bytes.as_ptr(),
            len: bytes.len(),
            gso_kind,
            gso_segment,
        }
    }

    fn gso(&self) -> Result<Option<Gso>, CallFailure> {
        let kind = match self.gso_kind {
            ADIT_GSO_NONE => return Ok(None),
            ADIT_GSO_TCP4 => GsoKind::Tcp4,
            ADIT_GSO_TCP6 => GsoKind::Tcp6,
            ADIT_GSO_UDP => GsoKind::Udp,
            kind => {
                return Err(CallFailure::argument(format!(
                    "{kind} is no ADIT_GSO_ kind of a packet"
                )));
            }
        };
        match u16::try_from(self.gso_segment) {
            Ok(segment) if segment > 0 => Ok(Some(Gso { kind, segment })),
            _ => {
                let text = format!("gso_segment {} is not from 1 to 65,535", self.gso_segment);
                Err(CallFailure::argument(text))
            }
        }
    }
}

/// How a packet was merged, as the header has it.
pub(crate) fn kind_of(gso: Option<Gso>) -> (u32, u32) {
    let Some(Gso { kind, segment }) = gso else {
        return (ADIT_GSO_NONE, 0);
    };
    let kind = match kind {
        GsoKind::Tcp4 => ADIT_GSO_TCP4,
        GsoKind::Tcp6 => ADIT_GSO_TCP6,
        _ => ADIT_GSO_UDP,
    };
    (kind, segment.into())
}

/// A packet of the caller's that has been looked at.
#[repr(transparent)]
pub(crate) struct GivenPacket<'a>(adit_packet, PhantomData<&'a [u8]>);

impl AsPacket for GivenPacket<'_> {
    fn as_packet(&self) -> PacketRef<'_> {
        // SAFETY: `given` has looked at it, and its bytes are there for as long as this.
        let bytes = unsafe { bytes_of(self.0.bytes, self.0.len) };
        let gso = self.0.gso().unwrap_or_default();
        PacketRef { bytes, gso }
    }
}

/// The packets of a caller.
///
/// # Safety
///
/// `first` is NULL, or so many are there, and their bytes; all stay as they are.
pub(crate) unsafe fn given<'a>(
    first: *const adit_packet,
    count: usize,
) -> Result<&'a [GivenPacket<'a>], CallFailure> {
    // SAFETY: as the caller says.
    let packets = unsafe { abi::array(first, count, "packets")? };
    for (n, packet) in packets.iter().enumerate() {
        check(packet.bytes, packet.len, "packet", n)?;
        packet.gso()?;
    }
    // SAFETY: `GivenPacket` has the layout of what it wraps.
    Ok(unsafe { std::slice::from_raw_parts(packets.as_ptr().cast(), packets.len()) })
}

/// Whether bytes of a batch can be there.
pub(crate) fn check(bytes: *const u8, len: usize, what: &str, n: usize) -> Result<(), CallFailure> {
    if bytes.is_null() && len > 0 {
        return Err(CallFailure::argument(format!(
            "the bytes of {what} {n} are NULL"
        )));
    }
    if len > MAX_LEN {
        return Err(CallFailure::argument(format!(
            "{what} {n} has {len} bytes, more than 65,535"
        )));
    }
    Ok(())
}

/// # Safety
///
/// [`check`] has passed, so many bytes are there, and stay as they are.
pub(crate) unsafe fn bytes_of<'a>(bytes: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts(bytes, len) },
    }
}

impl From<SocketAddr> for adit_address {
    fn from(address: SocketAddr) -> Self {
        let mut ip = [0; 16];
        let (family, scope) = match address {
            SocketAddr::V4(v4) => {
                ip[..4].copy_from_slice(&v4.ip().octets());
                (4, 0)
            }
            SocketAddr::V6(v6) => {
                ip = v6.ip().octets();
                (6, v6.scope_id())
            }
        };
        Self {
            family,
            port: address.port(),
            scope,
            ip,
        }
    }
}

impl adit_address {
    pub(crate) fn to_socket_addr(self) -> Result<SocketAddr, CallFailure> {
        match self.family {
            4 => {
                let [a, b, c, d, ..] = self.ip;
                Ok(SocketAddr::new(IpAddr::from([a, b, c, d]), self.port))
            }
            6 => {
                let ip = Ipv6Addr::from(self.ip);
                Ok(SocketAddrV6::new(ip, self.port, 0, self.scope).into())
            }
            family => Err(CallFailure::argument(format!(
                "an address has the family {family}, not 4 or 6"
            ))),
        }
    }
}

impl From<&Train<'_>> for adit_train {
    fn from(train: &Train<'_>) -> Self {
        Self {
            bytes: train.bytes.as_ptr(),
            len: train.bytes.len(),
            stride: train.stride,
            to: train.to.into(),
            ecn: train.ecn,
        }
    }
}
