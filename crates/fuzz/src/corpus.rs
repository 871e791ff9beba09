//! Committed inputs: a file for each target, one input a line in hexadecimal.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The file of a target's inputs.
pub fn path(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{target}.hex"))
}

/// The inputs in `text`; an empty one first.
///
/// # Errors
/// Says which line is not hexadecimal.
pub fn parse(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut inputs = vec![Vec::new()];
    for (number, line) in text.lines().enumerate() {
        let pairs = line.as_bytes().chunks(2);
        let bytes = pairs.map(|pair| {
            let digits = std::str::from_utf8(pair)
                .ok()
                .filter(|digits| digits.len() == 2)?;
            u8::from_str_radix(digits, 16).ok()
        });
        let input: Option<Vec<u8>> = bytes.collect();
        inputs.push(input.ok_or_else(|| format!("line {} is not hexadecimal", number + 1))?);
    }
    Ok(inputs)
}

/// The text that [`parse`] reads: shortest inputs first.
pub fn format(mut inputs: Vec<Vec<u8>>) -> String {
    inputs.sort_by_key(|input| (input.len(), input.clone()));
    inputs.dedup();
    let mut text = String::new();
    for input in inputs.iter().filter(|input| !input.is_empty()) {
        for byte in input {
            // Writing to memory cannot fail.
            _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}
