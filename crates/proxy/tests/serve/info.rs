//! The page for monitoring.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use adit_proxy::serve::{InfoOptions, InfoPage, RefusalReason, ServeOptions, ServiceName};

use crate::socks::{ask, request, socks};
use crate::{Place, client, client_from, loopback, read_all, wait_until};

fn with_pages(set: impl FnOnce(&mut ServeOptions)) -> (Place, std::net::SocketAddr) {
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
        vec![socks()],
        |options| {
            set(options);
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
    let (place, at) = with_pages(|_| {});
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
fn the_oldest_clients_of_the_page_make_room_for_new_ones() {
    let (place, at) = with_pages(|_| {});
    let mut idle: Vec<_> = (0..64).map(|_| client(at)).collect();
    for _ in 0..10 {
        let mut client = client(at);
        client
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .expect("room");
        assert!(read_all(&client).ends_with(b"adit 1\n"));
    }
    // The first ones are gone, the last one stays.
    let mut answer = Vec::new();
    let _ = idle[0].write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    let _ = idle[0].read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    let last = &mut idle[63];
    last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("room");
    assert!(read_all(last).ends_with(b"adit 1\n"));
    assert!(place.refused(RefusalReason::Full) == 0);
}

#[test]
fn the_page_is_shown_while_there_are_as_many_clients_as_may_be() {
    let (place, at) = with_pages(|options| options.limits.clients = 1);
    let _idle = place.client();
    wait_until(|| place.proxy.stats().clients == 1);
    let mut client = client(at);
    client
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("room");
    assert!(read_all(&client).ends_with(b"adit 1\n"));
}

#[test]
fn names_that_nobody_answers_for_hold_up_neither_pages_nor_others() {
    let (place, at) = with_pages(|options| options.limits.connect = Duration::from_secs(3600));
    // More than there are threads.
    let _asking: Vec<_> = (0..200)
        .map(|n| {
            let mut client = place.client();
            let greeted = [
                &[5, 1, 0][..],
                &request(1, &format!("{n}.silent.example"), 7),
            ];
            client.write_all(&greeted.concat()).expect("room");
            client
        })
        .collect();
    wait_until(|| place.proxy.stats().accepted_by(ServiceName::Socks5) == 200);
    place.echoes(7);
    let mut client = client(at);
    client
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("room");
    assert!(read_all(&client).ends_with(b"adit 1\n"));
    // A client of another address.
    let other = client_from([127, 0, 0, 2], place.at[0].expect("an address"));
    assert_eq!(ask(&other, 1, "echo.example", 7), 0);
    // The names are still being asked for.
    assert_eq!(place.refused(RefusalReason::TimedOut), 0);
}
