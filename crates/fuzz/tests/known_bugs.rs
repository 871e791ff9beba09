//! tests/known-bugs.md: every row names tests that exist, or reasons that SECURITY.md gives.

use std::collections::{HashMap, HashSet};
use std::path::Path;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The functions under `#[test]`, other attributes between them or not.
fn tests(source: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = line.strip_prefix("fn ").filter(|_| is_test) {
            found.extend(name.split(['(', '<']).next().map(String::from));
            is_test = false;
        } else if !line.starts_with("#[") {
            is_test = false;
        }
    }
    found
}

/// What SECURITY.md says cannot occur, in lower case: the bold words that begin the points.
fn reasons() -> HashSet<String> {
    let security = read("SECURITY.md");
    let (_, section) = security
        .split_once("### Bugs that cannot occur here")
        .expect("a section");
    let section = section.split("\n#").next().unwrap_or_default();
    let points = section.lines().filter_map(|line| line.strip_prefix("- **"));
    points
        .filter_map(|point| Some(point.split_once(".**")?.0.to_lowercase()))
        .collect()
}

#[test]
fn every_known_bug_has_a_test_or_a_reason_that_exists() {
    let reasons = reasons();
    let mut files: HashMap<String, HashSet<String>> = HashMap::new();
    let (mut rows, mut wrong) = (0, Vec::new());
    for (number, line) in (1..).zip(read("tests/known-bugs.md").lines()) {
        if !line.starts_with("| ") || line.starts_with("| what went wrong") {
            continue;
        }
        rows += 1;
        let here = line
            .trim_end_matches(['|', ' '])
            .rsplit('|')
            .next()
            .unwrap_or_default();
        let mut named = 0;
        for name in here.split('`').skip(1).step_by(2) {
            let (file, test) = name.split_once("::").unwrap_or((name, ""));
            let is_there = if file == "fuzz" {
                adit_fuzz::target(test).is_some()
            } else {
                let file = file.to_owned();
                let found = files
                    .entry(file)
                    .or_insert_with_key(|file| tests(&read(&format!("crates/{file}"))));
                found.contains(test)
            };
            named += 1;
            if !is_there {
                wrong.push(format!("line {number}: there is no test {name}"));
            }
        }
        for reason in here.split("reason: ").skip(1) {
            let reason = reason.split(',').next().unwrap_or_default().trim();
            named += 1;
            if !reasons.contains(reason) {
                wrong.push(format!(
                    "line {number}: SECURITY.md does not say '{reason}'"
                ));
            }
        }
        if named == 0 {
            wrong.push(format!("line {number}: neither a test nor a reason"));
        }
    }
    assert!(
        wrong.is_empty(),
        "tests/known-bugs.md:\n{}",
        wrong.join("\n")
    );
    assert!(rows > 80, "{rows} rows");
}
