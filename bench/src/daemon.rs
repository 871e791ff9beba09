//! The daemons of userspace implementations: starting them, and their last words.

use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_testbed::process::{self, Process};
use adit_testbed::{Host, interrupt, proc};

use crate::hosts::{self, Keys};
use crate::implementation::{Entry, Implementation};
use crate::sandbox::Failure;

/// How long a daemon, and a first packet, may take.
pub(crate) const READY: Duration = Duration::from_secs(10);
/// Open in a daemon, and only there.
const TUN: &str = "/dev/net/tun";
/// The ports that the lab gives to interfaces.
const PORTS: &str = "51820-51999";
/// How long after its socket a daemon may open the TUN.
const OPENS_TUN: Duration = Duration::from_secs(2);

/// Starts the daemon of an interface, and waits for its control socket.
pub(crate) fn start(host: &Host, entry: &Entry, interface: &str) -> Result<Process, Failure> {
    let arguments = entry.who.arguments(interface);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    spawn(host, entry, &arguments, &[interface.to_owned()])
}

/// Starts a daemon, and waits for the control sockets of its interfaces.
fn spawn(
    host: &Host,
    entry: &Entry,
    arguments: &[&str],
    interfaces: &[String],
) -> Result<Process, Failure> {
    let binary = entry.binary.as_deref().ok_or("it has no binary")?;
    let (Some(first), Some(last)) = (interfaces.first(), interfaces.last()) else {
        return Err("it has no interface".into());
    };
    let mut command = process::command(&binary.to_string_lossy(), arguments);
    command
        .env("LOG_LEVEL", "error")
        .env("WG_LOG_LEVEL", "error")
        .env("WG_PROCESS_FOREGROUND", "1")
        .envs(entry.environment.iter().cloned());
    // A daemon that may choose its first port leaves these to those that are told theirs.
    host.run(|| std::fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", PORTS))?;
    log_to(host, first, &mut command)?;
    let mut daemon = host.spawn(command)?;
    let limit = READY + READY * u32::try_from(interfaces.len())? / 100;
    let deadline = Instant::now() + limit;
    let mut answers_since = None;
    loop {
        // A process that serves several makes them in their order.
        let socket = format!("/var/run/wireguard/{last}.sock");
        let there = host
            .run(|| std::fs::metadata(socket).is_ok_and(|socket| socket.file_type().is_socket()));
        if there {
            // An implementation may open the TUN after the socket.
            if proc::has_open(daemon.id(), Path::new(TUN)).unwrap_or(false) {
                return Ok(daemon);
            }
            // A script's child would not be stopped at the end, and the CPU time and memory read
            // would be the script's.
            if answers_since.get_or_insert_with(Instant::now).elapsed() > OPENS_TUN {
                let binary = binary.display();
                return Err(format!(
                    "{binary} has to be the daemon itself, not a script that starts it"
                )
                .into());
            }
        }
        interrupt::check()?;
        if !daemon.is_alive() || Instant::now() > deadline {
            return Err(format!(
                "the daemon did not start: {}",
                read_log(host, first)?.trim()
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has what a program says written to the log of `name`.
fn log_to(host: &Host, name: &str, command: &mut Command) -> Result<(), Failure> {
    let path = log_path(name);
    let log = host.run(move || std::fs::File::create(path))?;
    command
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log));
    Ok(())
}

/// Starts a program that embeds a library, which reads its private key from standard input, and waits
/// until it has made its interface.
pub(crate) fn start_embedding(
    host: &Host,
    interface: &str,
    words: &[String],
    private: &str,
) -> Result<Process, Failure> {
    let path = format!("/sys/class/net/{interface}");
    let is_there = |_: &str| {
        let path = path.clone();
        host.run(move || Path::new(&path).exists())
    };
    start_and_hear(host, interface, words, private, READY, is_there)
}

/// Starts a program with its private key as standard input, and waits until what it has said, and
/// what it has done, is enough.
pub(crate) fn start_and_hear(
    host: &Host,
    name: &str,
    words: &[String],
    private: &str,
    limit: Duration,
    is_enough: impl Fn(&str) -> bool,
) -> Result<Process, Failure> {
    let (program, arguments) = words.split_first().ok_or("it has no binary")?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = process::command(program, &arguments);
    log_to(host, name, &mut command)?;
    let (path, private) = (format!("/run/{name}.key"), private.to_owned());
    let key = host.run(move || {
        std::fs::write(&path, private)?;
        std::fs::File::open(path)
    })?;
    command.stdin(Stdio::from(key));
    let mut program = host.spawn(command)?;
    let deadline = Instant::now() + limit;
    loop {
        let log = read_log(host, name)?;
        if is_enough(&log) {
            return Ok(program);
        }
        interrupt::check()?;
        if !program.is_alive() {
            return Err(format!("the program ended: {}", last_lines(&log)).into());
        }
        if Instant::now() > deadline {
            let log = last_lines(&log);
            return Err(format!("the program did nothing for {limit:?}: {log}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes several interfaces: with one daemon for all where the implementation can, with none where the
/// kernel serves them.
pub(crate) fn start_several(
    host: &Host,
    entry: &Entry,
    interfaces: &[String],
) -> Result<Vec<Process>, Failure> {
    match (entry.who, interfaces) {
        (Implementation::Kernel, _) => {
            for name in interfaces {
                host.ip(&format!("link add name {name} type wireguard"))?;
            }
            Ok(Vec::new())
        }
        (Implementation::Adit, [_, _, ..]) => {
            let names = interfaces.iter().map(String::as_str);
            let arguments: Vec<&str> = ["run", "-f"].into_iter().chain(names).collect();
            Ok(vec![spawn(host, entry, &arguments, interfaces)?])
        }
        _ => interfaces
            .iter()
            .map(|interface| start(host, entry, interface))
            .collect(),
    }
}

/// Gives an interface its key, port and peer, its address and MTU.
pub(crate) fn configure(
    host: &Host,
    keys: &Keys,
    name: &str,
    port_and_peer: &str,
    address: IpAddr,
) -> Result<(), Failure> {
    hosts::set(host, name, keys, &format!("listen-port {port_and_peer}"))?;
    host.bring_up(name, &[(address, 32)], Some(hosts::MTU))?;
    host.ip(&format!("route replace 10.77.0.1/32 dev {name}"))?;
    Ok(())
}

/// Where a host has the log of the daemon of an interface.
pub(crate) fn log_path(interface: &str) -> String {
    format!("/run/{interface}.log")
}

/// What a program has said.
pub(crate) fn read_log(host: &Host, interface: &str) -> Result<String, Failure> {
    let path = log_path(interface);
    Ok(host.run(|| std::fs::read_to_string(path))?)
}

/// An error with the daemon's last words if it has ended.
pub(crate) fn check(host: &Host, daemon: &mut Process, interface: &str) -> Result<(), Failure> {
    if daemon.is_alive() {
        return Ok(());
    }
    Err(format!("the daemon ended: {}", last_words(host, interface)?).into())
}

/// The end of a daemon's log.
pub(crate) fn last_words(host: &Host, interface: &str) -> Result<String, Failure> {
    Ok(last_lines(&read_log(host, interface)?))
}

/// Waits until `address` answers pings from a host.
pub(crate) fn wait_for(from: &Host, address: IpAddr) -> Result<(), Failure> {
    wait_for_ping(from, &["-c1", "-W1", &address.to_string()])
}

/// Waits until a ping with these arguments is answered.
pub(crate) fn wait_for_ping(from: &Host, arguments: &[&str]) -> Result<(), Failure> {
    let deadline = Instant::now() + READY;
    loop {
        interrupt::check()?;
        match from.output("ping", arguments, READY) {
            Ok(_) => return Ok(()),
            Err(_) if Instant::now() < deadline => {}
            Err(e) => return Err(format!("no packet passes: {e}").into()),
        }
    }
}

/// The last three lines of a log, in their order.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.trim().lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn a_daemons_last_lines_stand_in_their_order() {
        assert_eq!(last_lines("a\nb\nc\nd\n"), "b | c | d");
        assert_eq!(last_lines("a\n"), "a");
        assert_eq!(last_lines(""), "");
    }
}
