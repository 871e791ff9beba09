use super::*;

#[test]
fn wireguard_adds_60_octets_over_ipv4_and_80_over_ipv6() {
    assert_eq!(tunnel_wire(1408, 1420, Family::V4) - plain_wire(1408), 60);
    assert_eq!(tunnel_wire(1408, 1420, Family::V6) - plain_wire(1408), 80);
}

#[test]
fn padding_goes_up_to_16_but_never_over_the_mtu() {
    assert_eq!(tunnel_wire(92, 1420, Family::V4), 96 + 60 + 38);
    assert_eq!(tunnel_wire(1420, 1420, Family::V4), 1420 + 60 + 38);
}

#[test]
fn esp_adds_62_octets_over_ipv4_and_pads_to_4() {
    assert_eq!(esp_wire(1398, Family::V4) - plain_wire(1398), 62);
    assert_eq!(esp_wire(1400, Family::V4), 1404 + 60 + 38);
    assert_eq!(esp_wire(1402, Family::V4), 1404 + 60 + 38);
    assert_eq!(esp_wire(64, Family::V6), 68 + 80 + 38);
}

/// Netgate's arithmetic: over IPv4, with the largest MTU that a 1500-octet link carries, 1400 of
/// 1538 octets are TCP payload (no timestamps): 910 Mb/s of 1 GbE.
#[test]
fn netgates_910_megabits_come_out() {
    let mtu = 1500 - 60;
    let payload = mtu - 20 - 20;
    let wire = tunnel_wire(mtu, mtu, Family::V4);
    assert_eq!((payload, wire), (1400, 1538));
    assert!((1000.0 * efficiency(payload, wire) - 910.3).abs() < 0.1);
}

#[test]
fn every_share_is_below_one_and_small_datagrams_lose_most() {
    let tcp = Load::Tcp(Family::V4).share(Family::V4);
    let over_v6 = Load::Tcp(Family::V4).share(Family::V6);
    let small = Load::Udp(64).share(Family::V4);
    let large = Load::Udp(1368).share(Family::V4);
    assert!(over_v6 < tcp && tcp < 1.0);
    assert!(small < large && large < 1.0);
    assert!((small - 130.0 / 194.0).abs() < 1e-9);
}
