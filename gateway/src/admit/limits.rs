//! Limits that depend on what is connected now.

/// A tenant's share of a pool's KV positions. Unknown while no worker is connected: then nothing can run anyway.
pub(super) fn kv_share(percent: Option<u8>, pool_tokens: u64) -> Option<u64> {
    let percent = u64::from(percent?);
    (pool_tokens > 0).then(|| pool_tokens.saturating_mul(percent) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_of_what_is_connected() {
        assert_eq!(kv_share(Some(50), 1001), Some(500));
        assert_eq!(kv_share(Some(50), 0), None);
        assert_eq!(kv_share(None, 1000), None);
    }
}
