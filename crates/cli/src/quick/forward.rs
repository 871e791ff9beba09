//! Forwarding for peers, as the comment `# Forward = …` of a file has it.
//!
//! 1. Look what is there: other tunnels that forward, and what settings were before the first one.
//! 2. Set tables of the packet filter, in one transaction for each family: the tunnel's own, which says
//!    what its peers reach, and the common one of all tunnels.
//! 3. Change settings, so that the kernel forwards.
//!
//! What the settings let the kernel forward besides, the common table drops. It also has the values
//! that the settings had before: they are the names of empty chains, so that they come and go with
//! the rules, also when a process is killed. The last tunnel that goes restores them.
//!
//! IPv4 forwards by the setting of the interface that a packet comes by. `net.ipv4.ip_forward`, which
//! changes all of them, stays as it is: where another program sets it, the host is to be a router, and
//! nothing is restored. IPv6 has one setting for all.

mod found;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};

use adit_ctl::config::Forward;
use adit_netlink::nft::{self, NftTable};
use adit_netlink::{Family, netns};
use rustix::fs::{FlockOperation, flock};

use super::Quick;
use crate::failure::{Context, Failure, Result, say};
use found::{COMMON, Found, OWN, Wanted};
pub(super) use rules::PRIVATE;
use rules::{common, own_table};

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;

const FORWARDS_V4: &str = "net/ipv4/ip_forward";
const FORWARDS_V6: &str = "net/ipv6/conf/all/forwarding";

/// The steps in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    tables: Vec<NftTable>,
    /// A table that goes.
    gone: Option<&'static str>,
    /// In this order.
    settings: Vec<(String, &'static str)>,
}

/// The value that a setting is changed to.
fn value(setting: &str) -> &'static str {
    match setting.ends_with("/accept_ra") {
        // A host that forwards ignores router advertisements, and so loses its own route, without this.
        true => "2",
        false => "1",
    }
}

/// The settings of other interfaces that have to be changed, and what they are.
fn missing(
    family: Family,
    wanted: &Wanted<'_>,
    found: &Found,
    interfaces: &[String],
    read: &dyn Fn(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    let is = |setting: &str, value: &str| read(setting).as_deref() == Some(value);
    let is_other = |name: &&String| {
        let name = name.as_str();
        name != "lo" && name != wanted.interface && !found.tunnels.contains(name)
    };
    let others = interfaces.iter().filter(is_other);
    let mut settings: Vec<(String, &str)> = Vec::new();
    match family {
        // Where it is on for all, each has the value that was chosen for it.
        Family::V4 if wanted.reach > Forward::Peers && is(FORWARDS_V4, "0") => {
            let others = others.filter(|name| !matches!(name.as_str(), "all" | "default"));
            settings.extend(others.map(|name| (format!("net/ipv4/conf/{name}/forwarding"), "0")));
        }
        Family::V6 if is(FORWARDS_V6, "0") => {
            let others = others.filter(|name| name.as_str() != "all");
            settings.extend(others.map(|name| (format!("net/ipv6/conf/{name}/accept_ra"), "1")));
            settings.push((FORWARDS_V6.to_owned(), "0"));
        }
        _ => {}
    }
    settings.retain(|(setting, value)| is(setting, value));
    settings
        .into_iter()
        .map(|(setting, value)| (setting, value.to_owned()))
        .collect()
}

/// Settings in the order in which they are changed: IPv6 looks at the others when it begins to forward.
fn in_order(settings: &BTreeMap<String, String>) -> Vec<&String> {
    let mut order: Vec<&String> = settings.keys().collect();
    order.sort_by_key(|setting| !setting.ends_with("/accept_ra"));
    order
}

fn plan(
    family: Family,
    wanted: &Wanted<'_>,
    found: &Found,
    interfaces: &[String],
    read: &dyn Fn(&str) -> Option<String>,
) -> Plan {
    let mut after = found.clone();
    if family == Family::V4 && read(FORWARDS_V4).as_deref() == Some("1") {
        // The host is to be a router, perhaps since: all of it is another program's.
        after.before.clear();
    }
    for (setting, value) in missing(family, wanted, found, interfaces, read) {
        after.before.entry(setting).or_insert(value);
    }
    after.tunnels.insert(wanted.interface.to_owned());
    let order = in_order(&after.before).into_iter().cloned();
    let own = format!("net/ipv4/conf/{}/forwarding", wanted.interface);
    let own = (family == Family::V4).then_some(own);
    let mut settings: Vec<_> = (order.chain(own))
        .map(|setting| (setting.clone(), value(&setting)))
        .collect();
    // Where it cannot be written, it may be right.
    settings.retain(|(setting, value)| read(setting).as_deref() != Some(*value));
    let common = common(family, &after);
    let is_left = common.is_none() && !found.before.is_empty();
    Plan {
        gone: is_left.then_some(COMMON),
        tables: common
            .into_iter()
            .chain([own_table(family, wanted)])
            .collect(),
        settings,
    }
}

/// One command at a time changes what tunnels of a network namespace have in common. It ends with the
/// value.
fn lock() -> io::Result<File> {
    let namespace = File::open("/proc/thread-self/ns/net")?;
    loop {
        match flock(&namespace, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result.map(|()| namespace)?),
        }
    }
}

/// The interfaces that have settings.
fn interfaces(family: Family) -> Vec<String> {
    let dir = match family {
        Family::V4 => "/proc/sys/net/ipv4/conf",
        Family::V6 => "/proc/sys/net/ipv6/conf",
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn read(setting: &str) -> Option<String> {
    netns::sysctl(setting).ok()
}

/// Undoes what was done for an interface, perhaps before its process was killed.
pub(super) fn unset(interface: &str) {
    for family in Family::BOTH {
        unset_in(family, interface);
    }
}

fn unset_in(family: Family, interface: &str) {
    let report = |error: io::Error| say!("adit: cannot end the forwarding of {interface}: {error}");
    let has_table = || -> io::Result<Option<Found>> {
        let found = Found::look(family)?;
        Ok(found.tunnels.contains(interface).then_some(found))
    };
    match has_table() {
        Ok(None) => return,
        Ok(Some(_)) => {}
        Err(error) => return report(error),
    }
    let locked = lock();
    let (_locked, found) = match (locked, has_table()) {
        (Ok(locked), Ok(Some(found))) => (locked, found),
        (_, Ok(None)) => return,
        (Err(error), _) | (_, Err(error)) => return report(error),
    };
    let own = format!("{OWN}{interface}");
    let mut rest = found;
    rest.tunnels.remove(interface);
    let removed = match rest.tunnels.is_empty() {
        true => {
            restore(family, &rest).into_iter().for_each(report);
            nft::replace(family, &[], &[&own, COMMON])
        }
        false => {
            let tables: Vec<NftTable> = common(family, &rest).into_iter().collect();
            nft::replace(family, &tables, &[&own])
        }
    };
    if let Err(error) = removed {
        report(error.into());
    }
}

/// Gives settings the values that they had. Returns what cannot be done.
fn restore(family: Family, found: &Found) -> Vec<io::Error> {
    // Another program has the host forward since, all of it.
    if family == Family::V4 && read(FORWARDS_V4).as_deref() == Some("1") {
        return Vec::new();
    }
    let settings = in_order(&found.before).into_iter().rev();
    let write = |setting: &String| match netns::set_sysctl(setting, &found.before[setting]) {
        // Its interface has gone.
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        result => result.err(),
    };
    settings.filter_map(write).collect()
}

impl Quick {
    fn wanted(&self) -> Option<Wanted<'_>> {
        Some(Wanted {
            interface: &self.name,
            reach: self.config.interface.forward?,
            addresses: &self.config.interface.addresses,
        })
    }

    /// The families in which peers have addresses.
    fn forwarded(&self) -> impl Iterator<Item = Family> + '_ {
        let without_v6 = self.without_v6().is_some();
        Family::BOTH.into_iter().filter(move |family| {
            let addresses = &self.config.interface.addresses;
            let has_address = addresses.iter().any(|it| Family::of(it.ip) == *family);
            has_address && (*family == Family::V4 || !without_v6)
        })
    }

    /// Has this host forward for the peers what the file says, and nothing else. The interface is
    /// there; it need not be up.
    pub(super) fn set_forwarding(&self) -> Result<()> {
        let Some(wanted) = self.wanted() else {
            return Ok(());
        };
        let failed = || format!("cannot forward for the peers of {}", self.name);
        let _locked = lock().context(failed)?;
        for family in self.forwarded() {
            let found = Found::look(family).context(failed)?;
            let plan = plan(family, &wanted, &found, &interfaces(family), &read);
            self.warn_of_obstacles(family, &found);
            let gone: Vec<&str> = plan.gone.into_iter().collect();
            let set = nft::replace(family, &plan.tables, &gone);
            set.map_err(|error| self.explain_refusal(error))?;
            for (setting, value) in &plan.settings {
                self.check_interrupted()?;
                let set = netns::set_sysctl(setting, value);
                set.map_err(|error| self.explain_setting(family, error))?;
            }
        }
        Ok(())
    }

    /// What another table drops is dropped, whatever ours accept: Docker's and ufw's do.
    fn warn_of_obstacles(&self, family: Family, found: &Found) {
        let (name, ip, iptables) = match family {
            Family::V4 => (&self.name, "ip", "iptables"),
            Family::V6 => (&self.name, "ip6", "ip6tables"),
        };
        for (table, chain) in &found.obstacles {
            say!(
                "Warning: {name}: the chain {chain} of nftables' table {ip} {table} drops what is forwarded unless a rule of \
                 it accepts that; for {name} these do: `{iptables} -I FORWARD -i {name} -j ACCEPT` and `{iptables} -I \
                 FORWARD -o {name} -j ACCEPT`, or `ufw route allow in on {name}`"
            );
        }
    }

    fn explain_refusal(&self, error: adit_netlink::Error) -> Failure {
        let name = format!("cannot forward for the peers of {}", self.name);
        match error.kind() {
            ErrorKind::Unsupported | ErrorKind::NotFound => Failure::State(format!(
                "{name}: {error}; the kernel's nf_tables needs connection tracking and NAT (modules nft_ct, nft_masq, \
                 nft_chain_nat), or take the line `# Forward` out of {} and forward by hooks",
                self.path.display()
            )),
            _ => Failure::Operation {
                name,
                error: error.into(),
            },
        }
    }

    fn explain_setting(&self, family: Family, error: io::Error) -> Failure {
        let setting = match family {
            Family::V4 => FORWARDS_V4,
            Family::V6 => FORWARDS_V6,
        };
        let setting = setting.replace('/', ".");
        Failure::Operation {
            name: format!(
                "cannot forward for the peers of {} (a container may need the option `--sysctl {setting}=1`)",
                self.name
            ),
            error: error.into(),
        }
    }

    /// Brings the forwarding to what the file says now.
    pub(super) fn sync_forwarding(&self) -> Result<()> {
        let wanted: Vec<Family> = match self.wanted() {
            Some(_) => self.forwarded().collect(),
            None => Vec::new(),
        };
        for family in Family::BOTH
            .into_iter()
            .filter(|family| !wanted.contains(family))
        {
            unset_in(family, &self.name);
        }
        self.set_forwarding()
    }

    /// The steps of [`Self::set_forwarding`], as a script.
    pub(super) fn forwarding_script(&self) -> String {
        let Some(wanted) = self.wanted() else {
            return String::new();
        };
        let mut out = String::new();
        for family in self.forwarded() {
            // Without rights, those of others are not seen.
            let found = Found::look(family).unwrap_or_default();
            let plan = plan(family, &wanted, &found, &interfaces(family), &read);
            let tables = plan.tables.iter().map(|table| table.script(family));
            out += &format!("nft -f - << 'END'\n{}END\n", tables.collect::<String>());
            for (setting, value) in plan.settings {
                out += &format!("sysctl -qw '{setting}={value}'\n");
            }
        }
        out
    }
}
