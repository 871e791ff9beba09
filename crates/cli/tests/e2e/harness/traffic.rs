//! Traffic whose every byte is checked by the receiver.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::Container;

/// A stream or an accept that stands still for this long has failed.
const STALL: Duration = Duration::from_secs(40);

/// Longest piece of the pattern that [`pattern`] hands out.
const PIECE: usize = 65_521;

/// Occurs often in the traffic of these tests, so that plaintext on a wire is recognised.
pub fn marker() -> &'static [u8] {
    b"-PLAINTEXT-"
}

/// The stream's bytes from `offset` on. The period is a prime, so that data displaced by any size
/// that occurs in networking does not look right.
fn pattern(offset: u64) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut period: Vec<u8> = (0..PIECE)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        for at in (0..PIECE - marker().len()).step_by(211) {
            period[at..at + marker().len()].copy_from_slice(marker());
        }
        period.repeat(2)
    });
    let start = usize::try_from(offset % PIECE as u64).expect("less than the period");
    &bytes[start..start + PIECE]
}

#[track_caller]
fn check(bytes: &[u8], offset: u64, what: &str) {
    let mut offset = offset;
    for piece in bytes.chunks(PIECE) {
        let expected = &pattern(offset)[..piece.len()];
        if piece != expected {
            let at = piece
                .iter()
                .zip(expected)
                .position(|(a, b)| a != b)
                .expect("a difference");
            panic!("{what}: byte {} is wrong", offset + at as u64);
        }
        offset += piece.len() as u64;
    }
}

fn bind(ip: IpAddr) -> TcpListener {
    // An address that was just added may take a moment.
    let start = Instant::now();
    loop {
        match TcpListener::bind(SocketAddr::new(ip, 0)) {
            Ok(listener) => {
                listener.set_nonblocking(true).expect("O_NONBLOCK");
                return listener;
            }
            Err(error) if start.elapsed() > STALL => {
                panic!("listening on {ip}: {error}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn accept(listener: &TcpListener, what: &str) -> TcpStream {
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("blocking");
                stream.set_read_timeout(Some(STALL)).expect("a timeout");
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(
                    start.elapsed() < STALL,
                    "{what}: nobody connected within {STALL:?}"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{what}: accept: {error}"),
        }
    }
}

fn connect(to: SocketAddr, what: &str) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, STALL)
        .unwrap_or_else(|error| panic!("{what}: connecting to {to}: {error}"));
    stream.set_read_timeout(Some(STALL)).expect("a timeout");
    stream.set_write_timeout(Some(STALL)).expect("a timeout");
    stream
}

fn join<T>(handle: JoinHandle<T>) -> T {
    handle
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// `bytes` over one TCP connection; the receiver checks every one and acknowledges the number.
#[track_caller]
pub fn tcp(from: &Container, to: &Container, address: &str, bytes: u64) {
    tcp_many(from, to, address, 1, bytes);
}

/// `flows` connections at once, `bytes` over each.
#[track_caller]
pub fn tcp_many(from: &Container, to: &Container, address: &str, flows: u64, bytes: u64) {
    let ip: IpAddr = address.parse().expect("an address");
    let what = format!("TCP {} → {} ({address})", from.name(), to.name());
    let (tell, port) = mpsc::channel();
    let server = {
        let what = what.clone();
        let host = to.clone();
        to.spawn(move || {
            let listener = bind(ip);
            tell.send(listener.local_addr().expect("an address").port())
                .expect("the test waits");
            let receivers: Vec<_> = (0..flows)
                .map(|_| {
                    let stream = accept(&listener, &what);
                    let what = what.clone();
                    host.spawn(move || receive(stream, &what))
                })
                .collect();
            receivers.into_iter().map(join).collect::<Vec<_>>()
        })
    };
    let port = port
        .recv()
        .unwrap_or_else(|_| panic!("{what}: the server died"));
    let senders: Vec<_> = (0..flows)
        .map(|_| {
            let what = what.clone();
            from.spawn(move || {
                let mut stream = connect(SocketAddr::new(ip, port), &what);
                let mut offset = 0;
                while offset < bytes {
                    let piece = pattern(offset);
                    let n = piece
                        .len()
                        .min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
                    stream.write_all(&piece[..n]).unwrap_or_else(|error| {
                        panic!("{what}: sending stopped after {offset} bytes: {error}")
                    });
                    offset += n as u64;
                }
                stream.shutdown(Shutdown::Write).expect("half-close");
                let mut acknowledged = [0; 8];
                stream
                    .read_exact(&mut acknowledged)
                    .unwrap_or_else(|error| panic!("{what}: no acknowledgement: {error}"));
                u64::from_le_bytes(acknowledged)
            })
        })
        .collect();
    for sender in senders {
        assert_eq!(join(sender), bytes, "{what}: bytes that arrived");
    }
    assert!(join(server).into_iter().all(|n| n == bytes), "{what}");
}

fn receive(mut stream: TcpStream, what: &str) -> u64 {
    let mut buffer = vec![0; 256 * 1024];
    let mut offset = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                check(&buffer[..n], offset, what);
                offset += n as u64;
            }
            Err(error) => panic!("{what}: receiving stopped after {offset} bytes: {error}"),
        }
    }
    stream
        .write_all(&offset.to_le_bytes())
        .expect("the acknowledgement");
    offset
}

/// Datagrams of the given payload sizes, `rounds` times, each echoed and checked by both sides. Up
/// to eight are on their way at once, large ones alone, so that no socket's buffer overflows; none
/// may be lost.
#[track_caller]
pub fn udp(from: &Container, to: &Container, address: &str, sizes: &[usize], rounds: usize) {
    let window = if sizes.iter().any(|size| *size > 9000) {
        1
    } else {
        8
    };
    let ip: IpAddr = address.parse().expect("an address");
    let what = format!("UDP {} → {} ({address})", from.name(), to.name());
    let total = sizes.len() * rounds;
    let (tell, port) = mpsc::channel();
    let server = {
        let what = what.clone();
        to.spawn(move || {
            let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("a UDP socket");
            socket.set_read_timeout(Some(STALL)).expect("a timeout");
            socket.set_write_timeout(Some(STALL)).expect("a timeout");
            tell.send(socket.local_addr().expect("an address").port())
                .expect("the test waits");
            let mut buffer = vec![0; 65_536];
            for _ in 0..total {
                let (n, from) = socket
                    .recv_from(&mut buffer)
                    .unwrap_or_else(|error| panic!("{what}: a datagram is missing: {error}"));
                check(&buffer[4..n], u64::from(number(&buffer)), &what);
                socket.send_to(&buffer[..n], from).expect("an echo");
            }
        })
    };
    let port = port
        .recv()
        .unwrap_or_else(|_| panic!("{what}: the server died"));
    let sizes = sizes.to_vec();
    let client = {
        let what = what.clone();
        from.spawn(move || {
            let any: IpAddr = if ip.is_ipv4() {
                [0; 4].into()
            } else {
                [0; 16].into()
            };
            let socket = UdpSocket::bind(SocketAddr::new(any, 0)).expect("a UDP socket");
            socket.connect(SocketAddr::new(ip, port)).expect("a route");
            socket.set_read_timeout(Some(STALL)).expect("a timeout");
            socket.set_write_timeout(Some(STALL)).expect("a timeout");
            let mut buffer = vec![0; 65_536];
            let mut seen = vec![false; total];
            let mut next = 0;
            for done in 0..total {
                while next < total && next - done < window {
                    let size = sizes[next % sizes.len()];
                    let id = u32::try_from(next).expect("few datagrams");
                    buffer[..4].copy_from_slice(&id.to_le_bytes());
                    buffer[4..size].copy_from_slice(&pattern(u64::from(id))[..size - 4]);
                    socket.send(&buffer[..size]).expect("sending a datagram");
                    next += 1;
                }
                let n = socket.recv(&mut buffer).unwrap_or_else(|error| {
                    let missing: Vec<_> = (0..next).filter(|i| !seen[*i]).collect();
                    panic!("{what}: of {next} sent {missing:?} did not come back: {error}")
                });
                let id = number(&buffer) as usize;
                assert_eq!(
                    n,
                    sizes[id % sizes.len()],
                    "{what}: length of datagram {id}"
                );
                assert!(!seen[id], "{what}: datagram {id} came twice");
                seen[id] = true;
                check(&buffer[4..n], id as u64, &what);
            }
        })
    };
    join(client);
    join(server);
}

fn number(datagram: &[u8]) -> u32 {
    u32::from_le_bytes(datagram[..4].try_into().expect("four bytes"))
}

/// `count` pings, of which none may be lost.
#[track_caller]
pub fn ping(from: &Container, address: &str, count: u32) {
    from.sh(&format!("ping -n -q -c {count} -i 0.02 -W 10 {address}"));
}

/// One ping that must not be answered.
#[track_caller]
pub fn ping_fails(from: &Container, address: &str) {
    let output = from.try_sh(&format!("ping -n -q -c 2 -i 0.2 -W 1 {address}"));
    assert!(
        !output.ok(),
        "{address} answered {}: {}",
        from.name(),
        output.stdout
    );
}

/// A TCP connection that carries checked data at a moderate pace until it is stopped.
pub struct Flow {
    stop: Arc<AtomicBool>,
    pause: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: Option<JoinHandle<u64>>,
    receiver: Option<JoinHandle<()>>,
    what: String,
}

impl Flow {
    #[track_caller]
    pub fn start(from: &Container, to: &Container, address: &str) -> Flow {
        let ip: IpAddr = address.parse().expect("an address");
        let what = format!("flow {} → {} ({address})", from.name(), to.name());
        let stop = Arc::new(AtomicBool::new(false));
        let pause = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let (tell, port) = mpsc::channel();
        let receiver = {
            let (what, received) = (what.clone(), received.clone());
            to.spawn(move || {
                let listener = bind(ip);
                tell.send(listener.local_addr().expect("an address").port())
                    .expect("the test waits");
                let mut stream = accept(&listener, &what);
                let mut buffer = vec![0; 256 * 1024];
                let mut offset = 0;
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(n) => {
                            check(&buffer[..n], offset, &what);
                            offset += n as u64;
                            received.store(offset, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{what}: stopped after {offset} bytes: {error}"),
                    }
                }
            })
        };
        let port = port
            .recv()
            .unwrap_or_else(|_| panic!("{what}: the server died"));
        let sender = {
            let (what, stop, pause) = (what.clone(), stop.clone(), pause.clone());
            from.spawn(move || {
                let mut stream = connect(SocketAddr::new(ip, port), &what);
                let mut offset = 0;
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                    if pause.load(Ordering::Relaxed) {
                        continue;
                    }
                    let piece = pattern(offset);
                    stream.write_all(piece).unwrap_or_else(|error| {
                        panic!("{what}: stopped after {offset} bytes: {error}")
                    });
                    offset += piece.len() as u64;
                }
                stream.shutdown(Shutdown::Write).expect("half-close");
                offset
            })
        };
        Flow {
            stop,
            pause,
            received,
            sender: Some(sender),
            receiver: Some(receiver),
            what,
        }
    }

    /// Sends nothing more for now; returns when all that was sent has arrived.
    pub fn pause(&self) {
        self.pause.store(true, Ordering::Relaxed);
        let mut before = u64::MAX;
        while before != self.bytes() {
            before = self.bytes();
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    pub fn resume(&self) {
        self.pause.store(false, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until `more` bytes have arrived since the call.
    #[track_caller]
    pub fn advances(&self, more: u64) {
        let from = self.bytes();
        super::wait_for(&format!("{} advances", self.what), STALL, || {
            self.bytes() >= from + more
        });
    }

    /// Ends the flow; all that was sent must have arrived.
    #[track_caller]
    pub fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = join(self.sender.take().expect("stopped once"));
        join(self.receiver.take().expect("stopped once"));
        assert_eq!(self.bytes(), sent, "{}: bytes that arrived", self.what);
        sent
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Numbered datagrams at a steady rate, counted at the other end.
pub struct UdpTicker {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    sender: Option<JoinHandle<()>>,
    receiver: Option<JoinHandle<()>>,
}

impl UdpTicker {
    pub fn start(from: &Container, to: &Container, address: &str, interval: Duration) -> UdpTicker {
        let ip: IpAddr = address.parse().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let received = Arc::new(AtomicU64::new(0));
        let (tell, port) = mpsc::channel();
        let receiver = {
            let (stop, received) = (stop.clone(), received.clone());
            to.spawn(move || {
                let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("a UDP socket");
                // What this thread, which may wait for a CPU, has not read yet is not lost.
                set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("root may");
                socket
                    .set_read_timeout(Some(Duration::from_millis(500)))
                    .expect("a timeout");
                tell.send(socket.local_addr().expect("an address").port())
                    .expect("the test waits");
                let mut buffer = vec![0; 65_536];
                let mut seen = std::collections::HashSet::new();
                loop {
                    match socket.recv(&mut buffer) {
                        Ok(n) => {
                            let id = number(&buffer);
                            check(&buffer[4..n], u64::from(id), "UDP ticks");
                            assert!(seen.insert(id), "datagram {id} came twice");
                            received.fetch_add(1, Ordering::Relaxed);
                        }
                        // Half a second of silence after the last one.
                        Err(_) if stop.load(Ordering::Relaxed) => break,
                        Err(_) => {}
                    }
                }
            })
        };
        let port = port.recv().expect("the receiver stands");
        let sender = {
            let (stop, sent) = (stop.clone(), sent.clone());
            from.spawn(move || {
                let any: IpAddr = if ip.is_ipv4() {
                    [0; 4].into()
                } else {
                    [0; 16].into()
                };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0)).expect("a UDP socket");
                socket.set_write_timeout(Some(STALL)).expect("a timeout");
                let mut id = 0_u32;
                let mut buffer = [0; 204];
                while !stop.load(Ordering::Relaxed) {
                    buffer[..4].copy_from_slice(&id.to_le_bytes());
                    buffer[4..].copy_from_slice(&pattern(u64::from(id))[..200]);
                    if socket.send_to(&buffer, SocketAddr::new(ip, port)).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                        id += 1;
                    }
                    std::thread::sleep(interval);
                }
            })
        };
        UdpTicker {
            stop,
            sent,
            received,
            sender: Some(sender),
            receiver: Some(receiver),
        }
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    #[track_caller]
    pub fn advances(&self, more: u64) {
        let from = self.received();
        super::wait_for("datagrams arrive", STALL, || self.received() >= from + more);
    }

    /// Ends it: datagrams sent and received.
    pub fn stop(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        join(self.sender.take().expect("stopped once"));
        join(self.receiver.take().expect("stopped once"));
        (self.sent.load(Ordering::Relaxed), self.received())
    }
}

impl Drop for UdpTicker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A TCP connection to an echo server (`nc -ll -e cat`): sends `bytes` and checks that they come
/// back, which is bulk traffic both ways at once.
pub struct Stream;

impl Stream {
    #[track_caller]
    pub fn echo(from: &Container, to: SocketAddr, bytes: u64) {
        let what = format!("echo {} → {to}", from.name());
        from.within(move || {
            let mut stream = connect(to, &what);
            let mut writer = stream.try_clone().expect("a second handle");
            let sender = std::thread::spawn(move || {
                let mut offset = 0;
                while offset < bytes {
                    let piece = pattern(offset);
                    let n = piece
                        .len()
                        .min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
                    if writer.write_all(&piece[..n]).is_err() {
                        break;
                    }
                    offset += n as u64;
                }
                let _ = writer.shutdown(Shutdown::Write);
            });
            let mut buffer = vec![0; 65_536];
            let mut offset = 0;
            while offset < bytes {
                match stream.read(&mut buffer) {
                    Ok(0) => panic!("{what}: closed after {offset} bytes"),
                    Ok(n) => {
                        check(&buffer[..n], offset, &what);
                        offset += n as u64;
                    }
                    Err(error) => panic!("{what}: stopped after {offset} bytes: {error}"),
                }
            }
            join(sender);
        });
    }
}

/// Whether `needle` occurs in `haystack`.
pub fn within_bytes(needle: &[u8], haystack: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
