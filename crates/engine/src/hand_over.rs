//! An interface that goes from one process to another.
//!
//! 1. The old process has its interface [pause](Interface::pause): shards read, seal and open
//!    nothing any more, and what they had read before is processed.
//! 2. It [exports](Interface::export) the interface: sessions, counters, windows, configuration.
//! 3. The new process [takes it over](crate::Engine::take_over); there it pauses, too.
//! 4. When the old process is certain never to seal again, the new one lets it
//!    [resume](Interface::resume).
//!
//! Until step 4 the old process can let its interface resume as it was. Later it can do so only
//! without sessions, because a counter is used once (invariant 1).

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use adit_proto::Import;
use zeroize::Zeroizing;

use crate::interface::Interface;
use crate::shared::error::CommandError;
use crate::shared::mailbox::{ControlCommand, Exported, Resume};
use crate::shared::state::{HandedSocket, InterfaceState};

/// How often to look whether all is processed.
const LOOK: Duration = Duration::from_micros(100);
/// Records that go to the caller of [`Interface::export`] at once, so that the two threads need not
/// wake each other for each.
pub(crate) const RECORDS: usize = 64;

/// An import of a device's records that draws on the kernel's randomness.
///
/// # Panics
///
/// The device panics if getrandom(2) fails, which it does not on Linux 3.17 and later.
pub fn importer() -> Import {
    Import::new(Box::new(crate::thread::random::random))
}

impl Interface {
    /// Has the shards read nothing more, and waits until all that they read is processed. Handshakes
    /// and timers go on.
    ///
    /// # Errors
    ///
    /// `TimedOut` if a socket stays full for so long: then all goes on as before.
    pub fn pause(&self, patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        let mut pauses = self.common.pause(true);
        while !pauses || !self.common.is_drained() {
            if Instant::now() >= until {
                self.common.pause(false);
                let message = "what was read could not be sent: a socket is full";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            std::thread::sleep(LOOK);
            pauses = pauses || self.common.pause(true);
        }
        Ok(())
    }

    /// Puts out the records of the protocol's state, with keys, and returns the rest. The interface
    /// pauses already. From now on it answers questions, and nothing else, until it resumes. Packets
    /// that wait for a handshake count as dropped, because they stay behind.
    ///
    /// # Errors
    ///
    /// Those of `put`, and that the interface ends.
    pub fn export(
        &self,
        mut put: impl FnMut(Zeroizing<Vec<u8>>) -> io::Result<()>,
    ) -> io::Result<InterfaceState> {
        let (answer, exported) = sync_channel(2);
        self.common.command(ControlCommand::Export(answer));
        for piece in exported {
            match piece {
                Exported::Records(records) => records.into_iter().try_for_each(&mut put)?,
                Exported::State(mut state) => {
                    let staged = self.common.staged_packets();
                    for (name, packets) in &mut state.drops {
                        if name == adit_proto::DropReason::Staged.name() {
                            *packets += staged;
                        }
                    }
                    return Ok(*state);
                }
            }
        }
        Err(io::Error::other(CommandError::Stopping.to_string()))
    }

    /// The sockets, after [`Self::export`]: those of one family in the order of their receive queues.
    ///
    /// # Errors
    ///
    /// The process has no descriptors left.
    pub fn sockets(&self) -> io::Result<Vec<HandedSocket>> {
        self.common.sockets()
    }

    /// Goes on after [`Self::pause`], and returns when it does.
    pub fn resume(&self, how: Resume) {
        let (answer, resumed) = sync_channel(1);
        self.common.command(ControlCommand::Resume(how, answer));
        // Without an answer the interface has ended.
        let _ = resumed.recv();
        self.common.pause(false);
    }
}
