use super::*;

#[test]
fn a_record_that_others_changed_meanwhile_stays() {
    let dir = std::env::temp_dir().join(format!("adit-records-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a folder");
    let source = AgentSource::Dir(dir.clone());
    let store = RecordStore::Folder(dir.clone());
    let id: RecordId = "a.conf".into();
    let path = dir.join(&*id);
    let text = || fs::read(&path).unwrap_or_default();
    let change = |before: Option<&[u8]>, new: Option<&[u8]>| {
        store
            .change(&id, before, new, &source)
            .map_err(|error| error.to_string())
    };
    change(None, Some(b"one")).expect("new");
    let again = change(None, Some(b"two")).expect_err("there is one");
    assert!(again.contains("was changed meanwhile"), "{again}");
    change(Some(b"one"), Some(b"two")).expect("changed");
    assert!(change(Some(b"one"), Some(b"three")).is_err());
    assert!(change(Some(b"one"), None).is_err());
    assert_eq!(text(), b"two");
    change(Some(b"two"), None).expect("removed");
    let left = fs::read_dir(&dir).expect("a folder").count();
    fs::remove_dir_all(&dir).expect("the folder");
    assert_eq!(left, 0);
}

#[test]
fn a_record_is_found_by_name_key_and_file() {
    let one = |id: &str, seed: u8, name: &str| {
        let key = adit_proto::config::Secret::new(&[seed; 32]).public_key();
        let text = format!("[Peer]\nPublicKey = {key}\n# friendly_name = {name}\n");
        let text = Zeroizing::new(text.into_bytes());
        let record = PeerRecord::from_section(&text);
        StoredRecord {
            id: id.into(),
            text,
            record,
        }
    };
    let all = [
        one("a.conf", 1, "alice"),
        one("b.conf", 2, "bob"),
        one("c.conf", 3, "bob"),
    ];
    let source = AgentSource::Dir("/x".into());
    let by = |word: &str| find(&all, word, &source).map(|it| it.id.to_string());
    let key = all[1]
        .record
        .as_ref()
        .expect("a record")
        .public_key
        .to_string();
    for (word, id) in [
        ("alice", "a.conf"),
        (&key[..8], "b.conf"),
        ("c", "c.conf"),
        ("b.conf", "b.conf"),
    ] {
        assert_eq!(by(word).expect("one"), id, "{word}");
    }
    assert!(
        by("bob")
            .expect_err("two")
            .to_string()
            .contains("b.conf and c.conf")
    );
    assert!(by("nobody").is_err());
}
