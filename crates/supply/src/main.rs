//! What Adit is made of.
//!
//! - `adit-supply check`: licences and sources by deny.toml, docs/dependencies.md by both Cargo.lock, that the lab's
//!   workspace is built as the product's, that no files of the product import each other and no two of its types
//!   have one name, that no file has more than 500 lines, and that the library is built of few packages
//! - `adit-supply api`: the public API of the library, as rustdoc sees it; `--write` writes it to
//!   crates/adit/api.txt, and `--check` compares it with that and with the rules for it
//! - `adit-supply sbom`: the bill of materials of the program, as CycloneDX 1.5
//!
//! cargo-deny checks more, but compiles for longer than all of Adit; where it is installed,
//! `cargo deny check` reads the same deny.toml.

#![forbid(unsafe_code)]

mod api;
mod circles;
mod lengths;
mod licence;
mod metadata;
mod page;
mod policy;
mod sbom;
#[cfg(test)]
mod tests;
mod tree;
mod types;
mod workspaces;

use std::process::ExitCode;

use metadata::{Metadata, read};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["check"] => check(),
        ["api"] => api::print(),
        ["api", "--write"] => api::write(),
        ["api", "--check"] => api::check(),
        ["sbom"] => Metadata::load_program("adit-cli")
            .map(|metadata| println!("{:#}", sbom::document(&metadata))),
        _ => Err("usage: adit-supply check | api [--write | --check] | sbom".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("adit-supply: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), String> {
    let metadata = Metadata::load_all(&workspaces::FOLDERS)?;
    let policy = policy::DenyPolicy::parse(&read("deny.toml")?)?;
    let mut wrong = policy.broken_by(&metadata);
    let [product, lab] = workspaces::FOLDERS;
    let locks = [
        read(&format!("{product}/Cargo.lock"))?,
        read(&format!("{lab}/Cargo.lock"))?,
    ];
    wrong.extend(page::mistakes(
        &read("docs/dependencies.md")?,
        &metadata,
        &[&locks[0], &locks[1]],
    ));
    wrong.extend(workspaces::differences(
        &read(&format!("{product}/Cargo.toml"))?,
        &read(&format!("{lab}/Cargo.toml"))?,
    ));
    wrong.extend(circles::mistakes(&metadata::root())?);
    wrong.extend(types::mistakes(&metadata::root())?);
    wrong.extend(lengths::mistakes(&metadata::root())?);
    wrong.extend(tree::mistakes()?);
    if wrong.is_empty() {
        println!(
            "adit-supply: {} packages, licences, sources and page are right; no files import each other, no two types \
             have one name, and no file is too long",
            metadata.packages.len()
        );
        return Ok(());
    }
    Err(wrong.join("\n"))
}
