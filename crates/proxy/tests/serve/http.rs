//! HTTP: CONNECT, and what is asked of the proxy itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use adit_proxy::config::ServiceKind;
use adit_proxy::serve::RefusalReason;

use crate::{Place, any_port, credentials, exchange, fill, pattern, read_all, wait_until};

pub(crate) fn http() -> ServiceKind {
    ServiceKind::Http {
        bind: any_port(),
        credentials: None,
        certificate: None,
    }
}

/// Reads a head, without what follows it.
pub(crate) fn head(mut from: impl Read) -> String {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        text.push(char::from(crate::read::<1>(&mut from)[0]));
    }
    text
}

/// All that a client is answered that sends this.
pub(crate) fn answer(place: &Place, sent: &str) -> String {
    let mut client = place.client();
    client.write_all(sent.as_bytes()).expect("room");
    String::from_utf8(read_all(&client)).expect("text")
}

/// Serves each connection to a port behind the tunnel by itself.
pub(crate) fn serve(
    place: &Place,
    port: u16,
    each: impl Fn(BufReader<&adit::net::TcpStream>) + Send + Sync + Clone + 'static,
) {
    let listener = place.far.listen_tcp(port).expect("a port");
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            let each = each.clone();
            std::thread::spawn(move || each(BufReader::new(&stream)));
        }
    });
}

/// Reads the head of a request.
pub(crate) fn request_head(from: &mut impl BufRead) -> String {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if from.read_line(&mut text).unwrap_or(0) == 0 {
            break;
        }
    }
    text
}

#[test]
fn connect_gives_a_connection_and_keeps_what_came_early() {
    let place = Place::new(vec![http()]);
    place.echoes(7);
    let client = place.client();
    let request = b"CONNECT echo.example:7 HTTP/1.1\r\nHost: echo.example:7\r\n\r\nearly";
    let sent = [&request[..], &pattern(1 << 20)].concat();
    let back = exchange(&client, &sent);
    let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
    assert_eq!(back[..established.len()], *established);
    assert!(back[established.len()..] == sent[request.len() - 5..]);
}

#[test]
fn a_password_is_asked_for_and_not_forwarded() {
    let place = Place::new(vec![ServiceKind::Http {
        bind: any_port(),
        credentials: credentials(),
        certificate: None,
    }]);
    serve(&place, 80, |mut from| {
        let seen = request_head(&mut from);
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{seen}",
            seen.len()
        );
        let _ = from.get_mut().write_all(text.as_bytes());
    });
    // bob:secret
    let right = "Proxy-Authorization: Basic Ym9iOnNlY3JldA==\r\n";
    let asked = |fields: &str| {
        answer(
            &place,
            &format!("GET http://a.example/ HTTP/1.1\r\nConnection: close\r\n{fields}\r\n"),
        )
    };
    let came = asked(right);
    assert!(came.starts_with("HTTP/1.1 200 OK\r\n"), "{came}");
    assert!(
        came.contains("GET / HTTP/1.1") && !came.contains("Authorization"),
        "{came}"
    );
    for wrong in [
        "",
        "Proxy-Authorization: Basic Ym9iOnNlY3JldB==\r\n",
        "Authorization: Basic Ym9iOnNlY3JldA==\r\n",
    ] {
        let came = asked(wrong);
        assert!(came.starts_with("HTTP/1.1 407 "), "{came}");
        assert!(
            came.contains("\r\nProxy-Authenticate: Basic realm="),
            "{came}"
        );
    }
    let came = answer(&place, "CONNECT a.example:80 HTTP/1.1\r\n\r\n");
    assert!(came.starts_with("HTTP/1.1 407 "), "{came}");
    assert_eq!(place.refused(RefusalReason::NotAllowed), 4);
}

#[test]
fn each_failure_has_a_status_and_a_reason() {
    let place = Place::with(
        vec![http()],
        |options| options.limits.connect = Duration::from_millis(700),
        |builder| builder,
    );
    for (host, status, error) in [
        ("10.0.0.2:9", 502, "connection_refused"),
        ("[fd00::2]:9", 502, "destination_ip_unroutable"),
        ("10.0.0.99:9", 504, "connection_timeout"),
        ("unknown.example:9", 502, "dns_error"),
    ] {
        for request in [format!("CONNECT {host}"), format!("GET http://{host}/")] {
            let came = answer(&place, &format!("{request} HTTP/1.1\r\n\r\n"));
            assert!(
                came.starts_with(&format!("HTTP/1.1 {status} ")),
                "{request}: {came}"
            );
            assert!(
                came.contains(&format!("error={error}\r\n")),
                "{request}: {came}"
            );
        }
    }
}

#[test]
fn a_full_budget_is_told_and_keeps_the_old() {
    let place = Place::with(vec![http()], |_| {}, |builder| builder.budget(10 << 10));
    let listener = place.far.listen_tcp(7).expect("a port");
    let mut first = place.client();
    let connect = "CONNECT 10.0.0.2:7 HTTP/1.1\r\n\r\n";
    first.write_all(connect.as_bytes()).expect("room");
    assert!(head(&first).contains(" 200 "));
    let far = listener.accept().expect("a connection");
    let filled = fill(&first);
    assert!(answer(&place, connect).starts_with("HTTP/1.1 503 "));
    first.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&far), vec![7; filled]);
}

#[test]
fn malformed_requests_get_an_answer_of_http() {
    let place = Place::new(vec![http()]);
    let long = format!(
        "GET http://a/ HTTP/1.1\r\nA: {}\r\n\r\n",
        "a".repeat(70_000)
    );
    for (sent, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET https://a/ HTTP/1.1\r\n\r\n", 400),
        ("CONNECT a HTTP/1.1\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\n\n", 400),
        ("GET http://a/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        (
            "POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        ("\x05\x01\x00\r\n\r\n", 400),
        ("GET http://a/ HTTP/3.0\r\n\r\n", 505),
        (long.as_str(), 431),
    ] {
        let came = answer(&place, sent);
        assert!(
            came.starts_with(&format!("HTTP/1.1 {status} ")),
            "{sent:.60}: {came}"
        );
        assert!(came.ends_with('\n'), "{came}");
    }
    assert_eq!(place.refused(RefusalReason::Malformed), 10);
}

#[test]
fn another_protocol_passes_in_both_directions() {
    let place = Place::new(vec![http()]);
    serve(&place, 80, |mut from| {
        let seen = request_head(&mut from);
        assert!(
            seen.contains("Connection: upgrade\r\nUpgrade: echo\r\n"),
            "{seen}"
        );
        let mut to = *from.get_ref();
        let switched =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        to.write_all(switched).expect("room");
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut client = place.client();
    let request = "GET http://a.example/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    client.write_all(request.as_bytes()).expect("room");
    assert!(head(&client).contains(" 101 "));
    let sent = pattern(1 << 20);
    assert!(exchange(&client, &sent) == sent);
    wait_until(|| place.proxy.stats().clients == 0);
}

/// Sends a request, and reads its whole response, which has a length.
pub(crate) fn get(client: &TcpStream, request: &str) -> (String, Vec<u8>) {
    let mut to = client;
    to.write_all(request.as_bytes()).expect("room");
    let head = head(client);
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; len.map_or(0, |len| len.parse().expect("a number"))];
    let mut from = client;
    from.read_exact(&mut body).expect("all of it");
    (head, body)
}
