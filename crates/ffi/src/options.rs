//! How a tunnel begins: its threads, and where its packets come from.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::io;
#[cfg(feature = "net")]
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(feature = "net")]
use adit::net::Net;
use adit::{Builder, Priority, Threads, TunFd};

#[cfg(feature = "net")]
use crate::abi::text as text_of;
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
/// TCP and UDP end in this process: adit_tcp_connect, adit_tcp_listen, adit_udp_bind.
pub const ADIT_SOURCE_NET: u32 = 4;

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
    /// With ADIT_SOURCE_NET: the inner addresses of this end, with commas, as "10.0.0.2, fd00::2".
    pub addresses: *const c_char,
    /// With ADIT_SOURCE_NET: the DNS servers inside the tunnel, with commas; or NULL.
    pub dns: *const c_char,
    /// With ADIT_SOURCE_NET: bytes that all connections together may have for their buffers; 0 is 64 MiB.
    pub budget: usize,
}

// SAFETY: it is repr(C), its size is first, and zeros are numbers and no functions.
unsafe impl SizeFirst for adit_options {
    const LEAST: usize = std::mem::offset_of!(Self, addresses);
}

/// Has a tunnel begin as the options say.
///
/// # Safety
///
/// The functions and the descriptor are what `adit_options` says.
pub(crate) unsafe fn apply(
    options: &adit_options,
    builder: Builder,
    bell: &Arc<BellSlot>,
) -> Result<Builder, CallFailure> {
    let user = UserPointer::new(options.user);
    // SAFETY: as the caller says.
    let (threads, beside) = unsafe { (threads(options)?, beside(options)) };
    let mut builder = beside(builder.threads(threads));
    if let Some(mtu) = mtu(options) {
        builder = builder.mtu(mtu);
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

/// Has a tunnel with TCP and UDP of its own begin as the options say.
///
/// # Safety
///
/// As of [`apply`]; texts are NULL or have a zero byte at their end.
#[cfg(feature = "net")]
pub(crate) unsafe fn start_net(
    config: adit::Config,
    options: &adit_options,
) -> Result<Net, CallFailure> {
    // SAFETY: as the caller says.
    let (addresses, dns, threads) = unsafe {
        (
            addresses(options.addresses, "addresses")?,
            addresses(options.dns, "dns")?,
            threads(options)?,
        )
    };
    if addresses.is_empty() {
        return Err(CallFailure::argument(
            "addresses is NULL or empty: with ADIT_SOURCE_NET set the inner addresses of this end",
        ));
    }
    let options = *options;
    let mut builder = Net::builder(config).threads(threads);
    builder = addresses.into_iter().fold(builder, |it, at| it.address(at));
    builder = dns.into_iter().fold(builder, |it, at| it.dns(at));
    if let Some(mtu) = mtu(&options) {
        builder = builder.mtu(mtu);
    }
    if options.budget > 0 {
        builder = builder.budget(options.budget);
    }
    // SAFETY: as the caller says.
    let more = unsafe { beside(&options) };
    Ok(builder.tunnel(more).start()?)
}

/// Addresses with commas between them.
///
/// # Safety
///
/// `text` is NULL or has a zero byte at its end.
#[cfg(feature = "net")]
unsafe fn addresses(text: *const c_char, name: &str) -> Result<Vec<IpAddr>, CallFailure> {
    // SAFETY: as the caller says.
    let text = unsafe { text_of(text, name)? }.unwrap_or_default();
    let each = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    each.map(|address| {
        address.parse().map_err(|_| {
            CallFailure::argument(format!("{name} has {address:?}, which is no IP address"))
        })
    })
    .collect()
}

/// The MTU, if it is not the default.
pub(crate) fn mtu(options: &adit_options) -> Option<usize> {
    (options.mtu != 0).then(|| options.mtu.try_into().unwrap_or(usize::MAX))
}

/// The threads of a tunnel.
///
/// # Safety
///
/// The functions are what `adit_options` says.
pub(crate) unsafe fn threads(options: &adit_options) -> Result<Threads, CallFailure> {
    if options.threads > MAX_THREADS {
        let text = format!("{} threads are more than {MAX_THREADS}", options.threads);
        return Err(CallFailure::argument(text));
    }
    let threads = Threads::new(options.threads.max(1).try_into().unwrap_or(usize::MAX));
    let threads = threads.priority(match options.priority {
        ADIT_PRIORITY_NEVER => Priority::Never,
        ADIT_PRIORITY_IF_ALLOWED => Priority::IfAllowed,
        other => {
            return Err(CallFailure::argument(format!(
                "priority {other} is no ADIT_PRIORITY_"
            )));
        }
    });
    let user = UserPointer::new(options.user);
    Ok(match options.on_start {
        // SAFETY: as the caller says.
        Some(on_start) => threads.on_start(move || unsafe { on_start(user.get()) }),
        None => threads,
    })
}

/// What is the same for all sources of packets: whether packets are merged, and what looks at sockets.
///
/// # Safety
///
/// The functions are what `adit_options` says.
pub(crate) unsafe fn beside(
    options: &adit_options,
) -> impl FnOnce(Builder) -> Builder + Send + use<> {
    let (is_merged, on_socket) = (options.unmerged == 0, options.on_socket);
    let user = UserPointer::new(options.user);
    move |builder| {
        let builder = builder.merged(is_merged);
        let Some(on_socket) = on_socket else {
            return builder;
        };
        builder.on_socket(move |fd, is_ipv6| {
            // SAFETY: as the caller says.
            match unsafe { on_socket(user.get(), fd.as_raw_fd(), is_ipv6.into()) } {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        })
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
