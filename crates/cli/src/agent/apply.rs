//! The changes of an interface, over its control socket.

use std::collections::BTreeMap;

use adit_ctl::uapi::{ClientError, UapiClient};
use adit_fleet::{ChangeBatch, MAX_SECTIONS, Reconciler};
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};

use super::brought::BroughtFile;
use super::news::TOLD;
use crate::failure::say;

/// How an interface is changed.
pub(super) struct Applier {
    pub(super) interface: String,
    pub(super) brought: BroughtFile,
    /// Peers that the process refused when they were brought last, and why.
    refused: BTreeMap<PublicKey, String>,
    /// It did not take the last endpoints that are names.
    refuses_names: bool,
}

/// Why the interface is not as it should be.
pub(super) enum ApplyError {
    /// No process serves it, or it does not answer.
    Interface(ClientError),
    /// What is to be brought cannot be written down.
    File(std::io::Error),
}

impl Applier {
    pub(super) fn new(interface: &str, brought: BroughtFile) -> Self {
        Self {
            interface: interface.to_owned(),
            brought,
            refused: BTreeMap::new(),
            refuses_names: false,
        }
    }

    pub(super) fn look(&self) -> Result<DeviceStatus, ClientError> {
        UapiClient::connect(&self.interface)?.get()
    }

    /// Makes all changes that are due, but for peers that the process refuses.
    pub(super) fn apply(&mut self, reconciler: &mut Reconciler) -> Result<(), ApplyError> {
        let (interface, mut client) = (self.interface.clone(), None);
        let mut refuses_names = self.refuses_names;
        let applied = self.apply_by(reconciler, |batch| {
            let client = match &mut client {
                Some(client) => client,
                none => none.insert(UapiClient::connect(&interface)?),
            };
            make(client, batch)?;
            if !batch.endpoints.is_empty() {
                let named = batch
                    .endpoints
                    .iter()
                    .map(|(key, endpoint)| (*key, endpoint));
                let taken = client.name_endpoints(named, false);
                refuses_names = matches!(taken, Err(ClientError::Refused(_)));
                if !refuses_names {
                    taken?;
                }
            }
            Ok(())
        });
        self.refuses_names = refuses_names;
        applied
    }

    /// [`Applier::apply`], where this makes a change.
    fn apply_by(
        &mut self,
        reconciler: &mut Reconciler,
        mut make: impl FnMut(&ChangeBatch) -> Result<(), ClientError>,
    ) -> Result<(), ApplyError> {
        // Peers to be changed one by one.
        let mut singles = 0_usize;
        let mut told = 0;
        loop {
            let most = if singles > 0 { 1 } else { MAX_SECTIONS };
            let Some(batch) = reconciler.next_batch(most) else {
                break;
            };
            singles = singles.saturating_sub(1);
            self.brought
                .bring(&batch.brings)
                .map_err(ApplyError::File)?;
            match make(&batch) {
                Ok(()) => {
                    self.brought
                        .forget(&batch.forgets)
                        .map_err(ApplyError::File)?;
                    self.tell(&batch);
                    batch.keys().for_each(|key| drop(self.refused.remove(&key)));
                    reconciler.done(batch, true);
                }
                Err(ClientError::Refused(_) | ClientError::Explained(_))
                    if batch.keys().count() > 1 =>
                {
                    // One of them is refused: each alone tells which.
                    singles = batch.keys().count();
                    reconciler.done(batch, false);
                }
                Err(error @ (ClientError::Refused(_) | ClientError::Explained(_))) => {
                    for key in batch.keys() {
                        let why = error.to_string();
                        let is_new = self.refused.get(&key) != Some(&why);
                        if is_new && told < TOLD {
                            say!(
                                "adit: {}: the interface does not take the peer {key}: {why}",
                                self.interface
                            );
                        }
                        told += usize::from(is_new);
                        self.refused.insert(key, why);
                    }
                    reconciler.leave_out(batch);
                }
                Err(error) => {
                    reconciler.done(batch, false);
                    return Err(ApplyError::Interface(error));
                }
            }
        }
        let list = reconciler.list();
        self.refused.retain(|key, _| list.of(key).is_some());
        self.brought.tidy(reconciler.brought());
        Ok(())
    }

    /// Why peers do not have the endpoints of their records, if they do not.
    pub(super) fn missing_names(&self) -> Option<&'static str> {
        self.refuses_names.then_some(
            "the process of the interface looks no names up (`adit run --names` does, and `adit up`): an endpoint that is \
             a name has no effect",
        )
    }

    /// What the process refuses, if anything.
    pub(super) fn refusal(&self) -> Option<String> {
        let (key, why) = self.refused.iter().next()?;
        let count = self.refused.len();
        Some(format!(
            "the interface does not take {count} of the peers, the first {key}: {why}"
        ))
    }

    fn tell(&self, batch: &ChangeBatch) {
        for line in batch.lines.iter().take(TOLD) {
            say!("adit: {}: {line}", self.interface);
        }
        if let Some(rest @ 1..) = batch.lines.len().checked_sub(TOLD) {
            say!("adit: {}: and {rest} more peers", self.interface);
        }
    }
}

/// Makes one change: the names come first, since the process tells who changed what.
fn make(client: &mut UapiClient, batch: &ChangeBatch) -> Result<(), ClientError> {
    if !batch.names.is_empty() {
        let names = batch.names.iter();
        client.name_peers(names.map(|(key, name)| (*key, name.as_str())), false)?;
    }
    if !batch.sections.is_empty() {
        client.set(&DeviceChange {
            peers: batch.sections.clone(),
            ..DeviceChange::default()
        })?;
    }
    if !batch.allowances.is_empty() {
        client.allow_peers(&batch.allowances, false)?;
    }
    if !batch.forgets.is_empty() {
        client.name_peers(batch.forgets.iter().map(|key| (*key, "")), false)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
