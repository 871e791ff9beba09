//! A WireGuard interface that is nothing but its configuration: serves the UAPI, and asks itself as
//! `wg` would.
//!
//! `cargo run -p adit-ctl --example uapi`. The socket stands in a directory of its own. In
//! [`adit_ctl::uapi::DIR`], where [`UapiServer::bind`] puts it, `wg show` finds it.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use adit_ctl::uapi::{UapiClient, UapiError, UapiRequest, UapiResponse, UapiServer};
use adit_ctl::{Service, keys};
use adit_proto::config::{DeviceChange, DeviceStatus};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("adit-uapi-{}", std::process::id()));
    let done = serve_and_ask(&dir);
    // The socket went with its server.
    std::fs::remove_dir(&dir)?;
    done
}

fn serve_and_ask(dir: &std::path::Path) -> Result<(), Box<dyn Error>> {
    // The server: one request at a time, on the service's thread, until `serving` is dropped.
    let device = Arc::new(Mutex::new(DeviceStatus::default()));
    let handler = move |request| {
        let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            UapiRequest::Get => UapiResponse::Status(device.clone()),
            UapiRequest::Set(change) => match apply(&mut device, &change) {
                Ok(()) => UapiResponse::Done,
                Err(error) => UapiResponse::Refused(error),
            },
            UapiRequest::Names { .. }
            | UapiRequest::Endpoints { .. }
            | UapiRequest::Call { .. }
            | UapiRequest::Allow { .. }
            | UapiRequest::Threads { .. } => UapiResponse::Done,
            UapiRequest::Add(_) => {
                UapiResponse::Explained(UapiError::invalid("one interface is all"))
            }
            UapiRequest::Alive | UapiRequest::Down => UapiResponse::Done,
        }
    };
    let notify = |event: adit_ctl::ServerEvent<'_>| println!("server: {event:?}");
    let server = UapiServer::bind_in(dir, "example0")?;
    let service = Service::start()?;
    let serving = server.serve(&service, handler, notify)?;

    // The client.
    let mut client = UapiClient::connect_in(dir, "example0")?;
    client.set(&DeviceChange {
        private_key: Some(keys::generate_private(|bytes| bytes.fill(7))),
        listen_port: Some(51820),
        ..DeviceChange::default()
    })?;
    let status = client.get()?;
    let public_key = status.public_key.ok_or("no key")?;
    println!("client: {public_key} listens on {}", status.listen_port);

    // What is refused changes nothing, and the client learns why by an errno.
    let refused = client.set(&DeviceChange {
        listen_port: Some(1),
        ..DeviceChange::default()
    });
    println!("client: {}", refused.err().ok_or("port 1 is not refused")?);
    assert_eq!(client.get()?.listen_port, 51820);

    serving.stop();
    Ok(())
}

/// Applies a transaction, whole or not at all: check everything first, then change.
fn apply(device: &mut DeviceStatus, change: &DeviceChange) -> Result<(), UapiError> {
    const EACCES: i32 = 13;
    if change
        .listen_port
        .is_some_and(|port| (1..1024).contains(&port))
    {
        return Err(UapiError::new(EACCES, "ports below 1024 are not ours"));
    }
    if let Some(key) = &change.private_key {
        device.private_key = Some(key.clone());
    }
    device.listen_port = change.listen_port.unwrap_or(device.listen_port);
    device.fwmark = change.fwmark.unwrap_or(device.fwmark);
    Ok(())
}
