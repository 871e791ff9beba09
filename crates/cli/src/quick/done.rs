//! What a command says that changed a whole interface: one line, or a JSON object.

use serde::Serialize;

use super::list::{SCHEMA, print_json};
use crate::cli::OutputArgs;
use crate::failure::{Result, say};

#[derive(Serialize)]
struct DoneJson<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
}

/// Says that `done` was done, to a person by a line with the next step.
pub(super) fn say(said: OutputArgs, interface: &str, done: &str, line: &str) -> Result<()> {
    match said {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => print_json(&DoneJson {
            schema: SCHEMA,
            interface,
            done,
        }),
        _ => {
            say!("adit: {line}");
            Ok(())
        }
    }
}
