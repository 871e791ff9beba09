//! The status socket: each client gets one [`StatusReport`] as JSON, and the connection ends.
//!
//! The socket stands outside the UAPI's directory, where every socket counts as an interface. The
//! report has no secrets.

use std::io::{self, Read};
use std::path::Path;

use super::{Interface, StatusReport};
use crate::socket::{self, BindError, Bound, ServerEvent, Service, Serving, Talk};
use crate::uapi::PATIENCE;
use crate::zeroized::Zeroized;

/// Where the status sockets `IF.sock` are.
pub const DIR: &str = "/run/adit";

/// Longest document that is read: a million peers with some allowed IPs each.
const MAX_DOCUMENT: u64 = 1 << 30;

/// A bound status socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Server(Bound);

impl Server {
    /// Binds `/run/adit/NAME.sock`, taking over what a dead process left there.
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
        Bound::bind(dir, name, false).map(Self)
    }

    /// Answers every client on the service's thread with what `report` returns at that moment.
    /// Removal of the file is not noticed.
    ///
    /// # Errors
    /// The service's thread has panicked.
    pub fn serve(
        self,
        service: &Service,
        report: impl Fn() -> Interface + Send + 'static,
        notify: impl Fn(ServerEvent<'_>) + Send + 'static,
    ) -> io::Result<Serving> {
        let open = move |out: &mut Zeroized| -> Box<dyn Talk> {
            let mut interface = report();
            interface.private_key = None;
            for peer in &mut interface.peers {
                peer.preshared_key = None;
            }
            let json = serde_json::to_vec(&StatusReport::new(vec![interface])).unwrap_or_default();
            out.extend(&json);
            out.extend(b"\n");
            Box::new(Greeting)
        };
        service.serve(self.0, open, notify)
    }
}

/// Says its piece and ends.
struct Greeting;

impl Talk for Greeting {
    fn listens(&self) -> bool {
        false
    }

    fn hear(&mut self, _: &mut &[u8], _: usize, _: &mut Zeroized) -> bool {
        false
    }

    fn end(&mut self, _: &mut Zeroized) {}

    fn held(&self) -> usize {
        0
    }
}

/// The report of the interface `name` from `/run/adit/NAME.sock`.
///
/// # Errors
///
/// No process listens there, no report comes within [`PATIENCE`] (`WouldBlock`), or it is no report
/// of one interface (`InvalidData`).
pub fn fetch(name: &str) -> io::Result<Interface> {
    fetch_in(Path::new(DIR), name)
}

/// The report of the interface `name` from `dir/NAME.sock`.
///
/// # Errors
/// As of [`fetch`].
pub fn fetch_in(dir: &Path, name: &str) -> io::Result<Interface> {
    let stream = socket::connect(&dir.join(format!("{name}.sock")), PATIENCE)?;
    let mut json = Vec::new();
    stream.take(MAX_DOCUMENT).read_to_end(&mut json)?;
    let mut report: StatusReport = serde_json::from_slice(&json)?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no report of one interface");
    report.interfaces.pop().ok_or_else(wrong)
}
