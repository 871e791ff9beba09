//! Decoders of what the kernel says, for the fuzz targets.

use crate::attribute::Attributes;
use crate::{Address, Family, HEADER, Link, NetlinkEvent, Raw, Route, Rule};

/// Decodes a datagram in every way that this crate has; returns the kinds of its messages.
pub fn hear(bytes: &[u8]) -> Vec<u16> {
    let _ = crate::clones::tells_of_clone(bytes);
    Raw::split(bytes)
        .map(|raw| {
            if let Some(message) = raw.parse() {
                let _ = Link::from_message(&message);
                let _ = Address::from_message(&message);
                let _ = Route::from_message(&message);
                let _ = Family::BOTH.map(|family| Rule::from_message(&message, family));
            }
            let _ = NetlinkEvent::of(&raw);
            let _ = raw.outcome();
            let attributes = raw.bytes.get(HEADER + 4..).unwrap_or_default();
            for (_, value) in Attributes(attributes) {
                let _ = Attributes(value).count();
            }
            raw.kind
        })
        .collect()
}
