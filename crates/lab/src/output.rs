//! Standard output, which may be a closed pipe or a full disk.

use std::io::{self, ErrorKind, Write};

/// Prints to standard output. Whoever closed the pipe has seen enough.
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
