//! How long until there is enough to tell.

/// Milliseconds until `needed` runs have settled, at the rate of the first `age_ms`; none while no run has.
pub fn minimum_sample_in_ms(settled: u64, needed: u64, age_ms: u64) -> Option<u64> {
    let missing = needed.saturating_sub(settled);
    if missing == 0 {
        return Some(0);
    }
    if settled == 0 {
        return None;
    }
    let wait = (u128::from(missing) * u128::from(age_ms)).div_ceil(u128::from(settled));
    Some(u64::try_from(wait).unwrap_or(u64::MAX))
}
