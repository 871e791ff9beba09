//! The public API of the library `adit`, as rustdoc sees it: one line for each item, in the order of
//! paths. crates/adit/api.txt has the listing, so that a change of the API is seen as one.

mod items;
mod line;
mod rules;
mod rustdoc;
mod signature;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::metadata;
use line::ApiLine;
use rules::EXCEPTIONS;
use rustdoc::RustdocJson;

/// The listing that is checked in.
const LISTING: &str = "crates/adit/api.txt";

/// What writes it anew.
const WRITE: &str = "cargo run --locked -p adit-supply -- api --write";

/// Prints the listing.
pub(crate) fn print() -> Result<(), String> {
    let json = ask_rustdoc()?;
    let document = RustdocJson::new(&json)?;
    print!("{}", text(&document.lines()));
    Ok(())
}

/// Writes the listing to the file that is checked in.
pub(crate) fn write() -> Result<(), String> {
    let json = ask_rustdoc()?;
    let document = RustdocJson::new(&json)?;
    let lines = document.lines();
    let path = metadata::root().join(LISTING);
    std::fs::write(path, text(&lines)).map_err(|error| format!("{LISTING}: {error}"))?;
    println!("adit-supply: {} lines in {LISTING}", lines.len());
    fail_on(&rules::mistakes(&document, &lines, EXCEPTIONS))
}

/// Compares the listing with the file that is checked in, and the API with the rules for it.
pub(crate) fn check() -> Result<(), String> {
    let json = ask_rustdoc()?;
    let document = match RustdocJson::new(&json) {
        Ok(document) => document,
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("adit-supply: the API is not checked: {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let lines = document.lines();
    let mut wrong = differences(&metadata::read(LISTING)?, &text(&lines));
    if !wrong.is_empty() {
        wrong.insert(
            0,
            format!("{LISTING} is not the API of adit: if it should change, run {WRITE}"),
        );
    }
    wrong.extend(rules::mistakes(&document, &lines, EXCEPTIONS));
    fail_on(&wrong)?;
    println!(
        "adit-supply: the API of adit has {} lines, as {LISTING} says",
        lines.len()
    );
    Ok(())
}

fn fail_on(wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("\n"))
}

fn text(lines: &[ApiLine]) -> String {
    lines
        .iter()
        .fold(String::new(), |text, line| text + line.text.as_str() + "\n")
}

/// The lines that only one of the two has.
fn differences(old: &str, new: &str) -> Vec<String> {
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    for line in old.lines() {
        *counts.entry(line).or_default() -= 1;
    }
    for line in new.lines() {
        *counts.entry(line).or_default() += 1;
    }
    let gone = old.lines().filter(|line| counts[line] < 0);
    let come = new.lines().filter(|line| counts[line] > 0);
    let gone = gone.map(|line| format!("- {line}"));
    gone.chain(come.map(|line| format!("+ {line}"))).collect()
}

/// rustdoc's JSON of the library with all its features.
///
/// The JSON is unstable. Only rustdoc is told to go on nevertheless, by `scripts/rustdoc-json`: with
/// that variable for all that cargo runs, build scripts would decide otherwise, and packages would be
/// built anew.
fn ask_rustdoc() -> Result<Value, String> {
    let root = metadata::root();
    let output = Command::new(metadata::cargo())
        .args(["rustdoc", "-p", "adit", "--lib", "--all-features"])
        .args(["--quiet", "--locked", "--offline"])
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        .env("RUSTDOC", root.join("scripts/rustdoc-json"))
        .env_remove("RUSTDOCFLAGS")
        .current_dir(&root)
        .output()
        .map_err(|error| format!("cargo rustdoc: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo rustdoc -p adit: {}", said.trim_end()));
    }
    let path = target_folder()?.join("doc/adit.json");
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(&path).map_err(|error| failed(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(&error))
}

fn target_folder() -> Result<PathBuf, String> {
    let metadata = metadata::ask(".", &["--no-deps", "--offline"])?;
    let folder = metadata["target_directory"].as_str();
    folder
        .map(PathBuf::from)
        .ok_or_else(|| "cargo metadata: it names no target directory".into())
}
