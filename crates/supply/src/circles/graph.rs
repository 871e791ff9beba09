//! Which file imports which, and the circles among them.

use std::collections::{BTreeMap, HashMap};

use super::names::Modules;
use super::source::SourceFile;

/// An import: the line, and what it names.
type Edge = (usize, String);

/// The imports of each file, by the file that is imported.
pub(super) struct Graph<'a>(BTreeMap<&'a str, BTreeMap<String, Edge>>);

impl<'a> Graph<'a> {
    /// Of these files of a crate.
    pub(super) fn of(files: &'a BTreeMap<String, SourceFile>) -> Self {
        let modules = Modules::of(files);
        let tests: Vec<_> = files.values().flat_map(|it| &it.tests).collect();
        let is_test = |it: &SourceFile| tests.iter().any(|test| it.module.starts_with(test));
        let of_file = |(name, source): (&'a String, &SourceFile)| {
            (name.as_str(), imports(name, source, &modules))
        };
        let product = files.iter().filter(|(_, source)| !is_test(source));
        Self(product.map(of_file).collect())
    }

    /// The circles: the files of each, sorted.
    pub(super) fn circles(&self) -> Vec<Vec<&'a str>> {
        let mut search = CircleSearch {
            graph: self,
            numbers: HashMap::new(),
            lows: HashMap::new(),
            stack: Vec::new(),
            found: Vec::new(),
        };
        for file in self.0.keys() {
            if !search.numbers.contains_key(file) {
                search.visit(file);
            }
        }
        search.found
    }

    /// Names the files of a circle, and the imports that make it.
    pub(super) fn describe(&self, base: &str, circle: &[&str]) -> String {
        let mut text = format!("{base}: {} files import each other:", circle.len());
        for file in circle {
            for (other, (line, path)) in self.0.get(file).into_iter().flatten() {
                if circle.contains(&other.as_str()) {
                    text += &format!("\n  {base}/{file}:{line} imports {other}: {path}");
                }
            }
        }
        text
    }
}

/// What a file imports.
fn imports(name: &str, source: &SourceFile, modules: &Modules) -> BTreeMap<String, Edge> {
    let mut edges = BTreeMap::new();
    // What it only hands on, by the name that it has here.
    let mut handed_on = HashMap::new();
    let mut import = |file: &str, line, path: String| {
        if file != name {
            edges.entry(file.to_owned()).or_insert((line, path));
        }
    };
    for it in &source.uses {
        let Some(found) = modules.find(&it.module, &it.path) else {
            continue;
        };
        let Some(names) = modules.names(&found.module) else {
            continue;
        };
        if it.is_public && found.module.starts_with(&source.module) {
            let all = names.items.iter().filter(|_| it.alias == "*").cloned();
            for alias in all.chain([it.alias.clone()]) {
                handed_on.insert((it.module.clone(), alias), names.file.clone());
            }
        } else {
            import(&names.file, it.line, it.path.join("::"));
        }
    }
    for it in &source.paths {
        let [first, more @ ..] = &it.path[..] else {
            continue;
        };
        if let Some(file) = handed_on.get(&(it.module.clone(), first.clone())) {
            import(file, it.line, it.path.join("::"));
        }
        let found = (!more.is_empty()).then(|| modules.find(&it.module, &it.path));
        if let Some(names) = found.flatten().and_then(|it| modules.names(&it.module)) {
            import(&names.file, it.line, it.path.join("::"));
        }
    }
    edges
}

/// Tarjan's search for strongly connected components.
struct CircleSearch<'g, 'a> {
    graph: &'g Graph<'a>,
    numbers: HashMap<&'a str, usize>,
    /// The least number that each file on the stack leads to.
    lows: HashMap<&'a str, usize>,
    stack: Vec<&'a str>,
    found: Vec<Vec<&'a str>>,
}

impl<'a> CircleSearch<'_, 'a> {
    /// Returns the least number that the file leads to.
    fn visit(&mut self, file: &'a str) -> usize {
        let number = self.numbers.len();
        self.numbers.insert(file, number);
        self.lows.insert(file, number);
        self.stack.push(file);
        let graph = self.graph;
        let imports = graph.0.get(file).into_iter().flatten();
        let mut low = number;
        for other in imports.filter_map(|(other, _)| graph.0.get_key_value(other.as_str())) {
            let other = *other.0;
            let leads = match self.numbers.get(other) {
                None => self.visit(other),
                Some(number) if self.lows.contains_key(other) => *number,
                Some(_) => continue,
            };
            low = low.min(leads);
        }
        if low == number {
            let from = self.stack.iter().position(|it| *it == file);
            let mut circle = self.stack.split_off(from.unwrap_or_default());
            for file in &circle {
                self.lows.remove(file);
            }
            circle.sort_unstable();
            if circle.len() > 1 {
                self.found.push(circle);
            }
        }
        low
    }
}
