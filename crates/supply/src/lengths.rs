//! No file of the product or the lab has more than 500 lines, but for tests.

use std::path::Path;

use crate::circles::is_test;

/// The most lines of a file, with comments and blank ones.
const MOST: usize = 500;

/// Files of the lab that are longer. No other may join them, and one that is shortened leaves.
const LONGER: [&str; 0] = [];

/// What is wrong with the files below `root`: a text for each.
pub(crate) fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for folder in ["crates", "bench/src"] {
        count(&root.join(folder), folder, &mut all)?;
    }
    Ok(wrong(&all, &LONGER))
}

/// What is wrong with files of these lengths, if those of `longer` may have more lines.
fn wrong(files: &[(String, usize)], longer: &[&str]) -> Vec<String> {
    let is_long = |name: &str| {
        files
            .iter()
            .any(|(file, lines)| file == name && *lines > MOST)
    };
    let needless = longer.iter().filter(|name| !is_long(name)).map(|name| {
        format!("{name} has at most {MOST} lines: take it out of the list of crates/supply/src/lengths.rs")
    });
    let long = files
        .iter()
        .filter(|(name, lines)| *lines > MOST && !longer.contains(&name.as_str()));
    long.map(|(name, lines)| {
        format!("{name} has {lines} lines, and {MOST} at most are allowed: split it by purpose")
    })
    .chain(needless)
    .collect()
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
    fn a_long_file_is_refused_unless_it_is_known() {
        let files = [("a.rs".to_owned(), MOST), ("b.rs".to_owned(), MOST + 1)];
        let refused = "b.rs has 501 lines, and 500 at most are allowed: split it by purpose";
        assert_eq!(wrong(&files, &[]), [refused]);
        assert_eq!(wrong(&files, &["b.rs"]), [""; 0]);
    }

    #[test]
    fn a_file_that_was_shortened_leaves_the_list() {
        let files = [("a.rs".to_owned(), MOST)];
        for known in ["a.rs", "gone.rs"] {
            let found = wrong(&files, &[known]);
            assert!(
                found[0].starts_with(&format!("{known} has at most 500 lines")),
                "{found:?}"
            );
        }
    }
}
