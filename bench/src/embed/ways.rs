//! The programs that embed a library: what they are, where they are, and how they are started.
//!
//! One with a TUN device has the words of `crates/adit/examples/tun.rs`: the name of the device, the
//! UDP port, the peer's key, its address and port. [`stacks`](super::stacks) says what one has whose
//! own stack TCP ends in. Both read their private key from standard input.

use std::path::Path;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use crate::implementation::Implementation;
use crate::install;
use crate::sandbox::Failure;

/// A way to embed a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Way {
    /// Adit's `Tunnel`, with one thread as a guest: `crates/adit/examples/tun.rs`.
    AditEngine,
    /// Adit's `Device` in a loop on one thread, a system call for each datagram (`embed-device`).
    AditDevice,
    /// boringtun's `Tunn` in a loop on one thread: `bench/embedders/src/bin/boringtun.rs`.
    BoringtunTunn,
    /// gotatun's device: `bench/embedders/src/bin/gotatun.rs`.
    Gotatun,
    /// `adit::net`, a thread for each stream (`embed-net`).
    AditNet,
    /// wireguard-go with its netstack, as wireproxy embeds it: `bench/embedders/netstack`.
    WireguardGoNetstack,
    /// `adit proxy`, which has TCP of its own.
    AditProxy,
    /// wireproxy, on wireguard-go's netstack.
    Wireproxy,
    /// tailscaled in its userspace mode: `bench/embedders/tailscale` has the coordination server that it needs.
    Tailscaled,
    /// No proxy: `adit` with a TUN device, as root, and the kernel's TCP.
    AditDaemon,
}

/// Where TCP ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In the kernel, behind a TUN device of the program.
    Tun,
    /// In the program's own stack.
    Stack,
    /// In a proxy, for a program that knows no tunnel.
    Proxy,
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AditEngine => "adit-engine",
            Self::AditDevice => "adit-device",
            Self::BoringtunTunn => "boringtun-tunn",
            Self::Gotatun => "gotatun",
            Self::AditNet => "adit-net",
            Self::WireguardGoNetstack => "wireguard-go-netstack",
            Self::AditProxy => "adit-proxy",
            Self::Wireproxy => "wireproxy",
            Self::Tailscaled => "tailscaled",
            Self::AditDaemon => "adit-daemon",
        }
    }

    pub(super) const fn end(self) -> End {
        match self {
            Self::AditNet | Self::WireguardGoNetstack => End::Stack,
            Self::AditProxy | Self::Wireproxy | Self::Tailscaled | Self::AditDaemon => End::Proxy,
            _ => End::Tun,
        }
    }

    pub(super) const fn implementation(self) -> Implementation {
        match self {
            Self::AditEngine
            | Self::AditDevice
            | Self::AditNet
            | Self::AditProxy
            | Self::AditDaemon => Implementation::Adit,
            Self::BoringtunTunn => Implementation::Boringtun,
            Self::Gotatun => Implementation::Gotatun,
            Self::WireguardGoNetstack | Self::Wireproxy | Self::Tailscaled => {
                Implementation::WireguardGo
            }
        }
    }

    /// What `scripts/peers` builds.
    const fn peer(self) -> Option<&'static str> {
        match self {
            Self::AditEngine
            | Self::AditDevice
            | Self::AditNet
            | Self::AditProxy
            | Self::AditDaemon => None,
            Self::Wireproxy => Some("wireproxy"),
            Self::Tailscaled => Some("embed-tailscaled"),
            Self::BoringtunTunn => Some("embed-boringtun"),
            Self::Gotatun => Some("embed-gotatun"),
            Self::WireguardGoNetstack => Some("embed-netstack"),
        }
    }

    /// The version of the library in it, if it is not ours.
    fn version(self) -> Option<String> {
        const LOCK: &str = include_str!("../../embedders/Cargo.lock");
        const GO: &str = include_str!("../../embedders/netstack/go.mod");
        const TAILSCALE: &str = include_str!("../../embedders/tailscale/go.mod");
        const WIREPROXY: &str = include_str!("../../../tests/wireproxy/go.mod");
        let version = match self {
            Self::AditEngine
            | Self::AditDevice
            | Self::AditNet
            | Self::AditProxy
            | Self::AditDaemon => None,
            Self::Wireproxy => {
                install::required_version(WIREPROXY, "github.com/pufferffish/wireproxy")
            }
            Self::Tailscaled => install::required_version(TAILSCALE, "tailscale.com"),
            Self::BoringtunTunn => locked(LOCK, "boringtun"),
            Self::Gotatun => locked(LOCK, "gotatun"),
            Self::WireguardGoNetstack => {
                install::required_version(GO, "golang.zx2c4.com/wireguard")
            }
        };
        version.map(str::to_owned)
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// The version of a package in the text of a Cargo.lock.
fn locked<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    rest.split('"').next()
}

/// A program that is there.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) way: Way,
    pub(super) version: String,
    /// The program, and what it is told before the settings of the tunnel.
    pub(super) words: Vec<String>,
}

/// The programs that are there or can be built, and why others are left out. `tun` is the example of
/// Adit's library, `adit` the program, if one was given.
pub(super) fn find(
    ways: &[Way],
    tun: Option<&Path>,
    adit: Option<&Path>,
) -> (Vec<Program>, Vec<(Way, String)>) {
    let peers: Vec<&str> = ways.iter().filter_map(|way| way.peer()).collect();
    let built = install::embedders(&peers).map_err(|why| why.to_string());
    let (mut there, mut left_out) = (Vec::new(), Vec::new());
    for &way in ways {
        match program(way, [tun, adit], &built) {
            Ok(program) => {
                eprintln!("{:<23}{}", way.name(), program.version);
                there.push(program);
            }
            Err(why) => {
                eprintln!("{:<23}left out: {why}", way.name());
                left_out.push((way, format!("left out: {why}")));
            }
        }
    }
    (there, left_out)
}

fn program(
    way: Way,
    [tun, adit]: [Option<&Path>; 2],
    built: &Result<(), String>,
) -> Result<Program, Failure> {
    let (path, version) = match (way, way.peer()) {
        (_, Some(name)) => {
            built.clone()?;
            let version = way.version().ok_or("its version is not known")?;
            (install::peers_dir().join("bin").join(name), version)
        }
        (Way::AditEngine, None) => install::example(tun)?,
        (Way::AditProxy | Way::AditDaemon, None) => {
            let entry = install::find(Implementation::Adit, adit)?;
            (entry.binary.ok_or("it has no binary")?, entry.version)
        }
        (_, None) => (std::env::current_exe()?, install::version_here()),
    };
    let mut words = vec![path.to_string_lossy().into_owned()];
    match way {
        Way::AditDevice => words.push("embed-device".to_owned()),
        Way::AditNet => words.push("embed-net".to_owned()),
        Way::AditProxy => words.push("proxy".to_owned()),
        _ => {}
    }
    Ok(Program {
        way,
        version,
        words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_other_libraries_are_known() {
        for &way in Way::value_variants() {
            assert_eq!(way.version().is_some(), way.peer().is_some(), "{way:?}");
        }
        assert_eq!(Way::Gotatun.version().unwrap().split('.').count(), 3);
        let lock = "name = \"a\"\nversion = \"1\"\n\nname = \"ab\"\nversion = \"2\"\n";
        assert_eq!(locked(lock, "ab"), Some("2"));
        assert_eq!(locked(lock, "b"), None);
    }

    #[test]
    fn a_way_is_called_as_it_is_in_tables() {
        for &way in Way::value_variants() {
            assert_eq!(Way::from_str(way.name(), false), Ok(way));
        }
    }
}
