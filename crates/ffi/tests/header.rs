//! `include/adit.h` is what cbindgen makes of the source. `ADIT_WRITE=1` writes it.

use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, Language, Style};

const ABOUT: &str = "\
/* Adit: WireGuard as a library. Made by cbindgen from crates/ffi/src; do not edit.
 *
 * Every function looks at its arguments first: NULL, a wrong struct_size or text that cannot be is
 * ADIT_ERROR_ARGUMENT. What it cannot see is the caller's: that lengths are right, that what is lent is not
 * used for longer than it says, and that an object that was freed is not used again.
 *
 * - A function returns ADIT_OK or an error (below 0), or of those that make an object the object or NULL.
 *   The last parameter, which may be NULL, is told the error as code and text.
 * - A struct that begins with struct_size is to be zeroed, and struct_size set to its sizeof, before it is passed.
 * - What a _new, _start or _listen returns is freed by the _free of its kind, once; NULL is freed by nothing. Texts that are
 *   returned in a char ** are freed by adit_text_free. Nothing else is to be freed.
 * - adit_tunnel may be used by all threads at the same time; adit_device, adit_config and adit_change by any thread,
 *   one at a time: a second one gets ADIT_ERROR_BUSY. Keys and texts by any thread.
 * - adit_room and adit_tunnel_ functions are there if the library was built with the feature `engine`, adit_tcp_ and
 *   adit_udp_ functions if it was with `net`. Both are defaults.
 * - No signal handler, no environment variable, no global state. A mistake in the library is caught as
 *   ADIT_ERROR_PANIC, and written to standard error.
 */";

/// The source, in the order of the header.
const SOURCE: &str = "abi keys packets config change event device callbacks options tunnel net";

fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

fn header() -> String {
    let config = Config {
        language: Language::C,
        header: Some(ABOUT.to_owned()),
        include_guard: Some("ADIT_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        cpp_compat: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::C,
        usize_is_size_t: true,
        enumeration: EnumConfig::default(),
        ..Config::default()
    };
    let files = SOURCE
        .split(' ')
        .map(|name| path(&format!("src/{name}.rs")));
    let builder = files.fold(Builder::new().with_config(config), Builder::with_src);
    let bindings = builder.generate().expect("cbindgen reads the source");
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).expect("the header is UTF-8")
}

#[test]
fn the_header_is_that_of_the_source() {
    let (made, path) = (header(), path("include/adit.h"));
    if std::env::var_os("ADIT_WRITE").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == checked_in,
        "{} differs from the source: ADIT_WRITE=1 cargo test -p adit-ffi --test header",
        path.display()
    );
}
