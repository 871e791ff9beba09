//! SECURITY.md, which says what is left to whom. It is no part of the package, nor is this.

use std::collections::BTreeSet;
use std::path::Path;

use adit_sandbox::Role;
use adit_sandbox::calls::{self, INTRUDER};

/// The names in the table of SECURITY.md are those of the lists.
#[test]
fn security_md_lists_the_system_calls_of_each_role() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md");
    let page = std::fs::read_to_string(page).expect("SECURITY.md");
    let names = |label: &str| -> BTreeSet<String> {
        let row = format!("| {label} |");
        let line = page.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("no row {label}"));
        let (_, cells) = line.split_once(&row).expect("it begins so");
        cells
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let listed = |role| -> BTreeSet<String> {
        let calls = calls::of(role).into_iter();
        calls.map(|call| call.name().to_owned()).collect()
    };
    let every = names("every thread");
    for (label, role) in [
        ("packets", Role::Packets),
        ("control", Role::Control),
        ("sockets", Role::Sockets),
        ("resolver", Role::Resolver),
        ("helper", Role::Helper),
        ("namespace", Role::Namespace),
        ("agent", Role::Agent),
        ("rules", Role::Rules),
    ] {
        let mut documented: BTreeSet<String> = every.union(&names(label)).cloned().collect();
        let has_older = matches!(
            role,
            Role::Resolver | Role::Helper | Role::Agent | Role::Rules
        );
        if has_older && cfg!(target_arch = "x86_64") {
            documented.extend(names(&format!("{label}, older forms")));
        }
        assert_eq!(documented, listed(role), "{label}");
    }
    for (label, role) in [("proxy", Role::Proxy), ("proxy's main", Role::ProxyMain)] {
        let older = format!("{label}, older forms");
        let mut documented: BTreeSet<String> = every.union(&names(label)).cloned().collect();
        if role == Role::ProxyMain {
            documented.extend(listed(Role::Proxy));
            documented.extend(listed(Role::Main));
        }
        if cfg!(target_arch = "x86_64") {
            documented.extend(names(&older));
        }
        assert_eq!(documented, listed(role), "{label}");
    }
    let others = [Role::Packets, Role::Control, Role::Sockets].map(listed);
    let mut kept = listed(Role::Main);
    for name in others.iter().flatten() {
        kept.remove(name);
    }
    // The older forms exist on one architecture only.
    let documented = &names("main") | &names("main, older forms");
    let missing: Vec<_> = kept.difference(&documented).collect();
    assert!(missing.is_empty(), "{missing:?}");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(documented, kept);
    }
    let intruder = INTRUDER.iter().map(|call| call.name().to_owned());
    assert_eq!(names("intruder"), intruder.collect());
}
