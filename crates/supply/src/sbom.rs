//! The bill of materials as CycloneDX 1.5 (<https://cyclonedx.org/docs/1.5/json/>).

use serde_json::{Value, json};

use crate::metadata::{Metadata, Package};

/// The document for the program that `metadata` is of. It has no date and no random number, so that
/// it is the same for the same Cargo.lock.
pub(crate) fn document(metadata: &Metadata) -> Value {
    let program = metadata
        .packages
        .iter()
        .find(|package| package.name == "adit-cli");
    let parts = metadata
        .packages
        .iter()
        .filter(|package| package.name != "adit-cli");
    let depends = metadata.packages.iter().map(|package| {
        let on: Vec<String> = package.built_with.iter().map(|id| purl(id)).collect();
        json!({ "ref": purl(&package.id()), "dependsOn": on })
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": program.map(|program| component(program, "application")) },
        "components": parts.map(|part| component(part, "library")).collect::<Vec<_>>(),
        "dependencies": depends.collect::<Vec<_>>(),
    })
}

fn component(package: &Package, kind: &str) -> Value {
    let purl = purl(&package.id());
    json!({
        "type": kind,
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "licenses": [{ "expression": package.license.replace('/', " OR ") }],
        "purl": purl,
    })
}

/// <https://github.com/package-url/purl-spec>
fn purl(id: &str) -> String {
    format!("pkg:cargo/{id}")
}
