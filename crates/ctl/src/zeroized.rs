//! A growing buffer that leaves no copy of its content in freed memory.

use std::fmt;

/// Capacity that a cleared buffer may keep.
const KEEP: usize = 64 << 10;

/// Bytes that may hold keys. Growing moves them and zeroizes where they stood, dropping zeroizes
/// them.
#[derive(Default)]
pub(crate) struct Zeroized(Vec<u8>);

impl Zeroized {
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger = Vec::with_capacity(needed.max(2 * self.0.capacity()).max(256));
            larger.extend_from_slice(&self.0);
            zeroize(&mut self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
    }

    /// Zeroizes the content, and keeps the memory if it is little.
    pub(crate) fn clear(&mut self) {
        zeroize(&mut self.0);
        self.0.clear();
        if self.0.capacity() > KEEP {
            self.0 = Vec::new();
        }
    }

    /// Zeroizes the first `n` bytes and moves the rest to the front.
    pub(crate) fn consume(&mut self, n: usize) {
        let rest = self.0.len() - n;
        self.0.copy_within(n.., 0);
        zeroize(&mut self.0[rest..]);
        self.0.truncate(rest);
    }
}

impl std::ops::Deref for Zeroized {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Write for Zeroized {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.extend(text.as_bytes());
        Ok(())
    }
}

impl Drop for Zeroized {
    fn drop(&mut self) {
        // Nothing is behind the content: what shrinks it overwrites what it cuts off.
        zeroize(&mut self.0);
    }
}

/// With one memset: zeroize's own loop writes byte by byte, 0.2 s for the answer about half a
/// million peers.
fn zeroize(bytes: &mut [u8]) {
    bytes.fill(0);
    zeroize::optimization_barrier(bytes);
}
