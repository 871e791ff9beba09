//! HTTP requests that are forwarded, with their bodies.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use adit_proxy::serve::RefusalReason;

use crate::http::{answer, get, head, http, request_head, serve};
use crate::{Place, loopback, pattern, read_all, wait_until};

/// A server that says what it was asked, and closes.
fn says(place: &Place, port: u16, name: &'static str) {
    serve(place, port, move |mut from| {
        let seen = request_head(&mut from);
        let line = seen.lines().next().unwrap_or_default();
        let body = format!("{name}: {line}");
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = from.get_mut().write_all(text.as_bytes());
    });
}

#[test]
fn a_client_keeps_its_connection_through_requests_to_two_hosts() {
    let place = Place::new(vec![http()]);
    says(&place, 80, "first");
    says(&place, 81, "second");
    let client = place.client();
    for round in 0..3 {
        for (url, line) in [
            ("http://one.example/a", "first: GET /a HTTP/1.1"),
            ("http://two.example:81/b", "second: GET /b HTTP/1.1"),
        ] {
            let (head, body) = get(&client, &format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n"));
            assert!(head.contains("Connection: keep-alive\r\n"), "{head}");
            assert_eq!(String::from_utf8_lossy(&body), line, "{round}");
        }
    }
    // Two at once: the second one waits.
    let both =
        "GET http://one.example/c HTTP/1.1\r\n\r\nGET http://two.example:81/d HTTP/1.1\r\n\r\n";
    assert_eq!(get(&client, both).1, b"first: GET /c HTTP/1.1");
    assert_eq!(get(&client, "").1, b"second: GET /d HTTP/1.1");
    // And then a connection.
    place.echoes(7);
    (&client)
        .write_all(b"CONNECT echo.example:7 HTTP/1.1\r\n\r\nearly")
        .expect("room");
    assert!(head(&client).contains(" 200 "));
    client.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&client), b"early");
}

#[test]
fn bodies_of_any_framing_pass_in_both_directions() {
    let place = Place::new(vec![http()]);
    // Says back what it got, framed in the same way.
    serve(&place, 80, |mut from| {
        let seen = request_head(&mut from);
        let mut to = *from.get_ref();
        if let Some((_, len)) = seen.split_once("Content-Length: ") {
            let len: u64 = len
                .lines()
                .next()
                .expect("a line")
                .parse()
                .expect("a number");
            // One direction after the other: each is slowed down by its receiver.
            let mut body = Vec::new();
            from.take(len).read_to_end(&mut body).expect("all of it");
            write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").expect("room");
            to.write_all(&body).expect("room");
        } else if seen.contains("Transfer-Encoding: chunked") {
            write!(to, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").expect("room");
            let mut last = [0; 5];
            while last != *b"0\r\n\r\n" {
                let mut byte = [0];
                from.read_exact(&mut byte).expect("a byte");
                last.rotate_left(1);
                last[4] = byte[0];
                to.write_all(&byte).expect("room");
            }
        } else {
            write!(to, "HTTP/1.0 200 OK\r\n\r\nuntil the end").expect("room");
        }
    });
    let post = "POST http://a.example/ HTTP/1.1\r\n";
    // A length, longer than all buffers.
    let sent = pattern(6 << 20);
    let client = place.client();
    let back = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = &client;
            write!(
                to,
                "{post}Content-Length: {}\r\nConnection: close\r\n\r\n",
                sent.len()
            )
            .expect("room");
            to.write_all(&sent).expect("room");
        });
        head(&client);
        read_all(&client)
    });
    assert!(back == sent);
    // Chunks, in pieces that end anywhere, and a further request on the same connection.
    let chunks = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n";
    let client = place.client();
    let mut to = &client;
    for _ in 0..2 {
        write!(to, "{post}Transfer-Encoding: chunked\r\n\r\n").expect("room");
        for piece in chunks.as_bytes().chunks(4) {
            to.write_all(piece).expect("room");
            to.flush().expect("room");
        }
        assert!(head(&client).contains("Transfer-Encoding: chunked\r\n"));
        let mut back = vec![0; chunks.len()];
        (&client).read_exact(&mut back).expect("all of it");
        assert_eq!(String::from_utf8_lossy(&back), chunks);
    }
    // Until the end.
    let came = answer(&place, "GET http://a.example/ HTTP/1.1\r\n\r\n");
    assert!(
        came.ends_with("Connection: close\r\n\r\nuntil the end"),
        "{came}"
    );
    wait_until(|| place.near.stats().connections == 0);
}

#[test]
fn a_client_that_waits_for_permission_gets_it_from_the_server() {
    let place = Place::new(vec![http()]);
    serve(&place, 80, |mut from| {
        let seen = request_head(&mut from);
        let mut to = *from.get_ref();
        assert!(seen.contains("Expect: 100-continue\r\n"), "{seen}");
        to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .expect("room");
        let mut body = [0; 5];
        from.read_exact(&mut body).expect("all of it");
        to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            .expect("room");
        to.write_all(&body).expect("room");
    });
    let mut client = place.client();
    let request =
        "PUT http://a.example/ HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    client.write_all(request.as_bytes()).expect("room");
    assert_eq!(head(&client), "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(get(&client, "hello").1, b"hello");
}

#[test]
fn an_early_answer_arrives_though_the_request_does_not_end() {
    let place = Place::new(vec![http()]);
    serve(&place, 80, |mut from| {
        request_head(&mut from);
        let refused = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
        from.get_mut().write_all(refused).expect("room");
        // As servers do: what is closed with something unread is reset, and the answer may be lost.
        let _ = from.get_ref().shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    });
    let mut client = place.client();
    let request = "POST http://a.example/ HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n";
    client.write_all(request.as_bytes()).expect("room");
    // As far as it is taken.
    let mut to = client.try_clone().expect("a descriptor");
    std::thread::spawn(move || while to.write_all(&[0; 4096]).is_ok() {});
    let came = head(&client);
    assert!(came.starts_with("HTTP/1.1 413 "), "{came}");
    let mut body = [0; 2];
    client.read_exact(&mut body).expect("all of it");
    assert_eq!(&body, b"no");
}

#[test]
fn what_a_server_says_wrongly_is_a_bad_gateway() {
    let place = Place::new(vec![http()]);
    let answers: [&'static str; 5] = [
        "",
        "SSH-2.0-server\r\n\r\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ];
    for (port, text) in (90..).zip(answers) {
        serve(&place, port, move |mut from| {
            request_head(&mut from);
            let _ = from.get_mut().write_all(text.as_bytes());
        });
        let came = answer(
            &place,
            &format!("GET http://a.example:{port}/ HTTP/1.1\r\n\r\n"),
        );
        assert!(came.starts_with("HTTP/1.1 502 "), "{text:?}: {came}");
        assert!(
            came.contains("error=http_protocol_error"),
            "{text:?}: {came}"
        );
    }
    assert_eq!(place.refused(RefusalReason::BadAnswer), 5);
    // One that ends too early is passed on as it is, and no further.
    serve(&place, 95, |mut from| {
        request_head(&mut from);
        let _ = from
            .get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    });
    let came = answer(&place, "GET http://a.example:95/ HTTP/1.1\r\n\r\n");
    assert!(came.ends_with("\r\n\r\nhalf"), "{came}");
}

#[test]
fn a_server_that_sends_interim_responses_without_end_holds_up_nobody() {
    let place = Place::new(vec![http()]);
    serve(&place, 80, |mut from| {
        request_head(&mut from);
        let interim = b"HTTP/1.1 102 P\r\n\r\n".repeat(4096);
        while from.get_mut().write_all(&interim).is_ok() {}
    });
    says(&place, 81, "other");
    let mut client = place.client();
    let request = "GET http://a.example/ HTTP/1.1\r\n\r\n";
    client.write_all(request.as_bytes()).expect("room");
    let other = "GET http://a.example:81/ HTTP/1.1\r\nConnection: close\r\n\r\n";
    let came = answer(&place, other);
    assert!(came.ends_with("other: GET / HTTP/1.1"), "{came}");
    // Some are passed on, and then it is an answer that is none.
    let came = String::from_utf8(read_all(&client)).expect("text");
    let interim = came.matches("HTTP/1.1 102 P\r\n\r\n").count();
    assert!((1..1000).contains(&interim), "{interim}");
    assert!(came.contains("\r\n\r\nHTTP/1.1 502 "), "{came}");
}

#[test]
fn a_server_that_goes_after_an_interim_response_is_a_bad_gateway() {
    let place = Place::new(vec![http()]);
    serve(&place, 80, |mut from| {
        request_head(&mut from);
        let _ = from.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
    });
    let came = answer(&place, "GET http://a.example/ HTTP/1.1\r\n\r\n");
    assert!(
        came.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 502 "),
        "{came}"
    );
}

/// A client that has the begin of a body which ends with its connection, and the server, which can reset it.
fn half_of_a_body(place: &Place) -> (TcpStream, TcpStream) {
    let listener = place.far.listen_tcp(80).expect("a port");
    let mut client = place.client();
    let request = "GET http://a.example/ HTTP/1.1\r\n\r\n";
    client.write_all(request.as_bytes()).expect("room");
    let connection = loop {
        if let Some(connection) = listener.try_accept().expect("open") {
            break connection;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // The stack passes on how a TCP socket ends.
    let near = TcpListener::bind(loopback()).expect("a port");
    let mut server =
        TcpStream::connect(near.local_addr().expect("an address")).expect("it listens");
    let joined = near.accept().expect("a connection").0;
    connection.join(joined.into()).expect("it is open");
    server
        .write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        .expect("room");
    head(&client);
    assert_eq!(&crate::read::<4>(&client), b"half");
    (client, server)
}

#[test]
fn a_body_whose_connection_is_reset_does_not_look_complete() {
    let place = Place::new(vec![http()]);
    let (mut client, server) = half_of_a_body(&place);
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).expect("a socket");
    drop(server);
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(place.refused(RefusalReason::BadAnswer), 1);
}

#[test]
fn a_proxy_that_ends_does_not_make_a_body_look_complete() {
    let place = Place::new(vec![http()]);
    let (mut client, _server) = half_of_a_body(&place);
    drop(place.proxy);
    let error = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
