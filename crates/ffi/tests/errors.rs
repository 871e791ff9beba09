//! What is wrong with arguments, sizes and callbacks is an error value.

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "the test is a caller, and each line keeps to the header or breaks it as its test says"
)]

use std::ffi::{CStr, CString, c_char};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use adit_ffi::abi::*;
use adit_ffi::change::*;
use adit_ffi::config::*;
use adit_ffi::device::*;
use adit_ffi::event::*;
use adit_ffi::keys::*;
use adit_ffi::packets::*;

pub(crate) fn new_error() -> adit_error {
    adit_error {
        struct_size: size_of::<adit_error>(),
        ..unsafe { zeroed() }
    }
}

pub(crate) fn said(error: &adit_error) -> &str {
    let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
    text.to_str().expect("UTF-8")
}

pub(crate) fn new_config(n: u8) -> *mut adit_config {
    unsafe { adit_config_new([n; 32].as_ptr(), null_mut()) }
}

pub(crate) fn public(n: u8) -> [u8; 32] {
    let mut key = [0; 32];
    assert_eq!(
        unsafe { adit_public_key([n; 32].as_ptr(), key.as_mut_ptr(), null_mut()) },
        ADIT_OK
    );
    key
}

pub(crate) fn new_peer(key: &[u8; 32], allowed_ips: &CStr, endpoint: Option<&CStr>) -> adit_peer {
    adit_peer {
        struct_size: size_of::<adit_peer>(),
        public_key: key.as_ptr(),
        allowed_ips: allowed_ips.as_ptr(),
        endpoint: endpoint.map_or(null(), CStr::as_ptr),
        ..unsafe { zeroed() }
    }
}

#[test]
fn keys_come_back_as_they_were() {
    let (mut key, mut read, mut text) = ([0_u8; 32], [0_u8; 32], [0 as c_char; ADIT_KEY_TEXT_LEN]);
    unsafe {
        assert_eq!(
            adit_private_key_generate(key.as_mut_ptr(), null_mut()),
            ADIT_OK
        );
        assert_eq!(
            adit_key_to_base64(key.as_ptr(), text.as_mut_ptr(), null_mut()),
            ADIT_OK
        );
        assert_eq!(
            adit_key_from_base64(text.as_ptr(), read.as_mut_ptr(), null_mut()),
            ADIT_OK
        );
        assert_eq!(key, read);
        assert_eq!(
            adit_key_to_base64([0; 32].as_ptr(), text.as_mut_ptr(), null_mut()),
            ADIT_OK
        );
        assert_eq!(
            CStr::from_ptr(text.as_ptr()).to_bytes(),
            [b"A".repeat(43), b"=".to_vec()].concat()
        );
        let version = CStr::from_ptr(adit_version());
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn null_is_an_error_wherever_it_may_not_be() {
    let mut error = new_error();
    let e = &raw mut error;
    let mut key = [7; 32];
    unsafe {
        let codes = [
            adit_private_key_generate(null_mut(), e),
            adit_public_key(null(), key.as_mut_ptr(), e),
            adit_public_key(key.as_ptr(), null_mut(), e),
            adit_key_from_base64(null(), key.as_mut_ptr(), e),
            adit_key_to_base64(null(), null_mut(), e),
            adit_key_to_base64(key.as_ptr(), null_mut(), e),
            adit_config_set_listen_port(null_mut(), 1, e),
            adit_config_add_peer(null_mut(), null(), e),
            adit_change_add_peer(null_mut(), null(), e),
            adit_change_remove_peer(null_mut(), key.as_ptr(), e),
            adit_change_set_endpoint(null_mut(), key.as_ptr(), null(), e),
            adit_device_seal_batch(null_mut(), null(), 0, null_mut(), e),
            adit_device_open_batch(null_mut(), null(), 0, 0, null_mut(), e),
            adit_device_handle_timeout(null_mut(), e),
            adit_device_next_deadline(null_mut(), null_mut(), e),
            adit_device_take_trains(null_mut(), null_mut(), 0, null_mut(), e),
            adit_device_take_packets(null_mut(), null_mut(), 0, null_mut(), e),
            adit_device_set(null_mut(), null(), e),
            adit_device_next_event(null_mut(), null_mut(), e),
            adit_device_get_stats(null_mut(), null_mut(), e),
            adit_device_status(null_mut(), null_mut(), e),
        ];
        assert_eq!(codes, [ADIT_ERROR_ARGUMENT; 21]);
        assert_eq!(
            said(&error),
            "device is NULL: pass what its _new or _start returned"
        );
        assert!(adit_config_new(null(), e).is_null());
        assert!(adit_change_to(null(), e).is_null());
        assert!(adit_device_new(null(), 0, e).is_null());
        adit_config_free(null_mut());
        adit_change_free(null_mut());
        adit_device_free(null_mut());
        adit_text_free(null_mut());
    }
}

#[test]
fn a_wrong_size_is_an_error_and_nothing_is_written_beyond_one() {
    let (mut error, config, key) = (new_error(), new_config(1), public(2));
    let mut peer = new_peer(&key, c"10.0.0.0/8", None);
    unsafe {
        for size in [0, 8, size_of::<adit_peer>() - 1, usize::MAX] {
            peer.struct_size = size;
            assert_eq!(
                adit_config_add_peer(config, &raw const peer, &raw mut error),
                ADIT_ERROR_ARGUMENT
            );
            assert!(
                said(&error).contains(&format!("struct_size {size},")),
                "{}",
                said(&error)
            );
        }
        // A later version's, with a field that is not set, and then one that is.
        let mut later = (peer, 0_u64);
        later.0.struct_size = size_of_val(&later);
        later.1 = 1;
        let at = (&raw const later).cast();
        assert_eq!(
            adit_config_add_peer(config, at, &raw mut error),
            ADIT_ERROR_ARGUMENT
        );
        assert!(said(&error).contains("does not have"), "{}", said(&error));
        later.1 = 0;
        let at = (&raw const later).cast();
        assert_eq!(adit_config_add_peer(config, at, &raw mut error), ADIT_OK);
        assert_eq!((error.code, said(&error)), (ADIT_OK, ""));

        for size in [0, 8, 12, 13, 20, usize::MAX] {
            let mut small = new_error();
            small.struct_size = size;
            small.text.fill(b'x'.try_into().expect("ASCII"));
            assert_eq!(
                adit_config_add_peer(config, null(), &raw mut small),
                ADIT_ERROR_ARGUMENT
            );
            let text = small.text.iter().map(|sign| sign.to_ne_bytes()[0]);
            let written = text.take_while(|sign| *sign != b'x').count();
            let room = size.min(size_of::<adit_error>()).saturating_sub(12);
            assert!(written <= room, "{written} bytes in {room}");
        }
        adit_config_free(config);
    }
}

#[test]
fn what_is_no_config_is_refused_and_changes_nothing() {
    let (mut error, config, keys) = (
        new_error(),
        new_config(1),
        [public(1), public(2), public(3)],
    );
    let mut add = |peer: adit_peer| {
        let code = unsafe { adit_config_add_peer(config, &raw const peer, &raw mut error) };
        (code, said(&error).to_owned())
    };
    let name = c"vpn.example:1";
    let (code, text) = add(new_peer(&keys[1], c"10.0.0.0/8", Some(name)));
    assert_eq!(code, ADIT_ERROR_ARGUMENT);
    assert!(text.contains("look names up before"), "{text}");
    let (code, text) = add(new_peer(&keys[1], c"10.0.0.0/8, 300.0.0.0", None));
    assert_eq!(code, ADIT_ERROR_ARGUMENT);
    assert!(text.contains("\"300.0.0.0\""), "{text}");
    let latin = CString::new([b'1', 0xff]).expect("no zero");
    assert_eq!(add(new_peer(&keys[1], &latin, None)).0, ADIT_ERROR_ARGUMENT);
    assert_eq!(add(new_peer(&keys[0], c"", None)).0, ADIT_ERROR_CONFIG);
    assert_eq!(
        add(new_peer(&keys[1], c"10.0.0.0/8", Some(c"[2001:db8::1]:1"))).0,
        ADIT_OK
    );
    assert_eq!(add(new_peer(&keys[1], c"", None)).0, ADIT_ERROR_CONFIG);
    assert_eq!(
        add(new_peer(&keys[2], c"10.0.0.0/8", None)).0,
        ADIT_ERROR_CONFIG
    );
    unsafe {
        let device = adit_device_new(config, 0, null_mut());
        let mut json = null_mut();
        assert_eq!(
            adit_device_status(device, &raw mut json, null_mut()),
            ADIT_OK
        );
        let status = CStr::from_ptr(json).to_str().expect("UTF-8");
        assert_eq!(status.matches("allowed_ips").count(), 1, "{status}");
        assert!(status.contains("[2001:db8::1]:1"), "{status}");
        adit_text_free(json);
        adit_device_free(device);
        assert!(adit_device_new(config, 1, &raw mut error).is_null());
        assert_eq!(error.code, ADIT_ERROR_CONFIG);
        assert!(adit_config_new([0; 32].as_ptr(), &raw mut error).is_null());
        assert_eq!(error.code, ADIT_ERROR_ARGUMENT);
        adit_config_free(config);
    }
}

/// An IPv4 packet from 10.0.0.`from` to 10.0.0.`to`.
fn packet(from: u8, to: u8) -> Vec<u8> {
    [
        &[
            0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, from, 10, 0, 0,
        ],
        &[to][..],
    ]
    .concat()
}

/// Carries what a device has to send to the other one.
unsafe fn carry(from: *mut adit_device, to: *mut adit_device) -> Vec<Vec<u8>> {
    let (mut count, mut out) = (0, Vec::new());
    unsafe {
        let mut trains = [zeroed::<adit_train>(); 2];
        assert_eq!(
            adit_device_take_trains(from, trains.as_mut_ptr(), 2, &raw mut count, null_mut()),
            ADIT_OK
        );
        for train in &trains[..count] {
            let datagram = adit_datagram {
                bytes: train.bytes,
                len: train.len,
                stride: train.stride,
                from: adit_address {
                    family: 4,
                    port: 1,
                    ip: [127; 16],
                    ..adit_address::default()
                },
                ecn: train.ecn,
            };
            let mut taken = 0;
            for merged in [0, 1] {
                let offered = 1 - taken;
                assert_eq!(
                    adit_device_open_batch(
                        to,
                        &raw const datagram,
                        offered,
                        merged,
                        &raw mut taken,
                        null_mut()
                    ),
                    ADIT_OK
                );
                let mut packets = [adit_packet::NONE; 1];
                loop {
                    assert_eq!(
                        adit_device_take_packets(
                            to,
                            packets.as_mut_ptr(),
                            1,
                            &raw mut count,
                            null_mut()
                        ),
                        ADIT_OK
                    );
                    if count == 0 {
                        break;
                    }
                    out.push(std::slice::from_raw_parts(packets[0].bytes, packets[0].len).to_vec());
                }
            }
        }
    }
    out
}

#[test]
fn devices_carry_batches_and_refuse_what_is_none() {
    let (mut error, mut taken) = (new_error(), 9);
    let device = |n: u8, other: u8| unsafe {
        let (config, key) = (new_config(n), public(other));
        let allowed = CString::new(format!("10.0.0.{other}")).expect("no zero");
        let peer = new_peer(&key, &allowed, Some(c"127.0.0.1:1"));
        assert_eq!(
            adit_config_add_peer(config, &raw const peer, null_mut()),
            ADIT_OK
        );
        let device = adit_device_new(config, 0, null_mut());
        adit_config_free(config);
        device
    };
    let [one, two] = [device(1, 2), device(2, 1)];
    let bytes = packet(1, 2);
    let good = adit_packet {
        bytes: bytes.as_ptr(),
        len: bytes.len(),
        ..adit_packet::NONE
    };
    unsafe {
        let bad = [
            adit_packet {
                len: 1,
                ..adit_packet::NONE
            },
            adit_packet {
                len: 65_536,
                ..good
            },
            adit_packet {
                gso_kind: 9,
                gso_segment: 1,
                ..good
            },
            adit_packet {
                gso_kind: ADIT_GSO_UDP,
                ..good
            },
        ];
        for bad in bad {
            let batch = [good, bad];
            assert_eq!(
                adit_device_seal_batch(one, batch.as_ptr(), 2, &raw mut taken, &raw mut error),
                ADIT_ERROR_ARGUMENT
            );
            assert_eq!(taken, 0, "{}", said(&error));
        }
        for count in [1, usize::MAX] {
            assert_eq!(
                adit_device_seal_batch(one, null(), count, null_mut(), null_mut()),
                ADIT_ERROR_ARGUMENT
            );
            let count_at = &raw mut taken;
            assert_eq!(
                adit_device_take_trains(one, null_mut(), count, count_at, null_mut()),
                ADIT_ERROR_ARGUMENT
            );
        }
        assert_eq!(
            adit_device_seal_batch(one, &raw const good, usize::MAX, null_mut(), null_mut()),
            ADIT_ERROR_ARGUMENT
        );
        let nowhere: adit_datagram = zeroed();
        assert_eq!(
            adit_device_open_batch(one, &raw const nowhere, 1, 0, null_mut(), &raw mut error),
            ADIT_ERROR_ARGUMENT
        );
        assert!(said(&error).contains("family 0"), "{}", said(&error));

        let batch = [good; 3];
        assert_eq!(
            adit_device_seal_batch(one, batch.as_ptr(), 3, &raw mut taken, null_mut()),
            ADIT_OK
        );
        assert_eq!(taken, 3);
        let mut wait = -1;
        assert_eq!(
            adit_device_next_deadline(one, &raw mut wait, null_mut()),
            ADIT_OK
        );
        assert!(wait >= 0);
        assert_eq!(adit_device_handle_timeout(one, null_mut()), ADIT_OK);
        let mut came = Vec::new();
        for _ in 0..4 {
            came.extend(carry(one, two));
            came.extend(carry(two, one));
        }
        assert_eq!(came, [bytes.clone(), bytes.clone(), bytes.clone()]);
        let mut stats = adit_device_stats {
            struct_size: size_of::<adit_device_stats>(),
            ..Default::default()
        };
        assert_eq!(
            adit_device_get_stats(two, &raw mut stats, null_mut()),
            ADIT_OK
        );
        assert_eq!((stats.opened_packets, stats.unopened), (3, 0), "{stats:?}");
        let mut event: adit_event = zeroed();
        assert_eq!(
            adit_device_next_event(one, &raw mut event, null_mut()),
            ADIT_ERROR_ARGUMENT
        );
        event.struct_size = size_of::<adit_event>();
        while event.kind != ADIT_EVENT_SESSION {
            assert_eq!(
                adit_device_next_event(one, &raw mut event, null_mut()),
                ADIT_OK
            );
        }
        assert_eq!((event.kind, event.peer), (ADIT_EVENT_SESSION, public(2)));
        while adit_device_next_event(one, &raw mut event, null_mut()) == ADIT_OK {}

        let change = adit_change_new(null_mut());
        assert_eq!(
            adit_change_remove_peer(change, public(2).as_ptr(), null_mut()),
            ADIT_OK
        );
        assert_eq!(
            adit_change_set_endpoint(change, public(2).as_ptr(), null(), null_mut()),
            ADIT_ERROR_ARGUMENT
        );
        assert_eq!(adit_device_set(one, change, null_mut()), ADIT_OK);
        assert_eq!(
            adit_device_seal_batch(one, batch.as_ptr(), 3, null_mut(), null_mut()),
            ADIT_OK
        );
        assert_eq!(
            adit_device_get_stats(one, &raw mut stats, null_mut()),
            ADIT_OK
        );
        assert_eq!(stats.unsealed, 3, "{stats:?}");
        adit_change_free(change);
        adit_device_free(one);
        adit_device_free(two);
    }
}
