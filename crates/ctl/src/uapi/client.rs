//! The other end of the UAPI socket, for `adit show`, `up` and `down`.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_proto::config::{Cidr, DeviceChange, DeviceStatus, PeerStatus, PublicKey, Secret};
use adit_proto::{Allowance, LastSeen, Tai64N};
use zeroize::Zeroizing;

use super::{CalledPeers, DIR, MAX_CALLED, MAX_LINE, MAX_NAMES, format_set};
use crate::keys;
use crate::names::HostPort;
use crate::socket::{self, MAX_ANSWER, TO_ANSWER};
use crate::text::number;
use crate::zeroized::Zeroized;

/// How long the other side may take over one read or write of what it is asked.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The same of a transaction: many peers take their time.
const PATIENCE_TO_SET: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// There is no socket, no process behind it, no right to use it, or no answer in time.
    Io(io::Error),
    /// The daemon refused with this errno (positive).
    Refused(i32),
    /// The daemon refused and said why.
    Explained(String),
    /// The daemon answered what the protocol does not allow.
    Protocol(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_) if self.is_silence() => {
                f.write_str(
                    "no answer: its process is stopped or hangs (`pgrep -af adit` finds it, `kill -CONT PID` has it go on)",
                )
            }
            Self::Io(error) => error.fmt(f),
            Self::Refused(errno) => {
                write!(f, "refused: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::Explained(why) => f.write_str(why),
            Self::Protocol(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl ClientError {
    /// Whether no process serves the interface.
    pub fn is_unserved(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Io(error) if matches!(error.kind(), NotFound | ConnectionRefused))
    }

    /// Whether a process is there and says nothing.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The interfaces that have a UAPI socket in `dir`, in the order in which `wg` lists them: that of the
/// directory. A socket may have no process behind it.
pub fn interfaces(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".sock")?
                    .to_owned(),
            )
        })
        .filter(|name| crate::names::check_name(name).is_ok())
        .collect()
}

/// A connection to the daemon of one interface, whichever implementation it is.
pub struct UapiClient {
    stream: UnixStream,
    /// Read, and not looked at yet.
    ahead: Zeroized,
    /// For a whole answer.
    pub(super) patience: Duration,
}

impl UapiClient {
    /// Connects to `/var/run/wireguard/NAME.sock`.
    ///
    /// # Errors
    ///
    /// No process listens there, or this user may not connect.
    pub fn connect(name: &str) -> io::Result<Self> {
        Self::connect_in(Path::new(DIR), name)
    }

    /// Connects to `dir/NAME.sock`.
    ///
    /// # Errors
    /// As of [`UapiClient::connect`].
    pub fn connect_in(dir: &Path, name: &str) -> io::Result<Self> {
        let stream = socket::connect(&dir.join(format!("{name}.sock")), PATIENCE)?;
        Ok(Self::over(stream))
    }

    /// Over a connection that is there, to any daemon.
    pub fn over(stream: UnixStream) -> Self {
        let ahead = Zeroized::default();
        Self {
            stream,
            ahead,
            patience: TO_ANSWER,
        }
    }

    /// The whole state. Keys that this version does not know are skipped.
    ///
    /// # Errors
    /// See [`ClientError`]: each read may take [`PATIENCE`].
    pub fn get(&mut self) -> Result<DeviceStatus, ClientError> {
        self.stream.write_all(b"get=1\n\n")?;
        let mut status = DeviceStatus::default();
        self.answer(|key, value| status_line(&mut status, key, value))?;
        status.public_key = status.private_key.as_ref().map(Secret::public_key);
        Ok(status)
    }

    /// One transaction, which the daemon applies whole or not at all.
    ///
    /// # Errors
    /// See [`ClientError`]: each read and write may take 30 s, because many peers take their time.
    pub fn set(&mut self, change: &DeviceChange) -> Result<(), ClientError> {
        let request = format_set(change);
        self.stream.set_read_timeout(Some(PATIENCE_TO_SET))?;
        self.stream.set_write_timeout(Some(PATIENCE_TO_SET))?;
        let written = self.stream.write_all(&request);
        // A daemon that stops reading may have said why.
        match (self.answer(|_, _| Some(())), written) {
            (Err(ClientError::Io(_)), Err(error)) => Err(error.into()),
            (answer, _) => answer,
        }
    }

    /// For a watchdog: whether all threads of the interface run. Only Adit can tell.
    ///
    /// # Errors
    /// See [`ClientError`]: the threads are stopped or hang, or the process is gone.
    pub fn alive(&mut self) -> Result<(), ClientError> {
        self.stream.write_all(b"alive=1\n\n")?;
        self.answer(|_, _| Some(()))
    }

    /// Says that this process is about to delete the interface, for the log. Only Adit takes it.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn say_down(&mut self) -> Result<(), ClientError> {
        self.stream.write_all(b"down=1\n\n")?;
        self.answer(|_, _| Some(()))
    }

    /// Has the process serve one more interface. Only Adit can.
    ///
    /// # Errors
    /// See [`ClientError`]: the answer may take 30 s. Another implementation closes the connection
    /// (`UnexpectedEof`) or refuses.
    pub fn add(&mut self, name: &str) -> Result<(), ClientError> {
        self.stream.set_read_timeout(Some(PATIENCE_TO_SET))?;
        write!(self.stream, "add=1\ninterface={name}\n\n")?;
        self.explained()
    }

    /// Has the process use so many threads at most, by the policy of this name. Only Adit can.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn set_threads(
        &mut self,
        shards: Option<u16>,
        policy: Option<&str>,
    ) -> Result<(), ClientError> {
        let mut request = String::from("threads=1\n");
        if let Some(shards) = shards {
            request += &format!("shards={shards}\n");
        }
        if let Some(policy) = policy {
            request += &format!("policy={policy}\n");
        }
        request.push('\n');
        self.stream.write_all(request.as_bytes())?;
        self.explained()
    }

    /// An answer that may have a message.
    fn explained(&mut self) -> Result<(), ClientError> {
        let mut message = None;
        let answer = self.answer(|key, value| {
            if key == "message" {
                message = Some(value.to_owned());
            }
            Some(())
        });
        match (answer, message) {
            (Err(ClientError::Refused(_)), Some(message)) => Err(ClientError::Explained(message)),
            (answer, _) => answer,
        }
    }

    /// Gives peers names; with `replace`, no other peer has one. Only Adit keeps them.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn name_peers<'a>(
        &mut self,
        names: impl Iterator<Item = (PublicKey, &'a str)>,
        replace: bool,
    ) -> Result<(), ClientError> {
        let mut request = String::from("names=1\n");
        if !replace {
            request += "replace=false\n";
        }
        for (key, name) in names {
            let key = keys::to_hex(&key.0);
            request += &format!("public_key={}\nname={name}\n", *key);
        }
        request.push('\n');
        self.stream.write_all(request.as_bytes())?;
        self.answer(|_, _| Some(()))
    }

    /// Says what peers may do; with `replace`, all others may do everything. Only Adit heeds it.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn allow_peers(
        &mut self,
        given: &[(PublicKey, Allowance, bool)],
        replace: bool,
    ) -> Result<(), ClientError> {
        let mut request = String::from("allow=1\n");
        if !replace {
            request += "replace=false\n";
        }
        for (key, allowance, anew) in given {
            request += &format!("public_key={}\n", *keys::to_hex(&key.0));
            let expires = allowance.expires.map(|at| at.as_secs());
            for (name, value) in [
                ("to_peer", allowance.to_peer),
                ("from_peer", allowance.from_peer),
                ("quota", allowance.quota),
                ("expires", expires),
            ] {
                if let Some(value) = value {
                    request += &format!("{name}={value}\n");
                }
            }
            if *anew {
                request += "anew=true\n";
            }
        }
        request.push('\n');
        self.stream.write_all(request.as_bytes())?;
        self.answer(|_, _| Some(()))
    }

    /// Begins handshakes with peers that another host had until now, from this address: [`MAX_CALLED`] of them at most. Only Adit does.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn call_peers(
        &mut self,
        peers: &[(PublicKey, LastSeen)],
        from: Option<IpAddr>,
    ) -> Result<CalledPeers, ClientError> {
        let mut request = String::from("call=1\n");
        if let Some(from) = from {
            request += &format!("from={from}\n");
        }
        for (key, last) in peers.iter().take(MAX_CALLED) {
            request += &format!("public_key={}\n", *keys::to_hex(&key.0));
            if let Some(at) = last.at {
                request += &format!("endpoint={at}\n");
            }
            for (name, timestamp) in [("sent", last.sent), ("received", last.received)] {
                if timestamp != Tai64N::default() {
                    request += &format!("{name}={timestamp}\n");
                }
            }
        }
        request.push('\n');
        self.stream.write_all(request.as_bytes())?;
        let mut told = CalledPeers::default();
        self.answer(|key, value| {
            let count = match key {
                "called" => &mut told.called,
                "here" => &mut told.here,
                "nowhere" => &mut told.nowhere,
                "unknown" => &mut told.unknown,
                _ => return Some(()),
            };
            *count = number(value)?;
            Some(())
        })?;
        Ok(told)
    }

    /// Says which peers' endpoints are names that are to be looked up again; with `replace`, no
    /// other peer's is. Only Adit looks them up.
    ///
    /// # Errors
    /// As of [`UapiClient::add`].
    pub fn name_endpoints<'a>(
        &mut self,
        named: impl Iterator<Item = (PublicKey, &'a HostPort)>,
        replace: bool,
    ) -> Result<(), ClientError> {
        let mut request = String::from("endpoints=1\n");
        if !replace {
            request += "replace=false\n";
        }
        for (key, endpoint) in named.take(MAX_NAMES) {
            let key = keys::to_hex(&key.0);
            request += &format!("public_key={}\nendpoint={endpoint}\n", *key);
        }
        request.push('\n');
        self.stream.write_all(request.as_bytes())?;
        self.answer(|_, _| Some(()))
    }

    fn answer(
        &mut self,
        mut take: impl FnMut(&str, &str) -> Option<()>,
    ) -> Result<(), ClientError> {
        let mut errno = None;
        let (until, mut left) = (Instant::now() + self.patience, MAX_ANSWER);
        loop {
            let line = self.line(until)?;
            left = (left.checked_sub(line.len() as u64 + 1))
                .ok_or_else(|| ClientError::Protocol("it does not end".into()))?;
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

    /// The next line, without its end. The process may never come to the end of its answer.
    fn line(&mut self, until: Instant) -> Result<Zeroizing<Vec<u8>>, ClientError> {
        let mut searched = 0;
        loop {
            let found = self.ahead[searched..]
                .iter()
                .position(|&byte| byte == b'\n');
            if let Some(at) = found {
                let line = Zeroizing::new(self.ahead[..searched + at].to_vec());
                self.ahead.consume(searched + at + 1);
                return Ok(line);
            }
            searched = self.ahead.len();
            if searched > MAX_LINE {
                return Err(ClientError::Protocol("a line is too long".into()));
            }
            if Instant::now() > until {
                return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
            }
            let mut buffer = Zeroizing::new([0; MAX_LINE]);
            match self.stream.read(buffer.as_mut_slice()) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.ahead.extend(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn status_line(status: &mut DeviceStatus, key: &str, value: &str) -> Option<()> {
    if key == "public_key" {
        status.peers.push(PeerStatus::new(PublicKey(
            *keys::from_hex(value.as_bytes())?.bytes(),
        )));
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
        "endpoint" => return crate::names::endpoint(value).map(|addr| peer.endpoint = Some(addr)),
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
