//! From the bytes of a client to requests, with bounded memory and whatever the bytes are.
//!
//! 1. bytes → lines, none longer than [`MAX_LINE`];
//! 2. the first line says `get`, `set`, `add`, `threads`, `alive`, `down`, `names`, `endpoints` or `allow`;
//! 3. lines → a draft of the transaction, or the first thing wrong with it;
//! 4. blank line → the request. After a mistake the rest is skipped up to there, so that a client
//!    that writes all before it reads finds the errno and not a broken pipe.

use std::time::Duration;

use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange, PublicKey, Secret};
use rustix::io::Errno;

use super::{Request, UapiError};
use crate::keys;
use crate::names::{Endpoint, endpoint};
use crate::text::number;
use crate::zeroized::Zeroized;

/// Longest line that is looked at, in bytes. The longest that makes sense is shorter than 100.
pub const MAX_LINE: usize = 4096;
/// Longest request, in bytes: half a million peers with endpoint, preshared key and three allowed IPs
/// each take 160 MB, a million with one allowed IP 130 MB.
pub const MAX_REQUEST: usize = 256 << 20;
/// Bytes of memory that one request may take: a million new peers with one allowed IP each take 230
/// MB, and half a million with endpoint, preshared key and three allowed IPs 150 MB.
const MAX_MEMORY: usize = 256 << 20;
/// Bytes that malloc(3) adds to each piece of memory.
const OVERHEAD: usize = 16;
/// Most peer sections in one `set`: as many peers as a device may have, each removed and added
/// again.
pub const MAX_PEERS: usize = 2 * adit_proto::limits::MAX_PEERS;

/// Most peers of an interface whose endpoint is a name that is looked up again.
pub const MAX_NAMES: usize = 4096;

/// Most peers in one `allow`: it is heeded in one piece. More take several.
pub const MAX_ALLOWANCES: usize = 1024;

/// What a client's bytes were.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole request, to be answered.
    Request(Request),
    /// To be answered; the next request may follow.
    Refused(UapiError),
    /// Answer it, then close the connection: it is not known where a next request would start.
    Hopeless(UapiError),
}

/// Reads requests from a byte stream.
#[derive(Default)]
pub struct Parser {
    line: Zeroized,
    /// The line passed [`MAX_LINE`]; its rest is skipped.
    overlong: bool,
    /// Bytes of the present request so far.
    request_len: usize,
    /// Bytes of memory that its draft takes.
    memory: usize,
    /// There is no memory for it.
    is_starved: bool,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Get,
    Set(Box<DeviceChange>),
    Add(Option<String>),
    Threads(Option<u16>, Option<String>),
    Alive,
    Down,
    Names(Names),
    Endpoints(Endpoints),
    Allow(Allowances),
    /// The request is wrong; its rest is skipped.
    Wrong(UapiError),
    /// The first line was no operation.
    Lost(UapiError),
}

/// The names so far, and the peer that the next name is for.
#[derive(Default)]
struct Names {
    named: Vec<(PublicKey, String)>,
    next: Option<PublicKey>,
    keeps: bool,
}

/// The endpoints so far, and the peer that the next one is for.
#[derive(Default)]
struct Endpoints {
    named: Vec<(PublicKey, Endpoint)>,
    next: Option<PublicKey>,
    keeps: bool,
}

/// What peers may do so far, the last of which the next lines are about.
#[derive(Default)]
struct Allowances {
    given: Vec<(PublicKey, Allowance, bool)>,
    keeps: bool,
}

impl Parser {
    /// Bytes of a request that is not complete yet; 0 between requests.
    pub fn held(&self) -> usize {
        self.request_len
    }

    /// Bytes of memory that it takes by now.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Refuses the present request, or the next one, since there is no memory for it. What is left
    /// of it is skipped.
    pub fn refuse_for_memory(&mut self) {
        self.is_starved = true;
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.line.len()
    }

    /// Consumes bytes of `input` until something is complete; `None` when all are consumed and
    /// nothing is.
    ///
    /// `room` is how long the present request may get, [`MAX_REQUEST`] at most.
    pub fn push(&mut self, input: &mut &[u8], room: usize) -> Option<Heard> {
        while !input.is_empty() {
            let end = input.iter().position(|&byte| byte == b'\n');
            let (piece, rest) = input.split_at(end.map_or(input.len(), |at| at + 1));
            *input = rest;
            self.request_len += piece.len();
            if self.request_len > room.min(MAX_REQUEST) {
                return Some(self.give_up("the request is too long"));
            }
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            if self.line.len() + text.len() > MAX_LINE {
                self.overlong = true;
            } else {
                self.line.extend(text);
            }
            if end.is_some()
                && let Some(heard) = self.end_line()
            {
                return Some(heard);
            }
        }
        None
    }

    /// The client has stopped writing. The answer to a request that it left unfinished, and thereby
    /// without effect.
    pub fn end(&mut self) -> Option<Heard> {
        let unfinished = self.request_len > 0;
        match std::mem::take(self).state {
            State::Wrong(error) | State::Lost(error) => Some(Heard::Hopeless(error)),
            _ => unfinished.then(|| {
                Heard::Hopeless(UapiError::protocol("the request ends without a blank line"))
            }),
        }
    }

    fn give_up(&mut self, why: &str) -> Heard {
        *self = Self::default();
        Heard::Hopeless(UapiError::new(Errno::NOMEM.raw_os_error(), why))
    }

    fn end_line(&mut self) -> Option<Heard> {
        let line = std::mem::take(&mut self.line);
        let overlong = std::mem::take(&mut self.overlong);
        if line.is_empty() && !overlong {
            (self.request_len, self.memory, self.is_starved) = (0, 0, false);
            return match std::mem::take(&mut self.state) {
                State::Idle => None,
                State::Get => Some(Heard::Request(Request::Get)),
                State::Set(change) => Some(Heard::Request(Request::Set(*change))),
                State::Alive => Some(Heard::Request(Request::Alive)),
                State::Down => Some(Heard::Request(Request::Down)),
                State::Add(Some(name)) => Some(Heard::Request(Request::Add(name))),
                State::Add(None) => Some(Heard::Refused(UapiError::invalid(
                    "add=1 takes a line interface=NAME",
                ))),
                State::Threads(shards, policy) => {
                    Some(Heard::Request(Request::Threads { shards, policy }))
                }
                State::Names(names) => Some(Heard::Request(Request::Names {
                    named: names.named,
                    replace: !names.keeps,
                })),
                State::Endpoints(Endpoints { named, keeps, .. }) => {
                    let replace = !keeps;
                    Some(Heard::Request(Request::Endpoints { named, replace }))
                }
                State::Allow(Allowances { given, keeps }) => {
                    let replace = !keeps;
                    Some(Heard::Request(Request::Allow { given, replace }))
                }
                State::Wrong(error) => Some(Heard::Refused(error)),
                State::Lost(error) => Some(Heard::Hopeless(error)),
            };
        }
        let pair = if overlong {
            Err(UapiError::invalid("a line is too long"))
        } else {
            split(&line)
        };
        match (&mut self.state, pair) {
            (State::Wrong(_) | State::Lost(_), _) => {}
            (State::Idle, Ok(("get", "1"))) => self.state = State::Get,
            (State::Idle, Ok(("set", "1"))) => self.state = State::Set(Box::default()),
            (State::Idle, Ok(("alive", "1"))) => self.state = State::Alive,
            (State::Idle, Ok(("down", "1"))) => self.state = State::Down,
            (State::Idle, Ok(("add", "1"))) => self.state = State::Add(None),
            (State::Idle, Ok(("threads", "1"))) => self.state = State::Threads(None, None),
            (State::Idle, Ok(("names", "1"))) => self.state = State::Names(Names::default()),
            (State::Idle, Ok(("endpoints", "1"))) => {
                self.state = State::Endpoints(Endpoints::default());
            }
            (State::Idle, Ok(("allow", "1"))) => self.state = State::Allow(Allowances::default()),
            (
                State::Idle,
                Ok((
                    "get" | "set" | "add" | "threads" | "alive" | "down" | "names" | "endpoints"
                    | "allow",
                    _,
                )),
            ) => {
                self.state = State::Wrong(UapiError::protocol("only version 1 is spoken here"));
            }
            (State::Idle, Ok(_)) => {
                let error = UapiError::invalid("a request starts with get=1 or set=1");
                self.state = State::Lost(error);
            }
            (State::Idle, Err(error)) => self.state = State::Lost(error),
            (State::Get | State::Alive | State::Down, _) => {
                self.state =
                    State::Wrong(UapiError::invalid("this request takes no further lines"));
            }
            (State::Add(name @ None), Ok(("interface", value))) => *name = Some(value.to_owned()),
            (State::Add(_), _) => {
                let error = UapiError::invalid("add=1 takes one line interface=NAME");
                self.state = State::Wrong(error);
            }
            (State::Threads(shards, _), Ok(("shards", value)))
                if matches!(number::<u16>(value), Some(1..)) =>
            {
                *shards = number(value);
            }
            (State::Threads(_, policy), Ok(("policy", value))) => *policy = Some(value.to_owned()),
            (State::Threads(..), _) => {
                let error = UapiError::invalid("threads=1 takes lines shards=N and policy=NAME");
                self.state = State::Wrong(error);
            }
            (State::Names(names), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| names_line(names, key, value, memory));
                if let Err(error) = line {
                    self.state = State::Wrong(error);
                }
            }
            (State::Endpoints(named), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| endpoints_line(named, key, value, memory));
                if let Err(error) = line {
                    self.state = State::Wrong(error);
                }
            }
            (State::Allow(allowances), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| allow_line(allowances, key, value, memory));
                if let Err(error) = line {
                    self.state = State::Wrong(error);
                }
            }
            (State::Set(change), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| change_line(change, key, value, memory));
                if let Err(error) = line {
                    self.state = State::Wrong(error);
                }
            }
        }
        let is_refused = matches!(self.state, State::Wrong(_) | State::Lost(_));
        if !is_refused && (self.is_starved || self.memory > MAX_MEMORY) {
            self.state = State::Wrong(no_memory());
        }
        if matches!(self.state, State::Wrong(_)) {
            self.memory = 0;
        }
        // Keeps the line's memory, zeroized, for the next one.
        self.line = line;
        self.line.clear();
        None
    }
}

fn split(line: &[u8]) -> Result<(&str, &str), UapiError> {
    let line =
        std::str::from_utf8(line).map_err(|_| UapiError::invalid("a line is not UTF-8 text"))?;
    line.split_once('=')
        .ok_or_else(|| UapiError::protocol("a line has no '='"))
}

fn no_memory() -> UapiError {
    UapiError::new(
        Errno::NOMEM.raw_os_error(),
        "this process has no memory for the request",
    )
}

/// Adds to a list, if there is memory, and counts what the list takes.
fn push<T>(list: &mut Vec<T>, item: T, memory: &mut usize) -> Result<(), UapiError> {
    let before = list.capacity();
    list.try_reserve(1).map_err(|_| no_memory())?;
    if list.capacity() != before {
        let overhead = if before == 0 { OVERHEAD } else { 0 };
        *memory += (list.capacity() - before) * size_of::<T>() + overhead;
    }
    list.push(item);
    Ok(())
}

/// One line of `names`.
fn names_line(
    names: &mut Names,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || UapiError::invalid("names=1 takes lines public_key=KEY and name=TEXT in turn");
    match (key, names.next.take()) {
        ("replace", None) if value == "false" => names.keeps = true,
        ("public_key", None) => {
            let public = keys::from_hex(value.as_bytes()).ok_or_else(wrong)?;
            names.next = Some(PublicKey(*public.bytes()));
        }
        ("name", Some(peer)) if names.named.len() < MAX_PEERS => {
            if let Some(name) = crate::config::clean_name(value) {
                *memory += name.capacity() + OVERHEAD;
                push(&mut names.named, (peer, name), memory)?;
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of `endpoints`.
fn endpoints_line(
    endpoints: &mut Endpoints,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || {
        UapiError::invalid("endpoints=1 takes lines public_key=KEY and endpoint=HOST:PORT in turn")
    };
    match (key, endpoints.next.take()) {
        ("replace", None) if value == "false" => endpoints.keeps = true,
        ("public_key", None) => {
            let public = keys::from_hex(value.as_bytes()).ok_or_else(wrong)?;
            endpoints.next = Some(PublicKey(*public.bytes()));
        }
        ("endpoint", Some(peer)) if endpoints.named.len() < MAX_NAMES => {
            // The name of a service stands in a file, which no client has this thread open.
            let port = value.rsplit_once(':').map(|(_, port)| port);
            port.and_then(number::<u16>).ok_or_else(wrong)?;
            let endpoint = value.parse().map_err(UapiError::invalid)?;
            *memory += value.len() + OVERHEAD;
            push(&mut endpoints.named, (peer, endpoint), memory)?;
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of `allow`: numbers are bytes, bytes a second, and seconds since the Unix epoch.
fn allow_line(
    allowances: &mut Allowances,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong = || {
        UapiError::invalid(
            "allow=1 takes lines public_key=KEY, and below each to_peer, from_peer, quota or expires with a number, or \
             anew=true",
        )
    };
    let is_full = allowances.given.len() >= MAX_ALLOWANCES;
    match (key, allowances.given.last_mut()) {
        ("replace", None) if value == "false" => allowances.keeps = true,
        ("public_key", _) if !is_full => {
            let public = keys::from_hex(value.as_bytes()).ok_or_else(wrong)?;
            let peer = PublicKey(*public.bytes());
            push(
                &mut allowances.given,
                (peer, Allowance::default(), false),
                memory,
            )?;
        }
        ("anew", Some((.., anew))) if value == "true" => *anew = true,
        (_, Some((_, allowance, _))) => {
            let number = number::<u64>(value).ok_or_else(wrong)?;
            match key {
                "to_peer" => allowance.to_peer = Some(number),
                "from_peer" => allowance.from_peer = Some(number),
                "quota" => allowance.quota = Some(number),
                "expires" => allowance.expires = Some(Duration::from_secs(number)),
                _ => return Err(wrong()),
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

/// One line of a `set`: the device's until the first `public_key`, then that peer's.
fn change_line(
    change: &mut DeviceChange,
    key: &str,
    value: &str,
    memory: &mut usize,
) -> Result<(), UapiError> {
    let wrong =
        |expected: &'static str| move || UapiError::invalid(format!("{key}: expected {expected}"));
    if key == "public_key" {
        let public = keys::from_hex(value.as_bytes()).ok_or_else(wrong("64 hex digits"))?;
        if change.peers.len() >= MAX_PEERS {
            return Err(UapiError::new(
                Errno::NOMEM.raw_os_error(),
                "too many peers in one set",
            ));
        }
        let peer = PeerChange::new(PublicKey(*public.bytes()));
        return push(&mut change.peers, peer, memory);
    }
    if key == "protocol_version" {
        return only(value, "1").ok_or_else(wrong("1"));
    }
    let Some(peer) = change.peers.last_mut() else {
        match key {
            "private_key" => {
                let mut private = secret(value).ok_or_else(wrong("64 hex digits"))?;
                keys::clamp(&mut private);
                change.private_key = Some(private);
            }
            "listen_port" => change.listen_port = Some(number(value).ok_or_else(wrong("a port"))?),
            "fwmark" => {
                change.fwmark = Some(number(value).ok_or_else(wrong("a 32-bit decimal number"))?);
            }
            "replace_peers" => {
                only(value, "true").ok_or_else(wrong("true"))?;
                change.replace_peers = true;
            }
            _ => return Err(unknown(key, "of the device")),
        }
        return Ok(());
    };
    match key {
        "remove" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.remove = true;
            peer.allowed_ips = Vec::new();
        }
        "update_only" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.update_only = true;
        }
        "preshared_key" => {
            let key = secret(value).ok_or_else(wrong("64 hex digits"))?;
            if peer.preshared_key.replace(key).is_none() {
                *memory += size_of::<[u8; 32]>() + OVERHEAD;
            }
        }
        "endpoint" => {
            peer.endpoint = Some(endpoint(value).ok_or_else(wrong("ip:port or [ip]:port"))?);
        }
        "persistent_keepalive_interval" => {
            let seconds = number(value).ok_or_else(wrong("seconds from 0 to 65535"))?;
            peer.persistent_keepalive = Some(seconds);
        }
        "replace_allowed_ips" => {
            only(value, "true").ok_or_else(wrong("true"))?;
            peer.replace_allowed_ips = true;
            // It also replaces the allowed IPs that stood before it in the section.
            peer.allowed_ips.clear();
        }
        "allowed_ip" => {
            let block = allowed_ip(value).ok_or_else(wrong("ip/cidr or -ip/cidr"))?;
            if !peer.remove {
                push(&mut peer.allowed_ips, block, memory)?;
            }
        }
        _ => return Err(unknown(key, "of a peer")),
    }
    Ok(())
}

/// Names what might be a word, and nothing that might be a part of a secret: with some 160 bits of a
/// private key, the rest can be computed.
fn unknown(key: &str, of: &str) -> UapiError {
    let is_word = |key: &str| {
        key.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    match key.len() <= 40 && is_word(key) {
        true => UapiError::invalid(format!("{key:?} is no key {of}")),
        false => UapiError::invalid(format!("a line has no key {of}")),
    }
}

fn only(value: &str, expected: &str) -> Option<()> {
    (value == expected).then_some(())
}

fn secret(value: &str) -> Option<Secret> {
    keys::from_hex(value.as_bytes())
}

fn allowed_ip(value: &str) -> Option<AllowedIpChange> {
    match value.strip_prefix('-') {
        Some(value) => cidr(value).map(AllowedIpChange::Remove),
        None => cidr(value).map(AllowedIpChange::Add),
    }
}

fn cidr(value: &str) -> Option<Cidr> {
    let (addr, len) = value.split_once('/')?;
    // As Go's ParsePrefix: no leading zeros.
    if len.len() > 1 && len.starts_with('0') {
        return None;
    }
    Cidr::new(addr.parse().ok()?, number(len)?)
}
