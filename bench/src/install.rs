//! Finds the implementations and builds what is missing, from the package registries through their
//! own clients.
//!
//! Layout: `bin/{wireguard-go,tailscale-wireguard-go,boringtun-cli,gotatun-cli}` and `.built/NAME`
//! with the version, under `$ADIT_PEERS` or `target/peers` of the repository. What is there is
//! taken as it is; what is missing is built at the newest version.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_testbed::Host;
use adit_testbed::process::{self, Process};
use clap::Args;

use crate::implementation::{Entry, Implementation};
use crate::ipsec;
use crate::sandbox::Failure;

/// Which Adit is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct AditArg {
    /// The Adit to measure (the binary itself, no script), instead of building the one in the
    /// repository.
    #[arg(long, value_name = "PATH")]
    adit: Option<PathBuf>,
}

impl AditArg {
    pub(crate) fn path(&self) -> Option<&Path> {
        self.adit.as_deref()
    }
}

/// A build of one implementation takes minutes on a small machine, not longer.
const BUILD: Duration = Duration::from_secs(1200);
const LOOK_UP: Duration = Duration::from_secs(60);

/// The root of the repository: from where the command runs, or where it was built.
pub(crate) fn repository() -> Option<PathBuf> {
    let here = env::current_dir().ok();
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
    let places = here.into_iter().chain([built]);
    places
        .flat_map(|place| place.ancestors().map(Path::to_owned).collect::<Vec<_>>())
        .find(|place| place.join("crates/cli/Cargo.toml").is_file())
}

/// The directory of the peers.
pub(crate) fn peers_dir() -> PathBuf {
    env::var_os("ADIT_PEERS").map_or_else(
        || {
            repository()
                .unwrap_or_else(|| PathBuf::from("."))
                .join("target/peers")
        },
        PathBuf::from,
    )
}

/// The peer's binary and version, built now if it is not there.
pub(crate) fn peer(who: Implementation) -> Result<Entry, Failure> {
    let name = match who {
        Implementation::WireguardGo => "wireguard-go",
        Implementation::Tailscale => "tailscale-wireguard-go",
        Implementation::Boringtun => "boringtun-cli",
        Implementation::Gotatun => "gotatun-cli",
        _ => return Err("not a peer".into()),
    };
    let dir = peers_dir();
    let binary = dir.join("bin").join(name);
    let built = dir.join(".built").join(name);
    if !binary.is_file() {
        let version = newest(who)?;
        eprintln!("building {name} {version}");
        let begun = Instant::now();
        fs::create_dir_all(dir.join("bin"))?;
        fs::create_dir_all(dir.join(".built"))?;
        let stage = dir.join("stage").join(format!("lab-{name}"));
        fs::create_dir_all(&stage)?;
        let made = build(who, name, &version, &stage)?;
        fs::rename(made, &binary)?;
        fs::write(&built, format!("{version}\n"))?;
        let _ = fs::remove_dir_all(&stage);
        eprintln!("built {name} in {} s", begun.elapsed().as_secs());
    }
    let version = fs::read_to_string(&built).map_or_else(
        |_| "unknown".to_owned(),
        |version| version.trim().to_owned(),
    );
    Ok(Entry {
        who,
        version,
        binary: Some(binary),
        environment: Vec::new(),
    })
}

/// The newest version in the registry. Tailscale's fork has no releases: the newest tailscale.com
/// says which to use.
fn newest(who: Implementation) -> Result<String, Failure> {
    let list = |module: &str, what: &str| -> Result<String, Failure> {
        let found = process::run("go", &["list", "-m", "-f", what, module], LOOK_UP)?;
        Ok(found.trim().to_owned())
    };
    match who {
        Implementation::WireguardGo => list("golang.zx2c4.com/wireguard@latest", "{{.Version}}"),
        Implementation::Tailscale => {
            let go_mod = fs::read_to_string(list("tailscale.com@latest", "{{.GoMod}}")?)?;
            Ok(required_version(&go_mod, TAILSCALE)
                .ok_or("tailscale.com does not require its fork any more")?
                .to_owned())
        }
        Implementation::Boringtun => crate_version("boringtun-cli"),
        Implementation::Gotatun => crate_version("gotatun-cli"),
        _ => Err("not a peer".into()),
    }
}

const TAILSCALE: &str = "github.com/tailscale/wireguard-go";

/// The version of `module` in the text of a go.mod.
pub(crate) fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .split_whitespace()
            .skip_while(|&word| word == "require");
        (words.next()? == module).then(|| words.next()).flatten()
    })
}

fn crate_version(name: &str) -> Result<String, Failure> {
    let info = process::run("cargo", &["info", "--color=never", name], LOOK_UP)?;
    newest_version(&info)
        .map(str::to_owned)
        .ok_or_else(|| format!("no version of {name} found").into())
}

/// The newest version in the output of `cargo info`. Within a package that takes older compilers, it
/// tells the newest one for these first.
fn newest_version(info: &str) -> Option<&str> {
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("version: "))?;
    let latest = version.split_once("(latest ").map(|(_, latest)| latest);
    latest
        .unwrap_or(version)
        .split([' ', ')'])
        .next()
        .filter(|version| !version.is_empty())
}

/// Builds into `stage` and returns the binary's path.
fn build(who: Implementation, name: &str, version: &str, stage: &Path) -> Result<PathBuf, Failure> {
    let mut command;
    let made = match who {
        Implementation::WireguardGo | Implementation::Tailscale => {
            let (module, made) = if who == Implementation::Tailscale {
                (TAILSCALE, "wireguard-go")
            } else {
                ("golang.zx2c4.com/wireguard", "wireguard")
            };
            command = Command::new("go");
            command
                .args(["install", &format!("{module}@{version}")])
                .env("GOBIN", stage)
                .env("CGO_ENABLED", "0");
            stage.join(made)
        }
        _ => {
            command = Command::new("cargo");
            command
                .args(["install", "--quiet", "--locked", "--version"])
                .arg(format!("={version}"))
                .arg("--root")
                .arg(stage)
                .arg(name)
                .env("CARGO_TARGET_DIR", stage.join("target"))
                .env_remove("RUSTFLAGS");
            stage.join("bin")
        }
    };
    to_end(name, command)?;
    if made.is_file() {
        return Ok(made);
    }
    // The binary may have another name than its crate.
    let first = fs::read_dir(&made)?.next();
    Ok(first.ok_or("cargo installed nothing")??.path())
}

/// Runs a build whose own messages go to standard error.
fn to_end(name: &str, mut command: Command) -> Result<(), Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = Process::spawn(command)?.wait(BUILD)?;
    if !status.success() {
        return Err(format!("building {name} failed: {status}").into());
    }
    Ok(())
}

/// How Adit is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// As it is released.
    Release,
    /// With the AEAD left out: packets are neither encrypted nor authenticated. Only this command
    /// makes that build.
    WithoutAead,
    /// With what [`adit_offload::lab`] can turn off.
    Steps,
    /// With frame pointers, so that a profile shows who called.
    FramePointers,
    /// Both.
    StepsFramePointers,
}

/// Adit: the binary given, or built in the repository, or the one beside this command.
pub(crate) fn adit(given: Option<&Path>, flavour: Flavour) -> Result<Entry, Failure> {
    let who = match flavour {
        Flavour::WithoutAead => Implementation::Ceiling,
        _ => Implementation::Adit,
    };
    let binary = match (given, repository()) {
        (Some(given), _) => given.to_owned(),
        (None, Some(repository)) => build_adit(&repository, flavour)?,
        (None, None) if flavour == Flavour::Release => beside()?,
        (None, None) => return Err("the repository is not here to build from".into()),
    };
    let binary = fs::canonicalize(&binary).map_err(|e| format!("{}: {e}", binary.display()))?;
    let version = adit_version(&binary, given.is_some());
    Ok(Entry {
        who,
        version,
        binary: Some(binary),
        environment: Vec::new(),
    })
}

fn beside() -> Result<PathBuf, Failure> {
    let beside = env::current_exe()?.with_file_name("adit");
    if beside.is_file() {
        return Ok(beside);
    }
    Err("no adit beside this command and no repository to build it from; use --adit PATH".into())
}

fn build_adit(repository: &Path, flavour: Flavour) -> Result<PathBuf, Failure> {
    let own = repository.join("target");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| own.clone(), PathBuf::from);
    let (target, flags) = match flavour {
        Flavour::Release => (target, ""),
        Flavour::WithoutAead => (own.join("lab-ceiling"), "--cfg adit_lab_no_aead"),
        Flavour::Steps => (own.join("lab-steps"), "--cfg adit_lab_steps"),
        Flavour::FramePointers => (own.join("lab-profile"), "-C force-frame-pointers=yes"),
        Flavour::StepsFramePointers => (
            own.join("lab-steps-profile"),
            "--cfg adit_lab_steps -C force-frame-pointers=yes",
        ),
    };
    let mut command = Command::new("cargo");
    command
        .args(["build", "--quiet", "--release", "--locked"])
        .args(["--package", "adit-cli", "--bin", "adit"])
        .current_dir(repository)
        .env("CARGO_TARGET_DIR", &target);
    if !flags.is_empty() {
        eprintln!("building adit with {flags} into {}", target.display());
        let given = env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{given} {flags}"));
    }
    to_end("adit", command)?;
    Ok(target.join("release/adit"))
}

/// What the binary says of itself, and where it comes from: the commit if the lab built it from the
/// repository that is here, or else its path.
fn adit_version(binary: &Path, given: bool) -> String {
    let path = binary.to_string_lossy();
    let said = process::run(&path, &["--version"], Duration::from_secs(5)).unwrap_or_default();
    let said = said.lines().next().unwrap_or("unknown").trim().to_owned();
    if given {
        return format!("{said} ({path})");
    }
    commit().map_or(said.clone(), |commit| format!("{said} ({commit})"))
}

/// The commit of the repository that is here, with a mark if files differ from it.
fn commit() -> Option<String> {
    let at = repository()?.to_string_lossy().into_owned();
    let git = |args: &[&str]| {
        let args = [&["-C", at.as_str()], args].concat();
        process::run("git", &args, Duration::from_secs(5)).ok()
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if dirty.trim().is_empty() { "" } else { "+" };
    Some(format!("{}{mark}", commit.trim()))
}

/// The version of this lab, and of the parts of Adit in it.
pub(crate) fn version_here() -> String {
    let version = env!("CARGO_PKG_VERSION");
    commit().map_or(version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// The example of Adit's library that has a TUN device, given or built in the repository, and its
/// version.
pub(crate) fn example(given: Option<&Path>) -> Result<(PathBuf, String), Failure> {
    if let Some(given) = given {
        let path = fs::canonicalize(given).map_err(|e| format!("{}: {e}", given.display()))?;
        let version = path.to_string_lossy().into_owned();
        return Ok((path, version));
    }
    let repository =
        repository().ok_or("the repository is not here to build from; use --tun PATH")?;
    let target = env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| repository.join("target"), PathBuf::from);
    let mut command = Command::new("cargo");
    command
        .args(["build", "--quiet", "--release", "--locked", "--package"])
        .args(["adit", "--features", "linux", "--example", "tun"])
        .current_dir(repository)
        .env("CARGO_TARGET_DIR", &target);
    to_end("the example of Adit's library", command)?;
    Ok((target.join("release/examples/tun"), version_here()))
}

/// Has `scripts/peers` build what is missing of these programs.
pub(crate) fn embedders(names: &[&str]) -> Result<(), Failure> {
    if names.is_empty() {
        return Ok(());
    }
    let repository = repository().ok_or("the repository is not here to build from")?;
    let mut command = Command::new(repository.join("scripts/peers"));
    command.args(names).env("ADIT_PEERS", peers_dir());
    to_end(&names.join(", "), command)
}

/// An implementation that is there or can be built; `given` is the path of Adit's binary, if one was
/// given.
pub(crate) fn find(who: Implementation, given: Option<&Path>) -> Result<Entry, Failure> {
    match who {
        Implementation::Direct => Ok(Entry::plain(who, "no tunnel")),
        Implementation::Kernel => kernel(),
        Implementation::Ipsec => ipsec::find(),
        Implementation::Adit => adit(given, Flavour::Release),
        Implementation::Ceiling => adit(None, Flavour::WithoutAead),
        peer => self::peer(peer),
    }
}

/// Implementations that are not measured, and why.
pub(crate) type LeftOut = Vec<(Implementation, String)>;

/// The userspace implementations that were `asked` for, or all, which are there or can be built, and why
/// others are left out. Tells both.
pub(crate) fn find_all(
    asked: &[Implementation],
    given: Option<&Path>,
) -> Result<(Vec<Entry>, LeftOut), Failure> {
    let (mut there, mut left_out) = (Vec::new(), Vec::new());
    let all = Implementation::PEERS.into_iter();
    for who in all.chain([Implementation::Adit]) {
        if !asked.is_empty() && !asked.contains(&who) {
            continue;
        }
        match find(who, given) {
            Ok(entry) => {
                eprintln!("{:<14}{}", who.name(), entry.version);
                there.push(entry);
            }
            Err(why) => {
                eprintln!("{:<14}left out: {why}", who.name());
                left_out.push((who, format!("left out: {why}")));
            }
        }
    }
    if there.is_empty() {
        return Err(
            "nothing to measure: choose among wireguard-go, tailscale, boringtun, gotatun and adit"
                .into(),
        );
    }
    Ok((there, left_out))
}

fn kernel() -> Result<Entry, Failure> {
    let host = Host::new()?;
    host.ip("link add name wg0 type wireguard")
        .map_err(|_| "this kernel has no WireGuard")?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(Entry::plain(Implementation::Kernel, release.trim()))
}

/// The implementations (one at least). Each round starts with another, and every second round goes
/// the other way round, so that neither a place in the order nor a predecessor favours any of them.
pub(crate) fn order<T: Clone>(implementations: &[T], round: u32) -> Vec<T> {
    let mut order = implementations.to_vec();
    let first = usize::try_from(round - 1).map_or(0, |first| first % order.len());
    order.rotate_left(first);
    if round.is_multiple_of(2) {
        order[1..].reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_not_the_one_for_older_compilers() {
        let info =
            |version: &str| format!("gotatun-cli #vpn\nversion: {version}\nlicense: MPL-2.0\n");
        for (version, newest) in [
            ("0.7.0 (latest 0.10.2)", "0.10.2"),
            ("0.10.2", "0.10.2"),
            ("0.7.1 (from registry)", "0.7.1"),
        ] {
            assert_eq!(newest_version(&info(version)), Some(newest));
        }
        assert_eq!(newest_version("license: MPL-2.0\n"), None);
    }

    #[test]
    fn the_fork_that_tailscale_requires_is_found_in_its_go_mod() {
        let go_mod = "module tailscale.com\n\nrequire (\n\tgithub.com/a/b v1.2.3\n\
            \tgithub.com/tailscale/wireguard-go v0.0.0-20260928213032-417aef361226\n)\n";
        let module = "github.com/tailscale/wireguard-go";
        assert_eq!(
            required_version(go_mod, module),
            Some("v0.0.0-20260928213032-417aef361226")
        );
        assert_eq!(
            required_version("require github.com/a/b v1\n", "github.com/a/b"),
            Some("v1")
        );
        assert_eq!(required_version(go_mod, "github.com/c/d"), None);
    }

    #[test]
    fn rounds_rotate_the_order_of_implementations() {
        let [a, b, c, d] = Implementation::PEERS;
        let all = [a, b, c, d].map(|who| Entry::plain(who, ""));
        let names = |round| -> Vec<Implementation> {
            let order = order(&all, round);
            order.into_iter().map(|entry| entry.who).collect()
        };
        assert_eq!(names(1), [a, b, c, d]);
        assert_eq!(names(2), [b, a, d, c]);
        assert_eq!(names(3), [c, d, a, b]);
        assert_eq!(names(4), [d, c, b, a]);
        assert_eq!(names(5), names(1));
        assert_eq!(order(&all[..1], 2)[0].who, a);
    }
}
