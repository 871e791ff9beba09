//! What clients may take.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_proxy::config::{ProxyService, ServiceKind};
use adit_proxy::serve::{Proxy, RefusalReason, ServeOptions, bind};

use crate::http::http;
use crate::socks::{ask, socks};
use crate::{Place, any_port, client, credentials, exchange, read_all, wait_until};

#[test]
fn two_thousand_idle_clients_leave_the_next_one_served() {
    let place = Place::new(vec![socks(), http()]);
    place.echoes(7);
    let idle: Vec<_> = (0..2000)
        .map(|n| client(place.at[n % 2].expect("an address")))
        .collect();
    wait_until(|| place.proxy.stats().clients == 2000);
    let client = place.client();
    assert_eq!(ask(&client, 1, "echo.example", 7), 0);
    assert_eq!(exchange(&client, b"served"), b"served");
    drop(idle);
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn more_clients_than_may_be_are_refused_and_counted() {
    let place = Place::with(
        vec![socks()],
        |options| options.limits.clients = 10,
        |it| it,
    );
    place.echoes(7);
    let mut idle: Vec<_> = (0..10).map(|_| place.client()).collect();
    wait_until(|| place.proxy.stats().clients == 10);
    let refused = place.client();
    assert!(!matches!((&refused).read(&mut [0]), Ok(1..)));
    assert_eq!(place.refused(RefusalReason::Full), 1);
    // The old go on, and make room.
    let old = idle.pop().expect("a client");
    assert_eq!(ask(&old, 1, "10.0.0.2", 7), 0);
    let next = place.client();
    assert_eq!(ask(&next, 1, "10.0.0.2", 7), 0);
}

#[test]
fn a_request_that_does_not_come_in_time_is_ended() {
    let place = Place::with(
        vec![
            socks(),
            http(),
            ServiceKind::Sni { bind: any_port() },
            ServiceKind::Socks5 {
                bind: any_port(),
                credentials: credentials(),
            },
        ],
        |options| options.limits.request = Duration::from_millis(200),
        |it| it,
    );
    for (at, begin, answer) in [
        (0, &[5, 1][..], &b""[..]),
        (1, b"GET http://a/ HTT", b"HTTP/1.1 408 "),
        (2, &[22, 3, 1], b""),
        (3, &[5, 1, 2], &[5, 2]),
    ] {
        let mut client = client(place.at[at].expect("an address"));
        client.write_all(begin).expect("room");
        let mut came = Vec::new();
        // It may be reset, since something of it was not read.
        let _ = client.read_to_end(&mut came);
        assert!(came.starts_with(answer), "{at}: {came:?}");
    }
    assert_eq!(place.refused(RefusalReason::Slow), 4);
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn a_proxy_that_ends_closes_its_clients_and_frees_its_ports() {
    let place = Place::new(vec![socks()]);
    let at = place.at[0].expect("an address");
    let idle = place.client();
    wait_until(|| place.proxy.stats().clients == 1);
    drop(place.proxy);
    assert_eq!(read_all(&idle), b"");
    let kind = ServiceKind::Socks5 {
        bind: adit_proxy::config::Bind::Port(at),
        credentials: None,
    };
    let listeners = bind(&[ProxyService { line: 0, kind }]).expect("the port is free");
    let options = ServeOptions::default();
    let again = Proxy::start(place.near.clone(), listeners, Default::default(), options);
    drop(again.expect("a proxy"));
}

#[test]
fn a_client_that_only_looks_is_no_refusal() {
    let sni = ServiceKind::Sni { bind: any_port() };
    let place = Place::new(vec![socks(), http(), sni]);
    for at in &place.at {
        drop(client(at.expect("an address")));
    }
    let accepted = || {
        place
            .proxy
            .stats()
            .accepted
            .iter()
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    wait_until(|| accepted() == 3 && place.proxy.stats().clients == 0);
    let stats = place.proxy.stats();
    assert!(
        stats.refused.iter().all(|(_, count)| *count == 0),
        "{stats:?}"
    );
    assert!(place.log.lock().expect("a log").is_empty());
}

#[test]
fn threads_that_handle_what_clients_send_are_told_first() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&names);
    let server = ServiceKind::TcpServer {
        port: 80,
        target: crate::target("localhost", 80),
    };
    let _place = Place::with(
        vec![socks(), server],
        |options| {
            options.on_start = Some(Arc::new(move || {
                let name = std::thread::current().name().map(str::to_owned);
                told.lock().expect("names").push(name.expect("a name"));
            }));
        },
        |it| it,
    );
    let count = |name: &str| {
        let names = names.lock().expect("names");
        names.iter().filter(|it| *it == name).count()
    };
    wait_until(|| count("adit-clients") == 1 && count("adit-names") == 16);
    // The one that looks names up outside needs the system's files.
    assert_eq!(names.lock().expect("names").len(), 17);
}
