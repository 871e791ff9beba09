//! Settings that stand in comments of `[Interface]`: Adit follows them, and wg-quick, which knows no
//! such key, passes over them.
//!
//! ```text
//! # Forward = internet
//! # PublicEndpoint = vpn.example.org:51820
//! ```

use std::fmt;
use std::str::FromStr;

use super::{Interface, values};

/// What peers may reach through this host, besides this host itself. Each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forward {
    /// Each other.
    Peers,
    /// The private networks behind this host.
    Lan,
    /// Everything.
    Internet,
}

impl Forward {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Peers, Self::Lan, Self::Internet];

    /// The word of the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peers => "peers",
            Self::Lan => "lan",
            Self::Internet => "internet",
        }
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|it| it.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "expected peers, lan or internet".to_owned())
    }
}

const KEYS: [&str; 2] = ["Forward", "PublicEndpoint"];

/// The proper spelling of a note's key.
pub(super) fn spelling(key: &str) -> Option<&'static str> {
    KEYS.into_iter()
        .find(|known| known.eq_ignore_ascii_case(key))
}

/// The key and the value of a comment that is a note. With two `#` it is switched off.
pub(super) fn of(line: &str) -> Option<(&'static str, &str)> {
    let (key, value) = line.trim().strip_prefix('#')?.split_once('=')?;
    Some((spelling(key.trim())?, value.trim()))
}

/// Follows a note. The error says what was expected.
pub(super) fn apply(interface: &mut Interface, key: &str, value: &str) -> Result<(), String> {
    // A comment may follow, as behind other values.
    let value = value.split('#').next().unwrap_or_default().trim();
    match key {
        "Forward" => interface.forward = Some(value.parse()?),
        _ => interface.public_endpoint = Some(values::endpoint(value)?),
    }
    Ok(())
}
