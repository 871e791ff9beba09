//! Records as bytes: numbers, addresses, sessions.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_aead::Key;
use arrayvec::ArrayVec;
use zeroize::Zeroizing;

use crate::device::candidates::Candidates;
use crate::limits::REJECT_AFTER_MESSAGES;
use crate::peer::PeerNotes;
use crate::replay::WORDS;
use crate::session::{Session, SessionEnds};
use crate::{ReplayWindow, Time};

/// Records that make no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotImported(pub(super) &'static str);

impl std::fmt::Display for NotImported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "what was handed over makes no device: {}", self.0)
    }
}

impl std::error::Error for NotImported {}

pub(super) type Result<T> = std::result::Result<T, NotImported>;

/// Writes a record. It never grows beyond the room that it began with, so that no copy of a key is
/// left behind.
pub(super) struct RecordWriter(pub(super) Zeroizing<Vec<u8>>);

impl RecordWriter {
    pub(super) fn new(kind: u8, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room);
        bytes.push(kind);
        Self(Zeroizing::new(bytes))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        debug_assert!(self.0.len() + bytes.len() <= self.0.capacity());
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    pub(super) fn bool(&mut self, is_so: bool) {
        self.u8(is_so.into());
    }

    pub(super) fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u32(count(text.len()));
        self.bytes(text.as_bytes());
    }

    pub(super) fn time(&mut self, time: Time) {
        self.u64(time.0);
    }

    pub(super) fn duration(&mut self, duration: Duration) {
        self.u64(duration.as_secs());
        self.u32(duration.subsec_nanos());
    }

    pub(super) fn ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                self.u8(4);
                self.bytes(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.u8(6);
                self.bytes(&ip.octets());
            }
        }
    }

    pub(super) fn address(&mut self, address: SocketAddr) {
        self.ip(address.ip());
        self.u16(address.port());
        let scope = match address {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(address) => address.scope_id(),
        };
        self.u32(scope);
    }

    pub(super) fn addresses(&mut self, addresses: &[SocketAddr]) {
        self.u32(count(addresses.len()));
        for address in addresses {
            self.address(*address);
        }
    }

    pub(super) fn session(&mut self, session: &Session) {
        let SessionEnds {
            local_index,
            remote_index,
            initiator,
            born,
        } = session.ends();
        self.u32(local_index);
        self.u32(remote_index);
        self.bool(initiator);
        self.time(born);
        self.bytes(session.send_key().bytes());
        self.bytes(session.receive_key().bytes());
        self.u64(session.sent());
        self.bool(session.is_confirmed());
        self.bool(session.has_last_minute());
        // In earlier versions: whether its peer moves to another receive queue.
        self.bool(false);
        self.option(session.heard(), Self::time);
        let window = session.window();
        let (greatest, ring) = window.parts();
        self.u64(greatest);
        for word in ring {
            self.u64(*word);
        }
    }

    pub(super) fn noted(&mut self, noted: &PeerNotes) {
        let PeerNotes {
            bytes,
            times,
            armed,
            handshaking,
        } = noted;
        for number in bytes.iter().chain(times) {
            self.u64(*number);
        }
        self.u8(*armed);
        self.bool(*handshaking);
    }
}

/// The rest of a record, to be read.
pub(super) struct RecordReader<'a>(pub(super) &'a [u8]);

impl<'a> RecordReader<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let split = self.0.split_first_chunk();
        let (first, rest) = split.ok_or(NotImported("a record is too short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| *byte)
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NotImported("neither yes nor no")),
        }
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        let len = self.u32()? as usize;
        let (text, rest) = (self.0.split_at_checked(len)).ok_or(NotImported("a name is cut"))?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| NotImported("a name is no text"))
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Result<T> {
        let place = usize::from(self.u8()?);
        (all.get(place).copied()).ok_or(NotImported("a state that is not known"))
    }

    pub(super) fn time(&mut self) -> Result<Time> {
        self.u64().map(Time)
    }

    pub(super) fn duration(&mut self) -> Result<Duration> {
        let (seconds, nanos) = (self.u64()?, self.u32()?);
        match nanos {
            ..1_000_000_000 => Ok(Duration::new(seconds, nanos)),
            _ => Err(NotImported("a second of too many nanoseconds")),
        }
    }

    pub(super) fn ip(&mut self) -> Result<IpAddr> {
        match self.u8()? {
            4 => Ok(IpAddr::from(*self.array::<4>()?)),
            6 => Ok(IpAddr::from(*self.array::<16>()?)),
            _ => Err(NotImported("neither IPv4 nor IPv6")),
        }
    }

    pub(super) fn address(&mut self) -> Result<SocketAddr> {
        let mut address = SocketAddr::new(self.ip()?, self.u16()?);
        let scope = self.u32()?;
        if let SocketAddr::V6(address) = &mut address {
            address.set_scope_id(scope);
        }
        Ok(address)
    }

    pub(super) fn addresses<const N: usize>(&mut self) -> Result<ArrayVec<SocketAddr, N>> {
        let mut addrs = ArrayVec::new();
        for _ in 0..self.u32()? {
            let added = addrs.try_push(self.address()?);
            added.map_err(|_| NotImported("a name has too many addresses"))?;
        }
        Ok(addrs)
    }

    pub(super) fn candidates(&mut self) -> Result<Candidates> {
        Ok(Candidates {
            addrs: self.addresses()?,
            races: self.u32()? as usize,
            message: self
                .option(|record| Ok(ArrayVec::from(*record.array()?)))?
                .unwrap_or_default(),
            waiting: self.addresses()?,
            sent: self.addresses()?,
            due: self.option(Self::time)?,
        })
    }

    pub(super) fn session(&mut self) -> Result<Session> {
        let ends = SessionEnds {
            local_index: self.u32()?,
            remote_index: self.u32()?,
            initiator: self.bool()?,
            born: self.time()?,
        };
        let (send, receive) = (Key::new(self.array()?), Key::new(self.array()?));
        let sent = self.u64()?;
        if sent > REJECT_AFTER_MESSAGES {
            return Err(NotImported("a counter is beyond its limit"));
        }
        let is_confirmed = self.bool()?;
        let has_last_minute = self.bool()?;
        // Whether its peer moved to another receive queue, in earlier versions.
        self.bool()?;
        let heard = self.option(Self::time)?;
        let greatest = self.u64()?;
        let mut ring = [0; WORDS];
        for word in &mut ring {
            *word = self.u64()?;
        }
        let window = ReplayWindow::from_parts(greatest, ring);
        let window = window.ok_or(NotImported("a received counter is beyond its limit"))?;
        let session = Session::new(ends, send, receive);
        Ok(session.in_use(sent, window, is_confirmed, has_last_minute, heard))
    }

    pub(super) fn noted(&mut self) -> Result<PeerNotes> {
        let mut noted = PeerNotes::default();
        for number in noted.bytes.iter_mut().chain(&mut noted.times) {
            *number = self.u64()?;
        }
        noted.armed = self.u8()?;
        noted.handshaking = self.bool()?;
        Ok(noted)
    }
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
