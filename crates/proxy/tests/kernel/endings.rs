//! How connections do not begin, and how they end.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use adit::net::NetError;
use adit::{Packet, Tunnel};
use adit_proxy::kernel::{InnerNetwork, KernelDevice, KernelOptions, KernelStack, SocketNamespace};
use adit_proxy::stack::Stack;
use rustix::process::{Pid, Signal, kill_process};

use crate::carries::echo;
use crate::{CHILD, PATIENCE, config, endpoint, kernel, open, pair, program, v4, v6, wait_until};

/// Too short for what never comes.
const SHORT: Duration = Duration::from_millis(300);

fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded")).to_be_bytes()
}

/// What a router says that cannot deliver this packet: that its host is unreachable.
fn unreachable(packet: &[u8]) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&packet[..28]);
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum);
    let len = u8::try_from(20 + message.len()).expect("short");
    let mut header = vec![
        0x45, 0, 0, len, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1,
    ];
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum);
    [header, message].concat()
}

pub(crate) fn told_apart(device: KernelDevice) {
    let (stack, net) = pair(device);
    for ip in [v4(2), v6(2)] {
        let to = SocketAddr::new(ip, 81);
        let error = open(&stack, to, PATIENCE).err().expect("nobody listens");
        assert!(
            matches!(error, NetError::Refused(at) if at == to),
            "{error}"
        );
    }
    let nobody = SocketAddr::new(v4(99), 80);
    let error = open(&stack, nobody, SHORT).err().expect("nobody is there");
    assert!(matches!(error, NetError::TimedOut(_)), "{error}");
    drop((stack, net));
    // The test has the packets of the other end.
    let (io, end) = adit::channel(1 << 20);
    let tunnel = Tunnel::builder(config(2, 1, None)).packets(io).start();
    let tunnel = tunnel.expect("a tunnel");
    let stack = kernel(device, endpoint(&tunnel));
    let to = SocketAddr::new(v4(2), 80);
    let (sender, outcome) = channel();
    let then = Box::new(move |opened: Result<_, NetError>| {
        let _ = sender.send(opened.map(drop));
    });
    stack.open_tcp(to, PATIENCE, then).expect("asked for");
    let syn = end.recv(PATIENCE).expect("a SYN").bytes;
    assert_eq!(syn[9], 6);
    end.send(Packet::new(unreachable(&syn))).expect("room");
    let error = outcome.recv_timeout(PATIENCE).expect("an outcome");
    let error = error.expect_err("no way there");
    assert!(
        matches!(error, NetError::Unreachable(at) if at == to),
        "{error}"
    );
    drop(stack);
    // An end that has one family only.
    let network = InnerNetwork {
        addresses: vec![v4(1)],
        mtu: 1280,
    };
    let made = SocketNamespace::make(&program(), CHILD, &network, device).expect("a namespace");
    let options = KernelOptions::default();
    let stack = KernelStack::start(made.0, config(1, 2, None), options).expect("a stack");
    let error = open(&stack, SocketAddr::new(v6(2), 80), PATIENCE).err();
    assert!(matches!(error, Some(NetError::NoAddress(_))));
    let error = stack.look_up("a.example", PATIENCE).expect_err("no server");
    assert!(matches!(error, NetError::NoDnsServers(_)), "{error}");
}

/// A client's two ends of a TCP connection.
fn client() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let client = TcpStream::connect(address).expect("connected");
    (client, listener.accept().expect("accepted").0)
}

pub(crate) fn passed_on(device: KernelDevice) {
    let (stack, net) = pair(device);
    let listener = net.listen_tcp(80).expect("a port");
    let to = SocketAddr::new(v4(2), 80);
    let join = || {
        let (client, theirs) = client();
        let opened = open(&stack, to, PATIENCE).expect("a connection");
        opened.join(theirs.into()).expect("joined");
        (client, listener.accept().expect("a connection"))
    };
    // One direction ends, the other goes on.
    let (mut client, mut server) = join();
    client.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(server.read(&mut [0]).expect("its end"), 0);
    server.write_all(b"still here").expect("open");
    let mut read = [0; 10];
    client.read_exact(&mut read).expect("open");
    assert_eq!(&read, b"still here");
    drop(server);
    assert_eq!(client.read(&mut [0]).expect("its end"), 0);
    // The client resets.
    let (client, mut server) = join();
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("a socket");
    drop(client);
    let error = server.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // The other end goes, and what is sent there afterwards is reset.
    let (mut client, server) = join();
    client.set_nonblocking(true).expect("a socket");
    drop(server);
    wait_until("a reset arrives", || {
        let sent = client.write(&[0; 1000]).err().map(|error| error.kind());
        matches!(
            sent,
            Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        )
    });
    // One that is not used is reset.
    let opened = open(&stack, to, PATIENCE).expect("a connection");
    let mut server = listener.accept().expect("a connection");
    drop(opened);
    let error = server.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// How many descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

pub(crate) fn killed_child(device: KernelDevice) {
    // What the first one leaves in the process for good.
    drop(pair(device));
    let before = descriptors();
    let net = crate::net_builder().start().expect("a network");
    echo(&net, 7);
    let made = SocketNamespace::make(&program(), CHILD, &crate::inner(), device);
    let (namespace, _) = made.expect("a namespace");
    let process = namespace.process();
    let inside = crate::processes::namespace_of(process);
    if let Some(inside) = &inside {
        assert!(!crate::processes::nobody_is_in(inside));
        let own = std::fs::read_link("/proc/self/ns/net").expect("/proc");
        assert_ne!(*inside, own);
    }
    let config = config(1, 2, Some(endpoint(net.tunnel())));
    let (sender, end) = channel();
    let options = KernelOptions {
        on_end: Some(Box::new(move || sender.send(()).expect("heard"))),
        ..KernelOptions::default()
    };
    let stack = KernelStack::start(namespace, config, options).expect("a stack");
    let to = SocketAddr::new(v4(2), 7);
    let (mut client, theirs) = client();
    let opened = open(&stack, to, PATIENCE).expect("a connection");
    opened.join(theirs.into()).expect("joined");
    client.write_all(b"?").expect("open");
    client.read_exact(&mut [0]).expect("an echo");
    let pid = Pid::from_raw(i32::try_from(process).expect("a number")).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
    end.recv_timeout(PATIENCE).expect("it is told");
    // Its connections end, and no other begins.
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let place = format!("/proc/{process}");
    wait_until("the process is gone", || {
        std::fs::exists(&place).is_ok_and(|is| !is)
    });
    let error = open(&stack, to, PATIENCE).err().expect("the end");
    assert!(matches!(error, NetError::Ended), "{error}");
    let error = stack.listen_tcp(1).err().expect("the end");
    assert!(matches!(error, NetError::Ended), "{error}");
    drop((stack, net, client));
    wait_until("no descriptor is left", || descriptors() <= before);
    assert!(inside.is_none_or(|inside| crate::processes::nobody_is_in(&inside)));
}
