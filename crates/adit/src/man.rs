//! The manual pages. They are made of clap's description of the commands, and of the documentation
//! of counters, fields and the log in the code.

use std::io;
use std::path::{Path, PathBuf};

use adit_ctl::status;
use adit_engine::{DropReason, IgnoredKind};
use adit_io::{IcmpKind, Offloads};
use adit_proto::{HandshakeStats, Refusal};
use clap::{Command, CommandFactory};
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli::{self, Cli};
use crate::failure::{Context, Result, bail};

#[cfg(test)]
#[path = "man_tests.rs"]
mod tests;

/// Files that several commands use.
const CONFIGURATION: (&str, &str) = (
    "/etc/wireguard/INTERFACE.conf",
    "The configuration for `adit up`, in wg-quick's format; see wg(8) and wg-quick(8).",
);
const CONTROL_SOCKET: (&str, &str) = (
    "/var/run/wireguard/INTERFACE.sock",
    "The control socket, for `wg`. Only root may use it, because it returns the private key.",
);
const STATUS_SOCKET: (&str, &str) = (
    "/run/adit/INTERFACE.sock",
    "The status socket, for `adit show`. It returns neither private nor preshared keys.",
);

/// Prints a page: that of a command, or adit(1).
pub(crate) fn print(command: Option<&str>) -> Result<()> {
    let name = command.map_or_else(|| "adit".to_owned(), |command| format!("adit-{command}"));
    let Some((_, page)) = pages().into_iter().find(|(known, _)| *known == name) else {
        bail!(
            Mistake,
            "there is no command {}: see `adit --help`",
            command.unwrap_or_default()
        );
    };
    cli::print(page.as_bytes())
}

/// Writes a page for adit itself and for each command to a directory, which is made if it is not
/// there.
pub(crate) fn write_to(dir: PathBuf) -> Result<()> {
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        for (name, page) in pages() {
            std::fs::write(Path::new(&dir).join(format!("{name}.1")), page)?;
        }
        Ok(())
    };
    write().context(|| format!("cannot write the manual pages to {}", dir.display()))
}

/// Every page, with its name.
fn pages() -> Vec<(String, String)> {
    let mut adit = Cli::command().disable_help_subcommand(true);
    adit.build();
    let commands = adit
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let commands: Vec<Command> = commands.cloned().collect();
    let all = std::iter::once(adit).chain(commands);
    all.map(|command| {
        let name = command.get_display_name().unwrap_or("adit").to_owned();
        let mut page = Vec::new();
        // Writing to memory does not fail.
        let _ = clap_mangen::Man::new(command).render(&mut page);
        let page = String::from_utf8_lossy(&page).into_owned() + &sections(&name).render();
        (name, page)
    })
    .collect()
}

/// The sections of a page that clap does not write.
fn sections(name: &str) -> Roff {
    let mut roff = Roff::new();
    match name {
        "adit" | "adit-run" => {
            diagnostics(&mut roff);
            list(
                &mut roff,
                "FILES",
                [CONTROL_SOCKET, STATUS_SOCKET, CONFIGURATION],
            );
            list(
                &mut roff,
                "EXAMPLES",
                [
                    ("adit up wg0", "Brings up /etc/wireguard/wg0.conf."),
                    (
                        "adit wg0 && wg setconf wg0 wg0.conf",
                        "Creates an interface and configures it with `wg`.",
                    ),
                    (
                        "LOG_LEVEL=verbose adit -f wg0",
                        "Prints on standard error why a peer does not connect.",
                    ),
                ],
            );
            see_also(
                &mut roff,
                "adit-up(1), adit-show(1), wg(8), wg-quick(8), ip-link(8)",
            );
        }
        "adit-show" => show(&mut roff),
        "adit-up" | "adit-down" | "adit-save" | "adit-sync" | "adit-strip" => {
            list(&mut roff, "FILES", [CONFIGURATION]);
            see_also(&mut roff, "adit(1), adit-show(1), wg(8), wg-quick(8)");
        }
        _ => see_also(&mut roff, "adit(1), wg(8)"),
    }
    roff
}

fn diagnostics(roff: &mut Roff) {
    roff.control("SH", ["DIAGNOSTICS"]);
    for text in [
        "With `LOG_LEVEL=verbose` there is a line for each handshake message that is sent, with the number of unanswered \
         ones before it, for each new session, for each handshake message that is refused, for packets from an inner \
         source that is not among their peer's allowed IPs, for datagrams that could not be sent, with the reason, and for \
         ICMP errors that come back. The line names the address of the other end, and the public key of the peer where \
         that is known. An event that repeats within a second has one line, with a count. In a flood from many addresses \
         a few addresses have lines, and the others are counted together.",
        "`adit show` has counters for all of this at any level; adit-show(1) explains them. A private or preshared key is \
         never logged.",
        "A handshake message is refused for one of these reasons:",
    ] {
        paragraph(roff, text);
    }
    for refusal in Refusal::ALL {
        item(roff, refusal.name(), refusal.explanation());
    }
}

fn show(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`adit show --json` prints one object. Fields may be added under the same `schema`; that one is removed or means \
         something else makes it 2. Keys are in base64, counters count from the start of the process.",
    );
    for (path, text) in status::fields() {
        item(roff, &path, text);
    }
    let offloads = Offloads::NAMES.into_iter().zip(Offloads::EXPLANATIONS);
    list(roff, "OFFLOADS", offloads);
    let drops = DropReason::ALL.iter();
    list(
        roff,
        "DROPS",
        drops.map(|one| (one.name(), one.explanation())),
    );
    let ignored = IgnoredKind::ALL.iter();
    list(
        roff,
        "IGNORED PACKETS",
        ignored.map(|one| (one.name(), one.explanation())),
    );
    let icmp = IcmpKind::ALL.iter();
    list(
        roff,
        "ICMP ERRORS",
        icmp.map(|one| (one.name(), one.explanation())),
    );
    let stats = HandshakeStats::default();
    let handshakes = stats.counters();
    list(
        roff,
        "HANDSHAKES",
        handshakes.map(|(name, _, text)| (name, text)),
    );
    list(roff, "FILES", [STATUS_SOCKET, CONTROL_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit show",
                "Every userspace WireGuard interface of this network namespace's host.",
            ),
            (
                "adit show wg0 --json | jq .interfaces[0].engine.drops",
                "Packets that an interface dropped, by reason.",
            ),
        ],
    );
    see_also(roff, "adit(1), wg(8)");
}

/// A section with an item for each name.
fn list<'a>(roff: &mut Roff, title: &str, items: impl IntoIterator<Item = (&'a str, &'a str)>) {
    roff.control("SH", [title]);
    for (name, text) in items {
        item(roff, name, text);
    }
}

fn item(roff: &mut Roff, name: &str, text: &str) {
    roff.control("TP", []);
    roff.text([bold(name)]);
    roff.text(inline(text));
}

fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text(inline(text));
}

fn see_also(roff: &mut Roff, pages: &str) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages)]);
}

/// Text in which what stands `so` is bold, and what rustdoc links is plain.
fn inline(text: &str) -> Vec<Inline> {
    let text = text.replace("[`", "`").replace("`]", "`");
    let pieces = text.split('`').enumerate();
    pieces
        .map(|(number, piece)| match number % 2 {
            0 => roman(piece),
            _ => bold(piece),
        })
        .collect()
}
