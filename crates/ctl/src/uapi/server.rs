//! The UAPI socket of a running interface.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::{io, sync::Arc};

use adit_io::helper::Folder;
use adit_proto::config::PeerStatus;

use super::{
    Configured, DIR, Heard, MAX_REQUEST, Parser, UapiError, UapiRequest, UapiResponse, format,
};
use crate::origin::Origin;
use crate::socket::{BindError, BoundListener, ServerEvent, Service, Serving, Talk};
use crate::zeroized::Zeroized;

/// A bound UAPI socket. Clients that connect wait until [`UapiServer::serve`]. Dropping it removes the
/// socket's file.
///
/// A file `IF.name` stands beside the socket: innernet finds interfaces by those, and nothing that
/// looks for sockets (`wg`, wgctrl-go) looks at other files.
#[derive(Debug)]
pub struct UapiServer(BoundListener);

impl UapiServer {
    /// Binds `/var/run/wireguard/NAME.sock`, taking over what a dead process left there.
    ///
    /// # Errors
    /// See [`BindError`]; a name that is no interface's is one.
    pub fn bind(name: &str) -> Result<Self, BindError> {
        Self::bind_in(Path::new(DIR), name)
    }

    /// Binds `dir/NAME.sock`.
    ///
    /// # Errors
    /// See [`BindError`]; a name that is no interface's is one.
    pub fn bind_in(dir: &Path, name: &str) -> Result<Self, BindError> {
        BoundListener::bind(Folder::Control, dir, name, None).map(Self)
    }

    /// Takes a listening socket that another process bound for `name` (`WG_UAPI_FD`), its file
    /// included.
    ///
    /// # Errors
    /// The descriptor is no listening UNIX socket, the name is no interface's, or the file is not
    /// there.
    pub fn adopt(name: &str, fd: OwnedFd) -> Result<Self, BindError> {
        Self::adopt_in(Path::new(DIR), name, fd)
    }

    /// Takes a listening socket that another process bound at `dir/NAME.sock`.
    ///
    /// # Errors
    /// As of [`UapiServer::adopt`].
    pub fn adopt_in(dir: &Path, name: &str, fd: OwnedFd) -> Result<Self, BindError> {
        BoundListener::adopt(Folder::Control, dir, name, fd).map(Self)
    }

    /// The listening socket (close-on-exec, non-blocking) for a child process to adopt. The file
    /// stays.
    pub fn into_fd(self) -> OwnedFd {
        self.0.into_fd()
    }

    /// Answers clients on the service's thread, one request at a time, until the result is stopped
    /// or dropped.
    ///
    /// # Errors
    /// The system has no inotify watch left, or the service's thread has panicked.
    pub fn serve(
        self,
        service: &Service,
        handler: impl Fn(UapiRequest) -> UapiResponse + Send + Sync + 'static,
        notify: impl Fn(ServerEvent<'_>) + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        let handler: Arc<dyn Fn(UapiRequest) -> UapiResponse + Send + Sync> = Arc::new(handler);
        let notify: Arc<dyn Fn(ServerEvent<'_>) + Send + Sync> = Arc::new(notify);
        let tell = Arc::clone(&notify);
        let open = move |_: &mut Zeroized, origin| -> Box<dyn Talk> {
            Box::new(Conversation {
                parser: Parser::default(),
                handler: Arc::clone(&handler),
                notify: Arc::clone(&tell),
                origin,
                telling: None,
            })
        };
        service.serve(self.0, open, move |event| notify(event))
    }
}

struct Conversation {
    parser: Parser,
    handler: Arc<dyn Fn(UapiRequest) -> UapiResponse + Send + Sync>,
    notify: Arc<dyn Fn(ServerEvent<'_>) + Send + Sync>,
    /// The client.
    origin: Origin,
    /// Present while an answer has not ended.
    telling: Option<RestOfAnswer>,
}

/// The rest of an answer to `get`.
struct RestOfAnswer {
    peers: std::vec::IntoIter<PeerStatus>,
    /// Allowed IPs of the first of them that are told. 0: nothing of it is.
    blocks: usize,
    /// Bytes that all of them took.
    memory: usize,
}

/// Bytes that are written at once: an answer about half a million peers is 180 MB long, and the
/// client reads what there is while we write the rest.
const PIECE: usize = 32 << 10;
/// Allowed IPs that are written at once. A peer may have very many.
const BLOCKS: usize = 512;

impl RestOfAnswer {
    fn new(peers: Vec<PeerStatus>) -> Self {
        let of_peer = |peer: &PeerStatus| {
            // Its preshared key is a piece of memory of its own.
            2 * size_of::<[u8; 32]>()
                + size_of::<PeerStatus>()
                + size_of_val(&*peer.drops)
                + size_of_val(&*peer.allowed_ips)
        };
        Self {
            memory: peers.iter().map(of_peer).sum(),
            peers: peers.into_iter(),
            blocks: 0,
        }
    }

    /// Appends a piece. False: that was all.
    fn go_on(&mut self, out: &mut Zeroized) -> bool {
        while out.len() < PIECE {
            let Some(peer) = self.peers.as_slice().first() else {
                format::write_errno(out, 0);
                return false;
            };
            if self.blocks == 0 {
                format::write_peer(out, peer);
            }
            let rest = peer.allowed_ips.get(self.blocks..).unwrap_or_default();
            format::write_blocks(out, &rest[..rest.len().min(BLOCKS)]);
            if rest.len() > BLOCKS {
                self.blocks += BLOCKS;
            } else {
                self.blocks = 0;
                self.peers.next();
            }
        }
        true
    }
}

impl Conversation {
    fn refuse(&self, error: &UapiError, out: &mut Zeroized) {
        (self.notify)(ServerEvent::Refused(error));
        // 0 would say that all is well.
        format::write_errno(
            out,
            if error.errno == 0 {
                5
            } else {
                error.errno.saturating_abs()
            },
        );
    }
}

impl Talk for Conversation {
    fn refuse_for_memory(&mut self) {
        self.parser.refuse_for_memory();
    }

    fn hear(&mut self, input: &mut &[u8], out: &mut Zeroized) -> bool {
        match self.parser.push(input, MAX_REQUEST) {
            None => true,
            Some(Heard::Request(request)) => {
                match (self.handler)(request) {
                    UapiResponse::Status(status) => {
                        format::write_device(out, &status);
                        self.telling = Some(RestOfAnswer::new(status.peers));
                        self.go_on(out);
                    }
                    UapiResponse::Done => format::write_errno(out, 0),
                    UapiResponse::Called(peers) => {
                        format::write_called(out, &peers);
                        format::write_errno(out, 0);
                    }
                    UapiResponse::Changed(changed) => {
                        // Before the answer: the client is there as long as it waits for that.
                        let by = self.origin.caller();
                        let configured = Configured { by, changed };
                        (self.notify)(ServerEvent::Configured(&configured));
                        format::write_errno(out, 0);
                    }
                    UapiResponse::Refused(error) => self.refuse(&error, out),
                    UapiResponse::Explained(error) => {
                        format::write_message(out, &error.message);
                        self.refuse(&error, out);
                    }
                }
                true
            }
            Some(Heard::Refused(error)) => {
                self.refuse(&error, out);
                true
            }
            Some(Heard::Hopeless(error)) => {
                self.refuse(&error, out);
                false
            }
        }
    }

    fn go_on(&mut self, out: &mut Zeroized) {
        if (self.telling.as_mut()).is_some_and(|telling| !telling.go_on(out)) {
            self.telling = None;
        }
    }

    fn end(&mut self, out: &mut Zeroized) {
        if let Some(Heard::Refused(error) | Heard::Hopeless(error)) = self.parser.end() {
            self.refuse(&error, out);
        }
    }

    fn is_within_request(&self) -> bool {
        self.parser.held() > 0
    }

    fn held(&self) -> usize {
        let answer = self.telling.as_ref().map_or(0, |telling| telling.memory);
        self.parser.memory() + answer
    }
}
