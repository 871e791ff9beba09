//! The names of an interface's peers, which people know them by.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use adit_ctl::keys::{BASE64_LEN, public_from_base64};
use adit_proto::config::PublicKey;

/// A peer, what it was called, and what it is called now.
pub(crate) type Renamed = (PublicKey, Option<String>, Option<String>);

/// Set by `adit up` and `adit sync`; read by the status, events and the log.
#[derive(Default)]
pub(crate) struct Names(RwLock<HashMap<PublicKey, String>>);

impl Names {
    /// In place of all earlier ones.
    pub(crate) fn set(&self, names: Vec<(PublicKey, String)>) {
        self.change(names, true);
    }

    /// Gives peers names, or none where they are empty; with `replace`, no other has one. Returns what differs:
    /// before, and after.
    pub(crate) fn change(&self, names: Vec<(PublicKey, String)>, replace: bool) -> Vec<Renamed> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut renamed: Vec<Renamed> = Vec::new();
        let names: HashMap<_, _> = names.into_iter().collect();
        if replace {
            let gone = known.extract_if(|key, _| !names.contains_key(key));
            renamed.extend(gone.map(|(key, name)| (key, Some(name), None)));
        }
        for (key, name) in names {
            let name = Some(name).filter(|name| !name.is_empty());
            let old = match &name {
                Some(name) => known.insert(key, name.clone()),
                None => known.remove(&key),
            };
            if old != name {
                renamed.push((key, old, name));
            }
        }
        renamed
    }

    /// All of them, by keys in base64.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let named = names
            .iter()
            .map(|(key, name)| (key.to_string(), name.clone()));
        named.collect()
    }

    pub(crate) fn of(&self, peer: &PublicKey) -> Option<String> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(peer).cloned()
    }

    /// A line of the log that begins with `peer KEY`, with the peer's name behind the key.
    pub(crate) fn annotate(&self, line: &str) -> String {
        let key = line
            .strip_prefix("peer ")
            .and_then(|rest| rest.get(..BASE64_LEN));
        let name = key
            .and_then(public_from_base64)
            .and_then(|key| self.of(&key));
        match (key, name) {
            (Some(key), Some(name)) => {
                let rest = &line["peer ".len() + key.len()..];
                format!("peer {key} ({name}){rest}")
            }
            _ => line.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_peer_has_its_name() {
        let names = Names::default();
        let (alice, bob) = (PublicKey([7; 32]), PublicKey([8; 32]));
        let line = format!("peer {alice}: session established");
        assert_eq!(names.annotate(&line), line);
        names.set(vec![(alice, "alice".into())]);
        let expected = format!("peer {alice} (alice): session established");
        assert_eq!(names.annotate(&line), expected);
        for other in [
            format!("peer {bob}: x"),
            "peer".into(),
            format!("peer {}", "ä".repeat(44)),
        ] {
            assert_eq!(names.annotate(&other), other);
        }
        names.set(Vec::new());
        assert_eq!(names.annotate(&line), line);
    }

    #[test]
    fn an_empty_name_takes_one_away() {
        let names = Names::default();
        let (alice, bob) = (PublicKey([7; 32]), PublicKey([8; 32]));
        names.set(vec![(alice, "alice".into()), (bob, "bob".into())]);
        let none = || vec![(alice, String::new())];
        let renamed = names.change(none(), false);
        assert_eq!(renamed, [(alice, Some("alice".into()), None)]);
        assert_eq!(
            (names.of(&alice), names.of(&bob)),
            (None, Some("bob".into()))
        );
        assert_eq!(names.change(none(), false), []);
    }
}
