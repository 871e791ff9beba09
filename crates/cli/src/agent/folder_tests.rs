use std::os::unix::fs::symlink;

use super::*;

/// A folder of one test, which goes with it.
pub(in super::super) struct TestFolder(pub(in super::super) PathBuf);

impl TestFolder {
    pub(in super::super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adit-folder-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("here")).expect("a folder");
        Self(path)
    }

    pub(in super::super) fn here(&self) -> PathBuf {
        self.0.join("here")
    }

    pub(in super::super) fn write(&self, name: &str) {
        std::fs::write(self.here().join(name), "text").expect("written");
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn files(names: &[&str]) -> Option<FolderNews> {
    Some(FolderNews::Files(
        names.iter().map(OsString::from).collect(),
    ))
}

const SOON: Option<Duration> = Some(Duration::from_millis(600));

#[test]
fn files_that_are_written_renamed_linked_and_removed_are_told() {
    let folder = TestFolder::new("told");
    let watched = WatchedFolder::new(&folder.here()).expect("watched");
    folder.write("a");
    assert_eq!(watched.next(SOON), files(&["a"]));
    // What happens at the same time is one piece of news.
    folder.write("b");
    std::fs::rename(folder.here().join("a"), folder.here().join("c")).expect("renamed");
    assert_eq!(watched.next(SOON), files(&["a", "b", "c"]));
    symlink("c", folder.here().join("d")).expect("a link");
    assert_eq!(watched.next(SOON), files(&["d"]));
    std::fs::remove_file(folder.here().join("c")).expect("removed");
    assert_eq!(watched.next(SOON), files(&["c"]));
    // One that is being written is told of when it is closed.
    let file = File::create(folder.here().join("e")).expect("a file");
    assert_eq!(watched.next(SOON), None);
    drop(file);
    assert_eq!(watched.next(SOON), files(&["e"]));
    symlink("..1", folder.here().join("..data_tmp")).expect("a link");
    assert_eq!(watched.next(SOON), files(&["..data_tmp"]));
    std::fs::rename(
        folder.here().join("..data_tmp"),
        folder.here().join("..data"),
    )
    .expect("renamed");
    assert_eq!(watched.next(SOON), Some(FolderNews::Anything));
}

#[test]
fn a_folder_that_goes_or_is_another_one_is_told() {
    let folder = TestFolder::new("goes");
    let link = folder.0.join("link");
    symlink(folder.here(), &link).expect("a link");
    let by_link = WatchedFolder::new(&link).expect("watched");
    let watched = WatchedFolder::new(&folder.here()).expect("watched");
    std::fs::create_dir(folder.0.join("other")).expect("a folder");
    symlink(folder.0.join("other"), folder.0.join("next")).expect("a link");
    std::fs::rename(folder.0.join("next"), &link).expect("renamed");
    assert_eq!(by_link.next(SOON), Some(FolderNews::Replaced));
    std::fs::remove_dir_all(folder.here()).expect("removed");
    assert_eq!(watched.next(SOON), Some(FolderNews::Gone));
    std::fs::create_dir(folder.here()).expect("a folder");
    assert!(FolderIdentity::of(&folder.here()).is_ok());
    assert!(WatchedFolder::new(&folder.0.join("none")).is_err());
}

#[test]
fn what_is_no_file_is_not_read_and_a_long_one_not_to_its_end() {
    let folder = TestFolder::new("read");
    folder.write("a");
    let path = folder.here().join("a");
    assert_eq!(read_file(&path, 100).expect("text").as_slice(), b"text");
    assert_eq!(read_file(&path, 2).expect("text").as_slice(), b"tex");
    assert!(read_file(&folder.here(), 100).is_err());
    assert!(read_file(&folder.here().join("none"), 100).is_err());
    let pipe = folder.here().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    assert!(read_file(&pipe, 100).is_err());
}
