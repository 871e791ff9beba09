//! The kernel's reverse path filter of IPv4: it drops what arrives at a device by which this host
//! would not send to its source.

use std::fs::read_to_string;

/// Devices with a strict filter, and what it dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReversePath {
    /// By which this host does not send to the endpoint.
    pub(crate) strict: Vec<String>,
    /// Packets, of all devices, before anything was tried and since.
    pub(crate) dropped: [u64; 2],
}

impl ReversePath {
    pub(crate) fn look<'a>(others: impl Iterator<Item = &'a str>) -> Self {
        let strict = others.filter(|device| most(device, "rp_filter") == 1);
        Self {
            strict: strict.map(str::to_owned).collect(),
            dropped: [dropped(); 2],
        }
    }

    pub(crate) fn look_again(&mut self) {
        self.dropped[1] = dropped();
    }
}

/// Whether the filter of a device looks up the way back without the firewall mark that our datagrams
/// have.
pub(crate) fn drops_marked(device: &str) -> bool {
    most(device, "rp_filter") == 1 && most(device, "src_valid_mark") == 0
}

/// What counts of a setting of all devices, and of this one.
fn most(device: &str, name: &str) -> u32 {
    let setting = |device: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{device}/{name}");
        let text = read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0_u32)
    };
    setting("all").max(setting(device))
}

fn dropped() -> u64 {
    counter(&read_to_string("/proc/thread-self/net/netstat").unwrap_or_default())
}

fn counter(netstat: &str) -> u64 {
    let mut lines = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let names = lines.next().unwrap_or_default().split(' ');
    let values = lines.next().unwrap_or_default().split(' ');
    let mut fields = names.zip(values);
    let field = fields.find(|(name, _)| *name == "IPReversePathFilter");
    field.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_among_the_others() {
        let text = "TcpExt: SyncookiesSent IPReversePathFilter TWKilled\nTcpExt: 1 22 3\nIpExt: InMcastPkts\nIpExt: 4\n";
        assert_eq!(counter(text), 22);
        assert_eq!(counter("TcpExt: SyncookiesSent\nTcpExt: 1\n"), 0);
        assert_eq!(counter(""), 0);
    }
}
