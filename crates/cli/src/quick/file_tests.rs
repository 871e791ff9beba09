use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A directory of its own, which goes at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("adit-file-{}-{n}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        Self(dir)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn many_that_change_a_file_at_once_lose_nothing() {
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"");
    let change = |n: u32| {
        let _lock = Lock::take(&path).expect("a lock");
        let text = read(&path).expect("a text");
        thread::sleep(Duration::from_millis(2));
        write(&path, &format!("{}{n}\n", *text)).expect("written");
    };
    thread::scope(|scope| {
        for n in 0..30 {
            scope.spawn(move || change(n));
        }
    });
    let text = fs::read_to_string(&path).expect("a text");
    let mut lines: Vec<u32> = text
        .lines()
        .map(|line| line.parse().expect("whole"))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..30).collect::<Vec<_>>());
    assert_eq!(dir.names(), ["wg0.conf"]);
}

#[test]
fn a_file_keeps_its_mode_and_its_links() {
    let dir = Dir::new();
    let path = dir.file("real", b"old");
    for mode in [0o600, 0o640, 0o604, 0o400] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("our file");
        let before = of_path(&path);
        write(&path, &format!("new: {mode:o}")).expect("written");
        assert_ne!(of_path(&path), before, "a new file");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o7777, mode);
    }
    let link = dir.0.join("wg0.conf");
    symlink("real", &link).expect("a link");
    write(&link, "newer").expect("written");
    assert!(link.is_symlink());
    assert_eq!(fs::read(&path).expect("a file"), b"newer");
}

/// An access list as the kernel has it: the version, and tag, rights and number of each entry.
fn access_list(user: u32) -> Vec<u8> {
    // Owner, that user, group, mask, others.
    let entries = [(1, 6, u32::MAX), (2, 4, user), (4, 0, u32::MAX)];
    let entries = entries
        .into_iter()
        .chain([(16, 4, u32::MAX), (32, 0, u32::MAX)]);
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(rights));
        list.extend(u32::to_le_bytes(number));
    }
    list
}

#[test]
fn a_file_keeps_its_owner_and_its_access_list() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a file away.
        return;
    }
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"old");
    std::os::unix::fs::chown(&path, Some(65_534), Some(65_533)).expect("given away");
    let list = access_list(1000);
    let set = fsetxattr(
        File::open(&path).expect("a file"),
        ACCESS_LIST,
        &list,
        XattrFlags::empty(),
    );
    write(&path, "new").expect("written");
    let found = fs::metadata(&path).expect("a file");
    assert_eq!((found.uid(), found.gid()), (65_534, 65_533));
    if set == Err(Errno::OPNOTSUPP) {
        // This filesystem has no access lists.
        return;
    }
    set.expect("a list");
    let mut kept = vec![0; 1024];
    let file = File::open(&path).expect("a file");
    let length = fgetxattr(file, ACCESS_LIST, &mut kept[..]).expect("a list");
    assert_eq!(kept[..length], list);
}

/// Anything that has come there since the last look.
#[test]
fn a_new_file_takes_the_place_of_none() {
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"mine");
    let link = dir.0.join("wg1.conf");
    symlink("nothing", &link).expect("a link");
    for taken in [&path, &link] {
        let refused = create(taken, "new").expect_err("it is there");
        assert!(refused.to_string().contains("exists"), "{refused}");
    }
    assert_eq!(fs::read(&path).expect("a file"), b"mine");
    assert!(link.is_symlink() && !dir.0.join("nothing").exists());
    let free = dir.0.join("wg2.conf");
    create(&free, "new").expect("written");
    assert_eq!(fs::read(&free).expect("a file"), b"new");
    assert_eq!(fs::metadata(&free).expect("a file").mode() & 0o7777, 0o600);
    let mut names = dir.names();
    names.sort();
    assert_eq!(names, ["wg0.conf", "wg1.conf", "wg2.conf"]);
}

/// Files with the names that were used before, planted by another user, are left alone.
#[test]
fn what_stands_beside_a_file_is_not_followed() {
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"old");
    let victim = dir.file("victim", b"mine");
    symlink(&victim, dir.0.join("wg0.conf.tmp")).expect("a link");
    write(&path, "new").expect("written");
    assert_eq!(fs::read(&victim).expect("a file"), b"mine");
    assert_eq!(fs::read(&path).expect("a file"), b"new");
    assert!(dir.0.join("wg0.conf.tmp").is_symlink());
}

#[test]
fn bytes_that_are_no_utf8_stay_as_they_are() {
    let dir = Dir::new();
    let old = b"\xef\xbb\xbf# B\xfcro \xc3\xa4\r\n[Interface]\n";
    let path = dir.file("wg0.conf", old);
    let text = read(&path).expect("a text");
    write(&path, &format!("{}# Zo\u{eb}\n", *text)).expect("written");
    let mut expected = old.to_vec();
    expected.extend(b"# Zo\xeb\n");
    assert_eq!(fs::read(&path).expect("a file"), expected);
    let refused = write(&path, "# \u{5f20}").expect_err("not Latin-1");
    assert!(refused.to_string().contains("not UTF-8"), "{refused}");
    assert_eq!(fs::read(&path).expect("a file"), expected);
}

#[test]
fn writing_in_place_shortens_and_lengthens() {
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"a longer text");
    for new in ["short", "a text that is longer than before", ""] {
        let before = of_path(&path);
        overwrite(&path, new.as_bytes()).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("a file"), new);
        assert_eq!(of_path(&path), before);
    }
}

/// An editor takes no lock.
#[test]
fn a_file_that_changed_meanwhile_is_not_replaced() {
    let dir = Dir::new();
    let path = dir.file("wg0.conf", b"old\n");
    let old = read(&path).expect("a text");
    fs::write(&path, "edited\n").expect("a file");
    let said = replace(&path, &old, "new\n").expect_err("it changed");
    assert!(said.to_string().contains("changed meanwhile"), "{said}");
    assert_eq!(fs::read_to_string(&path).expect("a text"), "edited\n");
    replace(&path, "edited\n", "new\n").expect("it is as it was");
    assert_eq!(fs::read_to_string(&path).expect("a text"), "new\n");
}

#[test]
fn a_file_elsewhere_is_called_by_its_path() {
    for (path, words) in [
        ("/etc/wireguard/wg0.conf", "wg0"),
        ("/srv/wg0.conf", "/srv/wg0.conf"),
        ("wg0.conf", "./wg0.conf"),
        ("./wg0.conf", "./wg0.conf"),
        ("../a b/wg0.conf", "'./../a b/wg0.conf'"),
    ] {
        assert_eq!(called(Path::new(path)), words);
    }
}
