//! The document, as Prometheus reads it.

use std::fmt::{self, Write};
use std::io;

use adit_ctl::status::TrainsJson;

use crate::metrics::http::Put;

/// The document, as it is written. It leaves in pieces.
pub(super) struct Page<'a> {
    text: String,
    put: &'a mut Put<'a>,
    result: io::Result<()>,
}

/// Of the document. A piece stays in the cache.
const PIECE: usize = 64 << 10;

impl<'a> Page<'a> {
    pub(super) fn new(put: &'a mut Put<'a>) -> Self {
        Self {
            text: String::with_capacity(PIECE + (PIECE >> 3)),
            put,
            result: Ok(()),
        }
    }

    /// Puts what is left.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush();
        self.result
    }

    fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = (self.put)(self.text.as_bytes());
        }
        self.text.clear();
    }

    fn flush_if_full(&mut self) {
        if self.text.len() >= PIECE {
            self.flush();
        }
    }
}

/// The lines of one metric.
pub(super) struct Metric<'p, 'a> {
    page: &'p mut Page<'a>,
    name: &'static str,
}

impl<'p, 'a> Metric<'p, 'a> {
    pub(super) fn new(page: &'p mut Page<'a>, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a string cannot fail, here and below.
        _ = write!(page.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Self { page, name }
    }

    pub(super) fn line(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.line_of("", labels, value);
    }

    /// A line of the metric with this end of its name.
    pub(super) fn line_of(
        &mut self,
        end: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        let text = &mut self.page.text;
        _ = write!(text, "{}{end}{{", self.name);
        for (i, (label, value)) in labels.iter().enumerate() {
            push_label(text, if i == 0 { "" } else { "," }, label, value);
        }
        _ = writeln!(text, "}} {value}");
        self.page.flush_if_full();
    }

    /// The lines of a histogram. Its lengths double, and the last has no bound.
    pub(super) fn histogram(&mut self, interface: &str, trains: &TrainsJson) {
        let mut count = 0_u64;
        for (exponent, of_length) in (0_u32..).zip(&trains.counts) {
            // Another process tells how many there are.
            count = count.saturating_add(*of_length);
            let is_last = exponent as usize + 1 == trains.counts.len();
            if let Some(bound) = 1_u64.checked_shl(exponent).filter(|_| !is_last) {
                let bound = bound.to_string();
                self.line_of(
                    "_bucket",
                    &[("interface", interface), ("le", &bound)],
                    count,
                );
            }
        }
        self.line_of(
            "_bucket",
            &[("interface", interface), ("le", "+Inf")],
            count,
        );
        self.line_of("_sum", &[("interface", interface)], trains.datagrams);
        self.line_of("_count", &[("interface", interface)], count);
    }

    /// The line for labels that [`push_label`] has written, in pieces.
    pub(super) fn line_with(&mut self, labels: &[&str], value: u64) {
        self.begin(labels);
        push_number(&mut self.page.text, value);
        self.end();
    }

    /// The same, for a value that is no whole number.
    pub(super) fn line_of_any(&mut self, labels: &[&str], value: fmt::Arguments<'_>) {
        self.begin(labels);
        _ = self.page.text.write_fmt(value);
        self.end();
    }

    fn begin(&mut self, labels: &[&str]) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        text.push('{');
        for piece in labels {
            text.push_str(piece);
        }
        text.push_str("} ");
    }

    fn end(&mut self) {
        self.page.text.push('\n');
        self.page.flush_if_full();
    }
}

/// Writes a number as `write!` does, in a fifth of the time: there are as many as lines.
pub(super) fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

/// Appends a label, behind `comma`.
pub(super) fn push_label(text: &mut String, comma: &str, label: &str, value: &str) {
    for piece in [comma, label, "=\""] {
        text.push_str(piece);
    }
    push_escaped(text, value);
    text.push('"');
}

pub(super) fn push_escaped(text: &mut String, value: &str) {
    if !value
        .bytes()
        .any(|byte| matches!(byte, b'\\' | b'"' | b'\n'))
    {
        return text.push_str(value);
    }
    for piece in value.split_inclusive(['\\', '"', '\n']) {
        let (plain, escaped) = match piece.as_bytes().last() {
            Some(b'\\') => (piece.len() - 1, "\\\\"),
            Some(b'"') => (piece.len() - 1, "\\\""),
            Some(b'\n') => (piece.len() - 1, "\\n"),
            _ => (piece.len(), ""),
        };
        text.push_str(&piece[..plain]);
        text.push_str(escaped);
    }
}
