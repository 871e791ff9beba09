//! Changes of single records in etcd, each only if the record is still what it was.

use base64ct::{Base64, Encoding};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::etcd::{EtcdRefusal, read};

/// The request to put a record, whose value was `before`; without one, to make it.
pub fn put_request(key: &str, before: Option<&[u8]>, value: &[u8]) -> Value {
    let put = json!({ "key": encode(key.as_bytes()), "value": encode(value) });
    json!({ "compare": [compare(key, before)], "success": [{ "request_put": put }] })
}

/// The request to delete a record, whose value was `before`.
pub fn delete_request(key: &str, before: &[u8]) -> Value {
    let range = json!({ "key": encode(key.as_bytes()) });
    json!({ "compare": [compare(key, Some(before))], "success": [{ "request_delete_range": range }] })
}

fn compare(key: &str, before: Option<&[u8]>) -> Value {
    let key = encode(key.as_bytes());
    match before {
        Some(value) => {
            json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": encode(value) })
        }
        // Of a key that is not there.
        None => json!({ "key": key, "target": "VERSION", "result": "EQUAL", "version": "0" }),
    }
}

/// Whether the change was made: the record was what it was said to be.
///
/// # Errors
/// It is no answer, or etcd refuses.
pub fn is_changed(answer: &[u8]) -> Result<bool, EtcdRefusal> {
    #[derive(Deserialize)]
    struct ChangeAnswer {
        header: Option<Value>,
        #[serde(default)]
        succeeded: bool,
        error: Option<String>,
        #[serde(default)]
        code: i64,
    }
    let answer: ChangeAnswer = read(answer)?;
    match (answer.error, answer.header) {
        (Some(error), _) => Err(EtcdRefusal::new(answer.code, &error)),
        (None, None) => Err(EtcdRefusal::none()),
        (None, Some(_)) => Ok(answer.succeeded),
    }
}

fn encode(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_says_what_the_record_was() {
        let asked = put_request("p/a", Some(b"x"), b"y");
        let compare = &asked["compare"][0];
        assert_eq!(
            (&compare["target"], &compare["value"]),
            (&json!("VALUE"), &json!("eA=="))
        );
        assert_eq!(asked["success"][0]["request_put"]["value"], "eQ==");
        let new = put_request("p/a", None, b"y");
        assert_eq!(new["compare"][0]["version"], "0");
        let gone = delete_request("p/a", b"x");
        assert_eq!(gone["success"][0]["request_delete_range"]["key"], "cC9h");
        assert_eq!(is_changed(br#"{"header":{},"succeeded":true}"#), Ok(true));
        assert_eq!(is_changed(br#"{"header":{},"responses":[]}"#), Ok(false));
        for wrong in [
            &b"{}"[..],
            br#"{"error":"etcdserver: permission denied","code":7}"#,
        ] {
            assert!(is_changed(wrong).is_err());
        }
    }
}
