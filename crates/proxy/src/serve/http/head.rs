//! Where the head of a message ends.

use super::HttpMistake;

/// The longest head.
pub const LONGEST_HTTP_HEAD: usize = 64 << 10;

/// Looks for the end of a head in bytes that come in pieces. A line ends with CR and LF: what takes a lone
/// one of them for an end of line reads another message (RFC 9112 §2.2, §11.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    len: usize,
    /// Bytes of the line so far.
    line: usize,
    has_line: bool,
    was_cr: bool,
}

impl HeadScan {
    /// How many of these bytes belong to the head, if it ends in them; `None` if all do and more are missing.
    ///
    /// # Errors
    ///
    /// [`HttpMistake::Malformed`] and [`HttpMistake::TooLong`].
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, HttpMistake> {
        for (at, byte) in bytes.iter().enumerate() {
            match (self.was_cr, byte) {
                (true, b'\n') if self.line == 0 && self.has_line => return Ok(Some(at + 1)),
                (true, b'\n') => {
                    // Empty lines before a message are nothing (RFC 9112 §2.2).
                    self.has_line |= self.line > 0;
                    self.line = 0;
                    self.was_cr = false;
                }
                (true, _) | (false, b'\n') => {
                    return Err(HttpMistake::Malformed("a line does not end with CR LF"));
                }
                (false, b'\r') => self.was_cr = true,
                (false, _) => self.line += 1,
            }
            self.len += 1;
            if self.len >= LONGEST_HTTP_HEAD {
                return Err(HttpMistake::TooLong);
            }
        }
        Ok(None)
    }
}
