//! The product's workspace and the lab's: profiles and lints are the same, so that the lab measures
//! what is shipped.

use std::collections::BTreeMap;

/// Where they stand in the repository: the product's, the lab's.
pub(crate) const FOLDERS: [&str; 2] = [".", "bench"];

/// The sections of the lab's Cargo.toml that differ from those of the product's.
pub(crate) fn differences(product: &str, lab: &str) -> Vec<String> {
    let (product, lab) = (shared(product), shared(lab));
    let names = product
        .keys()
        .chain(lab.keys().filter(|name| !product.contains_key(*name)));
    names
        .filter(|name| product.get(*name) != lab.get(*name))
        .map(|name| format!("bench/Cargo.toml: {name} is another than that of Cargo.toml"))
        .collect()
}

/// The sections that both have: their lines without comments, by name.
fn shared(manifest: &str) -> BTreeMap<String, Vec<&str>> {
    let mut sections: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut section = None;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let name = line.replace("[workspace.lints", "[lints");
            let is_shared = name.starts_with("[profile") || name.starts_with("[lints.");
            section = is_shared.then(|| sections.entry(name).or_default());
        } else if let Some(lines) = &mut section {
            // The command is no part of the lab, which starts it as a process, and neither is what it alone has.
            let away = ["adit-cli = ", "adit-proxy = ", "adit-fleet = "];
            let is_away = away.iter().any(|name| line.starts_with(name));
            let is_said = !line.is_empty() && !line.starts_with('#') && !is_away;
            lines.extend(is_said.then_some(line));
        }
    }
    sections
}
