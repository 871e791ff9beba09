//! An interface that goes from one engine to another while packets pass, as between two processes.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_engine::{Engine, Interface, InterfaceState, MemPlatform, Resume, Sockets, importer};
use adit_io::testing::mem::{MemNetwork, MemTun, MemUdp};
use adit_io::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket};
use adit_offload::VNET_HDR_LEN;
use adit_proto::{Device, Time};
use common::{A, B, EnginePair, Options, Side, inner_ip, udp_frame};

/// A socket that two engines can have, as two processes have the same one of the kernel.
#[derive(Clone)]
struct Shared(Arc<MemUdp>);

impl UdpSocket for Shared {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.0.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.0.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

type Kept<T> = Arc<Mutex<Vec<T>>>;

struct Hosts {
    pair: EnginePair,
    /// Of side A.
    tun: Arc<MemTun>,
    sockets: Kept<Shared>,
    network: MemNetwork,
}

fn keep<T: Clone>(kept: &Kept<T>, one: T) -> T {
    kept.lock().expect("no panic").push(one.clone());
    one
}

impl Hosts {
    fn new() -> Self {
        let (tuns, sockets) = (Kept::<Arc<MemTun>>::default(), Kept::<Shared>::default());
        let network = MemNetwork::new();
        let engines = [A, B].map(|_| Engine::start(2).expect("an engine"));
        let of_a = Arc::clone(&sockets);
        let pair = EnginePair::on(
            &engines,
            &network,
            0,
            Options::default(),
            |_, tun| keep(&tuns, Arc::new(tun)),
            move |side, socket| {
                let socket = Shared(Arc::new(socket));
                match side {
                    A => keep(&of_a, socket),
                    _ => socket,
                }
            },
        );
        let tun = Arc::clone(&tuns.lock().expect("no panic")[A]);
        Self {
            pair,
            tun,
            sockets,
            network,
        }
    }

    fn export(&self) -> (Device, InterfaceState) {
        let old = &self.pair.sides[A].interface;
        let mut import = importer();
        let state = old.export(|record| import.take(&record).map_err(io::Error::other));
        let device = import.finish(Time::default());
        (device.expect("a device"), state.expect("its state"))
    }

    /// Another engine goes on with the interface of side A.
    fn hand_over(&mut self) {
        let old = &self.pair.sides[A].interface;
        old.pause(Duration::from_secs(5)).expect("a pause");
        let (device, state) = self.export();
        let taken = self.take_over(device, &state);
        taken.resume(Resume::AsItWas);
        // The old process ends without a word to anybody.
        self.pair.sides[A].interface = taken;
    }

    fn take_over(&self, device: Device, state: &InterfaceState) -> Interface {
        let addr = self.pair.sides[A].addr;
        let platform = MemPlatform::new(&self.network, addr).expect("a host");
        let platform = platform.with_sockets(|socket| Shared(Arc::new(socket)));
        let kept = self.sockets.lock().expect("no panic").clone();
        let [v4, v6] = kept.try_into().ok().expect("one of each family");
        let sockets = Sockets::new(Some(v4), Some(v6), addr.port());
        let engine = Engine::start(2).expect("an engine");
        let tun = Arc::clone(&self.tun);
        let taken = engine.take_over(tun, platform, Offloads::ALL, device, state, sockets);
        taken.expect("an interface")
    }

    fn initiations(&self) -> [u64; 2] {
        let of = |side: &Side| side.interface.report().handshakes.initiations_sent;
        [A, B].map(|side| of(&self.pair.sides[side]))
    }

    /// Sends numbered datagrams both ways, `at` the middle of which something happens; all come in
    /// their order, and none twice.
    fn exchange(&mut self, count: u16, at: impl FnOnce(&mut Self)) {
        let numbered = |from: usize, id: u16| {
            let (src, dst) = (inner_ip(from), inner_ip(1 - from));
            udp_frame(src, dst, (1, 2), id, &id.to_be_bytes())
        };
        let mut at = Some(at);
        for id in 0..count {
            for side in [A, B] {
                self.pair.inject(side, numbered(side, id));
            }
            if id == count / 2
                && let Some(at) = at.take()
            {
                at(self);
            }
        }
        for side in [A, B] {
            let came = self.pair.delivered(1 - side, count.into());
            let expected = (0..count).map(|id| numbered(side, id)[VNET_HDR_LEN..].to_vec());
            assert!(
                came.iter().cloned().eq(expected),
                "{} of {count} came from side {side}, or in another order",
                came.len()
            );
        }
    }
}

#[test]
fn traffic_goes_on_through_hand_overs_without_a_handshake() {
    let mut hosts = Hosts::new();
    hosts.exchange(2, |_| {});
    let before = hosts.initiations();
    let sent = |hosts: &Hosts| {
        let status = hosts.pair.sides[A].interface.get().expect("it runs");
        status.peers[0].tx_bytes
    };
    let mut packets = 0;
    for _ in 0..20 {
        let bytes = sent(&hosts);
        hosts.exchange(200, Hosts::hand_over);
        assert!(sent(&hosts) >= bytes + 200 * 32, "counters go on");
        let report = hosts.pair.sides[A].interface.report();
        assert!(report.outbound.contents >= packets + 200 && report.outbound.batches > 0);
        assert!(report.sent_trains.datagrams >= packets + 200);
        assert!(report.inbound.contents > packets && report.received_trains.datagrams > packets);
        packets += 200;
    }
    assert_eq!(hosts.initiations(), before);
    let came = hosts.pair.delivered_now(A).len() + hosts.pair.delivered_now(B).len();
    assert_eq!(came, 0, "something came twice");
}

#[test]
fn an_interface_that_could_not_be_handed_over_goes_on() {
    let mut hosts = Hosts::new();
    hosts.exchange(2, |_| {});
    let before = hosts.initiations();
    hosts.exchange(100, |hosts| {
        let interface = &hosts.pair.sides[A].interface;
        interface.pause(Duration::from_secs(5)).expect("a pause");
        let (device, state) = hosts.export();
        // It pauses, and so does the one that took it over.
        let taken = hosts.take_over(device, &state);
        std::thread::sleep(Duration::from_millis(50));
        let interface = &hosts.pair.sides[A].interface;
        assert!(interface.get().is_ok(), "it answers questions");
        let refused = interface.set(hosts.pair.configuration(A));
        assert!(refused.is_err(), "a change would be lost");
        drop(taken);
        interface.resume(Resume::AsItWas);
    });
    assert_eq!(hosts.initiations(), before);
    // When another may have sealed with the sessions, they are not used again.
    let interface = &hosts.pair.sides[A].interface;
    interface.pause(Duration::from_secs(5)).expect("a pause");
    hosts.export();
    interface.resume(Resume::WithoutSessions);
    // What the other end still seals with the old session is lost, until a handshake from here.
    hosts
        .pair
        .inject(A, udp_frame(inner_ip(A), inner_ip(B), (1, 2), 0, b"first"));
    assert_eq!(hosts.pair.delivered(B, 1).len(), 1);
    hosts.exchange(2, |_| {});
    assert!(hosts.initiations()[A] + hosts.initiations()[B] > before[A] + before[B]);
}
