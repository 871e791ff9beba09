//! Mutations of inputs, for a run without a fuzzer: the same ones for the same seed.

/// SplitMix64.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next one.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() >> 1).unwrap_or(0) % bound.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }
}

/// Bytes that lengths and flags like to be wrong at.
const EDGES: [u8; 8] = [0, 1, 4, 0x40, 0x7f, 0x80, 0xfe, 0xff];

/// Changes `input` in one to eight places; `other` is an input to take pieces from.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], most: usize, random: &mut SplitMix64) {
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = EDGES[random.below(EDGES.len())];
                }
            }
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.byte();
                }
            }
            3 => {
                let len = random.below(input.len() - at + 1).min(16);
                input.drain(at..at + len);
            }
            4 => {
                let new: Vec<u8> = (0..=random.below(8)).map(|_| random.byte()).collect();
                input.splice(at..at, new);
            }
            5 => {
                let len = random.below(input.len() - at + 1).min(64);
                let piece = input[at..at + len].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            6 => {
                let from = random.below(other.len() + 1);
                let len = random.below(other.len() - from + 1).min(256);
                let end = (at + len).min(input.len());
                input.splice(at..end, other[from..from + len].iter().copied());
            }
            _ => input.truncate(at.max(input.len() / 2)),
        }
    }
    input.truncate(most);
}
