//! Adit under boringtun's API, and boringtun itself, as the two ends of a tunnel.

use std::net::IpAddr;
use std::sync::Arc;

/// What a call had for the network, or what came out of the tunnel.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Done,
    Network(Vec<u8>),
    Packet(Vec<u8>, IpAddr),
    Error(String),
}

/// One end of a tunnel, of either library.
trait End {
    const NAME: &'static str;
    fn new(own: [u8; 32], peer: [u8; 32], preshared: Option<[u8; 32]>, limit: Option<u64>) -> Self;
    fn initiation(&mut self) -> Said;
    fn seal(&mut self, packet: &[u8]) -> Said;
    fn open(&mut self, from: Option<IpAddr>, datagram: &[u8]) -> Said;
    fn tick(&mut self) -> Said;
    fn bytes(&self) -> (usize, usize);
}

fn public(private: [u8; 32]) -> [u8; 32] {
    let private = boringtun::x25519::StaticSecret::from(private);
    boringtun::x25519::PublicKey::from(&private).to_bytes()
}

/// The same code for both: the names are the same.
macro_rules! end {
    ($end:ident, $library:ident) => {
        struct $end($library::noise::Tunn);

        impl $end {
            fn said(result: $library::noise::TunnResult<'_>) -> Said {
                use $library::noise::TunnResult;
                match result {
                    TunnResult::Done => Said::Done,
                    TunnResult::Err(error) => Said::Error(format!("{error:?}")),
                    TunnResult::WriteToNetwork(bytes) => Said::Network(bytes.to_vec()),
                    TunnResult::WriteToTunnelV4(bytes, from) => {
                        Said::Packet(bytes.to_vec(), from.into())
                    }
                    TunnResult::WriteToTunnelV6(bytes, from) => {
                        Said::Packet(bytes.to_vec(), from.into())
                    }
                }
            }
        }

        impl End for $end {
            const NAME: &'static str = stringify!($library);

            fn new(
                own: [u8; 32],
                peer: [u8; 32],
                preshared: Option<[u8; 32]>,
                limit: Option<u64>,
            ) -> Self {
                use $library::noise::rate_limiter::RateLimiter;
                use $library::x25519::{PublicKey, StaticSecret};
                let limiter = limit
                    .map(|limit| Arc::new(RateLimiter::new(&PublicKey::from(public(own)), limit)));
                let (own, peer) = (StaticSecret::from(own), PublicKey::from(peer));
                Self($library::noise::Tunn::new(
                    own, peer, preshared, None, 7, limiter,
                ))
            }

            fn initiation(&mut self) -> Said {
                Self::said(self.0.format_handshake_initiation(&mut [0; 148], true))
            }

            fn seal(&mut self, packet: &[u8]) -> Said {
                Self::said(
                    self.0
                        .encapsulate(packet, &mut vec![0; 148.max(packet.len() + 32)]),
                )
            }

            fn open(&mut self, from: Option<IpAddr>, datagram: &[u8]) -> Said {
                Self::said(self.0.decapsulate(from, datagram, &mut vec![0; 2048]))
            }

            fn tick(&mut self) -> Said {
                Self::said(self.0.update_timers(&mut [0; 148]))
            }

            fn bytes(&self) -> (usize, usize) {
                let (_, tx_bytes, rx_bytes, ..) = self.0.stats();
                (tx_bytes, rx_bytes)
            }
        }
    };
}

end!(Ours, boringtun_compat);
end!(Theirs, boringtun);

fn pair<A: End, B: End>(preshared: Option<[u8; 32]>) -> (A, B) {
    let keys = [[1; 32], [2; 32]];
    (
        A::new(keys[0], public(keys[1]), preshared, None),
        B::new(keys[1], public(keys[0]), preshared, None),
    )
}

#[track_caller]
fn network(said: Said) -> Vec<u8> {
    match said {
        Said::Network(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

fn packet(number: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    packet[4..6].copy_from_slice(&number.to_be_bytes());
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    for (byte, at) in packet[20..].iter_mut().zip(1_u8..=255) {
        *byte = at;
    }
    packet
}

#[track_caller]
fn passes(from: &mut impl End, to: &mut impl End, packet: &[u8]) {
    let datagram = network(from.seal(packet));
    let source = [10, 0, 0, 1].into();
    assert_eq!(
        to.open(None, &datagram),
        Said::Packet(packet.to_vec(), source)
    );
}

/// A packet begins a handshake; both ends send; a second handshake follows.
fn talk<A: End, B: End>(preshared: Option<[u8; 32]>) {
    let (mut here, mut there) = pair::<A, B>(preshared);
    let initiation = network(here.seal(&packet(1, 100)));
    let response = network(there.open(None, &initiation));
    let mut came = 0;
    let mut datagram = here.open(None, &response);
    while let Said::Network(bytes) = datagram {
        match there.open(None, &bytes) {
            Said::Packet(bytes, _) => {
                assert_eq!(bytes, packet(1, 100));
                came += 1;
            }
            said => assert_eq!(said, Said::Done, "{} to {}", A::NAME, B::NAME),
        }
        datagram = here.open(None, &[]);
    }
    assert_eq!((datagram, came), (Said::Done, 1));
    let mut sent = 100;
    for number in 0..400 {
        let len = 20 + usize::from(number) * 3;
        passes(&mut here, &mut there, &packet(number, len));
        passes(&mut there, &mut here, &packet(number, len));
        sent += len;
    }
    assert_eq!(here.bytes(), (sent, sent - 100));
    assert_eq!(there.bytes(), (sent - 100, sent));
    assert_eq!((here.tick(), there.tick()), (Said::Done, Said::Done));

    // The other end, which was the responder.
    let response = {
        let initiation = network(there.initiation());
        network(here.open(None, &initiation))
    };
    let keepalive = network(there.open(None, &response));
    assert_eq!(here.open(None, &keepalive), Said::Done);
    passes(&mut here, &mut there, &packet(1, 60));
    passes(&mut there, &mut here, &packet(2, 60));
}

#[test]
fn a_tunnel_of_ours_and_boringtuns_carries_packets() {
    talk::<Ours, Theirs>(None);
    talk::<Theirs, Ours>(Some([9; 32]));
    talk::<Ours, Ours>(Some([9; 32]));
}

/// What boringtun does with itself: what is told of the other pairs is not a property of these tests.
#[test]
fn boringtun_passes_the_same_test() {
    talk::<Theirs, Theirs>(None);
}

/// A responder under load, whose cookie the initiator shows.
fn prove<A: End, B: End>() {
    let from = Some([192, 0, 2, 1].into());
    let (mut here, _) = pair::<A, B>(None);
    let mut there = B::new([2; 32], public([1; 32]), None, Some(0));
    let initiation = network(here.initiation());
    assert_eq!(
        there.open(None, &initiation),
        Said::Error("UnderLoad".into())
    );
    let reply = network(there.open(from, &initiation));
    assert_eq!(reply.len(), 64, "{}", B::NAME);
    assert_eq!(here.open(None, &reply), Said::Done);
    let initiation = network(here.initiation());
    let response = network(there.open(from, &initiation));
    assert_eq!(response.len(), 92, "{} to {}", A::NAME, B::NAME);
    let keepalive = network(here.open(None, &response));
    assert_eq!(there.open(from, &keepalive), Said::Done);
    passes(&mut here, &mut there, &packet(1, 60));
}

#[test]
fn a_cookie_of_either_is_shown_by_the_other() {
    prove::<Ours, Theirs>();
    prove::<Theirs, Ours>();
}

/// The errors that both have for the same mistakes.
fn refuse<A: End, B: End>() -> Vec<Said> {
    let (mut here, mut there) = pair::<A, B>(None);
    let (mut stranger, _) = pair::<A, B>(None);
    let mut other_psk = A::new([1; 32], public([2; 32]), Some([3; 32]), None);
    let initiation = network(here.initiation());
    let response = network(there.open(None, &initiation));
    let mut said = vec![stranger.open(None, &response)];
    let keepalive = network(here.open(None, &response));
    said.push(there.open(None, &keepalive));
    said.push(there.open(None, &keepalive));
    let mut damaged = network(here.seal(&packet(1, 60)));
    damaged[40] ^= 1;
    said.push(there.open(None, &damaged));
    said.push(there.open(None, &damaged[..20]));
    said.push(there.open(None, &initiation));
    let mut wrong_mac = network(here.initiation());
    wrong_mac[116] ^= 1;
    said.push(there.open(None, &wrong_mac));
    std::thread::sleep(std::time::Duration::from_millis(40));
    let initiation = network(other_psk.initiation());
    let response = network(there.open(None, &initiation));
    said.push(other_psk.open(None, &response));
    said
}

#[test]
fn errors_have_the_names_that_boringtun_gives_them() {
    let theirs = refuse::<Theirs, Theirs>();
    assert_eq!(refuse::<Ours, Ours>(), theirs);
    assert_eq!(refuse::<Ours, Theirs>(), theirs);
    assert_eq!(refuse::<Theirs, Ours>(), theirs);
    let errors = theirs.iter().filter(|said| matches!(said, Said::Error(_)));
    assert_eq!(errors.count(), theirs.len() - 1);
}
