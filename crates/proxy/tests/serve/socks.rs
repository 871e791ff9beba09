//! SOCKS5: what clients send, and what they are answered.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use adit_proxy::config::ServiceKind;
use adit_proxy::serve::{RefusalReason, ServiceName};

use crate::{
    Place, any_port, credentials, exchange, fill, pattern, read, read_all, v4, wait_until,
};

pub(crate) fn socks() -> ServiceKind {
    ServiceKind::Socks5 {
        bind: any_port(),
        credentials: None,
    }
}

/// A request for a name or an address of IPv4.
pub(crate) fn request(command: u8, host: &str, port: u16) -> Vec<u8> {
    let mut bytes = vec![5, command, 0];
    match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(ip)) => {
            bytes.push(1);
            bytes.extend(ip.octets());
        }
        Ok(std::net::IpAddr::V6(ip)) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
        Err(_) => {
            bytes.extend([3, u8::try_from(host.len()).expect("short")]);
            bytes.extend(host.as_bytes());
        }
    }
    bytes.extend(port.to_be_bytes());
    bytes
}

/// Says a greeting and a request: the code of the reply.
pub(crate) fn ask(client: &TcpStream, command: u8, host: &str, port: u16) -> u8 {
    let mut to = client;
    to.write_all(&[5, 1, 0]).expect("room");
    assert_eq!(read::<2>(client), [5, 0]);
    to.write_all(&request(command, host, port)).expect("room");
    let [version, code, _, kind] = read::<4>(client);
    assert_eq!((version, kind), (5, 1));
    read::<6>(client);
    code
}

#[test]
fn a_client_gets_to_addresses_and_names() {
    // Half of it is for the address where nobody is.
    let place = Place::with(
        vec![socks()],
        |options| options.limits.connect = Duration::from_secs(2),
        |builder| builder,
    );
    place.echoes(7);
    for host in [
        "10.0.0.2",
        "::ffff:10.0.0.2",
        "echo.example",
        "half.example",
        "ECHO.example.",
    ] {
        let client = place.client();
        assert_eq!(ask(&client, 1, host, 7), 0, "{host}");
        let sent = pattern(1 << 20);
        assert!(exchange(&client, &sent) == sent, "{host}");
    }
    assert_eq!(place.proxy.stats().accepted_by(ServiceName::Socks5), 5);
    wait_until(|| place.near.stats().connections == 0 && place.proxy.stats().clients == 0);
}

#[test]
fn what_is_sent_early_and_byte_by_byte_gets_there() {
    let place = Place::new(vec![socks()]);
    place.echoes(7);
    // All at once, and the end with it.
    let client = place.client();
    let all = [&[5, 1, 0][..], &request(1, "echo.example", 7), b"early"].concat();
    let back = exchange(&client, &all);
    assert_eq!(back[..4], [5, 0, 5, 0]);
    assert_eq!(back[12..], *b"early");
    // A byte at a time.
    let mut client = place.client();
    client.set_nodelay(true).expect("an option");
    for byte in &all {
        client.write_all(&[*byte]).expect("room");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.shutdown(Shutdown::Write).expect("it is open");
    let again = read_all(&client);
    // Only the port that it is from is another.
    assert_eq!((&again[..10], &again[12..]), (&back[..10], &back[12..]));
}

#[test]
fn each_failure_has_a_code_of_its_own() {
    let place = Place::with(
        vec![socks()],
        |options| options.limits.connect = Duration::from_millis(700),
        |builder| builder,
    );
    for (command, host, port, code, reason) in [
        (1, "10.0.0.2", 9, 5, RefusalReason::Refused),
        (1, "fd00::2", 7, 3, RefusalReason::Unreachable),
        (1, "10.0.0.99", 7, 6, RefusalReason::TimedOut),
        (1, "unknown.example", 7, 4, RefusalReason::UnknownName),
        (1, "silent.example", 7, 6, RefusalReason::TimedOut),
        (2, "10.0.0.2", 7, 7, RefusalReason::NotSupported),
        (9, "10.0.0.2", 7, 7, RefusalReason::NotSupported),
    ] {
        let before = place.refused(reason);
        let client = place.client();
        assert_eq!(ask(&client, command, host, port), code, "{host}");
        assert_eq!(read_all(&client), b"", "{host}");
        assert_eq!(place.refused(reason), before + 1, "{host}");
    }
    let lines = place.log.lock().expect("a log");
    assert!(
        lines.iter().any(|line| line.contains("unknown")),
        "{lines:?}"
    );
}

#[test]
fn a_full_budget_refuses_and_keeps_the_old() {
    let place = Place::with(vec![socks()], |_| {}, |builder| builder.budget(10 << 10));
    let listener = place.far.listen_tcp(7).expect("a port");
    let first = place.client();
    assert_eq!(ask(&first, 1, "10.0.0.2", 7), 0);
    let far = listener.accept().expect("a connection");
    let filled = fill(&first);
    let second = place.client();
    assert_eq!(ask(&second, 1, "10.0.0.2", 7), 1);
    assert_eq!(place.refused(RefusalReason::NoMemory), 1);
    first.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&far), vec![7; filled]);
}

#[test]
fn a_name_and_a_password_are_asked_for() {
    let place = Place::new(vec![ServiceKind::Socks5 {
        bind: any_port(),
        credentials: credentials(),
    }]);
    place.echoes(7);
    let login = |user: &str, password: &str| {
        let mut bytes = vec![1, u8::try_from(user.len()).expect("short")];
        bytes.extend(user.as_bytes());
        bytes.push(u8::try_from(password.len()).expect("short"));
        bytes.extend(password.as_bytes());
        bytes
    };
    let mut client = place.client();
    client.write_all(&[5, 2, 0, 2]).expect("room");
    assert_eq!(read::<2>(&client), [5, 2]);
    client.write_all(&login("bob", "secret")).expect("room");
    assert_eq!(read::<2>(&client), [1, 0]);
    client.write_all(&request(1, "10.0.0.2", 7)).expect("room");
    assert_eq!(read::<10>(&client)[..2], [5, 0]);
    assert_eq!(exchange(&client, b"hello"), b"hello");
    for (user, password) in [
        ("bob", "Secret"),
        ("Bob", "secret"),
        ("", ""),
        ("bob", "secret1"),
    ] {
        let client = place.client();
        let all = [&[5, 1, 2][..], &login(user, password)].concat();
        assert_eq!(exchange(&client, &all), [5, 2, 1, 1], "{user} {password}");
    }
    // Without any, and with a login that is none.
    assert_eq!(exchange(&place.client(), &[5, 1, 0]), [5, 0xff]);
    assert_eq!(exchange(&place.client(), &[5, 1, 2, 9, 0]), [5, 2, 1, 1]);
    assert_eq!(place.refused(RefusalReason::NotAllowed), 5);
    let lines = place.log.lock().expect("a log");
    assert!(
        lines
            .iter()
            .all(|line| !line.to_lowercase().contains("secret")),
        "{lines:?}"
    );
}

#[test]
fn what_is_not_socks5_is_answered_in_its_protocol() {
    let place = Place::new(vec![socks()]);
    let socks4 = [4, 1, 0, 80, 10, 0, 0, 2, b'm', b'e', 0];
    let socks4a = [
        &[4, 1, 0, 80, 0, 0, 0, 1, b'm', b'e', 0][..],
        b"a.example\0",
    ]
    .concat();
    for (sent, answer) in [
        (&socks4[..], &[0, 0x5b, 0, 0, 0, 0, 0, 0][..]),
        (&socks4a, &[0, 0x5b, 0, 0, 0, 0, 0, 0]),
        (b"GET / HTTP/1.1\r\n\r\n", &[5, 0xff]),
        (&[5, 0], &[5, 0xff]),
        (&[5, 1, 1], &[5, 0xff]),
        (
            &[5, 1, 0, 6, 1, 0, 1],
            &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 2],
            &[5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 3, 0, 0, 80],
            &[5, 0, 5, 4, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
    ] {
        assert_eq!(exchange(&place.client(), sent), answer, "{sent:?}");
    }
    assert_eq!(place.refused(RefusalReason::Socks4), 2);
    // A client that goes in the middle of its request.
    let client = place.client();
    (&client).write_all(&[5, 1, 0, 5, 1]).expect("room");
    drop(client);
    wait_until(|| place.refused(RefusalReason::Gone) == 1);
    let lines = place.log.lock().expect("a log");
    assert!(
        lines.iter().any(|line| line.contains("SOCKS4")),
        "{lines:?}"
    );
}

#[test]
fn either_end_may_end_first() {
    let place = Place::new(vec![socks()]);
    let listener = place.far.listen_tcp(7).expect("a port");
    let connected = || {
        let client = place.client();
        assert_eq!(ask(&client, 1, "10.0.0.2", 7), 0);
        (client, listener.accept().expect("a connection"))
    };
    // The client ends; the server goes on.
    let (mut client, mut server) = connected();
    client.write_all(b"request").expect("room");
    client.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&server), b"request");
    server.write_all(b"response").expect("room");
    drop(server);
    assert_eq!(read_all(&client), b"response");
    // The server ends; the client goes on.
    let (mut client, mut server) = connected();
    server.write_all(b"banner").expect("room");
    server.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&client), b"banner");
    client.write_all(b"goodbye").expect("room");
    drop(client);
    assert_eq!(read_all(&server), b"goodbye");
    // A reset passes.
    let (mut client, mut server) = connected();
    client.write_all(b"unread").expect("room");
    server.read_exact(&mut [0]).expect("a byte");
    drop(server);
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_client_that_reads_nothing_costs_the_others_nothing() {
    let place = Place::new(vec![socks()]);
    let floods = place.far.listen_tcp(19).expect("a port");
    std::thread::spawn(move || {
        while let Ok(mut stream) = floods.accept() {
            std::thread::spawn(move || {
                let bytes = vec![0; 1 << 16];
                while stream.write_all(&bytes).is_ok() {}
            });
        }
    });
    place.echoes(7);
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let client = place.client();
            assert_eq!(ask(&client, 1, "10.0.0.2", 19), 0);
            client
        })
        .collect();
    let sent = pattern(512 << 10);
    let client = place.client();
    assert_eq!(ask(&client, 1, &v4(2).to_string(), 7), 0);
    assert!(exchange(&client, &sent) == sent);
    drop(slow);
}
