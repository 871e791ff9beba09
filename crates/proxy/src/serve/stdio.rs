//! Standard input and output as one connection into the tunnel. Files and terminals cannot be waited for beside
//! sockets, so each direction has a thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use adit::net::NetError;

use super::core::is_wanted;
use super::options::{StartHook, StdioHook};
use crate::config::{Endpoint, Host, Resolve};
use crate::stack::{Opened, Stack};

/// Begins: the descriptors are what is read, and what is written.
pub(crate) fn begin(
    stack: Arc<dyn Stack>,
    target: Endpoint,
    [input, output]: [OwnedFd; 2],
    (timeout, resolve): (Duration, Resolve),
    on_start: Option<StartHook>,
    on_end: Option<StdioHook>,
) -> io::Result<()> {
    let run = move || {
        if let Some(on_start) = &on_start {
            on_start();
        }
        // It is not kept: the proxy's end is not this thread's.
        let opened = connect(&*stack, &target, timeout, resolve);
        drop(stack);
        let ended = opened
            .and_then(|opened| opened.into_stream())
            .and_then(|stream| carry(stream.into(), input.into(), output.into(), on_start));
        if let Some(on_end) = on_end {
            on_end(ended);
        }
    };
    thread::Builder::new()
        .name("adit-stdio".into())
        .spawn(run)?;
    Ok(())
}

/// Connects to a target, and waits for that.
fn connect(
    stack: &dyn Stack,
    target: &Endpoint,
    timeout: Duration,
    resolve: Resolve,
) -> Result<Box<dyn Opened>, NetError> {
    let until = Instant::now() + timeout;
    let mut addresses = match &target.host {
        Host::Address(ip) => vec![*ip],
        Host::Name(name) => stack.look_up(name, timeout)?,
    };
    if let Host::Name(_) = target.host {
        addresses.retain(|ip| is_wanted(resolve, ip));
    }
    let mut last = NetError::UnknownName(target.to_string());
    for (tried, ip) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let (sender, opened) = sync_channel(1);
        let then = Box::new(move |result| drop(sender.send(result)));
        stack.open_tcp(SocketAddr::new(*ip, target.port), left / others, then)?;
        match opened.recv().unwrap_or(Err(NetError::Ended)) {
            Err(error) => last = error,
            opened => return opened,
        }
    }
    Err(last)
}

/// Copies both ways, until both have ended. The end of the input ends what is sent, and no more.
fn carry(
    stream: UnixStream,
    mut input: File,
    mut output: File,
    on_start: Option<StartHook>,
) -> Result<(), NetError> {
    let (mut from, mut to) = (stream.try_clone().map_err(NetError::Host)?, stream);
    let sender = move || {
        if let Some(on_start) = on_start {
            on_start();
        }
        let _ = copy(&mut input, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    };
    let named = thread::Builder::new().name("adit-stdin".into());
    let sending = named.spawn(sender).map_err(NetError::Host)?;
    let received = copy(&mut from, &mut output);
    drop(output);
    // The other end takes nothing any more, or it does so until the input ends.
    if received.is_err() {
        let _ = from.shutdown(Shutdown::Both);
        return received.map_err(NetError::Host);
    }
    let _ = sending.join();
    Ok(())
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..len])?;
        to.flush()?;
    }
}
