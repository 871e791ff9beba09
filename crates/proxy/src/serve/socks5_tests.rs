use super::*;

fn target(text: &str, port: u16) -> ProxyEndpoint {
    let host = match text.parse() {
        Ok(ip) => EndpointHost::Address(ip),
        Err(_) => EndpointHost::Name(text.to_owned()),
    };
    ProxyEndpoint { host, port }
}

/// Checks that all beginnings of a message are incomplete, and that what follows it is not read.
fn whole<T: PartialEq + std::fmt::Debug>(
    read: impl Fn(&[u8]) -> SocksRead<T>,
    bytes: &[u8],
    is: T,
) {
    for len in 0..bytes.len() {
        assert_eq!(read(&bytes[..len]), Ok(None), "{len} of {bytes:?}");
    }
    let early = [bytes, b"early"].concat();
    assert_eq!(read(&early), Ok(Some((is, bytes.len()))));
}

#[test]
fn a_greeting_has_the_methods_that_it_lists() {
    for (bytes, without_login, with_login) in [
        (&[5, 0][..], false, false),
        (&[5, 1, 0], true, false),
        (&[5, 1, 2], false, true),
        (&[5, 3, 1, 2, 0], true, true),
        (&[5, 2, 1, 0x80], false, false),
    ] {
        let is = SocksGreeting {
            without_login,
            with_login,
        };
        whole(greeting, bytes, is);
    }
    assert_eq!(greeting(&[4, 1, 0, 80]), Err(SocksMistake::Version4));
    assert_eq!(greeting(b"GET /"), Err(SocksMistake::Version(b'G')));
}

#[test]
fn a_login_has_a_name_and_a_password() {
    let read = |bytes: &[u8]| {
        login(bytes)
            .map(|read| read.map(|(it, len)| ((it.user.to_vec(), it.password.to_vec()), len)))
    };
    whole(
        read,
        b"\x01\x03bob\x04pass",
        (b"bob".to_vec(), b"pass".to_vec()),
    );
    whole(read, &[1, 0, 0], (vec![], vec![]));
    assert_eq!(read(&[5, 1, 0]), Err(SocksMistake::Version(5)));
    let longest = [&[1, 255][..], &[b'a'; 255], &[255], &[b'b'; 255]].concat();
    assert_eq!(longest.len(), LONGEST);
    whole(read, &longest, (vec![b'a'; 255], vec![b'b'; 255]));
}

#[test]
fn a_request_is_of_an_address_or_a_name() {
    let name = |name: &[u8]| {
        let len = u8::try_from(name.len()).expect("short");
        [&[5, 1, 0, 3, len][..], name, &[1, 187]].concat()
    };
    for (bytes, is) in [
        (vec![5, 1, 0, 1, 10, 0, 0, 2, 0, 80], target("10.0.0.2", 80)),
        (
            [&[5, 1, 0, 4, 0xfd][..], &[0; 14], &[1, 0, 80]].concat(),
            target("fd00::1", 80),
        ),
        (name(b"a.example"), target("a.example", 443)),
        (name(b"10.0.0.2"), target("10.0.0.2", 443)),
        (name(b"fd00::1"), target("fd00::1", 443)),
    ] {
        whole(request, &bytes, (SocksCommand::Connect, is));
    }
    for (byte, command) in [
        (2, SocksCommand::Other(2)),
        (3, SocksCommand::UdpAssociate),
        (0xf0, SocksCommand::Other(0xf0)),
    ] {
        let bytes = [5, byte, 0, 1, 0, 0, 0, 0, 0, 0];
        whole(request, &bytes, (command, target("0.0.0.0", 0)));
    }
    for (bytes, mistake) in [
        (&[4, 1, 0, 80][..], SocksMistake::Version4),
        (&[6, 1, 0, 1], SocksMistake::Version(6)),
        (&[5, 1, 0, 2], SocksMistake::AddressType(2)),
        (&[5, 1, 0, 3, 0, 0, 80], SocksMistake::Name),
        (&[5, 1, 0, 3, 2, b'a', 0xff, 0, 80], SocksMistake::Name),
        (&[5, 1, 0, 3, 2, b'a', b'\n', 0, 80], SocksMistake::Name),
    ] {
        assert_eq!(request(bytes), Err(mistake), "{bytes:?}");
    }
}

#[test]
fn a_reply_and_a_head_are_read_as_they_were_written() {
    for address in ["10.0.0.2:80", "[fd00::1]:65535"] {
        let address: SocketAddr = address.parse().expect("an address");
        let is = target(&address.ip().to_string(), address.port());
        let bytes = reply(SocksCode::Refused, address);
        assert_eq!(bytes[..3], [5, 5, 0]);
        whole(request, &bytes, (SocksCommand::Other(5), is.clone()));
        let bytes = datagram_head(address);
        whole(datagram, &bytes, (0, is));
    }
    let longest = [&[0, 0, 7, 3, 255][..], &[b'a'; 255], &[0, 53]].concat();
    assert_eq!(longest.len(), LONGEST_HEAD);
    whole(datagram, &longest, (7, target(&"a".repeat(255), 53)));
}
