//! Names, looked up inside the tunnel.

mod cache;
mod message;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use self::cache::Cache;
use self::message::{Answer, NAME_ERROR, RecordKind};
use super::connection::Connection;
use super::error::NetError;
use super::shared::Shared;
use super::udp::UdpSocket;

/// How long a server may take before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer over UDP.
const MAX_ANSWER: usize = 4096;

/// Looks names up at DNS servers inside the tunnel.
pub(super) struct Resolver {
    shared: Arc<Shared>,
    servers: Vec<SocketAddr>,
    addresses: Vec<IpAddr>,
    mtu: usize,
    cache: Mutex<Cache>,
}

impl Resolver {
    pub(super) fn new(
        shared: Arc<Shared>,
        servers: Vec<SocketAddr>,
        addresses: Vec<IpAddr>,
        mtu: usize,
    ) -> Self {
        Self {
            shared,
            servers,
            addresses,
            mtu,
            cache: Mutex::default(),
        }
    }

    /// The addresses of a name, of the families that this end has, until a time at the latest.
    pub(super) fn look_up(&self, name: &str, until: Instant) -> Result<Vec<IpAddr>, NetError> {
        if !message::is_name(name) {
            return Err(NetError::UnknownName(name.to_owned()));
        }
        if self.servers.is_empty() {
            return Err(NetError::NoDnsServers(name.to_owned()));
        }
        let key = name.trim_end_matches('.').to_ascii_lowercase();
        let lock = || self.cache.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(known) = lock().find(&key, Instant::now()) {
            return Ok(known);
        }
        let (addresses, ttl) = self.ask(&key, until)?;
        lock().add(key, &addresses, ttl, Instant::now());
        Ok(addresses)
    }

    /// Asks one server after the other, until one knows.
    fn ask(&self, name: &str, until: Instant) -> Result<(Vec<IpAddr>, u32), NetError> {
        let timed_out =
            || NetError::TimedOut(format!("no DNS server inside the tunnel (for {name})"));
        // IPv6 first, where both ends have it.
        let has = |v4: bool| self.addresses.iter().any(|own| own.is_ipv4() == v4);
        let kinds = [(false, RecordKind::Aaaa), (true, RecordKind::A)];
        let kinds: Vec<RecordKind> = kinds
            .into_iter()
            .filter_map(|(v4, kind)| has(v4).then_some(kind))
            .collect();
        for server in self.servers.iter().cycle() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out());
            }
            let round = Instant::now() + left.min(PATIENCE);
            let answers = match self.ask_one(*server, name, &kinds, round) {
                Ok(answers) => answers,
                // The next one may know, after a rest.
                Err(NetError::Refused(_)) => {
                    std::thread::sleep(left.min(PATIENCE / 20));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let came = answers.iter().flatten();
            let addresses: Vec<IpAddr> = came.clone().flat_map(|it| it.addresses.clone()).collect();
            if !addresses.is_empty() {
                let ttl = came.map(|it| it.ttl).min().unwrap_or(0);
                return Ok((addresses, ttl));
            }
            let knows = |answer: &Option<Answer>| {
                answer
                    .as_ref()
                    .is_some_and(|it| matches!(it.code, 0 | NAME_ERROR))
            };
            if answers.iter().all(knows) {
                return Err(NetError::UnknownName(name.to_owned()));
            }
        }
        Err(timed_out())
    }

    /// Asks one server for addresses of these kinds.
    fn ask_one(
        &self,
        server: SocketAddr,
        name: &str,
        kinds: &[RecordKind],
        until: Instant,
    ) -> Result<Vec<Option<Answer>>, NetError> {
        let mut random = [0; 4];
        crate::random(&mut random).map_err(|error| NetError::Host(io::Error::other(error)))?;
        let ids = random
            .as_chunks::<2>()
            .0
            .iter()
            .map(|id| u16::from_be_bytes(*id));
        let questions: Vec<Vec<u8>> = kinds
            .iter()
            .zip(ids)
            .map(|(kind, id)| message::question(id, name, *kind))
            .collect();
        let socket = UdpSocket::bind(&self.shared, &self.addresses, self.mtu, 0)?;
        socket.tell_unreachable(true);
        for question in &questions {
            socket.send_to(question, server).map_err(NetError::Host)?;
        }
        let mut answers: Vec<Option<Answer>> = vec![None; questions.len()];
        let mut buffer = [0; MAX_ANSWER];
        while answers.iter().any(Option::is_none) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket
                .set_read_timeout(Some(left))
                .map_err(NetError::Host)?;
            let (len, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(NetError::Refused(server));
                }
                Err(_) => return Err(NetError::Ended),
            };
            for (question, answer) in questions.iter().zip(&mut answers) {
                if from == server
                    && let Some(came) = message::answer(question, &buffer[..len])
                {
                    *answer = Some(came);
                }
            }
        }
        for (question, answer) in questions.iter().zip(&mut answers) {
            if answer.as_ref().is_some_and(|it| it.is_truncated) {
                *answer = self.ask_by_tcp(server, question, until)?;
            }
        }
        Ok(answers)
    }

    /// Asks for what did not fit a datagram (RFC 7766).
    fn ask_by_tcp(
        &self,
        server: SocketAddr,
        question: &[u8],
        until: Instant,
    ) -> Result<Option<Answer>, NetError> {
        let left = || {
            until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1))
        };
        let mut stream = match Connection::open(&self.shared, server, left()) {
            Ok(connection) => connection.into_stream()?,
            Err(error @ (NetError::Ended | NetError::NoMemory)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let mut exchange = || -> io::Result<Vec<u8>> {
            let len = u16::try_from(question.len()).unwrap_or(0);
            stream.write_all(&[&len.to_be_bytes()[..], question].concat())?;
            let mut len = [0; 2];
            stream.set_read_timeout(Some(left()))?;
            stream.read_exact(&mut len)?;
            let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
            let mut read = 0;
            while read < answer.len() && Instant::now() < until {
                stream.set_read_timeout(Some(left()))?;
                match stream.read(&mut answer[read..])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    len => read += len,
                }
            }
            Ok(answer)
        };
        let came = exchange().ok();
        Ok(came.and_then(|came| message::answer(question, &came)))
    }
}

/// Reads an answer to a fixed question, for fuzzers.
pub(super) fn read(message: &[u8]) -> Option<usize> {
    let question = message::question(0x0101, "a.example", RecordKind::A);
    message::answer(&question, message).map(|answer| answer.addresses.len())
}
