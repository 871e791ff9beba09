//! What is a program by nature: hooks, the resolver's front end, the packet filter's.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use adit_ctl::config;

use crate::failure::{Context, Failure, Result, bail};

/// Runs wg-quick's script snippets in order, `%i` standing for the interface. They are written for bash(1), so it
/// is taken where it exists.
pub(super) fn run_hooks(hooks: &[String], interface: &str) -> Result<()> {
    for hook in hooks {
        let script = config::hook(hook, interface);
        eprintln!("[#] {script}");
        let mut bash = Command::new("bash");
        let status = match bash.args(["-c", &script]).status() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Command::new("sh").args(["-c", &script]).status()
            }
            result => result,
        };
        let status = status.context(|| format!("cannot run the hook `{script}`"))?;
        if !status.success() {
            bail!("the hook `{script}` failed ({status})");
        }
    }
    Ok(())
}

/// Runs a program, shown as wg-quick shows it, with `input` on its standard input.
fn run(program: &str, args: &[&str], input: &str) -> Result<()> {
    eprintln!("[#] {program} {}", args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
        .context(|| format!("cannot run `{program}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading says so with its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let status = child.wait().context(|| format!("cannot run `{program}`"))?;
    if !status.success() {
        bail!("`{program} {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// Whether `program` is on the PATH.
fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Points the resolver at the tunnel's servers, exclusively. The link must be up.
pub(super) fn set_dns(interface: &str, servers: &[IpAddr], search: &[String]) -> Result<()> {
    if exists("resolvconf") {
        let mut records: String = servers
            .iter()
            .map(|ip| format!("nameserver {ip}\n"))
            .collect();
        if !search.is_empty() {
            records.push_str(&format!("search {}\n", search.join(" ")));
        }
        return run(
            "resolvconf",
            &["-a", &resolvconf_name(interface), "-m", "0", "-x"],
            &records,
        );
    }
    if !exists("resolvectl") {
        return Err(Failure::new(
            "cannot set DNS: neither resolvconf nor resolvectl is installed; install one (Debian: openresolv or \
             systemd-resolved) or remove the DNS line",
        ));
    }
    let servers: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
    let mut dns = vec!["dns", interface];
    dns.extend(servers.iter().map(String::as_str));
    run("resolvectl", &dns, "")?;
    // `~.` routes every name to this link's servers, which is what resolvconf's -x means.
    let mut domains = vec!["domain", interface, "~."];
    domains.extend(search.iter().map(String::as_str));
    run("resolvectl", &domains, "")
}

/// Undoes [`set_dns`]. resolved forgets a link's servers with the link.
pub(super) fn unset_dns(interface: &str) {
    if exists("resolvconf")
        && let Err(failure) = run("resolvconf", &["-d", &resolvconf_name(interface), "-f"], "")
    {
        eprintln!("adit: {failure}");
    }
}

/// Debian's resolvconf orders interfaces by name and needs a prefix that its list knows.
fn resolvconf_name(interface: &str) -> String {
    let order = std::fs::read_to_string("/etc/resolvconf/interface-order").unwrap_or_default();
    resolvconf_prefix(&order) + interface
}

fn resolvconf_prefix(order: &str) -> String {
    let plain = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let prefix = order
        .lines()
        .filter_map(|line| line.strip_suffix('*'))
        .find(plain);
    prefix.map(|name| format!("{name}.")).unwrap_or_default()
}

/// Keeps strangers from talking to the tunnel's addresses through other interfaces, and carries the mark of the
/// tunnel's own packets over to their answers so that strict reverse-path filters let them in.
///
/// The rules and their table are wg-quick's, so that either tool removes what the other left.
pub(super) fn set_firewall(
    interface: &str,
    v6: bool,
    mark: u32,
    addresses: &[IpAddr],
) -> Result<()> {
    if exists("nft") {
        return run(
            "nft",
            &["-f", "-"],
            &nft_rules(interface, v6, mark, addresses),
        );
    }
    let program = if v6 {
        "ip6tables-restore"
    } else {
        "iptables-restore"
    };
    if !exists(program) {
        bail!(
            "a default route through the tunnel needs firewall rules that keep it from being spoofed, and neither nft \
             nor {program} is installed; install nftables, or set Table = off and add the routes yourself"
        );
    }
    run(
        program,
        &["-n"],
        &iptables_rules(interface, mark, addresses),
    )
}

fn nft_rules(interface: &str, v6: bool, mark: u32, addresses: &[IpAddr]) -> String {
    let family = if v6 { "ip6" } else { "ip" };
    let table = format!("{family} wg-quick-{interface}");
    let mut rules = format!(
        "add table {table}\n\
         add chain {table} preraw {{ type filter hook prerouting priority -300; }}\n\
         add chain {table} premangle {{ type filter hook prerouting priority -150; }}\n\
         add chain {table} postmangle {{ type filter hook postrouting priority -150; }}\n"
    );
    for ip in addresses.iter().filter(|ip| ip.is_ipv6() == v6) {
        rules.push_str(&format!(
            "add rule {table} preraw iifname != \"{interface}\" {family} daddr {ip} fib saddr type != local drop\n"
        ));
    }
    rules.push_str(&format!(
        "add rule {table} postmangle meta l4proto udp mark {mark} ct mark set mark\n\
         add rule {table} premangle meta l4proto udp meta mark set ct mark\n"
    ));
    rules
}

fn iptables_rules(interface: &str, mark: u32, addresses: &[IpAddr]) -> String {
    let comment = iptables_comment(interface);
    let mut rules = "*raw\n".to_owned();
    for ip in addresses {
        rules.push_str(&format!(
            "-I PREROUTING ! -i {interface} -d {ip} -m addrtype ! --src-type LOCAL -j DROP {comment}\n"
        ));
    }
    rules.push_str(&format!(
        "COMMIT\n*mangle\n\
         -I POSTROUTING -m mark --mark {mark} -p udp -j CONNMARK --save-mark {comment}\n\
         -I PREROUTING -p udp -j CONNMARK --restore-mark {comment}\nCOMMIT\n"
    ));
    rules
}

fn iptables_comment(interface: &str) -> String {
    format!("-m comment --comment \"wg-quick(8) rule for {interface}\"")
}

/// Removes what [`set_firewall`] set, in both families and with both programs.
pub(super) fn unset_firewall(interface: &str) {
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program)
            .args(args)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        String::from_utf8(output.stdout)
            .ok()
            .filter(|_| output.status.success())
    };
    let warn = |result: Result<()>| result.unwrap_or_else(|failure| eprintln!("adit: {failure}"));
    if let Some(tables) = output("nft", &["list", "tables"]) {
        let name = format!("wg-quick-{interface}");
        let ours = tables
            .lines()
            .filter(|line| line.split(' ').next_back() == Some(name.as_str()));
        let script: String = ours.map(|line| format!("delete {line}\n")).collect();
        if !script.is_empty() {
            warn(run("nft", &["-f", "-"], &script));
        }
    }
    for (save, restore) in [
        ("iptables-save", "iptables-restore"),
        ("ip6tables-save", "ip6tables-restore"),
    ] {
        let rules = output(save, &[]).unwrap_or_default();
        if let Some(script) = iptables_deletions(&rules, interface) {
            warn(run(restore, &["-n"], &script));
        }
    }
}

/// The script that deletes this interface's rules from those that are in force, if there are any.
fn iptables_deletions(rules: &str, interface: &str) -> Option<String> {
    let comment = iptables_comment(interface);
    let ours = |line: &&str| line.starts_with("-A ") && line.contains(&comment);
    rules.lines().find(ours)?;
    let kept = rules
        .lines()
        .filter(|line| line.starts_with('*') || *line == "COMMIT" || ours(line));
    Some(
        kept.map(|line| line.replacen("-A ", "-D ", 1) + "\n")
            .collect(),
    )
}

#[cfg(test)]
#[path = "programs_tests.rs"]
mod tests;
