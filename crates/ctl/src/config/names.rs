//! The names of peers: comments beside `[Peer]`, as people and programs write them.
//!
//! | who | how |
//! |---|---|
//! | by hand | `# alice` above `[Peer]`, behind it or right below it |
//! | wg-easy | `# Client: alice (UUID)` above |
//! | wireguard-install | `### Client alice` above |
//! | PiVPN | `### begin alice ###` above |
//! | exporters | `# friendly_name = alice` or `# Name = alice`, anywhere in the section |

use super::parse::{Section, spelling};

/// Longest name, in characters.
const MAX_NAME: usize = 64;
/// Words before a name that are no part of it.
const TITLES: [&str; 2] = ["client ", "begin "];
/// What may stand before `=` or `:` and a name.
const LABELS: [&str; 5] = ["name", "friendly_name", "client", "peer", "user"];

/// A name that a comment gives.
pub(super) struct Name {
    pub(super) text: String,
    /// It says so itself, as `Name = alice` does.
    pub(super) is_explicit: bool,
}

/// The name that a comment gives, from its `#` on. A setting or a section that is commented out
/// gives none, nor does what might be a key.
pub(super) fn of_comment(comment: &str) -> Option<Name> {
    let text = comment.trim_matches(|c: char| c == '#' || c.is_whitespace());
    let label = |at| {
        let (label, name) = text.split_once(at)?;
        let label = label.trim().to_ascii_lowercase();
        LABELS.contains(&label.as_str()).then_some(name)
    };
    if let Some(name) = label('=').or_else(|| label(':')) {
        let text = clean(without_uuid(name.trim()))?;
        let is_explicit = true;
        return Some(Name { text, is_explicit });
    }
    let key = text.split('=').next().unwrap_or_default().trim();
    let is_setting = text.contains('=')
        || [Section::Interface, Section::Peer]
            .into_iter()
            .any(|section| spelling(section, key).is_some());
    let lower = text.to_ascii_lowercase();
    if is_setting || text.starts_with('[') || lower.starts_with("end ") {
        return None;
    }
    let title = TITLES.iter().find(|title| lower.starts_with(**title));
    let name = title.map_or(text, |title| text[title.len()..].trim());
    let text = clean(without_uuid(name))?;
    let is_explicit = false;
    Some(Name { text, is_explicit })
}

/// A peer's name as it is stored and shown: one line of at most 64 characters, without control
/// characters; `None` if nothing is left, or if it might hold a key.
pub fn clean(name: &str) -> Option<String> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    if name.split(|c| !is_base64(c)).any(|run| run.len() >= 32) {
        return None;
    }
    let printable = name.chars().filter(|c| !c.is_control());
    let name: String = printable.take(MAX_NAME).collect();
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Without the identifier in parentheses that wg-easy adds.
fn without_uuid(name: &str) -> &str {
    let Some((before, id)) = name
        .strip_suffix(')')
        .and_then(|name| name.rsplit_once('('))
    else {
        return name;
    };
    match id.len() == 36
        && id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
    {
        true => before.trim(),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn names(text: &str) -> Vec<Option<String>> {
        let config = Config::parse(text, "wg0.conf").expect("a configuration");
        config.peers.into_iter().map(|peer| peer.name).collect()
    }

    #[test]
    fn comments_beside_a_peer_are_its_name() {
        let section = |n: char| {
            format!(
                "PublicKey = {}=\nAllowedIPs = 10.0.0.1/32",
                n.to_string().repeat(42) + "A"
            )
        };
        let (one, two) = (section('A'), section('B'));
        for (text, first, second) in [
            (
                format!("# alice\n[Peer]\n{one}\n# bob\n[Peer]\n{two}\n"),
                Some("alice"),
                Some("bob"),
            ),
            (
                format!("[Peer] # alice\n{one}\n\n[Peer]\n# bob\n{two}\n"),
                Some("alice"),
                Some("bob"),
            ),
            (
                format!(
                    "# Client: al (3d5fb5a0-1b3c-4f6e-8a7d-0123456789ab)\n[Peer]\n{one}\n\n### Client bo b\n[Peer]\n{two}\n"
                ),
                Some("al"),
                Some("bo b"),
            ),
            (
                format!(
                    "### begin al ###\n[Peer]\n{one}\n### end al ###\n### begin bob ###\n[Peer]\n{two}\n### end bob ###\n"
                ),
                Some("al"),
                Some("bob"),
            ),
            (
                format!("# x\n[Peer]\n{one}\n# Name = alice\n[Peer]\n{two}\n# friendly_name=bob\n"),
                Some("alice"),
                Some("bob"),
            ),
            // About a setting, too far away, commented out, or a key.
            (
                format!("# far\n\n[Peer]\n{one} # mine\n# about the last\n\n[Peer]\n{two}\n"),
                None,
                None,
            ),
            (
                format!(
                    "#[Peer]\n#PublicKey = x\n[Peer]\n{one}\n#Endpoint = a:1\n[Peer]\n#DNS = 1.1.1.1\n{two}\n"
                ),
                None,
                None,
            ),
            (
                format!(
                    "# {}=\n[Peer]\n{one}\n### end al ###\n[Peer]\n#\n{two}\n",
                    "A".repeat(43)
                ),
                None,
                None,
            ),
        ] {
            let text = format!("[Interface]\n{text}");
            assert_eq!(
                names(&text),
                [first.map(str::to_owned), second.map(str::to_owned)],
                "{text}"
            );
        }
    }

    #[test]
    fn names_are_one_short_line_without_keys() {
        assert_eq!(clean(" \u{1b}[31mred\t "), Some("[31mred".to_owned()));
        assert_eq!(clean(&"ä".repeat(100)).unwrap().chars().count(), 64);
        assert_eq!(
            clean("AndroidPhone2024"),
            Some("AndroidPhone2024".to_owned())
        );
        assert_eq!(clean(&format!("key {}=", "x".repeat(43))), None);
        assert_eq!(clean(" \n"), None);
    }
}
