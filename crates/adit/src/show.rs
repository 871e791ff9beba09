//! `adit show`: every userspace WireGuard interface, and what only Adit knows of its own.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::SystemTime;

use adit_ctl::status::{self, Colour, Interface, Report};
use adit_ctl::uapi::{self, Client, ClientError};

use crate::cli::ShowArgs;
use crate::failure::{Context, Failure, Result};

pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    let (interfaces, complete) = match &args.interface {
        Some(name) => (vec![interface(name)?], true),
        None => all(),
    };
    let text = if args.json {
        let report = Report::new(interfaces);
        serde_json::to_string_pretty(&report).context(|| "cannot write JSON".into())? + "\n"
    } else {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let colour = Colour::from_env();
        let texts: Vec<String> = interfaces
            .iter()
            .map(|i| status::render(i, now, colour))
            .collect();
        texts.join("\n")
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever closed the pipe has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context(|| "cannot write to standard output".into()),
    }?;
    match complete {
        true => Ok(()),
        false => Err(Failure::already_said()),
    }
}

/// Those that answer, and whether all did. Interfaces that end while we look, and sockets that nobody serves, are no
/// failure.
fn all() -> (Vec<Interface>, bool) {
    let mut found = Vec::new();
    let mut complete = true;
    for name in uapi::interfaces(Path::new(uapi::DIR)) {
        match interface_status(&name) {
            Ok(interface) => found.push(interface),
            Err(ClientError::Io(e))
                if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => {
                explain(&name, error).report();
                complete = false;
            }
        }
    }
    (found, complete)
}

fn interface(name: &str) -> Result<Interface> {
    interface_status(name).map_err(|error| explain(name, error))
}

/// From the status socket if the interface is Adit's, else from the socket that every implementation has.
fn interface_status(name: &str) -> std::result::Result<Interface, ClientError> {
    match status::fetch(name).map_err(ClientError::from) {
        Ok(interface) => return Ok(interface),
        // It would not answer there, either.
        Err(error) if error.is_silence() => return Err(error),
        Err(_) => {}
    }
    let status = Client::connect(name)?.get()?;
    Ok(Interface::new(name, &status, false))
}

fn explain(name: &str, error: ClientError) -> Failure {
    Failure::new(match error {
        ClientError::Io(e) if e.kind() == ErrorKind::PermissionDenied => {
            format!("cannot ask {name}: {e}; run as root")
        }
        ClientError::Io(e) if e.kind() == ErrorKind::NotFound => format!(
            "no userspace WireGuard runs an interface {name}: {}/{name}.sock does not exist (for the kernel's own \
             interfaces there is `wg show`)",
            uapi::DIR
        ),
        ClientError::Io(e) if e.kind() == ErrorKind::ConnectionRefused => {
            format!(
                "nobody answers at {}/{name}.sock: its process has ended",
                uapi::DIR
            )
        }
        error => format!("cannot ask {name}: {error}"),
    })
}
