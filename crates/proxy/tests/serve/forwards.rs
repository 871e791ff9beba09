//! TCP forwards in both directions, TLS by its server name, UNIX sockets, standard input and output.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use adit_proxy::config::{Bind, ProxyService, ServiceKind};
use adit_proxy::serve::{RefusalReason, ServeError, bind};

use crate::{PATIENCE, Place, any_port, exchange, loopback, pattern, read_all, target, v4};

#[test]
fn a_port_of_the_host_leads_into_the_tunnel() {
    let forward = |host: &str, port| ServiceKind::TcpClient {
        bind: any_port(),
        target: target(host, port),
    };
    let place = Place::new(vec![
        forward("10.0.0.2", 7),
        forward("echo.example", 7),
        forward("10.0.0.2", 9),
        forward("unknown.example", 7),
    ]);
    place.echoes(7);
    let sent = pattern(1 << 20);
    for at in &place.at[..2] {
        let client = crate::client(at.expect("an address"));
        assert!(exchange(&client, &sent) == sent);
    }
    for at in &place.at[2..] {
        let mut client = crate::client(at.expect("an address"));
        let error = client.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(place.refused(RefusalReason::Refused), 1);
    assert_eq!(place.refused(RefusalReason::UnknownName), 1);
}

#[test]
fn a_port_inside_leads_to_the_host() {
    let server = TcpListener::bind(loopback()).expect("a port");
    let port = server.local_addr().expect("an address").port();
    // A port at which nothing listens any more.
    let nobody = TcpListener::bind(loopback()).expect("a port");
    let free = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let forward = |port, host: &str, to| ServiceKind::TcpServer {
        port,
        target: target(host, to),
    };
    let place = Place::new(vec![
        forward(80, "127.0.0.1", port),
        forward(81, "localhost", port),
        forward(82, "127.0.0.1", free),
        forward(83, "name.invalid", 80),
    ]);
    let connect = |port| {
        place
            .far
            .connect_tcp((v4(1), port), PATIENCE)
            .expect("a stream")
    };
    for port in [80, 81] {
        let mut stream = connect(port);
        stream.write_all(b"request").expect("room");
        stream.shutdown(Shutdown::Write).expect("it is open");
        let (mut service, _) = server.accept().expect("a connection");
        assert_eq!(read_all(&service), b"request");
        service.write_all(b"response").expect("room");
        drop(service);
        assert_eq!(read_all(&stream), b"response");
    }
    for port in [82, 83] {
        let error = connect(port).read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(place.refused(RefusalReason::Refused), 1);
    assert_eq!(place.refused(RefusalReason::UnknownName), 1);
}

/// A ClientHello with these extensions.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let counted = |bytes: &[u8]| {
        let len = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        [&len[..], bytes].concat()
    };
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0x13, 1, 1, 0],
        &counted(extensions),
    ]
    .concat();
    let message = [&[1, 0][..], &counted(&body)].concat();
    [&[22, 3, 1][..], &counted(&message)].concat()
}

fn server_name(name: &str) -> Vec<u8> {
    let len = u8::try_from(name.len()).expect("short");
    [
        &[0, 0, 0, len + 5, 0, len + 3, 0, 0, len][..],
        name.as_bytes(),
    ]
    .concat()
}

#[test]
fn tls_gets_to_the_server_that_it_names() {
    let place = Place::new(vec![ServiceKind::Sni { bind: any_port() }]);
    place.echoes(443);
    // The server gets all of it, though it came in pieces.
    let sent = [&hello(&server_name("www.example"))[..], &pattern(1 << 16)].concat();
    let mut client = place.client();
    client.write_all(&sent[..3]).expect("room");
    std::thread::sleep(Duration::from_millis(5));
    client.write_all(&sent[3..60]).expect("room");
    std::thread::sleep(Duration::from_millis(5));
    assert!(exchange(&client, &sent[60..]) == sent);
    let alert = |description| vec![21, 3, 3, 0, 2, 2, description];
    for (sent, description) in [
        (hello(&[]), 112),
        (hello(&server_name("unknown.example")), 112),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 50),
    ] {
        let mut client = place.client();
        client.write_all(&sent).expect("room");
        assert_eq!(read_all(&client), alert(description), "{sent:?}");
    }
}

/// A folder of its own, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-proxy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at_path(path: &std::path::Path) -> ServiceKind {
    ServiceKind::Socks5 {
        bind: Bind::Unix(path.to_owned()),
        credentials: None,
    }
}

#[test]
fn a_unix_socket_serves_as_a_port_does_and_vanishes() {
    let folder = Folder::new("unix");
    let path = folder.0.join("socks");
    // One that a killed process left.
    drop(UnixListener::bind(&path).expect("a socket"));
    let place = Place::new(vec![at_path(&path)]);
    place.echoes(7);
    let mut client = UnixStream::connect(&path).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    let all = [
        &[5, 1, 0][..],
        &crate::socks::request(1, "echo.example", 7),
        b"early",
    ]
    .concat();
    client.write_all(&all).expect("room");
    client.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(read_all(&client)[12..], *b"early");
    // A second proxy does not take it.
    let services = [ProxyService {
        line: 3,
        kind: at_path(&path),
    }];
    let error = bind(&services).err().expect("it is taken");
    let text = error.to_string();
    assert!(matches!(error, ServeError::Bind { line: 3, .. }), "{text}");
    assert!(text.contains("socks"), "{text}");
    drop(place);
    assert!(!path.exists());
    // Another file is left alone.
    std::fs::write(&path, "a file").expect("a file");
    assert!(bind(&services).is_err());
    assert!(path.exists());
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind(loopback()).expect("a port");
    let address = taken.local_addr().expect("an address");
    let kind = ServiceKind::Sni {
        bind: Bind::Port(address),
    };
    let error = bind(&[ProxyService { line: 7, kind }])
        .err()
        .expect("it is taken");
    let text = error.to_string();
    assert_eq!(error.line(), 7, "{text}");
    assert!(text.starts_with("cannot listen on 127.0.0.1:"), "{text}");
}

#[test]
fn standard_input_and_output_are_a_connection() {
    for (host, port, works) in [("echo.example", 7, true), ("10.0.0.2", 9, false)] {
        let (mut ours, input) = UnixStream::pair().expect("a pair");
        let (output, theirs) = UnixStream::pair().expect("a pair");
        let (sender, ended) = channel();
        let services = [ProxyService {
            line: 1,
            kind: ServiceKind::Stdio {
                target: target(host, port),
            },
        }];
        let place = Place::new(Vec::new());
        place.echoes(7);
        let mut listeners = bind(&services).expect("descriptors");
        listeners.set_stdio(input.into(), theirs.into());
        let mut options = adit_proxy::serve::ServeOptions::default();
        options.on_stdio_end = Some(Arc::new(move |how| {
            let _ = sender.send(how.is_ok());
        }));
        let stack = place.near.clone();
        let proxy = adit_proxy::serve::Proxy::start(stack, listeners, Default::default(), options);
        let _proxy = proxy.expect("a proxy");
        let sent = pattern(1 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Nobody reads it where there is no connection.
                let _ = ours.write_all(&sent);
                let _ = ours.shutdown(Shutdown::Write);
            });
            let back = read_all(&output);
            assert!(back == if works { &sent[..] } else { b"" });
        });
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(works));
    }
}
