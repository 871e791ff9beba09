//! Functions and methods with their whole signatures.

use serde_json::Value;

use super::rustdoc::{list, text};
use super::types::{Writer, header};

/// `fn path<T>(&self, other: T) -> U where T: V`, with what the implementation around it asks for.
pub(super) fn function(
    writer: &Writer<'_>,
    path: &str,
    function: &Value,
    around: &[String],
) -> String {
    let mut generics = writer.generics(&function["generics"]);
    generics.predicates.extend(around.iter().cloned());
    let signature = &function["sig"];
    let mut inputs: Vec<String> = list(&signature["inputs"])
        .map(|input| parameter(writer, text(&input[0]), &input[1]))
        .collect();
    if signature["is_c_variadic"] == true {
        inputs.push("...".into());
    }
    format!(
        "{}fn {path}{}({}){}{}",
        header(&function["header"]),
        generics.parameters(),
        inputs.join(", "),
        writer.output(&signature["output"]),
        generics.predicates(),
    )
}

fn parameter(writer: &Writer<'_>, name: &str, ty: &Value) -> String {
    if name != "self" {
        return format!("{name}: {}", writer.ty(ty));
    }
    let written = writer.ty(ty);
    match written.strip_suffix("Self") {
        Some("") => name.into(),
        Some(reference) if ty["borrowed_ref"]["type"]["generic"] == "Self" => {
            format!("{reference}{name}")
        }
        _ => format!("{name}: {written}"),
    }
}
