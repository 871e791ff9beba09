//! Whether this host forwards what comes out of the tunnel.

use adit_ctl::status::InterfaceJson;
use adit_netlink::netns;

use super::beyond::masquerade;
use super::causes::{Cause, Certainty, Finding};
use super::chains::{self, Dropping, Packets};
use super::firewall::nftables;
use crate::why::blocks::{blocks, is_host};

/// What this host does for its peers, and what keeps it from that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarding {
    /// Peers that are hosts: with two, packets between them are to pass here.
    pub(crate) hosts: usize,
    /// The families of these peers that are not forwarded.
    pub(crate) off: Vec<&'static str>,
    /// Packets that were to be forwarded and were not, before anything was tried and since.
    pub(crate) refused: [u64; 2],
    /// What peers send to the Internet gets no address of this host's.
    pub(crate) no_masquerade: bool,
    /// The device of the default route.
    pub(crate) uplink: Option<String>,
    /// It does not forward, and the interface does: it came after `adit up`.
    pub(crate) is_late: bool,
    /// What drops all that comes from peers and is to be forwarded.
    pub(crate) dropping: Option<Dropping>,
    /// Whether `adit up` has set up forwarding for the peers: the file asks for it.
    pub(crate) is_asked: bool,
}

impl Forwarding {
    pub(crate) fn look(status: &InterfaceJson, uplink: Option<String>) -> Self {
        let hosts = || {
            status.peers.iter().filter(|peer| {
                let mut blocks = blocks(peer).peekable();
                blocks.peek().is_some() && blocks.all(is_host)
            })
        };
        let name = &status.name;
        let has =
            |v6: bool| hosts().any(|peer| blocks(peer).any(|block| block.addr().is_ipv6() == v6));
        // The sysctl of the interface counts in IPv4, and in IPv6 that of all.
        let families = [
            (
                false,
                "net.ipv4.ip_forward",
                format!("net/ipv4/conf/{name}/forwarding"),
            ),
            (
                true,
                "net.ipv6.conf.all.forwarding",
                "net/ipv6/conf/all/forwarding".to_owned(),
            ),
        ];
        let is_off = |sysctl: &str| netns::sysctl(sysctl).is_ok_and(|value| value == "0");
        let off = families
            .iter()
            .filter(|(v6, _, sysctl)| has(*v6) && is_off(sysctl))
            .map(|(_, name, _)| *name)
            .collect();
        let refused = refused(name);
        let hosts = hosts().count();
        let rules = nftables();
        let forwards = |device: &str| netns::sysctl(&format!("net/ipv4/conf/{device}/forwarding"));
        let is = |device: &str, value| forwards(device).is_ok_and(|it| it == value);
        let rules = rules.as_deref();
        Self {
            hosts,
            off,
            refused: [refused; 2],
            no_masquerade: uplink.is_some()
                && !has_legacy_nat()
                && rules.is_some_and(|rules| !translates(rules) && !is_confined(rules, name)),
            is_late: is(name, "1")
                && uplink.as_ref().is_some_and(|device| is(device, "0"))
                && rules.is_none_or(|rules| own_table(rules, name).is_none_or(translates)),
            dropping: rules.and_then(|rules| dropping(rules, name, hosts, uplink.as_deref())),
            is_asked: rules.is_some_and(|rules| is_confined(rules, name)),
            uplink,
        }
    }

    pub(crate) fn look_again(&mut self, name: &str) {
        self.refused[1] = refused(name);
    }
}

/// The chain that drops what peers send to each other, and to the Internet, where there are both.
fn dropping(rules: &str, name: &str, hosts: usize, uplink: Option<&str>) -> Option<Dropping> {
    let to_peers = (hosts > 1).then_some(name);
    let mut found = [to_peers, uplink].into_iter().flatten().map(|to| {
        let packets = Packets {
            hook: "forward",
            from: name,
            to: Some(to),
            are_answers: false,
            v6: false,
        };
        chains::dropping(rules, packets)
    });
    let first = found.next()??;
    found.all(|other| other.is_some()).then_some(first)
}

/// Whether the NAT of iptables-legacy is in use, whose rules nftables does not list.
fn has_legacy_nat() -> bool {
    let tables = std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
    tables.is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
}

/// Whether a rule set translates the sources of what leaves.
pub(super) fn translates(rules: &str) -> bool {
    let mut lines = rules.lines().map(str::trim);
    lines.any(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| matches!(word, "masquerade" | "snat" | "MASQUERADE" | "SNAT"))
    })
}

/// Whether `adit up` has set what the peers of an interface reach: then no more is meant.
fn is_confined(rules: &str, interface: &str) -> bool {
    own_table(rules, interface).is_some()
}

/// The rules of `adit up` for the peers of an interface. Peers that reach each other alone have none that
/// translates.
fn own_table<'a>(rules: &'a str, interface: &str) -> Option<&'a str> {
    let begin = format!("table ip adit-forward-{interface} {{\n");
    let at = (rules.match_indices(&begin)).find(|(at, _)| *at == 0 || rules[..*at].ends_with('\n'));
    let table = &rules[at?.0..];
    Some(table.split_once("\n}").map_or(table, |(table, _)| table))
}

/// How many packets for others came to a host that does not forward: of all devices in IPv4, of the
/// interface in IPv6.
fn refused(name: &str) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let v4 = read("/proc/thread-self/net/snmp");
    let mut lines = v4.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let names = lines.next().unwrap_or_default().split(' ');
    let values = lines.next().unwrap_or_default().split(' ');
    let mut fields = names.zip(values);
    let v4 = fields.find(|(name, _)| *name == "InAddrErrors");
    let v6 = read(&format!("/proc/thread-self/net/dev_snmp6/{name}"));
    let v6 = v6
        .lines()
        .find_map(|line| line.strip_prefix("Ip6InAddrErrors"));
    let number = |text: &str| text.trim().parse().unwrap_or(0_u64);
    v4.map_or(0, |(_, value)| number(value)) + v6.map_or(0, number)
}

/// What this host does not forward for its peers.
pub(super) fn of_this_host(name: &str, here: &Forwarding) -> Vec<Finding> {
    let mut found = Vec::new();
    let refused = here.refused[1].saturating_sub(here.refused[0]);
    let is_hub = here.hosts > 1 || here.is_asked;
    // One peer alone may be here to reach this host only, until it sends what is for others.
    if here.hosts == 0 || !is_hub && (here.off.is_empty() || refused == 0) {
        return found;
    }
    if !here.off.is_empty() {
        let is_seen = refused > 0;
        let (certainty, seen) = match is_seen {
            true => (
                Certainty::Certain,
                format!(": {refused} packets were dropped just now"),
            ),
            false => (Certainty::Possible, String::new()),
        };
        let mut finding = Finding::new(
            Cause::NoForwarding,
            certainty,
            format!(
                "this host does not forward ({} = 0){seen}: peers of {name} reach this host, and neither each other nor \
                 what is behind it",
                here.off.join(", ")
            ),
        );
        for sysctl in &here.off {
            finding = finding.run(format!("sysctl -w {sysctl}=1"));
        }
        let settings: String = here.off.iter().map(|it| format!("{it}=1\\n")).collect();
        finding = finding.run(format!(
            "for good: printf '{settings}' > /etc/sysctl.d/99-forward.conf"
        ));
        found.push(if is_seen { finding } else { finding.remark() });
    }
    found.extend(late(name, here));
    found.extend(dropped(name, here));
    if let (true, Some(device)) = (here.no_masquerade && is_hub, &here.uplink) {
        let finding = Finding::new(
            Cause::NoMasquerade,
            Certainty::Possible,
            format!(
                "no rule of nftables translates what leaves by {device}: peers of {name} that send to the Internet through \
                 this host get no answers"
            ),
        );
        found.push(masquerade(finding, "ip", "", device).remark());
    }
    found
}

/// The uplink came after `adit up`, which had those of then forward.
fn late(name: &str, here: &Forwarding) -> Option<Finding> {
    let device = here.uplink.as_ref().filter(|_| here.is_late)?;
    let text = format!(
        "the device of the default route, {device}, does not forward (net.ipv4.conf.{device}.forwarding = 0), and {name} does: \
         what comes back by {device} for peers of {name} is dropped. Perhaps {device} came after `adit up {name}`"
    );
    let finding = Finding::new(Cause::NoForwarding, Certainty::Likely, text);
    Some(match here.is_asked {
        true => finding.run(format!("adit sync {name}")),
        false => finding
            .run(format!("sysctl -w net.ipv4.conf.{device}.forwarding=1"))
            .remark(),
    })
}

/// A firewall drops what this host is to forward.
fn dropped(name: &str, here: &Forwarding) -> Option<Finding> {
    let Dropping { chain, rule } = here.dropping.as_ref()?;
    let text = format!(
        "a firewall on this host drops what peers of {name} send to each other or to the Internet. nftables has in {chain}: \
         {rule}"
    );
    let certainty = match here.is_asked {
        true => Certainty::Likely,
        false => Certainty::Possible,
    };
    let finding = Finding::new(Cause::ForwardFirewall, certainty, text)
        .run(format!("nft insert rule {chain} iifname {name} accept"))
        .run(format!(
            "nft insert rule {chain} oifname {name} ct state established,related accept"
        ))
        .run("nft -a list ruleset | grep -e 'hook forward' -e drop -e reject".to_owned());
    Some(match here.is_asked {
        true => finding,
        false => finding.remark(),
    })
}

#[cfg(test)]
#[path = "forwarding_tests.rs"]
mod tests;
