//! Text → sections with their keys, and the part of it that wg-quick's reader understands.

use std::collections::HashMap;

use adit_ctl::config::{Remark, nearest, quote};
use zeroize::Zeroizing;

use super::ini::{self, IniLine};
use super::sections::{self, ProxySection};

/// The value of a variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A key of a section.
pub(super) struct KeyLine {
    pub(super) line: usize,
    pub(super) key: &'static str,
    pub(super) value: Zeroizing<String>,
}

/// A section of a file.
pub(super) struct SectionPart {
    pub(super) section: ProxySection,
    pub(super) line: usize,
    pub(super) keys: Vec<KeyLine>,
    /// The comment `# Open = yes` stands in it.
    pub(super) is_open: bool,
    /// Keys whose values are none, which has been reported.
    pub(super) wrong: Vec<&'static str>,
    /// Where its keys stand in `keys`.
    seen: HashMap<&'static str, usize>,
}

impl SectionPart {
    /// The line with a key.
    pub(super) fn get(&self, key: &str) -> Option<&KeyLine> {
        self.seen.get(key).and_then(|at| self.keys.get(*at))
    }
}

/// A file, line by line.
pub(super) struct Scan<'a> {
    file: &'a str,
    environment: Environment<'a>,
    /// Where the tunnel is configured instead of here.
    pub(super) wg_config: Option<KeyLine>,
    pub(super) parts: Vec<SectionPart>,
    /// The lines of `[Interface]` and `[Peer]`, as wg-quick has them. The others are empty.
    tunnel: Vec<Zeroizing<String>>,
    /// The present section has a name that there is not.
    is_unknown: bool,
    pub(super) errors: Vec<Remark>,
    pub(super) warnings: Vec<Remark>,
    /// Lines that a proxy has no use for.
    pub(super) passed_over: Vec<Remark>,
}

impl<'a> Scan<'a> {
    pub(super) fn of(text: &str, file: &'a str, environment: Environment<'a>) -> Self {
        let mut scan = Self {
            file,
            environment,
            wg_config: None,
            parts: Vec::new(),
            tunnel: Vec::new(),
            is_unknown: false,
            errors: Vec::new(),
            warnings: Vec::new(),
            passed_over: Vec::new(),
        };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let copy = scan.line(at + 1, line);
            scan.tunnel.push(copy.unwrap_or_default());
            if let IniLine::Header(..) = IniLine::read(line) {
                scan.keep_name_above(&lines[..at]);
            }
        }
        scan
    }

    /// The lines of `[Interface]` and `[Peer]`, where they stand in the file.
    pub(super) fn tunnel_text(&self) -> Zeroizing<String> {
        // All at once: text that grows would leave copies of keys behind.
        let size = self.tunnel.iter().map(|line| line.len() + 1).sum();
        let mut text = Zeroizing::new(String::with_capacity(size));
        for line in &self.tunnel {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    pub(super) fn error(&mut self, line: usize, text: impl Into<String>) {
        self.errors.push(self.remark(line, text.into()));
    }

    pub(super) fn warn(&mut self, line: usize, text: impl Into<String>) {
        self.warnings.push(self.remark(line, text.into()));
    }

    pub(super) fn pass_over(&mut self, line: usize, text: impl Into<String>) {
        self.passed_over.push(self.remark(line, text.into()));
    }

    fn remark(&self, line: usize, text: String) -> Remark {
        Remark {
            file: self.file.to_owned(),
            line,
            text,
        }
    }

    /// A name of a peer may stand above its section, where another section still goes on.
    fn keep_name_above(&mut self, lines: &[&str]) {
        if self.is_unknown || !self.in_tunnel() {
            return;
        }
        for (line, copy) in lines.iter().zip(&mut self.tunnel).rev() {
            if !line.trim_start().starts_with('#') {
                return;
            }
            *copy = Zeroizing::new((*line).to_owned());
        }
    }

    fn in_tunnel(&self) -> bool {
        let last = self.parts.last();
        last.is_some_and(|part| part.section.is_of_tunnel())
    }

    /// Reads a line. Returns what wg-quick's reader is to see of it.
    fn line(&mut self, number: usize, line: &str) -> Option<Zeroizing<String>> {
        match IniLine::read(line) {
            IniLine::Blank(comment) => {
                self.open(number, comment);
                let is_kept = !self.is_unknown && self.in_tunnel() && comment.starts_with('#');
                is_kept.then(|| Zeroizing::new(line.to_owned()))
            }
            IniLine::Header(name, comment) => {
                let section = ProxySection::named(name);
                self.is_unknown = section.is_none();
                let Some(section) = section else {
                    self.error(number, sections::no_section(name));
                    return None;
                };
                self.parts.push(SectionPart {
                    section,
                    line: number,
                    keys: Vec::new(),
                    is_open: false,
                    wrong: Vec::new(),
                    seen: HashMap::new(),
                });
                self.open(number, comment);
                let comment = Some(comment).filter(|comment| comment.starts_with('#'));
                let header = format!("[{}] {}", section.name(), comment.unwrap_or_default());
                section.is_of_tunnel().then(|| Zeroizing::new(header))
            }
            IniLine::Other if self.is_unknown => None,
            IniLine::Other => {
                let word = line.split_whitespace().next().unwrap_or_default();
                let expected = match word.starts_with('[') {
                    true => "[Section] and at most a comment behind it",
                    false => "Key = value",
                };
                let error = format!("expected {expected}, got {}", quote(word));
                self.error(number, error);
                None
            }
            IniLine::Pair(..) if self.is_unknown => None,
            IniLine::Pair(key, text) if self.parts.is_empty() => {
                self.root_pair(number, key, text);
                None
            }
            IniLine::Pair(key, text) => self.pair(number, line, key, text),
        }
    }

    /// Follows the comment `# Open = yes`.
    fn open(&mut self, number: usize, comment: &str) {
        let Some(part) = (self.parts.last_mut()).filter(|part| part.section.leads_anywhere())
        else {
            return;
        };
        let pair = comment.strip_prefix('#').and_then(|it| it.split_once('='));
        let Some((_, value)) = pair.filter(|(key, _)| key.trim().eq_ignore_ascii_case("open"))
        else {
            return;
        };
        // A comment may follow, as behind other values.
        let value = value.split(['#', ';']).next().unwrap_or_default().trim();
        match value.to_ascii_lowercase().as_str() {
            "yes" => part.is_open = true,
            "no" => part.is_open = false,
            _ => self.warn(
                number,
                "# Open: expected yes or no, so that it does nothing",
            ),
        }
    }

    fn root_pair(&mut self, number: usize, key: &str, text: &str) {
        if !key.eq_ignore_ascii_case("WGConfig") {
            let error = match nearest(key, &["WGConfig"]) {
                Some(name) => format!("there is no key {}: did you mean {name}?", quote(key)),
                None => format!(
                    "{} stands before the first section: expected WGConfig there, or a section such as [Interface] \
                     above it",
                    quote(key)
                ),
            };
            self.error(number, error);
        } else if let Some(first) = &self.wg_config {
            let second = format!("WGConfig stands on line {} as well: keep one", first.line);
            self.error(number, second);
        } else if let Some(value) = self.value(number, "", "WGConfig", text) {
            if value.is_empty() {
                self.error(
                    number,
                    "WGConfig has no value: write the path of a wg-quick file",
                );
                return;
            }
            self.wg_config = Some(KeyLine {
                line: number,
                key: "WGConfig",
                value,
            });
        }
    }

    fn pair(
        &mut self,
        number: usize,
        line: &str,
        key: &str,
        text: &str,
    ) -> Option<Zeroizing<String>> {
        let section = self.parts.last()?.section;
        let Some(name) = section.key(key) else {
            let own = nearest(key, &["CheckAlive", "CheckAliveInterval"]);
            let own = own.filter(|_| section == ProxySection::Interface);
            if section.is_of_tunnel() && own.is_none() {
                // The reader of wg-quick's files knows whose keys there are.
                return Some(Zeroizing::new(line.to_owned()));
            }
            self.error(number, sections::no_key(section, key));
            return None;
        };
        if section.is_of_tunnel() && sections::is_of_host(name) {
            self.pass_over(
                number,
                format!("{name} is passed over: a proxy changes nothing of the host's network"),
            );
            return None;
        }
        let Some(value) = self.value(number, section.name(), name, text) else {
            self.parts.last_mut()?.wrong.push(name);
            return None;
        };
        let copy = match section.is_of_tunnel() && !name.starts_with("CheckAlive") {
            true => Some(as_wg_quick(line, name, &value)),
            false => None,
        };
        let part = self.parts.last_mut()?;
        let first = part.seen.get(name).and_then(|at| part.keys.get(*at));
        match first.filter(|_| !sections::is_list(name)) {
            // Said twice, and the same.
            Some(first) if first.value == value => return None,
            Some(first) => {
                let twice = format!(
                    "[{}] {name} stands on line {} as well, with another value: keep one (wireproxy takes the first, \
                     wg-quick the last)",
                    section.name(),
                    first.line
                );
                self.error(number, twice);
                return None;
            }
            None => {}
        }
        part.seen.entry(name).or_insert(part.keys.len());
        part.keys.push(KeyLine {
            line: number,
            key: name,
            value,
        });
        copy
    }

    /// The value of a key, with what the environment has for it.
    fn value(
        &mut self,
        number: usize,
        section: &str,
        key: &str,
        text: &str,
    ) -> Option<Zeroizing<String>> {
        let place = match section {
            "" => key.to_owned(),
            _ => format!("[{section}] {key}"),
        };
        let value = match ini::value(text) {
            Ok(value) => value,
            Err(error) => {
                self.error(number, format!("{place}: {error}"));
                return None;
            }
        };
        self.open(number, value.comment);
        if value.is_cut && matches!(key, "Username" | "Password") {
            let cut = format!(
                "{place}: what stands behind '#' or ';' is a comment, as wireproxy has it: write the value between \
                 `backquotes` if it is part of it"
            );
            self.warn(number, cut);
        }
        match self.expanded(value.text, key) {
            Ok(value) => Some(value),
            Err(error) => {
                self.error(number, format!("{place}: {error}"));
                None
            }
        }
    }

    /// The value, or that of the variable of the environment which it names. Two `$` are one, and no name.
    fn expanded(&self, value: &str, key: &str) -> Result<Zeroizing<String>, String> {
        if refers(value) {
            return Err(
                "%(name)s would be replaced by wireproxy, and is not here: write the value itself"
                    .into(),
            );
        }
        let Some(name) = value.strip_prefix('$') else {
            return Ok(Zeroizing::new(value.to_owned()));
        };
        if name.starts_with('$') {
            return Ok(Zeroizing::new(name.to_owned()));
        }
        let found = match name.is_empty() || name.contains(['=', '\0']) {
            true => None,
            false => (self.environment)(name).map(Zeroizing::new),
        };
        // A password that begins so would be shown.
        let is_secret = matches!(
            key,
            "Username" | "Password" | "PrivateKey" | "PresharedKey" | "PublicKey"
        );
        let shown = match is_secret {
            true => "of this name".to_owned(),
            false => quote(name),
        };
        let Some(found) = found else {
            return Err(format!(
                "the environment has no variable {shown}: set it, or write $$ where a $ is meant"
            ));
        };
        let line = found.trim_end_matches(['\r', '\n']);
        match line.chars().any(char::is_control) {
            true => Err(format!(
                "the variable {shown} of the environment has more than one line, or characters that no value has"
            )),
            false => Ok(Zeroizing::new(line.to_owned())),
        }
    }
}

/// Whether a value has a reference to another one, as go-ini replaces them.
fn refers(value: &str) -> bool {
    let mut rest = value;
    while let Some((_, behind)) = rest.split_once("%(") {
        let end = behind.split_once(")s").map(|(name, _)| name);
        if end.is_some_and(|name| !name.is_empty() && !name.contains(')')) {
            return true;
        }
        rest = behind;
    }
    false
}

/// A line as wg-quick would have it: itself, where it is one.
fn as_wg_quick(line: &str, key: &str, value: &str) -> Zeroizing<String> {
    let is_same = line.split_once('=').is_some_and(|(before, behind)| {
        !before.contains(':') && behind.split('#').next().unwrap_or_default().trim() == value
    });
    match is_same {
        true => Zeroizing::new(line.to_owned()),
        false => Zeroizing::new(format!("{key} = {value}")),
    }
}
