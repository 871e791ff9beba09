//! Changes of peers, for a client that asks again and again: `watch` on the status socket, both ends of it.
//!
//! A client writes `watch` and a line end, reads the answer, and writes `watch` again on the same
//! connection when it wants to know how things are by then. An answer is lines of JSON. The first is
//! `{"watch":1,"status":…}` with a [`StatusReport`] without peers. The next ones change the list of
//! peers that the client was sent before on this connection, from its beginning on; it was empty:
//!
//! | line | meaning |
//! |---|---|
//! | `{"same":N}` | the next N peers are as they were sent |
//! | `{"changed":PEER}` | the next one is now this |
//! | `{"gone":N}` | the next N are there no more |
//! | `{"added":PEER}` | all of the list have had their turn; this one is behind them |
//! | `{"end":N}` | the answer is whole, and the list has N peers |
//!
//! The server remembers 12 bytes for each peer and client. No field of a peer depends on the time of
//! day, so that an idle peer costs neither end anything but its turn. A server that does not know the
//! word gives another answer, and its client asks for everything as before.

use std::borrow::Borrow;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_proto::config::PeerStatus;
use serde::{Deserialize, Serialize};

use super::{InterfaceJson, NamedPeer, PeerRef, StatusReport};
use crate::socket::{self, AnswerReader, TO_ANSWER};
use crate::status::protocol::{PIECE, socket_of};
use crate::text::Clean;
use crate::uapi::PATIENCE;

#[cfg(test)]
#[path = "peer_changes_tests.rs"]
mod tests;

/// Version of the answers. Lines and fields may be added under the same version to what a client may
/// skip; none of these lines is.
const VERSION: u32 = 1;

/// The first line of an answer.
#[derive(Serialize, Deserialize)]
pub(super) struct Head<S = StatusReport> {
    watch: u32,
    status: S,
}

impl<S> Head<S> {
    pub(super) fn new(status: S) -> Self {
        let watch = VERSION;
        Self { watch, status }
    }
}

/// The other lines.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PeerLine<P> {
    Same(usize),
    Changed(P),
    Gone(usize),
    Added(P),
    End(usize),
}

/// A fingerprint of a peer as a client was sent it: the beginning of its key, and a hash of all fields.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    key: [u8; 4],
    content: [u8; 8],
}

/// The peers as a client was sent them, and how far the answer that it is being given has come.
#[derive(Default)]
pub(super) struct SentPeers {
    hashed_by: RandomState,
    fingerprints: Vec<Fingerprint>,
    /// Peers before this one have had their turn.
    next: usize,
    /// Peers that are still there stand before this one: never more than had their turn.
    kept: usize,
}

impl SentPeers {
    fn fingerprint<S: Borrow<PeerStatus>>(&self, peer: &NamedPeer<S>) -> Fingerprint {
        let [a, b, c, d, ..] = peer.status.borrow().public_key.0;
        Fingerprint {
            key: [a, b, c, d],
            content: self.hashed_by.hash_one(peer).to_ne_bytes(),
        }
    }

    /// Appends the lines about peers of which this client was sent all, unchanged.
    pub(super) fn write_unchanged(&self, out: &mut Vec<u8>) {
        push_count(out, PeerLine::Same, &mut self.fingerprints.len());
        push(out, &PeerLine::<()>::End(self.fingerprints.len()));
    }

    /// Appends some of the lines about `peers`, the rest of those that there are, to `out`, which is
    /// empty. False: that was all.
    ///
    /// Peers are added at the end. One that is sent before those that it stood behind counts as
    /// added, and those as gone.
    pub(super) fn write_changes<S: Borrow<PeerStatus>>(
        &mut self,
        peers: &mut dyn Iterator<Item = NamedPeer<S>>,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut same = 0;
        while out.len() < PIECE {
            let Some(peer) = peers.next() else {
                push_count(out, PeerLine::Same, &mut same);
                let mut gone = self.fingerprints.len() - self.next;
                push_count(out, PeerLine::Gone, &mut gone);
                push(out, &PeerLine::<()>::End(self.kept));
                self.fingerprints.truncate(self.kept);
                self.fingerprints.shrink_to(2 * self.kept);
                (self.next, self.kept) = (0, 0);
                return false;
            };
            let fingerprint = self.fingerprint(&peer);
            let rest = &self.fingerprints[self.next..];
            let mut gone =
                (rest.iter().position(|sent| sent.key == fingerprint.key)).unwrap_or(rest.len());
            let before = rest.get(gone).copied();
            if before == Some(fingerprint) && gone == 0 {
                same += 1;
            } else {
                push_count(out, PeerLine::Same, &mut same);
                self.next += gone;
                push_count(out, PeerLine::Gone, &mut gone);
                match before {
                    Some(sent) if sent == fingerprint => same = 1,
                    Some(_) => push(out, &PeerLine::Changed(&peer)),
                    None => push(out, &PeerLine::Added(&peer)),
                }
            }
            match self.fingerprints.get_mut(self.kept) {
                Some(place) => *place = fingerprint,
                None => self.fingerprints.push(fingerprint),
            }
            self.kept += 1;
            self.next = match before {
                Some(_) => self.next + 1,
                None => self.fingerprints.len(),
            };
        }
        push_count(out, PeerLine::Same, &mut same);
        true
    }
}

/// A line, unless it is about none.
fn push_count(out: &mut Vec<u8>, line: fn(usize) -> PeerLine<()>, count: &mut usize) {
    match std::mem::take(count) {
        0 => {}
        count => push(out, &line(count)),
    }
}

fn push<P: Serialize>(out: &mut Vec<u8>, line: &PeerLine<P>) {
    // Writing to a vector cannot fail.
    _ = serde_json::to_writer(&mut *out, line);
    out.push(b'\n');
}

/// The other end: the peers of one interface as they were at the last look, and what is kept of each.
///
/// They are shared, so that a reader shows them at leisure, and without a copy.
pub struct WatchedPeers<T> {
    path: PathBuf,
    /// Present while `peers` are what it sent.
    connection: Option<Lines<UnixStream>>,
    peers: Vec<Arc<T>>,
}

/// Lines of JSON, one at a time.
struct Lines<R> {
    stream: BufReader<AnswerReader<R>>,
    line: Vec<u8>,
}

/// Makes what is kept of a peer, which may have been there before.
type Make<'m, T> = dyn FnMut(&PeerRef<'_>, Option<&T>) -> T + 'm;

impl<T> WatchedPeers<T> {
    /// Of the interface `name`, at `/run/adit/NAME.sock`. Nothing is asked yet.
    pub fn new(name: &str) -> Self {
        Self::at(socket_of(name))
    }

    /// The same at `dir/NAME.sock`.
    pub fn new_in(dir: &Path, name: &str) -> Self {
        Self::at(dir.join(format!("{name}.sock")))
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            connection: None,
            peers: Vec::new(),
        }
    }

    /// The peers as of the last look, in the order in which they were added.
    pub fn peers(&self) -> &[Arc<T>] {
        &self.peers
    }

    /// Asks for what changed since the last look: `make` is called for each peer that did, or is new,
    /// with what was kept of the peer that stood in its place, which is nearly always the same one.
    /// Returns the interface without its peers.
    ///
    /// # Errors
    ///
    /// No process listens there, or it says nothing for [`PATIENCE`] (`WouldBlock`), or it does not
    /// know the question (`InvalidData`, or what becomes of a connection that it ends): it may know
    /// that of [`fetch`](super::fetch). No peer is kept then.
    pub fn look(&mut self, make: &mut Make<'_, T>) -> io::Result<InterfaceJson> {
        if let Some(connection) = self.connection.take() {
            match self.ask(connection, make) {
                // There is another process by now, or it had too many clients.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {}
                answer => return answer,
            }
        }
        let stream = socket::connect(&self.path, PATIENCE)?;
        self.ask(Lines::new(stream), make)
    }

    fn ask(
        &mut self,
        mut connection: Lines<UnixStream>,
        make: &mut Make<'_, T>,
    ) -> io::Result<InterfaceJson> {
        let mut peers = std::mem::take(&mut self.peers);
        let answer = connection.stream.get_mut();
        answer.begin();
        answer.stream.write_all(b"watch\n")?;
        let Head::<StatusReport> { watch, mut status } = connection.next()?;
        status.clean();
        let mut interfaces = status.interfaces.into_iter();
        let interface = interfaces.next().filter(|_| watch == VERSION);
        let interface = interface.ok_or(io::ErrorKind::InvalidData)?;
        connection.change(&mut peers, make)?;
        (self.peers, self.connection) = (peers, Some(connection));
        Ok(interface)
    }
}

impl<R: Read> Lines<R> {
    fn new(stream: R) -> Self {
        let stream = BufReader::with_capacity(PIECE, AnswerReader::new(stream, TO_ANSWER));
        let line = Vec::new();
        Self { stream, line }
    }

    fn next<'a, L: Deserialize<'a>>(&'a mut self) -> io::Result<L> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        Ok(serde_json::from_slice(&self.line)?)
    }

    /// Does to the peers what the rest of an answer says.
    fn change<T>(&mut self, peers: &mut Vec<Arc<T>>, make: &mut Make<'_, T>) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        // As in `SentPeers`.
        let (mut next, mut kept, all) = (0_usize, 0, peers.len());
        let left = |next, count| {
            (count <= all - next)
                .then(|| next + count)
                .ok_or_else(wrong)
        };
        loop {
            match self.next::<PeerLine<PeerRef<'_>>>()? {
                PeerLine::Same(count) => {
                    let end = left(next, count)?;
                    for at in next..end {
                        peers.swap(kept, at);
                        kept += 1;
                    }
                    next = end;
                }
                PeerLine::Gone(count) => next = left(next, count)?,
                PeerLine::Changed(peer) => {
                    let end = left(next, 1)?;
                    peers[kept] = Arc::new(make(&peer, Some(&peers[next])));
                    (kept, next) = (kept + 1, end);
                }
                PeerLine::Added(peer) if next == all => {
                    let added = Arc::new(make(&peer, None));
                    match peers.get_mut(kept) {
                        Some(place) => *place = added,
                        None => peers.push(added),
                    }
                    kept += 1;
                }
                PeerLine::End(count) if next == all && kept == count => {
                    peers.truncate(kept);
                    return Ok(());
                }
                PeerLine::Added(_) | PeerLine::End(_) => return Err(wrong()),
            }
        }
    }
}
