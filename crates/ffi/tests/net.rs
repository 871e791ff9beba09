//! TCP and UDP inside tunnels, as descriptors.

#![cfg(feature = "net")]
#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the test is a caller, and each line keeps to the header or breaks it as its test says"
)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::zeroed;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::ptr::{null, null_mut};
use std::time::Duration;

use adit_ffi::abi::*;
use adit_ffi::change::*;
use adit_ffi::config::*;
use adit_ffi::keys::adit_public_key;
use adit_ffi::net::*;
use adit_ffi::options::*;
use adit_ffi::tunnel::*;

const PATIENCE_MS: u32 = 30_000;

fn new_error() -> adit_error {
    adit_error {
        struct_size: size_of::<adit_error>(),
        ..unsafe { zeroed() }
    }
}

fn said(error: &adit_error) -> String {
    let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
    text.to_str().expect("UTF-8").to_owned()
}

/// A tunnel of number `n`, whose inner address is 10.0.0.`n`; or the error.
fn try_start(n: u8, addresses: &str) -> Result<*mut adit_tunnel, String> {
    let addresses = CString::new(addresses).expect("no zero");
    let options = adit_options {
        struct_size: size_of::<adit_options>(),
        source: ADIT_SOURCE_NET,
        addresses: addresses.as_ptr(),
        ..unsafe { zeroed() }
    };
    let mut error = new_error();
    unsafe {
        let config = adit_config_new([n; 32].as_ptr(), null_mut());
        let tunnel = adit_tunnel_start(config, &raw const options, &raw mut error);
        adit_config_free(config);
        match tunnel.is_null() {
            true => Err(said(&error)),
            false => Ok(tunnel),
        }
    }
}

fn port(tunnel: *const adit_tunnel) -> u64 {
    let mut json = null_mut();
    unsafe {
        assert_eq!(
            adit_tunnel_status(tunnel, &raw mut json, null_mut()),
            ADIT_OK
        );
        let status: serde_json::Value =
            serde_json::from_slice(CStr::from_ptr(json).to_bytes()).expect("JSON");
        adit_text_free(json);
        status["listen_port"].as_u64().expect("a port")
    }
}

fn add_peer(tunnel: *const adit_tunnel, other: u8, port: u64) {
    let mut key = [0; 32];
    let allowed = CString::new(format!("10.0.0.{other}")).expect("no zero");
    let endpoint = CString::new(format!("127.0.0.1:{port}")).expect("no zero");
    unsafe {
        adit_public_key([other; 32].as_ptr(), key.as_mut_ptr(), null_mut());
        let peer = adit_peer {
            struct_size: size_of::<adit_peer>(),
            public_key: key.as_ptr(),
            allowed_ips: allowed.as_ptr(),
            endpoint: endpoint.as_ptr(),
            ..zeroed()
        };
        let change = adit_change_new(null_mut());
        adit_change_add_peer(change, &raw const peer, null_mut());
        assert_eq!(adit_tunnel_set(tunnel, change, null_mut()), ADIT_OK);
        adit_change_free(change);
    }
}

/// Two that are each other's peers: 10.0.0.1 and 10.0.0.2.
fn pair() -> [*mut adit_tunnel; 2] {
    let tunnels = [1, 2].map(|n| try_start(n, &format!("10.0.0.{n}")).expect("a tunnel"));
    let ports = tunnels.map(|tunnel| port(tunnel));
    add_peer(tunnels[0], 2, ports[1]);
    add_peer(tunnels[1], 1, ports[0]);
    tunnels
}

fn connect(tunnel: *const adit_tunnel, target: &str) -> Result<UnixStream, (i32, String)> {
    let (target, mut fd, mut error) = (CString::new(target).expect("no zero"), 0, new_error());
    let code = unsafe {
        adit_tcp_connect(
            tunnel,
            target.as_ptr(),
            PATIENCE_MS,
            &raw mut fd,
            &raw mut error,
        )
    };
    match code {
        ADIT_OK => Ok(stream(fd)),
        code => {
            assert_eq!((fd, error.code), (-1, code));
            Err((code, said(&error)))
        }
    }
}

fn stream(fd: i32) -> UnixStream {
    let stream = unsafe { UnixStream::from(OwnedFd::from_raw_fd(fd)) };
    let limit = Some(Duration::from_millis(PATIENCE_MS.into()));
    stream.set_read_timeout(limit).expect("a timeout");
    stream
}

#[test]
fn streams_are_descriptors() {
    let [a, b] = pair();
    let listener = unsafe { adit_tcp_listen(b, 80, null_mut()) };
    assert_eq!(unsafe { adit_tcp_listener_port(listener) }, 80);
    let mut none = 0;
    let nothing = unsafe { adit_tcp_accept(listener, 0, &raw mut none, null_mut()) };
    assert_eq!((nothing, none), (ADIT_NOTHING, -1));
    let mut here = connect(a, "10.0.0.2:80").expect("a stream");
    let mut fd = 0;
    let accepted =
        unsafe { adit_tcp_accept(listener, PATIENCE_MS.into(), &raw mut fd, null_mut()) };
    assert_eq!(accepted, ADIT_OK);
    let mut there = stream(fd);
    // One end after the other, each to its end.
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_be_bytes).collect();
    for _ in 0..2 {
        let sent = bytes.clone();
        let mut from = here.try_clone().expect("a descriptor");
        let sender = std::thread::spawn(move || {
            from.write_all(&sent).expect("it is taken");
            from.shutdown(Shutdown::Write).expect("an end");
        });
        let mut came = Vec::new();
        there.read_to_end(&mut came).expect("all of it");
        sender.join().expect("a thread");
        assert!(came == bytes);
        std::mem::swap(&mut here, &mut there);
    }
    unsafe {
        adit_tcp_listener_free(listener);
        adit_tunnel_free(a);
        adit_tunnel_free(b);
    }
}

#[test]
fn why_there_is_no_stream_is_told() {
    let [a, b] = pair();
    for (target, code, text) in [
        ("10.0.0.2:81", ADIT_ERROR_REFUSED, "nothing listens there"),
        ("10.0.0.2", ADIT_ERROR_ARGUMENT, "is not name:port"),
        ("a.test:80", ADIT_ERROR_CONFIG, "give a DNS server"),
        ("[fd00::2]:80", ADIT_ERROR_CONFIG, "no inner address"),
    ] {
        let (found, said) = connect(a, target).expect_err(target);
        assert_eq!(found, code, "{target}: {said}");
        assert!(said.contains(text), "{target}: {said}");
    }
    let mut error = new_error();
    unsafe {
        let first = adit_tcp_listen(b, 80, null_mut());
        assert!(adit_tcp_listen(b, 80, &raw mut error).is_null());
        assert_eq!(error.code, ADIT_ERROR_BIND);
        let mut fd = 0;
        let without = adit_tcp_connect(a, null(), 1, &raw mut fd, &raw mut error);
        assert_eq!(without, ADIT_ERROR_ARGUMENT);
        let nowhere = adit_tcp_accept(first, 1, null_mut(), &raw mut error);
        assert_eq!(nowhere, ADIT_ERROR_ARGUMENT);
        // A listener outlives its tunnel, and says so.
        adit_tunnel_stop(b, null_mut());
        let ended = adit_tcp_accept(first, -1, &raw mut fd, &raw mut error);
        assert_eq!((ended, fd), (ADIT_ERROR_ENDED, -1), "{}", said(&error));
        adit_tcp_listener_free(first);
        adit_tcp_listener_free(null_mut());
        adit_tunnel_free(a);
        adit_tunnel_free(b);
    }
}

#[test]
fn datagrams_are_messages_behind_an_address() {
    let tunnels = pair();
    let sockets = tunnels.map(|tunnel| {
        let (mut port, mut fd) = (5300, 0);
        let bound = unsafe { adit_udp_bind(tunnel, &raw mut port, &raw mut fd, null_mut()) };
        assert_eq!((bound, port), (ADIT_OK, 5300));
        unsafe { File::from_raw_fd(fd) }
    });
    let message = |address: u8, text: &[u8]| {
        let mut message = vec![0];
        message.extend(5300_u16.to_be_bytes());
        message.extend([0; 10]);
        message.extend([0xff, 0xff, 10, 0, 0, address]);
        message.extend(text);
        message
    };
    (&sockets[0])
        .write_all(&message(2, b"there"))
        .expect("it is taken");
    let mut came = [0; 100];
    let len = (&sockets[1]).read(&mut came).expect("a datagram");
    assert_eq!(came[..len], message(1, b"there"));
    // At the end of the tunnel.
    unsafe { adit_tunnel_free(tunnels[1]) };
    assert_eq!((&sockets[1]).read(&mut came).expect("the end"), 0);
    unsafe { adit_tunnel_free(tunnels[0]) };
}

#[test]
fn a_tunnel_has_what_it_began_with() {
    let wrong = try_start(1, "10.0.0.1, home").expect_err("no address");
    assert!(
        wrong.contains("\"home\", which is no IP address"),
        "{wrong}"
    );
    let none = try_start(1, " ").expect_err("no address");
    assert!(none.contains("set the inner addresses"), "{none}");
    let (packets, _other) = UnixDatagram::pair().expect("a pair");
    let options = adit_options {
        struct_size: size_of::<adit_options>(),
        source: ADIT_SOURCE_PLAIN,
        fd: packets.as_raw_fd(),
        ..unsafe { zeroed() }
    };
    let mut error = new_error();
    unsafe {
        let config = adit_config_new([1; 32].as_ptr(), null_mut());
        let tunnel = adit_tunnel_start(config, &raw const options, &raw mut error);
        adit_config_free(config);
        assert!(!tunnel.is_null(), "{}", said(&error));
        assert!(adit_tcp_listen(tunnel, 80, &raw mut error).is_null());
        assert!(said(&error).contains("ADIT_SOURCE_NET"), "{}", said(&error));
        adit_tunnel_free(tunnel);
    }
}
