use super::*;

fn free_of(own: &str, taken: &[&str]) -> Option<String> {
    let pair = |text: &str| {
        let (ip, len) = text.split_once('/').expect("a prefix");
        (
            ip.parse::<IpAddr>().expect("an address"),
            len.parse::<u8>().expect("a length"),
        )
    };
    let (ip, prefix_len) = pair(own);
    let taken: Vec<Cidr> = taken
        .iter()
        .map(|text| pair(text))
        .filter_map(|(ip, len)| Cidr::new(ip, len))
        .collect();
    free(InterfaceAddress { ip, prefix_len }, &taken).map(|ip| ip.to_string())
}

#[test]
fn the_lowest_free_address_is_taken() {
    for (own, taken, expected) in [
        ("10.0.0.1/24", &[][..], Some("10.0.0.2")),
        ("10.0.0.254/24", &[], Some("10.0.0.1")),
        (
            "10.0.0.1/24",
            &["10.0.0.2/32", "10.0.0.4/32"],
            Some("10.0.0.3"),
        ),
        (
            "10.0.0.1/24",
            &["10.0.0.0/28", "0.0.0.0/0", "10.0.0.0/24"],
            Some("10.0.0.16"),
        ),
        ("10.0.0.1/30", &["10.0.0.2/32"], None),
        ("10.0.0.1/31", &[], Some("10.0.0.0")),
        ("10.0.0.1/32", &[], None),
        ("255.255.255.254/30", &["255.255.255.253/32"], None),
        (
            "fd00::1/64",
            &["fd00::2/128", "10.0.0.2/32"],
            Some("fd00::3"),
        ),
        ("fd00::1/127", &[], Some("fd00::")),
        ("::1/0", &["::/1"], Some("8000::")),
    ] {
        assert_eq!(free_of(own, taken).as_deref(), expected, "{own} {taken:?}");
    }
}

/// Compared with a look at each address.
#[test]
fn it_is_the_first_that_a_search_finds() {
    let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
    let holds = |len: u8, a: IpAddr, b: IpAddr| Cidr::new(a, len) == Cidr::new(b, len);
    let mut state = 1u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from((state >> 8) % below).expect("below 256")
    };
    for _ in 0..5000 {
        let (own, prefix_len) = (ip(random(255)), 24 + random(9));
        let taken: Vec<Cidr> = (0..random(12))
            .filter_map(|_| Cidr::new(ip(random(255)), 25 + random(8)))
            .collect();
        let is_free = |last: &u8| {
            let size = 1u16 << (32 - prefix_len);
            let place = u16::from(*last) % size;
            let reserved = prefix_len < 31 && (place == 0 || place == size - 1);
            let is_taken = |block: &Cidr| {
                block.prefix_len() > prefix_len
                    && holds(block.prefix_len(), block.addr(), ip(*last))
            };
            holds(prefix_len, ip(*last), own)
                && ip(*last) != own
                && !reserved
                && !taken.iter().any(is_taken)
        };
        let expected = (0..=255).find(is_free).map(ip);
        let address = InterfaceAddress {
            ip: own,
            prefix_len,
        };
        assert_eq!(free(address, &taken), expected, "{address} {taken:?}");
    }
}
