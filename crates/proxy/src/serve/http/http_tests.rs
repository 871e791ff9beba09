use super::*;
use crate::config::ProxyEndpoint;

fn head_of(text: &str) -> Result<Option<usize>, HttpMistake> {
    HeadScan::default().scan(text.as_bytes())
}

fn forwarded(text: &str) -> (String, BodyFraming, Requested, ProxyEndpoint) {
    let read = request(text.as_bytes()).expect("a request");
    let RequestKind::Forward {
        head,
        body,
        requested,
    } = read.kind
    else {
        panic!("{text:?} is forwarded");
    };
    (
        String::from_utf8(head).expect("text"),
        body,
        requested,
        read.target,
    )
}

fn mistaken(text: &str) -> HttpMistake {
    request(text.as_bytes()).expect_err(text)
}

const REQUESTED: Requested = Requested {
    is_head: false,
    minor: 1,
    keeps_alive: true,
    upgrades: false,
};

#[test]
fn a_head_ends_with_an_empty_line_however_it_comes() {
    let text = "GET http://a/ HTTP/1.1\r\nA: b\r\n\r\nearly";
    let end = text.len() - 5;
    assert_eq!(head_of(text), Ok(Some(end)));
    for cut in 0..end {
        let mut scan = HeadScan::default();
        assert_eq!(scan.scan(&text.as_bytes()[..cut]), Ok(None));
        assert_eq!(scan.scan(&text.as_bytes()[cut..]), Ok(Some(end - cut)));
    }
    assert_eq!(head_of("\r\nGET / HTTP/1.1\r\n\r\n"), Ok(Some(20)));
    let malformed = Err(HttpMistake::Malformed("a line does not end with CR LF"));
    for wrong in [
        "GET / HTTP/1.1\n\n",
        "A\r\n\n",
        "A\r\nB\rC\r\n\r\n",
        "A\r\r\n",
        "\n",
    ] {
        assert_eq!(head_of(wrong), malformed, "{wrong:?}");
    }
    let long = "a".repeat(LONGEST_HTTP_HEAD);
    assert_eq!(head_of(&long), Err(HttpMistake::TooLong));
    assert_eq!(
        head_of(&"\r\n".repeat(LONGEST_HTTP_HEAD)),
        Err(HttpMistake::TooLong)
    );
}

#[test]
fn connect_takes_a_host_and_a_port() {
    let target = |uri: &str| {
        let read = request(format!("CONNECT {uri} HTTP/1.1\r\nHost: other\r\n\r\n").as_bytes());
        read.map(|it| {
            assert!(matches!(it.kind, RequestKind::Connect));
            it.target.to_string()
        })
    };
    for (uri, is) in [
        ("a.example:443", "a.example:443"),
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("[fd00::1]:80", "[fd00::1]:80"),
    ] {
        assert_eq!(target(uri), Ok(is.to_owned()));
    }
    for wrong in [
        "a.example",
        "a.example:",
        ":80",
        "a:0",
        "a:65536",
        "a:+80",
        "a:80:80",
        "fd00::1:80",
        "[fd00::1]",
        "[a]:80",
        "u@a:80",
        "http://a:80",
        "/",
        "a%20b:80",
    ] {
        assert!(target(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_url_is_forwarded_as_its_server_wants_it() {
    let (head, body, requested, target) = forwarded(
        "GET HTTP://a.example:8080/x?y HTTP/1.1\r\nHost: elsewhere\r\nAccept: */*\r\nProxy-Authorization: Basic x\r\n\
         Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nTE: trailers\r\n\
         Upgrade: h2c\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(
        head,
        "GET /x?y HTTP/1.1\r\nHost: a.example:8080\r\nAccept: */*\r\nExpect: 100-continue\r\n\
         Content-Length: 3\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(body, BodyFraming::Length(3));
    assert_eq!(requested, REQUESTED);
    assert_eq!(target.to_string(), "a.example:8080");
    for (line, path) in [
        ("GET http://a HTTP/1.1", "GET / HTTP/1.1"),
        ("GET http://a?q HTTP/1.1", "GET /?q HTTP/1.1"),
        ("OPTIONS http://a HTTP/1.1", "OPTIONS * HTTP/1.1"),
        ("GET http://a/ HTTP/1.0", "GET / HTTP/1.0"),
    ] {
        let (head, body, ..) = forwarded(&format!("{line}\r\n\r\n"));
        assert_eq!(
            head,
            format!("{path}\r\nHost: a\r\nConnection: close\r\n\r\n")
        );
        assert_eq!(body, BodyFraming::Length(0));
    }
    let (head, body, ..) =
        forwarded("POST http://a/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nTrailer: X\r\n\r\n");
    assert_eq!(
        head,
        "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(body, BodyFraming::chunked());
    let (head, _, requested, _) =
        forwarded("GET http://a/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(
        head,
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    assert!(requested.upgrades);
}

#[test]
fn who_closes_is_said_by_version_and_fields() {
    let keeps = |text: &str| forwarded(text).2.keeps_alive;
    assert!(keeps("GET http://a/ HTTP/1.1\r\n\r\n"));
    assert!(!keeps(
        "GET http://a/ HTTP/1.1\r\nConnection: foo, CLOSE\r\n\r\n"
    ));
    assert!(!keeps(
        "GET http://a/ HTTP/1.1\r\nProxy-Connection: close\r\n\r\n"
    ));
    assert!(!keeps(
        "GET http://a/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    ));
    assert!(forwarded("HEAD http://a/ HTTP/1.1\r\n\r\n").2.is_head);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let with =
        |fields: &str| request(format!("POST http://a/ HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes());
    for wrong in [
        "Content-Length: 1\r\nTransfer-Encoding: chunked",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: 1, 1",
        "Content-Length: +1",
        "Content-Length: -1",
        "Content-Length: 0x1",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "A: b\r\n folded",
        "A: b\r\n\tfolded",
        " A: b",
        "A b",
        ": b",
        "A: b\0",
        "A\u{1}: b",
    ] {
        assert!(
            matches!(with(wrong), Err(HttpMistake::Malformed(_))),
            "{wrong:?}: {:?}",
            with(wrong)
        );
    }
    // The same length twice is one.
    let twice = with("Content-Length: 2\r\nContent-Length: 2").expect("a request");
    let RequestKind::Forward { head, body, .. } = twice.kind else {
        panic!("it is forwarded")
    };
    assert_eq!(body, BodyFraming::Length(2));
    assert_eq!(
        String::from_utf8(head)
            .expect("text")
            .matches("Content-Length")
            .count(),
        1
    );
    for wrong in [
        "GET / HTTP/1.1",
        "GET https://a/ HTTP/1.1",
        "GET ftp://a/ HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET http://u:p@a/ HTTP/1.1",
        "GET",
        "GET http://a/",
        "\u{1}GET http://a/ HTTP/1.1",
    ] {
        assert!(
            matches!(
                mistaken(&format!("{wrong}\r\n\r\n")),
                HttpMistake::Malformed(_)
            ),
            "{wrong}"
        );
    }
    assert_eq!(
        mistaken("GET http://a/ HTTP/2.0\r\n\r\n"),
        HttpMistake::Version
    );
    let many = "A: b\r\n".repeat(200);
    assert_eq!(
        mistaken(&format!("GET http://a/ HTTP/1.1\r\n{many}\r\n")),
        HttpMistake::TooLong
    );
    let old = "POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(matches!(mistaken(old), HttpMistake::Malformed(_)));
}

#[test]
fn a_response_is_passed_on_with_the_framing_that_it_has() {
    let read = |text: &str, requested| {
        let read = response(text.as_bytes(), requested);
        read.map(|it| {
            (
                String::from_utf8(it.head).expect("text"),
                it.body,
                it.keeps_alive,
            )
        })
    };
    assert_eq!(
        read(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, X\r\nX: 1\r\nServer: s\r\n\r\n",
            REQUESTED
        ),
        Ok((
            "HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"
                .into(),
            Some(BodyFraming::Length(5)),
            true
        ))
    );
    let framing = |text: &str, requested| {
        let text = format!("HTTP/1.1 {text}\r\n\r\n");
        read(&text, requested).map(|(_, body, keeps_alive)| (body, keeps_alive))
    };
    let is_head = Requested {
        is_head: true,
        ..REQUESTED
    };
    let minor = Requested {
        minor: 0,
        keeps_alive: false,
        ..REQUESTED
    };
    let upgrades = Requested {
        upgrades: true,
        ..REQUESTED
    };
    let nothing = Some(BodyFraming::Length(0));
    for (text, requested, is) in [
        (
            "200 OK\r\nTransfer-Encoding: gzip, chunked",
            REQUESTED,
            (Some(BodyFraming::chunked()), true),
        ),
        (
            "200 OK\r\nTransfer-Encoding: gzip",
            REQUESTED,
            (Some(BodyFraming::UntilClose), false),
        ),
        ("200 OK", REQUESTED, (Some(BodyFraming::UntilClose), false)),
        ("200 OK\r\nContent-Length: 9", is_head, (nothing, true)),
        ("204 No Content", REQUESTED, (nothing, true)),
        (
            "304 Not Modified\r\nContent-Length: 9",
            REQUESTED,
            (nothing, true),
        ),
        ("100 Continue", REQUESTED, (None, true)),
        (
            "200 OK\r\nContent-Length: 5",
            minor,
            (Some(BodyFraming::Length(5)), false),
        ),
        (
            "101 Switching Protocols\r\nUpgrade: x",
            upgrades,
            (Some(BodyFraming::UntilClose), false),
        ),
    ] {
        assert_eq!(framing(text, requested), Ok(is), "{text}");
    }
    let passed = read(
        "HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        upgrades,
    );
    let head = passed.expect("a response").0;
    assert_eq!(
        head,
        "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    );
    let interim = read("HTTP/1.1 100 Continue\r\n\r\n", REQUESTED)
        .expect("a response")
        .0;
    assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
    for (wrong, requested) in [
        (
            "200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
            REQUESTED,
        ),
        (
            "200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
            REQUESTED,
        ),
        ("101 Switching Protocols", REQUESTED),
        ("99 Less", REQUESTED),
        ("2000 More", REQUESTED),
        ("200 OK\r\nTransfer-Encoding: chunked", minor),
        ("200 OK\r\nA: b\r\n folded", REQUESTED),
    ] {
        assert!(framing(wrong, requested).is_err(), "{wrong}");
    }
}

#[test]
fn a_body_in_chunks_ends_where_its_last_chunk_does() {
    let text = "5;ext=\"1\"\r\nhello\r\n00A \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
    let with_next = format!("{text}GET http://a/ HTTP/1.1\r\n");
    for cut in 0..=text.len() {
        let mut body = BodyFraming::chunked();
        assert_eq!(body.take(&text.as_bytes()[..cut]), Ok(cut));
        assert_eq!(body.is_done(), cut == text.len());
        assert_eq!(
            body.take(&with_next.as_bytes()[cut..]),
            Ok(text.len() - cut)
        );
        assert!(body.is_done() && !body.is_cut_short());
    }
    for wrong in [
        "\r\n",
        "x",
        "5\n",
        "-1\r\n",
        "5\rx",
        "5\r\nhelloX",
        "5\r\nhello\rX",
        "0\r\n\n",
        "0\r\n\rX",
        "0\r\nA\n",
        "5;a\nb",
        "1000000000000000\r\n",
        "0x5\r\n",
    ] {
        let read = BodyFraming::chunked().take(wrong.as_bytes());
        assert!(
            matches!(read, Err(HttpMistake::Malformed(_))),
            "{wrong:?}: {read:?}"
        );
    }
    let long = format!("1;{}", "a".repeat(5000));
    assert_eq!(
        BodyFraming::chunked().take(long.as_bytes()),
        Err(HttpMistake::TooLong)
    );
    let long = format!("0\r\n{}", "a: b\r\n".repeat(20_000));
    assert_eq!(
        BodyFraming::chunked().take(long.as_bytes()),
        Err(HttpMistake::TooLong)
    );
}

#[test]
fn a_body_of_a_length_has_so_many_bytes() {
    let mut body = BodyFraming::Length(5);
    assert_eq!(body.take(b"abc"), Ok(3));
    assert!(body.is_cut_short());
    assert_eq!(body.take(b"defg"), Ok(2));
    assert!(body.is_done());
    let mut body = BodyFraming::UntilClose;
    assert_eq!(body.take(b"abc"), Ok(3));
    assert!(!body.is_done() && !body.is_cut_short());
}

#[test]
fn a_connection_that_names_too_many_fields_is_refused() {
    let head = |line: &str, names: usize| {
        let names = "a,".repeat(names);
        format!("{line}\r\nConnection: {names}\r\nA: 1\r\nB: 2\r\n\r\n")
    };
    let line = "GET http://a/ HTTP/1.1";
    let (text, ..) = forwarded(&head(line, 64));
    assert!(!text.contains("A: 1") && text.contains("B: 2"), "{text}");
    assert_eq!(mistaken(&head(line, 65)), HttpMistake::TooLong);
    let head = head("HTTP/1.1 200 OK", 65);
    let error = response(head.as_bytes(), REQUESTED).expect_err("too many");
    assert_eq!(error, HttpMistake::TooLong);
}
