//! Who owns each line of a file: what reads names, writes files and removes peers from them goes by
//! this.
//!
//! 1. A setting belongs to the section above it, and so does what stands between a section's header
//!    and its last setting.
//! 2. A section that is commented out is one as well, but nobody's: its lines stay.
//! 3. The lines between a pair of begin and end belong to the one section between them, if it
//!    begins right below the pair's first line. Another pair is around a group, and nobody's.
//! 4. Comments right above a header belong to that section, those right below the last setting to
//!    the one above. Where no blank line tells the two apart, they belong to the section below, but
//!    for the labels of prometheus_wireguard_exporter, which names the section above; a label
//!    before the first peer or behind the last one tells which of the two a file means.
//! 5. What has blank lines around it is nobody's.
//!
//! All of this looks at a file as if no peer were disabled (see `disabled.rs`): whose a line is does
//! not change when a peer is disabled or enabled.

use std::collections::HashMap;
use std::ops::Range;

use super::names::{self, Rank, Said};
use crate::config::keywords::{FileLine, Section, section};

/// A file's lines, with their ends, and its sections.
pub(super) struct Layout<'a> {
    /// As if all peers were enabled.
    pub(super) lines: Vec<&'a str>,
    /// Those of disabled peers, as they stand in the file.
    pub(super) marked: HashMap<usize, &'a str>,
    pub(super) sections: Vec<Block>,
    /// For each line, the number of the section that it belongs to, or [`NOBODY`].
    owners: Vec<u32>,
}

/// A section of a file.
pub(super) struct Block {
    /// `None` for one that is unknown or commented out.
    pub(super) kind: Option<Section>,
    /// The line of its header.
    pub(super) header: usize,
    /// Its first setting, if it has one.
    first: Option<usize>,
    /// Its last setting, or its header.
    pub(super) last: usize,
    /// The name of a peer in comments.
    pub(super) name: Option<String>,
    /// It is a disabled peer's: its `kind` is `None`.
    pub(super) is_disabled: bool,
    /// The last line of settings above the header, and whose it is.
    above: Option<(usize, u32)>,
}

impl Block {
    /// Whether it is an enabled peer's.
    pub(super) fn is_peer(&self) -> bool {
        self.kind == Some(Section::Peer)
    }
}

const NOBODY: u32 = u32::MAX;
/// Nobody's as well: a line that begins or ends a group.
const GROUP: u32 = u32::MAX - 1;

/// Lines of a peer's pair, at most: nested ones are looked at again for each.
const MAX_PAIR: usize = 4096;

/// Which section a label names that stands right between two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LabelPlace {
    Above,
    Below,
    Unknown,
}

/// A line as this looks at it: blank, a comment, or anything else.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start_matches('\u{feff}').trim();
    line.starts_with('#').then_some(line)
}

fn said(line: &str) -> Said {
    comment(line).map_or(Said::Nothing, names::said)
}

pub(super) fn is_blank(line: &str) -> bool {
    line.trim_start_matches('\u{feff}').trim().is_empty()
}

/// Without what an editor puts before the first line.
fn without_mark(line: &str) -> &str {
    line.trim_start_matches('\u{feff}')
}

impl<'a> Layout<'a> {
    /// Of lines none of which has a mark.
    pub(super) fn read(lines: Vec<&'a str>) -> Self {
        let mut layout = Self {
            owners: vec![NOBODY; lines.len()],
            sections: Vec::new(),
            lines,
            marked: HashMap::new(),
        };
        layout.find_sections();
        layout.find_pairs();
        layout.assign_gaps();
        layout.find_names();
        layout
    }

    /// A line as it stands in the file.
    pub(super) fn raw(&self, line: usize) -> &'a str {
        let marked = self.marked.get(&line).copied();
        marked.unwrap_or(self.lines[line])
    }

    /// Whether a line is a disabled peer's.
    pub(super) fn is_marked(&self, line: usize) -> bool {
        self.marked.contains_key(&line)
    }

    pub(super) fn switch_off(&mut self) {
        for section in &mut self.sections {
            if self.marked.contains_key(&section.header) {
                section.is_disabled = true;
                section.kind = None;
            }
        }
    }

    /// The number of the section that a line belongs to.
    pub(super) fn owner(&self, line: usize) -> Option<usize> {
        let owner = self.owners[line];
        (owner < GROUP).then_some(owner as usize)
    }

    /// The settings of a section: line, key and value.
    pub(super) fn settings(
        &self,
        section: usize,
    ) -> impl Iterator<Item = (usize, &'a str, &'a str)> {
        let Block { header, last, .. } = self.sections[section];
        let lines = (header..=last).filter(move |line| self.owner(*line) == Some(section));
        lines.filter_map(
            |line| match FileLine::read(without_mark(self.lines[line])) {
                FileLine::KeyValue(key, value) => Some((line, key, value)),
                _ => None,
            },
        )
    }

    fn number(at: usize) -> u32 {
        u32::try_from(at).unwrap_or(NOBODY)
    }

    /// Steps 1 and 2.
    fn find_sections(&mut self) {
        let mut above = None;
        // The section that settings belong to, and the one of the line before.
        let (mut real, mut present) = (NOBODY, NOBODY);
        let mut is_glued = false;
        for (at, line) in self.lines.iter().enumerate() {
            let kind = match FileLine::read(without_mark(line)) {
                FileLine::Section(header) => Some(section(header)),
                FileLine::KeyValue(..) | FileLine::Other(_) => {
                    self.owners[at] = real;
                    present = real;
                    if let Some(block) = self.sections.get_mut(real as usize) {
                        block.last = at;
                        block.first.get_or_insert(at);
                    }
                    above = Some((at, real));
                    is_glued = true;
                    continue;
                }
                FileLine::Blank => match said(line) {
                    Said::OffHeader => None,
                    // Switched off in its section, or all that is left of one.
                    Said::OffSetting if present != NOBODY && is_glued => {
                        self.owners[at] = present;
                        if let Some(block) = self.sections.get_mut(present as usize) {
                            block.last = at;
                        }
                        above = Some((at, present));
                        continue;
                    }
                    Said::OffSetting => None,
                    _ => {
                        is_glued &= !is_blank(line);
                        continue;
                    }
                },
            };
            let is_real = comment(line).is_none();
            present = Self::number(self.sections.len());
            self.sections.push(Block {
                kind: kind.flatten(),
                header: at,
                first: None,
                last: at,
                name: None,
                is_disabled: false,
                above,
            });
            self.owners[at] = present;
            above = Some((at, present));
            is_glued = true;
            if is_real {
                real = present;
            }
        }
        for at in 0..self.sections.len() {
            let Block { header, last, .. } = self.sections[at];
            for line in header..last {
                if self.owners[line] == NOBODY && self.is_within(at, line) {
                    self.owners[line] = Self::number(at);
                }
            }
        }
        self.fill_between();
    }

    /// What stands between two lines of a section is its own, also below a header that is commented out.
    fn fill_between(&mut self) {
        let mut before: Option<(usize, u32)> = None;
        for at in 0..self.lines.len() {
            let owner = self.owners[at];
            if owner == NOBODY {
                continue;
            }
            if let Some((line, same)) = before
                && same == owner
            {
                self.owners[line + 1..at].fill(owner);
            }
            before = Some((at, owner));
        }
    }

    /// Whether no other section begins between a section's header and a line below it.
    fn is_within(&self, section: usize, line: usize) -> bool {
        let next = self.sections.get(section + 1);
        next.is_none_or(|next| next.header > line)
    }

    fn is_peer(&self, section: u32) -> bool {
        let block = self.sections.get(section as usize);
        block.is_some_and(|block| block.kind == Some(Section::Peer))
    }

    fn is_off(&self, section: u32) -> bool {
        let block = self.sections.get(section as usize);
        block.is_some_and(|block| comment(self.lines[block.header]).is_some())
    }

    /// Step 3.
    fn find_pairs(&mut self) {
        let mut open: HashMap<String, Vec<usize>> = HashMap::new();
        for line in 0..self.lines.len() {
            match said(self.lines[line]) {
                Said::Begin(name) => open.entry(name.to_lowercase()).or_default().push(line),
                Said::End(name) => {
                    let begin = open.get_mut(&name.to_lowercase()).and_then(Vec::pop);
                    if let Some(begin) = begin {
                        self.pair(begin, line);
                    }
                }
                _ => {}
            }
        }
    }

    /// A pair is one peer's if it begins right above its header; otherwise it is around a group.
    fn pair(&mut self, begin: usize, end: usize) {
        let first = (self.sections).partition_point(|block| block.header < begin);
        let within = self.sections[first..].iter();
        let within = within.take_while(|block| block.header < end);
        let mut real = (first..)
            .zip(within)
            .filter(|(_, block)| comment(self.lines[block.header]).is_none());
        let only = (real.next()).filter(|(_, block)| {
            let mut between = begin..block.header;
            let is_close = between.all(|line| comment(self.lines[line]).is_some());
            is_close && block.kind == Some(Section::Peer)
        });
        let owner = match (only, real.next()) {
            (Some((at, _)), None) if end - begin < MAX_PAIR => Self::number(at),
            _ => GROUP,
        };
        let lines = match owner {
            GROUP => vec![begin, end],
            _ => (begin..=end).collect(),
        };
        for line in lines {
            if self.owners[line] == NOBODY {
                self.owners[line] = owner;
            }
        }
    }

    /// Steps 4 and 5.
    fn assign_gaps(&mut self) {
        let style = self.style();
        for at in 0..self.sections.len() {
            let Block { header, above, .. } = self.sections[at];
            self.assign_gap(above, header, Some(at), style);
        }
        let last = (self.owners.iter()).rposition(|owner| *owner < GROUP);
        if let Some(last) = last {
            self.assign_gap(
                Some((last, self.owners[last])),
                self.lines.len(),
                None,
                style,
            );
        }
    }

    fn is_label(&self, line: usize) -> bool {
        matches!(said(self.lines[line]), Said::Name(Rank::Name, _))
    }

    fn style(&self) -> LabelPlace {
        let is_peer = |block: &&Block| block.kind == Some(Section::Peer);
        let Some(first) = self.sections.iter().find(is_peer) else {
            return LabelPlace::Unknown;
        };
        let mut lead = self.lead(first.header, first.above.map_or(0, |(line, _)| line + 1));
        let above = lead.any(|line| self.is_label(line));
        let last = (self.owners.iter()).rposition(|owner| *owner < GROUP);
        let last = last.filter(|last| self.is_peer(self.owners[*last]));
        let tail = last.map_or(self.lines.len(), |last| last + 1)..self.lines.len();
        let mut tail = tail.take_while(|line| comment(self.lines[*line]).is_some());
        let below = tail.any(|line| self.is_label(line));
        match (above, below) {
            (true, false) => LabelPlace::Above,
            (false, true) => LabelPlace::Below,
            _ => LabelPlace::Unknown,
        }
    }

    /// The comments right above a header.
    fn lead(&self, header: usize, from: usize) -> Range<usize> {
        let is_lead = |line: &usize| {
            let text = self.lines[*line];
            let is_free = self.owners[*line] == NOBODY;
            is_free && comment(text).is_some() && !matches!(said(text), Said::End(_))
        };
        let first = (from..header).rev().take_while(is_lead).last();
        first.unwrap_or(header)..header
    }

    /// The lines between the last setting above, which belongs to `above`, and a header, or the end
    /// of the file.
    fn assign_gap(
        &mut self,
        above: Option<(usize, u32)>,
        end: usize,
        below: Option<usize>,
        style: LabelPlace,
    ) {
        let from = above.map_or(0, |(line, _)| line + 1);
        let above = above.map_or(NOBODY, |(_, owner)| owner);
        let lead = match below {
            Some(_) => self.lead(end, from),
            None => end..end,
        };
        let below = below.map_or(NOBODY, Self::number);
        // A pair's line, which has an owner already, parts them as well, and so does the end of a
        // pair that is torn; what touches the pair of the section below is a heading.
        let parts = |line: &usize| {
            let text = self.lines[*line];
            is_blank(text) || self.owners[*line] != NOBODY || matches!(said(text), Said::End(_))
        };
        let glued = match (from..end).find(parts) {
            Some(line) if below != NOBODY && self.owners[line] == below => from,
            Some(line) => line,
            None => end,
        };
        // No blank line stands between them.
        let split = match glued >= lead.start {
            true => self.split(lead.clone(), above, style),
            false => lead.start,
        };
        for line in from..end {
            if self.owners[line] != NOBODY || comment(self.lines[line]).is_none() {
                continue;
            }
            let is_marker = matches!(said(self.lines[line]), Said::Begin(_) | Said::End(_));
            if line >= split {
                self.owners[line] = below;
            } else if line < glued && !is_marker {
                self.owners[line] = above;
            }
        }
    }

    /// Where the comments of the section below begin, among those that touch both.
    fn split(&self, lead: Range<usize>, above: u32, style: LabelPlace) -> usize {
        let Some(block) = self.sections.get(above as usize) else {
            return lead.start;
        };
        let is_peer = block.kind == Some(Section::Peer);
        if !is_peer || self.is_off(above) || style == LabelPlace::Above {
            return lead.start;
        }
        let has_name = |line: usize| self.owners[line] == above && self.is_label(line);
        if style == LabelPlace::Unknown && (block.header..=block.last).any(has_name) {
            return lead.start;
        }
        let is_of_above = |line: &usize| {
            let text = self.lines[*line].to_ascii_lowercase();
            self.is_label(*line) && (style == LabelPlace::Below || text.contains("friendly_"))
        };
        let last = lead.clone().rfind(is_of_above);
        last.map_or(lead.start, |last| last + 1)
    }

    /// The best that a peer's comments say of its name: of those that are as good, a label's last
    /// one; of others, what stands behind the header, then the first below it, then the last above
    /// it.
    fn find_names(&mut self) {
        let mut best: Vec<(Rank, u8)> = vec![(Rank::Plain, 0); self.sections.len()];
        for line in 0..self.lines.len() {
            let at = self.owners[line] as usize;
            let Some(block) = self.sections.get(at) else {
                continue;
            };
            if block.kind != Some(Section::Peer) {
                continue;
            }
            let text = without_mark(self.lines[line]);
            let text = match text.find('#') {
                Some(at) if comment(text).is_some() || line == block.header => &text[at..],
                _ => continue,
            };
            let (rank, name, is_marker) = match names::said(text) {
                Said::Name(rank, name) => (rank, name, false),
                Said::Begin(name) => (Rank::Owner, names::clean(&name), true),
                _ => continue,
            };
            let is_beside = block.first.is_none_or(|first| line < first);
            let place = if line < block.header {
                1
            } else if line == block.header {
                3
            } else if rank > Rank::Plain || is_beside {
                2
            } else {
                continue;
            };
            let (best_rank, best_place) = best[at];
            let is_better = match rank {
                _ if best_place == 0 => true,
                _ if is_marker && best_rank == rank => false,
                Rank::Plain => {
                    best_rank == Rank::Plain
                        && (place > best_place || place == 1 && best_place == 1)
                }
                _ => rank >= best_rank,
            };
            if is_better {
                best[at] = (rank, place);
                self.sections[at].name = name;
            }
        }
    }
}
