//! The UAPI socket of a running interface.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::{io, sync::Arc};

use adit_proto::config::PeerStatus;

use super::{Configured, DIR, Heard, Parser, Request, Response, UapiError, format};
use crate::socket::{BindError, Bound, Origin, ServerEvent, Service, Serving, Talk};
use crate::zeroized::Zeroized;

/// A bound UAPI socket. Clients that connect wait until [`Server::serve`]. Dropping it removes the
/// socket's file.
///
/// A file `IF.name` stands beside the socket: innernet finds interfaces by those, and nothing that
/// looks for sockets (`wg`, wgctrl-go) looks at other files.
#[derive(Debug)]
pub struct Server(Bound);

impl Server {
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
        let bound = Bound::bind(dir, name, true, None)?;
        Ok(Self::accompanied(bound, dir, name))
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
    /// As of [`Server::adopt`].
    pub fn adopt_in(dir: &Path, name: &str, fd: OwnedFd) -> Result<Self, BindError> {
        let bound = Bound::adopt(dir, name, fd, true)?;
        Ok(Self::accompanied(bound, dir, name))
    }

    fn accompanied(mut bound: Bound, dir: &Path, name: &str) -> Self {
        bound.accompany(dir.join(format!("{name}.name")), &format!("{name}\n"));
        Self(bound)
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
        handler: impl Fn(Request) -> Response + Send + Sync + 'static,
        notify: impl Fn(ServerEvent<'_>) + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        let handler: Arc<dyn Fn(Request) -> Response + Send + Sync> = Arc::new(handler);
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
    handler: Arc<dyn Fn(Request) -> Response + Send + Sync>,
    notify: Arc<dyn Fn(ServerEvent<'_>) + Send + Sync>,
    /// The client.
    origin: Origin,
    /// Peers that are still to be told of in an answer that has not ended yet.
    telling: Option<std::vec::IntoIter<PeerStatus>>,
}

/// Peers that are written at once: an answer about half a million of them is 180 MB long, and the
/// client reads what there is while we write the rest.
const TOLD_AT_ONCE: usize = 128;

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
    fn hear(&mut self, input: &mut &[u8], room: usize, out: &mut Zeroized) -> bool {
        match self.parser.push(input, room) {
            None => true,
            Some(Heard::Request(request)) => {
                let configured = match &request {
                    Request::Set(change) => Some(Configured::new(self.origin, change)),
                    _ => None,
                };
                match (self.handler)(request) {
                    Response::Status(status) => {
                        format::write_device(out, &status);
                        self.telling = Some(status.peers.into_iter());
                        self.go_on(out);
                    }
                    Response::Done => {
                        if let Some(configured) = &configured {
                            (self.notify)(ServerEvent::Configured(configured));
                        }
                        format::write_errno(out, 0);
                    }
                    Response::Refused(error) => self.refuse(&error, out),
                    Response::Explained(error) => {
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
        let Some(peers) = &mut self.telling else {
            return;
        };
        let count = peers.len().min(TOLD_AT_ONCE);
        format::write_peers(out, &peers.as_slice()[..count]);
        peers.by_ref().take(count).for_each(drop);
        if peers.len() == 0 {
            format::write_errno(out, 0);
            self.telling = None;
        }
    }

    fn end(&mut self, out: &mut Zeroized) {
        if let Some(Heard::Refused(error) | Heard::Hopeless(error)) = self.parser.end() {
            self.refuse(&error, out);
        }
    }

    fn held(&self) -> usize {
        self.parser.held()
    }
}
