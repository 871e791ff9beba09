//! HTTP over TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_proxy::config::{CertificateFiles, NamedFile, ServiceKind};
use adit_proxy::serve::{RefusalReason, read_certificate};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::http::{head, request_head, serve};
use crate::{PATIENCE, Place, any_port, credentials, loopback, pattern, read, wait_until};

/// The folder with a certificate of 127.0.0.1 and its key, and another key. openssl made them for this test.
fn file(line: usize, name: &str) -> NamedFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/certificates");
    NamedFile {
        line,
        path: folder.join(name),
    }
}

fn files(chain: &str, key: &str) -> CertificateFiles {
    CertificateFiles {
        chain: file(3, chain),
        key: file(4, key),
    }
}

fn https() -> ServiceKind {
    ServiceKind::Http {
        bind: any_port(),
        credentials: None,
        certificate: Some(files("proxy.pem", "proxy.key")),
    }
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn speak(place: &Place, protocols: &[&[u8]]) -> TlsStream {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(file(0, "proxy.pem").path);
    roots
        .add(certificate.expect("a certificate"))
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    let name = ServerName::from(loopback().ip());
    let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(tls, place.client())
}

fn connect(place: &Place) -> TlsStream {
    connect_to(place, 7)
}

fn connect_to(place: &Place, port: u16) -> TlsStream {
    let mut client = speak(place, &[]);
    let request = format!("CONNECT a.example:{port} HTTP/1.1\r\n\r\n");
    client.write_all(request.as_bytes()).expect("room");
    assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
    client
}

#[test]
fn connect_over_tls_ends_cleanly_in_both_directions() {
    let place = Place::new(vec![https()]);
    place.echoes(7);
    let mut client = connect(&place);
    for piece in pattern(1 << 20).chunks(40_000) {
        client.write_all(piece).expect("room");
        let mut back = vec![0; piece.len()];
        client.read_exact(&mut back).expect("all of it");
        assert!(back == piece);
    }
    // The echo ends once the client has, and says so in TLS.
    client.conn.send_close_notify();
    client.flush().expect("room");
    assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn a_tls_connection_carries_several_requests() {
    let place = Place::new(vec![ServiceKind::Http {
        bind: any_port(),
        credentials: credentials(),
        certificate: Some(files("proxy.pem", "proxy.key")),
    }]);
    serve(&place, 80, |mut from| {
        while !request_head(&mut from).is_empty() {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
            let _ = from.get_mut().write_all(answer);
        }
    });
    let mut client = speak(&place, &[b"h2", b"http/1.1"]);
    for _ in 0..3 {
        let request =
            "GET http://a.example/ HTTP/1.1\r\nProxy-Authorization: Basic Ym9iOnNlY3JldA==\r\n\r\n";
        client.write_all(request.as_bytes()).expect("room");
        assert!(head(&mut client).starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(&read::<4>(&mut client), b"body");
    }
    assert_eq!(
        client.conn.alpn_protocol(),
        Some(&b"http/1.1"[..]),
        "of those that the client offers"
    );
    let request = b"GET http://a.example/ HTTP/1.1\r\n\r\n";
    client.write_all(request).expect("room");
    assert!(head(&mut client).starts_with("HTTP/1.1 407 "));
}

#[test]
fn a_cut_body_over_tls_does_not_look_complete() {
    let place = Place::new(vec![https()]);
    let listener = place.far.listen_tcp(80).expect("a port");
    let mut client = speak(&place, &[]);
    let request = b"GET http://a.example/ HTTP/1.1\r\n\r\n";
    client.write_all(request).expect("room");
    let mut server = accept(&listener);
    let begin = b"HTTP/1.1 200 OK\r\n\r\nhalf";
    server.write_all(begin).expect("room");
    head(&mut client);
    is_cut_by(client, server);
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn a_reset_passes_to_a_tls_client_of_connect() {
    let place = Place::new(vec![https()]);
    let listener = place.far.listen_tcp(80).expect("a port");
    for has_read in [true, false] {
        let mut client = connect_to(&place, 80);
        let mut server = accept(&listener);
        client.write_all(b"request").expect("room");
        if has_read {
            assert_eq!(&read::<7>(&mut server), b"request");
        }
        server.write_all(b"half").expect("room");
        is_cut_by(client, server);
    }
    wait_until(|| place.proxy.stats().clients == 0);
}

/// A connection of a server, as one that can be reset.
fn accept(listener: &adit::net::TcpListener) -> TcpStream {
    let connection = loop {
        if let Some(connection) = listener.try_accept().expect("open") {
            break connection;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let near = TcpListener::bind(loopback()).expect("a port");
    let server = TcpStream::connect(near.local_addr().expect("an address")).expect("it listens");
    let joined = near.accept().expect("a connection").0;
    connection.join(joined.into()).expect("it is open");
    server
}

/// The client has half of something. The server resets its connection, which the client is to see.
fn is_cut_by(mut client: TlsStream, server: TcpStream) {
    assert_eq!(&read::<4>(&mut client), b"half");
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).expect("a socket");
    drop(server);
    let error = client.read(&mut [0]).expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Another client is served: one that cannot go on has had its turns.
fn serve_another(place: &Place) {
    let mut other = connect(place);
    other.write_all(b"x").expect("room");
    assert_eq!(&read::<1>(&mut other), b"x");
}

#[test]
fn backpressure_of_a_tls_client_reaches_the_server() {
    let place = Place::new(vec![https()]);
    place.echoes(7);
    let listener = place.far.listen_tcp(8).expect("a port");
    let mut client = connect_to(&place, 8);
    let server = listener.accept().expect("a connection");
    let sent = pattern(32 << 20);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (&server).write_all(&sent).expect("room");
            server.shutdown(Shutdown::Write).expect("it is open");
        });
        serve_another(&place);
        assert!(!sender.is_finished(), "what nobody reads is not taken");
        let mut came = Vec::new();
        client.read_to_end(&mut came).expect("its end");
        assert!(came == sent);
    });
}

#[test]
fn backpressure_of_the_server_reaches_a_tls_client() {
    let place = Place::new(vec![https()]);
    place.echoes(7);
    let listener = place.far.listen_tcp(8).expect("a port");
    let mut client = connect_to(&place, 8);
    let server = listener.accept().expect("a connection");
    let sent = pattern(32 << 20);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            client.write_all(&sent).expect("room");
            client.conn.send_close_notify();
            client.flush().expect("room");
        });
        serve_another(&place);
        assert!(!sender.is_finished(), "what nobody reads is not taken");
        let mut came = Vec::new();
        (&server).read_to_end(&mut came).expect("its end");
        assert!(came == sent);
    });
}

#[test]
fn plain_http_is_refused_and_a_health_check_is_not() {
    let place = Place::with(
        vec![https()],
        |options| options.limits.request = Duration::from_millis(300),
        |builder| builder,
    );
    drop(place.client());
    let accepted = || {
        let stats = place.proxy.stats();
        stats.accepted.iter().map(|(_, count)| count).sum::<u64>()
    };
    wait_until(|| accepted() == 1 && place.proxy.stats().clients == 0);
    let refused = || {
        let stats = place.proxy.stats();
        stats.refused.iter().map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(refused(), 0);
    let mut plain = place.client();
    plain
        .write_all(b"GET http://a.example/ HTTP/1.1\r\n\r\n")
        .expect("room");
    // An alert, or a reset, and no HTTP.
    let mut came = Vec::new();
    let _ = plain.read_to_end(&mut came);
    assert!(!came.starts_with(b"HTTP"));
    assert_eq!(place.refused(RefusalReason::Malformed), 1);
    // The begin of a record, and no more: it is ended in time.
    let mut slow = place.client();
    slow.write_all(&[22, 3, 1]).expect("room");
    slow.set_read_timeout(Some(PATIENCE)).expect("a time");
    let _ = slow.read(&mut [0]);
    wait_until(|| place.refused(RefusalReason::Slow) == 1);
    // Only a protocol that is not spoken here.
    let mut other = speak(&place, &[b"h2"]);
    assert!(other.write_all(b"x").and_then(|()| other.flush()).is_err());
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn a_wrong_certificate_is_reported_by_line_and_key() {
    let scratch = std::env::temp_dir().join(format!("adit-certificates-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("a folder");
    let empty = scratch.join("empty.pem");
    std::fs::write(&empty, "nothing\n").expect("a file");
    let there = |name: &str| file(0, name).path;
    let (chain, key, none) = (there("proxy.pem"), there("proxy.key"), there("none.pem"));
    let cases: [(&PathBuf, &PathBuf, usize, &str); 5] = [
        (&none, &key, 3, "No such file"),
        (&empty, &key, 3, "no certificate in it"),
        (&chain, &none, 4, "No such file"),
        (&chain, &chain, 4, "no private key in it"),
        (
            &chain,
            &there("other.key"),
            4,
            "the key of another certificate",
        ),
    ];
    for (chain, key, expected, words) in cases {
        let mut files = files("", "");
        files.chain.path.clone_from(chain);
        files.key.path.clone_from(key);
        let (line, why) = read_certificate(&files).expect_err(words);
        assert_eq!(line, expected, "{why}");
        let name = if line == 3 { "CertFile" } else { "KeyFile" };
        assert!(why.starts_with(&format!("[http] {name}: /")), "{why}");
        assert!(why.contains(words), "{why}");
    }
    std::fs::remove_dir_all(&scratch).expect("a folder");
    assert!(read_certificate(&files("proxy.pem", "proxy.key")).is_ok());
}
