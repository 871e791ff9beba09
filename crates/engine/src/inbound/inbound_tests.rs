use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Duration;

use adit_io::testing::mem::{self, MemNetwork, MemUdp};
use adit_io::{SendReport, Transmit};
use adit_proto::config::{PeerChange, PublicKey};
use adit_proto::{Device, Output};
use x25519_dalek::StaticSecret;

use super::*;
use crate::inbound::deliver::Delivery;
use crate::outbound::tests::{device, public, wall};
use crate::shared::handles::{QueuesHandle, ShardHandle};
use crate::thread::lock::lock;
use crate::thread::wake::Waker;

const GATEWAY: u8 = 0x11;
const BUSY: u8 = 0x22;
const QUIET: u8 = 0x33;
const ELSEWHERE: u8 = 0x44;

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

/// A socket at which data messages wait without end: from each host and for each receiver so many in
/// each batch.
struct Flooded {
    socket: MemUdp,
    receivers: Vec<(u8, u32, usize)>,
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
        while let Some((from, receiver, left)) = waiting.pop_front() {
            let mut message = [0; 1452];
            message[0] = 4;
            message[4..8].copy_from_slice(&receiver.to_le_bytes());
            if !batch.push(addr(from).into(), 0, message.len(), &message) {
                break;
            }
            waiting.push_back((from, receiver, left - 1));
            waiting.retain(|(.., left)| *left > 0);
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

/// A gateway with two peers, and what arrives at it.
struct Hosts {
    device: Device,
    common: Common<Flooded>,
    tun: mem::MemTun,
    socket: Flooded,
    batch: InboundBatch,
    delivery: Delivery,
    shares: Shares,
    now: Time,
}

impl Hosts {
    /// From each of these hosts, with receiver indices of that peer, so many messages in each batch.
    fn new(wants: &[(u8, u8, usize)]) -> Self {
        let now = Time::default() + Duration::from_secs(1000);
        let peers = [BUSY, QUIET].map(|peer| PeerChange::new(key(peer)));
        let mut device = device(&secret(GATEWAY), peers.to_vec(), now);
        let busy = shake_hands(&mut device, BUSY, now);
        let quiet = shake_hands(&mut device, QUIET, now);
        let receivers = wants.iter().map(|&(from, peer, messages)| {
            let receiver = if peer == BUSY { busy } else { quiet };
            (from, receiver, messages)
        });
        let waker = Arc::new(Waker::new().expect("an eventfd"));
        let shard = Arc::new(ShardHandle::new(Some(waker)).expect("an eventfd"));
        let handle = QueuesHandle::new(0, shard);
        let common = Common::new(device.shared(), handle, Offloads::ALL, false);
        let (tun, _end) = mem::tun().expect("an in-memory TUN");
        let network = MemNetwork::new();
        let socket = Flooded {
            socket: network.bind(addr(GATEWAY), true).expect("a free address"),
            receivers: receivers.collect(),
            is_over: Mutex::new(false),
        };
        Self {
            device,
            common: common.expect("an eventfd"),
            tun,
            socket,
            batch: InboundBatch::default(),
            delivery: Delivery::new(),
            shares: Shares::default(),
            now,
        }
    }

    /// How many messages a poll leaves to be opened.
    fn poll(&mut self) -> usize {
        let context = InboundContext {
            common: &self.common,
            rx_queue: 0,
            drops: &self.common.queues.drops,
            tun: &self.tun,
            offloads: Offloads::ALL,
            now: self.now,
        };
        if !self.batch.take(context, &self.socket, &mut self.shares) {
            return 0;
        }
        let mut shard = InboundFlowShard::Whole(Box::new(std::mem::take(&mut self.batch)));
        let commit = |batch: &mut InboundBatch| batch.commit(context);
        let delivery = &mut self.delivery;
        let deliver = |batch: &InboundBatch, flow_shard| {
            let delivered = delivery.deliver_batch(context, batch, flow_shard);
            delivered.expect("a TUN");
        };
        assert!(shard.commit_at(0, commit, deliver));
        self.batch = *shard.end().expect("the whole batch");
        self.batch.packets.len()
    }

    /// Half a second, in which the queue stands.
    fn flood(&mut self) {
        for _ in 0..500 {
            self.now = self.now + Duration::from_millis(1);
            self.poll();
        }
    }

    /// What was dropped of a peer.
    fn dropped(&self, peer: u8) -> u64 {
        let peer = self.device.peer(&key(peer)).expect("configured");
        let drops = peer.drops().into_iter();
        let over = drops.filter(|(reason, _)| *reason == DropReason::OverShare);
        over.map(|(_, packets)| packets).sum()
    }
}

#[test]
fn a_standing_queue_costs_the_peer_that_fills_it() {
    let mut hosts = Hosts::new(&[(BUSY, BUSY, 56), (QUIET, QUIET, 8)]);
    // 1. At first nothing is dropped.
    assert_eq!(hosts.poll(), 64);
    // 2. The queue stands.
    hosts.flood();
    assert!(hosts.dropped(BUSY) > 1000, "{}", hosts.dropped(BUSY));
    assert_eq!(hosts.dropped(QUIET), 0);
    // 3. It was empty.
    *lock(&hosts.socket.is_over) = true;
    hosts.poll();
    *lock(&hosts.socket.is_over) = false;
    assert_eq!(hosts.poll(), 64);
}

#[test]
fn a_flood_from_elsewhere_with_the_index_of_a_peer_costs_it_nothing() {
    let wants = [(BUSY, BUSY, 8), (ELSEWHERE, QUIET, 48), (QUIET, QUIET, 8)];
    let mut hosts = Hosts::new(&wants);
    hosts.flood();
    let drops = &hosts.common.queues.drops;
    let dropped = drops.of(DropReason::OverShare);
    assert!(dropped > 1000, "{dropped}");
    assert_eq!((hosts.dropped(BUSY), hosts.dropped(QUIET)), (0, 0));
    // All that comes from the peers themselves is opened, and refused there: it is not sealed.
    let opened = drops.of(DropReason::NotAuthentic);
    assert_eq!(opened + dropped, 500 * 64);
}

#[test]
fn what_is_split_is_delivered_when_it_is_committed_and_ends_with_its_last_flow_shard() {
    let mut filed: Vec<InboundFlowShard> = InboundFlowShard::split(Box::default(), 3).collect();
    let mut at = |index: usize| {
        let mut seen = Vec::new();
        let commit = |batch: &mut InboundBatch| batch.is_committed = true;
        let is_done = filed[index].commit_at(index, commit, |_, flow_shard| seen.push(flow_shard));
        (is_done, seen)
    };
    assert_eq!(at(1), (false, vec![]), "nobody has committed it");
    assert_eq!(at(2), (false, vec![]));
    assert_eq!(at(0), (true, vec![]));
    assert_eq!([at(2), at(1)], [(true, vec![1]), (true, vec![0])]);
    let ended = filed.into_iter().map(|it| it.end().is_some());
    assert_eq!(ended.collect::<Vec<_>>(), [false, false, true]);
}
