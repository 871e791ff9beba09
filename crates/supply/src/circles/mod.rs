//! No two files of the product import each other, nor do more of them in a circle.
//!
//! A file imports the files whose items it names: in a `use` declaration, or in a path such as
//! `crate::x::y` or `super::y` in its code.
//!
//! - A name counts for the file in which its item stands: a `use` or `pub use` on the way is
//!   followed.
//! - `mod x;` is no import. Neither is a `pub use` of something below the module of the file itself,
//!   unless the code of the file has that name, too.
//! - Calls of methods are no imports: `impl` blocks may stand in other files than their type.
//! - Tests may import what they test: `tests.rs`, `*_tests.rs`, folders of that name, and all that is
//!   behind `#[cfg(test)]`.
//!
//! Comments and strings do not count, and what macros make cannot be seen.

mod graph;
mod names;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use graph::Graph;
pub(crate) use source::SourceFile;

/// The crates of the product.
pub(crate) const CRATES: [&str; 16] = [
    "adit",
    "aead",
    "boringtun-compat",
    "cli",
    "ctl",
    "engine",
    "ffi",
    "fleet",
    "io",
    "netlink",
    "offload",
    "proto",
    "proxy",
    "sandbox",
    "supply",
    "testbed",
];

/// What is wrong with the product below `root`: a text for each circle.
pub(crate) fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for name in CRATES {
        let base = format!("crates/{name}/src");
        let files = files(root, &base)?;
        let graph = Graph::of(&files);
        let circles = graph.circles();
        wrong.extend(circles.iter().map(|circle| graph.describe(&base, circle)));
    }
    Ok(wrong)
}

/// The files below the folder `base` of `root` that are no tests, by their paths from there.
pub(crate) fn files(root: &Path, base: &str) -> Result<BTreeMap<String, SourceFile>, String> {
    let mut files = BTreeMap::new();
    read(&root.join(base), "", &mut files)?;
    Ok(files)
}

/// Those of a crate's files that are not behind `#[cfg(test)]`.
pub(crate) fn product(files: BTreeMap<String, SourceFile>) -> BTreeMap<String, SourceFile> {
    let tests: Vec<_> = files.values().flat_map(|it| it.tests.clone()).collect();
    let is_test = |it: &SourceFile| tests.iter().any(|test| it.module.starts_with(test));
    files
        .into_iter()
        .filter(|(_, source)| !is_test(source))
        .collect()
}

/// The files below a folder that are no tests, by their paths from there.
fn read(
    folder: &Path,
    within: &str,
    files: &mut BTreeMap<String, SourceFile>,
) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| !is_test(name)) else {
            continue;
        };
        if path.is_dir() {
            read(&path, &format!("{within}{name}/"), files)?;
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            let name = format!("{within}{name}");
            let source = SourceFile::parse(&name, &text);
            files.insert(name, source);
        }
    }
    Ok(())
}

/// Whether a file or a folder of this name has tests.
pub(crate) fn is_test(name: &str) -> bool {
    let name = name.strip_suffix(".rs").unwrap_or(name);
    name == "tests" || name.ends_with("_tests")
}
