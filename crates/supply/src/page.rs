//! docs/dependencies.md against each Cargo.lock: a row for each direct dependency, with the version
//! in use, so that whoever takes another one looks at what the row says.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::Metadata;

/// What is wrong with the page. A package that is asked for by several locks has the same version in
/// all.
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

/// The versions in Cargo.lock of each package that one of ours asks for: those without a source.
fn locked(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let packages = lock.split("[[package]]").skip(1);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    for package in packages {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|value| value.split('"').nth(1))
        };
        let (name, version) = (value("name = "), value("version = "));
        if let (Some(name), Some(version)) = (name, version) {
            versions.entry(name).or_default().insert(version);
        }
        if value("source = ").is_none() {
            let lines = package.lines().filter_map(|line| line.strip_prefix(" \""));
            asked.extend(lines.filter_map(|line| line.split('"').next()));
        }
    }
    // A package that is there in several versions is asked for with its version.
    let mut locked: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for asked in asked {
        let (name, version) = asked.split_once(' ').unzip();
        let name = name.unwrap_or(asked);
        let known = versions.get(name).into_iter().flatten().copied();
        let of_it = locked.entry(name).or_default();
        of_it.extend(known.filter(|known| version.is_none_or(|version| version == *known)));
    }
    locked
}
