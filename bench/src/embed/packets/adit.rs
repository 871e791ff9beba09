//! Two devices of Adit, which pass packets one by one or in trains.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use adit_aead::{OpenJob, SealJob, TAG_LEN};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, Secret};
use adit_proto::wire::{DataHeader, sealed_len};
use adit_proto::{Device, Output, Tai64N, Time};

use super::TRAIN;
use crate::sandbox::Failure;

const MTU: usize = 1420;
const NOW: Time = Time(1_000_000_000);

/// Room for a datagram. It begins a cache line, for all ways alike.
#[repr(align(64))]
pub(super) struct Buffer(pub(super) [u8; 2048]);

impl Buffer {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self([0; 2048]))
    }
}

/// The sender and the receiver, which have a session.
pub(super) struct Ends {
    devices: [Device; 2],
    addrs: [SocketAddr; 2],
    buffers: Vec<Buffer>,
}

fn wall() -> Tai64N {
    Tai64N::from_unix(Duration::from_secs(1_800_000_000))
}

fn device(key: u8) -> Result<Device, Failure> {
    let mut urandom = std::fs::File::open("/dev/urandom")?;
    let mut device = Device::new(Box::new(move |bytes: &mut [u8]| {
        urandom.read_exact(bytes).expect("enough random bytes");
    }));
    let change = DeviceChange {
        private_key: Some(Secret::new(&[key; 32])),
        ..DeviceChange::default()
    };
    device.apply(NOW, &change)?;
    Ok(device)
}

impl Ends {
    pub(super) fn connected() -> Result<Self, Failure> {
        let mut ends = Self {
            devices: [device(1)?, device(2)?],
            addrs: ["192.0.2.1:51820".parse()?, "192.0.2.2:51820".parse()?],
            buffers: (0..TRAIN).map(|_| Buffer([0; 2048])).collect(),
        };
        for n in [0, 1] {
            let key = ends.devices[1 - n].status().public_key;
            let mut peer = PeerChange::new(key.ok_or("a device has no key")?);
            peer.endpoint = Some(ends.addrs[1 - n]);
            let other = [10, 0, 0, if n == 0 { 2 } else { 1 }];
            let block = Cidr::new(other.into(), 32).ok_or("32 bits are a prefix")?;
            peer.allowed_ips = vec![AllowedIpChange::Add(block)];
            let change = DeviceChange {
                peers: vec![peer],
                ..DeviceChange::default()
            };
            ends.devices[n].apply(NOW, &change)?;
        }
        // The first packet has no session, and asks for one.
        if ends.pass(&super::packet(64)?).is_ok() {
            return Err("there is a session before a handshake".into());
        }
        while ends.exchange(0) | ends.exchange(1) {}
        Ok(ends)
    }

    /// Lets a device do what it wants done; returns whether it did anything.
    fn exchange(&mut self, n: usize) -> bool {
        if self.devices[n].next_deadline().is_some_and(|at| at <= NOW) {
            self.devices[n].handle_timeout(NOW, wall());
        }
        let (from, mut any) = (self.addrs[n].into(), false);
        while let Some(output) = self.devices[n].poll_output() {
            any = true;
            match output {
                Output::Handshake { datagram, peer, .. } => {
                    self.devices[n].handle_sent(&datagram, peer.as_ref(), true);
                    self.devices[1 - n].handle_handshake(NOW, wall(), from, &datagram, false);
                }
                Output::Keepalive { peer } => {
                    let sealed = self.devices[n].seal_keepalive(NOW, wall(), &peer);
                    if let Some((_, mut datagram)) = sealed {
                        // What is lost here is missed below.
                        let _ = self.devices[1 - n].open(NOW, wall(), from, &mut datagram);
                    }
                }
                Output::SessionReady { .. } | Output::DropStaged { .. } | Output::Event(_) => {}
            }
        }
        any
    }

    pub(super) fn pass(&mut self, packet: &[u8]) -> Result<(), Failure> {
        let [a, b] = &mut self.devices;
        let datagram = &mut self.buffers[0].0;
        let sealed = a.seal(NOW, wall(), packet, MTU, datagram);
        let (_, len) = sealed.map_err(|_| "adit does not seal")?;
        let opened = b.open(NOW, wall(), self.addrs[0].into(), &mut datagram[..len]);
        match opened {
            Ok(opened) if opened.len() == packet.len() => Ok(()),
            _ => Err("adit does not open what it sealed".into()),
        }
    }

    /// The same as shards do it: what belongs to a train is done once.
    pub(super) fn pass_train(&mut self, packet: &[u8]) -> Result<(), Failure> {
        let [a, b] = &mut self.devices;
        let len = sealed_len(packet.len(), MTU);
        let peer = a.peers().next().ok_or("there is no peer")?;
        let session = peer.session(NOW).ok_or("there is no session")?;
        let count = u32::try_from(TRAIN)?;
        let first = session.reserve(NOW, count)?;
        let mut bytes = 0;
        let jobs = (first..).zip(&mut self.buffers).map(|(counter, buffer)| {
            bytes += len as u64;
            let (header, text) = buffer.0[..len].split_at_mut(DataHeader::LEN);
            let receiver = session.remote_index();
            if let Some(header) = header.first_chunk_mut() {
                DataHeader { receiver, counter }.write(header);
            }
            SealJob::gathered(session.send_key(), counter, 0, packet, text)
        });
        let mut jobs: Vec<_> = jobs.collect();
        adit_aead::seal(&mut jobs);
        peer.data_sent(NOW, &session, bytes);
        let header = DataHeader::parse(&self.buffers[0].0).ok_or("no data message")?;
        let inbound = b.shared().session(header.receiver).ok_or("no session")?;
        let jobs = (first..).zip(&mut self.buffers).map(|(counter, buffer)| {
            let text = &mut buffer.0[DataHeader::LEN..len];
            OpenJob::in_place(inbound.session.receive_key(), counter, text)
        });
        let mut jobs: Vec<_> = jobs.collect();
        adit_aead::open(&mut jobs);
        let mut window = inbound.session.window();
        let fresh = (first..).zip(&jobs);
        let fresh = fresh.filter(|(counter, job)| job.is_authentic() && window.commit(*counter));
        if fresh.count() < TRAIN {
            return Err("adit does not open what it sealed".into());
        }
        drop(window);
        inbound.peer.roam(self.addrs[0].into());
        inbound.peer.received(NOW, &inbound.session, bytes, true);
        let texts = self
            .buffers
            .iter()
            .map(|buffer| &buffer.0[DataHeader::LEN..len - TAG_LEN]);
        let whole = texts.filter(|text| text.starts_with(packet)).count();
        if whole < TRAIN {
            return Err("adit opens something else than it sealed".into());
        }
        Ok(())
    }
}
