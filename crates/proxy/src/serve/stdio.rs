//! Standard input and output as one connection into the tunnel. Files and terminals cannot be waited for beside
//! sockets, so each direction has a thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use adit::net::NetError;

use super::core::is_wanted;
use super::options::{StartHook, StdioHook};
use crate::config::{EndpointHost, ProxyEndpoint, Resolve};
use crate::stack::{OpenedTcp, Stack};

/// Begins: the descriptors are what is read, and what is written. Both threads are started here, since a thread
/// that has given up what it does not need may start none.
pub(crate) fn begin(
    stack: Arc<dyn Stack>,
    target: ProxyEndpoint,
    [input, output]: [OwnedFd; 2],
    (timeout, resolve): (Duration, Resolve),
    on_start: Option<StartHook>,
    on_end: Option<StdioHook>,
) -> io::Result<()> {
    let (sender, opened) = sync_channel::<UnixStream>(1);
    let (ending, input_ended) = sync_channel(1);
    let begins = on_start.clone();
    let read = move || {
        if let Some(on_start) = begins {
            on_start();
        }
        if let Ok(mut stream) = opened.recv() {
            // The end of the input ends what is sent, and no more.
            let _ = copy(&mut File::from(input), &mut stream);
            let _ = stream.shutdown(Shutdown::Write);
        }
        let _ = ending.send(());
    };
    let write = move || {
        if let Some(on_start) = on_start {
            on_start();
        }
        let opened = connect(&*stack, &target, timeout, resolve);
        // Others have the stack for as long as it is needed.
        drop(stack);
        let received = opened.and_then(|opened| {
            let mut stream = opened.into_stream()?;
            let for_input = stream.as_fd().try_clone_to_owned();
            let _ = sender.send(for_input.map_err(NetError::Host)?.into());
            let received = copy(&mut stream, &mut File::from(output));
            if received.is_err() {
                // Nobody takes what comes.
                let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
            }
            received.map_err(NetError::Host)
        });
        if received.is_ok() {
            let _ = input_ended.recv();
        }
        if let Some(on_end) = on_end {
            on_end(received);
        }
    };
    thread::Builder::new()
        .name("adit-stdin".into())
        .spawn(read)?;
    thread::Builder::new()
        .name("adit-stdout".into())
        .spawn(write)?;
    Ok(())
}

/// Connects to a target, and waits for that.
fn connect(
    stack: &dyn Stack,
    target: &ProxyEndpoint,
    timeout: Duration,
    resolve: Resolve,
) -> Result<Box<dyn OpenedTcp>, NetError> {
    let until = Instant::now() + timeout;
    let mut addresses = match &target.host {
        EndpointHost::Address(ip) => vec![*ip],
        EndpointHost::Name(name) => stack.look_up(name, timeout)?,
    };
    if let EndpointHost::Name(_) = target.host {
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
