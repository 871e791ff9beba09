//! What the process's memory holds of keys that are gone: nothing. The test runs in a process of
//! its own.

#[path = "../../proto/tests/common/memory.rs"]
mod search;

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN, zeroizing_stack};
use search::{Needles, alone, fill};

#[test]
fn no_key_is_left_that_was_dropped_on_a_zeroized_stack() {
    alone(
        "no_key_is_left_that_was_dropped_on_a_zeroized_stack",
        || {
            let mut seed = 1;
            let mut wrong = Vec::new();
            for kernel in Kernel::available().flat_map(|kernel| [kernel, kernel.unmixed()]) {
                for len in [64, 1420] {
                    for batch in [1, 9, 33] {
                        let needles = Needles::default();
                        zeroizing_stack::<{ 128 << 10 }, _>(|| {
                            work(kernel, len, batch, &needles, &mut seed);
                        });
                        let found = needles.found();
                        if !found.is_empty() {
                            wrong.push(format!("{} {batch} × {len}: {found:?}", kernel.name()));
                        }
                    }
                }
            }
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        },
    );
}

/// Seals a batch with two keys in turns, and opens it.
fn work(kernel: Kernel, len: usize, batch: usize, needles: &Needles, seed: &mut u64) {
    let mut bytes = vec![[0; 32]; 2];
    for bytes in &mut bytes {
        fill(bytes, seed);
        needles.add("key", bytes);
    }
    let keys: Vec<Box<Key>> = bytes
        .iter()
        .map(|bytes| Box::new(Key::new(bytes)))
        .collect();
    bytes.fill([0; 32]);
    std::hint::black_box(&mut bytes);
    needles.expect("key");
    let mut packet = vec![0x33; len + TAG_LEN];
    kernel.seal_one(&keys[0], 1000, &mut packet);
    assert!(kernel.open_one(&keys[0], 1000, &mut packet));
    for keys in [&keys[..1], &keys] {
        let mut buffers = vec![vec![0x33; len + TAG_LEN]; batch];
        let mut jobs: Vec<_> = (0..)
            .zip(&mut buffers)
            .zip(keys.iter().cycle())
            .map(|((i, out), key)| SealJob::in_place(key, i, out))
            .collect();
        kernel.seal(&mut jobs);
        drop(jobs);
        let mut jobs: Vec<_> = (0..)
            .zip(&mut buffers)
            .zip(keys.iter().cycle())
            .map(|((i, out), key)| OpenJob::in_place(key, i, out))
            .collect();
        kernel.open(&mut jobs);
        assert!(jobs.iter().all(OpenJob::is_authentic));
    }
}
