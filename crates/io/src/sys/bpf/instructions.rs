//! Programs, instruction by instruction.

use std::os::fd::AsRawFd;

/// Where a program finds the number that is `at` this place.
pub(crate) fn offset(at: usize) -> i16 {
    i16::try_from(8 * at).unwrap_or(i16::MAX)
}

/// A register. R0 holds what a call returns and what the program does; calls take R1 to R5 and
/// leave R6 to R9 alone.
#[derive(Clone, Copy)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
/// The end of the 512 bytes that a program has for itself.
pub(crate) const R10: Register = Register(10);

/// The number of a helper function of the kernel, without its `BPF_FUNC_`.
#[derive(Clone, Copy)]
pub(crate) struct Function(i32);

pub(crate) const GET_SMP_PROCESSOR_ID: Function = Function(8);
pub(crate) const SKB_LOAD_BYTES: Function = Function(26);
pub(crate) const TCP_SOCK: Function = Function(96);
pub(crate) const SKB_LOAD_BYTES_RELATIVE: Function = Function(68);
pub(crate) const KTIME_GET_BOOT_NS: Function = Function(125);

/// `struct bpf_insn`. The kernel documents the codes in
/// Documentation/bpf/standardization/instruction-set.rst.
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    /// Source and destination, four bits each: these are where little-endian machines have them.
    registers: u8,
    off: i16,
    imm: i32,
}

impl Instruction {
    const fn new(code: u8, to: Register, from: Register, off: i16, imm: i32) -> Self {
        Self {
            code,
            registers: from.0 << 4 | to.0,
            off,
            imm,
        }
    }

    /// `to = from`
    pub(crate) const fn copy(to: Register, from: Register) -> Self {
        Self::new(0xbf, to, from, 0, 0)
    }

    /// `to = value`
    pub(crate) const fn set(to: Register, value: i32) -> Self {
        Self::new(0xb7, to, R0, 0, value)
    }

    /// `to = value`. It takes two instructions.
    pub(crate) const fn set64(to: Register, value: u64) -> [Self; 2] {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        [
            Self::new(0x18, to, R0, 0, i32::from_le_bytes([a, b, c, d])),
            Self::new(0, R0, R0, 0, i32::from_le_bytes([e, f, g, h])),
        ]
    }

    /// `to` = the address of the numbers. It takes two instructions.
    pub(crate) fn numbers(to: Register, map: &impl AsRawFd) -> [Self; 2] {
        // BPF_PSEUDO_MAP_VALUE stands where others have a register.
        let value_of_map = Register(2);
        [
            Self::new(0x18, to, value_of_map, 0, map.as_raw_fd()),
            Self::new(0, R0, R0, 0, 0),
        ]
    }

    /// `to` = the 8 bits at `base + off`
    pub(crate) const fn load8(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x71, to, base, off, 0)
    }

    /// `to` = the 32 bits at `base + off`
    pub(crate) const fn load32(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x61, to, base, off, 0)
    }

    /// `to` = the 64 bits at `base + off`
    pub(crate) const fn load64(to: Register, base: Register, off: i16) -> Self {
        Self::new(0x79, to, base, off, 0)
    }

    /// The 64 bits at `base + off` = `from`
    pub(crate) const fn store64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0x7b, base, from, off, 0)
    }

    /// The 64 bits at `base + off` += `from`, atomically
    pub(crate) const fn add64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0xdb, base, from, off, 0)
    }

    /// `to += from`
    pub(crate) const fn add(to: Register, from: Register) -> Self {
        Self::new(0x0f, to, from, 0, 0)
    }

    /// `to += value`
    pub(crate) const fn add_value(to: Register, value: i32) -> Self {
        Self::new(0x07, to, R0, 0, value)
    }

    /// `to /= from`, without sign
    pub(crate) const fn divide(to: Register, from: Register) -> Self {
        Self::new(0x3f, to, from, 0, 0)
    }

    /// `to -= from`
    pub(crate) const fn subtract(to: Register, from: Register) -> Self {
        Self::new(0x1f, to, from, 0, 0)
    }

    /// The 32 bits at `base + off` = `from`
    pub(crate) const fn store32(base: Register, off: i16, from: Register) -> Self {
        Self::new(0x63, base, from, off, 0)
    }

    /// `from` = the 64 bits at `base + off`, which grow by what `from` was, atomically
    pub(crate) const fn fetch_add64(base: Register, off: i16, from: Register) -> Self {
        Self::new(0xdb, base, from, off, 1)
    }

    /// `to &= value`
    pub(crate) const fn and_value(to: Register, value: i32) -> Self {
        Self::new(0x57, to, R0, 0, value)
    }

    /// `to |= from`
    pub(crate) const fn or(to: Register, from: Register) -> Self {
        Self::new(0x4f, to, from, 0, 0)
    }

    /// `to <<= bits`
    pub(crate) const fn shift_left(to: Register, bits: i32) -> Self {
        Self::new(0x67, to, R0, 0, bits)
    }

    /// `to >>= bits`, without sign
    pub(crate) const fn shift_right(to: Register, bits: i32) -> Self {
        Self::new(0x77, to, R0, 0, bits)
    }

    /// `to >>= from`, without sign
    pub(crate) const fn shift_right_by(to: Register, from: Register) -> Self {
        Self::new(0x7f, to, from, 0, 0)
    }

    /// `to *= from`
    pub(crate) const fn multiply(to: Register, from: Register) -> Self {
        Self::new(0x2f, to, from, 0, 0)
    }

    /// `to *= value`
    pub(crate) const fn multiply_value(to: Register, value: i32) -> Self {
        Self::new(0x27, to, R0, 0, value)
    }

    /// `to ^= from`
    pub(crate) const fn xor(to: Register, from: Register) -> Self {
        Self::new(0xaf, to, from, 0, 0)
    }

    /// Goes elsewhere.
    pub(crate) const fn go() -> Self {
        Self::new(0x05, R0, R0, 0, 0)
    }

    /// Goes elsewhere if `register == value`.
    pub(crate) const fn go_if_equal(register: Register, value: i32) -> Self {
        Self::new(0x15, register, R0, 0, value)
    }

    /// Goes elsewhere if `register != value`.
    pub(crate) const fn go_if_not_equal(register: Register, value: i32) -> Self {
        Self::new(0x55, register, R0, 0, value)
    }

    /// Goes elsewhere if `register < value`, without sign.
    pub(crate) const fn go_if_less_than_value(register: Register, value: i32) -> Self {
        Self::new(0xa5, register, R0, 0, value)
    }

    /// Goes elsewhere if `left < right`, without sign.
    pub(crate) const fn go_if_less(left: Register, right: Register) -> Self {
        Self::new(0xad, left, right, 0, 0)
    }

    /// Goes elsewhere if `left <= right`, without sign.
    pub(crate) const fn go_if_no_more(left: Register, right: Register) -> Self {
        Self::new(0xbd, left, right, 0, 0)
    }

    /// Goes elsewhere if `left <= right`, with sign.
    pub(crate) const fn go_if_at_most(left: Register, right: Register) -> Self {
        Self::new(0xdd, left, right, 0, 0)
    }

    /// `R0 = function(R1, R2, ...)`
    pub(crate) const fn call(function: Function) -> Self {
        Self::new(0x85, R0, R0, 0, function.0)
    }

    /// Ends the program; R0 says what becomes of the packet.
    pub(crate) const fn exit() -> Self {
        Self::new(0x95, R0, R0, 0, 0)
    }
}

/// Instructions, and where those that go elsewhere go.
#[derive(Default)]
pub(crate) struct Program {
    instructions: Vec<Instruction>,
    /// Where labels are.
    labels: Vec<usize>,
    /// Instructions that go to labels.
    jumps: Vec<(usize, Label)>,
}

/// A place in a program. It comes after every instruction that goes there.
#[derive(Clone, Copy)]
pub(crate) struct Label(usize);

impl Program {
    /// A place that [`Self::place`] decides on later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    /// The next instruction is where this label is.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = self.instructions.len();
    }

    pub(crate) fn add<const N: usize>(&mut self, instructions: [Instruction; N]) {
        self.instructions.extend(instructions);
    }

    /// An instruction that goes to the label.
    pub(crate) fn jump(&mut self, instruction: Instruction, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.instructions.push(instruction);
    }

    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (from, Label(to)) in self.jumps {
            // The kernel refuses a program with a jump that this cannot express.
            let skipped = self.labels[to].saturating_sub(from + 1);
            self.instructions[from].off = i16::try_from(skipped).unwrap_or(i16::MAX);
        }
        self.instructions
    }
}
