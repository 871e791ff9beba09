//! How many packages the library is built of: whoever embeds it builds, reads and updates all of them.

use std::collections::BTreeSet;

use crate::metadata::{self, PLATFORM};

/// What a program takes on with some features of the library.
struct Tree {
    features: &'static [&'static str],
    /// More packages than this are refused. It only falls.
    limit: usize,
}

const TREES: [Tree; 3] = [
    // Batches without I/O.
    Tree {
        features: &["--no-default-features"],
        limit: 24,
    },
    Tree {
        features: &["--features", "linux"],
        limit: 29,
    },
    // TCP inside a tunnel.
    Tree {
        features: &["--features", "net"],
        limit: 36,
    },
];

/// The trees that are over their limits.
pub(crate) fn mistakes() -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for tree in &TREES {
        let asked = ["tree", "-p", "adit", "-e", "normal", "--prefix", "none"];
        let limits = ["--locked", "--target", PLATFORM];
        let said = metadata::run_cargo(".", &[&asked[..], &limits, tree.features].concat())?;
        wrong.extend(tree.mistake(&String::from_utf8_lossy(&said)));
    }
    Ok(wrong)
}

impl Tree {
    fn mistake(&self, said: &str) -> Option<String> {
        let limit = self.limit;
        let count = packages(said).len();
        (count > limit).then(|| {
            format!(
                "adit {}: {count} packages, over the limit of {limit}: do without the new one, or make it \
                 optional",
                self.features.join(" ")
            )
        })
    }
}

/// The packages, each once, of what `cargo tree --prefix none` prints.
fn packages(said: &str) -> BTreeSet<(&str, &str)> {
    let lines = said.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_more_packages_than_its_limit_is_told() {
        let said =
            "adit v0.1.0 (/adit)\nsubtle v2.6.1\nsyn v2.0.1 (proc-macro)\nsubtle v2.6.1 (*)\n";
        let tree = |limit| Tree {
            features: &["--no-default-features"],
            limit,
        };
        assert_eq!(tree(3).mistake(said), None);
        let wrong = tree(2).mistake(said).unwrap();
        assert!(wrong.contains("3 packages, over the limit of 2"), "{wrong}");
        assert!(packages("syn v1.0.0\nsyn v2.0.0\n").len() == 2);
    }
}
