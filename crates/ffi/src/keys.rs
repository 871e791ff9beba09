//! Keys. All functions may be called by any thread.

#![allow(unsafe_code)]

use std::ffi::c_char;

use adit::{PresharedKey, PrivateKey, PublicKey};

use crate::abi::{self, ADIT_OK, CallFailure, adit_error};

/// The length of a key in bytes.
pub const ADIT_KEY_LEN: usize = 32;
/// The length of a key in base64, with the zero byte behind it.
pub const ADIT_KEY_TEXT_LEN: usize = 45;

/// Makes a private key of the system's random bytes, and writes its 32 bytes to `private_key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_private_key_generate(
    private_key: *mut u8,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has 32 bytes at `private_key`, or NULL.
    unsafe {
        abi::enter(error, || {
            let key = PrivateKey::generate()?;
            write(private_key, key.as_bytes(), "private_key")
        })
    }
}

/// Writes the public key of a private key, 32 bytes each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_public_key(
    private_key: *const u8,
    public_key: *mut u8,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has 32 bytes at both, or NULL.
    unsafe {
        abi::enter(error, || {
            let key = own_key(private_key)?.public_key();
            write(public_key, key.as_bytes(), "public_key")
        })
    }
}

/// Reads a key of any kind in base64, as wg(8) writes it, and writes its 32 bytes to `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_key_from_base64(
    text: *const c_char,
    key: *mut u8,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a text that ends, or NULL, and 32 bytes at `key`, or NULL.
    unsafe {
        abi::enter(error, || {
            let text = abi::text(text, "text")?;
            let text =
                text.ok_or_else(|| CallFailure::argument("text is NULL: pass a key in base64"))?;
            // Of all kinds of keys this is the one that may have any bytes, and is zeroized.
            let read: PresharedKey = text.parse().map_err(of_key)?;
            write(key, read.as_bytes(), "key")
        })
    }
}

/// Writes the 32 bytes of a key of any kind in base64: 44 characters and a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_key_to_base64(
    key: *const u8,
    text: *mut c_char,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has 32 bytes at `key`, or NULL, and 45 at `text`, or NULL.
    unsafe {
        abi::enter(error, || {
            let key =
                abi::key(key).ok_or_else(|| CallFailure::argument("key is NULL: pass 32 bytes"))?;
            if text.is_null() {
                return Err(CallFailure::argument(
                    "text is NULL: pass room for 45 bytes",
                ));
            }
            // A key of zeros is no private one, and no secret.
            match PrivateKey::from_bytes(key) {
                Ok(key) => write_text(text, &key.to_base64()),
                Err(_) => write_text(text, &PublicKey::from_bytes(*key).to_string()),
            }
            Ok(ADIT_OK)
        })
    }
}

/// # Safety
///
/// `text` has room for it and a zero byte.
unsafe fn write_text(text: *mut c_char, written: &str) {
    // SAFETY: as the caller says.
    unsafe {
        let to = text.cast::<u8>();
        to.copy_from_nonoverlapping(written.as_ptr(), written.len());
        to.add(written.len()).write(0);
    }
}

/// # Safety
///
/// `to` is NULL or has 32 bytes.
unsafe fn write(to: *mut u8, key: &[u8; 32], name: &str) -> Result<i32, CallFailure> {
    if to.is_null() {
        return Err(CallFailure::argument(format!(
            "{name} is NULL: pass room for 32 bytes"
        )));
    }
    // SAFETY: as the caller says.
    unsafe { to.copy_from_nonoverlapping(key.as_ptr(), key.len()) };
    Ok(ADIT_OK)
}

/// # Safety
///
/// `from` is NULL or has 32 bytes.
pub(crate) unsafe fn own_key(from: *const u8) -> Result<PrivateKey, CallFailure> {
    // SAFETY: as the caller says.
    let bytes = unsafe { abi::key(from) };
    let bytes =
        bytes.ok_or_else(|| CallFailure::argument("private_key is NULL: pass its 32 bytes"))?;
    PrivateKey::from_bytes(bytes).map_err(of_key)
}

fn of_key(error: adit::KeyError) -> CallFailure {
    CallFailure::argument(error.to_string())
}
