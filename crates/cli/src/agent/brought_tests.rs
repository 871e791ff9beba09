use super::*;

#[test]
fn what_was_brought_and_not_removed_is_known_again() {
    let dir = std::env::temp_dir().join(format!("adit-brought-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let (alice, bob) = (PublicKey([1; 32]), PublicKey([2; 32]));
    let ids = |name: &str| RecordId::from(name);
    let (mut file, none) = BroughtFile::open(&dir, "wg0").expect("a file");
    assert!(none.is_empty() && file.mark().is_none());
    let peers = [(alice, ids("a b.conf")), (bob, ids("bob.conf"))];
    file.bring(&peers).expect("written");
    file.forget(&[bob]).expect("written");
    let folder = SourceMark::Folder(FolderIdentity { dev: 7, ino: 9 });
    file.set_mark(folder.clone()).expect("written");
    // The process was killed in the middle of a line.
    let path = dir.join("wg0.peers");
    let half = format!(
        "{}+ {bob} bo",
        std::fs::read_to_string(&path).expect("text")
    );
    std::fs::write(&path, half).expect("written");
    let (mut file, brought) = BroughtFile::open(&dir, "wg0").expect("a file");
    assert_eq!(brought, HashMap::from([(alice, ids("a b.conf"))]));
    assert_eq!(file.mark(), Some(&folder));
    // Another source takes its place.
    let store = SourceMark::Revision(8, "wg0/a b".into());
    file.set_mark(store.clone()).expect("written");
    for _ in 0..2 {
        let (file, _) = BroughtFile::open(&dir, "wg0").expect("a file");
        assert_eq!(file.mark(), Some(&store));
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}
#[test]
fn what_cannot_be_replaced_stays_and_is_added_to() {
    let dir = std::env::temp_dir().join(format!("adit-tidy-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let alice = PublicKey([1; 32]);
    let bring = |file: &mut BroughtFile| file.bring(&[(alice, "alice".into())]);
    let (mut file, _) = BroughtFile::open(&dir, "wg0").expect("a file");
    // It grows to more than it needs, and a link takes the place of what is to replace it.
    let path = dir.join("wg0.peers");
    let many = vec![(PublicKey([2; 32]), RecordId::from("bob")); 30_000];
    file.bring(&many).expect("written");
    let length = || std::fs::metadata(&path).expect("a file").len();
    let before = length();
    let link = dir.join("wg0.peers.next");
    std::os::unix::fs::symlink("elsewhere", &link).expect("a link");
    file.tidy(&HashMap::new());
    assert!(length() == before && !dir.join("elsewhere").exists());
    bring(&mut file).expect("written");
    assert!(length() > before);
    std::fs::remove_file(link).expect("removed");
    file.tidy(&HashMap::new());
    assert_eq!(length(), 0);
    bring(&mut file).expect("written");
    let (_, brought) = BroughtFile::open(&dir, "wg0").expect("a file");
    assert_eq!(brought, HashMap::from([(alice, "alice".into())]));
    std::fs::remove_dir_all(&dir).expect("removed");
}
