//! Settings that stand in comments of `[InterfaceSection]`: Adit follows them, and wg-quick, which knows no
//! such key, passes over them.
//!
//! ```text
//! # Forward = internet
//! # PublicEndpoint = vpn.example.org:51820
//! ```

use crate::config::model::InterfaceSection;
use crate::config::values;

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
pub(super) fn apply(
    interface: &mut InterfaceSection,
    key: &str,
    value: &str,
) -> Result<(), String> {
    // A comment may follow, as behind other values.
    let value = value.split('#').next().unwrap_or_default().trim();
    match key {
        "Forward" => interface.forward = Some(value.parse()?),
        _ => interface.public_endpoint = Some(values::endpoint(value)?),
    }
    Ok(())
}
