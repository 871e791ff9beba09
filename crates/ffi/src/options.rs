//! How a tunnel begins: its threads, and where its packets come from.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use adit::{Builder, Priority, Threads, TunFd};

use crate::abi::{ADIT_ERROR_DESCRIPTOR, CallFailure, SizeFirst};
use crate::callbacks::{
    BellSlot, PacketCallbacks, UserPointer, adit_call, adit_on_socket, adit_pull, adit_push,
};

/// Packets come from `fd`, a TUN device with IFF_VNET_HDR and IFF_NO_PI: those of one flow as one.
pub const ADIT_SOURCE_VNET: u32 = 1;
/// Packets come from `fd`, one a read and a write and nothing before it: a TUN device with IFF_NO_PI alone,
/// as Android's, or a datagram socket.
pub const ADIT_SOURCE_PLAIN: u32 = 2;
/// Packets come from `pull`, and go to `push`.
pub const ADIT_SOURCE_CALLBACKS: u32 = 3;

/// The threads have the priority of the process.
pub const ADIT_PRIORITY_NEVER: u32 = 0;
/// The threads have a nice value of -10, if the process may.
pub const ADIT_PRIORITY_IF_ALLOWED: u32 = 1;

/// How a tunnel begins. Zeros are the defaults of all but `struct_size` and `source`.
///
/// Callbacks are called on threads of the tunnel, and none may block or throw. In them every function may be
/// called but adit_tunnel_free, and `set`, `status` and `stop` only if nobody waits for the callback. `user`
/// and what it points to has to be there, and fit for several threads, until adit_tunnel_free has returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct adit_options {
    /// `sizeof(adit_options)`, set by the caller.
    pub struct_size: usize,
    /// The MTU of the inner network; 0 is 1420.
    pub mtu: u32,
    /// How many threads carry packets, at most; 0 is 1.
    pub threads: u32,
    /// One of ADIT_PRIORITY_….
    pub priority: u32,
    /// Other than 0: packets of one flow are not delivered as one.
    pub unmerged: u32,
    /// One of ADIT_SOURCE_….
    pub source: u32,
    /// The descriptor of the source, if it has one. The tunnel has a duplicate: this one stays the caller's, who
    /// may close it at once, and whose file status flags become non-blocking.
    pub fd: i32,
    /// With ADIT_SOURCE_CALLBACKS.
    pub pull: adit_pull,
    /// With ADIT_SOURCE_CALLBACKS.
    pub push: adit_push,
    /// What was received at once has all been pushed; or NULL.
    pub flush: adit_call,
    /// Binds a UDP socket to a device, or keeps it out of a VPN (Android's protect); or NULL.
    pub on_socket: adit_on_socket,
    /// Called by each thread when it begins; or NULL.
    pub on_start: adit_call,
    /// Passed to all callbacks.
    pub user: *mut c_void,
}

// SAFETY: it is repr(C), its size is first, and zeros are numbers and no functions.
unsafe impl SizeFirst for adit_options {
    const LEAST: usize = size_of::<Self>();
}

/// Has a tunnel begin as the options say.
///
/// # Safety
///
/// The functions and the descriptor are what `adit_options` says.
pub(crate) unsafe fn apply(
    options: &adit_options,
    mut builder: Builder,
    bell: &Arc<BellSlot>,
) -> Result<Builder, CallFailure> {
    let user = UserPointer::new(options.user);
    let mut threads = Threads::new(options.threads.max(1).try_into().unwrap_or(usize::MAX));
    threads = threads.priority(match options.priority {
        ADIT_PRIORITY_NEVER => Priority::Never,
        ADIT_PRIORITY_IF_ALLOWED => Priority::IfAllowed,
        other => {
            return Err(CallFailure::argument(format!(
                "priority {other} is no ADIT_PRIORITY_"
            )));
        }
    });
    if options.threads > MAX_THREADS {
        let text = format!("{} threads are more than {MAX_THREADS}", options.threads);
        return Err(CallFailure::argument(text));
    }
    if let Some(on_start) = options.on_start {
        // SAFETY: as the caller says.
        threads = threads.on_start(move || unsafe { on_start(user.get()) });
    }
    builder = builder.threads(threads).merged(options.unmerged == 0);
    if options.mtu != 0 {
        builder = builder.mtu(options.mtu.try_into().unwrap_or(usize::MAX));
    }
    if let Some(on_socket) = options.on_socket {
        builder = builder.on_socket(move |fd, is_ipv6| {
            // SAFETY: as the caller says.
            match unsafe { on_socket(user.get(), fd.as_raw_fd(), is_ipv6.into()) } {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        });
    }
    // SAFETY: as the caller says.
    let duplicate = || unsafe { duplicate(options.fd) };
    match (options.source, options.pull, options.push) {
        (ADIT_SOURCE_VNET, ..) => Ok(builder.tun_fd(duplicate()?, TunFd::Vnet)),
        (ADIT_SOURCE_PLAIN, ..) => Ok(builder.tun_fd(duplicate()?, TunFd::Plain)),
        (ADIT_SOURCE_CALLBACKS, Some(pull), Some(push)) => Ok(builder.packets(PacketCallbacks {
            pull,
            push,
            flush: options.flush,
            user,
            bell: Arc::clone(bell),
        })),
        (ADIT_SOURCE_CALLBACKS, ..) => Err(CallFailure::argument(
            "pull or push is NULL: with ADIT_SOURCE_CALLBACKS set both",
        )),
        (other, ..) => Err(CallFailure::argument(format!(
            "source {other} is no ADIT_SOURCE_"
        ))),
    }
}

/// More than any machine has CPUs.
const MAX_THREADS: u32 = 1024;

/// # Safety
///
/// `fd` is any number; if it is a descriptor, it stays open during the call.
unsafe fn duplicate(fd: i32) -> Result<OwnedFd, CallFailure> {
    let failed = |error: io::Error| {
        let text = format!("the descriptor {fd} cannot be the source of packets: {error}");
        CallFailure::new(ADIT_ERROR_DESCRIPTOR, text)
    };
    if fd < 0 {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    // SAFETY: it is not -1. One that is not open is an error of dup(2).
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    given.try_clone_to_owned().map_err(failed)
}
