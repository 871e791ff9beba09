//! `adit show`: every userspace WireGuard interface, with further fields for Adit's own.

use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use adit_ctl::status::{self, Colour, Interface, NoAnswer, StatusReport};
use adit_ctl::uapi::{self, Client, ClientError};

use crate::cli::{self, ShowArgs};
use crate::failure::{Context, Failure, Result, say};
use crate::quick::is_unserved;

/// What the interface of this name answered.
type Answer = (String, std::result::Result<Interface, ClientError>);

pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    let report = report(match &args.interface {
        Some(name) => vec![ask(name.clone())],
        None => all(),
    });
    for unanswered in &report.errors {
        say!("adit: {}", unanswered.error);
    }
    let text = if args.json {
        serde_json::to_string_pretty(&report).context(|| "cannot write JSON".into())? + "\n"
    } else {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let colour = Colour::from_env();
        let texts: Vec<String> = (report.interfaces.iter())
            .map(|i| status::render(i, now, colour))
            .collect();
        texts.join("\n")
    };
    cli::print(text.as_bytes())?;
    match report.errors.is_empty() {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

fn report(answers: Vec<Answer>) -> StatusReport {
    let mut report = StatusReport::new(Vec::new());
    for (interface, answer) in answers {
        match answer {
            Ok(status) => report.interfaces.push(status),
            Err(error) => report.errors.push(NoAnswer {
                error: explain(&interface, error).to_string(),
                interface,
            }),
        }
    }
    report
}

/// Interfaces that end meanwhile, and sockets without a process, are no failure.
fn all() -> Vec<Answer> {
    let names = uapi::interfaces(Path::new(uapi::DIR));
    let answers = names.into_iter().map(ask);
    answers
        .filter(|(_, answer)| !answer.as_ref().is_err_and(is_unserved))
        .collect()
}

fn ask(name: String) -> Answer {
    let answer = interface_status(&name);
    (name, answer)
}

/// From the status socket if the interface is Adit's, else from the socket that every
/// implementation has.
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
    Failure::State(match error {
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
                "no process answers at {}/{name}.sock: it has ended",
                uapi::DIR
            )
        }
        error => format!("cannot ask {name}: {error}"),
    })
}
