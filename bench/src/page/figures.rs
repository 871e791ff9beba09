//! What a results file has to show, whichever command wrote it.

use super::names;

/// One results file.
pub(super) struct Run {
    /// The file's name.
    pub(super) file: String,
    pub(super) command: String,
    /// Seconds since 1970, where the file tells.
    pub(super) started: Option<u64>,
    pub(super) stopped: Option<String>,
    /// What is known of the machine: name and value.
    pub(super) machine: Vec<(String, String)>,
    /// What was compared: name and version, or what it is.
    pub(super) subjects: Vec<(String, String)>,
    pub(super) goals: Vec<Goal>,
    pub(super) sections: Vec<Section>,
    /// What went wrong, and what was left out.
    pub(super) notes: Vec<String>,
}

/// Figures that belong together.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) figures: Vec<Figure>,
    pub(super) published: Vec<Published>,
}

/// The title of a section with all measures of a file.
pub(super) const ALL: &str = "All measures";

/// A figure of a source, and what it is here.
pub(super) struct Published {
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: String,
    /// The id of the figure that it is compared with.
    pub(super) measure: String,
    /// Whether it is of the kernel's WireGuard, and no ratio.
    pub(super) is_kernel: bool,
    pub(super) here: Option<(f64, String)>,
    pub(super) differs: String,
}

pub(super) struct Goal {
    pub(super) name: String,
    pub(super) value: Option<f64>,
    pub(super) goal: String,
    pub(super) met: bool,
}

/// One drawing.
pub(super) struct Figure {
    /// The measure's, of bars.
    pub(super) id: String,
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) drawing: Drawing,
}

pub(super) enum Drawing {
    /// A bar for each subject.
    Bars(Vec<(String, Values)>),
    /// A line for each subject over what the axis says.
    Curves {
        axis: String,
        lines: Vec<Line>,
        scales: Scales,
    },
    /// A field for each place on the axis and each core or thread.
    Heat(Heat),
    /// Folded stacks, a line each with its CPU time in nanoseconds.
    Flame(String),
}

/// The scales of the two axes of curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// The lower axis is logarithmic, and the other one begins at zero.
    LogX,
    /// The other way round, for values of several orders of magnitude.
    LogY,
    /// Both are logarithmic.
    LogBoth,
}

/// Shares of the time in which something was busy.
pub(super) struct Heat {
    pub(super) axis: String,
    /// In rising order.
    pub(super) places: Vec<f64>,
    /// For each core or thread its name, and its share at each place, where it was there.
    pub(super) rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Heat {
    pub(super) fn new(axis: &str) -> Self {
        Self {
            axis: axis.to_owned(),
            places: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, name: &str, at: f64, share: f64) {
        let column = self.places.partition_point(|place| *place < at);
        if self.places.get(column) != Some(&at) {
            self.places.insert(column, at);
            for (_, shares) in &mut self.rows {
                shares.insert(column, None);
            }
        }
        let row = self.rows.iter().position(|(of, _)| of == name);
        let row = row.unwrap_or_else(|| {
            self.rows
                .push((name.to_owned(), vec![None; self.places.len()]));
            self.rows.len() - 1
        });
        self.rows[row].1[column] = Some(share);
    }

    /// Nothing if nothing was added.
    pub(super) fn figure(self, title: String) -> Option<Figure> {
        (!self.rows.is_empty()).then(|| Figure {
            id: String::new(),
            title,
            unit: "% of the time busy".to_owned(),
            drawing: Drawing::Heat(self),
        })
    }
}

pub(super) struct Line {
    pub(super) name: String,
    /// By what the axis says, in rising order.
    pub(super) points: Vec<(f64, Values)>,
}

/// The values of one subject.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The number of rounds.
    pub(super) count: usize,
}

impl Run {
    /// The file's name without its ending.
    pub(super) fn stem(&self) -> &str {
        self.file.strip_suffix(".json").unwrap_or(&self.file)
    }

    fn of_machine(&self, name: &str) -> &str {
        let known = self.machine.iter().find(|(of, _)| of == name);
        known.map_or("", |(_, value)| value)
    }

    pub(super) fn cores(&self) -> usize {
        self.of_machine("cores").parse().unwrap_or(0)
    }

    pub(super) fn machine_in_words(&self) -> String {
        let cores = match self.cores() {
            0 => String::new(),
            cores => format!("{cores} cores"),
        };
        let words = [names::processor(self.of_machine("cpu")), cores];
        let words: Vec<String> = words.into_iter().filter(|it| !it.is_empty()).collect();
        words.join(", ")
    }

    /// The machine, and the file.
    pub(super) fn label(&self) -> String {
        format!("{} ({})", self.machine_in_words(), self.file)
    }
}

impl Figure {
    /// The title with the unit. Only figures of their own begin with a capital letter.
    pub(super) fn caption(&self) -> String {
        let mut title = self.title.trim().to_owned();
        if let Some(first) = title.get_mut(..1).filter(|_| !self.is_part()) {
            first.make_ascii_uppercase();
        }
        self.with_unit(&title)
    }

    pub(super) fn with_unit(&self, title: &str) -> String {
        match self.unit.as_str() {
            "" => title.to_owned(),
            unit => format!("{title}, {unit}"),
        }
    }

    /// Whether it is a part of the figure before it: the file indents its title.
    pub(super) fn is_part(&self) -> bool {
        self.title.starts_with(' ')
    }

    /// The number of subjects that are compared.
    pub(super) fn subjects(&self) -> usize {
        match &self.drawing {
            Drawing::Bars(bars) => bars.len(),
            Drawing::Curves { lines, .. } => lines.len(),
            Drawing::Heat(_) | Drawing::Flame(_) => 1,
        }
    }

    /// The most rounds of a value.
    pub(super) fn rounds(&self) -> usize {
        let count = |(_, values): &(_, Values)| values.count;
        match &self.drawing {
            Drawing::Bars(bars) => bars.iter().map(|(_, values)| values.count).max(),
            Drawing::Curves { lines, .. } => {
                let points = lines.iter().flat_map(|line| &line.points);
                points.map(count).max()
            }
            Drawing::Heat(_) | Drawing::Flame(_) => None,
        }
        .unwrap_or(0)
    }

    /// Whether a greater value is the better one.
    pub(super) fn is_more_better(&self) -> bool {
        let is_rate = ["Gb/s", "Mb/s", "kpps", "1/s"].contains(&self.unit.as_str());
        let is_count = self.id == "connected";
        (is_rate || is_count) && !self.id.starts_with("wakeups")
    }

    /// Adit stands first, then others by name, then policies in the order of the file.
    pub(super) fn sort_by(&mut self, subjects: &[(String, String)]) {
        let place = |name: &str| {
            let known = subjects.iter().position(|(of, _)| of == name);
            names::place(name, known.unwrap_or(subjects.len()))
        };
        match &mut self.drawing {
            Drawing::Bars(bars) => bars.sort_by_key(|(name, _)| place(name)),
            Drawing::Curves { lines, .. } => lines.sort_by_key(|line| place(&line.name)),
            Drawing::Heat(_) | Drawing::Flame(_) => {}
        }
    }
}
