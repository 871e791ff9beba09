//! What a source file declares and names.

/// The path of a module from the root of its crate.
pub(crate) type Module = Vec<String>;

/// The module that the file of this path below `src` is.
fn module_of(name: &str) -> Module {
    let path = name.strip_suffix(".rs").unwrap_or(name);
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    let is_root = matches!(name, "lib.rs" | "main.rs");
    if is_root || module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

/// What a file has, with the module in which it stands.
#[derive(Debug, Default)]
pub(crate) struct SourceFile {
    /// The module that the file is.
    pub(super) module: Module,
    /// Modules that stand in the file.
    pub(super) inline: Vec<Module>,
    /// Modules that are for tests only.
    pub(super) tests: Vec<Module>,
    pub(super) items: Vec<(Module, String)>,
    pub(crate) types: Vec<TypeName>,
    pub(super) uses: Vec<UseName>,
    /// Paths in its code, and words that are not the beginning of one.
    pub(super) paths: Vec<CodePath>,
}

/// One name of a `use` declaration.
#[derive(Clone, Debug)]
pub(super) struct UseName {
    pub(super) module: Module,
    pub(super) path: Vec<String>,
    /// What the name is here; `*` for all.
    pub(super) alias: String,
    pub(super) line: usize,
    pub(super) is_public: bool,
    /// It stands in a module and not in a function.
    pub(super) is_of_module: bool,
}

/// The name of a type that is defined: of a module, a function or a macro, but not an associated one.
#[derive(Clone, Debug)]
pub(crate) struct TypeName {
    pub(crate) module: Module,
    pub(crate) name: String,
    pub(crate) line: usize,
}

/// A path in the code.
#[derive(Clone, Debug)]
pub(super) struct CodePath {
    pub(super) module: Module,
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// A word, `::`, or another character. Literals are one `"`; lifetimes and comments are left out.
#[derive(Clone, Copy)]
struct SourceToken<'a> {
    text: &'a str,
    line: usize,
}

impl SourceToken<'_> {
    fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }
}

/// The length of the word at the beginning.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(text.len())
}

/// The length of what stands up to this mark and with it.
fn up_to(text: &str, mark: &str) -> usize {
    text.find(mark).map_or(text.len(), |at| at + mark.len())
}

/// The length of a literal, or of a comment, at the beginning; whether it is a token.
fn literal(text: &str) -> Option<(usize, bool)> {
    if text.starts_with("//") {
        return Some((text.find('\n').unwrap_or(text.len()), false));
    }
    if text.starts_with("/*") {
        return Some((comment(text), false));
    }
    let prefix = text.len() - text.trim_start_matches(['b', 'c', 'r']).len();
    let (prefix, rest) = text.split_at(prefix.min(2));
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if prefix.contains('r') && rest[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = prefix.len() + hashes + 1;
        return Some((start + up_to(&text[start..], &end), true));
    }
    if matches!(prefix, "" | "b" | "c") && rest.starts_with('"') {
        return Some((prefix.len() + quoted(rest, '"'), true));
    }
    if matches!(prefix, "" | "b") && rest.starts_with('\'') {
        let mut chars = rest.chars().skip(1);
        let (first, second) = (chars.next(), chars.next());
        return Some(match (first, second) {
            (Some('\\'), _) | (_, Some('\'')) => (prefix.len() + quoted(rest, '\''), true),
            _ => (1 + word(&rest[1..]), false),
        });
    }
    None
}

/// The length of a block comment, which may have others in it.
fn comment(text: &str) -> usize {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let (open, close) = (text[at..].find("/*"), text[at..].find("*/"));
        match (open, close) {
            (_, None) => return text.len(),
            (Some(open), Some(close)) if open < close => (at, depth) = (at + open + 2, depth + 1),
            (_, Some(close)) => (at, depth) = (at + close + 2, depth - 1),
        }
    }
    at
}

/// The length of what stands between two of these marks, and they.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn tokens(text: &str) -> Vec<SourceToken<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (len, token) = match literal(rest) {
            Some((len, is_token)) => (len, is_token.then_some("\"")),
            None if first.is_whitespace() => (first.len_utf8(), None),
            None if rest.starts_with("::") => (2, Some("::")),
            None => {
                // A raw identifier is its word.
                let skipped = if rest.starts_with("r#") { 2 } else { 0 };
                let len = skipped + word(&rest[skipped..]).max(first.len_utf8() - skipped.min(1));
                (len, Some(&rest[skipped..len]))
            }
        };
        tokens.extend(token.map(|text| SourceToken { text, line }));
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    tokens
}

/// Reads the tokens of a file.
struct Reader<'a> {
    tokens: Vec<SourceToken<'a>>,
    at: usize,
    /// The braces that are open: the module of each, if it is one.
    open: Vec<Option<String>>,
    source: SourceFile,
    /// The module that is read now.
    module: Module,
}

impl SourceFile {
    /// The file of this path below `src`.
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let module = module_of(name);
        let mut reader = Reader {
            tokens: tokens(text),
            at: 0,
            open: Vec::new(),
            source: Self {
                module: module.clone(),
                ..Self::default()
            },
            module,
        };
        reader.read();
        reader.source
    }
}

impl Reader<'_> {
    /// The text of a token, counted from the present one.
    fn text(&self, more: usize) -> &str {
        self.tokens.get(self.at + more).map_or("", |it| it.text)
    }

    fn is_word(&self, more: usize) -> bool {
        self.tokens
            .get(self.at + more)
            .is_some_and(SourceToken::is_word)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |it| it.line)
    }

    fn read(&mut self) {
        let mut is_public = false;
        // The token before.
        let mut before = String::new();
        while self.at < self.tokens.len() {
            let text = self.text(0).to_owned();
            let was_public = std::mem::take(&mut is_public);
            let at = self.at;
            match text.as_str() {
                "#" if matches!(self.text(1), "[" | "!") => self.attribute(),
                "{" => {
                    self.open.push(None);
                    self.at += 1;
                }
                "}" => {
                    if self.open.pop().flatten().is_some() {
                        self.module.pop();
                    }
                    self.at += 1;
                }
                "pub" => {
                    is_public = true;
                    self.at += 1;
                    if self.text(0) == "(" {
                        self.skip_group();
                    }
                }
                "mod" if self.is_word(1) && matches!(self.text(2), ";" | "{") => self.open_module(),
                "use" if self.text(1) != "<" && before != "+" => self.declaration(was_public),
                _ if self.is_word(0) => self.name(&before),
                _ => self.at += 1,
            }
            before = match self.at {
                _ if text == "#" => String::new(),
                next => self.tokens[at.max(next - 1)].text.to_owned(),
            };
        }
    }

    /// Passes an attribute. What is for tests is passed with it.
    fn attribute(&mut self) {
        let first = self.at;
        self.at += 1 + usize::from(self.text(1) == "!");
        self.skip_group();
        let words: Vec<_> = self.tokens[first..self.at]
            .iter()
            .map(|it| it.text)
            .collect();
        let is_for_tests = |at: usize| words[at] == "test" && words[at - 2..at] != ["not", "("];
        if words.get(2) != Some(&"cfg") || !(4..words.len()).any(is_for_tests) {
            return;
        }
        while self.text(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        let mut words = self.tokens[self.at..].iter();
        if let Some([kind, name, end]) = words
            .position(|it| it.text == "mod" || matches!(it.text, "{" | ";" | "fn" | "use"))
            .and_then(|at| self.tokens[self.at + at..].first_chunk())
            && (kind.text, end.text) == ("mod", ";")
        {
            let mut module = self.module.clone();
            module.push(name.text.to_owned());
            self.source.tests.push(module);
        }
        self.skip_item();
    }

    /// Passes brackets with all that is in them.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Passes an item, a field or an arm.
    fn skip_item(&mut self) {
        loop {
            match self.text(0) {
                "" | "}" => return,
                ";" | "," => {
                    self.at += 1;
                    return;
                }
                "{" => return self.skip_group(),
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    fn open_module(&mut self) {
        let name = self.text(1).to_owned();
        if self.text(2) == "{" {
            self.module.push(name.clone());
            self.source.inline.push(self.module.clone());
            self.open.push(Some(name));
        }
        self.at += 3;
    }

    fn declaration(&mut self, is_public: bool) {
        self.at += 1;
        let mut found = Vec::new();
        self.tree(&mut Vec::new(), &mut found);
        let is_of_module = self.open.iter().all(Option::is_some);
        let module = &self.module;
        self.source
            .uses
            .extend(found.into_iter().map(|(path, alias, line)| UseName {
                module: module.clone(),
                path,
                alias,
                line,
                is_public,
                is_of_module,
            }));
    }

    /// A tree of names below `path`: `a::{b, c as d, self}`.
    fn tree(&mut self, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, String, usize)>) {
        let before = path.len();
        loop {
            let (line, text) = (self.line(), self.text(0).to_owned());
            self.at += 1;
            match text.as_str() {
                "::" => continue,
                "{" => {
                    while !matches!(self.text(0), "}" | "") {
                        match self.text(0) {
                            "," => self.at += 1,
                            _ => self.tree(path, found),
                        }
                    }
                    self.at += 1;
                }
                "*" => found.push((path.clone(), text, line)),
                _ => {
                    if text != "self" || path.is_empty() {
                        path.push(text);
                    }
                    if self.text(0) == "::" {
                        continue;
                    }
                    let mut alias = path.last().cloned().unwrap_or_default();
                    if self.text(0) == "as" {
                        alias = self.text(1).to_owned();
                        self.at += 2;
                    }
                    found.push((path.clone(), alias, line));
                }
            }
            path.truncate(before);
            return;
        }
    }

    /// A word: the name of an item, a path, or something else.
    fn name(&mut self, before: &str) {
        let is_of_module = self.open.iter().all(Option::is_some);
        let text = self.text(0).to_owned();
        let names = [
            "fn", "struct", "enum", "trait", "type", "const", "static", "union",
        ];
        if is_of_module && names.contains(&text.as_str()) && self.is_word(1) {
            let more = 1 + usize::from(self.text(1) == "mut");
            let item = (self.module.clone(), self.text(more).to_owned());
            self.source.items.push(item);
        }
        let defines = match text.as_str() {
            "struct" | "enum" | "trait" | "union" => !matches!(before, "::" | "."),
            "type" => is_of_module,
            _ => false,
        };
        if defines && self.is_word(1) {
            self.source.types.push(TypeName {
                module: self.module.clone(),
                name: self.text(1).to_owned(),
                line: self.line(),
            });
        }
        if is_of_module && text == "macro_rules" {
            let item = (self.module.clone(), self.text(2).to_owned());
            self.source.items.push(item);
        }
        let line = self.line();
        let mut path = vec![text];
        self.at += 1;
        if matches!(before, "::" | ".") {
            return;
        }
        while self.text(0) == "::" && self.is_word(1) {
            path.push(self.text(1).to_owned());
            self.at += 2;
        }
        self.source.paths.push(CodePath {
            module: self.module.clone(),
            path,
            line,
        });
    }
}
