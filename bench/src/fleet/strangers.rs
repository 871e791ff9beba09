//! A flood of initiations of keys that nobody knows, each with a right mac1.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit::sans_io::{Device, Now, Outbox};
use adit::{Config, Peer, PrivateKey};
use adit_io::Transmit;
use adit_proto::config::PublicKey;
use adit_proto::{Endpoint, Source};
use adit_testbed::stats::to_f64;

use crate::gateway::clients::Sockets;
use crate::gateway::many;
use crate::sandbox::Failure;

/// Different keys: an agent forgets a key that it did not find before it comes again.
const KEYS: usize = 20_000;
const BATCH: usize = 64;
/// Where they come from: addresses of the players' host that no client has.
const SOURCES: u32 = 4096;
const FIRST: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 0);

/// Initiations that are made before the flood.
pub(super) struct Strangers(Vec<Vec<u8>>);

impl Strangers {
    pub(super) fn new(gateway: PublicKey) -> Result<Self, Failure> {
        let server: adit::PublicKey = gateway.to_string().parse()?;
        let now = Now::new(Duration::from_secs(1), Duration::from_secs(1_800_000_000));
        let one = || -> Result<Vec<u8>, Failure> {
            adit_testbed::interrupt::check()?;
            let peer = Peer::new(server).endpoint(many::gateway(0));
            let mut device = Device::new(&Config::new(PrivateKey::generate()?).peer(peer))?;
            let mut outbox = Outbox::with_capacity(0);
            device.probe(now, server);
            device.handle_timeout(now, &mut outbox);
            let train = outbox.pop().ok_or("no initiation")?;
            Ok(train.bytes.to_vec())
        };
        Ok(Self((0..KEYS).map(|_| one()).collect::<Result<_, _>>()?))
    }

    /// Sends so many a second from so many sources until it is told to stop; adds to `sent`.
    pub(super) fn flood(
        &self,
        sockets: &Sockets,
        (rate, sources): (f64, u32),
        stop: &AtomicBool,
        sent: &AtomicU64,
    ) {
        let begun = Instant::now();
        let mut next = 0_usize;
        while !stop.load(Ordering::Relaxed) {
            if to_f64(next) > begun.elapsed().as_secs_f64() * rate {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            let batch: Vec<Transmit<'_>> = (next..next + BATCH)
                .map(|number| {
                    let bytes = &self.0[number % self.0.len()];
                    let source = u32::try_from(number).unwrap_or(0) % sources.min(SOURCES);
                    let ip = Ipv4Addr::from_bits(FIRST.to_bits() + source);
                    Transmit {
                        to: Endpoint {
                            addr: many::gateway(0),
                            src: Some(Source {
                                ip: IpAddr::V4(ip),
                                ifindex: 0,
                            }),
                        },
                        ecn: 0,
                        stride: bytes.len(),
                        bytes,
                    }
                })
                .collect();
            sockets.send(&batch);
            next += BATCH;
            sent.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
    }
}
