//! Histograms with fixed edges, so that those of all gateways add up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets of a time: edges 2^(k/4) ms from 1 ms, the last one open. Four in a doubling keep an edge within 9 percent.
pub const BUCKETS: u8 = 72;
/// Buckets of a length: 0 tokens, then one per power of two.
pub const LENGTH_BUCKETS: u8 = 33;

/// 2^(r/4) ms in nanoseconds for r = 0…3.
const QUARTERS_NS: [u64; 4] = [1_000_000, 1_189_207, 1_414_213, 1_681_792];

/// The upper edge of a bucket in microseconds, rounded down.
pub fn edge_us(bucket: u8) -> u64 {
    (QUARTERS_NS[usize::from(bucket % 4)] << (bucket / 4)) / 1_000
}

/// The bucket of a time: the first whose upper edge is not below it.
pub fn bucket_of_us(us: u64) -> u8 {
    (0..BUCKETS - 1)
        .find(|&bucket| us <= edge_us(bucket))
        .unwrap_or(BUCKETS - 1)
}

/// The bucket of an output length.
pub fn bucket_of_length(tokens: u32) -> u8 {
    let bits = u32::BITS - tokens.leading_zeros();
    u8::try_from(bits).expect("a number of 32 bits has at most 32")
}

/// Counts per bucket; buckets without one are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(BTreeMap<u8, u64>);

impl Histogram {
    /// Adds observations.
    pub fn record(&mut self, bucket: u8, count: u64) {
        if count > 0 {
            *self.0.entry(bucket).or_default() += count;
        }
    }

    /// All observations.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Observations in buckets above `bucket`.
    pub fn above(&self, bucket: u8) -> u64 {
        self.0
            .range(bucket.saturating_add(1)..)
            .map(|(_, count)| count)
            .sum()
    }

    /// Observations in buckets below `bucket`.
    pub fn below(&self, bucket: u8) -> u64 {
        self.0.range(..bucket).map(|(_, count)| count).sum()
    }

    /// The bucket in which the given share of the observations, in percent, is reached.
    pub fn quantile(&self, percent: u32) -> Option<u8> {
        let total = u128::from(self.total());
        let mut seen = 0_u128;
        for (&bucket, &count) in &self.0 {
            seen += u128::from(count);
            if seen * 100 >= total * u128::from(percent) {
                return Some(bucket);
            }
        }
        None
    }

    /// Adds another gateway's.
    pub fn add(&mut self, other: &Self) {
        for (&bucket, &count) in &other.0 {
            self.record(bucket, count);
        }
    }

    /// Whether every count is at least the other's.
    pub fn covers(&self, earlier: &Self) -> bool {
        let count = |bucket| self.0.get(bucket).copied().unwrap_or(0);
        earlier
            .0
            .iter()
            .all(|(bucket, &earlier)| count(bucket) >= earlier)
    }

    /// Whether every bucket exists.
    pub(super) fn fits(&self, buckets: u8) -> bool {
        self.0.keys().all(|&bucket| bucket < buckets)
    }
}
