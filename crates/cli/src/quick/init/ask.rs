//! Questions on a terminal.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::{Context, Failure, Result, bail, say};

/// Asks on a terminal, and takes the default elsewhere.
pub(super) struct Asker {
    is_asking: bool,
}

impl Asker {
    pub(super) fn new(is_quiet: bool) -> Self {
        let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        Self {
            is_asking: is_terminal && !is_quiet,
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// The answer to a question, asked again until it is one. Enter takes the default.
    pub(super) fn ask<T>(
        &self,
        question: &str,
        default: Option<&str>,
        read: impl Fn(&str) -> std::result::Result<T, String>,
    ) -> Result<T> {
        if !self.is_asking {
            return read(default.unwrap_or_default()).map_err(Failure::State);
        }
        let shown = default.map_or_else(String::new, |it| format!(" [{it}]"));
        loop {
            let asked = write!(std::io::stderr(), "{question}{shown}: ");
            asked.context(|| "cannot ask".into())?;
            let mut line = String::new();
            let count = std::io::stdin().lock().read_line(&mut line);
            if count.context(|| "cannot read the answer".into())? == 0 {
                say!("");
                bail!(State, "there was no answer: nothing is written");
            }
            let answer = match (line.trim(), default) {
                ("", Some(default)) => default,
                (answer, _) => answer,
            };
            match read(answer) {
                Ok(answer) => return Ok(answer),
                Err(why) => say!("{why}"),
            }
        }
    }
}
