//! The implementations that can stand at either end, started the way their users start them.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Container, repository, seconds, under_ci, wait_for};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The implementation under test. `ADIT_TEST_SUBJECT=wireguard-go` puts another one in its
    /// place, which proves the tests by an implementation that is known to be good.
    Adit,
    WireguardGo,
    Tailscale,
    Boringtun,
    Gotatun,
}

impl Program {
    /// Program::Adit, or what stands in for it.
    fn resolve(self) -> Program {
        if self != Program::Adit {
            return self;
        }
        match std::env::var("ADIT_TEST_SUBJECT").as_deref() {
            Err(_) | Ok("" | "adit") => Program::Adit,
            Ok("wireguard-go") => Program::WireguardGo,
            Ok("tailscale-wireguard-go") => Program::Tailscale,
            Ok("boringtun-cli") => Program::Boringtun,
            Ok("gotatun-cli") => Program::Gotatun,
            Ok(other) => panic!("ADIT_TEST_SUBJECT={other} is no implementation"),
        }
    }

    pub fn is_adit(self) -> bool {
        self.resolve() == Program::Adit
    }

    pub fn path(self) -> PathBuf {
        let name = match self.resolve() {
            Program::Adit => return PathBuf::from(env!("CARGO_BIN_EXE_adit")),
            Program::WireguardGo => "wireguard-go",
            Program::Tailscale => "tailscale-wireguard-go",
            Program::Boringtun => "boringtun-cli",
            Program::Gotatun => "gotatun-cli",
        };
        let dir = std::env::var_os("ADIT_PEERS")
            .map_or_else(|| repository().join("target/peers"), PathBuf::from);
        dir.join("bin").join(name)
    }

    /// Arguments that keep it in the foreground with the rights that fwmark and rebinding need.
    fn arguments(self) -> &'static [&'static str] {
        match self.resolve() {
            Program::Adit | Program::WireguardGo | Program::Tailscale => &["-f"],
            Program::Boringtun | Program::Gotatun => {
                &["-f", "--disable-drop-privileges", "-v", "debug"]
            }
        }
    }
}

/// The peer if it is built. Where it is not, the test says so and ends; under CI it fails.
pub fn peer(program: Program) -> Option<Program> {
    let path = program.path();
    if path.exists() {
        return Some(program);
    }
    let message = format!("{} is not built: run scripts/peers", path.display());
    assert!(!under_ci(), "{message}");
    eprintln!("not run: {message}");
    None
}

/// How a daemon is started.
#[derive(Clone, Default)]
pub struct Start {
    pub env: Vec<(String, String)>,
}

impl Start {
    pub fn env(mut self, name: &str, value: &str) -> Start {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// The processes of the host that run the implementation under test, in the host's numbers;
/// without those that look names up for them, or have the capabilities.
pub fn processes(host: &Container) -> Vec<u32> {
    let program = Program::Adit.path();
    let found: Vec<(u32, Option<u32>, Vec<u8>)> = std::fs::read_dir(host.path("/proc"))
        .expect("the host's /proc")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let exe = std::fs::read_link(entry.path().join("exe")).ok()?;
            let args = std::fs::read(entry.path().join("cmdline")).ok()?;
            (exe == program).then(|| (pid, parent(&entry.path()), args))
        })
        .collect();
    // Until it has executed its program, such a one looks like its parent.
    let is_copy = |parent: &Option<u32>, args: &[u8]| {
        let is_parent = |other: &&(u32, _, Vec<u8>)| Some(other.0) == *parent;
        found
            .iter()
            .find(is_parent)
            .is_some_and(|other| other.2 == args)
    };
    found
        .iter()
        .filter(|(_, parent, args)| {
            let first = args.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            let is_child = [&b"--resolver"[..], b"--helper", b"--kernel-net"].contains(&first);
            !is_child && !is_copy(parent, args)
        })
        .map(|(pid, ..)| *pid)
        .collect()
}

/// The number of the parent of the process with this directory below /proc.
fn parent(process: &std::path::Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line?.trim().parse().ok()
}

/// A running implementation. Its log is printed when the test that owns it panics.
pub struct Daemon {
    pub host: Container,
    pub program: Program,
    pub interface: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts it and waits until its interface exists and its UAPI socket answers.
    #[track_caller]
    pub fn start(host: &Container, program: Program, interface: &str, start: &Start) -> Daemon {
        let mut daemon = Daemon::launch(host, program, interface, start);
        let socket = format!("/run/wireguard/{interface}.sock");
        wait_for(
            &format!("{:?} serves {interface}", daemon.program),
            seconds(20),
            || {
                if let Some(status) = daemon.child.try_wait().expect("waiting for the daemon") {
                    panic!(
                        "{:?} ended at once ({status}):\n{}",
                        daemon.program,
                        daemon.log()
                    );
                }
                // `wg` removes a socket without a listener. It may have removed a new one in place
                // of a killed run's.
                UnixStream::connect(host.path(&socket)).is_ok()
                    && host.try_sh(&format!("wg show {interface}")).ok()
            },
        );
        daemon
    }

    /// Starts it and does not wait for anything.
    pub fn launch(host: &Container, program: Program, interface: &str, start: &Start) -> Daemon {
        let log = log_path();
        let file = std::fs::File::create(&log).expect("a log file");
        let mut command = host.command("env");
        // Every implementation reads one of these.
        command.args(["LOG_LEVEL=verbose", "RUST_BACKTRACE=1"]);
        for (name, value) in &start.env {
            command.arg(format!("{name}={value}"));
        }
        command
            .arg(program.path())
            .args(program.arguments())
            .arg(interface);
        Daemon::spawn(host, program, interface, command, file, log)
    }

    /// Owns a process that `command` starts; the first two arguments say what it is.
    fn spawn(
        host: &Container,
        program: Program,
        interface: &str,
        mut command: Command,
        file: std::fs::File,
        log: PathBuf,
    ) -> Daemon {
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file descriptor"))
            .stderr(file)
            .spawn()
            .expect("nsenter starts");
        Daemon {
            host: host.clone(),
            program: program.resolve(),
            interface: interface.to_owned(),
            child,
            log,
        }
    }

    /// The same for a command of the caller's making, whose streams are the caller's too.
    pub fn adopt(host: &Container, program: Program, interface: &str, child: Child) -> Daemon {
        Daemon {
            host: host.clone(),
            program,
            interface: interface.to_owned(),
            child,
            log: log_path(),
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process, in the host's numbers: what nsenter started is its only child.
    pub fn pid_in_host(&self) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the daemon's status");
        let line = status
            .lines()
            .find(|l| l.starts_with("NSpid:"))
            .expect("NSpid");
        line.split_whitespace()
            .last()
            .expect("a number")
            .parse()
            .expect("a number")
    }

    /// Its process, as the test sees it.
    pub fn pid(&self) -> u32 {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
            .expect("the daemon runs");
        children
            .split_whitespace()
            .next()
            .unwrap_or_else(|| panic!("the daemon has ended:\n{}", self.log()))
            .parse()
            .expect("a number")
    }

    /// Waits for the process to end.
    #[track_caller]
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let mut result = None;
        wait_for(&format!("{:?} ends", self.program), seconds(20), || {
            result = self.child.try_wait().expect("waiting for the daemon");
            result.is_some()
        });
        result.expect("just seen")
    }

    /// Sends a signal by its name ("TERM").
    pub fn signal(&self, name: &str) {
        self.host
            .sh(&format!("kill -{name} {}", self.pid_in_host()));
    }
}

impl Daemon {
    /// For a test that fails: what the host knows of connections, counters and the interface.
    fn tell_what_is_known(&self) {
        let name = &self.interface;
        let script = format!(
            "ss -tinmo; nstat -as; ip -s link show {name}; ip -6 route; {} show {name} --json",
            Program::Adit.path().display()
        );
        let told = self.host.try_sh(&format!("timeout 5 sh -c '{script}'"));
        eprintln!("--- what {} knows:\n{}", self.host.name(), told.stdout);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let accounting = (!std::thread::panicking()).then(|| {
            let check = || super::packet_accounting::check(self.host.name(), self.host.pid());
            catch_unwind(AssertUnwindSafe(check))
        });
        if std::thread::panicking() {
            // A second panic would end all tests.
            let _ = catch_unwind(AssertUnwindSafe(|| self.tell_what_is_known()));
        }
        let id = self.child.id();
        if let Ok(children) = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")) {
            for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
                if let Some(pid) = rustix::process::Pid::from_raw(child) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!(
                "--- the end of the log of {:?} for {} on {}:\n{last}\n---",
                self.program,
                self.interface,
                self.host.name()
            );
        }
        let _ = std::fs::remove_file(&self.log);
        if let Some(Err(panic)) = accounting {
            std::panic::resume_unwind(panic);
        }
    }
}

fn log_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("adit-e2e-{}-{number}.log", std::process::id()))
}
