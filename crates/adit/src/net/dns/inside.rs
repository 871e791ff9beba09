//! Messages of DNS over the UDP and TCP of a network in this process.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::{DnsTransport, MAX_ANSWER, exchange, left};
use crate::net::connection::Connection;
use crate::net::error::NetError;
use crate::net::shared::Shared;
use crate::net::stream::TcpStream;
use crate::net::udp::UdpSocket;

pub(in crate::net) struct Inside {
    pub(in crate::net) shared: Arc<Shared>,
    pub(in crate::net) addresses: Vec<IpAddr>,
    pub(in crate::net) mtu: usize,
}

impl DnsTransport for Inside {
    fn by_udp(
        &self,
        server: SocketAddr,
        questions: &[Vec<u8>],
        until: Instant,
        came: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), NetError> {
        let socket = UdpSocket::bind(&self.shared, &self.addresses, self.mtu, 0)?;
        socket.tell_unreachable(true);
        for question in questions {
            socket.send_to(question, server).map_err(NetError::Host)?;
        }
        let mut buffer = [0; MAX_ANSWER];
        while Instant::now() < until {
            let timeout = Some(left(until));
            socket.set_read_timeout(timeout).map_err(NetError::Host)?;
            match socket.recv_from(&mut buffer) {
                Ok((len, from)) if from == server => {
                    if came(&buffer[..len]) {
                        break;
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(NetError::Refused(server));
                }
                Err(_) => return Err(NetError::Ended),
            }
        }
        Ok(())
    }

    fn by_tcp(
        &self,
        server: SocketAddr,
        question: &[u8],
        until: Instant,
    ) -> Result<Option<Vec<u8>>, NetError> {
        let mut stream = match Connection::open(&self.shared, server, left(until)) {
            Ok(connection) => connection.into_stream()?,
            Err(error @ (NetError::Ended | NetError::NoMemory)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let came = exchange(&mut stream, question, until, TcpStream::set_read_timeout);
        Ok(came.ok())
    }
}
