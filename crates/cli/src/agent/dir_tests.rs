use std::sync::mpsc::{Receiver, sync_channel};

use super::super::folder::tests::TestFolder;
use super::super::news::AgentNews;
use super::*;

/// The source of a folder, and what it tells.
fn source(
    folder: &TestFolder,
    before: Option<FolderIdentity>,
) -> (FolderSource, Receiver<AgentNews>) {
    let (sender, news) = sync_channel(100);
    let watched = WatchedFolder::new(&folder.here()).expect("watched");
    (FolderSource::new(watched, NewsSender(sender), before), news)
}

/// The next news: records with `+`, `!` for a bad one or `-`, or those of the whole list.
fn next(news: &Receiver<AgentNews>) -> Option<Vec<String>> {
    let mut told: Vec<String> = match news.try_recv().ok()? {
        AgentNews::Source(SourceNews::Changes(changes)) => changes
            .into_iter()
            .map(|(id, change)| match change {
                RecordChange::Put(_) => format!("+{id}"),
                RecordChange::Bad(_) => format!("!{id}"),
                RecordChange::Delete => format!("-{id}"),
            })
            .collect(),
        AgentNews::Source(SourceNews::Listed(ids, _)) => {
            ids.iter().map(|id| id.to_string()).collect()
        }
        AgentNews::Source(SourceNews::Failing(why)) => vec![why],
        _ => vec!["other news".into()],
    };
    told.sort_unstable();
    Some(told)
}

fn is(expected: &[&str]) -> Option<Vec<String>> {
    Some(expected.iter().map(|&one| one.to_owned()).collect())
}

#[test]
fn a_folder_that_another_one_replaces_is_not_mixed_up_with_it() {
    let folder = TestFolder::new("replaced");
    let (mut source, news) = source(&folder, None);
    folder.write("a.conf");
    folder.write("b.conf");
    source.list();
    assert_eq!(next(&news), is(&["!a.conf", "!b.conf"]));
    assert_eq!(next(&news), is(&["a.conf", "b.conf"]));
    std::fs::remove_file(folder.here().join("a.conf")).expect("removed");
    source.tell(&["a.conf".into()]).expect("told");
    assert_eq!(next(&news), is(&["-a.conf"]));
    // Another folder takes its place after the source was told of a change, and before it looks.
    std::fs::rename(folder.here(), folder.0.join("away")).expect("renamed");
    for has_another in [false, true] {
        if has_another {
            std::fs::create_dir(folder.here()).expect("a folder");
            folder.write("c.conf");
        }
        assert!(source.tell(&["b.conf".into()]).is_err());
        assert_eq!(next(&news), None);
        source.list();
        assert!(!source.is_listed);
        assert_eq!(next(&news).map(|told| told.len()), Some(1));
        assert_eq!(next(&news), None);
    }
}

#[test]
fn an_empty_folder_is_no_list_if_another_one_was_read() {
    let folder = TestFolder::new("empty");
    let (mut source, news) = source(&folder, Some(FolderIdentity::UNKNOWN));
    source.list();
    let why = next(&news).expect("news").concat();
    assert!(why.starts_with("the folder is empty and is not"), "{why}");
    folder.write("a.conf");
    source.list();
    assert_eq!(next(&news), is(&["!a.conf"]));
    assert_eq!(next(&news), is(&["a.conf"]));
    // From now on it is the one that was read.
    std::fs::remove_file(folder.here().join("a.conf")).expect("removed");
    source.list();
    assert_eq!(next(&news), is(&[]));
}
