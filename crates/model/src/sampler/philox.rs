//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random numbers as a function of key and
//! counter, so a number belongs to a position and not to a history.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (high_0, low_0) = wide(MULTIPLIERS[0], counter[0]);
        let (high_1, low_1) = wide(MULTIPLIERS[1], counter[2]);
        counter = [
            high_1 ^ counter[1] ^ key[0],
            low_1,
            high_0 ^ counter[3] ^ key[1],
            low_0,
        ];
    }
    counter
}

fn wide(a: u32, b: u32) -> (u32, u32) {
    split(u64::from(a) * u64::from(b))
}

/// (high, low)
#[expect(clippy::cast_possible_truncation, reason = "takes the halves apart")]
fn split(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, value as u32)
}

/// A number in [0, 1) for a seed and a position, with 53 random bits.
pub(super) fn uniform(seed: u64, position: u64) -> f64 {
    let (seed_high, seed_low) = split(seed);
    let (high, low) = split(position);
    let words = philox([low, high, 0, 0], [seed_low, seed_high]);
    let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}
