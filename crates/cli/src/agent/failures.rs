//! What an agent fails at.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::failure::say;

/// What an agent does, and may fail at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AgentTask {
    ReadSource,
    ChangeInterface,
    NameEndpoints,
    WriteHeld,
    ReadHeld,
    WriteHeldFile,
    WriteStatus,
}

impl AgentTask {
    /// Those of `--source`.
    pub(super) const OF_SOURCE: RangeInclusive<Self> = Self::ReadSource..=Self::NameEndpoints;
    /// Those of `--write-back`.
    pub(super) const OF_HELD: RangeInclusive<Self> = Self::WriteHeld..=Self::WriteHeldFile;
}

/// Why tasks fail, those that do.
#[derive(Default)]
pub(super) struct AgentFailures(BTreeMap<AgentTask, String>);

impl AgentFailures {
    /// The reason of the first of these tasks that fails.
    pub(super) fn first(&self, tasks: RangeInclusive<AgentTask>) -> Option<&String> {
        self.0.range(tasks).next().map(|(_, why)| why)
    }

    /// Logs that a task fails, or works again, where that has changed. The reason may change with each try: only the
    /// status has the latest one.
    pub(super) fn set(
        &mut self,
        (name, source): (&str, &str),
        task: AgentTask,
        why: Option<String>,
    ) {
        use AgentTask as Task;
        let is_same = self.0.contains_key(&task) == why.is_some();
        match (&why, task) {
            _ if is_same => {}
            (Some(why), Task::ReadSource) => say!("adit: {name}: {source}: {why}"),
            (Some(why), _) => say!("adit: {name}: {why}"),
            (None, task) => {
                let again = match task {
                    Task::ReadSource => "it can be read again",
                    Task::ChangeInterface => "the interface takes changes again",
                    Task::NameEndpoints => "endpoints that are names are looked up",
                    Task::WriteHeld => {
                        "the peers of this gateway can be written to the store again"
                    }
                    Task::ReadHeld => "the peers of all gateways can be read again",
                    Task::WriteHeldFile => "the file with endpoints can be written again",
                    Task::WriteStatus => "the status can be written again",
                };
                match task {
                    Task::ReadSource => say!("adit: {name}: {source}: {again}"),
                    _ => say!("adit: {name}: {again}"),
                }
            }
        }
        match why {
            Some(why) => drop(self.0.insert(task, why)),
            None => drop(self.0.remove(&task)),
        }
    }
}
