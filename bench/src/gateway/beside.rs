//! What an established peer gets while the gateway is busy with others: pings and a stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adit_testbed::Host;

use crate::sandbox::Failure;
use crate::threads::Threads;

const PORT: u16 = 5304;
const PING_EVERY: Duration = Duration::from_millis(10);
/// How long a thread waits before it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(200);

/// Whether a thread is to go on after this error.
fn is_passing(error: &std::io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    let kind = error.kind();
    matches!(
        kind,
        ConnectionRefused | Interrupted | TimedOut | WouldBlock
    ) || error.raw_os_error() == Some(nix::libc::ENOBUFS)
}

/// A small datagram each 10 ms, which the other host sends back.
pub(super) struct Pings {
    answered: Arc<Mutex<Vec<Instant>>>,
    _threads: Threads<std::io::Result<()>>,
}

impl Pings {
    pub(super) fn start(from: &Host, to: &Host, address: IpAddr) -> Result<Self, Failure> {
        let at = SocketAddr::new(address, PORT);
        let echo = to.run(move || UdpSocket::bind(at))?;
        echo.set_read_timeout(Some(LOOK))?;
        let socket = from.run(|| UdpSocket::bind(("0.0.0.0", 0)))?;
        socket.connect(at)?;
        let answered: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let mut threads = Threads::new();
        threads.start(to, move |stop| {
            let mut buffer = [0; 64];
            while stop.goes_on() {
                match echo.recv_from(&mut buffer) {
                    Ok((len, from)) => drop(echo.send_to(&buffer[..len], from)),
                    Err(e) if is_passing(&e) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        })?;
        let answers = Arc::clone(&answered);
        threads.start(from, move |stop| {
            let (mut next, mut buffer) = (Instant::now(), [0; 64]);
            while stop.goes_on() {
                let now = Instant::now();
                if now >= next {
                    next = now.max(next) + PING_EVERY;
                    let _ = socket.send(&[0; 32]);
                }
                let left = next.saturating_duration_since(Instant::now());
                socket.set_read_timeout(Some(left.max(Duration::from_micros(100))))?;
                match socket.recv(&mut buffer) {
                    Ok(_) => lock(&answers).push(Instant::now()),
                    Err(e) if is_passing(&e) => {}
                    // While the gateway is restarted, there is no route.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            Ok(())
        })?;
        Ok(Self {
            answered,
            _threads: threads,
        })
    }

    /// The longest time without an answer in milliseconds, from then until now.
    pub(super) fn longest_gap(&self, since: Instant) -> f64 {
        longest_gap(&lock(&self.answered), since, Instant::now())
    }
}

fn lock(answers: &Mutex<Vec<Instant>>) -> std::sync::MutexGuard<'_, Vec<Instant>> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn longest_gap(answers: &[Instant], since: Instant, until: Instant) -> f64 {
    let within = answers.iter().filter(|&&at| at > since && at < until);
    let ends = within.copied().chain([until]);
    let (_, longest) = ends.fold((since, Duration::ZERO), |(last, longest), at| {
        (at, longest.max(at - last))
    });
    longest.as_secs_f64() * 1e3
}

/// One TCP stream, as fast as it goes.
pub(super) struct Stream {
    received: Arc<AtomicU64>,
    _threads: Threads<std::io::Result<()>>,
}

/// What a stream had brought at a moment.
#[derive(Clone, Copy)]
pub(super) struct Mark(Instant, u64);

impl Stream {
    pub(super) fn start(from: &Host, to: &Host, address: IpAddr) -> Result<Self, Failure> {
        let at = SocketAddr::new(address, PORT);
        let listener = to.run(move || TcpListener::bind(at))?;
        let mut sender =
            from.run(move || TcpStream::connect_timeout(&at, Duration::from_secs(5)))?;
        sender.set_write_timeout(Some(LOOK))?;
        let (mut receiver, _) = listener.accept()?;
        receiver.set_read_timeout(Some(LOOK))?;
        let received: Arc<AtomicU64> = Arc::default();
        let mut threads = Threads::new();
        let count = Arc::clone(&received);
        threads.start(to, move |stop| {
            let mut buffer = vec![0; 256 << 10];
            while stop.goes_on() {
                match receiver.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(len) => drop(count.fetch_add(len as u64, Relaxed)),
                    Err(e) if is_passing(&e) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        })?;
        threads.start(from, move |stop| {
            let block = vec![0; 128 << 10];
            while stop.goes_on() {
                match sender.write(&block) {
                    Ok(_) => {}
                    Err(e) if is_passing(&e) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        })?;
        Ok(Self {
            received,
            _threads: threads,
        })
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(Instant::now(), self.received.load(Relaxed))
    }

    /// Gb/s since then.
    pub(super) fn gbps(&self, Mark(since, before): Mark) -> f64 {
        let bytes = self.received.load(Relaxed) - before;
        let bytes = adit_testbed::stats::to_f64(usize::try_from(bytes).unwrap_or(0));
        bytes * 8.0 / 1e9 / since.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_before_the_first_and_after_the_last_answer_counts() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let gap = |answers: &[Instant]| longest_gap(answers, at(100), at(200)).round();
        assert_eq!(gap(&[at(40), at(130), at(150), at(180)]), 30.0);
        assert_eq!(gap(&[at(110), at(150), at(160)]), 40.0);
        assert_eq!(gap(&[at(90), at(250)]), 100.0);
    }
}
