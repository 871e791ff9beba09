//! Explanations of words that a file should not have.

use crate::config::keywords::{INTERFACE_KEYS, PEER_KEYS, Section};
use crate::config::{notes, values};

/// Explains a key that `section` does not have.
pub(super) fn unknown(section: Section, key: &str) -> String {
    let (this, own, that, others) = match section {
        Section::Interface => ("[Interface]", &INTERFACE_KEYS[..], "[Peer]", &PEER_KEYS[..]),
        Section::Peer => ("[Peer]", &PEER_KEYS[..], "[Interface]", &INTERFACE_KEYS[..]),
    };
    if let Some(name) = others.iter().find(|name| name.eq_ignore_ascii_case(key)) {
        return format!("{name} belongs in {that}, not in {this}");
    }
    if let Some(name) = notes::spelling(key).filter(|_| section == Section::Interface) {
        return format!("{name} stands in a comment, which wg-quick passes over: # {name} = …");
    }
    let has_no = match is_long_or_secret(key) {
        false => format!("{this} has no key {key:?}"),
        true => format!("{this} has no key of {} characters", key.chars().count()),
    };
    match nearest(key, own) {
        Some(name) => format!("{has_no}: did you mean {name}?"),
        None => format!("{has_no}: expected one of {}", own.join(", ")),
    }
}

/// The known word that `word` is probably meant to be.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let all = known.iter().map(|name| (distance(name, word), *name));
    let (distance, name) = all.min()?;
    (distance <= 1 + name.len() / 5).then_some(name)
}

/// A word of a file for an error: one that may be a secret, or part of one, is not repeated.
pub fn quote(word: &str) -> String {
    match is_long_or_secret(word) {
        false => format!("{word:?}"),
        true => format!("a word of {} characters", word.chars().count()),
    }
}

/// A word that is longer than any valid one might be part of a secret, too.
fn is_long_or_secret(word: &str) -> bool {
    word.chars().count() > 24 || values::is_maybe_secret(word)
}

/// How many letters to add, drop or change to make one word of the other, whatever their case.
fn distance(a: &str, b: &str) -> usize {
    let b: String = b.chars().take(64).collect();
    strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}
