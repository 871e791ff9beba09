//! TCP of a program that knows no tunnel, through a proxy that has one.
//!
//! ```text
//!       host a, as nobody                                host b
//!  load ── SOCKS5 ── proxy  ─ ─ ─ ─ ─ tunnel ─ ─ ─ ─ ─   adit wg0 10.77.0.2 ── serve
//!       ve0 10.76.0.1 ─────────── veth 1500 ──────────   ve0 10.76.0.2
//! ```
//!
//! The other end is the same for all: Adit with a TUN device, and the kernel's TCP.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use adit_proto::config::PublicKey;
use adit_testbed::framing::{Family, TUNNEL_MTU};
use adit_testbed::proc;
use adit_testbed::process::Process;
use adit_testbed::stats::quantile;

use super::socks::lab;
use super::stacks::{self, Load};
use super::tailscale;
use super::ways::{Program, Way};
use crate::daemon::{self, READY};
use crate::hosts::Keys;
use crate::implementation::{Entry, Implementation};
use crate::install;
use crate::pair::{LinkedHosts, Placement};
use crate::rounds::{self, Measure, Values};
use crate::sandbox::Failure;

pub(super) const RATE: &str = "tcp1";
pub(super) const CPU: &str = "tcp1.cpu";
pub(super) const BACK: &str = "back1";
pub(super) const MEMORY: &str = "rss.one";
pub(super) const SET_UP: &str = "set-up.p50";

pub(super) const MEASURES: [Measure; 10] = [
    rounds::measure(RATE, "one stream", "Gb/s", 2),
    rounds::measure(CPU, "  CPU of the proxy", "s/GB", 2),
    rounds::measure(BACK, "one stream back", "Gb/s", 2),
    rounds::measure("back1.cpu", "  CPU of the proxy", "s/GB", 2),
    rounds::measure("tcp64", "64 streams", "Gb/s", 2),
    rounds::measure("tcp64.cpu", "  CPU of the proxy", "s/GB", 2),
    rounds::measure(SET_UP, "set-up of one", "µs", 0),
    rounds::measure("byte.p50", "byte beside", "µs", 0),
    rounds::measure(MEMORY, "memory, one stream", "MiB", 1),
    rounds::measure("rss.peak", "memory, 64 streams", "MiB", 1),
];

const FILE: &str = "/run/proxy.conf";
pub(super) const PROXY: &str = "127.0.0.1:1080";
/// What has no rights.
const AS_NOBODY: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

/// One stream there, one back, and 64; the CPU time and the memory of what is at host a.
pub(super) fn measure(program: &Program, seconds: u32) -> Result<Values, Failure> {
    let adit = match program.way {
        Way::AditProxy | Way::AditDaemon => program.words.first().map(Path::new),
        _ => None,
    };
    let adit = install::find(Implementation::Adit, adit)?;
    let mut hosts = Hosts::begin(program, &adit)?;
    let one = hosts.load(1, seconds, &[])?;
    let back = hosts.load(1, seconds, &["--back"])?;
    let many = hosts.load(64, seconds, &[])?;
    let median = |values: &[f64]| quantile(values, 0.5).ok_or("no byte came back");
    let mut values = vec![
        (RATE, one.gbps()),
        (CPU, one.cpu_per_gb()),
        (BACK, back.gbps()),
        ("back1.cpu", back.cpu_per_gb()),
        ("tcp64", many.gbps()),
        ("tcp64.cpu", many.cpu_per_gb()),
        (SET_UP, median(&one.said.set_ups)?),
        ("byte.p50", median(&one.said.round_trips)?),
    ];
    // That of the daemon leaves out the kernel's buffers.
    if program.way != Way::AditDaemon {
        values.extend([
            (MEMORY, one.memory.max(back.memory)),
            ("rss.peak", many.memory),
        ]);
    }
    Ok(values)
}

/// Two hosts with the server, and what is measured.
struct Hosts {
    pair: LinkedHosts,
    /// None where the pair has daemons at both hosts.
    proxy: Option<Process>,
    /// What is measured.
    measured: u32,
    /// Only kept: the daemon of the other end, and the server.
    _others: Vec<Process>,
}

impl Hosts {
    fn begin(program: &Program, adit: &Entry) -> Result<Self, Failure> {
        let lab = lab()?;
        let is_proxy = program.way != Way::AditDaemon;
        let mut others = Vec::new();
        let (pair, proxy, measured) = match is_proxy {
            false => {
                let pair = LinkedHosts::new(adit, Placement::Free, Family::V4, "cubic")?;
                let [measured, _] = pair.daemons().ok_or("it has no daemons")?;
                (pair, None, measured)
            }
            true => {
                let mut begun = None;
                let begin = |pair: &LinkedHosts, far: &PublicKey| {
                    let (proxy, key) = match program.way {
                        Way::Tailscaled => {
                            let (programs, key) = tailscale::begin(pair, far, &program.words)?;
                            let [control, proxy] = programs;
                            others.push(control);
                            (proxy, key)
                        }
                        _ => with_file(pair, far, &program.words)?,
                    };
                    begun = Some(proxy);
                    Ok(key)
                };
                let (pair, far) = LinkedHosts::with_far_end(adit, begin)?;
                others.push(far);
                let proxy = begun.ok_or("it has not begun")?;
                let measured = proxy.id();
                (pair, Some(proxy), measured)
            }
        };
        let at = pair.inside(Family::V4, 1).to_string();
        let words = [lab, "embed-socks".into(), "serve".into(), at];
        let is_ready = |log: &str| log.lines().any(|line| line == "ready");
        others.push(daemon::start_and_hear(
            &pair.b, "serve", &words, "", READY, is_ready,
        )?);
        Ok(Self {
            pair,
            proxy,
            measured,
            _others: others,
        })
    }

    fn load(&mut self, streams: u32, seconds: u32, options: &[&str]) -> Result<Load, Failure> {
        let mut words = vec![lab()?, "embed-socks".into(), "load".into()];
        if self.proxy.is_some() {
            words.push(format!("--proxy={PROXY}"));
        }
        words.extend(options.iter().map(|&option| option.to_owned()));
        let to = self.pair.inside(Family::V4, 1).to_string();
        words.extend([to, streams.to_string(), seconds.to_string()]);
        let cpu = |pid| -> Result<f64, Failure> { Ok(proc::cpu_time(pid)?.as_secs_f64()) };
        let before = cpu(self.measured)?;
        let limit = READY * 3 + Duration::from_secs(seconds.into());
        let has_said = |log: &str| stacks::parse(log).is_some();
        let client = daemon::start_and_hear(&self.pair.a, "load", &words, "", limit, has_said);
        // That the proxy has ended tells more than what a client makes of it.
        if let Some(proxy) = &mut self.proxy {
            daemon::check(&self.pair.a, proxy, "proxy")?;
        }
        drop(client?);
        Ok(Load {
            said: stacks::read(&self.pair.a, "load")?,
            cpu: cpu(self.measured)? - before,
            memory: proc::memory(self.measured)?.peak,
        })
    }
}

/// Starts a proxy that reads wireproxy's file, which gets a new key.
fn with_file(
    pair: &LinkedHosts,
    far: &PublicKey,
    words: &[String],
) -> Result<(Process, PublicKey), Failure> {
    let keys = Keys::new()?;
    let file = config(&keys.private(), &far.to_string(), pair.endpoint(1));
    pair.a.run(move || std::fs::write(FILE, file))?;
    let words = [words, &["-c".into(), FILE.into()]].concat();
    Ok((start(pair, &words)?, keys.public))
}

/// Starts a proxy as nobody, and waits until it takes clients.
pub(super) fn start(pair: &LinkedHosts, words: &[String]) -> Result<Process, Failure> {
    let words = [&AS_NOBODY.map(str::to_owned), words].concat();
    let listens = |_: &str| pair.a.run(|| std::net::TcpStream::connect(PROXY).is_ok());
    daemon::start_and_hear(&pair.a, "proxy", &words, "", READY, listens)
}

/// A file that wireproxy and `adit proxy` read.
fn config(private: &str, peer: &str, endpoint: SocketAddr) -> String {
    format!(
        "[Interface]\nPrivateKey = {private}\nAddress = 10.77.0.1/32\nMTU = {TUNNEL_MTU}\nListenPort = 51820\n\n\
         [Peer]\nPublicKey = {peer}\nEndpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0\n\n\
         [Socks5]\nBindAddress = {PROXY}\n"
    )
}
