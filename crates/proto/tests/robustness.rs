//! No datagram panics the device or changes what it must not (invariants 3, 5 and 7).

mod common;

use adit_proto::wire::{self, DataHeader, DatagramKind};
use common::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_nothing(
        datagrams in prop::collection::vec(
            (0_u8..6, prop::collection::vec(any::<u8>(), 0..300), any::<bool>()),
            1..20,
        ),
        exact in any::<bool>(),
    ) {
        let mut net = Net::pair(1);
        net.connect();
        let before = net.hosts[A].device.status();
        for (kind, mut bytes, load) in datagrams {
            if exact {
                bytes.resize([0, 148, 92, 64, 32, 7][usize::from(kind)], 0);
            }
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
            }
            net.under_load = load;
            net.deliver(A, "203.0.113.9:9".parse().unwrap(), &bytes);
            // And past the classifier.
            let (now, wall) = (net.now, net.wall(A));
            let from = "203.0.113.9:9".parse::<std::net::SocketAddr>().unwrap().into();
            net.hosts[A].device.handle_handshake(now, wall, from, &bytes, load);
            net.drain(A);
        }
        prop_assert_eq!(net.hosts[A].device.status(), before);
        prop_assert!(net.hosts[A].delivered.is_empty());
    }

    #[test]
    fn mutated_truncated_and_extended_datagrams_do_nothing(
        seed in 0_u64..1000,
        mutations in prop::collection::vec((any::<u16>(), any::<u8>(), 0_u8..4), 1..40),
    ) {
        let mut net = Net::pair(seed);
        net.under_load = seed % 2 == 0;
        net.send(A, B, b"data");
        net.run_for(secs(20));
        let before: Vec<_> = [A, B].map(|host| net.acted_on(host)).into();
        let delivered: Vec<_> = net.hosts.iter().map(|host| host.delivered.clone()).collect();
        let log = net.log.clone();
        for (which, value, how) in mutations {
            let datagram = &log[usize::from(which) % log.len()];
            let mut bytes = datagram.bytes.clone();
            let at = usize::from(value) % bytes.len();
            match how {
                0 => bytes[at] ^= value | 1,
                1 => bytes.truncate(at),
                2 => bytes.push(value),
                _ => {}
            }
            for host in [A, B] {
                net.deliver(host, "203.0.113.9:9".parse().unwrap(), &bytes);
            }
        }
        let after: Vec<_> = [A, B].map(|host| net.acted_on(host)).into();
        prop_assert_eq!(before, after);
        for (host, delivered) in net.hosts.iter().zip(delivered) {
            prop_assert_eq!(&host.delivered, &delivered);
        }
    }

    #[test]
    fn a_header_survives_writing_and_parsing(receiver: u32, counter: u64) {
        let mut bytes = [0; 32];
        let header = DataHeader { receiver, counter };
        header.write(bytes.first_chunk_mut().unwrap());
        prop_assert_eq!(DataHeader::parse(&bytes), Some(header));
        prop_assert_eq!(DataHeader::parse(&bytes[..31]), None);
        prop_assert_eq!(wire::classify(&bytes), Some(DatagramKind::Data));
        bytes[1] = 1;
        prop_assert_eq!(DataHeader::parse(&bytes), None, "reserved bytes are zero");
    }

    #[test]
    fn padding_rounds_up_to_16_within_the_mtu(len in 0_usize..70_000, mtu in 0_usize..70_000) {
        let padded = wire::padded_len(len, mtu);
        prop_assert!(padded >= len && padded - len < 16);
        prop_assert!(padded.is_multiple_of(16) || padded == mtu || len > mtu);
        prop_assert!(mtu == 0 || padded <= mtu.max(len));
    }
}

#[test]
fn only_the_exact_lengths_are_handshakes() {
    for kind in 0..8_u8 {
        for len in 0..200 {
            let mut bytes = vec![0; len];
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let expected = match (kind, len) {
                (1, 148) | (2, 92) | (3, 64) => Some(DatagramKind::Handshake),
                (4, 32..) => Some(DatagramKind::Data),
                _ => None,
            };
            assert_eq!(wire::classify(&bytes), expected, "type {kind}, {len} bytes");
        }
    }
}

#[test]
fn handshakes_for_ever_leave_no_more_than_five_sessions_behind() {
    let mut net = Net::pair(1);
    net.weather.loss = 30;
    for _ in 0..300 {
        net.send(A, B, b"x");
        net.run_for(secs(100));
    }
    for host in [A, B] {
        let shared = net.hosts[host].device.shared();
        assert!(
            shared.session_count() <= 5,
            "{} sessions",
            shared.session_count()
        );
    }
}
