//! No name of a type means two things in the product.

use std::collections::BTreeMap;
use std::path::Path;

use crate::circles::{self, CRATES, SourceFile};

/// Names that several types may have, and why.
const SHARED: [(&str, &str); 5] = [
    (
        "Batch",
        "the packets at work in a cipher's kernel, for each width of vectors",
    ),
    (
        "Cipher",
        "the state of a cipher's kernel, for each width of vectors",
    ),
    (
        "Family",
        "IPv4 or IPv6, in two crates of which neither knows the other",
    ),
    (
        "Result",
        "the result of a crate or a module, with its error",
    ),
    ("V", "the vector register of a kernel"),
];

/// Where a type is defined: its file, and the line there.
type Places = BTreeMap<String, Vec<(String, usize)>>;

/// What is wrong with the types of the product below `root`: a text for each name. The library has names of
/// its own: those that it has for its users are often those of what it stands on. So has boringtun's API.
pub(crate) fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let [mut product, mut library, mut boringtun] = [const { BTreeMap::new() }; 3];
    for name in CRATES.iter().chain(&["fuzz"]) {
        let base = format!("crates/{name}/src");
        let files = circles::files(root, &base)?;
        let named = |(file, source)| (format!("{base}/{file}"), source);
        let all = match *name {
            "adit" => &mut library,
            "boringtun-compat" => &mut boringtun,
            _ => &mut product,
        };
        all.extend(circles::product(files).into_iter().map(named));
    }
    let mut all = wrong(&product, &SHARED);
    all.extend(wrong(&library, &[]));
    all.extend(wrong(&boringtun, &[]));
    Ok(all)
}

/// What is wrong with these files, by their paths, if several types may have the names of `shared`.
fn wrong(files: &BTreeMap<String, SourceFile>, shared: &[(&str, &str)]) -> Vec<String> {
    let mut places = Places::new();
    for (file, source) in files {
        let mut before = None;
        for it in &source.types {
            // The same name twice in one module: one of them for another system, or for loom.
            let is_alternative =
                before.replace((&it.module, &it.name)) == Some((&it.module, &it.name));
            if !is_alternative {
                let of_name = places.entry(it.name.clone()).or_default();
                of_name.push((file.clone(), it.line));
            }
        }
    }
    let is_twice = |name: &str| places.get(name).is_some_and(|all| all.len() > 1);
    let needless = shared.iter().filter(|(name, _)| !is_twice(name));
    let needless = needless.map(|(name, why)| {
        format!(
            "{name} is the name of one type: crates/supply/src/types.rs need not allow it ({why})"
        )
    });
    let is_shared = |name: &str| shared.iter().any(|(known, _)| *known == name);
    let twice = places
        .iter()
        .filter(|(name, all)| all.len() > 1 && !is_shared(name));
    let described = twice.map(|(name, all)| {
        let lines: Vec<_> = all
            .iter()
            .map(|(file, line)| format!("\n  {file}:{line}"))
            .collect();
        format!(
            "{name} is the name of {} types: give each a name that says what it is{}",
            all.len(),
            lines.concat()
        )
    });
    described.chain(needless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], shared: &[(&str, &str)]) -> Vec<String> {
        let parsed =
            |(name, text): &(&str, &str)| ((*name).to_owned(), SourceFile::parse(name, text));
        wrong(&files.iter().map(parsed).collect(), shared)
    }

    #[test]
    fn a_name_of_two_types_is_refused_with_both_places() {
        let files = [
            ("a/lib.rs", "pub struct Peer;\nmod b { enum Peer {} }"),
            (
                "b/lib.rs",
                "macro! {\n    pub struct Peer { x: u8 }\n}\nfn f() { struct Inner; }",
            ),
            ("b/c.rs", "trait Inner {}"),
        ];
        assert_eq!(
            found(&files, &[]),
            [
                "Inner is the name of 2 types: give each a name that says what it is\n  \
                 b/c.rs:1\n  b/lib.rs:4",
                "Peer is the name of 3 types: give each a name that says what it is\n  \
                 a/lib.rs:1\n  a/lib.rs:2\n  b/lib.rs:2",
            ]
        );
        assert_eq!(found(&files, &[("Inner", ""), ("Peer", "")]), [""; 0]);
    }

    #[test]
    fn an_exception_that_is_not_needed_is_refused() {
        let alone = found(
            &[("a.rs", "type Result<T> = core::Result<T, E>;")],
            &[("Result", "an error")],
        );
        assert!(
            alone[0].starts_with("Result is the name of one type"),
            "{alone:?}"
        );
    }

    #[test]
    fn associated_types_alternatives_and_tests_are_no_second_type() {
        let files = [
            (
                "a.rs",
                "trait T { type Item; } struct Item; impl T for U { type Item = u8; }",
            ),
            (
                "b.rs",
                "#[cfg(loom)] struct Swap; #[cfg(not(loom))] type Swap = u8;",
            ),
            (
                "c.rs",
                "#[cfg(test)] mod tests { struct Swap; struct Item; }",
            ),
            ("d.rs", "fn f() { x.union(Swap); let s = \"struct Swap\"; }"),
        ];
        assert_eq!(found(&files, &[]), [""; 0]);
    }
}
