//! Tunnels with threads of their own. All functions but free may be called by any thread, and by several at
//! the same time. Of a tunnel that was stopped or has ended they return ADIT_ERROR_ENDED.
//!
//! A child of fork(2) must not use a tunnel of its parent, nor free it.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(feature = "net")]
use adit::net::Net;
use adit::{Error, Events, Stats, Tunnel};

use crate::abi::{
    self, ADIT_ERROR_BIND, ADIT_ERROR_CONFIG, ADIT_ERROR_DESCRIPTOR, ADIT_ERROR_ENDED,
    ADIT_ERROR_HOST, ADIT_ERROR_NO_ANSWER, ADIT_NOTHING, ADIT_OK, CallFailure, SizeFirst,
    adit_error,
};
use crate::callbacks::BellSlot;
use crate::change::adit_change;
use crate::config::adit_config;
use crate::event::adit_event;
#[cfg(feature = "net")]
use crate::options::{ADIT_SOURCE_NET, start_net};
use crate::options::{adit_options, apply};
use crate::status::to_json;

/// A tunnel that runs: adit_tunnel_start begins one, adit_tunnel_free ends it.
pub struct adit_tunnel {
    slot: Mutex<TunnelSlot>,
    /// A call has returned.
    left: Condvar,
    events: Events,
    bell: Arc<BellSlot>,
}

/// The tunnel, until it is stopped, and how many calls use it.
struct TunnelSlot {
    tunnel: Option<Arc<RunningTunnel>>,
    calls: usize,
}

/// What runs.
pub(crate) enum RunningTunnel {
    Tunnel(Tunnel),
    /// One with TCP and UDP of its own.
    #[cfg(feature = "net")]
    Net(Box<Net>),
}

impl RunningTunnel {
    fn tunnel(&self) -> &Tunnel {
        match self {
            Self::Tunnel(tunnel) => tunnel,
            #[cfg(feature = "net")]
            Self::Net(net) => net.tunnel(),
        }
    }
}

/// Counters of a tunnel since it began. Packets that stand for several count as these.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct adit_tunnel_stats {
    /// `sizeof(adit_tunnel_stats)`, set by the caller.
    pub struct_size: usize,
    /// Packets that its source had for it.
    pub pulled: u64,
    /// Of these, packets that were sent to peers.
    pub sent: u64,
    /// Datagrams that came to its sockets, of all kinds.
    pub received: u64,
    /// Packets that it delivered.
    pub pushed: u64,
    /// Packets and datagrams that were dropped.
    pub dropped: u64,
    /// Trains of packets that the kernel refused to send at once.
    pub refused_trains: u64,
}

// SAFETY: it is repr(C), its size is first, and it has numbers only.
unsafe impl SizeFirst for adit_tunnel_stats {
    const LEAST: usize = size_of::<Self>();
}

/// Begins a tunnel; NULL on error. It is up when this returns: its port is bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_start(
    config: *const adit_config,
    options: *const adit_options,
    error: *mut adit_error,
) -> *mut adit_tunnel {
    // SAFETY: the caller has a config that is not freed and options with their size, or NULLs; the callbacks are
    // as the options say.
    unsafe {
        abi::make(error, || {
            let config = abi::alone(&abi::object(config, "config")?.0, "config")?.clone();
            let options = abi::read_sized(options, "options")?;
            let bell = Arc::new(BellSlot::new());
            let tunnel = match options.source {
                #[cfg(feature = "net")]
                ADIT_SOURCE_NET => RunningTunnel::Net(Box::new(start_net(config, &options)?)),
                _ => {
                    RunningTunnel::Tunnel(apply(&options, Tunnel::builder(config), &bell)?.start()?)
                }
            };
            let events = tunnel.tunnel().events();
            let tunnel = Some(Arc::new(tunnel));
            Ok(adit_tunnel {
                slot: Mutex::new(TunnelSlot { tunnel, calls: 0 }),
                left: Condvar::new(),
                events,
                bell,
            })
        })
    }
}

/// Packets wait: `pull` is called soon. To be called after they are where `pull` finds them. Several rings
/// are one, and cost next to nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_ring(
    tunnel: *const adit_tunnel,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe {
        abi::enter(error, || {
            let bell = abi::object(tunnel, "tunnel")?.bell.get();
            let bell = bell.ok_or_else(|| {
                CallFailure::argument(
                    "the tunnel has no callbacks: its descriptor tells when packets wait",
                )
            })?;
            bell.ring();
            Ok(ADIT_OK)
        })
    }
}

/// Changes a tunnel, whole or not at all, and returns when that is in force. After ADIT_ERROR_NO_ANSWER it may
/// still happen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_set(
    tunnel: *const adit_tunnel,
    change: *const adit_change,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel and a change that are not freed, or NULLs.
    unsafe {
        abi::enter(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            let change = abi::alone(&abi::object(change, "change")?.0, "change")?.clone();
            tunnel.call(|tunnel| Ok(tunnel.set(change)?))
        })
    }
}

/// Closes the sockets of a tunnel, soon: until resume nothing is sent, received or timed. Sessions stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_suspend(
    tunnel: *const adit_tunnel,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe { at_once(tunnel, error, Tunnel::suspend) }
}

/// Opens the sockets of a tunnel again, on the same port if that is free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_resume(
    tunnel: *const adit_tunnel,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe { at_once(tunnel, error, Tunnel::resume) }
}

/// Replaces the sockets of a tunnel, because the network is another one. Sessions stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_rebind(
    tunnel: *const adit_tunnel,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe { at_once(tunnel, error, Tunnel::rebind) }
}

/// Writes the status of a tunnel as JSON: "schema", which is 1, "public_key", "listen_port", and of each of
/// "peers" "public_key", "endpoint", "last_handshake" (seconds since the Unix epoch), "rx_bytes", "tx_bytes",
/// "keepalive" and "allowed_ips". What is not known is null. Keys may be added. adit_text_free frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_status(
    tunnel: *const adit_tunnel,
    json: *mut *mut c_char,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, and room for a pointer, or NULLs.
    unsafe {
        abi::enter(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            abi::give_text(json, || {
                let mut status = None;
                tunnel.call(|tunnel| {
                    status = Some(tunnel.status()?);
                    Ok(())
                })?;
                Ok(status.as_ref().map(to_json).unwrap_or_default())
            })
        })
    }
}

/// Writes the counters of a tunnel. It waits for nobody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_get_stats(
    tunnel: *const adit_tunnel,
    stats: *mut adit_tunnel_stats,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, and counters with their size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            tunnel.call(|tunnel| abi::write_sized(stats, &tunnel.stats().into(), "stats"))
        })
    }
}

/// Writes the next event of a tunnel, for which it waits up to `timeout_ms`, or for as long as it takes if
/// that is negative. ADIT_NOTHING if none came, ADIT_ERROR_ENDED with the reason if none will.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_next_event(
    tunnel: *const adit_tunnel,
    timeout_ms: i64,
    event: *mut adit_event,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, and an event with its size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            // Before one is taken, so that none is lost for want of room.
            abi::size_of_given(event.cast_const(), "event")?;
            let timeout = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
            let Some(next) = tunnel.events.next_timeout(timeout) else {
                return tunnel.why_none();
            };
            abi::write_sized(event, &adit_event::from(next), "event")?;
            Ok(ADIT_OK)
        })
    }
}

/// Stops a tunnel, and returns when its threads have ended and its descriptors are closed: some milliseconds,
/// or as long as callbacks and other calls take. Called in a callback, it returns before. The tunnel is still
/// to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_stop(
    tunnel: *const adit_tunnel,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a tunnel that is not freed, or NULL.
    unsafe {
        abi::enter(error, || {
            abi::object(tunnel, "tunnel")?.stop();
            Ok(ADIT_OK)
        })
    }
}

/// Stops a tunnel and frees it. NULL is none. No other thread may be in a call with it, and it must not be
/// called in a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_tunnel_free(tunnel: *mut adit_tunnel) {
    // SAFETY: the caller gives it up.
    unsafe { abi::free(tunnel) }
}

/// What waits for nobody.
///
/// # Safety
///
/// `tunnel` is NULL or not freed, `error` as of [`abi::enter`].
unsafe fn at_once(tunnel: *const adit_tunnel, error: *mut adit_error, what: fn(&Tunnel)) -> i32 {
    // SAFETY: as the caller says.
    unsafe {
        abi::enter(error, || {
            let tunnel = abi::object(tunnel, "tunnel")?;
            tunnel.call(|tunnel| {
                what(tunnel);
                Ok(())
            })
        })
    }
}

impl adit_tunnel {
    fn slot(&self) -> MutexGuard<'_, TunnelSlot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the tunnel, unless it was stopped. No lock is held meanwhile.
    fn call(
        &self,
        work: impl FnOnce(&Tunnel) -> Result<(), CallFailure>,
    ) -> Result<i32, CallFailure> {
        self.with(|running| work(running.tunnel()))?;
        Ok(ADIT_OK)
    }

    /// The same, with one that has TCP and UDP of its own.
    #[cfg(feature = "net")]
    pub(crate) fn with_net<R>(
        &self,
        work: impl FnOnce(&Net) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        self.with(|running| match running {
            RunningTunnel::Net(net) => work(net),
            RunningTunnel::Tunnel(_) => Err(CallFailure::argument(
                "the tunnel has no TCP and UDP of its own: start it with ADIT_SOURCE_NET",
            )),
        })
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&RunningTunnel) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        let tunnel = {
            let mut slot = self.slot();
            let tunnel = slot.tunnel.clone().ok_or(Error::Ended)?;
            slot.calls += 1;
            tunnel
        };
        let call = TunnelCall {
            handle: self,
            tunnel: Some(tunnel),
        };
        match &call.tunnel {
            Some(tunnel) if !self.events.has_ended() => work(tunnel),
            _ => Err(Error::Ended.into()),
        }
    }

    fn stop(&self) {
        let mut slot = self.slot();
        let tunnel = slot.tunnel.take();
        while slot.calls > 0 {
            slot = self.left.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        drop(slot);
        drop(tunnel);
    }

    /// Why there was no event.
    fn why_none(&self) -> Result<i32, CallFailure> {
        if !self.events.has_ended() {
            return Ok(ADIT_NOTHING);
        }
        let tunnel = self.slot().tunnel.clone();
        let reason = tunnel.map_or(Error::Ended, |tunnel| tunnel.tunnel().wait());
        Err(CallFailure::new(
            ADIT_ERROR_ENDED,
            match reason {
                Error::Ended => reason.to_string(),
                reason => format!("the tunnel has ended: {reason}"),
            },
        ))
    }
}

impl Drop for adit_tunnel {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A call that uses the tunnel.
struct TunnelCall<'a> {
    handle: &'a adit_tunnel,
    tunnel: Option<Arc<RunningTunnel>>,
}

impl Drop for TunnelCall<'_> {
    fn drop(&mut self) {
        // First, so that whoever stops the tunnel has it alone.
        self.tunnel = None;
        self.handle.slot().calls -= 1;
        self.handle.left.notify_all();
    }
}

impl From<Stats> for adit_tunnel_stats {
    fn from(stats: Stats) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            pulled: stats.pulled,
            sent: stats.sent,
            received: stats.received,
            pushed: stats.pushed,
            dropped: stats.drops.iter().map(|(_, count)| count).sum(),
            refused_trains: stats.refused_trains,
        }
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Config(_) => ADIT_ERROR_CONFIG,
            Error::NoPackets | Error::Descriptor(_) | Error::HandOver(_) => ADIT_ERROR_DESCRIPTOR,
            Error::Bind { .. } => ADIT_ERROR_BIND,
            Error::Ended => ADIT_ERROR_ENDED,
            Error::NoAnswer => ADIT_ERROR_NO_ANSWER,
            _ => ADIT_ERROR_HOST,
        };
        Self::new(code, error.to_string())
    }
}
