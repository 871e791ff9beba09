//! The vector registers.

use core::arch::asm;
use core::arch::x86_64::_mm256_zeroall;

/// Clears all vector registers: `vzeroall` leaves the upper sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn zeroize_registers() {
    _mm256_zeroall();
    macro_rules! clear {
        ($($register:tt)+) => {
            // SAFETY: nothing but the registers changes, and the compiler is told of them.
            unsafe {
                asm!(
                    $(concat!("vpxord ", $register, ", ", $register, ", ", $register),)+
                    $(out($register) _,)+
                    options(nomem, nostack, preserves_flags),
                );
            }
        };
    }
    clear!("zmm16" "zmm17" "zmm18" "zmm19" "zmm20" "zmm21" "zmm22" "zmm23"
           "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30" "zmm31");
}
