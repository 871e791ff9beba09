//! `[Interface]` and `[Peer]`, by the reader of wg-quick's files.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use adit::{IpBlock, PresharedKey, PrivateKey, PublicKey};
use adit_ctl::config::{Config, HostPort, PeerSection, Remark};
use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, Secret};

use super::model::{EndpointHost, PeerPart, ProxyEndpoint, TunnelPart};
use super::scan::{KeyLine, Scan};
use super::sections::ProxySection;
use super::values;

/// MTUs that the network inside a tunnel can have.
const MTU: std::ops::RangeInclusive<u16> = 576..=65_455;
/// Time between two looks at each address of `CheckAlive` by default, as wireproxy has it.
const CHECK_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The tunnel of a file; `None` with mistakes, which the scan has then.
pub(super) fn tunnel(scan: &mut Scan<'_>, file: &str) -> Option<TunnelPart> {
    let before = scan.errors.len();
    let mut config = match Config::parse(&scan.tunnel_text(), file) {
        Ok(config) => config,
        Err(errors) => {
            let remarks = errors.0.into_iter();
            let remarks: Vec<Remark> = remarks.map(|it| with_section(scan, it)).collect();
            scan.errors.extend(remarks);
            return None;
        }
    };
    let line = line_of(scan, ProxySection::Interface);
    if line == 0 {
        scan.error(
            0,
            "there is no [Interface] section: it has PrivateKey and Address, or WGConfig = FILE above all sections \
             names the file that has it",
        );
        return None;
    }
    let warnings = std::mem::take(&mut config.warnings).into_iter();
    let warnings: Vec<Remark> = warnings.map(|it| with_section(scan, it)).collect();
    scan.warnings.extend(warnings);
    let private_key = private_key(scan, line, config.interface.private_key.as_ref());
    if config.interface.addresses.is_empty() {
        scan.error(
            line,
            "[Interface] has no Address: write the one that the peer has among its AllowedIPs for this end, like \
             Address = 10.0.0.2/32",
        );
    }
    let dns = dns(scan, line, &config);
    let mtu = config.interface.mtu;
    if let Some(mtu) = mtu.filter(|mtu| !MTU.contains(mtu)) {
        let line = key_line(scan, "MTU").unwrap_or(line);
        let text = format!(
            "[Interface] MTU: expected bytes from {} to {}, got {mtu}",
            MTU.start(),
            MTU.end()
        );
        scan.error(line, text);
    }
    let peers = peers(scan, line, &config);
    let (check_alive, check_alive_interval) = check_alive(scan);
    let private_key = private_key.filter(|_| scan.errors.len() == before)?;
    Some(TunnelPart {
        private_key,
        addresses: config.interface.addresses.iter().map(|it| it.ip).collect(),
        dns,
        mtu: mtu.map(usize::from),
        listen_port: config.interface.listen_port.unwrap_or(0),
        peers,
        check_alive,
        check_alive_interval,
    })
}

/// A remark with the section that its line is in.
fn with_section(scan: &Scan<'_>, mut remark: Remark) -> Remark {
    let above = scan.parts.partition_point(|part| part.line <= remark.line);
    if let Some(part) = scan.parts[..above].last() {
        let section = format!("[{}]", part.section.name());
        if !remark.text.contains(&section) {
            remark.text = format!("{section} {}", remark.text);
        }
    }
    remark
}

fn line_of(scan: &Scan<'_>, section: ProxySection) -> usize {
    let mut parts = scan.parts.iter();
    let part = parts.find(|part| part.section == section);
    part.map_or(0, |part| part.line)
}

/// The line of `[Interface]` with a key.
fn key_line(scan: &Scan<'_>, key: &str) -> Option<usize> {
    let parts = scan.parts.iter();
    let mut interfaces = parts.filter(|part| part.section == ProxySection::Interface);
    interfaces.find_map(|part| part.get(key).map(|it| it.line))
}

fn private_key(scan: &mut Scan<'_>, line: usize, key: Option<&Secret>) -> Option<PrivateKey> {
    let Some(key) = key else {
        // One with a mistake has been reported already.
        let mut errors = scan.errors.iter();
        if errors.any(|it| it.text.starts_with("[Interface] PrivateKey")) {
            return None;
        }
        scan.error(
            line,
            "[Interface] has no PrivateKey: write the one whose public key the peer knows (`adit genkey` makes one)",
        );
        return None;
    };
    let key = PrivateKey::from_bytes(key.bytes());
    key.map_err(|error| {
        let line = key_line(scan, "PrivateKey").unwrap_or(line);
        scan.error(line, format!("[Interface] PrivateKey: {error}"));
    })
    .ok()
}

/// DNS servers. Search domains are passed over: a client writes whole names.
fn dns(scan: &mut Scan<'_>, line: usize, config: &Config) -> Vec<IpAddr> {
    let line = key_line(scan, "DNS").unwrap_or(line);
    if !config.interface.dns_search.is_empty() {
        scan.pass_over(
            line,
            "DNS has search domains, which are passed over: clients of a proxy write whole names",
        );
    }
    let mut servers = Vec::new();
    for server in &config.interface.dns {
        match server.parse() {
            Ok(server) => servers.push(server),
            Err(_) => scan.error(
                line,
                format!(
                    "[Interface] DNS: {server} has a scope, which an address inside a tunnel has not: write it without"
                ),
            ),
        }
    }
    servers
}

fn peers(scan: &mut Scan<'_>, interface: usize, config: &Config) -> Vec<PeerPart> {
    let sections = scan.parts.iter();
    let sections = sections.filter(|part| part.section == ProxySection::Peer);
    let lines: Vec<usize> = sections.map(|part| part.line).collect();
    if lines.is_empty() {
        scan.error(
            interface,
            "there is no [Peer] section: the other end of the tunnel is one, with its PublicKey and Endpoint",
        );
    }
    let own = config
        .interface
        .private_key
        .as_ref()
        .map(Secret::public_key);
    let mut first_of = HashMap::new();
    let mut owners: HashMap<IpBlock, usize> = HashMap::new();
    let mut peers: Vec<PeerPart> = Vec::with_capacity(lines.len());
    for (at, (section, line)) in config.peers.iter().zip(lines).enumerate() {
        if let Some(first) = first_of.insert(section.public_key, line) {
            let twice = format!(
                "[Peer] PublicKey: the same peer stands on line {first}: make one section of both"
            );
            scan.error(line, twice);
        }
        if own == Some(section.public_key) {
            scan.error(
                line,
                "[Peer] PublicKey is the one of this tunnel itself: write that of the other end",
            );
        }
        let secret = section.preshared_key.as_ref();
        if secret.is_some_and(|secret| secret.bytes() == &section.public_key.0) {
            scan.error(
                line,
                "[Peer] PublicKey is the PresharedKey, which is secret: write the public key of the peer",
            );
        }
        if section.allowance != Allowance::default() {
            scan.pass_over(
                line,
                "the comments Limit, Quota and Expires of a peer are passed over: a proxy has one for all",
            );
        }
        let (peer, is_default) = peer(scan, line, section);
        for block in &peer.allowed_ips {
            let Some(before) = owners.insert(*block, at).filter(|before| *before != at) else {
                continue;
            };
            // The last one counts, as in WireGuard. Its reader has warned where both are written out.
            if is_default {
                let moved = format!(
                    "[Peer] has no AllowedIPs, so that {block} moves to this peer from one above: write what is behind \
                     each"
                );
                scan.warn(line, moved);
            }
            if let Some(before) = peers.get_mut(before) {
                before.allowed_ips.retain(|it| it != block);
            }
        }
        peers.push(peer);
    }
    peers
}

/// A peer, and whether all addresses are behind it because the file says nothing.
fn peer(scan: &mut Scan<'_>, line: usize, section: &PeerSection) -> (PeerPart, bool) {
    let mut allowed_ips = Vec::new();
    for change in &section.allowed_ips {
        match change {
            AllowedIpChange::Add(block) => {
                allowed_ips.extend(IpBlock::new(block.addr(), block.prefix_len()));
            }
            AllowedIpChange::Remove(_) => scan.error(
                line,
                "[Peer] AllowedIPs: a '-' takes away from what a running tunnel has: write what is behind the peer",
            ),
        }
    }
    let is_default = section.allowed_ips.is_empty();
    if is_default {
        let all = ["0.0.0.0/0", "::/0"].into_iter();
        allowed_ips.extend(all.filter_map(|block| block.parse::<IpBlock>().ok()));
    }
    allowed_ips.dedup();
    let keepalive = section.persistent_keepalive.filter(|seconds| *seconds != 0);
    let preshared = section.preshared_key.as_ref();
    let peer = PeerPart {
        name: section.name.clone(),
        public_key: PublicKey::from_bytes(section.public_key.0),
        preshared_key: preshared.map(|key| PresharedKey::from_bytes(key.bytes())),
        endpoint: section.endpoint.as_ref().map(endpoint),
        keepalive: keepalive.map(|seconds| Duration::from_secs(seconds.into())),
        allowed_ips,
    };
    (peer, is_default)
}

/// An address with a scope stays a name, as the system's resolver reads it.
fn endpoint(endpoint: &HostPort) -> ProxyEndpoint {
    let host = match endpoint.host.parse() {
        Ok(ip) => EndpointHost::Address(ip),
        Err(_) => EndpointHost::Name(endpoint.host.clone()),
    };
    ProxyEndpoint {
        host,
        port: endpoint.port,
    }
}

fn check_alive(scan: &mut Scan<'_>) -> (Vec<IpAddr>, Duration) {
    let mut found = Vec::new();
    let mut interval = None;
    let mut wrong = Vec::new();
    let parts = scan.parts.iter();
    let interfaces = parts.filter(|part| part.section == ProxySection::Interface);
    for KeyLine { line, key, value } in interfaces.flat_map(|part| &part.keys) {
        let read = match *key {
            "CheckAlive" => values::addresses(value).map(|mut addresses| {
                found.append(&mut addresses);
            }),
            "CheckAliveInterval" => values::interval(value).map(|time| {
                interval = Some((*line, time));
            }),
            _ => Ok(()),
        };
        if let Err(error) = read {
            wrong.push((*line, format!("[Interface] {key}: {error}")));
        }
    }
    if let (Some((line, _)), true) = (interval, found.is_empty() && wrong.is_empty()) {
        let text = "[Interface] CheckAliveInterval says how often CheckAlive is looked at, which is missing: write \
                    CheckAlive = and an address inside the tunnel";
        wrong.push((line, text.to_owned()));
    }
    for (line, text) in wrong {
        scan.error(line, text);
    }
    found.sort_unstable();
    found.dedup();
    (
        found,
        interval.map_or(CHECK_ALIVE_INTERVAL, |(_, time)| time),
    )
}
