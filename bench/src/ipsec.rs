//! IPsec in userspace: ESP with AES-GCM-128 in tunnel mode, by strongSwan's plugin kernel-libipsec.
//!
//! ```text
//!        host a                                              host b
//!  ipsec0 ─ charon, 10.76.0.1:4500 ─── ESP in UDP ─── 10.76.0.2:4500, charon ─ ipsec0
//! ```
//!
//! Each host has a charon with a configuration, a control socket and a TUN of its own, and a key that
//! both share. Neither reads what the machine has under /etc for strongSwan.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use adit_testbed::process::{self, Process};
use adit_testbed::{Host, interrupt};
use nix::mount::{MsFlags, mount};

use crate::daemon::{self, READY};
use crate::hosts::{self, Keys};
use crate::implementation::{Entry, Implementation};
use crate::sandbox::Failure;

/// The interface that every charon makes.
pub(crate) const INTERFACE: &str = "ipsec0";
/// Octets of its MTU. charon reads no more of a packet from it, whatever MTU it is given later.
pub(crate) const MTU: usize = 1400;

const CHARON: &str = "charon-systemd";
/// charon's control socket.
const SOCKET: &str = "/run/charon.vici";
/// How long swanctl may take. It gives up before.
const LIMIT: Duration = Duration::from_secs(15);
/// Seconds after which it gives up an exchange of keys.
const EXCHANGE: &str = "10";

/// Both read it. kernel-netlink, which is for addresses, comes behind the plugin that has the ESP. Of
/// the plugins that have AES-GCM, aesni is the fastest. The lab's routes come before charon's.
const SETTINGS: &str = "charon-systemd {
  load = random nonce kdf aesni openssl socket-default vici kernel-libipsec kernel-netlink
  routing_table_prio = 40000
  journal {
    default = -1
  }
  filelog {
    stderr {
      default = 1
    }
  }
}
swanctl {
  load = random openssl
}
";

/// What one end of a connection needs to know.
struct End<'a> {
    own: IpAddr,
    other: IpAddr,
    /// What each tunnel carries: the networks here, and those at the other end, with commas between
    /// them.
    tunnels: Vec<[&'a str; 2]>,
    /// In base64.
    secret: &'a str,
}

/// strongSwan, if its ESP in userspace works here.
pub(crate) fn find() -> Result<Entry, Failure> {
    let host = hosts::host()?;
    let _charon = start(&host).map_err(|why| {
        format!(
            "{why} (packages charon-systemd, strongswan-swanctl, libcharon-extra-plugins and \
             libstrongswan-standard-plugins)"
        )
    })?;
    let said = host.output("swanctl", &["--version"], LIMIT)?;
    let version = said.split_whitespace().last().unwrap_or("unknown");
    Ok(Entry {
        who: Implementation::Ipsec,
        version: format!("strongSwan {version}, ESP in userspace, AES-GCM-128, MTU {MTU}"),
        binary: Some(CHARON.into()),
        environment: Vec::new(),
    })
}

/// Starts a charon in both hosts, which have their own /run. The caller gives their interfaces addresses
/// before they connect.
pub(crate) fn start_both([one, other]: [&Host; 2]) -> Result<[Process; 2], Failure> {
    Ok([start(one)?, start(other)?])
}

/// Connects the charons of two hosts from these addresses, and waits until all tunnels are up. Each
/// carries what is between two lists of networks, with commas; the interface at each end has an address
/// in each. Routes are left to the caller.
pub(crate) fn connect(
    hosts: [&Host; 2],
    outer: [IpAddr; 2],
    tunnels: &[[String; 2]],
) -> Result<(), Failure> {
    let secret = Keys::new()?.private();
    for (own, other) in [(0, 1), (1, 0)] {
        let tunnels = tunnels.iter();
        let text = configuration(&End {
            own: outer[own],
            other: outer[other],
            tunnels: tunnels
                .map(|of| [of[own].as_str(), of[other].as_str()])
                .collect(),
            secret: &secret,
        });
        hosts[own].run(move || std::fs::write("/etc/swanctl/swanctl.conf", text))?;
        swanctl(hosts[own], &["--load-all", "--noprompt"])?;
    }
    for tunnel in 0..tunnels.len() {
        let name = child(tunnel);
        let arguments = ["--initiate", "--timeout", EXCHANGE, "--child", &name];
        if let Err(why) = swanctl(hosts[0], &arguments) {
            let log = daemon::last_words(hosts[1], INTERFACE)?;
            return Err(format!("{why}; the other charon: {log}").into());
        }
    }
    Ok(())
}

/// Starts a charon without connections, and waits for its control socket and its TUN.
fn start(host: &Host) -> Result<Process, Failure> {
    let log = host.run(|| -> Result<_, Failure> {
        // Only in the host's mount namespace. Where strongSwan is not installed, there is nothing to
        // mount on.
        let none = None::<&str>;
        std::fs::write("/run/strongswan.conf", SETTINGS)?;
        mount(
            Some("/run/strongswan.conf"),
            "/etc/strongswan.conf",
            none,
            MsFlags::MS_BIND,
            none,
        )
        .and_then(|()| {
            let flags = MsFlags::empty();
            mount(Some("lab"), "/etc/swanctl", Some("tmpfs"), flags, none)
        })
        .map_err(|e| format!("strongSwan is not installed: {e}"))?;
        Ok(std::fs::File::create(daemon::log_path(INTERFACE))?)
    })?;
    let mut command = process::command(CHARON, &[]);
    command
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log));
    let mut charon = host.spawn(command)?;
    let deadline = Instant::now() + READY;
    loop {
        let there = host.run(|| {
            let interface = format!("/sys/class/net/{INTERFACE}");
            std::fs::exists(SOCKET).unwrap_or(false) && std::fs::exists(interface).unwrap_or(false)
        });
        if there {
            return Ok(charon);
        }
        interrupt::check()?;
        if !charon.is_alive() || Instant::now() > deadline {
            let log = daemon::last_words(host, INTERFACE)?;
            return Err(format!("{CHARON} made no {INTERFACE}: {log}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Tells charon something. An error has charon's last words.
fn swanctl(host: &Host, arguments: &[&str]) -> Result<(), Failure> {
    match host.output("swanctl", arguments, LIMIT) {
        Ok(_) => Ok(()),
        Err(why) => {
            let log = daemon::last_words(host, INTERFACE)?;
            Err(format!("swanctl {}: {why}; charon: {log}", arguments[0]).into())
        }
    }
}

/// The name of a tunnel.
fn child(tunnel: usize) -> String {
    format!("tunnel{tunnel}")
}

/// An IKEv2 connection with one child for each tunnel, for swanctl.conf.
fn configuration(end: &End<'_>) -> String {
    let (own, other, secret) = (end.own, end.other, end.secret);
    // libipsec has no ESP without UDP.
    let mut text = format!(
        "connections {{
  lab {{
    version = 2
    local_addrs = {own}
    remote_addrs = {other}
    encap = yes
    mobike = no
    proposals = aes128gcm16-prfsha256-x25519
    local {{
      auth = psk
      id = {own}
    }}
    remote {{
      auth = psk
      id = {other}
    }}
    children {{
"
    );
    for (tunnel, [here, there]) in end.tunnels.iter().enumerate() {
        let name = child(tunnel);
        let _ = write!(
            text,
            "      {name} {{
        mode = tunnel
        local_ts = {here}
        remote_ts = {there}
        esp_proposals = aes128gcm16
      }}
"
        );
    }
    let _ = write!(
        text,
        "    }}
  }}
}}
secrets {{
  ike-lab {{
    secret = 0s{secret}
  }}
}}
"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_have_the_same_key_and_mirrored_tunnels() {
        let [a, b] = ["10.76.0.1", "10.76.0.2"];
        let text = |own: &str, other: &str, tunnels: Vec<[&str; 2]>| {
            configuration(&End {
                own: own.parse().unwrap(),
                other: other.parse().unwrap(),
                tunnels,
                secret: "AAAA",
            })
        };
        let one = text(
            a,
            b,
            vec![["1.0.0.0/8", "2.0.0.0/8"], ["3.0.0.0/8", "4.0.0.0/8"]],
        );
        let other = text(
            b,
            a,
            vec![["2.0.0.0/8", "1.0.0.0/8"], ["4.0.0.0/8", "3.0.0.0/8"]],
        );
        let mirrored = one
            .replace("local", "L")
            .replace("remote", "local")
            .replace('L', "remote");
        let lines = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(|of| of.trim().to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&mirrored), lines(&other));
        assert!(one.contains("secret = 0sAAAA") && one.contains("encap = yes"));
        assert!(one.contains("esp_proposals = aes128gcm16\n"), "{one}");
        assert_eq!(one.matches("mode = tunnel\n").count(), 2);
        // swanctl takes one setting a line.
        assert!(one.lines().all(|line| line.matches('=').count() <= 1));
        assert_eq!(one.matches('{').count(), one.matches('}').count());
    }
}
