use adit_aead::*;
#[test]
fn quick() {
    let key = Key::new(&core::array::from_fn(|i| i as u8 * 7));
    let key2 = Key::new(&core::array::from_fn(|i| i as u8 * 3 + 1));
    for kernel in Kernel::available() {
        for len in (0..300).chain([1000, 1420, 1421, 4096, 8920, 9001, 16384, 65535]) {
            for batch in [1usize, 2, 3, 7, 8, 9, 16, 33, 45] {
                if len > 2000 && batch > 9 {
                    continue;
                }
                let lens: Vec<usize> = (0..batch)
                    .map(|i| if len % 3 == 0 { len + i * 5 } else { len })
                    .collect();
                let plain: Vec<Vec<u8>> = lens
                    .iter()
                    .map(|l| (0..*l).map(|i| (i * 31 + l) as u8).collect())
                    .collect();
                let ad = |i: usize| {
                    if len % 2 == 0 && i % 5 == 3 {
                        &key2
                    } else {
                        &key
                    }
                };
                let mut want: Vec<Vec<u8>> = plain
                    .iter()
                    .map(|p| {
                        let mut v = p.clone();
                        v.resize(p.len() + 16, 0);
                        v
                    })
                    .collect();
                {
                    let mut jobs: Vec<_> = want
                        .iter_mut()
                        .enumerate()
                        .map(|(i, o)| SealJob::in_place(ad(i), i as u64 + u32::MAX as u64 - 3, o))
                        .collect();
                    Kernel::available()
                        .find(|k| k.name() == "ring")
                        .unwrap()
                        .seal(&mut jobs);
                }
                for split in [0usize, 64, 100, 5000000] {
                    let mut out: Vec<Vec<u8>> = plain
                        .iter()
                        .map(|p| {
                            let n = split.min(p.len());
                            let mut v = p[..n].to_vec();
                            v.resize(p.len() + 16, 0x55);
                            v
                        })
                        .collect();
                    {
                        let mut jobs: Vec<_> = out
                            .iter_mut()
                            .enumerate()
                            .map(|(i, o)| {
                                let n = split.min(plain[i].len());
                                SealJob::laid(
                                    ad(i),
                                    i as u64 + u32::MAX as u64 - 3,
                                    n,
                                    &plain[i][n..],
                                    o,
                                )
                            })
                            .collect();
                        kernel.seal(&mut jobs);
                    }
                    for i in 0..batch {
                        assert!(
                            out[i] == want[i],
                            "{} len {len} batch {batch} i {i} split {split} text {} tag {}",
                            kernel.name(),
                            out[i][..lens[i]] == want[i][..lens[i]],
                            out[i][lens[i]..] == want[i][lens[i]..]
                        );
                    }
                }
                let mut out = want.clone();
                let mut jobs: Vec<_> = out
                    .iter_mut()
                    .enumerate()
                    .map(|(i, o)| OpenJob::in_place(ad(i), i as u64 + u32::MAX as u64 - 3, o))
                    .collect();
                kernel.open(&mut jobs);
                assert!(jobs.iter().all(|j| j.is_authentic()));
                drop(jobs);
                for i in 0..batch {
                    assert!(out[i][..lens[i]] == plain[i]);
                }
            }
        }
    }
}
