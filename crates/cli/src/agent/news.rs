//! What threads tell the main thread of an agent.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use adit_fleet::{RecordChange, RecordId};
use adit_proto::LastSeen;
use adit_proto::config::PublicKey;

use super::brought::SourceMark;

/// Between two tries of what failed.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// Lines of one change, or of one piece of news, in the log; the rest is a number.
pub(super) const TOLD: usize = 16;
/// The exit status of a process that is to be started anew: EX_TEMPFAIL of sysexits.h.
pub(super) const BEGIN_ANEW: u8 = 75;

/// The source has news.
pub(super) enum SourceNews {
    /// Of these records.
    Changes(Vec<(RecordId, RecordChange)>),
    /// Of records that unknown peers were looked up for, and where these peers are.
    Found(Vec<(RecordId, RecordChange)>, Vec<(PublicKey, LastSeen)>),
    /// It has these, and no others; and what tells it from another source, if anything does.
    Listed(HashSet<RecordId>, Option<SourceMark>),
    /// It cannot be read.
    Failing(String),
    /// It can be read again, and nothing was missed.
    Back,
    /// Another folder or file has the path of one that the sandbox is about: the process is to begin anew.
    Replaced,
    /// It can tell nothing any more.
    Ended(String),
    /// These files with preshared keys changed; `None` for all.
    KeyFiles(Option<BTreeSet<OsString>>),
    /// Keys of gateways with their peers were read.
    Held,
    /// Why these keys cannot be written, and cannot be read; `None` when they can again.
    NotWritten(Option<String>),
    NotRead(Option<String>),
}

/// The interface has news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceNews {
    There,
    /// Others changed it.
    Changed,
    Gone,
}

/// What the main thread waits for.
pub(super) enum AgentNews {
    /// The process that sets the rules of peers has ended.
    RulesEnded,
    Source(SourceNews),
    Interface(InterfaceNews),
}

/// The end of a thread that tells.
#[derive(Clone)]
pub(super) struct NewsSender(pub(super) SyncSender<AgentNews>);

impl NewsSender {
    pub(super) fn send(&self, news: SourceNews) {
        // Without a receiver the process ends.
        let _ = self.0.send(AgentNews::Source(news));
    }

    pub(super) fn send_interface(&self, news: InterfaceNews) {
        let _ = self.0.send(AgentNews::Interface(news));
    }
}
