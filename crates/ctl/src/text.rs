//! Text from elsewhere, for a terminal: a name, an endpoint or a message must not move the cursor,
//! change colours, or have what follows read from right to left.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

/// Stands for a character that is not shown.
const INSTEAD: char = '\u{fffd}';

/// Whether a terminal shows this character where it stands, and does nothing else.
///
/// Control characters do something, in both of their ranges. The marks of bidirectional text change
/// the order of what stands beside them; letters that are written from right to left are fine. What
/// is invisible makes two names look the same.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            // Soft hyphen, and marks that stand for themselves in no script.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}'
            // Zero width; not the joiners, which scripts and emoji need.
            | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            // Line and paragraph ends, embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Annotations, and tags.
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with a sign in place of each character that is not printable.
pub fn printable(text: &str) -> Cow<'_, str> {
    replace(text, |_| false)
}

/// The same for several lines: ends of lines and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    replace(text, |c| matches!(c, '\n' | '\t'))
}

fn replace(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_good = |c| is_printable(c) || stays(c);
    match text.chars().all(is_good) {
        true => Cow::Borrowed(text),
        false => text
            .chars()
            .map(|c| if is_good(c) { c } else { INSTEAD })
            .collect(),
    }
}

/// JSON that means the same and can be printed: what is not printable is escaped.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_good = |c| is_printable(c) || c == '\n';
    if json.chars().all(is_good) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match is_good(c) {
            true => out.push(c),
            false => (c.encode_utf16(&mut [0; 2]).iter())
                // Writing to a string cannot fail.
                .for_each(|unit| _ = write!(out, "\\u{unit:04x}")),
        }
    }
    out.into()
}

/// A document of another process, all texts of which become printable.
pub trait Clean {
    /// Makes them so.
    fn clean(&mut self);
}

impl Clean for String {
    fn clean(&mut self) {
        if let Cow::Owned(clean) = printable(self) {
            *self = clean;
        }
    }
}

impl<T: Clean> Clean for Option<T> {
    fn clean(&mut self) {
        self.iter_mut().for_each(Clean::clean);
    }
}

impl<T: Clean> Clean for Vec<T> {
    fn clean(&mut self) {
        self.iter_mut().for_each(Clean::clean);
    }
}

impl<T: Clean> Clean for BTreeMap<String, T> {
    fn clean(&mut self) {
        let entries = std::mem::take(self).into_iter();
        *self = entries
            .map(|(mut name, mut value)| {
                name.clean();
                value.clean();
                (name, value)
            })
            .collect();
    }
}

macro_rules! without_text {
    ($($number:ty)+) => {
        $(impl Clean for $number {
            fn clean(&mut self) {}
        })+
    };
}

without_text!(bool u8 u16 u32 u64 i32 f64);

/// Digits only: `str::parse` would take a plus sign, too.
pub(crate) fn number<T: FromStr>(value: &str) -> Option<T> {
    (value.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| value.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_and_controls_are_not_printed_and_letters_are() {
        for bad in [
            "\u{1b}[31m",
            "\u{7}",
            "\r",
            "\n",
            "\t",
            "\u{7f}",
            "\u{9b}31m",
            "\u{85}",
            "\u{202e}",
            "\u{2066}",
            "\u{200f}",
            "\u{61c}",
            "\u{2028}",
            "\u{feff}",
            "\u{200b}",
            "\u{e0041}",
        ] {
            assert_ne!(printable(bad), bad, "{bad:?}");
            assert!(printable(bad).chars().all(is_printable));
        }
        for good in [
            "alice",
            "Bob's phone",
            "Zoë",
            "علي",
            "משה",
            "山田",
            "👩‍👩‍👧",
            "a=b|c",
        ] {
            assert_eq!(printable(good), good);
        }
        assert_eq!(printable_lines("a\tb\nc\u{1b}[m"), "a\tb\nc\u{fffd}[m");
    }

    /// Not those of the `String`s that proptest makes, which all can be printed.
    fn any_text() -> impl Strategy<Value = String> {
        let some =
            prop::sample::select(vec!['\u{1b}', '\n', '\u{9b}', '\u{202e}', '\u{200f}', 'a']);
        prop::collection::vec(prop_oneof![any::<char>(), some], 0..40).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn json_means_the_same_when_it_can_be_printed(text in any_text()) {
            let json = serde_json::to_string(&text).unwrap();
            let shown = printable_json(&json);
            prop_assert!(shown.chars().all(is_printable));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }

        #[test]
        fn any_text_becomes_printable(mut text in any_text()) {
            let length = text.chars().count();
            text.clean();
            prop_assert!(text.chars().all(is_printable));
            prop_assert_eq!(text.chars().count(), length);
        }
    }
}
