//! Requests as the fuzz target sends them.

use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::helper::file_server::{Folders, ProcessFiles};
use crate::helper::request::HelperRequest;

/// A helper's requests, as far as they do something within its folders only.
pub struct Requests(ProcessFiles);

impl Requests {
    /// Requests to a helper with folders for sockets below `dir`, which it makes.
    pub fn new(dir: &Path) -> Self {
        Self(ProcessFiles::new(Folders {
            control: dir.join("control"),
            status: dir.join("status"),
            are_removed: true,
            group: None,
        }))
    }

    /// Takes a datagram. Returns `None` if it is no request, and otherwise as what it is sent and whether a
    /// helper does that, which it has done then if it is about files.
    pub fn take(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<(Vec<u8>, bool)> {
        let request = HelperRequest::parse(bytes)?;
        let is_done = request.is_allowed(fds)
            && match &request {
                HelperRequest::File(request) => self.0.perform(request, fds).is_ok(),
                _ => true,
            };
        Some((request.to_bytes().to_vec(), is_done))
    }
}
