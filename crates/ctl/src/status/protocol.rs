//! Names and limits that both ends of the status socket know.

use std::path::{Path, PathBuf};

/// Where the status sockets `IF.sock` are.
pub const DIR: &str = "/run/adit";

/// Where those of a proxy are that may not write there: `$XDG_RUNTIME_DIR/adit`, which is this user's alone.
pub fn own_dir() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    dir.is_absolute().then(|| dir.join("adit"))
}

/// Where the status socket of the interface, or the proxy, of this name is.
pub(super) fn socket_of(name: &str) -> PathBuf {
    let file = format!("{name}.sock");
    let own = own_dir().map(|dir| dir.join(&file));
    let shared = Path::new(DIR).join(&file);
    own.filter(|own| !shared.exists() && own.exists())
        .unwrap_or(shared)
}

/// Bytes of peers that are made for a client at once.
pub(super) const PIECE: usize = 32 << 10;
