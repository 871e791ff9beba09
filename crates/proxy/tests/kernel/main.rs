//! The kernel's stack in a namespace, against a network in this process on the other end of the tunnel.
//!
//! It has no harness: the program is started again, as the child process that makes the namespace, as nobody, and to
//! be killed. Everything runs as root, where the test does, and as nobody.

mod carries;
mod endings;
mod processes;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use adit::net::{Net, NetBuilder, NetError};
use adit::{Config, IpBlock, Peer, PrivateKey};
use adit_proxy::kernel::{
    InnerNetwork, KernelDevice, KernelOptions, KernelStack, SocketNamespace, serve_child,
};
use adit_proxy::stack::{OpenedTcp, Stack};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The argument of the child process.
pub(crate) const CHILD: &str = "--kernel-net";
/// Both devices.
pub(crate) const DEVICES: [KernelDevice; 2] = [KernelDevice::Tun, KernelDevice::PacketSocket];

type Test = (&'static str, fn(KernelDevice));

const TESTS: [Test; 9] = [
    ("the_best_stack_is_chosen", processes::chosen),
    ("tcp_carries_every_byte_both_ways", carries::tcp),
    (
        "listeners_take_connections_of_both_families",
        carries::listen,
    ),
    ("datagrams_of_both_families_come_and_go", carries::udp),
    ("names_are_looked_up_and_kept", carries::names),
    (
        "refused_unreachable_late_and_no_address_differ",
        endings::told_apart,
    ),
    ("half_closes_and_resets_are_passed_on", endings::passed_on),
    (
        "a_child_that_is_killed_ends_the_stack",
        endings::killed_child,
    ),
    (
        "a_program_that_is_killed_leaves_nothing",
        processes::killed_program,
    ),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    match first.to_str() {
        Some(CHILD) => return success(serve_child().is_ok()),
        Some(processes::HELD) => return processes::hold(arguments.next()),
        Some(processes::REFUSED) => return success(processes::choose_where_refused()),
        Some(processes::WITHOUT_TUN) => return success(processes::choose_without_tun()),
        Some(processes::AS_NOBODY) => {
            return success(run_all(
                "as nobody, ",
                &arguments.next().unwrap_or_default(),
            ));
        }
        _ => {}
    }
    let copy = processes::Copy::new();
    let filter = if first.to_string_lossy().starts_with('-') {
        OsString::new()
    } else {
        first
    };
    println!("\nrunning the tests of the kernel's stack");
    let mut passed = true;
    if rustix::process::getuid().is_root() {
        processes::open_tun_to_all().expect("mounts of its own");
        passed &= run_all("as root, ", &filter);
        passed &= copy.run_as_nobody(&filter);
        processes::close_tun().expect("a mode");
        passed &= copy.run(processes::WITHOUT_TUN);
    } else {
        passed &= run_all("", &filter);
    }
    passed &= copy.run(processes::REFUSED);
    let (word, counts) = match passed {
        true => ("ok", "1 passed; 0 failed"),
        false => ("FAILED", "0 passed; 1 failed"),
    };
    println!("\ntest result: {word}. {counts}; 0 ignored\n");
    success(passed)
}

fn success(passed: bool) -> ExitCode {
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs the tests whose names have this in them, with each device that can be had here.
fn run_all(whom: &str, filter: &std::ffi::OsStr) -> bool {
    let mut passed = true;
    for device in DEVICES {
        if let Err(error) = SocketNamespace::make(&program(), CHILD, &inner(), device) {
            println!("{whom}{device:?}: not possible here: {error}");
            // Where it is refused there is nothing to test; but it is only ever refused by the system.
            passed &= !rustix::process::getuid().is_root() || error.to_string().contains("refused");
            continue;
        }
        for (name, test) in TESTS {
            if !name.contains(&*filter.to_string_lossy()) {
                continue;
            }
            let result = catch_unwind(|| test(device));
            let word = if result.is_ok() { "ok" } else { "FAILED" };
            println!("test {whom}{device:?}: {name} ... {word}");
            passed &= result.is_ok();
        }
    }
    passed
}

pub(crate) fn program() -> PathBuf {
    Path::new("/proc/self/exe").into()
}

pub(crate) fn key(n: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[n; 32]).expect("a key")
}

pub(crate) fn v4(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

pub(crate) fn v6(n: u8) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)])
}

pub(crate) fn inner() -> InnerNetwork {
    InnerNetwork {
        addresses: vec![v4(1), v6(1)],
        mtu: 1420,
    }
}

/// A tunnel of number `n`.
pub(crate) fn config(n: u8, other: u8, endpoint: Option<SocketAddr>) -> Config {
    let mut peer = Peer::new(key(other).public_key())
        .allowed_ip(IpBlock::from(v4(other)))
        .allowed_ip(IpBlock::from(v6(other)))
        // Where nobody is.
        .allowed_ip(IpBlock::from(v4(99)));
    if let Some(endpoint) = endpoint {
        peer = peer.endpoint(endpoint);
    }
    Config::new(key(n)).peer(peer)
}

pub(crate) fn net_builder() -> NetBuilder {
    Net::builder(config(2, 1, None))
        .address(v4(2))
        .address(v6(2))
}

pub(crate) fn endpoint(tunnel: &adit::Tunnel) -> SocketAddr {
    let port = tunnel.status().expect("a status").listen_port;
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The kernel's stack as the first end, of a tunnel to this endpoint.
pub(crate) fn kernel(device: KernelDevice, endpoint: SocketAddr) -> KernelStack {
    let made = SocketNamespace::make(&program(), CHILD, &inner(), device);
    let (namespace, why) = made.expect("a namespace");
    assert_eq!((namespace.device(), why), (device, None));
    let options = KernelOptions {
        dns: vec![v4(2)],
        ..KernelOptions::default()
    };
    KernelStack::start(namespace, config(1, 2, Some(endpoint)), options).expect("a stack")
}

/// The kernel's stack and the other end.
pub(crate) fn pair(device: KernelDevice) -> (KernelStack, Net) {
    let net = net_builder().start().expect("a network");
    (kernel(device, endpoint(net.tunnel())), net)
}

pub(crate) fn open(
    stack: &KernelStack,
    remote: SocketAddr,
    timeout: Duration,
) -> Result<Box<dyn OpenedTcp>, NetError> {
    let (sender, receiver) = channel();
    let then = Box::new(move |opened| {
        let _ = sender.send(opened);
    });
    stack.open_tcp(remote, timeout, then)?;
    receiver.recv().unwrap_or(Err(NetError::Ended))
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it does not come to hold: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
