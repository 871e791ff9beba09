//! The process that sets the packet filter's elements: `adit --agent-rules INTERFACE`.
//!
//! ```text
//! anew                                                       what is there does not count
//! - limited 10.66.0.3/32
//! + allowed 10.66.0.2/32 0.0.0.0/0 6-6 443-443
//! commit here
//! ```
//!
//! It answers `commit` with a line: `ok`, or `error` and why. With `here`, the interface must be in the network
//! namespace of this process. It makes the table again when another program deletes it, as `nft flush ruleset`
//! does. It ends with the process at the other end of its standard input, and leaves the table.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};

use adit_fleet::{FlowRange, RuleElement};
use adit_netlink::{FilterElement, FilterMonitor, PeerFilter};
use adit_proto::config::Cidr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;

use crate::failure::{Context, Failure, Result, say};

/// The argument that starts it.
pub(crate) const ARGUMENT: &str = "--agent-rules";
/// Keep all rights.
pub(super) const WITHOUT_SANDBOX: &str = "--no-sandbox";
/// Longest line.
const MAX_LINE: usize = 256;
/// Most elements of an interface.
const MAX_ELEMENTS: usize = 1 << 20;
/// How long after a table could not be made again to try it once more.
const AGAIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Does what it is told until standard input is closed.
pub(crate) fn serve(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let missing = || Failure::Mistake("--agent-rules is for `adit agent` alone".into());
    let interface = arguments.next().ok_or_else(missing)?;
    let interface = interface.into_string().map_err(|_| missing())?;
    let _ = rustix::thread::set_name(c"adit-rules");
    let failed = || "cannot take requests for the packet filter".to_owned();
    let stdin = File::from(adit_io::duplicate(0).context(failed)?);
    let mut table = RuleTable {
        filter: PeerFilter::new(&interface),
        interface,
        monitor: FilterMonitor::open(),
        elements: BTreeSet::new(),
        delete: Vec::new(),
        add: Vec::new(),
        is_known: false,
        is_missing: false,
    };
    if !arguments.any(|it| it == WITHOUT_SANDBOX) {
        adit_sandbox::begin_rules().context(|| "cannot begin the sandbox".into())?;
    }
    table.work(stdin).context(failed)
}

/// The table of an interface, and what is to become of it.
struct RuleTable {
    interface: String,
    filter: PeerFilter,
    monitor: std::io::Result<FilterMonitor>,
    /// What it has, since it was made.
    elements: BTreeSet<RuleElement>,
    delete: Vec<RuleElement>,
    add: Vec<RuleElement>,
    /// The kernel has these elements and no others.
    is_known: bool,
    /// The table is gone, and could not be made again.
    is_missing: bool,
}

impl RuleTable {
    fn work(&mut self, mut stdin: File) -> std::io::Result<()> {
        let mut rest = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(&stdin, PollFlags::IN)];
            if let Ok(monitor) = &self.monitor {
                fds.push(PollFd::new(monitor, PollFlags::IN));
            }
            let patience = self.is_missing.then_some(&AGAIN);
            // Errors are of signals.
            let _ = poll(&mut fds, patience);
            let is_asked = !fds[0].revents().is_empty();
            let has_changed = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            if has_changed || self.is_missing {
                self.look();
            }
            if !is_asked {
                continue;
            }
            let mut piece = [0; 16 << 10];
            let count = match stdin.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                count => count?,
            };
            if count == 0 {
                return Ok(());
            }
            rest.extend_from_slice(&piece[..count]);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                self.line(&line[..end])?;
            }
            if rest.len() > MAX_LINE {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> std::io::Result<()> {
        let line = std::str::from_utf8(line).map_err(std::io::Error::other)?;
        let (word, text) = line.split_once(' ').unwrap_or((line, ""));
        let element = || text.parse().map_err(|()| ErrorKind::InvalidData);
        match word {
            "anew" => self.is_known = false,
            "-" => self.delete.push(element()?),
            "+" if self.add.len() < MAX_ELEMENTS => self.add.push(element()?),
            "commit" => {
                let answer = match self.commit(text == "here") {
                    Ok(()) => "ok\n".to_owned(),
                    Err(why) => format!("error {}\n", why.replace('\n', " ")),
                };
                let mut stdout = std::io::stdout();
                stdout.write_all(answer.as_bytes())?;
                stdout.flush()?;
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn commit(&mut self, here: bool) -> std::result::Result<(), String> {
        let (delete, add) = (
            std::mem::take(&mut self.delete),
            std::mem::take(&mut self.add),
        );
        let monitor = self.monitor.as_ref().map_err(|error| {
            let why = hint(error.kind(), &self.interface);
            format!("cannot ask the packet filter: {error}{why}")
        })?;
        if here && let Err(error) = name_to_index(monitor, &self.interface) {
            return Err(format!(
                "{} is not in the network namespace of the agent, where its packets would be filtered: {error}",
                self.interface
            ));
        }
        let mut elements = match self.is_known {
            true => self.elements.clone(),
            false => BTreeSet::new(),
        };
        for element in &delete {
            elements.remove(element);
        }
        elements.extend(&add);
        if elements.len() > MAX_ELEMENTS {
            return Err(format!("more than {MAX_ELEMENTS} elements"));
        }
        let made = if elements.is_empty() {
            self.filter.remove()
        } else if self.is_known && !self.elements.is_empty() {
            let changed = self.filter.change(&encoded(&delete), &encoded(&add));
            // Another program may have changed it.
            changed.or_else(|_| self.filter.replace(&encoded(&elements)))
        } else {
            self.filter.replace(&encoded(&elements))
        };
        self.is_known = made.is_ok();
        made.map_err(|error| format!("{error}{}", hint(error.kind(), &self.interface)))?;
        self.elements = elements;
        self.is_missing = false;
        Ok(())
    }

    /// Makes the table again if another program has deleted it.
    fn look(&mut self) {
        if let Ok(monitor) = &self.monitor {
            monitor.drain();
        }
        if self.elements.is_empty() || self.filter.is_there().unwrap_or(true) {
            return;
        }
        let made = self.filter.replace(&encoded(&self.elements));
        let (interface, was_missing) = (&self.interface, self.is_missing);
        self.is_missing = made.is_err();
        match made {
            Ok(()) => say!(
                "adit: {interface}: another program deleted the rules of peers: they are made again"
            ),
            Err(_) if was_missing => {}
            Err(error) => say!("adit: {interface}: the rules of peers are gone: {error}"),
        }
    }
}

/// What to do about an error of the kernel.
fn hint(kind: ErrorKind, interface: &str) -> String {
    match kind {
        ErrorKind::PermissionDenied => {
            format!(": --rules needs CAP_NET_ADMIN in the network namespace of {interface}")
        }
        // An unknown part of netfilter is an invalid argument.
        ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::NotFound => {
            ": --rules needs a kernel with nf_tables, its sets and connection tracking, and AF_NETLINK".into()
        }
        _ => String::new(),
    }
}

fn encoded<'a>(elements: impl IntoIterator<Item = &'a RuleElement>) -> Vec<FilterElement> {
    let of = |block: &Cidr| (block.addr(), block.prefix_len());
    let encoded = elements.into_iter().map(|element| match element {
        RuleElement::Limited(from) => FilterElement::Limited(from.addr(), from.prefix_len()),
        RuleElement::Allowed(from, flows) => {
            let FlowRange {
                to,
                protocols,
                ports,
            } = flows;
            FilterElement::Allowed(of(from), of(to), *protocols, *ports)
        }
    });
    encoded.collect()
}
