//! The other end of the UAPI socket, for `adit show`, `up` and `down`.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use adit_proto::config::{Cidr, DeviceChange, DeviceStatus, PeerStatus, PublicKey};
use zeroize::{Zeroize, Zeroizing};

use super::{DIR, MAX_LINE, format_set, parse};
use crate::keys;

/// How long the other side may take over one read or write.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// No socket, nobody behind it, no right to use it, or no answer in time.
    Io(io::Error),
    /// The daemon refused with this errno (positive).
    Refused(i32),
    /// The daemon answered what the protocol does not allow.
    Protocol(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Refused(errno) => {
                write!(f, "refused: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::Protocol(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The interfaces that have a UAPI socket in `dir`, sorted. Nobody need be behind it.
pub fn interfaces(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".sock")?
                    .to_owned(),
            )
        })
        .filter(|name| crate::config::check_name(name).is_ok())
        .collect();
    names.sort();
    names
}

/// A connection to the daemon of one interface, whichever implementation it is.
#[derive(Debug)]
pub struct Client(BufReader<UnixStream>);

impl Client {
    /// Connects to `/var/run/wireguard/NAME.sock`.
    pub fn connect(name: &str) -> io::Result<Self> {
        Self::connect_in(Path::new(DIR), name)
    }

    /// Connects to `dir/NAME.sock`.
    pub fn connect_in(dir: &Path, name: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(dir.join(format!("{name}.sock")))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The whole state. Keys that this version does not know are skipped.
    pub fn get(&mut self) -> Result<DeviceStatus, ClientError> {
        self.0.get_mut().write_all(b"get=1\n\n")?;
        let mut status = DeviceStatus::default();
        self.answer(|key, value| status_line(&mut status, key, value))?;
        status.public_key = status.private_key.as_ref().map(keys::public);
        Ok(status)
    }

    /// One transaction.
    pub fn set(&mut self, change: &DeviceChange) -> Result<(), ClientError> {
        let request = format_set(change);
        let written = self.0.get_mut().write_all(&request);
        // A daemon that stops reading may have said why.
        match (self.answer(|_, _| Some(())), written) {
            (Err(ClientError::Io(_)), Err(error)) => Err(error.into()),
            (answer, _) => answer,
        }
    }

    fn answer(
        &mut self,
        mut take: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<(), ClientError> {
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_LINE));
        let mut errno = None;
        loop {
            line.zeroize();
            read_line(&mut self.0, &mut line)?;
            let text = std::str::from_utf8(&line).ok();
            let text = text.ok_or_else(|| ClientError::Protocol("not UTF-8".into()))?;
            if text.is_empty() {
                return match errno {
                    Some(0) => Ok(()),
                    Some(errno) => Err(ClientError::Refused(errno)),
                    None => Err(ClientError::Protocol("no errno".into())),
                };
            }
            let Some((key, value)) = text.split_once('=') else {
                return Err(ClientError::Protocol("a line without '='".into()));
            };
            if key == "errno" {
                // wireguard-go's are negative.
                errno = value.parse::<i32>().ok().map(i32::saturating_abs);
            } else {
                take(key, value).ok_or_else(|| ClientError::Protocol(format!("bad {key}")))?;
            }
        }
    }
}

/// A line without its end, within the capacity that `line` has.
fn read_line(from: &mut BufReader<UnixStream>, line: &mut Vec<u8>) -> Result<(), ClientError> {
    loop {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let piece = &buffer[..end.unwrap_or(buffer.len())];
        if line.len() + piece.len() > MAX_LINE {
            return Err(ClientError::Protocol("a line is too long".into()));
        }
        line.extend_from_slice(piece);
        let taken = piece.len() + usize::from(end.is_some());
        from.consume(taken);
        if end.is_some() {
            return Ok(());
        }
    }
}

fn status_line(status: &mut DeviceStatus, key: &str, value: &str) -> Option<()> {
    if key == "public_key" {
        status.peers.push(PeerStatus {
            public_key: PublicKey(keys::from_hex(value.as_bytes())?.0),
            preshared_key: None,
            endpoint: None,
            last_handshake: None,
            rx_bytes: 0,
            tx_bytes: 0,
            persistent_keepalive: 0,
            allowed_ips: Vec::new(),
        });
        return Some(());
    }
    let Some(peer) = status.peers.last_mut() else {
        match key {
            "private_key" => status.private_key = Some(keys::from_hex(value.as_bytes())?),
            "listen_port" => status.listen_port = value.parse().ok()?,
            "fwmark" => status.fwmark = value.parse().ok()?,
            _ => {}
        }
        return Some(());
    };
    let handshake = peer.last_handshake.unwrap_or_default();
    let handshake = match key {
        "preshared_key" => {
            peer.preshared_key = keys::from_hex(value.as_bytes()).filter(|key| !key.is_zero());
            return Some(());
        }
        "endpoint" => return parse::endpoint(value).map(|addr| peer.endpoint = Some(addr)),
        "rx_bytes" => return value.parse().ok().map(|n| peer.rx_bytes = n),
        "tx_bytes" => return value.parse().ok().map(|n| peer.tx_bytes = n),
        "persistent_keepalive_interval" => {
            return value.parse().ok().map(|n| peer.persistent_keepalive = n);
        }
        "allowed_ip" => {
            let (addr, len) = value.split_once('/')?;
            let block = Cidr::new(addr.parse().ok()?, len.parse().ok()?)?;
            peer.allowed_ips.push(block);
            return Some(());
        }
        "last_handshake_time_sec" => Duration::new(value.parse().ok()?, handshake.subsec_nanos()),
        "last_handshake_time_nsec" => {
            let nsec = value.parse().ok().filter(|&nsec| nsec < 1_000_000_000)?;
            Duration::new(handshake.as_secs(), nsec)
        }
        _ => return Some(()),
    };
    peer.last_handshake = Some(handshake).filter(|at| !at.is_zero());
    Some(())
}
