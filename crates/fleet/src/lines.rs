//! What a program says: a JSON object in each line.
//!
//! ```text
//! {"put":{"public_key":"…","allowed_ips":["10.0.0.2/32"]}}
//! {"delete":"…"}
//! {"listed":true}
//! ```

use adit_ctl::keys::{is_public, public_from_base64};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::list::RecordChange;
use crate::record::{MAX_RECORD, PeerRecord, RecordId};

/// Longest line: a record, and what is around it.
pub const MAX_LINE: usize = MAX_RECORD + 64;

/// A line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramLine {
    /// News of a record, by its public key.
    Change(RecordId, RecordChange),
    /// All records have been told.
    Listed,
    /// It is none, or its record has no public key: this is wrong with it.
    Bad(String),
}

impl ProgramLine {
    /// Reads a line, without its end.
    pub fn parse(line: &[u8]) -> Self {
        let bad = |why: &str| Self::Bad(why.into());
        if line.len() > MAX_LINE {
            return Self::Bad(format!("it has more than {MAX_LINE} bytes"));
        }
        let Ok(Value::Object(fields)) = serde_json::from_slice(line) else {
            return bad("it is no JSON object");
        };
        let mut fields = fields.into_iter();
        match (fields.next(), fields.next()) {
            (Some((word, value)), None) => match (word.as_str(), value) {
                ("put", record @ Value::Object(_)) => Self::put(&record),
                ("delete", Value::String(key)) => match public_from_base64(&key) {
                    Some(_) => Self::Change(key.into(), RecordChange::Delete),
                    None => bad("delete: expected a public key"),
                },
                ("listed", Value::Bool(true)) => Self::Listed,
                _ => bad(EXPECTED),
            },
            _ => bad(EXPECTED),
        }
    }

    fn put(record: &Value) -> Self {
        // What is no public key may be a secret, and names nothing.
        let key = record.get("public_key").and_then(Value::as_str);
        let id = key.filter(|key| public_from_base64(key).is_some_and(|key| is_public(&key)));
        // It may have a secret, although it should not.
        let text = Zeroizing::new(record.to_string());
        let parsed = PeerRecord::from_json(text.as_bytes());
        match (parsed, id) {
            (Ok(record), _) => {
                let id = record.public_key.to_string();
                Self::Change(id.into(), RecordChange::Put(Box::new(record)))
            }
            (Err(why), Some(id)) => Self::Change(id.into(), RecordChange::Bad(why)),
            (Err(why), None) => Self::Bad(why),
        }
    }
}

const EXPECTED: &str = "expected {\"put\":{…}}, {\"delete\":\"KEY\"} or {\"listed\":true}";

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
