use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use adit_proto::config::{AllowedIpChange, Cidr, PeerChange, PeerStatus, PublicKey, Secret};
use adit_proto::{Allowance, LastSeen, Tai64N};
use proptest::prelude::*;

use super::*;
use crate::socket::tests::{Dir, answers_without_end};

const KEY: &str = "e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a";

fn hear(bytes: &[u8]) -> Vec<Heard> {
    let mut parser = Parser::default();
    let mut heard = Vec::new();
    let mut input = bytes;
    while !input.is_empty() {
        heard.extend(parser.push(&mut input, MAX_REQUEST));
    }
    heard.extend(parser.end());
    heard
}

fn set(lines: &str) -> Result<DeviceChange, i32> {
    match hear(format!("set=1\n{lines}\n").as_bytes()).as_slice() {
        [Heard::Request(UapiRequest::Set(change))] => Ok(change.clone()),
        [Heard::Refused(error)] => Err(error.errno),
        other => panic!("{other:?}"),
    }
}

fn peer(lines: &str) -> Result<PeerChange, i32> {
    let change = set(&format!("public_key={KEY}\n{lines}"))?;
    Ok(change.peers.into_iter().next().unwrap())
}

fn cidr(text: &str) -> Cidr {
    let (ip, len) = text.split_once('/').unwrap();
    Cidr::new(ip.parse().unwrap(), len.parse().unwrap()).unwrap()
}

#[test]
fn the_example_of_the_specification_is_understood() {
    let change = set(
        "private_key=e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a
fwmark=0
listen_port=12912
replace_peers=true
public_key=b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33
preshared_key=188515093e952f5f22e865cef3012e72f8b5f0b598ac0309d5dacce3b70fcf52
replace_allowed_ips=true
allowed_ip=192.168.4.4/32
endpoint=[abcd:23::33%2]:51820
public_key=58402e695ba1772b1cc9309755f043251ea77fdcf10fbe63989ceb7e19321376
replace_allowed_ips=true
allowed_ip=192.168.4.6/32
persistent_keepalive_interval=111
endpoint=182.122.22.19:3233
public_key=662e14fd594556f522604703340351258903b64f35553763f19426ab2a515c58
remove=true
",
    )
    .unwrap();
    assert_eq!(change.fwmark, Some(0));
    assert_eq!(change.listen_port, Some(12912));
    assert!(change.replace_peers);
    assert_eq!(change.peers.len(), 3);
    let scoped = SocketAddrV6::new("abcd:23::33".parse().unwrap(), 51820, 0, 2);
    assert_eq!(change.peers[0].endpoint, Some(scoped.into()));
    assert!(change.peers[0].preshared_key.is_some());
    assert_eq!(change.peers[1].persistent_keepalive, Some(111));
    assert_eq!(
        change.peers[1].allowed_ips,
        [AllowedIpChange::Add(cidr("192.168.4.6/32"))]
    );
    assert!(change.peers[2].remove);
}

#[test]
fn every_wrong_line_has_its_errno_and_fails_the_whole_set() {
    let invalid: &[&str] = &[
        "private_key=",
        "private_key=00",
        &format!("private_key={KEY}0"),
        &format!("private_key={}", KEY.replace('e', "g")),
        "listen_port=",
        "listen_port=65536",
        "listen_port=-1",
        "listen_port=+1",
        "listen_port= 1",
        "listen_port=0x10",
        "fwmark=4294967296",
        "fwmark=off",
        "replace_peers=false",
        "replace_peers=",
        "allowed_ip=10.0.0.0/8",
        "errno=0",
        "protocol_version=2",
        "Private_Key=00",
        "=",
        "=1",
        "public_key=x",
        "set=1",
        "get=1",
    ];
    for line in invalid {
        assert_eq!(set(&format!("listen_port=1\n{line}\n")), Err(22), "{line}");
    }
    let of_peers: &[&str] = &[
        "preshared_key=1",
        "endpoint=",
        "endpoint=1.2.3.4",
        "endpoint=1.2.3.4:",
        "endpoint=1.2.3.4:65536",
        "endpoint=1.2.3.4:+5",
        "endpoint=example.com:51820",
        "endpoint=::1:51820",
        "endpoint=[::1]",
        "endpoint=[::1%nosuchif0]:5",
        "persistent_keepalive_interval=off",
        "persistent_keepalive_interval=65536",
        "allowed_ip=",
        "allowed_ip=10.0.0.0",
        "allowed_ip=10.0.0.0/33",
        "allowed_ip=10.0.0.0/08",
        "allowed_ip=::/129",
        "allowed_ip=+10.0.0.0/8",
        "allowed_ip=--10.0.0.0/8",
        "allowed_ip=fe80::1%1/64",
        "replace_allowed_ips=1",
        "remove=false",
        "update_only=yes",
        "protocol_version=0",
        "private_key=00",
        "listen_port=1",
        "last_handshake_time_sec=1",
    ];
    for line in of_peers {
        assert_eq!(peer(&format!("{line}\n")), Err(22), "{line}");
    }
    assert_eq!(set("listen_port\n"), Err(71));
    assert_eq!(set("listen_port=1\nlisten_port 2\n"), Err(71));
    assert_eq!(
        set(&format!("listen_port={}\n", "1".repeat(MAX_LINE))),
        Err(22)
    );
}

#[test]
fn good_values_are_taken_as_wireguard_go_takes_them() {
    let upper = set(&format!("private_key={}\n", KEY.to_uppercase())).unwrap();
    let mut clamped = crate::keys::from_hex(KEY.as_bytes()).unwrap();
    crate::keys::clamp(&mut clamped);
    assert_eq!(upper.private_key, Some(clamped));
    let zero = set(&format!("private_key={}\n", "0".repeat(64))).unwrap();
    assert_eq!(zero.private_key, Some(Secret::zero()));
    assert_eq!(set("").unwrap(), DeviceChange::default());
    assert_eq!(set("fwmark=4294967295\n").unwrap().fwmark, Some(u32::MAX));
    assert_eq!(
        set("protocol_version=1\n").unwrap(),
        DeviceChange::default()
    );
    assert!(peer("update_only=true\n").unwrap().update_only);
    let mapped = peer("endpoint=[::ffff:192.0.2.1]:7\n").unwrap();
    assert_eq!(mapped.endpoint, Some("192.0.2.1:7".parse().unwrap()));
    let local = peer("endpoint=[fe80::1%lo]:7\n").unwrap();
    let expected = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 1);
    assert_eq!(local.endpoint, Some(expected.into()));
    let ips = peer("allowed_ip=10.1.2.3/8\nallowed_ip=-fd00::1/0\n").unwrap();
    let expected = [
        AllowedIpChange::Add(cidr("10.0.0.0/8")),
        AllowedIpChange::Remove(cidr("::/0")),
    ];
    assert_eq!(ips.allowed_ips, expected);
}

#[test]
fn later_lines_of_a_removed_peer_are_checked_and_dropped() {
    let gone = peer("allowed_ip=10.0.0.0/8\nremove=true\nallowed_ip=10.0.0.0/8\n").unwrap();
    assert!(gone.remove && gone.allowed_ips.is_empty());
    assert_eq!(peer("remove=true\nallowed_ip=nonsense\n"), Err(22));
}

#[test]
fn replacing_allowed_ips_drops_those_named_before() {
    let ips = peer("allowed_ip=10.0.0.0/8\nreplace_allowed_ips=true\nallowed_ip=::/0\n").unwrap();
    assert!(ips.replace_allowed_ips);
    assert_eq!(ips.allowed_ips, [AllowedIpChange::Add(cidr("::/0"))]);
}

#[test]
fn a_connection_goes_on_after_a_wrong_request() {
    let heard =
        hear(b"get=1\n\nset=1\nnonsense\nfwmark=1\n\n\nget=2\n\nget=1\nx=1\n\nset=1\nfwmark=2\n\n");
    let [get, wrong, version, more, good] = heard.as_slice() else {
        panic!("{heard:?}")
    };
    assert_eq!(*get, Heard::Request(UapiRequest::Get));
    assert!(matches!(wrong, Heard::Refused(error) if error.errno == 71));
    assert!(matches!(version, Heard::Refused(error) if error.errno == 71));
    assert!(matches!(more, Heard::Refused(error) if error.errno == 22));
    assert!(matches!(good, Heard::Request(UapiRequest::Set(change)) if change.fwmark == Some(2)));
}

#[test]
fn threads_are_asked_for_by_number_and_policy() {
    let heard = |shards, policy: Option<&str>| {
        let policy = policy.map(str::to_owned);
        [Heard::Request(UapiRequest::Threads { shards, policy })]
    };
    let both = hear(b"threads=1\nshards=4\npolicy=inline\n\n");
    assert_eq!(both, heard(Some(4), Some("inline")));
    assert_eq!(hear(b"threads=1\n\n"), heard(None, None));
    for wrong in ["shards=0", "shards=65536", "shards=", "fwmark=1"] {
        let heard = hear(format!("threads=1\n{wrong}\n\n").as_bytes());
        assert!(matches!(heard[..], [Heard::Refused(_)]), "{wrong}");
    }
}

#[test]
fn an_interface_is_added_by_its_name_and_nothing_else() {
    let added = hear(b"add=1\ninterface=wg1\n\n");
    assert_eq!(added, [Heard::Request(UapiRequest::Add("wg1".into()))]);
    for wrong in [
        &b"add=1\n\n"[..],
        b"add=2\n\n",
        b"add=1\nfwmark=1\n\n",
        b"add=1\ninterface=a\ninterface=b\n\n",
    ] {
        let heard = hear(wrong);
        assert!(matches!(heard.as_slice(), [Heard::Refused(_)]), "{heard:?}");
    }
}

#[test]
fn peers_are_called_in_their_order_where_they_were() {
    let key = |n: u8| format!("{n:064x}");
    let text = format!(
        "call=1\nfrom=192.0.2.9\npublic_key={}\npublic_key={}\nendpoint=[2001:db8::1]:7\nsent={}\nreceived={}\n\n",
        key(2),
        key(1),
        Tai64N([7; 12]),
        Tai64N([9; 12]),
    );
    let mut first = [0; 32];
    first[31] = 2;
    let mut second = [0; 32];
    second[31] = 1;
    let last = LastSeen {
        at: "[2001:db8::1]:7".parse().ok(),
        sent: Tai64N([7; 12]),
        received: Tai64N([9; 12]),
    };
    let request = UapiRequest::Call {
        from: "192.0.2.9".parse().ok(),
        peers: vec![
            (PublicKey(first), LastSeen::default()),
            (PublicKey(second), last),
        ],
    };
    assert_eq!(hear(text.as_bytes()), [Heard::Request(request)]);
    let of = |n| format!("public_key={}\n", key(n));
    for wrong in [
        "from=nowhere\n".to_owned(),
        "from=192.0.2.9\nfrom=192.0.2.9\n".to_owned(),
        of(1) + "from=192.0.2.9\n",
        "endpoint=192.0.2.1:1\n".to_owned(),
        of(1) + "endpoint=192.0.2.1:1\nendpoint=192.0.2.1:1\n",
        of(1) + "endpoint=192.0.2.1\n",
        of(1) + "endpoint=example.com:1\n",
        "sent=@070707070707070707070707\n".to_owned(),
        of(1) + "sent=070707070707070707070707\n",
        of(1) + "received=@07\n",
        "public_key=1\n".to_owned(),
        "x=1\n".to_owned(),
        of(1).repeat(MAX_CALLED + 1),
    ] {
        let heard = hear(format!("call=1\n{wrong}\n").as_bytes());
        assert!(matches!(heard[..], [Heard::Refused(_)]), "{wrong}");
    }
}

#[test]
fn what_is_no_request_ends_the_conversation() {
    for bytes in [
        &b"hello\n\n"[..],
        b"put=1\n\n",
        b"\xff\xfe\n\n",
        b"set=1\nfwmark=1\n",
        b"get=1\n",
        b"get=1",
        b"s",
    ] {
        let heard = hear(bytes);
        assert!(
            matches!(heard.as_slice(), [Heard::Hopeless(_)]),
            "{bytes:?} {heard:?}"
        );
    }
    assert_eq!(hear(b""), []);
    assert_eq!(hear(b"\n\n\n"), []);
}

#[test]
fn endless_lines_and_requests_take_bounded_memory() {
    let mut parser = Parser::default();
    let piece = vec![b'x'; 1 << 16];
    let mut pushed = 0;
    let error = loop {
        let mut input = &piece[..];
        pushed += input.len();
        match parser.push(&mut input, 10 << 20) {
            None => assert!(pushed <= 10 << 20 && parser.buffered() <= MAX_LINE),
            Some(Heard::Hopeless(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((error.errno, pushed), (12, (10 << 20) + piece.len()));
    assert_eq!(parser.held(), 0);

    let mut many = b"set=1\n".to_vec();
    for _ in 0..=MAX_PEERS {
        many.extend_from_slice(format!("public_key={KEY}\n").as_bytes());
    }
    many.push(b'\n');
    assert!(matches!(hear(&many).as_slice(), [Heard::Refused(error)] if error.errno == 12));
}

#[test]
fn a_line_of_4_kib_is_read_and_a_longer_one_is_refused() {
    let line = |len: usize| format!("listen_port={:0>1$}\n", 7, len - "listen_port=".len());
    assert_eq!(
        set(&line(4096)).map(|change| change.listen_port),
        Ok(Some(7))
    );
    assert_eq!(set(&line(4097)), Err(22));
    // The newline does not count, nor where the line was cut on its way.
    let request = format!("set=1\n{}\n", line(4096));
    let mut parser = Parser::default();
    let (mut head, mut tail) = request.as_bytes().split_at(4000);
    assert_eq!(parser.push(&mut head, MAX_REQUEST), None);
    let heard = parser.push(&mut tail, MAX_REQUEST);
    assert!(matches!(heard, Some(Heard::Request(UapiRequest::Set(_)))));
}

#[test]
fn errors_never_repeat_keys() {
    let bytes = format!("set=1\n{KEY}=1\n\nset=1\nprivate_key={KEY}0\n\nset=1\n{KEY}\n\n");
    for heard in hear(bytes.as_bytes()) {
        let Heard::Refused(error) = heard else {
            panic!("{heard:?}")
        };
        let parts = (0..KEY.len() - 6).map(|at| &KEY[at..at + 6]);
        for part in parts {
            assert!(!error.message.contains(part), "{error}");
        }
    }
}

/// The configuration of netns.sh's largest test, twice as many peers.
#[test]
fn a_hundred_and_thirty_thousand_allowed_ips_come_through() {
    let mut change = DeviceChange::default();
    for i in 0..=255u8 {
        let mut peer = PeerChange::new(PublicKey([i; 32]));
        for j in 0..510u16 {
            let ip = Ipv6Addr::new(0xfd00, i.into(), j, 1, 2, 3, 4, 5);
            peer.allowed_ips
                .push(AllowedIpChange::Add(Cidr::new(ip.into(), 128).unwrap()));
        }
        change.peers.push(peer);
    }
    let text = format_set(&change);
    assert!(text.len() < MAX_REQUEST / 4);
    assert_eq!(hear(&text), [Heard::Request(UapiRequest::Set(change))]);
}

fn status() -> DeviceStatus {
    let peer = |n: u8| PeerStatus::new(PublicKey([n; 32]));
    DeviceStatus {
        private_key: Some(Secret::new(&[0x40; 32])),
        public_key: None,
        listen_port: 51820,
        fwmark: 0xca6c,
        peers: vec![
            PeerStatus {
                preshared_key: Some(Secret::new(&[7; 32])),
                endpoint: Some("[fe80::1%3]:1".parse().unwrap()),
                last_handshake: Some(Duration::from_secs(1_700_000_000)),
                rx_bytes: 1,
                tx_bytes: u64::MAX,
                persistent_keepalive: 25,
                allowed_ips: vec![cidr("10.0.0.0/8"), cidr("::/0")],
                ..peer(1)
            },
            peer(2),
        ],
    }
}

#[test]
fn get_answers_in_the_order_and_the_form_that_clients_expect() {
    let golden = format!(
        "private_key={}
listen_port=51820
fwmark=51820
public_key={}
preshared_key={}
protocol_version=1
endpoint=[fe80::1%3]:1
last_handshake_time_sec=1700000000
last_handshake_time_nsec=1
tx_bytes=18446744073709551615
rx_bytes=1
persistent_keepalive_interval=25
allowed_ip=10.0.0.0/8
allowed_ip=::/0
public_key={}
preshared_key={}
protocol_version=1
last_handshake_time_sec=0
last_handshake_time_nsec=0
tx_bytes=0
rx_bytes=0
persistent_keepalive_interval=0
errno=0

",
        "40".repeat(32),
        "01".repeat(32),
        "07".repeat(32),
        "02".repeat(32),
        "00".repeat(32),
    );
    assert_eq!(String::from_utf8_lossy(&format_status(&status())), golden);
    let empty = format_status(&DeviceStatus::default());
    assert_eq!(&**empty, b"errno=0\n\n");
}

fn any_cidr() -> impl Strategy<Value = Cidr> {
    prop_oneof![
        (any::<[u8; 4]>(), 0..=32u8).prop_map(|(ip, len)| Cidr::new(IpAddr::from(ip), len)),
        (any::<[u8; 16]>(), 0..=128u8).prop_map(|(ip, len)| Cidr::new(IpAddr::from(ip), len)),
    ]
    .prop_map(Option::unwrap)
}

fn any_endpoint() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
}

prop_compose! {
    fn any_peer()(
        key in any::<[u8; 32]>(),
        remove in any::<bool>(),
        update_only in any::<bool>(),
        psk in proptest::option::of(any::<[u8; 32]>()),
        endpoint in proptest::option::of(any_endpoint()),
        persistent_keepalive in any::<Option<u16>>(),
        replace_allowed_ips in any::<bool>(),
        ips in proptest::collection::vec((any_cidr(), any::<bool>()), 0..5),
    ) -> PeerChange {
        let change = |(block, add)| match add {
            true => AllowedIpChange::Add(block),
            false => AllowedIpChange::Remove(block),
        };
        PeerChange {
            public_key: PublicKey(key),
            remove,
            update_only,
            preshared_key: psk.map(|psk| Secret::new(&psk)),
            endpoint,
            persistent_keepalive,
            replace_allowed_ips,
            allowed_ips: ips.into_iter().filter(|_| !remove).map(change).collect(),
        }
    }
}

prop_compose! {
    fn any_change()(
        key in proptest::option::of(any::<[u8; 32]>()),
        listen_port in any::<Option<u16>>(),
        fwmark in any::<Option<u32>>(),
        replace_peers in any::<bool>(),
        peers in proptest::collection::vec(any_peer(), 0..5),
    ) -> DeviceChange {
        let private_key = key.map(|key| {
            let mut key = Secret::new(&key);
            crate::keys::clamp(&mut key);
            key
        });
        DeviceChange { private_key, listen_port, fwmark, replace_peers, peers }
    }
}

/// Bytes that look like requests often enough to get past the first check.
fn near_requests() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"set=1\n".to_vec()),
        Just(b"get=1\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(format!("public_key={KEY}\n").into_bytes()),
        "[a-z_]{0,12}=[0-9a-f:./%\\[\\]-]{0,20}\n".prop_map(String::into_bytes),
        "(endpoint|allowed_ip|fwmark|listen_port)=[0-9a-f:./%\\[\\]-]{0,20}\n"
            .prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..40),
        (4000..5000usize).prop_map(|n| vec![b'='; n]),
    ];
    proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_heard_the_same_however_they_are_cut(
        bytes in near_requests(),
        cut in 1..50usize,
    ) {
        let mut parser = Parser::default();
        let mut heard = Vec::new();
        for mut piece in bytes.chunks(cut) {
            while !piece.is_empty() {
                heard.extend(parser.push(&mut piece, MAX_REQUEST));
                prop_assert!(parser.held() <= bytes.len() && parser.buffered() <= MAX_LINE);
            }
        }
        heard.extend(parser.end());
        prop_assert_eq!(heard, hear(&bytes));
    }

    #[test]
    fn what_is_written_is_what_is_read(change in any_change()) {
        let text = format_set(&change);
        let mut read = match hear(&text).pop() {
            Some(Heard::Request(UapiRequest::Set(read))) => read,
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(read.peers.len(), change.peers.len());
        for (read, peer) in read.peers.iter_mut().zip(&change.peers) {
            // Scope ids of addresses that are not link-local come back as they went.
            prop_assert_eq!(read.endpoint.map(|e| e.ip()), peer.endpoint.map(|e| e.ip()));
        }
        prop_assert_eq!(read, change);
    }
}

#[test]
fn names_of_peers_come_in_pairs_and_are_cleaned() {
    let (one, two) = ("01".repeat(32), "02".repeat(32));
    let request = format!(
        "names=1\npublic_key={one}\nname=al\x07ice\npublic_key={two}\nname= \n\nnames=1\nreplace=false\n\nnames=1\nname=x\n\n"
    );
    let mut input = request.as_bytes();
    let mut parser = Parser::default();
    let mut next = || parser.push(&mut input, MAX_REQUEST);
    let named = vec![(PublicKey([1; 32]), "alice".to_owned())];
    let names = |named, replace| Some(Heard::Request(UapiRequest::Names { named, replace }));
    assert_eq!(next(), names(named, true));
    assert_eq!(next(), names(Vec::new(), false));
    assert!(matches!(next(), Some(Heard::Refused(_))));
}

#[test]
fn names_of_endpoints_come_in_pairs() {
    let (one, two) = ("01".repeat(32), "02".repeat(32));
    let request = format!(
        "endpoints=1\npublic_key={one}\nendpoint=a.example:1\npublic_key={two}\nendpoint=b:2\n\n\
         endpoints=1\nreplace=false\n\nendpoints=1\nendpoint=x:1\n\n\
         endpoints=1\npublic_key={one}\nendpoint=x\n\n\
         endpoints=1\npublic_key={one}\nendpoint=x.example:domain\n\n"
    );
    let mut input = request.as_bytes();
    let mut parser = Parser::default();
    let mut next = || parser.push(&mut input, MAX_REQUEST);
    let endpoint = |text: &str| text.parse::<crate::names::HostPort>().unwrap();
    let named = vec![
        (PublicKey([1; 32]), endpoint("a.example:1")),
        (PublicKey([2; 32]), endpoint("b:2")),
    ];
    for (named, replace) in [(named, true), (Vec::new(), false)] {
        let expected = UapiRequest::Endpoints { named, replace };
        assert_eq!(next(), Some(Heard::Request(expected)));
    }
    for _ in 0..3 {
        assert!(matches!(next(), Some(Heard::Refused(_))));
    }
}

#[test]
fn what_peers_may_do_comes_in_sections() {
    let (one, two) = ("01".repeat(32), "02".repeat(32));
    let request = format!(
        "allow=1\npublic_key={one}\nto_peer=1000\nfrom_peer=2000\npublic_key={two}\nquota=5\nexpires=7\nanew=true\n\n\
         allow=1\nreplace=false\n\n\
         allow=1\nto_peer=1\n\n\
         allow=1\npublic_key={one}\nto_peer=-1\n\n\
         allow=1\npublic_key={one}\nspeed=1\n\n\
         allow=1\npublic_key={one}\nreplace=false\n\n\
         allow=2\n\n"
    );
    let mut input = request.as_bytes();
    let mut parser = Parser::default();
    let mut next = || parser.push(&mut input, MAX_REQUEST);
    let rates = Allowance {
        to_peer: Some(1000),
        from_peer: Some(2000),
        ..Allowance::default()
    };
    let ends = Allowance {
        quota: Some(5),
        expires: Some(Duration::from_secs(7)),
        ..Allowance::default()
    };
    let given = vec![
        (PublicKey([1; 32]), rates, false),
        (PublicKey([2; 32]), ends, true),
    ];
    for (given, replace) in [(given, true), (Vec::new(), false)] {
        let expected = UapiRequest::Allow { given, replace };
        assert_eq!(next(), Some(Heard::Request(expected)));
    }
    for _ in 0..5 {
        assert!(matches!(next(), Some(Heard::Refused(_))));
    }
    // As many as one request has, and no more.
    let many = |count: usize| {
        let lines = (0..count).map(|n| format!("public_key={n:064x}\n"));
        format!("allow=1\n{}\n", lines.collect::<String>())
    };
    let heard = |text: &str| Parser::default().push(&mut text.as_bytes(), MAX_REQUEST);
    assert!(matches!(
        heard(&many(MAX_ALLOWANCES)),
        Some(Heard::Request(_))
    ));
    assert!(matches!(
        heard(&many(MAX_ALLOWANCES + 1)),
        Some(Heard::Refused(_))
    ));
}

#[test]
fn an_answer_without_end_is_not_waited_for() {
    let dir = Dir::new();
    answers_without_end(&dir, b"x=1\n");
    let mut client = UapiClient::connect_in(&dir.0, "wg0").unwrap();
    client.patience = Duration::from_millis(100);
    assert!(client.get().unwrap_err().is_silence());
}
