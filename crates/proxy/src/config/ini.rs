//! Lines as wireproxy's reader of INI files takes them.
//!
//! Its rules are not wg-quick's: `=` or `:` stands behind a key, `#` and `;` begin a comment, and a value may
//! have quotes. Backquotes, and three double quotes, keep a `#` in it.

/// A line of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IniLine<'a> {
    /// No text, or a comment with its sign.
    Blank(&'a str),
    /// The name of a section, without brackets, and the comment behind it.
    Header(&'a str, &'a str),
    /// A key, and all that stands behind its `=`.
    Pair(&'a str, &'a str),
    /// What is none of these.
    Other,
}

impl<'a> IniLine<'a> {
    pub(super) fn read(line: &'a str) -> Self {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            return Self::Blank(line);
        }
        if let Some(rest) = line.strip_prefix('[') {
            return match rest.split_once(']') {
                Some((name, rest)) if rest.is_empty() || is_comment(rest) => {
                    Self::Header(name, rest.trim())
                }
                _ => Self::Other,
            };
        }
        match line.split_once(['=', ':']) {
            Some((key, rest)) if !key.trim().is_empty() => Self::Pair(key.trim(), rest.trim()),
            _ => Self::Other,
        }
    }
}

fn is_comment(text: &str) -> bool {
    text.trim_start().starts_with(['#', ';'])
}

/// A value without its quotes, and the comment behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IniValue<'a> {
    pub(super) text: &'a str,
    pub(super) comment: &'a str,
    /// The comment begins within a word, or within quotes: part of the value may have been meant.
    pub(super) is_cut: bool,
}

/// What stands behind the `=` of a line.
pub(super) fn value(text: &str) -> Result<IniValue<'_>, &'static str> {
    let quote = ["\"\"\"", "`"]
        .into_iter()
        .find(|quote| text.starts_with(quote));
    if let Some(quote) = quote {
        let inner = &text[quote.len()..];
        let end = inner.rfind(quote).ok_or(
            "the quotes do not end in this line: a value is one line here, so write it in one",
        )?;
        return Ok(IniValue {
            text: &inner[..end],
            comment: "",
            is_cut: false,
        });
    }
    if text.ends_with('\\') {
        return Err(
            "the '\\' at the end would continue the line in wireproxy: a value is one line here, so write it in one",
        );
    }
    let at = text.find(['#', ';']).unwrap_or(text.len());
    let (value, comment) = text.split_at(at);
    let is_in_word = !value.is_empty() && value.trim_end() == value;
    let value = value.trim_end();
    let unquoted = ['"', '\''].into_iter().find_map(|quote| {
        let inner = value.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then_some(inner)
    });
    let is_in_quotes = value.starts_with(['"', '\'']) && unquoted.is_none();
    Ok(IniValue {
        text: unquoted.unwrap_or(value),
        comment,
        is_cut: !comment.is_empty() && (is_in_word || is_in_quotes),
    })
}
