//! What a kernel leaves in the vector registers says nothing about keys and texts.

use core::arch::asm;

use crate::{Kernel, Key, OpenJob, SealJob, TAG_LEN};

/// All vector registers; the upper sixteen and the upper halves stay 0 on a processor without
/// AVX-512.
#[derive(PartialEq, Eq, Debug)]
struct Registers([[u8; 64]; 32]);

fn avx512() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// Inlined: what stands between the kernel's return and this might use the registers.
#[inline(always)]
fn registers(into: &mut Registers, avx512: bool) {
    macro_rules! store {
        ($operation:literal, $kind:literal: $($number:literal)+) => {
            // SAFETY: the processor has the registers, and `into` has room for them all.
            unsafe {
                asm!(
                    $(concat!($operation, " [{into} + 64*", $number, "], ", $kind, $number),)+
                    into = in(reg) into.0.as_mut_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    if avx512 {
        store!("vmovdqu64", "zmm":
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15"
            "16" "17" "18" "19" "20" "21" "22" "23" "24" "25" "26" "27" "28" "29" "30" "31");
    } else {
        store!("vmovdqu", "ymm":
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15");
    }
}

/// The registers after sealing and after opening, with keys and texts made from `secret`.
fn leftovers(kernel: Kernel, buffers: &mut [Vec<u8>], secret: u8) -> [Registers; 2] {
    let avx512 = avx512();
    let mut left = [const { Registers([[0; 64]; 32]) }; 2];
    let key = Key::new(&[secret; 32]);
    for buffer in &mut *buffers {
        buffer.fill(secret ^ 0x11);
    }
    let mut jobs: Vec<_> = (0..)
        .zip(&mut *buffers)
        .map(|(counter, buffer)| SealJob::in_place(&key, counter, buffer))
        .collect();
    kernel.seal(&mut jobs);
    registers(&mut left[0], avx512);
    let mut jobs: Vec<_> = (0..)
        .zip(buffers)
        .map(|(counter, buffer)| OpenJob::in_place(&key, counter, buffer))
        .collect();
    kernel.open(&mut jobs);
    registers(&mut left[1], avx512);
    assert!(jobs.iter().all(OpenJob::is_authentic));
    left
}

/// The same for one packet by itself, of which the keystream may have been made before.
fn leftovers_of_one(kernel: Kernel, counter: u64, keys: &[Key; 2], text: u8) -> [Registers; 2] {
    let avx512 = avx512();
    let mut left = [const { Registers([[0; 64]; 32]) }; 2];
    let mut packet = [text; 64 + TAG_LEN];
    kernel.seal_one(&keys[0], counter, &mut packet);
    registers(&mut left[0], avx512);
    let authentic = kernel.open_one(&keys[1], counter, &mut packet);
    registers(&mut left[1], avx512);
    assert!(authentic);
    left
}

#[test]
fn registers_are_the_same_after_one_packet_whatever_the_key_and_the_text() {
    let kernels = Kernel::available().filter(|kernel| kernel.name() != "ring");
    for kernel in kernels.map(Kernel::unmixed) {
        let used = if kernel.name() == "avx512" { 32 } else { 16 };
        let keys = [0x3a, 0xc5].map(|secret| [(); 2].map(|()| Key::new(&[secret; 32])));
        for counter in 0..6 {
            let once = leftovers_of_one(kernel, counter, &keys[0], 0x11);
            let again = leftovers_of_one(kernel, counter, &keys[1], 0xee);
            for (once, again) in once.iter().zip(&again) {
                let name = kernel.name();
                assert_eq!(once.0[..used], again.0[..used], "{name}, counter {counter}");
            }
        }
    }
}

#[test]
fn registers_are_the_same_whatever_the_key_and_the_text() {
    let kernels = Kernel::available().filter(|kernel| kernel.name() != "ring");
    for kernel in kernels.map(Kernel::unmixed) {
        // What a library of the machine's left in registers that only AVX-512 has is not ours.
        let used = if kernel.name() == "avx512" { 32 } else { 16 };
        for (len, batch) in [
            (0, 1),
            (1, 1),
            (64, 1),
            (300, 1),
            (1420, 1),
            (64, 64),
            (1420, 45),
            (9000, 3),
        ] {
            let mut buffers = vec![vec![0; len + TAG_LEN]; batch];
            let once = leftovers(kernel, &mut buffers, 0x3a);
            let again = leftovers(kernel, &mut buffers, 0xc5);
            for (what, i) in [("seal", 0), ("open", 1)] {
                for number in 0..used {
                    assert_eq!(
                        once[i].0[number],
                        again[i].0[number],
                        "{}: register {number} after {what} of {batch} × {len} bytes",
                        kernel.name()
                    );
                }
            }
        }
    }
}
