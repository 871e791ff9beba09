//! docs/dependencies.md against each Cargo.lock: a row for each direct dependency, with the version
//! in use, so that whoever takes another one looks at what the row says.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::Metadata;

/// What is wrong with the page. A package that several locks have has the same version in all.
pub(crate) fn mistakes(page: &str, metadata: &Metadata, locks: &[&str]) -> Vec<String> {
    let own = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none());
    let asked: BTreeSet<&str> = own
        .flat_map(|package| &package.asks_for)
        .map(|(name, _)| name.as_str())
        .collect();
    let locks: Vec<_> = locks.iter().map(|lock| locked(lock)).collect();
    let mut wrong = Vec::new();
    let mut rows = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, version, reason, unsafe_code] = cells[..] else {
            wrong.push(format!(
                "docs/dependencies.md: four cells are expected in {line}"
            ));
            continue;
        };
        let name = name.trim_matches('`');
        rows.insert(name);
        if reason.is_empty() || unsafe_code.is_empty() {
            wrong.push(format!("docs/dependencies.md: {name}: a cell is empty"));
        }
        if !asked.contains(name) {
            wrong.push(format!(
                "docs/dependencies.md: {name} is no direct dependency"
            ));
            continue;
        }
        for versions in locks.iter().filter_map(|locked| locked.get(name)) {
            if !versions.contains(version) {
                let versions = Vec::from_iter(versions.iter().copied()).join(", ");
                wrong.push(format!(
                    "docs/dependencies.md: {name} is {versions} by now, look at it again"
                ));
            }
        }
    }
    let missing = asked.iter().filter(|name| !rows.contains(*name));
    wrong.extend(missing.map(|name| format!("docs/dependencies.md: there is no row for {name}")));
    wrong
}

/// The versions of each package in Cargo.lock.
fn locked(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        let value = line.split('"').nth(1).unwrap_or_default();
        if line.starts_with("name = ") {
            name = value;
        } else if line.starts_with("version = ") {
            versions.entry(name).or_default().insert(value);
        }
    }
    versions
}
