//! Sources that are open, and the threads that tell of them and of the interface.

use std::process::Child;

use super::dir::FolderSource;
use super::etcd::EtcdSource;
use super::exec::ProgramSource;
use super::folder::{FolderIdentity, FolderNews, WatchedFolder};
use super::follow;
use super::news::{NewsSender, PAUSE, SourceNews};
use crate::failure::{Context, Result};

/// A source of which all is open that the sandbox does not allow to open.
pub(super) enum OpenSource {
    /// Which it should be, if one was read before.
    Dir(WatchedFolder, Option<FolderIdentity>),
    /// The process that runs the program.
    Exec(Child),
    Etcd(Box<EtcdSource>),
}

impl OpenSource {
    /// Starts the threads that tell. What is returned is for a source to be kept.
    pub(super) fn start(
        self,
        interface: &str,
        keys: Option<WatchedFolder>,
        news: &NewsSender,
    ) -> Result<Option<Child>> {
        let (interface, sender) = (interface.to_owned(), news.clone());
        start_thread("adit-follow", move || follow::follow(&interface, &sender))?;
        if let Some(keys) = keys {
            let sender = news.clone();
            start_thread("adit-keys", move || watch_keys(&keys, &sender))?;
        }
        match self {
            Self::Dir(watched, before) => {
                let source = FolderSource::new(watched, news.clone(), before);
                start_thread("adit-source", move || source.work())?;
            }
            Self::Exec(mut child) => {
                if let Some(stdout) = child.stdout.take() {
                    let source = ProgramSource::new(stdout, news.clone());
                    start_thread("adit-source", move || source.work())?;
                }
                return Ok(Some(child));
            }
            Self::Etcd(source) => start_thread("adit-source", move || source.work())?,
        }
        Ok(None)
    }
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work);
    started
        .map(drop)
        .context(|| "cannot start the threads".into())
}

/// Tells of changes of the files with preshared keys.
fn watch_keys(watched: &WatchedFolder, news: &NewsSender) {
    loop {
        match watched.next(None) {
            Some(FolderNews::Files(names)) => news.send(SourceNews::KeyFiles(Some(names))),
            Some(FolderNews::Anything) => news.send(SourceNews::KeyFiles(None)),
            Some(FolderNews::Gone) => {
                while FolderIdentity::of(watched.path()).is_err() {
                    std::thread::sleep(PAUSE);
                }
                return news.send(SourceNews::Replaced);
            }
            Some(FolderNews::Replaced) => return news.send(SourceNews::Replaced),
            None => {}
        }
    }
}
