use serde_json::json;

use crate::licence::suffices;
use crate::metadata::Metadata;
use crate::page::mistakes;
use crate::policy::DenyPolicy;
use crate::sbom::document;
use crate::workspaces::differences;

#[test]
fn a_licence_suffices_by_its_ands_and_ors() {
    let allowed = |name: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&name);
    for good in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/MIT",
        "ISC AND (Apache-2.0 OR ISC)",
        "GPL-3.0 OR ISC AND MIT",
        "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
    ] {
        assert!(suffices(good, &allowed), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT",
        "MIT)",
        "MIT ISC",
        "Apache-2.0",
        "OR",
    ] {
        assert!(!suffices(bad, &allowed), "{bad}");
    }
}

/// A program, its library, what that takes from the registry, and a tool of the tests.
fn metadata(licence: &str, source: &str) -> Metadata {
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    let package = |id: &str, version: &str, from: serde_json::Value, licence: &str| {
        let mut package = json!({ "id": id, "name": id, "version": version });
        package["source"] = from;
        package["license"] = json!(licence);
        package
    };
    let own = |id: &str, asks: serde_json::Value| {
        let mut package = package(id, "1.0.0", json!(null), "MIT");
        package["dependencies"] = asks;
        package
    };
    let other = |id, licence, source: &str| package(id, "2.1.0", json!(source), licence);
    let dep =
        |id: &str, kind: serde_json::Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
    Metadata::parse(&json!({
        "packages": [
            own("adit-cli", json!([{ "name": "lib", "req": "*", "path": "/lib" }])),
            own("lib", json!([{ "name": "ring", "req": "^2.1", "path": null }])),
            other("ring", licence, source),
            other("tool", "MIT", registry),
        ],
        "resolve": { "nodes": [
            { "id": "adit-cli", "deps": [dep("lib", json!(null))] },
            { "id": "lib", "deps": [dep("ring", json!(null)), dep("tool", json!("dev"))] },
            { "id": "ring", "deps": [] },
            { "id": "tool", "deps": [] },
        ] },
    }))
}

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const POLICY: &str = r#"
[licenses]
allow = [
    "MIT", # not "GPL-3.0"
]
exceptions = [
    { crate = "ring", allow = ["ISC"] },
]

[bans]
allow = ["GPL-3.0"]
"#;

#[test]
fn licences_and_sources_that_are_not_allowed_are_named() {
    let policy = DenyPolicy::parse(POLICY).unwrap();
    let wrong = |licence, source| policy.broken_by(&metadata(licence, source));
    assert_eq!(wrong("ISC", REGISTRY), Vec::<String>::new());
    assert!(wrong("GPL-3.0", REGISTRY)[0].starts_with("ring@2.1.0: deny.toml does not allow"));
    assert!(wrong("MIT", "git+https://example.org/ring")[0].contains("not from the registry"));
    let stale = DenyPolicy::parse(&POLICY.replace("\"ring\"", "\"gone\"")).unwrap();
    assert!(stale.broken_by(&metadata("MIT", REGISTRY))[0].contains("gone"));
}

#[test]
fn a_page_that_went_stale_is_told() {
    let metadata = metadata("MIT", REGISTRY);
    let lock = "[[package]]\nname = \"adit\"\nversion = \"1.0.0\"\ndependencies = [\n \"ring\",\n]\n\n\
        [[package]]\nname = \"ring\"\nversion = \"2.1.0\"\nsource = \"registry\"\n";
    let page = |row: &str| mistakes(row, &metadata, &[lock, ""]);
    assert_eq!(
        page("| `ring` | 2.1.0 | seals | yes |"),
        Vec::<String>::new()
    );
    assert!(page("")[0].contains("no row for ring"));
    assert!(page("| `ring` | 2.0.9 | seals | yes |")[0].contains("2.1.0 by now"));
    assert!(page("| `ring` | 2.1.0 | | yes |")[0].contains("empty"));
    assert!(page("| `tool` | 2.1.0 | x | no |")[0].contains("no direct dependency"));
    let other = lock.replace("2.1.0", "2.2.0");
    let of_both = mistakes(
        "| `ring` | 2.1.0 | seals | yes |",
        &metadata,
        &[lock, &other],
    );
    assert!(of_both[0].contains("2.2.0 by now"));
    // Another version, for another package only, beside ours and alone.
    let others = "[[package]]\nname = \"ring\"\nversion = \"1.9.0\"\nsource = \"registry\"\n\
        [[package]]\nname = \"tool\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\
        dependencies = [\n \"ring 1.9.0\",\n]\n";
    let both = lock.replace("\"ring\",", "\"ring 2.1.0\",") + others;
    let row = "| `ring` | 2.1.0 | seals | yes |";
    let wrong = mistakes(row, &metadata, &[&both, &others.replace(" 1.9.0", "")]);
    assert_eq!(wrong, Vec::<String>::new());
    let stale = mistakes("| `ring` | 1.9.0 | seals | yes |", &metadata, &[&both]);
    assert!(stale[0].contains("2.1.0 by now"), "{stale:?}");
}

#[test]
fn a_lab_that_is_built_in_another_way_is_told() {
    let product = "[workspace.lints.rust]\nunsafe_code = \"deny\"\n\n# Fast.\n[profile.release]\n\
        lto = \"thin\"\n[profile.release.package]\nadit-cli = { overflow-checks = true }\n";
    let lab = "[package]\nname = \"adit-lab\"\n[lints.rust]\nunsafe_code = \"deny\"\n\
        [profile.release]\nlto = \"thin\"\n\n[profile.release.package]\n";
    assert_eq!(differences(product, lab), Vec::<String>::new());
    let slower = differences(product, &lab.replace("thin", "off"));
    assert!(slower[0].contains("[profile.release]"), "{slower:?}");
    let laxer = differences(product, &lab.replace("[lints.rust]", "[lints.clippy]"));
    assert!(laxer[0].contains("[lints.rust]"), "{laxer:?}");
}

#[test]
fn the_bill_of_materials_lists_what_the_program_is_built_of() {
    let bill = document(&metadata("MIT/ISC", REGISTRY).of("adit-cli"));
    assert_eq!(bill["metadata"]["component"]["name"], "adit-cli");
    let parts = bill["components"].as_array().unwrap();
    let names: Vec<_> = parts
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["lib", "ring"], "no tool of the tests");
    assert_eq!(parts[1]["purl"], "pkg:cargo/ring@2.1.0");
    assert_eq!(parts[1]["licenses"][0]["expression"], "MIT OR ISC");
    assert_eq!(
        bill["dependencies"][1]["dependsOn"],
        serde_json::json!(["pkg:cargo/ring@2.1.0", "pkg:cargo/tool@2.1.0"][..1])
    );
}
