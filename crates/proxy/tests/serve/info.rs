//! The page for monitoring.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;

use adit_proxy::serve::{InfoOptions, InfoPage, RefusalReason};

use crate::{Place, client, loopback, read_all, wait_until};

fn with_pages() -> (Place, std::net::SocketAddr) {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let at = listener.local_addr().expect("an address");
    let pages = |path: &str| {
        let page = |status, body: &str| InfoPage {
            status,
            content_type: "text/plain",
            body: body.to_owned(),
        };
        match path {
            "/metrics" => Some(page(200, "adit 1\n")),
            "/readyz" => Some(page(503, "no peer answers\n")),
            "/defect" => panic!("a page that panics"),
            _ => None,
        }
    };
    let place = Place::with(
        vec![],
        |options| {
            options.info = Some(InfoOptions {
                listener: listener.into(),
                pages: Arc::new(pages),
            });
        },
        |builder| builder,
    );
    (place, at)
}

#[test]
fn pages_are_shown_and_nothing_else() {
    let (place, at) = with_pages();
    let ask = |sent: &str| {
        let mut client = client(at);
        client.write_all(sent.as_bytes()).expect("room");
        String::from_utf8(read_all(&client)).expect("text")
    };
    for (sent, begin, end) in [
        (
            "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "\r\n\r\nadit 1\n",
        ),
        (
            "GET /metrics?x=y HTTP/1.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "\r\n\r\nadit 1\n",
        ),
        (
            "HEAD /metrics HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "Content-Length: 7\r\nConnection: close\r\n\r\n",
        ),
        (
            "GET /readyz HTTP/1.1\r\n\r\n",
            "HTTP/1.1 503 Service Unavailable\r\n",
            "no peer answers\n",
        ),
        (
            "GET /other HTTP/1.1\r\n\r\n",
            "HTTP/1.1 404 ",
            "there is no such page\n",
        ),
        ("GET /defect HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ", "\n"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ", "\n"),
        ("HELO a\r\n\r\n", "HTTP/1.1 400 ", "\n"),
        ("GET /metrics HTTP/1.1\n\n", "HTTP/1.1 400 ", "\n"),
    ] {
        let came = ask(sent);
        assert!(
            came.starts_with(begin) && came.ends_with(end),
            "{sent:?}: {came}"
        );
    }
    drop(place);
}

#[test]
fn clients_of_the_page_are_few() {
    let (place, at) = with_pages();
    let idle: Vec<_> = (0..64).map(|_| client(at)).collect();
    let refused = client(at);
    wait_until(|| place.refused(RefusalReason::Full) == 1);
    assert!(!matches!(
        std::io::Read::read(&mut &refused, &mut [0]),
        Ok(1..)
    ));
    drop(idle);
    // Then others have their turn.
    wait_until(|| {
        let mut client = client(at);
        let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut came = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client, &mut came);
        came.ends_with(b"adit 1\n")
    });
}
