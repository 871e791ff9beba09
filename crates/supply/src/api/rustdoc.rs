//! rustdoc's JSON, and where each item is visible.

use std::collections::BTreeMap;

use serde_json::Value;

/// The format of rustdoc's JSON that this was written for: that of Rust 1.95. It is not stable.
pub(super) const FORMAT: u64 = 57;

/// Crates that every program has.
const STANDARD: [&str; 3] = ["core", "alloc", "std"];

/// What stands without its path: std's names that need no import.
const PRELUDE: [&str; 28] = [
    "AsMut",
    "AsRef",
    "Box",
    "Clone",
    "Copy",
    "Default",
    "Drop",
    "Eq",
    "Extend",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "Into",
    "IntoIterator",
    "Iterator",
    "Option",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "Send",
    "Sized",
    "String",
    "Sync",
    "ToString",
    "TryFrom",
    "TryInto",
    "Vec",
];

pub(super) struct RustdocJson<'a> {
    json: &'a Value,
    /// Items of this crate that users can name: their paths, the shortest first.
    visible: BTreeMap<u64, Vec<String>>,
    /// Re-exports of items of other crates: path, id.
    pub(super) foreign: Vec<(String, u64)>,
}

/// What an id in a signature stands for.
pub(super) struct ItemName {
    pub(super) path: String,
    /// Whose it is, if neither std's nor visible in this crate: a crate, or `None` for this one.
    pub(super) leaks_from: Option<Option<String>>,
}

/// The kind of an item, such as `struct`, and what it has.
pub(super) fn inner(item: &Value) -> (&str, &Value) {
    let first = item["inner"].as_object().and_then(|map| map.iter().next());
    first.map_or(("", &Value::Null), |(kind, inner)| (kind.as_str(), inner))
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl<'a> RustdocJson<'a> {
    pub(super) fn new(json: &'a Value) -> Result<Self, String> {
        let format = json["format_version"].as_u64();
        if format != Some(FORMAT) {
            let format = format.map_or("none".into(), |format| format.to_string());
            return Err(format!(
                "rustdoc's JSON has format {format}, and adit-supply knows {FORMAT}: use Rust 1.95, or see \
                 what changed in it and change FORMAT in crates/supply/src/api/rustdoc.rs"
            ));
        }
        let mut document = Self {
            json,
            visible: BTreeMap::new(),
            foreign: Vec::new(),
        };
        if let Some(root) = json["root"].as_u64() {
            let name = text(&document.item(root)["name"]).to_owned();
            document.walk(root, &name, &mut Vec::new());
        }
        for paths in document.visible.values_mut() {
            paths.sort_by_key(|path| (path.matches("::").count(), path.clone()));
        }
        document.foreign.sort();
        Ok(document)
    }

    pub(super) fn item(&self, id: u64) -> &'a Value {
        &self.json["index"][id.to_string()]
    }

    /// The items of these ids.
    pub(super) fn items(&self, ids: &'a Value) -> impl Iterator<Item = &'a Value> {
        let ids = list(ids).filter_map(Value::as_u64);
        ids.map(|id| &self.json["index"][id.to_string()])
    }

    /// All implementations that this crate has.
    pub(super) fn implementations(&self) -> impl Iterator<Item = &'a Value> {
        let items = self.json["index"].as_object().into_iter().flatten();
        items
            .map(|(_, item)| item)
            .filter(|item| item["crate_id"] == 0 && inner(item).0 == "impl")
    }

    /// Items with their paths, those of modules and enums that are visible at several places too.
    pub(super) fn visible(&self) -> impl Iterator<Item = (u64, &[String])> {
        self.visible.iter().map(|(id, paths)| (*id, &paths[..]))
    }

    /// Where the item is visible: the shortest of its paths.
    pub(super) fn path_of(&self, id: u64) -> Option<&str> {
        Some(self.visible.get(&id)?.first()?)
    }

    /// Notes what the module (or the enum of a glob) shows at this path.
    fn walk(&mut self, id: u64, path: &str, within: &mut Vec<u64>) {
        if within.contains(&id) {
            return;
        }
        within.push(id);
        self.note(id, path);
        let (_, module) = inner(self.item(id));
        for child in list(&module["items"]).filter_map(Value::as_u64) {
            let item = self.item(child);
            if item["visibility"] != "public" && item["visibility"] != "default" {
                continue;
            }
            match inner(item) {
                ("use", import) => self.import(import, path, within),
                ("impl", _) | ("", _) => {}
                ("module", _) => {
                    let path = format!("{path}::{}", text(&item["name"]));
                    self.walk(child, &path, within);
                }
                _ => self.note(child, &format!("{path}::{}", text(&item["name"]))),
            }
        }
        within.pop();
    }

    fn import(&mut self, import: &Value, path: &str, within: &mut Vec<u64>) {
        let named = format!("{path}::{}", text(&import["name"]));
        let Some(id) = import["id"].as_u64() else {
            return;
        };
        let item = self.item(id);
        let is_glob = import["is_glob"] == true;
        match inner(item) {
            ("", _) => self
                .foreign
                .push((if is_glob { format!("{path}::*") } else { named }, id)),
            ("module", _) if is_glob => self.walk(id, path, within),
            ("enum", variants) if is_glob => {
                for variant in list(&variants["variants"]).filter_map(Value::as_u64) {
                    let name = text(&self.item(variant)["name"]);
                    self.note(variant, &format!("{path}::{name}"));
                }
            }
            ("module", _) => self.walk(id, &named, within),
            ("use", next) => self.import(next, path, within),
            _ => self.note(id, &named),
        }
    }

    fn note(&mut self, id: u64, path: &str) {
        let paths = self.visible.entry(id).or_default();
        if !paths.iter().any(|known| known == path) {
            paths.push(path.to_owned());
        }
    }

    /// How a type or trait is written, which the source may write in many ways.
    pub(super) fn named(&self, id: Option<u64>, written: &str) -> ItemName {
        let Some(id) = id else {
            return ItemName {
                path: written.to_owned(),
                leaks_from: None,
            };
        };
        if let Some(path) = self.path_of(id) {
            return ItemName {
                path: path.to_owned(),
                leaks_from: None,
            };
        }
        let summary = &self.json["paths"][id.to_string()];
        let segments: Vec<&str> = list(&summary["path"]).map(text).collect();
        let of = &self.json["external_crates"][summary["crate_id"].to_string()]["name"];
        if of.as_str().is_some_and(|of| STANDARD.contains(&of)) {
            return ItemName {
                path: standard(&segments),
                leaks_from: None,
            };
        }
        let is_known = !segments.is_empty();
        ItemName {
            path: if is_known {
                segments.join("::")
            } else {
                written.to_owned()
            },
            leaks_from: Some(of.as_str().map(str::to_owned)),
        }
    }
}

/// How an item of the standard library is written: the names of the prelude alone, others with the
/// module at the top. What is between them moves from release to release.
fn standard(segments: &[&str]) -> String {
    let name = segments.last().copied().unwrap_or_default();
    match segments {
        [_, "result", "Result"] => name.to_owned(),
        _ if PRELUDE.contains(&name) => name.to_owned(),
        [_, "os", system, ..] => format!("std::os::{system}::{name}"),
        [_, module, _, ..] => format!("std::{module}::{name}"),
        _ => format!("std::{name}"),
    }
}
