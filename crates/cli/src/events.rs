//! `adit events`: what happens to interfaces, as it happens, and what the journal kept of it.

mod journal;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use adit_ctl::status::{self, EventJson};
use adit_ctl::text::{Clean, printable_json};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::{self, EventsArgs};
use crate::failure::{Context, Result, bail, say};
use crate::show;

/// How often to look for interfaces that are new.
const LOOK: Duration = Duration::from_secs(1);
/// How often, and how soon, to look for the process that goes on in place of one that ended: it has the
/// same socket, until it says that this is its own.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Longest line.
const MAX_LINE: usize = 64 << 10;

/// An interface that is listened to.
pub(crate) struct EventStream {
    stream: UnixStream,
    /// Read, and without a line end yet.
    begun: Vec<u8>,
}

pub(crate) fn events(args: &EventsArgs) -> Result<()> {
    if let Some(since) = &args.since {
        let only = args.interface.as_deref();
        journal::read(since, only, |event| print(event, args.json))?;
        if !args.follow {
            return Ok(());
        }
    }
    let mut sources = BTreeMap::new();
    if let Some(name) = &args.interface {
        let source = status::listen(name).and_then(EventStream::new);
        let source = source.map_err(|error| show::explain(name, error.into()))?;
        sources.insert(name.clone(), source);
    }
    loop {
        if args.interface.is_none() {
            find(&mut sources)?;
        }
        let mut polled: Vec<PollFd<'_>> = (sources.values())
            .map(|source| PollFd::new(&source.stream, PollFlags::IN))
            .collect();
        let timeout = args.interface.is_none().then_some(LOOK);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context(|| "cannot wait for events".into()),
        }
        let mut ended = Vec::new();
        for (name, source) in &mut sources {
            if !source.take(|line| print_line(line, args.json))? {
                ended.push(name.clone());
            }
        }
        for name in ended {
            let ended = sources.remove(&name);
            if let Some(source) = ended.and_then(|ended| ended.successor(&name)) {
                sources.insert(name, source);
                continue;
            }
            say!("adit: {name} has ended");
            if args.interface.is_some() {
                return Ok(());
            }
        }
    }
}

/// Listens to what is new. Interfaces of other implementations have no events.
fn find(sources: &mut BTreeMap<String, EventStream>) -> Result<()> {
    for name in show::names() {
        if sources.contains_key(&name) {
            continue;
        }
        match status::listen(&name).and_then(EventStream::new) {
            Ok(source) => drop(sources.insert(name, source)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(show::explain(&name, error.into()));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

impl EventStream {
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let begun = Vec::new();
        Ok(Self { stream, begun })
    }

    fn process(&self) -> Option<i32> {
        let (pid, _) = adit_io::peer(self.stream.as_fd()).ok()?;
        Some(pid).filter(|pid| *pid > 0)
    }

    /// Another process that goes on in place of this one, if one does.
    fn successor(self, name: &str) -> Option<Self> {
        let before = self.process()?;
        for _ in 0..ATTEMPTS {
            let source = status::listen(name).and_then(Self::new).ok()?;
            if source.process()? != before {
                return Some(source);
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Readable when there are events.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Hands over the lines that are there. False: the interface has ended.
    pub(crate) fn take(&mut self, mut line: impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let mut piece = [0; 16 << 10];
        loop {
            let count = match self.stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Ok(false),
            };
            self.begun.extend_from_slice(&piece[..count]);
            while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                line(&self.begun[..=end])?;
                self.begun.drain(..=end);
            }
            if self.begun.len() > MAX_LINE {
                bail!(State, "the process sends what is no event");
            }
        }
    }
}

fn print_line(line: &[u8], json: bool) -> Result<()> {
    if json && serde_json::from_slice::<EventJson>(line).is_ok() {
        // Whole, with fields that this program does not know.
        let text = String::from_utf8_lossy(line);
        return cli::print(printable_json(&text).as_bytes());
    }
    match serde_json::from_slice(line) {
        Ok(event) => print(event, json),
        // A process that is older has no events, and sends its status.
        Err(_) => bail!(
            State,
            "the process of the interface is older than this command and has no events"
        ),
    }
}

fn print(mut event: EventJson, json: bool) -> Result<()> {
    event.clean();
    let text = match json {
        true => {
            let text = serde_json::to_string(&event).context(|| "cannot write JSON".into())?;
            printable_json(&text).into_owned() + "\n"
        }
        false => format!(
            "{} {} {}: {}\n",
            utc(event.time),
            event.interface,
            event.event.replace('_', " "),
            event.text
        ),
    };
    cli::print(text.as_bytes())
}

/// A time since the Unix epoch as `2026-11-24T12:10:14.123Z`.
pub(crate) fn utc(time: f64) -> String {
    let time = Duration::try_from_secs_f64(time).unwrap_or_default();
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days from 1970 on: years begin in March, so that the
    // day that not every year has is the last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (time, text) in [
            (0.0, "1970-01-01T00:00:00.000Z"),
            (951_782_399.5, "2000-02-28T23:59:59.500Z"),
            (951_782_400.0, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599.999, "2024-12-31T23:59:59.999Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(time), text);
        }
    }
}
