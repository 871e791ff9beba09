//! The changes of an interface, over its control socket.

use std::collections::HashMap;

use adit_ctl::uapi::{ClientError, UapiClient};
use adit_fleet::{ChangeBatch, MAX_SECTIONS, Reconciler};
use adit_proto::config::{DeviceChange, DeviceStatus};

use super::brought::BroughtFile;
use crate::failure::say;

/// Lines of one change in the log; the rest is a number.
const TOLD: usize = 16;

/// How an interface is changed.
pub(super) struct Applier {
    pub(super) interface: String,
    pub(super) brought: BroughtFile,
}

/// Why the interface is not as it should be.
pub(super) enum ApplyError {
    /// No process serves it, or it does not answer.
    Interface(ClientError),
    /// What is to be brought cannot be written down.
    File(std::io::Error),
}

impl Applier {
    pub(super) fn look(&self) -> Result<DeviceStatus, ClientError> {
        UapiClient::connect(&self.interface)?.get()
    }

    /// Makes all changes that are due. What the process refuses is left out, and told.
    pub(super) fn apply(&mut self, reconciler: &mut Reconciler) -> Result<(), ApplyError> {
        let mut most = MAX_SECTIONS;
        let mut client = None;
        let mut left_out = HashMap::new();
        while let Some(batch) = reconciler.next_batch(most) {
            self.brought
                .bring(&batch.brings)
                .map_err(ApplyError::File)?;
            let client = match &mut client {
                Some(client) => client,
                none => match UapiClient::connect(&self.interface) {
                    Ok(connected) => none.insert(connected),
                    Err(error) => {
                        reconciler.done(batch, false);
                        return Err(ApplyError::Interface(error.into()));
                    }
                },
            };
            match make(client, &batch) {
                Ok(()) => {
                    self.brought
                        .forget(&batch.forgets)
                        .map_err(ApplyError::File)?;
                    self.tell(&batch);
                    reconciler.done(batch, true);
                }
                // One of them is refused: each alone tells which.
                Err(ClientError::Refused(_)) if most > 1 => {
                    most = 1;
                    reconciler.done(batch, false);
                }
                Err(ClientError::Refused(errno)) => {
                    let why = std::io::Error::from_raw_os_error(errno);
                    left_out.extend(batch.keys().map(|key| (key, why.to_string())));
                    reconciler.leave_out(batch);
                }
                Err(error) => {
                    reconciler.done(batch, false);
                    return Err(ApplyError::Interface(error));
                }
            }
        }
        for (key, why) in left_out.iter().take(TOLD) {
            say!(
                "adit: {}: the interface refuses the peer {key}: {why}",
                self.interface
            );
        }
        self.brought
            .tidy(reconciler.brought())
            .map_err(ApplyError::File)
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
    if !batch.endpoints.is_empty() {
        let named = batch.endpoints.iter();
        client.name_endpoints(named.map(|(key, endpoint)| (*key, endpoint)), false)?;
    }
    if !batch.forgets.is_empty() {
        client.name_peers(batch.forgets.iter().map(|key| (*key, "")), false)?;
    }
    Ok(())
}
