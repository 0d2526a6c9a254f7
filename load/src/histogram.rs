//! Times in buckets that are a 64th wide: small, and exact enough for percentiles.

use serde_json::{Value, json};

const STEPS: u64 = 64;

/// Counts of nanoseconds.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; (STEPS * 60) as usize],
            total: 0,
            max: 0,
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = u64::from(value.ilog2()) - 6;
    ((shift + 1) * STEPS + ((value >> shift) - STEPS)) as usize
}

/// The smallest value of a bucket.
fn floor(bucket: u64) -> u64 {
    match bucket / STEPS {
        0 => bucket,
        row => (STEPS + bucket % STEPS) << (row - 1),
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.total += 1;
        self.max = self.max.max(nanoseconds);
    }

    /// The value that this share of all is at most, in milliseconds.
    fn at(&self, share: f64) -> f64 {
        let mut left = (self.total as f64 * share).ceil() as u64;
        for (place, count) in (0..).zip(&self.counts) {
            if *count >= left {
                return floor(place) as f64 / 1e6;
            }
            left -= count;
        }
        self.max as f64 / 1e6
    }

    /// Percentiles in milliseconds; null where nothing was counted.
    pub(crate) fn summary(&self) -> Value {
        if self.total == 0 {
            return Value::Null;
        }
        json!({
            "n": self.total, "p50_ms": self.at(0.5), "p95_ms": self.at(0.95), "p99_ms": self.at(0.99), "p999_ms": self.at(0.999),
            "max_ms": self.max as f64 / 1e6,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_64th_of_the_value() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000_u64 {
            histogram.add(value * 1000);
        }
        for (share, want) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = histogram.at(share);
            assert!(
                found <= want && found > want * 63.0 / 64.0,
                "{share}: {found}"
            );
        }
        for value in [0, 63, 64, 65, 1 << 40, u64::MAX >> 8] {
            let low = floor(bucket(value) as u64);
            assert!(low <= value && value - low <= value / 64, "{value}: {low}");
        }
    }
}
