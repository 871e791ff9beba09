//! The page of `adit top`, for any width.

use super::screen::{Style, Styled};
use super::{Line, PAGE_WIDTH, Top};
use crate::show;
use crate::view::{self, Row, Sort};

/// Interfaces on a screen that have a line each; the peers of all follow.
const INTERFACES: usize = 8;
/// Columns of a screen below which an interface has no packets and drops, and no threads.
const NARROW: usize = 72;
const WIDE: usize = 100;

/// A column of the table of peers.
struct Column {
    title: &'static str,
    width: usize,
    is_right: bool,
    text: fn(&Row, u64) -> String,
}

const fn column(
    title: &'static str,
    width: usize,
    is_right: bool,
    text: fn(&Row, u64) -> String,
) -> Column {
    Column {
        title,
        width,
        is_right,
        text,
    }
}

fn rate(row: &Row, which: usize) -> String {
    row.rates
        .map_or_else(|| "-".into(), |rates| view::bit_rate(rates[which].into()))
}

/// In the order in which they stand; a narrow screen leaves those out that [`WANTED`] names last.
const COLUMNS: [Column; 10] = [
    column("IFACE", 8, false, |row, _| row.interface.to_string()),
    column("PEER", PEER, false, |row, _| view::fit(&row.name(), PEER)),
    column("STATE", 7, false, |row, _| row.state.to_string()),
    column("ENDPOINT", 22, false, |row, _| row.endpoint.to_string()),
    column("HANDSHAKE", 10, true, |row, now| {
        view::age(row.handshake, now)
    }),
    column("LATENCY", 7, true, |row, _| {
        row.latency.map_or_else(|| "-".into(), view::latency)
    }),
    column("RX bit/s", 9, true, |row, _| rate(row, 0)),
    column("TX bit/s", 9, true, |row, _| rate(row, 1)),
    column("DROP/s", 7, true, |row, _| {
        row.rates
            .map_or_else(|| "-".into(), |rates| view::count(rates[2].into()))
    }),
    column("PROBLEM", PROBLEM, false, |row, _| {
        let problem = match show::problem(row) {
            problem if problem.is_empty() && row.drops > 0 => {
                let reason = row.drop_reason.as_deref().unwrap_or_default();
                format!("dropped: {reason}")
            }
            problem => problem,
        };
        view::fit(&problem, PROBLEM)
    }),
];

/// Columns of names, and of the last one.
const PEER: usize = 18;
const PROBLEM: usize = 24;

/// Columns by how much they are wanted, most first, behind that of the order.
const WANTED: [usize; 10] = [1, 6, 7, 4, 2, 8, 3, 9, 0, 5];

/// The column that the rows are sorted by, and the sign for its direction.
fn sorted(sort: Sort) -> (usize, char) {
    match sort {
        Sort::Name => (1, '↑'),
        Sort::Endpoint => (3, '↑'),
        Sort::Handshake => (4, '↓'),
        Sort::Rx => (6, '↓'),
        Sort::Tx => (7, '↓'),
        Sort::Drops => (8, '↓'),
    }
}

/// The columns that fit, in their order.
fn fitting(width: usize, sort: Sort) -> Vec<usize> {
    let (mut used, mut chosen) = (0, Vec::new());
    let (by, _) = sorted(sort);
    let others = WANTED.into_iter().skip(1).filter(|index| *index != by);
    for index in [WANTED[0], by].into_iter().chain(others) {
        if chosen.contains(&index) {
            continue;
        }
        let needed = COLUMNS[index].width + 1;
        if used + needed > width + 1 {
            break;
        }
        used += needed;
        chosen.push(index);
    }
    chosen.sort_unstable();
    chosen
}

/// Keys, and what they do.
const KEYS: [(&str, &str); 9] = [
    ("q, Ctrl-C", "end"),
    ("s", "sort by the next column: its heading has an arrow"),
    ("/", "show only peers of this name, key or address"),
    ("Enter", "keep that filter, and leave it"),
    ("Esc", "show all peers again"),
    ("p, space", "pause, and go on"),
    ("↑ ↓, k j", "scroll by one peer"),
    ("PgUp PgDn", "scroll by twenty; Home goes to the first"),
    ("?", "show these keys, and leave them"),
];

impl Top {
    /// A screen of so many columns and lines, of which the last says which keys there are.
    pub(super) fn screen(&self, [width, height]: [usize; 2]) -> Vec<Styled> {
        let height = height.saturating_sub(1);
        let mut lines = match self.is_helping {
            true => KEYS
                .iter()
                .map(|(key, what)| (view::fit(&format!("{key:<10} {what}"), width), Style::Plain))
                .collect(),
            false => self.lines(width, Some(height)),
        };
        lines.truncate(height);
        lines.resize(height, Styled::default());
        lines.push((self.help(width), Style::Bold));
        for (text, style) in &mut lines {
            if let Some((end, _)) = text.char_indices().nth(width) {
                text.truncate(end);
            }
            if !self.colour {
                *style = Style::Plain;
            }
        }
        lines
    }

    /// All of it as text, for what is no terminal.
    pub(super) fn page(&self) -> String {
        let lines = self.lines(PAGE_WIDTH, None).into_iter();
        lines
            .map(|(line, _)| line.trim_end().to_owned() + "\n")
            .collect()
    }

    /// The page without the last line; without a height all rows.
    fn lines(&self, width: usize, height: Option<usize>) -> Vec<Styled> {
        let mut lines = vec![(view::fit(&self.title(), width), Style::Bold)];
        let errors = self.errors().iter();
        lines.extend(errors.map(|error| (view::fit(error, width), Style::Red)));
        lines.push((Line::heading(width), Style::Heading));
        let shown = self
            .lines
            .iter()
            .take(height.map_or(usize::MAX, |_| INTERFACES));
        lines.extend(shown.map(|line| (line.text(width), Style::Green)));
        if height.is_some() && self.lines.len() > INTERFACES {
            let more = self.lines.len() - INTERFACES;
            lines.push((format!("… {more} more"), Style::Plain));
        }
        let columns = fitting(width, self.sort);
        let join = |text: &dyn Fn(usize, &Column) -> String| {
            let cells = columns.iter().map(|index| {
                let column = &COLUMNS[*index];
                view::cell(&text(*index, column), column.width, column.is_right)
            });
            cells.collect::<Vec<_>>().join(" ")
        };
        let title = |index, column: &Column| match sorted(self.sort) {
            (by, arrow) if by == index => format!("{}{arrow}", column.title),
            _ => column.title.to_owned(),
        };
        lines.push(Styled::default());
        lines.push((join(&title), Style::Heading));
        let room = height.map_or(usize::MAX, |height| height.saturating_sub(lines.len()));
        for row in self.rows().skip(self.scroll).take(room) {
            let style = match &*row.state {
                "up" => Style::Plain,
                "silent" => Style::Yellow,
                "gone" => Style::Red,
                _ => Style::Grey,
            };
            lines.push((join(&|_, column| (column.text)(row, self.now)), style));
        }
        lines
    }

    fn title(&self) -> String {
        let peers: usize = self.lines.iter().map(|line| line.peers).sum();
        let up: usize = self.lines.iter().map(|line| line.up).sum();
        let mut title = format!(
            "adit: {up} of {peers} peers up, sorted by {}",
            self.sort.name()
        );
        if !self.filter.words().is_empty() || self.is_typing {
            title += &format!(", {} match {:?}", self.order.len(), self.filter.words());
        }
        if self.is_paused {
            title += ", paused";
        }
        title
    }

    fn help(&self, width: usize) -> String {
        if self.is_typing {
            let typed = format!("filter: {}_", self.filter.words());
            return view::fit(&(typed + "  (Enter keeps it, Esc removes it)"), width);
        }
        // As many of them as fit.
        let keys = [
            "? help",
            "q quit",
            "s sort",
            "/ filter",
            "Esc all",
            "p pause",
            "↑↓ scroll",
        ];
        let mut help = String::new();
        for key in keys {
            let between = if help.is_empty() { "" } else { "  " };
            let longer = format!("{help}{between}{key}");
            if longer.chars().count() <= width {
                help = longer;
            }
        }
        help
    }
}

impl Line {
    fn heading(width: usize) -> String {
        let first = "INTERFACE             UP/PEERS RX bit/s TX bit/s";
        match width {
            0..48 => view::fit(first, width),
            48..NARROW => first.to_owned(),
            NARROW..WIDE => format!("{first} RX pk/s TX pk/s DROPS/s"),
            _ => format!("{first} RX pk/s TX pk/s DROPS/s             THREADS, CPU"),
        }
    }

    fn text(&self, width: usize) -> String {
        let peers = format!("{}/{}", self.up, self.peers);
        let [rx, tx] = self.bytes.map(view::bit_rate);
        let first = format!(
            "{} {peers:>14} {rx:>8} {tx:>8}",
            view::cell(&self.name, 15, false)
        );
        if width < NARROW {
            return view::fit(&first, width);
        }
        let [rx, tx] = match self.packets {
            Some(packets) => packets.map(view::count),
            None => ["-".to_owned(), "-".to_owned()],
        };
        let drops: Vec<String> = (self.drops.iter().take(2))
            .map(|(reason, rate)| format!("{} {}", view::count(*rate), reason.replace('_', " ")))
            .collect();
        let drops = match drops.is_empty() {
            true => "0".to_owned(),
            false => drops.join(", "),
        };
        let line = format!("{first} {rx:>7} {tx:>7} ");
        if width < WIDE {
            return view::fit(&(line + &drops), width);
        }
        let threads: Vec<String> = (self.threads.iter().take(4))
            .map(|(name, share)| format!("{name} {share:.0}%"))
            .collect();
        let drops = view::cell(&view::fit(&drops, 19), 19, false);
        view::fit(&format!("{line}{drops} {}", threads.join(", ")), width)
    }
}
