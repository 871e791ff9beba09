//! A tunnel to one peer without sockets and threads: [`Tunn`].
//!
//! - `tunn`: the tunnel;
//! - `config`: the device that it has;
//! - `outgoing`: packets that wait for a session, and datagrams that wait for the caller;
//! - `packet`: what a datagram says that it is;
//! - [`rate_limiter`]: which handshake messages are worth their computation;
//! - [`handshake`]: whose an initiation is;
//! - `loss`: how many packets were lost, by their counters;
//! - `clock`: what time it is.

mod clock;
mod config;
pub mod errors;
pub mod handshake;
mod loss;
mod outgoing;
mod packet;
pub mod rate_limiter;
mod result;
mod tunn;

pub use packet::{HandshakeInit, HandshakeResponse, Packet, PacketCookieReply, PacketData};
pub use result::TunnResult;
pub use tunn::Tunn;
