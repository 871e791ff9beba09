//! The text that `get` answers and that a `set` sends. The keys stand in the order of the kernel
//! and wireguard-go.

use std::fmt::Write;
use std::net::SocketAddr;

use adit_proto::config::{
    AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerStatus, PublicKey, Secret,
};
use zeroize::Zeroizing;

use super::CalledPeers;
use crate::keys;
use crate::zeroized::Zeroized;

/// Writes to memory, which cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { _ = writeln!($out, $($arg)*) };
}

/// The answer to `get=1`, its `errno=0` and blank line included.
pub fn format_status(status: &DeviceStatus) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroized::default();
    write_status(&mut out, status);
    Zeroizing::new(out.to_vec())
}

fn write_status(out: &mut Zeroized, status: &DeviceStatus) {
    write_device(out, status);
    for peer in &status.peers {
        write_peer(out, peer);
        write_blocks(out, &peer.allowed_ips);
    }
    write_errno(out, 0);
}

pub(crate) fn write_device(out: &mut Zeroized, status: &DeviceStatus) {
    if let Some(key) = status.private_key.as_ref().filter(|key| !key.is_zero()) {
        line!(out, "private_key={}", *keys::to_hex(key.bytes()));
    }
    if status.listen_port != 0 {
        line!(out, "listen_port={}", status.listen_port);
    }
    if status.fwmark != 0 {
        line!(out, "fwmark={}", status.fwmark);
    }
}

/// All of a peer but its allowed IPs.
pub(crate) fn write_peer(out: &mut Zeroized, peer: &PeerStatus) {
    public_key(out, &peer.public_key);
    let preshared = peer.preshared_key.as_ref().map(Secret::bytes);
    let preshared = keys::to_hex(preshared.unwrap_or(&[0; 32]));
    line!(out, "preshared_key={}", *preshared);
    line!(out, "protocol_version=1");
    if let Some(addr) = &peer.endpoint {
        endpoint(out, addr);
    }
    // wgctrl-go shows "never" unless both parts are above zero.
    let (sec, nsec) = peer
        .last_handshake
        .map_or((0, 0), |at| (at.as_secs(), at.subsec_nanos().max(1)));
    line!(out, "last_handshake_time_sec={sec}");
    line!(out, "last_handshake_time_nsec={nsec}");
    line!(out, "tx_bytes={}", peer.tx_bytes);
    line!(out, "rx_bytes={}", peer.rx_bytes);
    keepalive(out, peer.persistent_keepalive);
}

pub(crate) fn write_blocks(out: &mut Zeroized, blocks: &[Cidr]) {
    for block in blocks {
        line!(out, "allowed_ip={block}");
    }
}

/// The reason of a refusal, before its errno.
pub(crate) fn write_message(out: &mut Zeroized, message: &str) {
    line!(out, "message={}", message.replace('\n', " "));
}

pub(crate) fn write_called(out: &mut Zeroized, peers: &CalledPeers) {
    for (key, count) in [
        ("called", peers.called),
        ("here", peers.here),
        ("nowhere", peers.nowhere),
        ("unknown", peers.unknown),
    ] {
        line!(out, "{key}={count}");
    }
}

pub(crate) fn write_errno(out: &mut Zeroized, errno: i32) {
    line!(out, "errno={errno}\n");
}

/// A whole `set=1` request, its blank line included.
pub fn format_set(change: &DeviceChange) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroized::default();
    line!(out, "set=1");
    if let Some(key) = &change.private_key {
        line!(out, "private_key={}", *keys::to_hex(key.bytes()));
    }
    if let Some(port) = change.listen_port {
        line!(out, "listen_port={port}");
    }
    if let Some(mark) = change.fwmark {
        line!(out, "fwmark={mark}");
    }
    if change.replace_peers {
        line!(out, "replace_peers=true");
    }
    for peer in &change.peers {
        public_key(&mut out, &peer.public_key);
        if peer.remove {
            line!(out, "remove=true");
        }
        if peer.update_only {
            line!(out, "update_only=true");
        }
        if let Some(key) = &peer.preshared_key {
            line!(out, "preshared_key={}", *keys::to_hex(key.bytes()));
        }
        if let Some(addr) = &peer.endpoint {
            endpoint(&mut out, addr);
        }
        if let Some(seconds) = peer.persistent_keepalive {
            keepalive(&mut out, seconds);
        }
        if peer.replace_allowed_ips {
            line!(out, "replace_allowed_ips=true");
        }
        for change in &peer.allowed_ips {
            match change {
                AllowedIpChange::Add(block) => line!(out, "allowed_ip={block}"),
                AllowedIpChange::Remove(block) => line!(out, "allowed_ip=-{block}"),
            }
        }
    }
    line!(out, "");
    Zeroizing::new(out.to_vec())
}

fn public_key(out: &mut Zeroized, key: &PublicKey) {
    line!(out, "public_key={}", *keys::to_hex(&key.0));
}

fn endpoint(out: &mut Zeroized, addr: &SocketAddr) {
    line!(out, "endpoint={addr}");
}

fn keepalive(out: &mut Zeroized, seconds: u16) {
    line!(out, "persistent_keepalive_interval={seconds}");
}
