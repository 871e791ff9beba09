//! `adit up --dry-run`: what `adit up` would do, as a script of `ip`, `wg` and `nft`. It changes
//! nothing, and needs the right to read the file.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use adit_ctl::config::{self, InterfaceSection, Table};
use adit_netlink::{Family, Route};

use super::Quick;
use super::endpoint;
use super::routing::{self, Planned};
use crate::cli::{self, UpArgs};
use crate::failure::{Result, say};

const PROTOCOL: u8 = Route::PROTOCOL;

pub(super) fn print(args: &UpArgs) -> Result<()> {
    let (quick, netlink) = Quick::prepare(args)?;
    let InterfaceSection {
        addresses, table, ..
    } = &quick.config.interface;
    let blocks: Vec<_> = quick.blocks().collect();
    let planned = routing::plan(addresses, &blocks, table)?;
    let is_default = |planned: &Planned| matches!(planned, Planned::Default(_));
    let stated = quick.config.interface.fwmark.filter(|mark| *mark != 0);
    let mark = match (stated, planned.iter().any(is_default)) {
        (Some(mark), _) => mark,
        (None, true) => routing::free_table(&netlink, &quick.orphans(&netlink))?,
        (None, false) => 0,
    };
    let known: Vec<SocketAddr> = (quick.config.peers.iter())
        .filter_map(|peer| {
            let endpoint = peer.endpoint.as_ref()?;
            let look_up = || endpoint::resolve(&endpoint.to_string());
            endpoint.numeric().or_else(|| {
                let found = look_up().inspect_err(|unknown| say!("# {unknown}"));
                found.ok()
            })
        })
        .collect();
    let automatic = || routing::automatic_mtu(&netlink, &known, mark);
    let mtu = (quick.config.interface.mtu).map_or_else(automatic, u32::from);
    quick.check_mtu(mtu, blocks.iter().copied())?;
    cli::print(quick.script(&planned, mark, mtu).as_bytes())
}

/// A word of the shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn version(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

impl Quick {
    /// In the order in which `up` does it.
    fn script(&self, planned: &[Planned], mark: u32, mtu: u32) -> String {
        let Self { name, .. } = self;
        let interface = &self.config.interface;
        let file = self
            .path
            .canonicalize()
            .unwrap_or_else(|_| self.path.clone());
        let mut out = String::new();
        let out = &mut out;
        let hooks = |out: &mut String, hooks: &[String]| {
            for hook in hooks {
                _ = writeln!(out, "{}", config::hook(hook, name));
            }
        };
        _ = writeln!(out, "adit run {name}");
        hooks(out, &interface.pre_up);
        let path = quote(&file.display().to_string());
        _ = writeln!(out, "adit strip {path} | wg addconf {name} /dev/stdin");
        if self.kept.any() {
            _ = writeln!(out, "# and the keys that are in a file of their own");
        }
        let families: Vec<Family> = (planned.iter())
            .filter_map(|planned| match planned {
                Planned::Default(block) => Some(Family::of(block.addr())),
                Planned::Plain(..) => None,
            })
            .collect();
        if !families.is_empty() && interface.fwmark.unwrap_or(0) == 0 {
            _ = writeln!(out, "wg set {name} fwmark {mark}");
        }
        for family in &families {
            let version = version(*family);
            let all = if version == '4' { "0.0.0.0/0" } else { "::/0" };
            let metric = u32::MAX;
            _ = writeln!(
                out,
                "ip -{version} route add unreachable {all} table {mark} metric {metric} proto {PROTOCOL}"
            );
        }
        for address in &interface.addresses {
            _ = writeln!(out, "ip address add {address} dev {name}");
        }
        out.push_str(&self.forwarding_script());
        _ = writeln!(out, "ip link set mtu {mtu} up dev {name}");
        if interface.has_dns() {
            let servers = interface.dns.iter().map(|ip| format!("nameserver {ip}\\n"));
            let mut lines: String = servers.collect();
            if !interface.dns_search.is_empty() {
                _ = write!(lines, "search {}\\n", interface.dns_search.join(" "));
            }
            let only = if interface.dns.is_empty() { "" } else { " -x" };
            _ = writeln!(
                out,
                "printf {} | resolvconf -a {name} -m 0{only}",
                quote(&lines)
            );
        }
        for planned in planned {
            match planned {
                Planned::Plain(block, table) => {
                    let version = version(Family::of(block.addr()));
                    let table = match interface.table {
                        Table::Auto => String::new(),
                        _ => format!(" table {table}"),
                    };
                    _ = writeln!(
                        out,
                        "ip -{version} route add {block} dev {name}{table} proto {PROTOCOL}"
                    );
                }
                Planned::Default(block) => self.default_route(out, Family::of(block.addr()), mark),
            }
        }
        hooks(out, &interface.post_up);
        std::mem::take(out)
    }

    /// The policy routing and the firewall of a default route.
    fn default_route(&self, out: &mut String, family: Family, mark: u32) {
        let Self { name, .. } = self;
        let version = version(family);
        let (all, ip) = match family {
            Family::V4 => ("0.0.0.0/0", "ip"),
            Family::V6 => ("::/0", "ip6"),
        };
        _ = write!(
            out,
            "ip -{version} route add {all} dev {name} table {mark} proto {PROTOCOL}\n\
             ip -{version} rule add not fwmark {mark} table {mark}\n\
             ip -{version} rule add table main suppress_prefixlength 0\n"
        );
        if family == Family::V4 {
            _ = writeln!(out, "sysctl -q net.ipv4.conf.all.src_valid_mark=1");
        }
        let of_family = |ip: &IpAddr| Family::of(*ip) == family;
        let own = self
            .config
            .interface
            .addresses
            .iter()
            .map(|address| address.ip);
        let drops: String = (own.filter(of_family))
            .map(|addr| {
                format!(
                    "    iifname != \"{name}\" {ip} daddr {addr} fib saddr type != local drop\n"
                )
            })
            .collect();
        _ = write!(
            out,
            "nft -f - << END\n\
             table {ip} wg-quick-{name} {{\n  \
               chain preraw {{\n    type filter hook prerouting priority raw\n{drops}  }}\n  \
               chain premangle {{\n    type filter hook prerouting priority mangle\n    \
                 meta l4proto udp meta mark set ct mark\n  }}\n  \
               chain postmangle {{\n    type filter hook postrouting priority mangle\n    \
                 meta l4proto udp meta mark {mark} ct mark set meta mark\n  }}\n\
             }}\nEND\n"
        );
    }
}
