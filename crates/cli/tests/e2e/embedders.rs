//! Programs that were written for another library, and have Adit's in its place.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

use crate::harness::*;

const BODY: usize = 1 << 20;

fn body(seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed);
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    bytes.take(BODY).collect()
}

/// A connection that does not hang.
fn bounded(stream: TcpStream) -> BufReader<TcpStream> {
    stream
        .set_read_timeout(Some(seconds(60)))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(seconds(60)))
        .expect("a timeout");
    BufReader::new(stream)
}

/// The first line of a message of HTTP, and its body.
fn read_message(stream: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let (mut first, mut len) = (String::new(), 0);
    stream.read_line(&mut first).expect("a line");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a line");
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).expect("the body");
    (first.trim().to_owned(), body)
}

fn write_message(stream: &mut BufReader<TcpStream>, first: &str, body: &[u8]) {
    let head = format!("{first}\r\nContent-Length: {}\r\n\r\n", body.len());
    let stream = stream.get_mut();
    stream.write_all(head.as_bytes()).expect("the head");
    stream.write_all(body).expect("the body");
}

/// Answers a GET with a body of its own, and a POST with the one that it got; each connection is of one request.
fn serve(listener: &TcpListener, requests: usize) {
    for _ in 0..requests {
        let mut stream = bounded(listener.accept().expect("a client").0);
        match read_message(&mut stream) {
            (first, _) if first == "GET /file HTTP/1.1" => {
                write_message(&mut stream, "HTTP/1.1 200 OK", &body(1));
            }
            (first, sent) if first == "POST /echo HTTP/1.1" => {
                write_message(&mut stream, "HTTP/1.1 200 OK", &sent);
            }
            (first, _) => write_message(&mut stream, "HTTP/1.1 404 Not Found", first.as_bytes()),
        }
    }
}

fn request(at: SocketAddr, first: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = bounded(TcpStream::connect_timeout(&at, seconds(10)).expect("onetun"));
    write_message(&mut stream, first, body);
    read_message(&mut stream)
}

/// ```text
///   left                                    right
///   HTTP client ── onetun ── eth0 ── eth0 ── wg0 (Adit) ── HTTP server
/// ```
///
/// onetun is a program for boringtun's API, without a TUN device; scripts/peers builds it with boringtun-compat.
#[test]
fn onetun_on_boringtuns_api_carries_http() {
    let program = Program::WireguardGo.path().with_file_name("onetun");
    if !program.exists() {
        let message = format!("{} is not built: run scripts/peers", program.display());
        assert!(!under_ci(), "{message}");
        eprintln!("not run: {message}");
        return;
    }
    let net = SitePair::new();
    let (own, onetun) = (Keys::new(), Keys::new());
    let _daemon = Daemon::start(&net.right, Program::Adit, "wg0", &Start::default());
    setconf(
        &net.right,
        "wg0",
        &format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32\n",
            own.private, onetun.public,
        ),
    );
    net.right
        .sh("ip addr add 192.168.77.2/24 dev wg0; ip link set wg0 mtu 1420 up");
    let listener = net
        .right
        .within(|| TcpListener::bind((Ipv4Addr::new(192, 168, 77, 2), 80)).expect("a listener"));
    let server = net.right.spawn(move || serve(&listener, 3));

    let mut command = net.left.command(&program.display().to_string());
    command.arg("127.0.0.1:8080:192.168.77.2:80");
    command
        .env("ONETUN_PRIVATE_KEY", &onetun.private)
        .env("ONETUN_ENDPOINT_PUBLIC_KEY", &own.public)
        .env("ONETUN_ENDPOINT_ADDR", "10.0.0.2:51820")
        .env("ONETUN_SOURCE_PEER_IP", "192.168.77.1")
        .env("ONETUN_LOG", "warn");
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("onetun starts");
    wait_for("onetun listens", seconds(60), || {
        let listening = net.left.sh("ss -Hltn sport = :8080");
        listening.contains("127.0.0.1:8080")
    });
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    net.left.within(move || {
        let ok = "HTTP/1.1 200 OK";
        assert!(request(at, "GET /file HTTP/1.1", b"") == (ok.to_owned(), body(1)));
        assert!(request(at, "POST /echo HTTP/1.1", &body(2)) == (ok.to_owned(), body(2)));
        let (first, _) = request(at, "GET /nothing HTTP/1.1", b"");
        assert_eq!(first, "HTTP/1.1 404 Not Found");
    });
    server.join().expect("the server");
    let transfer = net.right.sh("wg show wg0 transfer");
    let [_, received, sent] = transfer.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{transfer}");
    };
    for bytes in [received, sent] {
        assert!(bytes.parse::<usize>().expect("a number") > BODY);
    }
    process.kill().expect("it runs");
    process.wait().expect("it ends");
}
