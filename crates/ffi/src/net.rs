//! TCP and UDP inside a tunnel that began with ADIT_SOURCE_NET. A stream and a UDP port are descriptors of sockets,
//! which the caller reads, writes, waits for and closes as any.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::time::Duration;

use adit::net::{NetError, TcpListener};

use crate::abi::{
    self, ADIT_ERROR_BIND, ADIT_ERROR_CONFIG, ADIT_ERROR_DESCRIPTOR, ADIT_ERROR_ENDED,
    ADIT_ERROR_HOST, ADIT_ERROR_NO_ROOM, ADIT_ERROR_REFUSED, ADIT_ERROR_TIMED_OUT,
    ADIT_ERROR_UNKNOWN_NAME, ADIT_ERROR_UNREACHABLE, ADIT_NOTHING, ADIT_OK, CallFailure,
    adit_error,
};
use crate::tunnel::adit_tunnel;

/// A TCP port inside a tunnel: adit_tcp_listen makes one, adit_tcp_listener_free ends it.
pub struct adit_tcp_listener(TcpListener);

/// Connects to `target` inside a tunnel: "name:port", "address:port", an IPv6 address in brackets. A name is looked up
/// inside the tunnel, too. Waits for `timeout_ms` at most. `fd` is then a stream socket, which is the caller's
/// to close: closed, or shut down for writing, it ends the stream as TCP does. One that the other end resets reads as
/// if it had ended. ADIT_ERROR_REFUSED,
/// ADIT_ERROR_UNREACHABLE, ADIT_ERROR_TIMED_OUT, ADIT_ERROR_UNKNOWN_NAME and ADIT_ERROR_NO_ROOM say why not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tcp_connect(
    tunnel: *const adit_tunnel,
    target: *const c_char,
    timeout_ms: u32,
    fd: *mut i32,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, a text, and room for a number, or NULLs.
    unsafe {
        abi::enter(error, || {
            give_fd(fd, || {
                let tunnel = abi::object(tunnel, "tunnel")?;
                let target = abi::text(target, "target")?;
                let target = target.ok_or_else(|| {
                    CallFailure::argument("target is NULL: pass \"name:port\" or \"address:port\"")
                })?;
                let timeout = Duration::from_millis(timeout_ms.into());
                let stream = tunnel.with_net(|net| Ok(net.connect_tcp(target, timeout)?))?;
                duplicate(stream.as_fd())
            })
        })
    }
}

/// Listens on a TCP port inside a tunnel, on all its inner addresses; 0 is any. NULL on error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tcp_listen(
    tunnel: *const adit_tunnel,
    port: u16,
    error: *mut adit_error,
) -> *mut adit_tcp_listener {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe {
        abi::make(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            let listener = tunnel.with_net(|net| Ok(net.listen_tcp(port)?))?;
            Ok(adit_tcp_listener(listener))
        })
    }
}

/// The port of a listener; 0 if it is NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tcp_listener_port(listener: *const adit_tcp_listener) -> u16 {
    // SAFETY: the caller has a listener that is not freed, or NULL.
    unsafe { listener.as_ref() }.map_or(0, |listener| listener.0.port())
}

/// The next connection, for which it waits up to `timeout_ms`, or for as long as it takes if that is negative.
/// `fd` is then a stream socket, as of adit_tcp_connect. ADIT_NOTHING if none came, ADIT_ERROR_ENDED once the
/// tunnel has ended. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tcp_accept(
    listener: *const adit_tcp_listener,
    timeout_ms: i64,
    fd: *mut i32,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a listener that is not freed, and room for a number, or NULLs.
    unsafe {
        abi::enter(error, || {
            let mut came = true;
            let done = give_fd(fd, || {
                let listener = &abi::object(listener, "listener")?.0;
                let timeout = u64::try_from(timeout_ms);
                let timeout = timeout.map_or(Duration::MAX, Duration::from_millis);
                match listener.accept_timeout(timeout)? {
                    Some(stream) => duplicate(stream.as_fd()),
                    None => {
                        came = false;
                        Ok(-1)
                    }
                }
            });
            done.map(|code| if came { code } else { ADIT_NOTHING })
        })
    }
}

/// Closes a TCP port, and resets the connections that were not accepted. NULL is none. No other thread may be
/// in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tcp_listener_free(listener: *mut adit_tcp_listener) {
    // SAFETY: the caller gives it up.
    unsafe { abi::free(listener) }
}

/// Has a UDP port inside a tunnel, on all its inner addresses; 0 is any, and is written to `port`. `fd` is then a
/// socket that keeps messages apart (SOCK_SEQPACKET), which is the caller's to close. A message that is
/// written or read is a datagram behind 19 bytes: a zero, the port of the other end in network order, and its
/// address as IPv6; IPv4 is ::ffff:a.b.c.d. One that does not fit the MTU or its queue is lost. At the end of the
/// tunnel a read returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_udp_bind(
    tunnel: *const adit_tunnel,
    port: *mut u16,
    fd: *mut i32,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, a port, and room for a number, or NULLs.
    unsafe {
        abi::enter(error, || {
            give_fd(fd, || {
                let tunnel = abi::object(tunnel, "tunnel")?;
                let wanted = match port.is_null() {
                    true => 0,
                    false => port.read_unaligned(),
                };
                let socket = tunnel.with_net(|net| Ok(net.bind_udp(wanted)?))?;
                let given = duplicate(socket.as_fd())?;
                abi::put(port, socket.port());
                Ok(given)
            })
        })
    }
}

/// Writes the descriptor that `make` makes, or -1.
///
/// # Safety
///
/// `fd` is NULL or may be written.
unsafe fn give_fd(
    fd: *mut i32,
    make: impl FnOnce() -> Result<i32, CallFailure>,
) -> Result<i32, CallFailure> {
    if fd.is_null() {
        return Err(CallFailure::argument(
            "fd is NULL: pass the address of an int",
        ));
    }
    // SAFETY: as the caller says.
    unsafe { abi::put(fd, -1) };
    let made = make()?;
    // SAFETY: as the caller says.
    unsafe { abi::put(fd, made) };
    Ok(ADIT_OK)
}

/// A descriptor of the caller's own.
fn duplicate(fd: BorrowedFd<'_>) -> Result<i32, CallFailure> {
    let fd = fd.try_clone_to_owned().map_err(NetError::Host)?;
    Ok(fd.into_raw_fd())
}

impl From<NetError> for CallFailure {
    fn from(error: NetError) -> Self {
        let code = match error {
            NetError::Tunnel(error) => return error.into(),
            NetError::Refused(_) => ADIT_ERROR_REFUSED,
            NetError::Unreachable(_) => ADIT_ERROR_UNREACHABLE,
            NetError::TimedOut(_) => ADIT_ERROR_TIMED_OUT,
            NetError::UnknownName(_) => ADIT_ERROR_UNKNOWN_NAME,
            NetError::NoMemory => ADIT_ERROR_NO_ROOM,
            NetError::PortTaken(_) => ADIT_ERROR_BIND,
            NetError::NoStream(_) => ADIT_ERROR_DESCRIPTOR,
            NetError::NoDnsServers(_) | NetError::NoAddress(_) => ADIT_ERROR_CONFIG,
            NetError::Ended => ADIT_ERROR_ENDED,
            NetError::Target(_) => abi::ADIT_ERROR_ARGUMENT,
            _ => ADIT_ERROR_HOST,
        };
        Self::new(code, error.to_string())
    }
}
