//! boringtun's functions for C, in a program in C that is built with AddressSanitizer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

fn run(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The static library that cargo has built for this test.
fn archive() -> PathBuf {
    let deps = std::env::current_exe().expect("a test has a path");
    let files = std::fs::read_dir(deps.parent().expect("it is in a folder")).expect("a folder");
    let archives = files.filter_map(|file| Some(file.ok()?.path()));
    let archives = archives.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libboringtun_compat-") && name.ends_with(".a")
    });
    let changed = |path: &PathBuf| path.metadata().and_then(|about| about.modified());
    archives
        .max_by_key(|path| changed(path).unwrap_or(SystemTime::UNIX_EPOCH))
        .expect("cargo builds the static library with its tests")
}

fn compile(flags: &[&str], program: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("gcc");
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-I"]);
    command.arg(here.join("include")).args(flags);
    command.arg("-o").arg(program);
    command.arg(here.join("tests/c/two_tunnels.c"));
    run(command
        .arg(archive())
        .args(["-lgcc_s", "-lm", "-ldl", "-lpthread"]));
}

#[test]
fn two_tunnels_of_a_program_in_c_carry_packets() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two_tunnels");
    compile(
        &[
            "-std=c11",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ],
        &program,
    );
    assert_eq!(run(&mut Command::new(program)), "well\n");
}

#[test]
fn the_library_has_each_function_that_the_header_declares() {
    let header = include_str!("../include/wireguard_ffi.h");
    let symbols = run(Command::new("nm")
        .args(["-g", "--defined-only"])
        .arg(archive()));
    let functions = symbols.lines().filter_map(|line| line.split_once(" T "));
    let named = functions.filter(|(_, name)| {
        header
            .split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_'))
            .any(|word| word == *name)
    });
    let mut named: Vec<&str> = named.map(|(_, name)| name).collect();
    named.sort_unstable();
    named.dedup();
    let declared =
        header.split(|sign: char| !(sign.is_ascii_alphanumeric() || "_(".contains(sign)));
    let declared = declared.filter_map(|word| word.split_once('('));
    let mut declared: Vec<&str> = declared
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty())
        .collect();
    declared.sort_unstable();
    declared.dedup();
    assert_eq!(named, declared);
    assert_eq!(named.len(), 14);
}
