//! A tunnel over a TUN device, with one peer.
//!
//! ```text
//! wg genkey | cargo run -p adit --features linux --example tun -- wg0 51820 PEER_KEY 192.0.2.1:51820 [THREADS]
//! ```
//!
//! It reads its private key from standard input, and all addresses are the peer's. Addresses and routes of
//! the device are yours to set:
//!
//! ```text
//! ip address add 10.0.0.1/24 dev wg0 && ip link set wg0 mtu 1420 up
//! ```
//!
//! With THREADS, so many carry packets, with a priority and on CPUs as those of the `adit` command.

use std::io::BufRead;

use adit::{Config, Peer, Pin, Priority, PrivateKey, Threads, Tunnel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let name = next("the name of the device")?;
    let port = next("the UDP port")?.parse()?;
    let peer = next("the peer's public key")?.parse()?;
    let endpoint = next("the peer's address and port")?.parse()?;
    let threads = match next("").ok() {
        None => Threads::default(),
        Some(count) => Threads::new(count.parse()?)
            .priority(Priority::IfAllowed)
            .pin(Pin::WherePacketsAre),
    };
    let mut key = zeroize::Zeroizing::new(String::new());
    std::io::stdin().lock().read_line(&mut key)?;
    let key: PrivateKey = key.trim().parse()?;

    println!("our public key is {}", key.public_key());
    let peer = Peer::new(peer)
        .endpoint(endpoint)
        .allowed_ip("0.0.0.0/0".parse()?)
        .allowed_ip("::/0".parse()?);
    let config = Config::new(key).listen_port(port).peer(peer);
    let tunnel = Tunnel::builder(config)
        .tun(&name)
        .threads(threads)
        .start()?;
    for event in tunnel.events() {
        println!("{event}");
    }
    Err(tunnel.wait().into())
}
