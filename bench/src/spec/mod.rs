//! `adit-lab spec`: the tables of SPEC.md, bench/REPORT.md and README.md whose numbers come from `results/`.
//!
//! Such a table stands between two comments, of which the first names its files and which of the
//! tables of `tables.rs` it is:
//!
//! ```text
//! <!-- from results/idle-zen4.json: silent -->
//! | … |
//! <!-- end -->
//! ```
//!
//! `from`: the whole table is made of the files. `in part from`: some cells are, such as a column, and
//! the others are left as they are. The goals of SPEC.md come from many files: `results/*` (`ratios`).
//!
//! Stages: read a document → find the comments → make each table again → compare, or write.

mod claims;
mod gateway;
mod measured;
mod ratios;
mod reproduced;
mod scale;
mod tables;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::{output, summary};
use tables::{Extent, TABLES};

/// Compares the tables of SPEC.md, bench/REPORT.md and README.md with the results that they come from.
///
/// Prints each line that differs, and fails if there is one. The tables stand between comments that
/// name their files and `end`. The test `the_tables_of_the_documents_are_those_of_the_results` does the
/// same.
#[derive(Args, Clone, Debug)]
pub(crate) struct SpecArgs {
    /// Write the tables that differ instead of failing.
    #[arg(long)]
    write: bool,
    /// The repository.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Compares or writes, and prints what differed.
pub(crate) fn run(args: &SpecArgs) -> Result<(), Box<dyn Error>> {
    let mut differences = Vec::new();
    let mut written = Vec::new();
    for document in documents() {
        let path = args.dir.join(document);
        let at = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let text = fs::read_to_string(&path).map_err(|why| at(&why))?;
        let made = again(document, &text, &args.dir).map_err(|why| at(&why))?;
        differences.extend(made.differences);
        written.push((path, made.text));
    }
    output::print(&differences.concat())?;
    if differences.is_empty() {
        return Ok(());
    }
    if !args.write {
        let count = differences.len();
        return Err(format!(
            "{count} differences: `adit-lab spec --write` takes what the results say"
        )
        .into());
    }
    for (path, made) in written {
        fs::write(&path, made).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}

/// The documents that have such tables, each once.
fn documents() -> Vec<&'static str> {
    let mut all: Vec<&str> = TABLES.iter().map(|table| table.document).collect();
    all.dedup();
    all
}

/// A table of Markdown. Cells are without the spaces around them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn parse(lines: &[&str]) -> Result<Self, String> {
        let cells = |line: &&str| -> Result<Vec<String>, String> {
            let inner = line.strip_prefix('|').and_then(|it| it.strip_suffix('|'));
            let inner = inner.ok_or_else(|| format!("this is no row of a table: {line}"))?;
            Ok(inner
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect())
        };
        let mut rows = lines.iter().map(cells).collect::<Result<Vec<_>, _>>()?;
        if rows.len() < 2 {
            return Err("this is no table: it has no two lines".to_owned());
        }
        let rows_below = rows.split_off(2);
        Ok(Self {
            head: rows.swap_remove(0),
            rows: rows_below,
        })
    }

    fn text(&self) -> String {
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().map(|cell| match cell.as_str() {
                "" => " ".to_owned(),
                cell => format!(" {cell} "),
            });
            format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
        };
        let ruler = format!("|{}\n", "---|".repeat(self.head.len()));
        let rows: String = self.rows.iter().map(line).collect();
        line(&self.head) + &ruler + &rows
    }

    /// Begins again, with this head and no row.
    fn begin(&mut self, head: impl IntoIterator<Item: Into<String>>) {
        self.head = head.into_iter().map(Into::into).collect();
        self.rows.clear();
    }

    /// The place of a column.
    fn column(&self, name: &str) -> Result<usize, String> {
        let at = self.head.iter().position(|of| of == name);
        at.ok_or_else(|| format!("it has no column {name:?}"))
    }

    /// Puts a text into the column of this name.
    fn set(&mut self, row: usize, column: &str, text: String) -> Result<(), String> {
        let at = self.column(column)?;
        let cell = self.rows.get_mut(row).and_then(|row| row.get_mut(at));
        *cell.ok_or_else(|| format!("it has no cell {row} in {column:?}"))? = text;
        Ok(())
    }

    /// What stands in the column of this name.
    fn cell(&self, row: usize, column: &str) -> Result<&str, String> {
        let at = self.column(column)?;
        let cell = self.rows[row].get(at).map(String::as_str);
        cell.ok_or_else(|| format!("row {row} has no cell in {column:?}"))
    }

    /// An error unless its rows begin with these texts.
    fn check_labels(&self, labels: &[&str]) -> Result<(), String> {
        let there: Vec<&str> = self.rows.iter().map(|row| row[0].as_str()).collect();
        match there == labels {
            true => Ok(()),
            false => Err(format!("its rows are {there:?}, and not {labels:?}")),
        }
    }
}

/// A document with each table made of its results once more.
struct Again {
    text: String,
    /// What the document has, and what it is to have, for people.
    differences: Vec<String>,
}

fn again(document: &str, text: &str, dir: &Path) -> Result<Again, String> {
    let mut made = Again {
        text: String::new(),
        differences: Vec::new(),
    };
    let mut names = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        made.text += line;
        made.text.push('\n');
        let Some(comment) = comment(line)? else {
            continue;
        };
        let Comment {
            extent,
            files,
            name,
        } = comment;
        let rows = lines.by_ref().map(|(_, line)| line);
        let rows: Vec<&str> = rows.take_while(|line| *line != END).collect();
        let named = |why: String| format!("{name}: {why}");
        let known = TABLES
            .iter()
            .find(|of| of.name == name && of.document == document)
            .ok_or_else(|| named("there is no table of this name".to_owned()))?;
        if known.extent != extent {
            return Err(named(format!("it is to say \"{}\"", known.extent.words())));
        }
        let files: Vec<String> = match files[..] {
            [ratios::ALL] => ratios::files(),
            _ => files.into_iter().map(str::to_owned).collect(),
        };
        let read = |file: &String| -> Result<Value, String> {
            let text = fs::read_to_string(dir.join(file)).map_err(|e| format!("{file}: {e}"))?;
            summary::parse(&text).map_err(|e| format!("{file}: {e}"))
        };
        let results: Vec<Value> = files.iter().map(read).collect::<Result<_, _>>()?;
        let mut table = Table::parse(&rows).map_err(named)?;
        (known.fill)(&results, &mut table).map_err(named)?;
        let wanted = table.text();
        let first = at + 2;
        made.differences
            .extend(compare(&format!("{document}:"), first, &rows, &wanted));
        made.text += &wanted;
        made.text += END;
        made.text.push('\n');
        names.push(name);
    }
    for table in TABLES.iter().filter(|table| table.document == document) {
        match names.iter().filter(|name| **name == table.name).count() {
            1 => {}
            count => return Err(format!("{} is there {count} times", table.name)),
        }
    }
    Ok(made)
}

const END: &str = "<!-- end -->";

/// What a line says of the table that follows.
struct Comment<'a> {
    extent: Extent,
    files: Vec<&'a str>,
    name: &'a str,
}

/// The comment of a table, if this line is one.
fn comment(line: &str) -> Result<Option<Comment<'_>>, String> {
    let inner = line.strip_prefix("<!-- ");
    let Some(inner) = inner.and_then(|it| it.strip_suffix(" -->")) else {
        return Ok(None);
    };
    let mut extents = [Extent::Whole, Extent::Part].into_iter();
    let found = extents.find_map(|extent| Some((extent, inner.strip_prefix(extent.words())?)));
    let Some((extent, rest)) = found else {
        return Ok(None);
    };
    let (files, name) = rest
        .split_once(": ")
        .ok_or_else(|| format!("this comment names no table: {line}"))?;
    Ok(Some(Comment {
        extent,
        files: files.split_whitespace().collect(),
        name,
    }))
}

/// The rows that differ; the whole table where there are more or fewer.
fn compare(document: &str, first: usize, rows: &[&str], wanted: &str) -> Vec<String> {
    let wanted: Vec<&str> = wanted.lines().collect();
    let differs = |at: usize, has: &str, wanted: &str| {
        format!("{document}{at}\n  has      {has}\n  of files {wanted}\n")
    };
    if rows.len() != wanted.len() {
        return vec![differs(
            first,
            &rows.join("\n           "),
            &wanted.join("\n           "),
        )];
    }
    let both = rows.iter().zip(wanted).enumerate();
    both.filter(|(_, (has, wanted))| *has != wanted)
        .map(|(at, (has, wanted))| differs(first + at, has, wanted))
        .collect()
}
