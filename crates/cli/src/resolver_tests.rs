use simple_dns::ResourceRecord;
use simple_dns::rdata::{A, AAAA, CNAME};

use super::*;

#[test]
fn what_one_process_writes_the_other_reads() {
    let request = Request {
        id: 7,
        host: "host.example".into(),
    };
    assert_eq!(Request::parse(&request.to_bytes()), Some(request));
    let answer = Answer {
        id: 7,
        addrs: vec![
            "192.0.2.1:0".parse().unwrap(),
            SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, 3).into(),
        ],
        ttl: Duration::from_secs(60),
    };
    let bytes = answer.to_bytes();
    assert_eq!(Answer::parse(&bytes).as_ref(), Some(&answer));
    for length in [0, 7, 9, bytes.len() - 1] {
        assert_eq!(Answer::parse(&bytes[..length]), None);
    }
}

#[test]
fn servers_are_those_of_resolv_conf() {
    let text = "# nameserver 9.9.9.9\nsearch a.example\nnameserver 192.0.2.1\n\
                nameserver fe80::1%eth0\n nameserver 2001:db8::1 # x\n";
    let expected: [SocketAddr; 2] = [
        "192.0.2.1:53".parse().unwrap(),
        "[2001:db8::1]:53".parse().unwrap(),
    ];
    assert_eq!(servers(text), expected);
}

#[test]
fn an_answer_has_addresses_and_the_shortest_time() {
    let name = |text: &'static str| Name::new(text).unwrap();
    let question = query(9, "host.example", TYPE::A).unwrap();
    let mut packet = Packet::parse(&question).unwrap().into_reply();
    let class = CLASS::IN;
    let alias = RData::CNAME(CNAME(name("real.example")));
    let v4 = RData::A(A {
        address: 0xc000_0201,
    });
    let v6 = RData::AAAA(AAAA { address: 1 });
    for (owner, ttl, data) in [
        ("host.example", 30, alias),
        ("real.example", 60, v4),
        ("real.example", 90, v6),
    ] {
        let record = ResourceRecord::new(name(owner), class, ttl, data);
        packet.answers.push(record);
    }
    let bytes = packet.build_bytes_vec().unwrap();
    let addrs: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "::1".parse().unwrap()];
    let expected = Some((addrs, Duration::from_secs(30)));
    assert_eq!(read(&bytes, 9, "Host.example."), Some(expected));
    // Of another question, or no answer at all.
    assert_eq!(read(&bytes, 8, "host.example"), None);
    assert_eq!(read(&bytes, 9, "other.example"), None);
    assert_eq!(read(&question, 9, "host.example"), None);
    assert_eq!(read(&bytes[..20], 9, "host.example"), None);
    // No such name.
    packet.answers.clear();
    let bytes = packet.build_bytes_vec().unwrap();
    assert_eq!(read(&bytes, 9, "host.example"), Some(None));
}

/// Aliases in any order, of any length up to the limit, with records of other names among them.
#[test]
fn records_of_names_that_were_not_asked_for_are_ignored() {
    let class = CLASS::IN;
    for aliases in [0, 1, 2, 5, MAX_ALIASES] {
        for turned in [false, true] {
            let question = query(9, "n0.example", TYPE::A).unwrap();
            let mut packet = Packet::parse(&question).unwrap().into_reply();
            let name = |at: usize| Name::new(&format!("N{at}.example")).unwrap().into_owned();
            let address = |owner: Name<'static>, address| {
                ResourceRecord::new(owner, class, 60, RData::A(A { address }))
            };
            for at in 0..aliases {
                let to = RData::CNAME(CNAME(name(at + 1)));
                packet
                    .answers
                    .push(ResourceRecord::new(name(at), class, 60, to));
                // One that nothing leads to, and one that leads back.
                let astray = RData::CNAME(CNAME(name(0)));
                let owner = Name::new("astray.example").unwrap();
                packet
                    .answers
                    .push(ResourceRecord::new(owner, class, 1, astray));
            }
            // Nor is what it leads to a name of the one that was asked for.
            let elsewhere = RData::CNAME(CNAME(Name::new("other.example").unwrap()));
            let owner = Name::new("astray.example").unwrap();
            packet
                .answers
                .push(ResourceRecord::new(owner, class, 1, elsewhere));
            packet.answers.push(address(name(aliases), 1));
            packet.answers.push(address(name(aliases + 1), 2));
            packet
                .answers
                .push(address(Name::new("other.example").unwrap(), 3));
            packet
                .answers
                .push(address(Name::new("example").unwrap(), 4));
            if turned {
                packet.answers.reverse();
            }
            let bytes = packet.build_bytes_vec().unwrap();
            let addrs: Vec<IpAddr> = vec!["0.0.0.1".parse().unwrap()];
            let expected = Some((addrs, Duration::from_secs(60)));
            assert_eq!(read(&bytes, 9, "n0.example"), Some(expected), "{aliases}");
        }
    }
}
