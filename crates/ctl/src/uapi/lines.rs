//! The lines of requests: each adds to a draft, or is the first thing wrong with it.

use std::net::IpAddr;
use std::time::Duration;

use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_proto::{Allowance, LastSeen};
use rustix::io::Errno;

use super::UapiError;
use crate::keys;
use crate::names::{HostPort, endpoint};
use crate::text::number;

/// Bytes that malloc(3) adds to each piece of memory.
const OVERHEAD: usize = 16;
/// Most peer sections in one `set`: as many peers as a device may have, each removed and added
/// again.
pub const MAX_PEERS: usize = 2 * adit_proto::limits::MAX_PEERS;

/// Most peers of an interface whose endpoint is a name that is looked up again.
pub const MAX_NAMES: usize = 4096;

/// Most peers of an interface that may not do everything.
pub const MAX_ALLOWANCES: usize = 65_536;

/// Most peers in one `call`.
pub const MAX_CALLED: usize = 4096;

/// The names so far, and the peer that the next name is for.
#[derive(Default)]
pub(super) struct NameLines {
    pub(super) named: Vec<(PublicKey, String)>,
    pub(super) next: Option<PublicKey>,
    pub(super) keeps: bool,
}

/// The endpoints so far, and the peer that the next one is for.
#[derive(Default)]
pub(super) struct Endpoints {
    pub(super) named: Vec<(PublicKey, HostPort)>,
    pub(super) next: Option<PublicKey>,
    pub(super) keeps: bool,
}

/// What peers may do so far, the last of which the next lines are about.
#[derive(Default)]
pub(super) struct Allowances {
    pub(super) given: Vec<(PublicKey, Allowance, bool)>,
    pub(super) keeps: bool,
}

/// The peers to be called so far.
#[derive(Default)]
pub(super) struct CallLines {
    pub(super) from: Option<IpAddr>,
    pub(super) peers: Vec<(PublicKey, LastSeen)>,
}

pub(super) fn no_memory() -> UapiError {
    UapiError::new(
        Errno::NOMEM.raw_os_error(),
        "this process has no memory for the request",
    )
}

/// Adds to a list, if there is memory, and counts what the list takes.
fn push<T>(list: &mut Vec<T>, item: T, memory: &mut usize) -> Result<(), UapiError> {
    let before = list.capacity();
    list.try_reserve(1).map_err(|_| no_memory())?;
    if list.capacity() != before {
        let overhead = if before == 0 { OVERHEAD } else { 0 };
        *memory += (list.capacity() - before) * size_of::<T>() + overhead;
    }
    list.push(item);
    Ok(())
}

fn public_key(value: &str) -> Option<PublicKey> {
    Some(PublicKey(*keys::from_hex(value.as_bytes())?.bytes()))
}

/// One line of `names`.
pub(super) fn names_line(
    names: &mut NameLines,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || UapiError::invalid("names=1 takes lines public_key=KEY and name=TEXT in turn");
    match (key, names.next.take()) {
        ("replace", None) if value == "false" => names.keeps = true,
        ("public_key", None) => {
            names.next = Some(public_key(value).ok_or_else(wrong)?);
        }
        ("name", Some(peer)) if names.named.len() < MAX_PEERS => {
            // Nothing is no name, and what cannot be one is passed over.
            let name = match value {
                "" => Some(String::new()),
                value => crate::config::clean_name(value),
            };
            if let Some(name) = name {
                *memory += name.capacity() + OVERHEAD;
                push(&mut names.named, (peer, name), memory)?;
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of `endpoints`.
pub(super) fn endpoints_line(
    endpoints: &mut Endpoints,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || {
        UapiError::invalid("endpoints=1 takes lines public_key=KEY and endpoint=HOST:PORT in turn")
    };
    match (key, endpoints.next.take()) {
        ("replace", None) if value == "false" => endpoints.keeps = true,
        ("public_key", None) => {
            endpoints.next = Some(public_key(value).ok_or_else(wrong)?);
        }
        ("endpoint", Some(peer)) if endpoints.named.len() < MAX_NAMES => {
            // The name of a service stands in a file, which no client has this thread open.
            let port = value.rsplit_once(':').map(|(_, port)| port);
            port.and_then(number::<u16>).ok_or_else(wrong)?;
            let endpoint = value.parse().map_err(UapiError::invalid)?;
            *memory += value.len() + OVERHEAD;
            push(&mut endpoints.named, (peer, endpoint), memory)?;
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of `allow`: numbers are bytes, bytes a second, and seconds since the Unix epoch.
pub(super) fn allow_line(
    allowances: &mut Allowances,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || {
        UapiError::invalid(
            "allow=1 takes lines public_key=KEY, and below each to_peer, from_peer, quota or expires with a number, or \
             anew=true",
        )
    };
    let is_full = allowances.given.len() >= MAX_ALLOWANCES;
    match (key, allowances.given.last_mut()) {
        ("replace", None) if value == "false" => allowances.keeps = true,
        ("public_key", _) if is_full => {
            let errno = Errno::NOMEM.raw_os_error();
            return Err(UapiError::new(errno, "too many peers in one allow"));
        }
        ("public_key", _) => {
            let peer = public_key(value).ok_or_else(wrong)?;
            push(
                &mut allowances.given,
                (peer, Allowance::default(), false),
                memory,
            )?;
        }
        ("anew", Some((.., anew))) if value == "true" => *anew = true,
        (_, Some((_, allowance, _))) => {
            let number = number::<u64>(value).ok_or_else(wrong)?;
            match key {
                "to_peer" => allowance.to_peer = Some(number),
                "from_peer" => allowance.from_peer = Some(number),
                "quota" => allowance.quota = Some(number),
                "expires" => allowance.expires = Some(Duration::from_secs(number)),
                _ => return Err(wrong()),
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of `call`.
pub(super) fn call_line(
    calls: &mut CallLines,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || {
        UapiError::invalid(
            "call=1 takes a line from=ADDRESS, and lines public_key=KEY, below each endpoint=ADDRESS:PORT, sent=@TAI64N \
             and received=@TAI64N",
        )
    };
    let has_room = calls.peers.len() < MAX_CALLED;
    match (key, calls.peers.last_mut()) {
        ("from", None) if calls.from.is_none() => {
            calls.from = Some(value.parse().map_err(|_| wrong())?);
        }
        ("public_key", _) if has_room => {
            let peer = public_key(value).ok_or_else(wrong)?;
            push(&mut calls.peers, (peer, LastSeen::default()), memory)?;
        }
        ("endpoint", Some((_, LastSeen { at: at @ None, .. }))) => {
            *at = Some(endpoint(value).ok_or_else(wrong)?);
        }
        ("sent", Some((_, last))) => last.sent = value.parse().map_err(|_| wrong())?,
        ("received", Some((_, last))) => last.received = value.parse().map_err(|_| wrong())?,
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of a `set`: the device's until the first `public_key`, then that peer's.
pub(super) fn change_line(
    change: &mut DeviceChange,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong =
        |expected: &'static str| move || UapiError::invalid(format!("{key}: expected {expected}"));
    if key == "public_key" {
        let public = public_key(value).ok_or_else(wrong("64 hex digits"))?;
        if change.peers.len() >= MAX_PEERS {
            return Err(UapiError::new(
                Errno::NOMEM.raw_os_error(),
                "too many peers in one set",
            ));
        }
        let peer = PeerChange::new(public);
        return push(&mut change.peers, peer, memory);
    }
    if key == "protocol_version" {
        return only(value, "1").ok_or_else(wrong("1"));
    }
    let Some(peer) = change.peers.last_mut() else {
        match key {
            "private_key" => {
                let mut private = secret(value).ok_or_else(wrong("64 hex digits"))?;
                keys::clamp(&mut private);
                change.private_key = Some(private);
            }
            "listen_port" => change.listen_port = Some(number(value).ok_or_else(wrong("a port"))?),
            "fwmark" => {
                change.fwmark = Some(number(value).ok_or_else(wrong("a 32-bit decimal number"))?);
            }
            "replace_peers" => {
                only(value, "true").ok_or_else(wrong("true"))?;
                change.replace_peers = true;
            }
            _ => return Err(unknown(key, "of the device")),
        }
        return Ok(());
    };
    match key {
        "remove" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.remove = true;
            peer.allowed_ips = Vec::new();
        }
        "update_only" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.update_only = true;
        }
        "preshared_key" => {
            let key = secret(value).ok_or_else(wrong("64 hex digits"))?;
            if peer.preshared_key.replace(key).is_none() {
                *memory += size_of::<[u8; 32]>() + OVERHEAD;
            }
        }
        "endpoint" => {
            peer.endpoint = Some(endpoint(value).ok_or_else(wrong("ip:port or [ip]:port"))?);
        }
        "persistent_keepalive_interval" => {
            let seconds = number(value).ok_or_else(wrong("seconds from 0 to 65535"))?;
            peer.persistent_keepalive = Some(seconds);
        }
        "replace_allowed_ips" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.replace_allowed_ips = true;
            // It also replaces the allowed IPs that stood before it in the section.
            peer.allowed_ips.clear();
        }
        "allowed_ip" => {
            let block = allowed_ip(value).ok_or_else(wrong("ip/cidr or -ip/cidr"))?;
            if !peer.remove {
                push(&mut peer.allowed_ips, block, memory)?;
            }
        }
        _ => return Err(unknown(key, "of a peer")),
    }
    Ok(())
}

/// Names what might be a word, and nothing that might be a part of a secret: with some 160 bits of a
/// private key, the rest can be computed.
fn unknown(key: &str, of: &str) -> UapiError {
    let is_word = |key: &str| {
        key.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    match key.len() <= 40 && is_word(key) {
        true => UapiError::invalid(format!("{key:?} is no key {of}")),
        false => UapiError::invalid(format!("a line has no key {of}")),
    }
}

fn only(value: &str, expected: &str) -> Option<()> {
    (value == expected).then_some(())
}

fn secret(value: &str) -> Option<Secret> {
    keys::from_hex(value.as_bytes())
}

fn allowed_ip(value: &str) -> Option<AllowedIpChange> {
    match value.strip_prefix('-') {
        Some(value) => cidr(value).map(AllowedIpChange::Remove),
        None => cidr(value).map(AllowedIpChange::Add),
    }
}

fn cidr(value: &str) -> Option<Cidr> {
    let (addr, len) = value.split_once('/')?;
    // As Go's ParsePrefix: no leading zeros.
    if len.len() > 1 && len.starts_with('0') {
        return None;
    }
    Cidr::new(addr.parse().ok()?, number(len)?)
}
