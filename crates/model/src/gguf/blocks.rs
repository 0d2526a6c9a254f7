//! Blocks of quantized numbers, as `ggml` writes them, back to f32.

/// How a tensor's numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// 32 bits each.
    F32,
    /// 16 bits each.
    F16,
    /// 16 bits each, 8 of them exponent.
    Bf16,
    /// 32 of 4 bits with a scale.
    Q4_0,
    /// 32 of 4 bits with a scale and a minimum.
    Q4_1,
    /// 32 of 5 bits with a scale.
    Q5_0,
    /// 32 of 5 bits with a scale and a minimum.
    Q5_1,
    /// 32 of 8 bits with a scale.
    Q8_0,
    /// 256 of 4 bits; scales and minima of 32 have 6 bits.
    Q4K,
    /// 256 of 5 bits; scales and minima of 32 have 6 bits.
    Q5K,
    /// 256 of 6 bits; scales of 16 have 8 bits.
    Q6K,
}

/// Number in files, name, elements of a block, its bytes.
const TYPES: [(BlockType, u32, &str, usize, usize); 11] = [
    (BlockType::F32, 0, "F32", 1, 4),
    (BlockType::F16, 1, "F16", 1, 2),
    (BlockType::Bf16, 30, "BF16", 1, 2),
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q4K, 12, "Q4_K", 256, 144),
    (BlockType::Q5K, 13, "Q5_K", 256, 176),
    (BlockType::Q6K, 14, "Q6_K", 256, 210),
];

impl BlockType {
    /// By its number in files.
    pub(super) fn of(number: u32) -> Option<Self> {
        let found = TYPES.iter().find(|(_, other, ..)| *other == number);
        found.map(|(block, ..)| *block)
    }

    /// All names, for people.
    pub(super) fn names() -> String {
        TYPES.map(|(_, _, name, ..)| name).join(", ")
    }

    fn entry(self) -> (&'static str, usize, usize) {
        let found = TYPES.iter().find(|(block, ..)| *block == self);
        let (_, _, name, elements, bytes) = found.expect("every type is in the table");
        (name, *elements, *bytes)
    }

    /// As files and people name it.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        self.entry().1
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.entry().2
    }

    /// Writes a row as f32; `row` holds whole blocks and fills `out`.
    ///
    /// # Panics
    /// It does not.
    pub(crate) fn read(self, row: &[u8], out: &mut [f32]) {
        let (_, elements, bytes) = self.entry();
        assert!(
            row.len() * elements == out.len() * bytes,
            "{} bytes are not {} elements",
            row.len(),
            out.len()
        );
        let blocks = row.chunks_exact(bytes).zip(out.chunks_exact_mut(elements));
        for (block, out) in blocks {
            match self {
                Self::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                Self::F16 => out[0] = half(block),
                Self::Bf16 => out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                Self::Q4_0 => q4(block, (2, half(block), -8.0 * half(block)), out),
                Self::Q4_1 => q4(block, (4, half(block), half(&block[2..])), out),
                Self::Q5_0 => q5(block, (2, half(block), -16.0 * half(block)), out),
                Self::Q5_1 => q5(block, (4, half(block), half(&block[2..])), out),
                Self::Q8_0 => {
                    for (out, q) in out.iter_mut().zip(&block[2..]) {
                        *out = half(block) * f32::from(q.cast_signed());
                    }
                }
                Self::Q4K => q4_k(block, out),
                Self::Q5K => q5_k(block, out),
                Self::Q6K => q6_k(block, out),
            }
        }
    }
}

fn half(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The first half of the elements is in the low nibbles.
fn q4(block: &[u8], (from, scale, min): (usize, f32, f32), out: &mut [f32]) {
    let (low, high) = out.split_at_mut(16);
    for (at, q) in block[from..].iter().enumerate() {
        low[at] = scale.mul_add(f32::from(q & 15), min);
        high[at] = scale.mul_add(f32::from(q >> 4), min);
    }
}

/// As four bits, with the fifth of each in a word before them.
fn q5(block: &[u8], (from, scale, min): (usize, f32, f32), out: &mut [f32]) {
    let word = &block[from..from + 4];
    let fifth = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    let (low, high) = out.split_at_mut(16);
    for (at, q) in block[from + 4..].iter().enumerate() {
        let bit = |place: usize| if fifth >> place & 1 == 1 { 16 } else { 0 };
        low[at] = scale.mul_add(f32::from(q & 15 | bit(at)), min);
        high[at] = scale.mul_add(f32::from(q >> 4 | bit(at + 16)), min);
    }
}

/// Scale and minimum of the group `at` of eight: six bits each, in twelve bytes.
fn scale_and_min(packed: &[u8], at: usize) -> (f32, f32) {
    let (scale, min) = if at < 4 {
        (packed[at] & 63, packed[at + 4] & 63)
    } else {
        (
            packed[at + 4] & 15 | packed[at - 4] >> 6 << 4,
            packed[at + 4] >> 4 | packed[at] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (all, all_min) = (half(block), half(&block[2..]));
    let (packed, quants) = (&block[4..16], &block[16..]);
    for (pair, (out, quants)) in out
        .chunks_exact_mut(64)
        .zip(quants.chunks_exact(32))
        .enumerate()
    {
        for (high, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(packed, pair * 2 + high);
            for (out, q) in out.iter_mut().zip(quants) {
                *out = all * scale * f32::from(q >> (4 * high) & 15) - all_min * min;
            }
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (all, all_min) = (half(block), half(&block[2..]));
    let (packed, fifths, quants) = (&block[4..16], &block[16..48], &block[48..]);
    for (pair, (out, quants)) in out
        .chunks_exact_mut(64)
        .zip(quants.chunks_exact(32))
        .enumerate()
    {
        for (high, out) in out.chunks_exact_mut(32).enumerate() {
            let group = pair * 2 + high;
            let (scale, min) = scale_and_min(packed, group);
            for ((out, q), fifth) in out.iter_mut().zip(quants).zip(fifths) {
                let q = q >> (4 * high) & 15 | (fifth >> group & 1) << 4;
                *out = all * scale * f32::from(q) - all_min * min;
            }
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let all = half(&block[208..]);
    for (part, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&low[part * 64..][..64], &high[part * 32..][..32]);
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            for (at, out) in out.iter_mut().enumerate() {
                let nibble = low[at + quarter % 2 * 32] >> (quarter / 2 * 4) & 15;
                let q = nibble | (high[at] >> (quarter * 2) & 3) << 4;
                let scale = scales[part * 8 + quarter * 2 + at / 16].cast_signed();
                *out = all * f32::from(scale) * (f32::from(q) - 32.0);
            }
        }
    }
}
