use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Duration;

use adit_io::testing::mem::{self, MemUdp, Network};
use adit_io::{SendReport, Transmit};
use adit_proto::config::{PeerChange, PublicKey};
use adit_proto::{Device, Output};
use x25519_dalek::StaticSecret;

use super::*;
use crate::common::{QueuesHandle, ShardHandle};
use crate::lock::lock;
use crate::outbound::tests::{device, public, wall};
use crate::wake::Waker;

const GATEWAY: u8 = 0x11;
const BUSY: u8 = 0x22;
const QUIET: u8 = 0x33;

fn secret(host: u8) -> StaticSecret {
    StaticSecret::from([host; 32])
}

fn key(host: u8) -> PublicKey {
    public(&secret(host))
}

fn addr(host: u8) -> SocketAddr {
    ([192, 0, 2, host], 51820).into()
}

/// The peer shakes hands; returns the gateway's receiver index.
fn shake_hands(gateway: &mut Device, peer: u8, now: Time) -> u32 {
    let to_gateway = PeerChange {
        endpoint: Some(addr(GATEWAY)),
        ..PeerChange::new(key(GATEWAY))
    };
    let mut theirs = device(&secret(peer), vec![to_gateway], now);
    let us = Arc::clone(theirs.peer(&key(GATEWAY)).expect("configured"));
    assert!(us.want_session());
    theirs.handle_event(now, wall(now), &us);
    theirs.handle_timeout(now, wall(now));
    let Some(Output::Handshake { datagram, .. }) = theirs.poll_output() else {
        panic!("no initiation")
    };
    gateway.handle_handshake(now, wall(now), addr(peer).into(), &datagram, false);
    loop {
        match gateway.poll_output() {
            Some(Output::Handshake { datagram, .. }) => {
                let index = datagram[4..8].try_into().expect("four bytes");
                return u32::from_le_bytes(index);
            }
            Some(_) => {}
            None => panic!("no response"),
        }
    }
}

/// A socket at which data messages wait without end: of each receiver so many in each batch.
struct Flooded {
    socket: MemUdp,
    receivers: Vec<(u32, usize)>,
    is_over: Mutex<bool>,
}

impl UdpSocket for Flooded {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        self.socket.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        batch.clear();
        if *lock(&self.is_over) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut waiting: VecDeque<_> = self.receivers.iter().copied().collect();
        while let Some((receiver, left)) = waiting.pop_front() {
            let mut message = [0; 1452];
            message[0] = 4;
            message[4..8].copy_from_slice(&receiver.to_le_bytes());
            if !batch.push(addr(BUSY).into(), 0, message.len(), &message) {
                break;
            }
            waiting.push_back((receiver, left - 1));
            waiting.retain(|(_, left)| *left > 0);
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

#[test]
fn a_standing_queue_costs_the_peer_that_fills_it() {
    let mut now = Time::default() + Duration::from_secs(1000);
    let peers = [BUSY, QUIET].map(|peer| PeerChange::new(key(peer)));
    let mut gateway = device(&secret(GATEWAY), peers.to_vec(), now);
    let receivers = [BUSY, QUIET].map(|peer| shake_hands(&mut gateway, peer, now));

    let waker = Arc::new(Waker::new().expect("an eventfd"));
    let shard = Arc::new(ShardHandle::new(waker).expect("an eventfd"));
    let handle = QueuesHandle::new(0, shard);
    let offloads = Offloads::ALL;
    let common = Common::<Flooded>::new(gateway.shared(), handle, offloads, false);
    let common = common.expect("an eventfd");
    let (tun, _end) = mem::tun().expect("an in-memory TUN");
    let network = Network::new();
    let socket = Flooded {
        socket: network.bind(addr(GATEWAY), true).expect("a free address"),
        receivers: vec![(receivers[0], 56), (receivers[1], 8)],
        is_over: Mutex::new(false),
    };
    let mut batch = InboundBatch::default();
    let mut delivery = Delivery::new();
    let mut shares = Shares::default();
    let mut poll = |now: Time| {
        let context = Context {
            common: &common,
            lane: 0,
            drops: &common.queues.drops,
            tun: &tun,
            offloads,
            now,
        };
        if !batch.take(context, &socket, &mut shares) {
            return 0;
        }
        delivery.put(context, &mut batch).expect("a TUN");
        batch.packets.len()
    };
    let dropped = |peer: u8| {
        let peer = gateway.peer(&key(peer)).expect("configured");
        let drops = peer.drops().into_iter();
        let over = drops.filter(|(reason, _)| *reason == DropReason::OverShare);
        over.map(|(_, packets)| packets).sum::<u64>()
    };
    // 1. At first nothing is dropped.
    assert_eq!(poll(now), 64);
    // 2. The queue stands.
    for _ in 0..500 {
        now = now + Duration::from_millis(1);
        poll(now);
    }
    assert!(dropped(BUSY) > 1000, "{}", dropped(BUSY));
    assert_eq!(dropped(QUIET), 0);
    // 3. It was empty.
    *lock(&socket.is_over) = true;
    poll(now);
    *lock(&socket.is_over) = false;
    assert_eq!(poll(now), 64);
}
