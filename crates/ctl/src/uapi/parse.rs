//! From the bytes of a client to requests, with bounded memory and whatever the bytes are.
//!
//! 1. bytes → lines, none longer than [`MAX_LINE`];
//! 2. the first line says `get`, `set`, `add`, `threads`, `alive`, `down`, `names`, `endpoints`, `allow`
//!    or `call`;
//! 3. lines → a draft of the transaction, or the first thing wrong with it;
//! 4. blank line → the request. After a mistake the rest is skipped up to there, so that a client
//!    that writes all before it reads finds the errno and not a broken pipe.

use adit_proto::config::DeviceChange;
use rustix::io::Errno;

use super::lines::{
    Allowances, CallLines, Endpoints, NameLines, allow_line, call_line, change_line,
    endpoints_line, names_line, no_memory,
};
use super::{UapiError, UapiRequest};
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
/// What a client's bytes were.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole request, to be answered.
    Request(UapiRequest),
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
    state: ParserState,
}

#[derive(Default)]
enum ParserState {
    #[default]
    Idle,
    Get,
    Set(Box<DeviceChange>),
    Add(Option<String>),
    Threads(Option<u16>, Option<String>),
    Alive,
    Down,
    Names(NameLines),
    Endpoints(Endpoints),
    Allow(Allowances),
    Call(CallLines),
    /// The request is wrong; its rest is skipped.
    Wrong(UapiError),
    /// The first line was no operation.
    Lost(UapiError),
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
            ParserState::Wrong(error) | ParserState::Lost(error) => Some(Heard::Hopeless(error)),
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
                ParserState::Idle => None,
                ParserState::Get => Some(Heard::Request(UapiRequest::Get)),
                ParserState::Set(change) => Some(Heard::Request(UapiRequest::Set(*change))),
                ParserState::Alive => Some(Heard::Request(UapiRequest::Alive)),
                ParserState::Down => Some(Heard::Request(UapiRequest::Down)),
                ParserState::Add(Some(name)) => Some(Heard::Request(UapiRequest::Add(name))),
                ParserState::Add(None) => Some(Heard::Refused(UapiError::invalid(
                    "add=1 takes a line interface=NAME",
                ))),
                ParserState::Threads(shards, policy) => {
                    Some(Heard::Request(UapiRequest::Threads { shards, policy }))
                }
                ParserState::Names(names) => Some(Heard::Request(UapiRequest::Names {
                    named: names.named,
                    replace: !names.keeps,
                })),
                ParserState::Endpoints(Endpoints { named, keeps, .. }) => {
                    let replace = !keeps;
                    Some(Heard::Request(UapiRequest::Endpoints { named, replace }))
                }
                ParserState::Allow(Allowances { given, keeps }) => {
                    let replace = !keeps;
                    Some(Heard::Request(UapiRequest::Allow { given, replace }))
                }
                ParserState::Call(CallLines { from, peers }) => {
                    Some(Heard::Request(UapiRequest::Call { from, peers }))
                }
                ParserState::Wrong(error) => Some(Heard::Refused(error)),
                ParserState::Lost(error) => Some(Heard::Hopeless(error)),
            };
        }
        let pair = if overlong {
            Err(UapiError::invalid("a line is too long"))
        } else {
            split(&line)
        };
        match (&mut self.state, pair) {
            (ParserState::Wrong(_) | ParserState::Lost(_), _) => {}
            (ParserState::Idle, Ok(("get", "1"))) => self.state = ParserState::Get,
            (ParserState::Idle, Ok(("set", "1"))) => self.state = ParserState::Set(Box::default()),
            (ParserState::Idle, Ok(("alive", "1"))) => self.state = ParserState::Alive,
            (ParserState::Idle, Ok(("down", "1"))) => self.state = ParserState::Down,
            (ParserState::Idle, Ok(("add", "1"))) => self.state = ParserState::Add(None),
            (ParserState::Idle, Ok(("threads", "1"))) => {
                self.state = ParserState::Threads(None, None)
            }
            (ParserState::Idle, Ok(("names", "1"))) => {
                self.state = ParserState::Names(NameLines::default())
            }
            (ParserState::Idle, Ok(("endpoints", "1"))) => {
                self.state = ParserState::Endpoints(Endpoints::default());
            }
            (ParserState::Idle, Ok(("allow", "1"))) => {
                self.state = ParserState::Allow(Allowances::default())
            }
            (ParserState::Idle, Ok(("call", "1"))) => {
                self.state = ParserState::Call(CallLines::default())
            }
            (
                ParserState::Idle,
                Ok((
                    "get" | "set" | "add" | "threads" | "alive" | "down" | "names" | "endpoints"
                    | "allow" | "call",
                    _,
                )),
            ) => {
                self.state =
                    ParserState::Wrong(UapiError::protocol("only version 1 is spoken here"));
            }
            (ParserState::Idle, Ok(_)) => {
                let error = UapiError::invalid("a request starts with get=1 or set=1");
                self.state = ParserState::Lost(error);
            }
            (ParserState::Idle, Err(error)) => self.state = ParserState::Lost(error),
            (ParserState::Get | ParserState::Alive | ParserState::Down, _) => {
                self.state =
                    ParserState::Wrong(UapiError::invalid("this request takes no further lines"));
            }
            (ParserState::Add(name @ None), Ok(("interface", value))) => {
                *name = Some(value.to_owned())
            }
            (ParserState::Add(_), _) => {
                let error = UapiError::invalid("add=1 takes one line interface=NAME");
                self.state = ParserState::Wrong(error);
            }
            (ParserState::Threads(shards, _), Ok(("shards", value)))
                if matches!(number::<u16>(value), Some(1..)) =>
            {
                *shards = number(value);
            }
            (ParserState::Threads(_, policy), Ok(("policy", value))) => {
                *policy = Some(value.to_owned())
            }
            (ParserState::Threads(..), _) => {
                let error = UapiError::invalid("threads=1 takes lines shards=N and policy=NAME");
                self.state = ParserState::Wrong(error);
            }
            (ParserState::Names(names), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| names_line(names, key, value, memory));
                if let Err(error) = line {
                    self.state = ParserState::Wrong(error);
                }
            }
            (ParserState::Endpoints(named), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| endpoints_line(named, key, value, memory));
                if let Err(error) = line {
                    self.state = ParserState::Wrong(error);
                }
            }
            (ParserState::Allow(allowances), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| allow_line(allowances, key, value, memory));
                if let Err(error) = line {
                    self.state = ParserState::Wrong(error);
                }
            }
            (ParserState::Call(calls), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| call_line(calls, key, value, memory));
                if let Err(error) = line {
                    self.state = ParserState::Wrong(error);
                }
            }
            (ParserState::Set(change), pair) => {
                let memory = &mut self.memory;
                let line = pair.and_then(|(key, value)| change_line(change, key, value, memory));
                if let Err(error) = line {
                    self.state = ParserState::Wrong(error);
                }
            }
        }
        let is_refused = matches!(self.state, ParserState::Wrong(_) | ParserState::Lost(_));
        if !is_refused && (self.is_starved || self.memory > MAX_MEMORY) {
            self.state = ParserState::Wrong(no_memory());
        }
        if matches!(self.state, ParserState::Wrong(_)) {
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
