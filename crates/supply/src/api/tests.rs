use serde_json::{Value, json};

use super::line::ApiLine;
use super::rules::{self, CLOSED, Exception};
use super::rustdoc::{FORMAT, RustdocJson};
use super::types::Writer;
use super::{differences, text};

/// An item of the crate.
fn item(id: u64, name: &str, inner: Value) -> Value {
    json!({
        "id": id, "crate_id": 0, "name": name, "visibility": "public", "attrs": [],
        "deprecation": null, "inner": inner,
    })
}

fn path(name: &str, id: u64) -> Value {
    json!({ "resolved_path": { "path": name, "id": id, "args": null } })
}

fn of(name: &str, id: u64, argument: Value) -> Value {
    let arguments = json!({ "args": [{ "type": argument }], "constraints": [] });
    json!({ "resolved_path": { "path": name, "id": id, "args": { "angle_bracketed": arguments } } })
}

fn generics(parameters: Value) -> Value {
    json!({ "params": parameters, "where_predicates": [] })
}

fn lifetime() -> Value {
    json!([{ "name": "'a", "kind": { "lifetime": { "outlives": [] } } }])
}

fn function(generics: Value, inputs: Value, output: Value) -> Value {
    json!({ "function": {
        "sig": { "inputs": inputs, "output": output, "is_c_variadic": false },
        "generics": generics, "has_body": false,
        "header": { "is_const": false, "is_unsafe": false, "is_async": false, "abi": "Rust" },
    } })
}

fn implementation(of: Value, implemented: Value, generics: Value, items: Value) -> Value {
    json!({ "impl": {
        "is_unsafe": false, "generics": generics, "trait": implemented, "for": of, "items": items,
        "is_negative": false, "is_synthetic": false, "blanket_impl": null,
    } })
}

fn re_export(name: &str, id: u64) -> Value {
    json!({ "use": { "source": name, "name": name, "id": id, "is_glob": false } })
}

/// A crate with a re-exported struct, an enum, a trait and a function. Ids from 100 are of other crates.
fn library() -> Value {
    let none = || generics(json!([]));
    let borrowed = json!({ "borrowed_ref":
        { "lifetime": null, "is_mutable": true, "type": { "generic": "Self" } } });
    let word = json!({ "borrowed_ref":
        { "lifetime": "'a", "is_mutable": false, "type": { "primitive": "str" } } });
    let frame = json!({ "resolved_path": { "path": "Frame", "id": 2, "args": { "angle_bracketed":
        { "args": [{ "lifetime": "'a" }], "constraints": [] } } } });
    let bound = json!([{ "trait_bound":
        { "trait": { "path": "Into", "id": 103, "args": null }, "generic_params": [], "modifier": "none" } }]);
    let structure = json!({ "struct": {
        "kind": { "plain": { "fields": [3], "has_stripped_fields": true } },
        "generics": generics(lifetime()), "impls": [],
    } });
    let result = of("fmt::Result", 101, path("Error", 105));
    let mut fault = item(
        10,
        "Fault",
        json!({ "enum": { "generics": none(), "variants": [11, 12], "impls": [] } }),
    );
    fault["attrs"] = json!(["non_exhaustive"]);
    let items = [
        item(0, "lib", json!({ "module": { "items": [1, 7, 8, 13] } })),
        item(1, "", re_export("Frame", 2)),
        item(2, "Frame", structure),
        item(
            3,
            "len",
            json!({ "struct_field": { "primitive": "usize" } }),
        ),
        item(
            4,
            "",
            implementation(
                frame.clone(),
                Value::Null,
                generics(lifetime()),
                json!([5, 14]),
            ),
        ),
        item(
            5,
            "name",
            function(none(), json!([["self", borrowed], ["n", word]]), result),
        ),
        item(
            6,
            "",
            implementation(
                frame,
                json!({ "path": "Clone", "id": 102 }),
                generics(lifetime()),
                json!([]),
            ),
        ),
        item(
            7,
            "take",
            function(
                generics(json!([{ "name": "T", "kind": { "type":
                { "bounds": bound, "default": null, "is_synthetic": false } } }])),
                json!([["what", { "generic": "T" }], ["more", path("Option", 104)]]),
                Value::Null,
            ),
        ),
        item(
            8,
            "Source",
            json!({ "trait": {
            "items": [9], "generics": none(), "bounds": [], "is_unsafe": false } }),
        ),
        item(
            9,
            "Item",
            json!({ "assoc_type": { "generics": none(), "bounds": [], "type": null } }),
        ),
        fault,
        item(
            11,
            "Host",
            json!({ "variant": { "kind": "plain", "discriminant": null } }),
        ),
        item(
            12,
            "Code",
            json!({ "variant": { "kind": { "tuple": [15] }, "discriminant": null } }),
        ),
        item(13, "", re_export("Fault", 10)),
        {
            let mut private = item(14, "hidden", function(none(), json!([]), Value::Null));
            private["visibility"] = json!("crate");
            private
        },
        item(15, "0", json!({ "struct_field": { "primitive": "u8" } })),
    ];
    let index: serde_json::Map<String, Value> = items
        .into_iter()
        .map(|item| (item["id"].to_string(), item))
        .collect();
    json!({
        "format_version": FORMAT, "root": 0, "index": index,
        "paths": {
            "2": { "crate_id": 0, "path": ["lib", "frame", "Frame"] },
            "101": { "crate_id": 2, "path": ["core", "result", "Result"] },
            "102": { "crate_id": 2, "path": ["core", "clone", "Clone"] },
            "103": { "crate_id": 2, "path": ["core", "convert", "Into"] },
            "104": { "crate_id": 2, "path": ["core", "option", "Option"] },
            "105": { "crate_id": 3, "path": ["std", "io", "error", "Error"] },
            "106": { "crate_id": 9, "path": ["rustix", "io", "Errno"] },
        },
        "external_crates": { "2": { "name": "core" }, "3": { "name": "std" }, "9": { "name": "rustix" } },
    })
}

fn lines(json: &Value) -> Vec<ApiLine> {
    RustdocJson::new(json).unwrap().lines()
}

fn mistakes(json: &Value, exceptions: &[Exception]) -> Vec<String> {
    let document = RustdocJson::new(json).unwrap();
    rules::mistakes(&document, &document.lines(), exceptions)
}

#[test]
fn each_public_item_has_a_line_with_its_whole_signature() {
    let listing = text(&lines(&library()));
    let expected = [
        "pub mod lib",
        "#[non_exhaustive] pub enum lib::Fault",
        "pub lib::Fault::Code(u8)",
        "pub lib::Fault::Host",
        "pub struct lib::Frame<'a> { .. }",
        "impl<'a> Clone for lib::Frame<'a>",
        "pub lib::Frame::len: usize",
        "pub fn lib::Frame<'a>::name(&mut self, n: &'a str) -> Result<std::io::Error>",
        "pub trait lib::Source",
        "pub type lib::Source::Item;",
        "pub fn lib::take<T: Into>(what: T, more: Option)",
    ];
    assert_eq!(listing.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn types_are_written_as_rust_writes_them() {
    let library = library();
    let document = RustdocJson::new(&library).unwrap();
    let writer = Writer::new(&document);
    let unsigned = || json!({ "primitive": "u8" });
    let trait_bound = |id: u64, more: Value| json!({ "trait": { "path": "X", "id": id, "args": more }, "generic_params": [] });
    let call = json!({ "parenthesized": { "inputs": [unsigned()], "output": unsigned() } });
    let item = json!({ "angle_bracketed": { "args": [], "constraints": [
        { "name": "Item", "args": null, "binding": { "equality": { "type": unsigned() } } }] } });
    let dynamic = json!({ "dyn_trait": {
        "traits": [trait_bound(103, call), trait_bound(102, Value::Null)], "lifetime": "'static" } });
    let ranked = json!([{ "name": "'b", "kind": { "lifetime": { "outlives": [] } } }]);
    for (ty, written) in [
        (json!({ "tuple": [] }), "()"),
        (json!({ "tuple": [unsigned()] }), "(u8,)"),
        (json!({ "primitive": "never" }), "!"),
        (
            json!({ "array": { "type": unsigned(), "len": "32" } }),
            "[u8; 32]",
        ),
        (
            json!({ "raw_pointer": { "is_mutable": false, "type": unsigned() } }),
            "*const u8",
        ),
        (path("frame::Frame", 2), "lib::Frame"),
        (path("Error", 105), "std::io::Error"),
        (
            json!({ "borrowed_ref": { "lifetime": null, "is_mutable": false, "type": dynamic } }),
            "&(dyn Into(u8) -> u8 + Clone + 'static)",
        ),
        (
            json!({ "impl_trait": [{ "trait_bound": trait_bound(103, item) }, { "use": [{ "lifetime": "'a" }] }] }),
            "impl Into<Item = u8> + use<'a>",
        ),
        (
            json!({ "function_pointer": {
                "sig": { "inputs": [["_", unsigned()]], "output": null }, "generic_params": ranked,
                "header": { "is_const": false, "is_unsafe": true, "is_async": false, "abi": { "C": { "unwind": false } } } } }),
            "for<'b> unsafe extern \"C\" fn(u8)",
        ),
        (
            json!({ "qualified_path": { "name": "Item", "args": null, "self_type": { "generic": "T" },
                "trait": { "path": "Source", "id": 8, "args": null } } }),
            "<T as lib::Source>::Item",
        ),
    ] {
        assert_eq!(writer.ty(&ty), written);
    }
    assert_eq!(writer.leaks(), []);
}

#[test]
fn a_type_that_is_not_send_says_so() {
    let mut library = library();
    library["paths"]["107"] = json!({ "crate_id": 2, "path": ["core", "marker", "Send"] });
    let inner = "/index/6/inner/impl";
    let implementation = library.pointer_mut(inner).unwrap();
    implementation["trait"] = json!({ "path": "Send", "id": 107 });
    implementation["is_synthetic"] = json!(true);
    assert!(!text(&lines(&library)).contains("Send"));
    library.pointer_mut(inner).unwrap()["is_negative"] = json!(true);
    assert!(text(&lines(&library)).contains("\nimpl<'a> !Send for lib::Frame<'a>\n"));
}

#[test]
fn an_item_that_is_visible_twice_is_a_re_export_at_the_longer_path() {
    let mut library = library();
    let module = item(20, "prelude", json!({ "module": { "items": [21] } }));
    library["index"]["20"] = module;
    library["index"]["21"] = item(21, "", re_export("Fault", 10));
    library["index"]["0"]["inner"]["module"]["items"] = json!([20, 1, 7, 8, 13]);
    let listing = text(&lines(&library));
    assert!(listing.contains("\npub mod lib::prelude\n"), "{listing}");
    assert!(
        listing.contains("\npub use lib::prelude::Fault = lib::Fault\n"),
        "{listing}"
    );
}

#[test]
fn types_of_other_crates_are_refused_wherever_they_stand() {
    let leaking = |pointer: &str, ty: Value| {
        let mut library = library();
        *library.pointer_mut(pointer).expect(pointer) = ty;
        mistakes(
            &library,
            &[Exception {
                at: "lib::Frame",
                what: CLOSED,
                reason: "",
            }],
        )
    };
    let nothing = leaking("/index/3/inner/struct_field", json!({ "primitive": "u8" }));
    assert_eq!(nothing, Vec::<String>::new());
    let errno = || of("Option", 104, path("io::Errno", 106));
    for (pointer, ty) in [
        ("/index/3/inner/struct_field", errno()),
        ("/index/5/inner/function/sig/output", errno()),
        (
            "/index/7/inner/function/sig/inputs/0/1",
            json!({ "slice": errno() }),
        ),
        (
            "/index/6/inner/impl/trait",
            json!({ "path": "Errno", "id": 106 }),
        ),
        (
            "/index/15/inner/struct_field",
            json!({ "tuple": [errno()] }),
        ),
        ("/index/1/inner/use/id", json!(106)),
    ] {
        let wrong = leaking(pointer, ty);
        let is_told = wrong
            .iter()
            .any(|wrong| wrong.contains("rustix::io::Errno is of the crate rustix"));
        assert!(is_told, "{pointer}: {wrong:?}");
    }
    let hidden = leaking("/index/3/inner/struct_field", path("Hidden", 99));
    assert!(hidden[0].contains("no user can name it"), "{hidden:?}");
}

#[test]
fn types_that_could_never_grow_need_an_exception_and_a_reason() {
    let mut library = library();
    let closed = mistakes(&library, &[]);
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert!(
        closed[0].starts_with("lib::Frame: a struct with public fields"),
        "{closed:?}"
    );
    library["index"]["10"]["attrs"] = json!([]);
    let both = mistakes(&library, &[]);
    let is_told = both
        .iter()
        .any(|wrong| wrong.starts_with("lib::Fault: an enum"));
    assert!(is_told, "{both:?}");
    let excepted = |at| Exception {
        at,
        what: CLOSED,
        reason: "",
    };
    let wrong = mistakes(&library, &[excepted("lib::Frame"), excepted("lib::Fault")]);
    assert_eq!(wrong, Vec::<String>::new());
    let all = [
        excepted("lib::Frame"),
        excepted("lib::Fault"),
        excepted("lib::Gone"),
    ];
    let stale = mistakes(&library, &all);
    assert!(
        stale[0].starts_with("lib::Gone: nothing needs its exception"),
        "{stale:?}"
    );
}

#[test]
fn a_listing_that_differs_is_told_line_by_line() {
    assert_eq!(differences("a\nb\n", "a\nb\n"), Vec::<String>::new());
    assert_eq!(differences("a\nb\nb\n", "a\nb\nc\n"), ["- b", "- b", "+ c"]);
    assert_eq!(differences("a\n", "a\nc\n"), ["+ c"]);
}

#[test]
fn a_format_that_is_not_known_is_refused() {
    let mut library = library();
    library["format_version"] = json!(FORMAT + 1);
    let error = RustdocJson::new(&library).err().unwrap();
    assert!(error.contains("format 58"), "{error}");
}
