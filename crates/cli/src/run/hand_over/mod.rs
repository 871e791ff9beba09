//! The hand-over of all interfaces of a process to a new process, as in an upgrade.
//!
//! ```text
//!   new process                              old process
//!   Hello            →                       forwards packets
//!                    ←  Offer, Interface…    descriptors and settings
//!   Ready            →                       everything that can fail there has been done
//!                                            pauses: what it has read leaves, and nothing more
//!                    ←  Record…, State…      sessions, counters, windows, keys
//!   Complete         →                       from here on it will never use these sessions
//!                    ←  Go
//!   forwards packets
//!   Running          →                       ends without a trace
//! ```
//!
//! Until `Go` a new process that fails, or hangs, changes nothing: the old one goes on as it was. If
//! the new one fails between `Go` and `Running`, the old one ends it and goes on without sessions, and
//! handshakes follow; where it cannot be ended, the old one ends. After `Running`, the new one sees the
//! old one end, and ends it where it does not: an intruder in it would keep queues and sockets.
//!
//! Keys cross this socket and no other, and are never written to a disk.

mod channel;
mod give;
mod messages;
mod take;
mod terms;

pub(crate) use channel::{Channel, HandOverListener, own_namespace};
pub(super) use give::{Me, give};
pub(crate) use messages::Description;
use messages::{Hello, MessageKind, printable};
pub(crate) use messages::{Offer, Switches};
pub(super) use take::{Finish, take};
use terms::FORMATS;

use crate::failure::{Result, bail};

/// Asks the process behind a channel what it is.
pub(crate) fn describe(channel: &mut Channel) -> Result<Description> {
    channel.tell(MessageKind::Hello, &Hello::new(false))?;
    let said: Description = channel.hear(MessageKind::Description)?;
    said.checked(channel.peer().pid)
}

/// The format that both know; the reason if there is none.
fn common_format(theirs: &Hello) -> Result<u32> {
    let common = FORMATS.iter().rev().find(|it| theirs.formats.contains(it));
    match common {
        Some(format) => Ok(*format),
        None => bail!(
            State,
            "Adit {} hands over in format {FORMATS:?}, and Adit {} takes {:?}: the old process goes on; to change to the \
             other program, restart it, and handshakes follow",
            env!("CARGO_PKG_VERSION"),
            printable(&theirs.version),
            theirs.formats
        ),
    }
}
