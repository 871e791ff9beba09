//! A container: a host of the test bed with mount and PID namespaces, and the process that holds
//! these.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use adit_testbed::Host;
use adit_testbed::process::{Finished, Process};

use super::{packet_accounting, watchdog};

/// Sets a container up, says so, and holds it.
const HOLD: &str = r"
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount -t sysfs sysfs /sys
# An /etc of its own, over the machine's: what this one looks names up with, and where, is always the same.
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/etc /mnt/work /mnt/programs
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work overlay /etc
rm -rf /etc/resolv.conf /etc/resolvconf /etc/hosts /etc/gai.conf
echo nameserver 127.0.0.1 > /etc/resolv.conf
printf '127.0.0.1 localhost\n::1 localhost\n' > /etc/hosts
echo 'hosts: files dns' > /etc/nsswitch.conf
# Programs of its own: the machine's, without those that Adit or wg-quick run if they are there.
for dir in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
  ln -s $dir/* /mnt/programs 2> /dev/null || true
done
cd /mnt/programs
rm -f resolvconf resolvectl systemd-resolve *tables* sudo
cd /
mkdir -p /etc/wireguard
mount -t tmpfs -o mode=700 tmpfs /etc/wireguard
for where in all default; do
  echo 0 > /proc/sys/net/ipv6/conf/$where/accept_dad
  echo 0 > /proc/sys/net/ipv6/conf/$where/disable_ipv6
done
ip link set lo up
echo ready
exec cat
";

/// Every command in a container ends within this time.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Equal interface names do not collide: every container has its own /run (UAPI sockets), /sys (its
/// interfaces) and /etc. Its PATH leads to a directory of its own, so that no test depends on what is
/// installed on the machine: one that needs a `resolvconf` makes one. The holder reads its standard input, a pipe from the test: when
/// the test process is gone, however it went, the holder ends; it is PID 1 of its namespace, so
/// that everything in the container ends with it.
#[derive(Clone)]
pub struct Container(Arc<Inner>);

struct Inner {
    name: String,
    holder: Child,
    /// PID 1 of the container, as the test sees it.
    init: u32,
    host: Host,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // For those that ended before, their owners have looked.
        let accounting = (!std::thread::panicking()).then(|| {
            catch_unwind(AssertUnwindSafe(|| {
                packet_accounting::check(&self.name, self.init)
            }))
        });
        // --kill-child takes the container's PID 1 along.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if let Some(Err(panic)) = accounting {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Container {
    pub fn new(name: &str) -> Container {
        assert!(
            rustix::process::geteuid().is_root(),
            "the end-to-end tests make network namespaces and need root: run them as root"
        );
        watchdog::watch_this_test();
        let host = Host::new().expect("a network namespace");
        let mut holder = Command::new("unshare");
        holder
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(["--propagation", "private", "--mount-proc"])
            .args(["sh", "-c", HOLD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut holder = host
            .run(move || holder.spawn())
            .expect("unshare (util-linux) starts");
        let mut first = String::new();
        BufReader::new(holder.stdout.as_mut().expect("a pipe"))
            .read_line(&mut first)
            .expect("the holder speaks");
        if first.trim() != "ready" {
            let _ = holder.kill();
            let mut error = String::new();
            let _ = holder
                .stderr
                .take()
                .expect("a pipe")
                .read_to_string(&mut error);
            panic!("container {name}: making its namespaces failed: {error}");
        }
        let id = holder.id();
        let init = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
            .expect("/proc lists the holder's children")
            .trim()
            .parse()
            .expect("one child");
        Container(Arc::new(Inner {
            name: name.to_owned(),
            holder,
            init,
            host,
        }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The PID that stands for the container outside of it, for `ip link set … netns PID`.
    pub fn pid(&self) -> u32 {
        self.0.init
    }

    /// A path inside the container, as the test can open it. Absolute links on the way lead out of
    /// it: say /run, not /var/run.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.0.init))
    }

    /// A command to be started inside the container.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(self.0.init.to_string())
            .args(["-n", "-m", "-p", "--", "env", "PATH=/mnt/programs"])
            .arg(program)
            .env_remove("WG_QUICK_USERSPACE_IMPLEMENTATION");
        command
    }

    /// Runs a shell script in the container and says how it went.
    pub fn try_sh(&self, script: &str) -> Finished {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        output(command, b"", &format!("{}: {script}", self.name()))
    }

    /// Runs a shell script in the container; panics with what it printed when it fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.sh_with_input(script, "")
    }

    #[track_caller]
    pub fn sh_with_input(&self, script: &str, input: &str) -> String {
        let output = self.try_sh_with_input(script, input);
        assert!(
            output.ok(),
            "{}: `{script}` failed ({}):\n{}{}",
            self.name(),
            output.status,
            output.stdout,
            output.stderr
        );
        output.stdout
    }

    pub fn try_sh_with_input(&self, script: &str, input: &str) -> Finished {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        output(
            command,
            input.as_bytes(),
            &format!("{}: {script}", self.name()),
        )
    }

    /// Runs `work` on a thread of its own in the container's network namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        self.0.host.thread(work).expect("a thread")
    }

    /// The same, waiting for the result. A panic inside is a panic here.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self.spawn(work).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub fn has_interface(&self, name: &str) -> bool {
        self.try_sh(&format!("ip link show dev {name}")).ok()
    }

    /// Waits until the container answers at an address of its own ("fd00::1", perhaps with a prefix
    /// length): an IPv6 address that `ip addr add` has added gets its local route in the kernel's
    /// own time.
    #[track_caller]
    pub fn answers_at(&self, addr: &str) {
        let addr = addr.split('/').next().unwrap_or(addr);
        self.sh(&format!(
            "for i in $(seq 1000); do ip route get {addr} 2> /dev/null | grep -q '^local' && exit; sleep 0.01; done; \
             echo {addr} has no local route >&2; exit 1"
        ));
    }

    /// IP forwarding, for routers.
    pub fn forwards(&self) {
        self.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
    }
}

/// Joins two containers with a veth pair; addresses like "10.0.0.1/24" or "fd00::1/64".
pub fn link(
    a: &Container,
    a_name: &str,
    a_addrs: &[&str],
    b: &Container,
    b_name: &str,
    b_addrs: &[&str],
) {
    let (at_a, at_b) = ((&a.0.host, a_name), (&b.0.host, b_name));
    adit_testbed::link(at_a, at_b).expect("a veth pair");
    for ((host, name), addrs) in [(at_a, a_addrs), (at_b, b_addrs)] {
        let addrs: Vec<_> = addrs.iter().map(|addr| with_prefix(addr)).collect();
        host.bring_up(name, &addrs, None).expect("addresses");
    }
    // Until then its routes are those of a link that is down, and it has no link-local address.
    for (host, name) in [(a, a_name), (b, b_name)] {
        host.sh(&format!(
            "until ip -o link show {name} | grep -q 'state UP'; do sleep 0.01; done"
        ));
    }
    for (host, addrs) in [(a, a_addrs), (b, b_addrs)] {
        for addr in addrs {
            host.answers_at(addr);
        }
    }
}

fn with_prefix(text: &str) -> (IpAddr, u8) {
    let (addr, len) = text.split_once('/').expect("an address and its prefix");
    let addr = addr.parse().expect("an address");
    (addr, len.parse().expect("a prefix length"))
}

/// Moves an interface from one container to another.
#[track_caller]
pub fn move_link(from: &Container, name: &str, to: &Container) {
    let moved = from.0.host.move_link(name, &to.0.host);
    moved.expect("the interface moves");
}

/// Runs a command to its end, bounded in time, with `input` as its standard input.
pub fn output(mut command: Command, input: &[u8], what: &str) -> Finished {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |error: std::io::Error| -> ! { panic!("{what}: {error}") };
    let mut process = Process::spawn(command).unwrap_or_else(|error| failed(error));
    process.feed(input.to_vec());
    let finished = process.finish(COMMAND_LIMIT);
    finished.unwrap_or_else(|error| failed(error))
}
