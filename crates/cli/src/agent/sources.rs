//! Sources that are open, and the threads that tell of them and of the interface.

use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use adit_fleet::EtcdAddress;

use super::brought::SourceMark;
use super::dir::FolderSource;
use super::etcd::EtcdSource;
use super::etcd_client::EtcdClient;
use super::exec::ProgramSource;
use super::folder::{FolderIdentity, FolderNews, WatchedFolder};
use super::follow;
use super::held::WriteBack;
use super::lookups::Lookups;
use super::news::{NewsSender, PAUSE, SourceNews};
use super::wanted::WantedRecords;
use crate::failure::{Context, Result};

/// Sessions that wait: those of some seconds, when the peers of another gateway come.
const HELD: usize = 8192;
/// Unknown peers that wait: those that an interface tells of in half a second.
const STRANGERS: usize = 256;

/// A source of which all is open that the sandbox does not allow to open.
pub(super) enum OpenSource {
    /// Which it should be, if one was read before.
    Dir(WatchedFolder, Option<FolderIdentity>),
    /// The process that runs the program.
    Exec(Child),
    /// And what asks for unknown peers, and what tells which peers are here.
    Etcd(Box<EtcdSource>, Option<Lookups>, Option<Box<WriteBack>>),
}

impl OpenSource {
    /// `before` is what was listed last, and whether that has brought peers.
    pub(super) fn of_etcd(
        address: &EtcdAddress,
        client: Arc<EtcdClient>,
        news: &NewsSender,
        wanted: Option<Arc<WantedRecords>>,
        before: (Option<&SourceMark>, bool),
        write_back: Option<WriteBack>,
    ) -> Self {
        let lookups = wanted.clone().map(|wanted| Lookups {
            address: address.clone(),
            client: Arc::clone(&client),
            news: news.clone(),
            wanted,
        });
        let source = EtcdSource::new(address.clone(), client, news.clone(), wanted, before);
        Self::Etcd(Box::new(source), lookups, write_back.map(Box::new))
    }

    /// Starts the threads that tell. What is returned is for a source to be kept.
    pub(super) fn start(
        self,
        interface: &str,
        keys: Option<WatchedFolder>,
        news: &NewsSender,
    ) -> Result<Option<Child>> {
        let (interface, sender) = (interface.to_owned(), news.clone());
        let (strangers, receiver) = sync_channel(STRANGERS);
        let strangers = matches!(self, Self::Etcd(_, Some(_), _)).then_some(strangers);
        let (held, told) = sync_channel(HELD);
        let writer = held.clone();
        let held = matches!(self, Self::Etcd(.., Some(_))).then_some(held);
        start_thread("adit-follow", move || {
            follow::follow(&interface, &sender, strangers.as_ref(), held.as_ref())
        })?;
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
            Self::Etcd(source, lookups, write_back) => {
                start_thread("adit-source", move || source.work())?;
                let wanted = lookups.as_ref().map(|it| Arc::clone(&it.wanted));
                let elsewhere = lookups.clone();
                if let Some(lookups) = lookups {
                    start_thread("adit-lookups", move || lookups.work(&receiver))?;
                }
                if let Some(write_back) = write_back {
                    let mut reader = write_back.clone();
                    // Unknown peers do not wait for those of other gateways.
                    let (sender, receiver) = sync_channel(STRANGERS);
                    reader.wanted = wanted.zip(Some(sender));
                    if let Some(elsewhere) = elsewhere {
                        start_thread("adit-elsewhere", move || elsewhere.work(&receiver))?;
                    }
                    start_thread("adit-held", move || reader.read(&writer))?;
                    start_thread("adit-write-back", move || write_back.write(&told))?;
                }
            }
        }
        Ok(None)
    }
}

pub(super) fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
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
