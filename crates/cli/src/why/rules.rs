//! What `adit agent --rules` lets a peer open.

use adit_ctl::status::PeerJson;
use adit_proto::config::Cidr;

use super::blocks::blocks;
use super::firewall::nft;

/// The table of an agent for an interface.
#[derive(Clone, Debug)]
pub(super) struct AgentTable {
    name: String,
    /// Packets of all peers that its rules have dropped.
    dropped: Option<u64>,
}

/// A peer that may open only what its record allows.
#[derive(Clone, Debug)]
pub(crate) struct Limited {
    pub(crate) table: String,
    /// Packets of all limited peers that were dropped.
    pub(crate) dropped: Option<u64>,
}

impl AgentTable {
    /// `None` if there is none, or nft(8) cannot be asked.
    pub(super) fn look(interface: &str) -> Option<Self> {
        let name = format!("inet adit-rules-{interface}");
        // Without its elements, which may be many.
        let rules = nft(&["-t", "list", "table", &name])?;
        Some(Self {
            dropped: dropped(&rules),
            name,
        })
    }

    /// Whether it limits the peer: all blocks of a peer are limited, or none.
    pub(super) fn limits(&self, peer: &PeerJson) -> Option<Limited> {
        let of_family = |v6: bool| blocks(peer).find(|block| block.addr().is_ipv6() == v6);
        let has = |block: Cidr| {
            let (set, ip) = match block.addr() {
                ip if ip.is_ipv6() => ("limited6", ip),
                ip => ("limited4", ip),
            };
            let element = format!("{{ {ip} }}");
            nft(&["get", "element", &self.name, set, &element]).is_some()
        };
        let is_limited = [false, true].into_iter().filter_map(of_family).any(has);
        is_limited.then(|| Limited {
            table: self.name.clone(),
            dropped: self.dropped,
        })
    }
}

/// The sum of the counters of rules that drop.
fn dropped(rules: &str) -> Option<u64> {
    let counts = rules.lines().map(str::trim).filter_map(|line| {
        let counter = line.strip_prefix("counter packets ")?;
        counter
            .strip_suffix(" drop")?
            .split(' ')
            .next()?
            .parse()
            .ok()
    });
    counts.reduce(|sum: u64, count| sum.saturating_add(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rules_of_an_agent_dropped_is_counted() {
        let table = "table inet adit-rules-wg0 {
            chain input {
                type filter hook input priority filter; policy accept;
                iifname != \"wg0\" accept
                counter packets 3 bytes 180 drop
            }
            chain forward {
                type filter hook forward priority filter; policy accept;
                ct direction reply accept
                counter packets 4 bytes 240 drop
            }
        }";
        assert_eq!(dropped(table), Some(7));
        assert_eq!(dropped("table inet adit-rules-wg0 {\n}"), None);
    }
}
