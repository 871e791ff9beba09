use super::*;

#[test]
fn only_what_expired_of_ours_names_a_router() {
    let to = Ipv4Addr::new(10, 3, 0, 2);
    let mut answer = vec![0_u8; 20 + 8 + 20 + 8];
    answer[0] = 0x45;
    answer[12..16].copy_from_slice(&[192, 168, 77, 2]);
    answer[20] = 11;
    answer[28] = 0x45;
    answer[44..48].copy_from_slice(&to.octets());
    answer[50..52].copy_from_slice(&UNUSED_PORT.to_be_bytes());
    let router = Ipv4Addr::new(192, 168, 77, 2);
    assert_eq!(expired_v4(&answer, to), Some(router));
    assert_eq!(expired_v4(&answer, router), None);
    for (at, value) in [(20, 3), (28, 0x4f), (50, 1)] {
        let mut other = answer.clone();
        other[at] = value;
        assert_eq!(expired_v4(&other, to), None, "{at}");
    }
    for len in 0..answer.len() - 4 {
        assert_eq!(expired_v4(&answer[..len], to), None);
    }

    let to: Ipv6Addr = "fd03::2".parse().unwrap();
    let mut answer = vec![0_u8; 8 + 40 + 8];
    answer[0] = 3;
    answer[32..48].copy_from_slice(&to.octets());
    answer[50..52].copy_from_slice(&UNUSED_PORT.to_be_bytes());
    assert!(expired_v6(&answer, to));
    assert!(!expired_v6(&answer, Ipv6Addr::LOCALHOST));
    for len in 0..52 {
        assert!(!expired_v6(&answer[..len], to));
    }
}
