//! The modules of a crate, and where a path leads.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::source::{Module, SourceFile};

/// What a module has.
#[derive(Default)]
pub(super) struct ModuleNames {
    /// The path of its file.
    pub(super) file: String,
    pub(super) items: HashSet<String>,
    uses: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// All modules of a crate.
pub(super) struct Modules(HashMap<Module, ModuleNames>);

/// Where a path leads.
pub(super) struct PathTarget {
    pub(super) module: Module,
    /// The name there, unless it is the module itself.
    name: Option<String>,
}

/// Names that were looked at on the way, as they may lead in a circle.
type SeenPaths = HashSet<(Module, Vec<String>)>;

impl Modules {
    pub(super) fn of(files: &BTreeMap<String, SourceFile>) -> Self {
        let mut all: HashMap<Module, ModuleNames> = HashMap::new();
        for (file, source) in files {
            for module in std::iter::once(&source.module).chain(&source.inline) {
                all.entry(module.clone()).or_default().file = file.clone();
            }
        }
        for source in files.values() {
            for (module, item) in &source.items {
                all.entry(module.clone())
                    .or_default()
                    .items
                    .insert(item.clone());
            }
            for it in source.uses.iter().filter(|it| it.is_of_module) {
                let names = all.entry(it.module.clone()).or_default();
                match it.alias.as_str() {
                    "*" => names.globs.push(it.path.clone()),
                    alias => {
                        names.uses.insert(alias.to_owned(), it.path.clone());
                    }
                }
            }
        }
        Self(all)
    }

    pub(super) fn names(&self, module: &[String]) -> Option<&ModuleNames> {
        self.0.get(module)
    }

    /// Where a path in this module leads; `None` if that is another crate.
    pub(super) fn find(&self, module: &[String], path: &[String]) -> Option<PathTarget> {
        self.follow(module, path, &mut SeenPaths::new())
    }

    fn follow(
        &self,
        module: &[String],
        path: &[String],
        seen: &mut SeenPaths,
    ) -> Option<PathTarget> {
        if !seen.insert((module.to_vec(), path.to_vec())) {
            return None;
        }
        let (mut at, mut rest) = (module.to_vec(), path);
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while let [first, more @ ..] = rest
                    && first == "super"
                {
                    at.pop();
                    rest = more;
                }
            }
            first if self.0.contains_key(&child(&at, first)) => {}
            first => {
                let leads = self.0.get(module)?.uses.get(first)?;
                if leads.first().is_some_and(|it| it == first) {
                    return None;
                }
                let path = [leads, &path[1..]].concat();
                return self.follow(module, &path, seen);
            }
        }
        while let [first, more @ ..] = rest
            && self.0.contains_key(&child(&at, first))
        {
            at.push(first.clone());
            rest = more;
        }
        let Some((name, more)) = rest.split_first() else {
            return Some(PathTarget {
                module: at,
                name: None,
            });
        };
        let names = self.0.get(&at)?;
        if !names.items.contains(name) {
            if let Some(leads) = names.uses.get(name) {
                return self.follow(&at, &[leads, more].concat(), seen);
            }
            let through = names.globs.iter().find_map(|glob| {
                let path = [&glob[..], std::slice::from_ref(name)].concat();
                let found = self.follow(&at, &path, seen)?;
                let is_there = match &found.name {
                    Some(name) => self.0.get(&found.module)?.items.contains(name),
                    None => true,
                };
                is_there.then_some(found)
            });
            if through.is_some() {
                return through;
            }
        }
        Some(PathTarget {
            module: at,
            name: Some(name.clone()),
        })
    }
}

fn child(module: &[String], name: &str) -> Module {
    [module, &[name.to_owned()]].concat()
}
