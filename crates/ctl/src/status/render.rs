//! The report for people, in the style of `wg show`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::{Engine, Interface, Peer};

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
pub fn render(interface: &Interface, now: u64, colour: Colour) -> String {
    let mut page = Page {
        text: String::new(),
        colour,
    };
    // Writing to a string cannot fail.
    _ = page.interface(interface, now);
    page.text
}

struct Page {
    text: String,
    colour: Colour,
}

impl Page {
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

    fn interface(&mut self, interface: &Interface, now: u64) -> fmt::Result {
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
        if let Some(engine) = &interface.engine {
            self.engine(engine)?;
        }
        let mut peers: Vec<&Peer> = interface.peers.iter().collect();
        // As wg does: the peer with the latest handshake comes first.
        peers.sort_by_key(|peer| std::cmp::Reverse(peer.latest_handshake));
        for peer in peers {
            self.peer(peer, now)?;
        }
        Ok(())
    }

    fn engine(&mut self, engine: &Engine) -> fmt::Result {
        self.line("aead", &engine.aead)?;
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
        if engine.shards > 1 {
            self.line("shards", &engine.shards.to_string())?;
        }
        if !engine.refused.is_empty() {
            let refused = engine.refused.join(", ").replace('_', " ");
            self.line("refused by the kernel", &refused)?;
        }
        for (what, counters) in [
            ("drops", &engine.drops),
            ("icmp errors", &engine.icmp_errors),
            ("handshakes", &engine.handshakes),
        ] {
            self.counters(what, counters)?;
        }
        Ok(())
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

    fn peer(&mut self, peer: &Peer, now: u64) -> fmt::Result {
        self.text.push('\n');
        self.title(YELLOW, "peer", &peer.public_key)?;
        if peer.has_preshared_key {
            let key = peer.preshared_key.as_deref().unwrap_or("(hidden)");
            self.line("preshared key", key)?;
        }
        if let Some(endpoint) = &peer.endpoint {
            self.line("endpoint", endpoint)?;
        }
        let slash = self.paint(CYAN, "/");
        let blocks: Vec<String> = (peer.allowed_ips.iter())
            .map(|block| block.replace('/', &slash))
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
