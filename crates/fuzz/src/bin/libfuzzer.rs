//! All targets under libFuzzer: `ADIT_FUZZ_TARGET` names the one to run. `scripts/fuzz` builds it.
#![no_main]

use std::sync::OnceLock;

use adit_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    *TARGET.get_or_init(|| {
        let name = std::env::var("ADIT_FUZZ_TARGET").unwrap_or_default();
        adit_fuzz::target(&name).expect("ADIT_FUZZ_TARGET names a target")
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (chosen().run)(input));
