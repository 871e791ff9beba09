//! The interfaces of WireGuard's tools: the UAPI socket, wg-quick's configuration files, keys as
//! text, and the status that `adit show` prints.
//!
//! - [`uapi`]: the socket by which `wg` configures an interface: [`uapi::UapiServer`],
//!   [`uapi::UapiClient`], and the parser;
//! - [`mod@config`]: configuration files, from text to a transaction and back;
//! - [`keys`]: keys in base64 and hexadecimal;
//! - [`status`]: the versioned JSON of `adit show`, and its socket;
//! - [`text`]: text from elsewhere, for a terminal;
//! - [`Service`]: the thread that serves the sockets of any number of interfaces.
//!
//! Requests come as bytes and in pieces; what they ask for are the types of [`adit_proto::config`]:
//!
//! ```
//! use adit_ctl::uapi::{Heard, MAX_REQUEST, Parser, UapiRequest, format_status};
//! use adit_proto::config::DeviceStatus;
//!
//! let mut device = DeviceStatus::default();
//! let mut parser = Parser::default();
//! let mut answers = Vec::new();
//! for piece in ["set=1\nlisten_port=518", "20\nfwmark=16\n\n", "get=1\n\n", "get=2\n\n"] {
//!     let mut input = piece.as_bytes();
//!     while let Some(heard) = parser.push(&mut input, MAX_REQUEST) {
//!         match heard {
//!             Heard::Request(UapiRequest::Get) => answers.extend_from_slice(&format_status(&device)),
//!             Heard::Request(UapiRequest::Set(change)) => {
//!                 device.listen_port = change.listen_port.unwrap_or(device.listen_port);
//!                 device.fwmark = change.fwmark.unwrap_or(device.fwmark);
//!                 answers.extend_from_slice(b"errno=0\n\n");
//!             }
//!             Heard::Request(_) => answers.extend_from_slice(b"errno=95\n\n"),
//!             Heard::Refused(error) | Heard::Hopeless(error) => {
//!                 answers.extend_from_slice(format!("errno={}\n\n", error.errno).as_bytes());
//!             }
//!         }
//!     }
//! }
//! let expected = "errno=0\n\nlisten_port=51820\nfwmark=16\nerrno=0\n\nerrno=71\n\n";
//! assert_eq!(String::from_utf8(answers).unwrap(), expected);
//! ```
//!
//! `examples/uapi.rs` does the same over a socket.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod config;
pub mod keys;
mod names;
mod origin;
mod socket;
pub mod status;
pub mod text;
pub mod uapi;
mod zeroized;

pub use origin::{Caller, Origin};
pub use socket::{BindError, ServerEvent, Service, Serving, connect};
