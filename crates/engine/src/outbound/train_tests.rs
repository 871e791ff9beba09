use std::net::SocketAddr;

use super::*;

#[test]
fn a_train_is_as_long_as_the_longest_udp_payload() {
    let max = |addr: &str| {
        let addr: SocketAddr = addr.parse().expect("an address");
        max_bytes(&addr.into())
    };
    // 65,535 bytes of IP packet less UDP's header, and IPv4's; 65,535 bytes of IPv6 payload less
    // UDP's, kept below what IPv4 could carry by the difference of the headers.
    assert_eq!(
        (max("192.0.2.1:1"), max("[2001:db8::1]:1")),
        (65_507, 65_487)
    );
    assert_eq!(MAX_PACKETS, 64);
    // 45 datagrams of 1452 bytes are 65,340; 64 of 432 bytes would fit twice over.
    assert_eq!((packets_per_train(1420), packets_per_train(400)), (45, 64));
}
