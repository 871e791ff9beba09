//! Messages of DNS over sockets of the namespace.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use adit::net::NetError;
use adit::net::dns::{DnsTransport, MAX_ANSWER, exchange, left};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::socket_kind::SocketKind;
use super::sockets::host;
use super::tasks::{Task, Tasks};

pub(super) struct KernelNames(pub(super) Arc<Tasks>);

impl DnsTransport for KernelNames {
    fn by_udp(
        &self,
        server: SocketAddr,
        questions: &[Vec<u8>],
        until: Instant,
        came: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), NetError> {
        let socket = self.0.socket(SocketKind::udp(server.ip()))?;
        rustix::io::ioctl_fionbio(&socket, false).map_err(host)?;
        // The kernel drops what comes from elsewhere, and tells of ICMP.
        // The next server may know: whatever is wrong, it is as if this one had refused.
        let refused = |_| NetError::Refused(server);
        connect(&socket, &server).map_err(refused)?;
        for question in questions {
            send(&socket, question, SendFlags::NOSIGNAL).map_err(refused)?;
        }
        let mut buffer = [0; MAX_ANSWER];
        while Instant::now() < until {
            set_socket_timeout(&socket, Timeout::Recv, Some(left(until))).map_err(host)?;
            match recv(&socket, &mut buffer, RecvFlags::empty()) {
                Ok((len, _)) => {
                    if came(&buffer[..len]) {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(refused(error)),
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
        let (sender, receiver) = channel();
        let then = Box::new(move |opened| {
            let _ = sender.send(opened);
        });
        self.0.add(Task::Connect {
            remote: server,
            until,
            then,
        })?;
        let opened = match receiver.recv() {
            Ok(Ok(opened)) => opened,
            Ok(Err(_)) => return Ok(None),
            Err(_) => return Err(NetError::Ended),
        };
        let mut stream = opened.into_stream()?;
        let came = exchange(&mut stream, question, until, |stream, left| {
            let limited = set_socket_timeout(&**stream, Timeout::Recv, left);
            limited.map_err(io::Error::from)
        });
        Ok(came.ok())
    }
}
