//! The device without I/O, over batches. A device is used by one thread at a time: a call that finds
//! another one at work returns ADIT_ERROR_BUSY. It has no thread, no socket and no callback.
//!
//! The loop of a program:
//!
//! 1. adit_device_seal_batch with the packets that are to be sent,
//! 2. adit_device_handle_timeout when adit_device_next_deadline says so,
//! 3. adit_device_open_batch with the datagrams that came, then adit_device_take_packets until none is left,
//! 4. after each of these adit_device_take_trains until none is left, and send what they lend.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::Mutex;

use adit::Event;
use adit::sans_io::{Arrival, Clock, Device, DeviceError, Inbox, Outbox};

use crate::abi::{
    self, ADIT_ERROR_CONFIG, ADIT_ERROR_HOST, ADIT_NOTHING, ADIT_OK, CallFailure, SizeFirst,
    adit_error,
};
use crate::change::adit_change;
use crate::config::adit_config;
use crate::event::adit_event;
use crate::packets::{adit_datagram, adit_packet, adit_train, bytes_of, check, given};
use crate::status::to_json;

/// A device without I/O: adit_device_new makes one, adit_device_free frees it.
pub struct adit_device(Mutex<DeviceState>);

struct DeviceState {
    device: Device,
    clock: Clock,
    inbox: Inbox,
    outbox: Outbox,
    /// Packets that were opened and not taken. They point into the inbox, or into `merged`, and neither
    /// changes before the next batch is opened.
    opened: VecDeque<adit_packet>,
    merged: Vec<u8>,
    events: VecDeque<Event>,
}

/// Counters of a device since it was made. Once all trains are taken, no packet is lost without one:
/// `packets` = `sealed_packets` + `waiting_packets` + `unsealed`, and
/// `datagrams` = `opened_packets` + `keepalives` + `handshake_messages` + `unopened`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct adit_device_stats {
    /// `sizeof(adit_device_stats)`, set by the caller.
    pub struct_size: usize,
    /// Packets that were taken to be sealed; each that a GSO packet is cut to counts.
    pub packets: u64,
    /// Of these, those that were sealed.
    pub sealed_packets: u64,
    /// Bytes of UDP payload that these became.
    pub sealed_bytes: u64,
    /// Of these, those that wait for a session now.
    pub waiting_packets: u64,
    /// Of these, those that were dropped.
    pub unsealed: u64,
    /// Datagrams that were taken to be opened.
    pub datagrams: u64,
    /// Of these, those that had a packet.
    pub opened_packets: u64,
    /// Bytes of UDP payload of these.
    pub opened_bytes: u64,
    /// Of these, those that were authentic and without a packet.
    pub keepalives: u64,
    /// Of these, messages of handshakes that were looked at.
    pub handshake_messages: u64,
    /// Of these, those that were dropped.
    pub unopened: u64,
    /// Handshakes that led to a session.
    pub handshakes: u64,
    /// Handshakes that were given up.
    pub given_up: u64,
    /// Messages of handshakes that were refused.
    pub refused: u64,
    /// Cookie replies that were sent, because too many handshakes came.
    pub cookies: u64,
    /// Events that were dropped, because nobody took them.
    pub missed_events: u64,
}

// SAFETY: it is repr(C), its size is first, and it has numbers only.
unsafe impl SizeFirst for adit_device_stats {
    const LEAST: usize = size_of::<Self>();
}

/// Makes a device of this configuration; NULL on error. An MTU of 0 is 1420.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_new(
    config: *const adit_config,
    mtu: usize,
    error: *mut adit_error,
) -> *mut adit_device {
    // SAFETY: the caller has a config that is not freed, or NULL.
    unsafe {
        abi::make(error, || {
            let config = abi::alone(&abi::object(config, "config")?.0, "config")?;
            let mut device = Device::new(&config)?;
            if mtu != 0 {
                device.set_mtu(mtu)?;
            }
            Ok(adit_device(Mutex::new(DeviceState {
                device,
                clock: Clock::new(),
                inbox: Inbox::new(),
                outbox: Outbox::new(),
                opened: VecDeque::new(),
                merged: Vec::new(),
                events: VecDeque::new(),
            })))
        })
    }
}

/// Seals packets for the peers that have their destinations. Without a session they wait in the device,
/// bounded. `*taken` is how many were taken: if fewer than `count`, take the trains and call again with the
/// others. What the array points to is read during the call only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_seal_batch(
    device: *mut adit_device,
    packets: *const adit_packet,
    count: usize,
    taken: *mut usize,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, so many packets and their bytes, or NULLs.
    unsafe {
        abi::enter(error, || {
            abi::put(taken, 0);
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let packets = given(packets, count)?;
            let state = &mut *state;
            let now = state.clock.now();
            let sealed = state.device.seal(now, packets, &mut state.outbox);
            abi::put(taken, sealed);
            Ok(ADIT_OK)
        })
    }
}

/// Opens datagrams that came. `*taken` is how many array elements were taken: if fewer than `count`, take
/// packets and trains and call again with the others. What the array points to is copied during the call.
/// Packets of an earlier batch that were not taken are lost. With `merged` other than 0, packets of one flow
/// are handed out as one, at the price of a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_open_batch(
    device: *mut adit_device,
    datagrams: *const adit_datagram,
    count: usize,
    merged: i32,
    taken: *mut usize,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, so many datagrams and their bytes, or NULLs.
    unsafe {
        abi::enter(error, || {
            abi::put(taken, 0);
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let datagrams = abi::array(datagrams, count, "datagrams")?;
            let mut arrivals = Vec::with_capacity(datagrams.len());
            for (n, datagram) in datagrams.iter().enumerate() {
                check(datagram.bytes, datagram.len, "datagram", n)?;
                let mut arrival = Arrival::from(datagram.from.to_socket_addr()?);
                (arrival.stride, arrival.ecn) = (datagram.stride, datagram.ecn);
                arrivals.push((arrival, bytes_of(datagram.bytes, datagram.len)));
            }
            abi::put(taken, state.open(&arrivals, merged != 0));
            Ok(ADIT_OK)
        })
    }
}

/// Does what is due: handshakes begin and are repeated, keepalives leave. Harmless at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_handle_timeout(
    device: *mut adit_device,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, or NULL.
    unsafe {
        abi::enter(error, || {
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let state = &mut *state;
            let now = state.clock.now();
            state.device.handle_timeout(now, &mut state.outbox);
            Ok(ADIT_OK)
        })
    }
}

/// Writes how many microseconds there are until adit_device_handle_timeout is to be called: 0 is now, -1 is
/// not before a packet or a datagram comes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_next_deadline(
    device: *mut adit_device,
    microseconds: *mut i64,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed and a number, or NULLs.
    unsafe {
        abi::enter(error, || {
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let now = state.clock.now();
            let wait = state.device.next_deadline(now);
            // Rounded up, so that something is due then.
            let wait = wait.map(|wait| wait.as_nanos().div_ceil(1000));
            abi::put(
                microseconds,
                wait.map_or(-1, |wait| i64::try_from(wait).unwrap_or(i64::MAX)),
            );
            Ok(ADIT_OK)
        })
    }
}

/// Takes up to `max` trains that are to be sent, oldest first; `*count` is how many. Their bytes may be read
/// until the next call of seal_batch, open_batch, handle_timeout or free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_take_trains(
    device: *mut adit_device,
    trains: *mut adit_train,
    max: usize,
    count: *mut usize,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, and room for so many trains, or NULLs.
    unsafe {
        abi::enter(error, || {
            abi::put(count, 0);
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            abi::check_array(trains, max, "trains")?;
            let mut taken = 0;
            for train in state.outbox.drain().take(max) {
                trains.add(taken).write(adit_train::from(&train));
                taken += 1;
            }
            abi::put(count, taken);
            Ok(ADIT_OK)
        })
    }
}

/// Takes up to `max` packets that were opened, oldest first; `*count` is how many. Their bytes may be read
/// until the next call of open_batch or free. The transport checksum of a GSO packet is only the sum of its
/// pseudo-header, as the kernel has it where a device computes checksums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_take_packets(
    device: *mut adit_device,
    packets: *mut adit_packet,
    max: usize,
    count: *mut usize,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, and room for so many packets, or NULLs.
    unsafe {
        abi::enter(error, || {
            abi::put(count, 0);
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            abi::check_array(packets, max, "packets")?;
            let taken = max.min(state.opened.len());
            for (n, packet) in state.opened.drain(..taken).enumerate() {
                packets.add(n).write(packet);
            }
            abi::put(count, taken);
            Ok(ADIT_OK)
        })
    }
}

/// Changes the configuration, whole or not at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_set(
    device: *mut adit_device,
    change: *const adit_change,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device and a change that are not freed, or NULLs.
    unsafe {
        abi::enter(error, || {
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let change = abi::alone(&abi::object(change, "change")?.0, "change")?;
            let now = state.clock.now();
            state.device.set(now, &change)?;
            Ok(ADIT_OK)
        })
    }
}

/// Writes the oldest event that was not taken, or returns ADIT_NOTHING.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_next_event(
    device: *mut adit_device,
    event: *mut adit_event,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, and an event with its size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let mut state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            let state = &mut *state;
            if state.events.is_empty() {
                state.events.extend(state.device.events());
            }
            let Some(next) = state.events.front() else {
                return Ok(ADIT_NOTHING);
            };
            abi::write_sized(event, &adit_event::from(*next), "event")?;
            state.events.pop_front();
            Ok(ADIT_OK)
        })
    }
}

/// Writes the counters of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_get_stats(
    device: *mut adit_device,
    stats: *mut adit_device_stats,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, and counters with their size, or NULLs.
    unsafe {
        abi::enter(error, || {
            let state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            abi::write_sized(stats, &state.stats(), "stats")?;
            Ok(ADIT_OK)
        })
    }
}

/// Writes the status of a device as JSON, as adit_tunnel_status has it. adit_text_free frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_status(
    device: *mut adit_device,
    json: *mut *mut c_char,
    error: *mut adit_error,
) -> i32 {
    // SAFETY: the caller has a device that is not freed, and room for a pointer, or NULLs.
    unsafe {
        abi::enter(error, || {
            let state = abi::alone(&abi::object(device, "device")?.0, "device")?;
            abi::give_text(json, || Ok(to_json(&state.device.status())))
        })
    }
}

/// Frees a device. NULL is none. What it lent is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_device_free(device: *mut adit_device) {
    // SAFETY: the caller gives it up.
    unsafe { abi::free(device) }
}

impl DeviceState {
    /// How many were taken.
    fn open(&mut self, arrivals: &[(Arrival, &[u8])], merges: bool) -> usize {
        self.opened.clear();
        self.inbox.clear();
        let fits = arrivals
            .iter()
            .take_while(|(arrival, bytes)| self.inbox.push(*arrival, bytes).is_ok());
        let taken = fits.count();
        let now = self.clock.now();
        let mut opened = self.device.open(now, &mut self.inbox, &mut self.outbox);
        if !merges {
            let packets = opened.packets();
            self.opened
                .extend(packets.map(|(_, bytes)| adit_packet::of(bytes, None)));
            return taken;
        }
        // All are copied before the first is pointed to: the buffer moves while it grows.
        self.merged.clear();
        let mut frames = Vec::new();
        for frame in opened.merged() {
            let start = self.merged.len();
            frame.gather(&mut self.merged);
            frames.push((start..self.merged.len(), frame.gso()));
        }
        let frames = frames.into_iter();
        let merged = &self.merged;
        self.opened
            .extend(frames.map(|(at, gso)| adit_packet::of(&merged[at], gso)));
        taken
    }

    fn stats(&self) -> adit_device_stats {
        let stats = self.device.stats();
        let (out, back) = (stats.unsealed, stats.unopened);
        adit_device_stats {
            struct_size: size_of::<adit_device_stats>(),
            packets: stats.packets,
            sealed_packets: stats.sealed_packets,
            sealed_bytes: stats.sealed_bytes,
            waiting_packets: stats.waiting_packets,
            unsealed: out.malformed
                + out.no_route
                + out.no_endpoint
                + out.too_big
                + out.waited
                + out.session_ended,
            datagrams: stats.datagrams,
            opened_packets: stats.opened_packets,
            opened_bytes: stats.opened_bytes,
            keepalives: stats.keepalives,
            handshake_messages: stats.handshake_messages,
            unopened: back.malformed
                + back.handshakes
                + back.unknown_session
                + back.not_authentic
                + back.replayed
                + back.not_ip
                + back.wrong_source
                + back.ecn,
            handshakes: stats.handshakes,
            given_up: stats.given_up,
            refused: stats.refused,
            cookies: stats.cookies,
            missed_events: stats.missed_events,
        }
    }
}

impl From<DeviceError> for CallFailure {
    fn from(error: DeviceError) -> Self {
        let code = match error {
            DeviceError::Config(_) => ADIT_ERROR_CONFIG,
            _ => ADIT_ERROR_HOST,
        };
        Self::new(code, error.to_string())
    }
}
