//! A host's own systemd, with no units but the tests': a real PID 1 with its journal.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use adit_testbed::process::Finished;

use super::{Container, Program, container, seconds, under_ci, wait_for};

const UNITS: &str = "/run/units";

/// Succeeds when systemd runs: "offline" is before that, and a Debian is starting for a while.
const SPEAKS: &str = "systemctl is-system-running | grep -E 'running|degraded|starting'";

/// In the host: a cgroup of its own ($1) and namespaces in that, which end with this process. Empty
/// cgroups do not go by themselves: those of killed runs, whose process ($1 up to its dash) is
/// gone, go now.
const HOLD: &str = r#"
set -e
mkdir -p /run/cgroup
mountpoint -q /run/cgroup || mount -t cgroup2 cgroup2 /run/cgroup
mkdir "/run/cgroup/adit-e2e-$1"
echo 0 > "/run/cgroup/adit-e2e-$1/cgroup.procs"
exec unshare --cgroup --pid --fork --kill-child --mount --uts --ipc --mount-proc --propagation private sh -c "$2" sh "$3" "$4"
"#;

/// In these: what systemd may see and change, and nothing of the machine's own beyond. $1 is the
/// program under test. Credentials reach a unit by a mount that is shared.
const BOOT: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs /run
umount -R /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/dev /run/net /run/units /run/none
mount -t tmpfs -o mode=755 tmpfs /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/net /run/dev
ln -s pts/ptmx /run/dev/ptmx
mount --move /run/dev /dev
mount --bind /proc/sys/net /run/net
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --move /run/net /proc/sys/net
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
touch /usr/local/bin/adit
mount --bind "$1" /usr/local/bin/adit
mount -t tmpfs -o mode=755 tmpfs /etc/systemd
printf '[Journal]\nReadKMsg=no\nStorage=volatile\n' > /etc/systemd/journald.conf
echo 0123456789abcdef0123456789abcdef > /run/machine-id
mount --bind /run/machine-id /etc/machine-id
for unit in systemd-journald.service systemd-journald.socket; do
  cp "/lib/systemd/system/$unit" /run/units
done
for target in sysinit basic shutdown; do printf '[Unit]\n' > /run/units/$target.target; done
printf '[Unit]\nWants=systemd-journald.service\n' > /run/units/default.target
mount --make-rshared /
exec env -i PATH="/usr/local/bin:$PATH" container=adit-e2e SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run/none \
  SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/none \
  /lib/systemd/systemd --system --log-target=journal --show-status=no
"#;

/// The same in a Debian of its own: what $2/root has, with changes in the host's /run/upper, which
/// the next boot finds again. $1 and what is in $2 are at /opt.
const BOOT_DEBIAN: &str = r#"
set -e
mkdir -p /run/upper /run/work /run/debian
mount -t overlay overlay -o "lowerdir=$2/root,upperdir=/run/upper,workdir=/run/work" /run/debian
cd /run/debian
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/net dev
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p run/net mnt opt
mount --bind "$2" opt
mount --bind proc/sys/net run/net
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --move run/net proc/sys/net
printf '[Journal]\nReadKMsg=no\nStorage=volatile\n' > etc/systemd/journald.conf
echo 0123456789abcdef0123456789abcdef > etc/machine-id
pivot_root . mnt
# The host's own programs are not here.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
umount -l /mnt
mount --make-rshared /
exec env -i PATH="$PATH" container=adit-e2e \
  /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=no
"#;

/// A running systemd. Its network is the host's, its /run its own, and `adit` is on its PATH.
pub struct Systemd {
    host: Container,
    holder: Child,
    /// Its PID 1, as the test sees it.
    init: String,
    cgroup: String,
}

impl Systemd {
    /// Where it cannot run, says so and returns none; under CI that is a failure.
    pub fn boot(host: &Container) -> Option<Systemd> {
        if !Path::new("/lib/systemd/systemd").exists() {
            let message = "there is no systemd here: run scripts/setup";
            assert!(!under_ci(), "{message}");
            eprintln!("not run: {message}");
            return None;
        }
        Some(Self::start(host, BOOT, Path::new("")))
    }

    /// Boots a Debian in which nothing is installed yet, and then the same one again. `dir` is at
    /// its /opt; its `root` is what scripts/root made.
    pub fn boot_debian(host: &Container, dir: &Path) -> Systemd {
        let systemd = Self::start(host, BOOT_DEBIAN, dir);
        wait_for("Debian has booted", seconds(60), || {
            systemd.try_sh("systemctl is-active multi-user.target").ok()
        });
        systemd
    }

    fn start(host: &Container, boot: &str, dir: &Path) -> Systemd {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("{}-{number}", std::process::id());
        let log = log_of(&cgroup);
        let file = std::fs::File::create(&log).expect("a log file");
        let mut command = host.command("sh");
        command
            .args(["-c", HOLD, "sh", &cgroup, boot])
            .arg(Program::Adit.path())
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a descriptor"))
            .stderr(file);
        let mut systemd = Systemd {
            host: host.clone(),
            holder: command.spawn().expect("nsenter starts"),
            init: String::new(),
            cgroup,
        };
        wait_for("systemd runs", seconds(60), || {
            if let Some(status) = systemd.holder.try_wait().expect("waiting for systemd") {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("systemd does not start here ({status}): {said}");
            }
            // nsenter, unshare, systemd.
            let outer = child_of(&systemd.holder.id().to_string());
            systemd.init = outer.and_then(|outer| child_of(&outer)).unwrap_or_default();
            is_systemd(&systemd.init) && systemd.try_sh(SPEAKS).ok()
        });
        systemd.sweep();
        systemd
    }

    /// Runs a shell script beside it, in all its namespaces.
    pub fn try_sh(&self, script: &str) -> Finished {
        let mut command = std::process::Command::new("nsenter");
        command
            .args(["-t", &self.init, "-n", "-m", "-p", "-u", "-i", "--"])
            .args(["sh", "-c", script]);
        container::output(command, b"", &format!("systemd: {script}"))
    }

    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        assert!(
            output.ok(),
            "systemd: `{script}` failed ({}):\n{}{}\n{}",
            output.status,
            output.stdout,
            output.stderr,
            self.try_sh("journalctl --no-pager -n 60").stdout
        );
        output.stdout
    }

    /// A path inside, as the test can open it.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }

    /// Adds a unit and starts nothing.
    #[track_caller]
    pub fn install(&self, name: &str, unit: &str) {
        let path = self.path(&format!("{UNITS}/{name}"));
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, unit).expect("a unit file");
        self.sh("systemctl daemon-reload");
    }

    /// A property of a unit, as `systemctl show` has it.
    #[track_caller]
    pub fn property(&self, unit: &str, name: &str) -> String {
        let value = self.sh(&format!("systemctl show --value -p {name} {unit}"));
        value.trim().to_owned()
    }

    /// What the journal has of a unit.
    #[track_caller]
    pub fn journal(&self, unit: &str) -> String {
        self.sh(&format!(
            "journalctl --sync; journalctl --no-pager -o cat -u {unit}"
        ))
    }

    /// Removes the cgroups of runs that have ended.
    fn sweep(&self) {
        let cgroups = std::fs::read_dir(self.host.path("/run/cgroup"));
        let names = cgroups.into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let owner = name
                .strip_prefix("adit-e2e-")
                .and_then(|n| n.split_once('-'));
            if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
                self.remove_cgroup(&name);
            }
        }
    }

    fn remove_cgroup(&self, name: &str) {
        // Its processes are ending.
        self.host.try_sh(&format!(
            "for i in $(seq 100); do find /run/cgroup/{name} -depth -type d -exec rmdir {{}} \\;; \
             [ -e /run/cgroup/{name} ] || exit; sleep 0.05; done"
        ));
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if std::thread::panicking() && is_systemd(&self.init) {
            let said = self.try_sh("journalctl --no-pager -n 60").stdout;
            eprintln!("--- the end of the journal:\n{said}\n---");
        }
        // The host's PID 1 would inherit what is below.
        if let Some(outer) = child_of(&self.holder.id().to_string()) {
            for pid in [child_of(&outer), Some(outer)].into_iter().flatten() {
                let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        self.remove_cgroup(&format!("adit-e2e-{}", self.cgroup));
        let _ = std::fs::remove_file(log_of(&self.cgroup));
    }
}

fn child_of(pid: &str) -> Option<String> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next().map(str::to_owned)
}

fn is_systemd(pid: &str) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
    exe.is_ok_and(|exe| exe.ends_with("systemd/systemd"))
}

fn log_of(cgroup: &str) -> PathBuf {
    std::env::temp_dir().join(format!("adit-e2e-systemd-{cgroup}.log"))
}
