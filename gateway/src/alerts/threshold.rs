//! Which thresholds a window has crossed, and which of them nobody has raised yet.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Windows of one length that are remembered: the present one and the one before, for a clock that steps back.
const KEPT: usize = 2;

/// Thresholds that `used` has reached of `limit`. Nothing is used of a limit of 0, and nothing is crossed.
pub(super) fn crossed(thresholds: &[u8], used: u64, limit: u64) -> BTreeSet<u8> {
    let is_crossed = |percent: &&u8| {
        limit > 0 && u128::from(used) * 100 >= u128::from(limit) * u128::from(**percent)
    };
    thresholds.iter().filter(is_crossed).copied().collect()
}

/// What was raised of one budget, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Raised {
    /// Thresholds by the start of their window.
    windows: BTreeMap<u64, BTreeSet<u8>>,
}

impl Raised {
    /// Notes what is crossed in a window; what of it is new. Nothing is new in a window older than those remembered.
    pub(super) fn raise(&mut self, start_ms: u64, crossed: &BTreeSet<u8>) -> BTreeSet<u8> {
        let oldest = self
            .windows
            .first_key_value()
            .map(|(start_ms, _)| *start_ms);
        let is_past = self.windows.len() >= KEPT && oldest.is_some_and(|oldest| start_ms < oldest);
        if is_past || crossed.is_empty() {
            return BTreeSet::new();
        }
        let raised = self.windows.entry(start_ms).or_default();
        let new: BTreeSet<u8> = crossed.difference(raised).copied().collect();
        raised.extend(&new);
        while self.windows.len() > KEPT {
            self.windows.pop_first();
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_crossed_exactly_when_its_share_is_used() {
        let all = [50, 80, 95, 100];
        for (used, limit, want) in [
            (0, 0, 0),
            (5, 0, 0),
            (49, 100, 0),
            (50, 100, 1),
            (94, 100, 2),
            (95, 100, 3),
            (100, 100, 4),
            (250, 100, 4),
            (1, 3, 0),
            (2, 3, 1),
            (u64::MAX, u64::MAX, 4),
        ] {
            assert_eq!(crossed(&all, used, limit).len(), want, "{used} of {limit}");
        }
    }

    #[test]
    fn each_threshold_is_new_once_in_each_window_whatever_the_clock_does() {
        let mut raised = Raised::default();
        let set = |percents: &[u8]| percents.iter().copied().collect::<BTreeSet<u8>>();
        assert_eq!(raised.raise(10, &set(&[50])), set(&[50]));
        assert_eq!(raised.raise(10, &set(&[50, 80])), set(&[80]));
        assert_eq!(raised.raise(20, &set(&[50])), set(&[50]));
        assert_eq!(
            raised.raise(10, &set(&[50, 80])),
            set(&[]),
            "the clock stepped back"
        );
        assert_eq!(raised.raise(30, &set(&[50])), set(&[50]));
        assert_eq!(
            raised.raise(10, &set(&[50])),
            set(&[]),
            "forgotten, not new"
        );
        let stored = serde_json::to_string(&raised).unwrap();
        assert_eq!(serde_json::from_str::<Raised>(&stored).unwrap(), raised);
    }
}
