//! `adit check`: what is wrong or unusual in a configuration file, and in it on this host. It needs no
//! rights but to read the file, and changes nothing. Of a proxy's file it says what `adit proxy -n` does.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use adit_ctl::config::{
    self, Config, FileText, InterfaceAddress, InterfaceSection, PeerSection, Table,
};
use adit_ctl::text::printable_lines;
use adit_netlink::Family;
use adit_proto::config::{Cidr, PublicKey};
use adit_proxy::config::is_proxy_file;

use crate::cli::{self, ConfArgs};
use crate::failure::{Failure, Result};
use crate::quick::{check_exists, covers, leaves_in_clear, parts};
use crate::why::blocks::is_host;
use crate::why::causes::overhead;
use here::Here;
use parts::{CheckFinding, Severity, all_blocks, blocks, endpoint, name, of_lines};
use secrets::{own_secrets, placeholder, secrets};

mod forward;
mod here;
mod parts;
mod proxy;
mod secrets;

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

/// Most paths through the Internet.
const PATH_MTU: u32 = 1500;
const MIN_V6_MTU: u16 = 1280;
/// Findings of one kind that are printed, at most.
const MANY: usize = 20;

/// Prints the findings. The exit status is 1 if there is an error.
pub(crate) fn check(args: &ConfArgs) -> Result<ExitCode> {
    let path = config::locate_any(&args.conf).map_err(Failure::Mistake)?;
    check_exists(&path)?;
    let findings = all_findings(&path, Here::look)?;
    let file = path.display();
    let mut out = String::new();
    for (kind, text) in &findings {
        _ = writeln!(out, "{}: {text}", kind.name());
    }
    if findings.is_empty() {
        _ = writeln!(out, "{file}: nothing to remark");
    }
    cli::print(printable_lines(&out).as_bytes())?;
    Ok(match findings.first() {
        Some((Severity::Error, _)) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// Findings about each line, and those that a look at each line alone does not show, and at this host:
/// errors first.
fn all_findings(path: &Path, look: impl Fn(&Path, &Config) -> Here) -> Result<Vec<CheckFinding>> {
    let file = FileText::read(path).map_err(|errors| Failure::Mistake(errors.to_string()))?;
    if is_proxy_file(file.text()) {
        return Ok(proxy::findings(&file));
    }
    let (config, errors) = file.salvage();
    let mut findings = of_lines(Severity::Error, &errors.0);
    findings.extend(of_lines(Severity::Warning, &config.warnings));
    let file = path.display();
    // A PrivateKey with a mistake has been reported already.
    let has_key = (errors.0.iter()).any(|it| it.text.starts_with("PrivateKey"));
    let mut found = examine(&config, has_key);
    look(path, &config).examine(&config, &mut found);
    findings.extend(
        found
            .into_iter()
            .map(|(kind, text)| (kind, format!("{file}: {text}"))),
    );
    findings.sort_by_key(|(kind, _)| *kind);
    Ok(findings)
}

/// Everything that a look at each line alone does not show. `has_key` if a line has a private key
/// that is none.
fn examine(config: &Config, has_key: bool) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    let found = &mut findings;
    interface(config, has_key, found);
    twice(config, found);
    let blocks: Vec<Cidr> = all_blocks(config).collect();
    mtu(config, found);
    reachable(config, found);
    own_secrets(config, found);
    for (n, peer) in (1..).zip(&config.peers) {
        secrets(config, n, peer, found);
        placeholder(config, peer, found);
        one_peer(config, peer, &blocks, found);
    }
    nested(config, found);
    dns(config, found);
    let clear = leaves_in_clear(&blocks, &config.interface.table);
    found.extend(clear.map(|text| (Severity::Warning, text)));
    forward::forwarding(config, found);
    findings
}

fn interface(config: &Config, has_key: bool, found: &mut Vec<CheckFinding>) {
    let InterfaceSection {
        addresses,
        private_key,
        pre_up,
        post_up,
        table,
        ..
    } = &config.interface;
    let has_key = has_key || private_key.as_ref().is_some_and(|key| !key.is_zero());
    // A hook may set it.
    if !has_key && pre_up.is_empty() && post_up.is_empty() {
        found.push((
            Severity::Warning,
            "there is no PrivateKey: no peer will answer, unless a file of keys has it (adit-up(8))"
                .into(),
        ));
    }
    for v6 in [false, true] {
        let of_family = |ip: IpAddr| ip.is_ipv6() == v6;
        let routed = all_blocks(config).find(|block| of_family(block.addr()));
        let addressed = addresses.iter().any(|address| of_family(address.ip));
        if let (Some(block), false, true) = (routed, addressed, *table != Table::Off) {
            let version = if v6 { "IPv6" } else { "IPv4" };
            found.push((
                Severity::Warning,
                format!(
                    "the interface has no {version} Address, but {block} is among the AllowedIPs: what is sent there has \
                     an address that the peer does not expect"
                ),
            ));
        }
    }
    let blocks: Vec<Cidr> = all_blocks(config).collect();
    let has_default = |family| covers(&blocks, family);
    if *table == Table::Auto && has_default(Family::V4) && !has_default(Family::V6) {
        found.push((
            Severity::Hint,
            "AllowedIPs have 0.0.0.0/0 and not ::/0: IPv6 leaves outside of the tunnel".into(),
        ));
    }
}

/// What the kernel has once.
fn twice(config: &Config, found: &mut Vec<CheckFinding>) {
    let addresses = &config.interface.addresses;
    for (n, address) in addresses.iter().enumerate() {
        let same = |other: &&InterfaceAddress| {
            other.ip == address.ip && (other == &address || address.ip.is_ipv6())
        };
        if let Some(other) = addresses.iter().take(n).find(same) {
            found.push((
                Severity::Warning,
                format!("Address = {address} and Address = {other} are the same address, which the interface has once: remove one of them"),
            ));
        }
    }
}

fn mtu(config: &Config, found: &mut Vec<CheckFinding>) {
    let Some(mtu) = config.interface.mtu else {
        return;
    };
    let v6 = all_blocks(config).find(|block| block.addr().is_ipv6());
    if let (Some(block), true) = (v6, mtu < MIN_V6_MTU)
        && config.interface.table != Table::Off
    {
        found.push((
            Severity::Error,
            format!("MTU = {mtu} is too small for {block}: IPv6 needs {MIN_V6_MTU}"),
        ));
    }
    let over_v6 = config
        .peers
        .iter()
        .filter_map(endpoint)
        .any(|it| it.is_ipv6());
    let version = if over_v6 { "IPv6" } else { "IPv4" };
    let overhead = overhead(over_v6);
    let mtu = u32::from(mtu);
    if mtu > PATH_MTU - overhead {
        found.push((
            Severity::Warning,
            format!(
                "MTU = {mtu} makes datagrams of {} bytes over {version}, which a path of {PATH_MTU} bytes sends in \
                 fragments or not at all: {} fits. Without the line, `adit up` finds it out",
                mtu + overhead,
                PATH_MTU - overhead
            ),
        ));
    }
}

/// Whether handshakes can begin anywhere.
fn reachable(config: &Config, found: &mut Vec<CheckFinding>) {
    let has_port = config.interface.listen_port.is_some_and(|port| port != 0);
    let waiting = config
        .peers
        .iter()
        .filter(|peer| peer.endpoint.is_none())
        .count();
    if has_port || waiting == 0 {
        return;
    }
    let chosen =
        "the interface has no ListenPort, so that its port is another one after each start";
    found.push(match waiting == config.peers.len() {
        true => (
            Severity::Warning,
            format!("no peer has an Endpoint, and {chosen}: no handshake can begin"),
        ),
        false => (
            Severity::Hint,
            format!("{chosen}: the peers without an Endpoint cannot begin a handshake"),
        ),
    });
}

fn one_peer(config: &Config, peer: &PeerSection, blocks: &[Cidr], found: &mut Vec<CheckFinding>) {
    let InterfaceSection {
        addresses,
        private_key,
        table,
        listen_port,
        ..
    } = &config.interface;
    let name = name(config, &peer.public_key);
    let own = (private_key.as_ref()).filter(|key| !key.is_zero());
    if own.is_some_and(|key| key.public_key() == peer.public_key) {
        found.push((
            Severity::Warning,
            format!("{name} has the public key of this interface itself, which ignores it: a peer needs a key of its own"),
        ));
    }
    if peer.allowed_ips.is_empty() {
        found.push((
            Severity::Warning,
            format!("{name} has no AllowedIPs: nothing is sent to it or taken from it"),
        ));
    }
    for address in addresses {
        let host = |block: &Cidr| {
            block.contains(address.ip) && is_host(*block) && !block.addr().is_unspecified()
        };
        if let Some(block) = self::blocks(peer).find(host) {
            found.push((
                Severity::Warning,
                format!("{name}: {block} is this interface's own Address"),
            ));
        }
    }
    let network = endpoint(peer).and_then(|to| {
        let networks = addresses.iter();
        let mut networks = networks.filter_map(|it| Cidr::new(it.ip, it.prefix_len));
        networks.find(|network| network.prefix_len() > 0 && network.contains(to.ip()))
    });
    if let Some(to) = endpoint(peer)
        && addresses.iter().any(|address| address.ip == to.ip())
    {
        found.push((
            Severity::Warning,
            format!("{name}: its Endpoint {to} is this interface's own Address: it is to be where the peer is, outside of the tunnel"),
        ));
    } else if let (Some(to), Some(network)) = (endpoint(peer), network) {
        found.push((
            Severity::Warning,
            format!(
                "{name}: its Endpoint {to} lies in {network}, the network inside the tunnel: it is to be the address that the \
                 peer's host has without the tunnel"
            ),
        ));
    } else if let Some(to) = endpoint(peer)
        && *table != Table::Off
    {
        // The routes of a default route pass over what has the tunnel's mark.
        let loops = |block: &Cidr| {
            let is_default =
                || *table == Table::Auto && parts(blocks, Family::of(block.addr())).contains(block);
            block.contains(to.ip()) && !is_default()
        };
        if let Some(block) = blocks.iter().find(|block| loops(block)) {
            found.push((
                Severity::Warning,
                format!(
                    "{name}: its Endpoint {to} lies inside the allowed IPs {block}, so that its datagrams are routed into \
                     the tunnel: take the address out of AllowedIPs, or give it a route of its own in a PreUp hook"
                ),
            ));
        }
    }
    if peer.endpoint.is_some() && peer.persistent_keepalive.is_none() && listen_port.is_none() {
        found.push((
            Severity::Hint,
            format!(
                "{name}: without PersistentKeepalive = 25, a NAT or firewall in front of this host forgets the tunnel \
                 while it is idle, and the peer cannot reach it"
            ),
        ));
    }
}

/// Allowed IPs of a peer inside those of another one. The same block twice is a warning of the
/// parser.
fn nested(config: &Config, found: &mut Vec<CheckFinding>) {
    let mut owners: HashMap<Cidr, PublicKey> = HashMap::new();
    for peer in &config.peers {
        owners.extend(blocks(peer).map(|block| (block, peer.public_key)));
    }
    let mut nested: Vec<(Cidr, Cidr)> = Vec::new();
    for (inner, owner) in &owners {
        // A default route holds all others, as it should.
        let outer = (1..inner.prefix_len()).rev().find_map(|len| {
            let outer = Cidr::new(inner.addr(), len)?;
            owners.contains_key(&outer).then_some(outer)
        });
        if let Some(outer) = outer
            && owners.get(&outer) != Some(owner)
        {
            nested.push((*inner, outer));
        }
    }
    nested.sort_by_key(|(inner, _)| (inner.addr(), inner.prefix_len()));
    for (inner, outer) in nested.iter().take(MANY) {
        let whose = |block| {
            let owner = owners.get(block);
            owner.map_or(String::new(), |key| name(config, key))
        };
        found.push((
            Severity::Hint,
            format!(
                "{inner} of {} lies inside {outer} of {}: the narrower one counts",
                whose(inner),
                whose(outer)
            ),
        ));
    }
    if nested.len() > MANY {
        let text = format!("{} more allowed IPs lie inside others", nested.len() - MANY);
        found.push((Severity::Hint, text));
    }
}

fn dns(config: &Config, found: &mut Vec<CheckFinding>) {
    let InterfaceSection { dns, addresses, .. } = &config.interface;
    let servers = dns.iter().filter_map(|text| text.parse::<IpAddr>().ok());
    for server in servers {
        let within = all_blocks(config).any(|block| block.contains(server));
        let connected = addresses.iter().any(|address| {
            Cidr::new(address.ip, address.prefix_len).is_some_and(|block| block.contains(server))
        });
        if !within && !connected && !server.is_loopback() {
            found.push((
                Severity::Hint,
                format!("DNS = {server} is in no AllowedIPs: it is asked outside of the tunnel"),
            ));
        }
    }
}
