//! The report for people, in the style of `wg show`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use super::wg;
use super::{AllowanceJson, EngineJson, InterfaceJson, PeerJson, WaitingJson};
use crate::config;

/// Whether to colour the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Never,
    /// ANSI escape sequences.
    Always,
}

impl Colour {
    /// `WG_COLOR_MODE` (`always`, `never`) decides, then `NO_COLOR`, then whether the output is a
    /// terminal.
    pub fn choose(mode: Option<&str>, no_color: Option<&str>, terminal: bool) -> Self {
        match mode {
            Some("always") => Self::Always,
            Some("never") => Self::Never,
            _ if no_color.is_some_and(|value| !value.is_empty()) => Self::Never,
            _ if terminal => Self::Always,
            _ => Self::Never,
        }
    }

    /// [`Colour::choose`] for this process and its standard output.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok();
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
        Self::choose(
            var("WG_COLOR_MODE").as_deref(),
            var("NO_COLOR").as_deref(),
            terminal,
        )
    }
}

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const CYAN: &str = "\x1b[36m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// The text for `interface` at `now` (seconds since the Unix epoch). Secret keys that it does not
/// hold are "(hidden)".
pub fn render(interface: &InterfaceJson, now: u64, colour: Colour) -> String {
    let mut page = TextPage {
        text: String::new(),
        colour,
    };
    // Writing to a string cannot fail.
    _ = page.interface(interface, now);
    page.text
}

/// The same without its peers, and without its engine.
pub fn render_interface(interface: &InterfaceJson, colour: Colour) -> String {
    let mut page = TextPage {
        text: String::new(),
        colour,
    };
    _ = page.title_and_settings(interface);
    page.text
}

/// What only Adit tells of the interface, behind an empty line; nothing for others'.
pub fn render_engine(interface: &InterfaceJson, colour: Colour) -> String {
    let mut page = TextPage {
        text: String::new(),
        colour,
    };
    _ = page.engine(interface);
    page.text
}

/// The sum. What another process tells may be more than any counter can have.
fn all(counts: &[u64]) -> u64 {
    counts.iter().copied().fold(0, u64::saturating_add)
}

/// `total / count` with one digit behind the point.
fn mean(total: u64, count: u64) -> String {
    let tenths = (u128::from(total) * 10).checked_div(count.into());
    let tenths = tenths.unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

struct TextPage {
    text: String,
    colour: Colour,
}

impl TextPage {
    fn paint(&self, codes: &str, text: &str) -> String {
        match self.colour {
            Colour::Always => format!("{codes}{text}{RESET}"),
            Colour::Never => text.to_owned(),
        }
    }

    fn title(&mut self, colour: &str, what: &str, name: &str) -> fmt::Result {
        let what = self.paint(&format!("{colour}{BOLD}"), what);
        let name = self.paint(colour, name);
        writeln!(self.text, "{what}: {name}")
    }

    fn line(&mut self, what: &str, value: &str) -> fmt::Result {
        let what = self.paint(BOLD, what);
        writeln!(self.text, "  {what}: {value}")
    }

    fn interface(&mut self, interface: &InterfaceJson, now: u64) -> fmt::Result {
        self.title_and_settings(interface)?;
        let mut peers: Vec<&PeerJson> = interface.peers.iter().collect();
        // As wg does: the peer with the latest handshake comes first.
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.latest_handshake));
        for peer in peers {
            self.peer(peer, now)?;
        }
        // People look for peers first.
        self.engine(interface)
    }

    fn title_and_settings(&mut self, interface: &InterfaceJson) -> fmt::Result {
        self.title(GREEN, "interface", &interface.name)?;
        if let Some(key) = &interface.public_key {
            self.line("public key", key)?;
            let private = interface.private_key.as_deref().unwrap_or("(hidden)");
            self.line("private key", private)?;
        }
        if interface.listen_port != 0 {
            self.line("listening port", &interface.listen_port.to_string())?;
        }
        if interface.fwmark != 0 {
            self.line("fwmark", &format!("{:#x}", interface.fwmark))?;
        }
        Ok(())
    }

    fn engine(&mut self, interface: &InterfaceJson) -> fmt::Result {
        let Some(engine) = &interface.engine else {
            return Ok(());
        };
        self.text.push('\n');
        self.title(GREEN, "engine of", &interface.name)?;
        self.line("aead", &engine.aead)?;
        if let Some(stack) = &engine.stack {
            self.line("stack of the proxy", stack)?;
        }
        let offloads = |force| {
            let mut names: Vec<&str> = Vec::new();
            let wanted = engine.offloads.iter().filter(|(_, on)| **on == force);
            names.extend(wanted.map(|(name, _)| name.as_str()));
            names.join(", ")
        };
        let (on, off) = (offloads(true), offloads(false));
        let missing = match off.as_str() {
            "" => String::new(),
            off => format!(" (off: {off})"),
        };
        let on = if on.is_empty() { "none" } else { &on };
        self.line("offloads", &format!("{on}{missing}"))?;
        let hardware = match engine.tx_udp_segmentation {
            Some(true) => "by the network card",
            Some(false) => "by the kernel",
            None => "unknown",
        };
        self.line("outgoing segmentation", hardware)?;
        match engine.max_shards {
            Some(most) => self.line("shards", &format!("{} of at most {most}", engine.shards))?,
            None if engine.shards > 1 => self.line("shards", &engine.shards.to_string())?,
            None => {}
        }
        if let Some(policy) = &engine.policy {
            self.line("policy", policy)?;
        }
        if let Some(id) = engine.gateway_id {
            self.line("gateway id", &id.to_string())?;
        }
        if !engine.refused.is_empty() {
            let refused = engine.refused.join(", ").replace('_', " ");
            self.line("refused by the kernel", &refused)?;
        }
        self.sandbox(&engine.sandbox)?;
        if engine.ended.iter().any(|process| process == "helper") {
            let why = "the process that has the rights; `adit upgrade` starts it again";
            self.line("ended", why)?;
        }
        for (what, counters) in [
            ("drops", &engine.drops),
            ("icmp errors", &engine.icmp_errors),
            ("handshakes", &engine.handshakes),
        ] {
            self.counters(what, counters)?;
        }
        self.load(engine)
    }

    /// How full batches and trains are, who took them, and what waits.
    fn load(&mut self, engine: &EngineJson) -> fmt::Result {
        let (outbound, inbound) = (&engine.outbound, &engine.inbound);
        for (what, batches, contents, trains) in [
            ("outbound", outbound, "frames", &engine.sent_trains),
            ("inbound", inbound, "datagrams", &engine.received_trains),
        ] {
            let Some(batches) = batches.as_ref().filter(|batches| batches.batches > 0) else {
                continue;
            };
            let count = batches.batches;
            let mut text = format!(
                "{count} batches of {} {contents}",
                mean(batches.contents, count)
            );
            if batches.helped > 0 {
                write!(text, " ({} by workers)", batches.helped)?;
            }
            if let Some(trains) = trains {
                let count = all(&trains.counts);
                let mean = mean(trains.datagrams, count);
                write!(text, ", {count} trains of {mean} datagrams")?;
            }
            self.line(what, &text)?;
        }
        if !engine.lanes.is_empty() {
            let lanes: Vec<String> = engine.lanes.iter().map(u64::to_string).collect();
            self.line("inbound by receive queue", &lanes.join(", "))?;
        }
        let loads = u128::from(all(&engine.lane_loads));
        if loads > 0 {
            let part = |load: &u64| format!("{} %", (u128::from(*load) * 100 + loads / 2) / loads);
            let parts: Vec<String> = engine.lane_loads.iter().map(part).collect();
            self.line("load by receive queue", &parts.join(", "))?;
        }
        let waiting = engine.waiting.iter().flat_map(WaitingJson::named);
        let waiting = waiting.map(|(name, count)| (name.to_owned(), count));
        self.counters("waiting", &waiting.collect())
    }

    /// The parts of the sandbox that are on, and those that are off; older programs tell of none.
    fn sandbox(&mut self, parts: &BTreeMap<String, bool>) -> fmt::Result {
        let names = |state: bool| {
            let names = parts.iter().filter(|(_, on)| **on == state);
            let names: Vec<String> = names.map(|(name, _)| name.replace('-', " ")).collect();
            names.join(", ")
        };
        match (names(true), names(false)) {
            (on, off) if on.is_empty() && off.is_empty() => Ok(()),
            (on, off) if off.is_empty() => self.line("sandbox", &on),
            (on, _) if on.is_empty() => self.line("sandbox", "off"),
            (on, off) => self.line("sandbox", &format!("{on} (off: {off})")),
        }
    }

    /// A line with the counters that are not zero, if there are any.
    fn counters(&mut self, what: &str, counters: &BTreeMap<String, u64>) -> fmt::Result {
        let counted = counters.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<String> = counted
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        if counted.is_empty() {
            return Ok(());
        }
        self.line(what, &counted.join(", "))
    }

    fn peer(&mut self, peer: &PeerJson, now: u64) -> fmt::Result {
        self.text.push('\n');
        self.title(YELLOW, "peer", &peer.public_key)?;
        if let Some(name) = &peer.name {
            self.line("name", name)?;
        }
        if let Some(state) = peer.state.as_deref().filter(|state| *state != "unknown") {
            self.line("state", state)?;
        }
        if peer.has_preshared_key {
            let key = peer.preshared_key.as_deref().unwrap_or("(hidden)");
            self.line("preshared key", key)?;
        }
        if peer.endpoint.is_some() {
            self.line("endpoint", &wg::EndpointOf(peer).to_string())?;
        }
        let slash = self.paint(CYAN, "/");
        let blocks: Vec<String> = (peer.allowed_ips.iter())
            .map(|block| wg::allowed_ip(block).replace('/', &slash))
            .collect();
        let blocks = match blocks.is_empty() {
            true => "(none)".to_owned(),
            false => blocks.join(", "),
        };
        self.line("allowed ips", &blocks)?;
        if let Some(at) = peer.latest_handshake {
            let ago = match now.checked_sub(at) {
                Some(0) => "Now".to_owned(),
                Some(seconds) => format!("{} ago", self.duration(seconds)),
                None => {
                    let warning = "System clock wound backward; connection problems may ensue.";
                    format!("({})", self.paint(RED, warning))
                }
            };
            self.line("latest handshake", &ago)?;
        }
        self.handshakes(peer, now)?;
        if let Some(mtu) = peer.path_mtu {
            self.line("path mtu", &format!("{mtu} bytes"))?;
        }
        if let Some(lane) = peer.lane {
            self.line("receive queue", &lane.to_string())?;
        }
        if let Some(allowance) = &peer.allowance {
            self.allowance(allowance, now)?;
        }
        if (peer.transfer_rx, peer.transfer_tx) != (0, 0) {
            let received = self.bytes(peer.transfer_rx);
            let sent = self.bytes(peer.transfer_tx);
            self.line("transfer", &format!("{received} received, {sent} sent"))?;
        }
        self.counters("drops", &peer.drops)?;
        if peer.persistent_keepalive != 0 {
            let every = self.duration(peer.persistent_keepalive.into());
            self.line("persistent keepalive", &format!("every {every}"))?;
        }
        Ok(())
    }

    /// Lines about handshakes that fail, if any do.
    fn handshakes(&mut self, peer: &PeerJson, now: u64) -> fmt::Result {
        let ago = |page: &Self, at: u64| match now.saturating_sub(at) {
            0 => "now".to_owned(),
            seconds => format!("{} ago", page.duration(seconds)),
        };
        let unanswered = peer.unanswered.unwrap_or(0);
        if let (Some(at), 1..) = (peer.last_attempt, unanswered) {
            let ago = ago(self, at);
            self.line("latest attempt", &format!("{ago}, {unanswered} unanswered"))?;
        }
        let failure = peer.last_failure.as_ref();
        // What failed before the latest handshake is history.
        if let Some(failure) = failure.filter(|failure| Some(failure.at) > peer.latest_handshake) {
            let reason = failure.reason.replace('_', " ");
            let ago = ago(self, failure.at);
            self.line("latest failure", &format!("{reason}, {ago}"))?;
        }
        Ok(())
    }

    /// What it may do, a line for each term.
    fn allowance(&mut self, of: &AllowanceJson, now: u64) -> fmt::Result {
        let rate = |bits: Option<u64>| match bits {
            Some(bits) => format!("{}bit/s", config::rate_text(Some(bits / 8))),
            None => "no limit".to_owned(),
        };
        if of.to_peer_bits.is_some() || of.from_peer_bits.is_some() {
            let (to, from) = (rate(of.to_peer_bits), rate(of.from_peer_bits));
            self.line("limit", &format!("{to} to the peer, {from} from it"))?;
        }
        if let Some(quota) = of.quota_bytes {
            let (used, quota) = (self.bytes(of.used_bytes), self.bytes(quota));
            let used = format!("{used} of {quota} used");
            let over = of.access == "over_quota";
            let used = if over { self.paint(RED, &used) } else { used };
            self.line("quota", &used)?;
        }
        if let Some(at) = of.expires {
            let date = config::date_text(Duration::from_secs(at));
            let text = match at.checked_sub(now) {
                Some(left) if left > 0 => format!("{date}, in {}", self.duration(left)),
                _ => self.paint(RED, &format!("{date}, which is over")),
            };
            self.line("expires", &text)?;
        }
        Ok(())
    }

    /// `1 hour, 1 minute, 3 seconds`.
    fn duration(&self, mut seconds: u64) -> String {
        let units = [
            (365 * 86_400, "year"),
            (86_400, "day"),
            (3_600, "hour"),
            (60, "minute"),
            (1, "second"),
        ];
        let mut parts = Vec::new();
        for (unit, name) in units {
            let count = seconds / unit;
            seconds %= unit;
            if count > 0 {
                let plural = if count == 1 { "" } else { "s" };
                parts.push(format!(
                    "{count} {}",
                    self.paint(CYAN, &format!("{name}{plural}"))
                ));
            }
        }
        parts.join(", ")
    }

    /// `1.50 KiB`.
    fn bytes(&self, bytes: u64) -> String {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in units {
            if bytes >> shift > 0 {
                let hundredths = (u128::from(bytes) * 100 + (1 << (shift - 1))) >> shift;
                let (whole, part) = (hundredths / 100, hundredths % 100);
                return format!("{whole}.{part:02} {}", self.paint(CYAN, unit));
            }
        }
        format!("{bytes} {}", self.paint(CYAN, "B"))
    }
}
