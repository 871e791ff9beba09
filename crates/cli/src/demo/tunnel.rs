//! The tunnel under test: one `adit` process per host, as a user would run it, configured over its
//! socket.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use adit_ctl::status;
use adit_ctl::uapi::UapiClient;
use adit_io::tun::Tun;
use adit_io::{Offloads, TunQueue as _};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use adit_testbed::{Host, Process, proc};

use super::hosts::{self, HostPair};
use crate::failure::{Context, Failure, Result, bail};
use crate::keys::{fill_random, private_key};

pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PREFIX: u8 = 24;
const PORT: u16 = 51820;
/// 1500 less 80: what wg-quick gives a tunnel over Ethernet.
pub(super) const MTU: u32 = 1420;

pub(super) struct DemoTunnel {
    // Dropped in this order: the processes first, which remove their sockets, then the directory.
    left: End,
    right: End,
    _sockets: Directory,
    /// Whether packets of sparse flows are processed on the CPU that they come from.
    pub(super) placement: bool,
}

/// One process of the tunnel.
struct End {
    name: &'static str,
    process: Process,
    directory: PathBuf,
}

impl DemoTunnel {
    pub(super) fn start(pair: &HostPair) -> Result<Self> {
        // A missing right is reported once, here, and not by two processes at a time.
        let tuns = (pair.left).run(|| Tun::open("adit-try", 1, Offloads::default()));
        let tuns = tuns.context(|| "cannot make a tunnel interface".into())?;
        let placement = tuns.iter().all(|tun| tun.last_arrival().is_some());
        drop(tuns);
        let sockets = Directory::new()?;
        let (left_key, right_key) = (private_key()?, private_key()?);
        let (left_public, right_public) = (left_key.public_key(), right_key.public_key());
        let left = End::start(&pair.left, "adit-left", &sockets.0)?;
        let right = End::start(&pair.right, "adit-right", &sockets.0)?;
        left.configure(&pair.left, LEFT, left_key, right_public, hosts::RIGHT)?;
        right.configure(&pair.right, RIGHT, right_key, left_public, hosts::LEFT)?;
        // An interface's socket opens after the interface is up, and a handshake that finds it
        // closed waits 5 s.
        for host in [&pair.left, &pair.right] {
            host.run(wait_for_socket)?;
        }
        Ok(Self {
            left,
            right,
            _sockets: sockets,
            placement,
        })
    }

    /// CPU time that both processes have used.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        Ok(self.left.cpu_time()? + self.right.cpu_time()?)
    }

    /// The AEAD in use and the offloads in force.
    pub(super) fn report(&self) -> Result<(String, BTreeMap<String, bool>)> {
        let mut interface =
            status::fetch_in(&status_directory(&self.left.directory), self.left.name)
                .context(|| "cannot ask a tunnel process for its status".into())?;
        let engine = interface
            .engine
            .take()
            .ok_or_else(|| Failure::State("a tunnel process hides its status".into()))?;
        Ok((engine.aead, engine.offloads))
    }
}

/// Where the status sockets stand when the control sockets are in `directory`.
pub(crate) fn status_directory(directory: &Path) -> PathBuf {
    directory.join("status")
}

impl End {
    /// Starts the process and waits until its socket answers.
    fn start(host: &Host, name: &'static str, directory: &Path) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("adit");
        command.args([
            "run",
            "--foreground",
            "--die-with",
            &std::process::id().to_string(),
            "--control-dir",
        ]);
        command
            .arg(directory)
            .arg(name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Ctrl-C and a closing terminal are for the demo alone: its end lets these two clean up
            // in peace.
            .process_group(0);
        // Nothing of the caller's is meant for these two.
        for variable in ["WG_TUN_FD", "WG_UAPI_FD", "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        let failed = || format!("cannot start the tunnel process {name}");
        let process = host.spawn(command).context(failed)?;
        let mut end = Self {
            name,
            process,
            directory: directory.to_owned(),
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        let answers =
            || UapiClient::connect_in(directory, name).is_ok_and(|mut client| client.get().is_ok());
        while !answers() {
            if let Some(status) = end.process.ended().context(failed)? {
                bail!(
                    State,
                    "the tunnel process {name} could not start ({status}); its reason stands above"
                );
            }
            if Instant::now() > deadline {
                bail!(State, "the tunnel process {name} did not answer within 5 s");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(end)
    }

    fn configure(
        &self,
        host: &Host,
        at: Ipv4Addr,
        key: Secret,
        peer: PublicKey,
        endpoint: Ipv4Addr,
    ) -> Result<()> {
        let failed = || format!("cannot configure {}", self.name);
        let mut section = PeerChange::new(peer);
        section.endpoint = Some(SocketAddr::from((endpoint, PORT)));
        section.allowed_ips = Cidr::new(IpAddr::V4(at), PREFIX)
            .map(AllowedIpChange::Add)
            .into_iter()
            .collect();
        let change = DeviceChange {
            private_key: Some(key),
            listen_port: Some(PORT),
            peers: vec![section],
            ..DeviceChange::default()
        };
        let mut client = UapiClient::connect_in(&self.directory, self.name).context(failed)?;
        client.set(&change).context(failed)?;
        host.bring_up(self.name, &[(at.into(), PREFIX)], Some(MTU))
            .context(failed)
    }

    fn cpu_time(&self) -> Result<Duration> {
        proc::cpu_time(self.process.id())
            .context(|| format!("cannot read the CPU time of {}", self.name))
    }
}

/// Waits until a process on this host, the calling thread's, has the tunnel's UDP port open.
fn wait_for_socket() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if proc::has_udp_port(PORT).unwrap_or(false) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!(
        State,
        "a tunnel process did not open its UDP port within 5 s"
    );
}

/// A directory for the sockets that only we can look into. The tunnel processes remove it, too,
/// when they end, in case that this process is killed.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self> {
        let mut random = [0; 8];
        fill_random(&mut random)?;
        let path =
            std::env::temp_dir().join(format!("adit-demo-{:016x}", u64::from_ne_bytes(random)));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
