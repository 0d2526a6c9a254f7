//! How much is mirrored: what is over a cap is dropped, never queued.

use std::collections::{HashMap, HashSet};

use tokio::time::Instant;

/// Prompts that are remembered, so that a repeated one counts once; reaching it forgets them all.
const PROMPTS: usize = 8192;
/// With so many tenants none gives more than a fifth of the pairs.
const TENANTS: usize = 5;

/// What was mirrored so far.
pub(super) struct Caps {
    tokens_per_second: f64,
    /// Tokens that may be mirrored now.
    tokens: f64,
    since: Instant,
    prompts: HashSet<[u8; 32]>,
    by_tenant: HashMap<String, u64>,
}

impl Caps {
    pub(super) fn new(tokens_per_second: u32, now: Instant) -> Self {
        let rate = f64::from(tokens_per_second);
        Self {
            tokens_per_second: rate,
            tokens: burst(rate),
            since: now,
            prompts: HashSet::new(),
            by_tenant: HashMap::new(),
        }
    }

    /// Whether a prompt of a tenant is new, and its tenant has not given more than its share.
    pub(super) fn wants(&mut self, tenant: &str, prompt: [u8; 32]) -> bool {
        let all: u64 = self.by_tenant.values().sum();
        let own = self.by_tenant.get(tenant).copied().unwrap_or(0);
        if self.by_tenant.len() >= TENANTS && own * 5 > all {
            return false;
        }
        if self.prompts.len() >= PROMPTS {
            self.prompts.clear();
        }
        if !self.prompts.insert(prompt) {
            return false;
        }
        *self.by_tenant.entry(tenant.to_owned()).or_default() += 1;
        true
    }

    /// Takes tokens out of what may be mirrored; whether there were enough.
    pub(super) fn spend(&mut self, tokens: u64, now: Instant) -> bool {
        let elapsed = now.duration_since(self.since).as_secs_f64();
        self.since = now;
        let most = burst(self.tokens_per_second);
        self.tokens = (self.tokens + elapsed * self.tokens_per_second).min(most);
        // One that is larger than the burst may go when nothing went for a while.
        let needed = (tokens as f64).min(most);
        if self.tokens < needed {
            return false;
        }
        self.tokens -= tokens as f64;
        true
    }
}

/// What may go at once after a pause: the tokens of four seconds, so that one long prompt is not too long for ever.
fn burst(rate: f64) -> f64 {
    4.0 * rate
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_come_back_at_their_rate_and_a_large_one_leaves_a_debt() {
        let start = Instant::now();
        let mut caps = Caps::new(100, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(caps.spend(400, at(0)) && !caps.spend(1, at(0)));
        assert!(!caps.spend(100, at(500)) && caps.spend(100, at(1_000)));
        assert!(caps.spend(1_000, at(5_000)), "larger than the burst");
        assert!(!caps.spend(100, at(10_000)) && caps.spend(100, at(12_000)));
    }

    #[test]
    fn a_prompt_counts_once_and_none_of_many_tenants_gives_more_than_a_fifth() {
        let mut caps = Caps::new(1, Instant::now());
        assert!(caps.wants("a", [1; 32]) && !caps.wants("b", [1; 32]));
        for (place, tenant) in ["b", "c", "d", "e"].iter().enumerate() {
            assert!(caps.wants(tenant, [10 + place as u8; 32]));
        }
        let wanted = (0..40).filter(|n| caps.wants("a", [100 + n; 32])).count();
        assert!(wanted <= 1, "{wanted}");
    }
}
