//! No file of the product or the lab has more than 500 lines, but for tests.

use std::path::Path;

use crate::circles::is_test;

/// The most lines of a file, with comments and blank ones.
const MOST: usize = 500;

/// What is wrong with the files below `root`: a text for each.
pub(crate) fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    Ok(wrong(&all(root)?))
}

/// The lines of every file of the product and the lab that is no test, by its path.
fn all(root: &Path) -> Result<Vec<(String, usize)>, String> {
    let mut all = Vec::new();
    for folder in ["crates", "bench/src"] {
        count(&root.join(folder), folder, &mut all)?;
    }
    Ok(all)
}

/// What is wrong with files of these lengths.
fn wrong(files: &[(String, usize)]) -> Vec<String> {
    let long = files.iter().filter(|(_, lines)| *lines > MOST);
    let described = long.map(|(name, lines)| {
        format!("{name} has {lines} lines, and {MOST} at most are allowed: split it by purpose")
    });
    described.collect()
}

/// The lines of each file below a folder that is no test, by its path.
fn count(folder: &Path, within: &str, files: &mut Vec<(String, usize)>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| !is_test(name)) else {
            continue;
        };
        let within = format!("{within}/{name}");
        if path.is_dir() {
            count(&path, &within, files)?;
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            files.push((within, text.lines().count()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_501_lines_is_refused() {
        let files = [("a.rs".to_owned(), MOST), ("b.rs".to_owned(), MOST + 1)];
        let refused = "b.rs has 501 lines, and 500 at most are allowed: split it by purpose";
        assert_eq!(wrong(&files), [refused]);
    }

    #[test]
    fn the_sources_of_product_and_lab_are_counted_without_tests() {
        let all = all(&crate::metadata::root()).expect("a readable repository");
        let has = |name: &str| all.iter().any(|(file, lines)| file == name && *lines > 0);
        assert!(has("crates/supply/src/lengths.rs") && has("bench/src/main.rs"));
        assert!(!has("crates/supply/src/tests.rs"));
    }
}
