//! A peer of a file is removed, disabled, enabled or named anew. All lines that are not its own stay
//! as they are, byte for byte, and all other peers keep their names.

use std::collections::HashSet;

use adit_proto::config::{PublicKey, Secret};
use zeroize::Zeroizing;

use super::disabled;
use super::names::{self, Said};
use super::write::{Edits, replaced};
use crate::config::keywords::{Section, spelling};
use crate::keys;

/// `text` without a peer's sections, disabled ones as well, and the comments that are theirs; `None`
/// if it has no such peer.
pub fn without_peer(text: &str, peer: PublicKey) -> Option<Zeroizing<String>> {
    let mut edits = Edits::new(text);
    let gone = edits.sections_of(peer, |_| true)?;
    edits.remove(|section| gone.contains(&section));
    let out = edits.text(0, false);
    let names: Vec<Option<&str>> = (edits.peers())
        .filter(|section| !gone.contains(section))
        .map(|section| edits.layout.sections[section].name.as_deref())
        .collect();
    let left = Edits::new(&out);
    let is_same = (left.peers())
        .map(|section| left.layout.sections[section].name.as_deref())
        .eq(names);
    Some(if is_same {
        out
    } else {
        edits.text(2 * edits.layout.lines.len(), true)
    })
}

/// `text` with a peer's sections disabled; `None` if it has no such peer that is enabled, or has a
/// comment beside it that would be taken for one of its lines.
pub fn disable(text: &str, peer: PublicKey) -> Option<Zeroizing<String>> {
    let mut edits = Edits::new(text);
    let sections = edits.sections_of(peer, |is_disabled| !is_disabled)?;
    let lines = edits.lines_of(&sections);
    for line in &lines {
        let marked = disabled::marked(edits.layout.raw(*line));
        edits.changed.insert(*line, Zeroizing::new(marked));
    }
    let out = edits.text(16 * lines.len(), false);
    // It comes back as it was.
    let after = Edits::new(&out);
    let own = after.sections_of(peer, |is_disabled| is_disabled)?;
    let is_whole = lines.iter().all(|line| {
        let owner = after.layout.owner(*line);
        after.layout.is_marked(*line) && owner.is_some_and(|owner| own.contains(&owner))
    });
    (is_whole && named(text, |_| true) == named(&out, |_| true)).then_some(out)
}

/// `text` with a peer's disabled sections enabled; `None` if it has no such peer that is disabled.
pub fn enable(text: &str, peer: PublicKey) -> Option<Zeroizing<String>> {
    let mut edits = Edits::new(text);
    let sections = edits.sections_of(peer, |is_disabled| is_disabled)?;
    for line in edits.lines_of(&sections) {
        if edits.layout.is_marked(line) {
            let enabled = disabled::enabled(edits.layout.raw(line));
            edits.changed.insert(line, Zeroizing::new(enabled));
        }
    }
    Some(edits.text(0, false))
}

/// `text` with another name of a peer: where its comments have the old one, of any program, or
/// else in a comment of its own. `None` if it has no such peer, or no comment can give it this name.
pub fn rename(text: &str, peer: PublicKey, name: &str) -> Option<Zeroizing<String>> {
    let edits = Edits::new(text);
    let sections = edits.sections_of(peer, |_| true)?;
    let others = |text: &str| named(text, |key| *key != peer);
    let is_right = |new: &Zeroizing<String>| {
        let own = named(new, |key| *key == peer);
        let own = own.into_iter().filter_map(|(_, name)| name).next_back();
        own.as_deref() == Some(name) && others(new) == others(text)
    };
    let in_place = || {
        let mut edits = Edits::new(text);
        edits.replace_name(&sections, name);
        (!edits.changed.is_empty()).then(|| edits.text(text.len(), false))
    };
    // The last section with a name counts, and of labels the last one.
    let mut ordered: Vec<usize> = sections.iter().copied().collect();
    ordered.sort_unstable();
    let named = |at: &usize| edits.layout.sections[*at].name.is_some();
    let section = *(ordered.iter().rfind(|at| named(at))).or(ordered.last())?;
    let block = &edits.layout.sections[section];
    let with_label = |below: usize| {
        let mut edits = Edits::new(text);
        let label = format!("# friendly_name = {name}");
        let label = match edits.layout.is_marked(below) {
            true => disabled::marked(&label),
            false => label,
        };
        edits.added.insert(below, Zeroizing::new(label));
        edits.text(2 * name.len() + 64, false)
    };
    let places = [block.header, block.last];
    (in_place().into_iter())
        .chain(places.into_iter().map(with_label))
        .find(is_right)
}

/// `text` with other keys of a peer: a preshared key only where it had one. `None` if it has no such peer.
pub fn with_keys(
    text: &str,
    peer: PublicKey,
    (public, preshared): (PublicKey, Option<&Secret>),
) -> Option<Zeroizing<String>> {
    let mut edits = Edits::new(text);
    for section in edits.sections_of(peer, |_| true)? {
        let settings: Vec<_> = edits.layout.settings(section).collect();
        for (line, key, value) in settings {
            let new = match spelling(Section::Peer, key) {
                Some("PublicKey") => Some(public.0),
                Some("PresharedKey") => preshared.map(|key| *key.bytes()),
                _ => None,
            };
            let Some(new) = new.map(|key| keys::to_base64(&key)) else {
                continue;
            };
            let new = replaced(edits.layout.lines[line], value, &new);
            let new = match edits.layout.is_marked(line) {
                true => Zeroizing::new(disabled::marked(&new)),
                false => new,
            };
            edits.changed.insert(line, new);
        }
    }
    Some(edits.text(0, false))
}

/// The peers' sections, with what they are called.
fn named(text: &str, wanted: impl Fn(&PublicKey) -> bool) -> Vec<(PublicKey, Option<String>)> {
    let edits = Edits::new(text);
    let keyed = edits.peers().filter_map(|at| {
        Some((
            edits.public_key(at)?,
            edits.layout.sections[at].name.clone(),
        ))
    });
    keyed.filter(|(key, _)| wanted(key)).collect()
}

impl Edits<'_> {
    /// The sections of peers, disabled ones as well.
    fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        let is_peer = |at: &usize| {
            let block = &self.layout.sections[*at];
            block.is_disabled || block.is_peer()
        };
        (0..self.layout.sections.len()).filter(is_peer)
    }

    /// Those of one peer, if there are any.
    pub(super) fn sections_of(
        &self,
        peer: PublicKey,
        wanted: impl Fn(bool) -> bool,
    ) -> Option<HashSet<usize>> {
        let found: HashSet<usize> = (self.peers())
            .filter(|at| wanted(self.layout.sections[*at].is_disabled))
            .filter(|at| self.public_key(*at) == Some(peer))
            .collect();
        (!found.is_empty()).then_some(found)
    }

    pub(super) fn lines_of(&self, sections: &HashSet<usize>) -> Vec<usize> {
        let is_theirs = |line: &usize| {
            let owner = self.layout.owner(*line);
            owner.is_some_and(|owner| sections.contains(&owner))
        };
        (0..self.layout.lines.len()).filter(is_theirs).collect()
    }

    /// Puts another name into every comment that has the section's old one.
    fn replace_name(&mut self, sections: &HashSet<usize>, name: &str) {
        for line in self.lines_of(sections) {
            let Some(section) = self.layout.owner(line) else {
                continue;
            };
            let Some(old) = self.layout.sections[section].name.as_deref() else {
                continue;
            };
            let text = self.layout.lines[line];
            let Some((before, comment)) = text.find('#').map(|at| text.split_at(at)) else {
                continue;
            };
            // What stands behind a setting names nobody.
            let is_name = before.trim_start_matches('\u{feff}').trim().is_empty()
                || line == self.layout.sections[section].header;
            if let Some(new) = is_name.then(|| with_name(comment, old, name)).flatten() {
                let new = format!("{before}{new}");
                let new = match self.layout.is_marked(line) {
                    true => disabled::marked(&new),
                    false => new,
                };
                self.changed.insert(line, Zeroizing::new(new));
            }
        }
    }
}

/// A comment that gives a name, with another one in its place.
fn with_name(comment: &str, old: &str, new: &str) -> Option<String> {
    let of = |text: &str, name: &str| match names::said(text.trim()) {
        Said::Name(rank, Some(said)) if said == name => Some(Some(rank)),
        Said::Begin(said) | Said::End(said) if names::clean(&said)? == name => Some(None),
        _ => None,
    };
    let rank = of(comment, old)?;
    comment.match_indices(old).find_map(|(at, _)| {
        let (before, after) = (&comment[..at], &comment[at + old.len()..]);
        let text = format!("{before}{new}{after}");
        (of(&text, new) == Some(rank)).then_some(text)
    })
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
