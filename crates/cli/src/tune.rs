//! `adit tune`: other threads for a process that runs.

use std::io::ErrorKind;

use adit_ctl::uapi::{ClientError, UapiClient};
use serde::Serialize;

use crate::cli::{OutputArgs, TuneArgs};
use crate::failure::{Failure, Result, say};
use crate::quick;

/// Has the process that serves an interface process packets by other threads.
pub(crate) fn tune(args: &TuneArgs) -> Result<()> {
    let name = &args.interface;
    let policy = args.change.policy.map(|policy| policy.0.name());
    let changed = UapiClient::connect(name)
        .map_err(ClientError::Io)
        .and_then(|mut client| client.set_threads(args.change.shards, policy));
    changed.map_err(|error| {
        Failure::State(match error {
            ClientError::Explained(why) => format!("the process of {name} changed nothing: {why}"),
            error if error.is_unserved() => {
                format!("no process serves {name}: `adit up {name}` starts one")
            }
            ClientError::Refused(_) => no_tuning(name),
            ClientError::Io(e) if e.kind() == ErrorKind::UnexpectedEof => no_tuning(name),
            error => format!("cannot ask the process of {name}: {error}"),
        })
    })?;
    match args.said {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => quick::print_json(&TuneDone::of(args)),
        _ => {
            say!(
                "adit: the process of {name} works as it was asked to: `adit show {name}` shows what is in force"
            );
            Ok(())
        }
    }
}

/// What was done, as JSON: what was asked for.
#[derive(Serialize)]
struct TuneDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    shards: Option<u16>,
    policy: Option<&'a str>,
}

impl<'a> TuneDone<'a> {
    fn of(args: &'a TuneArgs) -> Self {
        Self {
            schema: 1,
            interface: &args.interface,
            done: "tuned",
            shards: args.change.shards,
            policy: args.change.policy.map(|policy| policy.0.name()),
        }
    }
}

fn no_tuning(name: &str) -> String {
    format!("the process of {name} cannot change its threads: it is no Adit, or an older one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    #[test]
    fn json_has_what_was_asked_for() {
        let words = ["adit", "tune", "wg0", "--json", "--policy", "inline"];
        let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(words).expect("arguments");
        let Some(Command::Tune(args)) = cli.command else {
            panic!("another command");
        };
        assert!(args.said.json);
        let json = serde_json::to_string(&TuneDone::of(&args)).expect("JSON");
        let expected =
            r#"{"schema":1,"interface":"wg0","done":"tuned","shards":null,"policy":"inline"}"#;
        assert_eq!(json, expected);
    }
}
