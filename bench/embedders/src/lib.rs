//! What `crates/adit/examples/tun.rs` is told: the name of the TUN device, the UDP port, the peer's
//! key, its address and port; on standard input the private key.

use std::error::Error;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a program fails with.
pub type Failure = Box<dyn Error + Send + Sync>;

/// One tunnel to one peer.
pub struct Settings {
    /// The TUN device.
    pub name: String,
    /// The UDP port.
    pub port: u16,
    /// The peer's public key.
    pub peer: [u8; 32],
    /// Where the peer is.
    pub endpoint: SocketAddr,
    /// The private key.
    pub key: [u8; 32],
}

impl Settings {
    /// Reads the command line and standard input.
    pub fn read() -> Result<Self, Failure> {
        let mut args = std::env::args().skip(1);
        let mut next = |what: &str| args.next().ok_or(format!("{what} is missing"));
        let name = next("the name of the device")?;
        let port = next("the UDP port")?.parse()?;
        let peer = key(&next("the peer's public key")?)?;
        let endpoint = next("the peer's address and port")?.parse()?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        Ok(Self {
            name,
            port,
            peer,
            endpoint,
            key: key(line.trim()).map_err(|_| "standard input has no private key")?,
        })
    }
}

fn key(text: &str) -> Result<[u8; 32], Failure> {
    let bytes = STANDARD.decode(text).map_err(|_| "not a key in base64")?;
    Ok(bytes.try_into().map_err(|_| "a key has 32 bytes")?)
}
