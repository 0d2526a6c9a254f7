//! How fast bytes may come: a token bucket that can be in debt, since a piece that is there already cannot be sent back. Pure.

/// Bytes that may come, refilled at a steady rate.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    bytes_per_second: u64,
    /// Below zero while in debt.
    bytes: i64,
    at_ms: u64,
}

impl TokenBucket {
    /// A full bucket: one tenth of a second's bytes, so that the rate holds over any second.
    pub fn new(bytes_per_second: u64, now_ms: u64) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        Self {
            bytes_per_second,
            bytes: burst(bytes_per_second),
            at_ms: now_ms,
        }
    }

    /// Takes what has come, and says how many milliseconds to wait before the next piece is asked for.
    pub fn take(&mut self, bytes: u64, now_ms: u64) -> u64 {
        let passed = now_ms.saturating_sub(self.at_ms);
        let more = u128::from(passed) * u128::from(self.bytes_per_second) / 1000;
        if more > 0 {
            self.at_ms = now_ms;
        }
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        let taken = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes = self
            .bytes
            .saturating_add(more)
            .min(burst(self.bytes_per_second))
            .saturating_sub(taken);
        let debt = self.bytes.min(0).unsigned_abs();
        (debt.saturating_mul(1000)).div_ceil(self.bytes_per_second)
    }
}

fn burst(bytes_per_second: u64) -> i64 {
    i64::try_from(bytes_per_second / 10).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_rate_holds_whatever_the_pieces(rate in 1_000_u64..100_000_000, pieces in proptest::collection::vec(1_u64..200_000, 20..200)) {
            let mut bucket = TokenBucket::new(rate, 0);
            let (mut now, mut total) = (0, 0);
            for piece in pieces {
                total += piece;
                now += bucket.take(piece, now);
            }
            // What came beyond the first burst took its time, and no more than its time (rounding: a millisecond a piece).
            let least = (total - (rate / 10).min(total)) * 1000 / rate;
            prop_assert!(now >= least, "{now} ms for {total} bytes at {rate}");
            prop_assert!(now <= total * 1000 / rate + 201, "{now} ms for {total} bytes at {rate}");
        }
    }

    #[test]
    fn who_waited_long_has_no_more_than_a_burst() {
        let mut bucket = TokenBucket::new(1000, 0);
        assert_eq!(bucket.take(100, 1_000_000), 0);
        assert_eq!(bucket.take(500, 1_000_000), 500);
    }
}
