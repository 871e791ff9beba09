//! What a hub needs besides the file.

use adit_ctl::config::{Config, Forward, PeerSection};
use adit_proto::config::Cidr;

use super::parts::{CheckFinding, Severity, blocks, name};
use crate::why::blocks::is_host;

/// Findings about what a hub needs besides the file.
pub(super) fn forwarding(config: &Config, found: &mut Vec<CheckFinding>) {
    let interface = &config.interface;
    let is_host = |peer: &&PeerSection| {
        let blocks = || blocks(peer);
        peer.endpoint.is_none() && blocks().next().is_some() && blocks().all(is_host)
    };
    let hosts: Vec<&PeerSection> = config.peers.iter().filter(is_host).collect();
    let hooks = || interface.pre_up.iter().chain(&interface.post_up);
    let told = |words: &[&str]| {
        hooks().any(|hook| {
            let hook = hook.to_ascii_lowercase();
            words.iter().any(|word| hook.contains(word))
        })
    };
    // A script of its own may do anything.
    let is_script = |hook: &String| hook.trim_start().starts_with(['/', '.']);
    let is_told = told(&["forward"]) && told(&["masquerade", "snat"]);
    untranslated(config, found);
    if hosts.len() < 2 || interface.forward.is_some() || is_told || hooks().any(is_script) {
        return;
    }
    let has = |v6: bool| {
        let mut blocks = hosts.iter().flat_map(|peer| blocks(peer));
        blocks.any(|block| block.addr().is_ipv6() == v6)
    };
    let sysctls = [
        (false, "net.ipv4.ip_forward"),
        (true, "net.ipv6.conf.all.forwarding"),
    ];
    let sysctls: Vec<String> = (sysctls.iter())
        .filter(|(v6, _)| has(*v6))
        .map(|(_, sysctl)| format!("`sysctl -w {sysctl}=1`"))
        .collect();
    let sysctls = sysctls.join(" and ");
    found.push((
        Severity::Hint,
        format!(
            "{} peers are hosts that meet here: they reach each other and what is behind this host only if it forwards \
             ({sysctls}), and the Internet only if it translates their addresses, too (`nft add rule ip nat postrouting \
             oifname DEVICE masquerade`, in a chain of `type nat hook postrouting`); the line `# Forward = internet` below \
             [Interface] has `adit up` do all of it",
            hosts.len()
        ),
    ));
}

/// `adit up` translates what has an address of the interface's own networks.
fn untranslated(config: &Config, found: &mut Vec<CheckFinding>) {
    let interface = &config.interface;
    if interface.forward.is_none_or(|reach| reach < Forward::Lan) {
        return;
    }
    let networks = interface.addresses.iter();
    let networks = networks.filter_map(|address| Cidr::new(address.ip, address.prefix_len));
    let networks: Vec<Cidr> = networks.collect();
    for peer in &config.peers {
        for v6 in [false, true] {
            let of_family = |block: &Cidr| block.addr().is_ipv6() == v6;
            let mut own = networks
                .iter()
                .filter(|network| of_family(network))
                .peekable();
            // Without an address of the family nothing is forwarded.
            if own.peek().is_none() {
                continue;
            }
            let own: Vec<&Cidr> = own.collect();
            let is_inside = |block: &Cidr| own.iter().any(|network| network.contains(block.addr()));
            let hosts = || blocks(peer).filter(|block| of_family(block) && is_host(*block));
            let Some(block) = hosts().next().filter(|_| !hosts().any(|it| is_inside(&it))) else {
                continue;
            };
            let (whose, reach) = (name(config, &peer.public_key), interface.forward);
            let reach = reach.map_or("", Forward::name);
            let network = own
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            found.push((
                Severity::Warning,
                format!(
                    "{whose}: {block} is in no network of the interface's own ({network}), and Forward = {reach} translates \
                     only what comes from these: give Address a prefix that holds it, as in Address = 10.8.0.1/24"
                ),
            ));
        }
    }
}
