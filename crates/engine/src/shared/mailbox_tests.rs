use adit_proto::config::PeerChange;
use adit_proto::{Device, Output};
use x25519_dalek::StaticSecret;

use super::*;
use crate::outbound::tests::{device, public, wall};

const FROM: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3)),
    1,
);

fn proven() -> HandshakeMessage {
    HandshakeMessage {
        from: FROM.into(),
        datagram: ArrayVec::new(),
        proven: true,
    }
}

fn output(device: &mut Device) -> Vec<u8> {
    loop {
        match device.poll_output().expect("a handshake message") {
            Output::Handshake { datagram, .. } => return datagram.to_vec(),
            _ => continue,
        }
    }
}

/// A device with this peer, which is there.
fn with_peer(own: &StaticSecret, peer: &StaticSecret, at: SocketAddr, now: Time) -> Device {
    let peer = PeerChange {
        endpoint: Some(at),
        ..PeerChange::new(public(peer))
    };
    device(own, vec![peer], now)
}

fn initiation(device: &mut Device, now: Time) -> Vec<u8> {
    let peer = Arc::clone(device.peers().next().expect("configured"));
    assert!(peer.want_session());
    device.handle_event(now, wall(now), &peer);
    device.handle_timeout(now, wall(now));
    output(device)
}

/// A handshake that we begin takes no second attempt, though the answer has no cookie.
#[test]
fn a_response_to_an_initiation_of_ours_has_a_place_beside_a_flood() {
    let [ours, theirs] = [[0x11; 32], [0x22; 32]].map(StaticSecret::from);
    let now = Time::default() + Duration::from_secs(1000);
    let at = SocketAddr::from(([192, 0, 2, 1], 1));
    let mut us = with_peer(&ours, &theirs, FROM, now);
    let mut them = with_peer(&theirs, &ours, at, now);
    let initiation = initiation(&mut us, now);
    them.handle_handshake(now, wall(now), at.into(), &initiation, false);
    let response = output(&mut them);
    let mailbox = Mailbox::new().expect("an eventfd");
    let shared = us.shared();
    shared.admission().load(now);
    let flood = || HandshakeMessage {
        proven: false,
        ..proven()
    };
    lock(&mailbox.waiting)
        .others
        .resize_with(MAX_HANDSHAKES, flood);
    let passes = mailbox.handshake(&shared, now, FROM.into(), &response);
    assert!(passes.is_ok());
    let message = mailbox.next_handshake().expect("it waits");
    assert!(message.proven && message.datagram.as_slice() == response);
}

/// How many messages of a source that has shown a cookie pass in a moment, while so many others wait.
fn passes_while_waiting(others: usize) -> usize {
    let [ours, theirs] = [[0x11; 32], [0x22; 32]].map(StaticSecret::from);
    let now = Time::default() + Duration::from_secs(1000);
    let at = SocketAddr::from(([192, 0, 2, 1], 1));
    let mut stranger = with_peer(&theirs, &ours, at, now);
    let shared = device(&ours, Vec::new(), now).shared();
    shared.admission().load(now);
    let mailbox = Mailbox::new().expect("an eventfd");
    // 1. An initiation, and the cookie that it gets.
    let first = initiation(&mut stranger, now);
    let first = mailbox.handshake(&shared, now, FROM.into(), &first);
    assert!(matches!(first, Err(NotQueued::Refused(_))));
    let reply = lock(&mailbox.replies).pop().expect("a cookie reply");
    stranger.handle_handshake(now, wall(now), at.into(), &reply.datagram, false);
    // 2. The next one shows it.
    let later = now + Duration::from_secs(6);
    stranger.handle_timeout(later, wall(later));
    let shows = output(&mut stranger);
    lock(&mailbox.waiting).proven.resize_with(others, proven);
    let pass = |_: &usize| {
        let passes = mailbox.handshake(&shared, now, FROM.into(), &shows).is_ok();
        lock(&mailbox.waiting).proven.truncate(others);
        passes
    };
    (0..MAX_HANDSHAKES).filter(pass).count()
}

/// So that clients behind one address, as those of a provider's NAT, are not kept out for nothing.
#[test]
fn a_source_gets_more_than_its_share_while_few_wait() {
    let [few, many] = [0, MAX_HANDSHAKES / 2].map(passes_while_waiting);
    assert!(many > 0);
    assert!(few > 2 * many, "{few} of {many}");
}

#[test]
fn room_is_a_quarter_of_the_queue_and_another() {
    let mut waiting = Posted::default();
    for (len, room) in [
        (0, Room::Ample),
        (511, Room::Ample),
        (512, Room::Some),
        (1023, Room::Some),
        (1024, Room::Little),
        (2048, Room::Little),
    ] {
        waiting.proven.resize_with(len, proven);
        assert_eq!(waiting.room(), room, "{len}");
    }
}

/// Invariant 6.
#[test]
fn what_comes_while_handshakes_wait_is_not_slept_over() {
    let mailbox = Mailbox::new().expect("an eventfd");
    let device = adit_proto::Device::new(Box::new(|_| {}));
    let (shared, now) = (device.shared(), Time::default());
    let from = Endpoint::from(std::net::SocketAddr::from(([192, 0, 2, 1], 1)));
    assert!(mailbox.is_empty());
    assert!(mailbox.handshake(&shared, now, from, &[1]).is_ok());
    mailbox.take_all();
    // No wake-up: the control thread is at work on the handshake.
    mailbox.tun_is_behind();
    assert!(mailbox.next_handshake().is_some());
    assert!(mailbox.next_handshake().is_none());
    assert!(!mailbox.is_empty(), "the control thread would sleep now");
    assert!(mailbox.take_all().2);
    assert!(mailbox.is_empty());
}

/// Invariant 6: an interface that pauses takes commands alone, and one of them ends the pause.
#[test]
fn a_command_wakes_whatever_else_waits() {
    let post: [fn(&Mailbox); 3] = [
        |mailbox| mailbox.tun_is_behind(),
        |mailbox| mailbox.post_answer(vec![0]),
        |mailbox| {
            let device = adit_proto::Device::new(Box::new(|_| {}));
            let from = Endpoint::from(std::net::SocketAddr::from(([192, 0, 2, 1], 1)));
            let admission = device.shared();
            let posted = mailbox.handshake(&admission, Time::default(), from, &[1]);
            assert!(posted.is_ok());
        },
    ];
    for other in post {
        let mailbox = Mailbox::new().expect("an eventfd");
        other(&mailbox);
        mailbox.waker.clear();
        assert!(mailbox.take_commands().is_empty());
        let (answer, _) = std::sync::mpsc::sync_channel(1);
        mailbox.command(ControlCommand::Resume(Resume::AsItWas, answer));
        assert!(mailbox.waker.is_due(), "the control thread sleeps on");
    }
}
