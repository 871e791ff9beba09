//! Changes of the configuration against lists that are searched from end to end.

use std::net::{IpAddr, SocketAddr};

use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, PeerChange, PeerStatus, PublicKey, Secret,
};

use super::naive::NaiveRoutes;
use crate::source::InputBytes;
use crate::world::{START, device, drain, private_key, public_key};

/// What the device must be.
#[derive(Default)]
struct ConfigModel {
    own: Option<u8>,
    port: u16,
    mark: u32,
    peers: Vec<PeerStatus>,
    routes: NaiveRoutes<PublicKey>,
}

impl ConfigModel {
    fn apply(&mut self, change: &DeviceChange, key: Option<u8>) {
        if let Some(key) = key {
            self.own = (key != 7).then_some(key);
        }
        self.port = change.listen_port.unwrap_or(self.port);
        self.mark = change.fwmark.unwrap_or(self.mark);
        // With `replace_peers`, what a section does not name is reset; peers keep their order.
        let own = self.own.map(public_key);
        self.peers.retain(|peer| Some(peer.public_key) != own);
        let mut named = Vec::new();
        for section in &change.peers {
            let key = section.public_key;
            if Some(key) == own {
                continue;
            }
            let at = self.peers.iter().position(|peer| peer.public_key == key);
            // As if the others had been removed before.
            let there = at.filter(|_| !change.replace_peers || named.contains(&key));
            if section.remove {
                if let Some(at) = there {
                    self.peers.remove(at);
                    named.retain(|other| *other != key);
                    self.routes.0.retain(|(_, owner)| *owner != key);
                }
                continue;
            }
            if section.update_only && there.is_none() {
                continue;
            }
            let at = at.unwrap_or_else(|| {
                self.peers.push(PeerStatus::new(key));
                self.peers.len() - 1
            });
            named.push(key);
            self.section(at, section, there.is_none());
        }
        if change.replace_peers {
            self.peers.retain(|peer| named.contains(&peer.public_key));
        }
        let peers = &self.peers;
        self.routes
            .0
            .retain(|(_, owner)| peers.iter().any(|peer| peer.public_key == *owner));
    }

    fn section(&mut self, at: usize, section: &PeerChange, anew: bool) {
        let peer = &mut self.peers[at];
        if let Some(key) = &section.preshared_key {
            peer.preshared_key = Some(key.clone()).filter(|key| !key.is_zero());
        } else if anew {
            peer.preshared_key = None;
        }
        // Nobody was ever heard from, so that an endpoint is always taken.
        if section.endpoint.is_some() || anew {
            peer.endpoint = section.endpoint;
        }
        if section.persistent_keepalive.is_some() || anew {
            peer.persistent_keepalive = section.persistent_keepalive.unwrap_or(0);
        }
        let key = section.public_key;
        if section.replace_allowed_ips || anew {
            self.routes.0.retain(|(_, owner)| *owner != key);
        }
        for change in &section.allowed_ips {
            match change {
                AllowedIpChange::Add(block) => {
                    self.routes.insert(*block, key);
                }
                AllowedIpChange::Remove(block) if self.routes.0.contains(&(*block, key)) => {
                    self.routes.remove(*block);
                }
                AllowedIpChange::Remove(_) => {}
            }
        }
    }
}

pub(crate) fn run(input: &[u8]) {
    let mut source = InputBytes::new(input);
    let (mut device, mut model) = (device(1), ConfigModel::default());
    while !source.is_empty() {
        let (change, key) = change(&mut source);
        device.apply(START, &change).expect("few peers");
        drain(&mut device, START);
        model.apply(&change, key);
        let status = device.status();
        assert_eq!(status.public_key, model.own.map(public_key));
        assert_eq!(
            (status.listen_port, status.fwmark),
            (model.port, model.mark)
        );
        let keys =
            |peers: &[PeerStatus]| peers.iter().map(|peer| peer.public_key).collect::<Vec<_>>();
        assert_eq!(keys(&status.peers), keys(&model.peers), "after {change:?}");
        for (is, was) in status.peers.iter().zip(&model.peers) {
            let none = |key: &Option<Secret>| key.clone().filter(|key| !key.is_zero());
            assert_eq!(none(&is.preshared_key), was.preshared_key);
            assert_eq!(is.endpoint, was.endpoint);
            assert_eq!(is.persistent_keepalive, was.persistent_keepalive);
            let mut blocks: Vec<Cidr> = model
                .routes
                .0
                .iter()
                .filter(|(_, owner)| *owner == is.public_key)
                .map(|(block, _)| *block)
                .collect();
            blocks.sort_unstable();
            assert_eq!(is.allowed_ips, blocks);
        }
        let shared = device.shared();
        let routes = shared.routes();
        assert_eq!(routes.len(), model.routes.0.len());
        for (block, _) in &model.routes.0 {
            let found = routes.lookup(block.addr()).map(|peer| peer.public_key());
            assert_eq!(found, model.routes.lookup(block.addr()));
        }
    }
}

fn change(source: &mut InputBytes<'_>) -> (DeviceChange, Option<u8>) {
    let flags = source.u8();
    let key = (flags & 1 != 0).then(|| source.u8() % 8);
    let private_key = key.map(|key| {
        if key == 7 {
            Secret::zero()
        } else {
            private_key(key)
        }
    });
    let mut change = DeviceChange {
        private_key,
        listen_port: (flags & 2 != 0).then(|| source.u16()),
        fwmark: (flags & 4 != 0).then(|| source.u32()),
        replace_peers: flags & 8 != 0,
        peers: Vec::new(),
    };
    for _ in 0..flags >> 4 {
        let mut peer = PeerChange::new(public_key(source.u8() % 8));
        let flags = source.u8();
        peer.remove = flags & 3 == 3;
        peer.update_only = flags & 4 != 0;
        peer.replace_allowed_ips = flags & 8 != 0;
        if flags & 16 != 0 {
            peer.preshared_key = Some(Secret::new(&[source.u8() % 3; 32]));
        }
        if flags & 32 != 0 {
            peer.endpoint = Some(SocketAddr::from((
                [192, 0, 2, source.u8() % 4],
                1 + u16::from(source.u8() % 4),
            )));
        }
        if flags & 64 != 0 {
            peer.persistent_keepalive = Some(source.u16());
        }
        for _ in 0..source.u8() % 6 {
            let (how, len) = (source.u8(), source.u8());
            let ip: IpAddr = if how & 1 == 0 {
                [10, source.u8() % 2, 0, source.u8() % 4].into()
            } else {
                (u128::from(source.u8() % 4) << 120 | u128::from(source.u8() % 4))
                    .to_be_bytes()
                    .into()
            };
            let block = Cidr::new(ip, len % if ip.is_ipv4() { 33 } else { 129 }).expect("few bits");
            peer.allowed_ips.push(if how & 6 == 6 {
                AllowedIpChange::Remove(block)
            } else {
                AllowedIpChange::Add(block)
            });
        }
        change.peers.push(peer);
    }
    (change, key)
}
