//! What programs do that take and send streams. [`stacks`](super::stacks) says what is at which port.

use std::io::{self, Read, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::stacks::{ECHO_PORT, SINK_PORT, SOURCE_PORT, Said};
use crate::sandbox::Failure;

/// What iperf3 writes at once.
const BLOCK: usize = 128 << 10;
/// Between two bytes that are timed.
const INTERVAL: Duration = Duration::from_millis(5);
/// For connections, and for what is on its way at the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The last byte of a stream, which has no other like it. Its end would not do: some proxies end both directions with
/// one.
const LAST: u8 = 1;

/// A TCP connection, of a program's own stack or of the kernel's.
pub(super) trait Stream: Read + Write + Send + 'static {}

impl Stream for adit::net::TcpStream {}

impl Stream for std::net::TcpStream {}

/// What becomes of a stream that was accepted.
type Serve<S> = fn(S) -> io::Result<()>;
/// Carries bytes until then: how many.
type Carry<S> = fn(S, Instant) -> io::Result<u64>;

/// Serves what comes to the three ports, until one of them fails.
pub(super) fn serve<S: Stream, E>(accept: impl Fn(u16) -> Result<S, E> + Sync) {
    let accept = &accept;
    thread::scope(|scope| {
        let works: [(u16, Serve<S>); 3] = [
            (SINK_PORT, take),
            (ECHO_PORT, send_back),
            (SOURCE_PORT, give),
        ];
        for (port, work) in works {
            scope.spawn(move || {
                while let Ok(stream) = accept(port) {
                    thread::spawn(move || work(stream));
                }
            });
        }
    });
}

/// Reads a stream to its last byte, and answers its length.
fn take<S: Stream>(mut stream: S) -> io::Result<()> {
    let (mut buffer, mut count) = (vec![0; BLOCK], 0_u64);
    loop {
        let len = match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => len,
        };
        count += len as u64;
        if buffer[len - 1] == LAST {
            return stream.write_all(&count.to_be_bytes());
        }
    }
}

fn send_back<S: Stream>(mut stream: S) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

/// Writes until nobody reads.
fn give<S: Stream>(mut stream: S) -> io::Result<()> {
    let buffer = vec![0; BLOCK];
    loop {
        stream.write_all(&buffer)?;
    }
}

/// Which way a load goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Direction {
    /// From the one that connects.
    There,
    /// To it.
    Back,
}

/// Carries streams for a time, and times bytes meanwhile.
pub(super) fn run<S: Stream>(
    connect: impl Fn(u16) -> Result<S, Failure>,
    direction: Direction,
    streams: usize,
    duration: Duration,
) -> Result<Said, Failure> {
    let (port, carry): (u16, Carry<S>) = match direction {
        Direction::There => (SINK_PORT, send),
        Direction::Back => (SOURCE_PORT, receive),
    };
    let echo = connect(ECHO_PORT)?;
    let all: Result<Vec<_>, _> = (0..streams).map(|_| connect(port)).collect();
    let all = all?;
    let begun = Instant::now();
    let end = begun + duration;
    let times = thread::spawn(move || round_trips(echo, end));
    let carriers: Vec<_> = all
        .into_iter()
        .map(|stream| thread::spawn(move || carry(stream, end)))
        .collect();
    let mut bytes = 0;
    for carrier in carriers {
        bytes += joined(carrier)?;
    }
    Ok(Said {
        #[expect(clippy::cast_precision_loss, reason = "bytes of seconds")]
        bytes: bytes as f64,
        seconds: begun.elapsed().as_secs_f64(),
        round_trips: joined(times)?,
        set_ups: Vec::new(),
    })
}

/// Says what a load did, and waits to be ended.
pub(super) fn say(said: &Said) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(said)?);
    loop {
        thread::park();
    }
}

fn joined<T>(thread: JoinHandle<io::Result<T>>) -> Result<T, Failure> {
    Ok(thread.join().map_err(|_| "a thread panicked")??)
}

/// Sends until the end. How many bytes arrived.
fn send<S: Stream>(mut stream: S, end: Instant) -> io::Result<u64> {
    let buffer = vec![0; BLOCK];
    while Instant::now() < end {
        stream.write_all(&buffer)?;
    }
    stream.write_all(&[LAST])?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok(u64::from_be_bytes(count))
}

/// Receives until the end. How many bytes came.
fn receive<S: Stream>(mut stream: S, end: Instant) -> io::Result<u64> {
    let (mut buffer, mut count) = (vec![0; BLOCK], 0);
    while Instant::now() < end {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => count += len as u64,
        }
    }
    Ok(count)
}

/// Times single bytes until the end, in microseconds.
fn round_trips<S: Stream>(mut stream: S, end: Instant) -> io::Result<Vec<f64>> {
    let (mut times, mut byte) = (Vec::new(), [0]);
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
        thread::sleep(INTERVAL);
    }
    Ok(times)
}
