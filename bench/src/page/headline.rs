//! The first screen: five figures, each with whom it was measured against and on what.

use super::figures::{Drawing, Figure, Published, Run, Section, Values};
use super::names;

/// A figure that the first screen shows, where the results have it.
struct Wanted {
    question: &'static str,
    what: &'static str,
    command: &'static str,
    /// Empty for any.
    section: &'static str,
    figure: &'static str,
    /// Cores of the machine.
    cores: std::ops::RangeInclusive<usize>,
}

const ANY: std::ops::RangeInclusive<usize> = 0..=usize::MAX;
/// From how many cores on a machine shows what more of them bring.
const MANY: usize = 8;

const WANTED: [Wanted; 5] = [
    Wanted {
        question: "one-stream",
        what: "One TCP stream",
        command: "compare",
        section: "",
        figure: "tcp1",
        cores: 0..=MANY - 1,
    },
    Wanted {
        question: "latency",
        what: "Ping beside that stream",
        command: "compare",
        section: "",
        figure: "ping-load.p50",
        cores: 0..=MANY - 1,
    },
    Wanted {
        question: "many-peers",
        what: "TCP from 1,000 peers",
        command: "gateway",
        section: "peers-active-1000",
        figure: "from_peers_tcp",
        cores: ANY,
    },
    Wanted {
        question: "tls-and-ipsec",
        what: "One stream, beside TLS",
        command: "reproduce",
        section: "userspace-vs-kernel",
        figure: "tcp-1",
        cores: ANY,
    },
    Wanted {
        question: "more-cores",
        what: "One stream, more cores",
        command: "compare",
        section: "",
        figure: "tcp1",
        cores: MANY..=usize::MAX,
    },
];

/// Its values, and those that Adit is compared with.
pub(super) struct Headline<'a> {
    pub(super) question: &'static str,
    pub(super) what: &'static str,
    pub(super) figure: &'a Figure,
    pub(super) run: &'a Run,
    pub(super) adit: &'a Values,
    /// The best of the others on this machine, and Adit's median over its.
    pub(super) other: (&'a str, f64),
    /// The same of other results: the file and the ratio.
    pub(super) elsewhere: Vec<(&'a str, f64)>,
}

/// The figures that the results have. Each comes from the file with the most rounds, of several from the
/// newest.
pub(super) fn headlines(runs: &[Run]) -> Vec<Headline<'_>> {
    WANTED
        .iter()
        .filter_map(|wanted| headline(wanted, runs))
        .collect()
}

fn headline<'a>(wanted: &Wanted, runs: &'a [Run]) -> Option<Headline<'a>> {
    let mut found: Vec<_> = runs
        .iter()
        .filter(|run| run.command == wanted.command && wanted.cores.contains(&run.cores()))
        .filter_map(|run| {
            let (figure, bars) = run
                .sections
                .iter()
                .find_map(|section| bars(wanted, section))?;
            let (adit, other) = against(figure, bars)?;
            Some((run, figure, adit, other))
        })
        .collect();
    found.sort_by_key(|(run, _, adit, _)| std::cmp::Reverse((adit.count, run.started)));
    let mut found = found.into_iter();
    let (run, figure, adit, other) = found.next()?;
    Some(Headline {
        question: wanted.question,
        what: wanted.what,
        figure,
        run,
        adit,
        other,
        elsewhere: found
            .map(|(run, _, _, (_, ratio))| (run.stem(), ratio))
            .collect(),
    })
}

type Bars = [(String, Values)];

fn bars<'a>(wanted: &Wanted, section: &'a Section) -> Option<(&'a Figure, &'a Bars)> {
    if !wanted.section.is_empty() && wanted.section != section.title {
        return None;
    }
    let figure = section.figures.iter().find(|of| of.id == wanted.figure)?;
    match &figure.drawing {
        Drawing::Bars(bars) => Some((figure, bars)),
        _ => None,
    }
}

/// Adit's values, and the best other with Adit's median over its.
fn against<'a>(figure: &Figure, bars: &'a Bars) -> Option<(&'a Values, (&'a str, f64))> {
    let (_, adit) = bars.iter().find(|(name, _)| name == "adit")?;
    let others = bars.iter().filter(|(name, _)| names::is_other(name));
    let by_median =
        |a: &&(String, Values), b: &&(String, Values)| a.1.median.total_cmp(&b.1.median);
    let (name, best) = match figure.is_more_better() {
        true => others.max_by(by_median),
        false => others.min_by(by_median),
    }?;
    Some((adit, (name, adit.median / best.median)))
}

/// Everything that Adit was measured beside, without ciphers and versions.
pub(super) fn others(runs: &[Run]) -> Vec<&str> {
    let names = runs.iter().flat_map(|run| &run.subjects);
    let mut names: Vec<&str> = names
        .map(|(name, _)| name.as_str())
        .filter(|name| names::is_other(name))
        .collect();
    names.sort_by_key(|name| names::place(name, 0));
    let long = |name| match name {
        "tailscale" => "Tailscale's fork of wireguard-go",
        name => names::real(name).split(',').next().unwrap_or_default(),
    };
    let mut names: Vec<&str> = names.into_iter().map(long).collect();
    names.dedup();
    names
}

/// A figure of the kernel's WireGuard on the machine of its publisher.
pub(super) struct Kernel {
    /// Of the figures that it may stand in.
    id: String,
    unit: String,
    /// The machine.
    pub(super) on: String,
    pub(super) value: f64,
    /// The same over that of Tailscale's fork on the same machine, where the source has both.
    pub(super) over_fork: Option<f64>,
    pub(super) source: String,
}

/// One TCP stream has a name in each command.
fn measure(id: &str) -> &str {
    match id {
        "tcp1" | "tcp-1" | "tcp-1-1" | "tcp-1420" => "tcp1",
        other => other,
    }
}

/// Published figures of the kernel's WireGuard that name their machine, each once.
pub(super) fn kernels(runs: &[Run]) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    for section in runs.iter().flat_map(|run| &run.sections) {
        for row in section.published.iter().filter(|row| row.is_kernel) {
            let on: Vec<&str> = row
                .what
                .split(", ")
                .filter(|part| !part.starts_with("kernel"))
                .collect();
            let on = on.join(", ");
            let fork = format!("wireguard-go after, {on}");
            let is_fork = |of: &&Published| of.measure == row.measure && of.what == fork;
            let fork = section.published.iter().find(is_fork);
            let kernel = Kernel {
                id: measure(&row.measure).to_owned(),
                unit: row.unit.clone(),
                on,
                over_fork: fork.map(|fork| row.value / fork.value),
                value: row.value,
                source: section.title.clone(),
            };
            let is_known = |of: &Kernel| (&of.id, &of.on) == (&kernel.id, &kernel.on);
            if !kernel.on.is_empty() && !all.iter().any(is_known) {
                all.push(kernel);
            }
        }
    }
    all
}

impl Kernel {
    /// Whether it stands in this figure: it is of the same quantity, and no kernel was measured.
    pub(super) fn belongs_to(&self, figure: &Figure) -> bool {
        let was_measured = match &figure.drawing {
            Drawing::Bars(bars) => bars.iter().any(|(name, _)| name == "kernel"),
            _ => true,
        };
        self.id == measure(&figure.id) && self.unit == figure.unit && !was_measured
    }
}
