//! Programs that Adit runs: hooks, and the front end of the resolver.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use adit_ctl::config;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::failure::{Context, Failure, Result, bail, say};

/// Runs wg-quick's script snippets in order, `%i` standing for the interface. They are written for
/// bash(1), so it is taken where it exists, with the options and variables that wg-quick has set: a
/// hook ends at the first command that fails.
pub(super) fn run_hooks(
    hooks: &[String],
    interface: &str,
    config_file: &Path,
    to_stderr: bool,
) -> Result<()> {
    let config_file = config_file
        .canonicalize()
        .unwrap_or_else(|_| config_file.to_owned());
    let run = |command: &mut Command| {
        let variables = command
            .env("INTERFACE", interface)
            .env("CONFIG_FILE", &config_file);
        if to_stderr {
            variables.stdout(std::io::stderr());
        }
        variables.env("LC_ALL", "C").status()
    };
    for hook in hooks {
        let script = config::hook(hook, interface);
        say!("[#] {script}");
        let mut bash = Command::new("bash");
        bash.args(["-O", "extglob", "-e", "-o", "pipefail", "-c", &script]);
        let status = match run(&mut bash) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                run(Command::new("sh").args(["-e", "-c", &script]))
            }
            result => result,
        };
        let status = status.context(|| format!("cannot run the hook `{script}`"))?;
        if !status.success() {
            bail!(State, "the hook `{script}` failed ({status})");
        }
    }
    Ok(())
}

/// Runs a program, shown as wg-quick shows it, with `input` on its standard input.
fn run(program: &str, args: &[&str], input: &str) -> Result<()> {
    say!("[#] {program} {}", args.join(" "));
    // Its output, /etc/resolv.conf, is for every user.
    let ours = umask(Mode::from_raw_mode(0o022));
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn();
    umask(ours);
    let mut child = child.context(|| format!("cannot run `{program}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading says so with its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let status = child.wait().context(|| format!("cannot run `{program}`"))?;
    if !status.success() {
        bail!(State, "`{program} {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// Where `program` is on the PATH.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    places.find(|place| place.is_file())
}

/// Points the resolver at the tunnel's servers, exclusively; without any, it only learns the search
/// domains. The link must be up.
pub(super) fn set_dns(interface: &str, servers: &[String], search: &[String]) -> Result<()> {
    if let Some(program) = find("resolvconf") {
        let mut records: String = servers
            .iter()
            .map(|ip| format!("nameserver {ip}\n"))
            .collect();
        if !search.is_empty() {
            records.push_str(&format!("search {}\n", search.join(" ")));
        }
        let name = resolvconf_name(&program, interface);
        let mut args = vec!["-a", &name, "-m", "0"];
        if !servers.is_empty() {
            args.push("-x");
        }
        return run("resolvconf", &args, &records);
    }
    if find("resolvectl").is_none() {
        return Err(Failure::State(
            "cannot set DNS: neither resolvconf nor resolvectl is installed; install one (Debian: openresolv or \
             systemd-resolved) or remove the DNS line"
                .into(),
        ));
    }
    let mut domains = vec!["domain", interface];
    if !servers.is_empty() {
        let mut dns = vec!["dns", interface];
        dns.extend(servers.iter().map(String::as_str));
        run("resolvectl", &dns, "")?;
        // `~.` routes every name to this link's servers, which is what resolvconf's -x means.
        domains.push("~.");
    }
    domains.extend(search.iter().map(String::as_str));
    run("resolvectl", &domains, "")
}

/// Undoes [`set_dns`]. resolved forgets a link's servers with the link.
pub(super) fn unset_dns(interface: &str) {
    if let Some(program) = find("resolvconf")
        && let Err(failure) = run(
            "resolvconf",
            &["-d", &resolvconf_name(&program, interface), "-f"],
            "",
        )
    {
        say!("adit: {failure}");
    }
}

fn resolvconf_name(program: &Path, interface: &str) -> String {
    let order = std::fs::read_to_string("/etc/resolvconf/interface-order").unwrap_or_default();
    resolvconf_prefix(program, &order) + interface
}

/// Debian's resolvconf orders interfaces by name and needs a prefix that its list knows. A link is
/// systemd-resolved under that name, which takes the prefix for the interface; the list may be left
/// from the other.
fn resolvconf_prefix(program: &Path, order: &str) -> String {
    if program.is_symlink() {
        return String::new();
    }
    let plain = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let prefix = order
        .lines()
        .filter_map(|line| line.strip_suffix('*'))
        .find(plain);
    prefix.map(|name| format!("{name}.")).unwrap_or_default()
}

#[cfg(test)]
#[path = "programs_tests.rs"]
mod tests;
