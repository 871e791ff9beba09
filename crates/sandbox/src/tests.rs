//! The sandbox where the kernel, or whoever started the process, does not allow all of it.
//!
//! A process begins a sandbox once: each test starts this program anew, with [`CHILD`] set.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// What the child lacks.
const CHILD: &str = "ADIT_TEST_LACKS";

const LANDLOCK: [libc::c_long; 3] = [
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

/// Has these calls fail from now on, as a kernel without them does.
fn without(calls: &[libc::c_long], error: libc::c_int) {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("known");
    let fails = SeccompAction::Errno(errno(error));
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, fails, arch).expect("a filter");
    install(&[BpfProgram::try_from(filter).expect("a program")]).expect("installed");
}

fn folder() -> PathBuf {
    std::env::temp_dir().join("adit-lacks")
}

fn locked_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let words = line.expect("a line").split_whitespace().next();
    words.expect("a number").parse().expect("a number")
}

/// In the child: what is on, and what a confined thread and the keeper can do then.
#[test]
fn lacks() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    match what.as_str() {
        "nothing" => {}
        "landlock" => without(&LANDLOCK, libc::ENOSYS),
        // It is built in, but not switched on.
        "lsm" => without(&LANDLOCK, libc::EOPNOTSUPP),
        "seccomp" => without(&[libc::SYS_seccomp], libc::EINVAL),
        "memlock" => {
            let little = Rlimit {
                current: Some(64 << 10),
                maximum: Some(64 << 10),
            };
            setrlimit(Resource::Memlock, little).expect("less");
            keep(CapabilitySet::NET_ADMIN).expect("without CAP_SYS_RESOURCE");
        }
        what => panic!("{what}"),
    }
    let folders = Folders {
        own: vec![folder()],
        removable_in: None,
    };
    begin_with(&folders, Otherwise::Refuse).expect("the rest holds");
    let parts = parts();
    let on = parts.iter().filter(|(_, on)| *on).map(|(name, _)| name);
    println!("on={}", on.collect::<Vec<_>>().join(","));
    let thread = std::thread::spawn(|| {
        confine(Role::Control).expect("confined");
        // With all memory locked, it grows as before.
        let mut memory = vec![1_u8; 32 << 20];
        memory.resize(64 << 20, 2);
        let open = || {
            File::open("/etc/passwd")
                .map(drop)
                .map_err(|error| error.kind())
        };
        let own = || {
            File::create(folder().join("file"))
                .map(drop)
                .map_err(|error| error.kind())
        };
        (open(), run(open), run(own), memory.len())
    });
    let (confined, keeper, own, len) = thread.join().expect("no panic");
    println!("confined={confined:?} keeper={keeper:?} own={own:?} len={len}");
    println!("locked={}", locked_kilobytes());
}

fn child(lacks: &str) -> String {
    std::fs::create_dir_all(folder()).expect("a folder");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tests::lacks", "--nocapture"])
        .env(CHILD, lacks)
        .output()
        .expect("it starts");
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{lacks}: {told}");
    told
}

fn field<'a>(told: &'a str, name: &str) -> &'a str {
    let (_, rest) = told.split_once(&format!("{name}=")).expect(name);
    rest.split_whitespace().next().unwrap_or_default()
}

const REFUSED: &str = "Err(PermissionDenied)";

#[test]
fn the_keeper_has_its_folders_and_no_other_file() {
    let told = child("nothing");
    assert!(field(&told, "on").contains("system-calls"), "{told}");
    assert!(field(&told, "on").contains("files"), "{told}");
    assert_eq!(field(&told, "confined"), REFUSED);
    assert_eq!(field(&told, "keeper"), REFUSED);
    assert_eq!(field(&told, "own"), "Ok(())");
}

#[test]
fn without_landlock_the_rest_holds() {
    for lacks in ["landlock", "lsm"] {
        let told = child(lacks);
        let on: Vec<&str> = field(&told, "on").split(',').collect();
        assert!(!on.contains(&"files"), "{told}");
        for rest in ["system-calls", "capabilities", "no-dumps"] {
            assert!(on.contains(&rest), "{told}");
        }
        assert_eq!(field(&told, "confined"), REFUSED);
        assert_eq!(field(&told, "keeper"), "Ok(())");
    }
}

#[test]
fn without_filters_the_rest_holds() {
    let told = child("seccomp");
    let on: Vec<&str> = field(&told, "on").split(',').collect();
    assert!(!on.contains(&"system-calls"), "{told}");
    for rest in ["files", "capabilities", "no-dumps"] {
        assert!(on.contains(&rest), "{told}");
    }
    assert_eq!(field(&told, "confined"), REFUSED, "by Landlock");
}

#[test]
fn memory_is_locked_where_the_limit_can_be_raised() {
    let told = child("nothing");
    let locked: u64 = field(&told, "locked").parse().expect("a number");
    let own = capabilities(None).expect("capabilities").effective;
    let may =
        getrlimit(Resource::Memlock).maximum.is_none() || own.contains(CapabilitySet::SYS_RESOURCE);
    assert_eq!(locked > 0, may, "{told}");
    assert_eq!(field(&told, "on").contains("locked-memory"), may, "{told}");
    assert_eq!(field(&told, "len"), (64_u64 << 20).to_string());
    let told = child("memlock");
    assert_eq!(field(&told, "locked"), "0");
    assert!(!field(&told, "on").contains("locked-memory"), "{told}");
    assert_eq!(field(&told, "len"), (64_u64 << 20).to_string());
}
