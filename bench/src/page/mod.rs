//! Results drawn: `adit-lab report`, one page of HTML that needs nothing else, and `adit-lab chart`, one
//! picture.
//!
//! Stages: read the results files (`read`) → figures (`figures`; `fleet`, `gateway`, `scale`) → drawings (`plot`,
//! `flame`) and tables (`values`) → page (`html`; `headline` is its first screen, `questions` its order) or
//! picture (`chart`, `picture`). The same files always give the same bytes.

mod chart;
mod figures;
mod flame;
mod fleet;
mod gateway;
mod headline;
mod html;
mod names;
mod picture;
mod plot;
mod questions;
mod read;
mod scale;
mod text;
mod values;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::output;
pub(crate) use chart::ChartArgs;
pub(crate) use chart::run as chart;
use figures::Run;

/// Makes one page of results: how fast Adit is, beside whom and on what, then the answers to questions.
///
/// The page is one file of HTML that loads nothing, runs no script, follows the reader's light or dark
/// colour scheme and can be read on a telephone. Below each answer stand the values of each file, folded;
/// at the end goals, machines and versions.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// Files that `compare`, `fleet`, `gateway`, `hostile`, `idle`, `scale`, `reproduce`, `soak` or
    /// `upgrade` wrote with `--json=FILE`.
    #[arg(required = true, value_name = "RESULTS.json")]
    results: Vec<PathBuf>,
    /// Where the page goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Makes the page and prints where it is.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Box<dyn Error>> {
    let mut runs = Vec::new();
    for path in &args.results {
        let read = || -> Result<Run, Box<dyn Error>> {
            let text = fs::read_to_string(path)?;
            let name = path.file_name().unwrap_or(path.as_os_str());
            Ok(Run::read(&name.to_string_lossy(), &text)?)
        };
        runs.push(read().map_err(|why| format!("{}: {why}", path.display()))?);
    }
    let page = html::page(&runs)?;
    fs::write(&args.output, page).map_err(|why| format!("{}: {why}", args.output.display()))?;
    Ok(output::print(&format!("{}\n", args.output.display()))?)
}

/// Whether this is a results file that makes a page.
#[cfg(test)]
pub(crate) fn check(text: &str) -> Result<(), String> {
    Run::read("results.json", text).map(drop)
}
