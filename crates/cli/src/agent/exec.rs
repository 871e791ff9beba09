//! Records that a program tells, a line of JSON each.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use adit_fleet::{MAX_LINE, ProgramLine, RecordChange, RecordId};
use zeroize::Zeroizing;

use super::dir::{MAX_RECORDS, PIECE};
use super::news::{NewsSender, SourceNews};
use super::program;

/// The process that runs the program. It ends when the end of its standard input that is kept here is closed.
pub(super) fn start(interface: &str, program: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("adit").arg(program::ARGUMENT).arg(interface);
    command.args(program.iter().map(OsStr::new));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// The thread that reads what it says.
pub(super) struct ProgramSource {
    lines: BufReader<ChildStdout>,
    news: NewsSender,
    /// Records since the program began.
    ids: HashSet<RecordId>,
    changes: Vec<(RecordId, RecordChange)>,
    /// Its lines since it began.
    number: u64,
    /// Those that name no record.
    bad: u64,
    /// It told of too many records, so that its list is none.
    has_too_many: bool,
}

/// Lines that name no record, and have a refusal each.
const MAX_BAD: u64 = 1_000;

impl ProgramSource {
    pub(super) fn new(stdout: ChildStdout, news: NewsSender) -> Self {
        Self {
            lines: BufReader::new(stdout),
            news,
            ids: HashSet::new(),
            changes: Vec::new(),
            number: 0,
            bad: 0,
            has_too_many: false,
        }
    }

    /// Reads until there is nothing any more.
    pub(super) fn work(mut self) {
        let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        let mut line = Zeroizing::new(Vec::new());
        loop {
            line.clear();
            let read = self
                .lines
                .by_ref()
                .take(most + 2)
                .read_until(b'\n', &mut line);
            if !matches!(read, Ok(1..)) {
                break;
            }
            if !line.ends_with(b"\n") && self.lines.skip_until(b'\n').is_err() {
                break;
            }
            self.line(line.trim_ascii_end());
            // More is there already.
            let has_more = self.lines.buffer().contains(&b'\n');
            if !has_more || self.changes.len() >= PIECE {
                self.flush();
            }
        }
        let why = "the process that runs it has ended: start the agent again";
        self.news.send(SourceNews::Ended(why.into()));
    }

    fn line(&mut self, line: &[u8]) {
        if let Some((&program::MARK, why)) = line.split_first() {
            self.flush();
            self.ids.clear();
            (self.number, self.bad, self.has_too_many) = (0, 0, false);
            let why = String::from_utf8_lossy(why).into_owned();
            return self.news.send(SourceNews::Failing(why));
        }
        if line.is_empty() {
            return;
        }
        self.number += 1;
        match ProgramLine::parse(line) {
            ProgramLine::Change(id, RecordChange::Delete) => {
                self.ids.remove(&id);
                self.changes.push((id, RecordChange::Delete));
            }
            ProgramLine::Change(id, change) => self.put(id, change),
            ProgramLine::Bad(why) => {
                self.bad += 1;
                let id = match self.bad <= MAX_BAD {
                    true => format!("line {}", self.number),
                    false => format!("any line after {MAX_BAD} bad ones"),
                };
                self.put(id.into(), RecordChange::Bad(why));
            }
            // What was left out would count as removed.
            ProgramLine::Listed if self.has_too_many => {}
            ProgramLine::Listed => {
                self.flush();
                self.news.send(SourceNews::Listed(self.ids.clone(), None));
            }
        }
    }

    fn put(&mut self, id: RecordId, change: RecordChange) {
        if self.ids.len() >= MAX_RECORDS && !self.ids.contains(&id) {
            if !std::mem::replace(&mut self.has_too_many, true) {
                let why = format!(
                    "it tells of more than {MAX_RECORDS} records: the rest is left out, and nothing is removed"
                );
                self.news.send(SourceNews::Failing(why));
            }
            return;
        }
        self.ids.insert(RecordId::clone(&id));
        self.changes.push((id, change));
    }

    fn flush(&mut self) {
        if !self.changes.is_empty() {
            let changes = std::mem::take(&mut self.changes);
            self.news.send(SourceNews::Changes(changes));
        }
    }
}

#[cfg(test)]
#[path = "exec_tests.rs"]
mod tests;
