//! Names, looked up inside the tunnel: by any stack, which has a [`DnsTransport`].

mod cache;
mod inside;
mod message;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use self::cache::Cache;
use self::message::{Answer, NAME_ERROR, RecordKind};
use super::error::NetError;

pub(super) use self::inside::Inside;

/// How long a server may take before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long servers are left alone after all were asked, the first time; then twice as long, each time.
const REST: Duration = Duration::from_millis(100);
/// How often servers that all fail are asked.
const ROUNDS: u32 = 3;
/// The longest answer over UDP.
pub const MAX_ANSWER: usize = 4096;

/// How messages get to DNS servers and back.
pub trait DnsTransport {
    /// Sends datagrams to a server, and calls `came` with each that comes from there, until that returns true
    /// or the time has passed.
    ///
    /// # Errors
    ///
    /// [`NetError::Refused`] if ICMP says that nothing is there, and what makes asking on futile.
    fn by_udp(
        &self,
        server: SocketAddr,
        questions: &[Vec<u8>],
        until: Instant,
        came: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), NetError>;

    /// Sends a message by TCP, as [`exchange`] does, and receives one; `None` if none comes.
    ///
    /// # Errors
    ///
    /// What makes asking on futile.
    fn by_tcp(
        &self,
        server: SocketAddr,
        question: &[u8],
        until: Instant,
    ) -> Result<Option<Vec<u8>>, NetError>;
}

/// Looks names up at DNS servers inside the tunnel.
pub struct Resolver<T> {
    transport: T,
    servers: Vec<SocketAddr>,
    /// What to ask for: what this end has addresses of.
    kinds: Vec<RecordKind>,
    cache: Mutex<Cache>,
}

impl<T: DnsTransport> Resolver<T> {
    /// Of an end with these addresses.
    pub fn new(transport: T, servers: Vec<SocketAddr>, addresses: &[IpAddr]) -> Self {
        // IPv6 first, where both ends have it.
        let has = |v4: bool| addresses.iter().any(|own| own.is_ipv4() == v4);
        let kinds = [(false, RecordKind::Aaaa), (true, RecordKind::A)].into_iter();
        Self {
            transport,
            servers,
            kinds: kinds
                .filter(|(v4, _)| has(*v4))
                .map(|(_, kind)| kind)
                .collect(),
            cache: Mutex::default(),
        }
    }

    /// The addresses of a name, of the families that this end has, until a time at the latest.
    ///
    /// # Errors
    ///
    /// Those of [`Net::look_up`](super::Net::look_up).
    pub fn look_up(&self, name: &str, until: Instant) -> Result<Vec<IpAddr>, NetError> {
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

    /// Asks one server after the other, until one knows, or all fail some times.
    fn ask(&self, name: &str, until: Instant) -> Result<(Vec<IpAddr>, u32), NetError> {
        let timed_out =
            || NetError::TimedOut(format!("no DNS server inside the tunnel (for {name})"));
        let unknown = || NetError::UnknownName(name.to_owned());
        let (mut failures, mut rest) = (0, REST);
        loop {
            let mut all_fail = true;
            for server in &self.servers {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(timed_out());
                }
                let answers = match self.ask_one(*server, name, Instant::now() + left.min(PATIENCE))
                {
                    Ok(answers) => answers,
                    // The next one may know, or this one when it runs again.
                    Err(NetError::Refused(_)) => vec![None],
                    Err(error) => return Err(error),
                };
                let came = answers.iter().flatten();
                let addresses = came.clone().flat_map(|it| it.addresses.clone());
                let addresses: Vec<IpAddr> = addresses.collect();
                if !addresses.is_empty() {
                    let ttl = came.map(|it| it.ttl).min().unwrap_or(0);
                    return Ok((addresses, ttl));
                }
                let all_came = answers.iter().all(Option::is_some);
                if all_came && came.clone().all(|it| matches!(it.code, 0 | NAME_ERROR)) {
                    return Err(unknown());
                }
                all_fail &= all_came;
            }
            failures += u32::from(all_fail);
            if failures == ROUNDS {
                return Err(unknown());
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(rest));
            rest = (2 * rest).min(PATIENCE);
        }
    }

    /// Asks one server for addresses of these kinds.
    fn ask_one(
        &self,
        server: SocketAddr,
        name: &str,
        until: Instant,
    ) -> Result<Vec<Option<Answer>>, NetError> {
        let mut random = [0; 4];
        crate::random(&mut random).map_err(|error| NetError::Host(io::Error::other(error)))?;
        let ids = random
            .as_chunks::<2>()
            .0
            .iter()
            .map(|id| u16::from_be_bytes(*id));
        let questions: Vec<Vec<u8>> = self
            .kinds
            .iter()
            .zip(ids)
            .map(|(kind, id)| message::question(id, name, *kind))
            .collect();
        let mut answers: Vec<Option<Answer>> = vec![None; questions.len()];
        let mut came = |message: &[u8]| {
            for (question, answer) in questions.iter().zip(&mut answers) {
                if let Some(came) = message::answer(question, message) {
                    *answer = Some(came);
                }
            }
            answers.iter().all(Option::is_some)
        };
        self.transport
            .by_udp(server, &questions, until, &mut came)?;
        for (question, answer) in questions.iter().zip(&mut answers) {
            if answer.as_ref().is_some_and(|it| it.is_truncated) {
                let came = self.transport.by_tcp(server, question, until)?;
                *answer = came.and_then(|came| message::answer(question, &came));
            }
        }
        Ok(answers)
    }
}

/// Asks over a stream for what did not fit a datagram (RFC 7766).
///
/// # Errors
///
/// Those of the stream, also after this time.
pub fn exchange<S: Read + Write>(
    stream: &mut S,
    question: &[u8],
    until: Instant,
    set_read_timeout: impl Fn(&S, Option<Duration>) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let len = u16::try_from(question.len()).unwrap_or(0);
    stream.write_all(&[&len.to_be_bytes()[..], question].concat())?;
    let mut len = [0; 2];
    set_read_timeout(stream, Some(left(until)))?;
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    let mut read = 0;
    while read < answer.len() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_read_timeout(stream, Some(left(until)))?;
        match stream.read(&mut answer[read..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => read += len,
        }
    }
    Ok(answer)
}

/// How long until then; never zero, which would be for ever.
pub fn left(until: Instant) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

/// Reads an answer to a fixed question, for fuzzers.
pub(super) fn read(message: &[u8]) -> Option<usize> {
    let question = message::question(0x0101, "a.example", RecordKind::A);
    message::answer(&question, message).map(|answer| answer.addresses.len())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Servers that fail at once, and how often they were asked.
    struct Failing(Cell<usize>);

    impl DnsTransport for Failing {
        fn by_udp(
            &self,
            _server: SocketAddr,
            questions: &[Vec<u8>],
            _until: Instant,
            came: &mut dyn FnMut(&[u8]) -> bool,
        ) -> Result<(), NetError> {
            self.0.set(self.0.get() + 1);
            for question in questions {
                let mut answer = question.clone();
                // An answer, with SERVFAIL.
                (answer[2], answer[3]) = (0x81, 2);
                came(&answer);
            }
            Ok(())
        }

        fn by_tcp(
            &self,
            _server: SocketAddr,
            _question: &[u8],
            _until: Instant,
        ) -> Result<Option<Vec<u8>>, NetError> {
            Ok(None)
        }
    }

    #[test]
    fn servers_that_fail_are_asked_a_few_times_and_not_at_once() {
        let servers = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 53)));
        let transport = Failing(Cell::default());
        let resolver = Resolver::new(transport, servers.to_vec(), &[IpAddr::from([10, 0, 0, 9])]);
        let begun = Instant::now();
        let found = resolver.look_up("a.example", begun + Duration::from_secs(3600));
        assert!(matches!(found, Err(NetError::UnknownName(_))), "{found:?}");
        assert_eq!(resolver.transport.0.get(), 2 * 3);
        assert!(begun.elapsed() >= 3 * REST);
        // For no longer than it may.
        let until = Instant::now() + REST / 2;
        let found = resolver.look_up("a.example", until);
        assert!(matches!(found, Err(NetError::TimedOut(_))), "{found:?}");
        // A slow host has asked fewer before the time has passed.
        let asked = resolver.transport.0.get();
        assert!((6..=8).contains(&asked), "{asked}");
    }

    /// A stream that has this to read, and takes what is written.
    struct Stream(&'static [u8]);

    impl Read for Stream {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // Bit by bit.
            let len = buffer.len().min(2);
            self.0.read(&mut buffer[..len])
        }
    }

    impl Write for Stream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_is_not_whole_in_time_is_none() {
        let ask = |until| exchange(&mut Stream(&[0, 4, 1, 2, 3, 4]), &[], until, |_, _| Ok(()));
        let late = ask(Instant::now()).map_err(|error| error.kind());
        assert_eq!(late, Err(io::ErrorKind::TimedOut));
        let whole = ask(Instant::now() + Duration::from_secs(60)).expect("an answer");
        assert_eq!(whole, [1, 2, 3, 4]);
    }
}
