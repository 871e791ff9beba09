//! Tunnels over callbacks and descriptors: what goes wrong with them is an error value, and none hangs.

#![cfg(feature = "engine")]
#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the test is a caller, and each line keeps to the header or breaks it as its test says"
)]

use std::ffi::{CStr, CString, c_void};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use adit_ffi::abi::*;
use adit_ffi::callbacks::*;
use adit_ffi::change::*;
use adit_ffi::config::*;
use adit_ffi::event::*;
use adit_ffi::keys::adit_public_key;
use adit_ffi::options::*;
use adit_ffi::packets::*;
use adit_ffi::tunnel::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// What the callbacks of a test have.
#[derive(Default)]
struct Ends {
    waiting: Mutex<Vec<Vec<u8>>>,
    arrived: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    panics: AtomicBool,
    /// `pull` waits for this.
    blocked: Mutex<()>,
    pulls: AtomicUsize,
    sockets: AtomicUsize,
    refused_with: AtomicUsize,
}

unsafe extern "C-unwind" fn pull(user: *mut c_void, room: *mut adit_room) {
    let ends = unsafe { &*user.cast::<Ends>() };
    ends.pulls.fetch_add(1, Ordering::SeqCst);
    drop(ends.blocked.lock().expect("nobody panics with it"));
    assert!(
        !ends.panics.load(Ordering::SeqCst),
        "a callback that panics"
    );
    let mut waiting = ends.waiting.lock().expect("nobody panics with it");
    let packets: Vec<adit_packet> = waiting
        .iter()
        .map(|bytes| adit_packet {
            bytes: bytes.as_ptr(),
            len: bytes.len(),
            ..adit_packet::NONE
        })
        .collect();
    let mut taken = 0;
    let put = unsafe {
        adit_room_put(
            room,
            packets.as_ptr(),
            packets.len(),
            &raw mut taken,
            null_mut(),
        )
    };
    assert_eq!(put, ADIT_OK);
    waiting.drain(..taken);
}

unsafe extern "C-unwind" fn push(
    user: *mut c_void,
    pieces: *const adit_piece,
    count: usize,
    _: u32,
    _: u32,
) -> i32 {
    let ends = unsafe { &*user.cast::<Ends>() };
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    let bytes = pieces
        .iter()
        .map(|piece| unsafe { std::slice::from_raw_parts(piece.bytes, piece.len) });
    if let Some(arrived) = &*ends.arrived.lock().expect("nobody panics with it") {
        let _ = arrived.send(bytes.collect::<Vec<_>>().concat());
    }
    0
}

unsafe extern "C-unwind" fn on_socket(user: *mut c_void, fd: i32, _: i32) -> i32 {
    let ends = unsafe { &*user.cast::<Ends>() };
    assert!(fd >= 0);
    ends.sockets.fetch_add(1, Ordering::SeqCst);
    ends.refused_with
        .load(Ordering::SeqCst)
        .try_into()
        .expect("an errno")
}

fn new_error() -> adit_error {
    adit_error {
        struct_size: size_of::<adit_error>(),
        ..unsafe { zeroed() }
    }
}

fn said(error: &adit_error) -> &str {
    let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
    text.to_str().expect("UTF-8")
}

fn new_config(n: u8) -> *mut adit_config {
    unsafe { adit_config_new([n; 32].as_ptr(), null_mut()) }
}

fn options(ends: &Ends) -> adit_options {
    adit_options {
        struct_size: size_of::<adit_options>(),
        source: ADIT_SOURCE_CALLBACKS,
        pull: Some(pull),
        push: Some(push),
        on_socket: Some(on_socket),
        user: std::ptr::from_ref(ends).cast_mut().cast(),
        ..unsafe { zeroed() }
    }
}

/// A tunnel of number `n`.
fn start(n: u8, ends: &Ends) -> *mut adit_tunnel {
    let (config, options, mut error) = (new_config(n), options(ends), new_error());
    let tunnel = unsafe { adit_tunnel_start(config, &raw const options, &raw mut error) };
    assert!(!tunnel.is_null(), "{}", said(&error));
    unsafe { adit_config_free(config) };
    tunnel
}

/// Makes `other`, at a port, the peer of a tunnel.
fn add_peer(tunnel: *mut adit_tunnel, other: u8, port: u64) {
    let mut key = [0; 32];
    let allowed = CString::new(format!("10.0.0.{other}")).expect("no zero");
    let endpoint = CString::new(format!("127.0.0.1:{port}")).expect("no zero");
    unsafe {
        assert_eq!(
            adit_public_key([other; 32].as_ptr(), key.as_mut_ptr(), null_mut()),
            ADIT_OK
        );
        let peer = adit_peer {
            struct_size: size_of::<adit_peer>(),
            public_key: key.as_ptr(),
            allowed_ips: allowed.as_ptr(),
            endpoint: endpoint.as_ptr(),
            ..zeroed()
        };
        let change = adit_change_new(null_mut());
        assert_eq!(
            adit_change_add_peer(change, &raw const peer, null_mut()),
            ADIT_OK
        );
        assert_eq!(adit_tunnel_set(tunnel, change, null_mut()), ADIT_OK);
        adit_change_free(change);
    }
}

fn status(tunnel: *mut adit_tunnel) -> Result<serde_json::Value, i32> {
    let mut json = null_mut();
    match unsafe { adit_tunnel_status(tunnel, &raw mut json, null_mut()) } {
        ADIT_OK => {}
        code => return Err(code),
    }
    let status = serde_json::from_slice(unsafe { CStr::from_ptr(json) }.to_bytes());
    unsafe { adit_text_free(json) };
    Ok(status.expect("JSON"))
}

fn new_event() -> adit_event {
    adit_event {
        struct_size: size_of::<adit_event>(),
        ..unsafe { zeroed() }
    }
}

#[test]
fn packets_go_from_callbacks_to_callbacks() {
    let ends = [Ends::default(), Ends::default()];
    let tunnels = [start(1, &ends[0]), start(2, &ends[1])];
    let port = status(tunnels[1]).expect("a status")["listen_port"]
        .as_u64()
        .expect("a port");
    add_peer(tunnels[1], 1, 9);
    add_peer(tunnels[0], 2, port);
    let (sender, arrived) = mpsc::channel();
    *ends[1].arrived.lock().expect("a lock") = Some(sender);
    let header = [
        0x45, 0, 0, 21, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    let packets: Vec<Vec<u8>> = (0..200).map(|n| [&header[..], &[n]].concat()).collect();
    // More than wait for a session at once are dropped.
    for some in packets.chunks(100) {
        ends[0]
            .waiting
            .lock()
            .expect("a lock")
            .extend(some.to_vec());
        assert_eq!(unsafe { adit_tunnel_ring(tunnels[0], null_mut()) }, ADIT_OK);
        for sent in some {
            assert_eq!(arrived.recv_timeout(PATIENCE).as_ref(), Ok(sent));
        }
    }
    let mut event = new_event();
    let mut stats = adit_tunnel_stats {
        struct_size: size_of::<adit_tunnel_stats>(),
        ..Default::default()
    };
    unsafe {
        while event.kind != ADIT_EVENT_SESSION {
            let code = adit_tunnel_next_event(tunnels[0], 30_000, &raw mut event, null_mut());
            assert_eq!(code, ADIT_OK);
        }
        assert_eq!(
            (event.kind, u64::from(event.address.port)),
            (ADIT_EVENT_SESSION, port)
        );
        // They are counted once the kernel has them: the other end may have them before that.
        let until = Instant::now() + PATIENCE;
        while stats.sent != 200 && Instant::now() < until {
            assert_eq!(
                adit_tunnel_get_stats(tunnels[0], &raw mut stats, null_mut()),
                ADIT_OK
            );
        }
        assert_eq!((stats.pulled, stats.sent, stats.dropped), (200, 200, 0));
        assert!(
            ends[0].sockets.load(Ordering::SeqCst) > 0,
            "on_socket was not called"
        );
        for call in [adit_tunnel_suspend, adit_tunnel_resume, adit_tunnel_rebind] {
            assert_eq!(call(tunnels[0], null_mut()), ADIT_OK);
        }
        for tunnel in tunnels {
            adit_tunnel_free(tunnel);
        }
    }
}

#[test]
fn a_stopped_tunnel_says_so() {
    let ends = Ends::default();
    let (tunnel, mut error, mut event) = (start(1, &ends), new_error(), new_event());
    let mut stats = adit_tunnel_stats {
        struct_size: size_of::<adit_tunnel_stats>(),
        ..Default::default()
    };
    unsafe {
        assert_eq!(
            adit_tunnel_next_event(tunnel, 0, &raw mut event, null_mut()),
            ADIT_NOTHING
        );
        assert_eq!(adit_tunnel_stop(tunnel, null_mut()), ADIT_OK);
        assert_eq!(adit_tunnel_stop(tunnel, null_mut()), ADIT_OK);
        let e = &raw mut error;
        let change = adit_change_new(e);
        let codes = [
            adit_tunnel_set(tunnel, change, e),
            adit_tunnel_suspend(tunnel, e),
            adit_tunnel_resume(tunnel, e),
            adit_tunnel_rebind(tunnel, e),
            adit_tunnel_get_stats(tunnel, &raw mut stats, e),
            adit_tunnel_next_event(tunnel, 30_000, &raw mut event, e),
        ];
        assert_eq!(codes, [ADIT_ERROR_ENDED; 6]);
        assert_eq!(said(&error), "the tunnel has ended");
        assert_eq!(status(tunnel), Err(ADIT_ERROR_ENDED));
        adit_change_free(change);
        adit_tunnel_free(tunnel);
        adit_tunnel_free(null_mut());
    }
}

#[test]
fn a_callback_that_panics_ends_its_tunnel_with_an_error() {
    let ends = Ends::default();
    let (tunnel, mut error, mut event) = (start(1, &ends), new_error(), new_event());
    ends.panics.store(true, Ordering::SeqCst);
    unsafe {
        assert_eq!(adit_tunnel_ring(tunnel, null_mut()), ADIT_OK);
        assert_eq!(
            adit_tunnel_next_event(tunnel, 30_000, &raw mut event, &raw mut error),
            ADIT_ERROR_ENDED
        );
        assert!(
            said(&error).starts_with("the tunnel has ended: "),
            "{}",
            said(&error)
        );
        assert_eq!(status(tunnel), Err(ADIT_ERROR_ENDED));
        adit_tunnel_free(tunnel);
    }
}

#[test]
fn a_callback_that_blocks_holds_up_packets_and_the_end_alone() {
    let ends = Ends::default();
    let tunnel = start(1, &ends);
    let blocked = ends.blocked.lock().expect("a lock");
    let before = ends.pulls.load(Ordering::SeqCst);
    assert_eq!(unsafe { adit_tunnel_ring(tunnel, null_mut()) }, ADIT_OK);
    while ends.pulls.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status(tunnel).expect("a status")["schema"], 1);
    let address = tunnel as usize;
    let stopper = std::thread::spawn(move || unsafe {
        adit_tunnel_stop(address as *const adit_tunnel, null_mut())
    });
    while status(tunnel) != Err(ADIT_ERROR_ENDED) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!stopper.is_finished(), "it stopped with a callback at work");
    drop(blocked);
    assert_eq!(stopper.join().expect("no panic"), ADIT_OK);
    unsafe { adit_tunnel_free(tunnel) };
}

#[test]
fn what_cannot_begin_says_why() {
    let (ends, config, mut error) = (Ends::default(), new_config(1), new_error());
    let mut fails = |options: adit_options| {
        let tunnel = unsafe { adit_tunnel_start(config, &raw const options, &raw mut error) };
        assert!(tunnel.is_null());
        (error.code, said(&error).to_owned())
    };
    let good = options(&ends);
    let wrong = [
        adit_options { pull: None, ..good },
        adit_options { source: 0, ..good },
        adit_options {
            priority: 7,
            ..good
        },
        adit_options {
            threads: u32::MAX,
            ..good
        },
        adit_options {
            struct_size: 8,
            ..good
        },
    ];
    for (code, text) in wrong.map(&mut fails) {
        assert_eq!(code, ADIT_ERROR_ARGUMENT, "{text}");
    }
    assert_eq!(fails(adit_options { mtu: 1, ..good }).0, ADIT_ERROR_CONFIG);
    let file = std::fs::File::open("/dev/null").expect("a file");
    for (source, fd) in [
        (ADIT_SOURCE_VNET, -1),
        (ADIT_SOURCE_PLAIN, i32::MAX),
        (ADIT_SOURCE_VNET, file.as_raw_fd()),
    ] {
        let (code, text) = fails(adit_options { source, fd, ..good });
        assert_eq!(code, ADIT_ERROR_DESCRIPTOR, "{text}");
    }
    // EPERM of the callback.
    ends.refused_with.store(1, Ordering::SeqCst);
    let (code, text) = fails(good);
    assert_eq!(code, ADIT_ERROR_BIND, "{text}");
    unsafe {
        let e = &raw mut error;
        assert!(adit_tunnel_start(null(), &raw const good, e).is_null());
        assert!(adit_tunnel_start(config, null(), e).is_null());
        assert_eq!(adit_tunnel_ring(null(), e), ADIT_ERROR_ARGUMENT);
        assert_eq!(
            adit_room_put(null_mut(), null(), 0, null_mut(), e),
            ADIT_ERROR_ARGUMENT
        );
        adit_config_free(config);
    }
}

#[test]
fn a_descriptor_stays_the_callers() {
    let (config, mut ends) = (new_config(1), [0; 2]);
    let pair = std::os::unix::net::UnixDatagram::pair().expect("a pair");
    (ends[0], ends[1]) = (pair.0.as_raw_fd(), pair.1.as_raw_fd());
    let options = adit_options {
        struct_size: size_of::<adit_options>(),
        source: ADIT_SOURCE_PLAIN,
        fd: ends[0],
        ..unsafe { zeroed() }
    };
    let mut error = new_error();
    unsafe {
        let tunnel = adit_tunnel_start(config, &raw const options, &raw mut error);
        assert!(!tunnel.is_null(), "{}", said(&error));
        assert_eq!(
            adit_tunnel_ring(tunnel, &raw mut error),
            ADIT_ERROR_ARGUMENT
        );
        adit_tunnel_free(tunnel);
        adit_config_free(config);
    }
    pair.0.send(b"open").expect("it is still open");
    assert_eq!(pair.1.recv(&mut [0; 8]).expect("a datagram"), 4);
}
