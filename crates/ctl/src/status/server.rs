//! The status socket. A client that writes `status` and a line end gets one [`StatusReport`] as
//! JSON, and the connection ends; so does, a moment later, a client that writes nothing, as older
//! ones do. A client that writes `events` gets a line of JSON for each [`EventJson`] from then on. One
//! that writes `watch` gets what changed since it wrote that last, and may write it again: see
//! [`WatchedPeers`]. One that writes `handshake` and a public key in base64 has a handshake with that peer begin, if it
//! runs as root or as the server does, and gets a [`Probe`].
//!
//! [`EventJson`]: super::EventJson
//! [`WatchedPeers`]: super::WatchedPeers
//!
//! The socket stands outside the UAPI's directory, where every socket counts as an interface. The
//! report has no secrets.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use adit_io::helper::Folder;
use adit_proto::config::PublicKey;
use adit_proto::memory::can_allocate;
use serde::{Deserialize, Serialize};

use super::events::{Events, Listener};
use super::peer_changes::{Head, SentPeers};
use super::shared::{Report, Reports};
use super::{InterfaceJson, SCHEMA, StatusReport};
use crate::keys;
use crate::origin::Origin;
use crate::socket::{
    self, AnswerReader, BindError, BoundListener, RESERVE, STALL, ServerEvent, Service, Serving,
    TO_ANSWER, Talk,
};
use crate::status::protocol::{DIR, PIECE, socket_of};
use crate::text::Clean;
use crate::uapi::PATIENCE;
use crate::zeroized::Zeroized;

/// A bound status socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct StatusServer(BoundListener);

impl StatusServer {
    /// Binds `/run/adit/NAME.sock`, taking over what a dead process left there. The members of the
    /// `group`, if there is one, may use it, too.
    ///
    /// # Errors
    /// See [`BindError`]; a name that is no interface's is one.
    pub fn bind(name: &str, group: Option<u32>) -> Result<Self, BindError> {
        Self::bind_in(Path::new(DIR), name, group)
    }

    /// Binds `dir/NAME.sock`.
    ///
    /// # Errors
    /// As of [`StatusServer::bind`].
    pub fn bind_in(dir: &Path, name: &str, group: Option<u32>) -> Result<Self, BindError> {
        BoundListener::bind(Folder::Status, dir, name, group).map(Self)
    }

    /// Takes a listening socket that another process bound at `dir/NAME.sock`, its file included.
    ///
    /// # Errors
    /// The descriptor is no listening UNIX socket, or the file is not there.
    pub fn adopt_in(dir: &Path, name: &str, fd: OwnedFd) -> Result<Self, BindError> {
        BoundListener::adopt(Folder::Status, dir, name, fd).map(Self)
    }

    /// Answers every client on the service's thread with what `report` returns at that moment, with
    /// `events`, or with what `probe` returns: the time until a handshake with that peer begins, or
    /// `None` if there is no such peer. Clients of other users share a report for 100 ms. Without a
    /// report the client is told that there is none. Removal of the file is not noticed.
    ///
    /// # Errors
    /// The service's thread has panicked.
    pub fn serve(
        self,
        service: &Service,
        events: &Arc<Events>,
        report: impl Fn() -> Option<Report> + Send + Sync + 'static,
        probe: impl Fn(PublicKey) -> Option<Duration> + Send + Sync + 'static,
        notify: impl Fn(ServerEvent<'_>) + Send + 'static,
    ) -> io::Result<Serving> {
        let probe: Arc<Prober> = Arc::new(probe);
        let reports = Arc::new(Reports::new(report));
        let (source, told) = (Arc::clone(events), Arc::clone(&reports));
        let open = move |_: &mut Zeroized, client: Origin| -> Box<dyn Talk> {
            Box::new(Reception {
                client,
                events: Arc::clone(&source),
                reports: Arc::clone(&told),
                probe: client.is_trusted().then(|| Arc::clone(&probe)),
                request: Vec::new(),
                is_starved: false,
                listener: None,
                sent: None,
                telling: None,
            })
        };
        let serving = service.serve(self.0, open, notify)?;
        events.wake_by(serving.poker());
        reports.wake_by(serving.poker());
        Ok(serving)
    }
}

/// How long a client that says nothing may still say what it wants: on a busy machine it may not
/// run for a while.
const UNDECIDED: Duration = Duration::from_secs(1);
/// Longest request: `handshake` and a key.
const MAX_REQUEST: usize = 64;

type Prober = dyn Fn(PublicKey) -> Option<Duration> + Send + Sync;

/// The answer to `handshake KEY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Version of the answer. Fields may be added under the same version.
    pub schema: u32,
    /// The public key, as it was asked for.
    pub peer: String,
    /// Milliseconds until an initiation leaves: the protocol allows one every five seconds. Absent if
    /// none will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<u64>,
    /// Why none will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A client, until it has what it wants.
struct Reception {
    client: Origin,
    events: Arc<Events>,
    reports: Arc<Reports>,
    /// Absent for a client that may only read.
    probe: Option<Arc<Prober>>,
    request: Vec<u8>,
    /// There is no memory for an answer.
    is_starved: bool,
    /// Present once it asked for events.
    listener: Option<Listener>,
    /// Present once it asked for changes, with the report that it was told last.
    sent: Option<(SentPeers, Weak<Report>)>,
    /// Present while it has not got the whole status.
    telling: Option<RestOfStatus>,
}

/// The rest of a status.
struct RestOfStatus {
    report: Arc<Report>,
    /// The next of its peers.
    next: usize,
    /// What comes after the peers, where all are told.
    tail: Vec<u8>,
}

/// The answer where there is no report.
const NO_REPORT: &[u8] = b"{\"error\":\"the interface ends, or the process has no memory left\"}\n";

impl Reception {
    /// Begins with what comes before the peers.
    fn tell_status(&mut self, out: &mut Zeroized) {
        let Some(report) = self.reports.get(self.client) else {
            return out.extend(NO_REPORT);
        };
        let json = serde_json::to_string(report.head()).unwrap_or_default();
        // No text has this: its quotes would have a backslash each.
        let list = "\"peers\":[";
        let (before, after) = json.split_once(list).unwrap_or((&json, ""));
        out.extend(before.as_bytes());
        out.extend(list.as_bytes());
        self.telling = Some(RestOfStatus {
            report,
            next: 0,
            tail: format!("{after}\n").into_bytes(),
        });
    }

    /// Begins with the line about all but the peers. False: there is no report.
    fn tell_changes(&mut self, out: &mut Zeroized) -> bool {
        let Some(report) = self.reports.get(self.client) else {
            out.extend(NO_REPORT);
            return false;
        };
        out.extend(&serde_json::to_vec(&Head::new(report.head())).unwrap_or_default());
        out.extend(b"\n");
        let (sent, last) = self.sent.get_or_insert_default();
        if Weak::ptr_eq(last, &Arc::downgrade(&report)) {
            let mut lines = Vec::new();
            sent.write_unchanged(&mut lines);
            out.extend(&lines);
            return true;
        }
        *last = Arc::downgrade(&report);
        self.telling = Some(RestOfStatus {
            report,
            next: 0,
            tail: Vec::new(),
        });
        true
    }
}

impl RestOfStatus {
    /// Appends some peers, or what changed since they were `sent`. False: that was all.
    fn go_on(&mut self, sent: Option<&mut SentPeers>, out: &mut Zeroized) -> bool {
        let mut piece = Vec::with_capacity(PIECE + (PIECE >> 2));
        let report = Arc::clone(&self.report);
        let is_first = self.next == 0;
        let peers = report.peers_from(self.next);
        let mut peers = peers.inspect(|_| self.next += 1);
        let goes_on = match sent {
            Some(sent) => sent.write_changes(&mut peers, &mut piece),
            None => tell_all(&mut peers, is_first, &mut piece),
        };
        if !goes_on {
            piece.append(&mut self.tail);
        }
        out.extend(&piece);
        goes_on
    }
}

/// Appends some peers, with a comma before each but the first of all. False: that was all.
fn tell_all(
    peers: &mut impl Iterator<Item: Serialize>,
    mut is_first: bool,
    piece: &mut Vec<u8>,
) -> bool {
    while piece.len() < PIECE {
        let Some(peer) = peers.next() else {
            return false;
        };
        if !std::mem::take(&mut is_first) {
            piece.push(b',');
        }
        // Writing to a vector cannot fail.
        _ = serde_json::to_writer(&mut *piece, &peer);
    }
    true
}

impl Reception {
    fn probe(&self, key: &str) -> Probe {
        let peer = keys::public_from_base64(key);
        let begun = match (&self.probe, peer) {
            (None, _) => Err("only root may begin a handshake"),
            (Some(probe), Some(peer)) => probe(peer).ok_or("there is no such peer"),
            (Some(_), None) => Err("this is no public key"),
        };
        Probe {
            schema: SCHEMA,
            peer: key.to_owned(),
            milliseconds: (begun.ok())
                .map(|due| u64::try_from(due.as_millis()).unwrap_or(u64::MAX)),
            error: begun.err().map(str::to_owned),
        }
    }
}

impl Talk for Reception {
    fn only_tells(&self) -> bool {
        true
    }

    fn refuse_for_memory(&mut self) {
        self.is_starved = true;
    }

    fn hear(&mut self, input: &mut &[u8], out: &mut Zeroized) -> bool {
        if self.listener.is_some() {
            *input = &[];
            return true;
        }
        let end = input.iter().position(|byte| *byte == b'\n');
        let (line, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        *input = rest;
        let room = (MAX_REQUEST + 1).saturating_sub(self.request.len());
        self.request.extend(line.iter().take(room));
        if self.request.pop_if(|last| *last == b'\n').is_none() {
            return self.request.len() <= MAX_REQUEST;
        }
        match &*std::mem::take(&mut self.request) {
            _ if std::mem::take(&mut self.is_starved) => out.extend(NO_REPORT),
            b"watch" => return self.tell_changes(out),
            b"status" if self.sent.is_none() => self.tell_status(out),
            b"events" => {
                let listener = self.events.listen();
                listener.greeting().iter().for_each(|line| out.extend(line));
                self.listener = Some(listener);
                return true;
            }
            request => match str::from_utf8(request).map(|text| text.split_once(' ')) {
                Ok(Some(("handshake", key))) => {
                    out.extend(&serde_json::to_vec(&self.probe(key)).unwrap_or_default());
                    out.extend(b"\n");
                }
                _ => out.extend(b"{\"error\":\"write status, events, watch or handshake KEY\"}\n"),
            },
        }
        false
    }

    fn go_on(&mut self, out: &mut Zeroized) {
        if let Some(listener) = &mut self.listener {
            listener.take(|line| out.extend(line));
        }
        if let Some(telling) = &self.telling
            && !can_allocate(RESERVE + telling.report.piece())
        {
            self.telling = None;
            return out.extend(NO_REPORT);
        }
        if let Some(telling) = &mut self.telling
            && !telling.go_on(self.sent.as_mut().map(|(sent, _)| sent), out)
        {
            self.telling = None;
        }
    }

    fn end(&mut self, out: &mut Zeroized) {
        if self.listener.is_none() && self.sent.is_none() && self.request.is_empty() {
            self.tell_status(out);
        }
    }

    fn is_given_up(&self) -> bool {
        (self.telling.as_ref()).is_some_and(|telling| telling.report.is_given_up())
    }

    fn is_within_request(&self) -> bool {
        !self.request.is_empty()
    }

    /// Reports are bounded otherwise.
    fn held(&self) -> usize {
        0
    }

    fn patience(&self, owes: bool) -> Option<Duration> {
        match owes {
            // It misses events, and nobody waits for it.
            _ if self.listener.is_some() => None,
            true => Some(STALL),
            false if self.sent.is_some() => None,
            false => Some(UNDECIDED),
        }
    }
}

/// The report of the interface `name` from `/run/adit/NAME.sock`, or of a proxy from the folder of this user.
///
/// # Errors
///
/// No process listens there, it says nothing for [`PATIENCE`], or goes on for a minute (`WouldBlock`),
/// or it is no report of one interface (`InvalidData`).
pub fn fetch(name: &str) -> io::Result<InterfaceJson> {
    fetch_from(&socket_of(name), name, TO_ANSWER)
}

/// The report of the interface `name` from `dir/NAME.sock`.
///
/// # Errors
/// As of [`fetch`].
pub fn fetch_in(dir: &Path, name: &str) -> io::Result<InterfaceJson> {
    fetch_within(dir, name, TO_ANSWER)
}

pub(super) fn fetch_within(
    dir: &Path,
    name: &str,
    patience: Duration,
) -> io::Result<InterfaceJson> {
    fetch_from(&dir.join(format!("{name}.sock")), name, patience)
}

fn fetch_from(path: &Path, name: &str, patience: Duration) -> io::Result<InterfaceJson> {
    let mut stream = socket::connect(path, PATIENCE)?;
    // An older server does not read that, and resets the connection once it has told all.
    _ = stream.write_all(b"status\n");
    let mut json = Vec::new();
    match AnswerReader::new(stream, patience).read_to_end(&mut json) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && json.ends_with(b"\n") => {}
        result => _ = result?,
    }
    let mut interface = document(&json)?;
    // Whatever the process says: it is the one that was asked for.
    name.clone_into(&mut interface.name);
    Ok(interface)
}

/// The interface in a report of one. Its texts can be printed.
///
/// # Errors
///
/// It is no such report (`InvalidData`).
pub fn document(json: &[u8]) -> io::Result<InterfaceJson> {
    let mut report: StatusReport = serde_json::from_slice(json)?;
    report.clean();
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no report of one interface");
    report.interfaces.pop().ok_or_else(wrong)
}

/// Has the process of the interface `name` begin a handshake with the peer that has this public key,
/// unless one is under way.
///
/// # Errors
/// As of [`fetch`]. An older process gives no such answer (`InvalidData`).
pub fn probe(name: &str, peer: &str) -> io::Result<Probe> {
    probe_at(&socket_of(name), peer)
}

/// The same at `dir/NAME.sock`.
///
/// # Errors
/// As of [`probe`].
pub fn probe_in(dir: &Path, name: &str, peer: &str) -> io::Result<Probe> {
    probe_at(&dir.join(format!("{name}.sock")), peer)
}

fn probe_at(path: &Path, peer: &str) -> io::Result<Probe> {
    let mut stream = socket::connect(path, PATIENCE)?;
    stream.write_all(format!("handshake {peer}\n").as_bytes())?;
    let mut json = Vec::new();
    let answer = AnswerReader::new(stream, TO_ANSWER);
    answer.take(1 << 10).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// A connection on which the events of the interface `name` arrive, a line of JSON each. Its reads
/// block.
///
/// # Errors
///
/// No process listens there, or this user may not connect.
pub fn listen(name: &str) -> io::Result<UnixStream> {
    let mut attempts = 3;
    loop {
        let mut stream = socket::connect(&socket_of(name), PATIENCE)?;
        match stream.write_all(b"events\n") {
            // This process got no CPU between the two, and was taken for one that says nothing.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && attempts > 1 => {
                attempts -= 1;
            }
            Err(error) => return Err(error),
            Ok(()) => {
                stream.set_read_timeout(None)?;
                return Ok(stream);
            }
        }
    }
}
