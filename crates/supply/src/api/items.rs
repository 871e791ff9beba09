//! The lines of the listing: one for each public item.

use serde_json::Value;

use super::line::{ApiLine, Leak};
use super::rustdoc::{RustdocJson, inner, list, text};
use super::signature;
use super::types::Writer;

/// What every derived comparison implements besides, and nobody names.
const UNNAMED: &str = "std::marker::StructuralPartialEq";

impl RustdocJson<'_> {
    /// All lines, in the order of paths.
    pub(super) fn lines(&self) -> Vec<ApiLine> {
        let mut lines = Vec::new();
        for (id, paths) in self.visible() {
            let mut paths = paths.iter();
            let Some(path) = paths.next() else {
                continue;
            };
            self.item_lines(self.item(id), path, &mut lines);
            for other in paths {
                lines.push(line(other, format!("pub use {other} = {path}"), Vec::new()));
            }
        }
        for (path, id) in &self.foreign {
            let named = self.named(Some(*id), "");
            let leak = named.leaks_from.map(|of| Leak {
                name: named.path.clone(),
                of,
            });
            let text = format!("pub use {path} = {}", named.path);
            lines.push(line(path, text, leak.into_iter().collect()));
        }
        for implementation in self.implementations() {
            self.implementation(implementation, &mut lines);
        }
        lines.sort();
        lines.dedup();
        lines
    }

    fn item_lines(&self, item: &Value, path: &str, lines: &mut Vec<ApiLine>) {
        let writer = Writer::new(self);
        let (kind, inner) = inner(item);
        let generics = writer.generics(&inner["generics"]);
        let (parameters, predicates) = (generics.parameters(), generics.predicates());
        let declared = format!("{path}{parameters}");
        let written = match kind {
            "module" => format!("pub mod {path}"),
            "struct" => {
                let shape = self.shape(&writer, path, &inner["kind"], lines);
                format!("pub struct {declared}{shape}{predicates}")
            }
            "union" => {
                self.fields(path, &inner["fields"], lines);
                format!("pub union {declared}{predicates}")
            }
            "enum" => {
                for variant in self.items(&inner["variants"]) {
                    let path = format!("{path}::{}", text(&variant["name"]));
                    self.item_lines(variant, &path, lines);
                }
                format!("pub enum {declared}{predicates}")
            }
            "variant" => {
                let shape = self.shape(&writer, path, &inner["kind"], lines);
                let value = inner["discriminant"]["value"].as_str();
                let value = value.map(|value| format!(" = {value}"));
                format!("pub {path}{shape}{}", value.unwrap_or_default())
            }
            "trait" => {
                self.trait_items(path, inner, lines);
                let word = if inner["is_unsafe"] == true {
                    "unsafe "
                } else {
                    ""
                };
                let bounds = with(": ", &writer.bounds(&inner["bounds"]));
                format!("pub {word}trait {declared}{bounds}{predicates}")
            }
            "function" => format!("pub {}", signature::function(&writer, path, inner, &[])),
            "type_alias" => {
                let ty = writer.ty(&inner["type"]);
                format!("pub type {declared}{predicates} = {ty}")
            }
            "constant" => {
                let value = inner["const"]["value"]
                    .as_str()
                    .or(inner["const"]["expr"].as_str());
                let ty = writer.ty(&inner["type"]);
                format!("pub const {path}: {ty} = {}", value.unwrap_or("_"))
            }
            "static" => format!("pub static {path}: {}", writer.ty(&inner["type"])),
            "macro" | "proc_macro" => format!("pub macro {path}!"),
            other => format!("pub {other} {path}"),
        };
        let text = attributes(item) + &written;
        lines.push(line(path, text, writer.leaks()));
    }

    /// The fields of a tuple in parentheses; those that have names get lines of their own.
    fn shape(
        &self,
        writer: &Writer<'_>,
        path: &str,
        kind: &Value,
        lines: &mut Vec<ApiLine>,
    ) -> String {
        if let Some(fields) = kind.get("tuple") {
            if list(fields).all(Value::is_null) && list(fields).count() > 0 {
                return " { .. }".into();
            }
            let fields = list(fields).map(|id| {
                let field = id.as_u64().map(|id| self.item(id));
                let field = field.map(|field| writer.ty(&field["inner"]["struct_field"]));
                field.unwrap_or_else(|| "_".into())
            });
            return format!("({})", fields.collect::<Vec<_>>().join(", "));
        }
        let Some(named) = kind.get("plain").or(kind.get("struct")) else {
            return String::new();
        };
        self.fields(path, &named["fields"], lines);
        if named["has_stripped_fields"] == true {
            " { .. }".into()
        } else {
            " {}".into()
        }
    }

    fn fields(&self, path: &str, fields: &Value, lines: &mut Vec<ApiLine>) {
        for id in list(fields).filter_map(Value::as_u64) {
            let writer = Writer::new(self);
            let field = self.item(id);
            let path = format!("{path}::{}", text(&field["name"]));
            let ty = writer.ty(&field["inner"]["struct_field"]);
            let text = format!("{}pub {path}: {ty}", attributes(field));
            lines.push(line(&path, text, writer.leaks()));
        }
    }

    /// What a trait asks for, which ends in `;`, and what it has itself.
    fn trait_items(&self, path: &str, of: &Value, lines: &mut Vec<ApiLine>) {
        for id in list(&of["items"]).filter_map(Value::as_u64) {
            let writer = Writer::new(self);
            let item = self.item(id);
            let path = format!("{path}::{}", text(&item["name"]));
            let (kind, inner) = inner(item);
            let written = match kind {
                "function" => {
                    let has_body = inner["has_body"] == true;
                    let end = if has_body { " { .. }" } else { ";" };
                    signature::function(&writer, &path, inner, &[]) + end
                }
                _ => associated(&writer, kind, &path, inner) + ";",
            };
            let text = format!("{}pub {written}", attributes(item));
            lines.push(line(&path, text, writer.leaks()));
        }
    }

    fn implementation(&self, item: &Value, lines: &mut Vec<ApiLine>) {
        let (_, inner) = inner(item);
        let of = &inner["for"]["resolved_path"];
        let is_hidden = |path: &Value| {
            let named = self.named(path["id"].as_u64(), "");
            named.leaks_from == Some(None)
        };
        if !inner["blanket_impl"].is_null() || is_hidden(of) || is_hidden(&inner["trait"]) {
            return;
        }
        let writer = Writer::new(self);
        let generics = writer.generics(&inner["generics"]);
        let written = writer.ty(&inner["for"]);
        if inner["trait"].is_null() {
            self.inherent(&written, inner, lines);
            return;
        }
        let implemented = writer.path(&inner["trait"]);
        let is_negative = inner["is_negative"] == true;
        let is_automatic = inner["is_synthetic"] == true;
        // That a type is not Send is a part of its API, and written nowhere.
        let is_told = !is_automatic || is_negative && ["Send", "Sync"].contains(&&*implemented);
        if implemented == UNNAMED || !is_told {
            return;
        }
        let id = |path: &Value| path["id"].as_u64();
        let own = id(of).and_then(|id| self.path_of(id));
        let own = own.or(id(&inner["trait"]).and_then(|id| self.path_of(id)));
        let constants = list(&inner["items"])
            .filter_map(Value::as_u64)
            .map(|id| self.item(id));
        let mut body = Vec::new();
        for constant in constants {
            let (kind, inner) = super::rustdoc::inner(constant);
            if kind != "function" {
                body.push(associated(&writer, kind, text(&constant["name"]), inner));
            }
        }
        let word = if inner["is_unsafe"] == true {
            "unsafe "
        } else {
            ""
        };
        let text = format!(
            "{word}impl{} {}{implemented} for {written}{}{}",
            generics.parameters(),
            if is_negative { "!" } else { "" },
            generics.predicates(),
            if body.is_empty() {
                String::new()
            } else {
                format!(" {{ {} }}", body.join("; "))
            },
        );
        let path = own.unwrap_or(&written).to_owned();
        lines.push(ApiLine {
            is_implementation: true,
            ..line(&path, text, writer.leaks())
        });
    }

    /// Methods and constants of a type, each with what the implementation around it asks for.
    fn inherent(&self, of: &str, around: &Value, lines: &mut Vec<ApiLine>) {
        for id in list(&around["items"]).filter_map(Value::as_u64) {
            let writer = Writer::new(self);
            let generics = writer.generics(&around["generics"]);
            let bounds = generics.parameters.into_iter();
            let mut asked: Vec<String> = bounds.filter(|bound| bound.contains(':')).collect();
            asked.extend(generics.predicates);
            let item = self.item(id);
            if item["visibility"] != "public" {
                continue;
            }
            let (kind, inner) = inner(item);
            let path = format!("{of}::{}", text(&item["name"]));
            let written = match kind {
                "function" => signature::function(&writer, &path, inner, &asked),
                _ => associated(&writer, kind, &path, inner),
            };
            let text = format!("{}pub {written}", attributes(item));
            // Its type may leak as well, which the line of the type says.
            lines.push(line(&without_arguments(&path), text, writer.leaks()));
        }
    }
}

/// `type path: Bounds = T` or `const path: T = value`.
fn associated(writer: &Writer<'_>, kind: &str, path: &str, inner: &Value) -> String {
    if kind == "assoc_const" {
        let value = inner["value"].as_str();
        let ty = writer.ty(&inner["type"]);
        return format!(
            "const {path}: {ty}{}",
            with(" = ", value.unwrap_or_default())
        );
    }
    let generics = writer.generics(&inner["generics"]);
    let bounds = with(": ", &writer.bounds(&inner["bounds"]));
    let default = match &inner["type"] {
        Value::Null => String::new(),
        ty => format!(" = {}", writer.ty(ty)),
    };
    format!(
        "type {path}{}{bounds}{default}{}",
        generics.parameters(),
        generics.predicates()
    )
}

/// The text behind its sign, or nothing.
fn with(sign: &str, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("{sign}{text}")
}

/// The attributes that users depend on.
fn attributes(item: &Value) -> String {
    let mut written = String::new();
    if is_non_exhaustive(item) {
        written += "#[non_exhaustive] ";
    }
    if !item["deprecation"].is_null() {
        written += "#[deprecated] ";
    }
    written
}

pub(super) fn is_non_exhaustive(item: &Value) -> bool {
    list(&item["attrs"]).any(|attribute| attribute == "non_exhaustive")
}

/// `adit::Frame<'a>::new` as `adit::Frame::new`.
fn without_arguments(path: &str) -> String {
    let mut depth = 0;
    let kept = path.chars().filter(|letter| {
        depth += i32::from(*letter == '<');
        let is_kept = depth == 0;
        depth -= i32::from(*letter == '>');
        is_kept
    });
    kept.collect()
}

fn line(path: &str, text: String, leaks: Vec<Leak>) -> ApiLine {
    ApiLine {
        path: path.to_owned(),
        is_implementation: false,
        text,
        leaks,
    }
}
