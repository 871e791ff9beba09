use super::*;

fn transmit(to: &str, src: Option<&str>, ecn: u8, stride: usize) -> Transmit<'static> {
    Transmit {
        to: adit_proto::Endpoint {
            addr: to.parse().unwrap(),
            src: src.map(|ip| Source {
                ip: ip.parse().unwrap(),
                ifindex: 7,
            }),
        },
        ecn,
        stride,
        bytes: &[5; 100],
    }
}

fn control(train: &Transmit<'_>, from_source: bool) -> Vec<u8> {
    let mut out = [0; SEND_CONTROL];
    let message = OutgoingMessage {
        train,
        bytes: train.bytes,
        from_source,
    };
    let len = encode_control(&message, &mut out);
    out[..len].to_vec()
}

/// The kernel's own macros know the layout.
#[test]
fn control_messages_are_laid_out_as_libc_lays_them_out() {
    for payload in [1_u32, 2, 4, 12, 20] {
        // SAFETY: CMSG_SPACE and CMSG_LEN only calculate.
        let (space, len) = unsafe { (libc::CMSG_SPACE(payload), libc::CMSG_LEN(payload)) };
        assert_eq!(cmsg_space(payload as usize), space as usize);
        assert_eq!(CMSG_HEADER + payload as usize, len as usize);
    }
    assert_eq!(size_of::<libc::cmsghdr>(), CMSG_HEADER);
    assert_eq!(size_of::<libc::sockaddr_in>(), 16);
    assert_eq!(size_of::<libc::sockaddr_in6>(), 28);

    let train = transmit("192.0.2.1:1", Some("192.0.2.2"), 2, 30);
    let bytes = control(&train, true);
    assert_eq!(bytes.len(), cmsg_space(12) + cmsg_space(4) + cmsg_space(2));
    let segment = &bytes[cmsg_space(12) + cmsg_space(4)..];
    assert_eq!(
        segment[..8],
        (CMSG_HEADER + 2).to_ne_bytes(),
        "CMSG_LEN, not CMSG_SPACE"
    );
    assert_eq!(segment[8..12], 17_i32.to_ne_bytes());
    assert_eq!(segment[12..16], 103_i32.to_ne_bytes());
    assert_eq!(segment[16..18], 30_u16.to_ne_bytes());
}

#[test]
fn only_what_is_needed_is_said() {
    let plain = transmit("192.0.2.1:1", None, 0, 100);
    assert_eq!(control(&plain, true), []);
    let source = transmit("192.0.2.1:1", Some("192.0.2.2"), 0, 100);
    assert_eq!(control(&source, false), []);
    assert_eq!(control(&source, true).len(), cmsg_space(12));
    assert_eq!(
        control(&source, true)[CMSG_HEADER..][..4],
        [0; 4],
        "routing chooses the interface"
    );
    let global = transmit("[2001:db8::1]:1", Some("2001:db8::2"), 0, 100);
    assert_eq!(control(&global, true)[CMSG_HEADER + 16..][..4], [0; 4]);
    let link_local = transmit("[fe80::1%3]:1", Some("fe80::2"), 0, 100);
    assert_eq!(
        control(&link_local, true)[CMSG_HEADER + 16..][..4],
        7_u32.to_ne_bytes()
    );
    for ecn in [1, 2, 3, 0xff] {
        let marked = transmit("[2001:db8::1]:1", None, ecn, 100);
        assert_eq!(decode_control(&control(&marked, true)).ecn, ecn & 3);
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    for (to, src) in [
        ("192.0.2.1:1", "192.0.2.2"),
        ("[2001:db8::1]:1", "2001:db8::2"),
    ] {
        let decoded = decode_control(&control(&transmit(to, Some(src), 3, 30), true));
        assert_eq!(decoded.ecn, 3);
        // In IPv4, the field that gives the destination of a received datagram is the one that takes
        // the source of a sent one.
        assert_eq!(decoded.src.unwrap().ip, src.parse::<IpAddr>().unwrap());
    }
    for text in ["192.0.2.1:1", "[2001:db8::1]:65535", "[fe80::1%9]:2"] {
        let addr: SocketAddr = text.parse().unwrap();
        let (name, len) = encode_name(addr);
        assert_eq!(decode_name(&name.0, len as usize), Some(addr));
        assert_eq!(decode_name(&name.0, len as usize - 1), None);
    }
    assert_eq!(decode_name(&[0; 28], 28), None);
}

#[test]
fn no_control_message_whatever_it_holds_can_panic_or_loop() {
    let whole = control(
        &transmit("[2001:db8::1]:1", Some("2001:db8::2"), 3, 30),
        true,
    );
    for len in 0..whole.len() {
        decode_control(&whole[..len]);
    }
    let mut dice = 1_u64;
    for round in 0..200_000 {
        let mut bytes = whole.clone();
        for _ in 0..=round % 4 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (dice >> 33) as usize % bytes.len();
            bytes[at] = (dice >> 56) as u8;
        }
        decode_control(&bytes);
    }
    // Lengths of 0, smaller than a header, and beyond everything.
    for len in [
        0,
        1,
        CMSG_HEADER - 1,
        CMSG_HEADER,
        usize::MAX,
        usize::MAX - 7,
    ] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&len.to_ne_bytes());
        decode_control(&bytes);
    }
    // A train length that no kernel sends.
    for stride in [0_i32, -1, i32::MAX] {
        let mut bytes = vec![0; cmsg_space(4)];
        let mut at = 0;
        push(
            &mut bytes,
            &mut at,
            libc::SOL_UDP,
            libc::UDP_GRO,
            &stride.to_ne_bytes(),
        );
        assert_eq!(decode_control(&bytes).stride, usize::try_from(stride).ok());
    }
}
