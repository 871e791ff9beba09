//! A virtual machine with Debian's cloud kernel, for that kernel's own WireGuard and for Adit on an
//! older kernel. scripts/guest builds it, tests/guest/init is its PID 1.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Container, repository, seconds, under_ci, wait_for};

const BOOT_LIMIT: Duration = Duration::from_secs(180);
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A running guest. Its eth0 (10.9.0.2/24, fd09::2/64) is joined to tap0 of its host (10.9.0.1/24,
/// fd09::1/64).
pub struct Guest {
    pub host: Container,
    qemu: Child,
    shell: std::sync::Mutex<BufReader<UnixStream>>,
    image: PathBuf,
    dir: PathBuf,
    cpus: usize,
}

/// Where QEMU writes a snapshot, in the host's own file system.
const SNAPSHOT: &str = "/run/snapshot";

/// Where scripts/guest built it.
fn image() -> PathBuf {
    std::env::var_os("ADIT_GUEST").map_or_else(|| repository().join("target/guest"), PathBuf::from)
}

impl Guest {
    /// Boots it with `files` copied in. Where it is not built, says so and returns none; under CI
    /// that is a failure.
    pub fn boot(files: &[&Path]) -> Option<Guest> {
        Self::boot_image(image(), files, 1)
    }

    /// The same with so many CPUs.
    pub fn boot_with_cpus(files: &[&Path], cpus: usize) -> Option<Guest> {
        Self::boot_image(image(), files, cpus)
    }

    /// The same with Linux 6.12 or later.
    pub fn boot_newer(files: &[&Path]) -> Option<Guest> {
        let mut image = image().into_os_string();
        image.push("-newer");
        Self::boot_image(image.into(), files, 1)
    }

    fn boot_image(image: PathBuf, files: &[&Path], cpus: usize) -> Option<Guest> {
        if !image.join("release").exists() {
            let message = format!("{} holds no guest: run scripts/guest", image.display());
            assert!(!under_ci(), "{message}");
            eprintln!("not run: {message}");
            return None;
        }
        let host = Container::new("host-of-guest");
        host.sh(
            "set -e; ip tuntap add tap0 mode tap; ip addr add 10.9.0.1/24 dev tap0;\
                 ip addr add fd09::1/64 dev tap0 nodad; ip link set tap0 up",
        );
        let dir =
            std::env::temp_dir().join(format!("adit-guest-{}-{}", std::process::id(), host.pid()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let initrd = dir.join("initrd");
        std::fs::copy(image.join("initrd"), &initrd).expect("the initramfs");
        if !files.is_empty() {
            append(&initrd, files, &dir);
        }
        let (qemu, shell) = start(&host, &image, &dir, cpus, &[]);
        let mut guest = Guest {
            host,
            qemu,
            shell: std::sync::Mutex::new(shell),
            image,
            dir,
            cpus,
        };
        guest.wait_until_booted();
        guest.sh("set -e; ip addr add 10.9.0.2/24 dev eth0; ip addr add fd09::2/64 dev eth0 nodad; ip link set eth0 up");
        Some(guest)
    }

    fn wait_until_booted(&mut self) {
        let start = Instant::now();
        let mut line = String::new();
        while !line.contains("@@@ ready") {
            line.clear();
            let n = self
                .shell
                .get_mut()
                .expect("unshared")
                .read_line(&mut line)
                .unwrap_or(0);
            if n == 0 || start.elapsed() > BOOT_LIMIT {
                let log = |name| std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                panic!(
                    "the guest does not boot:\n{}\n{}",
                    log("qemu"),
                    log("console")
                );
            }
        }
    }

    /// Runs a shell script in the guest: whether it succeeded, and what it printed.
    pub fn try_sh(&self, script: &str) -> (bool, String) {
        let mut shell = self.shell.lock().expect("no panic inside");
        shell
            .get_ref()
            .set_read_timeout(Some(COMMAND_LIMIT))
            .expect("a timeout");
        let line = base64(script.as_bytes()) + "\n";
        shell
            .get_mut()
            .write_all(line.as_bytes())
            .expect("the guest listens");
        let mut printed = String::new();
        loop {
            let mut line = String::new();
            match shell.read_line(&mut line) {
                Ok(n) if n > 0 => {}
                _ => panic!("the guest does not answer: {script}\n{printed}{line}"),
            }
            if let Some(at) = line.find("@@@ ") {
                // Output need not end in a newline.
                printed += &line[..at];
                return (line[at + 4..].trim() == "0", printed);
            }
            printed += &line;
        }
    }

    /// Has QEMU do something, which is done when this returns, and returns what it printed.
    fn monitor(&self, commands: &[&str]) -> String {
        // QEMU opens it after the shell.
        let mut monitor = None;
        wait_for("QEMU opens its monitor", seconds(20), || {
            monitor = UnixStream::connect(self.dir.join("monitor")).ok();
            monitor.is_some()
        });
        let monitor = monitor.expect("just connected");
        monitor
            .set_read_timeout(Some(COMMAND_LIMIT))
            .expect("a timeout");
        let mut monitor = BufReader::new(monitor);
        for command in commands {
            let line = format!("{command}\n");
            let socket = monitor.get_mut();
            socket.write_all(line.as_bytes()).expect("QEMU listens");
        }
        // One prompt at first, and one behind each command that is done.
        let mut answer = String::new();
        while answer.matches("(qemu) ").count() <= commands.len() {
            let mut more = Vec::new();
            let read = monitor.read_until(b' ', &mut more);
            answer += &String::from_utf8_lossy(&more);
            let n = match read {
                // It ended before it had read all.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
                read => read.expect("QEMU answers"),
            };
            if n == 0 {
                break;
            }
        }
        assert!(!answer.contains("Error"), "QEMU: {answer}");
        answer
    }

    /// Takes a snapshot of the machine, which keeps running.
    pub fn take_snapshot(&self) {
        let migrate = format!("migrate \"exec:cat > {SNAPSHOT}\"");
        self.monitor(&[&migrate, "cont"]);
    }

    /// Resets the machine to its snapshot, as a hypervisor does: in a new QEMU, which gives it a
    /// new generation ID.
    pub fn reset_to_snapshot(&mut self) {
        self.monitor(&["quit"]);
        wait_for("QEMU ends", seconds(20), || {
            self.qemu.try_wait().expect("waiting for QEMU").is_some()
        });
        for socket in ["shell", "monitor"] {
            let _ = std::fs::remove_file(self.dir.join(socket));
        }
        let incoming = format!("exec:cat {SNAPSHOT}");
        let (qemu, shell) = start(
            &self.host,
            &self.image,
            &self.dir,
            self.cpus,
            &["-incoming", &incoming],
        );
        (self.qemu, self.shell) = (qemu, std::sync::Mutex::new(shell));
        // The shell loses input that comes before this.
        wait_for("the snapshot is loaded", seconds(60), || {
            self.monitor(&["info status"]).contains("status: running")
        });
    }

    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let (ok, printed) = self.try_sh(script);
        assert!(ok, "guest: `{script}` failed:\n{printed}");
        printed
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = std::fs::read_to_string(self.dir.join("console")).unwrap_or_default();
            let lines: Vec<_> = console.lines().collect();
            let last = lines[lines.len().saturating_sub(30)..].join("\n");
            eprintln!("--- the end of the guest's console:\n{last}\n---");
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Starts QEMU and connects to the guest's shell.
fn start(
    host: &Container,
    image: &Path,
    dir: &Path,
    cpus: usize,
    more: &[&str],
) -> (Child, BufReader<UnixStream>) {
    let mut command = host.command("qemu-system-x86_64");
    command
        .args([
            "-accel",
            "tcg",
            "-cpu",
            "max",
            "-m",
            "512",
            "-nographic",
            "-nodefaults",
        ])
        .args(["-smp", &cpus.to_string()])
        .args([
            "-no-reboot",
            "-append",
            "console=ttyS0 quiet panic=-1 no_timer_check",
        ])
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(dir.join("initrd"))
        .args(["-device", "vmgenid,guid=auto"])
        .args(["-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no"])
        .args(["-device", "virtio-net-pci,netdev=n0,mac=52:54:00:00:09:02"])
        .arg("-serial")
        .arg(format!("file:{}", dir.join("console").display()))
        .arg("-serial")
        .arg(format!(
            "unix:{},server=on,wait=off",
            dir.join("shell").display()
        ))
        .arg("-monitor")
        .arg(format!(
            "unix:{},server=on,wait=off",
            dir.join("monitor").display()
        ))
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("qemu")).expect("a log file"));
    let qemu = command.spawn().expect("qemu-system-x86_64 starts");

    let mut shell = None;
    wait_for("QEMU opens the guest's shell", seconds(20), || {
        shell = UnixStream::connect(dir.join("shell")).ok();
        shell.is_some()
    });
    let shell = shell.expect("just connected");
    shell.set_read_timeout(Some(BOOT_LIMIT)).expect("a timeout");
    (qemu, BufReader::new(shell))
}

/// Adds files to an initramfs, at the paths they have here, with the shared libraries they need: a
/// second archive after the first.
fn append(initrd: &Path, files: &[&Path], dir: &Path) {
    let tree = dir.join("tree");
    let copy = |from: &Path, to: &Path| {
        let to = tree.join(to.strip_prefix("/").unwrap_or(to));
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        std::fs::copy(from, &to)
            .unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
    };
    for file in files {
        copy(
            file,
            &Path::new("/bin").join(file.file_name().expect("a name")),
        );
        let listed = Command::new("ldd").arg(file).output().expect("ldd runs");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for library in listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            copy(Path::new(library), Path::new(library));
        }
    }
    // Half of the guest's memory holds all files, and most of a program is what a debugger reads.
    let script = format!(
        "cd '{}' && strip --strip-debug bin/* && find . | busybox cpio -o -H newc 2> /dev/null >> '{}'",
        tree.display(),
        initrd.display()
    );
    let status = Command::new("sh")
        .args(["-c", &script])
        .status()
        .expect("sh runs");
    assert!(status.success(), "packing the guest's files");
    let _ = std::fs::remove_dir_all(tree);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |acc, b| acc << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            text.push(if i <= chunk.len() {
                char::from(DIGITS[(group >> (18 - 6 * i)) as usize & 63])
            } else {
                '='
            });
        }
    }
    text
}
