//! Hosts as experiments make them: links, keys, and what `wg` is told.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use adit_proto::config::{PublicKey, Secret};
use adit_testbed::Host;
use adit_testbed::framing::TUNNEL_MTU;

use crate::sandbox::Failure;

/// Octets of a packet in a tunnel at most.
#[expect(clippy::cast_possible_truncation, reason = "1420")]
pub(crate) const MTU: u32 = TUNNEL_MTU as u32;

/// How long `wg` may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A private key and its public key.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) secret: Secret,
    pub(crate) public: PublicKey,
}

impl Keys {
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut secret = Secret::zero();
        random(secret.bytes_mut())?;
        // As every implementation clamps it.
        let bytes = secret.bytes_mut();
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        let public = secret.public_key();
        Ok(Self { secret, public })
    }

    /// So many of them.
    pub(crate) fn several(count: u32) -> Result<Vec<Self>, Failure> {
        let one = |_| {
            adit_testbed::interrupt::check()?;
            Self::new()
        };
        (0..count).map(one).collect()
    }

    /// The private key in base64, as a public key is written.
    pub(crate) fn private(&self) -> String {
        PublicKey(*self.secret.bytes()).to_string()
    }
}

/// Opened once: a thousand clients ask for each of their handshakes.
static RANDOM: LazyLock<io::Result<File>> = LazyLock::new(|| File::open("/dev/urandom"));

/// Fills a buffer with random bytes.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    let opened = RANDOM.as_ref();
    let mut file = opened.map_err(|why| io::Error::new(why.kind(), "/dev/urandom"))?;
    file.read_exact(bytes)
}

/// A host with a `/run` of its own.
pub(crate) fn host() -> Result<Host, Failure> {
    let host = Host::new()?;
    host.own_run()?;
    Ok(host)
}

/// Links two hosts. Both ends have this name; the first host has address 1 of the /24, the other has 2.
pub(crate) fn link(hosts: [&Host; 2], name: &str, [a, b, c]: [u8; 3]) -> Result<(), Failure> {
    adit_testbed::link((hosts[0], name), (hosts[1], name))?;
    for (host, last) in hosts.into_iter().zip(1..) {
        host.bring_up(name, &[(Ipv4Addr::new(a, b, c, last).into(), 24)], None)?;
    }
    Ok(())
}

/// Runs `wg` on a host, with arguments that have no spaces.
pub(crate) fn wg(host: &Host, arguments: &str) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    host.output("wg", &words, LIMIT)?;
    Ok(())
}

/// Gives an interface its private key, and what else `wg set` is told.
pub(crate) fn set(host: &Host, interface: &str, keys: &Keys, rest: &str) -> Result<(), Failure> {
    let private = keys.private();
    host.run(move || std::fs::write("/run/key", private))?;
    wg(
        host,
        &format!("set {interface} private-key /run/key {rest}"),
    )
}
