//! Seeded numbers, and how far results are apart.

/// `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From -1 to 1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Largest difference, where `want` is of the order of 1.
pub(crate) fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |most, (got, want)| {
        let apart = (got - want).abs();
        if apart.is_nan() {
            f32::INFINITY
        } else {
            most.max(apart)
        }
    })
}

/// Asserts that nothing is farther apart than `tolerance`.
pub(crate) fn assert_near(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    let apart = difference(got, want);
    assert!(
        apart <= tolerance,
        "{name}: {apart} apart, at most {tolerance}"
    );
}
