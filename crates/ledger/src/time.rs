//! Times as the contract writes them.

/// RFC 3339, UTC, milliseconds; empty for a time that the calendar does not reach.
pub fn rfc3339(unix_ms: u64) -> String {
    jiff::Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap_or(i64::MAX))
        .map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}
