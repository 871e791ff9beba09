//! A tunnel that goes on in another one: over another source of packets, or in another process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use adit_engine::{Interface, InterfaceState, Sockets, importer};
use adit_io::udp::{Udp, UdpState};
use adit_proto::{Device, Time};
use zeroize::Zeroizing;

/// A tunnel that has stopped and goes on in another one, with its sessions and sockets:
/// [`Tunnel::hand_over`](crate::Tunnel::hand_over), [`Builder::go_on`](crate::Builder::go_on). Peers do not
/// notice, and datagrams that arrive meanwhile wait in the sockets.
///
/// It holds keys, which are zeroized when it is dropped. Only one tunnel may ever go on from it: a
/// program that copies its bytes to another process must drop them here.
pub struct HandOver {
    records: Zeroizing<Vec<u8>>,
    state: InterfaceState,
    sockets: Vec<Handed>,
}

struct Handed {
    v6: bool,
    fd: OwnedFd,
    state: UdpState,
}

/// What is no tunnel that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotHandedOver {
    /// The bytes are of another version, or were cut or changed.
    Malformed,
    /// There are more or fewer descriptors than the bytes tell of, or others.
    Descriptors,
}

impl fmt::Display for NotHandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the bytes are of another version, or were cut or changed",
            Self::Descriptors => "the descriptors are not those that the bytes tell of",
        })
    }
}

impl std::error::Error for NotHandedOver {}

/// The first byte: another one for each version.
const FORMAT: u8 = 1;
/// Sockets at most.
const MAX_SOCKETS: usize = 2;

impl HandOver {
    /// Of an interface that pauses.
    pub(crate) fn of(interface: &Interface) -> io::Result<Self> {
        let mut records = Zeroizing::new(Vec::new());
        let state = interface.export(|record| {
            append(&mut records, &record);
            Ok(())
        })?;
        let sockets = interface.sockets()?.into_iter().map(|socket| Handed {
            v6: socket.v6,
            fd: socket.fd,
            state: socket.state,
        });
        Ok(Self {
            records,
            state,
            sockets: sockets.collect(),
        })
    }

    /// Its bytes, which hold keys, and its descriptors, to be sent to another process together (SCM_RIGHTS).
    pub fn into_parts(self) -> (Zeroizing<Vec<u8>>, Vec<OwnedFd>) {
        let InterfaceState {
            listen_port,
            bound_port,
            up,
            mtu,
            ..
        } = self.state;
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.records.len() + 64));
        bytes.extend([FORMAT, u8::from(up)]);
        bytes.extend(listen_port.to_le_bytes());
        bytes.extend(bound_port.to_le_bytes());
        bytes.extend(u32::try_from(mtu).unwrap_or(u32::MAX).to_le_bytes());
        bytes.push(u8::try_from(self.sockets.len()).unwrap_or(u8::MAX));
        for Handed { v6, state, .. } in &self.sockets {
            bytes.push(u8::from(*v6) | u8::from(state.gso) << 1 | u8::from(state.gro) << 2);
            bytes.extend(state.dropped.to_le_bytes());
        }
        bytes.extend(&*self.records);
        let fds = self.sockets.into_iter().map(|socket| socket.fd);
        (bytes, fds.collect())
    }

    /// What another process took [apart](Self::into_parts).
    ///
    /// # Errors
    ///
    /// [`NotHandedOver`]: it is none.
    pub fn from_parts(
        bytes: Zeroizing<Vec<u8>>,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<Self, NotHandedOver> {
        let mut rest = Rest(&bytes);
        let [format, up] = rest.take()?;
        if format != FORMAT || up > 1 {
            return Err(NotHandedOver::Malformed);
        }
        let listen_port = u16::from_le_bytes(rest.take()?);
        let bound_port = u16::from_le_bytes(rest.take()?);
        let mtu = u32::from_le_bytes(rest.take()?) as usize;
        let [count] = rest.take()?;
        let mut fds = fds.into_iter();
        let mut sockets = Vec::new();
        if usize::from(count) > MAX_SOCKETS {
            return Err(NotHandedOver::Malformed);
        }
        for _ in 0..count {
            let [bits] = rest.take()?;
            let dropped = u32::from_le_bytes(rest.take()?);
            if bits > 7 {
                return Err(NotHandedOver::Malformed);
            }
            sockets.push(Handed {
                v6: bits & 1 != 0,
                fd: fds.next().ok_or(NotHandedOver::Descriptors)?,
                state: UdpState {
                    gso: bits & 2 != 0,
                    gro: bits & 4 != 0,
                    dropped,
                    group: 1,
                },
            });
        }
        if fds.next().is_some() {
            return Err(NotHandedOver::Descriptors);
        }
        if crate::config::check_mtu(mtu).is_err() {
            return Err(NotHandedOver::Malformed);
        }
        let state = InterfaceState {
            listen_port,
            bound_port,
            up: up == 1,
            mtu,
            ..InterfaceState::default()
        };
        let mut records = Zeroizing::new(Vec::with_capacity(rest.0.len()));
        records.extend_from_slice(rest.0);
        let handed = Self {
            records,
            state,
            sockets,
        };
        Ok(handed)
    }

    /// What the engine goes on with.
    pub(crate) fn open(self) -> Result<(Device, InterfaceState, Sockets<Udp>), NotHandedOver> {
        let mut import = importer();
        let mut rest = Rest(&self.records);
        while !rest.0.is_empty() {
            let len = u32::from_le_bytes(rest.take()?) as usize;
            let (record, behind) = rest
                .0
                .split_at_checked(len)
                .ok_or(NotHandedOver::Malformed)?;
            import.take(record).map_err(|_| NotHandedOver::Malformed)?;
            rest.0 = behind;
        }
        let device = import
            .finish(Time::default())
            .map_err(|_| NotHandedOver::Malformed)?;
        let mut sockets = Sockets::new(None, None, self.state.bound_port);
        for Handed { v6, fd, state } in self.sockets {
            let socket = Udp::take_over(fd, state).map_err(|_| NotHandedOver::Descriptors)?;
            sockets.add(v6, socket.embedded());
        }
        Ok((device, self.state, sockets))
    }
}

/// Appends a record behind its length. The buffer grows without leaving a copy behind.
fn append(records: &mut Zeroizing<Vec<u8>>, record: &[u8]) {
    let needed = records.len() + 4 + record.len();
    if needed > records.capacity() {
        let mut longer = Zeroizing::new(Vec::with_capacity(2 * needed));
        longer.extend_from_slice(records);
        *records = longer;
    }
    let len = u32::try_from(record.len()).unwrap_or(u32::MAX);
    records.extend(len.to_le_bytes());
    records.extend_from_slice(record);
}

/// Bytes that were not read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], NotHandedOver> {
        let (first, rest) = self.0.split_first_chunk().ok_or(NotHandedOver::Malformed)?;
        self.0 = rest;
        Ok(*first)
    }
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver")
            .field("sockets", &self.sockets.len())
            .finish_non_exhaustive()
    }
}
