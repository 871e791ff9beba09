//! What gets through.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use adit::net::Net;
use adit_proxy::kernel::KernelDevice;
use adit_proxy::stack::{Datagrams, Stack};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{PATIENCE, open, pair, v4, v6, wait_until};

/// More than all buffers on the way hold.
const BYTES: usize = 24 << 20;

/// Bytes that differ everywhere.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()[7]
    };
    (0..len).map(|_| next()).collect()
}

/// Sends back what each connection sends, once that has ended.
fn store_and_send(net: &Net, port: u16) {
    let listener = net.listen_tcp(port).expect("a port");
    std::thread::spawn(move || {
        while let Ok(mut stream) = listener.accept() {
            let mut all = Vec::new();
            if stream.read_to_end(&mut all).is_ok() {
                stream.write_all(&all).expect("it takes all");
            }
        }
    });
}

/// Sends back what each connection sends.
pub(crate) fn echo(net: &Net, port: u16) {
    let listener = net.listen_tcp(port).expect("a port");
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            std::thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                let _ = std::io::copy(&mut from, &mut to);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
        }
    });
}

/// Sends these bytes and reads what comes back.
fn there_and_back<S>(stream: &S, bytes: &[u8], shutdown: impl FnOnce(&S) + Send) -> Vec<u8>
where
    S: Sync,
    for<'a> &'a S: Read + Write,
{
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = stream;
            to.write_all(bytes).expect("it takes all");
            shutdown(stream);
        });
        let mut back = Vec::new();
        let mut from = stream;
        from.read_to_end(&mut back).expect("it ends well");
        back
    })
}

pub(crate) fn tcp(device: KernelDevice) {
    let (stack, net) = pair(device);
    store_and_send(&net, 7);
    for (seed, ip) in [(1, v4(2)), (2, v6(2))] {
        let bytes = pattern(BYTES, seed);
        let to = SocketAddr::new(ip, 7);
        let opened = open(&stack, to, PATIENCE).expect("a connection");
        assert_eq!(opened.peer_addr(), to);
        assert_eq!(opened.local_addr().is_ipv4(), ip.is_ipv4());
        let stream = opened.into_stream().expect("a stream");
        let stream = TcpStream::from(stream.as_fd().try_clone_to_owned().expect("a descriptor"));
        let end = |stream: &TcpStream| stream.shutdown(std::net::Shutdown::Write).expect("open");
        assert!(there_and_back(&stream, &bytes, end) == bytes, "a stream");
        // Joined to a client's socket.
        let (client, theirs) = UnixStream::pair().expect("two sockets");
        let opened = open(&stack, to, PATIENCE).expect("a connection");
        opened.join(theirs.into()).expect("joined");
        let end = |client: &UnixStream| client.shutdown(std::net::Shutdown::Write).expect("open");
        assert!(there_and_back(&client, &bytes, end) == bytes, "joined");
    }
    // What is no stream socket.
    let opened = open(&stack, SocketAddr::new(v4(2), 7), PATIENCE).expect("a connection");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let error = opened.join(socket.into()).expect_err("refused");
    assert!(matches!(error, adit::net::NetError::NoStream(_)), "{error}");
}

pub(crate) fn listen(device: KernelDevice) {
    let (stack, net) = pair(device);
    let listener = stack.listen_tcp(80).expect("a port");
    assert!(listener.try_accept().expect("it listens").is_none());
    let taken = stack.listen_tcp(80).err().expect("taken");
    assert!(
        matches!(taken, adit::net::NetError::PortTaken(80)),
        "{taken}"
    );
    // The tunnel begins at the first end, which alone knows where the other one is.
    stack
        .bind_udp(0)
        .and_then(|socket| {
            let sent = socket.send_to(b"hello", SocketAddr::new(v4(2), 9));
            sent.map_err(adit::net::NetError::Host)
        })
        .expect("sent");
    for (seed, ip) in [(3, v4(1)), (4, v6(1))] {
        let bytes = pattern(BYTES / 4, seed);
        let to = SocketAddr::new(ip, 80);
        let stream = net.connect_tcp(to, PATIENCE).expect("a connection");
        let mut ready = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        poll(&mut ready, None).expect("it is readable");
        let opened = listener.try_accept().expect("it listens");
        let opened = opened.expect("a connection waits");
        assert_eq!(
            (opened.local_addr(), opened.peer_addr()),
            (to, stream.local_addr())
        );
        let (target, theirs) = UnixStream::pair().expect("two sockets");
        opened.join(theirs.into()).expect("joined");
        std::thread::spawn(move || {
            let (mut from, mut to) = (&target, &target);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = target.shutdown(std::net::Shutdown::Write);
        });
        let back = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut to = &stream;
                to.write_all(&bytes).expect("it takes all");
                stream.shutdown(std::net::Shutdown::Write).expect("open");
            });
            let mut back = Vec::new();
            (&stream).read_to_end(&mut back).expect("it ends well");
            back
        });
        assert!(back == bytes);
    }
}

/// Waits for a datagram.
fn receive(socket: &dyn Datagrams, buffer: &mut [u8]) -> (usize, SocketAddr) {
    let mut ready = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    poll(&mut ready, None).expect("it is readable");
    socket.recv_from(buffer).expect("a datagram")
}

pub(crate) fn udp(device: KernelDevice) {
    let (stack, net) = pair(device);
    let theirs = net.bind_udp(9).expect("a port");
    let ours = stack.bind_udp(0).expect("a port");
    assert_ne!(ours.port(), 0);
    let mut buffer = [0; 2048];
    let error = ours.recv_from(&mut buffer).expect_err("nothing waits");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    for (seed, ip, own) in [(5, v4(2), v4(1)), (6, v6(2), v6(1))] {
        for len in [0, 1, 1300] {
            let bytes = pattern(len, seed);
            ours.send_to(&bytes, SocketAddr::new(ip, 9)).expect("sent");
            let (len, from) = theirs.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(from, SocketAddr::new(own, ours.port()));
            assert_eq!(buffer[..len], bytes);
            theirs.send_to(&bytes, from).expect("sent");
            let (len, from) = receive(&*ours, &mut buffer);
            assert_eq!((&buffer[..len], from), (&bytes[..], SocketAddr::new(ip, 9)));
        }
    }
    for ip in [v4(2), v6(2)] {
        stack.ping(ip, PATIENCE).expect("an answer");
    }
    let error = stack
        .ping(v4(99), Duration::from_millis(300))
        .expect_err("nobody is there");
    assert!(matches!(error, adit::net::NetError::TimedOut(_)), "{error}");
    let error = stack.bind_udp(ours.port()).err().expect("taken");
    assert!(
        matches!(error, adit::net::NetError::PortTaken(_)),
        "{error}"
    );
}

/// What a server knows.
const ZONE: [(&[u8], [u8; 4]); 1] = [(b"\x04host\x07example\0", [10, 0, 0, 7])];

/// The answer to a question: every name has an address, or there is no such name.
fn answer(question: &[u8]) -> Vec<u8> {
    let mut answer = question.to_vec();
    answer[2] = 0x81;
    let known = ZONE
        .iter()
        .find(|(name, _)| question[12..].starts_with(name));
    let Some((name, address)) = known else {
        answer[3] = 3;
        return answer;
    };
    if question[12 + name.len()..] == [0, 1, 0, 1] {
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4]);
        answer.extend(address);
    }
    answer
}

pub(crate) fn names(device: KernelDevice) {
    let (stack, net) = pair(device);
    // Nothing answers: it is refused, and asked again until the time has passed.
    let error = stack
        .look_up("host.example", Duration::from_millis(300))
        .expect_err("no server");
    assert!(matches!(error, adit::net::NetError::TimedOut(_)), "{error}");
    let asked = Arc::new(AtomicUsize::new(0));
    let socket = net.bind_udp(53).expect("a port");
    let listener = net.listen_tcp(53).expect("a port");
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            count.fetch_add(1, Ordering::Relaxed);
            let mut answer = answer(&question[..len]);
            // It does not fit.
            answer[2] |= 2;
            let _ = socket.send_to(&answer, from);
        }
    });
    std::thread::spawn(move || {
        while let Ok(mut stream) = listener.accept() {
            let mut len = [0; 2];
            stream.read_exact(&mut len).expect("a length");
            let mut question = vec![0; usize::from(u16::from_be_bytes(len))];
            stream.read_exact(&mut question).expect("a question");
            let answer = answer(&question);
            let len = u16::try_from(answer.len()).expect("short").to_be_bytes();
            let _ = stream.write_all(&[&len[..], &answer].concat());
        }
    });
    for name in ["host.example", "HOST.example.", "host.example"] {
        let found = stack.look_up(name, PATIENCE).expect("addresses");
        assert_eq!(found, [v4(7)]);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2, "one for each family");
    let error = stack.look_up("other.example", PATIENCE).expect_err("none");
    assert!(
        matches!(error, adit::net::NetError::UnknownName(_)),
        "{error}"
    );
    wait_until("it was asked", || asked.load(Ordering::Relaxed) == 4);
}
