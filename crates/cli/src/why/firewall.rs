//! What the packet filter of this host does to the tunnel's datagrams, from the rules of nftables.

use std::process::Command;

/// Rules that are quoted.
const MAX_RULES: usize = 4;

/// The rules of nftables, if it can be asked.
pub(super) fn nftables() -> Option<String> {
    nft(&["-s", "-t", "list", "ruleset"])
}

/// What nft(8) says, if it can do this.
pub(super) fn nft(arguments: &[&str]) -> Option<String> {
    let mut nft = Command::new("nft");
    let output = nft.args(arguments).output().ok()?;
    let is_known = output.status.success();
    is_known.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The rule that drops UDP to a port of this host: that of the first chain that does. Where the
/// other end is known, what comes is an answer.
pub(super) fn closing(ruleset: &str, port: u16, is_answer: bool) -> Option<String> {
    let (mut table, mut chain) = ("", "");
    // The hook's line, while nothing in the chain has decided.
    let mut open: Option<&str> = None;
    for line in ruleset.lines().map(str::trim) {
        let named = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" {");
        if let Some(name) = named("table ") {
            table = name;
        } else if let Some(name) = named("chain ") {
            chain = name;
        } else if line.contains(" hook input ") || line.contains(" hook prerouting ") {
            open = line.starts_with("type filter").then_some(line);
        } else if line == "}" {
            if let Some(hook) = open.take().filter(|hook| hook.contains("policy drop")) {
                return Some(format!("{table} {chain}: {hook}"));
            }
        } else if open.is_some() && !table.starts_with("arp") {
            match verdict(line, port, is_answer) {
                Some(true) => open = None,
                Some(false) => return Some(format!("{table} {chain}: {line}")),
                None => {}
            }
        }
    }
    None
}

/// Whether a rule accepts UDP to a port, or drops it; `None` if it is about something else, or
/// about a part of it.
fn verdict(rule: &str, port: u16, is_answer: bool) -> Option<bool> {
    let words: Vec<&str> = rule
        .split([' ', '{', '}', ',', '"'])
        .filter(|word| !word.is_empty())
        .collect();
    let has = |word: &str| words.contains(&word);
    let accepts = has("accept");
    if !accepts && !has("drop") && !has("reject") {
        return None;
    }
    if has("state") {
        let is_about_answers = has("established") && is_answer;
        return (is_about_answers && !has("dport")).then_some(accepts);
    }
    let is_port = |word: &str| match word.split_once('-') {
        Some((from, to)) => {
            let [from, to] = [from, to].map(|text| text.parse::<u16>().ok());
            from.is_some_and(|from| from <= port) && to.is_some_and(|to| port <= to)
        }
        None => word.parse() == Ok(port),
    };
    if has("dport") {
        let at = words.iter().position(|word| *word == "dport")?;
        let is_udp = has("udp") || has("th");
        let of_port = words
            .get(at + 1..)?
            .iter()
            .take_while(|word| **word != "counter");
        let mut of_port = of_port.copied();
        return (is_udp && !has("!=") && of_port.any(is_port)).then_some(accepts);
    }
    // Everything, or all of UDP.
    let plain = [
        "accept",
        "drop",
        "reject",
        "counter",
        "packets",
        "bytes",
        "meta",
        "l4proto",
        "ip",
        "protocol",
        "udp",
        "with",
        "icmp",
        "icmpx",
        "icmpv6",
        "type",
        "port-unreachable",
        "admin-prohibited",
        "host-unreachable",
    ];
    let is_plain = |word: &&str| plain.contains(word) || word.parse::<u64>().is_ok();
    words.iter().all(is_plain).then_some(accepts)
}

pub(super) fn dropping(ruleset: &str, ports: &[u16]) -> Vec<String> {
    let (mut table, mut chain) = (String::new(), String::new());
    let mut found = Vec::new();
    for line in ruleset.lines().map(str::trim) {
        let mut words = line.split(' ');
        match words.next() {
            Some("table") => {
                table = line
                    .trim_start_matches("table ")
                    .trim_end_matches(" {")
                    .into()
            }
            Some("chain") => chain = words.next().unwrap_or_default().into(),
            _ => {}
        }
        let drops = line.contains("drop") || line.contains("reject");
        let mut words = line.split([' ', '{', '}', ',']);
        let is_ours = words.any(|word| ports.iter().any(|port| word == port.to_string()))
            || line.contains("policy drop")
            || matches!(line, "drop" | "counter drop" | "reject" | "counter reject");
        if drops && is_ours && found.len() < MAX_RULES {
            found.push(format!("{table} {chain}: {line}"));
        }
    }
    found
}

#[cfg(test)]
#[path = "firewall_tests.rs"]
mod tests;
