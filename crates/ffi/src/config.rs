//! What a tunnel is to be. A config is used by one thread at a time.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::net::SocketAddr;
use std::sync::Mutex;

use adit::{Config, IpBlock, Peer, PresharedKey, PublicKey};

use crate::abi::{self, ADIT_OK, CallFailure, SizeFirst, adit_error};
use crate::keys::own_key;

/// What a tunnel is to be: adit_config_new makes one, adit_config_free frees it. Tunnels and devices take
/// a copy, so that it may be freed once they have begun.
pub struct adit_config(pub(crate) Mutex<Config>);

/// A peer. What it points to is read during the call only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct adit_peer {
    /// `sizeof(adit_peer)`, set by the caller.
    pub struct_size: usize,
    /// 32 bytes.
    pub public_key: *const u8,
    /// 32 bytes, or NULL for none.
    pub preshared_key: *const u8,
    /// Where it is, as `192.0.2.1:51820` or `[2001:db8::1]:51820`; NULL if it is not known. No name.
    pub endpoint: *const c_char,
    /// The addresses behind it, as `10.0.0.0/24, 2001:db8::/64`; NULL for none.
    pub allowed_ips: *const c_char,
    /// A packet is sent to it when none was for so many seconds; 0 is never.
    pub keepalive: u16,
}

// SAFETY: it is repr(C), its size is first, and zeros are NULLs and 0.
unsafe impl SizeFirst for adit_peer {
    const LEAST: usize = size_of::<Self>();
}

/// Makes a configuration with this private key, 32 bytes, and no peers; NULL on error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_config_new(
    private_key: *const u8,
    error: *mut adit_error,
) -> *mut adit_config {
    // SAFETY: the caller has 32 bytes there, or NULL.
    unsafe {
        abi::make(error, || {
            let config = Config::new(own_key(private_key)?);
            Ok(adit_config(Mutex::new(config)))
        })
    }
}

/// Sets the UDP port that a tunnel listens on; 0, as without this, is any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_config_set_listen_port(
    config: *mut adit_config,
    port: u16,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a config that is not freed, or NULL.
    unsafe {
        abi::enter(error, || {
            abi::alone(&abi::object(config, "config")?.0, "config")?.listen_port = port;
            Ok(ADIT_OK)
        })
    }
}

/// Adds a peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_config_add_peer(
    config: *mut adit_config,
    peer: *const adit_peer,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a config that is not freed, and a peer with its size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let mut config = abi::alone(&abi::object(config, "config")?.0, "config")?;
            let peer = read_peer(peer)?;
            config.peers.push(peer);
            let checked = config.check();
            if checked.is_err() {
                config.peers.pop();
            }
            checked?;
            Ok(ADIT_OK)
        })
    }
}

/// Frees a configuration. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_config_free(config: *mut adit_config) {
    // SAFETY: the caller gives it up.
    unsafe { abi::free(config) }
}

/// # Safety
///
/// `peer` is NULL, or has its size, keys of 32 bytes and texts that end.
pub(crate) unsafe fn read_peer(peer: *const adit_peer) -> Result<Peer, CallFailure> {
    // SAFETY: as the caller says.
    let (key, preshared, endpoint, allowed, keepalive) = unsafe {
        let peer = abi::read_sized(peer, "peer")?;
        (
            abi::public_key(peer.public_key, "public_key of the peer")?,
            abi::key(peer.preshared_key).map(PresharedKey::from_bytes),
            abi::text(peer.endpoint, "endpoint of the peer")?,
            abi::text(peer.allowed_ips, "allowed_ips of the peer")?,
            peer.keepalive,
        )
    };
    let mut read = Peer::new(key).keepalive(keepalive);
    read.preshared_key = preshared;
    read.endpoint = endpoint.map(|text| endpoint_of(text, key)).transpose()?;
    let blocks = allowed.unwrap_or_default().split(',').map(str::trim);
    for block in blocks.filter(|block| !block.is_empty()) {
        let parsed: IpBlock = block.parse().map_err(|error| {
            CallFailure::argument(format!("allowed IPs {block:?} of peer {key}: {error}"))
        })?;
        read = read.allowed_ip(parsed);
    }
    Ok(read)
}

pub(crate) fn endpoint_of(text: &str, peer: PublicKey) -> Result<SocketAddr, CallFailure> {
    text.parse().map_err(|_| {
        CallFailure::argument(format!(
            "endpoint {text:?} of peer {peer} is no address and port, as 192.0.2.1:51820: look names up before"
        ))
    })
}
