//! Adit as it is installed: `make install`, completions, Debian's package in a Debian of its own,
//! and a container's image.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::*;
use crate::quick::{World, adit, only_adit};

/// A directory that goes with the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let name = format!("adit-e2e-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a script in the repository.
#[track_caller]
pub fn here(script: &str) -> String {
    let mut command = Command::new("sh");
    let output = command
        .args(["-ec", script])
        .current_dir(repository())
        .output()
        .expect("sh runs");
    assert!(
        output.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a program is here. Where it is not, says so; under CI that is a failure.
pub fn has(program: &str) -> bool {
    let found = here(&format!("command -v {program} || true"));
    if found.is_empty() {
        let message = format!("there is no {program} here: run scripts/setup");
        assert!(!under_ci(), "{message}");
        eprintln!("not run: {message}");
    }
    !found.is_empty()
}

/// The root of a small Debian; where it is not made, says so and returns none. Under CI that is a
/// failure.
pub fn debian() -> Option<PathBuf> {
    let made = repository().join("target/debian-root");
    let dir = std::env::var_os("ADIT_ROOT").map_or(made, PathBuf::from);
    if !dir.join(".stamp").exists() {
        let message = format!("{} has no Debian: run scripts/root", dir.display());
        assert!(!under_ci(), "{message}");
        eprintln!("not run: {message}");
        return None;
    }
    Some(dir)
}

/// A package beside the Debian that installs it, of this test alone: others may have the same
/// Debian. It goes with the test.
pub struct Package {
    path: PathBuf,
    pub version: String,
}

impl Package {
    #[track_caller]
    pub fn build(debian: &Path, version: &str) -> Package {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let version = format!("{version}+{}.{number}", std::process::id());
        let said = here(&format!(
            "ADIT_VERSION={version} ADIT_DEB={} scripts/deb {}",
            debian.display(),
            adit()
        ));
        let path = said
            .trim()
            .strip_prefix("deb: ")
            .expect("the package")
            .into();
        Package { path, version }
    }

    /// Its path in that Debian.
    pub fn inside(&self) -> String {
        let name = self.path.file_name().expect("a name");
        format!("/opt/{}", name.display())
    }

    #[track_caller]
    pub fn install(&self, systemd: &Systemd) -> String {
        systemd.sh(&format!("dpkg -i {} 2>&1", self.inside()))
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn the_package_names_the_maintainer_and_homepage_that_it_is_given() {
    if !only_adit() || !has("lintian") {
        return;
    }
    let dir = Dir::new("maintainer");
    let path = dir.0.display();
    let fields = |environment: &str, cargo: &str| {
        here(&format!(
            "printf '[workspace.package]\\nversion = \"1.2.3\"\\n{cargo}\\n' > {path}/Cargo.toml
             env -u DEBFULLNAME -u DEBEMAIL GIT_CONFIG_GLOBAL=/dev/null GIT_DIR={path}/git {environment} ADIT_CARGO_TOML={path}/Cargo.toml ADIT_DEB={path} \
             scripts/deb {adit} > /dev/null
             dpkg-deb -f {path}/*.deb Version Maintainer Homepage
             dpkg-deb --fsys-tarfile {path}/*.deb | tar -xO ./usr/share/doc/adit/changelog.gz | zcat | grep '^ --'
             lintian --allow-root --fail-on error,warning {path}/*.deb > {path}/said",
            adit = adit()
        ))
    };
    let ann = "DEBFULLNAME='Ann Example' DEBEMAIL=ann@wireguard.test";
    let said = fields(ann, "repository = \"https://wireguard.test/adit\"\\n");
    assert!(
        said.starts_with(
            "Version: 1.2.3\nMaintainer: Ann Example <ann@wireguard.test>\nHomepage: https://wireguard.test/adit\n"
        ),
        "{said}"
    );
    assert!(
        said.contains("\n -- Ann Example <ann@wireguard.test>  "),
        "{said}"
    );
    let said = fields(
        ann,
        "homepage = \"https://a.test\"\\nrepository = \"https://b.test\"\\n",
    );
    assert!(said.contains("Homepage: https://a.test\n"), "{said}");
    let half = here(&format!(
        "! env -u DEBEMAIL DEBFULLNAME=Ann ADIT_DEB={path}/half scripts/deb {} 2>&1",
        adit()
    ));
    assert!(half.contains("set both DEBFULLNAME and DEBEMAIL"), "{half}");
    let git = |what: &str| here(&format!("git -C {path}/git {what}"));
    here(&format!("git init -q --bare {path}/git"));
    // Nobody's address where nobody is named, and no address with a password.
    git("config remote.origin.url https://ann:secret@wireguard.test/adit");
    let said = fields("", "");
    assert!(said.contains("<adit@adit.invalid>"), "{said}");
    assert!(!said.contains("Homepage"), "{said}");
    // Who builds it, and where the clone is from.
    git("config user.name 'Ben Example'");
    git("config user.email ben@wireguard.test");
    git("config remote.origin.url https://wireguard.test/adit.git");
    let said = fields("", "");
    let ben =
        "Maintainer: Ben Example <ben@wireguard.test>\nHomepage: https://wireguard.test/adit\n";
    assert!(said.contains(ben), "{said}");
}

#[test]
fn make_install_and_uninstall_are_each_others_opposite() {
    if !only_adit() {
        return;
    }
    let dir = Dir::new("install");
    let tree = dir.0.display();
    let make = |target: &str| {
        here(&format!(
            "make -s {target} ADIT={} DESTDIR={tree} PREFIX=/usr",
            adit()
        ))
    };
    make("install");
    let files = here(&format!("cd {tree} && find . -type f"));
    for file in [
        "./usr/bin/adit",
        "./usr/lib/systemd/system/adit-agent@.service",
        "./usr/lib/systemd/system/adit-metrics.service",
        "./usr/lib/systemd/system/adit@.service",
        "./usr/lib/sysusers.d/adit.conf",
        "./usr/share/bash-completion/completions/adit",
        "./usr/share/doc/adit/LICENSE-MIT",
        "./usr/share/doc/adit/backup.md",
        "./usr/share/doc/adit/examples/ansible/roles/adit/tasks/main.yml",
        "./usr/share/doc/adit/examples/prometheus/adit.rules.yml",
        "./usr/share/fish/vendor_completions.d/adit.fish",
        "./usr/share/man/man8/adit-show.8",
        "./usr/share/man/man8/adit.8",
        "./usr/share/zsh/site-functions/_adit",
    ] {
        assert!(files.lines().any(|line| line == file), "{file} in {files}");
    }
    let installed = format!("{tree}/usr/bin/adit");
    let debug = here(&format!("readelf -S {installed}"));
    assert!(!debug.contains(".debug_info"), "it is stripped");
    assert!(here(&format!("{installed} --version")).starts_with("adit "));
    make("uninstall");
    assert_eq!(here(&format!("cd {tree} && find . -type f")), "");
}

#[test]
fn bash_completes_the_names_of_interfaces() {
    if !only_adit() {
        return;
    }
    let host = Container::new("host");
    host.sh("touch /etc/wireguard/wg-conf.conf");
    let _running = Daemon::start(&host, Program::Adit, "wg-runs", &Start::default());
    let complete = |words: &str, index: usize, word: &str, before: &str| {
        let script = format!(
            "eval \"$({} completions bash)\"; COMP_WORDS=({words}); COMP_CWORD={index}; \
             _adit_with_names adit '{word}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            adit()
        );
        let script = script.replace('\'', "'\\''");
        let mut words: Vec<String> = (host.sh(&format!("bash -c '{script}'")).lines())
            .map(str::to_owned)
            .collect();
        words.sort();
        words
    };
    assert_eq!(
        complete("adit up wg", 2, "wg", "up"),
        ["wg-conf", "wg-runs"]
    );
    assert_eq!(complete("adit show wg", 2, "wg", "show"), ["wg-runs"]);
    assert_eq!(complete("adit genk", 1, "genk", "adit"), ["genkey"]);
    let options = complete("adit up --", 2, "--", "up");
    assert!(options.contains(&"--foreground".to_owned()), "{options:?}");
    // What stands for a value is no word to type.
    let all = complete("adit down ''", 2, "", "down");
    assert!(
        all.iter().all(|word| !word.starts_with(['<', '['])),
        "{all:?}"
    );
}

#[test]
fn the_package_installs_reloads_reboots_upgrades_and_goes() {
    if !only_adit() {
        return;
    }
    let Some(debian) = debian() else {
        return;
    };
    let [old, new] = ["0.1.0", "0.2.0"].map(|version| Package::build(&debian, version));
    let world = World::new();
    let left = world.left();
    let unit = "adit@wg0.service";
    let mut systemd = Systemd::boot_debian(left, &debian);
    let write = |systemd: &Systemd, allowed: &str| {
        let file = "/etc/wireguard/wg0.conf";
        std::fs::write(systemd.path(file), world.config("", allowed)).expect("written");
        systemd.sh(&format!("chmod 600 {file}"));
    };

    // 1. It is known, and nothing is started.
    old.install(&systemd);
    assert_eq!(systemd.property(unit, "LoadState"), "loaded");
    assert_eq!(systemd.property(unit, "UnitFileState"), "disabled");
    assert_eq!(systemd.sh("stat -c %a /etc/wireguard").trim(), "700");
    assert!(!left.has_interface("wg0"));

    // 2. What starts it with each boot.
    write(&systemd, "0.0.0.0/0, ::/0");
    systemd.sh(&format!("systemctl enable --now {unit}"));
    ping(left, "172.31.0.1", 1);

    // 3. Reload, with the same process.
    let process = systemd.property(unit, "MainPID");
    write(&systemd, "192.168.77.0/24, 0.0.0.0/0, ::/0");
    systemd.sh(&format!("systemctl reload {unit}"));
    let allowed = systemd.sh("wg show wg0 allowed-ips");
    assert!(allowed.contains("192.168.77.0/24"), "{allowed}");
    assert_eq!(systemd.property(unit, "MainPID"), process);

    // 4. The next boot has the tunnel.
    drop(systemd);
    wait_for("the tunnel goes", seconds(20), || {
        !left.has_interface("wg0")
    });
    systemd = Systemd::boot_debian(left, &debian);
    wait_for("the tunnel is up", seconds(30), || {
        systemd.property(unit, "ActiveState") == "active"
    });
    ping(left, "172.31.0.1", 1);

    // 5. After an upgrade the tunnel has the new program, without a handshake. So has the process
    //    that watches over it, which is the same one.
    let process = systemd.property(unit, "MainPID");
    let program = |pid: &str| systemd.sh(&format!("stat -L -c %i /proc/{pid}/exe"));
    let tunnel = || systemd.sh("pgrep -f 'adit run .* wg0$'").trim().to_owned();
    let before = (
        tunnel(),
        program(&process),
        systemd.sh("wg show wg0 latest-handshakes"),
    );
    // Somebody is in the middle of an edit.
    let allowed = systemd.sh("wg show wg0 allowed-ips");
    write(&systemd, "10.0.0.0/8");
    let said = new.install(&systemd);
    assert!(said.contains("systemctl restart 'adit@*'"), "{said}");
    wait_for("both have the new program", seconds(30), || {
        let new = systemd.sh("stat -L -c %i $(command -v adit)");
        new != before.1 && program(&process) == new && program(&tunnel()) == new
    });
    assert_ne!(tunnel(), before.0);
    assert_eq!(systemd.property(unit, "MainPID"), process);
    assert_eq!(systemd.sh("wg show wg0 latest-handshakes"), before.2);
    assert_eq!(systemd.sh("wg show wg0 allowed-ips"), allowed);
    write(&systemd, "192.168.77.0/24, 0.0.0.0/0, ::/0");
    ping(left, "172.31.0.1", 1);
    systemd.sh("systemctl restart 'adit@*'");
    assert_ne!(systemd.property(unit, "MainPID"), process);
    ping(left, "172.31.0.1", 1);

    // 6. Removal takes the tunnels down, and purging forgets that they were enabled. The keys stay.
    //    Interfaces of others that have the name of one of Adit's elsewhere stay.
    systemd.sh(
        "set -e; adit wg9
         for name in wg6 wg7 wg8; do unshare -n adit $name; done
         ip link add wg6 type veth peer name wg8; ip tuntap add wg7 mode tun
         printf '[Interface]\\n' > /etc/wireguard/wg6.conf; cp /etc/wireguard/wg6.conf /etc/wireguard/wg7.conf",
    );
    systemd.sh("dpkg -r adit 2>&1");
    systemd.sh("ip link show wg6; ip link show wg7; ip link show wg8");
    assert!(!systemd.try_sh("pgrep -x adit").ok(), "all processes end");
    for interface in ["wg0", "wg9"] {
        assert!(!left.has_interface(interface), "{interface}");
    }
    let rules = systemd.sh("ip rule; ip -6 rule; nft list ruleset");
    assert!(
        !rules.contains("51820") && !rules.contains("wg0"),
        "{rules}"
    );
    assert!(systemd.try_sh("command -v adit").stdout.is_empty());
    let enabled = "/etc/systemd/system/multi-user.target.wants/adit@wg0.service";
    systemd.sh(&format!(
        "test -L {enabled}; dpkg -P adit 2>&1; test ! -L {enabled}"
    ));
    systemd.sh("test -s /etc/wireguard/wg0.conf; test ! -e /run/adit");
    assert_eq!(systemd.property(unit, "LoadState"), "not-found");
}

/// As wg-easy and linuxserver/wireguard do it, with one environment variable.
#[test]
fn wg_quick_of_a_container_runs_adit() {
    if !only_adit() {
        return;
    }
    let Some(debian) = debian() else {
        return;
    };
    let world = World::new();
    let left = world.left();
    let image = include_str!("../../../../packaging/container/Containerfile");
    let variable = image
        .lines()
        .find_map(|line| line.strip_prefix("ENV "))
        .expect("a variable");
    assert!(variable.starts_with("WG_QUICK_USERSPACE_IMPLEMENTATION="));
    left.sh(&format!(
        "set -e; mkdir -p /run/upper /run/work /run/image
         mount -t overlay overlay -o lowerdir={root},upperdir=/run/upper,workdir=/run/work /run/image
         install -m 755 {adit} /run/image/usr/bin/adit
         cd /run/image; for dir in proc sys dev run; do mount --rbind /$dir $dir; done",
        root = Path::new(&debian).join("root").display(),
        adit = adit(),
    ));
    let config = world.config("PostUp = echo up > /run/hook", "0.0.0.0/0, ::/0");
    left.sh_with_input(
        "umask 077; cat > /run/image/etc/wireguard/wg0.conf",
        &config,
    );
    let inside = |script: &str| {
        left.sh(&format!(
            "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin {variable} chroot /run/image sh -c '{script}'"
        ))
    };
    inside("wg-quick up wg0 2>&1");
    assert_eq!(left.sh("cat /run/hook"), "up\n");
    assert!(inside("wg show interfaces").contains("wg0"));
    ping(left, "172.31.0.1", 1);
    inside("wg-quick down wg0 2>&1");
    assert!(!left.has_interface("wg0"));
}
