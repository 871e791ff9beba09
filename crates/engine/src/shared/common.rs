//! State that the control thread and the shards share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use adit_io::tun::TunErrorKind;
use adit_io::{Filtered, IcmpKind, Offloads, UdpSocket};
use adit_offload::{Merged, TunnelEnds};
use adit_proto::{DropReason, IgnoredKind, PassedKind, Time};

use crate::shared::counters::LoadCounters;
use crate::shared::handles::QueuesHandle;
use crate::shared::mailbox::Mailbox;
use crate::shared::rate_limited_log::{Incident, RateLimitedLog};
use crate::shared::state::{InterfaceState, StopReason};
use crate::thread::contain::this_thread;
use crate::thread::lock::lock;

/// One interface, as all threads that have to do with it see it.
pub(crate) struct Common<U> {
    /// Routes and sessions, published by the control thread.
    pub(crate) proto: Arc<adit_proto::Shared>,
    pub(crate) control: Mailbox,
    pub(crate) queues: QueuesHandle<U>,
    /// Where UDP tunnels end, unless what is for them is not merged.
    pub(crate) tunnel_ends: Option<TunnelEnds>,
    mtu: AtomicUsize,
    /// Kinds of packets that the TUN refused to take merged.
    tun_refuses: [AtomicBool; Merged::COUNT],
    refused_trains: AtomicU64,
    icmp_errors: [AtomicU64; IcmpKind::ALL.len()],
    pub(crate) log: RateLimitedLog,
    pub(crate) load: LoadCounters,
    stopping: AtomicBool,
    end: Mutex<EndState>,
    ended: Condvar,
}

/// How far the end of an interface has come.
#[derive(Default)]
struct EndState {
    /// The [`EndGuard`]s that are left.
    guards: usize,
    reason: Option<StopReason>,
    /// To be called when none is left.
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

/// A thread's hold on an interface. When one of them is dropped, for whatever reason, the others
/// are asked to end; the interface has ended with the last.
pub(crate) struct EndGuard<U>(Arc<Common<U>>);

impl<U> EndGuard<U> {
    pub(crate) fn new(common: &Arc<Common<U>>) -> Self {
        lock(&common.end).guards += 1;
        Self(Arc::clone(common))
    }
}

impl<U> Drop for EndGuard<U> {
    fn drop(&mut self) {
        let what = match std::thread::panicking() {
            true => "panicked, which is a defect of this program",
            false => "ended",
        };
        if !self.0.is_stopping() {
            let text = format!("{} {what}", this_thread());
            self.0.fail(io::Error::other(text));
        }
        let mut end = lock(&self.0.end);
        end.guards -= 1;
        let on_end = match end.guards {
            0 => end.on_end.take(),
            _ => None,
        };
        drop(end);
        self.0.ended.notify_all();
        if let Some(on_end) = on_end {
            on_end();
        }
    }
}

impl<U> Common<U> {
    pub(crate) fn new(
        proto: Arc<adit_proto::Shared>,
        queues: QueuesHandle<U>,
        offloads: Offloads,
        is_verbose: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            proto,
            control: Mailbox::new()?,
            queues,
            tunnel_ends: offloads.tun_gro_tunnel.then(TunnelEnds::default),
            mtu: AtomicUsize::new(1420),
            tun_refuses: Default::default(),
            refused_trains: AtomicU64::new(0),
            icmp_errors: Default::default(),
            log: RateLimitedLog::new(is_verbose),
            load: LoadCounters::default(),
            stopping: AtomicBool::new(false),
            end: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// The MTU of the TUN, which bounds padding.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mtu(&self, mtu: usize) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// The TUN refused a GSO packet: from now on the packets of such are written one by one.
    pub(crate) fn tun_refused(&self, kind: Merged) {
        self.tun_refuses[kind as usize].store(true, Ordering::Relaxed);
    }

    pub(crate) fn tun_takes(&self, kind: Merged) -> bool {
        !self.tun_refuses[kind as usize].load(Ordering::Relaxed)
    }

    /// Trains that the kernel would not segment.
    pub(crate) fn count_refused_trains(&self, trains: u64) {
        if trains > 0 {
            self.refused_trains.fetch_add(trains, Ordering::Relaxed);
        }
    }

    /// Goes on with the counters of another process.
    pub(crate) fn set_counters(&self, state: &InterfaceState) {
        let named = |counters: &[(String, u64)], name: &str| {
            let found = counters.iter().find(|(known, _)| known == name);
            found.map_or(0, |(_, count)| *count)
        };
        let drops = &self.queues.drops;
        for reason in DropReason::ALL {
            drops.count(*reason, named(&state.drops, reason.name()));
        }
        for kind in IgnoredKind::ALL {
            drops.count_ignored(*kind, named(&state.ignored, kind.name()));
        }
        for kind in PassedKind::ALL {
            drops.count_passed(*kind, named(&state.passed, kind.name()));
        }
        for kind in IcmpKind::ALL {
            let count = named(&state.icmp_errors, kind.name());
            self.icmp_errors[*kind as usize].store(count, Ordering::Relaxed);
        }
        self.refused_trains
            .store(state.refused_trains, Ordering::Relaxed);
        for (refuses, known) in self.tun_refuses.iter().zip(&state.tun_refuses) {
            refuses.store(*known, Ordering::Relaxed);
        }
        let load = self.load.own();
        load.outbound.go_on_from(&state.outbound);
        load.inbound.go_on_from(&state.inbound);
        load.sent.go_on_from(&state.sent_trains);
        load.received.go_on_from(&state.received_trains);
        self.set_mtu(state.mtu);
    }

    /// What [`Self::set_counters`] takes; the control thread adds its part.
    pub(crate) fn counters(&self) -> InterfaceState {
        let drops = &self.queues.drops;
        let named = |(name, count): (&str, u64)| (name.to_owned(), count);
        let dropped = DropReason::ALL.iter().map(|it| (it.name(), drops.of(*it)));
        let passed = (PassedKind::ALL.iter()).map(|it| (it.name(), drops.passed(*it)));
        let ignored = (IgnoredKind::ALL.iter()).map(|it| (it.name(), drops.ignored(*it)));
        let icmp_errors = IcmpKind::ALL
            .iter()
            .map(|it| (it.name(), self.icmp_errors(*it)));
        let refuses = self.tun_refuses.iter();
        let load = self.load.read();
        InterfaceState {
            drops: dropped.map(named).collect(),
            ignored: ignored.map(named).collect(),
            passed: passed.map(named).collect(),
            icmp_errors: icmp_errors.map(named).collect(),
            refused_trains: self.refused_trains(),
            tun_refuses: refuses.map(|it| it.load(Ordering::Relaxed)).collect(),
            mtu: self.mtu(),
            outbound: load.outbound,
            inbound: load.inbound,
            sent_trains: load.sent,
            received_trains: load.received,
            ..InterfaceState::default()
        }
    }

    pub(crate) fn refused_trains(&self) -> u64 {
        self.refused_trains.load(Ordering::Relaxed)
    }

    /// Counts the ICMP errors that came back to a socket, and notes them. ICMP is not
    /// authenticated, so nothing else follows from it.
    pub(crate) fn take_errors(&self, socket: &impl UdpSocket, now: Time) {
        socket.take_errors(&mut |error, times| {
            self.count_icmp_error(error.kind, times);
            self.note(now, times, || Incident::Icmp { peer: None, error });
        });
    }

    /// Counts what a socket has dropped before it was queued, as if it had been received.
    pub(crate) fn count_filtered(&self, socket: &impl UdpSocket) {
        let Filtered {
            malformed,
            unknown,
            refused,
        } = socket.take_filtered();
        let drops = &self.queues.drops;
        let all = malformed + unknown + refused;
        if all > 0 {
            drops.count_passed(PassedKind::Received, all);
            drops.count(DropReason::MalformedDatagram, malformed);
            drops.count(DropReason::UnknownSession, unknown);
        }
        if refused > 0 {
            drops.count_passed(PassedKind::HandshakeMessages, refused);
            self.proto.admission().dropped(refused);
        }
    }

    pub(crate) fn count_icmp_error(&self, kind: IcmpKind, times: u64) {
        self.icmp_errors[kind as usize].fetch_add(times, Ordering::Relaxed);
    }

    pub(crate) fn icmp_errors(&self, kind: IcmpKind) -> u64 {
        self.icmp_errors[kind as usize].load(Ordering::Relaxed)
    }

    /// Something went wrong, so many `times`: the control thread tells of it, if anybody reads
    /// that.
    pub(crate) fn note(&self, now: Time, times: u64, incident: impl FnOnce() -> Incident) {
        if self.log.note(now, times, incident) {
            self.control.waker.wake();
        }
    }

    /// Asks all threads to let go of the interface.
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.control.waker.wake();
            self.queues.wake();
        }
    }

    /// The interface cannot go on.
    pub(crate) fn fail(&self, error: io::Error) {
        lock(&self.end)
            .reason
            .get_or_insert(match TunErrorKind::of(&error) {
                TunErrorKind::Gone => StopReason::InterfaceGone,
                _ => StopReason::Failed(error),
            });
        self.stop();
    }

    /// Waits until the interface has ended, and returns why; the first caller learns that.
    pub(crate) fn wait(&self) -> StopReason {
        let mut end = lock(&self.end);
        while end.guards > 0 {
            let waited = self.ended.wait(end);
            end = waited.unwrap_or_else(PoisonError::into_inner);
        }
        end.reason.take().unwrap_or(StopReason::Asked)
    }

    /// Whether the interface has ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.end).guards == 0
    }

    /// Calls `on_end` when the interface has ended.
    pub(crate) fn on_end(&self, on_end: Box<dyn FnOnce() + Send>) {
        let mut end = lock(&self.end);
        if end.guards > 0 {
            end.on_end = Some(on_end);
        } else {
            drop(end);
            on_end();
        }
    }

    /// Has all threads that may have keys on their stacks overwrite these.
    pub(crate) fn overwrite_stacks(&self) {
        self.queues.ownership.owner().wake_both();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
