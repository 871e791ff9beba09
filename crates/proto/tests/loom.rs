//! What shards and the control thread tell each other through a [`Peer`], in every interleaving and
//! with every value that an atomic may have: `make loom`.
//!
//! The control thread is a [`Device`], the shards are loom's threads. A call that returns true to a
//! shard is an event in the control thread's queue; here the queue is read when the shards have
//! ended, the last moment there is.

#![cfg(loom)]

mod common;

use std::sync::{Arc, Mutex, OnceLock};

use adit_proto::config::DeviceChange;
use adit_proto::limits::{KEEPALIVE_TIMEOUT, NO_ANSWER_TIMEOUT, REKEY_ATTEMPT_TIME, REKEY_TIMEOUT};
use adit_proto::{Device, Output, Peer, Session, Tai64N, Time};
use common::{A, B, START, add, device, peer, private_key, public_key, secs};
use loom::thread;

const WALL: Tai64N = Tai64N([7; 12]);
const ADDRS: [&str; 2] = ["192.0.2.1:1", "192.0.2.2:2"];

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.check(model);
}

/// A device with one peer.
fn host(own: usize, other: usize) -> (Device, Arc<Peer>) {
    let mut device = device(1 + own as u64);
    let change = DeviceChange {
        private_key: Some(private_key(own)),
        ..peer(other, |peer| {
            peer.endpoint = Some(ADDRS[other].parse().unwrap());
            peer.allowed_ips = vec![add("10.0.0.0/8")];
        })
    };
    device.apply(START, &change).unwrap();
    let peer = Arc::clone(device.peer(&public_key(other)).unwrap());
    (device, peer)
}

/// Frames that wait for a session, as a shard keeps them: it and the control thread's answers meet
/// at a lock.
type Staged = Arc<loom::sync::Mutex<u32>>;

/// What the control thread does after each call. Returns the handshake messages.
fn drain(device: &mut Device, staged: Option<&Staged>) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    while let Some(output) = device.poll_output() {
        match output {
            Output::Handshake { datagram, .. } => sent.push(datagram.to_vec()),
            Output::SessionReady { .. } | Output::DropStaged { .. } => {
                if let Some(staged) = staged {
                    *staged.lock().unwrap() = 0;
                }
            }
            Output::Keepalive { .. } | Output::Event(_) => {}
        }
    }
    sent
}

/// A device whose initiation is under way, and its peer's response.
fn handshake() -> (Device, Arc<Peer>, Vec<u8>) {
    let (mut ours, peer) = host(A, B);
    let (mut theirs, _) = host(B, A);
    assert!(peer.want_session());
    ours.handle_event(START, WALL, &peer);
    ours.handle_timeout(START, WALL);
    let initiation = drain(&mut ours, None).pop().unwrap();
    let from: std::net::SocketAddr = ADDRS[A].parse().unwrap();
    theirs.handle_handshake(START, WALL, from.into(), &initiation, false);
    let response = drain(&mut theirs, None).pop().unwrap();
    (ours, peer, response)
}

fn answer(device: &mut Device, response: &[u8]) {
    let from: std::net::SocketAddr = ADDRS[B].parse().unwrap();
    device.handle_handshake(START, WALL, from.into(), response, false);
}

/// A young session to send and receive with. It has no part in what is explored.
fn session() -> Arc<Session> {
    static SESSION: OnceLock<Arc<Session>> = OnceLock::new();
    static MADE: Mutex<Option<Arc<Session>>> = Mutex::new(None);
    let made = SESSION.get_or_init(|| {
        explore(|| {
            let (mut device, peer, response) = handshake();
            answer(&mut device, &response);
            drain(&mut device, None);
            *MADE.lock().unwrap() = peer.current();
        });
        MADE.lock().unwrap().take().unwrap()
    });
    Arc::clone(made)
}

/// A device none of whose timers runs.
fn quiet() -> (Device, Arc<Peer>) {
    let (device, peer) = host(A, B);
    assert_eq!(device.next_deadline(), None);
    (device, peer)
}

#[test]
fn what_is_sent_while_its_timer_runs_out_is_looked_at() {
    let session = session();
    explore(move || {
        let (mut device, peer) = quiet();
        assert!(peer.data_sent(START, &session, 0));
        device.handle_event(START, WALL, &peer);
        // It is answered, and the timer runs on.
        peer.received(START, &session, 0, false);
        let now = START + NO_ANSWER_TIMEOUT;
        assert_eq!(device.next_deadline(), Some(now));
        let shard = {
            let (peer, session) = (Arc::clone(&peer), Arc::clone(&session));
            thread::spawn(move || peer.data_sent(now, &session, 0))
        };
        device.handle_timeout(now, WALL);
        if shard.join().unwrap() {
            device.handle_event(now, WALL, &peer);
        }
        assert_eq!(device.next_deadline(), Some(now + NO_ANSWER_TIMEOUT));
    });
}

#[test]
fn what_is_received_while_its_timer_runs_out_is_looked_at() {
    let session = session();
    explore(move || {
        let (mut device, peer) = quiet();
        assert!(peer.received(START, &session, 0, true));
        device.handle_event(START, WALL, &peer);
        // It is answered, and the timer runs on.
        peer.keepalive_sent(START, &session, 0);
        let now = START + KEEPALIVE_TIMEOUT;
        assert_eq!(device.next_deadline(), Some(now));
        let shard = {
            let (peer, session) = (Arc::clone(&peer), Arc::clone(&session));
            thread::spawn(move || peer.received(now, &session, 0, true))
        };
        device.handle_timeout(now, WALL);
        if shard.join().unwrap() {
            device.handle_event(now, WALL, &peer);
        }
        assert_eq!(device.next_deadline(), Some(now + KEEPALIVE_TIMEOUT));
    });
}

#[test]
fn one_of_several_shards_is_told_to_queue_the_peer() {
    let session = session();
    explore(move || {
        let (_device, peer) = quiet();
        let shard = |act: fn(&Peer, &Arc<Session>) -> bool| {
            let (peer, session) = (Arc::clone(&peer), Arc::clone(&session));
            thread::spawn(move || act(&peer, &session))
        };
        let sends = shard(|peer, session| peer.data_sent(START, session, 0));
        let wants = shard(|peer, _| peer.want_session());
        let receives = peer.received(START, &session, 0, true);
        let told = [sends.join().unwrap(), wants.join().unwrap(), receives];
        assert_eq!(told.iter().filter(|&&told| told).count(), 1, "{told:?}");
    });
}

#[test]
fn no_notice_is_lost_while_the_control_thread_takes_them() {
    let session = session();
    explore(move || {
        let (mut device, peer) = quiet();
        assert!(peer.want_session());
        let shard = {
            let (peer, session) = (Arc::clone(&peer), Arc::clone(&session));
            thread::spawn(move || {
                let sends = peer.data_sent(START, &session, 0);
                let receives = peer.received(START, &session, 0, true);
                u32::from(sends) + u32::from(receives)
            })
        };
        device.handle_event(START, WALL, &peer);
        for _ in 0..shard.join().unwrap() {
            device.handle_event(START, WALL, &peer);
        }
        // Both timers run, so that there is nothing to report, and the next event is reported.
        assert!(!peer.data_sent(START, &session, 0));
        assert!(!peer.received(START, &session, 0, true));
        assert!(peer.want_session());
    });
}

/// A shard that finds no session. Returns whether it has to queue the peer.
fn stage(peer: &Arc<Peer>, staged: &Staged, now: Time) -> thread::JoinHandle<bool> {
    // It looks before anything else happens: loom does not see that, and would not do anything else
    // in between.
    assert!(peer.session(now).is_none());
    let (peer, staged) = (Arc::clone(peer), Arc::clone(staged));
    thread::spawn(move || {
        *staged.lock().unwrap() += 1;
        peer.want_session()
    })
}

#[test]
fn a_frame_staged_while_a_session_begins_is_sent() {
    explore(|| {
        let (mut device, peer, response) = handshake();
        let staged = Staged::default();
        let shard = stage(&peer, &staged, START);
        answer(&mut device, &response);
        drain(&mut device, Some(&staged));
        if shard.join().unwrap() {
            device.handle_event(START, WALL, &peer);
            drain(&mut device, Some(&staged));
        }
        assert_eq!(*staged.lock().unwrap(), 0);
    });
}

#[test]
fn a_frame_staged_while_a_handshake_is_given_up_starts_another() {
    explore(|| {
        let (mut device, peer) = quiet();
        assert!(peer.want_session());
        device.handle_event(START, WALL, &peer);
        device.handle_timeout(START, WALL);
        let staged = Staged::default();
        let now = START + REKEY_ATTEMPT_TIME;
        let shard = stage(&peer, &staged, now);
        device.handle_timeout(now, WALL);
        drain(&mut device, Some(&staged));
        if shard.join().unwrap() {
            device.handle_event(now, WALL, &peer);
            drain(&mut device, Some(&staged));
        }
        // Or it was dropped with what had waited for the handshake.
        let starts = |at| at <= now + REKEY_TIMEOUT + secs(1);
        assert!(*staged.lock().unwrap() == 0 || device.next_deadline().is_some_and(starts));
    });
}
