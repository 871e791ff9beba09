//! `adit top`: interfaces and peers, live.
//!
//! One thread asks the processes once an interval; this one draws what came last and reads keys, so
//! that a process that hangs does not hold up the keyboard. Where the output is no terminal, one page
//! is printed as plain text.

mod draw;
mod screen;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use adit_ctl::status::{Colour, EngineJson, InterfaceJson, PeerRef};

use crate::cli::{self, TopArgs};
use crate::failure::{Context, Failure, Result, bail};
use crate::show;
use crate::view::{self, Filter, Known, Rates, Row, Sample, Sort};
use crate::watched::{Look, Watched};
use screen::{KeyPress, Screen};

#[cfg(test)]
#[path = "top_tests.rs"]
mod tests;

/// How long a key may wait for what came meanwhile to be drawn.
const TICK: Duration = Duration::from_millis(100);
/// Columns of a page that is no terminal's.
const PAGE_WIDTH: usize = 132;

/// The answers of processes at one time.
struct Shot {
    at: Instant,
    interfaces: Vec<Seen>,
    /// Their peers.
    rows: Vec<Row>,
    /// What could not be asked.
    errors: Vec<String>,
}

/// An interface at one time.
struct Seen {
    name: String,
    engine: Option<EngineJson>,
    up: usize,
    peers: usize,
    /// Bytes from and to all peers.
    bytes: [u64; 2],
    /// Packets in and out, as the kernel counts them; not in other network namespaces.
    packets: Option<[u64; 2]>,
}

/// Asks the processes.
struct Looker {
    only: Option<String>,
    watched: Watched<Known>,
    /// The number of the last look, and when it was.
    last: Option<(u64, Instant)>,
    /// Of the peers that are told whole each time.
    before: Option<Sample>,
}

impl Looker {
    fn new(only: Option<String>) -> Self {
        Self {
            only,
            watched: Watched::new(),
            last: None,
            before: None,
        }
    }

    fn look(&mut self) -> Shot {
        let at = Instant::now();
        let mut tell = self.next(at);
        let (looks, errors) = self.watched.look(self.only.as_deref(), &mut tell);
        let errors = errors.into_iter().map(|one| one.error).collect();
        self.shot(at, looks, errors)
    }

    /// Begins another look. What it returns makes what is known of a peer that is told.
    fn next(
        &mut self,
        at: Instant,
    ) -> impl FnMut(&str, &PeerRef<'_>, Option<&Known>) -> Known + use<> {
        let last = self.last.take();
        let number = last.map_or(0, |(number, _)| number + 1);
        self.last = Some((number, at));
        let since = last.map_or(Duration::ZERO, |(_, before)| at.duration_since(before));
        let seconds = since.as_secs_f64().max(0.001);
        let mut shared: Arc<str> = Arc::from("");
        move |interface, peer, before| {
            if *shared != *interface {
                shared = Arc::from(interface);
            }
            let mut known = Known::new(Arc::clone(&shared), peer);
            let before = before.filter(|before| before.key == known.key);
            known.told = (number, before.map(|before| known.rates(before, seconds)));
            known
        }
    }

    fn shot(&mut self, at: Instant, looks: Vec<Look<Known>>, errors: Vec<String>) -> Shot {
        let number = self.last.map_or(0, |(number, _)| number);
        let (mut interfaces, mut rows, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for Look { interface, peers } in looks {
            let first = rows.len();
            match peers {
                Some(peers) => rows.extend(peers.into_iter().map(|known| {
                    let rates = match known.told {
                        (told, rates) if told == number => rates,
                        _ => Some(Rates::default()),
                    };
                    Row::new(known, rates)
                })),
                None => {
                    let interfaces = std::slice::from_ref(&interface);
                    rows.extend(view::rows(interfaces, self.before.as_ref(), at));
                    whole.extend_from_slice(&rows[first..]);
                }
            }
            interfaces.push(Seen::new(interface, &rows[first..]));
        }
        self.before = (!whole.is_empty()).then(|| Sample::of(&whole, at));
        Shot {
            at,
            interfaces,
            rows,
            errors,
        }
    }
}

impl Seen {
    fn new(mut interface: InterfaceJson, rows: &[Row]) -> Self {
        let name = std::mem::take(&mut interface.name);
        let read = |file: &str| -> Option<u64> {
            let path = format!("/sys/class/net/{name}/statistics/{file}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let packets = || Some([read("rx_packets")?, read("tx_packets")?]);
        Self {
            packets: packets(),
            name,
            engine: interface.engine.take(),
            up: rows.iter().filter(|row| row.state == "up").count(),
            peers: rows.len(),
            bytes: [
                // Another process told them.
                rows.iter().map(|row| row.rx).fold(0, u64::saturating_add),
                rows.iter().map(|row| row.tx).fold(0, u64::saturating_add),
            ],
        }
    }
}

/// An interface, ready to be drawn.
#[derive(Debug, Default)]
struct Line {
    name: String,
    up: usize,
    peers: usize,
    /// Of bytes from and to all peers, in a second.
    bytes: [f64; 2],
    /// Of packets in and out, in a second.
    packets: Option<[f64; 2]>,
    /// Packets dropped in a second, by reason, most first; only reasons that occur.
    drops: Vec<(String, f64)>,
    /// Threads and their share of a CPU in percent, busiest first; only those that run.
    threads: Vec<(String, f64)>,
}

/// State of the screen.
pub(crate) struct Top {
    colour: bool,
    sort: Sort,
    filter: Filter,
    /// The filter is being typed.
    is_typing: bool,
    is_paused: bool,
    /// What the keys do is on the screen instead.
    is_helping: bool,
    /// The first row that is drawn.
    scroll: usize,
    lines: Vec<Line>,
    /// The places of those rows of the last shot that pass the filter, in order.
    order: Vec<u32>,
    last: Option<Shot>,
    /// The shot before, without its rows.
    before: Option<(Instant, Vec<Seen>)>,
    /// Seconds since the Unix epoch.
    now: u64,
}

pub(crate) fn top(args: &TopArgs) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut top = Top::new(args);
    let mut looker = Looker::new(args.interface.clone());
    if !std::io::stdout().is_terminal() {
        // Two looks, for the rates.
        for pause in [interval, Duration::ZERO] {
            top.take(looker.look());
            std::thread::sleep(pause);
        }
        if let (Some(error), true) = (top.errors().first(), top.lines.is_empty()) {
            bail!(State, "{error}");
        }
        return cli::print(top.page().as_bytes());
    }
    if let Some(name) = &args.interface {
        // A name that is wrong is better told before the screen is taken.
        show::interface(name)?;
    }
    // Without a place for one that waits: there are two of them at most.
    let (sender, shots) = sync_channel(0);
    let looks = std::thread::Builder::new()
        .name("adit-top".into())
        .spawn(move || {
            loop {
                let start = Instant::now();
                if sender.send(looker.look()).is_err() {
                    return;
                }
                std::thread::sleep(interval.saturating_sub(start.elapsed()));
            }
        });
    drop(looks.context(|| "cannot start a thread".into())?);
    let failed = || "cannot use the terminal".to_owned();
    let mut screen = Screen::new().context(failed)?;
    top.run(&mut screen, &shots)
}

impl Top {
    fn new(args: &TopArgs) -> Self {
        Self {
            colour: Colour::from_env() == Colour::Always,
            sort: args.sort,
            filter: Filter::new(args.peer.as_deref().unwrap_or_default()),
            is_typing: false,
            is_paused: false,
            is_helping: false,
            scroll: 0,
            lines: Vec::new(),
            order: Vec::new(),
            last: None,
            before: None,
            now: show::now(),
        }
    }

    /// Until the user ends it.
    fn run(&mut self, screen: &mut Screen, shots: &Receiver<Shot>) -> Result<()> {
        let failed = || "cannot use the terminal".to_owned();
        let mut is_stale = true;
        loop {
            match shots.try_recv() {
                Ok(_) if self.is_paused => {}
                Ok(shot) => {
                    self.take(shot);
                    is_stale = true;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return Err(Failure::State("the thread that looks has ended".into()));
                }
            }
            if screen.is_resized() || is_stale {
                screen.draw(|size| self.screen(size)).context(failed)?;
                is_stale = false;
            }
            for key in screen.keys(TICK).context(failed)? {
                if !self.key(key) {
                    return Ok(());
                }
                is_stale = true;
            }
        }
    }

    /// Does what a key says. False: the end.
    fn key(&mut self, key: KeyPress) -> bool {
        let words = self.filter.words().to_owned();
        match (key, self.is_typing) {
            (KeyPress::ControlC, _) => return false,
            (KeyPress::Enter, true) => self.is_typing = false,
            (KeyPress::Escape, _) => {
                self.is_typing = false;
                self.filter = Filter::default();
            }
            (KeyPress::Backspace, true) => {
                let kept = words.chars().count().saturating_sub(1);
                self.filter = Filter::new(&words.chars().take(kept).collect::<String>());
            }
            (KeyPress::Char(c), true) => self.filter = Filter::new(&format!("{words}{c}")),
            (KeyPress::Char('q'), false) => return false,
            (KeyPress::Char('?'), false) => self.is_helping = !self.is_helping,
            _ if std::mem::take(&mut self.is_helping) => {}
            (KeyPress::Char('s'), false) => self.sort = self.sort.next(),
            (KeyPress::Char('/'), false) => self.is_typing = true,
            (KeyPress::Char('p' | ' '), false) => self.is_paused = !self.is_paused,
            (KeyPress::Down | KeyPress::Char('j'), _) => self.scroll += 1,
            (KeyPress::Up | KeyPress::Char('k'), _) => self.scroll = self.scroll.saturating_sub(1),
            (KeyPress::PageDown, _) => self.scroll += 20,
            (KeyPress::PageUp, _) => self.scroll = self.scroll.saturating_sub(20),
            (KeyPress::Home, _) => self.scroll = 0,
            _ => {}
        }
        self.arrange();
        true
    }

    /// Takes what the processes said now.
    fn take(&mut self, shot: Shot) {
        self.now = show::now();
        let before = self.last.replace(shot);
        self.before = before.map(|shot| (shot.at, shot.interfaces));
        if let Some(last) = &self.last {
            let lines = last.interfaces.iter();
            self.lines = lines
                .map(|interface| Line::new(interface, last.at, self.before.as_ref()))
                .collect();
        }
        self.arrange();
    }

    fn arrange(&mut self) {
        let Some(last) = &self.last else {
            return;
        };
        self.order = view::order(&last.rows, &self.filter, self.sort);
        self.scroll = self.scroll.min(self.order.len().saturating_sub(1));
    }

    /// Rows that pass the filter, in order.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        let rows = self.last.as_ref().map_or(&[][..], |last| &last.rows);
        self.order.iter().map(|at| &rows[*at as usize])
    }

    fn errors(&self) -> &[String] {
        self.last.as_ref().map_or(&[], |last| &last.errors)
    }
}

impl Line {
    fn new(interface: &Seen, at: Instant, before: Option<&(Instant, Vec<Seen>)>) -> Self {
        let mut line = Self {
            name: interface.name.clone(),
            up: interface.up,
            peers: interface.peers,
            ..Self::default()
        };
        let Some((then, before)) = before else {
            return line;
        };
        let Some(earlier) = (before.iter()).find(|earlier| earlier.name == interface.name) else {
            return line;
        };
        let seconds = at.duration_since(*then).as_secs_f64().max(0.001);
        let rate = |now: u64, then: u64| view::precise(now.saturating_sub(then)) / seconds;
        let both = |now: [u64; 2], then: [u64; 2]| [0, 1].map(|at| rate(now[at], then[at]));
        line.bytes = both(interface.bytes, earlier.bytes);
        let packets = interface.packets.zip(earlier.packets);
        line.packets = packets.map(|(now, then)| both(now, then));
        let rates = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let rates = now.iter().map(|(name, count)| {
                (
                    name.clone(),
                    rate(*count, then.get(name).copied().unwrap_or(0)),
                )
            });
            let mut rates: Vec<(String, f64)> = rates.filter(|(_, rate)| *rate > 0.0).collect();
            rates.sort_by(|a, b| b.1.total_cmp(&a.1));
            rates
        };
        if let (Some(now), Some(then)) = (&interface.engine, &earlier.engine) {
            line.drops = rates(&now.drops, &then.drops);
            // Milliseconds in a second are tenths of a percent.
            line.threads = rates(&now.cpu_milliseconds, &then.cpu_milliseconds);
            line.threads
                .iter_mut()
                .for_each(|(_, share)| *share /= 10.0);
        }
        line
    }
}
