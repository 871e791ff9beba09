//! Every wrapper passes every method of its trait on.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_proto::InUse;
use rustix::event::{EventfdFlags, eventfd};

use crate::testing::fault::{Faults, Faulty};
use crate::testing::pcap::{Recorded, Recorder};
use crate::udp::UdpState;
use crate::{
    Arrival, Cut, Filtered, FrameBatch, Grace, IcmpError, RecvBatch, SendReport, ShortBuffers,
    Transmit, TunQueue, UdpSocket,
};

/// The methods that were called.
type Calls = Arc<Mutex<BTreeSet<&'static str>>>;

/// A TUN or a socket that notes which of its methods are called.
struct Noting {
    calls: Calls,
    fd: OwnedFd,
}

impl Noting {
    fn new(calls: &Calls) -> Self {
        Self {
            calls: Arc::clone(calls),
            fd: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        }
    }

    fn note(&self, method: &'static str) {
        self.calls.lock().unwrap().insert(method);
    }
}

impl TunQueue for Noting {
    fn read_batch(&self, _: &mut FrameBatch) -> io::Result<bool> {
        self.note("read_batch");
        Ok(true)
    }

    fn processed(&self, _: &FrameBatch) {
        self.note("processed");
    }

    fn write(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        self.note("write");
        Ok(())
    }

    fn flush(&self) {
        self.note("flush");
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.note("fd");
        self.fd.as_fd()
    }

    fn rests_for(&self) -> Option<Duration> {
        self.note("rests_for");
        None
    }

    fn has_begun_to_rest(&self) -> bool {
        self.note("has_begun_to_rest");
        false
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.note("last_arrival");
        None
    }
}

impl UdpSocket for Noting {
    fn send(&self, trains: &[Transmit<'_>], _: &mut SendReport) -> usize {
        self.note("send");
        trains.len()
    }

    fn send_beside(&self, trains: &[Transmit<'_>], _: Cut, _: &mut SendReport) -> usize {
        self.note("send_beside");
        trains.len()
    }

    fn recv(&self, _: &mut RecvBatch) -> io::Result<()> {
        self.note("recv");
        Ok(())
    }

    fn send_socket(&self) -> io::Result<Self> {
        self.note("send_socket");
        Ok(Self::new(&self.calls))
    }

    fn further(&self, more: usize) -> io::Result<Vec<Self>> {
        self.note("further");
        Ok((0..more).map(|_| Self::new(&self.calls)).collect())
    }

    fn spread(&self, _: usize) -> io::Result<Grace> {
        self.note("spread");
        Ok(Grace::until_dropped(&Arc::default()))
    }

    fn set_send_buffer(&self, _: usize) {
        self.note("set_send_buffer");
    }

    fn take_errors(&self, _: &mut dyn FnMut(IcmpError, u64)) {
        self.note("take_errors");
    }

    fn short_buffers(&self) -> ShortBuffers {
        self.note("short_buffers");
        ShortBuffers::default()
    }

    fn in_use(&self) -> Option<Arc<dyn InUse>> {
        self.note("in_use");
        None
    }

    fn refuse(&self, _: IpAddr) {
        self.note("refuse");
    }

    fn take_filtered(&self) -> Filtered {
        self.note("take_filtered");
        Filtered::default()
    }

    fn state(&self) -> UdpState {
        self.note("state");
        UdpState::default()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.note("fd");
        self.fd.as_fd()
    }

    fn last_arrival(&self) -> Option<Arrival> {
        self.note("last_arrival");
        None
    }
}

/// The methods of a trait, from its source: a new one that the calls below lack fails the test.
fn methods(of: &str) -> BTreeSet<&'static str> {
    let source = include_str!("../traits.rs");
    let (_, source) = source.split_once(&format!("pub trait {of}: ")).unwrap();
    let (methods, _) = source.split_once("\n}\n").unwrap();
    let lines = methods
        .lines()
        .filter_map(|line| line.strip_prefix("    fn "));
    lines.filter_map(|line| line.split('(').next()).collect()
}

fn call_tun(tun: &impl TunQueue) {
    _ = tun.read_batch(&mut FrameBatch::default());
    tun.processed(&FrameBatch::default());
    _ = tun.write(&[IoSlice::new(&[0; 100])]);
    tun.flush();
    _ = tun.fd();
    _ = tun.rests_for();
    _ = tun.has_begun_to_rest();
    _ = tun.last_arrival();
}

/// Calls all methods, those that make further sockets, too.
fn call_udp(socket: &impl UdpSocket) {
    let train = Transmit {
        to: SocketAddr::from(([192, 0, 2, 1], 1)).into(),
        ecn: 0,
        stride: 1,
        bytes: &[1],
    };
    let mut report = SendReport::default();
    assert_eq!(socket.send(&[train], &mut report), 1);
    assert_eq!(socket.send_beside(&[train], Cut::Refused, &mut report), 1);
    _ = socket.recv(&mut RecvBatch::new(1));
    assert!(socket.send_socket().is_ok());
    assert_eq!(socket.further(2).unwrap().len(), 2);
    assert!(socket.spread(2).is_ok());
    socket.set_send_buffer(1);
    socket.take_errors(&mut |_, _| {});
    _ = socket.short_buffers();
    _ = socket.in_use();
    socket.refuse(Ipv4Addr::LOCALHOST.into());
    _ = socket.take_filtered();
    _ = socket.state();
    _ = socket.fd();
    _ = socket.last_arrival();
}

fn recorder() -> Recorder {
    Recorder::new(io::sink()).unwrap()
}

/// Its name, and what calls every method of one.
type Wrapper = (&'static str, fn(Noting));

#[test]
fn every_wrapper_of_a_tun_passes_every_method_on() {
    let wrappers: [Wrapper; 4] = [
        ("Box", |tun| call_tun(&Box::new(tun))),
        ("Arc", |tun| call_tun(&Arc::new(tun))),
        ("Faulty", |tun| {
            call_tun(&Faulty::new(tun, Faults::default()))
        }),
        ("Recorded", |tun| call_tun(&Recorded::tun(tun, recorder()))),
    ];
    for (name, call) in wrappers {
        let calls = Calls::default();
        call(Noting::new(&calls));
        assert_eq!(*calls.lock().unwrap(), methods("TunQueue"), "{name}");
    }
}

#[test]
fn every_wrapper_of_a_socket_passes_every_method_on() {
    let wrappers: [Wrapper; 3] = [
        ("Box", |socket| call_udp(&Box::new(socket))),
        ("Faulty", |socket| {
            call_udp(&Faulty::new(socket, Faults::default()));
        }),
        ("Recorded", |socket| {
            let local = SocketAddr::from(([192, 0, 2, 2], 2));
            call_udp(&Recorded::udp(socket, recorder(), local));
        }),
    ];
    for (name, call) in wrappers {
        let calls = Calls::default();
        call(Noting::new(&calls));
        assert_eq!(*calls.lock().unwrap(), methods("UdpSocket"), "{name}");
    }
}
