//! Standard output, which may be a closed pipe or a full disk, and where `--json` writes.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::sandbox::Failure;

/// Prints to standard output. A reader that has closed the pipe has seen enough.
pub(crate) fn print(text: &str) -> io::Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

fn write_to(to: &mut impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| {
            let said = format!("cannot write to standard output: {error}");
            io::Error::new(error.kind(), said)
        }),
    }
}

/// Whether JSON is asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct JsonArg {
    /// Write everything as JSON to FILE, or to standard output (the tables then go to standard
    /// error).
    ///
    /// Fields are only ever added under the same `schema` number.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<String>,
}

impl JsonArg {
    pub(crate) fn open(&self) -> Result<Json, Failure> {
        Json::open(self.json.as_deref())
    }
}

/// The name of a value on the command line, in tables and in JSON.
pub(crate) fn name(of: impl ValueEnum) -> String {
    let value = of.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// An error if a run is incomplete, or so many measurements failed.
pub(crate) fn verdict(is_stopped: bool, failures: usize) -> Result<(), Failure> {
    match failures {
        _ if is_stopped => Err("the run is incomplete".into()),
        0 => Ok(()),
        count => Err(format!("what failed is listed above ({count})").into()),
    }
}

/// Where the JSON goes.
pub(crate) enum Json {
    Nowhere,
    StandardOutput,
    File(String, File),
}

impl Json {
    /// Opens the file before anything is measured: a run of an hour must not end with a path that
    /// cannot be written. The file keeps its contents until there is something better.
    fn open(asked: Option<&str>) -> Result<Self, Failure> {
        Ok(match asked {
            None => Self::Nowhere,
            Some("-") => Self::StandardOutput,
            Some(path) => {
                let mut options = File::options();
                let file = options.write(true).create(true).truncate(false).open(path);
                Self::File(path.to_owned(), file.map_err(|e| format!("{path}: {e}"))?)
            }
        })
    }

    /// Prints tables for people, and JSON where it was asked for. If one cannot be written, the
    /// other still is.
    pub(crate) fn publish(self, tables: &str, document: &impl Serialize) -> Result<(), Failure> {
        let document = || serde_json::to_string_pretty(document);
        match self {
            Self::Nowhere => print(tables)?,
            Self::StandardOutput => {
                eprint!("{tables}");
                print(&(document()? + "\n"))?;
            }
            Self::File(path, file) => {
                let printed = print(tables);
                replace(file, &document()?).map_err(|e| format!("{path}: {e}"))?;
                printed?;
            }
        }
        Ok(())
    }
}

fn replace(mut file: File, text: &str) -> io::Result<()> {
    // A pipe has no length to set.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_has_seen_enough_and_a_full_disk_is_an_error() {
        assert!(write_to(&mut Fails(ErrorKind::BrokenPipe), "text").is_ok());
        let full = write_to(&mut Fails(ErrorKind::StorageFull), "text").unwrap_err();
        assert!(full.to_string().starts_with("cannot write"), "{full}");
    }
}
