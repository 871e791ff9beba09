//! Corpora as files and as folders, and single inputs.
//!
//! - `corpus list`: the names of all targets
//! - `corpus unpack TARGET FOLDER`: the committed inputs, one file each, for a fuzzer
//! - `corpus pack TARGET FOLDER LONGEST MOST`: commits so many inputs of a folder at most, the
//!   shortest first, none longer than LONGEST bytes
//! - `corpus run TARGET FILE…`: runs a target on inputs, as those that a fuzzer found

use std::path::Path;
use std::process::ExitCode;

use adit_fuzz::{TARGETS, corpus};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["list"] => {
            TARGETS
                .iter()
                .for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["unpack", target, folder] => unpack(target, Path::new(folder)),
        ["pack", target, folder, longest, most] => pack(target, Path::new(folder), longest, most),
        ["run", target, files @ ..] => run(target, files),
        _ => Err(
            "usage: corpus list | unpack | pack | run (see crates/fuzz/src/bin/corpus.rs)".into(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corpus: {error}");
            ExitCode::FAILURE
        }
    }
}

fn committed(target: &str) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    adit_fuzz::target(target).ok_or(format!("there is no target {target}"))?;
    let path = corpus::path(target);
    let text = if path.exists() {
        std::fs::read_to_string(&path)?
    } else {
        String::new()
    };
    Ok(corpus::parse(&text)?)
}

fn unpack(target: &str, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    for (i, input) in committed(target)?.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{i:04}")), input)?;
    }
    Ok(())
}

fn pack(
    target: &str,
    folder: &Path,
    longest: &str,
    most: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (longest, most): (usize, usize) = (longest.parse()?, most.parse()?);
    let mut inputs = committed(target)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        found.push(std::fs::read(entry?.path())?);
    }
    found.retain(|input| input.len() <= longest);
    found.sort_by_key(|input| (input.len(), input.clone()));
    // Spread over all lengths.
    let step = found.len().div_ceil(most).max(1);
    inputs.extend(found.into_iter().step_by(step));
    let path = corpus::path(target);
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    std::fs::write(path, corpus::format(inputs))?;
    Ok(())
}

fn run(target: &str, files: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let target = adit_fuzz::target(target).ok_or(format!("there is no target {target}"))?;
    for file in files {
        (target.run)(&std::fs::read(file)?);
        println!("{file}: nothing found");
    }
    Ok(())
}
