//! What an agent tells of itself: a file that it replaces at each change.

use serde::{Deserialize, Serialize};

/// Version of [`AgentStatus`] as JSON. Fields may be added under the same version.
pub const SCHEMA: u32 = 1;
/// Refused records that are named.
pub const MAX_REFUSALS: usize = 100;

/// The state of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// Its first whole list is not complete yet: nothing is removed.
    #[default]
    Listing,
    /// Its list is whole, and each change takes effect.
    Listed,
    /// It cannot be read: everything stays as it is.
    Failing,
}

/// What an agent tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Version of the document.
    pub schema: u32,
    /// The interface.
    pub interface: String,
    /// Whether the process is there: the reader finds out.
    #[serde(default)]
    pub is_running: bool,
    /// The process.
    pub pid: u32,
    /// The source, as it was given.
    pub source: String,
    /// Its state.
    pub state: SourceState,
    /// Why it fails, or why the interface cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether the interface is there.
    pub is_up: bool,
    /// Records that the source has, good and bad.
    pub records: usize,
    /// Peers of the interface that come from the source.
    pub applied: usize,
    /// Records that are refused.
    pub refused: usize,
    /// The first of these.
    #[serde(default)]
    pub refusals: Vec<RefusedRecord>,
    /// When the source's last whole list was complete: seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_list: Option<u64>,
    /// With `--write-back`: the name of this gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// With `--write-back`: why the keys of gateways cannot be written or read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back_failure: Option<String>,
    /// With `--write-back`: peers of all gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<usize>,
    /// What became of unknown peers, if the agent brings peers just in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub just_in_time: Option<JustInTime>,
}

/// What became of unknown peers, since the agent began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JustInTime {
    /// Peers that the store has.
    pub found: u64,
    /// Keys that it does not have.
    pub missing: u64,
    /// Keys for which it was not asked, since too many are unknown.
    pub limited: u64,
    /// Peers that were gone, and were removed.
    pub evicted: u64,
}

/// A record that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRecord {
    /// What the source calls it.
    pub record: String,
    /// Why.
    pub reason: String,
    /// The public key of its peer, if the record itself is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// What it calls the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
