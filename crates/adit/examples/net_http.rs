//! Fetches a page through a tunnel, in a process without a TUN device and without privileges.
//!
//! ```text
//! wg genkey | cargo run -p adit --features net --example net_http -- \
//!     PEER_KEY 192.0.2.1:51820 10.0.0.2 10.0.0.1 http://intranet.example/
//! ```
//!
//! It reads its private key from standard input. After the peer come the inner address of this end and the
//! DNS server inside the tunnel. The page goes to standard output.

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::time::Duration;

use adit::net::Net;
use adit::{Config, Peer, PrivateKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let peer = next("the peer's public key")?.parse()?;
    let endpoint = next("the peer's address and port")?.parse()?;
    let address: IpAddr = next("the inner address of this end")?.parse()?;
    let dns: IpAddr = next("the DNS server inside the tunnel")?.parse()?;
    let url = next("the URL")?;
    let rest = url
        .strip_prefix("http://")
        .ok_or("the URL is not http://…")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let target = match host.contains(':') {
        true => host.to_owned(),
        false => format!("{host}:80"),
    };
    let mut key = zeroize::Zeroizing::new(String::new());
    std::io::stdin().lock().read_line(&mut key)?;
    let key: PrivateKey = key.trim().parse()?;

    let peer = Peer::new(peer)
        .endpoint(endpoint)
        .allowed_ip("0.0.0.0/0".parse()?)
        .allowed_ip("::/0".parse()?);
    let net = Net::builder(Config::new(key).peer(peer))
        .address(address)
        .dns(dns)
        .start()?;
    let mut stream = net.connect_tcp(target, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    std::io::copy(&mut stream, &mut std::io::stdout().lock())?;
    Ok(())
}
