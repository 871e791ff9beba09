//! Types, bounds and generics as Rust writes them.

use std::cell::RefCell;

use serde_json::Value;

use super::line::Leak;
use super::rustdoc::{RustdocJson, list, text};

/// Writes types, and notes what they should not have.
pub(super) struct Writer<'a> {
    document: &'a RustdocJson<'a>,
    leaks: RefCell<Vec<Leak>>,
}

/// The parameters of a type or function as `<...>`, and its `where`, if any.
pub(super) struct Generics {
    pub(super) parameters: Vec<String>,
    pub(super) predicates: Vec<String>,
}

impl Generics {
    pub(super) fn parameters(&self) -> String {
        angle(&self.parameters)
    }

    pub(super) fn predicates(&self) -> String {
        if self.predicates.is_empty() {
            return String::new();
        }
        format!(" where {}", self.predicates.join(", "))
    }
}

fn angle(list: &[String]) -> String {
    if list.is_empty() {
        return String::new();
    }
    format!("<{}>", list.join(", "))
}

/// `true` where the type has to stand in parentheses behind `&`.
fn has_plus(kind: &str, inner: &Value) -> bool {
    match kind {
        "impl_trait" => list(inner).count() > 1,
        "dyn_trait" => list(&inner["traits"]).count() > 1 || !inner["lifetime"].is_null(),
        _ => false,
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(document: &'a RustdocJson<'a>) -> Self {
        Self {
            document,
            leaks: RefCell::default(),
        }
    }

    /// What was noted, each once.
    pub(super) fn leaks(&self) -> Vec<Leak> {
        let mut leaks = self.leaks.take();
        leaks.sort();
        leaks.dedup();
        leaks
    }

    pub(super) fn ty(&self, ty: &Value) -> String {
        let Some((kind, inner)) = ty.as_object().and_then(|map| map.iter().next()) else {
            return "_".into();
        };
        match kind.as_str() {
            "primitive" | "generic" if inner == "never" => "!".into(),
            "primitive" | "generic" => text(inner).to_owned(),
            "resolved_path" => self.path(inner),
            "borrowed_ref" => {
                let lifetime = inner["lifetime"].as_str().map(|name| format!("{name} "));
                let lifetime = lifetime.unwrap_or_default();
                let is_mutable = if inner["is_mutable"] == true {
                    "mut "
                } else {
                    ""
                };
                format!("&{lifetime}{is_mutable}{}", self.behind(&inner["type"]))
            }
            "raw_pointer" => {
                let is_mutable = if inner["is_mutable"] == true {
                    "mut"
                } else {
                    "const"
                };
                format!("*{is_mutable} {}", self.behind(&inner["type"]))
            }
            "tuple" => match &self.types(inner)[..] {
                [one] => format!("({one},)"),
                several => format!("({})", several.join(", ")),
            },
            "slice" => format!("[{}]", self.ty(inner)),
            "array" => format!("[{}; {}]", self.ty(&inner["type"]), text(&inner["len"])),
            "impl_trait" => format!("impl {}", self.bounds(inner)),
            "dyn_trait" => self.dyn_trait(inner),
            "function_pointer" => self.function_pointer(inner),
            "qualified_path" => self.qualified(inner),
            "pat" => self.ty(&inner["type"]),
            _ => "_".into(),
        }
    }

    pub(super) fn types(&self, types: &Value) -> Vec<String> {
        list(types).map(|ty| self.ty(ty)).collect()
    }

    /// A type behind `&` or `*`.
    fn behind(&self, ty: &Value) -> String {
        let first = ty.as_object().and_then(|map| map.iter().next());
        if first.is_some_and(|(kind, inner)| has_plus(kind, inner)) {
            return format!("({})", self.ty(ty));
        }
        self.ty(ty)
    }

    /// A type or trait by its path, with its arguments.
    pub(super) fn path(&self, path: &Value) -> String {
        let named = self
            .document
            .named(path["id"].as_u64(), text(&path["path"]));
        if let Some(of) = named.leaks_from {
            let name = named.path.clone();
            self.leaks.borrow_mut().push(Leak { name, of });
        }
        named.path + &self.arguments(&path["args"])
    }

    fn arguments(&self, arguments: &Value) -> String {
        if let Some(call) = arguments.get("parenthesized") {
            let inputs = self.types(&call["inputs"]).join(", ");
            return format!("({inputs}){}", self.output(&call["output"]));
        }
        let angled = &arguments["angle_bracketed"];
        let mut parts: Vec<String> = list(&angled["args"])
            .map(|argument| self.argument(argument))
            .collect();
        for constraint in list(&angled["constraints"]) {
            let name = text(&constraint["name"]).to_owned() + &self.arguments(&constraint["args"]);
            let binding = &constraint["binding"];
            parts.push(match binding.get("equality") {
                Some(term) => format!("{name} = {}", self.term(term)),
                None => format!("{name}: {}", self.bounds(&binding["constraint"])),
            });
        }
        angle(&parts)
    }

    fn argument(&self, argument: &Value) -> String {
        if let Some(lifetime) = argument.get("lifetime") {
            return text(lifetime).to_owned();
        }
        if let Some(constant) = argument.get("const") {
            return text(&constant["expr"]).to_owned();
        }
        self.ty(&argument["type"])
    }

    fn term(&self, term: &Value) -> String {
        match term.get("type") {
            Some(ty) => self.ty(ty),
            None => text(&term["constant"]["expr"]).to_owned(),
        }
    }

    /// ` -> T`, or nothing.
    pub(super) fn output(&self, output: &Value) -> String {
        if output.is_null() {
            return String::new();
        }
        format!(" -> {}", self.ty(output))
    }

    fn dyn_trait(&self, inner: &Value) -> String {
        let traits = list(&inner["traits"]);
        let mut parts: Vec<String> = traits
            .map(|bound| self.higher_ranked(&bound["generic_params"]) + &self.path(&bound["trait"]))
            .collect();
        parts.extend(inner["lifetime"].as_str().map(str::to_owned));
        format!("dyn {}", parts.join(" + "))
    }

    fn function_pointer(&self, inner: &Value) -> String {
        let inputs = list(&inner["sig"]["inputs"]).map(|input| self.ty(&input[1]));
        let inputs = inputs.collect::<Vec<_>>().join(", ");
        let output = self.output(&inner["sig"]["output"]);
        let ranked = self.higher_ranked(&inner["generic_params"]);
        format!("{ranked}{}fn({inputs}){output}", header(&inner["header"]))
    }

    /// `<T as Trait>::Item`, or `T::Item` where the trait goes without saying.
    fn qualified(&self, inner: &Value) -> String {
        let name = text(&inner["name"]).to_owned() + &self.arguments(&inner["args"]);
        let of = self.ty(&inner["self_type"]);
        let within = &inner["trait"];
        if within.is_null() || text(&within["path"]).is_empty() || of == "Self" {
            return format!("{of}::{name}");
        }
        format!("<{of} as {}>::{name}", self.path(within))
    }

    /// `for<'a> `, or nothing.
    fn higher_ranked(&self, parameters: &Value) -> String {
        let parameters: Vec<String> = list(parameters)
            .map(|parameter| self.parameter(parameter))
            .collect();
        if parameters.is_empty() {
            return String::new();
        }
        format!("for{} ", angle(&parameters))
    }

    pub(super) fn bounds(&self, bounds: &Value) -> String {
        let bounds = list(bounds).map(|bound| {
            if let Some(lifetime) = bound.get("outlives") {
                return text(lifetime).to_owned();
            }
            if let Some(captured) = bound.get("use") {
                let captured = list(captured).map(|one| match one.get("lifetime") {
                    Some(lifetime) => text(lifetime).to_owned(),
                    None => text(&one["param"]).to_owned(),
                });
                return format!("use{}", angle(&captured.collect::<Vec<_>>()));
            }
            let bound = &bound["trait_bound"];
            let maybe = if bound["modifier"] == "maybe" {
                "?"
            } else {
                ""
            };
            let ranked = self.higher_ranked(&bound["generic_params"]);
            format!("{ranked}{maybe}{}", self.path(&bound["trait"]))
        });
        bounds.collect::<Vec<_>>().join(" + ")
    }

    /// The generics of an item. Parameters that stand for `impl Trait` are written there alone.
    pub(super) fn generics(&self, generics: &Value) -> Generics {
        let parameters =
            list(&generics["params"]).filter(|one| one["kind"]["type"]["is_synthetic"] != true);
        let predicates = list(&generics["where_predicates"]);
        Generics {
            parameters: parameters.map(|one| self.parameter(one)).collect(),
            predicates: predicates.map(|one| self.predicate(one)).collect(),
        }
    }

    fn parameter(&self, parameter: &Value) -> String {
        let name = text(&parameter["name"]);
        let kind = &parameter["kind"];
        if let Some(lifetime) = kind.get("lifetime") {
            let outlives: Vec<&str> = list(&lifetime["outlives"]).map(text).collect();
            return if outlives.is_empty() {
                name.to_owned()
            } else {
                format!("{name}: {}", outlives.join(" + "))
            };
        }
        if let Some(constant) = kind.get("const") {
            let default = constant["default"].as_str();
            let default = default.map(|value| format!(" = {value}"));
            let ty = self.ty(&constant["type"]);
            return format!("const {name}: {ty}{}", default.unwrap_or_default());
        }
        let ty = &kind["type"];
        let mut written = name.to_owned();
        let bounds = self.bounds(&ty["bounds"]);
        if !bounds.is_empty() {
            written += &format!(": {bounds}");
        }
        if !ty["default"].is_null() {
            written += &format!(" = {}", self.ty(&ty["default"]));
        }
        written
    }

    fn predicate(&self, predicate: &Value) -> String {
        if let Some(bound) = predicate.get("bound_predicate") {
            let ranked = self.higher_ranked(&bound["generic_params"]);
            let (ty, bounds) = (self.ty(&bound["type"]), self.bounds(&bound["bounds"]));
            return format!("{ranked}{ty}: {bounds}");
        }
        if let Some(lifetime) = predicate.get("lifetime_predicate") {
            let outlives: Vec<&str> = list(&lifetime["outlives"]).map(text).collect();
            return format!("{}: {}", text(&lifetime["lifetime"]), outlives.join(" + "));
        }
        let equal = &predicate["eq_predicate"];
        format!("{} = {}", self.ty(&equal["lhs"]), self.term(&equal["rhs"]))
    }
}

/// What stands before `fn`.
pub(super) fn header(header: &Value) -> String {
    let mut words = String::new();
    for (key, word) in [
        ("is_const", "const "),
        ("is_async", "async "),
        ("is_unsafe", "unsafe "),
    ] {
        if header[key] == true {
            words += word;
        }
    }
    let abi = &header["abi"];
    if abi.is_null() || abi == "Rust" {
        return words;
    }
    let named = abi
        .as_object()
        .and_then(|map| map.keys().next())
        .map(String::as_str);
    let named = named.unwrap_or_else(|| text(abi));
    format!("{words}extern \"{named}\" ")
}
