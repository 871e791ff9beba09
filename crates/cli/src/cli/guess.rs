//! Words that people type for a command.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::Cli;

#[cfg(test)]
#[path = "guess_tests.rs"]
mod tests;

/// Words that people guess, and the command that does what they expect. None of them makes an
/// interface, unless by `adit run` or for wg-quick.
const GUESSED: &[(&str, &str)] = &[
    (
        "help",
        "usage manual commands info about helpme docs examples",
    ),
    ("--version", "version ver"),
    (
        "show",
        "status list ls get view stat stats state display dump print ip ps interfaces interface tunnels \
         showconf describe inspect",
    ),
    (
        "up",
        "start connect enable activate begin launch on load boot join daemon serve setconf restart",
    ),
    (
        "down",
        "stop disconnect disable deactivate close kill end off halt shutdown unload destroy exit quit leave",
    ),
    (
        "init",
        "setup initialize wizard new create make generate gen",
    ),
    (
        "edit",
        "configure config conf configs settings set import install change",
    ),
    ("sync", "reload refresh apply syncconf addconf reconfigure"),
    ("upgrade", "update replace"),
    (
        "new-peer",
        "newpeer addpeer invite adduser register qr qrcode export share",
    ),
    (
        "remove",
        "rm del delete revoke uninstall purge unset drop delpeer",
    ),
    ("peer", "rename"),
    ("peers", "list-peers show-peers"),
    ("events", "log logs journal history audit follow tail"),
    ("top", "watch monitor live htop traffic bandwidth dashboard"),
    (
        "why",
        "debug diagnose doctor trace ping troubleshoot fix health probe",
    ),
    ("check", "test verify validate lint checkconf"),
    ("metrics", "prometheus exporter statistics"),
    ("genkey", "key keys keygen keypair privkey private-key"),
    ("genpsk", "psk preshared-key"),
    ("pubkey", "public-key pub"),
    ("demo", "bench benchmark speedtest speed perf"),
    ("completions", "completion bash zsh fish"),
    ("tune", "optimize threads"),
    ("proxy", "wireproxy socks socks5 onetun forward forwards"),
];

/// What follows a verb behind a hyphen where a command is guessed, and no name of an interface.
const OBJECTS: &str = "me peer peers key keys psk interface interfaces config conf all status tunnel tunnels log logs \
                       client clients user users file qr";

/// The command that was probably meant by a word that no command has: one that people guess, or
/// one typing mistake away from either, perhaps with more words behind a hyphen.
pub(crate) fn command_near(word: &str) -> Option<String> {
    let command = Cli::command();
    let names: Vec<&str> = (command.get_subcommands().map(clap::Command::get_name))
        .chain(["help"])
        .collect();
    if names.contains(&word) {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    let guessed = || {
        let of = |(meant, words): &(&'static str, &'static str)| {
            let meant = *meant;
            words.split_whitespace().map(move |word| (word, meant))
        };
        GUESSED.iter().flat_map(of)
    };
    let exact = |word: &str| {
        let named = names.iter().copied().find(|name| *name == word);
        named.or_else(|| guessed().find(|(other, _)| *other == word).map(|it| it.1))
    };
    let slip = |word: &str| {
        let near = |other: &str| strsim::osa_distance(other, word) == 1;
        let named = names.iter().copied().find(|name| near(name));
        // Shorter ones are near to names of interfaces, such as `server`.
        let mut long = guessed().filter(|(other, _)| other.len() > 5);
        named.or_else(|| long.find(|(other, _)| near(other)).map(|it| it.1))
    };
    let verb = || {
        let (verb, object) = lower.split_once(['-', '_', '.', '='])?;
        let is_object = OBJECTS.split_whitespace().any(|it| it == object);
        exact(verb).filter(|_| is_object)
    };
    let meant = exact(&lower).or_else(|| slip(&lower)).or_else(verb);
    meant.map(str::to_owned)
}

/// The command that was probably meant by the name of an interface that nothing else says is one.
///
/// Names of interfaces often have a digit. Commands of three letters and less are one letter away
/// from common names (tun, wan, us): for those only a doubled letter or two swapped ones count.
pub(crate) fn misspelt(interface: &str) -> Option<String> {
    let meant = command_near(interface)?;
    let letters = |word: &str| word.bytes().collect::<BTreeSet<u8>>();
    let is_slip = strsim::osa_distance(&meant, interface) == 1;
    let slip = !is_slip || meant.len() > 3 || letters(&meant) == letters(interface);
    let digit = interface.bytes().any(|byte| byte.is_ascii_digit());
    (slip && !digit).then_some(meant)
}
