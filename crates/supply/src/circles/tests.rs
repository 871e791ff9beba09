use std::collections::BTreeMap;

use super::graph::Graph;
use super::source::SourceFile;
use super::*;

/// The circles of a crate with these files: their names, joined.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let parsed = |(name, text): &(&str, &str)| ((*name).to_owned(), SourceFile::parse(name, text));
    let files: BTreeMap<_, _> = files.iter().map(parsed).collect();
    let graph = Graph::of(&files);
    let circles = graph.circles();
    circles.iter().map(|circle| circle.join(" ")).collect()
}

#[test]
fn two_files_that_import_each_other_are_a_circle_with_both_lines() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a.rs", "use crate::b::B;\npub struct A;\n"),
        (
            "b.rs",
            "\npub struct B;\nfn f() -> crate::a::A { todo!() }\n",
        ),
    ];
    assert_eq!(circles(&files), ["a.rs b.rs"]);
    let parsed = |(name, text): (&str, &str)| (name.to_owned(), SourceFile::parse(name, text));
    let files = BTreeMap::from(files.map(parsed));
    let graph = Graph::of(&files);
    assert_eq!(
        graph.describe("src", &["a.rs", "b.rs"]),
        "src: 2 files import each other:\n  \
         src/a.rs:1 imports b.rs: crate::b::B\n  \
         src/b.rs:3 imports a.rs: crate::a::A"
    );
}

#[test]
fn three_files_in_a_row_are_none_until_the_last_imports_the_first() {
    let last = ["use std::io;", "use crate::a::A;"];
    let found = last.map(|last| {
        circles(&[
            ("main.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b/mod.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", &format!("{last} pub struct C;")),
        ])
    });
    assert_eq!(found, [vec![], vec!["a.rs b/mod.rs c.rs".to_owned()]]);
}

#[test]
fn a_parent_may_declare_and_hand_on_what_its_children_have() {
    let child = "use super::Parent; pub struct Child; pub struct Other;";
    let with = |parent: &str| {
        circles(&[
            ("lib.rs", "mod parent;"),
            ("parent/mod.rs", parent),
            ("parent/child.rs", child),
        ])
    };
    let both = ["parent/child.rs parent/mod.rs".to_owned()];
    let hands_on = "mod child; pub use child::{Child, Other as Another}; pub struct Parent;";
    assert!(with(hands_on).is_empty());
    assert!(with("mod child; pub(crate) use self::child::*; pub struct Parent;").is_empty());
    // But not use it itself.
    assert_eq!(with(&format!("{hands_on} fn f(_: Child) {{}}")), both);
    assert_eq!(with(&format!("{hands_on} fn f(_: Another) {{}}")), both);
    assert_eq!(
        with("mod child; pub use child::*; pub struct Parent(Other);"),
        both
    );
    assert_eq!(with("mod child; pub struct Parent(child::Child);"), both);
    assert_eq!(
        with("mod child; use child::Child; pub struct Parent;"),
        both
    );
}

#[test]
fn a_name_is_followed_to_the_file_in_which_it_stands() {
    let files = |through: &'static str| {
        circles(&[
            ("lib.rs", "mod a; mod b; mod c; pub use b::B; use c::*;"),
            ("a.rs", through),
            ("b.rs", "use crate::a::A; pub struct B;"),
            ("c.rs", "use crate::a::A; pub struct C;"),
        ])
    };
    assert_eq!(files("use crate::B; pub struct A;"), ["a.rs b.rs"]);
    assert_eq!(files("use super::{B as X}; pub struct A;"), ["a.rs b.rs"]);
    assert_eq!(files("pub struct A(super::C);"), ["a.rs c.rs"]);
    assert_eq!(files("use crate::b; pub struct A(b::B);"), ["a.rs b.rs"]);
}

#[test]
fn super_and_nested_trees_are_understood() {
    let source = "use a::{b::{c, d as e}, self}; use super::super::x::*; use self::y;";
    let source = SourceFile::parse("m/n.rs", source);
    let found: Vec<_> = source
        .uses
        .iter()
        .map(|it| (it.path.join("::"), it.alias.as_str()))
        .collect();
    let expected = [
        ("a::b::c", "c"),
        ("a::b::d", "e"),
        ("a", "a"),
        ("super::super::x", "*"),
        ("self::y", "y"),
    ];
    assert_eq!(
        found,
        expected.map(|(path, alias)| (path.to_owned(), alias))
    );
    let files = [
        ("lib.rs", "mod x; mod m;"),
        ("x.rs", "use crate::m::n::{o::{O}, self}; pub fn f() {}"),
        ("m/mod.rs", "pub mod n;"),
        (
            "m/n.rs",
            "pub mod o { fn g() { super::super::super::x::f() } pub struct O; }",
        ),
    ];
    assert_eq!(circles(&files), ["m/n.rs x.rs"]);
}

#[test]
fn tests_may_import_what_they_test() {
    let with = |attribute: &str| {
        let a = format!("pub struct A;\n{attribute}\nmod checks {{ use crate::b::B; }}");
        let more = format!("use crate::a::A; {attribute} #[path = \"c.rs\"] mod c; pub struct B;");
        circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", &a),
            ("b.rs", &more),
            ("b/c.rs", "use crate::b::B;"),
        ])
    };
    assert!(with("#[cfg(test)]").is_empty());
    assert!(with("#[cfg(all(test, not(loom)))]\n#[allow(dead_code)]").is_empty());
    for product in ["#[allow(dead_code)]", "#[cfg(not(test))]", "#[cfg(unix)]"] {
        assert_eq!(with(product), ["a.rs b.rs"]);
    }
    assert!(is_test("tests.rs") && is_test("a_tests.rs") && is_test("tests"));
    assert!(!is_test("attests.rs") && !is_test("test.rs"));
}

#[test]
fn comments_strings_and_lifetimes_do_not_count() {
    let a = r##"
        //! [`crate::b::B`]
        /* use crate::b::B; /* nested */ crate::b::B */
        pub struct A<'b>(&'b str);
        const S: [&str; 3] = ["\" crate::b::B", r#"crate::b::B " "#, "\
            crate::b::B"];
        const C: [char; 3] = ['"', '\'', '\u{22}'];
        fn f(r#use: u8) -> impl Sized + use<> { (b'"', r#use, b"crate::b::B") }
    "##;
    assert!(
        circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", a),
            ("b.rs", "use crate::a::A; pub struct B;")
        ])
        .is_empty()
    );
    let line = SourceFile::parse("a.rs", a).paths.last().map(|it| it.line);
    assert_eq!(line, Some(8));
}
