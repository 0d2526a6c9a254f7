//! Seeded randomness, by `SplitMix64`.

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Neighbouring seeds start far apart.
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        crate::splitmix::next(&mut self.0)
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in `ppm` of a million.
    pub(crate) fn ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = usize::try_from(self.below(from.len() as u64)).unwrap();
        from[index]
    }
}
