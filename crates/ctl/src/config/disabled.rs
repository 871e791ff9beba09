//! A disabled peer: its lines stay where they are, and each is a comment, which no tool looks at.
//!
//! ```text
//! # disabled: [PeerSection]
//! # disabled: # friendly_name = phone
//! # disabled: PublicKey = …
//! # disabled: AllowedIPs = 10.0.0.2/32
//! ```
//!
//! Without the marks, the file is what it was before, byte for byte. Whose a line is is told from
//! the file without any mark (`layout.rs`), so that peers may be disabled and enabled in any order.

use std::collections::HashMap;

use super::layout::{Block, Layout};
use crate::config::keywords::{FileLine, Section, spelling};

const MARK: &str = "# disabled:";
/// Runs of lines with marks that are no disabled peers', at most: with more, none is one.
const MAX_TORN: usize = 16;

/// The line without its mark; `None` if it has none. What an editor puts before the first line is
/// left out.
pub(super) fn unmarked(line: &str) -> Option<&str> {
    let rest = without_bom(line).strip_prefix(MARK)?;
    match rest.strip_prefix(' ') {
        // An editor may have cut the space of a blank line.
        None if rest.trim().is_empty() => Some(rest),
        rest => rest,
    }
}

/// The line with a mark.
pub(super) fn marked(line: &str) -> String {
    let text = without_bom(line);
    let bom = &line[..line.len() - text.len()];
    let space = if text.trim_end_matches(['\r', '\n']).is_empty() {
        ""
    } else {
        " "
    };
    format!("{bom}{MARK}{space}{text}")
}

/// The line, which has a mark, as it was before.
pub(super) fn enabled(line: &str) -> String {
    let bom = &line[..line.len() - without_bom(line).len()];
    format!("{bom}{}", unmarked(line).unwrap_or(without_bom(line)))
}

fn without_bom(line: &str) -> &str {
    line.strip_prefix('\u{feff}').unwrap_or(line)
}

impl<'a> Layout<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let raw = || text.split_inclusive('\n');
        let with_mark = (0..)
            .zip(raw())
            .filter(|(_, line)| unmarked(line).is_some());
        let mut marked: HashMap<usize, &str> = with_mark.collect();
        for tries in 0.. {
            let lines = (0..)
                .zip(raw())
                .map(|(at, line)| match marked.contains_key(&at) {
                    true => unmarked(line).unwrap_or(line),
                    false => line,
                });
            let mut layout = Self::read(lines.collect());
            match layout.torn(&marked) {
                Some(_) if tries == MAX_TORN => marked.clear(),
                Some(lines) => {
                    for line in &lines {
                        marked.remove(line);
                    }
                }
                None => {
                    layout.marked = marked;
                    layout.switch_off();
                    return layout;
                }
            }
        }
        Self::read(raw().collect())
    }

    /// Lines with a mark that are no disabled peer's: a comment that happens to begin so, or what is
    /// left of a peer that was enabled by hand in part.
    fn torn(&self, marked: &HashMap<usize, &str>) -> Option<Vec<usize>> {
        let is_off = |section: &Block| {
            section.kind == Some(Section::Peer) && marked.contains_key(&section.header)
        };
        let is_known = |line: usize| match FileLine::read(self.lines[line]) {
            FileLine::KeyValue(key, _) => spelling(Section::Peer, key).is_some(),
            FileLine::Other(_) => false,
            FileLine::Blank | FileLine::Section(_) => true,
        };
        let is_alone = |line: &usize| {
            let owner = self.owner(*line);
            !(owner.is_some_and(|owner| is_off(&self.sections[owner])) && is_known(*line))
        };
        if let Some(alone) = marked.keys().copied().find(is_alone) {
            let same =
                |line: &usize| marked.contains_key(line) && self.owner(*line) == self.owner(alone);
            let above = (0..alone).rev().take_while(same);
            let below = (alone..self.lines.len()).take_while(same);
            return Some(above.chain(below).collect());
        }
        let in_force = |line: usize| {
            !marked.contains_key(&line)
                && !matches!(FileLine::read(self.lines[line]), FileLine::Blank)
        };
        let lines = |at: usize, section: &Block| {
            let lines = section.header..=section.last;
            lines.filter(move |line| self.owner(*line) == Some(at))
        };
        let mut off = (0..).zip(&self.sections).filter(|(_, it)| is_off(it));
        let torn = off.find(|(at, it)| lines(*at, it).any(in_force));
        torn.map(|(at, it)| lines(at, it).collect())
    }
}
