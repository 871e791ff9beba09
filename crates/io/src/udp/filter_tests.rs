use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::time::{Duration, Instant};

use adit_netlink::netns::Netns;
use adit_netlink::{LinkChange, Netlink};
use adit_proto::INDEX_BUCKETS;
use adit_proto::wire::INITIATION_LEN;

use super::*;
use crate::udp::{Udp, bind_pair};
use crate::{Offloads, RecvBatch, SendReport, Transmit, UdpSocket};

/// Sockets of both families in a namespace of their own, and a sender to each.
struct Hosts {
    net: Netns,
    to: [Udp; 2],
    from: [StdSocket; 2],
    port: u16,
}

const V4: usize = 0;
const V6: usize = 1;

impl Hosts {
    fn new() -> Self {
        let net = Netns::new().unwrap();
        let bind = || {
            let netlink = Netlink::open().unwrap();
            let up = LinkChange {
                up: Some(true),
                ..LinkChange::default()
            };
            netlink.set_link(1, &up).unwrap();
            let (v4, v6, port) = bind_pair(0, 0, Offloads::ALL).unwrap();
            let to = [v4.unwrap(), v6.unwrap()];
            let sender = |any: &str, to: &str| {
                let sender = StdSocket::bind(any).unwrap();
                sender.connect((to, port)).unwrap();
                sender
            };
            let from = [sender("127.0.0.1:0", "127.0.0.1"), sender("[::1]:0", "::1")];
            (to, from, port)
        };
        let (to, from, port) = net.run(bind).unwrap();
        let hosts = Self {
            net,
            to,
            from,
            port,
        };
        hosts.table().set_complete(true);
        hosts
    }

    fn table(&self) -> Arc<dyn InUse> {
        self.to[V4].in_use().expect("CAP_BPF")
    }

    /// Whether a datagram comes, as loopback delivers it before the call returns.
    fn passes(&self, family: usize, datagram: &[u8]) -> bool {
        self.from[family].send(datagram).unwrap();
        received(&self.to[family]) == [datagram]
    }
}

/// What waits in a socket.
fn received(socket: &Udp) -> Vec<Vec<u8>> {
    let mut batch = RecvBatch::default();
    let mut all = Vec::new();
    while socket.recv(&mut batch).is_ok() {
        all.extend(batch.iter_mut().map(|(_, bytes)| bytes.to_vec()));
    }
    all
}

fn data(receiver: u32) -> Vec<u8> {
    let mut datagram = vec![7; 48];
    datagram[..4].copy_from_slice(&[4, 0, 0, 0]);
    datagram[4..8].copy_from_slice(&receiver.to_le_bytes());
    datagram
}

fn initiation(has_mac2: bool) -> Vec<u8> {
    let mut datagram = vec![7; INITIATION_LEN];
    datagram[..4].copy_from_slice(&[1, 0, 0, 0]);
    datagram[INITIATION_LEN - 16..].fill(0);
    datagram[INITIATION_LEN - 1] = u8::from(has_mac2);
    datagram
}

#[test]
fn data_for_indices_that_nobody_has_is_dropped_and_counted() {
    let hosts = Hosts::new();
    // Of one word of bits, of two, and with bits above those that count.
    for bucket in [0, 5, 63, 64, INDEX_BUCKETS - 1] {
        hosts.table().set(bucket, true);
    }
    for family in [V4, V6] {
        for index in [0, 5, 63, 64, 0x7fff, 0x1_8005, u32::MAX] {
            assert!(hosts.passes(family, &data(index)), "{index}");
        }
        for index in [1, 4, 62, 65, 0x7ffe, 0x1_8004] {
            assert!(!hosts.passes(family, &data(index)), "{index}");
        }
        let filtered = hosts.to[family].take_filtered();
        assert_eq!((filtered.unknown, filtered.malformed), (6, 0));
        assert_eq!(hosts.to[family].take_filtered(), Filtered::default());
    }
    hosts.table().set(5, false);
    assert!(!hosts.passes(V4, &data(5)) && hosts.passes(V4, &data(63)));
}

#[test]
fn nothing_is_dropped_while_indices_are_not_told() {
    let hosts = Hosts::new();
    hosts.table().set_complete(false);
    for datagram in [data(5), vec![9; 100], vec![0; 100], data(5)[..20].to_vec()] {
        assert!(hosts.passes(V4, &datagram));
    }
    assert_eq!(hosts.to[V4].take_filtered(), Filtered::default());
}

#[test]
fn what_is_no_message_is_dropped_and_counted() {
    let hosts = Hosts::new();
    hosts.table().set(5, true);
    let of_type = |kind: [u8; 4]| [&kind[..], &[7; 60]].concat();
    for family in [V4, V6] {
        // The lengths of handshake messages are looked at by the reader.
        for kind in 1..4 {
            assert!(hosts.passes(family, &of_type([kind, 0, 0, 0])));
        }
        for short in [&[][..], &[4], &[4, 0, 0, 0, 5, 0, 0]] {
            assert!(hosts.passes(family, short), "{short:?}");
        }
        assert!(hosts.passes(family, &data(5)[..32]));
        let wrong = [
            of_type([0, 0, 0, 0]),
            of_type([5, 0, 0, 0]),
            of_type([4, 1, 0, 0]),
            of_type([4, 0, 0, 0xff]),
            of_type([0xff; 4]),
            data(5)[..31].to_vec(),
            data(5)[..8].to_vec(),
        ];
        for datagram in &wrong {
            assert!(!hosts.passes(family, datagram), "{datagram:?}");
        }
        let malformed = wrong.len() as u64;
        let filtered = hosts.to[family].take_filtered();
        assert_eq!((filtered.malformed, filtered.unknown), (malformed, 0));
    }
}

/// A train whose first datagram is forged has honest ones behind it.
#[test]
fn a_train_passes_whatever_its_first_datagram_is() {
    let hosts = Hosts::new();
    let sender = hosts.net.run(|| {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Udp::bind(any, 0, Offloads::ALL, false).unwrap()
    });
    let (sender, bytes) = (sender.unwrap(), data(6).repeat(3));
    let train = Transmit {
        to: SocketAddr::from(([127, 0, 0, 1], hosts.port)).into(),
        ecn: 0,
        stride: 48,
        bytes: &bytes,
    };
    assert_eq!(sender.send(&[train], &mut SendReport::default()), 1);
    assert_eq!(received(&hosts.to[V4]).concat(), bytes);
    assert_eq!(hosts.to[V4].take_filtered(), Filtered::default());
}

#[test]
fn initiations_of_a_refused_source_are_dropped_for_a_while_unless_they_have_mac2() {
    let hosts = Hosts::new();
    let sources: [IpAddr; 2] = [[127, 0, 0, 1].into(), [0, 0, 0, 0, 0, 0, 0, 1].into()];
    for (family, source) in sources.into_iter().enumerate() {
        let socket = &hosts.to[family];
        assert!(hosts.passes(family, &initiation(false)));
        let begun = Instant::now();
        // The machine may sleep for as long as a refusal lasts.
        while hosts.passes(family, &initiation(false)) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            socket.refuse(source);
        }
        assert!(hosts.passes(family, &initiation(true)), "a cookie");
        assert!(
            hosts.passes(family, &initiation(false)[..147]),
            "no initiation"
        );
        while !hosts.passes(family, &initiation(false)) {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        let filtered = socket.take_filtered();
        assert!(
            filtered.refused >= 1 && filtered.unknown == 0,
            "{filtered:?}"
        );
    }
}

#[test]
fn a_refused_source_stands_for_no_other() {
    let hosts = Hosts::new();
    let other = hosts.net.run(|| StdSocket::bind("127.0.0.2:0").unwrap());
    let other = other.unwrap();
    other.connect(("127.0.0.1", hosts.port)).unwrap();
    assert!(hosts.passes(V4, &initiation(false)));
    // As many as the lab forges.
    for source in 0..4096_u32 {
        hosts.to[V4].refuse(IpAddr::V4((0x0a50_1000 + source).into()));
    }
    other.send(&initiation(false)).unwrap();
    assert_eq!(received(&hosts.to[V4]), [initiation(false)]);
}

#[test]
fn what_is_dropped_does_not_count_as_lost() {
    const SENT: usize = 1000;
    let hosts = Hosts::new();
    hosts.table().set(5, true);
    let socket = &hosts.to[V4];
    let fd = socket.fd();
    rustix::net::sockopt::set_socket_recv_buffer_size(fd, 4096).unwrap();
    for _ in 0..SENT {
        hosts.from[V4].send(&data(5)).unwrap();
        hosts.from[V4].send(&data(6)).unwrap();
    }
    let mut batch = RecvBatch::default();
    let (mut came, mut lost) = (0, 0);
    let mut drain = || {
        while socket.recv(&mut batch).is_ok() {
            came += batch.len();
            lost += batch.lost();
        }
        (came, lost)
    };
    assert!(drain().0 < SENT, "the buffer is too small");
    hosts.from[V4].send(&data(5)).unwrap();
    let (came, lost) = drain();
    assert_eq!(came as u64 + lost, SENT as u64 + 1);
    assert_eq!(socket.take_filtered().unknown, SENT as u64);
}

#[test]
fn whoever_goes_on_with_a_socket_counts_what_comes_from_then_on() {
    let hosts = Hosts::new();
    let [socket, _] = &hosts.to;
    for _ in 0..10 {
        assert!(!hosts.passes(V4, &data(6)));
    }
    // As a hand-over does it.
    hosts.table().set_complete(false);
    assert_eq!(socket.take_filtered().unknown, 10);
    let fd = socket.fd().try_clone_to_owned().unwrap();
    let taken = Udp::take_over(fd, socket.state()).unwrap();
    assert!(hosts.passes(V4, &data(6)), "nobody knows the indices now");
    Udp::set_filters(std::iter::once(&taken));
    taken.in_use().unwrap().set_complete(true);
    for _ in 0..3 {
        assert!(!hosts.passes(V4, &data(6)));
    }
    taken.in_use().unwrap().set(5, true);
    hosts.from[V4].send(&data(5)).unwrap();
    let mut batch = RecvBatch::default();
    taken.recv(&mut batch).unwrap();
    assert_eq!((batch.len(), batch.lost()), (1, 0));
    assert_eq!(taken.take_filtered().unknown, 3);
    assert_eq!(socket.take_filtered(), Filtered::default());
}

/// Reads all that waits, and returns what each batch said of the rest, with what that was.
fn waiting(socket: &Udp, mut left: u64) -> Vec<(Option<u64>, u64)> {
    let mut batch = RecvBatch::default();
    let mut said = Vec::new();
    while socket.recv(&mut batch).is_ok() {
        left -= batch.len() as u64;
        said.push((batch.waiting(), left));
    }
    said
}

#[test]
fn a_batch_tells_how_many_messages_still_wait() {
    let hosts = Hosts::new();
    hosts.table().set(5, true);
    let send = |messages: usize| {
        for _ in 0..messages {
            hosts.from[V4].send(&data(5)).unwrap();
            hosts.from[V4].send(&data(6)).unwrap();
        }
    };
    let is_right = |said: &[(Option<u64>, u64)]| {
        said.len() > 1 && said.iter().all(|(said, left)| *said == Some(*left))
    };
    send(200);
    let said = waiting(&hosts.to[V4], 200);
    assert!(is_right(&said), "{said:?}");
    // What waited before the program was there is forgotten once the socket is empty.
    send(200);
    Udp::set_filters(std::iter::once(&hosts.to[V4]));
    hosts.table().set_complete(true);
    hosts.table().set(5, true);
    waiting(&hosts.to[V4], 200);
    send(200);
    let said = waiting(&hosts.to[V4], 200);
    assert!(is_right(&said), "{said:?}");
    // So is what found no room.
    let fd = hosts.to[V4].fd();
    rustix::net::sockopt::set_socket_recv_buffer_size(fd, 100_000).unwrap();
    send(1000);
    waiting(&hosts.to[V4], 1000);
    send(50);
    let said = waiting(&hosts.to[V4], 50);
    assert!(is_right(&said), "{said:?}");
}

#[test]
fn groups_of_sources_end_their_refusals_in_turns() {
    let refusal = REFUSAL;
    for now in [0, 1, refusal - 1, 12_345_678_901] {
        let ends: Vec<u64> = (0..GROUPS)
            .map(|group| end_of_refusal(group, now))
            .collect();
        assert!(
            ends.iter()
                .all(|end| (now + 1..=now + refusal).contains(end))
        );
        let mut turns: Vec<u64> = ends.iter().map(|end| end % refusal).collect();
        turns.sort_unstable();
        assert!(
            turns.is_sorted_by(|a, b| a + refusal / 20 < *b),
            "{turns:?}"
        );
    }
}
