//! Records of a device that is handed over: as they came, changed, or made up.

use std::convert::Infallible;
use std::sync::OnceLock;
use std::time::Duration;

use adit_proto::{Device, Import, Time};

use crate::mutate::SplitMix64;
use crate::source::InputBytes;
use crate::world::{START, addr, device, drain, joined, wall};

/// Changes of good records, at most.
const CHANGES: usize = 64;

fn export(device: &mut Device, now: Time) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let Ok(()) = device.export(now, |record| {
        records.push(record.to_vec());
        Ok::<(), Infallible>(())
    });
    records
}

fn import(records: &[Vec<u8>], now: Time) -> Option<Device> {
    let mut random = SplitMix64(1);
    let mut import = Import::new(Box::new(move |buffer| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random.number().to_le_bytes()[..chunk.len()]);
        }
    }));
    for record in records {
        import.take(record).ok()?;
    }
    import.finish(now).ok()
}

/// Those of a device with a peer, a session and a handshake under way.
fn good() -> &'static [Vec<u8>] {
    static GOOD: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let mut devices = [1, 2].map(|n: u8| {
            let mut one = device(n.into());
            one.apply(START, &joined(n, 3 - n)).expect("a right change");
            one
        });
        let wants = |device: &mut Device, now| {
            let peer = device.peers().next().cloned().expect("a peer");
            peer.want_session();
            device.handle_event(now, wall(now), &peer);
        };
        wants(&mut devices[0], START);
        for n in [0, 1, 0] {
            for sent in drain(&mut devices[n], START) {
                let from = addr(1 + u8::from(n == 1), 0).into();
                let other = &mut devices[1 - n];
                other.handle_handshake(START, wall(START), from, &sent.bytes, false);
            }
        }
        // A new one begins when the session has ended.
        let later = START + Duration::from_secs(200);
        wants(&mut devices[0], later);
        drain(&mut devices[0], later);
        export(&mut devices[0], later)
    })
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let now = START + Duration::from_secs(200);
    let mut records = match source.bool() {
        true => good().to_vec(),
        false => Vec::new(),
    };
    match records.is_empty() {
        true => {
            while !source.is_empty() {
                let len = usize::from(source.u16()) % 4096;
                records.push(source.take(len).to_vec());
            }
        }
        false => {
            for _ in 0..CHANGES {
                if source.is_empty() || records.is_empty() {
                    break;
                }
                change(&mut records, &mut source);
            }
        }
    }
    let Some(mut device) = import(&records, now) else {
        return;
    };
    // What makes a device makes the same one again.
    let again = export(&mut device, now);
    let mut other = import(&again, now).expect("a device's own records");
    assert_eq!(export(&mut other, now), again);
    assert_eq!(other.status(), device.status());
    // It runs.
    for seconds in [0, 1, 10, 1000] {
        let later = now + Duration::from_secs(seconds);
        device.handle_timeout(later, wall(later));
        while device.poll_output().is_some() {}
        let peers: Vec<_> = device.peers().cloned().collect();
        for peer in peers {
            device.seal_keepalive(later, wall(later), &peer);
        }
    }
}

fn change(records: &mut Vec<Vec<u8>>, source: &mut InputBytes<'_>) {
    let at = source.below(records.len().min(256));
    match source.below(8) {
        0 => drop(records.remove(at)),
        1 => records.insert(at, records[at].clone()),
        2 => {
            let len = usize::from(source.u16());
            records[at].truncate(len);
        }
        3 => records[at].extend(source.array::<4>()),
        _ => {
            let (place, bits) = (usize::from(source.u16()), source.u8());
            let len = records[at].len().max(1);
            if let Some(byte) = records[at].get_mut(place % len) {
                *byte ^= bits;
            }
        }
    }
}
