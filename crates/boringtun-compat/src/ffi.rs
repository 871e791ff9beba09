//! boringtun's functions for C: `include/wireguard_ffi.h` documents them.
//!
//! No argument makes them undefined that the header does not forbid, and no panic leaves them.

#![allow(unsafe_code)]
#![allow(
    non_camel_case_types,
    clippy::missing_safety_doc,
    reason = "names and documentation are those of the header"
)]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use zeroize::{Zeroize, Zeroizing};

use crate::noise::errors::WireGuardError;
use crate::noise::{Tunn, TunnResult};
use crate::x25519::{PublicKey, StaticSecret};
use crate::{key_text, log};

/// A tunnel, which one thread uses at a time: others wait.
pub struct wireguard_tunnel(Mutex<Tunn>);

/// What the caller has to do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum result_type {
    /// Nothing.
    WIREGUARD_DONE = 0,
    /// Send the result to the peer.
    WRITE_TO_NETWORK = 1,
    /// Nothing: `size` is what went wrong.
    WIREGUARD_ERROR = 2,
    /// Deliver the result, an IPv4 packet.
    WRITE_TO_TUNNEL_IPV4 = 4,
    /// Deliver the result, an IPv6 packet.
    WRITE_TO_TUNNEL_IPV6 = 6,
}

/// What a call has done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wireguard_result {
    /// What the caller has to do.
    pub op: result_type,
    /// The length of the result in `dst`, or what went wrong.
    pub size: usize,
}

/// How a tunnel is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct stats {
    /// In seconds; -1 if there is no session.
    pub time_since_last_handshake: i64,
    /// Bytes of packets that were sent.
    pub tx_bytes: usize,
    /// Bytes of packets that came.
    pub rx_bytes: usize,
    /// The part of the peer's packets that was lost, from 0 to 1.
    pub estimated_loss: f32,
    /// In milliseconds; -1 if it is not known.
    pub estimated_rtt: i32,
    reserved: [u8; 56],
}

/// A key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct x25519_key {
    /// Its bytes.
    pub key: [u8; 32],
}

impl wireguard_result {
    fn error(error: WireGuardError) -> Self {
        Self {
            op: result_type::WIREGUARD_ERROR,
            size: error as usize,
        }
    }
}

impl From<TunnResult<'_>> for wireguard_result {
    fn from(result: TunnResult<'_>) -> Self {
        let (op, size) = match result {
            TunnResult::Done => (result_type::WIREGUARD_DONE, 0),
            TunnResult::Err(error) => return Self::error(error),
            TunnResult::WriteToNetwork(bytes) => (result_type::WRITE_TO_NETWORK, bytes.len()),
            TunnResult::WriteToTunnelV4(bytes, _) => {
                (result_type::WRITE_TO_TUNNEL_IPV4, bytes.len())
            }
            TunnResult::WriteToTunnelV6(bytes, _) => {
                (result_type::WRITE_TO_TUNNEL_IPV6, bytes.len())
            }
        };
        Self { op, size }
    }
}

/// Does the work of a call; a panic has this result.
fn caught<T>(on_panic: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(on_panic)
}

/// Does something with a tunnel.
///
/// # Safety
///
/// It is NULL, or was returned by `new_tunnel` and not freed.
unsafe fn with<T>(
    tunnel: *const wireguard_tunnel,
    otherwise: T,
    work: impl FnOnce(&mut Tunn) -> T,
) -> T
where
    T: Copy,
{
    caught(otherwise, || {
        // SAFETY: as the caller says.
        let tunnel = unsafe { tunnel.as_ref() };
        match tunnel.map(|tunnel| tunnel.0.lock()) {
            Some(Ok(mut tunnel)) => work(&mut tunnel),
            // NULL, or a panic has happened to it.
            _ => otherwise,
        }
    })
}

const NO_TUNNEL: WireGuardError = WireGuardError::LockFailed;

/// The caller's source and destination. If they overlap, which boringtun forbids as well, the source is copied.
///
/// # Safety
///
/// Each is NULL, or so many bytes are there, which nobody else writes, and of `dst` nobody else reads.
unsafe fn buffers<'a>(
    (src, src_size): (*const u8, u32),
    (dst, dst_size): (*mut u8, u32),
) -> (Cow<'a, [u8]>, &'a mut [u8]) {
    let len = |is_null: bool, size: u32| match is_null {
        true => 0,
        false => usize::try_from(size).unwrap_or(0),
    };
    let (src_len, dst_len) = (len(src.is_null(), src_size), len(dst.is_null(), dst_size));
    let overlaps = src.addr() < dst.addr().saturating_add(dst_len)
        && dst.addr() < src.addr().saturating_add(src_len);
    // SAFETY: as the caller says; a slice of no bytes is made without the pointer. A source that the destination
    // overlaps is copied before the destination is borrowed.
    unsafe {
        let src = match src_len {
            0 => Cow::Borrowed(&[][..]),
            _ if overlaps => Cow::Owned(std::slice::from_raw_parts(src, src_len).to_vec()),
            _ => Cow::Borrowed(std::slice::from_raw_parts(src, src_len)),
        };
        let dst = match dst_len {
            0 => &mut [][..],
            _ => std::slice::from_raw_parts_mut(dst, dst_len),
        };
        (src, dst)
    }
}

/// A text of C; `None` if it is NULL or not UTF-8.
///
/// # Safety
///
/// It is NULL, or has a zero byte at its end.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

fn give(text: String) -> *const c_char {
    CString::new(text).map_or(null(), |text| text.into_raw().cast_const())
}

/// Makes a private key; zeros if the system has no random bytes.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_secret_key() -> x25519_key {
    let mut key = [0; 32];
    if getrandom::fill(&mut key).is_err() {
        key.zeroize();
    }
    x25519_key { key }
}

/// The public key of a private key.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_public_key(private_key: x25519_key) -> x25519_key {
    caught(x25519_key { key: [0; 32] }, || x25519_key {
        key: PublicKey::from(&StaticSecret::from(private_key.key)).to_bytes(),
    })
}

/// A key in base64, to be freed by `x25519_key_to_str_free`.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_base64(key: x25519_key) -> *const c_char {
    caught(null(), || give(key_text::to_base64(&key.key)))
}

/// A key in hexadecimal, to be freed by `x25519_key_to_str_free`.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_hex(key: x25519_key) -> *const c_char {
    caught(null(), || give(key_text::to_hex(&key.key)))
}

/// Wipes and frees the text of a key. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn x25519_key_to_str_free(stringified_key: *mut c_char) {
    if !stringified_key.is_null() {
        // SAFETY: it comes from `give`, and the caller gives it up.
        let text = unsafe { CString::from_raw(stringified_key) };
        drop(Zeroizing::new(text.into_bytes()));
    }
}

/// 1 if a text is a key in base64 other than zeros, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn check_base64_encoded_x25519_key(key: *const c_char) -> i32 {
    caught(0, || {
        // SAFETY: as the header says.
        let text = unsafe { text(key) }.filter(|text| text.len() != 64);
        let key = text.and_then(key_text::parse);
        key.is_some_and(|key| *key != [0; 32]).into()
    })
}

/// Sets the function that gets lines about handshakes. False if one was set before, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_logging_function(
    log_func: Option<unsafe extern "C" fn(*const c_char)>,
) -> bool {
    let Some(log_func) = log_func else {
        return false;
    };
    caught(false, || {
        log::set_sink(move |line| {
            if let Ok(line) = CString::new(line) {
                // SAFETY: the caller has a function that takes a text, for as long as the process runs.
                unsafe { log_func(line.as_ptr()) }
            }
        })
    })
}

/// A new tunnel; NULL if a key is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn new_tunnel(
    static_private: *const c_char,
    server_static_public: *const c_char,
    preshared_key: *const c_char,
    keep_alive: u16,
    index: u32,
) -> *mut wireguard_tunnel {
    caught(null_mut(), || {
        // SAFETY: as the header says.
        let key = |from| unsafe { text(from) }.and_then(key_text::parse);
        let private = key(static_private).filter(|key| **key != [0; 32]);
        let (Some(private), Some(public)) = (private, key(server_static_public)) else {
            return null_mut();
        };
        let preshared = key(preshared_key);
        if preshared.is_none() && !preshared_key.is_null() {
            return null_mut();
        }
        let tunnel = Tunn::new(
            StaticSecret::from(*private),
            PublicKey::from(*public),
            preshared.map(|key| *key),
            (keep_alive > 0).then_some(keep_alive),
            index,
            None,
        );
        Box::into_raw(Box::new(wireguard_tunnel(Mutex::new(tunnel))))
    })
}

/// Frees a tunnel. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tunnel_free(tunnel: *mut wireguard_tunnel) {
    if !tunnel.is_null() {
        // SAFETY: it comes from `new_tunnel`, and the caller gives it up.
        let tunnel = unsafe { Box::from_raw(tunnel) };
        caught((), || drop(tunnel));
    }
}

/// Seals an IP packet for the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_write(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: as the header says.
    unsafe {
        let (src, dst) = buffers((src, src_size), (dst, dst_size));
        with(tunnel, wireguard_result::error(NO_TUNNEL), |tunnel| {
            tunnel.encapsulate(&src, dst).into()
        })
    }
}

/// Looks at a datagram from the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_read(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: as the header says.
    unsafe {
        let (src, dst) = buffers((src, src_size), (dst, dst_size));
        with(tunnel, wireguard_result::error(NO_TUNNEL), |tunnel| {
            tunnel.decapsulate(None, &src, dst).into()
        })
    }
}

/// Does what is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_tick(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: as the header says.
    unsafe {
        let (_, dst) = buffers((null(), 0), (dst, dst_size));
        with(tunnel, wireguard_result::error(NO_TUNNEL), |tunnel| {
            tunnel.update_timers(dst).into()
        })
    }
}

/// Begins a handshake, also where one is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_force_handshake(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: as the header says.
    unsafe {
        let (_, dst) = buffers((null(), 0), (dst, dst_size));
        with(tunnel, wireguard_result::error(NO_TUNNEL), |tunnel| {
            tunnel.format_handshake_initiation(dst, true).into()
        })
    }
}

/// How a tunnel is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_stats(tunnel: *const wireguard_tunnel) -> stats {
    let none = stats {
        time_since_last_handshake: -1,
        tx_bytes: 0,
        rx_bytes: 0,
        estimated_loss: 0.0,
        estimated_rtt: -1,
        reserved: [0; 56],
    };
    // SAFETY: as the header says.
    unsafe {
        with(tunnel, none, |tunnel| {
            let (since, tx_bytes, rx_bytes, estimated_loss, rtt) = tunnel.stats();
            stats {
                time_since_last_handshake: since
                    .map_or(-1, |since| i64::try_from(since.as_secs()).unwrap_or(-1)),
                tx_bytes,
                rx_bytes,
                estimated_loss,
                estimated_rtt: rtt.map_or(-1, |rtt| i32::try_from(rtt).unwrap_or(i32::MAX)),
                ..none
            }
        })
    }
}
