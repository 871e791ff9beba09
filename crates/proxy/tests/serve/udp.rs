//! Datagrams: UDP ASSOCIATE, and forwards.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use adit_proxy::config::ServiceKind;
use adit_proxy::serve::ServiceName;

use crate::socks::{request, socks};
use crate::{PATIENCE, Place, loopback, read, target, v4, wait_until};

/// Sends back each datagram to a port behind the tunnel.
fn echoes(place: &Place, port: u16) {
    let socket = place.far.bind_udp(port).expect("a port");
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
}

fn local() -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    socket
}

/// Asks for a port for datagrams: where it is.
fn associate(place: &Place) -> (TcpStream, SocketAddr) {
    let mut client = place.client();
    client.write_all(&[5, 1, 0]).expect("room");
    assert_eq!(read::<2>(&client), [5, 0]);
    client.write_all(&request(3, "0.0.0.0", 0)).expect("room");
    let [5, 0, 0, 1, ip @ .., high, low] = read::<10>(&client) else {
        panic!("a port of IPv4");
    };
    let ip: [u8; 4] = ip;
    (
        client,
        SocketAddr::from((ip, u16::from_be_bytes([high, low]))),
    )
}

fn datagram(host: &str, port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = request(0, host, port);
    bytes[0] = 0;
    bytes.extend(payload);
    bytes
}

/// What comes, without its head, which is of an address of IPv4.
fn received(socket: &UdpSocket) -> (Vec<u8>, Vec<u8>) {
    let mut buffer = [0; 2048];
    let (len, _) = socket.recv_from(&mut buffer).expect("a datagram");
    (buffer[..10].to_vec(), buffer[10..len].to_vec())
}

#[test]
fn datagrams_of_a_client_get_to_addresses_and_names_and_back() {
    let place = Place::new(vec![socks()]);
    echoes(&place, 7);
    echoes(&place, 8);
    let (control, at) = associate(&place);
    let socket = local();
    for (host, port) in [
        ("10.0.0.2", 7),
        ("echo.example", 7),
        ("echo.example", 8),
        ("10.0.0.2", 8),
    ] {
        let payload = format!("to {host} {port}");
        socket
            .send_to(&datagram(host, port, payload.as_bytes()), at)
            .expect("sent");
        let (head, back) = received(&socket);
        assert_eq!(head, datagram("10.0.0.2", port, b""));
        assert_eq!(back, payload.as_bytes());
    }
    // An empty one is one, too.
    socket
        .send_to(&datagram("10.0.0.2", 7, b""), at)
        .expect("sent");
    assert_eq!(received(&socket).1, b"");
    // A third host that knows the port inside reaches the client.
    let other = place.far.bind_udp(9).expect("a port");
    socket
        .send_to(&datagram("10.0.0.2", 9, b"hello"), at)
        .expect("sent");
    let (_, inner) = other.recv_from(&mut [0; 16]).expect("a datagram");
    let third = place.far.bind_udp(10).expect("a port");
    third.send_to(b"from elsewhere", inner).expect("sent");
    let (head, back) = received(&socket);
    assert_eq!(head, datagram("10.0.0.2", 10, b""));
    assert_eq!(back, b"from elsewhere");
    // The end of the connection ends it.
    assert_eq!(
        place.proxy.stats().accepted_by(ServiceName::UdpAssociate),
        1
    );
    drop(control);
    wait_until(|| place.proxy.stats().clients == 0);
}

#[test]
fn what_is_no_datagram_of_the_client_is_dropped_and_counted() {
    let place = Place::new(vec![socks()]);
    echoes(&place, 7);
    let (_control, at) = associate(&place);
    let dropped = || place.proxy.stats().datagrams_dropped;
    let socket = local();
    let mut fragment = datagram("10.0.0.2", 7, b"fragment");
    fragment[2] = 1;
    let too_long = datagram("10.0.0.2", 7, &[0; 2000]);
    let wrong: [&[u8]; 6] = [
        b"",
        &[0, 0, 0, 9],
        &[0, 0, 0, 1, 10],
        &fragment,
        &too_long,
        &datagram("unknown.example", 7, b"x"),
    ];
    for (count, wrong) in (1..).zip(wrong) {
        socket.send_to(wrong, at).expect("sent");
        wait_until(|| dropped() == count);
    }
    // Another port of the same host is not the client.
    socket
        .send_to(&datagram("10.0.0.2", 7, b"mine"), at)
        .expect("sent");
    assert_eq!(received(&socket).1, b"mine");
    let other = local();
    other
        .send_to(&datagram("10.0.0.2", 7, b"theirs"), at)
        .expect("sent");
    wait_until(|| dropped() == 7);
    socket
        .send_to(&datagram("10.0.0.2", 7, b"mine"), at)
        .expect("sent");
    assert_eq!(received(&socket).1, b"mine");
}

#[test]
fn a_port_of_the_host_is_forwarded_for_several_clients() {
    for host in ["10.0.0.2", "echo.example"] {
        let place = Place::new(vec![ServiceKind::UdpClient {
            bind: loopback(),
            target: target(host, 7),
            inactivity: Duration::from_millis(300),
        }]);
        echoes(&place, 7);
        let at = place.at[0].expect("an address");
        let clients: Vec<_> = (0..5).map(|_| local()).collect();
        for round in 0..3 {
            for (n, client) in clients.iter().enumerate() {
                let payload = format!("{round} of {n}");
                client.send_to(payload.as_bytes(), at).expect("sent");
                let mut buffer = [0; 64];
                let (len, from) = client.recv_from(&mut buffer).expect("a datagram");
                assert_eq!((&buffer[..len], from), (payload.as_bytes(), at));
            }
        }
        assert_eq!(place.proxy.stats().clients, 5);
        // Silence ends them, and they may come again.
        wait_until(|| place.proxy.stats().clients == 0);
        clients[0].send_to(b"again", at).expect("sent");
        clients[0].recv_from(&mut [0; 64]).expect("a datagram");
    }
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    for any in ["0.0.0.0:0", "[::]:0"] {
        let place = Place::new(vec![ServiceKind::UdpClient {
            bind: any.parse().expect("an address"),
            target: target("10.0.0.2", 7),
            inactivity: PATIENCE,
        }]);
        echoes(&place, 7);
        let bound = place.at[0].expect("an address");
        let client = local();
        for last in [2, 3, 2] {
            let at = SocketAddr::from(([127, 0, 0, last], bound.port()));
            client.send_to(&[last], at).expect("sent");
            let mut buffer = [0; 8];
            let received = client.recv_from(&mut buffer).expect("an answer");
            assert_eq!((received, buffer[0]), ((1, at), last));
        }
        if let Ok(client) = UdpSocket::bind("[::1]:0")
            && bound.is_ipv6()
        {
            client.set_read_timeout(Some(PATIENCE)).expect("a time");
            let at = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, bound.port()));
            client.send_to(b"?", at).expect("sent");
            let from = client.recv_from(&mut [0; 8]).expect("an answer").1;
            assert_eq!(from, at);
        }
    }
}

#[test]
fn a_port_inside_is_forwarded_to_the_host() {
    for host in ["127.0.0.1", "localhost"] {
        let server = local();
        let port = server.local_addr().expect("an address").port();
        let place = Place::new(vec![ServiceKind::UdpServer {
            port: 53,
            target: target(host, port),
            inactivity: Duration::from_secs(60),
        }]);
        let clients = [11, 12].map(|port| place.far.bind_udp(port).expect("a port"));
        for (n, client) in clients.iter().enumerate() {
            let payload = format!("question {n}");
            client
                .send_to(payload.as_bytes(), (v4(1), 53).into())
                .expect("sent");
            let mut buffer = [0; 64];
            let (len, from) = server.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(&buffer[..len], payload.as_bytes());
            server
                .send_to(format!("answer {n}").as_bytes(), from)
                .expect("sent");
            let (len, from) = client.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(buffer[..len], *format!("answer {n}").as_bytes());
            assert_eq!(from, (v4(1), 53).into());
        }
    }
}

#[test]
fn a_new_client_of_a_full_forward_takes_the_place_of_the_oldest() {
    let place = Place::new(vec![ServiceKind::UdpClient {
        bind: loopback(),
        target: target("10.0.0.2", 7),
        inactivity: Duration::from_secs(u32::MAX.into()),
    }]);
    echoes(&place, 7);
    let at = place.at[0].expect("an address");
    let mut clients = Vec::new();
    let answered = |client: &UdpSocket| {
        client.send_to(b"?", at).expect("sent");
        assert_eq!(client.recv_from(&mut [0; 8]).expect("an answer").1, at);
    };
    for _ in 0..1040 {
        let client = local();
        answered(&client);
        clients.push(client);
    }
    assert_eq!(place.proxy.stats().clients, 1024);
    // It may come again, in the place of the next one.
    answered(&clients[0]);
    assert_eq!(place.proxy.stats().clients, 1024);
}

#[test]
fn datagrams_that_wait_for_names_take_a_bounded_amount_of_memory() {
    let place = Place::with(
        vec![socks()],
        // Nothing is dropped because it has waited for too long.
        |options| options.limits.connect = Duration::from_secs(3600),
        |builder| builder,
    );
    echoes(&place, 7);
    let long = datagram("silent.example", 7, &[0; 60_000]);
    let associations: Vec<_> = (0..40)
        .map(|_| {
            let (control, at) = associate(&place);
            let socket = local();
            for _ in 0..16 {
                socket.send_to(&long, at).expect("sent");
                std::thread::sleep(Duration::from_micros(200));
            }
            (control, at, socket)
        })
        .collect();
    wait_until(|| place.proxy.stats().datagrams_dropped > 0);
    // Those whose client has gone leave room.
    drop(associations);
    let ((_control, at), socket) = (associate(&place), local());
    wait_until(|| {
        socket
            .send_to(&datagram("echo.example", 7, b"?"), at)
            .expect("sent");
        let wait = Some(Duration::from_millis(100));
        socket.set_read_timeout(wait).expect("a time");
        socket.recv_from(&mut [0; 64]).is_ok()
    });
}
