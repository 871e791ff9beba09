use super::*;
use crate::sys::mmsg::{cmsg_space, encode_name, push};

/// An entry of the error queue as ip_recv_error lays it out, behind other control messages.
fn queued(level: i32, kind: i32, extended: [u8; 16], reporter: &str) -> Vec<u8> {
    let (name, len) = encode_name(reporter.parse().unwrap());
    let mut payload = extended.to_vec();
    payload.extend(&name.0[..len as usize]);
    let mut bytes = vec![0; cmsg_space(12) + cmsg_space(4) + cmsg_space(payload.len())];
    let mut at = 0;
    push(
        &mut bytes,
        &mut at,
        libc::IPPROTO_IP,
        libc::IP_PKTINFO,
        &[1; 12],
    );
    push(
        &mut bytes,
        &mut at,
        libc::IPPROTO_IP,
        libc::IP_TOS,
        &[1, 0, 0, 0],
    );
    push(&mut bytes, &mut at, level, kind, &payload);
    bytes
}

#[test]
fn an_entry_of_the_error_queue_is_decoded() {
    let mut extended = [0; 16];
    extended[..4].copy_from_slice(&111_i32.to_ne_bytes());
    extended[4..7].copy_from_slice(&[2, 3, 4]);
    extended[8..12].copy_from_slice(&1280_u32.to_ne_bytes());
    for (level, kind, reporter) in [
        (libc::IPPROTO_IP, libc::IP_RECVERR, "192.0.2.7:0"),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, "[2001:db8::7]:0"),
    ] {
        let bytes = queued(level, kind, extended, reporter);
        let expected = QueuedError {
            to: None,
            origin: 2,
            kind: 3,
            code: 4,
            info: 1280,
            reporter: Some(reporter.parse::<SocketAddr>().unwrap().ip()),
        };
        assert_eq!(decode_error(&bytes), expected);
        assert_eq!(
            decode_error(&bytes[..bytes.len() - 30]),
            QueuedError::default()
        );
        let mut dice = 1_u64;
        for _ in 0..50_000 {
            let mut bytes = bytes.clone();
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (dice >> 33) as usize % bytes.len();
            bytes[at] = (dice >> 56) as u8;
            decode_error(&bytes[..at.max(bytes.len() / 2)]);
            decode_error(&bytes);
        }
    }
}
