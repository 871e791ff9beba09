//! Changes of what runs. A change is used by one thread at a time.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::Mutex;

use adit::Change;

use crate::abi::{self, ADIT_OK, CallFailure, adit_error};
use crate::config::{adit_config, adit_peer, endpoint_of, read_peer};

/// A change of a tunnel or device, all of which happens, or nothing: adit_change_new makes one,
/// adit_change_free frees it. It may be used several times.
pub struct adit_change(pub(crate) Mutex<Change>);

/// Makes a change that changes nothing yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_new(error: *mut adit_error) -> *mut adit_change {
    // SAFETY: the caller has an error with its size, or NULL.
    unsafe { abi::make(error, || Ok(adit_change(Mutex::default()))) }
}

/// Makes the change after which all is as in `config`: peers that it does not have go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_to(
    config: *const adit_config,
    error: *mut adit_error,
) -> *mut adit_change {
    // SAFETY: the caller has a config that is not freed, or NULL.
    unsafe {
        abi::make(error, || {
            let config = abi::alone(&abi::object(config, "config")?.0, "config")?;
            Ok(adit_change(Mutex::new(Change::to(&config)?)))
        })
    }
}

/// Adds a peer, or makes the one with its key this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_add_peer(
    change: *mut adit_change,
    peer: *const adit_peer,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a change that is not freed, and a peer with its size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let change = abi::object(change, "change")?;
            let peer = read_peer(peer)?;
            edit(change, |change| change.peer(&peer))
        })
    }
}

/// Removes the peer with this public key, 32 bytes, if there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_remove_peer(
    change: *mut adit_change,
    public_key: *const u8,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a change that is not freed, and 32 bytes, or NULLs.
    unsafe {
        abi::enter(error, || {
            let change = abi::object(change, "change")?;
            let key = abi::public_key(public_key, "public_key")?;
            edit(change, |change| change.remove(key))
        })
    }
}

/// The peer with this public key, 32 bytes, is at `endpoint` from now on, if there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_set_endpoint(
    change: *mut adit_change,
    public_key: *const u8,
    endpoint: *const c_char,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a change that is not freed, 32 bytes and a text that ends, or NULLs.
    unsafe {
        abi::enter(error, || {
            let change = abi::object(change, "change")?;
            let key = abi::public_key(public_key, "public_key")?;
            let endpoint = abi::text(endpoint, "endpoint")?;
            let endpoint = endpoint.ok_or_else(|| {
                CallFailure::argument("endpoint is NULL: pass an address and port")
            })?;
            let endpoint = endpoint_of(endpoint, key)?;
            edit(change, |change| change.endpoint(key, endpoint))
        })
    }
}

/// Frees a change. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_change_free(change: *mut adit_change) {
    // SAFETY: the caller gives it up.
    unsafe { abi::free(change) }
}

fn edit(change: &adit_change, edit: impl FnOnce(Change) -> Change) -> Result<i32, CallFailure> {
    let mut change = abi::alone(&change.0, "change")?;
    *change = edit(std::mem::take(&mut *change));
    Ok(ADIT_OK)
}
