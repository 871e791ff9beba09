//! Records in etcd 3.4 and later, as its JSON gateway has them: what is asked, and what it answers.
//!
//! 1. `/v3/kv/range` lists keys with a prefix in pages, all as of one revision.
//! 2. `/v3/watch` streams what changed since then. A compaction, or a store that was restored and has lost
//!    revisions, leaves a gap: then all is listed again.
//!
//! Numbers of 64 bits are strings there, keys and values are in base64. What is 0, false or empty is left out.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use adit_ctl::text::is_printable;
use base64ct::{Base64, Encoding};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::list::RecordChange;
use crate::record::{MAX_RECORD, PeerRecord, RecordId};

/// Most keys in a page.
pub const PAGE: usize = 256;
/// Most records that are asked for by name at once: half of what etcd takes in a transaction.
pub const GETS: usize = 64;
/// Longest answer that is read, and longest line of a watch. etcd takes 1.5 MB in a request unless it is told
/// otherwise: what one of them wrote fits as base64.
pub const MAX_ETCD_ANSWER: usize = 4 << 20;
/// Longest part of a key behind the prefix.
const MAX_NAME: usize = 255;
/// As much of etcd's own words is repeated.
const MAX_WORDS: usize = 200;

/// `etcd:URL[,URL...]/PREFIX`: where it is, and what its keys begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Schemes, hosts and ports of its members.
    pub endpoints: Vec<String>,
    /// The TCP ports of these.
    pub ports: Vec<u16>,
    /// What the keys of records begin with.
    pub prefix: String,
}

impl FromStr for EtcdAddress {
    type Err = String;

    /// Reads what stands behind `etcd:`.
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected etcd:URL[,URL...]/PREFIX, as etcd:http://10.0.0.5:2379,http://10.0.0.6:2379/wg0/";
        let (mut endpoints, mut ports, mut prefix) = (Vec::new(), Vec::new(), None);
        for part in text.split(',') {
            let (scheme, rest) = part.split_once("://").ok_or(EXPECTED)?;
            let (host, path) = match rest.split_once('/') {
                Some((host, path)) => (host, Some(path)),
                None => (rest, None),
            };
            let port = port_of(scheme, host).filter(|_| prefix.is_none());
            ports.push(port.ok_or(EXPECTED)?);
            endpoints.push(format!("{scheme}://{host}"));
            prefix = path.map(str::to_owned);
        }
        match prefix {
            Some(prefix) if !prefix.is_empty() && prefix.chars().all(is_printable) => Ok(Self {
                endpoints,
                ports,
                prefix,
            }),
            _ => Err(EXPECTED.into()),
        }
    }
}

/// The TCP port of `host[:port]`; `None` if it is no host.
fn port_of(scheme: &str, host: &str) -> Option<u16> {
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_address = name.starts_with('[') && name.ends_with(']');
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_name = !name.is_empty() && name.chars().all(is_good);
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    (port != 0 && (is_address || is_name)).then_some(port)
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoints.join(","), self.prefix)
    }
}

/// What a key has.
#[derive(Debug, PartialEq, Eq)]
pub enum EtcdValue {
    /// This.
    Bytes(Vec<u8>),
    /// More than a record may have.
    TooLong,
    /// It was deleted.
    Deleted,
}

/// A key and its value.
pub type EtcdPair = (Vec<u8>, EtcdValue);

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct EtcdPage {
    /// What the list is as of.
    pub revision: i64,
    /// Keys and values.
    pub pairs: Vec<EtcdPair>,
    /// There are more.
    pub has_more: bool,
}

/// Changes that a watch tells.
#[derive(Debug, PartialEq, Eq)]
pub struct EtcdChanges {
    /// A watch from this revision on tells what comes after them.
    pub next: i64,
    /// In order.
    pub pairs: Vec<EtcdPair>,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum EtcdRefusal {
    /// What was asked for is no longer there: all is to be listed.
    Gap,
    /// The token is none, or is none any more.
    Token,
    /// There is more than can be read at once.
    TooLong,
    /// For this reason.
    Failed(String),
}

impl EtcdRefusal {
    pub(crate) fn new(code: i64, words: &str) -> Self {
        const RESOURCE_EXHAUSTED: i64 = 8;
        const OUT_OF_RANGE: i64 = 11;
        const UNAUTHENTICATED: i64 = 16;
        let old = ["invalid auth token", "revision of auth store is old"];
        match code {
            RESOURCE_EXHAUSTED => Self::TooLong,
            OUT_OF_RANGE => Self::Gap,
            UNAUTHENTICATED => Self::Token,
            _ if old.iter().any(|it| words.contains(it)) => Self::Token,
            _ => Self::Failed(format!("it answers: {}", begin(words))),
        }
    }

    pub(crate) fn none() -> Self {
        Self::Failed("this is no answer of etcd's JSON gateway".into())
    }
}

/// The first key that does not begin with `prefix`: nothing where there is none, as etcd has it.
fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

/// The request for a page of `most` keys, behind the key `behind` and as of a revision. Without their values, where
/// these are too long to be read.
pub fn range_request(
    prefix: &str,
    behind: Option<(&[u8], i64)>,
    most: usize,
    has_values: bool,
) -> Value {
    let first = match behind {
        // The next key.
        Some((key, _)) => [key, b"\0"].concat(),
        None => prefix.as_bytes().to_vec(),
    };
    json!({
        "key": Base64::encode_string(&first),
        "range_end": Base64::encode_string(&range_end(prefix.as_bytes())),
        "limit": most.to_string(),
        "revision": behind.map_or(0, |(_, revision)| revision).to_string(),
        "keys_only": !has_values,
    })
}

/// The request for a watch from this revision on, whose answers are not longer than what etcd takes as a request.
pub fn watch_request(prefix: &str, from: i64) -> Value {
    json!({ "create_request": {
        "key": Base64::encode_string(prefix.as_bytes()),
        "range_end": Base64::encode_string(&range_end(prefix.as_bytes())),
        "start_revision": from.to_string(),
        "fragment": true,
    } })
}

/// The request for some records as of a revision, 0 being the newest: at most [`GETS`] of them.
pub fn gets_request(prefix: &str, ids: &[RecordId], revision: i64) -> Value {
    let get = |id: &RecordId| {
        let key = Base64::encode_string(format!("{prefix}{id}").as_bytes());
        json!({ "request_range": { "key": key, "revision": revision.to_string() } })
    };
    json!({ "success": ids.iter().map(get).collect::<Vec<_>>() })
}

/// Reads the answer to [`gets_request`]: the records that there are.
///
/// # Errors
/// It is none, or etcd refuses.
pub fn gets(answer: &[u8], prefix: &str) -> Result<Vec<(RecordId, RecordChange)>, EtcdRefusal> {
    #[derive(Deserialize)]
    struct GetsAnswer<'a> {
        #[serde(default)]
        succeeded: bool,
        #[serde(default, borrow)]
        responses: Vec<GetAnswer<'a>>,
        error: Option<String>,
        #[serde(default)]
        code: i64,
    }
    #[derive(Deserialize)]
    struct GetAnswer<'a> {
        #[serde(borrow)]
        response_range: FoundRange<'a>,
    }
    #[derive(Deserialize)]
    struct FoundRange<'a> {
        #[serde(default, borrow)]
        kvs: Vec<KeyValue<'a>>,
    }
    let answer: GetsAnswer<'_> = read(answer)?;
    match answer.error {
        Some(error) => return Err(EtcdRefusal::new(answer.code, &error)),
        None if !answer.succeeded => return Err(EtcdRefusal::none()),
        None => {}
    }
    let found = answer.responses.into_iter();
    found
        .flat_map(|it| it.response_range.kvs)
        .map(|it| Ok(record_change(prefix, it.pair()?)))
        .collect()
}

/// Reads the answer to [`range_request`].
///
/// # Errors
/// It is none, or etcd refuses.
pub fn page(answer: &[u8], has_values: bool) -> Result<EtcdPage, EtcdRefusal> {
    #[derive(Deserialize)]
    struct RangeAnswer<'a> {
        header: Option<AnswerHeader>,
        #[serde(default, borrow)]
        kvs: Vec<KeyValue<'a>>,
        #[serde(default)]
        more: bool,
        error: Option<String>,
        #[serde(default)]
        code: i64,
    }
    let answer: RangeAnswer<'_> = read(answer)?;
    if let Some(error) = answer.error {
        return Err(EtcdRefusal::new(answer.code, &error));
    }
    let revision = answer.header.and_then(|it| it.revision());
    let pair = |it: KeyValue<'_>| {
        let (key, value) = it.pair()?;
        Ok((
            key,
            if has_values {
                value
            } else {
                EtcdValue::TooLong
            },
        ))
    };
    Ok(EtcdPage {
        revision: revision.ok_or_else(EtcdRefusal::none)?,
        pairs: answer.kvs.into_iter().map(pair).collect::<Result<_, _>>()?,
        has_more: answer.more,
    })
}

/// Reads the answer to a request for a token.
///
/// # Errors
/// It has none.
pub fn token(answer: &[u8]) -> Result<String, EtcdRefusal> {
    #[derive(Deserialize)]
    struct TokenAnswer {
        token: Option<String>,
        error: Option<String>,
    }
    let answer: TokenAnswer = read(answer)?;
    let refused = |why: String| EtcdRefusal::new(0, &why);
    match (answer.token, answer.error) {
        (Some(token), _) => Ok(token),
        (None, error) => Err(error.map_or_else(EtcdRefusal::none, refused)),
    }
}

/// Reads a line of a watch that was asked for `from` a revision on.
///
/// # Errors
/// It is none, or etcd ends the watch.
pub fn watch_line(line: &[u8], from: i64) -> Result<EtcdChanges, EtcdRefusal> {
    #[derive(Deserialize)]
    struct WatchLine<'a> {
        #[serde(borrow)]
        result: Option<WatchResult<'a>>,
        error: Option<WatchError>,
    }
    #[derive(Deserialize)]
    struct WatchError {
        #[serde(default)]
        grpc_code: i64,
        #[serde(default)]
        message: String,
    }
    #[derive(Deserialize)]
    struct WatchResult<'a> {
        header: Option<AnswerHeader>,
        #[serde(default)]
        canceled: bool,
        #[serde(default)]
        created: bool,
        compact_revision: Option<String>,
        #[serde(default)]
        cancel_reason: String,
        /// More events of this answer come with the next one, perhaps of the same revision.
        #[serde(default)]
        fragment: bool,
        #[serde(default, borrow)]
        events: Vec<WatchEvent<'a>>,
    }
    #[derive(Deserialize)]
    struct WatchEvent<'a> {
        /// PUT where it is absent.
        #[serde(default, rename = "type")]
        kind: String,
        #[serde(borrow)]
        kv: KeyValue<'a>,
    }
    let line: WatchLine<'_> = read(line)?;
    if let Some(error) = line.error {
        return Err(EtcdRefusal::new(error.grpc_code, &error.message));
    }
    let result = line.result.ok_or_else(EtcdRefusal::none)?;
    if result.canceled {
        // The header of such an answer has no revision.
        return Err(match result.compact_revision {
            Some(_) => EtcdRefusal::Gap,
            None => EtcdRefusal::new(0, &result.cancel_reason),
        });
    }
    let revision = result.header.and_then(|it| it.revision());
    let revision = revision.ok_or_else(EtcdRefusal::none)?;
    // A store that has lost what was seen of it.
    if result.created && revision < from.saturating_sub(1) {
        return Err(EtcdRefusal::Gap);
    }
    // Not the header's: that is of the store, which may have more changes than this answer.
    let last = result.events.last().map(|event| event.kv.mod_revision());
    let next = match last {
        Some(last) => last.ok_or_else(EtcdRefusal::none)? + i64::from(!result.fragment),
        None => from,
    };
    let pairs = result.events.into_iter().map(|event| {
        let (key, value) = event.kv.pair()?;
        let is_gone = event.kind == "DELETE";
        Ok((key, if is_gone { EtcdValue::Deleted } else { value }))
    });
    Ok(EtcdChanges {
        next: next.max(from),
        pairs: pairs.collect::<Result<_, _>>()?,
    })
}

/// What a pair says of a record. Its name is the key behind the prefix, if that can be printed.
pub fn record_change(prefix: &str, (key, value): EtcdPair) -> (RecordId, RecordChange) {
    let name = key.strip_prefix(prefix.as_bytes()).unwrap_or(&key);
    let is_good = |c: char| is_printable(c) && c != '\\';
    let printable = std::str::from_utf8(name)
        .ok()
        .filter(|name| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_good));
    let id: RecordId = match printable {
        Some(name) => name.into(),
        // No name has a backslash.
        None => {
            let begin = name.get(..MAX_NAME).unwrap_or(name);
            format!("\\{}", begin.escape_ascii()).into()
        }
    };
    let change = match value {
        EtcdValue::Deleted => RecordChange::Delete,
        _ if printable.is_none() => RecordChange::Bad(format!(
            "the name of a record is 1 to {MAX_NAME} bytes of UTF-8 that can be printed, without backslash"
        )),
        EtcdValue::TooLong => RecordChange::Bad(format!("it has more than {MAX_RECORD} bytes")),
        EtcdValue::Bytes(text) => match PeerRecord::from_json(&text) {
            Ok(record) => RecordChange::Put(Box::new(record)),
            Err(why) => RecordChange::Bad(why),
        },
    };
    (id, change)
}

#[derive(Deserialize)]
struct AnswerHeader {
    revision: Option<String>,
}

impl AnswerHeader {
    fn revision(&self) -> Option<i64> {
        number(self.revision.as_deref()?)
    }
}

#[derive(Deserialize)]
struct KeyValue<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(default, borrow)]
    value: Cow<'a, str>,
    #[serde(default)]
    mod_revision: String,
}

impl KeyValue<'_> {
    fn mod_revision(&self) -> Option<i64> {
        number(&self.mod_revision)
    }

    fn pair(&self) -> Result<EtcdPair, EtcdRefusal> {
        let value = match self.value.len() > MAX_RECORD.div_ceil(3) * 4 {
            true => EtcdValue::TooLong,
            false => EtcdValue::Bytes(decode(&self.value)?),
        };
        Ok((decode(&self.key)?, value))
    }
}

/// A revision, to which one can be added.
fn number(text: &str) -> Option<i64> {
    text.parse()
        .ok()
        .filter(|number| (0..i64::MAX).contains(number))
}

fn decode(text: &str) -> Result<Vec<u8>, EtcdRefusal> {
    Base64::decode_vec(text).map_err(|_| EtcdRefusal::none())
}

/// As much of a text of unknown length as is told.
fn begin(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

/// serde_json repeats values, which may be secrets.
pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, EtcdRefusal> {
    serde_json::from_slice(text).map_err(|_| match text.first() {
        // etcd, or a proxy before it, says in plain text what it does not like.
        Some(first) if first.is_ascii_alphabetic() => {
            let words = String::from_utf8_lossy(text.get(..MAX_WORDS).unwrap_or(text));
            EtcdRefusal::Failed(format!("it answers: {}", begin(words.trim_end())))
        }
        _ => EtcdRefusal::none(),
    })
}

#[cfg(test)]
#[path = "etcd_tests.rs"]
mod tests;
