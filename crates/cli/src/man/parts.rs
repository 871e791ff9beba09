//! What every manual page is made of.

use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Files that several commands use.
pub(super) const CONFIGURATION: (&str, &str) = (
    "/etc/wireguard/INTERFACE.conf",
    "The configuration for `adit up`, in wg-quick's format; see wg(8) and wg-quick(8).",
);
pub(super) const CREDENTIAL: (&str, &str) = (
    "/etc/credstore/INTERFACE.keys",
    "Keys that the unit `adit@INTERFACE` adds to the configuration.",
);
pub(super) const CONTROL_SOCKET: (&str, &str) = (
    "/var/run/wireguard/INTERFACE.sock",
    "The control socket, for `wg`. Only root may use it, because it returns the private key.",
);
pub(super) const STATUS_SOCKET: (&str, &str) = (
    "/run/adit/INTERFACE.sock",
    "The status socket, for `adit show`, `top`, `metrics` and `events`. It returns neither private nor preshared keys. Root \
     may use it, and the group that `--status-group` names.",
);

/// A section with an item for each name.
pub(super) fn list<'a>(
    roff: &mut Roff,
    title: &str,
    items: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    roff.control("SH", [title]);
    for (name, text) in items {
        item(roff, name, text);
    }
}

pub(super) fn item(roff: &mut Roff, name: &str, text: &str) {
    roff.control("TP", []);
    roff.text([bold(name)]);
    roff.text(inline(text));
}

/// A line of its own in an item.
pub(super) fn more(roff: &mut Roff, title: &str, text: &str) {
    roff.control("br", []);
    roff.text(inline(&format!("{title}: {text}")));
}

pub(super) fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text(inline(text));
}

pub(super) fn see_also(roff: &mut Roff, pages: &str) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages)]);
}

/// Text in which what stands `so` is bold, and what rustdoc links is plain.
pub(super) fn inline(text: &str) -> Vec<Inline> {
    let text = text.replace("[`", "`").replace("`]", "`");
    let pieces = text.split('`').enumerate();
    pieces
        .map(|(number, piece)| match number % 2 {
            0 => roman(piece),
            _ => bold(piece),
        })
        .collect()
}
