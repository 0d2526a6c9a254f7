//! Time and randomness, the only places where the gateway asks for either.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_run::RunId;

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_millis() as u64
}

/// RFC 3339, UTC, milliseconds.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    jiff::Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap_or(i64::MAX))
        .map_or_else(|_| String::new(), |t| format!("{t:.3}"))
}

/// From RFC 3339 with any offset.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

pub(crate) fn new_run_id() -> RunId {
    RunId::new(now_ms(), random_u128())
}

pub(crate) fn random_u128() -> u128 {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc_with_milliseconds_and_read_back() {
        assert_eq!(rfc3339(1_764_547_230_007), "2025-12-01T00:00:30.007Z");
        assert_eq!(
            parse_rfc3339("2025-12-01T01:00:30.007+01:00"),
            Some(1_764_547_230_007)
        );
        assert_eq!(parse_rfc3339("tomorrow"), None);
    }
}
