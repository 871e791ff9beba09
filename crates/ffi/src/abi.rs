//! What all entries share: errors, panics, and arguments that are looked at before they are trusted.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// It was done.
pub const ADIT_OK: i32 = 0;
/// Nothing is wrong, but there is nothing: no event came in time.
pub const ADIT_NOTHING: i32 = 1;
/// An argument is NULL, has a wrong size or is no such text.
pub const ADIT_ERROR_ARGUMENT: i32 = -1;
/// No tunnel can be configured so.
pub const ADIT_ERROR_CONFIG: i32 = -2;
/// The descriptor cannot be a source of packets.
pub const ADIT_ERROR_DESCRIPTOR: i32 = -3;
/// The system refused a thread, a descriptor, memory or random bytes.
pub const ADIT_ERROR_HOST: i32 = -4;
/// The UDP port cannot be had.
pub const ADIT_ERROR_BIND: i32 = -5;
/// The tunnel has ended, or was stopped.
pub const ADIT_ERROR_ENDED: i32 = -6;
/// A thread of the tunnel did not answer for ten seconds: a callback blocks it.
pub const ADIT_ERROR_NO_ANSWER: i32 = -7;
/// Another thread is using it, and only one may.
pub const ADIT_ERROR_BUSY: i32 = -8;
/// A mistake in the library: free what it happened to, and report it.
pub const ADIT_ERROR_PANIC: i32 = -9;
/// The other end inside the tunnel refused the connection: nothing listens there.
pub const ADIT_ERROR_REFUSED: i32 = -10;
/// A host inside the tunnel says that there is no way there.
pub const ADIT_ERROR_UNREACHABLE: i32 = -11;
/// Nothing inside the tunnel answered in time.
pub const ADIT_ERROR_TIMED_OUT: i32 = -12;
/// The DNS servers inside the tunnel know no address of that name.
pub const ADIT_ERROR_UNKNOWN_NAME: i32 = -13;
/// The budget has no memory left for another connection.
pub const ADIT_ERROR_NO_ROOM: i32 = -14;

/// Why a call failed. The caller has it where it likes, sets `struct_size`, and passes it to any
/// function; NULL where it does not want to know.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct adit_error {
    /// `sizeof(adit_error)`, set by the caller. Nothing is written beyond it.
    pub struct_size: usize,
    /// What the function returned: ADIT_OK, or one of ADIT_ERROR_….
    pub code: i32,
    /// What happened and what to do, in one line of UTF-8 that ends with a zero byte. Empty without an
    /// error.
    pub text: [c_char; 244],
}

/// An error on its way out.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl CallFailure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(ADIT_ERROR_ARGUMENT, text)
    }
}

impl From<adit::ConfigError> for CallFailure {
    fn from(error: adit::ConfigError) -> Self {
        Self::new(ADIT_ERROR_CONFIG, error.to_string())
    }
}

impl From<adit::RandomError> for CallFailure {
    fn from(error: adit::RandomError) -> Self {
        Self::new(ADIT_ERROR_HOST, error.to_string())
    }
}

/// Does the work of an entry. What goes wrong with it, panics included, is told in `error` and returned.
///
/// # Safety
///
/// `error` is NULL, or begins with how many bytes may be written there.
pub(crate) unsafe fn enter(
    error: *mut adit_error,
    work: impl FnOnce() -> Result<i32, CallFailure>,
) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(of_panic(&*panic)));
    let (code, text) = match done {
        Ok(code) => (code, String::new()),
        Err(CallFailure { code, text }) => (code, text),
    };
    // SAFETY: as this function's caller says.
    unsafe { tell(error, code, &text) };
    code
}

/// The same for entries that return a new object, or NULL.
///
/// # Safety
///
/// As of [`enter`].
pub(crate) unsafe fn make<T>(
    error: *mut adit_error,
    work: impl FnOnce() -> Result<T, CallFailure>,
) -> *mut T {
    let mut made = std::ptr::null_mut();
    let work = || {
        made = Box::into_raw(Box::new(work()?));
        Ok(ADIT_OK)
    };
    // SAFETY: as this function's caller says.
    unsafe { enter(error, work) };
    made
}

/// Ends an object that [`make`] made; NULL is none.
///
/// # Safety
///
/// It is NULL or one of `make`'s, and nobody uses it from now on.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if object.is_null() {
        return;
    }
    // SAFETY: it comes from `Box::into_raw`, and is given up by the caller.
    let object = unsafe { Box::from_raw(object) };
    // A panic has nobody to be told to, and must not get into C.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(object)));
}

fn of_panic(panic: &(dyn Any + Send)) -> CallFailure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    CallFailure::new(
        ADIT_ERROR_PANIC,
        format!("a mistake in adit, please report it: {text}"),
    )
}

/// # Safety
///
/// As of [`enter`].
unsafe fn tell(error: *mut adit_error, code: i32, text: &str) {
    const TEXT: usize = offset_of!(adit_error, text);
    if error.is_null() {
        return;
    }
    // SAFETY: a struct that is not NULL has its size.
    let size = unsafe { error.cast::<usize>().read_unaligned() };
    let room = size.min(size_of::<adit_error>()).saturating_sub(TEXT + 1);
    if room == 0 {
        return;
    }
    let cut = (0..=room.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    let text = &text.as_bytes()[..cut.unwrap_or_default()];
    // SAFETY: `size` says that so many bytes are there: `code`, the text, and a zero behind it.
    unsafe {
        let to = error.cast::<u8>();
        to.add(offset_of!(adit_error, code))
            .cast::<i32>()
            .write_unaligned(code);
        to.add(TEXT)
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(TEXT + text.len()).write(0);
    }
}

/// A struct that begins with its size, so that it can grow.
///
/// # Safety
///
/// It is `repr(C)`, its first field is a `usize` with its size, and zero bytes are a value of it.
pub(crate) unsafe trait SizeFirst: Copy {
    /// Its size in the first version that had it: once a field is added, the offset of the first that was.
    const LEAST: usize;
}

/// No struct of any version is longer.
const MOST: usize = 4096;

/// How many bytes a struct has, if that can be.
///
/// # Safety
///
/// `at` is NULL, or has a size.
pub(crate) unsafe fn size_of_given<T: SizeFirst>(
    at: *const T,
    name: &str,
) -> Result<usize, CallFailure> {
    if at.is_null() {
        return Err(CallFailure::argument(format!(
            "{name} is NULL: pass a struct with its struct_size"
        )));
    }
    // SAFETY: a struct that is not NULL has its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if size < T::LEAST || size > MOST {
        let least = T::LEAST;
        let text =
            format!("{name} has the struct_size {size}, not {least} or more: set it to sizeof");
        return Err(CallFailure::argument(text));
    }
    Ok(size)
}

/// Reads a struct of any version: fields that it does not have are zero.
///
/// # Safety
///
/// `from` is NULL, or begins with how many bytes may be read there.
pub(crate) unsafe fn read_sized<T: SizeFirst>(
    from: *const T,
    name: &str,
) -> Result<T, CallFailure> {
    // SAFETY: as this function's caller says.
    let size = unsafe { size_of_given(from, name)? };
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes may be read.
    let more = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if more.iter().any(|byte| *byte != 0) {
        let text = format!("{name} sets a field that this version of adit does not have");
        return Err(CallFailure::argument(text));
    }
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are there and fit; the others are zero, which is a value of T.
    unsafe {
        let to = read.as_mut_ptr().cast::<u8>();
        to.copy_from_nonoverlapping(from.cast::<u8>(), known);
        Ok(read.assume_init())
    }
}

/// Writes a struct of any version, but its size.
///
/// # Safety
///
/// `to` is NULL, or begins with how many bytes may be written there.
pub(crate) unsafe fn write_sized<T: SizeFirst>(
    to: *mut T,
    value: &T,
    name: &str,
) -> Result<(), CallFailure> {
    // SAFETY: as this function's caller says.
    let size = unsafe { size_of_given(to.cast_const(), name)? };
    let known = size.min(size_of::<T>());
    let first = size_of::<usize>();
    // SAFETY: `known` bytes are there, of the value and of `to`.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(first);
        to.cast::<u8>()
            .add(first)
            .copy_from_nonoverlapping(from, known - first);
    }
    Ok(())
}

/// Writes a result, if it is wanted.
///
/// # Safety
///
/// `to` is NULL or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: it may be written; any alignment.
        unsafe { to.write_unaligned(value) };
    }
}

/// An object that the caller was given.
///
/// # Safety
///
/// It is NULL, or was returned by the library and not freed.
pub(crate) unsafe fn object<'a, T>(object: *const T, name: &str) -> Result<&'a T, CallFailure> {
    // SAFETY: as this function's caller says.
    let object = unsafe { object.as_ref() };
    object.ok_or_else(|| {
        CallFailure::argument(format!(
            "{name} is NULL: pass what its _new or _start returned"
        ))
    })
}

/// What only one thread uses at a time; the other ones are told.
pub(crate) fn alone<'a, T>(
    object: &'a Mutex<T>,
    name: &str,
) -> Result<MutexGuard<'a, T>, CallFailure> {
    object.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            let text = format!("another thread is using {name}: let one at a time do that");
            CallFailure::new(ADIT_ERROR_BUSY, text)
        }
        TryLockError::Poisoned(_) => {
            let text = format!("a mistake in adit has happened to {name} before: free it");
            CallFailure::new(ADIT_ERROR_PANIC, text)
        }
    })
}

/// A text, if there is one.
///
/// # Safety
///
/// `text` is NULL, or has a zero byte at its end, and stays as it is.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text
        .to_str()
        .map_err(|_| CallFailure::argument(format!("{name} is not UTF-8")))?;
    Ok(Some(text))
}

/// The 32 bytes of a key, if there are some.
///
/// # Safety
///
/// `key` is NULL or has 32 bytes.
pub(crate) unsafe fn key<'a>(key: *const u8) -> Option<&'a [u8; 32]> {
    // SAFETY: as this function's caller says; bytes have no alignment.
    unsafe { key.cast::<[u8; 32]>().as_ref() }
}

/// The public key that an argument has to be.
///
/// # Safety
///
/// As of [`key`].
pub(crate) unsafe fn public_key(
    from: *const u8,
    name: &str,
) -> Result<adit::PublicKey, CallFailure> {
    // SAFETY: as this function's caller says.
    let bytes = unsafe { key(from) };
    let bytes =
        bytes.ok_or_else(|| CallFailure::argument(format!("{name} is NULL: pass its 32 bytes")))?;
    Ok(adit::PublicKey::from_bytes(*bytes))
}

/// Whether an array of so many can be there.
pub(crate) fn check_array<T>(first: *const T, count: usize, name: &str) -> Result<(), CallFailure> {
    if count > 0 && (first.is_null() || !first.is_aligned()) {
        let text = format!("{name} is no array of {count}: it is NULL or not aligned");
        return Err(CallFailure::argument(text));
    }
    if count > isize::MAX.unsigned_abs() / size_of::<T>().max(1) {
        return Err(CallFailure::argument(format!(
            "{name} cannot have {count} elements"
        )));
    }
    Ok(())
}

/// An array of so many.
///
/// # Safety
///
/// `first` is NULL, or so many are there, and stay as they are.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], CallFailure> {
    check_array(first, count, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: it is not NULL, aligned, and no longer than memory can be; the caller says the rest.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Writes a text that the caller frees.
///
/// # Safety
///
/// `to` is NULL or may be written.
pub(crate) unsafe fn give_text(
    to: *mut *mut c_char,
    text: impl FnOnce() -> Result<String, CallFailure>,
) -> Result<i32, CallFailure> {
    if to.is_null() {
        return Err(CallFailure::argument(
            "json is NULL: pass the address of a char *",
        ));
    }
    // SAFETY: as the caller says.
    unsafe { put(to, std::ptr::null_mut()) };
    let text =
        CString::new(text()?).map_err(|_| CallFailure::argument("the text has a zero byte"))?;
    // SAFETY: as the caller says.
    unsafe { put(to, text.into_raw()) };
    Ok(ADIT_OK)
}

/// Frees a text that a function returned in a `char **`. NULL is none. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it comes from `give_text`, and the caller gives it up.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The version of the library, as "0.1.0". It is static. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn adit_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
