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
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use adit_io::udp::UdpState;
use adit_proto::Import;
use zeroize::Zeroizing;

use crate::interface::Interface;
use crate::shared::counters::{BatchCounters, TrainCounters};
use crate::shared::error::CommandError;
use crate::shared::inbox::{Command, Exported};

/// How often to look whether all is processed.
const LOOK: Duration = Duration::from_micros(100);
/// Records that go to the caller of [`Interface::export`] at once, so that the two threads need not
/// wake each other for each.
pub(crate) const RECORDS: usize = 64;

/// What a process knows of an interface besides the protocol's state. It has no secrets. Counters go
/// by name, because versions may have others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceState {
    /// The port that was asked for; 0 for any.
    pub listen_port: u16,
    /// The port last bound; 0 if there was none.
    pub bound_port: u16,
    /// 0 is none.
    pub fwmark: u32,
    /// The device is up.
    pub up: bool,
    /// Its MTU.
    pub mtu: usize,
    /// Packets dropped, by reason.
    pub drops: Vec<(String, u64)>,
    /// Packets that are no drops, by kind.
    pub ignored: Vec<(String, u64)>,
    /// Packets that passed, by kind.
    pub passed: Vec<(String, u64)>,
    /// ICMP errors that came back, by kind.
    pub icmp_errors: Vec<(String, u64)>,
    /// Trains that the kernel refused to segment.
    pub refused_trains: u64,
    /// What the TUN refused to take merged.
    pub tun_refuses: Vec<bool>,
    /// Batches that were taken from the TUN.
    pub outbound: BatchCounters,
    /// Batches that were taken from the sockets.
    pub inbound: BatchCounters,
    /// Trains that were given to the kernel.
    pub sent_trains: TrainCounters,
    /// Trains that the kernel gave.
    pub received_trains: TrainCounters,
}

/// A socket of an interface that is handed over.
#[derive(Debug)]
pub struct HandedSocket {
    /// It is of IPv6.
    pub v6: bool,
    /// Another descriptor of it.
    pub fd: OwnedFd,
    /// What there is to know besides.
    pub state: UdpState,
}

/// An import of a device's records that draws on the kernel's randomness.
///
/// # Panics
///
/// The device panics if getrandom(2) fails, which it does not on Linux 3.17 and later.
pub fn importer() -> Import {
    Import::new(Box::new(crate::engine::random))
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
        self.common.command(Command::Export(answer));
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

    /// The sockets, after [`Self::export`]: those of one family in the order of their lanes.
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
        self.common.command(Command::Resume(how, answer));
        // Without an answer the interface has ended.
        let _ = resumed.recv();
        self.common.pause(false);
    }
}

pub use crate::shared::inbox::Resume;
