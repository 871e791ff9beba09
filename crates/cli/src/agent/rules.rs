//! The ports that records allow, in the packet filter.
//!
//! `adit_fleet::RuleBook` has the elements, and a file in the folder of the agent, which outlives a killed process, a
//! line for each change of them. Another process (`filter`) sets them, which alone has the right to do so.
//!
//! What cannot be set is closed: a record with AllowedPorts is then refused, and its peer removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use adit_fleet::{
    PeerRecord, Reconciler, RecordChange, RecordId, RuleBook, RuleChange, RuleElement,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::brought::replace;
use super::filter;
use super::news::{AgentNews, NewsSender};
use super::sources::start_thread;
use crate::cli::ServeAgentArgs;
use crate::failure::{Context, Result, bail, say};

/// When to try again what the kernel refused.
const AGAIN: Duration = Duration::from_secs(30);
/// Lines that are added to the file before it is written anew.
const MAX_ADDED: usize = 20_000;
const NOT_ASKED: &str =
    "AllowedPorts: the agent was started without --rules, by which the packet filter keeps to it";

pub(super) const ENDED: &str = "the process that sets the rules of peers has ended";

/// Keeps the packet filter to the records.
pub(super) struct PeerRules {
    interface: String,
    /// `None` without `--rules`.
    process: Option<RuleProcess>,
    file: Option<RuleFile>,
    book: RuleBook,
    /// The kernel's elements are not known to be those of the book.
    is_whole_due: bool,
    /// Why they cannot be set, and when to try it again.
    failure: Option<(String, Instant)>,
    is_told: bool,
    /// Records that are refused for that.
    refused: HashMap<RecordId, PeerRecord>,
}

impl PeerRules {
    /// Starts the process, which must be before the sandbox.
    pub(super) fn start(args: &ServeAgentArgs) -> Result<Self> {
        let mut rules = Self {
            interface: args.interface.clone(),
            process: None,
            file: None,
            book: RuleBook::default(),
            is_whole_due: true,
            failure: None,
            is_told: false,
            refused: HashMap::new(),
        };
        if !args.rules {
            return Ok(rules);
        }
        let path = args.state.join(format!("{}.rules", args.interface));
        let opened = RuleFile::open(path.clone());
        let (file, elements) = opened.context(|| {
            format!(
                "cannot read and rewrite the rules of peers, {}",
                path.display()
            )
        })?;
        rules.book = RuleBook::new(elements);
        rules.file = Some(file);
        let process = RuleProcess::start(args);
        rules.process = Some(process.context(|| "cannot start a process".into())?);
        Ok(rules)
    }

    /// Has a thread tell when the process has ended: nothing makes a table again that another program deletes, until
    /// the next agent begins.
    pub(super) fn watch(&self, news: &NewsSender) -> Result<()> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        let failed = || "cannot watch the process that sets the rules of peers".to_owned();
        let stdout = process.stdout.get_ref().as_fd().try_clone_to_owned();
        let (stdout, news) = (stdout.context(failed)?, news.clone());
        start_thread("adit-rules-end", move || {
            // Only the end of its output, whose lines are read elsewhere.
            let mut end = [PollFd::new(&stdout, PollFlags::empty())];
            while end[0].revents().is_empty() {
                // Errors are of signals.
                let _ = poll(&mut end, None);
            }
            let _ = news.0.send(AgentNews::RulesEnded);
        })
    }

    /// Why rules cannot be set.
    pub(super) fn failure(&self) -> Option<&String> {
        self.failure.as_ref().map(|(why, _)| why)
    }

    /// Refuses records whose rules cannot be set.
    pub(super) fn admit(
        &mut self,
        changes: &mut [(RecordId, RecordChange)],
        reconciler: &mut Reconciler,
    ) {
        let why = match (&self.process, &self.failure) {
            (None, _) => NOT_ASKED.to_owned(),
            (Some(_), Some((why, _))) => refusal(why),
            (Some(_), None) => return,
        };
        let mut closed = Vec::new();
        for (id, change) in changes {
            self.refused.remove(id);
            if let RecordChange::Put(record) = change
                && record.allowed_ports.is_some()
            {
                if self.process.is_some() {
                    self.refused.insert(RecordId::clone(id), (**record).clone());
                }
                *change = RecordChange::Bad(why.clone());
                closed.push((RecordId::clone(id), RecordChange::Delete));
            }
        }
        reconciler.change(closed);
    }

    /// The source has these records, and no others.
    pub(super) fn retain(&mut self, ids: &HashSet<RecordId>) {
        self.refused.retain(|id, _| ids.contains(id));
    }

    /// These are let go of.
    pub(super) fn forget(&mut self, ids: &[RecordId]) {
        ids.iter().for_each(|id| drop(self.refused.remove(id)));
    }

    /// Before the interface is changed: what is due is limited first. A record whose rules cannot be set is refused.
    pub(super) fn prepare(&mut self, reconciler: &mut Reconciler, is_up: bool) -> Result<()> {
        if self.process.is_none() || !is_up {
            return Ok(());
        }
        if self
            .failure
            .as_ref()
            .is_some_and(|(_, at)| *at <= Instant::now())
        {
            self.failure = None;
            self.commit(&RuleChange::default(), reconciler)?;
            if self.failure.is_none() {
                let refused = std::mem::take(&mut self.refused).into_iter();
                let put = refused.map(|(id, record)| (id, RecordChange::Put(Box::new(record))));
                reconciler.change(put);
                self.is_told = false;
                say!("adit: {}: the rules of peers are set again", self.interface);
            }
        }
        let change = self.book.prepare(reconciler);
        self.commit(&change, reconciler)?;
        if self.failure.is_some() {
            // Of those that are refused since.
            let change = self.book.prepare(reconciler);
            self.commit(&change, reconciler)?;
        }
        Ok(())
    }

    /// After it.
    pub(super) fn finish(&mut self, reconciler: &mut Reconciler, is_up: bool) -> Result<()> {
        if self.process.is_none() || !is_up {
            return Ok(());
        }
        let change = self.book.finish(reconciler);
        self.commit(&change, reconciler)
    }

    /// Has the kernel have what the book has, of which this is new.
    fn commit(&mut self, change: &RuleChange, reconciler: &mut Reconciler) -> Result<()> {
        let (Some(process), Some(file)) = (&mut self.process, &mut self.file) else {
            return Ok(());
        };
        if change.is_empty() && !self.is_whole_due {
            return Ok(());
        }
        let mut lines = String::new();
        for element in &change.delete {
            _ = writeln!(lines, "- {element}");
        }
        for element in &change.add {
            _ = writeln!(lines, "+ {element}");
        }
        let written = file.add(&lines, &self.book);
        written.context(|| "cannot write the rules of peers".into())?;
        if self.failure.is_some() {
            self.is_whole_due = true;
            return Ok(());
        }
        if self.is_whole_due {
            lines = "anew\n".to_owned() + &text_of(&self.book);
        }
        let answer = match process.ask(&(lines + "commit here\n")) {
            Ok(answer) => answer,
            Err(error) => bail!(State, "{}: {ENDED}: {error}", self.interface),
        };
        self.is_whole_due = answer.is_err();
        if let Err(why) = answer {
            let why = format!("cannot limit peers to their AllowedPorts: {why}");
            if !self.is_told {
                say!("adit: {}: {why}", self.interface);
            }
            self.is_told = true;
            self.refuse(&why, reconciler);
            self.failure = Some((why, Instant::now() + AGAIN));
        }
        Ok(())
    }

    /// Refuses the records that are due and have rules, and removes their peers.
    fn refuse(&mut self, why: &str, reconciler: &mut Reconciler) {
        let list = reconciler.list();
        let due = reconciler.due().filter_map(|key| {
            let record = list.of(key).filter(|it| it.allowed_ports.is_some())?;
            Some((RecordId::clone(list.id_of(key)?), record.clone()))
        });
        let due: Vec<(RecordId, PeerRecord)> = due.collect();
        let change = |change: RecordChange| {
            let ids = due.iter().map(|(id, _)| RecordId::clone(id));
            let changes = ids.map(move |id| (id, change.clone()));
            changes.collect::<Vec<_>>()
        };
        reconciler.change(change(RecordChange::Delete));
        reconciler.change(change(RecordChange::Bad(refusal(why))));
        self.refused.extend(due);
    }
}

fn refusal(why: &str) -> String {
    format!("AllowedPorts: {why}: the peer is not there until that works")
}

fn text_of(book: &RuleBook) -> String {
    let mut text = String::new();
    for element in book.elements() {
        _ = writeln!(text, "+ {element}");
    }
    text
}

/// All elements, as changes of them.
struct RuleFile {
    path: PathBuf,
    file: File,
    /// Lines since it was written.
    added: usize,
}

impl RuleFile {
    /// Reads it, and writes it anew.
    fn open(path: PathBuf) -> io::Result<(Self, BTreeSet<RuleElement>)> {
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let mut elements = BTreeSet::new();
        // A line that is not whole, as of a disk that is full, says nothing.
        for line in text.split_inclusive('\n') {
            let Some((word, element)) = line.strip_suffix('\n').and_then(|it| it.split_once(' '))
            else {
                break;
            };
            match (word, element.parse()) {
                ("+", Ok(element)) => _ = elements.insert(element),
                ("-", Ok(element)) => _ = elements.remove(&element),
                _ => {}
            }
        }
        let book = RuleBook::new(elements.iter().copied());
        let file = replace(&path, text_of(&book).as_bytes(), None)?;
        let opened = Self {
            path,
            file,
            added: 0,
        };
        Ok((opened, elements))
    }

    /// Adds lines, which the book has already.
    fn add(&mut self, lines: &str, book: &RuleBook) -> io::Result<()> {
        self.added += lines.lines().count();
        if self.added > MAX_ADDED {
            self.file = replace(&self.path, text_of(book).as_bytes(), None)?;
            self.added = 0;
            return Ok(());
        }
        self.file.write_all(lines.as_bytes())
    }
}

/// The process that sets the elements. It ends with this.
struct RuleProcess {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl RuleProcess {
    fn start(args: &ServeAgentArgs) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("adit")
            .arg(filter::ARGUMENT)
            .arg(&args.interface);
        if !args.has_sandbox() {
            command.arg(filter::WITHOUT_SANDBOX);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Has it make a change, or says why it cannot.
    fn ask(&mut self, lines: &str) -> io::Result<std::result::Result<(), String>> {
        self.stdin.write_all(lines.as_bytes())?;
        let mut answer = String::new();
        let _ = self.stdout.read_line(&mut answer)?;
        match answer.trim_end() {
            "ok" => Ok(Ok(())),
            answer => match answer.strip_prefix("error ") {
                Some(why) => Ok(Err(why.to_owned())),
                None => Err(ErrorKind::UnexpectedEof.into()),
            },
        }
    }
}
