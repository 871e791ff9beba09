//! What a train is on the wire.

#[allow(dead_code, reason = "each test file uses a part of this")]
mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use adit_io::testing::mem::MemUdp;
use adit_io::{RecvBatch, SendReport, Transmit, UdpSocket};
use common::{A, B, EnginePair, Options, inner_ip, segments, tcp_frame};

/// As SPEC.md says.
const DATAGRAMS: usize = 64;
const BYTES: usize = 65_507;
/// What a data message adds to its packet.
const OVERHEAD: usize = 32;

/// Stride and length of each train of data that was sent.
type Trains = Arc<Mutex<Vec<(usize, usize)>>>;

struct Tap {
    socket: MemUdp,
    trains: Trains,
}

impl UdpSocket for Tap {
    fn send(&self, trains: &[Transmit<'_>], report: &mut SendReport) -> usize {
        let data = trains.iter().filter(|train| train.bytes[0] == 4);
        let mut seen = self.trains.lock().expect("no panic while locked");
        seen.extend(data.map(|train| (train.stride, train.bytes.len())));
        self.socket.send(trains, report)
    }

    fn recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.socket.recv(batch)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }
}

#[test]
fn a_train_holds_as_many_datagrams_as_one_send_can_carry() {
    let trains = Trains::default();
    let seen = Arc::clone(&trains);
    let pair = EnginePair::with_sockets(Options::default(), move |_, socket| Tap {
        socket,
        trains: Arc::clone(&seen),
    });
    // Segments whose datagrams are 144 and 1024 bytes long: 64 of these would be 65,536 bytes.
    for (mss, whole) in [(72, DATAGRAMS), (952, BYTES / 1024)] {
        let stride = OVERHEAD + 40 + usize::from(mss);
        let frame = tcp_frame(inner_ip(A), inner_ip(B), 1, mss, &[7; 65_000]);
        let count = segments(&frame).len();
        pair.inject(A, frame);
        assert_eq!(pair.delivered(B, count).len(), count);

        let mut trains = trains.lock().expect("no panic while locked");
        assert!(trains.iter().all(|&(_, len)| len <= BYTES), "{trains:?}");
        let of_frame = trains.drain(..).filter(|train| train.0 == stride);
        let sizes: Vec<_> = of_frame.map(|(_, len)| len.div_ceil(stride)).collect();
        let mut expected = vec![whole; count / whole];
        expected.extend(Some(count % whole).filter(|&rest| rest > 0));
        assert_eq!(sizes, expected, "datagrams of {stride} bytes");
    }
}
