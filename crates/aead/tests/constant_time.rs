//! No branch and no address depends on keys or data: under valgrind, for the kernels that it can
//! run, and in the machine code, for those that it cannot.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::process::Command;

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};

/// The two checks.
const VALGRIND: &str = "valgrind_sees_no_branch_or_address_that_depends_on_secrets";
const OBJDUMP: &str = "the_kernels_machine_code_never_branches_on_data";

/// Set for the process that runs under valgrind.
const UNDER_VALGRIND: &str = "ADIT_AEAD_UNDER_VALGRIND";

/// A check without its tool checks nothing. That is good enough on somebody's desk, but not where
/// `CI` is set.
fn skipped(tool: &str) {
    let ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
    assert!(!ci, "there is no {tool} here");
    eprintln!("skipped: no {tool} here");
}

/// Tells valgrind's memcheck that these bytes are undefined (or defined): its client request, which
/// does nothing on a real processor.
fn mark(bytes: &mut [u8], defined: bool) {
    let request = 0x4d43_0000_u64 + if defined { 2 } else { 1 };
    let arguments = [
        request,
        bytes.as_mut_ptr().expose_provenance() as u64,
        bytes.len() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: the sequence that valgrind knows leaves all registers but rdx as they were; the four
    // rotations add up to 128 bits.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") 0_u64 => _,
            options(nostack),
        );
    }
}

/// Seals and opens with secret keys and data. If anything branches on them, memcheck says so.
fn run_with_secrets(kernel: Kernel) {
    for len in [0, 1, 16, 64, 100, 320, 1420, 4100] {
        for batch in [1, 2, 9, 33] {
            let mut bytes = [0x17; 32];
            let mut outs = vec![vec![0x33; len + TAG_LEN]; batch];
            mark(&mut bytes, false);
            let key = Key::new(&bytes);
            outs.iter_mut().for_each(|out| mark(&mut out[..len], false));
            let mut jobs: Vec<_> = (0..)
                .zip(&mut outs)
                .map(|(i, out)| SealJob::in_place(&key, i, out))
                .collect();
            kernel.seal(&mut jobs);
            drop(jobs);
            // The sealed packet is public, but it was computed from secrets.
            outs.iter_mut().for_each(|out| mark(out, true));
            let mut jobs: Vec<_> = (0..)
                .zip(&mut outs)
                .map(|(i, out)| OpenJob::in_place(&key, i, out))
                .collect();
            kernel.open(&mut jobs);
            // The same one by one.
            for (i, out) in (1000..).zip(&mut outs) {
                mark(&mut out[..len], false);
                kernel.seal_one(&key, i, out);
                mark(out, true);
                kernel.open_one(&key, i, out);
            }
        }
    }
}

#[test]
fn valgrind_sees_no_branch_or_address_that_depends_on_secrets() {
    if std::env::var_os(UNDER_VALGRIND).is_some() {
        for kernel in Kernel::available().filter(|kernel| kernel.name() != "ring") {
            println!("under valgrind: {}", kernel.name());
            run_with_secrets(kernel.unmixed());
        }
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("valgrind");
    }
    let output = Command::new("valgrind")
        .args(["--error-exitcode=99", "--track-origins=no", "-q"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", VALGRIND, "--test-threads=1", "--nocapture"])
        .env(UNDER_VALGRIND, "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    for kernel in ["portable", "avx2"] {
        let here = Kernel::available().any(|known| known.name() == kernel);
        assert!(
            !here || printed.contains(kernel),
            "valgrind did not run {kernel}"
        );
    }
    // Whether a tag is right is public, and the only thing to branch on: a report must name the
    // comparison.
    let reports: Vec<_> = errors.split("Conditional jump").skip(1).collect();
    let others = errors.matches("Use of uninitialised value").count()
        + errors.matches("Syscall param").count();
    for report in &reports {
        let place = report.lines().take(4).collect::<Vec<_>>().join("\n");
        assert!(is_comparison(&place), "{errors}");
    }
    assert_eq!(others, 0, "{errors}");
    assert!(
        !reports.is_empty(),
        "the comparison of tags, at least, must be seen:\n{errors}"
    );
}

fn is_comparison(place: &str) -> bool {
    [
        "differs",
        "verify",
        "::open",
        "open_in_place",
        "is_some_and",
    ]
    .iter()
    .any(|name| place.contains(name))
}

/// The instructions that could bring data to the flags, to a mask, or to an address: none of them
/// may be in the kernels. (Masks come from lengths by way of `kmov` from general registers and
/// memory, and `vpcmp` on lengths in Poly1305; a value leaves a vector register only to memory, or
/// at the end of Poly1305, whose last steps in the integer unit are those that valgrind checks in
/// the other kernels.)
#[test]
fn the_kernels_machine_code_never_branches_on_data() {
    let exe = std::env::current_exe().unwrap();
    let Ok(output) = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "-C"])
        .arg(exe)
        .output()
    else {
        return skipped("objdump");
    };
    let listing = String::from_utf8_lossy(&output.stdout);
    let everywhere = [
        "vptest",
        "kortest",
        "ktest",
        "vmovmsk",
        "vpmovmskb",
        "gather",
        "scatter",
        "vpcompress",
        "vpexpand",
        "vcomis",
        "vucomis",
        "vpconflict",
        " div ",
        " idiv ",
        "vpcmpistr",
        "vpcmpestr",
    ];
    let mut seen = Vec::new();
    for function in listing.split("\n\n") {
        let Some((name, body)) = function.split_once('\n') else {
            continue;
        };
        let chacha = [
            "avx512::chacha::",
            "avx512::train::",
            "avx512::alone::",
            "avx2::chacha::",
        ]
        .iter()
        .any(|module| name.contains(module));
        let poly = name.contains("avx512::poly::");
        if !chacha && !poly {
            continue;
        }
        seen.push(name.to_owned());
        for line in body.lines() {
            // vptestnm with a mask register as its result compares lengths; a jump on it would need
            // kortest.
            let line = line.replace("vptestnm", "compare");
            let bad = everywhere.iter().find(|bad| line.contains(*bad));
            assert!(bad.is_none(), "{name}\n{line}");
            // Nothing goes from a vector to a general register where everything in vectors is
            // secret.
            let out = chacha
                && (line.contains("vmovd ") || line.contains("vmovq ") || line.contains("vpextr"))
                && line
                    .split(',')
                    .next_back()
                    .is_some_and(|to| to.starts_with("%r") || to.starts_with("%e"));
            assert!(!out, "{name}\n{line}");
        }
    }
    for kernel in [
        "avx512::chacha::many",
        "avx512::chacha::few",
        "avx512::train::",
        "avx512::alone::work",
        "avx512::poly::packets",
        "avx512::poly::blocks",
        "avx2::chacha::sixteen",
    ] {
        assert!(
            seen.iter().any(|name| name.contains(kernel)),
            "{kernel} is not in the listing: {seen:?}"
        );
    }
}

#[test]
fn a_check_without_its_tool_fails_where_ci_is_set() {
    for (check, tool) in [(VALGRIND, "valgrind"), (OBJDUMP, "objdump")] {
        for ci in ["true", "false"] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", check, "--nocapture"])
                .env("PATH", "/nonexistent")
                .env("CI", ci)
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains(&format!("no {tool} here")), "{errors}");
            assert_eq!(output.status.success(), ci == "false", "{check}: {errors}");
        }
    }
}
