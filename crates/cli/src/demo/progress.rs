//! Progress on standard error: a line that moves on a terminal, one line per step elsewhere.

use std::io::{IsTerminal, Write};

use crate::failure::say;

const BAR: usize = 30;

pub(super) struct Progress {
    terminal: bool,
    /// Whether the moving line is on the screen.
    moving: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            moving: false,
        }
    }

    /// A step that has begun.
    pub(super) fn say(&mut self, text: &str) {
        self.clear();
        say!("{text}");
    }

    pub(super) fn pings(&mut self, path: &str, sent: u32, of: u32) {
        if sent.is_multiple_of(20) {
            self.show(path, f64::from(sent) / f64::from(of), "pinging".into());
        }
    }

    pub(super) fn rate(&mut self, path: &str, done: f64, gbps: f64) {
        self.show(path, done, format!("TCP {gbps:6.2} Gb/s"));
    }

    fn show(&mut self, path: &str, done: f64, what: String) {
        if self.terminal {
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K  {path:<11}{} {what}",
                bar(done)
            );
            self.moving = true;
        }
    }

    /// Takes the moving line off the screen.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.moving) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bar(done: f64) -> String {
    let full = (0..BAR).filter(|i| (*i as f64) < done * BAR as f64).count();
    "█".repeat(full) + &"░".repeat(BAR - full)
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
