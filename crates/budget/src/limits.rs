//! What a tenant may consume, what a run asks for, and why it was refused.

/// A fixed window, aligned to the Unix epoch. A run is billed in the window in which it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowLimit {
    /// Length in seconds, at least 1.
    pub period_s: u64,
    /// Tokens per window, if limited.
    pub tokens: Option<u64>,
    /// Micro-units per window, if limited.
    pub micros: Option<u64>,
}

/// A tenant's limits at the moment of admission; absent means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Budget windows, by period; no two of the same period.
    pub windows: Vec<WindowLimit>,
    /// Accepted runs per minute (fixed windows aligned to the minute).
    pub requests_per_minute: Option<u64>,
    /// Reserved tokens per minute, likewise.
    pub tokens_per_minute: Option<u64>,
    /// Runs that are not terminal.
    pub concurrent_runs: Option<u64>,
    /// Reserved tokens of live runs in the pool asked for: the tenant's share of its KV memory.
    pub pool_kv_tokens: Option<u64>,
    /// What the key that asks may take of all this; counted in an account of its own inside the tenant's.
    pub key: Option<Box<KeyLimits>>,
}

/// Limits of one key of a tenant. They hold beside the tenant's, in the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// The key's name, unique within the tenant.
    pub name: String,
    /// Its limits; a key of a key is not looked at.
    pub limits: Limits,
}

/// What a run reserves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Exact tokens of the prompt.
    pub prompt_tokens: u64,
    /// Output ceiling over all choices.
    pub output_tokens: u64,
    /// Worst-case cost.
    pub micros: u64,
    /// Output price, to tell the largest output that a money budget would allow.
    pub output_micros_per_token: u64,
    /// Where it runs.
    pub pool: String,
}

impl Ask {
    /// Prompt plus output ceiling.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.output_tokens)
    }
}

/// Why nothing was reserved. Checked in this order; the first that applies is reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A window's tokens do not suffice.
    #[error("the {period_s} s token budget has {available} tokens left, the run needs {needed}")]
    WindowTokens {
        /// Which window.
        period_s: u64,
        /// What is left; negative when a limit was lowered below what is in use.
        available: i64,
        /// Prompt plus output ceiling.
        needed: u64,
        /// The largest output ceiling (over all choices) that would fit every limit; 0 when not even the prompt fits.
        largest_output_tokens: u64,
        /// When the window ends, in milliseconds since the Unix epoch.
        window_end_ms: u64,
    },
    /// A window's money does not suffice.
    #[error("the {period_s} s cost budget has {available} micros left, the run may cost {needed}")]
    WindowMicros {
        /// Which window.
        period_s: u64,
        /// What is left.
        available: i64,
        /// Worst-case cost.
        needed: u64,
        /// As above.
        largest_output_tokens: u64,
        /// As above.
        window_end_ms: u64,
    },
    /// Too many requests this minute.
    #[error("{limit} requests a minute are used up")]
    RequestRate {
        /// The limit.
        limit: u64,
        /// Until the minute ends.
        retry_after_ms: u64,
    },
    /// Too many tokens this minute.
    #[error("{limit} tokens a minute: {available} left, the run needs {needed}")]
    TokenRate {
        /// The limit.
        limit: u64,
        /// What is left of it.
        available: u64,
        /// Prompt plus output ceiling.
        needed: u64,
        /// Until the minute ends.
        retry_after_ms: u64,
    },
    /// Too many live runs.
    #[error("{limit} runs at once are in progress")]
    Concurrency {
        /// The limit.
        limit: u64,
    },
    /// The tenant's share of KV memory in the pool is taken.
    #[error("{held} of {limit} KV tokens in the pool are held, the run needs {needed}")]
    KvShare {
        /// The limit in tokens.
        limit: u64,
        /// Held by live runs.
        held: u64,
        /// Prompt plus output ceiling.
        needed: u64,
    },
    /// The tenant's limits suffice, those of the key that asks do not.
    #[error("of key {key:?}, {refusal}")]
    Key {
        /// The key's name.
        key: String,
        /// Which of its limits.
        refusal: Box<Refusal>,
    },
}
